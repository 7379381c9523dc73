/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assign GPUs to ranks. Each rank takes a GPU of its own, because NCCL and budgets require that.
 *
 * A launcher may show all ranks of a machine all of its GPUs, or each rank one, or some, or a slice. So ordinals
 * identify nothing, and PCI addresses do not either, because slices of a GPU share one. Ranks therefore exchange the
 * UUIDs of the GPUs that they see, and all compute the same assignment. In rank order, each takes the first GPU from
 * its --device on that no earlier rank of its machine has.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/host_id.h"
#include "device/cuda.h"
#include "run/rank_group.h"

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

int lade_rank_group_find_gpu(struct lade_rank_group *group, int first, struct lade_faults *faults,
                             struct lade_error *error, int *ret_ordinal)
{
  struct rank_gpus own = {.node = lade_host_id(), .rank = group->layout.rank, .first = first};
  struct rank_gpus *all = NULL;
  *ret_ordinal = first;
  if (!group->world)
    return 0;
  int status = lade_rank_group_vote(group, lade_cuda_list(error, &own.seen), error);
  if (!status)
    status = lade_rank_group_collect(group, &own, sizeof(own), faults, error, (void **)&all);
  if (!status) {
    status = gpu_choose(all, lade_comm_size(group->world), own.rank, ret_ordinal, error);
    status = lade_rank_group_vote(group, status, error);
  }
  free(all);
  return status;
}
