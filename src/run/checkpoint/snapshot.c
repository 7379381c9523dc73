/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot is one block of memory that holds the part of each value that this rank saves, one after another, in the
 * value's form. That is 10 bytes for an element in BF16 with FP32 moments, 12 in FP32. So a save from the snapshot uses
 * the same code as one from the executor, with the same bytes; nothing is converted while the run waits.
 *
 * A get fills the bytes that the snapshot has. It leaves the rest of the window unchanged, as an executor does where
 * state is in shards. A save uses no other bytes.
 */
#include "run/checkpoint/snapshot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint/checkpoint_internal.h"

/* Bytes [first, end) of a value, at @offset of the memory. */
struct snapshot_piece {
  uint64_t first, end, offset;
};

struct lade_snapshot {
  const struct lade_values *values;
  struct snapshot_piece *pieces; /* by value; empty for a value that is not saved */
  unsigned char *memory, *window;
};

/* Return the bytes of the first @n elements of a working copy (@part -1), or of a part of the state. */
static uint64_t elements_bytes(const struct lade_model_graph *graph, int part, int64_t n)
{
  return part < 0 ? (uint64_t)n * lade_dtype_bytes(graph->dtype) : lade_part_bytes(graph, (enum lade_part)part, n);
}

/* Return the bytes of a value that this rank saves. */
static struct snapshot_piece piece_find(const struct lade_values *values, int param, int part)
{
  const struct elements_range range = range_written(values, param);
  if (range.first >= range.end)
    return (struct snapshot_piece){0, 0, 0};
  return (struct snapshot_piece){.first = elements_bytes(values->graph, part, range.first),
                                 .end = elements_bytes(values->graph, part, range.end)};
}

/* Return the value number of a working copy (@part -1) or of a part; -1: this form of state lacks the part. */
static int value_of(const struct lade_model_graph *graph, int param, int part)
{
  return part < 0 ? graph->params[param].tensor : lade_value_part(graph, param, (enum lade_part)part);
}

/* Lay out the pieces, in @pieces unless that is NULL. Return their bytes. */
static uint64_t pieces_lay(const struct lade_values *values, struct snapshot_piece *pieces)
{
  uint64_t bytes = 0;
  for (int param = 0; param < values->graph->n_params; param++)
    for (int part = -1; part < LADE_N_PARTS; part++) {
      const int value = value_of(values->graph, param, part);
      struct snapshot_piece piece = value < 0 ? (struct snapshot_piece){0} : piece_find(values, param, part);
      piece.offset = bytes;
      bytes += piece.end - piece.first;
      if (pieces && value >= 0)
        pieces[value] = piece;
    }
  return bytes;
}

uint64_t lade_snapshot_bytes(const struct lade_values *values)
{
  return pieces_lay(values, NULL);
}

int lade_snapshot_create(const struct lade_values *values, struct lade_faults *faults, struct lade_error *error,
                         lade_snapshot **ret_snapshot)
{
  const uint64_t bytes = lade_snapshot_bytes(values);
  lade_snapshot *snapshot = lade_fault_calloc(faults, 1, sizeof(*snapshot));
  if (snapshot) {
    snapshot->values = values;
    snapshot->pieces = lade_fault_calloc(faults, (size_t)lade_value_count(values->graph), sizeof(*snapshot->pieces));
    snapshot->window = lade_fault_calloc(faults, 1, LADE_VALUES_WINDOW_BYTES);
    snapshot->memory = lade_fault_calloc(faults, 1, bytes + 1);
  }
  if (!snapshot || !snapshot->pieces || !snapshot->window || !snapshot->memory) {
    lade_snapshot_destroy(snapshot);
    return lade_error_set(error, -ENOMEM, "no host memory for a copy of the state, %llu bytes",
                          (unsigned long long)bytes);
  }
  memset(snapshot->memory, 0xff, bytes + 1);
  memset(snapshot->window, 0xff, LADE_VALUES_WINDOW_BYTES);
  pieces_lay(values, snapshot->pieces);
  *ret_snapshot = snapshot;
  return 0;
}

void lade_snapshot_destroy(lade_snapshot *snapshot)
{
  if (!snapshot)
    return;
  free(snapshot->memory);
  free(snapshot->window);
  free(snapshot->pieces);
  free(snapshot);
}

/* Find the common part of a piece and a window of its value; false: there is none. */
static bool window_meet(const struct snapshot_piece *piece, uint64_t offset, uint64_t bytes, uint64_t *ret_first,
                        uint64_t *ret_bytes)
{
  const uint64_t first = LADE_MAX(piece->first, offset), end = LADE_MIN(piece->end, offset + bytes);
  if (first >= end)
    return false;
  *ret_first = first;
  *ret_bytes = end - first;
  return true;
}

static int value_take(lade_snapshot *snapshot, int value, struct lade_error *error)
{
  const struct lade_values *values = snapshot->values;
  const struct snapshot_piece *piece = &snapshot->pieces[value];
  const uint64_t total = lade_value_bytes(values->graph, value), window = LADE_VALUES_WINDOW_BYTES;
  int rc = 0;
  for (uint64_t at = piece->first / window * window; at < piece->end && rc == 0; at += window) {
    uint64_t first, bytes;
    rc = values->get(values->user, value, at, snapshot->window, LADE_MIN(total - at, window), error);
    if (rc == 0 && window_meet(piece, at, window, &first, &bytes))
      memcpy(snapshot->memory + piece->offset + (first - piece->first), snapshot->window + (first - at), bytes);
  }
  return rc;
}

int lade_snapshot_take(lade_snapshot *snapshot, struct lade_error *error)
{
  int rc = 0;
  for (int value = 0; value < lade_value_count(snapshot->values->graph) && rc == 0; value++)
    rc = value_take(snapshot, value, error);
  return rc;
}

static int snapshot_get(void *user, int value, uint64_t offset, void *dst, uint64_t bytes, struct lade_error *error)
{
  const lade_snapshot *snapshot = user;
  const struct snapshot_piece *piece = &snapshot->pieces[value];
  uint64_t first, n;
  if (window_meet(piece, offset, bytes, &first, &n))
    memcpy((char *)dst + (first - offset), snapshot->memory + piece->offset + (first - piece->first), n);
  return 0;
}

static int snapshot_set(void *user, int value, uint64_t offset, const void *src, uint64_t bytes,
                        struct lade_error *error)
{
  return lade_error_set(error, -EINVAL, "a copy of values is read only");
}

struct lade_values lade_snapshot_values(lade_snapshot *snapshot, struct lade_rank_group *group)
{
  return (struct lade_values){.graph = snapshot->values->graph, .whole = snapshot->values->whole, .group = group,
                              .get = snapshot_get, .set = snapshot_set, .user = snapshot};
}
