/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs of layouts against the programs that they stand for, and the search against trying everything.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "lade/pack.h"
#include "program/build.h"
#include "recompute/layout_cost.h"

static struct lade_cluster cluster;
static struct lade_kernels kernels;
static struct lade_model gpt2, llama;

static int fixtures_init(void **state)
{
  struct lade_error error;
  const struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&kernels, &cpu);
  assert_int_equal(lade_cluster_preset("dgx-a100-80g", &error, &cluster), 0);
  assert_int_equal(lade_model_preset("gpt2-1.5b", &gpt2, &error), 0);
  assert_int_equal(lade_model_preset("llama3-8b", &llama, &error), 0);
  gpt2.heads = gpt2.n_kv_heads = 20; /* so that tp 2 and 4 divide them */
  return 0;
}

static struct lade_layout_job job_of(const struct lade_model *model, int64_t batch)
{
  return (struct lade_layout_job){.cluster = &cluster, .model = model, .kernels = &kernels, .batch = batch,
                                  .seq_len = 1024, .dtype = LADE_BF16, .grad_dtype = LADE_F32};
}

/* Queues of a program wait for addresses too; with cut rows, which has most collectives, that makes 4 %. */
#define STEP_ERROR 0.05

struct one_layout {
  const char *name;
  const struct lade_model *model;
  struct lade_layout_params params;
  int64_t batch, micro_batch;
  enum lade_recipe recipe;
  bool is_scattered;
  enum lade_tier state_tier;
};

static void costs_make(const struct one_layout *one, const struct lade_layout_job *job, struct lade_layout *ret_layout,
                       struct lade_layout_cost *ret_cost)
{
  struct lade_layout_params params = one->params;
  struct lade_share_cost share;
  struct lade_error error;
  params.struct_size = sizeof(params);
  params.n_kv_heads = one->model->n_kv_heads;
  assert_int_equal(lade_layout_init(&params, &error, ret_layout), 0);
  const struct lade_share_key key = {lade_layout_size(ret_layout, LADE_AXIS_TP), params.is_sequence, one->micro_batch,
                                     one->recipe, job->software};
  assert_int_equal(lade_share_cost_make(job, &key, &error, &share), 0);
  const struct lade_layout_cost_params priced = {job, ret_layout, one->micro_batch, &share};
  assert_int_equal(lade_layout_cost_make(&priced, one->state_tier, &error, ret_cost), 0);
}

/* Prove the program of @one's stage: gathers begin early within @device_bytes; 0: just in time. */
static int stage_prove(const struct one_layout *one, const struct lade_layout_job *job,
                       const struct lade_layout *layout, uint64_t device_bytes, struct lade_stage_program *ret_program)
{
  const struct lade_stage_params params = {
      job, layout, one->micro_batch, {{.recipe = one->recipe}, one->state_tier, device_bytes}, LADE_STAGE_PROOF};
  struct lade_error error;
  return lade_stage_program_make(&params, &error, ret_program);
}

#define LAYOUT(...) {.struct_size = sizeof(struct lade_layout_params), __VA_ARGS__}

static const struct one_layout whole_steps[] = {
    {"one rank, none", &gpt2, LAYOUT(.tp = 1), 8, 2, LADE_RECIPE_NONE},
    {"one rank, full", &gpt2, LAYOUT(.tp = 1), 8, 2, LADE_RECIPE_FULL},
    {"tp2, selective", &gpt2, LAYOUT(.tp = 2), 8, 4, LADE_RECIPE_SELECTIVE},
    {"tp4 cut rows, none", &gpt2, LAYOUT(.tp = 4, .is_sequence = true), 8, 4, LADE_RECIPE_NONE},
    {"llama tp8 cut rows, full", &llama, LAYOUT(.tp = 8, .is_sequence = true), 6, 2, LADE_RECIPE_FULL},
    {"llama tp4, selective", &llama, LAYOUT(.tp = 4), 6, 2, LADE_RECIPE_SELECTIVE},
};

/* A layout of one stage and one replica is one program; its simulated step is the layout's. */
static void a_step_takes_the_time_of_its_program(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(whole_steps); i++) {
    const struct one_layout *one = &whole_steps[i];
    const struct lade_layout_job job = job_of(one->model, one->batch);
    struct lade_layout layout;
    struct lade_layout_cost cost;
    struct lade_stage_program program;
    costs_make(one, &job, &layout, &cost);
    assert_int_equal(stage_prove(one, &job, &layout, 0, &program), 0);
    assert_int_equal(program.n_microbatches, LADE_MIN(3, one->batch / one->micro_batch));
    const double n = (double)(one->batch / one->micro_batch), steps = (double)program.n_microbatches;
    const double expected = (cost.step_ns - cost.skipped_ns - cost.update_ns) / n * steps + cost.update_ns;
    if (fabs((double)program.step_ns / expected - 1) > STEP_ERROR)
      print_error("%s: the program takes %g ms, the layout %g\n", one->name, (double)program.step_ns / 1e6,
                  expected / 1e6);
    assert_true(fabs((double)program.step_ns / expected - 1) <= STEP_ERROR);
  }
}

/* The program sums gradients layer by layer, and the layout takes them together beside the whole backward half. */
#define REPLICAS_ERROR 0.08

