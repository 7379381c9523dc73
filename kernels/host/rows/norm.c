/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019) over rows, and their backward. A row is read
 * three times forward and twice backward, from L1 after the first time. So the bound is one read and one write per
 * tensor of [N,d]. The backward also sums the gradients of weight and bias per block of rows (row_sums.c adds the
 * blocks). The rows are in cache then; a second pass over dy and x would double its traffic.
 */
#include <string.h>

#include "kernels/host/rows/norm_ref.h"

REF_INLINE void norm_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_norm_fwd_args *a = arg;
  int64_t rows = lade_task_rows(a->d), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++)
    ref_norm_row(a, row, dtype);
}
REF_TASKS(norm_rows)

REF_INLINE void norm_bwd_block(const void *arg, int64_t block, enum lade_dtype dtype)
{
  const struct lade_norm_bwd_args *a = arg;
  int64_t rows = lade_row_block(a->n), end = LADE_MIN(a->n, (block + 1) * rows);
  void *d_weight = lade_row_sums_at(dtype, a->workspace, a->d, 2, block, 0);
  void *d_bias = lade_row_sums_at(dtype, a->workspace, a->d, 2, block, 1);
  memset(d_weight, 0, 2 * (size_t)a->d * lade_dtype_bytes(lade_accumulator(dtype)));
  for (int64_t row = block * rows; row < end; row++)
    ref_norm_bwd_row(a, row, d_weight, d_bias, dtype);
}
REF_TASKS(norm_bwd_block)

void lade_norm_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_norm_fwd_args *a = args;
  norm_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(a->d)));
}

void lade_norm_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_norm_bwd_args *a = args;
  int64_t n_blocks = lade_div_up(a->n, lade_row_block(a->n));
  norm_bwd_block_run(ctx->pool, a->dtype, a, n_blocks);
  lade_row_sums_add(ctx->pool, &(struct lade_row_sums){.accumulator = lade_accumulator(a->dtype),
                                                       .n_blocks = n_blocks,
                                                       .d = a->d,
                                                       .n_outputs = 2,
                                                       .partials = a->workspace,
                                                       .outputs = {a->d_weight, a->d_bias},
                                                       .accumulate = a->accumulate});
}

size_t lade_norm_bwd_workspace_bytes(const struct lade_norm_bwd_args *a)
{
  return lade_row_sums_bytes(a->dtype, a->n, a->d, 2);
}

void lade_norm_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_NORM_FWD, lade_norm_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_NORM_BWD, lade_norm_bwd_plain, "plain");
}
