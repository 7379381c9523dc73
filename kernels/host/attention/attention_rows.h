/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of attention's scores over the lanes of one level. The level's p_store(p, i, value) keeps sixteen probabilities
 * from element i on.
 *
 * Masked scores are overwritten with -inf, whose exp is 0, so that whole vectors need no masks. With windows a row may
 * see none of the columns. Then its maximum does not change, and may be -inf: such a row is shifted by 0.
 */
#ifndef LADE_ROWS_ATTENTION_H
#define LADE_ROWS_ATTENTION_H

#include <math.h>

#include "base/base.h"
#include "kernels/host/attention/attention_blocked.h"
#include "kernels/host/lanes.h"

/* The current row. */
struct score_row {
  float *scores, *d_p;
  const uint32_t *words; /* dropout's, or NULL */
  const struct lade_drop *drop;
  vf scale, shift, delta; /* shift: minus the maximum, or minus lse */
  vf slope;               /* of scores by q k^T, without the cap's */
  vf inverse_cap;         /* if has_cap */
  bool has_cap;
  void *p, *d_s;
  int64_t at; /* of the row's first element in p and d_s */
};

static inline int visible_columns(const struct lade_score_rows *rows, int r)
{
  return LADE_MIN(rows->first_visible + r, rows->n_columns);
}

/* Set row[from, end) = value. */
static inline void row_fill(float *row, int from, int end, float value)
{
  for (int j = from; j < end; j++)
    row[j] = value;
}

/* Overwrite the columns below @n_columns that row @r does not see. */
static inline void row_mask(const struct lade_score_rows *rows, int r, int n_columns, float *row, float value)
{
  if (rows->n_hidden)
    row_fill(row, 0, rows->n_hidden[r], value);
  row_fill(row, visible_columns(rows, r), n_columns, value);
}

