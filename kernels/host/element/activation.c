/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activations of an MLP besides GELU's tanh form (gelu.c) and SwiGLU (swiglu.c), alone and with a gate.
 *
 * SILU, both approximations of GELU: x s(z) with the logistic function s of z = x, 1.702 x, or twice GELU's u. The
 * slope is s + x s (1-s) z'. e = exp(-|z|) keeps s and s (1-s) finite. Past |x| = 100 the slope's second term is zero
 * in double, and x^3 may overflow, so that term uses x clamped to 100.
 *
 * GELU_ERF: x Phi(x) with the normal distribution's Phi, from erfc, which does not cancel for negative x. The slope is
 * Phi(x) + x phi(x).
 *
 * CLAMP and SCALE have no gate. CLAMP's slope at the limits is 1, as autograd's.
 *
 * With a gate a row is [gate | up], as one product makes it: y = f(gate) up. dx may be x's memory: an element pair is
 * read before it is written.
 */
#include "kernels/host/element/activation.h"

#include <math.h>

#include "kernels/host/ref.h"

#define SQRT_HALF 0.70710678118654752440
#define PHI_0 0.39894228040143267794 /* 1 / sqrt(2 pi) */

struct curve {
  double y, slope;
};

REF_INLINE struct curve sigmoid_curve(double x, double z, double slope_z)
{
  double e = exp(-fabs(z)), r = 1 / (1 + e), s = z < 0 ? e * r : r;
  return (struct curve){x * s, s + x * slope_z * (e * r * r)};
}

REF_INLINE struct curve curve_get(enum lade_activation activation, double limit, double x)
{
  double inner = x > SLOPE_END ? SLOPE_END : x < -SLOPE_END ? -SLOPE_END : x; /* NaN stays */
  switch (activation) {
  case LADE_GELU_TANH:
    return sigmoid_curve(x, 2 * SQRT_2_OVER_PI * (inner + CUBIC * inner * inner * inner),
                         2 * SQRT_2_OVER_PI * (1 + 3 * CUBIC * inner * inner));
  case LADE_GELU_ERF: {
    double phi = 0.5 * erfc(-x * SQRT_HALF);
    return (struct curve){x * phi, phi + inner * PHI_0 * exp(-0.5 * inner * inner)};
  }
  case LADE_GELU_QUICK: return sigmoid_curve(x, QUICK * inner, QUICK);
  case LADE_RELU: return (struct curve){x < 0 ? 0 : x, x > 0}; /* NaN stays */
  case LADE_CLAMP: return (struct curve){x < -limit ? -limit : x > limit ? limit : x, fabs(x) <= limit};
  case LADE_SCALE: return (struct curve){x * limit, limit};
  case LADE_RELU_SQUARED: return (struct curve){x < 0 ? 0 : x * x, x > 0 ? 2 * x : 0};
  default: return sigmoid_curve(x, inner, 1);
  }
}

REF_INLINE void activation_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_activation_fwd_args *a = arg;
  int64_t end = LADE_MIN(a->n_elements, (i_task + 1) * LADE_TASK_ELEMENTS);
  for (int64_t i = i_task * LADE_TASK_ELEMENTS; i < end; i++)
    ref_put(dtype, a->y, i, curve_get(a->activation, (double)a->limit, ref_get(dtype, a->x, i)).y);
}
REF_TASKS(activation_span)

REF_INLINE void activation_bwd_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_activation_bwd_args *a = arg;
  int64_t end = LADE_MIN(a->n_elements, (i_task + 1) * LADE_TASK_ELEMENTS);
  for (int64_t i = i_task * LADE_TASK_ELEMENTS; i < end; i++)
    ref_put(dtype, a->dx, i, ref_get(dtype, a->dy, i) *
                                 curve_get(a->activation, (double)a->limit, ref_get(dtype, a->x, i)).slope);
}
REF_TASKS(activation_bwd_span)

REF_INLINE void gated_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_gated_fwd_args *a = arg;
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    for (int64_t j = 0; j < a->f; j++) {
      double gate = ref_get(dtype, a->x, 2 * row * a->f + j), up = ref_get(dtype, a->x, (2 * row + 1) * a->f + j);
      ref_put(dtype, a->y, row * a->f + j, curve_get(a->activation, 0, gate).y * up);
    }
  }
}
REF_TASKS(gated_rows)

REF_INLINE void gated_bwd_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_gated_bwd_args *a = arg;
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    for (int64_t j = 0; j < a->f; j++) {
      int64_t i_gate = 2 * row * a->f + j, i_up = i_gate + a->f;
      double up = ref_get(dtype, a->x, i_up), dy = ref_get(dtype, a->dy, row * a->f + j);
      struct curve curve = curve_get(a->activation, 0, ref_get(dtype, a->x, i_gate));
      ref_put(dtype, a->dx, i_gate, dy * up * curve.slope);
      ref_put(dtype, a->dx, i_up, dy * curve.y);
    }
  }
}
REF_TASKS(gated_bwd_rows)

void lade_activation_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_activation_fwd_args *a = args;
  activation_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_activation_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_activation_bwd_args *a = args;
  activation_bwd_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_gated_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gated_fwd_args *a = args;
  gated_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(2 * a->f)));
}

void lade_gated_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gated_bwd_args *a = args;
  gated_bwd_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(2 * a->f)));
}

void lade_activation_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ACTIVATION_FWD, lade_activation_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_ACTIVATION_BWD, lade_activation_bwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_GATED_FWD, lade_gated_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_GATED_BWD, lade_gated_bwd_plain, "plain");
}
