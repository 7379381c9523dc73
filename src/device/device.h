/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device contract: memory, queues, events and copies, shaped after the CUDA driver API.
 *
 * Memory. Addresses and memory are separate: lade_device_reserve takes a range of addresses, which costs no memory;
 * lade_device_chunk_create takes physical memory, counted against the device's hard capacity. lade_device_map puts a
 * chunk at one address of a reserved range. A chunk keeps its contents while it is unmapped and mapped elsewhere.
 * Everything is a multiple of chunk_bytes. An access to a reserved address that has no chunk faults. The high-water of
 * created chunks is the measured peak of a run. A child made by fork cannot use the device: the device's memory is
 * absent there, and its queues do not run.
 *
 * Queues and events. A queue runs its work first-in first-out; queues run concurrently. Each queue counts its completed
 * pieces of work in a 64-bit counter. An event is the pair (queue, count) and has happened when the counter has reached
 * the count. Submitting never waits for the work: it returns the count that the counter will have after it. A queue can
 * wait for an event of any queue. A queue of the role LADE_QUEUE_SIGNAL runs no work: the host raises its counter with
 * lade_queue_signal, so that outside completions (a drive's, a peer's) order with device work without a blocked thread.
 * For one queue, one thread at a time submits.
 *
 * Errors of asynchronous work (a failed copy, an injected fault) stick to the device: every later lade_queue_sync and
 * lade_device_status return the first of them, and the counters still advance for all submitted work.
 *
 * Three implementations pass one conformance suite (tests/conform/device*.c): host.c is real and the reference; dry.c
 * has addresses without memory and a simulated clock; cuda.c is a GPU, or in tests a fake of its driver. The wrappers
 * in device.c check arguments, so that no implementation has to.
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
  struct lade_link to_host;     /* throttles copies, so that offload costs as much as over a real link */
  struct lade_link to_device;
  struct lade_faults *faults;   /* borrowed, may be NULL; see base/faults.h */
};

/* Open the host device. -EINVAL, -ENOMEM. Any thread. */
int lade_device_open_host(const struct lade_host_device_params *params, struct lade_error *error,
                          lade_device **ret_device);

struct lade_dry_device_params {
  size_t struct_size;
  uint64_t capacity_bytes; /* required */
  uint64_t chunk_bytes;    /* 0: 2 MiB */
  struct lade_link to_host; /* links of lade_queue_copy; required */
  struct lade_link to_device;
  struct lade_faults *faults; /* borrowed, may be NULL */
};

/*
 * Open a dry device: no memory, no threads, a clock per queue. Work is timed in the thread that submits it and has
 * happened when the call returns. pre: one thread submits, in the order of the program; otherwise the times are
 * meaningless. -ENOMEM, -EINVAL. Any thread.
 */
int lade_device_open_dry(const struct lade_dry_device_params *params, struct lade_error *error,
                         lade_device **ret_device);

/*
 * Set the capacity to @bytes in whole chunks, if that lowers it. For a caller that opens a device before it knows the
 * size. -EBUSY if more than that exists. pre: no chunk is created meanwhile.
 */
int lade_device_limit(lade_device *device, uint64_t bytes);

/* Reset the measured peak to the chunks that exist now. Any thread. */
void lade_device_peak_reset(lade_device *device);

/*
 * Return the reason why a call to @device, or work on it, failed with @status: the driver's text, which @why then
 * holds, or the system's if the driver gave none. Any thread.
 */
const char *lade_device_reason(lade_device *device, int status, struct lade_error *why);

/* ---- memory; any thread; blocks for the system calls that it makes ---- */

/* Reserve @bytes of addresses, aligned to a chunk. -EINVAL if @bytes are not whole chunks, -ENOMEM. */
int lade_device_reserve(lade_device *device, uint64_t bytes, uint64_t *ret_address);
/* Release a whole reserved range. pre: no chunk is mapped in it. */
void lade_device_release(lade_device *device, uint64_t address, uint64_t bytes);

/*
 * Create a chunk: physical memory of @bytes, zeroed and resident, so that no later access takes a page fault. -EINVAL
 * if @bytes are not whole chunks, -ENOMEM past the capacity or if the machine refuses.
 */
int lade_device_chunk_create(lade_device *device, uint64_t bytes, lade_chunk **ret_chunk);
/*
 * Create a chunk that other processes can import. Errors as above; -ENOTSUP if a device has no such memory (a dry one).
 */
