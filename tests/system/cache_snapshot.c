/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a snapshot of a cache in which everything occurs that a snapshot can show, and says on stdout what it must
 * say: live bytes, active bytes, reserved bytes, limit, refusals. snapshot.py reads both.
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

static int fail(const char *what)
{
  fprintf(stderr, "cache-snapshot: %s\n", what);
  return 1;
}

struct scene {
  lade_device *device;
  lade_cache *cache;
  lade_cache_pool *pool;
  lade_queue *queues[N_QUEUES], *gate;
  void *blocks[N_BLOCKS], *pooled;
  int tag;
};

static void *try_alloc(struct scene *scene, lade_queue *queue, uint64_t bytes, int tag, const char *place)
{
  const struct lade_cache_request request = {sizeof(request), bytes, queue, tag, place};
  void *address = NULL;
  return lade_cache_alloc(scene->cache, &request, NULL, &address) ? NULL : address;
}

static int scene_open(struct scene *scene, const char *kind)
{
  struct lade_device_params device = {sizeof(device), strcmp(kind, "dry") ? "host" : "dry", 2 * LIMIT_MIB * MIB};
  struct lade_cache_params params = {.struct_size = sizeof(params), .limit_bytes = LIMIT_MIB * MIB};
  params.flags = strcmp(kind, "sanitize") ? 0 : LADE_CACHE_SANITIZE;
  params.n_trace_entries = params.flags ? 4096 : 16384; /* all that happens, and less */
  params.quarantine_bytes = 4 * MIB;
  if (lade_device_open(&device, NULL, &scene->device))
    return -1;
  params.device = scene->device;
  for (int i = 0; i < N_QUEUES; i++)
    if (lade_queue_create(scene->device, LADE_QUEUE_COMPUTE, &scene->queues[i]))
      return -1;
  if (lade_queue_create(scene->device, LADE_QUEUE_SIGNAL, &scene->gate))
    return -1;
  return lade_cache_create(&params, NULL, &scene->cache);
}

static void scene_churn(struct scene *scene)
{
  static const char *const places[] = {"model.py:17", "optimizer \"a\\b\" \xff.c:9", "no line", NULL};
  uint32_t random = 1;
  for (int i = 0; i < N_CALLS; i++) {
    random = random * 1664525 + 1013904223;
    void **block = &scene->blocks[(random >> 8) % N_BLOCKS];
    uint64_t bytes = (uint64_t)1 << ((random >> 20) % 12 + 9);
    if (*block) {
      lade_cache_free(scene->cache, *block, places[i % 4], NULL);
      *block = NULL;
    } else {
      *block = try_alloc(scene, scene->queues[i % N_QUEUES], bytes + random % bytes, i % 2 * scene->tag, places[i % 4]);
    }
  }
}

/* Blocks that were freed and are still in use behind a gate that has not opened. */
static int scene_pend(struct scene *scene, bool is_dry)
{
  for (int i = 0; i < 3; i++) {
    void *block = try_alloc(scene, scene->queues[0], 300000, scene->tag, "pending.c:1");
    if (!block || lade_cache_record(scene->cache, block, scene->queues[1]))
      return -1;
    if (!is_dry && i == 0)
      lade_queue_wait(scene->queues[1], scene->gate, 1);
    lade_queue_launch(scene->queues[1], &(struct lade_work){.fn = free}, NULL);
    lade_cache_free(scene->cache, block, "pending.c:2", NULL);
  }
  return 0;
}

static void scene_close(struct scene *scene)
{
  lade_queue_signal(scene->gate, 1);
  lade_cache_destroy(scene->cache);
  for (int i = 0; i < N_QUEUES; i++)
    lade_queue_destroy(scene->queues[i]);
  lade_queue_destroy(scene->gate);
  lade_device_close(scene->device);
}

int main(int argc, char **argv)
{
  struct scene scene = {0};
  struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
  struct lade_error error = {0};
  if (argc != 3)
    return fail("usage: cache-snapshot FILE host|dry|sanitize");
  if (scene_open(&scene, argv[2]) || lade_cache_tag_add(scene.cache, "activations", &scene.tag) ||
      lade_cache_pool_create(scene.cache, 3 * MIB, &scene.pool) ||
      lade_cache_route(scene.cache, scene.queues[2], scene.pool))
    return fail("cannot be set up");
  scene.pooled = try_alloc(&scene, scene.queues[2], MIB, scene.tag, "graph.c:4");
  lade_cache_route(scene.cache, scene.queues[2], NULL);
  scene_churn(&scene);
  if (try_alloc(&scene, scene.queues[0], LIMIT_MIB * MIB, 0, "huge.c:1"))
    return fail("the limit holds nothing");
  lade_cache_trim(scene.cache, 0);
  if (!scene.pooled || scene_pend(&scene, strcmp(argv[2], "dry") == 0))
    return fail("no room");
  if (lade_cache_write_snapshot(scene.cache, argv[1], &error))
    return fail(error.text);
  lade_cache_get_stats(scene.cache, &stats);
  printf("{\"allocated\": %llu, \"requested\": %llu, \"active\": %llu, \"reserved\": %llu, \"limit\": %llu, \"ooms\": "
         "%llu, \"live\": %llu}\n", (unsigned long long)stats.allocated_bytes.current,
         (unsigned long long)stats.requested_bytes.current, (unsigned long long)stats.active_bytes.current,
         (unsigned long long)stats.reserved_bytes.current, LIMIT_MIB * (unsigned long long)MIB,
         (unsigned long long)stats.num_ooms, (unsigned long long)stats.allocation.current);
  scene_close(&scene);
  return 0;
}
