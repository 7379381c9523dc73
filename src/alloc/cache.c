/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caching allocator: the public calls, and the ladder that an allocation goes when nothing fits at once.
 *
 * A request is rounded to 512 bytes and goes to one of two zones with segments of their own: small blocks, of which
 * each would pin a chunk among large ones, and the rest. A block that fills whole chunks, or nearly (the rest would
 * cost less than 1/128), starts at a chunk where there is room for it, so that all of what it leaves can move; other
 * sizes are packed by the byte. Then it is the best fit of two lists: what is free for this queue, and for everybody.
 * Both calls are some tens of nanoseconds in this common case, under one lock, statistics and trace included.
 *
 * Rejected: a third zone for whole chunks alone. It looks tidier, and a program whose sizes change from step to step
 * then moves its memory between the zones in every one of them, and ends with the peak of both.
 *
 * The ladder, from free to dear, searching again after each step, in the block's own zone first and then in the other:
 *   1. let go of what waiting blocks no longer wait for; give what queues are done with to everybody; coalesce
 *   2. bring idle chunks from wherever they lie, create chunks below the limit (cache_chunks.c)
 *   3. take from other queues, by events on the device
 *   4. let the sanitizer's quarantine go
 *   5. call the owner's spill function, as long as it gives something
 *   6. wait for the queues
 * and only then say that memory is out. The lock is not held in steps 5 and 6, so frees go on meanwhile.
 *
 * A pool under capture stops before step 1. The first five pages of a trainer's life take steps 1 and 2; a
 * steady one takes none (tests/unit/test_cache.c counts).
 *
 * Fork. A page that the kernel hands to children as zeroes says whose the cache is, at the price of one load; a lock
 * that was held at the moment of the fork is never touched by the child.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/cache_internal.h"

#define ALIVE_BYTES 4096
#define MAX_TRACE_ENTRIES ((uint64_t)1 << 26)
#define SMALL_DIVISOR 8        /* blocks up to this part of a chunk are small */
#define ROUNDING_DIVISOR 128   /* whole chunks may cost this part of a block */
#define MAX_HOST_CHUNKS 16384  /* a quarter of vm.max_map_count as shipped */
#define QUARANTINE_BYTES ((uint64_t)64 << 20)

/* ---- create and destroy ---- */

static bool is_alive(const lade_cache *cache)
{
  return atomic_load_explicit(cache->is_alive, memory_order_relaxed);
}

