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
 * Traeff 2009; NCCL 2.4). NCCL picks the faster by size; of long messages this file takes the rate of the ring and the
 * lower of the two latencies. In a node whose switch sums (NVLS) an all-reduce has one latency for any n.
 *
 * Short messages. A level states the latency and the rate of long ones, which NCCL sends by its protocol Simple. LL and
 * LL128 signal within each 8 or 128 bytes: less latency, and at most 1/2 and 0.92 of the rate. The table of protocols
 * has the latencies of NCCL's own tuner. This file takes their ratios to those of Simple, for the same group, and
 * scales the levels' latencies by them, so that fitted and measured hops stay. Gathers and scatters of one rank a node
 * may go along PAT's trees since NCCL 2.23. As in NCCL's tuner, a call takes the (algorithm, protocol) that is fastest
 * for its bytes. Channels are in the rates; that NCCL takes fewer channels and threads for messages of a few kilobytes,
 * whose time is latency, is left out. So is CollNet, which needs SHARP: sum_gain describes it.
 *
 * Parts. Collectives of two axes at once share the links that both cross. While its bytes move a group takes the whole
 * rate of its slowest level's links, and of each other link as much as that leaves it to carry.
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

enum { INSIDE, BETWEEN, N_PLACES }; /* steps within a node and between nodes */

/* Latencies in us and shares of the rate: NCCL 2.28, src/graph/tuning.cc. */
struct protocol {
  double call_us, ring_us[N_PLACES], tree_us[N_PLACES]; /* of a call, and of a step */
  double ring_share, tree_share[N_PLACES]; /* of Simple's rate; trees of one node, of several */
};
static const struct protocol simple = {8.4, {3.4, 14}, {4, 14}, 1, {1, 1}};
static const struct protocol ll = {6.6, {0.6, 2.7}, {0.6, 5}, 0.5, {1 / 3.8, 1 / 3.8}};
static const struct protocol ll128 = {14, {1.9, 4}, {1.25, 8.5}, 0.92, {7.0 / 9, 120.0 / 128}};

#define LL_NODES_BYTES_PER_S 20e9 /* of a ring's LL over several nodes, all links together: 19 to 22.5 */
#define NVLINK_BYTES_PER_S 64e9   /* PCI Express 5.0 x16: a faster level is NVLink, which LL128 needs */
#define NVLS_US 25                /* of an all-reduce within a node */
#define NCCL_WITH_PAT 22300       /* for groups of one rank a node */
#define PAT_CALL_US 8
#define PAT_HOP_US (14 / 3.5)
#define PAT_RANK_US 2.8
#define PAT_SHARE 0.75 /* of the ring's rate */

/* The steps and levels of a group's collectives. */
struct group_path {
  int size;
  double ring[N_PLACES], tree[N_PLACES]; /* steps of a gather; hops of a reduction */
  double ring_ns, tree_ns, rate, gain;   /* of long messages */
  double inside;                         /* members in a node */
};

static struct group_path group_path_get(const struct lade_cluster *cluster, int size, int64_t stride)
{
  struct group_path path = {.size = size, .rate = INFINITY, .gain = 1, .inside = 1};
  double inside = 1;
  for (int i = 0, n_crossed = 0; i < cluster->n_levels; i++) {
    const struct lade_cluster_level *level = &cluster->levels[i];
    const double within = members_within(size, stride, level->n_devices), domains = within / inside;
    const double hops = i ? ceil(log2(domains)) : domains - 1;
    if (domains <= 1)
      continue;
    path.rate = fmin(path.rate, level_rate(level) * (i ? inside : 1));
    path.ring[i ? BETWEEN : INSIDE] += domains - 1;
    path.tree[i ? BETWEEN : INSIDE] += hops;
    path.ring_ns += (domains - 1) * level->latency_ns;
    path.tree_ns += hops * level->latency_ns;
    path.gain = n_crossed++ ? 1 : level->sum_gain;
    path.inside = i ? path.inside : within;
    inside = within;
  }
  return path;
}

/* Return the latency of @n_halves gathers or reductions in one call, by NCCL's tuner. */
static double ring_us(const struct protocol *protocol, const struct group_path *path, int n_halves)
{ /* steps of one rank a node wait for the network in full */
  const double between_us = (path->inside > 1 ? protocol->ring_us : protocol->tree_us)[BETWEEN];
  return protocol->call_us + n_halves * (path->ring[INSIDE] * protocol->ring_us[INSIDE] +
                                         path->ring[BETWEEN] * between_us);
}

static double tree_us(const struct protocol *protocol, const struct group_path *path)
{
  return protocol->call_us + 2 * (path->tree[INSIDE] * protocol->tree_us[INSIDE] +
                                  path->tree[BETWEEN] * protocol->tree_us[BETWEEN]);
}

static void short_add(struct lade_transfer_price *price, double latency_ns, double ns_per_byte)
{
  LADE_ASSERT(price->n_short < LADE_SHORT_LINES);
  price->shorts[price->n_short].latency_ns = (int64_t)latency_ns;
  price->shorts[price->n_short++].ns_per_byte = ns_per_byte;
}

