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

#include "base/cpu.h"
#include "kernels/kernels.h"
#include "machine/cost.h"
#include "recompute/search/plan_internal.h"

#define CHUNK (UINT64_C(2) << 20)
#define HOST_BYTES (UINT64_C(200) << 30)
#define BATCH 16

struct desk {
  struct lade_kernels kernels;
  struct lade_model model;
  struct lade_model_graph *graph;
  struct lade_cost cost;
  struct lade_prices prices;
  lade_planner *planner;
};

static void desk_open(struct desk *desk, const char *model, const char *machine_name)
{
  struct lade_error error = {0};
  struct lade_machine machine;
  const struct lade_cpu cpu = lade_cpu_get();
  *desk = (struct desk){0};
  lade_kernels_init(&desk->kernels, &cpu);
  assert_int_equal(lade_model_preset(model, &desk->model, &error), 0);
  assert_int_equal(lade_machine_preset(machine_name, &error, &machine), 0);
  const struct lade_model_graph_params graph_params = {
      .struct_size = sizeof(graph_params), .model = &desk->model, .dtype = LADE_BF16, .batch = BATCH,
      .seq_len = desk->model.context, .kernels = &desk->kernels, .n_threads = 1, .grad_dtype = LADE_F32};
  assert_int_equal(lade_model_graph_create(&graph_params, &error, &desk->graph), 0);
  lade_cost_init(&desk->cost, &machine);
  assert_int_equal(lade_cost_prices(&desk->cost, desk->graph, &desk->prices), 0);
  const struct lade_plan_params params = {
      .struct_size = sizeof(params), .graph = desk->graph, .prices = &desk->prices, .n_microbatches = 1,
      .is_unified = machine.is_unified, .chunk_bytes = CHUNK, .host_bytes = HOST_BYTES};
  assert_int_equal(lade_planner_create(&params, &error, &desk->planner), 0);
}

static void desk_close(struct desk *desk)
{
  lade_planner_destroy(desk->planner);
  lade_prices_finish(&desk->prices);
  lade_cost_finish(&desk->cost);
  lade_model_graph_destroy(desk->graph);
}

/* Make the trajectory of changes @allowed, with half of each copy exposed. */
static void trajectory_make(struct desk *desk, int allowed, struct trajectory *ret_trajectory)
{
  struct pricing *pricing = &desk->planner->stated;
  struct peak_analysis analysis = {0};
  pricing->unit_costs.exposed_fraction = 0.5;
  pricing->unit_costs.has_serial_updates = false;
  assert_int_equal(peak_analysis_init(&analysis, &pricing->params, pricing->pricer), 0);
  const struct descent_params params = {.plan = &pricing->params, .start = desk->planner->start,
                                        .is_pinned = desk->planner->is_pinned, .pricer = pricing->pricer,
                                        .analysis = &analysis, .allowed = allowed};
  assert_int_equal(descent_make(&params, ret_trajectory), 0);
  peak_analysis_finish(&analysis);
}

static uint64_t live_bytes(const struct trajectory *trajectory, int state)
{
  return trajectory->states.items[state].live_bytes[LADE_DEVICE];
}

/* Return the least peak before the first state whose peak rose; the least of all if none did. */
static uint64_t least_before_rise(const struct trajectory *trajectory)
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
static bool units_are_alike(const struct desk *desk, const struct lade_residency *residency, int unit, int other)
{
  const int n = desk->graph->n_tensors;
  int a = unit_tensor(desk->graph, unit, 0), b = unit_tensor(desk->graph, other, 0);
  while (a < n && b < n && residency->choices[a].saved == residency->choices[b].saved) {
    a = unit_tensor(desk->graph, unit, a + 1);
    b = unit_tensor(desk->graph, other, b + 1);
  }
  return a == n && b == n;
}

/* Return the spills that a round makes beside one of a unit whose values are saved in other ways. */
static int unlike_spills_count(const struct desk *desk, const struct trajectory *trajectory)
{
  struct lade_residency *residency = NULL;
  int n_unlike = 0;
  assert_int_equal(lade_residency_copy(desk->planner->start, &residency), 0);
  for (int state = 1, i = 0; state < trajectory->states.n; state++) {
    const int first = i;
    for (; i < trajectory->states.items[state].n_changes; i++) {
      const struct lade_change *change = &trajectory->changes.items[i];
      const int unit = desk->graph->tensors[change->id].unit;
      const int first_unit = desk->graph->tensors[trajectory->changes.items[first].id].unit;
      n_unlike += change->kind == LADE_CHANGE_SPILL && !units_are_alike(desk, residency, first_unit, unit);
      lade_change_apply(change, residency);
    }
  }
  lade_residency_destroy(residency);
  return n_unlike;
}

static void the_peak_rises_only_when_nothing_else_is_left(void **state)
{
  struct desk desk;
  struct trajectory rising, level;
  desk_open(&desk, "gpt2-124m", "a100-80g");
  trajectory_make(&desk, DESCENT_RECOMPUTE | DESCENT_OFFLOAD, &rising);
  trajectory_make(&desk, DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_LEVEL, &level);
  assert_true(least_before_rise(&rising) > live_bytes(&rising, rising.states.n - 1));
  assert_true(unlike_spills_count(&desk, &rising) > 0);
  assert_int_equal(least_before_rise(&level), live_bytes(&level, level.states.n - 1));
  assert_int_equal(unlike_spills_count(&desk, &level), 0);
  descent_finish(&rising);
  descent_finish(&level);
  desk_close(&desk);
}

