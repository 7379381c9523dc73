/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan on a cluster. A given layout is costed whether it fits or not. Then the stages that may need the most memory
 * (lade_layout_cost.stages) are built as programs, proved and executed dry. A search does the same with each of its
 * best layouts (cluster_search.c).
 *
 * Context parallel ranks and mixtures of experts are priced by formula and not proved. With context parallel ranks the
 * job is that of their part of each sequence; with experts it begins from a dense model (experts_cost.c).
 *
 * Without --recompute, or with auto, the fastest residency of the layers that fits is taken (layer_residency.c).
 * Optimizer state and values wait on the device, on the host or, with --store-budget, on the node's drives.
 */
#include "tools/verbs/cluster/plan_cluster.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"
#include "tools/verbs/cluster/cluster_planning.h"

#define DEFAULT_SEQ_LEN 1024 /* of `lade train` too */

/* ---- the job ---- */

/* Return the divisor of @n that is nearest to @to; at equal distance the smaller. */
static int64_t nearest_divisor(int64_t n, int64_t to)
{
  for (int64_t distance = 0; distance < to; distance++) {
    if (n % (to - distance) == 0)
      return to - distance;
    if (to + distance <= n && n % (to + distance) == 0)
      return to + distance;
  }
  return 1;
}

/* Get a mixture of experts, with the dense model from which its cost begins. -ENOENT: the model is none. */
static int experts_get(struct cluster_planning *planning)
{
  const struct options *options = planning->options;
  int status = lade_experts_find(options->session.model, &planning->experts, &planning->error);
  if (status)
    return status;
  if (options->session.layers)
    planning->experts.layers = options->session.layers;
  planning->has_experts = true;
  if (planning->experts.n_experts % options->n_expert_ranks)
    return lade_error_set(&planning->error, -EINVAL, "--ep %lld does not divide the %lld experts of a layer of %s: "
                          "the nearest number is %lld", (long long)options->n_expert_ranks,
                          (long long)planning->experts.n_experts, planning->experts.name,
                          (long long)nearest_divisor(planning->experts.n_experts, options->n_expert_ranks));
  return lade_experts_dense_model(&planning->experts, &planning->error, &planning->model);
}

static int model_get(struct cluster_planning *planning)
{
  const struct lade_session_params *session = &planning->options->session;
  const int found = option_is_set(planning->options, "ep") ? experts_get(planning) : -ENOENT;
  if (found != -ENOENT)
    return found;
  if (planning->options->n_expert_ranks > 1 || option_is_set(planning->options, "expert-capacity"))
    return lade_error_set(&planning->error, -EINVAL, "--ep needs a mixture of experts, such as --model mixtral-8x7b or "
                          "a config.json of model_type mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v2 or "
                          "deepseek_v3, and %s is none", session->model);
  const size_t n = strlen(session->model);
  const bool is_file = strchr(session->model, '/') || (n > 5 && strcmp(session->model + n - 5, ".json") == 0);
  int status = is_file ? lade_model_load(session->model, &planning->model, &planning->error)
                       : lade_model_preset(session->model, &planning->model, &planning->error);
  if (!status && session->layers) {
    planning->model.layers = session->layers;
    status = lade_model_check(&planning->model, &planning->error);
  }
  return status;
}

/* Refuse a budget that no device of the cluster has. */
static int budget_check(struct cluster_planning *planning)
{
  char asked[LADE_SIZE_TEXT], has[LADE_SIZE_TEXT], usable[LADE_SIZE_TEXT];
  if (planning->budget_bytes <= planning->cluster.device.device_bytes)
    return 0;
  return lade_error_set(&planning->error, -EINVAL, "--budget is %s, and a device of cluster %.64s has %s: auto is the "
                        "usable part, %s", lade_size_exact(planning->budget_bytes, asked), planning->cluster.name,
                        lade_size_exact(planning->cluster.device.device_bytes, has),
                        lade_size_exact(planning->cluster.usable_device_bytes, usable));
}

