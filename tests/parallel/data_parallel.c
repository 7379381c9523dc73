/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallel ranks train as one rank does. Losses and gradients are those of one rank with the same global batch,
 * and replicas stay equal bit for bit. Other residencies of the same layout give the same bits, and peaks are as
 * planned. Every rank runs the single-rank reference itself. ranks.py starts it.
 *
 * Sharded state (ZeRO 1 to 3, hybrid) gives the bits of replicas wherever the order of sums is the same. Its bytes held
 * and sent follow the closed forms, in every state tier. Each rank moves its own blocks to and from a store of its own,
 * and a drive that fails at one rank ends all.
 *
 * Usage: data-parallel agree|shards|abort [drive]
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "run/executor/executor_internal.h"
#include "tests/parallel/world.h"
#include "tests/support/program_fixture.h"
#include "tests/support/run_fixture.h"

#define N_STEPS 3
#define LOSS_BOUND_F32 1e-5
#define LOSS_BOUND_BF16 2e-3 /* weights have 8 bits: a sum in another order sometimes rounds to the next number */
#define LOSS_BOUND_NARROW 1e-3 /* weights in FP32, moved by AdamW along gradients of 8 bits */
#define GRADIENT_BOUND 1e-6
#define GRADIENT_BOUND_NARROW 0x1p-7 /* 2^-8 of each rank's value, and of the sum */

static struct lade_residency *residency_of(const struct run_fixture *run_fixture,
                                           const struct program_fixture_setting *setting)
{
  struct lade_residency *residency = NULL;
  demand(!lade_residency_create(run_fixture->graph, &residency), "no memory for a residency");
  program_fixture_residency_set(residency, run_fixture->graph, setting);
  return residency;
}

/* Get each axis's collectives so far that needed no staging. */
static void directs_get(const struct run_fixture *run_fixture, uint64_t *ret_n)
{
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    struct lade_comm_info info = {0};
    if (run_fixture->comms && run_fixture->comms[axis])
      lade_comm_get_info(run_fixture->comms[axis], &info);
    ret_n[axis] = info.can_register ? info.n_direct : UINT64_MAX;
  }
}

/* Check that since @before ranks that share memory have read each other's arenas in place. */
static void arenas_were_read(const struct run_fixture *run_fixture, const struct lade_program *program,
                             const uint64_t *before)
{
  uint64_t now[LADE_N_AXES];
  directs_get(run_fixture, now);
  for (int i = 0; i < program->n_instrs; i++) {
    const struct lade_instr *instr = &program->instrs[i];
    if (instr->kind == LADE_INSTR_COLLECTIVE && before[instr->axis] != UINT64_MAX)
      demand(now[instr->axis] > before[instr->axis], "all collectives over %s were staged",
             lade_axis_name((enum lade_axis)instr->axis));
  }
}

/* Run @plan, which it takes over, from the beginning; check that the measured peak is the plan's. */
static struct run_fixture_numbers plan_run(struct run_fixture *run_fixture, struct lade_plan *plan)
{
  uint64_t directs[LADE_N_AXES];
  struct lade_error error = {0};
  struct lade_device_info info;
  struct run_fixture_numbers numbers;
  demand(!run_fixture_open(run_fixture, plan, &error), "%s", error.text);
  directs_get(run_fixture, directs);
  demand(!run_fixture_run(run_fixture, N_STEPS, &numbers, &error), "%s", error.text);
  arenas_were_read(run_fixture, plan->train, directs);
  lade_device_get_info(run_fixture->device, &info);
  demand(info.peak_bytes == lade_align_up(plan->peak_bytes[LADE_DEVICE], info.chunk_bytes),
         "%llu bytes were planned and %llu measured", (unsigned long long)plan->peak_bytes[LADE_DEVICE],
         (unsigned long long)info.peak_bytes);
  run_fixture_close(run_fixture);
  lade_plan_destroy(plan);
  return numbers;
}

static struct run_fixture_numbers run_of(struct run_fixture *run_fixture, const struct program_fixture_setting *setting)
{
  return plan_run(run_fixture, run_fixture_plan(run_fixture, residency_of(run_fixture, setting)));
}

/*
 * Run with memory to wait for other ranks and links of latency @latency_ns: the larger, the larger the groups.
 * @ret_n_groups: groups moved over both axes of data parallel.
 */
