/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ways for the bytes of a collective inside a node.
 *
 * Direct: the buffers lie in windows (lade_comm_alloc), so every rank reads its peers' where they are. A gather is one
 * copy; a reduction reads each term once and writes each sum once, which is what memory speed means; an all_reduce is
 * the reduction of one's own part, into one's own dst, and a gather of the other parts from theirs. In place this is
 * safe because rank r writes only parts that no other rank reads any more: part r of its own buffer is read by itself
 * alone in the first half, and the other parts of it by nobody in the second.
 *
 * Staged: memory of any kind is copied through slots of the segment, a chunk at a time, as a pipeline whose stages
 * are a meeting apart: while chunk k is copied in, chunk k-1 is summed and chunk k-2 copied out. Every stage has
 * two places, by the chunk's parity, so one meeting per chunk is enough. What a rank contributes to its own
 * part never goes through a slot.
 *
 * A sum is made by one rank per element over all terms in the order of ranks, so chunks and paths cannot change it.
 */
#include <errno.h>
#include <string.h>

#include "parallel/comm_node_moves_internal.h"

#define COPY_TASK_BYTES (256ull << 10)
#define DELIVER_BYTES (256ull << 10) /* below, a result may well be read while it is in the caches */

/* ---- tools ---- */

struct copy {
  char *dst;
  const char *src;
  uint64_t bytes;
};

static void copy_task(void *arg, int i_task, int i_thread)
{
  const struct copy *copy = arg;
  uint64_t from = (uint64_t)i_task * COPY_TASK_BYTES;
  memcpy(copy->dst + from, copy->src + from, LADE_MIN(COPY_TASK_BYTES, copy->bytes - from));
}

void comm_copy(lade_pool *pool, void *dst, const void *src, uint64_t bytes)
{
  if (bytes <= COPY_TASK_BYTES || !pool) {
    if (bytes)
      memcpy(dst, src, bytes);
    return;
  }
  struct copy copy = {dst, src, bytes};
  lade_pool_run(pool, copy_task, &copy, (int)lade_div_up((int64_t)bytes, COPY_TASK_BYTES));
}

void comm_deliver(const struct lade_comm_params *params, void *dst, const void *src, uint64_t bytes)
{
  const struct lade_kernel_ctx ctx = {.pool = params->pool};
  struct lade_copy_args copy = {.n_bytes = (int64_t)bytes, .x = src, .y = dst};
  if (bytes < DELIVER_BYTES)
    comm_copy(params->pool, dst, src, bytes);
  else
    params->kernels->fn[LADE_K_COPY](&ctx, &copy);
}

void comm_sum(const struct lade_comm_params *params, enum lade_dtype dtype, const void *const *terms, int n_terms,
              void *dst, uint64_t n)
{
  const struct lade_kernel_ctx ctx = {.pool = params->pool};
  struct lade_rank_sum_args sum = {.dtype = dtype, .n_terms = n_terms, .n_elements = (int64_t)n, .x = terms, .y = dst};
  if (n)
    params->kernels->fn[LADE_K_RANK_SUM](&ctx, &sum);
}

/* ---- direct ---- */

struct direct {
  struct comm_node *node;
  const struct lade_collective *c;
  const struct comm_agreement *agreement;
  uint64_t item_bytes;
};

static const char *src_at(const struct direct *d, int member, uint64_t element)
{
  const struct comm_intent *intent = &d->node->control->members[member].intents[d->agreement->parity];
  return (const char *)comm_window_at(d->node->group->job, intent->src_window, d->node->group->members[member],
                                      intent->src_offset) + element * d->item_bytes;
}

static const char *dst_at(const struct direct *d, int member, uint64_t element)
{
  const struct comm_intent *intent = &d->node->control->members[member].intents[d->agreement->parity];
  return (const char *)comm_window_at(d->node->group->job, intent->dst_window, d->node->group->members[member],
                                      intent->dst_offset) + element * d->item_bytes;
}

/* dst block @member = @n elements of that member's src from @element on, for every other member, nearest first. */
static void blocks_fetch(const struct direct *d, uint64_t element)
{
  int size = d->node->group->size, rank = d->node->group->rank;
  uint64_t bytes = lade_collective_bytes(d->c);
  for (int i = 0; i < size; i++) {
    int member = (rank + i) % size;
    char *dst = (char *)d->c->dst + (uint64_t)member * bytes;
    const char *src = src_at(d, member, element);
    if (dst != src && !(member == rank && d->c->src == dst))
      comm_deliver(d->node->params, dst, src, bytes);
  }
}

