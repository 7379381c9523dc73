/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caching allocator under concurrency and failure. No allocation gets memory that earlier work can still access.
 * Every refused call of device and heap leaves the cache whole. The sanitizer finds planted errors. Children of fork
 * are refused. After many threads on many queues every byte is accounted for.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/cache/cache_internal.h"
#include "base/ticks.h"
#include "tests/conform/cache_target.h"

/* ---- heap calls that fail on demand ---- */

static _Atomic int heap_left = -1; /* calls until one fails; below 0: none fails */

static bool heap_fails(void)
{
  return atomic_load(&heap_left) > 0 && atomic_fetch_sub(&heap_left, 1) == 1;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
  return heap_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
  return heap_fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
  return heap_fails() ? NULL : __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
  return heap_fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

/* ---- work on queues ---- */

static void nothing_run(void *args)
{
}

struct fill {
  unsigned char *at;
  size_t bytes;
  int value;
};

static void fill_run(void *args)
{
  const struct fill *fill = args;
  memset(fill->at, fill->value, fill->bytes);
}

static void fill_launch(lade_queue *queue, struct fill *fill)
{
  lade_queue_launch(queue, &(struct lade_work){.fn = fill_run, .args = fill}, NULL);
}

static void queue_drain(lade_queue *queue)
{
  assert_int_equal(lade_queue_sync(queue, lade_queue_submitted(queue)), 0);
}

static void memory_is_reused_only_after_earlier_work(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 6 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  lade_queue *gate = queue_open(bed.device, LADE_QUEUE_SIGNAL), *slow = bed.queues[0], *other = bed.queues[1];
  unsigned char *first = must_alloc(bed.cache, slow, 3 * CHUNK);
  struct fill late = {first, 3 * CHUNK, 1};
  lade_queue_wait(slow, gate, 1);
  fill_launch(slow, &late);
  must_free(bed.cache, first);

  /* There is free space elsewhere: the other queue gets that, and the same queue gets the same block. */
  unsigned char *elsewhere = must_alloc(bed.cache, other, 3 * CHUNK);
  assert_true(elsewhere >= first + 3 * CHUNK || elsewhere + 3 * CHUNK <= first);
  assert_ptr_equal(must_alloc(bed.cache, slow, 3 * CHUNK), first);
  must_free(bed.cache, first);

  /* At the limit the block is taken by waiting for an event on the queue, not on the host. */
  unsigned char *taken = must_alloc(bed.cache, other, 3 * CHUNK);
  assert_false(lade_queue_poll(slow, 1));
  assert_ptr_equal(taken, first);
  struct fill own = {taken, 3 * CHUNK, 2};
  fill_launch(other, &own);
  /* After a free without any new work in between, the event must still be waited for. */
  must_free(bed.cache, taken);
  unsigned char *third = must_alloc(bed.cache, bed.queues[2], 3 * CHUNK);
  struct fill last = {third, 3 * CHUNK, 3};
  fill_launch(bed.queues[2], &last);
  assert_false(lade_queue_poll(slow, 1));
  lade_queue_signal(gate, 1);
  queue_drain(bed.queues[2]);
  for (size_t i = 0; i < 3 * CHUNK; i += 4096)
    assert_int_equal(third[i], 3);
  must_free(bed.cache, third);
  must_free(bed.cache, elsewhere);
  lade_cache_forget(bed.cache, gate);
  lade_queue_destroy(gate);
  bed_close(&bed);
}

static void taken_and_freed_at_once_is_still_pending(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 4 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  lade_queue *gate = queue_open(bed.device, LADE_QUEUE_SIGNAL);
  unsigned char *block = must_alloc(bed.cache, bed.queues[0], 4 * CHUNK);
  struct fill late = {block, 4 * CHUNK, 1}, last = {block, 4 * CHUNK, 2};
  lade_queue_wait(bed.queues[0], gate, 1);
  fill_launch(bed.queues[0], &late);
  must_free(bed.cache, block);
  assert_ptr_equal(must_alloc(bed.cache, bed.queues[1], 4 * CHUNK), block);
  must_free(bed.cache, block); /* queue 1 got no memory, only a wait */
  assert_ptr_equal(must_alloc(bed.cache, bed.queues[2], 4 * CHUNK), block);
  fill_launch(bed.queues[2], &last);
  lade_queue_signal(gate, 1);
  queue_drain(bed.queues[2]);
  assert_true(lade_queue_poll(bed.queues[0], 1));
  for (size_t i = 0; i < 4 * CHUNK; i += 4096)
    assert_int_equal(block[i], 2);
  must_free(bed.cache, block);
  lade_queue_destroy(gate);
  bed_close(&bed);
}

static void a_recorded_block_waits_for_its_other_queues(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 8 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  lade_queue *gate = queue_open(bed.device, LADE_QUEUE_SIGNAL), *user = bed.queues[1];
  unsigned char *block = must_alloc(bed.cache, bed.queues[0], 3 * CHUNK);
  struct fill late = {block, 3 * CHUNK, 1}, own = {NULL, 8 * CHUNK, 2};
  lade_queue_wait(user, gate, 1);
  fill_launch(user, &late);
  assert_int_equal(lade_cache_record(bed.cache, block, user), 0);
  must_free(bed.cache, block);
  struct lade_cache_stats stats = stats_get(bed.cache);
  assert_int_equal(stats.allocated_bytes.current, 0);
  assert_int_equal(stats.active_bytes.current, 3 * CHUNK);
  assert_ptr_not_equal(must_alloc(bed.cache, bed.queues[0], 3 * CHUNK), block);
  cache_check(bed.cache);
  lade_queue_signal(gate, 1);
  queue_drain(user);
  own.at = must_alloc(bed.cache, bed.queues[0], 5 * CHUNK); /* exceeds the limit unless the recorded block is taken */
  own.bytes = 5 * CHUNK;
  fill_launch(bed.queues[0], &own);
  queue_drain(bed.queues[0]);
  assert_int_equal(stats_get(bed.cache).active_bytes.current, 8 * CHUNK);
  lade_queue_destroy(gate);
  bed_close(&bed);
}

/* Active blocks are the live and the pending ones; inactive bytes are the other reserved bytes. */
static void peaks_count_pending_memory(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 8 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  lade_queue *gate = queue_open(bed.device, LADE_QUEUE_SIGNAL);
  unsigned char *block = must_alloc(bed.cache, bed.queues[0], 2 * CHUNK);
  struct fill late = {block, 2 * CHUNK, 1};
  lade_queue_wait(bed.queues[1], gate, 1);
  fill_launch(bed.queues[1], &late);
  assert_int_equal(lade_cache_record(bed.cache, block, bed.queues[1]), 0);
  must_free(bed.cache, block);
  void *live = must_alloc(bed.cache, bed.queues[0], 3 * CHUNK);
  struct lade_cache_stats stats = stats_get(bed.cache);
  assert_int_equal(stats.allocation.peak, 1);
  assert_int_equal(stats.active.peak, 2);
  assert_int_equal(stats.allocated_bytes.peak, 3 * CHUNK);
  assert_int_equal(stats.active_bytes.peak, 5 * CHUNK);
  assert_int_equal(stats.active_bytes.freed, 0);
  lade_queue_signal(gate, 1);
  queue_drain(bed.queues[1]);
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], 5 * CHUNK)); /* uses the pending block's memory */
  must_free(bed.cache, live);
  stats = stats_get(bed.cache);
  assert_int_equal(stats.active_bytes.peak, 8 * CHUNK);
  assert_int_equal(stats.active_bytes.allocated, 10 * CHUNK);
  assert_int_equal(stats.active_bytes.freed, 10 * CHUNK);
  assert_int_equal(stats.inactive_split_bytes.current, 8 * CHUNK);
  assert_int_equal(stats.inactive_split_bytes.peak, 8 * CHUNK);
  lade_cache_reset_peaks(bed.cache);
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], CHUNK));
  assert_int_equal(stats_get(bed.cache).active_bytes.peak, CHUNK);
  cache_check(bed.cache);
  lade_queue_destroy(gate);
  bed_close(&bed);
}

