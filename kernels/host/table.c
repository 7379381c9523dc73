/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table: every op's plain reference first, then the levels in rising order over it. Callers of a kernel see
 * function pointers only.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/host/attention/attention_blocked.h"
#include "kernels/host/head_loss/head_loss.h"
#include "kernels/host/host.h"

static const char *const names[LADE_N_KERNELS] = {
    [LADE_K_MATMUL] = "matmul",
    [LADE_K_COLUMN_SUM] = "column_sum",
    [LADE_K_EMBED_FWD] = "embed_fwd",
    [LADE_K_EMBED_BWD] = "embed_bwd",
    [LADE_K_NORM_FWD] = "norm_fwd",
    [LADE_K_NORM_BWD] = "norm_bwd",
    [LADE_K_RESIDUAL_FWD] = "residual_fwd",
    [LADE_K_RESIDUAL_BWD] = "residual_bwd",
    [LADE_K_DROPOUT] = "dropout",
    [LADE_K_ROPE] = "rope",
    [LADE_K_ATTENTION_FWD] = "attention_fwd",
    [LADE_K_ATTENTION_BWD] = "attention_bwd",
    [LADE_K_GELU_FWD] = "gelu_fwd",
    [LADE_K_GELU_BWD] = "gelu_bwd",
    [LADE_K_MATMUL_GELU_FWD] = "matmul_gelu_fwd",
    [LADE_K_MATMUL_GELU_BWD] = "matmul_gelu_bwd",
    [LADE_K_SWIGLU_FWD] = "swiglu_fwd",
    [LADE_K_SWIGLU_BWD] = "swiglu_bwd",
    [LADE_K_ACTIVATION_FWD] = "activation_fwd",
    [LADE_K_ACTIVATION_BWD] = "activation_bwd",
    [LADE_K_GATED_FWD] = "gated_fwd",
    [LADE_K_GATED_BWD] = "gated_bwd",
    [LADE_K_QK_SUMS] = "qk_sums",
    [LADE_K_QK_NORM_FWD] = "qk_norm_fwd",
    [LADE_K_QK_DOTS] = "qk_dots",
    [LADE_K_QK_NORM_BWD] = "qk_norm_bwd",
    [LADE_K_HEAD_LOSS_FWD] = "head_loss_fwd",
    [LADE_K_HEAD_LOSS_BWD] = "head_loss_bwd",
    [LADE_K_HEAD_STATS] = "head_stats",
    [LADE_K_HEAD_JOIN] = "head_join",
    [LADE_K_SUM_SQUARES] = "sum_squares",
    [LADE_K_CLIP] = "clip",
    [LADE_K_ADAMW] = "adamw",
    [LADE_K_ADD] = "add",
    [LADE_K_CAST] = "cast",
    [LADE_K_RANK_SUM] = "rank_sum",
    [LADE_K_COPY] = "copy",
    [LADE_K_TREE_SUM] = "tree_sum",
};

void lade_kernels_init(struct lade_kernels *kernels, const struct lade_cpu *cpu)
{
  memset(kernels, 0, sizeof(*kernels));
  lade_matmul_init(kernels);
  lade_attention_init(kernels);
  lade_head_loss_init(kernels);
  lade_column_sum_init(kernels);
  lade_embed_init(kernels);
  lade_norm_init(kernels);
  lade_residual_init(kernels);
  lade_dropout_init(kernels);
  lade_rope_init(kernels);
  lade_gelu_init(kernels);
  lade_matmul_gelu_fwd_init(kernels);
  lade_matmul_gelu_bwd_init(kernels);
  lade_swiglu_init(kernels);
  lade_activation_init(kernels);
  lade_qk_norm_init(kernels);
  lade_sum_squares_init(kernels);
  lade_clip_init(kernels);
  lade_adamw_init(kernels);
  lade_add_init(kernels);
  lade_cast_init(kernels);
  lade_rank_sum_init(kernels);
  lade_copy_init(kernels);
  lade_tree_sum_init(kernels);
  lade_kernels_init_levels(kernels, cpu);
  const char *matmul = getenv("LADE_MATMUL");
  if (matmul && strcmp(matmul, "onednn") == 0)
    lade_matmul_init_onednn(kernels);
}

const char *lade_kernel_name(enum lade_kernel kernel)
{
  return names[kernel];
}

size_t lade_kernel_workspace_bytes(const struct lade_kernels *kernels, enum lade_kernel kernel, const void *args,
                                   int n_threads)
{
  if (kernels->workspace_bytes)
    return kernels->workspace_bytes(kernels, kernel, args);
  switch (kernel) {
  case LADE_K_MATMUL: return lade_matmul_workspace_bytes(args, n_threads);
  case LADE_K_COLUMN_SUM: return lade_column_sum_workspace_bytes(args);
  case LADE_K_GELU_BWD: return lade_gelu_bwd_workspace_bytes(args);
  case LADE_K_MATMUL_GELU_FWD: return lade_matmul_gelu_fwd_workspace_bytes(args, n_threads);
  case LADE_K_MATMUL_GELU_BWD: return lade_matmul_gelu_bwd_workspace_bytes(args, n_threads);
  case LADE_K_EMBED_BWD: return lade_embed_bwd_workspace_bytes(args);
  case LADE_K_NORM_BWD: return lade_norm_bwd_workspace_bytes(args);
  case LADE_K_RESIDUAL_BWD: return lade_residual_bwd_workspace_bytes(args);
  case LADE_K_QK_NORM_BWD: return lade_qk_norm_bwd_workspace_bytes(args);
  case LADE_K_ROPE: return lade_rope_workspace_bytes(args);
  case LADE_K_ATTENTION_FWD: return lade_attention_fwd_workspace_bytes(args, n_threads);
  case LADE_K_ATTENTION_BWD: return lade_attention_bwd_workspace_bytes(args, n_threads);
  case LADE_K_HEAD_LOSS_FWD: return lade_head_loss_fwd_workspace_bytes(args, n_threads);
  case LADE_K_HEAD_LOSS_BWD: return lade_head_loss_bwd_workspace_bytes(args, n_threads);
  case LADE_K_HEAD_STATS: return lade_head_stats_workspace_bytes(args, n_threads);
  default: return 0;
  }
}

/* Add @n_bytes to a hash: FNV-1a, 64 bits (Fowler, Noll, Vo). */
static uint64_t hash_add(uint64_t hash, const void *bytes, size_t n_bytes)
{
  for (size_t i = 0; i < n_bytes; i++)
    hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3;
  return hash;
}

/* Increment this when a host kernel makes other bits from the same arguments and no cut changes. */
#define HOST_REVISION 2

uint64_t lade_kernels_key(const struct lade_kernels *kernels)
{
  const int32_t cuts[] = {LADE_SUM_BLOCK, LADE_ROW_BLOCKS, LADE_ROW_BLOCK_ROWS, LADE_HEAD_CHUNK, LADE_ATTENTION_QUERIES,
                          LADE_ATTENTION_KEYS, LADE_LEAVES_MAX, HOST_REVISION};
  uint64_t hash = hash_add(0xcbf29ce484222325, cuts, sizeof(cuts));
  for (int i = 0; i < LADE_N_KERNELS; i++) {
    const char *variant = kernels->variant[i] ? kernels->variant[i] : "none";
    hash = hash_add(hash, variant, strlen(variant) + 1);
  }
  if (kernels->n_cuts)
    hash = hash_add(hash, kernels->cuts, (size_t)kernels->n_cuts * sizeof(*kernels->cuts));
  return kernels->library ? hash_add(hash, kernels->library, strlen(kernels->library)) : hash;
}
