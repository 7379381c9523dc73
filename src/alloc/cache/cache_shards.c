/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards: their locks, the map from addresses to them, and the counters whose sums have peaks.
 *
 * All locks are taken in one order, the cache's own first. Only a thread that holds it takes a second one, so there is
 * no deadlock. While one thread climbs the ladder, other threads go on in their shards until it takes their locks.
 *
 * The map of owners is two levels of tables: the high bits of an address choose a leaf, the bits down to the device's
 * chunks choose a byte. A free reads it without a lock, because it has only an address. The value may be stale only for
 * an address without a live block, because a segment stays while it has one. So the caller takes the lock that the map
 * names, and reads the map again.
 *
 * Ceilings. A counter that has reached its ceiling takes from the others: the shard with the largest surplus gives half
 * of it, again and again until there is enough. If that does not suffice, the peak rises. Halves have two reasons.
 * Counters that vary settle where each has the ceiling that it needs. And a counter must find a ceiling again that it
 * has used before: with equal parts for all, threads that each free one block and allocate one would take that one from
 * each other for ever. Floors work the same from below. A shard stores the bytes that may come before a ceiling is
 * reached, or fewer, so that a call need not compare every ceiling. This room_bytes falls with every allocation and is
 * computed again when it is used up.
 *
 * Rejected: peaks of shards, whose sum is not the peak of the sum; a common counter with atomic adds, which is one
 * cache line for all; a peak that is sampled, which misses the peaks.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/cache_internal.h"

#define ADDRESS_BITS 52 /* in which a device's addresses differ: more than today's devices use; other segments are
                           refused */
#define LEAF_BITS 36    /* of addresses: 32 KiB for chunks of 2 MiB */

/* ---- create and lock ---- */

static void zone_init(struct shard *shard, struct lade_cache_pool *pool, enum zone_kind kind)
{
  struct zone *zone = &shard->zones[kind], **end = &pool->zones;
  zone->pool = pool;
  zone->shard = shard;
  zone->kind = kind;
  zone->holes = &shard->end;
  while (*end)
    end = &(*end)->next;
  *end = zone;
}

static bool trace_create(const lade_cache *cache, struct shard *shard)
{
  if (cache->n_trace_entries)
    shard->trace = calloc(cache->n_trace_entries, sizeof(*shard->trace));
  return shard->trace || !cache->n_trace_entries;
}

static void shard_free(struct shard *shard)
{
  for (int i = 0; i < shard->slabs.n; i++)
    free(shard->slabs.items[i]);
  LADE_ARRAY_FREE(&shard->slabs);
  free(shard->index);
  free(shard->trace);
  free(shard);
}

int lade_cache_shard_create(lade_cache *cache, int number)
{
  struct shard *shard = aligned_alloc(alignof(struct shard), sizeof(*shard));
  if (!shard)
    return -ENOMEM;
  memset(shard, 0, sizeof(*shard));
  shard->number = number;
  shard->end.address = UINT64_MAX;
  if (!trace_create(cache, shard) || lade_cache_index_grow(shard)) {
    shard_free(shard);
    return -ENOMEM;
  }
  for (int kind = 0; kind < N_ZONES; kind++)
    zone_init(shard, &cache->common, (enum zone_kind)kind);
  cache->shards[number] = shard;
  return 0;
}

void lade_cache_shards_free(lade_cache *cache)
{
  for (int i = 0; i < N_QUEUES; i++)
    if (cache->shards[i])
      shard_free(cache->shards[i]);
  for (size_t i = 0; cache->owners && i < (size_t)1 << (ADDRESS_BITS - LEAF_BITS); i++)
    free(atomic_load_explicit(&cache->owners[i], memory_order_relaxed));
  free(cache->owners);
}

static bool lock_take(struct lade_lock *lock)
{
  bool is_free = lade_lock_try(lock);
  if (!is_free)
    lade_lock_lock_slowly(lock);
  return is_free;
}

static void shards_lock(lade_cache *cache, bool is_free)
{
  for (int i = 0; i < cache->n_queues; i++)
    if (cache->shards[i])
      is_free &= lock_take(&cache->shards[i]->lock);
  cache->is_crowded = !is_free;
}

