/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caching allocator from inside. Private to src/alloc/.
 *
 * A cache has pools (the common one and private ones), a pool zones, a zone segments. A segment is a reserved range of
 * addresses, tiled from end to end by blocks, which know their neighbours. A block is live, freed but still used by
 * other queues (waiting), kept back (quarantined), free, or a hole. Under a hole no chunk is mapped, under every other
 * block all are; holes are whole chunks. Free neighbours are one block unless they are free for different queues; holes
 * that touch are one.
 *
 * Shards. Each queue has a shard with a lock: three zones of the common pool, for small blocks, for large ones and for
 * large ones of a step that repeats, and what belongs to them: descriptors, the index of live blocks, counters, a ring
 * of the trace. A block's segment says whose shard it is in, whichever queue it is for, and a map from addresses to
 * shards tells a free, without a lock.
 * Private pools have one zone each, in the shard of the host's blocks.
 *
 * An allocation that finds its place in its queue's own zones, and a free of a block that no other queue used, take one
 * shard's lock and touch nothing that another shard's calls write. Everything else, the ladder, numbers, reports, takes
 * all locks: the cache's own first, then the shards' by number. What is the cache's (queues, pools, chunks, segments,
 * waits, the limit) changes with all of them and may be read with any one of them. So threads of different queues run
 * side by side as long as nothing has to be asked of the whole, and the ladder sees one cache as if there were no
 * shards: it searches the zones of all, and a shard that has nothing free borrows there.
 *
 * The peaks of sums are exact all the same. A shard's counter has a ceiling; the ceilings of all sum to no more than
 * the peak. Below its own ceiling a counter rises without a look at the others: their sum cannot pass the peak. At
 * it the call takes all locks and ceilings are dealt anew, or the peak rises. What must not fall without
 * being seen, the bytes that are live (the rest of what is reserved is inactive, and has a peak), has a floor likewise.
 *
 * Events of one shard are in the order of its ring, those of one thread in the order of its calls, and the clock is
 * seldom read (cache_trace.c).
 *
 * Rejected: caches of freed blocks in front of one locked heap, which sizes that never come again miss; a shard
 * by thread, since a block's order is its queue's and threads move among queues; shards that share segments, since
 * neighbours are cut and joined; one ring for the trace, or counters for all, with atomic adds: a line that all cores
 * write costs each what the lock did.
 *
 * Files: cache.c the public calls and the ladder; cache_pools.c private pools; cache_shards.c locks, ceilings, the map
 * of addresses; cache_blocks.c blocks, bins and the index of addresses; cache_chunks.c segments and chunks;
 * cache_steps.c when chunks are created; cache_queues.c who may use what when; cache_stats.c numbers; cache_trace.c the
 * trace; cache_report.c what to do when it is out; cache_guard.c the sanitizer; cache_share.c memory of other
 * processes; cache_snapshot.c the pickle; cache_check.c the recount.
 */
#ifndef LADE_CACHE_INTERNAL_H
#define LADE_CACHE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/lock.h"
#include "device/device.h"
#include "lade/cache.h"

#define UNIT_BYTES ((uint64_t)512) /* every block's granule: what GPU kernels like rows aligned to */
#define BIN_STEPS_SHIFT 7
#define BIN_STEPS (1u << BIN_STEPS_SHIFT)
#define EXACT_UNITS (2 * BIN_STEPS) /* sizes below have a bin each */
#define N_BINS 3520                 /* of a segment's bytes, and in whole words */
#define N_QUEUES (LADE_CACHE_MAX_QUEUES + 1) /* number 0: nobody, for what every queue may use */
#define MAX_SPAN_BYTES ((uint64_t)1 << 42)   /* of a segment: the largest bin holds it */
#define N_FINDINGS 64
#define N_MOVED 1024
#define MAX_BORROWED 16

enum block_state { BLOCK_LIVE, BLOCK_WAITING, BLOCK_QUARANTINE, BLOCK_FREE, BLOCK_HOLE };
enum zone_kind { ZONE_SMALL, ZONE_LARGE, ZONE_KEPT /* see cache_steps.c */, N_ZONES, ZONE_PRIVATE = N_ZONES };

/* Where a place is looked for: in the queue's own shard, in all, in all and where other queues still are. */
enum reach { REACH_HOME, REACH_SHARDS, REACH_QUEUES };

