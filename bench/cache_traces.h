/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of allocations for benches and tests of the allocators: read, ordered, or drawn from a seed.
 *
 * The drawn kinds are patterns of trainers that are hard for a caching allocator. All have the shape of a transformer
 * of 16 layers with 2,048 features and 16 heads in BF16. Weights stay. A forward pass saves values. A backward pass
 * frees them in reverse and makes their gradients, and gradients of weights, which live until the update. AdamW's
 * moments, sharded over 8 ranks, are made by the first update among the holes of the first step. Temporaries come in
 * between.
 *   queues     all parameters are sharded. A layer is gathered two layers ahead on a queue, and its gradients are
 *              reduced in FP32 on another; residuals leave for the host and are brought back two layers ahead on a
 *              third. Rows are packed, a step has 3,585 to 4,096 tokens.
 *   experts    4,096 tokens. Of 64 experts of 1,024 features, of which each token picks 8 (the sizes of OLMoE), an
 *              eighth is on this rank. No token is dropped, so the rows of an expert differ from layer to layer and
 *              step to step; sends and receives of other ranks' rows are on queues of their own.
 *   sequences  a batch of four, padded to its longest. Lengths are skewed as those of conversations are: the median is
 *              some 450 tokens, the longest 2,112.
 */
#ifndef LADE_BENCH_CACHE_TRACES_H
#define LADE_BENCH_CACHE_TRACES_H

#include <stdlib.h>
#include <string.h>

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
  uint64_t seed, now;  /* of the random draws */
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

/* Make the sequence of calls, and the peak. False: out of memory. */
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

/* Allocate and free a temporary of one op. */
static inline void trace_touch(struct trace *trace, uint64_t bytes, int queue)
{
  trace_drop(trace, trace_alloc(trace, bytes, queue));
}

enum { TRACE_LAYERS = 16, TRACE_SAVED = 40, TRACE_WEIGHTS = 4, TRACE_EXPERTS_HERE = 8 };
enum { TRACE_HEADS = 16, TRACE_VOCAB = 32000, TRACE_AHEAD = 2, TRACE_RANKS = 8 };
enum { TRACE_COMPUTE, TRACE_GATHER, TRACE_OFFLOAD, TRACE_REDUCE }; /* queues */

struct trace_step {
  enum trace_kind kind;
  uint64_t tokens, hidden;
  uint64_t liked[TRACE_LAYERS][TRACE_EXPERTS_HERE]; /* of kind experts; 256 is the mean */
  int saved[TRACE_LAYERS][TRACE_SAVED], n_saved[TRACE_LAYERS];
  int gradients[TRACE_LAYERS][TRACE_WEIGHTS];
  int gathered[TRACE_LAYERS], loaded[TRACE_LAYERS], leaving; /* of kind queues; item numbers or -1 */
};

static inline void trace_save(struct trace *trace, struct trace_step *step, int layer, uint64_t bytes)
{
  LADE_ASSERT(step->n_saved[layer] < TRACE_SAVED);
  step->saved[layer][step->n_saved[layer]++] = trace_alloc(trace, bytes, TRACE_COMPUTE);
}

/* Return the parameters of a layer's tensors: attention's two, and those of the feed-forward part or of the experts. */
static inline uint64_t trace_weight(const struct trace_step *step, int i)
{
  static const uint64_t halves[2][TRACE_WEIGHTS] = {{6, 2, 8, 8}, {6, 2, 16, 8}}; /* of hidden squared */
  return halves[step->kind == TRACE_EXPERTS][i] * step->hidden * step->hidden / 2;
}

/* Gather the whole layer in BF16, from its shards on all ranks. */
static inline void trace_gather(struct trace *trace, struct trace_step *step, int layer)
{
  if (step->kind == TRACE_QUEUES_KIND && layer >= 0 && layer < TRACE_LAYERS)
    step->gathered[layer] = trace_alloc(trace, 12 * step->hidden * step->hidden * 2, TRACE_GATHER);
}

/*
 * Receive the other ranks' rows for the local experts, on a queue of its own, and run the gated feed-forward part of
 * each expert. An expert's share is a quarter to seven quarters of the mean, a quarter more or less in each step.
 */
