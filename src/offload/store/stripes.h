/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Map of a store that spans several drives: a table from stripes to slots of files.
 *
 * A stripe moves when it is rewritten. No lock: the store's mutex guards all of it.
 */
#ifndef LADE_OFFLOAD_STRIPES_H
#define LADE_OFFLOAD_STRIPES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/faults.h"
#include "offload/store.h"

#define STORE_STRIPE_BYTES_MAX (512u << 10)
#define STORE_STRIPE_BLOCKS (STORE_STRIPE_BYTES_MAX / LADE_STORE_BLOCK_BYTES)

struct store_spot {
  uint32_t slot, old_slot; /* of the drives' files */
  uint8_t drive, old_drive;
  bool is_lost; /* the blocks left behind */
  uint64_t behind[STORE_STRIPE_BLOCKS / 64]; /* blocks, as bits, that stayed in the old slot when it moved */
};

struct store_slots {
  uint32_t *free; /* a stack with capacity for all */
  uint32_t n_free, n;
};

struct store_stripes {
  struct store_spot *spots;
  uint64_t n;
  uint32_t bytes; /* of a stripe */
  int n_drives;
  struct store_slots slots[LADE_STORE_DRIVES_MAX];
};

/*
 * Divide slots among drives for @n stripes and an eighth more, so that stripes can move: by @weights, at most @max of
 * each. False if all drives together have fewer than @n.
 */
bool store_shares(uint64_t n, int n_drives, const double *weights, const uint64_t *max, uint64_t *ret_shares);

/*
 * Map @n stripes of @bytes to drives with @n_slots each, in total at least @n. The caller ends it with finish. -ENOMEM.
 */
int store_stripes_init(struct store_stripes *stripes, uint64_t n, uint32_t bytes, int n_drives,
                       const uint64_t *n_slots, struct lade_faults *faults);
void store_stripes_finish(struct store_stripes *stripes);

/* Move stripe @i to a free slot of @drive and free its old one. False, with nothing changed, if no slot is free. */
bool store_stripes_move(struct store_stripes *stripes, uint64_t i, int drive);

/* Add @n slots at the end of @drive's file, which already has the space. -ENOMEM, with nothing changed. */
int store_stripes_grow(struct store_stripes *stripes, int drive, uint64_t n);

/*
 * Move stripe @i, of which a part is rewritten: all blocks stay behind in the old slot. The old slot is not reused,
 * because its drive is set aside. False, with nothing changed, also if some blocks are already behind.
 */
bool store_stripes_leave(struct store_stripes *stripes, uint64_t i, int drive);

/* Mark the blocks left behind as lost; or remove the marks of @bytes from byte @from, which were rewritten. */
void store_spot_lose(struct store_spot *spot);
void store_spot_regain(struct store_spot *spot, uint64_t from, uint64_t bytes);
/*
 * Return how many of @bytes from byte @from on are in one place with the first of them. @ret_is_behind: that place is
 * the old one.
 */
uint64_t store_spot_run(const struct store_spot *spot, uint64_t from, uint64_t bytes, bool *ret_is_behind);

#endif
