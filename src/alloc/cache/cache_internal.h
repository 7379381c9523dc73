/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the caching allocator. Private to src/alloc/.
 *
 * A cache has pools (the common one and private ones), a pool has zones, a zone has segments. A segment is a reserved
 * range of addresses, tiled from end to end by blocks, which know their neighbours. A block is live, waiting (freed,
 * but still used by other queues), quarantined, free, or a hole. No chunk is mapped under a hole; under every other
 * block all are. Holes are whole chunks. Free neighbours are one block unless they are free for different queues. Holes
 * that touch are one.
 *
 * Shards. Each queue has a shard with a lock. It holds three zones of the common pool: small blocks, large blocks,
 * large blocks of a repeated step. It also holds descriptors, the index of live blocks, counters, and a ring of the
 * trace. A block belongs to the shard of its segment, whichever queue it is for. A free finds the shard in a map from
 * addresses, without a lock. Private pools have one zone each, in the shard of the host's blocks.
 *
 * An allocation from its queue's own zones takes one shard's lock, and so does a free of a block that no other queue
 * used. Both write nothing that another shard's calls write. All other calls (the ladder, numbers, reports) take all
 * locks: the cache's own first, then the shards' by number. Fields of the cache (queues, pools, chunks, segments,
 * waits, the limit) change under all locks and may be read under any one. Threads of different queues therefore run
 * concurrently until a call needs the whole cache. The ladder sees one cache, as if there were no shards: it searches
 * the zones of all, and a shard without free memory borrows there.
 *
 * The peaks of sums are exact. A shard's counter has a ceiling, and the ceilings of all sum to no more than the peak.
 * Below its own ceiling a counter rises without a look at the others: their sum cannot pass the peak. At the ceiling
 * the call takes all locks, and ceilings are dealt anew or the peak rises. Live bytes have a floor likewise, because
 * reserved bytes that are not live are inactive, and inactive bytes have a peak.
 *
 * Events of one shard are in the order of its ring, those of one thread in the order of its calls. The clock is seldom
 * read (cache_trace.c).
 *
 * Rejected: caches of freed blocks in front of one locked heap, which do not help sizes that never recur; a shard per
 * thread, because a block's order is its queue's and threads move among queues; shards that share segments, because
 * neighbours are cut and joined; one ring for the trace, or common counters with atomic adds, because a line that all
 * cores write costs as much as the lock.
 *
 * Files: cache.c the public calls and the ladder; cache_pools.c private pools; cache_shards.c locks, ceilings, the map
 * of addresses; cache_blocks.c blocks, bins and the index of addresses; cache_chunks.c segments and chunks;
 * cache_steps.c the decision to create chunks; cache_progress.c how far queues have come; cache_queues.c the queues
 * that may use a block, and when; cache_stats.c numbers; cache_trace.c the trace;
 * cache_report.c refusals; cache_guard.c the sanitizer; cache_share.c memory of other processes; cache_snapshot.c the
 * pickle; cache_check.c the recount.
 */
#ifndef LADE_CACHE_INTERNAL_H
#define LADE_CACHE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/lock.h"
#include "device/device.h"
#include "lade/cache.h"

#define UNIT_BYTES ((uint64_t)512) /* every block's granule: rows in GPU kernels are aligned to it */
#define BIN_STEPS_SHIFT 7
#define BIN_STEPS (1u << BIN_STEPS_SHIFT) /* bins for each power of two */
#define EXACT_UNITS (2 * BIN_STEPS) /* sizes below have a bin each */
#define N_BINS 3520                 /* of a segment's bytes, and in whole words */
#define N_QUEUES (LADE_CACHE_MAX_QUEUES + 1) /* number 0: memory that every queue may use */
#define MAX_SPAN_BYTES ((uint64_t)1 << 42)   /* of a segment, so that the largest bin holds it */
#define N_FINDINGS 64
#define N_MOVED 1024 /* counters, by hash of the request */
#define MAX_BORROWED 16

