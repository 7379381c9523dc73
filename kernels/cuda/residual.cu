/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bias, dropout, residual and norm of a row in one visit, as in kernels/host/residual.c: what leaves as a tensor is
 * rounded first and used as rounded, so the fused op has the bits of its parts.
 *
 * Moves 4 n d elements forward (3 without a norm); backward 4 n d, with dropout 5 n d, and 6 d F32 numbers for each
 * block of at least 16 rows. Bound: memory; with dropout the Philox words, one draw an element.
 */
#include "kernels/cuda/norm_row.h"

template <class T>
static __device__ void residual_fwd_of(const struct lade_residual_fwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, room);
  int64_t row = blockIdx.x;
  for (int64_t j = threadIdx.x; j < a.d; j += blockDim.x) {
    int64_t i = row * a.d + j;
    float x = get(((const T *)a.x)[i]) + (a.bias ? get(((const T *)a.bias)[j]) : 0.0f);
    put((T *)a.sum + i, get(((const T *)a.residual)[i]) + drop_value(step, a.drop, i, x));
  }
  if (a.kind == LADE_NORM_NONE)
    return;
  struct lade_norm_fwd_args norm = {};
  norm.kind = a.kind;
  norm.d = a.d;
  norm.eps = a.eps;
  norm.x = a.sum;
  norm.weight = a.weight;
  norm.bias = a.norm_bias;
  norm.y = a.y;
  norm.mean = a.mean;
  norm.rstd = a.rstd;
  norm_row<T>(norm, row, room);
}
LADE_KERNEL_OF_DTYPES(residual_fwd, lade_residual_fwd_args)

static __device__ inline struct lade_norm_bwd_args norm_of(const struct lade_residual_bwd_args &a)
{
  struct lade_norm_bwd_args norm = {};
  norm.kind = a.kind;
  norm.d = a.d;
  norm.dy = a.dy;
  norm.x = a.sum;
  norm.weight = a.weight;
  norm.mean = a.mean;
  norm.rstd = a.rstd;
  norm.d_residual = a.d_sum;
  norm.dx = a.d_residual;
  return norm;
}

/* dx and the bias's gradient of a row whose d_residual is stored. */
template <class T>
static __device__ inline void dx_row(const struct lade_residual_bwd_args &a, const struct lade_step *step, int64_t row,
                                     float *d_x_bias)
{
  for (int64_t j = threadIdx.x; j < a.d; j += blockDim.x) {
    int64_t i = row * a.d + j;
    float d = get(((const T *)a.d_residual)[i]);
    if (a.dx) {
      d = stored<T>(drop_value(step, a.drop, i, d));
      put((T *)a.dx + i, d);
    }
    d_x_bias[j] += d;
  }
}

template <class T>
static __device__ void residual_bwd_of(const struct lade_residual_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, room);
  float *workspace = (float *)a.workspace;
  float *partials = partials_begin(room + LADE_CUDA_ROOM_FLOATS, workspace, a.d, 3);
  const struct lade_norm_bwd_args norm = norm_of(a);
  int64_t rows = lade_cuda_row_block(a.n), first = blockIdx.x * rows, end = first + rows < a.n ? first + rows : a.n;
  for (int64_t row = first; row < end; row++) {
    if (a.kind != LADE_NORM_NONE)
      norm_bwd_row<T>(norm, row, partials, partials + a.d, room);
    for (int64_t j = threadIdx.x; a.kind == LADE_NORM_NONE && j < a.d; j += blockDim.x)
      put((T *)a.d_residual + row * a.d + j, a.d_sum ? get(((const T *)a.d_sum)[row * a.d + j]) : 0.0f);
    dx_row<T>(a, step, row, partials + 2 * a.d);
  }
  partials_end(partials, workspace, a.d, 3);
}
LADE_KERNEL_OF_DTYPES(residual_bwd, lade_residual_bwd_args)
