/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keep a schedule of recompute consistent under changes (schedule.h).
 *
 * A change of the boundaries at which a value is held changes the bytes of that range. It queues the turns at the ends
 * of the range, and those in it that touch the value. Each queued turn is evaluated again. If its redos changed, so did
 * the turns that some values touch: a value that is held only for a use that an op of the turn no longer has is
 * released back to its last touch. This queues further turns. Each release makes the schedule smaller, so the queue
 * empties. Every change of spans and redos is journalled with what it replaced.
 */
#include "recompute/graph/schedule.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- sorted arrays ---- */

/* Return the index of the first touch at @turn or after it. */
static int touch_index(const struct remat_holding *holding, int turn)
{
  int lo = 0, hi = holding->touches.n;
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;
    if (holding->touches.items[mid].turn < turn)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

int32_t remat_touch_before(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  const int before = holding->touches.items[touch_index(holding, turn) - 1].turn; /* the birth is before all */
  return LADE_MAX(before, remat_first_boundary(schedule->problem, value) - 1);
}

int32_t remat_touch_from(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  int at = touch_index(holding, turn);
  return at < holding->touches.n ? holding->touches.items[at].turn : INT32_MAX;
}

int remat_touch_edges(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  const int at = touch_index(holding, turn);
  return at < holding->touches.n && holding->touches.items[at].turn == turn ? holding->touches.items[at].n_edges : 0;
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
  for (int i = touch_index(holding, turn); i < holding->touches.n; i++) {
    const int at = holding->touches.items[i].turn;
    if (remat_is_held(schedule, value, at + 1))
      continue;
    if (is_guest ? i + 1 < holding->touches.n && is_got_in(schedule, value, holding->touches.items[i + 1].turn)
                 : at >= 0 && is_changed(schedule, value, i))
      return at;
  }
  return INT32_MAX;
}

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

static int last_touch(const struct remat_schedule *schedule, int value)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  return holding->touches.items[holding->touches.n - 1].turn;
}

