/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMSNorm of queries and keys within rows of qkv, and its backward; kernels/host/rows/qk_norm.c has the formulas.
 *
 * A block has a row and a warp has a group: a head, or all heads of a kind. The weights' gradients are a kernel of its
 * own, which must run before dx takes over dy's memory: a block has rows, and its threads sum columns of the weights
 * over them and the heads (row_sums.cu adds the blocks).
 *
 * A lane has packs of four neighbours, or single elements where heads are no multiple of four. Over all heads a warp
 * has a long group, so packs are 16 bytes and each lane loads TURNS of them before it waits for one. A head is one pack
 * a lane, or a few; forward a warp loads several such heads before it waits.
 *
 * Moves 2 n (H + 2 Hk) D elements forward and 5 of these backward. Bound: memory; over all heads two warps of a block
 * work, and loads of TURNS packs hide the latency.
 */
#include "kernels/cuda/kernel.h"

struct group {
  int64_t at, n;     /* elements of qkv, from its start */
  int64_t rstd_at;
  bool is_key;
};

template <class Args> static __device__ inline int64_t row_elements(const Args &a)
{
  return (a.heads + 2 * a.n_kv_heads) * a.head_dim;
}

/* Return group @i of a row that has @n_groups. */
template <class Args>
static __device__ inline group group_get(const Args &a, bool is_by_head, int64_t row, int64_t i, int64_t n_groups)
{
  group g;
  g.is_key = is_by_head ? i >= a.heads : i == 1;
  g.n = is_by_head ? a.head_dim : (g.is_key ? a.n_kv_heads : a.heads) * a.head_dim;
  g.at = row * row_elements(a) + (is_by_head ? i : i * a.heads) * a.head_dim;
  g.rstd_at = row * n_groups + i;
  return g;
}

#define LANE_PACK LADE_CUDA_QK_PACK
#define LANE_TURNS 4
#define HEADS 4 /* of one pack a lane that a warp has in flight */

/* Return a lane's first element of a group; those of its turns are 32 packs apart. */
template <int N> static __device__ inline int64_t lane_first(void)
{
  return (int64_t)(threadIdx.x % 32) * N;
}

/* Load a lane's packs from element @j on of a group of @n; those past it are the first again. */
template <int N, int TURNS, class T>
static __device__ inline void lane_load(pack<T, N> (&p)[TURNS], const T *from, int64_t j, int64_t n)
{
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const int64_t at = j + turn * 32 * N;
    p[turn] = pack_load<T, N>(from + (at < n ? at : j));
  }
}

template <int N, int TURNS, class T> static __device__ inline float squares_get(const T *x, const group &g)
{
  float sum = 0;
  for (int64_t j = lane_first<N>(); j < g.n; j += 32 * N * TURNS) {
    pack<T, N> p[TURNS];
    lane_load(p, x + g.at, j, g.n);
#pragma unroll
    for (int at = 0; at < N * TURNS; at++)
      sum += j + at / N * 32 * N < g.n ? get(p[at / N].x[at % N]) * get(p[at / N].x[at % N]) : 0.0f;
  }
  return warp_sum(sum);
}

template <class T, int N, int TURNS, class Args>
static __device__ inline float dot_get(const Args &a, const group &g, float rstd)
{
  const T *weight = (const T *)(g.is_key ? a.k_weight : a.q_weight);
  float sum = 0;
  for (int64_t j = lane_first<N>(); j < g.n; j += 32 * N * TURNS) {
    pack<T, N> dy[TURNS], x[TURNS], w[TURNS];
    lane_load(dy, (const T *)a.dy + g.at, j, g.n);
    lane_load(x, (const T *)a.x + g.at, j, g.n);
    lane_load(w, weight, j, g.n);
#pragma unroll
    for (int at = 0; at < N * TURNS; at++) {
      const int turn = at / N, k = at % N;
      const float term = get(dy[turn].x[k]) * (get(w[turn].x[k]) + a.weight_offset) * (get(x[turn].x[k]) * rstd);
      sum += j + turn * 32 * N < g.n ? term : 0.0f;
    }
  }
  return warp_sum(sum);
}

template <class T, int N, class Args>
static __device__ inline void values_copy(const Args &a, const void *from, void *to)
{
  const int64_t end = (blockIdx.x + 1) * row_elements(a);
  for (int64_t i = end - a.n_kv_heads * a.head_dim + threadIdx.x * N; i < end && from != to; i += blockDim.x * N)
    pack_store((T *)to + i, pack_load<T, N>((const T *)from + i));
}

