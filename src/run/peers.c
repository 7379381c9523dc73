/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators by axis, and small agreements over the world. The world's communicator is used by the thread that
 * drives the session, the axes' by the queues of its programs, so a step's collectives never meet an agreement.
 *
 * What is agreed on is a handful of bytes, once before step 0 or once per step: whether somebody was told to stop. The
 * maximum is gathered and not summed: communicators sum floating-point numbers only. Sums of many integers are made in
 * the two halves of a ring's all-reduce: each rank gets everybody's share of the numbers, adds it up, and all shares
 * are gathered. So memory is twice the numbers, whatever the number of ranks.
 *
 * A rank that returns without taking part leaves the others waiting. So words of agreements have their memory from the
 * start, for each of the two threads that agree, and what a sum needs beside is voted on first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"
#include "run/peers.h"

/* Ranks that cut the job up differently would split it into other groups, and wait in them for ever. */
static int layout_compare(struct lade_peers *peers, struct lade_error *error)
{
  char own[LADE_LAYOUT_NAME_BYTES] = "", first[LADE_LAYOUT_NAME_BYTES];
  lade_layout_name(&peers->layout, own);
  memcpy(first, own, sizeof(first));
  int status = lade_peers_broadcast(peers, 0, first, sizeof(first), error);
  if (!status && strcmp(own, first) != 0)
    status = lade_error_set(error, -EINVAL, "was given the layout \"%s\", and the first rank \"%s\": all ranks take "
                            "the same options", own, first);
  return status;
}

static int words_alloc(const struct lade_peers *peers, int64_t **ret_words, struct lade_error *error)
{
  const size_t n = peers->world ? (size_t)lade_comm_size(peers->world) : 0;
  *ret_words = n ? calloc(n, sizeof(**ret_words)) : NULL;
  return n && !*ret_words ? lade_error_set(error, -ENOMEM, "no memory for a word from each of %zu ranks", n) : 0;
}

int lade_peers_join(lade_comm *world, struct lade_error *error, struct lade_peers *ret_peers)
{
  struct lade_peers peers = {.world = world};
  int status = words_alloc(&peers, &peers.words, error);
  if (status)
    return status;
  if (world)
    peers.layout.rank = lade_comm_rank(world);
  *ret_peers = peers;
  return 0;
}

/* Each by itself, then whether all have the same. */
static int layout_agree(const struct lade_layout_params *params, struct lade_peers *peers, struct lade_error *error)
{
  struct lade_layout_params given = *params;
  if (peers->world) {
    given.world = lade_comm_size(peers->world);
    given.rank = lade_comm_rank(peers->world);
  }
  int status = lade_peers_vote(peers, lade_layout_init(&given, error, &peers->layout), error);
  return status ? status : lade_peers_vote(peers, layout_compare(peers, error), error);
}

int lade_peers_open(const struct lade_layout_params *params, struct lade_error *error, struct lade_peers *peers)
{
  const struct lade_mesh *mesh = &peers->layout.mesh;
  const int rank = peers->layout.rank;
  int status = layout_agree(params, peers, error);
  for (int axis = 0; axis < LADE_N_AXES && peers->world && !status; axis++) {
    if (mesh->axes[axis].size == 1)
      continue;
    status = lade_comm_split(peers->world, lade_mesh_group(mesh, (enum lade_axis)axis, rank),
                             lade_mesh_position(mesh, (enum lade_axis)axis, rank), error, &peers->axes[axis]);
  }
  return status;
}

int lade_peers_open_gpus(struct lade_peers *peers, const struct lade_kernels *kernels, lade_device *device,
                         struct lade_error *error)
{
  const struct lade_launch who = {.rank = peers->layout.rank, .world = peers->layout.mesh.world};
  const struct lade_collective meeting = {.kind = LADE_BARRIER};
  int status = 0;
  for (int axis = 0; axis < LADE_N_AXES && !status; axis++) {
    const struct lade_comm_params how = {.struct_size = sizeof(how), .engine = LADE_COMM_NCCL, .launch = &who,
                                         .kernels = kernels, .device = device, .control = peers->axes[axis],
                                         .has_neighbours = axis == LADE_AXIS_PP};
    if (!peers->axes[axis])
      continue;
    status = lade_comm_open(&how, error, &peers->gpu_axes[axis]);
    if (!status)
      status = lade_comm_run(peers->gpu_axes[axis], &meeting, error);
  }
  if (!status)
    lade_cuda_mark_memory(device, LADE_CUDA_NCCL);
  return status;
}

void lade_peers_close_gpus(struct lade_peers *peers)
{
  for (int axis = LADE_N_AXES - 1; axis >= 0; axis--) {
    lade_comm_close(peers->gpu_axes[axis]);
    peers->gpu_axes[axis] = NULL;
  }
}

int lade_peers_open_beside(struct lade_peers *peers, struct lade_error *error)
{
  int status = lade_peers_vote(peers, words_alloc(peers, &peers->words_beside, error), error);
  return status || !peers->world ? status
                                 : lade_comm_split(peers->world, 0, peers->layout.rank, error, &peers->beside);
}

struct lade_peers lade_peers_beside(const struct lade_peers *peers)
{
  struct lade_peers beside = *peers;
  beside.world = peers->beside;
  beside.words = peers->words_beside;
  return beside;
}

void lade_peers_close(struct lade_peers *peers)
{
  lade_comm_close(peers->beside);
  peers->beside = NULL;
  lade_peers_close_gpus(peers);
  for (int axis = LADE_N_AXES - 1; axis >= 0; axis--) {
    lade_comm_close(peers->axes[axis]);
    peers->axes[axis] = NULL;
  }
  free(peers->words);
  free(peers->words_beside);
  peers->words = peers->words_beside = NULL;
}

