/* SPDX-License-Identifier: Apache-2.0 */
/* GELU in its tanh form, as gelu.cu describes it. */
#ifndef LADE_CUDA_GELU_H
#define LADE_CUDA_GELU_H

#include "kernels/cuda/kernel.h"

#define SQRT_2_OVER_PI 0.79788456080286535588f
#define CUBIC 0.044715f

/* Return GELU of @x, as accurate as results in T need it. */
template <class T> static __device__ inline float gelu(float x)
{
  float u = SQRT_2_OVER_PI * (x + CUBIC * x * x * x);
  float e = exp_for(T(), -2 * fabsf(u));
  return x * ((u < 0 ? e : 1.0f) * reciprocal_for(T(), 1 + e));
}

#endif
