/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops for any graph of a caller's own step: each op computes bytes from all that it reads, and writes all that it
 * writes. A reference runs the ops in order over plain memory, and a stepper's storages are compared with it.
 *
 * Bytes are read at samples, about 256 of a storage with its first and its last, and written everywhere. A range that
 * no op wrote yet has no bytes to read.
 */
#ifndef LADE_TEST_STEP_OPS_H
#define LADE_TEST_STEP_OPS_H

#include <stdatomic.h>

#include "graph/graph.h"
#include "lade/step.h"

#define STEP_OPS_SAMPLES 260

struct step_ops {
  const lade_graph *graph;
  bool (*is_defined)[STEP_OPS_SAMPLES];      /* by operand of the graph: samples that earlier ops wrote */
  bool (*is_defined_at_end)[STEP_OPS_SAMPLES]; /* by storage */
  unsigned char **storages;                  /* of the reference */
  unsigned char *scratch;
  bool *has_run;                             /* by op, in this step */
  uint64_t *draws;                           /* by op: of its first run */
  uint64_t step;
  atomic_int n_calls, n_redone, n_wrong;     /* wrong: a call that breaks its contract */
  int fail_at;                               /* the call that fails, from 1; 0: none */
  int fail_code;
};

void step_ops_init(struct step_ops *ops, const lade_graph *graph);
void step_ops_finish(struct step_ops *ops);

/* A lade_op_fn; its user is a struct step_ops. */
int step_ops_run(void *ops, const struct lade_op_call *call);
/* Forget the calls of the last step. */
void step_ops_begin(struct step_ops *ops, uint64_t step);

/* Fill the reference's given storages, and those of @stepper, with bytes of their own. */
void step_ops_fill(struct step_ops *ops, lade_stepper *stepper);
/* Run one step over the reference's memory. */
void step_ops_reference(struct step_ops *ops, uint64_t step);
/* Fail the test unless given and kept storages of @stepper hold the reference's bytes. */
void step_ops_compare(const struct step_ops *ops, lade_stepper *stepper);

/* Copy @graph with sizes and ranges @factor times as large, closed. The caller destroys it. */
lade_graph *step_ops_scale(const lade_graph *graph, uint64_t factor);

#endif
