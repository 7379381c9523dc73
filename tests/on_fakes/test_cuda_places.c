/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device in environments that give it less than it reports, over the fake: containers without shareable memory,
 * hardware channels shared by streams; and the interrupts that work on a queue causes.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "base/base.h"
#include "device/cuda.h"
#include "tests/support/fakes/fakes.h"

#define CHUNK ((uint64_t)2 << 20)

static struct fake_driver fake;

static lade_device *must_open(const char *settings)
{
  const struct lade_cuda_device_params params = {.struct_size = sizeof(params)};
  lade_device *device = NULL;
  assert_int_equal(fake.set("handles=1,channels=0"), 0);
  assert_int_equal(fake.set(settings), 0);
  assert_int_equal(lade_device_open_cuda(&params, NULL, &device), 0);
  return device;
}

/* Memory is then made without handles, and sharing is refused. */
static void memory_is_made_where_none_can_be_shared(void **state)
{
  lade_device *device = must_open("handles=0");
  lade_chunk *chunk = NULL, *shared = NULL;
  uint64_t at = 0;
  assert_int_equal(lade_device_chunk_create_shared(device, CHUNK, &shared), -EFAULT);
  assert_int_equal(lade_device_chunk_create(device, CHUNK, &chunk), 0);
  assert_int_equal(lade_device_chunk_create_shared(device, CHUNK, &shared), -ENOTSUP);
  assert_int_equal(lade_device_reserve(device, CHUNK, &at), 0);
  assert_int_equal(lade_device_map(device, at, chunk), 0);
  lade_device_chunk_release(device, chunk);
  assert_int_equal(fake.set("fail=none"), 0); /* resets the counts */
  assert_int_equal(lade_device_chunk_create(device, CHUNK, &chunk), 0);
  assert_int_equal(fake.calls("cuMemCreate"), 1); /* a refused call is not repeated */
  assert_int_equal(lade_device_status(device), 0);
  lade_device_chunk_release(device, chunk);
  lade_device_release(device, at, CHUNK);
  lade_device_close(device);
  assert_int_equal(fake.live(), 0);
}

static void count_up(void *args)
{
  ++*(int *)args;
}

/*
 * All work then runs in the order of submission: a piece that waits for the host holds up the others, also the clock's.
 * Pieces are more than a second apart, so that the clock must advance while the channel is blocked.
 */
static void streams_that_share_a_channel_end_all_the_same(void **state)
{
  static const enum lade_queue_role roles[] = {LADE_QUEUE_COMPUTE, LADE_QUEUE_TO_HOST, LADE_QUEUE_HOST};
  lade_device *device = must_open("channels=1");
  const struct timespec pause = {.tv_sec = 1, .tv_nsec = 100000000};
  lade_queue *queues[3] = {NULL};
  uint64_t count = 0;
  int n_runs = 0;
  for (int i = 0; i < 3; i++)
    assert_int_equal(lade_queue_create(device, roles[i], &queues[i]), 0);
  for (int i = 0; i < 3; i++) {
    nanosleep(&pause, NULL);
    lade_cuda_queue_enqueue(queues[0], NULL, NULL, NULL, &count);
    lade_queue_wait(queues[2], queues[0], count);
    lade_queue_launch(queues[2], &(struct lade_work){count_up, &n_runs, 0, NULL}, &count);
    lade_queue_wait(queues[1], queues[2], count); /* the channel is blocked until the host knows that the first has
                                                     ended */
    lade_cuda_queue_enqueue(queues[1], NULL, NULL, NULL, &count);
    assert_int_equal(lade_queue_sync(queues[1], count), 0);
  }
  assert_int_equal(n_runs, 3);
  for (int i = 0; i < 3; i++)
    lade_queue_destroy(queues[i]);
  lade_device_close(device);
  assert_int_equal(fake.live(), 0);
}

/* A thread waits for the end of a piece of work alone, so its start needs no interrupt. */
static void a_piece_of_work_interrupts_the_host_once(void **state)
{
  lade_device *device = must_open("handles=1");
  lade_queue *queue = NULL;
  uint64_t count = 0;
  assert_int_equal(lade_queue_create(device, LADE_QUEUE_COMPUTE, &queue), 0);
  const uint64_t before = fake.interrupts();
  for (int i = 0; i < 3; i++)
    lade_cuda_queue_enqueue(queue, NULL, NULL, NULL, &count);
  assert_int_equal(lade_queue_sync(queue, count), 0);
  assert_int_equal(fake.interrupts() - before, 3);
  lade_queue_destroy(queue);
  lade_device_close(device);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_is_made_where_none_can_be_shared),
      cmocka_unit_test(streams_that_share_a_channel_end_all_the_same),
      cmocka_unit_test(a_piece_of_work_interrupts_the_host_once),
  };
  if (!fake_driver_find(&fake)) {
    printf("SKIP: libcuda.so.1 is not the fake; run this through meson test\n");
    return 77;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
