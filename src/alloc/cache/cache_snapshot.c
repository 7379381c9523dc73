/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots in the format of PyTorch's memory_viz page: a pickle of plain dicts, lists, strings and numbers.
 *
 * The page reads two things: segments with their blocks, and the history of events, which it plays backwards from the
 * blocks. So events must agree with blocks. A run of mapped addresses is a segment here, of stream 0, because its
 * blocks may be of any queue. A block is active_allocated, active_pending_free or inactive. An event of the trace
 * becomes one or two entries: a free that completes at once has one for the request and one for the completion. A place
 * becomes a frame, `file:line:tag`, so that the page can show owners.
 *
 * Pickle's protocol 4 needs few opcodes for data without sharing: PROTO, EMPTY_DICT and EMPTY_LIST, MARK with SETITEMS
 * and APPENDS around their contents, strings, integers, a float, booleans, STOP. There is no memo and no frame; readers
 * need neither. The page's own reader takes integers of at most 8 bytes. It passes the items between a MARK and its
 * APPENDS to one call as arguments, whose number is limited, so lists are written in batches.
 *
 * The text is made in memory under the lock, so that it is consistent, and written afterwards.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/cache_internal.h"
#include "base/file.h"

#define BATCH 1000 /* items of a list between MARK and APPENDS */
#define OP_TRUE "\x88"
#define OP_FALSE "\x89"

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

/* Put a little-endian integer: of one or two bytes, which are unsigned, or of four or eight, which are signed. */
static void put_integer(struct pickle *pickle, uint64_t value)
{
  uint8_t bytes[10] = {value <= 0xff ? 'K' : value <= 0xffff ? 'M' : value <= INT32_MAX ? 'J' : 0x8a, 8};
  int head = bytes[0] == 0x8a ? 2 : 1, n = bytes[0] == 'K' ? 1 : bytes[0] == 'M' ? 2 : bytes[0] == 'J' ? 4 : 8;
  LADE_ASSERT(value <= INT64_MAX);
  for (int i = 0; i < n; i++)
    bytes[head + i] = (uint8_t)(value >> (8 * i));
  put(pickle, bytes, (size_t)(head + n));
}

static void put_item(struct pickle *pickle, const char *key, uint64_t value)
{
  put_string(pickle, key);
  put_integer(pickle, value);
}

static void put_flag(struct pickle *pickle, const char *key, bool is_set)
{
  put_string(pickle, key);
  put_op(pickle, is_set ? OP_TRUE : OP_FALSE);
}

/* Begin a list, note each item after it was put, and end the list; @n counts the items. */
static void list_begin(struct pickle *pickle, const char *key)
{
  put_string(pickle, key);
  put_op(pickle, "](");
}

static void list_item(struct pickle *pickle, uint64_t *n)
{
  if (++*n % BATCH == 0)
    put_op(pickle, "e(");
}

