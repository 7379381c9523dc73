/* SPDX-License-Identifier: Apache-2.0 */
/* The descent of a schedule to a limit of bytes; descent.c has the algorithm. */
#ifndef LADE_REMAT_DESCENT_H
#define LADE_REMAT_DESCENT_H

#include "recompute/graph/list_time.h"
#include "recompute/graph/schedule.h"

struct remat_descent_params {
  const struct list_time *links; /* NULL: nothing moves to another tier */
  bool may_wait[LADE_N_SPACES];  /* tiers on which values may wait */
  bool is_offload;               /* nothing is made again */
  int64_t deadline_ns;           /* on lade_now_ns; INT64_MAX: none */
  double effort;                 /* share of the work that a descent may do; of a long graph */
};

/*
 * Release values of @schedule until it is within its limit, or no release helps, or the time ends. The schedule's
 * limits hold, and its changes are committed. Return the number of changes that were tried, or -ENOMEM.
 */
int64_t remat_descend(struct remat_schedule *schedule, const struct remat_descent_params *params);

/*
 * Release @value around @boundary: up to its next touch, or to the last turn in which its makers may run again. Return
 * false, with nothing changed, if that lies before the boundary, or if the value is not held there.
 */
bool remat_release_around(struct remat_schedule *schedule, int value, int boundary);

/* The same, except that the bytes of turns do not follow before remat_settle. */
bool remat_release_rows_around(struct remat_schedule *schedule, int value, int boundary);

#define REMAT_DRAW_NONE UINT64_MAX /* nothing is left to chance */

/*
 * Release @value as remat_release_around does, and hold the inputs that its makers would lack at the turn that makes it
 * again. @draw lets some inputs be made again, too, so that those of their makers are held instead.
 */
bool remat_replace_around(struct remat_schedule *schedule, int value, int boundary, uint64_t draw);

/*
 * Release @value by remat_release_around. If several ops then run again and remat_replace_around takes less time per
 * byte of excess, release it by that instead. Return the time per byte. Infinite: the value cannot be released, or the
 * excess does not fall; the caller undoes the change then.
 */
double remat_release_cheaper(struct remat_schedule *schedule, int value, int boundary);

/*
 * Hold the values that the redos of @turn make until the next turns that make them again: a chain that runs again
 * once, as between two checkpoints. @draw leaves some values out by chance, so that other shapes are tried, too. pre:
 * the redos of all turns are settled. The bytes are settled afterwards.
 */
void remat_row_hold(struct remat_schedule *schedule, int turn, uint64_t draw);

/*
 * Return the first turn behind @turn that uses a value which @turn makes again and holds, of the @makers alone;
 * INT32_MAX: it holds none.
 */
int remat_row_use(const struct remat_schedule *schedule, int turn, struct remat_span makers);

/*
 * Let turn @at make again the values that @turn makes again and holds, of the @makers alone. Where @at is before @turn,
 * the operands of its op go with them; so do results of the step that the last turn makes again. A value is then held
 * from its last touch before @turn if that is behind @at. pre: @at is not @turn, and not behind remat_row_use. Return
 * false if nothing changed.
 */
bool remat_row_shift(struct remat_schedule *schedule, int turn, int at, struct remat_span makers);

/* True if @value is made again, or got back, at @turn, and could be held before it. */
static inline bool remat_is_redone_at(const struct remat_schedule *schedule, int value, int turn)
{
  return turn >= remat_first_boundary(schedule->problem, value) && !remat_is_held(schedule, value, turn) &&
         remat_touch_from(schedule, value, turn) == turn;
}

#endif
