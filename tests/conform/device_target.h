/* SPDX-License-Identifier: Apache-2.0 */
/* The device under test: the implementation that the argument names, small, with links of known rates. */
#ifndef LADE_TEST_DEVICE_TARGET_H
#define LADE_TEST_DEVICE_TARGET_H

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
#include "base/faults.h"
#include "base/pool.h"
#include "device/cuda.h"

#define MIB ((uint64_t)1 << 20)
#define CHUNK (2 * MIB)
#define CAPACITY (64 * MIB)

static const struct lade_link link_to_host = {.bytes_per_s = 2000000000, .latency_ns = 10000};
static const struct lade_link link_to_device = {.bytes_per_s = 1000000000, .latency_ns = 20000};

struct target {
  bool is_dry, is_cuda;
  int ordinal; /* of a GPU */
  lade_pool *pool;
};

static inline lade_device *device_open(void **state, struct lade_faults *faults)
{
  const struct target *target = *state;
  lade_device *device = NULL;
  struct lade_host_device_params host = {
      .struct_size = sizeof(host),
      .capacity_bytes = CAPACITY,
      .pool = target->pool,
      .to_host = link_to_host,
      .to_device = link_to_device,
      .faults = faults,
  };
  struct lade_dry_device_params dry = {
      .struct_size = sizeof(dry),
      .capacity_bytes = CAPACITY,
      .to_host = link_to_host,
      .to_device = link_to_device,
      .faults = faults,
  };
  struct lade_cuda_device_params cuda = {
      .struct_size = sizeof(cuda),
      .ordinal = target->ordinal,
      .capacity_bytes = CAPACITY,
      .faults = faults,
  };
  struct lade_error why = {0};
  int error = target->is_dry    ? lade_device_open_dry(&dry, &why, &device)
              : target->is_cuda ? lade_device_open_cuda(&cuda, &why, &device)
                                : lade_device_open_host(&host, &why, &device);
  if (error)
    print_error("%s\n", why.text);
  assert_int_equal(error, 0);
  return device;
}

/* True if there is no such GPU; prints that. */
static inline bool target_is_absent(const struct target *target)
{
  struct lade_cuda_device_params cuda = {.struct_size = sizeof(cuda), .ordinal = target->ordinal};
  struct lade_error why = {0};
  lade_device *device = NULL;
  if (!target->is_cuda || lade_device_open_cuda(&cuda, &why, &device) != -ENODEV) {
    lade_device_close(device);
    return false;
  }
  printf("SKIP: %s\n", why.text);
  return true;
}

static inline struct lade_device_info info_get(const lade_device *device)
{
  struct lade_device_info info;
  lade_device_get_info(device, &info);
  return info;
}

static inline lade_queue *queue_open(lade_device *device, enum lade_queue_role role)
{
  lade_queue *queue = NULL;
  assert_int_equal(lade_queue_create(device, role, &queue), 0);
  return queue;
}

static inline lade_chunk *chunk_open(lade_device *device, uint64_t bytes)
{
  lade_chunk *chunk = NULL;
  assert_int_equal(lade_device_chunk_create(device, bytes, &chunk), 0);
  return chunk;
}

/* Make one copy on a queue of its own, and wait for it. */
static inline void copy_now(lade_device *device, enum lade_queue_role role, void *dst, const void *src, uint64_t bytes)
{
  lade_queue *queue = queue_open(device, role);
  uint64_t count = 0;
  lade_queue_copy(queue, &(struct lade_copy){dst, src, bytes, 0, NULL}, &count);
  assert_int_equal(lade_queue_sync(queue, count), 0);
  lade_queue_destroy(queue);
}

/* Copy host memory to the device's and back: by the processor if it has access, otherwise by copies. */
static inline void memory_write(lade_device *device, uint64_t address, const void *from, uint64_t bytes)
{
  if (info_get(device).is_unified)
    memcpy((void *)(uintptr_t)address, from, bytes);
  else
    copy_now(device, LADE_QUEUE_TO_DEVICE, (void *)(uintptr_t)address, from, bytes);
}

static inline void memory_read(lade_device *device, void *to, uint64_t address, uint64_t bytes)
{
  if (info_get(device).is_unified)
    memcpy(to, (void *)(uintptr_t)address, bytes);
  else
    copy_now(device, LADE_QUEUE_TO_HOST, to, (void *)(uintptr_t)address, bytes);
}

/* Return the implementation that a command's first argument names: host, dry, or a GPU as cuda:0. */
static inline struct target target_named(int argc, char **argv)
{
  const char *name = argc > 1 ? argv[1] : "host";
  int ordinal = lade_cuda_ordinal(name);
  return (struct target){.is_dry = strcmp(name, "dry") == 0, .is_cuda = ordinal >= 0, .ordinal = ordinal};
}

/* Run @tests over the implementation that the first argument names. Return main's result; 77 without its GPU. */
static inline int target_run(int argc, char **argv, struct CMUnitTest *tests, size_t n_tests)
{
  struct target target = target_named(argc, argv);
  if (target_is_absent(&target))
    return 77;
  if (lade_pool_create(2, &target.pool))
    return 1;
  for (size_t i = 0; i < n_tests; i++)
    tests[i].initial_state = &target;
  int n_failed = _cmocka_run_group_tests(argv[0], tests, n_tests, NULL, NULL);
  lade_pool_destroy(target.pool);
  return n_failed;
}

#endif
