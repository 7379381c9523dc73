/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU part of a session: its device, its kernels, and its communicators with the GPUs of other ranks.
 *
 * The device is opened before planning, because its free memory is the capacity of a plan. Its kernels are opened
 * before the graph, because they state the scratch of each op. Both are then as at the start of the run: context and
 * machine code are loaded, and their memory does not count as free. Once there is a budget, the device is limited to
 * it.
 *
 * Each rank takes a GPU of its own, because NCCL and budgets require that. A launcher may show all ranks of a machine
 * all of its GPUs, or each rank one, or some, or a slice. So ordinals identify nothing, and PCI addresses do not
 * either, because slices of a GPU share one. Ranks therefore exchange the UUIDs of the GPUs that they see, and all
 * compute the same assignment. In rank order, each takes the first GPU from its --device on that no earlier rank of its
 * machine has. NCCL's communicators are opened and warmed up before memory is measured, so NCCL's memory is not planned
 * for. The warm-up needs the graph, so the free memory is measured a second time behind it. Agreements use the hosts'
 * communicators, as in every session.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host_id.h"
#include "device/cuda.h"
#include "kernels/cuda.h"
#include "run/session/session_internal.h"

#define WINDOW_SHARE 4     /* of a GPU's free memory, the most for buffers to warm up NCCL */
#define STAGE_CHANNELS 16 /* streams of a stage: compute, copies, and two for each axis */

/* The GPUs that a rank sees, in a form that other ranks can compare. */
struct rank_gpus {
  uint64_t node;              /* the machine of rank and GPUs */
  int rank;
  int first;                  /* ordinal of the first GPU that the rank may take */
  int taken;                  /* ordinal of the GPU that it takes; -1: none is left */
  struct lade_cuda_seen seen; /* by ordinal of the rank */
};

/* Return the index among @ranks[0..i) of the rank that takes GPU @name; -1: none. */
static int holder_find(const struct rank_gpus *ranks, int i, const struct lade_cuda_name *name)
{
  for (int other = 0; other < i; other++)
    if (ranks[other].taken >= 0 && !memcmp(&ranks[other].seen.names[ranks[other].taken], name, sizeof(*name)))
      return other;
  return -1;
}

/* Assign GPUs to the ranks of one machine, in order: each takes the first that it sees and that no earlier rank has. */
static void gpus_assign(struct rank_gpus *ranks, int n)
{
  for (int i = 0; i < n; i++) {
    ranks[i].taken = -1;
    for (int at = ranks[i].first; at < ranks[i].seen.n && ranks[i].taken < 0; at++)
      ranks[i].taken = holder_find(ranks, i, &ranks[i].seen.names[at]) < 0 ? at : -1;
  }
}

/* Write the UUID into @text in the form of nvidia-smi: "57ad0000-0000-0000-0000-000000000002". Return @text. */
static const char *uuid_write(const struct lade_cuda_name *name, char text[40])
{
  size_t at = 0;
  for (size_t i = 0; i < sizeof(name->uuid); i++) {
    const bool is_part = i == 4 || i == 6 || i == 8 || i == 10;
    at += (size_t)snprintf(text + at, 40 - at, "%s%02x", is_part ? "-" : "", name->uuid[i]);
  }
  return text;
}

/* Choose this rank's GPU, an ordinal of this process, from the GPUs that all ranks see. */
static int gpu_choose(struct rank_gpus *all, int world, int rank, int *ret_ordinal, struct lade_error *error)
{
  char text[40];
  const uint64_t node = all[rank].node;
  int n = 0, own = 0;
  for (int i = 0; i < world; i++) {
    own = i == rank ? n : own;
    if (all[i].node == node)
      all[n++] = all[i]; /* other machines have other GPUs */
  }
  gpus_assign(all, n);
  const struct rank_gpus *own_gpus = &all[own];
  *ret_ordinal = LADE_MAX(own_gpus->taken, own_gpus->first);
  if (own_gpus->taken >= 0 || own_gpus->first >= own_gpus->seen.n) /* opening reports an ordinal that does not exist */
    return 0;
  const struct lade_cuda_name *name = &own_gpus->seen.names[own_gpus->first];
  return lade_error_set(error, -ENODEV, "ranks %d and %d would share the GPU %s; each needs one of its own: start as "
                        "many ranks as there are GPUs, and let each see all of them, or those of its own",
                        all[holder_find(all, own, name)].rank, rank, uuid_write(name, text));
}

/*
 * Refuse stages on a device whose streams share hardware channels. A stage's receive waits for the stage before it, the
 * computation waits for the receive, and a send behind that wait in one channel would never reach the stage that the
 * receive waits for.
 */
static int channels_check(const lade_session *s, struct lade_error *error)
{
  const int n = lade_cuda_n_channels();
  if (s->group.layout.mesh.axes[LADE_AXIS_PP].size == 1 || n >= STAGE_CHANNELS)
    return 0;
  return lade_error_set(error, -EINVAL, "%s gives streams %d hardware channels, and stages of a pipeline need %d: set "
                        "it to %d before the process starts CUDA", LADE_CUDA_CHANNELS_VARIABLE, n, STAGE_CHANNELS,
                        LADE_CUDA_CHANNELS_MOST);
}

