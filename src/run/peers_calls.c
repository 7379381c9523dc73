/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do the programs of all ranks fit together? Asked once, before step 0.
 *
 * Each rank has proved its own program. What it takes from others it took for granted, so here the members of each
 * group exchange digests of what their programs ask of the group's communicator (plan/calls.h): one of collectives,
 * and on the pipeline's axis one of the sends to and of the recvs from each peer. Every member sees all digests
 * and so finds the same first pair that disagrees; then the two lists go round, and all members name the same two
 * instructions. Equal programs cost one small gather per axis.
 *
 * A rank that lacked memory in the midst of this would leave the others waiting on that axis. So what all need is there
 * before anybody meets, which the world votes on; what naming a mismatch needs beside, its members vote on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "plan/calls.h"
#include "run/peers.h"

/* One axis, as its member at @position sees it. */
struct group {
  const struct lade_peers *peers;
  const struct lade_program *train, *eval;
  enum lade_axis axis;
  lade_comm *comm;
  int size, position, n_lanes;
  struct lade_faults *faults;
  struct lade_calls calls; /* our own */
  uint64_t *digests;       /* by member and lane, then our own; the same block of memory: */
  int64_t *words;          /* of each member, how it fared */
};

/* Members @a and @b have to agree, and do not: their collectives, or what @a sends to @b. */
struct mismatch {
  int a, b;
  struct lade_call_lane lane_a, lane_b;
};

/* Lane 0 are the collectives; then what goes to each member, then what comes from each. */
static struct lade_call_lane lane_at(const struct group *group, int lane)
{
  if (lane == 0)
    return (struct lade_call_lane){LADE_BARRIER, -1};
  const int peer = (lane - 1) % group->size;
  return (struct lade_call_lane){lane <= group->size ? LADE_SEND : LADE_RECV, peer};
}

/* The memory that a meeting takes, and what we say there. */
static int group_init(struct group *group, struct lade_error *error)
{
  const size_t n = (size_t)group->n_lanes, size = (size_t)group->size;
  int status = lade_fault(group->faults, LADE_FAULT_HEAP);
  if (!status)
    status = lade_calls_list(group->train, group->eval, group->axis, &group->calls);
  if (status)
    return lade_error_set(error, status, "no memory for the calls of a program");
  group->digests = lade_fault_calloc(group->faults, (size + 1) * n + size, sizeof(*group->digests));
  if (!group->digests)
    return lade_error_set(error, -ENOMEM, "no memory for digests of %d ranks", group->size);
  group->words = (int64_t *)(group->digests + (size + 1) * n);
  for (int lane = 0; lane < group->n_lanes; lane++)
    group->digests[size * n + (size_t)lane] = lade_calls_digest(&group->calls, lane_at(group, lane));
  return 0;
}

static void group_finish(struct group *group)
{
  free(group->calls.items);
  free(group->digests);
}

/* Every member's @bytes at @own into @all. */
static int bytes_gather(const struct group *group, const void *own, uint64_t bytes, void *all, struct lade_error *error)
{
  const struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = LADE_U8, .n = bytes, .src = own, .dst = all};
  return lade_comm_run(group->comm, &gather, error);
}

/* Has every member the memory that it needs, as @has_memory says of this one? */
static int memory_vote(const struct group *group, bool has_memory, struct lade_error *error)
{
  const int64_t own = !has_memory;
  int member = 0, status = bytes_gather(group, &own, sizeof(own), group->words, error);
  while (!status && member < group->size && !group->words[member])
    member++;
  if (status || member == group->size)
    return status;
  return lade_error_set(error, -ENOMEM, "no memory at rank %d for the calls of another rank",
                        lade_mesh_member(&group->peers->layout.mesh, group->axis, group->peers->layout.rank, member));
}

static uint64_t digest_of(const struct group *group, int member, int lane)
{
  return group->digests[(size_t)member * (size_t)group->n_lanes + (size_t)lane];
}

/* The first two that disagree, the same at every member; false: none do. */
static bool mismatch_find(const struct group *group, struct mismatch *ret)
{
  for (int b = 1; b < group->size; b++) {
    if (digest_of(group, b, 0) == digest_of(group, 0, 0))
      continue;
    *ret = (struct mismatch){0, b, lane_at(group, 0), lane_at(group, 0)};
    return true;
  }
  for (int a = 0; a < group->size && group->n_lanes > 1; a++) {
    for (int b = 0; b < group->size; b++) {
      const int send = 1 + b, recv = 1 + group->size + a;
      if (digest_of(group, a, send) == digest_of(group, b, recv))
        continue;
      *ret = (struct mismatch){a, b, lane_at(group, send), lane_at(group, recv)};
      return true;
    }
  }
  return false;
}

