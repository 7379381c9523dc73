/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of a program with an allocator of its own: the bytes that it holds, by kind and device, and a hard budget
 * for each device. The driver shim (preload/) keeps one per process.
 *
 * An allocation is charged before the driver call, so that two threads cannot share the last bytes of a budget. After
 * the call it is settled under its address or handle. A holding to be freed is taken out before the driver call,
 * because the next allocation may get the same address. Its bytes are dropped only afterwards:
 *
 *   charge -> the driver allocates -> settle          (drop, where it refused)
 *   take   -> the driver gives back -> drop           (keep, where it refused)
 *
 * The caller states the bytes. The figures lie in a record of fixed form, which may be shared memory: another process
 * that maps the same file can read it at any time, also after the process was killed.
 *
 * Any thread may call these functions, and blocks no longer than another such call.
 */
#ifndef LADE_LEDGER_H
#define LADE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "lade/types.h"

/* Kinds of memory. Those before LADE_LEDGER_IMPORTED count against a device's budget. */
enum lade_ledger_kind {
  LADE_LEDGER_LINEAR,     /* plain allocations */
  LADE_LEDGER_PITCHED,    /* with padded rows */
  LADE_LEDGER_MANAGED,    /* also reachable by the processor; all of it counts, wherever it is */
  LADE_LEDGER_POOL,       /* in the order of a stream, from a pool */
  LADE_LEDGER_ARRAY,      /* arrays and mipmapped arrays */
  LADE_LEDGER_CHUNK,      /* physical memory to be mapped */
  LADE_LEDGER_GRAPH,      /* memory that graphs allocate when they run */
  LADE_LEDGER_IMPORTED,   /* another process's, or another interface's */
  LADE_LEDGER_PINNED,     /* host memory from the driver */
  LADE_LEDGER_REGISTERED, /* host memory of the program's, pinned later */
  LADE_LEDGER_N_KINDS,
  LADE_LEDGER_NOTHING = LADE_LEDGER_N_KINDS /* has a key but no bytes of its own */
};

/* Key spaces: allocations that one call frees share a space. */
enum lade_ledger_space {
  LADE_LEDGER_ADDRESSES, /* of device memory */
  LADE_LEDGER_HOST_ADDRESSES,
  LADE_LEDGER_ARRAYS,
  LADE_LEDGER_CHUNKS, /* their handles */
  LADE_LEDGER_MAPPINGS, /* of chunks, by address */
  LADE_LEDGER_POOLS,
  LADE_LEDGER_GRAPHS, /* executable graphs: their handles, one key for each account */
  LADE_LEDGER_FOREIGN, /* handles of other interfaces' memory */
};

/* Return the lower-case name of a kind with bytes, "linear"; static. */
const char *lade_ledger_kind_name(enum lade_ledger_kind kind);

#define LADE_LEDGER_DEVICES 32 /* accounts of devices, by ordinal */
#define LADE_LEDGER_HOST LADE_LEDGER_DEVICES /* the account of memory outside of devices */

/* Bytes of a kind or an account, peak and current; calls that were granted and undone. */
struct lade_ledger_sums {
  uint64_t bytes, peak_bytes, n_taken, n_given;
};

struct lade_ledger_account {
  uint64_t total_bytes;  /* the device's own; 0: not used */
  uint64_t budget_bytes; /* of bounded kinds; UINT64_MAX: no budget */
  uint64_t n_refused, refused_bytes; /* requests over the budget: their number, and the largest */
  struct lade_ledger_sums bounded, kinds[LADE_LEDGER_N_KINDS];
};

#define LADE_LEDGER_RECORD_VERSION 2 /* of the record's layout, for readers of another build */

struct lade_ledger_record {
  uint32_t version; /* written last: an incomplete record has 0 */
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
 * Create a ledger that writes into @record, which is zeros and must outlive it. -ENOMEM. Destroy accepts NULL, and
 * forgets all holdings.
 */
int lade_ledger_create(struct lade_ledger_record *record, const struct lade_ledger_budget *budget,
                       lade_ledger **ret_ledger);
void lade_ledger_destroy(lade_ledger *ledger);

/* Tell the ledger the memory of @device; before that, a budget in percent of it is 0. Later calls change nothing. */
bool lade_ledger_knows(lade_ledger *ledger, int device);
void lade_ledger_device(lade_ledger *ledger, int device, uint64_t total_bytes);

/*
 * Ask for @bytes on @account. They end with @owner (a context), or NULL. -EOVERFLOW: over the budget; -ENOMEM: no
 * memory for the entry itself.
 */
int lade_ledger_charge(lade_ledger *ledger, int account, enum lade_ledger_kind kind, uint64_t bytes, const void *owner,
                       struct lade_holding **ret_holding);
/*
 * Note that the memory exists under @key of @space and has @bytes; an earlier entry there is removed. -EOVERFLOW if
 * that is more than was charged and exceeds the budget: then the holding is still the caller's, to drop. Imported
 * memory that its owner already has under that key is the same entry, and must be taken out as often as it was settled.
 */
int lade_ledger_settle(lade_ledger *ledger, struct lade_holding *holding, enum lade_ledger_space space, uint64_t key,
                       uint64_t bytes);

/* Take out the entry under @key of @space; NULL if unknown. Drop or keep it afterwards. */
struct lade_holding *lade_ledger_take(lade_ledger *ledger, enum lade_ledger_space space, uint64_t key);
/* Drop a holding that was freed, or was never allocated: its bytes are available again. */
void lade_ledger_drop(lade_ledger *ledger, struct lade_holding *holding);
/* Keep a holding whose free failed. */
void lade_ledger_keep(lade_ledger *ledger, struct lade_holding *holding);

/* Drop all holdings of @owner. */
void lade_ledger_drop_owner(lade_ledger *ledger, const void *owner);

/* Return the account of the entry under @key of @space, or @otherwise. */
int lade_ledger_account_of(lade_ledger *ledger, enum lade_ledger_space space, uint64_t key, int otherwise);

/*
 * Chunks. A handle is taken as often as it was settled or retained; the memory is free when the last handle is dropped
 * and the last mapping is.
 */

/*
 * Note a mapping of the chunk under @handle, to be settled at its address. No call reports the size of an imported
 * chunk: it is that of its largest mapping, @bytes. -ENOENT: unknown chunk; -ENOMEM.
 */
int lade_ledger_map(lade_ledger *ledger, uint64_t handle, uint64_t bytes, struct lade_holding **ret_mapping);
/* Take out the mappings that lie in [@address, @address + @bytes), as a list for drop_list or keep_list. */
struct lade_holding *lade_ledger_unmap(lade_ledger *ledger, uint64_t address, uint64_t bytes);
void lade_ledger_drop_list(lade_ledger *ledger, struct lade_holding *list);
void lade_ledger_keep_list(lade_ledger *ledger, struct lade_holding *list);
/* Note one more handle, @handle, of the chunk that is mapped at @address. */
void lade_ledger_retain(lade_ledger *ledger, uint64_t address, uint64_t handle);

/* Limit a device's report of its memory to its budget. */
void lade_ledger_bound(lade_ledger *ledger, int device, uint64_t *free_bytes, uint64_t *total_bytes);

#endif
