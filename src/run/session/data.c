/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches read from files.
 *
 * A stream is a list of files with the number of tokens before each. A range of tokens is found by a walk over the list
 * (there are few files). It is read with pread into a small buffer on the stack, and widened to 32 bits and checked on
 * the way. Row r of a batch needs T + 1 tokens from its start: the first T are its tokens, the last T its targets, so
 * each token is read once.
 *
 * Rejected: mapping the files. Mapped pages count as memory of this process, which the independent check of the memory
 * promise measures. A file that is cut short during training would end the process with SIGBUS. Copying T tokens out of
 * the page cache costs nothing beside a row's arithmetic.
 *
 * The validation part is the last tokens of the training stream, split as nanoGPT does: the first floor(n (1 -
 * fraction)) tokens train. Both parts are then views of one list of files.
 *
 * Random offsets: 64 bits of Philox scaled to [0, n - T) by a 128-bit product. The bias against uniform is below n /
 * 2^64.
 *
 * If the kind of a file does not bound its tokens, opening it checks them. So a bad file is refused before anything is
 * written. Tokens past SCAN_LIMIT_BYTES are checked when they are read.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/base.h"
#include "base/philox.h"
#include "run/session/data_header.h"

#define MAGIC_GPT2 20240520
#define VERSION_GPT2 1
#define VOCABULARY_GPT2 50257
#define MAGIC_LLAMA3 20240801
#define VERSION_LLAMA3 7
#define VOCABULARY_LLAMA3 128256
#define HEADER_BYTES DATA_HEADER_BYTES
#define CHUNK_BYTES 16384 /* of one read of tokens */
#define SCAN_BYTES (1 << 20) /* of one read when tokens are compared with the vocabulary */
#define SCAN_LIMIT_BYTES (INT64_C(4) << 30)
#define KEY_SAMPLES 64 /* sampled places, and tokens at each; of a short text all */
#define KEY_TOKENS 512
#define OFFSET_STREAM 0x64617461u /* of the draws; ops count theirs from 0 */

enum data_kind { KIND_TEXT, KIND_GPT2, KIND_LLAMA3, KIND_BARE, N_KINDS };

static const struct {
  const char *name;
  int token_bytes, header_bytes;
  int64_t vocabulary; /* 0: given by the tokens */
} kinds[N_KINDS] = {
    [KIND_TEXT] = {"text", 1, 0, 256},
    [KIND_GPT2] = {"a token file of 16 bits (llm.c, GPT-2)", 2, HEADER_BYTES, VOCABULARY_GPT2},
    [KIND_LLAMA3] = {"a token file of 32 bits (llm.c, Llama 3)", 4, HEADER_BYTES, VOCABULARY_LLAMA3},
    [KIND_BARE] = {"a token file without header", 2, 0, 0},
};

struct data_source {
  char *path;
  int fd;
  enum data_kind kind;
  struct data_tokenizer tokenizer;
  int64_t first, n_tokens; /* in the stream of all files; training files come first */
};

struct token_range {
  int64_t first, n_tokens; /* in the stream */
};

struct lade_data {
  int n_sources;
  struct data_source *sources;
  struct token_range train, valid;
  int64_t vocabulary, batch, seq_len;
  enum lade_data_order order;
  uint64_t seed, key, valid_key;
  struct lade_faults *faults;
};

/* ---- reading ---- */

/* Read exactly @bytes at @offset. -EIO also if the file has become shorter. */
static int source_read(const lade_data *data, const struct data_source *source, void *at, size_t bytes, int64_t offset,
                       struct lade_error *error)
{
  int n_tries = 0;
  for (size_t done = 0; done < bytes;) {
    int rc = lade_fault(data->faults, LADE_FAULT_FILE_READ);
    ssize_t n = rc ? -1 : pread(source->fd, (char *)at + done, bytes - done, offset + (int64_t)done);
    if (!rc && n < 0)
      rc = -errno;
    if (lade_retry(rc, &n_tries))
      continue;
    if (rc)
      return lade_error_set(error, rc, "%s: cannot read: %s", source->path, strerror(-rc));
    if (n == 0)
      return lade_error_set(error, -EIO, "%s: has become shorter since it was opened", source->path);
    done += (size_t)n;
    n_tries = 0;
  }
  return 0;
}

