/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a session: everything between a person's words and a bound plan, acquired in order and given back in
 * reverse. Where memory is shared by device and host tier (a device that is host memory), what the budget
 * leaves of the machine is what the host tier may have, four fifths of it unless stated.
 *
 * Ops are measured before planning, unless a machine is described or the model is so large that measuring it
 * here would take longer than a person waits; then rooflines over measured rates serve.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/session_internal.h"

#define CHUNK_BYTES (UINT64_C(2) << 20)
#define HOST_SHARE 0.8            /* of what is left, for the host tier */
/* Of a GPU left free without a budget, for what its driver takes when kernels and streams are first used. */
#define GPU_RESERVE_BYTES (UINT64_C(512) << 20)
#define GPU_RESERVE_SHARE 32      /* of a small one this part */
#define STORE_SHARE 0.95          /* of what the file system has free */
#define PROBE_FLOPS_MOST 2e13     /* a step past this is not measured op by op for a plan alone */
#define DEFAULT_TIME 1024

void lade_session_defaults(struct lade_session_params *p)
{
  *p = (struct lade_session_params){
      .struct_size = sizeof(*p), .model = "nano", .valid_fraction = 0.1, .order = LADE_ORDER_RANDOM, .steps = 2000,
      .batch = 12, .lr = 1e-3, .min_lr = 1e-4, .warmup = 100, .seed = 1, .dtype = LADE_BF16, .beta1 = 0.9,
      .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0, .eval_iters = 20};
}

void session_notice(const lade_session *session, const char *format, ...)
{
  char line[512];
  va_list args;
  if (!session->params.notice)
    return;
  va_start(args, format);
  vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  session->params.notice(session->params.user, line);
}

static int values_get(void *user, int tensor, uint64_t offset, void *dst, uint64_t bytes, struct lade_error *error)
{
  return lade_executor_get(user, tensor, offset, dst, bytes, error);
}

static int values_set(void *user, int tensor, uint64_t offset, const void *src, uint64_t bytes,
                      struct lade_error *error)
{
  return lade_executor_set(user, tensor, offset, src, bytes, error);
}

struct lade_values lade_session_values(lade_session *session)
{
  return (struct lade_values){.graph = session->graph, .whole = session->whole,
                              .peers = session->peers.world ? &session->peers : NULL, .get = values_get,
                              .set = values_set, .user = session->executor};
}

/* ---- words into numbers ---- */

/* The vocabulary that the caller states, for a model without one of its own. */
static int vocabulary_take(lade_session *s, struct lade_error *error)
{
  int64_t stated = s->params.vocabulary;
  if (!stated || stated == s->model.vocabulary)
    return 0;
  if (!s->model.takes_vocabulary)
    return lade_error_set(error, -EINVAL, "%s has a vocabulary of %lld, not of %lld", s->model.name,
                          (long long)s->model.vocabulary, (long long)stated);
  s->model.vocabulary = stated;
  return lade_model_check(&s->model, error);
}

static int model_read(lade_session *s, struct lade_error *error)
{
  const char *name = s->params.model;
  size_t n = strlen(name);
  bool is_file = strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
  int status = is_file ? lade_model_load(name, &s->model, error) : lade_model_preset(name, &s->model, error);
  if (!status && s->params.layers) {
    s->model.layers = s->params.layers;
    status = lade_model_check(&s->model, error);
  }
  if (!status)
    status = vocabulary_take(s, error);
  if (!status && !s->params.time)
    s->params.time = LADE_MIN(s->model.context, DEFAULT_TIME);
  if (!status && s->params.time > s->model.context)
    status = lade_error_set(error, -EINVAL, "--seq %lld is longer than the context of %s, %lld",
                            (long long)s->params.time, s->model.name, (long long)s->model.context);
  return status;
}

/* Who else there is, and what they share. */
static int ranks_open(lade_session *s, struct lade_error *error)
{
  const bool is_run = !s->params.is_dry && !s->params.is_plan_only;
  s->params.layout.struct_size = sizeof(s->params.layout);
  s->params.layout.key_heads = s->model.key_heads;
  int status = lade_peers_open(&s->params.layout, s->peers.world, error, &s->peers);
  const int world = s->peers.layout.mesh.world;
  if (!status && is_run && !s->params.world && world > 1)
    status = lade_error_set(error, -EINVAL, "the layout is of %d ranks, and this is one process; `lade launch -n %d -- "
                            "train ...` starts as many", world, world);
  s->params.n_node_ranks = LADE_MAX(s->params.n_node_ranks, 1);
  return status;
}

