/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The live blocks of the pluggable allocator: a hash table by address.
 *
 * Linear probing in a table that is at most half full, so a search looks at two slots on average. Removal moves the
 * blocks after the gap forward, so there are no marks of removed blocks and the table never degrades. Addresses are
 * multiples of 512; a multiplication spreads them.
 */
#include <stdlib.h>

#include "alloc/allocator/allocator_internal.h"

#define MIN_SLOTS 256 /* a power of two; doubled as blocks come */

static size_t slot_of(const struct live_blocks *blocks, uint64_t address)
{
  return (size_t)((address / ALLOCATOR_ALIGN * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (blocks->n_slots - 1);
}

static struct live_block *slot_find(const struct live_blocks *blocks, uint64_t address)
{
  size_t i = slot_of(blocks, address);
  while (blocks->slots[i].address && blocks->slots[i].address != address)
    i = (i + 1) & (blocks->n_slots - 1);
  return &blocks->slots[i];
}

bool lade_live_blocks_reserve(struct live_blocks *blocks)
{
  if ((blocks->n + 1) * 2 <= blocks->n_slots)
    return true;
  struct live_blocks larger = {.n = blocks->n, .n_slots = LADE_MAX(blocks->n_slots * 2, MIN_SLOTS)};
  larger.slots = calloc(larger.n_slots, sizeof(*larger.slots));
  if (!larger.slots)
    return false;
  for (size_t i = 0; i < blocks->n_slots; i++)
    if (blocks->slots[i].address)
      *slot_find(&larger, blocks->slots[i].address) = blocks->slots[i];
  free(blocks->slots);
  *blocks = larger;
  return true;
}

struct live_block *lade_live_blocks_add(struct live_blocks *blocks, const struct live_block *block)
{
  LADE_ASSERT((blocks->n + 1) * 2 <= blocks->n_slots);
  struct live_block *slot = slot_find(blocks, block->address);
  LADE_ASSERT(!slot->address);
  *slot = *block;
  blocks->n++;
  return slot;
}

struct live_block *lade_live_blocks_find(const struct live_blocks *blocks, uint64_t address)
{
  struct live_block *slot = blocks->n ? slot_find(blocks, address) : NULL;
  return slot && slot->address ? slot : NULL;
}

void lade_live_blocks_remove(struct live_blocks *blocks, struct live_block *block)
{
  size_t mask = blocks->n_slots - 1, gap = (size_t)(block - blocks->slots);
  for (size_t i = (gap + 1) & mask; blocks->slots[i].address; i = (i + 1) & mask) {
    size_t home = slot_of(blocks, blocks->slots[i].address);
    if (((i - home) & mask) < ((i - gap) & mask)) /* its search begins after the gap */
      continue;
    blocks->slots[gap] = blocks->slots[i];
    gap = i;
  }
  blocks->slots[gap] = (struct live_block){0};
  blocks->n--;
}

void lade_live_blocks_finish(struct live_blocks *blocks)
{
  free(blocks->slots);
  *blocks = (struct live_blocks){0};
}