/*
 * First what the common calls read, of a block, of its neighbours and of those in its lists: a cache line of it. Then
 * what they only write, or leave to others.
 */
struct block {
  _Alignas(64) uint64_t address;
  uint64_t bytes;
  struct block *before, *after; /* neighbours in the segment; NULL at its ends */
  struct block *next; /* in a bin (free), the zone's holes, a bucket of the index (live), or the quarantine */
  union {
    struct block **link;      /* free or a hole: what points to it in its list */
    uint64_t requested_bytes; /* all others */
  };
  uint64_t count; /* not live: its own queue is done with it at (queue, count) */
  uint8_t state, queue, tag;
  uint8_t kind;    /* of its zone */
  uint16_t bin;    /* free: which one it is in */
  bool is_guarded; /* with guards around it: nobody was using the memory when it was handed out */
  bool is_used;    /* there are, or were, users */

  struct segment *segment;
  uint64_t users;    /* live or quarantined: bit per other queue that was recorded */
  const char *place; /* of the allocation */
  const char *free_place; /* waiting or quarantined */
  uint16_t n_waits;       /* waiting: events that it still waits for */
  bool is_poisoned;       /* quarantined, with the pattern of freed memory in it */
};
_Static_assert(offsetof(struct block, segment) == 64, "what is read is one line");

/* Free blocks of one zone and one queue by size: lists whose bits say which are not empty. */
struct bins {
  const struct block *end; /* of all lists: the shard's */
  uint64_t words[N_BINS / 64];
  uint64_t summary; /* a bit per word */
  struct block *heads[N_BINS];
};

struct segment {
  struct zone *zone;
  struct segment *next;
  uint64_t base, bytes;
  int number;
  struct block *first;
  lade_chunk **chunks; /* per chunk of addresses; NULL: not mapped */
};

struct zone {
  struct lade_cache_pool *pool;
  struct shard *shard;
  struct zone *next; /* of the pool */
  enum zone_kind kind;
  struct segment *segments;
  struct block *holes;
  struct bins *bins[N_QUEUES]; /* made when first needed; [0]: free for everybody */
};

/* What is counted of live blocks, in each shard. */
enum meter_kind {
  METER_BLOCKS,
  METER_REQUESTED,
  METER_BYTES,
  METER_FLOOR, /* METER_BYTES from below; nothing is counted here */
  METER_TAG,   /* of the first tag: METER_BYTES by tag */
  N_METERS = METER_TAG + LADE_CACHE_MAX_TAGS
};

/* What lives is what came less what was freed. */
struct meter {
  uint64_t came, freed;
  uint64_t ceiling; /* it rises to this without all locks; the sum over the shards is no more than the peak */
};

struct shard {
  struct block end; /* of its lists of free blocks and holes: nobody's, so that what is before it has a next */
  _Alignas(64) struct lade_lock lock;
  int number; /* of its queue */
  int n_unused;
  struct block *unused; /* descriptors */
  struct block **index; /* live blocks of its segments by address: chains */
  uint64_t index_mask;
  struct trace_entry *trace; /* ring */
  uint64_t n_traced;
  uint64_t stamp;       /* of the last event, with room for a queue below */
  uint64_t stamp_end;   /* the event before which the clock is read again */
  uint64_t stamp_count; /* what had been submitted at the last free */
  int n_borrowed; /* requests that were served from other shards since the last that was served at home */
  int n_crowded;  /* climbs of the ladder for which another thread had to be waited for, since chunks were created */
  uint64_t room_bytes;  /* what may come before METER_BYTES or METER_REQUESTED is at its ceiling, or less */
  uint64_t floor_bytes; /* METER_BYTES falls to this without all locks */
  struct meter meters[N_METERS];
  struct zone zones[N_ZONES];
  LADE_ARRAY(struct block *) slabs;
};

struct lade_cache_pool {
  struct lade_cache_pool *next;
  struct zone *zones; /* in order of creation */
  struct zone own;    /* a private pool's only one */
  bool is_private;   /* its chunks stay where they are */
  bool is_shared;    /* and are of the kind that other processes can have */
  bool is_capturing;
  int n_climbs; /* for blocks of it, without a lock */
};

