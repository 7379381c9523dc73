/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a trace: refused with one line, or the reader's guarantees hold, and every policy replays it. */
#ifndef LADE_TESTS_FUZZ_TRACE_H
#define LADE_TESTS_FUZZ_TRACE_H

#include <errno.h>
#include <string.h>

#include "alloc/replay.h"
#include "tests/fuzz/fuzz_file.h"

/* Replay under every policy, whose results lade_replay checks, without a budget and with one that is too small. */
static inline void fuzz_trace_replay(const struct lade_trace *trace)
{
  for (int policy = 0; policy < LADE_N_POLICIES; policy++)
    for (int is_tight = 0; is_tight < 2; is_tight++) {
      struct lade_replay_params params = {.policy = policy, .time_limit_ns = 100000};
      struct lade_error error = {0};
      struct lade_replay replay = {0};
      params.budget_bytes = is_tight ? trace->peak_live_bytes - trace->peak_live_bytes / 8 : 0;
      int code = lade_replay(trace, &params, &error, &replay);
      if (code && code != -ENOMEM)
        abort();
      if (code)
        fuzz_error_check(&error);
      lade_replay_finish(&replay);
    }
}

static inline void fuzz_trace_check(const struct lade_trace *trace)
{
  int n = trace->blocks.n;
  uint64_t live_bytes = 0, *offsets = calloc((size_t)n, sizeof(*offsets));
  struct lade_pack_item *items = calloc((size_t)n, sizeof(*items));
  struct lade_pack_result result;
  lade_trace_items(trace, items);
  if (n < 1 || lade_pack_live_peak(items, n, &live_bytes) || live_bytes != trace->peak_live_bytes)
    abort();
  for (int i = 0; i < n; i++) {
    const struct lade_trace_block *block = &trace->blocks.items[i];
    if (block->queue < 0 || block->queue >= trace->n_queues || trace->events.items[block->first].block != i ||
        (block->last < trace->events.n && trace->events.items[block->last].block != i))
      abort();
  }
  for (int with_groups = 0; with_groups < 2; with_groups++) {
    if (lade_pack(items, n, NULL, offsets, &result, NULL) ||
        lade_pack_check(items, n, offsets, result.peak_bytes, NULL) || result.lower_bound_bytes < live_bytes)
      abort();
    for (int i = 0; i < n; i++) {
      items[i].group = (uint32_t)(items[i].bytes + (uint64_t)i / 4) % 8;
      items[i].align = 1u << (items[i].bytes + (uint64_t)i) % 4;
    }
  }
  free(items);
  free(offsets);
  fuzz_trace_replay(trace);
}

static inline void fuzz_trace_read(const uint8_t *data, size_t size)
{
  struct lade_error error = {0};
  struct lade_trace trace = {0};
  char *text = malloc(size + 1);
  memcpy(text, data, size);
  text[size] = 0;
  int code = lade_trace_read("input", text, size, &error, &trace);
  free(text); /* no result may point into it */
  if (code) {
    if (code != -EBADMSG || trace.blocks.items)
      abort();
    fuzz_error_check(&error);
    return;
  }
  fuzz_trace_check(&trace);
  lade_trace_destroy(&trace);
}

#endif
