/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dry device: addresses without memory, queues without threads, a simulated clock.
 *
 * Addresses come from a counter that starts high and only rises; they must not be accessed. Every piece of work is
 * timed when it is submitted. It starts when its queue is free and the events that it waits for have happened, and
 * ends its predicted time later. A copy over a link takes latency + bytes / rate, and the time that other transfers on
 * the link cost it (shared_ns). This is exact if work is submitted after the work that it waits for, which a program
 * in one total order guarantees. A wait for an event that was never submitted is a deadlock and is reported as one.
 *
 * A later wait needs the time of an earlier event. So each queue keeps the times of its last 2^20 events in a ring, the
 * length of a program's largest list. The ring is 8 MiB of addresses that become memory as they are used. An event that
 * has left the ring ended no later than the oldest event in it. So the oldest event's time is an upper bound, and is
 * used.
 *
 * One mutex guards all clocks. It does not affect the times, which are a function of the order of submission.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "device/device_ops.h"

#define CHUNK_BYTES ((uint64_t)2 << 20) /* that of the host device */
#define EVENTS_KEPT ((uint64_t)1 << 20) /* of one queue; a power of two */
#define EVENTS_BYTES (EVENTS_KEPT * sizeof(int64_t))
#define FIRST_ADDRESS ((uint64_t)1 << 56) /* above every address of a process: never a real pointer */
#define LAST_ADDRESS ((uint64_t)1 << 62)

struct dry_device {
  lade_device base;
  struct lade_link to_host, to_device;
  uint64_t next_address; /* guarded by base.mutex */
  pthread_mutex_t clocks;
};

struct dry_queue {
  lade_queue base;
  const struct lade_link *link;
  _Atomic uint64_t count;            /* events that have happened */
  _Atomic int64_t clock_ns, busy_ns; /* clock: the time at which its last work ended */
  int64_t ready_ns;                  /* the latest event that the next work waits for */
  int64_t *end_ns;                   /* end time of event c at [c % EVENTS_KEPT] */
};

static int dry_reserve(lade_device *device, uint64_t bytes, uint64_t *ret_address)
{
  struct dry_device *dry = (struct dry_device *)device;
  if (bytes > LAST_ADDRESS - dry->next_address)
    return -ENOMEM;
  *ret_address = dry->next_address;
  dry->next_address += bytes;
  return 0;
}

static void dry_release(lade_device *device, uint64_t address, uint64_t bytes)
{
}

static int dry_chunk_create(lade_device *device, struct lade_chunk *chunk)
{
  return 0;
}

static void dry_chunk_release(lade_device *device, struct lade_chunk *chunk)
{
}

static int dry_map(lade_device *device, uint64_t address, struct lade_chunk *chunk)
{
  return 0;
}

static int dry_unmap(lade_device *device, struct lade_chunk *chunk)
{
  return 0;
}

static void dry_close(lade_device *device)
{
  struct dry_device *dry = (struct dry_device *)device;
  pthread_mutex_destroy(&dry->clocks);
  lade_device_finish(device);
  free(dry);
}

/* ---- queues; clocks are written with the mutex held and read without ---- */

static struct dry_device *dry_of(const lade_queue *queue)
{
  return (struct dry_device *)queue->device;
}

/* Allocate zeroed memory that takes no pages until it is used, which calloc does not promise. */
static int64_t *events_create(lade_device *device)
{
  if (lade_fault(device->faults, LADE_FAULT_HEAP))
    return NULL;
  void *at = mmap(NULL, EVENTS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? NULL : at;
}

static int dry_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue)
{
  struct dry_device *dry = (struct dry_device *)device;
  struct dry_queue *queue = lade_fault_calloc(device->faults, 1, sizeof(*queue));
  if (!queue)
    return -ENOMEM;
  queue->end_ns = events_create(device);
  if (!queue->end_ns) {
    free(queue);
    return -ENOMEM;
  }
  queue->base.device = device;
  queue->base.role = role;
  queue->base.submitted = &queue->count;
  queue->link = role == LADE_QUEUE_TO_HOST     ? &dry->to_host
                : role == LADE_QUEUE_TO_DEVICE ? &dry->to_device
                                               : NULL;
  *ret_queue = &queue->base;
  return 0;
}

