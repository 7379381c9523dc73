/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's trajectories: descent.c makes one, trajectories.c asks for it, search.c chooses from it. */
#ifndef LADE_DESCENT_H
#define LADE_DESCENT_H

#include "recompute/plan.h"

struct peak_analysis; /* peak_analysis.h */

/* Kinds of changes that a trajectory may make: to activations, and to tiers of parameters and state. */
enum {
  DESCENT_RECOMPUTE = 1,
  DESCENT_OFFLOAD = 2,
  DESCENT_REPEAT = 4,   /* recompute the same value several times, where no tier has capacity */
  DESCENT_APART = 8,    /* optimizer state leaves before its working copy, not only with it */
  DESCENT_REPLACE = 16, /* a recomputed value moves to a tier instead */
  DESCENT_LEVEL = 32    /* changes that raise the peak come last; a spill takes only units with equal choices */
};

struct descent_state {
  int n_changes;             /* the first n_changes of the trajectory lead here */
  int32_t peak;              /* number of its peak analysis: equal for equal states of trajectories with the same
                                prices */
  uint64_t key[2];           /* digest of its residency, for any prices: peak_analysis.h */
  uint64_t live_bytes[LADE_N_SPACES];
  int64_t bound_ns; /* no schedule of this state's instructions is faster */
};

struct trajectory {
  bool optimizer_in_backward; /* as at its start: parameters are updated inside the backward half */
  LADE_ARRAY(struct lade_change) changes;
  LADE_ARRAY(struct descent_state) states;
};

struct descent_params {
  const struct lade_plan_params *plan; /* with the trajectory's prices */
  const struct lade_residency *start;
  const bool *is_pinned; /* by lade_change_index */
  lade_pricer *pricer;
  struct peak_analysis *analysis; /* of the same prices */
  int allowed;
  uint64_t end_bytes; /* the trajectory ends at its first state that is live in no more; 0: at the smallest memory */
  bool is_coarse; /* a change takes all members of its group that are live at the peak, for few rounds */
};

/* Start from the residency of @params and make the cheapest change at the peak until none is left. -ENOMEM. */
int descent_make(const struct descent_params *params, struct trajectory *ret_trajectory);
void descent_finish(struct trajectory *trajectory);

/*
 * True if building a program takes so long that planning must use few builds: many ops in a microbatch, or in all
 * microbatches of a step.
 */
bool descent_is_large(const struct lade_plan_params *params);

/* Return the device bytes below which no program for these parameters exists; bound.c gives the reason. */
uint64_t plan_lower_bound(const struct lade_plan_params *params);

#endif
