/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of matrix products: a block of threads for a tile of c. */
#include "kernels/cuda/launch_internal.h"
#include "kernels/cuda/matmul/matmul_cublaslt.h"

void lade_cuda_matmul(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_matmul_args *a = args;
  if (ctx->launcher->product && ctx->launcher->product(ctx->launcher, a))
    return;
  int64_t n_tiles = lade_div_up(a->m, LADE_CUDA_TILE) * lade_div_up(a->n, LADE_CUDA_TILE);
  LADE_ASSERT(n_tiles <= INT32_MAX);
  LADE_ASSERT(!a->accumulate || a->out == LADE_F32);
  unsigned shared_bytes = 2 * LADE_CUDA_SLAB * LADE_CUDA_SLAB_STRIDE * sizeof(float);
  lade_cuda_launch_grid(ctx, LADE_CUDA_MATMUL, a->dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)n_tiles}, .args = a,
                                                  .shared_bytes = shared_bytes});
}

/* Return the bytes of the bias's gradient of one product at the start of the workspace, a multiple of its alignment. */
static size_t bias_row_bytes(const struct lade_matmul_args *a)
{
  return lade_align_up((uint64_t)a->m * sizeof(float), 256);
}

/* Return GELU's backward of @a, in place on the product. */
static struct lade_gelu_bwd_args gelu_get(const struct lade_matmul_gelu_bwd_args *a)
{
  const struct lade_matmul_args *product = &a->product;
  return (struct lade_gelu_bwd_args){.dtype = product->dtype, .n_elements = product->m * product->n, .f = product->n,
                                     .x = product->gelu_x, .dy = product->c, .dx = product->c, .d_bias = a->d_bias,
                                     .accumulate = a->accumulate_bias, .workspace = product->workspace};
}

/* Return the sum that is the bias's gradient. pre: there is one. */
static struct lade_column_sum_args bias_sum_get(const struct lade_matmul_gelu_bwd_args *a)
{
  const struct lade_matmul_args *product = &a->product;
  return (struct lade_column_sum_args){.dtype = product->dtype, .m = product->m, .n = product->n, .x = product->c,
                                       .sum = a->d_bias, .accumulate = a->accumulate_bias,
                                       .workspace = product->workspace};
}

/* The library's product with GELU's slope, if it has one for the shape; else product and GELU's backward. */
static void matmul_gelu_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_matmul_gelu_bwd_args *a = args;
  struct lade_matmul_args product = a->product;
  const struct lade_gelu_bwd_args gelu = gelu_get(a);
  const struct lade_column_sum_args sum = bias_sum_get(a);
  const bool is_one = ctx->launcher->product && ctx->launcher->product(ctx->launcher, &product);
  if (is_one && a->d_bias)
    lade_cuda_column_sum(ctx, &sum);
  if (is_one)
    return;
  product.gelu_x = NULL;
  lade_cuda_matmul(ctx, &product);
  lade_cuda_gelu_bwd(ctx, &gelu);
}

/* Return the scratch of both ways: the library may refuse one of the two products. */
size_t lade_cuda_matmul_gelu_bwd_bytes(const struct lade_kernels *kernels, const struct lade_matmul_gelu_bwd_args *a)
{
  struct lade_matmul_args product = a->product;
  const struct lade_column_sum_args sum = bias_sum_get(a);
  const size_t bias_bytes = a->d_bias ? lade_cuda_column_sum_bytes(&sum) : 0;
  const size_t one_bytes = lade_cuda_matmul_bytes(kernels, &product);
  product.gelu_x = NULL;
  const size_t two_bytes = lade_cuda_matmul_bytes(kernels, &product);
  return LADE_MAX(LADE_MAX(one_bytes, two_bytes), bias_bytes);
}

/* Return the sum that is the bias's gradient behind the product @a, which makes a weight's. */
static struct lade_column_sum_args weight_bias_sum(const struct lade_matmul_args *a)
{
  return (struct lade_column_sum_args){.dtype = a->dtype, .m = a->k, .n = a->m, .x = a->a, .sum = a->d_bias,
                                       .accumulate = a->accumulate_bias, .workspace = a->workspace};
}

