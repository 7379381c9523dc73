/* SPDX-License-Identifier: Apache-2.0 */
/* y = x + y in F32, elementwise: add a gradient that was copied in. Bound by memory. */
#include "kernels/host/host.h"

static void add_span(void *arg, int i_task, int i_thread)
{
  const struct lade_add_args *a = arg;
  int64_t from = (int64_t)i_task * LADE_TASK_ELEMENTS, n = LADE_MIN(LADE_TASK_ELEMENTS, a->n_elements - from);
  const float *x = a->x + from;
  float *y = a->y + from;
  for (int64_t i = 0; i < n; i++)
    y[i] = x[i] + y[i];
}

static void add_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_add_args *a = args;
  lade_pool_run(ctx->pool, add_span, (void *)a, (int)lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_add_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ADD, add_plain, "plain");
}
