/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout on a cluster as JSON: one of a search, or a given one, with the fields that docs/cluster.md and the man page
 * promise to scripts. Figures are those of the plan; without a proof the fields of proved stages are left out.
 */
#include <jansson.h>
#include <string.h>

#include "base/base.h"
#include "program/residency.h"
#include "tools/report/cluster_report.h"
#include "tools/report/report.h"

static void rates_set(json_t *object, const struct cluster_plan *plan)
{
  const struct lade_layout_cost *cost = &plan->cost;
  const double step_s = cost->step_ns / 1e9, ranks = plan->layout.mesh.world;
  const double tokens = (double)plan->batch * (double)plan->seq_len;
  const double peak = plan->job->cluster->peak_flops_per_s;
  json_object_set_new(object, "tokens_per_second", json_number(tokens / step_s));
  json_object_set_new(object, "model_tflops_per_rank", json_number(cost->model_flops / step_s / ranks / 1e12));
  json_object_set_new(object, "hardware_tflops_per_rank", json_number(cost->hardware_flops / step_s / ranks / 1e12));
  json_object_set_new(object, "mfu", json_number(cost->model_flops / step_s / ranks / peak));
  json_object_set_new(object, "hfu", json_number(cost->hardware_flops / step_s / ranks / peak));
  json_object_set_new(object, "bubble", json_number(cost->bubble));
  json_object_set_new(object, "exposed_communication", json_number(cost->exposed));
  json_object_set_new(object, "error_share", json_number(plan->job->cluster->error_share));
  if (plan->options->n_train_tokens > 0) {
    const double seconds = plan->options->n_train_tokens / tokens * step_s;
    json_object_set_new(object, "days", json_number(seconds / 86400));
    json_object_set_new(object, "device_hours", json_number(seconds / 3600 * ranks));
  }
}

/* Set @field to the names of a layer's values with @policy. */
static void values_set(json_t *object, const struct cluster_plan *plan, const char *field, int policy)
{
  char names[CLUSTER_NAMES_BYTES];
  json_t *array = json_array();
  cluster_values_name(plan, policy, sizeof(names), names);
  for (char *rest = NULL, *name = strtok_r(names, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest))
    json_array_append_new(array, json_string(name));
  json_object_set_new(object, field, array);
}

static void sizes_set(json_t *object, const struct cluster_plan *plan)
{
  const struct lade_layout *layout = &plan->layout;
  static const struct {
    const char *name;
    enum lade_axis axis;
  } axes[] = {{"tp", LADE_AXIS_TP}, {"pp", LADE_AXIS_PP}, {"dp", LADE_AXIS_DP}};
  for (size_t i = 0; i < LADE_COUNT(axes); i++)
    json_object_set_new(object, axes[i].name, json_integer(lade_layout_size(layout, axes[i].axis) /
                                                           (axes[i].axis == LADE_AXIS_DP ? plan->n_context : 1)));
  json_object_set_new(object, "cp", json_integer(plan->n_context));
  if (plan->job->experts)
    json_object_set_new(object, "ep", json_integer(plan->job->n_expert_ranks));
  json_object_set_new(object, "zero", json_integer(layout->zero));
  json_object_set_new(object, "shard", json_integer(layout->zero ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1));
  json_object_set_new(object, "schedule", json_string(lade_schedule_name(layout->schedule)));
  json_object_set_new(object, "virtual_stages", json_integer(layout->virtual_stages));
  json_object_set_new(object, "micro_batch", json_integer((json_int_t)plan->micro_batch));
  json_object_set_new(object, "sequence_parallel", json_boolean(layout->is_sequence));
  json_object_set_new(object, "software", json_string(software_name(plan->share.software)));
  json_object_set_new(object, "overlap_tensor",
                      json_boolean(layout->is_sequence &&
                                   lade_software_overlaps_tensor(plan->job, plan->share.software)));
  json_object_set_new(object, "eager", json_boolean(lade_software_is_eager(plan->job, plan->share.software)));
  json_object_set_new(object, "late_gathers", json_boolean(layout->zero == LADE_ZERO_MAX &&
                                   lade_software_gathers_late(plan->job, plan->share.software)));
  json_object_set_new(object, "scattered_sends",
                      json_boolean(lade_layout_sends_scattered(plan->job, layout, plan->micro_batch)));
  json_object_set_new(object, "recompute", json_string(recipe_name(plan->share.residency.recipe)));
  json_object_set_new(object, "optimizer", json_string(tier_name(plan->state_tier)));
  json_object_set_new(object, "moments", json_string(moments_name(plan->job->moments)));
  json_object_set_new(object, "master", json_string(master_name(plan->job->master)));
  if (plan->share.residency.recipe == LADE_RECIPE_AUTO) {
    values_set(object, plan, "recomputed_values", LADE_RESIDENCY_RECOMPUTE);
    values_set(object, plan, "offloaded_values", LADE_RESIDENCY_HOST);
    values_set(object, plan, "stored_values", LADE_RESIDENCY_STORE);
  }
}

