/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan on a cluster. A given layout is costed whether it fits or not. Then the stages that may need the most memory
 * (lade_layout_cost.stages) are built as programs, proved and executed dry. A search does the same with each of its
 * best layouts, and drops those whose programs need more than the budget.
 *
 * Context parallel ranks and mixtures of experts are priced by formula and not proved. With context parallel ranks the
 * job is that of their part of each sequence; with experts it begins from a dense model (experts_cost.c).
 *
 * Without --recompute, or with auto, the fastest residency of the layers that fits is taken (layer_residency.c).
 * Optimizer state is on the device or on the host.
 */
#include "tools/verbs/plan_cluster.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/cpu.h"
#include "program/residency.h"
#include "run/dry_stage.h"
#include "tools/cli/verbs.h"
#include "tools/report/cluster_report.h"
#include "tools/report/report.h"

#define DEFAULT_SEQ_LEN 1024 /* of `lade train` too */
/* A search for K layouts finds FOUND_EACH K + FOUND_MORE: some differ in the schedule alone, or fail the proof. */
#define FOUND_EACH 3
#define FOUND_MORE 20
#define KIND_ALONE 8   /* failed proofs of a kind after which a correction holds for all layouts of the kind */
#define KINDS_AGAIN 64 /* most searches of kinds whose proof failed: each takes milliseconds and one proof */
#define MORE_ROUNDED (1 + 1e-9) /* so that rounding does not bring the same layout again */

struct cluster_planning {
  struct options *options;
  struct lade_cluster cluster;
  struct lade_model model;
  struct lade_experts experts;
  bool has_experts;
  struct lade_kernels kernels;
  struct lade_layout_job job;
  struct lade_layout_job jobs[LADE_N_MOMENTS][LADE_N_MASTERS]; /* the same with each precision of optimizer states */
  uint64_t budget_bytes;
  struct lade_error error;
};

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
    return lade_error_set(&planning->error, -EINVAL, "--ep needs a mixture of experts, such as --model mixtral-8x7b, "
                          "and %s is none", session->model);
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

#define HOST_LEFT 16 /* this part of a node's memory is left to its system and its processes */

/* Return the host memory that a rank may use: its share of the node's. */
static uint64_t host_budget(const struct lade_cluster *cluster)
{
  return (cluster->node_host_bytes - cluster->node_host_bytes / HOST_LEFT) / (uint64_t)cluster->n_node_devices;
}

