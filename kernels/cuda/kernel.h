/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common parts of all CUDA kernels: elements of any dtype, packs of them, reductions over a block of threads, and the
 * macros that give a kernel its C names.
 *
 * A kernel takes its arguments by value and the step block by address, (args, step), and is compiled twice: by nvcc for
 * GPUs, and by the C++ compiler through tests/fakes/cuda_on_cpu/cuda_on_cpu.h, which runs its blocks and threads on the
 * CPU. It uses only features of both: the built-in indices, __syncthreads, shuffles of whole warps, and dynamic shared
 * memory (LADE_SHARED). Threads are a multiple of 32, and whole blocks reach every barrier.
 *
 * Arithmetic is F32, never contracted (nvcc -fmad=false): a fused multiply-add is written fmaf. Division and square
 * root are IEEE's, denormals are kept. No atomics on floats: every sum has one order.
 */
#ifndef LADE_CUDA_KERNEL_H
#define LADE_CUDA_KERNEL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/float.h"
#include "base/philox.h"
#include "kernels/cuda/phases.h"
#include "kernels/kernels.h"

/* ---- names ---- */

/* THREADS: the most of a block; BLOCKS: those of so many threads for which a multiprocessor must have registers. */
#define LADE_KERNEL_SIZED(name, args_type, THREADS, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
    name(const __grid_constant__ struct args_type a, const struct lade_step *step)
#define LADE_KERNEL_BLOCKS(name, args_type, BLOCKS) LADE_KERNEL_SIZED(name, args_type, LADE_CUDA_THREADS, BLOCKS)
#define LADE_KERNEL(name, args_type) LADE_KERNEL_BLOCKS(name, args_type, 1)