static int batch_check(lade_session *s, struct lade_error *error)
{
  struct lade_session_params *p = &s->params;
  if (p->batch < 1 || p->batch > INT16_MAX || p->time < 1 || p->steps < 0)
    return lade_error_set(error, -EINVAL, "--batch must be 1 to %d, --seq and --steps positive", INT16_MAX);
  return lade_layout_share_batch(lade_peers_layout(&s->peers), p->batch, p->micro_batch, error, &p->micro_batch,
                                 &s->n_microbatches);
}

/* What an update inside the backward half cannot know yet: the norm of all gradients, and whether any overflowed. */
static int update_check(const lade_session *s, struct lade_error *error)
{
  if (!s->params.updates_early)
    return 0;
  if (s->params.clip > 0)
    return lade_error_set(error, -EINVAL, "--update early needs --clip 0: the norm that --clip %g limits is known only "
                          "when all gradients are complete", s->params.clip);
  if (s->params.dtype == LADE_F16)
    return lade_error_set(error, -EINVAL, "--update early is not for fp16: a gradient that overflows must leave all "
                          "parameters as they were, and that is known only when all gradients are complete");
  return 0;
}

static int data_read(lade_session *s, struct lade_error *error)
{
  const struct lade_session_params *p = &s->params;
  const bool is_asked = s->model.takes_vocabulary && !p->vocabulary; /* the data says what it is */
  if (p->n_data == 0) {
    if (p->is_plan_only || p->is_dry || p->batch_fn)
      return 0;
    return lade_error_set(error, -EINVAL, "no data: name at least one file with --data");
  }
  struct lade_data_params how = {
      .struct_size = sizeof(how), .files = p->data, .n_files = p->n_data, .valid_files = p->valid,
      .n_valid_files = p->n_valid, .valid_fraction = p->valid_fraction,
      .vocabulary = is_asked ? 0 : s->model.vocabulary, .batch = p->batch, .time = p->time,
      .order = p->order, .seed = p->seed, .faults = p->faults};
  int status = lade_data_open(&how, error, &s->data);
  if (status)
    return status;
  struct lade_data_info info;
  lade_data_get_info(s->data, &info);
  if (is_asked)
    s->model.vocabulary = info.vocabulary;
  return lade_model_check(&s->model, error);
}

/* The part of the model that is this rank's. */
static struct lade_share share_make(const struct lade_layout *layout)
{
  return (struct lade_share){.tp = lade_layout_size(layout, LADE_AXIS_TP),
                             .tp_rank = lade_layout_position(layout, LADE_AXIS_TP),
                             .is_sequence = layout->is_sequence, .pp = lade_layout_size(layout, LADE_AXIS_PP),
                             .pp_rank = lade_layout_position(layout, LADE_AXIS_PP),
                             .n_chunks = layout->virtual_stages,
                             .n_shards = layout->zero == LADE_ZERO_MOST ? lade_shard_count(layout) : 1};
}

/* Scratch of ops is sized by threads, and ranks that share collectives must have one plan. */
static int threads_agree(lade_session *s, struct lade_error *error)
{
  if (!s->peers.world)
    return 0;
  uint64_t n = (uint64_t)(s->params.n_threads ? s->params.n_threads : lade_cpu_count());
  int status = session_agree_least(s, &n, error);
  s->params.n_threads = (int)n;
  return status;
}

static int share_graph(const lade_session *s, const struct lade_share *share, struct lade_error *error,
                       struct lade_graph **ret_graph)
{
  struct lade_graph_params how = {
      .struct_size = sizeof(how), .model = &s->model, .dtype = s->params.dtype, .batch = s->params.micro_batch,
      .time = s->params.time, .dropout = (float)s->params.dropout, .kernels = &s->kernels,
      .n_threads = lade_pool_n_threads(s->pool), .moments = s->params.moments, .master = s->params.master,
      .grad_dtype = s->params.grad_dtype, .share = *share};
  return lade_graph_create(&how, error, ret_graph);
}

