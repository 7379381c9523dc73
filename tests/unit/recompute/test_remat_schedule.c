/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules of recompute under changes. After any sequence of holds and releases a schedule equals one that is
 * evaluated from its decisions alone. A rollback restores the schedule before the changes. The list of a schedule
 * replays with the bytes and the time that the schedule states. A recombination of two schedules is a schedule, too.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "recompute/graph/descent.h"
#include "recompute/graph/emit.h"
#include "recompute/graph/search/search_state.h"
#include "tests/support/heap/allocations.h"
#include "tests/unit/recompute/remat_fixture.h"

enum { CHANGES = 120 };

/* ---- totals ---- */

/* The figures and the decisions of a schedule. */
struct schedule_copy {
  struct remat_choices choices;
  int64_t redo_ns;
  double over_bytes;
  int n_redos;
};

static struct schedule_copy copy_make(const struct remat_schedule *schedule)
{
  struct schedule_copy copy = {.redo_ns = schedule->redo_ns, .over_bytes = remat_over(schedule),
                               .n_redos = schedule->n_redos};
  assert_int_equal(remat_schedule_save(schedule, &copy.choices), 0);
  return copy;
}

static void copy_finish(struct schedule_copy *copy)
{
  remat_choices_free(&copy->choices);
}

static void assert_as_copied(const struct remat_schedule *schedule, const struct schedule_copy *copy)
{
  struct schedule_copy now = copy_make(schedule);
  assert_int_equal(now.redo_ns, copy->redo_ns);
  assert_int_equal(now.n_redos, copy->n_redos);
  assert_true(fabs(now.over_bytes - copy->over_bytes) < 1e-3);
  assert_int_equal(now.choices.list.n, copy->choices.list.n);
  if (now.choices.list.n)
    assert_memory_equal(now.choices.list.items, copy->choices.list.items,
                        (size_t)now.choices.list.n * sizeof(*now.choices.list.items));
  copy_finish(&now);
}

/* Check that the bytes above the limit are those of the turns. */
static void assert_over_is_exact(const struct remat_schedule *schedule)
{
  double over_bytes = 0;
  for (int t = 0; t <= schedule->problem->n_ops; t++) {
    const int64_t bytes = turn_bytes_get(&schedule->bytes, t);
    over_bytes += (double)LADE_MAX(bytes - schedule->bytes.limit_bytes, 0);
  }
  assert_true(fabs(over_bytes - remat_over(schedule)) < 1e-3);
}

/* Check that the priced bytes are those of the turns, at the prices of the schedule. */
static void assert_prices_are_counted(const struct remat_schedule *schedule)
{
  double priced_ns = 0;
  for (int t = 0; t <= schedule->problem->n_ops; t++)
    priced_ns += (schedule->prices[t + 1] - schedule->prices[t]) * (double)turn_bytes_get(&schedule->bytes, t);
  assert_true(fabs(priced_ns - schedule->priced_ns) <= 1e-9 * fmax(priced_ns, 1));
}

/* ---- changes ---- */

/* Let a drawn made value wait on a drawn tier, or be made again. */
static void source_change(struct bench_schedule *bench)
{
  const int value = random_draw_below(&bench->draw, bench->problem.n_values);
  if (!remat_is_given(&bench->problem, value))
    remat_source_set(&bench->schedule, value, (enum lade_space)random_draw_below(&bench->draw, LADE_N_SPACES));
}

/* Hold or release @value. By chance, the bytes of turns do not follow before the next change that settles. */
static void value_change(struct bench_schedule *bench, int value, struct remat_span span, bool is_held)
{
  if (is_held)
    remat_hold_unsettled(&bench->schedule, value, span.from, span.to);
  else
    remat_release_unsettled(&bench->schedule, value, span.from, span.to);
  if (bench->may_leave_bytes && random_draw_below(&bench->draw, 2))
    remat_rows_settle(&bench->schedule);
  else
    remat_settle(&bench->schedule);
}

