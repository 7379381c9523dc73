/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluate one turn from the boundaries at its ends: which ops run again in it, and how many bytes they need.
 *
 * The redos are a closure. It begins with the values that the turn's op reads, and with those held after the turn but
 * not before it. Each that is not held before the turn calls for its makers, and these for the values that they read.
 * Redos run in ascending order, so that an op that is called for by several runs once. A value with several makers is
 * made again by all that ran before this turn, so that each finds the version of its first run.
 *
 * O(uses of the ops that run).
 */
#include <errno.h>

#include "recompute/graph/schedule.h"

#define ROW_LONG 48 /* redos up to which insertion is faster */

/* Return @value in @turn, and find out where it is held when it is met for the first time. */
static struct remat_value_turn *value_see(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_value_turn *seen = &schedule->in_turn[value];
  if (seen->mark == schedule->mark)
    return seen;
  const struct remat_holding *holding = &schedule->holdings[value];
  *seen = (struct remat_value_turn){.mark = schedule->mark};
  const int i = remat_span_from(holding, turn);
  if (i < holding->spans.n) {
    const struct remat_span *span = &holding->spans.items[i];
    seen->is_held = span->from <= turn;
    seen->is_held_after = span->from <= turn + 1 && span->to > turn; /* spans do not touch each other */
  }
  if (turn == schedule->problem->n_ops)
    seen->is_held_after = schedule->problem->values[value].last_use == turn;
  seen->is_present = seen->is_held;
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

/* Call for what @op reads and lacks at @turn; for the first run of the turn's own op, and for a redo. */
static void inputs_call(struct remat_schedule *schedule, int op, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_op *o = &problem->ops[op];
  for (int i = 0; i < o->n_in; i++) {
    const struct remat_edge *edge = &problem->edges[o->first_in + i];
    bool is_old = problem->values[edge->value].n_makers > 1 && !remat_is_given(problem, edge->value) &&
                  edge->version < remat_makers_before(problem, edge->value, turn);
    if (is_old && schedule->sources[edge->value] != LADE_DEVICE)
      schedule->is_broken = true; /* the tier has the new version */
    if (is_old || !value_see(schedule, edge->value, turn)->is_held)
      makers_call(schedule, edge->value, turn);
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
    if (!remat_is_held(schedule, problem->lasting[i], turn))
      makers_call(schedule, problem->lasting[i], turn);
  }
}

/*
 * Sort the row in the order of a turn: short ones by insertion, long ones through a set. Ops are called for after
 * their readers, so the row is nearly in descending order, and insertion begins from its reverse.
 */
static void row_sort(struct remat_schedule *schedule)
{
  const struct remat_problem *problem = schedule->problem;
  int32_t *row = schedule->row.items;
  const int n = schedule->row.n;
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

/* Make schedule->row. Return false if an op of it cannot run again here, or if all redos would take too long. */
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
  row_sort(schedule);
  return !schedule->is_broken;
}

/* Note at which place of the turn each value is used last, and count the op's edges as work. */
static void places_note(struct remat_schedule *schedule, int op, int place, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_op *o = &problem->ops[op];
  for (int i = 0; i < o->n_in + o->n_out; i++) /* outputs follow inputs */
    value_see(schedule, problem->edges[o->first_in + i].value, turn)->last_place = place;
  schedule->work += o->n_in + o->n_out;
}

/* Run @op at @place of the turn: return the most bytes while it runs, and change the @live ones. */
static int64_t op_run(struct remat_schedule *schedule, int op, int place, int64_t *live)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_op *o = &problem->ops[op];
  for (int i = 0; i < o->n_out; i++) {
    const int value = problem->edges[o->first_out + i].value;
    struct remat_value_turn *seen = &schedule->in_turn[value];
    *live += seen->is_present ? 0 : (int64_t)problem->values[value].bytes;
    seen->is_present = true;
  }
  const int64_t max = *live + (int64_t)o->scratch_bytes;
  for (int i = 0; i < o->n_in + o->n_out; i++) {
    const int value = problem->edges[o->first_in + i].value;
    struct remat_value_turn *seen = &schedule->in_turn[value];
    if (seen->is_present && seen->last_place == place && !seen->is_held_after) {
      *live -= (int64_t)problem->values[value].bytes;
      seen->is_present = false;
    }
  }
  return max;
}

struct remat_turn_result remat_turn_evaluate(struct remat_schedule *schedule, int turn)
{
  struct remat_turn_result result = {0};
  if (!row_make(schedule, turn, &result.redo_ns) || schedule->status) {
    schedule->work += schedule->row.n;
    return (struct remat_turn_result){.is_broken = true};
  }
  const int n = schedule->row.n, has_op = turn < schedule->problem->n_ops;
  schedule->work += has_op ? 0 : 1 + schedule->problem->n_lasting;
  for (int place = 0; place < n; place++)
    places_note(schedule, schedule->row.items[place], place, turn);
  if (has_op)
    places_note(schedule, turn, n, turn);
  int64_t live = 0, max = 0;
  for (int place = 0; place < n + has_op; place++) {
    int64_t bytes = op_run(schedule, place < n ? schedule->row.items[place] : turn, place, &live);
    max = LADE_MAX(max, bytes);
  }
  result.extra_bytes = (uint64_t)max;
  return result;
}
