/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keep a schedule of recompute consistent under changes (schedule.h).
 *
 * A change of the boundaries at which a value is held changes the bytes of that range. It is an event for the turns at
 * the ends of the range, and for those in it that touch the value. The redos of each such turn follow its events, op by
 * op (schedule_turn.c). If they changed, so did the turns that some values touch: a value that is held only for a use
 * that an op of the turn no longer has is released back to its last touch. This is an event for further turns. Each
 * release makes the schedule smaller, so the queue empties.
 *
 * The bytes of turns with events are counted after that, once each. A caller that makes several changes in a row, each
 * of which depends on the redos so far, leaves them uncounted until the last one: a chain of n values that is held
 * value by value then takes O(n) and not O(n^2). Redos depend on no bytes, so the result is the same.
 *
 * Every change of spans, redos and bytes is journalled: redos by the ops that came and went.
 */
#include "recompute/graph/schedule.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- touches ---- */

int32_t remat_touch_before(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  const int before = holding->touches.items[remat_touch_index(holding, turn) - 1].turn; /* the birth is before all */
  return LADE_MAX(before, remat_first_boundary(schedule->problem, value) - 1);
}

int32_t remat_touch_from(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  int at = remat_touch_index(holding, turn);
  return at < holding->touches.n ? holding->touches.items[at].turn : INT32_MAX;
}

static int get_compare(const void *x, const void *y)
{
  const struct remat_get *a = x, *b = y;
  return a->turn != b->turn ? (a->turn > b->turn) - (a->turn < b->turn) : a->value - b->value;
}

int remat_gets_list(const struct remat_schedule *schedule, int turn, struct remat_get *gets)
{
  const struct remat_turn *t = &schedule->turns[turn];
  int n = 0;
  for (; n < t->redos.n && t->redos.items[n] >= schedule->problem->n_ops; n++) {
    const int value = t->redos.items[n] - schedule->problem->n_ops;
    bool is_used = remat_touch_edges(schedule, value, turn) > 1; /* the get is one edge */
    gets[n] = (struct remat_get){is_used ? turn : remat_touch_from(schedule, value, turn + 1), value};
  }
  if (n > 1)
    qsort(gets, (size_t)n, sizeof(*gets), get_compare);
  return n;
}

/* True if @turn gets @value back. Gets come first among its redos. */
static bool is_got_in(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_turn *t = &schedule->turns[turn];
  const int op = remat_get_op(schedule->problem, value);
  int i = 0;
  while (i < t->redos.n && t->redos.items[i] >= schedule->problem->n_ops && t->redos.items[i] != op)
    i++;
  return i < t->redos.n && t->redos.items[i] == op;
}

/*
 * True if an op changed @value, which lives on a tier, in the live range on the device that ends at touch @at.
 */
static bool is_changed(const struct remat_schedule *schedule, int value, int at)
{
  const struct remat_value *v = &schedule->problem->values[value];
  const struct remat_holding *holding = &schedule->holdings[value];
  const int last = holding->touches.items[at].turn;
  while (remat_is_held(schedule, value, holding->touches.items[at].turn))
    at--;
  const int n_before = remat_makers_before(schedule->problem, value, holding->touches.items[at].turn);
  return n_before < v->n_makers && schedule->problem->makers[v->first_maker + n_before] <= last;
}

int32_t remat_put_turn(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  bool is_guest = remat_is_guest(schedule->problem, value);
  for (int i = remat_touch_index(holding, turn); i < holding->touches.n; i++) {
    const int at = holding->touches.items[i].turn;
    if (remat_is_held(schedule, value, at + 1))
      continue;
    if (is_guest ? i + 1 < holding->touches.n && is_got_in(schedule, value, holding->touches.items[i + 1].turn)
                 : at >= 0 && is_changed(schedule, value, i))
      return at;
  }
  return INT32_MAX;
}

static int last_touch(const struct remat_schedule *schedule, int value)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  return holding->touches.items[holding->touches.n - 1].turn;
}

/* ---- spans ---- */

static void start_add(struct remat_schedule *schedule, int value, int boundary)
{
  if (boundary > 0 && !LADE_PUSH(&schedule->turns[boundary - 1].starts, value))
    schedule->status = -ENOMEM;
}

