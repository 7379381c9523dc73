/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the host kernels and their table (table.c): one init per op and level, one workspace bound per op that needs
 * one. Private to kernels/host.
 *
 * lade_<op>_init puts the plain reference into the table; lade_<op>_init_<level> overwrites it where the level improves
 * it. Level files are compiled with that level's instructions and are linked only on x86-64, where levels_x86.c calls
 * their inits behind the CPU probe. On other CPUs levels_none.c replaces it.
 */
#ifndef LADE_KERNELS_HOST_H
#define LADE_KERNELS_HOST_H

#include "base/base.h"
#include "base/cpu.h"
#include "kernels/host/element/element.h"
#include "kernels/kernels.h"

/* Initialise every level that @cpu has, in rising order. */
void lade_kernels_init_levels(struct lade_kernels *kernels, const struct lade_cpu *cpu);

static inline void lade_kernels_set(struct lade_kernels *kernels, enum lade_kernel kernel, lade_kernel_fn *fn,
                                    const char *variant)
{
  kernels->fn[kernel] = fn;
  kernels->variant[kernel] = variant;
}

/*
 * Cuts, all by shape. LADE_TASK_ELEMENTS is the work of one task where tasks share nothing. It is some microseconds, so
 * that the pool's wake-up is small in comparison, and small enough for its operands to stay in L2.
 */
#define LADE_TASK_ELEMENTS 32768
#define LADE_COPY_TASK_BYTES (1ll << 20)

static inline int64_t lade_task_rows(int64_t row_elements)
{
  return LADE_MAX(1, LADE_TASK_ELEMENTS / row_elements);
}

/*
 * Sums over rows (the gradients of parameters) are made per block of rows and then added in the order of blocks. At
 * most LADE_ROW_BLOCKS of them bound the workspace, and the number of busy threads.
 */
#define LADE_ROW_BLOCKS 64
#define LADE_ROW_BLOCK_ROWS 16

static inline int64_t lade_row_block(int64_t n_rows)
{
  return LADE_MAX(LADE_ROW_BLOCK_ROWS, lade_div_up(n_rows, LADE_ROW_BLOCKS));
}

/* Up to four sums of d columns each, made per block of rows as partials [block][output][d] in A. */
#define LADE_ROW_SUMS 4
struct lade_row_sums {
  enum lade_dtype accumulator;
  int64_t n_blocks, d;
  int n_outputs;
  const void *partials;
  void *outputs[LADE_ROW_SUMS]; /* NULL: not needed */
  bool accumulate;
};

/* Set output (+)= the sum of its partials, in the order of blocks. */
void lade_row_sums_add(lade_pool *pool, const struct lade_row_sums *sums);

/* Return the scratch bytes for @n_outputs sums over @n_rows rows. */
size_t lade_row_sums_bytes(enum lade_dtype dtype, int64_t n_rows, int64_t d, int n_outputs);

/* Return the sums over rows of a residual's backward: of weight and bias of its norm, of dx, and of d_sum if wanted. */
static inline int lade_residual_bwd_sums(const struct lade_residual_bwd_args *a)
{
  return a->d_sum_bias ? 4 : 3;
}

/* Return the sum that is the bias's gradient in @a, if there is one. */
static inline struct lade_column_sum_args lade_gelu_bias_sum(const struct lade_gelu_bwd_args *a)
{
  return (struct lade_column_sum_args){.dtype = a->dtype, .m = a->d_bias ? a->n_elements / a->f : 0, .n = a->f,
                                       .x = a->dx, .sum = a->d_bias, .accumulate = a->accumulate,
                                       .workspace = a->workspace};
}

/* Sums in F32 of a product that end as @x, rounded to D, and @y, GELU of the unrounded sum. D: BF16 or F16. */
struct lade_gelu_sums {
  enum lade_dtype dtype;
  int64_t n_elements;
  const float *sums;
  void *x, *y;
};
typedef void lade_gelu_sums_fn(lade_pool *pool, const struct lade_gelu_sums *args);
lade_gelu_sums_fn lade_gelu_sums_plain;

/* Run LADE_K_MATMUL_GELU_FWD with @finish for the sums of 16-bit types. */
void lade_matmul_gelu_fwd_run(const struct lade_kernel_ctx *ctx, const struct lade_matmul_args *args,
                              lade_gelu_sums_fn *finish);

/* Return GELU's backward of @a, in place on the product. */
static inline struct lade_gelu_bwd_args lade_matmul_gelu_get(const struct lade_matmul_gelu_bwd_args *a)
{
  const struct lade_matmul_args *product = &a->product;
  return (struct lade_gelu_bwd_args){.dtype = product->dtype, .n_elements = product->m * product->n, .f = product->n,
                                     .x = product->gelu_x, .dy = product->c, .dx = product->c, .d_bias = a->d_bias,
                                     .accumulate = a->accumulate_bias, .workspace = product->workspace};
}

