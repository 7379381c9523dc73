/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activation.c in vectors; the exponential is lanes.h's.
 *
 * The normal distribution's upper tail at t = |x| is exp(-t^2/2) w P(w) with w = 1 / (1 + 0.3 t), the form of
 * Abramowitz and Stegun 26.2.17. P is of degree 9, fitted in Chebyshev nodes of w over t from 0 to 15: its relative
 * error is below 4e-9, so rounding dominates. The slope needs the same exponential.
 */
#include "kernels/host/element/activation.h"

#include "kernels/host/lanes.h"

#define PHI_0 0.39894228f /* 1 / sqrt(2 pi) */
#define TAIL_SLOPE 0.3f

static const float tail[] = {-0.0208333172f, 0.11356315f,   -0.230830342f, 0.19521828f, -0.0822233781f,
                             0.0976237804f,  0.0778972432f, 0.110337257f,  0.11956007f, 0.119687267f};

/* Compute Phi(x) and the density phi(x). */
VEC_INLINE void vec_normal(const vf *x, vf *ret_phi, vf *ret_density, int count)
{
  vf e[VEC_GROUP], w[VEC_GROUP], p[VEC_GROUP];
  VEC_EACH(k, count) w[k] = vf_from_bits(vu_and(vu_bits(x[k]), vu_set(0x7fffffff)));
  VEC_EACH(k, count) e[k] = vf_mul(vf_mul(w[k], w[k]), vf_set(-0.5f));
  vec_exp(e, count);
  VEC_EACH(k, count) w[k] = vf_div(vf_set(1), vf_fma(w[k], vf_set(TAIL_SLOPE), vf_set(1)));
  VEC_EACH(k, count) p[k] = vf_set(tail[0]);
  for (size_t i = 1; i < sizeof(tail) / sizeof(tail[0]); i++)
    vec_polynomial_add(p, w, tail[i], count);
  VEC_EACH(k, count) p[k] = vf_mul(vf_mul(p[k], w[k]), e[k]);
  VEC_EACH(k, count) ret_phi[k] = vf_where_negative(x[k], p[k], vf_sub(vf_set(1), p[k]));
  VEC_EACH(k, count) ret_density[k] = vf_mul(e[k], vf_set(PHI_0));
}

/* Compute 1 for x > 0, else 0. */
VEC_INLINE vf vec_is_positive(vf x)
{
  vf one_or_zero = vf_where_negative(vf_sub(vf_set(0), x), vf_set(1), vf_set(0)); /* 0 - 0 is +0 */
  return one_or_zero;
}

/* Set y = f(x) and its slope of each vector; x is clamped where the slope needs it. */
VEC_INLINE void vec_curve(enum lade_activation activation, float limit, const vf *x, vf *y, vf *slope, int count)
{
  vf z[VEC_GROUP], s[VEC_GROUP], inner[VEC_GROUP], slope_z[VEC_GROUP];
  if (activation == LADE_CLAMP) { /* past the limit, limit - |x| is negative */
    VEC_EACH(k, count) s[k] = vf_sub(vf_set(limit), vf_from_bits(vu_and(vu_bits(x[k]), vu_set(0x7fffffff))));
    VEC_EACH(k, count) y[k] = vf_min(vf_set(limit), vf_max(vf_set(-limit), x[k]));
    VEC_EACH(k, count) slope[k] = vf_where_negative(s[k], vf_set(0), vf_set(1));
    return;
  }
  if (activation == LADE_SCALE) {
    VEC_EACH(k, count) y[k] = vf_mul(x[k], vf_set(limit));
    VEC_EACH(k, count) slope[k] = vf_set(limit);
    return;
  }
  if (activation == LADE_RELU || activation == LADE_RELU_SQUARED) {
    VEC_EACH(k, count) s[k] = vec_is_positive(x[k]);
    VEC_EACH(k, count) z[k] = vf_max(vf_set(0), x[k]);
    VEC_EACH(k, count) y[k] = activation == LADE_RELU ? z[k] : vf_mul(z[k], z[k]);
    VEC_EACH(k, count) slope[k] = activation == LADE_RELU ? s[k] : vf_add(z[k], z[k]);
    return;
  }
  VEC_EACH(k, count) inner[k] = vf_min(vf_set((float)SLOPE_END), vf_max(vf_set(-(float)SLOPE_END), x[k]));
  if (activation == LADE_GELU_ERF) {
    vec_normal(inner, s, z, count);
    VEC_EACH(k, count) y[k] = vf_mul(x[k], s[k]);
    VEC_EACH(k, count) slope[k] = vf_fma(inner[k], z[k], s[k]);
    return;
  }
  VEC_EACH(k, count) slope_z[k] = vf_set(activation == LADE_GELU_QUICK ? (float)QUICK : 1);
  VEC_EACH(k, count) z[k] = vf_mul(inner[k], slope_z[k]);
  if (activation == LADE_GELU_TANH) {
    VEC_EACH(k, count) z[k] = vf_mul(inner[k], inner[k]);
    VEC_EACH(k, count) slope_z[k] = vf_fma(z[k], vf_set((float)(6 * SQRT_2_OVER_PI * CUBIC)),
                                           vf_set((float)(2 * SQRT_2_OVER_PI)));
    VEC_EACH(k, count) z[k] = vf_mul(inner[k], vf_fma(z[k], vf_set((float)(2 * SQRT_2_OVER_PI * CUBIC)),
                                                      vf_set((float)(2 * SQRT_2_OVER_PI))));
  }
  vec_sigmoid(z, s, slope, count);
  VEC_EACH(k, count) y[k] = vf_mul(x[k], s[k]);
  VEC_EACH(k, count) slope[k] = vf_fma(vf_mul(inner[k], slope_z[k]), slope[k], s[k]);
}

