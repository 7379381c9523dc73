/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/allocator.h - a pluggable allocator: memory by device number and stream, for PyTorch, RMM and other callers that
 * pass no handles.
 *
 * It is built on lade/cache.h: one cache for each device, and one queue for each stream. A stream is a CUstream of the
 * device's primary context; NULL is the legacy default stream. On a device that is no GPU a stream is a lade_queue of
 * that device; NULL is the host. A stream gets its queue, and a thread, at its first use. A device serves up to
 * LADE_CACHE_MAX_QUEUES streams.
 *
 * Frees are ordered by events on the streams. The events are recorded by the next allocation, once for all frees since
 * the last one. A stream under capture cannot allocate (-EBUSY), except from a plan of replay; frees on it take effect
 * after the capture. A graph that was captured so uses the plan's addresses at each launch: keep the plan, and run
 * nothing else in the arena meanwhile.
 *
 * Replay. Call lade_allocator_step at the end of each training step. When two steps made the same allocations (sizes
 * and streams, in order), allocations that end inside the step are packed by lade/pack.h. From then on allocation k of
 * a step gets its planned offset in an arena, and no search. An allocation of another size or stream ends replay until
 * the next step; a planned place that is still in use ends it for this allocation. The cache serves both kinds of
 * allocations, and statistics count them. An allocation that finds no memory drops the plan and tries again without its
 * arenas. Two equal steps in a row that differ from the plan replace it. The cache always serves blocks that other
 * streams use, and blocks that outlive their step. Addresses of one stream's arena are reused in the stream's order
 * only.
 *
 * Any thread may call every function, except during create and destroy. A lock serialises calls for one device. A child
 * made by fork gets -EPERM from every function. An allocation blocks as lade_cache_alloc; other functions wait for the
 * lock, and say so if they wait for work.
 */
#ifndef LADE_ALLOCATOR_H
#define LADE_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lade/cache.h"
#include "lade/device.h"
#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lade_allocator lade_allocator;

enum { LADE_ALLOCATOR_MAX_DEVICES = 64 };

struct lade_allocator_params {
  size_t struct_size;          /* sizeof(struct lade_allocator_params) */
  uint64_t limit_bytes;        /* limit of each device, in bytes; 0: its free memory when it is opened */
  lade_device *const *devices; /* [n_devices], borrowed; NULL: device i is the GPU cuda:i, opened by its first call */
  int n_devices;               /* at most LADE_ALLOCATOR_MAX_DEVICES; 0 with @devices NULL */
};

/* Create an allocator; the caller destroys it. -EINVAL for parameters, -ENOMEM. */
LADE_API int lade_allocator_create(const struct lade_allocator_params *params, struct lade_error *error,
                                   lade_allocator **ret_allocator);

/*
 * Wait for the streams, return all memory, and close the devices that the allocator opened. NULL is allowed. pre: no
 * other call is in progress, and each destroyed stream was forgotten. A child of fork frees only its copy of the
 * records. Blocks.
 */
LADE_API void lade_allocator_destroy(lade_allocator *allocator);

/* Set the limit of each device; 0: its free memory. -EBUSY if a device has been used already, -EPERM. */
LADE_API int lade_allocator_set_limit(lade_allocator *allocator, uint64_t limit_bytes, struct lade_error *error);

/*
 * Allocate @bytes on @device for work of @stream, aligned to 512 bytes. No bytes give NULL. Errors; the last one of
 * this allocator stays for lade_allocator_get_error:
 *   -ENOMEM  the limit or the device is reached; @error has the cause
 *   -ENODEV  no such device or no driver
 *   -EBUSY   the stream is under capture
 *   -ENOSPC  too many streams
 *   -EAGAIN  the machine refuses a thread for the stream
 *   -EINVAL, -EPERM
 */
LADE_API int lade_allocator_alloc(lade_allocator *allocator, uint64_t bytes, int device, void *stream,
                                  struct lade_error *error, void **ret_address);

/*
 * Free a block of @device in the order of @stream. This may be another stream than that of the allocation: then work of
 * both streams before this call may use the block. NULL is allowed. -EINVAL for an address that is no live block,
 * -EPERM, -ENOMEM, -ENOSPC, -EAGAIN; the block stays live on every error.
 */
LADE_API int lade_allocator_free(lade_allocator *allocator, void *address, int device, void *stream,
                                 struct lade_error *error);

/*
 * Record that work of @stream uses the block at @address too: its free waits for that work. -EINVAL for no live block,
 * -EPERM, -ENOMEM, -ENOSPC, -EAGAIN.
 */
LADE_API int lade_allocator_record(lade_allocator *allocator, void *address, void *stream, struct lade_error *error);

/* Forget a stream of @device before it is destroyed. Unknown streams are ignored. -EINVAL, -EPERM. Waits for work. */
LADE_API int lade_allocator_forget(lade_allocator *allocator, int device, void *stream);

/*
 * Return idle memory of every device until at most @keep_bytes are reserved on each, if possible. The arenas of replay
 * are returned too, unless blocks are live in them; the next two equal steps plan again. 0, -EPERM. Waits for the work
 * of streams that are not under capture.
 */
