/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of a program that allocates for itself: what it holds, of which kind and on which device, and a budget
 * for each device that it may not pass. The driver shim (preload/) keeps one per process.
 *
 * An allocation is charged before the driver is asked for it, so that two threads cannot share the last bytes of a
 * budget, and settled under its address or handle once it is there. What is given back is taken out before the driver
 * is told, because the next allocation may get the same address, and its bytes are dropped only afterwards:
 *
 *   charge -> the driver allocates -> settle          (drop, where it refused)
 *   take   -> the driver gives back -> drop           (keep, where it refused)
 *
 * Bytes are those that the caller states. The figures lie in a record of fixed form, which may be shared memory: who
 * maps the same file can read it at any time, and after the process was killed.
 *
 * Everything here may be called from any thread, and blocks no longer than another such call.
 */
#ifndef LADE_LEDGER_H
#define LADE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "lade/types.h"

/* What holds memory. Those before LADE_LEDGER_IMPORTED count against a device's budget. */
enum lade_ledger_kind {
  LADE_LEDGER_LINEAR,     /* plain allocations */
  LADE_LEDGER_PITCHED,    /* with padded rows */
  LADE_LEDGER_MANAGED,    /* in reach of the processor too; all of it counts, wherever it is */
  LADE_LEDGER_POOL,       /* in the order of a stream, from a pool */
  LADE_LEDGER_ARRAY,      /* arrays and mipmapped arrays */
  LADE_LEDGER_CHUNK,      /* physical memory to be mapped */
  LADE_LEDGER_GRAPH,      /* what graphs allocate when they run */
  LADE_LEDGER_IMPORTED,   /* another process's, or another interface's */
  LADE_LEDGER_PINNED,     /* host memory from the driver */
  LADE_LEDGER_REGISTERED, /* host memory of the program's, pinned later */
  LADE_LEDGER_N_KINDS,
  LADE_LEDGER_NOTHING = LADE_LEDGER_N_KINDS /* known by a key, without bytes of its own */
};

/* What keys are: allocations that one call gives back share a space. */
enum lade_ledger_space {
  LADE_LEDGER_ADDRESSES, /* of device memory */
  LADE_LEDGER_HOST_ADDRESSES,
  LADE_LEDGER_ARRAYS,
  LADE_LEDGER_CHUNKS, /* their handles */
  LADE_LEDGER_MAPPINGS, /* of chunks, by address */
  LADE_LEDGER_POOLS,
  LADE_LEDGER_GRAPHS, /* that can be launched: their handles, one key for each account */
  LADE_LEDGER_FOREIGN, /* handles of other interfaces' memory */
};

/* Lower-case name of a kind with bytes, "linear"; static. */
const char *lade_ledger_kind_name(enum lade_ledger_kind kind);

#define LADE_LEDGER_DEVICES 32
#define LADE_LEDGER_HOST LADE_LEDGER_DEVICES /* the account of what is not on a device */

/* What a kind, or an account, holds and did. Bytes of the peak and of now; calls that were granted and undone. */
struct lade_ledger_sums {
  uint64_t bytes, peak_bytes, n_taken, n_given;
};

struct lade_ledger_account {
  uint64_t total_bytes;  /* the device's own; 0: it was not used */
  uint64_t budget_bytes; /* of bounded kinds; UINT64_MAX: no budget */
  uint64_t n_refused, refused_bytes; /* over the budget: how often, and the largest request */
  struct lade_ledger_sums bounded, kinds[LADE_LEDGER_N_KINDS];
};

#define LADE_LEDGER_RECORD_VERSION 2

struct lade_ledger_record {
  uint32_t version; /* written last: a record that is not complete has 0 */
  int32_t pid;
  char program[64];
  struct lade_ledger_account accounts[LADE_LEDGER_DEVICES + 1];
};

/* Bytes, or percent of each device's memory; both 0: no budget. */
struct lade_ledger_budget {
  uint64_t bytes;
  double percent;
};

typedef struct lade_ledger lade_ledger;
struct lade_holding; /* one charge; owned by the ledger once it is settled */

/* Read "8GiB", "80%" (of the device), or "" for none. -EINVAL with its line. */
int lade_ledger_budget_parse(const char *text, struct lade_ledger_budget *ret_budget, struct lade_error *error);

/*
 * A ledger that writes into @record, which is zeros and must outlive it. -ENOMEM. Destroy takes NULL, and forgets what
 * is held.
 */
int lade_ledger_create(struct lade_ledger_record *record, const struct lade_ledger_budget *budget,
                       lade_ledger **ret_ledger);
void lade_ledger_destroy(lade_ledger *ledger);

/* Tell how much memory @device has; before that, a budget in percent of it is 0. Later calls change nothing. */
bool lade_ledger_knows(lade_ledger *ledger, int device);
void lade_ledger_device(lade_ledger *ledger, int device, uint64_t total_bytes);

/*
 * Ask for @bytes on @account. @owner is what they end with (a context), or NULL. -EOVERFLOW: over the budget; -ENOMEM:
 * no memory for the note itself.
 */
int lade_ledger_charge(lade_ledger *ledger, int account, enum lade_ledger_kind kind, uint64_t bytes, const void *owner,
                       struct lade_holding **ret_holding);
/*
 * The memory is there, under @key of @space, and has @bytes; what was there before is gone. -EOVERFLOW where that is
 * more than was charged and passes the budget: then the holding is still the caller's, to drop. Imported memory that
 * its owner has there already is the same, and is to be taken out as often as it was settled.
 */
int lade_ledger_settle(lade_ledger *ledger, struct lade_holding *holding, enum lade_ledger_space space, uint64_t key,
                       uint64_t bytes);

/* Take out what lies under @key of @space; NULL for what is not known. Drop or keep it afterwards. */
struct lade_holding *lade_ledger_take(lade_ledger *ledger, enum lade_ledger_space space, uint64_t key);
/* It has been given back, or was never there: its bytes are free. */
void lade_ledger_drop(lade_ledger *ledger, struct lade_holding *holding);
/* It is held on. */
void lade_ledger_keep(lade_ledger *ledger, struct lade_holding *holding);

/* All that @owner has is gone. */
void lade_ledger_drop_owner(lade_ledger *ledger, const void *owner);

/* The account of what lies under @key of @space, or @otherwise. */
int lade_ledger_account_of(lade_ledger *ledger, enum lade_ledger_space space, uint64_t key, int otherwise);

/*
 * Chunks. A handle is taken as often as it was settled or retained; the memory is free when the last handle is dropped
 * and the last mapping is.
 */

/*
 * Note a mapping of the chunk under @handle, to be settled at its address. Of an imported chunk nobody says the size:
 * it is that of its largest mapping, @bytes. -ENOENT: unknown chunk; -ENOMEM.
 */
int lade_ledger_map(lade_ledger *ledger, uint64_t handle, uint64_t bytes, struct lade_holding **ret_mapping);
/* Take out the mappings that lie in [@address, @address + @bytes), as a list for drop_list or keep_list. */
struct lade_holding *lade_ledger_unmap(lade_ledger *ledger, uint64_t address, uint64_t bytes);
void lade_ledger_drop_list(lade_ledger *ledger, struct lade_holding *list);
void lade_ledger_keep_list(lade_ledger *ledger, struct lade_holding *list);
/* The chunk that is mapped at @address has one more handle, @handle. */
void lade_ledger_retain(lade_ledger *ledger, uint64_t address, uint64_t handle);

/* Bring what a device says of its memory down to its budget. */
void lade_ledger_bound(lade_ledger *ledger, int device, uint64_t *free_bytes, uint64_t *total_bytes);

#endif
