/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/cache.h - the caching allocator: device memory for programs that cannot be planned ahead.
 *
 * Blocks are handed out and taken back in the order of queues. A block belongs to the queue that it was asked for:
 * freed, it is at once free for that queue again, since a queue runs its work in order, and another queue gets
 * it when what was submitted before the free has happened, or by waiting for it on the device. A block that other
 * queues use as well is recorded with them. Nobody gets memory that work submitted earlier can still touch.
 *
 * Memory comes in chunks that are mapped where they are needed and moved from where they lie idle, without copying; a
 * byte limit is hard. When it is reached the allocator goes a ladder from free to dear before it says that memory
 * is out: coalesce, move idle chunks, take from other queues by event, call the owner's spill function, wait.
 *
 * Every function may be called by any thread at any time, except that a queue's wait may be submitted by
 * lade_cache_alloc: call it from the thread that submits to that queue. A child made by fork gets -EPERM from
 * everything and may destroy what it inherited. The library keeps nothing per thread, starts no thread here and
 * registers nothing that would be called at an exit: threads that used it may end whenever they like, and when
 * caches, queues and devices have been destroyed it may be unloaded.
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
   * Placement is a function of the calls alone: every rank that makes the same calls gets the same offsets. The
   * progress of queues is never looked at; where it would decide, the caller waits instead, or, of a queue under
   * capture, takes it as not done. The cache is locked meanwhile, so work of its queues may not call it.
   */
  LADE_CACHE_DETERMINISTIC = 1,
  /*
   * Look for mistakes, at a price: guards on both sides of each block, patterns in fresh and in freed memory,
   * freed blocks kept back for a while. Findings are kept, see lade_cache_get_finding. Patterns and guards need memory
   * that the host may touch; without (a dry device) wrong frees are still found.
   */
  LADE_CACHE_SANITIZE = 2,
};

enum { LADE_CACHE_MAX_TAGS = 64, LADE_CACHE_MAX_QUEUES = 63 };

/*
 * Give back at least @bytes by freeing blocks of this cache, from the thread that is asking for memory; 0 when
 * nothing can be given. It may call every function of the cache but destroy, and submit work; to allocate or to
 * create a pool is -EDEADLK from here, and to forget the queue that is asking does nothing. When it forgets another
 * queue, requests for that queue in other threads go on without help from here, and are refused where nothing else
 * serves them. One call at a time is under way: other threads that are out of memory wait for it, so it may not wait
 * for them.
 */
typedef uint64_t lade_cache_spill_fn(void *arg, uint64_t bytes);

struct lade_cache_params {
  size_t struct_size;        /* sizeof(struct lade_cache_params) */
  lade_device *device;       /* borrowed: it outlives the cache */
  uint64_t limit_bytes;      /* of memory reserved from the device; 0: the device's capacity */
  uint32_t flags;            /* of enum lade_cache_flags */
  uint32_t n_trace_entries;  /* the last so many events are kept, 32 bytes each for each queue; rounded up to a power
                                of two; 0: none */
  uint64_t quarantine_bytes; /* with LADE_CACHE_SANITIZE: freed bytes kept back; 0: 64 MiB */
  lade_cache_spill_fn *spill; /* NULL: none */
  void *spill_arg;
};

/* The caller destroys the cache. -EINVAL, -ENOMEM. */
LADE_API int lade_cache_create(const struct lade_cache_params *params, struct lade_error *error,
                               lade_cache **ret_cache);

/*
 * Waits for the queues that it has seen, then gives all memory back, blocks that are still live included. NULL is
 * allowed. No other call on the cache may be under way; queues that were destroyed must have been forgotten.
 */
LADE_API void lade_cache_destroy(lade_cache *cache);

struct lade_cache_request {
  size_t struct_size;  /* sizeof(struct lade_cache_request) */
  uint64_t bytes;      /* at least 1 */
  lade_queue *queue;   /* whose work uses it; NULL: the host's, free for anyone as soon as it is freed */
  int tag;             /* of lade_cache_tag_add; 0: untagged */
  const char *place;   /* static text, "file.c:12"; NULL: unknown. Shown by reports, traces and snapshots */
};

/*
 * A block of @request's bytes, aligned to 512 bytes. May submit a wait to the queue. -EINVAL for a bad request,
 * -ENOMEM with the cause in @error when even the dearest step made no room (lade_cache_report tells all),
 * -EPERM in a child of fork. Blocks for memory calls when the cache must grow, and for work as the last step.
 */
LADE_API int lade_cache_alloc(lade_cache *cache, const struct lade_cache_request *request, struct lade_error *error,
                              void **ret_address);

/*
 * Give a block back in the order of its queue: what was submitted to the queue, and to those recorded, may still use
 * it. NULL is allowed. -EINVAL, nothing changed, for an address that is no live block: with LADE_CACHE_SANITIZE @error
 * says where it was allocated and freed before. Never blocks on work or the device.
 */
