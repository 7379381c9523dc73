/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention in the flash manner (Dao et al. 2022), plain: the twin that runs on every GPU, without tensor cores.
 *
 * A warp has some rows of its own and goes over tiles of 32 rows of the other side in shared memory. For scores a lane
 * has a row of the tile; for the weighted sums a lane has columns of the head, up to 256 in registers. Softmax is
 * online: a running maximum and sum for each query.
 *
 * Backward uses no atomics: one kernel goes over keys for dq, another over queries (of all heads of a group, in order)
 * for dk and dv. Both recompute the probabilities from lse. A launch before them makes delta = dout . out (appendix B.4
 * there).
 *
 * Every form of scores (struct lade_score_form) is here. Tiles before the first key that a block's queries see are
 * skipped, as are those past the last query that sees a block's keys. A sink is a key with the value zero before all
 * others; its gradient, -sum exp(sink - lse) delta, is made by a block of threads for each head, in one order.
 *
 * Moves q, k, v, out once and k, v again for each 16 queries, out of L2. Bound: F32 arithmetic, 2 T^2 D operations a
 * head forward, and 7 T^2 D backward (two kernels make scores and their gradients twice).
 */
#include "kernels/cuda/attention/attention_shape.h"

#define TILE LADE_CUDA_ATTENTION_TILE
#define WARPS (LADE_CUDA_ATTENTION_THREADS / 32)
#define FWD_ROWS (LADE_CUDA_ATTENTION_FWD_ROWS / WARPS) /* of a warp */
#define BWD_ROWS (LADE_CUDA_ATTENTION_BWD_ROWS / WARPS)
#define COLUMNS (LADE_CUDA_ATTENTION_MAX_DIM / 32) /* of a lane */

/* Return the elements from row to row in shared memory: odd for even heads, so that lanes use different banks. */
static __device__ inline int stride_get(const struct block_shape &s)
{
  return (int)s.head_dim + 1;
}

/*
 * Copy rows from @first on of a tensor with rows @pitch apart into shared memory, zeros past the sequence. All threads.
 */
template <class T>
static __device__ inline void rows_load(const struct block_shape &s, const T *from, int64_t pitch, int64_t first,
                                        int n_rows, float *to)
{
  for (int64_t i = threadIdx.x; i < n_rows * s.head_dim; i += blockDim.x) {
    int64_t row = i / s.head_dim, c = i % s.head_dim;
    to[row * stride_get(s) + c] = first + row < s.seq_len ? get(from[(first + row) * pitch + c]) : 0.0f;
  }
}

static __device__ inline float dot(const struct block_shape &s, const float *x, const float *y)
{
  float sum = 0;
  for (int64_t c = 0; c < s.head_dim; c++)
    sum = fmaf(x[c], y[c], sum);
  return sum;
}

/* Return dropout's factor of the probability of query @i and key @j: 0 or 1/(1-p). */
static __device__ inline float keep_get(const struct block_shape &s, const struct lade_step *step,
                                        const struct lade_drop &drop, int64_t h, int64_t i, int64_t j)
{
  return drop_value(step, drop, draw_at(s, h, i, j), 1.0f);
}

/* Set sum[] += each lane's weight times its row of the tile. A whole warp; @weights: its 32 floats of shared memory. */
static __device__ inline void weighted_add(const struct block_shape &s, float weight, const float *tile, float *weights,
                                           float *sum)
{
  int lane = (int)threadIdx.x % 32;
  __syncwarp(); /* the last weights have been read */
  weights[lane] = weight;
  __syncwarp();
  for (int j = 0; j < TILE; j++)
#pragma unroll
    for (int u = 0; u < COLUMNS; u++)
      if (lane + 32 * u < s.head_dim)
        sum[u] = fmaf(weights[j], tile[j * stride_get(s) + lane + 32 * u], sum[u]);
}

template <class T>
static __device__ inline void columns_put(const struct block_shape &s, const float *sum, float factor, T *to)
{
  int lane = (int)threadIdx.x % 32;
#pragma unroll
  for (int u = 0; u < COLUMNS; u++)
    if (lane + 32 * u < s.head_dim)
      put(to + lane + 32 * u, sum[u] * factor);
}

/* Return the score of a pair whose product is @qk, with ALiBi's @term; *ret_slope: its derivative by the product. */
static __device__ inline float score_get(const struct block_shape &s, float softcap, float qk, float term,
                                         float *ret_slope)
{
  float score = s.scale * qk + term, t;
  *ret_slope = s.scale;
  if (softcap == 0)
    return score;
  t = tanhf(score / softcap);
  *ret_slope = s.scale * (1 - t * t);
  return softcap * t;
}

