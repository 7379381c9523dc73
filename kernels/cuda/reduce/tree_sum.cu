/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's part of the norm, with the bits of kernels/host/reduce/tree_sum.c: one block adds all partials (tree.h). The
 * sum of none is zero.
 *
 * Moves 8 bytes for each partial, one to 16,384 elements of a gradient. Bound: latency, as of clip.cu.
 */
#include "kernels/cuda/reduce/tree.h"

LADE_KERNEL(tree_sum, lade_tree_sum_args)
{
  LADE_SHARED(double, sums);
  double sum = tree_sum_block(a.x, a.n, sums);
  if (threadIdx.x == 0)
    *a.sum = sum;
}
LADE_CUDA_EXPORT(tree_sum, lade_tree_sum_args)
