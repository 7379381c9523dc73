/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of squares of each block of LADE_SUM_BLOCK elements, with the bits of every device: sixteen lanes, each
 * adding its squares in order in F64, and the lanes as a tree.
 *
 * A block of threads has one such block, so that a tensor of some millions fills a GPU. All threads bring spans of it
 * to shared memory, 16 bytes at a time and one span ahead of the sixteen that add. Elements past the end are 0, which
 * adds nothing.
 *
 * Moves n elements. Bound: memory, if a multiprocessor has enough blocks: one adds a span in the latency of 128
 * additions in F64, one after the other. So blocks and spans are small, and many of them share a multiprocessor. Small
 * tensors: the latency of 1,024 additions.
 */
#include "kernels/cuda/kernel.h"

#define LANES LADE_CUDA_SUM_LANES
#define SPAN LADE_CUDA_SUM_SPAN
#define EACH (SPAN / LADE_CUDA_SUM_THREADS) /* elements of a span that a thread loads */
#define AHEAD 16
#define BLOCKS 5 /* of twice these threads: a multiprocessor of sm_90 has ten chains of additions at once */

static_assert(SPAN % (AHEAD * LANES) == 0, "a span is whole turns of the lanes");

template <class T> struct thread_part {
  pack<T, LADE_PACK(T)> p[EACH / LADE_PACK(T)];
};

/* Return the place of element @j of this thread's pack @p in the span. */
template <class T> static __device__ inline int place_get(int p, int j)
{
  return (p * LADE_CUDA_SUM_THREADS + (int)threadIdx.x) * LADE_PACK(T) + j;
}

/* Load this thread's part of the span from @x on, of which @n elements exist. */
template <class T> static __device__ inline void part_load(struct thread_part<T> &part, const T *x, int64_t n)
{
#pragma unroll
  for (int p = 0; p < EACH / LADE_PACK(T); p++) {
    part.p[p] = {};
    if (place_get<T>(p, LADE_PACK(T) - 1) < n)
      part.p[p] = pack_load<T, LADE_PACK(T)>(x + place_get<T>(p, 0));
    else
#pragma unroll
      for (int j = 0; j < LADE_PACK(T); j++)
        if (place_get<T>(p, j) < n)
          part.p[p].x[j] = x[place_get<T>(p, j)];
  }
}

template <class T> static __device__ inline void part_put(const struct thread_part<T> &part, float *span)
{
#pragma unroll
  for (int at = 0; at < EACH; at++)
    span[place_get<T>(at / LADE_PACK(T), at % LADE_PACK(T))] = get(part.p[at / LADE_PACK(T)].x[at % LADE_PACK(T)]);
}

/*
 * Add a lane's squares of a span in order. The numbers of AHEAD additions are read and widened before the first
 * addition. So an addition waits only for the one before it.
 */
static __device__ inline void lane_add(double &sum, const float *span)
{
#pragma unroll 1
  for (int first = 0; first < SPAN; first += AHEAD * LANES) {
    double g[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      g[i] = (double)span[first + i * LANES];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      sum = fma(g[i], g[i], sum); /* the square is exact, so fusing it changes no bit */
  }
}

template <class T>
static __device__ void sum_squares_of(const struct lade_sum_squares_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, spans);
  const int64_t first = (int64_t)blockIdx.x * LADE_SUM_BLOCK;
  const int64_t n = a.n_elements - first < LADE_SUM_BLOCK ? a.n_elements - first : LADE_SUM_BLOCK;
  const T *x = (const T *)a.grad + first;
  struct thread_part<T> part;
  double sum = 0;
  part_load(part, x, n);
#pragma unroll 1
  for (int64_t at = 0; at < n; at += SPAN) {
    float *span = spans + at / SPAN % 2 * SPAN;
    part_put(part, span);
    __syncthreads(); /* this span has arrived, and the other has been added */
    if (at + SPAN < n)
      part_load(part, x + at + SPAN, n - at - SPAN);
    if (threadIdx.x < LANES)
      lane_add(sum, span + threadIdx.x);
  }
  if (threadIdx.x >= 32)
    return;
  for (int half = LANES / 2; half > 0; half /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, half, LANES);
  if (threadIdx.x == 0)
    a.partial[blockIdx.x] = sum;
}
LADE_KERNEL_OF(sum_squares, lade_sum_squares_args, f32, float, BLOCKS)
LADE_KERNEL_OF(sum_squares, lade_sum_squares_args, bf16, bf16, BLOCKS)