enum block_state { BLOCK_LIVE, BLOCK_WAITING, BLOCK_QUARANTINE, BLOCK_FREE, BLOCK_HOLE };
enum zone_kind { ZONE_SMALL, ZONE_LARGE, ZONE_KEPT /* see cache_steps.c */, N_ZONES, ZONE_PRIVATE = N_ZONES };

/* Where a place is searched: in the queue's own shard; in all shards; in all, and among other queues' free blocks. */
enum reach { REACH_HOME, REACH_SHARDS, REACH_QUEUES };

/*
 * First the fields of a block, its neighbours and its lists that the common calls read: one cache line. Then the fields
 * that they only write, or do not touch.
 */
struct cache_block {
  _Alignas(64) uint64_t address;
  uint64_t bytes;
  struct cache_block *before, *after; /* neighbours in the segment; NULL at its ends */
  struct cache_block *next; /* in a bin (free), the zone's holes, a bucket of the index (live), or the quarantine */
  union {
    struct cache_block **link; /* free or a hole: the link that points to it in its list */
    uint64_t requested_bytes;  /* all others */
  };
  uint64_t count; /* not live: its own queue is done with it at (queue, count) */
  uint8_t state, queue, tag;
  uint8_t kind;    /* of its zone */
  uint16_t bin;    /* free: the bin that it is in */
  bool is_guarded; /* with guards around it: no queue used the memory when it was allocated */
  bool is_used;    /* other queues are or were recorded in @users */

  struct cache_segment *segment;
  uint64_t users;    /* live or quarantined: bit per other queue that was recorded */
  const char *place; /* of the allocation */
  const char *free_place; /* waiting or quarantined */
  uint16_t n_waits;       /* waiting: events that it still waits for */
  bool is_poisoned;       /* quarantined, with the pattern of freed memory in it */
};
_Static_assert(offsetof(struct cache_block, segment) == 64, "what is read is one line");

/* Free blocks of one zone and one queue by size: lists, and bits for those that are not empty. */
struct bins {
  const struct cache_block *end; /* of all lists: the shard's */
  uint64_t words[N_BINS / 64];
  uint64_t summary; /* a bit per word */
  struct cache_block *heads[N_BINS];
};

struct cache_segment {
  struct zone *zone;
  struct cache_segment *next;
  uint64_t base, bytes;
  int number;
  struct cache_block *first;
  lade_chunk **chunks; /* per chunk of addresses; NULL: not mapped */
};

struct zone {
  struct lade_cache_pool *pool;
  struct shard *shard;
  struct zone *next; /* of the pool */
  enum zone_kind kind;
  struct cache_segment *segments;
  struct cache_block *holes;
  struct bins *bins[N_QUEUES]; /* made when first needed; [0]: free for every queue */
};

/* Counters of live blocks, in each shard. */
enum meter_kind {
  METER_BLOCKS,
  METER_REQUESTED,
  METER_BYTES,
  METER_FLOOR, /* METER_BYTES from below; nothing is counted here */
  METER_TAG,   /* METER_BYTES by tag, from the first tag on */
  N_METERS = METER_TAG + LADE_CACHE_MAX_TAGS
};

/* Live bytes are allocated bytes less freed ones. */
struct meter {
  uint64_t allocated, freed;
  uint64_t ceiling; /* the meter rises to this without all locks; the shards' ceilings sum to at most the peak */
};

struct shard {
  struct cache_block end; /* the end of its lists of free blocks and holes: a dummy; each real block has a next */
  _Alignas(64) struct lade_lock lock;
  int number; /* of its queue */
  int n_unused;
  struct cache_block *unused; /* descriptors */
  struct cache_block **index; /* live blocks of its segments by address: chains */
  uint64_t index_mask;
  struct trace_entry *trace; /* ring */
  uint64_t n_traced;
  uint64_t stamp;       /* of the last event, with room for a queue below */
  uint64_t stamp_end;   /* the event before which the clock is read again */
  uint64_t stamp_count; /* work submitted by the last free */
  int n_borrowed; /* requests served from other shards since the last one served from this shard */
  int n_crowded;  /* climbs of the ladder that had to wait for another thread, since chunks were created */
  uint64_t room_bytes;  /* bytes until METER_BYTES or METER_REQUESTED is at its ceiling, or fewer */
  uint64_t floor_bytes; /* METER_BYTES falls to this without all locks */
  struct meter meters[N_METERS];
  struct zone zones[N_ZONES];
  LADE_ARRAY(struct cache_block *) slabs;
};

