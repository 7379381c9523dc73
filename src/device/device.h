/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device contract: memory, queues, events and copies, shaped after the CUDA driver API.
 *
 * Memory. Addresses and memory are two things. lade_device_reserve takes a range of addresses
 * that cost nothing; lade_device_chunk_create takes physical memory, counted against the
 * device's hard capacity; lade_device_map puts a chunk at an address of a reserved range, one
 * address at a time. A chunk keeps its contents while it is unmapped and mapped elsewhere.
 * Everything is a multiple of chunk_bytes. An access to a reserved address that has no chunk
 * faults. The high-water of created chunks is the measured peak of a run. A child made by fork
 * has no part in the device: its memory is not there and its queues do not run.
 *
 * Queues and events. A queue runs its work first-in first-out, queues run beside each other. Each
 * queue counts the pieces of work that it has completed in a 64-bit counter; an event is the pair
 * (queue, count) and has happened when the counter has reached the count. Submitting never waits
 * for the work: it returns the count that the counter will have after it. A queue can be told to
 * wait for an event of any queue. A queue of the role LADE_QUEUE_SIGNAL runs no work: the
 * host raises its counter with lade_queue_signal, so that outside completions (a drive's, a peer's)
 * order with device work without a blocked thread. For one queue, one thread at a time submits.
 *
 * Errors of work that runs later (a failed copy, an injected fault) stick to the device: every
 * later lade_queue_sync and lade_device_status return the first of them, the counters still
 * advance, and nothing that was submitted is lost track of.
 *
 * Three implementations pass one conformance suite (tests/conform/device*.c): host.c is real and
 * the reference; dry.c has addresses without memory and a simulated clock; cuda.c comes with the
 * GPU. The wrappers in device.c check arguments, so that no implementation has to.
 */
#ifndef LADE_DEVICE_H
#define LADE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

struct lade_faults;
struct lade_pool;

typedef struct lade_device lade_device;
typedef struct lade_queue lade_queue;
typedef struct lade_chunk lade_chunk;

enum lade_queue_role {
  LADE_QUEUE_COMPUTE,
  LADE_QUEUE_TO_HOST,   /* copies device to host; throttled to its link */
  LADE_QUEUE_TO_DEVICE, /* copies host to device */
  LADE_QUEUE_IO,        /* transfers to and from the store */
  LADE_QUEUE_HOST,      /* CPU updates and checksums */
  LADE_QUEUE_COMM,
  LADE_QUEUE_SIGNAL, /* raised by lade_queue_signal only */
  LADE_N_QUEUE_ROLES
};

/* A piece of work. @args must stay valid until it has run. */
typedef void lade_work_fn(void *args);

/* When a piece of work ran: monotonic nanoseconds, or those of a dry device's clock. */
struct lade_span {
  int64_t start_ns, end_ns;
};

struct lade_work {
  lade_work_fn *fn; /* never called by a dry device; it may call lade_pool_run, and may not submit */
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
  uint64_t chunk_bytes;     /* granule of every address and size below; 2 MiB on hosts */
  uint64_t capacity_bytes;  /* hard: creating a chunk past it is -ENOMEM */
  uint64_t created_bytes;   /* chunks that exist now */
  uint64_t peak_bytes;      /* the most that ever existed since the last lade_device_peak_reset */
  bool is_unified;          /* device memory is host memory: the CPU and drives may touch it */
  bool is_dry;              /* addresses without memory: nothing may be read or written */
};

struct lade_link {
  uint64_t bytes_per_s; /* 0: as fast as the machine copies (hosts only) */
  uint64_t latency_ns;
};

struct lade_host_device_params {
  size_t struct_size;
  uint64_t capacity_bytes;      /* 0: all memory that this process may use */
  struct lade_pool *pool;       /* borrowed; fresh chunks are populated on it; NULL: caller's thread */
  struct lade_link to_host;     /* throttles, so that offload costs what it would over a real link */
  struct lade_link to_device;
  struct lade_faults *faults;   /* borrowed, may be NULL; see base/faults.h */
};

/* Open the host device. -EINVAL, -ENOMEM. Any thread. */
int lade_device_open_host(const struct lade_host_device_params *params, struct lade_error *error,
                          lade_device **ret_device);

struct lade_dry_device_params {
  size_t struct_size;
  uint64_t capacity_bytes; /* must be stated */
  uint64_t chunk_bytes;    /* 0: 2 MiB */
  struct lade_link to_host; /* lade_queue_copy takes bytes over these; must be stated */
  struct lade_link to_device;
  struct lade_faults *faults; /* borrowed, may be NULL */
};

/*
 * Open a dry device: no memory, no threads, a clock per queue. Work is timed in the thread that
 * submits it and has happened when the call returns; one thread drives it, in the order of the
 * program, or the times mean nothing. -ENOMEM, -EINVAL. Any thread.
 */