/*
 * A request fits the ceilings but not the memory: the next requests are held to the same ceilings. The requested bytes
 * are less than the bytes taken from two freed blocks that do not touch, and fit a block that spans neither.
 */
static void a_request_that_found_no_place_moves_no_ceiling(void **state)
{
  enum { N = 16, LESS = 100 };
  const uint64_t bytes = CHUNK / N;
  struct bed bed = bed_open(state, &(struct lade_cache_params){.limit_bytes = CHUNK}, NULL);
  void *blocks[N], *refused = NULL;
  for (int i = 0; i < N; i++)
    blocks[i] = must_alloc(bed.cache, NULL, bytes - LESS);
  must_free(bed.cache, blocks[0]);
  must_free(bed.cache, blocks[2]);
  assert_int_equal(try_alloc(bed.cache, NULL, 2 * (bytes - LESS), &refused), -ENOMEM);
  cache_check(bed.cache);
  blocks[0] = must_alloc(bed.cache, NULL, bytes);
  blocks[2] = must_alloc(bed.cache, NULL, bytes);
  struct lade_cache_stats stats = stats_get(bed.cache);
  assert_int_equal(stats.requested_bytes.current, N * (bytes - LESS) + 2 * LESS);
  assert_int_equal(stats.requested_bytes.peak, stats.requested_bytes.current);
  bed_close(&bed);
}

