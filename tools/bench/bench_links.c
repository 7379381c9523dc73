/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade bench links`: measures the links between the ranks of a job and describes them as a cluster (docs/cluster.md).
 *
 * Two levels. Ranks of a node are joined by its memory: the level "node". One rank of each node forms a group with
 * those at the same place on other nodes, and all such groups work at once: the level "network". A level is measured by
 * collectives over a group of n ranks, on host memory that ranks of a node share, as a step's buffers are:
 *
 *   latency   an all-gather of a few bytes, over n - 1 hops
 *   rate      an all-gather of B bytes from each rank: (n - 1) B over the time beyond the latency
 *   sum gain  two such all-gathers beside an all-reduce of n B bytes, which sends as much
 *
 * Each time is the least of N_ROUNDS rounds, because other work only adds to it, averaged over all ranks. The devices
 * are this machine's cores, measured by the probe once and kept; ranks of a node have equal shares of its memory.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/cpu.h"
#include "machine/cluster.h"
#include "machine/probe.h"
#include "tools/cli/verbs.h"
#include "tools/job/job.h"
#include "tools/report/report.h"

#define N_ROUNDS 7
#define GATHERED_BYTES (UINT64_C(16) << 20) /* of all ranks of a group together: beyond caches, and short */
#define SMALL_WORDS 16
#define WAIT_S 60

struct links_bench {
  struct job job;
  struct options options;
  struct lade_error error;
  struct lade_cluster cluster;
};

/* ---- one level ---- */

struct level_bench {
  lade_comm *group; /* borrowed */
  lade_comm *world; /* borrowed: times are averaged over it */
  float *src, *dst;
};

static double now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Replace *@ns by its average over all ranks, so that they agree. */
static int average(lade_comm *world, double *ns, struct lade_error *error)
{
  float value = (float)(*ns / lade_comm_size(world)), sum = 0;
  const struct lade_collective all = {.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = 1, .src = &value, .dst = &sum};
  int status = lade_comm_run(world, &all, error);
  *ns = sum;
  return status;
}

/* Measure a collective of @n words of each rank: gathered, or (all-reduce) summed. */
static int collective_measure(const struct level_bench *bench, enum lade_collective_kind kind, uint64_t n,
                              struct lade_error *error, double *ret_ns)
{
  const struct lade_collective work = {.kind = kind, .dtype = LADE_F32, .n = n, .src = bench->src, .dst = bench->dst};
  const struct lade_collective meeting = {.kind = LADE_BARRIER};
  double least_ns = INFINITY;
  int status = lade_comm_run(bench->group, &work, error); /* connects, and touches the buffers */
  for (int round = 0; round < N_ROUNDS && !status; round++) {
    status = lade_comm_run(bench->group, &meeting, error);
    const double begin_ns = now_ns();
    if (!status)
      status = lade_comm_run(bench->group, &work, error);
    least_ns = LADE_MIN(least_ns, now_ns() - begin_ns);
  }
  if (!status)
    status = average(bench->world, &least_ns, error);
  *ret_ns = least_ns;
  return status;
}

static int level_measure(const struct level_bench *bench, struct lade_error *error, struct lade_cluster_level *level)
{
  const uint64_t size = (uint64_t)lade_comm_size(bench->group);
  const uint64_t block = GATHERED_BYTES / sizeof(float) / size;
  double small_ns = 0, large_ns = 0, sum_ns = 0;
  int status = collective_measure(bench, LADE_ALL_GATHER, SMALL_WORDS, error, &small_ns);
  if (!status)
    status = collective_measure(bench, LADE_ALL_GATHER, block, error, &large_ns);
  if (!status)
    status = collective_measure(bench, LADE_ALL_REDUCE, block * size, error, &sum_ns);
  if (status)
    return status;
  const double moved = (double)((size - 1) * block * sizeof(float));
  level->latency_ns = small_ns / (double)(size - 1);
  level->bytes_per_s = moved / LADE_MAX(large_ns - small_ns, large_ns / 10) * 1e9;
  level->sum_gain = LADE_MIN(LADE_MAX(2 * large_ns / sum_ns, 1), 4);
  level->oversubscription = 1;
  return 0;
}

/* Measure the level @name over the group of @colour, unless every group is a rank alone. */
static int level_add(struct links_bench *bench, const char *name, int colour, int key, int64_t n_devices)
{
  lade_comm *world = bench->job.world;
  struct level_bench level = {.world = world};
  struct lade_cluster *cluster = &bench->cluster;
  struct lade_cluster_level *found = &cluster->levels[cluster->n_levels];
  int status = lade_comm_split(world, colour, key, &bench->error, &level.group);
  if (status)
    return status;
  void *buffers = NULL;
  status = lade_comm_alloc(world, 2 * GATHERED_BYTES, &bench->error, &buffers); /* as steps exchange: without staging */
  if (!status) {
    level.src = buffers;
    level.dst = level.src + GATHERED_BYTES / sizeof(float);
    snprintf(found->name, sizeof(found->name), "%s", name);
    found->n_devices = n_devices;
    status = level_measure(&level, &bench->error, found);
    cluster->n_levels += !status;
    lade_comm_free(world, buffers);
  }
  lade_comm_close(level.group);
  return status;
}

/* ---- the cluster ---- */

/* Return the ranks of a node, equal at all nodes; 1 without a launcher's word. */
static int node_ranks(struct links_bench *bench)
{
  const struct lade_launch *launch = &bench->job.launch;
  if (launch->local_world > 0 && launch->world % launch->local_world == 0)
    return launch->local_world;
  return lade_error_set(&bench->error, -EINVAL, "the launcher says that %d of %d ranks are on this node: equal numbers "
                        "on all nodes are measured", launch->local_world, launch->world);
}

/* Fill the devices from the probe of this machine, at the first rank. Others wait for it at the next collective. */
static int device_fill(struct links_bench *bench, int n_node)
{
  const struct lade_cpu cpu = lade_cpu_get();
  const struct lade_probe_params how = {.struct_size = sizeof(how), .kernels = &bench->job.kernels};
  struct lade_cluster *cluster = &bench->cluster;
  struct lade_cost cost;
  lade_kernels_init(&bench->job.kernels, &cpu);
  int status = lade_probe(&how, &bench->error, &cost);
  if (status)
    return status;
  cluster->device = cost.machine;
  lade_cost_finish(&cost);
  cluster->node_host_bytes = cluster->device.host_bytes;
  cluster->device.host_bytes /= (uint64_t)n_node;
  cluster->device.device_bytes /= (uint64_t)n_node;
  cluster->usable_device_bytes = cluster->device.device_bytes;
  for (int dtype = 0; dtype < LADE_N_DTYPES; dtype++)
    cluster->peak_flops_per_s = LADE_MAX(cluster->peak_flops_per_s, cluster->device.matmul_flops_per_s[dtype]);
  return 0;
}

/* Measure all levels, and describe the cluster at the first rank. */
static int cluster_measure(struct links_bench *bench)
{
  const struct lade_launch *launch = &bench->job.launch;
  struct lade_cluster *cluster = &bench->cluster;
  const int n_node = node_ranks(bench);
  if (n_node < 0)
    return n_node;
  const int n_nodes = launch->world / n_node;
  int status = 0;
  *cluster = (struct lade_cluster){.name = "measured", .n_nodes = n_nodes, .n_node_devices = n_node,
                                   .error_share = 0.3};
  if (n_node > 1)
    status = level_add(bench, "node", launch->rank / n_node, launch->local_rank, n_node);
  if (!status && n_nodes > 1)
    status = level_add(bench, "network", launch->local_rank, launch->rank, launch->world);
  if (status || !job_is_first(&bench->job))
    return status;
  status = device_fill(bench, n_node);
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
  printf("%d ranks on %lld nodes; best of %d rounds\n", bench->job.launch.world, (long long)cluster->n_nodes,
         N_ROUNDS);
  for (int i = 0; i < cluster->n_levels; i++)
    printf("%-8s %4lld ranks  %8.2f GB/s of a rank in collectives  %8.1f us a hop  sums %.2f times as fast\n",
           cluster->levels[i].name, (long long)cluster->levels[i].n_devices, cluster->levels[i].bytes_per_s / 1e9,
           cluster->levels[i].latency_ns / 1e3, cluster->levels[i].sum_gain);
  return 0;
}

static int bench_run(struct links_bench *bench)
{
  if (bench->job.launch.world == 1)
    return lade_error_set(&bench->error, -EINVAL, "one rank has no links: lade launch -n N -- bench links");
  int status = job_join(&bench->job, WAIT_S, &bench->error);
  if (!status)
    status = cluster_measure(bench);
  return status || !job_is_first(&bench->job) ? status : results_print(bench);
}

int bench_links_main(int argc, char **argv)
{
  struct links_bench bench = {.error = {0}};
  int status = job_read(&bench.job, &bench.error);
  int code = status ? exit_fail("bench links", status, &bench.error)
                    : job_options_read(&bench.job, VERB_BENCH_LINKS, argc, argv, &bench.options);
  if (code == OPTIONS_GO)
    code = job_leave(&bench.job, "bench links", bench_run(&bench), &bench.error);
  options_finish(&bench.options);
  return code;
}
