/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One layout on a cluster: its cost, its programs and their proofs.
 */
#include <errno.h>

#include "base/base.h"
#include "tools/cli/verbs.h"
#include "tools/verbs/cluster/cluster_planning.h"

#define HOST_LEFT 16 /* this part of a node's memory is left to its system and its processes */

uint64_t cluster_host_budget(const struct lade_cluster *cluster)
{
  return (cluster->node_host_bytes - cluster->node_host_bytes / HOST_LEFT) / (uint64_t)cluster->n_node_devices;
}

static void fits_set(struct cluster_plan *plan)
{
  plan->fits = plan->peak_bytes <= plan->budget_bytes && plan->host_bytes <= plan->host_budget_bytes &&
               plan->store_bytes <= plan->store_budget_bytes;
}

int cluster_residencies_make(const struct cluster_plan *plan, enum lade_recipe recipe, struct lade_error *error,
                            struct lade_share_residencies *ret_residencies)
{
  const struct lade_share_key key = {lade_layout_size(&plan->layout, LADE_AXIS_TP), plan->layout.is_sequence,
                                     plan->micro_batch, recipe,
                                     lade_software_of(plan->job, plan->layout.zero, recipe)};
  return lade_share_residencies_make(plan->job, &key, error, ret_residencies);
}

int cluster_layout_cost(struct cluster_plan *plan, struct lade_error *error)
{
  const enum lade_recipe recipe = plan->share.residency.recipe;
  const struct lade_layout_cost_params params = {plan->job, &plan->layout, plan->micro_batch, &plan->share};
  int status = lade_layout_cost_make(&params, plan->state_tier, error, &plan->cost);
  const double again = plan->cost.hardware_flops - lade_step_flops(plan->job->model, plan->job->batch,
                                                                   plan->job->seq_len, recipe);
  plan->cost.model_flops = lade_step_flops(plan->job->model, plan->batch, plan->seq_len, LADE_RECIPE_NONE);
  plan->cost.hardware_flops = lade_step_flops(plan->job->model, plan->batch, plan->seq_len, recipe) + again;
  plan->peak_bytes = plan->cost.peak_bytes;
  plan->host_bytes = plan->cost.host_bytes;
  plan->store_bytes = plan->cost.store_bytes;
  fits_set(plan);
  return status;
}

bool cluster_is_provable(const struct cluster_plan *plan)
{
  return plan->n_context <= 1 && !plan->job->experts;
}

/* Return the parameters of the stage of @layout's rank, as the plan has it. */
static struct lade_stage_params stage_params(const struct cluster_plan *plan, const struct lade_layout *layout,
                                             enum lade_stage_aim aim)
{
  return (struct lade_stage_params){
      .job = plan->job, .layout = layout, .micro_batch = plan->micro_batch, .aim = aim,
      .residency = {plan->share.residency, plan->state_tier, plan->budget_bytes}};
}

/* Build and prove @stage's program, and execute it dry. */
static int stage_prove(struct cluster_plan *plan, int stage, struct lade_error *error)
{
  struct lade_layout layout = plan->layout;
  const int at = plan->n_stages_proved;
  layout.rank = lade_mesh_member(&layout.mesh, LADE_AXIS_PP, 0, stage);
  const struct lade_stage_params params = stage_params(plan, &layout, LADE_STAGE_RUN);
  struct lade_stage_build build = {0};
  int status = lade_stage_build_make(&params, error, &build);
  if (!status)
    status = lade_dry_stage_run(plan->job, &build, error, &plan->dry[at]);
  if (!status)
    lade_stage_program_read(build.train, &plan->stages[at]);
  lade_stage_build_finish(&build);
  if (status)
    return status;
  plan->ranks[at] = layout.rank;
  plan->host_bytes = LADE_MAX(plan->host_bytes, plan->stages[at].host_bytes);
  plan->store_bytes = LADE_MAX(plan->store_bytes, plan->stages[at].store_bytes);
  if (plan->stages[at].peak_bytes > plan->peak_bytes) {
    plan->peak_bytes = plan->stages[at].peak_bytes;
    plan->fullest = at;
  }
  plan->n_stages_proved++;
  return 0;
}

/* Build @stage's program, and add it to the measured ones. Clear @ret_may_fit if it takes more than the budgets. */
static int stage_may_fit(struct cluster_plan *plan, int stage, struct lade_error *error, bool *ret_may_fit)
{
  struct lade_layout layout = plan->layout;
  const struct lade_stage_params params = stage_params(plan, &layout, LADE_STAGE_MEASURE);
  struct lade_stage_program program;
  layout.rank = lade_mesh_member(&layout.mesh, LADE_AXIS_PP, 0, stage);
  int status = lade_stage_program_make(&params, error, &program);
  if (status)
    return status;
  plan->n_instrs_measured += program.n_instrs;
  plan->measured_bytes = LADE_MAX(plan->measured_bytes, program.peak_bytes);
  *ret_may_fit = program.peak_bytes <= plan->budget_bytes && program.host_bytes <= plan->host_budget_bytes &&
                 program.store_bytes <= plan->store_budget_bytes;
  return 0;
}

