/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lower bounds by which the search leaves layouts out: of drawn layouts, no proved program needs less device or host
 * memory, and no schedule takes less time.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "recompute/layout_cost.h"

#define N_DRAWS 160

static struct lade_cluster cluster;
static struct lade_kernels kernels;
static struct lade_model models[4];

static int fixtures_init(void **state)
{
  struct lade_error error;
  const struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&kernels, &cpu);
  assert_int_equal(lade_cluster_preset("dgx-h100", &error, &cluster), 0);
  assert_int_equal(lade_model_preset("gpt2-1.5b", &models[0], &error), 0);
  assert_int_equal(lade_model_preset("llama3-8b", &models[1], &error), 0);
  assert_int_equal(lade_model_preset("gpt3-175b", &models[2], &error), 0);
  assert_int_equal(lade_model_preset("baby", &models[3], &error), 0);
  models[0].heads = models[0].n_kv_heads = 20; /* so that tp 2 and 4 divide them */
  models[0].layers = 13;
  models[1].layers = 10;
  models[2].layers = 8;
  return 0;
}

static uint64_t seed = 20251128;

/* Return a number below @n. */
static int draw(int n)
{
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int)((seed >> 33) % (uint64_t)n);
}

struct drawn {
  struct lade_layout_job job;
  struct lade_layout_params params;
  struct lade_layout layout;
  int64_t micro_batch;
  enum lade_tier state_tier;
  struct lade_share_cost share;
};

static void params_draw(struct drawn *d)
{
  static const enum lade_schedule schedules[] = {LADE_SCHEDULE_1F1B, LADE_SCHEDULE_GPIPE, LADE_SCHEDULE_ZBH1,
                                                 LADE_SCHEDULE_ZBH2, LADE_SCHEDULE_INTERLEAVED};
  const int tp = 1 << draw(3), pp = 1 << draw(3), dp = 1 << draw(3);
  d->params = (struct lade_layout_params){.struct_size = sizeof(d->params), .tp = tp, .pp = pp, .dp = dp,
                                          .is_sequence = tp > 1 && draw(2), .virtual_stages = 1,
                                          .n_kv_heads = d->job.model->n_kv_heads};
  d->params.zero = dp > 1 ? draw(LADE_ZERO_MOST + 1) : 0;
  d->params.schedule = pp > 1 ? schedules[draw((int)LADE_COUNT(schedules))] : LADE_SCHEDULE_1F1B;
  if (d->params.schedule == LADE_SCHEDULE_INTERLEAVED)
    d->params.virtual_stages = 2;
  d->micro_batch = 1 + draw(2);
  d->job.batch = d->micro_batch * dp *
                 (d->params.schedule == LADE_SCHEDULE_INTERLEAVED ? pp * (1 + draw(5)) : 1 + draw(17));
}

/* Draw a layout with one of its share's residencies; false: it cannot be. */
static bool layout_draw(struct drawn *d, struct lade_share_residencies *residencies)
{
  const struct lade_model *model = &models[draw((int)LADE_COUNT(models))];
  struct lade_error error;
  d->job = (struct lade_layout_job){.cluster = &cluster, .model = model, .kernels = &kernels,
                                    .seq_len = LADE_MIN(1024, model->context), .dtype = draw(4) ? LADE_BF16 : LADE_F32,
                                    .grad_dtype = LADE_F32, .dropout = draw(3) ? 0 : 0.1};
  if (d->job.dtype == LADE_BF16)
    d->job.grad_dtype = draw(3) ? LADE_F32 : LADE_BF16;
  params_draw(d);
  if (lade_layout_init(&d->params, &error, &d->layout))
    return false;
  const struct lade_share_key key = {d->params.tp, d->params.is_sequence, d->micro_batch, LADE_RECIPE_AUTO};
  d->state_tier = draw(3) ? LADE_TIER_DEVICE : LADE_TIER_HOST;
  if (lade_share_residencies_make(&d->job, &key, &error, residencies))
    return false;
  d->share = residencies->items[draw(residencies->n)];
  return true;
}

/* Prove the stages that @cost names. Return the most that one needs. */
static void stages_prove(const struct drawn *d, const struct lade_layout_cost *cost, uint64_t budget_bytes,
                         uint64_t *ret_device, uint64_t *ret_host)
{
  *ret_device = *ret_host = 0;
  for (int i = 0; i < cost->n_stages; i++) {
    struct lade_stage_program program;
    struct lade_layout layout = d->layout;
    const struct lade_stage_params params = {
        &d->job, &layout, d->micro_batch, {d->share.residency, d->state_tier, budget_bytes}, LADE_STAGE_PROOF};
    struct lade_error error = {0};
    layout.rank = lade_mesh_member(&layout.mesh, LADE_AXIS_PP, 0, cost->stages[i]);
    if (lade_stage_program_make(&params, &error, &program))
      fail_msg("%s", error.text);
    *ret_device = LADE_MAX(*ret_device, program.peak_bytes);
    *ret_host = LADE_MAX(*ret_host, program.host_bytes);
  }
}

