/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second half of every sum over rows: per column, the partial sums of the blocks of rows in their order, and the
 * complete sum into the gradient.
 *
 * Moves at most 256 partial sums a column, a few percent of what made them. Bound: memory, and for narrow tensors the
 * latency of 256 additions. A thread has a column of one output.
 */
#include "kernels/cuda/kernel.h"

LADE_KERNEL(row_sums, lade_cuda_row_sums)
{
  int64_t j = thread_get();
  float *output = a.outputs[blockIdx.y];
  if (j >= a.d || !output)
    return;
  float sum = 0;
  for (int64_t block = 0; block < a.n_blocks; block++)
    sum += a.partials[(block * a.n_outputs + blockIdx.y) * a.d + j];
  output[j] = a.accumulate ? output[j] + sum : sum;
}
LADE_CUDA_EXPORT(row_sums, lade_cuda_row_sums)
