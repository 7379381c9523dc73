/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caching allocator: the public calls, and the ladder of steps that an allocation climbs if nothing fits at once.
 *
 * A request is rounded to 512 bytes and goes to one of two zones with their own segments: small blocks, each of which
 * would pin a chunk among large ones, and all others. A third zone is kept for recurring requests of a step that
 * repeats (cache_steps.c), and only the ladder searches it. A block fills whole chunks if rounding up to them costs
 * less than 1/128. Such a block starts at a chunk if there is space for it, so that all of its chunks can move later.
 * Other sizes are packed by the byte. The block is the best fit of two lists: blocks that are free for this queue, and
 * for every queue.
 *
 * That is the common case: lade_cache_alloc down to block_serve, lade_cache_free down to block_return, all of it
 * inline. An allocation touches the queue's slot and its shard (lock, counters, the end of the trace's ring). In the
 * zone it touches the bits and one or two heads of the bins, the block, and a bucket of the index. If a remainder is
 * split off, it also touches the next neighbour. A free touches the map of owners, the shard, the bucket, the block and
 * both neighbours, and the bins that they leave and enter. All other cases take all locks.
 *
 * Rejected: a third zone for whole chunks alone. A program whose sizes change from step to step then moves its memory
 * between the zones in every step. It ends with the peak of both.
 *
 * The ladder, in order of cost. Each step searches again, in the block's own zone first and then in the others:
 *  0. the best fit of the blocks in other queues' shards that are free for this queue or for every queue
 *  1. release blocks whose waits are over; make blocks that queues are done with free for every queue; coalesce
 *  2. move idle chunks from any place, create chunks below the limit (cache_chunks.c)
 *  3. take blocks of other queues, ordered by events on the device
 *  4. release the sanitizer's quarantine
 *  5. call the owner's spill function, as long as it frees memory
 *  6. wait for the queues
 * If all fail, memory is out. Steps 5 and 6 hold no lock, so frees go on meanwhile. The request's queue and the pool
 * stay, because calls that forget the queue or destroy the pool find that a climb is in progress. Memory freed during
 * step 6 may be in use by work that was submitted meanwhile, so the step is then repeated.
 *
 * A pool under capture stops before step 0. A trainer climbs to 1 and 2 in its first few steps. In a steady one it
 * makes no memory call (tests/unit/alloc/test_cache_steps.c counts): kept memory is found before 1.
 *
 * Fork. One page reads as zeroes in children of fork. One load of it tells a child that the cache is its parent's. The
 * child never touches a lock that was held at the moment of the fork.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/cache_blocks.h"
#include "alloc/cache/cache_trace.h"
#include "base/fork_guard.h"

#define MAX_TRACE_ENTRIES ((uint64_t)1 << 26) /* of one queue: 2 GiB of trace */
#define SMALL_DIVISOR 8        /* blocks up to this part of a chunk are small */
#define ROUNDING_DIVISOR 128   /* part of a block that whole chunks may cost */
#define MAX_HOST_CHUNKS 16384  /* a quarter of the default vm.max_map_count */
#define QUARANTINE_BYTES ((uint64_t)64 << 20)
#define MAX_REQUEST_BYTES ((uint64_t)1 << 62) /* so that rounding up cannot overflow */
#define MAX_WAITS 100 /* of one climb: other threads may take the freed memory each time */

/* ---- create and destroy ---- */

static bool is_alive(const lade_cache *cache)
{
  return atomic_load_explicit(cache->is_alive, memory_order_relaxed);
}

static int sizes_init(lade_cache *cache, const struct lade_cache_params *params)
{
  struct lade_device_info info;
  lade_device_get_info(params->device, &info);
  cache->limit_bytes = params->limit_bytes ? params->limit_bytes : info.capacity_bytes;
  cache->chunk_bytes = info.chunk_bytes;
  uint64_t max_bytes = LADE_MIN(cache->limit_bytes, info.capacity_bytes); /* a limit may exceed the device */
  while (info.is_unified && max_bytes / cache->chunk_bytes > MAX_HOST_CHUNKS)
    cache->chunk_bytes *= 2;
  cache->is_touchable = info.is_unified && !info.is_dry;
  return lade_cache_owners_create(cache, info.chunk_bytes);
}