/*
 * A weight's gradient, with its bias's by the library in 16 bits: it has read the columns. Its sum is complete before
 * it is added to a gradient. In FP32, and where the library has none, the product and then column sums.
 */
static void matmul_bias_grad(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_matmul_args *a = args;
  const struct lade_column_sum_args sum = weight_bias_sum(a);
  struct lade_matmul_args product = *a;
  LADE_ASSERT(a->layout == LADE_TN && a->out == LADE_F32 && !a->bias && a->d_bias);
  if (a->accumulate_bias)
    product.d_bias = a->workspace;
  product.workspace = (char *)a->workspace + bias_row_bytes(a);
  if (a->dtype != LADE_F32 && ctx->launcher->product && ctx->launcher->product(ctx->launcher, &product)) {
    if (a->accumulate_bias)
      lade_cuda_row_sums_launch(ctx, &(struct lade_cuda_row_sums){.n_blocks = 1, .d = a->m, .n_outputs = 1,
                                                                  .partials = product.d_bias, .outputs = {a->d_bias},
                                                                  .accumulate = true});
    return;
  }
  product.d_bias = NULL;
  lade_cuda_matmul(ctx, &product);
  lade_cuda_column_sum(ctx, &sum);
}

/* Return the scratch of both ways: the library may refuse one of the two products. */
size_t lade_cuda_matmul_bias_grad_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *a)
{
  struct lade_matmul_args product = *a;
  const struct lade_column_sum_args sum = weight_bias_sum(a);
  const size_t one_bytes = lade_cuda_matmul_bytes(kernels, &product);
  product.d_bias = NULL;
  const size_t two_bytes = LADE_MAX(lade_cuda_matmul_bytes(kernels, &product), lade_cuda_column_sum_bytes(&sum));
  return bias_row_bytes(a) + LADE_MAX(one_bytes, two_bytes);
}

/*
 * The library's product, to which it adds the residual before it rounds, in 16 bits. In FP32, and where the library has
 * none, the product and then the residual's kernel, in place.
 */
static void matmul_residual(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_matmul_args *a = args;
  const struct lade_residual_fwd_args sum = {.dtype = a->dtype, .kind = LADE_NORM_NONE, .n = a->m, .d = a->n,
                                             .drop = {.scale = 1}, .x = a->c, .bias = a->bias, .residual = a->residual,
                                             .sum = a->c};
  struct lade_matmul_args product = *a;
  LADE_ASSERT(a->residual && a->residual != a->c && !a->accumulate && a->out == a->dtype);
  if (a->dtype != LADE_F32 && ctx->launcher->product && ctx->launcher->product(ctx->launcher, a))
    return;
  product.bias = product.residual = NULL;
  lade_cuda_matmul(ctx, &product);
  lade_cuda_residual_fwd(ctx, &sum);
}

/* Return the scratch of both ways: the library may refuse one of the two products. */
size_t lade_cuda_matmul_residual_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *a)
{
  struct lade_matmul_args product = *a;
  const size_t one_bytes = lade_cuda_matmul_bytes(kernels, &product);
  product.bias = NULL;
  return LADE_MAX(one_bytes, lade_cuda_matmul_bytes(kernels, &product));
}

size_t lade_cuda_matmul_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *a)
{
  return kernels->cublaslt ? lade_cublaslt_workspace_bytes(kernels->cublaslt, a) : 0;
}

void lade_cuda_matrix_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_MATMUL] = lade_cuda_matmul;
  kernels->fn[LADE_K_MATMUL_GELU_BWD] = matmul_gelu_bwd;
  kernels->fn[LADE_K_MATMUL_RESIDUAL] = matmul_residual;
  kernels->fn[LADE_K_MATMUL_BIAS_GRAD] = matmul_bias_grad;
}
