/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading untrusted safetensors files.
 *
 * The checks come in this order, so that each may rely on the earlier ones:
 *
 *   1. the file holds 8 bytes and the header length that they state, which is at most 100 MB (the format's own limit);
 *   2. the header is one JSON object without duplicate names; jansson bounds its depth;
 *   3. each entry has a known type, at most LADE_SAFETENSORS_MAX_DIMS dimensions from 0 up, and two offsets in
 *      order within the data; their product with the type's size, computed with overflow checks, is the
 *      distance of the offsets;
 *   4. sorted by offset, the tensors cover the data exactly: no overlap, no hole, no rest.
 *
 * Later accesses need no check except of their own range. Names are kept in two orders, by place and by name, so that a
 * search is binary. Names may hold any character; in messages control characters become question marks, so that a
 * message is one line.
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
#include "base/echo.h"
#include "run/checkpoint/safetensors_internal.h"
#include "run/safetensors.h"

const struct safetensors_type safetensors_types[] = {
    {"F32", LADE_F32, 4}, {"BF16", LADE_BF16, 2}, {"F16", LADE_F16, 2}, {"F64", LADE_F64, 8},
    {"I32", LADE_I32, 4}, {"I16", LADE_I16, 2},   {"U8", LADE_U8, 1},   {"BOOL", -1, 1},
    {"I8", -1, 1},        {"F8_E5M2", -1, 1},     {"F8_E4M3", -1, 1},   {"U16", -1, 2},
    {"U32", -1, 4},       {"I64", -1, 8},         {"U64", -1, 8},       {NULL, -1, 0},
};

struct lade_safetensors {
  char *path;
  int fd;
  struct lade_faults *faults;
  json_t *header; /* owns the names and the metadata */
  int n_tensors;
  struct lade_safetensor *tensors;        /* by place */
  const struct lade_safetensor **by_name;
  uint64_t data_offset, data_bytes;       /* in the file */
};

/* ---- messages ---- */

static int tensor_refuse(const lade_safetensors *file, const char *name, const char *fault, struct lade_error *error)
{
  return lade_error_set(error, -EBADMSG, "%s: tensor %s: %s: damaged, or not a safetensors file", file->path,
                        lade_echo(name).text, fault);
}

/* ---- bytes ---- */

static int file_read(const lade_safetensors *file, uint64_t offset, uint64_t bytes, void *at, struct lade_error *error)
{
  int n_tries = 0;
  for (uint64_t done = 0; done < bytes;) {
    int rc = lade_fault(file->faults, LADE_FAULT_FILE_READ);
    ssize_t n = rc ? -1 : pread(file->fd, (char *)at + done, bytes - done, (off_t)(offset + done));
    if (!rc && n < 0)
      rc = -errno;
    if (lade_retry(rc, &n_tries))
      continue;
    if (rc)
      return lade_error_set(error, rc, "%s: cannot read: %s", file->path, strerror(-rc));
    if (n == 0)
      return lade_error_set(error, -EIO, "%s: has become shorter since it was opened", file->path);
    done += (uint64_t)n;
    n_tries = 0;
  }
  return 0;
}

/* ---- the header ---- */

static int header_load(lade_safetensors *file, uint64_t file_bytes, struct lade_error *error)
{
  unsigned char prefix[8];
  if (file_bytes < sizeof(prefix))
    return lade_error_set(error, -EBADMSG, "%s: %" PRIu64 " bytes are too few for a safetensors file", file->path,
                          file_bytes);
  int rc = file_read(file, 0, sizeof(prefix), prefix, error);
  if (rc)
    return rc;
  uint64_t bytes = 0;
  for (int i = 7; i >= 0; i--)
    bytes = bytes << 8 | prefix[i];
  if (bytes < 2 || bytes > SAFETENSORS_MAX_HEADER_BYTES || bytes > file_bytes - sizeof(prefix))
    return lade_error_set(error, -EBADMSG, "%s: header of %" PRIu64 " bytes in a file of %" PRIu64
                          ": cut short, or not a safetensors file", file->path, bytes, file_bytes);
  char *text = lade_fault(file->faults, LADE_FAULT_HEAP) ? NULL : malloc(bytes);
  if (!text)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for its header", file->path);
  rc = file_read(file, sizeof(prefix), bytes, text, error);
  json_error_t problem;
  if (!rc && text[0] != '{')
    rc = lade_error_set(error, -EBADMSG, "%s: header is no JSON object: not a safetensors file", file->path);
  else if (!rc && !(file->header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &problem)))
    rc = lade_error_set(error, -EBADMSG, "%s: header is not valid JSON: %.120s", file->path, problem.text);
  free(text);
  file->data_offset = sizeof(prefix) + bytes;
  file->data_bytes = file_bytes - file->data_offset;
  return rc;
}

