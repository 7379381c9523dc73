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

/*
 * The product with GELU: in 16 bits one kernel, the library's or the plain one. In F32, where the library has none and
 * the stored sum is exact, the product and GELU follow each other.
 */
static void matmul_gelu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  struct lade_matmul_args product = *(const struct lade_matmul_args *)args;
  const struct lade_gelu_fwd_args gelu = {.dtype = product.dtype, .n_elements = product.m * product.n, .x = product.c,
                                          .y = product.gelu_y};
  LADE_ASSERT(product.gelu_y && !product.accumulate && product.out == product.dtype);
  if (product.dtype == LADE_F32)
    product.gelu_y = NULL;
  lade_cuda_matmul(ctx, &product);
  if (!product.gelu_y)
    lade_cuda_gelu_fwd(ctx, &gelu);
}

bool lade_cuda_lacks_gelu(const struct lade_kernels *kernels, const struct lade_matmul_args *args)
{
  return args->dtype != LADE_F32 && kernels->cublaslt && lade_cublaslt_lacks(kernels->cublaslt, args);
}

size_t lade_cuda_matmul_gelu_fwd_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *a)
{
  struct lade_matmul_args product = *a;
  if (product.dtype == LADE_F32)
    product.gelu_y = NULL;
  return lade_cuda_matmul_bytes(kernels, &product);
}

size_t lade_cuda_matmul_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *a)
{
  return kernels->cublaslt ? lade_cublaslt_workspace_bytes(kernels->cublaslt, a) : 0;
}

void lade_cuda_matrix_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_MATMUL] = lade_cuda_matmul;
  kernels->fn[LADE_K_MATMUL_GELU_FWD] = matmul_gelu_fwd;
  kernels->fn[LADE_K_MATMUL_GELU_BWD] = matmul_gelu_bwd;
}
