/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallel ranks train as one rank does, through planned programs. Losses are those of one rank: in FP32 bit for
 * bit until an update follows a sum in another order, and then within 1e-5. Losses, and values that all ranks hold, are
 * equal at all ranks. Other residencies, with collectives run again in the backward half, give the same bits, and each
 * rank's peak is as planned. More ranks than KV heads share the heads. Bytes sent are those of the graph's collectives.
 * Every rank runs the single-rank reference itself. ranks.py starts it.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/base.h"
#include "tests/parallel/world.h"
#include "tests/support/program_fixture.h"
#include "tests/support/run_fixture.h"

#define N_STEPS 3
#define N_KV_HEADS 2 /* of the small Llama: of 4 ranks each two share one */

static const struct {
  const char *name;
  enum lade_family family;
  enum lade_dtype dtype;
  float dropout;
  int n_microbatches;
  bool is_sequence, is_clipped;
  double bound; /* of losses, relative */
  enum lade_dtype grad_dtype; /* 0: F32 */
} cases[] = {{"gpt2", LADE_GPT2, LADE_F32, 0.1f, 2, false, true, 1e-5},
             {"gpt2 with rows cut", LADE_GPT2, LADE_F32, 0.1f, 2, true, true, 1e-5},
             {"gpt2 in bf16", LADE_GPT2, LADE_BF16, 0, 2, true, false, 4 * 0x1p-8, LADE_BF16},
             {"gpt2 in fp16 with rows cut", LADE_GPT2, LADE_F16, 0, 2, true, true, 4 * 0x1p-11},
             {"llama in fp16", LADE_LLAMA, LADE_F16, 0, 1, false, true, 4 * 0x1p-11},
             {"llama", LADE_LLAMA, LADE_F32, 0, 1, false, false, 1e-5}};

/* Run from the beginning and close; check that the measured peak is the plan's. */
static void run(struct run_fixture *run_fixture, const struct program_fixture_setting *setting,
                struct run_fixture_numbers *ret_numbers)
{
  struct lade_error error = {0};
  struct lade_device_info info;
  struct lade_residency *residency = NULL;
  demand(!lade_residency_create(run_fixture->graph, &residency), "no memory for a residency");
  program_fixture_residency_set(residency, run_fixture->graph, setting);
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency);
  demand(!run_fixture_open(run_fixture, plan, &error), "%s", error.text);
  demand(!run_fixture_run(run_fixture, N_STEPS, ret_numbers, &error), "%s", error.text);
  lade_device_get_info(run_fixture->device, &info);
  demand(info.peak_bytes == lade_align_up(plan->peak_bytes[LADE_DEVICE], info.chunk_bytes),
         "%llu bytes were planned and %llu measured", (unsigned long long)plan->peak_bytes[LADE_DEVICE],
         (unsigned long long)info.peak_bytes);
  run_fixture_close(run_fixture);
  lade_plan_destroy(plan);
}

/* Check that values held whole by every rank have the same bits on all of them after the last step. */
static void replicas_agree(struct world *world, struct run_fixture *run_fixture, const char *label)
{
  const struct program_fixture_setting keep = {.manner = FIXTURE_KEEP};
  struct lade_residency *residency = NULL;
  struct lade_error error = {0};
  struct run_fixture_numbers numbers;
  demand(!lade_residency_create(run_fixture->graph, &residency), "no memory for a residency");
  program_fixture_residency_set(residency, run_fixture->graph, &keep);
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency);
  demand(!run_fixture_open(run_fixture, plan, &error) && !run_fixture_run(run_fixture, N_STEPS, &numbers, &error),
         "%s", error.text);
  for (int param = 0; param < run_fixture->graph->n_params; param++) {
    const struct lade_tensor *weight = &run_fixture->graph->tensors[run_fixture->graph->params[param].tensor];
    const struct lade_param_slice *slice = &run_fixture->graph->params[param].slices[0];
    if (weight->n_dims > 1 || slice->n_rows < slice->file_rows)
      continue;
    char *bits = malloc(weight->bytes);
    demand(bits && !lade_executor_get(run_fixture->executor, run_fixture->graph->params[param].tensor, 0, bits,
                                      weight->bytes, &error),
           "%s", error.text);
    demand(world_agrees(world, XXH3_64bits(bits, weight->bytes)), "%s: ranks have another %s", label, weight->name);
    free(bits);
  }
  run_fixture_close(run_fixture);
  lade_plan_destroy(plan);
}

/*
 * True if the bits are one rank's. Norms are summed by rank, and so are gradients of norms with rows cut, and of shared
 * KV heads.
 */
