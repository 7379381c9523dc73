/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keep one turn in line with the boundaries at its ends: which ops run again in it, how many bytes they need, and which
 * values it touches.
 *
 * The redos are a closure. It begins with the values that the turn's op reads, and with those held after the turn but
 * not before it. Each that is not held before the turn calls for its makers, and these for the values that they read.
 * Redos run in ascending order, so that an op that is called for by several runs once. A value with several makers is
 * made again by all that ran before this turn, so that each finds the version of its first run.
 *
 * A change of one value calls for few ops, or leaves few without need. So a row follows a change op by op:
 *
 *   An op is called for if one of its outputs is not held before the turn, and is used in the turn or held after it.
 *   If an event changes that for the maker of its value, the maker goes or comes, and its edges with it. An input that
 *   has no use left, or is missing now, does the same to its own maker.
 *
 * The touches of values count uses, so a change takes O(edges of the ops that come or go). It ends in the closure:
 * readers come after makers in the order of ops, so from the last op to the first, the need for each follows from that
 * for later ones. Hence only one row agrees with the rule. This fails for values with several makers: these call for
 * each other, and would hold each other in the row. A row with such an op, and one that a value on a tier concerns, is
 * made from nothing, and the difference to the present one is taken over.
 *
 * Bytes are counted from the end of the turn back to its beginning: the first place at which a value is met is that of
 * its last use. So one pass over the row finds live ranges and the peak.
 *
 * O(uses of the ops that run) from nothing and for the bytes.
 */
#include <errno.h>
#include <string.h>

#include "recompute/graph/schedule.h"

#define ROW_LONG 48 /* redos up to which insertion is faster */
#define ROW_NOW 1     /* flags of schedule->in_row: the op is in the row */
#define ROW_BEFORE 2  /* it was there before the change */
#define ROW_CHANGED 4 /* schedule->changed has it */
#define ROW_STATE_BITS 3

/* ---- bytes on tiers ---- */

/* Let @value wait on its tier at boundaries from .. to, at which it is not held (@sign 1), or take that back (-1). */
static void waiting_add(struct remat_schedule *schedule, int value, int from, int to, int sign)
{
  const struct remat_value *v = &schedule->problem->values[value];
  if (from > to)
    return;
  schedule->n_waits += (int64_t)sign * (to - from + 1);
  if (remat_is_guest(schedule->problem, value))
    turn_bytes_add(&schedule->waiting[schedule->sources[value]], from, to, sign * (int64_t)v->bytes);
}

void remat_waiting_add(struct remat_schedule *schedule, int value, int from, int to, int sign)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  if (schedule->sources[value] == LADE_DEVICE)
    return;
  from = LADE_MAX(from, schedule->problem->values[value].birth + 1);
  for (int i = remat_span_from(holding, from); i < holding->spans.n && from <= to; i++) {
    const struct remat_span *span = &holding->spans.items[i];
    waiting_add(schedule, value, from, LADE_MIN(to, span->from - 1), sign);
    from = span->to + 1;
  }
  waiting_add(schedule, value, from, to, sign);
}

/* ---- touches and redos, in sorted arrays ---- */

int remat_touch_edges(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  const int at = remat_touch_index(holding, turn);
  return at < holding->touches.n && holding->touches.items[at].turn == turn ? holding->touches.items[at].n_edges : 0;
}

void remat_touch_add(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_holding *holding = &schedule->holdings[value];
  const struct remat_touch touch = {turn, 1};
  int at = remat_touch_index(holding, turn);
  if (at < holding->touches.n && holding->touches.items[at].turn == turn) {
    holding->touches.items[at].n_edges++;
    return;
  }
  if (!LADE_PUSH(&holding->touches, touch)) {
    schedule->status = -ENOMEM;
    return;
  }
  memmove(holding->touches.items + at + 1, holding->touches.items + at,
          (size_t)(holding->touches.n - 1 - at) * sizeof(touch));
  holding->touches.items[at] = touch;
  if (at > 0 && at == holding->touches.n - 1)
    remat_waiting_add(schedule, value, holding->touches.items[at - 1].turn + 1, turn, 1);
}