/* Release a drawn value around a boundary at which it is held, or hold it there. False: no value can be drawn. */
static bool change_make(struct bench_schedule *bench)
{
  if (!bench->problem.n_values)
    return false;
  const int value = random_draw_below(&bench->draw, bench->problem.n_values);
  const struct remat_value *v = &bench->problem.values[value];
  const int first = remat_first_boundary(&bench->problem, value);
  if (first > v->last_use)
    return false;
  const int boundary = first + random_draw_below(&bench->draw, v->last_use - first + 1);
  const int after = remat_touch_from(&bench->schedule, value, boundary);
  int from = remat_touch_before(&bench->schedule, value, boundary) + 1;
  if (after > v->last_use)
    return false;
  if (remat_is_held(&bench->schedule, value, boundary)) {
    while (!remat_is_held(&bench->schedule, value, from))
      from++;
    value_change(bench, value, (struct remat_span){from, after}, false);
  } else {
    from += random_draw_below(&bench->draw, boundary - from + 1);
    int to = from;
    while (to < after && !remat_is_held(&bench->schedule, value, to + 1))
      to++;
    if (remat_is_held(&bench->schedule, value, from))
      return false;
    value_change(bench, value, (struct remat_span){from, to}, true);
  }
  return true;
}

/* Let a drawn turn up to the first use of the row of @turn make a part of the row again. */
static void row_shift_change(struct bench_schedule *bench, int turn)
{
  const struct remat_span makers = {random_draw_below(&bench->draw, turn + 1) - 1, bench->problem.n_ops};
  const int use = remat_row_use(&bench->schedule, turn, makers);
  const int at = random_draw_below(&bench->draw, (use == INT32_MAX ? turn : use) + 1);
  if (at != turn)
    remat_row_shift(&bench->schedule, turn, at, makers);
}

/* Hold the values that the redos of a drawn turn make, each until its next redo, or let another turn make them. */
static void row_change(struct bench_schedule *bench)
{
  const int turn = random_draw_below(&bench->draw, bench->problem.n_ops + 1);
  if (random_draw_below(&bench->draw, 2)) {
    row_shift_change(bench, turn);
    return;
  }
  remat_row_hold(&bench->schedule, turn, random_draw_below(&bench->draw, 2) ? REMAT_DRAW_NONE : bench->draw.state);
}

/* Release a drawn value around a boundary, and hold its producer's inputs. */
static void replace_change(struct bench_schedule *bench)
{
  const int value = random_draw_below(&bench->draw, bench->problem.n_values);
  const struct remat_value *v = &bench->problem.values[value];
  const int first = remat_first_boundary(&bench->problem, value);
  if (first > v->last_use)
    return;
  const int boundary = first + random_draw_below(&bench->draw, v->last_use - first + 1);
  const uint64_t draw = random_draw_below(&bench->draw, 2) ? REMAT_DRAW_NONE : bench->draw.state;
  bool is_held = remat_is_held(&bench->schedule, value, boundary);
  assert_true(is_held >= remat_replace_around(&bench->schedule, value, boundary, draw));
}

/* Make some changes, and commit them or roll them back. */
static void changes_make(struct bench_schedule *bench)
{
  struct remat_schedule *schedule = &bench->schedule;
  struct schedule_copy before = copy_make(schedule);
  bench->may_leave_bytes = true;
  for (int n = 1 + random_draw_below(&bench->draw, 4); n > 0 && !schedule->is_broken; n--) {
    if (bench->problem.n_values && bench->has_sources && random_draw_below(&bench->draw, 4) == 0)
      source_change(bench);
    else if (random_draw_below(&bench->draw, 4) == 0)
      row_change(bench);
    else if (bench->problem.n_values && random_draw_below(&bench->draw, 4) == 0)
      replace_change(bench);
    else
      change_make(bench);
  }
  bench->may_leave_bytes = false;
  remat_settle(schedule);
  assert_int_equal(schedule->status, 0);
  if (!schedule->is_broken)
    assert_true(remat_schedule_is_valid(schedule));
  if (schedule->is_broken || random_draw_below(&bench->draw, 3) == 0) {
    remat_rollback(schedule);
    assert_false(schedule->is_broken);
    assert_true(remat_schedule_is_valid(schedule));
    assert_as_copied(schedule, &before);
  } else {
    remat_commit(schedule);
  }
  assert_over_is_exact(schedule);
  copy_finish(&before);
}

