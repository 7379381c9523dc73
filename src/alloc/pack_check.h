/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packer's checker for callers that need the two overlapping items instead of a message. All other callers use
 * lade_pack_check (lade/pack.h).
 */
#ifndef LADE_PACK_CHECK_H
#define LADE_PACK_CHECK_H

#include "lade/pack.h"

/* @second begins at @time and shares bytes with @first, which is live then. */
struct lade_pack_overlap {
  int32_t first, second, time;
};

/*
 * Find the first moment when two live items share bytes. Return 1 if there is one, 0 if there is none, -ENOMEM.
 *
 * pre: each item has a lifetime and bytes, and ends below 2^64.
 */
int lade_pack_overlap_find(const struct lade_pack_item *items, int n_items, const uint64_t *offsets,
                           struct lade_pack_overlap *ret_overlap);

#endif
