/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters and their state between steps, in any tier. Checkpoints read and write them as windows of the whole value;
 * a rank moves the part of each window that it holds.
 *
 * A window of a value in the store is moved through one bounce buffer. Checksums are per granule, and a shard may begin
 * anywhere in the whole value. So the end of one window and the beginning of the next may share a granule of the shard.
 * A read therefore covers the granules around the requested range. A write first reads back the part of its first
 * granule that the previous window set. It fills its last granule with zeros, which the next window replaces. Windows
 * of a value are set in ascending order, so the bytes read back exist. The last window of a shard also writes its
 * padding, because the program reads and writes whole blocks. A shard of padding alone is written with the first
 * window.
 *
 * A part of a parameter's state lies in pieces of one grain each (program/state_layout.c). Its checksums are per
 * granule of its own room. So a move is cut where pieces end, and all its pieces are in flight at once.
 *
 * If the rooms of several states are contiguous, the states are contiguous too, without the gaps that rooms of whole
 * granules have. So the states of several parameters are one range, and updates read and write it by one request
 * (stream.c). No state begins before its own room or ends after it, so states never overlap.
 *
 * Rejected: a buffer for each value that is being set, written when it is full. Windows of several values interleave,
 * so each part of a parameter would need its own buffer; reading back one granule per window costs less.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run/executor/executor_internal.h"

#define GRANULE_BYTES LADE_STORE_GRANULE_BYTES

_Static_assert(LADE_EXECUTOR_WINDOW_BYTES % GRANULE_BYTES == 0, "windows of whole granules");

/* A value that lives across steps: the number under which this rank holds it, and its buffer. */
struct resident {
  int32_t value;
  const struct lade_buffer *buffer;
  uint64_t bytes;  /* with padding */
  uint64_t offset; /* in the buffer */
};

/* The part of a window that this rank holds: its place in the window, and its place in the held range. */
struct window_piece {
  uint64_t skipped_bytes, offset, bytes;
  bool is_end; /* only padding follows it */
};

/* ---- in the store ---- */

#define PIECES_MAX (LADE_EXECUTOR_WINDOW_BYTES / GRANULE_BYTES + 1) /* a grain is at least a granule */

static bool is_part(const struct lade_model_graph *graph, int tensor)
{
  return tensor >= graph->n_tensors && tensor < lade_value_scalar(graph, (enum lade_scalar)0);
}

/*
 * Find the range in the store of all state of @param: that of its parts' buffers. False if the store is not its tier.
 */
static bool state_room(const lade_executor *ex, int param, uint64_t *ret_begin, uint64_t *ret_end)
{
  bool is_stored = false;
  for (int part = 0; part < LADE_N_PARTS; part++) {
    const int value = lade_value_part(ex->graph, param, (enum lade_part)part);
    if (value < 0)
      continue;
    const struct lade_buffer *buffer = &ex->params.plan->train->buffers[ex->resident[value]];
    if (buffer->space != LADE_STORE)
      return false;
    *ret_begin = is_stored ? *ret_begin : buffer->offset;
    *ret_end = buffer->offset + buffer->bytes;
    is_stored = true;
  }
  return is_stored;
}

int executor_states_place(lade_executor *ex)
{
  const struct lade_model_graph *graph = ex->graph;
  uint64_t begin, end, room_end = UINT64_MAX, place_end = 0;
  ex->state_places = calloc((size_t)graph->n_params + 1, sizeof(*ex->state_places));
  if (!ex->state_places)
    return -ENOMEM;
  for (int param = 0; param < graph->n_params; param++) {
    if (!state_room(ex, param, &begin, &end))
      continue;
    const int64_t n_held = lade_param_shard(graph, ex->params.plan->train->layout, param).n_padded;
    ex->state_places[param] = begin == room_end ? place_end : begin;
    place_end = ex->state_places[param] + lade_state_bytes(graph, n_held) + lade_state_scales_bytes(graph, n_held);
    room_end = end;
    LADE_ASSERT(place_end <= room_end);
  }
  return 0;
}