static void any_changes_leave_the_schedule_of_a_new_evaluation(void **state)
{
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    assert_true(remat_schedule_is_valid(&bench.schedule));
    for (int i = 0; i < CHANGES; i++)
      changes_make(&bench);
    bench_close(&bench);
  }
}

static void a_change_is_broken_if_its_redos_take_longer_than_they_may(void **state)
{
  int n_broken = 0, n_made = 0;
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    struct remat_schedule *schedule = &bench.schedule;
    for (int i = 0; i < CHANGES; i++) {
      struct schedule_copy before = copy_make(schedule);
      schedule->redo_max_ns = schedule->redo_ns + bench.problem.base_ns / 50;
      const bool is_changed = change_make(&bench);
      n_broken += schedule->is_broken;
      n_made += is_changed && !schedule->is_broken;
      assert_true(schedule->is_broken || schedule->redo_ns <= schedule->redo_max_ns);
      schedule->redo_max_ns = INT64_MAX;
      if (schedule->is_broken) {
        remat_rollback(schedule);
        assert_as_copied(schedule, &before);
      }
      assert_true(remat_schedule_is_valid(schedule));
      remat_commit(schedule);
      copy_finish(&before);
    }
    bench_close(&bench);
  }
  assert_true(n_broken > 100 && n_made > 100);
}

static void priced_bytes_follow_changes_and_rollbacks(void **state)
{
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    double *prices = calloc((size_t)bench.problem.n_ops + 2, sizeof(*prices));
    assert_non_null(prices);
    for (int t = 0; t <= bench.problem.n_ops; t++)
      prices[t + 1] = prices[t] + random_draw_below(&bench.draw, 3) * 0.37;
    remat_prices_set(&bench.schedule, prices);
    for (int i = 0; i < CHANGES / 2; i++) {
      changes_make(&bench);
      assert_prices_are_counted(&bench.schedule);
    }
    bench_close(&bench);
    free(prices);
  }
}

/* ---- lists ---- */

/* Return the bytes of values that are on the device as the step begins. */
static uint64_t bytes_at_the_beginning(const struct remat_problem *problem)
{
  uint64_t bytes = 0;
  for (int v = 0; v < problem->n_values; v++)
    bytes += remat_first_boundary(problem, v) == 0 ? problem->values[v].bytes : 0;
  return bytes;
}

/* Check that no more bytes wait at once than the schedule counts, beside those that live on a tier. */
static void assert_waiting_is_counted(struct bench_schedule *bench, const struct lade_graph_totals *totals)
{
  const uint64_t replayed[LADE_N_SPACES] = {[LADE_HOST] = totals->host_peak_bytes,
                                            [LADE_STORE] = totals->store_peak_bytes};
  for (int tier = LADE_HOST; tier <= LADE_STORE; tier++) {
    int64_t max;
    uint64_t residents = 0;
    turn_bytes_peak(&bench->schedule.waiting[tier], &max);
    for (int s = 0; s < bench->graph->storages.n; s++) {
      const struct graph_storage *storage = &bench->graph->storages.items[s];
      residents += storage->is_given && storage->tier == tier ? storage->bytes : 0;
    }
    assert_true(replayed[tier] <= (uint64_t)max + residents);
  }
}

static int gets_count(const struct remat_list *list)
{
  int n = 0;
  for (int i = 0; i < list->instrs.n; i++)
    n += list->instrs.items[i].kind == LADE_GRAPH_INSTR_GET;
  return n;
}

static void assert_list_replays(struct bench_schedule *bench)
{
  struct remat_list list = {0};
  struct lade_error error = {0};
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  int64_t peak_bytes;
  assert_int_equal(remat_emit(&bench->schedule, &list), 0);
  int status = lade_graph_replay(bench->graph, list.instrs.items, list.instrs.n, &error, &totals);
  if (status)
    print_message("%s\n", error.text);
  assert_int_equal(status, 0);
  turn_bytes_peak(&bench->schedule.bytes, &peak_bytes);
  const uint64_t beginning_bytes = bytes_at_the_beginning(&bench->problem);
  assert_int_equal(totals.peak_bytes,
                   LADE_MAX((uint64_t)peak_bytes, beginning_bytes) + bench->problem.fixed_bytes);
  assert_waiting_is_counted(bench, &totals);
  assert_int_equal(totals.compute_ns, bench->problem.base_ns + bench->schedule.redo_ns);
  assert_int_equal(totals.n_redone + gets_count(&list), bench->schedule.n_redos);
  LADE_ARRAY_FREE(&list.instrs);
}

