/* SPDX-License-Identifier: Apache-2.0 */
/* A cache over the device under test, and the calls that every test of it makes. */
#ifndef LADE_TEST_CACHE_TARGET_H
#define LADE_TEST_CACHE_TARGET_H

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "device_target.h"
#include "lade/cache.h"

#define N_TEST_QUEUES 3

struct bed {
  lade_device *device;
  lade_queue *queues[N_TEST_QUEUES];
  lade_cache *cache;
};

static inline struct bed bed_open(void **state, const struct lade_cache_params *given, struct lade_faults *faults)
{
  struct bed bed = {.device = device_open(state, faults)};
  struct lade_cache_params params = given ? *given : (struct lade_cache_params){0};
  params.struct_size = sizeof(params);
  params.device = bed.device;
  params.n_trace_entries = params.n_trace_entries ? params.n_trace_entries : 256;
  for (int i = 0; i < N_TEST_QUEUES; i++)
    bed.queues[i] = queue_open(bed.device, LADE_QUEUE_COMPUTE);
  assert_int_equal(lade_cache_create(&params, NULL, &bed.cache), 0);
  return bed;
}

static inline void cache_check(lade_cache *cache)
{
  struct lade_error error = {0};
  int code = lade_cache_check(cache, &error);
  if (code)
    print_error("%s\n", error.text);
  assert_int_equal(code, 0);
}

static inline void bed_close(struct bed *bed)
{
  cache_check(bed->cache);
  lade_cache_destroy(bed->cache);
  assert_int_equal(info_get(bed->device).created_bytes, 0);
  for (int i = 0; i < N_TEST_QUEUES; i++)
    lade_queue_destroy(bed->queues[i]);
  lade_device_close(bed->device);
}

static inline int try_alloc(lade_cache *cache, lade_queue *queue, uint64_t bytes, void **ret_address)
{
  struct lade_cache_request request = {sizeof(request), bytes, queue, 0, __FILE__ ":1"};
  return lade_cache_alloc(cache, &request, NULL, ret_address);
}

static inline void *must_alloc(lade_cache *cache, lade_queue *queue, uint64_t bytes)
{
  void *address = NULL;
  assert_int_equal(try_alloc(cache, queue, bytes, &address), 0);
  return address;
}

static inline void must_free(lade_cache *cache, void *address)
{
  assert_int_equal(lade_cache_free(cache, address, __FILE__ ":2", NULL), 0);
}

static inline struct lade_cache_stats stats_get(lade_cache *cache)
{
  struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
  assert_int_equal(lade_cache_get_stats(cache, &stats), 0);
  return stats;
}

#endif