static uint32_t token_get(const char *at, int token_bytes)
{
  uint16_t half;
  uint32_t word;
  switch (token_bytes) {
  case 1:
    return (uint8_t)*at;
  case 2:
    memcpy(&half, at, sizeof(half));
    return half;
  default:
    memcpy(&word, at, sizeof(word));
    return word;
  }
}

static int token_refuse(const lade_data *data, const struct data_source *source, int64_t at, uint32_t token,
                        struct lade_error *error)
{
  return lade_error_set(error, -EINVAL, "%s: token %" PRId64 " is %" PRIu32 ", outside of the vocabulary of %" PRId64
                        ": the file was made for another model", source->path, at, token, data->vocabulary);
}

/* Read tokens [@first, @first + @n) of one file. */
static int source_tokens(const lade_data *data, const struct data_source *source, int64_t first, int64_t n,
                         int32_t *ret_tokens, struct lade_error *error)
{
  char chunk[CHUNK_BYTES];
  const int token_bytes = kinds[source->kind].token_bytes;
  for (int64_t done = 0; done < n;) {
    int64_t now = LADE_MIN(n - done, CHUNK_BYTES / token_bytes);
    int rc = source_read(data, source, chunk, (size_t)(now * token_bytes),
                         kinds[source->kind].header_bytes + (first + done) * token_bytes, error);
    if (rc)
      return rc;
    for (int64_t i = 0; i < now; i++) {
      uint32_t token = token_get(chunk + i * token_bytes, token_bytes);
      if (token >= (uint64_t)data->vocabulary)
        return token_refuse(data, source, first + done + i, token, error);
      ret_tokens[done + i] = (int32_t)token;
    }
    done += now;
  }
  return 0;
}

/* Read tokens [@first, @first + @n) of the stream of all files. */
static int stream_tokens(const lade_data *data, int64_t first, int64_t n, int32_t *ret_tokens, struct lade_error *error)
{
  for (int i = 0; i < data->n_sources && n > 0; i++) {
    const struct data_source *source = &data->sources[i];
    int64_t skip = first - source->first;
    if (skip >= source->n_tokens)
      continue;
    int64_t now = LADE_MIN(n, source->n_tokens - skip);
    int rc = source_tokens(data, source, skip, now, ret_tokens, error);
    if (rc)
      return rc;
    first += now;
    n -= now;
    ret_tokens += now;
  }
  LADE_ASSERT(n == 0);
  return 0;
}

/* ---- batches ---- */

static int64_t part_n_batches(const lade_data *data, const struct token_range *part)
{
  return part->n_tokens > 0 ? (part->n_tokens - 1) / (data->batch * data->seq_len) : 0;
}

static int64_t sequential_offset(const lade_data *data, const struct token_range *part, uint64_t batch, int64_t row)
{
  uint64_t in_pass = batch % (uint64_t)part_n_batches(data, part);
  return ((int64_t)in_pass * data->batch + row) * data->seq_len;
}

static int64_t random_offset(const lade_data *data, const struct token_range *part, uint64_t step, int64_t row)
{
  struct lade_philox draw = lade_philox_draw(data->seed, (uint32_t)step, OFFSET_STREAM, (uint64_t)row);
  uint64_t bits = (uint64_t)draw.word[1] << 32 | draw.word[0];
  return (int64_t)((unsigned __int128)bits * (uint64_t)(part->n_tokens - data->seq_len) >> 64);
}

/* Read T + 1 tokens from @offset of @part: one row and the same row shifted by one. */
static int row_read(const lade_data *data, const struct token_range *part, int64_t offset, int32_t *ret_tokens,
                    int32_t *ret_targets, struct lade_error *error)
{
  LADE_ASSERT(offset >= 0 && offset + data->seq_len < part->n_tokens);
  int rc = stream_tokens(data, part->first + offset, data->seq_len, ret_tokens, error);
  if (!rc)
    rc = stream_tokens(data, part->first + offset + data->seq_len, 1, &ret_targets[data->seq_len - 1], error);
  if (!rc)
    memcpy(ret_targets, ret_tokens + 1, (size_t)(data->seq_len - 1) * sizeof(*ret_targets));
  return rc;
}

