/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y = x + y in F32: add a gradient that was copied in.
 *
 * Moves 3 n F32 numbers. Bound: memory.
 */
#include "kernels/cuda/kernel.h"

template <int N> static __device__ void add_packs(const struct lade_add_args &a, int64_t first, int64_t end)
{
#pragma unroll 1
  for (int64_t i = first + packs_first<N>(); i < end; i += packs_step<N>()) {
    pack<float, N> x[LADE_CUDA_TURNS], y[LADE_CUDA_TURNS];
    packs_load(x, a.x, i, end);
    packs_load(y, (const float *)a.y, i, end);
#pragma unroll
    for (int at = 0; at < LADE_CUDA_TURNS * N; at++)
      y[at / N].x[at % N] = x[at / N].x[at % N] + y[at / N].x[at % N];
    packs_store(a.y, y, i, end);
  }
}

LADE_KERNEL(add, lade_add_args)
{
  int64_t whole = a.n_elements / LADE_PACK(float) * LADE_PACK(float);
  add_packs<LADE_PACK(float)>(a, 0, whole);
  add_packs<1>(a, whole, a.n_elements);
}
LADE_CUDA_EXPORT(add, lade_add_args)
