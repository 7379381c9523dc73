/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of n ranks' values: y = x[0] + ... + x[n-1], elementwise in F32, over the tree that kernels.h states. Unlike
 * other references it computes in F32, not in double: the order of the sum is the contract, and every layout of the
 * same ranks must give these bits.
 */
#include "base/base.h"
#include "kernels/host/element/element.h"
#include "kernels/host/host.h"

/* Return the sum of terms [first, first + n): recursion as deep as the tree, the logarithm of n. */
static float terms_sum(const struct lade_rank_sum_args *args, int first, int n, int64_t i)
{
  if (n == 1)
    return (float)lade_element_load(args->dtype, args->x[first], i);
  int left = 1;
  while (2 * left < n)
    left *= 2;
  return terms_sum(args, first, left, i) + terms_sum(args, first + left, n - left, i);
}

static void sum_task(void *arg, int i_task, int i_thread)
{
  const struct lade_rank_sum_args *args = arg;
  int64_t from = (int64_t)i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(args->n_elements, from + LADE_TASK_ELEMENTS);
  for (int64_t i = from; i < end; i++)
    lade_element_store(args->dtype, args->y, i, (double)terms_sum(args, 0, args->n_terms, i));
}

void lade_rank_sum_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_rank_sum_args *a = args;
  lade_pool_run(ctx->pool, sum_task, (void *)a, (int)lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_rank_sum_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_RANK_SUM, lade_rank_sum_plain, "plain");
}
