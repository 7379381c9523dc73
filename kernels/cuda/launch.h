/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher: the CUDA functions of each kernel of the table, and their grids. It is C and calls no driver: it passes
 * its launches to a struct lade_cuda_launcher, which puts them on a stream or, in tests, runs them on the CPU.
 *
 * lade_cuda_kernels_init makes a table whose entries take the same arguments as on every device, with device addresses
 * in them. Their context has a launcher, and a step block in memory that the device reads. An entry returns once its
 * launches are with the launcher. F64 is for references only; rank_sum and copy belong to host collectives and are not
 * in the table.
 */
#ifndef LADE_CUDA_LAUNCH_H
#define LADE_CUDA_LAUNCH_H

#include <limits.h>

#include "kernels/kernels.h"

/*
 * X(file, name in capitals, name, dtypes). 3: F32, BF16 and F16; 2: the first two; 16: those of 16 bits; 1: one
 * function for all.
 */
#define LADE_CUDA_FUNCTIONS(X) \
  X(adamw, ADAMW, adamw, 3) \
  X(activation, ACTIVATION_FWD, activation_fwd, 3) \
  X(activation, ACTIVATION_BWD, activation_bwd, 3) \
  X(activation, GATED_FWD, gated_fwd, 3) \
  X(activation, GATED_BWD, gated_bwd, 3) \
  X(add, ADD, add, 1) \
  X(attention, ATTENTION_FWD, attention_fwd, 3) \
  X(attention, ATTENTION_DELTA, attention_delta, 3) \
  X(attention, ATTENTION_DQ, attention_dq, 3) \
  X(attention, ATTENTION_DKV, attention_dkv, 3) \
  X(attention, ATTENTION_DKV_SUM, attention_dkv_sum, 16) \
  X(attention, ATTENTION_SINKS, attention_sinks, 3) \
  X(attention_mma, ATTENTION_MMA_FWD_64, attention_mma_fwd_64, 16) \
  X(attention_mma, ATTENTION_MMA_FWD_128, attention_mma_fwd_128, 16) \
  X(attention_mma, ATTENTION_MMA_DQ_64, attention_mma_dq_64, 16) \
  X(attention_mma, ATTENTION_MMA_DQ_128, attention_mma_dq_128, 16) \
  X(attention_mma, ATTENTION_MMA_DKV_64, attention_mma_dkv_64, 16) \
  X(attention_mma, ATTENTION_MMA_DKV_128, attention_mma_dkv_128, 16) \
  X(attention_mma_form, ATTENTION_MMA_FORM_FWD_64, attention_mma_form_fwd_64, 16) \
  X(attention_mma_form, ATTENTION_MMA_FORM_FWD_128, attention_mma_form_fwd_128, 16) \
  X(attention_mma_form, ATTENTION_MMA_FORM_DQ_64, attention_mma_form_dq_64, 16) \
  X(attention_mma_form, ATTENTION_MMA_FORM_DQ_128, attention_mma_form_dq_128, 16) \
  X(attention_mma_form, ATTENTION_MMA_FORM_DKV_64, attention_mma_form_dkv_64, 16) \
  X(attention_mma_form, ATTENTION_MMA_FORM_DKV_128, attention_mma_form_dkv_128, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_FWD_80, attention_mma_more_fwd_80, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_FWD_96, attention_mma_more_fwd_96, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_FWD_256, attention_mma_more_fwd_256, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_DQ_80, attention_mma_more_dq_80, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_DQ_96, attention_mma_more_dq_96, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_DQ_256, attention_mma_more_dq_256, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_DKV_80, attention_mma_more_dkv_80, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_DKV_96, attention_mma_more_dkv_96, 16) \
  X(attention_mma_more, ATTENTION_MMA_MORE_DKV_256, attention_mma_more_dkv_256, 16) \
  X(attention_wgmma, ATTENTION_WGMMA_FWD_64, attention_wgmma_fwd_64, 16) \
  X(attention_wgmma, ATTENTION_WGMMA_FWD_128, attention_wgmma_fwd_128, 16) \
  X(attention_wgmma_bwd, ATTENTION_WGMMA_DQ_64, attention_wgmma_dq_64, 16) \
  X(attention_wgmma_bwd, ATTENTION_WGMMA_DQ_128, attention_wgmma_dq_128, 16) \
  X(attention_wgmma_bwd, ATTENTION_WGMMA_DKV_64, attention_wgmma_dkv_64, 16) \
  X(attention_wgmma_bwd, ATTENTION_WGMMA_DKV_128, attention_wgmma_dkv_128, 16) \
  X(cast, CAST, cast, 3) \
  X(clip, CLIP, clip, 1) \
  X(column_sum, COLUMN_SUM, column_sum, 3) \
  X(dropout, DROPOUT, dropout, 3) \
  X(embed, EMBED_FWD, embed_fwd, 3) \
  X(embed, EMBED_SORT, embed_sort, 1) \
  X(embed, EMBED_CLEAR, embed_clear, 1) \
  X(embed, EMBED_TOKENS, embed_tokens, 3) \
  X(embed, EMBED_JOIN, embed_join, 1) \
  X(embed, EMBED_POSITIONS, embed_positions, 3) \
  X(gelu, GELU_FWD, gelu_fwd, 3) \
  X(gelu, GELU_BWD, gelu_bwd, 3) \
  X(gelu, GELU_BWD_COLUMNS, gelu_bwd_columns, 3) \
  X(head_loss, HEAD_CAP, head_cap, 1) \
  X(head_loss, HEAD_REDUCE, head_reduce, 1) \
  X(head_loss, HEAD_FINISH, head_finish, 1) \
  X(head_loss, HEAD_JOIN, head_join, 1) \
  X(head_loss, HEAD_SCALE, head_scale, 1) \
  X(head_loss, HEAD_GRADIENT, head_gradient, 3) \
  X(matmul, MATMUL, matmul, 3) \
  X(norm, NORM_FWD, norm_fwd, 3) \
  X(norm, NORM_BWD, norm_bwd, 3) \
  X(qk_norm, QK_SUMS, qk_sums, 3) \
  X(qk_norm, QK_NORM_FWD, qk_norm_fwd, 3) \
  X(qk_norm, QK_DOTS, qk_dots, 3) \
  X(qk_norm, QK_WEIGHTS, qk_weights, 3) \
  X(qk_norm, QK_NORM_BWD, qk_norm_bwd, 3) \
  X(residual, RESIDUAL_FWD, residual_fwd, 3) \
  X(residual, RESIDUAL_BWD, residual_bwd, 3) \
  X(residual, RESIDUAL_SUMS_BWD, residual_sums_bwd, 3) \
  X(residual, RESIDUAL_DROP_FWD, residual_drop_fwd, 3) \
  X(residual, RESIDUAL_DROP_BWD, residual_drop_bwd, 3) \
  X(rope, ROPE_TABLE, rope_table, 1) \
  X(rope, ROPE, rope, 3) \
  X(row_sums, ROW_SUMS, row_sums, 1) \
  X(sum_squares, SUM_SQUARES, sum_squares, 2) \
  X(swiglu, SWIGLU_FWD, swiglu_fwd, 3) \
  X(swiglu, SWIGLU_BWD, swiglu_bwd, 3) \
  X(tree_sum, TREE_SUM, tree_sum, 1)

