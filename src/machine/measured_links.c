/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measure the links of a running job, and keep them.
 *
 * Two levels. Ranks of a node are joined by its memory, or by the links of its GPUs: the level "node". One rank of each
 * node forms a group with those at the same place on other nodes, and all such groups work at once: the level
 * "network". A level is measured by collectives over a group of n ranks, in memory that a step's buffers have too:
 *
 *   latency   an all-gather of a few bytes, over n - 1 hops
 *   rate      an all-gather of B bytes from each rank: (n - 1) B over the time beyond the latency
 *   sum gain  two such all-gathers beside an all-reduce of n B bytes, which sends as much
 *
 * On GPUs several collectives follow each other on a queue, and their mean counts. A step's collectives are queued as
 * well, so their launches cost no time of the device. Each time is the least of N_ROUNDS rounds, because other work
 * only adds to it, averaged over all ranks.
 *
 * The file is a cache, as the probe's: any defect of it means that there are no kept links.
 */
#include "machine/measured_links.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

#include "base/base.h"
#include "base/file.h"
#include "machine/probe_internal.h"

#define N_ROUNDS 7 /* of which the shortest counts */
#define HOST_BYTES (UINT64_C(16) << 20) /* of all ranks of a group together: beyond caches, and short */
#define GPU_BYTES (UINT64_C(32) << 20)
#define SMALL_WORDS 16  /* of each rank, to measure the latency */
#define SMALL_PIECES 32 /* collectives in a row on a GPU */
#define LARGE_PIECES 4  /* the same, of long ones */

#define FORMAT 2                 /* version of the file; another one is not read */
#define MAX_FILE_BYTES (1 << 16) /* far more than six levels take */

/* ---- one level ---- */

struct level_bench {
  const struct lade_links_params *params;
  lade_comm *hosts;   /* of the group */
  lade_comm *group;   /* the same, or of their GPUs */
  lade_queue *queue; /* of the GPU; NULL: on hosts */
  float *src, *dst;
};

/* Replace *@value by its sum over all ranks. */
static int ranks_sum(lade_comm *world, float *value, struct lade_error *error)
{
  const float own = *value;
  const struct lade_collective all = {.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = 1, .src = &own, .dst = value};
  return lade_comm_run(world, &all, error);
}

/* Replace *@ns by its average over all ranks, so that they agree. */
static int average(lade_comm *world, double *ns, struct lade_error *error)
{
  float sum = (float)(*ns / lade_comm_size(world));
  const int status = ranks_sum(world, &sum, error);
  *ns = sum;
  return status;
}

/* Return @status, or -ENOMEM if it is 0 and another rank's is not. So no rank waits for one that has left. */
static int vote(lade_comm *world, int status, struct lade_error *error)
{
  float n_failed = status != 0;
  const int met = ranks_sum(world, &n_failed, status ? NULL : error);
  if (status || met || n_failed == 0)
    return status ? status : met;
  return lade_error_set(error, -ENOMEM, "links are not measured: another rank has no queue or no memory for it");
}

/* Run @work @n_pieces times: on the GPU's queue, or once on the calling thread. */
static int pieces_run(const struct level_bench *bench, const struct lade_collective *work, int n_pieces,
                      struct lade_error *error)
{
  struct lade_comm_work works[SMALL_PIECES];
  uint64_t count = 0;
  int status = 0;
  if (!bench->queue)
    return lade_comm_run(bench->group, work, error);
  LADE_ASSERT(n_pieces <= SMALL_PIECES);
  for (int i = 0; i < n_pieces && !status; i++) {
    works[i] = (struct lade_comm_work){.list = {work, 1}};
    status = lade_comm_launch(bench->group, bench->queue, &works[i], &count);
  }
  const int ended = lade_queue_sync(bench->queue, count);
  const int failed = lade_comm_status(bench->group, error);
  status = failed ? failed : status ? status : ended;
  return status && !failed ? lade_error_set(error, status, "links are not measured: %s", strerror(-status)) : status;
}

/* Measure a collective of @n words of each rank: gathered, or (all-reduce) summed. */
static int collective_measure(const struct level_bench *bench, enum lade_collective_kind kind, uint64_t n,
                              int n_pieces, struct lade_error *error, double *ret_ns)
{
  const struct lade_collective work = {.kind = kind, .dtype = LADE_F32, .n = n, .src = bench->src, .dst = bench->dst};
  const struct lade_collective meeting = {.kind = LADE_BARRIER};
  double min_ns = INFINITY;
  int status = pieces_run(bench, &work, 1, error); /* connects, and touches the buffers */
  for (int round = 0; round < N_ROUNDS && !status; round++) {
    status = lade_comm_run(bench->hosts, &meeting, error);
    const int64_t begin_ns = lade_now_ns();
    if (!status)
      status = pieces_run(bench, &work, n_pieces, error);
    min_ns = LADE_MIN(min_ns, (double)(lade_now_ns() - begin_ns) / (bench->queue ? n_pieces : 1));
  }
  if (!status)
    status = average(bench->params->world, &min_ns, error);
  *ret_ns = min_ns;
  return status;
}

