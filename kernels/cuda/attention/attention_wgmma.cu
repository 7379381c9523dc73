/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention on Hopper: heads of 64 and 128 in BF16 and FP16 by products of warpgroups (wgmma), after Shah et
 * al., "FlashAttention-3" (2024), section 3.2. The file attention_mma.cu does the same by instructions that every GPU
 * has, and attention_wgmma_bwd.cu makes the gradients. All of them share the code for scores (attention_rows.h), and so
 * numbers except for the order of sums: probabilities are rounded to the tensors' type, sums are FP32, lse is the
 * natural logarithm.
 *
 * A block is two warpgroups with 64 queries each, which go over tiles of keys: 128 for heads of 128, 64 for heads of
 * 64, of which a multiprocessor then has two blocks. A last tile of 64 keys is past all queries of the first warpgroup,
 * which only copies its part of it. The products read queries, keys and values in place in shared memory; probabilities
 * come from registers. While a warpgroup makes probabilities of tile j, its own product of the probabilities of tile j
 * - 1 with their values runs, and so do the other warpgroup's products. Tiles to come are copied meanwhile, each into
 * the place that an earlier tile has left. The copies are issued behind the products, so that tensor cores do not wait
 * for their addresses.
 *
 * The warpgroups take turns: one issues a tile's products when it has the turn, gives the turn to the other, and makes
 * probabilities while the other's products run. If both issued at one time, both would make probabilities at one time,
 * while tensor cores idle: that schedule had 344 TFLOP/s on an H200 with heads of 128 where turns have 480. Each
 * warpgroup has a named barrier for its turns: the owner waits there, and the other warpgroup arrives and goes on. A
 * warpgroup gives the turn after its copies have arrived and its products of the tile before are complete. Turn j has
 * the scores of tile j and the values of tile j - 1. In it the first warpgroup copies its half of keys j + 1 and values
 * j. The second warpgroup has the last turn before the first one's next, so it is a tile ahead: it copies keys j + 2
 * and values j + 1. With three places the copies overwrite keys of tile j - 2 or j - 1, whose readers have given turns
 * since.
 *
 * Copies are cp.async by all threads. No thread waits for a flag in memory, so a wrong copy gives wrong numbers and
 * never an endless wait. Bulk copies by a warp of their own would save the threads 16 instructions of a tile, and need
 * barriers that spin.
 *
 * Moves q, k, v, out once, and out of L2 k, v again for each 128 queries. Operations: 2 T^2 D a head, and as many
 * unused ones in the diagonal's tile. Bound: tensor cores. An exponential for 4 D operations takes half their time at D
 * = 128, all of it at D = 64. It is hidden as far as scores of one tile and values of another overlap. At T = 1024 a
 * block of heads of 64 has 4.5 times 128 keys on average. Its first copies and its results then take a tenth to a fifth
 * of its time: only another block's products overlap them.
 */
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/wgmma.h"

#define THREADS LADE_CUDA_WGMMA_THREADS
#define ROWS LADE_CUDA_WGMMA_ROWS
#define GROUP_ROWS 64 /* of a warpgroup */
#define TILE LADE_CUDA_WGMMA_TILE(D)

/* A block's data: its queries, and places for tiles of keys and values. */
template <class T, int D> struct forward_block {
  struct block_shape s;
  const T *k, *v; /* of its head's first row */
  const T *next;  /* panels_from of the keys that tiles_begin_next copies */
  T *queries, *keys, *values;
  int group; /* this thread's warpgroup */
  int first, n_tiles;
  int n_seen; /* tiles of which this thread's warpgroup sees a key: one less, if the last is past its queries */
};

