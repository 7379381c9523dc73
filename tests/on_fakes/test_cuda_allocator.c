/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pluggable allocator over the fake driver: streams of the caller, the limit, uses by other streams, captures,
 * several devices and threads, and planned replay. The fake's memory is the process's, so host functions on a stream
 * are its kernels: they fill a block and check it later, and two owners of one byte show.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "device/cuda_driver.h"
#include "lade/allocator.h"
#include "tests/support/fakes/fakes.h"

#define MIB (UINT64_C(1) << 20)
#define THREADS 4
#define ROUNDS 150

static struct fake_driver fake;

/* ---- the caller's kernels ---- */

static atomic_int n_wrong; /* bytes of a block that changed under its owner */

struct fill {
  unsigned char *at;
  uint64_t bytes;
  unsigned char value;
};

static void fill_run(void *args)
{
  const struct fill *fill = args;
  memset(fill->at, fill->value, fill->bytes);
}

static void check_run(void *args)
{
  struct fill *fill = args;
  int wrong = 0;
  for (uint64_t i = 0; i < fill->bytes; i += 61)
    wrong += fill->at[i] != fill->value;
  atomic_fetch_add(&n_wrong, wrong);
  free(fill);
}

static void pause_run(void *args)
{
  usleep(*(const unsigned *)args);
}

/* Fill a block on the stream, and check it in later work of @reader. */
static struct fill *block_fill(cuda_stream stream, void *at, uint64_t bytes, unsigned char value)
{
  struct fill *fill = malloc(sizeof(*fill));
  assert_non_null(fill);
  *fill = (struct fill){at, bytes, value};
  assert_int_equal(fake.host_function(stream, fill_run, fill), 0);
  return fill;
}

static void block_check(cuda_stream stream, struct fill *fill)
{
  assert_int_equal(fake.host_function(stream, check_run, fill), 0);
}

/* ---- the fixture: contexts, streams and an allocator ---- */

struct fixture {
  cuda_context contexts[2];
  cuda_stream streams[2][2]; /* of each device */
  lade_allocator *allocator;
};

static void fixture_init(struct fixture *fixture, uint64_t limit_bytes)
{
  const struct lade_allocator_params params = {.struct_size = sizeof(params), .limit_bytes = limit_bytes};
  struct lade_error error = {0};
  atomic_store(&n_wrong, 0);
  assert_int_equal(fake.set("version=13000,devices=2,memory=256,fail=none,lose=0"), 0);
  assert_int_equal(fake.init(0), 0);
  for (int i = 1; i >= 0; i--) { /* device 0 stays current */
    assert_int_equal(fake.primary_retain(&fixture->contexts[i], i), 0);
    assert_int_equal(fake.context_push(fixture->contexts[i]), 0);
    for (int s = 0; s < 2; s++)
      assert_int_equal(fake.stream_create(&fixture->streams[i][s], 0), 0);
  }
  if (lade_allocator_create(&params, &error, &fixture->allocator))
    fail_msg("%s", error.text);
}

static void fixture_finish(struct fixture *fixture)
{
  cuda_context popped;
  lade_allocator_destroy(fixture->allocator);
  for (int i = 0; i < 2; i++) {
    for (int s = 0; s < 2; s++)
      assert_int_equal(fake.stream_destroy(fixture->streams[i][s]), 0);
    assert_int_equal(fake.context_pop(&popped), 0);
    assert_int_equal(fake.primary_release(i), 0);
  }
  assert_int_equal(fake.live(), 0);
  assert_int_equal(atomic_load(&n_wrong), 0);
}

static void *take(lade_allocator *allocator, uint64_t bytes, int device, cuda_stream stream)
{
  struct lade_error error = {0};
  void *address = NULL;
  if (lade_allocator_alloc(allocator, bytes, device, stream, &error, &address))
    fail_msg("%s", error.text);
  assert_non_null(address);
  assert_int_equal((uintptr_t)address % 512, 0);
  return address;
}