static int params_check(const struct lade_cache_params *params, struct lade_error *error)
{
  if (!params->device)
    return lade_error_set(error, -EINVAL, "cache: device is NULL; open one with lade_device_open");
  if (params->flags & ~(uint32_t)(LADE_CACHE_DETERMINISTIC | LADE_CACHE_SANITIZE))
    return lade_error_set(error, -EINVAL, "cache: flags 0x%x are unknown", params->flags);
  if (params->n_trace_entries > MAX_TRACE_ENTRIES)
    return lade_error_set(error, -EINVAL, "cache: n_trace_entries is %u, at most %llu are possible",
                          params->n_trace_entries, (unsigned long long)MAX_TRACE_ENTRIES);
  return 0;
}

static void cache_free(lade_cache *cache)
{
  lade_cache_guard_finish(cache);
  lade_cache_shards_free(cache);
  LADE_ARRAY_FREE(&cache->waits);
  LADE_ARRAY_FREE(&cache->spare);
  LADE_ARRAY_FREE(&cache->shares);
  lade_fork_guard_destroy(cache->is_alive);
  free(cache);
}

int lade_cache_create(const struct lade_cache_params *given, struct lade_error *error, lade_cache **ret_cache)
{
  if (!ret_cache)
    return lade_error_set(error, -EINVAL, "lade_cache_create: ret_cache is NULL");
  struct lade_cache_params own, *params = &own;
  int code = lade_struct_read("lade_cache_params", given, &own, sizeof(own), error);
  if (!code)
    code = params_check(params, error);
  if (code)
    return code;
  lade_cache *cache = calloc(1, sizeof(*cache));
  if (!cache)
    return lade_error_set(error, -ENOMEM, "cache: out of host memory");
  cache->device = params->device;
  cache->flags = params->flags;
  cache->spill = params->spill;
  cache->spill_arg = params->spill_arg;
  cache->pools = &cache->common;
  cache->n_queues = 1;
  cache->queues[0].pool = &cache->common;
  cache->n_tags = 1;
  strcpy(cache->tags[0].name, "untagged");
  lade_cache_trace_init(cache, params->n_trace_entries);
  code = sizes_init(cache, params);
  cache->is_alive = lade_fork_guard_create();
  if (!code && !cache->is_alive)
    code = -ENOMEM;
  if (!code)
    code = lade_cache_shard_create(cache, 0);
  cache->queues[0].shard = cache->shards[0];
  if (!code && params->flags & LADE_CACHE_SANITIZE)
    code = lade_cache_guard_init(cache, params->quarantine_bytes ? params->quarantine_bytes : QUARANTINE_BYTES);
  if (code) {
    cache_free(cache);
    return lade_error_set(error, code, "cache: out of host memory");
  }
  *ret_cache = cache;
  return 0;
}

static void pools_destroy(lade_cache *cache, bool is_child)
{
  for (struct lade_cache_pool *pool = cache->pools, *next; pool; pool = next) {
    next = pool->next;
    if (!is_child)
      lade_cache_pool_clear(cache, pool);
    if (pool != &cache->common)
      free(pool);
  }
}

/*
 * In a child of fork, free only the inherited heap memory and return nothing to the device. Bins and segments stay. All
 * of the cache stays if a thread that the child lacks was changing it.
 */
void lade_cache_destroy(lade_cache *cache)
{
  if (!cache)
    return;
  bool is_child = !is_alive(cache);
  if (is_child && !lade_lock_try(&cache->lock))
    return;
  if (!is_child)
    lade_cache_wait_all(cache, true);
  if (!is_child)
    lade_cache_shares_close(cache);
  pools_destroy(cache, is_child);
  if (!is_child)
    lade_cache_spare_release(cache);
  cache_free(cache);
}

/* ---- allocate ---- */

/*
 * Choose the zone, and round to whole chunks if that costs little, which it never does for a small block. The kind is
 * random for the branch predictor, so it is computed, and the bin of the requested size does not wait for the rounding.
 */
