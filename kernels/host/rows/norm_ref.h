/* SPDX-License-Identifier: Apache-2.0 */
/* One row of LayerNorm or RMSNorm and of their backward, for norm.c and for the fused residual.c. */
#ifndef LADE_KERNELS_NORM_REF_H
#define LADE_KERNELS_NORM_REF_H

#include <math.h>

#include "kernels/host/ref.h"

/*
 * Normalise a row. The variance is summed about the mean in a second pass: one pass would cancel where |mean| >>
 * deviation.
 */
REF_INLINE void ref_norm_row(const struct lade_norm_fwd_args *a, int64_t row, enum lade_dtype dtype)
{
  enum lade_dtype accumulator = lade_accumulator(dtype);
  int64_t at = row * a->d;
  double mean = 0, squares = 0;
  if (a->kind == LADE_NORM_LAYER) {
    for (int64_t j = 0; j < a->d; j++)
      mean += ref_get(dtype, a->x, at + j);
    mean /= (double)a->d;
    ref_put(accumulator, a->mean, row, mean);
  }
  for (int64_t j = 0; j < a->d; j++) {
    double centred = ref_get(dtype, a->x, at + j) - mean;
    squares += centred * centred;
  }
  double rstd = 1 / sqrt(squares / (double)a->d + (double)a->eps);
  ref_put(accumulator, a->rstd, row, rstd);
  for (int64_t j = 0; j < a->d; j++) {
    double normal = (ref_get(dtype, a->x, at + j) - mean) * rstd;
    ref_put(dtype, a->y, at + j, normal * (ref_get(dtype, a->weight, j) + (double)a->weight_offset) +
                                ref_get_or_zero(dtype, a->bias, j));
  }
}

/*
 * Compute dx = rstd * (g - avg(g) - h*avg(g*h)) with h = (x-mean)*rstd and g = dy*weight, without avg(g) for RMS. Adds
 * dy*h and dy to the block's partial sums.
 */
REF_INLINE void ref_norm_bwd_row(const struct lade_norm_bwd_args *a, int64_t row, void *d_weight, void *d_bias,
                                 enum lade_dtype dtype)
{
  enum lade_dtype accumulator = lade_accumulator(dtype);
  int64_t at = row * a->d;
  double mean = a->kind == LADE_NORM_LAYER ? ref_get(accumulator, a->mean, row) : 0;
  double rstd = ref_get(accumulator, a->rstd, row), sum_g = 0, sum_gh = 0;
  for (int64_t j = 0; j < a->d; j++) {
    double dy = ref_get(dtype, a->dy, at + j), h = (ref_get(dtype, a->x, at + j) - mean) * rstd;
    double g = dy * (ref_get(dtype, a->weight, j) + (double)a->weight_offset);
    sum_g += g;
    sum_gh += g * h;
    ref_put(accumulator, d_weight, j, ref_get(accumulator, d_weight, j) + dy * h);
    ref_put(accumulator, d_bias, j, ref_get(accumulator, d_bias, j) + dy);
  }
  double avg_g = a->kind == LADE_NORM_LAYER ? sum_g / (double)a->d : 0, avg_gh = sum_gh / (double)a->d;
  for (int64_t j = 0; j < a->d; j++) {
    double h = (ref_get(dtype, a->x, at + j) - mean) * rstd;
    double g = ref_get(dtype, a->dy, at + j) * (ref_get(dtype, a->weight, j) + (double)a->weight_offset);
    double dx = rstd * (g - avg_g - h * avg_gh) + ref_get_or_zero(dtype, a->d_residual, at + j);
    ref_put(dtype, a->dx, at + j, dx);
  }
}

#endif
