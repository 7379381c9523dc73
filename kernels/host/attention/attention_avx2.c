/* SPDX-License-Identifier: Apache-2.0 */
/* Attention at the AVX2 level: FP32 products and sixteen lanes of softmax on pairs of registers. */
#include "kernels/host/host.h"
#include "kernels/host/lanes.h"

static inline void p_store(void *p, int64_t i, vf value)
{
  vf_store_f32((float *)p + i, value);
}

#include "kernels/host/attention/attention_rows.h"

static const struct lade_attention_level level = {.matmul = &lade_matmul_level_avx2, .p_dtype = LADE_F32,
                                                  .softmax = rows_softmax, .gradient = rows_gradient,
                                                  .scale = rows_scale, .dot = row_dot,
                                                  .column_sum = lade_column_sum_avx2};

void lade_attention_fwd_avx2(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_attention_fwd_args *args = arg;
  if (args->dtype != LADE_F64)
    lade_attention_fwd_blocked(&level, ctx, args);
  else
    lade_attention_fwd_plain(ctx, args);
}

void lade_attention_bwd_avx2(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_attention_bwd_args *args = arg;
  if (args->dtype != LADE_F64)
    lade_attention_bwd_blocked(&level, ctx, args);
  else
    lade_attention_bwd_plain(ctx, args);
}

void lade_attention_init_avx2(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ATTENTION_FWD, lade_attention_fwd_avx2, "avx2");
  lade_kernels_set(kernels, LADE_K_ATTENTION_BWD, lade_attention_bwd_avx2, "avx2");
}
