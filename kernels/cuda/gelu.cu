/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GELU in its tanh form, as kernels/host/gelu.c derives it: y = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3),
 * from e = exp(-2|u|), which neither overflows nor cancels.
 *
 * Moves 2 n elements forward, 3 n backward. Bound: memory; some 20 operations an element stay below it on every GPU
 * that is supported. A thread takes 16 bytes at a time, the threads of the grid in turns.
 */
#include "kernels/cuda/kernel.h"

#define SQRT_2_OVER_PI 0.79788456080286535588f
#define CUBIC 0.044715f
#define SLOPE_END 100.0f /* past it the slope's second term is 0 in F32, and x^3 may not be finite */

static __device__ inline float gelu(float x)
{
  float u = SQRT_2_OVER_PI * (x + CUBIC * x * x * x);
  float e = expf(-2 * fabsf(u));
  return x * ((u < 0 ? e : 1.0f) / (1 + e));
}

static __device__ inline float gelu_slope(float x)
{
  x = x > SLOPE_END ? SLOPE_END : x < -SLOPE_END ? -SLOPE_END : x; /* NaN stays */
  float u = SQRT_2_OVER_PI * (x + CUBIC * x * x * x), slope_u = SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
  float e = expf(-2 * fabsf(u)), r = 1 / (1 + e), s = u < 0 ? e * r : r;
  return s + 2 * x * slope_u * (e * r * r);
}

template <class T, int N> static __device__ void gelu_packs(const T *x, T *y, int64_t first, int64_t end)
{
  for (int64_t i = first + thread_get() * N; i < end; i += n_threads_get() * N) {
    pack<T, N> p = *(const pack<T, N> *)(x + i);
    for (int j = 0; j < N; j++)
      put(&p.x[j], gelu(get(p.x[j])));
    *(pack<T, N> *)(y + i) = p;
  }
}

template <class T> static __device__ void gelu_fwd_of(const struct lade_gelu_fwd_args &a, const struct lade_step *step)
{
  int64_t whole = a.n_elements / LADE_PACK(T) * LADE_PACK(T);
  gelu_packs<T, LADE_PACK(T)>((const T *)a.x, (T *)a.y, 0, whole);
  gelu_packs<T, 1>((const T *)a.x, (T *)a.y, whole, a.n_elements);
}
LADE_KERNEL_OF_DTYPES(gelu_fwd, lade_gelu_fwd_args)

template <class T, int N>
static __device__ void gelu_bwd_packs(const T *x, const T *dy, T *dx, int64_t first, int64_t end)
{
  for (int64_t i = first + thread_get() * N; i < end; i += n_threads_get() * N) {
    pack<T, N> p = *(const pack<T, N> *)(x + i), d = *(const pack<T, N> *)(dy + i);
    for (int j = 0; j < N; j++)
      put(&d.x[j], get(d.x[j]) * gelu_slope(get(p.x[j])));
    *(pack<T, N> *)(dx + i) = d;
  }
}

template <class T> static __device__ void gelu_bwd_of(const struct lade_gelu_bwd_args &a, const struct lade_step *step)
{
  int64_t whole = a.n_elements / LADE_PACK(T) * LADE_PACK(T);
  gelu_bwd_packs<T, LADE_PACK(T)>((const T *)a.x, (const T *)a.dy, (T *)a.dx, 0, whole);
  gelu_bwd_packs<T, 1>((const T *)a.x, (const T *)a.dy, (T *)a.dx, whole, a.n_elements);
}
LADE_KERNEL_OF_DTYPES(gelu_bwd, lade_gelu_bwd_args)
