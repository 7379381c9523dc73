/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of allocations for benches and tests of the allocators: read, ordered, or drawn from a seed.
 *
 * The drawn kinds are what trainers do to a caching allocator where it hurts. All have a transformer's
 * shape: weights and optimizer state that stay, a forward pass that saves, a backward pass that frees in reverse,
 * temporaries in between.
 *   queues     gathers of shards on a communication queue, offload on a copy queue, both a few layers ahead
 *   experts    the rows of each expert are random in every layer and step
 *   sequences  the sequence length is drawn anew for every step
 */
#ifndef LADE_BENCH_CACHE_TRACES_H
#define LADE_BENCH_CACHE_TRACES_H

#include <stdlib.h>

#include "base/base.h"
#include "base/philox.h"

#define TRACE_QUEUES 4

enum trace_kind { TRACE_QUEUES_KIND, TRACE_EXPERTS, TRACE_SEQUENCES, TRACE_N_KINDS };

struct trace_item {
  uint64_t bytes, lower, upper;
  int queue;
};

struct trace_call {
  int i_item;
  bool is_free;
};

struct trace {
  LADE_ARRAY(struct trace_item) items;
  struct trace_call *calls;
  int n_calls;
  uint64_t peak_bytes; /* most live at once */
  uint64_t seed, now;  /* of the drawing */
  uint32_t n_drawn;
};

static inline const char *trace_kind_name(enum trace_kind kind)
{
  static const char *const names[] = {"queues", "experts", "sequences"};
  return names[kind];
}

static inline bool trace_add(struct trace *trace, uint64_t bytes, uint64_t lower, uint64_t upper, int queue)
{
  struct trace_item item = {bytes, lower, upper, queue};
  return LADE_PUSH(&trace->items, item);
}

struct trace_key {
  uint64_t time;
  int i_item;
  bool is_free;
};

static inline int trace_key_compare(const void *a, const void *b)
{
  const struct trace_key *x = a, *y = b;
  if (x->time != y->time)
    return x->time < y->time ? -1 : 1;
  if (x->is_free != y->is_free)
    return x->is_free ? -1 : 1;
  return (x->i_item > y->i_item) - (x->i_item < y->i_item);
}

/* Make the sequence of calls, and the peak. False when memory is out. */
static inline bool trace_order(struct trace *trace)
{
  size_t n = 2 * (size_t)trace->items.n;
  struct trace_key *keys = calloc(n + 1, sizeof(*keys));
  trace->calls = calloc(n + 1, sizeof(*trace->calls));
  if (!keys || !trace->calls) {
    free(keys);
    return false;
  }
  for (int i = 0; i < trace->items.n; i++) {
    keys[2 * i] = (struct trace_key){trace->items.items[i].lower, i, false};
    keys[2 * i + 1] = (struct trace_key){trace->items.items[i].upper, i, true};
  }
  qsort(keys, n, sizeof(*keys), trace_key_compare);
  uint64_t live_bytes = 0;
  for (size_t i = 0; i < n; i++) {
    uint64_t bytes = trace->items.items[keys[i].i_item].bytes;
    trace->calls[i] = (struct trace_call){keys[i].i_item, keys[i].is_free};
    live_bytes = keys[i].is_free ? live_bytes - bytes : live_bytes + bytes;
    trace->peak_bytes = LADE_MAX(trace->peak_bytes, live_bytes);
  }
  trace->n_calls = (int)n;
  free(keys);
  return true;
}

static inline void trace_free(struct trace *trace)
{
  LADE_ARRAY_FREE(&trace->items);
  free(trace->calls);
}

/* ---- drawing ---- */

#define TRACE_OPEN UINT64_MAX /* an item whose end is not known yet */

static inline uint64_t trace_random(struct trace *trace, uint64_t below)
{
  return lade_philox_word(trace->seed, 0, 0, trace->n_drawn++) % below;
}

static inline int trace_alloc(struct trace *trace, uint64_t bytes, int queue)
{
  return trace_add(trace, bytes, trace->now++, TRACE_OPEN, queue) ? trace->items.n - 1 : -1;
}

static inline void trace_drop(struct trace *trace, int item)
{
  if (item >= 0 && trace->items.items[item].upper == TRACE_OPEN)
    trace->items.items[item].upper = trace->now++;
}

/* A temporary of one op. */
static inline void trace_touch(struct trace *trace, uint64_t bytes, int queue)
{
  trace_drop(trace, trace_alloc(trace, bytes, queue));
}

enum { TRACE_LAYERS = 16, TRACE_STEPS = 6, TRACE_SAVED = 24 };

struct trace_step {
  int saved[TRACE_LAYERS][TRACE_SAVED];
  int n_saved[TRACE_LAYERS];
  int gathered[TRACE_LAYERS];
  uint64_t tokens, hidden;
  enum trace_kind kind;
};

