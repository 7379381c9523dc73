/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small models bound to memory. Prices are a roofline's of a made-up machine, so that plans are the same on every
 * machine.
 */
#include "tests/support/run_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "lade/pack.h"
#include "base/base.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "run/checkpoint.h"

#define PARAMS_MAX 512

static void demand(int status, const struct lade_error *error, const char *part)
{
  if (!status)
    return;
  fprintf(stderr, "run_fixture: %s: %s (%d)\n", part, error ? error->text : "", status);
  abort();
}

struct run_fixture_model run_fixture_tiny(enum lade_family family)
{
  return (struct run_fixture_model){.family = family, .dtype = LADE_BF16, .dropout = 0.1f, .n_microbatches = 1,
                                    .layers = 2,
                            .width = 32, .vocabulary = 96, .batch = 8, .seq_len = 16};
}

static const struct lade_machine run_fixture_machine = {
    .name = "fixture", .n_cores = 2, .is_unified = true, .device_bytes = UINT64_C(16) << 30,
    .host_bytes = UINT64_C(16) << 30,
    .matmul_flops_per_s = {[LADE_F32] = 1e11, [LADE_BF16] = 2e11, [LADE_F16] = 1e11}, .device_bytes_per_s = 1e10,
    .launch_ns = 1000, .to_host = {5000000000, 1000}, .to_device = {5000000000, 1000}, .is_duplex = true,
    .host_bytes_per_s = 1e10,
    .store = {.bytes = UINT64_C(64) << 30, .read_bytes_per_s = 2e9, .write_bytes_per_s = 1e9, .latency_ns = 50000}};

void run_fixture_init(struct run_fixture *run_fixture, const struct run_fixture_model *m)
{
  struct lade_error error = {0};
  struct lade_cpu cpu = lade_cpu_get();
  *run_fixture = (struct run_fixture){.model = *m, .chunk_bytes = 4096, .is_unified = true, .store_dir = "."};
  struct lade_model model = {.name = "fixture", .family = m->family, .layers = m->layers, .heads = 4, .n_kv_heads = 4,
                             .width = m->width, .hidden = 4 * m->width, .context = m->seq_len,
                             .vocabulary = m->vocabulary, .is_tied = !m->is_untied, .norm_eps = 1e-5f};
  if (m->family == LADE_LLAMA) {
    model.n_kv_heads = 2;
    model.is_tied = false;
    model.rope_base = 10000;
  }
  if (m->has_score_form) {
    model.window = 5;
    lade_layer_set_add(&model.windowed, 0);
    model.attention_softcap = 3;
    model.has_sinks = true;
  }
  lade_kernels_init(&run_fixture->kernels, &cpu);
  demand(lade_pool_create(2, &run_fixture->pool), NULL, "threads");
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = m->dtype,
                                           .batch = m->batch,
                                  .seq_len = m->seq_len, .dropout = m->dropout, .kernels = &run_fixture->kernels,
                                      .n_threads = 2,
                                  .moments = m->moments, .master = m->master, .grad_dtype = m->grad_dtype,
                                  .has_documents = m->has_score_form, .share = m->share};
  demand(lade_model_graph_create(&params, &error, &run_fixture->graph), &error, "graph");
  struct lade_cost cost;
  lade_cost_init(&cost, &run_fixture_machine);
  demand(lade_cost_prices(&cost, run_fixture->graph, &run_fixture->prices), NULL, "prices");
  lade_cost_finish(&cost);
}

void run_fixture_finish(struct run_fixture *run_fixture)
{
  run_fixture_close(run_fixture);
  lade_prices_finish(&run_fixture->prices);
  lade_model_graph_destroy(run_fixture->graph);
  lade_pool_destroy(run_fixture->pool);
}

/* ---- plans ---- */

lade_planner *run_fixture_planner(const struct run_fixture *run_fixture, uint64_t host_bytes, uint64_t store_bytes,
                                  enum lade_recipe recipe)
{
  struct lade_error error = {0};
  lade_planner *planner = NULL;
  static struct lade_change overrides[PARAMS_MAX];
  const int n_overrides = run_fixture->is_durable ? run_fixture->graph->n_params : 0;
  demand(n_overrides <= PARAMS_MAX ? 0 : -1, NULL, "room for overrides");
  for (int i = 0; i < n_overrides; i++)
    overrides[i] = (struct lade_change){LADE_CHANGE_WEIGHT, LADE_TIER_STORE, i};
  const struct lade_plan_params params = {
      .struct_size = sizeof(params), .graph = run_fixture->graph, .layout = run_fixture->layout,
      .prices = &run_fixture->prices, .n_microbatches = run_fixture->model.n_microbatches,
      .is_unified = run_fixture->is_unified, .optimizer_in_backward = run_fixture->optimizer_in_backward,
      .chunk_bytes = run_fixture->chunk_bytes, .host_bytes = host_bytes, .store_bytes = store_bytes, .recipe = recipe,
      .overrides = overrides, .n_overrides = n_overrides};
  demand(lade_planner_create(&params, &error, &planner), &error, "planner");
  return planner;
}