LADE_API int lade_cache_free(lade_cache *cache, void *address, const char *place, struct lade_error *error);

/*
 * @queue uses the block too: its free waits for what was submitted there until then. -EINVAL for no live block or a
 * queue of another device, -ENOSPC (too many queues), -ENOMEM, -EPERM.
 */
LADE_API int lade_cache_record(lade_cache *cache, void *address, lade_queue *queue);

/*
 * Call before a queue that the cache has seen is destroyed; waits for its work, and for requests for it that are under
 * way. Unknown queues are ignored.
 */
LADE_API void lade_cache_forget(lade_cache *cache, lade_queue *queue);

/* Return idle memory to the device until at most @keep_bytes are reserved, as far as it goes. 0, -EPERM. */
LADE_API int lade_cache_trim(lade_cache *cache, uint64_t keep_bytes);

struct lade_cache_block {
  void *address;
  uint64_t requested_bytes;
  uint64_t bytes;    /* what it takes */
  uint64_t offset;   /* from the start of its segment: equal on every rank of a deterministic cache */
  int segment;       /* number of the segment, in order of creation */
  int tag;
  lade_queue *queue;
};

/* The live block that starts at @address. -EINVAL for none. */
LADE_API int lade_cache_get_block(lade_cache *cache, const void *address, struct lade_cache_block *ret_block);

/* ---- private pools ---- */

/*
 * A pool with memory of its own, which stays mapped where it is until the pool is destroyed: what a captured graph
 * replays on stays valid. @bytes are reserved at once; at the limit memory is found for them as for an allocation, the
 * spill function asked and work waited for. -ENOMEM, -EPERM, -EDEADLK from the spill function.
 */
LADE_API int lade_cache_pool_create(lade_cache *cache, uint64_t bytes, lade_cache_pool **ret_pool);

/*
 * Its memory goes back to the cache. -EBUSY while blocks of it live or are asked for, a queue is routed to it or one
 * under capture may still use it, -ENOMEM when the machine refuses to unmap; then the pool is still there. -EINVAL for
 * a pool that is not, or of another cache. NULL is allowed. Waits for the queues, but for those under capture.
 */
LADE_API int lade_cache_pool_destroy(lade_cache *cache, lade_cache_pool *pool);

/* From now on blocks for @queue come from @pool; NULL: from the cache. -EINVAL, -ENOSPC (too many queues), -ENOMEM. */
LADE_API int lade_cache_route(lade_cache *cache, lade_queue *queue, lade_cache_pool *pool);

/*
 * Between begin and end the pool makes no memory call, looks at no queue and waits for none, so that a capture
 * records nothing of it; what does not fit what it has is -ENOMEM. Nor does any other allocation wait on the host for a
 * queue that is routed to it, or make another queue wait for what was submitted to it since: that may never run.
 * -EALREADY, -EINVAL when it was not begun.
 */
LADE_API int lade_cache_capture_begin(lade_cache *cache, lade_cache_pool *pool);
LADE_API int lade_cache_capture_end(lade_cache *cache, lade_cache_pool *pool);

/* ---- memory that other processes have as well ---- */

/*
 * A private pool whose memory can be shared with other processes of this machine. Its chunks are of a kind of their
 * own, are never moved, and go back to the device with the pool. -ENOTSUP where the device has no such memory (a
 * dry one), else as lade_cache_pool_create.
 */
LADE_API int lade_cache_pool_create_shared(lade_cache *cache, uint64_t bytes, lade_cache_pool **ret_pool);

/* Where a shared block lies; plain numbers, to be sent along with the descriptors. */
struct lade_cache_share {
  size_t struct_size;   /* set by the caller */
  uint64_t bytes;       /* of the block, as asked for */
  uint64_t offset;      /* of its first byte in the first chunk */
  uint64_t chunk_bytes; /* of each chunk */
  int n_chunks;
};

/*
 * Describe the live block at @address, and write a file descriptor per chunk that it touches, which the caller sends
 * (over a Unix socket, say) and closes. @descriptors NULL: only describe. A chunk may hold other blocks of its pool:
 * whoever gets it can write to them. The block may not be freed while the other side uses it, which is for the two to
 * agree. -EINVAL for no live block, one of another pool, or a struct_size that is none, -ENOSPC when @n is too small,
 * -EMFILE, -EPERM.
 */
LADE_API int lade_cache_share_get(lade_cache *cache, const void *address, struct lade_cache_share *ret_share,
                                  int *descriptors, int n);

/*
 * In the other process: map what was described; the descriptors may be closed after. The memory is the giver's and
 * counts against its limit, not against this cache's; it stays while anyone has it open. Not for lade_cache_free.
 * -EINVAL for a description or descriptors that do not agree, -ENOTSUP, -ENOMEM, -EMFILE, -EPERM.
 */
LADE_API int lade_cache_share_open(lade_cache *cache, const struct lade_cache_share *share, const int *descriptors,
                                   void **ret_address);

