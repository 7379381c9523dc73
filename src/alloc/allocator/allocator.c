/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pluggable allocator: devices by number, streams by handle, and one table of live blocks for each device.
 *
 * An allocation looks for its stream's queue, asks the plan of replay, and then the cache.
 *
 * A lock for each device is enough: callers' own allocators have one too, and a planned allocation holds it for a
 * fraction of a microsecond. It also makes the device's streams submit from one thread at a time.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/allocator/allocator_internal.h"
#include "base/fork_guard.h"
#include "device/cuda.h"
#include "device/device.h"

struct lade_allocator {
  _Atomic int *is_alive; /* 0 in a child of fork */
  pthread_mutex_t lock;  /* guards the three fields below */
  uint64_t limit_bytes;
  bool is_used;          /* a device was opened with the limit */
  struct lade_error error;
  lade_device *const *given; /* of the parameters; NULL: GPUs by number */
  int n_given;
  struct allocator_device devices[LADE_ALLOCATOR_MAX_DEVICES];
};

/* ---- devices and streams ---- */

/* Keep @error as the newest failure, and return its code. */
static int fail(lade_allocator *allocator, const struct lade_error *error, struct lade_error *ret_error)
{
  pthread_mutex_lock(&allocator->lock);
  allocator->error = *error;
  pthread_mutex_unlock(&allocator->lock);
  if (ret_error)
    *ret_error = *error;
  return error->code;
}

static int alive_check(const lade_allocator *allocator, const char *call, struct lade_error *error)
{
  if (!allocator)
    return lade_error_set(error, -EINVAL, "%s: allocator is NULL", call);
  if (!atomic_load_explicit(allocator->is_alive, memory_order_relaxed))
    return lade_error_set(error, -EPERM, "%s: this process is a fork of the one that the allocator belongs to", call);
  return 0;
}

/* Return device @i, locked; it may not be open. NULL, with @error, if there is none. */
static struct allocator_device *device_lock(lade_allocator *allocator, int i, struct lade_error *error)
{
  int n = allocator->given ? allocator->n_given : LADE_ALLOCATOR_MAX_DEVICES;
  if (i < 0 || i >= n) {
    lade_error_set(error, -EINVAL, "allocator: there is no device %d among %d", i, n);
    return NULL;
  }
  pthread_mutex_lock(&allocator->devices[i].lock);
  return &allocator->devices[i];
}

static void device_close(struct allocator_device *at)
{
  if (at->is_own)
    lade_device_close(at->device);
  at->device = NULL;
  at->is_own = false;
}

/* Open device @i, if it is not. Lock held. */
static int device_open(lade_allocator *allocator, int i, struct lade_error *error)
{
  struct allocator_device *at = &allocator->devices[i];
  if (at->cache)
    return 0;
  at->device = allocator->given ? allocator->given[i] : NULL;
  at->is_own = !allocator->given;
  if (at->is_own) {
    char name[16];
    snprintf(name, sizeof(name), "cuda:%d", i);
    const struct lade_device_params params = {.struct_size = sizeof(params), .name = name};
    int status = lade_device_open(&params, error, &at->device);
    if (status)
      return status;
  }
  at->is_gpu = lade_cuda_is(at->device);
  pthread_mutex_lock(&allocator->lock);
  allocator->is_used = true;
  at->stats.limit_bytes = allocator->limit_bytes;
  pthread_mutex_unlock(&allocator->lock);
  const struct lade_cache_params params = {.struct_size = sizeof(params), .device = at->device,
                                           .limit_bytes = at->stats.limit_bytes, .n_trace_entries = 4096};
  int status = lade_cache_create(&params, error, &at->cache);
  if (status)
    device_close(at);
  return status;
}

/* ---- blocks ---- */

