/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storages between runs, in any tier. Storages of the device and the host have an address. Storages of the store move
 * through windows of STEP_WINDOW_BYTES, which begin at granules. A window that is set in part is first read.
 *
 * Identities of bytes in the store: those of a given storage are (storage, number of versions so far), those of any
 * other copy (storage, run, version). A block of another step or another storage therefore fails verification.
 */
#include <errno.h>
#include <string.h>

#include "base/echo.h"
#include "run/step/step_internal.h"

#define TRANSIENT_GENERATION (UINT64_C(1) << 63)

void step_identity_set(const lade_stepper *stepper, struct lade_value value, struct lade_transfer *transfer)
{
  const struct graph_storage *storage = &stepper->graph->storages.items[value.tensor];
  const uint64_t version = (uint64_t)value.version;
  bool is_in_store = storage->is_given && storage->tier == LADE_STORE;
  transfer->identity.tensor = (uint32_t)value.tensor;
  transfer->identity.microbatch = 0;
  transfer->identity.generation = is_in_store ? stepper->n_steps * (uint64_t)storage->n_versions + version
                                             : TRANSIENT_GENERATION | stepper->n_runs << 16 | version;
}

/* ---- the store ---- */

/* Move the window at @offset of @storage, whose tier is the store, to or from the bounce buffer. */
static int window_move(lade_stepper *stepper, int storage, enum lade_store_op op, uint64_t offset,
                       struct lade_error *error)
{
  const uint64_t bytes = stepper->graph->storages.items[storage].bytes;
  struct lade_error why = {0};
  struct lade_transfer transfer = {
      .op = op, .check = LADE_CHECK_STORE, .extent = stepper->extent, .data = stepper->bounce,
      .offset = stepper->program->buffers[stepper->program->end_buffers[storage]].offset + offset,
      .bytes = LADE_MIN(bytes - offset, STEP_WINDOW_BYTES)};
  step_identity_set(stepper, (struct lade_value){storage, 0, 0}, &transfer);
  int status = lade_store_submit(stepper->store, &transfer);
  if (!status)
    status = lade_store_wait(stepper->store, &transfer, &why);
  return status ? lade_error_set(error, status, "%s storage %d \"%s\" failed: %s",
                                 op == LADE_STORE_READ ? "reading" : "writing", storage,
                                 lade_echo(lade_graph_storage_name(stepper->graph, storage)).text, why.text)
                : 0;
}

int step_store_clear(lade_stepper *stepper, struct lade_error *error)
{
  int status = 0;
  memset(stepper->bounce, 0, STEP_WINDOW_BYTES);
  for (int s = 0; s < stepper->graph->storages.n && !status; s++) {
    const struct graph_storage *storage = &stepper->graph->storages.items[s];
    if (!storage->is_given || storage->tier != LADE_STORE)
      continue;
    for (uint64_t at = 0; at < storage->bytes && !status; at += STEP_WINDOW_BYTES)
      status = window_move(stepper, s, LADE_STORE_WRITE, at, error);
  }
  return status;
}

/* A range of a storage, and the caller's memory: @dst of a get, @src of a set; the other one is NULL. */
struct storage_range {
  int storage;
  uint64_t offset, bytes;
  void *dst;
  const void *src;
};

static int stored_move(lade_stepper *stepper, const struct storage_range *range, struct lade_error *error)
{
  const uint64_t all = stepper->graph->storages.items[range->storage].bytes, end = range->offset + range->bytes;
  int status = 0;
  for (uint64_t at = range->offset / STEP_WINDOW_BYTES * STEP_WINDOW_BYTES; at < end; at += STEP_WINDOW_BYTES) {
    const uint64_t from = LADE_MAX(at, range->offset), to = LADE_MIN(at + STEP_WINDOW_BYTES, end);
    bool is_whole = from == at && to == LADE_MIN(at + STEP_WINDOW_BYTES, all);
    char *here = (char *)stepper->bounce + (from - at);
    if (range->dst || !is_whole)
      status = window_move(stepper, range->storage, LADE_STORE_READ, at, error);
    if (!status && range->dst)
      memcpy((char *)range->dst + (from - range->offset), here, to - from);
    if (!status && range->src) {
      memcpy(here, (const char *)range->src + (from - range->offset), to - from);
      status = window_move(stepper, range->storage, LADE_STORE_WRITE, at, error);
    }
    if (status)
      break;
  }
  return status;
}