/* Unmap it; no work that touches it may be under way. -EINVAL for what was not opened, -EPERM. */
LADE_API int lade_cache_share_close(lade_cache *cache, void *address);

/* ---- what happened ---- */

struct lade_cache_stat {
  uint64_t current, peak;
  uint64_t allocated, freed; /* sums of all that came and went */
};

/* The names are PyTorch's. */
struct lade_cache_stats {
  size_t struct_size;                     /* set by the caller */
  struct lade_cache_stat allocation;      /* live blocks */
  struct lade_cache_stat active;          /* and those that were freed and wait for other queues */
  struct lade_cache_stat segment;         /* chunks reserved from the device */
  struct lade_cache_stat requested_bytes; /* of live blocks, as asked for */
  struct lade_cache_stat allocated_bytes; /* of live blocks, as taken */
  struct lade_cache_stat active_bytes;
  struct lade_cache_stat reserved_bytes;  /* chunks: what the limit is about */
  struct lade_cache_stat inactive_split_bytes; /* reserved and not active; its peak is of the last peak reset on */
  uint64_t num_alloc_retries; /* allocations that went past the limit's first refusal */
  uint64_t num_ooms;
  uint64_t n_creates, n_releases, n_maps, n_unmaps; /* calls to the device, in chunks */
  uint64_t n_event_waits, n_host_waits, n_spills;
  uint64_t n_findings; /* of LADE_CACHE_SANITIZE */
};

/* -EINVAL for a struct_size that is none, -EPERM. */
LADE_API int lade_cache_get_stats(lade_cache *cache, struct lade_cache_stats *ret_stats);

/* Peaks start anew from what is now. */
LADE_API void lade_cache_reset_peaks(lade_cache *cache);

/*
 * A name of the ledger, copied; a name that exists gives its number again. -ENOSPC past LADE_CACHE_MAX_TAGS - 1 names,
 * -EINVAL for an empty name or one past 47 bytes, -EPERM.
 */
LADE_API int lade_cache_tag_add(lade_cache *cache, const char *name, int *ret_tag);

struct lade_cache_tag {
  char name[48];
  struct lade_cache_stat bytes; /* of live blocks, as taken */
};

/* The ledger's line of @tag; the lines' current bytes sum to allocated_bytes. -ENOENT past the last. */
LADE_API int lade_cache_get_tag(lade_cache *cache, int tag, struct lade_cache_tag *ret_tag);

enum lade_cache_action {
  LADE_CACHE_ALLOC,
  LADE_CACHE_FREE,           /* asked for and done at once */
  LADE_CACHE_FREE_REQUESTED, /* other queues still use it, or it is kept back */
  LADE_CACHE_FREE_COMPLETED,
  LADE_CACHE_SEGMENT_MAP,
  LADE_CACHE_SEGMENT_UNMAP,
  LADE_CACHE_OOM,
};

struct lade_cache_event {
  enum lade_cache_action action;
  int tag;
  uint64_t address, bytes; /* of LADE_CACHE_OOM: what was left below the limit, what was asked for */
  int64_t time_us;   /* since 1970: when the clock was last read, at most 63 events of its queue ago */
  const char *place;
  int queue;         /* the cache's number of the queue; 0: the host */
};

/*
 * Copy the last events, oldest first, at most @n; returns how many. Events of one queue's memory, and so of any
 * address, are in their order, and so are the calls of each thread. What several threads did for several queues is in
 * the order of time_us, for which the clock is also read by a free when work was submitted since the last one. Two
 * calls of a thread for two queues within one tick of the processor's counter may change places: 40 ns on some
 * AArch64, less than a call elsewhere.
 */
LADE_API int lade_cache_get_trace(lade_cache *cache, struct lade_cache_event *ret_events, int n);

/* A page of plain text into @text: bytes by owner, fragmentation, what would make room. Returns its whole length. */
LADE_API size_t lade_cache_report(lade_cache *cache, char *text, size_t text_bytes);

/*
 * Write blocks and trace to @path in the format of PyTorch's memory snapshots (a pickle, protocol 4), which its page
 * memory_viz opens. Written beside and renamed, so that no reader sees a part. -EPERM, -ENOMEM, -EIO, -ENOSPC, ...
 */
LADE_API int lade_cache_write_snapshot(lade_cache *cache, const char *path, struct lade_error *error);

/* Finding number @index (from 0) of LADE_CACHE_SANITIZE; the first 64 are kept. -ENOENT past the last. */
LADE_API int lade_cache_get_finding(lade_cache *cache, int index, struct lade_error *ret_finding);

/*
 * Recount everything that the cache believes: blocks tile their segments, memory is under every block and under
 * no hole, lists and sums agree. 0, or -EBADMSG with the first thing that is wrong. Slow; for tests. -EPERM.
 */
LADE_API int lade_cache_check(lade_cache *cache, struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