static void give(lade_allocator *allocator, void *address, int device, cuda_stream stream)
{
  struct lade_error error = {0};
  if (lade_allocator_free(allocator, address, device, stream, &error))
    fail_msg("%s", error.text);
}

static struct lade_allocator_stats stats_get(lade_allocator *allocator, int device)
{
  struct lade_allocator_stats stats = {.struct_size = sizeof(stats)};
  assert_int_equal(lade_allocator_get_stats(allocator, device, &stats, NULL), 0);
  return stats;
}

/* ---- tests ---- */

static void a_stream_reuses_its_blocks_and_the_default_stream_is_one(void **state)
{
  struct fixture f;
  fixture_init(&f, 64 * MIB);
  for (int i = 0; i < 3; i++) {
    cuda_stream stream = i == 2 ? NULL : f.streams[0][i];
    void *first = take(f.allocator, 5 * MIB, 0, stream);
    struct fill *fill = block_fill(stream, first, 5 * MIB, 7);
    block_check(stream, fill);
    give(f.allocator, first, 0, stream);
    assert_ptr_equal(take(f.allocator, 5 * MIB, 0, stream), first);
    give(f.allocator, first, 0, stream);
  }
  struct lade_allocator_stats stats = stats_get(f.allocator, 0);
  assert_int_equal(stats.n_streams, 3);
  assert_int_equal(stats.n_allocs, 6);
  assert_int_equal(stats.n_frees, 6);
  assert_int_equal(stats.live_bytes, 0);
  assert_int_equal(stats.peak_bytes, 5 * MIB);
  assert_int_equal(stats_get(f.allocator, 1).n_allocs, 0);
  assert_int_equal(lade_allocator_trim(f.allocator, 0), 0);
  assert_int_equal(stats_get(f.allocator, 0).reserved_bytes, 0);
  fixture_finish(&f);
}

/* The work of the first stream is slow: without an event after it, the second stream would write under it. */
static void another_stream_gets_a_block_behind_the_work_that_used_it(void **state)
{
  struct fixture f;
  static const unsigned pause_us = 30000;
  fixture_init(&f, 8 * MIB);
  cuda_stream one = f.streams[0][0], two = f.streams[0][1];
  void *block = take(f.allocator, 8 * MIB, 0, one);
  struct fill *fill = block_fill(one, block, 8 * MIB, 1);
  fake.host_function(one, pause_run, (void *)&pause_us);
  block_check(one, fill);
  give(f.allocator, block, 0, one);
  void *next = take(f.allocator, 8 * MIB, 0, two);
  assert_ptr_equal(next, block); /* the limit leaves no other place */
  block_check(two, block_fill(two, next, 8 * MIB, 2));
  give(f.allocator, next, 0, two);
  fixture_finish(&f);
}

/* A block that @user reads: by lade_allocator_record, or because @user frees it. */
static void used_block_check(bool is_recorded)
{
  struct fixture f;
  static const unsigned pause_us = 30000;
  fixture_init(&f, 8 * MIB);
  cuda_stream own = f.streams[0][0], user = f.streams[0][1];
  void *block = take(f.allocator, 8 * MIB, 0, own);
  struct fill *fill = block_fill(own, block, 8 * MIB, 1);
  assert_int_equal(fake.stream_wait(own), 0);
  fake.host_function(user, pause_run, (void *)&pause_us);
  block_check(user, fill);
  if (is_recorded)
    assert_int_equal(lade_allocator_record(f.allocator, block, user, NULL), 0);
  give(f.allocator, block, 0, is_recorded ? own : user);
  void *next = take(f.allocator, 8 * MIB, 0, own);
  block_check(own, block_fill(own, next, 8 * MIB, 2));
  give(f.allocator, next, 0, own);
  fixture_finish(&f);
}

static void a_free_waits_for_every_stream_that_used_the_block(void **state)
{
  used_block_check(true);
  used_block_check(false);
}