static void comm_abort(lade_comm *comm, const char *words)
{
  if (comm && !lade_comm_status(comm, NULL))
    lade_comm_abort(comm, words);
}

void lade_peers_abort(struct lade_peers *peers, const char *words)
{
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    comm_abort(peers->gpu_axes[axis], words);
    comm_abort(peers->axes[axis], words);
  }
  comm_abort(peers->beside, words);
  comm_abort(peers->world, words);
}

int lade_peers_broadcast(struct lade_peers *peers, int from, void *data, uint64_t bytes, struct lade_error *error)
{
  if (!peers || !peers->world)
    return 0;
  const struct lade_collective collective = {
      .kind = LADE_BROADCAST, .dtype = LADE_U8, .peer = from, .n = bytes, .src = data, .dst = data};
  return lade_comm_run(peers->world, &collective, error);
}

int lade_peers_gather(struct lade_peers *peers, const void *own, uint64_t bytes, void *ret_all,
                      struct lade_error *error)
{
  if (!peers || !peers->world) {
    memcpy(ret_all, own, bytes);
    return 0;
  }
  const struct lade_collective collective = {
      .kind = LADE_ALL_GATHER, .dtype = LADE_U8, .n = bytes, .src = own, .dst = ret_all};
  return lade_comm_run(peers->world, &collective, error);
}

int lade_peers_max(struct lade_peers *peers, int64_t value, int64_t *ret_max, struct lade_error *error)
{
  if (!peers || !peers->world) {
    *ret_max = value;
    return 0;
  }
  int status = lade_peers_gather(peers, &value, sizeof(value), peers->words, error);
  if (status)
    return status;
  for (int i = 0; i < lade_comm_size(peers->world); i++)
    value = LADE_MAX(value, peers->words[i]);
  *ret_max = value;
  return 0;
}

/* @padded has n_ranks blocks of @block numbers, and @others as much room. */
static int blocks_sum(struct lade_peers *peers, uint64_t *padded, uint64_t *others, size_t block,
                      struct lade_error *error)
{
  const size_t n_ranks = (size_t)lade_comm_size(peers->world);
  const struct lade_collective exchange = {
      .kind = LADE_ALL_TO_ALL, .dtype = LADE_F64, .n = block, .src = padded, .dst = others};
  int status = lade_comm_run(peers->world, &exchange, error);
  for (size_t i = block; i < n_ranks * block && !status; i++)
    others[i % block] += others[i];
  const struct lade_collective gather = {
      .kind = LADE_ALL_GATHER, .dtype = LADE_F64, .n = block, .src = others, .dst = padded};
  return status ? status : lade_comm_run(peers->world, &gather, error);
}

int lade_peers_sum(struct lade_peers *peers, uint64_t *numbers, size_t n, struct lade_error *error)
{
  if (!peers || !peers->world)
    return 0;
  const size_t n_ranks = (size_t)lade_comm_size(peers->world), block = lade_div_up(n, n_ranks);
  uint64_t *padded = calloc(2 * n_ranks * block + 1, sizeof(*padded));
  int status = padded ? 0 : lade_error_set(error, -ENOMEM, "no memory to add up %zu numbers of %zu ranks", n, n_ranks);
  status = lade_peers_vote(peers, status, error);
  if (!status) {
    memcpy(padded, numbers, n * sizeof(*numbers));
    status = blocks_sum(peers, padded, padded + n_ranks * block, block, error);
  }
  if (!status)
    memcpy(numbers, padded, n * sizeof(*numbers));
  free(padded);
  return status;
}

/* What @rank failed with, at all ranks. */
static int words_share(struct lade_peers *peers, int rank, int status, struct lade_error *error)
{
  struct lade_error words = {.code = status};
  bool is_everybodys = true;
  for (int i = 0; i < lade_comm_size(peers->world); i++)
    is_everybodys &= peers->words[i] == status;
  if (error && rank == peers->layout.rank)
    words = *error;
  int told = lade_peers_broadcast(peers, rank, &words, sizeof(words), error);
  if (told)
    return told;
  return is_everybodys ? lade_error_set(error, status, "%s", words.text)
                       : lade_error_set(error, status, "rank %d: %.440s", rank, words.text);
}

int lade_peers_vote(struct lade_peers *peers, int status, struct lade_error *error)
{
  if (!peers || !peers->world)
    return status;
  const int n_ranks = lade_comm_size(peers->world);
  const int64_t word = status;
  int rank = 0, told = lade_peers_gather(peers, &word, sizeof(word), peers->words, error);
  while (!told && rank < n_ranks && !peers->words[rank])
    rank++;
  return told || rank == n_ranks ? told : words_share(peers, rank, (int)peers->words[rank], error);
}

int lade_peers_collect(struct lade_peers *peers, const void *own, uint64_t bytes, struct lade_faults *faults,
                       struct lade_error *error, void **ret_all)
{
  const int n_ranks = peers && peers->world ? lade_comm_size(peers->world) : 1;
  void *all = lade_fault_calloc(faults, (size_t)n_ranks, bytes);
  int status = all ? 0 : lade_error_set(error, -ENOMEM, "no memory for %llu bytes from each of %d ranks",
                                        (unsigned long long)bytes, n_ranks);
  status = lade_peers_vote(peers, status, error);
  if (!status)
    status = lade_peers_gather(peers, own, bytes, all, error);
  if (status)
    free(all);
  else
    *ret_all = all;
  return status;
}
