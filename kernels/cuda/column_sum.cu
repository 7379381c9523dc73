/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Column sums of x[m,n], a bias's gradient: partial sums per block of rows here, row_sums.cu adds the blocks.
 *
 * Moves m n elements. Bound: memory. A thread has a column of a block of rows; neighbours read neighbours.
 */
#include "kernels/cuda/kernel.h"

template <class T>
static __device__ void column_sum_of(const struct lade_column_sum_args &a, const struct lade_step *step)
{
  int64_t j = thread_get(), rows = lade_cuda_row_block(a.m), first = blockIdx.y * rows;
  int64_t end = first + rows < a.m ? first + rows : a.m;
  if (j >= a.n)
    return;
  float sum = 0;
  for (int64_t row = first; row < end; row++)
    sum += get(((const T *)a.x)[row * a.n + j]);
  ((float *)a.workspace)[blockIdx.y * a.n + j] = sum;
}
LADE_KERNEL_OF_DTYPES(column_sum, lade_column_sum_args)
