/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far queues have come: whether the work that used a block is over, and who may wait for it.
 *
 * A block that was freed remembers a queue and a count of its works. It is quiet once the queue has passed the count.
 * Under LADE_CACHE_DETERMINISTIC the answer must not depend on time, so it is waited for.
 */
#include "alloc/cache/cache_blocks.h"

uint64_t lade_cache_queue_count(const lade_cache *cache, int queue)
{
  return queue ? lade_queue_submitted(cache->queues[queue].queue) : 0;
}

bool lade_cache_is_over(lade_cache *cache, int queue, uint64_t count)
{
  const struct queue_slot *slot = &cache->queues[queue];
  bool is_deterministic = cache->flags & LADE_CACHE_DETERMINISTIC;
  if (!queue)
    return true;
  if (is_deterministic && slot->pool->is_capturing)
    return false; /* under capture no thread waits for it, and a deterministic cache never uses progress */
  if (lade_queue_poll(slot->queue, count))
    return true;
  if (!is_deterministic)
    return false;
  cache->stats.n_host_waits++;
  lade_queue_sync(slot->queue, count);
  return true;
}

bool lade_cache_is_usable(lade_cache *cache, const struct cache_block *block, int queue)
{
  return block->queue == 0 || block->queue == queue || lade_cache_is_over(cache, block->queue, block->count);
}

bool lade_cache_may_wait(const lade_cache *cache, int queue, uint64_t count)
{
  const struct queue_slot *slot = &cache->queues[queue];
  return !queue || !slot->pool->is_capturing || count <= slot->capture_count;
}