/*
 * Compute the curves of one vector, at the end of a span. Not inlined: the kernels below would take three times as long
 * to compile.
 */
static __attribute__((noinline)) void curve_one(enum lade_activation activation, float limit, const vf *x, vf *y,
                                                vf *slope)
{
  switch (activation) {
  case LADE_GELU_TANH: vec_curve(LADE_GELU_TANH, limit, x, y, slope, 1); break;
  case LADE_GELU_ERF: vec_curve(LADE_GELU_ERF, limit, x, y, slope, 1); break;
  case LADE_GELU_QUICK: vec_curve(LADE_GELU_QUICK, limit, x, y, slope, 1); break;
  case LADE_RELU: vec_curve(LADE_RELU, limit, x, y, slope, 1); break;
  case LADE_RELU_SQUARED: vec_curve(LADE_RELU_SQUARED, limit, x, y, slope, 1); break;
  case LADE_SCALE: vec_curve(LADE_SCALE, limit, x, y, slope, 1); break;
  case LADE_CLAMP: vec_curve(LADE_CLAMP, limit, x, y, slope, 1); break;
  default: vec_curve(LADE_SILU, limit, x, y, slope, 1); break;
  }
}

/* vec_curve, inlined for groups alone. */
VEC_INLINE void curve_call(enum lade_activation activation, float limit, const vf *x, vf *y, vf *slope, int count)
{
  if (count == 1)
    curve_one(activation, limit, x, y, slope);
  else
    vec_curve(activation, limit, x, y, slope, count);
}

VEC_INLINE void activation_step(int64_t i, int count, int n, const struct lade_activation_fwd_args *a,
                                enum lade_activation activation, enum lade_dtype dtype)
{
  vf x[VEC_GROUP], y[VEC_GROUP], slope[VEC_GROUP];
  vec_load_group(dtype, a->x, i, count, n, x);
  curve_call(activation, a->limit, x, y, slope, count);
  vec_store_group(dtype, a->y, i, count, n, y);
}

VEC_INLINE void activation_bwd_step(int64_t i, int count, int n, const struct lade_activation_bwd_args *a,
                                    enum lade_activation activation, enum lade_dtype dtype)
{
  vf x[VEC_GROUP], dy[VEC_GROUP], y[VEC_GROUP], slope[VEC_GROUP];
  vec_load_group(dtype, a->x, i, count, n, x);
  vec_load_group(dtype, a->dy, i, count, n, dy);
  curve_call(activation, a->limit, x, y, slope, count);
  VEC_EACH(k, count) dy[k] = vf_mul(dy[k], slope[k]);
  vec_store_group(dtype, a->dx, i, count, n, dy);
}

