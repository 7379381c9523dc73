/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training data: files of tokens or of text, cut into batches by a pure function of the step.
 *
 * Three kinds of files are recognised by their first bytes and their name:
 *
 *   llm.c     a header with a magic number, then 16-bit GPT-2 tokens or 32-bit Llama 3 tokens; the header of a file of
 *             `lade data` also names its tokenizer (session/data_header.h)
 *   nanoGPT   16-bit tokens without a header; the file is named *.bin
 *   text      any other file, read as bytes, with a vocabulary of 256
 *
 * Several files are one stream, in the order given, and have one kind.
 *
 * A batch has B rows of T tokens; the target of a token is its successor in the stream. In sequential order batch k is
 * tokens k B T to (k+1) B T. When fewer than B T + 1 tokens are left, the next batch starts over (llm.c's order). In
 * random order every row begins at its own offset, drawn from (seed, step, row) alone (nanoGPT's manner). There is no
 * state between batches. So a resumed run needs the step only, and the microbatches of a batch can be read in any
 * order.
 *
 * Files are read, not mapped: a data set does not become this process's memory, and a file that shrinks is an error and
 * not a fault.
 */
#ifndef LADE_DATA_H
#define LADE_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/faults.h"
#include "lade/train.h"

typedef struct lade_data lade_data;

struct lade_data_params {
  size_t struct_size;
  const char *const *files;
  int n_files;
  const char *const *valid_files; /* NULL: the last part of the files */
  int n_valid_files;
  double valid_fraction;          /* of the tokens of the files, without valid files; 0: no validation */
  int64_t vocabulary;             /* of the model; 0: take it from the data */
  int64_t batch, seq_len;         /* B of a whole step, T */
  enum lade_data_order order;
  uint64_t seed;
  struct lade_faults *faults;     /* borrowed, may be NULL */
};

#define LADE_TOKENIZER_FILE "tokenizer.json"
#define LADE_TOKENIZER_BYTES_MAX ((size_t)256 << 20)
#define LADE_TOKENIZER_HASH_BYTES 16

struct lade_tokenizer_hash {
  unsigned char bytes[LADE_TOKENIZER_HASH_BYTES]; /* XXH3 of the file, big-endian */
};

struct lade_data_info {
  int64_t n_train_tokens, n_valid_tokens;
  int64_t vocabulary;      /* every token is below it: 256 for text, else the model's if it was stated */
  int64_t n_train_batches; /* of one sequential pass */
  int64_t n_valid_batches; /* sequential; 0 without validation data */
  bool is_text;
  int32_t separator;       /* the token that ends a document; -1: the files name none */
  uint64_t key;            /* of sampled training tokens: files with different keys have different tokens; never 0 */
  uint64_t valid_key;      /* of sampled validation tokens; never 0, also without validation data */
  const char *tokenizer;   /* name of its file, of the data; NULL: the files name none */
};

/*
 * Open and check all files. Tokens are compared with the vocabulary here, in files up to some gigabytes, and again at
 * each read. -EINVAL with file, position and reason: empty; mixed kinds or tokenizers; a tokenizer whose vocabulary is
 * larger than the model's; a token outside of the vocabulary; text for a model whose vocabulary is not 256; fewer
 * tokens than one batch needs; -EBADMSG for a file that is cut short, or whose header and size differ; -ENOENT,
 * -EACCES, -EIO as the system says; -ENOMEM. Blocks.
 */
int lade_data_open(const struct lade_data_params *params, struct lade_error *error, lade_data **ret_data);

/* Close @data; NULL is allowed. */
void lade_data_close(lade_data *data);

/* Describe the open data. Any thread. Never blocks. */
void lade_data_get_info(const lade_data *data, struct lade_data_info *ret_info);

/*
 * Load the tokenizer's file, LADE_TOKENIZER_FILE beside the first token file. The caller frees *ret_text. -ENODATA: the
 * files name no tokenizer; -ENOENT; -EINVAL if it is another tokenizer's; -EIO, -ENOMEM. Blocks.
 */
int lade_data_load_tokenizer(const lade_data *data, struct lade_error *error, char **ret_text, size_t *ret_bytes);

/* The same for a token file at @data_path with a header's @hash. */
int lade_tokenizer_load_beside(const char *data_path, const struct lade_tokenizer_hash *hash, struct lade_error *error,
                               char **ret_text, size_t *ret_bytes);

/* Compute the hash of a tokenizer's file. -ENOENT, -EINVAL for a file that is too long, -EIO, -ENOMEM. Blocks. */
int lade_tokenizer_hash_file(const char *path, struct lade_tokenizer_hash *ret_hash, struct lade_error *error);

/*
 * Fill tokens and targets of the rows of @batch (lade/train.h); on failure their contents are undefined. Validation
 * batches are in sequential order, and start over likewise. -EIO when a file has changed, -EINVAL for a token outside
 * of the vocabulary. Allocates nothing. Any threads at once. Blocks. pre: the rows are within B, seq is T, and there is
 * validation data if is_valid.
 */
int lade_data_read(const lade_data *data, const struct lade_batch *batch, struct lade_error *error);

#endif
