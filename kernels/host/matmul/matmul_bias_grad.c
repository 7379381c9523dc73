/* SPDX-License-Identifier: Apache-2.0 */
/* A weight's gradient and its bias's, as the table's two kernels one after the other, with the bits of two ops. */
#include "kernels/host/host.h"

static void matmul_bias_grad(const struct lade_kernel_ctx *ctx, const void *args)
{
  struct lade_matmul_args product = *(const struct lade_matmul_args *)args;
  const struct lade_column_sum_args sum = lade_matmul_bias_sum(args);
  LADE_ASSERT(ctx->kernels && product.layout == LADE_TN && !product.bias && product.d_bias);
  product.d_bias = NULL;
  ctx->kernels->fn[LADE_K_MATMUL](ctx, &product);
  ctx->kernels->fn[LADE_K_COLUMN_SUM](ctx, &sum);
}

size_t lade_matmul_bias_grad_workspace_bytes(const struct lade_matmul_args *args, int n_threads)
{
  const struct lade_column_sum_args sum = lade_matmul_bias_sum(args);
  const size_t product_bytes = lade_matmul_workspace_bytes(args, n_threads);
  return LADE_MAX(product_bytes, lade_column_sum_workspace_bytes(&sum));
}

void lade_matmul_bias_grad_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL_BIAS_GRAD, matmul_bias_grad, "two kernels");
}
