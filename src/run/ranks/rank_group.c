/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators by axis, and small agreements over the world. The thread that drives the session uses the world's
 * communicator; the queues of its programs use the axes' communicators. So a step's collectives never meet an
 * agreement.
 *
 * Agreements exchange a few bytes, before step 0 and once per step, for instance whether any rank received a signal to
 * stop. The maximum is computed from a gather, because communicators sum only floating-point numbers. Sums of many
 * integers are made in the two halves of a ring's all-reduce. Each rank receives its block of numbers from every rank
 * and adds these up; then all blocks are gathered. So memory is twice the numbers, whatever the number of ranks.
 *
 * A rank that returns without taking part leaves the others waiting. So the memory of agreements, a word from each
 * rank, is allocated at the start, for each of the two threads that agree. The memory of a sum is voted on first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"
#include "run/rank_group.h"

/*
 * Check that this rank's layout is the first rank's. Ranks with other layouts would split the world into other groups
 * and wait there for ever.
 */
static int layout_compare(struct lade_rank_group *group, struct lade_error *error)
{
  char own[LADE_LAYOUT_NAME_BYTES] = "", first[LADE_LAYOUT_NAME_BYTES];
  lade_layout_name(&group->layout, own);
  memcpy(first, own, sizeof(first));
  int status = lade_rank_group_broadcast(group, 0, first, sizeof(first), error);
  if (!status && strcmp(own, first) != 0)
    status = lade_error_set(error, -EINVAL, "was given the layout \"%s\", and the first rank \"%s\": all ranks take "
                            "the same options", own, first);
  return status;
}

static int words_alloc(const struct lade_rank_group *group, int64_t **ret_words, struct lade_error *error)
{
  const size_t n = group->world ? (size_t)lade_comm_size(group->world) : 0;
  *ret_words = n ? calloc(n, sizeof(**ret_words)) : NULL;
  return n && !*ret_words ? lade_error_set(error, -ENOMEM, "no memory for a word from each of %zu ranks", n) : 0;
}

int lade_rank_group_join(lade_comm *world, struct lade_error *error, struct lade_rank_group *ret_group)
{
  struct lade_rank_group group = {.world = world};
  int status = words_alloc(&group, &group.words, error);
  if (status)
    return status;
  if (world)
    group.layout.rank = lade_comm_rank(world);
  *ret_group = group;
  return 0;
}

/* Compute the layout at each rank, then check that all ranks have the same. */
static int layout_agree(const struct lade_layout_params *params, struct lade_rank_group *group,
                        struct lade_error *error)
{
  struct lade_layout_params given = *params;
  if (group->world) {
    given.world = lade_comm_size(group->world);
    given.rank = lade_comm_rank(group->world);
  }
  int status = lade_rank_group_vote(group, lade_layout_init(&given, error, &group->layout), error);
  return status ? status : lade_rank_group_vote(group, layout_compare(group, error), error);
}

int lade_rank_group_open(const struct lade_layout_params *params, struct lade_error *error,
                         struct lade_rank_group *group)
{
  const struct lade_mesh *mesh = &group->layout.mesh;
  const int rank = group->layout.rank;
  int status = layout_agree(params, group, error);
  for (int axis = 0; axis < LADE_N_AXES && group->world && !status; axis++) {
    if (mesh->axes[axis].size == 1)
      continue;
    status = lade_comm_split(group->world, lade_mesh_group(mesh, (enum lade_axis)axis, rank),
                             lade_mesh_position(mesh, (enum lade_axis)axis, rank), error, &group->axes[axis]);
  }
  return status;
}

