/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store contract: bytes on a drive, in space that was reserved before the first step.
 *
 * A store is one unnamed file (mode 0600) in each of its directories, which should be on separate drives: its bytes are
 * striped over them by their speeds (drives.c). Or it is one file with a name, for bytes that a later process reads
 * (durable.h). Its life has two parts. First lade_store_reserve divides the file into extents, and lade_store_prepare
 * checks the free space, allocates all blocks and writes them once. So no later write finds the drive full or pays for
 * allocation. Then transfers move bytes between extents and memory, asynchronously:
 *
 *   lade_store_submit(store, &transfer);            never waits for the drive
 *   lade_store_poll(store);                         delivers completed transfers, never blocks
 *   lade_store_wait(store, &transfer, &error);      blocks until this one is complete, returns its result
 *
 * The struct of a transfer belongs to the caller, and must stay valid and unchanged from submit until it is done. The
 * number of transfers in flight is unbounded, and neither submit, poll nor wait allocates. Completions are delivered
 * inside poll, wait and close only, on the calling thread. Several threads may call these three functions and submit at
 * once. A thread that has submitted must live until its transfers are done. The order in which transfers reach the
 * drive is undefined: a caller that needs an order waits between them.
 *
 * The drive itself reads and writes memory (O_DIRECT), the host device's included. Data is aligned to
 * LADE_STORE_BLOCK_BYTES, and its length is rounded up to that. A buffer must include its whole last block, because a
 * read overwrites all of it.
 *
 * Every granule (LADE_STORE_GRANULE_BYTES of an extent, from its start) has a 64-bit XXH3 checksum in memory, seeded
 * with the identity of the bytes: tensor, microbatch, generation, place and length. Sealing computes it before a write,
 * verifying compares after a read. Flipped, stale, swapped and torn blocks are all -EBADMSG. A transfer begins at a
 * granule. A range is read with the identity and the cut of its last granule with which it was written. With
 * LADE_CHECK_STORE the store seals and verifies while other pieces are in flight. With LADE_CHECK_CALLER the caller
 * does both, with lade_store_seal and lade_store_verify, in any thread. It may then keep the checksums of bytes at
 * other granules than those that hold the bytes (sums_distance). Short values, each with its own granule's checksum,
 * can thus be adjacent and move in one transfer.
 *
 * Failures. A short transfer is continued. -EINTR, -EAGAIN, -EBUSY and a ring's -ECANCELED are tried again, with a
 * bound. Any other error ends the transfer with -EIO, -ENOSPC, -EBADMSG or a similar code, and a line with directory,
 * offset, tensor and the drive's answer. A failed transfer leaves the store usable. With several drives, one that fails
 * a transfer or delays the others is set aside with a notice (lade_store_take_notice). Its pending writes go to other
 * drives. Data that only this drive had is lost, and reading it is an error as above.
 *
 * Two engines, io_uring and a team of pread/pwrite threads, pass one suite (tests/conform/store.c).
 */
#ifndef LADE_STORE_H
#define LADE_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#define LADE_STORE_BLOCK_BYTES 4096   /* alignment of data and granule of lengths on the drive */
#define LADE_STORE_GRANULE_BYTES 65536 /* range of one checksum; alignment of extents and transfers */

/*
 * Armed at LADE_FAULT_FILE_READ or _WRITE, this code halves the transfer that the engine performs. Any other code
 * becomes the result of a completed transfer.
 */
#define LADE_STORE_FAULT_SHORT (-EMSGSIZE)

/* Armed at LADE_FAULT_FILE_READ or _WRITE, this code delays the transfer in the posix engine; io_uring ignores it. */
#define LADE_STORE_FAULT_SLOW (-ETIME)

#define LADE_STORE_DRIVES_MAX 16

typedef struct lade_store lade_store;

enum lade_store_engine {
  LADE_STORE_AUTO,  /* io_uring where a real transfer succeeds with it, else threads; see lade_store_note */
  LADE_STORE_URING, /* or fail */
  LADE_STORE_POSIX,
};

