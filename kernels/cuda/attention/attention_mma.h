/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention by tensor cores: heads of 64, 80, 96, 128 and 256 in BF16 and FP16, after Dao, "FlashAttention-2"
 * (2023).
 * attention.cu is the plain twin, for every other shape and type.
 *
 * Each kernel exists twice, because registers are scarce: without a form of scores, and with one (FORM: windows, first
 * keys, soft caps, ALiBi, sinks). With one, tiles that no query of the block sees are skipped, hidden scores are -inf,
 * and the cap's slope multiplies the gradients of scores.
 *
 * A head has H elements, and its row in shared memory D: 64, 128 or 256. Products are over H alone. dk and dv of heads
 * of 256 have two blocks, each with half of their columns; both make the scores.
 *
 * A block of four warps has some rows of one side, and every warp 16 or 32 of them for its own, so warps share no sum.
 * It goes over tiles of the other side; while it processes one, the next is copied into the other half of a double
 * buffer. Scores are a warp's products in registers, and are at once the left operand of the next product. In the
 * gradients of keys and values the rows are keys, so transposed operands are made transposed.
 *
 * Sums are FP32. Probabilities, and in backward the gradients of scores, are rounded to the tensors' type before they
 * are multiplied, as on the host's BF16 level. A softmax's sum is of the unrounded values. Exponentials are powers of
 * two, so the scale and log2 e are one factor. Factors of a whole sum, 1/(1 - p) of dropout and 1/sqrt(D), come last.
 * lse is the natural logarithm, as in all variants.
 *
 * Tiles that the diagonal excludes are skipped; those that it crosses are masked. Rows past the sequence are zeroes and
 * never stored. The longest blocks begin first. Backward uses no atomics, and so makes scores and their gradients
 * twice, once for dq and once for dk and dv: 7 products instead of the necessary 5.
 *
 * Moves q, k, v, out once. Out of L2 it moves k, v again for each 128 queries forward, and for each block of dq, 128
 * or 64 (D = 128). It moves q, dout for each 64 keys. Operations: 2 T^2 D a head forward, 7 T^2 D backward. Bound:
 * tensor cores by mma.sync, of which sm_90 has a faster kind (attention_wgmma.cu) and sm_100 one that is not used.
 * Second bound: the shared memory that feeds them, since a load of 512 bytes serves two products of 4,096 operations
 * for each 16 rows of a warp. Registers and shared memory of each kernel are in bench/results/sass-h100.md. Whole
 * causal scores of heads of 64 and 128 spill nothing on sm_80, and 4 bytes forward on sm_90; a form, and heads of 256,
 * up to 56.
 */
#ifndef LADE_CUDA_ATTENTION_MMA_H
#define LADE_CUDA_ATTENTION_MMA_H

#include "kernels/cuda/attention/attention_rows.h"

#define THREADS LADE_CUDA_ATTENTION_THREADS
#define WARPS (THREADS / 32)

/* Begin to copy a tile of keys, at @k, and after it their values. */
template <int H, int TILE, class T>
static __device__ inline void keys_copy(const struct block_shape &s, const T *k, int first, T *stage)
{
  constexpr int D = LADE_CUDA_MMA_PITCH(H);
  tile_copy<D, TILE, THREADS, H>(stage, k, s.row_elements, first, s.seq_len);
  tile_copy<D, TILE, THREADS, H>(stage + TILE * D, k + s.n_kv_heads * H, s.row_elements, first, s.seq_len);
}

/* Wait for the tile from key @j0 on and return it; begin to copy the next, if any, into the other of two @stages. */
template <int H, int TILE, class T>
static __device__ inline T *keys_take(const struct block_shape &s, const T *k, int j0, int n_keys, T *stages)
{
  constexpr int D = LADE_CUDA_MMA_PITCH(H);
  const int stage = j0 / TILE % 2 * (2 * TILE * D);
  ptx_copies_wait();
  __syncthreads(); /* this tile has arrived, and no warp uses the one before */
  if (j0 + TILE < n_keys)
    keys_copy<H, TILE>(s, k, j0 + TILE, stages + (2 * TILE * D - stage));
  return stages + stage;
}

