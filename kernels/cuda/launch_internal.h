/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the launcher's files. Private to kernels/cuda. */
#ifndef LADE_CUDA_LAUNCH_INTERNAL_H
#define LADE_CUDA_LAUNCH_INTERNAL_H

#include "base/base.h"
#include "kernels/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/phases.h"

/* The kernels of one GPU, opened. */
struct lade_cuda_kernels {
  struct lade_kernels table;
  lade_device *device;
  lade_cuda_functions *functions;
  struct lade_error note;           /* the reason why the table has no cuBLASLt */
  struct lade_error attention_note; /* the attentions that are wrong here */
};

/* Launch a grid. For a function of one dtype, pass LADE_F32. */
void lade_cuda_launch_grid(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                           struct lade_cuda_launch launch);

/* Launch over @n_items, a thread each up to the largest grid; then threads take further turns. */
void lade_cuda_launch_items(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                            int64_t n_items, const void *args);

/* Return the number of 16-byte packs in a row of @d elements; @d if they do not fill whole packs. */
int64_t lade_cuda_row_packs(enum lade_dtype dtype, int64_t d);

/*
 * Launch @function, which makes @sum's partial column sums in its workspace (reduce/columns.h), and then add them to
 * the sum.
 */
void lade_cuda_columns_launch(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, const void *args,
                              const struct lade_column_sum_args *sum);

/* Add the partial sums of @sums.n_blocks blocks of rows to each output that is not NULL. */
void lade_cuda_row_sums_launch(const struct lade_kernel_ctx *ctx, const struct lade_cuda_row_sums *sums);

/*
 * For ops that multiply matrices inside. The scratch of a product must be requested first, with or without a bias as it
 * runs.
 */
lade_kernel_fn lade_cuda_matmul;
size_t lade_cuda_matmul_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *args);
size_t lade_cuda_matmul_gelu_fwd_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *args);
size_t lade_cuda_matmul_gelu_bwd_bytes(const struct lade_kernels *kernels,
                                       const struct lade_matmul_gelu_bwd_args *args);
lade_kernel_fn lade_cuda_gelu_fwd, lade_cuda_gelu_bwd, lade_cuda_column_sum;

/* True if @attention, mma.sync or wgmma, has heads of @head_dim. Slower attentions of the same table compute others. */
bool lade_cuda_attention_has(enum lade_cuda_attention attention, enum lade_dtype dtype, int64_t head_dim);

/* True if scores are more than scaled and causal: then wgmma's place is taken by mma.sync. */
bool lade_cuda_attention_has_form(const struct lade_score_form *form);

/* Return the limits that all attentions share. */
struct lade_attention_max lade_cuda_attention_max(void);

/* Return an attention's kernel, and its name in LADE_ATTENTION (static; NULL past the last). */
lade_kernel_fn *lade_cuda_attention_fn(enum lade_kernel kernel, enum lade_cuda_attention attention);
const char *lade_cuda_attention_name(enum lade_cuda_attention attention);

/*
 * Return the variant of @bwd, a backward of lade_cuda_attention_fn, that never divides the query heads of a key head.
 * NULL if @bwd never divides them itself. For benchmarks and tests; its scratch is at most that of @bwd.
 */
lade_kernel_fn *lade_cuda_attention_whole_fn(lade_kernel_fn *bwd);

/*
 * Choose the attention in @table on @device, whose @kernels are loaded: the one that LADE_ATTENTION names, or the best
 * that is right there, with a line in @note when one is not. -ENODEV if the GPU lacks the named one, -ENOMEM, or the
 * device's status. Blocks while the GPU tries them.
 */
int lade_cuda_attention_open(const lade_cuda_kernels *kernels, lade_device *device, struct lade_kernels *table,
                             struct lade_error *note, struct lade_error *error);

/* As lade_cuda_kernels_put, for the launches of @fn instead of the table's. */
int lade_cuda_kernels_call(const lade_cuda_kernels *kernels, void *stream, lade_kernel_fn *fn, const void *args,
                           const struct lade_step *step);

/* Set the kernels of each file, and their scratch functions. */
void lade_cuda_element_init(struct lade_kernels *kernels);
void lade_cuda_head_loss_init(struct lade_kernels *kernels);
void lade_cuda_matrix_init(struct lade_kernels *kernels);
void lade_cuda_optimizer_init(struct lade_kernels *kernels);
void lade_cuda_row_init(struct lade_kernels *kernels);

size_t lade_cuda_attention_bwd_bytes(const struct lade_kernels *kernels, const struct lade_attention_bwd_args *args);
size_t lade_cuda_head_stats_bytes(const struct lade_kernels *kernels, const struct lade_head_stats_args *args);
size_t lade_cuda_head_loss_fwd_bytes(const struct lade_kernels *kernels, const struct lade_head_loss_fwd_args *args);
size_t lade_cuda_head_loss_bwd_bytes(const struct lade_kernels *kernels, const struct lade_head_loss_bwd_args *args);
size_t lade_cuda_column_sum_bytes(const struct lade_column_sum_args *args);
size_t lade_cuda_gelu_bwd_bytes(const struct lade_gelu_bwd_args *args);
size_t lade_cuda_embed_bwd_bytes(const struct lade_embed_bwd_args *args);
size_t lade_cuda_norm_bwd_bytes(const struct lade_norm_bwd_args *args);
size_t lade_cuda_residual_bwd_bytes(const struct lade_residual_bwd_args *args);
size_t lade_cuda_rope_bytes(const struct lade_rope_args *args);
size_t lade_cuda_qk_norm_bwd_bytes(const struct lade_qk_norm_bwd_args *args);

#endif
