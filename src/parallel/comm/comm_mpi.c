/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine for several ranks on hosts. MPI starts the job, finds the ranks and crosses nodes. Inside a node ranks
 * share memory (comm_node.c), and MPI only passes point-to-point messages.
 *
 * Without shared memory (ranks on several nodes, or none available), collectives use MPI's all-gather and all-to-all, a
 * chunk at a time through two staging buffers. A reduction is an exchange of parts, and a sum of all terms of this
 * rank's part over the tree of ranks; an all_reduce also gathers the sums. Each link carries as many bytes as in the
 * best algorithms, and the bits equal those of every other path. MPI's own reductions are not used: their order is
 * unspecified, and they do not support BF16.
 *
 * Rejected: a sum per node first and then across nodes. It sends less between nodes, but its order depends on the
 * placement of ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/comm/comm_node_internal.h"

struct mpi_comm {
  lade_comm base;
  struct comm_group group;
  struct comm_node node; /* used if is_shared */
  bool is_shared;
  char *outgoing, *incoming; /* used otherwise: piece_bytes for each member */
  uint64_t piece_bytes;
  const void **terms;
  struct comm_intent *intents; /* one per member, to compare */
  uint32_t n_sequences;
  atomic_bool has_spoken;
};

#define PIECE_MIN 4096 /* a page */

/* ---- without shared memory ---- */

static int pieces_transfer(struct mpi_comm *comm, enum lade_mpi_kind kind, const void *src, uint64_t bytes,
                           struct lade_error *error)
{
  LADE_ASSERT(bytes <= comm->piece_bytes);
  struct lade_mpi_transfer transfer = {.kind = kind, .src = src, .dst = comm->incoming, .bytes = (int)bytes};
  return comm_group_transfer(&comm->group, &transfer, error);
}

static int intents_check(struct mpi_comm *comm, const struct lade_comm_list *list, struct lade_error *error)
{
  struct comm_intent own;
  comm_intent_fill(&own, list, ++comm->n_sequences);
  int status = comm_group_gather(&comm->group, &own, comm->intents, sizeof(own), error);
  for (int member = 1; !status && member < comm->group.size; member++) {
    const struct comm_intent *other = &comm->intents[member], *first = &comm->intents[0];
    if (memcmp(other, first, sizeof(*other)) == 0)
      continue;
    atomic_store(&comm->group.job->has_failed, true);
    status = comm_intents_report(&comm->group, member, other, first, error);
  }
  return status;
}

/* A chunk of a list: elements [from, from + n) of its blocks or whole vectors, laid end to end. */
struct list_chunk {
  const struct lade_comm_list *list;
  uint64_t from, n;
  uint64_t item_bytes; /* of an element */
};

/* Copy elements [from, from + n) of the chunk, from blocks @i_block of the sources, to @dst. */
static void chunk_pack(struct mpi_comm *comm, const struct list_chunk *chunk, int i_block, struct comm_part piece,
                       char *dst)
{
  struct comm_walk walk = comm_walk_begin(chunk->list, chunk->from + piece.from, piece.n);
  for (struct comm_stretch at; comm_walk_next(&walk, &at);)
    comm_copy(comm->base.params.pool, dst + at.from * chunk->item_bytes,
              (const char *)at.item->src + ((uint64_t)i_block * at.item->n + at.at) * chunk->item_bytes,
              at.n * chunk->item_bytes);
}

/* Copy from @src to blocks @i_block of the destinations. */
static void chunk_unpack(struct mpi_comm *comm, const struct list_chunk *chunk, int i_block, struct comm_part piece,
                         const char *src)
{
  struct comm_walk walk = comm_walk_begin(chunk->list, chunk->from + piece.from, piece.n);
  for (struct comm_stretch at; comm_walk_next(&walk, &at);)
    comm_copy(comm->base.params.pool,
              (char *)at.item->dst + ((uint64_t)i_block * at.item->n + at.at) * chunk->item_bytes,
              src + at.from * chunk->item_bytes, at.n * chunk->item_bytes);
}

static struct comm_part chunk_whole(const struct list_chunk *chunk)
{
  return (struct comm_part){0, chunk->n};
}