/* ---- forward ---- */

/* A query in progress: the state of online softmax, and the sum of values so far. */
struct query {
  float max, sum, weight;
  float out[COLUMNS];
};

/* This lane's key of a tile, for one query: whether the query sees it, ALiBi's term, and dropout's factor. */
struct lane_key {
  bool is_seen;
  float term, keep;
};

/*
 * Process the 32 @keys of a tile, of which query @q sees one at least: this lane's score, the running maximum and sum,
 * and its weight for the values to come.
 */
static __device__ inline void query_meet(const struct block_shape &s, float softcap, struct query &query,
                                         const float *q, const float *keys, const struct lane_key &key)
{
  float slope, score = -INFINITY;
  if (key.is_seen)
    score = score_get(s, softcap, dot(s, q, keys + threadIdx.x % 32 * stride_get(s)), key.term, &slope);
  float max = fmaxf(query.max, warp_max(score)), correction = expf(query.max - max);
  float p = key.is_seen ? expf(score - max) : 0.0f;
  query.sum = query.sum * correction + warp_sum(p);
  query.max = max;
  query.weight = p * key.keep;
  for (int u = 0; u < COLUMNS; u++)
    query.out[u] *= correction;
}

/* True if query @i sees a key of the tile from @j0 on. */
static __device__ inline bool is_met(const struct block_shape &s, int64_t i, int64_t j0)
{
  return i < s.seq_len && j0 <= i && j0 + TILE > first_key_at(s, i);
}

template <class T>
static __device__ void attention_fwd_of(const struct lade_attention_fwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, shared);
  struct block_shape s = shape_get(a, LADE_CUDA_ATTENTION_FWD_ROWS, blockIdx.y, gridDim.x - 1 - blockIdx.x, a.head_dim);
  float *weights = shared + threadIdx.x / 32 * 32, *own = shared + LADE_CUDA_ATTENTION_THREADS;
  float *tile = own + LADE_CUDA_ATTENTION_FWD_ROWS * stride_get(s);
  int64_t first = s.first;
  const T *qkv = (const T *)a.qkv, *k = qkv + qkv_at(s, s.heads + kv_head_get(s), 0);
  const T *v = k + s.n_kv_heads * s.head_dim;
  int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  const struct head_alibi alibi = alibi_get(a, s.h, s.scale);
  struct query queries[FWD_ROWS];
#pragma unroll
  for (int r = 0; r < FWD_ROWS; r++) {
    queries[r].max = a.form.sinks ? get(((const T *)a.form.sinks)[s.h]) : -INFINITY;
    queries[r].sum = a.form.sinks ? 1 : 0;
    for (int u = 0; u < COLUMNS; u++)
      queries[r].out[u] = 0;
  }
  rows_load(s, qkv + qkv_at(s, s.h, 0), s.row_elements, first, LADE_CUDA_ATTENTION_FWD_ROWS, own);
  int64_t j0 = first_key_at(s, first) / TILE * TILE;
  for (; j0 < first + LADE_CUDA_ATTENTION_FWD_ROWS && j0 < s.seq_len; j0 += TILE) {
    __syncthreads();
    rows_load(s, k, s.row_elements, j0, TILE, tile);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < FWD_ROWS; r++) {
      int64_t i = first + warp * FWD_ROWS + r, j = j0 + lane;
      if (!is_met(s, i, j0))
        continue;
      bool is_seen = j <= i && j >= first_key_at(s, i);
      const struct lane_key key = {is_seen, alibi_term(alibi, (int)i, (int)j),
                                   is_seen ? keep_get(s, step, a.drop, s.h, i, j) : 0.0f};
      query_meet(s, a.form.softcap, queries[r], own + (warp * FWD_ROWS + r) * stride_get(s), tile, key);
    }
    __syncthreads();
    rows_load(s, v, s.row_elements, j0, TILE, tile);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < FWD_ROWS; r++) {
      int64_t i = first + warp * FWD_ROWS + r;
      if (is_met(s, i, j0))
        weighted_add(s, queries[r].weight, tile, weights, queries[r].out);
    }
  }
