/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common half of every engine: arguments, the first error, work for queues.
 *
 * Arguments are checked before an engine sees them, against a table of the blocks that each kind's two buffers have.
 * Refused are sizes that overflow, missing buffers, overlap other than in place, ranks that do not exist, and sums of
 * types without a sum.
 *
 * An engine's error is final, because its ranks no longer agree which collectives have run. The first error is kept
 * here. Work that a queue runs later does nothing, and lade_comm_status returns that error.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/comm/comm_internal.h"

/* Blocks of n elements in each buffer: 0 none, 1, or WORLD for one per rank. */
enum { NONE, ONE, WORLD };

static const struct {
  const char *name;
  int src, dst;
  bool is_sum, has_peer;
} kinds[LADE_N_COLLECTIVES] = {
    [LADE_ALL_GATHER] = {"all_gather", ONE, WORLD, false, false},
    [LADE_REDUCE_SCATTER] = {"reduce_scatter", WORLD, ONE, true, false},
    [LADE_ALL_REDUCE] = {"all_reduce", ONE, ONE, true, false},
    [LADE_ALL_TO_ALL] = {"all_to_all", WORLD, WORLD, false, false},
    [LADE_BROADCAST] = {"broadcast", ONE, ONE, false, true},
    [LADE_SEND] = {"send", ONE, NONE, false, true},
    [LADE_RECV] = {"recv", NONE, ONE, false, true},
    [LADE_BARRIER] = {"barrier", NONE, NONE, false, false},
};

const char *lade_collective_name(enum lade_collective_kind kind)
{
  LADE_ASSERT(kind >= 0 && kind < LADE_N_COLLECTIVES);
  return kinds[kind].name;
}

void lade_comm_init(lade_comm *comm, const struct lade_comm_ops *ops, const struct lade_comm_params *params, int rank,
                    int size)
{
  LADE_ASSERT(rank >= 0 && rank < size);
  comm->ops = ops;
  comm->rank = rank;
  comm->size = size;
  comm->params = *params;
  comm->params.launch = NULL;
  lade_first_error_init(&comm->failure);
}

void lade_comm_finish(lade_comm *comm)
{
  lade_first_error_finish(&comm->failure);
}

/* True if @ops has what every engine has, and optional operations only in the sets that are called together. */
static bool ops_are_valid(const struct lade_comm_ops *ops)
{
  const bool is_watched = ops->look;
  return ops->run && ops->split && ops->alloc && ops->free && ops->abort && ops->is_speaker && ops->get_info &&
         ops->close && !ops->register_range == !ops->unregister_range && is_watched == !!ops->late &&
         is_watched == !!ops->is_excused && is_watched == !!ops->spoil && is_watched == !!ops->peer_memory;
}

bool comm_is_valid(const lade_comm *comm)
{
  const struct lade_comm_params *params = &comm->params;
  const int status = lade_first_error_code(&comm->failure);
  return comm->ops && ops_are_valid(comm->ops) && comm->rank >= 0 && comm->rank < comm->size && !params->launch &&
         params->kernels && params->timeout_ms > 0 && params->staging_bytes && params->staging_bytes % 4096 == 0 &&
         status <= 0 && comm->failure.line.code == status;
}

/* Copy an engine's line, which a failure always has, to the caller's @error, which may be NULL. */
int comm_error_pass(int status, const struct lade_error *found, struct lade_error *error)
{
  if (status && error)
    *error = *found;
  return status;
}

void lade_comm_close(lade_comm *comm)
{
  if (comm)
    comm->ops->close(comm);
}

int lade_comm_rank(const lade_comm *comm)
{
  return comm->rank;
}

int lade_comm_size(const lade_comm *comm)
{
  return comm->size;
}

void lade_comm_get_info(const lade_comm *comm, struct lade_comm_info *ret_info)
{
  comm->ops->get_info(comm, ret_info);
  ret_info->timeout_ms = comm->params.timeout_ms;
}

int lade_comm_status(lade_comm *comm, struct lade_error *error)
{
  return lade_first_error_get(&comm->failure, error);
}

int lade_comm_keep(lade_comm *comm, int status, const struct lade_error *found, struct lade_error *error)
{
  if (!status)
    return 0;
  lade_first_error_set(&comm->failure, status, found);
  return lade_comm_status(comm, error);
}

/* Compute the bytes of a buffer of @blocks; false if they do not fit an address space. */
static bool buffer_bytes(const lade_comm *comm, const struct lade_collective *c, int blocks, uint64_t *ret_bytes)
{
  uint64_t n_blocks = blocks == WORLD ? (uint64_t)comm->size : (uint64_t)blocks;
  return !__builtin_mul_overflow(c->n, lade_dtype_bytes(c->dtype) * n_blocks, ret_bytes) && *ret_bytes <= INT64_MAX;
}

