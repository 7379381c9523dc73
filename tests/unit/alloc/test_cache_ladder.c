/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ladder at the limit: each step has its effect, none is climbed while a lower one suffices, and no request that
 * fits is refused. Queues are held by a gate, so that pending work stays pending until the test releases it. Further
 * the calls that the owner's function may make, the blocks that a climb examines, and the cache after threads end and
 * processes fork.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/cache/cache_internal.h"
#include "base/philox.h"
#include "tests/conform/cache_target.h"

enum { LIMIT_CHUNKS = 4 };

struct ladder {
  struct bed bed;
  lade_queue *gate;
  struct lade_cache_stats before;
};

static void nothing(void *args)
{
}

static struct ladder ladder_open_as(void **state, const struct lade_cache_params *params)
{
  struct ladder ladder = {.bed = bed_open(state, params, NULL)};
  ladder.gate = queue_open(ladder.bed.device, LADE_QUEUE_SIGNAL);
  return ladder;
}

static struct ladder ladder_open_to(void **state, uint64_t n_chunks, lade_cache_spill_fn *spill, void *arg)
{
  return ladder_open_as(state, &(struct lade_cache_params){
      .limit_bytes = n_chunks * CHUNK, .spill = spill, .spill_arg = arg});
}

static struct ladder ladder_open(void **state, lade_cache_spill_fn *spill, void *arg)
{
  return ladder_open_to(state, LIMIT_CHUNKS, spill, arg);
}

/* Submit work to queue @i that is not done before the gate opens. */
static void hold(struct ladder *ladder, int i)
{
  lade_queue_wait(ladder->bed.queues[i], ladder->gate, 1);
  lade_queue_launch(ladder->bed.queues[i], &(struct lade_work){.fn = nothing}, NULL);
}

/* Give the queues one pool, so that blocks of different queues are adjacent. */
static void queues_join(struct ladder *ladder, uint64_t n_chunks)
{
  lade_cache_pool *pool = NULL;
  assert_int_equal(lade_cache_pool_create(ladder->bed.cache, n_chunks * CHUNK, &pool), 0);
  for (int i = 0; i < N_TEST_QUEUES; i++)
    assert_int_equal(lade_cache_route(ladder->bed.cache, ladder->bed.queues[i], pool), 0);
}

static void *block_of(struct ladder *ladder, int i, uint64_t n_chunks)
{
  return must_alloc(ladder->bed.cache, i < 0 ? NULL : ladder->bed.queues[i], n_chunks * CHUNK);
}

static void ladder_close(struct ladder *ladder)
{
  lade_queue_signal(ladder->gate, 1);
  lade_cache_destroy(ladder->bed.cache);
  for (int i = 0; i < N_TEST_QUEUES; i++)
    lade_queue_destroy(ladder->bed.queues[i]);
  lade_queue_destroy(ladder->gate);
  assert_int_equal(info_get(ladder->bed.device).created_bytes, 0);
  lade_device_close(ladder->bed.device);
}

/* Check the uses of each step of the ladder since the last call. */
static void uses_are(struct ladder *ladder, uint64_t moves, uint64_t events, uint64_t spills, uint64_t host_waits)
{
  struct lade_cache_stats now = stats_get(ladder->bed.cache), *before = &ladder->before;
  assert_int_equal(now.n_unmaps - before->n_unmaps, moves);
  assert_int_equal(now.n_event_waits - before->n_event_waits, events);
  assert_int_equal(now.n_spills - before->n_spills, spills);
  assert_int_equal(now.n_host_waits - before->n_host_waits, host_waits);
  assert_int_equal(now.num_ooms, 0);
  cache_check(ladder->bed.cache);
  *before = now;
}

/* ---- steps of the ladder ---- */

static void finished_frees_are_joined_first(void **state)
{
  struct ladder ladder = ladder_open(state, NULL, NULL);
  queues_join(&ladder, LIMIT_CHUNKS);
  void *first = block_of(&ladder, 0, 2), *second = block_of(&ladder, 1, 2);
  uses_are(&ladder, 0, 0, 0, 0);
  must_free(ladder.bed.cache, first);
  must_free(ladder.bed.cache, second);
  assert_ptr_equal(block_of(&ladder, 2, 4), first);
  uses_are(&ladder, 0, 0, 0, 0);
  ladder_close(&ladder);
}

