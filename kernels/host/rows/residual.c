/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bias, dropout, residual and norm of one row in one pass. Separate ops would read and write [N,d] seven times. Fused,
 * the row's sum is normalised while it is still in L1: two reads and two writes. Every value stored as a tensor is
 * rounded to D first and used as rounded. The norm sees the stored sum; dropout and bias gradient see the stored
 * d_residual. So the fused op gives the bits of its parts run one after the other. A backward from the stored tensors
 * differentiates exactly the computed values.
 */
#include <string.h>

#include "kernels/host/rows/norm_ref.h"

struct residual_call {
  const struct lade_step *step;
  const void *args;
};

REF_INLINE void sum_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct residual_call *call = arg;
  const struct lade_residual_fwd_args *a = call->args;
  const struct lade_norm_fwd_args norm = {.kind = a->kind, .n = a->n, .d = a->d, .eps = a->eps, .x = a->sum,
                                          .weight_offset = a->weight_offset, .weight = a->weight,
                                          .bias = a->norm_bias, .y = a->y, .mean = a->mean,
                                          .rstd = a->rstd};
  int64_t rows = lade_task_rows(a->d), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    for (int64_t j = 0; j < a->d; j++) {
      int64_t i = row * a->d + j;
      double x = ref_get(dtype, a->x, i) + ref_get_or_zero(dtype, a->bias, j);
      ref_put(dtype, a->sum, i, ref_get(dtype, a->residual, i) + ref_drop(call->step, &a->drop, i, x));
    }
    if (a->kind != LADE_NORM_NONE)
      ref_norm_row(&norm, row, dtype);
  }
}
REF_TASKS(sum_rows)

/* Make dx and the bias's gradient of one row from its d_residual. */
REF_INLINE void dx_row(const struct residual_call *call, int64_t row, void *d_x_bias, enum lade_dtype dtype)
{
  const struct lade_residual_bwd_args *a = call->args;
  enum lade_dtype accumulator = lade_accumulator(dtype);
  const void *dx = a->dx ? a->dx : a->d_residual;
  for (int64_t j = 0; j < a->d; j++) {
    int64_t i = row * a->d + j;
    if (a->dx)
      ref_put(dtype, a->dx, i, ref_drop(call->step, &a->drop, i, ref_get(dtype, a->d_residual, i)));
    ref_put(accumulator, d_x_bias, j, ref_get(accumulator, d_x_bias, j) + ref_get(dtype, dx, i));
  }
}

/* Add one row of d_sum to its column sums. */
REF_INLINE void d_sum_row(const struct lade_residual_bwd_args *a, int64_t row, void *d_sum_bias, enum lade_dtype dtype)
{
  enum lade_dtype accumulator = lade_accumulator(dtype);
  for (int64_t j = 0; j < a->d; j++)
    ref_put(accumulator, d_sum_bias, j, ref_get(accumulator, d_sum_bias, j) + ref_get(dtype, a->d_sum, row * a->d + j));
}

REF_INLINE void bwd_block(const void *arg, int64_t block, enum lade_dtype dtype)
{
  const struct residual_call *call = arg;
  const struct lade_residual_bwd_args *a = call->args;
  const struct lade_norm_bwd_args norm = {.kind = a->kind, .n = a->n, .d = a->d, .dy = a->dy, .x = a->sum,
                                          .weight_offset = a->weight_offset, .weight = a->weight,
                                          .mean = a->mean, .rstd = a->rstd,
                                          .d_residual = a->d_sum, .dx = a->d_residual};
  int64_t rows = lade_row_block(a->n), end = LADE_MIN(a->n, (block + 1) * rows);
  const int n_sums = lade_residual_bwd_sums(a);
  void *d_weight = lade_row_sums_at(dtype, a->workspace, a->d, n_sums, block, 0);
  void *d_bias = lade_row_sums_at(dtype, a->workspace, a->d, n_sums, block, 1);
  void *d_x_bias = lade_row_sums_at(dtype, a->workspace, a->d, n_sums, block, 2);
  void *d_sum_bias = lade_row_sums_at(dtype, a->workspace, a->d, n_sums, block, 3);
  memset(d_weight, 0, (size_t)(n_sums * a->d) * lade_dtype_bytes(lade_accumulator(dtype)));
  for (int64_t row = block * rows; row < end; row++) {
    if (a->d_sum_bias)
      d_sum_row(a, row, d_sum_bias, dtype); /* d_residual may take over d_sum's memory */
    if (a->kind != LADE_NORM_NONE)
      ref_norm_bwd_row(&norm, row, d_weight, d_bias, dtype);
    for (int64_t i = row * a->d; a->kind == LADE_NORM_NONE && i < (row + 1) * a->d; i++)
      ref_put(dtype, a->d_residual, i, ref_get_or_zero(dtype, a->d_sum, i));
    dx_row(call, row, d_x_bias, dtype);
  }
}
REF_TASKS(bwd_block)

void lade_residual_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_residual_fwd_args *a = args;
  sum_rows_run(ctx->pool, a->dtype, &(struct residual_call){ctx->step, a}, lade_div_up(a->n, lade_task_rows(a->d)));
}

void lade_residual_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_residual_bwd_args *a = args;
  bool has_norm = a->kind != LADE_NORM_NONE;
  int64_t n_blocks = lade_div_up(a->n, lade_row_block(a->n));
  bwd_block_run(ctx->pool, a->dtype, &(struct residual_call){ctx->step, a}, n_blocks);
  lade_row_sums_add(ctx->pool,
                    &(struct lade_row_sums){.accumulator = lade_accumulator(a->dtype),
                                            .n_blocks = n_blocks,
                                            .d = a->d,
                                            .n_outputs = lade_residual_bwd_sums(a),
                                            .partials = a->workspace,
                                            .outputs = {has_norm ? a->d_weight : NULL,
                                                        has_norm ? a->d_norm_bias : NULL, a->d_x_bias, a->d_sum_bias},
                                            .accumulate = a->accumulate});
}

size_t lade_residual_bwd_workspace_bytes(const struct lade_residual_bwd_args *a)
{
  return lade_row_sums_bytes(a->dtype, a->n, a->d, lade_residual_bwd_sums(a));
}

void lade_residual_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_RESIDUAL_FWD, lade_residual_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_RESIDUAL_BWD, lade_residual_bwd_plain, "plain");
}
