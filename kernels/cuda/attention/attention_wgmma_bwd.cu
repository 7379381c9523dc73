/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of attention on Hopper: heads of 64 and 128 in BF16 and FP16 by products of warpgroups (wgmma). The cut
 * into two kernels, and numbers except for the order of sums, are attention_mma.cu's. The instructions and copies are
 * attention_wgmma.cu's, whose essay gives the reason for cp.async copies under one barrier a tile.
 *
 * A warpgroup has 64 rows: queries for dq, keys for dk and dv. A block is two of them, or one for heads of 64. It goes
 * over tiles of the other side: for dq of as many keys as a head has elements, else of 64 queries (and over the heads
 * of a group). Registers hold the scores and slopes of no more. Products of its rows with the tile's make both, read
 * from shared memory. The second products take them from registers, as the first left them, because the rows are keys
 * where a transposed operand is needed. So no computed value passes through shared memory, and warpgroups share no sum.
 *
 * Overlap within a block, for heads of 128: slopes run while scores become probabilities, dv while slopes become the
 * gradients of scores, and dq or dk while the next tile's first products are issued behind it. The other warpgroup's
 * products overlap all of these. A tile must stay while such a product reads it. So there are three places for the
 * tiles of the second products' right operands, and two for values in dq's kernel, which only slopes read.
 *
 * Overlap between blocks, for heads of 64: a multiprocessor has four blocks of dq, or three of dk and dv, each in a
 * phase of its own. Two warpgroups of one block would be in step, behind its barriers: both issue products at one time,
 * and both make probabilities at one time. Registers suffice because no product is in flight when a tile ends. For dk
 * and dv both second products are issued together, once their operands have replaced scores and slopes. So two places
 * are enough. Queries or keys as operands in registers would save reads of shared memory, and spill.
 *
 * dq has a kernel of its own, which makes scores and slopes again: 7 products instead of the necessary 5. The
 * alternative is to add to dq in turns from the blocks of keys, one after the other so that bits are the same. It would
 * save 2/7 of the time at best. It moves 64 KiB of FP32 out of L2 and back for each 128 x 128 pairs of 21 million
 * operations (D = 128). That is 6.2 TB/s at an H100's 989 TFLOP/s, on top of 3.1 for the tiles. It needs twice the
 * bytes of q as scratch, in every budget, and blocks spin until those before them are done.
 *
 * The kernel of dq also makes delta, dout . out of each query, while its first copies are under way, and leaves it in
 * the workspace for dk and dv. A kernel of its own would read dout once more.
 *
 * Moves q, k, v, out, its gradients and d_qkv once, and out of L2 k, v again for each block of queries and q, dout for
 * each block of keys: at D = 128 a byte for 192 and 252 operations, at D = 64 for 96 and 124. Operations: 7 T^2 D a
 * head, and 1/32 more at T = 4096 for the masked halves of the diagonal's tiles. Bound at D = 128, in cycles of a
 * multiprocessor (2048 multiply-adds, 128 bytes of shared memory, 16 exponentials): a tile of dq takes 3072 of tensor
 * cores, 2560 of shared memory, 1024 of exponentials; of dk and dv 2048, 1928, 512. So tensor cores bind, by a small
 * margin. At D = 64 shared memory binds more: a warpgroup's tile takes 384, 448, 256, and 512, 580, 256. At the full
 * rate 69 % of the operations are necessary ones (5/7, less the diagonal). Registers and shared memory of each kernel
 * are in bench/results/sass-h100.md.
 */
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/wgmma.h"

#define GROUP_ROWS 64 /* of a warpgroup */
#define DQ_THREADS LADE_CUDA_WGMMA_DQ_THREADS(D)
#define DQ_ROWS LADE_CUDA_WGMMA_DQ_ROWS(D)
#define DQ_TILE LADE_CUDA_WGMMA_DQ_TILE(D)
#define DKV_THREADS LADE_CUDA_WGMMA_DKV_THREADS(D)
#define DKV_ROWS LADE_CUDA_WGMMA_DKV_ROWS(D)
#define DKV_TILE LADE_CUDA_WGMMA_DKV_TILE
#define PLACES LADE_CUDA_WGMMA_BWD_PLACES(D)