/* Read without a lock to learn which one to take; what was read is looked at again with it. */
struct queue_slot {
  _Atomic(lade_queue *) queue; /* NULL: unused */
  struct lade_cache_pool *pool;
  _Atomic(struct shard *) shard; /* of its pool's zones */
  uint64_t capture_count; /* under capture: what was submitted since this may never run */
  int n_syncs; /* threads that wait for the queue, or climb for it, without a lock */
  bool is_leaving; /* the spill function forgets it: climbs for it do not wait for that function's end */
};

/* A waiting block's use by a queue that was recorded. */
struct wait {
  struct block *block;
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
#define N_FREED 4096

/* The last request that was refused, and what would have made room. */
struct refusal {
  uint64_t bytes; /* 0: there was none */
  uint64_t shortfall_bytes; /* by which the limit was too low */
  uint64_t block_bytes;     /* the smallest live block whose free would have done; 0: none */
  const char *place, *block_place;
  int tag;
  bool is_capturing;
};

/* A request that lacked chunks, and when it did: times are bytes that had been allocated. See cache_steps.c. */
#define N_TIMES 4
struct comeback {
  uint64_t hash; /* of its size and what was live */
  uint64_t first, times[N_TIMES]; /* latest first; 0: none */
  bool is_repeated; /* when it last came it was one of a step that repeats */
  bool is_kept;     /* memory is kept for it */
};

/* An event of the trace in half a cache line: many are written and few ever read. */
struct trace_entry {
  uint64_t address;
  uint64_t bytes; /* whole units; in the low bits action and tag */
  const char *place;
  uint64_t stamp; /* a time, and in the low bits the queue */
};

/* Which shard some thread's last event is in: the thread's number plus the shard's. A line to each. */
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
  bool is_crowded;  /* some lock was taken when all were wanted */
  bool is_spilling; /* the owner's function runs, in this thread */
  pthread_t spiller;
  int spill_queue; /* for which it asks */
  _Atomic uint32_t n_spilled; /* it has returned so often */
  _Atomic uint32_t n_synced;  /* so many waits for queues have ended */
  bool is_touchable; /* the host may write to the memory */
  lade_cache_spill_fn *spill;
  void *spill_arg;
  struct lade_cache_pool common;
  struct lade_cache_pool *pools; /* all, the common one last */
  int n_segments;
  struct queue_slot queues[N_QUEUES]; /* [0] is nobody's */
  _Atomic int n_queues;               /* slots in use end here */
  struct shard *shards[N_QUEUES];     /* NULL: its queue has not come yet */
  _Atomic(_Atomic uint8_t *) *owners; /* which shard addresses are of; see cache_shards.c */
  _Atomic uint64_t address_high;      /* of all of them */
  int granule_shift;                  /* of the device's chunks */
  LADE_ARRAY(struct wait) waits; /* with room for n_recorded more */
  int n_recorded;                /* bits in the users of all blocks that are live or quarantined */
  LADE_ARRAY(lade_chunk *) spare; /* chunks that are mapped nowhere */

  LADE_ARRAY(struct share) shares;

  struct refusal refusal;
  struct lade_cache_stats stats; /* peaks; of live blocks the rest as lade_cache_stats_derive last left it */
  uint64_t n_pending, pending_bytes; /* of blocks that are waiting or quarantined */
  struct lade_cache_tag tags[LADE_CACHE_MAX_TAGS];
  int n_tags;
  uint64_t n_trace_entries; /* of each shard's ring: a power of two, or 0 */
  uint64_t traced_from_ticks; /* stamps count from here */
  int64_t traced_from_ns;
  bool has_steady_ticks; /* or else ticks are the system's nanoseconds */
  int n_tracing; /* shards that have events: one needs no stamps for their order */
  struct tracer tracers[N_TRACERS];
  uint16_t moved[N_MOVED]; /* how often requests had to move chunks; see cache_steps.c. Strangers may share one */
  struct comeback comebacks[N_MOVED];
  uint64_t step_bytes;     /* a step that repeats takes so long */
  uint64_t maybe_bytes;    /* a request that lacked chunks came after so long, once; its first time counts from 0 */
  uint64_t repeated_since; /* when one of a step that repeats was first seen with this peak of live bytes */
  uint64_t repeated_peak_bytes;
  uint64_t high_bytes;     /* the most live, before peaks were reset */
  uint64_t n_looked_at;    /* blocks, by the ladder: what climbs cost, without a clock */

