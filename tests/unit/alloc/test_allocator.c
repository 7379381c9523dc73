/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pluggable allocator over host and dry devices: drawn steps that repeat with changes never share a byte between
 * two live blocks, planned or not; memory of the process that runs out is an error and leaks nothing; and refusals.
 * tests/on_fakes/test_cuda_allocator.c has streams of a GPU.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "lade/allocator.h"
#include "tests/support/heap/allocations.h"

#define MIB (UINT64_C(1) << 20)
#define N_STREAMS 3
#define N_CALLS 60 /* allocations of a drawn step */
#define STEPS 40
#define SEEDS 25
#define LIVE_MAX 512

struct fixture {
  lade_device *device;
  lade_queue *queues[N_STREAMS]; /* the last one is NULL: the host */
  lade_allocator *allocator;
};

static int fixture_try(struct fixture *f, const char *device, uint64_t limit_bytes, struct lade_error *error)
{
  const struct lade_device_params host = {.struct_size = sizeof(host), .name = device, .capacity_bytes = 256 * MIB};
  *f = (struct fixture){0};
  int status = lade_device_open(&host, error, &f->device);
  for (int i = 0; i + 1 < N_STREAMS && !status; i++)
    status = lade_queue_create(f->device, LADE_QUEUE_COMPUTE, &f->queues[i]);
  const struct lade_allocator_params params = {.struct_size = sizeof(params), .limit_bytes = limit_bytes,
                                               .devices = &f->device, .n_devices = 1};
  return status ? status : lade_allocator_create(&params, error, &f->allocator);
}

static void fixture_init(struct fixture *f, const char *device, uint64_t limit_bytes)
{
  struct lade_error error = {0};
  if (fixture_try(f, device, limit_bytes, &error))
    fail_msg("%s", error.text);
}

static void fixture_finish(struct fixture *f)
{
  lade_allocator_destroy(f->allocator);
  for (int i = 0; i < N_STREAMS; i++)
    lade_queue_destroy(f->queues[i]);
  lade_device_close(f->device);
}

static struct lade_allocator_stats stats_get(const struct fixture *f)
{
  struct lade_allocator_stats stats = {.struct_size = sizeof(stats)};
  assert_int_equal(lade_allocator_get_stats(f->allocator, 0, &stats, NULL), 0);
  return stats;
}

/* ---- drawn steps ---- */

struct drawn_call {
  uint64_t bytes;
  int stream;
  int n_calls; /* allocations until its free */
};

struct live {
  char *at;
  uint64_t bytes;
  int stream, n_left; /* allocations until its free */
};

struct play {
  struct fixture f;
  struct live live[LIVE_MAX];
  int n_live;
  unsigned seed;
};

static int drawn(struct play *play, int n)
{
  return rand_r(&play->seed) % n;
}

static void block_take(struct play *play, const struct drawn_call *call)
{
  struct lade_error error = {0};
  void *at = NULL;
  if (lade_allocator_alloc(play->f.allocator, call->bytes, 0, play->f.queues[call->stream], &error, &at))
    fail_msg("%s", error.text);
  for (int i = 0; i < play->n_live; i++) {
    const struct live *other = &play->live[i];
    assert_true((char *)at + call->bytes <= other->at || other->at + other->bytes <= (char *)at);
  }
  assert_true(play->n_live < LIVE_MAX);
  play->live[play->n_live++] = (struct live){at, call->bytes, call->stream, call->n_calls};
}

/* Free block @i; now and then in the order of another stream. */
static void block_give(struct play *play, int i)
{
  struct live *block = &play->live[i];
  int stream = drawn(play, 40) ? block->stream : drawn(play, N_STREAMS);
  if (stream != block->stream && drawn(play, 2))
    assert_int_equal(lade_allocator_record(play->f.allocator, block->at, play->f.queues[stream], NULL), 0);
  assert_int_equal(lade_allocator_free(play->f.allocator, block->at, 0, play->f.queues[stream], NULL), 0);
  *block = play->live[--play->n_live];
}

/* Run the drawn step with changes, one in @rarity: sizes, lifetimes, allocations left out or added. */
static void step_play(struct play *play, const struct drawn_call calls[N_CALLS], int rarity)
{
  for (int k = 0; k < N_CALLS; k++) {
    struct drawn_call call = calls[k];
    int change = drawn(play, rarity) ? -1 : drawn(play, 4);
    if (change == 0)
      call.bytes += 512;
    else if (change == 1)
      call.n_calls += 10;
    else if (change == 2)
      continue;
    else if (change == 3)
      block_take(play, &(struct drawn_call){1000, 0, 5});
    block_take(play, &call);
    for (int i = play->n_live - 1; i >= 0; i--)
      if (--play->live[i].n_left <= 0)
        block_give(play, i);
  }
}

