/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace: the calls that a program made to an allocator, in order, and the lifetimes that follow from them.
 *
 * Traces come from untrusted files. The beginning of a file tells which of three formats it has:
 *   CSV      `id,lower,upper,size`: lifetimes, half-open, as packers exchange them
 *   lines    `lade-trace 1`, then `alloc TIME ID BYTES QUEUE` and `free TIME ID`: calls in order
 *   pickle   a memory snapshot of PyTorch, or one of lade_cache_write_snapshot
 * Impossible contents are refused with the place and the reason. After a successful load every block has a size, an
 * event that begins it and at most one that ends it. All sizes sum to at most 2^60.
 */
#ifndef LADE_TRACE_H
#define LADE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "lade/pack.h"

#define LADE_TRACE_BYTES_MAX ((uint64_t)1 << 60)       /* of all blocks together */
#define LADE_TRACE_FILE_BYTES_MAX ((size_t)1 << 30)    /* so numbers of blocks and events fit an int */
#define LADE_TRACE_TIME_MAX ((uint64_t)1 << 62)
#define LADE_TRACE_OPEN UINT64_MAX                     /* upper of a block that is never freed */

enum { LADE_TRACE_QUEUES = 62 }; /* one less than a cache accepts besides the host's */

struct lade_trace_block {
  uint64_t bytes;        /* at least 1 */
  uint64_t lower, upper; /* times of its events, in the source's unit */
  int queue;             /* from 0 */
  int place;             /* line or entry of the file where it begins; 0: older than the trace */
  int site;              /* number, from 1, of its call site in sites; 0: unknown */
  int first, last;       /* live in the events [first, last); last is n_events if no event ends it */
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
  int peak_event; /* the first event after which peak_live_bytes are live */
  int n_queues;
  /* Set for snapshots only. */
  bool has_recorded; /* the snapshot has segments, at its end or in its history */
  uint64_t recorded_reserved_bytes; /* peak of reserved bytes in the trace, from the snapshot itself */
  int device, n_devices;            /* the device that was read; number of devices with a history */
  const char *place_word;           /* unit of a place: "line" or "entry"; static */
  LADE_ARRAY(char *) sites;         /* call sites or owners of blocks, as printable text */
};

/* ---- building a trace ---- */

/* Add a block that begins now. Return its number, or -1 without memory. */
int lade_trace_alloc(struct lade_trace *trace, uint64_t bytes, int queue, uint64_t time, int place);

/* End block @block now. False without memory. */
bool lade_trace_free(struct lade_trace *trace, int block, uint64_t time, int place);

/*
 * Add a block with a known lifetime; lade_trace_order makes the events of all blocks. Return its number, or -1 without
 * memory.
 */
int lade_trace_add(struct lade_trace *trace, uint64_t bytes, int queue, uint64_t lower, uint64_t upper, int place);

/*
 * Make the events of the added blocks, ordered by time; at equal times ends come before beginnings, then by number.
 * -ENOMEM.
 */
int lade_trace_order(struct lade_trace *trace);

/* Derive lifetimes in events, the peak and the number of queues. Call this last. */
void lade_trace_finish(struct lade_trace *trace);

/* Free the trace's memory; a zeroed trace is allowed. */
void lade_trace_destroy(struct lade_trace *trace);

/* ---- using a trace ---- */

/* Write the blocks as the packer's items, with equal numbers and lifetimes in events. @ret_items has room for all. */
void lade_trace_items(const struct lade_trace *trace, struct lade_pack_item *ret_items);

/* The blocks of one call site that are live at the peak. */
struct lade_trace_holder {
  const char *site; /* of the trace; NULL: unknown */
  int n_blocks;
  uint64_t bytes;
};

/*
 * Sum the blocks that are live at the peak by call site, the most bytes first. The caller frees *ret_holders. Return
 * their number, 0 for a trace without call sites, or -ENOMEM. Any thread.
 */
int lade_trace_holders(const struct lade_trace *trace, struct lade_trace_holder **ret_holders);

/* ---- reading a trace ---- */

/*
 * Read the file @path in any of the formats. -EBADMSG with the place and the reason for impossible contents, errors of
 * lade_file_load, -ENOMEM. On success the caller destroys *ret_trace. Any thread. Blocks.
 */
int lade_trace_load(const char *path, struct lade_error *error, struct lade_trace *ret_trace);

/*
 * Read from memory; @name replaces the path in messages.
 *
 * pre: a zero byte follows the @n_bytes of @text.
 */
int lade_trace_read(const char *name, const char *text, size_t n_bytes, struct lade_error *error,
                    struct lade_trace *ret_trace);

#endif
