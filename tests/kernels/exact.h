/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of the tests of products, attention and the head: every level of this machine, and operands in a dtype
 * with the same values in double. A result's error is its distance from the plain reference in double.
 */
#ifndef LADE_TESTS_EXACT_H
#define LADE_TESTS_EXACT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/philox.h"
#include "kernels/host/element/element.h"
#include "kernels/host/host.h"
#include "levels.h"

#define SEED 20250807

enum values { RANDOM, ALL_MIN, ALL_MAX };

static inline void *memory_make(size_t n_bytes)
{
  void *memory = level_alloc(n_bytes + 1);
  assert_non_null(memory);
  memset(memory, 0, n_bytes);
  return memory;
}

static inline double value_draw(enum values values, uint32_t stream, int64_t i)
{
  if (values == ALL_MIN)
    return -2;
  if (values == ALL_MAX)
    return 2;
  return (double)lade_philox_word(SEED, 0, stream, (uint64_t)i) / 0x1p31 - 1;
}

/* Make @n values in @dtype, and exactly the same values in double in *@ret_exact. */
static inline void *operand_make(enum lade_dtype dtype, enum values values, uint32_t stream, int64_t n,
                                 void **ret_exact)
{
  void *data = memory_make((size_t)n * lade_dtype_bytes(dtype));
  double *exact = memory_make((size_t)n * sizeof(double));
  for (int64_t i = 0; i < n; i++) {
    lade_element_store(dtype, data, i, value_draw(values, stream, i));
    exact[i] = lade_element_load(dtype, data, i);
  }
  *ret_exact = exact;
  return data;
}

/* Return half a unit in the last place of @dtype, relative, with a margin for the norm's own rounding. */
static inline double unit_get(enum lade_dtype dtype)
{
  return dtype == LADE_BF16 ? 0x1p-8 : dtype == LADE_F16 ? 0x1p-11 : 0x1p-23;
}

/* Return ||data - exact||, and ||exact||. NaN if any element is. */
static inline double error_get(enum lade_dtype dtype, const void *data, const double *exact, int64_t n,
                               double *ret_norm)
{
  double error = 0, norm = 0;
  for (int64_t i = 0; i < n; i++) {
    double diff = lade_element_load(dtype, data, i) - exact[i];
    error += diff * diff;
    norm += exact[i] * exact[i];
  }
  *ret_norm = sqrt(norm);
  return sqrt(error);
}

/* Call @kernel with a workspace of exactly the stated size, full of NaN; the bytes after it must stay unchanged. */
static inline void kernel_call(const struct lade_kernels *kernels, enum lade_kernel kernel, void *args,
                               void **workspace_field, lade_pool *pool)
{
  static const struct lade_step step = {.seed = SEED, .step = 3, .loss_scale = 1};
  struct lade_kernel_ctx ctx = level_ctx(kernels, pool, &step);
  size_t n_bytes = lade_kernel_workspace_bytes(kernels, kernel, args, lade_pool_n_threads(pool));
  char *workspace = memory_make(n_bytes);
  memset(workspace, 0xff, n_bytes + 1);
  *workspace_field = workspace;
  kernels->fn[kernel](&ctx, args);
  assert_int_equal((unsigned char)workspace[n_bytes], 0xff);
  free(workspace);
}

#endif