static const struct one_layout replicas[] = {
    {"dp 64", &gpt2, LAYOUT(.dp = 64), 256, 2, LADE_RECIPE_NONE},
    {"dp 64, zero 1", &gpt2, LAYOUT(.dp = 64, .zero = 1), 256, 2, LADE_RECIPE_NONE},
    {"dp 64, zero 1 over 8", &gpt2, LAYOUT(.dp = 64, .zero = 1, .shard = 8), 256, 2, LADE_RECIPE_NONE},
    {"dp 64, zero 1 over 8, one microbatch", &gpt2, LAYOUT(.dp = 64, .zero = 1, .shard = 8), 256, 4, LADE_RECIPE_NONE},
    {"llama dp 64, zero 1 over 8, full", &llama, LAYOUT(.dp = 64, .zero = 1, .shard = 8), 1024, 8, LADE_RECIPE_FULL},
    {"llama dp 8, zero 2", &llama, LAYOUT(.dp = 8, .zero = 2), 64, 4, LADE_RECIPE_NONE},
    {"llama dp 8, zero 3", &llama, LAYOUT(.dp = 8, .zero = 3), 64, 4, LADE_RECIPE_NONE},
    {"llama dp 8, zero 3, full", &llama, LAYOUT(.dp = 8, .zero = 3), 128, 8, LADE_RECIPE_FULL},
    {"dp 64, zero 2", &gpt2, LAYOUT(.dp = 64, .zero = 2), 256, 2, LADE_RECIPE_NONE},
    {"dp 64, zero 3 over 8", &gpt2, LAYOUT(.dp = 64, .zero = 3, .shard = 8), 256, 2, LADE_RECIPE_NONE},
    {"dp 64, zero 2 over 8", &gpt2, LAYOUT(.dp = 64, .zero = 2, .shard = 8), 256, 2, LADE_RECIPE_NONE},
    {"llama tp2 cut rows dp 16, zero 1", &llama, LAYOUT(.tp = 2, .dp = 16, .zero = 1, .is_sequence = true), 64, 4,
     LADE_RECIPE_NONE},
    {"llama tp2 cut rows dp 16, zero 2", &llama, LAYOUT(.tp = 2, .dp = 16, .zero = 2, .is_sequence = true), 64, 4,
     LADE_RECIPE_NONE},
    {"llama dp 64, zero 3", &llama, LAYOUT(.dp = 64, .zero = 3), 512, 4, LADE_RECIPE_FULL},
    {"llama tp4 dp 2 of one node", &llama, LAYOUT(.tp = 4, .dp = 2), 4, 2, LADE_RECIPE_NONE},
    {"llama tp2 dp 16", &llama, LAYOUT(.tp = 2, .dp = 16), 32, 2, LADE_RECIPE_NONE},
    {"llama tp2 dp 4 of one node, zero 3 over 2", &llama, LAYOUT(.tp = 2, .dp = 4, .zero = 3, .shard = 2), 16, 4,
     LADE_RECIPE_NONE},
    {"llama tp2 dp 4 of one node, zero 2 over 2", &llama, LAYOUT(.tp = 2, .dp = 4, .zero = 2, .shard = 2), 16, 4,
     LADE_RECIPE_NONE},
    {"llama tp2 dp 4 of one node, zero 3", &llama, LAYOUT(.tp = 2, .dp = 4, .zero = 3), 16, 4, LADE_RECIPE_NONE},
};

/* Price a layout and build its program, whose step must take the priced time. */
static void step_compare(const struct one_layout *one, struct lade_layout_cost *ret_cost,
                         struct lade_stage_program *ret_program)
{
  const struct lade_layout_job job = job_of(one->model, one->batch);
  struct lade_layout layout;
  costs_make(one, &job, &layout, ret_cost);
  assert_int_equal(stage_prove(one, &job, &layout, cluster.usable_device_bytes, ret_program), 0);
  const double expected = ret_cost->step_ns - ret_cost->skipped_ns, found = (double)ret_program->step_ns;
  if (fabs(found / expected - 1) > REPLICAS_ERROR)
    print_error("%s: the program takes %g ms, the layout %g\n", one->name, found / 1e6, expected / 1e6);
  assert_true(fabs(found / expected - 1) <= REPLICAS_ERROR);
}

/* Sums over replicas run beside kernels in the program, and so in the layout's price, with shard groups too. */
static void a_replicas_step_takes_the_time_of_its_program(void **state)
{
  struct lade_layout_cost cost;
  struct lade_stage_program program;
  for (size_t i = 0; i < LADE_COUNT(replicas); i++)
    step_compare(&replicas[i], &cost, &program);
}

/*
 * Sums over the replicas of shard groups hide in the time that gathers and scatters leave to their queue. With a queue
 * of their own they hide beside the whole backward half, unless both have the same outermost level.
 */
static void sums_over_replicas_hide_in_the_time_that_is_left(void **state)
{
  static const struct {
    enum lade_software software;
    int shard;
    int64_t micro_batch;
    double exposed_min, exposed_max; /* of the sums' time */
  } cases[] = {{LADE_SOFTWARE_LADE, 8, 4, 0.5, 0.65}, {LADE_SOFTWARE_FSDP, 8, 4, 0.1, 0.2},
               {LADE_SOFTWARE_FSDP, 16, 2, 0.97, 1.03}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    const double n = 64.0 / cases[i].shard;
    double grad_ns[2];
    for (int has_replicas = 0; has_replicas < 2; has_replicas++) {
      const int dp = has_replicas ? 64 : cases[i].shard;
      const struct one_layout one = {"", &llama, LAYOUT(.dp = dp, .zero = 3, .shard = cases[i].shard),
                                     dp * cases[i].micro_batch, cases[i].micro_batch, LADE_RECIPE_NONE};
      struct lade_layout_job job = job_of(one.model, one.batch);
      struct lade_layout layout;
      struct lade_layout_cost cost;
      job.software = cases[i].software;
      costs_make(&one, &job, &layout, &cost);
      grad_ns[has_replicas] = cost.grad_ns;
    }
    struct lade_transfer_price gather, sum;
    lade_cluster_group_price(&cluster, (int)n, cases[i].shard, &gather, &sum);
    const double bytes = 2 * sizeof(float) * (double)lade_model_n_params(&llama) / cases[i].shard * (n - 1) / n;
    const double share = (grad_ns[1] - grad_ns[0]) / (bytes * sum.ns_per_byte);
    if (share < cases[i].exposed_min || share > cases[i].exposed_max)
      print_error("case %zu: %g of the sums over replicas is exposed\n", i, share);
    assert_true(share >= cases[i].exposed_min && share <= cases[i].exposed_max);
  }
}