static int graph_make(lade_session *s, struct lade_error *error)
{
  const struct lade_share share = share_make(&s->peers.layout);
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&s->host_kernels, &cpu);
  s->kernels = s->host_kernels;
  s->chunk_bytes = CHUNK_BYTES;
  int status = threads_agree(s, error);
  if (status)
    return status;
  status = lade_pool_create(s->params.n_threads, &s->pool);
  if (status)
    return lade_error_set(error, status, "the machine refused threads (%s)", strerror(-status));
  status = s->params.is_gpu ? session_gpu_open(s, error) : 0;
  if (!status)
    status = share_graph(s, &share, error, &s->graph);
  if (!status && session_is_cut(s))
    status = share_graph(s, &(struct lade_share){0}, error, &s->whole);
  return status;
}

/* Before the drive is measured its requests are the store's own. */
static struct lade_store_params store_params(const lade_session *s)
{
  const struct lade_machine_store *drive = &s->cost.machine.store;
  return (struct lade_store_params){.struct_size = sizeof(struct lade_store_params), .dir = s->params.store,
                                    .allow_tmpfs = s->params.allow_tmpfs, .faults = s->params.faults,
                                    .piece_bytes = (uint32_t)drive->piece_bytes, .depth = drive->n_pieces};
}

static double step_flops(const lade_session *s)
{
  return lade_model_flops_per_token(&s->model, s->params.time) * (double)(s->params.batch * s->params.time);
}

/* Measure this machine, with the ops of all ranks: of a pipeline whose stages are one those of every stage. */
static int cost_probe(lade_session *s, struct lade_error *error)
{
  struct lade_store_params store = store_params(s);
  const struct lade_probe_gpu gpu = {s->device, s->cuda_kernels};
  struct lade_share share = share_make(&s->peers.layout);
  struct lade_graph *whole = NULL;
  const bool is_small = step_flops(s) / s->n_microbatches < PROBE_FLOPS_MOST, is_piped = share.pp > 1;
  share.pp = share.n_chunks = 1;
  share.pp_rank = 0;
  int status = is_small && is_piped ? share_graph(s, &share, error, &whole) : 0;
  struct lade_probe_params how = {
      .struct_size = sizeof(how), .kernels = &s->host_kernels, .gpu = s->params.is_gpu ? &gpu : NULL, .pool = s->pool,
      .graph = is_piped ? whole : s->graph,
      .store = s->params.store ? &store : NULL, .skip_cache = s->params.skip_cache,
      .has_fresh_ops = !s->params.is_plan_only && !s->params.is_dry};
  how.graph = is_small ? how.graph : NULL;
  if (!status)
    status = lade_probe(&how, error, &s->cost);
  lade_graph_destroy(whole);
  return status;
}

/* What was measured or described stays the other session's; its graph has the same ops, in the same order. */
static void cost_borrow(lade_session *s)
{
  const lade_session *alike = s->params.alike;
  lade_cost_init(&s->cost, &alike->cost.machine);
  s->has_cost = true;
  s->is_unified = alike->is_unified;
  s->prices = alike->prices;
}

static int cost_take(lade_session *s, struct lade_error *error)
{
  int status = 0;
  if (!lade_peers_is_first(&s->peers) && s->peers.world) {
    lade_cost_init(&s->cost, &(struct lade_machine){.n_cores = 1}); /* the first rank's comes */
  } else if (s->params.machine) {
    struct lade_machine machine;
    status = lade_machine_get(s->params.machine, error, &machine);
    if (!status)
      lade_cost_init(&s->cost, &machine);
  } else {
    status = cost_probe(s, error);
  }
  if (status)
    return status;
  s->has_cost = true;
  if (s->params.is_gpu && !s->params.machine && !s->params.is_plan_only)
    s->matmul_flops_per_s = s->cost.machine.matmul_flops_per_s[s->params.dtype];
  status = session_agree_cost(s, error);
  if (!status && !s->params.machine)
    status = session_share_drive(s, error);
  if (status)
    return status;
  double copy_cores = 1; /* a copy that waits for its link leaves its core to others */
  if (s->params.throttle.bytes_per_s) {
    copy_cores = (double)s->params.throttle.bytes_per_s / (double)LADE_MAX(s->cost.machine.to_host.bytes_per_s, 1);
    s->cost.machine.to_host = s->cost.machine.to_device = s->params.throttle;
  }
  if (s->params.is_gpu)
    s->cost.machine.is_unified = false; /* whatever a description says */
  s->is_unified = s->cost.machine.is_unified || !(s->params.is_dry || s->params.is_plan_only || s->params.is_gpu);
  status = lade_cost_prices(&s->cost, s->graph, &s->prices);
  s->has_prices = !status;
  s->prices.copy_cores = LADE_MIN(copy_cores, 1);
  return status ? lade_error_set(error, status, "no memory for prices") : 0;
}

