/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the caching allocator knows of itself: statistics, the ledger by tag, the trace.
 *
 * Statistics are counted as things happen, never summed up on request, and cache_check.c recounts them. The trace is a
 * ring of fixed size that is written in place: an entry costs a clock that is read from memory and one cache line.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "alloc/cache_internal.h"

/* ---- trace ---- */

static struct lade_cache_event *event_next(lade_cache *cache, enum lade_cache_action action)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  struct lade_cache_event *event = &cache->trace[cache->n_traced++ & cache->trace_mask];
  event->action = action;
  event->time_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
  return event;
}

void lade_cache_trace_write(lade_cache *cache, enum lade_cache_action action, const struct block *block)
{
  struct lade_cache_event *event = event_next(cache, action);
  event->address = block->address;
  event->bytes = block->bytes;
  event->tag = block->tag;
  event->queue = block->queue;
  event->place = action == LADE_CACHE_ALLOC ? block->place : block->free_place;
}

void lade_cache_trace_chunk(lade_cache *cache, enum lade_cache_action action, uint64_t address)
{
  if (!cache->trace)
    return;
  struct lade_cache_event *event = event_next(cache, action);
  *event = (struct lade_cache_event){
      .action = action, .address = address, .bytes = cache->chunk_bytes, .time_us = event->time_us};
}

int lade_cache_get_trace(lade_cache *cache, struct lade_cache_event *ret_events, int n)
{
  if (!atomic_load(cache->is_alive) || n <= 0)
    return 0;
  lade_lock_take(&cache->lock);
  uint64_t kept = cache->trace ? LADE_MIN(cache->n_traced, cache->trace_mask + 1) : 0;
  uint64_t n_events = LADE_MIN(kept, (uint64_t)n);
  for (uint64_t i = 0; i < n_events; i++)
    ret_events[i] = cache->trace[(cache->n_traced - n_events + i) & cache->trace_mask];
  lade_lock_give(&cache->lock);
  return (int)n_events;
}

/* ---- statistics ---- */

int lade_cache_get_stats(lade_cache *cache, struct lade_cache_stats *ret_stats)
{
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_lock_take(&cache->lock);
  struct lade_cache_stats stats = cache->stats;
  lade_lock_give(&cache->lock);
  return lade_struct_fill("lade_cache_stats", ret_stats, &stats, sizeof(stats), NULL);
}

void lade_cache_reset_peaks(lade_cache *cache)
{
  if (!atomic_load(cache->is_alive))
    return;
  lade_lock_take(&cache->lock);
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
  if (!code)
    *ret_tag = cache->tags[tag];
  lade_lock_give(&cache->lock);
  return code;
}