static int alive_create(lade_cache *cache)
{
  void *page = mmap(NULL, ALIVE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return -ENOMEM;
  madvise(page, ALIVE_BYTES, MADV_WIPEONFORK); /* best effort: Linux 4.14 */
  cache->is_alive = page;
  atomic_store(cache->is_alive, 1);
  return 0;
}

static void pool_init(struct lade_cache_pool *pool, bool is_private)
{
  pool->is_private = is_private;
  for (int kind = 0; kind < N_ZONES; kind++) {
    pool->zones[kind].pool = pool;
    pool->zones[kind].kind = (enum zone_kind)kind;
  }
}

static void sizes_init(lade_cache *cache, const struct lade_cache_params *params)
{
  struct lade_device_info info;
  lade_device_get_info(params->device, &info);
  cache->limit_bytes = params->limit_bytes ? params->limit_bytes : info.capacity_bytes;
  cache->chunk_bytes = info.chunk_bytes;
  while (info.is_unified && cache->limit_bytes / cache->chunk_bytes > MAX_HOST_CHUNKS)
    cache->chunk_bytes *= 2;
  cache->is_touchable = info.is_unified && !info.is_dry;
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
  for (int i = 0; i < cache->slabs.n; i++)
    free(cache->slabs.items[i]);
  LADE_ARRAY_FREE(&cache->slabs);
  LADE_ARRAY_FREE(&cache->waits);
  LADE_ARRAY_FREE(&cache->spare);
  LADE_ARRAY_FREE(&cache->shares);
  free(cache->index);
  free(cache->trace);
  if (cache->is_alive)
    munmap((void *)cache->is_alive, ALIVE_BYTES);
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
  pool_init(&cache->common, false);
  sizes_init(cache, params);
  code = alive_create(cache);
  if (!code && !lade_cache_blocks_prepare(cache, 0))
    code = -ENOMEM;
  if (!code)
    code = lade_cache_trace_init(cache, params->n_trace_entries);
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

/* A child gives back nothing of the device's, only what it inherited on the heap: bins and segments stay behind. */
void lade_cache_destroy(lade_cache *cache)
{
  if (!cache)
    return;
  bool is_child = !is_alive(cache);
  if (!is_child)
    lade_cache_wait_all(cache);
  if (!is_child)
    lade_cache_shares_close(cache);
  pools_destroy(cache, is_child);
  if (!is_child)
    lade_cache_spare_release(cache);
  cache_free(cache);
}

/* ---- allocate ---- */

/* Large blocks are made whole chunks where that costs little. */
static enum zone_kind zone_choose(const lade_cache *cache, uint64_t *bytes)
{
  if (*bytes <= cache->chunk_bytes / SMALL_DIVISOR)
    return ZONE_SMALL;
  uint64_t whole_bytes = lade_align_up(*bytes, cache->chunk_bytes);
  if ((whole_bytes - *bytes) * ROUNDING_DIVISOR <= *bytes)
    *bytes = whole_bytes;
  return ZONE_LARGE;
}

/*
 * Cut what is too much off a block that is in no list. Whole chunks start at a chunk where there is room for it:
 * then what they leave later can move, all of it. Needs two descriptors.
 */
static struct block *block_fit(lade_cache *cache, struct block *block, uint64_t bytes)
{
  uint64_t before_bytes = lade_align_up(block->address, cache->chunk_bytes) - block->address;
  if (!(bytes & (cache->chunk_bytes - 1)) && before_bytes && before_bytes + bytes <= block->bytes) {
    struct block *before = block;
    block = lade_cache_block_cut(cache, before, before_bytes);
    block->state = BLOCK_LIVE;
    lade_cache_block_settle(cache, before);
  }
  block->state = BLOCK_FREE;
  struct block *rest = block->bytes > bytes ? lade_cache_block_cut(cache, block, bytes) : NULL;
  block->state = BLOCK_LIVE; /* so that the rest does not join it again */
  if (rest)
    lade_cache_block_settle(cache, rest);
  return block;
}

/* The better fit of what is free for @queue and for everybody; in no list. */
static struct block *block_find(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct block *own = lade_cache_bins_find(zone, queue, bytes);
  struct block *any = queue ? lade_cache_bins_find(zone, 0, bytes) : NULL;
  struct block *best = !own || (any && any->bytes < own->bytes) ? any : own;
  if (best)
    lade_cache_list_remove(zone, best);
  return best;
}

/* The best fit of what is free for any other queue; @queue waits for it on the device. */
static struct block *block_take(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct block *best = NULL;
  for (int other = 1; other < cache->n_queues; other++) {
    struct block *block = lade_cache_bins_find(zone, other, bytes);
    if (block && (!best || block->bytes < best->bytes))
      best = block;
  }
  if (!best)
    return NULL;
  lade_cache_list_remove(zone, best);
  lade_cache_wait_event(cache, queue, best->queue, best->count);
  best->queue = (uint8_t)queue;
  best->count = lade_cache_queue_count(cache, queue);
  return best;
}

/* The zone to look in when @zone has nothing: the other one of its pool, or NULL. A private pool has one. */
static struct zone *zone_other(struct zone *zone)
{
  return zone->pool->is_private ? NULL : &zone->pool->zones[zone->kind == ZONE_SMALL ? ZONE_LARGE : ZONE_SMALL];
}

/* Steps 1 and 2. Sizes live apart as long as there is memory for it. */
static struct block *pool_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct block *block = NULL;
  lade_cache_waits_poll(cache);
  if (cache->flags & LADE_CACHE_SANITIZE)
    lade_cache_guard_drain(cache, false);
  lade_cache_sweep(cache, zone->pool);
  for (struct zone *other = zone_other(zone); zone && !block; zone = zone == other ? NULL : other) {
    if (!lade_cache_blocks_prepare(cache, 4) || !lade_cache_bins_get(zone, queue))
      return NULL;
    block = block_find(cache, zone, queue, bytes);
    if (!block)
      lade_cache_place_build(cache, zone, queue, bytes, false, &block);
  }
  return block;
}

/* Step 3. The host has no queue that could wait. */
static struct block *others_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct block *block = NULL;
  if (!queue)
    return NULL;
  lade_cache_waits_adopt(cache, queue);
  for (struct zone *other = zone_other(zone); zone && !block; zone = zone == other ? NULL : other) {
    if (!lade_cache_blocks_prepare(cache, 4) || !lade_cache_bins_get(zone, queue))
      return NULL;
    block = block_find(cache, zone, queue, bytes);
    if (!block)
      block = block_take(cache, zone, queue, bytes);
    if (!block)
      lade_cache_place_build(cache, zone, queue, bytes, true, &block);
  }
  return block;
}

