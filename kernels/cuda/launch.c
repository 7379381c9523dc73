/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device's table: the names of its functions, its launches and their scratch.
 */
#include "kernels/cuda/launch.h"

#include <string.h>

#include "kernels/cuda.h"
#include "kernels/cuda/launch_internal.h"

const char *lade_cuda_function_name(int place)
{
#define NAME_ALL(name) #name, NULL, NULL
#define NAME_1(name) NAME_ALL(name)
#define NAME_2(name) #name "_f32", #name "_bf16", NULL
#define NAME_16(name) NULL, #name "_bf16", #name "_f16"
#define NAME_3(name) #name "_f32", #name "_bf16", #name "_f16"
#define NAME(file, upper, lower, dtypes) NAME_##dtypes(lower),
  static const char *const names[] = {LADE_CUDA_FUNCTIONS(NAME)};
  _Static_assert(LADE_COUNT(names) == LADE_CUDA_N_PLACES, "a name for each place");
  return names[place];
}

const char *lade_cuda_function_file(int place)
{
#define FILE_NAME(file, upper, lower, dtypes) #file,
  static const char *const files[] = {LADE_CUDA_FUNCTIONS(FILE_NAME)};
  return files[place / LADE_CUDA_DTYPES];
}

static size_t workspace_bytes(const struct lade_kernels *kernels, enum lade_kernel kernel, const void *args)
{
  switch (kernel) {
  case LADE_K_MATMUL: return lade_cuda_matmul_bytes(kernels, args);
  case LADE_K_ATTENTION_BWD: return lade_cuda_attention_bwd_bytes(kernels, args);
  case LADE_K_COLUMN_SUM: return lade_cuda_column_sum_bytes(args);
  case LADE_K_MATMUL_GELU_FWD: return lade_cuda_matmul_gelu_fwd_bytes(kernels, args);
  case LADE_K_MATMUL_GELU_BWD: return lade_cuda_matmul_gelu_bwd_bytes(kernels, args);
  case LADE_K_GELU_BWD: return lade_cuda_gelu_bwd_bytes(args);
  case LADE_K_EMBED_BWD: return lade_cuda_embed_bwd_bytes(args);
  case LADE_K_HEAD_STATS: return lade_cuda_head_stats_bytes(kernels, args);
  case LADE_K_HEAD_LOSS_FWD: return lade_cuda_head_loss_fwd_bytes(kernels, args);
  case LADE_K_HEAD_LOSS_BWD: return lade_cuda_head_loss_bwd_bytes(kernels, args);
  case LADE_K_NORM_BWD: return lade_cuda_norm_bwd_bytes(args);
  case LADE_K_RESIDUAL_BWD: return lade_cuda_residual_bwd_bytes(args);
  case LADE_K_ROPE: return lade_cuda_rope_bytes(args);
  case LADE_K_QK_NORM_BWD: return lade_cuda_qk_norm_bwd_bytes(args);
  default: return 0;
  }
}

/* Inputs of the order of sums, besides shapes. */
static const int32_t cuts[] = {LADE_CUDA_REVISION,      LADE_CUDA_THREADS,     LADE_CUDA_ROW_PACKS,
                               LADE_CUDA_SUM_COLUMNS,   LADE_CUDA_SUM_LANES,   LADE_CUDA_ROPE_RUN,
                               LADE_CUDA_HEAD_CHUNK,    LADE_CUDA_WGMMA_DKV_ENOUGH(64),
                               LADE_CUDA_WGMMA_DKV_ENOUGH(128), LADE_CUDA_MMA_DKV_ENOUGH,
                               LADE_CUDA_EMBED_PIECE};

void lade_cuda_kernels_init(struct lade_kernels *kernels)
{
  memset(kernels, 0, sizeof(*kernels));
  kernels->cuts = cuts;
  kernels->n_cuts = LADE_COUNT(cuts);
  kernels->workspace_bytes = workspace_bytes;
  kernels->attention_max = lade_cuda_attention_max();
  lade_cuda_element_init(kernels);
  lade_cuda_head_loss_init(kernels);
  lade_cuda_matrix_init(kernels);
  lade_cuda_optimizer_init(kernels);
  lade_cuda_row_init(kernels);
  for (int i = 0; i < LADE_N_KERNELS; i++)
    kernels->variant[i] = kernels->fn[i] ? "cuda" : NULL;
  lade_cuda_attention_choose(kernels, LADE_K_ATTENTION_FWD, LADE_CUDA_BY_MMA);
  lade_cuda_attention_choose(kernels, LADE_K_ATTENTION_BWD, LADE_CUDA_BY_MMA);
}
