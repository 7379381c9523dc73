/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A packing that grows from the bottom, with what is known of the items that are not placed yet. Shared by the
 * search (pack_exact.c), its inference (pack_bounds.c, pack_joints.c) and its fillers; sizes are in granules.
 */
#ifndef LADE_PACK_EXACT_H
#define LADE_PACK_EXACT_H

#include "alloc/pack_internal.h"

/* The floor of a slot on which all is placed: above every capacity. */
#define LADE_PACK_DONE (INT64_MAX / 2)

/* What may be put on the pile: an item, or a filler, which is none. */
struct pack_candidate {
  int32_t lo, hi;
  int64_t bytes;
  int64_t fixed; /* or -1 */
};

struct pack_change {
  int64_t *where;
  int64_t old;
};

struct pack_pile {
  int n, n_slots;
  int64_t capacity;
  bool is_soft;     /* the capacity grows at dead ends: they say little of a slot */
  int64_t lack;     /* by how much it was too small for what inference refused last, at least */
  /* Items, renumbered so that what the search prefers comes first. */
  int32_t *lo, *hi;
  int64_t *bytes;
  int64_t *lowest; /* no solution under this node has the item lower; -1 once placed */
  int64_t *offset; /* of placed items */
  /* Slots. */
  int64_t *floor;  /* nothing unplaced lies below it; LADE_PACK_DONE where all is placed */
  int64_t *rest;   /* unplaced bytes */
  int64_t *top;    /* item placed last, or -1 */
  int64_t *cross;  /* unplaced items that cover both this slot and the one before */
  int32_t *weight; /* how often inference failed there, in all attempts */
  int32_t *slot_start, *near_start;
  LADE_ARRAY(int32_t) slot_items; /* of each slot; kept sorted by falling `lowest`, placed ones last */
  LADE_ARRAY(int32_t) near;       /* items that each item meets in time */
  int32_t *joint_start, *joint_items; /* at [2s]: items that end where slot s begins, at [2s + 1]: that begin there */
  /* Slots whose inference is due, all within [due_lo, due_hi). */
  bool *is_due;
  int32_t due_lo, due_hi;
  int n_raises_left; /* until the slowly converging rule rests */
  LADE_ARRAY(struct pack_change) trail;
  bool is_out_of_memory;
  uint64_t work; /* steps since they were last asked for */
};

/* Undo all changes since the trail had @mark entries. */
void lade_pack_pile_undo(struct pack_pile *pile, int mark);

/* All slots are due: infer from scratch. False when there is no solution. */
bool lade_pack_pile_start(struct pack_pile *pile);

/* Put item @j at its lowest offset, above which its slots have nothing left to come below. False: no solution. */
bool lade_pack_pile_place(struct pack_pile *pile, int j);

/* Decide that nothing starts below @floor on slot @s any more. False: no solution. */
bool lade_pack_pile_raise(struct pack_pile *pile, int s, int64_t floor);

/* Where the next item on slot @s may start at the earliest if none starts at its floor; INT64_MAX: nowhere. */
int64_t lade_pack_pile_next_floor(struct pack_pile *pile, int s);

/*
 * The least height at which an unplaced item that crosses from slot @s - 1 to @s can lie; INT64_MAX: none. At least the
 * floors' maximum (pack_joints.c).
 */
int64_t lade_pack_pile_joint(struct pack_pile *pile, int s);

/*
 * Candidates that fill what is free at @capacity granules, at most 2 for each slot, drawn among many ways to do so
 * (pack_fillers.c). Returns how many.
 */
int lade_pack_fillers_make(const struct pack_problem *problem, int64_t capacity, uint64_t *random_state,
                           struct pack_candidate *ret_fillers);

#endif
