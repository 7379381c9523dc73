/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of lade/step.h: step_plan.c finds a plan with addresses, step_memory.c takes its memory and binds instructions
 * to it, step.c runs them, step_values.c reads and writes storages between runs.
 */
#ifndef LADE_STEP_INTERNAL_H
#define LADE_STEP_INTERNAL_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/first_error.h"
#include "device/device.h"
#include "graph/graph.h"
#include "lade/step.h"
#include "offload/pinned.h"
#include "offload/store.h"
#include "program/program.h"

struct lade_faults;

/* ---- step_plan.c ---- */

struct step_plan_params {
  const struct lade_graph *graph;
  struct lade_graph_plan_params search;
  uint64_t chunk_bytes; /* of the device */
  bool is_unified;
};

struct step_plan {
  struct lade_program *program; /* proved */
  struct lade_graph_plan_info info;
  uint64_t budget_bytes;     /* of the device, in whole chunks */
  uint64_t min_budget_bytes; /* the smallest that was found, with addresses */
};

/*
 * Find a plan whose addresses are within the budgets, and prove its program. Errors as lade_step_create: after -ENOSPC
 * ret_plan->min_budget_bytes is set, and nothing else. The caller destroys the program.
 */
int step_plan_find(const struct step_plan_params *params, struct lade_error *error, struct step_plan *ret_plan);

/* ---- the stepper ---- */

/* An op of the program, ready to be called. */
struct step_call {
  struct lade_op_call call;
  lade_stepper *stepper;
  int32_t at; /* its instruction */
};

/* A transfer of the store, ready to be submitted. */
struct step_transfer {
  struct lade_transfer transfer;
  lade_stepper *stepper;
  struct lade_value value;
  uint64_t moved_bytes; /* to or from the device; 0: it is the second half of a move through the host */
};

struct lade_stepper {
  const struct lade_graph *graph;
  struct lade_step_params params; /* .plan is not valid any more */
  struct lade_faults *faults;
  struct step_plan plan;
  const struct lade_program *program;
  lade_device *device;
  bool is_dry, is_cuda, is_unified;
  uint64_t created_bytes; /* of the device, before the stepper took its own */
  uint64_t arena, arena_bytes, reserved_bytes;
  lade_chunk *chunk;
  struct lade_pinned host;
  lade_store *store;
  struct lade_extent extent;
  void *bounce; /* STEP_WINDOW_BYTES, for storages in the store between runs; NULL without a store */
  bool is_pinned;
  lade_queue *queues[LADE_N_QUEUES]; /* NULL: no instruction uses it */
  /* by instruction; its kind tells which are in use */
  struct step_call *calls;
  struct lade_copy *copies;
  struct step_transfer *transfers;
  uint64_t *counts; /* of the running step: the event of each instruction */
  void **addresses; /* of the operands of all calls */
  uint64_t n_steps, n_runs;
  _Atomic uint64_t moved_bytes;
  atomic_int n_ops, n_redone; /* called in the running step */
  struct lade_first_error failure; /* of a step: a run returns its line, and so does every later call */
};

#define STEP_WINDOW_BYTES ((uint64_t)16 * LADE_STORE_GRANULE_BYTES) /* a MiB */

/* Create a stepper whose own requests can fail by @faults, which may be NULL; as lade_step_create. */
int step_create(const lade_graph *graph, const struct lade_step_params *params, struct lade_faults *faults,
                struct lade_error *error, struct lade_step_info *ret_info, lade_stepper **ret_stepper);

/* ---- step_memory.c ---- */

/* Take device memory, the host's and the store's, and queues. The caller gives them back, also on failure. */
int step_memory_take(lade_stepper *stepper, struct lade_error *error);
void step_memory_release(lade_stepper *stepper);
/* Bind instructions to addresses; -ENOMEM. */
int step_bind(lade_stepper *stepper);
void step_unbind(lade_stepper *stepper);

/* Return the address of @offset in @buffer; not of the store. On a dry device it must not be used. */
void *step_address(const lade_stepper *stepper, int32_t buffer, uint64_t offset);

/* ---- step_values.c ---- */

/* Fill all given storages of the store with zeros. */
int step_store_clear(lade_stepper *stepper, struct lade_error *error);
/* Set the identity of @value's bytes in the running step. */
void step_identity_set(const lade_stepper *stepper, struct lade_value value, struct lade_transfer *transfer);

#endif
