/* SPDX-License-Identifier: Apache-2.0 */
/* Copy bytes that will not be read soon, such as a collective's result. */
#include <string.h>

#include "kernels/host/host.h"

static void copy_span(void *arg, int i_task, int i_thread)
{
  const struct lade_copy_args *a = arg;
  int64_t from = (int64_t)i_task * LADE_COPY_TASK_BYTES;
  memcpy((char *)a->y + from, (const char *)a->x + from, (size_t)LADE_MIN(LADE_COPY_TASK_BYTES, a->n_bytes - from));
}

static void copy_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_copy_args *a = args;
  lade_pool_run(ctx->pool, copy_span, (void *)a, (int)lade_div_up(a->n_bytes, LADE_COPY_TASK_BYTES));
}

void lade_copy_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_COPY, copy_plain, "plain");
}
