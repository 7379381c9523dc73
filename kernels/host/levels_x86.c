/* SPDX-License-Identifier: Apache-2.0 */
/* The x86-64 levels: each overwrites the functions that it improves, if the CPU has its features. */
#include "base/cpu.h"
#include "kernels/host/host.h"

static void avx2_init(struct lade_kernels *kernels)
{
  lade_matmul_init_avx2(kernels);
  lade_head_loss_init_avx2(kernels);
  lade_attention_init_avx2(kernels);
  lade_column_sum_init_avx2(kernels);
  lade_embed_init_avx2(kernels);
  lade_norm_init_avx2(kernels);
  lade_residual_init_avx2(kernels);
  lade_dropout_init_avx2(kernels);
  lade_rope_init_avx2(kernels);
  lade_gelu_init_avx2(kernels);
  lade_swiglu_init_avx2(kernels);
  lade_activation_init_avx2(kernels);
  lade_qk_norm_init_avx2(kernels);
  lade_sum_squares_init_avx2(kernels);
  lade_adamw_init_avx2(kernels);
  lade_cast_init_avx2(kernels);
  lade_rank_sum_init_avx2(kernels);
  lade_copy_init_avx2(kernels);
}

static void avx512_init(struct lade_kernels *kernels)
{
  lade_matmul_init_avx512(kernels);
  lade_head_loss_init_avx512(kernels);
  lade_attention_init_avx512(kernels);
  lade_column_sum_init_avx512(kernels);
  lade_embed_init_avx512(kernels);
  lade_norm_init_avx512(kernels);
  lade_residual_init_avx512(kernels);
  lade_dropout_init_avx512(kernels);
  lade_rope_init_avx512(kernels);
  lade_gelu_init_avx512(kernels);
  lade_swiglu_init_avx512(kernels);
  lade_activation_init_avx512(kernels);
  lade_qk_norm_init_avx512(kernels);
  lade_sum_squares_init_avx512(kernels);
  lade_adamw_init_avx512(kernels);
  lade_cast_init_avx512(kernels);
  lade_rank_sum_init_avx512(kernels);
  lade_copy_init_avx512(kernels);
}

static void avx512_bf16_init(struct lade_kernels *kernels)
{
  lade_matmul_init_avx512_bf16(kernels);
  lade_head_loss_init_avx512_bf16(kernels);
  lade_attention_init_avx512_bf16(kernels);
}

static void amx_init(struct lade_kernels *kernels)
{
  lade_matmul_init_amx(kernels);
  lade_head_loss_init_amx(kernels);
  lade_attention_init_amx(kernels);
}

void lade_kernels_init_levels(struct lade_kernels *kernels, const struct lade_cpu *cpu)
{
  if (cpu->has_avx2)
    avx2_init(kernels);
  if (cpu->has_avx512)
    avx512_init(kernels);
  if (cpu->has_avx512_bf16 && !cpu->is_bf16_dot_slow)
    avx512_bf16_init(kernels);
  if (cpu->has_amx_bf16 && lade_cpu_permit_amx())
    amx_init(kernels);
}
