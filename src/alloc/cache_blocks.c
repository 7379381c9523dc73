/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: their descriptors, the bins of free ones, and the index that finds a live one by its address.
 *
 * Descriptors live apart from the memory that they describe, which the host may not be able to touch. They come
 * from slabs and are never given back before the cache goes, so that a free never needs the heap.
 *
 * Bins are the two levels of TLSF (Masmano and others, ECRTS 2004): sizes in units of 512 bytes, each power of two
 * cut into 64 steps, a bit per list that is not empty. Insertion and removal are a few instructions. The search looks
 * through the list of its own size first and takes the smallest that fits of the first few; beyond it takes
 * the first of the next list that is not empty. What is found is within 1/64 of the best fit, at a fraction of what a
 * balanced tree costs (`lade bench alloc` has both). When the own list is long and nothing at its head fits, and no
 * longer list has anything, the whole list is walked: no fitting block is ever missed.
 *
 * The index is a table of chains, with two buckets to a block at least. It holds live blocks only, so that a stale
 * address is not found, whoever asks.
 *
 * What a pair of calls costs is waiting, more than instructions: for descriptors that are not in the first cache, and
 * for branches on what they say. So a descriptor is two lines of which neighbours touch one, a block knows what points
 * to it in its list, and nothing is looked at whose answer would not matter.
 *
 * Rejected: an index per granule of the address space (a load without chains, but a page of memory for every 2 MiB
 * of addresses in use); linear probing, whose removal looks at strangers; sizes rounded to classes, which makes every
 * fit exact and strands up to a class step of each block; the first fit of the own list, some nanoseconds less and half
 * as much waste again where several queues are used.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache_internal.h"

#define SLAB_BLOCKS 128
#define INDEX_FIRST ((uint64_t)1024)
#define LOOKED_AT 8 /* of the own list, before longer lists are tried */

/* ---- descriptors ---- */

static bool slab_add(struct shard *shard)
{
  struct block *slab = aligned_alloc(alignof(struct block), SLAB_BLOCKS * sizeof(*slab));
  if (!slab)
    return false;
  if (!LADE_PUSH(&shard->slabs, slab)) {
    free(slab);
    return false;
  }
  memset(slab, 0, SLAB_BLOCKS * sizeof(*slab));
  for (int i = 0; i < SLAB_BLOCKS; i++)
    lade_cache_block_drop(shard, &slab[i]);
  return true;
}

static uint64_t index_home(const struct shard *shard, uint64_t address)
{
  return (address / UNIT_BYTES * 0x9e3779b97f4a7c15u >> 20) & shard->index_mask;
}

static void index_put(struct shard *shard, struct block *block)
{
  struct block **bucket = &shard->index[index_home(shard, block->address)];
  block->namesake = *bucket;
  *bucket = block;
}

static bool index_grow(struct shard *shard)
{
  uint64_t n_before = shard->index ? shard->index_mask + 1 : 0, n = n_before ? 2 * n_before : INDEX_FIRST;
  struct block **before = shard->index, **index = calloc(n, sizeof(*index));
  if (!index)
    return false;
  shard->index = index;
  shard->index_mask = n - 1;
  for (uint64_t i = 0; i < n_before; i++)
    for (struct block *block = before[i], *next; block; block = next) {
      next = block->namesake;
      index_put(shard, block);
    }
  free(before);
  return true;
}

bool lade_cache_blocks_grow(struct shard *shard, int n)
{
  while (shard->n_unused < n)
    if (!slab_add(shard))
      return false;
  return (shard->index && lade_cache_index_has_room(shard)) || index_grow(shard);
}

struct block *lade_cache_block_take(struct shard *shard)
{
  struct block *block = shard->unused;
  LADE_ASSERT(block);
  shard->unused = block->next;
  shard->n_unused--;
  return block;
}

void lade_cache_block_drop(struct shard *shard, struct block *block)
{
  block->next = shard->unused;
  shard->unused = block;
  shard->n_unused++;
}

/* ---- bins ---- */

/* Sizes up to 63 units have a list each; beyond, 64 lists to a power of two. */
static unsigned bin_of(uint64_t bytes)
{
  uint64_t units = bytes / UNIT_BYTES;
  int exponent = 63 - __builtin_clzll(units | 64);
  return (unsigned)((exponent - 5) * 64 + (int)(units >> (exponent - 6)) - 64);
}

/*
 * Whether another block comes next in a list is as good as random. So that nothing is mispredicted a block that nobody
 * looks at takes the place of one that is not there.
 */
static void list_push(struct block **head, struct block *block)
{
  struct block nobody, *next = *head;
  block->next = next;
  block->link = head;
  (next ? next : &nobody)->link = &block->next;
  *head = block;
}

static void list_unlink(const struct block *block)
{
  struct block nobody, *next = block->next;
  *block->link = next;
  (next ? next : &nobody)->link = block->link;
}

struct bins *lade_cache_bins_get(struct zone *zone, int queue)
{
  if (!zone->bins[queue])
    zone->bins[queue] = calloc(1, sizeof(struct bins));
  return zone->bins[queue];
}