/* True if no query from @i on sees a key of the tile from @j0 on. */
template <int TILE> static __device__ inline bool is_hidden(const struct block_shape &s, int i, int j0)
{
  return i >= s.seq_len || j0 + TILE <= first_key_at(s, i);
}

/* True if scores are scaled when they are capped or get ALiBi's term, and not by the exponential's factor. */
template <bool FORM> static __device__ inline bool is_scaled(const struct lade_score_form &form)
{
  return FORM && (form.softcap > 0 || form.alibi_max > 0);
}

template <class T, int H, bool FORM>
static __device__ inline void mma_fwd(const struct lade_attention_fwd_args &a, const struct lade_step *step)
{
  constexpr int D = LADE_CUDA_MMA_PITCH(H), ROWS = LADE_CUDA_MMA_FWD_ROWS(H), TILE = LADE_CUDA_MMA_FWD_TILE(H);
  constexpr int M = ROWS / WARPS / 16, N = TILE / 8;
  LADE_SHARED(T, shared);
  T *const stages = shared + ROWS * D; /* two, of keys and values */
  struct block_shape s = shape_get(a, ROWS, blockIdx.x, gridDim.y - 1 - blockIdx.y, H);
  const int first = (int)s.first;
  const int n_keys = first + ROWS < s.seq_len ? first + ROWS : (int)s.seq_len;
  const int own = warp_get() * M * 16;
  const float scale = is_scaled<FORM>(a.form) ? 1.0f : s.scale, factor = scale * LOG2_E;
  const T *const qkv = (const T *)a.qkv, *const k = qkv + qkv_at(s, s.heads + kv_head_get(s), 0);
  struct queries<H, M> q;
  queries_begin(q);
  if (FORM)
    queries_sink(q, a.form.sinks, a.form.sinks ? get(((const T *)a.form.sinks)[s.h]) / scale : 0.0f);
  tile_copy<D, ROWS, THREADS, H>(shared, qkv + qkv_at(s, s.h, 0), s.row_elements, first, s.seq_len);
  int j0 = FORM ? (int)first_key_at(s, first) / TILE * TILE : 0;
  keys_copy<H, TILE>(s, k, j0, stages + j0 / TILE % 2 * (2 * TILE * D));
  for (; j0 < n_keys; j0 += TILE) {
    T *const keys = keys_take<H, TILE>(s, k, j0, n_keys, stages);
    if (j0 > first + own + 16 * M - 1 || (FORM && is_hidden<TILE>(s, first + own, j0)))
      continue;
    float scores[M][N][4];
    rows_multiply<D, H>(scores, shared, own, keys);
    if (FORM) {
      const struct head_alibi alibi = alibi_get(a, s.h, s.scale); /* for each tile again: registers are scarce */
      alibi_add<false>(scores, s.scale, alibi, first + own, j0);
      scores_cap(scores, alibi.slope == 0 ? s.scale : 1.0f, a.form.softcap);
      scores_hide<false>(s, scores, first + own, j0);
    }
    scores_mask<false>(scores, j0 - first - own);
    float corrections[M][2];
    if (queries_meet(q, scores, factor, corrections))
      queries_correct(q, corrections);
    if (a.drop.drop_below)
      drop_apply(scores, kept_get<false, M, N>(s, step, a.drop, s.h, first + own, j0), 1.0f);
    rows_weigh<D, H>(q.out, scores, keys + TILE * D);
  }
  s.scale = scale;
  queries_put(q, s, a, first + own, shared + own * D);
}

/* ---- backward ---- */

/*
 * Turn a score into a probability p. Turn its @slope, which is dout . v after dropout, into the gradient of the score
 * without 1/sqrt(D): p (slope - delta), with FORM times the slope of @cap. @lse is times log2 e.
 */
template <bool FORM>
static __device__ inline void pair_meet(float &score, float &slope, float factor, float lse, float delta,
                                        const struct score_cap &cap)
{
  const float cap_slope = FORM ? cap_slope_get(cap, score) : 1.0f;
  score = ptx_exp2(fmaf(score, factor, -lse));
  slope = score * (slope - delta);
  if (FORM)
    slope *= cap_slope;
}

