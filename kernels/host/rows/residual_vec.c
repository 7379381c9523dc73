/* SPDX-License-Identifier: Apache-2.0 */
/*
 * residual.c in vectors: the same tasks and blocks. Dropout's random words are drawn for a run of elements at a time
 * into a buffer in L1.
 */
#include <assert.h>
#include <string.h>

#include "kernels/host/rows/norm_vec.h"

struct residual_vec_call {
  const struct lade_step *step;
  const void *args;
};

/* Random words of a row from element @from on; NULL without dropout. */
struct drawn {
  const uint32_t *words;
  int64_t from;
};

/* Make sum = residual + drop(x + bias) of the row at @at, and add it to the row's sum as stored. */
VEC_INLINE void sum_step(int64_t j, int n, vf *row_sum, const struct lade_residual_fwd_args *a, int64_t at,
                         struct drawn drawn, enum lade_dtype dtype)
{
  vf x = vec_load(dtype, a->x, at + j, n);
  if (a->bias)
    x = vf_add(x, vec_load(dtype, a->bias, j, n));
  if (drawn.words)
    x = vec_drop(&a->drop, drawn.words + (j - drawn.from), x);
  x = vf_add(vec_load(dtype, a->residual, at + j, n), x);
  vec_store(dtype, a->sum, at + j, n, x);
  *row_sum = vf_add(*row_sum, vf_first(vec_rounded(dtype, x), n));
}

/* Runs are whole groups of VEC_SUM_STEPS, so that the row's sum has the norm's own order. */
static_assert(VEC_RUN % (VEC_SUMS * VEC_LANES) == 0, "a run would change the order of a row's sum");

VEC_INLINE void sum_row(const struct lade_residual_fwd_args *a, const struct lade_step *step, int64_t row,
                        vf *row_sums, enum lade_dtype dtype)
{
  uint32_t words[VEC_RUN_WORDS];
  if (a->drop.drop_below == 0) {
    VEC_SUM_STEPS(sum_step, 0, a->d, row_sums, a, row * a->d, (struct drawn){0}, dtype);
    return;
  }
  for (int64_t from = 0; from < a->d; from += VEC_RUN) {
    int64_t end = LADE_MIN(a->d, from + VEC_RUN);
    const struct drawn drawn = {vec_words_fill(words, step, &a->drop, row * a->d + from, end - from), from};
    VEC_SUM_STEPS(sum_step, from, end, row_sums, a, row * a->d, drawn, dtype);
  }
}

VEC_INLINE void sum_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct residual_vec_call *call = arg;
  const struct lade_step step = *call->step;
  VEC_COPY(lade_residual_fwd_args, a, call->args);
  const struct lade_norm_fwd_args norm = {.kind = a->kind, .n = a->n, .d = a->d, .eps = a->eps, .x = a->sum,
                                          .weight_offset = a->weight_offset, .weight = a->weight,
                                          .bias = a->norm_bias, .y = a->y, .mean = a->mean,
                                          .rstd = a->rstd};
  int64_t rows = lade_task_rows(a->d), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    vf row_sums[VEC_SUMS] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    sum_row(a, &step, row, row_sums, dtype);
    if (a->kind != LADE_NORM_NONE)
      vec_norm_row_summed(&norm, row, row_sums, dtype);
  }
}
VEC_TASKS(sum_rows)

struct residual_vec_bwd_call {
  const struct lade_residual_bwd_args *a;
  struct lade_norm_bwd_args norm;
  float *d_x_bias, *d_sum_bias; /* the block's partial sums */
};

/* Add numbers to a column's partial sums. */
VEC_INLINE void columns_add(float *sums, int64_t j, int n, vf x)
{
  vec_store(LADE_F32, sums, j, n, vf_add(vec_load(LADE_F32, sums, j, n), x));
}

/*
 * Make d_residual and, from it as stored, dx and the biases' gradients: d_sum's first, whose memory d_residual may take
 * over.
 */