struct lade_cache_pool {
  struct lade_cache_pool *next;
  struct zone *zones; /* in order of creation */
  struct zone own;    /* a private pool's only one */
  bool is_private;   /* its chunks stay where they are */
  bool is_shared;    /* and are of the kind that other processes can map */
  bool is_capturing;
  int n_climbs; /* climbs for blocks of it that hold no lock */
};

/* Read without a lock to choose a slot; read again under the lock. */
struct queue_slot {
  _Atomic(lade_queue *) queue; /* NULL: unused */
  struct lade_cache_pool *pool;
  _Atomic(struct shard *) shard; /* of its pool's zones */
  uint64_t capture_count; /* under capture: work submitted since this count may never run */
  int n_syncs; /* threads without a lock that wait for the queue or climb for it */
  bool is_leaving; /* the spill function is forgetting it: its climbs do not wait for that function's end */
};

/* A queue's use of a waiting block. */
struct wait {
  struct cache_block *block;
  int queue;
  uint64_t count;
};

/* Memory of another process that is mapped here. */
struct share {
  uint64_t address; /* of the block */
  uint64_t base, bytes; /* of the range that it lies in */
  lade_chunk **chunks;
  int n_chunks;
};

/* The last frees, for the sanitizer's reports of wrong ones. */
struct freed {
  uint64_t address;
  const char *place, *free_place;
};
#define N_FREED 4096 /* by hash of the address: a later free replaces an earlier one */

/* The last refused request, and the memory that would have sufficed. */
struct refusal {
  uint64_t bytes; /* 0: there was none */
  uint64_t shortfall_bytes; /* by which the limit was too low */
  uint64_t block_bytes;     /* the smallest live block whose free would have sufficed; 0: none */
  const char *place, *block_place;
  int tag;
  bool is_capturing;
};

/* A request that lacked chunks, and the times when it did, in bytes allocated so far. See cache_steps.c. */
#define N_TIMES 4
struct recurrence {
  uint64_t hash; /* of its size and of the live bytes */
  uint64_t first, times[N_TIMES]; /* latest first; 0: none */
  bool is_repeated; /* at its last request it was part of a step that repeats */
  bool is_kept;     /* memory is kept for it */
};

/* An event of the trace in half a cache line, because many are written and few are read. */
struct trace_entry {
  uint64_t address;
  uint64_t bytes; /* whole units; in the low bits action and tag */
  const char *place;
  uint64_t stamp; /* a time, and in the low bits the queue */
};

/* The shard of a thread's last event: the thread's number plus the shard's. One cache line each. */
struct tracer {
  _Atomic uintptr_t last;
  char rest[64 - sizeof(uintptr_t)];
};
#define N_TRACERS 64

struct lade_cache {
  struct lade_lock lock; /* the first of all locks; alone it guards nothing */
  _Atomic int *is_alive; /* a page that is zero in a child of fork */
  lade_device *device;
  uint64_t chunk_bytes; /* of the chunks made here: some device chunks */
  uint64_t limit_bytes;
  uint32_t flags;
  bool is_crowded;  /* some lock was busy when all locks were taken */
  bool is_spilling; /* the owner's function runs, in this thread */
  pthread_t spiller;
  int spill_queue; /* whose request called it */
  _Atomic uint32_t n_spilled; /* times that it has returned */
  _Atomic uint32_t n_synced;  /* waits for queues that have ended */
  bool is_touchable; /* the host may write to the memory */
  lade_cache_spill_fn *spill;
  void *spill_arg;
  struct lade_cache_pool common;
  struct lade_cache_pool *pools; /* all, the common one last */
  int n_segments;
  struct queue_slot queues[N_QUEUES]; /* [0] is for the host and has no queue */
  _Atomic int n_queues;               /* slots in use are below this */
  struct shard *shards[N_QUEUES];     /* NULL: no queue yet */
  _Atomic(_Atomic uint8_t *) *owners; /* shards of addresses; see cache_shards.c */
  _Atomic uint64_t address_high;      /* the high bits that all addresses share */
  int granule_shift;                  /* of the device's chunks */
  LADE_ARRAY(struct wait) waits; /* with room for n_recorded more */
  int n_recorded;                /* bits in the users of all blocks that are live or quarantined */
  LADE_ARRAY(lade_chunk *) spare; /* chunks that are mapped nowhere */