int lade_device_open_dry(const struct lade_dry_device_params *params, struct lade_error *error,
                         lade_device **ret_device);

/* All queues, chunks and ranges must have been given back. NULL is allowed. */
void lade_device_close(lade_device *device);

/* A snapshot of sizes and counts. Any thread. Never blocks. */
void lade_device_get_info(const lade_device *device, struct lade_device_info *ret_info);

/* Start measuring the peak anew from what exists now. Any thread. */
void lade_device_peak_reset(lade_device *device);

/* 0, or the first error of any work that has run. Any thread. */
int lade_device_status(const lade_device *device);

/* ---- memory; any thread; blocks for the system calls that it makes ---- */

/* Reserve @bytes of addresses, aligned to a chunk. -EINVAL when they are no chunks, -ENOMEM. */
int lade_device_reserve(lade_device *device, uint64_t bytes, uint64_t *ret_address);
/* Give a whole reserved range back; nothing may be mapped in it. */
void lade_device_release(lade_device *device, uint64_t address, uint64_t bytes);

/*
 * Physical memory of @bytes, zeroed and present: no later access waits for the machine to find a
 * page. -EINVAL when they are no chunks, -ENOMEM past the capacity or when the machine refuses.
 */
int lade_device_chunk_create(lade_device *device, uint64_t bytes, lade_chunk **ret_chunk);
/* Give it back; it may not be mapped. NULL is allowed. */
void lade_device_chunk_release(lade_device *device, lade_chunk *chunk);

/*
 * Map all of @chunk at @address. No work that touches the range may be under way. -EINVAL when the
 * place is not inside one reserved range, -EBUSY when the chunk is mapped already or the place is
 * taken, -ENOMEM. On failure nothing has changed.
 */
int lade_device_map(lade_device *device, uint64_t address, lade_chunk *chunk);
/*
 * Unmap every chunk in @bytes at @address; gaps are passed over. The range faults afterwards. -EINVAL
 * when it is not inside one reserved range or would cut a chunk, with nothing changed. -ENOMEM when
 * the machine refuses: the chunks from there on are still mapped, and the call may be repeated.
 */
int lade_device_unmap(lade_device *device, uint64_t address, uint64_t bytes);

/* ---- queues ---- */

/* -ENOMEM, -EAGAIN when a thread is refused. Any thread. */
int lade_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue);
/*
 * Blocks until all that was submitted has run, so the events that it waits for must come. No call on the
 * queue may be under way. Another queue may still have waits for its events; one that can no longer
 * happen (a signal never raised) is let go, and -ECANCELED sticks to the device. NULL is allowed.
 */
void lade_queue_destroy(lade_queue *queue);

/*
 * Submit work; its event is (queue, *ret_count). Blocks only while the queue's ring is full.
 * ret_count may be NULL. Not for signal queues.
 */
void lade_queue_launch(lade_queue *queue, const struct lade_work *work, uint64_t *ret_count);

/*
 * Submit a copy; its event is (queue, *ret_count). The role of the queue says which link is charged: on
 * LADE_QUEUE_TO_HOST and LADE_QUEUE_TO_DEVICE it takes at least the link's latency plus bytes over its
 * rate, each queue being a link of its own; other roles have no link. Not for signal queues.
 */
void lade_queue_copy(lade_queue *queue, const struct lade_copy *copy, uint64_t *ret_count);

/*
 * What is submitted to @queue from now on starts after event (@other, @count). Not counted as work. An event
 * that nobody ever makes happen blocks the queue; a dry device, where it would have to have been submitted
 * before, reports -EDEADLK and goes on. On a signal queue it moves a dry device's clock and does nothing else:
 * whoever raises the signal has done the waiting.
 */
void lade_queue_wait(lade_queue *queue, lade_queue *other, uint64_t count);

/* Raise a signal queue's counter to @count; a lower one than it has changes nothing. Any thread. Never blocks. */
void lade_queue_signal(lade_queue *queue, uint64_t count);

/* The same; on a dry device what is signalled took @predicted_ns from the queue's clock on. */
void lade_queue_signal_after(lade_queue *queue, uint64_t count, int64_t predicted_ns);

/* Has (queue, count) happened? Any thread. Never blocks. */
bool lade_queue_poll(const lade_queue *queue, uint64_t count);

/*
 * Block the calling thread until it has happened; then lade_device_status. A dry device does not
 * block: -EDEADLK for what was never submitted. Any thread.
 */
int lade_queue_sync(lade_queue *queue, uint64_t count);

/*
 * Nanoseconds during which the queue has run work since it was created, throttled copies' idle time
 * included; on a dry device of its simulated clock. lade_queue_now_ns is the time at which its last
 * work ended, 0 before any (simulated on a dry device, monotonic else). Any thread. Never blocks.
 */
int64_t lade_queue_busy_ns(const lade_queue *queue);
int64_t lade_queue_now_ns(const lade_queue *queue);

#endif
