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

/*
 * c tanh(x / c). With z = x / c: below |z| = 0.6 a Pade approximant, whose remainder is below 1e-10; past it (1 - e) /
 * (1 + e) with e = exp(-2|z|), which would cancel near zero.
 */
#define TANH_NEAR 0.6f

static inline void cap_step(int64_t i, int count, int n, float *logits, vf cap)
{
  vf z[VEC_GROUP], e[VEC_GROUP], far[VEC_GROUP], square[VEC_GROUP], top[VEC_GROUP], bottom[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_div(vec_load(LADE_F32, logits, i + k * VEC_LANES, n), cap);
  VEC_EACH(k, count) far[k] = vf_from_bits(vu_and(vu_bits(z[k]), vu_set(0x7fffffff)));
  VEC_EACH(k, count) e[k] = vf_mul(far[k], vf_set(-2));
  vec_exp(e, count);
  VEC_EACH(k, count) e[k] = vf_div(vf_sub(vf_set(1), e[k]), vf_add(vf_set(1), e[k]));
  VEC_EACH(k, count) e[k] = vf_from_bits(vu_or(vu_bits(e[k]), vu_and(vu_bits(z[k]), vu_set(0x80000000))));
  VEC_EACH(k, count) square[k] = vf_mul(z[k], z[k]);
  VEC_EACH(k, count) top[k] = vf_fma(vf_fma(square[k], vf_set(21), vf_set(1260)), square[k], vf_set(10395));
  VEC_EACH(k, count) bottom[k] = vf_fma(vf_add(square[k], vf_set(210)), square[k], vf_set(4725));
  VEC_EACH(k, count) bottom[k] = vf_fma(bottom[k], square[k], vf_set(10395));
  VEC_EACH(k, count) top[k] = vf_mul(z[k], vf_div(top[k], bottom[k]));
  VEC_EACH(k, count) e[k] = vf_where_negative(vf_sub(far[k], vf_set(TANH_NEAR)), top[k], e[k]);
  VEC_EACH(k, count) vec_store(LADE_F32, logits, i + k * VEC_LANES, n, vf_mul(e[k], cap));
}

static void row_cap(const struct lade_head_row *row, void *logits)
{
  VEC_GROUP_STEPS(cap_step, 0, row->n, (float *)logits, vf_set(row->softcap));
}

/* A row of logits on its way to its gradient. */
struct logits_row {
  const float *logits;
  void *d_logits;
  vf lse, scale;
  vf over; /* 1 / softcap; 0: no cap */
};

/* p_step with a soft cap. */
static inline void capped_step(int64_t i, int count, int n, enum lade_dtype dtype, const struct logits_row *row)
{
  vf z[VEC_GROUP], part[VEC_GROUP];
  VEC_EACH(k, count) part[k] = vec_load(LADE_F32, row->logits, i + k * VEC_LANES, n);
  VEC_EACH(k, count) z[k] = vf_sub(part[k], row->lse);
  vec_exp(z, count);
  VEC_EACH(k, count) part[k] = vf_mul(part[k], row->over);
  VEC_EACH(k, count) part[k] = vf_mul(vf_fnma(part[k], part[k], vf_set(1)), row->scale);
  VEC_EACH(k, count) vec_store(dtype, row->d_logits, i + k * VEC_LANES, n, vf_mul(z[k], part[k]));
}

static inline void p_step(int64_t i, int count, int n, enum lade_dtype dtype, const struct logits_row *row)
{
  vf z[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_sub(vec_load(LADE_F32, row->logits, i + k * VEC_LANES, n), row->lse);
  vec_exp(z, count);
  VEC_EACH(k, count) vec_store(dtype, row->d_logits, i + k * VEC_LANES, n, vf_mul(z[k], row->scale));
}

/* Make the gradient of all columns as if none were the target, then subtract 1 at the target. */
static inline void row_gradient_in(enum lade_dtype dtype, const struct lade_head_row *row, double lse, double scale,
                                   void *d_logits)
{
  const float *logits = row->logits;
  const bool is_capped = row->softcap > 0;
  const struct logits_row from = {logits, d_logits, vf_set((float)lse), vf_set((float)scale),
                                  vf_set(is_capped ? 1 / row->softcap : 0)};
  if (is_capped)
    VEC_GROUP_STEPS(capped_step, 0, row->n, dtype, &from);
  else
    VEC_GROUP_STEPS(p_step, 0, row->n, dtype, &from);
  if (row->target < 0)
    return;
  float part = row->softcap > 0 ? logits[row->target] / row->softcap : 0;
  scale *= (double)(1 - part * part);
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