  LADE_ARRAY(struct share) shares;

  struct refusal refusal;
  struct lade_cache_stats stats; /* peaks; the other values of live blocks are as of the last lade_cache_stats_derive */
  uint64_t n_pending, pending_bytes; /* of blocks that are waiting or quarantined */
  struct lade_cache_tag tags[LADE_CACHE_MAX_TAGS];
  int n_tags;
  uint64_t n_trace_entries; /* of each shard's ring: a power of two, or 0 */
  uint64_t traced_from_ticks; /* stamps count from here */
  int64_t traced_from_ns;
  bool has_steady_ticks; /* or else ticks are the system's nanoseconds */
  int n_tracing; /* shards that have events: one needs no stamps for their order */
  struct tracer tracers[N_TRACERS];
  uint16_t moved[N_MOVED]; /* moves by request (cache_steps.c); unrelated requests may share a counter */
  struct recurrence recurrences[N_MOVED];
  uint64_t step_bytes;     /* length of a step that repeats */
  uint64_t maybe_bytes;    /* latest unconfirmed distance between two times of a request; from 0 at its first */
  uint64_t repeated_since; /* time of the first request of a repeated step at this peak of live bytes */
  uint64_t repeated_peak_bytes;
  uint64_t high_bytes;     /* most live bytes before peaks were reset */
  uint64_t n_looked_at;    /* blocks visited by the ladder: the cost of its climbs, without a clock */

  /* State of the sanitizer. */
  struct cache_block *quarantine_first, *quarantine_last;
  uint64_t quarantine_bytes, quarantine_limit_bytes;
  struct freed *freed;
  struct lade_error *findings;
};

/* ---- cache.c ---- */

/* True if the calling thread runs the owner's spill function. Called with all locks. */
bool lade_cache_is_spiller(const lade_cache *cache);
/*
 * Ask the owner for @bytes that @queue lacks. False if it gives none. Called with all locks, which are released
 * meanwhile, as in the next call.
 */
bool lade_cache_spill(lade_cache *cache, int queue, uint64_t bytes);
/* Wait for all queues but those under capture; blocks that they are done with become free for every queue. */
void lade_cache_wait_and_sweep(lade_cache *cache);

/* ---- cache_shards.c ---- */

/* Make the shard of queue @number. -ENOMEM. Called with all locks, or before other threads know the cache. */
int lade_cache_shard_create(lade_cache *cache, int number);
void lade_cache_shards_free(lade_cache *cache);

/* True if @shard has borrowed so often that its next request must be served from @shard itself. */
static inline bool lade_cache_home_is_due(const struct shard *shard)
{
  return shard->n_borrowed >= MAX_BORROWED;
}

/* Lock and unlock all locks. */
void lade_cache_lock_all(lade_cache *cache);
void lade_cache_unlock_all(lade_cache *cache);
/* Release all locks, sleep until @word is woken, and take them again. May return earlier. */
void lade_cache_sleep_all(lade_cache *cache, _Atomic uint32_t *word);

/* Return the slot of @queue, or NULL. Without a lock: a hint. */
struct queue_slot *lade_cache_slot_find(lade_cache *cache, const lade_queue *queue);

/* Create the map of addresses, all without an owner, by granules of the device's mappings. -ENOMEM. */
int lade_cache_owners_create(lade_cache *cache, uint64_t granule_bytes);
/* Assign [address, +bytes) to @shard; NULL: to no shard. -ENOMEM. */
int lade_cache_owner_set(lade_cache *cache, uint64_t address, uint64_t bytes, const struct shard *shard);
/* Return the shard that @address belongs to, or NULL. Without its lock: a hint. */
struct shard *lade_cache_owner_get(const lade_cache *cache, uint64_t address);

