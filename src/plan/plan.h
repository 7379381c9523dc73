/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning: from a graph, prices and budgets to a pair of proved programs (training and evaluation, over one
 * arena) and the numbers that a person asks for: what the unconstrained run needs, the smallest budget that is
 * reached, and a lower bound that no program over these ops can beat.
 *
 * The planner walks from "keep everything" towards less memory, one change at a time, and remembers the walk. A
 * budget is then answered by the fastest state of the walk that fits. As the walk does not depend on
 * the budget, a larger budget chooses from more states and is never slower (ZeRO-3: than that or than everything kept
 * in ample room; search.c).
 *
 * A planner is used by one thread at a time. Graph and prices are borrowed and outlive it and its plans.
 */
#ifndef LADE_PLAN_H
#define LADE_PLAN_H

#include "plan/build.h"
#include "recompute/propose.h"

struct lade_plan_params {
  size_t struct_size;
  const struct lade_graph *graph;
  const struct lade_layout *layout; /* borrowed as the graph is; NULL: one rank */
  const struct lade_prices *prices;
  int n_microbatches;
  bool is_unified;
  bool is_early; /* updates may come inside the backward half: for steps without clipping or a loss scale */
  uint64_t chunk_bytes;
  uint64_t host_bytes, store_bytes; /* budgets of the tiers; 0: there is none */
  enum lade_recipe recipe;
  const struct lade_change *pins; /* choices that a person fixed; the solver does the rest */
  int n_pins;
};

struct lade_plan {
  struct lade_program *train, *eval; /* proved; over one arena */
  struct lade_residency *residency;
  uint64_t peak_bytes[LADE_N_SPACES]; /* the larger of both programs */
  int64_t predicted_ns;               /* a training step */
};

typedef struct lade_planner lade_planner;

/* Walk: most of the planning. -ENOMEM; -EINVAL past LADE_MICROBATCHES_MAX. Destroy takes NULL. */
int lade_planner_create(const struct lade_plan_params *params, struct lade_error *error, lade_planner **ret_planner);
void lade_planner_destroy(lade_planner *planner);

struct lade_plan_bounds {
  uint64_t unconstrained_bytes; /* device peak with everything kept */
  int64_t unconstrained_ns;
  uint64_t min_bytes;           /* smallest device budget for which a plan was found */
  uint64_t lower_bound_bytes;   /* smaller is impossible: see bound.c */
  int n_states;                 /* length of the walk */
};
/* What the first call finds is kept. -ENOMEM. */
int lade_planner_get_bounds(lade_planner *planner, struct lade_plan_bounds *ret_bounds);

/*
 * The fastest plan found whose device peak is at most @device_bytes. -EOVERFLOW when none fits: @error names
 * the smallest budget that does, and what would make more room. The plan is the caller's.
 */
int lade_planner_plan(lade_planner *planner, uint64_t device_bytes, struct lade_error *error,
                      struct lade_plan **ret_plan);
struct lade_decision; /* plan/decision.h */
/*
 * What was decided for one rank of a stage, for another rank of it: its own programs, built with the same residency,
 * and proved. Nothing is searched. @params are this rank's; what @decided was made with differs in the rank alone
 * (lade_plan_params_key), or -EINVAL: the programs need more than was decided. -ENOMEM. The plan is the caller's, and
 * the one that lade_planner_plan would give.
 */
int lade_plan_follow(const struct lade_plan_params *params, const struct lade_decision *decided,
                     uint64_t device_bytes, struct lade_error *error, struct lade_plan **ret_plan);
/* Do two ranks need as much, and say the same on every axis? -EINVAL: @error says where not. -ENOMEM. */
int lade_plan_compare(const struct lade_plan *plan, const struct lade_plan *other, struct lade_error *error);
void lade_plan_destroy(struct lade_plan *plan);

/* The name of a tensor within its unit: "attn.out" of "h.3.attn.out". */
const char *lade_name_within(const struct lade_graph *graph, int tensor);

/*
 * Read a --residency FILE: lines "PATTERN keep|recompute|host|store" over tensors' names, whole or within their unit,
 * units' or kinds of ops, "optimizer PATTERN device|host|store", "weights PATTERN device|host|store", "gradients
 * PATTERN keep|host|store" and "copies PATTERN keep|drop" over parameters' or units'; pins.c has examples. @whole: the
 * model that @graph is a share of, where lines may be about what other ranks have; NULL: @graph is all of it. The
 * caller frees @ret_pins. -EINVAL: @error names the line; -ENOMEM, and what opening the file answered.
 */
int lade_pins_load(const char *path, const struct lade_graph *graph, const struct lade_graph *whole,
                   struct lade_error *error, struct lade_change **ret_pins, int *ret_n_pins);

#endif
