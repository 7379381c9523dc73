/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of matrix products and attention: a block of threads for a tile of c, or for some rows of a head. */
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/launch_internal.h"

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

/*
 * Over all rows of @n_heads heads, @n_rows to a block, with so many rows and a float for each thread in shared
 * memory.
 */
static struct lade_cuda_launch heads_launch(const void *args, int64_t batch, int64_t time, int64_t n_heads,
                                            int64_t head_dim, int n_rows, int n_shared_rows)
{
  LADE_ASSERT(head_dim <= LADE_CUDA_ATTENTION_MOST_DIM);
  return (struct lade_cuda_launch){
      .grid = {(unsigned)lade_div_up(time, n_rows), (unsigned)n_heads, (unsigned)batch},
      .n_threads = LADE_CUDA_ATTENTION_THREADS, .args = args,
      .shared_bytes = (unsigned)((LADE_CUDA_ATTENTION_THREADS + (size_t)n_shared_rows * (size_t)(head_dim + 1)) *
                                 sizeof(float))};
}

static void attention_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_attention_fwd_args *a = args;
  int n_rows = LADE_CUDA_ATTENTION_FWD_ROWS;
  lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_FWD, a->dtype,
                        heads_launch(a, a->batch, a->time, a->heads, a->head_dim, n_rows,
                                     n_rows + LADE_CUDA_ATTENTION_TILE));
}

static void attention_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_attention_bwd_args *a = args;
  int64_t n_deltas = a->batch * a->heads * a->time;
  int n_rows = LADE_CUDA_ATTENTION_BWD_ROWS, n_shared = 2 * (n_rows + LADE_CUDA_ATTENTION_TILE);
  unsigned n_delta_blocks = (unsigned)lade_div_up(n_deltas * 32, LADE_CUDA_THREADS);
  lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_DELTA, a->dtype,
                        (struct lade_cuda_launch){.grid = {n_delta_blocks}, .args = a});
  lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_DQ, a->dtype,
                        heads_launch(a, a->batch, a->time, a->heads, a->head_dim, n_rows, n_shared));
  lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_DKV, a->dtype,
                        heads_launch(a, a->batch, a->time, a->key_heads, a->head_dim, n_rows, n_shared));
}

size_t lade_cuda_matmul_bytes(const struct lade_kernels *kernels, const struct lade_matmul_args *a)
{
  return kernels->cublaslt ? lade_cublaslt_workspace_bytes(kernels->cublaslt, a) : 0;
}

size_t lade_cuda_attention_bwd_bytes(const struct lade_attention_bwd_args *a)
{
  return (size_t)(a->batch * a->heads * a->time) * sizeof(float);
}

void lade_cuda_matrix_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_MATMUL] = lade_cuda_matmul;
  kernels->fn[LADE_K_ATTENTION_FWD] = attention_fwd;
  kernels->fn[LADE_K_ATTENTION_BWD] = attention_bwd;
}
