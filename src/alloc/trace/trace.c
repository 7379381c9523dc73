/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces in memory.
 *
 * A program's use of memory is given in one of two forms: calls in order, or lifetimes. Both become the same two
 * arrays, blocks and events, and each refers to the other. From there on, the order of events is the only time. For the
 * packer a block is live from the event that begins it to the event that ends it. Events tell exactly which blocks are
 * live together, also where the source's clock is coarse. At equal times of half-open lifetimes ends come first,
 * because [2, 4) and [4, 6) do not overlap.
 *
 * The readers guarantee the limits of trace.h; this file asserts them, and no later code checks them again.
 */
#include "alloc/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/trace/trace_internal.h"

/* ---- building a trace ---- */

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
  for (int i = 0; i < trace->sites.n; i++)
    free(trace->sites.items[i]);
  LADE_ARRAY_FREE(&trace->sites);
}

/* ---- using a trace ---- */

void lade_trace_items(const struct lade_trace *trace, struct lade_pack_item *ret_items)
{
  for (int i = 0; i < trace->blocks.n; i++) {
    const struct lade_trace_block *block = &trace->blocks.items[i];
    LADE_ASSERT(block->first < block->last && block->last <= trace->events.n);
    ret_items[i] = (struct lade_pack_item){block->first, block->last, block->bytes, 1, -1};
  }
}
