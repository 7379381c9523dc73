/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The logits between the head's forward and its backward: an optional value. The planner keeps it where it fits and
 * pays; no bit depends on that; the proof refuses a backward that reads what forward did not make.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/run_fixture.h"

#define PLENTY (UINT64_C(1) << 32)
#define N_STEPS 3

/* Price both lean forms at @percent of the whole ones. */
static void lean_price(struct run_fixture *run, int percent)
{
  for (int op = 0; op < run->graph->n_ops; op++) {
    if (run->graph->ops[op].lean >= 0)
      run->prices.op_ns[run->graph->ops[op].lean] = run->prices.op_ns[op] * percent / 100;
  }
}

/* Initialise a small model with a vocabulary of several chunks, so that all logits are more than a chunk's. */
static void wide_init(struct run_fixture *run, enum lade_family family, enum lade_dtype dtype)
{
  struct run_fixture_model model = run_fixture_tiny(family);
  model.dtype = dtype;
  model.vocabulary = 4100;
  model.n_microbatches = 2;
  run_fixture_init(run, &model);
  lean_price(run, 200);
}

static int logits_find(const struct lade_model_graph *graph)
{
  int logits = 0;
  while (!graph->tensors[logits].is_optional)
    LADE_ASSERT(++logits < graph->n_tensors);
  return logits;
}

static int uses_count(const struct lade_program *program, int tensor)
{
  int n = 0;
  for (int i = 0; i < program->n_operands; i++)
    n += program->operands[i].reads.tensor == tensor || program->operands[i].makes.tensor == tensor;
  return n;
}

/* Run with the logits @kept between both directions, or made again. */
static struct run_fixture_numbers numbers_get(struct run_fixture *run, enum lade_residency_policy kept)
{
  struct run_fixture_numbers numbers = {0};
  struct lade_residency *residency;
  struct lade_error error = {0};
  const int logits = logits_find(run->graph), n_microbatches = run->model.n_microbatches;
  assert_int_equal(lade_residency_create(run->graph, &residency), 0);
  residency->choices[logits].saved = (uint8_t)kept;
  struct lade_plan *plan = run_fixture_plan(run, residency);
  assert_int_equal(uses_count(plan->train, logits), kept == LADE_RESIDENCY_KEEP ? 2 * n_microbatches : 0);
  assert_int_equal(uses_count(plan->eval, logits), 0);
  if (run_fixture_open(run, plan, &error) || run_fixture_run(run, N_STEPS, &numbers, &error))
    fail_msg("%s", error.text);
  run_fixture_close(run);
  lade_plan_destroy(plan);
  return numbers;
}

static void kept_logits_give_the_bits_of_logits_made_again(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16};
  for (int i = 0; i < 4; i++) {
    struct run_fixture run;
    wide_init(&run, i & 1 ? LADE_LLAMA : LADE_GPT2, dtypes[i / 2]);
    const struct run_fixture_numbers kept = numbers_get(&run, LADE_RESIDENCY_KEEP);
    const struct run_fixture_numbers again = numbers_get(&run, LADE_RESIDENCY_RECOMPUTE);
    assert_memory_equal(&kept, &again, sizeof(kept));
    run_fixture_finish(&run);
  }
}

/* Return the residency of the logits in the fastest plan within @budget_bytes; 0: the smallest budget. */
static enum lade_residency_policy policy_get(const struct run_fixture *run, uint64_t budget_bytes)
{
  lade_planner *planner = run_fixture_planner(run, 0, 0, LADE_RECIPE_AUTO);
  struct lade_plan_bounds bounds;
  struct lade_plan *plan;
  struct lade_error error = {0};
  assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
  if (lade_planner_plan(planner, budget_bytes ? budget_bytes : bounds.min_bytes, &error, &plan))
    fail_msg("%s", error.text);
  const enum lade_residency_policy policy = plan->residency->choices[logits_find(run->graph)].saved;
  lade_plan_destroy(plan);
  lade_planner_destroy(planner);
  return policy;
}

static void the_planner_keeps_logits_where_they_fit_and_pay(void **state)
{
  struct run_fixture run;
  wide_init(&run, LADE_GPT2, LADE_BF16);
  assert_int_equal(policy_get(&run, PLENTY), LADE_RESIDENCY_KEEP);
  assert_int_equal(policy_get(&run, 0), LADE_RESIDENCY_RECOMPUTE);
  lean_price(&run, 50);
  assert_int_equal(policy_get(&run, PLENTY), LADE_RESIDENCY_RECOMPUTE);
  run_fixture_finish(&run);
}

/* Near equal prices the cheaper form is taken at the unconstrained peak, and no larger budget has a slower plan. */
static void the_form_of_lower_price_is_taken(void **state)
{
  static const int percents[] = {50, 98, 102, 200};
  struct run_fixture run;
  wide_init(&run, LADE_GPT2, LADE_BF16);
  for (size_t i = 0; i < LADE_COUNT(percents); i++) {
    struct lade_plan_bounds bounds;
    struct lade_error error = {0};
    lean_price(&run, percents[i]);
    lade_planner *planner = run_fixture_planner(&run, 0, 0, LADE_RECIPE_AUTO);
    assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
    int64_t smaller_ns = INT64_MAX;
    for (int step = 0; step <= 8; step++) {
      struct lade_plan *plan;
      const uint64_t bytes = bounds.min_bytes + (bounds.unconstrained_bytes - bounds.min_bytes) * (uint64_t)step / 8;
      if (lade_planner_plan(planner, bytes, &error, &plan))
        fail_msg("%s", error.text);
      assert_true(plan->predicted_ns <= smaller_ns);
      smaller_ns = plan->predicted_ns;
      if (step == 8)
        assert_int_equal(plan->residency->choices[logits_find(run.graph)].saved,
                         percents[i] > 100 ? LADE_RESIDENCY_KEEP : LADE_RESIDENCY_RECOMPUTE);
      lade_plan_destroy(plan);
    }
    lade_planner_destroy(planner);
  }
  run_fixture_finish(&run);
}

/* Take the logits out of forward's operands, so that it looks like its lean form. */
static void the_proof_refuses_logits_that_nothing_made(void **state)
{
  struct run_fixture run;
  struct lade_residency *residency;
  struct lade_error error = {0};
  const uint64_t budgets[LADE_N_SPACES] = {PLENTY, PLENTY, PLENTY};
  wide_init(&run, LADE_GPT2, LADE_BF16);
  const int logits = logits_find(run.graph);
  assert_int_equal(lade_residency_create(run.graph, &residency), 0);
  struct lade_plan *plan = run_fixture_plan(&run, residency);
  for (int i = 0; i < plan->train->n_instrs; i++) {
    struct lade_instr *instr = &plan->train->instrs[i];
    struct lade_operand *operands = &plan->train->operands[instr->first_operand];
    for (int k = 0; k < instr->n_operands; k++) {
      if (operands[k].makes.tensor != logits)
        continue;
      memmove(&operands[k], &operands[k + 1], (size_t)(instr->n_operands - k - 1) * sizeof(*operands));
      instr->n_operands--;
    }
  }
  assert_int_equal(lade_program_prove(plan->train, budgets, &error), -EINVAL);
  lade_plan_destroy(plan);
  run_fixture_finish(&run);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kept_logits_give_the_bits_of_logits_made_again),
      cmocka_unit_test(the_planner_keeps_logits_where_they_fit_and_pay),
      cmocka_unit_test(the_form_of_lower_price_is_taken),
      cmocka_unit_test(the_proof_refuses_logits_that_nothing_made),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
