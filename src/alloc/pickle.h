/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of Python pickles of plain data, without Python. The files are untrusted.
 *
 * A pickle is a program for a stack machine, and some of its instructions import and call. This reader executes only
 * the instructions that build data (protocols 2 to 5: dicts, lists, tuples, sets, texts, bytes, numbers, None,
 * booleans, and references to earlier values). It refuses the file at the first other instruction, so nothing that a
 * file names is looked up, called or run.
 *
 * Values are numbers of this reader. References make a graph of them, and a walk over the graph of a small file can
 * take exponential time. So every access to the graph is counted, and refused past a multiple of the file's bytes.
 */
#ifndef LADE_PICKLE_H
#define LADE_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#define LADE_PICKLE_BYTES_MAX ((size_t)1 << 30) /* of a file; numbers of values stay within an int */

typedef struct lade_pickle lade_pickle;

enum lade_pickle_kind {
  LADE_PICKLE_NONE,
  LADE_PICKLE_BOOL,
  LADE_PICKLE_INTEGER,
  LADE_PICKLE_LONG, /* an integer past 64 bits, or a negative one past 63; its value is not kept */
  LADE_PICKLE_REAL,
  LADE_PICKLE_TEXT,
  LADE_PICKLE_BYTES,
  LADE_PICKLE_LIST,
  LADE_PICKLE_TUPLE,
  LADE_PICKLE_SET,
  LADE_PICKLE_DICT,
  LADE_PICKLE_N_KINDS
};

/*
 * Read the @n_bytes of a pickle, which must stay unchanged while the reader lives; @name begins every message. The
 * caller destroys the reader. -EBADMSG, with the byte and the reason, for damaged, unknown or refused contents;
 * -ENOMEM. The memory is proportional to @n_bytes. Any thread.
 */
int lade_pickle_read(const char *name, const void *bytes, size_t n_bytes, struct lade_error *error,
                     lade_pickle **ret_pickle);

/* Destroy a reader; NULL is allowed. */
void lade_pickle_destroy(lade_pickle *pickle);

/* Return the pickle's top value. */
int lade_pickle_root(const lade_pickle *pickle);

enum lade_pickle_kind lade_pickle_kind(const lade_pickle *pickle, int value);

/* Return the integer @value. -EINVAL if it is not an integer, or not from 0 to 2^64-1. */
int lade_pickle_get_integer(const lade_pickle *pickle, int value, uint64_t *ret_integer);

/* True if @value is the text @text. */
bool lade_pickle_is_text(const lade_pickle *pickle, int value, const char *text);

/*
 * Copy the text @value into @text, cut to @text_bytes and with ? for each byte that is not printable ASCII. -EINVAL if
 * it is no text.
 */
int lade_pickle_get_text(const lade_pickle *pickle, int value, char *text, size_t text_bytes);

/*
 * Return the entry of the dict @value under @key. -ENOENT if absent; -EINVAL if @value is not a dict or has the key
 * twice; -ELOOP past the limit of accesses to the graph.
 */
int lade_pickle_find(lade_pickle *pickle, int value, const char *key, int *ret_value);

/*
 * Walk a list, tuple or set: start with *@cursor at LADE_PICKLE_START. Return 0 with the next item, -ENOENT after the
 * last, -EINVAL for a @value of another kind, -ELOOP past the limit of accesses.
 */
#define LADE_PICKLE_START (-1)
int lade_pickle_next(lade_pickle *pickle, int value, int *cursor, int *ret_value);

#endif
