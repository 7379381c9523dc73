/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LayerNorm and RMSNorm over rows, and their backward. A block of threads has a row; backward it has a block of rows
 * after each other and sums the gradients of weight and bias on the way (row_sums.cu adds the blocks).
 *
 * Moves 2 n d elements forward: the second and third reading of a row come from L1. Backward 4 n d with a residual, and
 * 4 d F32 numbers for each block of at least 16 rows. Bound: memory.
 */
#include "kernels/cuda/norm_row.h"

template <class T> static __device__ void norm_fwd_of(const struct lade_norm_fwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, room);
  norm_row<T>(a, blockIdx.x, room);
}
LADE_KERNEL_OF_DTYPES(norm_fwd, lade_norm_fwd_args)

template <class T> static __device__ void norm_bwd_of(const struct lade_norm_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, room);
  float *workspace = (float *)a.workspace;
  float *partials = partials_begin(room + LADE_CUDA_ROOM_FLOATS, workspace, a.d, 2);
  int64_t rows = lade_cuda_row_block(a.n), first = blockIdx.x * rows, end = first + rows < a.n ? first + rows : a.n;
  for (int64_t row = first; row < end; row++)
    norm_bwd_row<T>(a, row, partials, partials + a.d, room);
  partials_end(partials, workspace, a.d, 2);
}
LADE_KERNEL_OF_DTYPES(norm_bwd, lade_norm_bwd_args)
