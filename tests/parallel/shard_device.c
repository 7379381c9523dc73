/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/shard.h in the memory and on the queues of a device: of a host device, or of a GPU over the fakes of its driver
 * and of NCCL, whose memory is the process's. One rank alone, or the ranks of a launcher.
 *
 * Usage: shard-device host|cuda [abort]. With abort the last rank gives up while calls are on queues.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "lade/shard.h"
#include "tests/support/names.h"

#define N 3001      /* no multiple of a block */
#define CALLS 150   /* more than are in flight at once */

static lade_ranks *ranks;
static lade_device *device;
static lade_queue *queue, *other;
static bool is_gpu;
static int rank, size;
static struct lade_error error;

#define assert_works(call) \
  do { \
    if (call) \
      fail_msg("rank %d: %s", rank, error.text); \
  } while (0)

static lade_device *device_open(int local_rank, uint64_t capacity_bytes)
{
  char name[16] = "host";
  lade_device *made = NULL;
  if (is_gpu)
    snprintf(name, sizeof(name), "cuda:%d", LADE_MAX(local_rank, 0));
  const struct lade_device_params params = {.struct_size = sizeof(params), .name = name,
                                            .capacity_bytes = capacity_bytes};
  return lade_device_open(&params, &error, &made) ? NULL : made;
}

static int job_open(void)
{
  const struct lade_ranks_params params = {.struct_size = sizeof(params), .n_threads = 1, .timeout_ms = 60000};
  struct lade_ranks_info info = {.struct_size = sizeof(info)};
  int status = lade_ranks_open(&params, &error, &ranks);
  if (!status)
    status = lade_ranks_get_info(ranks, &info, &error);
  rank = info.rank;
  size = info.size;
  device = status ? NULL : device_open(info.local_rank, 64 << 20);
  if (!device)
    return status ? status : error.code;
  status = lade_ranks_set_device(ranks, device, &error);
  int refused = lade_queue_create(device, LADE_QUEUE_COMM, &queue);
  if (!refused)
    refused = lade_queue_create(device, LADE_QUEUE_COMM, &other);
  if (!status && refused)
    status = lade_error_set(&error, -ENOMEM, "no queue");
  return status;
}

static void job_close(void)
{
  lade_ranks_close(ranks);
  lade_queue_destroy(other);
  lade_queue_destroy(queue);
  lade_device_close(device);
}

struct vectors {
  lade_shard *shard;
  struct lade_shard_info info;
  struct lade_shard_block block;
  float *own, *all; /* of the device */
};

static struct vectors vectors_make(uint64_t n)
{
  struct vectors v = {.info.struct_size = sizeof(v.info), .block.struct_size = sizeof(v.block)};
  assert_works(lade_shard_create(ranks, n, &error, &v.shard));
  assert_works(lade_shard_get_info(v.shard, &v.info, &error));
  assert_works(lade_shard_get_block(v.shard, rank, &v.block, &error));
  assert_works(lade_ranks_alloc(ranks, v.info.block_elements * sizeof(float), &error, (void **)&v.own));
  assert_works(lade_ranks_alloc(ranks, v.info.padded_elements * sizeof(float), &error, (void **)&v.all));
  return v;
}

static void vectors_end(struct vectors *v)
{
  assert_works(lade_ranks_wait(ranks, &error));
  lade_ranks_free(ranks, v->all);
  lade_ranks_free(ranks, v->own);
  lade_shard_destroy(v->shard);
}

/* Element @i of the vector of @of_rank: small integers, whose sums are exact in every order. */
static float value_at(int of_rank, uint64_t i, int round)
{
  return (float)((i * 7 + (uint64_t)round * 3) % 101) + (float)of_rank;
}

static float sum_at(uint64_t i, int round)
{
  return (float)size * value_at(0, i, round) + (float)(size * (size - 1) / 2);
}

static void the_engine_is_that_of_the_device(void **state)
{
  struct lade_ranks_info info = {.struct_size = sizeof(info)};
  assert_works(lade_ranks_get_info(ranks, &info, &error));
  assert_int_equal(strcmp(info.engine, "nccl") == 0, is_gpu);
}