int remat_touch_remove(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_holding *holding = &schedule->holdings[value];
  int at = remat_touch_index(holding, turn);
  LADE_ASSERT(at < holding->touches.n && holding->touches.items[at].turn == turn);
  if (--holding->touches.items[at].n_edges > 0)
    return holding->touches.items[at].n_edges;
  if (at > 0 && at == holding->touches.n - 1)
    remat_waiting_add(schedule, value, holding->touches.items[at - 1].turn + 1, turn, -1);
  memmove(holding->touches.items + at, holding->touches.items + at + 1,
          (size_t)(--holding->touches.n - at) * sizeof(struct remat_touch));
  return 0;
}

int remat_redo_index(const struct remat_problem *problem, const struct remat_turn *t, int from, int op)
{
  const int order = remat_order(problem, op);
  int at = from;
  for (int n = t->redos.n - from; n > 0;) {
    const int half = (n + 1) / 2;
    at += remat_order(problem, t->redos.items[at + half - 1]) < order ? half : 0;
    n -= half;
  }
  return at;
}

/* ---- redos from nothing ---- */

/* Find out where @value, which is met in @turn for the first time, is held. */
static void value_meet(struct remat_schedule *schedule, int value, int turn)
{
  int flags = remat_is_held(schedule, value, turn) ? REMAT_HELD : 0;
  bool is_after = turn < schedule->problem->n_ops ? remat_is_held(schedule, value, turn + 1)
                                                  : schedule->problem->values[value].last_use == turn;
  flags |= is_after ? REMAT_HELD_AFTER : 0;
  schedule->in_turn[value].state = schedule->mark << REMAT_FLAG_BITS | flags;
}

/* Return @value in @turn. */
static inline struct remat_value_turn *value_see(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_value_turn *seen = &schedule->in_turn[value];
  if (seen->state >> REMAT_FLAG_BITS != schedule->mark)
    value_meet(schedule, value, turn);
  return seen;
}

static void op_call(struct remat_schedule *schedule, int op)
{
  if (schedule->op_mark[op] == schedule->mark)
    return;
  schedule->op_mark[op] = schedule->mark;
  if (!LADE_PUSH(&schedule->row, op))
    schedule->status = -ENOMEM;
}

/* Call for the makers of @value that ran before @turn. */
static void makers_call(struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_value *v = &problem->values[value];
  if (schedule->sources[value] != LADE_DEVICE) {
    op_call(schedule, remat_get_op(problem, value));
    return;
  }
  if (v->n_makers == 1) {
    op_call(schedule, v->birth);
    return;
  }
  for (int i = 0; i < v->n_makers && problem->makers[v->first_maker + i] < turn; i++)
    op_call(schedule, problem->makers[v->first_maker + i]);
}

/* Call for the makers of a value that has several, or waits on a tier, if the version of @edge is not held at @turn. */
static void version_call(struct remat_schedule *schedule, const struct remat_edge *edge, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  bool is_old = problem->values[edge->value].n_makers > 1 && !remat_is_given(problem, edge->value) &&
                edge->version < remat_makers_before(problem, edge->value, turn);
  if (is_old && schedule->sources[edge->value] != LADE_DEVICE)
    schedule->is_broken = true; /* the tier has the new version */
  if (is_old || !(value_see(schedule, edge->value, turn)->state & REMAT_HELD))
    makers_call(schedule, edge->value, turn);
}

/* Call for what @op reads and lacks at @turn; for the first run of the turn's own op, and for a redo. */
static void inputs_call(struct remat_schedule *schedule, int op, int turn)
{
  const struct remat_op *o = &schedule->problem->ops[op];
  const struct remat_edge *edges = &schedule->problem->edges[o->first_in];
  for (int i = 0; i < o->n_in; i++) {
    const struct remat_value_turn *seen = &schedule->in_turn[edges[i].value];
    if (seen->maker < 0)
      version_call(schedule, &edges[i], turn);
    else if (!(value_see(schedule, edges[i].value, turn)->state & REMAT_HELD))
      op_call(schedule, seen->maker);
  }
}

