/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's forward pass over one sequence, in FP32 and in plain memory: for sampling text, where neither a budget nor
 * a plan is of use.
 *
 * One thread at a time.
 */
#ifndef LADE_FORWARD_H
#define LADE_FORWARD_H

#include "run/values.h"

typedef struct lade_forward lade_forward;

struct lade_forward_params {
  size_t struct_size;
  const struct lade_model *model;
  int64_t seq_len;                       /* longest sequence; at most the model's context */
  const struct lade_kernels *kernels; /* borrowed */
  lade_pool *pool;                    /* borrowed; NULL: the caller's thread */
};

/* Parameters are not set yet: fill lade_forward_values. -EINVAL as lade_model_graph_create, -ENOMEM. */
int lade_forward_create(const struct lade_forward_params *params, struct lade_error *error, lade_forward **ret_forward);
void lade_forward_destroy(lade_forward *forward);

/* Return its parameters, for lade_checkpoint_init; optimizer state that is set is dropped, and cannot be read. */
struct lade_values lade_forward_values(lade_forward *forward);

/*
 * Compute the logits [vocabulary] that follow tokens [@n_tokens], 1 to the longest sequence. -EINVAL for a length or a
 * token out of range. Blocks; computes on the pool.
 */
int lade_forward_logits(lade_forward *forward, const int32_t *tokens, int64_t n_tokens, float *ret_logits);

#endif