static struct run_fixture_numbers run_with_latency(struct run_fixture *run_fixture,
                                                   const struct program_fixture_setting *setting, int64_t latency_ns,
                                                   int *ret_n_groups)
{
  struct program_fixture_setting roomy = *setting;
  const struct lade_prices prices = run_fixture->prices;
  int n_groups[LADE_N_AXES];
  roomy.prefetch_bytes = UINT64_MAX / 2;
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    run_fixture->prices.comm[axis] = run_fixture->prices.comm_sum[axis] = (struct lade_transfer_price){latency_ns, 1};
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency_of(run_fixture, &roomy));
  lade_program_comm_groups(plan->train, n_groups);
  run_fixture->prices = prices;
  *ret_n_groups = n_groups[run_fixture->layout->zero ? LADE_AXIS_SHARD : LADE_AXIS_DP];
  return plan_run(run_fixture, plan);
}

/* Return the copies of blocks of gradients that leave the device before they are complete. */
static int blocks_away(const struct lade_program *program)
{
  int n = 0;
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    const struct lade_operand *operands = program->operands + instr->first_operand;
    if (instr->kind != LADE_INSTR_COPY || program->buffers[operands[0].buffer].space != LADE_DEVICE)
      continue;
    const int from_blocks = operands[0].reads.tensor - lade_value_block(program->graph, 0, LADE_BLOCK_GRAD);
    n += from_blocks >= 0 && from_blocks % LADE_N_BLOCKS == 0 && operands[0].reads.version < program->n_microbatches;
  }
  return n;
}

/*
 * Run the planner's plans at its largest and smallest budgets, which are equal at all ranks. With enough memory no
 * weight is gathered again for the backward half, and no block waits in another tier for the next microbatch; in the
 * smallest budget they do.
 */
static void budgets_agree(struct world *world, struct run_fixture *run_fixture, const struct run_fixture_numbers *want,
                          const char *label)
{
  struct lade_error error = {0};
  struct lade_plan_bounds bounds;
  uint64_t sent[2][LADE_N_AXES];
  int n_away[2];
  lade_planner *planner = run_fixture_planner(run_fixture, 1 << 30, 0, LADE_RECIPE_AUTO);
  demand(!lade_planner_get_bounds(planner, &bounds), "no memory for plans");
  demand(world_agrees(world, bounds.min_bytes), "%s: ranks find other smallest budgets", label);
  demand(bounds.min_bytes < bounds.unconstrained_bytes, "%s: nothing can be saved", label);
  for (int i = 0; i < 2; i++) {
    struct lade_plan *plan = NULL;
    /* Gradients that are being reduced take memory beyond the unconstrained peak, where that saves time. */
    uint64_t budget = i ? bounds.min_bytes : bounds.unconstrained_bytes + bounds.unconstrained_bytes / 4;
    demand(!lade_planner_plan(planner, budget, &error, &plan), "%s: %s", label, error.text);
    lade_program_comm_traffic(plan->train, sent[i]);
    n_away[i] = blocks_away(plan->train);
    struct run_fixture_numbers numbers = plan_run(run_fixture, plan);
    demand(memcmp(&numbers, want, sizeof(numbers)) == 0, "%s: a budget of %llu bytes gives other numbers", label,
           (unsigned long long)budget);
  }
  demand(run_fixture->layout->zero < 3 || sent[0][LADE_AXIS_SHARD] < sent[1][LADE_AXIS_SHARD],
         "%s: %llu bytes are sent with room for everything, and %llu without", label,
         (unsigned long long)sent[0][LADE_AXIS_SHARD], (unsigned long long)sent[1][LADE_AXIS_SHARD]);
  const bool is_cut = run_fixture->layout->zero >= 2 && run_fixture->model.n_microbatches > 1;
  demand(n_away[0] == 0 && (n_away[1] > 0) == is_cut, "%s: blocks leave %d times with room, %d without", label,
         n_away[0], n_away[1]);
  lade_planner_destroy(planner);
}

static void losses_agree(const struct run_fixture_numbers *got, const struct run_fixture_numbers *want, double bound,
                         const char *label)
{
  for (int i = 0; i < N_STEPS; i++)
    demand(fabs(got->loss[i] - want->loss[i]) <= bound * want->loss[i], "%s: step %d has loss %.9g, one rank %.9g",
           label, i, got->loss[i], want->loss[i]);
  for (int i = 0; i < 2; i++)
    demand(fabs(got->eval[i] - want->eval[i]) <= bound * want->eval[i], "%s: evaluation %d gives %.9g, one rank %.9g",
           label, i, got->eval[i], want->eval[i]);
}

/* ---- gradients ---- */

