/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sanitizer of the caching allocator: patterns, guards, quarantine, and a record of past frees.
 *
 * A block gets a guard of 512 bytes on each side. Fresh memory gets the pattern FRESH, so a read before the first write
 * always returns the same invalid values. A freed block goes to the end of a quarantine of limited bytes. When its
 * queues are done with it, its guards are checked and it is filled with FREED; not earlier, because work submitted
 * before the free may still use it. When the block leaves, that pattern is checked: a difference is a write after the
 * free. Each finding names the block and both its places.
 *
 * The sanitizer submits no work and never waits. A block whose queues are busy when it has to leave is not checked.
 * Memory that its queue still uses when the queue gets it again has no guards this time.
 *
 * A free of an address without a live block is looked up in a ring of the last frees. If it is found there, the block
 * was freed twice.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/cache_trace.h"

#define FRESH 0xcb /* never written since the allocation */
#define GUARD 0xfd /* beside the block */
#define FREED 0xdb /* in quarantine */

int lade_cache_guard_init(lade_cache *cache, uint64_t quarantine_bytes)
{
  cache->quarantine_limit_bytes = quarantine_bytes;
  cache->freed = calloc(N_FREED, sizeof(*cache->freed));
  cache->findings = calloc(N_FINDINGS, sizeof(*cache->findings));
  return cache->freed && cache->findings ? 0 : -ENOMEM;
}

void lade_cache_guard_finish(lade_cache *cache)
{
  free(cache->freed);
  free(cache->findings);
}

static void finding_add(lade_cache *cache, const struct cache_block *block, const char *fault, uint64_t offset)
{
  uint64_t i = cache->stats.n_findings++;
  if (i < N_FINDINGS)
    lade_error_set(&cache->findings[i], -EFAULT,
                   "cache: %s at byte %lld of the %llu at %#llx, allocated at %s, freed at %s", fault,
                   (long long)offset - (long long)GUARD_BYTES, (unsigned long long)block->requested_bytes,
                   (unsigned long long)(block->address + GUARD_BYTES), lade_cache_echo(block->place, ECHO_BYTES).text,
                   lade_cache_echo(block->free_place, ECHO_BYTES).text);
}

/* Return the offset of the first byte in [from, to) of the block that is not @value, or @to. */
static uint64_t pattern_check(const struct cache_block *block, uint64_t from, uint64_t to, int value)
{
  const unsigned char *bytes = (const unsigned char *)(uintptr_t)block->address;
  while (from < to && bytes[from] == value)
    from++;
  return from;
}

static void pattern_fill(const struct cache_block *block, uint64_t from, uint64_t to, int value)
{
  memset((unsigned char *)(uintptr_t)block->address + from, value, to - from);
}

void lade_cache_guard_fill(struct cache_block *block)
{
  block->is_poisoned = false;
  if (!block->is_guarded)
    return;
  uint64_t end = GUARD_BYTES + block->requested_bytes;
  pattern_fill(block, 0, GUARD_BYTES, GUARD);
  pattern_fill(block, GUARD_BYTES, end, FRESH);
  pattern_fill(block, end, end + GUARD_BYTES, GUARD);
}

/* True if all queues that may use the freed block are done with it. */
static bool block_is_quiet(lade_cache *cache, const struct cache_block *block)
{
  if (block->segment->zone->pool->is_capturing || !lade_cache_is_over(cache, block->queue, block->count))
    return false;
  for (int i = 1; i < cache->n_queues && block->users >> i; i++)
    if (block->users >> i & 1 && !lade_cache_is_over(cache, i, lade_cache_queue_count(cache, i)))
      return false;
  return true;
}