static void blocking_calls_work_on_device_memory(void **state)
{
  struct vectors v = vectors_make(N);
  float values[2] = {1, (float)rank};
  for (uint64_t i = 0; i < v.info.padded_elements; i++)
    v.all[i] = value_at(rank, i, 0);
  assert_works(lade_shard_reduce(v.shard, LADE_F32, v.all, v.own, &error));
  for (uint64_t i = 0; i < v.block.n_elements; i++)
    assert_true(v.own[i] == sum_at(v.block.first_element + i, 0));
  memset(v.all, 0, v.info.padded_elements * sizeof(float));
  assert_works(lade_shard_gather(v.shard, LADE_F32, v.own, v.all, &error));
  for (uint64_t i = 0; i < N; i++)
    assert_true(v.all[i] == sum_at(i, 0));
  assert_works(lade_ranks_sum(ranks, values, 2, &error)); /* in host memory, on a GPU too */
  assert_true(values[0] == (float)size && values[1] == (float)(size * (size - 1) / 2));
  assert_works(lade_ranks_broadcast(ranks, size - 1, values, sizeof(values), &error));
  memset(v.own, 0xff, v.info.block_elements * sizeof(float));
  assert_works(lade_shard_cut(v.shard, LADE_F32, v.all, v.own, &error));
  for (uint64_t i = 0; i < v.info.block_elements; i++)
    assert_true(v.own[i] == (i < v.block.n_elements ? sum_at(v.block.first_element + i, 0) : 0));
  vectors_end(&v);
}

struct put {
  float *all;
  uint64_t n;
  int round;
};

/* Work of the caller on the queue: the gradients of a round. */
static void gradients_put(void *args)
{
  const struct put *put = args;
  for (uint64_t i = 0; i < put->n; i++)
    put->all[i] = value_at(rank, i, put->round);
}

/* Gradients, their sum and the gather of it, round after round without a wait; queues change in between. */
static void calls_on_queues_run_in_order(void **state)
{
  struct vectors v = vectors_make(N);
  struct put puts[CALLS / 2];
  uint64_t count = 0;
  lade_queue *last = NULL;
  for (int round = 0; round < CALLS / 2; round++) {
    lade_queue *on = round % 5 == 4 ? other : queue;
    puts[round] = (struct put){v.all, v.info.padded_elements, round};
    if (last && on != last)
      lade_queue_wait(on, last, count); /* the vectors are the caller's to order */
    lade_queue_launch(on, &(struct lade_work){.fn = gradients_put, .args = &puts[round]}, NULL);
    assert_works(lade_shard_reduce_on(v.shard, on, LADE_F32, v.all, v.own, NULL, &error));
    assert_works(lade_shard_gather_on(v.shard, on, LADE_F32, v.own, v.all, &count, &error));
    last = on;
  }
  assert_int_equal(lade_queue_sync(last, count), 0);
  assert_works(lade_ranks_wait(ranks, &error));
  for (uint64_t i = 0; i < N; i++)
    assert_true(v.all[i] == sum_at(i, CALLS / 2 - 1));
  /* A blocking call runs after the calls on queues. */
  puts[0].round = 99;
  lade_queue_launch(queue, &(struct lade_work){.fn = gradients_put, .args = &puts[0]}, NULL);
  assert_works(lade_shard_reduce_on(v.shard, queue, LADE_F32, v.all, v.own, NULL, &error));
  assert_works(lade_shard_gather(v.shard, LADE_F32, v.own, v.all, &error));
  for (uint64_t i = 0; i < N; i++)
    assert_true(v.all[i] == sum_at(i, 99));
  vectors_end(&v);
}

static void parts_work_on_the_device_too(void **state)
{
  lade_ranks *part = NULL;
  lade_shard *shard = NULL;
  void *all = NULL;
  uint64_t count = 0;
  assert_works(lade_ranks_split(ranks, rank % 2, rank, &error, &part));
  struct lade_ranks_info info = {.struct_size = sizeof(info)};
  assert_works(lade_ranks_get_info(part, &info, &error));
  assert_int_equal(info.size, (size + 1 - rank % 2) / 2);
  assert_works(lade_shard_create(part, N, &error, &shard));
  assert_works(lade_ranks_alloc(part, (uint64_t)info.size * 2 * N * sizeof(float), &error, &all));
  struct lade_shard_block block = {.struct_size = sizeof(block)};
  assert_works(lade_shard_get_block(shard, info.rank, &block, &error));
  float *own = (float *)all + block.first_element;
  for (uint64_t i = 0; i < block.n_elements; i++)
    own[i] = value_at(rank % 2, block.first_element + i, 1);
  assert_works(lade_shard_gather_on(shard, queue, LADE_F32, own, all, &count, &error));
  assert_works(lade_ranks_wait(part, &error));
  for (uint64_t i = 0; i < N; i++)
    assert_true(((float *)all)[i] == value_at(rank % 2, i, 1));
  assert_int_equal(lade_ranks_set_device(part, device, &error), -EINVAL);
  lade_ranks_free(part, all);
  lade_shard_destroy(shard);
  lade_ranks_close(part);
}

