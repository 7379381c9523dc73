/* SPDX-License-Identifier: Apache-2.0 */
/* Small models bound to memory. Prices are a roofline's of a made-up machine: the same plans everywhere. */
#include "tests/support/rig.h"

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

#define PARAMS_MOST 512

static void demand(int status, const struct lade_error *error, const char *what)
{
  if (!status)
    return;
  fprintf(stderr, "rig: %s: %s (%d)\n", what, error ? error->text : "", status);
  abort();
}

struct rig_model rig_tiny(enum lade_family family)
{
  return (struct rig_model){.family = family, .dtype = LADE_BF16, .dropout = 0.1f, .n_microbatches = 1, .layers = 2,
                            .width = 32, .vocabulary = 96, .batch = 8, .time = 16};
}

static const struct lade_machine rig_machine = {
    .name = "rig", .n_cores = 2, .is_unified = true, .device_bytes = UINT64_C(16) << 30,
    .host_bytes = UINT64_C(16) << 30,
    .matmul_flops_per_s = {[LADE_F32] = 1e11, [LADE_BF16] = 2e11, [LADE_F16] = 1e11}, .device_bytes_per_s = 1e10,
    .launch_ns = 1000, .to_host = {5000000000, 1000}, .to_device = {5000000000, 1000}, .is_duplex = true,
    .host_bytes_per_s = 1e10,
    .store = {.bytes = UINT64_C(64) << 30, .read_bytes_per_s = 2e9, .write_bytes_per_s = 1e9, .latency_ns = 50000}};

void rig_init(struct rig *rig, const struct rig_model *m)
{
  struct lade_error error = {0};
  struct lade_cpu cpu = lade_cpu_get();
  *rig = (struct rig){.model = *m, .chunk_bytes = 4096, .is_unified = true, .store_dir = "."};
  struct lade_model model = {.name = "rig", .family = m->family, .layers = m->layers, .heads = 4, .key_heads = 4,
                             .width = m->width, .hidden = 4 * m->width, .context = m->time,
                             .vocabulary = m->vocabulary, .is_tied = !m->is_untied, .norm_eps = 1e-5f};
  if (m->family == LADE_LLAMA) {
    model.key_heads = 2;
    model.is_tied = false;
    model.rope_base = 10000;
  }
  lade_kernels_init(&rig->kernels, &cpu);
  demand(lade_pool_create(2, &rig->pool), NULL, "threads");
  struct lade_graph_params how = {.struct_size = sizeof(how), .model = &model, .dtype = m->dtype, .batch = m->batch,
                                  .time = m->time, .dropout = m->dropout, .kernels = &rig->kernels, .n_threads = 2,
                                  .moments = m->moments, .master = m->master, .grad_dtype = m->grad_dtype,
                                  .share = m->share};
  demand(lade_graph_create(&how, &error, &rig->graph), &error, "graph");
  struct lade_cost cost;
  lade_cost_init(&cost, &rig_machine);
  demand(lade_cost_prices(&cost, rig->graph, &rig->prices), NULL, "prices");
  lade_cost_finish(&cost);
}

void rig_finish(struct rig *rig)
{
  rig_close(rig);
  lade_prices_finish(&rig->prices);
  lade_graph_destroy(rig->graph);
  lade_pool_destroy(rig->pool);
}

/* ---- plans ---- */

lade_planner *rig_planner(const struct rig *rig, uint64_t host_bytes, uint64_t store_bytes, enum lade_recipe recipe)
{
  struct lade_error error = {0};
  lade_planner *planner = NULL;
  static struct lade_change pins[PARAMS_MOST];
  const int n_pins = rig->is_durable ? rig->graph->n_params : 0;
  demand(n_pins <= PARAMS_MOST ? 0 : -1, NULL, "room for pins");
  for (int i = 0; i < n_pins; i++)
    pins[i] = (struct lade_change){LADE_CHANGE_WEIGHT, LADE_HOME_STORE, i};
  struct lade_plan_params how = {.struct_size = sizeof(how), .graph = rig->graph, .layout = rig->layout,
                                 .prices = &rig->prices, .n_microbatches = rig->model.n_microbatches,
                                 .is_unified = rig->is_unified, .is_early = rig->is_early,
                                 .chunk_bytes = rig->chunk_bytes, .host_bytes = host_bytes,
                                 .store_bytes = store_bytes, .recipe = recipe, .pins = pins, .n_pins = n_pins};
  demand(lade_planner_create(&how, &error, &planner), &error, "planner");
  return planner;
}

