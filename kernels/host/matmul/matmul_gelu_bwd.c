/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product's input gradient with GELU's backward, as the table's two kernels one after the other: the product is
 * rounded where it is stored, and GELU's backward works in place. So the bits are those of two ops.
 */
#include "kernels/host/host.h"

static void matmul_gelu_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_matmul_gelu_bwd_args *a = args;
  struct lade_matmul_args product = a->product;
  const struct lade_gelu_bwd_args gelu = lade_matmul_gelu_get(a);
  LADE_ASSERT(ctx->kernels && !product.bias && !product.accumulate && product.out == product.dtype);
  product.gelu_x = NULL;
  ctx->kernels->fn[LADE_K_MATMUL](ctx, &product);
  ctx->kernels->fn[LADE_K_GELU_BWD](ctx, &gelu);
}

size_t lade_matmul_gelu_bwd_workspace_bytes(const struct lade_matmul_gelu_bwd_args *args, int n_threads)
{
  const struct lade_gelu_bwd_args gelu = lade_matmul_gelu_get(args);
  const size_t product_bytes = lade_matmul_workspace_bytes(&args->product, n_threads);
  return LADE_MAX(product_bytes, lade_gelu_bwd_workspace_bytes(&gelu));
}

void lade_matmul_gelu_bwd_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL_GELU_BWD, matmul_gelu_bwd, "two kernels");
}
