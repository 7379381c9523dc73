/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y = x in another type, rounded to nearest even: the bits of base/float.h, except for the payload of a NaN.
 *
 * Moves n elements of each type. Bound: memory. A kernel is for one type to read; the type to write is the same for all
 * threads.
 */
#include "kernels/cuda/kernel.h"

template <class From, class To, int N>
static __device__ void packs_convert(const From *x, To *y, int64_t first, int64_t end)
{
#pragma unroll 1
  for (int64_t i = first + packs_first<N>(); i < end; i += packs_step<N>()) {
    pack<From, N> from[LADE_CUDA_TURNS];
    pack<To, N> to[LADE_CUDA_TURNS];
    packs_load(from, x, i, end);
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; j++)
        numbers[j] = get(from[turn].x[j]);
      pack_put(to[turn], numbers);
    }
    packs_store(y, to, i, end);
  }
}

/* Convert packs that fill 16 bytes of the wider type. */
template <class From, class To> static __device__ void span_convert(const struct lade_cast_args &a)
{
  constexpr int N = LADE_PACK(From) < LADE_PACK(To) ? LADE_PACK(From) : LADE_PACK(To);
  int64_t whole = a.n_elements / N * N;
  packs_convert<From, To, N>((const From *)a.x, (To *)a.y, 0, whole);
  packs_convert<From, To, 1>((const From *)a.x, (To *)a.y, whole, a.n_elements);
}

template <class From> static __device__ void cast_of(const struct lade_cast_args &a, const struct lade_step *step)
{
  if (a.to == LADE_F32)
    span_convert<From, float>(a);
  else if (a.to == LADE_BF16)
    span_convert<From, bf16>(a);
  else
    span_convert<From, f16>(a);
}
LADE_KERNEL_OF_DTYPES(cast, lade_cast_args)
