/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queues that may use freed memory, and when.
 *
 * A queue runs its work in order, so a block freed in the order of queue q may be given to q again at once. For every
 * other queue it is free after the event (q, count); count is the work submitted to q at the free. A free only reads
 * this counter and submits no marker. Free blocks lie in the bins of their queue, and under number 0 once their event
 * is over.
 *
 * A block with other recorded queues waits until each of them passes its count at the free. Then it is free for its own
 * queue.
 *
 * To take a block of q for p, p waits on the device, and an empty piece of work is submitted after the wait. Counts
 * include work and not waits. Without that work, a block that is taken and freed at once would carry an event of p that
 * is over already. But q may not yet have reached its own event.
 *
 * Rejected: a set of events per free block, so that any neighbours could be joined at once. It makes every join and
 * every search more expensive. It only serves pending neighbours of different queues, a state that ends once one of the
 * queues reaches its event.
 */
#include <errno.h>

#include "alloc/cache/cache_blocks.h"
#include "alloc/cache/cache_trace.h"

/* Assign a slot and a shard, locked like the others, to the queue. The queue is set last, when the slot is complete. */
static int slot_fill(lade_cache *cache, lade_queue *queue, int number)
{
  if (lade_queue_get_device(queue) != cache->device)
    return -EINVAL;
  if (number == N_QUEUES)
    return -ENOSPC;
  if (!cache->shards[number]) {
    int error = lade_cache_shard_create(cache, number);
    if (error)
      return error;
    lade_lock_lock(&cache->shards[number]->lock);
  }
  struct queue_slot *slot = &cache->queues[number];
  slot->pool = &cache->common;
  atomic_store_explicit(&slot->shard, cache->shards[number], memory_order_relaxed);
  atomic_store_explicit(&slot->queue, queue, memory_order_release);
  if (number == cache->n_queues)
    cache->n_queues++;
  return number;
}

int lade_cache_queue_number(lade_cache *cache, lade_queue *queue)
{
  if (!queue)
    return 0;
  int vacant = 0;
  for (int i = 1; i < cache->n_queues; i++) {
    if (cache->queues[i].queue == queue)
      return i;
    if (!cache->queues[i].queue && !vacant)
      vacant = i;
  }
  return slot_fill(cache, queue, vacant ? vacant : cache->n_queues);
}

static void nothing(void *args)
{
}

void lade_cache_wait_event(lade_cache *cache, int queue, int other, uint64_t count)
{
  if (queue == other || !other || lade_queue_poll(cache->queues[other].queue, count))
    return;
  lade_queue_wait(cache->queues[queue].queue, cache->queues[other].queue, count);
  lade_queue_launch(cache->queues[queue].queue, &(struct lade_work){.fn = nothing}, NULL);
  cache->stats.n_event_waits++;
}

/* ---- blocks that several queues use ---- */

static void block_free_for_queue(lade_cache *cache, struct cache_block *block, enum lade_cache_action action)
{
  if (action == LADE_CACHE_FREE_COMPLETED)
    lade_cache_pending_sub(cache, block);
  lade_cache_inactive_note(cache);
  lade_cache_trace_add(cache, block->segment->zone->shard, action, block, block->free_place);
  block->state = BLOCK_FREE;
  lade_cache_block_settle(cache, block);
}

/*
 * Add a wait for (queue, count) unless it is over. A pool under capture may poll no queue, and a deterministic cache
 * does not use progress; there the wait is always added. lade_cache_record has reserved the space.
 */
static void wait_add(lade_cache *cache, struct cache_block *block, int queue, uint64_t count)
{
  bool may_look = !block->segment->zone->pool->is_capturing && !(cache->flags & LADE_CACHE_DETERMINISTIC);
  if (may_look && lade_queue_poll(cache->queues[queue].queue, count))
    return;
  LADE_ASSERT(cache->waits.n < cache->waits.capacity);
  cache->waits.items[cache->waits.n++] = (struct wait){block, queue, count};
  block->n_waits++;
}

int lade_cache_block_record(lade_cache *cache, struct cache_block *block, int queue)
{
  uint64_t bit = (uint64_t)1 << queue;
  if (!queue || queue == block->queue || block->users & bit)
    return 0;
  if (!lade_array_reserve((void **)&cache->waits.items, &cache->waits.capacity, cache->waits.n + cache->n_recorded + 1,
                          sizeof(cache->waits.items[0])))
    return -ENOMEM;
  cache->n_recorded++;
  block->users |= bit;
  block->is_used = true;
  return 0;
}

