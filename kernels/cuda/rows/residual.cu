/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bias, dropout, residual and norm of a row in one pass, as in kernels/host/rows/residual.c: values stored as tensors
 * are rounded first and used as rounded, so the fused op has the bits of its parts.
 *
 * Moves 4 n d elements forward (3 without a norm); backward 4 n d, with dropout 5 n d, and 6 d F32 numbers for each
 * block of at least 16 rows. Bound: memory; with dropout the Philox words, one draw for four elements.
 *
 * Dropout has kernels of its own, residual_drop_*: the others need no registers and no instructions for it.
 */
#include "kernels/cuda/rows/norm_bwd.h"

/* Compute the sum of the span from @at on, store it and leave it in @sums. */
template <bool HAS_DROP, class T, int N>
static __device__ inline void sum_span(const struct lade_residual_fwd_args &a, const struct lade_step *step,
                                       int64_t row, int at, pack<T, N> (&sums)[PACKS])
{
  pack<T, N> x[PACKS], bias[PACKS] = {};
  span_load(x, (const T *)a.x + row * a.d, at, (int)a.d);
  span_load(sums, (const T *)a.residual + row * a.d, at, (int)a.d);
  if (a.bias)
    span_load(bias, a.bias, at, (int)a.d);
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    const int64_t i = row * a.d + column_get<N>(at, p);
    float numbers[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      numbers[j] = get(x[p].x[j]) + get(bias[p].x[j]);
    if (HAS_DROP)
      drop_numbers(numbers, step, a.drop, i);
#pragma unroll
    for (int j = 0; j < N; j++)
      numbers[j] = get(sums[p].x[j]) + numbers[j];
    pack_put(sums[p], numbers);
    if (column_get<N>(at, p) < (int)a.d)
      pack_store((T *)a.sum + i, sums[p]);
  }
}

template <bool HAS_DROP, class T, int N>
static __device__ inline void residual_row(const struct lade_residual_fwd_args &a, const struct lade_step *step,
                                           int64_t row, float *room)
{
  const int span = span_get<N, PACKS>();
  pack<T, N> sums[PACKS] = {};
#pragma unroll 1
  for (int at = 0; at < (int)a.d; at += span)
    sum_span<HAS_DROP>(a, step, row, at, sums);
  if (a.kind == LADE_NORM_NONE)
    return;
  struct lade_norm_fwd_args norm = {};
  norm.kind = a.kind;
  norm.d = a.d;
  norm.eps = a.eps;
  norm.weight_offset = a.weight_offset;
  norm.x = a.sum;
  norm.weight = a.weight;
  norm.bias = a.norm_bias;
  norm.y = a.y;
  norm.mean = a.mean;
  norm.rstd = a.rstd;
  if (a.d > span) {
    norm_long_row<T, N>(norm, row, room);
    return;
  }
  struct norm_weights<T, N> weights = {};
  norm_weights_load(weights, norm, 0); /* memory answers in the reductions */
  norm_row(norm, row, room, sums, weights);
}

template <bool HAS_DROP, class T>
static __device__ inline void residual_rows(const struct lade_residual_fwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, room);
  if (a.d % LADE_PACK(T) == 0)
    residual_row<HAS_DROP, T, LADE_PACK(T)>(a, step, blockIdx.x, room);
  else
    residual_row<HAS_DROP, T, 1>(a, step, blockIdx.x, room);
}

template <class T>
static __device__ void residual_fwd_of(const struct lade_residual_fwd_args &a, const struct lade_step *step)
{
  residual_rows<false, T>(a, step);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(residual_fwd, lade_residual_fwd_args, 2)

template <class T>
static __device__ void residual_drop_fwd_of(const struct lade_residual_fwd_args &a, const struct lade_step *step)
{
  const struct lade_step own = *step;
  residual_rows<true, T>(a, &own);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(residual_drop_fwd, lade_residual_fwd_args, 2)

template <class T>
static __device__ void residual_bwd_of(const struct lade_residual_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, shared);
  rows_bwd<ROWS_BIAS, T>(a, step, shared);
}
ROWS_BWD_KERNEL(residual_bwd, lade_residual_bwd_args)

/* Make the column sums of d_sum too. pre: lade_cuda_norm_bwd_packs is 1. */
template <class T>
static __device__ void residual_sums_bwd_of(const struct lade_residual_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, shared);
  whole_rows_bwd<ROWS_SUMS, T, 1>(a, step, shared);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(residual_sums_bwd, lade_residual_bwd_args, 2)

template <class T>
static __device__ void residual_drop_bwd_of(const struct lade_residual_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, shared);
  const struct lade_step own = *step;
  rows_bwd<ROWS_DROP, T>(a, &own, shared);
}
ROWS_BWD_KERNEL(residual_drop_bwd, lade_residual_bwd_args)