template <class T, int H, bool FORM>
static __device__ inline void mma_dq(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  constexpr int D = LADE_CUDA_MMA_PITCH(H), ROWS = LADE_CUDA_MMA_DQ_ROWS(H), TILE = LADE_CUDA_MMA_DQ_TILE(H);
  constexpr int M = ROWS / WARPS / 16, N = TILE / 8;
  LADE_SHARED(T, shared);
  T *const douts = shared + ROWS * D, *const stages = douts + ROWS * D; /* two, of keys and values */
  const struct block_shape s = shape_get(a, ROWS, blockIdx.x, gridDim.y - 1 - blockIdx.y, H);
  const int first = (int)s.first;
  const int n_keys = first + ROWS < s.seq_len ? first + ROWS : (int)s.seq_len;
  const int own = warp_get() * M * 16;
  const float factor = is_scaled<FORM>(a.form) ? LOG2_E : s.scale * LOG2_E;
  const T *const qkv = (const T *)a.qkv, *const k = qkv + qkv_at(s, s.heads + kv_head_get(s), 0);
  const struct score_cap cap = {FORM && a.form.softcap > 0 ? 1 / a.form.softcap : 0.0f};
  float dq[M][H / 8][4] = {}, lse[M][2], delta[M][2], factors[M][2];
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    int at = first + own + fragment_row(i / 2, i % 2 * 2);
    lse[i / 2][i % 2] = at < s.seq_len ? LOG2_E * ((const float *)a.lse)[query_at(s, s.h, at)] : 0;
    delta[i / 2][i % 2] = at < s.seq_len ? ((const float *)a.workspace)[query_at(s, s.h, at)] : 0;
    factors[i / 2][i % 2] = s.scale;
  }
  tile_copy<D, ROWS, THREADS, H>(shared, qkv + qkv_at(s, s.h, 0), s.row_elements, first, s.seq_len);
  tile_copy<D, ROWS, THREADS, H>(douts, (const T *)a.d_out + out_at(s, s.h, 0), s.heads * H, first, s.seq_len);
  int j0 = FORM ? (int)first_key_at(s, first) / TILE * TILE : 0;
  keys_copy<H, TILE>(s, k, j0, stages + j0 / TILE % 2 * (2 * TILE * D));
  for (; j0 < n_keys; j0 += TILE) {
    T *const keys = keys_take<H, TILE>(s, k, j0, n_keys, stages);
    if (j0 > first + own + 16 * M - 1 || (FORM && is_hidden<TILE>(s, first + own, j0)))
      continue;
    float scores[M][N][4], slopes[M][N][4];
    rows_multiply<D, H>(scores, shared, own, keys);
    rows_multiply<D, H>(slopes, douts, own, keys + TILE * D);
    if (FORM) {
      const struct head_alibi alibi = alibi_get(a, s.h, s.scale); /* for each tile again: registers are scarce */
      alibi_add<false>(scores, s.scale, alibi, first + own, j0);
      scores_cap(scores, alibi.slope == 0 ? s.scale : 1.0f, a.form.softcap);
      scores_hide<false>(s, scores, first + own, j0);
    }
    scores_mask<false>(scores, j0 - first - own);
    if (a.drop.drop_below)
      drop_apply(slopes, kept_get<false, M, N>(s, step, a.drop, s.h, first + own, j0), a.drop.scale);
#pragma unroll
    for (int at = 0; at < M * N * 4; at++)
      pair_meet<FORM>(scores[at / 4 / N][at / 4 % N][at % 4], slopes[at / 4 / N][at / 4 % N][at % 4], factor,
                      lse[at / 4 / N][at % 4 / 2], delta[at / 4 / N][at % 4 / 2], cap);
    rows_weigh<D, H>(dq, slopes, keys);
  }
  sums_put<D, H>(dq, factors, shared + own * D, (T *)a.d_qkv + qkv_at(s, s.h, 0), s.row_elements, first + own,
                 s.seq_len);
}

/* Begin to copy a tile of queries of head @h, their output's gradients, and their lse and delta. */
template <int H, int TILE, class T>
static __device__ inline void queries_copy(const struct block_shape &s, const struct lade_attention_bwd_args &a,
                                           int64_t h, int first, T *tiles, float *values)
{
  constexpr int D = LADE_CUDA_MMA_PITCH(H);
  tile_copy<D, TILE, THREADS, H>(tiles, (const T *)a.qkv + qkv_at(s, h, 0), s.row_elements, first, s.seq_len);
  tile_copy<D, TILE, THREADS, H>(tiles + TILE * D, (const T *)a.d_out + out_at(s, h, 0), s.heads * H, first,
                                 s.seq_len);
  if (threadIdx.x < 2 * TILE) {
    const float *from = (const float *)(threadIdx.x < TILE ? a.lse : a.workspace);
    int i = first + (int)threadIdx.x % TILE;
    ptx_copy_4(values + threadIdx.x, from + query_at(s, h, i), i < s.seq_len);
  }
}

