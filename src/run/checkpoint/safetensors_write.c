/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing safetensors: header first, each byte of data at its place, durable at the end.
 *
 * All sizes are known before the first byte of data. So the header needs no later change, and the file can be allocated
 * whole: a full drive is reported before any data is written. Spaces pad the header to a multiple of 8 bytes. The
 * format requires this, so that the data of a mapped file is aligned. A file that is not committed is removed. The
 * caller renames whole directories and so owns files under their final names.
 *
 * Several processes may write one file, each its own ranges. One creates it, with header and room; the others compute
 * the same header to know where the data begins. A shared writer does not know the ranges of the others, so its commit
 * does not check for missing data.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/base.h"
#include "run/checkpoint/safetensors_internal.h"
#include "run/safetensors.h"

#define PREFIX_BYTES 8 /* the header's length */
#define PAD_BYTES 8 /* the header's length is a multiple of it */
#define MAX_WRITE_BYTES (UINT64_C(1) << 30) /* in one system call */

struct lade_safetensors_writer {
  char *path;
  int fd;
  bool is_shared, is_grouped;
  struct lade_faults *faults;
  uint64_t left_bytes; /* of the data */
  uint64_t data_offset, data_bytes; /* in the file */
};

static const char *type_name(enum lade_dtype dtype)
{
  const struct safetensors_type *type = safetensors_types;
  while (type->name && type->dtype != (int)dtype)
    type++;
  return type->name;
}

/* ---- the header ---- */

static bool entry_bytes(const struct lade_safetensors_entry *entry, uint64_t *ret_bytes)
{
  uint64_t bytes = lade_dtype_bytes(entry->dtype);
  if (entry->n_dims < 0 || entry->n_dims > LADE_SAFETENSORS_MAX_DIMS)
    return false;
  for (int i = 0; i < entry->n_dims; i++) {
    if (entry->dims[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)entry->dims[i], &bytes))
      return false;
  }
  *ret_bytes = bytes;
  return bytes <= INT64_MAX;
}

static json_t *entry_json(const struct lade_safetensors_entry *entry, uint64_t begin, uint64_t end)
{
  json_t *shape = json_array();
  for (int i = 0; i < entry->n_dims; i++)
    json_array_append_new(shape, json_integer(entry->dims[i]));
  return json_pack("{s:s,s:o,s:[I,I]}", "dtype", type_name(entry->dtype), "shape", shape, "data_offsets",
                   (json_int_t)begin, (json_int_t)end);
}

static json_t *metadata_json(const struct lade_safetensors_params *params)
{
  json_t *metadata = json_object();
  for (int i = 0; i < params->n_metadata; i++) {
    if (json_object_set_new(metadata, params->metadata[i].key, json_string(params->metadata[i].value))) {
      json_decref(metadata);
      return NULL;
    }
  }
  return metadata;
}

/* Make the header's JSON and add up the bytes of all data. -EINVAL naming the entry, -ENOMEM. */
static int header_make(const struct lade_safetensors_params *params, struct lade_error *error, char **ret_text,
                       uint64_t *ret_data_bytes)
{
  json_t *root = json_object();
  uint64_t end = 0;
  int rc = 0;
  if (params->n_metadata && json_object_set_new(root, SAFETENSORS_METADATA, metadata_json(params)))
    rc = lade_error_set(error, -EINVAL, "%s: metadata is not UTF-8", params->path);
  for (int i = 0; i < params->n_entries && !rc; i++) {
    const struct lade_safetensors_entry *entry = &params->entries[i];
    uint64_t begin = end, bytes;
    if (!entry_bytes(entry, &bytes) || __builtin_add_overflow(end, bytes, &end) || end > INT64_MAX)
      rc = lade_error_set(error, -EINVAL, "%s: tensor %s has an impossible shape", params->path, entry->name);
    else if (!strcmp(entry->name, SAFETENSORS_METADATA) || json_object_get(root, entry->name) ||
             json_object_set_new(root, entry->name, entry_json(entry, begin, end)))
      rc = lade_error_set(error, -EINVAL, "%s: tensor %s: a name that is taken or not UTF-8", params->path,
                          entry->name);
  }
  char *text = rc ? NULL : json_dumps(root, JSON_COMPACT);
  json_decref(root);
  if (!rc && !text)
    rc = lade_error_set(error, -ENOMEM, "%s: out of memory for its header", params->path);
  if (!rc && strlen(text) > SAFETENSORS_MAX_HEADER_BYTES - PAD_BYTES)
    rc = lade_error_set(error, -EINVAL, "%s: a header of %zu bytes is past the format's limit", params->path,
                        strlen(text));
  if (rc) {
    free(text);
    return rc;
  }
  *ret_text = text;
  *ret_data_bytes = end;
  return 0;
}

