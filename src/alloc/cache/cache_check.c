/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recount: all state of the caching allocator, derived again from as little as possible.
 *
 * The walk over segments comes first: blocks must tile each segment, link back and forth, and have memory under every
 * byte except holes. The counts of the walk must then match lists, index, ledger and statistics: as many free blocks in
 * the bins, each in the right one, as many live ones in the index, the same bytes everywhere. The recount repairs
 * nothing and calls neither the device nor its queues.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/cache_blocks.h"

struct recount {
  lade_cache *cache;
  struct lade_error *error;
  int code;
  uint64_t n_live, n_active, live_bytes, active_bytes, requested_bytes, n_mapped;
  uint64_t n_free, n_holes, n_quarantined, n_waits, n_recorded;
  uint64_t tag_bytes[LADE_CACHE_MAX_TAGS];
};

static bool must(struct recount *count, bool is_true, const char *rule, uint64_t where)
{
  if (!is_true && !count->code)
    count->code = lade_error_set(count->error, -EBADMSG, "cache: broken: %s (%#llx)", rule, (unsigned long long)where);
  return is_true;
}

static void live_count(struct recount *count, const struct cache_block *block)
{
  count->n_live++;
  count->live_bytes += block->bytes;
  count->requested_bytes += block->requested_bytes;
  count->tag_bytes[block->tag] += block->bytes;
  const struct shard *shard = block->segment->zone->shard;
  must(count, lade_cache_owner_get(count->cache, block->address) == shard, "a live block is not its shard's",
       block->address);
  must(count, *lade_cache_index_find(shard, block->address) == block, "a live block is not in the index",
       block->address);
  must(count, block->requested_bytes > 0 && block->requested_bytes <= block->bytes, "a live block is too small",
       block->address);
}

static void block_count(struct recount *count, const struct cache_block *block)
{
  must(count, block->kind == block->segment->zone->kind, "a block is of another zone", block->address);
  if (block->state == BLOCK_HOLE) {
    count->n_holes++;
    must(count, block->address % count->cache->chunk_bytes == 0 && block->bytes % count->cache->chunk_bytes == 0,
         "a hole is no whole chunks", block->address);
    return;
  }
  if (block->state == BLOCK_FREE) {
    count->n_free++;
    must(count, !block->is_used && !block->users, "a free block has users", block->address);
    return;
  }
  count->n_active++;
  count->active_bytes += block->bytes;
  count->n_recorded += (uint64_t)__builtin_popcountll(block->users);
  must(count, block->is_used || !block->users, "a block's users are not noticed", block->address);
  if (block->state == BLOCK_LIVE)
    live_count(count, block);
  else if (block->state == BLOCK_WAITING)
    count->n_waits += block->n_waits;
  else
    count->n_quarantined++;
}

/* Check that a chunk of addresses is mapped exactly if a block over it is not a hole. */
static void chunks_check(struct recount *count, const struct cache_segment *segment)
{
  uint64_t chunk_bytes = count->cache->chunk_bytes, n = segment->bytes / chunk_bytes;
  const struct cache_block *block = segment->first;
  for (uint64_t i = 0; i < n && block;) {
    uint64_t at = segment->base + i * chunk_bytes;
    while (block && block->address + block->bytes <= at)
      block = block->after;
    if (!block)
      return;
    bool is_hole = block->state == BLOCK_HOLE;
    must(count, is_hole == !segment->chunks[i], is_hole ? "memory under a hole" : "no memory under a block", at);
    count->n_mapped += segment->chunks[i] != NULL;
    i++;
  }
}

static void segment_check(struct recount *count, const struct cache_segment *segment)
{
  uint64_t at = segment->base;
  const struct cache_block *before = NULL;
  for (const struct cache_block *block = segment->first; block; before = block, block = block->after) {
    if (!must(count, block->address == at && block->bytes > 0 && block->bytes % UNIT_BYTES == 0 &&
                         block->before == before && block->segment == segment, "blocks do not tile a segment", at))
      return;
    must(count, !before || before->state != BLOCK_HOLE || block->state != BLOCK_HOLE, "two holes touch", at);
    must(count, !before || before->state != BLOCK_FREE || block->state != BLOCK_FREE ||
                    before->queue != block->queue, "two free blocks of a queue touch", at);
    block_count(count, block);
    at += block->bytes;
  }
  must(count, at == segment->base + segment->bytes, "blocks do not fill a segment", at);
  chunks_check(count, segment);
}