template <class T, int D>
static __device__ inline struct forward_block<T, D> block_get(const struct lade_attention_fwd_args &a, T *shared)
{
  struct forward_block<T, D> b;
  b.s = shape_get(a, ROWS, blockIdx.x, gridDim.y - 1 - blockIdx.y, D);
  b.first = (int)b.s.first;
  b.n_tiles = ((b.first + ROWS < b.s.seq_len ? b.first + ROWS : (int)b.s.seq_len) + TILE - 1) / TILE;
  b.group = warpgroup_get();
  const int n_own = (b.first + (b.group + 1) * GROUP_ROWS + TILE - 1) / TILE;
  b.n_seen = TILE < ROWS && n_own < b.n_tiles ? n_own : b.n_tiles;
  b.k = (const T *)a.qkv + qkv_at(b.s, b.s.heads + kv_head_get(b.s), 0);
  b.v = b.k + b.s.n_kv_heads * D;
  b.next = panels_from(b.k, b.s.row_elements, (1 + b.group) * TILE);
  b.queries = tiles_begin(shared);
  b.keys = b.queries + ROWS * D;
  b.values = b.keys + LADE_CUDA_WGMMA_PLACES * TILE * D;
  return b;
}

template <class T, int D> static __device__ inline T *place_get(T *tiles, int j)
{
  return tiles + j % LADE_CUDA_WGMMA_PLACES * (TILE * D);
}

/* Begin to copy tile @j; past the last one, write zeros: a branch would wait for the products in flight. */
template <class T, int D>
static __device__ inline void tile_begin(const struct forward_block<T, D> &b, const T *from, int j, T *tiles)
{
  panels_copy<D, TILE, THREADS>(place_get<T, D>(tiles, j), from, b.s.row_elements, j * TILE,
                                j < b.n_tiles ? b.s.seq_len : 0);
}

/* ---- turns ---- */

/*
 * Begin to copy the tiles that this thread's warpgroup copies behind the products of tile @j, the next: keys, and the
 * values of the tile before them.
 */
template <class T, int D> static __device__ inline void tiles_begin_next(struct forward_block<T, D> &b, int j)
{
  const int tile = j + b.group, pitch = (int)b.s.row_elements;
  panels_copy_from<D, TILE, THREADS>(place_get<T, D>(b.keys, tile + 1), b.next, pitch, (tile + 1) * TILE,
                                     tile + 1 < b.n_tiles ? b.s.seq_len : 0);
  panels_copy_from<D, TILE, THREADS>(place_get<T, D>(b.values, tile), b.next + ((int)b.s.n_kv_heads * D - TILE * pitch),
                                     pitch, tile * TILE, tile < b.n_tiles ? b.s.seq_len : 0);
  b.next += TILE * pitch;
}

static __device__ inline void turn_give(int group)
{
  ptx_barrier_arrive(1 + group, THREADS);
}

/* Wait for the turn, in which products may read the tiles that both warpgroups have copied. */
static __device__ inline void turn_wait(int group)
{
  ptx_copies_wait();
  ptx_copies_publish();
  ptx_barrier_wait(1 + group, THREADS);
}

/* A warp's 16 queries, and the current tile: its scores, then as probabilities the left operand for its values. */
template <int D> struct warp {
  struct queries<D, 1> q;
  float scores[1][TILE / 8][4], corrections[1][2];
  uint32_t weights[TILE / 16][4];
  uint64_t kept;
};

/*
 * Wait for the keys of tile @j and the values of the one before, and begin to make its scores. The caller then gives
 * the turn and begins to copy tiles. Earlier register accesses complete before the products that begin here.
 */
template <class T, int D>
static __device__ inline void scores_begin(const struct forward_block<T, D> &b, const struct lade_drop &drop,
                                           const struct lade_step *step, int j, struct warp<D> &w)
{
  const int own = b.first + warp_get() * 16;
  if (drop.drop_below)
    w.kept = kept_get<false, 1, TILE / 8>(b.s, step, drop, b.s.h, own, j * TILE);
  turn_wait(b.group);
  ptx_registers_settle(w.q.out[0]);
  ptx_registers_settle(w.weights);
  ptx_products_fence();
  rows_multiply_begin<D, ROWS>(w.scores[0], b.queries, b.group * GROUP_ROWS, place_get<T, D>(b.keys, j));
}

/*
 * Turn the finished scores of tile @j into probabilities. The compiler moves a wait for products up to the branch
 * before it. The branch of dropout, at the end, keeps the products in flight running until all of this is done.
 */
template <class T, int D>
static __device__ inline void scores_meet(const struct forward_block<T, D> &b, const struct lade_drop &drop, int j,
                                          struct warp<D> &w)
{
  scores_mask<false>(w.scores, j * TILE - b.first - warp_get() * 16);
  queries_meet(w.q, w.scores, b.s.scale * LOG2_E, w.corrections);
  if (drop.drop_below)
    drop_apply(w.scores, w.kept, 1.0f);
  ptx_registers_settle(w.scores[0]);
}

