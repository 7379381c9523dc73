/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: their descriptors, the bins of free ones, and the index that finds a live one by its address.
 *
 * Descriptors live apart from the memory that they describe, which the host may not be able to touch. They come
 * from slabs and are never given back before the cache goes, so that a free never needs the heap.
 *
 * Bins are the two levels of TLSF (Masmano and others, ECRTS 2004): small sizes, in units of 512 bytes, have a list
 * each, and beyond each power of two is cut into 128 steps; a bit per list that is not empty, and a bit per word of
 * those. Insertion and removal are a few instructions. The search looks for the first list that is not empty, from its
 * own on, and takes its head. Only in a list of several sizes, and only if it is the own one, it looks at the first
 * few and takes the smallest that fits, or else the next list's head. What is found is within 1/128 of the best fit, at
 * a fraction of what a balanced tree costs (`lade bench alloc` has both). When the own list is long and nothing at its
 * head fits, and no longer list has anything, the whole list is walked: no fitting block is ever missed.
 *
 * Lists are last in, first out, but large blocks go in by address as far as a few steps suffice. What is taken then
 * depends on what is free and not on the order of the frees, and a step that repeats finds the places that it had;
 * else it drifts until one is lacking. Small blocks seldom lack a chunk, and there the steps cost more than they bring.
 *
 * The index is a table of chains, with two buckets to a descriptor. It holds live blocks only, so that a stale address
 * is not found, whoever asks.
 *
 * What a pair of calls costs: some 600 instructions of the two calls, three branches that go either way at random (is a
 * neighbour free, on either side; is anything left over), 5 ns or more each, and two locks. So all of the common case
 * is inline (cache_blocks.h, cache_trace.h, cache_internal.h), a descriptor is two lines of which the calls read one, a
 * block knows what points to it in its list, lists end with a block that is nobody's, what is free for the queue and
 * what is for everybody are searched as one, and nothing is looked at whose answer would not matter.
 *
 * Rejected: an index per granule of the address space (a load without chains, but a page of memory for every 2 MiB of
 * addresses in use); linear probing, whose removal looks at strangers; sizes rounded to classes, which makes every fit
 * exact and strands up to a class step of each block; the first fit of the own list, some nanoseconds less and half as
 * much waste again where several queues are used; to join and to cut without branches, with a descriptor that is
 * nobody's where there is none: half as many are mispredicted, and every call then waits for what it could have
 * guessed, 10 ns more in all.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache_blocks.h"

#define SLAB_BLOCKS 128
#define INDEX_FIRST ((uint64_t)1024)
#define INDEX_DIVISOR 2 /* at most this part of the index's buckets are blocks */

/* ---- descriptors ---- */

int lade_cache_index_grow(struct shard *shard)
{
  uint64_t n_before = shard->index ? shard->index_mask + 1 : 0, n = n_before ? 2 * n_before : INDEX_FIRST;
  struct block **before = shard->index, **index = calloc(n, sizeof(*index));
  if (!index)
    return -ENOMEM;
  shard->index = index;
  shard->index_mask = n - 1;
  for (uint64_t i = 0; i < n_before; i++)
    for (struct block *block = before[i], *next; block; block = next) {
      next = block->next;
      lade_cache_index_add(shard, block);
    }
  free(before);
  return 0;
}

/* Where an index cannot grow, chains do. */
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
  if (INDEX_DIVISOR * SLAB_BLOCKS * (uint64_t)shard->slabs.n > shard->index_mask)
    lade_cache_index_grow(shard);
  return true;
}

bool lade_cache_blocks_grow(struct shard *shard, int n)
{
  while (shard->n_unused < n)
    if (!slab_add(shard))
      return false;
  return true;
}

/* ---- bins ---- */

struct bins *lade_cache_bins_create(struct zone *zone, int queue)
{
  struct bins *bins = calloc(1, sizeof(*bins));
  if (!bins)
    return NULL;
  bins->end = lade_cache_list_end(zone);
  for (int i = 0; i < N_BINS; i++)
    bins->heads[i] = &zone->shard->end;
  return zone->bins[queue] = bins;
}

/* ---- neighbours ---- */

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
    lade_cache_block_join(zone->shard, block);
  }
  while (block->before && blocks_match(cache, block, block->before)) {
    struct block *before = block->before;
    lade_cache_list_remove(zone, before);
    before->queue = block->queue;
    before->count = block->count;
    lade_cache_block_join(zone->shard, before);
    block = before;
  }
  lade_cache_list_add(zone, block);
  return block;
}
