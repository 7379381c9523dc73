/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's calls to the machine, for the device that the argument names: a steady step makes none, and everything is
 * released when any one call is refused. The linker sends every allocation and memory call of the library through the
 * counters here.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/faults.h"
#include "base/pool.h"
#include "device/cuda.h"

#define CHUNK ((uint64_t)2 << 20)
#define KEEPING_SOURCE 4 /* MREMAP_DONTUNMAP */

static _Atomic int64_t n_calls;      /* of the heap and of memory */
static _Atomic int64_t n_blocks;     /* live blocks of the heap */
static _Atomic int64_t mapped_bytes; /* of addresses mapped by the library */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *at, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void __real_free(void *at);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t bytes);
void *__real_mremap(void *at, size_t bytes, size_t to_bytes, int flags, void *to);
int __real_madvise(void *at, size_t bytes, int advice);
int __real_mprotect(void *at, size_t bytes, int protection);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *at, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void __wrap_free(void *at);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t bytes);
void *__wrap_mremap(void *at, size_t bytes, size_t to_bytes, int flags, void *to);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_mprotect(void *at, size_t bytes, int protection);

static void *block_count(void *block)
{
  n_calls++;
  n_blocks += block != NULL;
  return block;
}

void *__wrap_malloc(size_t bytes)
{
  return block_count(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t bytes)
{
  return block_count(__real_calloc(n, bytes));
}

void *__wrap_realloc(void *at, size_t bytes)
{
  n_blocks -= at != NULL;
  return block_count(__real_realloc(at, bytes));
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
  return block_count(__real_aligned_alloc(align, bytes));
}

void __wrap_free(void *at)
{
  n_calls++;
  n_blocks -= at != NULL;
  __real_free(at);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
  void *result = __real_mmap(at, bytes, protection, flags, fd, offset);
  n_calls++;
  if (!(flags & MAP_FIXED)) /* it only replaces a mapping of the library */
    mapped_bytes += result == MAP_FAILED ? 0 : (int64_t)bytes;
  return result;
}

/* Wrap mmap under its name for 64-bit file offsets. */
void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
  return __wrap_mmap(at, bytes, protection, flags, fd, offset);
}

int __wrap_munmap(void *at, size_t bytes)
{
  n_calls++;
  mapped_bytes -= (int64_t)bytes;
  return __real_munmap(at, bytes);
}

void *__wrap_mremap(void *at, size_t bytes, size_t to_bytes, int flags, void *to)
{
  void *result = __real_mremap(at, bytes, to_bytes, flags, to);
  n_calls++;
  if (result != MAP_FAILED && !(flags & KEEPING_SOURCE))
    mapped_bytes -= (int64_t)bytes;
  return result;
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
  n_calls++;
  return __real_madvise(at, bytes, advice);
}

int __wrap_mprotect(void *at, size_t bytes, int protection)
{
  n_calls++;
  return __real_mprotect(at, bytes, protection);
}

struct device_fixture {
  bool is_dry;
  int ordinal; /* of a GPU; -EINVAL: none */
  lade_pool *pool;
  struct lade_faults *faults;
  lade_device *device;
  uint64_t at;
  lade_chunk *chunks[2];
  lade_queue *queues[3];
  uint64_t n_runs;
};

static int program_fixture_device(struct device_fixture *fixture)
{
  struct lade_error error;
  struct lade_link link = {.bytes_per_s = 50000000000, .latency_ns = 100};
  struct lade_host_device_params host = {
      .struct_size = sizeof(host),
      .capacity_bytes = 16 * CHUNK,
      .pool = fixture->pool,
      .to_host = link,
      .faults = fixture->faults,
  };
  struct lade_dry_device_params dry = {
      .struct_size = sizeof(dry),
      .capacity_bytes = 16 * CHUNK,
      .to_host = link,
      .to_device = link,
      .faults = fixture->faults,
  };
  struct lade_cuda_device_params cuda = {
      .struct_size = sizeof(cuda),
      .ordinal = fixture->ordinal,
      .capacity_bytes = 16 * CHUNK,
      .faults = fixture->faults,
  };
  if (fixture->ordinal >= 0)
    return lade_device_open_cuda(&cuda, &error, &fixture->device);
  return fixture->is_dry ? lade_device_open_dry(&dry, &error, &fixture->device)
                       : lade_device_open_host(&host, &error, &fixture->device);
}

static int program_fixture_memory(struct device_fixture *fixture)
{
  lade_device *device = fixture->device;
  int error = lade_device_reserve(device, 8 * CHUNK, &fixture->at);
  if (!error)
    error = lade_device_chunk_create(device, 5 * CHUNK, &fixture->chunks[0]);
  if (!error)
    error = lade_device_chunk_create(device, CHUNK, &fixture->chunks[1]);
  if (!error)
    error = lade_device_map(device, fixture->at, fixture->chunks[0]);
  if (!error)
    error = lade_device_map(device, fixture->at + 7 * CHUNK, fixture->chunks[1]);
  if (!error)
    error = lade_device_unmap(device, fixture->at, 8 * CHUNK);
  if (!error)
    error = lade_device_map(device, fixture->at + CHUNK, fixture->chunks[0]);
  if (!error)
    error = lade_device_map(device, fixture->at, fixture->chunks[1]);
  return error;
}

