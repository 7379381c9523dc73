/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space of a store for tensors that are put and removed: free runs of granules. A tensor takes as many runs as it
 * needs, so that the last free granule can be used after any sequence of puts. Adjacent free runs are merged. No lock.
 */
#ifndef LADE_OFFLOAD_RUNS_H
#define LADE_OFFLOAD_RUNS_H

#include "base/base.h"

struct store_run {
  uint64_t offset, bytes; /* multiples of a granule */
};

typedef LADE_ARRAY(struct store_run) store_runs;

struct store_room {
  store_runs free; /* sorted by offset; has capacity for n_used more */
  int n_used;      /* runs taken and not yet given back */
};

/*
 * Move @bytes (a multiple of the granule) from @room to @taken, which is empty. Giving them back later needs no memory.
 * -EOVERFLOW if less is free; -ENOMEM.
 */
int store_room_take(struct store_room *room, store_runs *taken, uint64_t bytes);

/* Give all runs of @taken back to @room, and empty @taken. */
void store_room_give(struct store_room *room, store_runs *taken);

uint64_t store_runs_bytes(const store_runs *runs);

#endif
