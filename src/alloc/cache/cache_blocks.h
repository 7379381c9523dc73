/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common case of both calls on blocks, inline: descriptors, bins, neighbours, the index. cache_blocks.c has the
 * essay on each, and the rare cases. Private to src/alloc/.
 */
#ifndef LADE_CACHE_BLOCKS_H
#define LADE_CACHE_BLOCKS_H

#include "alloc/cache/cache_internal.h"

#define LOOKED_AT 8 /* blocks of a list: by a search, before longer lists are tried; by the insertion of a large
                       block */
#define ORDERED_BYTES ((uint64_t)2 << 20) /* blocks from here on, a GPU's chunk, are large */

/* ---- descriptors ---- */

/* Take a descriptor; its contents are undefined. */
static inline struct cache_block *lade_cache_block_take(struct shard *shard)
{
  struct cache_block *block = shard->unused;
  LADE_ASSERT(block);
  shard->unused = block->next;
  shard->n_unused--;
  return block;
}

static inline void lade_cache_block_drop(struct shard *shard, struct cache_block *block)
{
  block->next = shard->unused;
  shard->unused = block;
  shard->n_unused++;
}

/* ---- bins ---- */

/* Sizes below EXACT_UNITS have a bin each; beyond, there are BIN_STEPS to a power of two. */
static inline unsigned lade_cache_bin_of(uint64_t bytes)
{
  uint64_t units = bytes / UNIT_BYTES;
  unsigned shift = 63 - BIN_STEPS_SHIFT - (unsigned)__builtin_clzll(units | BIN_STEPS);
  return shift * BIN_STEPS + (unsigned)(units >> shift);
}

/*
 * Insert a block at @head. The end of a list is unpredictable for the branch predictor, so lists end with a dummy block
 * of the shard. Its link is written and never read, and its address is above all others. Large blocks are inserted by
 * address.
 */
static inline void lade_cache_list_insert(struct cache_block **head, struct cache_block *block)
{
  struct cache_block *next = *head;
  uint64_t address = __builtin_expect(block->bytes < ORDERED_BYTES, 1) ? 0 : block->address;
  for (int n = LOOKED_AT; __builtin_expect(next->address < address, 0) && n; n--) {
    head = &next->next;
    next = *head;
  }
  block->next = next;
  block->link = head;
  next->link = &block->next;
  *head = block;
}

static inline void lade_cache_list_unlink(const struct cache_block *block)
{
  *block->link = block->next;
  block->next->link = block->link;
}

/* Put a free block into its bin, and take it out. */
static inline void lade_cache_bin_enter(struct bins *bins, struct cache_block *block)
{
  unsigned i = lade_cache_bin_of(block->bytes);
  block->bin = (uint16_t)i;
  lade_cache_list_insert(&bins->heads[i], block);
  bins->words[i / 64] |= (uint64_t)1 << (i % 64);
  bins->summary |= (uint64_t)1 << (i / 64);
}

static inline void lade_cache_bin_leave(struct bins *bins, const struct cache_block *block)
{
  unsigned i = block->bin;
  lade_cache_list_unlink(block);
  bins->words[i / 64] &= ~((uint64_t)(bins->heads[i] == bins->end) << (i % 64));
  bins->summary &= ~((uint64_t)!bins->words[i / 64] << (i / 64));
}

/* Insert a free block into its bin, or a hole into the zone's list. */
static inline void lade_cache_list_add(struct zone *zone, struct cache_block *block)
{
  if (block->state == BLOCK_HOLE)
    lade_cache_list_insert(&zone->holes, block);
  else
    lade_cache_bin_enter(zone->bins[block->queue], block);
}

static inline void lade_cache_list_remove(struct zone *zone, const struct cache_block *block)
{
  if (block->state == BLOCK_HOLE)
    lade_cache_list_unlink(block);
  else
    lade_cache_bin_leave(zone->bins[block->queue], block);
}

/* Return the first bin from @from on that is not empty in @bins or in @others, or N_BINS. They may be the same. */
static inline unsigned lade_cache_bin_first(const struct bins *bins, const struct bins *others, unsigned from)
{
  unsigned w = from / 64;
  uint64_t word = (bins->words[w] | others->words[w]) & ~(uint64_t)0 << from % 64;
  uint64_t summary = (bins->summary | others->summary) & ~(uint64_t)1 << w;
  if (word)
    return w * 64 + (unsigned)__builtin_ctzll(word);
  if (!summary)
    return N_BINS;
  w = (unsigned)__builtin_ctzll(summary);
  return w * 64 + (unsigned)__builtin_ctzll(bins->words[w] | others->words[w]);
}

static inline struct cache_block *lade_cache_better_fit(struct cache_block *one, struct cache_block *other)
{
  return !one || (other && other->bytes < one->bytes) ? other : one;
}

/* Return the smallest block of at least @bytes among the first @n of bin @i; NULL if there is none. */
static inline struct cache_block *lade_cache_bin_find(const struct bins *bins, unsigned i, uint64_t bytes, uint64_t n)
{
  struct cache_block *best = NULL;
  for (struct cache_block *block = bins->heads[i]; block != bins->end && n; block = block->next, n--) {
    if (block->bytes < bytes || (best && block->bytes > best->bytes))
      continue;
    if (!best || block->bytes < best->bytes || block->address < best->address)
      best = block;
  }
  return best;
}

