/* SPDX-License-Identifier: Apache-2.0 */
/* One row of a norm and of its backward in vectors, for norm_vec.c and residual_vec.c. Formulas: norm_ref.h. */
#ifndef LADE_KERNELS_NORM_VEC_H
#define LADE_KERNELS_NORM_VEC_H

#include <math.h>

#include "kernels/host/lanes.h"

VEC_INLINE float vec_sums_add(const vf *sums)
{
  return vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
}

VEC_INLINE void norm_sum_step(int64_t j, int n, vf *sum, const void *x, int64_t at, enum lade_dtype dtype)
{
  *sum = vf_add(*sum, vec_load(dtype, x, at + j, n));
}

VEC_INLINE void norm_square_step(int64_t j, int n, vf *sum, const void *x, int64_t at, vf mean, enum lade_dtype dtype)
{
  vf centred = vf_first(vf_sub(vec_load(dtype, x, at + j, n), mean), n);
  *sum = vf_fma(centred, centred, *sum);
}

VEC_INLINE void norm_out_step(int64_t j, int n, const struct lade_norm_fwd_args *a, int64_t at, vf mean, vf rstd,
                              enum lade_dtype dtype)
{
  vf normal = vf_mul(vf_sub(vec_load(dtype, a->x, at + j, n), mean), rstd);
  vf bias = a->bias ? vec_load(dtype, a->bias, j, n) : vf_set(0);
  vf weight = vf_add(vec_load(dtype, a->weight, j, n), vf_set(a->weight_offset));
  vec_store(dtype, a->y, at + j, n, vf_fma(normal, weight, bias));
}

/* Finish the row from its sum (in @sums, LAYER only; in the order of VEC_SUM_STEPS). */
VEC_INLINE void vec_norm_row_summed(const struct lade_norm_fwd_args *a, int64_t row, const vf *sums,
                                    enum lade_dtype dtype)
{
  int64_t at = row * a->d;
  float mean = 0;
  vf squares[VEC_SUMS] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
  if (a->kind == LADE_NORM_LAYER) {
    mean = vec_sums_add(sums) / (float)a->d;
    ((float *)a->mean)[row] = mean;
  }
  VEC_SUM_STEPS(norm_square_step, 0, a->d, squares, a->x, at, vf_set(mean), dtype);
  float rstd = 1 / sqrtf(vec_sums_add(squares) / (float)a->d + a->eps);
  ((float *)a->rstd)[row] = rstd;
  VEC_STEPS(norm_out_step, 0, a->d, a, at, vf_set(mean), vf_set(rstd), dtype);
}

VEC_INLINE void vec_norm_row(const struct lade_norm_fwd_args *a, int64_t row, enum lade_dtype dtype)
{
  vf sums[VEC_SUMS] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
  if (a->kind == LADE_NORM_LAYER)
    VEC_SUM_STEPS(norm_sum_step, 0, a->d, sums, a->x, row * a->d, dtype);
  vec_norm_row_summed(a, row, sums, dtype);
}

/* A row in backward: its first element, its statistics, and the sums of g and g*h, then their averages. */
struct norm_bwd_row {
  int64_t at;
  vf mean, rstd;
  vf g, gh;
};

/* Partial sums of a block of rows: the gradients of the weight and of the bias. */
struct norm_bwd_partials {
  float *d_weight, *d_bias;
};

VEC_INLINE void norm_bwd_sum_step(int64_t j, int n, struct norm_bwd_row *row, const struct lade_norm_bwd_args *a,
                                  struct norm_bwd_partials partials, enum lade_dtype dtype)
{
  vf dy = vec_load(dtype, a->dy, row->at + j, n), x = vec_load(dtype, a->x, row->at + j, n);
  vf h = vf_mul(vf_sub(x, row->mean), row->rstd);
  vf g = vf_mul(dy, vf_add(vec_load(dtype, a->weight, j, n), vf_set(a->weight_offset)));
  row->g = vf_add(row->g, g);
  row->gh = vf_fma(g, h, row->gh);
  vec_store(LADE_F32, partials.d_weight, j, n, vf_fma(dy, h, vec_load(LADE_F32, partials.d_weight, j, n)));
  if (a->kind == LADE_NORM_LAYER)
    vec_store(LADE_F32, partials.d_bias, j, n, vf_add(dy, vec_load(LADE_F32, partials.d_bias, j, n)));
}

/* Return rstd * (g - avg_g - h*avg_gh) + d_residual, not yet rounded. */
VEC_INLINE vf norm_bwd_dx(int64_t j, int n, const struct norm_bwd_row *row, const struct lade_norm_bwd_args *a,
                          enum lade_dtype dtype)
{
  vf h = vf_mul(vf_sub(vec_load(dtype, a->x, row->at + j, n), row->mean), row->rstd);
  vf weight = vf_add(vec_load(dtype, a->weight, j, n), vf_set(a->weight_offset));
  vf g = vf_mul(vec_load(dtype, a->dy, row->at + j, n), weight);
  vf residual = a->d_residual ? vec_load(dtype, a->d_residual, row->at + j, n) : vf_set(0);
  return vf_fma(row->rstd, vf_fnma(h, row->gh, vf_sub(g, row->g)), residual);
}

/* Make the first pass over a row; adds to the block's partial sums. */
VEC_INLINE struct norm_bwd_row vec_norm_bwd_sum(const struct lade_norm_bwd_args *a, int64_t i_row,
                                                struct norm_bwd_partials partials, enum lade_dtype dtype)
{
  bool is_layer = a->kind == LADE_NORM_LAYER;
  struct norm_bwd_row row = {.at = i_row * a->d, .mean = vf_set(is_layer ? ((const float *)a->mean)[i_row] : 0),
                             .rstd = vf_set(((const float *)a->rstd)[i_row]), .g = vf_set(0), .gh = vf_set(0)};
  VEC_STEPS(norm_bwd_sum_step, 0, a->d, &row, a, partials, dtype);
  row.g = vf_set(is_layer ? vf_sum(row.g) / (float)a->d : 0);
  row.gh = vf_set(vf_sum(row.gh) / (float)a->d);
  return row;
}

#endif