/* Return all gradients, concatenated: first moments after a step with beta1 0. The caller frees them. */
static float *gradients_of(struct run_fixture *run_fixture, const struct program_fixture_setting *setting)
{
  struct lade_error error = {0};
  struct lade_step_result result;
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency_of(run_fixture, setting));
  demand(!run_fixture_open(run_fixture, plan, &error), "%s", error.text);
  struct lade_step step = run_fixture_step_block(run_fixture, 0);
  step.lr = step.beta1 = step.weight_decay = step.clip = 0;
  run_fixture_tokens_fill(run_fixture, 0);
  demand(!lade_executor_step(run_fixture->executor, &step, &result, &error), "%s", error.text);
  uint64_t n = (uint64_t)lade_model_n_params(&run_fixture->graph->model), at = 0;
  float *gradients = malloc(n * sizeof(float));
  demand(gradients, "no memory for gradients");
  for (int param = 0; param < run_fixture->graph->n_params; param++) {
    int tensor = lade_value_part(run_fixture->graph, param, LADE_PART_M);
    uint64_t bytes = lade_value_bytes(run_fixture->graph, tensor);
    demand(at + bytes / sizeof(float) <= n && bytes <= LADE_EXECUTOR_WINDOW_BYTES, "more gradients than parameters");
    demand(!lade_executor_get(run_fixture->executor, tensor, 0, gradients + at, bytes, &error), "%s", error.text);
    at += bytes / sizeof(float);
  }
  run_fixture_close(run_fixture);
  lade_plan_destroy(plan);
  return gradients;
}

static void gradients_agree(const struct run_fixture *run_fixture, const float *got, const float *want, double bound,
                            const char *label)
{
  for (int param = 0; param < run_fixture->graph->n_params; param++) {
    const struct lade_tensor *tensor = &run_fixture->graph->tensors[run_fixture->graph->params[param].grad];
    double off = 0, norm = 0;
    for (uint64_t i = 0; i < tensor->bytes / sizeof(float); i++, got++, want++) {
      off += ((double)*got - *want) * ((double)*got - *want);
      norm += (double)*want * *want;
    }
    demand(sqrt(off) <= bound * sqrt(norm), "%s: %s is off by %g of %g", label, tensor->name, sqrt(off),
           sqrt(norm));
  }
}

/* ---- one model ---- */

static const struct {
  const char *name;
  enum lade_family family;
  enum lade_dtype dtype;
  int n_microbatches;
  bool optimizer_in_backward;
  enum lade_dtype grad_dtype;
} cases[] = {{"gpt2 in f32", LADE_GPT2, LADE_F32, 1, false, LADE_F32},
             {"llama in f32, two microbatches", LADE_LLAMA, LADE_F32, 2, false, LADE_F32},
             {"llama in f32, early updates", LADE_LLAMA, LADE_F32, 1, true, LADE_F32},
             {"gpt2 in bf16, two microbatches, rounded gradients", LADE_GPT2, LADE_BF16, 2, false, LADE_BF16}};

static void case_agrees(struct world *world, const struct lade_layout *layout, size_t i)
{
  const struct program_fixture_setting keep = {.manner = FIXTURE_KEEP,
                                               .optimizer_in_backward = cases[i].optimizer_in_backward};
  const struct program_fixture_setting mixed = {.manner = FIXTURE_MIXED, .state_tiers = LADE_TIER_HOST,
                                                .optimizer_in_backward = cases[i].optimizer_in_backward,
                                      .prefetch_bytes = 100000, .seed = 77};
  struct run_fixture_model model = run_fixture_tiny(cases[i].family);
  struct run_fixture one, ours;
  model.batch = 2;
  model.dtype = cases[i].dtype;
  model.grad_dtype = cases[i].grad_dtype;
  model.n_microbatches = cases[i].n_microbatches;
  run_fixture_init(&ours, &model);
  model.n_microbatches *= world->size;
  run_fixture_init(&one, &model);
  one.optimizer_in_backward = ours.optimizer_in_backward = cases[i].optimizer_in_backward;
  ours.layout = layout;
  ours.comms = world->axes;
  struct run_fixture_numbers want = run_of(&one, &keep), got = run_of(&ours, &keep), again = run_of(&ours, &mixed);
  losses_agree(&got, &want, model.dtype == LADE_F32 ? LOSS_BOUND_F32 : LOSS_BOUND_BF16, cases[i].name);
  demand(world_agrees(world, got.digest), "%s: replicas differ", cases[i].name);
  demand(memcmp(&got, &again, sizeof(got)) == 0, "%s: another residency gives other numbers", cases[i].name);
  if (model.dtype == LADE_F32) {
    float *gradients = gradients_of(&ours, &keep), *expected = gradients_of(&one, &keep);
    gradients_agree(&ours, gradients, expected, GRADIENT_BOUND, cases[i].name);
    free(gradients);
    struct lade_layout narrow = *layout;
    narrow.grad_reduce = LADE_BF16;
    ours.layout = &narrow;
    gradients = gradients_of(&ours, &keep);
    gradients_agree(&ours, gradients, expected, GRADIENT_BOUND_NARROW, cases[i].name);
    free(gradients);
    free(expected);
  }
  run_fixture_finish(&one);
  run_fixture_finish(&ours);
}