static inline enum zone_kind zone_choose(const lade_cache *cache, uint64_t *bytes)
{
  enum zone_kind kind = *bytes > cache->chunk_bytes / SMALL_DIVISOR ? ZONE_LARGE : ZONE_SMALL;
  uint64_t whole_bytes = lade_align_up(*bytes, cache->chunk_bytes);
  if (__builtin_expect((whole_bytes - *bytes) * ROUNDING_DIVISOR <= *bytes, 0))
    *bytes = whole_bytes;
  return kind;
}

/*
 * Cut the excess bytes off a block. Whole chunks start at a chunk if there is space for it, so that all of them can
 * move later.
 *
 * pre: the block is in no list, and there are two descriptors.
 */
static struct cache_block *block_fit(lade_cache *cache, struct cache_block *block, uint64_t bytes)
{
  struct shard *shard = block->segment->zone->shard;
  uint64_t before_bytes = lade_align_up(block->address, cache->chunk_bytes) - block->address;
  if (!(bytes & (cache->chunk_bytes - 1)) && before_bytes && before_bytes + bytes <= block->bytes) {
    struct cache_block *before = block;
    block = lade_cache_block_cut(shard, before, before_bytes);
    block->state = BLOCK_LIVE;
    lade_cache_block_settle(cache, before);
  }
  block->state = BLOCK_FREE;
  struct cache_block *rest = block->bytes > bytes ? lade_cache_block_cut(shard, block, bytes) : NULL;
  block->state = BLOCK_LIVE; /* so the rest does not join it again */
  if (rest)
    lade_cache_block_settle(cache, rest);
  return block;
}

/*
 * Find the better fit of the blocks free for @queue and for every queue; it stays in its list. A zone may have no bins.
 */
static inline struct cache_block *block_find(const struct zone *zone, int queue, uint64_t bytes)
{
  const struct bins *common = zone->bins[0], *own = zone->bins[queue] ? zone->bins[queue] : common;
  return common ? lade_cache_bins_find(own, common, bytes) : NULL;
}

/* Prepare to give @block to @queue, and take it out of its list. NULL without memory. */
static struct cache_block *block_claim(struct cache_block *block, int queue)
{
  struct zone *zone = block ? block->segment->zone : NULL;
  if (!block || !lade_cache_bins_get(zone, queue) || !lade_cache_blocks_prepare(zone->shard, 4))
    return NULL;
  lade_cache_list_remove(zone, block);
  return block;
}

/* Find and claim the best fit in the zones of all shards, or in @zone alone if a block of its own shard is due. */
static struct cache_block *zones_find(const struct zone *zone, int queue, uint64_t bytes)
{
  struct cache_block *best = block_find(zone, queue, bytes);
  bool is_home = lade_cache_home_is_due(zone->shard);
  for (const struct zone *other = zone->pool->zones; other && !is_home; other = other->next)
    if (other != zone && other->kind == zone->kind)
      best = lade_cache_better_fit(best, block_find(other, queue, bytes));
  return block_claim(best, queue);
}

/* Find and claim the best fit among blocks free for other queues. @queue waits for it on the device. */
static struct cache_block *zones_take(lade_cache *cache, const struct zone *zone, int queue, uint64_t bytes)
{
  struct cache_block *best = NULL;
  for (const struct zone *in = zone->pool->zones; in; in = in->next)
    for (int other = 1; other < cache->n_queues && in->kind == zone->kind; other++)
      if (in->bins[other] && cache->queues[other].queue &&
          lade_cache_may_wait(cache, other, lade_cache_queue_count(cache, other)))
        best = lade_cache_better_fit(best, lade_cache_bins_find(in->bins[other], in->bins[other], bytes));
  best = block_claim(best, queue);
  if (!best)
    return NULL;
  lade_cache_wait_event(cache, queue, best->queue, best->count);
  best->queue = (uint8_t)queue;
  best->count = lade_cache_queue_count(cache, queue);
  return best;
}

/* True if any shard has kept memory. */
static bool has_kept(const struct lade_cache_pool *pool)
{
  for (const struct zone *zone = pool->zones; zone; zone = zone->next)
    if (zone->kind == ZONE_KEPT && zone->segments)
      return true;
  return false;
}

/*
 * List the zones to search for a block of @zone, ending with NULL: that zone, then the other kind's, then the kept
 * ones. A private pool has one zone.
 */
