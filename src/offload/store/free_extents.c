/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor takes the smallest free run that holds all of it, else runs from the front. When a used run is given back,
 * the number of free runs grows by at most one. Capacity for these is reserved when runs are taken, so giving back
 * cannot fail. Both operations are linear in the number of free runs. That number is small, because a trainer's tensors
 * have few sizes.
 */
#include <errno.h>
#include <string.h>

#include "offload/store/free_extents.h"

uint64_t store_runs_bytes(const store_runs *runs)
{
  uint64_t bytes = 0;
  for (int i = 0; i < runs->n; i++)
    bytes += runs->items[i].bytes;
  return bytes;
}

/* Return how many free runs, from the first on, hold @bytes; their number + 1 if all together do not. */
static int runs_needed(const store_runs *free, uint64_t bytes)
{
  int n = 0;
  uint64_t sum = 0;
  while (n < free->n && sum < bytes)
    sum += free->items[n++].bytes;
  return sum < bytes ? free->n + 1 : n;
}

/* Return the smallest single run that holds @bytes, or -1. */
static int run_fitting(const store_runs *free, uint64_t bytes)
{
  int best = -1;
  for (int i = 0; i < free->n; i++) {
    bool fits = free->items[i].bytes >= bytes;
    if (fits && (best < 0 || free->items[i].bytes < free->items[best].bytes))
      best = i;
  }
  return best;
}

/* Cut @bytes off the front of free run @i. */
static struct store_run run_cut(store_runs *free, int i, uint64_t bytes)
{
  struct store_run *run = &free->items[i], cut = {run->offset, bytes};
  LADE_ASSERT(bytes <= run->bytes);
  run->offset += bytes;
  run->bytes -= bytes;
  if (!run->bytes) {
    free->n--;
    memmove(run, run + 1, (size_t)(free->n - i) * sizeof(*run));
  }
  return cut;
}

int store_room_take(struct store_room *room, store_runs *taken, uint64_t bytes)
{
  store_runs *free = &room->free;
  int whole = run_fitting(free, bytes), n = whole >= 0 ? 1 : runs_needed(free, bytes);
  LADE_ASSERT(!taken->n && bytes);
  if (n > free->n)
    return -EOVERFLOW;
  if (!lade_array_reserve((void **)&taken->items, &taken->capacity, n, sizeof(*taken->items)) ||
      !lade_array_reserve((void **)&free->items, &free->capacity, free->n + room->n_used + n, sizeof(*free->items)))
    return -ENOMEM;
  while (bytes) {
    int i = LADE_MAX(whole, 0);
    uint64_t part = LADE_MIN(bytes, free->items[i].bytes);
    taken->items[taken->n++] = run_cut(free, i, part);
    bytes -= part;
  }
  room->n_used += taken->n;
  return 0;
}

static void run_give(store_runs *free, struct store_run run)
{
  int at = 0;
  while (at < free->n && free->items[at].offset < run.offset)
    at++;
  struct store_run *before = at ? &free->items[at - 1] : NULL, *after = at < free->n ? &free->items[at] : NULL;
  bool joins_before = before && before->offset + before->bytes == run.offset;
  bool joins_after = after && run.offset + run.bytes == after->offset;
  if (joins_before) {
    before->bytes += run.bytes + (joins_after ? after->bytes : 0);
    if (joins_after)
      memmove(after, after + 1, (size_t)(--free->n - at) * sizeof(*after));
  } else if (joins_after) {
    after->offset = run.offset;
    after->bytes += run.bytes;
  } else {
    LADE_ASSERT(free->n < free->capacity);
    memmove(&free->items[at + 1], &free->items[at], (size_t)(free->n - at) * sizeof(run));
    free->items[at] = run;
    free->n++;
  }
}

void store_room_give(struct store_room *room, store_runs *taken)
{
  for (int i = 0; i < taken->n; i++)
    run_give(&room->free, taken->items[i]);
  room->n_used -= taken->n;
  taken->n = 0;
}
