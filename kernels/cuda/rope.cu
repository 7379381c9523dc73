/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary embedding, half-split, over a table of cosines and sines [T, D/2] that a first kernel makes in double, as
 * kernels/host/rope.c does; the formula of Llama 3.1's frequencies stands there.
 *
 * Moves 2 n rows of qkv (in place: of q and k alone), and the table once, T D F32 numbers. Bound: memory.
 */
#include "kernels/cuda/kernel.h"

#define TWO_PI 6.28318530717958647693

static __device__ inline double frequency_get(const struct lade_rope_args &a, int64_t j)
{
  double frequency = pow((double)a.base, -2.0 * (double)j / (double)a.head_dim);
  if (!(a.scale_factor > 0))
    return frequency;
  double low = (double)a.low_freq_factor, high = (double)a.high_freq_factor;
  double turns = (double)a.original_context * frequency / TWO_PI;
  if (turns < low)
    return frequency / (double)a.scale_factor;
  if (turns > high)
    return frequency;
  double smooth = (turns - low) / (high - low);
  return (1 - smooth) * frequency / (double)a.scale_factor + smooth * frequency;
}

LADE_KERNEL(rope_table, lade_rope_args)
{
  float *cosines = (float *)a.workspace, *sines = cosines + a.time * (a.head_dim / 2);
  int64_t half = a.head_dim / 2;
  for (int64_t i = thread_get(); i < a.time * half; i += n_threads_get()) {
    double angle = (double)(i / half) * frequency_get(a, i % half);
    cosines[i] = (float)cos(angle);
    sines[i] = (float)(a.is_inverse ? -sin(angle) : sin(angle));
  }
}
LADE_CUDA_EXPORT(rope_table, lade_rope_args)

/* A block has a row; its pairs are numbered over the query and key heads, and values are copied unless in place. */
template <class T> static __device__ void rope_of(const struct lade_rope_args &a, const struct lade_step *step)
{
  int64_t half = a.head_dim / 2, row_elements = (a.heads + 2 * a.key_heads) * a.head_dim;
  int64_t row = blockIdx.x, n_turned = (a.heads + a.key_heads) * half;
  const float *cosines = (const float *)a.workspace + row % a.time * half, *sines = cosines + a.time * half;
  const T *x = (const T *)a.x + row * row_elements;
  T *y = (T *)a.y + row * row_elements;
  for (int64_t i = threadIdx.x; i < n_turned; i += blockDim.x) {
    int64_t j = i % half, at = i / half * a.head_dim + j;
    float c = cosines[j], s = sines[j], x0 = get(x[at]), x1 = get(x[at + half]);
    put(y + at, x0 * c - x1 * s);
    put(y + at + half, x1 * c + x0 * s);
  }
  for (int64_t i = 2 * n_turned + threadIdx.x; i < row_elements && x != y; i += blockDim.x)
    y[i] = x[i];
}
LADE_KERNEL_OF_DTYPES(rope, lade_rope_args)