static void zones_order(struct zone *zone, struct zone *ret_order[N_ZONES + 1])
{
  struct zone *zones = zone->shard->zones;
  int n = 0;
  ret_order[n++] = zone;
  if (!zone->pool->is_private) {
    ret_order[n++] = &zones[zone->kind == ZONE_SMALL ? ZONE_LARGE : ZONE_SMALL];
    if (has_kept(zone->pool))
      ret_order[n++] = &zones[ZONE_KEPT];
  }
  ret_order[n] = NULL;
}

/* Find a kept block for a large request. Kept memory is searched before chunks are moved or created. */
static struct cache_block *kept_find(const struct zone *zone, int queue, uint64_t bytes)
{
  return zone->kind == ZONE_LARGE ? zones_find(&zone->shard->zones[ZONE_KEPT], queue, bytes) : NULL;
}

/* Find a large block, in kept memory too. If the request recurs in a step that repeats, build one in the kept zone. */
static struct cache_block *kept_search(lade_cache *cache, const struct zone *zone, int queue, uint64_t bytes)
{
  if (zone->kind != ZONE_LARGE)
    return NULL;
  struct cache_block *block = zones_find(zone, queue, bytes);
  if (!block)
    block = kept_find(zone, queue, bytes);
  if (!block && lade_cache_is_kept(cache, bytes))
    lade_cache_place_build(cache, &zone->shard->zones[ZONE_KEPT], queue, bytes, REACH_HOME, &block);
  return block;
}

/* Search the zones in order (step 2). Small and large blocks stay apart as long as there is memory for it. */
static struct cache_block *kinds_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct zone *order[N_ZONES + 1];
  struct cache_block *block = kept_search(cache, zone, queue, bytes);
  zones_order(zone, order);
  for (int i = 0; order[i] && !block; i++) {
    block = zones_find(order[i], queue, bytes);
    if (!block)
      lade_cache_place_build(cache, order[i], queue, bytes, REACH_HOME, &block);
    if (!block)
      lade_cache_place_build(cache, order[i], queue, bytes, REACH_SHARDS, &block);
  }
  return block;
}

/*
 * Climb steps 1 and 2. If a block is due from the queue's own shard but not found there, the search goes on in other
 * shards. A capture may have begun while the climb held no lock.
 */
static struct cache_block *pool_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  if (zone->pool->is_capturing)
    return NULL;
  lade_cache_waits_poll(cache);
  if (cache->flags & LADE_CACHE_SANITIZE)
    lade_cache_guard_drain(cache, false);
  lade_cache_sweep(cache, zone->pool);
  struct cache_block *block = kinds_search(cache, zone, queue, bytes);
  bool is_home = lade_cache_home_is_due(zone->shard);
  if (is_home)
    zone->shard->n_borrowed = 0;
  return !block && is_home ? kinds_search(cache, zone, queue, bytes) : block;
}

/* Climb step 3. NULL for the host, which has no queue to wait, and for signal queues, which run no work. */
static struct cache_block *others_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct zone *order[N_ZONES + 1];
  struct cache_block *block = NULL;
  if (!queue || zone->pool->is_capturing || !lade_queue_runs_work(cache->queues[queue].queue))
    return NULL;
  zones_order(zone, order);
  lade_cache_waits_adopt(cache, queue);
  for (int i = 0; order[i] && !block; i++) {
    block = zones_find(order[i], queue, bytes);
    if (!block)
      block = zones_take(cache, order[i], queue, bytes);
    if (!block)
      lade_cache_place_build(cache, order[i], queue, bytes, REACH_QUEUES, &block);
  }
  return block;
}

/* Release the quarantine of blocks that were freed while no lock was held, because memory is out. */
static void quarantine_empty(lade_cache *cache)
{
  if (cache->flags & LADE_CACHE_SANITIZE)
    lade_cache_guard_drain(cache, true);
}

/*
 * Ask the owner. Another thread that runs out of memory meanwhile waits until that call ends, because the freed memory
 * may suffice for it. Then it takes its own turn. False if the owner gives no more, or for a queue that the owner is
 * forgetting, which waits for this thread.
 */
