/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SwiGLU: silu(gate) * up of rows [gate | up], from e = exp(-|gate|) as in kernels/host/element/swiglu.c. dx may be x's
 * memory: a thread reads both halves before it writes them.
 *
 * Moves 3 n f elements forward, 5 n f backward. Bound: memory. 16 bytes at a time if rows keep packs aligned. A block
 * has a row, or a part of it (blockIdx.y), so no thread divides to find its place.
 */
#include "kernels/cuda/kernel.h"

struct sigmoid {
  float s, slope; /* slope = s (1-s) */
};

template <class T> static __device__ inline sigmoid sigmoid_get(float x)
{
  float e = exp_for(T(), -fabsf(x)), r = reciprocal_for(T(), 1 + e);
  sigmoid result = {x < 0 ? e * r : r, e * r * r};
  return result;
}

/* Return the first of this thread's columns. */
template <int N> static __device__ inline int64_t column_first(void)
{
  return ((int64_t)blockIdx.y * LADE_CUDA_TURNS * blockDim.x + threadIdx.x) * N;
}

template <class T, int N> static __device__ void swiglu_packs(const struct lade_swiglu_fwd_args &a)
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
    for (int j = 0; j < N; j++) {
      float g = get(gate[turn].x[j]);
      y[j] = g * sigmoid_get<T>(g).s * get(up[turn].x[j]);
    }
    pack_put(gate[turn], y);
  }
  packs_store((T *)a.y + blockIdx.x * a.f, gate, i, a.f);
}

template <class T>
static __device__ void swiglu_fwd_of(const struct lade_swiglu_fwd_args &a, const struct lade_step *step)
{
  if (a.f % LADE_PACK(T) == 0)
    swiglu_packs<T, LADE_PACK(T)>(a);
  else
    swiglu_packs<T, 1>(a);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(swiglu_fwd, lade_swiglu_fwd_args, 3)

template <class T, int N> static __device__ void swiglu_bwd_packs(const struct lade_swiglu_bwd_args &a)
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
      float g = get(gate[turn].x[j]), d = get(dy[turn].x[j]);
      sigmoid s = sigmoid_get<T>(g);
      d_gate[j] = d * get(up[turn].x[j]) * (s.s + g * s.slope);
      d_up[j] = d * (g * s.s);
    }
    pack_put(gate[turn], d_gate);
    pack_put(up[turn], d_up);
  }
  packs_store(dx, gate, i, a.f);
  packs_store(dx + a.f, up, i, a.f);
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
