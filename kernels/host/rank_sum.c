/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y = x[0] + x[1] + ... + x[n-1], elementwise, one term after the other in F32: the sum of what n ranks hold, in the
 * order of ranks. Unlike other references this one does not compute in double: its order is the contract, and
 * every layout of the same ranks must give these bits.
 */
#include "kernels/host/ref.h"

REF_INLINE float term_get(enum lade_dtype dtype, const void *x, int64_t i)
{
  return (float)ref_get(dtype, x, i);
}

REF_INLINE void sum_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_rank_sum_args *a = arg;
  int64_t end = LADE_MIN(a->n_elements, (i_task + 1) * LADE_TASK_ELEMENTS);
  for (int64_t i = i_task * LADE_TASK_ELEMENTS; i < end; i++) {
    float sum = term_get(dtype, a->x[0], i);
    for (int term = 1; term < a->n_terms; term++)
      sum += term_get(dtype, a->x[term], i);
    ref_put(dtype, a->y, i, (double)sum);
  }
}
REF_TASKS(sum_span)

void lade_rank_sum_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_rank_sum_args *a = args;
  sum_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_rank_sum_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_RANK_SUM, lade_rank_sum_plain, "plain");
}
