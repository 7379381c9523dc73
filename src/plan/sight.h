/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What walks see of a residency: its program just in time, and of that what decides about the next change. Walks come
 * past the same residencies, so each is looked at once.
 *
 * For one thread at a time; nothing blocks.
 */
#ifndef LADE_SIGHT_H
#define LADE_SIGHT_H

#include "plan/plan.h"

/* A value that is on the device when most bytes are live there, and not used then. */
struct idle_value {
  int32_t tensor; /* a value's number; a gradient's where its rounded form or its block is meant */
  bool is_in_saved_gap;
  uint64_t bytes; /* of all its microbatches and buffers */
};

struct sight {
  uint64_t key[2];                    /* of its residency: two that differ have other ones, but for one in 2^128 */
  uint64_t live_bytes[LADE_N_SPACES]; /* at the peak of each space */
  int64_t least_ns;                   /* no schedule of the program's instructions is faster */
  struct lade_load load;
  struct idle_value *idle; /* by rising tensor */
  int n_idle;
};

struct sights {
  const struct lade_plan_params *params;
  const lade_solver *solver;
  LADE_ARRAY(struct sight) items;
  int32_t *table; /* items by their keys, in n_table places, a power of two, at least half of them free: -1 */
  int n_table;
  struct lade_program *program; /* scratch: of the latest residency that was new */
  struct resident_view *views; /* scratch, by buffer */
  struct idle_value *idle;     /* scratch, by value's number */
};

/* What @params' prices say; @params and @solver are borrowed. -ENOMEM. Finish takes one that is all 0. */
int sights_init(struct sights *sights, const struct lade_plan_params *params, const lade_solver *solver);
void sights_finish(struct sights *sights);

/* What is seen of @residency, just in time, until the next call; @ret_number is its own among all. -ENOMEM. */
int sights_get(struct sights *sights, const struct lade_residency *residency, const struct sight **ret_sight,
               int32_t *ret_number);

#endif
