/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LayerNorm and RMSNorm over rows, and their backward. A block of threads has some rows, one after another. Backward it
 * also sums the gradients of weight and bias; row_sums.cu adds the blocks.
 *
 * Moves 2 n d elements forward: a row stays in registers (norm_row.h). Backward 4 n d with a residual, and 4 d F32
 * numbers for each block of at least 16 rows. Bound: memory.
 */
#include "kernels/cuda/rows/norm_bwd.h"

/* Begin to copy this thread's packs of a row to shared memory; those past the row become zeros. */
template <class T, int N>
static __device__ inline void row_copy(pack<T, N> *to, const struct lade_norm_fwd_args &a, int64_t row)
{
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    const int column = column_get<N>(0, p);
    ptx_copy_16(to + column / N, (const T *)a.x + row * a.d + column, column < (int)a.d);
  }
}

/*
 * Process this block's rows, each of one span of packs of 16 bytes. A row is copied to shared memory while the one
 * before it is worked on. A thread reads its own copies alone.
 */
template <class T, int N> static __device__ inline void rows_fwd(const struct lade_norm_fwd_args &a, float *shared)
{
  const int64_t n_rows = lade_cuda_norm_fwd_rows(a.n), first = blockIdx.x * n_rows;
  const int64_t end = first + n_rows < a.n ? first + n_rows : a.n;
  const int width = PACKS * (int)blockDim.x;
  pack<T, N> *copies = (pack<T, N> *)(shared + LADE_CUDA_ROOM_FLOATS);
  struct norm_weights<T, N> weights = {};
  row_copy(copies, a, first);
  norm_weights_load(weights, a, 0);
#pragma unroll 1
  for (int64_t row = first; row < end; row++) {
    const pack<T, N> *current = copies + (row - first) % 2 * width;
    pack<T, N> x[PACKS];
    ptx_copies_wait();
    if (row + 1 < end)
      row_copy(copies + (row + 1 - first) % 2 * width, a, row + 1);
#pragma unroll
    for (int p = 0; p < PACKS; p++)
      x[p] = current[column_get<N>(0, p) / N];
    norm_row(a, row, shared, x, weights);
  }
}

template <class T> static __device__ void norm_fwd_of(const struct lade_norm_fwd_args &a, const struct lade_step *step)
{
  constexpr int N = LADE_PACK(T);
  LADE_SHARED(float, shared);
  const int64_t n_rows = lade_cuda_norm_fwd_rows(a.n), first = blockIdx.x * n_rows;
  if (a.d % N == 0 && a.d <= span_get<N, PACKS>()) {
    rows_fwd<T, N>(a, shared);
    return;
  }
#pragma unroll 1
  for (int64_t row = first; row < first + n_rows && row < a.n; row++)
    if (a.d % N == 0)
      norm_long_row<T, N>(a, row, shared);
    else
      norm_long_row<T, 1>(a, row, shared);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(norm_fwd, lade_norm_fwd_args, 2)

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
ROWS_BWD_KERNEL(norm_bwd, lade_norm_bwd_args)
