/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prove that the programs of all ranks fit together, once, before step 0.
 *
 * Each rank has proved its own program under assumptions about the communication of the others. Here the members of
 * each axis exchange digests of the calls that their programs make to the axis' communicator (program/comm_sequence.h).
 * One digest covers the collectives. On the pipeline's axis one more covers the sends to each peer, and one the recvs
 * from each. Every member sees all digests, so all find the same first pair that disagrees. Then that pair's two call
 * lists are broadcast, and all members name the same two instructions. Equal programs cost one small gather per axis.
 *
 * A rank that ran out of memory inside the exchange would leave the others waiting on that axis. So the memory for the
 * exchange is allocated before it, and the world votes on that. The members vote on the memory for naming a mismatch.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "program/comm_sequence.h"
#include "run/rank_group.h"

/* One axis, as its member at @position sees it. */
struct axis_members {
  const struct lade_rank_group *group;
  const struct lade_program *train, *eval;
  enum lade_axis axis;
  lade_comm *comm;
  int size, position, n_lanes;
  struct lade_faults *faults;
  struct lade_calls calls; /* of this rank */
  uint64_t *digests;       /* by member and lane, then this rank's own; one block of memory with words */
  int64_t *words;          /* by member: the vote on memory */
};

/* Members @a and @b disagree: in their collectives, or in the sends of @a to @b. */
struct mismatch {
  int a, b;
  struct lade_call_lane lane_a, lane_b;
};

/* Return lane @lane: 0 holds the collectives; then follow the sends to each member, then the recvs from each. */
static struct lade_call_lane lane_at(const struct axis_members *members, int lane)
{
  if (lane == 0)
    return (struct lade_call_lane){LADE_BARRIER, -1};
  const int peer = (lane - 1) % members->size;
  return (struct lade_call_lane){lane <= members->size ? LADE_SEND : LADE_RECV, peer};
}

/* Allocate the memory of the exchange and compute this rank's digests. */
static int group_init(struct axis_members *members, struct lade_error *error)
{
  const size_t n = (size_t)members->n_lanes, size = (size_t)members->size;
  int status = lade_fault(members->faults, LADE_FAULT_HEAP);
  if (!status)
    status = lade_calls_list(members->train, members->eval, members->axis, &members->calls);
  if (status)
    return lade_error_set(error, status, "no memory for the calls of a program");
  members->digests = lade_fault_calloc(members->faults, (size + 1) * n + size, sizeof(*members->digests));
  if (!members->digests)
    return lade_error_set(error, -ENOMEM, "no memory for digests of %d ranks", members->size);
  members->words = (int64_t *)(members->digests + (size + 1) * n);
  for (int lane = 0; lane < members->n_lanes; lane++)
    members->digests[size * n + (size_t)lane] = lade_calls_digest(&members->calls, lane_at(members, lane));
  return 0;
}

static void group_finish(struct axis_members *members)
{
  free(members->calls.items);
  free(members->digests);
}

/* Gather every member's @bytes at @own into @all. */
static int bytes_gather(const struct axis_members *members, const void *own, uint64_t bytes, void *all,
                        struct lade_error *error)
{
  const struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = LADE_U8, .n = bytes, .src = own, .dst = all};
  return lade_comm_run(members->comm, &gather, error);
}

/* Vote on memory: -ENOMEM at all members if any of them lacks it. @has_memory is this member's. */
static int memory_vote(const struct axis_members *members, bool has_memory, struct lade_error *error)
{
  const int64_t own = !has_memory;
  int member = 0, status = bytes_gather(members, &own, sizeof(own), members->words, error);
  while (!status && member < members->size && !members->words[member])
    member++;
  if (status || member == members->size)
    return status;
  return lade_error_set(error, -ENOMEM, "no memory at rank %d for the calls of another rank",
                        lade_mesh_member(&members->group->layout.mesh, members->axis, members->group->layout.rank,
                                         member));
}

static uint64_t digest_of(const struct axis_members *members, int member, int lane)
{
  return members->digests[(size_t)member * (size_t)members->n_lanes + (size_t)lane];
}

/* Find the first pair that disagrees, the same at every member; false: none does. */
static bool mismatch_find(const struct axis_members *members, struct mismatch *ret)
{
  for (int b = 1; b < members->size; b++) {
    if (digest_of(members, b, 0) == digest_of(members, 0, 0))
      continue;
    *ret = (struct mismatch){0, b, lane_at(members, 0), lane_at(members, 0)};
    return true;
  }
  for (int a = 0; a < members->size && members->n_lanes > 1; a++) {
    for (int b = 0; b < members->size; b++) {
      const int send = 1 + b, recv = 1 + members->size + a;
      if (digest_of(members, a, send) == digest_of(members, b, recv))
        continue;
      *ret = (struct mismatch){a, b, lane_at(members, send), lane_at(members, recv)};
      return true;
    }
  }
  return false;
}

