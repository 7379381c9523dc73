/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the elementwise kernels: a thread for LADE_CUDA_TURNS packs of 16 bytes, of the widest type moved. */
#include "kernels/cuda/launch_internal.h"

#define PACK_BYTES 16

static int64_t packs(enum lade_dtype dtype, int64_t n_elements)
{
  return lade_div_up(n_elements * (int64_t)lade_dtype_bytes(dtype), PACK_BYTES);
}

static void elements_launch(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                            int64_t n_packs, const void *args)
{
  lade_cuda_launch_items(ctx, function, dtype, lade_div_up(n_packs, LADE_CUDA_TURNS), args);
}

static void add(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_add_args *a = args;
  elements_launch(ctx, LADE_CUDA_ADD, LADE_F32, packs(LADE_F32, a->n_elements), a);
}

static void cast(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_cast_args *a = args;
  int64_t n_packs = LADE_MAX(packs(a->from, a->n_elements), packs(a->to, a->n_elements));
  elements_launch(ctx, LADE_CUDA_CAST, a->from, n_packs, a);
}

static void dropout(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_dropout_args *a = args;
  elements_launch(ctx, LADE_CUDA_DROPOUT, a->dtype, packs(a->dtype, a->n_elements), a);
}

void lade_cuda_gelu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gelu_fwd_args *a = args;
  elements_launch(ctx, LADE_CUDA_GELU_FWD, a->dtype, packs(a->dtype, a->n_elements), a);
}

/* Return the sum that is the bias's gradient. pre: there is one. */
static struct lade_column_sum_args gelu_bias_sum(const struct lade_gelu_bwd_args *a)
{
  return (struct lade_column_sum_args){.dtype = a->dtype, .m = a->n_elements / a->f, .n = a->f, .x = a->dx,
                                       .sum = a->d_bias, .accumulate = a->accumulate, .workspace = a->workspace};
}

void lade_cuda_gelu_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gelu_bwd_args *a = args;
  if (!a->d_bias) {
    elements_launch(ctx, LADE_CUDA_GELU_BWD, a->dtype, packs(a->dtype, a->n_elements), a);
    return;
  }
  const struct lade_column_sum_args sum = gelu_bias_sum(a);
  lade_cuda_columns_launch(ctx, LADE_CUDA_GELU_BWD_COLUMNS, a, &sum);
}

size_t lade_cuda_gelu_bwd_bytes(const struct lade_gelu_bwd_args *a)
{
  const struct lade_column_sum_args sum = a->d_bias ? gelu_bias_sum(a) : (struct lade_column_sum_args){0};
  return a->d_bias ? lade_cuda_column_sum_bytes(&sum) : 0;
}

/* Launch a block for a row of @f columns, or for a part of a long row; whole warps, all parts of about equal length. */
static void swiglu_launch(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                          int64_t n, int64_t f, const void *args)
{
  int64_t n_packs = lade_cuda_row_packs(dtype, f), n_threads = lade_div_up(n_packs, LADE_CUDA_TURNS);
  int64_t n_parts = lade_div_up(n_threads, LADE_CUDA_THREADS);
  n_threads = lade_align_up((uint64_t)lade_div_up(n_threads, n_parts), 32);
  lade_cuda_launch_grid(ctx, function, dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)n, (unsigned)n_parts},
                                                  .n_threads = (unsigned)n_threads, .args = args});
}

static void swiglu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_swiglu_fwd_args *a = args;
  swiglu_launch(ctx, LADE_CUDA_SWIGLU_FWD, a->dtype, a->n, a->f, a);
}

static void swiglu_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_swiglu_bwd_args *a = args;
  swiglu_launch(ctx, LADE_CUDA_SWIGLU_BWD, a->dtype, a->n, a->f, a);
}

static void activation_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_activation_fwd_args *a = args;
  elements_launch(ctx, LADE_CUDA_ACTIVATION_FWD, a->dtype, packs(a->dtype, a->n_elements), a);
}

static void activation_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_activation_bwd_args *a = args;
  elements_launch(ctx, LADE_CUDA_ACTIVATION_BWD, a->dtype, packs(a->dtype, a->n_elements), a);
}

static void gated_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gated_fwd_args *a = args;
  swiglu_launch(ctx, LADE_CUDA_GATED_FWD, a->dtype, a->n, a->f, a);
}

static void gated_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gated_bwd_args *a = args;
  swiglu_launch(ctx, LADE_CUDA_GATED_BWD, a->dtype, a->n, a->f, a);
}

void lade_cuda_element_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_ACTIVATION_FWD] = activation_fwd;
  kernels->fn[LADE_K_ACTIVATION_BWD] = activation_bwd;
  kernels->fn[LADE_K_GATED_FWD] = gated_fwd;
  kernels->fn[LADE_K_GATED_BWD] = gated_bwd;
  kernels->fn[LADE_K_ADD] = add;
  kernels->fn[LADE_K_CAST] = cast;
  kernels->fn[LADE_K_DROPOUT] = dropout;
  kernels->fn[LADE_K_GELU_FWD] = lade_cuda_gelu_fwd;
  kernels->fn[LADE_K_GELU_BWD] = lade_cuda_gelu_bwd;
  kernels->fn[LADE_K_SWIGLU_FWD] = swiglu_fwd;
  kernels->fn[LADE_K_SWIGLU_BWD] = swiglu_bwd;
}