static void shards_unlock(lade_cache *cache)
{
  for (int i = cache->n_queues - 1; i >= 0; i--)
    if (cache->shards[i])
      lade_lock_unlock(&cache->shards[i]->lock);
}

void lade_cache_lock_all(lade_cache *cache)
{
  bool is_free = lock_take(&cache->lock);
  shards_lock(cache, is_free);
}

static void meters_fit(lade_cache *cache);

void lade_cache_unlock_all(lade_cache *cache)
{
  meters_fit(cache);
  shards_unlock(cache);
  lade_lock_unlock(&cache->lock);
}

void lade_cache_sleep_all(lade_cache *cache, _Atomic uint32_t *word)
{
  meters_fit(cache);
  shards_unlock(cache);
  lade_lock_sleep(&cache->lock, word);
  shards_lock(cache, true);
}

struct queue_slot *lade_cache_slot_find(lade_cache *cache, const lade_queue *queue)
{
  if (!queue)
    return &cache->queues[0];
  int n = atomic_load_explicit(&cache->n_queues, memory_order_acquire);
  for (int i = 1; i < n; i++)
    if (atomic_load_explicit(&cache->queues[i].queue, memory_order_acquire) == queue)
      return &cache->queues[i];
  return NULL;
}

/* ---- the map of owners ---- */

static _Atomic(_Atomic uint8_t *) *leaf_slot(const lade_cache *cache, uint64_t address)
{
  return &cache->owners[address >> LEAF_BITS & (((uint64_t)1 << (ADDRESS_BITS - LEAF_BITS)) - 1)];
}

static _Atomic uint8_t *leaf_get(const lade_cache *cache, uint64_t address)
{
  if (address >> ADDRESS_BITS != atomic_load_explicit(&cache->address_high, memory_order_relaxed))
    return NULL;
  return atomic_load_explicit(leaf_slot(cache, address), memory_order_acquire);
}

/*
 * Make the leaf of @address. The first segment defines the highest bits of all addresses. NULL for other high bits, and
 * without memory.
 */
static _Atomic uint8_t *leaf_make(lade_cache *cache, uint64_t address)
{
  if (!cache->n_segments)
    atomic_store_explicit(&cache->address_high, address >> ADDRESS_BITS, memory_order_relaxed);
  _Atomic uint8_t *leaf = leaf_get(cache, address);
  if (leaf || address >> ADDRESS_BITS != cache->address_high)
    return leaf;
  leaf = calloc((size_t)1 << (LEAF_BITS - cache->granule_shift), sizeof(*leaf));
  atomic_store_explicit(leaf_slot(cache, address), leaf, memory_order_release);
  return leaf;
}

static uint64_t leaf_place(const lade_cache *cache, uint64_t address)
{
  return (address & (((uint64_t)1 << LEAF_BITS) - 1)) >> cache->granule_shift;
}

int lade_cache_owners_create(lade_cache *cache, uint64_t granule_bytes)
{
  LADE_ASSERT(granule_bytes && !(granule_bytes & (granule_bytes - 1)));
  cache->granule_shift = LADE_MIN(__builtin_ctzll(granule_bytes), LEAF_BITS);
  cache->owners = calloc((size_t)1 << (ADDRESS_BITS - LEAF_BITS), sizeof(*cache->owners));
  return cache->owners ? 0 : -ENOMEM;
}

int lade_cache_owner_set(lade_cache *cache, uint64_t address, uint64_t bytes, const struct shard *shard)
{
  uint64_t granule_bytes = (uint64_t)1 << cache->granule_shift, end = address + bytes;
  uint8_t owner = shard ? (uint8_t)(shard->number + 1) : 0;
  LADE_ASSERT(address % granule_bytes == 0 && bytes % granule_bytes == 0);
  for (uint64_t at = address; at < end; at = (at >> LEAF_BITS << LEAF_BITS) + ((uint64_t)1 << LEAF_BITS))
    if (!leaf_make(cache, at))
      return -ENOMEM;
  for (uint64_t at = address; at < end; at += granule_bytes)
    atomic_store_explicit(&leaf_get(cache, at)[leaf_place(cache, at)], owner, memory_order_release);
  return 0;
}