static json_t *ledger_json(const struct lade_stage_program *stage)
{
  json_t *ledger = json_object();
  for (int owner = 0; owner < LADE_N_OWNERS; owner++)
    json_object_set_new(ledger, lade_owner_name((enum lade_owner)owner), json_bytes(stage->owner_bytes[owner]));
  json_object_set_new(ledger, "total", json_bytes(stage->peak_bytes));
  return ledger;
}

/* Return the proved stages. */
static json_t *stages_json(const struct cluster_plan *plan)
{
  const int n_alike = plan->layout.mesh.world / lade_layout_size(&plan->layout, LADE_AXIS_PP);
  json_t *stages = json_array();
  for (int i = 0; i < plan->n_stages_proved; i++)
    json_array_append_new(stages, json_pack("{s:i, s:i, s:b, s:i, s:i, s:o, s:o, s:f}", "rank", plan->ranks[i],
                                            "ranks_alike", n_alike, "fits",
                                            plan->stages[i].peak_bytes <= plan->budget_bytes, "instructions",
                                            plan->stages[i].n_instrs, "microbatches", plan->stages[i].n_microbatches,
                                            "ledger", ledger_json(&plan->stages[i]), "dry_peak_bytes",
                                            json_bytes(plan->dry[i].peak_bytes), "dry_seconds",
                                            (double)plan->dry[i].step_ns / 1e9));
  return stages;
}

json_t *cluster_layout_json(const struct cluster_plan *plan)
{
  json_t *object = json_object();
  sizes_set(object, plan);
  json_object_set_new(object, "fits", json_boolean(plan->fits));
  json_object_set_new(object, "proved", json_boolean(plan->is_proved));
  json_object_set_new(object, "executed_dry", json_boolean(plan->is_proved));
  json_object_set_new(object, "peak_bytes", json_bytes(plan->peak_bytes));
  json_object_set_new(object, "host_bytes", json_bytes(plan->host_bytes));
  json_object_set_new(object, "store_bytes", json_bytes(plan->store_bytes));
  json_object_set_new(object, "step_seconds", json_number(plan->cost.step_ns / 1e9));
  rates_set(object, plan);
  return object;
}

json_t *cluster_given_json(const struct cluster_plan *plan)
{
  const struct lade_layout_cost *cost = &plan->cost;
  const struct lade_layout_job *job = plan->job;
  json_t *object = json_pack("{s:i, s:s, s:I, s:I, s:I, s:s, s:i}", "schema_version", REPORT_SCHEMA_VERSION, "model",
                             job->model->name, "parameters", (json_int_t)cluster_n_params(plan), "batch",
                             (json_int_t)plan->batch, "seq", (json_int_t)plan->seq_len, "cluster", job->cluster->name,
                             "ranks", plan->layout.mesh.world);
  char name[LADE_LAYOUT_NAME_BYTES];
  if (!object)
    return NULL;
  json_object_set_new(object, "assumed", job->cluster->assumed ? json_string(job->cluster->assumed) : json_null());
  sizes_set(object, plan);
  json_object_set_new(object, "layout", json_string(lade_layout_name(&plan->layout, name)));
  json_object_set_new(object, "fits", json_boolean(plan->fits));
  json_object_set_new(object, "proved", json_boolean(plan->is_proved));
  json_object_set_new(object, "executed_dry", json_boolean(plan->is_proved));
  json_object_set_new(object, "budget_bytes", json_bytes(plan->budget_bytes));
  json_object_set_new(object, "host_budget_bytes", json_bytes(plan->host_budget_bytes));
  json_object_set_new(object, "store_budget_bytes", json_bytes(plan->store_budget_bytes));
  json_object_set_new(object, "planned_peak_bytes", json_bytes(plan->peak_bytes));
  json_object_set_new(object, "host_bytes", json_bytes(plan->host_bytes));
  json_object_set_new(object, "store_bytes", json_bytes(plan->store_bytes));
  if (plan->is_proved) {
    json_object_set_new(object, "peak_rank", json_integer(plan->ranks[plan->fullest]));
    json_object_set_new(object, "ledger", json_pack("{s:o}", "device", ledger_json(&plan->stages[plan->fullest])));
    json_object_set_new(object, "by_stage", stages_json(plan));
  }
  json_object_set_new(object, "step_seconds", json_number(cost->step_ns / 1e9));
  json_object_set_new(object, "predicted_step_seconds", json_number(cost->step_ns / 1e9));
  json_object_set_new(object, "all_ranks_step_seconds", json_number(cost->step_ns / 1e9));
  json_object_set_new(object, "exposed_gradient_seconds", json_number(cost->grad_ns / 1e9));
  json_object_set_new(object, "update_seconds", json_number(cost->update_ns / 1e9));
  json_object_set_new(object, "skipped_recompute_seconds", json_number(cost->skipped_ns / 1e9));
  rates_set(object, plan);
  return object;
}
