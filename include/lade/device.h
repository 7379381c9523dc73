/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/device.h - a device: memory with a hard capacity, and queues of work that run beside each other.
 *
 * A queue runs its work first-in first-out. Submitting never waits for the work; it returns the count that the
 * queue's counter will have after it, and (queue, count) is an event: it has happened when the counter has reached the
 * count. A queue can be told to wait for an event of any queue of its device. For one queue, one thread at
 * a time submits.
 *
 * Memory comes from lade/cache.h. Errors of work that runs later stick to the device: lade_queue_sync and
 * lade_device_status return the first of them.
 */
#ifndef LADE_PUBLIC_DEVICE_H
#define LADE_PUBLIC_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lade_device lade_device;
typedef struct lade_queue lade_queue;

enum lade_queue_role {
  LADE_QUEUE_COMPUTE,
  LADE_QUEUE_TO_HOST,   /* copies device to host; throttled to its link */
  LADE_QUEUE_TO_DEVICE, /* copies host to device */
  LADE_QUEUE_IO,        /* transfers to and from the store */
  LADE_QUEUE_HOST,      /* CPU updates and checksums */
  LADE_QUEUE_COMM,
  LADE_QUEUE_SIGNAL, /* runs no work: the host raises its counter */
  LADE_N_QUEUE_ROLES
};

/* A piece of work. @args must stay valid until it has run. */
typedef void lade_work_fn(void *args);

/* When a piece of work ran: monotonic nanoseconds, or those of a dry device's clock. */
struct lade_span {
  int64_t start_ns, end_ns;
};

struct lade_work {
  lade_work_fn *fn; /* never called by a dry device; it may not submit */
  void *args;
  int64_t predicted_ns;       /* what a dry device's clock advances by */
  struct lade_span *ret_span; /* NULL, or written by the queue before the work's event happens */
};

/* Bytes between device addresses and host pointers, either way; all valid until the event. */
struct lade_copy {
  void *dst;
  const void *src; /* may not overlap dst */
  uint64_t bytes;
  int64_t predicted_ns; /* a dry device's price on a queue that has no link; see lade_queue_copy */
  struct lade_span *ret_span;
};

struct lade_device_info {
  char name[96];
  char pci[24];             /* of a GPU: its PCI function as /sys names it, "0000:3b:00.0"; "" of others */
  uint64_t chunk_bytes;     /* granule of the device's memory; 2 MiB on hosts */
  uint64_t capacity_bytes;  /* hard: creating a chunk past it is -ENOMEM */
  uint64_t created_bytes;   /* chunks that exist now */
  uint64_t peak_bytes;      /* the most that ever existed */
  bool is_unified;          /* device memory is host memory: the CPU and drives may touch it */
  bool is_dry;              /* addresses without memory: nothing may be read or written */
};

struct lade_device_params {
  size_t struct_size;      /* sizeof(struct lade_device_params) */
  const char *name;        /* "host" (also NULL), "cuda:0" or another GPU, "dry": no memory */
  uint64_t capacity_bytes; /* hard; 0: all memory that this process may use, or that the GPU has free (not dry) */
};

/*
 * Open a device; the caller closes it. -EINVAL for an unknown name or no capacity, -ENODEV where there is no such GPU
 * or no driver for it, -EOVERFLOW for more capacity than it has, -ENOMEM. Any thread.
 */
LADE_API int lade_device_open(const struct lade_device_params *params, struct lade_error *error,
                              lade_device **ret_device);

/* All queues, and all that holds its memory, must have been destroyed before. NULL is allowed. */
LADE_API void lade_device_close(lade_device *device);

/* A snapshot of sizes and counts. Any thread. Never blocks. */
LADE_API void lade_device_get_info(const lade_device *device, struct lade_device_info *ret_info);

/* 0, or the first error of any work that has run. Any thread. */
LADE_API int lade_device_status(const lade_device *device);

/* The caller destroys the queue. -ENOMEM, -EAGAIN when a thread is refused. Any thread. */
LADE_API int lade_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue);

/*
 * Blocks until all that was submitted has run, so the events that it waits for must come. No call on the
 * queue may be under way. Another queue may still have waits for its events; one that can no longer
 * happen (a signal never raised) is let go, and -ECANCELED sticks to the device. NULL is allowed.
 */
LADE_API void lade_queue_destroy(lade_queue *queue);

/*
 * Submit work; its event is (queue, *ret_count). Blocks only while the queue's ring is full.
 * ret_count may be NULL. Not for signal queues.
 */
LADE_API void lade_queue_launch(lade_queue *queue, const struct lade_work *work, uint64_t *ret_count);

/*
 * Submit a copy; its event is (queue, *ret_count). The role of the queue says which link is charged: on
 * LADE_QUEUE_TO_HOST and LADE_QUEUE_TO_DEVICE it takes at least the link's latency plus bytes over its
 * rate, each queue being a link of its own; other roles have no link. Not for signal queues.
 */
LADE_API void lade_queue_copy(lade_queue *queue, const struct lade_copy *copy, uint64_t *ret_count);

/*
 * What is submitted to @queue from now on starts after event (@other, @count). Not counted as work. An event
 * that nobody ever makes happen blocks the queue; a dry device, where it would have to have been submitted
 * before, reports -EDEADLK and goes on. On a signal queue it moves a dry device's clock and does nothing else:
 * whoever raises the signal has done the waiting.
 */
LADE_API void lade_queue_wait(lade_queue *queue, lade_queue *other, uint64_t count);

/*
 * The count of the last event that was submitted: once it has happened, so has everything submitted before this
 * call. Of a signal queue: what its counter has been raised to. Any thread. Never blocks.
 */
LADE_API uint64_t lade_queue_submitted(const lade_queue *queue);

/* Has (queue, count) happened? Any thread. Never blocks. */
LADE_API bool lade_queue_poll(const lade_queue *queue, uint64_t count);

/*
 * Block the calling thread until it has happened; then lade_device_status. A dry device does not
 * block: -EDEADLK for what was never submitted. Any thread.
 */
LADE_API int lade_queue_sync(lade_queue *queue, uint64_t count);

#ifdef __cplusplus
}
#endif
#endif
