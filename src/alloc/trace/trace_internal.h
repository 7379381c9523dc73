/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the readers of traces. */
#ifndef LADE_TRACE_INTERNAL_H
#define LADE_TRACE_INTERNAL_H

#include <string.h>

#include "alloc/pickle.h"
#include "alloc/trace.h"

/*
 * The reader of one format. It does the work of lade_trace_read; the caller finishes @trace, and destroys it on
 * failure.
 */
typedef int lade_trace_reader_fn(const char *name, const char *text, size_t n_bytes, struct lade_error *error,
                                 struct lade_trace *trace);
lade_trace_reader_fn lade_trace_read_csv, lade_trace_read_lines, lade_trace_read_torch;

#define LADE_TRACE_LINES_MAGIC "lade-trace "

/* ---- lines of fields (trace_text.c) ---- */

struct lade_trace_text {
  const char *name, *at, *end;
  struct lade_error *error;
  int line; /* number of the current line, from 1 */
};

struct lade_trace_field {
  const char *text;
  size_t n;
};

/* Read the next line without its end, into *ret_line. False at the end of the text. */
bool lade_trace_line_next(struct lade_trace_text *text, struct lade_trace_field *ret_line);

/*
 * Cut @line at each @separator into at most @max fields. Return the number of fields, or @max + 1 if there are more.
 */
int lade_trace_fields_cut(struct lade_trace_field line, char separator, int max, struct lade_trace_field *ret_fields);

/* Read the field as a whole number from @min to @max. -EBADMSG with the line, @name and the field's text. */
int lade_trace_number(struct lade_trace_text *text, struct lade_trace_field field, const char *name, uint64_t min,
                      uint64_t max, uint64_t *ret_number);

/* Set an error that begins with the line. Return -EBADMSG. */
int lade_trace_line_refuse(struct lade_trace_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A field's text for a message: at most 24 letters of it; a question mark replaces a letter that cannot be printed. */
struct lade_trace_echo {
  char text[28];
};
struct lade_trace_echo lade_trace_echo(struct lade_trace_field field);

static inline bool lade_trace_field_is(struct lade_trace_field field, const char *text)
{
  return field.n == strlen(text) && memcmp(field.text, text, field.n) == 0;
}

/* ---- calls that name their blocks (trace_calls.c) ---- */

struct lade_trace_call {
  uint64_t id, bytes, time;
  int queue, place;
  bool is_free;
  bool is_old; /* a free of memory from before the first call */
  int partner; /* of a free: the allocation that it ends; of an allocation: the free that ends it, or -1 */
  int block;
  int value; /* of a snapshot: the entry in the pickle */
};

typedef LADE_ARRAY(struct lade_trace_call) lade_trace_call_array;

/*
 * Find the partner of every call. Calls of one id must alternate between allocation and free. If @may_be_old, an id's
 * first call may be a free, which is marked is_old. *ret_bad is the first call that breaks the order, -1 if there is
 * none; *ret_with is the call that it contradicts, or -1. -ENOMEM.
 */
int lade_trace_calls_pair(struct lade_trace_call *calls, int n_calls, bool may_be_old, int *ret_bad, int *ret_with);

/*
 * Turn paired calls into events. -ENOMEM.
 *
 * pre: a call that is_old has its block already.
 */
int lade_trace_calls_apply(struct lade_trace *trace, struct lade_trace_call *calls, int n_calls);

/*
 * Read the call sites of all blocks from their entries @values [blocks.n] in @pickle; -1: no entry. Entries without
 * frames, or with others than snapshots have, leave a block's site unknown. -ENOMEM.
 *
 * pre: lade_trace_finish.
 */
int lade_trace_sites_read(struct lade_trace *trace, lade_pickle *pickle, const int *values);

/* Add @bytes to *total_bytes. False, and nothing changes, past LADE_TRACE_BYTES_MAX. */
static inline bool lade_trace_bytes_add(uint64_t *total_bytes, uint64_t bytes)
{
  if (bytes > LADE_TRACE_BYTES_MAX - *total_bytes)
    return false;
  *total_bytes += bytes;
  return true;
}

#endif