static __device__ inline int own_get(void)
{
  return warp_get() * 16;
}

/* Return place @j of N in turn, of ELEMENTS each. */
template <int N, int ELEMENTS, class T> static __device__ inline T *place_get(T *places, int j)
{
  return places + j % N * ELEMENTS;
}

/*
 * A warp's 16 rows and a tile of 8 N of the other side. Scores become probabilities. Slopes, dout . v, become the
 * gradients of scores without 1/sqrt(D). The rest is the left operand of a product made from them. Dropout is a
 * template parameter (HAS_DROP): before products whose operands a branch made, while others run, the compiler would
 * wait for all.
 */
template <int N> struct score_pairs {
  float scores[1][N][4], slopes[1][N][4];
  uint32_t weights[N / 2][4], gradients[N / 2][4];
  uint64_t kept;
};

/* Begin scores and slopes, a group each: X1 Y1^T and X2 Y2^T, of 64 rows from @first on and the tile's. */
template <int D, int ROWS, int N, class T>
static __device__ inline void pairs_begin(struct score_pairs<N> &p, int first, const T *x1, const T *y1, const T *x2,
                                          const T *y2)
{
  ptx_products_fence();
  rows_multiply_begin<D, ROWS>(p.scores[0], x1, first, y1);
  rows_multiply_begin<D, ROWS>(p.slopes[0], x2, first, y2);
}

/*
 * Add up the columns of a block's gradient, which sums_put left at @tile, to @partial: a warp its 16 rows in their
 * order, then the warps in theirs. @first: the warp's first row of the tensor's @n_rows. @room: D floats for each warp,
 * which no thread uses by now. All THREADS threads of the block.
 */
template <int D, int THREADS, class T>
static __device__ inline void columns_put(T *tile, float *room, float *partial, int first, int64_t n_rows)
{
  constexpr int EACH = D / 32;
  const int column = lane_get() * EACH;
  float sums[EACH] = {};
#pragma unroll
  for (int row = 0; row < 16; row++) {
    const pack<T, EACH> x = *(const pack<T, EACH> *)(chunk_at<D>(tile + own_get() * D, row, column / LADE_CUDA_CHUNK) +
                                                     column % LADE_CUDA_CHUNK);
#pragma unroll
    for (int j = 0; j < EACH; j++)
      sums[j] += first + row < (int)n_rows ? get(x.x[j]) : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < EACH; j++)
    room[warp_get() * D + column + j] = sums[j];
  __syncthreads();
  if (threadIdx.x >= D)
    return;
  float sum = room[threadIdx.x];
  for (int warp = 1; warp < THREADS / 32; warp++)
    sum += room[warp * D + threadIdx.x];
  partial[threadIdx.x] = sum;
}

/* ---- queries ---- */

/* Queries, the gradients of their out, and the places for tiles of keys and values. */
template <class T, int D> struct queries_block {
  struct block_shape s;
  const T *k, *v; /* of its head's first row */
  const T *next;  /* panels_from of the keys that keys_copy copies; only for heads of 64 */
  T *queries, *douts, *keys, *values;
  int group_first; /* row of this thread's warpgroup in the block */
  int first, n_tiles;
  float lse[2], delta[2]; /* of this thread's rows, delta from deltas_make; lse times log2 e */
};

template <class T, int D>
static __device__ inline struct queries_block<T, D> queries_block_get(const struct lade_attention_bwd_args &a,
                                                                      T *shared)
{
  struct queries_block<T, D> b;
  b.s = shape_get(a, DQ_ROWS, blockIdx.x, gridDim.y - 1 - blockIdx.y, D);
  b.first = (int)b.s.first;
  b.n_tiles = ((b.first + DQ_ROWS < b.s.seq_len ? b.first + DQ_ROWS : (int)b.s.seq_len) + DQ_TILE - 1) / DQ_TILE;
  b.group_first = DQ_ROWS > GROUP_ROWS ? warpgroup_get() * GROUP_ROWS : 0;
  b.k = (const T *)a.qkv + qkv_at(b.s, b.s.heads + kv_head_get(b.s), 0);
  b.v = b.k + b.s.n_kv_heads * D;
  b.next = panels_from(b.k, b.s.row_elements, 0);
  b.queries = tiles_begin(shared);
  b.douts = b.queries + DQ_ROWS * D;
  b.keys = b.douts + DQ_ROWS * D;
  b.values = b.keys + PLACES * DQ_TILE * D;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = b.first + own_get() + fragment_row(0, 2 * i);
    b.lse[i] = at < b.s.seq_len ? LOG2_E * ((const float *)a.lse)[query_at(b.s, b.s.h, at)] : 0;
    b.delta[i] = 0;
  }
  return b;
}