/* Allocate from the cache; if memory is short, once more without the arenas of a plan that are not in use. */
static int cache_take(struct allocator_device *at, uint64_t bytes, int stream, struct lade_error *error,
                      void **ret_address)
{
  int status = lade_allocator_take(at, bytes, stream, error, ret_address);
  if (status != -ENOMEM || !at->replay.n_places)
    return status;
  lade_step_replay_drop(at);
  at->stats.n_dropped++;
  return lade_allocator_take(at, bytes, stream, error, ret_address);
}

static int block_alloc(struct allocator_device *at, uint64_t bytes, int stream, struct lade_error *error,
                       void **ret_address)
{
  struct live_block block = {.bytes = bytes, .stream = stream, .arena = -1};
  void *address = NULL;
  if (!lade_live_blocks_reserve(&at->blocks))
    return lade_error_set(error, -ENOMEM, "allocator: no memory for the table of blocks");
  bool is_served = lade_step_replay_serve(at, bytes, stream, &address, &block.arena);
  int status = is_served ? 0 : cache_take(at, bytes, stream, error, &address);
  at->stats.n_ooms += status == -ENOMEM;
  if (status)
    return status;
  block.address = (uint64_t)(uintptr_t)address;
  block.step = at->replay.step;
  block.call = lade_step_replay_note_alloc(at, bytes, stream);
  lade_live_blocks_add(&at->blocks, &block);
  at->stats.n_allocs++;
  at->stats.live_bytes += bytes;
  at->stats.peak_bytes = LADE_MAX(at->stats.peak_bytes, at->stats.live_bytes);
  *ret_address = address;
  return 0;
}

/*
 * Order later users of a planned block after the work of @users. Later blocks of a plan's arena belong to one stream,
 * which waits on the device. A retired arena has none; its own free waits.
 */
static int arena_block_wait(struct allocator_device *at, const struct live_block *block, uint64_t users,
                            struct lade_error *error)
{
  struct replay_arena *arena = &at->replay.arenas.items[block->arena];
  const struct allocator_stream *own = &at->streams[block->stream];
  if (users && lade_allocator_is_capturing(at, users | UINT64_C(1) << block->stream))
    return lade_error_set(error, -EBUSY, "allocator: a stream that uses the planned block at %p is under capture",
                          (void *)(uintptr_t)block->address);
  for (int i = 0; i < at->n_streams; i++) {
    lade_queue *user = at->streams[i].queue;
    if (!(users >> i & 1) || !at->streams[i].is_used || !user)
      continue;
    uint64_t count = 0;
    lade_queue_record(user, &count);
    at->stats.n_events++;
    if (!arena->is_retired && own->is_used && own->queue)
      lade_queue_wait(own->queue, user, count);
    int status = arena->is_retired ? lade_cache_record(at->cache, arena->address, user) : 0;
    if (status)
      return lade_error_set(error, status, "allocator: a use cannot be recorded (%s)", strerror(-status));
  }
  return 0;
}

static int block_free(struct allocator_device *at, struct live_block *block, int stream, struct lade_error *error)
{
  uint64_t users = block->users;
  int status = 0;
  if (stream != block->stream)
    users |= UINT64_C(1) << stream;
  users &= ~(UINT64_C(1) << block->stream);
  if (block->arena >= 0) {
    status = arena_block_wait(at, block, users, error);
    if (!status)
      lade_step_replay_release(at, block, error); /* an arena that cannot be freed now is freed later */
  } else {
    void *address = (void *)(uintptr_t)block->address;
    if (stream != block->stream && at->streams[stream].queue)
      status = lade_cache_record(at->cache, address, at->streams[stream].queue);
    if (status)
      lade_error_set(error, status, "allocator: the free's stream cannot be recorded (%s)", strerror(-status));
    else
      status = lade_allocator_defer(at, address, users | UINT64_C(1) << block->stream, error);
  }
  if (status)
    return status;
  lade_step_replay_note_free(at, block);
  at->stats.n_frees++;
  at->stats.live_bytes -= block->bytes;
  lade_live_blocks_remove(&at->blocks, block);
  return 0;
}

