/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make, save, recount and free a schedule of recompute (schedule.h).
 *
 * A schedule is made from a list of choices, the spans of turns in which each value is held, and from the tiers on
 * which values wait. The redos of each turn and the bytes of all turns follow from them. Only choices and tiers are
 * saved, so a saved schedule takes little memory; loading makes all else again. The recount loads a second schedule
 * from the choices of the first, and compares the turns, holdings and sums of both.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recompute/graph/schedule.h"

#define HELD_OPS_MAX 2048 /* the bits of 4,000 values are then a MiB */
#define PRICED_ROUNDING 1e-6 /* relative error of many additions in double precision */

static int arrays_allocate(struct remat_schedule *schedule)
{
  const size_t n_turns = (size_t)schedule->problem->n_ops + 1, n_values = (size_t)schedule->problem->n_values + 1;
  schedule->turns = calloc(n_turns, sizeof(*schedule->turns));
  schedule->holdings = calloc(n_values, sizeof(*schedule->holdings));
  schedule->is_queued = calloc(n_turns, sizeof(*schedule->is_queued));
  schedule->is_stale = calloc(n_turns, sizeof(*schedule->is_stale));
  schedule->first_event = calloc(n_turns, sizeof(*schedule->first_event));
  schedule->in_row = calloc(n_turns + n_values, sizeof(*schedule->in_row));
  schedule->op_mark = calloc(n_turns + n_values, sizeof(*schedule->op_mark));
  schedule->sources = calloc(n_values, sizeof(*schedule->sources));
  schedule->in_turn = calloc(n_values, sizeof(*schedule->in_turn));
  schedule->n_held_words = schedule->problem->n_ops / 64 + 1; /* boundaries 0 .. n_ops */
  bool has_bits = schedule->problem->n_ops <= HELD_OPS_MAX;
  schedule->held = has_bits ? calloc(n_values, (size_t)schedule->n_held_words * sizeof(*schedule->held)) : NULL;
  bool is_whole = (schedule->held || !has_bits) && schedule->turns && schedule->holdings && schedule->is_queued &&
                  schedule->op_mark && schedule->in_turn && schedule->sources && schedule->is_stale &&
                  schedule->first_event && schedule->in_row;
  for (size_t t = 0; t < n_turns && is_whole; t++)
    schedule->first_event[t] = -1;
  int status = is_whole ? ordered_bitset_init(&schedule->row_set, (int32_t)(n_turns + n_values)) : -ENOMEM;
  for (int tier = 0; tier < LADE_N_SPACES && !status; tier++)
    status = turn_bytes_init(&schedule->waiting[tier], (int)n_turns);
  return status ? status : turn_bytes_init(&schedule->bytes, (int)n_turns);
}

static int span_append(struct remat_schedule *schedule, int value, struct remat_span span)
{
  if (!LADE_PUSH(&schedule->holdings[value].spans, span) ||
      (span.from > 0 && !LADE_PUSH(&schedule->turns[span.from - 1].starts, value)))
    return -ENOMEM;
  turn_bytes_add(&schedule->bytes, span.from, span.to, (int64_t)schedule->problem->values[value].bytes);
  remat_held_set(schedule, value, span.from, span.to, true);
  return 0;
}

/* Touch @turn, which is not before the touches so far. */
static int touch_append(struct remat_schedule *schedule, int value, int turn)
{
  struct remat_holding *holding = &schedule->holdings[value];
  const struct remat_touch touch = {turn, 1};
  if (holding->touches.n > 0 && holding->touches.items[holding->touches.n - 1].turn == turn) {
    holding->touches.items[holding->touches.n - 1].n_edges++;
    return 0;
  }
  return LADE_PUSH(&holding->touches, touch) ? 0 : -ENOMEM;
}

static int op_touch(struct remat_schedule *schedule, int op, int turn)
{
  const struct remat_op *o = &schedule->problem->ops[op];
  int status = 0;
  for (int i = 0; i < o->n_in + o->n_out && !status; i++)
    status = touch_append(schedule, schedule->problem->edges[o->first_in + i].value, turn);
  return status;
}