static const struct one_layout stored[] = {
    {"drives", &gpt2, LAYOUT(.dp = 8), 48, 2, LADE_RECIPE_NONE, .state_tier = LADE_TIER_STORE},
    {"drives, zero 1", &gpt2, LAYOUT(.dp = 8, .zero = 1), 48, 2, LADE_RECIPE_NONE, .state_tier = LADE_TIER_STORE},
    {"drives, tp 8", &llama, LAYOUT(.tp = 8), 6, 2, LADE_RECIPE_NONE, .state_tier = LADE_TIER_STORE},
};

/* A rank has its share of the node's drives, and waits for them. */
static void state_on_drives_costs_what_its_program_does(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(stored); i++) {
    struct lade_layout_cost cost;
    struct lade_stage_program program;
    step_compare(&stored[i], &cost, &program);
    assert_true(fabs((double)cost.peak_bytes / (double)program.peak_bytes - 1) <= 0.06);
    assert_true(fabs((double)cost.store_bytes / (double)program.store_bytes - 1) <= 0.06);
    assert_true(fabs((double)cost.host_bytes / (double)program.host_bytes - 1) <= 0.06);
    /* State and gradients are written and read, at an eighth of the node's rate. */
    assert_true(cost.update_ns / 1e9 > 2 * 8 * (double)cost.store_bytes / cluster.node_store.read_bytes_per_s);
  }
}

/* ---- pipelines ---- */

#define STAGES_MAX 4

struct stage_build {
  struct lade_model_graph *graph;
  struct lade_prices prices;
  struct lade_residency *residency;
  struct lade_program *program;
  struct lade_layout layout;
};

/* Build the program of @stage over all microbatches, at the prices of the cluster. */
static void stage_build(const struct one_layout *one, const struct lade_layout_job *job,
                        const struct lade_layout *layout, int stage, struct lade_packer *packer,
                        struct stage_build *built)
{
  const int pp = lade_layout_size(layout, LADE_AXIS_PP), tp = lade_layout_size(layout, LADE_AXIS_TP);
  struct lade_cluster_links links;
  struct lade_cost cost;
  struct lade_error error;
  built->layout = *layout;
  built->layout.rank = lade_mesh_member(&layout->mesh, LADE_AXIS_PP, 0, stage);
  const struct lade_model_graph_params model_graph_params = {
      .struct_size = sizeof(model_graph_params), .model = job->model, .dtype = job->dtype, .batch = one->micro_batch,
      .seq_len = job->seq_len, .kernels = &kernels, .n_threads = 1, .grad_dtype = job->grad_dtype,
      .fuses_gelu = lade_machine_fuses_gelu(&job->cluster->device, job->dtype),
      .share = {.tp = tp, .is_sequence = layout->is_sequence, .pp = pp, .pp_rank = stage,
                .n_chunks = layout->virtual_stages,
                .is_scattered = lade_layout_sends_scattered(job, layout, one->micro_batch)}};
  assert_int_equal(lade_model_graph_create(&model_graph_params, &error, &built->graph), 0);
  lade_cluster_links_make(job->cluster, &layout->mesh, &links);
  lade_cost_init(&cost, &job->cluster->device);
  cost.links = &links;
  assert_int_equal(lade_cost_prices(&cost, built->graph, &built->prices), 0);
  assert_int_equal(lade_residency_create(built->graph, &built->residency), 0);
  lade_residency_apply_recipe(built->graph, one->recipe, built->residency);
  const struct lade_build_params params = {
      .graph = built->graph, .layout = &built->layout, .residency = built->residency, .prices = &built->prices,
      .n_microbatches = (int)(one->batch / one->micro_batch), .is_training = true, .chunk_bytes = 2 << 20,
      .packer = packer};
  assert_int_equal(lade_program_build(&params, &built->program), 0);
}

static const struct one_layout pipelines[] = {
    {"pp4", &gpt2, LAYOUT(.pp = 4), 16, 2, LADE_RECIPE_NONE},
    {"tp2 pp4 selective", &gpt2, LAYOUT(.tp = 2, .pp = 4), 12, 1, LADE_RECIPE_SELECTIVE},
    {"pp2 interleaved", &llama, LAYOUT(.tp = 4, .pp = 2, .is_sequence = true, .schedule = LADE_SCHEDULE_INTERLEAVED,
                                       .virtual_stages = 4), 8, 1, LADE_RECIPE_NONE},
    {"pp4 zbh1", &llama, LAYOUT(.tp = 2, .pp = 4, .schedule = LADE_SCHEDULE_ZBH1), 12, 1, LADE_RECIPE_NONE},
    {"pp4 zbh2", &llama, LAYOUT(.tp = 2, .pp = 4, .schedule = LADE_SCHEDULE_ZBH2), 12, 1, LADE_RECIPE_NONE},
    {"tp4 pp4 scattered", &gpt2, LAYOUT(.tp = 4, .pp = 4), 12, 2, LADE_RECIPE_NONE, .is_scattered = true},
    {"pp2 interleaved, scattered", &llama, LAYOUT(.tp = 8, .pp = 2, .schedule = LADE_SCHEDULE_INTERLEAVED,
                                                  .virtual_stages = 4), 8, 1, LADE_RECIPE_NONE, .is_scattered = true},
    {"pp4 1f1b, wide, scattered", &llama, LAYOUT(.tp = 8, .pp = 4), 12, 1, LADE_RECIPE_NONE, .is_scattered = true},
    {"pp4 zbh1, scattered", &llama, LAYOUT(.tp = 8, .pp = 4, .schedule = LADE_SCHEDULE_ZBH1), 12, 1,
     LADE_RECIPE_NONE, .is_scattered = true},
};