struct lade_plan *rig_plan(const struct rig *rig, struct lade_residency *residency)
{
  static const uint64_t no_limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
  struct lade_error error = {0};
  struct lade_packer *packer = NULL;
  struct lade_plan *plan = calloc(1, sizeof(*plan));
  demand(plan && !lade_packer_create(&packer) ? 0 : -1, NULL, "packer");
  struct lade_build_params how = {.graph = rig->graph, .layout = rig->layout, .residency = residency,
                                  .prices = &rig->prices,
                                  .n_microbatches = rig->model.n_microbatches, .is_training = true,
                                  .is_unified = rig->is_unified, .chunk_bytes = rig->chunk_bytes, .packer = packer};
  plan->residency = residency;
  demand(lade_program_build(&how, &plan->train), NULL, "training program");
  how.is_training = false;
  how.residents = plan->train;
  demand(lade_program_build(&how, &plan->eval), NULL, "evaluation program");
  demand(lade_program_prove(plan->train, no_limit, &error), &error, "proof of training");
  demand(lade_program_prove(plan->eval, no_limit, &error), &error, "proof of evaluation");
  for (int space = 0; space < LADE_N_SPACES; space++)
    plan->peak_bytes[space] = LADE_MAX(plan->train->peak_bytes[space], plan->eval->peak_bytes[space]);
  lade_packer_destroy(packer);
  return plan;
}

/* ---- running one ---- */

/* That is kept in a slot. */
static uint64_t durable_bytes(const struct rig *rig)
{
  return rig->is_durable ? lade_state_store_bytes(rig->graph, rig->layout) : 0;
}

static int durable_open(struct rig *rig, struct lade_error *error)
{
  const struct lade_durable_params how = {.struct_size = sizeof(how), .dir = rig->store_dir, .engine = rig->engine,
                                          .allow_tmpfs = rig->allow_tmpfs, .faults = rig->faults};
  int status = lade_durable_open(&how, error, &rig->durable);
  return status ? status : lade_durable_prepare(rig->durable, durable_bytes(rig), 1, error);
}

/* First values, and for a durable rig the generation of them; or what was left. */
static int values_begin(struct rig *rig, struct lade_error *error)
{
  size_t memo_bytes;
  if (rig->durable && lade_durable_memo(rig->durable, &memo_bytes))
    return 0;
  struct lade_values values = lade_executor_values(rig->executor, rig->graph);
  int status = lade_checkpoint_random(&values, 11, error);
  return status || !rig->durable ? status : lade_executor_publish(rig->executor, "", 1, error);
}

int rig_open(struct rig *rig, const struct lade_plan *plan, struct lade_error *error)
{
  struct lade_host_device_params device = {
      .struct_size = sizeof(device), .capacity_bytes = lade_align_up(plan->peak_bytes[LADE_DEVICE], 2 << 20),
      .pool = rig->pool, .faults = rig->faults};
  int status = lade_device_open_host(&device, error, &rig->device);
  if (!status && rig->is_durable)
    status = durable_open(rig, error);
  if (!status && plan->peak_bytes[LADE_STORE] > durable_bytes(rig)) {
    struct lade_store_params store = {.struct_size = sizeof(store), .dir = rig->store_dir, .engine = rig->engine,
                                      .capacity_bytes = plan->peak_bytes[LADE_STORE], .allow_tmpfs = rig->allow_tmpfs,
                                      .faults = rig->faults};
    status = lade_store_open(&store, error, &rig->store);
  }
  struct lade_executor_params how = {.struct_size = sizeof(how), .plan = plan, .device = rig->device,
                                     .kernels = &rig->kernels, .pool = rig->pool, .store = rig->store,
                                     .durable = rig->durable, .faults = rig->faults, .comms = rig->comms};
  if (!status)
    status = lade_executor_create(&how, error, &rig->executor);
  if (!status)
    status = lade_executor_meet(rig->executor, error);
  return status ? status : values_begin(rig, error);
}

void rig_close(struct rig *rig)
{
  lade_executor_destroy(rig->executor);
  lade_store_close(rig->store);
  lade_durable_close(rig->durable);
  lade_device_close(rig->device);
  rig->durable = NULL;
  rig->executor = NULL;
  rig->store = NULL;
  rig->device = NULL;
}

void rig_forget(const struct rig *rig)
{
  static const char *const names[] = {LADE_DURABLE_DATA, LADE_DURABLE_JOURNAL, LADE_DURABLE_JOURNAL ".new"};
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", rig->store_dir, names[i]);
    unlink(path);
  }
}

void rig_tokens_fill(struct rig *rig, uint32_t batch)
{
  int64_t n = rig->model.batch * rig->model.time;
  const int first = rig->model.n_microbatches * lade_layout_position(rig->layout, LADE_AXIS_DP);
  for (int m = 0; m < rig->model.n_microbatches; m++) {
    int32_t *tokens = lade_executor_tokens(rig->executor, m), *targets = lade_executor_targets(rig->executor, m);
    for (int64_t i = 0; i < n; i++) {
      struct lade_philox word = lade_philox_draw(5, batch, (uint32_t)(first + m), (uint64_t)i);
      if (tokens)
        tokens[i] = (int32_t)(word.word[0] % (uint32_t)rig->model.vocabulary);
      if (targets)
        targets[i] = (int32_t)(word.word[1] % (uint32_t)rig->model.vocabulary);
    }
  }
}