/* ---- determinism ---- */

enum { N_OFFSETS = 600 };

static void slow_run(void *args)
{
  usleep(200);
}

/* Make the same calls, with work that is always done before the next call, or hardly ever. */
static void offsets_draw(void **state, uint64_t *offsets, bool is_slow)
{
  const struct lade_cache_params params = {.limit_bytes = 16 * CHUNK, .flags = LADE_CACHE_DETERMINISTIC};
  struct bed bed = bed_open(state, &params, NULL);
  void *blocks[32] = {NULL};
  uint32_t random = 7;
  for (int i = 0; i < N_OFFSETS; i++) {
    random = random * 1664525 + 1013904223;
    int k = (int)(random >> 8) % 32, q = (int)(random >> 14) % 3;
    struct lade_cache_block block = {0};
    lade_queue_launch(bed.queues[q], &(struct lade_work){.fn = is_slow ? slow_run : nothing_run}, NULL);
    for (int other = 0; other < N_TEST_QUEUES && !is_slow; other++)
      queue_drain(bed.queues[other]);
    if (blocks[k] && random >> 30)
      assert_int_equal(lade_cache_record(bed.cache, blocks[k], bed.queues[(q + 1) % 3]), 0);
    must_free(bed.cache, blocks[k]);
    if (try_alloc(bed.cache, bed.queues[q], 512 + (random >> 4) % (2 * CHUNK), &blocks[k]))
      blocks[k] = NULL;
    else
      assert_int_equal(lade_cache_get_block(bed.cache, blocks[k], &block), 0);
    offsets[i] = blocks[k] ? block.offset + ((uint64_t)block.segment << 48) : 1;
  }
  for (int k = 0; k < 32; k++)
    must_free(bed.cache, blocks[k]);
  bed_close(&bed);
}

static void deterministic_offsets_do_not_depend_on_progress(void **state)
{
  static uint64_t done[N_OFFSETS], pending[N_OFFSETS];
  offsets_draw(state, done, false);
  for (int i = 0; i < 2; i++) {
    offsets_draw(state, pending, true);
    assert_memory_equal(done, pending, sizeof(done));
  }
}

/* ---- the sanitizer ---- */

static bool finding_has(lade_cache *cache, const char *words)
{
  struct lade_error finding;
  for (int i = 0; lade_cache_get_finding(cache, i, &finding) == 0; i++)
    if (strstr(finding.text, words))
      return true;
  return false;
}