static void idle_chunks_are_moved_before_queues_are_made_to_wait(void **state)
{
  struct ladder ladder = ladder_open_to(state, 6, NULL, NULL);
  void *idle[2], *pending;
  for (int i = 0; i < 2; i++) {
    idle[i] = block_of(&ladder, 0, 1);
    block_of(&ladder, 0, 1); /* live block between the two */
  }
  pending = block_of(&ladder, 1, 2); /* fits, too, but only after a wait */
  hold(&ladder, 1);
  must_free(ladder.bed.cache, pending);
  for (int i = 0; i < 2; i++)
    must_free(ladder.bed.cache, idle[i]);
  assert_ptr_not_equal(block_of(&ladder, 2, 2), pending);
  uses_are(&ladder, 2, 0, 0, 0);
  ladder_close(&ladder);
}

static uint64_t never(void *arg, uint64_t bytes)
{
  fail_msg("the owner was asked for %llu bytes", (unsigned long long)bytes);
  return 0;
}

static void pending_blocks_are_taken_by_event(void **state)
{
  struct ladder ladder = ladder_open(state, never, NULL);
  void *block = block_of(&ladder, 0, 4);
  hold(&ladder, 0);
  must_free(ladder.bed.cache, block);
  assert_ptr_equal(block_of(&ladder, 1, 4), block);
  uses_are(&ladder, 0, 1, 0, 0);
  ladder_close(&ladder);
}

static void neighbours_of_different_queues_are_taken_together(void **state)
{
  struct ladder ladder = ladder_open_to(state, 5, never, NULL);
  queues_join(&ladder, 5);
  void *first = block_of(&ladder, 0, 2), *second = block_of(&ladder, 1, 2);
  block_of(&ladder, 0, 1); /* live block after them: no hole is in reach */
  hold(&ladder, 0);
  hold(&ladder, 1);
  must_free(ladder.bed.cache, first);
  must_free(ladder.bed.cache, second);
  assert_ptr_equal(block_of(&ladder, 2, 4), first);
  uses_are(&ladder, 0, 2, 0, 0);
  assert_false(lade_queue_poll(ladder.bed.queues[0], 1));
  ladder_close(&ladder);
}

static void recorded_blocks_are_taken_by_event(void **state)
{
  struct ladder ladder = ladder_open(state, never, NULL);
  void *block = block_of(&ladder, 0, 4);
  hold(&ladder, 0);
  hold(&ladder, 1);
  assert_int_equal(lade_cache_record(ladder.bed.cache, block, ladder.bed.queues[1]), 0);
  must_free(ladder.bed.cache, block);
  assert_ptr_equal(block_of(&ladder, 2, 4), block);
  uses_are(&ladder, 0, 2, 0, 0);
  ladder_close(&ladder);
}

struct owner {
  struct ladder *ladder;
  void *held[2];
  int n_held, n_asked;
  bool is_opener;
};

/* Give up one block per call, the last first, while work on it is unfinished. */
static uint64_t give_one(void *arg, uint64_t bytes)
{
  struct owner *owner = arg;
  owner->n_asked++;
  if (owner->is_opener)
    lade_queue_signal(owner->ladder->gate, 1);
  if (!owner->n_held)
    return 0;
  hold(owner->ladder, 0);
  must_free(owner->ladder->bed.cache, owner->held[--owner->n_held]);
  return 2 * CHUNK;
}

static void the_owner_is_asked_until_it_is_enough_without_waits(void **state)
{
  struct owner owner = {0};
  struct ladder ladder = ladder_open(state, give_one, &owner);
  owner.ladder = &ladder;
  for (; owner.n_held < 2; owner.n_held++)
    owner.held[owner.n_held] = block_of(&ladder, 0, 2);
  block_of(&ladder, 1, 4);
  assert_int_equal(owner.n_asked, 2);
  assert_false(lade_queue_poll(ladder.bed.queues[0], 1));
  uses_are(&ladder, 0, 1, 2, 0); /* one event covers the work before both frees */
  ladder_close(&ladder);
}

