/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y = x + y in F32: a gradient that waited elsewhere.
 *
 * Moves 3 n F32 numbers. Bound: memory.
 */
#include "kernels/cuda/kernel.h"

template <int N> static __device__ void add_packs(const struct lade_add_args &a, int64_t first, int64_t end)
{
  for (int64_t i = first + thread_get() * N; i < end; i += n_threads_get() * N) {
    pack<float, N> x = *(const pack<float, N> *)(a.x + i), y = *(const pack<float, N> *)(a.y + i);
    for (int j = 0; j < N; j++)
      y.x[j] = x.x[j] + y.x[j];
    *(pack<float, N> *)(a.y + i) = y;
  }
}

LADE_KERNEL(add, lade_add_args)
{
  int64_t whole = a.n_elements / 4 * 4;
  add_packs<4>(a, 0, whole);
  add_packs<1>(a, whole, a.n_elements);
}
LADE_CUDA_EXPORT(add, lade_add_args)