static int block_record(struct allocator_device *at, struct live_block *block, void *stream, struct lade_error *error)
{
  int user = lade_allocator_stream_get(at, stream, error);
  if (user < 0 || user == block->stream)
    return LADE_MIN(user, 0);
  lade_queue *queue = at->streams[user].queue;
  int status = block->arena < 0 && queue ? lade_cache_record(at->cache, (void *)(uintptr_t)block->address, queue) : 0;
  if (status)
    return lade_error_set(error, status, "allocator: a use cannot be recorded (%s)", strerror(-status));
  block->users |= UINT64_C(1) << user;
  lade_step_replay_note_use(at, block);
  return 0;
}

/* ---- create and destroy ---- */

static int params_check(const struct lade_allocator_params *params, struct lade_error *error)
{
  bool is_given = params->devices != NULL;
  if (params->n_devices < 0 || params->n_devices > LADE_ALLOCATOR_MAX_DEVICES || is_given != (params->n_devices > 0))
    return lade_error_set(error, -EINVAL, "lade_allocator_params: %d devices: at most %d, or none and devices NULL",
                          params->n_devices, LADE_ALLOCATOR_MAX_DEVICES);
  for (int i = 0; i < params->n_devices; i++)
    if (!params->devices[i])
      return lade_error_set(error, -EINVAL, "lade_allocator_params: device %d is NULL", i);
  return 0;
}

static int given_copy(lade_allocator *allocator, const struct lade_allocator_params *params)
{
  if (!params->n_devices)
    return 0;
  lade_device **given = calloc((size_t)params->n_devices, sizeof(lade_device *));
  if (!given)
    return -ENOMEM;
  memcpy(given, params->devices, (size_t)params->n_devices * sizeof(lade_device *));
  allocator->given = given;
  allocator->n_given = params->n_devices;
  return 0;
}

int lade_allocator_create(const struct lade_allocator_params *params, struct lade_error *error,
                          lade_allocator **ret_allocator)
{
  struct lade_allocator_params own = {.struct_size = sizeof(own)};
  if (!ret_allocator)
    return lade_error_set(error, -EINVAL, "lade_allocator_create: ret_allocator is NULL");
  int status = params ? lade_struct_read("lade_allocator_params", params, &own, sizeof(own), error) : 0;
  if (!status)
    status = params_check(&own, error);
  if (status)
    return status;
  lade_allocator *allocator = calloc(1, sizeof(*allocator));
  if (!allocator)
    return lade_error_set(error, -ENOMEM, "lade_allocator_create: out of memory");
  allocator->limit_bytes = own.limit_bytes;
  allocator->is_alive = lade_fork_guard_create();
  if (!allocator->is_alive || given_copy(allocator, &own)) {
    lade_fork_guard_destroy(allocator->is_alive);
    free(allocator);
    return lade_error_set(error, -ENOMEM, "lade_allocator_create: out of memory");
  }
  pthread_mutex_init(&allocator->lock, NULL);
  for (int i = 0; i < LADE_ALLOCATOR_MAX_DEVICES; i++)
    pthread_mutex_init(&allocator->devices[i].lock, NULL);
  *ret_allocator = allocator;
  return 0;
}

/* Queues and devices of a fork's parent have no threads here: a child leaves them. */
static void device_finish(struct allocator_device *at, bool is_child)
{
  if (!is_child) {
    lade_allocator_flush(at);
    lade_allocator_events_record(at, UINT64_MAX); /* the cache waits for events, and planned blocks have none yet */
  }
  lade_cache_destroy(at->cache);
  for (int i = 0; i < at->n_streams && !is_child; i++)
    if (at->streams[i].is_used && at->streams[i].is_own)
      lade_queue_destroy(at->streams[i].queue);
  if (!is_child)
    device_close(at);
  lade_live_blocks_finish(&at->blocks);
  LADE_ARRAY_FREE(&at->pending);
  lade_step_replay_finish(&at->replay);
}

