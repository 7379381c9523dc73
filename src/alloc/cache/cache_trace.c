/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace: a ring of fixed size in each shard, written in place. An entry costs half a cache line and no clock.
 *
 * Events of one shard are in the order of its ring. To merge the rings, and to compute times, each event has a stamp:
 * ticks of the processor (base/ticks.h), or the system's nanoseconds where processors do not agree on ticks. Reading
 * the clock for every event would cost a fifth of a call. So the stamp of the last event is used again, except in these
 * cases:
 *  - it has been used STAMP_EVENTS times, or work has been submitted since, so that times are accurate enough;
 *  - the thread's own last event was in another shard;
 *  - the shard has a new segment, whose addresses may have been in another shard's segment.
 * A stamp is thus never later than its event, and no earlier than the stamp of the same thread's previous event. So the
 * merge keeps the order of every ring and of every thread. All events of an address are in one ring, as long as its
 * segment exists; one thread unmaps and maps a chunk that moves from one shard to another. Events of different threads
 * in different shards are ordered as accurately as the stamps.
 *
 * The shard of a thread's last event is stored in the cache, because the library keeps no thread-local state: in a word
 * chosen by the thread's number, which the word contains. Two threads with the same word overwrite each other's value,
 * and then read the clock once more than necessary.
 *
 * A reader takes the last n of all events, which are among the last n of each ring.
 *
 * Rejected: ticks for every event, 15 ns each, because the processor first completes earlier instructions; the system's
 * coarse clock for every event, fifty instructions; a common counter of events, which is a cache line that all shards
 * write.
 */
#include <stdlib.h>
#include <time.h>

#include "alloc/cache/cache_trace.h"
#include "base/cpu.h"
#include "base/ticks.h"

/* ---- write ---- */

static int64_t time_get_ns(clockid_t clock)
{
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t ticks_now(const lade_cache *cache)
{
  return cache->has_steady_ticks ? lade_ticks_now() : (uint64_t)time_get_ns(CLOCK_MONOTONIC);
}

void lade_cache_trace_init(lade_cache *cache, uint64_t n)
{
  uint64_t n_entries = 1;
  while (n_entries < n)
    n_entries *= 2;
  cache->n_trace_entries = n ? n_entries : 0;
  cache->has_steady_ticks = n && lade_cpu_has_steady_ticks();
}

/* Begin the trace. A shard's first event comes under all locks, because the shard has no memory before. */
static void tracing_begin(lade_cache *cache)
{
  if (cache->n_tracing++)
    return;
  cache->traced_from_ticks = ticks_now(cache);
  cache->traced_from_ns = time_get_ns(CLOCK_MONOTONIC);
}

void lade_cache_stamp_renew(lade_cache *cache, struct shard *shard, _Atomic uintptr_t *tracer, uintptr_t self)
{
  if (!shard->n_traced)
    tracing_begin(cache);
  shard->stamp = (ticks_now(cache) - cache->traced_from_ticks) << QUEUE_BITS;
  shard->stamp_end = shard->n_traced + STAMP_EVENTS;
  atomic_store_explicit(tracer, self, memory_order_relaxed);
}

void lade_cache_trace_chunk(lade_cache *cache, struct shard *shard, enum lade_cache_action action, uint64_t address)
{
  if (!shard->trace)
    return;
  struct trace_entry *entry = lade_cache_trace_next(cache, shard, 0);
  entry->address = address;
  entry->bytes = cache->chunk_bytes | (uint64_t)action << TAG_BITS;
  entry->place = NULL;
}

/* ---- read ---- */

/* Conversion of stamps to times since 1970. */
struct trace_times {
  int64_t from_ns;
  double ns_per_tick;
};

static struct trace_times times_get(const lade_cache *cache)
{
  uint64_t ticks = ticks_now(cache) - cache->traced_from_ticks;
  int64_t now_ns = time_get_ns(CLOCK_MONOTONIC), shift_ns = time_get_ns(CLOCK_REALTIME) - now_ns;
  return (struct trace_times){cache->traced_from_ns + shift_ns,
                              (double)(now_ns - cache->traced_from_ns) / (double)LADE_MAX(ticks, 1)};
}

static struct lade_cache_event event_get(const struct trace_entry *entry, const struct trace_times *times)
{
  uint64_t ticks = entry->stamp >> QUEUE_BITS;
  return (struct lade_cache_event){
      .action = (enum lade_cache_action)(entry->bytes >> TAG_BITS & ((1 << ACTION_BITS) - 1)),
      .tag = (int)(entry->bytes & ((1 << TAG_BITS) - 1)),
      .address = entry->address,
      .bytes = entry->bytes / UNIT_BYTES * UNIT_BYTES,
      .time_us = (times->from_ns + (int64_t)((double)ticks * times->ns_per_tick)) / 1000,
      .place = entry->place,
      .queue = (int)(entry->stamp & ((1 << QUEUE_BITS) - 1)),
  };
}

static const struct trace_entry *entry_get(const lade_cache *cache, const struct shard *shard, uint64_t i)
{
  return &shard->trace[i & (cache->n_trace_entries - 1)];
}

/*
 * Return the ring with the newest event among the first @left[i] events of each ring @i; each ring keeps its last
 * n_trace_entries.
 */
static int newest_find(const lade_cache *cache, const uint64_t *left)
{
  int newest = -1;
  uint64_t newest_ticks = 0;
  for (int i = 0; i < cache->n_queues; i++) {
    const struct shard *shard = cache->shards[i];
    if (!left[i] || shard->n_traced - left[i] >= cache->n_trace_entries)
      continue;
    uint64_t ticks = entry_get(cache, shard, left[i] - 1)->stamp >> QUEUE_BITS;
    if (newest >= 0 && ticks < newest_ticks)
      continue;
    newest = i;
    newest_ticks = ticks;
  }
  return newest;
}

uint64_t lade_cache_trace_count(const lade_cache *cache)
{
  uint64_t n = 0;
  for (int i = 0; i < cache->n_queues; i++)
    n += cache->shards[i] ? LADE_MIN(cache->shards[i]->n_traced, cache->n_trace_entries) : 0;
  return LADE_MIN(n, cache->n_trace_entries);
}

void lade_cache_trace_copy(const lade_cache *cache, struct lade_cache_event *ret_events, uint64_t n)
{
  struct trace_times times = times_get(cache);
  uint64_t left[N_QUEUES] = {0};
  for (int i = 0; i < cache->n_queues; i++)
    left[i] = cache->shards[i]->n_traced;
  while (n) {
    int newest = newest_find(cache, left);
    LADE_ASSERT(newest >= 0);
    ret_events[--n] = event_get(entry_get(cache, cache->shards[newest], --left[newest]), &times);
  }
}

int lade_cache_get_trace(lade_cache *cache, struct lade_cache_event *ret_events, int n)
{
  if (!cache || !ret_events)
    return 0;
  if (!atomic_load(cache->is_alive) || n <= 0)
    return 0;
  lade_cache_lock_all(cache);
  uint64_t n_events = LADE_MIN(lade_cache_trace_count(cache), (uint64_t)n);
  lade_cache_trace_copy(cache, ret_events, n_events);
  lade_cache_unlock_all(cache);
  return (int)n_events;
}
