/* SPDX-License-Identifier: Apache-2.0 */
/* embed.c in vectors: the same lists and rectangles, sums in F32. */
#include "kernels/host/lanes.h"

#define TOKENS 2048
#define COLUMNS 128

/* Look up a row. @token is the row of this table, -1 if it has none. */
VEC_INLINE void look_up_step(int64_t j, int n, const struct lade_embed_fwd_args *a, int64_t row, int64_t token,
                             float scale, enum lade_dtype dtype)
{
  vf x = token < 0 ? vf_set(0) : vf_mul(vec_load(dtype, a->token_table, token * a->d + j, n), vf_set(scale));
  if (a->position_table)
    x = vf_add(x, vec_load(dtype, a->position_table, row % a->seq_len * a->d + j, n));
  vec_store(dtype, a->x, row * a->d + j, n, x);
}

VEC_INLINE void keep_step(int64_t j, int n, const struct lade_embed_fwd_args *a, int64_t row, enum lade_dtype dtype)
{
  vec_store(dtype, a->x, row * a->d + j, n, vec_load(dtype, a->before, row * a->d + j, n));
}

VEC_INLINE void look_up_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  VEC_COPY(lade_embed_fwd_args, a, arg);
  int64_t rows = lade_task_rows(a->d), end = LADE_MIN(a->batch * a->seq_len, (i_task + 1) * rows);
  for (int64_t row = i_task * rows; row < end; row++) {
    int64_t token = a->tokens[row] - a->first_token;
    bool is_here = token >= 0 && token < a->vocabulary;
    if (is_here || !a->before)
      VEC_STEPS(look_up_step, 0, a->d, a, row, is_here ? token : -1, a->scale != 0 ? a->scale : 1, dtype);
    else if (a->before != a->x)
      VEC_STEPS(keep_step, 0, a->d, a, row, dtype);
  }
}
VEC_TASKS(look_up_rows)

struct embed_vec_bwd_call {
  const struct lade_embed_bwd_args *args;
  struct lade_token_lists lists;
};

VEC_INLINE void row_step(int64_t j, int n, float *sum, const void *dx, int64_t at, enum lade_dtype dtype)
{
  vf_store_f32(sum + j, vf_add(vf_load_f32(sum + j), vec_load(dtype, dx, at + j, n)));
}

VEC_INLINE void put_step(int64_t j, int n, float *gradient, const float *sum, float scale, bool accumulate)
{
  vf g = vf_mul(vf_load_f32(sum + j), vf_set(scale));
  vec_store(LADE_F32, gradient, j, n, accumulate ? vf_add(vec_load(LADE_F32, gradient, j, n), g) : g);
}

VEC_INLINE void token_rectangle(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct embed_vec_bwd_call *call = arg;
  VEC_COPY(lade_embed_bwd_args, a, call->args);
  int64_t n_across = lade_div_up(a->d, COLUMNS), column = i_task % n_across * COLUMNS;
  int64_t from = i_task / n_across * TOKENS, end = LADE_MIN(a->vocabulary, from + TOKENS);
  int64_t n_columns = LADE_MIN(COLUMNS, a->d - column);
  for (int64_t token = from; token < end; token++) {
    int32_t row = call->lists.first[token];
    if (row < 0 && a->accumulate_token)
      continue;
    float sum[COLUMNS] = {0}, *gradient = (float *)a->d_token_table + token * a->d + column;
    for (; row >= 0; row = call->lists.next[row])
      VEC_STEPS(row_step, 0, n_columns, sum, a->dx, row * a->d + column, dtype);
    VEC_STEPS(put_step, 0, n_columns, gradient, sum, a->scale != 0 ? a->scale : 1, a->accumulate_token);
  }
}
VEC_TASKS(token_rectangle)

VEC_INLINE void position_row(const void *arg, int64_t t, enum lade_dtype dtype)
{
  VEC_COPY(lade_embed_bwd_args, a, ((const struct embed_vec_bwd_call *)arg)->args);
  if (t >= a->seq_len && a->accumulate_position)
    return;
  for (int64_t column = 0; column < a->d; column += COLUMNS) {
    int64_t n_columns = LADE_MIN(COLUMNS, a->d - column);
    float sum[COLUMNS] = {0}, *gradient = (float *)a->d_position_table + t * a->d + column;
    for (int64_t b = 0; b < a->batch && t < a->seq_len; b++)
      VEC_STEPS(row_step, 0, n_columns, sum, a->dx, (b * a->seq_len + t) * a->d + column, dtype);
    VEC_STEPS(put_step, 0, n_columns, gradient, sum, 1, a->accumulate_position);
  }
}
VEC_TASKS(position_row)

static void embed_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_embed_fwd_args *a = args;
  if (a->dtype == LADE_F64)
    lade_embed_fwd_plain(ctx, args);
  else
    look_up_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->batch * a->seq_len, lade_task_rows(a->d)));
}

static void embed_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_embed_bwd_args *a = args;
  if (a->dtype == LADE_F64) {
    lade_embed_bwd_plain(ctx, args);
    return;
  }
  struct embed_vec_bwd_call call = {a, lade_token_lists_make(a)};
  token_rectangle_run(ctx->pool, a->dtype, &call,
                      lade_div_up(a->vocabulary, TOKENS) * lade_div_up(a->d, COLUMNS));
  if (a->d_position_table)
    position_row_run(ctx->pool, a->dtype, &call, a->positions);
}

void VEC_NAME(lade_embed_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_EMBED_FWD, embed_fwd, VEC_VARIANT);
  lade_kernels_set(kernels, LADE_K_EMBED_BWD, embed_bwd, VEC_VARIANT);
}
