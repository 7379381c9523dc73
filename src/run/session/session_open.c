/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a session: from the user's options to a bound plan. Parts are acquired in order and released in reverse
 * order. session_plan.c decides the plan and its memory.
 *
 * Of several ranks a single one may fail at work that it does alone: a file that its node lacks, a device that it
 * cannot open, memory. So all ranks vote after each such part. They end together, at the same place, with the line and
 * the number of the rank that failed. Only a failure inside a collective over an axis ends the others by an abort
 * (session_fail).
 *
 * Ops are measured before planning. They are not if the machine is described, or if the model is so large that
 * measuring it would take too long for a user; then rooflines over measured rates replace them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run/session/session_internal.h"

#define CHUNK_BYTES (UINT64_C(2) << 20)
#define PROBE_FLOPS_MAX 2e13 /* of a microbatch on the host, whose ops are measured */
#define DEFAULT_SEQ_LEN 1024
#define BATCH_MAX 1000000

void lade_session_defaults(struct lade_session_params *p)
{
  *p = (struct lade_session_params){
      .struct_size = sizeof(*p), .model = "nano", .valid_fraction = 0.1, .order = LADE_ORDER_RANDOM, .steps = 2000,
      .batch = 12, .lr = 1e-3, .min_lr = 1e-4, .warmup = 100, .seed = 1, .dtype = LADE_BF16, .beta1 = 0.9,
      .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0, .eval_iters = 20, .separator = -1};
}

/* ---- options into numbers ---- */

/* Take the vocabulary that the caller states, for a model without one of its own. */
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

/* Read the model: a path where the name has a slash or ends with .json, else a preset, else a path that is there. */
static int model_read(lade_session *s, struct lade_error *error)
{
  const char *name = s->params.model;
  size_t n = strlen(name);
  bool is_file = strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
  int status = is_file ? -ENOENT : lade_model_preset(name, &s->model, error);
  if (is_file || (status == -ENOENT && access(name, F_OK) == 0))
    status = lade_model_load(name, &s->model, error);
  if (!status && s->params.layers) {
    s->model.layers = s->params.layers;
    status = lade_model_check(&s->model, error);
  }
  if (!status)
    status = vocabulary_take(s, error);
  if (!status && !s->params.seq_len)
    s->params.seq_len = LADE_MIN(s->model.context, DEFAULT_SEQ_LEN);
  if (!status && s->params.seq_len > s->model.context)
    status = lade_error_set(error, -EINVAL, "--seq %lld is longer than the context of %s, %lld",
                            (long long)s->params.seq_len, s->model.name, (long long)s->model.context);
  return status;
}

/* Set the threads of ranks that are planned for and do not run here, as `lade launch` would divide the cores. */
static void threads_share(lade_session *s)
{
  const int world = s->group.layout.mesh.world, n_sharing = s->params.n_node_ranks ? s->params.n_node_ranks : world;
  if (!s->params.n_threads && !s->group.world && world > 1)
    s->params.n_threads = LADE_MAX(lade_cpu_count() / n_sharing, 1);
}

/* Open the rank group by its layout, and count the ranks that share this machine. */
static int ranks_open(lade_session *s, struct lade_error *error)
{
  const bool is_run = !s->params.is_dry && !s->params.is_plan_only;
  s->params.layout.struct_size = sizeof(s->params.layout);
  s->params.layout.n_kv_heads = s->model.n_kv_heads;
  int status = lade_rank_group_open(&s->params.layout, error, &s->group);
  const int world = s->group.layout.mesh.world;
  if (!status && is_run && !s->params.world && world > 1)
    status = lade_error_set(error, -EINVAL, "the layout is of %d ranks, and this is one process; `lade launch -n %d -- "
                            "train ...` starts as many", world, world);
  if (status)
    return status;
  threads_share(s);
  return session_count_node_ranks(s, error);
}