void lade_cache_block_release(lade_cache *cache, struct cache_block *block, bool is_at_once)
{
  block->n_waits = 0;
  for (int i = 1; i < cache->n_queues && block->users >> i; i++)
    if (block->users >> i & 1) {
      cache->n_recorded--;
      wait_add(cache, block, i, lade_cache_queue_count(cache, i));
    }
  block->users = 0;
  block->is_used = false;
  if (!block->n_waits) {
    block_free_for_queue(cache, block, is_at_once ? LADE_CACHE_FREE : LADE_CACHE_FREE_COMPLETED);
    return;
  }
  block->state = BLOCK_WAITING;
  if (!is_at_once)
    return;
  lade_cache_pending_add(cache, block);
  lade_cache_trace_add(cache, block->segment->zone->shard, LADE_CACHE_FREE_REQUESTED, block,
                       block->free_place);
}

static void wait_remove(lade_cache *cache, int i)
{
  struct cache_block *block = cache->waits.items[i].block;
  cache->waits.items[i] = cache->waits.items[--cache->waits.n];
  if (--block->n_waits == 0)
    block_free_for_queue(cache, block, LADE_CACHE_FREE_COMPLETED);
}

void lade_cache_waits_poll(lade_cache *cache)
{
  for (int i = cache->waits.n - 1; i >= 0; i--) {
    const struct wait *wait = &cache->waits.items[i];
    if (!wait->block->segment->zone->pool->is_capturing && lade_cache_is_over(cache, wait->queue, wait->count))
      wait_remove(cache, i);
  }
}

void lade_cache_waits_drop(lade_cache *cache, int queue)
{
  for (int i = cache->waits.n - 1; i >= 0; i--)
    if (cache->waits.items[i].queue == queue)
      wait_remove(cache, i);
}

void lade_cache_waits_adopt(lade_cache *cache, int queue)
{
  for (int i = cache->waits.n - 1; i >= 0; i--) {
    struct wait wait = cache->waits.items[i];
    struct zone *zone = wait.block->segment->zone;
    bool may_wait = lade_cache_may_wait(cache, wait.queue, wait.count) &&
                    lade_cache_may_wait(cache, wait.block->queue, wait.block->count);
    if (zone->pool->is_capturing || !may_wait || !lade_cache_bins_get(zone, queue))
      continue;
    lade_cache_wait_event(cache, queue, wait.queue, wait.count);
    lade_cache_wait_event(cache, queue, wait.block->queue, wait.block->count);
    wait.block->queue = (uint8_t)queue;
    wait.block->count = lade_cache_queue_count(cache, queue);
    wait_remove(cache, i);
  }
}

/* ---- sweep ---- */

/*
 * Move the blocks of a list whose event is over to *@end, in no list. They are marked live meanwhile, so that none is
 * joined before its turn.
 */
static struct cache_block **list_sweep(lade_cache *cache, struct zone *zone, struct cache_block *block,
                                       struct cache_block **end)
{
  while (block != lade_cache_list_end(zone)) {
    struct cache_block *next = block->next;
    cache->n_looked_at++;
    if (lade_cache_is_over(cache, block->queue, block->count)) {
      lade_cache_list_remove(zone, block);
      block->state = BLOCK_LIVE;
      block->queue = 0;
      block->count = 0;
      *end = block;
      end = &block->next;
    }
    block = next;
  }
  return end;
}

/* Sweep the zone's free blocks. Only blocks that become free for every queue may find neighbours to join. */
static void zone_sweep(lade_cache *cache, struct zone *zone)
{
  struct cache_block *over = NULL, **end = &over;
  if (!lade_cache_bins_get(zone, 0))
    return;
  for (int queue = 1; queue < cache->n_queues; queue++) {
    const struct bins *bins = zone->bins[queue];
    for (uint64_t summary = bins ? bins->summary : 0; summary; summary &= summary - 1) {
      int w = __builtin_ctzll(summary);
      for (uint64_t word = bins->words[w]; word; word &= word - 1)
        end = list_sweep(cache, zone, bins->heads[w * 64 + __builtin_ctzll(word)], end);
    }
  }
  *end = NULL;
  while (over) {
    struct cache_block *block = over;
    over = block->next;
    block->state = BLOCK_FREE;
    lade_cache_block_settle(cache, block);
  }
}