struct lade_plan *run_fixture_plan(const struct run_fixture *run_fixture, struct lade_residency *residency)
{
  static const uint64_t no_limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
  struct lade_error error = {0};
  struct lade_packer *packer = NULL;
  struct lade_plan *plan = calloc(1, sizeof(*plan));
  demand(plan && !lade_packer_create(&packer) ? 0 : -1, NULL, "packer");
  struct lade_build_params params = {.graph = run_fixture->graph, .layout = run_fixture->layout, .residency = residency,
                                     .prices = &run_fixture->prices,
                                     .n_microbatches = run_fixture->model.n_microbatches, .is_training = true,
                                     .is_unified = run_fixture->is_unified, .chunk_bytes = run_fixture->chunk_bytes,
                                     .packer = packer};
  plan->residency = residency;
  demand(lade_program_build(&params, &plan->train), NULL, "training program");
  params.is_training = false;
  params.residents = plan->train;
  demand(lade_program_build(&params, &plan->eval), NULL, "evaluation program");
  demand(lade_program_prove(plan->train, no_limit, &error), &error, "proof of training");
  demand(lade_program_prove(plan->eval, no_limit, &error), &error, "proof of evaluation");
  for (int space = 0; space < LADE_N_SPACES; space++)
    plan->peak_bytes[space] = LADE_MAX(plan->train->peak_bytes[space], plan->eval->peak_bytes[space]);
  lade_packer_destroy(packer);
  return plan;
}

/* ---- running a plan ---- */

/* Return the bytes of a slot. */
static uint64_t durable_bytes(const struct run_fixture *run_fixture)
{
  return run_fixture->is_durable ? lade_state_store_bytes(run_fixture->graph, run_fixture->layout) : 0;
}

static int durable_open(struct run_fixture *run_fixture, struct lade_error *error)
{
  const struct lade_durable_params params = {.struct_size = sizeof(params), .dir = run_fixture->store_dir,
                                             .engine = run_fixture->engine,
                                             .allow_tmpfs = run_fixture->allow_tmpfs, .faults = run_fixture->faults};
  int status = lade_durable_open(&params, error, &run_fixture->durable);
  return status ? status : lade_durable_prepare(run_fixture->durable, durable_bytes(run_fixture), 1, error);
}

/* Set the first values, and in a durable fixture publish their generation; or load the existing state. */
static int values_begin(struct run_fixture *run_fixture, struct lade_error *error)
{
  size_t memo_bytes;
  if (run_fixture->durable && lade_durable_memo(run_fixture->durable, &memo_bytes))
    return 0;
  struct lade_values values = lade_executor_values(run_fixture->executor, run_fixture->graph);
  int status = lade_checkpoint_random(&values, 11, error);
  return status || !run_fixture->durable ? status : lade_executor_publish(run_fixture->executor, "", 1, error);
}

int run_fixture_open(struct run_fixture *run_fixture, const struct lade_plan *plan, struct lade_error *error)
{
  struct lade_host_device_params device = {
      .struct_size = sizeof(device), .capacity_bytes = lade_align_up(plan->peak_bytes[LADE_DEVICE], 2 << 20),
      .pool = run_fixture->pool, .faults = run_fixture->faults};
  int status = lade_device_open_host(&device, error, &run_fixture->device);
  if (!status && run_fixture->is_durable)
    status = durable_open(run_fixture, error);
  if (!status && plan->peak_bytes[LADE_STORE] > durable_bytes(run_fixture)) {
    struct lade_store_params store = {.struct_size = sizeof(store), .dir = run_fixture->store_dir,
                                      .engine = run_fixture->engine,
                                      .capacity_bytes = plan->peak_bytes[LADE_STORE],
                                      .allow_tmpfs = run_fixture->allow_tmpfs,
                                      .faults = run_fixture->faults};
    status = lade_store_open(&store, error, &run_fixture->store);
  }
  struct lade_executor_params params = {.struct_size = sizeof(params), .plan = plan, .device = run_fixture->device,
                                        .kernels = &run_fixture->kernels, .pool = run_fixture->pool,
                                        .store = run_fixture->store,
                                        .durable = run_fixture->durable, .faults = run_fixture->faults,
                                        .comms = run_fixture->comms};
  if (!status)
    status = lade_executor_create(&params, error, &run_fixture->executor);
  if (!status)
    status = lade_executor_meet(run_fixture->executor, error);
  return status ? status : values_begin(run_fixture, error);
}

