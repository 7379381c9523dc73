/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session on a GPU: its device, its kernels, and what it has with the GPUs of other ranks.
 *
 * The device is opened before anything is planned, because what it has free is the capacity that a plan may have, and
 * its kernels before the graph is made, because they say how much scratch each op takes. Both are then as they are
 * when the run begins: context and machine code are loaded, and what they took is not counted as free. Once there is a
 * budget the device is limited to it.
 *
 * Several ranks take a GPU each: they count from --device on by their place on the node, unless their launcher shows
 * each of them one alone. NCCL's communicators are made and have met before memory is measured, so that what NCCL takes
 * is not planned for. Agreements go over the hosts' communicators, as everywhere.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda.h"
#include "kernels/cuda.h"
#include "run/session_internal.h"

/* Which GPU a rank has, as other ranks can compare it. */
struct seat {
  char host[64], pci[32];
};

/* NCCL wants a GPU of its own for each rank, and so do budgets. */
static int seats_check(lade_session *s, struct lade_error *error)
{
  const int world = lade_comm_size(s->peers.world), rank = lade_comm_rank(s->peers.world);
  struct lade_device_info info;
  struct seat own = {0}, *all = calloc((size_t)world, sizeof(*all));
  int status = all ? 0 : lade_error_set(error, -ENOMEM, "no memory for the GPUs of %d ranks", world);
  lade_device_get_info(s->device, &info);
  snprintf(own.pci, sizeof(own.pci), "%s", info.pci);
  gethostname(own.host, sizeof(own.host) - 1);
  if (!status)
    status = lade_peers_gather(&s->peers, &own, sizeof(own), all, error);
  for (int other = 0; other < world && !status && *own.pci; other++)
    if (other != rank && memcmp(&all[other], &own, sizeof(own)) == 0)
      status = lade_error_set(error, -ENODEV, "ranks %d and %d of %s would share the GPU at %s; each needs one of its "
                              "own: start as many ranks as there are GPUs, and let each see all of them, or one",
                              LADE_MIN(rank, other), LADE_MAX(rank, other), own.host, own.pci);
  free(all);
  return status;
}

/* What ranks have with each other on their GPUs; what of it is taken at first use is taken now. */
static int ranks_meet(lade_session *s, struct lade_error *error)
{
  if (!s->peers.world)
    return 0;
  int status = seats_check(s, error);
  return status ? status : lade_peers_open_gpus(&s->peers, &s->host_kernels, s->device, error);
}

int session_gpu_open(lade_session *s, struct lade_error *error)
{
  const struct lade_cuda_device_params how = {.struct_size = sizeof(how), .ordinal = s->params.gpu,
                                              .seat = s->peers.world ? s->params.node_rank : 0,
                                              .faults = s->params.faults};
  struct lade_device_info info;
  struct lade_cuda_memory memory;
  struct lade_error why = {0};
  if (s->params.throttle.bytes_per_s || s->params.throttle.latency_ns)
    return lade_error_set(error, -EINVAL, "--link-rate throttles copies of the host device; a GPU has a link of its "
                          "own");
  int status = lade_device_open_cuda(&how, error, &s->device);
  if (status)
    return status;
  status = lade_cuda_kernels_open(s->device, NULL, &why, &s->cuda_kernels);
  if (status) /* machine code that is not there is something missing, not a mistake */
    return lade_error_set(error, status == -ENOENT ? -ENODEV : status, "device cuda:%d: %s", s->params.gpu, why.text);
  status = ranks_meet(s, error);
  if (status)
    return status;
  status = lade_cuda_get_memory(s->device, &memory);
  if (status) {
    lade_cuda_get_error(s->device, error);
    return status;
  }
  lade_device_limit(s->device, memory.free_bytes);
  lade_cuda_kernels_get(s->cuda_kernels, &s->kernels);
  if (*lade_cuda_kernels_note(s->cuda_kernels))
    session_notice(s, "%s", lade_cuda_kernels_note(s->cuda_kernels));
  if (*lade_cuda_kernels_attention_note(s->cuda_kernels))
    session_notice(s, "%s", lade_cuda_kernels_attention_note(s->cuda_kernels));
  lade_device_get_info(s->device, &info);
  s->capacity_bytes = info.capacity_bytes;
  s->chunk_bytes = info.chunk_bytes;
  return s->peers.world ? session_agree_least(s, &s->capacity_bytes, error) : 0;
}

uint64_t session_gpu_outside(const lade_session *s)
{
  struct lade_cuda_memory memory = {0};
  if (!s->cuda_kernels || lade_cuda_get_memory(s->device, &memory))
    return 0;
  return memory.outside_bytes;
}
