/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two paths for the bytes of a collective inside a node.
 *
 * Direct: the buffers are in windows (comm_window.c), so every rank reads its peers' buffers in place. A gather is one
 * copy. A reduction reads each term once and writes each sum once, the minimum of memory traffic. An all_reduce is the
 * reduction of this rank's part into its own dst, and a gather of the other parts from the others' dst. This is safe in
 * place, because rank r writes only parts that no other rank reads any more. In the first half, part r of its own
 * buffer is read by rank r alone; in the second half, the other parts of it are not read.
 *
 * Staged: memory of any kind is copied through slots of the segment, a chunk at a time. It is a pipeline whose stages
 * are one meeting apart: while chunk k is copied in, chunk k-1 is summed and chunk k-2 copied out. Every stage has two
 * places, by the chunk's parity, so one meeting per chunk is enough. A rank's contribution to its own part is not
 * copied through a slot.
 *
 * A list moves item by item on the direct path, with the meetings of one item. On the staged path its blocks are laid
 * end to end and cut into chunks at any element. So many small blocks share a chunk and its meeting.
 *
 * One rank computes each element's sum, over all terms and one tree, so chunks, lists and paths cannot change it.
 */
#include <errno.h>
#include <string.h>

#include "parallel/comm/comm_node_moves_internal.h"

#define COPY_TASK_BYTES (256ull << 10) /* of one task of the pool */
#define DELIVER_BYTES (256ull << 10) /* below this size a result is probably read while it is in the caches */

/* ---- tools ---- */

struct node_copy {
  char *dst;
  const char *src;
  uint64_t bytes;
};

static void copy_task(void *arg, int i_task, int i_thread)
{
  const struct node_copy *copy = arg;
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
  struct node_copy copy = {dst, src, bytes};
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
  const struct lade_collective *c; /* the current item */
  int i_item;
  int parity;
  uint64_t item_bytes; /* of an element */
};

static const char *src_at(const struct direct *d, int member, uint64_t element)
{
  const struct comm_whereabouts *where = &d->node->control->members[member].whereabouts[d->parity][d->i_item];
  return (const char *)comm_window_at(d->node->group->job, where->src_window, d->node->group->members[member],
                                      where->src_offset) + element * d->item_bytes;
}

static const char *dst_at(const struct direct *d, int member, uint64_t element)
{
  const struct comm_whereabouts *where = &d->node->control->members[member].whereabouts[d->parity][d->i_item];
  return (const char *)comm_window_at(d->node->group->job, where->dst_window, d->node->group->members[member],
                                      where->dst_offset) + element * d->item_bytes;
}

/*
 * Copy into dst block @member the elements of that member's src from @element on, for every other member, nearest
 * first.
 */
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

/* Sum @n elements from @element on of all sources into @dst. */
static void elements_sum(const struct direct *d, uint64_t element, uint64_t n, void *dst)
{
  int size = d->node->group->size;
  for (int member = 0; member < size; member++)
    d->node->terms[member] = src_at(d, member, element);
  comm_sum(d->node->params, d->c->dtype, d->node->terms, size, dst, n);
}

/*
 * Do the part of an item that reads only the sources. For a broadcast, the root copies src into its own dst, from which
 * all others read.
 */
static void item_begin(const struct direct *d)
{
  const int size = d->node->group->size, rank = d->node->group->rank;
  const uint64_t own_block = (uint64_t)rank * d->c->n;
  const struct comm_part own = comm_part_get(d->c->n, size, rank);
  switch (d->c->kind) {
  case LADE_ALL_GATHER: blocks_fetch(d, 0); return;
  case LADE_ALL_TO_ALL: blocks_fetch(d, own_block); return;
  case LADE_REDUCE_SCATTER: elements_sum(d, own_block, d->c->n, d->c->dst); return;
  case LADE_ALL_REDUCE: elements_sum(d, own.from, own.n, (char *)d->c->dst + own.from * d->item_bytes); return;
  default:
    if (rank == d->c->peer && d->c->src != d->c->dst)
      comm_copy(d->node->params->pool, d->c->dst, d->c->src, lade_collective_bytes(d->c));
  }
}