#pragma unroll
  for (int r = 0; r < FWD_ROWS; r++) {
    int64_t i = first + warp * FWD_ROWS + r;
    if (i >= s.seq_len)
      continue;
    columns_put(s, queries[r].out, 1 / queries[r].sum, (T *)a.out + out_at(s, s.h, i));
    if (lane == 0)
      ((float *)a.lse)[query_at(s, s.h, i)] = queries[r].max + logf(queries[r].sum);
  }
}
LADE_KERNEL_OF_DTYPES(attention_fwd, lade_attention_fwd_args)

/* ---- backward ---- */

/*
 * Write delta[b,h,i] = dout . out into the workspace. LADE_CUDA_DELTA_LANES neighbours have a row of a head, 16 bytes
 * of it at a time if heads are whole packs. Rows are in the order of memory, and a sequence has fewer than 2^32.
 */
template <class T>
static __device__ void attention_delta_of(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  constexpr int LANES = LADE_CUDA_DELTA_LANES, PACK = LADE_PACK(T);
  const uint32_t row = blockIdx.x * (LADE_CUDA_THREADS / LANES) + threadIdx.x / LANES, n_heads = (uint32_t)a.heads;
  const int lane = (int)threadIdx.x % LANES, n_columns = (int)a.head_dim;
  const int64_t i = row / n_heads, h = row % n_heads, b = blockIdx.z;
  const int64_t from = ((b * a.seq_len + i) * a.heads + h) * a.head_dim;
  const T *const d_out = (const T *)a.d_out + from, *const out = (const T *)a.out + from;
  float sum = 0;
  if (i < a.seq_len && (n_columns % PACK | ((uintptr_t)a.d_out | (uintptr_t)a.out) % 16) == 0)
#pragma unroll 1 /* a head of 64 has one turn */
    for (int c = lane * PACK; c < n_columns; c += LANES * PACK) {
      const pack<T, PACK> x = pack_load<T, PACK>(d_out + c), y = pack_load<T, PACK>(out + c);
#pragma unroll
      for (int j = 0; j < PACK; j++)
        sum = fmaf(get(x.x[j]), get(y.x[j]), sum);
    }
  else if (i < a.seq_len)
#pragma unroll 1
    for (int c = lane; c < n_columns; c += LANES)
      sum = fmaf(get(d_out[c]), get(out[c]), sum);
#pragma unroll
  for (int far = LANES / 2; far > 0; far /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, far);
  if (lane == 0 && i < a.seq_len)
    ((float *)a.workspace)[(b * a.heads + h) * a.seq_len + i] = sum;
}
LADE_KERNEL_OF_DTYPES(attention_delta, lade_attention_bwd_args)

/* A query and a key of one head, the dot product of both, and that of the query's dout with the key's value. */
struct dots {
  int64_t h, i, j;
  float qk, dout_v;
};

/* A probability after dropout, and the gradient of its score, of one pair of query and key. */
struct score_pair {
  float p, ds;
};

static __device__ inline struct score_pair pair_get(const struct block_shape &s,
                                                    const struct lade_attention_bwd_args &a,
                                                    const struct lade_step *step, const struct head_alibi &alibi,
                                                    const struct dots &d)
{
  struct score_pair pair = {0, 0};
  if (d.i >= s.seq_len || d.j > d.i || d.j < first_key_at(s, d.i))
    return pair;
  int64_t at = query_at(s, d.h, d.i);
  float slope, score = score_get(s, a.form.softcap, d.qk, alibi_term(alibi, (int)d.i, (int)d.j), &slope);
  float p = expf(score - ((const float *)a.lse)[at]), keep = keep_get(s, step, a.drop, d.h, d.i, d.j);
  pair.p = p * keep;
  pair.ds = p * (keep * d.dout_v - ((const float *)a.workspace)[at]) * slope;
  return pair;
}

