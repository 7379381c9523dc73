/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every CUDA kernel is made of: elements of any dtype, packs of them, reductions over a block of threads, and the
 * macros that give a kernel its C names.
 *
 * A kernel takes its arguments by value and the step block by address, (args, step), and is compiled twice: by nvcc for
 * GPUs, and by the C++ compiler through tests/standin/cuda_on_cpu.h, which runs its blocks and threads on the CPU. It
 * uses what both have: the built-in indices, __syncthreads, shuffles of whole warps, and dynamic shared memory only
 * (LADE_SHARED). Threads are a multiple of 32, and whole blocks reach every barrier.
 *
 * Arithmetic is F32, never contracted (nvcc -fmad=false): a fused multiply-add is written fmaf. Division and square
 * root are IEEE's, denormals are kept. No atomics on floats: every sum has one order.
 */
#ifndef LADE_CUDA_KERNEL_H
#define LADE_CUDA_KERNEL_H

#include <math.h>
#include <stdint.h>

#include "base/float.h"
#include "base/philox.h"
#include "kernels/cuda/phases.h"
#include "kernels/kernels.h"

/* ---- names ---- */

#define LADE_KERNEL(name, args_type) \
  extern "C" __global__ void __launch_bounds__(LADE_CUDA_THREADS) name(const __grid_constant__ struct args_type a, \
                                                                       const struct lade_step *step)

/* @name for the driver, around the template @name_of<T>. */
#define LADE_KERNEL_OF(name, args_type, suffix, T) \
  LADE_KERNEL(name##_##suffix, args_type) { name##_of<T>(a, step); } \
  LADE_CUDA_EXPORT(name##_##suffix, args_type)

#define LADE_KERNEL_OF_DTYPES(name, args_type) \
  LADE_KERNEL_OF(name, args_type, f32, float) \
  LADE_KERNEL_OF(name, args_type, bf16, bf16) \
  LADE_KERNEL_OF(name, args_type, f16, f16)

/* The block's shared memory, of the bytes that its launch says. */
#define LADE_SHARED(type, name) \
  extern __shared__ __align__(16) unsigned char lade_shared[]; \
  type *name = (type *)lade_shared

/* ---- elements ---- */

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

static __device__ inline float get(float x) { return x; }
static __device__ inline float get(bf16 x) { return lade_bf16_to_f32(x.bits); }
static __device__ inline float get(f16 x) { return lade_f16_to_f32(x.bits); }

static __device__ inline void put(float *at, float value) { *at = value; }
static __device__ inline void put(bf16 *at, float value) { at->bits = lade_f32_to_bf16(value); }
static __device__ inline void put(f16 *at, float value) { at->bits = lade_f32_to_f16(value); }

/* A value as it is once it was stored as T. */
template <class T> static __device__ inline float stored(float value)
{
  T x;
  put(&x, value);
  return get(x);
}

/* x[i] of a tensor whose dtype is an argument. */
static __device__ inline float get_any(enum lade_dtype dtype, const void *x, int64_t i)
{
  return dtype == LADE_F32    ? ((const float *)x)[i]
         : dtype == LADE_BF16 ? get(((const bf16 *)x)[i])
                              : get(((const f16 *)x)[i]);
}

static __device__ inline void put_any(enum lade_dtype dtype, void *x, int64_t i, float value)
{
  if (dtype == LADE_F32)
    ((float *)x)[i] = value;
  else if (dtype == LADE_BF16)
    put((bf16 *)x + i, value);
  else
    put((f16 *)x + i, value);
}

/* N neighbours, moved by one instruction where they fill 16 bytes. */
template <class T, int N> struct __align__(sizeof(T) * N) pack {
  T x[N];
};
#define LADE_PACK(T) ((int)(16 / sizeof(T)))

/* The number of this thread in the grid, and of threads. */
static __device__ inline int64_t thread_get(void)
{
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline int64_t n_threads_get(void)
{
  return (int64_t)gridDim.x * blockDim.x;
}

/* ---- dropout ---- */

static __device__ inline float drop_value(const struct lade_step *step, const struct lade_drop &drop, int64_t i,
                                          float value)
{
  if (drop.drop_below == 0)
    return value;
  uint32_t word = lade_philox_word(step->seed, step->step, drop.stream, drop.first_element + (uint64_t)i);
  return word >= drop.drop_below ? value * drop.scale : 0.0f;
}

/* ---- reductions, in an order that the block's size alone decides ---- */

static __device__ inline float warp_sum(float value)
{
  for (int half = 16; half > 0; half /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, half);
  return value;
}

static __device__ inline float warp_max(float value)
{
  for (int half = 16; half > 0; half /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, half));
  return value;
}

/* The sum over all threads of the block, known to all of them. @room: a float for each warp. */
static __device__ inline float block_sum(float value, float *room)
{
  int warp = (int)threadIdx.x / 32, n_warps = (int)blockDim.x / 32;
  value = warp_sum(value);
  __syncthreads(); /* of the last use of the room */
  if (threadIdx.x % 32 == 0)
    room[warp] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < n_warps; i++)
    sum += room[i];
  return sum;
}

static __device__ inline float block_max(float value, float *room)
{
  int warp = (int)threadIdx.x / 32, n_warps = (int)blockDim.x / 32;
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    room[warp] = value;
  __syncthreads();
  float max = room[0];
  for (int i = 1; i < n_warps; i++)
    max = fmaxf(max, room[i]);
  return max;
}

#endif
