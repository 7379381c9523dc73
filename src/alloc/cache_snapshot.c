/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots in the format of PyTorch's memory_viz page: a pickle of plain dicts, lists, strings and integers.
 *
 * The page reads two things: segments with their blocks, and the history of events. A run of addresses that has memory
 * under it is a segment here. A block is active_allocated, active_awaiting_free or inactive. An event of the
 * trace becomes one or two entries, since a free that is done at once is asked for and completed. Places become a
 * frame each, `file:line`, so that the page can colour by origin.
 *
 * Pickle's protocol 4 needs few opcodes for data without sharing: PROTO, EMPTY_DICT and EMPTY_LIST, MARK with
 * SETITEMS and APPENDS around their contents, short and long strings, integers, NEWTRUE, STOP. There is no memo
 * and no frame; readers need neither.
 *
 * The text is made in memory under the mutex, so that it is one moment's picture, and written after.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache_internal.h"
#include "base/file.h"

struct pickle {
  char *bytes;
  size_t n, room;
  bool is_broken; /* memory ran out */
};

static void put(struct pickle *pickle, const void *bytes, size_t n)
{
  if (pickle->n + n > pickle->room) {
    size_t room = LADE_MAX(2 * pickle->room, pickle->n + n + 4096);
    char *grown = pickle->is_broken ? NULL : realloc(pickle->bytes, room);
    if (!grown) {
      pickle->is_broken = true;
      return;
    }
    pickle->bytes = grown;
    pickle->room = room;
  }
  memcpy(pickle->bytes + pickle->n, bytes, n);
  pickle->n += n;
}

static void put_op(struct pickle *pickle, const char *ops)
{
  put(pickle, ops, strlen(ops));
}