/* Resolve the budget: auto is the usable part of the device, a percentage is of the device. */
static int budget_get(struct cluster_planning *planning)
{
  const struct lade_budget *budget = &planning->options->session.budget;
  const double device = (double)planning->cluster.device.device_bytes;
  switch (budget->kind) {
  case LADE_BUDGET_AUTO:
    planning->budget_bytes = planning->cluster.usable_device_bytes;
    return 0;
  case LADE_BUDGET_BYTES:
    planning->budget_bytes = budget->bytes;
    return budget_check(planning);
  case LADE_BUDGET_PERCENT_DEVICE:
    planning->budget_bytes = (uint64_t)(device * budget->percent / 100);
    return 0;
  default:
    return lade_error_set(&planning->error, -EINVAL, "--budget with --cluster: expected auto, bytes, or P%%dev of the "
                          "device");
  }
}

/* Resolve the drives that a node gives: a rank has its share. Refuse bytes that no plan can use. */
static int store_budget_get(struct cluster_planning *planning)
{
  char asked[LADE_SIZE_TEXT], has[LADE_SIZE_TEXT];
  const struct lade_session_params *session = &planning->options->session;
  const struct lade_cluster *cluster = &planning->cluster;
  if (!session->store_budget_bytes)
    return 0;
  if (!cluster->node_store.bytes)
    return lade_error_set(&planning->error, -EINVAL, "--store-budget needs drives, and a node of cluster %.64s has "
                          "none: store_per_node of a file states them", cluster->name);
  if (session->store_budget_bytes > cluster->node_store.bytes)
    return lade_error_set(&planning->error, -EINVAL, "--store-budget is %s, and the drives of a node of cluster %.64s "
                          "have %s (store_per_node)", lade_size_exact(session->store_budget_bytes, asked),
                          cluster->name, lade_size_exact(cluster->node_store.bytes, has));
  if (session->recipe != LADE_RECIPE_AUTO)
    return lade_error_set(&planning->error, -EINVAL, "--store-budget with --cluster needs --recompute auto: a recipe "
                          "leaves optimizer state on the device");
  if (cluster->device.is_unified)
    return lade_error_set(&planning->error, -EINVAL, "--store-budget needs devices with memory of their own, and those "
                          "of cluster %.64s use the host's: --machine plans these", cluster->name);
  planning->store_budget_bytes = session->store_budget_bytes / (uint64_t)cluster->n_node_devices;
  return 0;
}

/* Cut each sequence over context parallel ranks: two pieces each, so that causal attention is balanced. */
static int context_cut(struct cluster_planning *planning)
{
  const int64_t n = planning->options->n_context;
  if (n > 1 && planning->job.seq_len % (2 * n))
    return lade_error_set(&planning->error, -EINVAL, "--cp %lld cuts --seq %lld into %lld pieces, two for each rank: "
                          "their number does not divide it; the nearest number of ranks is %lld", (long long)n,
                          (long long)planning->job.seq_len, (long long)(2 * n),
                          (long long)(planning->job.seq_len % 2 ? 1 : nearest_divisor(planning->job.seq_len / 2, n)));
  planning->job.seq_len /= n;
  planning->job.batch *= n;
  planning->job.n_context = (int)n;
  return 0;
}

/* Refuse GELU in its product for software that computes it apart. */
static int gelu_check(struct cluster_planning *planning)
{
  if (!planning->job.fuses_gelu_fwd || planning->job.software == LADE_SOFTWARE_LADE)
    return 0;
  return lade_error_set(&planning->error, -EINVAL, "--gelu-fusion is of Lade's own products, and without --software "
                        "lade the step is priced as other software runs it: give --software lade");
}

