/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LayerNorm and RMSNorm over rows, and their backward. A block of threads has a row. Backward it has a block of rows,
 * one after another, and also sums the gradients of weight and bias (row_sums.cu adds the blocks).
 *
 * Moves 2 n d elements forward: a row stays in registers (norm_row.h). Backward 4 n d with a residual, and 4 d F32
 * numbers for each block of at least 16 rows. Bound: memory.
 */
#include "kernels/cuda/rows/norm_bwd.h"

template <class T> static __device__ void norm_fwd_of(const struct lade_norm_fwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, room);
  if (a.d % LADE_PACK(T) == 0) {
    pack<T, LADE_PACK(T)> x[PACKS] = {};
    norm_row(a, blockIdx.x, room, x, false);
  } else {
    pack<T, 1> x[PACKS] = {};
    norm_row(a, blockIdx.x, room, x, false);
  }
}
LADE_KERNEL_OF_DTYPES_BLOCKS(norm_fwd, lade_norm_fwd_args, 3)

/* Run a residual's backward without the output dx. */
template <class T> static __device__ void norm_bwd_of(const struct lade_norm_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, shared);
  struct lade_residual_bwd_args residual = {};
  residual.kind = a.kind;
  residual.n = a.n;
  residual.d = a.d;
  residual.weight_offset = a.weight_offset;
  residual.d_sum = a.d_residual;
  residual.dy = a.dy;
  residual.sum = a.x;
  residual.weight = a.weight;
  residual.mean = a.mean;
  residual.rstd = a.rstd;
  residual.d_residual = a.dx;
  residual.workspace = a.workspace;
  rows_bwd<ROWS_NORM, T>(residual, step, shared);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(norm_bwd, lade_norm_bwd_args, 2)