static bool has_same_bits(const struct world *world, size_t i, int step)
{
  return cases[i].dtype == LADE_F32 && (step == 0 || (!cases[i].is_clipped && world->size <= N_KV_HEADS));
}

static void losses_agree(struct world *world, const struct run_fixture_numbers *got,
                         const struct run_fixture_numbers *want, size_t i)
{
  for (int step = 0; step < N_STEPS; step++)
    demand(!has_same_bits(world, i, step) || got->loss[step] == want->loss[step],
           "%s: step %d has loss %.9g, one rank %.9g, which should be the same bits", cases[i].name, step,
           got->loss[step], want->loss[step]);
  for (int step = 0; step < N_STEPS; step++)
    demand(fabs(got->loss[step] - want->loss[step]) <= cases[i].bound * want->loss[step],
           "%s: step %d has loss %.9g, one rank %.9g", cases[i].name, step, got->loss[step], want->loss[step]);
  for (int step = 0; step < N_STEPS; step++)
    demand(fabs((double)(got->norm[step] - want->norm[step])) <= cases[i].bound * 4 * (double)want->norm[step],
           "%s: step %d has norm %.9g, one rank %.9g", cases[i].name, step, (double)got->norm[step],
           (double)want->norm[step]);
  demand(world_agrees(world, XXH3_64bits(got->loss, sizeof(got->loss))), "%s: ranks have other losses", cases[i].name);
  demand(world_agrees(world, XXH3_64bits(got->factor, sizeof(got->factor))), "%s: ranks clip by another factor",
         cases[i].name);
}

static void rigs_init(struct world *world, size_t i, struct run_fixture *one, struct run_fixture *ours)
{
  struct run_fixture_model model = run_fixture_tiny(cases[i].family);
  model.batch = 2;
  model.dtype = cases[i].dtype;
  model.dropout = cases[i].dropout;
  model.grad_dtype = cases[i].grad_dtype;
  model.n_microbatches = cases[i].n_microbatches;
  run_fixture_init(one, &model);
  model.share = (struct lade_share){.tp = world->size, .tp_rank = world->rank, .is_sequence = cases[i].is_sequence};
  run_fixture_init(ours, &model);
  one->is_unclipped = ours->is_unclipped = !cases[i].is_clipped;
}

/* Check that the program sends the bytes of the graph's collectives, in every microbatch. */
static void traffic_agrees(const struct run_fixture *run_fixture, const char *label)
{
  const struct program_fixture_setting keep = {.manner = FIXTURE_KEEP};
  struct lade_residency *residency = NULL;
  uint64_t sent[LADE_N_AXES];
  double wanted = 0, of_kv = 0, n_ranks = run_fixture->graph->share.tp;
  demand(!lade_residency_create(run_fixture->graph, &residency), "no memory for a residency");
  program_fixture_residency_set(residency, run_fixture->graph, &keep);
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency);
  lade_program_comm_traffic(plan->train, sent);
  for (int op = 0; op < run_fixture->graph->n_ops; op++)
    wanted += lade_op_is_collective(run_fixture->graph->ops[op].kind) ? run_fixture->graph->ops[op].bytes : 0;
  wanted *= run_fixture->model.n_microbatches;
  for (int param = 0; param < run_fixture->graph->n_params; param++) { /* once a step, parts of gradients */
    const struct lade_param *the_param = &run_fixture->graph->params[param];
    const struct lade_tensor *grad = &run_fixture->graph->tensors[the_param->grad];
    double n = the_param->n_sharers, shared = 1 - (double)the_param->first_shared_row / (double)grad->dims[0];
    *(shared < 1 ? &of_kv : &wanted) += 2 * shared * (double)grad->bytes * (n - 1) / n;
  }
  wanted += (n_ranks - 1) * (double)sizeof(double); /* and each rank's sum of squares */
  demand((double)sent[LADE_AXIS_TP] == wanted, "%s: sends %llu bytes: expected %.0f", label,
         (unsigned long long)sent[LADE_AXIS_TP], wanted);
  demand((double)sent[LADE_AXIS_KV] == of_kv &&
         (of_kv > 0) == (n_ranks > (double)run_fixture->graph->model.n_kv_heads),
         "%s: sends %llu bytes of KV heads: expected %.0f", label, (unsigned long long)sent[LADE_AXIS_KV], of_kv);
  lade_plan_destroy(plan);
}

