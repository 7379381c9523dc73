/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caching allocator: the public calls, and the ladder that an allocation goes when nothing fits at once.
 *
 * A request is rounded to 512 bytes and goes to one of two zones with segments of their own: small blocks, of which
 * each would pin a chunk among large ones, and the rest; a third is kept for what comes again in a step that repeats
 * (cache_steps.c), and is looked in on the ladder alone. A block that fills whole chunks, or nearly (the rest would
 * cost less than 1/128), starts at a chunk where there is room for it, so that all of what it leaves can move; other
 * sizes are packed by the byte. Then it is the best fit of two lists: what is free for this queue, and for everybody.
 * That is the common case: lade_cache_alloc down to block_serve, lade_cache_free down to block_return, all of it
 * inline. An allocation touches the queue's slot, its shard (lock, counters, the end of the trace's ring), the bits
 * and one or two heads of a zone's bins, the block, the neighbour after it where something is cut off, and a bucket of
 * the index; a free the map of owners, the shard, the bucket, the block and both neighbours, and the bins that they
 * leave and enter. All else is done with all locks.
 *
 * Rejected: a third zone for whole chunks alone. It looks tidier, and a program whose sizes change from step to step
 * then moves its memory between the zones in every one of them, and ends with the peak of both.
 *
 * The ladder, from free to dear, searching again after each step, in the block's own zone first and then in the others:
 *   0. the best fit of what is free for this queue or for everybody in the shards of other queues
 *   1. let go of what waiting blocks no longer wait for; give what queues are done with to everybody; coalesce
 *   2. bring idle chunks from wherever they lie, create chunks below the limit (cache_chunks.c)
 *   3. take from other queues, by events on the device
 *   4. let the sanitizer's quarantine go
 *   5. call the owner's spill function, as long as it gives something
 *   6. wait for the queues
 * and only then say that memory is out. No lock is held in steps 5 and 6, so frees go on meanwhile; the queue that is
 * asked for and the pool stay, since who forgets the one or destroys the other finds that a climb is under way. What
 * was freed while step 6 waited may be in use by work that was submitted meanwhile, so it is made again then.
 *
 * A pool under capture stops before step 0. A trainer climbs to 1 and 2 while it trains its first few steps; in a
 * steady one it makes no memory call (tests/unit/test_cache_steps.c counts): what is kept for it is found before 1.
 *
 * Fork. A page that the kernel hands to children as zeroes says whose the cache is, at the price of one load; a lock
 * that was held at the moment of the fork is never touched by the child.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache_blocks.h"
#include "alloc/cache_trace.h"
#include "base/alive.h"

#define MAX_TRACE_ENTRIES ((uint64_t)1 << 26)
#define SMALL_DIVISOR 8        /* blocks up to this part of a chunk are small */
#define ROUNDING_DIVISOR 128   /* whole chunks may cost this part of a block */
#define MAX_HOST_CHUNKS 16384  /* a quarter of vm.max_map_count as shipped */
#define QUARANTINE_BYTES ((uint64_t)64 << 20)
#define MAX_REQUEST_BYTES ((uint64_t)1 << 62)
#define MAX_WAITS 100 /* of one climb: others may take what is freed again and again */

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
  uint64_t most_bytes = LADE_MIN(cache->limit_bytes, info.capacity_bytes); /* a limit may be one in name only */
  while (info.is_unified && most_bytes / cache->chunk_bytes > MAX_HOST_CHUNKS)
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
  lade_alive_destroy(cache->is_alive);
  free(cache);
}