static void dry_queue_destroy(lade_queue *base)
{
  struct dry_queue *queue = (struct dry_queue *)base;
  munmap(queue->end_ns, EVENTS_BYTES);
  free(queue);
}

/* Return @a + @b, or INT64_MAX if the sum exceeds it: a clock stops there. pre: neither is negative. */
static int64_t time_add(int64_t a, int64_t b)
{
  return a > INT64_MAX - b ? INT64_MAX : a + b;
}

/* Time one piece of work of @duration_ns. Called with the mutex held; returns its span. */
static struct lade_span clock_advance(struct dry_queue *queue, int64_t duration_ns)
{
  int64_t start_ns = LADE_MAX(atomic_load(&queue->clock_ns), queue->ready_ns);
  int64_t end_ns = time_add(start_ns, duration_ns);
  atomic_store(&queue->clock_ns, end_ns);
  atomic_store(&queue->busy_ns, time_add(atomic_load(&queue->busy_ns), duration_ns));
  return (struct lade_span){start_ns, end_ns};
}

static uint64_t work_time(struct dry_queue *queue, int64_t duration_ns, struct lade_span *ret_span)
{
  struct dry_device *dry = dry_of(&queue->base);
  LADE_ASSERT(duration_ns >= 0);
  pthread_mutex_lock(&dry->clocks);
  struct lade_span span = clock_advance(queue, duration_ns);
  uint64_t count = atomic_load(&queue->count) + 1;
  queue->end_ns[count % EVENTS_KEPT] = span.end_ns;
  atomic_store(&queue->count, count);
  pthread_mutex_unlock(&dry->clocks);
  if (ret_span)
    *ret_span = span;
  return count;
}

static uint64_t dry_queue_launch(lade_queue *base, const struct lade_work *work)
{
  return work_time((struct dry_queue *)base, work->predicted_ns, work->ret_span);
}

static uint64_t dry_queue_copy(lade_queue *base, const struct lade_copy *copy)
{
  struct dry_queue *queue = (struct dry_queue *)base;
  int error = lade_fault(base->device->faults, LADE_FAULT_COPY);
  if (error)
    lade_device_fail(base->device, error);
  int64_t duration_ns = queue->link ? time_add(lade_link_ns(queue->link, copy->bytes), copy->shared_ns)
                                     : copy->predicted_ns;
  return work_time(queue, duration_ns, copy->ret_span);
}

/* Return the time at which @count happened, or the bound stated at the top of this file. Mutex held. */
static int64_t event_ns(const struct dry_queue *queue, uint64_t count)
{
  uint64_t happened = atomic_load(&queue->count);
  uint64_t oldest = happened >= EVENTS_KEPT ? happened - EVENTS_KEPT + 1 : 1;
  if (count == 0)
    return 0;
  return queue->end_ns[LADE_MAX(count, oldest) % EVENTS_KEPT];
}

static void dry_queue_wait(lade_queue *base, lade_queue *other_base, uint64_t count)
{
  struct dry_queue *queue = (struct dry_queue *)base, *other = (struct dry_queue *)other_base;
  struct dry_device *dry = dry_of(base);
  pthread_mutex_lock(&dry->clocks);
  if (count > atomic_load(&other->count))
    lade_device_fail(&dry->base, -EDEADLK);
  else
    queue->ready_ns = LADE_MAX(queue->ready_ns, event_ns(other, count));
  pthread_mutex_unlock(&dry->clocks);
}

/*
 * Raise the counter. A jump over several counts makes all of them happen now; only the last EVENTS_KEPT of them are
 * written.
 */