int lade_device_chunk_create_shared(lade_device *device, uint64_t bytes, lade_chunk **ret_chunk);
/*
 * Return a file descriptor of a shared chunk, for another process; the caller closes it. The memory lives until the
 * last descriptor is closed and the last mapping is removed. -EINVAL if the chunk is not shared, -EMFILE, -ENOTSUP.
 */
int lade_device_chunk_export(lade_device *device, const lade_chunk *chunk, int *ret_descriptor);
/*
 * Create a chunk over memory that another process exported; the memory counts there, not here. The descriptor stays the
 * caller's. -EINVAL if it does not refer to memory of exactly @bytes with a fixed size, -ENOMEM, -ENOTSUP. Of a GPU's
 * memory only lade_device_map detects another size.
 */
int lade_device_chunk_import(lade_device *device, int descriptor, uint64_t bytes, lade_chunk **ret_chunk);
/*
 * Release @chunk. If it is mapped, its range is empty afterwards and faults, even if the machine refuses the unmap.
 * NULL is allowed. pre: no work in flight accesses it.
 */
void lade_device_chunk_release(lade_device *device, lade_chunk *chunk);

/*
 * Map all of @chunk at @address. -EINVAL if the addresses are not inside one reserved range, -EBUSY if the chunk is
 * mapped already or the addresses are taken, -ENOMEM. On failure nothing has changed. pre: no work in flight accesses
 * the range.
 */
int lade_device_map(lade_device *device, uint64_t address, lade_chunk *chunk);
/*
 * Unmap every chunk in @bytes at @address; gaps are skipped. The range faults afterwards. -EINVAL if it is not inside
 * one reserved range or would cut a chunk, with nothing changed. -ENOMEM if the machine refuses: the chunks from there
 * on are still mapped, and the call may be repeated.
 */
int lade_device_unmap(lade_device *device, uint64_t address, uint64_t bytes);

/*
 * Pin host memory, so that its copies run concurrently with other copies. The range is whole pages, which do not move
 * until lade_device_unpin of the same range. The caller owns the memory throughout. Copies of other host memory are
 * correct too, but on a GPU submitting one waits for it. -EINVAL if the range is not whole pages, -EBUSY if it is
 * pinned already, -ENOMEM.
 */
int lade_device_pin(lade_device *device, void *at, uint64_t bytes);
void lade_device_unpin(lade_device *device, void *at, uint64_t bytes);

/* Host memory from the device's driver: zeroed, and as fast for copies as pinned memory. */
struct lade_host_chunk {
  char *data;       /* address for the processor and for the device's copies */
  uint64_t bytes;   /* whole granules of the driver */
  uint64_t backing; /* used by the implementation */
};

/*
 * True if the device may have such memory; for others lade_device_host_create returns -ENOTSUP. Any thread. Never
 * blocks.
 */
bool lade_device_gives_host(const lade_device *device);

/*
 * Allocate at least @bytes from NUMA node @numa_node of the host (0 on a machine of one node), and at most
 * @limit_bytes. -ENOTSUP if the device has no such memory, -EOVERFLOW if whole granules exceed the limit, -ENOMEM and
 * others if the driver refuses; callers then use pinned memory. Not counted against the capacity. Any thread.
 */
int lade_device_host_create(lade_device *device, uint64_t bytes, uint64_t limit_bytes, int numa_node,
                            struct lade_host_chunk *ret_chunk);
/* Release @chunk. pre: no work in flight accesses it. */
void lade_device_host_release(lade_device *device, struct lade_host_chunk *chunk);

/* ---- queues ---- */

/* Raise a signal queue's counter to @count; a lower @count changes nothing. Any thread. Never blocks. */
void lade_queue_signal(lade_queue *queue, uint64_t count);

/* As lade_queue_signal. On a dry device the signalled work takes @predicted_ns from the queue's clock on. */
void lade_queue_signal_after(lade_queue *queue, uint64_t count, int64_t predicted_ns);

/* True if @queue runs work and can wait for events; false for a signal queue. Any thread. Never blocks. */
bool lade_queue_runs_work(const lade_queue *queue);

/* Return the queue's device. Any thread. Never blocks. */
lade_device *lade_queue_get_device(const lade_queue *queue);

/*
 * Return the nanoseconds during which the queue has run work since it was created, throttled copies' idle time
 * included; on a dry device of its simulated clock. lade_queue_now_ns returns the time at which its last work ended, 0
 * before any (simulated on a dry device, else monotonic). Any thread. Never blocks.
 */
int64_t lade_queue_busy_ns(const lade_queue *queue);
int64_t lade_queue_now_ns(const lade_queue *queue);

#endif