static void block_poison(lade_cache *cache, struct cache_block *block)
{
  uint64_t end = GUARD_BYTES + block->requested_bytes, at = pattern_check(block, 0, GUARD_BYTES, GUARD);
  if (block->is_guarded && at < GUARD_BYTES)
    finding_add(cache, block, "something wrote before the block,", at);
  at = pattern_check(block, end, end + GUARD_BYTES, GUARD);
  if (block->is_guarded && at < end + GUARD_BYTES)
    finding_add(cache, block, "something wrote past the end,", at);
  pattern_fill(block, 0, end + GUARD_BYTES, FREED);
  block->is_poisoned = true;
}

static void block_leave(lade_cache *cache, struct cache_block *block)
{
  uint64_t end = 2 * GUARD_BYTES + block->requested_bytes;
  if (block->is_poisoned) {
    uint64_t at = pattern_check(block, 0, end, FREED);
    if (at < end)
      finding_add(cache, block, "something wrote after the free,", at);
  }
  cache->quarantine_bytes -= block->bytes;
  lade_cache_block_release(cache, block, false);
}

static bool first_leave(lade_cache *cache)
{
  struct cache_block *block = cache->quarantine_first;
  if (!block)
    return false;
  cache->quarantine_first = block->next;
  if (!block->next)
    cache->quarantine_last = NULL;
  block_leave(cache, block);
  return true;
}

/* Fill quiet blocks with FREED, in the order of the frees. A block that is not quiet delays those after it. */
static void quarantine_poison(lade_cache *cache)
{
  for (struct cache_block *block = cache->quarantine_first; cache->is_touchable && block; block = block->next) {
    if (block->is_poisoned)
      continue;
    if (!block_is_quiet(cache, block))
      return;
    block_poison(cache, block);
  }
}

void lade_cache_guard_keep(lade_cache *cache, struct cache_block *block)
{
  struct freed *freed = &cache->freed[block->address / UNIT_BYTES % N_FREED];
  *freed = (struct freed){block->address, block->place, block->free_place};
  lade_cache_trace_add(cache, block->segment->zone->shard, LADE_CACHE_FREE_REQUESTED, block,
                       block->free_place);
  lade_cache_pending_add(cache, block);
  block->state = BLOCK_QUARANTINE;
  block->next = NULL;
  if (cache->quarantine_last)
    cache->quarantine_last->next = block;
  else
    cache->quarantine_first = block;
  cache->quarantine_last = block;
  cache->quarantine_bytes += block->bytes;
  quarantine_poison(cache);
  while (cache->quarantine_bytes > cache->quarantine_limit_bytes)
    first_leave(cache);
}

bool lade_cache_guard_drain(lade_cache *cache, bool is_all)
{
  bool is_changed = false;
  quarantine_poison(cache);
  while (is_all && first_leave(cache))
    is_changed = true;
  return is_changed;
}

int lade_cache_guard_wrong_free(lade_cache *cache, uint64_t address, const char *place, struct lade_error *error)
{
  uint64_t start = address - GUARD_BYTES;
  const struct freed *freed = cache->freed ? &cache->freed[start / UNIT_BYTES % N_FREED] : NULL;
  if (freed && freed->address == start)
    return lade_error_set(error, -EINVAL, "cache: %#llx is freed twice: allocated at %s, freed at %s, again at "
                          "%s", (unsigned long long)address, lade_cache_echo(freed->place, ECHO_BYTES).text,
                          lade_cache_echo(freed->free_place, ECHO_BYTES).text, lade_cache_echo(place, ECHO_BYTES).text);
  return lade_error_set(error, -EINVAL, "cache: %#llx is no live block of this cache, freed at %s",
                        (unsigned long long)address, lade_cache_echo(place, ECHO_BYTES).text);
}

int lade_cache_get_finding(lade_cache *cache, int index, struct lade_error *ret_finding)
{
  if (!cache || !ret_finding)
    return -EINVAL;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  lade_cache_lock_all(cache);
  quarantine_poison(cache);
  int code = index >= 0 && index < N_FINDINGS && (uint64_t)index < cache->stats.n_findings ? 0 : -ENOENT;
  if (!code)
    *ret_finding = cache->findings[index];
  lade_cache_unlock_all(cache);
  return code;
}
