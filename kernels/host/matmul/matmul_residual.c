/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product, its bias and the residual stream, as the table's two kernels one after the other: the product is rounded
 * where it is stored, and the residual's kernel adds in place. So the bits are those of two ops.
 */
#include "kernels/host/host.h"

static void matmul_residual(const struct lade_kernel_ctx *ctx, const void *args)
{
  struct lade_matmul_args product = *(const struct lade_matmul_args *)args;
  const struct lade_residual_fwd_args sum = lade_matmul_residual_get(args);
  LADE_ASSERT(ctx->kernels && product.residual != product.c && !product.accumulate && product.out == product.dtype);
  product.bias = product.residual = NULL;
  ctx->kernels->fn[LADE_K_MATMUL](ctx, &product);
  ctx->kernels->fn[LADE_K_RESIDUAL_FWD](ctx, &sum);
}

void lade_matmul_residual_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL_RESIDUAL, matmul_residual, "two kernels");
}
