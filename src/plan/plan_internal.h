/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's own; shared by plan.c, which makes the walks, and search.c, which chooses from them. */
#ifndef LADE_PLAN_INTERNAL_H
#define LADE_PLAN_INTERNAL_H

#include "plan/sight.h"
#include "plan/walk.h"

#define N_WALK_KINDS 6
#define N_WALKS (4 * N_WALK_KINDS) /* early or not, by stated prices and by plain ones */

/* Prices to walk by, and what proposes by them. */
struct pricing {
  struct lade_plan_params params; /* the planner's with these prices */
  struct lade_tariff tariff;
  lade_solver *solver;
  struct sights sights; /* while walks are made */
  int n_sights;
};

struct candidate {
  int16_t walk;
  int32_t state;
  int64_t least_ns;
};

/* What a state just in time has come to, packed until @floor_bytes were met. */
struct packed_peak {
  uint64_t key[2]; /* of its residency */
  uint64_t floor_bytes, bytes;
};

struct lade_planner {
  struct lade_plan_params params; /* with the layout of the rank that decides */
  struct lade_layout decider;
  const struct lade_layout *own_layout;
  struct lade_residency *start;
  bool *is_pinned; /* by lade_change_index */
  struct lade_prices plain_prices;
  struct pricing stated, plain;
  lade_packer *packer;
  struct walk walks[N_WALKS]; /* n_stated by stated prices, the others by plain ones */
  int n_stated, n_walks;
  LADE_ARRAY(struct packed_peak) peaks; /* known so far: walks by other prices and other budgets meet the same states */
  struct lade_plan_bounds bounds;
  struct candidate least; /* the state behind bounds.min_bytes */
  int64_t ample_ns;       /* everything kept, in all the room that it has a use for; 0: ranks gather no copies */
  bool has_bounds;
};

/* The host's budget, or what passes through the host whatever its budget is, if that is more. */
uint64_t planner_host_budget(const struct lade_plan_params *params);

/*
 * The plan of @residency for the rank of @layout. *ret_plan is NULL when it does not fit, or takes @worst_ns or more.
 * One that would fit but for fragmentation, and is just in time, is packed again with more effort. -ENOMEM.
 */
int planner_residency_try(const lade_planner *planner, const struct lade_layout *layout,
                          const struct lade_residency *residency, uint64_t device_bytes, int64_t worst_ns,
                          struct lade_plan **ret_plan);

/* The fastest in @device_bytes, as the rank that decides has it; NULL: none fits. -ENOMEM. */
int planner_best(lade_planner *planner, uint64_t device_bytes, struct lade_plan **ret_best);

#endif