static inline void cap_step(int64_t i, int count, int n, float *scores, vf factor, vf cap)
{
  vf z[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_mul(vf_load_f32(scores + i + k * VEC_LANES), factor);
  vec_tanh(z, count);
  VEC_EACH(k, count) vf_store_f32(scores + i + k * VEC_LANES, vf_mul(z[k], cap));
}

/* ALiBi's term of a query and its keys: slope times the difference of their positions. */
struct alibi_row {
  const float *keys;
  vf query, slope;
};

static inline void alibi_step(int64_t i, int count, int n, float *scores, vf scale, const struct alibi_row *row)
{
  vf z[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_mul(vf_load_f32(scores + i + k * VEC_LANES), scale);
  VEC_EACH(k, count) z[k] = vf_fma(vf_sub(vf_load_f32(row->keys + i + k * VEC_LANES), row->query), row->slope, z[k]);
  VEC_EACH(k, count) vf_store_f32(scores + i + k * VEC_LANES, z[k]);
}

/* Scale the scores of row @r, add ALiBi's term, and cap them. Return the scale that the result still needs. */
static inline float row_scale(const struct lade_score_rows *rows, int r, float *scores, int n_columns)
{
  float scale = rows->scale;
  if (rows->key_positions) {
    const struct alibi_row row = {rows->key_positions, vf_set(rows->query_positions[r]), vf_set(rows->alibi_slope)};
    VEC_GROUP_STEPS(alibi_step, 0, n_columns, scores, vf_set(scale), &row);
    scale = 1;
  }
  if (rows->softcap == 0)
    return scale;
  VEC_GROUP_STEPS(cap_step, 0, n_columns, scores, vf_set(scale / rows->softcap), vf_set(rows->softcap));
  return 1;
}

static inline const uint32_t *row_words(const struct lade_score_rows *rows, int r, uint32_t word[VEC_RUN_WORDS])
{
  if (!rows->drop)
    return NULL;
  return vec_words_fill(word, rows->step, rows->drop, rows->element + r * rows->element_stride,
                        visible_columns(rows, r));
}

static inline void softmax_step(int64_t i, int count, int n, const struct score_row *row, vf *sum)
{
  vf z[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_fma(vf_load_f32(row->scores + i + k * VEC_LANES), row->scale, row->shift);
  vec_exp(z, count);
  VEC_EACH(k, count) *sum = vf_add(*sum, z[k]);
  if (row->words)
    VEC_EACH(k, count) z[k] = vec_drop(row->drop, row->words + i + k * VEC_LANES, z[k]);
  VEC_EACH(k, count) p_store(row->p, row->at + i + k * VEC_LANES, z[k]);
}

static inline float row_largest(const float *scores, int n_columns)
{
  vf largest = vf_load_f32(scores);
  for (int j = VEC_LANES; j < n_columns; j += VEC_LANES)
    largest = vf_max(largest, vf_load_f32(scores + j));
  return vf_largest(largest);
}

static void rows_softmax(const struct lade_softmax_rows *args)
{
  const struct lade_score_rows *rows = &args->rows;
  float change[LADE_ATTENTION_ROWS] = {0}, scale = rows->scale;
  uint32_t word[VEC_RUN_WORDS];
  int n_columns = (int)lade_align_up((uint64_t)rows->n_columns, VEC_LANES);
  LADE_ASSERT(rows->n_rows <= LADE_ATTENTION_ROWS && n_columns <= rows->stride);
  for (int r = 0; r < rows->n_rows; r++) {
    float *scores = rows->scores + r * rows->stride;
    scale = row_scale(rows, r, scores, n_columns);
    row_mask(rows, r, n_columns, scores, -INFINITY);
    float largest = row_largest(scores, n_columns) * scale, max = LADE_MAX(args->max[r], largest);
    change[r] = args->max[r] == max ? 0 : args->max[r] - max;
    args->max[r] = max;
  }
  for (int r = 0; r < rows->n_rows; r += VEC_LANES) {
    vf factor = vf_load_f32(change + r);
    vec_exp(&factor, 1);
    vf_store_f32(change + r, factor);
  }
  for (int r = 0; r < rows->n_rows; r++) {
    vf sum = vf_set(0);
    struct score_row row = {.scores = rows->scores + r * rows->stride, .words = row_words(rows, r, word),
                            .drop = rows->drop, .scale = vf_set(scale),
                            .shift = vf_set(args->max[r] == -INFINITY ? 0 : -args->max[r]), .p = args->p,
                            .at = r * rows->stride};
    VEC_GROUP_STEPS(softmax_step, 0, n_columns, &row, &sum);
    args->factor[r] = change[r];
    args->sum[r] = args->sum[r] * change[r] + vf_sum(sum);
  }
}

static inline void gradient_step(int64_t i, int count, int n, const struct score_row *row)
{
  vf z[VEC_GROUP], d_p[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_fma(vf_load_f32(row->scores + i + k * VEC_LANES), row->scale, row->shift);
  vec_exp(z, count);
  VEC_EACH(k, count) d_p[k] = vf_load_f32(row->d_p + i + k * VEC_LANES);
  VEC_EACH(k, count) {
    vf kept = z[k];
    if (row->words) {
      const uint32_t *word = row->words + i + k * VEC_LANES;
      d_p[k] = vec_drop(row->drop, word, d_p[k]);
      kept = vec_drop(row->drop, word, kept);
    }
    p_store(row->p, row->at + i + k * VEC_LANES, kept);
    vf d_s = vf_mul(vf_mul(z[k], vf_sub(d_p[k], row->delta)), row->slope);
    if (row->has_cap) { /* masked scores are -inf: their slope is made 0 */
      vf t = vf_max(vf_set(-1), vf_mul(vf_load_f32(row->scores + i + k * VEC_LANES), row->inverse_cap));
      d_s = vf_mul(d_s, vf_fnma(t, t, vf_set(1)));
    }
    p_store(row->d_s, row->at + i + k * VEC_LANES, d_s);
  }
}

static void rows_gradient(const struct lade_gradient_rows *args)
{
  const struct lade_score_rows *rows = &args->rows;
  uint32_t word[VEC_RUN_WORDS];
  int n_columns = (int)lade_align_up((uint64_t)rows->n_columns, VEC_LANES);
  LADE_ASSERT(n_columns <= rows->stride);
  for (int r = 0; r < rows->n_rows; r++) {
    int64_t at = r * rows->stride;
    struct score_row row = {.scores = rows->scores + at, .d_p = args->d_p + at, .words = row_words(rows, r, word),
                            .drop = rows->drop, .scale = vf_set(row_scale(rows, r, rows->scores + at, n_columns)),
                            .shift = vf_set(-args->lse[r]), .delta = vf_set(args->delta[r]),
                            .slope = vf_set(rows->scale), .has_cap = rows->softcap > 0,
                            .inverse_cap = vf_set(rows->softcap > 0 ? 1 / rows->softcap : 0), .p = args->p,
                            .d_s = args->d_s, .at = at};
    row_mask(rows, r, n_columns, row.scores, -INFINITY);
    row_mask(rows, r, n_columns, row.d_p, 0);
    VEC_GROUP_STEPS(gradient_step, 0, n_columns, &row);
  }
}

static void rows_scale(float *rows, int n_rows, int n_columns, const float *factor)
{
  for (int r = 0; r < n_rows; r++, rows += n_columns) {
    vf by = vf_set(factor[r]);
    for (int j = 0; j < n_columns; j += VEC_LANES)
      vf_store_f32(rows + j, vf_mul(vf_load_f32(rows + j), by));
  }
}

static inline void dot_step(int64_t i, int n, vf *sum, enum lade_dtype dtype, const void *x, const void *y)
{
  *sum = vf_fma(vec_load(dtype, x, i, n), vec_load(dtype, y, i, n), *sum);
}

static inline float row_dot_in(enum lade_dtype dtype, const void *x, const void *y, int64_t at, int n)
{
  vf sum = vf_set(0);
  int64_t end = at + n;
  for (; at + VEC_LANES <= end; at += VEC_LANES)
    dot_step(at, VEC_LANES, &sum, dtype, x, y);
  if (at < end)
    dot_step(at, (int)(end - at), &sum, dtype, x, y);
  return vf_sum(sum);
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
