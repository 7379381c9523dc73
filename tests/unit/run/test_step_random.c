/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drawn graphs of a caller's own step, run at several budgets: the planned bytes are the measured ones, and redos and
 * moves are those of the plan. Every budget that is accepted gives the bytes of a plain run in order. The argument is
 * the number of graphs; LADE_STEP_GRAPHS in the environment takes its place. A second argument is the first number.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/graph/random_graph.h"
#include "tests/support/graph/step_ops.h"
#include "tests/support/scratch.h"
#include "tests/support/step_graph.h"

#define GRAPHS 100
#define STEPS 2
#define DEVICE_BYTES ((uint64_t)256 << 20)

static int n_graphs = GRAPHS, first_graph;
static struct {
  int n_runs, n_refused, n_redone, n_moved, n_chunks;
} tally;

/* One graph, with its reference after STEPS steps. */
struct step_fixture {
  lade_graph *graph;
  struct step_ops ops;
  lade_device *device;
  bool has_tiers;
  uint64_t number;
};

static lade_graph *graph_draw(uint64_t number, bool *ret_has_tiers)
{
  *ret_has_tiers = number % 8 == 7;
  if (number % 3 == 2) {
    lade_graph *graph = step_graph_draw((uint32_t)number);
    graph->has_addresses = true;
    for (int s = 0; s < graph->storages.n; s++)
      *ret_has_tiers |= graph->storages.items[s].tier != LADE_DEVICE;
    return graph;
  }
  const struct random_graph_params params = {.seed = number, .n_layers = 2 + (int)(number % 13),
                                             .is_soup = number % 5 == 4, .is_written_once = number % 2,
                                             .has_tiers = *ret_has_tiers};
  lade_graph *small = random_graph_make(&params), *graph = step_ops_scale(small, number % 2 ? 1024 : 773);
  lade_graph_destroy(small);
  return graph;
}

static struct lade_graph_plan_params search_params(const struct step_fixture *fixture, uint64_t budget_bytes)
{
  const struct lade_graph_path path = {4e12, 100};
  struct lade_graph_plan_params search = {.struct_size = sizeof(search), .budget_bytes = budget_bytes,
                                          .iterations = 2000, .seed = 5};
  if (fixture->has_tiers) {
    search.to_host = search.from_host = search.to_store = search.from_store = path;
    search.host_budget_bytes = 1 << 20;
    search.store_budget_bytes = 2 << 20;
  }
  return search;
}

static void measures_check(const struct step_fixture *fixture, const struct lade_step_info *info,
                           const struct lade_step_measures *measures)
{
  uint64_t owned = 0;
  for (int space = 0; space < LADE_N_SPACES; space++)
    assert_int_equal(measures->peak_bytes[space], info->peak_bytes[space]);
  for (int owner = 0; owner < LADE_OWNERS_MAX; owner++)
    owned += info->owner_bytes[LADE_DEVICE][owner];
  assert_int_equal(owned, info->peak_bytes[LADE_DEVICE]);
  assert_true(info->peak_bytes[LADE_DEVICE] <= info->budget_bytes);
  assert_true(info->live_bytes[LADE_DEVICE] <= info->used_bytes && info->used_bytes <= info->peak_bytes[LADE_DEVICE]);
  assert_int_equal(measures->moved_bytes, info->moved_bytes);
  assert_int_equal(measures->n_redone, info->n_redone);
  assert_int_equal(measures->n_ops, fixture->graph->ops.n + info->n_redone);
  assert_int_equal(atomic_load(&fixture->ops.n_redone), info->n_redone);
}