/* The simulator runs all instructions of all stages; the layout knows units and a schedule alone. */
static void a_pipelines_step_is_that_of_its_programs_together(void **state)
{
  struct lade_packer *packer;
  assert_int_equal(lade_packer_create(&packer), 0);
  for (size_t i = 0; i < LADE_COUNT(pipelines); i++) {
    const struct one_layout *one = &pipelines[i];
    const struct lade_layout_job job = job_of(one->model, one->batch);
    struct stage_build built[STAGES_MAX];
    const struct lade_program *programs[STAGES_MAX];
    const struct lade_prices *prices[STAGES_MAX];
    struct lade_layout layout;
    struct lade_layout_cost cost;
    struct lade_stages_time time;
    struct lade_error error;
    costs_make(one, &job, &layout, &cost);
    const int pp = lade_layout_size(&layout, LADE_AXIS_PP);
    assert_true(lade_layout_sends_scattered(&job, &layout, one->micro_batch) == one->is_scattered);
    for (int stage = 0; stage < pp; stage++) {
      stage_build(one, &job, &layout, stage, packer, &built[stage]);
      programs[stage] = built[stage].program;
      prices[stage] = &built[stage].prices;
    }
    assert_int_equal(lade_stages_simulate(programs, prices, pp, &error, &time), 0);
    const double expected = cost.step_ns - cost.skipped_ns;
    if (fabs((double)time.span_ns / expected - 1) > STEP_ERROR)
      print_error("%s: the programs take %g ms, the layout %g\n", one->name, (double)time.span_ns / 1e6,
                  expected / 1e6);
    assert_true(fabs((double)time.span_ns / expected - 1) <= STEP_ERROR);
    for (int stage = 0; stage < pp; stage++) {
      lade_program_destroy(built[stage].program);
      lade_residency_destroy(built[stage].residency);
      lade_prices_finish(&built[stage].prices);
      lade_model_graph_destroy(built[stage].graph);
    }
  }
  lade_packer_destroy(packer);
}

/* ---- memory ---- */

static const struct one_layout memories[] = {
    {"one rank", &gpt2, LAYOUT(.tp = 1), 8, 2, LADE_RECIPE_NONE},
    {"full", &gpt2, LAYOUT(.tp = 1), 8, 2, LADE_RECIPE_FULL},
    {"tp4 pp4", &gpt2, LAYOUT(.tp = 4, .pp = 4), 16, 2, LADE_RECIPE_FULL},
    {"tp2 pp4 cut rows", &gpt2, LAYOUT(.tp = 2, .pp = 4, .is_sequence = true), 16, 2, LADE_RECIPE_SELECTIVE},
    {"pp4 interleaved", &gpt2,
     LAYOUT(.tp = 2, .pp = 4, .schedule = LADE_SCHEDULE_INTERLEAVED, .virtual_stages = 3), 16, 2, LADE_RECIPE_NONE},
    {"pp4 dp2 zero 1", &gpt2, LAYOUT(.pp = 4, .dp = 2, .zero = 1), 32, 2, LADE_RECIPE_NONE},
    {"zero 2", &llama, LAYOUT(.dp = 8, .zero = 2), 64, 4, LADE_RECIPE_NONE},
    {"zero 3", &llama, LAYOUT(.dp = 8, .zero = 3), 64, 4, LADE_RECIPE_SELECTIVE},
};

static void memory_is_near_that_of_the_proved_program(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(memories); i++) {
    const struct one_layout *one = &memories[i];
    const struct lade_layout_job job = job_of(one->model, one->batch);
    struct lade_layout layout;
    struct lade_layout_cost cost;
    struct lade_stage_program program;
    uint64_t max = 0;
    costs_make(one, &job, &layout, &cost);
    for (int stage = 0; stage < lade_layout_size(&layout, LADE_AXIS_PP); stage++) {
      layout.rank = lade_mesh_member(&layout.mesh, LADE_AXIS_PP, 0, stage);
      assert_int_equal(stage_prove(one, &job, &layout, 0, &program), 0);
      max = LADE_MAX(max, program.peak_bytes);
    }
    if (fabs((double)cost.peak_bytes / (double)max - 1) > 0.06)
      print_error("%s: the program needs %g MB, the layout %g\n", one->name, (double)max / 1e6,
                  (double)cost.peak_bytes / 1e6);
    assert_true(fabs((double)cost.peak_bytes / (double)max - 1) <= 0.06);
  }
}

/* A list of fewer microbatches has the peak of the whole one, to the byte. */
static void a_short_list_has_the_peak_of_the_whole(void **state)
{
  static const struct lade_layout_params layouts[] = {
      LAYOUT(.pp = 4), LAYOUT(.pp = 4, .schedule = LADE_SCHEDULE_INTERLEAVED, .virtual_stages = 3),
      LAYOUT(.pp = 4, .schedule = LADE_SCHEDULE_ZBH1), LAYOUT(.pp = 4, .schedule = LADE_SCHEDULE_ZBH2),
      LAYOUT(.pp = 2, .dp = 2, .zero = 2), LAYOUT(.pp = 2, .dp = 2, .zero = 3)};
  const struct one_layout one = {.micro_batch = 1, .recipe = LADE_RECIPE_FULL};
  for (size_t i = 0; i < LADE_COUNT(layouts); i++) {
    struct lade_layout layout;
    struct lade_stage_program whole, cut;
    struct lade_error error;
    assert_int_equal(lade_layout_init(&layouts[i], &error, &layout), 0);
    const int dp = lade_layout_size(&layout, LADE_AXIS_DP);
    const struct lade_layout_job more = job_of(&gpt2, 64 * dp), less = job_of(&gpt2, 32 * dp);
    for (int stage = 0; stage < lade_layout_size(&layout, LADE_AXIS_PP); stage++) {
      layout.rank = lade_mesh_member(&layout.mesh, LADE_AXIS_PP, 0, stage);
      assert_int_equal(stage_prove(&one, &more, &layout, cluster.usable_device_bytes, &cut), 0);
      assert_int_equal(stage_prove(&one, &less, &layout, cluster.usable_device_bytes, &whole), 0);
      assert_true(cut.n_microbatches <= 32);
      assert_true(cut.peak_bytes == whole.peak_bytes);
    }
  }
}

