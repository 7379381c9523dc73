/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces in memory.
 *
 * There are two ways to say what a program did: calls in order, and lifetimes. Both become the same two arrays, blocks
 * and events, each naming the other. The order of events is the only time that counts from there on: for the
 * packer a block lives from the event that begins it to the one that ends it, which says the same about who meets
 * whom as the source's clock does, and more where the clock is coarse. At equal times of half-open lifetimes ends come
 * first, since [2, 4) and [4, 6) do not meet.
 *
 * What the readers promise (trace.h) is asserted here and nowhere checked again.
 */
#include "alloc/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/trace_internal.h"
#include "base/file.h"

/* ---- making one ---- */

int lade_trace_add(struct lade_trace *trace, uint64_t bytes, int queue, uint64_t lower, uint64_t upper, int place)
{
  struct lade_trace_block block = {.bytes = bytes, .lower = lower, .upper = upper, .queue = queue, .place = place};
  LADE_ASSERT(bytes >= 1 && queue >= 0 && queue < LADE_TRACE_QUEUES);
  bool has_room = lade_trace_bytes_add(&trace->total_bytes, bytes);
  LADE_ASSERT(has_room);
  return has_room && LADE_PUSH(&trace->blocks, block) ? trace->blocks.n - 1 : -1;
}

int lade_trace_alloc(struct lade_trace *trace, uint64_t bytes, int queue, uint64_t time, int place)
{
  int block = lade_trace_add(trace, bytes, queue, time, LADE_TRACE_OPEN, place);
  struct lade_trace_event event = {.time = time, .block = block, .place = place};
  return block >= 0 && LADE_PUSH(&trace->events, event) ? block : -1;
}

bool lade_trace_free(struct lade_trace *trace, int block, uint64_t time, int place)
{
  struct lade_trace_event event = {.time = time, .block = block, .place = place, .is_free = true};
  LADE_ASSERT(block >= 0 && block < trace->blocks.n && trace->blocks.items[block].upper == LADE_TRACE_OPEN);
  trace->blocks.items[block].upper = time;
  return LADE_PUSH(&trace->events, event);
}

static int event_compare(const void *a, const void *b)
{
  const struct lade_trace_event *x = a, *y = b;
  if (x->time != y->time)
    return x->time < y->time ? -1 : 1;
  if (x->is_free != y->is_free)
    return x->is_free ? -1 : 1;
  return (x->block > y->block) - (x->block < y->block);
}

int lade_trace_order(struct lade_trace *trace)
{
  LADE_ASSERT(trace->events.n == 0);
  for (int i = 0; i < trace->blocks.n; i++) {
    const struct lade_trace_block *block = &trace->blocks.items[i];
    struct lade_trace_event begin = {.time = block->lower, .block = i, .place = block->place}, end = begin;
    end.time = block->upper;
    end.is_free = true;
    LADE_ASSERT(block->lower < block->upper);
    if (!LADE_PUSH(&trace->events, begin))
      return -ENOMEM;
    if (block->upper != LADE_TRACE_OPEN && !LADE_PUSH(&trace->events, end))
      return -ENOMEM;
  }
  if (trace->events.n)
    qsort(trace->events.items, (size_t)trace->events.n, sizeof(*trace->events.items), event_compare);
  return 0;
}

void lade_trace_finish(struct lade_trace *trace)
{
  uint64_t live_bytes = 0;
  trace->n_queues = 1;
  trace->peak_live_bytes = 0;
  trace->peak_event = 0;
  for (int i = 0; i < trace->blocks.n; i++) {
    trace->blocks.items[i].last = trace->events.n;
    trace->n_queues = LADE_MAX(trace->n_queues, trace->blocks.items[i].queue + 1);
  }
  for (int i = 0; i < trace->events.n; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    struct lade_trace_block *block = &trace->blocks.items[event->block];
    *(event->is_free ? &block->last : &block->first) = i;
    LADE_ASSERT(!event->is_free || live_bytes >= block->bytes);
    live_bytes = event->is_free ? live_bytes - block->bytes : live_bytes + block->bytes;
    if (live_bytes > trace->peak_live_bytes) {
      trace->peak_live_bytes = live_bytes;
      trace->peak_event = i;
    }
  }
}

void lade_trace_destroy(struct lade_trace *trace)
{
  LADE_ARRAY_FREE(&trace->blocks);
  LADE_ARRAY_FREE(&trace->events);
}

/* ---- using one ---- */

void lade_trace_items(const struct lade_trace *trace, struct lade_pack_item *ret_items)
{
  for (int i = 0; i < trace->blocks.n; i++) {
    const struct lade_trace_block *block = &trace->blocks.items[i];
    LADE_ASSERT(block->first < block->last && block->last <= trace->events.n);
    ret_items[i] = (struct lade_pack_item){block->first, block->last, block->bytes, 1, -1};
  }
}

/* ---- reading one ---- */

int lade_trace_read(const char *name, const char *text, size_t n_bytes, struct lade_error *error,
                    struct lade_trace *ret_trace)
{
  static const char mark[] = "\xEF\xBB\xBF"; /* of UTF-8, which spreadsheets put before a text */
  struct lade_trace trace = {.place_word = "line"};
  lade_trace_reader_fn *read = lade_trace_read_csv;
  LADE_ASSERT(text[n_bytes] == 0);
  if (n_bytes > LADE_TRACE_FILE_BYTES_MOST)
    return lade_error_set(error, -EBADMSG, "%s: %zu bytes; traces of up to %zu are read", name, n_bytes,
                          LADE_TRACE_FILE_BYTES_MOST);
  if (strncmp(text, mark, strlen(mark)) == 0) {
    text += strlen(mark);
    n_bytes -= strlen(mark);
  }
  if (n_bytes && (unsigned char)text[0] == 0x80) /* every pickle since protocol 2; no text begins so */
    read = lade_trace_read_torch;
  else if (strncmp(text, LADE_TRACE_LINES_MAGIC, strlen(LADE_TRACE_LINES_MAGIC)) == 0)
    read = lade_trace_read_lines;
  int code = read(name, text, n_bytes, error, &trace);
  if (!code && !trace.blocks.n)
    code = lade_error_set(error, -EBADMSG, "%s: there is no allocation in it", name);
  if (code == -ENOMEM)
    lade_error_set(error, code, "%s: no memory for a trace of %zu bytes", name, n_bytes);
  if (code) {
    lade_trace_destroy(&trace);
    return code;
  }
  lade_trace_finish(&trace);
  *ret_trace = trace;
  return 0;
}

int lade_trace_load(const char *path, struct lade_error *error, struct lade_trace *ret_trace)
{
  char *text = NULL;
  size_t n_bytes = 0;
  int code = lade_file_load(path, LADE_TRACE_FILE_BYTES_MOST, error, &text, &n_bytes);
  if (code)
    return code;
  code = lade_trace_read(path, text, n_bytes, error, ret_trace);
  free(text);
  return code;
}
