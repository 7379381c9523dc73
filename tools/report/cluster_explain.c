/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes sentences about a layout on a cluster, from the numbers of its plan and from published formulas.
 *
 * Tensor parallelism in more dimensions is priced by the bytes that a rank sends for the three products of a matrix
 * (forward, dX, dW). X is N by d, W is d by 4d, Y is N by 4d.
 *
 *   2D    a grid of q by q ranks: 3 (q - 1) (X + W) / q^2 (SUMMA: van de Geijn, Watts 1997; Xu et al. 2021)
 *   2.5D  e grids of k by k ranks: 3 (k - 1) (X / e + W) / k^2 (Solomonik, Demmel 2011)
 *   3D    a cube of l^3 ranks: 3 (l - 1) (X + W + Y) / l^3 (Agarwal et al. 1995)
 *   1D    t ranks, Megatron's: 4 (t - 1) / t X for two products of a layer, forward and backward
 */
#include <math.h>

#include "base/base.h"
#include "tools/report/cluster_report.h"
#include "tools/report/report.h"

#define GB 1e9

static const char *choice_name(const struct option_choice *choice, int value)
{
  while (choice->text && choice->value != value)
    choice++;
  return choice->text ? choice->text : "?";
}

const char *recipe_name(enum lade_recipe recipe)
{
  return choice_name(recompute_choices, recipe);
}

const char *moments_name(enum lade_moments moments)
{
  return choice_name(moments_choices, moments);
}

const char *master_name(enum lade_master master)
{
  return choice_name(master_choices, master);
}

const char *software_name(enum lade_software software)
{
  return choice_name(software_choices, software);
}

const char *software_title(enum lade_software software)
{
  static const char *const titles[LADE_N_SOFTWARE] = {
      [LADE_SOFTWARE_AUTO] = "Lade", [LADE_SOFTWARE_LADE] = "Lade", [LADE_SOFTWARE_MEGATRON] = "Megatron-LM",
      [LADE_SOFTWARE_DEEPSPEED] = "DeepSpeed", [LADE_SOFTWARE_FSDP] = "FSDP"};
  return titles[software];
}

void cluster_values_name(const struct cluster_plan *plan, int policy, size_t text_bytes, char *ret_text)
{
  const struct lade_share_key key = {lade_layout_size(&plan->layout, LADE_AXIS_TP), plan->layout.is_sequence,
                                     plan->micro_batch, LADE_RECIPE_AUTO};
  if (lade_layer_residency_names(plan->job, &key, &plan->share.residency, policy, text_bytes, ret_text))
    snprintf(ret_text, text_bytes, "?");
}

int64_t cluster_n_params(const struct cluster_plan *plan)
{
  return plan->job->experts ? lade_experts_n_params(plan->job->experts) : lade_model_n_params(plan->job->model);
}

/* Return the billion parameters of experts, all of them. */
static double expert_params(const struct cluster_plan *plan)
{
  const struct lade_experts *experts = plan->job->experts;
  return experts ? 3.0 * (double)(experts->layers * experts->width * experts->expert_hidden * experts->n_experts) / GB
                 : 0;
}

/* Return the GB of a rank's state at @weight, @state and @grad bytes a parameter (lade_zero_state_bytes). */
static double state_rank_gb(const struct cluster_plan *plan, double weight, double state, double grad)
{
  const struct lade_layout *layout = &plan->layout;
  const int shard = layout->zero ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1;
  const int n_expert_ranks = LADE_MAX(plan->job->n_expert_ranks, 1), expert_shard = LADE_MAX(shard / n_expert_ranks, 1);
  const double parts = (double)lade_layout_size(layout, LADE_AXIS_TP) * lade_layout_size(layout, LADE_AXIS_PP);
  const double experts = expert_params(plan), others = (double)cluster_n_params(plan) / GB - experts;
  return (others * lade_zero_state_bytes(layout->zero, shard, weight, state, grad) +
          experts / n_expert_ranks * lade_zero_state_bytes(layout->zero, expert_shard, weight, state, grad)) / parts;
}

static void state_explain(const struct cluster_plan *plan, FILE *file)
{
  const double n = (double)cluster_n_params(plan) / GB;
  const double parts = (double)lade_layout_size(&plan->layout, LADE_AXIS_TP) *
                       lade_layout_size(&plan->layout, LADE_AXIS_PP);
  fprintf(file, "\nState. %.4g billion parameters take %.4g GB at the 16 bytes each that ZeRO counts (and Lade, whose "
          "master weights share bits with the working copy), %.4g GB at Megatron's 18 and %.4g GB at the 20 of "
          "SageMaker's guide. Over %g rank%s of a replica%s%s that is %.4g, %.4g and %.4g GB a rank.\n", n, 16 * n,
          18 * n, 20 * n, parts, parts > 1 ? "s" : "", plan->job->experts ? ", expert parallel ranks" : "",
          plan->layout.zero ? " and the ZeRO stage's shards" : "", state_rank_gb(plan, 2, 12, 4),
          state_rank_gb(plan, 2, 14, 4), state_rank_gb(plan, 2, 16, 4));
}

