/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory: one line at the refusal, and a page on request.
 *
 * Both state the live part of the limit with its owners, and the idle part with the reason why it could not be used.
 * They also state the change that would have sufficed. This change is computed at the moment of the refusal. The limit
 * is too low by the window that lacks the fewest chunks, less all memory that could be moved to it. The alternative is
 * the smallest live block whose free would leave that many whole chunks, or a gap that is long enough. Both hold once
 * pending work is done.
 *
 * Owners are tags first, then places. Their bytes are summed over the live blocks when the page is made. Equal text is
 * one place, at any address of the string.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/cache_trace.h"

#define N_OWNERS 8 /* lines of the page */

/* ---- names ---- */

#define UNKNOWN "place unknown"
#define ECHO_LINE 60 /* bytes of a name in the line */
#define ECHO_PAGE 42 /* and on the page */
#define UTF8_MORE 3  /* bytes of a letter after its first, at most */

struct lade_cache_echo lade_cache_echo(const char *name, size_t max)
{
  struct lade_cache_echo echo = {{0}};
  size_t n = 0;
  name = name ? name : UNKNOWN;
  LADE_ASSERT(max < sizeof(echo.text));
  for (; n < max && name[n]; n++) {
    unsigned char letter = (unsigned char)name[n];
    echo.text[n] = letter < ' ' || letter == 127 ? '?' : name[n];
  }
  for (int i = 0; i < UTF8_MORE && n && ((unsigned char)name[n] & 0xc0) == 0x80; i++)
    n--; /* the text would end in the middle of a letter */
  echo.text[n] = 0;
  return echo;
}

/* ---- remedies ---- */

static uint64_t whole_bytes(const lade_cache *cache, uint64_t from, uint64_t to)
{
  uint64_t first = lade_align_up(from, cache->chunk_bytes), last = to / cache->chunk_bytes * cache->chunk_bytes;
  return first < last ? last - first : 0;
}

/* True if the free of @live would leave enough more whole chunks, or a gap of @bytes. */
static bool block_would_do(const lade_cache *cache, const struct cache_block *live, uint64_t bytes,
                           uint64_t shortfall_bytes)
{
  uint64_t from = live->address, to = live->address + live->bytes, before_bytes = 0;
  for (const struct cache_block *block = live->before; block && block->state == BLOCK_FREE; block = block->before) {
    before_bytes += whole_bytes(cache, block->address, from);
    from = block->address;
  }
  for (const struct cache_block *block = live->after; block && block->state == BLOCK_FREE; block = block->after) {
    before_bytes += whole_bytes(cache, to, to + block->bytes);
    to += block->bytes;
  }
  uint64_t after_bytes = whole_bytes(cache, from, to);
  return to - from >= bytes || after_bytes >= before_bytes + shortfall_bytes;
}

/* Return the smallest live block whose free would suffice; NULL if there is none. */
static const struct cache_block *block_in_the_way(const lade_cache *cache, uint64_t bytes, uint64_t shortfall_bytes)
{
  const struct cache_block *best = NULL;
  for (const struct zone *zone = cache->common.zones; zone; zone = zone->next)
    for (const struct cache_segment *segment = zone->segments; segment; segment = segment->next)
      for (const struct cache_block *block = segment->first; block; block = block->after)
        if (block->state == BLOCK_LIVE && (!best || block->bytes < best->bytes) &&
            block_would_do(cache, block, bytes, shortfall_bytes))
          best = block;
  return best;
}

/* ---- the line ---- */

static int largest_tag(const lade_cache *cache)
{
  int best = 0;
  for (int i = 1; i < cache->n_tags; i++)
    if (cache->tags[i].bytes.current > cache->tags[best].bytes.current)
      best = i;
  return best;
}

static void refusal_note(lade_cache *cache, const struct lade_cache_request *request, struct zone *zone,
                         uint64_t bytes)
{
  struct refusal *refusal = &cache->refusal;
  uint64_t shortfall_bytes = zone->pool->is_capturing ? 0 : lade_cache_shortfall(cache, zone, bytes);
  for (int kind = 0; kind < N_ZONES && !zone->pool->is_private; kind++) /* the block may lie in any zone */
    shortfall_bytes = LADE_MIN(shortfall_bytes, lade_cache_shortfall(cache, &zone->shard->zones[kind], bytes));
  const struct cache_block *block = zone->pool->is_private ? NULL : block_in_the_way(cache, bytes, shortfall_bytes);
  *refusal = (struct refusal){
      .is_capturing = zone->pool->is_capturing,
      .bytes = bytes,
      .shortfall_bytes = shortfall_bytes,
      .place = request->place,
      .tag = request->tag,
      .block_bytes = block ? block->bytes : 0,
      .block_place = block ? block->place : NULL,
  };
}