static void the_sanitizer_names_the_misuse(void **state)
{
  const struct lade_cache_params params = {.flags = LADE_CACHE_SANITIZE, .quarantine_bytes = 2 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  struct lade_error error = {0};
  unsigned char *block = must_alloc(bed.cache, bed.queues[0], 1000), *after = must_alloc(bed.cache, NULL, 3000);
  assert_int_equal(block[0], 0xcb);
  must_free(bed.cache, after);
  assert_int_equal(stats_get(bed.cache).n_findings, 0);
  block[1000] = 7;
  must_free(bed.cache, block);
  assert_true(finding_has(bed.cache, "past the end, at byte 1000 of the 1000"));
  assert_int_equal(lade_cache_free(bed.cache, block, "again.c:9", &error), -EINVAL);
  assert_non_null(strstr(error.text, "twice"));
  assert_non_null(strstr(error.text, "cache_target.h:1"));
  assert_non_null(strstr(error.text, "cache_target.h:2"));
  assert_non_null(strstr(error.text, "again.c:9"));
  assert_int_equal(lade_cache_free(bed.cache, &bed, "stray.c:1", &error), -EINVAL);
  assert_non_null(strstr(error.text, "no live block"));
  block = must_alloc(bed.cache, bed.queues[0], 5000);
  block[-1] = 7;
  must_free(bed.cache, block);
  assert_true(finding_has(bed.cache, "before the block, at byte -1"));
  block = must_alloc(bed.cache, bed.queues[0], 6000);
  must_free(bed.cache, block);
  assert_int_equal(block[17], 0xdb);
  block[17] = 1;
  for (int i = 0; i < 4; i++) /* push the block out of the quarantine */
    must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], CHUNK));
  assert_true(finding_has(bed.cache, "after the free, at byte 17 of the 6000"));
  assert_int_equal(stats_get(bed.cache).n_findings, 3);
  bed_close(&bed);
}