static int batch_check(lade_session *s, struct lade_error *error)
{
  struct lade_session_params *p = &s->params;
  if (p->batch < 1 || p->batch > BATCH_MAX || p->seq_len < 1 || p->steps < 0)
    return lade_error_set(error, -EINVAL, "--batch must be 1 to %d, --seq and --steps positive", BATCH_MAX);
  int status = lade_layout_share_batch(lade_rank_group_layout(&s->group), p->batch, p->micro_batch, error,
                                       &p->micro_batch, &s->n_microbatches);
  if (!status && s->n_microbatches > LADE_MICROBATCHES_MAX)
    status = lade_error_set(error, -EINVAL, "--batch %lld makes %d microbatches of a rank, and a program takes %d: use "
                            "a larger --micro-batch or --dp", (long long)p->batch, s->n_microbatches,
                            LADE_MICROBATCHES_MAX);
  if (!status && p->micro_batch > INT16_MAX)
    status = lade_error_set(error, -EINVAL, "--micro-batch %lld is above %d: give a --micro-batch that divides --batch "
                            "%lld", (long long)p->micro_batch, INT16_MAX, (long long)p->batch);
  return status;
}

/*
 * Refuse options that an update inside the backward half cannot honour. It knows neither the norm of all gradients nor
 * whether any overflows.
 */
static int update_check(const lade_session *s, struct lade_error *error)
{
  if (!s->params.optimizer_in_backward)
    return 0;
  if (s->params.clip > 0)
    return lade_error_set(error, -EINVAL, "--optimizer-in-backward needs --clip 0: the norm that --clip %g limits is "
                          "known only when all gradients are complete", s->params.clip);
  if (s->params.dtype == LADE_F16)
    return lade_error_set(error, -EINVAL, "--optimizer-in-backward is not for fp16: a gradient that overflows must "
                          "leave all parameters as they were, and that is known only when all gradients are "
                          "complete; use --dtype bf16");
  return 0;
}

static int data_read(lade_session *s, struct lade_error *error)
{
  const struct lade_session_params *p = &s->params;
  const bool is_asked = s->model.takes_vocabulary && !p->vocabulary; /* the data determines the vocabulary */
  if (p->n_data == 0) {
    if (p->is_plan_only || p->is_dry || p->batch_fn)
      return 0;
    return lade_error_set(error, -EINVAL, "no data: name at least one file with --data");
  }
  struct lade_data_params params = {
      .struct_size = sizeof(params), .files = p->data, .n_files = p->n_data, .valid_files = p->valid,
      .n_valid_files = p->n_valid, .valid_fraction = p->valid_fraction,
      .vocabulary = is_asked ? 0 : s->model.vocabulary, .batch = p->batch, .seq_len = p->seq_len,
      .order = p->order, .seed = p->seed, .faults = p->faults};
  int status = lade_data_open(&params, error, &s->data);
  if (status)
    return status;
  struct lade_data_info info;
  lade_data_get_info(s->data, &info);
  if (is_asked)
    s->model.vocabulary = info.vocabulary;
  return lade_model_check(&s->model, error);
}

/* Return this rank's share of the model. */
static struct lade_share share_make(const lade_session *s)
{
  const struct lade_layout *layout = &s->group.layout;
  return (struct lade_share){.tp = lade_layout_size(layout, LADE_AXIS_TP),
                             .tp_rank = lade_layout_position(layout, LADE_AXIS_TP),
                             .is_sequence = layout->is_sequence, .pp = lade_layout_size(layout, LADE_AXIS_PP),
                             .pp_rank = lade_layout_position(layout, LADE_AXIS_PP),
                             .n_chunks = layout->virtual_stages, .is_scattered = s->is_scattered,
                             .n_shards = layout->zero == LADE_ZERO_MAX ? lade_shard_count(layout) : 1};
}

/*
 * Agree on the number of threads, because it sizes the scratch of ops, and ranks that share collectives need one plan.
 */
static int threads_agree(lade_session *s, struct lade_error *error)
{
  if (!s->group.world)
    return 0;
  uint64_t n = (uint64_t)(s->params.n_threads ? s->params.n_threads : lade_cpu_count());
  int status = session_agree_min(s, &n, error);
  s->params.n_threads = (int)n;
  return status;
}

static int share_graph(const lade_session *s, const struct lade_share *share, struct lade_error *error,
                       struct lade_model_graph **ret_graph)
{
  struct lade_model_graph_params params = {
      .struct_size = sizeof(params), .model = &s->model, .dtype = s->params.dtype, .batch = s->params.micro_batch,
      .seq_len = s->params.seq_len, .dropout = (float)s->params.dropout, .kernels = &s->kernels,
      .n_threads = lade_pool_n_threads(s->pool), .moments = s->params.moments, .master = s->params.master,
      .grad_dtype = s->params.grad_dtype, .has_documents = s->params.mask_documents,
      .fuses_gelu = s->fuses_gelu, .fuses_gelu_fwd = s->params.gelu_fusion, .share = *share};
  return lade_model_graph_create(&params, error, ret_graph);
}