static uint64_t list_check(struct recount *count, struct cache_block *const *head, const struct zone *zone, int state,
                           int queue)
{
  uint64_t n = 0;
  struct cache_block *const *link = head;
  for (const struct cache_block *block = *head; block != lade_cache_list_end(zone);
       link = &block->next, block = block->next) {
    must(count, block->state == state && block->segment->zone == zone && block->link == link &&
                    (state == BLOCK_HOLE || (block->queue == queue && &zone->bins[queue]->heads[block->bin] == head)),
         "a list holds what it should not", block->address);
    n++;
  }
  return n;
}

/* Check a queue's bins with the search: a block in bin i must be found by its own size. Return the number of blocks. */
static uint64_t bins_check(struct recount *count, const struct zone *zone, int queue)
{
  const struct bins *bins = zone->bins[queue];
  uint64_t n = 0;
  for (int i = 0; bins && i < N_BINS; i++) {
    bool has_bit = bins->words[i / 64] >> (i % 64) & 1;
    must(count, has_bit == (bins->heads[i] != bins->end), "a bin's bit is wrong", (uint64_t)i);
    must(count, (bins->summary >> (i / 64) & 1) == (bins->words[i / 64] != 0), "a bin's summary is wrong", (uint64_t)i);
    n += list_check(count, &bins->heads[i], zone, BLOCK_FREE, queue);
    if (has_bit) {
      const struct cache_block *found = lade_cache_bins_find(bins, bins, bins->heads[i]->bytes);
      must(count, found && found->bytes >= bins->heads[i]->bytes, "a free block is not found", (uint64_t)i);
    }
  }
  return n;
}

static void pool_check(struct recount *count, const struct lade_cache_pool *pool)
{
  uint64_t n_listed = 0, n_holes = 0, n_free_before = count->n_free, n_holes_before = count->n_holes;
  for (const struct zone *zone = pool->zones; zone; zone = zone->next) {
    must(count, zone->pool == pool, "a zone is not its pool's", (uint64_t)zone->kind);
    for (const struct cache_segment *segment = zone->segments; segment; segment = segment->next)
      segment_check(count, segment);
    for (int queue = 0; queue < N_QUEUES; queue++)
      n_listed += bins_check(count, zone, queue);
    n_holes += list_check(count, &zone->holes, zone, BLOCK_HOLE, 0);
  }
  must(count, n_listed == count->n_free - n_free_before, "bins and segments disagree on free blocks", n_listed);
  must(count, n_holes == count->n_holes - n_holes_before, "lists and segments disagree on holes", n_holes);
}

static void stat_check(struct recount *count, const struct lade_cache_stat *stat, uint64_t current, const char *rule)
{
  must(count, stat->current == current && stat->peak >= current && stat->allocated - stat->freed == current, rule,
       stat->current);
}

static void stats_check(struct recount *count)
{
  const lade_cache *cache = count->cache;
  const struct lade_cache_stats *stats = &cache->stats;
  uint64_t n_chunks = count->n_mapped + (uint64_t)cache->spare.n, reserved_bytes = n_chunks * cache->chunk_bytes;
  stat_check(count, &stats->allocation, count->n_live, "the number of live blocks is wrong");
  stat_check(count, &stats->active, count->n_active, "the number of active blocks is wrong");
  stat_check(count, &stats->segment, n_chunks, "the number of chunks is wrong");
  stat_check(count, &stats->requested_bytes, count->requested_bytes, "requested bytes are wrong");
  stat_check(count, &stats->allocated_bytes, count->live_bytes, "allocated bytes are wrong");
  stat_check(count, &stats->active_bytes, count->active_bytes, "active bytes are wrong");
  stat_check(count, &stats->reserved_bytes, reserved_bytes, "reserved bytes are wrong");
  stat_check(count, &stats->inactive_split_bytes, reserved_bytes - count->active_bytes, "inactive bytes are wrong");
  for (int i = 0; i < cache->n_tags; i++)
    stat_check(count, &cache->tags[i].bytes, count->tag_bytes[i], "a line of the ledger is wrong");
  must(count, reserved_bytes <= cache->limit_bytes, "more than the limit is reserved", reserved_bytes);
  must(count, stats->n_creates - stats->n_releases == n_chunks, "chunks were lost", n_chunks);
  must(count, stats->n_maps - stats->n_unmaps == count->n_mapped, "maps were lost", count->n_mapped);
}