static void quarantined_memory_is_never_out(void **state)
{
  const struct lade_cache_params params = {.flags = LADE_CACHE_SANITIZE, .limit_bytes = 4 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  for (int i = 0; i < 10; i++)
    must_free(bed.cache, must_alloc(bed.cache, bed.queues[i % 3], 3 * CHUNK));
  bed_close(&bed);
}

/* ---- trace ---- */

/* Wait for the next tick of the clock, because two events in one tick have equal times. */
static void tick_pass(void)
{
  uint64_t from = lade_ticks_now();
  while (lade_ticks_now() == from)
    ;
}

/* The first events are of the last shard: the rule orders them before events of other shards with lower numbers. */
static void events_are_in_the_order_of_the_calls(void **state, bool has_steady_ticks)
{
  enum { N = 60, MAX_EVENTS = 256 };
  static const int queue_of[] = {2, 2, 0, 1, 1, 0, 2, 0, 1};
  struct bed bed = bed_open(state, NULL, NULL);
  bed.cache->has_steady_ticks &= has_steady_ticks;
  for (int i = 0; i < N_TEST_QUEUES; i++)
    assert_int_equal(lade_cache_route(bed.cache, bed.queues[i], NULL), 0);
  void *calls[2 * N];
  for (int i = 0; i < N; i++, tick_pass())
    calls[i] = must_alloc(bed.cache, bed.queues[queue_of[i % LADE_COUNT(queue_of)]], 512 * (uint64_t)(i + 1));
  for (int i = 0; i < N; i++, tick_pass())
    must_free(bed.cache, calls[N + i] = calls[i * 7 % N]);
  struct lade_cache_event events[MAX_EVENTS];
  int n = lade_cache_get_trace(bed.cache, events, MAX_EVENTS), n_calls = 0;
  for (int i = 0; i < n; i++) {
    assert_true(i == 0 || events[i].time_us >= events[i - 1].time_us);
    if (events[i].action == LADE_CACHE_SEGMENT_MAP)
      continue;
    assert_int_equal(events[i].action, n_calls < N ? LADE_CACHE_ALLOC : LADE_CACHE_FREE);
    assert_ptr_equal((void *)(uintptr_t)events[i].address, calls[n_calls]);
    n_calls++;
  }
  assert_int_equal(n_calls, 2 * N);
  bed_close(&bed);
}

static void events_of_several_queues_are_in_the_order_of_the_calls(void **state)
{
  events_are_in_the_order_of_the_calls(state, true);
  events_are_in_the_order_of_the_calls(state, false);
}

enum { N_TRACING = 3, N_TRACED = 300 };

struct tracing {
  struct bed *bed;
  int tag;
  _Atomic int *n_ready;
};

/*
 * Allocate and free; the size tells the number of the thread's call. The thread moves from queue to queue, and stays on
 * each for a while.
 */
static void *tracing_run(void *arg)
{
  struct tracing *tracing = arg;
  struct bed *bed = tracing->bed;
  atomic_fetch_add(tracing->n_ready, 1);
  while (atomic_load(tracing->n_ready) < N_TRACING)
    ;
  for (int i = 0; i < N_TRACED; i++, tick_pass()) {
    struct lade_cache_request request = {.struct_size = sizeof(request),
                                         .bytes = 512 * (uint64_t)(i + 1),
                                         .queue = bed->queues[i * i / 7 % N_TEST_QUEUES],
                                         .tag = tracing->tag};
    void *block = NULL;
    if (lade_cache_alloc(bed->cache, &request, NULL, &block) || lade_cache_free(bed->cache, block, NULL, NULL))
      return arg;
  }
  return NULL;
}

/* Threads that share queues: the trace has each thread's events, in that thread's order. */
static void every_threads_events_are_in_its_order(void **state)
{
  enum { MAX_EVENTS = 4096 };
  struct bed bed = bed_open(state, &(struct lade_cache_params){.n_trace_entries = MAX_EVENTS}, NULL);
  struct tracing tracings[N_TRACING];
  pthread_t threads[N_TRACING];
  _Atomic int n_ready = 0;
  for (int i = 0; i < N_TRACING; i++) {
    tracings[i] = (struct tracing){.bed = &bed, .n_ready = &n_ready};
    char name[] = {'t', (char)('0' + i), 0};
    assert_int_equal(lade_cache_tag_add(bed.cache, name, &tracings[i].tag), 0);
    assert_int_equal(pthread_create(&threads[i], NULL, tracing_run, &tracings[i]), 0);
  }
  for (int i = 0; i < N_TRACING; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  struct lade_cache_event *events = calloc(MAX_EVENTS, sizeof(*events));
  uint64_t n_calls[N_TRACING + 1] = {0};
  int n = lade_cache_get_trace(bed.cache, events, MAX_EVENTS);
  assert_true(n < MAX_EVENTS);
  for (int i = 0; i < n; i++) {
    if (events[i].action == LADE_CACHE_SEGMENT_MAP || events[i].action == LADE_CACHE_SEGMENT_UNMAP)
      continue;
    uint64_t call = n_calls[events[i].tag]++;
    assert_int_equal(events[i].action, call % 2 ? LADE_CACHE_FREE : LADE_CACHE_ALLOC);
    assert_int_equal(events[i].bytes, 512 * (call / 2 + 1));
  }
  for (int i = 0; i < N_TRACING; i++)
    assert_int_equal(n_calls[tracings[i].tag], 2 * N_TRACED);
  free(events);
  bed_close(&bed);
}

/* Create and destroy a pool of the host's shard and a block of it. */
static void *pool_come_and_go(void *arg)
{
  struct bed *bed = arg;
  lade_cache_pool *pool = NULL;
  void *block = NULL;
  if (lade_cache_pool_create(bed->cache, CHUNK, &pool) || lade_cache_route(bed->cache, bed->queues[1], pool) ||
      try_alloc(bed->cache, bed->queues[1], CHUNK, &block) || lade_cache_free(bed->cache, block, NULL, NULL) ||
      lade_cache_route(bed->cache, bed->queues[1], NULL) || lade_cache_pool_destroy(bed->cache, pool))
    return NULL;
  return block;
}

/* A pool's range goes back to the device, which may give it to another queue and so to another ring of events. */
static void addresses_that_change_hands_are_in_order(void **state)
{
  enum { MAX_EVENTS = 64 };
  struct lade_cache_event events[MAX_EVENTS];
  struct bed bed = bed_open(state, &(struct lade_cache_params){.limit_bytes = 4 * CHUNK}, NULL);
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], 512));
  pthread_t thread;
  void *before = NULL;
  assert_int_equal(pthread_create(&thread, NULL, pool_come_and_go, &bed), 0);
  pthread_join(thread, &before);
  assert_non_null(before);
  must_alloc(bed.cache, bed.queues[0], 4 * CHUNK);
  int n = lade_cache_get_trace(bed.cache, events, MAX_EVENTS), n_before = 0;
  for (int i = 0; i < n; i++) {
    n_before += events[i].action == LADE_CACHE_FREE && events[i].address == (uintptr_t)before;
    if (events[i].action == LADE_CACHE_ALLOC && events[i].bytes == 4 * CHUNK)
      assert_int_equal(n_before, 1);
  }
  bed_close(&bed);
}

