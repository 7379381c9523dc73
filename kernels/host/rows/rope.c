/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary embedding (Su et al. 2021), half-split: elements j and j + D/2 of a head turn by the angle t * base^(-2j/D);
 * interleaved, as in the paper: elements 2j and 2j + 1.
 * The angles' cosines and sines are made once per call as a table [T, D/2] in the workspace, in double, and rounded to
 * A: T*D/2 of them serve every head of every sequence. Within a run of positions the next angle comes from the last by
 * one complex product instead of a sine and a cosine. Runs of 32 keep the product's error near 32 * 2^-53, far below
 * A's.
 *
 * A head may turn in part: then D above is rotary_dim, and the rest of the head is copied.
 *
 * Forms of the frequencies, which HuggingFace's modeling_rope_utils define: LINEAR divides them by scale_factor. YARN
 * (Peng et al. 2023) does so past pair `high`, not before pair `low`, and blends in between; cosines and sines are
 * multiplied by a magnitude. LONGROPE (Ding et al. 2024) divides each by a factor of its own.
 *
 * Ministral 3 has an attention temperature: queries are multiplied by a factor that grows with their position, in steps
 * of original_context. Whole heads turn then; the factor is multiplied into the cosines and sines of query heads.
 *
 * Llama 3.1 slows the low frequencies. Wavelengths past original_context / low_freq_factor are slowed by scale_factor,
 * and those below original_context / high_freq_factor not at all. Between them the factor is linear in original_context
 * / wavelength.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/ref.h"

#define RUN 32
#define TWO_PI 6.28318530717958647693

static int64_t rotary_get(const struct lade_rope_args *a)
{
  return a->rotary_dim ? a->rotary_dim : a->head_dim;
}

static double frequency_get(const struct lade_rope_args *a, int64_t j)
{
  double frequency = pow((double)a->base, -2.0 * (double)j / (double)rotary_get(a));
  double low = (double)a->low, high = (double)a->high, factor = (double)a->scale_factor;
  switch (a->kind) {
  case LADE_ROPE_LINEAR: return frequency / factor;
  case LADE_ROPE_YARN: {
    double slowed = fmin(fmax(((double)j - low) / (high - low), 0), 1);
    return frequency / factor * slowed + frequency * (1 - slowed);
  }
  case LADE_ROPE_LONGROPE: return frequency / (double)a->factors[j];
  case LADE_ROPE_DYNAMIC: return frequency;
  default: break;
  }
  if (!(a->scale_factor > 0))
    return frequency;
  double turns = (double)a->original_context * frequency / TWO_PI; /* original_context / wavelength */
  if (turns < low)
    return frequency / (double)a->scale_factor;
  if (turns > high)
    return frequency;
  double smooth = (turns - low) / (high - low);
  return (1 - smooth) * frequency / (double)a->scale_factor + smooth * frequency;
}

struct rope_call {
  const struct lade_rope_args *args;
  void *table;
};

double lade_rope_temperature(const struct lade_rope_args *a, int64_t t)
{
  if (a->temperature_beta == 0)
    return 1;
  return 1 + (double)a->temperature_beta * log1p((double)(t / a->original_context));
}

static void table_task(void *arg, int i_task, int i_thread)
{
  const struct rope_call *table = arg;
  const struct lade_rope_args *a = table->args;
  enum lade_dtype accumulator = lade_accumulator(a->dtype);
  double magnitude = a->magnitude != 0 ? (double)a->magnitude : 1;
  int64_t half = rotary_get(a) / 2, from = (int64_t)i_task * RUN, end = LADE_MIN(a->seq_len, from + RUN);
  for (int64_t j = 0; j < half; j++) {
    double frequency = frequency_get(a, j), c = cos((double)from * frequency), s = sin((double)from * frequency);
    double step_c = cos(frequency), step_s = sin(frequency);
    for (int64_t t = from; t < end; t++) {
      ref_put(accumulator, table->table, t * half + j, magnitude * c);
      ref_put(accumulator, table->table, (a->seq_len + t) * half + j, magnitude * (a->is_inverse ? -s : s));
      double next_c = c * step_c - s * step_s;
      s = s * step_c + c * step_s;
      c = next_c;
    }
  }
}

void lade_rope_table_fill(lade_pool *pool, const struct lade_rope_args *args, void *table)
{
  lade_pool_run(pool, table_task, &(struct rope_call){args, table}, (int)lade_div_up(args->seq_len, RUN));
}

static int64_t row_elements_get(const struct lade_rope_args *a)
{
  return (a->heads + 2 * a->n_kv_heads) * a->head_dim;
}

REF_INLINE void turn_row(const struct lade_rope_args *a, int64_t row, enum lade_dtype dtype)
{
  enum lade_dtype accumulator = lade_accumulator(dtype);
  int64_t half = rotary_get(a) / 2, t = row % a->seq_len;
  for (int64_t head = 0; head < a->heads + a->n_kv_heads; head++) {
    int64_t at = row * row_elements_get(a) + head * a->head_dim;
    const double factor = head < a->heads ? lade_rope_temperature(a, t) : 1;
    for (int64_t j = 0; j < half; j++) {
      double c = factor * ref_get(accumulator, a->workspace, t * half + j);
      double s = factor * ref_get(accumulator, a->workspace, (a->seq_len + t) * half + j);
      const int64_t i0 = at + (a->is_interleaved ? 2 * j : j), i1 = i0 + (a->is_interleaved ? 1 : half);
      double x0 = ref_get(dtype, a->x, i0), x1 = ref_get(dtype, a->x, i1);
      ref_put(dtype, a->y, i0, x0 * c - x1 * s);
      ref_put(dtype, a->y, i1, x1 * c + x0 * s);
    }
    for (int64_t j = 2 * half; j < a->head_dim && a->y != a->x; j++)
      ref_put(dtype, a->y, at + j, ref_get(dtype, a->x, at + j));
  }
}

REF_INLINE void turn_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_rope_args *a = arg;
  int64_t row_elements = row_elements_get(a), value_elements = a->n_kv_heads * a->head_dim;
  int64_t rows = lade_task_rows(row_elements), end = LADE_MIN(a->batch * a->seq_len, (i_task + 1) * rows);
  size_t element_bytes = lade_dtype_bytes(dtype);
  for (int64_t row = i_task * rows; row < end; row++) {
    turn_row(a, row, dtype);
    size_t at_bytes = (size_t)((row + 1) * row_elements - value_elements) * element_bytes;
    if (a->y != a->x)
      memcpy((char *)a->y + at_bytes, (const char *)a->x + at_bytes, (size_t)value_elements * element_bytes);
  }
}
REF_TASKS(turn_rows)

void lade_rope_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_rope_args *a = args;
  lade_rope_table_fill(ctx->pool, a, a->workspace);
  turn_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->batch * a->seq_len, lade_task_rows(row_elements_get(a))));
}

size_t lade_rope_workspace_bytes(const struct lade_rope_args *a)
{
  return (size_t)(a->seq_len * (rotary_get(a) / 2) * 2) * lade_dtype_bytes(lade_accumulator(a->dtype));
}

void lade_rope_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ROPE, lade_rope_plain, "plain");
}