/* Run STEPS steps within @budget_bytes, if that is accepted, and compare with the reference. */
static int budget_run(struct step_fixture *fixture, uint64_t budget_bytes, struct lade_step_info *ret_info)
{
  const struct lade_graph_plan_params search = search_params(fixture, budget_bytes);
  const struct lade_step_params params = {.struct_size = sizeof(params), .op = step_ops_run, .user = &fixture->ops,
                                          .device = fixture->device, .plan = &search, .store = scratch,
                                          .allow_tmpfs = true};
  struct lade_error error = {0};
  lade_stepper *stepper = NULL;
  *ret_info = (struct lade_step_info){.struct_size = sizeof(*ret_info)};
  const int status = lade_step_create(fixture->graph, &params, &error, ret_info, &stepper);
  if (status == -ENOSPC) {
    bool may_be_refused = budget_bytes != LADE_GRAPH_BUDGET_NONE && budget_bytes != LADE_GRAPH_BUDGET_MIN;
    if (!may_be_refused || !ret_info->min_budget_bytes || ret_info->min_budget_bytes <= budget_bytes)
      fail_msg("graph %llu: %s", (unsigned long long)fixture->number, error.text);
    return status;
  }
  if (status)
    fail_msg("graph %llu: %s", (unsigned long long)fixture->number, error.text);
  step_ops_fill(&fixture->ops, stepper);
  for (uint64_t step = 0; step < STEPS; step++) {
    struct lade_step_measures measures = {.struct_size = sizeof(measures)};
    step_ops_begin(&fixture->ops, step);
    if (lade_step_run(stepper, &measures, &error))
      fail_msg("%s", error.text);
    measures_check(fixture, ret_info, &measures);
    assert_int_equal(atomic_load(&fixture->ops.n_wrong), 0);
    step_ops_reference(&fixture->ops, step);
  }
  step_ops_compare(&fixture->ops, stepper);
  lade_step_destroy(stepper);
  tally.n_runs++;
  tally.n_redone += ret_info->n_redone > 0;
  tally.n_moved += ret_info->moved_bytes > 0;
  return 0;
}

static void graph_run(uint64_t number)
{
  struct step_fixture fixture = {.number = number};
  struct lade_step_info info, min;
  const struct lade_device_params device = {.struct_size = sizeof(device), .capacity_bytes = DEVICE_BYTES};
  fixture.graph = graph_draw(number, &fixture.has_tiers);
  if (fixture.graph->ops.n) {
    step_ops_init(&fixture.ops, fixture.graph);
    assert_int_equal(lade_device_open(&device, NULL, &fixture.device), 0);
    budget_run(&fixture, LADE_GRAPH_BUDGET_NONE, &info);
    const uint64_t peak = info.peak_bytes[LADE_DEVICE];
    for (uint64_t part = 2; part < 4; part++) {
      if (!budget_run(&fixture, peak * part / 4, &info))
        tally.n_chunks += info.peak_bytes[LADE_DEVICE] < peak;
      else
        tally.n_refused++;
    }
    budget_run(&fixture, LADE_GRAPH_BUDGET_MIN, &min);
    if (min.min_budget_bytes) {
      assert_true(min.peak_bytes[LADE_DEVICE] <= min.min_budget_bytes);
      assert_int_equal(budget_run(&fixture, min.min_budget_bytes, &info), 0);
    }
    struct lade_device_info after;
    lade_device_get_info(fixture.device, &after);
    assert_int_equal(after.created_bytes, 0);
    lade_device_close(fixture.device);
    step_ops_finish(&fixture.ops);
  }
  lade_graph_destroy(fixture.graph);
}

static void drawn_graphs_give_the_bits_of_a_plain_run(void **state)
{
  (void)state;
  for (int i = 0; i < n_graphs; i++) {
    graph_run((uint64_t)(first_graph + i));
    if (i % 1000 == 999)
      print_message("%d graphs\n", i + 1);
  }
  print_message("%d graphs: %d runs equal the reference, %d with redos, %d with moves; %d budgets saved chunks, "
                "%d were refused\n", n_graphs, tally.n_runs, tally.n_redone, tally.n_moved, tally.n_chunks,
                tally.n_refused);
  assert_true(n_graphs < GRAPHS || (tally.n_redone > n_graphs / 5 && tally.n_moved > n_graphs / 10 &&
                                    tally.n_chunks > n_graphs / 5));
}

int main(int argc, char **argv)
{
  const char *wish = getenv("LADE_STEP_GRAPHS");
  if (argc > 1)
    n_graphs = atoi(argv[1]);
  if (wish)
    n_graphs = atoi(wish);
  if (argc > 2)
    first_graph = atoi(argv[2]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(drawn_graphs_give_the_bits_of_a_plain_run, scratch_setup_in_memory,
                                      scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
