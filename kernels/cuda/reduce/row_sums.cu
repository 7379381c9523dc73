/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second half of every sum over rows: per column, the partial sums of the blocks of rows in their order, in eight
 * slices that are added in theirs, and the complete sum into the gradient.
 *
 * Moves at most 256 partial sums a column out of L2, a few percent of the traffic of the first half. Bound: latency, of
 * 32 additions after loads that are in flight together. A warp has a slice of 32 columns of one output.
 */
#include "kernels/cuda/kernel.h"

#define COLUMNS LADE_CUDA_SUM_COLUMNS
#define SLICES (LADE_CUDA_THREADS / COLUMNS)

LADE_KERNEL(row_sums, lade_cuda_row_sums)
{
  LADE_SHARED(float, room);
  const int lane = (int)threadIdx.x % COLUMNS, slice = (int)threadIdx.x / COLUMNS;
  const int64_t j = (int64_t)blockIdx.x * COLUMNS + lane, n = (a.n_blocks + SLICES - 1) / SLICES;
  const int64_t end = (slice + 1) * n < a.n_blocks ? (slice + 1) * n : a.n_blocks;
  float *output = a.outputs[blockIdx.y], sum = 0;
  if (!output)
    return;
#pragma unroll 16
  for (int64_t block = slice * n; block < end && j < a.d; block++)
    sum += a.partials[(block * a.n_outputs + blockIdx.y) * a.d + j];
  room[threadIdx.x] = sum;
  __syncthreads();
  if (slice > 0 || j >= a.d)
    return;
  for (int other = 1; other < SLICES; other++)
    sum += room[other * COLUMNS + lane];
  output[j] = a.accumulate ? output[j] + sum : sum;
}
LADE_CUDA_EXPORT(row_sums, lade_cuda_row_sums)