struct lade_plan *run_fixture_open_stored(struct run_fixture *run_fixture)
{
  struct lade_residency *residency = NULL;
  struct lade_error error = {0};
  demand(lade_residency_create(run_fixture->graph, &residency), NULL, "residency");
  for (int param = 0; param < run_fixture->graph->n_params; param++)
    lade_residency_set_tiers(residency, param, LADE_TIER_DEVICE, LADE_TIER_STORE);
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency);
  demand(run_fixture_open(run_fixture, plan, &error), &error, "plan with state in the store");
  return plan;
}

void run_fixture_close(struct run_fixture *run_fixture)
{
  lade_executor_destroy(run_fixture->executor);
  lade_store_close(run_fixture->store);
  lade_durable_close(run_fixture->durable);
  lade_device_close(run_fixture->device);
  run_fixture->durable = NULL;
  run_fixture->executor = NULL;
  run_fixture->store = NULL;
  run_fixture->device = NULL;
}

void run_fixture_forget(const struct run_fixture *run_fixture)
{
  static const char *const names[] = {LADE_DURABLE_DATA, LADE_DURABLE_JOURNAL, LADE_DURABLE_JOURNAL ".new"};
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", run_fixture->store_dir, names[i]);
    unlink(path);
  }
}

void run_fixture_tokens_fill(struct run_fixture *run_fixture, uint32_t batch)
{
  int64_t n = run_fixture->model.batch * run_fixture->model.seq_len;
  const int first = run_fixture->model.n_microbatches * lade_layout_position(run_fixture->layout, LADE_AXIS_DP);
  for (int m = 0; m < run_fixture->model.n_microbatches; m++) {
    int32_t *tokens = lade_executor_tokens(run_fixture->executor, m), *targets =
        lade_executor_targets(run_fixture->executor, m);
    int32_t *first_keys = lade_executor_first_keys(run_fixture->executor, m);
    for (int64_t i = 0; i < n; i++) {
      struct lade_philox word = lade_philox_draw(5, batch, (uint32_t)(first + m), (uint64_t)i);
      if (tokens)
        tokens[i] = (int32_t)(word.word[0] % (uint32_t)run_fixture->model.vocabulary);
      if (targets)
        targets[i] = (int32_t)(word.word[1] % (uint32_t)run_fixture->model.vocabulary);
      if (first_keys) /* documents of seven tokens */
        first_keys[i] = (int32_t)(i % run_fixture->model.seq_len / 7 * 7);
    }
  }
}

struct lade_step run_fixture_step_block(const struct run_fixture *run_fixture, int i)
{
  struct lade_step step = {.seed = 3, .step = (uint32_t)i, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .weight_decay = 0.1f, .clip = run_fixture->optimizer_in_backward ||
                               run_fixture->is_unclipped ? 0 : 1,
                           .loss_scale = run_fixture->model.dtype == LADE_F16 ? 256 : 1};
  double power1 = 1, power2 = 1;
  for (int k = 0; k <= i; k++) {
    power1 *= 0.9;
    power2 *= 0.95;
  }
  step.correction1 = (float)(1 / (1 - power1));
  step.correction2 = (float)(1 / (1 - power2));
  return step;
}

int run_fixture_step(struct run_fixture *run_fixture, int i, struct lade_step_result *ret_result,
                     struct lade_error *error)
{
  struct lade_step step = run_fixture_step_block(run_fixture, i);
  run_fixture_tokens_fill(run_fixture, (uint32_t)i);
  int status = lade_executor_step(run_fixture->executor, &step, ret_result, error);
  return status || !run_fixture->durable ? status : lade_executor_publish(run_fixture->executor, &i, sizeof(i), error);
}

int run_fixture_eval(struct run_fixture *run_fixture, double *ret_loss, struct lade_error *error)
{
  struct lade_step_result result;
  run_fixture_tokens_fill(run_fixture, 1000000);
  int status = lade_executor_eval(run_fixture->executor, &result, error);
  if (!status)
    *ret_loss = result.loss;
  return status;
}

