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
  d->params.zero = dp > 1 ? draw(LADE_ZERO_MAX + 1) : 0;
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
  static const enum lade_tier tiers[] = {LADE_TIER_DEVICE, LADE_TIER_DEVICE, LADE_TIER_HOST, LADE_TIER_STORE};
  d->state_tier = tiers[draw((int)LADE_COUNT(tiers))];
  if (lade_share_residencies_make(&d->job, &key, &error, residencies))
    return false;
  d->share = residencies->items[draw(residencies->n)];
  return true;
}

static const struct lade_layout_cost_params *drawn_priced(const struct drawn *d,
                                                          struct lade_layout_cost_params *priced)
{
  *priced = (struct lade_layout_cost_params){&d->job, &d->layout, d->micro_batch, &d->share};
  return priced;
}

/* Prove the stages that @cost names. Return the most that one needs. */
static void stages_prove(const struct drawn *d, const struct lade_layout_cost *cost, uint64_t budget_bytes,
                         uint64_t *ret_device, uint64_t *ret_host)
{
  uint64_t stored = 0;
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
    stored = LADE_MAX(stored, program.store_bytes);
  }
  if (cost->bound_store_bytes > stored || (d->state_tier == LADE_TIER_STORE) != (cost->bound_store_bytes > 0))
    fail_msg("%s: the bound of drives is %llu, and programs have %llu there", d->job.model->name,
             (unsigned long long)cost->bound_store_bytes, (unsigned long long)stored);
}

static void no_program_needs_less_than_its_bound(void **state)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  double sum = 0;
  assert_non_null(residencies);
  for (int n = 0; n < N_DRAWS;) {
    const uint64_t at = seed;
    struct drawn d;
    struct lade_layout_cost_params priced;
    struct lade_layout_cost cost;
    struct lade_error error;
    uint64_t device, host;
    if (!layout_draw(&d, residencies) ||
        lade_layout_cost_make(drawn_priced(&d, &priced), d.state_tier, &error, &cost))
      continue;
    n++;
    stages_prove(&d, &cost, draw(2) ? cost.peak_bytes : cost.bound_bytes, &device, &host);
    if (cost.bound_bytes > device || cost.bound_host_bytes > host || cost.bound_sum_bytes > device + host)
      fail_msg("seed %llu, %s: bounds %llu and %llu, programs %llu and %llu", (unsigned long long)at,
               d.job.model->name, (unsigned long long)cost.bound_bytes, (unsigned long long)cost.bound_host_bytes,
               (unsigned long long)device, (unsigned long long)host);
    sum += (double)cost.bound_bytes / (double)device;
  }
  assert_true(sum / N_DRAWS > 0.8); /* a bound of 0 would hold too */
  free(residencies);
}

/* Verify the bounds of @model in one layout, with dropout and without. */
static void bounds_verify(const struct lade_model *model, const struct lade_layout_params *params, int64_t batch,
                          enum lade_recipe recipe, enum lade_tier state_tier)
{
  for (int has_dropout = 0; has_dropout < 2; has_dropout++) {
    struct drawn d = {.params = *params, .micro_batch = 1, .state_tier = state_tier};
    const struct lade_layout_cost_params priced = {&d.job, &d.layout, 1, &d.share};
    const struct lade_share_key key = {.tp = params->tp, .is_sequence = params->is_sequence, .micro_batch = 1,
                                       .recipe = recipe};
    struct lade_layout_cost cost;
    struct lade_error error;
    uint64_t device, host;
    d.job = (struct lade_layout_job){.cluster = &cluster, .model = model, .kernels = &kernels, .batch = batch,
                                     .seq_len = 1024, .dtype = LADE_BF16, .grad_dtype = LADE_F32,
                                     .dropout = has_dropout ? 0.1 : 0};
    assert_int_equal(lade_layout_init(&d.params, &error, &d.layout), 0);
    assert_int_equal(lade_share_cost_make(&d.job, &key, &error, &d.share), 0);
    assert_int_equal(lade_layout_cost_make(&priced, state_tier, &error, &cost), 0);
    stages_prove(&d, &cost, cost.peak_bytes, &device, &host);
    assert_true(cost.bound_bytes <= device && cost.bound_host_bytes <= host && cost.bound_sum_bytes <= device + host);
  }
}

/* Sharded gradients of the only microbatch leave for the host one by one; no moment holds all. */
static void gradients_of_one_microbatch_are_not_held(void **state)
{
  const struct lade_layout_params params = {.struct_size = sizeof(params), .tp = 4, .pp = 1, .dp = 2, .zero = 1,
                                            .is_sequence = true, .virtual_stages = 1, .n_kv_heads = 20};
  bounds_verify(&models[0], &params, 2, LADE_RECIPE_SELECTIVE, LADE_TIER_HOST);
}

/* The first stage saves tokens instead of the embedding's output, if this is made again. */
static void the_embedding_of_the_first_stage_may_be_made_again(void **state)
{
  const struct lade_layout_params params = {.struct_size = sizeof(params), .tp = 2, .pp = 4, .dp = 4, .zero = 1,
                                            .schedule = LADE_SCHEDULE_INTERLEAVED, .virtual_stages = 2,
                                            .n_kv_heads = 20};
  bounds_verify(&models[0], &params, 80, LADE_RECIPE_SELECTIVE, LADE_TIER_DEVICE);
}

