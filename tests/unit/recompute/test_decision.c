/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions that go from one rank to the others of its stage. The others build the same programs that their own search
 * would give. Bytes that are not a decision for them are refused. Ranks whose search would decide otherwise have
 * different keys. A recipe states a decision, too.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "recompute/decision.h"
#include "tests/support/names.h"
#include "tests/support/program_fixture.h"

#define PLENTY (UINT64_C(1) << 32)

/* A planner of one rank, with the objects that it borrows. */
struct rank_fixture {
  struct lade_model_graph *graph;
  struct lade_prices prices;
  struct lade_layout layout;
  struct lade_plan_params params;
  lade_planner *planner;
  struct lade_plan_bounds bounds;
};

static void rank_fixture_open(struct rank_fixture *fixture, const struct lade_layout_params *layout_params, int rank)
{
  struct lade_error error = {0};
  *fixture = (struct rank_fixture){.graph = program_fixture_graph(LADE_LLAMA, LADE_BF16, 0)};
  assert_int_equal(lade_layout_init(layout_params, &error, &fixture->layout), 0);
  fixture->layout.rank = rank;
  fixture->prices = program_fixture_prices(fixture->graph);
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    fixture->prices.comm[axis] = (struct lade_transfer_price){8000, 0.05};
  fixture->params = (struct lade_plan_params){.struct_size = sizeof(fixture->params), .graph = fixture->graph,
                                              .layout = &fixture->layout, .prices = &fixture->prices,
                                              .n_microbatches = 4, .chunk_bytes = 65536, .host_bytes = PLENTY};
  assert_int_equal(lade_planner_create(&fixture->params, &error, &fixture->planner), 0);
  assert_int_equal(lade_planner_get_bounds(fixture->planner, &fixture->bounds), 0);
}

static void rank_fixture_close(struct rank_fixture *fixture)
{
  lade_planner_destroy(fixture->planner);
  program_fixture_prices_finish(&fixture->prices);
  lade_model_graph_destroy(fixture->graph);
}

static struct lade_plan *plan_get(const struct rank_fixture *fixture, uint64_t budget_bytes)
{
  struct lade_error error = {0};
  struct lade_plan *plan = NULL;
  assert_int_equal(lade_planner_plan(fixture->planner, budget_bytes, &error, &plan), 0);
  return plan;
}

/* Open a planner for the tests of bytes. */
static int rank_fixture_setup(void **state)
{
  static struct rank_fixture fixture;
  const struct lade_layout_params params = {.struct_size = sizeof(params), .dp = 2, .zero = 1};
  rank_fixture_open(&fixture, &params, 0);
  *state = &fixture;
  return 0;
}

static int rank_fixture_teardown(void **state)
{
  rank_fixture_close(*state);
  return 0;
}

/* Serialise @fixture's decision for @plan, as other ranks get it. */
static void decision_send(const struct rank_fixture *fixture, const struct lade_plan *plan, void **ret_data,
                          uint64_t *ret_bytes)
{
  struct lade_error error = {0};
  struct lade_decision decision = {.residency = plan->residency, .bounds = fixture->bounds,
                                   .streaming = fixture->prices.streaming};
  memcpy(decision.peak_bytes, plan->peak_bytes, sizeof(decision.peak_bytes));
  assert_int_equal(lade_decision_write(&decision, &error, ret_data, ret_bytes), 0);
}

static bool instrs_equal(const struct lade_instr *a, const struct lade_instr *b)
{
  return memcmp(a, b, offsetof(struct lade_instr, waits) + sizeof(a->waits)) == 0 && a->predicted_ns == b->predicted_ns;
}

static bool operands_equal(const struct lade_operand *a, const struct lade_operand *b)
{
  return a->buffer == b->buffer && a->access == b->access && a->role == b->role && a->offset == b->offset &&
         a->bytes == b->bytes && memcmp(&a->reads, &b->reads, sizeof(a->reads)) == 0 &&
         memcmp(&a->makes, &b->makes, sizeof(a->makes)) == 0;
}

static bool buffers_equal(const struct lade_buffer *a, const struct lade_buffer *b)
{
  return a->space == b->space && a->owner == b->owner && a->bytes == b->bytes && a->offset == b->offset &&
         a->first == b->first && a->last == b->last && a->is_resident == b->is_resident;
}

/* Compare all fields, without the padding between them. */
static void assert_same_program(const struct lade_program *program, const struct lade_program *other)
{
  assert_int_equal(program->n_instrs, other->n_instrs);
  assert_int_equal(program->n_operands, other->n_operands);
  assert_int_equal(program->n_buffers, other->n_buffers);
  for (int i = 0; i < program->n_instrs; i++)
    assert_true(instrs_equal(&program->instrs[i], &other->instrs[i]));
  for (int i = 0; i < program->n_operands; i++)
    assert_true(operands_equal(&program->operands[i], &other->operands[i]));
  for (int i = 0; i < program->n_buffers; i++)
    assert_true(buffers_equal(&program->buffers[i], &other->buffers[i]));
  assert_memory_equal(program->peak_bytes, other->peak_bytes, sizeof(program->peak_bytes));
  assert_int_equal(program->predicted_ns, other->predicted_ns);
}

