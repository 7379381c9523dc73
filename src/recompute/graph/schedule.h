/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule of recompute: for each value the boundaries at which it is held, and what follows from them.
 *
 * The held boundaries are the only decision. The redos of a turn follow from them. A value is needed in a turn if the
 * turn's op reads it, or if it is held after the turn but not before it. A needed value that is not on the device is
 * made again, and so are the values that its makers read. Checkmate (Jain et al. 2020) derives its R from its S in the
 * same way. So a turn depends on two boundaries only. A change of one value re-evaluates the turns that touch it.
 *
 * A value touches a turn if an op that runs in it uses or makes the value. A span of held boundaries reaches from one
 * touched turn to a later one, because bytes that are held past the last use waste memory.
 *
 * Bytes of a turn: those held at the boundary before it, and the most that its ops need on top. Within a turn a value
 * is freed after its last use, unless it is held after the turn.
 *
 * Changes are journalled: a caller tries a move, looks at the totals, and commits it or rolls it back. One thread uses
 * a schedule at a time.
 */
#ifndef LADE_REMAT_SCHEDULE_H
#define LADE_REMAT_SCHEDULE_H

#include "base/ordered_bitset.h"
#include "recompute/graph/problem.h"
#include "recompute/graph/turn_bytes.h"

/* A maximal span of boundaries at which a value is held, both ends included. */
struct remat_span {
  int32_t from, to;
};

struct remat_turn {
  LADE_ARRAY(int32_t) redos;  /* ops, ascending */
  int n_versions;             /* of them, those that use values with several makers, or are gets */
  LADE_ARRAY(int32_t) starts; /* values whose span begins at the boundary after this turn */
  int64_t redo_ns;
  uint64_t extra_bytes; /* on top of those held before it */
};

/* A turn that a value touches, and the number of its edges there; a result that the caller keeps counts as one. */
struct remat_touch {
  int32_t turn, n_edges;
};

struct remat_holding {
  LADE_ARRAY(struct remat_span) spans;    /* ascending */
  LADE_ARRAY(struct remat_touch) touches; /* ascending */
};

enum remat_change_kind {
  REMAT_RANGE,  /* @value is held or released at boundaries from .. to */
  REMAT_SOURCE, /* the source of @value was @to */
  REMAT_REDOS,  /* turn @from has other redos: row_changes from index @to on */
  REMAT_BYTES,  /* turn @from had @extra_bytes */
};

struct remat_change {
  enum remat_change_kind kind;
  int32_t value, from, to;
  bool is_held;
  uint64_t extra_bytes;
};

/* A value that is held in another way at the ends of a turn, since the turn was settled. */
struct remat_event {
  int32_t value; /* -1: the redos have to be found from nothing */
  int32_t next;  /* event of the same turn; -1: none */
};

/* A value in the turn under evaluation. @state is valid if its mark is the schedule's. */
struct remat_value_turn {
  int64_t bytes;
  int64_t state;      /* the mark, and below it REMAT_FLAG_BITS of remat_flag */
  int32_t maker;      /* the op that makes it again; -1: there are several, or it waits on a tier */
  int32_t last_place; /* within emit.c: of its last use */
};

enum remat_flag {
  REMAT_HELD = 1,       /* at the boundary before the turn */
  REMAT_HELD_AFTER = 2, /* at the boundary after it */
  REMAT_USED = 4,       /* at a place behind the one that is counted */
};
#define REMAT_FLAG_BITS 3