/* The core's bound of a step is below the step by the schedule, so that candidates may be left out by it. */
static void no_step_takes_less_than_its_bound(void **state)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  double sum = 0;
  assert_non_null(residencies);
  for (int n = 0; n < N_DRAWS;) {
    struct drawn d;
    struct lade_layout_cost_params priced;
    struct lade_layout_core core;
    struct lade_layout_cost bound, cost;
    struct lade_error error;
    double span_ns = 0;
    if (!layout_draw(&d, residencies) ||
        lade_layout_core_make(drawn_priced(&d, &priced), true, &error, &core))
      continue;
    n++;
    assert_int_equal(lade_layout_span_bound(&priced, &span_ns), 0);
    assert_true(span_ns == core.span_ns);
    lade_layout_core_cost(&d.job, &core, &d.layout, d.state_tier, &bound);
    assert_int_equal(lade_layout_core_make(&priced, false, &error, &core), 0);
    lade_layout_core_cost(&d.job, &core, &d.layout, d.state_tier, &cost);
    assert_true(bound.step_ns <= cost.step_ns * (1 + 1e-12));
    sum += span_ns / core.span_ns;
  }
  assert_true(sum / N_DRAWS > 0.95); /* candidates above the best are left out before their schedules run */
  free(residencies);
}

static void units_compare(const struct lade_unit_cost *a, const struct lade_unit_cost *b)
{
  assert_true(a->forward_ns == b->forward_ns && a->backward_ns == b->backward_ns &&
              a->skipped_ns == b->skipped_ns && a->weights_ns == b->weights_ns &&
              a->unhidden_ns == b->unhidden_ns && a->exposed_ns == b->exposed_ns &&
              a->saved_bytes == b->saved_bytes && a->peak_bytes == b->peak_bytes &&
              a->weights_bytes == b->weights_bytes && a->bound_weights_bytes == b->bound_weights_bytes &&
              a->host_bytes == b->host_bytes && a->again_flops == b->again_flops && a->n_params == b->n_params &&
              a->n_expert_params == b->n_expert_params);
  assert_memory_equal(a->tensor_ns, b->tensor_ns, sizeof(a->tensor_ns));
  assert_memory_equal(a->attention_ns, b->attention_ns, sizeof(a->attention_ns));
  assert_memory_equal(a->bound_peak_bytes, b->bound_peak_bytes, sizeof(a->bound_peak_bytes));
}

/* Assert that two shares have equal fields; their padding may differ. */
static void shares_compare(const struct lade_share_cost *a, const struct lade_share_cost *b)
{
  units_compare(&a->embed, &b->embed);
  units_compare(&a->layer, &b->layer);
  units_compare(&a->head, &b->head);
  assert_int_equal(a->software, b->software);
  assert_int_equal(a->residency.recipe, b->residency.recipe);
  assert_int_equal(a->residency.n, b->residency.n);
  assert_memory_equal(a->residency.saved, b->residency.saved, (size_t)a->residency.n);
}

/* Shares that differ in software alone have one graph: with it their costs are those of a graph of their own. */
static void a_graph_serves_all_software(void **state)
{
  struct lade_share_residencies *residencies = calloc(2, sizeof(*residencies));
  const struct lade_layout_job job = {.cluster = &cluster, .model = &models[1], .kernels = &kernels, .batch = 32,
                                      .seq_len = 1024, .dtype = LADE_BF16, .grad_dtype = LADE_F32};
  static const enum lade_recipe recipes[] = {LADE_RECIPE_FULL, LADE_RECIPE_AUTO};
  struct lade_share_key key = {.tp = 2, .is_sequence = true, .micro_batch = 2, .recipe = LADE_RECIPE_FULL};
  struct lade_model_graph *graph;
  struct lade_error error;
  assert_non_null(residencies);
  assert_int_equal(lade_share_graph_make(&job, &key, &error, &graph), 0);
  for (int i = 0; i < 2 * (LADE_N_SOFTWARE - LADE_SOFTWARE_LADE); i++) {
    key.recipe = recipes[i % 2];
    key.software = (enum lade_software)(LADE_SOFTWARE_LADE + i / 2);
    for (int is_given = 0; is_given < 2; is_given++) {
      key.graph = is_given ? graph : NULL;
      assert_int_equal(lade_share_residencies_make(&job, &key, &error, &residencies[is_given]), 0);
    }
    assert_int_equal(residencies[0].n, residencies[1].n);
    assert_true(residencies[0].n > 0);
    for (int at = 0; at < residencies[0].n; at++)
      shares_compare(&residencies[0].items[at], &residencies[1].items[at]);
  }
  lade_model_graph_destroy(graph);
  free(residencies);
}

/* Programs that are measured find the bytes of the proof; above the budget they find no more. */
static void a_measured_program_decides_as_its_proof(void **state)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  assert_non_null(residencies);
  for (int n = 0; n < N_DRAWS / 8;) {
    struct drawn d;
    struct lade_layout_cost_params priced;
    struct lade_layout_cost cost;
    struct lade_stage_program measured, proved;
    struct lade_error error;
    if (!layout_draw(&d, residencies) ||
        lade_layout_cost_make(drawn_priced(&d, &priced), d.state_tier, &error, &cost))
      continue;
    n++;
    const uint64_t budget_bytes = draw(2) ? cost.peak_bytes : cost.bound_bytes;
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
                                             .schedule = -1, .is_sequence = -1, .n_max = 1, .tp = 1, .pp = 1,
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
      cmocka_unit_test(gradients_of_one_microbatch_are_not_held),
      cmocka_unit_test(the_embedding_of_the_first_stage_may_be_made_again),
      cmocka_unit_test(no_step_takes_less_than_its_bound),
      cmocka_unit_test(a_graph_serves_all_software),
      cmocka_unit_test(a_measured_program_decides_as_its_proof),
      cmocka_unit_test(a_correction_is_of_its_tier_and_precision),
  };
  return cmocka_run_group_tests(tests, fixtures_init, NULL);
}
