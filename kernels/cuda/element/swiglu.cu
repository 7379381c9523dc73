/* SPDX-License-Identifier: Apache-2.0 */
/* SwiGLU: silu(gate) * up of rows [gate | up], from e = exp(-|gate|) as in kernels/host/element/swiglu.c. */
#include "kernels/cuda/element/gated.h"

template <class T, class A> static __device__ inline curve_point curve_get(T, const A &, float x)
{
  const float e = exp_for(T(), -fabsf(x)), r = reciprocal_for(T(), 1 + e), s = x < 0 ? e * r : r;
  const curve_point result = {x * s, s + x * (e * r * r)};
  return result;
}

LADE_GATED_OF(swiglu_fwd, gated_fwd_packs)
LADE_KERNEL_OF_DTYPES_BLOCKS(swiglu_fwd, lade_swiglu_fwd_args, 3)

LADE_GATED_OF(swiglu_bwd, gated_bwd_packs)
LADE_KERNEL_OF_DTYPES(swiglu_bwd, lade_swiglu_bwd_args)