static int bytes_broadcast(const struct group *group, int from, void *data, uint64_t bytes, struct lade_error *error)
{
  const struct lade_collective broadcast = {.kind = LADE_BROADCAST, .dtype = LADE_U8, .peer = from, .n = bytes,
                                            .src = data, .dst = data};
  return lade_comm_run(group->comm, &broadcast, error);
}

/* The calls of member @from, at all members; the caller's to free. */
static int calls_fetch(const struct group *group, int from, struct lade_calls *ret_calls, struct lade_error *error)
{
  int32_t n = group->calls.n;
  int status = bytes_broadcast(group, from, &n, sizeof(n), error);
  if (status)
    return status;
  struct lade_calls calls = {.items = lade_fault_calloc(group->faults, (size_t)n + 1, sizeof(*calls.items)), .n = n};
  status = memory_vote(group, calls.items, error);
  if (!status && from == group->position)
    memcpy(calls.items, group->calls.items, (size_t)n * sizeof(*calls.items));
  if (!status)
    status = bytes_broadcast(group, from, calls.items, (uint64_t)n * sizeof(*calls.items), error);
  if (status)
    free(calls.items);
  else
    *ret_calls = calls;
  return status;
}

/* @call, which is of member @from, in that member's words. */
static int call_tell(const struct group *group, int from, const struct lade_call *call, char *text,
                     struct lade_error *error)
{
  memset(text, 0, LADE_CALL_TEXT_BYTES);
  if (from == group->position)
    lade_call_describe(group->train, group->eval, call, text);
  return bytes_broadcast(group, from, text, LADE_CALL_TEXT_BYTES, error);
}

/* Everybody says what @a and @b do not agree on. */
static int mismatch_tell(const struct group *group, const struct mismatch *mismatch, struct lade_error *error)
{
  char text_a[LADE_CALL_TEXT_BYTES], text_b[LADE_CALL_TEXT_BYTES];
  const struct lade_call *call_a = NULL, *call_b = NULL;
  struct lade_calls a = {0}, b = {0};
  int status = calls_fetch(group, mismatch->a, &a, error);
  if (!status)
    status = calls_fetch(group, mismatch->b, &b, error);
  if (!status)
    lade_calls_differ(&a, mismatch->lane_a, &b, mismatch->lane_b, &call_a, &call_b);
  if (!status)
    status = call_tell(group, mismatch->a, call_a, text_a, error);
  if (!status)
    status = call_tell(group, mismatch->b, call_b, text_b, error);
  free(a.items);
  free(b.items);
  if (status)
    return status;
  const struct lade_mesh *mesh = &group->peers->layout.mesh;
  const int own = group->peers->layout.rank;
  return lade_error_set(error, -EINVAL, "the programs of ranks %d and %d do not meet on %s: %s at the one, %s at the "
                        "other", lade_mesh_member(mesh, group->axis, own, mismatch->a),
                        lade_mesh_member(mesh, group->axis, own, mismatch->b), lade_axis_name(group->axis), text_a,
                        text_b);
}

static int group_prove(const struct group *group, struct lade_error *error)
{
  struct mismatch mismatch;
  const size_t n = (size_t)group->n_lanes;
  int status = bytes_gather(group, group->digests + (size_t)group->size * n, n * sizeof(*group->digests),
                            group->digests, error);
  return !status && mismatch_find(group, &mismatch) ? mismatch_tell(group, &mismatch, error) : status;
}

/* Do all members of an axis know of @status? */
static bool is_shared(int status)
{
  return status == -EINVAL || status == -ENOMEM;
}

static int groups_prove(const struct group *groups, struct lade_error *error)
{
  struct lade_error later;
  int status = 0;
  for (int axis = 0; axis < LADE_N_AXES && (!status || is_shared(status)); axis++) {
    if (!groups[axis].comm)
      continue;
    int found = group_prove(&groups[axis], status ? &later : error); /* the other axes too: somebody waits there */
    if (status && found && !is_shared(found) && error)
      *error = later;
    status = status && (!found || is_shared(found)) ? status : found;
  }
  return status;
}

int lade_peers_prove(struct lade_peers *peers, const struct lade_program *train, const struct lade_program *eval,
                     struct lade_faults *faults, struct lade_error *error)
{
  struct group groups[LADE_N_AXES] = {0};
  int status = 0;
  for (int axis = 0; axis < LADE_N_AXES && !status; axis++) {
    lade_comm *comm = peers->axes[axis];
    if (!comm)
      continue;
    struct group *group = &groups[axis];
    *group = (struct group){.peers = peers, .train = train, .eval = eval, .axis = (enum lade_axis)axis, .comm = comm,
                            .size = lade_comm_size(comm), .position = lade_comm_rank(comm), .faults = faults};
    group->n_lanes = 1 + (axis == LADE_AXIS_PP ? 2 * group->size : 0);
    status = group_init(group, error);
  }
  status = lade_peers_vote(peers, status, error);
  if (!status)
    status = groups_prove(groups, error);
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    group_finish(&groups[axis]);
  return status;
}