static void every_schedule_replays_with_its_bytes_and_time(void **state)
{
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    assert_list_replays(&bench);
    for (int i = 0; i < CHANGES; i++) {
      changes_make(&bench);
      assert_list_replays(&bench);
    }
    bench_close(&bench);
  }
}

/* ---- bytes of turns ---- */

static void assert_turns_are_plain(const struct turn_bytes *turns, const int64_t *plain)
{
  int64_t max = plain[0], peak_bytes;
  bool is_over = false;
  for (int t = 0; t < turns->n; t++) {
    assert_int_equal(turn_bytes_get(turns, t), plain[t]);
    max = LADE_MAX(max, plain[t]);
    is_over = is_over || plain[t] > turns->limit_bytes;
  }
  const int at = turn_bytes_peak(turns, &peak_bytes);
  assert_int_equal(peak_bytes, max);
  assert_int_equal(plain[at], max);
  assert_int_equal(turn_bytes_over(turns) > 0, is_over);
}

static void bytes_of_turns_are_those_of_a_plain_array(void **state)
{
  static const int sizes[] = {1, 2, 1023, 1024, 1025, 3000};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    const int n = sizes[i];
    struct random_draw draw = {(uint64_t)n};
    struct turn_bytes turns;
    int64_t *plain = calloc((size_t)n, sizeof(*plain));
    assert_non_null(plain);
    assert_int_equal(turn_bytes_init(&turns, n), 0);
    for (int change = 0; change < 300; change++) {
      const int from = random_draw_below(&draw, n), to = from + random_draw_below(&draw, n - from);
      const int64_t bytes = random_draw_below(&draw, 2000) - 900;
      turn_bytes_add(&turns, from, to, bytes);
      for (int t = from; t <= to; t++)
        plain[t] += bytes;
      if (change % 7 == 0)
        turn_bytes_limit(&turns, random_draw_below(&draw, 9000));
      assert_turns_are_plain(&turns, plain);
    }
    turn_bytes_finish(&turns);
    free(plain);
  }
}

/* ---- copies and limits ---- */

static void a_saved_schedule_is_made_again(void **state)
{
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    for (int i = 0; i < CHANGES / 4; i++)
      changes_make(&bench);
    struct schedule_copy copy = copy_make(&bench.schedule);
    const uint64_t limit_bytes = (uint64_t)bench.schedule.bytes.limit_bytes;
    remat_schedule_finish(&bench.schedule);
    assert_int_equal(remat_schedule_load(&bench.schedule, &bench.problem, limit_bytes, &copy.choices), 0);
    assert_false(bench.schedule.is_broken);
    assert_as_copied(&bench.schedule, &copy);
    const int64_t redo_ns = bench.schedule.redo_ns;
    for (int less_ns = 0; less_ns <= (redo_ns > 0); less_ns++) {
      remat_schedule_finish(&bench.schedule);
      assert_int_equal(remat_schedule_load_within(&bench.schedule, &bench.problem, limit_bytes, &copy.choices,
                                                  redo_ns - less_ns), 0);
      assert_int_equal(bench.schedule.is_broken, less_ns);
    }
    copy_finish(&copy);
    bench_close(&bench);
  }
}

static void allocations_that_fail_are_rolled_back(void **state)
{
  struct bench_schedule bench;
  bench_open(&bench, 17);
  for (int n = 0; n < 400; n++) {
    struct schedule_copy before = copy_make(&bench.schedule);
    allocations_left = n % 7;
    change_make(&bench);
    allocations_left = -1;
    if (bench.schedule.status) {
      assert_int_equal(bench.schedule.status, -ENOMEM); /* a search gives up here */
      remat_rollback(&bench.schedule);
      copy_finish(&before);
      bench_close(&bench);
      bench_open(&bench, 17 + (uint64_t)n);
      continue;
    }
    remat_rollback(&bench.schedule);
    assert_as_copied(&bench.schedule, &before);
    copy_finish(&before);
  }
  bench_close(&bench);
}