/* Evaluate @turn for the first time. Turns come in order, so touches are appended. */
static int turn_make(struct remat_schedule *schedule, int turn)
{
  struct remat_turn *t = &schedule->turns[turn];
  const struct remat_turn_result result = remat_turn_evaluate(schedule, turn);
  int status = schedule->status;
  schedule->is_broken = schedule->is_broken || result.is_broken;
  for (int i = 0; i < schedule->row.n && !status && !result.is_broken; i++) {
    status = LADE_PUSH(&t->redos, schedule->row.items[i]) ? 0 : -ENOMEM;
    t->n_versions += schedule->problem->ops[schedule->row.items[i]].has_versions;
    if (!status)
      status = op_touch(schedule, schedule->row.items[i], turn);
  }
  if (!status && turn < schedule->problem->n_ops)
    status = op_touch(schedule, turn, turn);
  for (int i = 0; i < schedule->problem->n_lasting && turn == schedule->problem->n_ops && !status; i++)
    status = touch_append(schedule, schedule->problem->lasting[i], turn);
  turn_bytes_add(&schedule->bytes, turn, turn, (int64_t)result.extra_bytes);
  t->redo_ns = result.redo_ns;
  t->extra_bytes = result.extra_bytes;
  schedule->redo_ns += result.redo_ns;
  schedule->n_redos += t->redos.n;
  return status;
}

struct remat_span remat_span_whole(const struct remat_problem *problem, int value)
{
  const struct remat_value *v = &problem->values[value];
  if (v->birth >= 0 || v->home == LADE_DEVICE)
    return (struct remat_span){v->birth + 1, v->last_use};
  const int first_use = problem->graph->storages.items[v->storage].first_use;
  return (struct remat_span){problem->graph->uses[first_use].op + 1, v->last_use};
}

static int spans_make(struct remat_schedule *schedule, const struct remat_choice *choices, int n_choices)
{
  int status = 0;
  for (int i = 0; i < n_choices && choices && !status; i++)
    status = span_append(schedule, choices[i].value, choices[i].span);
  for (int v = 0; v < schedule->problem->n_values && !choices && !status; v++) {
    const struct remat_span span = remat_span_whole(schedule->problem, v);
    if (span.from <= span.to)
      status = span_append(schedule, v, span);
  }
  return status;
}

/* Find the tier of each value, which @waiting has where it is not the usual one; let given values touch turn -1. */
static int sources_make(struct remat_schedule *schedule, const struct remat_waiting *waiting, int n_waiting)
{
  const struct remat_problem *problem = schedule->problem;
  int status = 0;
  for (int v = 0; v < problem->n_values && !status; v++) {
    schedule->sources[v] = problem->values[v].source;
    if (remat_is_given(problem, v))
      status = touch_append(schedule, v, -1);
  }
  for (int i = 0; i < n_waiting; i++)
    schedule->sources[waiting[i].value] = (uint8_t)waiting[i].tier;
  for (int v = 0; v < problem->n_values; v++) {
    schedule->in_turn[v].bytes = (int64_t)problem->values[v].bytes;
    remat_maker_find(schedule, v);
  }
  return status;
}

/* Count the bytes that wait on tiers. pre: all touches are made. */
static void waiting_make(struct remat_schedule *schedule)
{
  for (int v = 0; v < schedule->problem->n_values; v++) {
    const struct remat_holding *holding = &schedule->holdings[v];
    if (holding->touches.n)
      remat_waiting_add(schedule, v, 0, holding->touches.items[holding->touches.n - 1].turn, 1);
  }
}

/* The decisions of which a schedule is made. */
struct schedule_parts {
  const struct remat_choice *choices; /* NULL: every value is held */
  const struct remat_waiting *waiting;
  int n_choices, n_waiting;
  int64_t redo_max_ns;
};

static int schedule_make(struct remat_schedule *schedule, const struct remat_problem *problem, uint64_t limit_bytes,
                         const struct schedule_parts *parts)
{
  *schedule = (struct remat_schedule){.problem = problem, .redo_max_ns = parts->redo_max_ns};
  int status = arrays_allocate(schedule);
  if (!status)
    status = sources_make(schedule, parts->waiting, parts->n_waiting);
  if (!status)
    status = spans_make(schedule, parts->choices, parts->n_choices);
  bool is_limited = parts->redo_max_ns < INT64_MAX;
  for (int t = 0; t <= problem->n_ops && !status && !(is_limited && schedule->is_broken); t++)
    status = turn_make(schedule, t);
  if (status) {
    remat_schedule_finish(schedule);
    return status;
  }
  schedule->redo_max_ns = INT64_MAX;
  waiting_make(schedule);
  turn_bytes_limit(&schedule->bytes, (int64_t)LADE_MIN(limit_bytes, (uint64_t)INT64_MAX / 2));
  for (int tier = 0; tier < LADE_N_SPACES; tier++)
    remat_waiting_limit(schedule, (enum lade_space)tier, UINT64_MAX);
  return 0;
}

