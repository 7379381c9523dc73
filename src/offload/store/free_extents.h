/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space of a store for tensors that are put and removed: free runs of granules. A tensor takes as many runs as it
 * needs, so that the last free granule can be used after any sequence of puts. Adjacent free runs are merged. No lock.
 *
 * A run that published state refers to is held. If it is given back, it is free only when that state no longer counts.
 */
#ifndef LADE_OFFLOAD_FREE_EXTENTS_H
#define LADE_OFFLOAD_FREE_EXTENTS_H

#include "base/base.h"

struct store_run {
  uint64_t offset, bytes; /* multiples of a granule */
  bool is_held;
};

typedef LADE_ARRAY(struct store_run) store_runs;

struct store_room {
  store_runs free; /* sorted by offset; has capacity for n_used more */
  store_runs held; /* given back while held; has capacity for n_used more */
  int n_used;      /* runs taken and not yet free */
};

/*
 * Move @bytes (a multiple of the granule) from @room to @taken, which is empty. Giving them back later needs no memory.
 * -EOVERFLOW if less is free; -ENOMEM.
 */
int store_room_take(struct store_room *room, store_runs *taken, uint64_t bytes);

/* Take the run @claimed, which must be free as a whole, to the end of @taken. -EINVAL if it is not; -ENOMEM. */
int store_room_claim(struct store_room *room, store_runs *taken, struct store_run claimed);

/* Give all runs of @taken back to @room, and empty @taken. Runs that are held become free in store_room_release. */
void store_room_give(struct store_room *room, store_runs *taken);

/* Free the held runs that were given back. */
void store_room_release(struct store_room *room);

/*
 * Split a run of @taken so that a run begins at byte @at of the concatenated runs. Return its index, which is taken->n
 * if @at is their end. -ENOMEM.
 */
int store_room_split(struct store_room *room, store_runs *taken, uint64_t at);

/* Return the bytes of all runs together. */
uint64_t store_runs_bytes(const store_runs *runs);

#endif