static void the_limit_is_hard_for_each_device_and_set_before_its_first_use(void **state)
{
  struct fixture f;
  struct lade_error error = {0};
  fixture_init(&f, 0);
  assert_int_equal(lade_allocator_set_limit(f.allocator, 16 * MIB, &error), 0);
  void *block[2] = {take(f.allocator, 12 * MIB, 0, NULL), take(f.allocator, 16 * MIB, 1, f.streams[1][0])};
  void *none = &f;
  assert_int_equal(lade_allocator_alloc(f.allocator, 6 * MIB, 0, NULL, &error, &none), -ENOMEM);
  assert_ptr_equal(none, &f);
  assert_non_null(strstr(error.text, "16.0 MiB"));
  struct lade_error newest = {0};
  lade_allocator_get_error(f.allocator, &newest);
  assert_string_equal(newest.text, error.text);
  assert_int_equal(lade_allocator_set_limit(f.allocator, 32 * MIB, &error), -EBUSY);
  struct lade_allocator_stats stats = stats_get(f.allocator, 0);
  assert_int_equal(stats.n_ooms, 1);
  assert_int_equal(stats.limit_bytes, 16 * MIB);
  assert_true(stats.reserved_peak_bytes <= 16 * MIB);
  give(f.allocator, block[0], 0, NULL);
  give(f.allocator, take(f.allocator, 16 * MIB, 0, NULL), 0, NULL); /* memory that was short is free again */
  give(f.allocator, block[1], 1, f.streams[1][0]);
  fixture_finish(&f);
}

static void wrong_calls_change_nothing_and_name_their_fault(void **state)
{
  struct fixture f;
  struct lade_error error = {0};
  void *address = NULL;
  fixture_init(&f, 16 * MIB);
  assert_int_equal(lade_allocator_alloc(f.allocator, 512, 7, NULL, &error, &address), -ENODEV); /* of two */
  assert_int_equal(lade_allocator_alloc(f.allocator, 512, -1, NULL, &error, &address), -EINVAL);
  assert_int_equal(lade_allocator_alloc(f.allocator, UINT64_MAX, 0, NULL, &error, &address), -EINVAL);
  assert_int_equal(lade_allocator_alloc(f.allocator, 0, 0, NULL, &error, &address), 0);
  assert_null(address);
  void *block = take(f.allocator, 1000, 0, NULL);
  assert_int_equal(lade_allocator_free(f.allocator, NULL, 0, NULL, &error), 0);
  assert_int_equal(lade_allocator_free(f.allocator, (char *)block + 512, 0, NULL, &error), -EINVAL);
  assert_int_equal(lade_allocator_free(f.allocator, block, 1, NULL, &error), -EINVAL); /* it is device 0's */
  assert_non_null(strstr(error.text, "device 1"));
  assert_int_equal(lade_allocator_record(f.allocator, (char *)block + 512, f.streams[0][0], &error), -EINVAL);
  give(f.allocator, block, 0, NULL);
  assert_int_equal(lade_allocator_free(f.allocator, block, 0, NULL, &error), -EINVAL); /* twice */
  assert_int_equal(stats_get(f.allocator, 0).n_frees, 1);
  const struct lade_allocator_params none = {.struct_size = sizeof(none), .n_devices = 1};
  assert_int_equal(lade_allocator_create(&none, &error, &f.allocator), -EINVAL);
  fixture_finish(&f);
}

static void a_stream_under_capture_allocates_nothing_and_its_frees_wait(void **state)
{
  struct fixture f;
  struct lade_error error = {0};
  cuda_graph graph = NULL;
  void *address = NULL;
  fixture_init(&f, 8 * MIB);
  cuda_stream stream = f.streams[0][0], other = f.streams[0][1];
  void *block = take(f.allocator, 4 * MIB, 0, stream);
  assert_int_equal(fake.capture_begin(stream, 2), 0);
  assert_int_equal(lade_allocator_alloc(f.allocator, MIB, 0, stream, &error, &address), -EBUSY);
  assert_non_null(strstr(error.text, "capture"));
  give(f.allocator, block, 0, stream);
  void *second = take(f.allocator, 4 * MIB, 0, other);
  assert_ptr_not_equal(second, block); /* the captured stream's block is not free yet */
  assert_int_equal(fake.capture_end(stream, &graph), 0); /* and no call of the allocator made it invalid */
  assert_int_equal(fake.graph_destroy(graph), 0);
  give(f.allocator, second, 0, other);
  give(f.allocator, take(f.allocator, 8 * MIB, 0, other), 0, other);
  fixture_finish(&f);
}

