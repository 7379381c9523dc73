/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes to a cache between the steps of one call. While a climb has released its locks, queues are forgotten, pools
 * destroyed and blocks freed. A process forks in the middle of a change. A pool is created when memory exists but is
 * not free yet. A queue is under capture. Further the texts and limits that no other test covers.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/cache/cache_internal.h"
#include "tests/conform/cache_target.h"
#include "tests/support/names.h"

enum { LIMIT_CHUNKS = 4 };

static void nothing(void *args)
{
}

/* Submit work to the queue that is not done before the gate opens to @count. */
static void hold(lade_queue *queue, lade_queue *gate, uint64_t count)
{
  lade_queue_wait(queue, gate, count);
  lade_queue_launch(queue, &(struct lade_work){.fn = nothing}, NULL);
}

static const struct lade_cache_params four_chunks = {.limit_bytes = LIMIT_CHUNKS * CHUNK};

/* ---- climbs ---- */

struct host {
  struct bed *bed;
  lade_cache_pool *pool;
  void *held;
};

/* Take the queue from its pool, and try to remove both. */
static uint64_t pull_away(void *arg, uint64_t bytes)
{
  struct host *host = arg;
  lade_cache *cache = host->bed->cache;
  if (!host->held)
    return 0;
  assert_int_equal(lade_cache_route(cache, host->bed->queues[0], NULL), 0);
  assert_int_equal(lade_cache_pool_destroy(cache, host->pool), -EBUSY);
  lade_cache_forget(cache, host->bed->queues[0]);
  must_free(cache, host->held);
  host->held = NULL;
  return bytes;
}

static void a_requested_pool_is_kept_while_the_owner_is_asked(void **state)
{
  struct host host = {0};
  const struct lade_cache_params params = {
      .limit_bytes = LIMIT_CHUNKS * CHUNK, .spill = pull_away, .spill_arg = &host};
  struct bed bed = bed_open(state, &params, NULL);
  struct lade_cache_block got;
  host.bed = &bed;
  host.held = must_alloc(bed.cache, bed.queues[1], 3 * CHUNK);
  assert_int_equal(lade_cache_pool_create(bed.cache, CHUNK, &host.pool), 0);
  assert_int_equal(lade_cache_route(bed.cache, bed.queues[0], host.pool), 0);
  void *block = must_alloc(bed.cache, bed.queues[0], 2 * CHUNK); /* of the pool, as requested */
  assert_int_equal(lade_cache_get_block(bed.cache, block, &got), 0);
  assert_ptr_equal(got.queue, bed.queues[0]);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, host.pool), -EBUSY);
  must_free(bed.cache, block);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, host.pool), 0);
  bed_close(&bed);
}

struct waiting {
  struct bed *bed;
  lade_queue *queue;
  uint64_t bytes;
  void *got;
};

static void *waiting_main(void *arg)
{
  struct waiting *waiting = arg;
  return try_alloc(waiting->bed->cache, waiting->queue, waiting->bytes, &waiting->got) ? arg : NULL;
}

/* Wait until a thread waits on the host for queue @number. */
static void wait_until_synced(lade_cache *cache, int number)
{
  for (int n = 0; n < 1;) {
    lade_cache_lock_all(cache);
    n = cache->queues[number].n_syncs;
    lade_cache_unlock_all(cache);
    usleep(1000);
  }
}