struct lade_store_params {
  size_t struct_size;
  /*
   * An existing directory on a drive, or several, separated by commas; a comma in a name is written twice. Several
   * directories use more space than is reserved, because stripes move: up to an eighth, and 4 MiB per drive.
   */
  const char *dir;
  /*
   * NULL, or the file's name in its one directory, borrowed until close. The file is created with mode 0600 if it does
   * not exist, and close keeps it. Its first granule is used to try the engine and is never reserved.
   */
  const char *name;
  uint64_t capacity_bytes; /* reserving more is -EOVERFLOW; 0: the file system's free space */
  enum lade_store_engine engine;
  bool allow_tmpfs;        /* a store in memory is refused unless this is set */
  bool allow_buffered;     /* use the page cache where O_DIRECT is refused, instead of failing */
  int depth;               /* pieces in flight, per drive; 0: the default */
  uint32_t piece_bytes;    /* largest size of a piece, a multiple of the granule; 0: the default */
  struct lade_faults *faults; /* borrowed, may be NULL */
  const char *sysfs;       /* mount point of sysfs, which reports the NUMA node of a drive; NULL: /sys */
  int faulty_drive;        /* from 1: faults at FILE_READ and FILE_WRITE hit only this directory's transfers; 0: all */
  /*
   * True: prepare ends with -EINTR, after the pieces in flight. Asked after each piece that it has written, by the
   * thread in prepare; it must not call the store. NULL: prepare writes all bytes.
   */
  bool (*is_stopping)(void *user);
  void *user;
};

/* A range of the store, made by lade_store_reserve. Plain value; do not change. */
struct lade_extent {
  uint64_t offset, bytes; /* offset in the file, a multiple of the granule; bytes as requested */
};

/* Identity of bytes. A read with another identity than that of the write returns -EBADMSG. */
struct lade_identity {
  uint32_t tensor, microbatch;
  uint64_t generation; /* counts the writes of a value: step, version, or both */
};

enum lade_store_op { LADE_STORE_READ, LADE_STORE_WRITE };
enum lade_store_check { LADE_CHECK_STORE, LADE_CHECK_CALLER };

struct lade_transfer {
  enum lade_store_op op;
  enum lade_store_check check;
  struct lade_extent extent;
  uint64_t offset, bytes; /* in the extent; offset is a multiple of the granule, or with LADE_CHECK_CALLER of a block */
  int64_t sums_distance;  /* from offset to the granule that holds the checksums; 0 with LADE_CHECK_STORE */
  void *data;             /* aligned to a block, and includes the whole last block */
  struct lade_identity identity;
  /*
   * Called once when the transfer has ended, before it counts as done, in poll, wait or close of any thread. It may
   * submit other transfers. It must not block or submit this transfer. May be NULL.
   */
  void (*on_done)(struct lade_transfer *transfer);
  void *user;
  /* The fields below belong to the store and need no initialisation. */
  int result;             /* once done: 0 or a negative errno */
  uint64_t failed_offset; /* in the extent, if the transfer failed */
  uint64_t taken_bytes;   /* bytes of the rounded length that are assigned to pieces so far */
  int n_pieces;           /* in flight */
  int on_drive; /* from 1: all of it is on this drive, and the offset is in its file; 0: by the map */
  bool is_fill, is_queued, is_lost;
  _Atomic bool is_done;
  struct lade_transfer *next;
};

struct lade_store_info {
  const char *engine;      /* "io_uring", "posix" */
  bool is_direct;          /* past the page cache */
  int n_drives, n_aside;   /* directories, and drives set aside, which get no new data */
  int numa_node;           /* near all drives, for memory that they access; -1: any, or unknown */
  uint64_t reserved_bytes; /* of the file */
  uint64_t read_bytes, written_bytes; /* bytes moved since prepare, in whole blocks */
  uint64_t pinned_bytes;   /* lade_store_pin */
};

/*
 * Open a store in params->dir and try the engine with a real transfer. -ENOENT, -ENOTDIR, -EACCES, -EROFS, -ELOOP or
 * -ENOSPC from the file system; -EIO for tmpfs and for a file system without O_DIRECT, unless allowed; -ENOSYS or
 * -EPERM if io_uring is required and refused; -EAGAIN if threads are refused; -ENOMEM. Blocks.
 */
int lade_store_open(const struct lade_store_params *params, struct lade_error *error, lade_store **ret_store);

/* End transfers in flight (-ECANCELED for those not begun), then release everything. NULL is allowed. Blocks. */
void lade_store_close(lade_store *store);

/* Return one line for the user if the store could not use its best choice, or "". Valid until close. Any thread. */
const char *lade_store_note(const lade_store *store);

