/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of the packer: the problem in normal form, the incumbent, the budget of effort.
 *
 * Normal form: time is cut into slots, one per maximal set of items that are live together, in order; an item covers
 * the slots [lo, hi). Two items meet in time exactly when they share a slot. Sizes are rounded up to the smallest
 * alignment of any item. Every offset is a multiple of it.
 */
#ifndef LADE_PACK_INTERNAL_H
#define LADE_PACK_INTERNAL_H

#include "base/base.h"
#include "base/inline.h"
#include "lade/pack.h"

struct pack_problem {
  int n, n_slots, n_fixed;
  const struct lade_pack_item *items; /* the caller's, or with groups the merged ones */
  int32_t *lo, *hi;
  uint64_t *bytes;       /* rounded */
  uint64_t *align;
  uint64_t *live;        /* per slot: rounded bytes */
  uint32_t *length;      /* in the times of the caller */
  bool has_mixed_align;  /* some item has a larger alignment than the smallest */
  bool has_padding;      /* some size was rounded up */
  uint64_t align_min;    /* of any item */
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

#define LADE_PACK_ATTEMPTS_SEEN 32

/* Attempts of the exact search, at the target's capacity, soft ones, and by rising offsets. */
enum pack_attempt { PACK_ATTEMPT_HARD, PACK_ATTEMPT_SOFT, PACK_ATTEMPT_RISING, PACK_N_ATTEMPTS };

/* Attempts made: a later call goes on from here. */
struct pack_attempts {
  int n_made[PACK_N_ATTEMPTS];
  uint64_t spent[PACK_N_ATTEMPTS];
  int64_t rising_over; /* most granules in which the search by rising offsets found that nothing fits */
  uint64_t seen[LADE_PACK_ATTEMPTS_SEEN]; /* hashes of the attempts made without noise */
  int n_seen;
};

/* Arrays of the exact search that grow; the packer keeps them between calls. */
struct pack_numbers {
  int32_t *items;
  int n, capacity;
};

/* A value before its change, or with @where NULL the item that was placed. */
struct pack_change {
  int64_t *where;
  int64_t old;
};

struct pack_trail {
  struct pack_change *items;
  int n, capacity;
};

struct lade_packer {
  char *arena;
  size_t arena_bytes, arena_used;
  struct pack_problem problem;
  struct pack_effort effort;
  uint64_t target_bytes; /* stop at a true peak at or below this */
  uint64_t best_bytes;   /* the incumbent's true peak */
  uint64_t *best;        /* offsets of the incumbent */
  uint64_t *offsets;     /* of the current pass */
  int n_tried;           /* orders of first fit that were placed to the end */
  int n_orders_min;      /* orders that are placed even if the effort is spent */
  struct pack_attempts attempts;
  struct pack_numbers choices, slot_items;
  struct pack_trail trail;
  int kind_best;         /* the order of first fit with the lowest peak */
};

/* The caller's items with groups merged into items (pack_groups.c). Lies in the arena. */
struct pack_groups {
  struct lade_pack_item *items;
  int n;
  int32_t *names;     /* by merged item: the caller's item, or the first of a group's */
  int32_t *targets;   /* by caller's item: the merged item that contains it */
  uint64_t *within;   /* by caller's item: its distance from the start of its merged item */
  uint64_t min_end;   /* end of the longest run at its lowest start */
  bool is_exact;      /* a bound for the merged items holds for the caller's */
};

/* Draw a number in [0, 1) by xorshift64*: the same draws on every run. */
LADE_INLINE double lade_pack_random(uint64_t *state)
{
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return (double)(*state * 0x2545F4914F6CDD1Du >> 11) * 0x1p-53;
}

/* True if @x comes before @y in an order. */
LADE_INLINE bool lade_pack_keyed_is_first(const struct keyed *x, const struct keyed *y)
{
  return x->key > y->key || (x->key == y->key && x->item < y->item);
}

/* Sort @n items by falling key, equal keys by number, with @n places of @scratch. */
void lade_pack_sort(struct keyed *sorted, int n, struct keyed *scratch);

/*
 * Take @bytes from the arena, aligned to 16.
 *
 * pre: lade_packer_pack has made the arena large enough.
 */
void *lade_pack_take(lade_packer *packer, size_t bytes);

/* Spend @work, the steps since the last call. True if the effort is spent. */
bool lade_pack_spend(struct pack_effort *effort, uint64_t work);

/* True if there is a deadline and it has passed. */
bool lade_pack_is_late(const struct pack_effort *effort);

/* Compare packer->offsets with the incumbent and keep them if they are better. True if the target is met. */
bool lade_pack_offer(lade_packer *packer);

/* Return the bytes of arena for @n items: the problem, the incumbent and the scratch of the search that needs most. */
size_t lade_pack_arena_bytes(int n);

/* Free the packer's memory, but not the packer. */
void lade_pack_memory_free(lade_packer *packer);

/* Empty the arena and make it hold @bytes. -ENOMEM. */
int lade_pack_arena_reserve(lade_packer *packer, size_t bytes);

/* Bring @n checked items into normal form in packer->problem, with its lower bound. */
void lade_pack_problem_init(lade_packer *packer, const struct lade_pack_item *items, int n);

/* Make room for the answer and the passes, with no answer yet. */
void lade_pack_answer_init(lade_packer *packer, uint64_t stop_bytes);

/*
 * Run first fit within @item_work steps for each item, then the ring: there is an incumbent. True if the target is met
 * or the effort spent.
 */
bool lade_pack_search_fast(lade_packer *packer, uint64_t item_work);

/* Search exactly with @exact_part of the effort left, then repair the incumbent with first fit on the rest. */
bool lade_pack_search_long(lade_packer *packer, double exact_part);

/*
 * Place items in several orders, each at its lowest free offset, then repair. Orders of an earlier call are not tried
 * again. True if the target is met.
 */
bool lade_pack_first_fit(lade_packer *packer);
size_t lade_pack_first_fit_bytes(int n);

/*
 * Lay the @n items of @order, the rest of an order by size classes, into lanes above @base, in O(n log n)
 * (pack_lanes.c).
 *
 * pre: none of them is fixed.
 */
void lade_pack_lanes(lade_packer *packer, const struct keyed *order, int n, uint64_t base);

/* True if each item passes few blocks and meets few items, however many items are counted as work. */
bool lade_pack_first_fit_is_cheap(const struct pack_problem *problem);

/*
 * Place items one after another as they begin, around a ring. Does nothing if the incumbent wastes little, or if items
 * do not end in about that order. True if the target is met.
 *
 * pre: there is an incumbent.
 */
bool lade_pack_ring(lade_packer *packer);

/*
 * Place the items that are not @is_placed around those that are, which lie at @placed, in the order kind_best. Leave
 * the offsets in the packer. False if the effort is spent before all items are placed; the offsets are then no packing.
 */
bool lade_pack_around(lade_packer *packer, const bool *is_placed, const uint64_t *placed);

/*
 * Pack the hard items alone, and the others around them, in rounds. True if the target is met.
 *
 * pre: there is an incumbent.
 */
bool lade_pack_core(lade_packer *packer);

/*
 * Pack @n items, a part of a problem, into packer->best with all search methods but the core, down to @stop_bytes,
 * within packer->effort. False without memory.
 */
bool lade_pack_part(lade_packer *packer, const struct lade_pack_item *items, int n, uint64_t stop_bytes);

/*
 * Narrow the effort to @part of the rest, or to @work steps if that is less. lade_pack_effort_widen restores the limits
 * of @full; spent effort stays spent.
 */
void lade_pack_effort_narrow(struct pack_effort *effort, double part, uint64_t work);
void lade_pack_effort_widen(struct pack_effort *effort, const struct pack_effort *full);

/*
 * Search exactly at and above the target. Handles up to some 2,000 items of one alignment, with fixed ones at the
 * bottom without gaps; does nothing for others. Makes at most @n_attempts attempts. True if the target is met or proved
 * out of reach.
 *
 * pre: there is an incumbent.
 */
bool lade_pack_exact(lade_packer *packer, int n_attempts);

/* The end of an attempt by rising offsets. */
enum pack_rising_end {
  PACK_RISING_PACKED,    /* the packer's offsets hold a packing */
  PACK_RISING_CUT_SHORT, /* by its limit of nodes, or by the packer's effort */
  PACK_RISING_PROVED,    /* no packing fits */
  PACK_RISING_NO_MEMORY,
};

/*
 * Search for a packing within @capacity granules by rising offsets (pack_rising.c). Attempt @k takes the order @k
 * modulo three; the limit of nodes grows with each turn of the three.
 *
 * pre: all items have one alignment, none is fixed, and there are few enough for the depth of recursion
 * (lade_pack_exact_takes).
 */
enum pack_rising_end lade_pack_rising(lade_packer *packer, int64_t capacity, int k);
size_t lade_pack_rising_bytes(int n);

/* Return the bytes of arena that the exact search of @n items needs at most. */
size_t lade_pack_exact_bytes(int n);

/* True if the exact search takes instances of this number of items and these alignments. */
bool lade_pack_exact_takes(const struct pack_problem *problem);

/*
 * Sort the items of packer->problem, with slots as times, into the packer's own memory, and make the problem theirs.
 * Return the number that each had. The result is equal for every order of the items (pack_canonical.c).
 */
int32_t *lade_pack_canonical_make(lade_packer *packer);
size_t lade_pack_canonical_bytes(int n);

/*
 * Merge the groups among @n checked items into the items that the search sees. -EINVAL if fixed members contradict each
 * other.
 */
int lade_pack_groups_merge(lade_packer *packer, const struct lade_pack_item *items, int n,
                           struct pack_groups *ret_groups, struct lade_error *error);
size_t lade_pack_groups_bytes(int n);

/* Derive offsets of the caller's @n items from those of the merged ones. */
void lade_pack_groups_spread(const struct pack_groups *groups, int n, const uint64_t *offsets, uint64_t *ret_offsets);

#endif