static int bytes_broadcast(const struct axis_members *members, int from, void *data, uint64_t bytes,
                           struct lade_error *error)
{
  const struct lade_collective broadcast = {.kind = LADE_BROADCAST, .dtype = LADE_U8, .peer = from, .n = bytes,
                                            .src = data, .dst = data};
  return lade_comm_run(members->comm, &broadcast, error);
}

/* Broadcast the calls of member @from to all members; the caller frees them. */
static int calls_fetch(const struct axis_members *members, int from, struct lade_calls *ret_calls,
                       struct lade_error *error)
{
  int32_t n = members->calls.n;
  int status = bytes_broadcast(members, from, &n, sizeof(n), error);
  if (status)
    return status;
  struct lade_calls calls = {.items = lade_fault_calloc(members->faults, (size_t)n + 1, sizeof(*calls.items)), .n = n};
  status = memory_vote(members, calls.items, error);
  if (!status && from == members->position)
    memcpy(calls.items, members->calls.items, (size_t)n * sizeof(*calls.items));
  if (!status)
    status = bytes_broadcast(members, from, calls.items, (uint64_t)n * sizeof(*calls.items), error);
  if (status)
    free(calls.items);
  else
    *ret_calls = calls;
  return status;
}

/* Broadcast the text of @call, as its owner, member @from, describes it. */
static int call_text_broadcast(const struct axis_members *members, int from, const struct lade_call *call,
                               char *text, struct lade_error *error)
{
  memset(text, 0, LADE_CALL_TEXT_BYTES);
  if (from == members->position)
    lade_call_describe(members->train, members->eval, call, text);
  return bytes_broadcast(members, from, text, LADE_CALL_TEXT_BYTES, error);
}

/* Set @error, at all members, to the two calls in which members @a and @b disagree. */
static int mismatch_report(const struct axis_members *members, const struct mismatch *mismatch,
                           struct lade_error *error)
{
  char text_a[LADE_CALL_TEXT_BYTES], text_b[LADE_CALL_TEXT_BYTES];
  const struct lade_call *call_a = NULL, *call_b = NULL;
  struct lade_calls a = {0}, b = {0};
  int status = calls_fetch(members, mismatch->a, &a, error);
  if (!status)
    status = calls_fetch(members, mismatch->b, &b, error);
  if (!status)
    lade_calls_differ(&a, mismatch->lane_a, &b, mismatch->lane_b, &call_a, &call_b);
  if (!status)
    status = call_text_broadcast(members, mismatch->a, call_a, text_a, error);
  if (!status)
    status = call_text_broadcast(members, mismatch->b, call_b, text_b, error);
  free(a.items);
  free(b.items);
  if (status)
    return status;
  const struct lade_mesh *mesh = &members->group->layout.mesh;
  const int own = members->group->layout.rank;
  return lade_error_set(error, -EINVAL, "the programs of ranks %d and %d do not meet on %s: %s at the one, %s at the "
                        "other", lade_mesh_member(mesh, members->axis, own, mismatch->a),
                        lade_mesh_member(mesh, members->axis, own, mismatch->b), lade_axis_name(members->axis), text_a,
                        text_b);
}

static int group_prove(const struct axis_members *members, struct lade_error *error)
{
  struct mismatch mismatch;
  const size_t n = (size_t)members->n_lanes;
  int status = bytes_gather(members, members->digests + (size_t)members->size * n, n * sizeof(*members->digests),
                            members->digests, error);
  return !status && mismatch_find(members, &mismatch) ? mismatch_report(members, &mismatch, error) : status;
}

/* True if all members of an axis return @status, so that none of them waits there. */
static bool is_shared(int status)
{
  return status == -EINVAL || status == -ENOMEM;
}

static int groups_prove(const struct axis_members *groups, struct lade_error *error)
{
  struct lade_error later;
  int status = 0;
  for (int axis = 0; axis < LADE_N_AXES && (!status || is_shared(status)); axis++) {
    if (!groups[axis].comm)
      continue;
    int found = group_prove(&groups[axis], status ? &later : error); /* after a failure too: members wait here */
    if (status && found && !is_shared(found) && error)
      *error = later;
    status = status && (!found || is_shared(found)) ? status : found;
  }
  return status;
}

int lade_rank_group_prove(struct lade_rank_group *group, const struct lade_program *train,
                          const struct lade_program *eval, struct lade_faults *faults, struct lade_error *error)
{
  struct axis_members groups[LADE_N_AXES] = {0};
  int status = 0;
  for (int axis = 0; axis < LADE_N_AXES && !status; axis++) {
    lade_comm *comm = group->axes[axis];
    if (!comm)
      continue;
    struct axis_members *members = &groups[axis];
    *members = (struct axis_members){.group = group, .train = train, .eval = eval, .axis = (enum lade_axis)axis,
                                      .comm = comm, .size = lade_comm_size(comm), .position = lade_comm_rank(comm),
                                      .faults = faults};
    members->n_lanes = 1 + (axis == LADE_AXIS_PP ? 2 * members->size : 0);
    status = group_init(members, error);
  }
  status = lade_rank_group_vote(group, status, error);
  if (!status)
    status = groups_prove(groups, error);
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    group_finish(&groups[axis]);
  return status;
}