static int job_make(struct cluster_planning *planning)
{
  const struct lade_session_params *session = &planning->options->session;
  const struct lade_cpu cpu = lade_cpu_get();
  int status = lade_cluster_get(planning->options->cluster, &planning->error, &planning->cluster);
  if (!status)
    status = model_get(planning);
  if (!status)
    status = budget_get(planning);
  if (!status)
    status = store_budget_get(planning);
  if (status)
    return status;
  lade_kernels_init(&planning->kernels, &cpu);
  planning->job = (struct lade_layout_job){
      .cluster = &planning->cluster, .model = &planning->model, .kernels = &planning->kernels, .batch = session->batch,
      .seq_len = session->seq_len ? session->seq_len : LADE_MIN(planning->model.context, DEFAULT_SEQ_LEN),
      .dtype = session->dtype, .grad_dtype = session->grad_dtype, .moments = session->moments,
      .master = session->master, .dropout = session->dropout, .fuses_gelu_fwd = session->gelu_fusion,
      .software = (enum lade_software)planning->options->software,
      .overlaps_tensor = planning->options->overlaps_tensor, .gathers_late = planning->options->gathers_late,
      .is_eager = planning->options->is_eager, .has_fused_norms = planning->options->has_fused_norms,
      .has_fused_attention = planning->options->has_fused_attention || planning->options->n_context > 1,
      .stores_values = planning->store_budget_bytes > 0};
  if (planning->has_experts) {
    planning->job.experts = &planning->experts;
    planning->job.n_expert_ranks = (int)planning->options->n_expert_ranks;
    planning->job.expert_capacity = planning->options->expert_capacity;
  }
  if (session->master == LADE_MASTER_24BIT && session->dtype != LADE_BF16)
    return lade_error_set(&planning->error, -EINVAL, "--master 24bit is 8 bits beside a bf16 weight: with --dtype %s "
                          "use --master exact", session->dtype == LADE_F16 ? "fp16" : "fp32");
  if (lade_software_is_eager(&planning->job, planning->job.software) && !lade_software_has_eager(&planning->job))
    return lade_error_set(&planning->error, -EINVAL, "%s%s needs --dtype bf16 or fp16 and a device with kernels",
                          planning->job.is_eager ? "--eager" : "--software ",
                          planning->job.is_eager ? "" : software_name(planning->job.software));
  if (planning->job.seq_len > planning->model.context)
    return lade_error_set(&planning->error, -EINVAL, "--seq %lld is longer than the context of %s, %lld",
                          (long long)planning->job.seq_len, planning->model.name, (long long)planning->model.context);
  status = gelu_check(planning);
  return status ? status : context_cut(planning);
}

/* ---- a given layout ---- */

/* Refuse late gathers where no layout has ZeRO 3. */
static int gathers_check(struct cluster_planning *planning)
{
  const struct options *options = planning->options;
  const bool may_have = options->has_search && !option_is_set(options, "zero");
  if (!options->gathers_late || may_have || options->session.layout.zero == LADE_ZERO_MAX)
    return 0;
  return lade_error_set(&planning->error, -EINVAL, "--late-gathers prices the gathers of ZeRO 3: give --zero 3%s",
                        option_is_set(options, "zero") ? "" : ", or --search");
}

static int given_layout(struct cluster_planning *planning, struct cluster_plan *plan)
{
  struct options *options = planning->options;
  if (options->overlaps_tensor && !options->is_sequence)
    return lade_error_set(&planning->error, -EINVAL, "--overlap-tensor prices the collectives of cut rows: give "
                          "--sequence-parallel, or --search");
  plan->params = options->session.layout;
  plan->params.struct_size = sizeof(plan->params);
  plan->params.rank = 0;
  plan->params.n_kv_heads = planning->model.n_kv_heads;
  if (options->n_ranks)
    plan->params.world = (int)options->n_ranks;
  if (plan->n_context > 1 && (plan->params.dp || !options->n_ranks)) /* each replica is n_context of the layout's */
    plan->params.dp = LADE_MAX(plan->params.dp, 1) * plan->n_context;
  int n_microbatches, status = lade_layout_init(&plan->params, &planning->error, &plan->layout);
  if (!status)
    status = cluster_ranks_check(planning, plan->layout.mesh.world);
  if (!status)
    status = lade_layout_share_batch(&plan->layout, planning->job.batch, options->session.micro_batch,
                                     &planning->error, &plan->micro_batch, &n_microbatches);
  const int n_replicas = status ? 1 : lade_layout_size(&plan->layout, LADE_AXIS_DP);
  if (!status && n_replicas % plan->n_context)
    status = lade_error_set(&planning->error, -EINVAL, "--cp %d does not divide the %d ranks beside --tp and --pp: "
                            "the nearest number is %lld", plan->n_context, n_replicas,
                            (long long)nearest_divisor(n_replicas, plan->n_context));
  if (!status && n_replicas % LADE_MAX(planning->job.n_expert_ranks, 1))
    status = lade_error_set(&planning->error, -EINVAL, "--ep %d does not divide the %d ranks beside --tp and --pp: "
                            "the nearest number is %lld", planning->job.n_expert_ranks, n_replicas,
                            (long long)nearest_divisor(n_replicas, planning->job.n_expert_ranks));
  return status;
}

#define GIVEN_MAX (3 * LADE_SHARE_RESIDENCIES_MAX) /* each residency with state in each tier */