/* ---- shards ---- */

static const struct {
  int zero, n_microbatches, state_tiers;
  enum lade_family family;
  enum lade_dtype dtype;
  bool is_hybrid, optimizer_in_backward;
  enum lade_dtype grad_dtype; /* 0: F32 */
  bool is_narrow;             /* ranks sum in BF16 */
} shards[] = {
    {1, 1, LADE_TIER_DEVICE, LADE_GPT2, LADE_F32, false, false},
    {1, 2, LADE_TIER_HOST, LADE_LLAMA, LADE_BF16, false, false, LADE_BF16},
    {2, 1, LADE_TIER_DEVICE, LADE_LLAMA, LADE_BF16, false, false},
    {2, 3, LADE_TIER_DEVICE, LADE_GPT2, LADE_F32, false, false},
    {3, 1, LADE_TIER_DEVICE, LADE_GPT2, LADE_BF16, false, false, LADE_BF16},
    {3, 2, LADE_TIER_HOST, LADE_LLAMA, LADE_F32, false, false},
    {3, 1, LADE_TIER_DEVICE, LADE_LLAMA, LADE_F32, false, true},
    {3, 2, LADE_TIER_DEVICE, LADE_LLAMA, LADE_F32, true, false},
    {1, 1, LADE_TIER_DEVICE, LADE_LLAMA, LADE_F32, true, true, LADE_BF16},
    {0, 2, LADE_TIER_HOST, LADE_GPT2, LADE_F32, false, false, LADE_F32, true},
    {1, 1, LADE_TIER_HOST, LADE_LLAMA, LADE_F32, true, false, LADE_F32, true},
    {3, 3, LADE_TIER_HOST, LADE_GPT2, LADE_F32, true, false, LADE_BF16, true},
    {2, 2, LADE_TIER_DEVICE, LADE_LLAMA, LADE_F32, false, true, LADE_F32, true},
    {1, 2, LADE_TIER_STORE, LADE_GPT2, LADE_BF16, false, false},
    {2, 2, LADE_TIER_STORE, LADE_LLAMA, LADE_F32, false, false},
    {3, 2, LADE_TIER_STORE, LADE_GPT2, LADE_BF16, false, false, LADE_BF16},
    {3, 1, LADE_TIER_STORE, LADE_LLAMA, LADE_F32, true, true},
    {1, 1, FIXTURE_MIXED_TIERS, LADE_LLAMA, LADE_BF16, false, false, LADE_BF16},
    {3, 2, FIXTURE_MIXED_TIERS, LADE_LLAMA, LADE_BF16, true, false, LADE_F32, true},
};

/* ---- in a store ---- */

static const char *store_refusal; /* why stores cannot be used here; NULL: they can */

static struct lade_store_info moved_get(const struct run_fixture *run_fixture)
{
  struct lade_store_info info = {0};
  lade_store_get_info(run_fixture->store, &info);
  return info;
}

/* Return the bytes of this rank's block of value @tensor on a drive. */
static uint64_t stored_bytes(const struct run_fixture *run_fixture, int tensor)
{
  return lade_align_up(lade_held_bytes(run_fixture->graph, run_fixture->layout, tensor), LADE_STORE_BLOCK_BYTES);
}

/* Check that values in the store across steps are at its begin, in the bytes that durable state reserves for them. */
static void state_is_first_in_the_store(const struct run_fixture *run_fixture, const struct lade_program *program,
                                        const char *label)
{
  const uint64_t state_bytes = lade_state_store_bytes(run_fixture->graph, run_fixture->layout);
  uint64_t end = 0;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space != LADE_STORE)
      continue;
    demand(buffer->is_resident || buffer->offset >= state_bytes, "%s: buffer %d lies among state", label, i);
    end = LADE_MAX(end, buffer->is_resident ? buffer->offset + buffer->bytes : 0);
  }
  demand(end == state_bytes, "%s: state takes %llu bytes of the store, not %llu", label, (unsigned long long)end,
         (unsigned long long)state_bytes);
}

/*
 * Check that with all state in the store a step writes each block of state and of working copies once, and reads it as
 * often.
 */