/* Copy each member's received piece to its block. */
static void chunks_unpack(struct mpi_comm *comm, const struct list_chunk *chunk)
{
  for (int member = 0; member < comm->group.size; member++)
    chunk_unpack(comm, chunk, member, chunk_whole(chunk),
                 comm->incoming + (uint64_t)member * chunk->n * chunk->item_bytes);
}

static int chunk_gather(struct mpi_comm *comm, const struct list_chunk *chunk, struct lade_error *error)
{
  chunk_pack(comm, chunk, 0, chunk_whole(chunk), comm->outgoing);
  int status = pieces_transfer(comm, LADE_MPI_GATHER, comm->outgoing, chunk->n * chunk->item_bytes, error);
  if (!status)
    chunks_unpack(comm, chunk);
  return status;
}

/* Send every member its piece of the sources' blocks for it. */
static int chunk_exchange(struct mpi_comm *comm, const struct list_chunk *chunk, struct lade_error *error)
{
  const uint64_t bytes = chunk->n * chunk->item_bytes;
  for (int member = 0; member < comm->group.size; member++)
    chunk_pack(comm, chunk, member, chunk_whole(chunk), comm->outgoing + (uint64_t)member * bytes);
  return pieces_transfer(comm, LADE_MPI_EXCHANGE, comm->outgoing, bytes, error);
}

/* Sum the received pieces, of @stride elements each, over the first @n elements of each. */
static void incoming_sum(struct mpi_comm *comm, const struct list_chunk *chunk, uint64_t stride, uint64_t n)
{
  for (int member = 0; member < comm->group.size; member++)
    comm->terms[member] = comm->incoming + (uint64_t)member * stride * chunk->item_bytes;
  comm_sum(&comm->base.params, chunk->list->items->dtype, comm->terms, comm->group.size, comm->outgoing, n);
}

static int chunk_reduce_scatter(struct mpi_comm *comm, const struct list_chunk *chunk, struct lade_error *error)
{
  int status = chunk_exchange(comm, chunk, error);
  if (status)
    return status;
  incoming_sum(comm, chunk, chunk->n, chunk->n);
  chunk_unpack(comm, chunk, 0, chunk_whole(chunk), comm->outgoing);
  return 0;
}

static int chunk_all_to_all(struct mpi_comm *comm, const struct list_chunk *chunk, struct lade_error *error)
{
  int status = chunk_exchange(comm, chunk, error);
  if (!status)
    chunks_unpack(comm, chunk);
  return status;
}

/* Reduce a chunk. Parts are padded to equal length for MPI; the padding is never read. */
static int chunk_all_reduce(struct mpi_comm *comm, const struct list_chunk *chunk, struct lade_error *error)
{
  int size = comm->group.size;
  const uint64_t max = comm_part_max(chunk->n, size), max_bytes = max * chunk->item_bytes;
  for (int member = 0; member < size; member++)
    chunk_pack(comm, chunk, 0, comm_part_get(chunk->n, size, member), comm->outgoing + (uint64_t)member * max_bytes);
  int status = pieces_transfer(comm, LADE_MPI_EXCHANGE, comm->outgoing, max_bytes, error);
  if (status)
    return status;
  incoming_sum(comm, chunk, max, comm_part_get(chunk->n, size, comm->group.rank).n);
  status = pieces_transfer(comm, LADE_MPI_GATHER, comm->outgoing, max_bytes, error);
  for (int member = 0; !status && member < size; member++)
    chunk_unpack(comm, chunk, 0, comm_part_get(chunk->n, size, member), comm->incoming + (uint64_t)member * max_bytes);
  return status;
}

static int chunk_broadcast(struct mpi_comm *comm, const struct list_chunk *chunk, struct lade_error *error)
{
  const int root = chunk->list->items->peer;
  if (root == comm->group.rank)
    chunk_pack(comm, chunk, 0, chunk_whole(chunk), comm->outgoing);
  struct lade_mpi_transfer broadcast = {.kind = LADE_MPI_BROADCAST, .dst = comm->outgoing, .peer = root,
                                        .bytes = (int)(chunk->n * chunk->item_bytes)};
  int status = comm_group_transfer(&comm->group, &broadcast, error);
  if (!status)
    chunk_unpack(comm, chunk, 0, chunk_whole(chunk), comm->outgoing);
  return status;
}

