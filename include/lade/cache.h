/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/cache.h - the caching allocator: device memory for programs that cannot be planned ahead.
 *
 * Blocks are allocated and freed in the order of queues. A block belongs to the queue of its request. After its free it
 * is free for that queue at once, because a queue runs its work in order. Another queue gets it when the work submitted
 * before the free is done, or waits for that work on the device. Record a block with every other queue that uses it. A
 * new block never overlaps memory that earlier work can still touch.
 *
 * Memory comes in chunks. Idle chunks move to the place of a request by mapping, without a copy. The byte limit is
 * hard. At the limit the allocator tries, in the order of cost: coalesce, move idle chunks, take from other queues by
 * event, call the owner's spill function, wait for work. Then it returns -ENOMEM.
 *
 * Any thread may call every function at any time, with one exception: lade_cache_alloc may submit a wait, so call it
 * from the thread that submits to the queue. A child made by fork gets -EPERM from every function, and may destroy its
 * inherited cache. The library keeps no data per thread, starts no thread here and registers no exit handler. Threads
 * may end at any time, and the library may be unloaded after caches, queues and devices are destroyed.
 *
 * A function that blocks says so; the others wait for the cache's lock at most.
 */
#ifndef LADE_CACHE_H
#define LADE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/device.h"
#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lade_cache lade_cache;
typedef struct lade_cache_pool lade_cache_pool;

enum lade_cache_flags {
  /*
   * Placement is a function of the calls alone: all ranks with the same calls get the same offsets. The allocator does
   * not read the progress of queues. It waits for work wherever progress would decide the placement, and regards the
   * work of a queue under capture as unfinished. The cache is locked during such a wait, so work of its queues must not
   * call it.
   */
  LADE_CACHE_DETERMINISTIC = 1,
  /*
   * Find wrong uses, at a cost: guards on both sides of each block, patterns in fresh and in freed memory, a quarantine
   * for freed blocks. lade_cache_get_finding returns the findings. Patterns and guards need memory that the host can
   * access; a dry device still finds wrong frees.
   */
  LADE_CACHE_SANITIZE = 2,
};

enum { LADE_CACHE_MAX_TAGS = 64, LADE_CACHE_MAX_QUEUES = 63 };

/*
 * Free blocks of this cache of at least @bytes together, and return the freed bytes; 0 if none can be freed. Runs on
 * the requesting thread, one call at a time. Other threads that are out of memory wait for it, so it must not wait for
 * them. It may submit work and call every function except destroy. Allocating and creating a pool return -EDEADLK
 * here, and forgetting the requesting queue does nothing. When it forgets another queue, requests for that queue in
 * other threads continue without a spill, and fail if no other step serves them.
 */
typedef uint64_t lade_cache_spill_fn(void *arg, uint64_t bytes);

struct lade_cache_params {
  size_t struct_size;        /* sizeof(struct lade_cache_params) */
  lade_device *device;       /* borrowed; outlives the cache */
  uint64_t limit_bytes;      /* limit of memory reserved from the device; 0: its capacity */
  uint32_t flags;            /* of enum lade_cache_flags */
  uint32_t n_trace_entries;  /* events to keep for each queue, 32 bytes each; rounded up to a power of two; 0: no
                                trace */
  uint64_t quarantine_bytes; /* with LADE_CACHE_SANITIZE: freed bytes in quarantine; 0: 64 MiB */
  lade_cache_spill_fn *spill; /* NULL: none */
  void *spill_arg;
};

/* Create a cache; the caller destroys it. -EINVAL for parameters, -ENOMEM. */
LADE_API int lade_cache_create(const struct lade_cache_params *params, struct lade_error *error,
                               lade_cache **ret_cache);

/*
 * Wait for the cache's queues, then return all memory to the device, live blocks included. NULL is allowed. pre: no
 * other call on the cache is in progress, and destroyed queues were forgotten. Blocks.
 */
LADE_API void lade_cache_destroy(lade_cache *cache);

struct lade_cache_request {
  size_t struct_size;  /* sizeof(struct lade_cache_request) */
  uint64_t bytes;      /* at least 1 */
  lade_queue *queue;   /* its work uses the block; NULL: the host, and the block is free for all after its free */
  int tag;             /* from lade_cache_tag_add; 0: untagged */
  const char *place;   /* static text, "file.c:12", for reports, traces and snapshots; NULL: unknown */
};

/*
 * Allocate a block of @request's bytes, aligned to 512 bytes; the caller frees it. May submit a wait to the queue. Call
 * it from the queue's submitting thread. Blocks for memory calls when the cache grows, and for work as the last step.
 *   -EINVAL  a bad request
 *   -ENOMEM  no step made room; @error has the cause, and lade_cache_report the details
 *   -EPERM   the caller is a child of fork
 */
LADE_API int lade_cache_alloc(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error,
                              void **ret_address);

/*
 * Free a block in the order of its queue: work already submitted to it, and to recorded queues, may still use the
 * block. NULL is allowed. -EINVAL for an address that is no live block, with nothing changed; with LADE_CACHE_SANITIZE
 * @error names the places of its allocation and earlier free. Any thread. Never blocks on work or the device.
 */