int cluster_plan_prove(struct cluster_plan *plan, struct lade_error *error)
{
  int status = 0;
  plan->peak_bytes = plan->host_bytes = plan->store_bytes = 0;
  plan->n_stages_proved = plan->fullest = 0;
  for (int i = 0; i < plan->cost.n_stages && !status; i++)
    status = stage_prove(plan, plan->cost.stages[i], error);
  plan->is_proved = !status;
  fits_set(plan);
  return status;
}

int cluster_plan_prove_fitting(struct cluster_plan *plan, struct lade_error *error)
{
  bool may_fit = true;
  int status = 0;
  for (int i = 0; i < plan->cost.n_stages && !status && may_fit && cluster_is_provable(plan); i++)
    status = stage_may_fit(plan, plan->cost.stages[i], error, &may_fit);
  if (!may_fit)
    plan->fits = false;
  return status || !may_fit || !cluster_is_provable(plan) ? status : cluster_plan_prove(plan, error);
}

int cluster_layout_plan(struct cluster_plan *plan, struct lade_error *error)
{
  int status = cluster_layout_cost(plan, error);
  return status || !cluster_is_provable(plan) ? status : cluster_plan_prove(plan, error);
}

int cluster_step_compare(const void *a, const void *b)
{
  const double x = ((const struct cluster_plan *)a)->cost.step_ns, y = ((const struct cluster_plan *)b)->cost.step_ns;
  return (x > y) - (x < y);
}

int cluster_ranks_check(struct cluster_planning *planning, int64_t n_ranks)
{
  const int64_t n_devices = planning->cluster.n_nodes * planning->cluster.n_node_devices;
  if (n_ranks <= n_devices)
    return 0;
  return lade_error_set(&planning->error, -EINVAL, "%lld ranks are more than the devices of cluster %.64s: nodes is "
                        "%lld and devices_per_node %lld, %lld together", (long long)n_ranks, planning->cluster.name,
                        (long long)planning->cluster.n_nodes, (long long)planning->cluster.n_node_devices,
                        (long long)n_devices);
}

/* Say which of a node's memory and drives the plan exceeds, if it is within the device's budget. */
static bool away_refuse(struct cluster_planning *planning, const struct cluster_plan *plan, const char *advice)
{
  char need[LADE_SIZE_TEXT], share[LADE_SIZE_TEXT];
  const bool is_host = plan->host_bytes > plan->host_budget_bytes;
  if (plan->peak_bytes > plan->budget_bytes || (!is_host && plan->store_bytes <= plan->store_budget_bytes))
    return false;
  lade_size_exact(is_host ? plan->host_bytes : plan->store_bytes, need);
  lade_size_exact(is_host ? plan->host_budget_bytes : plan->store_budget_bytes, share);
  lade_error_set(&planning->error, -EOVERFLOW, "a rank needs %s of %s, and %s are its share of the node's: %s", need,
                 is_host ? "host memory" : "drives", share, advice);
  return true;
}

int cluster_refusal_tell(struct cluster_planning *planning, const struct cluster_plan *plan, const char *advice)
{
  char peak[LADE_SIZE_TEXT], budget[LADE_SIZE_TEXT];
  const struct lade_stage_program *stage = &plan->stages[plan->fullest];
  int max = 0;
  if (away_refuse(planning, plan, advice)) {
    fflush(stdout);
    return exit_fail("plan", -EOVERFLOW, &planning->error);
  }
  lade_size_exact(plan->peak_bytes, peak);
  lade_size_exact(plan->budget_bytes, budget);
  if (!plan->is_proved) {
    lade_error_set(&planning->error, -EOVERFLOW, "a rank needs about %s of device memory, and %s are usable; a larger "
                   "--cp or --ep, or --recompute full, needs less", peak, budget);
    fflush(stdout);
    return exit_fail("plan", -EOVERFLOW, &planning->error);
  }
  for (int owner = 0; owner < LADE_N_OWNERS; owner++)
    max = stage->owner_bytes[owner] > stage->owner_bytes[max] ? owner : max;
  lade_error_set(&planning->error, -EOVERFLOW, "rank %d needs %s of device memory, and %s are usable; most of it is "
                 "%s: %s", plan->ranks[plan->fullest], peak, budget, lade_owner_name((enum lade_owner)max), advice);
  fflush(stdout);
  return exit_fail("plan", -EOVERFLOW, &planning->error);
}
