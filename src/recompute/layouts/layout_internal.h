/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a layout's cost that the files of this room share: prices of collectives on an axis, and the end of a step.
 */
#ifndef LADE_LAYOUT_INTERNAL_H
#define LADE_LAYOUT_INTERNAL_H

#include "recompute/layout_cost.h"

/* Price collectives on @axis of @layout. */
static inline void axis_price(const struct lade_layout_job *job, const struct lade_layout *layout, enum lade_axis axis,
                              struct lade_transfer_price *ret_gather, struct lade_transfer_price *ret_sum)
{
  lade_cluster_group_price(job->cluster, layout->mesh.axes[axis].size, layout->mesh.axes[axis].stride, ret_gather,
                           ret_sum);
}

/* Return the time of @n collectives in which a rank sends @bytes together in a ring. */
static inline double rings_ns(const struct lade_transfer_price *price, double n, double bytes)
{
  return bytes > 0 ? lade_transfer_ns(price, n, bytes) : 0;
}

static inline double ring_ns(const struct lade_transfer_price *price, double bytes)
{
  return rings_ns(price, 1, bytes);
}

static inline double ring_share(int n)
{
  return (double)(n - 1) / n;
}

/* Return the ranks over which experts' state is sharded, where that of other parameters is over @shard. */
static inline int expert_shards(const struct lade_layout_job *job, int shard)
{
  return LADE_MAX(shard / LADE_MAX(job->n_expert_ranks, 1), 1);
}

/* Return the number of parameters whose state a rank holds, of @n_params before sharding. */
static inline double held_params(const struct lade_layout_job *job, const struct lade_layout_core *core,
                          const struct lade_layout *layout, double n_params)
{
  const int shard = layout->zero ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1;
  const double n_experts = n_params * core->expert_share;
  return (n_params - n_experts) / shard + n_experts / expert_shards(job, shard);
}

/* Times of a step behind its pipeline. */
struct step_end {
  double grad_ns;   /* exposed sums of gradients and gathers */
  double update_ns; /* the tied table's sum, the norms and AdamW */
  double sums_ns;   /* sums of gradients over microbatches that are kernels of their own */
  double copies_ns; /* between parameters and the flat buffers of collectives */
};

/* Compute the end of a step (step_end.c). */
struct step_end step_end_get(const struct lade_layout_job *job, const struct lade_layout_core *core,
                             const struct lade_layout *layout, enum lade_tier state_tier);

#endif