int lade_rank_group_open_gpus(struct lade_rank_group *group, const struct lade_kernels *kernels, lade_device *device,
                              struct lade_error *error)
{
  const struct lade_launch launch = {.rank = group->layout.rank, .world = group->layout.mesh.world};
  const struct lade_collective meeting = {.kind = LADE_BARRIER};
  int status = 0;
  for (int axis = 0; axis < LADE_N_AXES && !status; axis++) {
    const struct lade_comm_params params = {.struct_size = sizeof(params), .engine = LADE_COMM_NCCL, .launch = &launch,
                                            .kernels = kernels, .device = device, .control = group->axes[axis],
                                            .has_neighbours = axis == LADE_AXIS_PP};
    if (!group->axes[axis])
      continue;
    status = lade_comm_open(&params, error, &group->gpu_axes[axis]);
    if (!status)
      status = lade_comm_run(group->gpu_axes[axis], &meeting, error);
  }
  if (!status)
    lade_cuda_mark_memory(device, LADE_CUDA_NCCL);
  return status;
}

void lade_rank_group_close_gpus(struct lade_rank_group *group)
{
  for (int axis = LADE_N_AXES - 1; axis >= 0; axis--) {
    lade_comm_close(group->gpu_axes[axis]);
    group->gpu_axes[axis] = NULL;
  }
}

int lade_rank_group_open_async(struct lade_rank_group *group, struct lade_error *error)
{
  int status = lade_rank_group_vote(group, words_alloc(group, &group->async_words, error), error);
  return status || !group->world ? status
                                 : lade_comm_split(group->world, 0, group->layout.rank, error, &group->async_comm);
}

struct lade_rank_group lade_rank_group_async(const struct lade_rank_group *group)
{
  struct lade_rank_group async_comm = *group;
  async_comm.world = group->async_comm;
  async_comm.words = group->async_words;
  return async_comm;
}

void lade_rank_group_close(struct lade_rank_group *group)
{
  lade_comm_close(group->async_comm);
  group->async_comm = NULL;
  lade_rank_group_close_gpus(group);
  for (int axis = LADE_N_AXES - 1; axis >= 0; axis--) {
    lade_comm_close(group->axes[axis]);
    group->axes[axis] = NULL;
  }
  free(group->words);
  free(group->async_words);
  group->words = group->async_words = NULL;
}

static void comm_abort(lade_comm *comm, const char *words)
{
  if (comm && !lade_comm_status(comm, NULL))
    lade_comm_abort(comm, words);
}

void lade_rank_group_abort(struct lade_rank_group *group, const char *words)
{
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    comm_abort(group->gpu_axes[axis], words);
    comm_abort(group->axes[axis], words);
  }
  comm_abort(group->async_comm, words);
  comm_abort(group->world, words);
}

int lade_rank_group_broadcast(struct lade_rank_group *group, int from, void *data, uint64_t bytes,
                              struct lade_error *error)
{
  if (!group || !group->world)
    return 0;
  const struct lade_collective collective = {
      .kind = LADE_BROADCAST, .dtype = LADE_U8, .peer = from, .n = bytes, .src = data, .dst = data};
  return lade_comm_run(group->world, &collective, error);
}

int lade_rank_group_gather(struct lade_rank_group *group, const void *own, uint64_t bytes, void *ret_all,
                           struct lade_error *error)
{
  if (!group || !group->world) {
    memcpy(ret_all, own, bytes);
    return 0;
  }
  const struct lade_collective collective = {
      .kind = LADE_ALL_GATHER, .dtype = LADE_U8, .n = bytes, .src = own, .dst = ret_all};
  return lade_comm_run(group->world, &collective, error);
}

int lade_rank_group_take(struct lade_rank_group *group, int from, double *number, struct lade_error *error)
{
  _Static_assert(sizeof(*number) == sizeof(*group->words), "a number of each rank fits the words");
  if (!group || !group->world)
    return 0;
  LADE_ASSERT(from >= 0 && from < lade_comm_size(group->world));
  int status = lade_rank_group_gather(group, number, sizeof(*number), group->words, error);
  if (!status)
    memcpy(number, &group->words[from], sizeof(*number));
  return status;
}

