/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of single trajectories. With DESCENT_LEVEL the peak rises only once no other change is left, and spills take
 * units that are alike. With DESCENT_REPLACE a recomputed value may move to a tier. Tiny values of a group leave
 * together. Budgets that need less than a lump have plans that keep it. A coarse trajectory whose programs pack larger
 * than the lower bound gives way to the others.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "recompute/search/plan_internal.h"
#include "tests/unit/recompute/plan_fixture.h"

#define BATCH 16

struct planner_fixture {
  struct plan_fixture plan;
  const struct lade_model_graph *graph; /* the plan's */
  lade_planner *planner;
};

static void fixture_init(struct planner_fixture *fixture, const char *model, const char *machine_name)
{
  struct lade_error error = {0};
  plan_fixture_init(&fixture->plan, model, machine_name, BATCH);
  fixture->graph = fixture->plan.graph;
  assert_int_equal(lade_planner_create(&fixture->plan.params, &error, &fixture->planner), 0);
}

static void fixture_finish(struct planner_fixture *fixture)
{
  lade_planner_destroy(fixture->planner);
  plan_fixture_finish(&fixture->plan);
}

/* Make the trajectory of changes @allowed, with half of each copy exposed. */
static void trajectory_make(struct planner_fixture *fixture, int allowed, struct trajectory *ret_trajectory)
{
  struct pricing *pricing = &fixture->planner->stated;
  struct peak_analysis analysis = {0};
  pricing->unit_costs.exposed_fraction = 0.5;
  pricing->unit_costs.has_serial_updates = false;
  assert_int_equal(peak_analysis_init(&analysis, &pricing->params, pricing->pricer), 0);
  const struct descent_params params = {.plan = &pricing->params, .start = fixture->planner->start,
                                        .is_pinned = fixture->planner->is_pinned, .pricer = pricing->pricer,
                                        .analysis = &analysis, .allowed = allowed};
  assert_int_equal(descent_make(&params, ret_trajectory), 0);
  peak_analysis_finish(&analysis);
}

static uint64_t live_bytes(const struct trajectory *trajectory, int state)
{
  return trajectory->states.items[state].live_bytes[LADE_DEVICE];
}

/* Return the least peak before the first state whose peak rose; the least of all if none did. */
static uint64_t min_before_rise(const struct trajectory *trajectory)
{
  int i = 1;
  while (i < trajectory->states.n && live_bytes(trajectory, i) <= live_bytes(trajectory, i - 1))
    i++;
  return live_bytes(trajectory, i - 1);
}

/* Return the next tensor of @unit from @tensor on; n_tensors: none. */
static int unit_tensor(const struct lade_model_graph *graph, int unit, int tensor)
{
  while (tensor < graph->n_tensors && graph->tensors[tensor].unit != unit)
    tensor++;
  return tensor;
}

/* True if all values of two units of one class are saved alike. */
static bool units_are_alike(const struct planner_fixture *fixture, const struct lade_residency *residency, int unit,
                            int other)
{
  const int n = fixture->graph->n_tensors;
  int a = unit_tensor(fixture->graph, unit, 0), b = unit_tensor(fixture->graph, other, 0);
  while (a < n && b < n && residency->choices[a].saved == residency->choices[b].saved) {
    a = unit_tensor(fixture->graph, unit, a + 1);
    b = unit_tensor(fixture->graph, other, b + 1);
  }
  return a == n && b == n;
}

/* Return the spills that a round makes beside one of a unit whose values are saved in other ways. */
static int unlike_spills_count(const struct planner_fixture *fixture, const struct trajectory *trajectory)
{
  struct lade_residency *residency = NULL;
  int n_unlike = 0;
  assert_int_equal(lade_residency_copy(fixture->planner->start, &residency), 0);
  for (int state = 1, i = 0; state < trajectory->states.n; state++) {
    const int first = i;
    for (; i < trajectory->states.items[state].n_changes; i++) {
      const struct lade_change *change = &trajectory->changes.items[i];
      const int unit = fixture->graph->tensors[change->id].unit;
      const int first_unit = fixture->graph->tensors[trajectory->changes.items[first].id].unit;
      n_unlike += change->kind == LADE_CHANGE_SPILL && !units_are_alike(fixture, residency, first_unit, unit);
      lade_change_apply(change, residency);
    }
  }
  lade_residency_destroy(residency);
  return n_unlike;
}

static void the_peak_rises_only_when_nothing_else_is_left(void **state)
{
  struct planner_fixture fixture;
  struct trajectory rising, level;
  fixture_init(&fixture, "gpt2-124m", "a100-80g");
  trajectory_make(&fixture, DESCENT_RECOMPUTE | DESCENT_OFFLOAD, &rising);
  trajectory_make(&fixture, DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_LEVEL, &level);
  assert_true(min_before_rise(&rising) > live_bytes(&rising, rising.states.n - 1));
  assert_true(unlike_spills_count(&fixture, &rising) > 0);
  assert_int_equal(min_before_rise(&level), live_bytes(&level, level.states.n - 1));
  assert_int_equal(unlike_spills_count(&fixture, &level), 0);
  descent_finish(&rising);
  descent_finish(&level);
  fixture_finish(&fixture);
}

/* Return the state that the last of the first @n_changes of @trajectory led to. */
static int state_after(const struct trajectory *trajectory, int n_changes)
{
  int state = 0;
  while (trajectory->states.items[state].n_changes < n_changes)
    state++;
  return state;
}

