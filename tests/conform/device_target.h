/* SPDX-License-Identifier: Apache-2.0 */
/* The device under test: the implementation that the argument names, small, with links of known rates. */
#ifndef LADE_TEST_DEVICE_TARGET_H
#define LADE_TEST_DEVICE_TARGET_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/faults.h"
#include "base/pool.h"
#include "device/device.h"

#define MIB ((uint64_t)1 << 20)
#define CHUNK (2 * MIB)
#define CAPACITY (64 * MIB)

static const struct lade_link link_to_host = {.bytes_per_s = 2000000000, .latency_ns = 10000};
static const struct lade_link link_to_device = {.bytes_per_s = 1000000000, .latency_ns = 20000};

struct target {
  bool is_dry;
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
  int error = target->is_dry ? lade_device_open_dry(&dry, NULL, &device) : lade_device_open_host(&host, NULL, &device);
  assert_int_equal(error, 0);
  return device;
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

/* Run @tests over the implementation that the first argument names, host or dry. Returns main's result. */
static inline int target_run(int argc, char **argv, struct CMUnitTest *tests, size_t n_tests)
{
  struct target target = {.is_dry = argc > 1 && strcmp(argv[1], "dry") == 0};
  if (lade_pool_create(2, &target.pool))
    return 1;
  for (size_t i = 0; i < n_tests; i++)
    tests[i].initial_state = &target;
  int n_failed = _cmocka_run_group_tests(argv[0], tests, n_tests, NULL, NULL);
  lade_pool_destroy(target.pool);
  return n_failed;
}

#endif