static void start_remove(struct remat_schedule *schedule, int value, int boundary)
{
  if (boundary == 0) /* it is there as the step begins */
    return;
  struct remat_turn *turn = &schedule->turns[boundary - 1];
  for (int i = 0; i < turn->starts.n; i++) {
    if (turn->starts.items[i] == value) {
      turn->starts.items[i] = turn->starts.items[--turn->starts.n];
      return;
    }
  }
}

/* Replace the @n spans from @at on by @n_new others. */
static void spans_replace(struct remat_schedule *schedule, int value, int at, int n, const struct remat_span *spans,
                          int n_new)
{
  struct remat_holding *holding = &schedule->holdings[value];
  for (int i = at; i < at + n; i++)
    start_remove(schedule, value, holding->spans.items[i].from);
  const int n_old = holding->spans.n;
  for (int i = n; i < n_new; i++) {
    if (!LADE_PUSH(&holding->spans, spans[i])) {
      schedule->status = -ENOMEM;
      return;
    }
  }
  memmove(holding->spans.items + at + n_new, holding->spans.items + at + n,
          (size_t)(n_old - at - n) * sizeof(*holding->spans.items));
  memcpy(holding->spans.items + at, spans, (size_t)n_new * sizeof(*spans));
  holding->spans.n = n_old + n_new - n;
  for (int i = 0; i < n_new; i++)
    start_add(schedule, value, spans[i].from);
}

/* Hold the value at a range that is released, joining the spans beside it. */
static void span_join(struct remat_schedule *schedule, int value, int from, int to)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  const int at = remat_span_from(holding, from - 1);
  struct remat_span span = {from, to};
  int n = 0;
  while (at + n < holding->spans.n && holding->spans.items[at + n].from <= to + 1) {
    span.from = LADE_MIN(span.from, holding->spans.items[at + n].from);
    span.to = LADE_MAX(span.to, holding->spans.items[at + n].to);
    n++;
  }
  spans_replace(schedule, value, at, n, &span, 1);
}

/* Release a range within one span. */
static void span_cut(struct remat_schedule *schedule, int value, int from, int to)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  const int at = remat_span_from(holding, from);
  const struct remat_span old = holding->spans.items[at];
  LADE_ASSERT(old.from <= from && to <= old.to);
  struct remat_span parts[2];
  int n = 0;
  if (old.from < from)
    parts[n++] = (struct remat_span){old.from, from - 1};
  if (to < old.to)
    parts[n++] = (struct remat_span){to + 1, old.to};
  spans_replace(schedule, value, at, 1, parts, n);
}

void remat_held_set(struct remat_schedule *schedule, int value, int from, int to, bool is_held)
{
  if (!schedule->held)
    return;
  LADE_ASSERT(0 <= from && from <= to && to / 64 < schedule->n_held_words);
  uint64_t *words = schedule->held + (size_t)value * (size_t)schedule->n_held_words;
  for (int word = from / 64; word <= to / 64; word++) {
    const uint64_t first = word == from / 64 ? ~(uint64_t)0 << from % 64 : ~(uint64_t)0;
    const uint64_t mask = word == to / 64 ? first & ~(uint64_t)0 >> (63 - to % 64) : first;
    words[word] = is_held ? words[word] | mask : words[word] & ~mask;
  }
}

/* Add @bytes, which may be negative, to turns @from .. @to. */
static void bytes_add(struct remat_schedule *schedule, int from, int to, int64_t bytes)
{
  turn_bytes_add(&schedule->bytes, from, to, bytes);
  if (schedule->prices)
    schedule->priced_ns += (schedule->prices[to + 1] - schedule->prices[from]) * (double)bytes;
}

static void range_set(struct remat_schedule *schedule, int value, int from, int to, bool is_held)
{
  const int last = LADE_MIN(to, last_touch(schedule, value));
  schedule->state = ++schedule->n_states;
  if (is_held) {
    remat_waiting_add(schedule, value, from, last, -1);
    span_join(schedule, value, from, to);
  } else {
    span_cut(schedule, value, from, to);
    remat_waiting_add(schedule, value, from, last, 1);
  }
  remat_held_set(schedule, value, from, to, is_held);
  const int64_t bytes = schedule->in_turn[value].bytes;
  bytes_add(schedule, from, to, is_held ? bytes : -bytes);
}

