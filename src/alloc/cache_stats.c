/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the caching allocator knows of itself: statistics, the ledger by tag, the trace.
 *
 * An allocation counts what is live in its shard, a free what went; cache_check.c recounts them. The rest follows when
 * somebody asks. What came in all is what there is and what went. Active blocks are those that live and those that
 * are pending, so active and live differ, and so do their peaks, only while something is pending.
 *
 * The trace is a ring of fixed size in each shard, written in place: an entry costs a clock and half a cache line. A
 * reader merges the rings by their stamps and keeps the last so many of all, which are surely among the last so many of
 * each. As long as one shard alone has events a stamp is the time of a clock that is read from memory and stands still
 * for milliseconds. Since a second one has, stamps are the processor's ticks, which also tell what came first in two
 * shards, and take 17 ns each, of waiting for what was begun before. Where processors do not agree on their ticks it is
 * the system's exact clock, 40 ns.
 *
 * Rejected: a counter for the events of all shards, which is a line that all write.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/cache_internal.h"
#include "base/cpu.h"
#include "base/ticks.h"

#define AHEAD 16 /* entries: what comes is fetched early, or the lock would wait for it when it is given back */

/* The low bits of an entry's bytes, which are whole units, and of its stamp. */
#define TAG_BITS 6
#define ACTION_BITS 3
#define QUEUE_BITS 6
_Static_assert(LADE_CACHE_MAX_TAGS <= 1 << TAG_BITS && N_QUEUES <= 1 << QUEUE_BITS &&
                   LADE_CACHE_OOM < 1 << ACTION_BITS && UNIT_BYTES == 1 << (TAG_BITS + ACTION_BITS),
               "they fit");

/* ---- trace ---- */

