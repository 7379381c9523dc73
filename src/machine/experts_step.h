/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training step of a mixture of experts on one rank, as a graph of opaque ops (lade/graph.h): its storages with
 * their bytes, and its ops with their prices on a machine. The planner of graphs plans it; it does not run.
 *
 * The step has the storages and ops of Lade's own steps: parameters in the working type, AdamW's state, FP32 gradients
 * that microbatches add to, clipping by the norm of all gradients, updates after it. Activations that the backward half
 * reads are storages; the planner decides which of them are kept.
 *
 * The load. A layer has n_experts groups of rows, and each token has n_active of them. An expert has room for @capacity
 * times its share of a balanced load, at most all tokens, as in GShard (2020): memory and time count the whole room. So
 * a plan at capacity C holds for each load that gives no expert more than C times its share.
 */
#ifndef LADE_EXPERTS_STEP_H
#define LADE_EXPERTS_STEP_H

#include "graph/experts.h"
#include "lade/graph.h"
#include "machine/cost.h"

struct lade_experts_step_params {
  size_t struct_size;
  const struct lade_experts *model;
  const struct lade_cost *cost;
  enum lade_dtype dtype; /* F32, BF16 or F16 */
  enum lade_moments moments;
  enum lade_master master; /* other than EXACT for BF16 only */
  int64_t micro_batch, n_microbatches, seq_len;
  double capacity; /* 1: a balanced load */
};

/* Return the rows that an expert has room for, and those of all experts of a layer, in one microbatch. */
int64_t lade_experts_rows(const struct lade_experts_step_params *params, int64_t *ret_all_rows);

/*
 * Build and close the graph; the caller destroys it. -EINVAL with one line: a size out of range, or a step with more
 * ops or bytes than a graph has; -ENOMEM.
 */
int lade_experts_step_graph(const struct lade_experts_step_params *params, struct lade_error *error,
                            lade_graph **ret_graph);

#endif