/* True if one buffer is exactly at its block of the other, the one allowed overlap. */
static bool is_in_place(const lade_comm *comm, const struct lade_collective *c)
{
  uint64_t block = (uint64_t)comm->rank * lade_collective_bytes(c);
  switch (c->kind) {
  case LADE_ALL_GATHER: return (const char *)c->src == (const char *)c->dst + block;
  case LADE_REDUCE_SCATTER: return (const char *)c->dst == (const char *)c->src + block;
  case LADE_ALL_REDUCE: return c->src == c->dst;
  case LADE_BROADCAST: return c->src == c->dst || c->peer != comm->rank;
  default: return false;
  }
}

static int buffers_check(const lade_comm *comm, const struct lade_collective *c, struct lade_error *error)
{
  const char *name = lade_collective_name(c->kind);
  uint64_t src_bytes, dst_bytes;
  if (!buffer_bytes(comm, c, kinds[c->kind].src, &src_bytes) || !buffer_bytes(comm, c, kinds[c->kind].dst, &dst_bytes))
    return lade_error_set(error, -EINVAL, "%s: %llu elements among %d ranks are more than memory can hold", name,
                          (unsigned long long)c->n, comm->size);
  if (c->kind == LADE_BROADCAST && c->peer != comm->rank)
    src_bytes = 0;
  if ((src_bytes && !c->src) || (dst_bytes && !c->dst))
    return lade_error_set(error, -EINVAL, "%s: a buffer is missing", name);
  uintptr_t src = (uintptr_t)c->src, dst = (uintptr_t)c->dst;
  if (src_bytes && dst_bytes && src < dst + dst_bytes && dst < src + src_bytes && !is_in_place(comm, c))
    return lade_error_set(error, -EINVAL, "%s: its buffers overlap, other than in place", name);
  return 0;
}

static int collective_check(const lade_comm *comm, const struct lade_collective *c, struct lade_error *error)
{
  if (c->kind < 0 || c->kind >= LADE_N_COLLECTIVES || c->dtype < 0 || c->dtype >= LADE_N_DTYPES)
    return lade_error_set(error, -EINVAL, "there is no collective %d of dtype %d", (int)c->kind, (int)c->dtype);
  const char *name = lade_collective_name(c->kind);
  if (kinds[c->kind].is_sum && c->dtype != LADE_F32 && c->dtype != LADE_BF16 && c->dtype != LADE_F16)
    return lade_error_set(error, -EINVAL, "%s: sums are of f32, bf16 and f16, not of %s", name,
                          lade_dtype_name(c->dtype));
  if (kinds[c->kind].has_peer && (c->peer < 0 || c->peer >= comm->size))
    return lade_error_set(error, -EINVAL, "%s: there is no rank %d among %d", name, c->peer, comm->size);
  if ((c->kind == LADE_SEND || c->kind == LADE_RECV) && c->peer == comm->rank)
    return lade_error_set(error, -EINVAL, "%s: a send to oneself would wait for itself", name);
  return buffers_check(comm, c, error);
}

int lade_comm_check(const lade_comm *comm, const struct lade_collective *collective, struct lade_error *error)
{
  return collective_check(comm, collective, error);
}

static bool is_listable(enum lade_collective_kind kind)
{
  return kind != LADE_SEND && kind != LADE_RECV && kind != LADE_BARRIER;
}

static int list_check(const lade_comm *comm, const struct lade_comm_list *list, struct lade_error *error)
{
  const struct lade_collective *first = list->items;
  if (list->n < 1 || list->n > LADE_COMM_LIST_MAX)
    return lade_error_set(error, -EINVAL, "a list of %d collectives: it has 1 to %d", list->n, LADE_COMM_LIST_MAX);
  int status = 0;
  for (int i = 0; i < list->n && !status; i++)
    status = collective_check(comm, &list->items[i], error);
  for (int i = 1; i < list->n && !status; i++) {
    const struct lade_collective *c = &list->items[i];
    if (c->kind != first->kind || c->dtype != first->dtype || c->peer != first->peer || !is_listable(c->kind))
      status = lade_error_set(error, -EINVAL, "a list of %s and %s: it is of one kind, dtype and peer, and has no "
                              "send, recv or barrier", lade_collective_name(first->kind),
                              lade_collective_name(c->kind));
  }
  return status;
}

