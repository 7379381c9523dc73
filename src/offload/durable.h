/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes on a drive that outlive the process: a named store with two slots, and a journal that names the slot that
 * counts. At any moment, a kill or a power cut included, the journal names a generation whose bytes are whole.
 *
 *   lade-durable.data      mode 0600, locked while it is open; a table of checksums for each slot, and the slots
 *   lade-durable.journal   two records, each with a generation, the checksum of its slot's table, and a memo
 *
 * Generation g is in slot g % 2. The owner reads generation g from its slot, writes all of g + 1 into the other, waits
 * for its transfers, and publishes. Until publish returns, g counts. The owner defines the slot's layout, and a number
 * identifies it: state of another layout is refused.
 *
 * Ranks of one job keep their parts in one directory, each in its own files (lade-durable-3.data and .journal belong to
 * rank 3). They agree on the generation that counts: the newest that all of them have. No rank begins the next before
 * all have published. So a rank is ahead by at most one generation, and withdraws that one.
 *
 *   lade_durable_open       lock the files, find the generation that counts
 *   lade_durable_withdraw   go back by one generation
 *   lade_durable_prepare    allocate both slots, or take the existing ones
 *   lade_durable_publish    make the next generation the one that counts
 *
 * Beside the slots there may be a shared extent, one for all generations. Its owner never writes over bytes of it that
 * the generation that counts refers to, and keeps its checksums in the slot.
 *
 * One thread at a time. Transfers through lade_durable_store follow the store's rules for threads.
 */
#ifndef LADE_DURABLE_H
#define LADE_DURABLE_H

#include "offload/store.h"

#define LADE_DURABLE_DATA "lade-durable.data"
#define LADE_DURABLE_JOURNAL "lade-durable.journal"
#define LADE_DURABLE_MEMO_BYTES 4040 /* upper limit; a record is one block */

typedef struct lade_durable lade_durable;

struct lade_durable_params {
  size_t struct_size;
  const char *dir; /* one, as in lade_store_params; borrowed until close */
  int rank;        /* names the files; 0 for a single process */
  const char *stem; /* first part of the files' names, below 16 characters; NULL: lade-durable; borrowed until close */
  enum lade_store_engine engine;
  bool allow_tmpfs;           /* on a tmpfs the state survives a kill, but no power cut */
  bool allow_buffered;        /* as in lade_store_params */
  struct lade_faults *faults; /* borrowed, may be NULL */
  bool (*is_stopping)(void *user); /* ends the writing of new slots, as in lade_store_params; may be NULL */
  void *user;
};

/* Write the name of @rank's data file. */
void lade_durable_data_name(int rank, char *ret_name, size_t name_bytes);

/*
 * Lock the rank's data file, or create it, and read the journal. -EBUSY: another process holds it. -EINVAL: several
 * directories, or the journal has a record of an unknown version. -EBADMSG: no record of the journal is whole, or a
 * whole record has a field out of range. -ENOENT, -EACCES and similar for the directory. -EIO, also if its file system
 * has no locks; -ENOMEM. Blocks.
 */
int lade_durable_open(const struct lade_durable_params *params, struct lade_error *error, lade_durable **ret_durable);

/* Return the name of the journal's file, which is valid until close. */
const char *lade_durable_journal_name(const lade_durable *durable);

/*
 * Close. Unpublished bytes are lost. A data file created for a first generation is removed if that was not published.
 * NULL is allowed.
 */
void lade_durable_close(lade_durable *durable);

/*
 * Return the memo that was published with the generation that counts; NULL if no generation counts yet. Valid until the
 * next publish.
 */
const void *lade_durable_memo(const lade_durable *durable, size_t *ret_bytes);

/* Return the memo of the generation before the one that counts; NULL if its record is absent. */
const void *lade_durable_memo_before(const lade_durable *durable, size_t *ret_bytes);

/* Return the generation that counts. If none counts yet, return 0, the first to be published. */
uint64_t lade_durable_generation(const lade_durable *durable);

/*
 * Withdraw the generation that counts, because another rank does not have it. The generation before it counts then, or
 * none if it was the first; the change is on the drive when this returns. -EBADMSG: the record of the generation before
 * it is absent. -EIO and others: either generation may count, and the next owner may find either. Blocks. pre: after
 * open and before prepare.
 */
int lade_durable_withdraw(lade_durable *durable, struct lade_error *error);

/* Return the bytes that slots of @slot_bytes need beyond the first slot: the second slot, the tables, and alignment. */
uint64_t lade_durable_extra_bytes(uint64_t slot_bytes);

/* Return the bytes that publishing writes in addition to a slot of @slot_bytes: its table, and a record. */
uint64_t lade_durable_publish_bytes(uint64_t slot_bytes);

/* Return the bytes that the data file already occupies in the file system. */
uint64_t lade_durable_held_bytes(const lade_durable *durable);

/*
 * Set the store's request size and depth, as in lade_store_params, from measurements of the drive. pre: before prepare.
 */
void lade_durable_set_pieces(lade_durable *durable, uint32_t piece_bytes, int depth);

/* Set the size of the shared extent, a multiple of the granule; 0: there is none. pre: before prepare. */
void lade_durable_set_shared(lade_durable *durable, uint64_t shared_bytes);

/*
 * Open the store, once. If no generation counts yet, allocate and write all of it. Otherwise take the existing slots
 * and the table of the generation that counts; reads check the bytes. Also write the record of that generation to the
 * drive again, because a kill may have stopped its publisher before the sync. @slot_bytes is a multiple of the granule.
 * -EINVAL: the generation has another size or layout; -EBADMSG: file or table are damaged; errors of lade_store_open
 * and lade_store_prepare. Blocks; the first time until the drive has written both slots.
 */
int lade_durable_prepare(lade_durable *durable, uint64_t slot_bytes, uint64_t layout, struct lade_error *error);

/* Return the store, valid from prepare to close, and the extent of the slot of @generation in it. */
lade_store *lade_durable_store(const lade_durable *durable);
struct lade_extent lade_durable_slot(const lade_durable *durable, uint64_t generation);

/* Return the shared extent, valid from prepare to close. pre: it has a size. */
struct lade_extent lade_durable_shared(const lade_durable *durable);

/*
 * Make @generation count, with a copy of @memo. It is the first, or the successor of the one that counts. 0:
 * @generation survives any failure. -EIO, -ENOSPC and others: the former generation is intact, but @generation may
 * count too, and the caller must not publish again. -EIO also if one of the files was removed or replaced: then no
 * generation counts. Allocates nothing except for the first generation. Blocks until the drive reports the bytes as
 * written. pre: all of its slot is written, and the transfers are done.
 */
int lade_durable_publish(lade_durable *durable, uint64_t generation, const void *memo, size_t memo_bytes,
                         struct lade_error *error);

#endif
