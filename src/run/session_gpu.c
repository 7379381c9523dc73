/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session on a GPU: its device, its kernels, and what it has with the GPUs of other ranks.
 *
 * The device is opened before anything is planned, because what it has free is the capacity that a plan may have, and
 * its kernels before the graph is made, because they say how much scratch each op takes. Both are then as they are
 * when the run begins: context and machine code are loaded, and what they took is not counted as free. Once there is a
 * budget the device is limited to it.
 *
 * Several ranks take a GPU each, since NCCL wants that, and budgets do. Launchers show all ranks of a machine all of
 * its GPUs, or each rank one, or some, or a slice; numbers then say little, and PCI addresses neither, which slices
 * of a GPU share. So ranks tell each other the UUIDs of what they see and all work out who takes what: in their
 * order, each the first from its --device on that nobody of its machine has. NCCL's communicators are made and have
 * met before memory is measured, so that what NCCL takes is not planned for. Agreements go over the hosts'
 * communicators, as everywhere.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/node.h"
#include "device/cuda.h"
#include "kernels/cuda.h"
#include "run/session_internal.h"

/* What GPUs a rank may have, as other ranks can compare them. */
struct seat {
  uint64_t node; /* of which they are */
  int rank, first, taken; /* ordinals: from which on it may take one, and which it takes; -1: none is left */
  struct lade_cuda_seen seen;
};

/* Who of @seats[0..i) has @name; -1: nobody. */
static int holder_find(const struct seat *seats, int i, const struct lade_cuda_name *name)
{
  for (int other = 0; other < i; other++)
    if (seats[other].taken >= 0 && !memcmp(&seats[other].seen.names[seats[other].taken], name, sizeof(*name)))
      return other;
  return -1;
}

/* The ranks of one machine, in their order: each takes the first that it sees and nobody before it has. */
static void seats_take(struct seat *seats, int n)
{
  for (int i = 0; i < n; i++) {
    seats[i].taken = -1;
    for (int at = seats[i].first; at < seats[i].seen.n && seats[i].taken < 0; at++)
      seats[i].taken = holder_find(seats, i, &seats[i].seen.names[at]) < 0 ? at : -1;
  }
}

/* "57ad0000-0000-0000-0000-000000000002", as nvidia-smi writes it, into @text. */
static const char *name_tell(const struct lade_cuda_name *name, char text[40])
{
  size_t at = 0;
  for (size_t i = 0; i < sizeof(name->uuid); i++) {
    const bool is_part = i == 4 || i == 6 || i == 8 || i == 10;
    at += (size_t)snprintf(text + at, 40 - at, "%s%02x", is_part ? "-" : "", name->uuid[i]);
  }
  return text;
}

/* Which of this process's GPUs this rank takes, by what all of them see. */
static int seat_choose(struct seat *all, int world, int rank, int *ret_ordinal, struct lade_error *error)
{
  char text[40];
  const uint64_t node = all[rank].node;
  int n = 0, own = 0;
  for (int i = 0; i < world; i++) {
    own = i == rank ? n : own;
    if (all[i].node == node)
      all[n++] = all[i]; /* those of other machines have others */
  }
  seats_take(all, n);
  const struct seat *seat = &all[own];
  *ret_ordinal = LADE_MAX(seat->taken, seat->first);
  if (seat->taken >= 0 || seat->first >= seat->seen.n) /* opening says of which number there is none */
    return 0;
  const struct lade_cuda_name *name = &seat->seen.names[seat->first];
  return lade_error_set(error, -ENODEV, "ranks %d and %d would share the GPU %s; each needs one of its own: start as "
                        "many ranks as there are GPUs, and let each see all of them, or those of its own",
                        all[holder_find(all, own, name)].rank, rank, name_tell(name, text));
}

/* The ordinal of the GPU that this rank takes; collective. */
static int seat_find(lade_session *s, int *ret_ordinal, struct lade_error *error)
{
  struct seat own = {.node = lade_node_key(), .rank = s->peers.layout.rank, .first = s->params.gpu};
  struct seat *all = NULL;
  *ret_ordinal = s->params.gpu;
  if (!s->peers.world)
    return 0;
  int status = lade_peers_vote(&s->peers, lade_cuda_list(error, &own.seen), error);
  if (!status)
    status = lade_peers_collect(&s->peers, &own, sizeof(own), s->params.faults, error, (void **)&all);
  if (!status)
    status = lade_peers_vote(&s->peers, seat_choose(all, lade_comm_size(s->peers.world), own.rank, ret_ordinal, error),
                             error);
  free(all);
  return status;
}

/* The device that this rank takes, and its kernels. */
static int gpu_open(lade_session *s, int ordinal, struct lade_error *error)
{
  const struct lade_cuda_device_params how = {.struct_size = sizeof(how), .ordinal = ordinal,
                                              .faults = s->params.faults};
  struct lade_error why = {0};
  int status = lade_device_open_cuda(&how, error, &s->device);
  if (status)
    return status;
  status = lade_cuda_kernels_open(s->device, NULL, &why, &s->cuda_kernels);
  if (status) /* machine code that is not there is something missing, not a mistake */
    lade_error_set(error, status == -ENOENT ? -ENODEV : status, "device cuda:%d: %s", ordinal, why.text);
  return status == -ENOENT ? -ENODEV : status;
}

/* With all that is taken of it at first use: what it has left is what a plan may have. */
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

/* All that is said in session_gpu_open, or the first failure; what is open by then is the session's. */
static int gpu_take(lade_session *s, struct lade_error *error)
{
  struct lade_device_info info;
  int ordinal = 0, status = 0;
  if (s->params.throttle.bytes_per_s || s->params.throttle.latency_ns)
    status = lade_error_set(error, -EINVAL, "--link-rate throttles copies of the host device; a GPU has a link of its "
                            "own");
  status = lade_peers_vote(&s->peers, status, error);
  if (!status)
    status = seat_find(s, &ordinal, error);
  if (!status)
    status = lade_peers_vote(&s->peers, gpu_open(s, ordinal, error), error);
  if (!status && s->peers.world)
    status = lade_peers_open_gpus(&s->peers, &s->host_kernels, s->device, error);
  if (!status)
    status = lade_peers_vote(&s->peers, gpu_limit(s, error), error);
  if (status)
    return status;
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

/* The host computes after all: nothing of a GPU stays. All ranks had the same status. */
static void gpu_leave(lade_session *s)
{
  lade_peers_close_gpus(&s->peers);
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