int lade_rank_group_max(struct lade_rank_group *group, int64_t value, int64_t *ret_max, struct lade_error *error)
{
  if (!group || !group->world) {
    *ret_max = value;
    return 0;
  }
  int status = lade_rank_group_gather(group, &value, sizeof(value), group->words, error);
  if (status)
    return status;
  for (int i = 0; i < lade_comm_size(group->world); i++)
    value = LADE_MAX(value, group->words[i]);
  *ret_max = value;
  return 0;
}

/* Sum the blocks of all ranks. @padded has n_ranks blocks of @block numbers; @others has as much room. */
static int blocks_sum(struct lade_rank_group *group, uint64_t *padded, uint64_t *others, size_t block,
                      struct lade_error *error)
{
  const size_t n_ranks = (size_t)lade_comm_size(group->world);
  const struct lade_collective exchange = {
      .kind = LADE_ALL_TO_ALL, .dtype = LADE_F64, .n = block, .src = padded, .dst = others};
  int status = lade_comm_run(group->world, &exchange, error);
  for (size_t i = block; i < n_ranks * block && !status; i++)
    others[i % block] += others[i];
  const struct lade_collective gather = {
      .kind = LADE_ALL_GATHER, .dtype = LADE_F64, .n = block, .src = others, .dst = padded};
  return status ? status : lade_comm_run(group->world, &gather, error);
}

int lade_rank_group_sum(struct lade_rank_group *group, uint64_t *numbers, size_t n, struct lade_error *error)
{
  if (!group || !group->world)
    return 0;
  const size_t n_ranks = (size_t)lade_comm_size(group->world), block = lade_div_up(n, n_ranks);
  uint64_t *padded = calloc(2 * n_ranks * block + 1, sizeof(*padded));
  int status = padded ? 0 : lade_error_set(error, -ENOMEM, "no memory to add up %zu numbers of %zu ranks", n, n_ranks);
  status = lade_rank_group_vote(group, status, error);
  if (!status) {
    memcpy(padded, numbers, n * sizeof(*numbers));
    status = blocks_sum(group, padded, padded + n_ranks * block, block, error);
  }
  if (!status)
    memcpy(numbers, padded, n * sizeof(*numbers));
  free(padded);
  return status;
}

/* Broadcast the line of @rank, which failed with @status. pre: group->words has the status of each rank. */
static int failure_broadcast(struct lade_rank_group *group, int rank, int status, struct lade_error *error)
{
  struct lade_error line = {.code = status};
  bool is_unanimous = true;
  for (int i = 0; i < lade_comm_size(group->world); i++)
    is_unanimous &= group->words[i] == status;
  if (error && rank == group->layout.rank)
    line = *error;
  const int failed = lade_rank_group_broadcast(group, rank, &line, sizeof(line), error);
  if (failed)
    return failed;
  return is_unanimous ? lade_error_set(error, status, "%s", line.text)
                      : lade_error_set(error, status, "rank %d: %.440s", rank, line.text);
}

int lade_rank_group_vote(struct lade_rank_group *group, int status, struct lade_error *error)
{
  if (!group || !group->world)
    return status;
  const int n_ranks = lade_comm_size(group->world);
  const int64_t word = status;
  int rank = 0, failed = lade_rank_group_gather(group, &word, sizeof(word), group->words, error);
  while (!failed && rank < n_ranks && !group->words[rank])
    rank++;
  return failed || rank == n_ranks ? failed : failure_broadcast(group, rank, (int)group->words[rank], error);
}

int lade_rank_group_collect(struct lade_rank_group *group, const void *own, uint64_t bytes, struct lade_faults *faults,
                            struct lade_error *error, void **ret_all)
{
  const int n_ranks = group && group->world ? lade_comm_size(group->world) : 1;
  void *all = lade_fault_calloc(faults, (size_t)n_ranks, bytes);
  int status = all ? 0 : lade_error_set(error, -ENOMEM, "no memory for %llu bytes from each of %d ranks",
                                        (unsigned long long)bytes, n_ranks);
  status = lade_rank_group_vote(group, status, error);
  if (!status)
    status = lade_rank_group_gather(group, own, bytes, all, error);
  if (status)
    free(all);
  else
    *ret_all = all;
  return status;
}
