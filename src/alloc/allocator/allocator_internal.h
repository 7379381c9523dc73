/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of the pluggable allocator: allocator.c (calls), allocator_streams.c, allocator_replay.c and
 * allocator_blocks.c.
 */
#ifndef LADE_ALLOCATOR_INTERNAL_H
#define LADE_ALLOCATOR_INTERNAL_H

#include <pthread.h>

#include "base/base.h"
#include "lade/allocator.h"

#define ALLOCATOR_ALIGN 512
#define ALLOCATOR_UNPLANNED UINT64_MAX

/* ---- live blocks (allocator_blocks.c) ---- */

struct live_block {
  uint64_t address; /* 0: an empty slot */
  uint64_t bytes;   /* as requested */
  uint64_t users;   /* a bit for each stream, by its index, that recorded it */
  uint64_t step;    /* step of its allocation */
  int32_t stream;   /* index of its stream */
  int32_t call;     /* number among the allocations of its step; -1: outside of steps */
  int32_t arena;    /* index of its arena; -1: the cache */
};

/* A hash table of blocks by address, with open addressing. Zeros are an empty one. */
struct live_blocks {
  struct live_block *slots;
  size_t n, n_slots; /* slots: a power of two */
};

/* Reserve room for one more block. False if memory is out. */
bool lade_live_blocks_reserve(struct live_blocks *blocks);
/* pre: reserved, and no block of this address. */
struct live_block *lade_live_blocks_add(struct live_blocks *blocks, const struct live_block *block);
struct live_block *lade_live_blocks_find(const struct live_blocks *blocks, uint64_t address); /* NULL: absent */
void lade_live_blocks_remove(struct live_blocks *blocks, struct live_block *block);
void lade_live_blocks_finish(struct live_blocks *blocks);

/* ---- replay (allocator_replay.c) ---- */

/* One allocation of a step; its number is its place in the list, and the unit of time. */
struct replay_call {
  uint64_t bytes;
  int32_t stream;
  int32_t upper;    /* allocations made before its free, counted in its step; 0: live at the end of the step */
  bool is_recorded; /* another stream used it */
};

/* Offsets in use of an arena, by rising offset. */
struct arena_range {
  uint64_t begin, end;
};

/* A block of the cache for the planned blocks of one stream. */
struct replay_arena {
  void *address;
  uint64_t bytes;
  int32_t stream;
  bool is_retired; /* of an earlier plan: freed with its last block */
  LADE_ARRAY(struct arena_range) live;
};

struct step_replay {
  bool is_begun; /* lade_allocator_step was called */
  uint64_t step; /* number of the present step */
  LADE_ARRAY(struct replay_call) now, last; /* allocations of this step, and of the last one */
  /* The plan: for each allocation of a step its size and stream, arena and offset. */
  struct {
    struct replay_call call;
    int32_t arena;   /* index; -1: not planned */
    uint64_t offset;
  } *places;
  int n_places;
  bool is_on;       /* this step has followed the plan so far */
  bool is_stale;    /* this step showed that lifetimes or uses of the plan are too short */
  bool is_lost;     /* memory for this step's list ran out: it cannot be compared */
  LADE_ARRAY(struct replay_arena) arenas;
};

struct allocator_stream {
  void *handle;      /* of the caller */
  lade_queue *queue; /* NULL: the host */
  bool is_own;       /* the allocator adopted it, and destroys it */
  bool is_used;      /* the slot holds a stream */
};

/* A free that waits for the event that orders it. */
struct allocator_pending {
  void *address;
  uint64_t streams; /* a bit for each stream whose work may use the block */
};

struct allocator_device {
  pthread_mutex_t lock; /* guards the fields below */
  lade_device *device;  /* NULL: not opened yet */
  bool is_own;          /* opened by the allocator */
  bool is_gpu;
  lade_cache *cache;
  struct allocator_stream streams[LADE_CACHE_MAX_QUEUES];
  int n_streams;        /* slots that were ever in use */
  struct live_blocks blocks;
  LADE_ARRAY(struct allocator_pending) pending;
  struct step_replay replay;
  struct lade_allocator_stats stats; /* counts; the sums of the cache are added when it is read */
};

/* ---- streams (allocator_streams.c); the lock is held for all ---- */

/* Return the index of @stream, or -ENOENT; lade_allocator_stream_get gives it a queue at its first use. */
int lade_allocator_stream_find(const struct allocator_device *at, void *stream);
int lade_allocator_stream_get(struct allocator_device *at, void *stream, struct lade_error *error);

/* True if one of @streams, a bit for each index, is under capture. */
bool lade_allocator_is_capturing(const struct allocator_device *at, uint64_t streams);

/* Record an event after the caller's work on each of @streams. */
void lade_allocator_events_record(struct allocator_device *at, uint64_t streams);

/* Free the pending blocks after one event for each of their streams; later, if one is under capture. */
void lade_allocator_flush(struct allocator_device *at);

/* Free a block of the cache after the work of @streams, at the next flush. -ENOMEM, with the block live. */
int lade_allocator_defer(struct allocator_device *at, void *address, uint64_t streams, struct lade_error *error);

/* Flush, then allocate @bytes from the cache. */
int lade_allocator_take(struct allocator_device *at, uint64_t bytes, int stream, struct lade_error *error,
                        void **ret_address);

/* Wait for the work of all streams that are not under capture, so that their memory can leave. */
void lade_allocator_sync(struct allocator_device *at);

/*
 * Serve allocation of @bytes for stream @stream from the plan. True with the address and the arena, or false if the
 * cache must serve it. Lock held.
 */
bool lade_step_replay_serve(struct allocator_device *at, uint64_t bytes, int stream, void **ret_address,
                            int *ret_arena);

/* Append the allocation to the step's list. Return its number, or -1 outside of steps. Lock held. */
int lade_step_replay_note_alloc(struct allocator_device *at, uint64_t bytes, int stream);

/* Note the end, or the use by another stream, of @block. Lock held. */
void lade_step_replay_note_free(struct allocator_device *at, const struct live_block *block);
void lade_step_replay_note_use(struct allocator_device *at, const struct live_block *block);

/* Release the range of @block in its arena; free a retired arena with its last block. Lock held. */
int lade_step_replay_release(struct allocator_device *at, const struct live_block *block, struct lade_error *error);

/* End a step. -ENOMEM if a new plan finds no room. Lock held. */
int lade_step_replay_step(struct allocator_device *at, struct lade_error *error);

/* Drop the plan: its arenas are freed, now or with their last block. Lock held. */
void lade_step_replay_drop(struct allocator_device *at);

/* Free the lists. The arenas are the cache's. */
void lade_step_replay_finish(struct step_replay *replay);

#endif
