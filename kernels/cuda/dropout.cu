/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout with the mask drawn anew wherever it is needed: the same Philox words as on every device, so the same bits.
 *
 * Moves 2 n elements. Bound: of 16 bits on fast memory arithmetic, ten rounds of Philox for four elements. A tensor
 * whose first element does not begin a draw, which is rare, is drawn for each element by itself.
 */
#include "kernels/cuda/kernel.h"

template <class T, int N>
static __device__ void dropout_packs(const struct lade_dropout_args &a, const struct lade_step *step, int64_t first,
                                     int64_t end)
{
#pragma unroll 1
  for (int64_t i = first + packs_first<N>(); i < end; i += packs_step<N>()) {
    pack<T, N> p[LADE_CUDA_TURNS];
    packs_load(p, (const T *)a.x, i, end);
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; j++)
        numbers[j] = get(p[turn].x[j]);
      drop_numbers(numbers, step, a.drop, i + (int64_t)turn * blockDim.x * N);
      pack_put(p[turn], numbers);
    }
    packs_store((T *)a.y, p, i, end);
  }
}

template <class T>
static __device__ void dropout_of(const struct lade_dropout_args &a, const struct lade_step *step)
{
  int64_t whole = a.n_elements / LADE_PACK(T) * LADE_PACK(T);
  dropout_packs<T, LADE_PACK(T)>(a, step, 0, whole);
  dropout_packs<T, 1>(a, step, whole, a.n_elements);
}
LADE_KERNEL_OF_DTYPES(dropout, lade_dropout_args)