static void the_host_waits_last_of_all(void **state)
{
  struct owner owner = {.is_opener = true};
  struct ladder ladder = ladder_open(state, give_one, &owner);
  owner.ladder = &ladder;
  void *block = block_of(&ladder, 0, 4);
  hold(&ladder, 0);
  must_free(ladder.bed.cache, block);
  assert_ptr_equal(block_of(&ladder, -1, 4), block); /* the host has no queue that could wait */
  uses_are(&ladder, 0, 0, 1, 1);
  ladder_close(&ladder);
}

/* Captured work runs when the graph does, which may be never: a wait for its queue may never end. */
static void no_call_waits_under_capture(void **state, unsigned flags)
{
  struct ladder ladder =
      ladder_open_as(state, &(struct lade_cache_params){.limit_bytes = LIMIT_CHUNKS * CHUNK, .flags = flags});
  lade_cache *cache = ladder.bed.cache;
  lade_cache_pool *captured = NULL, *left = NULL;
  void *refused = NULL;
  assert_int_equal(lade_cache_pool_create(cache, CHUNK, &captured), 0);
  assert_int_equal(lade_cache_pool_create(cache, CHUNK, &left), 0);
  assert_int_equal(lade_cache_route(cache, ladder.bed.queues[0], left), 0);
  void *block = block_of(&ladder, 0, 1);
  hold(&ladder, 0);
  must_free(cache, block);
  assert_int_equal(lade_cache_route(cache, ladder.bed.queues[0], captured), 0);
  assert_int_equal(lade_cache_capture_begin(cache, captured), 0);
  assert_int_equal(try_alloc(cache, ladder.bed.queues[1], LIMIT_CHUNKS * CHUNK, &refused), -ENOMEM);
  assert_int_equal(lade_cache_pool_destroy(cache, left), -EBUSY); /* its memory is still in use */
  cache_check(cache);
  assert_int_equal(lade_cache_capture_end(cache, captured), 0);
  lade_queue_signal(ladder.gate, 1);
  assert_int_equal(lade_cache_pool_destroy(cache, left), 0);
  ladder_close(&ladder);
}

static void no_call_waits_for_a_queue_under_capture(void **state)
{
  no_call_waits_under_capture(state, 0);
}

/* When a deterministic cache waits for other queues, it treats such a queue as not done in every case. */
static void nor_does_a_deterministic_cache(void **state)
{
  no_call_waits_under_capture(state, LADE_CACHE_DETERMINISTIC);
}

static void *waiter_main(void *arg)
{
  struct ladder *ladder = arg;
  void *block = NULL;
  return try_alloc(ladder->bed.cache, NULL, LIMIT_CHUNKS * CHUNK, &block) ? NULL : block;
}

/* The queue that is removed comes after the one that is waited for: the waiting call must not keep a pointer to it. */
static void a_queue_may_go_while_another_is_waited_for(void **state)
{
  struct ladder ladder = ladder_open(state, NULL, NULL);
  lade_queue *leaving = queue_open(ladder.bed.device, LADE_QUEUE_COMPUTE);
  void *block = block_of(&ladder, 0, LIMIT_CHUNKS), *got = NULL;
  assert_int_equal(lade_cache_route(ladder.bed.cache, leaving, NULL), 0);
  hold(&ladder, 0);
  must_free(ladder.bed.cache, block);
  pthread_t waiter;
  assert_int_equal(pthread_create(&waiter, NULL, waiter_main, &ladder), 0);
  while (!stats_get(ladder.bed.cache).n_host_waits)
    usleep(1000);
  lade_cache_forget(ladder.bed.cache, leaving);
  lade_queue_destroy(leaving);
  lade_queue_signal(ladder.gate, 1);
  pthread_join(waiter, &got);
  assert_ptr_equal(got, block);
  ladder_close(&ladder);
}

