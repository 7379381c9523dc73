/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: their descriptors, the bins of free ones, and the index that finds a live one by its address.
 *
 * Descriptors are apart from the memory that they describe, which the host may not be able to touch. They come from
 * slabs and are only returned with the cache, so that a free never needs the heap.
 *
 * Bins are the two levels of TLSF (Masmano and others, ECRTS 2004). Small sizes, in units of 512 bytes, have a list
 * each; beyond, each power of two is cut into 128 steps. There is a bit per non-empty list and a bit per non-zero word
 * of these. Insertion and removal are a few instructions. The search finds the first non-empty list, from its own on,
 * and takes its head. If its own list holds several sizes, it first looks at a few blocks of it and takes the smallest
 * that fits. The result is within 1/128 of the best fit, at a fraction of the cost of a balanced tree (`lade bench
 * alloc` has both). If no block at the own list's start fits and all longer lists are empty, the whole own list is
 * walked. So no fitting block is missed.
 *
 * Lists are last in, first out, but large blocks are inserted by address as far as a few steps suffice. The block taken
 * then depends on the set of free blocks and not on the order of the frees. So a step that repeats finds the same
 * places. Otherwise the places drift until one is missing. Small blocks seldom lack a chunk, and there the steps cost
 * more than they gain.
 *
 * The index is a table of chains, with two buckets to a descriptor. It holds live blocks only, so a stale address is
 * never found.
 *
 * The cost of a pair of calls: some 600 instructions, two locks, and three branches that go either way at random (is a
 * neighbour free, on either side; is there a rest), 5 ns or more each. So all of the common case is inline
 * (cache_blocks.h, cache_trace.h, cache_internal.h). A descriptor is two cache lines, of which the calls read one. A
 * block stores the link that points to it in its list. Lists end with a dummy block. The lists for the queue and for
 * every queue are searched as one. No field is read whose value would not matter.
 *
 * Rejected:
 * - An index per granule of the address space: a load without chains, but a page of memory for every 2 MiB of addresses
 * in use.
 * - Linear probing, whose removal touches unrelated blocks.
 * - Sizes rounded to classes, which makes every fit exact and strands up to a class step of each block.
 * - The first fit of the own list: some nanoseconds less, and half as much waste again if several queues are used.
 * - Joins and cuts without branches, with a dummy descriptor in place of a missing one. Half as many branches are
 * mispredicted, but every call then waits for values that it could have guessed, 10 ns more in all.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/cache_blocks.h"

#define SLAB_BLOCKS 128 /* records of blocks in one allocation */
#define INDEX_FIRST ((uint64_t)1024) /* slots; a power of two, doubled as blocks come */
#define INDEX_DIVISOR 2 /* at most this part of the index's buckets is used */

/* ---- descriptors ---- */

int lade_cache_index_grow(struct shard *shard)
{
  uint64_t n_before = shard->index ? shard->index_mask + 1 : 0, n = n_before ? 2 * n_before : INDEX_FIRST;
  struct cache_block **before = shard->index, **index = calloc(n, sizeof(*index));
  if (!index)
    return -ENOMEM;
  shard->index = index;
  shard->index_mask = n - 1;
  for (uint64_t i = 0; i < n_before; i++)
    for (struct cache_block *block = before[i], *next; block; block = next) {
      next = block->next;
      lade_cache_index_add(shard, block);
    }
  free(before);
  return 0;
}

/* Add a slab of descriptors. If the index cannot grow, its chains do. */
static bool slab_add(struct shard *shard)
{
  struct cache_block *slab = aligned_alloc(alignof(struct cache_block), SLAB_BLOCKS * sizeof(*slab));
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

/*
 * True if two neighbours can be one block; @block then takes over the queue and count of both. A pool under capture
 * polls no queue.
 */
static bool blocks_match(lade_cache *cache, struct cache_block *block, const struct cache_block *other)
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

struct cache_block *lade_cache_block_settle(lade_cache *cache, struct cache_block *block)
{
  struct zone *zone = block->segment->zone;
  while (block->after && blocks_match(cache, block, block->after)) {
    lade_cache_list_remove(zone, block->after);
    lade_cache_block_join(zone->shard, block);
  }
  while (block->before && blocks_match(cache, block, block->before)) {
    struct cache_block *before = block->before;
    lade_cache_list_remove(zone, before);
    before->queue = block->queue;
    before->count = block->count;
    lade_cache_block_join(zone->shard, before);
    block = before;
  }
  lade_cache_list_add(zone, block);
  return block;
}
