/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of checkpoints: chunks of a parameter's FP32 values, and what the files of a checkpoint are. */
#ifndef LADE_CHECKPOINT_INTERNAL_H
#define LADE_CHECKPOINT_INTERNAL_H

#include "base/base.h"
#include "run/checkpoint.h"

/* ---- FP32 values of parameters (checkpoint_values.c) ---- */

enum chunk_kind { CHUNK_MASTER, CHUNK_M, CHUNK_V, CHUNK_N_KINDS };

/* Elements whose 16-bit halves are one window each; chunks begin at multiples of it. */
#define CHUNK_BLOCK_ELEMENTS (LADE_VALUES_WINDOW_BYTES / 2)

/* Room for one chunk of some parameter at a time. */
struct chunk {
  const struct lade_values *values;
  float *elements;   /* n_max of them */
  int64_t n_max;     /* a multiple of CHUNK_BLOCK_ELEMENTS */
  uint16_t *weight;  /* one window of working copies */
  int16_t *residual; /* one window of residuals */
};

/* -ENOMEM; -EINVAL for graphs of a dtype that nothing trains in. @n_blocks is how many blocks a chunk may have. */
int chunk_init(struct chunk *chunk, const struct lade_values *values, int n_blocks, struct lade_faults *faults,
               struct lade_error *error);
void chunk_finish(struct chunk *chunk);

int64_t param_n_elements(const struct lade_graph *graph, int param);
/* Elements of a row; 1 for vectors. */
int64_t param_n_cols(const struct lade_graph *graph, int param);

/* Read or write elements [first, first + n) of a parameter's master or moment; @first begins a block. */
int chunk_get(struct chunk *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
              struct lade_error *error);
int chunk_set(struct chunk *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
              struct lade_error *error);

/* Set both moments of @param to zero. */
int chunk_zero_moments(struct chunk *chunk, int param, struct lade_error *error);

#endif