VEC_INLINE void gated_step(int64_t j, int count, int n, const struct lade_gated_fwd_args *a, int64_t row,
                           enum lade_activation activation, enum lade_dtype dtype)
{
  vf gate[VEC_GROUP], up[VEC_GROUP], y[VEC_GROUP], slope[VEC_GROUP];
  vec_load_group(dtype, a->x, 2 * row * a->f + j, count, n, gate);
  vec_load_group(dtype, a->x, (2 * row + 1) * a->f + j, count, n, up);
  curve_call(activation, 0, gate, y, slope, count);
  VEC_EACH(k, count) y[k] = vf_mul(y[k], up[k]);
  vec_store_group(dtype, a->y, row * a->f + j, count, n, y);
}

VEC_INLINE void gated_bwd_step(int64_t j, int count, int n, const struct lade_gated_bwd_args *a, int64_t row,
                               enum lade_activation activation, enum lade_dtype dtype)
{
  int64_t i_gate = 2 * row * a->f + j, i_up = i_gate + a->f;
  vf gate[VEC_GROUP], up[VEC_GROUP], dy[VEC_GROUP], y[VEC_GROUP], slope[VEC_GROUP];
  vec_load_group(dtype, a->x, i_gate, count, n, gate);
  vec_load_group(dtype, a->x, i_up, count, n, up);
  vec_load_group(dtype, a->dy, row * a->f + j, count, n, dy);
  curve_call(activation, 0, gate, y, slope, count);
  VEC_EACH(k, count) up[k] = vf_mul(vf_mul(dy[k], up[k]), slope[k]);
  VEC_EACH(k, count) y[k] = vf_mul(dy[k], y[k]);
  vec_store_group(dtype, a->dx, i_gate, count, n, up);
  vec_store_group(dtype, a->dx, i_up, count, n, y);
}

/* Run steps with the activation as a constant. */
#define ACTIVATION_STEPS(step, from, end, ...) \
  switch (a->activation) { \
  case LADE_GELU_TANH: VEC_GROUP_STEPS(step, from, end, __VA_ARGS__, LADE_GELU_TANH, dtype); break; \
  case LADE_GELU_ERF: VEC_GROUP_STEPS(step, from, end, __VA_ARGS__, LADE_GELU_ERF, dtype); break; \
  case LADE_GELU_QUICK: VEC_GROUP_STEPS(step, from, end, __VA_ARGS__, LADE_GELU_QUICK, dtype); break; \
  case LADE_RELU: VEC_GROUP_STEPS(step, from, end, __VA_ARGS__, LADE_RELU, dtype); break; \
  case LADE_RELU_SQUARED: VEC_GROUP_STEPS(step, from, end, __VA_ARGS__, LADE_RELU_SQUARED, dtype); break; \
  case LADE_SCALE: VEC_GROUP_STEPS(step, from, end, __VA_ARGS__, LADE_SCALE, dtype); break; \
  case LADE_CLAMP: VEC_GROUP_STEPS(step, from, end, __VA_ARGS__, LADE_CLAMP, dtype); break; \
  default: VEC_GROUP_STEPS(step, from, end, __VA_ARGS__, LADE_SILU, dtype); break; \
  }

VEC_INLINE void activation_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_activation_fwd_args, a, arg);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  ACTIVATION_STEPS(activation_step, from, end, a)
}
VEC_TASKS(activation_span)

VEC_INLINE void activation_bwd_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_activation_bwd_args, a, arg);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  ACTIVATION_STEPS(activation_bwd_step, from, end, a)
}
VEC_TASKS(activation_bwd_span)

VEC_INLINE void gated_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_gated_fwd_args, a, arg);
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    ACTIVATION_STEPS(gated_step, 0, a->f, a, row)
  }
}
VEC_TASKS(gated_rows)

VEC_INLINE void gated_bwd_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_gated_bwd_args, a, arg);
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    ACTIVATION_STEPS(gated_bwd_step, 0, a->f, a, row)
  }
}
VEC_TASKS(gated_bwd_rows)

static void activation_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_activation_fwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_activation_fwd_plain(ctx, args);
  else
    activation_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

static void activation_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_activation_bwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_activation_bwd_plain(ctx, args);
  else
    activation_bwd_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

static void gated_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gated_fwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_gated_fwd_plain(ctx, args);
  else
    gated_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(2 * a->f)));
}

static void gated_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gated_bwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_gated_bwd_plain(ctx, args);
  else
    gated_bwd_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(2 * a->f)));
}

void VEC_NAME(lade_activation_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ACTIVATION_FWD, activation_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_ACTIVATION_BWD, activation_bwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_GATED_FWD, gated_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_GATED_BWD, gated_bwd, VEC_VARIANT);
}