/* Cost the layout under all residencies and state tiers, in order of time. */
static int choices_cost(struct cluster_plan *empty, const struct lade_share_residencies *residencies,
                        struct lade_error *error, struct cluster_plan *ret_choices, int *ret_n)
{
  int n = 0, status = 0;
  for (int i = 0; i < GIVEN_MAX && !status; i++) {
    struct cluster_plan choice = *empty;
    choice.state_tier = (enum lade_tier)(i % 3);
    if (i / 3 >= residencies->n || (choice.state_tier == LADE_TIER_HOST && empty->job->cluster->device.is_unified) ||
        (choice.state_tier == LADE_TIER_STORE && !empty->store_budget_bytes))
      continue;
    choice.share = residencies->items[i / 3];
    status = cluster_layout_cost(&choice, error);
    ret_choices[n++] = choice;
  }
  qsort(ret_choices, (size_t)n, sizeof(*ret_choices), cluster_step_compare);
  *ret_n = n;
  return status;
}

/*
 * Take the first choice whose proof fits; if none does, the one that needs least by the estimate. A choice with a lower
 * bound of its bytes above the budget is not built.
 */
static int choice_take(const struct cluster_plan *choices, int n, struct cluster_plan *plan, struct lade_error *error)
{
  int status = 0, min = 0;
  plan->fits = false;
  for (int i = 0; i < n && !status && !plan->fits; i++) {
    min = choices[i].cost.peak_bytes < choices[min].cost.peak_bytes ? i : min;
    const struct lade_layout_cost *cost = &choices[i].cost;
    if (cluster_is_provable(&choices[i]) &&
        (cost->bound_bytes > plan->budget_bytes || cost->bound_host_bytes > plan->host_budget_bytes ||
         cost->bound_store_bytes > plan->store_budget_bytes ||
         cost->bound_sum_bytes > plan->budget_bytes + plan->host_budget_bytes))
      continue;
    *plan = choices[i];
    status = cluster_plan_prove_fitting(plan, error);
  }
  if (status || plan->fits)
    return status;
  *plan = choices[min];
  return cluster_layout_plan(plan, error);
}

static int given_plan(struct cluster_planning *planning, struct cluster_plan *plan)
{
  const enum lade_recipe asked = planning->options->session.recipe;
  struct lade_error *error = &planning->error;
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  struct cluster_plan *choices = calloc(GIVEN_MAX, sizeof(*choices));
  int n = 0, status = residencies && choices ? given_layout(planning, plan)
                                        : lade_error_set(error, -ENOMEM, "no memory for the layout");
  if (!status)
    status = cluster_residencies_make(plan, asked, error, residencies);
  if (!status && asked != LADE_RECIPE_AUTO) {
    plan->share = residencies->items[0];
    status = cluster_layout_plan(plan, error);
  } else if (!status) {
    status = choices_cost(plan, residencies, error, choices, &n);
    status = status ? status : choice_take(choices, n, plan, error);
  }
  free(residencies);
  free(choices);
  return status;
}

static int given_tell(struct cluster_planning *planning, const struct cluster_plan *plan)
{
  const struct options *options = planning->options;
  if (options->export_format)
    cluster_export(plan, stdout);
  else if (options->is_json) {
    if (json_print(cluster_given_json(plan)))
      return exit_fail("plan", -ENOMEM, NULL);
  } else {
    cluster_given_print(plan, stdout);
    if (options->has_explain)
      cluster_explain(plan, stdout);
  }
  return plan->fits ? LADE_EXIT_DONE : cluster_refusal_tell(planning, plan, "--search looks for layouts that fit");
}

int plan_cluster(struct options *options)
{
  struct cluster_planning planning = {.options = options};
  int status = job_make(&planning);
  if (!status)
    status = gathers_check(&planning);
  if (status)
    return exit_fail("plan", status, &planning.error);
  const int64_t n_context = options->n_context;
  struct cluster_plan plan = {.options = options, .job = &planning.job, .budget_bytes = planning.budget_bytes,
                              .host_budget_bytes = cluster_host_budget(&planning.cluster),
                              .store_budget_bytes = planning.store_budget_bytes, .n_context = (int)n_context,
                              .batch = planning.job.batch / n_context, .seq_len = planning.job.seq_len * n_context};
  if (options->has_search)
    return cluster_search_plan(&planning, &plan);
  status = given_plan(&planning, &plan);
  return status ? exit_fail("plan", status, &planning.error) : given_tell(&planning, &plan);
}
