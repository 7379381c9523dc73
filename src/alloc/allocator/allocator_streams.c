/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams of a device of the pluggable allocator, and its frees that wait for events on them.
 *
 * The cache orders blocks by counts of submitted work, and knows nothing of kernels that the caller puts on its own
 * streams. So each free needs an event after them. Recording one takes two driver calls and wakes a thread, and most
 * frees come in runs. They wait in a list, which the next allocation empties after one event for each stream of the
 * list. A later event covers more work than the free needs, so it is always right. No memory is held longer than until
 * it could be used again.
 *
 * No event can be recorded on a stream under capture. Then the list waits on, and allocations from the cache are
 * refused for that stream. Allocations that a plan serves make no driver call, so a capture may contain them.
 */
#include <errno.h>
#include <string.h>

#include "alloc/allocator/allocator_internal.h"
#include "device/cuda.h"
#include "device/device.h"

#define LEGACY_STREAM ((void *)1) /* CU_STREAM_LEGACY: a handle of the stream that NULL means */

static void *handle_of(const struct allocator_device *at, void *stream)
{
  return at->is_gpu && !stream ? LEGACY_STREAM : stream;
}

int lade_allocator_stream_find(const struct allocator_device *at, void *stream)
{
  const void *handle = handle_of(at, stream);
  for (int i = 0; i < at->n_streams; i++)
    if (at->streams[i].is_used && at->streams[i].handle == handle)
      return i;
  return -ENOENT;
}

int lade_allocator_stream_get(struct allocator_device *at, void *stream, struct lade_error *error)
{
  void *handle = handle_of(at, stream);
  int i = lade_allocator_stream_find(at, stream), vacant = 0;
  if (i >= 0)
    return i;
  while (vacant < at->n_streams && at->streams[vacant].is_used)
    vacant++;
  if (vacant == LADE_CACHE_MAX_QUEUES)
    return lade_error_set(error, -ENOSPC, "allocator: more than %d streams of one device; lade_allocator_forget those "
                          "that are over", LADE_CACHE_MAX_QUEUES);
  struct allocator_stream made = {.handle = handle, .queue = at->is_gpu ? NULL : stream, .is_used = true};
  if (at->is_gpu) {
    int status = lade_queue_adopt(at->device, LADE_QUEUE_COMPUTE, handle, &made.queue);
    if (status)
      return lade_error_set(error, status, "allocator: no queue for stream %p (%s)", stream, strerror(-status));
    made.is_own = true;
  } else if (stream && lade_queue_get_device(stream) != at->device) {
    return lade_error_set(error, -EINVAL, "allocator: the stream is a queue of another device");
  }
  at->streams[vacant] = made;
  at->n_streams = LADE_MAX(at->n_streams, vacant + 1);
  return vacant;
}

bool lade_allocator_is_capturing(const struct allocator_device *at, uint64_t streams)
{
  for (int i = 0; i < at->n_streams && at->is_gpu; i++)
    if (streams >> i & 1 && at->streams[i].is_used && lade_cuda_queue_is_capturing(at->streams[i].queue))
      return true;
  return false;
}

void lade_allocator_events_record(struct allocator_device *at, uint64_t streams)
{
  uint64_t count = 0;
  for (int i = 0; i < at->n_streams; i++)
    if (streams >> i & 1 && at->streams[i].is_used && at->streams[i].queue) {
      lade_queue_record(at->streams[i].queue, &count);
      at->stats.n_events++;
    }
}

/* ---- the cache ---- */

void lade_allocator_flush(struct allocator_device *at)
{
  uint64_t streams = 0;
  for (int i = 0; i < at->pending.n; i++)
    streams |= at->pending.items[i].streams;
  if (!at->pending.n || lade_allocator_is_capturing(at, streams))
    return;
  lade_allocator_events_record(at, streams);
  for (int i = 0; i < at->pending.n; i++) {
    int status = lade_cache_free(at->cache, at->pending.items[i].address, NULL, NULL);
    LADE_ASSERT(!status); /* the address was in the table of live blocks */
    (void)status;
  }
  at->pending.n = 0;
}

int lade_allocator_defer(struct allocator_device *at, void *address, uint64_t streams, struct lade_error *error)
{
  const struct allocator_pending pending = {address, streams};
  if (LADE_PUSH(&at->pending, pending))
    return 0;
  return lade_error_set(error, -ENOMEM, "allocator: no memory to free a block");
}

int lade_allocator_take(struct allocator_device *at, uint64_t bytes, int stream, struct lade_error *error,
                        void **ret_address)
{
  const struct lade_cache_request request = {.struct_size = sizeof(request), .bytes = bytes,
                                             .queue = at->streams[stream].queue};
  if (lade_allocator_is_capturing(at, UINT64_C(1) << stream))
    return lade_error_set(error, -EBUSY, "allocator: stream %p is under capture, which may not contain an allocation",
                          at->streams[stream].handle);
  lade_allocator_flush(at);
  return lade_cache_alloc(at->cache, &request, error, ret_address);
}

void lade_allocator_sync(struct allocator_device *at)
{
  for (int i = 0; i < at->n_streams; i++) {
    lade_queue *queue = at->streams[i].is_used ? at->streams[i].queue : NULL;
    if (queue && !lade_allocator_is_capturing(at, UINT64_C(1) << i))
      lade_queue_sync(queue, lade_queue_submitted(queue));
  }
}
