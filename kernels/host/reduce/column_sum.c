/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Column sums of x[m,n], the gradient of a bias. A task sums one block of rows into its partial row, which stays in L1
 * while rows stream past; row_sums.c adds the partials. x is read once, so memory bandwidth is the bound.
 */
#include "kernels/host/ref.h"

REF_INLINE void block_sum(const void *arg, int64_t block, enum lade_dtype dtype)
{
  const struct lade_column_sum_args *a = arg;
  enum lade_dtype accumulator = lade_accumulator(dtype);
  int64_t rows = lade_row_block(a->m), end = LADE_MIN(a->m, (block + 1) * rows);
  void *partial = lade_row_sums_at(dtype, a->workspace, a->n, 1, block, 0);
  for (int64_t j = 0; j < a->n; j++)
    ref_put(accumulator, partial, j, 0);
  for (int64_t row = block * rows; row < end; row++) {
    for (int64_t j = 0; j < a->n; j++)
      ref_put(accumulator, partial, j, ref_get(accumulator, partial, j) + ref_get(dtype, a->x, row * a->n + j));
  }
}
REF_TASKS(block_sum)

void lade_column_sum_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_column_sum_args *a = args;
  int64_t n_blocks = lade_div_up(a->m, lade_row_block(a->m));
  block_sum_run(ctx->pool, a->dtype, a, n_blocks);
  lade_row_sums_add(ctx->pool, &(struct lade_row_sums){.accumulator = lade_accumulator(a->dtype),
                                                       .n_blocks = n_blocks,
                                                       .d = a->n,
                                                       .n_outputs = 1,
                                                       .partials = a->workspace,
                                                       .outputs = {a->sum},
                                                       .accumulate = a->accumulate});
}

size_t lade_column_sum_workspace_bytes(const struct lade_column_sum_args *a)
{
  return lade_row_sums_bytes(a->dtype, a->m, a->n, 1);
}

void lade_column_sum_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_COLUMN_SUM, lade_column_sum_plain, "plain");
}