/* Followers run no search, and get the search's own answer for their rank to the byte, in every budget. */
static void ranks_of_a_stage_follow_the_first(void **state)
{
  const struct lade_layout_params layouts[] = {
      {.struct_size = sizeof(layouts[0]), .dp = 4, .zero = LADE_ZERO_MAX},
      {.struct_size = sizeof(layouts[0]), .dp = 4, .zero = 2, .shard = 2},
      {.struct_size = sizeof(layouts[0]), .dp = 4}};
  struct lade_error error = {0};
  for (size_t i = 0; i < LADE_COUNT(layouts); i++) {
    struct rank_fixture fixtures[2];
    rank_fixture_open(&fixtures[0], &layouts[i], 0);
    rank_fixture_open(&fixtures[1], &layouts[i], 3);
    const struct lade_plan_bounds *bounds = &fixtures[0].bounds;
    const uint64_t budgets[] = {bounds->min_bytes, (bounds->min_bytes + bounds->unconstrained_bytes) / 2, PLENTY};
    for (size_t k = 0; k < LADE_COUNT(budgets); k++) {
      struct lade_plan *decided = plan_get(&fixtures[0], budgets[k]), *searched = plan_get(&fixtures[1], budgets[k]);
      struct lade_plan *plan;
      struct lade_decision decision;
      void *data;
      uint64_t bytes;
      decision_send(&fixtures[0], decided, &data, &bytes);
      assert_int_equal(lade_decision_read(data, bytes, fixtures[1].graph, &error, &decision), 0);
      assert_memory_equal(&decision.bounds.min_bytes, &bounds->min_bytes, sizeof(bounds->min_bytes));
      assert_int_equal(lade_plan_follow(&fixtures[1].params, &decision, budgets[k], &error, &plan), 0);
      assert_true(plan->train->is_proved && plan->eval->is_proved && plan->peak_bytes[LADE_DEVICE] <= budgets[k]);
      assert_int_equal(lade_plan_compare(decided, plan, &error), 0);
      assert_same_program(plan->train, searched->train);
      assert_same_program(plan->eval, searched->eval);
      lade_plan_destroy(plan);
      decision.peak_bytes[LADE_DEVICE] /= 2;
      assert_int_equal(lade_plan_follow(&fixtures[1].params, &decision, budgets[k], &error, &plan), -EINVAL);
      assert_names(error.text, "rank", "stage");
      lade_decision_finish(&decision);
      free(data);
      lade_plan_destroy(searched);
      lade_plan_destroy(decided);
    }
    rank_fixture_close(&fixtures[1]);
    rank_fixture_close(&fixtures[0]);
  }
}

/* A decision that is cut, longer, of another graph, or has any bit flipped is refused, and nothing leaks. */
static void incomplete_decisions_are_refused(void **state)
{
  const struct rank_fixture *fixture = *state;
  struct lade_plan *plan = plan_get(fixture, fixture->bounds.min_bytes);
  struct lade_model_graph *other = program_fixture_graph(LADE_GPT2, LADE_BF16, 0);
  struct lade_decision decision;
  struct lade_error error = {0};
  uint64_t bytes;
  void *data;
  decision_send(fixture, plan, &data, &bytes);
  unsigned char *longer = calloc(bytes + 1, 1), *turned = data;
  assert_non_null(longer);
  memcpy(longer, data, bytes);
  for (uint64_t n = 0; n < bytes; n++) {
    void *part = malloc(n + 1); /* of that size, so that a read past it is detected */
    memcpy(part, data, n);
    assert_int_equal(lade_decision_read(part, n, fixture->graph, &error, &decision), -EBADMSG);
    free(part);
  }
  assert_int_equal(lade_decision_read(longer, bytes + 1, fixture->graph, &error, &decision), -EBADMSG);
  for (uint64_t bit = 0; bit < 8 * bytes; bit++) {
    turned[bit / 8] ^= (unsigned char)(1u << bit % 8);
    const int status = lade_decision_read(data, bytes, fixture->graph, &error, &decision);
    assert_true(status == -EINVAL || status == -EBADMSG);
    assert_true(*error.text);
    turned[bit / 8] ^= (unsigned char)(1u << bit % 8);
  }
  assert_int_equal(lade_decision_read(data, bytes, other, &error, &decision), -EINVAL);
  assert_names(error.text, "tensors", "parameters");
  turned[8]++;
  assert_int_equal(lade_decision_read(data, bytes, fixture->graph, &error, &decision), -EINVAL);
  assert_names(error.text, "version");
  turned[8]--;
  assert_int_equal(lade_decision_read(data, bytes, fixture->graph, &error, &decision), 0);
  lade_decision_finish(&decision);
  lade_decision_finish(&decision);
  free(longer);
  free(data);
  lade_model_graph_destroy(other);
  lade_plan_destroy(plan);
}