/*
 * Check that all ranks chose the same kind of device. GPUs have communicators of their own, in which the others would
 * wait for a rank that computes elsewhere.
 */
static int devices_agree(lade_session *s, struct lade_error *error)
{
  const char *const names[] = {"the host", "a GPU", "either"};
  const int64_t own = s->params.is_gpu + (s->params.is_gpu && s->params.or_host);
  int64_t first = own;
  int status = lade_rank_group_broadcast(&s->group, 0, &first, sizeof(first), error);
  if (status)
    return status;
  if (first != own)
    status = lade_error_set(error, -EINVAL, "--device selects %s, and %s at the first rank: all ranks take the same "
                            "--device", names[own], names[first]);
  return lade_rank_group_vote(&s->group, status, error);
}

/* Open the pool, and the kernels of the chosen device. */
static int kernels_open(lade_session *s, struct lade_error *error)
{
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&s->host_kernels, &cpu);
  s->kernels = s->host_kernels;
  s->chunk_bytes = CHUNK_BYTES;
  int status = devices_agree(s, error);
  if (!status)
    status = threads_agree(s, error);
  if (status)
    return status;
  status = lade_fault(s->params.faults, LADE_FAULT_THREAD);
  if (!status)
    status = lade_pool_create(s->params.n_threads, &s->pool);
  if (status)
    lade_error_set(error, status, "the machine refused threads (%s)", strerror(-status));
  status = lade_rank_group_vote(&s->group, status, error);
  return !status && s->params.is_gpu ? session_gpu_open(s, error) : status;
}

/*
 * Choose the backward of GELU by the device that runs the steps, or that is described. All ranks take the first one's
 * choice, because their graphs have the same ops and the others may lack the description's file.
 */
static int gelu_choose(lade_session *s, struct lade_error *error)
{
  struct lade_machine machine = {.is_unified = true};
  const bool is_waiting = s->group.world && !lade_rank_group_is_first(&s->group);
  int status = s->params.machine && !is_waiting ? lade_machine_get(s->params.machine, error, &machine) : 0;
  machine.is_unified = machine.is_unified && !s->params.is_gpu;
  int64_t fuses = lade_machine_fuses_gelu(&machine, s->params.dtype);
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status)
    status = lade_rank_group_broadcast(&s->group, 0, &fuses, sizeof(fuses), error);
  s->fuses_gelu = fuses;
  return status;
}

/* Refuse overrides to a tier that this run lacks. -EINVAL with a line, because no budget would make them fit. */
static int overrides_check(const lade_session *s, struct lade_error *error)
{
  const bool is_hostless = s->params.has_host_budget && s->params.host_budget_bytes == 0;
  for (int i = 0; i < s->n_overrides; i++) {
    const struct lade_change *override = &s->overrides[i];
    const bool is_tier = lade_change_is_tier(override);
    if (!s->params.store && override->to == (is_tier ? (int)LADE_TIER_STORE : (int)LADE_RESIDENCY_STORE))
      return lade_error_set(error, -EINVAL, "--residency %s puts values into the store, and there is none: give "
                            "--store DIR", s->params.residency_file);
    if (is_hostless && override->to == (is_tier ? (int)LADE_TIER_HOST : (int)LADE_RESIDENCY_HOST))
      return lade_error_set(error, -EINVAL, "--residency %s puts values into host memory, and --host-budget is 0",
                            s->params.residency_file);
  }
  return 0;
}

/* Make the graph of this rank's share, and read the residency overrides. */
static int graph_make(lade_session *s, struct lade_error *error)
{
  const struct lade_share share = share_make(s);
  int status = share_graph(s, &share, error, &s->graph);
  if (!status)
    status = lade_plan_units_check(s->graph, error); /* before the machine is measured for it */
  if (!status && s->params.is_gpu)
    session_gpu_note_forms(s);
  if (!status && s->params.is_gpu)
    status = session_gpu_check_gelu(s, error);
  if (!status && session_is_cut(s))
    status = share_graph(s, &(struct lade_share){0}, error, &s->whole);
  if (!status && s->params.residency_file)
    status = lade_residency_overrides_load(s->params.residency_file, s->graph, s->whole, error, &s->overrides,
                                           &s->n_overrides);
  if (!status)
    status = overrides_check(s, error);
  return status ? status : session_durable_fix_tiers(s, error);
}

