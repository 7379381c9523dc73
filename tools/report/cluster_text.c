/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout on a cluster as lines of text: its figures, its residency, and the whole report of a given one.
 */
#include "base/base.h"
#include "tools/report/cluster_report.h"
#include "tools/report/report.h"

const char *tier_name(enum lade_tier tier)
{
  static const char *const names[] = {[LADE_TIER_DEVICE] = "device", [LADE_TIER_HOST] = "host",
                                      [LADE_TIER_STORE] = "store"};
  return names[tier];
}

void cluster_layout_print(const struct cluster_plan *plan, FILE *file)
{
  static const char *const away[] = {[LADE_TIER_DEVICE] = "", [LADE_TIER_HOST] = ", state on the host",
                                     [LADE_TIER_STORE] = ", state on drives"};
  char name[LADE_LAYOUT_NAME_BYTES], peak[32], step[32];
  const double step_s = plan->cost.step_ns / 1e9, ranks = plan->layout.mesh.world;
  lade_layout_name(&plan->layout, name);
  if (plan->n_context > 1)
    fprintf(file, "of dp, cp %d; ", plan->n_context);
  if (plan->job->experts)
    fprintf(file, "of dp, ep %d; ", plan->job->n_expert_ranks);
  fprintf(file, "%s, micro-batch %lld, recompute %s%s%s\n", name, (long long)plan->micro_batch,
          recipe_name(plan->share.residency.recipe),
          away[plan->state_tier], plan->fits ? "" : ", does not fit");
  if (plan->options->is_any_precision)
    fprintf(file, "  moments %s, masters %s\n", moments_name(plan->job->moments), master_name(plan->job->master));
  fprintf(file, "  %9s %10s %6.1f TFLOP/s %5.1f %%\n", seconds_format(step_s, step, sizeof(step)),
          lade_size_format(plan->peak_bytes, peak, sizeof(peak)), plan->cost.model_flops / step_s / ranks / 1e12,
          100 * plan->cost.model_flops / step_s / ranks / plan->job->cluster->peak_flops_per_s);
}

void cluster_residency_print(const struct cluster_plan *plan, FILE *file)
{
  char names[CLUSTER_NAMES_BYTES], size[32];
  if (plan->share.residency.recipe == LADE_RECIPE_AUTO) {
    cluster_values_name(plan, LADE_RESIDENCY_RECOMPUTE, sizeof(names), names);
    fprintf(file, "recomputed    of each layer: %s\n", names[0] ? names : "nothing");
    cluster_values_name(plan, LADE_RESIDENCY_HOST, sizeof(names), names);
    fprintf(file, "on the host   of each layer: %s\n", names[0] ? names : "nothing");
    cluster_values_name(plan, LADE_RESIDENCY_STORE, sizeof(names), names);
    if (names[0])
      fprintf(file, "on drives     of each layer: %s\n", names);
  }
  const bool is_stored = plan->state_tier == LADE_TIER_STORE, has_stored = plan->share.layer.store_bytes > 0;
  if (plan->state_tier != LADE_TIER_DEVICE || plan->share.layer.host_bytes > 0 || has_stored)
    fprintf(file, "host memory   %s of a rank%s\n", lade_size_format(plan->host_bytes, size, sizeof(size)),
            plan->state_tier == LADE_TIER_HOST ? ", the optimizer state in it" : "");
  if (is_stored || has_stored)
    fprintf(file, "drives        %s of a rank: %s%s%s\n", lade_size_format(plan->store_bytes, size, sizeof(size)),
            has_stored ? "values" : "", has_stored && is_stored ? ", " : "",
            is_stored ? "optimizer state, and gradients for it" : "");
}

void cluster_given_print(const struct cluster_plan *plan, FILE *file)
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
    fprintf(file, "memory        %s of %s, rank %d; %d stage%s built as programs, proved and executed dry\n", text,
            more, plan->ranks[plan->fullest], plan->n_stages_proved, plan->n_stages_proved > 1 ? "s" : "");
  else
    fprintf(file, "memory        %s of %s, not proved: a formula for context and expert parallel ranks\n", text, more);
  if (plan->share.software != LADE_SOFTWARE_LADE)
    fprintf(file, "software      the step is priced as %s runs it; --software lade prices Lade's program\n",
            software_title(plan->share.software));
  if (plan->layout.is_sequence && lade_software_overlaps_tensor(plan->job, plan->share.software))
    fprintf(file, "overlap       collectives beside products are a price: no program of Lade has them\n");
  if (plan->layout.zero == LADE_ZERO_MAX && lade_software_gathers_late(plan->job, plan->share.software))
    fprintf(file, "gathers       late ones are a price: no program of Lade has them\n");
  cluster_residency_print(plan, file);
  if (plan->options->n_train_tokens > 0) {
    const double tokens = (double)plan->batch * (double)plan->seq_len;
    const double days = plan->options->n_train_tokens / tokens * step_s / 86400;
    fprintf(file, "training      %.3g tokens in %.1f days, %.3g device-hours\n", plan->options->n_train_tokens, days,
            days * 24 * plan->layout.mesh.world);
  }
}