static void requests_that_fit_among_blocks_of_the_other_size_succeed(void **state)
{
  struct ladder ladder = ladder_open(state, NULL, NULL);
  lade_cache *cache = ladder.bed.cache;
  void *large = must_alloc(cache, ladder.bed.queues[0], LIMIT_CHUNKS * CHUNK - MIB);
  void *small = must_alloc(cache, ladder.bed.queues[1], 512);
  uses_are(&ladder, 0, 0, 0, 0);
  must_free(cache, small);
  must_free(cache, large);
  assert_int_equal(lade_cache_trim(cache, 0), 0);
  must_alloc(cache, ladder.bed.queues[0], 512);
  must_alloc(cache, ladder.bed.queues[0], (LIMIT_CHUNKS - 1) * CHUNK);
  must_alloc(cache, ladder.bed.queues[0], MIB); /* next to the small one */
  ladder.before = stats_get(cache);
  uses_are(&ladder, 0, 0, 0, 0);
  ladder_close(&ladder);
}

/* ---- possible space ---- */

enum { N_DRAWN = 200, DRAWN_CHUNKS = 12 };

struct drawing {
  struct bed bed;
  void *blocks[N_DRAWN];
  char places[N_DRAWN][16];
  uint64_t refused_bytes;
};

/* Allocate and free blocks of random sizes until a request is refused. */
static void drawing_make(struct drawing *drawing, void **state, uint32_t seed)
{
  const struct lade_cache_params params = {.limit_bytes = DRAWN_CHUNKS * CHUNK};
  uint32_t random = seed * 2654435761u + 1;
  int code = 0;
  *drawing = (struct drawing){.bed = bed_open(state, &params, NULL)};
  for (int i = 0; i < N_DRAWN && !code; i++) {
    struct lade_cache_request request = {sizeof(request), 0, drawing->bed.queues[0], 0, drawing->places[i]};
    random = random * 1664525 + 1013904223;
    if (random >> 30 == 0) {
      must_free(drawing->bed.cache, drawing->blocks[(random >> 8) % N_DRAWN]);
      drawing->blocks[(random >> 8) % N_DRAWN] = NULL;
    }
    snprintf(drawing->places[i], sizeof(drawing->places[i]), "drawn.c:%d", i);
    request.bytes = 512 + (random >> 6) % (random % 3 ? MIB / 8 : 3 * CHUNK);
    drawing->refused_bytes = request.bytes;
    code = lade_cache_alloc(drawing->bed.cache, &request, NULL, &drawing->blocks[i]);
  }
  assert_int_equal(code, -ENOMEM);
}

static void drawing_end(struct drawing *drawing)
{
  for (int i = 0; i < N_DRAWN; i++)
    must_free(drawing->bed.cache, drawing->blocks[i]);
  bed_close(&drawing->bed);
}

static void the_limit_that_is_named_would_do_and_no_lower_one(void **state)
{
  for (uint32_t seed = 1; seed <= 60; seed++) {
    struct drawing drawing;
    void *block = NULL;
    drawing_make(&drawing, state, seed);
    lade_cache *cache = drawing.bed.cache;
    uint64_t raise_bytes = cache->refusal.shortfall_bytes;
    assert_true(raise_bytes > 0);
    cache->limit_bytes += raise_bytes - 1;
    assert_int_equal(try_alloc(cache, drawing.bed.queues[0], drawing.refused_bytes, &block), -ENOMEM);
    cache->limit_bytes += 1;
    must_free(cache, must_alloc(cache, drawing.bed.queues[0], drawing.refused_bytes));
    drawing_end(&drawing);
  }
}

static void the_block_that_is_named_would_do(void **state)
{
  int n_named = 0;
  for (uint32_t seed = 1; seed <= 60; seed++) {
    struct drawing drawing;
    drawing_make(&drawing, state, seed);
    lade_cache *cache = drawing.bed.cache;
    const char *place = cache->refusal.block_place;
    n_named += place != NULL;
    for (int i = 0; i < N_DRAWN && place; i++)
      if (place == drawing.places[i]) {
        must_free(cache, drawing.blocks[i]);
        drawing.blocks[i] = must_alloc(cache, drawing.bed.queues[0], drawing.refused_bytes);
      }
    drawing_end(&drawing);
  }
  assert_true(n_named > 30);
}