  /* the sanitizer's */
  struct block *quarantine_first, *quarantine_last;
  uint64_t quarantine_bytes, quarantine_limit_bytes;
  struct freed *freed;
  struct lade_error *findings;
};

/* ---- cache.c ---- */

/* Is this the owner's spill function calling? Called with all locks. */
bool lade_cache_is_spiller(const lade_cache *cache);
/*
 * Ask the owner for @bytes that @queue lacks. False when there is nothing to be had. Called with all locks, which are
 * given back meanwhile; so they are in the next.
 */
bool lade_cache_spill(lade_cache *cache, int queue, uint64_t bytes);
/* Wait for all queues but those under capture; what they are done with is everybody's then. */
void lade_cache_wait_and_sweep(lade_cache *cache);

/* ---- cache_shards.c ---- */

/* Make the shard of queue @number. -ENOMEM. Called with all locks, or before anybody has the cache. */
int lade_cache_shard_create(lade_cache *cache, int number);
void lade_cache_shards_free(lade_cache *cache);

/* Has @shard borrowed so often that the next request is to be served at home? */
static inline bool lade_cache_home_is_due(const struct shard *shard)
{
  return shard->n_borrowed >= MAX_BORROWED;
}

/* All locks. */
void lade_cache_lock_all(lade_cache *cache);
void lade_cache_unlock_all(lade_cache *cache);
/* Give all locks back, sleep until @word is roused, and take them again. May return earlier. */
void lade_cache_sleep_all(lade_cache *cache, _Atomic uint32_t *word);

/* The slot of @queue, or NULL. Without a lock: a hint. */
struct queue_slot *lade_cache_slot_find(lade_cache *cache, const lade_queue *queue);

/* The map of addresses, none of which is anybody's, by granules of what the device maps. -ENOMEM. */
int lade_cache_owners_create(lade_cache *cache, uint64_t granule_bytes);
/* [address, +bytes) are of @shard from now on; NULL: nobody's. -ENOMEM. */
int lade_cache_owner_set(lade_cache *cache, uint64_t address, uint64_t bytes, const struct shard *shard);
/* The shard that @address belongs to, or NULL. Without its lock: a hint. */
struct shard *lade_cache_owner_get(const lade_cache *cache, uint64_t address);

/* The sum over all shards. Called with all locks. */
uint64_t lade_cache_meter_sum(const lade_cache *cache, int meter);
static inline uint64_t lade_cache_live_bytes(const lade_cache *cache)
{
  return lade_cache_meter_sum(cache, METER_BYTES);
}
/* How many blocks were ever freed. Called with all locks. */
uint64_t lade_cache_freed_count(const lade_cache *cache);
static inline uint64_t lade_cache_meter_get(const struct meter *meter)
{
  return meter->came - meter->freed;
}
/* What may come before a ceiling of bytes is reached: of those taken, or of those requested, which are never more. */
uint64_t lade_cache_meters_room(const struct shard *shard);
/* Look at these ceilings for one block. */
bool lade_cache_meters_find_room(struct shard *shard, uint64_t requested_bytes, uint64_t bytes);
/* Will the counters of @shard stay below their ceilings? */
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
/* Make it so, by raising peaks where sums will. Called with all locks. */
void lade_cache_meters_raise(lade_cache *cache, struct shard *shard, int tag, uint64_t requested_bytes,
                             uint64_t bytes);
void lade_cache_meters_lower(lade_cache *cache, struct shard *shard, uint64_t bytes);
/* Peaks are what is now: so are ceilings and floors. */
void lade_cache_meters_reset(lade_cache *cache);

/* A block that there is room for begins to live; and it ends. */
static inline void lade_cache_meters_add(struct shard *shard, const struct block *block)
{
  struct meter *meters = shard->meters;
  shard->room_bytes -= LADE_MIN(shard->room_bytes, block->bytes); /* it had room if less was requested than is taken */
  meters[METER_BLOCKS].came++;
  meters[METER_REQUESTED].came += block->requested_bytes;
  meters[METER_BYTES].came += block->bytes;
  meters[METER_TAG + block->tag].came += block->bytes;
}
static inline void lade_cache_meters_sub(struct shard *shard, const struct block *block)
{
  struct meter *meters = shard->meters;
  meters[METER_BLOCKS].freed++;
  meters[METER_REQUESTED].freed += block->requested_bytes;
  meters[METER_BYTES].freed += block->bytes;
  meters[METER_TAG + block->tag].freed += block->bytes;
}

