/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of named tensors in HuggingFace's safetensors format: 8 bytes of header length, a JSON header with type, shape
 * and place of each tensor, then the data without holes.
 *
 * A writer states every tensor up front and then takes the data in any pieces and order. So it needs no more memory
 * than the caller's window. A reader trusts nothing: it checks length, JSON, types, shapes, products and places before
 * it opens. Data is read with pread, so a file that shrinks later is an error.
 */
#ifndef LADE_SAFETENSORS_H
#define LADE_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/faults.h"
#include "lade/types.h"

#define LADE_SAFETENSORS_MAX_DIMS 8

/* ---- reading ---- */

typedef struct lade_safetensors lade_safetensors;

struct lade_safetensor {
  const char *name;
  const char *type; /* as it stands in the file, "BF16", "I64"; static */
  int dtype;        /* enum lade_dtype, or -1 for a type that only the file knows */
  int n_dims;       /* 0: one element */
  int64_t dims[LADE_SAFETENSORS_MAX_DIMS];
  uint64_t offset, bytes; /* in the data */
};

/*
 * Open @path and check its whole header. -EBADMSG with the reason and, where there is one, the tensor's name, for a
 * file that is damaged or of another format; -EINVAL for no regular file; -ENOENT and the like; -EIO; -ENOMEM. @faults
 * is borrowed, may be NULL. Blocks.
 */
int lade_safetensors_open(const char *path, struct lade_faults *faults, struct lade_error *error,
                          lade_safetensors **ret_file);

/* Close @file; NULL is allowed. */
void lade_safetensors_close(lade_safetensors *file);

/* Return the number of tensors, and tensor @i in the order of their data. Valid until close. Any thread. */
int lade_safetensors_count(const lade_safetensors *file);
const struct lade_safetensor *lade_safetensors_get(const lade_safetensors *file, int i);

/* Return the tensor of that name, or NULL. Any thread. */
const struct lade_safetensor *lade_safetensors_find(const lade_safetensors *file, const char *name);

/* Return the value of @key in the file's own metadata, or NULL. Any thread. */
const char *lade_safetensors_metadata(const lade_safetensors *file, const char *key);

/*
 * Read the bytes [@offset, @offset + @bytes) of @tensor, a range within it. -EIO, also when the file has shrunk. Any
 * thread.
 */
int lade_safetensors_read(const lade_safetensors *file, const struct lade_safetensor *tensor, uint64_t offset,
                          uint64_t bytes, void *ret_data, struct lade_error *error);

/* ---- writing ---- */

typedef struct lade_safetensors_writer lade_safetensors_writer;

struct lade_safetensors_entry {
  const char *name; /* UTF-8, not "__metadata__", each once */
  enum lade_dtype dtype;
  int n_dims;
  int64_t dims[LADE_SAFETENSORS_MAX_DIMS];
};

struct lade_safetensors_pair {
  const char *key, *value; /* UTF-8 */
};

struct lade_safetensors_params {
  size_t struct_size;
  const char *path; /* may not exist yet */
  const struct lade_safetensors_entry *entries;
  int n_entries;
  const struct lade_safetensors_pair *metadata;
  int n_metadata;
  bool is_shared; /* several write it, each with a writer of its own: this one misses nothing */
  struct lade_faults *faults; /* borrowed, may be NULL */
};

/*
 * Create the file, take its room on the drive and write its header. -EEXIST, -ENOSPC and the like, -EINVAL for
 * entries that are not as above, -ENOMEM; no file is left then. Nothing of @params is needed afterwards but the
 * faults. Blocks.
 */
int lade_safetensors_create(const struct lade_safetensors_params *params, struct lade_error *error,
                            lade_safetensors_writer **ret_writer);

/*
 * Write into a file that another rank created with the same shared @params: with write_at, then commit or abort, which
 * leaves the file. -ENOENT: it is not visible here; -EINVAL: it is another; else as create.
 */
int lade_safetensors_join(const struct lade_safetensors_params *params, struct lade_error *error,
                          lade_safetensors_writer **ret_writer);

/*
 * Write @bytes of the data at @offset, in any order; each byte of a file is written once. -ENOSPC, -EIO: abort then.
 * -EINVAL past the end. Blocks.
 */
int lade_safetensors_write_at(lade_safetensors_writer *writer, uint64_t offset, const void *data, uint64_t bytes,
                              struct lade_error *error);

/*
 * Sync and close the file. pre: all data is written. The writer is freed in any case, and on failure the file is
 * removed: -EIO, -ENOSPC, -EINVAL if data is missing. The caller syncs the directory.
 */
int lade_safetensors_commit(lade_safetensors_writer *writer, struct lade_error *error);

/* Close and remove the file instead of committing it. NULL is allowed. */
void lade_safetensors_abort(lade_safetensors_writer *writer);

#endif