/* ---- changes ---- */

/* Queue @turn for a change of @value at one of its ends; -1: for an evaluation from nothing. */
static void turn_queue(struct remat_schedule *schedule, int turn, int value)
{
  const struct remat_event event = {value, schedule->first_event[turn]};
  if (!LADE_PUSH(&schedule->events, event) ||
      (!schedule->is_queued[turn] && !LADE_PUSH(&schedule->queue, turn))) {
    schedule->status = -ENOMEM;
    return;
  }
  schedule->first_event[turn] = schedule->events.n - 1;
  schedule->is_queued[turn] = true;
}

/*
 * True if the op of @turn reads or makes @value. Then the value is there up to the end of the turn in any case, and the
 * turn does not depend on the boundary after it.
 */
static bool is_of_op(const struct remat_problem *problem, int value, int turn)
{
  const struct remat_op *op = &problem->ops[turn];
  for (int i = 0; i < op->n_in; i++)
    if (problem->edges[op->first_in + i].value == value)
      return true;
  return problem->values[value].birth == turn;
}

/* Change the range, journal it, and queue the turns that depend on it. */
static void range_change(struct remat_schedule *schedule, int value, int from, int to, bool is_held)
{
  const struct remat_change change = {.kind = REMAT_RANGE, .value = value, .from = from, .to = to, .is_held = is_held};
  if (!LADE_PUSH(&schedule->journal, change)) {
    schedule->status = -ENOMEM;
    return;
  }
  range_set(schedule, value, from, to, is_held);
  const struct remat_holding *holding = &schedule->holdings[value];
  if (from > 0 && !is_of_op(schedule->problem, value, from - 1))
    turn_queue(schedule, from - 1, value);
  turn_queue(schedule, to, value);
  for (int i = remat_touch_index(holding, from); i < holding->touches.n && holding->touches.items[i].turn < to; i++)
    turn_queue(schedule, holding->touches.items[i].turn, value);
}

/* Release @value, which no op of @turn uses any more, if it was held for that use alone. */
static void held_trim(struct remat_schedule *schedule, int value, int turn)
{
  bool goes_on = turn < schedule->problem->n_ops && remat_is_held(schedule, value, turn + 1);
  if (goes_on || !remat_is_held(schedule, value, turn))
    return;
  const struct remat_holding *holding = &schedule->holdings[value];
  const int span_from = holding->spans.items[remat_span_from(holding, turn)].from;
  const int from = LADE_MAX(remat_touch_before(schedule, value, turn) + 1, span_from);
  range_change(schedule, value, from, turn, false);
}

/*
 * Make the @n @changes, ascending, to the redos of @turn; or undo them. The new list is written into schedule->row, and
 * the two lists change places.
 */
static void row_change(struct remat_schedule *schedule, int turn, const int32_t *changes, int n, bool is_undone)
{
  struct remat_turn *t = &schedule->turns[turn];
  const int n_old = t->redos.n;
  if (!lade_array_reserve((void **)&schedule->row.items, &schedule->row.capacity, n_old + n, sizeof(int32_t))) {
    schedule->status = -ENOMEM;
    return;
  }
  int32_t *row = schedule->row.items;
  int at = 0, n_new = 0;
  for (int i = 0; i < n; i++) {
    bool is_gone = (changes[i] < 0) != is_undone;
    const int op = changes[i] < 0 ? ~changes[i] : changes[i], to = remat_redo_index(schedule->problem, t, at, op);
    const int64_t ns = schedule->problem->ops[op].ns;
    schedule->redo_ns += is_gone ? -ns : ns;
    t->redo_ns += is_gone ? -ns : ns;
    t->n_versions += schedule->problem->ops[op].has_versions ? is_gone ? -1 : 1 : 0;
    for (; at < to; at++)
      row[n_new++] = t->redos.items[at];
    if (is_gone)
      at++;
    else
      row[n_new++] = op;
  }
  for (; at < n_old; at++)
    row[n_new++] = t->redos.items[at];
  const int capacity = schedule->row.capacity;
  schedule->row.items = t->redos.items;
  schedule->row.capacity = t->redos.capacity;
  t->redos.items = row;
  t->redos.capacity = capacity;
  t->redos.n = n_new;
  schedule->n_redos += n_new - n_old;
  schedule->state = ++schedule->n_states;
}