struct shard *lade_cache_owner_get(const lade_cache *cache, uint64_t address)
{
  _Atomic uint8_t *leaf = leaf_get(cache, address);
  uint8_t owner = leaf ? atomic_load_explicit(&leaf[leaf_place(cache, address)], memory_order_acquire) : 0;
  return owner ? cache->shards[owner - 1] : NULL;
}

bool lade_cache_is_spiller(const lade_cache *cache)
{
  return cache->is_spilling && pthread_equal(cache->spiller, pthread_self());
}

/* ---- counters ---- */

uint64_t lade_cache_meter_sum(const lade_cache *cache, int meter)
{
  uint64_t sum = 0;
  for (int i = 0; i < cache->n_queues; i++)
    sum += cache->shards[i] ? lade_cache_meter_get(&cache->shards[i]->meters[meter]) : 0;
  return sum;
}

uint64_t lade_cache_freed_count(const lade_cache *cache)
{
  uint64_t n = 0;
  for (int i = 0; i < cache->n_queues; i++)
    n += cache->shards[i] ? cache->shards[i]->meters[METER_BLOCKS].freed : 0;
  return n;
}

/* Return the peak of @meter's sum. */
static uint64_t *peak_of(lade_cache *cache, int meter)
{
  struct lade_cache_stats *stats = &cache->stats;
  return meter == METER_BLOCKS      ? &stats->allocation.peak
         : meter == METER_REQUESTED ? &stats->requested_bytes.peak
         : meter == METER_BYTES     ? &stats->allocated_bytes.peak
                                    : &cache->tags[meter - METER_TAG].bytes.peak;
}

/*
 * Return the most that the ceilings may sum to: the peak of live blocks, and that of active blocks (live or pending)
 * less the pending ones.
 */
static uint64_t ceilings_limit(lade_cache *cache, int meter)
{
  uint64_t peak = *peak_of(cache, meter);
  if (meter == METER_BLOCKS)
    return LADE_MIN(peak, LADE_MAX(peak, cache->stats.active.peak) - cache->n_pending);
  if (meter == METER_BYTES)
    return LADE_MIN(peak, LADE_MAX(peak, cache->stats.active_bytes.peak) - cache->pending_bytes);
  return peak;
}

/* Return the distance of @shard's counter below its ceiling, or above its floor for METER_FLOOR. */
static uint64_t surplus_get(const struct shard *shard, int meter)
{
  if (meter == METER_FLOOR)
    return lade_cache_meter_get(&shard->meters[METER_BYTES]) - shard->floor_bytes;
  return shard->meters[meter].ceiling - lade_cache_meter_get(&shard->meters[meter]);
}

static void surplus_take(struct shard *shard, int meter, uint64_t n)
{
  if (meter == METER_FLOOR)
    shard->floor_bytes += n;
  else
    shard->meters[meter].ceiling -= n;
  shard->room_bytes = 0;
}

uint64_t lade_cache_meters_room(const struct shard *shard)
{
  return LADE_MIN(surplus_get(shard, METER_REQUESTED), surplus_get(shard, METER_BYTES));
}

bool lade_cache_meters_find_room(struct shard *shard, uint64_t requested_bytes, uint64_t bytes)
{
  shard->room_bytes = lade_cache_meters_room(shard);
  return requested_bytes <= surplus_get(shard, METER_REQUESTED) && bytes <= surplus_get(shard, METER_BYTES);
}

static struct shard *richest_find(const lade_cache *cache, const struct shard *but, int meter)
{
  struct shard *richest = NULL;
  for (int i = 0; i < cache->n_queues; i++) {
    struct shard *shard = cache->shards[i];
    if (shard && shard != but && (!richest || surplus_get(shard, meter) > surplus_get(richest, meter)))
      richest = shard;
  }
  return richest;
}

/* Take @n from other shards than @but, by halves, largest surplus first. */
static void surplus_gather(lade_cache *cache, const struct shard *but, int meter, uint64_t n)
{
  while (n) {
    struct shard *richest = richest_find(cache, but, meter);
    uint64_t half = richest ? LADE_MIN((surplus_get(richest, meter) + 1) / 2, n) : 0;
    LADE_ASSERT(half);
    surplus_take(richest, meter, half);
    n -= half;
  }
}