/*
 * Return nearly the smallest free block of @bytes or more in @bins and @others; NULL if there is none. No bin holds
 * more than MAX_SPAN_BYTES.
 */
static inline struct cache_block *lade_cache_bins_find(const struct bins *bins, const struct bins *others,
                                                       uint64_t bytes)
{
  if (bytes > MAX_SPAN_BYTES)
    return NULL;
  unsigned own = lade_cache_bin_of(bytes), i = lade_cache_bin_first(bins, others, own);
  if (i - own < (unsigned)(own >= EXACT_UNITS)) { /* i == own and several sizes: seldom both, each at random */
    struct cache_block *best = lade_cache_better_fit(lade_cache_bin_find(bins, own, bytes, LOOKED_AT),
                                                     lade_cache_bin_find(others, own, bytes, LOOKED_AT));
    i = lade_cache_bin_first(bins, others, own + 1);
    if (best || i == N_BINS)
      return best ? best
                  : lade_cache_better_fit(lade_cache_bin_find(bins, own, bytes, UINT64_MAX),
                                          lade_cache_bin_find(others, own, bytes, UINT64_MAX));
  }
  if (i == N_BINS)
    return NULL;
  struct cache_block *block = bins->heads[i], *other = others->heads[i];
  return block == bins->end || (other != bins->end && other->bytes < block->bytes) ? other : block;
}

/* ---- neighbours ---- */

/* Cut a block that is in no list in two. Return the second part, in no list. Takes a descriptor. */
static inline struct cache_block *lade_cache_block_cut(struct shard *shard, struct cache_block *block, uint64_t bytes)
{
  LADE_ASSERT(bytes > 0 && bytes < block->bytes && bytes % UNIT_BYTES == 0);
  struct cache_block *rest = lade_cache_block_take(shard);
  rest->address = block->address + bytes;
  rest->bytes = block->bytes - bytes;
  rest->segment = block->segment;
  rest->state = block->state;
  rest->queue = block->queue;
  rest->kind = block->kind;
  rest->count = block->count;
  rest->before = block;
  rest->after = block->after;
  if (rest->after)
    rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  return rest;
}

/* Append the next block, which is in no list, to @block; its descriptor becomes unused. */
static inline void lade_cache_block_join(struct shard *shard, struct cache_block *block)
{
  struct cache_block *next = block->after, *after = next->after;
  LADE_ASSERT(block->address + block->bytes == next->address);
  block->bytes += next->bytes;
  block->after = after;
  if (after)
    after->before = block;
  lade_cache_block_drop(shard, next);
}

/* Return a block's zone, without reading its segment except for private pools. */
static inline struct zone *lade_cache_zone_of(struct shard *shard, const struct cache_block *block)
{
  return block->kind < N_ZONES ? &shard->zones[block->kind] : block->segment->zone;
}

/* True if a free neighbour is for @queue or for every queue. */
static inline bool lade_cache_block_can_join(const struct cache_block *other, uint8_t queue)
{
  return (other->queue == queue) | (other->queue == 0);
}

/*
 * Join a free block with matching neighbours on both sides, and put it into its bin. False at the ends of a segment, or
 * if a neighbour is free for another queue; lade_cache_block_settle must then do the rest.
 *
 * pre: the block is in no list, and its queue has no younger event.
 */
static inline bool lade_cache_block_return(struct shard *shard, struct cache_block *block)
{
  struct bins **bins = lade_cache_zone_of(shard, block)->bins;
  struct cache_block *after = block->after, *before = block->before;
  uint8_t queue = block->queue;
  if (!after || !before)
    return false;
  if (after->state == BLOCK_FREE) {
    if (!lade_cache_block_can_join(after, queue))
      return false;
    lade_cache_bin_leave(bins[after->queue], after);
    lade_cache_block_join(shard, block);
  }
  if (before->state == BLOCK_FREE) {
    if (!lade_cache_block_can_join(before, queue))
      return false;
    lade_cache_bin_leave(bins[before->queue], before);
    before->queue = queue;
    before->count = block->count;
    lade_cache_block_join(shard, before);
    block = before;
  }
  lade_cache_bin_enter(bins[queue], block);
  return true;
}

/* ---- the index of live blocks ---- */

static inline struct cache_block **lade_cache_index_bucket(const struct shard *shard, uint64_t address)
{
  return &shard->index[(address / UNIT_BYTES * 0x9e3779b97f4a7c15u >> 20) & shard->index_mask];
}

static inline void lade_cache_index_add(struct shard *shard, struct cache_block *block)
{
  struct cache_block **bucket = lade_cache_index_bucket(shard, block->address);
  block->next = *bucket;
  *bucket = block;
}

/* Return the link to the live block at @address, which a removal needs; it holds NULL if there is none. */
static inline struct cache_block **lade_cache_index_find(const struct shard *shard, uint64_t address)
{
  struct cache_block **link = lade_cache_index_bucket(shard, address);
  while (*link && (*link)->address != address)
    link = &(*link)->next;
  return link;
}

static inline void lade_cache_index_remove(struct cache_block **link)
{
  *link = (*link)->next;
}

#endif
