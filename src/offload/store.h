/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store contract: bytes that wait on a drive, in room that was reserved before anything ran.
 *
 * A store is one unnamed file (mode 0600) in each of its directories, which should be on drives of their own: its bytes
 * are striped over them by their speeds (drives.c). Or it is one file with a name, for bytes that are to be found again
 * (durable.h). Its life has two parts. First extents are
 * carved with lade_store_reserve and lade_store_prepare makes all of them real: room checked, blocks
 * allocated and written once, so that later no write can find the drive full and none pays for allocation.
 * Then transfers move bytes between extents and memory, asynchronously:
 *
 *   lade_store_submit(store, &transfer);            never waits for the drive
 *   lade_store_poll(store);                         delivers what is complete, never blocks
 *   lade_store_wait(store, &transfer, &error);      blocks until this one is, returns its result
 *
 * The transfer is the caller's memory and stays valid and untouched from submit until it is done; there is
 * no bound on how many are under way, and neither submit, poll nor wait allocates. Completions are delivered
 * inside poll, wait and close only, on the thread that calls them. All three and submit may be called from
 * several threads at once; a thread that has submitted must live until its transfers are done. The order
 * in which transfers reach the drive is not defined: who needs an order waits in between.
 *
 * Memory is read and written by the drive itself (O_DIRECT), the host device's included: data is aligned
 * to LADE_STORE_BLOCK_BYTES, and its length is rounded up to that, so that a buffer must own
 * its last block whole (a read writes it whole).
 *
 * Every granule (LADE_STORE_GRANULE_BYTES of an extent, from its start) has a 64-bit XXH3 checksum in memory,
 * seeded with what the bytes are: tensor, microbatch, generation, place and length. Sealing computes it
 * before a write, verifying compares after a read; flipped, stale, swapped and torn blocks are all -EBADMSG.
 * A transfer begins at a granule; a range is read with the identity and the cut of its last granule with which
 * it was written. With LADE_CHECK_STORE the store seals and verifies while other pieces are under way; with
 * LADE_CHECK_CALLER the caller does, with lade_store_seal and lade_store_verify, in any thread it likes. It may then
 * let bytes have the checksums of other granules than those where they lie (sums_distance), so that short values, each
 * with a granule's checksum of its own, lie side by side and move in one transfer.
 *
 * Failures. A short transfer is continued; -EINTR, -EAGAIN, -EBUSY and a ring's -ECANCELED are tried again, with a
 * bound; anything else ends the transfer with -EIO, -ENOSPC, -EBADMSG or a kin of theirs, and a line that names
 * directory, offset and tensor and what the drive said. A failed transfer leaves the store usable. With several
 * drives, one that fails a transfer or holds the others up is set aside with a notice (lade_store_take_notice): what
 * was to be written there is written elsewhere; what only it had is lost, and reading that is an error as above.
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
#define LADE_STORE_GRANULE_BYTES 65536 /* what one checksum covers; alignment of extents and transfers */

/*
 * Armed at LADE_FAULT_FILE_READ or _WRITE, this code shortens the transfer by half for real; any other is
 * what a completed transfer then reports.
 */
#define LADE_STORE_FAULT_SHORT (-EMSGSIZE)

/* Armed at LADE_FAULT_FILE_READ or _WRITE, this code delays the transfer; by the threads only, io_uring ignores it. */
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
   * An existing directory on a drive, or several, with a comma between them; a comma that belongs to a name is written
   * twice. Several take up to an eighth and 4 MiB per drive more room than is reserved, for data to move in.
   */
  const char *dir;
  /*
   * NULL, or the file's name in its one directory, borrowed until close: made with mode 0600 if it is not there, and
   * left behind at close. Its first granule is where the engine is tried; nothing is reserved there.
   */
  const char *name;
  uint64_t capacity_bytes; /* reserving more is -EOVERFLOW; 0: as much as the file system has */
  enum lade_store_engine engine;
  bool allow_tmpfs;        /* a store in memory is refused unless this is set */
  bool allow_buffered;     /* use the page cache where O_DIRECT is refused, instead of failing */
  int depth;               /* pieces under way at once, per drive; 0: the default */
  uint32_t piece_bytes;    /* of at most this size, a multiple of the granule; 0: the default */
  struct lade_faults *faults; /* borrowed, may be NULL */
  const char *sysfs; /* where the machine says which NUMA node a drive is near; NULL: /sys */
  int faulty_drive; /* from 1: only this directory's transfers meet FILE_READ and FILE_WRITE; 0: all do */
};

/* A range of the store, made by lade_store_reserve. Plain value; do not change. */
struct lade_extent {
  uint64_t offset, bytes; /* in the file; a multiple of the granule, and as asked for */
};

/* What bytes are. Reading with another identity than was written is -EBADMSG. */
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
  uint64_t offset, bytes; /* in the extent; offset is a multiple of the granule, with LADE_CHECK_CALLER of a block */
  int64_t sums_distance;  /* from offset to the granule whose checksums are meant; with LADE_CHECK_STORE 0 */
  void *data;             /* aligned to a block, and owning the last block whole */
  struct lade_identity identity;
  /*
   * Called once when the transfer is over, before it counts as done, in poll, wait or close of any thread;
   * may submit other transfers, may not block or submit this one. May be NULL.
   */
  void (*on_done)(struct lade_transfer *transfer);
  void *user;
  /* From here on the store's; needs no initialisation. */
  int result;             /* once done: 0 or a negative errno */
  uint64_t failed_offset; /* in the extent, when it failed */
  uint64_t taken_bytes;   /* of the rounded length, given to pieces so far */
  int n_pieces;           /* under way */
  int on_drive; /* from 1: all of it is there, and the offset is in its file; 0: by the map */
  bool is_fill, is_queued, is_lost;
  _Atomic bool is_done;
  struct lade_transfer *next;
};