int lade_data_read(const lade_data *data, const struct lade_batch *batch, struct lade_error *error)
{
  const struct token_range *part = batch->is_valid ? &data->valid : &data->train;
  const bool is_random = data->order == LADE_ORDER_RANDOM && !batch->is_valid;
  const uint64_t number = (uint64_t)batch->number;
  LADE_ASSERT(batch->number >= 0 && batch->first_row >= 0 && batch->first_row + batch->n_rows <= data->batch);
  LADE_ASSERT(batch->seq == data->seq_len && part->n_tokens > 0);
  for (int64_t i = 0; i < batch->n_rows; i++) {
    const int64_t row = batch->first_row + i;
    const int64_t offset = is_random ? random_offset(data, part, number, row)
                                     : sequential_offset(data, part, number, row);
    int rc = row_read(data, part, offset, batch->tokens + i * batch->seq, batch->targets + i * batch->seq, error);
    if (rc)
      return rc;
  }
  return 0;
}

/* ---- opening ---- */

static bool name_ends_in(const char *name, const char *end)
{
  size_t n = strlen(name), m = strlen(end);
  return n >= m && !strcmp(name + n - m, end);
}

/* Read the whole header of a file that has one. */
static int source_header_read(const lade_data *data, struct data_source *source, struct lade_error *error)
{
  char header[HEADER_BYTES];
  int rc = source_read(data, source, header, sizeof(header), 0, error);
  return rc ? rc : data_header_read(header, source->path, kinds[source->kind].token_bytes, error, &source->tokenizer);
}

/* Set kind and number of tokens of a file of @bytes without a known magic in @header: text, or tokens alone. */
static int headless_identify(struct data_source *source, const int32_t header[3], int64_t bytes,
                             struct lade_error *error)
{
  source->kind = name_ends_in(source->path, ".bin") ? KIND_BARE : KIND_TEXT;
  source->n_tokens = bytes / kinds[source->kind].token_bytes;
  /* A third word that matches the file's size exactly is a count after another magic, not two tokens by chance. */
  const int64_t stated = header[2], tokens_bytes = bytes - HEADER_BYTES;
  if (source->kind == KIND_BARE && stated > 0 && (tokens_bytes == 2 * stated || tokens_bytes == 4 * stated))
    return lade_error_set(error, -EINVAL, "%s: its header is of llm.c's form with the magic %" PRId32 ": %d or %d is "
                          "expected", source->path, header[0], MAGIC_GPT2, MAGIC_LLAMA3);
  if (bytes % kinds[source->kind].token_bytes)
    return lade_error_set(error, -EBADMSG, "%s: %" PRId64 " bytes are no whole number of 16-bit tokens: cut short?",
                          source->path, bytes);
  return 0;
}

/* Set kind and number of tokens of a file of @bytes with a magic of llm.c in @header. */
static int headed_identify(const lade_data *data, struct data_source *source, const int32_t header[3], int64_t bytes,
                           struct lade_error *error)
{
  const bool is_gpt2 = header[0] == MAGIC_GPT2;
  const int version = is_gpt2 ? VERSION_GPT2 : VERSION_LLAMA3;
  source->kind = is_gpt2 ? KIND_GPT2 : KIND_LLAMA3;
  if (header[1] != version)
    return lade_error_set(error, -EINVAL, "%s: %s of version %" PRId32 ": version %d is expected", source->path,
                          kinds[source->kind].name, header[1], version);
  source->n_tokens = header[2];
  int64_t expected = HEADER_BYTES + source->n_tokens * kinds[source->kind].token_bytes;
  if (header[2] <= 0)
    return lade_error_set(error, -EBADMSG, "%s: the header says %" PRId32 " tokens: one at least is expected",
                          source->path, header[2]);
  if (expected != bytes)
    return lade_error_set(error, -EBADMSG, "%s: the header says %" PRId32 " tokens, %" PRId64 " bytes, but the file "
                          "has %" PRId64 ": cut short or damaged", source->path, header[2], expected, bytes);
  return source_header_read(data, source, error);
}