static void put_text(struct pickle *pickle, const char *text, size_t n)
{
  uint8_t head[5] = {'X', (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
  put(pickle, head, sizeof(head));
  put(pickle, text, n);
}

static void put_string(struct pickle *pickle, const char *text)
{
  put_text(pickle, text, strlen(text));
}

/* LONG1 with nine bytes: little-endian, the ninth keeps it positive. */
static void put_integer(struct pickle *pickle, uint64_t value)
{
  uint8_t bytes[11] = {0x8a, 9};
  for (int i = 0; i < 8; i++)
    bytes[2 + i] = (uint8_t)(value >> (8 * i));
  put(pickle, bytes, sizeof(bytes));
}

static void put_item(struct pickle *pickle, const char *key, uint64_t value)
{
  put_string(pickle, key);
  put_integer(pickle, value);
}

static void put_frames(struct pickle *pickle, const char *place)
{
  put_string(pickle, "frames");
  put_op(pickle, "](");
  if (place) {
    const char *colon = strrchr(place, ':');
    size_t n = colon ? (size_t)(colon - place) : strlen(place);
    put_op(pickle, "}(");
    put_string(pickle, "name");
    put_string(pickle, place);
    put_string(pickle, "filename");
    put_text(pickle, place, n);
    put_item(pickle, "line", colon ? strtoul(colon + 1, NULL, 10) : 0);
    put_op(pickle, "u");
  }
  put_op(pickle, "e");
}

/* ---- segments ---- */

static bool is_active(const struct block *block)
{
  return block->state == BLOCK_LIVE || block->state == BLOCK_WAITING || block->state == BLOCK_QUARANTINE;
}

static void put_block(struct pickle *pickle, const struct block *block)
{
  put_op(pickle, "}(");
  put_item(pickle, "address", block->address);
  put_item(pickle, "size", block->bytes);
  put_item(pickle, "requested_size", is_active(block) ? block->requested_bytes : block->bytes);
  put_string(pickle, "state");
  put_string(pickle, block->state == BLOCK_LIVE ? "active_allocated"
                     : is_active(block)         ? "active_awaiting_free"
                                                : "inactive");
  put_frames(pickle, is_active(block) ? block->place : NULL);
  put_op(pickle, "u");
}

/* The run of blocks with memory from @first on. Returns what comes after. */
static const struct block *put_run(struct pickle *pickle, const struct block *first, uint64_t pool)
{
  uint64_t total_bytes = 0, live_bytes = 0, active_bytes = 0, requested_bytes = 0;
  const struct block *end = first;
  for (; end && end->state != BLOCK_HOLE; end = end->after) {
    total_bytes += end->bytes;
    live_bytes += end->state == BLOCK_LIVE ? end->bytes : 0;
    active_bytes += is_active(end) ? end->bytes : 0;
    requested_bytes += end->state == BLOCK_LIVE ? end->requested_bytes : 0;
  }
  put_op(pickle, "}(");
  put_item(pickle, "device", 0);
  put_item(pickle, "address", first->address);
  put_item(pickle, "total_size", total_bytes);
  put_item(pickle, "allocated_size", live_bytes);
  put_item(pickle, "active_size", active_bytes);
  put_item(pickle, "requested_size", requested_bytes);
  put_item(pickle, "stream", first->queue);
  put_string(pickle, "segment_type");
  put_string(pickle, first->segment->zone->kind == ZONE_SMALL ? "small" : "large");
  put_string(pickle, "segment_pool_id");
  put_op(pickle, "(");
  put_integer(pickle, pool);
  put_integer(pickle, 0);
  put_op(pickle, "t");
  put_string(pickle, "is_expandable");
  put_op(pickle, "\x88");
  put_string(pickle, "blocks");
  put_op(pickle, "](");
  for (const struct block *block = first; block != end; block = block->after)
    put_block(pickle, block);
  put_op(pickle, "eu");
  return end;
}

static void put_segments(struct pickle *pickle, const lade_cache *cache)
{
  put_string(pickle, "segments");
  put_op(pickle, "](");
  uint64_t number = 0;
  for (const struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next) {
    uint64_t id = pool->is_private ? ++number : 0;
    for (int kind = 0; kind < N_ZONES; kind++)
      for (const struct segment *segment = pool->zones[kind].segments; segment; segment = segment->next)
        for (const struct block *block = segment->first; block;)
          block = block->state == BLOCK_HOLE ? block->after : put_run(pickle, block, id);
  }
  put_op(pickle, "e");
}

/* ---- history ---- */

static void put_event(struct pickle *pickle, const struct lade_cache_event *event, const char *action)
{
  put_op(pickle, "}(");
  put_string(pickle, "action");
  put_string(pickle, action);
  put_item(pickle, event->action == LADE_CACHE_OOM ? "device_free" : "addr", event->address);
  put_item(pickle, "size", event->bytes);
  put_item(pickle, "stream", (uint64_t)event->queue);
  put_item(pickle, "time_us", (uint64_t)event->time_us);
  put_frames(pickle, event->place);
  put_op(pickle, "u");
}

static void put_history(struct pickle *pickle, const lade_cache *cache)
{
  static const char *const names[] = {
      [LADE_CACHE_ALLOC] = "alloc",
      [LADE_CACHE_FREE] = "free_completed",
      [LADE_CACHE_FREE_REQUESTED] = "free_requested",
      [LADE_CACHE_FREE_COMPLETED] = "free_completed",
      [LADE_CACHE_SEGMENT_MAP] = "segment_map",
      [LADE_CACHE_SEGMENT_UNMAP] = "segment_unmap",
      [LADE_CACHE_OOM] = "oom",
  };
  put_string(pickle, "device_traces");
  put_op(pickle, "](](");
  uint64_t kept = cache->trace ? LADE_MIN(cache->n_traced, cache->trace_mask + 1) : 0;
  for (uint64_t i = cache->n_traced - kept; i < cache->n_traced; i++) {
    const struct lade_cache_event *event = &cache->trace[i & cache->trace_mask];
    if (event->action == LADE_CACHE_FREE)
      put_event(pickle, event, "free_requested");
    put_event(pickle, event, names[event->action]);
  }
  put_op(pickle, "ee");
}

static void put_settings(struct pickle *pickle, const lade_cache *cache)
{
  put_string(pickle, "allocator_settings");
  put_op(pickle, "}(");
  put_string(pickle, "PYTORCH_CUDA_ALLOC_CONF");
  put_string(pickle, "");
  put_string(pickle, "expandable_segments");
  put_op(pickle, "\x88");
  put_item(pickle, "lade_limit_bytes", cache->limit_bytes);
  put_item(pickle, "lade_chunk_bytes", cache->chunk_bytes);
  put_op(pickle, "u");
  put_string(pickle, "external_annotations");
  put_op(pickle, "]");
}

int lade_cache_write_snapshot(lade_cache *cache, const char *path, struct lade_error *error)
{
  if (!atomic_load(cache->is_alive))
    return lade_error_set(error, -EPERM, "cache: this process is a fork of the one that the cache belongs to");
  struct pickle pickle = {0};
  put_op(&pickle, "\x80\x04}(");
  pthread_mutex_lock(&cache->mutex);
  put_segments(&pickle, cache);
  put_history(&pickle, cache);
  put_settings(&pickle, cache);
  pthread_mutex_unlock(&cache->mutex);
  put_op(&pickle, "u.");
  int code = pickle.is_broken ? lade_error_set(error, -ENOMEM, "cache: no host memory for a snapshot")
                              : lade_file_replace(path, pickle.bytes, pickle.n, error);
  free(pickle.bytes);
  return code;
}