bool lade_cache_spill(lade_cache *cache, int queue, uint64_t bytes)
{
  if (!cache->spill)
    return false;
  if (cache->is_spilling) {
    while (cache->is_spilling && !cache->queues[queue].is_leaving)
      lade_cache_sleep_all(cache, &cache->n_spilled);
    quarantine_empty(cache);
    return !cache->queues[queue].is_leaving;
  }
  cache->is_spilling = true;
  cache->spiller = pthread_self();
  cache->spill_queue = queue;
  cache->stats.n_spills++;
  lade_cache_unlock_all(cache);
  uint64_t freed_bytes = cache->spill(cache->spill_arg, bytes);
  lade_cache_lock_all(cache);
  cache->is_spilling = false;
  lade_lock_wake_all(&cache->n_spilled);
  quarantine_empty(cache);
  return freed_bytes > 0;
}

static struct cache_block *spill_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct cache_block *block = NULL;
  while (!block && lade_cache_spill(cache, queue, bytes)) {
    block = pool_search(cache, zone, queue, bytes);
    if (!block)
      block = others_search(cache, zone, queue, bytes);
  }
  return block;
}

void lade_cache_wait_and_sweep(lade_cache *cache)
{
  lade_cache_unlock_all(cache);
  lade_cache_wait_all(cache, false);
  lade_cache_lock_all(cache);
  quarantine_empty(cache);
  for (struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    if (!pool->is_capturing)
      lade_cache_sweep(cache, pool);
}

/* Climb step 6. Repeat it while blocks were freed meanwhile and live bytes leave @bytes below the limit. */
static struct cache_block *wait_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct cache_block *block = NULL;
  for (int i = 0; i < MAX_WAITS && !block; i++) {
    uint64_t n_freed = lade_cache_freed_count(cache);
    lade_cache_wait_and_sweep(cache);
    block = pool_search(cache, zone, queue, bytes);
    if (!block)
      block = others_search(cache, zone, queue, bytes);
    if (n_freed == lade_cache_freed_count(cache) || lade_cache_live_bytes(cache) + bytes > cache->limit_bytes)
      break;
  }
  return block;
}

/* Climb steps 5 and 6. */
static struct cache_block *unlocked_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct queue_slot *slot = &cache->queues[queue];
  struct lade_cache_pool *pool = zone->pool;
  slot->n_syncs++;
  pool->n_climbs++;
  struct cache_block *block = spill_search(cache, zone, queue, bytes);
  if (!block)
    block = wait_search(cache, zone, queue, bytes);
  slot->n_syncs--;
  pool->n_climbs--;
  lade_lock_wake_all(&cache->n_synced);
  return block;
}

static struct cache_block *ladder_climb(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  if (zone->pool->is_capturing || bytes > cache->limit_bytes || bytes > MAX_SPAN_BYTES)
    return NULL;
  bool is_crowded = cache->is_crowded && !(cache->flags & LADE_CACHE_DETERMINISTIC);
  struct cache_block *block = zones_find(zone, queue, bytes);
  struct cache_block *kept = block || !lade_cache_is_kept(cache, bytes) ? NULL : kept_find(zone, queue, bytes);
  if (kept)
    return kept; /* the normal case of a steady step */
  zone->shard->n_crowded += is_crowded;
  if (!block)
    block = pool_search(cache, zone, queue, bytes);
  if (block) {
    zone->shard->n_borrowed += is_crowded && block->segment->zone->shard != zone->shard;
    return block;
  }
  cache->stats.num_alloc_retries++;
  block = others_search(cache, zone, queue, bytes);
  if (!block && cache->flags & LADE_CACHE_SANITIZE && lade_cache_guard_drain(cache, true))
    block = pool_search(cache, zone, queue, bytes);
  return block ? block : unlocked_search(cache, zone, queue, bytes);
}

/*
 * Make a free block live.
 *
 * pre: the counters have space for it below their ceilings.
 */
static inline void block_use(lade_cache *cache, struct shard *shard, struct cache_block *block, int queue,
                             const struct lade_cache_request *request)
{
  block->state = BLOCK_LIVE;
  block->queue = (uint8_t)queue;
  block->tag = (uint8_t)request->tag;
  block->place = request->place;
  block->requested_bytes = request->bytes;
  lade_cache_index_add(shard, block);
  lade_cache_meters_add(shard, block);
  lade_cache_trace_add(cache, shard, LADE_CACHE_ALLOC, block, request->place);
}