/* The stages that a cost names stand for all: no other stage's program needs more than the fullest of them. */
static void named_stages_need_the_most_memory(void **state)
{
  static const struct one_layout layouts[] = {
      {"longer middle", &gpt2, LAYOUT(.pp = 5), 10, 1, LADE_RECIPE_FULL},
      {"in flight", &gpt2, LAYOUT(.pp = 5), 10, 1, LADE_RECIPE_NONE},
      {"split weights", &gpt2, LAYOUT(.pp = 4, .schedule = LADE_SCHEDULE_ZBH1), 8, 1, LADE_RECIPE_FULL},
      {"chunks", &gpt2, LAYOUT(.pp = 4, .schedule = LADE_SCHEDULE_INTERLEAVED, .virtual_stages = 3), 8, 1,
       LADE_RECIPE_FULL}};
  struct lade_model longer = gpt2;
  longer.layers = 16; /* of five stages the first has three, the next ones four */
  longer.vocabulary = 1024; /* so that an embedding is less than a layer */
  for (size_t i = 0; i < LADE_COUNT(layouts); i++) {
    const struct one_layout *one = &layouts[i];
    const struct lade_layout_job job = job_of(&longer, one->batch);
    struct lade_layout layout;
    struct lade_layout_cost cost;
    uint64_t max = 0, named_max = 0, first = 0;
    costs_make(one, &job, &layout, &cost);
    assert_in_range(cost.n_stages, 2, 4);
    for (int stage = 0; stage < lade_layout_size(&layout, LADE_AXIS_PP); stage++) {
      struct lade_stage_program program;
      bool is_named = false;
      layout.rank = lade_mesh_member(&layout.mesh, LADE_AXIS_PP, 0, stage);
      assert_int_equal(stage_prove(one, &job, &layout, 0, &program), 0);
      for (int k = 0; k < cost.n_stages; k++)
        is_named |= cost.stages[k] == stage;
      max = LADE_MAX(max, program.peak_bytes);
      named_max = is_named ? LADE_MAX(named_max, program.peak_bytes) : named_max;
      first = stage == 0 ? program.peak_bytes : first;
    }
    assert_true(i > 0 || first < max);
    if (max != named_max)
      print_error("%s: %g GiB, named %g GiB\n", one->name, (double)max / 0x1p30, (double)named_max / 0x1p30);
    assert_true(max == named_max);
  }
}

/* ---- residencies ---- */

/* Biases' updates are too short to hide the copies of the working copies beside them: GPT-2's state on the host. */
#define ELSEWHERE_ERROR 0.08

static const struct one_layout offloads[] = {
    {"one rank", &gpt2, LAYOUT(.tp = 1), 8, 2, LADE_RECIPE_AUTO},
    {"llama tp4", &llama, LAYOUT(.tp = 4), 6, 2, LADE_RECIPE_AUTO},
    {"llama tp2 zero 1", &llama, LAYOUT(.tp = 2, .dp = 4, .zero = 1), 16, 2, LADE_RECIPE_AUTO},
    {"llama tp2 zero 1, rails", &llama, LAYOUT(.tp = 2, .dp = 16, .zero = 1), 64, 2, LADE_RECIPE_AUTO},
};

/* Cost @one under @share, with its program; both over the microbatches that the program has. */
static void residency_compare(const struct one_layout *one, const struct lade_share_cost *share,
                              enum lade_tier state_tier, double *ret_time, double *ret_peak)
{
  const struct lade_layout_job job = job_of(one->model, one->batch);
  struct lade_layout_params params = one->params;
  struct lade_layout layout;
  struct lade_layout_cost cost;
  struct lade_stage_program program;
  struct lade_error error;
  params.n_kv_heads = one->model->n_kv_heads;
  assert_int_equal(lade_layout_init(&params, &error, &layout), 0);
  const struct lade_layout_cost_params priced = {&job, &layout, one->micro_batch, share};
  assert_int_equal(lade_layout_cost_make(&priced, state_tier, &error, &cost), 0);
  const struct lade_stage_params stage = {
      &job, &layout, one->micro_batch, {share->residency, state_tier, cost.peak_bytes}, LADE_STAGE_PROOF};
  if (lade_stage_program_make(&stage, &error, &program))
    fail_msg("%s: %s", one->name, error.text);
  const double n = (double)one->batch / lade_layout_size(&layout, LADE_AXIS_DP) / (double)one->micro_batch;
  const double around = cost.update_ns + cost.grad_ns;
  const double expected = (cost.step_ns - cost.skipped_ns - around) / n * program.n_microbatches + around;
  *ret_time = (double)program.step_ns / expected;
  *ret_peak = (double)program.peak_bytes / (double)cost.peak_bytes;
  if (fabs(*ret_time - 1) > ELSEWHERE_ERROR || fabs(*ret_peak - 1) > 0.06)
    print_error("%s: %g MB saved, %g MB on the host: the program takes %g of the time and %g of the memory\n",
                one->name, share->layer.saved_bytes / 1e6, share->layer.host_bytes / 1e6, *ret_time, *ret_peak);
  assert_true((double)program.host_bytes <= 1.02 * (double)cost.host_bytes + 0x1p24);
  assert_true((double)program.store_bytes <= 1.02 * (double)cost.store_bytes + 0x1p24);
}

/*
 * Each residency is no faster than those before it, and needs fewer bytes of the device or of the host than each. The
 * least device memory is there without host memory too, which a node may lack.
 */
