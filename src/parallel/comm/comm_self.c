/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world of one: every collective is a copy or nothing. The sum of one term is the term. It still runs through the
 * kernel, because rounding does not change values of the dtype, and NaN gets the same bits as in other engines.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/comm/comm_internal.h"

struct self {
  lade_comm base;
  atomic_bool has_spoken;
};

static void collective_run(lade_comm *comm, const struct lade_collective *c)
{
  const struct lade_kernel_ctx ctx = {.pool = comm->params.pool};
  struct lade_rank_sum_args sum = {.dtype = c->dtype, .n_terms = 1, .n_elements = (int64_t)c->n, .x = &c->src,
                                   .y = c->dst};
  switch (c->kind) {
  case LADE_REDUCE_SCATTER:
  case LADE_ALL_REDUCE:
    if (c->n)
      comm->params.kernels->fn[LADE_K_RANK_SUM](&ctx, &sum);
    return;
  case LADE_ALL_GATHER:
  case LADE_ALL_TO_ALL:
  case LADE_BROADCAST:
    if (c->n && c->dst != c->src)
      memcpy(c->dst, c->src, lade_collective_bytes(c));
    return;
  default: return; /* a barrier; a send has no other rank and was refused */
  }
}

static int self_run(lade_comm *comm, const struct lade_comm_list *list, struct lade_error *error)
{
  for (int i = 0; i < list->n; i++)
    collective_run(comm, &list->items[i]);
  return 0;
}

static int self_create(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);

static int self_split(lade_comm *comm, int colour, int key, struct lade_error *error, lade_comm **ret_comm)
{
  return colour < 0 ? 0 : self_create(&comm->params, error, ret_comm);
}

static int self_alloc(lade_comm *comm, uint64_t bytes, struct lade_error *error, void **ret_data)
{
  uint64_t whole = lade_align_up(bytes, 4096);
  void *data = lade_fault(comm->params.faults, LADE_FAULT_HEAP) ? NULL : aligned_alloc(4096, whole);
  if (!data)
    return lade_error_set(error, -ENOMEM, "no memory for %llu bytes", (unsigned long long)bytes);
  memset(data, 0, whole);
  *ret_data = data;
  return 0;
}

static void self_free(lade_comm *comm, void *data)
{
  free(data);
}

static void self_abort(lade_comm *comm, const char *words)
{
}

static bool self_is_speaker(lade_comm *comm)
{
  return !atomic_exchange(&((struct self *)comm)->has_spoken, true);
}

static void self_get_info(const lade_comm *comm, struct lade_comm_info *ret_info)
{
  *ret_info = (struct lade_comm_info){.engine = "self", .path = "one rank", .is_ordered = true};
}

static void self_close(lade_comm *comm)
{
  lade_comm_finish(comm);
  free(comm);
}

static const struct lade_comm_ops self_ops = {
    .run = self_run,
    .split = self_split,
    .alloc = self_alloc,
    .free = self_free,
    .abort = self_abort,
    .is_speaker = self_is_speaker,
    .get_info = self_get_info,
    .close = self_close,
};

static int self_create(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm)
{
  struct self *self = lade_fault_calloc(params->faults, 1, sizeof(*self));
  if (!self)
    return lade_error_set(error, -ENOMEM, "no memory for a communicator");
  lade_comm_init(&self->base, &self_ops, params, 0, 1);
  LADE_ASSERT(!LADE_CHECK_FULL || comm_is_valid(&self->base));
  *ret_comm = &self->base;
  return 0;
}

int lade_comm_open_self(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm)
{
  return self_create(params, error, ret_comm);
}