static uint64_t guard_bytes(const lade_cache *cache)
{
  return cache->flags & LADE_CACHE_SANITIZE ? GUARD_BYTES : 0;
}

static int request_check(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error)
{
  if (request->bytes == 0 || request->bytes > MAX_REQUEST_BYTES)
    return lade_error_set(error, -EINVAL, "cache: a request for %llu bytes; from 1 byte to 2^62 are possible",
                          (unsigned long long)request->bytes);
  if (!is_alive(cache))
    return lade_error_set(error, -EPERM, "cache: this process is a fork of the one that the cache belongs to; create "
                          "device and cache after the fork");
  return 0;
}

static inline struct zone *zone_of_request(const lade_cache *cache, const struct queue_slot *slot, uint64_t *bytes)
{
  struct shard *shard = atomic_load_explicit(&slot->shard, memory_order_relaxed);
  return slot->pool->is_private ? &slot->pool->own : &shard->zones[zone_choose(cache, bytes)];
}

static int queue_refuse(int code, struct lade_error *error)
{
  if (code == -EINVAL)
    return lade_error_set(error, code, "cache: the queue is of another device than the cache");
  if (code == -ENOMEM)
    return lade_error_set(error, code, "cache: out of host memory");
  return lade_error_set(error, code, "cache: more than %d queues; lade_cache_forget those that are gone",
                        LADE_CACHE_MAX_QUEUES);
}

/* Serve a request. Called with all locks. */
static int block_alloc(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error,
                       struct cache_block **ret_block)
{
  int queue = lade_cache_queue_number(cache, request->queue);
  if (queue < 0)
    return queue_refuse(queue, error);
  if (request->tag < 0 || request->tag >= cache->n_tags)
    return lade_error_set(error, -EINVAL, "cache: tag %d is none of lade_cache_tag_add's", request->tag);
  if (lade_cache_is_spiller(cache))
    return lade_error_set(error, -EDEADLK, "cache: the spill function may not allocate");
  uint64_t bytes = lade_align_up(request->bytes, UNIT_BYTES) + 2 * guard_bytes(cache);
  struct zone *zone = zone_of_request(cache, &cache->queues[queue], &bytes);
  if (!lade_cache_blocks_prepare(zone->shard, 4) || !lade_cache_bins_get(zone, queue))
    return lade_error_set(error, -ENOMEM, "cache: out of host memory");
  struct cache_block *block = block_claim(block_find(zone, queue, bytes), queue);
  if (!block)
    block = ladder_climb(cache, zone, queue, bytes);
  if (!block)
    return lade_cache_refuse(cache, request, zone, bytes, error);
  bool may_touch = cache->flags & LADE_CACHE_SANITIZE && cache->is_touchable && !zone->pool->is_capturing;
  bool is_quiet = may_touch && lade_cache_is_over(cache, block->queue, block->count);
  *ret_block = block_fit(cache, block, bytes);
  (*ret_block)->is_guarded = is_quiet;
  struct shard *shard = (*ret_block)->segment->zone->shard;
  lade_cache_meters_raise(cache, shard, request->tag, request->bytes, (*ret_block)->bytes);
  block_use(cache, shard, *ret_block, queue, request);
  return 0;
}

/*
 * Cut the bytes over @bytes off a free block that is in no list, and put them into their bin. The block's left
 * neighbour is not free, so the rest can only join its right neighbour.
 */
static inline void block_trim(lade_cache *cache, struct zone *zone, struct cache_block *block, uint64_t bytes)
{
  if (block->bytes == bytes)
    return;
  struct cache_block *rest = lade_cache_block_cut(zone->shard, block, bytes);
  block->state = BLOCK_LIVE;
  if (!rest->after || rest->after->state == BLOCK_FREE)
    lade_cache_block_settle(cache, rest);
  else
    lade_cache_bin_enter(zone->bins[rest->queue], rest);
}