/* The first queue gets more work after it has been waited for, and then a block of it is freed. */
static void memory_freed_while_the_host_waits_is_found(void **state)
{
  struct bed bed = bed_open(state, &four_chunks, NULL);
  lade_queue *gate = queue_open(bed.device, LADE_QUEUE_SIGNAL), *later = queue_open(bed.device, LADE_QUEUE_SIGNAL);
  void *first = must_alloc(bed.cache, bed.queues[0], 2 * CHUNK);
  void *second = must_alloc(bed.cache, bed.queues[1], 2 * CHUNK);
  struct waiting waiting = {&bed, NULL, LIMIT_CHUNKS * CHUNK, NULL};
  void *failed = NULL;
  pthread_t thread;
  hold(bed.queues[1], gate, 1);
  must_free(bed.cache, second);
  assert_int_equal(pthread_create(&thread, NULL, waiting_main, &waiting), 0);
  wait_until_synced(bed.cache, 2);
  hold(bed.queues[0], later, 1);
  must_free(bed.cache, first);
  lade_queue_signal(gate, 1);
  wait_until_synced(bed.cache, 1);
  lade_queue_signal(later, 1);
  pthread_join(thread, &failed);
  assert_null(failed);
  assert_int_equal(stats_get(bed.cache).num_ooms, 0);
  must_free(bed.cache, waiting.got);
  lade_queue_destroy(gate);
  lade_queue_destroy(later);
  bed_close(&bed);
}

struct churn {
  struct bed *bed;
  int number;
};

enum { CHURN_CALLS = 400 };

/* Allocate half of the limit, again and again, with work after each: two of these always fit. */
static void *churn_main(void *arg)
{
  const struct churn *churn = arg;
  lade_queue *queue = churn->bed->queues[churn->number];
  uintptr_t n_refused = 0;
  for (int i = 0; i < CHURN_CALLS; i++) {
    void *block = NULL;
    if (try_alloc(churn->bed->cache, churn->number == 2 ? NULL : queue, 2 * CHUNK, &block)) {
      n_refused++;
      continue;
    }
    lade_queue_launch(queue, &(struct lade_work){.fn = nothing}, NULL);
    lade_cache_free(churn->bed->cache, block, NULL, NULL);
  }
  return (void *)n_refused;
}

static void nothing_that_fits_is_refused_while_others_come_and_go(void **state)
{
  struct bed bed = bed_open(state, &four_chunks, NULL);
  struct churn churns[2] = {{&bed, 0}, {&bed, 2}};
  pthread_t threads[2];
  void *n_refused[2];
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, churn_main, &churns[i]), 0);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], &n_refused[i]);
  assert_null(n_refused[0]);
  assert_null(n_refused[1]);
  bed_close(&bed);
}

/* ---- pools ---- */

struct opener {
  lade_queue *gate;
  int n_asked;
};

static uint64_t open_gate(void *arg, uint64_t bytes)
{
  struct opener *opener = arg;
  assert_int_equal(bytes, LIMIT_CHUNKS * CHUNK);
  opener->n_asked++;
  lade_queue_signal(opener->gate, 1);
  return 0;
}

static void a_pool_is_made_of_memory_that_will_be_free(void **state)
{
  struct opener opener = {0};
  const struct lade_cache_params params = {
      .limit_bytes = LIMIT_CHUNKS * CHUNK, .spill = open_gate, .spill_arg = &opener};
  struct bed bed = bed_open(state, &params, NULL);
  lade_cache_pool *pool = NULL;
  opener.gate = queue_open(bed.device, LADE_QUEUE_SIGNAL);
  void *block = must_alloc(bed.cache, bed.queues[0], LIMIT_CHUNKS * CHUNK);
  assert_int_equal(lade_cache_pool_create(bed.cache, LIMIT_CHUNKS * CHUNK, &pool), -ENOMEM);
  assert_int_equal(opener.n_asked, 1);
  lade_queue_destroy(opener.gate);
  opener.gate = queue_open(bed.device, LADE_QUEUE_SIGNAL);
  hold(bed.queues[0], opener.gate, 1);
  must_free(bed.cache, block);
  assert_int_equal(lade_cache_pool_create(bed.cache, LIMIT_CHUNKS * CHUNK, &pool), 0);
  assert_int_equal(opener.n_asked, 2);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), 0);
  lade_queue_destroy(opener.gate);
  bed_close(&bed);
}

static void a_pool_is_made_of_quarantined_memory(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = LIMIT_CHUNKS * CHUNK, .flags = LADE_CACHE_SANITIZE};
  struct bed bed = bed_open(state, &params, NULL);
  lade_cache_pool *pool = NULL;
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], 3 * CHUNK));
  assert_true(stats_get(bed.cache).active_bytes.current > 3 * CHUNK);
  assert_int_equal(lade_cache_pool_create(bed.cache, LIMIT_CHUNKS * CHUNK, &pool), 0);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), 0);
  bed_close(&bed);
}

