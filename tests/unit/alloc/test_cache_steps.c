/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caching allocator over whole steps. A step that repeats soon makes no memory call. A scarce limit does not refuse
 * it memory that it once had. Steps that all differ waste little.
 */
#include <stdlib.h>

#include "bench/cache_traces.h"
#include "tests/conform/cache_target.h"

static uint64_t memory_calls(lade_cache *cache)
{
  struct lade_cache_stats stats = stats_get(cache);
  return stats.n_maps + stats.n_unmaps + stats.n_creates + stats.n_releases;
}

static void trace_round(lade_cache *cache, lade_queue **queues, const struct trace *trace, void **blocks)
{
  for (int i = 0; i < trace->n_calls; i++) {
    const struct trace_item *item = &trace->items.items[trace->calls[i].i_item];
    void **block = &blocks[trace->calls[i].i_item];
    if (trace->calls[i].is_free)
      must_free(cache, *block);
    else
      *block = must_alloc(cache, queues[item->queue], item->bytes);
  }
}

struct play {
  enum trace_kind kind;
  uint64_t seed;
  int n_steps, n_rounds;
  double max_waste;   /* in all rounds; in the first at most 1 % */
  double limit_waste; /* margin of the limit over the live peak; 0: no limit */
};

/*
 * Play one trace again and again on one device without memory. Return the last round, from 1, with a call for memory.
 */
static int trace_play(const struct play *play)
{
  struct lade_device_params params = {sizeof(params), "dry", (uint64_t)1 << 36};
  struct lade_cache_params cache_params = {.struct_size = sizeof(cache_params)};
  struct trace trace = {0};
  lade_queue *queues[TRACE_QUEUES];
  lade_cache *cache = NULL;
  uint64_t calls = 0;
  int last_round = 0;
  assert_true(trace_draw(&trace, play->kind, play->n_steps, play->seed));
  if (play->limit_waste > 0)
    cache_params.limit_bytes = (uint64_t)((1 + play->limit_waste) * (double)trace.peak_bytes);
  assert_int_equal(lade_device_open(&params, NULL, &cache_params.device), 0);
  for (int i = 0; i < TRACE_QUEUES; i++)
    queues[i] = queue_open(cache_params.device, LADE_QUEUE_COMPUTE);
  assert_int_equal(lade_cache_create(&cache_params, NULL, &cache), 0);
  void **blocks = calloc((size_t)trace.items.n, sizeof(*blocks));
  for (int round = 0; round < play->n_rounds; round++) {
    trace_round(cache, queues, &trace, blocks);
    double max = (1 + (round ? play->max_waste : 0.01)) * (double)trace.peak_bytes;
    assert_true((double)stats_get(cache).reserved_bytes.peak <= max);
    if (memory_calls(cache) != calls)
      last_round = round + 1;
    calls = memory_calls(cache);
  }
  cache_check(cache);
  free(blocks);
  lade_cache_destroy(cache);
  for (int i = 0; i < TRACE_QUEUES; i++)
    lade_queue_destroy(queues[i]);
  lade_device_close(cache_params.device);
  trace_free(&trace);
  return last_round;
}

static void a_repeated_step_comes_to_rest(void **state)
{
  static const double max_waste[] = {[TRACE_QUEUES_KIND] = 0.04, [TRACE_EXPERTS] = 0.03, [TRACE_SEQUENCES] = 0.01};
  for (int kind = 0; kind < TRACE_N_KINDS; kind++)
    for (uint64_t seed = 1; seed <= 8; seed++) {
      const struct play play = {(enum trace_kind)kind, seed, 1, 30, max_waste[kind], 0};
      assert_in_range(trace_play(&play), 1, 8);
    }
}

/*
 * With more memory the step would make no calls. The cache keeps memory for its next round, and that memory is found
 * when it is scarce.
 */
static void a_repeated_step_is_never_refused(void **state)
{
  for (int kind = 0; kind < TRACE_N_KINDS; kind++) {
    const struct play play = {(enum trace_kind)kind, 1, 1, 12, 0.01, 0.01};
    assert_in_range(trace_play(&play), 1, 12);
  }
}

static void steps_that_never_repeat_waste_little(void **state)
{
  for (int kind = 0; kind < TRACE_N_KINDS; kind++) {
    const struct play play = {(enum trace_kind)kind, 74, 48, 1, 0.01, 0};
    assert_int_equal(trace_play(&play), 1);
  }
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {
      cmocka_unit_test(a_repeated_step_comes_to_rest),
      cmocka_unit_test(a_repeated_step_is_never_refused),
      cmocka_unit_test(steps_that_never_repeat_waste_little),
  };
  return target_run(argc, argv, tests, LADE_COUNT(tests));
}
