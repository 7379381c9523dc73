/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activations of an MLP besides GELU's tanh form and SwiGLU, alone and with a gate, as
 * kernels/host/element/activation.c derives them: x s(z) from e = exp(-|z|), x Phi(x) from erfc, and the RELUs.
 *
 * Moves 2 n elements forward, 3 n backward; with a gate 3 n f and 5 n f. Bound: memory, except that erfc takes some
 * fifty instructions, which bounds 16-bit types on fast memory. The activation is the same for all threads, so its
 * switch costs a jump. dx may be x's memory with a gate: a thread reads both halves before it writes them.
 */
#include "kernels/cuda/kernel.h"

#define SQRT_2_OVER_PI 0.79788456080286535588f
#define CUBIC 0.044715f
#define QUICK 1.702f
#define SLOPE_END 100.0f /* past it the slope's second term is 0 in F32, and x^3 may not be finite */
#define SQRT_HALF 0.70710678118654752440f
#define PHI_0 0.39894228040143267794f /* 1 / sqrt(2 pi) */

struct curve_point {
  float y, slope;
};

template <class T> static __device__ inline curve_point sigmoid_curve(float x, float inner, float z, float slope_z)
{
  const float e = exp_for(T(), -fabsf(z)), r = reciprocal_for(T(), 1 + e), s = z < 0 ? e * r : r;
  const curve_point result = {x * s, s + inner * slope_z * (e * r * r)};
  return result;
}

/* @limit: of CLAMP, and the factor of SCALE; neither has a gate. */
template <class T>
static __device__ inline curve_point curve_get(enum lade_activation activation, float x, float limit = 0)
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
        numbers[j] = curve_get<T>(a.activation, get(p[turn].x[j]), a.limit).y;
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
        numbers[j] = get(d[turn].x[j]) * curve_get<T>(a.activation, get(p[turn].x[j]), a.limit).slope;
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

/* Return the first of this thread's columns. */
template <int N> static __device__ inline int64_t column_first(void)
{
  return ((int64_t)blockIdx.y * LADE_CUDA_TURNS * blockDim.x + threadIdx.x) * N;
}

template <class T, int N> static __device__ void gated_packs(const struct lade_gated_fwd_args &a)
{
  const T *x = (const T *)a.x + blockIdx.x * 2 * a.f;
  int64_t i = column_first<N>();
  pack<T, N> gate[LADE_CUDA_TURNS], up[LADE_CUDA_TURNS];
  if (i >= a.f)
    return;
  packs_load(gate, x, i, a.f);
  packs_load(up, x + a.f, i, a.f);
#pragma unroll
  for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
    float y[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      y[j] = curve_get<T>(a.activation, get(gate[turn].x[j])).y * get(up[turn].x[j]);
    pack_put(gate[turn], y);
  }
  packs_store((T *)a.y + blockIdx.x * a.f, gate, i, a.f);
}

template <class T>
static __device__ void gated_fwd_of(const struct lade_gated_fwd_args &a, const struct lade_step *step)
{
  if (a.f % LADE_PACK(T) == 0)
    gated_packs<T, LADE_PACK(T)>(a);
  else
    gated_packs<T, 1>(a);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(gated_fwd, lade_gated_fwd_args, 3)

template <class T, int N> static __device__ void gated_bwd_packs(const struct lade_gated_bwd_args &a)
{
  const T *x = (const T *)a.x + blockIdx.x * 2 * a.f;
  T *dx = (T *)a.dx + blockIdx.x * 2 * a.f;
  int64_t i = column_first<N>();
  pack<T, N> gate[LADE_CUDA_TURNS], up[LADE_CUDA_TURNS], dy[LADE_CUDA_TURNS];
  if (i >= a.f)
    return;
  packs_load(gate, x, i, a.f);
  packs_load(up, x + a.f, i, a.f);
  packs_load(dy, (const T *)a.dy + blockIdx.x * a.f, i, a.f);
#pragma unroll
  for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
    float d_gate[N], d_up[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
      const curve_point c = curve_get<T>(a.activation, get(gate[turn].x[j]));
      const float d = get(dy[turn].x[j]);
      d_gate[j] = d * get(up[turn].x[j]) * c.slope;
      d_up[j] = d * c.y;
    }
    pack_put(gate[turn], d_gate);
    pack_put(up[turn], d_up);
  }
  packs_store(dx, gate, i, a.f);
  packs_store(dx + a.f, up, i, a.f);
}

template <class T>
static __device__ void gated_bwd_of(const struct lade_gated_bwd_args &a, const struct lade_step *step)
{
  if (a.f % LADE_PACK(T) == 0)
    gated_bwd_packs<T, LADE_PACK(T)>(a);
  else
    gated_bwd_packs<T, 1>(a);
}
LADE_KERNEL_OF_DTYPES(gated_bwd, lade_gated_bwd_args)
