/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caching allocator's statistics, and the ledger by tag.
 *
 * An allocation counts its live block in the shard, and a free counts its end; cache_check.c recounts them. All other
 * values are derived on request. The total of allocations is the current value plus all frees. Active blocks are the
 * live ones and the pending ones, so active and live values, and their peaks, differ only while a block is pending.
 */
#include <errno.h>
#include <string.h>

#include "alloc/cache/cache_internal.h"

/* ---- statistics ---- */

static void stat_derive(struct lade_cache_stat *stat)
{
  stat->allocated = stat->current + stat->freed;
}

/* Derive the statistics of active blocks: the live ones, and the @n_pending that were freed and are still in use. */
static void active_derive(struct lade_cache_stat *stat, const struct lade_cache_stat *live, uint64_t n_pending)
{
  stat->current = live->current + n_pending;
  stat->peak = LADE_MAX(stat->peak, live->peak);
  stat->allocated = live->allocated;
  stat->freed = live->freed - n_pending;
}

/* Sum a statistic of live blocks over the shards; keep its peak. */
static void stat_sum(const lade_cache *cache, int meter, struct lade_cache_stat *stat)
{
  stat->current = stat->freed = 0;
  for (int i = 0; i < cache->n_queues; i++) {
    const struct shard *shard = cache->shards[i];
    stat->current += shard ? lade_cache_meter_get(&shard->meters[meter]) : 0;
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
  if (!cache || !ret_stats)
    return -EINVAL;
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
  if (!cache)
    return;
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
  if (!cache || !ret_tag)
    return -EINVAL;
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
  if (!cache || !ret_tag)
    return -EINVAL;
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