VEC_INLINE void dx_step(int64_t j, int n, const struct residual_vec_bwd_call *call, const struct norm_bwd_row *row,
                        struct drawn drawn, enum lade_dtype dtype)
{
  const struct lade_residual_bwd_args *a = call->a;
  vf dx = vf_set(0);
  if (a->d_sum_bias)
    columns_add(call->d_sum_bias, j, n, vec_load(dtype, a->d_sum, row->at + j, n));
  if (a->kind != LADE_NORM_NONE)
    dx = norm_bwd_dx(j, n, row, &call->norm, dtype);
  else if (a->d_sum)
    dx = vec_load(dtype, a->d_sum, row->at + j, n);
  vec_store(dtype, a->d_residual, row->at + j, n, dx);
  dx = vec_rounded(dtype, dx);
  if (drawn.words)
    dx = vec_rounded(dtype, vec_drop(&a->drop, drawn.words + (j - drawn.from), dx));
  if (a->dx)
    vec_store(dtype, a->dx, row->at + j, n, dx);
  if (a->d_x_bias)
    columns_add(call->d_x_bias, j, n, dx);
}

VEC_INLINE void dx_row(const struct residual_vec_bwd_call *call, const struct lade_step *step,
                       const struct norm_bwd_row *row, enum lade_dtype dtype)
{
  const struct lade_residual_bwd_args *a = call->a;
  uint32_t words[VEC_RUN_WORDS];
  if (a->drop.drop_below == 0) {
    VEC_STEPS(dx_step, 0, a->d, call, row, (struct drawn){0}, dtype);
    return;
  }
  for (int64_t from = 0; from < a->d; from += VEC_RUN) {
    int64_t end = LADE_MIN(a->d, from + VEC_RUN);
    const struct drawn drawn = {vec_words_fill(words, step, &a->drop, row->at + from, end - from), from};
    VEC_STEPS(dx_step, from, end, call, row, drawn, dtype);
  }
}

VEC_INLINE void bwd_block(const void *arg, int64_t block, enum lade_dtype dtype)
{
  const struct residual_vec_call *call = arg;
  const struct lade_step step = *call->step;
  VEC_COPY(lade_residual_bwd_args, a, call->args);
  int64_t rows = lade_row_block(a->n), end = LADE_MIN(a->n, (block + 1) * rows);
  const int n_sums = lade_residual_bwd_sums(a);
  float *d_weight = lade_row_sums_at(dtype, a->workspace, a->d, n_sums, block, 0);
  const struct norm_bwd_partials partials = {d_weight, d_weight + a->d};
  const struct residual_vec_bwd_call bwd = {
      .a = a,
      .norm = {.kind = a->kind, .n = a->n, .d = a->d, .dy = a->dy, .x = a->sum, .weight_offset = a->weight_offset,
               .weight = a->weight, .mean = a->mean, .rstd = a->rstd, .d_residual = a->d_sum},
      .d_x_bias = d_weight + 2 * a->d,
      .d_sum_bias = d_weight + 3 * a->d,
  };
  memset(d_weight, 0, (size_t)(n_sums * a->d) * sizeof(float));
  for (int64_t i_row = block * rows; i_row < end; i_row++) {
    struct norm_bwd_row row = {.at = i_row * a->d};
    if (a->kind != LADE_NORM_NONE)
      row = vec_norm_bwd_sum(&bwd.norm, i_row, partials, dtype);
    dx_row(&bwd, &step, &row, dtype);
  }
}
VEC_TASKS(bwd_block)

static void residual_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_residual_fwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_residual_fwd_plain(ctx, args);
  else
    sum_rows_run(ctx->pool, a->dtype, &(struct residual_vec_call){ctx->step, a},
                 lade_div_up(a->n, lade_task_rows(a->d)));
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
  bwd_block_run(ctx->pool, a->dtype, &(struct residual_vec_call){ctx->step, a}, n_blocks);
  lade_row_sums_add(ctx->pool,
                    &(struct lade_row_sums){.accumulator = LADE_F32,
                                            .n_blocks = n_blocks,
                                            .d = a->d,
                                            .n_outputs = lade_residual_bwd_sums(a),
                                            .partials = a->workspace,
                                            .outputs = {has_norm ? a->d_weight : NULL,
                                                        has_norm ? a->d_norm_bias : NULL, a->d_x_bias, a->d_sum_bias},
                                            .accumulate = a->accumulate});
}

void VEC_NAME(lade_residual_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_RESIDUAL_FWD, residual_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_RESIDUAL_BWD, residual_bwd, VEC_VARIANT);
}
