/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the launcher share. Private to kernels/cuda. */
#ifndef LADE_CUDA_LAUNCH_INTERNAL_H
#define LADE_CUDA_LAUNCH_INTERNAL_H

#include "base/base.h"
#include "kernels/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/phases.h"

/* Of a function that exists for one dtype, LADE_F32 is the one. */
void lade_cuda_launch_grid(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                           struct lade_cuda_launch launch);

/* Over @n_items, a thread each while the grid lasts; then threads take further turns. */
void lade_cuda_launch_items(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                            int64_t n_items, const void *args);

/* The packs of 16 bytes of a row of @d elements; elements where its length does not keep packs aligned. */
int64_t lade_cuda_row_packs(enum lade_dtype dtype, int64_t d);

/* For ops that multiply matrices inside. A product's scratch is asked for first, with a bias or without as it runs. */
lade_kernel_fn lade_cuda_matmul;
size_t lade_cuda_matmul_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *args);

/* Attention: whether heads of @head_dim are for tensor cores, in tables where these attend. */
bool lade_cuda_attention_has(enum lade_dtype dtype, int64_t head_dim);

/* What all who attend can. */
struct lade_attention_most lade_cuda_attention_most(void);

/* Its launches, and its name in LADE_ATTENTION (static; NULL past the last). */
lade_kernel_fn *lade_cuda_attention_fn(enum lade_kernel kernel, enum lade_cuda_attention who);
const char *lade_cuda_attention_name(enum lade_cuda_attention who);

/*
 * Choose in @table who attends on @device, whose @kernels are loaded: the one that LADE_ATTENTION names, or the best
 * that is right there; a line in @note when one is not. -ENODEV where the GPU lacks the one that is named, -ENOMEM, or
 * the device's status. Blocks while the GPU tries them.
 */
int lade_cuda_attention_open(const lade_cuda_kernels *kernels, lade_device *device, struct lade_kernels *table,
                             struct lade_error *note, struct lade_error *error);

/* As lade_cuda_kernels_put, for the launches of @fn, whatever the table has. */
int lade_cuda_kernels_call(const lade_cuda_kernels *kernels, void *stream, lade_kernel_fn *fn, const void *args,
                           const struct lade_step *step);

/* The kernels of each file, and the scratch of those that want any. */
void lade_cuda_element_init(struct lade_kernels *kernels);
void lade_cuda_head_loss_init(struct lade_kernels *kernels);
void lade_cuda_matrix_init(struct lade_kernels *kernels);
void lade_cuda_optimizer_init(struct lade_kernels *kernels);
void lade_cuda_row_init(struct lade_kernels *kernels);

size_t lade_cuda_attention_bwd_bytes(const struct lade_attention_bwd_args *args);
size_t lade_cuda_head_stats_bytes(const struct lade_kernels *kernels, const struct lade_head_stats_args *args);
size_t lade_cuda_head_loss_fwd_bytes(const struct lade_kernels *kernels, const struct lade_head_loss_fwd_args *args);
size_t lade_cuda_head_loss_bwd_bytes(const struct lade_kernels *kernels, const struct lade_head_loss_bwd_args *args);
size_t lade_cuda_column_sum_bytes(const struct lade_column_sum_args *args);
size_t lade_cuda_embed_bwd_bytes(const struct lade_embed_bwd_args *args);
size_t lade_cuda_norm_bwd_bytes(const struct lade_norm_bwd_args *args);
size_t lade_cuda_residual_bwd_bytes(const struct lade_residual_bwd_args *args);
size_t lade_cuda_rope_bytes(const struct lade_rope_args *args);

#endif