/* Call for the other makers of values that the redo @op changes: the last version must stand at the end. */
static void outputs_call(struct remat_schedule *schedule, int op, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_op *o = &problem->ops[op];
  for (int i = 0; i < o->n_out; i++) {
    int value = problem->edges[o->first_out + i].value;
    if (problem->values[value].n_makers > 1 && schedule->sources[value] != LADE_DEVICE)
      schedule->is_broken = op < problem->n_ops || schedule->is_broken; /* an older version would stand at the end */
    else if (problem->values[value].n_makers > 1)
      makers_call(schedule, value, turn);
  }
}

/* Call for values held after @turn and not before it, and for results at the end of the step. */
static void starts_call(struct remat_schedule *schedule, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_turn *t = &schedule->turns[turn];
  for (int i = 0; i < t->starts.n; i++) {
    if (problem->values[t->starts.items[i]].birth != turn)
      makers_call(schedule, t->starts.items[i], turn);
  }
  for (int i = 0; i < problem->n_lasting && turn == problem->n_ops; i++) {
    if (!(value_see(schedule, problem->lasting[i], turn)->state & REMAT_HELD))
      makers_call(schedule, problem->lasting[i], turn);
  }
}

/*
 * Sort @row [@n] in the order of a turn: short ones by insertion, long ones through a set. Ops are called for after
 * their readers, so the row is nearly in descending order, and insertion begins from its reverse.
 */
static void row_sort(struct remat_schedule *schedule, int32_t *row, int n)
{
  const struct remat_problem *problem = schedule->problem;
  for (int i = 0; i < n && n > ROW_LONG; i++)
    ordered_bitset_set(&schedule->row_set, row[i]);
  for (int i = 0, op = problem->n_ops - 1; i < n && n > ROW_LONG; i++) {
    op = ordered_bitset_next(&schedule->row_set, op + 1);
    if (op < 0) /* all gets are out */
      op = ordered_bitset_next(&schedule->row_set, 0);
    row[i] = op;
    ordered_bitset_clear(&schedule->row_set, op);
  }
  for (int i = 0; i < n / 2 && n <= ROW_LONG; i++) {
    const int32_t op = row[i];
    row[i] = row[n - 1 - i];
    row[n - 1 - i] = op;
  }
  for (int i = 1; i < n && n <= ROW_LONG; i++) {
    int32_t op = row[i];
    int at = i;
    for (; at > 0 && remat_order(problem, row[at - 1]) > remat_order(problem, op); at--)
      row[at] = row[at - 1];
    row[at] = op;
  }
}

/* List the redos of @turn in schedule->row. Return false if one cannot run again here, or if all take too long. */
static bool row_make(struct remat_schedule *schedule, int turn, int64_t *ret_ns)
{
  const struct remat_problem *problem = schedule->problem;
  const int64_t max_ns = schedule->redo_max_ns - (schedule->redo_ns - schedule->turns[turn].redo_ns);
  schedule->row.n = 0;
  schedule->mark++;
  if (turn < problem->n_ops)
    inputs_call(schedule, turn, turn);
  starts_call(schedule, turn);
  *ret_ns = 0;
  for (int i = 0; i < schedule->row.n && !schedule->status; i++) {
    int op = schedule->row.items[i];
    if (problem->ops[op].redo_until < turn || (schedule->forbids_redo && op < problem->n_ops))
      return false;
    *ret_ns += problem->ops[op].ns;
    if (*ret_ns > max_ns)
      return false;
    inputs_call(schedule, op, turn);
    outputs_call(schedule, op, turn);
  }
  row_sort(schedule, schedule->row.items, schedule->row.n);
  return !schedule->is_broken;
}

/* ---- changes of a row ---- */

/* True if @op is in the row of the turn under change. */
static inline bool is_in_row(const struct remat_schedule *schedule, int op)
{
  return schedule->in_row[op] >> ROW_STATE_BITS == schedule->row_mark && schedule->in_row[op] & ROW_NOW;
}

