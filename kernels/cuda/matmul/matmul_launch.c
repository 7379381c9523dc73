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

size_t lade_cuda_matmul_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *a)
{
  return kernels->cublaslt ? lade_cublaslt_workspace_bytes(kernels->cublaslt, a) : 0;
}

void lade_cuda_matrix_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_MATMUL] = lade_cuda_matmul;
}
