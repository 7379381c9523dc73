/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning: from a graph, prices and budgets to a pair of proved programs (training and evaluation, over one arena) and
 * to these bounds: the device bytes of the unconstrained run, the smallest budget for which a plan is found, and a
 * lower bound for every program over these ops.
 *
 * The planner goes from "keep everything" towards less memory, one change at a time, and remembers this trajectory. A
 * budget gets the fastest state on it that fits. The trajectory does not depend on the budget, so a larger budget
 * chooses from more states and is never slower. There are two exceptions. Under ZeRO-3 a plan is never slower than a
 * smaller budget's or than everything kept in ample room. The search of large programs ends early (search.c).
 *
 * A planner is used by one thread at a time. Its creation starts a second thread and ends it. Graph and prices are
 * borrowed and outlive it and its plans.
 */
#ifndef LADE_PLAN_H
#define LADE_PLAN_H

#include "program/build.h"
#include "recompute/change_price.h"

struct lade_plan_params {
  size_t struct_size;
  const struct lade_model_graph *graph;
  const struct lade_layout *layout; /* borrowed, as the graph; NULL: one rank */
  const struct lade_prices *prices;
  int n_microbatches;
  bool is_unified;
  /* updates may run inside the backward half: for steps without clipping or a loss scale */
  bool optimizer_in_backward;
  uint64_t chunk_bytes;
  uint64_t host_bytes, store_bytes; /* budgets of the tiers; 0: no such tier */
  enum lade_recipe recipe;
  const struct lade_change *overrides; /* choices that the user fixed; the search makes the rest */
  int n_overrides;
};

struct lade_plan {
  struct lade_program *train, *eval; /* proved; over one arena */
  struct lade_residency *residency;
  uint64_t peak_bytes[LADE_N_SPACES]; /* the larger of both programs */
  int64_t predicted_ns;               /* a training step */
};

typedef struct lade_planner lade_planner;

/* Check that @graph has at most LADE_UNITS_MAX units; more would take minutes to plan. -EINVAL with its line. */
int lade_plan_units_check(const struct lade_model_graph *graph, struct lade_error *error);

/*
 * Make the trajectories: most of the planning time. -ENOMEM; -EINVAL past LADE_MICROBATCHES_MAX or LADE_UNITS_MAX.
 * Destroy accepts NULL.
 */
int lade_planner_create(const struct lade_plan_params *params, struct lade_error *error, lade_planner **ret_planner);
void lade_planner_destroy(lade_planner *planner);

struct lade_plan_bounds {
  uint64_t unconstrained_bytes; /* device peak with everything kept */
  int64_t unconstrained_ns;     /* step with everything kept; a session lowers it to that of a faster plan */
  uint64_t min_bytes;           /* smallest device budget for which a plan was found */
  uint64_t lower_bound_bytes;   /* no program needs less: see bound.c */
  int n_states;                 /* length of the trajectory */
};
/* Return the bounds; the first call computes them. -ENOMEM. */
int lade_planner_get_bounds(lade_planner *planner, struct lade_plan_bounds *ret_bounds);

/*
 * Return the fastest plan found whose device peak is at most @device_bytes. -EOVERFLOW when none fits: @error names the
 * smallest budget that does, and the changes that would make more room. The plan is the caller's.
 */
int lade_planner_plan(lade_planner *planner, uint64_t device_bytes, struct lade_error *error,
                      struct lade_plan **ret_plan);
struct lade_decision; /* recompute/decision.h */
/*
 * Follow the decision of one rank of a stage on another rank of it: build and prove its own programs with the same
 * residency, without a search. @params are this rank's; they differ from the plan leader's in the rank alone
 * (lade_plan_params_key). -EINVAL if they differ otherwise, or if the programs need more than the decision's; -ENOMEM.
 * The plan is the caller's, and equals that of lade_planner_plan.
 */
int lade_plan_follow(const struct lade_plan_params *params, const struct lade_decision *decided,
                     uint64_t device_bytes, struct lade_error *error, struct lade_plan **ret_plan);
/* Compare two ranks' plans: equal needs, equal calls on every axis. -EINVAL: @error names the difference. -ENOMEM. */
int lade_plan_compare(const struct lade_plan *plan, const struct lade_plan *other, struct lade_error *error);
void lade_plan_destroy(struct lade_plan *plan);

/* Return the name of a tensor within its unit: "attn.out" of "h.3.attn.out". */
const char *lade_name_within(const struct lade_model_graph *graph, int tensor);

/*
 * Read a --residency FILE: lines "PATTERN keep|recompute|host|store" over names of tensors, whole or within their unit,
 * of units or of kinds of ops; "optimizer PATTERN device|host|store", "weights PATTERN device|host|store", "gradients
 * PATTERN keep|host|store" and "copies PATTERN keep|drop" over names of parameters or units. residency_overrides.c has
 * examples. @whole: the model that @graph is a share of; lines may concern other ranks' parts of it. NULL: @graph is
 * all of it. The caller frees @ret_overrides. -EINVAL: @error names the line; -ENOMEM, and errors of opening the file.
 */
int lade_residency_overrides_load(const char *path, const struct lade_model_graph *graph,
                                  const struct lade_model_graph *whole,
                                  struct lade_error *error, struct lade_change **ret_overrides, int *ret_n_overrides);

#endif