/* Return a digest of this rank's working copies. */
static uint64_t weights_digest(struct run_fixture *run_fixture)
{
  struct lade_error error = {0};
  uint64_t digest = 0;
  for (int param = 0; param < run_fixture->graph->n_params; param++) {
    const int tensor = run_fixture->graph->params[param].tensor;
    const uint64_t bytes = run_fixture->graph->tensors[tensor].bytes;
    char *bits = malloc(bytes);
    demand(bits && !lade_executor_get(run_fixture->executor, tensor, 0, bits, bytes, &error), "%s", error.text);
    digest = XXH3_64bits_withSeed(bits, bytes, digest);
    free(bits);
  }
  return digest;
}

/*
 * An overflow that begins on the last rank, by a loss scale of its own, skips the update on every rank. The next step,
 * with the scale of the others, updates on every rank.
 */
static void an_overflow_skips_everywhere(struct world *world, const struct lade_layout *layout, size_t i)
{
  const struct program_fixture_setting keep = {.manner = FIXTURE_KEEP};
  struct run_fixture one, ours;
  struct lade_residency *residency = NULL;
  struct lade_error error = {0};
  struct lade_step_result result;
  rigs_init(world, i, &one, &ours);
  ours.layout = layout;
  ours.comms = world->axes;
  demand(!lade_residency_create(ours.graph, &residency), "no memory for a residency");
  program_fixture_residency_set(residency, ours.graph, &keep);
  struct lade_plan *plan = run_fixture_plan(&ours, residency);
  demand(!run_fixture_open(&ours, plan, &error), "%s", error.text);
  const uint64_t before = weights_digest(&ours);
  for (int is_good = 0; is_good < 2; is_good++) {
    struct lade_step step = run_fixture_step_block(&ours, 0);
    if (!is_good && world->rank == world->size - 1)
      step.loss_scale = 0x1p40f;
    run_fixture_tokens_fill(&ours, 0);
    const int status = lade_executor_step(ours.executor, &step, &result, &error);
    demand(status == (is_good ? 0 : -ERANGE), "%s: step with%s overflow: %d", cases[i].name, is_good ? "out" : "",
           status);
    demand(result.clip_result.is_skipped == !is_good, "%s: the update is%s skipped", cases[i].name,
           is_good ? "" : " not");
    demand((weights_digest(&ours) == before) == !is_good, "%s: the weights did%s change", cases[i].name,
           is_good ? " not" : "");
    demand(world_agrees(world, (uint64_t)result.clip_result.is_skipped), "%s: ranks disagree", cases[i].name);
  }
  run_fixture_close(&ours);
  lade_plan_destroy(plan);
  run_fixture_finish(&one);
  run_fixture_finish(&ours);
}

static void case_agrees(struct world *world, const struct lade_layout *layout, size_t i)
{
  const struct program_fixture_setting keep = {.manner = FIXTURE_KEEP}, recompute =
      {.manner = FIXTURE_RECOMPUTE, .seed = 5};
  const struct program_fixture_setting mixed = {.manner = FIXTURE_MIXED, .state_tiers = LADE_TIER_HOST,
                                                .prefetch_bytes = 100000,
                                      .seed = 77};
  struct run_fixture one, ours;
  struct run_fixture_numbers want, got, again;
  rigs_init(world, i, &one, &ours);
  ours.layout = layout;
  ours.comms = world->axes;
  run(&one, &keep, &want);
  run(&ours, &keep, &got);
  losses_agree(world, &got, &want, i);
  run(&ours, &recompute, &again);
  demand(memcmp(&got, &again, sizeof(got)) == 0, "%s: recomputing gives other numbers", cases[i].name);
  run(&ours, &mixed, &again);
  demand(memcmp(&got, &again, sizeof(got)) == 0, "%s: another residency gives other numbers", cases[i].name);
  replicas_agree(world, &ours, cases[i].name);
  traffic_agrees(&ours, cases[i].name);
  run_fixture_finish(&one);
  run_fixture_finish(&ours);
}

int main(void)
{
  struct world world;
  world_open(&world);
  struct lade_layout layout;
  struct lade_error error = {0};
  struct lade_layout_params params = {.struct_size = sizeof(params), .world = world.size, .rank = world.rank,
                                      .tp = world.size, .n_kv_heads = N_KV_HEADS, .grad_reduce = LADE_F32};
  demand(!lade_layout_init(&params, &error, &layout), "%s", error.text);
  world_split(&world, &layout);
  for (size_t i = 0; i < LADE_COUNT(cases); i++)
    case_agrees(&world, &layout, i);
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    if (cases[i].dtype == LADE_F16)
      an_overflow_skips_everywhere(&world, &layout, i);
  }
  world_unite(&world);
  printf("DONE\n");
  fflush(stdout);
  world_close(&world);
  return 0;
}