static void store_moves_own_blocks(struct run_fixture *run_fixture, const char *label)
{
  const struct program_fixture_setting stored = {.manner = FIXTURE_KEEP, .state_tiers = LADE_TIER_STORE,
                                                 .optimizer_in_backward = run_fixture->optimizer_in_backward};
  struct lade_error error = {0};
  struct lade_step_result result;
  uint64_t expected = 0;
  for (int param = 0; param < run_fixture->graph->n_params; param++) {
    expected += stored_bytes(run_fixture, lade_value_block(run_fixture->graph, param, LADE_BLOCK_WEIGHT));
    for (int part = 0; part < LADE_N_PARTS; part++) {
      const int tensor = lade_value_part(run_fixture->graph, param, (enum lade_part)part);
      expected += tensor < 0 ? 0 : stored_bytes(run_fixture, tensor);
    }
  }
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency_of(run_fixture, &stored));
  state_is_first_in_the_store(run_fixture, plan->train, label);
  demand(!run_fixture_open(run_fixture, plan, &error), "%s: %s", label, error.text);
  const struct lade_store_info before = moved_get(run_fixture);
  demand(!run_fixture_step(run_fixture, 0, &result, &error), "%s: %s", label, error.text);
  const struct lade_store_info after = moved_get(run_fixture);
  demand(after.written_bytes - before.written_bytes == expected, "%s: a step writes %llu bytes, not %llu", label,
         (unsigned long long)(after.written_bytes - before.written_bytes), (unsigned long long)expected);
  demand(after.read_bytes - before.read_bytes >= expected, "%s: a step reads %llu bytes, less than it writes", label,
         (unsigned long long)(after.read_bytes - before.read_bytes));
  run_fixture_close(run_fixture);
  lade_plan_destroy(plan);
}

/* ---- closed forms ---- */

/* Check the bytes per rank of weights, gradients' blocks and optimizer state, all padding included. */
static void ledger_is_closed_form(const struct run_fixture *run_fixture, const struct lade_program *program,
                                  const char *label)
{
  const struct lade_model_graph *graph = run_fixture->graph;
  const int n = lade_shard_count(program->layout), zero = program->layout->zero;
  uint64_t state[LADE_N_OWNERS] = {0}, expected[LADE_N_OWNERS] = {0};
  const int element = (int)lade_dtype_bytes(graph->dtype), residual = graph->dtype == LADE_BF16 ? 2 : 0;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space == LADE_DEVICE && buffer->is_resident)
      state[buffer->owner] += buffer->bytes;
  }
  for (int param = 0; param < graph->n_params; param++) {
    uint64_t block = (uint64_t)lade_param_shard(graph, program->layout, param).n_padded;
    uint64_t whole = block * (uint64_t)n;
    demand(whole < (uint64_t)lade_param_shard(graph, NULL, param).n + 512u * (uint64_t)n, "%s: %llu padded", label,
           (unsigned long long)whole);
    expected[LADE_OWNER_PARAMETERS] += lade_align_up((zero == 3 ? block : whole) * (uint64_t)element, 4096);
    expected[LADE_OWNER_OPTIMIZER] += 2 * lade_align_up(block * 4, 4096);
    expected[LADE_OWNER_OPTIMIZER] += residual ? lade_align_up(block * (uint64_t)residual, 4096) : 0;
  }
  for (int owner = 0; owner < LADE_N_OWNERS; owner++)
    demand(state[owner] == expected[owner], "%s: %s take %llu bytes, not %llu", label,
           lade_owner_name((enum lade_owner)owner), (unsigned long long)state[owner],
           (unsigned long long)expected[owner]);
}

/* Return the number of halves that read the working copy. Each is one gather if the copy is dropped in between. */
static int gathers_count(const struct lade_model_graph *graph, int param)
{
  int n = 0;
  for (int half = 0; half < 2; half++) {
    bool is_read = false;
    for (int op = half ? graph->n_fwd_ops : 0; op < (half ? graph->n_ops : graph->n_fwd_ops); op++) {
      for (int i = 0; i < graph->ops[op].n_in; i++)
        is_read |= graph->ops[op].in[i] == graph->params[param].tensor;
    }
    n += is_read;
  }
  return n;
}

/* Check the bytes sent by replicas: 2(N-1)/N of 4 or 2 per parameter, and of 4 per microbatch for its loss. */
static void replicas_traffic_is_closed_form(const struct lade_model_graph *graph, const struct lade_program *program,
                                            uint64_t sent, const char *label)
{
  const uint64_t n = (uint64_t)lade_layout_size(program->layout, LADE_AXIS_DP);
  uint64_t expected = (uint64_t)program->n_microbatches * (2 * 4 * (n - 1) / n);
  for (int param = 0; param < graph->n_params; param++) {
    uint64_t elements = (uint64_t)lade_param_shard(graph, program->layout, param).n;
    expected += 2 * elements * lade_dtype_bytes(program->layout->grad_reduce) * (n - 1) / n;
  }
  demand(sent == expected, "%s: %llu bytes are sent, not %llu", label, (unsigned long long)sent,
         (unsigned long long)expected);
}

