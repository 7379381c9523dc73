/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proposals of the residency solver: the next value to move or drop, and its cost.
 *
 * The search (descent.c) builds a program and finds the instruction at which the most memory is live. It asks here for
 * the cheapest change that takes bytes out of that peak. Costs are differences of a simple estimate of the step: the
 * busiest of the queues after the change. The resulting programs are simulated in full before one is chosen.
 *
 * Values of equal place in units of equal class form a group. A proposal covers some members of one group: the earliest
 * units first. Their values wait longest, so their copies have the most time, and recomputed values are made when
 * little else is live.
 */
#ifndef LADE_PROPOSE_H
#define LADE_PROPOSE_H

#include "program/residency.h"

/*
 * SAVED and SPILL: gaps of a value. STATE: the home tier of a parameter's optimizer state. WEIGHT: that of its working
 * copy.
 */
enum lade_change_kind { LADE_CHANGE_SAVED, LADE_CHANGE_SPILL, LADE_CHANGE_STATE, LADE_CHANGE_WEIGHT };

struct lade_change {
  uint8_t kind; /* enum lade_change_kind */
  uint8_t to;   /* enum lade_residency_policy, or enum lade_tier */
  int32_t id;   /* tensor; parameter for STATE and WEIGHT */
};

static inline bool lade_change_is_tier(const struct lade_change *change)
{
  return change->kind == LADE_CHANGE_STATE || change->kind == LADE_CHANGE_WEIGHT;
}

/*
 * Return the index of a change in arrays over tensors, then states of parameters, then working copies; and the arrays'
 * length.
 */
static inline int lade_change_index(const struct lade_model_graph *graph, const struct lade_change *change)
{
  if (!lade_change_is_tier(change))
    return change->id;
  return graph->n_tensors + (change->kind == LADE_CHANGE_WEIGHT ? graph->n_params : 0) + change->id;
}
static inline int lade_change_count(const struct lade_model_graph *graph)
{
  return graph->n_tensors + 2 * graph->n_params;
}

/* Busy time per step of concurrent work, in the order of the queues. */
struct lade_queue_times {
  double compute_ns, to_host_ns, to_device_ns, io_ns, host_ns;
  double comm_ns; /* between data parallel ranks: gathers of working copies, sums of gradients */
};

/* The solver's unit costs; the search makes them from the cost model. */
struct lade_unit_costs {
  const int64_t *op_ns;                          /* by op, lean forms too */
  const int64_t *update_ns[3];                   /* by home tier, by parameter */
  const int64_t *update_near_ns;                 /* streamed, with the working copy in a nearer tier */
  double to_host_ns, to_device_ns, read_ns, write_ns; /* per byte */
  double copy_cores;                             /* that one copy occupies */
  double n_cores;                                /* shared by all queues; 0: not shared */
  double gather_latency_ns, gather_ns;           /* of gathering a working copy from shards; gather_ns per byte of it */
  int n_shards;                                  /* of each parameter and its state; 1: priced as whole */
  int n_grad_shards;                             /* of a gradient that waits between microbatches; 1: it is whole */
  int n_microbatches;
  bool is_unified;         /* updates on the host or through the store reach device memory */
  double exposed_fraction; /* of each transfer, charged to the compute queue: no schedule hides every copy */
};

typedef struct lade_solver lade_solver;

/* Group the graph's values. @unit_costs and @graph are borrowed. -ENOMEM. One thread at a time; nothing blocks. */
int lade_solver_create(const struct lade_model_graph *graph, const struct lade_unit_costs *unit_costs,
                       lade_solver **ret_solver);
void lade_solver_destroy(lade_solver *solver);

/*
 * Return the estimate of a step with @queue_times; and a lower bound of every schedule of it, without exchanges of
 * ranks.
 */
double lade_queue_times_ns(const lade_solver *solver, const struct lade_queue_times *queue_times);
double lade_queue_times_least_ns(const lade_solver *solver, const struct lade_queue_times *queue_times);

/* Return @queue_times plus @times the @added ones. */
struct lade_queue_times lade_queue_times_sum(const struct lade_queue_times *queue_times,
                                             const struct lade_queue_times *added, int times);

/*
 * Return the addition of @change to a step's queue times, given the choices so far. Recompute chains are counted
 * exactly, by the ops that run again with and without the change. So a choice of @residency is changed and restored
 * meanwhile.
 */
struct lade_queue_times lade_solver_price(lade_solver *solver, struct lade_residency *residency,
                                          const struct lade_change *change);

/* Return the time per microbatch of recomputed ops under @residency, with the extra time of lean forms; may be < 0. */
double lade_solver_recompute_ns(lade_solver *solver, const struct lade_residency *residency);

/* Return the group of @id, itself included, ordered by unit. The solver owns the array. */
const int32_t *lade_solver_group(const lade_solver *solver, enum lade_change_kind kind, int32_t id, int *ret_n);

/*
 * Apply @change. If it moves one home tier of a parameter past the other, the other follows: a working copy is never
 * farther than its state.
 */
void lade_change_apply(const struct lade_change *change, struct lade_residency *residency);

#endif