/* ---- bytes ---- */

static int bytes_write(lade_safetensors_writer *writer, uint64_t offset, const void *data, uint64_t bytes,
                       struct lade_error *error)
{
  int n_tries = 0;
  for (const char *at = data; bytes;) {
    int rc = lade_fault(writer->faults, LADE_FAULT_FILE_WRITE);
    uint64_t max = LADE_MIN(bytes, MAX_WRITE_BYTES);
    ssize_t n = -1;
    if (!rc)
      n = pwrite(writer->fd, at, max, (off_t)(offset + (uint64_t)(at - (const char *)data)));
    if (!rc && n < 0)
      rc = -errno;
    if (lade_retry(rc, &n_tries))
      continue;
    if (rc)
      return lade_error_set(error, rc, "%s: cannot write: %s", writer->path, strerror(-rc));
    at += n;
    bytes -= (uint64_t)n;
    n_tries = 0;
  }
  return 0;
}

/* Return the bytes of the file before its data. */
static uint64_t header_bytes(const char *text)
{
  return PREFIX_BYTES + lade_align_up(strlen(text), PAD_BYTES);
}

static int header_write(lade_safetensors_writer *writer, const char *text, struct lade_error *error)
{
  const uint64_t length = strlen(text), padded = header_bytes(text) - PREFIX_BYTES;
  unsigned char prefix[PREFIX_BYTES];
  for (int i = 0; i < PREFIX_BYTES; i++)
    prefix[i] = (unsigned char)(padded >> (8 * i));
  /* A file system that cannot allocate ahead returns EOPNOTSUPP or EINVAL; a lack of room then shows in a write. */
  uint64_t bytes = writer->data_offset + writer->left_bytes;
  if (fallocate(writer->fd, 0, 0, (off_t)bytes) && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS &&
      errno != EINTR)
    return lade_error_set(error, -errno, "%s: no room for %" PRIu64 " bytes: %s", writer->path, bytes,
                          strerror(errno));
  int rc = bytes_write(writer, 0, prefix, sizeof(prefix), error);
  if (!rc)
    rc = bytes_write(writer, PREFIX_BYTES, text, length, error);
  if (!rc)
    rc = bytes_write(writer, PREFIX_BYTES + length, "        ", padded - length, error);
  return rc;
}

/* Check that the file has the length that its creator gave it. */
static int length_check(const lade_safetensors_writer *writer, struct lade_error *error)
{
  struct stat st;
  if (fstat(writer->fd, &st) < 0)
    return lade_error_set(error, -errno, "%s: %s", writer->path, strerror(errno));
  /* A file whose room cannot be allocated ahead grows as it is written. */
  if ((uint64_t)st.st_size < writer->data_offset || (uint64_t)st.st_size > writer->data_offset + writer->data_bytes)
    return lade_error_set(error, -EINVAL, "%s: %lld bytes: not the file that is being written", writer->path,
                          (long long)st.st_size);
  return 0;
}

/* ---- public ---- */

static void writer_free(lade_safetensors_writer *writer)
{
  if (writer->fd >= 0)
    close(writer->fd);
  free(writer->path);
  free(writer);
}