/*
 * A thread's part of its two rows of out and its gradient: chunks t, t + 4, ... of each, where t counts the four lanes
 * that have a row of c.
 */
template <class T, int D> struct delta_parts {
  pack<T, LADE_CUDA_CHUNK> out[2][D / 32], d_out[2][D / 32];
};

/* Load the parts; rows past the sequence read its last one, and their delta is not used. */
template <class T, int D>
static __device__ inline struct delta_parts<T, D> delta_parts_load(const struct queries_block<T, D> &b,
                                                                   const struct lade_attention_bwd_args &a)
{
  struct delta_parts<T, D> parts;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = b.first + own_get() + fragment_row(0, 2 * i);
    const int64_t at = out_at(b.s, b.s.h, row < b.s.seq_len ? row : b.s.seq_len - 1) + lane_get() % 4 * LADE_CUDA_CHUNK;
#pragma unroll
    for (int k = 0; k < D / 32; k++) {
      parts.out[i][k] = pack_load<T, LADE_CUDA_CHUNK>((const T *)a.out + at + 4 * k * LADE_CUDA_CHUNK);
      parts.d_out[i][k] = pack_load<T, LADE_CUDA_CHUNK>((const T *)a.d_out + at + 4 * k * LADE_CUDA_CHUNK);
    }
  }
  return parts;
}

/* Make delta of this thread's rows; one lane of four writes it to the workspace. A whole warp. */
template <class T, int D>
static __device__ inline void deltas_make(struct queries_block<T, D> &b, const struct lade_attention_bwd_args &a,
                                          const struct delta_parts<T, D> &parts)
{
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = b.first + own_get() + fragment_row(0, 2 * i);
    float sum = 0;
#pragma unroll
    for (int at = 0; at < D / 4; at++)
      sum = fmaf(get(parts.d_out[i][at / 8].x[at % 8]), get(parts.out[i][at / 8].x[at % 8]), sum);
    b.delta[i] = row_sum(sum);
    if (lane_get() % 4 == 0 && row < b.s.seq_len)
      ((float *)a.workspace)[query_at(b.s, b.s.h, row)] = b.delta[i];
  }
}

/*
 * Begin to copy tile @j, the next; past the last one, write zeros: a branch would wait for the products in flight.
 * Heads of 128 have no registers for a place that lives through the loop.
 */
template <class T, int D> static __device__ inline void keys_copy(struct queries_block<T, D> &b, int j)
{
  const int64_t n_rows = j < b.n_tiles ? b.s.seq_len : 0, pitch = b.s.row_elements;
  T *const keys = place_get<PLACES, DQ_TILE * D>(b.keys, j), *const values = place_get<2, DQ_TILE * D>(b.values, j);
  const int first = j * DQ_TILE;
  if (D == 64) {
    panels_copy_from<D, DQ_TILE, DQ_THREADS>(keys, b.next, pitch, first, n_rows);
    panels_copy_from<D, DQ_TILE, DQ_THREADS>(values, b.next + (int)b.s.n_kv_heads * D, pitch, first, n_rows);
    b.next += DQ_TILE * (int)pitch;
  } else {
    panels_copy<D, DQ_TILE, DQ_THREADS>(keys, b.k, pitch, first, n_rows);
    panels_copy<D, DQ_TILE, DQ_THREADS>(values, b.v, pitch, first, n_rows);
  }
}