/* Put @op into the row of @turn, or take it out, with the touches of its values. The caller follows its inputs. */
static void row_put(struct remat_schedule *schedule, int op, int turn, bool is_put)
{
  const struct remat_op *o = &schedule->problem->ops[op];
  const struct remat_edge *edges = &schedule->problem->edges[o->first_in];
  bool is_known = schedule->in_row[op] >> ROW_STATE_BITS == schedule->row_mark;
  const int64_t state = is_known ? schedule->in_row[op] : schedule->row_mark << ROW_STATE_BITS;
  schedule->in_row[op] = (is_put ? state | ROW_NOW : state & ~(int64_t)ROW_NOW) | ROW_CHANGED;
  schedule->row_ns += is_put ? o->ns : -o->ns;
  bool is_pushed = state & ROW_CHANGED || LADE_PUSH(&schedule->changed, op);
  if (!is_pushed || !LADE_PUSH(&schedule->calls, op))
    schedule->status = -ENOMEM;
  for (int i = 0; i < o->n_in + o->n_out; i++) {
    if (is_put)
      remat_touch_add(schedule, edges[i].value, turn);
    else if (!remat_touch_remove(schedule, edges[i].value, turn) && !LADE_PUSH(&schedule->untouched, edges[i].value))
      schedule->status = -ENOMEM;
  }
  schedule->work += o->n_in + o->n_out;
}

/*
 * True if a run of @op in @turn is needed, because an output is missing before the turn and used in it or held after.
 * @own is 1 if the turn runs the op, which then is one of the uses.
 */
static bool is_called(struct remat_schedule *schedule, int op, int turn, int own)
{
  const struct remat_op *o = &schedule->problem->ops[op];
  const struct remat_edge *outs = &schedule->problem->edges[o->first_out];
  for (int i = 0; i < o->n_out; i++) {
    schedule->is_mixed |= schedule->in_turn[outs[i].value].maker < 0;
    if (!remat_is_held(schedule, outs[i].value, turn) &&
        (remat_is_held(schedule, outs[i].value, turn + 1) ||
         remat_touch_edges(schedule, outs[i].value, turn) > own))
      return true;
  }
  return false;
}

/* Follow ops that left the row of @turn: their inputs may not be needed any more. */
static void gone_follow(struct remat_schedule *schedule, int turn)
{
  while (schedule->calls.n && !schedule->is_mixed && !schedule->status) {
    const struct remat_op *o = &schedule->problem->ops[schedule->calls.items[--schedule->calls.n]];
    const struct remat_edge *edges = &schedule->problem->edges[o->first_in];
    for (int i = 0; i < o->n_in; i++) {
      const int maker = schedule->in_turn[edges[i].value].maker;
      schedule->is_mixed |= maker < 0;
      if (maker >= 0 && is_in_row(schedule, maker) && !is_called(schedule, maker, turn, 1))
        row_put(schedule, maker, turn, false);
    }
  }
}

/* Follow ops that came into the row of @turn: the turn makes their missing inputs again, too. */
static void new_follow(struct remat_schedule *schedule, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  while (schedule->calls.n && !schedule->is_mixed && !schedule->status) {
    const int op = schedule->calls.items[--schedule->calls.n];
    const struct remat_op *o = &problem->ops[op];
    const struct remat_edge *edges = &problem->edges[o->first_in];
    if (o->redo_until < turn || schedule->forbids_redo || schedule->redo_ns + schedule->row_ns > schedule->redo_max_ns)
      schedule->is_broken = true;
    if (schedule->is_broken)
      return;
    for (int i = 0; i < o->n_in + o->n_out; i++) {
      const int maker = schedule->in_turn[edges[i].value].maker;
      schedule->is_mixed |= maker < 0;
      if (maker >= 0 && i < o->n_in && !is_in_row(schedule, maker) && !remat_is_held(schedule, edges[i].value, turn))
        row_put(schedule, maker, turn, true);
    }
  }
}