struct lade_store_info {
  const char *engine;      /* "io_uring", "posix" */
  bool is_direct;          /* past the page cache */
  int n_drives, n_aside;   /* directories, and those of them that take nothing new */
  int numa_node;           /* that all drives are near, for memory that they reach; -1: any, or not told */
  uint64_t reserved_bytes; /* of the file */
  uint64_t read_bytes, written_bytes; /* moved since prepare, whole blocks */
  uint64_t pinned_bytes;   /* lade_store_pin */
};

/*
 * Open a store in params->dir and try the engine with a real transfer. -ENOENT, -ENOTDIR, -EACCES, -EROFS,
 * -ENOSPC as the file system says; -EIO for tmpfs and for a file system without O_DIRECT, unless allowed;
 * -ENOSYS or -EPERM when io_uring is demanded and refused; -EAGAIN when threads are; -ENOMEM. Blocks.
 */
int lade_store_open(const struct lade_store_params *params, struct lade_error *error, lade_store **ret_store);

/* Ends what is under way (not begun: -ECANCELED), then gives everything back. NULL is allowed. Blocks. */
void lade_store_close(lade_store *store);

/* One line for the user about what was chosen instead of the best, or "". Valid until close. Any thread. */
const char *lade_store_note(const lade_store *store);

/*
 * One line for the user about what happened since it was last asked for: a drive was set aside. False: nothing did.
 * Any thread.
 */
bool lade_store_take_notice(lade_store *store, char *text, size_t text_bytes);

/*
 * Bytes free in @dirs, written as in lade_store_params; drives that several of them share count once. @ret_drives, if
 * not NULL, is a number that is the same for whoever on this machine names the same drives, in any order and from any
 * container, and another one on other machines. -EINVAL, -ENOMEM, or what stat and statvfs say of a directory. Any
 * thread; blocks as these do.
 */
int lade_store_room(const char *dirs, uint64_t *ret_bytes, uint64_t *ret_drives, struct lade_error *error);

void lade_store_get_info(lade_store *store, struct lade_store_info *ret_info);

/* Carve @bytes out of the file. -EOVERFLOW past the capacity, -EINVAL after prepare. One thread. */
int lade_store_reserve(lade_store *store, uint64_t bytes, struct lade_extent *ret_extent);

/*
 * Allocate and write all that was reserved; once. -ENOSPC with the bytes needed and free, -EFBIG past the
 * file size limit, -EIO, -ENOMEM. One thread. Blocks for as long as the drive needs to write it all.
 */
int lade_store_prepare(lade_store *store, struct lade_error *error);

/*
 * Instead of prepare: what was reserved is in the named file already and stays as it is. Its checksums are not known
 * until their owner sets them (store_internal.h). -EBADMSG: the file is shorter; -EINVAL, -ENOMEM. One thread.
 */
int lade_store_adopt(lade_store *store, struct lade_error *error);

/*
 * Transfers will be to and from this memory, which is some: where the engine gains by it and the limit of locked memory
 * allows, it is pinned once for all of them, at the price of all its pages being there. From then on until unpin, with
 * the same arguments, or close it has to stay mapped as it is: transfers meet the pages that were there. False: they go
 * as from anywhere else. Unpin with no transfer under way there; of memory that was not pinned it does nothing. Any
 * thread; blocks for as long as pinning takes.
 */
bool lade_store_pin(lade_store *store, void *data, uint64_t bytes);
void lade_store_unpin(lade_store *store, void *data, uint64_t bytes);

/*
 * Begin a transfer. Never waits for the drive; with LADE_CHECK_STORE it computes checksums of the pieces that it
 * can begin. -EINVAL for a range, alignment or store that is not as above, and then nothing has begun.
 */
int lade_store_submit(lade_store *store, struct lade_transfer *transfer);

/* Deliver what is complete. Returns the number of transfers that it delivered. Never blocks. */
int lade_store_poll(lade_store *store);

/* Wait for @transfer; its result, with one line in @error (may be NULL) if it failed. */
int lade_store_wait(lade_store *store, struct lade_transfer *transfer, struct lade_error *error);

/* Is it done? Then its memory is the caller's again. Any thread. Never blocks. */
static inline bool lade_transfer_is_done(const struct lade_transfer *transfer)
{
  return atomic_load_explicit(&transfer->is_done, memory_order_acquire);
}

/* The result of a transfer that is done, with one line in @error if it failed; for users of on_done. */
int lade_transfer_result(lade_store *store, const struct lade_transfer *transfer, struct lade_error *error);

/*
 * Checksums of @bytes of the transfer from byte @from of it (a multiple of the granule; @bytes too, or up to its
 * end), over transfer->data; offset + sums_distance is a multiple of the granule. Seal before submitting a write;
 * verify after a read is done: 0 or -EBADMSG with one line in @error (may be NULL). Any threads at once, a seal on
 * granules that no one else seals or verifies. @transfer need not be one that was submitted. Never block.
 */
void lade_store_seal(lade_store *store, const struct lade_transfer *transfer, uint64_t from, uint64_t bytes);
int lade_store_verify(lade_store *store, const struct lade_transfer *transfer, uint64_t from, uint64_t bytes,
                      struct lade_error *error);

#endif