static int ranks_check(struct cluster_planning *planning, int64_t n_ranks)
{
  const int64_t n_devices = planning->cluster.n_nodes * planning->cluster.n_node_devices;
  if (n_ranks <= n_devices)
    return 0;
  return lade_error_set(&planning->error, -EINVAL, "%lld ranks are more than the devices of cluster %.64s: nodes is "
                        "%lld and devices_per_node %lld, %lld together", (long long)n_ranks, planning->cluster.name,
                        (long long)planning->cluster.n_nodes, (long long)planning->cluster.n_node_devices,
                        (long long)n_devices);
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

static int job_make(struct cluster_planning *planning)
{
  const struct lade_session_params *session = &planning->options->session;
  const struct lade_cpu cpu = lade_cpu_get();
  int status = lade_cluster_get(planning->options->cluster, &planning->error, &planning->cluster);
  if (!status)
    status = model_get(planning);
  if (!status)
    status = budget_get(planning);
  if (status)
    return status;
  lade_kernels_init(&planning->kernels, &cpu);
  planning->job = (struct lade_layout_job){
      .cluster = &planning->cluster, .model = &planning->model, .kernels = &planning->kernels, .batch = session->batch,
      .seq_len = session->seq_len ? session->seq_len : LADE_MIN(planning->model.context, DEFAULT_SEQ_LEN),
      .dtype = session->dtype, .grad_dtype = session->grad_dtype, .moments = session->moments,
      .master = session->master, .dropout = session->dropout,
      .software = (enum lade_software)planning->options->software,
      .overlaps_tensor = planning->options->overlaps_tensor, .gathers_late = planning->options->gathers_late,
      .is_eager = planning->options->is_eager,
      .has_fused_attention = planning->options->has_fused_attention || planning->options->n_context > 1};
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
  return context_cut(planning);
}

/* ---- proofs ---- */

static void fits_set(struct cluster_plan *plan)
{
  plan->fits = plan->peak_bytes <= plan->budget_bytes && plan->host_bytes <= plan->host_budget_bytes;
}

/* Build and prove @stage's program, and execute it dry. */
static int stage_prove(struct cluster_plan *plan, int stage, struct lade_error *error)
{
  const struct lade_stage_residency tiers = {.layer = plan->share.residency, .state_tier = plan->state_tier,
                                             .device_bytes = plan->budget_bytes};
  struct lade_layout layout = plan->layout;
  const int at = plan->n_stages_proved;
  layout.rank = lade_mesh_member(&layout.mesh, LADE_AXIS_PP, 0, stage);
  struct lade_stage_build build = {0};
  int status = lade_stage_build_make(plan->job, &layout, plan->micro_batch, &tiers, true, error, &build);
  if (!status)
    status = lade_dry_stage_run(plan->job, &build, error, &plan->dry[at]);
  if (!status)
    lade_stage_program_read(build.train, &plan->stages[at]);
  lade_stage_build_finish(&build);
  if (status)
    return status;
  plan->ranks[at] = layout.rank;
  plan->host_bytes = LADE_MAX(plan->host_bytes, plan->stages[at].host_bytes);
  if (plan->stages[at].peak_bytes > plan->peak_bytes) {
    plan->peak_bytes = plan->stages[at].peak_bytes;
    plan->fullest = at;
  }
  plan->n_stages_proved++;
  return 0;
}

/* Prove the stages of which one needs the most. Any other has the parameters of one of them, and fewer values. */
static int plan_prove(struct cluster_plan *plan, struct lade_error *error)
{
  int status = 0;
  plan->peak_bytes = plan->host_bytes = 0;
  plan->n_stages_proved = plan->fullest = 0;
  for (int i = 0; i < plan->cost.n_stages && !status; i++)
    status = stage_prove(plan, plan->cost.stages[i], error);
  plan->is_proved = !status;
  fits_set(plan);
  return status;
}

/* ---- text ---- */

/* Print a layout and, below it, its figures: both in one line would be wider than a screen. */
static void cluster_layout_print(const struct cluster_plan *plan, FILE *file)
{
  char name[LADE_LAYOUT_NAME_BYTES], peak[32], step[32];
  const double step_s = plan->cost.step_ns / 1e9, ranks = plan->layout.mesh.world;
  lade_layout_name(&plan->layout, name);
  if (plan->n_context > 1)
    fprintf(file, "of dp, cp %d; ", plan->n_context);
  if (plan->job->experts)
    fprintf(file, "of dp, ep %d; ", plan->job->n_expert_ranks);
  fprintf(file, "%s, micro-batch %lld, recompute %s%s%s\n", name, (long long)plan->micro_batch,
          recipe_name(plan->share.residency.recipe),
          plan->state_tier == LADE_TIER_DEVICE ? "" : ", state on the host", plan->fits ? "" : ", does not fit");
  if (plan->options->is_any_precision)
    fprintf(file, "  moments %s, masters %s\n", moments_name(plan->job->moments), master_name(plan->job->master));
  fprintf(file, "  %9s %10s %6.1f TFLOP/s %5.1f %%\n", seconds_format(step_s, step, sizeof(step)),
          lade_size_format(plan->peak_bytes, peak, sizeof(peak)), plan->cost.model_flops / step_s / ranks / 1e12,
          100 * plan->cost.model_flops / step_s / ranks / plan->job->cluster->peak_flops_per_s);
}

/* Print the values of a layer that are recomputed and those that are copied to the host. */
static void residency_print(const struct cluster_plan *plan, FILE *file)
{
  char names[CLUSTER_NAMES_BYTES], size[32];
  if (plan->share.residency.recipe == LADE_RECIPE_AUTO) {
    cluster_values_name(plan, LADE_RESIDENCY_RECOMPUTE, sizeof(names), names);
    fprintf(file, "recomputed    of each layer: %s\n", names[0] ? names : "nothing");
    cluster_values_name(plan, LADE_RESIDENCY_HOST, sizeof(names), names);
    fprintf(file, "on the host   of each layer: %s\n", names[0] ? names : "nothing");
  }
  if (plan->state_tier != LADE_TIER_DEVICE || plan->share.layer.host_bytes > 0)
    fprintf(file, "host memory   %s of a rank%s\n", lade_size_format(plan->host_bytes, size, sizeof(size)),
            plan->state_tier == LADE_TIER_DEVICE ? "" : ", the optimizer state in it");
}

static void given_print(const struct cluster_plan *plan, FILE *file)
{
  const double step_s = plan->cost.step_ns / 1e9;
  char text[32], more[32];
  fprintf(file, "cluster       %s, %d ranks; model %s, batch %lld of %lld tokens\n", plan->job->cluster->name,
          plan->layout.mesh.world, plan->job->model->name, (long long)plan->batch, (long long)plan->seq_len);
  cluster_layout_print(plan, file);
  fprintf(file, "step          %s, within %.0f %%; bubble %.1f %%, exposed communication %.1f %%\n",
          seconds_format(step_s, text, sizeof(text)), 100 * plan->job->cluster->error_share, 100 * plan->cost.bubble,
          100 * plan->cost.exposed);
  fprintf(file, "              gradients %s, update %s\n",
          seconds_format(plan->cost.grad_ns / 1e9, text, sizeof(text)),
          seconds_format(plan->cost.update_ns / 1e9, more, sizeof(more)));
  lade_size_format(plan->peak_bytes, text, sizeof(text));
  lade_size_format(plan->budget_bytes, more, sizeof(more));
  if (plan->is_proved)
    fprintf(file, "memory        %s of %s, rank %d; %d stages built as programs, proved and executed dry\n", text, more,
            plan->ranks[plan->fullest], plan->n_stages_proved);
  else
    fprintf(file, "memory        %s of %s, not proved: a formula for context and expert parallel ranks\n", text, more);
  if (plan->share.software != LADE_SOFTWARE_LADE)
    fprintf(file, "software      the step is priced as %s runs it; --software lade prices Lade's program\n",
            software_title(plan->share.software));
  if (plan->layout.is_sequence && lade_software_overlaps_tensor(plan->job, plan->share.software))
    fprintf(file, "overlap       collectives beside products are a price: no program of Lade has them\n");
  if (plan->layout.zero == LADE_ZERO_MOST && lade_software_gathers_late(plan->job, plan->share.software))
    fprintf(file, "gathers       late ones are a price: no program of Lade has them\n");
  residency_print(plan, file);
  if (plan->options->n_train_tokens > 0) {
    const double tokens = (double)plan->batch * (double)plan->seq_len;
    const double days = plan->options->n_train_tokens / tokens * step_s / 86400;
    fprintf(file, "training      %.3g tokens in %.1f days, %.3g device-hours\n", plan->options->n_train_tokens, days,
            days * 24 * plan->layout.mesh.world);
  }
}

/* ---- a given layout ---- */

/* Cost the layout with its share. */
static int layout_cost(struct cluster_plan *plan, struct lade_error *error)
{
  const enum lade_recipe recipe = plan->share.residency.recipe;
  int status = lade_layout_cost_make(plan->job, &plan->layout, plan->micro_batch, plan->state_tier, &plan->share,
                                     error, &plan->cost);
  const double again = plan->cost.hardware_flops - lade_step_flops(plan->job->model, plan->job->batch,
                                                                   plan->job->seq_len, recipe);
  plan->cost.model_flops = lade_step_flops(plan->job->model, plan->batch, plan->seq_len, LADE_RECIPE_NONE);
  plan->cost.hardware_flops = lade_step_flops(plan->job->model, plan->batch, plan->seq_len, recipe) + again;
  plan->peak_bytes = plan->cost.peak_bytes;
  plan->host_bytes = plan->cost.host_bytes;
  fits_set(plan);
  return status;
}

/* Cost the layout, and prove it if it can be built. */
static int layout_plan(struct cluster_plan *plan, struct lade_error *error)
{
  int status = layout_cost(plan, error);
  return status || plan->n_context > 1 || plan->job->experts ? status : plan_prove(plan, error);
}

/* Make the residencies of the layout's share (lade_share_residencies_make). */
static int residencies_make(const struct cluster_plan *plan, enum lade_recipe recipe, struct lade_error *error,
                            struct lade_share_residencies *ret_residencies)
{
  const struct lade_share_key key = {lade_layout_size(&plan->layout, LADE_AXIS_TP), plan->layout.is_sequence,
                                     plan->micro_batch, recipe,
                                     lade_software_of(plan->job, plan->layout.zero, recipe)};
  return lade_share_residencies_make(plan->job, &key, error, ret_residencies);
}

/* Refuse late gathers where no layout has ZeRO 3. */
static int gathers_check(struct cluster_planning *planning)
{
  const struct options *options = planning->options;
  const bool may_have = options->has_search && !option_is_set(options, "zero");
  if (!options->gathers_late || may_have || options->session.layout.zero == LADE_ZERO_MOST)
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
    status = ranks_check(planning, plan->layout.mesh.world);
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

#define GIVEN_MOST (2 * LADE_SHARE_RESIDENCIES_MOST) /* each residency with state on the device and on the host */
#define GIVEN_SLACK 0.94 /* of an estimated peak: the proof may find as much less (docs/cluster.md) */
#define GIVEN_PROOFS 4   /* fast residencies to prove before the one that needs least */

static int step_compare(const void *a, const void *b)
{
  const double x = ((const struct cluster_plan *)a)->cost.step_ns, y = ((const struct cluster_plan *)b)->cost.step_ns;
  return (x > y) - (x < y);
}

/* Cost the layout under all residencies and state tiers, in order of time. */
static int choices_cost(struct cluster_plan *empty, const struct lade_share_residencies *residencies,
                        struct lade_error *error, struct cluster_plan *ret_choices, int *ret_n)
{
  int n = 0, status = 0;
  for (int i = 0; i < 2 * residencies->n && !status; i++) {
    struct cluster_plan choice = *empty;
    choice.state_tier = i % 2 ? LADE_TIER_HOST : LADE_TIER_DEVICE;
    choice.share = residencies->items[i / 2];
    if (i % 2 && empty->job->cluster->device.is_unified)
      continue;
    status = layout_cost(&choice, error);
    ret_choices[n++] = choice;
  }
  qsort(ret_choices, (size_t)n, sizeof(*ret_choices), step_compare);
  *ret_n = n;
  return status;
}

/*
 * Take the first choice whose proof fits; if none does, the one that needs least by the estimate. If a proof finds more
 * bytes than estimated, later choices are taken to need more by the same factor.
 */
static int choice_take(const struct cluster_plan *choices, int n, struct cluster_plan *plan, struct lade_error *error)
{
  double more = GIVEN_SLACK; /* proved bytes over estimated ones */
  int status = 0, n_proved = 0, least = 0;
  plan->fits = false;
  for (int i = 0; i < n && !status && !plan->fits; i++) {
    least = choices[i].cost.peak_bytes < choices[least].cost.peak_bytes ? i : least;
    if ((double)choices[i].peak_bytes * more > (double)plan->budget_bytes || n_proved == GIVEN_PROOFS ||
        choices[i].host_bytes > plan->host_budget_bytes)
      continue;
    *plan = choices[i];
    status = layout_plan(plan, error);
    more = LADE_MAX(more, (double)plan->peak_bytes / (double)choices[i].peak_bytes);
    n_proved++;
  }
  if (status || plan->fits)
    return status;
  *plan = choices[least];
  return layout_plan(plan, error);
}

static int given_plan(struct cluster_planning *planning, struct cluster_plan *plan)
{
  const enum lade_recipe asked = planning->options->session.recipe;
  struct lade_error *error = &planning->error;
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  struct cluster_plan *choices = calloc(GIVEN_MOST, sizeof(*choices));
  int n = 0, status = residencies && choices ? given_layout(planning, plan)
                                        : lade_error_set(error, -ENOMEM, "no memory for the layout");
  if (!status)
    status = residencies_make(plan, asked, error, residencies);
  if (!status && asked != LADE_RECIPE_AUTO) {
    plan->share = residencies->items[0];
    status = layout_plan(plan, error);
  } else if (!status) {
    status = choices_cost(plan, residencies, error, choices, &n);
    status = status ? status : choice_take(choices, n, plan, error);
  }
  free(residencies);
  free(choices);
  return status;
}

/* Say that the layout does not fit: its peak, the budget, and the tensors that take most. */
static int refusal_tell(struct cluster_planning *planning, const struct cluster_plan *plan)
{
  char peak[LADE_SIZE_TEXT], budget[LADE_SIZE_TEXT];
  const struct lade_stage_program *stage = &plan->stages[plan->fullest];
  int most = 0;
  lade_size_exact(plan->peak_bytes, peak);
  lade_size_exact(plan->budget_bytes, budget);
  if (!plan->is_proved) {
    lade_error_set(&planning->error, -EOVERFLOW, "a rank needs about %s of device memory, and %s are usable; a larger "
                   "--cp or --ep, or --recompute full, needs less", peak, budget);
    fflush(stdout);
    return exit_fail("plan", -EOVERFLOW, &planning->error);
  }
  for (int owner = 0; owner < LADE_N_OWNERS; owner++)
    most = stage->owner_bytes[owner] > stage->owner_bytes[most] ? owner : most;
  lade_error_set(&planning->error, -EOVERFLOW, "rank %d needs %s of device memory, and %s are usable; most of it is "
                 "%s: --search finds layouts that fit", plan->ranks[plan->fullest], peak, budget,
                 lade_owner_name((enum lade_owner)most));
  fflush(stdout);
  return exit_fail("plan", -EOVERFLOW, &planning->error);
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
    given_print(plan, stdout);
    if (options->has_explain)
      cluster_explain(plan, stdout);
  }
  return plan->fits ? LADE_EXIT_DONE : refusal_tell(planning, plan);
}

/* ---- a search ---- */

/* Return @option's number if the user gave it, else @free. */
static int confined(const struct options *options, const char *option, int64_t value, int free_value)
{
  return option_is_set(options, option) ? (int)value : free_value;
}

static struct lade_layout_search_params search_params(const struct cluster_planning *planning)
{
  const struct options *o = planning->options;
  struct lade_layout_search_params params = {
      .n_ranks = (int)o->n_ranks, .device_bytes = planning->budget_bytes,
      .host_bytes = host_budget(&planning->cluster), .tp = confined(o, "tp", o->tp, 0),
      .pp = confined(o, "pp", o->pp, 0), .dp = confined(o, "dp", o->dp, 0), .zero = confined(o, "zero", o->zero, -1),
      .virtual_stages = confined(o, "virtual-stages", o->virtual_stages, 0), .shard = (int)o->shard,
      .schedule = confined(o, "schedule", o->schedule, -1),
      .is_sequence = confined(o, "sequence-parallel", o->is_sequence, -1), .micro_batch = o->session.micro_batch,
      .recipe = o->session.recipe, .grad_reduce = (enum lade_dtype)o->grad_reduce,
      .n_most = (int)o->n_top * FOUND_EACH + FOUND_MORE};
  for (int i = 0; i < LADE_N_MOMENTS && o->is_any_precision; i++)
    if (!option_is_set(o, "moments") || i == (int)o->session.moments)
      params.moments[params.n_moments++] = (enum lade_moments)i;
  for (int i = 0; i < LADE_N_MASTERS && o->is_any_precision; i++)
    if (!option_is_set(o, "master") || i == (int)o->session.master)
      params.masters[params.n_masters++] = (enum lade_master)i;
  return params;
}

/* Make the job of each precision, for the plans of found layouts. */
static void jobs_fill(struct cluster_planning *planning)
{
  for (int i = 0; i < LADE_N_MOMENTS * LADE_N_MASTERS; i++) {
    struct lade_layout_job *job = &planning->jobs[i / LADE_N_MASTERS][i % LADE_N_MASTERS];
    *job = planning->job;
    job->moments = (enum lade_moments)(i / LADE_N_MASTERS);
    job->master = (enum lade_master)(i % LADE_N_MASTERS);
  }
}

/* Plan @found with its residency, which is one of @residencies. */
static int residency_plan(struct cluster_plan *plan, const struct lade_layout_found *found,
                          const struct lade_share_residencies *residencies, struct lade_error *error)
{
  int i = 0;
  while (i + 1 < residencies->n &&
         memcmp(&residencies->items[i].residency, &found->residency, sizeof(found->residency)) != 0)
    i++;
  plan->share = residencies->items[i];
  return layout_plan(plan, error);
}

static int found_plan(struct cluster_planning *planning, const struct lade_layout_found *found,
                      struct cluster_plan *plan)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  struct lade_error *error = &planning->error;
  plan->params = found->layout;
  plan->params.n_kv_heads = planning->model.n_kv_heads;
  plan->micro_batch = found->micro_batch;
  plan->state_tier = found->state_tier;
  plan->job = &planning->jobs[found->moments][found->master];
  int status = residencies ? lade_layout_init(&plan->params, error, &plan->layout)
                      : lade_error_set(error, -ENOMEM, "no memory for the residencies of a layer");
  if (!status)
    status = residencies_make(plan, planning->options->session.recipe, error, residencies);
  if (!status)
    status = residency_plan(plan, found, residencies, error);
  free(residencies);
  return status;
}