struct remat_schedule {
  const struct remat_problem *problem; /* borrowed */
  struct remat_turn *turns;            /* n_ops + 1 */
  struct remat_holding *holdings;      /* by value */
  uint64_t *held;      /* by value: n_held_words bits, one for each boundary at which it is held; NULL: a long graph */
  int n_held_words;
  struct turn_bytes bytes;             /* n_ops + 1; without the problem's fixed bytes */
  int64_t redo_ns;                     /* of all turns */
  int n_redos;                         /* and gets */
  const double *prices;                /* by turn: of a byte in all turns before it, in ns; borrowed; NULL: none */
  double priced_ns;                    /* the bytes of all turns, at their prices */
  uint8_t *sources;                    /* by value: LADE_DEVICE: it is made again; else the tier where it waits */
  struct turn_bytes waiting[LADE_N_SPACES]; /* by boundary: bytes that wait on each tier, and do not live there */
  int64_t n_waits;                     /* values that wait on a tier, summed over boundaries */
  int64_t redo_max_ns; /* a change whose redos take longer on the way is broken; INT64_MAX: none is */
  bool forbids_redo; /* values only wait on tiers: a turn that runs an op again is broken */
  bool is_broken; /* a value cannot be made again where a turn needs it: roll back */
  int status;     /* 0, or -ENOMEM: give up; a rollback restores nothing */
  int64_t work;   /* edges of ops that counts of bytes passed, or that came or went, so far */
  int64_t state, n_states; /* number of the present state; each change makes another one */
  LADE_ARRAY(struct remat_change) journal;
  LADE_ARRAY(int32_t) row_changes; /* redos that turns gained, and the complements (~) of those that they lost */
  /* scratch */
  LADE_ARRAY(int32_t) queue; /* turns whose redos have to follow */
  bool *is_queued;           /* by turn */
  LADE_ARRAY(struct remat_event) events; /* of queued turns */
  int32_t *first_event;      /* by turn; -1: none */
  bool has_deferred;         /* a queued turn waits for remat_turn_resume */
  LADE_ARRAY(int32_t) stale; /* turns whose bytes have to follow */
  bool *is_stale;            /* by turn */
  LADE_ARRAY(int32_t) row;   /* redos of the turn under evaluation */
  LADE_ARRAY(int32_t) changed; /* ops that were put into the row of the turn under change, or taken out of it */
  LADE_ARRAY(int32_t) calls; /* of them, those whose inputs have to be followed */
  LADE_ARRAY(int32_t) untouched; /* values whose last edge in the turn has gone, and may have come back */
  int64_t *in_row;           /* by op, while its high bits are row_mark: whether the row has it (schedule_turn.c) */
  int64_t row_mark;          /* of the turn under change, which counts them */
  int64_t row_ns;            /* time of the ops that came into its row, less those that went */
  bool is_mixed;             /* its row has to be made from nothing */
  struct ordered_bitset row_set; /* empty between evaluations */
  int64_t *op_mark;                /* by op */
  struct remat_value_turn *in_turn; /* by value */
  int64_t mark;                     /* of the turn under evaluation, which counts them */
};

/* A value and one of its spans: the decisions of a schedule, saved. */
struct remat_choice {
  int32_t value;
  struct remat_span span;
};

/*
 * Make the schedule of @choices [@n_choices], which ascend by value and span. If @choices is NULL, make the schedule
 * that holds every value from its birth to its last use. -ENOMEM. is_broken afterwards: a choice needs an op that
 * cannot run again.
 */
int remat_schedule_init(struct remat_schedule *schedule, const struct remat_problem *problem, uint64_t limit_bytes,
                        const struct remat_choice *choices, int n_choices);
void remat_schedule_finish(struct remat_schedule *schedule);

/* A value that waits on a tier where it is not held. */
struct remat_waiting {
  int32_t value, tier;
};
/* The decisions of a schedule. */
struct remat_choices {
  LADE_ARRAY(struct remat_choice) list;
  LADE_ARRAY(struct remat_waiting) waiting;
  bool is_saved; /* false: no schedule was saved */
};
/* Replace @choices by the decisions of @schedule. -ENOMEM. */
int remat_schedule_save(const struct remat_schedule *schedule, struct remat_choices *choices);

/* Make the schedule saved in @choices; without one, the schedule that holds everything. -ENOMEM. */
int remat_schedule_load(struct remat_schedule *schedule, const struct remat_problem *problem, uint64_t limit_bytes,
                        const struct remat_choices *choices);

/*
 * The same, except that a schedule whose redos take longer than @redo_max_ns is broken, and not made to its end. Where
 * little is held, redos grow with the square of the ops.
 */
int remat_schedule_load_within(struct remat_schedule *schedule, const struct remat_problem *problem,
                               uint64_t limit_bytes, const struct remat_choices *choices, int64_t redo_max_ns);
void remat_choices_free(struct remat_choices *choices);

