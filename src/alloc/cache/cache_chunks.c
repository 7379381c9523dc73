/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments and chunks: memory is moved to the place where a block needs it.
 *
 * If no free block fits, a window is chosen: contiguous addresses that are free or unmapped, long enough, and with the
 * fewest chunks missing. Among equals it is the one in the shortest run of free addresses, which is best fit over
 * addresses. It is in the queue's own shard, and in another only if that fails. Otherwise the moves of a step that
 * repeats would alternate among the shards. The step would take several times as long to stop moving chunks. The end of
 * a segment is a hole like any other, only longer, so growth is not a special case.
 *
 * Then the missing chunks are gathered: from the spare ones, from idle ones (whole chunks inside free blocks whose
 * queues are done with them, in any zone), and from the device. So a free byte in a whole chunk is never stranded,
 * neither by size nor by segment nor by queue. The remaining fragmentation is in chunks that contain a live block.
 *
 * Moves keep reserved bytes close to live bytes, but a step that repeats could move the same chunks back and forth for
 * ever. So some of the missing chunks are created although others are idle: cache_steps.c gives the amount, and the
 * proof that this ends.
 *
 * Cost. A climb visits holes and the free blocks beside them, and free blocks as long as a chunk. It also visits free
 * blocks whose queues may be done with them by now (lade_cache_sweep). In step 3 of the ladder it visits all free
 * blocks. It visits no live block. n_looked_at counts.
 *
 * Failures. Chunks that were gathered and then not mapped are spare: still reserved, and used first next time. If a map
 * is refused half-way, the mapped part stays as a free block. No step is undone, and no memory is lost.
 *
 * On hosts a mapped chunk is an entry in the process's list of mappings, which is bounded (vm.max_map_count, 65,530 by
 * default). There the chunks are so large that their number stays under a quarter of that.
 *
 * Rejected: stitching, one chunk mapped at several addresses at once (GMLake), which the contract of a host device does
 * not allow; a segment per size class, which moves chunks at every change of phase.
 */
#include <errno.h>
#include <stdlib.h>

#include "alloc/cache/cache_blocks.h"

struct window {
  struct cache_block *first; /* the first block that it touches */
  uint64_t start, end;
  uint64_t missing_bytes; /* to be mapped */
  uint64_t run_bytes;     /* of free addresses around it */
};

/* ---- segments ---- */

static uint64_t span_bytes(const lade_cache *cache)
{
  uint64_t limit_bytes = LADE_MIN(cache->limit_bytes, MAX_SPAN_BYTES / 4);
  return LADE_MAX(lade_align_up(limit_bytes * 4, cache->chunk_bytes), 64 * cache->chunk_bytes);
}

/* Add a new segment, which is one hole. Smaller sizes are tried if addresses are scarce. */
static int segment_create(lade_cache *cache, struct zone *zone, uint64_t bytes)
{
  struct cache_segment *segment = calloc(1, sizeof(*segment));
  if (!segment || !lade_cache_bins_get(zone, 0) || !lade_cache_blocks_prepare(zone->shard, 1)) {
    free(segment);
    return -ENOMEM;
  }
  uint64_t min_bytes = lade_align_up(bytes, cache->chunk_bytes);
  int error = -ENOMEM;
  for (segment->bytes = span_bytes(cache); segment->bytes >= min_bytes && error;) {
    error = lade_device_reserve(cache->device, segment->bytes, &segment->base);
    if (error)
      segment->bytes = segment->bytes / 2 / cache->chunk_bytes * cache->chunk_bytes;
  }
  segment->chunks = error ? NULL : calloc(segment->bytes / cache->chunk_bytes, sizeof(lade_chunk *));
  if (!segment->chunks || lade_cache_owner_set(cache, segment->base, segment->bytes, zone->shard)) {
    free(segment->chunks);
    if (!error)
      lade_device_release(cache->device, segment->base, segment->bytes);
    free(segment);
    return -ENOMEM;
  }
  struct cache_block *hole = lade_cache_block_take(zone->shard);
  *hole = (struct cache_block){
      .address = segment->base, .bytes = segment->bytes, .segment = segment, .state = BLOCK_HOLE,
      .kind = (uint8_t)zone->kind};
  segment->number = cache->n_segments++;
  segment->zone = zone;
  segment->first = hole;
  segment->next = zone->segments;
  zone->segments = segment;
  zone->shard->stamp_end = 0; /* another shard's events may have been at these addresses */
  lade_cache_list_add(zone, hole);
  return 0;
}