/* Write the end of the line: the change that would have sufficed. */
static void remedy_format(const struct refusal *refusal, char *text, size_t text_bytes)
{
  char raise[16], block[16];
  if (refusal->is_capturing)
    snprintf(text, text_bytes, "its pool is under capture and cannot grow: create it larger");
  else if (!refusal->shortfall_bytes)
    snprintf(text, text_bytes, "the limit has room and the machine has not");
  else if (!refusal->block_bytes)
    snprintf(text, text_bytes, "a limit that is %s higher would do",
             lade_size_format(refusal->shortfall_bytes, raise, sizeof(raise)));
  else
    snprintf(text, text_bytes, "a limit that is %s higher would do, or the free of the %s of %s",
             lade_size_format(refusal->shortfall_bytes, raise, sizeof(raise)),
             lade_size_format(refusal->block_bytes, block, sizeof(block)),
             lade_cache_echo(refusal->block_place, ECHO_LINE).text);
}

int lade_cache_refuse(lade_cache *cache, const struct lade_cache_request *request, struct zone *zone, uint64_t bytes,
                      struct lade_error *error)
{
  char asked[16], live[16], reserved[16], limit[16], idle[16], max[16], remedy[192];
  const struct lade_cache_stats *stats = &cache->stats;
  lade_cache_stats_derive(cache);
  const struct lade_cache_tag *tag = &cache->tags[largest_tag(cache)];
  cache->stats.num_ooms++;
  const struct cache_block refused = {.address = cache->limit_bytes - stats->reserved_bytes.current,
                                      .bytes = bytes,
                                      .tag = (uint8_t)request->tag};
  lade_cache_trace_add(cache, zone->shard, LADE_CACHE_OOM, &refused, request->place);
  refusal_note(cache, request, zone, bytes);
  remedy_format(&cache->refusal, remedy, sizeof(remedy));
  return lade_error_set(
      error, -ENOMEM,
      "cache: no room for %s (%s): %s live, %s reserved of %s, %s idle; most is %s (%s); %s; see lade_cache_report",
      lade_size_format(bytes, asked, sizeof(asked)), lade_cache_echo(request->place, ECHO_LINE).text,
      lade_size_format(stats->allocated_bytes.current, live, sizeof(live)),
      lade_size_format(stats->reserved_bytes.current, reserved, sizeof(reserved)),
      lade_size_format(cache->limit_bytes, limit, sizeof(limit)),
      lade_size_format(lade_cache_idle_bytes(cache), idle, sizeof(idle)), lade_cache_echo(tag->name, ECHO_LINE).text,
      lade_size_format(tag->bytes.current, max, sizeof(max)), remedy);
}

/* ---- the page ---- */

struct page {
  char *text;
  size_t room, n_bytes;
};