/* Return the state that the last of the first @n_changes of @trajectory led to. */
static int state_after(const struct trajectory *trajectory, int n_changes)
{
  int state = 0;
  while (trajectory->states.items[state].n_changes < n_changes)
    state++;
  return state;
}

/* Return the recomputed values that a later change moves to the host; each time the peak must fall. */
static int replaced_count(const struct desk *desk, const struct trajectory *trajectory)
{
  bool *is_recomputed = calloc((size_t)desk->graph->n_tensors, sizeof(*is_recomputed));
  int n_replaced = 0;
  assert_non_null(is_recomputed);
  for (int i = 0; i < trajectory->changes.n; i++) {
    const struct lade_change *change = &trajectory->changes.items[i];
    if (change->kind != LADE_CHANGE_SAVED)
      continue;
    if (is_recomputed[change->id]) {
      const int after = state_after(trajectory, i + 1);
      assert_int_equal(change->to, LADE_RESIDENCY_HOST);
      assert_true(live_bytes(trajectory, after) < live_bytes(trajectory, after - 1));
      n_replaced++;
    }
    is_recomputed[change->id] = change->to == LADE_RESIDENCY_RECOMPUTE;
  }
  free(is_recomputed);
  return n_replaced;
}

static void a_recomputed_value_may_move_to_a_tier_later(void **state)
{
  struct desk desk;
  struct trajectory fixed, replacing;
  desk_open(&desk, "gpt2-124m", "a100-80g");
  trajectory_make(&desk, DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_LEVEL, &fixed);
  trajectory_make(&desk, DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_LEVEL | DESCENT_REPLACE, &replacing);
  assert_int_equal(replaced_count(&desk, &fixed), 0);
  assert_true(replaced_count(&desk, &replacing) > 0);
  descent_finish(&fixed);
  descent_finish(&replacing);
  desk_close(&desk);
}

/* Every bias and norm of a layer is tiny beside the peak: its state leaves in all layers at once. */
static void tiny_values_of_a_group_leave_together(void **state)
{
  struct desk desk;
  struct trajectory trajectory;
  int n_seen = 0;
  desk_open(&desk, "gpt2-124m", "a100-80g");
  trajectory_make(&desk, DESCENT_RECOMPUTE | DESCENT_OFFLOAD, &trajectory);
  for (int i = 0; i < trajectory.changes.n; i++) {
    const struct lade_change *change = &trajectory.changes.items[i];
    int n = 0, n_together = 1;
    if (change->kind != LADE_CHANGE_WEIGHT || desk.graph->tensors[desk.graph->params[change->id].tensor].n_dims > 1)
      continue;
    lade_change_group(desk.planner->stated.pricer, LADE_CHANGE_WEIGHT, change->id, &n);
    while (i + 1 < trajectory.changes.n && state_after(&trajectory, i + 2) == state_after(&trajectory, i + 1)) {
      n_together++;
      i++;
    }
    assert_int_equal(n_together, n);
    n_seen += n > 1;
  }
  assert_true(n_seen > 0);
  descent_finish(&trajectory);
  desk_close(&desk);
}

/* Recompute of the logits frees a third of the peak: at 80 % some products recomputed instead take less time. */
static void a_lump_is_kept_where_less_must_leave(void **state)
{
  struct lade_error error = {0};
  struct lade_plan_bounds bounds;
  struct lade_plan *most = NULL, *few = NULL;
  struct desk desk;
  int logits = 0;
  desk_open(&desk, "gpt2-124m", "a100-80g");
  assert_int_equal(lade_planner_get_bounds(desk.planner, &bounds), 0);
  assert_int_equal(lade_planner_plan(desk.planner, bounds.unconstrained_bytes / 10 * 6, &error, &most), 0);
  assert_int_equal(lade_planner_plan(desk.planner, bounds.unconstrained_bytes / 10 * 8, &error, &few), 0);
  while (strcmp(desk.graph->tensors[logits].name, "head.loss.logits") != 0)
    logits++;
  assert_int_equal(most->residency->choices[logits].saved, LADE_RESIDENCY_RECOMPUTE);
  assert_int_equal(few->residency->choices[logits].saved, LADE_RESIDENCY_KEEP);
  assert_true((double)few->predicted_ns < 0.97 * (double)most->predicted_ns);
  lade_plan_destroy(most);
  lade_plan_destroy(few);
  desk_close(&desk);
}

/* With its first state alone, the coarse trajectory packs as large as the unconstrained step. */
static void a_coarse_trajectory_that_packs_larger_gives_way(void **state)
{
  struct lade_plan_bounds whole, cut;
  struct desk desk;
  desk_open(&desk, "nano", "h100-80g");
  assert_true(desk.planner->is_plain_coarse);
  assert_int_equal(desk.planner->n_trajectories, desk.planner->n_stated + 1);
  assert_int_equal(lade_planner_get_bounds(desk.planner, &whole), 0);
  assert_true(whole.min_bytes < whole.unconstrained_bytes && desk.planner->is_plain_coarse);
  desk_close(&desk);
  desk_open(&desk, "nano", "h100-80g");
  desk.planner->trajectories[desk.planner->n_stated].states.n = 1;
  assert_int_equal(lade_planner_get_bounds(desk.planner, &cut), 0);
  assert_false(desk.planner->is_plain_coarse);
  assert_true(desk.planner->n_trajectories > desk.planner->n_stated + 1);
  assert_int_equal(cut.min_bytes, whole.min_bytes);
  desk_close(&desk);
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