static int level_measure(const struct level_bench *bench, uint64_t bytes, struct lade_error *error,
                         struct lade_cluster_level *level)
{
  const uint64_t size = (uint64_t)lade_comm_size(bench->group), block = bytes / sizeof(float) / size;
  double small_ns = 0, large_ns = 0, sum_ns = 0;
  int status = collective_measure(bench, LADE_ALL_GATHER, SMALL_WORDS, SMALL_PIECES, error, &small_ns);
  if (!status)
    status = collective_measure(bench, LADE_ALL_GATHER, block, LARGE_PIECES, error, &large_ns);
  if (!status)
    status = collective_measure(bench, LADE_ALL_REDUCE, block * size, LARGE_PIECES, error, &sum_ns);
  if (status)
    return status;
  const double moved = (double)((size - 1) * block * sizeof(float));
  level->latency_ns = small_ns / (double)(size - 1);
  level->bytes_per_s = moved / LADE_MAX(large_ns - small_ns, large_ns / 10) * 1e9;
  level->sum_gain = LADE_MIN(LADE_MAX(2 * large_ns / sum_ns, 1), 4);
  level->oversubscription = 1;
  return 0;
}

/* Open the group's communicator of GPUs, with its queue; on hosts the group is that of hosts. */
static int group_open(struct level_bench *bench, struct lade_error *error)
{
  const struct lade_links_params *params = bench->params;
  const struct lade_launch launch = {.rank = lade_comm_rank(params->world), .world = lade_comm_size(params->world)};
  const struct lade_comm_params comm_params = {.struct_size = sizeof(comm_params), .engine = LADE_COMM_NCCL,
                                               .launch = &launch, .kernels = params->kernels,
                                               .device = params->gpu, .control = bench->hosts};
  bench->group = bench->hosts;
  if (!params->gpu)
    return 0;
  bench->group = NULL;
  int status = lade_comm_open(&comm_params, error, &bench->group);
  if (status)
    return status;
  status = lade_queue_create(params->gpu, LADE_QUEUE_COMM, &bench->queue);
  return status ? lade_error_set(error, status, "the GPU refused a queue (%s)", strerror(-status)) : 0;
}

static void group_close(struct level_bench *bench)
{
  lade_queue_destroy(bench->queue);
  if (bench->group != bench->hosts)
    lade_comm_close(bench->group);
  lade_comm_close(bench->hosts);
}

uint64_t lade_links_bytes(bool is_gpu)
{
  return 2 * (is_gpu ? GPU_BYTES : HOST_BYTES);
}

/* Measure a level over the open groups of @bench, or leave with all ranks if @status of one of them is not 0. */
static int group_measure(struct level_bench *bench, int status, struct lade_error *error,
                         struct lade_cluster_level *level)
{
  const uint64_t bytes = lade_links_bytes(bench->queue != NULL) / 2;
  lade_comm *world = bench->params->world;
  /* Measure in windows of the world, without staging, as steps on hosts exchange. */
  lade_comm *owner = bench->queue ? bench->group : world;
  void *buffers = NULL;
  status = vote(world, status, error);
  if (status)
    return status;
  status = vote(world, lade_comm_alloc(owner, 2 * bytes, error, &buffers), error);
  if (!status) {
    bench->src = buffers;
    bench->dst = bench->src + bytes / sizeof(float);
    status = level_measure(bench, bytes, error, level);
  }
  if (buffers)
    lade_comm_free(owner, buffers);
  return status;
}

/* Measure the level @name of @n_devices ranks over the groups by @colour. */
static int level_add(const struct lade_links_params *params, const char *name, int colour, int64_t n_devices,
                     struct lade_error *error, struct lade_cluster *cluster, int *version)
{
  struct level_bench bench = {.params = params};
  struct lade_cluster_level *found = &cluster->levels[cluster->n_levels];
  struct lade_comm_info info;
  int status = lade_comm_split(params->world, colour, lade_comm_rank(params->world), error, &bench.hosts);
  if (status)
    return status;
  *found = (struct lade_cluster_level){.n_devices = n_devices};
  snprintf(found->name, sizeof(found->name), "%s", name);
  status = group_measure(&bench, group_open(&bench, error), error, found);
  if (!status) {
    lade_comm_get_info(bench.group, &info);
    *version = info.version;
    if (bench.queue) { /* messages of NCCL: levels state the latency of long ones */
      cluster->nccl_version = info.version;
      found->latency_ns /= lade_cluster_short_share(cluster, lade_comm_size(bench.group), cluster->n_levels > 0);
    }
    cluster->n_levels++;
  }
  group_close(&bench);
  return status;
}