/* Find the ordinal of the GPU that this rank takes; collective. */
static int gpu_find(lade_session *s, int *ret_ordinal, struct lade_error *error)
{
  struct rank_gpus own = {.node = lade_host_id(), .rank = s->group.layout.rank, .first = s->params.gpu};
  struct rank_gpus *all = NULL;
  *ret_ordinal = s->params.gpu;
  if (!s->group.world)
    return 0;
  int status = channels_check(s, error);
  status = lade_rank_group_vote(&s->group, status ? status : lade_cuda_list(error, &own.seen), error);
  if (!status)
    status = lade_rank_group_collect(&s->group, &own, sizeof(own), s->params.faults, error, (void **)&all);
  if (!status) {
    status = gpu_choose(all, lade_comm_size(s->group.world), own.rank, ret_ordinal, error);
    status = lade_rank_group_vote(&s->group, status, error);
  }
  free(all);
  return status;
}

/* Open the device of @ordinal and its kernels. */
static int gpu_open(lade_session *s, int ordinal, struct lade_error *error)
{
  const struct lade_cuda_device_params how = {.struct_size = sizeof(how), .ordinal = ordinal,
                                              .faults = s->params.faults};
  struct lade_error why = {0};
  int status = lade_device_open_cuda(&how, error, &s->device);
  if (status)
    return status;
  status = lade_cuda_kernels_open(s->device, NULL, &why, &s->cuda_kernels);
  if (status) /* missing machine code is a missing part of the machine, not a mistake */
    lade_error_set(error, status == -ENOENT ? -ENODEV : status, "device cuda:%d: %s", ordinal, why.text);
  return status == -ENOENT ? -ENODEV : status;
}

/* Limit the device to its free memory, the capacity of a plan. pre: memory of the first use is taken. */
static int gpu_limit(lade_session *s, struct lade_error *error)
{
  struct lade_cuda_memory memory;
  int status = lade_cuda_get_memory(s->device, &memory);
  if (status)
    lade_cuda_get_error(s->device, error);
  else
    lade_device_limit(s->device, memory.free_bytes);
  return status;
}

/* Limit the device to its free memory, and find the least capacity of any rank; collective. */
static int capacity_find(lade_session *s, struct lade_error *error)
{
  struct lade_device_info info;
  int status = lade_rank_group_vote(&s->group, gpu_limit(s, error), error);
  if (status)
    return status;
  lade_device_get_info(s->device, &info);
  s->capacity_bytes = info.capacity_bytes;
  s->chunk_bytes = info.chunk_bytes;
  return s->group.world ? session_agree_least(s, &s->capacity_bytes, error) : 0;
}

/*
 * Open device, kernels and communicators as session_gpu_open states. After a failure the session owns those that are
 * open.
 */
static int gpu_take(lade_session *s, struct lade_error *error)
{
  int ordinal = 0, status = 0;
  if (s->params.throttle.bytes_per_s || s->params.throttle.latency_ns)
    status = lade_error_set(error, -EINVAL, "--link-rate throttles copies of the host device; a GPU has a link of its "
                            "own");
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status)
    status = gpu_find(s, &ordinal, error);
  if (!status)
    status = lade_rank_group_vote(&s->group, gpu_open(s, ordinal, error), error);
  if (!status && s->group.world)
    status = lade_rank_group_open_gpus(&s->group, &s->host_kernels, s->device, error);
  if (!status)
    status = capacity_find(s, error);
  if (status)
    return status;
  lade_cuda_kernels_get(s->cuda_kernels, &s->kernels);
  if (*lade_cuda_kernels_note(s->cuda_kernels))
    session_notice(s, "%s", lade_cuda_kernels_note(s->cuda_kernels));
  if (*lade_cuda_kernels_attention_note(s->cuda_kernels))
    session_notice(s, "%s", lade_cuda_kernels_attention_note(s->cuda_kernels));
  return 0;
}

int session_gpu_warm(lade_session *s, struct lade_error *error)
{
  if (!s->params.is_gpu || !s->group.world)
    return 0;
  int status = lade_rank_group_warm_gpus(&s->group, s->graph, s->capacity_bytes / WINDOW_SHARE, s->device, error);
  return status ? status : capacity_find(s, error);
}

void session_gpu_note_forms(const lade_session *s)
{
  const int32_t first_key = 0;
  const float sink = 0;
  for (int i = 0; i < s->graph->n_ops; i++) {
    const struct lade_op *op = &s->graph->ops[i];
    if (op->kind != LADE_OP_ATTENTION)
      continue;
    const struct lade_score_form form = {.softcap = op->attr.attention_softcap, .window = op->attr.window,
                                         .alibi_max = op->attr.alibi_max,
                                         .sinks = op->in[1] >= 0 ? &sink : NULL,
                                         .first_keys = op->in[2] >= 0 ? &first_key : NULL};
    const char *note = lade_cuda_attention_form_note(&s->kernels, s->graph->dtype, op->attr.head_dim, &form);
    if (!*note)
      continue;
    session_notice(s, "%s", note);
    return;
  }
}

/* Release the GPU because the host computes instead. pre: all ranks had the same status. */
static void gpu_leave(lade_session *s)
{
  lade_rank_group_close_gpus(&s->group);
  lade_cuda_kernels_close(s->cuda_kernels);
  lade_device_close(s->device);
  s->cuda_kernels = NULL;
  s->device = NULL;
  s->params.is_gpu = false;
}

int session_gpu_open(lade_session *s, struct lade_error *error)
{
  struct lade_error why = {0};
  int status = gpu_take(s, &why);
  if (status == -ENODEV && s->params.or_host) {
    gpu_leave(s);
    session_notice(s, "%s; the host trains", why.text);
    return 0;
  }
  return status ? lade_error_set(error, status, "%s", why.text) : 0;
}

uint64_t session_gpu_outside(const lade_session *s)
{
  struct lade_cuda_memory memory = {0};
  if (!s->cuda_kernels || lade_cuda_get_memory(s->device, &memory))
    return 0;
  return memory.outside_bytes;
}