static const struct safetensors_type *type_find(const char *name)
{
  for (const struct safetensors_type *type = safetensors_types; name && type->name; type++) {
    if (!strcmp(type->name, name))
      return type;
  }
  return NULL;
}

/* Read a number of bytes or elements: a JSON integer that is not negative. */
static bool size_get(const json_t *value, uint64_t *ret_size)
{
  if (!json_is_integer(value) || json_integer_value(value) < 0)
    return false;
  *ret_size = (uint64_t)json_integer_value(value);
  return true;
}

static int shape_read(const lade_safetensors *file, const json_t *shape, struct lade_safetensor *tensor,
                      uint64_t *bytes, struct lade_error *error)
{
  if (!json_is_array(shape) || json_array_size(shape) > LADE_SAFETENSORS_MAX_DIMS)
    return tensor_refuse(file, tensor->name, "shape is no list of at most 8 sizes", error);
  tensor->n_dims = (int)json_array_size(shape);
  for (int i = 0; i < tensor->n_dims; i++) {
    uint64_t size;
    if (!size_get(json_array_get(shape, (size_t)i), &size) || size > INT64_MAX ||
        __builtin_mul_overflow(*bytes, size, bytes))
      return tensor_refuse(file, tensor->name, "shape has a size that is negative, no integer or too large", error);
    tensor->dims[i] = (int64_t)size;
  }
  return 0;
}

static int tensor_read(const lade_safetensors *file, const char *name, const json_t *entry,
                       struct lade_safetensor *tensor, struct lade_error *error)
{
  *tensor = (struct lade_safetensor){.name = name};
  if (!json_is_object(entry))
    return tensor_refuse(file, name, "its entry is no JSON object", error);
  const struct safetensors_type *type = type_find(json_string_value(json_object_get(entry, "dtype")));
  if (!type)
    return tensor_refuse(file, name, "dtype is missing or unknown", error);
  tensor->type = type->name;
  tensor->dtype = type->dtype;
  uint64_t bytes = (uint64_t)type->bytes, begin, end;
  int rc = shape_read(file, json_object_get(entry, "shape"), tensor, &bytes, error);
  if (rc)
    return rc;
  const json_t *offsets = json_object_get(entry, "data_offsets");
  if (json_array_size(offsets) != 2 || !size_get(json_array_get(offsets, 0), &begin) ||
      !size_get(json_array_get(offsets, 1), &end))
    return tensor_refuse(file, name, "data_offsets are no two sizes", error);
  if (begin > end || end > file->data_bytes)
    return tensor_refuse(file, name, "data_offsets lie outside of the file", error);
  if (end - begin != bytes)
    return tensor_refuse(file, name, "data_offsets do not match its shape and dtype", error);
  tensor->offset = begin;
  tensor->bytes = bytes;
  return 0;
}

static int place_compare(const void *a, const void *b)
{
  const struct lade_safetensor *x = a, *y = b;
  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  if (x->bytes != y->bytes)
    return x->bytes < y->bytes ? -1 : 1; /* empty ones first, so that they overlap nothing */
  return strcmp(x->name, y->name);
}

static int name_compare(const void *a, const void *b)
{
  return strcmp((*(const struct lade_safetensor *const *)a)->name, (*(const struct lade_safetensor *const *)b)->name);
}

static int metadata_check(const lade_safetensors *file, const json_t *metadata, struct lade_error *error)
{
  const char *key;
  json_t *value;
  if (metadata && !json_is_object(metadata))
    return lade_error_set(error, -EBADMSG, "%s: __metadata__ is no JSON object", file->path);
  json_object_foreach((json_t *)metadata, key, value)
  {
    if (!json_is_string(value))
      return lade_error_set(error, -EBADMSG, "%s: __metadata__ holds a value that is no text", file->path);
  }
  return 0;
}

/* Check that the tensors lie one after another and fill the data. */
static int cover_check(const lade_safetensors *file, struct lade_error *error)
{
  uint64_t at = 0;
  for (int i = 0; i < file->n_tensors; i++) {
    const struct lade_safetensor *tensor = &file->tensors[i];
    if (tensor->offset < at)
      return tensor_refuse(file, tensor->name, "overlaps another tensor", error);
    if (tensor->offset > at)
      return tensor_refuse(file, tensor->name, "bytes before it belong to no tensor", error);
    at += tensor->bytes;
  }
  if (at != file->data_bytes)
    return lade_error_set(error, -EBADMSG, "%s: %" PRIu64 " bytes of data, but its tensors have %" PRIu64
                          ": damaged, or not a safetensors file", file->path, file->data_bytes, at);
  return 0;
}

