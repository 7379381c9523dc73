/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that are shared with other processes.
 *
 * The giver makes a pool of shareable chunks (cache_chunks.c). It describes a block by its offset in its first chunk
 * and a descriptor for each chunk that it touches. The taker reserves a range of that many chunks, maps the given
 * chunks side by side, and has the block at the same offset. The callers transport the descriptors.
 *
 * Chunks belong to their creator until the last mapping is gone, so no memory counts twice. The giver may reuse a freed
 * block while the taker still reads it. Only the two callers together know when a block is done. So the cache keeps no
 * count of users, because a process that crashes would never decrement it.
 *
 * Input from outside is checked before any mapping: sizes must agree with each other and with the descriptors, and no
 * process may be able to shrink the memory later (the device checks this).
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc/cache/cache_blocks.h"

#define MAX_SHARE_CHUNKS 65536 /* of a received description, which is not trusted */

static uint64_t user_address(const lade_cache *cache, const struct cache_block *block)
{
  return block->address + (cache->flags & LADE_CACHE_SANITIZE ? GUARD_BYTES : 0);
}

static struct lade_cache_share share_describe(const lade_cache *cache, const struct cache_block *block)
{
  uint64_t start_bytes = user_address(cache, block) - block->segment->base;
  uint64_t offset = start_bytes % cache->chunk_bytes, end_bytes = offset + block->requested_bytes;
  return (struct lade_cache_share){
      .bytes = block->requested_bytes,
      .offset = offset,
      .chunk_bytes = cache->chunk_bytes,
      .n_chunks = (int)(lade_align_up(end_bytes, cache->chunk_bytes) / cache->chunk_bytes),
  };
}

static int descriptors_get(lade_cache *cache, const struct cache_block *block, int *descriptors, int n)
{
  const struct cache_segment *segment = block->segment;
  uint64_t first = (user_address(cache, block) - segment->base) / cache->chunk_bytes;
  for (int i = 0; i < n; i++) {
    int error = lade_device_chunk_export(cache->device, segment->chunks[first + (uint64_t)i], &descriptors[i]);
    if (!error)
      continue;
    while (i > 0)
      close(descriptors[--i]);
    return error;
  }
  return 0;
}

int lade_cache_share_get(lade_cache *cache, const void *address, struct lade_cache_share *ret_share, int *descriptors,
                         int n)
{
  if (!cache)
    return -EINVAL;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  if (lade_struct_check("lade_cache_share", ret_share, NULL))
    return -EINVAL;
  lade_cache_lock_all(cache);
  uint64_t guard_bytes = cache->flags & LADE_CACHE_SANITIZE ? GUARD_BYTES : 0;
  uint64_t start = (uint64_t)(uintptr_t)address - guard_bytes;
  const struct shard *shard = lade_cache_owner_get(cache, start);
  const struct cache_block *block = shard ? *lade_cache_index_find(shard, start) : NULL;
  int code = block && block->segment->zone->pool->is_shared ? 0 : -EINVAL;
  if (!code) {
    struct lade_cache_share share = share_describe(cache, block);
    if (descriptors)
      code = n < share.n_chunks ? -ENOSPC : descriptors_get(cache, block, descriptors, share.n_chunks);
    if (!code)
      lade_struct_fill("lade_cache_share", ret_share, &share, sizeof(share), NULL);
  }
  lade_cache_unlock_all(cache);
  return code;
}

/* ---- the taker's side ---- */

static bool share_is_whole(const lade_cache *cache, const struct lade_cache_share *share)
{
  struct lade_device_info info;
  lade_device_get_info(cache->device, &info);
  if (share->n_chunks < 1 || share->n_chunks > MAX_SHARE_CHUNKS)
    return false;
  if (!share->chunk_bytes || share->chunk_bytes % info.chunk_bytes || share->chunk_bytes > MAX_SPAN_BYTES)
    return false;
  uint64_t all_bytes = share->chunk_bytes * (uint64_t)share->n_chunks;
  return share->offset < share->chunk_bytes && share->bytes > 0 && share->bytes <= all_bytes - share->offset &&
         share->offset + share->bytes > all_bytes - share->chunk_bytes;
}

/* Release all parts of @share that exist. */
static void share_finish(lade_cache *cache, struct share *share)
{
  for (int i = 0; i < share->n_chunks; i++)
    lade_device_chunk_release(cache->device, share->chunks[i]);
  if (share->base)
    lade_device_release(cache->device, share->base, share->bytes);
  free(share->chunks);
}

static int share_map(lade_cache *cache, struct share *share, const struct lade_cache_share *given,
                     const int *descriptors)
{
  share->chunks = calloc((size_t)given->n_chunks, sizeof(lade_chunk *));
  if (!share->chunks)
    return -ENOMEM;
  int error = lade_device_reserve(cache->device, share->bytes, &share->base);
  while (!error && share->n_chunks < given->n_chunks) {
    lade_chunk **chunk = &share->chunks[share->n_chunks];
    error = lade_device_chunk_import(cache->device, descriptors[share->n_chunks], given->chunk_bytes, chunk);
    if (!error)
      error = lade_device_map(cache->device, share->base + (uint64_t)share->n_chunks++ * given->chunk_bytes, *chunk);
  }
  share->address = share->base + given->offset;
  return error;
}

int lade_cache_share_open(lade_cache *cache, const struct lade_cache_share *share, const int *descriptors,
                          void **ret_address)
{
  if (!cache || !ret_address)
    return -EINVAL;
  struct lade_cache_share own;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  if (lade_struct_read("lade_cache_share", share, &own, sizeof(own), NULL) || !share_is_whole(cache, &own) ||
      !descriptors)
    return -EINVAL;
  struct share made = {.bytes = own.chunk_bytes * (uint64_t)own.n_chunks};
  lade_cache_lock_all(cache);
  int error = share_map(cache, &made, &own, descriptors);
  if (!error && !LADE_PUSH(&cache->shares, made))
    error = -ENOMEM;
  if (error)
    share_finish(cache, &made);
  else
    *ret_address = (void *)(uintptr_t)made.address;
  lade_cache_unlock_all(cache);
  return error;
}

int lade_cache_share_close(lade_cache *cache, void *address)
{
  if (!cache)
    return -EINVAL;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  int code = -EINVAL;
  lade_cache_lock_all(cache);
  for (int i = 0; i < cache->shares.n && code; i++) {
    if (cache->shares.items[i].address != (uint64_t)(uintptr_t)address)
      continue;
    share_finish(cache, &cache->shares.items[i]);
    cache->shares.items[i] = cache->shares.items[--cache->shares.n];
    code = 0;
  }
  lade_cache_unlock_all(cache);
  return code;
}

void lade_cache_shares_close(lade_cache *cache)
{
  for (int i = 0; i < cache->shares.n; i++)
    share_finish(cache, &cache->shares.items[i]);
  cache->shares.n = 0;
}
