/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product and GELU of its sums before they are rounded.
 *
 * In F32 and F64 the stored value is the sum, so the table's two kernels follow each other. In 16 bits the product of a
 * block of rows goes into scratch in F32, and a pass over it rounds the sum and its GELU. An element's bits do not
 * depend on the cut of the rows, so c has the bits of LADE_K_MATMUL. Blocks bound the scratch, which is planned.
 *
 * Rejected: GELU in the micro-kernels, which would spare the pass. Each level would need an exponential of its own
 * there, and hosts are bound by products.
 */
#include "kernels/host/host.h"

#define BLOCK_ROWS 512 /* a block packs the weight again, which is little work beside so many rows */

static bool is_wide(const struct lade_matmul_args *args)
{
  return args->dtype == lade_accumulator(args->dtype);
}

/* Return the product of the rows from @first on, of one block, into @sums. */
static struct lade_matmul_args block_get(const struct lade_matmul_args *args, int64_t first, void *sums)
{
  struct lade_matmul_args block = *args;
  block.m = LADE_MIN(BLOCK_ROWS, args->m - first);
  block.a = (const char *)args->a + first * args->k * (int64_t)lade_dtype_bytes(args->dtype);
  block.out = LADE_F32;
  block.c = sums;
  block.gelu_y = NULL;
  return block;
}

/* Return the scratch for the sums of a block, before that of its product. */
static size_t sums_bytes(const struct lade_matmul_args *args)
{
  return lade_align_up((size_t)(LADE_MIN(BLOCK_ROWS, args->m) * args->n) * sizeof(float), 64);
}

static void two_kernels_run(const struct lade_kernel_ctx *ctx, const struct lade_matmul_args *args)
{
  struct lade_matmul_args product = *args;
  const struct lade_gelu_fwd_args gelu = {.dtype = args->dtype, .n_elements = args->m * args->n, .x = args->c,
                                          .y = args->gelu_y};
  product.gelu_y = NULL;
  ctx->kernels->fn[LADE_K_MATMUL](ctx, &product);
  ctx->kernels->fn[LADE_K_GELU_FWD](ctx, &gelu);
}

void lade_matmul_gelu_fwd_run(const struct lade_kernel_ctx *ctx, const struct lade_matmul_args *args,
                              lade_gelu_sums_fn *finish)
{
  LADE_ASSERT(ctx->kernels && args->layout != LADE_TN && !args->accumulate && args->out == args->dtype);
  if (is_wide(args)) {
    two_kernels_run(ctx, args);
    return;
  }
  for (int64_t first = 0; first < args->m; first += BLOCK_ROWS) {
    struct lade_matmul_args block = block_get(args, first, args->workspace);
    const int64_t offset = first * args->n * (int64_t)lade_dtype_bytes(args->dtype);
    const struct lade_gelu_sums sums = {.dtype = args->dtype, .n_elements = block.m * args->n, .sums = block.c,
                                        .x = (char *)args->c + offset, .y = (char *)args->gelu_y + offset};
    block.workspace = (char *)args->workspace + sums_bytes(args);
    ctx->kernels->fn[LADE_K_MATMUL](ctx, &block);
    finish(ctx->pool, &sums);
  }
}

static void matmul_gelu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  lade_matmul_gelu_fwd_run(ctx, args, lade_gelu_sums_plain);
}

size_t lade_matmul_gelu_fwd_workspace_bytes(const struct lade_matmul_args *args, int n_threads)
{
  if (is_wide(args))
    return lade_matmul_workspace_bytes(args, n_threads);
  const struct lade_matmul_args block = block_get(args, 0, NULL);
  return sums_bytes(args) + lade_matmul_workspace_bytes(&block, n_threads);
}

void lade_matmul_gelu_fwd_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL_GELU_FWD, matmul_gelu_fwd, "plain");
}