int lade_cache_create(const struct lade_cache_params *given, struct lade_error *error, lade_cache **ret_cache)
{
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
  cache->is_alive = lade_alive_create();
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
 * A child gives back nothing of the device's, only what it inherited on the heap: bins and segments stay behind, and
 * all of it if it was just being changed, by a thread that the child does not have.
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
 * Blocks are made whole chunks where that costs little, which it does for none that is small. Which kind it is goes
 * either way at random, so it is computed, and the bin of the size that is asked for does not wait for the rounding.
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
 * Cut what is too much off a block that is in no list. Whole chunks start at a chunk where there is room for it:
 * then what they leave later can move, all of it. Needs two descriptors.
 */
static struct block *block_fit(lade_cache *cache, struct block *block, uint64_t bytes)
{
  struct shard *shard = block->segment->zone->shard;
  uint64_t before_bytes = lade_align_up(block->address, cache->chunk_bytes) - block->address;
  if (!(bytes & (cache->chunk_bytes - 1)) && before_bytes && before_bytes + bytes <= block->bytes) {
    struct block *before = block;
    block = lade_cache_block_cut(shard, before, before_bytes);
    block->state = BLOCK_LIVE;
    lade_cache_block_settle(cache, before);
  }
  block->state = BLOCK_FREE;
  struct block *rest = block->bytes > bytes ? lade_cache_block_cut(shard, block, bytes) : NULL;
  block->state = BLOCK_LIVE; /* so that the rest does not join it again */
  if (rest)
    lade_cache_block_settle(cache, rest);
  return block;
}

/* The better fit of what is free for @queue and for everybody; still in its list. A zone without blocks has no bins. */
static inline struct block *block_find(const struct zone *zone, int queue, uint64_t bytes)
{
  const struct bins *common = zone->bins[0], *own = zone->bins[queue] ? zone->bins[queue] : common;
  return common ? lade_cache_bins_find(own, common, bytes) : NULL;
}

/* Have what it takes to make @block one of @queue's, and take it out of its list. NULL when memory is out. */
static struct block *block_claim(struct block *block, int queue)
{
  struct zone *zone = block ? block->segment->zone : NULL;
  if (!block || !lade_cache_bins_get(zone, queue) || !lade_cache_blocks_prepare(zone->shard, 4))
    return NULL;
  lade_cache_list_remove(zone, block);
  return block;
}

/* The same in the zones of all shards, or at home when that is due. */
static struct block *zones_find(const struct zone *zone, int queue, uint64_t bytes)
{
  struct block *best = block_find(zone, queue, bytes);
  bool is_home = lade_cache_home_is_due(zone->shard);
  for (const struct zone *other = zone->pool->zones; other && !is_home; other = other->next)
    if (other != zone && other->kind == zone->kind)
      best = lade_cache_better_fit(best, block_find(other, queue, bytes));
  return block_claim(best, queue);
}

/* The best fit of what is free for any other queue; @queue waits for it on the device. */
static struct block *zones_take(lade_cache *cache, const struct zone *zone, int queue, uint64_t bytes)
{
  struct block *best = NULL;
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

/* Is anything kept, in whatever shard? */
static bool has_kept(const struct lade_cache_pool *pool)
{
  for (const struct zone *zone = pool->zones; zone; zone = zone->next)
    if (zone->kind == ZONE_KEPT && zone->segments)
      return true;
  return false;
}

/*
 * Where to look for a place that belongs into @zone, NULL at the end: there, then in the other kind's, at last in what
 * is kept. A private pool has one zone.
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

/* For a large request what is kept comes before what has to be made. */
static struct block *kept_find(const struct zone *zone, int queue, uint64_t bytes)
{
  return zone->kind == ZONE_LARGE ? zones_find(&zone->shard->zones[ZONE_KEPT], queue, bytes) : NULL;
}

/* It is made for those of a step that repeats. */
static struct block *kept_search(lade_cache *cache, const struct zone *zone, int queue, uint64_t bytes)
{
  if (zone->kind != ZONE_LARGE)
    return NULL;
  struct block *block = zones_find(zone, queue, bytes);
  if (!block)
    block = kept_find(zone, queue, bytes);
  if (!block && lade_cache_is_kept(cache, bytes))
    lade_cache_place_build(cache, &zone->shard->zones[ZONE_KEPT], queue, bytes, REACH_HOME, &block);
  return block;
}

/* Step 2. Sizes live apart as long as there is memory for it. */
static struct block *kinds_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct zone *order[N_ZONES + 1];
  struct block *block = kept_search(cache, zone, queue, bytes);
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
 * Steps 1 and 2. Who is to be served at home and cannot be goes on borrowing. A capture may have begun while the climb
 * had no lock.
 */
static struct block *pool_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  if (zone->pool->is_capturing)
    return NULL;
  lade_cache_waits_poll(cache);
  if (cache->flags & LADE_CACHE_SANITIZE)
    lade_cache_guard_drain(cache, false);
  lade_cache_sweep(cache, zone->pool);
  struct block *block = kinds_search(cache, zone, queue, bytes);
  bool is_home = lade_cache_home_is_due(zone->shard);
  if (is_home)
    zone->shard->n_borrowed = 0;
  return !block && is_home ? kinds_search(cache, zone, queue, bytes) : block;
}

/* Step 3. The host has no queue that could wait, and a signal's runs nothing that could. */
static struct block *others_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct zone *order[N_ZONES + 1];
  struct block *block = NULL;
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

/* What was freed while no lock was held is not kept back where memory is out. */
static void quarantine_empty(lade_cache *cache)
{
  if (cache->flags & LADE_CACHE_SANITIZE)
    lade_cache_guard_drain(cache, true);
}

/*
 * Ask the owner. Another thread that is out of memory meanwhile waits until that is done, and then for its own turn:
 * what the owner gives last may be what it needs. Returns false when there is nothing more to be had, and for a queue
 * that the owner is forgetting, which waits for this thread.
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
  lade_lock_rouse(&cache->n_spilled);
  quarantine_empty(cache);
  return freed_bytes > 0;
}

static struct block *spill_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct block *block = NULL;
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

/* Again as long as something was freed meanwhile and what lives leaves room. */
static struct block *wait_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct block *block = NULL;
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

/* Steps 5 and 6. */
static struct block *unlocked_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct queue_slot *slot = &cache->queues[queue];
  struct lade_cache_pool *pool = zone->pool;
  slot->n_syncs++;
  pool->n_climbs++;
  struct block *block = spill_search(cache, zone, queue, bytes);
  if (!block)
    block = wait_search(cache, zone, queue, bytes);
  slot->n_syncs--;
  pool->n_climbs--;
  lade_lock_rouse(&cache->n_synced);
  return block;
}