/* Copy the results from the other members' dst. */
static void item_end(const struct direct *d)
{
  const int size = d->node->group->size, rank = d->node->group->rank;
  for (int i = 1; i < size && d->c->kind == LADE_ALL_REDUCE; i++) {
    int member = (rank + i) % size;
    struct comm_part part = comm_part_get(d->c->n, size, member);
    comm_deliver(d->node->params, (char *)d->c->dst + part.from * d->item_bytes, dst_at(d, member, part.from),
                 part.n * d->item_bytes);
  }
  if (d->c->kind == LADE_BROADCAST && rank != d->c->peer)
    comm_deliver(d->node->params, d->c->dst, dst_at(d, d->c->peer, 0), lade_collective_bytes(d->c));
}

bool comm_move_is_direct(const struct lade_comm_list *list, const struct comm_agreement *agreement)
{
  switch (list->items->kind) {
  case LADE_ALL_REDUCE: return agreement->is_src_shared && agreement->is_dst_shared;
  case LADE_BROADCAST: return agreement->is_dst_shared;
  default: return agreement->is_src_shared;
  }
}

static void items_move(struct comm_node *node, const struct lade_comm_list *list, int parity,
                       void (*move)(const struct direct *))
{
  for (int i = 0; i < list->n; i++) {
    const struct direct direct = {node, &list->items[i], i, parity, lade_dtype_bytes(list->items[i].dtype)};
    if (direct.c->n)
      move(&direct);
  }
}

int comm_move_direct(struct comm_node *node, const struct lade_comm_list *list, const struct comm_agreement *agreement,
                     struct lade_error *error)
{
  const bool has_second_half = list->items->kind == LADE_ALL_REDUCE || list->items->kind == LADE_BROADCAST;
  items_move(node, list, agreement->parity, item_begin);
  int status = comm_node_meet(node, error);
  if (status || !has_second_half)
    return status;
  items_move(node, list, agreement->parity, item_end);
  return comm_node_meet(node, error);
}

/* ---- staged ---- */

struct staged {
  struct comm_node *node;
  const struct lade_comm_list *list;
  enum lade_collective_kind kind;
  uint64_t item_bytes; /* of an element */
  uint64_t chunk; /* elements: of the blocks, or for all_reduce and broadcast of the whole vectors, laid end to end */
  uint64_t n, n_chunks;
  bool is_block_wise; /* a slot holds a piece for every member */
};

/* Return the chunk's elements: [from, from + n) of the blocks or whole vectors. */
static struct comm_part chunk_get(const struct staged *s, uint64_t i_chunk)
{
  uint64_t from = i_chunk * s->chunk;
  return (struct comm_part){from, LADE_MIN(s->chunk, s->n - from)};
}

static char *slot_at(const struct staged *s, int member, uint64_t i_chunk, uint64_t element)
{
  return s->node->slots + (2 * (uint64_t)member + (i_chunk & 1)) * s->node->chunk_bytes + element * s->item_bytes;
}

static char *result_at(const struct staged *s, uint64_t i_chunk, uint64_t element)
{
  return s->node->results + (i_chunk & 1) * s->node->chunk_bytes + element * s->item_bytes;
}

/* Return the stretch's source: in the block for @member if slots hold a piece per member, else in the whole vector. */
static const char *stretch_src(const struct staged *s, const struct comm_stretch *at, int member)
{
  uint64_t block = s->is_block_wise ? (uint64_t)member * at->item->n : 0;
  return (const char *)at->item->src + (block + at->at) * s->item_bytes;
}

static char *stretch_dst(const struct staged *s, const struct comm_stretch *at, uint64_t i_block)
{
  return (char *)at->item->dst + (i_block * at->item->n + at->at) * s->item_bytes;
}

/* Copy a piece of this rank's source to its slot from @element on; the piece is for @member if slots are per member. */
static void piece_in(const struct staged *s, uint64_t i_chunk, int member, struct comm_part piece, uint64_t element)
{
  struct comm_walk walk = comm_walk_begin(s->list, piece.from, piece.n);
  for (struct comm_stretch at; comm_walk_next(&walk, &at);)
    comm_copy(s->node->params->pool, slot_at(s, s->node->group->rank, i_chunk, element + at.from),
              stretch_src(s, &at, member), at.n * s->item_bytes);
}

static void chunk_in(const struct staged *s, uint64_t i_chunk)
{
  int rank = s->node->group->rank, size = s->node->group->size;
  struct comm_part chunk = chunk_get(s, i_chunk);
  if (s->kind == LADE_BROADCAST && s->list->items->peer != rank)
    return;
  if (!s->is_block_wise && s->kind != LADE_ALL_REDUCE) {
    piece_in(s, i_chunk, rank, chunk, 0);
    return;
  }
  for (int member = 0; member < size; member++) {
    struct comm_part part = comm_part_get(chunk.n, size, member);
    if (member != rank && s->is_block_wise)
      piece_in(s, i_chunk, member, chunk, (uint64_t)member * chunk.n);
    else if (member != rank)
      piece_in(s, i_chunk, member, (struct comm_part){chunk.from + part.from, part.n}, part.from);
  }
}