/*
 * Follow the events of @turn op by op. Ops that go come first, so that the time only grows afterwards, and the change
 * is broken as soon as it is too slow. is_mixed afterwards: a value has several makers or waits on a tier, and the row
 * is in between.
 */
static void events_follow(struct remat_schedule *schedule, int turn)
{
  for (int pass = 0; pass < 2; pass++) {
    for (int i = schedule->first_event[turn]; i >= 0 && !schedule->is_mixed; i = schedule->events.items[i].next) {
      const int value = schedule->events.items[i].value;
      const int maker = value < 0 ? -1 : schedule->in_turn[value].maker;
      schedule->is_mixed |= maker < 0;
      if (schedule->is_mixed || schedule->is_broken || schedule->status)
        return;
      bool is_new = pass && !is_in_row(schedule, maker) && is_called(schedule, maker, turn, 0);
      bool is_gone = !pass && is_in_row(schedule, maker) && !is_called(schedule, maker, turn, 1);
      if ((is_new || is_gone) && !schedule->is_mixed)
        row_put(schedule, maker, turn, is_new);
      if (is_new)
        new_follow(schedule, turn);
      else if (is_gone)
        gone_follow(schedule, turn);
    }
  }
}

/* Take @op out of the row of @turn, if the evaluation did not call for it. */
static void unmarked_take(struct remat_schedule *schedule, int op, int turn)
{
  if (is_in_row(schedule, op) && schedule->op_mark[op] != schedule->mark)
    row_put(schedule, op, turn, false);
}

/* Make the row of @turn the one that an evaluation from nothing gives. */
static void row_replace(struct remat_schedule *schedule, int turn)
{
  const struct remat_turn *t = &schedule->turns[turn];
  int64_t ns;
  if (!row_make(schedule, turn, &ns) || schedule->status) {
    schedule->work += schedule->row.n;
    schedule->is_broken = true;
    return;
  }
  for (int i = 0; i < schedule->row.n; i++)
    if (!is_in_row(schedule, schedule->row.items[i]))
      row_put(schedule, schedule->row.items[i], turn, true);
  for (int i = 0; i < schedule->changed.n; i++)
    unmarked_take(schedule, schedule->changed.items[i], turn);
  for (int i = 0; i < t->redos.n; i++)
    unmarked_take(schedule, t->redos.items[i], turn);
}

/* Keep those of the changed ops that are in the row and were not, ascending, and the complements of the opposite. */
static void changed_sort(struct remat_schedule *schedule)
{
  int32_t *changed = schedule->changed.items;
  int n = 0;
  for (int i = 0; i < schedule->changed.n; i++) {
    const int64_t state = schedule->in_row[changed[i]] & (ROW_NOW | ROW_BEFORE);
    if (state == ROW_NOW || state == ROW_BEFORE)
      changed[n++] = changed[i];
  }
  schedule->changed.n = n;
  row_sort(schedule, changed, n);
  for (int i = 0; i < n; i++)
    changed[i] = schedule->in_row[changed[i]] & ROW_NOW ? changed[i] : ~changed[i];
}

/* True if the row of @turn may change: an event's value has another need for its maker, or several makers. */
static bool is_row_due(struct remat_schedule *schedule, int turn)
{
  const struct remat_turn *t = &schedule->turns[turn];
  if (schedule->is_mixed)
    return true;
  for (int i = schedule->first_event[turn]; i >= 0; i = schedule->events.items[i].next) {
    const int value = schedule->events.items[i].value;
    const int maker = value < 0 ? -1 : schedule->in_turn[value].maker;
    if (maker < 0)
      return true;
    const int at = remat_redo_index(schedule->problem, t, 0, maker);
    bool is_there = at < t->redos.n && t->redos.items[at] == maker;
    if (is_there != is_called(schedule, maker, turn, is_there))
      return true;
  }
  return false;
}

