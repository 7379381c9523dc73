/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade bench links`: measures the links between the ranks of a job (machine/measured_links.h). It describes them as a
 * cluster (docs/cluster.md), and keeps them for later jobs.
 *
 * On hosts the devices are this machine's cores, and ranks of a node have equal shares of its memory. On GPUs each rank
 * takes a GPU of its own, and NCCL moves the bytes. The machine is measured by its probe, once, and kept.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "device/cuda.h"
#include "kernels/cuda.h"
#include "machine/cluster.h"
#include "machine/measured_links.h"
#include "machine/probe.h"
#include "run/rank_group.h"
#include "tools/cli/verbs.h"
#include "tools/job/job.h"
#include "tools/report/report.h"

#define WAIT_S 60 /* for ranks that start late */

struct links_bench {
  struct job job;
  struct options options;
  struct lade_error error;
  struct lade_cluster cluster;
  struct lade_rank_group group;
  lade_device *gpu; /* NULL: links of hosts */
  lade_cuda_kernels *gpu_kernels;
};

/* ---- the cluster ---- */

/* Return the ranks of a node, equal at all nodes. -EINVAL if the launcher does not state them. */
static int node_ranks(struct links_bench *bench)
{
  const struct lade_launch *launch = &bench->job.launch;
  if (launch->local_world > 0 && launch->world % launch->local_world == 0)
    return launch->local_world;
  return lade_error_set(&bench->error, -EINVAL, "the launcher says that %d of %d ranks are on this node: equal numbers "
                        "on all nodes are measured", launch->local_world, launch->world);
}

/* Open the GPU of this rank, if links of GPUs are measured; collective. */
static int gpu_open(struct links_bench *bench)
{
  struct lade_error *error = &bench->error;
  struct lade_cuda_device_params params = {.struct_size = sizeof(params)};
  if (bench->options.device < DEVICE_CUDA)
    return 0;
  int status = lade_rank_group_find_gpu(&bench->group, bench->options.device - DEVICE_CUDA, NULL, error,
                                        &params.ordinal);
  if (status)
    return status;
  status = lade_device_open_cuda(&params, error, &bench->gpu);
  if (!status)
    status = lade_cuda_kernels_open(bench->gpu, NULL, error, &bench->gpu_kernels);
  return lade_rank_group_vote(&bench->group, status, error);
}

/* Fill the devices from the probe of this machine, at the first rank. Others wait for it at the next collective. */
static int device_fill(struct links_bench *bench, const struct lade_probe_params *probe)
{
  struct lade_cluster *cluster = &bench->cluster;
  struct lade_cost cost;
  int status = lade_probe(probe, &bench->error, &cost);
  if (status)
    return status;
  const uint64_t n_node = (uint64_t)cluster->n_node_devices;
  cluster->device = cost.machine;
  lade_cost_finish(&cost);
  cluster->node_host_bytes = cluster->device.host_bytes;
  cluster->device.host_bytes /= n_node;
  cluster->device.device_bytes /= bench->gpu ? 1 : n_node;
  cluster->usable_device_bytes = cluster->device.device_bytes;
  for (int dtype = 0; dtype < LADE_N_DTYPES; dtype++)
    cluster->peak_flops_per_s = LADE_MAX(cluster->peak_flops_per_s, cluster->device.matmul_flops_per_s[dtype]);
  return 0;
}

/* Make the key of the measured links; collective. */
static int key_make(struct links_bench *bench, struct lade_links_key *ret_key)
{
  const int n_node = (int)bench->cluster.n_node_devices;
  const uint64_t own = lade_links_host();
  uint64_t *hosts = NULL;
  int status = lade_rank_group_collect(&bench->group, &own, sizeof(own), NULL, &bench->error, (void **)&hosts);
  *ret_key = (struct lade_links_key){.n_node_ranks = n_node};
  for (int rank = 0; rank < bench->job.launch.world && !status; rank += n_node)
    lade_links_key_add_node(ret_key, hosts[0], hosts[rank]);
  free(hosts);
  return status;
}

/* Measure all levels, keep them, and describe the cluster at the first rank. */
static int cluster_measure(struct links_bench *bench)
{
  struct lade_cluster *cluster = &bench->cluster;
  const int n_node = node_ranks(bench);
  int version = 0;
  if (n_node < 0)
    return n_node;
  const struct lade_links_params params = {.struct_size = sizeof(params), .world = bench->job.world,
                                           .n_node_ranks = n_node,
                                           .kernels = &bench->job.kernels, .gpu = bench->gpu};
  struct lade_links_key key = {0};
  int status = lade_links_measure(&params, &bench->error, cluster, &version);
  if (!status)
    status = key_make(bench, &key);
  if (status || !job_is_first(&bench->job))
    return status;
  const struct lade_probe_gpu gpu = {bench->gpu, bench->gpu_kernels};
  const struct lade_probe_params probe = {.struct_size = sizeof(probe), .kernels = &bench->job.kernels,
                                          .gpu = bench->gpu ? &gpu : NULL};
  key.version = version;
  lade_links_keep(&probe, &key, cluster);
  snprintf(cluster->name, sizeof(cluster->name), "measured");
  cluster->error_share = 0.3;
  status = device_fill(bench, &probe);
  return status ? status : lade_cluster_check(cluster, "the measured cluster", &bench->error);
}

/* ---- results ---- */

static int file_write(struct links_bench *bench, const json_t *object)
{
  const char *path = bench->options.links_file;
  if (!json_dump_file(object, path, JSON_INDENT(2) | JSON_REAL_PRECISION(6)))
    return 0;
  return lade_error_set(&bench->error, -EIO, "%.200s: cannot be written", path);
}

static int results_print(struct links_bench *bench)
{
  const struct lade_cluster *cluster = &bench->cluster;
  json_t *object = lade_cluster_to_json(cluster);
  int status = object ? 0 : -ENOMEM;
  if (!status && bench->options.links_file)
    status = file_write(bench, object);
  if (status || bench->options.is_json) {
    if (!status)
      status = json_print(json_incref(object));
    json_decref(object);
    return status;
  }
  json_decref(object);
  printf("%d ranks on %lld nodes, %s\n", bench->job.launch.world, (long long)cluster->n_nodes,
         bench->gpu ? "GPUs over NCCL" : "hosts over MPI");
  for (int i = 0; i < cluster->n_levels; i++)
    printf("%-8s %4lld ranks  %8.2f GB/s of a rank in collectives  %8.1f us a hop  sums %.2f times as fast\n",
           cluster->levels[i].name, (long long)cluster->levels[i].n_devices, cluster->levels[i].bytes_per_s / 1e9,
           cluster->levels[i].latency_ns / 1e3, cluster->levels[i].sum_gain);
  return 0;
}

static int bench_run(struct links_bench *bench)
{
  const struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&bench->job.kernels, &cpu);
  if (bench->job.launch.world == 1)
    return lade_error_set(&bench->error, -EINVAL, "one rank has no links: lade launch -n N -- bench links");
  if (bench->options.device == DEVICE_DRY || bench->options.device == DEVICE_AUTO)
    return lade_error_set(&bench->error, -EINVAL, "--device: links of host or of cuda:N are measured");
  int status = job_join(&bench->job, WAIT_S, &bench->error);
  if (!status)
    status = lade_rank_group_join(bench->job.world, &bench->error, &bench->group);
  if (!status)
    status = gpu_open(bench);
  if (!status)
    status = cluster_measure(bench);
  return status || !job_is_first(&bench->job) ? status : results_print(bench);
}

/* Release everything after @status, and leave the job. Return the exit code. */
static int bench_finish(struct links_bench *bench, int status)
{
  lade_cuda_kernels_close(bench->gpu_kernels);
  lade_device_close(bench->gpu);
  lade_rank_group_close(&bench->group);
  return job_leave(&bench->job, status, &bench->error);
}

int bench_links_main(int argc, char **argv)
{
  struct links_bench bench = {.error = {0}};
  int status = job_read(&bench.job, VERB_BENCH_LINKS, &bench.error);
  int code = status ? exit_fail("bench links", status, &bench.error)
                    : job_options_read(&bench.job, argc, argv, &bench.options);
  if (code == OPTIONS_GO)
    code = bench_finish(&bench, bench_run(&bench));
  options_finish(&bench.options);
  return code;
}
