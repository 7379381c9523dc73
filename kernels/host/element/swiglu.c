/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SwiGLU (Shazeer 2020): silu(gate) * up, with gate and up side by side in one row, as one matmul makes them. Here e =
 * exp(-|gate|) keeps the sigmoid s and s (1-s) finite for every gate. dx may be x's memory: an element pair is read
 * before it is written.
 */
#include <math.h>

#include "kernels/host/ref.h"

struct sigmoid {
  double s, slope; /* slope = s (1-s) */
};

REF_INLINE struct sigmoid sigmoid_get(double x)
{
  double e = exp(-fabs(x)), r = 1 / (1 + e);
  return (struct sigmoid){x < 0 ? e * r : r, e * r * r};
}

REF_INLINE void swiglu_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_swiglu_fwd_args *a = arg;
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    for (int64_t j = 0; j < a->f; j++) {
      double gate = ref_get(dtype, a->x, 2 * row * a->f + j), up = ref_get(dtype, a->x, (2 * row + 1) * a->f + j);
      ref_put(dtype, a->y, row * a->f + j, gate * sigmoid_get(gate).s * up);
    }
  }
}
REF_TASKS(swiglu_rows)

REF_INLINE void swiglu_bwd_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_swiglu_bwd_args *a = arg;
  int64_t rows = lade_task_rows(2 * a->f), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    for (int64_t j = 0; j < a->f; j++) {
      int64_t i_gate = 2 * row * a->f + j, i_up = i_gate + a->f;
      double gate = ref_get(dtype, a->x, i_gate), up = ref_get(dtype, a->x, i_up);
      double dy = ref_get(dtype, a->dy, row * a->f + j);
      struct sigmoid sigmoid = sigmoid_get(gate);
      ref_put(dtype, a->dx, i_gate, dy * up * (sigmoid.s + gate * sigmoid.slope));
      ref_put(dtype, a->dx, i_up, dy * (gate * sigmoid.s));
    }
  }
}
REF_TASKS(swiglu_bwd_rows)

void lade_swiglu_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_swiglu_fwd_args *a = args;
  swiglu_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(2 * a->f)));
}

void lade_swiglu_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_swiglu_bwd_args *a = args;
  swiglu_bwd_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(2 * a->f)));
}

void lade_swiglu_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_SWIGLU_FWD, lade_swiglu_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_SWIGLU_BWD, lade_swiglu_bwd_plain, "plain");
}