/* Set kind and number of tokens from the size and, if there is one, the header. */
static int source_identify(const lade_data *data, struct data_source *source, int64_t bytes, struct lade_error *error)
{
  int32_t header[3] = {0};
  if (bytes == 0)
    return lade_error_set(error, -EINVAL, "%s: is empty: give a file with text or tokens", source->path);
  if (bytes >= (int64_t)sizeof(header)) {
    int rc = source_read(data, source, header, sizeof(header), 0, error);
    if (rc)
      return rc;
  }
  if (data_header_is_unfinished(header, (size_t)LADE_MIN(bytes, (int64_t)sizeof(header))))
    return lade_error_set(error, -EBADMSG, "%s: was not finished: lade data was stopped before its end", source->path);
  const bool has_magic = header[0] == MAGIC_GPT2 || header[0] == MAGIC_LLAMA3;
  return has_magic ? headed_identify(data, source, header, bytes, error)
                   : headless_identify(source, header, bytes, error);
}

static int source_open(const lade_data *data, struct data_source *source, const char *path, struct lade_error *error)
{
  struct stat st;
  source->path = lade_fault(data->faults, LADE_FAULT_HEAP) ? NULL : strdup(path);
  if (!source->path)
    return lade_error_set(error, -ENOMEM, "%s: out of memory", path);
  int rc = lade_fault(data->faults, LADE_FAULT_FILE_OPEN);
  if (!rc) {
    source->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a fifo must not block */
    rc = source->fd < 0 ? -errno : 0;
  }
  if (!rc && fstat(source->fd, &st))
    rc = -errno;
  if (rc)
    return lade_error_set(error, rc, "%s: cannot open: %s", path, strerror(-rc));
  if (!S_ISREG(st.st_mode))
    return lade_error_set(error, -EINVAL, "%s: not a regular file", path);
  return source_identify(data, source, st.st_size, error);
}

/* Find the largest token of a file, up to SCAN_LIMIT_BYTES, and check the tokens against the vocabulary. */
static int source_scan(const lade_data *data, const struct data_source *source, char *buffer, struct lade_error *error,
                       uint32_t *ret_largest)
{
  const int token_bytes = kinds[source->kind].token_bytes;
  int64_t n = LADE_MIN(source->n_tokens, SCAN_LIMIT_BYTES / token_bytes);
  uint32_t largest = 0;
  for (int64_t first = 0; first < n; first += SCAN_BYTES / token_bytes) {
    int64_t now = LADE_MIN(n - first, SCAN_BYTES / token_bytes);
    int rc = source_read(data, source, buffer, (size_t)(now * token_bytes),
                         kinds[source->kind].header_bytes + first * token_bytes, error);
    if (rc)
      return rc;
    for (int64_t i = 0; i < now; i++) {
      uint32_t token = token_get(buffer + i * token_bytes, token_bytes);
      largest = LADE_MAX(largest, token);
      if (data->vocabulary && token >= (uint64_t)data->vocabulary)
        return token_refuse(data, source, first + i, token, error);
    }
  }
  *ret_largest = LADE_MAX(*ret_largest, largest);
  return 0;
}

/* Find the first file that names its tokenizer; NULL: none does. */
static const struct data_source *named_find(const lade_data *data)
{
  for (int i = 0; i < data->n_sources; i++) {
    if (data->sources[i].tokenizer.is_known)
      return &data->sources[i];
  }
  return NULL;
}

/* Check that all files that name a tokenizer name the same one, and that the model has room for its tokens. */
static int tokenizer_check(const lade_data *data, int64_t stated, struct lade_error *error)
{
  const struct data_source *first = named_find(data);
  for (int i = 0; i < data->n_sources && first; i++) {
    const struct data_tokenizer *tokenizer = &data->sources[i].tokenizer;
    if (tokenizer->is_known && memcmp(&tokenizer->hash, &first->tokenizer.hash, sizeof(tokenizer->hash)))
      return lade_error_set(error, -EINVAL, "%s has the tokens of another %.64s than %s: all data must be of one "
                            "tokenizer", data->sources[i].path, tokenizer->name, first->path);
  }
  if (!first || !stated || first->tokenizer.vocabulary <= stated)
    return 0;
  return lade_error_set(error, -EINVAL, "%s: its tokenizer, %.64s, has a vocabulary of %" PRId64 ", the model one of %"
                        PRId64 ": the file was made for another model", first->path, first->tokenizer.name,
                        first->tokenizer.vocabulary, stated);
}