/* ---- failures ---- */

static void scenario_run(struct bed *bed, lade_cache_pool **ret_pool)
{
  void *blocks[24] = {NULL};
  lade_cache_pool *pool = NULL;
  lade_cache_pool_create(bed->cache, 3 * CHUNK, &pool);
  for (int i = 0; i < 24; i++)
    if (try_alloc(bed->cache, bed->queues[i % 3], i % 3 ? CHUNK + (uint64_t)i * 4096 : 700, &blocks[i]))
      blocks[i] = NULL;
  for (int i = 0; i < 24; i += 2) {
    if (blocks[i])
      lade_cache_record(bed->cache, blocks[i], bed->queues[(i + 1) % 3]);
    must_free(bed->cache, blocks[i]);
    blocks[i] = NULL;
  }
  void *large = NULL;
  if (try_alloc(bed->cache, bed->queues[1], 12 * CHUNK, &large) == 0)
    must_free(bed->cache, large);
  int code = lade_cache_check(bed->cache, NULL);
  assert_true(code == 0 || code == -ENOMEM); /* destroying needs heap memory, too */
  lade_cache_trim(bed->cache, 6 * CHUNK);
  for (int i = 0; i < 24; i++)
    must_free(bed->cache, blocks[i]);
  if (lade_cache_pool_destroy(bed->cache, pool)) /* refused: the pool still exists */
    *ret_pool = pool;
  lade_cache_trim(bed->cache, 0);
}

static void refused_calls_of_the_device_lose_nothing(void **state)
{
  static const enum lade_fault_point points[] = {LADE_FAULT_RESERVE, LADE_FAULT_CHUNK_CREATE, LADE_FAULT_MAP,
                                                 LADE_FAULT_UNMAP};
  const struct lade_cache_params params = {.limit_bytes = 24 * CHUNK};
  for (size_t p = 0; p < LADE_COUNT(points); p++)
    for (int is_for_good = 0; is_for_good < 2; is_for_good++) {
      bool is_hit = true;
      for (uint64_t nth = 1; is_hit; nth += 1 + nth / 8) {
        struct lade_faults faults;
        lade_faults_init(&faults);
        struct bed bed = bed_open(state, &params, &faults);
        lade_cache_pool *left = NULL;
        lade_faults_arm(&faults, points[p], nth, is_for_good, -ENOMEM);
        scenario_run(&bed, &left);
        is_hit = lade_faults_injected(&faults) > 0;
        cache_check(bed.cache);
        lade_faults_arm(&faults, points[p], 0, false, -ENOMEM); /* no more failures */
        assert_int_equal(lade_cache_pool_destroy(bed.cache, left), 0);
        must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], 20 * CHUNK)); /* all memory is still there */
        bed_close(&bed);
      }
    }
}

