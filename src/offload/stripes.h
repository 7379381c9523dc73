/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the parts of a store that spans several drives are: a table from stripes to slots of files.
 *
 * A stripe moves when it is written anew. No lock: the store's mutex guards all of it.
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
  bool is_lost; /* what stayed behind */
  uint64_t behind[STORE_STRIPE_BLOCKS / 64]; /* blocks, as bits, that stayed in the old slot when it moved */
};

struct store_slots {
  uint32_t *free; /* a stack with room for all */
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
 * How many slots each drive should have for @n stripes and an eighth more to move in: by @weights, no more than
 * @most of each. False if all of them together are fewer than @n.
 */
bool store_shares(uint64_t n, int n_drives, const double *weights, const uint64_t *most, uint64_t *ret_shares);

/* @n stripes of @bytes dealt over drives with @n_slots each, which are no fewer than @n. -ENOMEM. Finish it. */
int store_stripes_init(struct store_stripes *stripes, uint64_t n, uint32_t bytes, int n_drives,
                       const uint64_t *n_slots, struct lade_faults *faults);
void store_stripes_finish(struct store_stripes *stripes);

/* Give stripe @i a free slot of @drive and its old one back. False, and nothing done, if there is none. */
bool store_stripes_move(struct store_stripes *stripes, uint64_t i, int drive);

/* @n slots more at the end of @drive's file, which is there already. -ENOMEM, and nothing done. */
int store_stripes_grow(struct store_stripes *stripes, int drive, uint64_t n);

/*
 * The same for a part of it that is written anew: all blocks stay behind in the old slot, which the drive gives to
 * nobody else as it is set aside. False, and nothing done, also if some are behind already.
 */
bool store_stripes_leave(struct store_stripes *stripes, uint64_t i, int drive);

/* Of what stayed behind: all of a stripe, and it is lost; no more @bytes from byte @from, written anew. */
void store_spot_lose(struct store_spot *spot);
void store_spot_regain(struct store_spot *spot, uint64_t from, uint64_t bytes);
/* How many of @bytes from byte @from on are in one place with the first of them, and whether that is the old one. */
uint64_t store_spot_run(const struct store_spot *spot, uint64_t from, uint64_t bytes, bool *ret_is_behind);

#endif