static struct block *ladder_climb(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  if (zone->pool->is_capturing || bytes > cache->limit_bytes || bytes > MAX_SPAN_BYTES)
    return NULL;
  bool is_crowded = cache->is_crowded && !(cache->flags & LADE_CACHE_DETERMINISTIC);
  struct block *block = zones_find(zone, queue, bytes);
  struct block *kept = block || !lade_cache_is_kept(cache, bytes) ? NULL : kept_find(zone, queue, bytes);
  if (kept)
    return kept; /* as in each step that has come to rest */
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

/* Counters have room for it. */
static inline void block_use(lade_cache *cache, struct shard *shard, struct block *block, int queue,
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

bool lade_cache_is_spiller(const lade_cache *cache)
{
  return cache->is_spilling && pthread_equal(cache->spiller, pthread_self());
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

/* Called with all locks. */
static int block_alloc(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error,
                       struct block **ret_block)
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
  struct block *block = block_claim(block_find(zone, queue, bytes), queue);
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
 * Cut what is over @bytes off a free block that is in no list, and put it into its bin. What comes before the block is
 * not free, so what is cut off has only one neighbour that it may have to be joined with.
 */
static inline void block_trim(lade_cache *cache, struct zone *zone, struct block *block, uint64_t bytes)
{
  if (block->bytes == bytes)
    return;
  struct block *rest = lade_cache_block_cut(zone->shard, block, bytes);
  block->state = BLOCK_LIVE;
  if (!rest->after || rest->after->state == BLOCK_FREE)
    lade_cache_block_settle(cache, rest);
  else
    lade_cache_bin_enter(zone->bins[rest->queue], rest);
}

/*
 * The common case, with the lock of the slot's shard alone: what fits lies in its own zone. NULL for any other, and for
 * what is to be refused.
 */
static inline struct block *block_serve(lade_cache *cache, const struct queue_slot *slot,
                                        const struct lade_cache_request *request)
{
  uint64_t bytes = lade_align_up(request->bytes, UNIT_BYTES);
  struct zone *zone = zone_of_request(cache, slot, &bytes);
  struct shard *shard = zone->shard;
  int queue = (int)(slot - cache->queues);
  if (cache->is_spilling || (unsigned)request->tag >= (unsigned)cache->n_tags || !zone->bins[queue] ||
      shard->n_unused < 2 || !lade_cache_meters_have_room(shard, request->tag, request->bytes, bytes))
    return NULL;
  struct block *block = block_find(zone, queue, bytes);
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

/* Whose shard it is is known for sure only with its lock. 0 when it was not this simple. */
static uint64_t shard_try_alloc(lade_cache *cache, const struct lade_cache_request *request)
{
  struct queue_slot *slot = lade_cache_slot_find(cache, request->queue);
  if (!slot || cache->flags & LADE_CACHE_SANITIZE)
    return 0;
  struct shard *shard = atomic_load_explicit(&slot->shard, memory_order_acquire);
  uint64_t address = 0;
  lade_lock_take(&shard->lock);
  if (slot->queue == request->queue && slot->shard == shard) {
    const struct block *block = block_serve(cache, slot, request);
    address = block ? block->address : 0;
  }
  lade_lock_give(&shard->lock);
  return address;
}

int lade_cache_alloc(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error,
                     void **ret_address)
{
  struct lade_cache_request own;
  struct block *block = NULL;
  int code = 0;
  if (request->struct_size != sizeof(own)) { /* most programs are as old as their library */
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

/* What points to the live block that was handed out as @address, or NULL. Called with all locks. */
static struct block **block_lookup(const lade_cache *cache, const void *address, struct shard **ret_shard)
{
  uint64_t start = (uint64_t)(uintptr_t)address - guard_bytes(cache);
  *ret_shard = lade_cache_owner_get(cache, start);
  struct block **link = *ret_shard ? lade_cache_index_find(*ret_shard, start) : NULL;
  return link && *link ? link : NULL;
}

/* It lives no more; its queue is done with it when all that was submitted by now is. */
static inline void block_end(const lade_cache *cache, struct shard *shard, struct block **link)
{
  struct block *block = *link;
  lade_cache_index_remove(link);
  block->count = lade_cache_queue_count(cache, block->queue);
  lade_cache_stamp_age(shard, block->count);
  lade_cache_meters_sub(shard, block);
}

/* The common case: nobody but its queue has used the block. Called with the shard's lock; false when it is another. */
static inline bool block_return(lade_cache *cache, struct shard *shard, uint64_t address, const char *place)
{
  struct block **link = lade_cache_index_find(shard, address), *block = *link;
  if (!block || block->is_used || !lade_cache_meters_may_fall(shard, block->bytes))
    return false;
  block_end(cache, shard, link);
  lade_cache_trace_add(cache, shard, LADE_CACHE_FREE, block, place);
  block->state = BLOCK_FREE;
  if (!lade_cache_block_return(shard, block))
    lade_cache_block_settle(cache, block);
  return true;
}

/* The shard may be another's by now only when nothing lives at @address: then it is in no index. */
static bool shard_try_free(lade_cache *cache, uint64_t address, const char *place)
{
  struct shard *shard = cache->flags & LADE_CACHE_SANITIZE ? NULL : lade_cache_owner_get(cache, address);
  if (!shard)
    return false;
  lade_lock_take(&shard->lock);
  bool is_done = block_return(cache, shard, address, place);
  lade_lock_give(&shard->lock);
  return is_done;
}

int lade_cache_free(lade_cache *cache, void *address, const char *place, struct lade_error *error)
{
  if (!address)
    return 0;
  if (!is_alive(cache))
    return lade_error_set(error, -EPERM, "cache: this process is a fork of the one that the cache belongs to");
  if (shard_try_free(cache, (uint64_t)(uintptr_t)address, place))
    return 0;
  int code = 0;
  struct shard *shard = NULL;
  lade_cache_lock_all(cache);
  struct block **link = block_lookup(cache, address, &shard), *block = link ? *link : NULL;
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
  if (!is_alive(cache))
    return -EPERM;
  struct shard *shard = NULL;
  lade_cache_lock_all(cache);
  struct block **link = block_lookup(cache, address, &shard);
  int number = link ? lade_cache_queue_number(cache, queue) : -EINVAL;
  int code = number < 0 ? number : lade_cache_block_record(cache, *link, number);
  lade_cache_unlock_all(cache);
  return code;
}

/* ---- trim, blocks ---- */

int lade_cache_trim(lade_cache *cache, uint64_t keep_bytes)
{
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
  if (!is_alive(cache))
    return -EPERM;
  lade_cache_lock_all(cache);
  struct shard *shard = NULL;
  struct block **link = block_lookup(cache, address, &shard);
  const struct block *block = link ? *link : NULL;
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