template <class T, int D>
static __device__ inline void values_weigh_begin(const struct forward_block<T, D> &b, int j, struct warp<D> &w)
{
  rows_weigh_begin<D>(w.q.out[0], w.weights, place_get<T, D>(b.values, j));
}

/* Give the turn behind this one's products, and begin to copy. */
template <class T, int D> static __device__ inline void turn_end(struct forward_block<T, D> &b, int j)
{
  turn_give(1 - b.group);
  tiles_begin_next(b, j);
}

/*
 * Begin to copy the queries and the first tiles: of keys, and those by which the second warpgroup is ahead.
 */
template <class T, int D>
static __device__ inline void tiles_begin_first(const struct lade_attention_fwd_args &a,
                                                const struct forward_block<T, D> &b)
{
  panels_copy<D, ROWS, THREADS>(b.queries, (const T *)a.qkv + qkv_at(b.s, b.s.h, 0), b.s.row_elements, b.first,
                                b.s.seq_len);
  tile_begin(b, b.k, 0, b.keys);
  if (b.group == 1) {
    tile_begin(b, b.k, 1, b.keys);
    tile_begin(b, b.v, 0, b.values);
  }
  panels_wait();
  if (b.group == 1)
    turn_give(0);
}

/*
 * Return 16 rows of D elements for this warp's results, in place of its own warpgroup's queries: of its 64 rows in one
 * panel. The other warpgroup's products of its last tile may still read the other rows. The thread is read again, so
 * that its numbers take no registers of the loop.
 */
template <class T, int D> static __device__ inline T *results_room(const struct forward_block<T, D> &b)
{
  constexpr int EACH = GROUP_ROWS * LADE_CUDA_PANEL / (16 * D); /* warps with room in one panel's 64 rows */
  const int thread = ptx_thread_get(), warp = thread / 32 % 4;
  return b.queries + warp / EACH * (ROWS * LADE_CUDA_PANEL) + thread / 128 * (GROUP_ROWS * LADE_CUDA_PANEL) +
         warp % EACH * (16 * D);
}

template <class T, int D>
static __device__ inline void attention_wgmma_fwd(const struct lade_attention_fwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(T, shared);
  struct forward_block<T, D> b = block_get<T, D>(a, shared);
  const int own = warp_get() * 16;
  struct warp<D> w = {};
  queries_begin(w.q);
  tiles_begin_first(a, b);
  scores_begin(b, a.drop, step, 0, w);
  turn_end(b, 0);
  ptx_products_wait<0>(w.scores[0]);
  scores_meet(b, a.drop, 0, w);
  weights_make<T>(w.weights, w.scores[0]);
  for (int j = 1; j < b.n_seen; j++) {
    scores_begin(b, a.drop, step, j, w);
    values_weigh_begin(b, j - 1, w);
    turn_end(b, j);
    ptx_products_wait<1>(w.scores[0]);
    scores_meet(b, a.drop, j, w);
    ptx_products_wait<0>(w.q.out[0]);
    queries_correct(w.q, w.corrections);
    weights_make<T>(w.weights, w.scores[0]);
  }
  if (TILE < ROWS && b.n_seen < b.n_tiles) {
    turn_wait(b.group);
    turn_end(b, b.n_seen);
  }
  turn_wait(b.group);
  if (b.group == 0)
    turn_give(1);
  ptx_registers_settle(w.q.out[0]);
  ptx_registers_settle(w.weights);
  ptx_products_fence();
  values_weigh_begin(b, b.n_seen - 1, w);
  ptx_products_wait<0>(w.q.out[0]);
  queries_put(w.q, b.s, a, b.first + own, results_room(b));
}

WARPGROUP_KERNEL(attention_wgmma_fwd, 64, lade_attention_fwd_args, THREADS, LADE_CUDA_WGMMA_BLOCKS)
WARPGROUP_KERNEL(attention_wgmma_fwd, 128, lade_attention_fwd_args, THREADS, LADE_CUDA_WGMMA_BLOCKS)
