/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Price collectives over the levels that a group really crosses.
 *
 * A group is a size and a stride over devices in order. At each level its members fall into domains. A level is crossed
 * if one of its domains holds members of several domains of the level below.
 *
 * Rate. NCCL's ring passes each domain once, entering by one device and leaving by another; with several channels every
 * member's own link carries a part. So a domain's members together carry the ring over the level above: a group with m
 * members in a node has m links there. All groups of an axis do so at once, each over its members' own links. The ring
 * runs at the slowest level's rate. An all-reduce is a reduce-scatter and an all-gather.
 *
 * Latency. A ring of n has n - 1 steps: one per domain boundary at the level's latency, the others at the level below.
 * An all-reduce over several nodes may go along a double binary tree instead: 2 log2(domains) hops (Sanders, Speck,
 * Traeff 2009; NCCL 2.4). NCCL picks the faster by size; this file takes the rate of the ring and the lower of the two
 * latencies. Gathers and scatters go round the ring. (NCCL 2.23 has trees for those of one rank a node, PAT; they are
 * left out, because groups of many ranks mostly have several a node.)
 *
 * A send to the next stage goes over the outermost level that joins the stages, where the slowest of them are. In the
 * scattered form (Narayanan et al. 2021, section 4.1) each of t tensor parallel ranks sends 1/t over its own link. The
 * receivers gather the parts over the levels of their group. It is taken if both together are faster.
 */
#include <math.h>

#include "base/base.h"
#include "machine/cluster.h"

/* Return the number of a group's members within one domain of @n_devices, at least 1. */
static double members_within(int size, int64_t stride, int64_t n_devices)
{
  const int64_t n = n_devices / LADE_MAX(stride, 1);
  return (double)LADE_MAX(LADE_MIN((int64_t)size, n), 1);
}

static double level_rate(const struct lade_cluster_level *level)
{
  return level->bytes_per_s / level->oversubscription;
}

void lade_cluster_group_price(const struct lade_cluster *cluster, int size, int64_t stride,
                              struct lade_transfer_price *ret_gather, struct lade_transfer_price *ret_sum)
{
  double inside = 1, rate = INFINITY, ring_ns = 0, tree_ns = 0, gain = 1;
  int n_crossed = 0;
  for (int i = 0; i < cluster->n_levels; i++) {
    const struct lade_cluster_level *level = &cluster->levels[i];
    const double within = members_within(size, stride, level->n_devices), domains = within / inside;
    if (domains <= 1)
      continue;
    rate = fmin(rate, level_rate(level) * (i ? inside : 1));
    ring_ns += (domains - 1) * level->latency_ns;
    tree_ns += (i ? ceil(log2(domains)) : domains - 1) * level->latency_ns;
    gain = n_crossed++ ? 1 : level->sum_gain;
    inside = within;
  }
  const double ns_per_byte = isinf(rate) ? 0 : 1e9 / rate;
  *ret_gather = (struct lade_transfer_price){(int64_t)ring_ns, ns_per_byte};
  *ret_sum = (struct lade_transfer_price){(int64_t)(2 * fmin(ring_ns, tree_ns)), ns_per_byte / gain};
}

int lade_cluster_group_level(const struct lade_cluster *cluster, int size, int64_t stride)
{
  int level = cluster->n_levels - 1;
  for (; level >= 0; level--) {
    const double inside = level ? members_within(size, stride, cluster->levels[level - 1].n_devices) : 1;
    if (members_within(size, stride, cluster->levels[level].n_devices) > inside)
      break;
  }
  return level;
}

/*
 * Members send to all others at once, each over its own links. The part of a rank's bytes that is for members of other
 * domains crosses their level, and the slowest level decides.
 */
void lade_cluster_exchange_price(const struct lade_cluster *cluster, int size, int64_t stride,
                                 struct lade_transfer_price *ret_price)
{
  double inside = 1, ns_per_byte = 0, latency_ns = 0;
  for (int i = 0; i < cluster->n_levels; i++) {
    const struct lade_cluster_level *level = &cluster->levels[i];
    const double within = members_within(size, stride, level->n_devices);
    if (within <= inside)
      continue;
    ns_per_byte = fmax(ns_per_byte, (within - inside) / size * 1e9 / level_rate(level));
    latency_ns = fmax(latency_ns, level->latency_ns);
    inside = within;
  }
  *ret_price = (struct lade_transfer_price){(int64_t)latency_ns, ns_per_byte};
}

void lade_cluster_boundary_price(const struct lade_cluster *cluster, const struct lade_mesh *mesh,
                                 struct lade_transfer_price *ret_price)
{
  int at = 0;
  while (at < cluster->n_levels - 1 && mesh->world > cluster->levels[at].n_devices) /* stages are the outermost axis */
    at++;
  const struct lade_cluster_level *level = &cluster->levels[at];
  *ret_price = (struct lade_transfer_price){(int64_t)level->latency_ns, 1e9 / level_rate(level)};
}

bool lade_cluster_sends_scattered(const struct lade_cluster *cluster, const struct lade_mesh *mesh, double bytes)
{
  const int tp = mesh->axes[LADE_AXIS_TP].size;
  const double others = bytes / tp * (tp - 1);
  struct lade_transfer_price send, gather, unused;
  lade_cluster_boundary_price(cluster, mesh, &send);
  lade_cluster_group_price(cluster, tp, mesh->axes[LADE_AXIS_TP].stride, &gather, &unused);
  return others * send.ns_per_byte > (double)gather.latency_ns + others * gather.ns_per_byte;
}

void lade_cluster_links_make(const struct lade_cluster *cluster, const struct lade_mesh *mesh,
                             struct lade_cluster_links *ret_links)
{
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    lade_cluster_group_price(cluster, mesh->axes[axis].size, mesh->axes[axis].stride, &ret_links->gather[axis],
                             &ret_links->sum[axis]);
  lade_cluster_boundary_price(cluster, mesh, &ret_links->boundary);
}