typedef int chunk_fn(struct mpi_comm *comm, const struct list_chunk *chunk, struct lade_error *error);

static int chunks_run(struct mpi_comm *comm, const struct lade_comm_list *list, struct lade_error *error)
{
  static chunk_fn *const chunk_fns[] = {
      [LADE_ALL_GATHER] = chunk_gather,       [LADE_REDUCE_SCATTER] = chunk_reduce_scatter,
      [LADE_ALL_REDUCE] = chunk_all_reduce,   [LADE_ALL_TO_ALL] = chunk_all_to_all,
      [LADE_BROADCAST] = chunk_broadcast,
  };
  const enum lade_collective_kind kind = list->items->kind;
  struct list_chunk chunk = {.list = list, .item_bytes = lade_dtype_bytes(list->items->dtype)};
  uint64_t piece = comm->piece_bytes / chunk.item_bytes, n = comm_list_elements(list);
  uint64_t max = kind == LADE_ALL_REDUCE ? piece * (uint64_t)comm->group.size : piece;
  int status = 0;
  for (; !status && chunk.from < n; chunk.from += max) {
    chunk.n = LADE_MIN(max, n - chunk.from);
    status = chunk_fns[kind](comm, &chunk, error);
  }
  return status;
}

static int apart_run(struct mpi_comm *comm, const struct lade_comm_list *list, struct lade_error *error)
{
  int status = comm->base.params.is_checked ? intents_check(comm, list, error) : 0;
  if (status)
    return status;
  if (list->items->kind == LADE_BARRIER || comm_list_elements(list) == 0)
    return comm_group_gather(&comm->group, &status, comm->group.outcomes, sizeof(status), error);
  return chunks_run(comm, list, error);
}

/* ---- both ---- */

/* Send or receive. MPI does it on all paths, in parts, because MPI counts bytes in int; a short message is an error. */
static int pair_run(struct mpi_comm *comm, const struct lade_collective *c, struct lade_error *error)
{
  uint64_t bytes = lade_collective_bytes(c), from = 0;
  bool is_recv = c->kind == LADE_RECV;
  int failed = comm->is_shared ? comm_node_status(&comm->node, error) : 0;
  if (failed)
    return failed;
  do {
    struct lade_mpi_transfer transfer = {.kind = is_recv ? LADE_MPI_RECV : LADE_MPI_SEND, .peer = c->peer,
                                         .bytes = (int)LADE_MIN(bytes - from, LADE_MPI_TRANSFER_MAX)};
    if (is_recv)
      transfer.dst = (char *)c->dst + from;
    else
      transfer.src = (const char *)c->src + from;
    int status = comm_group_transfer(&comm->group, &transfer, error);
    if (status)
      return status;
    if (is_recv && transfer.received_bytes != transfer.bytes) {
      atomic_store(&comm->group.job->has_failed, true);
      return lade_error_set(error, -EPROTO, "recv of %d bytes from rank %d: %d came", transfer.bytes,
                            comm->group.members[c->peer], transfer.received_bytes);
    }
    from += (uint64_t)transfer.bytes;
  } while (from < bytes);
  return 0;
}

static int mpi_run(lade_comm *base, const struct lade_comm_list *list, struct lade_error *error)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  if (list->items->kind == LADE_SEND || list->items->kind == LADE_RECV)
    return pair_run(comm, list->items, error);
  return comm->is_shared ? comm_node_run(&comm->node, list, error) : apart_run(comm, list, error);
}

static void mpi_abort(lade_comm *base, const char *words)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  atomic_store(&comm->group.job->has_failed, true);
  if (comm->is_shared) {
    comm_node_abort(&comm->node, words);
    return;
  }
  atomic_store(&comm->group.is_aborted, true);
  atomic_store(&comm->group.job->is_aborted, true);
}

static void mpi_set_exit_code(lade_comm *base, int code)
{
  atomic_store(&((struct mpi_comm *)base)->group.job->exit_code, code);
}

static void mpi_set_busy(lade_comm *base, bool is_busy)
{
  const struct comm_group *group = &((struct mpi_comm *)base)->group;
  if (group->job->control)
    atomic_fetch_add(&group->job->control->members[group->members[group->rank]].n_busy, is_busy ? 1u : -1u);
}

