/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of gradient norms, their sums, the clip result and the update. */
#include "base/moments.h"
#include "kernels/cuda/launch_internal.h"

static void sum_squares(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_sum_squares_args *a = args;
  lade_cuda_launch_grid(ctx, LADE_CUDA_SUM_SQUARES, a->dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)lade_div_up(a->n_elements, LADE_SUM_BLOCK)},
                                                  .n_threads = LADE_CUDA_SUM_THREADS, .args = a,
                                                  .shared_bytes = 2 * LADE_CUDA_SUM_SPAN * sizeof(float)});
}

/* Launch one block, with a double of each thread. */
static void partials_launch(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, const void *args)
{
  lade_cuda_launch_grid(ctx, function, LADE_F32,
                        (struct lade_cuda_launch){.grid = {1}, .args = args,
                                                  .shared_bytes = LADE_CUDA_THREADS * sizeof(double)});
}

static void tree_sum(const struct lade_kernel_ctx *ctx, const void *args)
{
  partials_launch(ctx, LADE_CUDA_TREE_SUM, args);
}

static void clip(const struct lade_kernel_ctx *ctx, const void *args)
{
  partials_launch(ctx, LADE_CUDA_CLIP, args);
}

/* A warp has a run of random words, which lie in shared memory. */
static void adamw(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_adamw_args *a = args;
  const int64_t n_each = LADE_CUDA_THREADS * LADE_CUDA_ADAMW_EACH * LADE_CUDA_ADAMW_TURNS;
  LADE_ASSERT(((uintptr_t)a->m_scales | (uintptr_t)a->v_scales) % sizeof(uint32_t) == 0);
  lade_cuda_launch_grid(ctx, LADE_CUDA_ADAMW, a->dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)lade_div_up(a->n_elements, n_each)}, .args = a,
                                                  .shared_bytes = LADE_CUDA_THREADS / 32 * LADE_DRAW_WORDS *
                                                                  sizeof(uint32_t)});
}

void lade_cuda_optimizer_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_SUM_SQUARES] = sum_squares;
  kernels->fn[LADE_K_TREE_SUM] = tree_sum;
  kernels->fn[LADE_K_CLIP] = clip;
  kernels->fn[LADE_K_ADAMW] = adamw;
}
