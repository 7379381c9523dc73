/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's step as a graph. The graph has the program's instructions, times and bytes. Its plan without a limit needs
 * the bytes of the program, and a plan inside a smaller budget exists. Programs that move or recompute values, and
 * those of several ranks, are refused with the instruction.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "lade/graph_plan.h"
#include "program/export.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/program_fixture.h"

#define MANY_ALLOCATIONS 100000 /* more than any export of these fixtures makes */

static const struct program_fixture_setting plain[] = {
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_KEEP, .dropout = 0.1f},
    {.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 3, .manner = FIXTURE_KEEP, .is_unified = true},
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 2, .manner = FIXTURE_KEEP, .grad_dtype = LADE_BF16,
     .optimizer_in_backward = true}};

static lade_graph *export(const struct lade_program *program)
{
  struct lade_error error = {0};
  lade_graph *graph = NULL;
  assert_int_equal(lade_program_export(program, &error, &graph), 0);
  assert_non_null(graph);
  return graph;
}

static uint64_t kept_bytes(const lade_graph *graph)
{
  uint64_t bytes = 0;
  for (int i = 0; i < graph->kept.n; i++)
    bytes += graph->storages.items[graph->kept.items[i]].bytes;
  return bytes;
}

static void a_graph_has_the_ops_and_times_of_its_program(void **state)
{
  for (size_t at = 0; at < LADE_COUNT(plain); at++) {
    struct program_fixture fixture;
    program_fixture_init(&fixture, &plain[at]);
    lade_graph *graph = export(fixture.program);
    int n_ops = 0, n_updates = 0, n_drawing = 0;
    int64_t ns = 0;
    for (int i = 0; i < fixture.program->n_instrs; i++) {
      const struct lade_instr *instr = &fixture.program->instrs[i];
      if (instr->queue == LADE_Q_TO_HOST)
        continue;
      const struct graph_op *op = &graph->ops.items[n_ops++];
      assert_true(op->ns == instr->predicted_ns);
      n_updates += strncmp(lade_graph_op_name(graph, n_ops - 1), "update ", 7) == 0;
      n_drawing += op->draws;
      ns += op->ns;
    }
    assert_int_equal(lade_graph_n_ops(graph), n_ops);
    assert_int_equal(n_updates, fixture.graph->n_params);
    assert_true(ns == graph->total_ns);
    assert_int_equal(n_drawing > 0, plain[at].dropout > 0);
    lade_graph_destroy(graph);
    program_fixture_finish(&fixture);
  }
}

static void a_graph_needs_the_bytes_of_its_program(void **state)
{
  for (size_t at = 0; at < LADE_COUNT(plain); at++) {
    struct program_fixture fixture;
    struct lade_error error = {0};
    struct lade_graph_plan_info info = {.struct_size = sizeof(info)};
    struct lade_graph_plan_params params = {.struct_size = sizeof(params), .budget_bytes = UINT64_MAX,
                                            .iterations = 1000};
    lade_graph_plan *plan = NULL;
    program_fixture_init(&fixture, &plain[at]);
    lade_graph *graph = export(fixture.program);
    assert_int_equal(lade_graph_plan_find(graph, &params, &error, &info, &plan), 0);
    lade_graph_plan_destroy(plan);
    const uint64_t live_bytes = fixture.program->live_peak_bytes[LADE_DEVICE];
    assert_in_range(info.unconstrained_bytes, live_bytes, live_bytes + kept_bytes(graph));
    params.budget_bytes = (info.min_budget_bytes + info.unconstrained_bytes) / 2;
    assert_int_equal(lade_graph_plan_find(graph, &params, &error, &info, &plan), 0);
    assert_true(info.planned_peak_bytes <= params.budget_bytes && info.n_redone > 0);
    lade_graph_plan_destroy(plan);
    lade_graph_destroy(graph);
    program_fixture_finish(&fixture);
  }
}

static void programs_that_are_no_plain_step_are_refused(void **state)
{
  static const struct {
    struct program_fixture_setting setting;
    const char *words;
  } refused[] = {
      {{.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 1, .manner = FIXTURE_RECOMPUTE},
       "' computes a value again, "},
      {{.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_SPILL_HOST},
       "' moves a value, "},
      {{.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_KEEP,
        .state_tiers = LADE_TIER_STORE, .has_resident_weights = true, .is_unified = true,
        .optimizer_in_backward = true},
       "' uses a value outside the device, "},
      {{.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 2, .manner = FIXTURE_KEEP, .dp = 2},
       "' is of several ranks, "}};
  for (size_t i = 0; i < LADE_COUNT(refused); i++) {
    struct program_fixture fixture;
    struct lade_error error = {0};
    lade_graph *graph = NULL;
    program_fixture_init(&fixture, &refused[i].setting);
    assert_int_equal(lade_program_export(fixture.program, &error, &graph), -EINVAL);
    assert_null(graph);
    if (!strstr(error.text, refused[i].words))
      print_error("%s\n", error.text);
    assert_non_null(strstr(error.text, refused[i].words));
    program_fixture_finish(&fixture);
  }
}

static void every_refused_allocation_fails_an_export_whole(void **state)
{
  struct program_fixture fixture;
  program_fixture_init(&fixture, &plain[0]);
  int status = -ENOMEM, n_refused = 0;
  for (int n = 1; status && n < MANY_ALLOCATIONS; n++) {
    struct lade_error error = {0};
    lade_graph *graph = NULL;
    const int n_before = allocations_live;
    allocations_left = n;
    status = lade_program_export(fixture.program, &error, &graph);
    allocations_left = -1;
    if (status) {
      assert_int_equal(status, -ENOMEM);
      assert_null(graph);
      n_refused++;
    }
    lade_graph_destroy(graph);
    assert_int_equal(allocations_live, n_before);
  }
  assert_int_equal(status, 0);
  assert_true(n_refused > 10);
  program_fixture_finish(&fixture);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_graph_has_the_ops_and_times_of_its_program),
      cmocka_unit_test(a_graph_needs_the_bytes_of_its_program),
      cmocka_unit_test(programs_that_are_no_plain_step_are_refused),
      cmocka_unit_test(every_refused_allocation_fails_an_export_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