static inline void trace_experts(struct trace *trace, struct trace_step *step, int layer)
{
  uint64_t rows[TRACE_EXPERTS_HERE], n_rows = 0, row = step->hidden * 2;
  for (int expert = 0; expert < TRACE_EXPERTS_HERE; expert++)
    n_rows += rows[expert] = step->tokens * step->liked[layer][expert] / 256 * (96 + trace_random(trace, 64)) / 128;
  int received = trace_alloc(trace, n_rows * row, TRACE_GATHER);
  int answer = trace_alloc(trace, n_rows * row, TRACE_REDUCE);
  step->saved[layer][step->n_saved[layer]++] = received;
  for (int expert = 0; expert < TRACE_EXPERTS_HERE; expert++) {
    for (int i = 0; i < 3; i++) /* gate, values, their product */
      trace_save(trace, step, layer, rows[expert] * row / 2);
    trace_touch(trace, rows[expert] * row, TRACE_COMPUTE);
  }
  trace_save(trace, step, layer, step->tokens * row);
  trace_drop(trace, answer);
}

static inline void trace_dense(struct trace *trace, struct trace_step *step, int layer)
{
  uint64_t row = step->hidden * 2;
  trace_save(trace, step, layer, step->tokens * row * 4); /* before and after the activation */
  trace_save(trace, step, layer, step->tokens * row * 4);
  trace_touch(trace, step->tokens * row, TRACE_COMPUTE);
  trace_save(trace, step, layer, step->tokens * row / 2); /* a mask of bytes */
}

static inline void trace_forward(struct trace *trace, struct trace_step *step, int layer)
{
  uint64_t row = step->hidden * 2, tokens = step->tokens;
  step->n_saved[layer] = 0;
  trace_gather(trace, step, layer + TRACE_AHEAD);
  int residual = trace_alloc(trace, tokens * row, TRACE_COMPUTE);
  trace_save(trace, step, layer, tokens * row); /* normalised, and the statistics of its rows */
  trace_save(trace, step, layer, tokens * 4);
  trace_save(trace, step, layer, tokens * row * 3);
  trace_save(trace, step, layer, tokens * row);
  trace_save(trace, step, layer, tokens * TRACE_HEADS * 4);
  trace_touch(trace, tokens * row, TRACE_COMPUTE);
  trace_save(trace, step, layer, tokens * row);
  trace_save(trace, step, layer, tokens * 4);
  if (step->kind == TRACE_EXPERTS)
    trace_experts(trace, step, layer);
  else
    trace_dense(trace, step, layer);
  if (step->kind != TRACE_QUEUES_KIND) {
    step->saved[layer][step->n_saved[layer]++] = residual;
    return;
  }
  trace_drop(trace, step->gathered[layer]);
  trace_drop(trace, step->leaving); /* its copy to the host has had a layer's time */
  step->leaving = residual;
}

/* Bring the residual of a layer back from the host. */
static inline void trace_load(struct trace *trace, struct trace_step *step, int layer)
{
  if (step->kind == TRACE_QUEUES_KIND && layer >= 0)
    step->loaded[layer] = trace_alloc(trace, step->tokens * step->hidden * 2, TRACE_OFFLOAD);
}

static inline void trace_gradients(struct trace *trace, struct trace_step *step, int layer)
{
  for (int i = 0; i < TRACE_WEIGHTS && step->kind != TRACE_QUEUES_KIND; i++)
    step->gradients[layer][i] = trace_alloc(trace, trace_weight(step, i) * 2, TRACE_COMPUTE);
  if (step->kind != TRACE_QUEUES_KIND)
    return;
  int whole = trace_alloc(trace, 12 * step->hidden * step->hidden * 2, TRACE_COMPUTE);
  int reduced = trace_alloc(trace, 12 * step->hidden * step->hidden * 4, TRACE_REDUCE); /* summed in FP32 */
  step->gradients[layer][0] = trace_alloc(trace, 12 * step->hidden * step->hidden * 2 / TRACE_RANKS, TRACE_REDUCE);
  trace_drop(trace, whole);
  trace_drop(trace, reduced);
}