static void no_program_needs_less_than_its_bound(void **state)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  double sum = 0;
  assert_non_null(residencies);
  for (int n = 0; n < N_DRAWS;) {
    const uint64_t at = seed;
    struct drawn d;
    struct lade_layout_cost cost;
    struct lade_error error;
    uint64_t device, host;
    if (!layout_draw(&d, residencies) ||
        lade_layout_cost_make(&d.job, &d.layout, d.micro_batch, d.state_tier, &d.share, &error, &cost))
      continue;
    n++;
    stages_prove(&d, &cost, draw(2) ? cost.peak_bytes : cost.least_bytes, &device, &host);
    if (cost.least_bytes > device || cost.least_host_bytes > host || cost.least_sum_bytes > device + host)
      fail_msg("seed %llu, %s: bounds %llu and %llu, programs %llu and %llu", (unsigned long long)at,
               d.job.model->name, (unsigned long long)cost.least_bytes, (unsigned long long)cost.least_host_bytes,
               (unsigned long long)device, (unsigned long long)host);
    sum += (double)cost.least_bytes / (double)device;
  }
  assert_true(sum / N_DRAWS > 0.8); /* a bound of 0 would hold too */
  free(residencies);
}

/* The core's bound of a step is below the step by the schedule, so that candidates may be left out by it. */
static void no_step_takes_less_than_its_bound(void **state)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  assert_non_null(residencies);
  for (int n = 0; n < N_DRAWS;) {
    struct drawn d;
    struct lade_layout_core core;
    struct lade_layout_cost bound, cost;
    struct lade_error error;
    if (!layout_draw(&d, residencies) ||
        lade_layout_core_make(&d.job, &d.layout, d.micro_batch, &d.share, true, &error, &core))
      continue;
    n++;
    lade_layout_core_cost(&d.job, &core, &d.layout, d.state_tier, &bound);
    assert_int_equal(lade_layout_core_make(&d.job, &d.layout, d.micro_batch, &d.share, false, &error, &core), 0);
    lade_layout_core_cost(&d.job, &core, &d.layout, d.state_tier, &cost);
    assert_true(bound.step_ns <= cost.step_ns * (1 + 1e-12));
  }
  free(residencies);
}

/* Programs that are measured find the bytes of the proof; above the budget they find no more. */
static void a_measured_program_decides_as_its_proof(void **state)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  assert_non_null(residencies);
  for (int n = 0; n < N_DRAWS / 8;) {
    struct drawn d;
    struct lade_layout_cost cost;
    struct lade_stage_program measured, proved;
    struct lade_error error;
    if (!layout_draw(&d, residencies) ||
        lade_layout_cost_make(&d.job, &d.layout, d.micro_batch, d.state_tier, &d.share, &error, &cost))
      continue;
    n++;
    const uint64_t budget_bytes = draw(2) ? cost.peak_bytes : cost.least_bytes;
    struct lade_stage_params params = {
        &d.job, &d.layout, d.micro_batch, {d.share.residency, d.state_tier, budget_bytes}, LADE_STAGE_PROOF};
    assert_int_equal(lade_stage_program_make(&params, &error, &proved), 0);
    params.aim = LADE_STAGE_MEASURE;
    assert_int_equal(lade_stage_program_make(&params, &error, &measured), 0);
    assert_true(measured.peak_bytes <= proved.peak_bytes);
    assert_true((measured.peak_bytes <= budget_bytes) == (proved.peak_bytes <= budget_bytes));
    if (measured.peak_bytes <= budget_bytes)
      assert_true(measured.peak_bytes == proved.peak_bytes && measured.host_bytes == proved.host_bytes);
  }
  free(residencies);
}

/* A correction is of its state tier and precision, unless it is of the kind. */
static void a_correction_is_of_its_tier_and_precision(void **state)
{
  struct lade_layout_job job = {.cluster = &cluster, .model = &models[0], .kernels = &kernels, .batch = 32,
                                .seq_len = 1024, .dtype = LADE_BF16, .grad_dtype = LADE_F32};
  struct lade_layout_search_params params = {.n_ranks = 4, .device_bytes = UINT64_C(8) << 30, .zero = -1,
                                             .schedule = -1, .is_sequence = -1, .n_most = 1, .tp = 1, .pp = 1,
                                             .host_bytes = UINT64_C(64) << 30};
  struct lade_layout_search first, again;
  struct lade_error error;
  assert_int_equal(lade_layout_search_run(&job, &params, &error, &first), 0);
  struct lade_layout_correction one = {.layout = first.found[0].layout, .micro_batch = first.found[0].micro_batch,
                                       .state_tier = first.found[0].state_tier == LADE_TIER_HOST ? LADE_TIER_DEVICE
                                                                                                 : LADE_TIER_HOST,
                                       .moments = first.found[0].moments, .master = first.found[0].master,
                                       .more = 100};
  params.corrections = &one;
  params.n_corrections = 1;
  for (int is_own = 0; is_own < 2; is_own++) {
    one.state_tier = is_own ? first.found[0].state_tier : one.state_tier;
    assert_int_equal(lade_layout_search_run(&job, &params, &error, &again), 0);
    assert_true((again.found[0].cost.step_ns == first.found[0].cost.step_ns) == !is_own);
    free(again.found);
  }
  one.master = one.master == LADE_MASTER_EXACT ? LADE_MASTER_24BIT : LADE_MASTER_EXACT;
  for (int is_of_kind = 0; is_of_kind < 2; is_of_kind++) {
    one.is_of_kind = is_of_kind;
    const int status = lade_layout_search_run(&job, &params, &error, &again);
    assert_int_equal(status, is_of_kind ? -EOVERFLOW : 0);
    assert_true(is_of_kind || again.found[0].cost.step_ns == first.found[0].cost.step_ns);
    free(again.found);
  }
  free(first.found);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_program_needs_less_than_its_bound),
      cmocka_unit_test(no_step_takes_less_than_its_bound),
      cmocka_unit_test(a_measured_program_decides_as_its_proof),
      cmocka_unit_test(a_correction_is_of_its_tier_and_precision),
  };
  return cmocka_run_group_tests(tests, fixtures_init, NULL);
}
