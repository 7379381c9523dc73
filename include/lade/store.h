/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/store.h - tensors on drives: put them by name, get them back checked.
 *
 * A store takes its budget from one or several directories when it opens, and writes all of it once. So no later put
 * finds a full drive or pays for allocation. The files have no names and end with the process, unless the store is
 * durable (below).
 *
 * Transfers bypass the page cache. They use io_uring, or threads where it is refused. Every 64 KiB has a checksum in
 * memory, bound to the tensor, the place and the put. Flipped bytes, bytes of another tensor or of an earlier put are
 * -EBADMSG and never returned. Short transfers continue, and transient refusals are tried again. Any other failure is
 * an error whose line names the tensor and the directory. Put several directories on different drives: data is spread
 * by the drives' speeds, and a drive that fails or delays the others is set aside (lade_tensor_store_take_notice).
 *
 * The drive reads and writes memory at a multiple of 4096 bytes directly; other memory needs a copy.
 *
 * Requests. The functions put and get move a whole tensor and return when the drive is done. The function submit begins
 * the same for a whole tensor or a part of it, and returns a ticket; wait ends the ticket with the result. Threads of
 * the store move the bytes meanwhile, checksums included. The bytes of unfinished requests are bounded by
 * in_flight_bytes: submit blocks while one more request would pass the bound, so a producer that is faster than the
 * drive is slowed to its speed. Requests for one tensor must not overlap if one of them is a put: the later one is
 * -EBUSY. All other requests run at the same time in any order; a caller that needs an order waits between them.
 *
 *     for each tensor: lade_tensor_store_submit(store, &put, &error, &tickets[i]);
 *     compute;
 *     for each tensor: lade_tensor_store_wait(store, tickets[i], &error);
 *
 * Durable stores keep their tensors in named files, which one process at a time has open. lade_tensor_store_publish
 * makes the present tensors the ones that the next open finds. A put, a part of a put and a drop never touch bytes that
 * were published: they take other room, and the old room is free after the next publish. So the budget must hold the
 * published tensors and those that replace them. A process may end at any moment, also by a kill or a power cut, and
 * also within publish. It leaves whole the tensors of the last publish, or those of the one in progress. Files that
 * were damaged meanwhile are -EBADMSG, at open or at the get of the tensor that they damage.
 *
 * Several threads may call any function at once, except open and close. Requests for different tensors run at the same
 * time. A publish excludes all other calls but note and take_notice: they wait until it ends. A child made by fork gets
 * -EPERM from functions that return a status, and its close does nothing, because files and ring are the parent's.
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
typedef struct lade_tensor_ticket lade_tensor_ticket; /* a request that lade_tensor_store_wait has not yet ended */

struct lade_tensor_store_params {
  size_t struct_size;    /* sizeof(struct lade_tensor_store_params); a tail of zeros means defaults */
  const char *dirs;      /* an existing directory, or several with commas between; a comma in a name is written twice */
  uint64_t budget_bytes; /* bytes for tensors, each a multiple of 64 KiB; 0: those of a durable store that exists */
  bool allow_tmpfs;      /* allow a directory in memory */
  bool allow_buffered;   /* use the page cache where O_DIRECT is refused; else opening fails there */
  bool use_threads;      /* do not try io_uring */
  bool is_durable;       /* one directory; its files lade-tensors.data and .journal belong to the store */
  uint64_t in_flight_bytes; /* bound of unfinished requests; a larger one goes alone; 0: 256 MiB */
};

enum lade_tensor_op { LADE_TENSOR_PUT, LADE_TENSOR_GET };

/* A tensor, or a part of it, to put or to get. */
struct lade_tensor_request {
  size_t struct_size;
  enum lade_tensor_op op;
  const char *name;      /* read during submit */
  void *data;            /* borrowed until wait; a put only reads it */
  uint64_t bytes;
  uint64_t tensor_bytes; /* 0: the request is the whole tensor; else its size, and the request is a part of it */
  uint64_t offset;       /* of the part; a multiple of 65,536. So is bytes unless the part ends the tensor */
};

struct lade_tensor_store_info {
  size_t struct_size;
  uint64_t budget_bytes, used_bytes;  /* used counts tensors rounded up to 64 KiB */
  uint64_t n_tensors;
  uint64_t read_bytes, written_bytes; /* since the store was opened, in whole blocks of 4096 */
  uint32_t n_dirs, n_aside;           /* directories, and those set aside, which take no new data */
  bool is_direct, uses_io_uring;
  bool is_durable;
  uint64_t n_published;   /* publishes of a durable store, by earlier processes too */
  uint64_t held_bytes;    /* within used_bytes: published, replaced or dropped since, and free after the next publish */
  uint64_t in_flight_bytes, in_flight_peak_bytes; /* bytes of unfinished requests, now and at most since open */
};