/* The sum of @n elements from @element on of all sources. */
static void elements_sum(const struct direct *d, uint64_t element, uint64_t n, void *dst)
{
  int size = d->node->group->size;
  for (int member = 0; member < size; member++)
    d->node->terms[member] = src_at(d, member, element);
  comm_sum(d->node->params, d->c->dtype, d->node->terms, size, dst, n);
}

static int all_reduce_direct(const struct direct *d, struct lade_error *error)
{
  int size = d->node->group->size, rank = d->node->group->rank;
  struct comm_part own = comm_part_get(d->c->n, size, rank);
  elements_sum(d, own.from, own.n, (char *)d->c->dst + own.from * d->item_bytes);
  int status = comm_node_meet(d->node, error);
  for (int i = 1; !status && i < size; i++) {
    int member = (rank + i) % size;
    struct comm_part part = comm_part_get(d->c->n, size, member);
    comm_deliver(d->node->params, (char *)d->c->dst + part.from * d->item_bytes, dst_at(d, member, part.from),
                 part.n * d->item_bytes);
  }
  return status ? status : comm_node_meet(d->node, error);
}

/* The root puts it into its own dst, from where all fetch it. */
static int broadcast_direct(const struct direct *d, struct lade_error *error)
{
  bool is_root = d->node->group->rank == d->c->peer;
  uint64_t bytes = lade_collective_bytes(d->c);
  if (is_root && d->c->src != d->c->dst)
    comm_copy(d->node->params->pool, d->c->dst, d->c->src, bytes);
  int status = comm_node_meet(d->node, error);
  if (!status && !is_root)
    comm_deliver(d->node->params, d->c->dst, dst_at(d, d->c->peer, 0), bytes);
  return status ? status : comm_node_meet(d->node, error);
}

bool comm_move_is_direct(const struct lade_collective *c, const struct comm_agreement *agreement)
{
  switch (c->kind) {
  case LADE_ALL_REDUCE: return agreement->is_src_shared && agreement->is_dst_shared;
  case LADE_BROADCAST: return agreement->is_dst_shared;
  default: return agreement->is_src_shared;
  }
}

int comm_move_direct(struct comm_node *node, const struct lade_collective *c, const struct comm_agreement *agreement,
                     struct lade_error *error)
{
  struct direct direct = {node, c, agreement, lade_dtype_bytes(c->dtype)};
  uint64_t own_block = (uint64_t)node->group->rank * c->n;
  switch (c->kind) {
  case LADE_ALL_GATHER: blocks_fetch(&direct, 0); break;
  case LADE_ALL_TO_ALL: blocks_fetch(&direct, own_block); break;
  case LADE_REDUCE_SCATTER: elements_sum(&direct, own_block, c->n, c->dst); break;
  case LADE_ALL_REDUCE: return all_reduce_direct(&direct, error);
  default: return broadcast_direct(&direct, error);
  }
  return comm_node_meet(node, error);
}

/* ---- staged ---- */

struct staged {
  struct comm_node *node;
  const struct lade_collective *c;
  uint64_t item_bytes;
  uint64_t chunk; /* elements: of a block, or for all_reduce and broadcast of the whole */
  uint64_t n_chunks;
  bool is_block_wise; /* a slot holds a piece for every member */
};

/* The chunk's elements: [from, from + n) of the block or the whole. */
static struct comm_part chunk_get(const struct staged *s, uint64_t i_chunk)
{
  uint64_t from = i_chunk * s->chunk;
  return (struct comm_part){from, LADE_MIN(s->chunk, s->c->n - from)};
}

static char *slot_at(const struct staged *s, int member, uint64_t i_chunk, uint64_t element)
{
  return s->node->slots + (2 * (uint64_t)member + (i_chunk & 1)) * s->node->chunk_bytes + element * s->item_bytes;
}

static char *result_at(const struct staged *s, uint64_t i_chunk, uint64_t element)
{
  return s->node->results + (i_chunk & 1) * s->node->chunk_bytes + element * s->item_bytes;
}

static void copy_elements(const struct staged *s, void *dst, const void *src, uint64_t n)
{
  comm_copy(s->node->params->pool, dst, src, n * s->item_bytes);
}

static void chunk_in(const struct staged *s, uint64_t i_chunk)
{
  int rank = s->node->group->rank, size = s->node->group->size;
  struct comm_part chunk = chunk_get(s, i_chunk);
  const char *src = s->c->src;
  if (s->c->kind == LADE_BROADCAST && s->c->peer != rank)
    return;
  if (!s->is_block_wise && s->c->kind != LADE_ALL_REDUCE) {
    copy_elements(s, slot_at(s, rank, i_chunk, 0), src + chunk.from * s->item_bytes, chunk.n);
    return;
  }
  for (int member = 0; member < size; member++) {
    if (member == rank)
      continue;
    struct comm_part piece = s->is_block_wise ? (struct comm_part){(uint64_t)member * chunk.n, chunk.n}
                                         : comm_part_get(chunk.n, size, member);
    uint64_t from = s->is_block_wise ? (uint64_t)member * s->c->n + chunk.from : chunk.from + piece.from;
    copy_elements(s, slot_at(s, rank, i_chunk, piece.from), src + from * s->item_bytes, piece.n);
  }
}