/* Bytes with the right checksum, one of whose choices does not exist, are refused. */
static void decisions_with_unknown_choices_are_refused(void **state)
{
  const struct rank_fixture *fixture = *state;
  struct lade_plan *plan = plan_get(fixture, fixture->bounds.min_bytes);
  struct lade_residency *residency = plan->residency;
  uint8_t *const wrong[] = {&residency->choices[3].saved, &residency->choices[3].spill, &residency->state_tiers[0],
                            &residency->weight_tiers[0]};
  struct lade_error error = {0};
  for (size_t i = 0; i < LADE_COUNT(wrong); i++) {
    const uint8_t before = *wrong[i];
    struct lade_decision decision;
    uint64_t bytes;
    void *data;
    *wrong[i] = 200;
    decision_send(fixture, plan, &data, &bytes);
    assert_int_equal(lade_decision_read(data, bytes, fixture->graph, &error, &decision), -EBADMSG);
    assert_names(error.text, "stage", "damaged");
    *wrong[i] = before;
    free(data);
  }
  lade_plan_destroy(plan);
}

/* The key covers all inputs of the search, and none of a rank's own. */
static void ranks_that_decide_alike_have_one_key(void **state)
{
  const struct lade_layout_params layout_params = {.struct_size = sizeof(layout_params), .dp = 4,
                                                   .zero = LADE_ZERO_MAX};
  const struct lade_change pin = {LADE_CHANGE_STATE, LADE_TIER_HOST, 0};
  struct rank_fixture fixture;
  rank_fixture_open(&fixture, &layout_params, 0);
  struct lade_prices prices = fixture.prices;
  struct lade_layout last = fixture.layout, replicas = fixture.layout;
  const struct lade_plan_params base = fixture.params;
  struct lade_plan_params others[12];
  for (size_t i = 0; i < LADE_COUNT(others); i++)
    others[i] = base;
  others[0].n_microbatches++;
  others[1].is_unified = !base.is_unified;
  others[2].optimizer_in_backward = !base.optimizer_in_backward;
  others[3].chunk_bytes *= 2;
  others[4].host_bytes++;
  others[5].store_bytes++;
  others[6].recipe = LADE_RECIPE_FULL;
  others[7].overrides = &pin;
  others[7].n_overrides = 1;
  others[8].layout = NULL;
  others[9].prices = &prices;
  prices.clip_ns++;
  replicas.zero = 0;
  others[10].layout = &replicas;
  struct lade_model_graph *graph = program_fixture_graph(LADE_GPT2, LADE_BF16, 0);
  struct lade_prices graph_prices = program_fixture_prices(graph);
  others[11].graph = graph;
  others[11].prices = &graph_prices;
  for (size_t i = 0; i < LADE_COUNT(others); i++)
    assert_true(lade_plan_params_key(&others[i]) != lade_plan_params_key(&base));
  struct lade_plan_params own = base;
  own.layout = &last;
  last.rank = 3;
  assert_true(lade_plan_params_key(&own) == lade_plan_params_key(&base));
  program_fixture_prices_finish(&graph_prices);
  lade_model_graph_destroy(graph);
  rank_fixture_close(&fixture);
}

/* Selective recompute repeats the activation of an MLP, whatever it is. */
static void selective_recompute_repeats_every_activation(void **state)
{
  const enum lade_family families[] = {LADE_GPT2, LADE_LLAMA, LADE_GEMMA, LADE_FALCON};
  const enum lade_op_kind kinds[] = {LADE_OP_GELU, LADE_OP_SWIGLU, LADE_OP_GATED, LADE_OP_ACTIVATION};
  for (size_t i = 0; i < LADE_COUNT(families); i++) {
    struct lade_model_graph *graph = program_fixture_graph(families[i], LADE_BF16, 0);
    struct lade_residency *residency;
    int n_found = 0;
    assert_int_equal(lade_residency_create(graph, &residency), 0);
    lade_residency_apply_recipe(graph, LADE_RECIPE_SELECTIVE, residency);
    for (int op = 0; op < graph->n_fwd_ops; op++) {
      const bool is_dropped = residency->choices[graph->ops[op].out[0]].saved == LADE_RESIDENCY_RECOMPUTE;
      n_found += graph->ops[op].kind == kinds[i];
      assert_true(graph->ops[op].kind != kinds[i] || is_dropped);
    }
    assert_true(n_found > 0);
    lade_residency_destroy(residency);
    lade_model_graph_destroy(graph);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(selective_recompute_repeats_every_activation),
      cmocka_unit_test(ranks_of_a_stage_follow_the_first),
      cmocka_unit_test(ranks_that_decide_alike_have_one_key),
      cmocka_unit_test_setup_teardown(incomplete_decisions_are_refused, rank_fixture_setup, rank_fixture_teardown),
      cmocka_unit_test_setup_teardown(decisions_with_unknown_choices_are_refused,
                                      rank_fixture_setup, rank_fixture_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