/* Normalise a group: y = x rstd (weight + offset). */
template <class T, int N, int TURNS>
static __device__ inline void group_fwd(const struct lade_qk_norm_fwd_args &a, const group &g, float rstd)
{
  const T *weight = (const T *)(g.is_key ? a.k_weight : a.q_weight);
  for (int64_t j = lane_first<N>(); j < g.n; j += 32 * N * TURNS) {
    pack<T, N> x[TURNS], w[TURNS];
    lane_load(x, (const T *)a.x + g.at, j, g.n);
    lane_load(w, weight, j, g.n);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      float y[N];
#pragma unroll
      for (int k = 0; k < N; k++)
        y[k] = get(x[turn].x[k]) * rstd * (get(w[turn].x[k]) + a.weight_offset);
      if (j + turn * 32 * N < g.n)
        numbers_put((T *)a.y + g.at + j + turn * 32 * N, y);
    }
  }
}

template <class T, int N, int TURNS> static __device__ inline void qk_norm_by(const struct lade_qk_norm_fwd_args &a)
{
  const int64_t row = blockIdx.x, n_groups = a.is_by_head ? a.heads + a.n_kv_heads : 2;
  for (int64_t i = threadIdx.x / 32; i < n_groups; i += blockDim.x / 32) {
    const group g = group_get(a, a.is_by_head, row, i, n_groups);
    const float total = (float)(!a.sums ? g.n : g.is_key ? a.k_total : a.q_total);
    const float squares = a.sums ? ((const float *)a.sums)[g.is_key * a.n + row]
                                 : squares_get<N, TURNS>((const T *)a.x, g);
    const float rstd = 1 / sqrtf(squares / total + a.eps);
    if (threadIdx.x % 32 == 0)
      ((float *)a.rstd)[g.rstd_at] = rstd;
    group_fwd<T, N, TURNS>(a, g, rstd);
  }
  values_copy<T, N>(a, a.x, a.y);
}

/* Normalise heads of one pack a lane at most. A warp loads HEADS heads of the row before it waits for one. */
template <class T> static __device__ inline void heads_fwd(const struct lade_qk_norm_fwd_args &a)
{
  constexpr int N = LANE_PACK;
  const int n_groups = (int)(a.heads + a.n_kv_heads), n_warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
  const bool has_pack = lane * N < a.head_dim;
  const int64_t row = blockIdx.x, j = has_pack ? lane * N : 0;
  const T *from = (const T *)a.x + row * row_elements(a) + j;
  T *to = (T *)a.y + row * row_elements(a) + j;
  float q_weight[N], k_weight[N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    q_weight[k] = get(((const T *)a.q_weight)[j + k]) + a.weight_offset;
    k_weight[k] = get(((const T *)a.k_weight)[j + k]) + a.weight_offset;
  }
#pragma unroll 1
  for (int i = (int)threadIdx.x / 32; i < n_groups; i += n_warps * HEADS) {
    pack<T, N> x[HEADS];
    float squares[HEADS] = {};
#pragma unroll
    for (int t = 0; t < HEADS; t++)
      x[t] = pack_load<T, N>(from + (i + t * n_warps < n_groups ? i + t * n_warps : i) * (int)a.head_dim);
#pragma unroll
    for (int at = 0; at < HEADS * N; at++)
      squares[at / N] += has_pack ? get(x[at / N].x[at % N]) * get(x[at / N].x[at % N]) : 0.0f;
    const float rstd = 1 / sqrtf(warp_few_sums(squares) / (float)a.head_dim + a.eps);
    const int own = i + lane / (32 / HEADS) * n_warps;
    if (lane % (32 / HEADS) == 0 && own < n_groups)
      ((float *)a.rstd)[row * n_groups + own] = rstd;
#pragma unroll
    for (int t = 0; t < HEADS; t++) {
      const int head = i + t * n_warps;
      const float factor = __shfl_sync(0xffffffffu, rstd, t * (32 / HEADS));
      float y[N];
#pragma unroll
      for (int k = 0; k < N; k++)
        y[k] = get(x[t].x[k]) * factor * (head < (int)a.heads ? q_weight[k] : k_weight[k]);
      if (head < n_groups && has_pack)
        numbers_put(to + head * (int)a.head_dim, y);
    }
  }
  values_copy<T, N>(a, a.x, a.y);
}

/* Set a group's dx = rstd (dy (weight + offset) - h dot / total), h = x rstd; @share: dot / total. */
template <class T, int N, int TURNS>
static __device__ inline void group_bwd(const struct lade_qk_norm_bwd_args &a, const group &g, float rstd, float share)
{
  const T *weight = (const T *)(g.is_key ? a.k_weight : a.q_weight);
  for (int64_t j = lane_first<N>(); j < g.n; j += 32 * N * TURNS) {
    pack<T, N> dy[TURNS], x[TURNS], w[TURNS];
    lane_load(dy, (const T *)a.dy + g.at, j, g.n);
    lane_load(x, (const T *)a.x + g.at, j, g.n);
    lane_load(w, weight, j, g.n);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      float dx[N];
#pragma unroll
      for (int k = 0; k < N; k++)
        dx[k] = rstd * (get(dy[turn].x[k]) * (get(w[turn].x[k]) + a.weight_offset) - get(x[turn].x[k]) * rstd * share);
      if (j + turn * 32 * N < g.n)
        numbers_put((T *)a.dx + g.at + j + turn * 32 * N, dx);
    }
  }
}