int remat_schedule_init(struct remat_schedule *schedule, const struct remat_problem *problem, uint64_t limit_bytes,
                        const struct remat_choice *choices, int n_choices)
{
  const struct schedule_parts parts = {.choices = choices, .n_choices = n_choices, .redo_max_ns = INT64_MAX};
  return schedule_make(schedule, problem, limit_bytes, &parts);
}

int remat_schedule_load(struct remat_schedule *schedule, const struct remat_problem *problem, uint64_t limit_bytes,
                        const struct remat_choices *choices)
{
  return remat_schedule_load_within(schedule, problem, limit_bytes, choices, INT64_MAX);
}

int remat_schedule_load_within(struct remat_schedule *schedule, const struct remat_problem *problem,
                               uint64_t limit_bytes, const struct remat_choices *choices, int64_t redo_max_ns)
{
  const struct schedule_parts parts = {.choices = remat_choices_get(choices), .n_choices = choices->list.n,
                                       .waiting = choices->waiting.items,
                                       .n_waiting = choices->is_saved ? choices->waiting.n : 0,
                                       .redo_max_ns = redo_max_ns};
  return schedule_make(schedule, problem, limit_bytes, &parts);
}

int remat_choices_peak(const struct remat_problem *problem, const struct remat_choices *choices, uint64_t *ret_bytes)
{
  struct remat_schedule schedule;
  int status = remat_schedule_load(&schedule, problem, UINT64_MAX, choices);
  if (status)
    return status;
  int64_t bytes;
  turn_bytes_peak(&schedule.bytes, &bytes);
  *ret_bytes = (uint64_t)bytes + problem->fixed_bytes;
  remat_schedule_finish(&schedule);
  return 0;
}

/* Return the bytes of all turns at @prices. */
static double priced_sum(const struct remat_schedule *schedule, const double *prices)
{
  double ns = 0;
  for (int t = 0; t <= schedule->problem->n_ops && prices; t++)
    ns += (prices[t + 1] - prices[t]) * (double)turn_bytes_get(&schedule->bytes, t);
  return ns;
}

void remat_prices_set(struct remat_schedule *schedule, const double *prices)
{
  schedule->prices = prices;
  schedule->priced_ns = priced_sum(schedule, prices);
}

void remat_choices_free(struct remat_choices *choices)
{
  LADE_ARRAY_FREE(&choices->list);
  LADE_ARRAY_FREE(&choices->waiting);
  *choices = (struct remat_choices){0};
}

void remat_schedule_finish(struct remat_schedule *schedule)
{
  for (int t = 0; schedule->turns && t <= schedule->problem->n_ops; t++) {
    LADE_ARRAY_FREE(&schedule->turns[t].redos);
    LADE_ARRAY_FREE(&schedule->turns[t].starts);
  }
  for (int v = 0; schedule->holdings && v < schedule->problem->n_values; v++) {
    LADE_ARRAY_FREE(&schedule->holdings[v].spans);
    LADE_ARRAY_FREE(&schedule->holdings[v].touches);
  }
  free(schedule->turns);
  free(schedule->holdings);
  free(schedule->held);
  turn_bytes_finish(&schedule->bytes);
  for (int tier = 0; tier < LADE_N_SPACES; tier++)
    turn_bytes_finish(&schedule->waiting[tier]);
  free(schedule->is_queued);
  free(schedule->is_stale);
  free(schedule->first_event);
  free(schedule->in_row);
  free(schedule->op_mark);
  free(schedule->in_turn);
  free(schedule->sources);
  ordered_bitset_finish(&schedule->row_set);
  LADE_ARRAY_FREE(&schedule->journal);
  LADE_ARRAY_FREE(&schedule->row_changes);
  LADE_ARRAY_FREE(&schedule->queue);
  LADE_ARRAY_FREE(&schedule->row);
  LADE_ARRAY_FREE(&schedule->events);
  LADE_ARRAY_FREE(&schedule->stale);
  LADE_ARRAY_FREE(&schedule->changed);
  LADE_ARRAY_FREE(&schedule->calls);
  LADE_ARRAY_FREE(&schedule->untouched);
  *schedule = (struct remat_schedule){0};
}