static double step_flops(const lade_session *s)
{
  return lade_model_flops_per_token(&s->model, s->params.seq_len) * (double)(s->params.batch * s->params.seq_len);
}

/* Measure this machine with the ops of all ranks. For a pipeline these are the ops of all stages in one graph. */
static int cost_probe(lade_session *s, struct lade_error *error)
{
  struct lade_store_params store = session_store_params(s);
  const struct lade_probe_gpu gpu = {s->device, s->cuda_kernels};
  struct lade_share share = share_make(s);
  struct lade_model_graph *whole = NULL;
  const bool is_piped = share.pp > 1;
  const bool is_quick = s->params.is_gpu || step_flops(s) / s->n_microbatches < PROBE_FLOPS_MAX;
  share.pp = share.n_chunks = 1;
  share.pp_rank = 0;
  int status = is_quick && is_piped ? share_graph(s, &share, error, &whole) : 0;
  struct lade_probe_params params = {
      .struct_size = sizeof(params), .kernels = &s->host_kernels, .gpu = s->params.is_gpu ? &gpu : NULL,
      .pool = s->pool, .graph = is_piped ? whole : s->graph,
      .store = s->params.store ? &store : NULL, .skip_cache = s->params.skip_cache,
      .has_fresh_ops = !s->params.is_plan_only && !s->params.is_dry};
  params.graph = is_quick ? params.graph : NULL;
  if (!status)
    status = lade_probe(&params, error, &s->cost);
  lade_model_graph_destroy(whole);
  return status;
}

/*
 * Borrow the measurements or the description of the template session; both graphs have the same ops, in the same order.
 */
static void cost_borrow(lade_session *s)
{
  const lade_session *template_session = s->params.template_session;
  lade_cost_init(&s->cost, &template_session->cost.machine);
  s->has_cost = true;
  s->is_unified = template_session->is_unified;
  s->prices = template_session->prices;
}

/*
 * Measure the matmul rate of these cores for the speed of light of this run, shortly if a rate is kept. A GPU's rate is
 * one of its prices.
 */
static int rate_measure(lade_session *s, struct lade_error *error)
{
  if (s->params.is_gpu || s->params.is_dry || s->params.is_plan_only)
    return 0;
  const struct lade_probe_params params = session_cache_params(s, NULL);
  const double known = s->params.skip_cache ? 0 : lade_probe_best_rate(&params, s->params.dtype, 0);
  int status = lade_probe_matmul_rate(&s->kernels, s->pool, s->params.dtype, known, &s->matmul_flops_per_s);
  return status ? lade_error_set(error, status, "no memory to measure the matmul rate") : 0;
}

/* Replace the rate just measured by the best in the cache of measurements, which it may raise. */
static void rate_settle(lade_session *s)
{
  const struct lade_probe_params params = session_cache_params(s, NULL);
  if (s->params.skip_cache || s->params.is_gpu || s->matmul_flops_per_s <= 0)
    return;
  s->matmul_flops_per_s = LADE_MAX(s->matmul_flops_per_s,
                                   lade_probe_best_rate(&params, s->params.dtype, s->matmul_flops_per_s));
}

void session_rate_raise(lade_session *s, int64_t wall_ns)
{
  const double n_ranks = s->group.world ? s->group.layout.mesh.world : 1;
  const double rate = step_flops(s) / n_ranks / (double)LADE_MAX(wall_ns, 1) * 1e9;
  if (s->matmul_flops_per_s <= 0 || rate <= s->matmul_flops_per_s || s->params.is_dry)
    return;
  s->matmul_flops_per_s = rate;
  s->is_rate_raised = true;
}

void session_rate_keep(const lade_session *s)
{
  const struct lade_probe_gpu gpu = {s->device, s->cuda_kernels};
  const struct lade_probe_params params = session_cache_params(s, &gpu);
  if (s->is_rate_raised && !s->params.skip_cache && lade_rank_group_is_first(&s->group))
    lade_probe_best_rate(&params, s->params.dtype, s->matmul_flops_per_s);
}

