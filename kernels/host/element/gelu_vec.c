/* SPDX-License-Identifier: Apache-2.0 */
/* gelu.c in vectors; the exponential is lanes.h's. */
#include "kernels/host/lanes.h"

#define SQRT_2_OVER_PI 0.79788456f
#define CUBIC 0.044715f
#define SLOPE_END 100.0f /* past it the slope's second term is zero and x^3 may not be finite */

/* Return 2u = x * (2k + 2k*0.044715 x^2), k = sqrt(2/pi). */
VEC_INLINE vf twice_u(vf x, vf square)
{
  return vf_mul(x, vf_fma(square, vf_set(2 * SQRT_2_OVER_PI * CUBIC), vf_set(2 * SQRT_2_OVER_PI)));
}

VEC_INLINE vf slope_2u(vf x)
{
  return vf_fma(vf_mul(x, x), vf_set(6 * SQRT_2_OVER_PI * CUBIC), vf_set(2 * SQRT_2_OVER_PI));
}

VEC_INLINE void gelu_get(const vf *x, vf *ret_y, int count)
{
  vf z[VEC_GROUP], slope[VEC_GROUP];
  VEC_EACH(k, count) z[k] = twice_u(x[k], vf_mul(x[k], x[k]));
  vec_sigmoid(z, ret_y, slope, count);
  VEC_EACH(k, count) ret_y[k] = vf_mul(x[k], ret_y[k]);
}

VEC_INLINE void gelu_step(int64_t i, int count, int n, const struct lade_gelu_fwd_args *a, enum lade_dtype dtype)
{
  vf x[VEC_GROUP], y[VEC_GROUP];
  vec_load_group(dtype, a->x, i, count, n, x);
  gelu_get(x, y, count);
  vec_store_group(dtype, a->y, i, count, n, y);
}

VEC_INLINE void gelu_sums_step(int64_t i, int count, int n, const struct lade_gelu_sums *a, enum lade_dtype dtype)
{
  vf x[VEC_GROUP], y[VEC_GROUP];
  vec_load_group(LADE_F32, a->sums, i, count, n, x);
  gelu_get(x, y, count);
  vec_store_group(dtype, a->x, i, count, n, x);
  vec_store_group(dtype, a->y, i, count, n, y);
}

VEC_INLINE void gelu_bwd_step(int64_t i, int count, int n, const struct lade_gelu_bwd_args *a, enum lade_dtype dtype)
{
  vf x[VEC_GROUP], dy[VEC_GROUP], z[VEC_GROUP], s[VEC_GROUP], slope[VEC_GROUP];
  vec_load_group(dtype, a->x, i, count, n, x);
  vec_load_group(dtype, a->dy, i, count, n, dy);
  VEC_EACH(k, count) x[k] = vf_min(vf_set(SLOPE_END), vf_max(vf_set(-SLOPE_END), x[k]));
  VEC_EACH(k, count) z[k] = twice_u(x[k], vf_mul(x[k], x[k]));
  vec_sigmoid(z, s, slope, count);
  VEC_EACH(k, count) z[k] = vf_mul(x[k], slope_2u(x[k]));
  VEC_EACH(k, count) s[k] = vf_mul(dy[k], vf_fma(z[k], slope[k], s[k]));
  vec_store_group(dtype, a->dx, i, count, n, s);
}

VEC_INLINE void gelu_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_gelu_fwd_args, a, arg);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  VEC_GROUP_STEPS(gelu_step, from, end, a, dtype);
}
VEC_TASKS(gelu_span)

VEC_INLINE void gelu_sums_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_gelu_sums, a, arg);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  VEC_GROUP_STEPS(gelu_sums_step, from, end, a, dtype);
}
VEC_TASKS(gelu_sums_span)

VEC_INLINE void gelu_bwd_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_gelu_bwd_args, a, arg);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  VEC_GROUP_STEPS(gelu_bwd_step, from, end, a, dtype);
}
VEC_TASKS(gelu_bwd_span)

static void gelu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gelu_fwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_gelu_fwd_plain(ctx, args);
  else
    gelu_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

static void gelu_sums(lade_pool *pool, const struct lade_gelu_sums *a)
{
  gelu_sums_span_run(pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

static void matmul_gelu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  lade_matmul_gelu_fwd_run(ctx, args, gelu_sums);
}

static void gelu_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gelu_bwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_gelu_bwd_plain(ctx, args);
  else
    gelu_bwd_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
  const struct lade_column_sum_args sum = lade_gelu_bias_sum(a);
  if (a->d_bias && a->dtype != LADE_F64)
    VEC_NAME(lade_column_sum)(ctx, &sum);
}

void VEC_NAME(lade_gelu_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_GELU_FWD, gelu_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_MATMUL_GELU_FWD, matmul_gelu_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_GELU_BWD, gelu_bwd, VEC_VARIANT);
}