/*
 * Open a store and take its budget; the caller closes it. Any thread. Blocks while the drive writes the budget once.
 *   -EINVAL                                wrong parameters; a durable store of another budget or another format
 *   -ENOENT, -ENOTDIR, -EACCES, -EROFS, -ELOOP  of a directory
 *   -EIO     a tmpfs or a file system without O_DIRECT, unless allowed, or a drive that fails
 *   -ENOSPC  too little room; the line has the bytes needed and free
 *   -EFBIG   past the file size limit
 *   -EBUSY   another process has the durable store open
 *   -EBADMSG the durable store's files are damaged, and the line names the file and the byte; nothing was changed
 *   -EAGAIN  a thread was refused
 *   -ENOMEM
 */
LADE_API int lade_tensor_store_open(const struct lade_tensor_store_params *params, struct lade_error *error,
                                    lade_tensor_store **ret_store);

/*
 * Close a store. Tensors are lost, except for those that a durable store has published. Requests that have begun are
 * finished, the others are dropped, and all tickets end. NULL is allowed. pre: no call is in progress. Blocks.
 */
LADE_API void lade_tensor_store_close(lade_tensor_store *store);

/* Return one line about a fallback (threads, page cache), or "". Valid until close. Any thread. Never blocks. */
LADE_API const char *lade_tensor_store_note(const lade_tensor_store *store);

/*
 * Store the @bytes at @data as @name. @data is borrowed during the call. An existing name is overwritten. A
 * failure drops the name, unless nothing was done. Blocks.
 *   -EOVERFLOW  the budget has no room left; nothing was done
 *   -EBUSY      another request moves the same tensor; nothing was done
 *   -EINVAL     no name or no bytes
 *   -EIO, -ENOSPC and others of the drive, -ENOMEM
 */
LADE_API int lade_tensor_store_put(lade_tensor_store *store, const char *name, const void *data, uint64_t bytes,
                                   struct lade_error *error);

/*
 * Read @name into @data. On failure @data is undefined and the tensor stays. Blocks.
 *   -EINVAL   @bytes is not its size
 *   -ENOENT   no such name
 *   -EBUSY    another request puts it
 *   -EBADMSG  the drive returned other bytes than were put
 *   -EIO      the drive failed
 */
LADE_API int lade_tensor_store_get(lade_tensor_store *store, const char *name, void *data, uint64_t bytes,
                                   struct lade_error *error);

/*
 * Begin @request and return its ticket, which the caller gives to lade_tensor_store_wait once. The put of a part of an
 * unknown name creates the tensor; the get of a part that was never put is -EBADMSG. If the put of a whole tensor fails
 * its name is dropped. If the put of a part fails the other parts stay; until this part is put again, its get is
 * -EBADMSG and the tensor cannot be published. Any thread. Blocks only while the bytes in flight would pass the bound.
 *   -EINVAL     a wrong name, size or range
 *   -ENOENT     no such name to get
 *   -EBUSY      a request in flight overlaps this one, and one of them is a put
 *   -EOVERFLOW  the budget has no room left
 *   -ENOMEM
 */
LADE_API int lade_tensor_store_submit(lade_tensor_store *store, const struct lade_tensor_request *request,
                                      struct lade_error *error, lade_tensor_ticket **ret_ticket);

/* Return 1 if the request of @ticket is finished, else 0. Any thread. Waits only for a publish. */
LADE_API int lade_tensor_store_is_done(lade_tensor_store *store, const lade_tensor_ticket *ticket);

/*
 * Wait for the request of @ticket, end the ticket, and return the request's result: 0, or the errors of put and get.
 * Any thread. Blocks.
 */
LADE_API int lade_tensor_store_wait(lade_tensor_store *store, lade_tensor_ticket *ticket, struct lade_error *error);

/*
 * Make the present tensors those that the next open of this durable store finds. Other calls wait meanwhile. Blocks
 * until the drive reports all bytes as written.
 *   -EINVAL     the store is not durable
 *   -EBUSY      a request is in flight; nothing was done
 *   -EBADMSG    the put of a part failed, and the part was not put again; nothing was done
 *   -EOVERFLOW  the names are too long for the room of the catalog, 192 bytes for every 64 KiB of the budget; nothing
 *               was done
 *   -EIO and others of the drive, -ENOMEM: the former publish is whole. If the line says so, the new one may count too,
 *               and every later publish is refused with -EIO
 */
LADE_API int lade_tensor_store_publish(lade_tensor_store *store, struct lade_error *error);

/*
 * Write the name that follows @after (NULL: the first) in the order of bytes into @ret_name of @name_bytes, and its
 * size. -ENOENT after the last name; -EOVERFLOW if @name_bytes is too small. Waits only for a publish. O(log tensors).
 */
LADE_API int lade_tensor_store_find_next(lade_tensor_store *store, const char *after, char *ret_name, size_t name_bytes,
                                         uint64_t *ret_bytes);

/* Write the size of @name into @ret_bytes. -ENOENT. Waits only for a publish. */
LADE_API int lade_tensor_store_find(lade_tensor_store *store, const char *name, uint64_t *ret_bytes);

/* Drop @name and free its room. -ENOENT; -EBUSY if a request moves it. Waits only for a publish. */
LADE_API int lade_tensor_store_drop(lade_tensor_store *store, const char *name);

/* Return sizes and counts. -EINVAL for a wrong struct_size. Waits only for a publish. */
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
