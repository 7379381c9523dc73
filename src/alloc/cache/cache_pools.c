/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools: memory that stays in place, for graphs that were captured with its addresses.
 *
 * A pool has one zone for blocks of all sizes, so its reserved memory serves any of them. The zone is in the shard of
 * the host's blocks, so threads that allocate from private pools at once share that lock. Queues are routed to a pool;
 * their slots then name its shard instead of their own.
 */
#include <errno.h>
#include <stdlib.h>

#include "alloc/cache/cache_internal.h"

/* Build a place in the pool and free it at once. */
static int place_fill(lade_cache *cache, struct lade_cache_pool *pool, uint64_t bytes)
{
  struct cache_block *block = NULL;
  int error = lade_cache_place_build(cache, &pool->own, 0, bytes, REACH_HOME, &block);
  if (!error)
    lade_cache_block_settle(cache, block);
  return error;
}

/*
 * Fill the pool by the steps of cache.c's ladder that lead to whole chunks: idle ones, those in the sanitizer's
 * quarantine, those that the owner's spill function frees, those that queues are done with.
 */
static int pool_fill(lade_cache *cache, struct lade_cache_pool *pool, uint64_t bytes)
{
  if (bytes > cache->limit_bytes)
    return -ENOMEM;
  uint64_t whole_bytes = lade_align_up(bytes, cache->chunk_bytes);
  lade_cache_waits_poll(cache);
  lade_cache_sweep(cache, &cache->common);
  int error = place_fill(cache, pool, whole_bytes);
  if (error && cache->flags & LADE_CACHE_SANITIZE && lade_cache_guard_drain(cache, true))
    error = place_fill(cache, pool, whole_bytes);
  while (error && lade_cache_spill(cache, 0, whole_bytes)) {
    lade_cache_waits_poll(cache);
    error = place_fill(cache, pool, whole_bytes);
  }
  if (!error)
    return 0;
  lade_cache_wait_and_sweep(cache);
  lade_cache_waits_poll(cache);
  return place_fill(cache, pool, whole_bytes);
}

static int pool_create(lade_cache *cache, uint64_t bytes, bool is_shared, lade_cache_pool **ret_pool)
{
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  struct lade_cache_pool *pool = calloc(1, sizeof(*pool));
  if (!pool)
    return -ENOMEM;
  struct shard *shard = cache->shards[0];
  pool->own = (struct zone){.pool = pool, .shard = shard, .kind = ZONE_PRIVATE, .holes = &shard->end};
  pool->zones = &pool->own;
  pool->is_private = true;
  pool->is_shared = is_shared;
  lade_cache_lock_all(cache);
  pool->next = cache->pools;
  cache->pools = pool;
  int error = lade_cache_is_spiller(cache) ? -EDEADLK : bytes ? pool_fill(cache, pool, bytes) : 0;
  lade_cache_unlock_all(cache);
  if (error) {
    lade_cache_pool_destroy(cache, pool);
    return error;
  }
  *ret_pool = pool;
  return 0;
}

int lade_cache_pool_create(lade_cache *cache, uint64_t bytes, lade_cache_pool **ret_pool)
{
  if (!cache || !ret_pool)
    return -EINVAL;
  return pool_create(cache, bytes, false, ret_pool);
}

int lade_cache_pool_create_shared(lade_cache *cache, uint64_t bytes, lade_cache_pool **ret_pool)
{
  if (!cache || !ret_pool)
    return -EINVAL;
  struct lade_device_info info;
  lade_device_get_info(cache->device, &info);
  return info.is_dry ? -ENOTSUP : pool_create(cache, bytes, true, ret_pool);
}

/* True if the pool is this cache's; the pool itself is not read. Called with all locks. */
static bool pool_is_known(const lade_cache *cache, const struct lade_cache_pool *pool)
{
  const struct lade_cache_pool *known = cache->pools;
  while (known && known != pool)
    known = known->next;
  return known;
}

/* True if no memory of the zone is in use. Called after a sweep: a block that is free for one queue is still in use. */
static bool zone_is_idle(const struct zone *zone)
{
  for (const struct cache_segment *segment = zone->segments; segment; segment = segment->next)
    for (const struct cache_block *block = segment->first; block; block = block->after)
      if ((block->state != BLOCK_FREE && block->state != BLOCK_HOLE) || block->queue)
        return false;
  return true;
}

/*
 * Remove a pool. -EBUSY if it is in use; its freed blocks may still be in use by their queues. Called with all locks.
 */
static int pool_leave(lade_cache *cache, struct lade_cache_pool *pool)
{
  if (!pool_is_known(cache, pool))
    return -EINVAL;
  lade_cache_waits_poll(cache);
  if (cache->flags & LADE_CACHE_SANITIZE)
    lade_cache_guard_drain(cache, true);
  for (int i = 1; i < cache->n_queues; i++)
    if (cache->queues[i].queue && cache->queues[i].pool == pool)
      return -EBUSY;
  if (pool->is_capturing || pool->n_climbs)
    return -EBUSY;
  lade_cache_sweep(cache, pool);
  if (!zone_is_idle(&pool->own))
    return -EBUSY;
  int error = lade_cache_pool_unmap(cache, pool);
  if (pool->is_shared)
    lade_cache_spare_release(cache);
  if (error)
    return -ENOMEM;
  struct lade_cache_pool **link = &cache->pools;
  while (*link != pool)
    link = &(*link)->next;
  *link = pool->next;
  lade_cache_pool_clear(cache, pool);
  return 0;
}

int lade_cache_pool_destroy(lade_cache *cache, lade_cache_pool *pool)
{
  if (!cache)
    return -EINVAL;
  if (!pool)
    return 0;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_cache_wait_all(cache, false);
  lade_cache_lock_all(cache);
  int error = pool_leave(cache, pool);
  lade_cache_unlock_all(cache);
  if (!error)
    free(pool);
  return error;
}

int lade_cache_route(lade_cache *cache, lade_queue *queue, lade_cache_pool *pool)
{
  if (!cache)
    return -EINVAL;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  if (!queue)
    return -EINVAL;
  lade_cache_lock_all(cache);
  int number = pool && !pool_is_known(cache, pool) ? -EINVAL : lade_cache_queue_number(cache, queue);
  if (number > 0) {
    struct queue_slot *slot = &cache->queues[number];
    slot->pool = pool ? pool : &cache->common;
    slot->shard = pool ? pool->own.shard : cache->shards[number];
    slot->capture_count = lade_cache_queue_count(cache, number);
  }
  lade_cache_unlock_all(cache);
  return number < 0 ? number : 0;
}

static int capture_set(lade_cache *cache, lade_cache_pool *pool, bool is_capturing)
{
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_cache_lock_all(cache);
  int error = pool_is_known(cache, pool) ? 0 : -EINVAL;
  if (!error && pool->is_capturing == is_capturing)
    error = is_capturing ? -EALREADY : -EINVAL;
  for (int i = 1; i < cache->n_queues && !error && is_capturing; i++)
    if (cache->queues[i].queue && cache->queues[i].pool == pool)
      cache->queues[i].capture_count = lade_cache_queue_count(cache, i);
  if (!error)
    pool->is_capturing = is_capturing;
  lade_cache_unlock_all(cache);
  return error;
}

int lade_cache_capture_begin(lade_cache *cache, lade_cache_pool *pool)
{
  if (!cache || !pool)
    return -EINVAL;
  return capture_set(cache, pool, true);
}

int lade_cache_capture_end(lade_cache *cache, lade_cache_pool *pool)
{
  if (!cache || !pool)
    return -EINVAL;
  return capture_set(cache, pool, false);
}