/* Return the sum over all shards. Called with all locks. */
uint64_t lade_cache_meter_sum(const lade_cache *cache, int meter);
static inline uint64_t lade_cache_live_bytes(const lade_cache *cache)
{
  return lade_cache_meter_sum(cache, METER_BYTES);
}
/* Return the number of blocks freed so far. Called with all locks. */
uint64_t lade_cache_freed_count(const lade_cache *cache);
static inline uint64_t lade_cache_meter_get(const struct meter *meter)
{
  return meter->allocated - meter->freed;
}
/*
 * Return the bytes until METER_BYTES or METER_REQUESTED reaches its ceiling, whichever comes first. Requested bytes
 * never exceed taken ones.
 */
uint64_t lade_cache_meters_room(const struct shard *shard);
/* Compute @shard's room_bytes again. True if a block fits below these ceilings. */
bool lade_cache_meters_find_room(struct shard *shard, uint64_t requested_bytes, uint64_t bytes);
/* True if the counters of @shard stay below their ceilings. */
static inline bool lade_cache_meters_have_room(struct shard *shard, int tag, uint64_t requested_bytes, uint64_t bytes)
{
  const struct meter *blocks = &shard->meters[METER_BLOCKS], *own = &shard->meters[METER_TAG + tag];
  return lade_cache_meter_get(blocks) < blocks->ceiling && lade_cache_meter_get(own) + bytes <= own->ceiling &&
         (shard->room_bytes >= bytes || lade_cache_meters_find_room(shard, requested_bytes, bytes));
}
static inline bool lade_cache_meters_may_fall(const struct shard *shard, uint64_t bytes)
{
  return lade_cache_meter_get(&shard->meters[METER_BYTES]) >= shard->floor_bytes + bytes;
}
/*
 * Give the counters of @shard space for a block, and raise peaks that the sums pass. lade_cache_meters_lower
 * lowers the floor for a free. Called with all locks.
 */
void lade_cache_meters_raise(lade_cache *cache, struct shard *shard, int tag, uint64_t requested_bytes,
                             uint64_t bytes);
void lade_cache_meters_lower(lade_cache *cache, struct shard *shard, uint64_t bytes);
/* Set peaks, ceilings and floors to the current values. */
void lade_cache_meters_reset(lade_cache *cache);

/* Count a new live block, for which the counters have space; count its end. */
static inline void lade_cache_meters_add(struct shard *shard, const struct cache_block *block)
{
  struct meter *meters = shard->meters;
  shard->room_bytes -= LADE_MIN(shard->room_bytes, block->bytes); /* a block of more bytes fits if it requested fewer */
  meters[METER_BLOCKS].allocated++;
  meters[METER_REQUESTED].allocated += block->requested_bytes;
  meters[METER_BYTES].allocated += block->bytes;
  meters[METER_TAG + block->tag].allocated += block->bytes;
}
static inline void lade_cache_meters_sub(struct shard *shard, const struct cache_block *block)
{
  struct meter *meters = shard->meters;
  meters[METER_BLOCKS].freed++;
  meters[METER_REQUESTED].freed += block->requested_bytes;
  meters[METER_BYTES].freed += block->bytes;
  meters[METER_TAG + block->tag].freed += block->bytes;
}

/* ---- cache_blocks.c; the common case of its calls is in cache_blocks.h ---- */

/* Make an index, or a larger one. -ENOMEM. */
int lade_cache_index_grow(struct shard *shard);
bool lade_cache_blocks_grow(struct shard *shard, int n);
/* Make @n descriptors available. False without memory. */
static inline bool lade_cache_blocks_prepare(struct shard *shard, int n)
{
  return shard->n_unused >= n || lade_cache_blocks_grow(shard, n);
}

/* Return a queue's bins, made when first needed; NULL without memory. */
struct bins *lade_cache_bins_create(struct zone *zone, int queue);
static inline struct bins *lade_cache_bins_get(struct zone *zone, int queue)
{
  return zone->bins[queue] ? zone->bins[queue] : lade_cache_bins_create(zone, queue);
}
static inline const struct cache_block *lade_cache_list_end(const struct zone *zone)
{
  return &zone->shard->end;
}

