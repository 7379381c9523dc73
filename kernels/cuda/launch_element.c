/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the elementwise kernels: a thread for each 16 bytes, each four elements, or each element. */
#include "kernels/cuda/launch_internal.h"

#define PACK_BYTES 16

static int64_t packs(enum lade_dtype dtype, int64_t n_elements)
{
  return lade_div_up(n_elements * (int64_t)lade_dtype_bytes(dtype), PACK_BYTES);
}

static void add(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_add_args *a = args;
  lade_cuda_launch_items(ctx, LADE_CUDA_ADD, LADE_F32, packs(LADE_F32, a->n_elements), a);
}

static void cast(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_cast_args *a = args;
  lade_cuda_launch_items(ctx, LADE_CUDA_CAST, a->from, a->n_elements, a);
}

static void dropout(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_dropout_args *a = args;
  lade_cuda_launch_items(ctx, LADE_CUDA_DROPOUT, a->dtype, lade_div_up(a->n_elements, 4) + 1, a);
}

static void gelu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gelu_fwd_args *a = args;
  lade_cuda_launch_items(ctx, LADE_CUDA_GELU_FWD, a->dtype, packs(a->dtype, a->n_elements), a);
}

static void gelu_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_gelu_bwd_args *a = args;
  lade_cuda_launch_items(ctx, LADE_CUDA_GELU_BWD, a->dtype, packs(a->dtype, a->n_elements), a);
}

static void swiglu_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_swiglu_fwd_args *a = args;
  lade_cuda_launch_items(ctx, LADE_CUDA_SWIGLU_FWD, a->dtype, packs(a->dtype, a->n * a->f), a);
}

static void swiglu_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_swiglu_bwd_args *a = args;
  lade_cuda_launch_items(ctx, LADE_CUDA_SWIGLU_BWD, a->dtype, packs(a->dtype, a->n * a->f), a);
}

void lade_cuda_element_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_ADD] = add;
  kernels->fn[LADE_K_CAST] = cast;
  kernels->fn[LADE_K_DROPOUT] = dropout;
  kernels->fn[LADE_K_GELU_FWD] = gelu_fwd;
  kernels->fn[LADE_K_GELU_BWD] = gelu_bwd;
  kernels->fn[LADE_K_SWIGLU_FWD] = swiglu_fwd;
  kernels->fn[LADE_K_SWIGLU_BWD] = swiglu_bwd;
}