/* Where a warp stores: rows from @row on, columns from @column on, through rows that only this warp uses by now. */
template <class T> struct keys_place {
  int row, column;
  T *key_room, *value_room;
};

/*
 * Store a warp's gradients of keys and their values, W columns: complete, through 16 M rows each of shared memory, or
 * as a part.
 */
template <class T, int H, int M, int W>
static __device__ inline void keys_put(const struct block_shape &s, const struct lade_attention_bwd_args &a,
                                       const struct heads_part &part, const float (&dk)[M][W][4],
                                       const float (&dv)[M][W][4], const struct keys_place<T> &place)
{
  constexpr int D = LADE_CUDA_MMA_PITCH(H);
  T *const to = (T *)a.d_qkv + qkv_at(s, s.heads + s.h, 0) + place.column;
  float factors[M][2];
  if (part.n_parts > 1) {
    float *const sums = (float *)a.workspace + part.at + place.column;
    part_put<8 * W>(dk, sums, 2 * H, place.row, s.seq_len);
    part_put<8 * W>(dv, sums + H, 2 * H, place.row, s.seq_len);
    return;
  }
#pragma unroll
  for (int i = 0; i < 2 * M; i++)
    factors[i / 2][i % 2] = s.scale;
  sums_put<D, 8 * W>(dk, factors, place.key_room, to, s.row_elements, place.row, s.seq_len);
#pragma unroll
  for (int i = 0; i < 2 * M; i++)
    factors[i / 2][i % 2] = drop_scale(a.drop);
  sums_put<D, 8 * W>(dv, factors, place.value_room, to + s.n_kv_heads * H, s.row_elements, place.row, s.seq_len);
}

/* A tile of queries: its head, its first query, and which of the two stages it is in. */
struct staged_queries {
  int h, first, stage;
};

/*
 * Return the tile after @tile. It is of the next head if no later query of @tile's head sees a key of the block. The
 * block begins at @first and has ROWS keys.
 */
template <int TILE, int ROWS, bool FORM>
static __device__ inline struct staged_queries tile_next(const struct block_shape &s, const struct staged_queries &tile,
                                                         int first)
{
  const int i0 = tile.first + TILE;
  const bool is_last = i0 >= s.seq_len || (FORM && first_key_at(s, i0) >= first + ROWS);
  return (struct staged_queries){tile.h + is_last, is_last ? first : i0, tile.stage ^ 1};
}

/* Turn scores into those of @a's form: ALiBi's term, the cap, and -inf where a query does not see a key. */
template <bool FORM, int M, int N>
static __device__ inline void form_apply(const struct block_shape &s, const struct lade_attention_bwd_args &a,
                                         const struct head_alibi &alibi, float (&scores)[M][N][4], int row, int i0)
{
  if (!FORM)
    return;
  alibi_add<true>(scores, s.scale, alibi, row, i0);
  scores_cap(scores, alibi.slope == 0 ? s.scale : 1.0f, a.form.softcap);
  scores_hide<true>(s, scores, row, i0);
}

/*
 * Turn a tile's scores into probabilities after dropout, and its slopes into the gradients of scores. @numbers: lse and
 * delta of the tile's queries. @kept: of dropout.
 */
template <bool FORM, int TILE, int M, int N>
static __device__ inline void pairs_meet(const struct lade_attention_bwd_args &a, float (&scores)[M][N][4],
                                         float (&slopes)[M][N][4], float factor, const float *numbers,
                                         const struct score_cap &cap, uint32_t kept)
{
  const float *const lse = numbers, *const delta = lse + TILE;
  if (a.drop.drop_below)
    drop_apply(slopes, kept, a.drop.scale);
#pragma unroll
  for (int at = 0; at < M * N * 4; at++)
    pair_meet<FORM>(scores[at / 4 / N][at / 4 % N][at % 4], slopes[at / 4 / N][at / 4 % N][at % 4], factor,
                    LOG2_E * lse[fragment_column(at / 4 % N, at % 4)], delta[fragment_column(at / 4 % N, at % 4)], cap);
  if (a.drop.drop_below)
    drop_apply(scores, kept, 1.0f);
}