/* Check the bytes sent: (N-1)/N of 4, or 2 in BF16, per parameter and reduction, and of a working copy per gather. */
static void traffic_is_closed_form(const struct run_fixture *run_fixture, const struct lade_program *program,
                                   const char *label)
{
  const struct lade_model_graph *graph = run_fixture->graph;
  const uint64_t n = (uint64_t)lade_shard_count(program->layout), m = (uint64_t)program->n_microbatches;
  const int zero = program->layout->zero;
  uint64_t sent[LADE_N_AXES], expected = (n - 1) * sizeof(double); /* sums of squares */
  for (int param = 0; param < graph->n_params; param++) {
    uint64_t block = (uint64_t)lade_param_shard(graph, program->layout, param).n_padded;
    uint64_t n_gathers = zero == 3 ? m * (uint64_t)gathers_count(graph, param) : 1;
    uint64_t reduced = lade_dtype_bytes(program->layout->grad_reduce) * (zero == 1 ? 1 : m);
    expected += (n - 1) * block * (reduced + lade_dtype_bytes(graph->dtype) * n_gathers);
  }
  lade_program_comm_traffic(program, sent);
  if (zero == 0) {
    replicas_traffic_is_closed_form(graph, program, sent[LADE_AXIS_DP], label);
    return;
  }
  demand(sent[LADE_AXIS_SHARD] <= expected, "%s: %llu bytes are sent, not %llu", label,
         (unsigned long long)sent[LADE_AXIS_SHARD], (unsigned long long)expected);
  demand(zero == 3 || sent[LADE_AXIS_SHARD] == expected, "%s: %llu bytes are sent, not %llu", label,
         (unsigned long long)sent[LADE_AXIS_SHARD], (unsigned long long)expected);
}

static void shards_agree(struct world *world, size_t i)
{
  char label[96];
  const bool optimizer_in_backward = shards[i].optimizer_in_backward;
  const struct program_fixture_setting keep = {.manner = FIXTURE_KEEP, .optimizer_in_backward = optimizer_in_backward};
  const struct program_fixture_setting drop = {.manner = FIXTURE_HOST, .optimizer_in_backward = optimizer_in_backward};
  const struct program_fixture_setting mixed = {.manner = FIXTURE_MIXED, .state_tiers = shards[i].state_tiers,
                                                .optimizer_in_backward = optimizer_in_backward,
                                      .prefetch_bytes = 100000, .seed = 78};
  struct lade_error error = {0};
  struct lade_layout replicas, layout;
  struct lade_layout_params params = {.struct_size = sizeof(params), .world = world->size, .rank = world->rank,
                                      .grad_reduce = LADE_F32};
  demand(!lade_layout_init(&params, &error, &replicas), "%s", error.text);
  params.zero = shards[i].zero;
  params.shard = shards[i].is_hybrid ? 2 : 0;
  params.grad_reduce = shards[i].is_narrow ? LADE_BF16 : LADE_F32;
  demand(!lade_layout_init(&params, &error, &layout), "%s", error.text);
  snprintf(label, sizeof(label), "zero %d%s, %d microbatches, tiers %d%s%s", params.zero,
           shards[i].is_hybrid ? " hybrid" : "", shards[i].n_microbatches, shards[i].state_tiers,
               optimizer_in_backward ? ", early" : "",
           shards[i].is_narrow ? ", sums in bf16" : "");
  world_split(world, &layout);
  struct run_fixture_model model = run_fixture_tiny(shards[i].family);
  struct run_fixture run_fixture;
  model.batch = 2;
  model.dtype = shards[i].dtype;
  model.grad_dtype = shards[i].grad_dtype;
  model.n_microbatches = shards[i].n_microbatches;
  run_fixture_init(&run_fixture, &model);
  run_fixture.optimizer_in_backward = optimizer_in_backward;
  run_fixture.comms = world->axes;
  run_fixture.layout = &replicas;
  struct run_fixture_numbers want = run_of(&run_fixture, &keep);
  run_fixture.layout = &layout;
  struct run_fixture_numbers got = run_of(&run_fixture, &keep), again = run_of(&run_fixture, &mixed);
  bool is_same_order = params.zero == 1 || model.n_microbatches == 1;
  bool has_same_order = is_same_order && !shards[i].is_hybrid; /* else sums have another order */
  losses_agree(&got, &want, shards[i].is_narrow ? LOSS_BOUND_NARROW : has_same_order ? 0 : LOSS_BOUND_F32, label);
  for (int s = 0; s < N_STEPS; s++)
    demand(got.loss[s] == again.loss[s] && got.norm[s] == again.norm[s],
           "%s: step %d of another residency has loss %a and norm %a, not %a and %a", label, s, again.loss[s],
           (double)again.norm[s], got.loss[s], (double)got.norm[s]);
  demand(memcmp(&got, &again, sizeof(got)) == 0, "%s: another residency gives other state", label);
  demand(world_agrees(world, (uint64_t)(got.loss[N_STEPS - 1] * 1e15)), "%s: ranks have other losses", label);
  if (i == 1 || (i >= 3 && i <= 5) || i == 7)
    budgets_agree(world, &run_fixture, &got, label);
  if (shards[i].state_tiers == LADE_TIER_STORE)
    store_moves_own_blocks(&run_fixture, label);
  if (i >= 3 && i <= 5) {
    int n_small, n_large;
    struct run_fixture_numbers small = run_with_latency(&run_fixture, &keep, 1000, &n_small);
    struct run_fixture_numbers large = run_with_latency(&run_fixture, &keep, 100000000, &n_large);
    demand(n_large < n_small, "%s: %d groups of small buckets, %d of large ones", label, n_small, n_large);
    demand(memcmp(&got, &small, sizeof(got)) == 0 && memcmp(&got, &large, sizeof(got)) == 0,
           "%s: buckets of another size give other numbers", label);
  }
  struct lade_plan *plan = run_fixture_plan(&run_fixture, residency_of(&run_fixture, &drop));
  ledger_is_closed_form(&run_fixture, plan->train, label);
  traffic_is_closed_form(&run_fixture, plan->train, label);
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
  world_unite(world);
}