/* ---- budgets ---- */

static int store_room(lade_session *s, struct lade_error *error)
{
  uint64_t free_bytes;
  if (!s->params.store)
    return 0;
  if (s->params.machine && (s->params.is_dry || s->params.is_plan_only)) {
    const uint64_t budget_bytes = s->params.store_budget_bytes / (uint64_t)s->params.n_node_ranks;
    s->store_bytes = s->params.store_budget_bytes ? budget_bytes : s->cost.machine.store.bytes;
    return 0;
  }
  int status = lade_store_room(s->params.store, &free_bytes, NULL, error);
  if (status)
    return status;
  free_bytes = (uint64_t)((double)free_bytes * STORE_SHARE);
  s->store_bytes = s->params.store_budget_bytes ? s->params.store_budget_bytes : free_bytes;
  s->store_bytes /= (uint64_t)s->params.n_node_ranks;
  if (!s->params.store_budget_bytes)
    s->store_bytes += session_durable_held(s); /* each rank its own */
  return session_agree_least(s, &s->store_bytes, error);
}

static struct lade_plan_params plan_params(const lade_session *s)
{
  const uint64_t extra = session_durable_extra(s); /* the plan sees one slot of two */
  return (struct lade_plan_params){
      .struct_size = sizeof(struct lade_plan_params), .graph = s->graph, .prices = &s->prices,
      .layout = lade_peers_layout(&s->peers), .n_microbatches = s->n_microbatches, .is_unified = s->is_unified,
      .is_early = s->params.updates_early, .chunk_bytes = s->chunk_bytes,
      .host_bytes = s->host_bytes, .store_bytes = s->store_bytes > extra ? s->store_bytes - extra : 0,
      .recipe = s->params.recipe, .pins = s->pins,
      .n_pins = s->n_pins};
}

static int planner_make(lade_session *s, struct lade_error *error)
{
  struct lade_plan_params how = plan_params(s);
  lade_planner_destroy(s->planner);
  s->planner = NULL;
  int status = lade_planner_create(&how, error, &s->planner);
  if (!status)
    status = lade_planner_get_bounds(s->planner, &s->bounds);
  return status;
}

/* Windows as a drive likes them best may take more room than others: give that up. False: they take none. */
static bool streaming_shrink(lade_session *s)
{
  const struct lade_streaming before = s->prices.streaming;
  s->prices.streaming = lade_cost_streaming_small(&s->cost);
  return s->prices.streaming.window_bytes != before.window_bytes || s->prices.streaming.n_windows != before.n_windows;
}

static uint64_t share(uint64_t bytes, double of)
{
  return (uint64_t)((double)bytes * of);
}

/* What the budget will be, as far as it is known before the smallest one is. */
static uint64_t budget_resolve(const lade_session *s)
{
  const struct lade_budget *b = &s->params.budget;
  switch (b->kind) {
  case LADE_BUDGET_BYTES:
    return b->bytes;
  case LADE_BUDGET_PERCENT:
    return share(s->bounds.unconstrained_bytes, b->percent / 100);
  case LADE_BUDGET_PERCENT_DEVICE:
    return share(s->capacity_bytes, b->percent / 100);
  case LADE_BUDGET_MIN:
    return s->bounds.min_bytes;
  default:
    break;
  }
  if (s->params.is_gpu)
    return s->capacity_bytes - LADE_MIN(GPU_RESERVE_BYTES, s->capacity_bytes / GPU_RESERVE_SHARE);
  if (!s->is_unified)
    return s->capacity_bytes;
  if (s->params.has_host_budget)
    return s->left_bytes > s->host_bytes ? s->left_bytes - s->host_bytes : 0;
  /* Memory is one: the device gets what keeping everything needs if there is room for it, else half. */
  bool is_roomy = s->bounds.unconstrained_bytes <= share(s->left_bytes, HOST_SHARE);
  return is_roomy ? share(s->left_bytes, HOST_SHARE) : s->left_bytes / 2;
}

