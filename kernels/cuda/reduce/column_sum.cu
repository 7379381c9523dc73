/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Column sums of x[m,n], a bias's gradient: partial sums per block of rows here, row_sums.cu adds the blocks.
 *
 * Moves m n elements. Bound: memory. A thread has a pack of columns of a block of rows, and loads those of eight rows
 * before it adds them in their order. First it asks for the next eight, which come to L2 meanwhile.
 */
#include "kernels/cuda/kernel.h"

#define ROWS 8 /* at a time */

template <class T, int N> static __device__ inline void columns_sum(const struct lade_column_sum_args &a)
{
  int64_t j = thread_get() * N, rows = lade_cuda_row_block(a.m), first = blockIdx.y * rows;
  int64_t end = first + rows < a.m ? first + rows : a.m;
  float sums[N] = {};
  if (j >= a.n)
    return;
#pragma unroll 1
  for (int64_t row = first; row < end; row += ROWS) {
    pack<T, N> x[ROWS];
#pragma unroll
    for (int r = ROWS; r < 2 * ROWS; r++)
      if (row + r < end)
        ptx_prefetch((const T *)a.x + (row + r) * a.n + j);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
      x[r] = pack_load<T, N>((const T *)a.x + (row + r < end ? row + r : row) * a.n + j);
#pragma unroll
    for (int at = 0; at < ROWS * N; at++)
      sums[at % N] += row + at / N < end ? get(x[at / N].x[at % N]) : 0.0f;
  }
#pragma unroll
  for (int at = 0; at < N; at++)
    ((float *)a.workspace)[blockIdx.y * a.n + j + at] = sums[at];
}

template <class T>
static __device__ void column_sum_of(const struct lade_column_sum_args &a, const struct lade_step *step)
{
  if (a.n % LADE_PACK(T) == 0)
    columns_sum<T, LADE_PACK(T)>(a);
  else
    columns_sum<T, 1>(a);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(column_sum, lade_column_sum_args, 3)
