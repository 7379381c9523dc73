/* SPDX-License-Identifier: Apache-2.0 */
/*
 * residual.c in vectors: the same tasks and blocks. Dropout's random words are drawn for a run of
 * elements at a time into a buffer in L1.
 */
#include <string.h>

#include "kernels/host/norm_vec.h"

struct call {
  const struct lade_step *step;
  const void *args;
};

/* sum = residual + drop(x + bias); @word is of element @from of the row, NULL without dropout. */
VEC_INLINE void sum_step(int64_t j, int n, const struct lade_residual_fwd_args *a, int64_t at, const uint32_t *word,
                         int64_t from, enum lade_dtype dtype)
{
  vf x = vec_load(dtype, a->x, at + j, n);
  if (a->bias)
    x = vf_add(x, vec_load(dtype, a->bias, j, n));
  if (word)
    x = vec_drop(&a->drop, word + (j - from), x);
  vec_store(dtype, a->sum, at + j, n, vf_add(vec_load(dtype, a->residual, at + j, n), x));
}

VEC_INLINE void sum_row(const struct call *call, int64_t row, enum lade_dtype dtype)
{
  const struct lade_residual_fwd_args *a = call->args;
  uint32_t words[VEC_RUN_WORDS];
  if (a->drop.drop_below == 0) {
    VEC_STEPS(sum_step, 0, a->d, a, row * a->d, NULL, 0, dtype);
    return;
  }
  for (int64_t from = 0; from < a->d; from += VEC_RUN) {
    int64_t end = LADE_MIN(a->d, from + VEC_RUN);
    const uint32_t *word = vec_words_fill(words, call->step, &a->drop, row * a->d + from, end - from);
    VEC_STEPS(sum_step, from, end, a, row * a->d, word, from, dtype);
  }
}

VEC_INLINE void sum_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct call *call = arg;
  const struct lade_residual_fwd_args *a = call->args;
  const struct lade_norm_fwd_args norm = {.kind = a->kind, .n = a->n, .d = a->d, .eps = a->eps, .x = a->sum,
                                          .weight = a->weight, .bias = a->norm_bias, .y = a->y, .mean = a->mean,
                                          .rstd = a->rstd};
  int64_t rows = lade_task_rows(a->d), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    sum_row(call, row, dtype);
    if (a->kind != LADE_NORM_NONE)
      vec_norm_row(&norm, row, dtype);
  }
}
VEC_TASKS(sum_rows)

VEC_INLINE void copy_step(int64_t i, int n, const struct lade_residual_bwd_args *a, enum lade_dtype dtype)
{
  vec_store(dtype, a->d_residual, i, n, a->d_sum ? vec_load(dtype, a->d_sum, i, n) : vf_set(0));
}

/* dx and the bias's gradient from the stored d_residual. */
VEC_INLINE void dx_step(int64_t j, int n, const struct lade_residual_bwd_args *a, int64_t at, const uint32_t *word,
                        int64_t from, float *d_x_bias, enum lade_dtype dtype)
{
  vf dx = vec_load(dtype, a->d_residual, at + j, n);
  if (word)
    dx = vec_rounded(dtype, vec_drop(&a->drop, word + (j - from), dx));
  if (a->dx)
    vec_store(dtype, a->dx, at + j, n, dx);
  if (a->d_x_bias)
    vec_store(LADE_F32, d_x_bias, j, n, vf_add(vec_load(LADE_F32, d_x_bias, j, n), dx));
}

VEC_INLINE void dx_row(const struct call *call, int64_t row, float *d_x_bias, enum lade_dtype dtype)
{
  const struct lade_residual_bwd_args *a = call->args;
  uint32_t words[VEC_RUN_WORDS];
  if (!a->dx && !a->d_x_bias)
    return;
  if (a->drop.drop_below == 0) {
    VEC_STEPS(dx_step, 0, a->d, a, row * a->d, NULL, 0, d_x_bias, dtype);
    return;
  }
  for (int64_t from = 0; from < a->d; from += VEC_RUN) {
    int64_t end = LADE_MIN(a->d, from + VEC_RUN);
    const uint32_t *word = vec_words_fill(words, call->step, &a->drop, row * a->d + from, end - from);
    VEC_STEPS(dx_step, from, end, a, row * a->d, word, from, d_x_bias, dtype);
  }
}

VEC_INLINE void bwd_block(const void *arg, int64_t block, enum lade_dtype dtype)
{
  const struct call *call = arg;
  const struct lade_residual_bwd_args *a = call->args;
  const struct lade_norm_bwd_args norm = {.kind = a->kind, .n = a->n, .d = a->d, .dy = a->dy, .x = a->sum,
                                          .weight = a->weight, .mean = a->mean, .rstd = a->rstd,
                                          .d_residual = a->d_sum, .dx = a->d_residual};
  int64_t rows = lade_row_block(a->n), end = LADE_MIN(a->n, (block + 1) * rows);
  float *d_weight = lade_row_sums_at(dtype, a->workspace, a->d, 3, block, 0);
  float *d_bias = d_weight + a->d, *d_x_bias = d_bias + a->d;
  memset(d_weight, 0, 3 * (size_t)a->d * sizeof(float));
  for (int64_t row = block * rows; row < end; row++) {
    if (a->kind != LADE_NORM_NONE)
      vec_norm_bwd_row(&norm, row, d_weight, d_bias, dtype);
    else if (a->d_residual != a->d_sum)
      VEC_STEPS(copy_step, row * a->d, (row + 1) * a->d, a, dtype);
    dx_row(call, row, d_x_bias, dtype);
  }
}
VEC_TASKS(bwd_block)

static void residual_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_residual_fwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_residual_fwd_plain(ctx, args);
  else
    sum_rows_run(ctx->pool, a->dtype, &(struct call){ctx->step, a}, lade_div_up(a->n, lade_task_rows(a->d)));
}

static void residual_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_residual_bwd_args *a = args;
  bool has_norm = a->kind != LADE_NORM_NONE;
  int64_t n_blocks = lade_div_up(a->n, lade_row_block(a->n));
  if (a->dtype == LADE_F64) {
    lade_residual_bwd_plain(ctx, args);
    return;
  }
  bwd_block_run(ctx->pool, a->dtype, &(struct call){ctx->step, a}, n_blocks);
  lade_row_sums_add(ctx->pool,
                    &(struct lade_row_sums){.accumulator = LADE_F32,
                                            .n_blocks = n_blocks,
                                            .d = a->d,
                                            .n_outputs = 3,
                                            .partials = a->workspace,
                                            .outputs = {has_norm ? a->d_weight : NULL,
                                                        has_norm ? a->d_norm_bias : NULL, a->d_x_bias},
                                            .accumulate = a->accumulate});
}

void VEC_NAME(lade_residual_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_RESIDUAL_FWD, residual_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_RESIDUAL_BWD, residual_bwd, VEC_VARIANT);
}