/* ---- the owner's function ---- */

struct turns {
  struct bed *bed;
  void *held[2];
  int n_held;
  _Atomic bool is_started; /* the second thread runs, at its request */
};

static uint64_t give_when_the_other_waits(void *arg, uint64_t bytes)
{
  struct turns *turns = arg;
  while (!atomic_load(&turns->is_started))
    usleep(1000);
  usleep(20000); /* time for the thread to reach its wait */
  if (!turns->n_held)
    return 0;
  must_free(turns->bed->cache, turns->held[--turns->n_held]);
  return 2 * CHUNK;
}

static void *second_main(void *arg)
{
  struct turns *turns = arg;
  void *block = NULL;
  atomic_store(&turns->is_started, true);
  return try_alloc(turns->bed->cache, turns->bed->queues[1], 2 * CHUNK, &block) ? NULL : block;
}

static void threads_take_turns_with_the_owner(void **state)
{
  struct turns turns = {0};
  const struct lade_cache_params params = {
      .limit_bytes = LIMIT_CHUNKS * CHUNK, .spill = give_when_the_other_waits, .spill_arg = &turns};
  struct bed bed = bed_open(state, &params, NULL);
  pthread_t second;
  void *got = NULL;
  turns.bed = &bed;
  for (; turns.n_held < 2; turns.n_held++)
    turns.held[turns.n_held] = must_alloc(bed.cache, bed.queues[2], 2 * CHUNK);
  assert_int_equal(pthread_create(&second, NULL, second_main, &turns), 0);
  void *block = must_alloc(bed.cache, bed.queues[0], 2 * CHUNK);
  pthread_join(second, &got);
  assert_non_null(got);
  assert_int_equal(stats_get(bed.cache).num_ooms, 0);
  must_free(bed.cache, block);
  must_free(bed.cache, got);
  bed_close(&bed);
}

struct guest {
  struct bed *bed;
  void *held;
  int n_calls;
};

/* Call every function that is allowed inside an allocation. */
static uint64_t reenter(void *arg, uint64_t bytes)
{
  struct guest *guest = arg;
  lade_cache *cache = guest->bed->cache;
  lade_cache_pool *pool = NULL;
  struct lade_cache_event event;
  struct lade_cache_block block;
  struct lade_cache_tag ledger;
  char page[64];
  void *refused = NULL;
  int tag = 0;
  if (guest->n_calls++)
    return 0;
  assert_int_equal(try_alloc(cache, NULL, 512, &refused), -EDEADLK);
  assert_int_equal(lade_cache_pool_create(cache, CHUNK, &pool), -EDEADLK);
  assert_null(pool);
  assert_int_equal(lade_cache_record(cache, guest->held, guest->bed->queues[1]), 0);
  assert_int_equal(lade_cache_get_block(cache, guest->held, &block), 0);
  assert_int_equal(lade_cache_tag_add(cache, "guest", &tag), 0);
  assert_int_equal(lade_cache_get_tag(cache, tag, &ledger), 0);
  assert_int_equal(lade_cache_get_trace(cache, &event, 1), 1);
  assert_true(lade_cache_report(cache, page, sizeof(page)) > sizeof(page));
  assert_int_equal(lade_cache_route(cache, guest->bed->queues[2], NULL), 0);
  lade_cache_reset_peaks(cache);
  lade_cache_forget(cache, guest->bed->queues[2]);
  assert_int_equal(stats_get(cache).n_spills, 1);
  cache_check(cache);
  must_free(cache, guest->held);
  assert_int_equal(lade_cache_trim(cache, 0), 0);
  cache_check(cache);
  return bytes;
}

