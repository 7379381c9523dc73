/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c with stores that bypass the caches. A line that is written whole need not be read first. This saves a third of
 * an ordinary copy's traffic, and the contents of the caches stay. The C library does so only for copies larger than
 * the last-level cache, which on large processors are rare.
 */
#include <string.h>

#include "kernels/host/lanes.h"

#define LINE_BYTES 64

static void copy_span(void *arg, int i_task, int i_thread)
{
  const struct lade_copy_args *a = arg;
  int64_t from = (int64_t)i_task * LADE_COPY_TASK_BYTES, n = LADE_MIN(LADE_COPY_TASK_BYTES, a->n_bytes - from);
  const char *x = (const char *)a->x + from;
  char *y = (char *)a->y + from;
  int64_t head = LADE_MIN(n, (int64_t)(-(uintptr_t)y & (LINE_BYTES - 1))), i = head;
  memcpy(y, x, (size_t)head);
  for (; i + LINE_BYTES <= n; i += LINE_BYTES)
    vu_stream(y + i, vu_load((const uint32_t *)(const void *)(x + i)));
  memcpy(y + i, x + i, (size_t)(n - i));
  vu_stream_end();
}

static void copy(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_copy_args *a = args;
  lade_pool_run(ctx->pool, copy_span, (void *)a, (int)lade_div_up(a->n_bytes, LADE_COPY_TASK_BYTES));
}

void VEC_NAME(lade_copy_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_COPY, copy, VEC_VARIANT);
}
