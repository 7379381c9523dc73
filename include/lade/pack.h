/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/pack.h - the offline packer: offsets for buffers with known lifetimes, with the smallest peak that it finds.
 *
 * An item is a rectangle that moves up and down only: its lifetime [lower, upper) is given, its offset is the answer.
 * Two items that are live together share no byte. The problem is NP-hard. The packer returns its peak, a lower bound
 * of every packing, and whether the two are equal.
 *
 * A search may call it hundreds of times: the first pass takes about a millisecond for a thousand items, and a packer
 * object keeps its memory between calls. Without a time limit the answer is a pure function of items and parameters,
 * on every machine.
 *
 * No function keeps a pointer from its arguments, and none prints.
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
  uint32_t align;       /* alignment of the offset: a power of two; 0 means 1 */
  int64_t fixed;        /* the required offset, or -1 */
  uint32_t group;       /* contiguous with the items of this number, see below; 0: no group */
};

/*
 * Items of one group lie one after another in the order of their indices. The first is at a multiple of the largest
 * alignment in the group. Each further item is at the next multiple of its own alignment after its predecessor. A fixed
 * item fixes the whole group. The packer reserves the group's bytes and gaps from the first lower to the last upper, so
 * another packing may waste less if lifetimes differ.
 */

#define LADE_PACK_FAST_WORK 1000 /* elementary steps for each item: the fast pass */

struct lade_pack_params {
  size_t struct_size;    /* sizeof(struct lade_pack_params); a tail of zeros means defaults */
  int64_t time_limit_ns; /* stop searching after this time; 0: no time limit */
  uint64_t work_limit;   /* stop after about this many elementary steps (~1 ns each), even inside the fast pass;
                            0: the fast pass alone, or no limit of work if there is a time limit */
  uint64_t stop_bytes;   /* stop at a peak at or below this; 0: only at the lower bound */
};

struct lade_pack_result {
  uint64_t peak_bytes;        /* highest end of any item */
  uint64_t lower_bound_bytes; /* no packing has a smaller peak, even with the gaps of groups in use */
  bool is_optimal;            /* peak equals bound, or an exhaustive search found no smaller peak */
};

/* Scratch memory that is kept between calls. One thread at a time uses it. */
typedef struct lade_packer lade_packer;

/* Create a packer; the caller destroys it. -ENOMEM. Any thread. Never blocks. */
LADE_API int lade_packer_create(lade_packer **ret_packer);

/* Free a packer. NULL is allowed. pre: no call with it is in progress. Any thread. Never blocks. */
LADE_API void lade_packer_destroy(lade_packer *packer);

/*
 * Pack @n_items into @ret_offsets (one per item) and describe the result. @params NULL: the fast pass. No items have a
 * peak of 0. Fixed items keep their offset. Errors; @error (may be NULL) names the item by its index:
 *   -EINVAL     an empty lifetime, a size of 0, an alignment that is no power of two, a fixed offset that is not
 *               aligned or leaves no room for its group, two fixed items that overlap, or parameters of a newer header
 *   -EOVERFLOW  sizes and alignments (twice with groups) plus the highest fixed offset reach 2^62
 *   -ENOMEM
 * Blocks for the time that @params allows, which is checked every few 100,000 steps. A first pass that runs past it
 * ends at once, with an answer that may be poor. Without groups and a time limit the order of items does not change
 * the peak.
 */
LADE_API int lade_packer_pack(lade_packer *packer, const struct lade_pack_item *items, int n_items,
                              const struct lade_pack_params *params, uint64_t *ret_offsets,
                              struct lade_pack_result *ret_result, struct lade_error *error);

/* Pack as lade_packer_pack does, with scratch memory of its own. Any thread. Blocks alike. */
LADE_API int lade_pack(const struct lade_pack_item *items, int n_items, const struct lade_pack_params *params,
                       uint64_t *ret_offsets, struct lade_pack_result *ret_result, struct lade_error *error);

/*
 * Check an answer with code that shares nothing with the packer: live ranges do not overlap, offsets are aligned,
 * fixed offsets are kept, groups are contiguous, and the highest end is exactly @peak_bytes. Return 0, -EBADMSG with
 * the first fault in @error, -EINVAL for invalid items, or -ENOMEM. O(n log n). Any thread.
 */
LADE_API int lade_pack_check(const struct lade_pack_item *items, int n_items, const uint64_t *offsets,
                             uint64_t peak_bytes, struct lade_error *error);

/*
 * Return the most bytes that are live at one time, without gaps of groups: a lower bound of every peak. 0, -EINVAL,
 * -EOVERFLOW or -ENOMEM. Any thread.
 */
LADE_API int lade_pack_live_peak(const struct lade_pack_item *items, int n_items, uint64_t *ret_bytes);

#ifdef __cplusplus
}
#endif
#endif
