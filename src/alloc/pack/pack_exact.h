/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A packing that grows from the bottom, with the facts inferred about unplaced items. Shared by the search
 * (pack_exact.c), its inference (pack_bounds.c, pack_joints.c) and its fillers; sizes are in granules.
 */
#ifndef LADE_PACK_EXACT_H
#define LADE_PACK_EXACT_H

#include "alloc/pack/pack_internal.h"

/* The floor of a slot whose items are all placed: above every capacity. */
#define LADE_PACK_DONE (INT64_MAX / 2)

/* A candidate for the next place: an item or a filler. */
struct pack_candidate {
  int32_t lo, hi;
  int64_t bytes;
  int64_t fixed; /* or -1 */
};

/* All that decides a joint's height, and the height. */
struct pack_joint {
  int64_t left, right, left_slack, right_slack, height;
  uint64_t ends, begins; /* unplaced items of the joint's lists, one bit each */
};

struct pack_pile {
  int n, n_slots;
  int64_t capacity;
  bool is_soft;    /* the capacity grows at dead ends, so failures give a slot no weight */
  int64_t lack;    /* least bytes that the last refused place lacked */
  /* Items, renumbered so that the search's preferred ones come first. */
  int32_t *lo, *hi;
  int64_t *bytes;
  int64_t *lowest; /* least offset of the item in any solution under this node; -1 once placed */
  int64_t *offset; /* of placed items */
  int32_t *below;  /* of placed items: `top` of their first slot before */
  int64_t *keys;   /* scratch: `lowest` of the items of one slot, in the slot's order */
  /* Slots. */
  int64_t *floor;  /* no unplaced item lies below it; LADE_PACK_DONE if all are placed */
  int64_t *rest;   /* unplaced bytes */
  int32_t *top;    /* item placed last of those that begin there, or -1 */
  int32_t *cross;  /* unplaced items that cover both this slot and the one before */
  struct pack_joint *joints; /* last visits, at the slot on the right; all zero: none */
  int32_t *weight; /* number of failed inferences there, in all attempts of the call */
  int32_t *slot_start;
  int32_t *n_open; /* unplaced items of the slot: the first ones of its list, sorted by falling `lowest` */
  struct pack_numbers slot_items;   /* of each slot; the placed ones last */
  int32_t *begin_start, *end_start; /* items that begin where slot s begins, and items that end there */
  int32_t *begin_items, *end_items;
  /* Slots whose inference is due, all within [due_lo, due_hi). */
  bool *is_due;
  int32_t due_lo, due_hi;
  int n_raises_left; /* before the slowly converging rule stops */
  struct pack_trail trail;
  bool is_out_of_memory;
  uint64_t work;   /* steps since the caller last read and cleared it */
};

/* The items that an item meets in time: the unplaced ones of its first slot, and all that begin later in its life. */
struct pack_meet {
  const int32_t *open, *begin;
  int n_open, n_begin;
};

LADE_INLINE struct pack_meet lade_pack_meet(const struct pack_pile *pile, int j)
{
  const int32_t lo = pile->lo[j], hi = pile->hi[j];
  return (struct pack_meet){
      .open = pile->slot_items.items + pile->slot_start[lo], .n_open = pile->n_open[lo],
      .begin = pile->begin_items + pile->begin_start[lo + 1],
      .n_begin = pile->begin_start[hi] - pile->begin_start[lo + 1]};
}

/* Undo all changes since the trail had @mark entries. */
void lade_pack_pile_undo(struct pack_pile *pile, int mark);

/* Infer from scratch, with all slots due. False when there is no solution. */
bool lade_pack_pile_start(struct pack_pile *pile);

/*
 * Put item @j at its lowest offset. The floors of its slots rise to its end, so no later item lies below it. False: no
 * solution.
 *
 * pre: the floors of its slots are there, so they are known when the place is undone.
 */
bool lade_pack_pile_place(struct pack_pile *pile, int j);

/* Decide that no unplaced item starts below @floor on slot @s. False: no solution. */
bool lade_pack_pile_raise(struct pack_pile *pile, int s, int64_t floor);

/*
 * Return the lowest offset of the next item on slot @s if none starts at its floor; INT64_MAX if there is no such
 * offset. Stops at the first offset of @enough or less, which need not be the lowest; INT64_MIN: finds the lowest.
 */
int64_t lade_pack_pile_next_floor(struct pack_pile *pile, int s, int64_t enough);

/*
 * Return the least height at which an unplaced item that crosses from slot @s - 1 to @s can lie (pack_joints.c). It is
 * at least the maximum of the floors. INT64_MAX if there is none.
 */
int64_t lade_pack_pile_joint(struct pack_pile *pile, int s);

/*
 * Make candidates that fill the free space at @capacity granules, at most 2 per slot. One of many possible fillings is
 * drawn (pack_fillers.c). Return their number.
 */
int lade_pack_fillers_make(const struct pack_problem *problem, int64_t capacity, uint64_t *random_state,
                           struct pack_candidate *ret_fillers);

#endif