void lade_cache_sweep(lade_cache *cache, struct lade_cache_pool *pool)
{
  for (struct zone *zone = pool->zones; zone; zone = zone->next)
    zone_sweep(cache, zone);
}

/*
 * Wait for all work of a queue. Called with all locks, which are released meanwhile. The queue stays, because
 * lade_cache_forget waits for n_syncs.
 */
static void queue_sync(lade_cache *cache, int number)
{
  struct queue_slot *slot = &cache->queues[number];
  lade_queue *queue = slot->queue;
  uint64_t count = lade_cache_queue_count(cache, number);
  slot->n_syncs++;
  lade_cache_unlock_all(cache);
  lade_queue_sync(queue, count);
  lade_cache_lock_all(cache);
  slot->n_syncs--;
  lade_lock_wake_all(&cache->n_synced);
}

void lade_cache_wait_all(lade_cache *cache, bool with_captures)
{
  lade_cache_lock_all(cache);
  cache->stats.n_host_waits++;
  for (int i = 1; i < cache->n_queues; i++)
    if (cache->queues[i].queue && (with_captures || !cache->queues[i].pool->is_capturing))
      queue_sync(cache, i);
  lade_cache_unlock_all(cache);
}

/* ---- forgotten queues ---- */

/* Make the blocks of a forgotten queue free for every queue, because its work is done. */
static void queue_leave(lade_cache *cache, int queue)
{
  for (struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    for (struct zone *zone = pool->zones; zone; zone = zone->next)
      for (struct cache_segment *segment = zone->segments; segment; segment = segment->next)
        for (struct cache_block *block = segment->first; block; block = block->after) {
          if (block->users >> queue & 1)
            cache->n_recorded--;
          block->users &= ~((uint64_t)1 << queue);
          if (block->queue == queue) {
            LADE_ASSERT(block->state != BLOCK_FREE);
            block->queue = 0;
            block->count = 0;
          }
        }
}

/*
 * Forget a queue.
 *
 * pre: its work is done, and no thread waits for it or climbs for it.
 */
static void queue_forget(lade_cache *cache, int queue)
{
  cache->queues[queue].pool = &cache->common; /* the queue may have captured into another pool */
  lade_cache_waits_drop(cache, queue);
  for (struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    lade_cache_sweep(cache, pool);
  queue_leave(cache, queue);
  cache->queues[queue].queue = NULL;
  cache->queues[queue].is_leaving = false; /* the slot may belong to another queue at the next look */
}

/* True if a climb for the queue is in progress, which may submit a wait to it, or if its work is not done. */
static bool is_busy(const struct queue_slot *slot)
{
  return slot->n_syncs || !lade_queue_poll(slot->queue, lade_queue_submitted(slot->queue));
}

/* Wait until a climb for the queue is over, or its work done. */
static void busy_wait(lade_cache *cache, const struct queue_slot *slot)
{
  lade_queue *queue = slot->queue;
  if (slot->n_syncs) {
    lade_cache_sleep_all(cache, &cache->n_synced);
    return;
  }
  lade_cache_unlock_all(cache);
  lade_queue_sync(queue, lade_queue_submitted(queue));
  lade_cache_lock_all(cache);
}

/* Wake requests for the queue that wait for the spill function, because that function is waiting for them. */
static void climbs_let_go(lade_cache *cache, struct queue_slot *slot)
{
  slot->is_leaving = true;
  lade_lock_wake_all(&cache->n_spilled);
}

void lade_cache_forget(lade_cache *cache, lade_queue *queue)
{
  if (!cache)
    return;
  if (!atomic_load(cache->is_alive) || !queue)
    return;
  lade_queue_sync(queue, lade_queue_submitted(queue));
  lade_cache_lock_all(cache);
  struct queue_slot *slot = lade_cache_slot_find(cache, queue);
  bool is_spiller = lade_cache_is_spiller(cache);
  if (slot && !(is_spiller && slot - cache->queues == cache->spill_queue)) {
    if (is_spiller)
      climbs_let_go(cache, slot);
    while (slot->queue == queue && is_busy(slot))
      busy_wait(cache, slot);
    if (slot->queue == queue)
      queue_forget(cache, (int)(slot - cache->queues));
    slot->is_leaving &= !is_spiller;
  }
  lade_cache_unlock_all(cache);
}