/* Return the place of byte @offset of a value, and in @ret_bytes the length of the contiguous range from there. */
static uint64_t stored_place(const lade_executor *ex, const struct resident *held, uint64_t offset, uint64_t *ret_bytes)
{
  const struct lade_model_graph *graph = ex->graph;
  *ret_bytes = held->bytes - offset;
  if (!is_part(graph, held->value))
    return held->buffer->offset + offset;
  const int param = (held->value - graph->n_tensors) / LADE_N_PARTS;
  const enum lade_part part = (enum lade_part)((held->value - graph->n_tensors) % LADE_N_PARTS);
  const int64_t n_held = lade_param_shard(graph, ex->train.program->layout, param).n_padded;
  if (lade_part_is_scales(part))
    return ex->state_places[param] + lade_state_offset(graph, n_held, part, 0) + offset;
  const uint64_t grain_bytes = lade_part_bytes(graph, part, LADE_STREAM_GRAIN);
  const int64_t first = (int64_t)(offset / grain_bytes) * LADE_STREAM_GRAIN;
  *ret_bytes = LADE_MIN(*ret_bytes, grain_bytes - offset % grain_bytes);
  return ex->state_places[param] + lade_state_offset(graph, n_held, part, first) + offset % grain_bytes;
}

/* A range of a value in the store, and the transfers of its pieces, which are in flight together. */
struct stored_range {
  const struct resident *held;
  uint64_t offset, bytes; /* offset: a multiple of the granule */
  enum lade_store_op op;
  struct lade_transfer pieces[PIECES_MAX];
  int n_pieces; /* that have begun */
};

/* Begin to move all pieces of @range to or from the bounce buffer. After an error the pieces before it have begun. */
static int pieces_begin(lade_executor *ex, struct stored_range *range, struct lade_error *error)
{
  const struct resident *held = range->held;
  int status = 0;
  for (uint64_t at = 0, here; at < range->bytes && !status; at += here) {
    const uint64_t place = stored_place(ex, held, range->offset + at, &here);
    here = LADE_MIN(here, range->bytes - at);
    LADE_ASSERT(range->n_pieces < PIECES_MAX);
    struct lade_transfer *piece = &range->pieces[range->n_pieces];
    *piece = (struct lade_transfer){
        .op = range->op, .check = LADE_CHECK_CALLER, .bytes = here, .data = (char *)ex->bounce + at};
    executor_address_state(ex, (struct lade_value){held->value, 0, 0}, place,
                           held->buffer->offset + range->offset + at, piece);
    if (range->op == LADE_STORE_WRITE)
      executor_transfer_seal(ex, piece);
    status = executor_transfer_begin(ex, piece, error);
    range->n_pieces += !status;
  }
  return status;
}

/* Move @bytes at @offset of a value to or from the bounce buffer, and verify the bytes that were read. */
static int stored_move(lade_executor *ex, const struct resident *held, uint64_t offset, uint64_t bytes,
                       enum lade_store_op op, struct lade_error *error)
{
  struct stored_range range = {.held = held, .offset = offset, .bytes = bytes, .op = op};
  int status = pieces_begin(ex, &range, error);
  for (int i = 0; i < range.n_pieces; i++) {
    int one = executor_transfer_wait(ex, &range.pieces[i], status ? NULL : error);
    if (!one && op == LADE_STORE_READ && !status)
      one = executor_transfer_verify(ex, &range.pieces[i], error);
    status = status ? status : one;
  }
  return status;
}

/* Return the end of the granule that @end is in, or the end of the value. */
static uint64_t granules_end(const struct resident *held, uint64_t end)
{
  return LADE_MIN(lade_align_up(end, GRANULE_BYTES), held->bytes);
}