static void a_forgotten_stream_can_be_destroyed(void **state)
{
  struct fixture f;
  fixture_init(&f, 16 * MIB);
  for (int i = 0; i < 80; i++) { /* more than a device serves at one time */
    cuda_stream stream;
    assert_int_equal(fake.stream_create(&stream, 0), 0);
    void *block = take(f.allocator, MIB, 0, stream);
    block_check(stream, block_fill(stream, block, MIB, (unsigned char)i));
    give(f.allocator, block, 0, stream);
    assert_int_equal(lade_allocator_forget(f.allocator, 0, stream), 0);
    assert_int_equal(fake.stream_destroy(stream), 0);
  }
  assert_int_equal(stats_get(f.allocator, 0).n_streams, 0);
  fixture_finish(&f);
}

/* Fail call @nth of @function, once or for good. Return the number of calls of the allocator that failed. */
static int failing_calls_run(const char *function, int nth, bool is_forever)
{
  struct fixture f;
  char settings[96];
  int n_failed = 0;
  void *blocks[4] = {NULL};
  fixture_init(&f, 16 * MIB);
  snprintf(settings, sizeof(settings), "fail=%s,nth=%d,code=2,forever=%d", function, nth, is_forever);
  assert_int_equal(fake.set(settings), 0);
  for (int i = 0; i < 4; i++) {
    struct lade_error error = {0};
    int status = lade_allocator_alloc(f.allocator, 4 * MIB, 0, f.streams[0][i % 2], &error, &blocks[i]);
    assert_true(!status == !!blocks[i] && (!status || (status < 0 && error.text[0])));
    n_failed += status != 0;
    if (i == 1 && blocks[0] && !lade_allocator_free(f.allocator, blocks[0], 0, f.streams[0][1], NULL))
      blocks[0] = NULL;
  }
  n_failed += lade_allocator_step(f.allocator, 0, NULL) != 0;
  assert_int_equal(fake.set("fail=none"), 0);
  for (int i = 0; i < 4; i++)
    lade_allocator_free(f.allocator, blocks[i], 0, f.streams[0][i % 2], NULL);
  fixture_finish(&f);
  return n_failed;
}

static void any_driver_call_may_fail_and_nothing_leaks(void **state)
{
  static const char *const functions[] = {"cuDevicePrimaryCtxRetain", "cuMemAddressReserve", "cuMemCreate", "cuMemMap",
                                          "cuMemSetAccess", "cuEventCreate", "cuStreamIsCapturing", "cuCtxPushCurrent"};
  for (size_t i = 0; i < LADE_COUNT(functions); i++) {
    int n_failed = 0;
    for (int nth = 1; nth <= 4; nth++)
      n_failed += failing_calls_run(functions[i], nth, false) + failing_calls_run(functions[i], nth, true);
    if (!n_failed)
      fail_msg("no failure of %s was met", functions[i]);
  }
}