LADE_API int lade_cache_free(lade_cache *cache, void *address, const char *place, struct lade_error *error);

/*
 * Record that @queue uses the block too: the block's free waits for work submitted to @queue before it. -EINVAL for no
 * live block or a queue of another device, -ENOSPC for too many queues, -ENOMEM, -EPERM.
 */
LADE_API int lade_cache_record(lade_cache *cache, void *address, lade_queue *queue);

/*
 * Forget a queue; call it before the queue is destroyed. Waits for its work, and for requests for it that are in
 * progress. Unknown queues are ignored. Any thread. Blocks.
 */
LADE_API void lade_cache_forget(lade_cache *cache, lade_queue *queue);

/* Return idle memory to the device until at most @keep_bytes are reserved, if possible. 0, -EPERM. */
LADE_API int lade_cache_trim(lade_cache *cache, uint64_t keep_bytes);

struct lade_cache_block {
  void *address;
  uint64_t requested_bytes;
  uint64_t bytes;    /* taken bytes, rounded up */
  uint64_t offset;   /* offset in its segment; equal on every rank of a deterministic cache */
  int segment;       /* number of the segment, in order of creation */
  int tag;
  lade_queue *queue;
};

/* Describe the live block that starts at @address. -EINVAL if there is none. */
LADE_API int lade_cache_get_block(lade_cache *cache, const void *address, struct lade_cache_block *ret_block);

/* ---- private pools ---- */

/*
 * Create a pool with its own memory; the caller destroys it. The memory stays mapped at its address until then, so a
 * captured graph can replay on it. @bytes are reserved at once, at the limit by the same steps as an allocation.
 * -ENOMEM, -EPERM, -EDEADLK from the spill function. Any thread. Blocks as lade_cache_alloc.
 */
LADE_API int lade_cache_pool_create(lade_cache *cache, uint64_t bytes, lade_cache_pool **ret_pool);

/*
 * Destroy a pool and return its memory to the cache. NULL is allowed. On an error the pool stays:
 *   -EBUSY   blocks of it are live or requested, a queue is routed to it, or a queue under capture may use it
 *   -ENOMEM  the machine refuses to unmap
 *   -EINVAL  no such pool, or a pool of another cache
 * Any thread. Waits for the queues, except those under capture.
 */
LADE_API int lade_cache_pool_destroy(lade_cache *cache, lade_cache_pool *pool);

/* Take later blocks for @queue from @pool; NULL: from the cache. -EINVAL, -ENOSPC (too many queues), -ENOMEM. */
LADE_API int lade_cache_route(lade_cache *cache, lade_queue *queue, lade_cache_pool *pool);

/*
 * Begin or end a capture of the queues that are routed to @pool. In between, the pool makes no memory call, reads no
 * queue and waits for no queue, so the capture records no such call. A request that does not fit the pool's memory is
 * -ENOMEM. Captured work may never run. So other allocations neither wait on the host for a captured queue, nor let
 * another queue wait for its work. -EALREADY for a second begin, -EINVAL for an end without a begin.
 */
LADE_API int lade_cache_capture_begin(lade_cache *cache, lade_cache_pool *pool);
LADE_API int lade_cache_capture_end(lade_cache *cache, lade_cache_pool *pool);

/* ---- memory that is shared with other processes ---- */

/*
 * Create a private pool that can share its memory with other processes of this machine. Its chunks never move, and
 * return to the device with the pool. -ENOTSUP if the device has no such memory (a dry one), else as
 * lade_cache_pool_create.
 */
LADE_API int lade_cache_pool_create_shared(lade_cache *cache, uint64_t bytes, lade_cache_pool **ret_pool);

/* The place of a shared block; plain numbers, to be sent with the descriptors. */
struct lade_cache_share {
  size_t struct_size;   /* set by the caller */
  uint64_t bytes;       /* requested bytes of the block */
  uint64_t offset;      /* offset of its first byte in the first chunk */
  uint64_t chunk_bytes; /* size of each chunk */
  int n_chunks;
};

/*
 * Describe the live block at @address, and write a file descriptor for each of its chunks. The caller sends the
 * descriptors (for example over a Unix socket) and closes them. @descriptors NULL: only describe. A chunk may hold
 * other blocks of its pool, and the receiver can write to them. pre: the block is not freed while the receiver uses it.
 * -EINVAL for no live block, a block of another pool, or a wrong struct_size, -ENOSPC when @n is too small, -EMFILE,
 * -EPERM. Any thread.
 */
LADE_API int lade_cache_share_get(lade_cache *cache, const void *address, struct lade_cache_share *ret_share,
                                  int *descriptors, int n);

/*
 * Map a described block in the receiving process; lade_cache_share_close unmaps it, and lade_cache_free must not get
 * it. The descriptors may be closed afterwards. The memory counts against the sender's limit and not against this
 * cache's. It stays while a process has it open. -EINVAL for a description and descriptors that do not agree, -ENOTSUP,
 * -ENOMEM, -EMFILE, -EPERM. Any thread.
 */