/* Take half of the largest surplus of another shard, so that @shard does not need more at once. */
static uint64_t gift_take(lade_cache *cache, const struct shard *shard, int meter)
{
  struct shard *richest = richest_find(cache, shard, meter);
  uint64_t gift = richest ? surplus_get(richest, meter) / 2 : 0;
  if (gift)
    surplus_take(richest, meter, gift);
  return gift;
}

static uint64_t ceilings_excess(lade_cache *cache, int meter)
{
  uint64_t sum = 0, limit = ceilings_limit(cache, meter);
  for (int i = 0; i < cache->n_queues; i++)
    sum += cache->shards[i] ? cache->shards[i]->meters[meter].ceiling : 0;
  return sum > limit ? sum - limit : 0;
}

/* Return the bytes by which the floors are too low: below it, inactive bytes could pass their peak unnoticed. */
static uint64_t floors_lack(const lade_cache *cache)
{
  const struct lade_cache_stats *stats = &cache->stats;
  uint64_t sum = cache->pending_bytes + stats->inactive_split_bytes.peak;
  for (int i = 0; i < cache->n_queues; i++)
    sum += cache->shards[i] ? cache->shards[i]->floor_bytes : 0;
  return stats->reserved_bytes.current > sum ? stats->reserved_bytes.current - sum : 0;
}

/* Fit ceilings and floors after changes under all locks: chunks may have come, and blocks may be pending. */
static void meters_fit(lade_cache *cache)
{
  surplus_gather(cache, NULL, METER_BLOCKS, ceilings_excess(cache, METER_BLOCKS));
  surplus_gather(cache, NULL, METER_BYTES, ceilings_excess(cache, METER_BYTES));
  surplus_gather(cache, NULL, METER_FLOOR, floors_lack(cache));
}

static void meter_raise(lade_cache *cache, struct shard *shard, int kind, uint64_t n)
{
  struct meter *meter = &shard->meters[kind];
  uint64_t rest = lade_cache_meter_get(meter) + n;
  if (rest <= meter->ceiling)
    return;
  uint64_t *peak = peak_of(cache, kind), sum = lade_cache_meter_sum(cache, kind) + n;
  struct lade_cache_stats *stats = &cache->stats;
  *peak = LADE_MAX(*peak, sum);
  if (kind == METER_BLOCKS)
    stats->active.peak = LADE_MAX(stats->active.peak, sum + cache->n_pending);
  if (kind == METER_BYTES)
    stats->active_bytes.peak = LADE_MAX(stats->active_bytes.peak, sum + cache->pending_bytes);
  meter->ceiling = rest;
  surplus_gather(cache, shard, kind, ceilings_excess(cache, kind));
  meter->ceiling += gift_take(cache, shard, kind);
}

void lade_cache_meters_raise(lade_cache *cache, struct shard *shard, int tag, uint64_t requested_bytes, uint64_t bytes)
{
  meter_raise(cache, shard, METER_BLOCKS, 1);
  meter_raise(cache, shard, METER_REQUESTED, requested_bytes);
  meter_raise(cache, shard, METER_BYTES, bytes);
  meter_raise(cache, shard, METER_TAG + tag, bytes);
}

/* Lower the floor for a free of @bytes. The release of the locks fits the floors to the block's new state. */
void lade_cache_meters_lower(lade_cache *cache, struct shard *shard, uint64_t bytes)
{
  if (lade_cache_meters_may_fall(shard, bytes))
    return;
  uint64_t rest = lade_cache_meter_get(&shard->meters[METER_BYTES]) - bytes;
  uint64_t gift = gift_take(cache, shard, METER_FLOOR);
  shard->floor_bytes = rest - LADE_MIN(rest, gift);
}

void lade_cache_meters_reset(lade_cache *cache)
{
  for (int i = 0; i < cache->n_queues; i++) {
    struct shard *shard = cache->shards[i];
    for (int meter = 0; shard && meter < N_METERS; meter++)
      shard->meters[meter].ceiling = lade_cache_meter_get(&shard->meters[meter]);
    if (!shard)
      continue;
    shard->room_bytes = 0;
    shard->floor_bytes = lade_cache_meter_get(&shard->meters[METER_BYTES]);
  }
}
