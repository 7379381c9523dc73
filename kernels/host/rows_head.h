/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of logits over the vectors of one level (vec_avx*.h, included before this): their running maximum
 * and sum, and their gradient. A is FP32 here.
 */
#ifndef LADE_ROWS_HEAD_H
#define LADE_ROWS_HEAD_H

#include <math.h>

#include "base/base.h"
#include "kernels/host/head_loss.h"

static void row_reduce(const struct lade_head_row *row, double *max, double *sum)
{
  const float *logits = row->logits;
  int n = (int)row->n;
  vec largest = vec_set(-INFINITY), added = vec_set(0);
  for (int j = 0; j < n; j += LADE_VEC)
    largest = vec_max(largest, vec_first(n - j, vec_load_part(LADE_F32, logits, j, n - j), vec_set(-INFINITY)));
  double new_max = LADE_MAX(*max, (double)vec_largest(largest));
  vec shift = vec_set((float)new_max);
  for (int j = 0; j < n; j += LADE_VEC) {
    vec value = vec_exp(vec_sub(vec_load_part(LADE_F32, logits, j, n - j), shift));
    added = vec_add(added, vec_first(n - j, value, vec_set(0)));
  }
  *sum = *sum * exp(*max - new_max) + (double)vec_sum(added);
  *max = new_max;
}

/* Two passes over the target's element: all as if it were another's, then that one. */
static inline void row_gradient_in(enum lade_dtype dtype, const struct lade_head_row *row, double lse, double scale,
                                   void *d_logits)
{
  const float *logits = row->logits;
  int n = (int)row->n;
  vec minus_lse = vec_set((float)-lse), by = vec_set((float)scale);
  for (int j = 0; j < n; j += LADE_VEC) {
    vec p = vec_exp(vec_add(vec_load_part(LADE_F32, logits, j, n - j), minus_lse));
    int target = (int)row->target - j;
    if (target >= 0 && target < LADE_VEC)
      p = vec_sub(p, vec_first(target + 1, vec_first(target, vec_set(0), vec_set(1)), vec_set(0)));
    vec_store_part(dtype, d_logits, j, n - j, vec_mul(p, by));
  }
}

static void row_gradient(const struct lade_head_row *row, double lse, double scale, void *d_logits)
{
  switch (row->dtype) {
  case LADE_BF16: row_gradient_in(LADE_BF16, row, lse, scale, d_logits); break;
  case LADE_F16: row_gradient_in(LADE_F16, row, lse, scale, d_logits); break;
  default: row_gradient_in(LADE_F32, row, lse, scale, d_logits); break;
  }
}

static void row_cast(enum lade_dtype dtype, const float *from, int64_t n, void *to)
{
  for (int64_t j = 0; j < n; j += LADE_VEC) {
    int n_lanes = (int)LADE_MIN(n - j, LADE_VEC);
    vec_store_part(dtype, to, j, n_lanes, vec_load_part(LADE_F32, from, j, n_lanes));
  }
}

#endif
