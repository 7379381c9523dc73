/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python pickles of plain data, read without Python and without trust.
 *
 * A pickle is a program for a stack machine, and among its instructions are some that import and call. This reader
 * executes those alone that build data (protocols 2 to 5: dicts, lists, tuples, sets, texts, bytes, numbers, None,
 * booleans, and references to what was built before) and refuses the file at the first of any other. Nothing of a
 * file is ever looked up, called or run.
 *
 * Values are numbers of this reader. References make a graph of them, in which a small file can say something
 * that would take for ever to walk; so every look at the graph is counted, and past a multiple of the file's bytes it
 * is refused.
 */
#ifndef LADE_PICKLE_H
#define LADE_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#define LADE_PICKLE_BYTES_MOST ((size_t)1 << 30) /* of a file; numbers of values stay within an int */

typedef struct lade_pickle lade_pickle;

enum lade_pickle_kind {
  LADE_PICKLE_NONE,
  LADE_PICKLE_BOOL,
  LADE_PICKLE_INTEGER,
  LADE_PICKLE_LONG, /* an integer past 64 bits, or a negative one past 63: kept as a kind without a value */
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
 * Read the @n_bytes of a pickle, which must stay as they are while the reader lives; @name stands at the front of every
 * message. The caller destroys it. -EBADMSG with the byte and the reason for what is damaged, unknown or refused;
 * -ENOMEM. The memory is in proportion to @n_bytes. Any thread.
 */
int lade_pickle_read(const char *name, const void *bytes, size_t n_bytes, struct lade_error *error,
                     lade_pickle **ret_pickle);

/* NULL is allowed. */
void lade_pickle_destroy(lade_pickle *pickle);

/* The value that the pickle is. */
int lade_pickle_root(const lade_pickle *pickle);

enum lade_pickle_kind lade_pickle_kind(const lade_pickle *pickle, int value);

/* The integer @value. -EINVAL when it is none, or not from 0 to 2^64-1. */
int lade_pickle_get_integer(const lade_pickle *pickle, int value, uint64_t *ret_integer);

/* Is @value the text @text? */
bool lade_pickle_is_text(const lade_pickle *pickle, int value, const char *text);

/*
 * What the dict @value has under @key. -ENOENT for nothing, -EINVAL when it is no dict or has the key twice, -ELOOP
 * when the graph was looked at more than a file of this size can be worth.
 */
int lade_pickle_find(lade_pickle *pickle, int value, const char *key, int *ret_value);

/*
 * Walk a list, tuple or set: start with *@cursor at LADE_PICKLE_START. 0 with the next item, -ENOENT after the last,
 * -EINVAL when @value is none of them, -ELOOP as above.
 */
#define LADE_PICKLE_START (-1)
int lade_pickle_next(lade_pickle *pickle, int value, int *cursor, int *ret_value);

#endif
