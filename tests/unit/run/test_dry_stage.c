/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of a cluster's layout, executed dry, takes the time that its simulation predicts, shared links included. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "recompute/layout_cost.h"
#include "run/dry_stage.h"

/* Return the instructions of @program that other queues slow down. */
static int slowed_count(const struct lade_program *program)
{
  int n = 0;
  for (int i = 0; i < program->n_instrs; i++)
    n += program->instrs[i].shared_ns > 0;
  return n;
}

static void shared_links_cost_a_dry_step_what_was_predicted(void **state)
{
  struct lade_cluster cluster;
  struct lade_kernels kernels;
  struct lade_model model;
  struct lade_layout layout;
  struct lade_error error;
  struct lade_dry_stage dry;
  const struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&kernels, &cpu);
  assert_int_equal(lade_cluster_preset("dgx-a100-80g", &error, &cluster), 0);
  assert_int_equal(lade_model_preset("llama3-8b", &model, &error), 0);
  const struct lade_layout_job job = {.cluster = &cluster, .model = &model, .kernels = &kernels, .batch = 64,
                                      .seq_len = 1024, .dtype = LADE_BF16, .grad_dtype = LADE_F32};
  const struct lade_layout_params sizes = {.struct_size = sizeof(sizes), .tp = 2, .dp = 16, .zero = 1,
                                           .n_kv_heads = model.n_kv_heads};
  assert_int_equal(lade_layout_init(&sizes, &error, &layout), 0);
  struct lade_stage_params params = {&job, &layout, 2, {.state_tier = LADE_TIER_HOST,
                                                        .device_bytes = cluster.usable_device_bytes}, LADE_STAGE_RUN};
  const struct lade_share_key key = {2, false, 2, LADE_RECIPE_AUTO};
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  assert_int_equal(lade_share_residencies_make(&job, &key, &error, residencies), 0);
  params.residency.layer = residencies->items[residencies->n - 1].residency; /* with values on the host */
  free(residencies);
  struct lade_stage_build build = {0};
  assert_int_equal(lade_stage_build_make(&params, &error, &build), 0);
  assert_true(slowed_count(build.train) > 10);
  assert_int_equal(lade_dry_stage_run(&job, &build, &error, &dry), 0);
  const double predicted = (double)build.train->predicted_ns;
  if (fabs((double)dry.step_ns / predicted - 1) > 1e-3)
    print_error("a dry step takes %g ms, predicted %g\n", (double)dry.step_ns / 1e6, predicted / 1e6);
  assert_true(fabs((double)dry.step_ns / predicted - 1) <= 1e-3);
  lade_stage_build_finish(&build);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(shared_links_cost_a_dry_step_what_was_predicted)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