/* Define @name for the driver, around the template @name_of<T>. */
#define LADE_KERNEL_OF_SIZED(name, args_type, suffix, T, THREADS, BLOCKS) \
  LADE_KERNEL_SIZED(name##_##suffix, args_type, THREADS, BLOCKS) { name##_of<T>(a, step); } \
  LADE_CUDA_EXPORT(name##_##suffix, args_type)
#define LADE_KERNEL_OF(name, args_type, suffix, T, BLOCKS) \
  LADE_KERNEL_OF_SIZED(name, args_type, suffix, T, LADE_CUDA_THREADS, BLOCKS)

#define LADE_KERNEL_OF_DTYPES_SIZED(name, args_type, THREADS, BLOCKS) \
  LADE_KERNEL_OF_SIZED(name, args_type, f32, float, THREADS, BLOCKS) \
  LADE_KERNEL_OF_SIZED(name, args_type, bf16, bf16, THREADS, BLOCKS) \
  LADE_KERNEL_OF_SIZED(name, args_type, f16, f16, THREADS, BLOCKS)
#define LADE_KERNEL_OF_DTYPES_BLOCKS(name, args_type, BLOCKS) \
  LADE_KERNEL_OF_DTYPES_SIZED(name, args_type, LADE_CUDA_THREADS, BLOCKS)
#define LADE_KERNEL_OF_DTYPES(name, args_type) LADE_KERNEL_OF_DTYPES_BLOCKS(name, args_type, 1)

/* Declare the block's shared memory, of the bytes in its launch. */
#define LADE_SHARED(type, name) \
  extern __shared__ __align__(16) unsigned char lade_shared[]; \
  type *name = (type *)lade_shared

/* ---- elements ---- */

#define LOG2_E 1.44269504088896341f

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

static __device__ inline float get(float x) { return x; }
static __device__ inline float get(bf16 x) { return ptx_f32_of_bf16(x.bits); }
static __device__ inline float get(f16 x) { return ptx_f32_of_f16(x.bits); }

/* Pack two neighbours into one word. The instruction has the bits of base/float.h, except for the payload of a NaN. */
static __device__ inline uint32_t pair_make(bf16, float low, float high) { return ptx_pair_bf16(low, high); }
static __device__ inline uint32_t pair_make(f16, float low, float high) { return ptx_pair_f16(low, high); }

static __device__ inline void put(float *at, float value) { *at = value; }
static __device__ inline void put(bf16 *at, float value) { at->bits = (uint16_t)pair_make(bf16(), value, 0); }
static __device__ inline void put(f16 *at, float value) { at->bits = (uint16_t)pair_make(f16(), value, 0); }

/*
 * Return e^x for results that are rounded to 16 bits: they need no more accuracy, and this costs a third. The product
 * with log2 e is rounded, so e^x is within 2^-22 of its value near zero and within 2^-17 where |x| is near 80.
 */
static __device__ inline float exp_for(float, float x) { return expf(x); }
static __device__ inline float exp_for(bf16, float x) { return ptx_exp2(x * LOG2_E); }
static __device__ inline float exp_for(f16, float x) { return ptx_exp2(x * LOG2_E); }
static __device__ inline float reciprocal_for(float, float x) { return 1 / x; }
static __device__ inline float reciprocal_for(bf16, float x) { return ptx_reciprocal(x); }
static __device__ inline float reciprocal_for(f16, float x) { return ptx_reciprocal(x); }

/* Return a value as it reads after a store as T. */
template <class T> static __device__ inline float stored(float value)
{
  T x;
  put(&x, value);
  return get(x);
}

/* Return x[i] of a tensor whose dtype is an argument. */
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

template <class T, int N> static __device__ inline pack<T, N> pack_load(const T *from)
{
  if (sizeof(pack<T, N>) != 16)
    return *(const pack<T, N> *)from;
  pack<T, N> p;
  uint32_t words[4];
  ptx_load_16(words, from);
  memcpy(&p, words, sizeof(p) < sizeof(words) ? sizeof(p) : sizeof(words));
  return p;
}

template <class T, int N> static __device__ inline void pack_store(T *to, const pack<T, N> &p)
{
  uint32_t words[4];
  if (sizeof(p) != sizeof(words)) {
    *(pack<T, N> *)to = p;
    return;
  }
  memcpy(words, &p, sizeof(p) < sizeof(words) ? sizeof(p) : sizeof(words));
  ptx_store_16(to, words);
}

template <int N> static __device__ inline void pack_put(pack<float, N> &to, const float (&x)[N])
{
#pragma unroll
  for (int j = 0; j < N; j++)
    to.x[j] = x[j];
}

template <class T, int N> static __device__ inline void pack_put(pack<T, N> &to, const float (&x)[N])
{
#pragma unroll
  for (int j = 0; j + 1 < N; j += 2) {
    uint32_t pair = pair_make(T(), x[j], x[j + 1]);
    memcpy(&to.x[j], &pair, sizeof(pair));
  }
  if (N % 2)
    put(&to.x[N - 1], x[N - 1]);
}

template <class T, int N> static __device__ inline void numbers_put(T *to, const float (&x)[N])
{
  pack<T, N> p;
  pack_put(p, x);
  pack_store(to, p);
}

/*
 * Return a thread's first pack in an elementwise kernel. A thread has LADE_CUDA_TURNS packs at a time, a block's width
 * apart, and loads all of them before it waits for one. Bytes in flight hide memory's latency better than threads do.
 */
template <int N> static __device__ inline int64_t packs_first(void)
{
  return ((int64_t)blockIdx.x * LADE_CUDA_TURNS * blockDim.x + threadIdx.x) * N;
}

template <int N> static __device__ inline int64_t packs_step(void)
{
  return (int64_t)gridDim.x * LADE_CUDA_TURNS * blockDim.x * N;
}

/* Load from @i on, which is before @end; places past it read the first again. */
template <class T, int N>
static __device__ inline void packs_load(pack<T, N> (&p)[LADE_CUDA_TURNS], const T *from, int64_t i, int64_t end)
{
#pragma unroll
  for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
    int64_t at = i + (int64_t)turn * blockDim.x * N;
    p[turn] = pack_load<T, N>(from + (at < end ? at : i));
  }
}

template <class T, int N>
static __device__ inline void packs_store(T *to, const pack<T, N> (&p)[LADE_CUDA_TURNS], int64_t i, int64_t end)
{
#pragma unroll
  for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
    int64_t at = i + (int64_t)turn * blockDim.x * N;
    if (at < end)
      pack_store(to + at, p[turn]);
  }
}

