/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of logits over the lanes of one level: their running maximum and sum, and their gradient. A is FP32 here. */
#ifndef LADE_ROWS_HEAD_H
#define LADE_ROWS_HEAD_H

#include <math.h>

#include "base/base.h"
#include "kernels/host/head_loss/head_loss.h"
#include "kernels/host/lanes.h"

static inline void max_step(int64_t i, int n, vf *largest, const float *logits)
{
  *largest = vf_max(*largest, vf_load_f32(logits + i));
}

static inline void exp_step(int64_t i, int count, int n, const float *logits, vf shift, vf *sum)
{
  vf z[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_sub(vec_load(LADE_F32, logits, i + k * VEC_LANES, n), shift);
  vec_exp(z, count);
  VEC_EACH(k, count) *sum = vf_add(*sum, n == VEC_LANES ? z[k] : vf_first(z[k], n));
}

static void row_reduce(const struct lade_head_row *row, double *max, double *sum)
{
  const float *logits = row->logits;
  int64_t whole = row->n / VEC_LANES * VEC_LANES;
  vf largest[VEC_SUMS], added = vf_set(0);
  VEC_EACH(k, VEC_SUMS) largest[k] = vf_set(-INFINITY);
  VEC_SUM_STEPS(max_step, 0, whole, largest, logits);
  double new_max = *max;
  VEC_EACH(k, VEC_SUMS) new_max = LADE_MAX(new_max, (double)vf_largest(largest[k]));
  for (int64_t j = whole; j < row->n; j++)
    new_max = LADE_MAX(new_max, (double)logits[j]);
  VEC_GROUP_STEPS(exp_step, 0, row->n, logits, vf_set((float)new_max), &added);
  *sum = *sum * exp(*max - new_max) + (double)vf_sum(added);
  *max = new_max;
}

static inline void p_step(int64_t i, int count, int n, enum lade_dtype dtype, const float *logits, vf lse, vf scale,
                          void *d_logits)
{
  vf z[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_sub(vec_load(LADE_F32, logits, i + k * VEC_LANES, n), lse);
  vec_exp(z, count);
  VEC_EACH(k, count) vec_store(dtype, d_logits, i + k * VEC_LANES, n, vf_mul(z[k], scale));
}

/* Make the gradient of all columns as if none were the target, then subtract 1 at the target. */
static inline void row_gradient_in(enum lade_dtype dtype, const struct lade_head_row *row, double lse, double scale,
                                   void *d_logits)
{
  const float *logits = row->logits;
  VEC_GROUP_STEPS(p_step, 0, row->n, dtype, logits, vf_set((float)lse), vf_set((float)scale), d_logits);
  if (row->target < 0)
    return;
  float z[VEC_LANES] = {logits[row->target] - (float)lse};
  vf p = vf_load_f32(z);
  vec_exp(&p, 1);
  vec_store(dtype, d_logits, row->target, 1, vf_mul(vf_sub(p, vf_set(1)), vf_set((float)scale)));
}

static void row_gradient(const struct lade_head_row *row, double lse, double scale, void *d_logits)
{
  switch (row->dtype) {
  case LADE_BF16: row_gradient_in(LADE_BF16, row, lse, scale, d_logits); break;
  case LADE_F16: row_gradient_in(LADE_F16, row, lse, scale, d_logits); break;
  default: row_gradient_in(LADE_F32, row, lse, scale, d_logits); break;
  }
}

static inline void cast_step(int64_t i, int n, enum lade_dtype dtype, const float *from, void *to)
{
  vec_store(dtype, to, i, n, vec_load(LADE_F32, from, i, n));
}

static void row_cast(enum lade_dtype dtype, const float *from, int64_t n, void *to)
{
  VEC_STEPS(cast_step, 0, n, dtype, from, to);
}

#endif
