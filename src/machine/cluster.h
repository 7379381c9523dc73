/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster: nodes with devices, and the levels of links that join them.
 *
 * Level 0 joins the devices of one switch (NVLink, or PCI Express where there is no NVLink). Each further level joins
 * domains of the level below: rails of InfiniBand or EFA, a spine. A level's rate is that of one device, in one
 * direction, as collectives sustain it. A description is a JSON file (docs/cluster.md) or a preset.
 *
 * Plain values without pointers. Functions of this header: any thread.
 */
#ifndef LADE_CLUSTER_H
#define LADE_CLUSTER_H

#include "machine/cost.h"
#include "machine/machine.h"
#include "parallel/mesh.h"

#define LADE_CLUSTER_LEVELS_MAX (LADE_LINKS_MAX - LADE_LINK_LEVELS) /* more than fabrics have: switch, rails, spine */
#define LADE_LEVEL_NAME_BYTES 32

#define LADE_CLUSTER_NCCL 22807   /* version of NCCL where a cluster states none */

struct lade_cluster_level {
  char name[LADE_LEVEL_NAME_BYTES];
  int64_t n_devices;       /* joined by one domain of this level */
  double bytes_per_s;      /* of one device, each direction, in collectives */
  double latency_ns;       /* of one hop of a long message: NCCL's protocol Simple */
  double oversubscription; /* devices' rates together over the domain's uplinks; 1: full bisection */
  double sum_gain;         /* speed-up of an all-reduce whose sums the switches make (NVLS, SHARP); 1: they do not */
  bool is_over_host_link;  /* its bytes also take the device's link to the host: a NIC behind the device's PCIe port */
};

struct lade_cluster {
  char name[LADE_MACHINE_NAME_BYTES];
  int64_t n_nodes, n_node_devices;
  uint64_t usable_device_bytes; /* device memory left by the context, communicators and libraries */
  uint64_t node_host_bytes;     /* host memory of a node, shared by its devices */
  struct lade_machine_store node_store; /* all drives of a node together, shared by its devices; 0 bytes: none */
  double peak_flops_per_s;      /* of a device by its data sheet, dense, 16 bits: the denominator of MFU */
  int64_t nccl_version;         /* of its jobs, as ncclGetVersion counts (22304: 2.23.4); 0: they do not use it */
  double error_share;           /* relative error to expect of a step's time; docs/cluster.md */
  const char *assumed;          /* static: numbers of the preset that have no source; NULL: none, or no preset */
  struct lade_machine device;   /* one device, with its share of the node's host and drives */
  int n_levels;
  struct lade_cluster_level levels[LADE_CLUSTER_LEVELS_MAX]; /* innermost first */
};

/* Get a preset, or else read a file, as --cluster takes it. Errors as lade_machine_get's; they name the field. */
int lade_cluster_get(const char *name, struct lade_error *error, struct lade_cluster *ret_cluster);

/* Return the name of preset @i, NULL past the end. */
const char *lade_cluster_preset_name(int i);
/* Get a preset. -ENOENT with the list of names in @error. */
int lade_cluster_preset(const char *name, struct lade_error *error, struct lade_cluster *ret_cluster);

/* As lade_cluster_get, from a parsed JSON value; @where begins the message. */
struct json_t;
int lade_cluster_from_json(const struct json_t *object, const char *where, struct lade_error *error,
                           struct lade_cluster *ret_cluster);
/* Return the JSON object of @cluster, which lade_cluster_from_json reads back. NULL: out of memory. */
struct json_t *lade_cluster_to_json(const struct lade_cluster *cluster);

/* The same for the levels alone. pre, to read: @cluster has its nodes and devices per node, which levels must join. */
int lade_cluster_levels_from_json(const struct json_t *list, const char *where, struct lade_error *error,
                                  struct lade_cluster *cluster);
struct json_t *lade_cluster_levels_to_json(const struct lade_cluster *cluster);

/* Check ranges, that levels nest, and that the last level joins all devices: -EINVAL with the field. */
int lade_cluster_check(const struct lade_cluster *cluster, const char *where, struct lade_error *error);

/* ---- links.c ---- */

/* Prices of moving bytes between the ranks of a mesh, per byte that a rank sends in a ring. */
struct lade_cluster_links {
  struct lade_transfer_price gather[LADE_N_AXES]; /* all-gather, reduce-scatter, all-to-all, broadcast */
  struct lade_transfer_price sum[LADE_N_AXES];    /* all-reduce */
  struct lade_transfer_price boundary;            /* a send between neighbouring stages */
  struct lade_link_shares shares[LADE_N_AXES], boundary_shares; /* parts of links that these take */
};

/* Compute the links of @mesh, whose ranks are placed on devices in order. */
void lade_cluster_links_make(const struct lade_cluster *cluster, const struct lade_mesh *mesh,
                             struct lade_cluster_links *ret_links);

/* Price a send to the next pipeline stage, per byte that a rank sends: the boundary of the links alone. */
void lade_cluster_boundary_price(const struct lade_cluster *cluster, const struct lade_mesh *mesh,
                                 struct lade_transfer_price *ret_price);

/*
 * True if a boundary value of @bytes reaches the next stage sooner in the scattered form. In that form each tensor
 * parallel rank sends 1/tp of it, and the receivers gather the parts (lade_share). Its price is that of the send and
 * of the gather.
 */
bool lade_cluster_sends_scattered(const struct lade_cluster *cluster, const struct lade_mesh *mesh, double bytes);

/* Price collectives of a group of @size ranks with @stride between neighbours. */
void lade_cluster_group_price(const struct lade_cluster *cluster, int size, int64_t stride,
                              struct lade_transfer_price *ret_gather, struct lade_transfer_price *ret_sum);

/*
 * Return the parts of a device's links that a group's collectives take, in each direction. Links have the rates that
 * collectives sustain on them.
 */
struct lade_link_shares lade_cluster_group_shares(const struct lade_cluster *cluster, int size, int64_t stride);

/* Return the parts that a send to the next pipeline stage takes, in one direction. */
struct lade_link_shares lade_cluster_boundary_shares(const struct lade_cluster *cluster, const struct lade_mesh *mesh);

/*
 * Return the latency of the shortest gather over that of long ones, in a group of @size ranks: one in each domain of a
 * level above the first if @is_between, in one domain otherwise. Measurements of short messages divide by it.
 */
double lade_cluster_short_share(const struct lade_cluster *cluster, int size, bool is_between);

/* Return the outermost level that a group of @size ranks with @stride crosses; -1: none. */
int lade_cluster_group_level(const struct lade_cluster *cluster, int size, int64_t stride);

/* Price an all-to-all of a group, per byte that a rank has for all members, itself included. */
void lade_cluster_exchange_price(const struct lade_cluster *cluster, int size, int64_t stride,
                                 struct lade_transfer_price *ret_price);

#endif