/* Find the peak of the schedule saved in @choices, fixed bytes included; see remat_schedule_load. -ENOMEM. */
int remat_choices_peak(const struct remat_problem *problem, const struct remat_choices *choices, uint64_t *ret_bytes);

/*
 * Return the span of a value that is held from its birth to its last use; from > to: it has none. A given one of
 * another tier is held from its first use.
 */
struct remat_span remat_span_whole(const struct remat_problem *problem, int value);

/* Return the choices for remat_schedule_init: NULL if none were saved, but not for a schedule that holds nothing. */
const struct remat_choice *remat_choices_get(const struct remat_choices *choices);

#define REMAT_SPANS_SHORT 8 /* spans that are searched one by one */

/* Return the index of the first span of @holding that ends at or after @boundary; the number of spans: none does. */
static inline int remat_span_from(const struct remat_holding *holding, int boundary)
{
  const struct remat_span *spans = holding->spans.items;
  int lo = 0, hi = holding->spans.n;
  while (hi - lo > REMAT_SPANS_SHORT) {
    const int mid = lo + (hi - lo) / 2;
    if (spans[mid].to < boundary)
      lo = mid + 1;
    else
      hi = mid;
  }
  while (lo < hi && spans[lo].to < boundary)
    lo++;
  return lo;
}

/* True if @value is held at @boundary: at none before the step or behind it. */
static inline bool remat_is_held(const struct remat_schedule *schedule, int value, int boundary)
{
  if (schedule->held) {
    const unsigned word = (unsigned)boundary / 64;
    return word < (unsigned)schedule->n_held_words &&
           schedule->held[(size_t)value * (size_t)schedule->n_held_words + word] >> boundary % 64 & 1;
  }
  const struct remat_holding *holding = &schedule->holdings[value];
  const int i = remat_span_from(holding, boundary);
  return i < holding->spans.n && boundary >= holding->spans.items[i].from;
}

/*
 * Hold @value at boundaries from .. to, or release it there, and let everything follow. pre: it is released, or held,
 * at all of them; remat_first_boundary <= from <= to, and turn @to uses the value. Check is_broken and status
 * afterwards.
 */
void remat_hold(struct remat_schedule *schedule, int value, int from, int to);
void remat_release(struct remat_schedule *schedule, int value, int from, int to);

/*
 * The same for many changes at once: nothing follows before remat_settle, which evaluates each turn that depends on
 * one of them once. Touches, redos and the bytes of single turns are old in between.
 */
void remat_hold_unsettled(struct remat_schedule *schedule, int value, int from, int to);
void remat_release_unsettled(struct remat_schedule *schedule, int value, int from, int to);
void remat_settle(struct remat_schedule *schedule);

/*
 * Let redos follow the changes so far. The bytes of turns follow with the next remat_settle, which a caller owes before
 * it reads them, commits, or takes a mark.
 */
void remat_rows_settle(struct remat_schedule *schedule);

/*
 * Leave @turn as it is while changes settle, and evaluate it once at the end. For many changes at the boundary after
 * one turn with many redos. pre: the redos of all turns are settled, and no other turn is deferred.
 */
void remat_turn_defer(struct remat_schedule *schedule, int turn);
void remat_turn_resume(struct remat_schedule *schedule, int turn);

/* Let @value be got back from @tier where it is not held, or be made again (LADE_DEVICE), which no given one can be. */
void remat_source_set(struct remat_schedule *schedule, int value, enum lade_space tier);

/* Keep all changes since the last commit, or undo them. */
void remat_commit(struct remat_schedule *schedule);
void remat_rollback(struct remat_schedule *schedule);
/* Return a mark of the changes so far, or undo those made after @mark. Marks are valid up to the next commit. */
int remat_mark(const struct remat_schedule *schedule);
void remat_rollback_to(struct remat_schedule *schedule, int mark);

/* Return the index of the first touch at @turn or after it. The loop has no branch that depends on the touches. */
static inline int remat_touch_index(const struct remat_holding *holding, int turn)
{
  const struct remat_touch *touches = holding->touches.items;
  int at = 0;
  for (int n = holding->touches.n; n > 0;) {
    const int half = (n + 1) / 2;
    at += touches[at + half - 1].turn < turn ? half : 0;
    n -= half;
  }
  return at;
}