static void a_child_of_fork_is_refused(void **state)
{
  struct fixture f;
  fixture_init(&f, 16 * MIB);
  void *block = take(f.allocator, MIB, 0, NULL), *address = NULL;
  pid_t child = fork();
  if (child == 0) {
    struct lade_error error = {0};
    bool is_refused = lade_allocator_alloc(f.allocator, MIB, 0, NULL, &error, &address) == -EPERM &&
                      lade_allocator_free(f.allocator, block, 0, NULL, NULL) == -EPERM &&
                      lade_allocator_step(f.allocator, 0, NULL) == -EPERM &&
                      lade_allocator_trim(f.allocator, 0) == -EPERM && !lade_allocator_get_cache(f.allocator, 0);
    lade_allocator_destroy(f.allocator);
    _exit(is_refused ? 0 : 1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  give(f.allocator, block, 0, NULL);
  fixture_finish(&f);
}

/* ---- replay ---- */

/* A step: forward keeps activations, backward frees them in reverse beside short-lived gradients. */
static void step_run(struct fixture *f, cuda_stream stream, uint64_t extra_bytes, void *ret_addresses[8])
{
  struct fill *fills[8];
  void *blocks[8];
  for (int i = 0; i < 8; i++) {
    uint64_t bytes = 300000 + 4096 * (uint64_t)i + (i == 5 ? extra_bytes : 0);
    blocks[i] = ret_addresses[i] = take(f->allocator, bytes, 0, stream);
    fills[i] = block_fill(stream, blocks[i], 300000, (unsigned char)i);
  }
  for (int i = 7; i >= 0; i--) {
    void *grad = take(f->allocator, 500000, 0, stream);
    block_check(stream, block_fill(stream, grad, 500000, 99));
    block_check(stream, fills[i]);
    give(f->allocator, blocks[i], 0, stream);
    give(f->allocator, grad, 0, stream);
  }
}

static void step_end(struct fixture *f)
{
  struct lade_error error = {0};
  if (lade_allocator_step(f->allocator, 0, &error))
    fail_msg("%s", error.text);
}

static void allocation_k_of_a_repeating_step_gets_its_planned_offset(void **state)
{
  struct fixture f;
  void *first[8], *again[8];
  fixture_init(&f, 64 * MIB);
  step_end(&f);
  for (int i = 0; i < 3; i++) {
    step_run(&f, f.streams[0][0], 0, first);
    step_end(&f);
  }
  struct lade_allocator_stats before = stats_get(f.allocator, 0);
  assert_int_equal(before.n_plans, 1);
  assert_int_equal(before.n_planned, 16);
  assert_int_equal(before.arena_bytes, before.live_bound_bytes); /* packed without waste */
  uint64_t n_events = fake.calls("cuEventRecord");
  step_run(&f, f.streams[0][0], 0, again);
  assert_memory_equal(first, again, sizeof(first));
  assert_int_equal(fake.calls("cuEventRecord"), n_events); /* and no driver call */
  struct lade_allocator_stats after = stats_get(f.allocator, 0);
  assert_int_equal(after.n_served - before.n_served, 16);
  assert_int_equal(after.n_mismatches + after.n_conflicts, 0);
  fixture_finish(&f);
}

/* Planned allocations make no driver call, so a capture may contain a whole step; the graph runs on its addresses. */
static void a_capture_may_contain_planned_allocations(void **state)
{
  struct fixture f;
  struct lade_error error = {0};
  cuda_graph graph = NULL;
  void *blocks[3], *again[3], *other = NULL;
  fixture_init(&f, 64 * MIB);
  cuda_stream stream = f.streams[0][0];
  step_end(&f);
  for (int step = 0; step < 4; step++) {
    bool is_captured = step == 3;
    void **to = is_captured ? again : blocks;
    if (is_captured)
      assert_int_equal(fake.capture_begin(stream, 2), 0);
    for (int i = 0; i < 3; i++)
      to[i] = take(f.allocator, MIB, 0, stream);
    for (int i = 0; i < 3; i++)
      give(f.allocator, to[i], 0, stream);
    if (is_captured) /* one more than was planned */
      assert_int_equal(lade_allocator_alloc(f.allocator, MIB, 0, stream, &error, &other), -EBUSY);
    if (is_captured)
      assert_int_equal(fake.capture_end(stream, &graph), 0);
    step_end(&f);
  }
  assert_memory_equal(blocks, again, sizeof(blocks));
  assert_int_equal(stats_get(f.allocator, 0).n_served, 6);
  assert_int_equal(fake.graph_destroy(graph), 0);
  fixture_finish(&f);
}

static void another_size_falls_back_to_the_cache_and_is_counted(void **state)
{
  struct fixture f;
  void *first[8], *other[8], *again[8];
  fixture_init(&f, 64 * MIB);
  step_end(&f);
  for (int i = 0; i < 3; i++) {
    step_run(&f, f.streams[0][0], 0, first);
    step_end(&f);
  }
  step_run(&f, f.streams[0][0], 8192, other); /* a batch of another shape */
  step_end(&f);
  struct lade_allocator_stats stats = stats_get(f.allocator, 0);
  assert_int_equal(stats.n_mismatches, 1);
  assert_int_equal(stats.mismatch_index, 5);
  assert_int_equal(stats.mismatch_planned_bytes, 300000 + 5 * 4096);
  assert_int_equal(stats.mismatch_bytes, 300000 + 5 * 4096 + 8192);
  assert_int_equal(stats.n_served, 16 + 5);
  step_run(&f, f.streams[0][0], 0, again); /* the plan is still there */
  step_end(&f);
  assert_memory_equal(first, again, sizeof(first));
  for (int i = 0; i < 3; i++) { /* the new shape is there to stay */
    step_run(&f, f.streams[0][0], 8192, other);
    step_end(&f);
  }
  stats = stats_get(f.allocator, 0);
  assert_int_equal(stats.n_plans, 2);
  assert_int_equal(stats.n_mismatches, 3);
  step_end(&f); /* a step without allocations */
  assert_int_equal(stats_get(f.allocator, 0).n_mismatches, 4);
  assert_int_equal(stats_get(f.allocator, 0).mismatch_bytes, 0);
  fixture_finish(&f);
}

/* A planned block that is freed later keeps its bytes; its successor goes to the cache, and the plan adapts. */
static void a_late_free_never_shares_a_byte(void **state)
{
  struct fixture f;
  fixture_init(&f, 64 * MIB);
  cuda_stream stream = f.streams[0][0];
  step_end(&f);
  for (int step = 0; step < 8; step++) {
    bool is_late = step >= 4;
    void *one = take(f.allocator, MIB, 0, stream);
    struct fill *fill = block_fill(stream, one, MIB, 1);
    if (!is_late) {
      block_check(stream, fill);
      give(f.allocator, one, 0, stream);
    }
    void *two = take(f.allocator, MIB, 0, stream);
    block_check(stream, block_fill(stream, two, MIB, 2));
    if (is_late) {
      block_check(stream, fill);
      assert_ptr_not_equal(one, two);
      give(f.allocator, one, 0, stream);
    }
    give(f.allocator, two, 0, stream);
    step_end(&f);
  }
  struct lade_allocator_stats stats = stats_get(f.allocator, 0);
  assert_int_equal(stats.n_conflicts, 1);
  assert_int_equal(stats.n_plans, 2);
  assert_int_equal(stats.arena_bytes, 2 * MIB);
  fixture_finish(&f);
}

static void used_and_surviving_blocks_are_not_planned(void **state)
{
  struct fixture f;
  fixture_init(&f, 64 * MIB);
  cuda_stream own = f.streams[0][0], user = f.streams[0][1];
  void *kept = NULL;
  step_end(&f);
  for (int step = 0; step < 6; step++) {
    static const unsigned pause_us = 3000;
    void *used = take(f.allocator, MIB, 0, own), *mine = take(f.allocator, MIB, 0, own);
    void *theirs = take(f.allocator, MIB, 0, user);
    struct fill *fill = block_fill(own, used, MIB, 5);
    assert_int_equal(fake.stream_wait(own), 0);
    if (step != 2) /* a use that begins after the plan was made is safe too */
      assert_int_equal(lade_allocator_record(f.allocator, used, user, NULL), 0);
    fake.host_function(user, pause_run, (void *)&pause_us);
    block_check(user, fill);
    if (step == 2)
      assert_int_equal(lade_allocator_record(f.allocator, used, user, NULL), 0);
    give(f.allocator, used, 0, own);
    give(f.allocator, mine, 0, own);
    void *later = take(f.allocator, MIB, 0, own);
    block_check(own, block_fill(own, later, MIB, 6));
    give(f.allocator, later, 0, own);
    give(f.allocator, theirs, 0, user);
    give(f.allocator, kept, 0, own);
    kept = take(f.allocator, MIB, 0, own);
    step_end(&f);
  }
  struct lade_allocator_stats stats = stats_get(f.allocator, 0);
  assert_int_equal(stats.n_plans, 1);
  assert_int_equal(stats.n_planned, 3); /* mine, later, theirs */
  assert_int_equal(stats.arena_bytes, 2 * MIB);
  give(f.allocator, kept, 0, own);
  assert_int_equal(lade_allocator_trim(f.allocator, 0), 0);
  assert_int_equal(stats_get(f.allocator, 0).arena_bytes, 0);
  fixture_finish(&f);
}

/* The first three steps record no use, so the block is planned; the fourth does, and its arena must still be safe. */
static void a_use_that_begins_after_planning_holds_the_place(void **state)
{
  struct fixture f;
  static const unsigned pause_us = 20000;
  fixture_init(&f, 64 * MIB);
  cuda_stream own = f.streams[0][0], user = f.streams[0][1];
  step_end(&f);
  for (int step = 0; step < 7; step++) {
    void *used = take(f.allocator, MIB, 0, own);
    struct fill *fill = block_fill(own, used, MIB, 5);
    if (step >= 3) {
      assert_int_equal(fake.stream_wait(own), 0);
      fake.host_function(user, pause_run, (void *)&pause_us);
      block_check(user, fill);
      assert_int_equal(lade_allocator_record(f.allocator, used, user, NULL), 0);
    } else {
      block_check(own, fill);
    }
    give(f.allocator, used, 0, own);
    void *later = take(f.allocator, MIB, 0, own);
    block_check(own, block_fill(own, later, MIB, 6));
    give(f.allocator, later, 0, own);
    step_end(&f);
  }
  assert_int_equal(stats_get(f.allocator, 0).n_plans, 2);
  assert_int_equal(stats_get(f.allocator, 0).n_planned, 1);
  fixture_finish(&f);
}

/* A block that lives across the steps leaves no room for the arena beside it; block by block there is enough. */
static void a_plan_without_room_is_reported_and_the_cache_goes_on(void **state)
{
  struct fixture f;
  struct lade_error error = {0};
  fixture_init(&f, 8 * MIB);
  cuda_stream stream = f.streams[0][0];
  void *kept = NULL;
  step_end(&f);
  for (int step = 0; step < 5; step++) {
    give(f.allocator, kept, 0, stream);
    give(f.allocator, take(f.allocator, 6 * MIB, 0, stream), 0, stream);
    kept = step < 3 ? take(f.allocator, 4 * MIB, 0, stream) : NULL;
    assert_int_equal(lade_allocator_step(f.allocator, 0, &error), step == 1 || step == 2 ? -ENOMEM : 0);
    assert_int_equal(stats_get(f.allocator, 0).n_plans, step == 4);
  }
  assert_non_null(strstr(error.text, "planned 6291456 bytes"));
  fixture_finish(&f);
}

/* The arena of an idle plan is memory that a step of another shape may need. */
static void a_step_that_needs_the_arenas_memory_gets_it(void **state)
{
  struct fixture f;
  fixture_init(&f, 8 * MIB);
  cuda_stream stream = f.streams[0][0];
  step_end(&f);
  for (int step = 0; step < 3; step++) {
    give(f.allocator, take(f.allocator, 6 * MIB, 0, stream), 0, stream);
    step_end(&f);
  }
  assert_int_equal(stats_get(f.allocator, 0).arena_bytes, 6 * MIB);
  void *other = take(f.allocator, 7 * MIB, 0, stream);
  block_check(stream, block_fill(stream, other, 7 * MIB, 3));
  give(f.allocator, other, 0, stream);
  assert_int_equal(stats_get(f.allocator, 0).n_dropped, 1);
  assert_int_equal(stats_get(f.allocator, 0).n_ooms, 0);
  step_end(&f);
  fixture_finish(&f);
}

/* ---- threads ---- */

struct worker {
  struct fixture *f;
  pthread_t thread;
  int i;
};

/* Allocate, use, hand over to the other stream and free, on two streams that all threads share. */
static void *worker_main(void *arg)
{
  struct worker *worker = arg;
  lade_allocator *allocator = worker->f->allocator;
  unsigned seed = (unsigned)worker->i + 1;
  fake.context_push(worker->f->contexts[0]);
  for (int round = 0; round < ROUNDS; round++) {
    cuda_stream own = worker->f->streams[0][rand_r(&seed) % 2], user = worker->f->streams[0][rand_r(&seed) % 2];
    uint64_t bytes = 512 + (uint64_t)(rand_r(&seed) % 600000);
    struct fill *fill;
    void *block = NULL;
    if (lade_allocator_alloc(allocator, bytes, 0, own, NULL, &block))
      continue; /* the others hold the memory */
    fill = block_fill(own, block, bytes, (unsigned char)(worker->i * 50 + round % 50));
    block_check(own, fill);
    if (user != own)
      lade_allocator_record(allocator, block, user, NULL);
    if (worker->i == 0 && round % 16 == 0)
      lade_allocator_step(allocator, 0, NULL);
    if (lade_allocator_free(allocator, block, 0, own, NULL))
      atomic_fetch_add(&n_wrong, 1);
  }
  cuda_context popped;
  fake.context_pop(&popped);
  return NULL;
}

static void threads_share_streams(void **state)
{
  struct fixture f;
  struct worker workers[THREADS];
  fixture_init(&f, 16 * MIB);
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (struct worker){.f = &f, .i = i};
    assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(workers[i].thread, NULL);
  struct lade_allocator_stats stats = stats_get(f.allocator, 0);
  assert_int_equal(stats.live_bytes, 0);
  assert_int_equal(stats.n_allocs, stats.n_frees);
  fixture_finish(&f);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_stream_reuses_its_blocks_and_the_default_stream_is_one),
      cmocka_unit_test(another_stream_gets_a_block_behind_the_work_that_used_it),
      cmocka_unit_test(a_free_waits_for_every_stream_that_used_the_block),
      cmocka_unit_test(the_limit_is_hard_for_each_device_and_set_before_its_first_use),
      cmocka_unit_test(wrong_calls_change_nothing_and_name_their_fault),
      cmocka_unit_test(a_stream_under_capture_allocates_nothing_and_its_frees_wait),
      cmocka_unit_test(a_forgotten_stream_can_be_destroyed),
      cmocka_unit_test(any_driver_call_may_fail_and_nothing_leaks),
      cmocka_unit_test(a_child_of_fork_is_refused),
      cmocka_unit_test(allocation_k_of_a_repeating_step_gets_its_planned_offset),
      cmocka_unit_test(a_capture_may_contain_planned_allocations),
      cmocka_unit_test(another_size_falls_back_to_the_cache_and_is_counted),
      cmocka_unit_test(a_late_free_never_shares_a_byte),
      cmocka_unit_test(used_and_surviving_blocks_are_not_planned),
      cmocka_unit_test(a_use_that_begins_after_planning_holds_the_place),
      cmocka_unit_test(a_plan_without_room_is_reported_and_the_cache_goes_on),
      cmocka_unit_test(a_step_that_needs_the_arenas_memory_gets_it),
      cmocka_unit_test(threads_share_streams),
  };
  const struct CMUnitTest threads[] = {
      cmocka_unit_test(another_stream_gets_a_block_behind_the_work_that_used_it),
      cmocka_unit_test(allocation_k_of_a_repeating_step_gets_its_planned_offset),
      cmocka_unit_test(threads_share_streams),
  };
  if (!fake_driver_find(&fake)) {
    printf("SKIP: libcuda.so.1 is not the fake\n");
    return 77;
  }
  bool is_few = argc > 1; /* of the kinds of concurrency, for the thread sanitizer */
  return is_few ? cmocka_run_group_tests(threads, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