static void the_owner_may_make_all_calls_but_allocations(void **state)
{
  struct guest guest = {0};
  const struct lade_cache_params params = {.limit_bytes = LIMIT_CHUNKS * CHUNK, .spill = reenter, .spill_arg = &guest};
  struct bed bed = bed_open(state, &params, NULL);
  guest.bed = &bed;
  guest.held = must_alloc(bed.cache, bed.queues[0], LIMIT_CHUNKS * CHUNK);
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], CHUNK));
  assert_int_equal(guest.n_calls, 1);
  bed_close(&bed);
}

struct forgetter {
  struct bed *bed;
  void *held;
  int climber_code;
  int n_calls;
};

static void *climber_main(void *arg)
{
  struct forgetter *forgetter = arg;
  void *block = NULL;
  forgetter->climber_code = try_alloc(forgetter->bed->cache, forgetter->bed->queues[1], CHUNK, &block);
  return NULL;
}

/* The other thread's request sleeps until this function returns, unless it is released. */
static uint64_t forget_in_spill(void *arg, uint64_t bytes)
{
  struct forgetter *forgetter = arg;
  struct bed *bed = forgetter->bed;
  pthread_t climber;
  if (forgetter->n_calls++)
    return 0;
  assert_int_equal(pthread_create(&climber, NULL, climber_main, forgetter), 0);
  while (stats_get(bed->cache).num_alloc_retries < 2)
    usleep(1000);
  lade_cache_forget(bed->cache, bed->queues[1]);
  pthread_join(climber, NULL);
  must_free(bed->cache, forgetter->held);
  return bytes;
}

static void a_queue_that_others_ask_for_may_go_in_a_spill(void **state)
{
  struct forgetter forgetter = {0};
  const struct lade_cache_params params = {.limit_bytes = LIMIT_CHUNKS * CHUNK, .spill = forget_in_spill,
                                           .spill_arg = &forgetter};
  struct bed bed = bed_open(state, &params, NULL);
  forgetter.bed = &bed;
  forgetter.held = must_alloc(bed.cache, bed.queues[0], LIMIT_CHUNKS * CHUNK);
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], CHUNK));
  assert_int_equal(forgetter.n_calls, 1);
  assert_int_equal(forgetter.climber_code, -ENOMEM);
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[1], LIMIT_CHUNKS * CHUNK)); /* it may be called again */
  bed_close(&bed);
}

/* ---- threads and forks ---- */

static void *short_main(void *arg)
{
  struct bed *bed = arg;
  must_free(bed->cache, must_alloc(bed->cache, NULL, 70000));
  return must_alloc(bed->cache, NULL, 3000);
}

static void blocks_outlive_their_threads(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  void *blocks[40];
  for (int i = 0; i < 40; i++) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, short_main, &bed), 0);
    pthread_join(thread, &blocks[i]);
  }
  assert_int_equal(stats_get(bed.cache).allocation.current, 40);
  for (int i = 0; i < 40; i++)
    must_free(bed.cache, blocks[i]);
  assert_int_equal(stats_get(bed.cache).reserved_bytes.peak, CHUNK); /* one thread's frees served the next */
  bed_close(&bed);
}

struct busy {
  struct bed *bed;
  _Atomic bool is_over;
};

static void *busy_main(void *arg)
{
  struct busy *busy = arg;
  while (!atomic_load(&busy->is_over))
    must_free(busy->bed->cache, must_alloc(busy->bed->cache, NULL, 3000));
  return NULL;
}

