/* SPDX-License-Identifier: Apache-2.0 */
/* A lower bound on the time of a step by Lagrangian relaxation; relax.c has the relaxation. */
#ifndef LADE_REMAT_RELAX_H
#define LADE_REMAT_RELAX_H

#include "recompute/graph/list_time.h"
#include "recompute/graph/problem.h"

struct remat_relax_params {
  const struct remat_problem *problem;
  uint64_t limit_bytes;          /* of a turn, without the problem's fixed bytes */
  const struct list_time *links; /* NULL: nothing waits on another tier */
  bool may_wait[LADE_N_SPACES];  /* tiers on which values may wait */
  int64_t upper_ns;              /* time of a step that is known, or a guess: it scales the steps of the ascent */
  int32_t first_turn;            /* where the ascent begins: a price of this turn's bytes */
  double first_price;            /* in ns per byte */
  double *ret_prices;            /* by turn: the best prices, in ns per byte; NULL: not wanted */
};

/* Find a time below which no step within the limit is. -ENOMEM. */
int remat_relax(const struct remat_relax_params *params, double *ret_bound_ns);

#endif
