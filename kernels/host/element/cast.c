/* SPDX-License-Identifier: Apache-2.0 */
/* y = x in another floating type, rounded to nearest even; from F64 to 16 bits by way of F32. */
#include "kernels/host/ref.h"

/* Convert one span. The second dtype is a constant in each case as well, so that the inner loop has no switch. */
REF_INLINE void span_convert(const struct lade_cast_args *a, int64_t i_task, enum lade_dtype from, enum lade_dtype to)
{
  int64_t end = LADE_MIN(a->n_elements, (i_task + 1) * LADE_TASK_ELEMENTS);
  for (int64_t i = i_task * LADE_TASK_ELEMENTS; i < end; i++)
    ref_put(to, a->y, i, ref_get(from, a->x, i));
}

REF_INLINE void cast_span(const void *arg, int64_t i_task, enum lade_dtype from)
{
  const struct lade_cast_args *a = arg;
  switch (a->to) {
  case LADE_F32: span_convert(a, i_task, from, LADE_F32); break;
  case LADE_BF16: span_convert(a, i_task, from, LADE_BF16); break;
  case LADE_F16: span_convert(a, i_task, from, LADE_F16); break;
  default: span_convert(a, i_task, from, LADE_F64); break;
  }
}
REF_TASKS(cast_span)

void lade_cast_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_cast_args *a = args;
  cast_span_run(ctx->pool, a->from, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_cast_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_CAST, lade_cast_plain, "plain");
}
