/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search is robust against small changes of prices. If an op becomes cheaper, the old plan becomes faster, or stays
 * as fast. So the plan that is found by the new prices must not be slower than the old plan by the new prices. A search
 * by greedy descents cannot promise that exactly. Over 284 cases of baby on an H100 and 117 of gpt2-124m on an A100,
 * three were slower by more than 2 %, and none by more than 4.3.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "recompute/decision.h"
#include "tests/unit/recompute/plan_fixture.h"

#define MIB (UINT64_C(1) << 20)
#define N_BUDGETS_MAX 6
#define SLOWER_MAX 1.05 /* of any plan */
#define USUALLY_SLOWER 1.02 /* of all but a few */

/* A model on a machine, and budgets of its plans. */
struct study {
  const char *model, *machine;
  int64_t batch;
  uint64_t budgets[N_BUDGETS_MAX];  /* bytes; 0: the smallest budget, and the end */
  enum lade_op_kind kind;           /* the op that becomes cheaper; LADE_N_OP_KINDS: each of the forward half in turn */
};

/* Plans by the prices of the machine, and how those by other prices compare. */
struct comparison {
  struct plan_fixture fixture;
  struct lade_plan *plans[N_BUDGETS_MAX];
  uint64_t budgets[N_BUDGETS_MAX];
  int n_budgets;
  int n_cases, n_slower;
};

static lade_planner *planner_open(const struct lade_plan_params *params, struct lade_plan_bounds *ret_bounds)
{
  struct lade_error error = {0};
  lade_planner *planner = NULL;
  assert_int_equal(lade_planner_create(params, &error, &planner), 0);
  assert_int_equal(lade_planner_get_bounds(planner, ret_bounds), 0);
  return planner;
}

static struct lade_plan *plan_get(lade_planner *planner, uint64_t budget_bytes)
{
  struct lade_error error = {0};
  struct lade_plan *plan = NULL;
  assert_int_equal(lade_planner_plan(planner, budget_bytes, &error, &plan), 0);
  return plan;
}

static void comparison_init(struct comparison *c, const struct study *study)
{
  struct lade_plan_bounds bounds;
  *c = (struct comparison){0};
  plan_fixture_init(&c->fixture, study->model, study->machine, study->batch);
  lade_planner *planner = planner_open(&c->fixture.params, &bounds);
  for (int i = 0; i < N_BUDGETS_MAX && (i == 0 || study->budgets[i]); i++) {
    c->budgets[i] = i == 0 ? bounds.min_bytes : study->budgets[i];
    c->plans[i] = plan_get(planner, c->budgets[i]);
    c->n_budgets++;
  }
  lade_planner_destroy(planner);
}

static void comparison_finish(struct comparison *c)
{
  for (int i = 0; i < c->n_budgets; i++)
    lade_plan_destroy(c->plans[i]);
  plan_fixture_finish(&c->fixture);
}

/* Compare the plan of one budget by @params' prices with the old plan by these prices. */
static void plans_compare(struct comparison *c, const struct lade_plan_params *params, lade_planner *planner,
                          int budget)
{
  struct lade_error error = {0};
  struct lade_decision decision = {.residency = c->plans[budget]->residency};
  struct lade_plan *found = plan_get(planner, c->budgets[budget]), *old = NULL;
  decision.peak_bytes[LADE_DEVICE] = c->budgets[budget];
  /* Packed by other times, the old plan may be larger than the budget: then there is nothing to compare. */
  if (!lade_plan_follow(params, &decision, c->budgets[budget], &error, &old)) {
    const double ratio = (double)found->predicted_ns / (double)old->predicted_ns;
    assert_true(ratio <= SLOWER_MAX);
    c->n_slower += ratio > USUALLY_SLOWER;
    c->n_cases++;
  }
  lade_plan_destroy(old);
  lade_plan_destroy(found);
}

/* Compare the plans if ops of @kind take @share of their time. The smallest budget does not change. */
static void op_cheapen(struct comparison *c, enum lade_op_kind kind, double share)
{
  const int n_ops = c->fixture.graph->n_ops + c->fixture.graph->n_lean_ops;
  struct lade_prices prices = c->fixture.prices;
  struct lade_plan_params params = c->fixture.params;
  struct lade_plan_bounds bounds;
  prices.op_ns = malloc((size_t)n_ops * sizeof(*prices.op_ns));
  assert_non_null(prices.op_ns);
  for (int op = 0; op < n_ops; op++) {
    const bool is_cheaper = c->fixture.graph->ops[op].kind == kind;
    prices.op_ns[op] = (int64_t)((double)c->fixture.prices.op_ns[op] * (is_cheaper ? share : 1));
  }
  params.prices = &prices;
  lade_planner *planner = planner_open(&params, &bounds);
  assert_int_equal(bounds.min_bytes, c->budgets[0]);
  for (int i = 0; i < c->n_budgets; i++)
    plans_compare(c, &params, planner, i);
  lade_planner_destroy(planner);
  free(prices.op_ns);
}

static void study_run(const struct study *study)
{
  static const double shares[] = {0.9, 0.65, 0.4};
  struct comparison c;
  bool is_seen[LADE_N_OP_KINDS] = {false};
  int n_kinds = 0;
  comparison_init(&c, study);
  for (int op = 0; op < c.fixture.graph->n_ops; op++) {
    const enum lade_op_kind kind = c.fixture.graph->ops[op].kind;
    if (is_seen[kind] || (study->kind == LADE_N_OP_KINDS ? c.fixture.graph->ops[op].is_backward : study->kind != kind))
      continue;
    is_seen[kind] = true;
    op_cheapen(&c, kind, shares[++n_kinds % (int)LADE_COUNT(shares)]);
  }
  print_message("%s on %s: %d plans, %d slower by more than 2 %%\n", study->model, study->machine, c.n_cases,
                c.n_slower);
  assert_true(c.n_cases >= n_kinds * c.n_budgets / 2 && n_kinds > 0);
  assert_true(c.n_slower * 20 <= c.n_cases);
  comparison_finish(&c);
}

static void a_cheaper_op_makes_no_plan_of_a_small_model_slower(void **state)
{
  static const struct study study = {"baby", "h100-80g", 8, {0, 56 * MIB, 112 * MIB},
                                     LADE_N_OP_KINDS};
  study_run(&study);
}

/* Descents that may raise the peak lose 23 % here. */
static void a_cheaper_slope_makes_no_plan_of_gpt2_slower(void **state)
{
  static const struct study study = {"gpt2-124m", "a100-80g", 16, {0, 500 * MIB}, LADE_OP_MATMUL_GELU_BWD};
  study_run(&study);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_cheaper_op_makes_no_plan_of_a_small_model_slower),
      cmocka_unit_test(a_cheaper_slope_makes_no_plan_of_gpt2_slower),
  };
  return cmocka_run_group_tests_name("plan_prices", tests, NULL, NULL);
}