struct lade_step rig_step_block(const struct rig *rig, int i)
{
  struct lade_step step = {.seed = 3, .step = (uint32_t)i, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .weight_decay = 0.1f, .clip = rig->is_early || rig->is_unclipped ? 0 : 1,
                           .loss_scale = rig->model.dtype == LADE_F16 ? 256 : 1};
  double power1 = 1, power2 = 1;
  for (int k = 0; k <= i; k++) {
    power1 *= 0.9;
    power2 *= 0.95;
  }
  step.correction1 = (float)(1 / (1 - power1));
  step.correction2 = (float)(1 / (1 - power2));
  return step;
}

int rig_step(struct rig *rig, int i, struct lade_step_result *ret_result, struct lade_error *error)
{
  struct lade_step step = rig_step_block(rig, i);
  rig_tokens_fill(rig, (uint32_t)i);
  int status = lade_executor_step(rig->executor, &step, ret_result, error);
  return status || !rig->durable ? status : lade_executor_publish(rig->executor, &i, sizeof(i), error);
}

int rig_eval(struct rig *rig, double *ret_loss, struct lade_error *error)
{
  struct lade_step_result result;
  rig_tokens_fill(rig, 1000000);
  int status = lade_executor_eval(rig->executor, &result, error);
  if (!status)
    *ret_loss = result.loss;
  return status;
}

/* Of a working copy that is whole on the device keep this rank's shard, which it has wherever that is at home. */
static void shard_keep(const struct rig *rig, int tensor, uint64_t at, char *window, uint64_t bytes)
{
  if (tensor >= rig->graph->n_tensors)
    return;
  const struct lade_tensor *weight = &rig->graph->tensors[tensor];
  const struct lade_shard shard = lade_param_shard(rig->graph, rig->layout, weight->param);
  const uint64_t element = lade_dtype_bytes(weight->dtype), first = (uint64_t)shard.first * element;
  const uint64_t end = first + (uint64_t)shard.n * element;
  for (uint64_t i = 0; i < bytes; i++)
    window[i] = at + i >= first && at + i < end ? window[i] : 0;
}

static int value_hash(struct rig *rig, int tensor, XXH3_state_t *state, struct lade_error *error)
{
  static _Alignas(64) char window[LADE_EXECUTOR_WINDOW_BYTES];
  uint64_t bytes = lade_value_bytes(rig->graph, tensor);
  for (uint64_t at = 0; at < bytes; at += sizeof(window)) {
    uint64_t part = LADE_MIN(bytes - at, sizeof(window));
    memset(window, 0, part); /* of shards a rank holds a part */
    int status = lade_executor_get(rig->executor, tensor, at, window, part, error);
    if (status)
      return status;
    shard_keep(rig, tensor, at, window, part);
    XXH3_64bits_update(state, window, part);
  }
  return 0;
}

int rig_digest(struct rig *rig, uint64_t *ret_digest, struct lade_error *error)
{
  XXH3_state_t *state = XXH3_createState();
  if (!state)
    abort();
  int status = 0;
  XXH3_64bits_reset(state);
  for (int param = 0; param < rig->graph->n_params && !status; param++) {
    status = value_hash(rig, rig->graph->params[param].tensor, state, error);
    for (int part = 0; part < LADE_N_PARTS && !status; part++) {
      int tensor = lade_value_part(rig->graph, param, (enum lade_part)part);
      if (tensor >= 0)
        status = value_hash(rig, tensor, state, error);
    }
  }
  *ret_digest = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return status;
}

int rig_run(struct rig *rig, int n_steps, struct rig_numbers *ret_numbers, struct lade_error *error)
{
  LADE_ASSERT(n_steps <= RIG_MAX_STEPS);
  memset(ret_numbers, 0, sizeof(*ret_numbers)); /* padding too: it is compared by bytes */
  int status = rig_eval(rig, &ret_numbers->eval[0], error);
  for (int i = 0; i < n_steps && !status; i++) {
    struct lade_step_result result = {0};
    status = rig_step(rig, i, &result, error);
    ret_numbers->loss[i] = result.loss;
    ret_numbers->norm[i] = result.verdict.norm;
    ret_numbers->factor[i] = result.verdict.factor;
  }
  if (!status)
    status = rig_eval(rig, &ret_numbers->eval[1], error);
  return status ? status : rig_digest(rig, &ret_numbers->digest, error);
}

/* ---- where stores can be ---- */

static char directory[] = "rig-XXXXXX";
static bool has_directory;

static void directory_remove(void)
{
  rmdir(directory);
}

const char *rig_directory(void)
{
  if (!has_directory && mkdtemp(directory)) {
    has_directory = true;
    atexit(directory_remove);
  }
  return has_directory ? directory : NULL;
}

const char *rig_store_refusal(enum lade_store_engine engine)
{
  static struct lade_error error;
  lade_store *store = NULL;
  struct lade_store_params how = {.struct_size = sizeof(how), .dir = ".", .engine = engine};
  int status = lade_store_open(&how, &error, &store);
  lade_store_close(store);
  return status ? error.text : NULL;
}