static lade_chunk **slot_of(const lade_cache *cache, const struct cache_segment *segment, uint64_t address)
{
  return &segment->chunks[(address - segment->base) / cache->chunk_bytes];
}

/* ---- windows ---- */

struct window_search {
  lade_cache *cache;
  int queue;
  enum reach reach;
  uint64_t bytes;
  struct window best;
};

static bool is_open(const struct window_search *search, const struct cache_block *block)
{
  search->cache->n_looked_at++;
  if (!block || block->state == BLOCK_HOLE)
    return block;
  if (block->state != BLOCK_FREE)
    return false;
  return (search->reach == REACH_QUEUES && lade_cache_may_wait(search->cache, block->queue, block->count)) ||
         lade_cache_is_usable(search->cache, block, search->queue);
}

static void window_offer(struct window_search *search, const struct window *window)
{
  struct window *best = &search->best;
  if (!best->first || window->missing_bytes < best->missing_bytes ||
      (window->missing_bytes == best->missing_bytes && window->run_bytes < best->run_bytes &&
       window->first->segment->zone == best->first->segment->zone))
    *best = *window;
}

/* Try the window that starts at @start, in @first or later, if the run [.., stop) is long enough. */
static void window_try_from(struct window_search *search, struct cache_block *first, uint64_t start, uint64_t run_bytes,
                            uint64_t stop)
{
  uint64_t chunk_bytes = search->cache->chunk_bytes;
  struct window window = {first, start, start + search->bytes, 0, run_bytes};
  if (window.end > stop)
    return;
  for (struct cache_block *block = first; block && block->address < window.end; block = block->after) {
    uint64_t from = LADE_MAX(block->address, start / chunk_bytes * chunk_bytes);
    uint64_t to = LADE_MIN(block->address + block->bytes, lade_align_up(window.end, chunk_bytes));
    if (block->state == BLOCK_HOLE && from < to)
      window.missing_bytes += to - from;
  }
  window_offer(search, &window);
}

/* Try the window that ends where @last does, if the run [start, ..) is long enough. */
static void window_try_to(struct window_search *search, struct cache_block *last, uint64_t run_bytes, uint64_t start)
{
  uint64_t end = last->address + last->bytes;
  if (end - start < search->bytes)
    return;
  struct window window = {last, end - search->bytes, end, 0, run_bytes};
  for (struct cache_block *block = last; block && block->address + block->bytes > window.start; block = block->before) {
    uint64_t inside_bytes = block->address + block->bytes - window.start;
    if (block->state == BLOCK_HOLE)
      window.missing_bytes += LADE_MIN(block->bytes, lade_align_up(inside_bytes, search->cache->chunk_bytes));
    window.first = block;
  }
  window_offer(search, &window);
}

/* Try every window in the run of open blocks around @block, if no hole of the run comes before it. */
static void run_search(struct window_search *search, struct cache_block *block)
{
  struct cache_block *first = block, *last = block;
  while (is_open(search, first->before)) {
    first = first->before;
    if (first->state == BLOCK_HOLE)
      return;
  }
  while (is_open(search, last->after))
    last = last->after;
  uint64_t start = first->address, stop = last->address + last->bytes;
  if (stop - start < search->bytes)
    return;
  for (block = first;; block = block->after) {
    if (search->bytes % search->cache->chunk_bytes == 0) /* tried first, so preferred among equals */
      window_try_from(search, block, lade_align_up(block->address, search->cache->chunk_bytes), stop - start, stop);
    window_try_from(search, block, block->address, stop - start, stop);
    if (block != last || last->after)
      window_try_to(search, block, stop - start, start);
    if (block == last)
      return;
  }
}

