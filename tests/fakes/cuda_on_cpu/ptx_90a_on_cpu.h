/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instructions of kernels/cuda/ptx_90a.h on a CPU, by the PTX ISA. Errors of order are caught by
 * cuda_on_cpu_wgmma.c, which also decodes descriptors and multiplies.
 */
#ifndef LADE_TEST_PTX_90A_ON_CPU_H
#define LADE_TEST_PTX_90A_ON_CPU_H

#include "ptx_on_cpu.h"

static inline unsigned ptx_shared(const void *at)
{
  return cuda_on_cpu_shared(at);
}

static inline void ptx_copies_publish(void)
{
  cuda_on_cpu_copies_publish();
}

/* Registers are memory here that other functions may access: no access is moved across a call. */
template <class T, int N> static inline void ptx_registers_settle(T (&)[N][4])
{
}

static inline void ptx_products_fence(void)
{
  cuda_on_cpu_products_fence(__LINE__);
}

static inline void ptx_products_commit(void)
{
  cuda_on_cpu_products_commit();
}

template <int PENDING, int N> static inline void ptx_products_wait(float (&)[N][4])
{
  cuda_on_cpu_products_wait(PENDING, __LINE__);
}

template <bool IS_BF16, int N>
static inline void ptx_multiply(float (&c)[N][4], uint64_t a, uint64_t b, bool is_added)
{
  const struct cuda_on_cpu_product product = {.c = c[0], .n = 8 * N, .a_at = a, .b_at = b, .is_bf16 = IS_BF16,
                                              .is_added = is_added};
  cuda_on_cpu_product_issue(&product);
}

template <bool IS_BF16, int N>
static inline void ptx_weigh(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
  const struct cuda_on_cpu_product product = {.c = c[0], .n = 8 * N, .a = a, .b_at = b, .is_bf16 = IS_BF16,
                                              .is_turned = true, .is_added = true};
  cuda_on_cpu_product_issue(&product);
}

#define ptx_multiply_64_bf16 ptx_multiply<true, 8>
#define ptx_multiply_64_f16 ptx_multiply<false, 8>
#define ptx_multiply_128_bf16 ptx_multiply<true, 16>
#define ptx_multiply_128_f16 ptx_multiply<false, 16>
#define ptx_weigh_64_bf16 ptx_weigh<true, 8>
#define ptx_weigh_64_f16 ptx_weigh<false, 8>
#define ptx_weigh_128_bf16 ptx_weigh<true, 16>
#define ptx_weigh_128_f16 ptx_weigh<false, 16>

#endif
