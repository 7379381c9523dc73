/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proposals of the residency solver: which value to send away next, and what that would cost.
 *
 * The search (plan/walk.c) builds a program, finds the instant at which most memory is live, and asks here for
 * the cheapest change that takes something out of it. Costs are differences of a simple estimate of the
 * step, the busiest of the queues after the change; the programs that result are simulated properly before
 * one is chosen.
 *
 * Values of equal place in units of equal class form a group, and a proposal speaks of some members of one
 * group: the earliest units first, whose values wait longest, so their copies have the most time and what
 * is made again is made when little else is live.
 */
#ifndef LADE_PROPOSE_H
#define LADE_PROPOSE_H

#include "recompute/residency.h"

/* SAVED and SPILL: gaps of a value. STATE: the home of a parameter's optimizer state. WEIGHT: of its working copy. */
enum lade_change_kind { LADE_CHANGE_SAVED, LADE_CHANGE_SPILL, LADE_CHANGE_STATE, LADE_CHANGE_WEIGHT };

struct lade_change {
  uint8_t kind; /* enum lade_change_kind */
  uint8_t to;   /* enum lade_wait, or enum lade_home */
  int32_t id;   /* tensor; parameter for STATE and WEIGHT */
};

static inline bool lade_change_is_home(const struct lade_change *change)
{
  return change->kind == LADE_CHANGE_STATE || change->kind == LADE_CHANGE_WEIGHT;
}

/* Where a change is noted in arrays over tensors, then states of parameters, then working copies; their length. */
static inline int lade_change_index(const struct lade_graph *graph, const struct lade_change *change)
{
  if (!lade_change_is_home(change))
    return change->id;
  return graph->n_tensors + (change->kind == LADE_CHANGE_WEIGHT ? graph->n_params : 0) + change->id;
}
static inline int lade_change_count(const struct lade_graph *graph)
{
  return graph->n_tensors + 2 * graph->n_params;
}

/* Busy time per step of what runs beside each other, in the order of the queues. */
struct lade_load {
  double compute_ns, to_host_ns, to_device_ns, io_ns, host_ns;
  double comm_ns; /* among data parallel ranks: gathers of working copies, sums of gradients */
};

/* What the solver knows of prices; made by the search from the cost model. */
struct lade_tariff {
  const int64_t *op_ns;                          /* by op */
  const int64_t *update_ns[3];                   /* by home, by parameter */
  const int64_t *update_near_ns;                 /* streamed, with the working copy nearer */
  double to_host_ns, to_device_ns, read_ns, write_ns; /* per byte */
  double copy_cores;                             /* that one copy keeps busy */
  double n_cores;                                /* shared by all queues; 0: not shared */
  double gather_latency_ns, gather_ns;           /* of a working copy from shards; per byte of it */
  int n_shards;                                  /* of each parameter and its state; 1: priced as if whole */
  int n_grad_shards;                             /* of a gradient that waits between microbatches; 1: it is whole */
  int n_microbatches;
  bool is_unified;         /* updates elsewhere reach the device's memory */
  double exposed_fraction; /* of each transfer, charged to the compute queue: no schedule hides every copy */
};

typedef struct lade_solver lade_solver;

/* Group the graph's values. @tariff and @graph are borrowed. -ENOMEM. One thread at a time; nothing blocks. */
int lade_solver_create(const struct lade_graph *graph, const struct lade_tariff *tariff, lade_solver **ret_solver);
void lade_solver_destroy(lade_solver *solver);

/* The estimate of a step under @load; and what no schedule of it can beat, whatever ranks exchange. */
double lade_load_ns(const lade_solver *solver, const struct lade_load *load);
double lade_load_least_ns(const lade_solver *solver, const struct lade_load *load);

/* @load and @times the @added one. */
struct lade_load lade_load_sum(const struct lade_load *load, const struct lade_load *added, int times);

/*
 * What @change would add to a step's load, given the choices so far. Recompute chains are counted exactly: by the ops
 * that are run again with and without the change, so a choice of @residency is changed and put back meanwhile.
 */
struct lade_load lade_solver_price(lade_solver *solver, struct lade_residency *residency,
                                   const struct lade_change *change);

/* Time of the ops that are run again per microbatch under @residency. */
double lade_solver_recompute_ns(lade_solver *solver, const struct lade_residency *residency);

/* The group of @id, itself included, ordered by unit. The array is the solver's. */
const int32_t *lade_solver_group(const lade_solver *solver, enum lade_change_kind kind, int32_t id, int *ret_n);

/* Of two homes of a parameter the other one follows where it must: a working copy is never farther than its state. */
void lade_change_apply(const struct lade_change *change, struct lade_residency *residency);

#endif
