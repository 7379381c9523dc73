/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout (Srivastava et al. 2014) with the mask drawn again at each use. The draw of an element is a function of
 * (seed, step, stream, element). So no mask is stored, and the backward is the same call on dy.
 */
#include "kernels/host/ref.h"

struct dropout_call {
  const struct lade_step *step;
  const void *args;
};

REF_INLINE void drop_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct dropout_call *call = arg;
  const struct lade_dropout_args *a = call->args;
  int64_t end = LADE_MIN(a->n_elements, (i_task + 1) * LADE_TASK_ELEMENTS);
  for (int64_t i = i_task * LADE_TASK_ELEMENTS; i < end; i++)
    ref_put(dtype, a->y, i, ref_drop(call->step, &a->drop, i, ref_get(dtype, a->x, i)));
}
REF_TASKS(drop_span)

void lade_dropout_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_dropout_args *a = args;
  drop_span_run(ctx->pool, a->dtype, &(struct dropout_call){ctx->step, a},
                lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_dropout_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_DROPOUT, lade_dropout_plain, "plain");
}