/* Signal queues run no work that could wait for an event. */
static void a_signal_queue_gets_memory_when_others_are_done(void **state)
{
  struct opener opener = {0};
  const struct lade_cache_params params = {
      .limit_bytes = LIMIT_CHUNKS * CHUNK, .spill = open_gate, .spill_arg = &opener};
  struct bed bed = bed_open(state, &params, NULL);
  lade_queue *signal = queue_open(bed.device, LADE_QUEUE_SIGNAL);
  opener.gate = queue_open(bed.device, LADE_QUEUE_SIGNAL);
  void *block = must_alloc(bed.cache, bed.queues[0], LIMIT_CHUNKS * CHUNK);
  hold(bed.queues[0], opener.gate, 1);
  must_free(bed.cache, block);
  block = must_alloc(bed.cache, signal, LIMIT_CHUNKS * CHUNK);
  assert_true(lade_queue_poll(bed.queues[0], 1));
  assert_int_equal(stats_get(bed.cache).n_event_waits, 0);
  must_free(bed.cache, block);
  lade_cache_forget(bed.cache, signal);
  lade_queue_destroy(signal);
  lade_queue_destroy(opener.gate);
  bed_close(&bed);
}

/* Events of one device are invalid on another. */
static void a_queue_of_another_device_is_refused(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  lade_device *device = device_open(state, NULL);
  lade_queue *stranger = queue_open(device, LADE_QUEUE_COMPUTE);
  struct lade_cache_request request = {sizeof(request), 512, stranger, 0, NULL};
  struct lade_error error = {0};
  void *block = must_alloc(bed.cache, bed.queues[0], 512), *refused = NULL;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, &error, &refused), -EINVAL);
  assert_names(error.text, "cache", "queue", "device");
  assert_int_equal(lade_cache_record(bed.cache, block, stranger), -EINVAL);
  assert_int_equal(lade_cache_route(bed.cache, stranger, NULL), -EINVAL);
  lade_cache_forget(bed.cache, stranger);
  must_free(bed.cache, block);
  bed_close(&bed);
  lade_queue_destroy(stranger);
  lade_device_close(device);
}

static void a_pool_that_is_not_there_is_refused(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  const struct lade_cache_params params = {.struct_size = sizeof(params), .device = bed.device};
  lade_cache *other = NULL;
  lade_cache_pool *gone = NULL, *theirs = NULL;
  assert_int_equal(lade_cache_create(&params, NULL, &other), 0);
  assert_int_equal(lade_cache_pool_create(other, CHUNK, &theirs), 0);
  assert_int_equal(lade_cache_pool_create(bed.cache, CHUNK, &gone), 0);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, gone), 0);
  lade_cache_pool *const pools[] = {gone, theirs};
  for (size_t i = 0; i < LADE_COUNT(pools); i++) {
    assert_int_equal(lade_cache_route(bed.cache, bed.queues[0], pools[i]), -EINVAL);
    assert_int_equal(lade_cache_capture_begin(bed.cache, pools[i]), -EINVAL);
    assert_int_equal(lade_cache_capture_end(bed.cache, pools[i]), -EINVAL);
    assert_int_equal(lade_cache_pool_destroy(bed.cache, pools[i]), -EINVAL);
  }
  assert_int_equal(lade_cache_pool_destroy(other, theirs), 0);
  lade_cache_destroy(other);
  bed_close(&bed);
}

static uint64_t give_held(void *arg, uint64_t bytes)
{
  struct host *host = arg;
  if (!host->held)
    return 0;
  must_free(host->bed->cache, host->held);
  host->held = NULL;
  return bytes;
}