static int stored_get(lade_executor *ex, const struct resident *held, const struct window_piece *piece, char *host,
                      struct lade_error *error)
{
  const uint64_t end = piece->offset + piece->bytes, read_end = granules_end(held, end);
  int status = 0;
  for (uint64_t at = piece->offset / GRANULE_BYTES * GRANULE_BYTES, next; at < end && !status; at = next) {
    next = LADE_MIN(at + LADE_EXECUTOR_WINDOW_BYTES, read_end);
    status = stored_move(ex, held, at, next - at, LADE_STORE_READ, error);
    const uint64_t from = LADE_MAX(at, piece->offset), to = LADE_MIN(next, end);
    if (!status)
      memcpy(host + (from - piece->offset), (char *)ex->bounce + (from - at), to - from);
  }
  return status;
}

static int stored_set(lade_executor *ex, const struct resident *held, const struct window_piece *piece,
                      const char *host, struct lade_error *error)
{
  const uint64_t end = piece->offset + piece->bytes, write_end = piece->is_end ? held->bytes : granules_end(held, end);
  int status = 0;
  for (uint64_t at = piece->offset / GRANULE_BYTES * GRANULE_BYTES, next; at < write_end && !status; at = next) {
    next = LADE_MIN(at + LADE_EXECUTOR_WINDOW_BYTES, write_end);
    if (at < piece->offset)
      status = stored_move(ex, held, at, granules_end(held, at + 1) - at, LADE_STORE_READ, error);
    const uint64_t from = LADE_MAX(at, piece->offset), to = LADE_MAX(LADE_MIN(next, end), from);
    const uint64_t blocks_end = lade_align_up(next, LADE_STORE_BLOCK_BYTES); /* the drive writes whole blocks */
    memset((char *)ex->bounce + (from - at), 0, blocks_end - from);
    if (to > from)
      memcpy((char *)ex->bounce + (from - at), host + (from - piece->offset), to - from);
    if (!status)
      status = stored_move(ex, held, at, next - at, LADE_STORE_WRITE, error);
  }
  return status;
}

/* ---- in memory ---- */

/* Copy all bytes over a link queue and wait. pre: the queues are idle, as they are between steps. */
static int linked_copy(lade_executor *ex, enum lade_queue_id q, void *dst, const void *src, uint64_t bytes,
                       struct lade_error *error)
{
  uint64_t count = 0;
  struct lade_error why;
  struct lade_copy copy = {.dst = dst, .src = src, .bytes = bytes};
  lade_queue_copy(ex->queues[q], &copy, &count);
  int status = lade_queue_sync(ex->queues[q], count);
  return status ? lade_error_set(error, status, "copying from or to the device failed (%s)",
                                 lade_device_reason(ex->device, status, &why)) : 0;
}

static int memory_move(lade_executor *ex, const struct resident *held, const struct window_piece *piece, char *host,
                       bool is_get, struct lade_error *error)
{
  const struct lade_program *program = ex->train.program;
  char *at = executor_address(ex, program, (int32_t)(held->buffer - program->buffers), held->offset + piece->offset);
  if (held->buffer->space == LADE_HOST) {
    memcpy(is_get ? host : at, is_get ? at : host, piece->bytes);
    return 0;
  }
  return is_get ? linked_copy(ex, LADE_Q_TO_HOST, host, at, piece->bytes, error)
                : linked_copy(ex, LADE_Q_TO_DEVICE, at, host, piece->bytes, error);
}

/* ---- values ---- */

/* Return the parameter of a value that lives across steps. */
static int value_param(const struct lade_model_graph *graph, int tensor)
{
  return tensor < graph->n_tensors ? graph->tensors[tensor].param : (tensor - graph->n_tensors) / LADE_N_PARTS;
}

/*
 * Return the resident value of @tensor. A working copy that is gathered is held as a block, a separate value: alone, or
 * at this rank's place in the memory of the gathered copy.
 */