static int writer_make(const struct lade_safetensors_params *params, bool is_grouped, uint64_t data_offset,
                       uint64_t data_bytes, struct lade_error *error, lade_safetensors_writer **ret_writer)
{
  lade_safetensors_writer *writer = lade_fault_calloc(params->faults, 1, sizeof(*writer));
  if (!writer)
    return lade_error_set(error, -ENOMEM, "%s: out of memory", params->path);
  writer->fd = -1;
  writer->faults = params->faults;
  writer->is_shared = params->is_shared;
  writer->is_grouped = is_grouped;
  writer->data_offset = data_offset;
  writer->left_bytes = writer->data_bytes = data_bytes;
  writer->path = strdup(params->path);
  int rc = writer->path ? lade_fault(writer->faults, LADE_FAULT_FILE_OPEN) : -ENOMEM;
  if (!rc) {
    writer->fd = open(params->path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | (is_grouped ? 0 : O_CREAT | O_EXCL), 0666);
    rc = writer->fd < 0 ? -errno : 0;
  }
  if (rc) {
    writer_free(writer);
    return lade_error_set(error, rc, "%s: cannot %s: %s", params->path, is_grouped ? "open" : "create", strerror(-rc));
  }
  *ret_writer = writer;
  return 0;
}

static int writer_open(const struct lade_safetensors_params *params, bool is_grouped, struct lade_error *error,
                       lade_safetensors_writer **ret_writer)
{
  LADE_ASSERT(params->struct_size == sizeof(*params));
  char *text;
  uint64_t data_bytes;
  lade_safetensors_writer *writer = NULL;
  int rc = header_make(params, error, &text, &data_bytes);
  if (rc)
    return rc;
  rc = writer_make(params, is_grouped, header_bytes(text), data_bytes, error, &writer);
  if (!rc)
    rc = is_grouped ? length_check(writer, error) : header_write(writer, text, error);
  free(text);
  if (rc)
    lade_safetensors_abort(writer);
  else
    *ret_writer = writer;
  return rc;
}

int lade_safetensors_create(const struct lade_safetensors_params *params, struct lade_error *error,
                            lade_safetensors_writer **ret_writer)
{
  return writer_open(params, false, error, ret_writer);
}

int lade_safetensors_join(const struct lade_safetensors_params *params, struct lade_error *error,
                          lade_safetensors_writer **ret_writer)
{
  LADE_ASSERT(params->is_shared);
  return writer_open(params, true, error, ret_writer);
}

int lade_safetensors_write_at(lade_safetensors_writer *writer, uint64_t offset, const void *data, uint64_t bytes,
                              struct lade_error *error)
{
  if (offset > writer->data_bytes || bytes > writer->data_bytes - offset || bytes > writer->left_bytes)
    return lade_error_set(error, -EINVAL, "%s: %" PRIu64 " bytes at %" PRIu64 " are more than its header states",
                          writer->path, bytes, offset);
  int rc = bytes_write(writer, writer->data_offset + offset, data, bytes, error);
  if (!rc)
    writer->left_bytes -= bytes;
  return rc;
}

int lade_safetensors_commit(lade_safetensors_writer *writer, struct lade_error *error)
{
  int rc = 0;
  if (writer->left_bytes && !writer->is_shared)
    rc = lade_error_set(error, -EINVAL, "%s: %" PRIu64 " bytes of data are missing", writer->path, writer->left_bytes);
  if (!rc) {
    rc = lade_fault(writer->faults, LADE_FAULT_FILE_SYNC);
    if (!rc && fsync(writer->fd))
      rc = -errno;
    int fd = writer->fd;
    writer->fd = -1;
    if (close(fd) && !rc)
      rc = -errno;
    if (rc)
      lade_error_set(error, rc, "%s: cannot sync: %s", writer->path, strerror(-rc));
  }
  if (rc) {
    lade_safetensors_abort(writer);
    return rc;
  }
  writer_free(writer);
  return 0;
}

void lade_safetensors_abort(lade_safetensors_writer *writer)
{
  if (!writer)
    return;
  if (!writer->is_grouped)
    unlink(writer->path);
  writer_free(writer);
}