static int tiers_resolve(lade_session *s, struct lade_error *error)
{
  const struct lade_machine *machine = &s->cost.machine;
  bool is_described = s->params.machine && (s->params.is_dry || s->params.is_plan_only);
  const uint64_t n_sharing = (uint64_t)s->params.n_node_ranks; /* what is described is one rank's own already */
  s->left_bytes = is_described ? machine->host_bytes : (uint64_t)lade_cpu_memory_bytes() / n_sharing;
  int status = session_agree_least(s, &s->left_bytes, error);
  if (!status)
    status = store_room(s, error);
  if (!s->params.is_gpu)
    s->capacity_bytes = is_described ? machine->device_bytes : s->left_bytes;
  if (status)
    return status;
  s->host_bytes = s->params.has_host_budget ? s->params.host_budget_bytes / n_sharing
                                            : share(s->left_bytes, HOST_SHARE);
  if (s->params.budget.kind == LADE_BUDGET_MIN)
    streaming_shrink(s);
  status = planner_make(s, error);
  if (!status) {
    s->budget_bytes = budget_resolve(s);
    status = session_agree_stage_least(s, &s->budget_bytes, error);
  }
  if (status)
    return status;
  if (s->params.has_host_budget || !s->is_unified || s->params.budget.kind == LADE_BUDGET_MIN)
    return 0;
  uint64_t left = s->left_bytes > s->budget_bytes ? s->left_bytes - s->budget_bytes : 0;
  s->host_bytes = share(left, HOST_SHARE);
  return planner_make(s, error);
}

/* ---- the plan, and what it stands on ---- */

/*
 * The faster of two plans: with windows of streamed updates as the drive likes them best, and with the usual ones where
 * those take less room. So the smallest budget is that of both, and a larger one is never slower, as with one planner.
 */
static int plan_search(lade_session *s, struct lade_error *error)
{
  const struct lade_streaming liked = s->prices.streaming;
  const uint64_t liked_min_bytes = s->bounds.min_bytes;
  struct lade_plan *usual = NULL;
  int status = lade_planner_plan(s->planner, s->budget_bytes, error, &s->plan);
  if ((status && status != -EOVERFLOW) || !streaming_shrink(s))
    return status;
  status = planner_make(s, error);
  if (!status)
    status = lade_planner_plan(s->planner, s->budget_bytes, s->plan ? NULL : error, &usual);
  s->bounds.min_bytes = LADE_MIN(s->bounds.min_bytes, liked_min_bytes);
  if (usual && (!s->plan || usual->predicted_ns < s->plan->predicted_ns)) {
    lade_plan_destroy(s->plan);
    s->plan = usual;
    return 0;
  }
  lade_plan_destroy(usual);
  s->prices.streaming = liked; /* the plan's own, for ranks that follow it */
  return status == -EOVERFLOW && s->plan ? 0 : status;
}

/* The budget in a person's words, where those are not bytes. */
static void refusal_word(const struct lade_budget *budget, struct lade_error *error)
{
  if (!error || (budget->kind != LADE_BUDGET_PERCENT && budget->kind != LADE_BUDGET_PERCENT_DEVICE))
    return;
  const struct lade_error line = *error;
  lade_error_set(error, line.code, "--budget %g%%%s: %s", budget->percent,
                 budget->kind == LADE_BUDGET_PERCENT ? "" : "dev", line.text);
}

