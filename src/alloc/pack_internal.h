/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the packer's rooms share: the problem in normal form, the incumbent, the budget of effort.
 *
 * Normal form: time is cut into slots, one per maximal set of items that are live together, in order; an item
 * covers the slots [lo, hi). Two items meet in time exactly when they share a slot. Sizes are rounded up to the
 * smallest alignment of any item, which every offset is a multiple of.
 */
#ifndef LADE_PACK_INTERNAL_H
#define LADE_PACK_INTERNAL_H

#include "base/base.h"
#include "base/inline.h"
#include "lade/pack.h"

struct pack_problem {
  int n, n_slots, n_fixed;
  const struct lade_pack_item *items; /* the caller's, or what was made of them if there are groups */
  int32_t *lo, *hi;
  uint64_t *bytes;       /* rounded */
  uint64_t *align;
  uint64_t *live;        /* per slot: rounded bytes */
  bool has_mixed_align;  /* some item wants more than the smallest alignment */
  bool has_padding;      /* some size was rounded up */
  uint64_t granule;      /* divides every rounded size and fixed offset */
  uint64_t lower_bound;  /* of the true peak; the exact search may raise it */
};

/* Effort left. Deterministic unless there is a deadline. */
struct pack_effort {
  uint64_t work, work_limit; /* limit UINT64_MAX: none */
  int64_t deadline_ns;       /* 0: none */
  uint64_t work_at_look;     /* the clock is read when work passes this */
  bool is_spent;
};

/* An item's place in an order: by falling key. */
struct keyed {
  double key;
  int32_t item;
};

struct lade_packer {
  char *arena;
  size_t arena_bytes, arena_used;
  struct pack_problem problem;
  struct pack_effort effort;
  uint64_t target_bytes; /* stop at a true peak at or below this */
  uint64_t best_bytes;   /* the incumbent's true peak */
  uint64_t *best;        /* its offsets */
  uint64_t *offsets;     /* of the pass under way */
  int n_tried;           /* orders of first fit that were placed to the end */
  int n_orders_least;    /* that are, whatever they count */
  int kind_best;         /* of the order that led furthest */
};

/* The caller's items when some are in groups, with groups as items (pack_groups.c). Lies in the arena. */
struct pack_groups {
  struct lade_pack_item *items;
  int n;
  int32_t *names;     /* of each of these: the caller's item, or the first of a group's */
  int32_t *targets;   /* of each of the caller's: the one of these that it lies in */
  uint64_t *within;   /* and how far behind its offset */
  uint64_t least_end; /* of the longest run, as low as it may start */
  bool is_exact;      /* a bound for these is one for the caller's */
};

/* xorshift64*: the same draws on every run. In [0, 1). */
LADE_INLINE double lade_pack_random(uint64_t *state)
{
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return (double)(*state * 0x2545F4914F6CDD1Du >> 11) * 0x1p-53;
}

/* Bytes from the arena, which lade_packer_pack has made large enough. Aligned to 16. */
void *lade_pack_take(lade_packer *packer, size_t bytes);

/* True when the effort is spent; @work is what was done since the last call. */
bool lade_pack_spend(struct pack_effort *effort, uint64_t work);

/* True when there is a deadline and it has passed. */
bool lade_pack_is_late(const struct pack_effort *effort);

/* Compare packer->offsets with the incumbent and keep them if they are better. True when the target is met. */
bool lade_pack_offer(lade_packer *packer);

/*
 * Items in several orders, each at its lowest free place, then repair. What was tried in an earlier call is not tried
 * again. True when the target is met.
 */
bool lade_pack_first_fit(lade_packer *packer);
size_t lade_pack_first_fit_bytes(int n);

/*
 * Lay the @n items of @order, the end of one by classes of sizes, above @base in no time (pack_lanes.c). They are not
 * fixed.
 */
void lade_pack_lanes(lade_packer *packer, const struct keyed *order, int n, uint64_t base);

/* Blocks to pass and items to meet are few for each item, however many items are counted. */
bool lade_pack_first_fit_is_cheap(const struct pack_problem *problem);

/*
 * Items behind each other as they begin, around a ring, unless the incumbent, which is needed, wastes little or they
 * do not end in about that order. True when the target is met.
 */
bool lade_pack_ring(lade_packer *packer);

/*
 * Items of which those that @is_placed lie at @placed; the others around them in the order that led furthest. Leaves
 * the offsets in the packer. False when the effort is spent before all are placed: those that are are no answer.
 */
bool lade_pack_around(lade_packer *packer, const bool *is_placed, const uint64_t *placed);

/* Rounds of what is hard, by itself, and what is around it. Needs an incumbent. True when the target is met. */
bool lade_pack_core(lade_packer *packer);

/*
 * Pack @n items, a part of a problem, with all rooms but the core, into packer->best, down to @stop_bytes, with the
 * effort that packer->effort has. False when memory is out.
 */
bool lade_pack_part(lade_packer *packer, const struct lade_pack_item *items, int n, uint64_t stop_bytes);

/*
 * Narrow the effort to @part of what is left, or to @work steps if that is less. Widened again it has the limits of
 * @full; what was spent stays spent.
 */
void lade_pack_effort_narrow(struct pack_effort *effort, double part, uint64_t work);
void lade_pack_effort_widen(struct pack_effort *effort, const struct pack_effort *full);

/*
 * Exact search at and above the target, for up to some 2,000 items of one alignment, fixed ones at the bottom without
 * gaps; others are left as they are. Needs an incumbent. True when the target is met or proved out of reach.
 */
bool lade_pack_exact(lade_packer *packer);

/*
 * The items of packer->problem as the rooms see them, in the packer's own memory, and the number that each had: the
 * same for every order of them (pack_canonical.c). The problem is to be made anew.
 */
void lade_pack_canonical_make(lade_packer *packer, struct lade_pack_item **ret_items, int32_t **ret_names);
size_t lade_pack_canonical_bytes(int n);

/* Make what the rooms see of @n checked items, some of which are in groups. -EINVAL for fixed ones that contradict. */
int lade_pack_groups_merge(lade_packer *packer, const struct lade_pack_item *items, int n,
                           struct pack_groups *ret_groups, struct lade_error *error);
size_t lade_pack_groups_bytes(int n);

/* Offsets of the caller's @n items from those of what the rooms saw. */
void lade_pack_groups_spread(const struct pack_groups *groups, int n, const uint64_t *offsets, uint64_t *ret_offsets);

#endif
