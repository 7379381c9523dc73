/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c in vectors; the exponential is lanes.h's. */
#include "kernels/host/lanes.h"

VEC_INLINE void swiglu_step(int64_t j, int count, int n, const struct lade_swiglu_fwd_args *a, int64_t row,
                            enum lade_dtype dtype)
{
  vf gate[VEC_GROUP], up[VEC_GROUP], s[VEC_GROUP], slope[VEC_GROUP];
  vec_load_group(dtype, a->x, 2 * row * a->f + j, count, n, gate);
  vec_load_group(dtype, a->x, (2 * row + 1) * a->f + j, count, n, up);
  vec_sigmoid(gate, s, slope, count);
  VEC_EACH(k, count) s[k] = vf_mul(vf_mul(gate[k], s[k]), up[k]);
  vec_store_group(dtype, a->y, row * a->f + j, count, n, s);
}

VEC_INLINE void swiglu_bwd_step(int64_t j, int count, int n, const struct lade_swiglu_bwd_args *a, int64_t row,
                                enum lade_dtype dtype)
{
  int64_t i_gate = 2 * row * a->f + j, i_up = i_gate + a->f;
  vf gate[VEC_GROUP], up[VEC_GROUP], dy[VEC_GROUP], s[VEC_GROUP], slope[VEC_GROUP];
  vec_load_group(dtype, a->x, i_gate, count, n, gate);
  vec_load_group(dtype, a->x, i_up, count, n, up);
  vec_load_group(dtype, a->dy, row * a->f + j, count, n, dy);
  vec_sigmoid(gate, s, slope, count);
  VEC_EACH(k, count) slope[k] = vf_fma(gate[k], slope[k], s[k]);
  VEC_EACH(k, count) up[k] = vf_mul(vf_mul(dy[k], up[k]), slope[k]);
  VEC_EACH(k, count) s[k] = vf_mul(dy[k], vf_mul(gate[k], s[k]));
  vec_store_group(dtype, a->dx, i_gate, count, n, up);
  vec_store_group(dtype, a->dx, i_up, count, n, s);
}

VEC_INLINE void swiglu_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_swiglu_fwd_args, a, arg);
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++)
    VEC_GROUP_STEPS(swiglu_step, 0, a->f, a, row, dtype);
}
VEC_TASKS(swiglu_rows)

VEC_INLINE void swiglu_bwd_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_swiglu_bwd_args, a, arg);
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++)
    VEC_GROUP_STEPS(swiglu_bwd_step, 0, a->f, a, row, dtype);
}
VEC_TASKS(swiglu_bwd_rows)

static void swiglu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_swiglu_fwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_swiglu_fwd_plain(ctx, args);
  else
    swiglu_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(2 * a->f)));
}

static void swiglu_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_swiglu_bwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_swiglu_bwd_plain(ctx, args);
  else
    swiglu_bwd_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(2 * a->f)));
}

void VEC_NAME(lade_swiglu_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_SWIGLU_FWD, swiglu_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_SWIGLU_BWD, swiglu_bwd, VEC_VARIANT);
}