/* Put a file's name, restricted to ASCII, because readers need UTF-8 and a place is arbitrary text of the program. */
static void put_file_name(struct pickle *pickle, const char *text, size_t n)
{
  char name[256];
  n = LADE_MIN(n, sizeof(name));
  for (size_t i = 0; i < n; i++)
    name[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
  put_text(pickle, name, n);
}

/* Put the frames of a block or event. Memory without an owner has none; its @tag is NULL. */
static void put_frames(struct pickle *pickle, const char *place, const char *tag)
{
  list_begin(pickle, "frames");
  if (tag) {
    const char *file = place ? place : "unknown", *colon = strrchr(file, ':');
    put_op(pickle, "}(");
    put_string(pickle, "name");
    put_file_name(pickle, tag, strlen(tag));
    put_string(pickle, "filename");
    put_file_name(pickle, file, colon ? (size_t)(colon - file) : strlen(file));
    put_item(pickle, "line", colon ? strtoul(colon + 1, NULL, 10) & INT32_MAX : 0);
    put_op(pickle, "u");
  }
  put_op(pickle, "e");
}

/* ---- segments ---- */

static bool is_active(const struct cache_block *block)
{
  return block->state == BLOCK_LIVE || block->state == BLOCK_WAITING || block->state == BLOCK_QUARANTINE;
}

static void put_block(struct pickle *pickle, const lade_cache *cache, const struct cache_block *block)
{
  put_op(pickle, "}(");
  put_item(pickle, "address", block->address);
  put_item(pickle, "size", block->bytes);
  put_item(pickle, "requested_size", is_active(block) ? block->requested_bytes : block->bytes);
  put_string(pickle, "state");
  put_string(pickle, block->state == BLOCK_LIVE ? "active_allocated"
                     : is_active(block)         ? "active_pending_free"
                                                : "inactive");
  put_frames(pickle, block->place, is_active(block) ? cache->tags[block->tag].name : NULL);
  put_op(pickle, "u");
}

/* Put the run of mapped blocks from @first on as a segment. Return the block after it. */
static const struct cache_block *put_run(struct pickle *pickle, const lade_cache *cache,
                                         const struct cache_block *first,
                                         uint64_t pool)
{
  uint64_t total_bytes = 0, live_bytes = 0, active_bytes = 0, requested_bytes = 0, n = 0;
  const struct cache_block *end = first;
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
  put_item(pickle, "stream", 0);
  put_string(pickle, "segment_type");
  put_string(pickle, first->segment->zone->kind == ZONE_SMALL ? "small" : "large");
  put_string(pickle, "segment_pool_id");
  put_op(pickle, "(");
  put_integer(pickle, pool);
  put_integer(pickle, 0);
  put_op(pickle, "t");
  put_flag(pickle, "is_expandable", true);
  put_frames(pickle, NULL, NULL);
  list_begin(pickle, "blocks");
  for (const struct cache_block *block = first; block != end; block = block->after) {
    put_block(pickle, cache, block);
    list_item(pickle, &n);
  }
  put_op(pickle, "eu");
  return end;
}

static void put_segments(struct pickle *pickle, const lade_cache *cache)
{
  uint64_t number = 0, n = 0;
  list_begin(pickle, "segments");
  for (const struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next) {
    uint64_t id = pool->is_private ? ++number : 0;
    for (const struct zone *zone = pool->zones; zone; zone = zone->next)
      for (const struct cache_segment *segment = zone->segments; segment; segment = segment->next)
        for (const struct cache_block *block = segment->first; block;) {
          if (block->state == BLOCK_HOLE) {
            block = block->after;
            continue;
          }
          block = put_run(pickle, cache, block, id);
          list_item(pickle, &n);
        }
  }
  put_op(pickle, "e");
}

/* ---- history ---- */

static void put_event(struct pickle *pickle, const lade_cache *cache, const struct lade_cache_event *event,
                      const char *action)
{
  bool is_chunk = event->action == LADE_CACHE_SEGMENT_MAP || event->action == LADE_CACHE_SEGMENT_UNMAP;
  put_op(pickle, "}(");
  put_string(pickle, "action");
  put_string(pickle, action);
  put_item(pickle, event->action == LADE_CACHE_OOM ? "device_free" : "addr",
           LADE_MIN(event->address, (uint64_t)INT64_MAX));
  put_item(pickle, "size", event->bytes);
  put_item(pickle, "stream", (uint64_t)event->queue);
  put_item(pickle, "time_us", (uint64_t)event->time_us);
  put_frames(pickle, event->place, is_chunk ? NULL : cache->tags[event->tag].name);
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
  list_begin(pickle, "device_traces");
  put_op(pickle, "](");
  uint64_t n = 0, n_events = lade_cache_trace_count(cache);
  struct lade_cache_event *events = calloc(n_events + 1, sizeof(*events));
  pickle->is_broken |= !events;
  if (events)
    lade_cache_trace_copy(cache, events, n_events);
  for (uint64_t i = 0; events && i < n_events; i++) {
    if (events[i].action == LADE_CACHE_FREE) {
      put_event(pickle, cache, &events[i], "free_requested");
      list_item(pickle, &n);
    }
    put_event(pickle, cache, &events[i], names[events[i].action]);
    list_item(pickle, &n);
  }
  free(events);
  put_op(pickle, "ee");
}

/* Put PyTorch's settings, with values that have a meaning here, and this cache's own parameters. */
static void put_settings(struct pickle *pickle, const lade_cache *cache)
{
  put_string(pickle, "allocator_settings");
  put_op(pickle, "}(");
  put_string(pickle, "PYTORCH_CUDA_ALLOC_CONF");
  put_string(pickle, "");
  put_string(pickle, "max_split_size");
  put(pickle, "J\xff\xff\xff\xff", 5); /* -1: none */
  put_string(pickle, "garbage_collection_threshold");
  put(pickle, "G\0\0\0\0\0\0\0\0", 9); /* 0.0 */
  put_flag(pickle, "expandable_segments", true);
  put_flag(pickle, "release_lock_on_cudamalloc", false);
  put_string(pickle, "roundup_power2_divisions");
  put_op(pickle, "}");
  put_item(pickle, "lade_limit_bytes", LADE_MIN(cache->limit_bytes, (uint64_t)INT64_MAX));
  put_item(pickle, "lade_chunk_bytes", cache->chunk_bytes);
  put_op(pickle, "u");
  put_string(pickle, "external_annotations");
  put_op(pickle, "]");
}

int lade_cache_write_snapshot(lade_cache *cache, const char *path, struct lade_error *error)
{
  if (!cache || !path)
    return lade_error_set(error, -EINVAL, "lade_cache_write_snapshot: cache or path is NULL");
  if (!atomic_load(cache->is_alive))
    return lade_error_set(error, -EPERM, "cache: this process is a fork of the one that the cache belongs to");
  struct pickle pickle = {0};
  put_op(&pickle, "\x80\x04}(");
  lade_cache_lock_all(cache);
  put_segments(&pickle, cache);
  put_history(&pickle, cache);
  put_settings(&pickle, cache);
  lade_cache_unlock_all(cache);
  put_op(&pickle, "u.");
  int code = pickle.is_broken ? lade_error_set(error, -ENOMEM, "cache: no host memory for a snapshot")
                              : lade_file_replace(path, pickle.bytes, pickle.n, error);
  free(pickle.bytes);
  return code;
}