/* Sum this rank's piece of the chunk, from its own src and from the other members' slots. */
static void chunk_sum(const struct staged *s, uint64_t i_chunk)
{
  int rank = s->node->group->rank, size = s->node->group->size;
  struct comm_part chunk = chunk_get(s, i_chunk), part = comm_part_get(chunk.n, size, rank);
  if (s->is_block_wise)
    part = (struct comm_part){0, chunk.n};
  const uint64_t first = s->is_block_wise ? (uint64_t)rank * chunk.n : part.from; /* in slots */
  struct comm_walk walk = comm_walk_begin(s->list, chunk.from + part.from, part.n);
  for (struct comm_stretch at; comm_walk_next(&walk, &at);) {
    for (int member = 0; member < size; member++)
      s->node->terms[member] = slot_at(s, member, i_chunk, first + at.from);
    s->node->terms[rank] = stretch_src(s, &at, rank);
    void *dst = s->is_block_wise ? stretch_dst(s, &at, 0) : result_at(s, i_chunk, first + at.from);
    comm_sum(s->node->params, at.item->dtype, s->node->terms, size, dst, at.n);
  }
}

/* Copy the chunk's result at @src to block @i_block of every dst. */
static void piece_out(const struct staged *s, struct comm_part chunk, const char *src, int i_block)
{
  struct comm_walk walk = comm_walk_begin(s->list, chunk.from, chunk.n);
  for (struct comm_stretch at; comm_walk_next(&walk, &at);)
    comm_deliver(s->node->params, stretch_dst(s, &at, (uint64_t)i_block), src + at.from * s->item_bytes,
                 at.n * s->item_bytes);
}

static void chunk_out(const struct staged *s, uint64_t i_chunk)
{
  int rank = s->node->group->rank, size = s->node->group->size;
  struct comm_part chunk = chunk_get(s, i_chunk);
  if (s->kind == LADE_ALL_REDUCE) {
    piece_out(s, chunk, result_at(s, i_chunk, 0), 0);
    return;
  }
  if (s->kind == LADE_BROADCAST) {
    if (rank != s->list->items->peer)
      piece_out(s, chunk, slot_at(s, s->list->items->peer, i_chunk, 0), 0);
    return;
  }
  for (int i = 1; i < size; i++) {
    int member = (rank + i) % size;
    piece_out(s, chunk, slot_at(s, member, i_chunk, s->is_block_wise ? (uint64_t)rank * chunk.n : 0), member);
  }
}

/* Copy a rank's own block from its src to its dst. */
static void own_copy(const struct staged *s, const struct lade_collective *c)
{
  uint64_t rank = (uint64_t)s->node->group->rank, bytes = lade_collective_bytes(c);
  const char *src = c->src;
  char *dst = c->dst;
  if (c->kind == LADE_ALL_GATHER || c->kind == LADE_ALL_TO_ALL)
    dst += rank * bytes;
  if (c->kind == LADE_ALL_TO_ALL)
    src += rank * bytes;
  bool is_mine = c->kind != LADE_BROADCAST || c->peer == (int)rank;
  if (is_mine && src != dst && bytes)
    comm_deliver(s->node->params, dst, src, bytes);
}

int comm_move_staged(struct comm_node *node, const struct lade_comm_list *list, struct lade_error *error)
{
  const enum lade_collective_kind kind = list->items->kind;
  bool is_sum = kind == LADE_REDUCE_SCATTER || kind == LADE_ALL_REDUCE, is_out = kind != LADE_REDUCE_SCATTER;
  struct staged s = {node, list, kind, lade_dtype_bytes(list->items->dtype), 0, comm_list_elements(list), 0,
                     kind == LADE_REDUCE_SCATTER || kind == LADE_ALL_TO_ALL};
  s.chunk = node->chunk_bytes / s.item_bytes / (s.is_block_wise ? (uint64_t)node->group->size : 1);
  s.n_chunks = (s.n + s.chunk - 1) / s.chunk;
  uint64_t depth = is_sum && is_out ? 2 : 1; /* stages after the first, one meeting apart */
  for (int i = 0; i < list->n && !is_sum; i++)
    own_copy(&s, &list->items[i]);
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