int lade_links_measure(const struct lade_links_params *params, struct lade_error *error,
                       struct lade_cluster *ret_cluster, int *ret_version)
{
  const int world = lade_comm_size(params->world), rank = lade_comm_rank(params->world);
  const int n_node = params->n_node_ranks, n_nodes = world / n_node;
  struct lade_cluster cluster = {.n_nodes = n_nodes, .n_node_devices = n_node};
  int status = 0, version = 0;
  LADE_ASSERT(n_node > 0 && world % n_node == 0 && world > 1);
  if (n_node > 1)
    status = level_add(params, "node", rank / n_node, n_node, error, &cluster, &version);
  if (!status && n_nodes > 1)
    status = level_add(params, "network", rank % n_node, world, error, &cluster, &version);
  if (status)
    return status;
  *ret_cluster = cluster;
  *ret_version = version;
  return 0;
}

/* ---- kept links ---- */

uint64_t lade_links_host(void)
{
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof(name) - 1);
  return XXH3_64bits(name, strlen(name));
}

void lade_links_key_add_node(struct lade_links_key *key, uint64_t first_host, uint64_t host)
{
  const uint64_t pair[] = {first_host, host};
  if (key->n_nodes++)
    key->hosts = XXH3_64bits_withSeed(pair, sizeof(pair), key->hosts);
}

/*
 * The key of a file of links. NCCL's version is in the file, not in its key: a plan does not load NCCL and cannot know
 * the version.
 */
struct links_identity {
  char machine[LADE_MACHINE_NAME_BYTES];
  int64_t n_nodes, n_node_ranks;
  uint64_t hosts, is_gpu;
};

static bool links_path(const struct lade_probe_params *probe, const struct lade_links_key *key, bool is_written,
                       struct links_identity *ret_identity, char ret_path[PATH_MAX])
{
  char dir[PATH_MAX];
  memset(ret_identity, 0, sizeof(*ret_identity)); /* padding too: the struct is hashed whole */
  probe_machine_name(probe, ret_identity->machine);
  ret_identity->n_nodes = key->n_nodes;
  ret_identity->n_node_ranks = key->n_node_ranks;
  ret_identity->hosts = key->hosts;
  ret_identity->is_gpu = probe->gpu != NULL;
  const uint64_t hash = XXH3_64bits_withSeed(ret_identity, sizeof(*ret_identity), FORMAT);
  return probe_cache_dir(probe, is_written, dir) &&
         snprintf(ret_path, PATH_MAX, "%s/links-%016" PRIx64 ".json", dir, hash) < PATH_MAX;
}

static json_t *identity_json(const struct links_identity *identity)
{
  char hosts[17];
  snprintf(hosts, sizeof(hosts), "%016" PRIx64, identity->hosts);
  return json_pack("{s:i,s:s,s:s,s:s,s:I,s:I}", "format", FORMAT, "machine", identity->machine, "engine",
                   identity->is_gpu ? "nccl" : "hosts", "hosts", hosts, "nodes", (json_int_t)identity->n_nodes,
                   "devices_per_node", (json_int_t)identity->n_node_ranks);
}

/* Read the levels of @root if it is of @identity and @version. */
static bool links_read(const json_t *root, const struct links_identity *identity, int version,
                       struct lade_cluster *cluster)
{
  json_t *wanted = identity_json(identity);
  bool is_good = wanted && json_is_object(root);
  const char *name;
  json_t *value;
  json_object_foreach(wanted, name, value)
    is_good = is_good && json_equal(value, json_object_get(root, name));
  json_decref(wanted);
  const json_int_t kept = json_integer_value(json_object_get(root, "version"));
  cluster->nccl_version = identity->is_gpu ? kept : 0;
  return is_good && (!version || kept == version) &&
         !lade_cluster_levels_from_json(json_object_get(root, "levels"), "kept links", NULL, cluster);
}

bool lade_links_recall(const struct lade_probe_params *probe, const struct lade_links_key *key,
                       struct lade_cluster *ret_cluster)
{
  struct lade_cluster cluster = {.n_nodes = key->n_nodes, .n_node_devices = key->n_node_ranks};
  struct links_identity identity;
  char path[PATH_MAX], *text;
  size_t bytes;
  if (!links_path(probe, key, false, &identity, path) || lade_file_load(path, MAX_FILE_BYTES, NULL, &text, &bytes))
    return false;
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
  const bool is_good = root && links_read(root, &identity, key->version, &cluster);
  free(text);
  json_decref(root);
  if (is_good)
    *ret_cluster = cluster;
  return is_good;
}

void lade_links_keep(const struct lade_probe_params *probe, const struct lade_links_key *key,
                     const struct lade_cluster *cluster)
{
  struct links_identity identity;
  char path[PATH_MAX];
  if (!links_path(probe, key, true, &identity, path))
    return;
  json_t *root = identity_json(&identity);
  json_object_set_new(root, "version", json_integer(key->version));
  if (json_object_set_new(root, "levels", lade_cluster_levels_to_json(cluster))) {
    json_decref(root);
    return;
  }
  probe_file_save(path, root);
  json_decref(root);
}
