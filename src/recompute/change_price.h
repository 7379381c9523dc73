/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of a residency (a value that is moved or recomputed instead of kept, a parameter on another tier), and their
 * prices.
 *
 * The descent (search/descent.c) finds the instruction at which the most memory is live, and compares the changes that
 * take bytes out of that peak. The price of a change is the difference that it makes to a simple estimate of the step:
 * the time of its busiest queue. The resulting programs are simulated in full before one is chosen.
 *
 * Values of equal place in units of equal class form a group. A change of the descent covers some members of one group:
 * the earliest units first. Their values wait longest, so their copies have the most time, and recomputed values are
 * made when little else is live.
 */
#ifndef LADE_CHANGE_PRICE_H
#define LADE_CHANGE_PRICE_H

#include "program/residency.h"

/* SAVED and SPILL: gaps of a value. STATE: the tier of a parameter's optimizer state. WEIGHT: of its working copy. */
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
  double update_ns[3]; /* by the state's tier: the part of compute, host or io that updates take */
};

/* Times by which changes are priced; the planner takes them from the cost model. */
struct lade_unit_costs {
  const int64_t *op_ns;                          /* by op, lean forms too */
  const int64_t *update_ns[3];                   /* by tier, by parameter */
  const int64_t *update_near_ns;                 /* streamed, with the working copy in a nearer tier */
  double to_host_ns, to_device_ns, read_ns, write_ns; /* per byte */
  double copy_cores;                             /* cores that one copy occupies */
  double n_cores;                                /* shared by all queues; 0: not shared */
  double gather_latency_ns, gather_ns;           /* to gather a working copy from shards: latency, and ns per byte */
  int n_shards;                                  /* shards of each parameter and its state; 1: priced as whole */
  int n_grad_shards;                             /* shards of a gradient that waits between microbatches; 1: none */
  int n_microbatches;
  bool has_serial_updates; /* updates off the device wait for all gradients: no op of the step overlaps them */
  bool is_unified;         /* updates on the host or through the store reach device memory */
  double exposed_fraction; /* part of each transfer charged to the compute queue: no schedule hides every copy */
};

typedef struct lade_pricer lade_pricer;

/* Group the graph's values. @unit_costs and @graph are borrowed. -ENOMEM. One thread at a time; nothing blocks. */
int lade_pricer_create(const struct lade_model_graph *graph, const struct lade_unit_costs *unit_costs,
                       lade_pricer **ret_pricer);
void lade_pricer_destroy(lade_pricer *pricer);

/*
 * Return the estimate of a step with @queue_times; and a lower bound of every schedule of it, without exchanges of
 * ranks.
 */
double lade_queue_times_ns(const lade_pricer *pricer, const struct lade_queue_times *queue_times);
double lade_queue_times_bound_ns(const lade_pricer *pricer, const struct lade_queue_times *queue_times);

/* Return @queue_times plus @times the @added ones. */
struct lade_queue_times lade_queue_times_sum(const struct lade_queue_times *queue_times,
                                             const struct lade_queue_times *added, int times);

/* Note the ops that run again under @residency, from which lade_change_price prices changes that recompute. O(ops). */
void lade_pricer_rebase(lade_pricer *pricer, const struct lade_residency *residency);

/*
 * Return the addition of @change to a step's queue times, given the choices so far. Recompute chains are counted
 * exactly, by the ops that run again with the change and without it. pre: lade_pricer_rebase was called for @residency
 * since its choices changed. A choice of @residency may be changed and restored meanwhile.
 */
struct lade_queue_times lade_change_price(lade_pricer *pricer, struct lade_residency *residency,
                                          const struct lade_change *change);

/* Return the time per microbatch of recomputed ops under @residency, with the extra time of lean forms; may be < 0. */
double lade_pricer_recompute_ns(lade_pricer *pricer, const struct lade_residency *residency);

/* Return the group of @id, itself included, ordered by unit. The pricer owns the array. */
const int32_t *lade_change_group(const lade_pricer *pricer, enum lade_change_kind kind, int32_t id, int *ret_n);

/*
 * Apply @change. If it moves a parameter's working copy past its state, or the state before the copy, the other
 * follows: a working copy is never farther than its state.
 */
void lade_change_apply(const struct lade_change *change, struct lade_residency *residency);

#endif
