/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocked attention at any level: attention_blocked.c goes through blocks of queries and keys and multiplies with the
 * matrix product's micro-kernels. A level turns rows of scores into probabilities and gradients (attention_rows.h, once
 * for all levels). Private to kernels/host.
 */
#ifndef LADE_ATTENTION_BLOCKED_H
#define LADE_ATTENTION_BLOCKED_H

#include "kernels/host/matmul/matmul_blocked.h"

/* Blocks, multiples of every level's mr and nr; sums depend on them. Backward takes as many keys as queries. */
#define LADE_ATTENTION_QUERIES 96
#define LADE_ATTENTION_KEYS 192

#define LADE_ATTENTION_ROWS 32 /* the largest mr */

/*
 * Rows of scores: row r sees its first min(first_visible + r, n_columns) columns, at least one, without the first
 * n_hidden[r] of them, if it is given. At most LADE_ATTENTION_ROWS rows.
 */
struct lade_score_rows {
  float *scores;       /* q k^T, not yet scaled; rows of @stride; masked elements are overwritten */
  int stride, n_rows, n_columns, first_visible;
  const int *n_hidden; /* at most n_columns; NULL: none is hidden */
  float scale;
  float softcap; /* 0: none */
  /*
   * ALiBi: (key_positions[column] - query_positions[row]) alibi_slope is added to scaled scores, before the cap. NULL:
   * none. There are positions for whole vectors of columns.
   */
  const float *key_positions, *query_positions;
  float alibi_slope;
  const struct lade_drop *drop; /* NULL: none */
  const struct lade_step *step;
  int64_t element, element_stride; /* of dropout: of the first row's first column, and from row to row */
};

/* Online softmax: probabilities up to the row's final sum, and the running state of each row. */
struct lade_softmax_rows {
  struct lade_score_rows rows;
  float *max, *sum; /* in and out: -inf and 0 at first */
  float *factor;    /* out: the factor for earlier sums */
  void *p;          /* exp(scale s - max) times dropout; 0 where not visible. ALiBi's term is added to scale s */
};

/*
 * Backward: d_s = p (drop(d_p) - delta) scale with p = exp(scale s - lse); with a cap c, p = exp(c t - lse) with t =
 * tanh(scale s / c), and d_s has the factor 1 - t^2.
 */
struct lade_gradient_rows {
  struct lade_score_rows rows;
  float *d_p;       /* dout v^T, rows of @stride; as scores */
  const float *lse, *delta;
  void *p, *d_s;    /* drop(p), and d_s; 0 where not visible */
};

struct lade_attention_level {
  const struct lade_matmul_level *matmul;
  enum lade_dtype p_dtype; /* in which probabilities are multiplied */
  void (*softmax)(const struct lade_softmax_rows *args);
  void (*gradient)(const struct lade_gradient_rows *args);
  /* rows[i][0..n_columns) *= factor[i]; n_columns is a multiple of 16. */
  void (*scale)(float *rows, int n_rows, int n_columns, const float *factor);
  float (*dot)(enum lade_dtype dtype, const void *x, const void *y, int64_t at, int n);
  lade_kernel_fn *column_sum; /* the table's at this level */
};

void lade_attention_fwd_blocked(const struct lade_attention_level *level, const struct lade_kernel_ctx *ctx,
                                const struct lade_attention_fwd_args *args);
void lade_attention_bwd_blocked(const struct lade_attention_level *level, const struct lade_kernel_ctx *ctx,
                                const struct lade_attention_bwd_args *args);

/* Scratch of one thread, for any level. */
size_t lade_attention_fwd_scratch_bytes(int64_t head_dim);
size_t lade_attention_bwd_scratch_bytes(int64_t seq_len, int64_t head_dim);

#endif