static void refused_heap_calls_lose_nothing(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 24 * CHUNK};
  for (int nth = 1, is_hit = 1; is_hit; nth++) {
    struct bed bed = bed_open(state, &params, NULL);
    lade_cache_pool *left = NULL;
    atomic_store(&heap_left, nth);
    scenario_run(&bed, &left);
    is_hit = atomic_load(&heap_left) <= 0;
    atomic_store(&heap_left, -1);
    cache_check(bed.cache);
    assert_int_equal(lade_cache_pool_destroy(bed.cache, left), 0);
    must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], 20 * CHUNK));
    lade_cache *cache = NULL;
    struct lade_cache_params again = {.struct_size = sizeof(again), .device = bed.device, .flags = LADE_CACHE_SANITIZE};
    again.n_trace_entries = 16;
    atomic_store(&heap_left, nth);
    int code = lade_cache_create(&again, NULL, &cache);
    atomic_store(&heap_left, -1);
    assert_true(code == 0 || code == -ENOMEM);
    lade_cache_destroy(cache);
    bed_close(&bed);
  }
}

static void a_child_of_fork_is_refused(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  void *block = must_alloc(bed.cache, bed.queues[0], CHUNK), *refused = NULL;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
    bool is_right = try_alloc(bed.cache, bed.queues[0], 512, &refused) == -EPERM &&
                    lade_cache_free(bed.cache, block, NULL, NULL) == -EPERM &&
                    lade_cache_get_stats(bed.cache, &stats) == -EPERM && lade_cache_check(bed.cache, NULL) == -EPERM;
    lade_cache_destroy(bed.cache);
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  must_free(bed.cache, block);
  bed_close(&bed);
}

/* ---- many threads ---- */

#define STRESS_THREADS 8
#define STRESS_CALLS 1500

struct stress_use {
  unsigned char *at;
  size_t bytes;
  int value;
  _Atomic int *n_wrong;
};

struct stress {
  struct bed *bed;
  pthread_mutex_t submit[N_TEST_QUEUES]; /* one thread at a time submits to a queue */
  _Atomic int n_wrong, n_refused;
};

static int n_stress_calls = STRESS_CALLS; /* of each thread; a quarter if the program has an argument */

struct stress_thread {
  struct stress *stress;
  int number;
  struct stress_use uses[STRESS_CALLS];
};

/* Write both ends and check that no other thread writes them, on the queue that runs this. */
static void use_run(void *args)
{
  const struct stress_use *use = args;
  size_t n = LADE_MIN(use->bytes, 256);
  memset(use->at, use->value, n);
  memset(use->at + use->bytes - n, use->value, n);
  for (size_t i = 0; i < n; i++)
    if (use->at[i] != use->value || use->at[use->bytes - 1 - i] != use->value)
      atomic_fetch_add(use->n_wrong, 1);
}

static void stress_submit(struct stress *stress, int q, struct stress_use *use)
{
  pthread_mutex_lock(&stress->submit[q]);
  lade_queue_launch(stress->bed->queues[q], &(struct lade_work){.fn = use_run, .args = use}, NULL);
  pthread_mutex_unlock(&stress->submit[q]);
}

static void *stress_main(void *arg)
{
  struct stress_thread *thread = arg;
  struct stress *stress = thread->stress;
  lade_cache *cache = stress->bed->cache;
  unsigned char *held[8] = {NULL};
  uint32_t random = (uint32_t)thread->number + 1;
  for (int i = 0; i < n_stress_calls; i++) {
    random = random * 1664525 + 1013904223;
    int q = (int)(random >> 9) % N_TEST_QUEUES, other = (int)(random >> 12) % N_TEST_QUEUES;
    int k = (int)(random >> 15) % 8;
    uint64_t bytes = 256 + (random >> 4) % (random % 5 ? 100000 : 3 * CHUNK);
    void *block = NULL;
    lade_cache_free(cache, held[k], NULL, NULL);
    held[k] = NULL;
    pthread_mutex_lock(&stress->submit[q]);
    int error = try_alloc(cache, stress->bed->queues[q], bytes, &block);
    pthread_mutex_unlock(&stress->submit[q]);
    if (error) {
      atomic_fetch_add(&stress->n_refused, 1);
      continue;
    }
    held[k] = block;
    thread->uses[i] = (struct stress_use){block, bytes, thread->number * 16 + k + 1, &stress->n_wrong};
    stress_submit(stress, q, &thread->uses[i]);
    if (random >> 31 && q == other)
      stress_submit(stress, q, &thread->uses[i]);
    if (random >> 30 == 3)
      lade_cache_record(cache, block, stress->bed->queues[other]);
    if (i % 200 == 99 && lade_cache_check(cache, NULL))
      atomic_fetch_add(&stress->n_wrong, 1);
    if (i % 500 == 250)
      lade_cache_trim(cache, 8 * CHUNK);
  }
  for (int k = 0; k < 8; k++)
    lade_cache_free(cache, held[k], NULL, NULL);
  return NULL;
}