/* A block that the owner frees goes into the quarantine, and out of it again because memory is out. */
static void blocks_that_the_owner_frees_leave_the_quarantine(void **state)
{
  struct host host = {0};
  const struct lade_cache_params params = {
      .limit_bytes = LIMIT_CHUNKS * CHUNK, .flags = LADE_CACHE_SANITIZE, .spill = give_held, .spill_arg = &host};
  struct bed bed = bed_open(state, &params, NULL);
  lade_cache_pool *pool = NULL;
  host.bed = &bed;
  host.held = must_alloc(bed.cache, bed.queues[0], 3 * CHUNK);
  host.held = must_alloc(bed.cache, bed.queues[1], 3 * CHUNK);
  assert_int_equal(stats_get(bed.cache).n_spills, 1);
  assert_int_equal(lade_cache_pool_create(bed.cache, 3 * CHUNK, &pool), 0);
  assert_int_equal(stats_get(bed.cache).n_spills, 2);
  assert_int_equal(stats_get(bed.cache).num_ooms, 0);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), 0);
  bed_close(&bed);
}

/* Work submitted after a capture began may never run; work submitted before will. */
static void queues_wait_only_for_work_before_a_capture(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 8 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  lade_queue *gate = queue_open(bed.device, LADE_QUEUE_SIGNAL), *captured = bed.queues[0], *other = bed.queues[1];
  lade_cache_pool *pool = NULL;
  void *refused = NULL;
  void *before = must_alloc(bed.cache, captured, 2 * CHUNK), *during = must_alloc(bed.cache, captured, 2 * CHUNK);
  void *shared = must_alloc(bed.cache, other, 2 * CHUNK);
  assert_int_equal(lade_cache_record(bed.cache, shared, captured), 0);
  assert_int_equal(lade_cache_pool_create(bed.cache, CHUNK, &pool), 0);
  assert_int_equal(lade_cache_route(bed.cache, captured, pool), 0);
  hold(captured, gate, 1);
  must_free(bed.cache, before);
  assert_int_equal(lade_cache_capture_begin(bed.cache, pool), 0);
  assert_int_equal(try_alloc(bed.cache, other, 2 * CHUNK, &before), 0);
  assert_int_equal(stats_get(bed.cache).n_event_waits, 1);
  lade_queue_signal(gate, 1);
  hold(captured, gate, 2);
  must_free(bed.cache, during);
  must_free(bed.cache, shared);
  assert_int_equal(try_alloc(bed.cache, other, 2 * CHUNK, &refused), -ENOMEM);
  assert_int_equal(stats_get(bed.cache).n_event_waits, 1);
  cache_check(bed.cache);
  lade_queue_signal(gate, 2);
  assert_int_equal(lade_queue_sync(captured, lade_queue_submitted(captured)), 0);
  void *both = must_alloc(bed.cache, other, 4 * CHUNK); /* the earlier work has run */
  assert_int_equal(lade_cache_capture_end(bed.cache, pool), 0);
  assert_int_equal(lade_cache_route(bed.cache, captured, NULL), 0);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), 0);
  must_free(bed.cache, both);
  must_free(bed.cache, before);
  lade_queue_destroy(gate);
  bed_close(&bed);
}

/* ---- fork ---- */

/* The state of a parent's thread for an instant: an array has grown, and its former address is still stored. */
static void a_child_of_fork_leaves_changing_state_alone(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  int status = 1;
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], CHUNK));
  assert_int_equal(lade_cache_trim(bed.cache, 0), 0);
  assert_non_null(bed.cache->spare.items);
  lade_lock_lock(&bed.cache->lock);
  lade_chunk **grown = bed.cache->spare.items;
  bed.cache->spare.items = (lade_chunk **)(void *)&status;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    lade_cache_destroy(bed.cache);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  bed.cache->spare.items = grown;
  lade_lock_unlock(&bed.cache->lock);
  bed_close(&bed);
}

/* ---- limits and names ---- */

