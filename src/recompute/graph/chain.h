/* SPDX-License-Identifier: Apache-2.0 */
/* Exact dynamic programming on chains; chain.c has the algorithm. */
#ifndef LADE_REMAT_CHAIN_H
#define LADE_REMAT_CHAIN_H

#include "recompute/graph/schedule.h"

struct remat_chain;

/*
 * Plan the chain @problem for all limits up to @limit_bytes; the caller destroys the result. -ENOENT: the problem is no
 * chain, or has more than 200 stages. -ENOMEM.
 */
int remat_chain_create(const struct remat_problem *problem, uint64_t limit_bytes, struct remat_chain **ret_chain);
void remat_chain_destroy(struct remat_chain *chain);

/*
 * Replace @choices by the best plan within @share of the limit, 0 to 1. Sizes are rounded to parts of the limit, so its
 * peak may be a little larger. -ENOSPC: there is none. -ENOMEM.
 */
int remat_chain_plan(const struct remat_chain *chain, double share, struct remat_choices *choices);

#endif
