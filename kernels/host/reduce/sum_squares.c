/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of squares of each block of LADE_SUM_BLOCK elements, in F64. The order is part of the contract, so that a
 * block has the same sum on every device: element i of a block goes to lane i mod 16, and each lane adds its squares in
 * order. The lanes are added as a tree (lane j += lane j+8, then 4, 2, 1). The square of an F32 number is exact in F64,
 * so a fused multiply-add makes no difference, and every variant gives these bits. F64 gradients exist in references
 * alone; their squares are rounded, so only this variant computes them.
 */
#include "kernels/host/ref.h"

#define LANES 16

REF_INLINE void block_sum(const void *arg, int64_t block, enum lade_dtype dtype)
{
  const struct lade_sum_squares_args *a = arg;
  int64_t from = block * LADE_SUM_BLOCK, n = LADE_MIN(LADE_SUM_BLOCK, a->n_elements - from);
  double lane[LANES] = {0};
  for (int64_t i = 0; i < n; i++) {
    double g = ref_get(dtype, a->grad, from + i);
    lane[i % LANES] += g * g;
  }
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; j++)
      lane[j] += lane[j + half];
  }
  a->partial[block] = lane[0];
}
REF_TASKS(block_sum)

void lade_sum_squares_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_sum_squares_args *a = args;
  block_sum_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_SUM_BLOCK));
}

void lade_sum_squares_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_SUM_SQUARES, lade_sum_squares_plain, "plain");
}
