/* SPDX-License-Identifier: Apache-2.0 */
/* The first key that a query sees, ALiBi and the gradient of sinks, for the plain attention and the blocked one. */
#ifndef LADE_ATTENTION_FORM_H
#define LADE_ATTENTION_FORM_H

#include <math.h>

#include "base/base.h"
#include "kernels/host/element/element.h"

/* Return the first key that query @i of sequence @b sees. It does not fall along i. */
static inline int64_t first_key_get(const struct lade_score_form *form, int64_t seq_len, int64_t b, int64_t i)
{
  const int64_t of_window = form->window ? LADE_MAX(i + 1 - form->window, 0) : 0;
  return form->first_keys ? LADE_MAX(of_window, form->first_keys[b * seq_len + i]) : of_window;
}

/* Return the factor of q k^T. */
static inline double score_scale_get(const struct lade_score_form *form, int64_t head_dim)
{
  return form->scale > 0 ? (double)form->scale : 1 / sqrt((double)head_dim);
}

/* Return the logit of head @h's sink; -infinity, whose exponential is 0, without sinks. */
static inline double sink_get(const struct lade_score_form *form, enum lade_dtype dtype, int64_t h)
{
  return form->sinks ? lade_element_load(dtype, form->sinks, h) : -INFINITY;
}

/* ALiBi of one head: (position of the key - position of the query) times @slope is added to the scaled score. */
struct alibi {
  float slope;       /* 0: no ALiBi */
  float bf16_slope;  /* not 0: positions are rounded products with it, and @slope is the scale of q k^T */
};

static inline float bf16_round(float value)
{
  return lade_bf16_to_f32(lade_f32_to_bf16(value));
}

/* Return ALiBi of head @h of the arguments' heads; the whole model has @n_heads. @scale: of q k^T. */
static inline struct alibi alibi_get(const struct lade_score_form *form, int64_t n_heads, int64_t h, double scale)
{
  int64_t n = 1, head = form->alibi_first_head + h;
  if (!(form->alibi_max > 0))
    return (struct alibi){0};
  while (2 * n <= n_heads)
    n *= 2;
  const double step = (double)form->alibi_max / (double)n;
  const float slope = (float)exp2(head < n ? -step * (double)(head + 1) : -step * ((double)(head - n) + 0.5));
  if (form->is_alibi_rounded)
    return (struct alibi){.slope = (float)scale, .bf16_slope = bf16_round(slope)};
  return (struct alibi){.slope = slope};
}

/* Return the position of row @i, exact in FP32: it counts from row @origin on, or from row 0 if it is rounded. */
static inline float alibi_position(const struct alibi *alibi, int64_t i, int64_t origin)
{
  return alibi->bf16_slope != 0 ? bf16_round(alibi->bf16_slope * bf16_round((float)i)) : (float)(i - origin);
}

/* Return the bytes, whole cache lines, of the sums of backward for each sequence and head; 0 without sinks. */
static inline size_t sink_sums_bytes(const struct lade_attention_bwd_args *args)
{
  const size_t n_bytes = (size_t)(args->batch * args->heads) * sizeof(double);
  return args->form.sinks ? lade_align_up(n_bytes, 64) : 0;
}

/* Set d_sinks (+)= the sums over the sequences, which are at the workspace's begin. */
static inline void sink_sums_add(const struct lade_attention_bwd_args *args)
{
  const enum lade_dtype accumulator = lade_accumulator(args->dtype);
  const double *sums = args->workspace;
  for (int64_t h = 0; args->form.sinks && h < args->heads; h++) {
    double sum = 0;
    for (int64_t b = 0; b < args->batch; b++)
      sum += sums[b * args->heads + h];
    if (accumulator == LADE_F32)
      sum = (float)sum;
    const double before = args->accumulate_sinks ? lade_element_load(accumulator, args->d_sinks, h) : 0;
    lade_element_store(accumulator, args->d_sinks, h, before + sum);
  }
}

#endif