static void residencies_verify(const struct lade_share_residencies *residencies)
{
  int n_copied = 0;
  double least[2] = {INFINITY, INFINITY}; /* saved bytes: without host memory, with it */
  for (int k = 0; k < residencies->n; k++) {
    const struct lade_unit_cost *slow = &residencies->items[k].layer;
    n_copied += slow->host_bytes > 0;
    least[slow->host_bytes > 0] = fmin(least[slow->host_bytes > 0], slow->saved_bytes);
    for (int i = 0; i < k; i++) {
      const struct lade_unit_cost *fast = &residencies->items[i].layer;
      assert_true(fast->forward_ns + fast->backward_ns <= slow->forward_ns + slow->backward_ns);
      assert_true(fast->saved_bytes > slow->saved_bytes || fast->host_bytes > slow->host_bytes);
    }
  }
  assert_true(residencies->n >= 6 && residencies->items[0].layer.host_bytes == 0 && n_copied > 1);
  assert_true(least[0] <= least[1]);
}

/* Residencies of the solver, and optimizer state on the host, take the time and the memory of their programs. */
static void values_elsewhere_cost_what_their_programs_do(void **state)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  for (size_t i = 0; i < LADE_COUNT(offloads); i++) {
    const struct one_layout *one = &offloads[i];
    const struct lade_layout_job job = job_of(one->model, one->batch);
    const struct lade_share_key key = {one->params.tp, one->params.is_sequence, one->micro_batch, LADE_RECIPE_AUTO};
    struct lade_error error;
    assert_int_equal(lade_share_residencies_make(&job, &key, &error, residencies), 0);
    residencies_verify(residencies);
    for (int k = 0; k < residencies->n; k += 3) {
      for (enum lade_tier tier = LADE_TIER_DEVICE; tier <= LADE_TIER_HOST; tier++) {
        double time, peak;
        residency_compare(one, &residencies->items[k], tier, &time, &peak);
        assert_true(fabs(time - 1) <= ELSEWHERE_ERROR);
        assert_true(fabs(peak - 1) <= 0.06);
      }
    }
  }
  free(residencies);
}

/* So do values on drives, which pass through host memory; drives as slow as the preset's would beat no recompute. */
static void values_on_drives_cost_what_their_programs_do(void **state)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  const struct lade_machine_store drives = cluster.device.store;
  cluster.device.store.read_bytes_per_s = cluster.device.store.total_bytes_per_s = 40e9;
  cluster.device.store.write_bytes_per_s = 30e9;
  for (size_t i = 0; i < LADE_COUNT(offloads); i++) {
    struct lade_layout_job job = job_of(offloads[i].model, offloads[i].batch);
    const struct lade_share_key key = {offloads[i].params.tp, false, offloads[i].micro_batch, LADE_RECIPE_AUTO};
    int n_stored = 0;
    job.stores_values = true;
    assert_int_equal(lade_share_residencies_make(&job, &key, NULL, residencies), 0);
    for (int k = 0; k < residencies->n; k++) {
      double time = 1, peak = 1;
      if (residencies->items[k].layer.store_bytes > 0 && ++n_stored)
        residency_compare(&offloads[i], &residencies->items[k], LADE_TIER_DEVICE, &time, &peak);
      assert_true(fabs(time - 1) <= ELSEWHERE_ERROR && fabs(peak - 1) <= 0.06);
    }
    assert_true(n_stored > 1);
  }
  cluster.device.store = drives;
  free(residencies);
}

/* Return the least of @best_ns and the times of @params under all @residencies and state tiers that fit. */
static double fastest_residency(const struct lade_layout_job *job,
                                const struct lade_layout_search_params *layout_search_params,
                                const struct lade_layout_params *params, int64_t micro_batch,
                                const struct lade_share_residencies *residencies, double best_ns)
{
  struct lade_layout layout;
  struct lade_layout_cost cost;
  const enum lade_tier last = layout_search_params->host_bytes ? LADE_TIER_HOST : LADE_TIER_DEVICE;
  if (lade_layout_init(params, NULL, &layout))
    return best_ns;
  for (int i = 0; i < residencies->n; i++) {
    const struct lade_layout_cost_params priced = {job, &layout, micro_batch, &residencies->items[i]};
    for (enum lade_tier tier = LADE_TIER_DEVICE; tier <= last; tier++) {
      const double slack = residencies->items[i].layer.host_bytes > 0 ? 1 : 0.97;
      if (lade_layout_cost_make(&priced, tier, NULL, &cost))
        continue;
      if ((double)cost.peak_bytes * slack <= (double)layout_search_params->device_bytes &&
          cost.host_bytes <= layout_search_params->host_bytes)
        best_ns = LADE_MIN(best_ns, cost.step_ns);
    }
  }
  return best_ns;
}

#define TRIED_RANKS 16

/* The least time of each kind of layout: by tp, pp and schedule; INFINITY: none fits. */
struct tried_kinds {
  double best_ns[TRIED_RANKS + 1][TRIED_RANKS + 1][LADE_N_SCHEDULES];
};

/* Try every schedule of the ranks as @tp with ZeRO stage @zero. */
static void share_try(const struct lade_layout_job *job, const struct lade_layout_search_params *layout_search_params,
                      int tp, int zero, bool is_sequence, int64_t micro_batch, struct tried_kinds *kinds)
{
  const struct lade_share_key key = {tp, is_sequence, micro_batch, layout_search_params->recipe,
                                     lade_software_of(job, zero, layout_search_params->recipe)};
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  const int n_pieces = (int)lade_pieces_max(job->model);
  int status = lade_share_residencies_make(job, &key, NULL, residencies);
  for (int pp = 1; pp <= TRIED_RANKS / tp && !status; pp++) {
    for (int v = 1; v * pp <= n_pieces && TRIED_RANKS % (tp * pp) == 0; v++) {
      for (int schedule = 0; schedule < LADE_N_SCHEDULES; schedule++) {
        struct lade_layout_params params = LAYOUT(.tp = tp, .pp = pp, .dp = TRIED_RANKS / (tp * pp), .zero = zero,
                                                  .is_sequence = is_sequence, .virtual_stages = v);
        double *best_ns = &kinds->best_ns[tp][pp][schedule];
        params.schedule = (enum lade_schedule)schedule;
        *best_ns = fastest_residency(job, layout_search_params, &params, micro_batch, residencies, *best_ns);
      }
    }
  }
  free(residencies);
}

