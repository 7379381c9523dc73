/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the caching allocator knows of itself: statistics, the ledger by tag, the trace, the report.
 *
 * Statistics are counted as things happen, never summed up on request, and cache_check.c recounts them. The trace is a
 * ring of fixed size that is written in place: an entry costs a clock that is read from memory and one cache line.
 *
 * The report answers what a person asks who has run out of memory: how much of the limit is live and whose, what
 * lies idle and why it could not be used, and what would have made room. Owners are tags first, then places,
 * whose bytes are summed over the live blocks when the report is made.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/cache_internal.h"

#define N_OWNERS 8 /* lines of the report */

/* ---- trace ---- */

static struct lade_cache_event *event_next(lade_cache *cache, enum lade_cache_action action)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  struct lade_cache_event *event = &cache->trace[cache->n_traced++ & cache->trace_mask];
  event->action = action;
  event->time_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
  return event;
}

void lade_cache_trace_write(lade_cache *cache, enum lade_cache_action action, const struct block *block)
{
  struct lade_cache_event *event = event_next(cache, action);
  event->address = block->address;
  event->bytes = block->bytes;
  event->tag = block->tag;
  event->queue = block->queue;
  event->place = action == LADE_CACHE_ALLOC ? block->place : block->free_place;
}

void lade_cache_trace_chunk(lade_cache *cache, enum lade_cache_action action, uint64_t address)
{
  if (!cache->trace)
    return;
  struct lade_cache_event *event = event_next(cache, action);
  *event = (struct lade_cache_event){
      .action = action, .address = address, .bytes = cache->chunk_bytes, .time_us = event->time_us};
}

int lade_cache_get_trace(lade_cache *cache, struct lade_cache_event *ret_events, int n)
{
  if (!atomic_load(cache->is_alive) || n <= 0)
    return 0;
  pthread_mutex_lock(&cache->mutex);
  uint64_t kept = cache->trace ? LADE_MIN(cache->n_traced, cache->trace_mask + 1) : 0;
  uint64_t n_events = LADE_MIN(kept, (uint64_t)n);
  for (uint64_t i = 0; i < n_events; i++)
    ret_events[i] = cache->trace[(cache->n_traced - n_events + i) & cache->trace_mask];
  pthread_mutex_unlock(&cache->mutex);
  return (int)n_events;
}

/* ---- statistics ---- */

int lade_cache_get_stats(lade_cache *cache, struct lade_cache_stats *ret_stats)
{
  if (ret_stats->struct_size != sizeof(*ret_stats))
    return -EINVAL;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  pthread_mutex_lock(&cache->mutex);
  *ret_stats = cache->stats;
  pthread_mutex_unlock(&cache->mutex);
  ret_stats->struct_size = sizeof(*ret_stats);
  return 0;
}

void lade_cache_reset_peaks(lade_cache *cache)
{
  if (!atomic_load(cache->is_alive))
    return;
  pthread_mutex_lock(&cache->mutex);
  struct lade_cache_stats *stats = &cache->stats;
  struct lade_cache_stat *all[] = {&stats->allocation,      &stats->active,         &stats->segment,
                                   &stats->requested_bytes, &stats->allocated_bytes, &stats->active_bytes,
                                   &stats->reserved_bytes,  &stats->inactive_split_bytes};
  cache->high_bytes = LADE_MAX(cache->high_bytes, stats->allocated_bytes.peak);
  for (size_t i = 0; i < LADE_COUNT(all); i++)
    all[i]->peak = all[i]->current;
  for (int i = 0; i < cache->n_tags; i++)
    cache->tags[i].bytes.peak = cache->tags[i].bytes.current;
  pthread_mutex_unlock(&cache->mutex);
}

/* ---- the ledger ---- */

int lade_cache_tag_add(lade_cache *cache, const char *name, int *ret_tag)
{
  if (!name || !*name || strlen(name) >= sizeof(cache->tags[0].name))
    return -EINVAL;
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  pthread_mutex_lock(&cache->mutex);
  int tag = 0, code = 0;
  while (tag < cache->n_tags && strcmp(cache->tags[tag].name, name) != 0)
    tag++;
  if (tag == LADE_CACHE_MAX_TAGS)
    code = -ENOSPC;
  else if (tag == cache->n_tags)
    strcpy(cache->tags[cache->n_tags++].name, name);
  pthread_mutex_unlock(&cache->mutex);
  if (!code)
    *ret_tag = tag;
  return code;
}

int lade_cache_get_tag(lade_cache *cache, int tag, struct lade_cache_tag *ret_tag)
{
  if (!atomic_load(cache->is_alive))
    return -EPERM;
  pthread_mutex_lock(&cache->mutex);
  int code = tag >= 0 && tag < cache->n_tags ? 0 : -ENOENT;
  if (!code)
    *ret_tag = cache->tags[tag];
  pthread_mutex_unlock(&cache->mutex);
  return code;
}

/* ---- running out ---- */