static void a_limit_may_be_one_in_name_only(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = UINT64_MAX};
  struct bed bed = bed_open(state, &params, NULL);
  char path[] = "cache-limit-XXXXXX";
  int file = mkstemp(path);
  void *refused = NULL;
  assert_true(file >= 0);
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], 3 * MIB));
  assert_int_equal(stats_get(bed.cache).reserved_bytes.current, 2 * CHUNK);
  assert_int_equal(try_alloc(bed.cache, bed.queues[0], CAPACITY + 1, &refused), -ENOMEM);
  assert_int_equal(try_alloc(bed.cache, bed.queues[0], (uint64_t)1 << 62, &refused), -ENOMEM);
  assert_int_equal(lade_cache_write_snapshot(bed.cache, path, NULL), 0);
  close(file);
  unlink(path);
  bed_close(&bed);
}

static void a_limit_below_a_chunk_holds_nothing(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = CHUNK - 1};
  struct bed bed = bed_open(state, &params, NULL);
  struct lade_cache_request request = {sizeof(request), 1, bed.queues[0], 0, NULL};
  struct lade_error error = {0};
  lade_cache_pool *pool = NULL;
  void *refused = NULL;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, &error, &refused), -ENOMEM);
  assert_names(error.text, "limit", "1 B");
  assert_int_equal(lade_cache_pool_create(bed.cache, 1, &pool), -ENOMEM);
  assert_int_equal(info_get(bed.device).created_bytes, 0);
  bed_close(&bed);
}

static int lines_count(const char *text)
{
  int n = 0;
  for (; *text; text++)
    n += *text == '\n';
  return n;
}

/* Names of tags and places come from the program: they must not break a line, and no character of theirs is split. */
static void names_break_no_line(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = LIMIT_CHUNKS * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  const char *const place = "a\nb\r\"\x1b[31m.c:1";
  const char *const cut = "0123456789012345678901234567890123456789\u00fc\u00fc:1";
  struct lade_error error = {0};
  char pages[2][4096];
  int tag = 0;
  assert_int_equal(lade_cache_tag_add(bed.cache, "tag\n\t\x7f", &tag), 0);
  struct lade_cache_request request = {sizeof(request), 3 * CHUNK, bed.queues[0], 0, "plain"};
  void *block = NULL;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &block), 0);
    assert_int_equal(lade_cache_alloc(bed.cache, &request, &error, &block), -ENOMEM);
    assert_null(strpbrk(error.text, "\n\r\t\x1b\x7f"));
    assert_true(lade_cache_report(bed.cache, pages[i], sizeof(pages[i])) < sizeof(pages[i]));
    assert_null(strpbrk(pages[i], "\r\t\x1b\x7f"));
    must_free(bed.cache, block);
    request.tag = tag;
    request.place = place;
  }
  assert_int_equal(lines_count(pages[0]), lines_count(pages[1]));
  assert_non_null(strstr(pages[1], "a?b?\"?[31m.c:1"));
  request.place = cut;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &block), 0);
  lade_cache_report(bed.cache, pages[0], sizeof(pages[0]));
  assert_non_null(strstr(pages[0], "0123456789\u00fc  "));
  must_free(bed.cache, block);
  bed_close(&bed);
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {
      cmocka_unit_test(a_requested_pool_is_kept_while_the_owner_is_asked),
      cmocka_unit_test(memory_freed_while_the_host_waits_is_found),
      cmocka_unit_test(nothing_that_fits_is_refused_while_others_come_and_go),
      cmocka_unit_test(a_pool_is_made_of_memory_that_will_be_free),
      cmocka_unit_test(a_pool_is_made_of_quarantined_memory),
      cmocka_unit_test(a_signal_queue_gets_memory_when_others_are_done),
      cmocka_unit_test(a_queue_of_another_device_is_refused),
      cmocka_unit_test(a_pool_that_is_not_there_is_refused),
      cmocka_unit_test(blocks_that_the_owner_frees_leave_the_quarantine),
      cmocka_unit_test(queues_wait_only_for_work_before_a_capture),
      cmocka_unit_test(a_child_of_fork_leaves_changing_state_alone),
      cmocka_unit_test(a_limit_may_be_one_in_name_only),
      cmocka_unit_test(a_limit_below_a_chunk_holds_nothing),
      cmocka_unit_test(names_break_no_line),
  };
  return target_run(1, argv, tests, LADE_COUNT(tests));
}