/* Check every token that could be out of range; without a stated vocabulary, compute one. */
static int vocabulary_settle(lade_data *data, int64_t stated, struct lade_error *error)
{
  const enum data_kind kind = data->sources[0].kind;
  const struct data_source *named = named_find(data);
  const int64_t own = named ? named->tokenizer.vocabulary : kinds[kind].vocabulary;
  if (kind == KIND_TEXT && stated && stated != own)
    return lade_error_set(error, -EINVAL, "%s: text has a vocabulary of 256 bytes, the model one of %" PRId64
                          ": give token files (.bin), or a model that takes its vocabulary from the data",
                          data->sources[0].path, stated);
  data->vocabulary = stated ? stated : own;
  if (kind == KIND_TEXT || (kind != KIND_LLAMA3 && data->vocabulary > UINT16_MAX))
    return 0;
  char *buffer = lade_fault_calloc(data->faults, 1, SCAN_BYTES);
  int rc = buffer ? 0 : lade_error_set(error, -ENOMEM, "%s: out of memory", data->sources[0].path);
  uint32_t largest = 0;
  for (int i = 0; i < data->n_sources && !rc; i++)
    rc = source_scan(data, &data->sources[i], buffer, error, &largest);
  if (!rc && !data->vocabulary)
    data->vocabulary = (int64_t)largest + 1;
  free(buffer);
  return rc;
}

/* Split the stream into training and validation parts. */
static void parts_split(lade_data *data, const struct lade_data_params *params)
{
  int64_t n = 0, n_of_files = 0;
  for (int i = 0; i < data->n_sources; i++) {
    data->sources[i].first = n;
    n += data->sources[i].n_tokens;
    if (i < params->n_files)
      n_of_files = n;
  }
  int64_t n_train = n_of_files;
  if (!params->n_valid_files)
    n_train = (int64_t)((double)n_of_files * (1 - params->valid_fraction));
  data->train = (struct token_range){0, n_train};
  data->valid = (struct token_range){n_train, n - n_train};
}

static int part_check(const lade_data *data, const struct token_range *part, bool is_valid, struct lade_error *error)
{
  bool is_random = data->order == LADE_ORDER_RANDOM && !is_valid;
  int64_t needed = (is_random ? 1 : data->batch) * data->seq_len + 1;
  if (part->n_tokens >= needed)
    return 0;
  return lade_error_set(error, -EINVAL, "%s: %" PRId64 " tokens for %s, but %s of %" PRId64 " tokens needs %" PRId64
                        ": give a longer file, or lower %s", data->sources[is_valid ? data->n_sources - 1 : 0].path,
                        part->n_tokens, is_valid ? "validation" : "training", is_random ? "one row" : "one batch",
                        needed - 1, needed,
                        is_random  ? "--seq"
                        : is_valid ? "--batch or --seq, or --valid-fraction 0"
                                   : "--batch or --seq");
}

static int params_check(const struct lade_data_params *params, struct lade_error *error)
{
  LADE_ASSERT(params->struct_size == sizeof(*params));
  if (params->n_files < 1)
    return lade_error_set(error, -EINVAL, "no data: give at least one file with --data");
  if (params->batch < 1 || params->seq_len < 1 || params->batch > INT32_MAX || params->seq_len > INT32_MAX)
    return lade_error_set(error, -EINVAL, "batch %" PRId64 " and sequence length %" PRId64 " must be from 1 to 2^31-1",
                          params->batch, params->seq_len);
  if (!(params->valid_fraction >= 0 && params->valid_fraction < 1))
    return lade_error_set(error, -EINVAL, "validation fraction %g must be from 0 to below 1", params->valid_fraction);
  if (params->vocabulary < 0 || params->vocabulary > INT32_MAX)
    return lade_error_set(error, -EINVAL, "vocabulary %" PRId64 " must be from 1 to 2^31-1", params->vocabulary);
  return 0;
}

