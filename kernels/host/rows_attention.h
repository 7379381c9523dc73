/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of attention's scores, over the vectors of one level (vec_avx*.h, included before this). The level says
 * with p_store(p, i, value) how it keeps LADE_VEC probabilities from element i on.
 */
#ifndef LADE_ROWS_ATTENTION_H
#define LADE_ROWS_ATTENTION_H

#include <math.h>

#include "base/base.h"
#include "kernels/host/attention_blocked.h"

#define LADE_SCORE_ROWS 16 /* the most rows in one call */

static inline int visible_columns(const struct lade_score_rows *rows, int r)
{
  return LADE_MIN(rows->first_visible + r, rows->n_columns);
}

static inline float row_largest(const float *scores, int n)
{
  vec largest = vec_set(-INFINITY);
  int j = 0;
  for (; j + LADE_VEC <= n; j += LADE_VEC)
    largest = vec_max(largest, vec_load(scores + j));
  if (j < n)
    largest = vec_max(largest, vec_first(n - j, vec_load(scores + j), vec_set(-INFINITY)));
  return vec_largest(largest);
}

/* One row's probabilities; returns their sum before dropout. */
static inline float row_softmax(const struct lade_score_rows *rows, int r, float max, void *p)
{
  int n = visible_columns(rows, r);
  const float *scores = rows->scores + r * rows->stride, *keep = rows->keep ? rows->keep + r * rows->stride : NULL;
  vec sum = vec_set(0), scale = vec_set(rows->scale), minus_max = vec_set(-max);
  for (int j = 0; j < rows->n_columns; j += LADE_VEC) {
    vec value = vec_first(n - j, vec_exp(vec_fma(vec_load(scores + j), scale, minus_max)), vec_set(0));
    sum = vec_add(sum, value);
    if (keep)
      value = vec_first(n - j, vec_mul(value, vec_load(keep + j)), vec_set(0));
    p_store(p, r * rows->stride + j, value);
  }
  return vec_sum(sum);
}

static void rows_softmax(const struct lade_softmax_rows *args)
{
  const struct lade_score_rows *rows = &args->rows;
  float change[LADE_SCORE_ROWS] = {0}, factor[LADE_SCORE_ROWS];
  LADE_ASSERT(rows->n_rows <= LADE_SCORE_ROWS);
  for (int r = 0; r < rows->n_rows; r++) {
    float largest = row_largest(rows->scores + r * rows->stride, visible_columns(rows, r)) * rows->scale;
    float max = LADE_MAX(args->max[r], largest);
    change[r] = args->max[r] - max;
    args->max[r] = max;
  }
  for (int r = 0; r < LADE_SCORE_ROWS; r += LADE_VEC)
    vec_store(factor + r, vec_exp(vec_load(change + r)));
  for (int r = 0; r < rows->n_rows; r++) {
    args->factor[r] = factor[r];
    args->sum[r] = args->sum[r] * factor[r] + row_softmax(rows, r, args->max[r], args->p);
  }
}

static void rows_gradient(const struct lade_gradient_rows *args)
{
  const struct lade_score_rows *rows = &args->rows;
  vec scale = vec_set(rows->scale);
  for (int r = 0; r < rows->n_rows; r++) {
    int n = visible_columns(rows, r), at = r * rows->stride;
    vec minus_lse = vec_set(-args->lse[r]), delta = vec_set(args->delta[r]);
    for (int j = 0; j < rows->n_columns; j += LADE_VEC) {
      vec p = vec_exp(vec_fma(vec_load(rows->scores + at + j), scale, minus_lse));
      vec d_p = vec_load(args->d_p + at + j), kept = p;
      if (rows->keep) {
        vec keep = vec_load(rows->keep + at + j);
        d_p = vec_mul(d_p, keep);
        kept = vec_mul(p, keep);
      }
      vec d_s = vec_mul(vec_mul(p, vec_sub(d_p, delta)), scale);
      p_store(args->p, at + j, vec_first(n - j, kept, vec_set(0)));
      p_store(args->d_s, at + j, vec_first(n - j, d_s, vec_set(0)));
    }
  }
}

static void rows_scale(float *rows, int n_rows, int n_columns, const float *factor)
{
  for (int r = 0; r < n_rows; r++, rows += n_columns) {
    vec by = vec_set(factor[r]);
    for (int j = 0; j < n_columns; j += LADE_VEC)
      vec_store(rows + j, vec_mul(vec_load(rows + j), by));
  }
}

static inline float row_dot_in(enum lade_dtype dtype, const void *x, const void *y, int64_t at, int n)
{
  vec sum = vec_set(0);
  for (int j = 0; j < n; j += LADE_VEC)
    sum = vec_fma(vec_load_part(dtype, x, at + j, n - j), vec_load_part(dtype, y, at + j, n - j), sum);
  return vec_sum(sum);
}

static float row_dot(enum lade_dtype dtype, const void *x, const void *y, int64_t at, int n)
{
  switch (dtype) {
  case LADE_BF16: return row_dot_in(LADE_BF16, x, y, at, n);
  case LADE_F16: return row_dot_in(LADE_F16, x, y, at, n);
  default: return row_dot_in(LADE_F32, x, y, at, n);
  }
}

#endif
