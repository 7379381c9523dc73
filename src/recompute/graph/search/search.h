/* SPDX-License-Identifier: Apache-2.0 */
/* The search over schedules of recompute; search.c has the algorithm. */
#ifndef LADE_REMAT_SEARCH_H
#define LADE_REMAT_SEARCH_H

#include "recompute/graph/list_time.h"
#include "recompute/graph/schedule.h"

#define SHORT_OPS_MAX 2000 /* where nothing is held, redos are the square of the ops */

struct remat_search_params {
  const struct remat_problem *problem;
  struct list_time *links; /* NULL: nothing waits on another tier */
  uint64_t waiting_bytes[LADE_N_SPACES]; /* budget of values that wait, by tier */
  uint64_t limit_bytes; /* of a turn, without the problem's fixed bytes */
  int64_t n_moves;      /* moves to try */
  int64_t deadline_ns;  /* on lade_now_ns; INT64_MAX: none */
  int64_t fit_moves, fit_deadline_ns; /* the same, while no schedule within the limit is found */
  int64_t *ret_n_moves; /* moves that were made; NULL: not asked for */
  uint64_t seed;
  double descent_effort; /* share of the work that a descent may do; of a long graph */
  bool stops_at_fit;    /* end with the first schedule within the limit */
  bool is_offload;      /* nothing is made again */
  bool tries_chain;     /* if the problem is a chain, begin from its best persistent plan */
};

/* True if values may wait on @tier. */
static inline bool remat_may_wait(const struct remat_search_params *params, enum lade_space tier)
{
  return params->links && params->waiting_bytes[tier] > 0 && params->links->out[tier].bytes_per_s > 0 &&
         params->links->in[tier].bytes_per_s > 0;
}

/*
 * Search from the schedule saved in @choices; without one, from the schedule that holds everything. Replace @choices by
 * the best schedule within the limit and return 0. -ENOSPC: none was found, and @choices has the one with the smallest
 * excess. -ENOMEM.
 */
int remat_search(const struct remat_search_params *params, struct remat_choices *choices);

#endif
