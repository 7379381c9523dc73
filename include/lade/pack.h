/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/pack.h - the offline packer: offsets for buffers whose lifetimes are known ahead, with the smallest peak
 * that it finds.
 *
 * An item is a rectangle that may only move up and down: its lifetime [lower, upper) is given, its offset is
 * asked for. Two items that are ever live together may not share a byte. The problem is NP-hard; the packer
 * states what it reached beside a bound below which no packing can go, and whether the two meet.
 *
 * It is made to be called hundreds of times inside a search: the first pass is fast (about a millisecond for a
 * thousand items), and a packer object keeps its memory between calls. Without a time limit the answer is a pure
 * function of items and parameters, whatever the machine.
 *
 * No function keeps a pointer that it was given, and none prints.
 */
#ifndef LADE_PACK_H
#define LADE_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lade_pack_item {
  int32_t lower, upper; /* live in [lower, upper), any unit of time; lower < upper */
  uint64_t bytes;       /* at least 1 */
  uint32_t align;       /* of the offset: a power of two; 0 means 1 */
  int64_t fixed;        /* the offset that it must have, or -1 */
  uint32_t group;       /* contiguous with the others of this number, see below; 0: with none */
};

/*
 * Items of one group lie one behind another in the order of their indices: the first at a multiple of the largest
 * alignment in the group, each other one at the next multiple of its own behind the end of the one before. If one is
 * fixed that fixes all. Otherwise the packer keeps their bytes for them, and the gaps between them, from the first
 * beginning to the last end: where lifetimes differ, another packing may waste less.
 */

#define LADE_PACK_FAST_WORK 1000 /* elementary steps for each item: the fast pass */

struct lade_pack_params {
  size_t struct_size;    /* sizeof(struct lade_pack_params); a tail of zeros means defaults */
  int64_t time_limit_ns; /* stop searching after this much time; 0: time is never looked at */
  uint64_t work_limit;   /* stop after about this many elementary steps (~1 ns each), less than the fast
                            pass's too; 0: the fast pass alone, or no limit of work when there is a time limit */
  uint64_t stop_bytes;   /* good enough: stop at a peak at or below this; 0: only at the lower bound */
};

struct lade_pack_result {
  uint64_t peak_bytes;        /* highest end of any item */
  uint64_t lower_bound_bytes; /* no packing has a smaller peak, not even one that uses what groups keep */
  bool is_optimal;            /* peak and bound meet, or an exhaustive search found nothing below */
};

/* Scratch memory of one caller, kept between calls. One thread at a time. */
typedef struct lade_packer lade_packer;

/* Make a packer, which the caller destroys. -ENOMEM. Any thread. Never blocks. */
LADE_API int lade_packer_create(lade_packer **ret_packer);

/* Give its memory back; NULL is allowed. Any thread, when no call is under way. */
LADE_API void lade_packer_destroy(lade_packer *packer);

/*
 * Pack @n_items into @ret_offsets (one per item) and describe the result. @params may be NULL: the fast pass.
 * No items is a peak of 0. Fixed items keep their offset. -EINVAL for a lifetime that is empty, a size of 0,
 * an alignment that is no power of two, a fixed offset that is not aligned or that the rest of its group cannot lie
 * beside, or two fixed items that overlap, or of parameters that a newer header made; -EOVERFLOW when sizes and
 * alignments (twice if there are groups) and the highest fixed offset come to 2^62; -ENOMEM. @error (may be NULL) names
 * the item by its index. Blocks for the time that @params allows, looked at every few 100,000 steps; past it a first
 * pass that is not over yet ends at once, with an answer that may be poor. Without groups and a time limit the order of
 * the items does not change the peak.
 */
LADE_API int lade_packer_pack(lade_packer *packer, const struct lade_pack_item *items, int n_items,
                              const struct lade_pack_params *params, uint64_t *ret_offsets,
                              struct lade_pack_result *ret_result, struct lade_error *error);

/* The same with scratch of its own. Any thread. */
LADE_API int lade_pack(const struct lade_pack_item *items, int n_items, const struct lade_pack_params *params,
                       uint64_t *ret_offsets, struct lade_pack_result *ret_result, struct lade_error *error);

/*
 * Check an answer with code that shares nothing with the packer: no two live ranges overlap, each offset is
 * aligned, fixed ones are kept, groups are contiguous, and the highest end is exactly @peak_bytes. 0, -EBADMSG with
 * the first fault in @error, -EINVAL for items that are none, -ENOMEM. O(n log n). Any thread.
 */
LADE_API int lade_pack_check(const struct lade_pack_item *items, int n_items, const uint64_t *offsets,
                             uint64_t peak_bytes, struct lade_error *error);

/*
 * Most bytes live at one time, each item for itself: a lower bound of every peak. 0, -EINVAL, -EOVERFLOW or -ENOMEM.
 * Any thread.
 */
LADE_API int lade_pack_live_peak(const struct lade_pack_item *items, int n_items, uint64_t *ret_bytes);

#ifdef __cplusplus
}
#endif
#endif