/*
 * Compare a table that is several parameters with a whole one. Losses are those of replicas with a whole table, up to
 * another last bit of each row's statistics. Memory and traffic follow the closed forms, and other residencies and
 * budgets give the same bits.
 */
static void parts_agree(struct world *world, enum lade_family family)
{
  const struct program_fixture_setting keep = {.manner = FIXTURE_KEEP}, drop = {.manner = FIXTURE_HOST};
  const struct program_fixture_setting mixed = {.manner = FIXTURE_MIXED, .state_tiers = LADE_TIER_HOST,
                                                .prefetch_bytes = 100000,
                                      .seed = 79};
  const char *label = family == LADE_GPT2 ? "a tied table in parts" : "tables in parts";
  struct lade_error error = {0};
  struct lade_layout replicas, layout;
  struct lade_layout_params params = {.struct_size = sizeof(params), .world = world->size, .rank = world->rank,
                                      .grad_reduce = LADE_F32};
  struct run_fixture_model model = run_fixture_tiny(family);
  struct run_fixture whole, run_fixture;
  demand(!lade_layout_init(&params, &error, &replicas), "%s", error.text);
  params.zero = LADE_ZERO_MAX;
  demand(!lade_layout_init(&params, &error, &layout), "%s", error.text);
  world_split(world, &layout);
  model.batch = 2;
  model.vocabulary = 3100;
  model.n_microbatches = 2;
  run_fixture_init(&whole, &model);
  model.share.n_shards = world->size;
  run_fixture_init(&run_fixture, &model);
  demand(lade_model_graph_has_parts(run_fixture.graph) && !lade_model_graph_has_parts(whole.graph),
         "%s: there are none", label);
  whole.comms = run_fixture.comms = world->axes;
  whole.layout = &replicas;
  run_fixture.layout = &layout;
  struct run_fixture_numbers want = run_of(&whole, &keep), got = run_of(&run_fixture, &keep), again =
      run_of(&run_fixture, &mixed);
  losses_agree(&got, &want, LOSS_BOUND_BF16, label);
  demand(fabs(got.loss[0] - want.loss[0]) <= LOSS_BOUND_F32 * want.loss[0], "%s: the first loss is %a, not %a", label,
         got.loss[0], want.loss[0]);
  demand(memcmp(&got, &again, sizeof(got)) == 0, "%s: another residency gives other state", label);
  if (world->size == 2 && family == LADE_LLAMA) /* the planner's own plans, which take longest */
    budgets_agree(world, &run_fixture, &got, label);
  struct lade_plan *plan = run_fixture_plan(&run_fixture, residency_of(&run_fixture, &drop));
  ledger_is_closed_form(&run_fixture, plan->train, label);
  traffic_is_closed_form(&run_fixture, plan->train, label);
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
  run_fixture_finish(&whole);
  world_unite(world);
}

/* ---- failure ---- */

