/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The write of a trace event, inline because every allocation and every free has one. cache_trace.c has the essay, the
 * clock and the reader. Private to src/alloc/.
 */
#ifndef LADE_CACHE_TRACE_H
#define LADE_CACHE_TRACE_H

#include "alloc/cache/cache_internal.h"

#define STAMP_EVENTS 64 /* events of a shard that may share a stamp: one clock per 32 pairs is 0.3 ns each */
#define AHEAD 16        /* entries: prefetched, because otherwise the next lock would wait for them */

/* The low bits of an entry's bytes, which are whole units, and of its stamp. */
#define TAG_BITS 6
#define ACTION_BITS 3
#define QUEUE_BITS 6
_Static_assert(LADE_CACHE_MAX_TAGS <= 1 << TAG_BITS && N_QUEUES <= 1 << QUEUE_BITS &&
                   LADE_CACHE_OOM < 1 << ACTION_BITS && UNIT_BYTES == 1 << (TAG_BITS + ACTION_BITS),
               "they fit");

/* Read the clock for the events of @shard from now on. */
void lade_cache_stamp_renew(lade_cache *cache, struct shard *shard, _Atomic uintptr_t *tracer, uintptr_t self);

/* Return the word that stores the shard of the calling thread's last event; other threads may share the word. */
static inline _Atomic uintptr_t *lade_cache_tracer_get(lade_cache *cache, uintptr_t thread)
{
  return &cache->tracers[(thread >> 12) * 0x9e3779b97f4a7c15u >> 58].last;
}

/* Return the entry of the next event, with its stamp. Called with the lock of @shard, which has a trace. */
static inline struct trace_entry *lade_cache_trace_next(lade_cache *cache, struct shard *shard, int queue)
{
  if (cache->n_tracing > 1 || shard->n_traced >= shard->stamp_end) {
    uintptr_t thread = (uintptr_t)pthread_self(), self = thread + (uintptr_t)shard->number;
    _Atomic uintptr_t *tracer = lade_cache_tracer_get(cache, thread);
    if (shard->n_traced >= shard->stamp_end || atomic_load_explicit(tracer, memory_order_relaxed) != self)
      lade_cache_stamp_renew(cache, shard, tracer, self);
  }
  uint64_t mask = cache->n_trace_entries - 1;
  struct trace_entry *entry = &shard->trace[shard->n_traced++ & mask];
  __builtin_prefetch(&shard->trace[(shard->n_traced + AHEAD) & mask], 1);
  entry->stamp = shard->stamp | (uint64_t)queue;
  return entry;
}

static inline void lade_cache_trace_add(lade_cache *cache, struct shard *shard, enum lade_cache_action action,
                                        const struct cache_block *block, const char *place)
{
  if (!shard->trace)
    return;
  struct trace_entry *entry = lade_cache_trace_next(cache, shard, block->queue);
  entry->address = block->address;
  entry->bytes = block->bytes | (uint64_t)action << TAG_BITS | block->tag;
  entry->place = place;
}

/* Note that work was submitted to a queue of @shard's blocks, up to @count: later events come after it. */
static inline void lade_cache_stamp_age(struct shard *shard, uint64_t count)
{
  if (shard->stamp_count != count)
    shard->stamp_end = 0;
  shard->stamp_count = count;
}

#endif
