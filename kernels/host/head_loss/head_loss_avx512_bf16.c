/* SPDX-License-Identifier: Apache-2.0 */
/* The head's loss at the AVX512 BF16 level: this level's products, its lanes over rows of logits. */
#include "kernels/host/host.h"
#include "kernels/host/lanes.h"

#include "kernels/host/head_loss/head_loss_rows.h"

static const struct lade_head_loss_level level = {.matmul = lade_matmul_avx512_bf16, .cap = row_cap,
                                                  .reduce = row_reduce,
                                                  .gradient = row_gradient, .cast = row_cast};

static void head_loss_fwd_avx512_bf16(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_head_loss_fwd_args *args = arg;
  lade_head_loss_fwd_run(args->dtype == LADE_F64 ? &lade_head_loss_plain : &level, ctx, args);
}

static void head_stats_avx512_bf16(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_head_stats_args *args = arg;
  lade_head_stats_run(args->dtype == LADE_F64 ? &lade_head_loss_plain : &level, ctx, args);
}

static void head_loss_bwd_avx512_bf16(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_head_loss_bwd_args *args = arg;
  lade_head_loss_bwd_run(args->dtype == LADE_F64 ? &lade_head_loss_plain : &level, ctx, args);
}

void lade_head_loss_init_avx512_bf16(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_HEAD_LOSS_FWD, head_loss_fwd_avx512_bf16, "avx512_bf16");
  lade_kernels_set(kernels, LADE_K_HEAD_LOSS_BWD, head_loss_bwd_avx512_bf16, "avx512_bf16");
  lade_kernels_set(kernels, LADE_K_HEAD_STATS, head_stats_avx512_bf16, "avx512_bf16");
}