static int tensors_read(lade_safetensors *file, struct lade_error *error)
{
  size_t n = json_object_size(file->header);
  const char *name;
  json_t *entry;
  file->tensors = lade_fault_calloc(file->faults, n + 1, sizeof(*file->tensors));
  file->by_name = file->tensors ? lade_fault_calloc(file->faults, n + 1, sizeof(*file->by_name)) : NULL;
  if (!file->by_name)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for its header", file->path);
  json_object_foreach(file->header, name, entry)
  {
    int rc = strcmp(name, SAFETENSORS_METADATA) ? tensor_read(file, name, entry, &file->tensors[file->n_tensors], error)
                                                : metadata_check(file, entry, error);
    if (rc)
      return rc;
    file->n_tensors += strcmp(name, SAFETENSORS_METADATA) != 0;
  }
  qsort(file->tensors, (size_t)file->n_tensors, sizeof(*file->tensors), place_compare);
  for (int i = 0; i < file->n_tensors; i++)
    file->by_name[i] = &file->tensors[i];
  qsort(file->by_name, (size_t)file->n_tensors, sizeof(*file->by_name), name_compare);
  return cover_check(file, error);
}

/* ---- public ---- */

static int file_open(lade_safetensors *file, const char *path, struct lade_error *error, uint64_t *ret_bytes)
{
  struct stat st;
  file->path = lade_fault(file->faults, LADE_FAULT_HEAP) ? NULL : strdup(path);
  if (!file->path)
    return lade_error_set(error, -ENOMEM, "%s: out of memory", path);
  int rc = lade_fault(file->faults, LADE_FAULT_FILE_OPEN);
  if (!rc) {
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    rc = file->fd < 0 ? -errno : 0;
  }
  if (!rc && fstat(file->fd, &st))
    rc = -errno;
  if (rc)
    return lade_error_set(error, rc, "%s: cannot open: %s", path, strerror(-rc));
  if (!S_ISREG(st.st_mode))
    return lade_error_set(error, -EINVAL, "%s: not a regular file", path);
  *ret_bytes = (uint64_t)st.st_size;
  return 0;
}

int lade_safetensors_open(const char *path, struct lade_faults *faults, struct lade_error *error,
                          lade_safetensors **ret_file)
{
  lade_safetensors *file = lade_fault_calloc(faults, 1, sizeof(*file));
  if (!file)
    return lade_error_set(error, -ENOMEM, "%s: out of memory", path);
  file->fd = -1;
  file->faults = faults;
  uint64_t bytes = 0;
  int rc = file_open(file, path, error, &bytes);
  if (!rc)
    rc = header_load(file, bytes, error);
  if (!rc)
    rc = tensors_read(file, error);
  if (rc) {
    lade_safetensors_close(file);
    return rc;
  }
  *ret_file = file;
  return 0;
}

void lade_safetensors_close(lade_safetensors *file)
{
  if (!file)
    return;
  if (file->fd >= 0)
    close(file->fd);
  json_decref(file->header);
  free(file->by_name);
  free(file->tensors);
  free(file->path);
  free(file);
}

int lade_safetensors_count(const lade_safetensors *file)
{
  return file->n_tensors;
}

const struct lade_safetensor *lade_safetensors_get(const lade_safetensors *file, int i)
{
  LADE_ASSERT(i >= 0 && i < file->n_tensors);
  return &file->tensors[i];
}

const struct lade_safetensor *lade_safetensors_find(const lade_safetensors *file, const char *name)
{
  const struct lade_safetensor wanted = {.name = name}, *key = &wanted;
  const struct lade_safetensor **found =
      bsearch(&key, file->by_name, (size_t)file->n_tensors, sizeof(*file->by_name), name_compare);
  return found ? *found : NULL;
}

const char *lade_safetensors_metadata(const lade_safetensors *file, const char *key)
{
  return json_string_value(json_object_get(json_object_get(file->header, SAFETENSORS_METADATA), key));
}

int lade_safetensors_read(const lade_safetensors *file, const struct lade_safetensor *tensor, uint64_t offset,
                          uint64_t bytes, void *ret_data, struct lade_error *error)
{
  LADE_ASSERT(offset <= tensor->bytes && bytes <= tensor->bytes - offset);
  return file_read(file, file->data_offset + tensor->offset + offset, bytes, ret_data, error);
}