/* Run a list on the engine. pre: its arguments are checked. */
static int engine_run(lade_comm *comm, const struct lade_comm_list *list, struct lade_error *found)
{
  int status = comm->ops->run(comm, list, found);
  LADE_ASSERT(status <= 0 && (!status || found->text[0]));
  return status;
}

int lade_comm_run_list(lade_comm *comm, const struct lade_comm_list *list, struct lade_error *error)
{
  struct lade_error found = {0};
  int status = list_check(comm, list, error);
  if (!status)
    status = lade_comm_status(comm, error);
  return status ? status : lade_comm_keep(comm, engine_run(comm, list, &found), &found, error);
}

int lade_comm_run(lade_comm *comm, const struct lade_collective *collective, struct lade_error *error)
{
  return lade_comm_run_list(comm, &(struct lade_comm_list){collective, 1}, error);
}

static void work_run(void *args)
{
  struct lade_comm_work *work = args;
  struct lade_error found = {0};
  int status = lade_comm_status(work->comm, NULL);
  if (!status)
    status = engine_run(work->comm, &work->list, &found);
  atomic_store(&work->status, status); /* stored first, so that a thread that sees the communicator's failure also
                                          sees this work's status */
  lade_comm_keep(work->comm, status, &found, NULL);
}

int lade_comm_launch(lade_comm *comm, lade_queue *queue, struct lade_comm_work *work, uint64_t *ret_count)
{
  int status = list_check(comm, &work->list, NULL);
  if (status)
    return status;
  work->comm = comm;
  if (comm->ops->launch && comm->ops->launch(comm, queue, work, ret_count))
    return 0;
  struct lade_work launch = {.fn = work_run, .args = work, .predicted_ns = work->predicted_ns,
                             .ret_span = work->ret_span};
  lade_queue_launch(queue, &launch, ret_count);
  return 0;
}

int lade_comm_split(lade_comm *comm, int colour, int key, struct lade_error *error, lade_comm **ret_comm)
{
  struct lade_error found = {0};
  int status = lade_comm_status(comm, error);
  if (status)
    return status;
  lade_comm *part = NULL;
  status = lade_comm_keep(comm, comm->ops->split(comm, colour, key, &found, &part), &found, error);
  if (!status)
    *ret_comm = part;
  return status;
}

int lade_comm_alloc(lade_comm *comm, uint64_t bytes, struct lade_error *error, void **ret_data)
{
  int status = lade_comm_status(comm, error);
  if (status)
    return status;
  if (bytes == 0 || bytes > INT64_MAX / 2)
    return lade_error_set(error, -EINVAL, "cannot allocate %llu bytes", (unsigned long long)bytes);
  struct lade_error found = {0};
  status = comm->ops->alloc(comm, bytes, &found, ret_data);
  if (status == -ENOMEM) /* agreed by all members: the communicator is unchanged */
    return comm_error_pass(status, &found, error);
  return lade_comm_keep(comm, status, &found, error);
}

void lade_comm_free(lade_comm *comm, void *data)
{
  LADE_ASSERT(data);
  comm->ops->free(comm, data);
}

int lade_comm_register(lade_comm *comm, const struct lade_comm_range *range, struct lade_error *error,
                       bool *ret_is_registered)
{
  int status = lade_comm_status(comm, error);
  if (status)
    return status;
  if (!range->data || range->bytes == 0 || range->bytes > INT64_MAX / 2)
    return lade_error_set(error, -EINVAL, "cannot register %llu bytes", (unsigned long long)range->bytes);
  struct lade_error found = {0};
  bool is_registered = false;
  if (comm->ops->register_range)
    status = lade_comm_keep(comm, comm->ops->register_range(comm, range, &found, &is_registered), &found, error);
  if (!status)
    *ret_is_registered = is_registered;
  return status;
}

void lade_comm_unregister(lade_comm *comm, const void *data)
{
  comm->ops->unregister_range(comm, data);
}

void lade_comm_abort(lade_comm *comm, const char *words)
{
  struct lade_error own = {0};
  lade_error_set(&own, -ECANCELED, "rank %d gave up: %s", comm->rank, words);
  lade_comm_keep(comm, -ECANCELED, &own, NULL);
  comm->ops->abort(comm, words);
}

void lade_comm_set_busy(lade_comm *comm, bool is_busy)
{
  if (comm->ops->set_busy)
    comm->ops->set_busy(comm, is_busy);
}

void lade_comm_set_exit_code(lade_comm *comm, int code)
{
  if (comm->ops->set_exit_code)
    comm->ops->set_exit_code(comm, code);
}

bool lade_comm_is_speaker(lade_comm *comm)
{
  return comm->ops->is_speaker(comm);
}
