/* SPDX-License-Identifier: Apache-2.0 */
/* qk_norm.c in vectors: the same groups, tasks and blocks. */
#include <math.h>

#include "kernels/host/lanes.h"
#include "kernels/host/rows/qk_norm.h"

VEC_INLINE float four_add(const vf *sums)
{
  return vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
}

VEC_INLINE void square_step(int64_t j, int n, vf *sum, const void *x, int64_t at, enum lade_dtype dtype)
{
  vf value = vec_load(dtype, x, at + j, n);
  *sum = vf_fma(value, value, *sum);
}

VEC_INLINE float group_squares(enum lade_dtype dtype, const void *x, const struct qk_group *group)
{
  vf sums[VEC_SUMS] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
  VEC_SUM_STEPS(square_step, 0, group->n, sums, x, group->at, dtype);
  return four_add(sums);
}

VEC_INLINE void out_step(int64_t j, int n, const struct lade_qk_norm_fwd_args *a, const void *weight, int64_t at,
                         vf rstd, enum lade_dtype dtype)
{
  vf scale = vf_add(vec_load(dtype, weight, j, n), vf_set(a->weight_offset));
  vec_store(dtype, a->y, at + j, n, vf_mul(vf_mul(vec_load(dtype, a->x, at + j, n), rstd), scale));
}

VEC_INLINE void norm_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_qk_norm_fwd_args, a, arg);
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, a->is_by_head};
  int64_t rows = lade_task_rows(qk_row(&shape)), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    for (int64_t i = 0; i < qk_n_groups(&shape); i++) {
      const struct qk_group group = qk_group_get(&shape, row, i);
      float total = (float)(!a->sums ? group.n : group.is_key ? a->k_total : a->q_total);
      float squares = a->sums ? ((const float *)a->sums)[group.is_key * a->n + row]
                              : group_squares(dtype, a->x, &group);
      float rstd = 1 / sqrtf(squares / total + a->eps);
      ((float *)a->rstd)[group.rstd_at] = rstd;
      VEC_STEPS(out_step, 0, group.n, a, group.is_key ? a->k_weight : a->q_weight, group.at, vf_set(rstd), dtype);
    }
    qk_values_copy(&shape, row, a->x, a->y, dtype);
  }
}
VEC_TASKS(norm_rows)

/* Inputs of both passes over a group in backward. */
struct qk_bwd_group {
  const void *dy, *x, *weight;
  int64_t at;
  vf rstd, offset, average;
};

VEC_INLINE vf group_g(int64_t j, int n, const struct qk_bwd_group *group, enum lade_dtype dtype)
{
  vf scale = vf_add(vec_load(dtype, group->weight, j, n), group->offset);
  return vf_mul(vec_load(dtype, group->dy, group->at + j, n), scale);
}

VEC_INLINE vf group_h(int64_t j, int n, const struct qk_bwd_group *group, enum lade_dtype dtype)
{
  return vf_mul(vec_load(dtype, group->x, group->at + j, n), group->rstd);
}

VEC_INLINE void dot_step(int64_t j, int n, vf *sum, const struct qk_bwd_group *group, float *d_weight,
                         enum lade_dtype dtype)
{
  vf h = group_h(j, n, group, dtype);
  *sum = vf_fma(group_g(j, n, group, dtype), h, *sum);
  if (d_weight)
    vec_store(LADE_F32, d_weight, j, n,
              vf_fma(vec_load(dtype, group->dy, group->at + j, n), h, vec_load(LADE_F32, d_weight, j, n)));
}

VEC_INLINE float group_dot(const struct qk_bwd_group *group, int64_t n, float *d_weight, enum lade_dtype dtype)
{
  vf sums[VEC_SUMS] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
  VEC_SUM_STEPS(dot_step, 0, n, sums, group, d_weight, dtype);
  return four_add(sums);
}

VEC_INLINE void dx_step(int64_t j, int n, const struct qk_bwd_group *group, void *dx, enum lade_dtype dtype)
{
  vf g = group_g(j, n, group, dtype), h = group_h(j, n, group, dtype);
  vec_store(dtype, dx, group->at + j, n, vf_mul(group->rstd, vf_fnma(h, group->average, g)));
}