struct search_result {
  struct lade_layout_search search;
  struct lade_layout_correction corrections[KINDS_AGAIN]; /* of layouts whose proofs found more than the budget */
  int n_corrections;
  struct cluster_plan *plans;
  int n_plans;
  double seconds, proof_seconds; /* of the search; of building and proving its best layouts */
};

static double seconds_now(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Return the place of the plan with the sizes of @found; n_plans: none has them. */
static int sizes_find(const struct search_result *result, const struct lade_layout_found *found)
{
  int at = 0;
  while (at < result->n_plans && (result->plans[at].params.tp != found->layout.tp ||
                                  result->plans[at].params.pp != found->layout.pp ||
                                  result->plans[at].params.dp != found->layout.dp))
    at++;
  return at;
}

/* Take @plan among the @n_top fastest ones, each of other sizes: @at is the place of the one with its sizes. */
static void plan_take(struct search_result *result, int at, int n_top, const struct cluster_plan *plan)
{
  const bool is_new = at == result->n_plans;
  if (!is_new && result->plans[at].cost.step_ns <= plan->cost.step_ns)
    return;
  result->plans[at] = *plan;
  result->n_plans += is_new;
  qsort(result->plans, (size_t)result->n_plans, sizeof(*result->plans), step_compare);
  result->n_plans = LADE_MIN(result->n_plans, n_top);
}

static bool is_of_kind(const struct lade_layout_params *a, const struct lade_layout_params *b)
{
  return a->tp == b->tp && a->pp == b->pp && a->dp == b->dp && a->schedule == b->schedule;
}

/*
 * Search the kind of found layout @i again, with its estimate corrected by the bytes that its proof found: another
 * residency, tier, ZeRO stage, microbatch or number of chunks may be the fastest one then. It takes the place of @i, or
 * a later one in order of time. -EOVERFLOW, -EINVAL: there is none.
 */
static int kind_search(struct cluster_planning *planning, struct search_result *result, int i, uint64_t proved_bytes)
{
  struct lade_layout_search again, *search = &result->search;
  struct lade_layout_found *found = search->found;
  struct lade_layout_search_params params = search_params(planning);
  struct lade_layout_correction one = {found[i].layout, found[i].micro_batch,
                                       (double)proved_bytes / found[i].fitted_bytes * MORE_ROUNDED, false};
  int n_of_kind = 0;
  for (int c = 0; c < result->n_corrections; c++)
    n_of_kind += is_of_kind(&result->corrections[c].layout, &one.layout);
  one.is_of_kind = n_of_kind >= KIND_ALONE;
  result->corrections[result->n_corrections++] = one;
  params.tp = found[i].layout.tp;
  params.pp = found[i].layout.pp;
  params.dp = found[i].layout.dp / LADE_MAX(planning->job.n_context, 1);
  params.schedule = (int)found[i].layout.schedule;
  params.corrections = result->corrections;
  params.n_corrections = result->n_corrections;
  params.n_most = 1;
  const int status = lade_layout_search_run(&planning->job, &params, NULL, &again);
  if (!status) {
    int at = i;
    for (; at + 1 < search->n_found && found[at + 1].cost.step_ns < again.found[0].cost.step_ns; at++)
      found[at] = found[at + 1];
    found[at] = again.found[0];
  }
  if (!status || status == -EOVERFLOW)
    free(again.found);
  return status == -ENOMEM ? lade_error_set(&planning->error, status, "no memory for the search") : status;
}

/*
 * Prove the found layouts in order of their times. Skip a layout if its time is not below that of the plan with its
 * sizes, or that of the last of the wanted plans. If no layout fits, keep the first one. The kind of a layout whose
 * proof failed is searched again, so that a near one takes its place.
 */
static int found_prove(struct cluster_planning *planning, const struct cluster_plan *empty,
                       struct search_result *result)
{
  const int n_top = (int)planning->options->n_top;
  int status = 0;
  bool has_misfit = false;
  for (int i = 0; i < result->search.n_found && !status; i++) {
    const struct lade_layout_found *found = &result->search.found[i];
    struct cluster_plan plan = *empty;
    const int at = sizes_find(result, found);
    if (result->n_plans == n_top && found->cost.step_ns >= result->plans[n_top - 1].cost.step_ns)
      break;
    if (at < result->n_plans && found->cost.step_ns >= result->plans[at].cost.step_ns)
      continue;
    status = found_plan(planning, found, &plan);
    if (!status && plan.fits)
      plan_take(result, at, n_top, &plan);
    else if (!status && !result->n_plans && !has_misfit) {
      result->plans[0] = plan;
      has_misfit = true;
    }
    if (status || plan.peak_bytes <= plan.budget_bytes || !plan.is_proved ||
        result->n_corrections == KINDS_AGAIN)
      continue;
    status = kind_search(planning, result, i, plan.peak_bytes);
    i -= !status; /* another layout is in its place */
    status = status == -EOVERFLOW || status == -EINVAL ? 0 : status;
  }
  return status;
}

static int search_tell(struct cluster_planning *planning, const struct search_result *result)
{
  const struct options *options = planning->options;
  const int n = LADE_MAX(result->n_plans, 1);
  if (options->export_format) {
    cluster_export(&result->plans[0], stdout);
  } else if (options->is_json) {
    json_t *layouts = json_array();
    for (int i = 0; i < n; i++)
      json_array_append_new(layouts, cluster_layout_json(&result->plans[i]));
    if (json_print(json_pack("{s:i, s:I, s:f, s:f, s:o}", "schema_version", REPORT_SCHEMA_VERSION, "evaluated",
                             (json_int_t)result->search.n_evaluated, "seconds", result->seconds, "proof_seconds",
                             result->proof_seconds, "layouts", layouts)))
      return exit_fail("plan", -ENOMEM, NULL);
  } else {
    printf("%lld layouts of %lld ranks of %s in %.2f s; the fastest of each (tp, pp, dp),\n",
           (long long)result->search.n_evaluated, (long long)options->n_ranks, planning->cluster.name, result->seconds);
    if (result->plans[0].is_proved)
      printf("built, proved and executed dry in %.2f s:\n", result->proof_seconds);
    else
      printf("with context and expert parallel ranks by formula, not proved:\n");
    for (int i = 0; i < n; i++)
      cluster_layout_print(&result->plans[i], stdout);
    residency_print(&result->plans[0], stdout);
    if (options->has_explain)
      cluster_explain(&result->plans[0], stdout);
  }
  if (result->n_plans)
    return LADE_EXIT_DONE;
  if (!planning->error.code)
    return refusal_tell(planning, &result->plans[0]);
  fflush(stdout);
  return exit_fail("plan", -EOVERFLOW, &planning->error);
}

static int search_plan(struct cluster_planning *planning, const struct cluster_plan *empty)
{
  const struct lade_layout_search_params params = search_params(planning);
  struct search_result result = {.plans = calloc((size_t)planning->options->n_top + 1, sizeof(*result.plans))};
  const double begin = seconds_now();
  jobs_fill(planning);
  int status = ranks_check(planning, params.n_ranks);
  if (!status)
    status = result.plans ? 0 : lade_error_set(&planning->error, -ENOMEM, "no memory for the layouts");
  if (!status)
    status = lade_layout_search_run(&planning->job, &params, &planning->error, &result.search);
  const bool has_found = !status || status == -EOVERFLOW;
  result.seconds = seconds_now() - begin;
  if (has_found)
    status = found_prove(planning, empty, &result);
  result.proof_seconds = seconds_now() - begin - result.seconds;
  const int code = status ? exit_fail("plan", status, &planning->error) : search_tell(planning, &result);
  if (has_found)
    free(result.search.found);
  free(result.plans);
  return code;
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
                              .host_budget_bytes = host_budget(&planning.cluster), .n_context = (int)n_context,
                              .batch = planning.job.batch / n_context, .seq_len = planning.job.seq_len * n_context};
  if (options->has_search)
    return search_plan(&planning, &plan);
  status = given_plan(&planning, &plan);
  return status ? exit_fail("plan", status, &planning.error) : given_tell(&planning, &plan);
}