/* Return the recomputed values that a later change moves to the host; the peak must not rise by it. */
static int replaced_count(const struct planner_fixture *fixture, const struct trajectory *trajectory)
{
  bool *is_recomputed = calloc((size_t)fixture->graph->n_tensors, sizeof(*is_recomputed));
  int n_replaced = 0;
  assert_non_null(is_recomputed);
  for (int i = 0; i < trajectory->changes.n; i++) {
    const struct lade_change *change = &trajectory->changes.items[i];
    if (change->kind != LADE_CHANGE_SAVED)
      continue;
    if (is_recomputed[change->id]) {
      const int after = state_after(trajectory, i + 1);
      assert_int_equal(change->to, LADE_RESIDENCY_HOST);
      assert_true(live_bytes(trajectory, after) <= live_bytes(trajectory, after - 1));
      n_replaced++;
    }
    is_recomputed[change->id] = change->to == LADE_RESIDENCY_RECOMPUTE;
  }
  free(is_recomputed);
  return n_replaced;
}

static void a_recomputed_value_may_move_to_a_tier_later(void **state)
{
  struct planner_fixture fixture;
  struct trajectory fixed, replacing;
  fixture_init(&fixture, "gpt2-124m", "a100-80g");
  trajectory_make(&fixture, DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_LEVEL, &fixed);
  trajectory_make(&fixture, DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_LEVEL | DESCENT_REPLACE, &replacing);
  assert_int_equal(replaced_count(&fixture, &fixed), 0);
  assert_true(replaced_count(&fixture, &replacing) > 0);
  descent_finish(&fixed);
  descent_finish(&replacing);
  fixture_finish(&fixture);
}

/* Every bias and norm of a layer is tiny beside the peak: its state leaves in all layers at once. */
static void tiny_values_of_a_group_leave_together(void **state)
{
  struct planner_fixture fixture;
  struct trajectory trajectory;
  int n_seen = 0;
  fixture_init(&fixture, "gpt2-124m", "a100-80g");
  trajectory_make(&fixture, DESCENT_RECOMPUTE | DESCENT_OFFLOAD, &trajectory);
  const struct lade_model_graph *graph = fixture.graph;
  for (int i = 0; i < trajectory.changes.n; i++) {
    const struct lade_change *change = &trajectory.changes.items[i];
    int n = 0, n_together = 1;
    if (change->kind != LADE_CHANGE_WEIGHT || graph->tensors[graph->params[change->id].tensor].n_dims > 1)
      continue;
    lade_change_group(fixture.planner->stated.pricer, LADE_CHANGE_WEIGHT, change->id, &n);
    while (i + 1 < trajectory.changes.n && state_after(&trajectory, i + 2) == state_after(&trajectory, i + 1)) {
      n_together++;
      i++;
    }
    assert_int_equal(n_together, n);
    n_seen += n > 1;
  }
  assert_true(n_seen > 0);
  descent_finish(&trajectory);
  fixture_finish(&fixture);
}

/* Recompute of the logits frees a third of the peak: at 80 % some products recomputed instead take less time. */
static void a_lump_is_kept_where_less_must_leave(void **state)
{
  struct lade_error error = {0};
  struct lade_plan_bounds bounds;
  struct lade_plan *max = NULL, *few = NULL;
  struct planner_fixture fixture;
  int logits = 0;
  fixture_init(&fixture, "gpt2-124m", "a100-80g");
  assert_int_equal(lade_planner_get_bounds(fixture.planner, &bounds), 0);
  assert_int_equal(lade_planner_plan(fixture.planner, bounds.unconstrained_bytes / 10 * 6, &error, &max), 0);
  assert_int_equal(lade_planner_plan(fixture.planner, bounds.unconstrained_bytes / 10 * 8, &error, &few), 0);
  while (strcmp(fixture.graph->tensors[logits].name, "head.loss.logits") != 0)
    logits++;
  assert_int_equal(max->residency->choices[logits].saved, LADE_RESIDENCY_RECOMPUTE);
  assert_int_equal(few->residency->choices[logits].saved, LADE_RESIDENCY_KEEP);
  assert_true((double)few->predicted_ns < 0.97 * (double)max->predicted_ns);
  lade_plan_destroy(max);
  lade_plan_destroy(few);
  fixture_finish(&fixture);
}

/* With its first state alone, the coarse trajectory packs as large as the unconstrained step. */
static void a_coarse_trajectory_that_packs_larger_gives_way(void **state)
{
  struct lade_plan_bounds whole, cut;
  struct planner_fixture fixture;
  fixture_init(&fixture, "nano", "h100-80g");
  assert_true(fixture.planner->is_plain_coarse);
  assert_int_equal(fixture.planner->n_trajectories, fixture.planner->n_stated + 1);
  assert_int_equal(lade_planner_get_bounds(fixture.planner, &whole), 0);
  assert_true(whole.min_bytes < whole.unconstrained_bytes && fixture.planner->is_plain_coarse);
  fixture_finish(&fixture);
  fixture_init(&fixture, "nano", "h100-80g");
  fixture.planner->trajectories[fixture.planner->n_stated].states.n = 1;
  assert_int_equal(lade_planner_get_bounds(fixture.planner, &cut), 0);
  assert_false(fixture.planner->is_plain_coarse);
  assert_true(fixture.planner->n_trajectories > fixture.planner->n_stated + 1);
  assert_int_equal(cut.min_bytes, whole.min_bytes);
  fixture_finish(&fixture);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_peak_rises_only_when_nothing_else_is_left),
      cmocka_unit_test(a_recomputed_value_may_move_to_a_tier_later),
      cmocka_unit_test(tiny_values_of_a_group_leave_together),
      cmocka_unit_test(a_lump_is_kept_where_less_must_leave),
      cmocka_unit_test(a_coarse_trajectory_that_packs_larger_gives_way),
  };
  return cmocka_run_group_tests_name("trajectories", tests, NULL, NULL);
}
