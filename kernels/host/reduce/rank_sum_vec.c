/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_sum.c in vectors: a group of vectors adds all terms before the next group. So y is written once and each x is
 * read once, with as many streams as ranks.
 *
 * The tree grows like a binary counter: sums of 2^k terms wait, at most one for each k, where the count has a bit.
 * Pairs are added in registers; waiting sums, four vectors for each level, stay in L1.
 */
#include "kernels/host/lanes.h"

#define LEVELS_MAX 31 /* as many bits as n_terms has */

/* Return x[term] + x[term + 1], or the last one alone. */
VEC_INLINE void pair_sum(int64_t i, int count, int n, const struct lade_rank_sum_args *a, enum lade_dtype dtype,
                         int term, vf *ret_sum)
{
  vf second[VEC_GROUP];
  vec_load_group(dtype, a->x[term], i, count, n, ret_sum);
  if (term + 1 == a->n_terms)
    return;
  vec_load_group(dtype, a->x[term + 1], i, count, n, second);
  VEC_EACH(k, count) ret_sum[k] = vf_add(ret_sum[k], second[k]);
}

VEC_INLINE void group_step(int64_t i, int count, int n, const struct lade_rank_sum_args *a, enum lade_dtype dtype)
{
  vf waiting[LEVELS_MAX][VEC_GROUP], sum[VEC_GROUP];
  int last = (a->n_terms - 1) / 2;
  for (int pair = 0; pair < last; pair++) {
    int level = 0;
    pair_sum(i, count, n, a, dtype, 2 * pair, sum);
    for (; pair >> level & 1; level++)
      VEC_EACH(k, count) sum[k] = vf_add(waiting[level][k], sum[k]);
    VEC_EACH(k, count) waiting[level][k] = sum[k];
  }
  pair_sum(i, count, n, a, dtype, 2 * last, sum);
  for (int level = 0; last >> level; level++) /* all sums that wait */
    if (last >> level & 1)
      VEC_EACH(k, count) sum[k] = vf_add(waiting[level][k], sum[k]);
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
