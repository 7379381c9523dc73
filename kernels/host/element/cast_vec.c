/* SPDX-License-Identifier: Apache-2.0 */
/* cast.c in vectors, between F32, BF16 and F16. */
#include "kernels/host/lanes.h"

VEC_INLINE void cast_step(int64_t i, int n, const struct lade_cast_args *a, enum lade_dtype from, enum lade_dtype to)
{
  vec_store(to, a->y, i, n, vec_load(from, a->x, i, n));
}

VEC_INLINE void cast_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_cast_args, a, arg);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  if (a->to == LADE_F32)
    VEC_STEPS(cast_step, from, end, a, dtype, LADE_F32);
  else if (a->to == LADE_BF16)
    VEC_STEPS(cast_step, from, end, a, dtype, LADE_BF16);
  else
    VEC_STEPS(cast_step, from, end, a, dtype, LADE_F16);
}
VEC_TASKS(cast_span)

static void cast(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_cast_args *a = args;
  if (a->from == LADE_F64 || a->to == LADE_F64)
    lade_cast_plain(ctx, args);
  else
    cast_span_run(ctx->pool, a->from, a, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void VEC_NAME(lade_cast_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_CAST, cast, VEC_VARIANT);
}