/* Keep this rank's shard of a working copy that is whole on the device. The rank has the shard in any state tier. */
static void shard_keep(const struct run_fixture *run_fixture, int tensor, uint64_t at, char *window, uint64_t bytes)
{
  if (tensor >= run_fixture->graph->n_tensors)
    return;
  const struct lade_tensor *weight = &run_fixture->graph->tensors[tensor];
  const struct lade_state_shard shard = lade_param_shard(run_fixture->graph, run_fixture->layout, weight->param);
  const uint64_t element = lade_dtype_bytes(weight->dtype), first = (uint64_t)shard.first * element;
  const uint64_t end = first + (uint64_t)shard.n * element;
  for (uint64_t i = 0; i < bytes; i++)
    window[i] = at + i >= first && at + i < end ? window[i] : 0;
}

static int value_hash(struct run_fixture *run_fixture, int tensor, XXH3_state_t *state, struct lade_error *error)
{
  static _Alignas(64) char window[LADE_EXECUTOR_WINDOW_BYTES];
  uint64_t bytes = lade_value_bytes(run_fixture->graph, tensor);
  for (uint64_t at = 0; at < bytes; at += sizeof(window)) {
    uint64_t part = LADE_MIN(bytes - at, sizeof(window));
    memset(window, 0, part); /* a rank holds part of the shards */
    int status = lade_executor_get(run_fixture->executor, tensor, at, window, part, error);
    if (status)
      return status;
    shard_keep(run_fixture, tensor, at, window, part);
    XXH3_64bits_update(state, window, part);
  }
  return 0;
}

int run_fixture_digest(struct run_fixture *run_fixture, uint64_t *ret_digest, struct lade_error *error)
{
  XXH3_state_t *state = XXH3_createState();
  if (!state)
    abort();
  int status = 0;
  XXH3_64bits_reset(state);
  for (int param = 0; param < run_fixture->graph->n_params && !status; param++) {
    status = value_hash(run_fixture, run_fixture->graph->params[param].tensor, state, error);
    for (int part = 0; part < LADE_N_PARTS && !status; part++) {
      int tensor = lade_value_part(run_fixture->graph, param, (enum lade_part)part);
      if (tensor >= 0)
        status = value_hash(run_fixture, tensor, state, error);
    }
  }
  *ret_digest = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return status;
}

int run_fixture_run(struct run_fixture *run_fixture, int n_steps, struct run_fixture_numbers *ret_numbers,
                    struct lade_error *error)
{
  LADE_ASSERT(n_steps <= RUN_FIXTURE_STEPS_MAX);
  memset(ret_numbers, 0, sizeof(*ret_numbers)); /* padding too, because the struct is compared by bytes */
  int status = run_fixture_eval(run_fixture, &ret_numbers->eval[0], error);
  for (int i = 0; i < n_steps && !status; i++) {
    struct lade_step_result result = {0};
    status = run_fixture_step(run_fixture, i, &result, error);
    ret_numbers->loss[i] = result.loss;
    ret_numbers->norm[i] = result.clip_result.norm;
    ret_numbers->factor[i] = result.clip_result.factor;
  }
  if (!status)
    status = run_fixture_eval(run_fixture, &ret_numbers->eval[1], error);
  return status ? status : run_fixture_digest(run_fixture, &ret_numbers->digest, error);
}

/* ---- directories for stores ---- */

static char directory[] = "run-fixture-XXXXXX";
static bool has_directory;

static void directory_remove(void)
{
  rmdir(directory);
}

const char *run_fixture_directory(void)
{
  if (!has_directory && mkdtemp(directory)) {
    has_directory = true;
    atexit(directory_remove);
  }
  return has_directory ? directory : NULL;
}

const char *run_fixture_store_refusal(enum lade_store_engine engine)
{
  static struct lade_error error;
  lade_store *store = NULL;
  struct lade_store_params params = {.struct_size = sizeof(params), .dir = ".", .engine = engine};
  int status = lade_store_open(&params, &error, &store);
  lade_store_close(store);
  return status ? error.text : NULL;
}

/* ---- sessions ---- */

lade_session *run_fixture_session_open(const struct lade_session_params *params)
{
  struct lade_error error = {0};
  lade_session *session = NULL;
  demand(lade_session_open(params, &error, &session), &error, "session");
  return session;
}