/* Take prices, at the first rank or at a rank alone. */
static int cost_work(void *user, struct lade_error *error)
{
  lade_session *s = user;
  struct lade_machine machine;
  int status = rate_measure(s, error);
  if (status)
    return status;
  status = s->params.machine ? lade_machine_get(s->params.machine, error, &machine) : cost_probe(s, error);
  s->has_cost = !status;
  rate_settle(s);
  if (!status && s->params.machine)
    lade_cost_init(&s->cost, &machine);
  return status;
}

static int cost_take(lade_session *s, struct lade_error *error)
{
  const bool is_waiting = s->group.world && !lade_rank_group_is_first(&s->group); /* the first rank measures */
  if (is_waiting) {
    lade_cost_init(&s->cost, &(struct lade_machine){.n_cores = 1}); /* replaced by the first rank's */
    s->has_cost = true;
  }
  int status = lade_rank_group_work(&s->group, is_waiting ? NULL : cost_work, s, error);
  if (status)
    return status;
  if (s->params.is_gpu && !s->params.machine && !s->params.is_plan_only)
    s->matmul_flops_per_s = s->cost.machine.matmul_flops_per_s[s->params.dtype];
  status = session_agree_cost(s, error);
  if (!status && !s->params.machine)
    status = session_share_drive(s, error);
  if (status)
    return status;
  double copy_cores = 1; /* a copy that waits for its link leaves its core free */
  if (s->params.throttle.bytes_per_s) {
    copy_cores = (double)s->params.throttle.bytes_per_s / (double)LADE_MAX(s->cost.machine.to_host.bytes_per_s, 1);
    s->cost.machine.to_host = s->cost.machine.to_device = s->params.throttle;
  }
  if (s->params.is_gpu)
    s->cost.machine.is_unified = false; /* also if a description states otherwise */
  s->is_unified = s->cost.machine.is_unified || !(s->params.is_dry || s->params.is_plan_only || s->params.is_gpu);
  s->cost.links = s->has_links ? &s->links : NULL;
  s->prices.copy_cores = LADE_MIN(copy_cores, 1);
  return session_prices_make(s, error);
}

/* ---- resources of the plan ---- */

static int device_open(lade_session *s, struct lade_error *error)
{
  const struct lade_machine *machine = &s->cost.machine;
  if (s->params.is_gpu) {
    lade_device_peak_reset(s->device); /* drops the peak of measuring */
    return session_gpu_limit(s, s->budget_bytes, error);
  }
  if (s->params.is_dry) {
    struct lade_dry_device_params params = {
        .struct_size = sizeof(params), .capacity_bytes = LADE_MAX(s->capacity_bytes, s->plan->peak_bytes[LADE_DEVICE]),
        .chunk_bytes = CHUNK_BYTES, .to_host = machine->to_host, .to_device = machine->to_device,
        .faults = s->params.faults};
    return lade_device_open_dry(&params, error, &s->device);
  }
  struct lade_host_device_params params = {
      .struct_size = sizeof(params), .capacity_bytes = s->budget_bytes / CHUNK_BYTES * CHUNK_BYTES, .pool = s->pool,
      .to_host = s->params.throttle, .to_device = s->params.throttle, .faults = s->params.faults};
  return lade_device_open_host(&params, error, &s->device);
}

static int store_open(lade_session *s, struct lade_error *error)
{
  const uint64_t durable_bytes = session_durable_slot(s);
  int status = 0;
  if (s->params.is_dry)
    return 0;
  if (s->plan->peak_bytes[LADE_STORE] > durable_bytes) {
    struct lade_store_params params = session_store_params(s);
    params.capacity_bytes = s->store_bytes;
    params.is_stopping = s->params.is_stopping;
    params.user = s->params.user;
    status = lade_store_open(&params, error, &s->store);
  }
  const lade_store *any = s->store ? s->store : s->durable ? lade_durable_store(s->durable) : NULL;
  if (!status && any && *lade_store_note(any))
    session_notice(s, "%s", lade_store_note(any));
  return status;
}