static void kinds_try(const struct lade_layout_job *job, const struct lade_layout_search_params *params,
                      struct tried_kinds *ret_kinds)
{
  double *all = &ret_kinds->best_ns[0][0][0];
  for (size_t i = 0; i < sizeof(ret_kinds->best_ns) / sizeof(*all); i++)
    all[i] = INFINITY;
  for (int tp = 1; tp <= TRIED_RANKS; tp++) {
    for (int more = 0; more < 16; more++)
      share_try(job, params, tp, more / 4, more % 2, 1 + more / 2 % 2, ret_kinds);
  }
}

/* Check that found layouts are the fastest of their kinds, and that kinds that are not found are no faster. */
static void found_verify(const struct lade_layout_search *search, int n_max, struct tried_kinds *kinds)
{
  for (int a = 0; a < search->n_found; a++) {
    const struct lade_layout_found *found = &search->found[a];
    double *best_ns = &kinds->best_ns[found->layout.tp][found->layout.pp][found->layout.schedule];
    assert_true(found->cost.step_ns <= *best_ns * (1 + 1e-12));
    *best_ns = INFINITY;
  }
  const bool is_whole = search->n_found < n_max; /* no other kind fits */
  const double *all = &kinds->best_ns[0][0][0];
  const double last_ns = is_whole ? INFINITY : search->found[search->n_found - 1].cost.step_ns;
  for (size_t i = 0; i < sizeof(kinds->best_ns) / sizeof(*all); i++)
    assert_true(all[i] >= last_ns * (1 - 1e-12));
}

static void the_search_finds_the_fastest(void **state)
{
  struct lade_model small = gpt2;
  small.layers = 6;
  const struct lade_layout_job job = job_of(&small, 32);
  static const struct {
    uint64_t device_bytes, host_bytes;
    enum lade_recipe recipe;
  } cases[] = {{UINT64_C(2) << 30, 0, LADE_RECIPE_AUTO},
               {UINT64_C(40) << 30, 0, LADE_RECIPE_AUTO},
               {UINT64_C(1) << 30, UINT64_C(64) << 30, LADE_RECIPE_AUTO},
               {UINT64_C(3) << 29, UINT64_C(3) << 29, LADE_RECIPE_AUTO},
               {UINT64_C(2) << 30, UINT64_C(64) << 30, LADE_RECIPE_FULL},
               {UINT64_C(1) << 30, 0, LADE_RECIPE_FULL}}; /* ZeRO 1 and more alone fit, which other software runs */
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    const struct lade_layout_search_params params = {
        .n_ranks = TRIED_RANKS, .device_bytes = cases[i].device_bytes, .zero = -1, .schedule = -1, .is_sequence = -1,
        .n_max = 4, .host_bytes = cases[i].host_bytes, .recipe = cases[i].recipe};
    struct lade_layout_search search;
    struct lade_error error;
    struct lade_layout_search_params tried = params;
    struct tried_kinds kinds;
    if (params.recipe != LADE_RECIPE_AUTO)
      tried.host_bytes = 0; /* a recipe moves nothing to the host */
    assert_int_equal(lade_layout_search_run(&job, &params, &error, &search), 0);
    kinds_try(&job, &tried, &kinds);
    found_verify(&search, params.n_max, &kinds);
    if (params.recipe == LADE_RECIPE_FULL && params.device_bytes == UINT64_C(1) << 30)
      assert_true(search.found[0].layout.zero > 0);
    for (int a = 1; a < search.n_found; a++)
      assert_true(search.found[a - 1].cost.step_ns <= search.found[a].cost.step_ns);
    for (int a = 0; a < search.n_found; a++)
      assert_true(params.recipe == LADE_RECIPE_AUTO || search.found[a].state_tier == LADE_TIER_DEVICE);
    assert_true(search.n_costed <= search.n_evaluated);
    free(search.found);
  }
}

/* Undecided layouts come in order of time, all below the limit; none is left if the limit or the memory leaves none. */
static void undecided_layouts_are_faster_than_the_limit(void **state)
{
  struct lade_model small = gpt2;
  small.layers = 6;
  const struct lade_layout_job job = job_of(&small, 32);
  struct lade_layout_search_params params = {.n_ranks = 16, .device_bytes = UINT64_C(2) << 30, .zero = -1,
                                             .schedule = -1, .is_sequence = -1, .n_max = 1000, .limit_ns = INFINITY};
  struct lade_layout_search best, all, few;
  struct lade_error error;
  assert_int_equal(lade_layout_search_run(&job, &params, &error, &best), 0);
  assert_int_equal(lade_layout_search_undecided(&job, &params, &error, &all), 0);
  assert_true(all.n_found > 2 && all.n_undecided >= all.n_found);
  assert_true(all.found[0].cost.step_ns <= best.found[0].cost.step_ns);
  for (int a = 1; a < all.n_found; a++)
    assert_true(all.found[a - 1].cost.step_ns <= all.found[a].cost.step_ns);
  params.n_max = 2;
  assert_int_equal(lade_layout_search_undecided(&job, &params, &error, &few), 0);
  assert_true(few.n_found == 2 && few.n_undecided == all.n_undecided);
  assert_true(few.found[1].cost.step_ns == all.found[1].cost.step_ns);
  free(few.found);
  params.limit_ns = all.found[0].cost.step_ns;
  assert_int_equal(lade_layout_search_undecided(&job, &params, &error, &few), 0);
  assert_true(few.n_found == 0 && few.n_undecided == 0);
  free(few.found);
  params.limit_ns = INFINITY;
  params.device_bytes = 1 << 20; /* the state alone is larger */
  assert_int_equal(lade_layout_search_undecided(&job, &params, &error, &few), 0);
  assert_true(few.n_found == 0 && few.n_undecided == 0);
  free(few.found);
  free(all.found);
  free(best.found);
}