/*
 * Take one line for the user about a drive that was set aside since the last call. False if there is none. Any thread.
 */
bool lade_store_take_notice(lade_store *store, char *text, size_t text_bytes);

/*
 * Return the free bytes in @dirs, written as in lade_store_params; each drive counts once. @ret_drives, if not NULL,
 * gets a number that identifies the drives. It is equal for every process of this machine that names them, in any order
 * and from any container, and different on other machines. -EINVAL, -ENOMEM, or errors of stat and statvfs on a
 * directory. Any thread; blocks as these calls do.
 */
int lade_store_room(const char *dirs, uint64_t *ret_bytes, uint64_t *ret_drives, struct lade_error *error);

/* Set @ret_is_memory to true if any of @dirs is on a file system in memory. Errors of lade_store_room. */
int lade_store_is_memory(const char *dirs, bool *ret_is_memory, struct lade_error *error);

/* Return the engine, sizes and counts. Any thread. Never blocks on the drive. */
void lade_store_get_info(lade_store *store, struct lade_store_info *ret_info);

/* Reserve @bytes of the file. -EOVERFLOW past the capacity, -EINVAL after prepare. One thread. */
int lade_store_reserve(lade_store *store, uint64_t bytes, struct lade_extent *ret_extent);

/*
 * Allocate and write all reserved bytes, once. -ENOSPC with the bytes needed and free, -EFBIG past the file size limit,
 * -EINTR if params->is_stopping tells to, -EIO, -ENOMEM. One thread. Blocks until the drive has written all of them.
 */
int lade_store_prepare(lade_store *store, struct lade_error *error);

/*
 * Adopt the reserved bytes that the named file already has, unchanged; called in place of prepare. Their checksums are
 * unknown until the owner sets them (store_internal.h). -EBADMSG: the file is shorter; -EINVAL, -ENOMEM. One thread.
 */
int lade_store_adopt(lade_store *store, struct lade_error *error);

/*
 * Pin this memory once for all its transfers, if the engine gains by it and the limit of locked memory allows. All its
 * pages become resident. It must stay mapped unchanged from then on until unpin with the same arguments, or until
 * close, because transfers use those pages. False: not pinned; transfers work as with other memory. lade_store_unpin
 * does nothing for memory that was not pinned. Any thread; blocks until the pages are pinned. pre of unpin: no transfer
 * is in flight in this memory.
 */
bool lade_store_pin(lade_store *store, void *data, uint64_t bytes);
void lade_store_unpin(lade_store *store, void *data, uint64_t bytes);

/*
 * Begin a transfer. Never waits for the drive. With LADE_CHECK_STORE it computes checksums of the pieces that it can
 * begin. -EINVAL for a range, alignment or store that violates the contract above; then nothing has begun.
 */
int lade_store_submit(lade_store *store, struct lade_transfer *transfer);

/* Deliver completed transfers. Return their number. Never blocks. */
int lade_store_poll(lade_store *store);

/* Wait for @transfer and return its result, with one line in @error (may be NULL) if it failed. */
int lade_store_wait(lade_store *store, struct lade_transfer *transfer, struct lade_error *error);

/* True if @transfer is done: then its memory belongs to the caller again. Any thread. Never blocks. */
static inline bool lade_transfer_is_done(const struct lade_transfer *transfer)
{
  return atomic_load_explicit(&transfer->is_done, memory_order_acquire);
}

/* Return the result of a transfer that is done, with one line in @error if it failed; for users of on_done. */
int lade_transfer_result(lade_store *store, const struct lade_transfer *transfer, struct lade_error *error);

/*
 * Seal: compute and store the checksums of @bytes of the transfer, from its byte @from on, over transfer->data. Verify:
 * compare them; return 0, or -EBADMSG with one line in @error (may be NULL). @from is a multiple of the granule, and so
 * is @bytes unless they reach the end; offset + sums_distance is a multiple of the granule too. Seal before a write is
 * submitted; verify after a read is done. Any threads at once; no other thread may seal or verify granules while one
 * seals them. @transfer need not have been submitted. Never block.
 */
void lade_store_seal(lade_store *store, const struct lade_transfer *transfer, uint64_t from, uint64_t bytes);
int lade_store_verify(lade_store *store, const struct lade_transfer *transfer, uint64_t from, uint64_t bytes,
                      struct lade_error *error);

#endif
