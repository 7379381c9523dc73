/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/store.h - tensors on drives: put them by name, get them back checked.
 *
 * A store takes its budget from one or several directories when it opens, and writes all of it once. So no later put
 * finds a full drive or pays for allocation. The files have no names and end with the process.
 *
 * Transfers bypass the page cache. They use io_uring, or threads where it is refused. Every 64 KiB has a checksum in
 * memory, bound to the tensor, the place and the put. Flipped bytes, bytes of another tensor or of an earlier put are
 * -EBADMSG and never returned. Short transfers continue, and transient refusals are tried again. Any other failure is
 * an error whose line names the tensor and the directory. Put several directories on different drives: data is spread
 * by the drives' speeds, and a drive that fails or delays the others is set aside (lade_tensor_store_take_notice).
 *
 * The drive reads and writes memory at a multiple of 4096 bytes directly; other memory needs a copy.
 *
 * Several threads may call any function at once, except open and close. Calls about different tensors run side by side.
 * Calls block until the drive is done; call from a second thread to compute meanwhile. A child made by fork gets -EPERM
 * from functions that return a status, and its close does nothing, because files and ring are the parent's.
 */
#ifndef LADE_TENSOR_STORE_H
#define LADE_TENSOR_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lade_tensor_store lade_tensor_store;

struct lade_tensor_store_params {
  size_t struct_size;    /* sizeof(struct lade_tensor_store_params); a tail of zeros means defaults */
  const char *dirs;      /* an existing directory, or several with commas between; a comma in a name is written twice */
  uint64_t budget_bytes; /* bytes for tensors; each takes a multiple of 64 KiB */
  bool allow_tmpfs;      /* allow a directory in memory */
  bool allow_buffered;   /* use the page cache where O_DIRECT is refused; else opening fails there */
  bool use_threads;      /* do not try io_uring */
};

struct lade_tensor_store_info {
  size_t struct_size;
  uint64_t budget_bytes, used_bytes;  /* used counts tensors rounded up to 64 KiB */
  uint64_t n_tensors;
  uint64_t read_bytes, written_bytes; /* since the store was opened, in whole blocks of 4096 */
  uint32_t n_dirs, n_aside;           /* directories, and those set aside, which take no new data */
  bool is_direct, uses_io_uring;
};

/*
 * Open a store and take its budget; the caller closes it. Any thread. Blocks while the drive writes the budget once.
 *   -EINVAL                                wrong parameters
 *   -ENOENT, -ENOTDIR, -EACCES, -EROFS     of a directory
 *   -EIO     a tmpfs or a file system without O_DIRECT, unless allowed, or a drive that fails
 *   -ENOSPC  too little room; the line has the bytes needed and free
 *   -EFBIG   past the file size limit
 *   -ENOMEM
 */
LADE_API int lade_tensor_store_open(const struct lade_tensor_store_params *params, struct lade_error *error,
                                    lade_tensor_store **ret_store);

/* Close a store; its tensors are lost. NULL is allowed. pre: no call is in progress. */
LADE_API void lade_tensor_store_close(lade_tensor_store *store);

/* Return one line about a fallback (threads, page cache), or "". Valid until close. Any thread. Never blocks. */
LADE_API const char *lade_tensor_store_note(const lade_tensor_store *store);

/*
 * Store the @bytes at @data as @name. @data is borrowed during the call. An existing name is overwritten. A
 * failure drops the name, unless nothing was done. Blocks.
 *   -EOVERFLOW  the budget has no room left; nothing was done
 *   -EBUSY      another thread puts, gets or drops the same name; nothing was done
 *   -EINVAL     no name or no bytes
 *   -EIO, -ENOSPC and others of the drive, -ENOMEM
 */
LADE_API int lade_tensor_store_put(lade_tensor_store *store, const char *name, const void *data, uint64_t bytes,
                                   struct lade_error *error);

/*
 * Read @name into @data. On failure @data is undefined and the tensor stays. Blocks.
 *   -EINVAL   @bytes is not its size
 *   -ENOENT   no such name
 *   -EBUSY    another thread puts, gets or drops it
 *   -EBADMSG  the drive returned other bytes than were put
 *   -EIO      the drive failed
 */
LADE_API int lade_tensor_store_get(lade_tensor_store *store, const char *name, void *data, uint64_t bytes,
                                   struct lade_error *error);

/* Return the bytes of @name, or -ENOENT. Never blocks. */
LADE_API int lade_tensor_store_find(lade_tensor_store *store, const char *name, uint64_t *ret_bytes);

/* Drop @name and free its room. -ENOENT, -EBUSY. Never blocks. */
LADE_API int lade_tensor_store_drop(lade_tensor_store *store, const char *name);

/* Return sizes and counts. -EINVAL for a wrong struct_size. Never blocks. */
LADE_API int lade_tensor_store_get_info(lade_tensor_store *store, struct lade_tensor_store_info *ret_info);

/*
 * Write one line into @text of @text_bytes (512 suffice) about a drive that was set aside since the last call. Return
 * 1 if there is one, else 0. Never blocks.
 */
LADE_API int lade_tensor_store_take_notice(lade_tensor_store *store, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