/*
 * Allocate rows for the tokens and the targets that this stage does not read. Its checks and its first keys need the
 * tokens of whole rows, so tokens and targets have rows of their own.
 */
static int spare_rows_take(lade_session *s, struct lade_error *error)
{
  const size_t n = (size_t)(s->params.micro_batch * s->params.seq_len);
  if (s->params.is_dry)
    return 0;
  const bool needs_tokens = !lade_executor_tokens(s->executor, 0);
  const bool needs_targets = !lade_executor_targets(s->executor, 0);
  s->spare_tokens = needs_tokens ? lade_fault_calloc(s->params.faults, n, sizeof(*s->spare_tokens)) : NULL;
  s->spare_targets = needs_targets ? lade_fault_calloc(s->params.faults, n, sizeof(*s->spare_targets)) : NULL;
  const bool has_all = (s->spare_tokens || !needs_tokens) && (s->spare_targets || !needs_targets);
  return has_all ? 0 : lade_error_set(error, -ENOMEM, "no memory for the rows of a microbatch");
}

static int executor_make(lade_session *s, struct lade_error *error)
{
  int status = store_open(s, error);
  if (status)
    return status;
  struct lade_executor_params params = {
      .struct_size = sizeof(params), .plan = s->plan, .device = s->device, .kernels = &s->host_kernels,
      .cuda_kernels = s->cuda_kernels, .pool = s->pool, .store = s->store, .durable = s->durable,
      .host_limit_bytes = s->host_bytes,
      .comms = !s->group.world ? NULL : s->params.is_gpu ? s->group.gpu_axes : s->group.axes,
      .faults = s->params.faults};
  status = lade_executor_create(&params, error, &s->executor);
  s->outside_bytes = session_gpu_outside(s);
  if (!status && *lade_executor_note(s->executor))
    session_notice(s, "%s", lade_executor_note(s->executor));
  return status ? status : spare_rows_take(s, error);
}

/*
 * Open the device, the store and the executor. Each rank takes its own store; no rank takes any before all have
 * measured its free bytes.
 */
static int machine_take(lade_session *s, struct lade_error *error)
{
  int status = lade_rank_group_vote(&s->group, device_open(s, error), error);
  if (!status && !s->params.is_dry)
    status = session_durable_prepare(s, error);
  if (!status && !s->params.is_dry)
    status = session_agree_room(s, error);
  if (!status)
    status = lade_rank_group_vote(&s->group, executor_make(s, error), error);
  return status ? status : lade_executor_meet(s->executor, error);
}

/* Return -EINTR if the caller is about to close its session. */
static int stop_status(const lade_session *s, struct lade_error *error)
{
  const bool is_stopping = s->params.is_stopping && s->params.is_stopping(s->params.user);
  return is_stopping ? lade_error_set(error, -EINTR, "opening a session: stopped by its caller") : 0;
}

/* The values of a session that is being opened. */
struct first_values {
  const lade_session *session;
  struct lade_values own;
};

static int first_values_get(void *user, int tensor, uint64_t offset, void *dst, uint64_t bytes,
                            struct lade_error *error)
{
  const struct first_values *values = user;
  return values->own.get(values->own.user, tensor, offset, dst, bytes, error);
}

/* Set a window, unless the caller is about to close its session: a large model's values take minutes. */
static int first_values_set(void *user, int tensor, uint64_t offset, const void *src, uint64_t bytes,
                            struct lade_error *error)
{
  const struct first_values *values = user;
  const int status = stop_status(values->session, error);
  return status ? status : values->own.set(values->own.user, tensor, offset, src, bytes, error);
}

/* Set the first values: those of a checkpoint, of --init, or random ones. */
static int values_begin(lade_session *s, struct lade_error *error)
{
  struct first_values first = {s, lade_session_values(s)};
  struct lade_values values = first.own;
  values.get = first_values_get;
  values.set = first_values_set;
  values.user = &first;
  s->state = (struct lade_checkpoint_state){
      .seed = s->params.seed, .loss_scale = session_first_scale(s), .numerics_key = lade_kernels_key(&s->kernels),
      .run = session_run(s)};
  snprintf(s->state.model, sizeof(s->state.model), "%s", s->model.name);
  if (s->params.is_dry)
    return 0;
  if (s->params.resume)
    return session_resume(s, &values, error);
  int status = s->params.init ? lade_checkpoint_init(&values, s->params.init, s->params.faults, error)
                              : lade_checkpoint_random(&values, s->params.seed, error);
  return lade_rank_group_vote(&s->group, status, error);
}

