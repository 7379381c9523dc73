/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the planner, shared by plan.c, trajectories.c and search.c, which chooses from the trajectories. */
#ifndef LADE_PLAN_INTERNAL_H
#define LADE_PLAN_INTERNAL_H

#include "lade/pack.h"
#include "recompute/search/descent.h"
#include "recompute/search/peak_analysis.h"

#define N_TRAJECTORY_KINDS 9 /* rows of trajectory_kinds (trajectories.c) */
#define N_TRAJECTORIES (8 * N_TRAJECTORY_KINDS) /* with optimizer_in_backward or not, by stated prices and by plain
                                                   ones, each with and without a lump that is kept */

/* Prices by which trajectories are made. */
struct pricing {
  struct lade_plan_params params; /* the planner's with these prices */
  struct lade_unit_costs unit_costs;
  lade_pricer *pricer;
  struct peak_analysis analysis; /* while trajectories are made */
  int n_peaks;
};

struct plan_candidate {
  int16_t trajectory;
  int32_t state;
  int64_t bound_ns;
};

/* Peak of a state just in time, packed until it reached @floor_bytes. */
struct packed_peak {
  uint64_t key[2]; /* of its residency */
  uint64_t floor_bytes, bytes;
};

struct lade_planner {
  struct lade_plan_params params; /* with the layout of the plan leader */
  struct lade_layout leader;
  const struct lade_layout *own_layout;
  struct lade_residency *start;
  bool *is_pinned; /* by lade_change_index */
  struct lade_prices plain_prices;
  struct pricing stated, plain;
  lade_packer *packer;
  struct trajectory trajectories[N_TRAJECTORIES]; /* the first n_stated by stated prices, the others by plain ones */
  int n_stated, n_trajectories;
  bool is_plain_coarse; /* by plain prices the coarse trajectory alone was made, or not all of the others */
  LADE_ARRAY(struct packed_peak) peaks; /* known so far: other prices and other budgets reach the same states */
  struct lade_plan_bounds bounds;
  struct plan_candidate smallest; /* the state whose packed peak is bounds.min_bytes */
  int64_t ample_ns;           /* step with everything kept and all useful device memory; 0: ranks gather no copies */
  double ladder_parts;        /* of each step of the ladder: more than 1 if the smallest budget is near the largest */
  bool has_bounds;
};

/* Make all trajectories, from the planner's start. -ENOMEM, with those made so far. */
int planner_make_trajectories(lade_planner *planner);
/*
 * Make the trajectories by plain prices, in place of the coarse one. -ENOMEM, with those made so far: the next call
 * makes them again.
 */
int planner_refine_plain(lade_planner *planner);

/* Return the host's budget, or the bytes that pass through the host in any case if these are more. */
uint64_t planner_host_budget(const struct lade_plan_params *params);

/* The limits of a candidate, and a bound of its time that its trial returns. */
struct plan_trial {
  uint64_t device_bytes;
  int64_t worst_ns; /* it must be faster than this; INT64_MAX: any time will do */
  int64_t apart_ns; /* returned: its time if no two buffers shared addresses; 0: not computed */
};

/*
 * Make the plan of @residency for the rank of @layout. *ret_plan is NULL if it is not within the limits of @trial. A
 * plan just in time that fits but for fragmentation is packed again with more effort. -ENOMEM.
 */
int planner_residency_try(const lade_planner *planner, const struct lade_layout *layout,
                          const struct lade_residency *residency, struct plan_trial *trial,
                          struct lade_plan **ret_plan);

/* Find the fastest plan in @device_bytes, as the plan leader has it; NULL: none fits. -ENOMEM. */
int planner_best(lade_planner *planner, uint64_t device_bytes, struct lade_plan **ret_best);

#endif