/* Add tile @j's part of dq; its product with the keys is in flight when this returns, except for heads of 64. */
template <bool HAS_DROP, class T, int D>
static __device__ inline void keys_meet(struct queries_block<T, D> &b, const struct lade_drop &drop,
                                        const struct lade_step *step, int j, struct score_pairs<DQ_TILE / 8> &p,
                                        float (&dq)[D / 8][4])
{
  constexpr int N = DQ_TILE / 8;
  const int own = b.first + own_get();
  T *const keys = place_get<PLACES, DQ_TILE * D>(b.keys, j), *const values = place_get<2, DQ_TILE * D>(b.values, j);
  const float factor = b.s.scale * LOG2_E;
  if (HAS_DROP)
    p.kept = kept_get<false, 1, N>(b.s, step, drop, b.s.h, own, j * DQ_TILE);
  panels_wait();
  if (D > 64)
    keys_copy(b, j + 1); /* behind the products there are no registers left for its addresses */
  pairs_begin<D, DQ_ROWS>(p, b.group_first, b.queries, keys, b.douts, values);
  if (D == 64)
    keys_copy(b, j + 1); /* the products do not wait for its addresses */
  ptx_products_wait<1>(p.scores[0]);
#pragma unroll
  for (int at = 0; at < 4 * N; at++) {
    float &score = p.scores[0][at / 4][at % 4];
    score = ptx_exp2(fmaf(score, factor, -b.lse[at % 4 / 2]));
  }
  scores_mask<false>(p.scores, j * DQ_TILE - own, 0); /* its branch delays the wait, as that of scores_meet in
                                                         forward */
  ptx_registers_settle(p.scores[0]);
  ptx_products_wait<0>(p.slopes[0]);
  if (HAS_DROP)
    drop_apply(p.slopes, p.kept, drop.scale);
#pragma unroll
  for (int at = 0; at < 4 * N; at++) {
    float &slope = p.slopes[0][at / 4][at % 4];
    slope = p.scores[0][at / 4][at % 4] * (slope - b.delta[at % 4 / 2]);
  }
  weights_make<T>(p.gradients, p.slopes[0]);
  ptx_registers_settle(p.gradients);
  ptx_products_fence();
  rows_weigh_begin<D>(dq, p.gradients, keys);
  if (D == 64)
    ptx_products_wait<0>(dq); /* registers of the gradients of scores become the next tile's */
}

template <class T, int D>
static __device__ inline void attention_wgmma_dq(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(T, shared);
  struct queries_block<T, D> b = queries_block_get<T, D>(a, shared);
  const float factors[1][2] = {{b.s.scale, b.s.scale}};
  const struct delta_parts<T, D> parts = delta_parts_load(b, a);
  float dq[1][D / 8][4] = {};
  struct score_pairs<DQ_TILE / 8> p;
  panels_copy<D, DQ_ROWS, DQ_THREADS>(b.queries, (const T *)a.qkv + qkv_at(b.s, b.s.h, 0), b.s.row_elements, b.first,
                                      b.s.seq_len);
  panels_copy<D, DQ_ROWS, DQ_THREADS>(b.douts, (const T *)a.d_out + out_at(b.s, b.s.h, 0), b.s.heads * D, b.first,
                                      b.s.seq_len);
  keys_copy(b, 0);
  deltas_make(b, a, parts);
  ptx_registers_settle(dq[0]);
  if (a.drop.drop_below)
    for (int j = 0; j < b.n_tiles; j++)
      keys_meet<true>(b, a.drop, step, j, p, dq[0]);
  else
    for (int j = 0; j < b.n_tiles; j++)
      keys_meet<false>(b, a.drop, step, j, p, dq[0]);
  ptx_products_wait<0>(dq[0]);
  ptx_copies_wait(); /* the zeros past the last tile */
  __syncthreads(); /* no warp uses the queries any more */
  sums_put<D>(dq, factors, b.queries + own_get() * D, (T *)a.d_qkv + qkv_at(b.s, b.s.h, 0), b.s.row_elements,
              b.first + own_get(), b.s.seq_len);
  if (!a.d_bias)
    return;
  const int64_t block = b.s.b * gridDim.y + b.first / DQ_ROWS;
  columns_put<D, DQ_THREADS>(b.queries, (float *)b.douts,
                             (float *)a.workspace + lade_cuda_dkv_parts_begin(&a) + (block * b.s.heads + b.s.h) * D,
                             b.first + own_get(), b.s.seq_len);
}

