/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetch of values that wait on tiers: the turns in which they are got back. prefetch.c has the algorithm. */
#ifndef LADE_REMAT_PREFETCH_H
#define LADE_REMAT_PREFETCH_H

#include "recompute/graph/list_time.h"
#include "recompute/graph/schedule.h"

/*
 * Let transfers from tiers begin so early that they end in time, as far as links and bytes allow: hold values that wait
 * from a turn before the one that needs them. No turn gets above the limit, and the list takes no longer than before.
 * pre: nothing is journalled. -ENOMEM.
 */
int remat_prefetch(struct remat_schedule *schedule, struct list_time *links);

#endif
