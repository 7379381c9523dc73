/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head's loss at any level: head_loss.c goes through blocks of rows and chunks of the vocabulary; a level
 * multiplies a chunk of logits and reduces one row of it. Private to kernels/host.
 */
#ifndef LADE_HEAD_LOSS_H
#define LADE_HEAD_LOSS_H

#include "kernels/kernels.h"

/* One row of one chunk. A is @accumulator; logits are in A. */
struct lade_head_row {
  enum lade_dtype accumulator, dtype;
  const void *logits;
  int64_t n;
  int64_t target; /* in this chunk, or -1 */
  float softcap;  /* 0: none */
};

struct lade_head_loss_level {
  lade_kernel_fn *matmul;
  /* Replace each logit by softcap tanh(logit / softcap). pre: softcap is above 0. */
  void (*cap)(const struct lade_head_row *row, void *logits);
  /* Update the row's running (max, sum of exp(logit - max)) with these logits. */
  void (*reduce)(const struct lade_head_row *row, double *max, double *sum);
  /*
   * d_logits[n] in D = (exp(logit - lse) - (j == target)) * scale; with a soft cap, logits are the capped ones, and
   * this is multiplied by the cap's slope, 1 - (logit / softcap)^2.
   */
  void (*gradient)(const struct lade_head_row *row, double lse, double scale, void *d_logits);
  /* to[n] in D = from[n] in FP32, rounded. */
  void (*cast)(enum lade_dtype dtype, const float *from, int64_t n, void *to);
};

/* All dtypes. */
extern const struct lade_head_loss_level lade_head_loss_plain;

void lade_head_loss_fwd_run(const struct lade_head_loss_level *level, const struct lade_kernel_ctx *ctx,
                            const struct lade_head_loss_fwd_args *args);
void lade_head_stats_run(const struct lade_head_loss_level *level, const struct lade_kernel_ctx *ctx,
                         const struct lade_head_stats_args *args);
void lade_head_loss_bwd_run(const struct lade_head_loss_level *level, const struct lade_kernel_ctx *ctx,
                            const struct lade_head_loss_bwd_args *args);

#endif
