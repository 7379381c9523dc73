/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token and position embedding, and its backward.
 *
 * The token table's gradient is a scatter with collisions. Lists are made first: first[token], then next[row], in the
 * order of rows; O(V + N), one thread. With them every token's sum is complete before it is added to the gradient, and
 * tasks are rectangles of the table that share nothing. A rectangle is a range of tokens by a range of columns, so that
 * one frequent token does not leave all work to one thread. The position table's gradient sums the sequences of the
 * batch in order.
 *
 * Rejected: scattering straight into the gradient, because its sum would then depend on the earlier contents. Rejected:
 * a table per thread (V*d each), and atomics, because the order of the threads would then be the order of the sums.
 */
#include <string.h>

#include "kernels/host/ref.h"

#define TOKENS 2048 /* tokens of one task */
#define COLUMNS 128

REF_INLINE void look_up_rows(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct lade_embed_fwd_args *a = arg;
  int64_t rows = lade_task_rows(a->d), end = LADE_MIN(a->batch * a->seq_len, (i_task + 1) * rows);
  double scale = a->scale != 0 ? (double)a->scale : 1;
  for (int64_t row = i_task * rows; row < end; row++) {
    int64_t token = a->tokens[row] - a->first_token, position_at = row % a->seq_len * a->d;
    bool is_here = token >= 0 && token < a->vocabulary;
    for (int64_t j = 0; j < a->d && !is_here && a->before; j++)
      ref_put(dtype, a->x, row * a->d + j, ref_get(dtype, a->before, row * a->d + j));
    for (int64_t j = 0; j < a->d && (is_here || !a->before); j++) {
      double x = is_here ? scale * ref_get(dtype, a->token_table, token * a->d + j) : 0;
      if (a->position_table)
        x += ref_get(dtype, a->position_table, position_at + j);
      ref_put(dtype, a->x, row * a->d + j, x);
    }
  }
}
REF_TASKS(look_up_rows)

struct lade_token_lists lade_token_lists_make(const struct lade_embed_bwd_args *a)
{
  int64_t n = a->batch * a->seq_len;
  int32_t *first = a->workspace, *next = first + a->vocabulary;
  memset(first, 0xff, (size_t)a->vocabulary * sizeof(*first)); /* all -1: no row */
  for (int64_t row = n - 1; row >= 0; row--) {                 /* backwards, so that lists run forwards */
    int64_t token = a->tokens[row] - a->first_token;
    if (token < 0 || token >= a->vocabulary || (a->has_pad && a->tokens[row] == a->pad_token))
      continue;
    next[row] = first[token];
    first[token] = (int32_t)row;
  }
  return (struct lade_token_lists){first, next};
}

struct embed_bwd_call {
  const struct lade_embed_bwd_args *args;
  struct lade_token_lists lists;
};

/* Set gradient[at..at+n) (+)= sum, which is rounded to A before it is added. */
REF_INLINE void columns_put(enum lade_dtype accumulator, void *gradient, int64_t at, const double *sum, int64_t n,
                            bool accumulate)
{
  for (int64_t j = 0; j < n; j++) {
    double complete = accumulator == LADE_F32 ? (double)(float)sum[j] : sum[j];
    ref_put(accumulator, gradient, at + j, accumulate ? ref_get(accumulator, gradient, at + j) + complete : complete);
  }
}

REF_INLINE void token_rectangle(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct embed_bwd_call *call = arg;
  const struct lade_embed_bwd_args *a = call->args;
  int64_t n_across = lade_div_up(a->d, COLUMNS), column = i_task % n_across * COLUMNS;
  int64_t from = i_task / n_across * TOKENS, end = LADE_MIN(a->vocabulary, from + TOKENS);
  int64_t n = LADE_MIN(COLUMNS, a->d - column);
  for (int64_t token = from; token < end; token++) {
    int32_t row = call->lists.first[token];
    if (row < 0 && a->accumulate_token)
      continue;
    double sum[COLUMNS] = {0};
    for (; row >= 0; row = call->lists.next[row]) {
      for (int64_t j = 0; j < n; j++)
        sum[j] += ref_get(dtype, a->dx, row * a->d + column + j);
    }
    for (int64_t j = 0; j < n && a->scale != 0; j++)
      sum[j] *= (double)a->scale;
    columns_put(lade_accumulator(dtype), a->d_token_table, token * a->d + column, sum, n, a->accumulate_token);
  }
}
REF_TASKS(token_rectangle)

REF_INLINE void position_row(const void *arg, int64_t t, enum lade_dtype dtype)
{
  const struct lade_embed_bwd_args *a = ((const struct embed_bwd_call *)arg)->args;
  if (t >= a->seq_len && a->accumulate_position)
    return;
  for (int64_t column = 0; column < a->d; column += COLUMNS) {
    int64_t n = LADE_MIN(COLUMNS, a->d - column);
    double sum[COLUMNS] = {0};
    for (int64_t b = 0; b < a->batch && t < a->seq_len; b++) {
      for (int64_t j = 0; j < n; j++)
        sum[j] += ref_get(dtype, a->dx, (b * a->seq_len + t) * a->d + column + j);
    }
    columns_put(lade_accumulator(dtype), a->d_position_table, t * a->d + column, sum, n,
                a->accumulate_position);
  }
}
REF_TASKS(position_row)

void lade_embed_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_embed_fwd_args *a = args;
  look_up_rows_run(ctx->pool, a->dtype, a, lade_div_up(a->batch * a->seq_len, lade_task_rows(a->d)));
}

void lade_embed_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_embed_bwd_args *a = args;
  struct embed_bwd_call call = {a, lade_token_lists_make(a)};
  token_rectangle_run(ctx->pool, a->dtype, &call,
                      lade_div_up(a->vocabulary, TOKENS) * lade_div_up(a->d, COLUMNS));
  if (a->d_position_table)
    position_row_run(ctx->pool, a->dtype, &call, a->positions);
}

size_t lade_embed_bwd_workspace_bytes(const struct lade_embed_bwd_args *a)
{
  return (size_t)(a->vocabulary + a->batch * a->seq_len) * sizeof(int32_t);
}

void lade_embed_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_EMBED_FWD, lade_embed_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_EMBED_BWD, lade_embed_bwd_plain, "plain");
}