/* A later change may undo a part of an earlier one before memory is out. A rollback then restores nothing. */
static void a_rollback_without_memory_undoes_no_change_twice(void **state)
{
  int n_failed = 0;
  for (uint64_t seed = 0; seed < GRAPHS / 4; seed++) {
    for (int n = 0; n < 60; n++) {
      struct bench_schedule bench;
      bench_open(&bench, seed);
      allocations_left = n;
      for (int i = 0; i < 20 && !bench.schedule.status && !bench.schedule.is_broken && bench.problem.n_values; i++) {
        change_make(&bench);
        row_change(&bench);
      }
      allocations_left = -1;
      remat_rollback(&bench.schedule);
      n_failed += bench.schedule.status != 0;
      assert_true(bench.schedule.status || remat_schedule_is_valid(&bench.schedule));
      bench_close(&bench);
    }
  }
  assert_true(n_failed > GRAPHS);
}

/* ---- recombination ---- */

/* Two schedules of a drawn graph without other tiers, and a search whose schedule is the first one. */
struct bench_parents {
  struct bench_schedule bench; /* the second one */
  struct remat_search_params params;
  struct remat_choices best;
  struct remat_state search;
};

static void parent_change(struct bench_schedule *bench)
{
  for (int i = 0; i < CHANGES; i++) {
    change_make(bench);
    if (bench->schedule.is_broken)
      remat_rollback(&bench->schedule);
    remat_commit(&bench->schedule);
  }
}

static bool parents_open(struct bench_parents *parents, uint64_t seed)
{
  struct remat_choices first = {0};
  if (seed % 2 || seed % 3 == 1 || seed % 7 == 5) /* values wait on tiers */
    return false;
  *parents = (struct bench_parents){0};
  bench_open(&parents->bench, seed);
  parent_change(&parents->bench);
  assert_int_equal(remat_schedule_save(&parents->bench.schedule, &first), 0);
  parent_change(&parents->bench);
  parents->params = (struct remat_search_params){.problem = &parents->bench.problem,
                                                 .limit_bytes = (uint64_t)parents->bench.schedule.bytes.limit_bytes,
                                                 .deadline_ns = INT64_MAX, .fit_deadline_ns = INT64_MAX};
  parents->search = (struct remat_state){.params = &parents->params, .problem = &parents->bench.problem,
                                         .best = &parents->best, .best_ns = INT64_MAX, .best_over = INFINITY,
                                         .price = 1, .random = seed, .temperature = INFINITY};
  assert_int_equal(remat_search_restart(&parents->search, &first), 0);
  remat_choices_free(&first);
  return true;
}

static void parents_close(struct bench_parents *parents)
{
  remat_schedule_finish(&parents->search.schedule);
  remat_choices_free(&parents->best);
  bench_close(&parents->bench);
}

static void a_recombined_schedule_is_whole_and_takes_the_place_of_a_better_one_by_temperature_alone(void **state)
{
  int n_changed = 0, n_kept = 0;
  for (uint64_t seed = 0; seed < 2 * GRAPHS; seed++) {
    struct bench_parents parents;
    if (!parents_open(&parents, seed))
      continue;
    struct remat_state *search = &parents.search;
    for (int i = 0; i < 8; i++) {
      search->temperature = i & 1 ? INFINITY : 1e-300;
      const double before = remat_energy_get(search);
      assert_int_equal(remat_recombine(search, &parents.bench.schedule), 0);
      const double after = remat_energy_get(search);
      n_changed += after != before;
      n_kept += after == before;
      assert_true(after <= before || i & 1);
      assert_false(search->schedule.is_broken);
      assert_true(remat_schedule_is_valid(&search->schedule));
      for (int v = 0; v < parents.bench.problem.n_values && after != before; v++) {
        const struct remat_holding *holding = &search->schedule.holdings[v];
        for (int k = 0; k < holding->spans.n; k++) /* no bytes are held that no op uses */
          assert_int_equal(remat_touch_from(&search->schedule, v, holding->spans.items[k].to),
                           holding->spans.items[k].to);
      }
    }
    parents_close(&parents);
  }
  assert_true(n_changed > 100 && n_kept > 100);
}