static void activations_explain(const struct cluster_plan *plan, FILE *file)
{
  const struct lade_model *model = plan->job->model;
  const int tp = lade_layout_size(&plan->layout, LADE_AXIS_TP), pp = lade_layout_size(&plan->layout, LADE_AXIS_PP);
  const double formula = lade_korthikanti_layer_bytes(model, plan->micro_batch, plan->job->seq_len, tp,
                                                      plan->layout.is_sequence, plan->share.residency.recipe);
  const double layers = lade_korthikanti_in_flight(model->layers, pp, plan->layout.virtual_stages);
  fprintf(file, "Activations. A layer keeps %.4g MB of a microbatch with recompute %s; Korthikanti's formula says "
          "%.4g MB "
          "(it counts dropout masks, and attention that is not fused). A first stage holds %.4g layers' worth: %.4g "
          "GB by the formula; ", plan->share.layer.saved_bytes / 1e6, recipe_name(plan->share.residency.recipe),
          formula / 1e6, layers, layers * formula / GB);
  if (plan->is_proved)
    fprintf(file, "the proved program has %.4g GB of saved activations.\n",
            (double)plan->stages[0].owner_bytes[LADE_OWNER_SAVED] / GB);
  else
    fprintf(file, "the estimate is %.4g GB, not proved.\n", layers * plan->share.layer.saved_bytes / GB);
}

/* Explain the places of a layer's values, if the solver chose them, and of the optimizer state. */
static void residency_explain(const struct cluster_plan *plan, FILE *file)
{
  const struct lade_unit_cost *layer = &plan->share.layer;
  const struct lade_machine *device = &plan->job->cluster->device;
  if (plan->share.residency.recipe == LADE_RECIPE_AUTO)
    fprintf(file, "Residency. The solver keeps %.4g MB of each layer on the device, and %.3g %% of the step's flops "
            "run again. Of all ways to free a byte it takes the one that costs least time.\n",
            layer->saved_bytes / 1e6, 100 * (plan->cost.hardware_flops / plan->cost.model_flops - 1));
  if (layer->host_bytes > 0)
    fprintf(file, "Host. %.4g MB of a layer go to the host beside its forward half of %.3g ms, for which the link "
            "needs %.3g ms, and come back beside the backward half of %.3g ms.\n", layer->host_bytes / 1e6,
            layer->forward_ns / 1e6, layer->host_bytes / (double)device->to_host.bytes_per_s * 1e3,
            layer->backward_ns / 1e6);
  if (plan->state_tier == LADE_TIER_HOST)
    fprintf(file, "AdamW's state is on the host: its processor updates it in %.3g s of the step, which frees %.4g GB "
            "of a rank's device memory.\n", plan->cost.update_ns / 1e9,
            state_rank_gb(plan, 2, 12, 4) - state_rank_gb(plan, 2, 2, 4));
  if (plan->state_tier == LADE_TIER_STORE)
    fprintf(file, "AdamW's state is on the node's drives, of which a rank has %.3g GB/s to read and %.3g to write, "
            "those of data sheets in presets. Its update takes %.3g s of the step.\n",
            device->store.read_bytes_per_s / 1e9, device->store.write_bytes_per_s / 1e9, plan->cost.update_ns / 1e9);
}

/* Explain expert parallel ranks, whose numbers are formulas (experts_cost.c). */
static void experts_explain(const struct cluster_plan *plan, FILE *file)
{
  const struct lade_experts *experts = plan->job->experts;
  struct lade_transfer_price price;
  if (!experts)
    return;
  const int tp = lade_layout_size(&plan->layout, LADE_AXIS_TP), ranks = plan->job->n_expert_ranks;
  const double rows = (double)(plan->micro_batch * plan->job->seq_len * experts->n_active) * plan->job->expert_capacity;
  const double bytes = rows * (double)experts->width * (double)lade_dtype_bytes(plan->job->dtype) /
                       (plan->layout.is_sequence ? tp : 1);
  lade_cluster_exchange_price(plan->job->cluster, ranks, tp, &price);
  fprintf(file, "Experts. %d of the replicas hold %lld of a layer's %lld experts each. A rank's %.0f rows go to their "
          "experts and back: four all-to-alls of %.4g MB for each layer and microbatch, of %.3g ms each, and no kernel "
          "runs beside them. Of %.4g billion parameters a token passes %.4g billion. All of this is by formula for a "
          "balanced load, not proved.\n", ranks, (long long)(experts->n_experts / ranks), (long long)experts->n_experts,
          rows, bytes / 1e6, ((double)price.latency_ns + bytes * price.ns_per_byte) / 1e6,
          (double)lade_experts_n_params(experts) / GB, (double)lade_experts_n_active_params(experts) / GB);
}