/* In the child check that every function returns an error at once, whichever thread held the lock at the fork. */
static bool child_is_refused(struct bed *bed, void *block, lade_cache_pool *pool)
{
  lade_cache *cache = bed->cache;
  struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
  struct lade_cache_share share = {.struct_size = sizeof(share)};
  struct lade_cache_block found;
  struct lade_cache_event event;
  struct lade_cache_tag ledger;
  struct lade_error finding;
  lade_cache_pool *made = NULL;
  void *address = NULL;
  char page[64];
  int tag = 0, descriptor = 0;
  const int codes[] = {
      try_alloc(cache, bed->queues[0], 512, &address),
      lade_cache_free(cache, block, NULL, NULL),
      lade_cache_record(cache, block, bed->queues[1]),
      lade_cache_trim(cache, 0),
      lade_cache_get_block(cache, block, &found),
      lade_cache_pool_create(cache, CHUNK, &made),
      lade_cache_pool_create_shared(cache, CHUNK, &made),
      lade_cache_pool_destroy(cache, pool),
      lade_cache_route(cache, bed->queues[0], pool),
      lade_cache_capture_begin(cache, pool),
      lade_cache_capture_end(cache, pool),
      lade_cache_share_get(cache, block, &share, &descriptor, 1),
      lade_cache_share_open(cache, &share, &descriptor, &address),
      lade_cache_share_close(cache, block),
      lade_cache_get_stats(cache, &stats),
      lade_cache_tag_add(cache, "child", &tag),
      lade_cache_get_tag(cache, 0, &ledger),
      lade_cache_write_snapshot(cache, "/nowhere/snapshot", NULL),
      lade_cache_get_finding(cache, 0, &finding),
      lade_cache_check(cache, NULL),
  };
  bool is_right = !lade_cache_get_trace(cache, &event, 1) && !lade_cache_report(cache, page, sizeof(page));
  for (size_t i = 0; i < LADE_COUNT(codes); i++)
    is_right &= codes[i] == -EPERM;
  lade_cache_forget(cache, bed->queues[0]);
  lade_cache_reset_peaks(cache);
  lade_cache_destroy(cache);
  return is_right;
}

static void a_child_is_refused_even_if_the_lock_was_held(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  struct busy busy = {.bed = &bed};
  lade_cache_pool *pool = NULL;
  pthread_t thread;
  void *block = must_alloc(bed.cache, bed.queues[0], CHUNK);
  assert_int_equal(lade_cache_pool_create(bed.cache, CHUNK, &pool), 0);
  assert_int_equal(pthread_create(&thread, NULL, busy_main, &busy), 0);
  for (int i = 0; i < 20; i++) {
    int status = 1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
      _exit(child_is_refused(&bed, block, pool) ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
  }
  atomic_store(&busy.is_over, true);
  pthread_join(thread, NULL);
  must_free(bed.cache, block);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), 0);
  bed_close(&bed);
}

/* ---- the cost of a climb ---- */

enum { N_NESTED = 8192, LOOKS_PER_BLOCK = 16 };

/* A request for new chunks examines free blocks and holes: more live blocks do not make it examine more. */
static void a_climb_does_not_walk_past_live_blocks(void **state)
{
  struct lade_device_params device_params = {sizeof(device_params), "dry", (uint64_t)64 << 30};
  struct lade_cache_params params = {.struct_size = sizeof(params)};
  lade_queue *queue = NULL;
  lade_cache *cache = NULL;
  static void *blocks[N_NESTED];
  assert_int_equal(lade_device_open(&device_params, NULL, &params.device), 0);
  assert_int_equal(lade_queue_create(params.device, LADE_QUEUE_COMPUTE, &queue), 0);
  assert_int_equal(lade_cache_create(&params, NULL, &cache), 0);
  for (uint32_t i = 0; i < N_NESTED; i++)
    blocks[i] = must_alloc(cache, queue, 1 + lade_philox_draw(1, 0, 0, i).word[0] % (4 * CHUNK));
  assert_true(stats_get(cache).n_creates > N_NESTED); /* nearly every one climbed */
  assert_true(cache->n_looked_at < LOOKS_PER_BLOCK * N_NESTED);
  cache_check(cache);
  for (int i = N_NESTED - 1; i >= 0; i--)
    must_free(cache, blocks[i]);
  lade_cache_destroy(cache);
  lade_queue_destroy(queue);
  lade_device_close(params.device);
}