void lade_allocator_destroy(lade_allocator *allocator)
{
  if (!allocator)
    return;
  bool is_child = !atomic_load(allocator->is_alive);
  for (int i = 0; i < LADE_ALLOCATOR_MAX_DEVICES; i++) {
    device_finish(&allocator->devices[i], is_child);
    if (!is_child)
      pthread_mutex_destroy(&allocator->devices[i].lock);
  }
  if (!is_child)
    pthread_mutex_destroy(&allocator->lock);
  lade_fork_guard_destroy(allocator->is_alive);
  free((void *)allocator->given);
  free(allocator);
}

int lade_allocator_set_limit(lade_allocator *allocator, uint64_t limit_bytes, struct lade_error *error)
{
  int status = alive_check(allocator, "lade_allocator_set_limit", error);
  if (status)
    return status;
  pthread_mutex_lock(&allocator->lock);
  if (allocator->is_used)
    status = lade_error_set(error, -EBUSY, "allocator: the limit must be set before the first allocation");
  else
    allocator->limit_bytes = limit_bytes;
  pthread_mutex_unlock(&allocator->lock);
  return status;
}

/* ---- calls ---- */

int lade_allocator_alloc(lade_allocator *allocator, uint64_t bytes, int device, void *stream, struct lade_error *error,
                         void **ret_address)
{
  struct lade_error own = {0};
  int status = alive_check(allocator, "lade_allocator_alloc", error);
  if (status)
    return status;
  if (!ret_address || bytes > INT64_MAX) {
    lade_error_set(&own, -EINVAL, "lade_allocator_alloc: %lld bytes, or ret_address is NULL", (long long)bytes);
    return fail(allocator, &own, error);
  }
  struct allocator_device *at = device_lock(allocator, device, &own);
  if (!at)
    return fail(allocator, &own, error);
  void *address = NULL;
  status = device_open(allocator, device, &own);
  int at_stream = status || !bytes ? status : lade_allocator_stream_get(at, stream, &own);
  status = LADE_MIN(at_stream, 0);
  if (!status && bytes)
    status = block_alloc(at, bytes, at_stream, &own, &address);
  pthread_mutex_unlock(&at->lock);
  if (status)
    return fail(allocator, &own, error);
  *ret_address = address;
  return 0;
}

int lade_allocator_free(lade_allocator *allocator, void *address, int device, void *stream, struct lade_error *error)
{
  struct lade_error own = {0};
  int status = alive_check(allocator, "lade_allocator_free", error);
  if (status || !address)
    return status;
  struct allocator_device *at = device_lock(allocator, device, &own);
  if (!at)
    return fail(allocator, &own, error);
  struct live_block *block = lade_live_blocks_find(&at->blocks, (uint64_t)(uintptr_t)address);
  if (!block)
    status = lade_error_set(&own, -EINVAL, "lade_allocator_free: %p is no live block of device %d", address, device);
  int at_stream = status ? status : lade_allocator_stream_get(at, stream, &own);
  status = at_stream < 0 ? at_stream : block_free(at, block, at_stream, &own);
  pthread_mutex_unlock(&at->lock);
  return status ? fail(allocator, &own, error) : 0;
}

int lade_allocator_record(lade_allocator *allocator, void *address, void *stream, struct lade_error *error)
{
  struct lade_error own = {0};
  int status = alive_check(allocator, "lade_allocator_record", error);
  if (status)
    return status;
  for (int i = 0; i < LADE_ALLOCATOR_MAX_DEVICES; i++) {
    struct allocator_device *at = &allocator->devices[i];
    pthread_mutex_lock(&at->lock);
    struct live_block *block = lade_live_blocks_find(&at->blocks, (uint64_t)(uintptr_t)address);
    status = block ? block_record(at, block, stream, &own) : 0;
    pthread_mutex_unlock(&at->lock);
    if (block)
      return status ? fail(allocator, &own, error) : 0;
  }
  lade_error_set(&own, -EINVAL, "lade_allocator_record: %p is no live block", address);
  return fail(allocator, &own, error);
}

