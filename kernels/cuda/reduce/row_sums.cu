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
#define AHEAD 16 /* partial sums that a thread loads before it adds the first */

/*
 * Add @n partial sums from @from on, @stride floats apart, to @sum: AHEAD of them, or fewer if not IS_WHOLE. Those that
 * do not exist add zero, which changes no sum that began as zero.
 */
template <bool IS_WHOLE>
static __device__ inline void partials_add(float &sum, const float *from, int64_t stride, int n)
{
  float partial[AHEAD];
#pragma unroll
  for (int i = 0; i < AHEAD; i++, from += IS_WHOLE || i < n ? stride : 0)
    partial[i] = *from;
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    sum += IS_WHOLE || i < n ? partial[i] : 0.0f;
}

LADE_KERNEL_BLOCKS(row_sums, lade_cuda_row_sums, 6)
{
  LADE_SHARED(float, room);
  const int lane = (int)threadIdx.x % COLUMNS, slice = (int)threadIdx.x / COLUMNS;
  const int64_t j = (int64_t)blockIdx.x * COLUMNS + lane, n = (a.n_blocks + SLICES - 1) / SLICES;
  const int64_t end = (slice + 1) * n < a.n_blocks ? (slice + 1) * n : a.n_blocks;
  float *output = a.outputs[blockIdx.y], sum = 0;
  if (!output)
    return;
  const float *partials = a.partials + blockIdx.y * a.d + j;
  const int64_t stride = a.n_outputs * a.d;
  int64_t block = j < a.d ? slice * n : end;
#pragma unroll 1
  for (; block + AHEAD <= end; block += AHEAD)
    partials_add<true>(sum, partials + block * stride, stride, AHEAD);
  if (block < end)
    partials_add<false>(sum, partials + block * stride, stride, (int)(end - block));
  room[threadIdx.x] = sum;
  __syncthreads();
  if (slice > 0 || j >= a.d)
    return;
  for (int other = 1; other < SLICES; other++)
    sum += room[other * COLUMNS + lane];
  output[j] = a.accumulate ? output[j] + sum : sum;
}
LADE_CUDA_EXPORT(row_sums, lade_cuda_row_sums)