static void seed_play(const char *device, unsigned seed, uint64_t *n_served, uint64_t *n_left)
{
  struct play play = {.seed = seed};
  struct drawn_call calls[N_CALLS];
  fixture_init(&play.f, device, 192 * MIB);
  for (int k = 0; k < N_CALLS; k++)
    calls[k] = (struct drawn_call){1 + (uint64_t)drawn(&play, drawn(&play, 4) ? 20000 : 2000000),
                                   drawn(&play, N_STREAMS), 1 + drawn(&play, 20)};
  for (int step = 0; step < STEPS; step++) {
    assert_int_equal(lade_allocator_step(play.f.allocator, 0, NULL), 0);
    step_play(&play, calls, step % 8 < 5 ? 1000000 : 30);
    if (step % 13 == 12)
      assert_int_equal(lade_allocator_trim(play.f.allocator, 0), 0);
    if (step % 17 == 16)
      assert_int_equal(lade_allocator_forget(play.f.allocator, 0, play.f.queues[step % 2]), 0);
  }
  while (play.n_live)
    block_give(&play, play.n_live - 1);
  struct lade_allocator_stats stats = stats_get(&play.f);
  assert_int_equal(stats.live_bytes, 0);
  assert_int_equal(stats.n_allocs, stats.n_frees);
  assert_true(stats.reserved_peak_bytes <= 192 * MIB && stats.arena_bytes >= stats.live_bound_bytes);
  *n_served += stats.n_served;
  *n_left += stats.n_mismatches + stats.n_conflicts;
  fixture_finish(&play.f);
}

static void drawn_steps_never_share_a_byte(void **state)
{
  uint64_t n_served = 0, n_left = 0;
  for (unsigned seed = 1; seed <= SEEDS; seed++)
    seed_play(seed % 5 ? "dry" : "host", seed, &n_served, &n_left);
  assert_true(n_served > SEEDS * 5 * N_CALLS && n_left > SEEDS * 3);
}

/* ---- memory of the process ---- */

/* Run a few steps. Return the first failure. */
static int steps_try(struct fixture *f, struct lade_error *error)
{
  for (int step = 0; step < 4; step++) {
    void *blocks[6] = {NULL};
    int status = lade_allocator_step(f->allocator, 0, error);
    for (int i = 0; i < 6 && !status; i++)
      status = lade_allocator_alloc(f->allocator, 5000 * (uint64_t)(i + 1), 0, f->queues[i % 2], error, &blocks[i]);
    for (int i = 0; i < 6; i++)
      while (lade_allocator_free(f->allocator, blocks[i], 0, f->queues[i % 2], NULL) == -ENOMEM)
        allocations_left = -1; /* the block is still live */
    if (status)
      return status;
  }
  return 0;
}

static void every_allocation_of_the_library_may_fail(void **state)
{
  int n_failed = 0;
  for (int n = 1, has_failed = 1; has_failed; n++) {
    struct lade_error error = {0};
    struct fixture f;
    allocations_left = n;
    int status = fixture_try(&f, "dry", 32 * MIB, &error);
    status = status ? status : steps_try(&f, &error);
    has_failed = allocations_left == 0 || status;
    allocations_left = -1;
    n_failed += status != 0;
    assert_true(!status || status == -ENOMEM || status == -EAGAIN);
    if (!status && f.allocator)
      assert_int_equal(stats_get(&f).live_bytes, 0);
    fixture_finish(&f);
    assert_true(n < 1000);
  }
  assert_true(n_failed > 10);
}

/* ---- refusals ---- */

static void calls_that_make_no_sense_are_refused(void **state)
{
  struct fixture f, other;
  struct lade_error error = {0};
  void *address = NULL;
  fixture_init(&f, "host", 8 * MIB);
  fixture_init(&other, "host", 8 * MIB);
  assert_int_equal(lade_allocator_alloc(f.allocator, 512, 0, other.queues[0], &error, &address), -EINVAL);
  assert_non_null(strstr(error.text, "another device"));
  assert_int_equal(lade_allocator_alloc(f.allocator, 512, 1, NULL, &error, &address), -EINVAL); /* of one device */
  assert_int_equal(lade_allocator_alloc(NULL, 512, 0, NULL, &error, &address), -EINVAL);
  assert_int_equal(lade_allocator_alloc(f.allocator, 512, 0, NULL, &error, NULL), -EINVAL);
  assert_int_equal(lade_allocator_step(f.allocator, 9, &error), -EINVAL);
  assert_int_equal(lade_allocator_get_stats(f.allocator, 0, &(struct lade_allocator_stats){0}, &error), -EINVAL);
  assert_int_equal(lade_allocator_forget(f.allocator, 9, NULL), -EINVAL);
  assert_null(lade_allocator_get_cache(f.allocator, 9));
  assert_int_equal(lade_allocator_create(NULL, &error, NULL), -EINVAL);
  lade_device *none = NULL;
  const struct lade_allocator_params params = {.struct_size = sizeof(params), .devices = &none, .n_devices = 1};
  assert_int_equal(lade_allocator_create(&params, &error, &other.allocator), -EINVAL);
  assert_non_null(strstr(error.text, "device 0 is NULL"));
  fixture_finish(&other);
  fixture_finish(&f);
  lade_allocator_destroy(NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(drawn_steps_never_share_a_byte),
      cmocka_unit_test(every_allocation_of_the_library_may_fail),
      cmocka_unit_test(calls_that_make_no_sense_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