/* A drive that fails at one rank ends the step of all with that rank's message. */
static void drive_failure_is_reported(struct world *world)
{
  const int code = -EIO;
  const struct program_fixture_setting stored = {.manner = FIXTURE_KEEP, .state_tiers = LADE_TIER_STORE};
  struct lade_layout_params params = {.struct_size = sizeof(params), .world = world->size, .rank = world->rank,
                                      .zero = 3, .grad_reduce = LADE_F32};
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct lade_error error = {0};
  struct lade_step_result result;
  struct lade_layout layout;
  struct lade_faults faults;
  struct run_fixture run_fixture;
  demand(!lade_layout_init(&params, &error, &layout), "%s", error.text);
  lade_faults_init(&faults);
  world_split(world, &layout);
  run_fixture_init(&run_fixture, &model);
  run_fixture.layout = &layout;
  run_fixture.comms = world->axes;
  run_fixture.faults = &faults;
  struct lade_plan *plan = run_fixture_plan(&run_fixture, residency_of(&run_fixture, &stored));
  demand(!run_fixture_open(&run_fixture, plan, &error), "%s", error.text);
  demand(!run_fixture_step(&run_fixture, 0, &result, &error), "%s", error.text);
  if (world->rank == 1)
    lade_faults_arm(&faults, LADE_FAULT_FILE_WRITE, 1, true, code);
  int status = run_fixture_step(&run_fixture, 1, &result, &error);
  if (!status) /* the others may have ended before the first write fails */
    status = run_fixture_step(&run_fixture, 2, &result, &error);
  demand(status == (world->rank == 1 ? code : -ECANCELED), "the step ends with %d: %s", status, error.text);
  demand(strstr(error.text, "writing out of tensor"), "the step says '%s'", error.text);
  run_fixture_close(&run_fixture);
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
}

/* A failure at one rank ends the step of all, soon, with that rank's message. */
static void failure_is_reported(struct world *world, const struct lade_layout *layout)
{
  const struct program_fixture_setting keep = {.manner = FIXTURE_KEEP};
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct lade_error error = {0};
  struct lade_step_result result;
  struct run_fixture run_fixture;
  run_fixture_init(&run_fixture, &model);
  run_fixture.layout = layout;
  run_fixture.comms = world->axes;
  struct lade_plan *plan = run_fixture_plan(&run_fixture, residency_of(&run_fixture, &keep));
  demand(!run_fixture_open(&run_fixture, plan, &error), "%s", error.text);
  demand(!run_fixture_step(&run_fixture, 0, &result, &error), "%s", error.text);
  if (world->rank == 1) {
    struct lade_error words;
    lade_error_set(&words, -EIO, "the drive of this rank is gone");
    executor_fail(run_fixture.executor, -EIO, &words);
  }
  int status = run_fixture_step(&run_fixture, 1, &result, &error);
  demand(status == (world->rank == 1 ? -EIO : -ECANCELED), "the step ends with %d: %s", status, error.text);
  demand(strstr(error.text, "the drive of this rank is gone"), "the step says '%s'", error.text);
  demand(run_fixture_step(&run_fixture, 2, &result, &error) == status, "a later step gives another error");
  run_fixture_close(&run_fixture);
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
}

int main(int argc, char **argv)
{
  struct world world;
  struct lade_layout layout;
  struct lade_error error = {0};
  demand(argc == 3 ? !strcmp(argv[2], "drive") : argc == 2, "usage: data-parallel agree|shards|abort [drive]");
  world_open(&world);
  struct lade_layout_params params = {.struct_size = sizeof(params), .world = world.size, .rank = world.rank,
                                      .grad_reduce = LADE_F32};
  demand(!lade_layout_init(&params, &error, &layout), "%s", error.text);
  store_refusal = run_fixture_store_refusal(LADE_STORE_AUTO);
  if (store_refusal)
    printf("SKIP: runs with a store: %s\n", store_refusal);
  const bool is_of_drive = argc == 3;
  if (strcmp(argv[1], "shards") != 0 && !is_of_drive)
    world_split(&world, &layout);
  if (is_of_drive && !store_refusal)
    drive_failure_is_reported(&world);
  else if (strcmp(argv[1], "abort") == 0 && !is_of_drive)
    failure_is_reported(&world, &layout);
  for (size_t i = 0; strcmp(argv[1], "agree") == 0 && i < LADE_COUNT(cases); i++)
    case_agrees(&world, &layout, i);
  for (size_t i = 0; strcmp(argv[1], "shards") == 0 && i < LADE_COUNT(shards); i++) {
    if (shards[i].state_tiers < LADE_TIER_STORE || !store_refusal)
      shards_agree(&world, i);
  }
  if (strcmp(argv[1], "shards") == 0) {
    parts_agree(&world, LADE_LLAMA);
    parts_agree(&world, LADE_GPT2);
  }
  printf("DONE\n");
  fflush(stdout);
  world_close(&world);
  return 0;
}