static int program_fixture_queues(struct device_fixture *fixture)
{
  enum lade_queue_role roles[] = {LADE_QUEUE_COMPUTE, LADE_QUEUE_TO_HOST, LADE_QUEUE_SIGNAL};
  int error = 0;
  for (int i = 0; i < 3 && !error; i++)
    error = lade_queue_create(fixture->device, roles[i], &fixture->queues[i]);
  return error;
}

static void count_up(void *args)
{
  ++*(uint64_t *)args;
}

/* Run one step: work, a copy after it, work after the copy and a signal. Return the device's status. */
static int program_fixture_step(struct device_fixture *fixture, uint64_t i_step)
{
  lade_queue *compute = fixture->queues[0], *to_host = fixture->queues[1], *drive = fixture->queues[2];
  static char result[4096];
  static char source[4096];
  void *from = fixture->is_dry ? (void *)source : (void *)(uintptr_t)fixture->at;
  struct lade_span span;
  uint64_t count = 0;
  for (int i = 0; i < 20; i++) {
    lade_queue_launch(compute, &(struct lade_work){count_up, &fixture->n_runs, 10, &span}, &count);
    lade_queue_wait(to_host, compute, count);
    lade_queue_copy(to_host, &(struct lade_copy){result, from, sizeof(result), 0, NULL}, &count);
    lade_queue_wait(compute, to_host, count);
  }
  lade_queue_signal(drive, i_step + 1);
  lade_queue_wait(compute, drive, i_step + 1);
  lade_queue_launch(compute, &(struct lade_work){count_up, &fixture->n_runs, 10, &span}, &count);
  return lade_queue_sync(compute, count);
}

/* Release everything that exists. Unmapping may meet the fault as well, and then continues from there. */
static void program_fixture_finish(struct device_fixture *fixture)
{
  for (int i = 0; i < 3; i++)
    lade_queue_destroy(fixture->queues[i]);
  if (fixture->at) {
    int error = -1;
    for (int i = 0; i < 5 && error; i++) {
      if (i == 2)
        lade_faults_arm(fixture->faults, LADE_FAULT_ANY, 0, false, -1); /* the machine has recovered */
      error = lade_device_unmap(fixture->device, fixture->at, 8 * CHUNK);
    }
    assert_int_equal(error, 0);
  }
  for (int i = 0; i < 2; i++)
    lade_device_chunk_release(fixture->device, fixture->chunks[i]);
  if (fixture->at)
    lade_device_release(fixture->device, fixture->at, 8 * CHUNK);
  lade_device_close(fixture->device);
}

static int program_fixture_play(struct device_fixture *fixture)
{
  int error = program_fixture_device(fixture);
  if (!error)
    error = program_fixture_memory(fixture);
  if (!error)
    error = program_fixture_queues(fixture);
  if (!error)
    error = program_fixture_step(fixture, 0);
  return error;
}

/* Fail the @nth call. Return true if the fault was hit. */
static bool nth_call_fails(struct device_fixture fixture, uint64_t nth, bool is_for_good)
{
  struct lade_faults faults;
  int64_t blocks_before = n_blocks, mapped_before = mapped_bytes;
  lade_faults_init(&faults);
  lade_faults_arm(&faults, LADE_FAULT_ANY, nth, is_for_good, -ENOMEM);
  fixture.faults = &faults;
  int error = program_fixture_play(&fixture);
  bool is_hit = lade_faults_injected(&faults) > 0;
  assert_int_equal(error, is_hit ? -ENOMEM : 0);
  program_fixture_finish(&fixture);
  assert_int_equal(n_blocks, blocks_before);
  assert_int_equal(mapped_bytes, mapped_before);
  return is_hit;
}

static void any_call_may_fail_and_nothing_leaks(void **state)
{
  const struct device_fixture *fixture = *state;
  for (int is_for_good = 0; is_for_good < 2; is_for_good++) {
    uint64_t nth = 1;
    while (nth_call_fails(*fixture, nth, is_for_good))
      nth++;
    assert_true(nth > 40); /* the copies alone are 20 */
  }
}

static void a_steady_step_asks_nothing_of_the_machine(void **state)
{
  struct device_fixture fixture = *(struct device_fixture *)*state;
  struct lade_faults faults;
  lade_faults_init(&faults);
  fixture.faults = &faults;
  assert_int_equal(program_fixture_play(&fixture), 0);
  int64_t calls_before = n_calls;
  for (uint64_t i = 1; i < 100; i++)
    assert_int_equal(program_fixture_step(&fixture, i), 0);
  assert_int_equal(n_calls, calls_before);
  assert_int_equal(fixture.n_runs, fixture.is_dry ? 0 : 100 * 21);
  program_fixture_finish(&fixture);
}

int main(int argc, char **argv)
{
  const char *name = argc > 1 ? argv[1] : "host";
  struct device_fixture fixture = {.is_dry = strcmp(name, "dry") == 0, .ordinal = lade_cuda_ordinal(name)};
  if (fixture.ordinal >= 0 && program_fixture_device(&fixture) == -ENODEV) {
    printf("SKIP: there is no %s here\n", name);
    return 77;
  }
  lade_device_close(fixture.device);
  fixture.device = NULL;
  if (lade_pool_create(2, &fixture.pool))
    return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_prestate(any_call_may_fail_and_nothing_leaks, &fixture),
      cmocka_unit_test_prestate(a_steady_step_asks_nothing_of_the_machine, &fixture),
  };
  int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
  lade_pool_destroy(fixture.pool);
  return n_failed;
}
