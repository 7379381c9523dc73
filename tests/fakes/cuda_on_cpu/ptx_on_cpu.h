/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instructions of kernels/cuda/ptx.h on a CPU, by the PTX ISA: which lane holds which elements, and when a copy has
 * arrived. A fragment is assembled from all 32 lanes, so a wrong index in a kernel gives a wrong number here. A copy
 * that was not waited for does so, too (cuda_on_cpu_copy). Lanes leave the addresses of their operands and meet again
 * once all have read them. A product's sum is in rising order of k; the hardware's order may differ.
 */
#ifndef LADE_TEST_PTX_ON_CPU_H
#define LADE_TEST_PTX_ON_CPU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "base/float.h"
#include "cuda_on_cpu_run.h"

static inline int ptx_thread_get(void)
{
  return (int)cuda_on_cpu_thread.x;
}

static inline void ptx_load_16(uint32_t (&x)[4], const void *from)
{
  LADE_ASSERT((uintptr_t)from % 16 == 0);
  memcpy(x, from, sizeof(x));
}

/* Read a byte, because an address outside of tensors is wrong. */
static inline void ptx_prefetch(const void *at)
{
  (void)*(const volatile unsigned char *)at;
}

static inline void ptx_store_16(void *to, const uint32_t (&x)[4])
{
  LADE_ASSERT((uintptr_t)to % 16 == 0);
  memcpy(to, x, sizeof(x));
}

static inline void ptx_words_forget(uint32_t (&x)[4]) {}

static inline void ptx_copy_16(void *to, const void *from, bool is_there)
{
  cuda_on_cpu_copy(to, is_there ? from : NULL, 16);
}

static inline void ptx_copy_4(void *to, const void *from, bool is_there)
{
  cuda_on_cpu_copy(to, is_there ? from : NULL, 4);
}

static inline void ptx_copies_wait(void)
{
  cuda_on_cpu_copies_wait();
}

static inline void ptx_barrier_arrive(int barrier, int n_threads)
{
  cuda_on_cpu_barrier_arrive(barrier, n_threads);
}

static inline void ptx_barrier_wait(int barrier, int n_threads)
{
  cuda_on_cpu_barrier_wait(barrier, n_threads);
}

static inline void ptx_matrices_load(uint32_t (&x)[4], const void *row)
{
  const uint64_t *rows = cuda_on_cpu_exchange(cuda_on_cpu_row(row), __LINE__);
  const int lane = (int)(cuda_on_cpu_thread.x % 32);
  for (int i = 0; i < 4; i++)
    memcpy(&x[i], (const char *)(uintptr_t)rows[8 * i + lane / 4] + lane % 4 * 4, sizeof(x[i]));
}

static inline void ptx_matrices_load_turned(uint32_t (&x)[4], const void *row)
{
  const uint64_t *rows = cuda_on_cpu_exchange(cuda_on_cpu_row(row), __LINE__);
  const int lane = (int)(cuda_on_cpu_thread.x % 32), column = lane / 4;
  for (int i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (int k = 0; k < 2; k++)
      memcpy(&pair[k], (const char *)(uintptr_t)rows[8 * i + lane % 4 * 2 + k] + column * 2, sizeof(pair[k]));
    x[i] = pair[0] | (uint32_t)pair[1] << 16;
  }
}

/* A lane's part of a and b, as numbers: pairs in the order of the registers. */
struct ptx_operands {
  float a[4][2], b[2][2];
};

template <float (*to_f32)(uint16_t)>
static inline void ptx_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  const uint32_t b[2] = {b0, b1};
  struct ptx_operands own;
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 2; k++)
      own.a[i][k] = to_f32((uint16_t)(a[i] >> 16 * k));
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 2; k++)
      own.b[i][k] = to_f32((uint16_t)(b[i] >> 16 * k));
  const uint64_t *all = cuda_on_cpu_exchange((uint64_t)(uintptr_t)&own, __LINE__);
  const int lane = (int)(cuda_on_cpu_thread.x % 32), g = lane / 4, t = lane % 4;
  for (int k = 0; k < 16; k++) {
    const int holder = k % 8 / 2; /* of the four lanes of a row of a, or a column of b */
    const struct ptx_operands *row = (const struct ptx_operands *)(uintptr_t)all[4 * g + holder];
    for (int i = 0; i < 4; i++) {
      const struct ptx_operands *column = (const struct ptx_operands *)(uintptr_t)all[4 * (2 * t + i % 2) + holder];
      c[i] += row->a[k / 8 * 2 + i / 2][k % 2] * column->b[k / 8][k % 2]; /* the product is exact */
    }
  }
  cuda_on_cpu_exchange(0, __LINE__);
}

static inline void ptx_mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  ptx_mma<lade_bf16_to_f32>(c, a, b0, b1);
}

static inline void ptx_mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  ptx_mma<lade_f16_to_f32>(c, a, b0, b1);
}

static inline float ptx_exp2(float x)
{
  return x < -126 ? 0 : exp2f(x);
}

static inline float ptx_reciprocal(float x)
{
  float y = 1 / x;
  return fabsf(y) < 0x1p-126f ? copysignf(0, y) : y;
}

static inline float ptx_root_reciprocal(float x)
{
  return fabsf(x) < 0x1p-126f ? copysignf(INFINITY, x) : (float)(1 / sqrt((double)x));
}

static inline float ptx_add_cut(float x, float y)
{
  double sum = (double)x + (double)y; /* exact if the numbers are within 2^28 of each other */
  float rounded = (float)sum;
  return fabs((double)rounded) > fabs(sum) ? nextafterf(rounded, 0) : rounded;
}

static inline uint32_t ptx_bytes(uint32_t low, uint32_t high, uint32_t which)
{
  const uint64_t both = (uint64_t)high << 32 | low;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; i++) {
    LADE_ASSERT((which >> 4 * i & 15) < 8);
    bytes |= (uint32_t)(both >> 8 * (which >> 4 * i & 15) & 0xff) << 8 * i;
  }
  return bytes;
}

static inline float ptx_f32_of_bf16(uint16_t x)
{
  return lade_bf16_to_f32(x);
}

static inline float ptx_f32_of_f16(uint16_t x)
{
  return lade_f16_to_f32(x);
}

static inline void ptx_f32_of_f16_pair(uint32_t pair, float &low, float &high)
{
  low = lade_f16_to_f32((uint16_t)pair);
  high = lade_f16_to_f32((uint16_t)(pair >> 16));
}

static inline uint32_t ptx_pair_bf16(float low, float high)
{
  return lade_f32_to_bf16(low) | (uint32_t)lade_f32_to_bf16(high) << 16;
}

static inline uint32_t ptx_pair_f16(float low, float high)
{
  return lade_f32_to_f16(low) | (uint32_t)lade_f32_to_f16(high) << 16;
}

#endif