/* Explain context parallel ranks, whose numbers are formulas (context_cost.c). */
static void context_explain(const struct cluster_plan *plan, FILE *file)
{
  const struct lade_model *model = plan->job->model;
  const int tp = lade_layout_size(&plan->layout, LADE_AXIS_TP), n = plan->n_context;
  const double kv_heads = LADE_MAX((double)model->n_kv_heads / tp, 1);
  const double block = 2 * (double)plan->micro_batch * (double)plan->job->seq_len * kv_heads *
                       (double)lade_model_head_dim(model) * (double)lade_dtype_bytes(plan->job->dtype);
  if (n == 1)
    return;
  fprintf(file, "Context parallel. Each of %d ranks holds %lld of a sequence's %lld tokens, in two pieces that balance "
          "causal attention. %d parts of %.4g MB of keys and values are gathered before each layer's attention, and "
          "again before its backward half, which sums their gradients. All of this is by formula, not proved.\n", n,
          (long long)plan->job->seq_len, (long long)plan->seq_len, n, block / 1e6);
}

/* Print the bytes that more dimensions would send, for the smallest grids of at least as many ranks. */
static void dimensions_explain(const struct cluster_plan *plan, int tp, FILE *file)
{
  const double d = (double)plan->job->model->width, rows = (double)(plan->micro_batch * plan->job->seq_len);
  const double X = 2 * rows * d, W = 8 * d * d, Y = 4 * X, q = ceil(sqrt(tp)), k = ceil(sqrt(tp / 2.0)), l =
      ceil(cbrt(tp));
  fprintf(file, "For one pair of a layer's products a rank sends %.4g MB in one dimension of %d; by formula %.4g MB "
          "in 2D (%g by %g), %.4g MB in 2.5D (2 by %g by %g), %.4g MB in 3D (%g cubed); none of these is built.\n",
          4.0 * (tp - 1) / tp * X / 1e6, tp, 2 * 3 * (q - 1) * (X + W) / (q * q) / 1e6, q, q,
          2 * 3 * (k - 1) * (X / 2 + W) / (k * k) / 1e6, k, k, 2 * 3 * (l - 1) * (X + W + Y) / (l * l * l) / 1e6, l);
}

static void tensor_explain(const struct cluster_plan *plan, FILE *file)
{
  const struct lade_cluster *cluster = plan->job->cluster;
  const int tp = lade_layout_size(&plan->layout, LADE_AXIS_TP), inner = (int)cluster->levels[0].n_devices;
  const double bytes = 2 * (double)(plan->micro_batch * plan->job->seq_len * plan->job->model->width);
  struct lade_transfer_price gather, sum[2];
  lade_cluster_group_price(cluster, LADE_MAX(inner, 2), 1, &gather, &sum[0]);
  lade_cluster_group_price(cluster, 2 * inner, 1, &gather, &sum[1]);
  double ms[2];
  for (int i = 0; i < 2; i++)
    ms[i] = lade_transfer_ns(&sum[i], 1, 2 * bytes) / 1e6;
  fprintf(file, "Tensor parallel. A layer makes four sums of %.4g MB for each microbatch. One takes %.3g ms over "
          "the %d devices of %s", bytes / 1e6, ms[0], inner, cluster->levels[0].name);
  if (cluster->n_levels > 1)
    fprintf(file, " and %.3g ms over twice as many, across %s: so tensor parallel ranks stay inside", ms[1],
            cluster->levels[1].name);
  fprintf(file, ". With tp %d, kernels wait %.3g ms of a layer's %.3g ms for them.\n", tp,
          plan->share.layer.exposed_ns / 1e6, (plan->share.layer.forward_ns + plan->share.layer.backward_ns) / 1e6);
  if (tp >= 4)
    dimensions_explain(plan, tp, file);
}

/* Name the numbers of the cluster without a source. */
static void assumed_explain(const struct cluster_plan *plan, FILE *file)
{
  const struct lade_cluster *cluster = plan->job->cluster;
  if (cluster->assumed)
    fprintf(file, "Sources. Of the preset's numbers these are assumed, unless the file states them: %s. lade bench "
            "links measures links.\n", cluster->assumed);
}

