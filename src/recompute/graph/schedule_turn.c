/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluate one turn from the boundaries at its ends: which ops run again in it, and how many bytes they need.
 *
 * The redos are a closure. It begins with the values that the turn's op reads, and with those held after the turn but
 * not before it. Each that is not held before the turn calls for its makers, and these for the values that they read.
 * Redos run in ascending order, so that an op that is called for by several runs once. A value with several makers is
 * made again by all that ran before this turn, so that each finds the version of its first run.
 *
 * Bytes are counted from the end of the turn back to its beginning: the first place at which a value is met is that of
 * its last use. So one pass over the row finds live ranges and the peak.
 *
 * O(uses of the ops that run).
 */
#include <errno.h>

#include "recompute/graph/schedule.h"

#define ROW_LONG 48 /* redos up to which insertion is faster */

/* Find out where @value, which is met in @turn for the first time, is held. */
static void value_meet(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_value_turn *seen = &schedule->in_turn[value];
  seen->mark = schedule->mark;
  seen->is_used = false;
  seen->is_held = remat_is_held(schedule, value, turn);
  seen->is_held_after = turn < schedule->problem->n_ops ? remat_is_held(schedule, value, turn + 1)
                                                        : schedule->problem->values[value].last_use == turn;
}

/* Return @value in @turn. */
static inline struct remat_value_turn *value_see(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_value_turn *seen = &schedule->in_turn[value];
  if (seen->mark != schedule->mark)
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
  if (is_old || !value_see(schedule, edge->value, turn)->is_held)
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
    else if (!value_see(schedule, edges[i].value, turn)->is_held)
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
    if (!value_see(schedule, problem->lasting[i], turn)->is_held)
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
  row_sort(schedule);
  return !schedule->is_broken;
}

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
    live += seen->is_used || seen->is_held_after ? 0 : seen->bytes; /* its last use */
    seen->is_used = true;
  }
  *bytes = live;
  for (int i = o->n_in; i < o->n_in + o->n_out; i++) {
    const struct remat_value_turn *seen = &schedule->in_turn[edges[i].value];
    if (!seen->is_held && is_first_maker(schedule, edges[i].value, op))
      *bytes -= seen->bytes;
  }
  schedule->work += o->n_in + o->n_out;
  return live + (int64_t)o->scratch_bytes;
}

struct remat_turn_result remat_turn_evaluate(struct remat_schedule *schedule, int turn)
{
  struct remat_turn_result result = {0};
  if (!row_make(schedule, turn, &result.redo_ns) || schedule->status) {
    schedule->work += schedule->row.n;
    return (struct remat_turn_result){.is_broken = true};
  }
  int64_t bytes = 0, max = INT64_MIN;
  if (turn < schedule->problem->n_ops)
    max = op_pass(schedule, turn, turn, &bytes);
  else
    schedule->work += 1 + schedule->problem->n_lasting;
  for (int place = schedule->row.n - 1; place >= 0; place--) {
    const int64_t running = op_pass(schedule, schedule->row.items[place], turn, &bytes);
    max = LADE_MAX(max, running);
  }
  result.extra_bytes = (uint64_t)LADE_MAX(max - bytes, 0);
  return result;
}