static void refused(int status, const char *const *names)
{
  assert_int_equal(status, -EINVAL);
  names_verify(error.text, names, __FILE__, __LINE__);
}

static void calls_that_make_no_sense_are_refused(void **state)
{
  struct vectors v = vectors_make(N);
  const struct lade_device_params dry = {.struct_size = sizeof(dry), .name = "dry", .capacity_bytes = 4 << 20};
  lade_device *elsewhere = NULL;
  lade_queue *foreign = NULL;
  uint64_t count = 77;
  assert_works(lade_device_open(&dry, &error, &elsewhere));
  assert_int_equal(lade_queue_create(elsewhere, LADE_QUEUE_COMM, &foreign), 0);
  refused(lade_shard_gather_on(v.shard, foreign, LADE_F32, v.own, v.all, &count, &error), NAMES("all_gather", "queue"));
  refused(lade_shard_reduce_on(v.shard, NULL, LADE_F32, v.all, v.own, NULL, &error), NAMES("reduce_scatter", "queue"));
  refused(lade_shard_reduce_on(v.shard, queue, LADE_I16, v.all, v.own, &count, &error), NAMES("f32", "bf16"));
  refused(lade_shard_gather_on(v.shard, queue, LADE_F32, NULL, v.all, &count, &error), NAMES("buffer"));
  refused(lade_shard_gather_on(NULL, queue, LADE_F32, v.own, v.all, &count, &error), NAMES("shard is NULL"));
  refused(lade_ranks_set_device(ranks, device, &error), NAMES("lade_ranks_set_device", "once"));
  refused(lade_ranks_set_device(ranks, NULL, &error), NAMES("lade_ranks_set_device"));
  assert_int_equal(count, 77);
  lade_queue_destroy(foreign);
  vectors_end(&v);
  if (size == 1) { /* ranks of their own */
    lade_ranks *alone = NULL;
    assert_works(lade_ranks_open(NULL, &error, &alone));
    refused(lade_ranks_set_device(alone, elsewhere, &error), NAMES("dry"));
    lade_shard *shard = NULL;
    float x[LADE_SHARD_ELEMENTS];
    assert_works(lade_shard_create(alone, 1, &error, &shard));
    refused(lade_shard_gather_on(shard, queue, LADE_F32, x, x, NULL, &error), NAMES("lade_ranks_set_device"));
    refused(lade_ranks_set_device(alone, device, &error), NAMES("before"));
    lade_shard_destroy(shard);
    lade_ranks_close(alone);
  }
  lade_device_close(elsewhere);
}

/* The last rank gives up; the calls on queues of all others end with its words, and so does every later call. */
static int abort_run(void)
{
  lade_shard *shard = NULL;
  void *all = NULL;
  signal(SIGTERM, SIG_IGN); /* the launcher ends the job by SIGTERM; the test is about Lade's own error */
  int status = lade_shard_create(ranks, N, &error, &shard);
  if (!status)
    status = lade_ranks_alloc(ranks, (uint64_t)size * 2 * N * sizeof(float), &error, &all);
  for (int i = 0; i < 100000 && !status; i++) {
    if (rank == size - 1 && i == 5)
      lade_ranks_abort(ranks, "no data left");
    status = lade_shard_gather_on(shard, queue, LADE_F32, (float *)all + 2 * N, all, NULL, &error);
    if (!status)
      status = lade_ranks_wait(ranks, &error);
  }
  struct lade_error again = {0};
  int later = lade_shard_gather_on(shard, queue, LADE_F32, (float *)all, all, NULL, &again);
  printf("END rank %d: %d: %s\n", rank, later == status || later == -EINVAL ? status : later, error.text);
  fflush(stdout);
  sleep(2); /* at the first exit the launcher kills the others, which may not have returned yet */
  _exit(1);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_engine_is_that_of_the_device),
      cmocka_unit_test(blocking_calls_work_on_device_memory),
      cmocka_unit_test(calls_on_queues_run_in_order),
      cmocka_unit_test(parts_work_on_the_device_too),
      cmocka_unit_test(calls_that_make_no_sense_are_refused),
  };
  is_gpu = argc > 1 && strcmp(argv[1], "cuda") == 0;
  int status = job_open();
  if (status) {
    printf("OPEN %d: %s\n", status, error.text);
    return 1;
  }
  if (argc > 2)
    return abort_run();
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  job_close();
  return failed;
}