static void dry_queue_signal(lade_queue *base, uint64_t count, int64_t predicted_ns)
{
  struct dry_queue *queue = (struct dry_queue *)base;
  struct dry_device *dry = dry_of(base);
  pthread_mutex_lock(&dry->clocks);
  uint64_t happened = atomic_load(&queue->count);
  if (count > happened) {
    int64_t end_ns = clock_advance(queue, predicted_ns).end_ns;
    uint64_t first = count - happened > EVENTS_KEPT ? count - EVENTS_KEPT + 1 : happened + 1;
    for (uint64_t i = first; i <= count; i++)
      queue->end_ns[i % EVENTS_KEPT] = end_ns;
    atomic_store(&queue->count, count);
  }
  pthread_mutex_unlock(&dry->clocks);
}

static bool dry_queue_poll(const lade_queue *base, uint64_t count)
{
  return atomic_load(&((const struct dry_queue *)base)->count) >= count;
}

static void dry_queue_sync(lade_queue *base, uint64_t count)
{
  if (!dry_queue_poll(base, count))
    lade_device_fail(base->device, -EDEADLK);
}

static int64_t dry_queue_busy_ns(const lade_queue *base)
{
  return atomic_load(&((const struct dry_queue *)base)->busy_ns);
}

static int64_t dry_queue_now_ns(const lade_queue *base)
{
  return atomic_load(&((const struct dry_queue *)base)->clock_ns);
}

static const struct lade_device_ops dry_ops = {
    .reserve = dry_reserve,
    .release = dry_release,
    .chunk_create = dry_chunk_create,
    .chunk_release = dry_chunk_release,
    .map = dry_map,
    .unmap = dry_unmap,
    .close = dry_close,
    .queue_create = dry_queue_create,
    .queue_destroy = dry_queue_destroy,
    .launch = dry_queue_launch,
    .copy = dry_queue_copy,
    .wait = dry_queue_wait,
    .signal = dry_queue_signal,
    .poll = dry_queue_poll,
    .sync = dry_queue_sync,
    .busy_ns = dry_queue_busy_ns,
    .now_ns = dry_queue_now_ns,
};

static int params_check(const struct lade_dry_device_params *params, struct lade_error *error)
{
  uint64_t chunk_bytes = params->struct_size == sizeof(*params) ? params->chunk_bytes : 0;
  if (params->struct_size != sizeof(*params))
    return lade_error_set(error, -EINVAL, "dry device: struct_size is %zu and must be %zu; compile against this "
                          "library's headers", params->struct_size, sizeof(*params));
  if (chunk_bytes & (chunk_bytes - 1))
    return lade_error_set(error, -EINVAL, "dry device: chunk_bytes must be a power of two");
  if (params->capacity_bytes < (chunk_bytes ? chunk_bytes : CHUNK_BYTES))
    return lade_error_set(error, -EINVAL, "dry device: capacity_bytes must be stated, at least one chunk");
  if (!params->to_host.bytes_per_s || !params->to_device.bytes_per_s)
    return lade_error_set(error, -EINVAL, "dry device: the rates of both links must be stated");
  return 0;
}

int lade_device_open_dry(const struct lade_dry_device_params *params, struct lade_error *error,
                         lade_device **ret_device)
{
  int code = params_check(params, error);
  if (code)
    return code;
  struct dry_device *dry = lade_fault_calloc(params->faults, 1, sizeof(*dry));
  if (!dry)
    return lade_error_set(error, -ENOMEM, "dry device: out of memory");
  lade_device_init(&dry->base, &dry_ops, params->faults);
  pthread_mutex_init(&dry->clocks, NULL);
  snprintf(dry->base.name, sizeof(dry->base.name), "dry");
  dry->base.chunk_bytes = params->chunk_bytes ? params->chunk_bytes : CHUNK_BYTES;
  dry->base.capacity_bytes = params->capacity_bytes / dry->base.chunk_bytes * dry->base.chunk_bytes;
  dry->base.is_dry = true;
  dry->to_host = params->to_host;
  dry->to_device = params->to_device;
  dry->next_address = LADE_MAX(FIRST_ADDRESS, dry->base.chunk_bytes);
  *ret_device = &dry->base;
  return 0;
}
