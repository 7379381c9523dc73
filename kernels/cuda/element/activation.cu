/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activations of an MLP besides GELU's tanh form and SwiGLU, alone and with a gate, as
 * kernels/host/element/activation.c derives them: x s(z) from e = exp(-|z|), x Phi(x) from erfc, and the RELUs.
 *
 * Moves 2 n elements forward, 3 n backward. Bound: memory, except that erfc takes some fifty instructions, which bounds
 * 16-bit types on fast memory. The activation is the same for all threads, so its switch costs a jump.
 */
#include "kernels/cuda/element/gated.h"

#define SQRT_2_OVER_PI 0.79788456080286535588f
#define CUBIC 0.044715f
#define QUICK 1.702f
#define SLOPE_END 100.0f /* past it the slope's second term is 0 in F32, and x^3 may not be finite */
#define SQRT_HALF 0.70710678118654752440f
#define PHI_0 0.39894228040143267794f /* 1 / sqrt(2 pi) */

template <class T> static __device__ inline curve_point sigmoid_curve(float x, float inner, float z, float slope_z)
{
  const float e = exp_for(T(), -fabsf(z)), r = reciprocal_for(T(), 1 + e), s = z < 0 ? e * r : r;
  const curve_point result = {x * s, s + inner * slope_z * (e * r * r)};
  return result;
}

/* @limit: of CLAMP, and the factor of SCALE; neither has a gate. */
template <class T>
static __device__ inline curve_point curve_at(enum lade_activation activation, float x, float limit = 0)
{
  const float inner = x > SLOPE_END ? SLOPE_END : x < -SLOPE_END ? -SLOPE_END : x; /* NaN stays */
  curve_point result = {x < 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};
  switch (activation) {
  case LADE_GELU_TANH:
    return sigmoid_curve<T>(x, inner, 2 * SQRT_2_OVER_PI * (inner + CUBIC * inner * inner * inner),
                            2 * SQRT_2_OVER_PI * (1 + 3 * CUBIC * inner * inner));
  case LADE_GELU_ERF:
    result.slope = 0.5f * erfcf(-inner * SQRT_HALF);
    result.y = x * result.slope;
    result.slope += inner * PHI_0 * exp_for(T(), -0.5f * inner * inner);
    return result;
  case LADE_GELU_QUICK: return sigmoid_curve<T>(x, inner, QUICK * inner, QUICK);
  case LADE_RELU: return result;
  case LADE_CLAMP:
    result.y = x < -limit ? -limit : x > limit ? limit : x;
    result.slope = fabsf(x) <= limit ? 1.0f : 0.0f;
    return result;
  case LADE_SCALE:
    result.y = x * limit;
    result.slope = limit;
    return result;
  case LADE_RELU_SQUARED:
    result.slope = 2 * result.y;
    result.y *= result.y;
    return result;
  default: return sigmoid_curve<T>(x, inner, inner, 1.0f);
  }
}

template <class T, int N>
static __device__ void activation_packs(const struct lade_activation_fwd_args &a, int64_t first, int64_t end)
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
        numbers[j] = curve_at<T>(a.activation, get(p[turn].x[j]), a.limit).y;
      pack_put(p[turn], numbers);
    }
    packs_store((T *)a.y, p, i, end);
  }
}

template <class T>
static __device__ void activation_fwd_of(const struct lade_activation_fwd_args &a, const struct lade_step *step)
{
  int64_t whole = a.n_elements / LADE_PACK(T) * LADE_PACK(T);
  activation_packs<T, LADE_PACK(T)>(a, 0, whole);
  activation_packs<T, 1>(a, whole, a.n_elements);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(activation_fwd, lade_activation_fwd_args, 3)

template <class T, int N>
static __device__ void activation_bwd_packs(const struct lade_activation_bwd_args &a, int64_t first, int64_t end)
{
#pragma unroll 1
  for (int64_t i = first + packs_first<N>(); i < end; i += packs_step<N>()) {
    pack<T, N> p[LADE_CUDA_TURNS], d[LADE_CUDA_TURNS];
    packs_load(p, (const T *)a.x, i, end);
    packs_load(d, (const T *)a.dy, i, end);
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; j++)
        numbers[j] = get(d[turn].x[j]) * curve_at<T>(a.activation, get(p[turn].x[j]), a.limit).slope;
      pack_put(d[turn], numbers);
    }
    packs_store((T *)a.dx, d, i, end);
  }
}

template <class T>
static __device__ void activation_bwd_of(const struct lade_activation_bwd_args &a, const struct lade_step *step)
{
  int64_t whole = a.n_elements / LADE_PACK(T) * LADE_PACK(T);
  activation_bwd_packs<T, LADE_PACK(T)>(a, 0, whole);
  activation_bwd_packs<T, 1>(a, whole, a.n_elements);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(activation_bwd, lade_activation_bwd_args, 2)

template <class T, class A> static __device__ inline curve_point curve_get(T, const A &a, float x)
{
  return curve_at<T>(a.activation, x);
}

LADE_GATED_OF(gated_fwd, gated_fwd_packs)
LADE_KERNEL_OF_DTYPES_BLOCKS(gated_fwd, lade_gated_fwd_args, 3)

LADE_GATED_OF(gated_bwd, gated_bwd_packs)
LADE_KERNEL_OF_DTYPES(gated_bwd, lade_gated_bwd_args)
