/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c in vectors; the exponential is lanes.h's. */
#include "kernels/host/lanes.h"

VEC_INLINE void swiglu_step(int64_t j, int n, const struct lade_swiglu_fwd_args *a, int64_t row, enum lade_dtype dtype)
{
  vf gate = vec_load(dtype, a->x, 2 * row * a->f + j, n), up = vec_load(dtype, a->x, (2 * row + 1) * a->f + j, n);
  vec_store(dtype, a->y, row * a->f + j, n, vf_mul(vf_mul(gate, vec_sigmoid(gate).s), up));
}

VEC_INLINE void swiglu_bwd_step(int64_t j, int n, const struct lade_swiglu_bwd_args *a, int64_t row,
                                enum lade_dtype dtype)
{
  int64_t i_gate = 2 * row * a->f + j, i_up = i_gate + a->f;
  vf gate = vec_load(dtype, a->x, i_gate, n), up = vec_load(dtype, a->x, i_up, n);
  vf dy = vec_load(dtype, a->dy, row * a->f + j, n);
  struct vec_sigmoid sigmoid = vec_sigmoid(gate);
  vf slope = vf_fma(gate, sigmoid.slope, sigmoid.s);
  vec_store(dtype, a->dx, i_gate, n, vf_mul(vf_mul(dy, up), slope));
  vec_store(dtype, a->dx, i_up, n, vf_mul(dy, vf_mul(gate, sigmoid.s)));
}

VEC_INLINE void swiglu_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_swiglu_fwd_args *a = arg;
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++)
    VEC_STEPS(swiglu_step, 0, a->f, a, row, dtype);
}
VEC_TASKS(swiglu_rows)

VEC_INLINE void swiglu_bwd_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_swiglu_bwd_args *a = arg;
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++)
    VEC_STEPS(swiglu_bwd_step, 0, a->f, a, row, dtype);
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