template <class T, int N, int TURNS> static __device__ inline void qk_norm_by(const struct lade_qk_norm_bwd_args &a)
{
  const int64_t row = blockIdx.x, n_groups = a.is_by_head ? a.heads + a.n_kv_heads : 2;
  for (int64_t i = threadIdx.x / 32; i < n_groups; i += blockDim.x / 32) {
    const group g = group_get(a, a.is_by_head, row, i, n_groups);
    const float rstd = ((const float *)a.rstd)[g.rstd_at];
    const float total = (float)(!a.dots ? g.n : g.is_key ? a.k_total : a.q_total);
    const float dot = a.dots ? ((const float *)a.dots)[g.is_key * a.n + row] : dot_get<T, N, TURNS>(a, g, rstd);
    group_bwd<T, N, TURNS>(a, g, rstd, dot / total);
  }
  values_copy<T, N>(a, a.dy, a.dx);
}

/* Run a row forward or backward: by packs if heads consist of them, and over all heads by several packs at a time. */
template <class T, class Args> static __device__ inline void row_run(const Args &a)
{
  if (a.head_dim % LANE_PACK)
    qk_norm_by<T, 1, 1>(a);
  else if (a.is_by_head)
    qk_norm_by<T, LANE_PACK, 1>(a);
  else if (a.head_dim % LADE_PACK(T) == 0)
    qk_norm_by<T, LADE_PACK(T), LANE_TURNS>(a);
  else
    qk_norm_by<T, LANE_PACK, LANE_TURNS>(a);
}

template <class T>
static __device__ void qk_norm_fwd_of(const struct lade_qk_norm_fwd_args &a, const struct lade_step *step)
{
  if (a.is_by_head && a.head_dim % LANE_PACK == 0 && a.head_dim <= 32 * LANE_PACK)
    heads_fwd<T>(a);
  else
    row_run<T>(a);
}
LADE_KERNEL_OF_DTYPES(qk_norm_fwd, lade_qk_norm_fwd_args)

template <class T>
static __device__ void qk_norm_bwd_of(const struct lade_qk_norm_bwd_args &a, const struct lade_step *step)
{
  row_run<T>(a);
}
LADE_KERNEL_OF_DTYPES(qk_norm_bwd, lade_qk_norm_bwd_args)

#define WEIGHT_TURNS 8 /* heads that a thread has in flight */

/*
 * Sum the gradient of the weights of @n_heads heads from @first_head on, over the rows of this block, to @to. A team of
 * threads has a head of a row, each thread a pack of its columns; teams take heads in turn. @room: a pack of each
 * thread's sums, which are added in the order of teams. pre: heads are whole packs, no more than a block's.
 * 32 bits count the heads of a block of rows: 2^32 of them in each of 256 blocks would be 8 TiB.
 */
template <class T>
static __device__ inline void head_weights(const struct lade_qk_norm_bwd_args &a, float *room, uint32_t first_head,
                                           uint32_t n_heads, float *to)
{
  constexpr int N = LANE_PACK;
  const uint32_t n_lanes = (uint32_t)a.head_dim / N, n_teams = LADE_CUDA_THREADS / n_lanes;
  const uint32_t team = threadIdx.x / n_lanes, column = threadIdx.x % n_lanes * N;
  const int64_t n_rows = lade_cuda_row_block(a.n), first = blockIdx.x * n_rows;
  const uint32_t n_items = (uint32_t)(first + n_rows < a.n ? n_rows : a.n - first) * n_heads;
  float sums[N] = {};
  for (uint32_t item = team; team < n_teams && item < n_items; item += WEIGHT_TURNS * n_teams) {
    pack<T, N> x[WEIGHT_TURNS], dy[WEIGHT_TURNS];
    float rstd[WEIGHT_TURNS];
#pragma unroll
    for (uint32_t turn = 0; turn < WEIGHT_TURNS; turn++) {
      const uint32_t next = item + turn * n_teams, there = next < n_items ? next : item;
      const int64_t row = first + there / n_heads, head = first_head + there % n_heads;
      const int64_t at = row * row_elements(a) + head * a.head_dim + column;
      x[turn] = pack_load<T, N>((const T *)a.x + at);
      dy[turn] = pack_load<T, N>((const T *)a.dy + at);
      rstd[turn] = ((const float *)a.rstd)[row * (a.heads + a.n_kv_heads) + head];
    }
#pragma unroll
    for (uint32_t turn = 0; turn < WEIGHT_TURNS; turn++)
#pragma unroll
      for (int j = 0; j < N; j++)
        sums[j] += item + turn * n_teams < n_items ? get(dy[turn].x[j]) * (get(x[turn].x[j]) * rstd[turn]) : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < N; j++)
    room[threadIdx.x * N + j] = sums[j];
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < (uint32_t)a.head_dim; c += LADE_CUDA_THREADS) {
    float sum = room[c];
    for (uint32_t other = 1; other < n_teams; other++)
      sum += room[other * (uint32_t)a.head_dim + c];
    to[c] = sum;
  }
  __syncthreads();
}