/* ---- keys and values ---- */

/* Keys and values, and the places for tiles of queries, the gradients of their out after them, and lse and delta. */
template <class T, int D> struct keys_block {
  struct block_shape s;
  T *keys, *values, *places;
  float *numbers;
  struct heads_part part;
  int first;
  int group_first; /* row of this thread's warpgroup in the block */
};

template <class T, int D>
static __device__ inline struct keys_block<T, D> keys_block_get(const struct lade_attention_bwd_args &a, T *shared)
{
  struct keys_block<T, D> b;
  b.part = heads_part_get(a, blockIdx.x, gridDim.x, D);
  b.s = shape_get(a, DKV_ROWS, blockIdx.x / (unsigned)b.part.n_parts, blockIdx.y, D);
  b.first = (int)b.s.first;
  b.group_first = DKV_ROWS > GROUP_ROWS ? warpgroup_get() * GROUP_ROWS : 0;
  b.keys = tiles_begin(shared);
  b.values = b.keys + DKV_ROWS * D;
  b.places = b.values + DKV_ROWS * D;
  b.numbers = (float *)(b.places + PLACES * 2 * DKV_TILE * D);
  return b;
}

/* A tile of queries: its head, its first query, and its number in this block, which determines its place. */
template <class T> struct queries_tile {
  int h, first, j;
  const T *queries, *d_out; /* of panels_from */
};

template <class T, int D>
static __device__ inline struct queries_tile<T> tile_first(const struct keys_block<T, D> &b,
                                                           const struct lade_attention_bwd_args &a)
{
  const T *const queries = (const T *)a.qkv + qkv_at(b.s, b.part.first, 0);
  const T *const d_out = (const T *)a.d_out + out_at(b.s, b.part.first, 0);
  return (struct queries_tile<T>){b.part.first, b.first, 0, panels_from(queries, b.s.row_elements, b.first),
                                  panels_from(d_out, b.s.heads * D, b.first)};
}

/* Return the next tile: one head after the other. */
template <class T, int D>
static __device__ inline struct queries_tile<T> tile_next(const struct keys_block<T, D> &b,
                                                          const struct queries_tile<T> &tile)
{
  const bool is_last = tile.first + DKV_TILE >= b.s.seq_len;
  const int64_t more = is_last ? b.first - tile.first : DKV_TILE, column = is_last ? D : 0;
  return (struct queries_tile<T>){tile.h + is_last, tile.first + (int)more, tile.j + 1,
                                  tile.queries + (more * b.s.row_elements + column),
                                  tile.d_out + (more * b.s.heads * D + column)};
}

/* Begin to copy a tile's rows; past the last one, write zeros: a branch would wait for the products in flight. */
template <class T, int D>
static __device__ inline void queries_copy(const struct keys_block<T, D> &b, const struct queries_tile<T> &tile)
{
  const int64_t n_rows = tile.h < b.part.end ? b.s.seq_len : 0;
  T *const queries = place_get<PLACES, 2 * DKV_TILE * D>(b.places, tile.j);
  panels_copy_from<D, DKV_TILE, DKV_THREADS>(queries, tile.queries, b.s.row_elements, tile.first, n_rows);
  panels_copy_from<D, DKV_TILE, DKV_THREADS>(queries + DKV_TILE * D, tile.d_out, b.s.heads * D, tile.first, n_rows);
}

/* Begin to copy lse and delta of a tile, if there is one. */
template <class T, int D>
static __device__ inline void numbers_copy(const struct keys_block<T, D> &b, const struct lade_attention_bwd_args &a,
                                           const struct queries_tile<T> &tile)
{
  if (threadIdx.x < 2 * DKV_TILE && tile.h < b.part.end) {
    const float *from = (const float *)(threadIdx.x < DKV_TILE ? a.lse : a.workspace);
    const int i = tile.first + (int)threadIdx.x % DKV_TILE;
    ptx_copy_4(place_get<PLACES, 2 * DKV_TILE>(b.numbers, tile.j) + threadIdx.x, from + query_at(b.s, tile.h, i),
               i < b.s.seq_len);
  }
}

