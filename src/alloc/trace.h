/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace: the calls that a program made of an allocator, in order, and the lifetimes that follow from them.
 *
 * Traces come from files that strangers wrote. Three formats are read, told apart by how they begin:
 *   CSV      `id,lower,upper,size`: lifetimes, half-open, as packers exchange them
 *   lines    `lade-trace 1`, then `alloc TIME ID BYTES QUEUE` and `free TIME ID`: calls in order
 *   pickle   a memory snapshot of PyTorch, or one that lade_cache_write_snapshot wrote
 * What cannot be right is refused with the place and the reason; after a successful load every block has a size, an
 * event that begins it and at most one that ends it, and all sizes sum to at most 2^60.
 */
#ifndef LADE_TRACE_H
#define LADE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "lade/pack.h"

#define LADE_TRACE_BYTES_MOST ((uint64_t)1 << 60)      /* of all blocks together */
#define LADE_TRACE_FILE_BYTES_MOST ((size_t)1 << 30)   /* then numbers of blocks and events fit an int */
#define LADE_TRACE_TIME_MOST ((uint64_t)1 << 62)
#define LADE_TRACE_OPEN UINT64_MAX                     /* upper of a block that nothing ends */

enum { LADE_TRACE_QUEUES = 62 }; /* one less than a cache knows besides the host's */

struct lade_trace_block {
  uint64_t bytes;        /* at least 1 */
  uint64_t lower, upper; /* times of its events, in the source's unit */
  int queue;             /* from 0 */
  int place;             /* line or entry of the file where it begins; 0: it was there before the trace */
  int first, last;       /* live in the events [first, last); last is n_events when nothing ends it */
};

struct lade_trace_event {
  uint64_t time;
  int block;
  int place; /* line or entry of the file; 0: before the trace */
  bool is_free;
};

struct lade_trace {
  LADE_ARRAY(struct lade_trace_block) blocks;
  LADE_ARRAY(struct lade_trace_event) events;
  uint64_t total_bytes;
  /* Filled by lade_trace_finish. */
  uint64_t peak_live_bytes;
  int peak_event; /* the first event after which so much is live */
  int n_queues;
  /* Of snapshots. */
  bool has_recorded;
  uint64_t recorded_reserved_bytes; /* at its peak in the trace, by the snapshot itself */
  int device, n_devices;            /* the one that was read, of how many with a history */
  const char *place_word;           /* what a place counts: "line" or "entry"; static */
};

/* ---- making one ---- */

/* A block that begins now. Its number, or -1 when memory is out. */
int lade_trace_alloc(struct lade_trace *trace, uint64_t bytes, int queue, uint64_t time, int place);

/* Block @block ends now. False when memory is out. */
bool lade_trace_free(struct lade_trace *trace, int block, uint64_t time, int place);

/* A block of known lifetime; lade_trace_order makes the events of all. Its number, or -1 when memory is out. */
int lade_trace_add(struct lade_trace *trace, uint64_t bytes, int queue, uint64_t lower, uint64_t upper, int place);

/*
 * Make the events of blocks that were added: by time, at one time the ends before the beginnings, then by number.
 * -ENOMEM.
 */
int lade_trace_order(struct lade_trace *trace);

/* Derive lifetimes in events, the peak and the number of queues. To be called last. */
void lade_trace_finish(struct lade_trace *trace);

/* Give its memory back; zeros are allowed. */
void lade_trace_destroy(struct lade_trace *trace);

/* ---- using one ---- */

/* The blocks as the packer's items, numbered alike, with lifetimes in events: @ret_items has room for all. */
void lade_trace_items(const struct lade_trace *trace, struct lade_pack_item *ret_items);

/* ---- reading one ---- */

/*
 * Read the file @path in any of the formats. -EBADMSG with the place and the reason for contents that cannot be right,
 * what lade_file_load answers, -ENOMEM. On success the caller destroys *ret_trace. Any thread. Blocks.
 */
int lade_trace_load(const char *path, struct lade_error *error, struct lade_trace *ret_trace);

/* The same from memory; @name stands for the path. The text ends with a zero byte past its @n_bytes. */
int lade_trace_read(const char *name, const char *text, size_t n_bytes, struct lade_error *error,
                    struct lade_trace *ret_trace);

#endif
