/* SPDX-License-Identifier: Apache-2.0 */
/* A lower bound on the recompute time within a limit; bound.c has the relaxation. */
#ifndef LADE_REMAT_BOUND_H
#define LADE_REMAT_BOUND_H

#include "recompute/graph/problem.h"

/*
 * Find a lower bound on the time of all redos, over every schedule within @limit_bytes (without fixed bytes).
 * INT64_MAX: no schedule fits. -ENOMEM.
 */
int remat_bound_find(const struct remat_problem *problem, uint64_t limit_bytes, int64_t *ret_redo_ns);

#endif