static void touch_add(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_holding *holding = &schedule->holdings[value];
  const struct remat_touch touch = {turn, 1};
  int at = touch_index(holding, turn);
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

/* Take one edge. Return true if it was the last one in @turn. */
static bool touch_remove(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_holding *holding = &schedule->holdings[value];
  int at = touch_index(holding, turn);
  if (--holding->touches.items[at].n_edges > 0)
    return false;
  if (at > 0 && at == holding->touches.n - 1)
    remat_waiting_add(schedule, value, holding->touches.items[at - 1].turn + 1, turn, -1);
  memmove(holding->touches.items + at, holding->touches.items + at + 1,
          (size_t)(--holding->touches.n - at) * sizeof(struct remat_touch));
  return true;
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

static void turn_queue(struct remat_schedule *schedule, int turn)
{
  if (schedule->is_queued[turn])
    return;
  schedule->is_queued[turn] = true;
  if (!LADE_PUSH(&schedule->queue, turn))
    schedule->status = -ENOMEM;
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
  const struct remat_change change = {.value = value, .from = from, .to = to, .is_held = is_held};
  if (!LADE_PUSH(&schedule->journal, change)) {
    schedule->status = -ENOMEM;
    return;
  }
  range_set(schedule, value, from, to, is_held);
  const struct remat_holding *holding = &schedule->holdings[value];
  if (from > 0 && !is_of_op(schedule->problem, value, from - 1))
    turn_queue(schedule, from - 1);
  turn_queue(schedule, to);
  for (int i = touch_index(holding, from); i < holding->touches.n && holding->touches.items[i].turn < to; i++)
    turn_queue(schedule, holding->touches.items[i].turn);
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

/* Let the values of a redo that is new in @turn touch it. */
static void op_touch(struct remat_schedule *schedule, int turn, int op)
{
  const struct remat_op *o = &schedule->problem->ops[op];
  for (int i = 0; i < o->n_in + o->n_out; i++)
    touch_add(schedule, schedule->problem->edges[o->first_in + i].value, turn);
}

/* Take the touches of a redo that has left @turn. */
static void op_untouch(struct remat_schedule *schedule, int turn, int op, bool is_trimmed)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_op *o = &problem->ops[op];
  for (int i = 0; i < o->n_in + o->n_out; i++) {
    int value = problem->edges[o->first_in + i].value;
    if (touch_remove(schedule, value, turn) && is_trimmed)
      held_trim(schedule, value, turn);
  }
}

/* Replace the touches of the redos @old, ascending, by those of the turn's redos, as one walk over both. */
static void touches_replace(struct remat_schedule *schedule, int turn, const int32_t *old, int n_old,
                            const int32_t *redos, int n_redos, bool is_trimmed)
{
  const struct remat_problem *problem = schedule->problem;
  for (int i = 0, k = 0; k < n_redos; k++) {
    while (i < n_old && remat_order(problem, old[i]) < remat_order(problem, redos[k]))
      i++;
    if (i == n_old || old[i] != redos[k])
      op_touch(schedule, turn, redos[k]);
  }
  for (int i = 0, k = 0; i < n_old; i++) {
    while (k < n_redos && remat_order(problem, redos[k]) < remat_order(problem, old[i]))
      k++;
    if (k == n_redos || redos[k] != old[i])
      op_untouch(schedule, turn, old[i], is_trimmed);
  }
}

static bool redos_assign(struct remat_turn *t, const int32_t *redos, int n)
{
  if (!lade_array_reserve((void **)&t->redos.items, &t->redos.capacity, n, sizeof(*redos)))
    return false;
  if (n)
    memcpy(t->redos.items, redos, (size_t)n * sizeof(*redos));
  t->redos.n = n;
  return true;
}

static void costs_set(struct remat_schedule *schedule, int turn, int64_t redo_ns, uint64_t extra_bytes)
{
  struct remat_turn *t = &schedule->turns[turn];
  schedule->state = ++schedule->n_states;
  schedule->redo_ns += redo_ns - t->redo_ns;
  if (extra_bytes != t->extra_bytes)
    bytes_add(schedule, turn, turn, (int64_t)(extra_bytes - t->extra_bytes));
  t->redo_ns = redo_ns;
  t->extra_bytes = extra_bytes;
}

/* Journal the turn's redos and costs as they are. */
static void turn_journal(struct remat_schedule *schedule, int turn)
{
  const struct remat_turn *t = &schedule->turns[turn];
  const struct remat_change change = {-1, turn, schedule->old_redos.n, false, t->redo_ns, t->extra_bytes};
  const int n = schedule->old_redos.n + t->redos.n + 1;
  if (!LADE_PUSH(&schedule->journal, change)) {
    schedule->status = -ENOMEM;
    return;
  }
  if (!lade_array_reserve((void **)&schedule->old_redos.items, &schedule->old_redos.capacity, n, sizeof(int32_t))) {
    schedule->journal.n--;
    schedule->status = -ENOMEM;
    return;
  }
  if (t->redos.n)
    memcpy(schedule->old_redos.items + change.to, t->redos.items, (size_t)t->redos.n * sizeof(int32_t));
  schedule->old_redos.n += t->redos.n;
}

/* Give @turn the redos in schedule->row. */
static void row_take(struct remat_schedule *schedule, int turn)
{
  struct remat_turn *t = &schedule->turns[turn];
  const int32_t *old = schedule->old_redos.items + schedule->journal.items[schedule->journal.n - 1].to;
  const int n_old = t->redos.n;
  if (!redos_assign(t, schedule->row.items, schedule->row.n)) {
    schedule->status = -ENOMEM;
    return;
  }
  schedule->n_redos += t->redos.n - n_old;
  touches_replace(schedule, turn, old, n_old, t->redos.items, t->redos.n, true);
}

/* Evaluate @turn again and take over what changed. */
static void turn_renew(struct remat_schedule *schedule, int turn)
{
  const struct remat_turn_result result = remat_turn_evaluate(schedule, turn);
  schedule->is_broken = schedule->is_broken || result.is_broken;
  if (schedule->is_broken || schedule->status)
    return;
  const struct remat_turn *t = &schedule->turns[turn];
  bool is_same = t->redos.n == schedule->row.n &&
                 (!t->redos.n || !memcmp(t->redos.items, schedule->row.items, (size_t)t->redos.n * sizeof(int32_t)));
  if (is_same && t->extra_bytes == result.extra_bytes)
    return;
  turn_journal(schedule, turn);
  if (schedule->status)
    return;
  costs_set(schedule, turn, result.redo_ns, result.extra_bytes);
  if (!is_same)
    row_take(schedule, turn);
  schedule->is_broken = schedule->redo_ns > schedule->redo_max_ns;
}

void remat_settle(struct remat_schedule *schedule)
{
  while (schedule->queue.n > 0) {
    int turn = schedule->queue.items[--schedule->queue.n];
    schedule->is_queued[turn] = false;
    if (!schedule->is_broken && !schedule->status)
      turn_renew(schedule, turn);
  }
}

void remat_turn_defer(struct remat_schedule *schedule, int turn)
{
  schedule->is_queued[turn] = true; /* changes then do not queue it */
}

void remat_turn_resume(struct remat_schedule *schedule, int turn)
{
  schedule->is_queued[turn] = false;
  turn_queue(schedule, turn);
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
  const struct remat_change change = {.value = value, .from = -1, .to = schedule->sources[value]};
  if (schedule->is_broken || schedule->status)
    return;
  if (!LADE_PUSH(&schedule->journal, change)) {
    schedule->status = -ENOMEM;
    return;
  }
  source_put(schedule, value, tier);
  for (int i = 1; i < holding->touches.n; i++)
    turn_queue(schedule, holding->touches.items[i].turn);
  remat_settle(schedule);
}

void remat_commit(struct remat_schedule *schedule)
{
  schedule->journal.n = 0;
  schedule->old_redos.n = 0;
}

/* Give @turn back the redos that were journalled, the last in old_redos. */
static void redos_restore(struct remat_schedule *schedule, const struct remat_change *change)
{
  struct remat_turn *t = &schedule->turns[change->from];
  const int32_t *old = schedule->old_redos.items + change->to;
  const int n_old = schedule->old_redos.n - change->to;
  costs_set(schedule, change->from, change->redo_ns, change->extra_bytes);
  touches_replace(schedule, change->from, t->redos.items, t->redos.n, old, n_old, false);
  schedule->n_redos += n_old - t->redos.n;
  if (!redos_assign(t, old, n_old)) /* there was room for them */
    schedule->status = -ENOMEM;
  schedule->old_redos.n = change->to;
}

int remat_mark(const struct remat_schedule *schedule)
{
  return schedule->journal.n;
}

void remat_rollback_to(struct remat_schedule *schedule, int mark)
{
  for (int i = schedule->journal.n - 1; i >= mark; i--) {
    const struct remat_change *change = &schedule->journal.items[i];
    if (change->value < 0)
      redos_restore(schedule, change);
    else if (change->from < 0)
      source_put(schedule, change->value, (enum lade_space)change->to);
    else
      range_set(schedule, change->value, change->from, change->to, !change->is_held);
  }
  schedule->journal.n = mark;
  schedule->is_broken = false;
}

void remat_rollback(struct remat_schedule *schedule)
{
  remat_rollback_to(schedule, 0);
}