template <class T, int H, bool FORM>
static __device__ inline void mma_dkv(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  constexpr int D = LADE_CUDA_MMA_PITCH(H), ROWS = LADE_CUDA_MMA_DKV_ROWS(H), TILE = LADE_CUDA_MMA_DKV_TILE(H);
  constexpr int M = ROWS / WARPS / 16, N = TILE / 8;
  constexpr int PARTS = LADE_CUDA_MMA_DKV_PARTS(H), W = H / PARTS; /* columns of dk and dv of this block */
  LADE_SHARED(T, shared);
  T *const values = shared + ROWS * D, *const stages = values + ROWS * D; /* two, of queries and gradients */
  float *const numbers = (float *)(stages + 4 * TILE * D); /* lse and delta of both stages */
  const struct heads_part part = heads_part_get(a, blockIdx.x / PARTS, gridDim.x / PARTS, H);
  const struct block_shape s = shape_get(a, ROWS, blockIdx.x / PARTS / (unsigned)part.n_parts, blockIdx.y, H);
  const int first = (int)s.first;
  const int own = warp_get() * M * 16, column = (int)(blockIdx.x % PARTS) * W;
  const float factor = is_scaled<FORM>(a.form) ? LOG2_E : s.scale * LOG2_E;
  const T *const k = (const T *)a.qkv + qkv_at(s, s.heads + s.h, 0), *const v = k + s.n_kv_heads * H;
  const struct score_cap cap = {FORM && a.form.softcap > 0 ? 1 / a.form.softcap : 0.0f};
  float dk[M][W / 8][4] = {}, dv[M][W / 8][4] = {};
  tile_copy<D, ROWS, THREADS, H>(shared, k, s.row_elements, first, s.seq_len);
  tile_copy<D, ROWS, THREADS, H>(values, v, s.row_elements, first, s.seq_len);
  static_assert(ROWS % TILE == 0, "the first tile begins with the block");
  struct staged_queries next = {part.first, first, 0};
  queries_copy<H, TILE>(s, a, next.h, next.first, stages, numbers);
  while (next.h < part.end) { /* one head after the other */
    const struct staged_queries tile = next;
    T *const queries = stages + tile.stage * (2 * TILE * D);
    const int past = first + own - tile.first; /* from this tile's first query to the warp's first key */
    uint32_t kept = 0;
    if (a.drop.drop_below && past < TILE)
      kept = (uint32_t)kept_get<true, M, N>(s, step, a.drop, tile.h, first + own, tile.first);
    const struct head_alibi alibi = FORM ? alibi_get(a, tile.h, s.scale) : head_alibi();
    next = tile_next<TILE, ROWS, FORM>(s, tile, first);
    ptx_copies_wait();
    __syncthreads(); /* this tile has arrived, and no warp uses the one before */
    if (next.h < part.end)
      queries_copy<H, TILE>(s, a, next.h, next.first, stages + next.stage * (2 * TILE * D),
                            numbers + next.stage * (2 * TILE));
    if (past >= TILE || (FORM && first_key_at(s, tile.first) >= first + own + 16 * M))
      continue;
    float scores[M][N][4], slopes[M][N][4];
    rows_multiply<D, H>(scores, shared, own, queries);
    rows_multiply<D, H>(slopes, values, own, queries + TILE * D);
    form_apply<FORM>(s, a, alibi, scores, first + own, tile.first);
    scores_mask<true>(scores, past);
    pairs_meet<FORM, TILE>(a, scores, slopes, factor, numbers + tile.stage * (2 * TILE), cap, kept);
    rows_weigh<D, W>(dv, scores, queries + TILE * D, column / LADE_CUDA_CHUNK);
    rows_weigh<D, W>(dk, slopes, queries, column / LADE_CUDA_CHUNK);
  }
  const struct keys_place<T> place = {first + own, column, shared + own * D, values + own * D};
  keys_put<T, H>(s, a, part, dk, dv, place);
}

#endif
