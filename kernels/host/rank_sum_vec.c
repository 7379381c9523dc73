/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_sum.c in vectors: a group of vectors adds all terms before it moves on, so that y is written once and
 * each x is read once, as many streams as there are ranks.
 */
#include "kernels/host/lanes.h"

VEC_INLINE void group_step(int64_t i, int count, int n, const struct lade_rank_sum_args *a, enum lade_dtype dtype)
{
  vf sum[VEC_GROUP], term[VEC_GROUP];
  vec_load_group(dtype, a->x[0], i, count, n, sum);
  for (int k = 1; k < a->n_terms; k++) {
    vec_load_group(dtype, a->x[k], i, count, n, term);
    VEC_EACH(j, count) sum[j] = vf_add(sum[j], term[j]);
  }
  vec_store_group(dtype, a->y, i, count, n, sum);
}

VEC_INLINE void sum_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_rank_sum_args, a, arg);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  VEC_GROUP_STEPS(group_step, from, end, a, dtype);
}
VEC_TASKS(sum_span)

static void rank_sum(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_rank_sum_args *a = args;
  if (a->dtype == LADE_F64)
    lade_rank_sum_plain(ctx, args);
  else
    sum_span_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void VEC_NAME(lade_rank_sum_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_RANK_SUM, rank_sum, VEC_VARIANT);
}
