/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measured links between the ranks of a session.
 *
 * Recall. The first rank looks for the links that an earlier job of as many ranks on the same machine kept. By their
 * prices it decides between the two forms of a send: whole, or scattered with a gather after it (links.c), as
 * `lade plan --cluster` does. It broadcasts links and decision, because all ranks must send in one form. The links also
 * price the program's collectives and sends. Without kept links a send between nodes is scattered, because a network is
 * slower than a node's own links. The bits of both forms are equal.
 *
 * Measurement. A job that took at least LINKS_AFTER_NS, and has no kept links, measures them after its last step and
 * its summary. So short jobs neither start nor end later. Arena and executor are released first; the buffers to measure
 * in stay within the budget of the run.
 */
#include "run/session/session_internal.h"

#define LINKS_AFTER_NS INT64_C(60000000000)

/* True if this session's machine is the one that its ranks run on, so that its links may be kept. */
static bool is_own_machine(const lade_session *s)
{
  return !s->params.machine && !s->params.skip_cache && !s->params.is_dry && s->links_key.n_nodes > 0;
}

static struct lade_probe_params probe_params(const lade_session *s, const struct lade_probe_gpu *gpu)
{
  return (struct lade_probe_params){.struct_size = sizeof(struct lade_probe_params), .kernels = &s->host_kernels,
                                    .gpu = s->params.is_gpu ? gpu : NULL};
}

/* Find the kept links of the session's ranks. */
static bool links_recall(const lade_session *s, struct lade_cluster *ret_cluster)
{
  const struct lade_probe_gpu gpu = {s->device, s->cuda_kernels};
  const struct lade_probe_params probe = probe_params(s, &gpu);
  struct lade_links_key key = s->links_key;
  struct lade_comm_info info;
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    if (!s->group.gpu_axes[axis])
      continue;
    lade_comm_get_info(s->group.gpu_axes[axis], &info);
    key.version = info.version;
  }
  return is_own_machine(s) && lade_links_recall(&probe, &key, ret_cluster);
}

/* Decide by price if boundary values are sent in the scattered form. */
static bool sends_scattered(const lade_session *s, const struct lade_cluster *cluster)
{
  const double values = (double)s->params.micro_batch * (double)s->params.seq_len * (double)s->model.width;
  const double bytes = values * (double)lade_dtype_bytes(s->params.dtype);
  return lade_cluster_sends_scattered(cluster, &s->group.layout.mesh, bytes);
}

int session_links_take(lade_session *s, struct lade_error *error)
{
  const lade_session *template_session = s->params.template_session;
  const struct lade_mesh *mesh = &s->group.layout.mesh;
  struct {
    struct lade_cluster cluster;
    bool is_scattered;
  } recalled = {0};
  if (template_session) {
    s->links = template_session->links;
    s->has_links = template_session->has_links;
    s->is_scattered = template_session->is_scattered;
    return 0;
  }
  if (mesh->world == 1)
    return 0;
  const bool recalls = lade_rank_group_is_first(&s->group) || !s->group.world;
  if (recalls && links_recall(s, &recalled.cluster))
    recalled.is_scattered = sends_scattered(s, &recalled.cluster);
  int status = lade_rank_group_broadcast(&s->group, 0, &recalled, sizeof(recalled), error);
  if (status || !recalled.cluster.n_levels)
    return status;
  lade_cluster_links_make(&recalled.cluster, mesh, &s->links);
  s->has_links = true;
  s->is_scattered = recalled.is_scattered;
  return 0;
}

/* Measure the links, and keep them at the first rank. pre: the executor is released. */
static int links_measure(lade_session *s, struct lade_error *error)
{
  const struct lade_probe_gpu gpu = {s->device, s->cuda_kernels};
  const struct lade_probe_params probe = probe_params(s, &gpu);
  const struct lade_links_params params = {
      .struct_size = sizeof(params), .world = s->group.world, .n_node_ranks = (int)s->links_key.n_node_ranks,
      .kernels = &s->host_kernels, .gpu = s->params.is_gpu ? s->device : NULL};
  struct lade_links_key key = s->links_key;
  struct lade_cluster cluster;
  int status = lade_links_measure(&params, error, &cluster, &key.version);
  if (!status && lade_rank_group_is_first(&s->group))
    lade_links_keep(&probe, &key, &cluster);
  return status;
}

int lade_session_keep_links(lade_session *s, int64_t run_ns, struct lade_error *error)
{
  struct lade_cluster cluster;
  const int64_t after_ns = s->params.links_after_ns ? s->params.links_after_ns : LINKS_AFTER_NS;
  double is_due = is_own_machine(s) && run_ns >= after_ns && s->budget_bytes >= lade_links_bytes(s->params.is_gpu) &&
                  !links_recall(s, &cluster);
  if (!s->group.world)
    return 0;
  int status = lade_rank_group_take(&s->group, 0, &is_due, error); /* the first rank's clock and file decide */
  if (status || is_due == 0)
    return status;
  session_saver_close(s->saver);
  s->saver = NULL;
  lade_executor_destroy(s->executor);
  s->executor = NULL;
  return links_measure(s, error);
}