VEC_INLINE void norm_bwd_block(const void *arg, int64_t block, enum lade_dtype dtype)
{
  VEC_COPY(lade_qk_norm_bwd_args, a, arg);
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, a->is_by_head};
  int64_t rows = lade_row_block(a->n), end = LADE_MIN(a->n, (block + 1) * rows);
  const struct qk_partials partials = qk_partials_clear(&shape, dtype, a->n, a->workspace, block);
  for (int64_t row = block * rows; row < end; row++) {
    for (int64_t i = 0; i < qk_n_groups(&shape); i++) {
      const struct qk_group at = qk_group_get(&shape, row, i);
      struct qk_bwd_group group = {.dy = a->dy, .x = a->x, .weight = at.is_key ? a->k_weight : a->q_weight,
                                   .at = at.at, .rstd = vf_set(((const float *)a->rstd)[at.rstd_at]),
                                   .offset = vf_set(a->weight_offset)};
      float dot = group_dot(&group, at.n, at.is_key ? partials.key : partials.query, dtype), total = (float)at.n;
      if (a->dots) {
        dot = ((const float *)a->dots)[at.is_key * a->n + row];
        total = (float)(at.is_key ? a->k_total : a->q_total);
      }
      group.average = vf_set(dot / total);
      VEC_STEPS(dx_step, 0, at.n, &group, a->dx, dtype);
    }
    qk_values_copy(&shape, row, a->dy, a->dx, dtype);
  }
}
VEC_TASKS(norm_bwd_block)

VEC_INLINE void sums_row(const void *arg, int64_t row, enum lade_dtype dtype)
{
  VEC_COPY(lade_qk_sums_args, a, arg);
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, false};
  for (int64_t i = 0; i < 2; i++) {
    const struct qk_group group = qk_group_get(&shape, row, i);
    ((float *)a->sums)[i * a->n + row] = group_squares(dtype, a->x, &group) / (i ? (float)a->n_copies : 1);
  }
}
VEC_TASKS(sums_row)

VEC_INLINE void dots_row(const void *arg, int64_t row, enum lade_dtype dtype)
{
  VEC_COPY(lade_qk_dots_args, a, arg);
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, false};
  for (int64_t i = 0; i < 2; i++) {
    const struct qk_group at = qk_group_get(&shape, row, i);
    const struct qk_bwd_group group = {.dy = a->dy, .x = a->x, .weight = i ? a->k_weight : a->q_weight, .at = at.at,
                                       .rstd = vf_set(((const float *)a->rstd)[at.rstd_at]),
                                       .offset = vf_set(a->weight_offset)};
    ((float *)a->dots)[i * a->n + row] = group_dot(&group, at.n, NULL, dtype);
  }
}
VEC_TASKS(dots_row)

static void qk_norm_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_norm_fwd_args *a = args;
  const struct qk_shape shape = {a->heads, a->n_kv_heads, a->head_dim, a->is_by_head};
  if (a->dtype == LADE_F64)
    lade_qk_norm_fwd_plain(ctx, args);
  else
    norm_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(qk_row(&shape))));
}

static void qk_norm_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_norm_bwd_args *a = args;
  if (a->dtype == LADE_F64) {
    lade_qk_norm_bwd_plain(ctx, args);
    return;
  }
  norm_bwd_block_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_row_block(a->n)));
  lade_qk_norm_weights_add(ctx->pool, a);
}

static void qk_sums(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_sums_args *a = args;
  if (a->dtype == LADE_F64)
    lade_qk_sums_plain(ctx, args);
  else
    sums_row_run(ctx->pool, a->dtype, a, a->n);
}

static void qk_dots(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_dots_args *a = args;
  if (a->dtype == LADE_F64)
    lade_qk_dots_plain(ctx, args);
  else
    dots_row_run(ctx->pool, a->dtype, a, a->n);
}

void VEC_NAME(lade_qk_norm_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_QK_SUMS, qk_sums, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_QK_NORM_FWD, qk_norm_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_QK_DOTS, qk_dots, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_QK_NORM_BWD, qk_norm_bwd, VEC_VARIANT);
}
