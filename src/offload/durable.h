/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes on a drive that outlive the process: two slots of them in a store with a name, and a journal that says which
 * slot counts. At any moment, a kill or a power cut included, the journal names a generation whose bytes are whole.
 *
 *   lade-durable.data      mode 0600, locked while it is open; a table of checksums for each slot, and the slots
 *   lade-durable.journal   two records, each with a generation, its slot's table as a checksum, and a memo
 *
 * Generation g is in slot g % 2. The owner reads generation g from its slot, writes all of g + 1 into the other, waits
 * for its transfers, and publishes; until publish returns, g is what counts. A slot's layout is the owner's, and a
 * number says which: state of another layout is refused.
 *
 * Ranks of one job keep their parts in one directory, each in files of its own (lade-durable-3.data and .journal are of
 * rank 3). Which generation counts is then theirs to agree on: the newest that all have. Nobody begins the next before
 * all have published, so nobody is ahead by more than one, and who is takes it back.
 *
 *   lade_durable_open       lock the files, find what counts
 *   lade_durable_withdraw   go back by one generation
 *   lade_durable_prepare    room for both slots, or those that are there
 *   lade_durable_publish    make the next generation the one that counts
 *
 * One thread at a time, but transfers through lade_durable_store are a store's.
 */
#ifndef LADE_DURABLE_H
#define LADE_DURABLE_H

#include "offload/store.h"

#define LADE_DURABLE_DATA "lade-durable.data"
#define LADE_DURABLE_JOURNAL "lade-durable.journal"
#define LADE_DURABLE_MEMO_BYTES 4040 /* the most; a record is one block */

typedef struct lade_durable lade_durable;

struct lade_durable_params {
  size_t struct_size;
  const char *dir; /* one, as in lade_store_params; borrowed until close */
  int rank;        /* whose files; 0 where there is one process */
  enum lade_store_engine engine;
  bool allow_tmpfs;           /* where a kill is survived, but no power cut */
  struct lade_faults *faults; /* borrowed, may be NULL */
};

/* The name of @rank's data file. */
void lade_durable_data_name(int rank, char *ret_name, size_t name_bytes);

/*
 * Take the rank's data file, or make it, and read the journal. -EBUSY: another process has it; -EINVAL: several
 * directories, or a record of an unknown version in the journal; -EBADMSG: no record of the journal is whole; -ENOENT,
 * -EACCES and their kin for the directory; -EIO, also where its file system has no locks; -ENOMEM. Blocks.
 */
int lade_durable_open(const struct lade_durable_params *params, struct lade_error *error, lade_durable **ret_durable);

/* What was not published is lost, and a data file that was made for a first generation goes. NULL is allowed. */
void lade_durable_close(lade_durable *durable);

/* The memo that was published with the generation that counts; NULL: none does yet. Valid until the next publish. */
const void *lade_durable_memo(const lade_durable *durable, size_t *ret_bytes);

/* The same of the generation before it; NULL: it is not there to go back to. */
const void *lade_durable_memo_before(const lade_durable *durable, size_t *ret_bytes);

/* The generation that counts; 0 when none does yet: the first to be published. */
uint64_t lade_durable_generation(const lade_durable *durable);

/*
 * Between open and prepare: what counts is not to count, because another rank does not have it. The one before it does
 * then, or none where it was the first, and that is on the drive when this returns. -EBADMSG: the one before it is not
 * there; -EIO and others: it is not known which counts, and the next owner may find either. Blocks.
 */
int lade_durable_withdraw(lade_durable *durable, struct lade_error *error);

/* Bytes that slots of @slot_bytes take beside the first one: the second, the tables, and what aligns them. */
uint64_t lade_durable_extra_bytes(uint64_t slot_bytes);

/* Bytes that publishing writes beside a slot of @slot_bytes: its table, and a record. */
uint64_t lade_durable_publish_bytes(uint64_t slot_bytes);

/* Bytes of the file system that the data file has already. */
uint64_t lade_durable_held_bytes(const lade_durable *durable);

/* Before prepare: requests of the store, as in lade_store_params, once it is known how the drive likes them. */
void lade_durable_set_pieces(lade_durable *durable, uint32_t piece_bytes, int depth);

/*
 * Once: open the store. When nothing counts yet, all of it is allocated and written; else the slots and the table of
 * the one that counts are taken as they are, and checked as they are read. That it counts is made durable, too: whoever
 * published it may have been killed before. @slot_bytes is a multiple of the granule.
 * -EINVAL: what counts is of another size or layout; -EBADMSG: file or table are damaged; errors as of lade_store_open
 * and lade_store_prepare. Blocks, the first time for as long as the drive needs to write both slots.
 */
int lade_durable_prepare(lade_durable *durable, uint64_t slot_bytes, uint64_t layout, struct lade_error *error);

/* The store, from prepare to close, and where in it the slot of @generation is. */
lade_store *lade_durable_store(const lade_durable *durable);
struct lade_extent lade_durable_slot(const lade_durable *durable, uint64_t generation);

/*
 * Make @generation count, with a copy of @memo: the first, or the one after that which counts. All of its slot has been
 * written, and the transfers are done. 0: it will be found after whatever happens. -EIO, -ENOSPC and others: what
 * counted still does, but it is not known whether this one does too, and nothing may be published after; -EIO also when
 * one of the files was removed or replaced, and then nothing counts any more. Allocates nothing but for the first.
 * Blocks until the drive says that it is there.
 */
int lade_durable_publish(lade_durable *durable, uint64_t generation, const void *memo, size_t memo_bytes,
                         struct lade_error *error);

#endif
