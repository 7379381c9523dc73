/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMSNorm of queries and keys within rows of qkv, by head (Qwen 3, Gemma 3) or over all heads (OLMo 2), and its
 * backward.
 *
 * A row has groups: the query heads, or all of them together, then those of keys. A group is a norm of its own, with
 * the formulas of norm_ref.h: y = h (weight + offset) with h = x rstd, and dx = rstd (g - h avg(g h)) with g = dy
 * (weight + offset). Groups of one kind share weights. Their gradients are summed per block of rows, as a norm's;
 * queries' and keys' have partials of their own, because their lengths may differ.
 *
 * If ranks share a group's heads, the sums over a group come from all ranks (qk_sums, qk_dots). A key head that several
 * ranks have gets a part of its gradient on each, so a rank subtracts its share of h avg(g h) only: k_total counts the
 * head once for each rank.
 *
 * A row is in L1 after its first pass. Moves 2 n (H + 2 Hk) D elements forward, and three times these backward.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/rows/qk_norm.h"

REF_INLINE double group_squares(enum lade_dtype dtype, const void *x, int64_t at, int64_t n)
{
  double sum = 0;
  for (int64_t j = 0; j < n; j++)
    sum += ref_get(dtype, x, at + j) * ref_get(dtype, x, at + j);
  return sum;
}

REF_INLINE void norm_group(const struct lade_qk_norm_fwd_args *a, int64_t row, const struct qk_group *group,
                           enum lade_dtype dtype)
{
  enum lade_dtype accumulator = lade_accumulator(dtype);
  const void *weight = group->is_key ? a->k_weight : a->q_weight;
  double total = (double)group->n;
  double squares;
  if (a->sums) {
    squares = ref_get(accumulator, a->sums, group->is_key * a->n + row);
    total = (double)(group->is_key ? a->k_total : a->q_total);
  } else {
    squares = group_squares(dtype, a->x, group->at, group->n);
  }
  double rstd = 1 / sqrt(squares / total + (double)a->eps);
  ref_put(accumulator, a->rstd, group->rstd_at, rstd);
  for (int64_t j = 0; j < group->n; j++) {
    double scale = ref_get(dtype, weight, j) + (double)a->weight_offset;
    ref_put(dtype, a->y, group->at + j, ref_get(dtype, a->x, group->at + j) * rstd * scale);
  }
}

REF_INLINE void norm_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_qk_norm_fwd_args *a = arg;
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, a->is_by_head};
  int64_t rows = lade_task_rows(qk_row(&shape)), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    for (int64_t i = 0; i < qk_n_groups(&shape); i++) {
      const struct qk_group group = qk_group_get(&shape, row, i);
      norm_group(a, row, &group, dtype);
    }
    qk_values_copy(&shape, row, a->x, a->y, dtype);
  }
}
REF_TASKS(norm_rows)

REF_INLINE void norm_bwd_group(const struct lade_qk_norm_bwd_args *a, int64_t row, const struct qk_group *group,
                               void *d_weight, enum lade_dtype dtype)
{
  enum lade_dtype accumulator = lade_accumulator(dtype);
  const void *weight = group->is_key ? a->k_weight : a->q_weight;
  double rstd = ref_get(accumulator, a->rstd, group->rstd_at), dot = 0, total = (double)group->n;
  for (int64_t j = 0; j < group->n; j++) {
    double dy = ref_get(dtype, a->dy, group->at + j), h = ref_get(dtype, a->x, group->at + j) * rstd;
    dot += dy * (ref_get(dtype, weight, j) + (double)a->weight_offset) * h;
    ref_put(accumulator, d_weight, j, ref_get(accumulator, d_weight, j) + dy * h);
  }
  if (a->dots) {
    dot = ref_get(accumulator, a->dots, group->is_key * a->n + row);
    total = (double)(group->is_key ? a->k_total : a->q_total);
  }
  for (int64_t j = 0; j < group->n; j++) {
    double h = ref_get(dtype, a->x, group->at + j) * rstd;
    double g = ref_get(dtype, a->dy, group->at + j) * (ref_get(dtype, weight, j) + (double)a->weight_offset);
    ref_put(dtype, a->dx, group->at + j, rstd * (g - h * (dot / total)));
  }
}

