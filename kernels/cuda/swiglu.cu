/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SwiGLU: silu(gate) * up of rows [gate | up], from e = exp(-|gate|) as in kernels/host/swiglu.c. dx may be x's
 * memory: a thread reads both halves of what it writes first.
 *
 * Moves 3 n f elements forward, 5 n f backward. Bound: memory. 16 bytes at a time where rows keep packs aligned.
 */
#include "kernels/cuda/kernel.h"

struct sigmoid {
  float s, slope; /* slope = s (1-s) */
};

static __device__ inline sigmoid sigmoid_get(float x)
{
  float e = expf(-fabsf(x)), r = 1 / (1 + e);
  sigmoid result = {x < 0 ? e * r : r, e * r * r};
  return result;
}

template <class T, int N> static __device__ void swiglu_packs(const struct lade_swiglu_fwd_args &a)
{
  for (int64_t i = thread_get() * N; i < a.n * a.f; i += n_threads_get() * N) {
    const T *x = (const T *)a.x + i / a.f * 2 * a.f + i % a.f;
    pack<T, N> gate = *(const pack<T, N> *)x, up = *(const pack<T, N> *)(x + a.f);
    for (int j = 0; j < N; j++)
      put(&gate.x[j], get(gate.x[j]) * sigmoid_get(get(gate.x[j])).s * get(up.x[j]));
    *(pack<T, N> *)((T *)a.y + i) = gate;
  }
}

template <class T>
static __device__ void swiglu_fwd_of(const struct lade_swiglu_fwd_args &a, const struct lade_step *step)
{
  if (a.f % LADE_PACK(T) == 0)
    swiglu_packs<T, LADE_PACK(T)>(a);
  else
    swiglu_packs<T, 1>(a);
}
LADE_KERNEL_OF_DTYPES(swiglu_fwd, lade_swiglu_fwd_args)

template <class T, int N> static __device__ void swiglu_bwd_packs(const struct lade_swiglu_bwd_args &a)
{
  for (int64_t i = thread_get() * N; i < a.n * a.f; i += n_threads_get() * N) {
    int64_t at = i / a.f * 2 * a.f + i % a.f;
    pack<T, N> gate = *(const pack<T, N> *)((const T *)a.x + at), up = *(const pack<T, N> *)((const T *)a.x + at + a.f);
    pack<T, N> dy = *(const pack<T, N> *)((const T *)a.dy + i);
    for (int j = 0; j < N; j++) {
      float g = get(gate.x[j]), d = get(dy.x[j]);
      sigmoid s = sigmoid_get(g);
      put(&gate.x[j], d * get(up.x[j]) * (s.s + g * s.slope));
      put(&up.x[j], d * (g * s.s));
    }
    *(pack<T, N> *)((T *)a.dx + at) = gate;
    *(pack<T, N> *)((T *)a.dx + at + a.f) = up;
  }
}

template <class T>
static __device__ void swiglu_bwd_of(const struct lade_swiglu_bwd_args &a, const struct lade_step *step)
{
  if (a.f % LADE_PACK(T) == 0)
    swiglu_bwd_packs<T, LADE_PACK(T)>(a);
  else
    swiglu_bwd_packs<T, 1>(a);
}
LADE_KERNEL_OF_DTYPES(swiglu_bwd, lade_swiglu_bwd_args)
