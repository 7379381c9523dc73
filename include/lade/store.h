/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/store.h - tensors that wait on drives: put them by name, get them back checked.
 *
 * A store takes its budget from one or several directories when it is opened, and writes all of it once: later no put
 * can find a drive full, and none pays for allocation. Its files have no names and end with the process.
 *
 * Data goes past the page cache, by io_uring or, where that is refused, by threads. Every 64 KiB has a checksum in
 * memory that is bound to the tensor, to the place and to the put: bytes that were flipped, are from another
 * tensor or from an earlier put are -EBADMSG, never returned. Short transfers are continued; refusals that
 * pass are tried again; anything else is an error with a line that names the tensor and the directory. With several
 * directories, which should be on drives of their own, data is spread by the drives' speeds, and a drive that fails
 * or holds the others up is set aside: see lade_tensor_store_take_notice.
 *
 * Memory at a multiple of 4096 bytes is read and written by the drive itself; other memory goes through a copy.
 *
 * Any function but open and close may be called by several threads at once; calls about different tensors run side by
 * side. Calls block until the drive is done; a program that wants to compute meanwhile calls from a thread. A child
 * made by fork gets -EPERM from all that return a status, and its close does nothing: files and ring are its parent's.
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
  uint64_t budget_bytes; /* for tensors; each takes whole multiples of 64 KiB */
  bool allow_tmpfs;      /* a directory in memory is refused unless this is set */
  bool allow_buffered;   /* use the page cache where O_DIRECT is refused, instead of failing */
  bool use_threads;      /* do not try io_uring */
};

struct lade_tensor_store_info {
  size_t struct_size;
  uint64_t budget_bytes, used_bytes;  /* used: with tensors rounded up to 64 KiB */
  uint64_t n_tensors;
  uint64_t read_bytes, written_bytes; /* moved since it was opened, in whole blocks of 4096 */
  uint32_t n_dirs, n_aside;           /* directories, and those that take nothing new */
  bool is_direct, uses_io_uring;
};

/*
 * Open a store and take its budget. -EINVAL for parameters; -ENOENT, -ENOTDIR, -EACCES, -EROFS for a directory; -EIO
 * for a tmpfs and for a file system without O_DIRECT, unless allowed, and for a drive that fails; -ENOSPC with the
 * bytes needed and free; -EFBIG past the file size limit; -ENOMEM. The caller closes it. Any thread. Blocks while the
 * drive writes the budget once.
 */
LADE_API int lade_tensor_store_open(const struct lade_tensor_store_params *params, struct lade_error *error,
                                    lade_tensor_store **ret_store);

/* Give everything back; what was put is gone. NULL is allowed. No call may be under way. */
LADE_API void lade_tensor_store_close(lade_tensor_store *store);

/* What was chosen instead of the best, one line for a person, or "". Valid until close. */
LADE_API const char *lade_tensor_store_note(const lade_tensor_store *store);

/*
 * Keep the @bytes at @data as @name; they are the caller's again when this returns. Put anew, a name is overwritten:
 * its old bytes are gone, also when this fails, and then it is as if dropped. -EOVERFLOW, and nothing done, when the
 * budget has no room left; -EBUSY, and nothing done, while another thread puts, gets or drops the same name; -EINVAL
 * for no name or no bytes; -EIO, -ENOSPC, ... from the drive; -ENOMEM.
 */
LADE_API int lade_tensor_store_put(lade_tensor_store *store, const char *name, const void *data, uint64_t bytes,
                                   struct lade_error *error);

/*
 * Fill @data with @name as it was last put. @bytes is its size: another one is -EINVAL. -ENOENT if there is none,
 * -EBUSY while another thread puts, gets or drops it, -EBADMSG if what the drive gave is not what was put, -EIO; on
 * failure the contents of @data are undefined and the tensor stays.
 */
LADE_API int lade_tensor_store_get(lade_tensor_store *store, const char *name, void *data, uint64_t bytes,
                                   struct lade_error *error);

/* Bytes of @name, or -ENOENT. Never blocks. */
LADE_API int lade_tensor_store_find(lade_tensor_store *store, const char *name, uint64_t *ret_bytes);

/* Forget @name and give its room back. -ENOENT, -EBUSY. Never blocks. */
LADE_API int lade_tensor_store_drop(lade_tensor_store *store, const char *name);

/* Never blocks. -EINVAL for a struct_size that is none. */
LADE_API int lade_tensor_store_get_info(lade_tensor_store *store, struct lade_tensor_store_info *ret_info);

/*
 * One line, into @text of @text_bytes (512 are enough), about a drive that was set aside since this was last asked:
 * 1. Nothing has happened: 0. Never blocks.
 */
LADE_API int lade_tensor_store_take_notice(lade_tensor_store *store, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
