/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of experts on expert parallel ranks, by formula: no program has them yet.
 *
 * The cost begins from that of a dense model whose hidden width is that of the experts of one token, shared ones
 * included: its products have the flops of the mixture. e of the replicas share a layer's n experts, n / e each.
 * Tensor parallel ranks cut every expert as they cut a dense MLP. The differences are added here:
 *
 *   products   those of n / e experts, each over its rows of a balanced load of all e ranks, times the capacity
 *   exchange   each token's row goes to its experts and comes back, in both halves: four all-to-alls a layer, and no
 *              kernel runs beside them (GShard: Lepikhin et al. 2020)
 *   memory     rows as the experts receive and return them; full recompute keeps neither
 *   parameters of n / e experts and of the router. Gradients of experts are summed over the replicas / e that hold them
 *
 * Layers without experts are priced as those with them.
 */
#include <errno.h>
#include <stdio.h>

#include "base/base.h"
#include "recompute/layout_cost.h"

int lade_experts_dense_model(const struct lade_experts *experts, struct lade_error *error, struct lade_model *ret_model)
{
  struct lade_model model = {.family = LADE_LLAMA, .layers = experts->layers, .heads = experts->heads,
                             .n_kv_heads = experts->n_kv_heads, .width = experts->width,
                             .hidden = experts->n_active * experts->expert_hidden + experts->shared_hidden,
                             .context = experts->context, .vocabulary = experts->vocabulary,
                             .head_dim = experts->head_dim, .is_tied = experts->is_tied, .norm_eps = 1e-5f,
                             .rope_base = 1e6f};
  snprintf(model.name, sizeof(model.name), "%s", experts->name);
  if (experts->latent.kv_rank)
    return lade_error_set(error, -EINVAL, "%s has latent attention, which has no price on a cluster; without --cluster "
                          "it is planned on one rank", experts->name);
  *ret_model = model;
  return lade_model_check(ret_model, error);
}

/* Return the time of @n products of [m, k] by [k, n_cols]. */
static double product_ns(const struct lade_layout_job *job, double m, double n_cols, double k, double n)
{
  const struct lade_machine *device = &job->cluster->device;
  if (device->kernels.n_sms && lade_dtype_bytes(job->dtype) == 2)
    return lade_cost_product_ns(device, m, n_cols, k, n);
  return 2 * m * n_cols * k * n / device->matmul_flops_per_s[job->dtype] * 1e9;
}

struct mlp_time {
  double forward_ns, inputs_ns, weights_ns;
};

/* Return the times of @n gated MLPs of hidden width @hidden over @rows each. */
static struct mlp_time mlp_time(const struct lade_layout_job *job, double rows, double hidden, double n)
{
  const double width = (double)job->model->width;
  struct mlp_time time = {0};
  if (hidden <= 0)
    return time;
  time.forward_ns = product_ns(job, rows, 2 * hidden, width, n) + product_ns(job, rows, width, hidden, n);
  time.inputs_ns = product_ns(job, rows, width, 2 * hidden, n) + product_ns(job, rows, hidden, width, n);
  time.weights_ns = product_ns(job, 2 * hidden, width, rows, n) + product_ns(job, width, hidden, rows, n);
  return time;
}

void lade_experts_cost_add(const struct lade_layout_job *job, const struct lade_share_key *key,
                           struct lade_share_cost *share)
{
  const struct lade_experts *experts = job->experts;
  struct lade_unit_cost *layer = &share->layer;
  if (!experts)
    return;
  const double tp = key->tp, ranks = job->n_expert_ranks, width = (double)experts->width;
  const double n_local = (double)experts->n_experts / ranks, hidden = (double)experts->expert_hidden / tp;
  const double tokens = (double)key->micro_batch * (double)job->seq_len, shared = (double)experts->shared_hidden / tp;
  const double rows = tokens * (double)experts->n_active * job->expert_capacity, each = rows / n_local;
  const bool is_full = key->recipe == LADE_RECIPE_FULL || share->residency.recipe == LADE_RECIPE_FULL;

  const struct mlp_time dense = mlp_time(job, tokens, (double)experts->n_active * hidden + shared, 1);
  const struct mlp_time grouped = mlp_time(job, each, hidden, n_local), alone = mlp_time(job, tokens, shared, 1);
  const double forward_ns = grouped.forward_ns + alone.forward_ns - dense.forward_ns;
  const double weights_ns = grouped.weights_ns + alone.weights_ns - dense.weights_ns;
  const double inputs_ns = grouped.inputs_ns + alone.inputs_ns - dense.inputs_ns;

  struct lade_transfer_price exchange;
  const double row_bytes = width * (double)lade_dtype_bytes(job->dtype);
  lade_cluster_exchange_price(job->cluster, job->n_expert_ranks, key->tp, &exchange);
  const double sent = rows * row_bytes / (key->is_sequence ? tp : 1);
  const double exchange_ns = ranks > 1 ? (double)exchange.latency_ns + sent * exchange.ns_per_byte : 0;
  layer->forward_ns += forward_ns + 2 * exchange_ns;
  layer->backward_ns += inputs_ns + weights_ns + 2 * exchange_ns + (is_full ? forward_ns + 2 * exchange_ns : 0);
  layer->weights_ns += weights_ns;
  layer->exposed_ns += (is_full ? 6 : 4) * exchange_ns;

  const double moved = 2 * rows * row_bytes; /* received, and returned */
  layer->saved_bytes += is_full ? 0 : moved;
  layer->weights_bytes += rows * row_bytes;
  layer->peak_bytes += moved;
  const double local_params = 3 * width * hidden * n_local;
  layer->n_expert_params = (int64_t)local_params;
  layer->n_params += (int64_t)(local_params - 3 * width * hidden * (double)experts->n_active +
                               width * (double)experts->n_experts);
}