/* ---- any tier ---- */

static enum lade_space storage_space(const lade_stepper *stepper, int storage)
{
  return stepper->program->buffers[stepper->program->end_buffers[storage]].space;
}

/* Copy to or from device memory that the host does not reach. */
static int device_move(lade_stepper *stepper, void *dst, const void *src, uint64_t bytes, bool is_out,
                       struct lade_error *error)
{
  lade_queue *queue = stepper->queues[is_out ? LADE_Q_TO_HOST : LADE_Q_TO_DEVICE];
  const struct lade_copy copy = {.dst = dst, .src = src, .bytes = bytes};
  struct lade_error why;
  uint64_t count;
  lade_queue_copy(queue, &copy, &count);
  const int status = lade_queue_sync(queue, count);
  return status ? lade_error_set(error, status, "the device reports a failure (%s) while copying",
                                 lade_device_reason(stepper->device, status, &why))
                : 0;
}

void *lade_step_address(lade_stepper *stepper, int storage)
{
  if (!stepper || stepper->is_dry || storage < 0 || storage >= stepper->graph->storages.n ||
      stepper->program->end_buffers[storage] < 0 || storage_space(stepper, storage) == LADE_STORE)
    return NULL;
  return step_address(stepper, stepper->program->end_buffers[storage], 0);
}

static int range_check(lade_stepper *stepper, const struct storage_range *range, bool is_set, struct lade_error *error)
{
  const char *call = is_set ? "lade_step_set" : "lade_step_get";
  const int storage = range->storage;
  if (!stepper)
    return lade_error_set(error, -EINVAL, "%s: stepper is NULL", call);
  if (storage < 0 || storage >= stepper->graph->storages.n)
    return lade_error_set(error, -EINVAL, "%s: there is no storage %d: the graph has %d", call, storage,
                          stepper->graph->storages.n);
  if (!range->dst && !range->src && range->bytes)
    return lade_error_set(error, -EINVAL, "%s: the memory for %llu bytes of storage %d is NULL", call,
                          (unsigned long long)range->bytes, storage);
  const struct graph_storage *s = &stepper->graph->storages.items[storage];
  const char *name = graph_name(stepper->graph, s->name);
  if (!s->is_given && (is_set || !s->is_kept))
    return lade_error_set(error, -EINVAL, "storage %d \"%s\" is not given%s", storage, lade_echo(name).text,
                          is_set ? "" : ", and not kept");
  if (range->offset > s->bytes || range->bytes > s->bytes - range->offset)
    return lade_error_set(error, -EINVAL, "storage %d \"%s\": %llu bytes at %llu end past its %llu bytes", storage,
                          lade_echo(name).text, (unsigned long long)range->bytes, (unsigned long long)range->offset,
                          (unsigned long long)s->bytes);
  if (stepper->is_dry)
    return lade_error_set(error, -ENOTSUP, "a dry device has no bytes");
  return lade_first_error_get(&stepper->failure, error);
}

/* Copy the range to or from the caller's memory. pre: the range is checked. */
static int range_move(lade_stepper *stepper, const struct storage_range *range, struct lade_error *error)
{
  if (!range->bytes)
    return 0;
  const enum lade_space space = storage_space(stepper, range->storage);
  if (space == LADE_STORE)
    return stored_move(stepper, range, error);
  char *here = step_address(stepper, stepper->program->end_buffers[range->storage], range->offset);
  void *dst = range->dst ? range->dst : here;
  const void *src = range->dst ? here : range->src;
  if (space == LADE_DEVICE && !stepper->is_unified)
    return device_move(stepper, dst, src, range->bytes, range->dst != NULL, error);
  memcpy(dst, src, range->bytes);
  return 0;
}

int lade_step_get(lade_stepper *stepper, int storage, uint64_t offset, void *dst, uint64_t bytes,
                  struct lade_error *error)
{
  const struct storage_range range = {.storage = storage, .offset = offset, .bytes = bytes, .dst = dst};
  const int status = range_check(stepper, &range, false, error);
  return status ? status : range_move(stepper, &range, error);
}

int lade_step_set(lade_stepper *stepper, int storage, uint64_t offset, const void *src, uint64_t bytes,
                  struct lade_error *error)
{
  const struct storage_range range = {.storage = storage, .offset = offset, .bytes = bytes, .src = src};
  const int status = range_check(stepper, &range, true, error);
  return status ? status : range_move(stepper, &range, error);
}
