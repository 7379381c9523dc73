/* SPDX-License-Identifier: Apache-2.0 */
/* Attention at the AVX512 BF16 level: BF16 dot products; probabilities and their gradients are rounded to
 * BF16 before they are multiplied, as every flash attention does. Other dtypes go to the AVX-512 level. */
#include "kernels/host/host.h"
#include "kernels/host/lanes.h"

static inline void p_store(void *p, int64_t i, vf value)
{
  _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)p + i), (__m256i)_mm512_cvtneps_pbh(value));
}

#include "kernels/host/attention/attention_rows.h"

static const struct lade_attention_level level = {.matmul = &lade_matmul_level_avx512_bf16, .p_dtype = LADE_BF16,
                                                  .softmax = rows_softmax, .gradient = rows_gradient,
                                                  .scale = rows_scale, .dot = row_dot,
                                                  .column_sum = lade_column_sum_avx512};

void lade_attention_fwd_avx512_bf16(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_attention_fwd_args *args = arg;
  if (args->dtype == LADE_BF16)
    lade_attention_fwd_blocked(&level, ctx, args);
  else
    lade_attention_fwd_avx512(ctx, args);
}

void lade_attention_bwd_avx512_bf16(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_attention_bwd_args *args = arg;
  if (args->dtype == LADE_BF16)
    lade_attention_bwd_blocked(&level, ctx, args);
  else
    lade_attention_bwd_avx512(ctx, args);
}

void lade_attention_init_avx512_bf16(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ATTENTION_FWD, lade_attention_fwd_avx512_bf16, "avx512_bf16");
  lade_kernels_set(kernels, LADE_K_ATTENTION_BWD, lade_attention_bwd_avx512_bf16, "avx512_bf16");
}