/* True at the first rank that asks; without shared memory at the lowest live rank of its node. */
static bool mpi_is_speaker(lade_comm *base)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  if (comm->is_shared)
    return atomic_fetch_add(&comm->node.control->n_spoken, 1) == 0;
  const struct comm_process *all = comm->group.job->processes;
  const int *members = comm->group.members;
  for (int member = 0; member < comm->group.rank; member++)
    if (all[members[member]].node == all[members[comm->group.rank]].node && !comm_member_is_dead(&comm->group, member))
      return false;
  return !atomic_exchange(&comm->has_spoken, true);
}

static void mpi_get_info(const lade_comm *base, struct lade_comm_info *ret_info)
{
  const struct mpi_comm *comm = (const struct mpi_comm *)base;
  uint64_t size = (uint64_t)comm->group.size;
  *ret_info = (struct lade_comm_info){.engine = "mpi", .path = "MPI's collectives", .is_ordered = true};
  ret_info->staging_bytes = 2 * comm->piece_bytes * size;
  if (comm->is_shared) {
    ret_info->path = comm->node.segment.backing == LADE_COMM_BACKING_MEMFD ? "shared memory (memfd)"
                                                                           : "shared memory (/dev/shm)";
    ret_info->can_register = true;
    ret_info->n_direct = atomic_load(&comm->node.n_direct);
    ret_info->staging_bytes = (comm->node.segment.bytes + size - 1) / size;
  }
}

/* ---- windows ---- */

static int mpi_alloc(lade_comm *base, uint64_t bytes, struct lade_error *error, void **ret_data)
{
  return comm_window_alloc(&((struct mpi_comm *)base)->group, &base->params, bytes, error, ret_data);
}

static void mpi_free(lade_comm *base, void *data)
{
  comm_window_release(((struct mpi_comm *)base)->group.job, NULL, data);
}

static int mpi_register(lade_comm *base, const struct lade_comm_range *range, struct lade_error *error,
                        bool *ret_is_registered)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  if (comm->is_shared)
    return comm_window_register(&comm->group, &base->params, range, error, ret_is_registered);
  *ret_is_registered = false;
  return 0;
}

static void mpi_unregister(lade_comm *base, const void *data)
{
  const struct comm_group *group = &((struct mpi_comm *)base)->group;
  comm_window_release(group->job, group, data);
}

/* ---- for another engine ---- */

static int mpi_look(lade_comm *base, struct lade_error *error)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  if (comm->is_shared)
    return comm_node_look(&comm->node, error);
  for (int member = 0; member < comm->group.size; member++)
    if (comm_member_is_dead(&comm->group, member))
      return comm_member_report_dead(&comm->group, member, error);
  return 0;
}

static void mpi_late(lade_comm *base, int member)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  if (comm->is_shared)
    comm_node_late(&comm->node, member);
}

static bool mpi_is_excused(lade_comm *base)
{
  const struct comm_group *group = &((struct mpi_comm *)base)->group;
  bool is_excused = false;
  for (int member = 0; member < group->size && !is_excused; member++)
    is_excused = member != group->rank && comm_member_is_busy(group, member);
  return is_excused;
}

static void mpi_spoil(lade_comm *base)
{
  atomic_store(&((struct mpi_comm *)base)->group.job->has_failed, true);
}

static const void *mpi_peer_memory(lade_comm *base, const void *data, int member)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  uint64_t offset = 0, id = comm_window_find(&comm->group, data, 1, &offset);
  return id ? comm_window_at(comm->group.job, id, comm->group.members[member], offset) : NULL;
}

/* ---- making and ending ---- */

static void mpi_close(lade_comm *base)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  if (comm->is_shared && comm->group.job->control == comm->node.control)
    comm->group.job->control = NULL;
  if (comm->is_shared)
    comm_node_finish(&comm->node);
  free(comm->terms);
  if (!atomic_load(&comm->group.job->has_failed)) { /* otherwise MPI may still write into them */
    free(comm->outgoing);
    free(comm->intents);
  }
  comm_group_close(&comm->group);
  lade_comm_finish(base);
  free(comm);
}

