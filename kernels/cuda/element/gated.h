/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gated activations of rows [gate | up]: y = f(gate) up, and its gradients. A kernel's file gives the overload
 * curve_get(T(), a, x) for its arguments @a: the activation and its slope at x.
 *
 * Moves 3 n f elements forward, 5 n f backward. Bound: memory. 16 bytes at a time if rows keep packs aligned. A block
 * has a row, or a part of it (blockIdx.y), so no thread divides to find its place. dx may be x's memory: a thread reads
 * both halves before it writes them.
 */
#ifndef LADE_CUDA_GATED_H
#define LADE_CUDA_GATED_H

#include "kernels/cuda/kernel.h"

struct curve_point {
  float y, slope;
};

/* Return the first of this thread's columns. */
template <int N> static __device__ inline int64_t column_first(void)
{
  return ((int64_t)blockIdx.y * LADE_CUDA_TURNS * blockDim.x + threadIdx.x) * N;
}

template <class T, int N, class A> static __device__ void gated_fwd_packs(const A &a)
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
      y[j] = curve_get(T(), a, get(gate[turn].x[j])).y * get(up[turn].x[j]);
    pack_put(gate[turn], y);
  }
  packs_store((T *)a.y + blockIdx.x * a.f, gate, i, a.f);
}

template <class T, int N, class A> static __device__ void gated_bwd_packs(const A &a)
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
      const curve_point c = curve_get(T(), a, get(gate[turn].x[j]));
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

/* Define the kernel @name over lade_<name>_args, by @packs: gated_fwd_packs or gated_bwd_packs. */
#define LADE_GATED_OF(name, packs) \
  template <class T> \
  static __device__ void name##_of(const struct lade_##name##_args &a, const struct lade_step *step) \
  { \
    if (a.f % LADE_PACK(T) == 0) \
      packs<T, LADE_PACK(T)>(a); \
    else \
      packs<T, 1>(a); \
  }

#endif