const struct remat_choice *remat_choices_get(const struct remat_choices *choices)
{
  static const struct remat_choice none;
  if (!choices->is_saved)
    return NULL;
  return choices->list.items ? choices->list.items : &none;
}

int remat_schedule_save(const struct remat_schedule *schedule, struct remat_choices *choices)
{
  choices->list.n = choices->waiting.n = 0;
  choices->is_saved = true;
  for (int v = 0; v < schedule->problem->n_values; v++) {
    const struct remat_holding *holding = &schedule->holdings[v];
    const struct remat_waiting waiting = {v, schedule->sources[v]};
    if (waiting.tier != schedule->problem->values[v].source && !LADE_PUSH(&choices->waiting, waiting))
      return -ENOMEM;
    for (int i = 0; i < holding->spans.n; i++) {
      const struct remat_choice choice = {v, holding->spans.items[i]};
      if (!LADE_PUSH(&choices->list, choice))
        return -ENOMEM;
    }
  }
  return 0;
}

/* ---- validity ---- */

static bool turns_are_equal(const struct remat_turn *a, const struct remat_turn *b)
{
  return a->redo_ns == b->redo_ns && a->extra_bytes == b->extra_bytes && a->redos.n == b->redos.n &&
         a->starts.n == b->starts.n && a->n_versions == b->n_versions &&
         (!a->redos.n || !memcmp(a->redos.items, b->redos.items, (size_t)a->redos.n * sizeof(int32_t)));
}

static bool holdings_are_equal(const struct remat_holding *a, const struct remat_holding *b)
{
  const size_t bytes = (size_t)a->touches.n * sizeof(*a->touches.items);
  return a->touches.n == b->touches.n && a->spans.n == b->spans.n &&
         (!bytes || !memcmp(a->touches.items, b->touches.items, bytes));
}

/* True if priced_ns equals a new sum over all turns, within the rounding of many additions. */
static bool is_priced_right(const struct remat_schedule *schedule)
{
  const double sum_ns = priced_sum(schedule, schedule->prices);
  return fabs(schedule->priced_ns - sum_ns) <= PRICED_ROUNDING * fmax(sum_ns, 1);
}

bool remat_schedule_is_valid(const struct remat_schedule *schedule)
{
  const struct remat_problem *problem = schedule->problem;
  struct remat_choices choices = {0};
  struct remat_schedule fresh;
  bool is_valid = true; /* also if no memory is left for the recount */
  if (!is_priced_right(schedule))
    return false;
  if (!remat_schedule_save(schedule, &choices) &&
      !remat_schedule_load(&fresh, problem, (uint64_t)schedule->bytes.limit_bytes, &choices)) {
    is_valid = fresh.redo_ns == schedule->redo_ns && fresh.n_redos == schedule->n_redos && !fresh.is_broken;
    for (int t = 0; t <= problem->n_ops && is_valid; t++)
      is_valid = turn_bytes_get(&fresh.bytes, t) == turn_bytes_get(&schedule->bytes, t) &&
                 turns_are_equal(&fresh.turns[t], &schedule->turns[t]);
    is_valid = is_valid && fresh.n_waits == schedule->n_waits;
    for (int t = 0; t <= problem->n_ops && is_valid; t++)
      is_valid = turn_bytes_get(&fresh.waiting[LADE_HOST], t) == turn_bytes_get(&schedule->waiting[LADE_HOST], t) &&
                 turn_bytes_get(&fresh.waiting[LADE_STORE], t) == turn_bytes_get(&schedule->waiting[LADE_STORE], t);
    for (int v = 0; v < problem->n_values && is_valid; v++)
      is_valid = holdings_are_equal(&fresh.holdings[v], &schedule->holdings[v]);
    const size_t held_bytes = (size_t)problem->n_values * (size_t)schedule->n_held_words * sizeof(*schedule->held);
    is_valid = is_valid && (!schedule->held || !memcmp(fresh.held, schedule->held, held_bytes));
    remat_schedule_finish(&fresh);
  }
  remat_choices_free(&choices);
  return is_valid;
}