static int plan_make(lade_session *s, struct lade_error *error)
{
  int status = tiers_resolve(s, error);
  if (!status)
    status = session_durable_check_room(s, error); /* once bounds are known: a plan that is refused has them, too */
  if (status)
    return status;
  const bool has_any = s->bounds.min_bytes != UINT64_MAX; /* else the planner says what is short */
  if (has_any && s->budget_bytes > s->capacity_bytes && !s->params.is_dry && !s->params.is_plan_only) {
    char asked[32], has[32];
    status = lade_error_set(error, -EOVERFLOW, "the budget of %s (%llu bytes) is more than this %s has left, %s "
                            "(%llu bytes)", lade_size_format(s->budget_bytes, asked, sizeof(asked)),
                            (unsigned long long)s->budget_bytes, s->params.is_gpu ? "GPU" : "machine",
                            lade_size_format(s->capacity_bytes, has, sizeof(has)),
                            (unsigned long long)s->capacity_bytes);
  } else {
    status = plan_search(s, error);
  }
  if (status == -EOVERFLOW)
    refusal_word(&s->params.budget, error);
  return status;
}

/* The plan of @params.alike, for this rank. */
static int plan_follow(lade_session *s, struct lade_error *error)
{
  const lade_session *alike = s->params.alike;
  LADE_ASSERT(alike->plan);
  s->capacity_bytes = alike->capacity_bytes;
  s->left_bytes = alike->left_bytes;
  s->budget_bytes = alike->budget_bytes;
  s->host_bytes = alike->host_bytes;
  s->store_bytes = alike->store_bytes;
  s->bounds = alike->bounds;
  const struct lade_plan_params how = plan_params(s);
  return lade_plan_follow(&how, alike->plan, s->budget_bytes, error, &s->plan);
}

static int device_open(lade_session *s, struct lade_error *error)
{
  const struct lade_machine *machine = &s->cost.machine;
  if (s->params.is_gpu) {
    lade_device_limit(s->device, s->budget_bytes); /* it holds nothing yet */
    lade_device_peak_reset(s->device);             /* of what was measured in */
    return 0;
  }
  if (s->params.is_dry) {
    struct lade_dry_device_params how = {
        .struct_size = sizeof(how), .capacity_bytes = LADE_MAX(s->capacity_bytes, s->plan->peak_bytes[LADE_DEVICE]),
        .chunk_bytes = CHUNK_BYTES, .to_host = machine->to_host, .to_device = machine->to_device,
        .faults = s->params.faults};
    return lade_device_open_dry(&how, error, &s->device);
  }
  struct lade_host_device_params how = {
      .struct_size = sizeof(how), .capacity_bytes = s->budget_bytes / CHUNK_BYTES * CHUNK_BYTES, .pool = s->pool,
      .to_host = s->params.throttle, .to_device = s->params.throttle, .faults = s->params.faults};
  return lade_device_open_host(&how, error, &s->device);
}

static int store_open(lade_session *s, struct lade_error *error)
{
  const uint64_t durable_bytes = session_durable_slot(s);
  if (s->params.is_dry)
    return 0;
  int status = session_durable_prepare(s, error);
  if (!status)
    status = session_agree_room(s, error);
  if (status)
    return status;
  if (s->plan->peak_bytes[LADE_STORE] > durable_bytes) {
    struct lade_store_params how = store_params(s);
    how.capacity_bytes = s->store_bytes;
    status = lade_store_open(&how, error, &s->store);
  }
  const lade_store *any = s->store ? s->store : s->durable ? lade_durable_store(s->durable) : NULL;
  if (!status && any && *lade_store_note(any))
    session_notice(s, "%s", lade_store_note(any));
  return status;
}

static int executor_make(lade_session *s, struct lade_error *error)
{
  int status = device_open(s, error);
  if (!status)
    status = store_open(s, error);
  if (status)
    return status;
  struct lade_executor_params how = {
      .struct_size = sizeof(how), .plan = s->plan, .device = s->device, .kernels = &s->host_kernels,
      .cuda_kernels = s->cuda_kernels, .pool = s->pool, .store = s->store, .durable = s->durable,
      .comms = s->peers.world ? s->peers.axes : NULL,
      .faults = s->params.faults};
  status = lade_executor_create(&how, error, &s->executor);
  s->outside_bytes = session_gpu_outside(s);
  if (!status && *lade_executor_note(s->executor))
    session_notice(s, "%s", lade_executor_note(s->executor));
  return status;
}

