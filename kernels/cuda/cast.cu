/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y = x in another type, rounded to nearest even, with the very integer arithmetic of base/float.h.
 *
 * Moves n elements of each type. Bound: memory. A kernel is for one type to read; the type to write is the same for all
 * threads.
 */
#include "kernels/cuda/kernel.h"

template <class From, class To> static __device__ void span_convert(const struct lade_cast_args &a)
{
  for (int64_t i = thread_get(); i < a.n_elements; i += n_threads_get())
    put((To *)a.y + i, get(((const From *)a.x)[i]));
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