/* Search the runs of a list. If other queues' blocks are within reach, a run is searched from its first block. */
static void list_search(struct window_search *search, struct cache_block *block, const struct cache_block *end)
{
  for (; block != end; block = block->next)
    if (search->reach != REACH_QUEUES || (is_open(search, block) && !is_open(search, block->before)))
      run_search(search, block);
}

/* Search a zone: runs with a hole, and with other queues within reach also runs of different queues' blocks. */
static void zone_search(struct window_search *search, const struct zone *zone)
{
  list_search(search, zone->holes, lade_cache_list_end(zone));
  for (int queue = 0; queue < search->cache->n_queues && search->reach == REACH_QUEUES; queue++) {
    const struct bins *bins = zone->bins[queue];
    for (unsigned i = bins ? lade_cache_bin_first(bins, bins, 0) : N_BINS; i < N_BINS;
         i = lade_cache_bin_first(bins, bins, i + 1))
      list_search(search, bins->heads[i], bins->end);
  }
}

/* Find the best window in @zone and, within @search's reach, in the zones of other shards. False if there is none. */
static bool window_find(struct window_search *search, const struct zone *zone)
{
  search->best = (struct window){0};
  zone_search(search, zone);
  for (const struct zone *other = zone->pool->zones; other && search->reach != REACH_HOME; other = other->next)
    if (other != zone && other->kind == zone->kind)
      zone_search(search, other);
  return search->best.first;
}

/* ---- idle chunks ---- */

/* Find the whole chunks of a free block outside of the window, on its longer side. False if there are none. */
static bool idle_range(lade_cache *cache, const struct cache_block *block, const struct window *window,
                       uint64_t *ret_from, uint64_t *ret_to)
{
  uint64_t from = block->address, to = block->address + block->bytes;
  if (window && from < window->end && to > window->start) {
    uint64_t left_bytes = window->start > from ? window->start - from : 0;
    uint64_t right_bytes = to > window->end ? to - window->end : 0;
    if (left_bytes >= right_bytes)
      to = from + left_bytes;
    else
      from = to - right_bytes;
  }
  from = lade_align_up(from, cache->chunk_bytes);
  to = to / cache->chunk_bytes * cache->chunk_bytes;
  *ret_from = from;
  *ret_to = to;
  return from < to && lade_cache_is_over(cache, block->queue, block->count);
}

struct idle_scan {
  lade_cache *cache;
  const struct window *window; /* NULL: none to leave out */
  uint64_t bytes;              /* of all idle chunks */
  struct cache_block *best;    /* the smallest block with an idle chunk */
};

/* Scan the bins whose blocks may be as long as a chunk. */
static void bins_scan(struct idle_scan *scan, const struct bins *bins)
{
  unsigned i = lade_cache_bin_first(bins, bins, lade_cache_bin_of(LADE_MIN(scan->cache->chunk_bytes, MAX_SPAN_BYTES)));
  for (; i < N_BINS; i = lade_cache_bin_first(bins, bins, i + 1)) {
    struct cache_block *block = bins->heads[i];
    for (uint64_t from = 0, to = 0; block != bins->end; block = block->next) {
      scan->cache->n_looked_at++;
      if (!idle_range(scan->cache, block, scan->window, &from, &to))
        continue;
      scan->bytes += to - from;
      if (!scan->best || block->bytes < scan->best->bytes)
        scan->best = block;
    }
  }
}