/*
 * Return the last touched turn of @value before @turn, and the first from @turn on (INT32_MAX: none). Before its first
 * use a given value has the turn before the first boundary at which it can be held.
 */
int32_t remat_touch_before(const struct remat_schedule *schedule, int value, int turn);
int32_t remat_touch_from(const struct remat_schedule *schedule, int value, int turn);

/* Return the number of edges of @value in @turn; 0: the turn does not touch it. */
int remat_touch_edges(const struct remat_schedule *schedule, int value, int turn);

/* A value that is got back, and the first turn that uses it. */
struct remat_get {
  int32_t turn, value;
};
/*
 * List the values that @turn gets back in @gets, which has room for all values, in the order in which they begin: by
 * the turns that use them. Return their number.
 */
int remat_gets_list(const struct remat_schedule *schedule, int turn, struct remat_get *gets);

/*
 * Return the first turn from @turn on after which @value, which waits on a tier, is put there: it is on the device in
 * the turn and not after it. Also, either the next turn that touches it gets it back, or the tier has no copy of its
 * last version. -1: before turn 0. INT32_MAX: none.
 */
int32_t remat_put_turn(const struct remat_schedule *schedule, int value, int turn);

/* Let at most @bytes wait on @tier at once. */
static inline void remat_waiting_limit(struct remat_schedule *schedule, enum lade_space tier, uint64_t bytes)
{
  turn_bytes_limit(&schedule->waiting[tier], (int64_t)LADE_MIN(bytes, (uint64_t)INT64_MAX / 2));
}

/* Price the bytes of turns from now on (schedule->prices). NULL: no more. */
void remat_prices_set(struct remat_schedule *schedule, const double *prices);

/* True if no more bytes wait on a tier than may. */
static inline bool remat_waiting_fits(const struct remat_schedule *schedule)
{
  return schedule->waiting[LADE_HOST].over_blocks == 0 && schedule->waiting[LADE_STORE].over_blocks == 0;
}

/* Return the bytes above the limit, summed over turns; 0 if the schedule fits. */
static inline double remat_over(const struct remat_schedule *schedule)
{
  return turn_bytes_over(&schedule->bytes);
}

/*
 * True if spans, touches, starts, redos and totals are what an evaluation from nothing gives, or if there is no memory
 * for one. O(n_ops * operands); asserted with -Dchecks=full.
 */
bool remat_schedule_is_valid(const struct remat_schedule *schedule);

/* ---- within schedule*.c ---- */

/* Set the bits of @value at boundaries from .. to, if there are bits. */
void remat_held_set(struct remat_schedule *schedule, int value, int from, int to, bool is_held);

/* Find the maker of @value that a turn calls for, after its source has changed. */
void remat_maker_find(struct remat_schedule *schedule, int value);

/*
 * Let @value, if it has a tier, wait there at those of the boundaries from .. to at which it is not held; @sign -1:
 * not.
 */
void remat_waiting_add(struct remat_schedule *schedule, int value, int from, int to, int sign);

/* Let one edge more of @value be in @turn, or one less. Return the number that is left. */
void remat_touch_add(struct remat_schedule *schedule, int value, int turn);
int remat_touch_remove(struct remat_schedule *schedule, int value, int turn);

/* Return the index of the first redo of @t at or after index @from that comes no earlier than @op in a turn. */
int remat_redo_index(const struct remat_problem *problem, const struct remat_turn *t, int from, int op);

/*
 * Bring the redos of @turn in line with its events, as changes of its row: schedule->changed lists them, ascending,
 * with complements (~) of the redos that go, and their values touch the turn already. @turn's own list is as before.
 * If the turn cannot make its values again, is_broken is set, and the row is in between.
 */
void remat_row_follow(struct remat_schedule *schedule, int turn);

/* Count the bytes that @turn needs on top of those held before it, with its present redos. */
uint64_t remat_turn_bytes(struct remat_schedule *schedule, int turn);

/* Evaluate the redos and bytes of @turn from the boundaries at its ends, into schedule->row and the results. */
struct remat_turn_result {
  int64_t redo_ns;
  uint64_t extra_bytes;
  bool is_broken;
};
struct remat_turn_result remat_turn_evaluate(struct remat_schedule *schedule, int turn);

#endif