template <class T>
static __device__ void attention_dq_of(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, shared);
  struct block_shape s = shape_get(a, LADE_CUDA_ATTENTION_BWD_ROWS, blockIdx.y, gridDim.x - 1 - blockIdx.x, a.head_dim);
  float *weights = shared + threadIdx.x / 32 * 32, *own_q = shared + LADE_CUDA_ATTENTION_THREADS;
  float *own_dout = own_q + LADE_CUDA_ATTENTION_BWD_ROWS * stride_get(s);
  float *keys = own_dout + LADE_CUDA_ATTENTION_BWD_ROWS * stride_get(s), *values = keys + TILE * stride_get(s);
  int64_t first = s.first;
  const T *qkv = (const T *)a.qkv, *k = qkv + qkv_at(s, s.heads + kv_head_get(s), 0);
  const T *v = k + s.n_kv_heads * s.head_dim;
  int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  const struct head_alibi alibi = alibi_get(a, s.h, s.scale);
  float dq[BWD_ROWS][COLUMNS] = {};
  rows_load(s, qkv + qkv_at(s, s.h, 0), s.row_elements, first, LADE_CUDA_ATTENTION_BWD_ROWS, own_q);
  rows_load(s, (const T *)a.d_out + out_at(s, s.h, 0), s.heads * s.head_dim, first, LADE_CUDA_ATTENTION_BWD_ROWS,
            own_dout);
  int64_t j0 = first_key_at(s, first) / TILE * TILE;
  for (; j0 < first + LADE_CUDA_ATTENTION_BWD_ROWS && j0 < s.seq_len; j0 += TILE) {
    __syncthreads();
    rows_load(s, k, s.row_elements, j0, TILE, keys);
    rows_load(s, v, s.row_elements, j0, TILE, values);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < BWD_ROWS; r++) {
      int own = (warp * BWD_ROWS + r) * stride_get(s);
      const struct dots dots = {s.h, first + warp * BWD_ROWS + r, j0 + lane,
                                dot(s, own_q + own, keys + lane * stride_get(s)),
                                dot(s, own_dout + own, values + lane * stride_get(s))};
      struct score_pair pair = pair_get(s, a, step, alibi, dots);
      weighted_add(s, pair.ds, keys, weights, dq[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < BWD_ROWS; r++) {
    int64_t i = first + warp * BWD_ROWS + r;
    if (i < s.seq_len)
      columns_put(s, dq[r], 1.0f, (T *)a.d_qkv + qkv_at(s, s.h, i));
  }
}
LADE_KERNEL_OF_DTYPES(attention_dq, lade_attention_bwd_args)

/* Gradients of a warp's keys and values. */
struct warp_keys {
  float dk[BWD_ROWS][COLUMNS], dv[BWD_ROWS][COLUMNS];
};

/* Go over the queries of head @h, tile by tile, and add to the gradients of this warp's keys and values. */
template <class T>
static __device__ inline void queries_meet(const struct block_shape &s, const struct lade_attention_bwd_args &a,
                                           const struct lade_step *step, int64_t h, float *shared,
                                           struct warp_keys &sums)
{
  const int64_t first = s.first;
  float *weights = shared + threadIdx.x / 32 * 32, *own_k = shared + LADE_CUDA_ATTENTION_THREADS;
  float *own_v = own_k + LADE_CUDA_ATTENTION_BWD_ROWS * stride_get(s);
  float *queries = own_v + LADE_CUDA_ATTENTION_BWD_ROWS * stride_get(s), *douts = queries + TILE * stride_get(s);
  int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  const struct head_alibi alibi = alibi_get(a, h, s.scale);
  for (int64_t i0 = first / TILE * TILE; i0 < s.seq_len; i0 += TILE) {
    if (first_key_at(s, i0) >= first + LADE_CUDA_ATTENTION_BWD_ROWS)
      break; /* nor do later queries see this block's keys */
    __syncthreads();
    rows_load(s, (const T *)a.qkv + qkv_at(s, h, 0), s.row_elements, i0, TILE, queries);
    rows_load(s, (const T *)a.d_out + out_at(s, h, 0), s.heads * s.head_dim, i0, TILE, douts);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < BWD_ROWS; r++) {
      int own = (warp * BWD_ROWS + r) * stride_get(s);
      const struct dots dots = {h, i0 + lane, first + warp * BWD_ROWS + r,
                                dot(s, queries + lane * stride_get(s), own_k + own),
                                dot(s, douts + lane * stride_get(s), own_v + own)};
      struct score_pair pair = pair_get(s, a, step, alibi, dots);
      weighted_add(s, pair.ds, queries, weights, sums.dk[r]);
      weighted_add(s, pair.p, douts, weights, sums.dv[r]);
    }
  }
}

template <class T>
static __device__ void attention_dkv_of(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, shared);
  struct block_shape s = shape_get(a, LADE_CUDA_ATTENTION_BWD_ROWS, blockIdx.y, blockIdx.x, a.head_dim);
  float *own_k = shared + LADE_CUDA_ATTENTION_THREADS;
  int64_t first = s.first;
  const T *k = (const T *)a.qkv + qkv_at(s, s.heads + s.h, 0), *v = k + s.n_kv_heads * s.head_dim;
  int warp = (int)threadIdx.x / 32;
  struct warp_keys sums = {};
  rows_load(s, k, s.row_elements, first, LADE_CUDA_ATTENTION_BWD_ROWS, own_k);
  rows_load(s, v, s.row_elements, first, LADE_CUDA_ATTENTION_BWD_ROWS,
            own_k + LADE_CUDA_ATTENTION_BWD_ROWS * stride_get(s));
  for (int64_t h = s.h * s.group; h < (s.h + 1) * s.group; h++)
    queries_meet<T>(s, a, step, h, shared, sums);