/* Scan the free blocks of all pools whose chunks may move. */
static void idle_scan(struct idle_scan *scan)
{
  const struct lade_cache *cache = scan->cache;
  for (const struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    for (const struct zone *zone = pool->zones; zone && !pool->is_private; zone = zone->next)
      for (int queue = 0; queue < cache->n_queues; queue++)
        if (zone->bins[queue])
          bins_scan(scan, zone->bins[queue]);
}

uint64_t lade_cache_idle_bytes(lade_cache *cache)
{
  struct idle_scan scan = {.cache = cache};
  idle_scan(&scan);
  return scan.bytes + (uint64_t)cache->spare.n * cache->chunk_bytes;
}

static bool spare_prepare(lade_cache *cache, uint64_t n)
{
  return (uint64_t)cache->spare.n + n <= INT32_MAX / 2 &&
         lade_array_reserve((void **)&cache->spare.items, &cache->spare.capacity, cache->spare.n + (int)n,
                            sizeof(cache->spare.items[0]));
}

/* Unmap the chunks in [from, to) and make them spare. Return the address where it stopped. */
static uint64_t chunks_unmap(lade_cache *cache, struct cache_segment *segment, uint64_t from, uint64_t to)
{
  for (uint64_t at = from; at < to; at += cache->chunk_bytes) {
    if (lade_device_unmap(cache->device, at, cache->chunk_bytes))
      return at;
    lade_chunk **slot = slot_of(cache, segment, at);
    cache->spare.items[cache->spare.n++] = *slot;
    *slot = NULL;
    cache->stats.n_unmaps++;
    lade_cache_trace_chunk(cache, segment->zone->shard, LADE_CACHE_SEGMENT_UNMAP, at);
  }
  return to;
}

/* Unmap at most @n chunks of the free @block, on the side of a hole if it has one. Return 0 or -ENOMEM. */
static int block_unmap(lade_cache *cache, struct cache_block *block, uint64_t from, uint64_t to, uint64_t n)
{
  uint64_t bytes = LADE_MIN(to - from, n * cache->chunk_bytes);
  struct zone *zone = block->segment->zone;
  if (!lade_cache_blocks_prepare(zone->shard, 2) || !spare_prepare(cache, bytes / cache->chunk_bytes))
    return -ENOMEM;
  if (block->before && block->before->state == BLOCK_HOLE)
    to = from + bytes;
  else
    from = to - bytes;
  uint64_t stop = chunks_unmap(cache, block->segment, from, to);
  if (stop == from)
    return -ENOMEM;
  lade_cache_list_remove(zone, block);
  struct cache_block *hole = block;
  if (from > block->address)
    hole = lade_cache_block_cut(zone->shard, block, from - block->address);
  if (stop < hole->address + hole->bytes) {
    struct cache_block *rest = lade_cache_block_cut(zone->shard, hole, stop - from);
    lade_cache_list_add(zone, rest);
  }
  hole->state = BLOCK_HOLE;
  hole->queue = 0;
  hole->count = 0;
  if (hole != block)
    lade_cache_list_add(zone, block);
  lade_cache_block_settle(cache, hole);
  return stop == to ? 0 : -ENOMEM;
}

/* ---- gathering ---- */

static int chunks_create(lade_cache *cache, uint64_t n, bool is_shared)
{
  int (*create)(lade_device *, uint64_t, lade_chunk **) =
      is_shared ? lade_device_chunk_create_shared : lade_device_chunk_create;
  if (!spare_prepare(cache, n))
    return -ENOMEM;
  for (; n; n--) {
    lade_chunk *chunk = NULL;
    if (cache->stats.reserved_bytes.current + cache->chunk_bytes > cache->limit_bytes ||
        create(cache->device, cache->chunk_bytes, &chunk))
      return -ENOMEM;
    cache->spare.items[cache->spare.n++] = chunk;
    cache->stats.n_creates++;
    lade_cache_stat_add(&cache->stats.segment, 1);
    lade_cache_stat_add(&cache->stats.reserved_bytes, cache->chunk_bytes);
    lade_cache_inactive_note(cache);
  }
  return 0;
}

static uint64_t missing_get(const lade_cache *cache, uint64_t n)
{
  return n > (uint64_t)cache->spare.n ? n - (uint64_t)cache->spare.n : 0;
}

/* Unmap idle chunks until @n are spare or none is left. Deterministic: the smallest blocks first. */
static void chunks_bring(lade_cache *cache, uint64_t n, const struct window *window)
{
  while (missing_get(cache, n)) {
    struct idle_scan scan = {.cache = cache, .window = window};
    idle_scan(&scan);
    uint64_t from = 0, to = 0;
    if (!scan.best || !idle_range(cache, scan.best, window, &from, &to) ||
        block_unmap(cache, scan.best, from, to, missing_get(cache, n)))
      return;
  }
}

/* Make @n chunks spare. -ENOMEM, without any change if the chunks certainly do not suffice. */
static int chunks_gather(lade_cache *cache, uint64_t n, const struct window *window)
{
  uint64_t missing = missing_get(cache, n), room_bytes = cache->limit_bytes - cache->stats.reserved_bytes.current;
  struct idle_scan scan = {.cache = cache, .window = window};
  if (!missing)
    return 0;
  idle_scan(&scan);
  if (scan.bytes + room_bytes < missing * cache->chunk_bytes)
    return -ENOMEM;
  if (scan.bytes && room_bytes >= missing * cache->chunk_bytes) {
    struct shard *shard = window->first->segment->zone->shard;
    chunks_create(cache, lade_cache_creates_get(cache, shard, window->end - window->start, missing), false);
  }
  chunks_bring(cache, n, window);
  if (missing_get(cache, n) && chunks_create(cache, missing_get(cache, n), false))
    return -ENOMEM;
  return 0;
}

/*
 * Make @n spare chunks of the shareable kind; idle common ones are released for them. Spare chunks are of the common
 * kind before and after, because otherwise a common block might get memory that another process has open.
 */
static int shared_gather(lade_cache *cache, uint64_t n)
{
  uint64_t bytes = n * cache->chunk_bytes;
  lade_cache_spare_release(cache);
  if (bytes > cache->limit_bytes)
    return -ENOMEM;
  lade_cache_chunks_trim(cache, cache->limit_bytes - bytes);
  return chunks_create(cache, n, true);
}

/* ---- filling the window ---- */

/* Map spare chunks under [from, to) of a hole. The mapped part becomes a free block; -ENOMEM if it is not all. */
static int hole_fill(lade_cache *cache, struct cache_block *hole, uint64_t from, uint64_t to)
{
  struct cache_segment *segment = hole->segment;
  struct zone *zone = segment->zone;
  uint64_t at = from;
  while (at < to && cache->spare.n) {
    lade_chunk *chunk = cache->spare.items[cache->spare.n - 1];
    if (lade_device_map(cache->device, at, chunk))
      break;
    cache->spare.n--;
    *slot_of(cache, segment, at) = chunk;
    cache->stats.n_maps++;
    lade_cache_trace_chunk(cache, zone->shard, LADE_CACHE_SEGMENT_MAP, at);
    at += cache->chunk_bytes;
  }
  if (at == from)
    return -ENOMEM;
  lade_cache_list_remove(zone, hole);
  struct cache_block *block = hole;
  if (from > hole->address) {
    block = lade_cache_block_cut(zone->shard, hole, from - hole->address);
    lade_cache_list_add(zone, hole);
  }
  if (at < block->address + block->bytes)
    lade_cache_list_add(zone, lade_cache_block_cut(zone->shard, block, at - block->address));
  block->state = BLOCK_FREE;
  block->queue = 0;
  block->count = 0;
  lade_cache_list_add(zone, block);
  return at == to ? 0 : -ENOMEM;
}

/*
 * Return the last block before the window that is neither free nor a hole; NULL if there is none. Gathering cuts and
 * joins free blocks and holes, but never this block. So the search for the window's blocks starts there instead of at
 * the segment's first block.
 */
static struct cache_block *anchor_find(lade_cache *cache, const struct window *window)
{
  struct cache_block *block = window->first->before;
  for (; block && (block->state == BLOCK_FREE || block->state == BLOCK_HOLE); block = block->before)
    cache->n_looked_at++;
  return block;
}

static struct cache_block *block_after(const struct cache_segment *segment, const struct cache_block *anchor)
{
  return anchor ? anchor->after : segment->first;
}

/* Return the block that covers @address, which is after @anchor. */
static struct cache_block *block_at(lade_cache *cache, const struct cache_segment *segment,
                                    const struct cache_block *anchor, uint64_t address)
{
  struct cache_block *block = block_after(segment, anchor);
  for (; block->address + block->bytes <= address; block = block->after)
    cache->n_looked_at++;
  return block;
}

/* Map chunks under all of the window. -ENOMEM, possibly with some mapped. */
static int window_fill(lade_cache *cache, struct cache_block *block, const struct window *window)
{
  while (block && block->address < window->end) {
    uint64_t end = block->address + block->bytes, address = block->address;
    if (block->state == BLOCK_HOLE) {
      uint64_t from = LADE_MAX(address, window->start / cache->chunk_bytes * cache->chunk_bytes);
      uint64_t to = LADE_MIN(end, lade_align_up(window->end, cache->chunk_bytes));
      bool is_ready = lade_cache_blocks_prepare(block->segment->zone->shard, 2);
      int error = is_ready ? hole_fill(cache, block, from, to) : -ENOMEM;
      if (error)
        return error;
    }
    while (block && block->address < end)
      block = block->after;
  }
  return 0;
}

/* Give up the window: join its mapped parts with their free neighbours. */
static void window_leave(lade_cache *cache, struct cache_block *block, const struct window *window)
{
  for (; block && block->address < window->end; block = block->after) {
    if (block->state != BLOCK_FREE || !block->after || block->after->state != BLOCK_FREE)
      continue;
    lade_cache_list_remove(block->segment->zone, block);
    block = lade_cache_block_settle(cache, block);
  }
}

/* Join all blocks that the window touches into one for @queue. */
static struct cache_block *window_join(lade_cache *cache, struct cache_block *first, const struct window *window,
                                       int queue)
{
  struct zone *zone = first->segment->zone;
  for (struct cache_block *block = first; block && block->address < window->end; block = block->after) {
    LADE_ASSERT(block->state == BLOCK_FREE);
    if (block->queue != queue)
      lade_cache_wait_event(cache, queue, block->queue, block->count);
  }
  lade_cache_list_remove(zone, first);
  while (first->address + first->bytes < window->end) {
    lade_cache_list_remove(zone, first->after);
    lade_cache_block_join(zone->shard, first);
  }
  first->queue = (uint8_t)queue;
  first->count = lade_cache_queue_count(cache, queue);
  return first;
}

int lade_cache_place_build(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes, enum reach reach,
                           struct cache_block **ret_block)
{
  struct window_search search = {.cache = cache, .queue = queue, .reach = reach, .bytes = bytes};
  if (!zone->segments)
    segment_create(cache, zone, bytes); /* if that fails, a window of another shard is used */
  if (!window_find(&search, zone) && (segment_create(cache, zone, bytes) || !window_find(&search, zone)))
    return -ENOMEM;
  struct window *window = &search.best;
  struct cache_segment *segment = window->first->segment;
  const struct cache_block *anchor = anchor_find(cache, window);
  zone = segment->zone;
  if (!lade_cache_bins_get(zone, queue) || !lade_cache_bins_get(zone, 0))
    return -ENOMEM;
  bool is_shared = zone->pool->is_shared;
  uint64_t n_missing = window->missing_bytes / cache->chunk_bytes;
  int error = is_shared ? shared_gather(cache, n_missing) : chunks_gather(cache, n_missing, window);
  if (!error)
    error = window_fill(cache, block_at(cache, segment, anchor, window->start), window);
  if (is_shared)
    lade_cache_spare_release(cache);
  if (error || !lade_cache_blocks_prepare(zone->shard, 4)) {
    window_leave(cache, block_after(segment, anchor), window);
    return -ENOMEM;
  }
  struct cache_block *block = window_join(cache, block_at(cache, segment, anchor, window->start), window, queue);
  if (block->address < window->start) {
    struct cache_block *rest = lade_cache_block_cut(zone->shard, block, window->start - block->address);
    rest->state = BLOCK_LIVE; /* so the part before does not join it again */
    lade_cache_block_settle(cache, block);
    rest->state = BLOCK_FREE;
    block = rest;
  }
  *ret_block = block;
  return 0;
}

uint64_t lade_cache_shortfall(lade_cache *cache, struct zone *zone, uint64_t bytes)
{
  struct window_search search = {.cache = cache, .reach = REACH_QUEUES, .bytes = bytes};
  bool is_found = window_find(&search, zone);
  struct idle_scan scan = {.cache = cache, .window = is_found ? &search.best : NULL};
  idle_scan(&scan);
  uint64_t lacking_bytes = is_found ? search.best.missing_bytes : lade_align_up(bytes, cache->chunk_bytes);
  uint64_t had_bytes = scan.bytes + (uint64_t)cache->spare.n * cache->chunk_bytes + cache->limit_bytes -
                       cache->stats.reserved_bytes.current;
  return lacking_bytes - LADE_MIN(lacking_bytes, had_bytes);
}

/* ---- release ---- */

static void spare_release_one(lade_cache *cache)
{
  lade_device_chunk_release(cache->device, cache->spare.items[--cache->spare.n]);
  cache->stats.n_releases++;
  lade_cache_stat_sub(&cache->stats.segment, 1);
  lade_cache_stat_sub(&cache->stats.reserved_bytes, cache->chunk_bytes);
}

int lade_cache_chunks_trim(lade_cache *cache, uint64_t keep_bytes)
{
  uint64_t reserved_bytes = cache->stats.reserved_bytes.current;
  if (reserved_bytes <= keep_bytes)
    return 0;
  uint64_t n = (reserved_bytes - keep_bytes + cache->chunk_bytes - 1) / cache->chunk_bytes;
  chunks_bring(cache, n, NULL);
  for (; n && cache->spare.n; n--)
    spare_release_one(cache);
  return 0;
}

/*
 * Make all idle chunks spare. Restarts from the segment's first block after each change, because that cuts and joins.
 */
int lade_cache_pool_unmap(lade_cache *cache, struct lade_cache_pool *pool)
{
  for (struct zone *zone = pool->zones; zone; zone = zone->next)
    for (struct cache_segment *segment = zone->segments; segment; segment = segment->next)
      for (struct cache_block *block = segment->first; block;) {
        uint64_t from = 0, to = 0;
        if (block->state != BLOCK_FREE || !idle_range(cache, block, NULL, &from, &to)) {
          block = block->after;
          continue;
        }
        int error = block_unmap(cache, block, from, to, (to - from) / cache->chunk_bytes);
        if (error)
          return error;
        block = segment->first;
      }
  return 0;
}

void lade_cache_spare_release(lade_cache *cache)
{
  while (cache->spare.n)
    spare_release_one(cache);
}

static void segment_destroy(lade_cache *cache, struct cache_segment *segment)
{
  uint64_t n = segment->bytes / cache->chunk_bytes;
  for (uint64_t i = 0; i < n; i++) {
    if (!segment->chunks[i])
      continue;
    uint64_t at = segment->base + i * cache->chunk_bytes;
    if (!spare_prepare(cache, 1) || chunks_unmap(cache, segment, at, at + cache->chunk_bytes) == at)
      return; /* the device refuses the unmap: it keeps the memory and the range */
  }
  for (struct cache_block *block = segment->first, *after; block; block = after) {
    after = block->after;
    lade_cache_block_drop(segment->zone->shard, block);
  }
  lade_cache_owner_set(cache, segment->base, segment->bytes, NULL);
  lade_device_release(cache->device, segment->base, segment->bytes);
  free(segment->chunks);
  free(segment);
}

void lade_cache_pool_clear(lade_cache *cache, struct lade_cache_pool *pool)
{
  for (struct zone *zone = pool->zones; zone; zone = zone->next) {
    for (struct cache_segment *segment = zone->segments, *next; segment; segment = next) {
      next = segment->next;
      segment_destroy(cache, segment);
    }
    for (int queue = 0; queue < N_QUEUES; queue++)
      free(zone->bins[queue]);
  }
  pool->zones = NULL;
}