/* Return the number of this thread in the grid, and of threads. */
static __device__ inline int64_t thread_get(void)
{
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline int64_t n_threads_get(void)
{
  return (int64_t)gridDim.x * blockDim.x;
}

/* ---- dropout ---- */

/* Return the words of N elements from @i on. The first begins a draw, except in a part of a tensor. */
template <int N>
static __device__ inline void drop_words(uint32_t (&words)[N], const struct lade_step *step,
                                         const struct lade_drop &drop, int64_t i)
{
  constexpr int DRAWS = (N + 6) / 4;
  const uint64_t element = drop.first_element + (uint64_t)i;
  const int ahead = (int)(element % 4);
  uint32_t all[4 * DRAWS] = {};
#pragma unroll
  for (int d = 0; d < DRAWS; d++) {
    struct lade_philox draw = {};
    if (4 * d < N + ahead)
      draw = lade_philox_draw(step->seed, step->step, drop.stream, element / 4 + d);
#pragma unroll
    for (int k = 0; k < 4; k++)
      all[4 * d + k] = draw.word[k];
  }
#pragma unroll
  for (int far = 1; far <= 2; far++)
#pragma unroll
    for (int k = 0; k + far < 4 * DRAWS; k++)
      all[k] = ahead & far ? all[k + far] : all[k];
#pragma unroll
  for (int j = 0; j < N; j++)
    words[j] = all[j];
}

/* Apply dropout to x[N], the elements from @i on: dropped ones become 0. */
template <int N>
static __device__ inline void drop_numbers(float (&x)[N], const struct lade_step *step, const struct lade_drop &drop,
                                           int64_t i)
{
  uint32_t words[N];
  if (drop.drop_below == 0)
    return;
  drop_words(words, step, drop, i);
#pragma unroll
  for (int j = 0; j < N; j++)
    x[j] = words[j] >= drop.drop_below ? x[j] * drop.scale : 0.0f;
}

static __device__ inline float drop_value(const struct lade_step *step, const struct lade_drop &drop, int64_t i,
                                          float value)
{
  float x[1] = {value};
  drop_numbers(x, step, drop, i);
  return x[0];
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

/*
 * Sum over all threads of the block; all of them get the sums. @room: N floats for each warp. A caller's loop needs
 * nearly all registers, so no value here must be one that the compiler keeps across calls.
 */
template <int N> static __device__ inline void block_sums(float (&values)[N], float *room)
{
  const int thread = ptx_thread_get(), warp = thread / 32, n_warps = (int)blockDim.x / 32;
#pragma unroll
  for (int i = 0; i < N; i++)
    values[i] = warp_sum(values[i]);
  if (n_warps == 1)
    return;
  __syncthreads(); /* after the last use of the room */
#pragma unroll
  for (int i = 0; i < N && thread % 32 == 0; i++)
    room[warp * N + i] = values[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; i++)
    values[i] = room[i];
#pragma unroll
  for (int other = 1; other < LADE_CUDA_THREADS / 32; other++)
    if (other < n_warps)
#pragma unroll
      for (int i = 0; i < N; i++)
        values[i] += room[other * N + i];
}

/*
 * Sum N values, a power of two, over the warp; lane i gets sum i / (32 / N). That takes fewer shuffles than N sums that
 * all lanes get.
 */
template <int N> static __device__ inline float warp_few_sums(float (&values)[N])
{
  const int lane = ptx_thread_get() % 32;
#pragma unroll
  for (int width = N / 2, bit = 16; width > 0; width /= 2, bit /= 2)
#pragma unroll
    for (int i = 0; i < width; i++) {
      const float given = lane & bit ? values[i] : values[i + width];
      values[i] = (lane & bit ? values[i + width] : values[i]) + __shfl_xor_sync(0xffffffffu, given, bit);
    }
#pragma unroll
  for (int bit = 16 / N; bit > 0; bit /= 2)
    values[0] += __shfl_xor_sync(0xffffffffu, values[0], bit);
  return values[0];
}

/*
 * Sum N values over a block of at most WARPS warps as block_sums does, with one barrier. The @room, N floats for each
 * of them, is free again after the block's next barrier.
 */
template <int WARPS = LADE_CUDA_THREADS / 32, int N>
static __device__ inline void block_few_sums(float (&values)[N], float *room)
{
  constexpr int PART = 32 / N;
  static_assert(N * WARPS <= 32, "a warp has the sums of all warps");
  const int thread = ptx_thread_get(), lane = thread % 32;
  const float own = warp_few_sums(values);
  if (lane % PART == 0)
    room[thread / 32 * N + lane / PART] = own;
  __syncthreads();
  float sum = lane < (int)blockDim.x / 32 * N ? room[lane] : 0.0f;
#pragma unroll
  for (int bit = N; bit < WARPS * N; bit *= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, bit);
#pragma unroll
  for (int i = 0; i < N; i++)
    values[i] = __shfl_sync(0xffffffffu, sum, i);
}

static __device__ inline float block_sum(float value, float *room)
{
  float values[1] = {value};
  block_sums(values, room);
  return values[0];
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
#pragma unroll
  for (int i = 1; i < LADE_CUDA_THREADS / 32; i++)
    if (i < n_warps)
      max = fmaxf(max, room[i]);
  return max;
}

#endif
