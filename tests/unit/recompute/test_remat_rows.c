/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of redos: a chain that runs once for several turns, and chains that another turn makes again. */
#include "recompute/graph/descent.h"
#include "tests/unit/recompute/remat_fixture.h"

static bool is_read_by(const struct remat_problem *problem, int value, int op)
{
  for (int i = 0; i < problem->ops[op].n_in; i++)
    if (problem->edges[problem->ops[op].first_in + i].value == value)
      return true;
  return false;
}

/* Let @bench have the schedule that holds no value. Return false if that cannot be made. */
static bool bench_release(struct bench_schedule *bench)
{
  const struct remat_choice none = {0};
  remat_schedule_finish(&bench->schedule);
  assert_int_equal(remat_schedule_init(&bench->schedule, &bench->problem, UINT64_MAX, &none, 0), 0);
  return !bench->schedule.is_broken;
}

/* Where nothing is held, each turn makes a long chain again. Once a row is held, later turns need less of it. */
static void a_row_that_is_held_takes_no_more_time(void **state)
{
  int n_saved = 0;
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    struct remat_schedule *schedule = &bench.schedule;
    bool is_made = bench_release(&bench);
    for (int turn = 0; turn <= bench.problem.n_ops && is_made; turn++) {
      const int64_t before_ns = schedule->redo_ns;
      remat_row_hold(schedule, turn, REMAT_DRAW_NONE);
      assert_false(schedule->is_broken || schedule->status);
      assert_true(remat_schedule_is_valid(schedule));
      assert_true(schedule->redo_ns <= before_ns);
      n_saved += schedule->redo_ns < before_ns;
      remat_rollback(schedule);
      assert_int_equal(schedule->redo_ns, before_ns);
    }
    bench_close(&bench);
  }
  assert_true(n_saved > GRAPHS / 2);
}

/* True if @turn makes all @values of a row again, and they are held from there up to @use at least. */
static bool row_is_made_at(const struct remat_schedule *schedule, const int32_t *values, int n, int turn, int use)
{
  for (int i = 0; i < n; i++) {
    if (!remat_is_redone_at(schedule, values[i], turn) || !remat_is_held(schedule, values[i], turn + 1))
      return false;
    for (int boundary = turn + 1; boundary <= use; boundary++)
      if (!remat_is_held(schedule, values[i], boundary))
        return false;
  }
  return true;
}

/* True if @value is on the device behind @turn, which makes it again, or is an operand of the turn's op. */
static bool is_moved_back(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  if (turn < problem->n_ops)
    return remat_is_held(schedule, value, turn + 1) || is_read_by(problem, value, turn);
  return problem->values[value].last_use == turn;
}

/*
 * Let the first use of the row of @turn make it again, and then @turn, as before. Return true if all of it is back.
 * Values that the use needs for its redos alone stay there.
 */
static bool row_moves_there_and_back(struct bench_schedule *bench, int turn)
{
  struct remat_schedule *schedule = &bench->schedule;
  const struct remat_span all = {-1, bench->problem.n_ops};
  const struct remat_turn *t = &schedule->turns[turn];
  const int use = remat_row_use(schedule, turn, all);
  int32_t values[64];
  bool is_back[64];
  int n = 0, n_back = 0;
  for (int i = 0; i < t->starts.n && n < 64; i++)
    if (remat_is_redone_at(schedule, t->starts.items[i], turn))
      values[n++] = t->starts.items[i];
  assert_int_equal(n > 0, use != INT32_MAX);
  if (!n)
    return false;
  assert_true(row_is_made_at(schedule, values, n, turn, use));
  assert_true(remat_row_shift(schedule, turn, use, all));
  if (schedule->is_broken)
    return false;
  assert_true(remat_schedule_is_valid(schedule));
  for (int i = 0; i < n; i++) {
    assert_true(remat_is_redone_at(schedule, values[i], use) && !remat_is_held(schedule, values[i], turn + 1));
    assert_true(!remat_touch_edges(schedule, values[i], turn) || remat_is_redone_at(schedule, values[i], turn));
    is_back[i] = is_moved_back(schedule, values[i], use);
    n_back += is_back[i];
  }
  assert_true(remat_row_shift(schedule, use, turn, all) >= (n_back > 0));
  if (schedule->is_broken)
    return false;
  assert_true(remat_schedule_is_valid(schedule));
  for (int i = 0; i < n; i++)
    assert_true(!is_back[i] || row_is_made_at(schedule, &values[i], 1, turn, use));
  return n_back == n;
}

static void a_row_of_redos_moves_to_its_first_use_and_back_at_once(void **state)
{
  int n_moved = 0;
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    const struct remat_descent_params params = {.deadline_ns = INT64_MAX, .effort = 1};
    assert_true(remat_descend(&bench.schedule, &params) >= 0);
    for (int turn = 0; turn <= bench.problem.n_ops; turn++) {
      n_moved += row_moves_there_and_back(&bench, turn);
      remat_rollback(&bench.schedule);
      assert_true(remat_schedule_is_valid(&bench.schedule));
    }
    bench_close(&bench);
  }
  assert_true(n_moved > 100);
}

/* The last turn of a schedule that holds nothing makes the results of the step again. An earlier turn can make them. */
static void results_that_the_last_turn_makes_again_move_to_an_earlier_one(void **state)
{
  int n_moved = 0;
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    struct bench_schedule bench;
    bench_open(&bench, seed);
    struct remat_schedule *schedule = &bench.schedule;
    const int end = bench.problem.n_ops, at = end - 1;
    const struct remat_span all = {-1, end};
    bool is_made = bench_release(&bench);
    bool is_moved[64] = {false};
    for (int i = 0; i < LADE_MIN(bench.problem.n_lasting, 64) && is_made; i++)
      is_moved[i] = remat_is_redone_at(schedule, bench.problem.lasting[i], end);
    bool is_changed = is_made && at >= 0 && remat_row_shift(schedule, end, at, all);
    for (int i = 0; i < 64 && is_changed && !schedule->is_broken; i++) {
      if (is_moved[i])
        assert_true(remat_is_held(schedule, bench.problem.lasting[i], end));
      n_moved += is_moved[i];
    }
    for (int i = 0; i < 64; i++)
      assert_true(is_changed || !is_moved[i]);
    assert_true(!is_made || schedule->is_broken || remat_schedule_is_valid(schedule));
    bench_close(&bench);
  }
  assert_true(n_moved > 20);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_row_that_is_held_takes_no_more_time),
      cmocka_unit_test(a_row_of_redos_moves_to_its_first_use_and_back_at_once),
      cmocka_unit_test(results_that_the_last_turn_makes_again_move_to_an_earlier_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