/* Return the same sum for attention, whose columns are those of qkv. */
static inline struct lade_column_sum_args lade_attention_bias_sum(const struct lade_attention_bwd_args *a)
{
  return (struct lade_column_sum_args){.dtype = a->dtype, .m = a->d_bias ? a->batch * a->seq_len : 0,
                                       .n = (a->heads + 2 * a->n_kv_heads) * a->head_dim, .x = a->d_qkv,
                                       .sum = a->d_bias, .accumulate = a->accumulate_bias,
                                       .workspace = a->workspace};
}

/* Return the place of block @block's partial of output @output. */
static inline void *lade_row_sums_at(enum lade_dtype dtype, void *partials, int64_t d, int n_outputs, int64_t block,
                                     int output)
{
  size_t row_bytes = (size_t)d * (dtype == LADE_F64 ? sizeof(double) : sizeof(float));
  return (char *)partials + (size_t)(block * n_outputs + output) * row_bytes;
}

/*
 * Fill rotation angles: cosines and sines [T, head_dim/2] each, in A, for every variant of rope. @table is its
 * workspace: first all cosines, then all sines.
 */
void lade_rope_table_fill(lade_pool *pool, const struct lade_rope_args *args, void *table);
/* Return the attention temperature of position @t: the factor of its queries, 1 without one. */
double lade_rope_temperature(const struct lade_rope_args *args, int64_t t);

/* The lists of embed's backward: the rows of each token, in order. */
struct lade_token_lists {
  const int32_t *first; /* [V], -1: none */
  const int32_t *next;  /* [B*T], -1: the last */
};
struct lade_token_lists lade_token_lists_make(const struct lade_embed_bwd_args *args);

/* For the ops that multiply matrices inside; all dtypes. */
lade_kernel_fn lade_matmul_plain, lade_matmul_avx2, lade_matmul_avx512, lade_matmul_avx512_bf16,
    lade_matmul_amx;

/* A level's attention uses a lower level's functions where it has no better ones. */
lade_kernel_fn lade_attention_fwd_plain, lade_attention_fwd_avx2, lade_attention_fwd_avx512,
    lade_attention_fwd_avx512_bf16, lade_attention_fwd_amx;
lade_kernel_fn lade_attention_bwd_plain, lade_attention_bwd_avx2, lade_attention_bwd_avx512,
    lade_attention_bwd_avx512_bf16, lade_attention_bwd_amx;
/* For ops that also make a bias's gradient. */
lade_kernel_fn lade_column_sum_plain, lade_column_sum_avx2, lade_column_sum_avx512;
/* The plain functions, for F64 inside a level. */
lade_kernel_fn lade_embed_fwd_plain;
lade_kernel_fn lade_embed_bwd_plain;
lade_kernel_fn lade_norm_fwd_plain;
lade_kernel_fn lade_norm_bwd_plain;
lade_kernel_fn lade_residual_fwd_plain;
lade_kernel_fn lade_residual_bwd_plain;
lade_kernel_fn lade_dropout_plain;
lade_kernel_fn lade_rope_plain;
lade_kernel_fn lade_gelu_fwd_plain;
lade_kernel_fn lade_gelu_bwd_plain;
lade_kernel_fn lade_swiglu_fwd_plain;
lade_kernel_fn lade_swiglu_bwd_plain;
lade_kernel_fn lade_activation_fwd_plain;
lade_kernel_fn lade_activation_bwd_plain;
lade_kernel_fn lade_gated_fwd_plain;
lade_kernel_fn lade_gated_bwd_plain;
lade_kernel_fn lade_qk_sums_plain;
lade_kernel_fn lade_qk_norm_fwd_plain;
lade_kernel_fn lade_qk_dots_plain;
lade_kernel_fn lade_qk_norm_bwd_plain;
lade_kernel_fn lade_sum_squares_plain;
lade_kernel_fn lade_cast_plain;
lade_kernel_fn lade_rank_sum_plain;

void lade_matmul_init(struct lade_kernels *kernels);
void lade_attention_init(struct lade_kernels *kernels);
void lade_head_loss_init(struct lade_kernels *kernels);
void lade_column_sum_init(struct lade_kernels *kernels);
void lade_embed_init(struct lade_kernels *kernels);
void lade_norm_init(struct lade_kernels *kernels);
void lade_residual_init(struct lade_kernels *kernels);
void lade_dropout_init(struct lade_kernels *kernels);
void lade_rope_init(struct lade_kernels *kernels);
void lade_gelu_init(struct lade_kernels *kernels);
void lade_matmul_gelu_fwd_init(struct lade_kernels *kernels);
void lade_matmul_gelu_bwd_init(struct lade_kernels *kernels);
void lade_swiglu_init(struct lade_kernels *kernels);
void lade_activation_init(struct lade_kernels *kernels);
void lade_qk_norm_init(struct lade_kernels *kernels);
void lade_sum_squares_init(struct lade_kernels *kernels);
void lade_clip_init(struct lade_kernels *kernels);
void lade_adamw_init(struct lade_kernels *kernels);
void lade_add_init(struct lade_kernels *kernels);
void lade_cast_init(struct lade_kernels *kernels);
void lade_rank_sum_init(struct lade_kernels *kernels);
void lade_copy_init(struct lade_kernels *kernels);
void lade_tree_sum_init(struct lade_kernels *kernels);