static void a_search_that_fits_nowhere_names_the_smallest_need(void **state)
{
  const struct lade_layout_job job = job_of(&gpt2, 32);
  struct lade_layout_search_params params = {.n_ranks = 2, .device_bytes = 1 << 20, .zero = -1, .schedule = -1,
                                             .is_sequence = -1, .n_max = 2};
  struct lade_layout_search search;
  struct lade_error error;
  assert_int_equal(lade_layout_search_run(&job, &params, &error, &search), -EOVERFLOW);
  assert_int_equal(search.n_found, 1);
  assert_non_null(strstr(error.text, "needs least"));
  free(search.found);
  params.tp = 3;
  assert_int_equal(lade_layout_search_run(&job, &params, &error, &search), -EINVAL);
}

/*
 * PyTorch without a compiler sums input gradients beside no kernel: with --eager once for each product of the
 * checkpoint's tensors, of Llama's queries, keys, values, gate and up. GPT's are one product for each input, as those
 * of DeepSpeed's layouts. Forward sums are two.
 */
static void separate_products_sum_their_input_gradients(void **state)
{
  const struct lade_model *models[] = {&gpt2, &llama};
  const int n_sums[] = {2 + 2, 2 + 5};
  for (size_t i = 0; i < LADE_COUNT(models); i++) {
    struct lade_layout_job job = job_of(models[i], 32);
    struct lade_share_key key = {.tp = 4, .micro_batch = 2, .recipe = LADE_RECIPE_NONE};
    struct lade_transfer_price gather, sum;
    struct lade_share_cost program, fused, eager;
    struct lade_error error;
    lade_cluster_group_price(&cluster, 4, 1, &gather, &sum);
    key.software = LADE_SOFTWARE_LADE;
    assert_int_equal(lade_share_cost_make(&job, &key, &error, &program), 0);
    key.software = LADE_SOFTWARE_DEEPSPEED;
    assert_int_equal(lade_share_cost_make(&job, &key, &error, &fused), 0);
    job.is_eager = true;
    assert_int_equal(lade_share_cost_make(&job, &key, &error, &eager), 0);
    const double bytes = 2 * 0.75 * 2 * (double)job.seq_len * (double)models[i]->width * 2; /* sent in a ring */
    const double all_ns = n_sums[i] * ((double)sum.latency_ns + bytes * sum.ns_per_byte);
    assert_true(fabs(eager.layer.exposed_ns / all_ns - 1) < 1e-3);
    assert_true(fabs(fused.layer.exposed_ns / all_ns * n_sums[i] / (2 + 2) - 1) < 1e-3);
    assert_true(program.layer.exposed_ns < fused.layer.exposed_ns);
  }
}

/*
 * The first stage of 1F1B takes the pipeline's whole time, and waits about p - 1 of m + p - 1 halves of it. Under ZB-H2
 * no stage takes the whole time: stages begin and end one after the other.
 */
static void a_stage_idles_within_its_own_time(void **state)
{
  struct lade_error error;
  struct lade_model model;
  assert_int_equal(lade_model_preset("llama3-70b", &model, &error), 0);
  model.layers = 128;
  model.vocabulary = 1024; /* stages take one time */
  const struct lade_layout_job job = job_of(&model, 64);
  static const enum lade_schedule schedules[] = {LADE_SCHEDULE_1F1B, LADE_SCHEDULE_ZBH2};
  for (int is_zbh2 = 0; is_zbh2 < 2; is_zbh2++) {
    const struct one_layout one = {"", &model, LAYOUT(.tp = 8, .pp = 8, .schedule = schedules[is_zbh2]), 64, 1,
                                   LADE_RECIPE_NONE};
    struct lade_layout layout;
    struct lade_layout_cost cost;
    costs_make(&one, &job, &layout, &cost);
    const double of_span = cost.bubble * cost.step_ns / (cost.step_ns - cost.grad_ns - cost.update_ns);
    if (is_zbh2)
      assert_true(cost.stage_bubble > 0 && cost.stage_bubble < 0.9 * of_span);
    else
      assert_true(fabs(cost.stage_bubble / of_span - 1) < 1e-6 && fabs(cost.stage_bubble - 7.0 / 71) < 0.001);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(separate_products_sum_their_input_gradients),
      cmocka_unit_test(a_stage_idles_within_its_own_time),
      cmocka_unit_test(a_step_takes_the_time_of_its_program),
      cmocka_unit_test(a_replicas_step_takes_the_time_of_its_program),
      cmocka_unit_test(sums_over_replicas_hide_in_the_time_that_is_left),
      cmocka_unit_test(state_on_drives_costs_what_its_program_does),
      cmocka_unit_test(a_pipelines_step_is_that_of_its_programs_together),
      cmocka_unit_test(memory_is_near_that_of_the_proved_program),
      cmocka_unit_test(a_short_list_has_the_peak_of_the_whole),
      cmocka_unit_test(named_stages_need_the_most_memory),
      cmocka_unit_test(values_elsewhere_cost_what_their_programs_do),
      cmocka_unit_test(values_on_drives_cost_what_their_programs_do),
      cmocka_unit_test(the_search_finds_the_fastest),
      cmocka_unit_test(undecided_layouts_are_faster_than_the_limit),
      cmocka_unit_test(a_search_that_fits_nowhere_names_the_smallest_need),
  };
  return cmocka_run_group_tests(tests, fixtures_init, NULL);
}