LADE_API int lade_cache_share_open(lade_cache *cache, const struct lade_cache_share *share, const int *descriptors,
                                   void **ret_address);

/* Unmap a shared block. pre: no work that touches it is in progress. -EINVAL for an unopened address, -EPERM. */
LADE_API int lade_cache_share_close(lade_cache *cache, void *address);

/* ---- statistics and traces ---- */

struct lade_cache_stat {
  uint64_t current, peak;
  uint64_t allocated, freed; /* sums over all allocations and frees */
};

/* The names are those of PyTorch's statistics. */
struct lade_cache_stats {
  size_t struct_size;                     /* set by the caller */
  struct lade_cache_stat allocation;      /* live blocks */
  struct lade_cache_stat active;          /* live blocks, and freed ones that wait for other queues */
  struct lade_cache_stat segment;         /* chunks reserved from the device */
  struct lade_cache_stat requested_bytes; /* live blocks, as requested */
  struct lade_cache_stat allocated_bytes; /* live blocks, as taken */
  struct lade_cache_stat active_bytes;
  struct lade_cache_stat reserved_bytes;  /* chunks; the limit applies to them */
  struct lade_cache_stat inactive_split_bytes; /* reserved and not active; peak since the last reset of peaks */
  uint64_t num_alloc_retries; /* allocations that met the limit and tried further steps */
  uint64_t num_ooms;
  uint64_t n_creates, n_releases, n_maps, n_unmaps; /* calls to the device, in chunks */
  uint64_t n_event_waits, n_host_waits, n_spills;
  uint64_t n_findings; /* findings of LADE_CACHE_SANITIZE */
};

/* Return statistics. -EINVAL for a wrong struct_size, -EPERM. */
LADE_API int lade_cache_get_stats(lade_cache *cache, struct lade_cache_stats *ret_stats);

/* Reset all peaks to the current values. */
LADE_API void lade_cache_reset_peaks(lade_cache *cache);

/*
 * Add a name to the ledger, or return the tag of an existing name. The name is copied. -ENOSPC past
 * LADE_CACHE_MAX_TAGS - 1 names, -EINVAL for an empty name or one past 47 bytes, -EPERM.
 */
LADE_API int lade_cache_tag_add(lade_cache *cache, const char *name, int *ret_tag);

struct lade_cache_tag {
  char name[48];
  struct lade_cache_stat bytes; /* live blocks, as taken */
};

/* Return the ledger's line of @tag; current bytes of all lines sum to allocated_bytes. -ENOENT past the last. */
LADE_API int lade_cache_get_tag(lade_cache *cache, int tag, struct lade_cache_tag *ret_tag);

enum lade_cache_action {
  LADE_CACHE_ALLOC,
  LADE_CACHE_FREE,           /* requested and done at once */
  LADE_CACHE_FREE_REQUESTED, /* other queues still use the block, or it is in quarantine */
  LADE_CACHE_FREE_COMPLETED,
  LADE_CACHE_SEGMENT_MAP,
  LADE_CACHE_SEGMENT_UNMAP,
  LADE_CACHE_OOM,
};

struct lade_cache_event {
  enum lade_cache_action action;
  int tag;
  uint64_t address, bytes; /* of LADE_CACHE_OOM: the bytes left below the limit, and the requested bytes */
  int64_t time_us;   /* since 1970, of the last reading of the clock, at most 63 events of its queue ago */
  const char *place;
  int queue;         /* number of the queue in this cache; 0: the host */
};

/*
 * Copy at most @n of the last events, oldest first, and return their number. Events of one queue's memory keep their
 * order, and so do events of one address and calls of one thread. Events of several threads for several queues are in
 * the order of time_us. A free also reads the clock if work was submitted since the last free. Two calls of a thread
 * for two queues within one tick of the processor's counter may change places (40 ns on some AArch64). Any thread.
 */
LADE_API int lade_cache_get_trace(lade_cache *cache, struct lade_cache_event *ret_events, int n);

/* Write a page of text: bytes by owner, fragmentation, ways to make room. Return its whole length. */
LADE_API size_t lade_cache_report(lade_cache *cache, char *text, size_t text_bytes);

/*
 * Write blocks and trace to @path in the format of PyTorch's memory snapshots (a pickle, protocol 4), which its page
 * memory_viz opens. A temporary file is renamed to @path, so no reader sees a part. -EPERM, -ENOMEM, -EIO, -ENOSPC and
 * other errors of files. Any thread. Blocks.
 */
LADE_API int lade_cache_write_snapshot(lade_cache *cache, const char *path, struct lade_error *error);

/* Return finding @index (from 0) of LADE_CACHE_SANITIZE; the first 64 are kept. -ENOENT past the last. */
LADE_API int lade_cache_get_finding(lade_cache *cache, int index, struct lade_error *ret_finding);

/*
 * Recount every invariant: blocks tile their segments, each block has memory and no hole has any, lists and sums agree.
 * Return 0, -EBADMSG with the first fault, or -EPERM. Slow; for tests. Any thread.
 */
LADE_API int lade_cache_check(lade_cache *cache, struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
