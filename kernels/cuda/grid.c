/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grids: how many blocks a launch has.
 *
 * A grid follows from the arguments alone, as every cut of a sum does: the same call has the same bits on every GPU,
 * but for sums within a product by tensor cores, whose order is the hardware's. Elementwise kernels have at most
 * MAX_BLOCKS blocks whose threads take turns, enough to fill any GPU many times.
 */
#include "kernels/cuda/launch_internal.h"

#define MAX_BLOCKS 8192
#define PACK_BYTES 16

void lade_cuda_launch_grid(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                           struct lade_cuda_launch launch)
{
  LADE_ASSERT((int)dtype < LADE_CUDA_DTYPES);
  launch.place = (int)function * LADE_CUDA_DTYPES + (int)dtype;
  launch.n_threads = launch.n_threads ? launch.n_threads : LADE_CUDA_THREADS;
  launch.grid[1] = launch.grid[1] ? launch.grid[1] : 1;
  launch.grid[2] = launch.grid[2] ? launch.grid[2] : 1;
  ctx->launcher->launch(ctx->launcher, &launch, ctx->step);
}

void lade_cuda_launch_items(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                            int64_t n_items, const void *args)
{
  int64_t n_blocks = LADE_MAX(1, LADE_MIN(MAX_BLOCKS, lade_div_up(n_items, LADE_CUDA_THREADS)));
  lade_cuda_launch_grid(ctx, function, dtype, (struct lade_cuda_launch){.grid = {(unsigned)n_blocks}, .args = args});
}

int64_t lade_cuda_row_packs(enum lade_dtype dtype, int64_t d)
{
  int64_t n = PACK_BYTES / (int64_t)lade_dtype_bytes(dtype);
  return d % n == 0 ? d / n : d;
}
