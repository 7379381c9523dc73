/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header that `lade data` writes, and the tokenizer's file beside its token files. All bytes are untrusted. The
 * file's hash decides whether a tokenizer is the one that made the tokens; its name is for messages.
 */
#include "run/session/data_header.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/base.h"
#include "base/file.h"

#define EXTENSION_MAGIC 0x4544414c /* "LADE" */
#define EXTENSION_VERSION 1
#define UNFINISHED "LADEPART"

enum { WORD_MAGIC = 4, WORD_VERSION, WORD_VOCABULARY, WORD_SEPARATOR, WORD_HASH, WORD_NAME = 16 };

bool data_header_is_unfinished(const void *header, size_t bytes)
{
  return bytes >= sizeof(UNFINISHED) - 1 && !memcmp(header, UNFINISHED, sizeof(UNFINISHED) - 1);
}

static int32_t word_get(const char *header, int i)
{
  int32_t word;
  memcpy(&word, header + i * (int)sizeof(word), sizeof(word));
  return word;
}

/* Copy the name; it ends in the header, and control characters become question marks. False: it has no end. */
static bool name_copy(const char *from, char to[DATA_HEADER_NAME_BYTES])
{
  const size_t n = strnlen(from, DATA_HEADER_NAME_BYTES);
  if (n == DATA_HEADER_NAME_BYTES)
    return false;
  for (size_t i = 0; i <= n; i++)
    to[i] = from[i] && ((unsigned char)from[i] < ' ' || from[i] == 127) ? '?' : from[i];
  return true;
}

int data_header_read(const char header[DATA_HEADER_BYTES], const char *path, int token_bytes, struct lade_error *error,
                     struct data_tokenizer *ret_tokenizer)
{
  const int32_t version = word_get(header, WORD_VERSION), vocabulary = word_get(header, WORD_VOCABULARY);
  const int32_t separator = word_get(header, WORD_SEPARATOR);
  struct data_tokenizer tokenizer = {.is_known = true, .vocabulary = vocabulary, .separator = separator};
  if (word_get(header, WORD_MAGIC) != EXTENSION_MAGIC) {
    *ret_tokenizer = (struct data_tokenizer){.separator = -1};
    return 0;
  }
  if (version != EXTENSION_VERSION)
    return lade_error_set(error, -EINVAL, "%s: tokens of lade data, version %" PRId32 ": version %d is expected", path,
                          version, EXTENSION_VERSION);
  if (vocabulary < 1 || (token_bytes == 2 && vocabulary > UINT16_MAX + 1))
    return lade_error_set(error, -EBADMSG, "%s: the header says a vocabulary of %" PRId32 " in tokens of %d bits: "
                          "damaged", path, vocabulary, 8 * token_bytes);
  if (separator < -1 || separator >= vocabulary)
    return lade_error_set(error, -EBADMSG, "%s: the header says that token %" PRId32 " ends documents, of %" PRId32
                          " tokens: damaged", path, separator, vocabulary);
  if (!name_copy(header + WORD_NAME * (int)sizeof(int32_t), tokenizer.name))
    return lade_error_set(error, -EBADMSG, "%s: the header's name of a tokenizer has no end: damaged", path);
  memcpy(tokenizer.hash.bytes, header + WORD_HASH * (int)sizeof(int32_t), sizeof(tokenizer.hash.bytes));
  *ret_tokenizer = tokenizer;
  return 0;
}

/* ---- the tokenizer's file ---- */

static void hash_compute(const void *data, size_t bytes, struct lade_tokenizer_hash *ret_hash)
{
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
  _Static_assert(sizeof(canonical.digest) == sizeof(ret_hash->bytes), "XXH3 of 128 bits");
  memcpy(ret_hash->bytes, canonical.digest, sizeof(ret_hash->bytes));
}

int lade_tokenizer_hash_file(const char *path, struct lade_tokenizer_hash *ret_hash, struct lade_error *error)
{
  char *text = NULL;
  size_t bytes = 0;
  int rc = lade_file_load(path, LADE_TOKENIZER_BYTES_MAX, error, &text, &bytes);
  if (rc)
    return rc;
  hash_compute(text, bytes, ret_hash);
  free(text);
  return 0;
}

int lade_tokenizer_load_beside(const char *data_path, const struct lade_tokenizer_hash *hash, struct lade_error *error,
                               char **ret_text, size_t *ret_bytes)
{
  char path[PATH_MAX], *text = NULL;
  const char *slash = strrchr(data_path, '/');
  struct lade_tokenizer_hash found;
  size_t bytes = 0;
  const int n_directory = slash ? (int)(slash - data_path) + 1 : 0;
  if (snprintf(path, sizeof(path), "%.*s" LADE_TOKENIZER_FILE, n_directory, data_path) >= (int)sizeof(path))
    return lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", data_path);
  int rc = lade_file_load(path, LADE_TOKENIZER_BYTES_MAX, error, &text, &bytes);
  if (rc)
    return rc;
  hash_compute(text, bytes, &found);
  if (memcmp(found.bytes, hash->bytes, sizeof(found.bytes))) {
    free(text);
    return lade_error_set(error, -EINVAL, "%s is not the tokenizer of %s, whose header has another hash", path,
                          data_path);
  }
  *ret_text = text;
  *ret_bytes = bytes;
  return 0;
}