static inline void trace_backward(struct trace *trace, struct trace_step *step, int layer)
{
  trace_gather(trace, step, layer - TRACE_AHEAD);
  trace_load(trace, step, layer - TRACE_AHEAD);
  int gradient = trace_alloc(trace, step->tokens * step->hidden * 2, TRACE_COMPUTE);
  for (int i = step->n_saved[layer] - 1; i >= 0; i--) { /* the gradient of each, after which both are freed */
    struct trace_item saved = trace->items.items[step->saved[layer][i]];
    trace_touch(trace, saved.bytes, saved.queue);
    trace_drop(trace, step->saved[layer][i]);
  }
  trace_gradients(trace, step, layer);
  if (step->kind == TRACE_QUEUES_KIND) {
    trace_drop(trace, step->gathered[layer]);
    trace_drop(trace, step->loaded[layer]);
  }
  trace_drop(trace, gradient);
}

/* Let AdamW make its two moments when it first runs, among the holes of the first step. */
static inline void trace_update(struct trace *trace, struct trace_step *step, bool is_first)
{
  for (int layer = 0; layer < TRACE_LAYERS; layer++)
    for (int i = 0; i < TRACE_WEIGHTS; i++) {
      for (int moment = 0; moment < 2 && is_first; moment++)
        trace_alloc(trace, trace_weight(step, i) * 4 / TRACE_RANKS, TRACE_COMPUTE);
      trace_touch(trace, trace_weight(step, i) * 4 / TRACE_RANKS, TRACE_COMPUTE);
    }
  for (int layer = 0; layer < TRACE_LAYERS; layer++)
    for (int i = 0; i < TRACE_WEIGHTS; i++)
      trace_drop(trace, step->gradients[layer][i]);
}

static inline void trace_step_draw(struct trace *trace, struct trace_step *step)
{
  step->leaving = -1;
  memset(step->gradients, 0xff, sizeof(step->gradients));
  for (int layer = 0; layer < TRACE_AHEAD; layer++)
    trace_gather(trace, step, layer);
  for (int layer = 0; layer < TRACE_LAYERS; layer++)
    trace_forward(trace, step, layer);
  int logits = trace_alloc(trace, step->tokens * TRACE_VOCAB * 2, TRACE_COMPUTE);
  trace_touch(trace, step->tokens * TRACE_VOCAB * 4, TRACE_COMPUTE);
  trace_drop(trace, logits);
  trace_drop(trace, step->leaving);
  for (int layer = 0; layer < TRACE_AHEAD; layer++) {
    trace_gather(trace, step, TRACE_LAYERS - 1 - layer);
    trace_load(trace, step, TRACE_LAYERS - 1 - layer);
  }
  for (int layer = TRACE_LAYERS - 1; layer >= 0; layer--)
    trace_backward(trace, step, layer);
}

/*
 * Return the tokens of four sequences padded to the longest, rounded up to 8. The product of two draws makes long ones
 * rare.
 */
static inline uint64_t trace_tokens(struct trace *trace)
{
  uint64_t longest = 0;
  for (int i = 0; i < 4; i++) {
    uint64_t length = 64 + (1 + trace_random(trace, 1024)) * (1 + trace_random(trace, 1024)) / 512;
    longest = LADE_MAX(longest, length);
  }
  return 4 * lade_align_up(longest, 8);
}

/* Draw and order a trace of @n_steps of @kind. False: out of memory. */
static inline bool trace_draw(struct trace *trace, enum trace_kind kind, int n_steps, uint64_t seed)
{
  struct trace_step step = {.kind = kind, .hidden = 2048};
  uint64_t share = kind == TRACE_QUEUES_KIND ? TRACE_RANKS : 1;
  trace->seed = seed;
  for (int i = 0; i < TRACE_LAYERS * TRACE_EXPERTS_HERE; i++)
    step.liked[i / TRACE_EXPERTS_HERE][i % TRACE_EXPERTS_HERE] = 64 + trace_random(trace, 384);
  for (int layer = 0; layer < TRACE_LAYERS; layer++)
    for (int i = 0; i < TRACE_WEIGHTS; i++)
      trace_alloc(trace, trace_weight(&step, i) * 2 / share, TRACE_COMPUTE);
  for (int i_step = 0; i_step < n_steps; i_step++) {
    step.tokens = kind == TRACE_SEQUENCES ? trace_tokens(trace) : 4096;
    if (kind == TRACE_QUEUES_KIND)
      step.tokens -= trace_random(trace, 512);
    trace_step_draw(trace, &step);
    trace_update(trace, &step, i_step == 0);
  }
  for (int i = 0; i < trace->items.n; i++)
    trace_drop(trace, i);
  return trace_order(trace);
}

#endif