static void stress_run(void **state, uint32_t flags)
{
  const struct lade_cache_params params = {.limit_bytes = 24 * CHUNK, .flags = flags, .quarantine_bytes = 2 * CHUNK};
  static struct stress_thread contexts[STRESS_THREADS];
  struct bed bed = bed_open(state, &params, NULL);
  struct stress stress = {.bed = &bed};
  pthread_t threads[STRESS_THREADS];
  for (int i = 0; i < N_TEST_QUEUES; i++)
    pthread_mutex_init(&stress.submit[i], NULL);
  for (int i = 0; i < STRESS_THREADS; i++) {
    contexts[i].stress = &stress;
    contexts[i].number = i;
    assert_int_equal(pthread_create(&threads[i], NULL, stress_main, &contexts[i]), 0);
  }
  for (int i = 0; i < STRESS_THREADS; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < N_TEST_QUEUES; i++)
    queue_drain(bed.queues[i]);
  assert_int_equal(stress.n_wrong, 0);
  assert_int_equal(stats_get(bed.cache).allocated_bytes.current, 0);
  cache_check(bed.cache);
  void *all = must_alloc(bed.cache, bed.queues[0], 23 * CHUNK); /* no memory is lost to fragments */
  must_free(bed.cache, all);
  assert_int_equal(lade_cache_trim(bed.cache, 0), 0);
  for (int i = 0; i < N_TEST_QUEUES; i++)
    pthread_mutex_destroy(&stress.submit[i]);
  bed_close(&bed);
}

static void threads_and_queues_share_one_cache(void **state)
{
  stress_run(state, 0);
}

static void threads_and_queues_share_one_sanitized_cache(void **state)
{
  stress_run(state, LADE_CACHE_SANITIZE);
}

int main(int argc, char **argv)
{
  if (argc > 1)
    n_stress_calls = STRESS_CALLS / 4;
  struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_is_reused_only_after_earlier_work),
      cmocka_unit_test(taken_and_freed_at_once_is_still_pending),
      cmocka_unit_test(a_recorded_block_waits_for_its_other_queues),
      cmocka_unit_test(peaks_count_pending_memory),
      cmocka_unit_test(a_request_that_found_no_place_moves_no_ceiling),
      cmocka_unit_test(deterministic_offsets_do_not_depend_on_progress),
      cmocka_unit_test(the_sanitizer_names_the_misuse),
      cmocka_unit_test(quarantined_memory_is_never_out),
      cmocka_unit_test(events_of_several_queues_are_in_the_order_of_the_calls),
      cmocka_unit_test(every_threads_events_are_in_its_order),
      cmocka_unit_test(addresses_that_change_hands_are_in_order),
      cmocka_unit_test(refused_calls_of_the_device_lose_nothing),
      cmocka_unit_test(refused_heap_calls_lose_nothing),
      cmocka_unit_test(a_child_of_fork_is_refused),
      cmocka_unit_test(threads_and_queues_share_one_cache),
      cmocka_unit_test(threads_and_queues_share_one_sanitized_cache),
  };
  return target_run(1, argv, tests, LADE_COUNT(tests));
}