/* Return the sum of @n doubles in one fixed tree. */
double lade_tree_sum(const double *x, int64_t n);

/* Use oneDNN's products (matmul_onednn.c) if the plug-in opens; else return false and change nothing. */
bool lade_matmul_init_onednn(struct lade_kernels *kernels);
lade_kernel_fn lade_matmul_onednn;

void lade_matmul_init_avx2(struct lade_kernels *kernels);
void lade_matmul_init_avx512(struct lade_kernels *kernels);
void lade_matmul_init_avx512_bf16(struct lade_kernels *kernels);
void lade_matmul_init_amx(struct lade_kernels *kernels);
void lade_head_loss_init_avx2(struct lade_kernels *kernels);
void lade_head_loss_init_avx512(struct lade_kernels *kernels);
void lade_head_loss_init_avx512_bf16(struct lade_kernels *kernels);
void lade_head_loss_init_amx(struct lade_kernels *kernels);
void lade_attention_init_avx2(struct lade_kernels *kernels);
void lade_attention_init_avx512(struct lade_kernels *kernels);
void lade_attention_init_avx512_bf16(struct lade_kernels *kernels);
void lade_attention_init_amx(struct lade_kernels *kernels);

void lade_column_sum_init_avx2(struct lade_kernels *kernels);
void lade_embed_init_avx2(struct lade_kernels *kernels);
void lade_norm_init_avx2(struct lade_kernels *kernels);
void lade_residual_init_avx2(struct lade_kernels *kernels);
void lade_dropout_init_avx2(struct lade_kernels *kernels);
void lade_rope_init_avx2(struct lade_kernels *kernels);
void lade_gelu_init_avx2(struct lade_kernels *kernels);
void lade_swiglu_init_avx2(struct lade_kernels *kernels);
void lade_activation_init_avx2(struct lade_kernels *kernels);
void lade_qk_norm_init_avx2(struct lade_kernels *kernels);
void lade_sum_squares_init_avx2(struct lade_kernels *kernels);
void lade_adamw_init_avx2(struct lade_kernels *kernels);
void lade_cast_init_avx2(struct lade_kernels *kernels);
void lade_rank_sum_init_avx2(struct lade_kernels *kernels);
void lade_copy_init_avx2(struct lade_kernels *kernels);
void lade_column_sum_init_avx512(struct lade_kernels *kernels);
void lade_embed_init_avx512(struct lade_kernels *kernels);
void lade_norm_init_avx512(struct lade_kernels *kernels);
void lade_residual_init_avx512(struct lade_kernels *kernels);
void lade_dropout_init_avx512(struct lade_kernels *kernels);
void lade_rope_init_avx512(struct lade_kernels *kernels);
void lade_gelu_init_avx512(struct lade_kernels *kernels);
void lade_swiglu_init_avx512(struct lade_kernels *kernels);
void lade_activation_init_avx512(struct lade_kernels *kernels);
void lade_qk_norm_init_avx512(struct lade_kernels *kernels);
void lade_sum_squares_init_avx512(struct lade_kernels *kernels);
void lade_adamw_init_avx512(struct lade_kernels *kernels);
void lade_cast_init_avx512(struct lade_kernels *kernels);
void lade_rank_sum_init_avx512(struct lade_kernels *kernels);
void lade_copy_init_avx512(struct lade_kernels *kernels);

size_t lade_matmul_workspace_bytes(const struct lade_matmul_args *args, int n_threads);
size_t lade_attention_fwd_workspace_bytes(const struct lade_attention_fwd_args *args, int n_threads);
size_t lade_attention_bwd_workspace_bytes(const struct lade_attention_bwd_args *args, int n_threads);
size_t lade_head_loss_fwd_workspace_bytes(const struct lade_head_loss_fwd_args *args, int n_threads);
size_t lade_head_stats_workspace_bytes(const struct lade_head_stats_args *args, int n_threads);
size_t lade_head_loss_bwd_workspace_bytes(const struct lade_head_loss_bwd_args *args, int n_threads);
size_t lade_column_sum_workspace_bytes(const struct lade_column_sum_args *args);
size_t lade_gelu_bwd_workspace_bytes(const struct lade_gelu_bwd_args *args);
size_t lade_matmul_gelu_fwd_workspace_bytes(const struct lade_matmul_args *args, int n_threads);
size_t lade_matmul_gelu_bwd_workspace_bytes(const struct lade_matmul_gelu_bwd_args *args, int n_threads);
size_t lade_embed_bwd_workspace_bytes(const struct lade_embed_bwd_args *args);
size_t lade_norm_bwd_workspace_bytes(const struct lade_norm_bwd_args *args);
size_t lade_residual_bwd_workspace_bytes(const struct lade_residual_bwd_args *args);
size_t lade_rope_workspace_bytes(const struct lade_rope_args *args);
size_t lade_qk_norm_bwd_workspace_bytes(const struct lade_qk_norm_bwd_args *args);

#endif
