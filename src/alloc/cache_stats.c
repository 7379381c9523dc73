/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the caching allocator knows of itself: statistics, the ledger by tag, the trace.
 *
 * An allocation counts what is live and its peak, a free what went; cache_check.c recounts them. The rest follows when
 * somebody asks. What came in all is what there is and what went. Active blocks are those that live and those that
 * are pending, so active and live differ, and so do their peaks, only while something is pending.
 *
 * The trace is a ring of fixed size that is written in place: an entry costs a clock that is read from memory and half
 * a cache line.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/cache_internal.h"

#define AHEAD 16 /* entries: what comes is fetched early, or the lock would wait for it when it is given back */

/* A stamp's low bits. */
#define TAG_BITS 6
#define QUEUE_BITS 6
#define ACTION_BITS 4
#define META_BITS (TAG_BITS + QUEUE_BITS + ACTION_BITS)
_Static_assert(LADE_CACHE_MAX_TAGS <= 1 << TAG_BITS && N_QUEUES <= 1 << QUEUE_BITS, "they fit a stamp");

/* ---- trace ---- */

static int64_t time_get(void)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int lade_cache_trace_init(lade_cache *cache, uint64_t n)
{
  uint64_t n_entries = 1;
  while (n_entries < n)
    n_entries *= 2;
  if (!n)
    return 0;
  cache->trace = calloc(n_entries, sizeof(*cache->trace));
  cache->trace_mask = n_entries - 1;
  cache->traced_from_us = time_get();
  return cache->trace ? 0 : -ENOMEM;
}

static struct trace_entry *entry_next(lade_cache *cache, enum lade_cache_action action, int queue, int tag)
{
  uint64_t time_us = (uint64_t)(time_get() - cache->traced_from_us);
  struct trace_entry *entry = &cache->trace[cache->n_traced++ & cache->trace_mask];
  __builtin_prefetch(&cache->trace[(cache->n_traced + AHEAD) & cache->trace_mask], 1);
  entry->stamp = time_us << META_BITS | (uint64_t)action << (QUEUE_BITS + TAG_BITS) | (uint64_t)queue << TAG_BITS |
                 (uint64_t)tag;
  return entry;
}

void lade_cache_trace_write(lade_cache *cache, enum lade_cache_action action, const struct block *block)
{
  struct trace_entry *entry = entry_next(cache, action, block->queue, block->tag);
  entry->address = block->address;
  entry->bytes = block->bytes;
  entry->place = action == LADE_CACHE_ALLOC ? block->place : block->free_place;
}

void lade_cache_trace_chunk(lade_cache *cache, enum lade_cache_action action, uint64_t address)
{
  if (!cache->trace)
    return;
  struct trace_entry *entry = entry_next(cache, action, 0, 0);
  entry->address = address;
  entry->bytes = cache->chunk_bytes;
  entry->place = NULL;
}

struct lade_cache_event lade_cache_trace_get(const lade_cache *cache, uint64_t i)
{
  const struct trace_entry *entry = &cache->trace[i & cache->trace_mask];
  return (struct lade_cache_event){
      .action = (enum lade_cache_action)(entry->stamp >> (QUEUE_BITS + TAG_BITS) & ((1 << ACTION_BITS) - 1)),
      .tag = (int)(entry->stamp & ((1 << TAG_BITS) - 1)),
      .address = entry->address,
      .bytes = entry->bytes,
      .time_us = cache->traced_from_us + ((int64_t)entry->stamp >> META_BITS),
      .place = entry->place,
      .queue = (int)(entry->stamp >> TAG_BITS & ((1 << QUEUE_BITS) - 1)),
  };
}

int lade_cache_get_trace(lade_cache *cache, struct lade_cache_event *ret_events, int n)
{
  if (!atomic_load(cache->is_alive) || n <= 0)
    return 0;
  lade_lock_take(&cache->lock);
  uint64_t kept = cache->trace ? LADE_MIN(cache->n_traced, cache->trace_mask + 1) : 0;
  uint64_t n_events = LADE_MIN(kept, (uint64_t)n);
  for (uint64_t i = 0; i < n_events; i++)
    ret_events[i] = lade_cache_trace_get(cache, cache->n_traced - n_events + i);
  lade_lock_give(&cache->lock);
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

void lade_cache_stats_derive(lade_cache *cache)
{
  struct lade_cache_stats *stats = &cache->stats;
  struct lade_cache_stat *inactive = &stats->inactive_split_bytes;
  stat_derive(&stats->allocation);
  stat_derive(&stats->segment);
  stat_derive(&stats->requested_bytes);
  stat_derive(&stats->allocated_bytes);
  stat_derive(&stats->reserved_bytes);
  for (int i = 0; i < cache->n_tags; i++)
    stat_derive(&cache->tags[i].bytes);
  active_derive(&stats->active, &stats->allocation, cache->n_pending);
  active_derive(&stats->active_bytes, &stats->allocated_bytes, cache->pending_bytes);
  inactive->current = stats->reserved_bytes.current - stats->active_bytes.current;
  inactive->allocated = stats->reserved_bytes.allocated + stats->active_bytes.freed;
  inactive->freed = stats->reserved_bytes.freed + stats->active_bytes.allocated;
}

int lade_cache_get_stats(lade_cache *cache, struct lade_cache_stats *ret_stats)
{
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_lock_take(&cache->lock);
  lade_cache_stats_derive(cache);
  struct lade_cache_stats stats = cache->stats;
  lade_lock_give(&cache->lock);
  return lade_struct_fill("lade_cache_stats", ret_stats, &stats, sizeof(stats), NULL);
}

void lade_cache_reset_peaks(lade_cache *cache)
{
  if (!atomic_load(cache->is_alive))
    return;
  lade_lock_take(&cache->lock);
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
  lade_lock_give(&cache->lock);
}

/* ---- the ledger ---- */

int lade_cache_tag_add(lade_cache *cache, const char *name, int *ret_tag)
{
  if (!name || !*name || strlen(name) >= sizeof(cache->tags[0].name))
    return -EINVAL;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_lock_take(&cache->lock);
  int tag = 0, code = 0;
  while (tag < cache->n_tags && strcmp(cache->tags[tag].name, name) != 0)
    tag++;
  if (tag == LADE_CACHE_MAX_TAGS)
    code = -ENOSPC;
  else if (tag == cache->n_tags)
    strcpy(cache->tags[cache->n_tags++].name, name);
  lade_lock_give(&cache->lock);
  if (!code)
    *ret_tag = tag;
  return code;
}

int lade_cache_get_tag(lade_cache *cache, int tag, struct lade_cache_tag *ret_tag)
{
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_lock_take(&cache->lock);
  int code = tag >= 0 && tag < cache->n_tags ? 0 : -ENOENT;
  lade_cache_stats_derive(cache);
  if (!code)
    *ret_tag = cache->tags[tag];
  lade_lock_give(&cache->lock);
  return code;
}
