/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common part of every device: arguments, bytes, ranges, injected faults.
 *
 * Bytes. Creating a chunk first takes its bytes from the capacity in one compare-and-swap, then calls the
 * implementation, and returns the bytes if that refuses. So two threads together never exceed the capacity, and the
 * peak counts only chunks that were created.
 *
 * Ranges. They are an array sorted by address, and each has the sorted array of its mapped chunks. Finding is a binary
 * search, and mapping from low to high addresses appends. One mutex guards both. The calls that change memory take it,
 * which are system calls anyway; queues never do. Rejected: a table with an entry per granule of chunk size. It costs 8
 * bytes for every 2 MiB of address space, mapped or not, and a dry device reserves terabytes.
 *
 * Every array grows before any other change, so that a failure leaves no partial change.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device_ops.h"

#define COPY_NS_MAX 100000000000000ull /* a day and more; 90,000 of them in a row are below 2^63 */

/* Return the index of the first item past @address in the array of ranges. */
static int range_upper(const lade_device *device, uint64_t address)
{
  int low = 0, high = device->ranges.n;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (device->ranges.items[middle].address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static int chunk_upper(const struct lade_range *range, uint64_t address)
{
  int low = 0, high = range->chunks.n;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (range->chunks.items[middle]->address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Return the range that contains all of @bytes at @address, or NULL. */
static struct lade_range *range_find(const lade_device *device, uint64_t address, uint64_t bytes)
{
  int i = range_upper(device, address) - 1;
  if (i < 0)
    return NULL;
  struct lade_range *range = &device->ranges.items[i];
  uint64_t offset = address - range->address;
  return offset < range->bytes && bytes <= range->bytes - offset ? range : NULL;
}

/* True if the span is whole chunks at a chunk's boundary, and does not pass the end of the address space. */
static bool span_is_whole(const lade_device *device, uint64_t address, uint64_t bytes)
{
  return bytes > 0 && bytes % device->chunk_bytes == 0 && address % device->chunk_bytes == 0 &&
         address <= UINT64_MAX - bytes;
}

/* Reserve capacity for one more item, as one heap call that a test can make fail. */
static bool array_prepare(lade_device *device, void **items, int *capacity, int n, size_t item_bytes)
{
  if (n + 1 <= *capacity)
    return true;
  return !lade_fault(device->faults, LADE_FAULT_HEAP) && lade_array_reserve(items, capacity, n + 1, item_bytes);
}

static bool bytes_take(lade_device *device, uint64_t bytes)
{
  uint64_t created = atomic_load(&device->created_bytes);
  do {
    if (bytes > device->capacity_bytes - created)
      return false;
  } while (!atomic_compare_exchange_weak(&device->created_bytes, &created, created + bytes));
  return true;
}

static void bytes_give_back(lade_device *device, uint64_t bytes)
{
  uint64_t before = atomic_fetch_sub(&device->created_bytes, bytes);
  LADE_ASSERT(before >= bytes);
  (void)before;
}

static void peak_raise(lade_device *device)
{
  uint64_t created = atomic_load(&device->created_bytes), peak = atomic_load(&device->peak_bytes);
  while (peak < created && !atomic_compare_exchange_weak(&device->peak_bytes, &peak, created))
    ;
}

void lade_device_init(lade_device *device, const struct lade_device_ops *ops, struct lade_faults *faults)
{
  device->ops = ops;
  device->faults = faults;
  pthread_mutex_init(&device->mutex, NULL);
}

void lade_device_finish(lade_device *device)
{
  LADE_ASSERT(device->ranges.n == 0);
  LADE_ARRAY_FREE(&device->ranges);
  pthread_mutex_destroy(&device->mutex);
}

void lade_device_fail(lade_device *device, int code)
{
  int none = 0;
  LADE_ASSERT(code < 0);
  atomic_compare_exchange_strong(&device->status, &none, code);
}

int64_t lade_link_ns(const struct lade_link *link, uint64_t bytes)
{
  if (!link->bytes_per_s)
    return (int64_t)LADE_MIN(link->latency_ns, COPY_NS_MAX);
  unsigned __int128 ns = (unsigned __int128)bytes * 1000000000u / link->bytes_per_s + link->latency_ns;
  return (int64_t)LADE_MIN(ns, (unsigned __int128)COPY_NS_MAX);
}

void lade_device_close(lade_device *device)
{
  if (!device)
    return;
  LADE_ASSERT(atomic_load(&device->n_queues) == 0);
  LADE_ASSERT(atomic_load(&device->created_bytes) == 0);
  device->ops->close(device);
}

void lade_device_get_info(const lade_device *device, struct lade_device_info *ret_info)
{
  if (!ret_info)
    return;
  if (!device) {
    *ret_info = (struct lade_device_info){0};
    return;
  }
  *ret_info = (struct lade_device_info){
      .chunk_bytes = device->chunk_bytes,
      .capacity_bytes = device->capacity_bytes,
      .created_bytes = atomic_load(&device->created_bytes),
      .peak_bytes = atomic_load(&device->peak_bytes),
      .is_unified = device->is_unified,
      .is_dry = device->is_dry,
  };
  memcpy(ret_info->name, device->name, sizeof(ret_info->name));
  memcpy(ret_info->pci, device->pci, sizeof(ret_info->pci));
}

int lade_device_limit(lade_device *device, uint64_t bytes)
{
  bytes -= bytes % device->chunk_bytes;
  if (atomic_load(&device->created_bytes) > bytes)
    return -EBUSY;
  device->capacity_bytes = LADE_MIN(device->capacity_bytes, bytes);
  return 0;
}

void lade_device_peak_reset(lade_device *device)
{
  atomic_store(&device->peak_bytes, 0);
  peak_raise(device);
}

int lade_device_status(const lade_device *device)
{
  if (!device)
    return -EINVAL;
  return atomic_load(&device->status);
}

/* ---- memory ---- */

static int range_add(lade_device *device, uint64_t bytes, uint64_t *ret_address)
{
  if (!array_prepare(device, (void **)&device->ranges.items, &device->ranges.capacity, device->ranges.n,
                     sizeof(struct lade_range)))
    return -ENOMEM;
  uint64_t address = 0;
  int error = device->ops->reserve(device, bytes, &address);
  if (error)
    return error;
  int i = range_upper(device, address);
  memmove(&device->ranges.items[i + 1], &device->ranges.items[i],
          (size_t)(device->ranges.n - i) * sizeof(struct lade_range));
  device->ranges.items[i] = (struct lade_range){.address = address, .bytes = bytes};
  device->ranges.n++;
  *ret_address = address;
  return 0;
}

int lade_device_reserve(lade_device *device, uint64_t bytes, uint64_t *ret_address)
{
  if (!span_is_whole(device, 0, bytes))
    return -EINVAL;
  int error = lade_fault(device->faults, LADE_FAULT_RESERVE);
  if (error)
    return error;
  pthread_mutex_lock(&device->mutex);
  error = range_add(device, bytes, ret_address);
  pthread_mutex_unlock(&device->mutex);
  return error;
}

void lade_device_release(lade_device *device, uint64_t address, uint64_t bytes)
{
  pthread_mutex_lock(&device->mutex);
  struct lade_range *range = range_find(device, address, bytes);
  LADE_ASSERT(range && range->address == address && range->bytes == bytes && range->chunks.n == 0);
  device->ops->release(device, address, bytes);
  LADE_ARRAY_FREE(&range->chunks);
  struct lade_range *end = device->ranges.items + device->ranges.n;
  memmove(range, range + 1, (size_t)(end - range - 1) * sizeof(*range));
  device->ranges.n--;
  pthread_mutex_unlock(&device->mutex);
}

static int chunk_create(lade_device *device, uint64_t bytes, bool is_shared, lade_chunk **ret_chunk)
{
  if (!span_is_whole(device, 0, bytes))
    return -EINVAL;
  if (is_shared && !device->ops->chunk_export)
    return -ENOTSUP;
  int error = lade_fault(device->faults, LADE_FAULT_CHUNK_CREATE);
  if (error)
    return error;
  struct lade_chunk *chunk = lade_fault_calloc(device->faults, 1, sizeof(*chunk));
  if (!chunk)
    return -ENOMEM;
  chunk->bytes = bytes;
  chunk->is_shared = is_shared;
  if (!bytes_take(device, bytes)) {
    free(chunk);
    return -ENOMEM;
  }
  error = device->ops->chunk_create(device, chunk);
  if (error) {
    bytes_give_back(device, bytes);
    free(chunk);
    return error;
  }
  peak_raise(device);
  *ret_chunk = chunk;
  return 0;
}

int lade_device_chunk_create(lade_device *device, uint64_t bytes, lade_chunk **ret_chunk)
{
  return chunk_create(device, bytes, false, ret_chunk);
}

int lade_device_chunk_create_shared(lade_device *device, uint64_t bytes, lade_chunk **ret_chunk)
{
  return chunk_create(device, bytes, true, ret_chunk);
}

int lade_device_chunk_export(lade_device *device, const lade_chunk *chunk, int *ret_descriptor)
{
  if (!device->ops->chunk_export)
    return -ENOTSUP;
  if (!chunk->is_shared)
    return -EINVAL;
  pthread_mutex_lock(&device->mutex); /* because the first mapping of a chunk may clear it at the same time */
  int error = device->ops->chunk_export(device, chunk, ret_descriptor);
  pthread_mutex_unlock(&device->mutex);
  return error;
}

int lade_device_chunk_import(lade_device *device, int descriptor, uint64_t bytes, lade_chunk **ret_chunk)
{
  if (!device->ops->chunk_import)
    return -ENOTSUP;
  if (!span_is_whole(device, 0, bytes))
    return -EINVAL;
  int error = lade_fault(device->faults, LADE_FAULT_CHUNK_CREATE);
  if (error)
    return error;
  struct lade_chunk *chunk = lade_fault_calloc(device->faults, 1, sizeof(*chunk));
  if (!chunk)
    return -ENOMEM;
  *chunk = (struct lade_chunk){.bytes = bytes, .is_shared = true, .is_imported = true};
  error = device->ops->chunk_import(device, chunk, descriptor);
  if (error) {
    free(chunk);
    return error;
  }
  *ret_chunk = chunk;
  return 0;
}

/* Remove @chunk from the list of the range that it is mapped in. Mutex held. */
static void chunk_forget(lade_device *device, struct lade_chunk *chunk)
{
  struct lade_range *range = range_find(device, chunk->address, chunk->bytes);
  LADE_ASSERT(range);
  int i = chunk_upper(range, chunk->address) - 1;
  LADE_ASSERT(i >= 0 && range->chunks.items[i] == chunk);
  memmove(&range->chunks.items[i], &range->chunks.items[i + 1],
          (size_t)(range->chunks.n - i - 1) * sizeof(range->chunks.items[0]));
  range->chunks.n--;
}

void lade_device_chunk_release(lade_device *device, lade_chunk *chunk)
{
  if (!chunk)
    return;
  pthread_mutex_lock(&device->mutex);
  if (chunk->address)
    chunk_forget(device, chunk);
  device->ops->chunk_release(device, chunk);
  pthread_mutex_unlock(&device->mutex);
  if (!chunk->is_imported)
    bytes_give_back(device, chunk->bytes);
  free(chunk);
}

static int chunk_map(lade_device *device, uint64_t address, struct lade_chunk *chunk)
{
  struct lade_range *range = range_find(device, address, chunk->bytes);
  if (!range)
    return -EINVAL;
  int i = chunk_upper(range, address), n = range->chunks.n;
  struct lade_chunk *before = i > 0 ? range->chunks.items[i - 1] : NULL;
  struct lade_chunk *after = i < n ? range->chunks.items[i] : NULL;
  if (chunk->address || (before && before->address + before->bytes > address) ||
      (after && address + chunk->bytes > after->address))
    return -EBUSY;
  if (!array_prepare(device, (void **)&range->chunks.items, &range->chunks.capacity, n, sizeof(chunk)))
    return -ENOMEM;
  int error = device->ops->map(device, address, chunk);
  if (error)
    return error;
  chunk->address = address;
  memmove(&range->chunks.items[i + 1], &range->chunks.items[i], (size_t)(n - i) * sizeof(chunk));
  range->chunks.items[i] = chunk;
  range->chunks.n++;
  return 0;
}

int lade_device_map(lade_device *device, uint64_t address, lade_chunk *chunk)
{
  if (!span_is_whole(device, address, chunk->bytes))
    return -EINVAL;
  int error = lade_fault(device->faults, LADE_FAULT_MAP);
  if (error)
    return error;
  pthread_mutex_lock(&device->mutex);
  error = chunk_map(device, address, chunk);
  pthread_mutex_unlock(&device->mutex);
  return error;
}

/* Unmap chunks @first to @end-1 of @range, stopping at the first that the machine refuses. */
static int chunks_unmap(lade_device *device, struct lade_range *range, int first, int end)
{
  int error = 0, i = first;
  for (; i < end; i++) {
    error = device->ops->unmap(device, range->chunks.items[i]);
    if (error)
      break;
    range->chunks.items[i]->address = 0;
  }
  if (i > first) {
    memmove(&range->chunks.items[first], &range->chunks.items[i],
            (size_t)(range->chunks.n - i) * sizeof(range->chunks.items[0]));
    range->chunks.n -= i - first;
  }
  return error;
}

static int range_unmap(lade_device *device, uint64_t address, uint64_t bytes)
{
  struct lade_range *range = range_find(device, address, bytes);
  if (!range)
    return -EINVAL;
  uint64_t stop = address + bytes;
  int first = chunk_upper(range, address - 1), end = chunk_upper(range, stop - 1);
  struct lade_chunk *before = first > 0 ? range->chunks.items[first - 1] : NULL;
  struct lade_chunk *last = end > first ? range->chunks.items[end - 1] : NULL;
  if ((before && before->address + before->bytes > address) || (last && last->address + last->bytes > stop))
    return -EINVAL;
  return chunks_unmap(device, range, first, end);
}

int lade_device_unmap(lade_device *device, uint64_t address, uint64_t bytes)
{
  if (!span_is_whole(device, address, bytes))
    return -EINVAL;
  int error = lade_fault(device->faults, LADE_FAULT_UNMAP);
  if (error)
    return error;
  pthread_mutex_lock(&device->mutex);
  error = range_unmap(device, address, bytes);
  pthread_mutex_unlock(&device->mutex);
  return error;
}

static bool span_is_pages(const void *at, uint64_t bytes)
{
  uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
  return bytes > 0 && bytes % page_bytes == 0 && (uintptr_t)at % page_bytes == 0;
}

int lade_device_pin(lade_device *device, void *at, uint64_t bytes)
{
  if (!span_is_pages(at, bytes))
    return -EINVAL;
  return device->ops->pin ? device->ops->pin(device, at, bytes) : 0;
}

void lade_device_unpin(lade_device *device, void *at, uint64_t bytes)
{
  LADE_ASSERT(span_is_pages(at, bytes));
  if (device->ops->unpin)
    device->ops->unpin(device, at, bytes);
}

bool lade_device_gives_host(const lade_device *device)
{
  return device->ops->host_create;
}

int lade_device_host_create(lade_device *device, uint64_t bytes, uint64_t limit_bytes, int numa_node,
                            struct lade_host_chunk *ret_chunk)
{
  if (!bytes || numa_node < 0)
    return -EINVAL;
  if (!device->ops->host_create)
    return -ENOTSUP;
  int error = lade_fault(device->faults, LADE_FAULT_CHUNK_CREATE);
  struct lade_host_chunk chunk = {.bytes = bytes};
  if (!error)
    error = device->ops->host_create(device, &chunk, limit_bytes, numa_node);
  if (!error)
    *ret_chunk = chunk;
  return error;
}

void lade_device_host_release(lade_device *device, struct lade_host_chunk *chunk)
{
  device->ops->host_release(device, chunk);
  *chunk = (struct lade_host_chunk){0};
}

/* ---- queues ---- */

/* Make -EINVAL stick to the device of @queue, which may be NULL. */
static void submission_refuse(const lade_queue *queue)
{
  if (queue)
    lade_device_fail(queue->device, -EINVAL);
}

int lade_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue)
{
  if (!device || !ret_queue)
    return -EINVAL;
  if (role < 0 || role >= LADE_N_QUEUE_ROLES)
    return -EINVAL;
  int error = lade_fault(device->faults, LADE_FAULT_QUEUE);
  if (error)
    return error;
  error = device->ops->queue_create(device, role, ret_queue);
  if (!error)
    atomic_fetch_add(&device->n_queues, 1);
  return error;
}

void lade_queue_destroy(lade_queue *queue)
{
  if (!queue)
    return;
  lade_device *device = queue->device;
  device->ops->queue_destroy(queue);
  atomic_fetch_sub(&device->n_queues, 1);
}

void lade_queue_launch(lade_queue *queue, const struct lade_work *work, uint64_t *ret_count)
{
  uint64_t count = 0;
  const bool is_whole = queue && queue->role != LADE_QUEUE_SIGNAL && work && (work->fn || queue->device->is_dry) &&
                        work->predicted_ns >= 0;
  if (is_whole)
    count = queue->device->ops->launch(queue, work);
  else
    submission_refuse(queue);
  if (ret_count)
    *ret_count = count;
}

void lade_queue_copy(lade_queue *queue, const struct lade_copy *copy, uint64_t *ret_count)
{
  uint64_t count = 0;
  const bool is_whole = queue && queue->role != LADE_QUEUE_SIGNAL && copy && copy->predicted_ns >= 0 &&
                        (!copy->bytes || (copy->dst && copy->src));
  if (is_whole)
    count = queue->device->ops->copy(queue, copy);
  else
    submission_refuse(queue);
  if (ret_count)
    *ret_count = count;
}

void lade_queue_wait(lade_queue *queue, lade_queue *other, uint64_t count)
{
  if (queue && other && queue->device == other->device)
    queue->device->ops->wait(queue, other, count);
  else
    submission_refuse(queue);
}

void lade_queue_signal(lade_queue *queue, uint64_t count)
{
  lade_queue_signal_after(queue, count, 0);
}

void lade_queue_signal_after(lade_queue *queue, uint64_t count, int64_t predicted_ns)
{
  LADE_ASSERT(queue->role == LADE_QUEUE_SIGNAL && predicted_ns >= 0);
  queue->device->ops->signal(queue, count, predicted_ns);
}

lade_device *lade_queue_get_device(const lade_queue *queue)
{
  return queue->device;
}

bool lade_queue_runs_work(const lade_queue *queue)
{
  return queue->role != LADE_QUEUE_SIGNAL;
}

uint64_t lade_queue_submitted(const lade_queue *queue)
{
  return queue ? atomic_load_explicit(queue->submitted, memory_order_acquire) : 0;
}

bool lade_queue_poll(const lade_queue *queue, uint64_t count)
{
  return !queue || queue->device->ops->poll(queue, count);
}

int lade_queue_sync(lade_queue *queue, uint64_t count)
{
  if (!queue)
    return -EINVAL;
  queue->device->ops->sync(queue, count);
  return lade_device_status(queue->device);
}

int64_t lade_queue_busy_ns(const lade_queue *queue)
{
  return queue->device->ops->busy_ns(queue);
}

int64_t lade_queue_now_ns(const lade_queue *queue)
{
  return queue->device->ops->now_ns(queue);
}
