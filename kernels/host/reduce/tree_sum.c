/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Add doubles in one fixed tree: halves, down to runs of eight. The bits depend on the number and order of the doubles
 * alone. The error grows with the logarithm of the number. clip.c adds by the same tree.
 */
#include "kernels/host/host.h"

#define RUN 8

/* Return the sum. Recursion depth is the logarithm of n: at most 60. */
double lade_tree_sum(const double *x, int64_t n)
{
  if (n > RUN)
    return lade_tree_sum(x, n / 2) + lade_tree_sum(x + n / 2, n - n / 2);
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += x[i];
  return sum;
}

static void tree_sum_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_tree_sum_args *a = args;
  *a->sum = lade_tree_sum(a->x, a->n);
}

void lade_tree_sum_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_TREE_SUM, tree_sum_plain, "plain");
}
