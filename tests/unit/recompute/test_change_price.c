/* SPDX-License-Identifier: Apache-2.0 */
/* Prices of changes: recompute chains as a whole pass counts them, shards by their blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "recompute/change_price.h"
#include "tests/support/program_fixture.h"

/*
 * In drawn residencies the price of recomputing one more value is the difference that it makes to a pass over the whole
 * microbatch. In half of them some values are dropped after each backward op.
 */
static void recompute_prices_equal_a_whole_pass(void **state)
{
  uint64_t draw = 1;
  for (int round = 0; round < 60; round++) {
    struct lade_model_graph *graph = program_fixture_graph(round & 1 ? LADE_LLAMA : LADE_GPT2, LADE_BF16, 0);
    struct lade_prices prices = program_fixture_prices(graph);
    const struct lade_unit_costs unit_costs = {.op_ns = prices.op_ns, .n_shards = 1, .n_microbatches = 3};
    struct lade_residency *residency = NULL;
    lade_pricer *pricer = NULL;
    assert_int_equal(lade_residency_create(graph, &residency), 0);
    assert_int_equal(lade_pricer_create(graph, &unit_costs, &pricer), 0);
    for (int tensor = 0; tensor < graph->n_tensors; tensor++) {
      draw = draw * UINT64_C(6364136223846793005) + 1442695040888963407;
      if (lade_tensor_is_repeatable(graph, tensor) && (draw >> 33) % 60 < (uint64_t)round)
        residency->choices[tensor] = (struct lade_choice){
            LADE_RESIDENCY_RECOMPUTE, (round & 2) && (draw >> 40) % 8 == 0 ? LADE_RESIDENCY_RECOMPUTE : 0};
    }
    const double base_ns = lade_pricer_recompute_ns(pricer, residency);
    lade_pricer_rebase(pricer, residency);
    for (int tensor = 0; tensor < graph->n_tensors; tensor++) {
      if (!lade_tensor_is_repeatable(graph, tensor) || residency->choices[tensor].saved != LADE_RESIDENCY_KEEP)
        continue;
      const struct lade_change change = {LADE_CHANGE_SAVED, LADE_RESIDENCY_RECOMPUTE, tensor};
      const double price_ns = lade_change_price(pricer, residency, &change).compute_ns;
      residency->choices[tensor].saved = LADE_RESIDENCY_RECOMPUTE;
      assert_true(price_ns == 3 * (lade_pricer_recompute_ns(pricer, residency) - base_ns));
      residency->choices[tensor].saved = LADE_RESIDENCY_KEEP;
    }
    lade_pricer_destroy(pricer);
    lade_residency_destroy(residency);
    program_fixture_prices_finish(&prices);
    lade_model_graph_destroy(graph);
  }
}

/* Return the pricer's price of @change with state in @n_shards, each link and each gather at a nanosecond per byte. */
static struct lade_queue_times price_of(const struct lade_model_graph *graph, int n_shards, struct lade_change change)
{
  struct lade_prices prices = program_fixture_prices(graph);
  const struct lade_unit_costs unit_costs = {
      .op_ns = prices.op_ns, .update_ns = {prices.update_ns[0], prices.update_ns[1], prices.update_ns[2]},
      .update_near_ns = prices.update_near_ns, .to_host_ns = 1, .to_device_ns = 1, .gather_ns = 1,
      .n_shards = n_shards, .n_grad_shards = n_shards, .n_microbatches = 2};
  struct lade_residency *residency = NULL;
  lade_pricer *pricer = NULL;
  assert_int_equal(lade_residency_create(graph, &residency), 0);
  assert_int_equal(lade_pricer_create(graph, &unit_costs, &pricer), 0);
  lade_pricer_rebase(pricer, residency);
  const struct lade_queue_times load = lade_change_price(pricer, residency, &change);
  lade_pricer_destroy(pricer);
  lade_residency_destroy(residency);
  program_fixture_prices_finish(&prices);
  return load;
}

/*
 * A rank updates and moves its own block; a dropped working copy comes back from the other ranks, over no link of its
 * own.
 */
static void sharded_state_is_priced_by_blocks(void **state)
{
  struct lade_model_graph *graph = program_fixture_graph(LADE_GPT2, LADE_BF16, 0);
  const int weight = graph->params[0].tensor;
  const struct lade_change state_leaves = {LADE_CHANGE_STATE, LADE_TIER_HOST, 0};
  const struct lade_change copy_drops = {LADE_CHANGE_SAVED, LADE_RESIDENCY_HOST, weight};
  const struct lade_change grad_leaves = {LADE_CHANGE_SAVED, LADE_RESIDENCY_HOST, graph->params[0].grad};
  const struct lade_queue_times whole = price_of(graph, 1, state_leaves), block = price_of(graph, 8, state_leaves);
  const struct lade_queue_times dropped = price_of(graph, 8, copy_drops);
  const struct lade_queue_times whole_grad = price_of(graph, 1, grad_leaves), grad = price_of(graph, 8, grad_leaves);
  assert_true(whole.host_ns > 0 && whole.to_host_ns > 0);
  assert_float_equal(block.host_ns, whole.host_ns / 8, 1e-6 * whole.host_ns);
  assert_float_equal(block.to_host_ns, whole.to_host_ns / 8, 1e-6 * whole.to_host_ns);
  assert_float_equal(dropped.comm_ns, 2.0 * (double)graph->tensors[weight].bytes, 1);
  assert_true(dropped.to_device_ns == 0 && dropped.to_host_ns == 0);
  assert_true(whole_grad.to_host_ns > 0 && whole_grad.to_device_ns > 0);
  assert_float_equal(grad.to_host_ns, whole_grad.to_host_ns / 8, 1e-6 * whole_grad.to_host_ns);
  assert_float_equal(grad.to_device_ns, whole_grad.to_device_ns / 8, 1e-6 * whole_grad.to_device_ns);
  lade_model_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(recompute_prices_equal_a_whole_pass),
      cmocka_unit_test(sharded_state_is_priced_by_blocks),
  };
  return cmocka_run_group_tests_name("change_price", tests, NULL, NULL);
}