/* The first values of all, or those of a checkpoint. */
static int values_begin(lade_session *s, struct lade_error *error)
{
  struct lade_values values = lade_session_values(s);
  s->state = (struct lade_checkpoint_state){
      .seed = s->params.seed, .loss_scale = session_first_scale(s), .numerics_key = lade_kernels_key(&s->kernels),
      .run = session_run(s)};
  snprintf(s->state.model, sizeof(s->state.model), "%s", s->model.name);
  if (s->params.is_dry)
    return 0;
  if (s->params.resume)
    return session_resume(s, &values, error);
  if (s->params.init)
    return lade_checkpoint_init(&values, s->params.init, s->params.faults, error);
  return lade_checkpoint_random(&values, s->params.seed, error);
}

static int values_fill(lade_session *s, struct lade_error *error)
{
  if (s->is_recovered) {
    session_go_on(s, s->params.store);
    return 0;
  }
  int status = values_begin(s, error);
  return status ? status : session_durable_publish(s, error);
}

/* The rate that speed of light is measured against: of this run, on these cores; a GPU's is one of its prices. */
static int rate_measure(lade_session *s, struct lade_error *error)
{
  if (s->params.is_gpu || s->params.is_dry || s->params.is_plan_only ||
      (s->peers.world && !lade_peers_is_first(&s->peers)))
    return 0;
  int status = lade_probe_matmul_rate(&s->kernels, s->pool, s->params.dtype, &s->matmul_flops_per_s);
  return status ? lade_error_set(error, status, "no memory to measure the matmul rate") : 0;
}

static int session_acquire(lade_session *s, struct lade_error *error)
{
  int status = model_read(s, error);
  if (!status)
    status = ranks_open(s, error);
  if (!status)
    status = batch_check(s, error);
  if (!status)
    status = update_check(s, error);
  if (!status)
    status = session_durable_begin(s, error);
  if (!status)
    status = session_resume_begin(s, error);
  if (!status)
    status = data_read(s, error);
  if (!status)
    status = graph_make(s, error);
  if (!status && s->params.residency_file)
    status = lade_pins_load(s->params.residency_file, s->graph, error, &s->pins, &s->n_pins);
  if (!status)
    status = session_durable_pin(s, error);
  if (!status)
    status = session_agree_run(s, error);
  if (!status)
    status = rate_measure(s, error);
  if (!status && s->params.alike)
    cost_borrow(s);
  else if (!status)
    status = cost_take(s, error);
  if (!status)
    status = s->params.alike ? plan_follow(s, error) : plan_make(s, error);
  if (status || s->params.is_plan_only)
    return status == -EOVERFLOW && s->params.is_plan_only ? 0 : status;
  status = session_agree_programs(s, error);
  if (!status)
    status = executor_make(s, error);
  if (!status)
    status = session_saver_open(s, error);
  return status ? status : values_fill(s, error);
}

int lade_session_open(const struct lade_session_params *params, struct lade_error *error, lade_session **ret_session)
{
  lade_session *session = calloc(1, sizeof(*session));
  if (!session)
    return lade_error_set(error, -ENOMEM, "no memory for a session");
  session->params = *params;
  session->peers.world = params->is_dry || params->is_plan_only ? NULL : params->world; /* to tell of failures */
  if (session->peers.world)
    lade_comm_set_busy(session->peers.world, true); /* reading, measuring and loading take what they take */
  int status = session_place(session, "before", session_acquire(session, error), error);
  if (session->peers.world)
    lade_comm_set_busy(session->peers.world, false);
  if (session_fail(session, status, error)) {
    lade_session_close(session);
    return status;
  }
  *ret_session = session;
  return 0;
}

void lade_session_close(lade_session *s)
{
  if (!s)
    return;
  session_saver_close(s->saver);
  lade_executor_destroy(s->executor);
  lade_store_close(s->store);
  lade_durable_close(s->durable);
  lade_cuda_kernels_close(s->cuda_kernels);
  lade_device_close(s->device);
  lade_plan_destroy(s->plan);
  lade_planner_destroy(s->planner);
  free(s->pins);
  if (s->has_prices)
    lade_prices_finish(&s->prices);
  if (s->has_cost)
    lade_cost_finish(&s->cost);
  lade_graph_destroy(s->whole);
  lade_graph_destroy(s->graph);
  lade_pool_destroy(s->pool);
  lade_data_close(s->data);
  lade_peers_close(&s->peers);
  free(s->spare_rows);
  free(s);
}