/* Add the ways of @protocol to the prices of a group. */
static void protocol_add(const struct protocol *protocol, const struct group_path *path,
                         struct lade_transfer_price *gather, struct lade_transfer_price *sum)
{
  const bool is_between = path->ring[BETWEEN] > 0;
  const double most = protocol == &ll && is_between ? LL_NODES_BYTES_PER_S : INFINITY;
  const double ring_rate = fmin(path->rate * protocol->ring_share, most);
  const double tree_rate = fmin(path->rate * protocol->tree_share[is_between] * ll128.ring_share, most);
  short_add(gather, path->ring_ns * ring_us(protocol, path, 1) / ring_us(&simple, path, 1), 1e9 / ring_rate);
  short_add(sum, 2 * path->ring_ns * ring_us(protocol, path, 2) / ring_us(&simple, path, 2), 1e9 / ring_rate);
  short_add(sum, 2 * path->tree_ns * tree_us(protocol, path) / tree_us(&simple, path), 1e9 / tree_rate);
}

void lade_cluster_group_price(const struct lade_cluster *cluster, int size, int64_t stride,
                              struct lade_transfer_price *ret_gather, struct lade_transfer_price *ret_sum)
{
  const struct group_path path = group_path_get(cluster, size, stride);
  const double ns_per_byte = isinf(path.rate) ? 0 : 1e9 / path.rate;
  struct lade_transfer_price gather = {.latency_ns = (int64_t)path.ring_ns, .ns_per_byte = ns_per_byte};
  struct lade_transfer_price sum = {.latency_ns = (int64_t)(2 * fmin(path.ring_ns, path.tree_ns)),
                                    .ns_per_byte = ns_per_byte};
  const bool has_nccl = cluster->nccl_version > 0 && !cluster->device.is_unified && !isinf(path.rate);
  if (has_nccl) {
    protocol_add(&ll, &path, &gather, &sum);
    if (cluster->levels[0].bytes_per_s > NVLINK_BYTES_PER_S)
      protocol_add(&ll128, &path, &gather, &sum);
  }
  if (has_nccl && path.inside == 1 && cluster->nccl_version >= NCCL_WITH_PAT) {
    const double pat_us = PAT_CALL_US + path.tree[BETWEEN] * PAT_HOP_US + path.size * PAT_RANK_US;
    short_add(&gather, path.ring_ns * pat_us / ring_us(&simple, &path, 1),
              ns_per_byte / PAT_SHARE * path.size / (path.size - 1)); /* moves the whole vector */
  }
  if (path.gain > 1) {
    short_add(&sum, (double)sum.latency_ns, sum.ns_per_byte);
    sum.ns_per_byte /= path.gain;
    if (has_nccl && path.ring[BETWEEN] == 0)
      sum.latency_ns = (int64_t)((double)sum.latency_ns * NVLS_US / ring_us(&simple, &path, 2));
  }
  *ret_gather = gather;
  *ret_sum = sum;
}

/* Add @bytes_per_s over level @at to the parts of its link, and of that to the host if its bytes pass there. */
static void level_share_add(const struct lade_cluster *cluster, int at, double bytes_per_s,
                            struct lade_link_shares *shares)
{
  const struct lade_cluster_level *level = &cluster->levels[at];
  const struct lade_machine *device = &cluster->device;
  const double host = (double)LADE_MIN(device->to_host.bytes_per_s, device->to_device.bytes_per_s);
  shares->of[LADE_LINK_LEVELS + at] = fmin(bytes_per_s / level_rate(level), 1);
  if (level->is_over_host_link && !device->is_unified)
    shares->of[LADE_LINK_HOST] = fmin(fmax(shares->of[LADE_LINK_HOST], bytes_per_s / host), 1);
}

struct lade_link_shares lade_cluster_group_shares(const struct lade_cluster *cluster, int size, int64_t stride)
{
  const double rate = group_path_get(cluster, size, stride).rate;
  struct lade_link_shares shares = {0};
  double inside = 1;
  for (int i = 0; i < cluster->n_levels; i++) {
    const double within = members_within(size, stride, cluster->levels[i].n_devices);
    if (within > inside)
      level_share_add(cluster, i, rate / (i ? inside : 1), &shares);
    inside = within;
  }
  return shares;
}

/* Return the level that joins neighbouring stages, where the slowest of them are. */
static int boundary_level(const struct lade_cluster *cluster, const struct lade_mesh *mesh)
{
  int at = 0;
  while (at < cluster->n_levels - 1 && mesh->world > cluster->levels[at].n_devices) /* stages are the outermost axis */
    at++;
  return at;
}

struct lade_link_shares lade_cluster_boundary_shares(const struct lade_cluster *cluster, const struct lade_mesh *mesh)
{
  struct lade_link_shares shares = {0};
  const int at = boundary_level(cluster, mesh);
  level_share_add(cluster, at, level_rate(&cluster->levels[at]), &shares);
  return shares;
}

double lade_cluster_short_share(const struct lade_cluster *cluster, int size, bool is_between)
{
  struct lade_cluster group = *cluster;
  struct lade_transfer_price gather, unused;
  group.n_levels = 2;
  group.levels[0].n_devices = is_between ? 1 : size;
  group.levels[1].n_devices = size;
  group.levels[0].latency_ns = group.levels[1].latency_ns = 1e6;
  lade_cluster_group_price(&group, size, 1, &gather, &unused);
  return lade_transfer_ns(&gather, 1, 0) / (double)gather.latency_ns;
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
  const struct lade_cluster_level *level = &cluster->levels[boundary_level(cluster, mesh)];
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
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    const int size = mesh->axes[axis].size, stride = mesh->axes[axis].stride;
    lade_cluster_group_price(cluster, size, stride, &ret_links->gather[axis], &ret_links->sum[axis]);
    ret_links->shares[axis] = lade_cluster_group_shares(cluster, size, stride);
  }
  ret_links->boundary_shares = lade_cluster_boundary_shares(cluster, mesh);
  lade_cluster_boundary_price(cluster, mesh, &ret_links->boundary);
}