/* The same at the limit, for a request that takes blocks which other queues still use. */
static void a_climb_to_other_queues_does_not_walk_past_live_blocks(void **state)
{
  const uint64_t n_live = CHUNK / 512, n_chunks = 5;
  struct ladder ladder = ladder_open_to(state, n_chunks, never, NULL);
  queues_join(&ladder, n_chunks);
  void *first = block_of(&ladder, 0, 2), *second = block_of(&ladder, 1, 2);
  for (uint64_t i = 0; i < n_live; i++)
    must_alloc(ladder.bed.cache, ladder.bed.queues[2], 512);
  hold(&ladder, 0);
  hold(&ladder, 1);
  must_free(ladder.bed.cache, first);
  must_free(ladder.bed.cache, second);
  uint64_t n_before = ladder.bed.cache->n_looked_at;
  assert_ptr_equal(block_of(&ladder, 2, 4), first);
  assert_true(ladder.bed.cache->n_looked_at - n_before < LOOKS_PER_BLOCK * 4);
  uses_are(&ladder, 0, 2, 0, 0);
  ladder_close(&ladder);
}

/*
 * A step that repeats finds the same places, whatever the order of the frees before it. Otherwise it would drift among
 * them until one is lacking. The request is smaller than a place, so that the head of the list is taken.
 */
static void equal_places_are_taken_by_address(void **state)
{
  enum { N_PLACES = 8, N_ROUNDS = 20 };
  struct ladder ladder = ladder_open_to(state, 3 * N_PLACES, NULL, NULL);
  void *places[N_PLACES], *blocks[N_PLACES];
  for (int i = 0; i < N_PLACES; i++) {
    places[i] = blocks[i] = block_of(&ladder, 0, 2);
    block_of(&ladder, 0, 1); /* live block between them */
  }
  struct lade_cache_stats before = stats_get(ladder.bed.cache);
  for (uint32_t round = 0; round < N_ROUNDS; round++) {
    for (uint32_t n = N_PLACES; n; n--) {
      uint32_t i = lade_philox_draw(1, 0, round, n).word[0] % n;
      must_free(ladder.bed.cache, blocks[i]);
      blocks[i] = blocks[n - 1];
    }
    for (int i = 0; i < N_PLACES; i++) {
      blocks[i] = must_alloc(ladder.bed.cache, ladder.bed.queues[0], 3 * CHUNK / 2);
      assert_ptr_equal(blocks[i], places[i]);
    }
  }
  assert_int_equal(stats_get(ladder.bed.cache).n_maps, before.n_maps);
  cache_check(ladder.bed.cache);
  ladder_close(&ladder);
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {
      cmocka_unit_test(finished_frees_are_joined_first),
      cmocka_unit_test(idle_chunks_are_moved_before_queues_are_made_to_wait),
      cmocka_unit_test(pending_blocks_are_taken_by_event),
      cmocka_unit_test(neighbours_of_different_queues_are_taken_together),
      cmocka_unit_test(recorded_blocks_are_taken_by_event),
      cmocka_unit_test(the_owner_is_asked_until_it_is_enough_without_waits),
      cmocka_unit_test(the_host_waits_last_of_all),
      cmocka_unit_test(no_call_waits_for_a_queue_under_capture),
      cmocka_unit_test(nor_does_a_deterministic_cache),
      cmocka_unit_test(a_queue_may_go_while_another_is_waited_for),
      cmocka_unit_test(requests_that_fit_among_blocks_of_the_other_size_succeed),
      cmocka_unit_test(the_limit_that_is_named_would_do_and_no_lower_one),
      cmocka_unit_test(the_block_that_is_named_would_do),
      cmocka_unit_test(threads_take_turns_with_the_owner),
      cmocka_unit_test(the_owner_may_make_all_calls_but_allocations),
      cmocka_unit_test(a_queue_that_others_ask_for_may_go_in_a_spill),
      cmocka_unit_test(a_climb_does_not_walk_past_live_blocks),
      cmocka_unit_test(a_climb_to_other_queues_does_not_walk_past_live_blocks),
      cmocka_unit_test(equal_places_are_taken_by_address),
      cmocka_unit_test(blocks_outlive_their_threads),
      cmocka_unit_test(a_child_is_refused_even_if_the_lock_was_held),
  };
  return target_run(1, argv, tests, LADE_COUNT(tests));
}
