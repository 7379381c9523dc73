/* SPDX-License-Identifier: Apache-2.0 */
/* The search over schedules of recompute; search.c has the algorithm. */
#ifndef LADE_REMAT_SEARCH_H
#define LADE_REMAT_SEARCH_H

#include "recompute/graph/list_time.h"
#include "recompute/graph/schedule.h"

struct remat_search_params {
  const struct remat_problem *problem;
  struct list_time *links; /* NULL: nothing waits on another tier */
  uint64_t waiting_bytes[LADE_N_SPACES]; /* the most that may wait on each tier */
  uint64_t limit_bytes; /* of a turn, without the problem's fixed bytes */
  int64_t n_moves;      /* moves to try */
  int64_t deadline_ns;  /* on lade_now_ns; INT64_MAX: none */
  int64_t fit_moves, fit_deadline_ns; /* the same, at which a search ends that has found nothing within the limit */
  uint64_t seed;
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
 * Search from the schedule in @choices, or if none is saved there from the one that holds everything. Replace it by the
 * best one found within the limit. Return 0; -ENOSPC with the schedule of the smallest excess in @choices; or -ENOMEM.
 */
int remat_search(const struct remat_search_params *params, struct remat_choices *choices);

#endif
