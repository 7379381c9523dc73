/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/device.h - a device: memory with a hard capacity, and queues that run beside each other.
 *
 * A queue runs its work first-in first-out. Submitting does not wait for the work. It returns the count that the
 * queue's counter has after the work. (queue, count) is an event; it has happened when the counter has reached the
 * count. A queue can wait for an event of any queue of its device. One thread at a time submits to a queue.
 *
 * A program that uses a GPU already opens it in its own context (lade_device_params.context), and makes queues of its
 * own streams (lade_queue_adopt). Its own work on such a stream gets an event by lade_queue_record.
 *
 * Memory comes from lade/cache.h. An error of work that runs later stays with the device: lade_queue_sync and
 * lade_device_status return the first one. A submission that breaks its declaration is not made: its count is 0, and
 * -EINVAL stays with the device likewise.
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
  LADE_QUEUE_TO_HOST,   /* copies from device to host, at the rate of its link */
  LADE_QUEUE_TO_DEVICE, /* copies host to device */
  LADE_QUEUE_IO,        /* transfers to and from the store */
  LADE_QUEUE_HOST,      /* CPU updates and checksums */
  LADE_QUEUE_COMM,
  LADE_QUEUE_SIGNAL,    /* runs no work: the host raises its counter */
  LADE_N_QUEUE_ROLES
};

/* A piece of work. @args stays valid until the work has run. */
typedef void lade_work_fn(void *args);

/* The time of a piece of work: monotonic nanoseconds, or those of a dry device's clock. */
struct lade_span {
  int64_t start_ns, end_ns;
};

struct lade_work {
  lade_work_fn *fn; /* a dry device never calls it; it must not submit */
  void *args;
  int64_t predicted_ns;       /* a dry device's clock advances by it */
  struct lade_span *ret_span; /* NULL, or filled by the queue before the work's event */
};

/* A copy between device addresses and host pointers, in any direction; all stay valid until the event. */
struct lade_copy {
  void *dst;
  const void *src; /* does not overlap dst */
  uint64_t bytes;
  int64_t predicted_ns; /* time on a dry device's queue without a link; see lade_queue_copy */
  struct lade_span *ret_span;
  int64_t shared_ns;    /* time that a dry device adds on a queue with a link, for other transfers on it */
};

struct lade_device_info {
  char name[96];
  char pci[24];             /* a GPU's PCI function as in /sys, "0000:3b:00.0"; else "" */
  uint64_t chunk_bytes;     /* unit of the device's memory; 2 MiB on hosts */
  uint64_t capacity_bytes;  /* hard limit: creating a chunk past it is -ENOMEM */
  uint64_t created_bytes;   /* chunks that exist now */
  uint64_t peak_bytes;      /* high-water of created_bytes */
  bool is_unified;          /* device memory is host memory: the CPU and drives can access it */
  bool is_dry;              /* addresses without memory: do not read or write them */
};

struct lade_device_params {
  size_t struct_size;      /* sizeof(struct lade_device_params) */
  const char *name;        /* "host" (also NULL), "cuda:0" or another GPU, "dry" (no memory) */
  uint64_t capacity_bytes; /* hard limit; 0: memory that this process may use, or the GPU has free (not dry) */
  /*
   * A CUcontext to work in, borrowed until close, with @name "cuda", or NULL: the GPU's primary one, which the runtime
   * API uses. It determines the GPU.
   */
  void *context;
};

/*
 * Open a device; the caller closes it. Any thread. Blocks.
 *   -EINVAL     an unknown name, or no capacity
 *   -ENODEV     the GPU or its driver is missing
 *   -EOVERFLOW  the device has less than @params' capacity
 *   -ENOMEM
 */
LADE_API int lade_device_open(const struct lade_device_params *params, struct lade_error *error,
                              lade_device **ret_device);

/* Close a device. NULL is allowed. pre: its queues, and all owners of its memory, are destroyed. Any thread. */
LADE_API void lade_device_close(lade_device *device);

/* Return a snapshot of sizes and counts. Any thread. Never blocks. */
LADE_API void lade_device_get_info(const lade_device *device, struct lade_device_info *ret_info);

/* Return 0, or the first error of any work that has run. Any thread. Never blocks. */
LADE_API int lade_device_status(const lade_device *device);

/*
 * Create a queue; the caller destroys it. -EINVAL for an unknown role or NULL, -ENOMEM, -EAGAIN when a thread is
 * refused, and errors of the driver. Any thread. Blocks while the queue's thread starts.
 */
LADE_API int lade_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue);

/*
 * Make a queue of @stream, a CUstream of the caller's in @device's context; the caller destroys the queue before the
 * stream. @role is COMPUTE, TO_HOST, TO_DEVICE or COMM. -EINVAL for another role, device or NULL; else the errors,
 * threads and blocking of lade_queue_create.
 */
LADE_API int lade_queue_adopt(lade_device *device, enum lade_queue_role role, void *stream, lade_queue **ret_queue);

/*
 * Return in @ret_count the event after all work on @queue: of an adopted stream also after the work that the caller
 * put on the stream without Lade. Threads and blocking as lade_queue_launch. -EINVAL for NULL.
 */
LADE_API int lade_queue_record(lade_queue *queue, uint64_t *ret_count);

/*
 * Destroy a queue. NULL is allowed. Blocks until all submitted work has run, so the events that it waits for must
 * happen. pre: no call on the queue is in progress. Another queue may still wait for its events. A wait for an event
 * that can no longer happen (a signal never raised) is released, and -ECANCELED stays with the device.
 */
LADE_API void lade_queue_destroy(lade_queue *queue);

/*
 * Submit work; its event is (queue, *ret_count). ret_count may be NULL. Not for signal queues. One thread at a time
 * per queue. Blocks only while the queue's ring is full.
 */
LADE_API void lade_queue_launch(lade_queue *queue, const struct lade_work *work, uint64_t *ret_count);

/*
 * Submit a copy; its event is (queue, *ret_count). On LADE_QUEUE_TO_HOST and LADE_QUEUE_TO_DEVICE a copy takes at least
 * the link's latency plus bytes over its rate; each such queue is a link. Other roles have no link. Not for signal
 * queues. Threads and blocking as lade_queue_launch.
 */
LADE_API void lade_queue_copy(lade_queue *queue, const struct lade_copy *copy, uint64_t *ret_count);

/*
 * Let later work of @queue start after event (@other, @count). A wait does not count as work. An event that never
 * happens blocks the queue. A dry device needs the event's work submitted before; else it reports -EDEADLK and
 * continues. On a signal queue a wait only moves a dry device's clock, because the host raises the signal itself.
 * Threads and blocking as lade_queue_launch.
 */
LADE_API void lade_queue_wait(lade_queue *queue, lade_queue *other, uint64_t count);

/*
 * Return the count of the last submitted event. When it has happened, all work submitted before this call is done.
 * For a signal queue, return its counter. Any thread. Never blocks.
 */
LADE_API uint64_t lade_queue_submitted(const lade_queue *queue);

/* True if event (queue, count) has happened. Any thread. Never blocks. */
LADE_API bool lade_queue_poll(const lade_queue *queue, uint64_t count);

/*
 * Block until event (queue, count) has happened, then return lade_device_status. A dry device does not block, and
 * returns -EDEADLK for an event that was never submitted. Any thread.
 */
LADE_API int lade_queue_sync(lade_queue *queue, uint64_t count);

#ifdef __cplusplus
}
#endif
#endif