/* Journal the changes of the redos of @turn in schedule->changed. Return false if there is no memory. */
static bool row_journal(struct remat_schedule *schedule, int turn)
{
  const int n = schedule->changed.n, to = schedule->row_changes.n;
  const struct remat_change change = {.kind = REMAT_REDOS, .from = turn, .to = to};
  if (!lade_array_reserve((void **)&schedule->row_changes.items, &schedule->row_changes.capacity, to + n,
                          sizeof(int32_t)) ||
      !LADE_PUSH(&schedule->journal, change)) {
    schedule->status = -ENOMEM;
    return false;
  }
  memcpy(schedule->row_changes.items + to, schedule->changed.items, (size_t)n * sizeof(int32_t));
  schedule->row_changes.n = to + n;
  return true;
}

/* Release values that were held for uses in @turn alone that have gone with its redos. */
static void row_trim(struct remat_schedule *schedule, int turn)
{
  for (int i = schedule->untouched.n - 1; i >= 0 && !schedule->status; i--) {
    if (!remat_touch_edges(schedule, schedule->untouched.items[i], turn))
      held_trim(schedule, schedule->untouched.items[i], turn);
  }
}

/* Let the bytes of @turn be counted again when changes settle. */
static void turn_expire(struct remat_schedule *schedule, int turn)
{
  if (schedule->is_stale[turn])
    return;
  schedule->is_stale[turn] = true;
  if (!LADE_PUSH(&schedule->stale, turn))
    schedule->status = -ENOMEM;
}

/* Let the redos of @turn follow its events. */
static void turn_renew(struct remat_schedule *schedule, int turn)
{
  turn_expire(schedule, turn);
  remat_row_follow(schedule, turn);
  schedule->first_event[turn] = -1;
  if (schedule->status || !schedule->changed.n || !row_journal(schedule, turn))
    return;
  row_change(schedule, turn, schedule->changed.items, schedule->changed.n, false);
  if (schedule->is_broken || schedule->status)
    return;
  row_trim(schedule, turn);
  schedule->is_broken = schedule->redo_ns > schedule->redo_max_ns;
}

void remat_rows_settle(struct remat_schedule *schedule)
{
  while (schedule->queue.n > 0) {
    const int turn = schedule->queue.items[--schedule->queue.n];
    schedule->is_queued[turn] = false;
    if (!schedule->is_broken && !schedule->status)
      turn_renew(schedule, turn);
    else
      schedule->first_event[turn] = -1;
  }
}

/* Set the bytes that @turn needs on top of those held before it. */
static void extra_set(struct remat_schedule *schedule, int turn, uint64_t extra_bytes)
{
  struct remat_turn *t = &schedule->turns[turn];
  schedule->state = ++schedule->n_states;
  bytes_add(schedule, turn, turn, (int64_t)(extra_bytes - t->extra_bytes));
  t->extra_bytes = extra_bytes;
}

/* Count the bytes of @turn again. */
static void turn_recount(struct remat_schedule *schedule, int turn)
{
  const uint64_t before = schedule->turns[turn].extra_bytes, extra_bytes = remat_turn_bytes(schedule, turn);
  const struct remat_change change = {.kind = REMAT_BYTES, .from = turn, .extra_bytes = before};
  if (extra_bytes == before)
    return;
  if (LADE_PUSH(&schedule->journal, change))
    extra_set(schedule, turn, extra_bytes);
  else
    schedule->status = -ENOMEM;
}

void remat_settle(struct remat_schedule *schedule)
{
  remat_rows_settle(schedule);
  while (schedule->stale.n > 0) {
    const int turn = schedule->stale.items[--schedule->stale.n];
    schedule->is_stale[turn] = false;
    if (!schedule->is_broken && !schedule->status)
      turn_recount(schedule, turn);
  }
  if (!schedule->has_deferred)
    schedule->events.n = 0;
}

void remat_turn_defer(struct remat_schedule *schedule, int turn)
{
  schedule->is_queued[turn] = schedule->has_deferred = true; /* changes then do not queue it */
}

