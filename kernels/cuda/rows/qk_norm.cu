/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMSNorm of queries and keys within rows of qkv, and its backward; kernels/host/rows/qk_norm.c has the formulas.
 *
 * A block has a row and a warp has a group: a head, or all heads of a kind. The weights' gradients are a kernel of its
 * own, which must run before dx takes over dy's memory: a thread has a column of the weights and sums it over the rows
 * of its block and the heads (row_sums.cu adds the blocks).
 *
 * Moves 2 n (H + 2 Hk) D elements forward and 5 of these backward. Bound: memory by heads; over all heads two warps of
 * a block work, and latency bounds it, at some times the price of a norm.
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

template <class T> static __device__ inline float squares_get(const T *x, const group &g)
{
  float sum = 0;
  for (int64_t j = threadIdx.x % 32; j < g.n; j += 32)
    sum += get(x[g.at + j]) * get(x[g.at + j]);
  return warp_sum(sum);
}

template <class T, class Args> static __device__ inline float dot_get(const Args &a, const group &g, float rstd)
{
  const T *weight = (const T *)(g.is_key ? a.k_weight : a.q_weight);
  float sum = 0;
  for (int64_t j = threadIdx.x % 32; j < g.n; j += 32)
    sum += get(((const T *)a.dy)[g.at + j]) * (get(weight[j]) + a.weight_offset) *
           (get(((const T *)a.x)[g.at + j]) * rstd);
  return warp_sum(sum);
}

template <class T, class Args>
static __device__ inline void values_copy(const Args &a, const void *from, void *to)
{
  const int64_t end = (blockIdx.x + 1) * row_elements(a);
  for (int64_t i = end - a.n_kv_heads * a.head_dim + threadIdx.x; i < end && from != to; i += blockDim.x)
    ((T *)to)[i] = ((const T *)from)[i];
}

template <class T>
static __device__ void qk_norm_fwd_of(const struct lade_qk_norm_fwd_args &a, const struct lade_step *step)
{
  const int64_t row = blockIdx.x, n_groups = a.is_by_head ? a.heads + a.n_kv_heads : 2;
  for (int64_t i = threadIdx.x / 32; i < n_groups; i += blockDim.x / 32) {
    const group g = group_get(a, a.is_by_head, row, i, n_groups);
    const T *weight = (const T *)(g.is_key ? a.k_weight : a.q_weight);
    const float total = (float)(!a.sums ? g.n : g.is_key ? a.k_total : a.q_total);
    const float squares = a.sums ? ((const float *)a.sums)[g.is_key * a.n + row] : squares_get((const T *)a.x, g);
    const float rstd = 1 / sqrtf(squares / total + a.eps);
    if (threadIdx.x % 32 == 0)
      ((float *)a.rstd)[g.rstd_at] = rstd;
    for (int64_t j = threadIdx.x % 32; j < g.n; j += 32)
      put((T *)a.y + g.at + j, get(((const T *)a.x)[g.at + j]) * rstd * (get(weight[j]) + a.weight_offset));
  }
  values_copy<T>(a, a.x, a.y);
}
LADE_KERNEL_OF_DTYPES(qk_norm_fwd, lade_qk_norm_fwd_args)

template <class T>
static __device__ void qk_norm_bwd_of(const struct lade_qk_norm_bwd_args &a, const struct lade_step *step)
{
  const int64_t row = blockIdx.x, n_groups = a.is_by_head ? a.heads + a.n_kv_heads : 2;
  for (int64_t i = threadIdx.x / 32; i < n_groups; i += blockDim.x / 32) {
    const group g = group_get(a, a.is_by_head, row, i, n_groups);
    const T *weight = (const T *)(g.is_key ? a.k_weight : a.q_weight);
    const float rstd = ((const float *)a.rstd)[g.rstd_at];
    const float total = (float)(!a.dots ? g.n : g.is_key ? a.k_total : a.q_total);
    const float dot = a.dots ? ((const float *)a.dots)[g.is_key * a.n + row] : dot_get<T>(a, g, rstd);
    for (int64_t j = threadIdx.x % 32; j < g.n; j += 32) {
      const float h = get(((const T *)a.x)[g.at + j]) * rstd;
      const float dy = get(((const T *)a.dy)[g.at + j]) * (get(weight[j]) + a.weight_offset);
      put((T *)a.dx + g.at + j, rstd * (dy - h * (dot / total)));
    }
  }
  values_copy<T>(a, a.dy, a.dx);
}
LADE_KERNEL_OF_DTYPES(qk_norm_bwd, lade_qk_norm_bwd_args)

/* A thread has a column of the queries' weights, or behind them of the keys', in a block of rows (blockIdx.x). */
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
  const float sum = squares_get((const T *)a.x, g);
  if (threadIdx.x % 32 == 0)
    ((float *)a.sums)[i * a.n + row] = i ? sum / (float)a.n_copies : sum;
}
LADE_KERNEL_OF_DTYPES(qk_sums, lade_qk_sums_args)

template <class T> static __device__ void qk_dots_of(const struct lade_qk_dots_args &a, const struct lade_step *step)
{
  const int64_t row = blockIdx.x, i = threadIdx.x / 32;
  const group g = group_get(a, false, row, i, 2);
  const float dot = dot_get<T>(a, g, ((const float *)a.rstd)[g.rstd_at]);
  if (threadIdx.x % 32 == 0)
    ((float *)a.dots)[i * a.n + row] = dot;
}
LADE_KERNEL_OF_DTYPES(qk_dots, lade_qk_dots_args)
