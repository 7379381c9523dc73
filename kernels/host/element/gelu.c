/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GELU in its tanh form (Hendrycks, Gimpel 2016; GPT-2's): with u = sqrt(2/pi) (x + 0.044715 x^3), x/2 (1 + tanh u) is
 * x * s with s = sigmoid(2u). This form does not cancel for negative x and needs one exponential. The slope is s + x s
 * (1-s) 2u'. e = exp(-2|u|) keeps both finite: s is 1/(1+e) or e/(1+e), and s (1-s) = e/(1+e)^2 on either side. Past
 * |x| = 100 the slope's second term is zero in double, and x^3 may overflow, so that term uses x clamped to 100.
 */
#include <math.h>

#include "kernels/host/ref.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define CUBIC 0.044715
#define SLOPE_END 100.0

REF_INLINE double gelu(double x)
{
  double u = SQRT_2_OVER_PI * (x + CUBIC * x * x * x);
  double e = exp(-2 * fabs(u)), s = (u < 0 ? e : 1) / (1 + e);
  return x * s;
}

REF_INLINE void gelu_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_gelu_fwd_args *a = arg;
  int64_t end = LADE_MIN(a->n_elements, (i_task + 1) * LADE_TASK_ELEMENTS);
  for (int64_t i = i_task * LADE_TASK_ELEMENTS; i < end; i++)
    ref_put(dtype, a->y, i, gelu(ref_get(dtype, a->x, i)));
}
REF_TASKS(gelu_span)

REF_INLINE void gelu_sums_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_gelu_sums *a = arg;
  int64_t end = LADE_MIN(a->n_elements, (i_task + 1) * LADE_TASK_ELEMENTS);
  for (int64_t i = i_task * LADE_TASK_ELEMENTS; i < end; i++) {
    ref_put(dtype, a->x, i, (double)a->sums[i]);
    ref_put(dtype, a->y, i, gelu((double)a->sums[i]));
  }
}
REF_TASKS(gelu_sums_span)

REF_INLINE void gelu_bwd_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_gelu_bwd_args *a = arg;
  int64_t end = LADE_MIN(a->n_elements, (i_task + 1) * LADE_TASK_ELEMENTS);
  for (int64_t i = i_task * LADE_TASK_ELEMENTS; i < end; i++) {
    double x = ref_get(dtype, a->x, i);
    x = x > SLOPE_END ? SLOPE_END : x < -SLOPE_END ? -SLOPE_END : x; /* NaN stays */
    double u = SQRT_2_OVER_PI * (x + CUBIC * x * x * x), slope_u = SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
    double e = exp(-2 * fabs(u)), r = 1 / (1 + e), s = u < 0 ? e * r : r;
    ref_put(dtype, a->dx, i, ref_get(dtype, a->dy, i) * (s + 2 * x * slope_u * (e * r * r)));
  }
}
REF_TASKS(gelu_bwd_span)

void lade_gelu_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gelu_fwd_args *a = args;
  gelu_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_gelu_sums_plain(lade_pool *pool, const struct lade_gelu_sums *a)
{
  gelu_sums_span_run(pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_gelu_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gelu_bwd_args *a = args;
  gelu_bwd_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
  const struct lade_column_sum_args sum = lade_gelu_bias_sum(a);
  if (a->d_bias)
    lade_column_sum_plain(ctx, &sum);
}

size_t lade_gelu_bwd_workspace_bytes(const struct lade_gelu_bwd_args *a)
{
  const struct lade_column_sum_args sum = lade_gelu_bias_sum(a);
  return a->d_bias ? lade_column_sum_workspace_bytes(&sum) : 0;
}

void lade_gelu_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_GELU_FWD, lade_gelu_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_GELU_BWD, lade_gelu_bwd_plain, "plain");
}
