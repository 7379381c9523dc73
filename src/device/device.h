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
 * the reference; dry.c has addresses without memory and a simulated clock; cuda.c is a GPU, or in tests a
 * stand-in for its driver (tests/standin). The wrappers in device.c check arguments, so that no implementation has to.
 */
#ifndef LADE_DEVICE_H
#define LADE_DEVICE_H

#include "lade/device.h" /* handles, work, copies, queues: the part that the public may use */

struct lade_faults;
struct lade_pool;

typedef struct lade_chunk lade_chunk;

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

/*
 * From now on the capacity is @bytes in whole chunks, or what it was if that is less: for who has to open a device
 * before knowing how much of it to take. -EBUSY when more than that exists. No chunk may be created meanwhile.
 */
int lade_device_limit(lade_device *device, uint64_t bytes);

/* Start measuring the peak anew from what exists now. Any thread. */
void lade_device_peak_reset(lade_device *device);

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
/*
 * The same, of a kind that other processes can have as well. -ENOTSUP where a device has no such memory (a dry one).
 */
int lade_device_chunk_create_shared(lade_device *device, uint64_t bytes, lade_chunk **ret_chunk);
/*
 * A file descriptor that stands for a shared chunk, for another process; the caller closes it. The memory lives until
 * the last descriptor and the last mapping of anyone have gone. -EINVAL when the chunk is not shared, -EMFILE,
 * -ENOTSUP.
 */
int lade_device_chunk_export(lade_device *device, const lade_chunk *chunk, int *ret_descriptor);
/*
 * A chunk over memory that another process exported, not counted here: it is the exporter's. The descriptor stays
 * the caller's. -EINVAL when it does not stand for @bytes that can neither grow nor shrink (of a GPU's memory only the
 * map says that it has another size), -ENOMEM, -ENOTSUP.
 */
int lade_device_chunk_import(lade_device *device, int descriptor, uint64_t bytes, lade_chunk **ret_chunk);
/*
 * Give it back. It may be mapped: then its place is empty and faults, whatever the machine refuses, and no work that
 * touches it may be under way. NULL is allowed.
 */
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

/*
 * Make host memory fit for copies that run while others do: whole pages, which stay where they are until
 * lade_device_unpin of the same range. The caller's memory all along. Copies from other host memory are right too, and
 * on a GPU submitting one waits for it. -EINVAL when they are no pages, -EBUSY when they are pinned already, -ENOMEM.
 */
int lade_device_pin(lade_device *device, void *at, uint64_t bytes);
void lade_device_unpin(lade_device *device, void *at, uint64_t bytes);

/* Host memory that the device's driver gives: as good for copies as pinned memory, and zeroed. */
struct lade_host_chunk {
  char *data;       /* where the processor and the device's copies reach it */
  uint64_t bytes;   /* whole chunks of the driver's */
  uint64_t backing; /* the implementation's own */
};

/* Whether it may have some: all others say -ENOTSUP. Any thread. Never blocks. */
bool lade_device_gives_host(const lade_device *device);

/*
 * At least @bytes from NUMA node @numa_node of the host (0 on a machine of one), and at most @limit_bytes. -ENOTSUP
 * where the device has no such memory, -EOVERFLOW when whole chunks are more than the limit, -ENOMEM and others when
 * the driver refuses: then there is pinned memory. Not counted against the capacity. Any thread.
 */
int lade_device_host_create(lade_device *device, uint64_t bytes, uint64_t limit_bytes, int numa_node,
                            struct lade_host_chunk *ret_chunk);
/* No work that touches it may be under way. */
void lade_device_host_release(lade_device *device, struct lade_host_chunk *chunk);

/* ---- queues ---- */

/* Raise a signal queue's counter to @count; a lower one than it has changes nothing. Any thread. Never blocks. */
void lade_queue_signal(lade_queue *queue, uint64_t count);

/* The same; on a dry device what is signalled took @predicted_ns from the queue's clock on. */
void lade_queue_signal_after(lade_queue *queue, uint64_t count, int64_t predicted_ns);

/* Does it run work, which can be made to wait? Not a signal queue. Any thread. Never blocks. */
bool lade_queue_runs_work(const lade_queue *queue);

/* Whose queue it is. Any thread. Never blocks. */
lade_device *lade_queue_get_device(const lade_queue *queue);

/*
 * Nanoseconds during which the queue has run work since it was created, throttled copies' idle time
 * included; on a dry device of its simulated clock. lade_queue_now_ns is the time at which its last
 * work ended, 0 before any (simulated on a dry device, monotonic else). Any thread. Never blocks.
 */
int64_t lade_queue_busy_ns(const lade_queue *queue);
int64_t lade_queue_now_ns(const lade_queue *queue);

#endif