static const char *largest_tag(const lade_cache *cache)
{
  int best = 0;
  for (int i = 1; i < cache->n_tags; i++)
    if (cache->tags[i].bytes.current > cache->tags[best].bytes.current)
      best = i;
  return cache->tags[best].name;
}

int lade_cache_refuse(lade_cache *cache, const struct lade_cache_request *request, uint64_t bytes,
                      struct lade_error *error)
{
  char asked[16], live[16], reserved[16], limit[16], idle[16];
  const struct lade_cache_stats *stats = &cache->stats;
  cache->stats.num_ooms++;
  const struct block refused = {.address = cache->limit_bytes - stats->reserved_bytes.current,
                                .bytes = bytes,
                                .tag = (uint8_t)request->tag,
                                .free_place = request->place};
  lade_cache_trace_add(cache, LADE_CACHE_OOM, &refused);
  return lade_error_set(
      error, -ENOMEM,
      "cache: no room for %s (%.60s): %s live, %s reserved of %s, %s idle; most is %s; free some, raise the limit or "
      "see lade_cache_report",
      lade_size_format(bytes, asked, sizeof(asked)), request->place ? request->place : "place unknown",
      lade_size_format(stats->allocated_bytes.current, live, sizeof(live)),
      lade_size_format(stats->reserved_bytes.current, reserved, sizeof(reserved)),
      lade_size_format(cache->limit_bytes, limit, sizeof(limit)),
      lade_size_format(lade_cache_idle_bytes(cache), idle, sizeof(idle)), largest_tag(cache));
}

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

static void page_line(struct page *page, const char *what, uint64_t bytes)
{
  char text[16];
  page_print(page, "  %-42.42s %12s\n", what, lade_size_format(bytes, text, sizeof(text)));
}

struct owner {
  const char *place;
  uint64_t bytes;
};

static int owner_compare(const void *a, const void *b)
{
  uint64_t x = ((const struct owner *)a)->bytes, y = ((const struct owner *)b)->bytes;
  return (x < y) - (x > y);
}

/* Sum live blocks by place. Places beyond the table's end are left out: it holds the first 256. */
static int owners_collect(const lade_cache *cache, struct owner *owners, int max)
{
  int n = 0;
  for (uint64_t i = 0; cache->index && i <= cache->index_mask; i++) {
    const struct block *block = cache->index[i];
    if (!block || !block->place)
      continue;
    int k = 0;
    while (k < n && owners[k].place != block->place)
      k++;
    if (k == max)
      continue;
    if (k == n)
      owners[n++] = (struct owner){.place = block->place};
    owners[k].bytes += block->bytes;
  }
  qsort(owners, (size_t)n, sizeof(*owners), owner_compare);
  return n;
}

struct free_sum {
  uint64_t free_bytes, largest_bytes, waiting_bytes, n_free;
};

static struct free_sum free_sum_get(const lade_cache *cache)
{
  struct free_sum sum = {0};
  for (const struct lade_cache_pool *pool = cache->pools; pool; pool = pool->next)
    for (int kind = 0; kind < N_ZONES; kind++)
      for (const struct segment *segment = pool->zones[kind].segments; segment; segment = segment->next)
        for (const struct block *block = segment->first; block; block = block->after) {
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

static void owners_print(const lade_cache *cache, struct page *page)
{
  struct owner owners[256];
  struct owner tags[LADE_CACHE_MAX_TAGS];
  for (int i = 0; i < cache->n_tags; i++)
    tags[i] = (struct owner){cache->tags[i].name, cache->tags[i].bytes.current};
  qsort(tags, (size_t)cache->n_tags, sizeof(*tags), owner_compare);
  page_print(page, "live bytes by tag\n");
  for (int i = 0; i < cache->n_tags && i < N_OWNERS && tags[i].bytes; i++)
    page_line(page, tags[i].place, tags[i].bytes);
  int n = owners_collect(cache, owners, (int)LADE_COUNT(owners));
  if (n)
    page_print(page, "live bytes by place\n");
  for (int i = 0; i < n && i < N_OWNERS; i++)
    page_line(page, owners[i].place, owners[i].bytes);
}

static void page_fill(lade_cache *cache, struct page *page)
{
  const struct lade_cache_stats *stats = &cache->stats;
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
  owners_print(cache, page);
  page_print(page, "what would make room\n");
  page_line(page, "a block fits without any change up to", sum.largest_bytes);
  page_line(page, "below the limit, by moving or creating",
            idle_bytes + cache->limit_bytes - stats->reserved_bytes.current);
  page_print(page, "  beyond that: free the owners named above, or raise the limit by what is missing\n");
}

size_t lade_cache_report(lade_cache *cache, char *text, size_t text_bytes)
{
  struct page page = {.text = text, .room = text_bytes};
  if (text_bytes)
    text[0] = 0;
  if (!atomic_load(cache->is_alive))
    return 0;
  pthread_mutex_lock(&cache->mutex);
  page_fill(cache, &page);
  pthread_mutex_unlock(&cache->mutex);
  return page.n_bytes;
}
