/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of LayerNorm or RMSNorm and of their backward by one block of threads, for norm.cu and residual.cu. Thread t
 * has the columns t, t + threads, ...: it alone reads and writes them, so what it stored it may read back.
 */
#ifndef LADE_CUDA_NORM_ROW_H
#define LADE_CUDA_NORM_ROW_H

#include "kernels/cuda/kernel.h"

/* The variance is summed about the mean in a second pass, as everywhere. */
template <class T>
static __device__ inline void norm_row(const struct lade_norm_fwd_args &a, int64_t row, float *room)
{
  const T *x = (const T *)a.x + row * a.d, *weight = (const T *)a.weight, *bias = (const T *)a.bias;
  T *y = (T *)a.y + row * a.d;
  float sum = 0, mean = 0, squares = 0;
  if (a.kind == LADE_NORM_LAYER) {
    for (int64_t j = threadIdx.x; j < a.d; j += blockDim.x)
      sum += get(x[j]);
    mean = block_sum(sum, room) / (float)a.d;
  }
  for (int64_t j = threadIdx.x; j < a.d; j += blockDim.x)
    squares += (get(x[j]) - mean) * (get(x[j]) - mean);
  float rstd = 1 / sqrtf(block_sum(squares, room) / (float)a.d + a.eps);
  if (threadIdx.x == 0) {
    ((float *)a.rstd)[row] = rstd;
    if (a.kind == LADE_NORM_LAYER)
      ((float *)a.mean)[row] = mean;
  }
  for (int64_t j = threadIdx.x; j < a.d; j += blockDim.x)
    put(y + j, (get(x[j]) - mean) * rstd * get(weight[j]) + (bias ? get(bias[j]) : 0.0f));
}

/*
 * With h = (x-mean) rstd and g = dy weight: dx = rstd (g - avg(g) - h avg(g h)) + d_residual, without avg(g) for RMS.
 * Adds dy h and dy to the partial sums of the block of rows.
 */
template <class T>
static __device__ inline void norm_bwd_row(const struct lade_norm_bwd_args &a, int64_t row, float *d_weight,
                                           float *d_bias, float *room)
{
  const T *x = (const T *)a.x + row * a.d, *dy = (const T *)a.dy + row * a.d, *weight = (const T *)a.weight;
  const T *d_residual = a.d_residual ? (const T *)a.d_residual + row * a.d : NULL;
  T *dx = (T *)a.dx + row * a.d;
  float mean = a.kind == LADE_NORM_LAYER ? ((const float *)a.mean)[row] : 0.0f, rstd = ((const float *)a.rstd)[row];
  float sum_g = 0, sum_gh = 0;
  for (int64_t j = threadIdx.x; j < a.d; j += blockDim.x) {
    float d = get(dy[j]), h = (get(x[j]) - mean) * rstd, g = d * get(weight[j]);
    sum_g += g;
    sum_gh += g * h;
    d_weight[j] += d * h;
    d_bias[j] += d;
  }
  float avg_gh = block_sum(sum_gh, room) / (float)a.d, avg_g = 0;
  if (a.kind == LADE_NORM_LAYER)
    avg_g = block_sum(sum_g, room) / (float)a.d;
  for (int64_t j = threadIdx.x; j < a.d; j += blockDim.x) {
    float h = (get(x[j]) - mean) * rstd, g = get(dy[j]) * get(weight[j]);
    put(dx + j, rstd * (g - avg_g - h * avg_gh) + (d_residual ? get(d_residual[j]) : 0.0f));
  }
}

/* Where this block of threads makes its @n_outputs partial sums, cleared; @shared is behind the room. */
static __device__ inline float *partials_begin(float *shared, float *workspace, int64_t d, int n_outputs)
{
  float *partials = lade_cuda_row_shared(d, n_outputs) ? shared : workspace + blockIdx.x * n_outputs * d;
  for (int output = 0; output < n_outputs; output++)
    for (int64_t j = threadIdx.x; j < d; j += blockDim.x)
      partials[output * d + j] = 0;
  return partials;
}

static __device__ inline void partials_end(const float *partials, float *workspace, int64_t d, int n_outputs)
{
  float *to = workspace + blockIdx.x * n_outputs * d;
  for (int output = 0; output < n_outputs; output++)
    for (int64_t j = threadIdx.x; j < d && partials != to; j += blockDim.x)
      to[output * d + j] = partials[output * d + j];
}

#endif