static int sources_open(lade_data *data, const struct lade_data_params *params, struct lade_error *error)
{
  int n = params->n_files + params->n_valid_files;
  data->sources = lade_fault_calloc(data->faults, (size_t)n, sizeof(*data->sources));
  if (!data->sources)
    return lade_error_set(error, -ENOMEM, "out of memory for %d data files", n);
  for (int i = 0; i < n; i++) {
    struct data_source *source = &data->sources[data->n_sources++];
    source->fd = -1;
    const char *path = i < params->n_files ? params->files[i] : params->valid_files[i - params->n_files];
    int rc = source_open(data, source, path, error);
    if (rc)
      return rc;
    if (source->kind != data->sources[0].kind)
      return lade_error_set(error, -EINVAL, "%s is %s, but %s is %s: all data must be of one kind", source->path,
                            kinds[source->kind].name, data->sources[0].path, kinds[data->sources[0].kind].name);
  }
  return 0;
}

/*
 * Hash samples of the tokens of @part. Files do not enter: a text that was cut into several files, or moved, keeps its
 * key.
 */
static int key_compute(const lade_data *data, const struct token_range *part, uint64_t *ret_key,
                       struct lade_error *error)
{
  int32_t tokens[KEY_TOKENS];
  const int64_t n = part->n_tokens, gap = LADE_MAX(n / KEY_SAMPLES, KEY_TOKENS);
  uint64_t key = (uint64_t)n;
  for (int64_t first = 0; first < n; first += gap) {
    int64_t now = LADE_MIN(n - first, KEY_TOKENS);
    int rc = stream_tokens(data, part->first + first, now, tokens, error);
    if (rc)
      return rc;
    key = XXH3_64bits_withSeed(tokens, (size_t)now * sizeof(*tokens), key);
  }
  *ret_key = key ? key : 1;
  return 0;
}

int lade_data_open(const struct lade_data_params *params, struct lade_error *error, lade_data **ret_data)
{
  int rc = params_check(params, error);
  if (rc)
    return rc;
  lade_data *data = lade_fault_calloc(params->faults, 1, sizeof(*data));
  if (!data)
    return lade_error_set(error, -ENOMEM, "out of memory for the data");
  data->batch = params->batch;
  data->seq_len = params->seq_len;
  data->order = params->order;
  data->seed = params->seed;
  data->faults = params->faults;
  rc = sources_open(data, params, error);
  if (!rc)
    rc = tokenizer_check(data, params->vocabulary, error);
  if (!rc)
    rc = vocabulary_settle(data, params->vocabulary, error);
  if (!rc) {
    parts_split(data, params);
    rc = part_check(data, &data->train, false, error);
  }
  if (!rc && data->valid.n_tokens > 0)
    rc = part_check(data, &data->valid, true, error);
  if (!rc)
    rc = key_compute(data, &data->train, &data->key, error);
  if (!rc)
    rc = key_compute(data, &data->valid, &data->valid_key, error);
  if (rc) {
    lade_data_close(data);
    return rc;
  }
  *ret_data = data;
  return 0;
}

void lade_data_close(lade_data *data)
{
  if (!data)
    return;
  for (int i = 0; i < data->n_sources; i++) {
    if (data->sources[i].fd >= 0)
      close(data->sources[i].fd);
    free(data->sources[i].path);
  }
  free(data->sources);
  free(data);
}

void lade_data_get_info(const lade_data *data, struct lade_data_info *ret_info)
{
  const struct data_source *named = named_find(data);
  *ret_info = (struct lade_data_info){.n_train_tokens = data->train.n_tokens, .n_valid_tokens = data->valid.n_tokens,
                                      .vocabulary = data->vocabulary,
                                      .n_train_batches = part_n_batches(data, &data->train),
                                      .n_valid_batches = part_n_batches(data, &data->valid),
                                      .is_text = data->sources[0].kind == KIND_TEXT, .key = data->key,
                                      .valid_key = data->valid_key, .tokenizer = named ? named->tokenizer.name : NULL,
                                      .separator = named ? named->tokenizer.separator : -1};
}

int lade_data_load_tokenizer(const lade_data *data, struct lade_error *error, char **ret_text, size_t *ret_bytes)
{
  const struct data_source *named = named_find(data);
  if (!named)
    return lade_error_set(error, -ENODATA, "%s: names no tokenizer", data->sources[0].path);
  return lade_tokenizer_load_beside(named->path, &named->tokenizer.hash, error, ret_text, ret_bytes);
}