void remat_turn_resume(struct remat_schedule *schedule, int turn)
{
  schedule->has_deferred = false;
  if (!LADE_PUSH(&schedule->queue, turn))
    schedule->status = -ENOMEM;
  remat_settle(schedule);
}

void remat_hold_unsettled(struct remat_schedule *schedule, int value, int from, int to)
{
  if (!schedule->is_broken && !schedule->status)
    range_change(schedule, value, from, to, true);
}

void remat_release_unsettled(struct remat_schedule *schedule, int value, int from, int to)
{
  if (!schedule->is_broken && !schedule->status)
    range_change(schedule, value, from, to, false);
}

void remat_hold(struct remat_schedule *schedule, int value, int from, int to)
{
  remat_hold_unsettled(schedule, value, from, to);
  remat_settle(schedule);
}

void remat_release(struct remat_schedule *schedule, int value, int from, int to)
{
  remat_release_unsettled(schedule, value, from, to);
  remat_settle(schedule);
}

void remat_maker_find(struct remat_schedule *schedule, int value)
{
  const struct remat_value *v = &schedule->problem->values[value];
  bool is_single = v->n_makers == 1 && v->birth >= 0 && schedule->sources[value] == LADE_DEVICE;
  schedule->in_turn[value].maker = is_single ? v->birth : -1;
}

/* Replace the source of @value, without what follows. */
static void source_put(struct remat_schedule *schedule, int value, enum lade_space tier)
{
  const int last = last_touch(schedule, value);
  schedule->state = ++schedule->n_states;
  remat_waiting_add(schedule, value, 0, last, -1);
  schedule->sources[value] = (uint8_t)tier;
  remat_maker_find(schedule, value);
  remat_waiting_add(schedule, value, 0, last, 1);
}

void remat_source_set(struct remat_schedule *schedule, int value, enum lade_space tier)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  const struct remat_change change = {.kind = REMAT_SOURCE, .value = value, .to = schedule->sources[value]};
  if (schedule->is_broken || schedule->status)
    return;
  if (!LADE_PUSH(&schedule->journal, change)) {
    schedule->status = -ENOMEM;
    return;
  }
  source_put(schedule, value, tier);
  for (int i = 1; i < holding->touches.n; i++)
    turn_queue(schedule, holding->touches.items[i].turn, -1);
  remat_settle(schedule);
}

void remat_commit(struct remat_schedule *schedule)
{
  schedule->journal.n = 0;
  schedule->row_changes.n = 0;
}

/* Undo the last change of redos. */
static void redos_restore(struct remat_schedule *schedule, const struct remat_change *change)
{
  const struct remat_problem *problem = schedule->problem;
  const int32_t *changes = schedule->row_changes.items + change->to;
  const int n = schedule->row_changes.n - change->to;
  for (int i = 0; i < n; i++) {
    const struct remat_op *op = &problem->ops[changes[i] < 0 ? ~changes[i] : changes[i]];
    for (int k = 0; k < op->n_in + op->n_out; k++) {
      if (changes[i] < 0)
        remat_touch_add(schedule, problem->edges[op->first_in + k].value, change->from);
      else
        remat_touch_remove(schedule, problem->edges[op->first_in + k].value, change->from);
    }
  }
  row_change(schedule, change->from, changes, n, true);
  schedule->row_changes.n = change->to;
}

int remat_mark(const struct remat_schedule *schedule)
{
  return schedule->journal.n;
}

void remat_rollback_to(struct remat_schedule *schedule, int mark)
{
  for (int i = schedule->journal.n - 1; i >= mark && !schedule->status; i--) { /* else a change is half made */
    const struct remat_change *change = &schedule->journal.items[i];
    switch (change->kind) {
    case REMAT_RANGE:
      range_set(schedule, change->value, change->from, change->to, !change->is_held);
      break;
    case REMAT_SOURCE:
      source_put(schedule, change->value, (enum lade_space)change->to);
      break;
    case REMAT_REDOS:
      redos_restore(schedule, change);
      break;
    case REMAT_BYTES:
      extra_set(schedule, change->from, change->extra_bytes);
      break;
    }
  }
  schedule->journal.n = mark;
  schedule->is_broken = false;
}

void remat_rollback(struct remat_schedule *schedule)
{
  remat_rollback_to(schedule, 0);
}
