/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c in vectors: the same tasks and blocks, with the rows of norm_vec.h. */
#include <string.h>

#include "kernels/host/rows/norm_vec.h"

VEC_INLINE void norm_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_norm_fwd_args, a, arg);
  int64_t rows = lade_task_rows(a->d), end = LADE_MIN(a->n, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++)
    vec_norm_row(a, row, dtype);
}
VEC_TASKS(norm_rows)

VEC_INLINE void dx_step(int64_t j, int n, const struct norm_bwd_row *row, const struct lade_norm_bwd_args *a,
                        enum lade_dtype dtype)
{
  vec_store(dtype, a->dx, row->at + j, n, norm_bwd_dx(j, n, row, a, dtype));
}

VEC_INLINE void norm_bwd_block(const void *arg, int64_t block, enum lade_dtype dtype)
{
  VEC_COPY(lade_norm_bwd_args, a, arg);
  int64_t rows = lade_row_block(a->n), end = LADE_MIN(a->n, (block + 1) * rows);
  float *d_weight = lade_row_sums_at(dtype, a->workspace, a->d, 2, block, 0);
  const struct norm_bwd_partials partials = {d_weight, d_weight + a->d};
  memset(d_weight, 0, 2 * (size_t)a->d * sizeof(float));
  for (int64_t i_row = block * rows; i_row < end; i_row++) {
    struct norm_bwd_row row = vec_norm_bwd_sum(a, i_row, partials, dtype);
    VEC_STEPS(dx_step, 0, a->d, &row, a, dtype);
  }
}
VEC_TASKS(norm_bwd_block)

static void norm_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_norm_fwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_norm_fwd_plain(ctx, args);
  else
    norm_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->n, lade_task_rows(a->d)));
}

static void norm_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_norm_bwd_args *a = args;
  int64_t n_blocks = lade_div_up(a->n, lade_row_block(a->n));
  if (a->dtype == LADE_F64) {
    lade_norm_bwd_plain(ctx, args);
    return;
  }
  norm_bwd_block_run(ctx->pool, a->dtype, a, n_blocks);
  lade_row_sums_add(ctx->pool, &(struct lade_row_sums){.accumulator = LADE_F32,
                                                       .n_blocks = n_blocks,
                                                       .d = a->d,
                                                       .n_outputs = 2,
                                                       .partials = a->workspace,
                                                       .outputs = {a->d_weight, a->d_bias},
                                                       .accumulate = a->accumulate});
}

void VEC_NAME(lade_norm_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_NORM_FWD, norm_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_NORM_BWD, norm_bwd, VEC_VARIANT);
}