/*
 * Return the two of a tile's @numbers that belong to this lane's columns of c's @n-th eight. By 64 bits: the compiler
 * loads the two elements of a pack apart.
 */
static __device__ inline pack<float, 2> columns_pair(const float *numbers, int n)
{
  uint64_t bits;
  pack<float, 2> pair;
  memcpy(&bits, __builtin_assume_aligned(numbers + fragment_column(n, 0), sizeof(bits)), sizeof(bits));
  memcpy(&pair, &bits, sizeof(pair));
  return pair;
}

/* Sums of a warp's 16 keys. */
template <int D> struct key_sums {
  float dk[1][D / 8][4], dv[1][D / 8][4];
};

/*
 * Add @tile's part of them; its products with queries and their gradients are in flight when this returns, except for
 * heads of 64.
 */
template <bool HAS_DROP, class T, int D>
static __device__ inline void queries_meet(const struct keys_block<T, D> &b, const struct lade_attention_bwd_args &a,
                                           const struct lade_step *step, const struct queries_tile<T> &tile,
                                           struct score_pairs<DKV_TILE / 8> &p, struct key_sums<D> &sums)
{
  constexpr int N = DKV_TILE / 8;
  const int own = b.first + own_get();
  T *const queries = place_get<PLACES, 2 * DKV_TILE * D>(b.places, tile.j), *const douts = queries + DKV_TILE * D;
  const float *const lse = place_get<PLACES, 2 * DKV_TILE>(b.numbers, tile.j), *const delta = lse + DKV_TILE;
  const float factor = b.s.scale * LOG2_E;
  if (HAS_DROP)
    p.kept = kept_get<true, 1, N>(b.s, step, a.drop, tile.h, own, tile.first);
  panels_wait();
  numbers_copy(b, a, tile_next(b, tile));
  pairs_begin<D, DKV_ROWS>(p, b.group_first, b.keys, queries, b.values, douts);
  queries_copy(b, tile_next(b, tile)); /* behind the products, which do not wait for its addresses */
  ptx_products_wait<1>(p.scores[0]);
  scores_mask<true>(p.scores, own - tile.first, -INFINITY, ptx_thread_get() % 32);
  float weights[1][N][4];
#pragma unroll
  for (int at = 0; at < 4 * N; at++) {
    float &score = p.scores[0][at / 4][at % 4];
    score = ptx_exp2(fmaf(score, factor, -LOG2_E * columns_pair(lse, at / 4).x[at % 2]));
    weights[0][at / 4][at % 4] = score;
  }
  if (HAS_DROP)
    drop_apply(weights, p.kept, 1.0f);
  weights_make<T>(p.weights, weights[0]);
  if (D > 64) {
    ptx_registers_settle(p.weights);
    ptx_products_fence();
    rows_weigh_begin<D>(sums.dv[0], p.weights, douts);
    ptx_products_wait<1>(p.slopes[0]);
  } else {
    ptx_products_wait<0>(p.slopes[0]);
  }
  if (HAS_DROP)
    drop_apply(p.slopes, p.kept, a.drop.scale);
#pragma unroll
  for (int at = 0; at < 4 * N; at++) {
    float &slope = p.slopes[0][at / 4][at % 4];
    slope = p.scores[0][at / 4][at % 4] * (slope - columns_pair(delta, at / 4).x[at % 2]);
  }
  weights_make<T>(p.gradients, p.slopes[0]);
  if (D == 64)
    ptx_registers_settle(p.weights);
  ptx_registers_settle(p.gradients);
  ptx_products_fence();
  if (D == 64)
    rows_weigh_begin<D>(sums.dv[0], p.weights, douts);
  rows_weigh_begin<D>(sums.dk[0], p.gradients, queries);
  if (D == 64) {
    ptx_products_wait<0>(sums.dv[0]);
    ptx_registers_settle(sums.dk[0]);
  }
}