static int values_fill(lade_session *s, struct lade_error *error)
{
  if (s->is_recovered) {
    session_run_replace(s, s->params.store);
    return 0;
  }
  int status = values_begin(s, error);
  return status ? status : session_durable_publish(s, error);
}

/* Read the model, open the ranks and the data: all that needs no kernels. */
static int run_read(lade_session *s, struct lade_error *error)
{
  int status = lade_rank_group_vote(&s->group, model_read(s, error), error);
  if (!status)
    status = ranks_open(s, error);
  if (status)
    return status;
  status = batch_check(s, error);
  if (!status)
    status = update_check(s, error);
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status)
    status = session_durable_begin(s, error);
  if (!status)
    status = session_resume_begin(s, error);
  if (status)
    return status;
  status = data_read(s, error);
  if (!status)
    status = session_documents_open(s, error);
  return lade_rank_group_vote(&s->group, status, error);
}

/* End the opening at all ranks, with -EINTR, if the caller of any of them is about to close its session. Collective. */
static int stop_check(lade_session *s, struct lade_error *error)
{
  return lade_rank_group_vote(&s->group, stop_status(s, error), error);
}

static int session_acquire(lade_session *s, struct lade_error *error)
{
  int status = run_read(s, error);
  if (!status)
    status = kernels_open(s, error);
  if (!status)
    status = session_links_take(s, error);
  if (!status)
    status = gelu_choose(s, error);
  if (!status)
    status = lade_rank_group_vote(&s->group, graph_make(s, error), error);
  if (!status)
    status = session_agree_run(s, error);
  if (!status)
    status = session_gpu_warm(s, error);
  if (!status && s->params.template_session)
    cost_borrow(s);
  else if (!status)
    status = cost_take(s, error);
  if (!status)
    status = session_plan(s, error);
  if (!status)
    status = session_drive_measure_sustained(s, error);
  if (status || s->params.is_plan_only)
    return status == -EOVERFLOW && s->params.is_plan_only ? 0 : status;
  status = session_agree_programs(s, error);
  if (!status)
    status = stop_check(s, error); /* memory and stores are large, and take long to fill */
  if (!status)
    status = machine_take(s, error);
  if (!status)
    status = session_saver_open(s, error);
  if (!status)
    status = stop_check(s, error); /* so do the first values */
  return status ? status : values_fill(s, error);
}

int lade_session_open(const struct lade_session_params *params, struct lade_error *error, lade_session **ret_session)
{
  lade_session *session = calloc(1, sizeof(*session));
  if (!session)
    return lade_error_set(error, -ENOMEM, "no memory for a session");
  session->params = *params;
  session->n_sharing_drive = 1;
  lade_comm *world = params->is_dry || params->is_plan_only ? NULL : params->world;
  session->group.world = world; /* lets session_fail report to the other ranks */
  if (world)
    lade_comm_set_busy(world, true); /* suspends timeouts: reading, probing and loading are unbounded */
  int status = lade_rank_group_join(world, error, &session->group);
  if (!status)
    status = session_acquire(session, error);
  session_place(session, "before", status, error);
  if (session->group.world)
    lade_comm_set_busy(session->group.world, false);
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
  session_rate_keep(s);
  session_drive_keep(s);
  lade_executor_destroy(s->executor);
  lade_store_close(s->store);
  lade_durable_close(s->durable);
  lade_rank_group_close(&s->group); /* before the device, whose memory the communicators use */
  lade_cuda_kernels_close(s->cuda_kernels);
  lade_device_close(s->device);
  lade_plan_destroy(s->plan);
  lade_planner_destroy(s->planner);
  free(s->overrides);
  if (s->has_prices)
    lade_prices_finish(&s->prices);
  if (s->has_cost)
    lade_cost_finish(&s->cost);
  lade_model_graph_destroy(s->whole);
  lade_model_graph_destroy(s->graph);
  lade_pool_destroy(s->pool);
  free(s->tokenizer);
  lade_data_close(s->data);
  free(s->spare_targets);
  free(s->spare_tokens);
  free(s);
}