REF_INLINE void norm_bwd_block(const void *arg, int64_t block, enum lade_dtype dtype)
{
  const struct lade_qk_norm_bwd_args *a = arg;
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, a->is_by_head};
  int64_t rows = lade_row_block(a->n), end = LADE_MIN(a->n, (block + 1) * rows);
  const struct qk_partials partials = qk_partials_clear(&shape, dtype, a->n, a->workspace, block);
  for (int64_t row = block * rows; row < end; row++) {
    for (int64_t i = 0; i < qk_n_groups(&shape); i++) {
      const struct qk_group group = qk_group_get(&shape, row, i);
      norm_bwd_group(a, row, &group, group.is_key ? partials.key : partials.query, dtype);
    }
    qk_values_copy(&shape, row, a->dy, a->dx, dtype);
  }
}
REF_TASKS(norm_bwd_block)

REF_INLINE void sums_row(const void *arg, int64_t row, enum lade_dtype dtype)
{
  const struct lade_qk_sums_args *a = arg;
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, false};
  for (int64_t i = 0; i < 2; i++) {
    const struct qk_group group = qk_group_get(&shape, row, i);
    double sum = group_squares(dtype, a->x, group.at, group.n);
    ref_put(lade_accumulator(dtype), a->sums, i * a->n + row, i ? sum / (double)a->n_copies : sum);
  }
}
REF_TASKS(sums_row)

REF_INLINE void dots_row(const void *arg, int64_t row, enum lade_dtype dtype)
{
  const struct lade_qk_dots_args *a = arg;
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, false};
  for (int64_t i = 0; i < 2; i++) {
    const struct qk_group group = qk_group_get(&shape, row, i);
    const void *weight = i ? a->k_weight : a->q_weight;
    double rstd = ref_get(lade_accumulator(dtype), a->rstd, group.rstd_at), dot = 0;
    for (int64_t j = 0; j < group.n; j++)
      dot += ref_get(dtype, a->dy, group.at + j) * (ref_get(dtype, weight, j) + (double)a->weight_offset) *
             (ref_get(dtype, a->x, group.at + j) * rstd);
    ref_put(lade_accumulator(dtype), a->dots, i * a->n + row, dot);
  }
}
REF_TASKS(dots_row)

void lade_qk_norm_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_norm_fwd_args *a = args;
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, a->is_by_head};
  norm_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(qk_row(&shape))));
}

void lade_qk_norm_weights_add(lade_pool *pool, const struct lade_qk_norm_bwd_args *a)
{
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, a->is_by_head};
  struct lade_row_sums sums = {.accumulator = lade_accumulator(a->dtype),
                               .n_blocks = lade_div_up(a->n, lade_row_block(a->n)), .d = qk_width(&shape, false),
                               .n_outputs = 1, .partials = a->workspace, .outputs = {a->d_q_weight},
                               .accumulate = a->accumulate};
  lade_row_sums_add(pool, &sums);
  sums.partials = (char *)a->workspace + lade_row_sums_bytes(a->dtype, a->n, sums.d, 1);
  sums.d = qk_width(&shape, true);
  sums.outputs[0] = a->d_k_weight;
  lade_row_sums_add(pool, &sums);
}

void lade_qk_norm_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_norm_bwd_args *a = args;
  norm_bwd_block_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_row_block(a->n)));
  lade_qk_norm_weights_add(ctx->pool, a);
}

void lade_qk_sums_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_sums_args *a = args;
  sums_row_run(ctx->pool, a->dtype, a, a->n);
}

void lade_qk_dots_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_dots_args *a = args;
  dots_row_run(ctx->pool, a->dtype, a, a->n);
}

size_t lade_qk_norm_bwd_workspace_bytes(const struct lade_qk_norm_bwd_args *a)
{
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, a->is_by_head};
  return lade_row_sums_bytes(a->dtype, a->n, qk_width(&shape, false), 1) +
         lade_row_sums_bytes(a->dtype, a->n, qk_width(&shape, true), 1);
}

void lade_qk_norm_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_QK_SUMS, lade_qk_sums_plain, "plain");
  lade_kernels_set(kernels, LADE_K_QK_NORM_FWD, lade_qk_norm_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_QK_DOTS, lade_qk_dots_plain, "plain");
  lade_kernels_set(kernels, LADE_K_QK_NORM_BWD, lade_qk_norm_bwd_plain, "plain");
}