static int64_t time_get_ns(clockid_t clock)
{
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void lade_cache_trace_init(lade_cache *cache, uint64_t n)
{
  uint64_t n_entries = 1;
  while (n_entries < n)
    n_entries *= 2;
  cache->n_trace_entries = n ? n_entries : 0;
  cache->has_steady_ticks = n && lade_cpu_has_steady_ticks();
  cache->traced_from_ns = time_get_ns(CLOCK_MONOTONIC_COARSE);
}

static uint64_t ticks_now(const lade_cache *cache)
{
  return cache->has_steady_ticks ? lade_ticks_now() : (uint64_t)time_get_ns(CLOCK_MONOTONIC);
}

/*
 * A shard's first event comes with all locks: there is no memory in it before. The second shard's ends the first's time
 * alone: its stamp is 1 at least, and comes after what has none.
 */
static void tracing_begin(lade_cache *cache)
{
  if (++cache->n_tracing != 2)
    return;
  for (int i = 0; i < N_QUEUES; i++)
    if (cache->shards[i])
      cache->shards[i]->n_alone = cache->shards[i]->n_traced;
  cache->together_from_ticks = ticks_now(cache) - 1;
  cache->together_from_ns = time_get_ns(CLOCK_MONOTONIC);
}

static struct trace_entry *entry_next(lade_cache *cache, struct shard *shard, int queue)
{
  uint64_t mask = cache->n_trace_entries - 1;
  if (!shard->n_traced)
    tracing_begin(cache);
  uint64_t time = cache->n_tracing > 1 ? ticks_now(cache) - cache->together_from_ticks
                                       : (uint64_t)(time_get_ns(CLOCK_MONOTONIC_COARSE) - cache->traced_from_ns);
  struct trace_entry *entry = &shard->trace[shard->n_traced++ & mask];
  __builtin_prefetch(&shard->trace[(shard->n_traced + AHEAD) & mask], 1);
  entry->stamp = time << QUEUE_BITS | (uint64_t)queue;
  return entry;
}

void lade_cache_trace_write(lade_cache *cache, struct shard *shard, enum lade_cache_action action,
                            const struct block *block)
{
  struct trace_entry *entry = entry_next(cache, shard, block->queue);
  entry->address = block->address;
  entry->bytes = block->bytes | (uint64_t)action << TAG_BITS | block->tag;
  entry->place = action == LADE_CACHE_ALLOC ? block->place : block->free_place;
}

void lade_cache_trace_chunk(lade_cache *cache, struct shard *shard, enum lade_cache_action action, uint64_t address)
{
  if (!shard->trace)
    return;
  struct trace_entry *entry = entry_next(cache, shard, 0);
  entry->address = address;
  entry->bytes = cache->chunk_bytes | (uint64_t)action << TAG_BITS;
  entry->place = NULL;
}

/* How stamps become times since 1970. */
struct trace_times {
  int64_t alone_ns, together_ns; /* when stamps of either kind began */
  double ns_per_tick;
};

static struct trace_times times_get(const lade_cache *cache)
{
  uint64_t ticks = ticks_now(cache) - cache->together_from_ticks;
  int64_t now_ns = time_get_ns(CLOCK_MONOTONIC), shift_ns = time_get_ns(CLOCK_REALTIME) - now_ns;
  return (struct trace_times){cache->traced_from_ns + shift_ns, cache->together_from_ns + shift_ns,
                              (double)(now_ns - cache->together_from_ns) / (double)LADE_MAX(ticks, 1)};
}

static struct lade_cache_event event_get(const struct trace_entry *entry, bool was_alone,
                                         const struct trace_times *times)
{
  uint64_t time = entry->stamp >> QUEUE_BITS;
  int64_t time_ns = was_alone ? times->alone_ns + (int64_t)time
                             : times->together_ns + (int64_t)((double)time * times->ns_per_tick);
  return (struct lade_cache_event){
      .action = (enum lade_cache_action)(entry->bytes >> TAG_BITS & ((1 << ACTION_BITS) - 1)),
      .tag = (int)(entry->bytes & ((1 << TAG_BITS) - 1)),
      .address = entry->address,
      .bytes = entry->bytes / UNIT_BYTES * UNIT_BYTES,
      .time_us = time_ns / 1000,
      .place = entry->place,
      .queue = (int)(entry->stamp & ((1 << QUEUE_BITS) - 1)),
  };
}

/* Did event @i come before any of another shard? */
static bool is_alone(const lade_cache *cache, const struct shard *shard, uint64_t i)
{
  return cache->n_tracing < 2 || i < shard->n_alone;
}

/* What is newest of the first @left[i] events of each ring @i, of which the last n_trace_entries are kept. */
static int newest_find(const lade_cache *cache, const uint64_t *left)
{
  int newest = -1;
  uint64_t newest_stamp = 0;
  for (int i = 0; i < cache->n_queues; i++) {
    const struct shard *shard = cache->shards[i];
    if (!left[i] || shard->n_traced - left[i] >= cache->n_trace_entries)
      continue;
    uint64_t at = left[i] - 1;
    const struct trace_entry *entry = &shard->trace[at & (cache->n_trace_entries - 1)];
    uint64_t stamp = is_alone(cache, shard, at) ? 0 : entry->stamp >> QUEUE_BITS;
    if (newest >= 0 && stamp < newest_stamp)
      continue;
    newest = i;
    newest_stamp = stamp;
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
    const struct shard *shard = cache->shards[newest];
    uint64_t at = --left[newest];
    ret_events[--n] = event_get(&shard->trace[at & (cache->n_trace_entries - 1)], is_alone(cache, shard, at), &times);
  }
}

int lade_cache_get_trace(lade_cache *cache, struct lade_cache_event *ret_events, int n)
{
  if (!atomic_load(cache->is_alive) || n <= 0)
    return 0;
  lade_cache_lock_all(cache);
  uint64_t n_events = LADE_MIN(lade_cache_trace_count(cache), (uint64_t)n);
  lade_cache_trace_copy(cache, ret_events, n_events);
  lade_cache_unlock_all(cache);
  return (int)n_events;
}

/* ---- statistics ---- */

static void stat_derive(struct lade_cache_stat *stat)
{
  stat->allocated = stat->current + stat->freed;
}

/* Of active blocks: those that @live counts, and the @n_pending that were freed and have not gone. */
static void active_derive(struct lade_cache_stat *stat, const struct lade_cache_stat *live, uint64_t n_pending)
{
  stat->current = live->current + n_pending;
  stat->peak = LADE_MAX(stat->peak, live->peak);
  stat->allocated = live->allocated;
  stat->freed = live->freed - n_pending;
}

/* Of live blocks; its peak is kept. */
static void stat_sum(const lade_cache *cache, int meter, struct lade_cache_stat *stat)
{
  stat->current = stat->freed = 0;
  for (int i = 0; i < cache->n_queues; i++) {
    const struct shard *shard = cache->shards[i];
    stat->current += shard ? shard->meters[meter].current : 0;
    stat->freed += shard ? shard->meters[meter].freed : 0;
  }
  stat_derive(stat);
}

void lade_cache_stats_derive(lade_cache *cache)
{
  struct lade_cache_stats *stats = &cache->stats;
  struct lade_cache_stat *inactive = &stats->inactive_split_bytes;
  stat_sum(cache, METER_BLOCKS, &stats->allocation);
  stat_sum(cache, METER_REQUESTED, &stats->requested_bytes);
  stat_sum(cache, METER_BYTES, &stats->allocated_bytes);
  for (int i = 0; i < cache->n_tags; i++)
    stat_sum(cache, METER_TAG + i, &cache->tags[i].bytes);
  stat_derive(&stats->segment);
  stat_derive(&stats->reserved_bytes);
  active_derive(&stats->active, &stats->allocation, cache->n_pending);
  active_derive(&stats->active_bytes, &stats->allocated_bytes, cache->pending_bytes);
  inactive->current = stats->reserved_bytes.current - stats->active_bytes.current;
  inactive->allocated = stats->reserved_bytes.allocated + stats->active_bytes.freed;
  inactive->freed = stats->reserved_bytes.freed + stats->active_bytes.allocated;
}

void lade_cache_inactive_note(lade_cache *cache)
{
  struct lade_cache_stats *stats = &cache->stats;
  uint64_t bytes = stats->reserved_bytes.current - lade_cache_live_bytes(cache) - cache->pending_bytes;
  stats->inactive_split_bytes.peak = LADE_MAX(stats->inactive_split_bytes.peak, bytes);
}

int lade_cache_get_stats(lade_cache *cache, struct lade_cache_stats *ret_stats)
{
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_cache_lock_all(cache);
  lade_cache_stats_derive(cache);
  struct lade_cache_stats stats = cache->stats;
  lade_cache_unlock_all(cache);
  return lade_struct_fill("lade_cache_stats", ret_stats, &stats, sizeof(stats), NULL);
}

void lade_cache_reset_peaks(lade_cache *cache)
{
  if (!atomic_load(cache->is_alive))
    return;
  lade_cache_lock_all(cache);
  lade_cache_stats_derive(cache);
  struct lade_cache_stats *stats = &cache->stats;
  struct lade_cache_stat *all[] = {&stats->allocation,      &stats->active,         &stats->segment,
                                   &stats->requested_bytes, &stats->allocated_bytes, &stats->active_bytes,
                                   &stats->reserved_bytes,  &stats->inactive_split_bytes};
  cache->high_bytes = LADE_MAX(cache->high_bytes, stats->allocated_bytes.peak);
  for (size_t i = 0; i < LADE_COUNT(all); i++)
    all[i]->peak = all[i]->current;
  for (int i = 0; i < cache->n_tags; i++)
    cache->tags[i].bytes.peak = cache->tags[i].bytes.current;
  lade_cache_meters_reset(cache);
  lade_cache_unlock_all(cache);
}

/* ---- the ledger ---- */

int lade_cache_tag_add(lade_cache *cache, const char *name, int *ret_tag)
{
  if (!name || !*name || strlen(name) >= sizeof(cache->tags[0].name))
    return -EINVAL;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_cache_lock_all(cache);
  int tag = 0, code = 0;
  while (tag < cache->n_tags && strcmp(cache->tags[tag].name, name) != 0)
    tag++;
  if (tag == LADE_CACHE_MAX_TAGS)
    code = -ENOSPC;
  else if (tag == cache->n_tags)
    strcpy(cache->tags[cache->n_tags++].name, name);
  lade_cache_unlock_all(cache);
  if (!code)
    *ret_tag = tag;
  return code;
}

int lade_cache_get_tag(lade_cache *cache, int tag, struct lade_cache_tag *ret_tag)
{
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_cache_lock_all(cache);
  int code = tag >= 0 && tag < cache->n_tags ? 0 : -ENOENT;
  lade_cache_stats_derive(cache);
  if (!code)
    *ret_tag = cache->tags[tag];
  lade_cache_unlock_all(cache);
  return code;
}
