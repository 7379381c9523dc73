/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's walk: walk.c makes it, plan.c asks for it, search.c chooses from it. */
#ifndef LADE_WALK_H
#define LADE_WALK_H

#include "plan/plan.h"

struct sights; /* sight.h */

/* Which kinds of changes a walk may make: to activations, and to homes. */
enum {
  WALK_RECOMPUTE = 1,
  WALK_OFFLOAD = 2,
  WALK_REPEAT = 4, /* recompute the same value several times, where no tier holds anything */
  WALK_APART = 8   /* optimizer state leaves before its working copy, not only with it */
};

struct walk_state {
  int n_changes;             /* the first so many of the walk's changes lead here */
  int32_t sight;             /* a number: states of walks by the same prices that are the same have the same */
  uint64_t key[2];           /* of its residency, whatever the prices: sight.h */
  uint64_t live_bytes[LADE_N_SPACES];
  int64_t least_ns;          /* no schedule of this state's instructions is faster */
};

struct walk {
  bool is_early; /* as its start was: parameters are updated inside the backward half */
  LADE_ARRAY(struct lade_change) changes;
  LADE_ARRAY(struct walk_state) states;
};

struct walk_params {
  const struct lade_plan_params *plan; /* with the prices to walk by */
  const struct lade_residency *start;
  const bool *is_pinned; /* by lade_change_index */
  lade_solver *solver;
  struct sights *sights; /* of the same prices */
  int allowed;
};

/* Start from where @params says and make the cheapest change at the peak until none is left. -ENOMEM. */
int walk_make(const struct walk_params *params, struct walk *ret_walk);
void walk_finish(struct walk *walk);

/*
 * Does building a program once take so long that planning has to do with few? For many ops of a microbatch, or of all
 * microbatches of a step.
 */
bool walk_is_large(const struct lade_plan_params *params);

/* Device bytes below which no program for these parameters exists: bound.c says why. */
uint64_t plan_lower_bound(const struct lade_plan_params *params);

/* What builds the training program under @residency; the packer is left to who places it. */
struct lade_build_params walk_build_params(const struct lade_plan_params *params,
                                           const struct lade_residency *residency);

#endif
