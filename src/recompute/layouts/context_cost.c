/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Context parallel ranks, by formula: no program has them yet.
 *
 * Each of c ranks holds T / c tokens of a sequence, in two pieces that balance causal attention (Llama 3, 2024, section
 * 3.3.2), and computes all ops but attention on these alone. So a rank's work is that of a job with sequences of T / c
 * and c times the batch over c times the replicas; gradients are summed over these. Attention differs:
 *
 *   work   a rank's queries meet all T keys: c times the pairs of a sequence of T / c. Each block is fused
 *   ring   keys and values go round the ring in c - 1 steps, each beside the attention of the block before (Liu et al.
 *          2023, arXiv 2310.01889); in the backward half their gradients go with them. The excess is exposed
 *   memory two blocks of keys and values, and in the backward half two of their gradients
 */
#include "base/base.h"
#include "recompute/layout_cost.h"

/* Return the time by which @rounds passes of a block round the ring exceed the attention beside them. */
static double ring_exposed_ns(const struct lade_transfer_price *price, int size, double bytes, double attention_ns)
{
  const double ring_ns = (double)price->latency_ns + (size - 1) * bytes * price->ns_per_byte;
  return LADE_MAX(ring_ns - attention_ns * (size - 1) / size, 0);
}

void lade_context_cost_add(const struct lade_layout_job *job, const struct lade_share_key *key, int size,
                           struct lade_share_cost *share)
{
  const struct lade_model *model = job->model;
  struct lade_unit_cost *layer = &share->layer;
  struct lade_transfer_price ring, unused;
  if (size == 1)
    return;
  lade_cluster_group_price(job->cluster, size, key->tp, &ring, &unused);
  const double kv_heads = LADE_MAX((double)model->n_kv_heads / key->tp, 1);
  const double block = 2 * (double)key->micro_batch * (double)job->seq_len * kv_heads *
                       (double)lade_model_head_dim(model) * (double)lade_dtype_bytes(job->dtype);
  const double forward_ns = layer->attention_ns[0] * size, backward_ns = layer->attention_ns[1] * size;
  const double exposed_ns[] = {ring_exposed_ns(&ring, size, block, forward_ns),
                               ring_exposed_ns(&ring, size, 2 * block, backward_ns)};
  layer->forward_ns += forward_ns - layer->attention_ns[0] + exposed_ns[0];
  layer->backward_ns += backward_ns - layer->attention_ns[1] + exposed_ns[1];
  layer->exposed_ns += exposed_ns[0] + exposed_ns[1];
  layer->peak_bytes += 4 * block;
}