void remat_row_follow(struct remat_schedule *schedule, int turn)
{
  const struct remat_turn *t = &schedule->turns[turn];
  schedule->row_mark++;
  schedule->row_ns = schedule->changed.n = schedule->calls.n = schedule->untouched.n = 0;
  schedule->is_mixed = t->n_versions > 0;
  if (schedule->first_event[turn] < 0 || !is_row_due(schedule, turn))
    return;
  for (int i = 0; i < t->redos.n; i++)
    schedule->in_row[t->redos.items[i]] = schedule->row_mark << ROW_STATE_BITS | ROW_NOW | ROW_BEFORE;
  events_follow(schedule, turn);
  if (schedule->is_mixed && !schedule->is_broken && !schedule->status)
    row_replace(schedule, turn);
  changed_sort(schedule);
}

/* ---- bytes ---- */

/* True if @op is the first one of the turn that makes @value, which is not held before it. */
static bool is_first_maker(const struct remat_schedule *schedule, int value, int op)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_value *v = &problem->values[value];
  if (schedule->in_turn[value].maker == op || op >= problem->n_ops)
    return true;
  if (schedule->op_mark[remat_get_op(problem, value)] == schedule->mark)
    return false;
  for (int i = 0; i < v->n_makers && problem->makers[v->first_maker + i] < op; i++)
    if (schedule->op_mark[problem->makers[v->first_maker + i]] == schedule->mark)
      return false;
  return true;
}

/*
 * Go back over @op: *@bytes are those of values that were made or held up to here and go before the end of the turn,
 * less those behind. Return them while the op runs, and count the op's edges as work.
 */
static int64_t op_pass(struct remat_schedule *schedule, int op, int turn, int64_t *bytes)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_op *o = &problem->ops[op];
  const struct remat_edge *edges = &problem->edges[o->first_in];
  int64_t live = *bytes;
  for (int i = 0; i < o->n_in + o->n_out; i++) { /* outputs follow inputs */
    struct remat_value_turn *seen = value_see(schedule, edges[i].value, turn);
    live += seen->state & (REMAT_USED | REMAT_HELD_AFTER) ? 0 : seen->bytes; /* its last use */
    seen->state |= REMAT_USED;
  }
  *bytes = live;
  for (int i = o->n_in; i < o->n_in + o->n_out; i++) {
    const struct remat_value_turn *seen = &schedule->in_turn[edges[i].value];
    if (!(seen->state & REMAT_HELD) && is_first_maker(schedule, edges[i].value, op))
      *bytes -= seen->bytes;
  }
  schedule->work += o->n_in + o->n_out;
  return live + (int64_t)o->scratch_bytes;
}

/* Return the bytes that @turn needs on top of those held before it. Its redos are @row [@n]. */
static uint64_t row_bytes(struct remat_schedule *schedule, int turn, const int32_t *row, int n)
{
  int64_t bytes = 0, max = INT64_MIN;
  schedule->mark++;
  for (int i = 0; i < n; i++)
    schedule->op_mark[row[i]] = schedule->mark;
  if (turn < schedule->problem->n_ops)
    max = op_pass(schedule, turn, turn, &bytes);
  else
    schedule->work += 1 + schedule->problem->n_lasting;
  for (int place = n - 1; place >= 0; place--) {
    const int64_t running = op_pass(schedule, row[place], turn, &bytes);
    max = LADE_MAX(max, running);
  }
  return (uint64_t)LADE_MAX(max - bytes, 0);
}

uint64_t remat_turn_bytes(struct remat_schedule *schedule, int turn)
{
  return row_bytes(schedule, turn, schedule->turns[turn].redos.items, schedule->turns[turn].redos.n);
}

struct remat_turn_result remat_turn_evaluate(struct remat_schedule *schedule, int turn)
{
  struct remat_turn_result result = {0};
  if (!row_make(schedule, turn, &result.redo_ns) || schedule->status) {
    schedule->work += schedule->row.n;
    return (struct remat_turn_result){.is_broken = true};
  }
  result.extra_bytes = row_bytes(schedule, turn, schedule->row.items, schedule->row.n);
  return result;
}