LADE_API int lade_allocator_trim(lade_allocator *allocator, uint64_t keep_bytes);

/*
 * End a step of @device, and begin the next one. The first call begins the first step. -ENOMEM if a new plan finds no
 * room for its arena; allocations then use the cache. -EINVAL for no such device, -ENODEV, -EPERM. Takes the time of
 * packing when the plan changes.
 */
LADE_API int lade_allocator_step(lade_allocator *allocator, int device, struct lade_error *error);

struct lade_allocator_stats {
  size_t struct_size;    /* set by the caller */
  uint64_t limit_bytes;  /* of the device; 0: its capacity */
  uint64_t live_bytes;   /* requested bytes of blocks that the caller holds */
  uint64_t peak_bytes;   /* peak of live_bytes */
  uint64_t reserved_bytes, reserved_peak_bytes; /* taken from the device; arenas are in these */
  uint64_t n_allocs, n_frees;
  uint64_t n_ooms;       /* allocations that ended with -ENOMEM */
  uint64_t n_events;     /* events recorded on streams */
  int n_streams;
  /* Replay. Counts are sums over all steps. */
  uint64_t n_steps;      /* steps that lade_allocator_step ended */
  uint64_t n_plans;      /* plans made */
  uint64_t n_planned;    /* allocations of a step that the present plan serves */
  uint64_t arena_bytes;  /* of the present plan: its packed peaks */
  uint64_t live_bound_bytes; /* of the present plan: most planned bytes live at once, summed over streams */
  uint64_t n_served;     /* allocations served by a plan */
  uint64_t n_mismatches; /* steps that left their plan: another size, stream or number of allocations */
  uint64_t n_conflicts;  /* planned allocations whose place was still in use */
  uint64_t n_dropped;    /* plans dropped because an allocation outside of them found no memory */
  /* The last mismatch: number of the allocation, planned and requested bytes; 0 requested: the step ended. */
  uint64_t mismatch_index, mismatch_planned_bytes, mismatch_bytes;
};

/* Return statistics of @device; zeros if it has not been used. -EINVAL, -EPERM. */
LADE_API int lade_allocator_get_stats(lade_allocator *allocator, int device, struct lade_allocator_stats *ret_stats,
                                      struct lade_error *error);

/*
 * Return the cache of @device, for its report, trace and snapshot; the allocator owns it. Do not allocate or free in
 * it. NULL if the device has not been used.
 */
LADE_API lade_cache *lade_allocator_get_cache(lade_allocator *allocator, int device);

/* Return the newest failure of any call on this allocator; code 0: none. */
LADE_API void lade_allocator_get_error(lade_allocator *allocator, struct lade_error *ret_error);

/* ---- liblade-allocator.so ---- */

/*
 * One allocator for the process, with the signatures of PyTorch's CUDAPluggableAllocator. The first call creates it,
 * and it lives as long as the process. Link with `pkg-config --libs lade-allocator`, or open the library with dlopen;
 * it needs liblade.so and no library of CUDA. The variable LADE_ALLOCATOR_LIMIT ("20GiB", or bytes) is the limit of
 * each device, unless lade_plugged_limit sets another one first. Any thread.
 */
#define LADE_PLUGGED __attribute__((visibility("default")))

/*
 * Return a block of @size bytes, or NULL: for no bytes, or for a failure, which lade_plugged_error describes. A
 * LADE_ALLOCATOR_LIMIT that is no size fails every allocation.
 */
LADE_PLUGGED void *lade_plugged_alloc(ssize_t size, int device, void *stream);

/*
 * As lade_plugged_alloc, but a failure throws std::runtime_error with the line of lade_plugged_error, because PyTorch
 * reads NULL as an address. For callers in C++ alone. NULL if the process has no libstdc++.
 */
LADE_PLUGGED void *lade_plugged_alloc_or_throw(ssize_t size, int device, void *stream);

/* Free a block; @size is not used. A failure changes nothing, and lade_plugged_error describes it. */
LADE_PLUGGED void lade_plugged_free(void *address, ssize_t size, int device, void *stream);

/* Record that work of @stream uses the block, as lade_allocator_record. lade_plugged_error describes a failure. */
LADE_PLUGGED void lade_plugged_record_stream(void *address, void *stream);

/* Return idle memory to the devices: PyTorch's reset function, behind torch.cuda.empty_cache. */
LADE_PLUGGED void lade_plugged_reset(void);

/* Set the limit of each device, as lade_allocator_set_limit; before LADE_ALLOCATOR_LIMIT. */
LADE_PLUGGED int lade_plugged_limit(uint64_t limit_bytes, struct lade_error *error);

/* Return the newest failure; code 0: none. */
LADE_PLUGGED void lade_plugged_error(struct lade_error *ret_error);

/*
 * Return the process's allocator for lade_allocator_trim, _step, _get_stats and the like; it must not be destroyed.
 * NULL, with the cause in @error, for no memory or a LADE_ALLOCATOR_LIMIT that is no size.
 */
LADE_PLUGGED lade_allocator *lade_plugged_allocator(struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