static void page_print(struct page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void page_print(struct page *page, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  size_t at = LADE_MIN(page->n_bytes, page->room);
  int n = vsnprintf(page->room > at ? page->text + at : NULL, page->room - at, format, args);
  va_end(args);
  page->n_bytes += n > 0 ? (size_t)n : 0;
}

static void page_line(struct page *page, const char *title, uint64_t bytes)
{
  char text[16];
  page_print(page, "  %-*s %12s\n", ECHO_PAGE, lade_cache_echo(title, ECHO_PAGE).text,
             lade_size_format(bytes, text, sizeof(text)));
}

struct owner {
  const char *place;
  uint64_t bytes;
};

static int owner_compare_bytes(const void *a, const void *b)
{
  uint64_t x = ((const struct owner *)a)->bytes, y = ((const struct owner *)b)->bytes;
  return (x < y) - (x > y);
}

static int owner_compare_place(const void *a, const void *b)
{
  return strcmp(((const struct owner *)a)->place, ((const struct owner *)b)->place);
}

static int owners_add(const struct shard *shard, struct owner *owners, int n)
{
  for (uint64_t i = 0; shard && i <= shard->index_mask; i++)
    for (const struct cache_block *block = shard->index[i]; block; block = block->next)
      owners[n++] = (struct owner){block->place ? block->place : UNKNOWN, block->bytes};
  return n;
}

/* Sum live bytes by place, largest first. Return the number of places; the caller frees the array. -ENOMEM. */
static int owners_collect(const lade_cache *cache, struct owner **ret_owners)
{
  struct owner *owners = calloc(cache->stats.allocation.current + 1, sizeof(*owners));
  int n = 0, n_places = 0;
  if (!owners)
    return -ENOMEM;
  for (int i = 0; i < cache->n_queues; i++)
    n = owners_add(cache->shards[i], owners, n);
  qsort(owners, (size_t)n, sizeof(*owners), owner_compare_place);
  for (int i = 0; i < n; i++) {
    if (n_places && strcmp(owners[n_places - 1].place, owners[i].place) == 0)
      owners[n_places - 1].bytes += owners[i].bytes;
    else
      owners[n_places++] = owners[i];
  }
  qsort(owners, (size_t)n_places, sizeof(*owners), owner_compare_bytes);
  *ret_owners = owners;
  return n_places;
}

static void owners_print(struct page *page, const char *title, const struct owner *owners, int n)
{
  page_print(page, "%s\n", title);
  for (int i = 0; i < n && i < N_OWNERS && owners[i].bytes; i++)
    page_line(page, owners[i].place, owners[i].bytes);
}

static void ledger_print(const lade_cache *cache, struct page *page)
{
  struct owner tags[LADE_CACHE_MAX_TAGS], *places = NULL;
  for (int i = 0; i < cache->n_tags; i++)
    tags[i] = (struct owner){cache->tags[i].name, cache->tags[i].bytes.current};
  qsort(tags, (size_t)cache->n_tags, sizeof(*tags), owner_compare_bytes);
  owners_print(page, "live bytes by tag", tags, cache->n_tags);
  int n = owners_collect(cache, &places);
  if (n > 0)
    owners_print(page, "live bytes by place", places, n);
  if (n < 0)
    page_print(page, "live bytes by place: no host memory to sum them\n");
  free(places);
}

struct free_sum {
  uint64_t free_bytes, largest_bytes, waiting_bytes, n_free;
};

static struct free_sum free_sum_get(const lade_cache *cache)
{
  struct free_sum sum = {0};
  for (const struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    for (const struct zone *zone = pool->zones; zone; zone = zone->next)
      for (const struct cache_segment *segment = zone->segments; segment; segment = segment->next)
        for (const struct cache_block *block = segment->first; block; block = block->after) {
          if (block->state == BLOCK_WAITING || block->state == BLOCK_QUARANTINE)
            sum.waiting_bytes += block->bytes;
          if (block->state != BLOCK_FREE)
            continue;
          sum.n_free++;
          sum.free_bytes += block->bytes;
          sum.largest_bytes = LADE_MAX(sum.largest_bytes, block->bytes);
        }
  return sum;
}

static void refusal_print(const lade_cache *cache, struct page *page)
{
  const struct refusal *refusal = &cache->refusal;
  if (!refusal->bytes)
    return;
  page_print(page, "the last refusal\n");
  page_line(page, refusal->place, refusal->bytes);
  if (refusal->is_capturing)
    page_print(page, "  its pool was under capture and could not grow: create it larger\n");
  else if (refusal->shortfall_bytes)
    page_print(page, "  would have fitted with a limit %llu bytes higher\n",
               (unsigned long long)refusal->shortfall_bytes);
  else
    page_print(page, "  the limit had room and the machine had not\n");
  if (refusal->block_bytes) {
    page_print(page, "  or without this block, the smallest whose free would have done\n");
    page_line(page, refusal->block_place, refusal->block_bytes);
  }
}

static void page_fill(lade_cache *cache, struct page *page)
{
  const struct lade_cache_stats *stats = &cache->stats;
  lade_cache_stats_derive(cache);
  struct free_sum sum = free_sum_get(cache);
  uint64_t idle_bytes = lade_cache_idle_bytes(cache);
  uint64_t held_bytes = sum.free_bytes + (uint64_t)cache->spare.n * cache->chunk_bytes;
  page_print(page, "memory of the cache\n");
  page_line(page, "limit", cache->limit_bytes);
  page_line(page, "reserved from the device", stats->reserved_bytes.current);
  page_line(page, "live", stats->allocated_bytes.current);
  page_line(page, "live, as asked for", stats->requested_bytes.current);
  page_line(page, "live, at the peak", stats->allocated_bytes.peak);
  page_line(page, "freed, in use by other queues or kept back", sum.waiting_bytes);
  page_line(page, "idle whole chunks, movable", idle_bytes);
  page_line(page, "free beside something live, or pending", held_bytes - LADE_MIN(held_bytes, idle_bytes));
  page_line(page, "largest free block", sum.largest_bytes);
  page_print(page, "  %llu free blocks, %llu refusals, %llu allocations that needed a second look\n",
             (unsigned long long)sum.n_free, (unsigned long long)stats->num_ooms,
             (unsigned long long)stats->num_alloc_retries);
  ledger_print(cache, page);
  page_print(page, "what there is room for now\n");
  page_line(page, "without any change", sum.largest_bytes);
  page_line(page, "below the limit, by moving or creating",
            idle_bytes + cache->limit_bytes - stats->reserved_bytes.current);
  refusal_print(cache, page);
}

size_t lade_cache_report(lade_cache *cache, char *text, size_t text_bytes)
{
  if (!cache || (!text && text_bytes))
    return 0;
  struct page page = {.text = text, .room = text_bytes};
  if (text_bytes)
    text[0] = 0;
  if (!atomic_load(cache->is_alive))
    return 0;
  lade_cache_lock_all(cache);
  page_fill(cache, &page);
  lade_cache_unlock_all(cache);
  return page.n_bytes;
}
