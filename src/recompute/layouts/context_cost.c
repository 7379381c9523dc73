/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Context parallel ranks, by formula: no program has them yet.
 *
 * Each of c ranks holds T / c tokens of a sequence, in two pieces that balance causal attention (Llama 3, 2024, section
 * 3.3.2). It computes all ops but attention on these alone. So a rank's work is that of a job with sequences of T / c
 * and c times the batch over c times the replicas; gradients are summed over these. Attention differs:
 *
 *   work    a rank's queries meet all T keys: c times the pairs of a sequence of T / c
 *   gather  keys and values of all ranks are gathered before attention, and nothing is computed beside that (the same
 *           section of Llama 3). The backward half gathers them again, and sums their gradients into this rank's part.
 *           Attention block by block beside a ring (Liu et al. 2023, arXiv 2310.01889) would hide most of both
 *   memory  keys and values of all ranks, and in the backward half their gradients
 */
#include "base/base.h"
#include "recompute/layout_cost.h"

void lade_context_cost_add(const struct lade_layout_job *job, const struct lade_share_key *key, int size,
                           struct lade_share_cost *share)
{
  const struct lade_model *model = job->model;
  struct lade_unit_cost *layer = &share->layer;
  struct lade_transfer_price gather, unused;
  if (size == 1)
    return;
  lade_cluster_group_price(job->cluster, size, key->tp, &gather, &unused);
  const double kv_heads = LADE_MAX((double)model->n_kv_heads / key->tp, 1);
  const double block = 2 * (double)key->micro_batch * (double)job->seq_len * kv_heads *
                       (double)lade_model_head_dim(model) * (double)lade_dtype_bytes(job->dtype);
  const double local = (double)job->seq_len; /* attention over all tokens reaches more of its rate than over these */
  const double fill = lade_cost_attention_fill(&job->cluster->device, local) /
                      lade_cost_attention_fill(&job->cluster->device, local * size);
  const double gather_ns = lade_transfer_ns(&gather, 1, (size - 1) * block);
  layer->forward_ns += layer->attention_ns[0] * (size * fill - 1) + gather_ns;
  layer->backward_ns += layer->attention_ns[1] * (size * fill - 1) + 2 * gather_ns;
  layer->exposed_ns += 3 * gather_ns;
  layer->peak_bytes += 2 * size * block;
}