/* This rank's piece of the chunk: from its own src, and from everybody else's slots. */
static void chunk_sum(const struct staged *s, uint64_t i_chunk)
{
  int rank = s->node->group->rank, size = s->node->group->size;
  struct comm_part chunk = chunk_get(s, i_chunk);
  struct comm_part piece = s->is_block_wise ? (struct comm_part){(uint64_t)rank * chunk.n, chunk.n}
                                       : comm_part_get(chunk.n, size, rank);
  uint64_t from = s->is_block_wise ? (uint64_t)rank * s->c->n + chunk.from : chunk.from + piece.from;
  for (int member = 0; member < size; member++)
    s->node->terms[member] = slot_at(s, member, i_chunk, piece.from);
  s->node->terms[rank] = (const char *)s->c->src + from * s->item_bytes;
  void *dst = s->is_block_wise ? (char *)s->c->dst + chunk.from * s->item_bytes : result_at(s, i_chunk, piece.from);
  comm_sum(s->node->params, s->c->dtype, s->node->terms, size, dst, piece.n);
}

static void chunk_out(const struct staged *s, uint64_t i_chunk)
{
  int rank = s->node->group->rank, size = s->node->group->size;
  struct comm_part chunk = chunk_get(s, i_chunk);
  char *dst = s->c->dst;
  if (s->c->kind == LADE_ALL_REDUCE || s->c->kind == LADE_BROADCAST) {
    bool is_sum = s->c->kind == LADE_ALL_REDUCE;
    const char *src = is_sum ? result_at(s, i_chunk, 0) : slot_at(s, s->c->peer, i_chunk, 0);
    if (is_sum || rank != s->c->peer)
      comm_deliver(s->node->params, dst + chunk.from * s->item_bytes, src, chunk.n * s->item_bytes);
    return;
  }
  for (int i = 1; i < size; i++) {
    int member = (rank + i) % size;
    const char *src = slot_at(s, member, i_chunk, s->is_block_wise ? (uint64_t)rank * chunk.n : 0);
    comm_deliver(s->node->params, dst + ((uint64_t)member * s->c->n + chunk.from) * s->item_bytes, src,
                 chunk.n * s->item_bytes);
  }
}

/* What a rank gives to itself. */
static void own_copy(const struct staged *s)
{
  uint64_t rank = (uint64_t)s->node->group->rank, n = s->c->n;
  const char *src = s->c->src;
  char *dst = s->c->dst;
  if (s->c->kind == LADE_ALL_GATHER || s->c->kind == LADE_ALL_TO_ALL)
    dst += rank * n * s->item_bytes;
  if (s->c->kind == LADE_ALL_TO_ALL)
    src += rank * n * s->item_bytes;
  bool is_mine = s->c->kind != LADE_BROADCAST || s->c->peer == (int)rank;
  if (is_mine && src != dst)
    comm_deliver(s->node->params, dst, src, n * s->item_bytes);
}

int comm_move_staged(struct comm_node *node, const struct lade_collective *c, struct lade_error *error)
{
  bool is_sum = c->kind == LADE_REDUCE_SCATTER || c->kind == LADE_ALL_REDUCE, is_out = c->kind != LADE_REDUCE_SCATTER;
  struct staged s = {node, c, lade_dtype_bytes(c->dtype), 0, 0, c->kind == LADE_REDUCE_SCATTER ||
                                                                  c->kind == LADE_ALL_TO_ALL};
  s.chunk = node->chunk_bytes / s.item_bytes / (s.is_block_wise ? (uint64_t)node->group->size : 1);
  s.n_chunks = (c->n + s.chunk - 1) / s.chunk;
  uint64_t depth = is_sum && is_out ? 2 : 1; /* stages behind the first, a meeting apart */
  if (!is_sum)
    own_copy(&s);
  for (uint64_t step = 0;; step++) {
    if (is_out && step >= depth)
      chunk_out(&s, step - depth);
    if (is_sum && step >= 1 && step - 1 < s.n_chunks)
      chunk_sum(&s, step - 1);
    if (step < s.n_chunks)
      chunk_in(&s, step);
    if (step + 1 == s.n_chunks + depth)
      return 0;
    int status = comm_node_meet(node, error);
    if (status)
      return status;
  }
}