/* Lock held. */
static void stream_forget(struct allocator_device *at, int i)
{
  struct allocator_stream *stream = &at->streams[i];
  lade_allocator_flush(at);
  lade_step_replay_drop(at); /* an arena of this stream would outlive its order */
  lade_allocator_flush(at);
  lade_allocator_events_record(at, UINT64_C(1) << i);
  lade_cache_forget(at->cache, stream->queue);
  if (stream->is_own)
    lade_queue_destroy(stream->queue);
  *stream = (struct allocator_stream){0};
}

int lade_allocator_forget(lade_allocator *allocator, int device, void *stream)
{
  int status = alive_check(allocator, "lade_allocator_forget", NULL);
  struct allocator_device *at = status ? NULL : device_lock(allocator, device, NULL);
  if (!at)
    return status ? status : -EINVAL;
  int i = lade_allocator_stream_find(at, stream);
  if (i >= 0)
    stream_forget(at, i);
  pthread_mutex_unlock(&at->lock);
  return 0;
}

int lade_allocator_trim(lade_allocator *allocator, uint64_t keep_bytes)
{
  int status = alive_check(allocator, "lade_allocator_trim", NULL);
  for (int i = 0; i < LADE_ALLOCATOR_MAX_DEVICES && !status; i++) {
    struct allocator_device *at = &allocator->devices[i];
    pthread_mutex_lock(&at->lock);
    if (at->cache) {
      lade_step_replay_drop(at);
      lade_allocator_flush(at);
      lade_allocator_sync(at);
      status = lade_cache_trim(at->cache, keep_bytes);
    }
    pthread_mutex_unlock(&at->lock);
  }
  return status;
}

int lade_allocator_step(lade_allocator *allocator, int device, struct lade_error *error)
{
  struct lade_error own = {0};
  int status = alive_check(allocator, "lade_allocator_step", error);
  if (status)
    return status;
  struct allocator_device *at = device_lock(allocator, device, &own);
  if (!at)
    return fail(allocator, &own, error);
  status = device_open(allocator, device, &own);
  if (!status)
    status = lade_step_replay_step(at, &own);
  pthread_mutex_unlock(&at->lock);
  return status ? fail(allocator, &own, error) : 0;
}

/* ---- statistics ---- */

int lade_allocator_get_stats(lade_allocator *allocator, int device, struct lade_allocator_stats *ret_stats,
                             struct lade_error *error)
{
  int status = alive_check(allocator, "lade_allocator_get_stats", error);
  struct allocator_device *at = status ? NULL : device_lock(allocator, device, error);
  if (!at)
    return status ? status : -EINVAL;
  struct lade_allocator_stats stats = at->stats;
  struct lade_cache_stats cache = {.struct_size = sizeof(cache)};
  if (at->cache)
    status = lade_cache_get_stats(at->cache, &cache);
  stats.reserved_bytes = cache.reserved_bytes.current;
  stats.reserved_peak_bytes = cache.reserved_bytes.peak;
  for (int i = 0; i < at->n_streams; i++)
    stats.n_streams += at->streams[i].is_used;
  pthread_mutex_unlock(&at->lock);
  return status ? status : lade_struct_fill("lade_allocator_stats", ret_stats, &stats, sizeof(stats), error);
}

lade_cache *lade_allocator_get_cache(lade_allocator *allocator, int device)
{
  struct allocator_device *at =
      alive_check(allocator, "", NULL) ? NULL : device_lock(allocator, device, NULL);
  lade_cache *cache = at ? at->cache : NULL;
  if (at)
    pthread_mutex_unlock(&at->lock);
  return cache;
}

void lade_allocator_get_error(lade_allocator *allocator, struct lade_error *ret_error)
{
  if (alive_check(allocator, "lade_allocator_get_error", ret_error))
    return;
  pthread_mutex_lock(&allocator->lock);
  *ret_error = allocator->error;
  pthread_mutex_unlock(&allocator->lock);
}