static inline void trace_save(struct trace *trace, struct trace_step *step, int layer, uint64_t bytes)
{
  step->saved[layer][step->n_saved[layer]++] = trace_alloc(trace, bytes, 0);
}

/* Rows of each of eight experts: random shares of the tokens. */
static inline void trace_experts(struct trace *trace, struct trace_step *step, int layer)
{
  for (int expert = 0; expert < 8; expert++) {
    uint64_t rows = 1 + trace_random(trace, step->tokens / 2);
    trace_save(trace, step, layer, rows * step->hidden * 2);
    int inner = trace_alloc(trace, rows * step->hidden * 8, 0);
    trace_touch(trace, rows * step->hidden * 4, 0);
    if (expert % 2)
      trace_drop(trace, inner);
    else
      step->saved[layer][step->n_saved[layer]++] = inner;
  }
}

static inline void trace_gather(struct trace *trace, struct trace_step *step, int layer)
{
  if (layer >= 0 && layer < TRACE_LAYERS && step->kind == TRACE_QUEUES_KIND)
    step->gathered[layer] = trace_alloc(trace, step->hidden * step->hidden * 24, 1);
}

static inline void trace_forward(struct trace *trace, struct trace_step *step, int layer)
{
  uint64_t row = step->hidden * 2, tokens = step->tokens;
  step->n_saved[layer] = 0;
  trace_gather(trace, step, layer + 2);
  trace_save(trace, step, layer, tokens * row);
  trace_save(trace, step, layer, tokens * 4);
  trace_touch(trace, tokens * row * 2, 0);
  trace_save(trace, step, layer, tokens * row * 3);
  trace_touch(trace, tokens * row * 4 + trace_random(trace, 4096) * 512, 0);
  trace_save(trace, step, layer, tokens * row);
  trace_save(trace, step, layer, tokens * 16 * 4);
  if (step->kind == TRACE_EXPERTS) {
    trace_experts(trace, step, layer);
  } else {
    trace_save(trace, step, layer, tokens * row * 4);
    trace_touch(trace, tokens * row * 4, 0);
    trace_save(trace, step, layer, tokens * row);
  }
  if (step->kind == TRACE_QUEUES_KIND) {
    trace_drop(trace, step->gathered[layer]);
    trace_touch(trace, tokens * row, 2 + (layer & 1));
  }
}

static inline void trace_backward(struct trace *trace, struct trace_step *step, int layer)
{
  uint64_t row = step->hidden * 2, tokens = step->tokens;
  trace_gather(trace, step, layer - 2);
  int gradient = trace_alloc(trace, tokens * row, 0);
  for (int i = step->n_saved[layer] - 1; i >= 0; i--) {
    trace_touch(trace, trace->items.items[step->saved[layer][i]].bytes, 0);
    trace_drop(trace, step->saved[layer][i]);
  }
  if (step->kind == TRACE_QUEUES_KIND) {
    int reduced = trace_alloc(trace, step->hidden * step->hidden * 24, 3);
    trace_touch(trace, step->hidden * step->hidden * 24 / 8, 1);
    trace_drop(trace, reduced);
    trace_drop(trace, step->gathered[layer]);
  }
  trace_drop(trace, gradient);
}

static inline void trace_step_draw(struct trace *trace, struct trace_step *step)
{
  for (int layer = 0; layer < 2; layer++)
    trace_gather(trace, step, layer);
  for (int layer = 0; layer < TRACE_LAYERS; layer++)
    trace_forward(trace, step, layer);
  int logits = trace_alloc(trace, step->tokens * 50257 * 2, 0);
  trace_touch(trace, step->tokens * 50257 * 4, 0);
  trace_drop(trace, logits);
  for (int layer = 0; layer < 2; layer++)
    trace_gather(trace, step, TRACE_LAYERS - 1 - layer);
  for (int layer = TRACE_LAYERS - 1; layer >= 0; layer--)
    trace_backward(trace, step, layer);
}

/* Draw and order a trace of @kind. False when memory is out. */
static inline bool trace_draw(struct trace *trace, enum trace_kind kind, uint64_t seed)
{
  struct trace_step step = {.kind = kind, .hidden = 1024};
  trace->seed = seed;
  for (int layer = 0; layer < TRACE_LAYERS; layer++)
    for (int i = 0; i < 6; i++)
      trace_alloc(trace, step.hidden * step.hidden * 4 * (i < 4 ? 1 : 4), 0);
  for (int i_step = 0; i_step < TRACE_STEPS; i_step++) {
    step.tokens = kind == TRACE_SEQUENCES ? 512 + trace_random(trace, 7680) : 4096 + 8 * trace_random(trace, 16);
    trace_step_draw(trace, &step);
  }
  for (int i = 0; i < trace->items.n; i++)
    trace_drop(trace, i);
  return trace_order(trace);
}

#endif