/*
 * Ask the owner. Another thread that is out of memory meanwhile waits until that is done, and then for its own turn:
 * what the owner gives last may be what it needs. Returns false when there is nothing more to be had.
 */
static bool spill_call(lade_cache *cache, uint64_t bytes)
{
  if (!cache->spill)
    return false;
  if (cache->is_spilling) {
    while (cache->is_spilling)
      lade_lock_sleep(&cache->lock, &cache->n_spilled);
    return true;
  }
  cache->is_spilling = true;
  cache->spiller = pthread_self();
  cache->stats.n_spills++;
  lade_lock_give(&cache->lock);
  uint64_t freed_bytes = cache->spill(cache->spill_arg, bytes);
  lade_lock_take(&cache->lock);
  cache->is_spilling = false;
  lade_lock_rouse(&cache->n_spilled);
  return freed_bytes > 0;
}

static struct block *spill_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  struct block *block = NULL;
  while (!block && spill_call(cache, bytes)) {
    block = pool_search(cache, zone, queue, bytes);
    if (!block)
      block = others_search(cache, zone, queue, bytes);
  }
  return block;
}

static struct block *wait_search(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  lade_lock_give(&cache->lock);
  lade_cache_wait_all(cache);
  lade_lock_take(&cache->lock);
  for (struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    if (!pool->is_capturing)
      lade_cache_sweep(cache, pool);
  return pool_search(cache, zone, queue, bytes);
}

static struct block *ladder_climb(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes)
{
  if (zone->pool->is_capturing || bytes > cache->limit_bytes || bytes > MAX_SPAN_BYTES)
    return NULL;
  struct block *block = pool_search(cache, zone, queue, bytes);
  if (block)
    return block;
  cache->stats.num_alloc_retries++;
  block = others_search(cache, zone, queue, bytes);
  if (!block && cache->flags & LADE_CACHE_SANITIZE && lade_cache_guard_drain(cache, true))
    block = pool_search(cache, zone, queue, bytes);
  if (!block)
    block = spill_search(cache, zone, queue, bytes);
  return block ? block : wait_search(cache, zone, queue, bytes);
}

static void block_use(lade_cache *cache, struct block *block, int queue, const struct lade_cache_request *request)
{
  struct lade_cache_stats *stats = &cache->stats;
  block->state = BLOCK_LIVE;
  block->queue = (uint8_t)queue;
  block->tag = (uint8_t)request->tag;
  block->place = request->place;
  block->requested_bytes = request->bytes;
  block->users = 0;
  lade_cache_index_add(cache, block);
  lade_cache_stat_add(&stats->allocation, 1);
  lade_cache_stat_add(&stats->requested_bytes, request->bytes);
  lade_cache_stat_add(&stats->allocated_bytes, block->bytes);
  lade_cache_stat_add(&cache->tags[block->tag].bytes, block->bytes);
  if (cache->n_pending)
    lade_cache_active_note(cache);
  lade_cache_trace_add(cache, LADE_CACHE_ALLOC, block);
}

static uint64_t guard_bytes(const lade_cache *cache)
{
  return cache->flags & LADE_CACHE_SANITIZE ? GUARD_BYTES : 0;
}

static int request_check(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error)
{
  if (request->bytes == 0 || request->bytes > INT64_MAX / 2)
    return lade_error_set(error, -EINVAL, "cache: a request for %llu bytes; from 1 byte to 2^62 are possible",
                          (unsigned long long)request->bytes);
  if (!is_alive(cache))
    return lade_error_set(error, -EPERM, "cache: this process is a fork of the one that the cache belongs to; create "
                          "device and cache after the fork");
  return 0;
}

/* Is this the owner's spill function calling? Called with the lock. */
static bool is_spiller(const lade_cache *cache)
{
  return cache->is_spilling && pthread_equal(cache->spiller, pthread_self());
}

/* Called with the lock. */
static int block_alloc(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error,
                       struct block **ret_block)
{
  int queue = lade_cache_queue_number(cache, request->queue);
  if (queue < 0)
    return lade_error_set(error, queue, "cache: more than %d queues; lade_cache_forget those that are gone",
                          LADE_CACHE_MAX_QUEUES);
  if (request->tag < 0 || request->tag >= cache->n_tags)
    return lade_error_set(error, -EINVAL, "cache: tag %d is none of lade_cache_tag_add's", request->tag);
  if (is_spiller(cache))
    return lade_error_set(error, -EDEADLK, "cache: the spill function may not allocate");
  uint64_t bytes = lade_align_up(request->bytes, UNIT_BYTES) + 2 * guard_bytes(cache);
  struct lade_cache_pool *pool = cache->queues[queue].pool;
  struct zone *zone = &pool->zones[pool->is_private ? ZONE_LARGE : zone_choose(cache, &bytes)];
  if (!lade_cache_blocks_prepare(cache, 4) || !lade_cache_bins_get(zone, queue))
    return lade_error_set(error, -ENOMEM, "cache: out of host memory");
  struct block *block = block_find(cache, zone, queue, bytes);
  if (!block)
    block = ladder_climb(cache, zone, queue, bytes);
  if (!block)
    return lade_cache_refuse(cache, request, zone, bytes, error);
  bool is_quiet = cache->flags & LADE_CACHE_SANITIZE && lade_cache_is_over(cache, block->queue, block->count);
  *ret_block = block_fit(cache, block, bytes);
  (*ret_block)->is_guarded = is_quiet && cache->is_touchable;
  block_use(cache, *ret_block, queue, request);
  return 0;
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
  lade_lock_take(&cache->lock);
  code = block_alloc(cache, request, error, &block);
  if (!code) {
    if (cache->flags & LADE_CACHE_SANITIZE)
      lade_cache_guard_fill(cache, block);
    *ret_address = (void *)(uintptr_t)(block->address + guard_bytes(cache));
  }
  lade_lock_give(&cache->lock);
  return code;
}

/* ---- free ---- */

static struct block **block_lookup(const lade_cache *cache, const void *address)
{
  return lade_cache_index_find(cache, (uint64_t)(uintptr_t)address - guard_bytes(cache));
}

static void block_free(lade_cache *cache, struct block **link, const char *place)
{
  struct block *block = *link;
  struct lade_cache_stats *stats = &cache->stats;
  lade_cache_index_remove(cache, link);
  block->free_place = place;
  block->count = lade_cache_queue_count(cache, block->queue);
  lade_cache_stat_sub(&stats->allocation, 1);
  lade_cache_stat_sub(&stats->requested_bytes, block->requested_bytes);
  lade_cache_stat_sub(&stats->allocated_bytes, block->bytes);
  lade_cache_stat_sub(&cache->tags[block->tag].bytes, block->bytes);
  if (cache->flags & LADE_CACHE_SANITIZE)
    lade_cache_guard_keep(cache, block);
  else
    lade_cache_block_release(cache, block, true);
}

int lade_cache_free(lade_cache *cache, void *address, const char *place, struct lade_error *error)
{
  if (!address)
    return 0;
  if (!is_alive(cache))
    return lade_error_set(error, -EPERM, "cache: this process is a fork of the one that the cache belongs to");
  int code = 0;
  lade_lock_take(&cache->lock);
  struct block **link = block_lookup(cache, address);
  if (*link)
    block_free(cache, link, place);
  else
    code = lade_cache_guard_wrong_free(cache, (uint64_t)(uintptr_t)address, place, error);
  lade_lock_give(&cache->lock);
  return code;
}

int lade_cache_record(lade_cache *cache, void *address, lade_queue *queue)
{
  if (!is_alive(cache))
    return -EPERM;
  lade_lock_take(&cache->lock);
  struct block *block = *block_lookup(cache, address);
  int number = block ? lade_cache_queue_number(cache, queue) : -EINVAL;
  int code = number < 0 ? number : lade_cache_block_record(cache, block, number);
  lade_lock_give(&cache->lock);
  return code;
}

/* ---- queues, trim, blocks ---- */

/* Blocks of a queue that goes become nobody's: its work is done. */
static void queue_leave(lade_cache *cache, int queue)
{
  for (struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    for (int kind = 0; kind < N_ZONES; kind++)
      for (struct segment *segment = pool->zones[kind].segments; segment; segment = segment->next)
        for (struct block *block = segment->first; block; block = block->after) {
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

void lade_cache_forget(lade_cache *cache, lade_queue *queue)
{
  if (!is_alive(cache) || !queue)
    return;
  lade_queue_sync(queue, lade_queue_submitted(queue));
  lade_lock_take(&cache->lock);
  for (int i = 1; i < cache->n_queues; i++) {
    if (cache->queues[i].queue != queue)
      continue;
    lade_cache_waits_drop(cache, i);
    for (struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
      lade_cache_sweep(cache, pool);
    queue_leave(cache, i);
    cache->queues[i].queue = NULL;
  }
  lade_lock_give(&cache->lock);
}

int lade_cache_trim(lade_cache *cache, uint64_t keep_bytes)
{
  if (!is_alive(cache))
    return -EPERM;
  lade_lock_take(&cache->lock);
  lade_cache_waits_poll(cache);
  for (struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    if (!pool->is_capturing)
      lade_cache_sweep(cache, pool);
  int code = lade_cache_chunks_trim(cache, keep_bytes);
  lade_lock_give(&cache->lock);
  return code;
}

int lade_cache_get_block(lade_cache *cache, const void *address, struct lade_cache_block *ret_block)
{
  if (!is_alive(cache))
    return -EPERM;
  lade_lock_take(&cache->lock);
  const struct block *block = *block_lookup(cache, address);
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
  lade_lock_give(&cache->lock);
  return block ? 0 : -EINVAL;
}

/* ---- private pools ---- */

/* A private pool has one zone, so that what it reserved serves any size. Build a place and give it straight back. */
static int pool_fill(lade_cache *cache, struct lade_cache_pool *pool, uint64_t bytes)
{
  uint64_t whole_bytes = lade_align_up(bytes, cache->chunk_bytes);
  if (!bytes)
    return 0;
  struct block *block = NULL;
  struct zone *zone = &pool->zones[ZONE_LARGE];
  int error = lade_cache_blocks_prepare(cache, 4) ? 0 : -ENOMEM;
  if (!error)
    error = lade_cache_place_build(cache, zone, 0, whole_bytes, false, &block);
  if (!error)
    lade_cache_block_settle(cache, block);
  return error;
}

static int pool_create(lade_cache *cache, uint64_t bytes, bool is_shared, lade_cache_pool **ret_pool)
{
  if (!is_alive(cache))
    return -EPERM;
  struct lade_cache_pool *pool = calloc(1, sizeof(*pool));
  if (!pool)
    return -ENOMEM;
  pool_init(pool, true);
  pool->is_shared = is_shared;
  lade_lock_take(&cache->lock);
  pool->next = cache->pools;
  cache->pools = pool;
  int error = is_spiller(cache) ? -EDEADLK : pool_fill(cache, pool, bytes);
  lade_lock_give(&cache->lock);
  if (error) {
    lade_cache_pool_destroy(cache, pool);
    return error;
  }
  *ret_pool = pool;
  return 0;
}

int lade_cache_pool_create(lade_cache *cache, uint64_t bytes, lade_cache_pool **ret_pool)
{
  return pool_create(cache, bytes, false, ret_pool);
}

int lade_cache_pool_create_shared(lade_cache *cache, uint64_t bytes, lade_cache_pool **ret_pool)
{
  struct lade_device_info info;
  lade_device_get_info(cache->device, &info);
  return info.is_dry ? -ENOTSUP : pool_create(cache, bytes, true, ret_pool);
}

static bool zone_is_idle(const struct zone *zone)
{
  for (const struct segment *segment = zone->segments; segment; segment = segment->next)
    for (const struct block *block = segment->first; block; block = block->after)
      if (block->state != BLOCK_FREE && block->state != BLOCK_HOLE)
        return false;
  return true;
}

/* Called with the lock. Its freed blocks may still be in use by their queues. */
static int pool_leave(lade_cache *cache, struct lade_cache_pool *pool)
{
  lade_cache_waits_poll(cache);
  if (cache->flags & LADE_CACHE_SANITIZE)
    lade_cache_guard_drain(cache, true);
  for (int i = 1; i < cache->n_queues; i++)
    if (cache->queues[i].queue && cache->queues[i].pool == pool)
      return -EBUSY;
  for (int kind = 0; kind < N_ZONES; kind++)
    if (!zone_is_idle(&pool->zones[kind]))
      return -EBUSY;
  if (pool->is_capturing)
    return -EBUSY;
  lade_cache_sweep(cache, pool);
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
  if (!pool)
    return 0;
  if (!is_alive(cache))
    return -EPERM;
  lade_cache_wait_all(cache);
  lade_lock_take(&cache->lock);
  int error = pool_leave(cache, pool);
  lade_lock_give(&cache->lock);
  if (!error)
    free(pool);
  return error;
}

int lade_cache_route(lade_cache *cache, lade_queue *queue, lade_cache_pool *pool)
{
  if (!is_alive(cache))
    return -EPERM;
  if (!queue)
    return -EINVAL;
  lade_lock_take(&cache->lock);
  int number = lade_cache_queue_number(cache, queue);
  if (number > 0)
    cache->queues[number].pool = pool ? pool : &cache->common;
  lade_lock_give(&cache->lock);
  return number < 0 ? number : 0;
}

static int capture_set(lade_cache *cache, lade_cache_pool *pool, bool is_capturing)
{
  if (!is_alive(cache))
    return -EPERM;
  lade_lock_take(&cache->lock);
  int error = pool->is_capturing != is_capturing ? 0 : is_capturing ? -EALREADY : -EINVAL;
  pool->is_capturing = is_capturing;
  lade_lock_give(&cache->lock);
  return error;
}

int lade_cache_capture_begin(lade_cache *cache, lade_cache_pool *pool)
{
  return capture_set(cache, pool, true);
}

int lade_cache_capture_end(lade_cache *cache, lade_cache_pool *pool)
{
  return capture_set(cache, pool, false);
}
