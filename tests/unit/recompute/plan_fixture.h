/* SPDX-License-Identifier: Apache-2.0 */
/* A preset model, its prices on a preset machine, and the parameters of their planner. For tests of one thread. */
#ifndef LADE_TESTS_PLAN_FIXTURE_H
#define LADE_TESTS_PLAN_FIXTURE_H

#include "base/cpu.h"
#include "kernels/kernels.h"
#include "machine/cost.h"
#include "recompute/plan.h"

#define PLAN_FIXTURE_CHUNK (UINT64_C(2) << 20)
#define PLAN_FIXTURE_HOST_BYTES (UINT64_C(200) << 30)

struct plan_fixture {
  struct lade_kernels kernels;
  struct lade_model model;
  struct lade_model_graph *graph;
  struct lade_cost cost;
  struct lade_prices prices;
  struct lade_plan_params params;
};

/* Fill @fixture, which is not moved afterwards: its parts point into it. Fails the test on an error. */
static inline void plan_fixture_init(struct plan_fixture *fixture, const char *model, const char *machine_name,
                                     int64_t batch)
{
  struct lade_error error = {0};
  struct lade_machine machine;
  const struct lade_cpu cpu = lade_cpu_get();
  *fixture = (struct plan_fixture){0};
  lade_kernels_init(&fixture->kernels, &cpu);
  assert_int_equal(lade_model_preset(model, &fixture->model, &error), 0);
  assert_int_equal(lade_machine_preset(machine_name, &error, &machine), 0);
  const struct lade_model_graph_params graph_params = {
      .struct_size = sizeof(graph_params), .model = &fixture->model, .dtype = LADE_BF16, .batch = batch,
      .seq_len = fixture->model.context, .kernels = &fixture->kernels, .n_threads = 1, .grad_dtype = LADE_F32,
      .fuses_gelu = lade_machine_fuses_gelu(&machine, LADE_BF16)};
  assert_int_equal(lade_model_graph_create(&graph_params, &error, &fixture->graph), 0);
  lade_cost_init(&fixture->cost, &machine);
  assert_int_equal(lade_cost_prices(&fixture->cost, fixture->graph, &fixture->prices), 0);
  fixture->params = (struct lade_plan_params){
      .struct_size = sizeof(fixture->params), .graph = fixture->graph, .prices = &fixture->prices,
      .n_microbatches = 1, .is_unified = machine.is_unified, .chunk_bytes = PLAN_FIXTURE_CHUNK,
      .host_bytes = PLAN_FIXTURE_HOST_BYTES};
}

static inline void plan_fixture_finish(struct plan_fixture *fixture)
{
  lade_prices_finish(&fixture->prices);
  lade_cost_finish(&fixture->cost);
  lade_model_graph_destroy(fixture->graph);
}

#endif