template <class T, int D>
static __device__ inline void attention_wgmma_dkv(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(T, shared);
  const struct keys_block<T, D> b = keys_block_get<T, D>(a, shared);
  const T *const k = (const T *)a.qkv + qkv_at(b.s, b.s.heads + b.s.h, 0);
  struct queries_tile<T> tile = tile_first(b, a);
  struct key_sums<D> sums = {};
  struct score_pairs<DKV_TILE / 8> p;
  panels_copy<D, DKV_ROWS, DKV_THREADS>(b.keys, k, b.s.row_elements, b.first, b.s.seq_len);
  panels_copy<D, DKV_ROWS, DKV_THREADS>(b.values, k + b.s.n_kv_heads * D, b.s.row_elements, b.first, b.s.seq_len);
  queries_copy(b, tile);
  numbers_copy(b, a, tile);
  ptx_registers_settle(sums.dk[0]);
  ptx_registers_settle(sums.dv[0]);
  if (a.drop.drop_below)
    for (; tile.h < b.part.end; tile = tile_next(b, tile))
      queries_meet<true>(b, a, step, tile, p, sums);
  else
    for (; tile.h < b.part.end; tile = tile_next(b, tile))
      queries_meet<false>(b, a, step, tile, p, sums);
  ptx_products_wait<0>(sums.dk[0]);
  ptx_copies_wait(); /* the zeros past the last tile */
  ptx_registers_settle(sums.dv[0]);
  if (b.part.n_parts > 1) {
    float *const to = (float *)a.workspace + b.part.at;
    part_put<D>(sums.dk, to, 2 * D, b.first + own_get(), b.s.seq_len);
    part_put<D>(sums.dv, to + D, 2 * D, b.first + own_get(), b.s.seq_len);
    return;
  }
  const float key_factors[1][2] = {{b.s.scale, b.s.scale}};
  const float value_factors[1][2] = {{drop_scale(a.drop), drop_scale(a.drop)}};
  T *const dk = (T *)a.d_qkv + qkv_at(b.s, b.s.heads + b.s.h, 0);
  __syncthreads(); /* no warp uses keys and values any more */
  sums_put<D>(sums.dk, key_factors, b.keys + own_get() * D, dk, b.s.row_elements, b.first + own_get(), b.s.seq_len);
  sums_put<D>(sums.dv, value_factors, b.values + own_get() * D, dk + b.s.n_kv_heads * D, b.s.row_elements,
              b.first + own_get(), b.s.seq_len);
  if (!a.d_bias)
    return;
  /* These numbers are derived again: if they lived through the loop, they would cost registers that it needs. */
  T *const keys = tiles_begin(shared), *const values = keys + DKV_ROWS * D;
  float *const room = (float *)(values + DKV_ROWS * D);
  const int64_t block = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
  float *const partial =
      (float *)a.workspace + lade_cuda_bias_keys_begin(&a, D) + (2 * block * a.n_kv_heads + blockIdx.x) * D;
  const int first = (int)blockIdx.y * DKV_ROWS + own_get();
  columns_put<D, DKV_THREADS>(keys, room, partial, first, a.seq_len);
  columns_put<D, DKV_THREADS>(values, room + DKV_THREADS / 32 * D, partial + a.n_kv_heads * D, first, a.seq_len);
}

WARPGROUP_KERNEL(attention_wgmma_dq, 64, lade_attention_bwd_args, LADE_CUDA_WGMMA_DQ_THREADS(64),
                 LADE_CUDA_WGMMA_DQ_BLOCKS)
WARPGROUP_KERNEL(attention_wgmma_dq, 128, lade_attention_bwd_args, LADE_CUDA_WGMMA_DQ_THREADS(128),
                 LADE_CUDA_WGMMA_DQ_BLOCKS)
WARPGROUP_KERNEL(attention_wgmma_dkv, 64, lade_attention_bwd_args, LADE_CUDA_WGMMA_DKV_THREADS(64),
                 LADE_CUDA_WGMMA_DKV_BLOCKS)
WARPGROUP_KERNEL(attention_wgmma_dkv, 128, lade_attention_bwd_args, LADE_CUDA_WGMMA_DKV_THREADS(128),
                 LADE_CUDA_WGMMA_DKV_BLOCKS)
