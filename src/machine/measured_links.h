/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between the ranks of a running job: measured once, and kept for the predictions of later jobs.
 *
 * A measurement describes the levels of a cluster (cluster.h): "node" joins the ranks of a node, "network" joins nodes.
 * It is kept in one JSON file beside the probe's (probe.h). A file holds for one machine name, one engine of
 * collectives in one version, and one number of nodes and of ranks per node. If there are several nodes, it also
 * belongs to their host names.
 */
#ifndef LADE_MEASURED_LINKS_H
#define LADE_MEASURED_LINKS_H

#include "machine/cluster.h"
#include "machine/probe.h"
#include "parallel/comm.h"

struct lade_links_params {
  size_t struct_size;
  lade_comm *world;                   /* borrowed: all ranks, on hosts */
  int n_node_ranks;                   /* of each node, neighbours in rank order; divides the world */
  const struct lade_kernels *kernels; /* borrowed; the host's */
  lade_device *gpu;                   /* borrowed: this rank's, whose links NCCL measures; NULL: links of hosts */
};

/*
 * Measure the links between the ranks of the world, in about a second; collective. Sets nodes, devices per node and
 * levels of @ret_cluster, and NCCL's version (0 on hosts), equal at all ranks. -ENOMEM, at every rank, if the memory to
 * measure in is missing; -ENOSYS without NCCL; else as lade_comm_run. Blocks.
 */
int lade_links_measure(const struct lade_links_params *params, struct lade_error *error,
                       struct lade_cluster *ret_cluster, int *ret_version);

/* Return the bytes, of the GPU or of the host, that a rank needs for lade_links_measure. Any thread. */
uint64_t lade_links_bytes(bool is_gpu);

struct lade_links_key {
  int64_t n_nodes, n_node_ranks;
  uint64_t hosts;  /* hash of the nodes' host names, in rank order; 0: one node */
  int version;     /* of NCCL, if ranks compute on GPUs; 0: any */
};

/* Return a hash of this machine's host name. Any thread. */
uint64_t lade_links_host(void);
/* Add the host of the next node, after that of the first one, to @key. */
void lade_links_key_add_node(struct lade_links_key *key, uint64_t first_host, uint64_t host);

/*
 * Get the kept levels of @key into @ret_cluster, whose other fields are unset but for nodes and devices per node.
 * @probe names the machine and the directory, as for lade_probe. False: none are kept. Blocks for a small file.
 */
bool lade_links_recall(const struct lade_probe_params *probe, const struct lade_links_key *key,
                       struct lade_cluster *ret_cluster);
/* Keep the levels of @cluster. Does nothing if there is no writable place. Blocks for a small file. */
void lade_links_keep(const struct lade_probe_params *probe, const struct lade_links_key *key,
                     const struct lade_cluster *cluster);

#endif