static void pipeline_explain(const struct cluster_plan *plan, FILE *file)
{
  const int p = lade_layout_size(&plan->layout, LADE_AXIS_PP), dp = lade_layout_size(&plan->layout, LADE_AXIS_DP);
  const double m = (double)plan->job->batch / dp / (double)plan->micro_batch;
  if (p == 1) {
    fprintf(file, "Pipeline. One stage has no bubble.\n");
    return;
  }
  fprintf(file, "Pipeline. %d stages under %s take %g microbatches of a replica; the fullest stage idles %.3g %% of "
          "the step, and %.3g %% of the time from a stage's first half to its last (Qi et al.). 1F1B idles "
          "(p - 1) / m = %.3g of its work, %d chunks a stage divide that by %d. A larger batch, smaller microbatches "
          "or fewer stages make it smaller.\n", p, lade_schedule_name(plan->layout.schedule), m,
          100 * plan->cost.bubble, 100 * plan->cost.stage_bubble, (p - 1) / m, plan->layout.virtual_stages,
          plan->layout.virtual_stages);
}

static void data_explain(const struct cluster_plan *plan, FILE *file)
{
  const int dp = lade_layout_size(&plan->layout, LADE_AXIS_DP);
  const double parts = (double)lade_layout_size(&plan->layout, LADE_AXIS_TP) *
                       lade_layout_size(&plan->layout, LADE_AXIS_PP);
  const double experts = expert_params(plan), others = (double)cluster_n_params(plan) / GB - experts;
  const double per_rank = (others + experts / LADE_MAX(plan->job->n_expert_ranks, 1)) / parts;
  if (dp == 1) {
    fprintf(file, "Data parallel. One replica sends no gradients.\n");
    return;
  }
  fprintf(file, "Data parallel. %d replicas%s sum %.3g GB of gradients a rank; %.3g s of the step's %.3g s are not "
          "hidden behind the backward half.\n", dp,
          plan->n_context > 1 ? ", context parallel ranks counted," : "",
          per_rank * (double)lade_dtype_bytes(plan->layout.grad_reduce), plan->cost.grad_ns / 1e9,
          plan->cost.step_ns / 1e9);
}

static void batch_explain(const struct cluster_plan *plan, FILE *file)
{
  const double tokens = (double)plan->job->batch * (double)plan->job->seq_len, noise =
      plan->options->noise_scale_tokens;
  if (noise <= 0) {
    fprintf(file, "Batch. A step has %.4g tokens; --noise-scale says how many are worth taking at once.\n", tokens);
    return;
  }
  fprintf(file, "Batch. A step has %.4g tokens. At a noise scale of %.4g (McCandlish et al. 2018) reaching a loss "
          "takes %.3g times the least tokens and %.3g times the least steps.\n", tokens, noise, 1 + tokens / noise,
          1 + noise / tokens);
}

static void bound_explain(const struct cluster_plan *plan, FILE *file)
{
  const double step = plan->cost.step_ns, ranks = plan->layout.mesh.world;
  const double ideal = plan->cost.hardware_flops / ranks / plan->job->cluster->peak_flops_per_s * 1e9 / step;
  const double parts[] = {plan->cost.bubble, plan->cost.exposed, plan->cost.update_ns / step, ideal};
  static const char *const names[] = {"the pipeline's bubble", "communication", "the update", "arithmetic"};
  size_t max = 0;
  for (size_t i = 1; i < LADE_COUNT(parts); i++)
    max = parts[i] > parts[max] ? i : max;
  fprintf(file, "Bound. Of the step, %.3g %% would do at the data sheet's rate, %.3g %% idles in the bubble, %.3g "
          "%% waits "
          "for communication, %.3g %% updates; the rest is kernels below the data sheet's rate. %s is the largest "
          "part; memory is %.3g %% full.\n", 100 * ideal, 100 * parts[0], 100 * parts[1], 100 * parts[2], names[max],
          100 * (double)plan->peak_bytes / (double)plan->budget_bytes);
}

void cluster_explain(const struct cluster_plan *plan, FILE *file)
{
  state_explain(plan, file);
  activations_explain(plan, file);
  residency_explain(plan, file);
  tensor_explain(plan, file);
  context_explain(plan, file);
  experts_explain(plan, file);
  pipeline_explain(plan, file);
  data_explain(plan, file);
  batch_explain(plan, file);
  bound_explain(plan, file);
  assumed_explain(plan, file);
}