/*
 * A thread has a column of the queries' weights, or after them of the keys', in a block of rows (blockIdx.x). By head
 * there are few columns, so teams of head_weights share the first block of them.
 */
template <class T>
static __device__ void qk_weights_of(const struct lade_qk_norm_bwd_args &a, const struct lade_step *step)
{
  const int64_t n_groups = a.is_by_head ? a.heads + a.n_kv_heads : 2, n_rows = lade_cuda_row_block(a.n);
  const int64_t q_width = a.is_by_head ? a.head_dim : a.heads * a.head_dim;
  const int64_t k_width = a.is_by_head ? a.head_dim : a.n_kv_heads * a.head_dim;
  const int64_t column = (int64_t)blockIdx.y * blockDim.x + threadIdx.x, first = blockIdx.x * n_rows;
  const bool is_key = column >= q_width;
  const int64_t j = is_key ? column - q_width : column, n_q_groups = a.is_by_head ? a.heads : 1;
  float *keys = (float *)a.workspace + lade_cuda_row_blocks(a.n) * q_width, sum = 0;
  if (a.is_by_head && a.head_dim % LANE_PACK == 0 && a.head_dim <= LADE_CUDA_THREADS * LANE_PACK) {
    LADE_SHARED(float, room);
    if (blockIdx.y > 0)
      return;
    head_weights<T>(a, room, 0, (uint32_t)a.heads, (float *)a.workspace + blockIdx.x * q_width);
    head_weights<T>(a, room, (uint32_t)a.heads, (uint32_t)a.n_kv_heads, keys + blockIdx.x * k_width);
    return;
  }
  if (column >= q_width + k_width)
    return;
  for (int64_t row = first; row < first + n_rows && row < a.n; row++)
    for (int64_t i = is_key ? n_q_groups : 0; i < (is_key ? n_groups : n_q_groups); i++) {
      const group g = group_get(a, a.is_by_head, row, i, n_groups);
      const float h = get(((const T *)a.x)[g.at + j]) * ((const float *)a.rstd)[g.rstd_at];
      sum += get(((const T *)a.dy)[g.at + j]) * h;
    }
  (is_key ? keys : (float *)a.workspace)[blockIdx.x * (is_key ? k_width : q_width) + j] = sum;
}
LADE_KERNEL_OF_DTYPES(qk_weights, lade_qk_norm_bwd_args)

/* The first warp has the queries, the second the keys. */
template <class T> static __device__ void qk_sums_of(const struct lade_qk_sums_args &a, const struct lade_step *step)
{
  const int64_t row = blockIdx.x, i = threadIdx.x / 32;
  const group g = group_get(a, false, row, i, 2);
  const float sum = a.head_dim % LANE_PACK ? squares_get<1, 1>((const T *)a.x, g)
                                           : squares_get<LANE_PACK, LANE_TURNS>((const T *)a.x, g);
  if (threadIdx.x % 32 == 0)
    ((float *)a.sums)[i * a.n + row] = i ? sum / (float)a.n_copies : sum;
}
LADE_KERNEL_OF_DTYPES(qk_sums, lade_qk_sums_args)

template <class T> static __device__ void qk_dots_of(const struct lade_qk_dots_args &a, const struct lade_step *step)
{
  const int64_t row = blockIdx.x, i = threadIdx.x / 32;
  const group g = group_get(a, false, row, i, 2);
  const float rstd = ((const float *)a.rstd)[g.rstd_at];
  const float dot = a.head_dim % LANE_PACK ? dot_get<T, 1, 1>(a, g, rstd)
                                           : dot_get<T, LANE_PACK, LANE_TURNS>(a, g, rstd);
  if (threadIdx.x % 32 == 0)
    ((float *)a.dots)[i * a.n + row] = dot;
}
LADE_KERNEL_OF_DTYPES(qk_dots, lade_qk_dots_args)