static int staging_create(struct mpi_comm *comm, struct lade_error *error)
{
  uint64_t size = (uint64_t)comm->group.size, half = comm->base.params.staging_bytes / 2;
  struct lade_faults *faults = comm->base.params.faults;
  comm->piece_bytes = LADE_MAX(PIECE_MIN, half / size / PIECE_MIN * PIECE_MIN);
  comm->piece_bytes = LADE_MIN(comm->piece_bytes, LADE_MPI_TRANSFER_MAX);
  comm->outgoing = lade_fault_calloc(faults, 2 * size, comm->piece_bytes);
  comm->terms = lade_fault_calloc(faults, size, sizeof(*comm->terms));
  comm->intents = lade_fault_calloc(faults, size, sizeof(*comm->intents));
  comm->incoming = comm->outgoing ? comm->outgoing + size * comm->piece_bytes : NULL;
  return comm_group_agree(&comm->group, comm->outgoing && comm->terms && comm->intents, "the staging of a communicator",
                          error);
}

/* Report once, at rank 0 of the job, that shared memory is unavailable. */
static void fallback_log(const struct mpi_comm *comm, const struct lade_error *why)
{
  char line[sizeof(why->text) + 96];
  if (!comm->base.params.log || !why->text[0] || comm->group.members[comm->group.rank] != 0)
    return;
  snprintf(line, sizeof(line), "ranks of this node cannot share memory (%s); MPI's collectives serve instead, slower",
           why->text);
  comm->base.params.log(comm->base.params.log_user, line);
}

static const struct lade_comm_ops mpi_ops;

/* Create a communicator. Takes ownership of @group, also on failure. */
static int comm_create(const struct lade_comm_params *params, struct comm_group *group, struct lade_error *error,
                       lade_comm **ret_comm)
{
  struct lade_error why = {0};
  struct mpi_comm *comm = lade_fault_calloc(params->faults, 1, sizeof(*comm));
  int failed = comm_group_agree(group, comm, "a communicator", error);
  if (failed) {
    comm_group_close(group);
    free(comm);
    return failed;
  }
  comm->group = *group;
  lade_comm_init(&comm->base, &mpi_ops, params, group->rank, group->size);
  comm->group.params = &comm->base.params;
  if (group->is_one_node && params->backing != LADE_COMM_BACKING_NONE)
    failed = comm_node_init(&comm->node, &comm->group, &comm->base.params, &why, error, &comm->is_shared);
  if (!failed && !comm->is_shared)
    failed = staging_create(comm, error);
  if (failed) {
    mpi_close(&comm->base);
    return failed;
  }
  comm->group.node = comm->is_shared ? &comm->node : NULL;
  if (comm->is_shared && !group->job->control && group->size == group->job->world)
    group->job->control = comm->node.control;
  fallback_log(comm, &why);
  if (why.text[0]) /* its parts need neither try again nor report it */
    comm->base.params.backing = LADE_COMM_BACKING_NONE;
  LADE_ASSERT(!LADE_CHECK_FULL || comm_is_valid(&comm->base));
  *ret_comm = &comm->base;
  return 0;
}

static int mpi_split(lade_comm *base, int colour, int key, struct lade_error *error, lade_comm **ret_comm)
{
  struct mpi_comm *comm = (struct mpi_comm *)base;
  struct comm_group part = {.group = NULL};
  int failed = comm_group_split(&comm->group, colour, key, error, &part);
  if (failed || !part.group)
    return failed;
  return comm_create(&base->params, &part, error, ret_comm);
}

static const struct lade_comm_ops mpi_ops = {
    .run = mpi_run,
    .split = mpi_split,
    .alloc = mpi_alloc,
    .free = mpi_free,
    .register_range = mpi_register,
    .unregister_range = mpi_unregister,
    .abort = mpi_abort,
    .is_speaker = mpi_is_speaker,
    .get_info = mpi_get_info,
    .close = mpi_close,
    .set_exit_code = mpi_set_exit_code,
    .set_busy = mpi_set_busy,
    .look = mpi_look,
    .late = mpi_late,
    .is_excused = mpi_is_excused,
    .spoil = mpi_spoil,
    .peer_memory = mpi_peer_memory,
};

int lade_comm_open_mpi(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm)
{
  struct comm_group world;
  int failed = comm_job_open(params, error, &world);
  return failed ? failed : comm_create(params, &world, error, ret_comm);
}