/*
 * Serve a request in the common case, from its own zone, with the lock of the slot's shard alone. NULL in any other
 * case, and for a request that is to be refused.
 */
static inline struct cache_block *block_serve(lade_cache *cache, const struct queue_slot *slot,
                                              const struct lade_cache_request *request)
{
  uint64_t bytes = lade_align_up(request->bytes, UNIT_BYTES);
  struct zone *zone = zone_of_request(cache, slot, &bytes);
  struct shard *shard = zone->shard;
  int queue = (int)(slot - cache->queues);
  if (cache->is_spilling || (unsigned)request->tag >= (unsigned)cache->n_tags || !zone->bins[queue] ||
      shard->n_unused < 2 || !lade_cache_meters_have_room(shard, request->tag, request->bytes, bytes))
    return NULL;
  struct cache_block *block = block_find(zone, queue, bytes);
  if (!block)
    return NULL;
  lade_cache_bin_leave(zone->bins[block->queue], block);
  if (bytes & (cache->chunk_bytes - 1))
    block_trim(cache, zone, block, bytes);
  else
    block = block_fit(cache, block, bytes);
  block_use(cache, shard, block, queue, request);
  return block;
}

/* Allocate with one shard's lock. Only under its lock is the slot's shard certain. 0 if this is not the common case. */
static uint64_t shard_try_alloc(lade_cache *cache, const struct lade_cache_request *request)
{
  struct queue_slot *slot = lade_cache_slot_find(cache, request->queue);
  if (!slot || cache->flags & LADE_CACHE_SANITIZE)
    return 0;
  struct shard *shard = atomic_load_explicit(&slot->shard, memory_order_acquire);
  uint64_t address = 0;
  lade_lock_lock(&shard->lock);
  if (slot->queue == request->queue && slot->shard == shard) {
    const struct cache_block *block = block_serve(cache, slot, request);
    address = block ? block->address : 0;
  }
  lade_lock_unlock(&shard->lock);
  return address;
}

int lade_cache_alloc(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error,
                     void **ret_address)
{
  if (!cache || !request || !ret_address)
    return lade_error_set(error, -EINVAL, "lade_cache_alloc: cache or request or ret_address is NULL");
  struct lade_cache_request own;
  struct cache_block *block = NULL;
  int code = 0;
  if (request->struct_size != sizeof(own)) { /* most programs are built against this version */
    code = lade_struct_read("lade_cache_request", request, &own, sizeof(own), error);
    request = &own;
  }
  if (!code)
    code = request_check(cache, request, error);
  if (code)
    return code;
  uint64_t address = shard_try_alloc(cache, request);
  if (address) {
    *ret_address = (void *)(uintptr_t)address;
    return 0;
  }
  lade_cache_lock_all(cache);
  code = block_alloc(cache, request, error, &block);
  if (!code) {
    if (cache->flags & LADE_CACHE_SANITIZE)
      lade_cache_guard_fill(block);
    *ret_address = (void *)(uintptr_t)(block->address + guard_bytes(cache));
  }
  lade_cache_unlock_all(cache);
  return code;
}

/* ---- free ---- */

/* Return the link to the live block with address @address, or NULL. Called with all locks. */
static struct cache_block **block_lookup(const lade_cache *cache, const void *address, struct shard **ret_shard)
{
  uint64_t start = (uint64_t)(uintptr_t)address - guard_bytes(cache);
  *ret_shard = lade_cache_owner_get(cache, start);
  struct cache_block **link = *ret_shard ? lade_cache_index_find(*ret_shard, start) : NULL;
  return link && *link ? link : NULL;
}

/* End a block's life. Its queue is done with it when all work submitted by now is. */
static inline void block_end(const lade_cache *cache, struct shard *shard, struct cache_block **link)
{
  struct cache_block *block = *link;
  lade_cache_index_remove(link);
  block->count = lade_cache_queue_count(cache, block->queue);
  lade_cache_stamp_age(shard, block->count);
  lade_cache_meters_sub(shard, block);
}

/*
 * Free a block in the common case: no queue but its own has used it. Called with the shard's lock. False in any other
 * case.
 */