static void a_recombination_without_memory_leaves_the_schedule(void **state)
{
  struct bench_parents parents;
  int n_failed = 0;
  assert_true(parents_open(&parents, 36));
  for (int n = 0; n < 400; n++) {
    struct schedule_copy before = copy_make(&parents.search.schedule);
    allocations_left = n % 40;
    const int status = remat_recombine(&parents.search, &parents.bench.schedule);
    allocations_left = -1;
    if (status) {
      assert_int_equal(status, -ENOMEM);
      assert_as_copied(&parents.search.schedule, &before);
      n_failed++;
    }
    assert_true(remat_schedule_is_valid(&parents.search.schedule));
    copy_finish(&before);
  }
  assert_true(n_failed > 100);
  parents_close(&parents);
}

/* ---- searches within a schedule ---- */

static void spans_are_found_as_one_by_one(void **state)
{
  struct remat_span spans[100];
  struct random_draw draw = {7};
  for (int n = 0; n <= (int)LADE_COUNT(spans); n++) {
    const struct remat_holding holding = {.spans = {.items = spans, .n = n}};
    int last = 0;
    for (int i = 0; i < n; i++) {
      spans[i].from = last + 2 + random_draw_below(&draw, 3);
      last = spans[i].to = spans[i].from + random_draw_below(&draw, 4);
    }
    for (int boundary = -1; boundary <= last + 2; boundary++) {
      int at = 0;
      while (at < n && spans[at].to < boundary)
        at++;
      assert_int_equal(remat_span_from(&holding, boundary), at);
    }
  }
}

static int64_t op_edges(const struct remat_problem *problem, int op)
{
  return problem->ops[op].n_in + problem->ops[op].n_out;
}

static void the_work_of_a_turn_is_the_edges_of_its_ops(void **state)
{
  int n_redos = 0;
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    struct remat_schedule *schedule = &bench.schedule;
    const struct remat_descent_params params = {.deadline_ns = INT64_MAX, .effort = 1};
    assert_true(remat_descend(schedule, &params) >= 0);
    for (int turn = 0; turn <= bench.problem.n_ops; turn++) {
      const struct remat_turn *t = &schedule->turns[turn];
      int64_t edges = turn < bench.problem.n_ops ? op_edges(&bench.problem, turn) : 1 + bench.problem.n_lasting;
      for (int i = 0; i < t->redos.n; i++)
        edges += op_edges(&bench.problem, t->redos.items[i]);
      n_redos += t->redos.n;
      const int64_t before = schedule->work;
      assert_int_equal(remat_turn_evaluate(schedule, turn).redo_ns, t->redo_ns);
      assert_int_equal(schedule->work - before, edges);
    }
    bench_close(&bench);
  }
  assert_true(n_redos > GRAPHS);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_changes_leave_the_schedule_of_a_new_evaluation),
      cmocka_unit_test(a_change_is_broken_if_its_redos_take_longer_than_they_may),
      cmocka_unit_test(priced_bytes_follow_changes_and_rollbacks),
      cmocka_unit_test(every_schedule_replays_with_its_bytes_and_time),
      cmocka_unit_test(bytes_of_turns_are_those_of_a_plain_array),
      cmocka_unit_test(a_saved_schedule_is_made_again),
      cmocka_unit_test(allocations_that_fail_are_rolled_back),
      cmocka_unit_test(a_rollback_without_memory_undoes_no_change_twice),
      cmocka_unit_test(a_recombined_schedule_is_whole_and_takes_the_place_of_a_better_one_by_temperature_alone),
      cmocka_unit_test(a_recombination_without_memory_leaves_the_schedule),
      cmocka_unit_test(spans_are_found_as_one_by_one),
      cmocka_unit_test(the_work_of_a_turn_is_the_edges_of_its_ops),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
