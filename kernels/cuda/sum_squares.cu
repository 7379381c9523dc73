/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of squares of each block of LADE_SUM_BLOCK elements, with the bits of every device: sixteen lanes, each
 * adding its squares in order in F64, and the lanes as a tree.
 *
 * Moves n elements. Bound: memory for large tensors, where a GPU has tens of thousands of lanes under way; for small
 * ones the latency of 4,096 additions in F64. Half a warp has a block: its sixteen loads are neighbours.
 */
#include "kernels/cuda/kernel.h"

#define LANES LADE_CUDA_SUM_LANES

template <class T>
static __device__ void sum_squares_of(const struct lade_sum_squares_args &a, const struct lade_step *step)
{
  int64_t block = thread_get() / LANES, first = block * LADE_SUM_BLOCK;
  int64_t end = first + LADE_SUM_BLOCK < a.n_elements ? first + LADE_SUM_BLOCK : a.n_elements;
  double sum = 0;
  for (int64_t i = first + threadIdx.x % LANES; i < end; i += LANES) {
    double g = (double)get(((const T *)a.grad)[i]);
    sum += g * g; /* exact, so that a fused operation would give the same */
  }
  for (int half = LANES / 2; half > 0; half /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, half, LANES);
  if (threadIdx.x % LANES == 0 && first < a.n_elements)
    a.partial[block] = sum;
}
LADE_KERNEL_OF(sum_squares, lade_sum_squares_args, f32, float)
LADE_KERNEL_OF(sum_squares, lade_sum_squares_args, bf16, bf16)