/* Check that the index holds as many blocks as are counted, and that counters are between floors and ceilings. */
static void shard_check(struct recount *count, const struct shard *shard)
{
  const struct meter *meters = shard->meters;
  uint64_t n = 0;
  for (uint64_t i = 0; i <= shard->index_mask; i++)
    for (const struct cache_block *block = shard->index[i]; block; block = block->next)
      n++;
  must(count, n == lade_cache_meter_get(&meters[METER_BLOCKS]), "an index holds what is not live", n);
  for (int i = 0; i < N_METERS; i++)
    must(count, lade_cache_meter_get(&meters[i]) <= meters[i].ceiling, "a counter is above its ceiling", (uint64_t)i);
  must(count, lade_cache_meters_may_fall(shard, 0), "a counter is below its floor", shard->floor_bytes);
  must(count, shard->room_bytes <= lade_cache_meters_room(shard), "a ceiling is nearer than it seems",
       shard->room_bytes);
  n = 0;
  for (const struct cache_block *block = shard->unused; block; block = block->next, n++)
    must(count, !block->is_used && !block->users, "an unused descriptor has users", n); /* a taken descriptor's users
                                                                                           are not cleared */
  must(count, n == (uint64_t)shard->n_unused, "unused descriptors are miscounted", n);
}

static uint64_t ceilings_sum(const lade_cache *cache, int meter)
{
  uint64_t sum = 0;
  for (int i = 0; i < cache->n_queues; i++)
    sum += cache->shards[i]->meters[meter].ceiling;
  return sum;
}

/* Check that no sum can pass its peak while every shard stays within its ceilings and floors. */
static void limits_check(struct recount *count)
{
  const lade_cache *cache = count->cache;
  const struct lade_cache_stats *stats = &cache->stats;
  uint64_t floor_bytes = 0;
  for (int i = 0; i < cache->n_queues; i++) {
    const struct shard *shard = cache->shards[i];
    if (!must(count, shard && shard->number == i, "a queue has no shard", (uint64_t)i))
      return;
    shard_check(count, shard);
    floor_bytes += shard->floor_bytes;
  }
  uint64_t n_ceiling = ceilings_sum(cache, METER_BLOCKS), ceiling_bytes = ceilings_sum(cache, METER_BYTES);
  must(count, n_ceiling <= stats->allocation.peak && n_ceiling + cache->n_pending <= stats->active.peak,
       "ceilings are above the peak of blocks", n_ceiling);
  must(count, ceiling_bytes <= stats->allocated_bytes.peak &&
                  ceiling_bytes + cache->pending_bytes <= stats->active_bytes.peak,
       "ceilings are above the peak of bytes", ceiling_bytes);
  must(count, ceilings_sum(cache, METER_REQUESTED) <= stats->requested_bytes.peak,
       "ceilings are above the peak of requested bytes", stats->requested_bytes.peak);
  for (int i = 0; i < cache->n_tags; i++)
    must(count, ceilings_sum(cache, METER_TAG + i) <= cache->tags[i].bytes.peak,
         "ceilings are above the peak of a line of the ledger", (uint64_t)i);
  must(count, stats->reserved_bytes.current <=
                  stats->inactive_split_bytes.peak + floor_bytes + cache->pending_bytes,
       "floors are below the peak of what is inactive", floor_bytes);
}

static void lists_check(struct recount *count)
{
  const lade_cache *cache = count->cache;
  uint64_t n = 0, bytes = 0;
  for (const struct cache_block *block = cache->quarantine_first; block; block = block->next) {
    must(count, block->state == BLOCK_QUARANTINE, "the quarantine holds what it should not", block->address);
    must(count, block->next || cache->quarantine_last == block, "the quarantine's end is wrong", block->address);
    bytes += block->bytes;
    n++;
  }
  must(count, n == count->n_quarantined && bytes == cache->quarantine_bytes, "the quarantine is miscounted", n);
  must(count, count->n_waits == (uint64_t)cache->waits.n, "waits are miscounted", count->n_waits);
  must(count, count->n_recorded == (uint64_t)cache->n_recorded, "recorded uses are miscounted", count->n_recorded);
}

int lade_cache_check(lade_cache *cache, struct lade_error *error)
{
  if (!cache)
    return lade_error_set(error, -EINVAL, "lade_cache_check: cache is NULL");
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  struct recount *count = calloc(1, sizeof(*count));
  if (!count)
    return lade_error_set(error, -ENOMEM, "cache: out of host memory");
  count->cache = cache;
  count->error = error;
  lade_cache_lock_all(cache);
  for (const struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    pool_check(count, pool);
  lists_check(count);
  lade_cache_stats_derive(cache);
  stats_check(count);
  limits_check(count);
  lade_cache_unlock_all(cache);
  int code = count->code;
  free(count);
  return code;
}