enum lade_cuda_function {
#define LADE_CUDA_ENUM(file, upper, lower, dtypes) LADE_CUDA_##upper,
  LADE_CUDA_FUNCTIONS(LADE_CUDA_ENUM)
#undef LADE_CUDA_ENUM
  LADE_CUDA_N_FUNCTIONS
};

/* Every function of a module has a place: one for a single dtype has the first, others have one by dtype. */
#define LADE_CUDA_DTYPES 3
#define LADE_CUDA_N_PLACES (LADE_CUDA_N_FUNCTIONS * LADE_CUDA_DTYPES)

struct lade_cuda_launch {
  int place;
  unsigned grid[3], n_threads, shared_bytes;
  const void *args; /* the kernel's first argument, by value; read before the launch returns */
};

struct lade_cuda_launcher {
  /* Take a launch whose second argument is @step, the address of the step block. The launcher keeps errors. */
  void (*launch)(const struct lade_cuda_launcher *launcher, const struct lade_cuda_launch *launch,
                 const struct lade_step *step);
  /*
   * Take a whole matrix product, for a library; false: the plain kernel computes it. NULL: the plain kernel computes
   * all.
   */
  bool (*product)(const struct lade_cuda_launcher *launcher, const struct lade_matmul_args *args);
};

/* Return the name of the function at @place, "gelu_fwd_bf16"; NULL for a place without one. Static. */
const char *lade_cuda_function_name(int place);

/* Return the file of that function, "gelu" for kernels/cuda/element/gelu.cu; those of one file are adjacent. Static. */
const char *lade_cuda_function_file(int place);

/* Find the folder of the files, as lade_cuda_kernels_open says; if none is found, return one that may not exist. */
void lade_cuda_folder_find(char ret_folder[PATH_MAX]);

#endif
