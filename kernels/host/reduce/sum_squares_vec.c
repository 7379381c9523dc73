/* SPDX-License-Identifier: Apache-2.0 */
/* sum_squares.c in vectors: its sixteen lanes are the vector's, and its bits the same. */
#include "kernels/host/lanes.h"

VEC_INLINE void square_step(int64_t i, int n, const struct lade_sum_squares_args *a, vd *sum, enum lade_dtype dtype)
{
  *sum = vd_add_square(*sum, vec_load(dtype, a->grad, i, n));
}

VEC_INLINE void block_sum(const void *arg, int64_t block, enum lade_dtype dtype)
{
  VEC_COPY(lade_sum_squares_args, a, arg);
  int64_t from = block * LADE_SUM_BLOCK, end = LADE_MIN(a->n_elements, from + LADE_SUM_BLOCK);
  vd sum = vd_zero();
  VEC_STEPS(square_step, from, end, a, &sum, dtype);
  a->partial[block] = vd_sum(sum);
}
VEC_TASKS(block_sum)

static void sum_squares(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_sum_squares_args *a = args;
  if (a->dtype == LADE_F64)
    lade_sum_squares_plain(ctx, args);
  else
    block_sum_run(ctx->pool, a->dtype, a, lade_div_up(a->n_elements, LADE_SUM_BLOCK));
}

void VEC_NAME(lade_sum_squares_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_SUM_SQUARES, sum_squares, VEC_VARIANT);
}
