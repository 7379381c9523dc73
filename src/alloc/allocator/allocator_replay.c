/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay: allocation k of a repeating step gets the offset that the packer planned for it.
 *
 * Each step is a list of allocations: size, stream, and the number of allocations made before the free. That number is
 * the time of the free. So frees between two allocations may come in any order, and a garbage collector that frees in
 * another order breaks no plan. Steps are equal if sizes and streams are; lifetimes are then merged to the longest.
 *
 * Planned are the allocations that end inside their step and that no other stream uses, for each stream apart: the
 * addresses of one arena are reused in the order of one stream, which needs no event. The others go to the cache, at
 * their own place in the list.
 *
 * A plan is never trusted. Before an offset is given out, its arena's list of ranges in use must have a gap there. The
 * list is sorted, and about as long as there are live blocks. So a late free costs a search, and never two owners of
 * one byte. The cost is O(log n) for the search and a memmove of the ranges after it.
 *
 * A plan is made again when two equal steps in a row differ from it, or when a step showed longer lifetimes. The old
 * arenas are freed first, or with their last block.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/allocator/allocator_internal.h"
#include "lade/pack.h"

/* ---- ranges of an arena ---- */

/* Return the index of the first range that ends after @offset. */
static int range_find(const struct replay_arena *arena, uint64_t offset)
{
  int low = 0, high = arena->live.n;
  while (low < high) {
    int middle = (low + high) / 2;
    if (arena->live.items[middle].end > offset)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/* Take [begin, end). False if a part of it is in use, or memory is out. */
static bool range_take(struct replay_arena *arena, uint64_t begin, uint64_t end)
{
  int i = range_find(arena, begin);
  if (i < arena->live.n && arena->live.items[i].begin < end)
    return false;
  if (!LADE_PUSH(&arena->live, ((struct arena_range){begin, end})))
    return false;
  memmove(&arena->live.items[i + 1], &arena->live.items[i],
          (size_t)(arena->live.n - 1 - i) * sizeof(*arena->live.items));
  arena->live.items[i] = (struct arena_range){begin, end};
  return true;
}

static void range_release(struct replay_arena *arena, uint64_t begin)
{
  int i = range_find(arena, begin);
  LADE_ASSERT(i < arena->live.n && arena->live.items[i].begin == begin);
  arena->live.n--;
  memmove(&arena->live.items[i], &arena->live.items[i + 1],
          (size_t)(arena->live.n - i) * sizeof(*arena->live.items));
}

static int arena_free(struct allocator_device *at, struct replay_arena *arena, struct lade_error *error)
{
  int status = lade_allocator_defer(at, arena->address, UINT64_C(1) << arena->stream, error);
  if (status)
    return status; /* it stays, and trim or a later plan tries again */
  LADE_ARRAY_FREE(&arena->live);
  arena->address = NULL;
  return 0;
}

int lade_step_replay_release(struct allocator_device *at, const struct live_block *block, struct lade_error *error)
{
  struct replay_arena *arena = &at->replay.arenas.items[block->arena];
  range_release(arena, block->address - (uint64_t)(uintptr_t)arena->address);
  return arena->is_retired && !arena->live.n ? arena_free(at, arena, error) : 0;
}

void lade_step_replay_drop(struct allocator_device *at)
{
  struct step_replay *replay = &at->replay;
  for (int i = 0; i < replay->arenas.n; i++) {
    struct replay_arena *arena = &replay->arenas.items[i];
    arena->is_retired = true;
    if (arena->address && !arena->live.n)
      arena_free(at, arena, NULL);
  }
  free(replay->places);
  replay->places = NULL;
  replay->n_places = 0;
  replay->is_on = false;
  at->stats.n_planned = at->stats.arena_bytes = at->stats.live_bound_bytes = 0;
}

void lade_step_replay_finish(struct step_replay *replay)
{
  for (int i = 0; i < replay->arenas.n; i++)
    LADE_ARRAY_FREE(&replay->arenas.items[i].live);
  LADE_ARRAY_FREE(&replay->arenas);
  LADE_ARRAY_FREE(&replay->now);
  LADE_ARRAY_FREE(&replay->last);
  free(replay->places);
  *replay = (struct step_replay){0};
}

/* ---- allocations of a step ---- */

static void mismatch_note(struct allocator_device *at, uint64_t planned_bytes, uint64_t bytes)
{
  at->replay.is_on = false;
  at->stats.n_mismatches++;
  at->stats.mismatch_index = (uint64_t)at->replay.now.n;
  at->stats.mismatch_planned_bytes = planned_bytes;
  at->stats.mismatch_bytes = bytes;
}

bool lade_step_replay_serve(struct allocator_device *at, uint64_t bytes, int stream, void **ret_address,
                            int *ret_arena)
{
  struct step_replay *replay = &at->replay;
  int k = replay->now.n;
  if (!replay->is_on)
    return false;
  if (k >= replay->n_places || replay->places[k].call.bytes != bytes || replay->places[k].call.stream != stream) {
    mismatch_note(at, k < replay->n_places ? replay->places[k].call.bytes : 0, bytes);
    return false;
  }
  if (replay->places[k].arena < 0)
    return false;
  struct replay_arena *arena = &replay->arenas.items[replay->places[k].arena];
  uint64_t offset = replay->places[k].offset;
  if (!range_take(arena, offset, offset + lade_align_up(bytes, ALLOCATOR_ALIGN))) {
    at->stats.n_conflicts++;
    replay->is_stale = true;
    return false;
  }
  *ret_address = (char *)arena->address + offset;
  *ret_arena = replay->places[k].arena;
  at->stats.n_served++;
  return true;
}

int lade_step_replay_note_alloc(struct allocator_device *at, uint64_t bytes, int stream)
{
  struct step_replay *replay = &at->replay;
  const struct replay_call call = {.bytes = bytes, .stream = stream};
  if (!replay->is_begun || replay->is_lost)
    return -1;
  if (replay->now.n < INT32_MAX - 1 && LADE_PUSH(&replay->now, call))
    return replay->now.n - 1;
  replay->is_lost = true;
  replay->is_on = false;
  return -1;
}

void lade_step_replay_note_free(struct allocator_device *at, const struct live_block *block)
{
  struct step_replay *replay = &at->replay;
  if (block->call < 0 || block->step != replay->step || replay->is_lost)
    return;
  replay->now.items[block->call].upper = replay->now.n;
  if (block->arena >= 0 && !replay->arenas.items[block->arena].is_retired &&
      replay->now.n > replay->places[block->call].call.upper)
    replay->is_stale = true;
}

void lade_step_replay_note_use(struct allocator_device *at, const struct live_block *block)
{
  struct step_replay *replay = &at->replay;
  if (block->arena >= 0)
    replay->is_stale = true;
  if (block->call >= 0 && block->step == replay->step && !replay->is_lost)
    replay->now.items[block->call].is_recorded = true;
}

/* ---- plans ---- */

/* True if this step made the allocations of the last one. Then merge the lifetimes into this step's list. */
static bool steps_merge(struct step_replay *replay)
{
  if (replay->is_lost || !replay->now.n || replay->now.n != replay->last.n)
    return false;
  for (int i = 0; i < replay->now.n; i++) {
    const struct replay_call *now = &replay->now.items[i], *last = &replay->last.items[i];
    if (now->bytes != last->bytes || now->stream != last->stream)
      return false;
  }
  for (int i = 0; i < replay->now.n; i++) {
    struct replay_call *now = &replay->now.items[i];
    const struct replay_call *last = &replay->last.items[i];
    now->upper = now->upper && last->upper ? LADE_MAX(now->upper, last->upper) : 0;
    now->is_recorded |= last->is_recorded;
  }
  return true;
}

static bool call_is_planned(const struct replay_call *call, int stream)
{
  return call->stream == stream && call->upper && !call->is_recorded;
}

/* Return a place for a new arena, or -ENOMEM. */
static int arena_slot(struct step_replay *replay)
{
  for (int i = 0; i < replay->arenas.n; i++)
    if (!replay->arenas.items[i].address)
      return i;
  return LADE_PUSH(&replay->arenas, (struct replay_arena){0}) ? replay->arenas.n - 1 : -ENOMEM;
}

static int arena_create(struct allocator_device *at, uint64_t bytes, int stream, struct lade_error *error)
{
  struct lade_error cause = {0};
  void *address = NULL;
  int slot = arena_slot(&at->replay);
  int status = slot < 0 ? slot : lade_allocator_take(at, bytes, stream, &cause, &address);
  if (status)
    return lade_error_set(error, status, "replay: no room for the planned %llu bytes, allocations go on without the "
                          "plan: %.300s", (unsigned long long)bytes, cause.text);
  at->replay.arenas.items[slot] = (struct replay_arena){.address = address, .bytes = bytes, .stream = stream};
  return slot;
}

/* Pack the planned allocations of @stream, @items and @offsets being scratch for all of them. */
static int stream_plan(struct allocator_device *at, int stream, struct lade_pack_item *items, uint64_t *offsets,
                       struct lade_error *error)
{
  struct step_replay *replay = &at->replay;
  struct lade_pack_result result;
  int n = 0;
  for (int i = 0; i < replay->now.n; i++) {
    const struct replay_call *call = &replay->now.items[i];
    if (call_is_planned(call, stream))
      items[n++] = (struct lade_pack_item){.lower = i, .upper = call->upper, .align = ALLOCATOR_ALIGN, .fixed = -1,
                                           .bytes = lade_align_up(call->bytes, ALLOCATOR_ALIGN)};
  }
  if (!n)
    return 0;
  int status = lade_pack(items, n, NULL, offsets, &result, error);
  int arena = status ? status : arena_create(at, result.peak_bytes, stream, error);
  if (arena < 0)
    return arena;
  for (int i = 0; i < n; i++) {
    replay->places[items[i].lower].arena = arena;
    replay->places[items[i].lower].offset = offsets[i];
  }
  at->stats.n_planned += (uint64_t)n;
  at->stats.arena_bytes += result.peak_bytes;
  at->stats.live_bound_bytes += result.lower_bound_bytes;
  return 0;
}

/* Make the plan of this step's list. On failure there is none. */
static int plan_make(struct allocator_device *at, struct lade_error *error)
{
  struct step_replay *replay = &at->replay;
  lade_step_replay_drop(at);
  size_t n = (size_t)replay->now.n;
  struct lade_pack_item *items = calloc(n, sizeof(*items));
  uint64_t *offsets = calloc(n, sizeof(*offsets));
  replay->places = calloc(n, sizeof(*replay->places));
  int status = items && offsets && replay->places ? 0 : lade_error_set(error, -ENOMEM, "replay: no memory for a plan");
  for (size_t i = 0; i < n && !status; i++) {
    replay->places[i].call = replay->now.items[i];
    replay->places[i].arena = -1;
  }
  replay->n_places = status ? 0 : (int)n;
  for (int stream = 0; stream < at->n_streams && !status; stream++)
    status = stream_plan(at, stream, items, offsets, error);
  free(items);
  free(offsets);
  if (status)
    lade_step_replay_drop(at);
  else
    at->stats.n_plans++;
  return status;
}

int lade_step_replay_step(struct allocator_device *at, struct lade_error *error)
{
  struct step_replay *replay = &at->replay;
  int status = 0;
  bool is_first = !replay->is_begun;
  replay->is_begun = true;
  if (!is_first) {
    at->stats.n_steps++;
    if (replay->is_on && replay->now.n < replay->n_places)
      mismatch_note(at, replay->places[replay->now.n].call.bytes, 0);
    for (int i = 0; i < replay->n_places && replay->is_on; i++) /* a planned block that outlives its step */
      replay->is_stale |= replay->places[i].arena >= 0 && !replay->now.items[i].upper;
    if (steps_merge(replay) && (!replay->is_on || replay->is_stale))
      status = plan_make(at, error);
    if (!replay->is_lost) {
      void *items = replay->last.items;
      int capacity = replay->last.capacity;
      replay->last.items = replay->now.items;
      replay->last.n = replay->now.n;
      replay->last.capacity = replay->now.capacity;
      replay->now.items = items;
      replay->now.capacity = capacity;
    }
  }
  replay->now.n = 0;
  replay->step++;
  replay->is_lost = replay->is_stale = false;
  replay->is_on = replay->n_places > 0;
  return status;
}