/* Join a free block or hole, in no list, with matching neighbours on both sides, and put it into its list. */
struct cache_block *lade_cache_block_settle(lade_cache *cache, struct cache_block *block);

/* ---- cache_progress.c, cache_queues.c ---- */

/* Return the number of @queue; assign one and a shard if it has none. 0 for NULL. -EINVAL, -ENOSPC, -ENOMEM. */
int lade_cache_queue_number(lade_cache *cache, lade_queue *queue);
/* Return the event after which all work submitted to the queue is done. */
uint64_t lade_cache_queue_count(const lade_cache *cache, int queue);
/*
 * True if (queue, count) is over. A deterministic cache waits for it, or returns false for a queue under capture.
 */
bool lade_cache_is_over(lade_cache *cache, int queue, uint64_t count);
/* True if @queue may use the free @block now. */
bool lade_cache_is_usable(lade_cache *cache, const struct cache_block *block, int queue);
/* True if (queue, count) is certain to come: false for work submitted to a queue since its pool is under capture. */
bool lade_cache_may_wait(const lade_cache *cache, int queue, uint64_t count);
/* Make all later work of @queue wait for (other, count). */
void lade_cache_wait_event(lade_cache *cache, int queue, int other, uint64_t count);
/* Record that @queue uses the live block, too. -ENOMEM. */
int lade_cache_block_record(lade_cache *cache, struct cache_block *block, int queue);
/*
 * Free a block as far as its queues allow: it becomes free, or waiting. @is_at_once is false if the trace has the free
 * already.
 */
void lade_cache_block_release(lade_cache *cache, struct cache_block *block, bool is_at_once);
/* Release waiting blocks whose waits are over. */
void lade_cache_waits_poll(lade_cache *cache);
/* Release all blocks that wait for @queue, whose work is done. */
void lade_cache_waits_drop(lade_cache *cache, int queue);
/*
 * Make @queue wait for all events that waiting blocks wait for; the blocks are then free for it. The waits are
 * submitted with the locks held. A block may be given to @queue only after its wait is in @queue. Until then no other
 * thread may take the block or release a queue. This does not wait for a device. But if a driver's queue is full, the
 * submission blocks, and all allocations of this cache wait for as long as work in @queue takes.
 */
void lade_cache_waits_adopt(lade_cache *cache, int queue);
/* Make every free block whose queue is done with it free for every queue, and join it with its neighbours. */
void lade_cache_sweep(lade_cache *cache, struct lade_cache_pool *pool);
/*
 * Wait on the host for all events that freed blocks still wait for. Queues under capture are left out unless
 * @with_captures, because their work may never run. Called without the lock.
 */
void lade_cache_wait_all(lade_cache *cache, bool with_captures);

/* ---- cache_chunks.c ---- */

/*
 * Return a free block of at least @bytes, in no list, made by mapping chunks within @reach. -ENOMEM if the limit, the
 * device or the heap refuses; the memory gathered so far stays usable.
 */
int lade_cache_place_build(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes, enum reach reach,
                           struct cache_block **ret_block);
/*
 * Return the bytes by which the limit is too low for a block of @bytes, once all work is done: the missing bytes of the
 * best window, less those that could be moved there. 0 if the limit is not the cause.
 */
uint64_t lade_cache_shortfall(lade_cache *cache, struct zone *zone, uint64_t bytes);
int lade_cache_chunks_trim(lade_cache *cache, uint64_t keep_bytes);
/* Return the bytes of whole chunks in free blocks that no queue uses, and of spare chunks. */
uint64_t lade_cache_idle_bytes(lade_cache *cache);
/* Make all idle chunks of the pool spare. -ENOMEM if the machine refuses; the rest is unchanged. */
int lade_cache_pool_unmap(lade_cache *cache, struct lade_cache_pool *pool);
/* Unmap all memory of the pool and release its segments; spare chunks remain. */
void lade_cache_pool_clear(lade_cache *cache, struct lade_cache_pool *pool);
void lade_cache_spare_release(lade_cache *cache);

