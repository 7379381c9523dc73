/* SPDX-License-Identifier: Apache-2.0 */
/* A lower bound on the time of a step within a limit; bound.c and relax.c have the relaxations. */
#ifndef LADE_REMAT_BOUND_H
#define LADE_REMAT_BOUND_H

#include "recompute/graph/list_time.h"
#include "recompute/graph/problem.h"

struct remat_bound_params {
  const struct remat_problem *problem;
  uint64_t limit_bytes;          /* of a turn, without the problem's fixed bytes */
  const struct list_time *links; /* NULL: nothing waits on another tier */
  bool may_wait[LADE_N_SPACES];  /* tiers on which values may wait */
  int64_t known_ns;              /* time of a step that was found; 0: none was */
  double *ret_prices;            /* by turn: prices of bytes, in ns, if some give a bound; without links; or NULL */
};

/* Find a time that every step within the limit takes at least. INT64_MAX: no step is within it. -ENOMEM. */
int remat_bound_find(const struct remat_bound_params *params, int64_t *ret_bound_ns);

#endif
