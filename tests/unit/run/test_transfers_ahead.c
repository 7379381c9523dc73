/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole values follow each other to and from the drive without a pause: several are in flight at once. None of them
 * touches bytes that another one changes, though small budgets use the same addresses again and again. The numbers are
 * those of the run that keeps everything.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "run/executor/executor_internal.h"
#include "tests/support/run_fixture.h"

#define N_STEPS 3
#define GIB (UINT64_C(1) << 30)
#define WATCHED_MAX 64

/* Values in flight. Submissions come from one thread, the io queue's. */
static struct {
  const struct lade_transfer *values[WATCHED_MAX]; /* submitted, and not known to be done */
  int n, max;
  int n_conflicts; /* submissions while a value in flight touched the same bytes, and one of both changed them */
} watch;

static bool ranges_meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
  return a < b + b_bytes && b < a + a_bytes;
}

static bool transfers_meet(const struct lade_transfer *a, const struct lade_transfer *b)
{
  const uint64_t a_bytes = lade_align_up(a->bytes, LADE_STORE_BLOCK_BYTES);
  const uint64_t b_bytes = lade_align_up(b->bytes, LADE_STORE_BLOCK_BYTES);
  const bool changes_memory = a->op == LADE_STORE_READ || b->op == LADE_STORE_READ;
  const bool changes_store = a->op == LADE_STORE_WRITE || b->op == LADE_STORE_WRITE;
  return (changes_memory && ranges_meet((uintptr_t)a->data, a_bytes, (uintptr_t)b->data, b_bytes)) ||
         (changes_store && ranges_meet(a->offset, a_bytes, b->offset, b_bytes));
}

static void watch_note(const struct lade_transfer *transfer)
{
  int n = 0;
  for (int i = 0; i < watch.n; i++) {
    const struct lade_transfer *other = watch.values[i];
    if (other == transfer || lade_transfer_is_done(other))
      continue;
    watch.n_conflicts += transfers_meet(other, transfer);
    watch.values[n++] = other;
  }
  assert_true(n < WATCHED_MAX);
  watch.values[n++] = transfer;
  watch.n = n;
  watch.max = LADE_MAX(watch.max, n);
}

int __real_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer);
int __wrap_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer);
int __wrap_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer)
{
  if (transfer->check == LADE_CHECK_STORE) /* a whole value */
    watch_note(transfer);
  return __real_lade_store_submit(store, transfer);
}

/* Run a plan for @budget, or for the smallest one plus an eighth of the rest for each @share. */
static void planned_run(struct run_fixture *run_fixture, uint64_t store_bytes, int share,
                        struct run_fixture_numbers *ret_numbers)
{
  struct lade_plan_bounds bounds;
  struct lade_error error = {0};
  struct lade_plan *plan = NULL;
  lade_planner *planner = run_fixture_planner(run_fixture, 0, store_bytes, LADE_RECIPE_AUTO);
  assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
  const uint64_t range = bounds.unconstrained_bytes - bounds.min_bytes;
  watch.n = 0;
  if (lade_planner_plan(planner, bounds.min_bytes + range * (uint64_t)share / 8, &error, &plan) ||
      run_fixture_open(run_fixture, plan, &error) || run_fixture_run(run_fixture, N_STEPS, ret_numbers, &error))
    fail_msg("%s", error.text);
  run_fixture_close(run_fixture);
  lade_plan_destroy(plan);
  lade_planner_destroy(planner);
}

static void values_in_flight_touch_different_bytes(void **state)
{
  for (int n_microbatches = 1; n_microbatches <= 2; n_microbatches++) {
    struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
    struct run_fixture run_fixture;
    struct run_fixture_numbers want, got;
    model.n_microbatches = n_microbatches;
    run_fixture_init(&run_fixture, &model);
    memset(&want, 0, sizeof(want));
    memset(&got, 0, sizeof(got));
    planned_run(&run_fixture, 0, 8, &want);
    for (int share = 0; share < 3; share++) {
      planned_run(&run_fixture, GIB, share, &got);
      assert_memory_equal(got.loss, want.loss, sizeof(got.loss));
      assert_memory_equal(got.norm, want.norm, sizeof(got.norm));
    }
    run_fixture_finish(&run_fixture);
  }
  assert_int_equal(watch.n_conflicts, 0);
  assert_true(watch.max > 1 && watch.max <= LADE_IO_AHEAD + 1);
}

/* A read that fails ends the step in its error. Transfers that began ahead are waited for before their memory goes. */
static void a_failure_among_values_in_flight_ends_the_step(void **state)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  int n_failed = 0;
  for (uint64_t nth = 1; nth < 40; nth += 3) {
    struct run_fixture run_fixture;
    struct lade_plan_bounds bounds;
    struct lade_error error = {0};
    struct lade_step_result result;
    struct lade_faults faults;
    struct lade_plan *plan = NULL;
    run_fixture_init(&run_fixture, &model);
    lade_faults_init(&faults);
    run_fixture.faults = &faults;
    lade_planner *planner = run_fixture_planner(&run_fixture, 0, GIB, LADE_RECIPE_AUTO);
    assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
    assert_int_equal(lade_planner_plan(planner, bounds.min_bytes, NULL, &plan), 0);
    watch.n = 0;
    assert_int_equal(run_fixture_open(&run_fixture, plan, &error), 0);
    lade_faults_arm(&faults, LADE_FAULT_FILE_READ, nth, false, -EIO);
    const int status = run_fixture_step(&run_fixture, 0, &result, &error);
    assert_true(lade_faults_injected(&faults) ? status == -EIO && strstr(error.text, "tensor") : status == 0);
    n_failed += status != 0;
    run_fixture_close(&run_fixture);
    lade_plan_destroy(plan);
    lade_planner_destroy(planner);
    run_fixture_finish(&run_fixture);
  }
  assert_true(n_failed > 5);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_in_flight_touch_different_bytes),
      cmocka_unit_test(a_failure_among_values_in_flight_ends_the_step),
  };
  const char *refusal = run_fixture_store_refusal(LADE_STORE_AUTO);
  if (refusal) {
    printf("SKIP: %s\n", refusal);
    return 77;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