#pragma unroll
  for (int r = 0; r < BWD_ROWS; r++) {
    int64_t j = first + warp * BWD_ROWS + r;
    if (j >= s.seq_len)
      continue;
    columns_put(s, sums.dk[r], 1.0f, (T *)a.d_qkv + qkv_at(s, s.heads + s.h, j));
    columns_put(s, sums.dv[r], 1.0f, (T *)a.d_qkv + qkv_at(s, s.heads + s.n_kv_heads + s.h, j));
  }
}
LADE_KERNEL_OF_DTYPES(attention_dkv, lade_attention_bwd_args)

/*
 * Set keys' and values' gradients to the sums over parts, in their order, times their factors. It follows kernels with
 * tensor cores whose blocks have a part of a key head's query heads (phases.h). A thread has eight columns at a time.
 */
template <class T>
static __device__ void attention_dkv_sum_of(const struct lade_cuda_dkv_sum &a, const struct lade_step *step)
{
  constexpr int EACH = LADE_PACK(T);
  const struct lade_attention_bwd_args &b = a.bwd;
  const int64_t n_rows = b.batch * b.n_kv_heads * b.seq_len, width = 2 * b.head_dim, n_packs = width / EACH;
  const float *parts = (const float *)b.workspace + lade_cuda_dkv_parts_begin(&b);
  const float factors[] = {scale_get(b, b.head_dim), b.drop.drop_below ? b.drop.scale : 1.0f};
  for (int64_t i = thread_get(); i < n_rows * n_packs; i += n_threads_get()) {
    const int64_t row = i / n_packs, column = i % n_packs * EACH, t = row % b.seq_len;
    const int64_t h = row / b.seq_len % b.n_kv_heads, sequence = row / b.seq_len / b.n_kv_heads;
    const bool is_value = column >= b.head_dim;
    float sums[EACH] = {};
    for (int64_t part = 0; part < a.n_parts; part++) {
      const float *const from = parts + (part * n_rows + row) * width + column;
      pack<float, 4> p[EACH / 4];
#pragma unroll
      for (int k = 0; k < EACH; k += 4)
        p[k / 4] = pack_load<float, 4>(from + k);
#pragma unroll
      for (int k = 0; k < EACH; k++)
        sums[k] += p[k / 4].x[k % 4];
    }
#pragma unroll
    for (int k = 0; k < EACH; k++)
      sums[k] *= factors[is_value];
    const int64_t head = b.heads + (is_value ? b.n_kv_heads : 0) + h;
    T *const to = (T *)b.d_qkv + ((sequence * b.seq_len + t) * (b.heads + 2 * b.n_kv_heads) + head) * b.head_dim;
    numbers_put(to + column % b.head_dim, sums);
  }
}
LADE_KERNEL_OF(attention_dkv_sum, lade_cuda_dkv_sum, bf16, bf16, 1)
LADE_KERNEL_OF(attention_dkv_sum, lade_cuda_dkv_sum, f16, f16, 1)

/*
 * Set d_sinks[h] (+)= -sum exp(sink - lse) delta over the queries of all sequences. A block has a head, and a thread
 * every blockDim.x-th query.
 */
template <class T>
static __device__ void attention_sinks_of(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, sums);
  const int64_t h = blockIdx.x;
  const float sink = get(((const T *)a.form.sinks)[h]);
  float sum = 0;
  for (int64_t n = threadIdx.x; n < a.batch * a.seq_len; n += blockDim.x) {
    int64_t at = (n / a.seq_len * a.heads + h) * a.seq_len + n % a.seq_len;
    sum -= expf(sink - ((const float *)a.lse)[at]) * ((const float *)a.workspace)[at];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0)
    sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0)
    return;
  sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
    sum += sums[warp];
  ((float *)a.d_sinks)[h] = a.accumulate_sinks ? ((const float *)a.d_sinks)[h] + sum : sum;
}
LADE_KERNEL_OF_DTYPES(attention_sinks, lade_attention_bwd_args)
