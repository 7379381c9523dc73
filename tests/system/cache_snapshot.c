/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a snapshot of a cache with every event and state that a snapshot can show. Prints the expected live bytes,
 * active bytes, reserved bytes, limit and refusals. snapshot.py reads both.
 *
 *   cache-snapshot FILE host|dry|sanitize
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/device.h"
#include "lade/cache.h"

#define MIB ((uint64_t)1 << 20)
enum { N_BLOCKS = 300, N_QUEUES = 3, N_CALLS = 6000, LIMIT_MIB = 128 };

static int fail(const char *message)
{
  fprintf(stderr, "cache-snapshot: %s\n", message);
  return 1;
}

struct cache_fixture {
  lade_device *device;
  lade_cache *cache;
  lade_cache_pool *pool;
  lade_queue *queues[N_QUEUES], *gate;
  void *blocks[N_BLOCKS], *pooled;
  int tag;
};

static void *try_alloc(struct cache_fixture *fixture, lade_queue *queue, uint64_t bytes, int tag, const char *place)
{
  const struct lade_cache_request request = {sizeof(request), bytes, queue, tag, place};
  void *address = NULL;
  return lade_cache_alloc(fixture->cache, &request, NULL, &address) ? NULL : address;
}

static int cache_fixture_open(struct cache_fixture *fixture, const char *kind)
{
  struct lade_device_params device = {sizeof(device), strcmp(kind, "dry") ? "host" : "dry", 2 * LIMIT_MIB * MIB};
  struct lade_cache_params params = {.struct_size = sizeof(params), .limit_bytes = LIMIT_MIB * MIB};
  params.flags = strcmp(kind, "sanitize") ? 0 : LADE_CACHE_SANITIZE;
  params.n_trace_entries = params.flags ? 4096 : 16384; /* room for all events, and for fewer */
  params.quarantine_bytes = 4 * MIB;
  if (lade_device_open(&device, NULL, &fixture->device))
    return -1;
  params.device = fixture->device;
  for (int i = 0; i < N_QUEUES; i++)
    if (lade_queue_create(fixture->device, LADE_QUEUE_COMPUTE, &fixture->queues[i]))
      return -1;
  if (lade_queue_create(fixture->device, LADE_QUEUE_SIGNAL, &fixture->gate))
    return -1;
  return lade_cache_create(&params, NULL, &fixture->cache);
}

static void cache_fixture_churn(struct cache_fixture *fixture)
{
  static const char *const places[] = {"model.py:17", "optimizer \"a\\b\" \xff.c:9", "no line", NULL};
  uint32_t random = 1;
  for (int i = 0; i < N_CALLS; i++) {
    random = random * 1664525 + 1013904223;
    void **block = &fixture->blocks[(random >> 8) % N_BLOCKS];
    uint64_t bytes = (uint64_t)1 << ((random >> 20) % 12 + 9);
    if (*block) {
      lade_cache_free(fixture->cache, *block, places[i % 4], NULL);
      *block = NULL;
    } else {
      *block = try_alloc(fixture, fixture->queues[i % N_QUEUES], bytes + random % bytes, i % 2 * fixture->tag,
                         places[i % 4]);
    }
  }
}

/* Make blocks that were freed and are still in use, because a closed gate holds their queue. */
static int cache_fixture_pend(struct cache_fixture *fixture, bool is_dry)
{
  for (int i = 0; i < 3; i++) {
    void *block = try_alloc(fixture, fixture->queues[0], 300000, fixture->tag, "pending.c:1");
    if (!block || lade_cache_record(fixture->cache, block, fixture->queues[1]))
      return -1;
    if (!is_dry && i == 0)
      lade_queue_wait(fixture->queues[1], fixture->gate, 1);
    lade_queue_launch(fixture->queues[1], &(struct lade_work){.fn = free}, NULL);
    lade_cache_free(fixture->cache, block, "pending.c:2", NULL);
  }
  return 0;
}

static void cache_fixture_close(struct cache_fixture *fixture)
{
  lade_queue_signal(fixture->gate, 1);
  lade_cache_destroy(fixture->cache);
  for (int i = 0; i < N_QUEUES; i++)
    lade_queue_destroy(fixture->queues[i]);
  lade_queue_destroy(fixture->gate);
  lade_device_close(fixture->device);
}

int main(int argc, char **argv)
{
  struct cache_fixture fixture = {0};
  struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
  struct lade_error error = {0};
  if (argc != 3)
    return fail("usage: cache-snapshot FILE host|dry|sanitize");
  if (cache_fixture_open(&fixture, argv[2]) || lade_cache_tag_add(fixture.cache, "activations", &fixture.tag) ||
      lade_cache_pool_create(fixture.cache, 3 * MIB, &fixture.pool) ||
      lade_cache_route(fixture.cache, fixture.queues[2], fixture.pool))
    return fail("cannot be set up");
  fixture.pooled = try_alloc(&fixture, fixture.queues[2], MIB, fixture.tag, "graph.c:4");
  lade_cache_route(fixture.cache, fixture.queues[2], NULL);
  cache_fixture_churn(&fixture);
  if (try_alloc(&fixture, fixture.queues[0], LIMIT_MIB * MIB, 0, "huge.c:1"))
    return fail("the limit holds nothing");
  lade_cache_trim(fixture.cache, 0);
  if (!fixture.pooled || cache_fixture_pend(&fixture, strcmp(argv[2], "dry") == 0))
    return fail("no room");
  if (lade_cache_write_snapshot(fixture.cache, argv[1], &error))
    return fail(error.text);
  lade_cache_get_stats(fixture.cache, &stats);
  printf("{\"allocated\": %llu, \"requested\": %llu, \"active\": %llu, \"reserved\": %llu, \"limit\": %llu, \"ooms\": "
         "%llu, \"live\": %llu}\n", (unsigned long long)stats.allocated_bytes.current,
         (unsigned long long)stats.requested_bytes.current, (unsigned long long)stats.active_bytes.current,
         (unsigned long long)stats.reserved_bytes.current, LIMIT_MIB * (unsigned long long)MIB,
         (unsigned long long)stats.num_ooms, (unsigned long long)stats.allocation.current);
  cache_fixture_close(&fixture);
  return 0;
}