static struct resident resident_get(const lade_executor *ex, int tensor)
{
  const struct lade_program *program = ex->train.program;
  const bool is_block = ex->resident[tensor] < 0;
  const int value = is_block ? lade_value_block(ex->graph, value_param(ex->graph, tensor), LADE_BLOCK_WEIGHT) : tensor;
  const struct lade_buffer *buffer = &program->buffers[ex->resident[value]];
  const uint64_t bytes = lade_held_bytes(ex->graph, program->layout, value);
  return (struct resident){value, buffer, bytes, ex->resident_at[value]};
}

uint64_t executor_place_stored(const lade_executor *ex, int tensor)
{
  const struct resident held = resident_get(ex, tensor);
  uint64_t bytes;
  LADE_ASSERT(held.buffer->space == LADE_STORE);
  return stored_place(ex, &held, 0, &bytes);
}

void lade_executor_share(const lade_executor *ex, int tensor, uint64_t *ret_offset, uint64_t *ret_bytes)
{
  const struct lade_model_graph *graph = ex->graph;
  const bool is_weight = tensor < graph->n_tensors;
  const struct lade_state_shard shard =
      lade_param_shard(graph, ex->train.program->layout, value_param(graph, tensor));
  uint64_t bytes[2]; /* [0] of the elements before the shard; [1] of these and the shard */
  for (int i = 0; i < 2; i++) {
    int64_t n = shard.first + (i ? shard.n : 0);
    bytes[i] = is_weight ? (uint64_t)n * lade_dtype_bytes(graph->dtype)
                         : lade_part_bytes(graph, (enum lade_part)((tensor - graph->n_tensors) % LADE_N_PARTS), n);
  }
  bool is_whole = is_weight && ex->resident[tensor] >= 0;
  *ret_offset = is_whole ? 0 : bytes[0];
  *ret_bytes = is_whole ? graph->tensors[tensor].bytes : bytes[1] - bytes[0];
}

/* A window of the whole value of a tensor, and its place in host memory. */
struct value_window {
  int tensor;
  uint64_t offset, bytes;
  void *host;
};

/* Return the part of @window that this rank holds. */
static struct window_piece piece_find(const lade_executor *ex, const struct value_window *window)
{
  const uint64_t offset = window->offset;
  uint64_t first, held;
  lade_executor_share(ex, window->tensor, &first, &held);
  const uint64_t begin = LADE_MAX(offset, first), end = LADE_MIN(offset + window->bytes, first + held);
  if (begin >= end)
    return (struct window_piece){.is_end = !held && !offset};
  return (struct window_piece){begin - offset, begin - first, end - begin, end == first + held};
}

static int window_move(lade_executor *ex, const struct value_window *window, bool is_get, struct lade_error *error)
{
  int status = executor_failure(ex, error);
  if (status || ex->is_dry)
    return status;
  LADE_ASSERT(window->offset % LADE_EXECUTOR_WINDOW_BYTES == 0 &&
              window->offset + window->bytes <= lade_value_bytes(ex->graph, window->tensor));
  const struct resident held = resident_get(ex, window->tensor);
  const struct window_piece piece = piece_find(ex, window);
  char *at = (char *)window->host + piece.skipped_bytes;
  const bool is_stored = held.buffer->space == LADE_STORE;
  if (!piece.bytes && !(is_stored && !is_get && piece.is_end))
    return 0;
  if (!is_stored)
    return memory_move(ex, &held, &piece, at, is_get, error);
  return is_get ? stored_get(ex, &held, &piece, at, error) : stored_set(ex, &held, &piece, at, error);
}

int lade_executor_get(lade_executor *ex, int tensor, uint64_t offset, void *dst, uint64_t bytes,
                      struct lade_error *error)
{
  return window_move(ex, &(struct value_window){tensor, offset, bytes, dst}, true, error);
}

int lade_executor_set(lade_executor *ex, int tensor, uint64_t offset, const void *src, uint64_t bytes,
                      struct lade_error *error)
{
  return window_move(ex, &(struct value_window){tensor, offset, bytes, (void *)(uintptr_t)src}, false, error);
}
