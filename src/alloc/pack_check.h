/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packer's checker for those who want to know which two items meet, not a sentence about it: lade_pack_check
 * (lade/pack.h) is for the rest.
 */
#ifndef LADE_PACK_CHECK_H
#define LADE_PACK_CHECK_H

#include "lade/pack.h"

/* @second began at @time, where it shares bytes with @first, which was live. */
struct lade_pack_overlap {
  int32_t first, second, time;
};

/*
 * Look for two items that share bytes while both are live: the first such moment. Each item has a lifetime and bytes,
 * and ends below 2^64. 1 when there is one, 0 when there is none, -ENOMEM.
 */
int lade_pack_overlap_find(const struct lade_pack_item *items, int n_items, const uint64_t *offsets,
                           struct lade_pack_overlap *ret_overlap);

#endif