/* ---- cache_blocks.c; what calls do in the common case is in cache_blocks.h ---- */

/* An index, or a larger one. -ENOMEM. */
int lade_cache_index_grow(struct shard *shard);
bool lade_cache_blocks_grow(struct shard *shard, int n);
/* Have @n descriptors at hand. False when memory is out. */
static inline bool lade_cache_blocks_prepare(struct shard *shard, int n)
{
  return shard->n_unused >= n || lade_cache_blocks_grow(shard, n);
}

/* A queue's bins, made when first asked for; NULL when memory is out. */
struct bins *lade_cache_bins_create(struct zone *zone, int queue);
static inline struct bins *lade_cache_bins_get(struct zone *zone, int queue)
{
  return zone->bins[queue] ? zone->bins[queue] : lade_cache_bins_create(zone, queue);
}
static inline const struct block *lade_cache_list_end(const struct zone *zone)
{
  return &zone->shard->end;
}

/* Join a free block or hole, in no list, with what fits on both sides, and put it into its list. */
struct block *lade_cache_block_settle(lade_cache *cache, struct block *block);

/* ---- cache_queues.c ---- */

/* The number of @queue, which gets one and a shard if it has none; 0 for NULL. -EINVAL, -ENOSPC, -ENOMEM. */
int lade_cache_queue_number(lade_cache *cache, lade_queue *queue);
/* The event after which everything submitted to the queue is done. */
uint64_t lade_cache_queue_count(const lade_cache *cache, int queue);
/* Is (queue, count) over? A deterministic cache waits for it; of a queue under capture it says no. */
bool lade_cache_is_over(lade_cache *cache, int queue, uint64_t count);
/* May @queue use the free @block now? */
bool lade_cache_is_usable(lade_cache *cache, const struct block *block, int queue);
/* Is (queue, count) sure to come? Not what was submitted to a queue since its pool is under capture. */
bool lade_cache_may_wait(const lade_cache *cache, int queue, uint64_t count);
/* Make all later work of @queue wait for (other, count). */
void lade_cache_wait_event(lade_cache *cache, int queue, int other, uint64_t count);
/* @queue uses the live block, too. -ENOMEM. */
int lade_cache_block_record(lade_cache *cache, struct block *block, int queue);
/* Free a block as far as its queues allow: free, or waiting. Not @is_at_once when the trace knows of the free. */
void lade_cache_block_release(lade_cache *cache, struct block *block, bool is_at_once);
/* Let go of what the waiting blocks no longer wait for. */
void lade_cache_waits_poll(lade_cache *cache);
/* The same for all that wait for @queue, whose work is done. */
void lade_cache_waits_drop(lade_cache *cache, int queue);
/*
 * Make @queue wait for all that waiting blocks wait for; they are then free for it. The waits are submitted with the
 * locks held, on purpose: a block may be handed on only once its wait stands in @queue, and between the look at a block
 * and that no other thread may take it or let a queue go. Nothing here waits for a device, but where a driver's queue
 * is full its submission does, and all that allocate of this cache wait with it, as long as work in @queue takes.
 */
void lade_cache_waits_adopt(lade_cache *cache, int queue);
/* Give every free block whose queue is done with it to everybody, and join it with what it lies beside. */
void lade_cache_sweep(lade_cache *cache, struct lade_cache_pool *pool);
/*
 * Wait on the host for all that freed blocks still wait for, but not for queues under capture, whose work may never
 * run, unless @with_captures. Called without the lock.
 */
void lade_cache_wait_all(lade_cache *cache, bool with_captures);

/* ---- cache_chunks.c ---- */

/*
 * A free block of at least @bytes in no list, made by mapping chunks in what is within @reach. -ENOMEM when the limit,
 * the device or the heap refuses; then nothing is lost.
 */
int lade_cache_place_build(lade_cache *cache, struct zone *zone, int queue, uint64_t bytes, enum reach reach,
                           struct block **ret_block);
