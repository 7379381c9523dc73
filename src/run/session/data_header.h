/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a token file, 256 words of 32 bits, little-endian. The first three are llm.c's: magic, version, number
 * of tokens. `lade data` writes more where llm.c has zeros, so that llm.c reads its files:
 *
 *   word 4       "LADE"
 *   word 5       version of these words, 1
 *   word 6       vocabulary: each token is below it
 *   word 7       the token that ends a document; -1: none
 *   words 8-11   XXH3 of the tokenizer's file, 128 bits
 *   words 16-79  name of the tokenizer's file, UTF-8, ends with a zero
 *
 * A file that `lade data` has not finished begins with "LADEPART".
 */
#ifndef LADE_DATA_HEADER_H
#define LADE_DATA_HEADER_H

#include <stdbool.h>

#include "run/data.h"

#define DATA_HEADER_BYTES 1024
#define DATA_HEADER_NAME_BYTES 256

/* The tokenizer of a file of tokens. */
struct data_tokenizer {
  bool is_known; /* false: the file does not name one */
  int64_t vocabulary;
  int32_t separator;
  struct lade_tokenizer_hash hash;
  char name[DATA_HEADER_NAME_BYTES]; /* without control characters */
};

/* True if @header, the first @bytes of a file, is of a file that is not finished. */
bool data_header_is_unfinished(const void *header, size_t bytes);

/*
 * Read the words after llm.c's. Files of llm.c itself have no tokenizer. -EINVAL: another version; -EBADMSG: a word is
 * out of range. @path begins messages.
 */
int data_header_read(const char header[DATA_HEADER_BYTES], const char *path, int token_bytes, struct lade_error *error,
                     struct data_tokenizer *ret_tokenizer);

#endif
