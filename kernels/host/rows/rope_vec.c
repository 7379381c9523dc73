/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.c in vectors, over the same table of angles. Interleaved pairs are converted to FP32 in vectors, and turned one
 * by one in a buffer.
 */
#include <string.h>

#include "kernels/host/lanes.h"

/* The rotation of one head: [half] cosines and sines of its position, multiplied by the attention temperature. */
struct turn {
  const float *cosines, *sines;
  int64_t half;
  float factor;
};

/* Turn the pairs (j, half + j) of a head from @at on. */
VEC_INLINE void turn_step(int64_t j, int n, const struct lade_rope_args *a, int64_t at, struct turn turn,
                          enum lade_dtype dtype)
{
  vf cosine = vec_load(LADE_F32, turn.cosines, j, n), sine = vec_load(LADE_F32, turn.sines, j, n);
  if (turn.factor != 1) {
    cosine = vf_mul(cosine, vf_set(turn.factor));
    sine = vf_mul(sine, vf_set(turn.factor));
  }
  vf x0 = vec_load(dtype, a->x, at + j, n), x1 = vec_load(dtype, a->x, at + turn.half + j, n);
  vec_store(dtype, a->y, at + j, n, vf_fnma(x1, sine, vf_mul(x0, cosine)));
  vec_store(dtype, a->y, at + turn.half + j, n, vf_fma(x0, sine, vf_mul(x1, cosine)));
}

#define BUFFER_PAIRS 64

VEC_INLINE void numbers_load_step(int64_t i, int n, const struct lade_rope_args *a, int64_t at, float *x,
                                  enum lade_dtype dtype)
{
  vec_store(LADE_F32, x, i, n, vec_load(dtype, a->x, at + i, n));
}

VEC_INLINE void numbers_store_step(int64_t i, int n, const struct lade_rope_args *a, int64_t at, const float *x,
                                   enum lade_dtype dtype)
{
  vec_store(dtype, a->y, at + i, n, vec_load(LADE_F32, x, i, n));
}

/* Turn the interleaved pairs (2 j, 2 j + 1) of a head from @at on. */
VEC_INLINE void pairs_turn(const struct lade_rope_args *a, int64_t at, struct turn turn, enum lade_dtype dtype)
{
  float x[2 * BUFFER_PAIRS];
  for (int64_t from = 0; from < turn.half; from += BUFFER_PAIRS) {
    const int64_t n_pairs = LADE_MIN(BUFFER_PAIRS, turn.half - from);
    VEC_STEPS(numbers_load_step, 0, 2 * n_pairs, a, at + 2 * from, x, dtype);
    for (int64_t j = 0; j < n_pairs; j++) {
      const float cosine = turn.cosines[from + j] * turn.factor, sine = turn.sines[from + j] * turn.factor;
      const float x0 = x[2 * j], x1 = x[2 * j + 1];
      x[2 * j] = x0 * cosine - x1 * sine;
      x[2 * j + 1] = x1 * cosine + x0 * sine;
    }
    VEC_STEPS(numbers_store_step, 0, 2 * n_pairs, a, at + 2 * from, x, dtype);
  }
}

VEC_INLINE void turn_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_rope_args, a, arg);
  int64_t half = (a->rotary_dim ? a->rotary_dim : a->head_dim) / 2,
      row_elements = (a->heads + 2 * a->n_kv_heads) * a->head_dim;
  int64_t rows = lade_task_rows(row_elements), end = LADE_MIN(a->batch * a->seq_len, (i_task + 1) * rows);
  size_t element_bytes = lade_dtype_bytes(dtype), value_bytes = (size_t)(a->n_kv_heads * a->head_dim) * element_bytes;
  for (int64_t row = i_task * rows; row < end; row++) {
    const float *cosines = (const float *)a->workspace + row % a->seq_len * half;
    const struct turn keys = {cosines, cosines + a->seq_len * half, half, 1};
    struct turn queries = keys;
    queries.factor = (float)lade_rope_temperature(a, row % a->seq_len);
    for (int64_t head = 0; head < a->heads + a->n_kv_heads; head++) {
      int64_t at = row * row_elements + head * a->head_dim;
      const struct turn turn = head < a->heads ? queries : keys;
      if (a->is_interleaved)
        pairs_turn(a, at, turn, dtype);
      else
        VEC_STEPS(turn_step, 0, half, a, at, turn, dtype);
      if (a->y != a->x && 2 * half < a->head_dim)
        memcpy((char *)a->y + (size_t)(at + 2 * half) * element_bytes,
               (const char *)a->x + (size_t)(at + 2 * half) * element_bytes,
               (size_t)(a->head_dim - 2 * half) * element_bytes);
    }
    size_t at_bytes = (size_t)((row + 1) * row_elements) * element_bytes - value_bytes;
    if (a->y != a->x)
      memcpy((char *)a->y + at_bytes, (const char *)a->x + at_bytes, value_bytes);
  }
}
VEC_TASKS(turn_rows)

static void rope(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_rope_args *a = args;
  int64_t row_elements = (a->heads + 2 * a->n_kv_heads) * a->head_dim;
  if (a->dtype == LADE_F64) {
    lade_rope_plain(ctx, args);
    return;
  }
  lade_rope_table_fill(ctx->pool, a, a->workspace);
  turn_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->batch * a->seq_len, lade_task_rows(row_elements)));
}

void VEC_NAME(lade_rope_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ROPE, rope, VEC_VARIANT);
}