void lade_cache_list_add(struct zone *zone, struct block *block)
{
  if (block->state == BLOCK_HOLE) {
    list_push(&zone->holes, block);
    return;
  }
  struct bins *bins = zone->bins[block->queue];
  unsigned i = bin_of(block->bytes);
  block->bin = (uint16_t)i;
  list_push(&bins->heads[i], block);
  bins->words[i / 64] |= (uint64_t)1 << (i % 64);
  bins->summary |= (uint64_t)1 << (i / 64);
}

void lade_cache_list_remove(struct zone *zone, const struct block *block)
{
  list_unlink(block);
  if (block->state == BLOCK_HOLE)
    return;
  struct bins *bins = zone->bins[block->queue];
  unsigned i = block->bin;
  bins->words[i / 64] &= ~((uint64_t)!bins->heads[i] << (i % 64));
  bins->summary &= ~((uint64_t)!bins->words[i / 64] << (i / 64));
}

/* The first list past @i that is not empty, or -1. */
static int bin_next(const struct bins *bins, unsigned i)
{
  uint64_t word = i % 64 == 63 ? 0 : bins->words[i / 64] & (~(uint64_t)0 << (i % 64 + 1));
  if (word)
    return (int)(i / 64 * 64) + __builtin_ctzll(word);
  uint64_t summary = bins->summary & (~(uint64_t)1 << (i / 64));
  if (!summary)
    return -1;
  int w = __builtin_ctzll(summary);
  return w * 64 + __builtin_ctzll(bins->words[w]);
}

/* The smallest that fits of the first @n of a list. */
static struct block *list_find(struct block *head, uint64_t bytes, uint64_t n)
{
  struct block *best = NULL;
  for (struct block *block = head; block && n; block = block->next, n--) {
    if (block->bytes < bytes || (best && block->bytes > best->bytes))
      continue;
    if (!best || block->bytes < best->bytes || block->address < best->address)
      best = block;
  }
  return best;
}

struct block *lade_cache_bins_find(const struct zone *zone, int queue, uint64_t bytes)
{
  const struct bins *bins = zone->bins[queue];
  if (!bins || !bins->summary)
    return NULL;
  unsigned own = bin_of(bytes);
  struct block *best = list_find(bins->heads[own], bytes, LOOKED_AT);
  if (best)
    return best;
  int i = bin_next(bins, own);
  return i >= 0 ? bins->heads[i] : list_find(bins->heads[own], bytes, UINT64_MAX);
}

/* ---- neighbours ---- */

struct block *lade_cache_block_cut(struct block *block, uint64_t bytes)
{
  LADE_ASSERT(bytes > 0 && bytes < block->bytes && bytes % UNIT_BYTES == 0);
  struct block *rest = lade_cache_block_take(block->segment->zone->shard);
  rest->address = block->address + bytes;
  rest->bytes = block->bytes - bytes;
  rest->segment = block->segment;
  rest->state = block->state;
  rest->queue = block->queue;
  rest->count = block->count;
  rest->before = block;
  rest->users = 0;
  rest->after = block->after;
  if (rest->after)
    rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  return rest;
}

void lade_cache_block_join(struct block *block)
{
  struct block *next = block->after;
  LADE_ASSERT(next && block->address + block->bytes == next->address);
  block->bytes += next->bytes;
  block->after = next->after;
  if (next->after)
    next->after->before = block;
  lade_cache_block_drop(block->segment->zone->shard, next);
}

/* Can two neighbours be one? If so @block takes over whose it is. A pool under capture looks at no queue. */
static bool blocks_match(lade_cache *cache, struct block *block, const struct block *other)
{
  if (block->state != other->state)
    return false;
  if (block->state == BLOCK_HOLE)
    return true;
  if (block->state != BLOCK_FREE)
    return false;
  if (block->queue == other->queue) {
    block->count = LADE_MAX(block->count, other->count);
    return true;
  }
  bool may_look = !block->segment->zone->pool->is_capturing && !(cache->flags & LADE_CACHE_DETERMINISTIC);
  if (other->queue == 0 || (may_look && lade_cache_is_over(cache, other->queue, other->count)))
    return true;
  if (block->queue && !(may_look && lade_cache_is_over(cache, block->queue, block->count)))
    return false;
  block->queue = other->queue;
  block->count = other->count;
  return true;
}

struct block *lade_cache_block_settle(lade_cache *cache, struct block *block)
{
  struct zone *zone = block->segment->zone;
  while (block->after && blocks_match(cache, block, block->after)) {
    lade_cache_list_remove(zone, block->after);
    lade_cache_block_join(block);
  }
  while (block->before && blocks_match(cache, block, block->before)) {
    struct block *before = block->before;
    lade_cache_list_remove(zone, before);
    before->queue = block->queue;
    before->count = block->count;
    lade_cache_block_join(before);
    block = before;
  }
  lade_cache_list_add(zone, block);
  return block;
}

/* ---- the index of live blocks ---- */

void lade_cache_index_add(struct shard *shard, struct block *block)
{
  index_put(shard, block);
}

struct block **lade_cache_index_find(const struct shard *shard, uint64_t address)
{
  struct block **link = &shard->index[index_home(shard, address)];
  while (*link && (*link)->address != address)
    link = &(*link)->namesake;
  return link;
}

void lade_cache_index_remove(struct block **link)
{
  *link = (*link)->namesake;
}
