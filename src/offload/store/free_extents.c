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

/* Return how many of the first free runs hold @bytes together; free->n + 1 if all of them hold less. */
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
  struct store_run *run = &free->items[i], cut = {.offset = run->offset, .bytes = bytes};
  LADE_ASSERT(bytes <= run->bytes);
  run->offset += bytes;
  run->bytes -= bytes;
  if (!run->bytes) {
    free->n--;
    memmove(run, run + 1, (size_t)(free->n - i) * sizeof(*run));
  }
  return cut;
}

/* Reserve capacity for @n more runs in use, so that giving them back needs no memory. */
static bool room_reserve(struct store_room *room, store_runs *taken, int n)
{
  store_runs *const free = &room->free, *const held = &room->held;
  const int n_used = room->n_used + n;
  return lade_array_reserve((void **)&taken->items, &taken->capacity, taken->n + n, sizeof(*taken->items)) &&
         lade_array_reserve((void **)&free->items, &free->capacity, free->n + n_used + 1, sizeof(*free->items)) &&
         lade_array_reserve((void **)&held->items, &held->capacity, n_used, sizeof(*held->items));
}

int store_room_take(struct store_room *room, store_runs *taken, uint64_t bytes)
{
  store_runs *free = &room->free;
  int whole = run_fitting(free, bytes), n = whole >= 0 ? 1 : runs_needed(free, bytes);
  LADE_ASSERT(!taken->n && bytes);
  if (n > free->n)
    return -EOVERFLOW;
  if (!room_reserve(room, taken, n))
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

int store_room_claim(struct store_room *room, store_runs *taken, struct store_run claimed)
{
  store_runs *free = &room->free;
  const uint64_t end = claimed.offset + claimed.bytes;
  int at = 0;
  while (at < free->n && free->items[at].offset + free->items[at].bytes <= claimed.offset)
    at++;
  if (!claimed.bytes || end < claimed.offset || at == free->n || free->items[at].offset > claimed.offset ||
      free->items[at].offset + free->items[at].bytes < end)
    return -EINVAL;
  if (!room_reserve(room, taken, 1))
    return -ENOMEM;
  const uint64_t before = claimed.offset - free->items[at].offset;
  const struct store_run head = run_cut(free, at, before + claimed.bytes);
  taken->items[taken->n++] = claimed;
  room->n_used++;
  if (before)
    run_give(free, (struct store_run){.offset = head.offset, .bytes = before});
  return 0;
}

void store_room_give(struct store_room *room, store_runs *taken)
{
  for (int i = 0; i < taken->n; i++) {
    if (taken->items[i].is_held) {
      LADE_ASSERT(room->held.n < room->held.capacity);
      room->held.items[room->held.n++] = taken->items[i];
      continue;
    }
    run_give(&room->free, taken->items[i]);
    room->n_used--;
  }
  taken->n = 0;
}

void store_room_release(struct store_room *room)
{
  for (int i = 0; i < room->held.n; i++)
    run_give(&room->free, (struct store_run){.offset = room->held.items[i].offset, .bytes = room->held.items[i].bytes});
  room->n_used -= room->held.n;
  room->held.n = 0;
}

int store_room_split(struct store_room *room, store_runs *taken, uint64_t at)
{
  int i = 0;
  while (i < taken->n && at >= taken->items[i].bytes)
    at -= taken->items[i++].bytes;
  if (!at)
    return i;
  LADE_ASSERT(i < taken->n);
  if (!room_reserve(room, taken, 1))
    return -ENOMEM;
  struct store_run *run = &taken->items[i];
  memmove(run + 1, run, (size_t)(taken->n - i) * sizeof(*run));
  run[0].bytes = at;
  run[1].offset += at;
  run[1].bytes -= at;
  taken->n++;
  room->n_used++;
  return i + 1;
}