static inline bool block_return(lade_cache *cache, struct shard *shard, uint64_t address, const char *place)
{
  struct cache_block **link = lade_cache_index_find(shard, address), *block = *link;
  if (!block || block->is_used || !lade_cache_meters_may_fall(shard, block->bytes))
    return false;
  block_end(cache, shard, link);
  lade_cache_trace_add(cache, shard, LADE_CACHE_FREE, block, place);
  block->state = BLOCK_FREE;
  if (!lade_cache_block_return(shard, block))
    lade_cache_block_settle(cache, block);
  return true;
}

/*
 * Free with one shard's lock. The map is stale only if no block is live at @address; then it is in no index and is not
 * found.
 */
static bool shard_try_free(lade_cache *cache, uint64_t address, const char *place)
{
  struct shard *shard = cache->flags & LADE_CACHE_SANITIZE ? NULL : lade_cache_owner_get(cache, address);
  if (!shard)
    return false;
  lade_lock_lock(&shard->lock);
  bool is_done = block_return(cache, shard, address, place);
  lade_lock_unlock(&shard->lock);
  return is_done;
}

int lade_cache_free(lade_cache *cache, void *address, const char *place, struct lade_error *error)
{
  if (!cache)
    return lade_error_set(error, -EINVAL, "lade_cache_free: cache is NULL");
  if (!address)
    return 0;
  if (!is_alive(cache))
    return lade_error_set(error, -EPERM, "cache: this process is a fork of the one that the cache belongs to");
  if (shard_try_free(cache, (uint64_t)(uintptr_t)address, place))
    return 0;
  int code = 0;
  struct shard *shard = NULL;
  lade_cache_lock_all(cache);
  struct cache_block **link = block_lookup(cache, address, &shard), *block = link ? *link : NULL;
  if (block) {
    lade_cache_meters_lower(cache, shard, block->bytes);
    block_end(cache, shard, link);
    block->free_place = place;
    if (cache->flags & LADE_CACHE_SANITIZE)
      lade_cache_guard_keep(cache, block);
    else
      lade_cache_block_release(cache, block, true);
  } else {
    code = lade_cache_guard_wrong_free(cache, (uint64_t)(uintptr_t)address, place, error);
  }
  lade_cache_unlock_all(cache);
  return code;
}

int lade_cache_record(lade_cache *cache, void *address, lade_queue *queue)
{
  if (!cache || !queue)
    return -EINVAL;
  if (!is_alive(cache))
    return -EPERM;
  struct shard *shard = NULL;
  lade_cache_lock_all(cache);
  struct cache_block **link = block_lookup(cache, address, &shard);
  int number = link ? lade_cache_queue_number(cache, queue) : -EINVAL;
  int code = number < 0 ? number : lade_cache_block_record(cache, *link, number);
  lade_cache_unlock_all(cache);
  return code;
}

/* ---- trim, blocks ---- */

int lade_cache_trim(lade_cache *cache, uint64_t keep_bytes)
{
  if (!cache)
    return -EINVAL;
  if (!is_alive(cache))
    return -EPERM;
  lade_cache_lock_all(cache);
  lade_cache_waits_poll(cache);
  for (struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    if (!pool->is_capturing)
      lade_cache_sweep(cache, pool);
  int code = lade_cache_chunks_trim(cache, keep_bytes);
  lade_cache_unlock_all(cache);
  return code;
}

int lade_cache_get_block(lade_cache *cache, const void *address, struct lade_cache_block *ret_block)
{
  if (!cache || !ret_block)
    return -EINVAL;
  if (!is_alive(cache))
    return -EPERM;
  lade_cache_lock_all(cache);
  struct shard *shard = NULL;
  struct cache_block **link = block_lookup(cache, address, &shard);
  const struct cache_block *block = link ? *link : NULL;
  if (block)
    *ret_block = (struct lade_cache_block){
        .address = (void *)(uintptr_t)(block->address + guard_bytes(cache)),
        .requested_bytes = block->requested_bytes,
        .bytes = block->bytes,
        .offset = block->address + guard_bytes(cache) - block->segment->base,
        .segment = block->segment->number,
        .tag = block->tag,
        .queue = cache->queues[block->queue].queue,
    };
  lade_cache_unlock_all(cache);
  return block ? 0 : -EINVAL;
}