/*
 * By how many bytes the limit is too low for a block of @bytes, once all work is done: what the best window lacks, less
 * what could be brought to it. 0 when it is not the limit.
 */
uint64_t lade_cache_shortfall(lade_cache *cache, struct zone *zone, uint64_t bytes);
int lade_cache_chunks_trim(lade_cache *cache, uint64_t keep_bytes);
/* Bytes of whole chunks under free blocks that are over, and of those that are not mapped. */
uint64_t lade_cache_idle_bytes(lade_cache *cache);
/* Make spare chunks of all that is idle in the pool. -ENOMEM when the machine refuses; the rest is as it was. */
int lade_cache_pool_unmap(lade_cache *cache, struct lade_cache_pool *pool);
/* Unmap everything of the pool and give its segments back; spare chunks remain. */
void lade_cache_pool_clear(lade_cache *cache, struct lade_cache_pool *pool);
void lade_cache_spare_release(lade_cache *cache);

/* ---- cache_steps.c ---- */

/* A request for @bytes in @shard lacks @n chunks, and some idle. How many are to be created, the rest being moved? */
uint64_t lade_cache_creates_get(lade_cache *cache, struct shard *shard, uint64_t bytes, uint64_t n);
/* Is a request for @bytes at this point one of a step that repeats, for which memory is kept? */
bool lade_cache_is_kept(const lade_cache *cache, uint64_t bytes);

/* ---- cache_share.c ---- */

/* Close what is still open. */
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

/* What came in all of blocks is not counted: it is what there is and what went. */

/* A block was freed that its queues still use, and it is nobody's any more. */
static inline void lade_cache_pending_add(lade_cache *cache, const struct block *block)
{
  cache->n_pending++;
  cache->pending_bytes += block->bytes;
}
static inline void lade_cache_pending_sub(lade_cache *cache, const struct block *block)
{
  cache->n_pending--;
  cache->pending_bytes -= block->bytes;
}
/* Blocks became free, or chunks came: a peak of what is derived. Called with all locks. */
void lade_cache_inactive_note(lade_cache *cache);
/* Make all of the statistics true. Called with all locks. */
void lade_cache_stats_derive(lade_cache *cache);

/* ---- cache_trace.c; what calls write is in cache_trace.h ---- */

/* From now on events are kept, @n or more of them; none for 0. */
void lade_cache_trace_init(lade_cache *cache, uint64_t n);
/* How many events there are, and the last @n of them, oldest first. Called with all locks. */
uint64_t lade_cache_trace_count(const lade_cache *cache);
void lade_cache_trace_copy(const lade_cache *cache, struct lade_cache_event *ret_events, uint64_t n);
void lade_cache_trace_chunk(lade_cache *cache, struct shard *shard, enum lade_cache_action action, uint64_t address);

/* ---- cache_report.c ---- */

/* A place or a tag's name for a line: what would break the line is a question mark. */
#define ECHO_BYTES 80
struct lade_cache_echo {
  char text[ECHO_BYTES + 1];
};
/* At most @most bytes of it, and no part of a letter; "place unknown" for NULL. */
struct lade_cache_echo lade_cache_echo(const char *name, size_t most);

/* What was refused, why, and what would have made room, in one line; the page of lade_cache_report tells more. */
int lade_cache_refuse(lade_cache *cache, const struct lade_cache_request *request, struct zone *zone, uint64_t bytes,
                      struct lade_error *error);

/* ---- cache_guard.c; called only when the cache sanitizes ---- */

int lade_cache_guard_init(lade_cache *cache, uint64_t quarantine_bytes);
void lade_cache_guard_finish(lade_cache *cache);
void lade_cache_guard_fill(struct block *block);
/* Keep a freed block back; the oldest leave when there are too many bytes. */
void lade_cache_guard_keep(lade_cache *cache, struct block *block);
/* Let all kept blocks go whose queues are done with them, or all at once. True when one went. */
bool lade_cache_guard_drain(lade_cache *cache, bool is_all);
/* Say what is known of an address that is no live block. */
int lade_cache_guard_wrong_free(lade_cache *cache, uint64_t address, const char *place, struct lade_error *error);
#define GUARD_BYTES UNIT_BYTES

#endif