/* ---- cache_steps.c ---- */

/*
 * Return the number of chunks to create for a request for @bytes in @shard that lacks @n chunks; the others are moved.
 *
 * pre: some chunks are idle.
 */
uint64_t lade_cache_creates_get(lade_cache *cache, struct shard *shard, uint64_t bytes, uint64_t n);
/* True if a request for @bytes now belongs to a repeated step for which memory is kept. */
bool lade_cache_is_kept(const lade_cache *cache, uint64_t bytes);

/* ---- cache_share.c ---- */

/* Close shares that are still open. */
void lade_cache_shares_close(lade_cache *cache);

/* ---- cache_stats.c ---- */

static inline void lade_cache_stat_add(struct lade_cache_stat *stat, uint64_t n)
{
  stat->current += n;
  if (stat->current > stat->peak)
    stat->peak = stat->current;
}

static inline void lade_cache_stat_sub(struct lade_cache_stat *stat, uint64_t n)
{
  LADE_ASSERT(stat->current >= n);
  stat->current -= n;
  stat->freed += n;
}

/* Allocations are not counted: they are the current value plus all frees. */

/* Count a freed block that its queues still use and no caller owns. */
static inline void lade_cache_pending_add(lade_cache *cache, const struct cache_block *block)
{
  cache->n_pending++;
  cache->pending_bytes += block->bytes;
}
static inline void lade_cache_pending_sub(lade_cache *cache, const struct cache_block *block)
{
  cache->n_pending--;
  cache->pending_bytes -= block->bytes;
}
/* Note that blocks became free or chunks came, which may raise a derived peak. Called with all locks. */
void lade_cache_inactive_note(lade_cache *cache);
/* Bring all statistics up to date. Called with all locks. */
void lade_cache_stats_derive(lade_cache *cache);

/* ---- cache_trace.c; the writing part of its calls is in cache_trace.h ---- */

/* Keep events from now on: at least the last @n; none for 0. */
void lade_cache_trace_init(lade_cache *cache, uint64_t n);
/* Return the number of events, and the last @n of them, oldest first. Called with all locks. */
uint64_t lade_cache_trace_count(const lade_cache *cache);
void lade_cache_trace_copy(const lade_cache *cache, struct lade_cache_event *ret_events, uint64_t n);
void lade_cache_trace_chunk(lade_cache *cache, struct shard *shard, enum lade_cache_action action, uint64_t address);

/* ---- cache_report.c ---- */

/* Write a place or a tag's name for a line; a character that would break the line becomes a question mark. */
#define ECHO_BYTES 80
struct lade_cache_echo {
  char text[ECHO_BYTES + 1];
};
/* Return at most @max bytes of a name, without a partial letter; "place unknown" for NULL. */
struct lade_cache_echo lade_cache_echo(const char *name, size_t max);

/*
 * Write the refused request, the reason, and the memory that would have sufficed, in one line. The page of
 * lade_cache_report has more.
 */
int lade_cache_refuse(lade_cache *cache, const struct lade_cache_request *request, struct zone *zone, uint64_t bytes,
                      struct lade_error *error);

/* ---- cache_guard.c; called only when the cache sanitizes ---- */

/* Allocate the records of frees; finish frees them. Fill: write guards and the pattern of fresh memory. -ENOMEM. */
int lade_cache_guard_init(lade_cache *cache, uint64_t quarantine_bytes);
void lade_cache_guard_finish(lade_cache *cache);
void lade_cache_guard_fill(struct cache_block *block);
/* Keep a freed block in quarantine; the oldest leave if it holds too many bytes. */
void lade_cache_guard_keep(lade_cache *cache, struct cache_block *block);
/* Release all quarantined blocks whose queues are done with them, or all at once. True if one was released. */
bool lade_cache_guard_drain(lade_cache *cache, bool is_all);
/* Report the known facts about an address without a live block. */
int lade_cache_guard_wrong_free(lade_cache *cache, uint64_t address, const char *place, struct lade_error *error);
#define GUARD_BYTES UNIT_BYTES

#endif
