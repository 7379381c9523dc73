/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room of a store that tensors come and go in: free runs of granules. A tensor takes as many runs as it needs, so that
 * the last free granule can be used whatever was put before. Neighbours are joined. No lock.
 */
#ifndef LADE_OFFLOAD_RUNS_H
#define LADE_OFFLOAD_RUNS_H

#include "base/base.h"

struct store_run {
  uint64_t offset, bytes; /* multiples of a granule */
};

typedef LADE_ARRAY(struct store_run) store_runs;

struct store_room {
  store_runs free; /* sorted by offset; has room for n_used more */
  int n_used;      /* runs that were taken and not given back */
};

/*
 * Move @bytes (a granule's multiple) from @room to @taken, which is empty. -EOVERFLOW when there is less; -ENOMEM.
 * Giving back then needs no memory.
 */
int store_room_take(struct store_room *room, store_runs *taken, uint64_t bytes);

/* Give all of @taken back, and empty it. */
void store_room_give(struct store_room *room, store_runs *taken);

uint64_t store_runs_bytes(const store_runs *runs);

#endif
