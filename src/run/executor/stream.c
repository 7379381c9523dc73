/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer updates whose state streams from the store: read, computed, written, each byte once each way.
 *
 * A run is a sequence of such updates with no other instruction between them on the io queue, over one scratch. All
 * their windows are one list of items. The scratch is a ring, and the items' places in it are found once, when the
 * program is bound. An item takes exactly its bytes of the ring, and records the lot that must have been written before
 * (after). A step processes the list in order. While one item is computed, the other items in the ring are being read
 * or written, whatever their parameter. So the drive is busy in both directions from the first item of a run to the
 * last. A norm of a few hundred elements does not drain the pipeline.
 *
 * The work of one instruction is to compute its own items and to read ahead. The reads that it has begun ahead, and its
 * writes, are left to the next instruction; the last instruction of a run waits for all of them. The program allows
 * that (program/program.h), because no other instruction uses the scratch or the store between the instructions of a
 * run. After a failure the next instruction waits for all transfers in flight.
 *
 * State lies in the store grain by grain, and also in the scratch. So an item is one range with all data that its
 * elements need. A weight and a gradient in the store are not in it (program/state_layout.c). Items whose ranges are
 * contiguous in both form one lot: one read and one write, of at most a window. So two hundred norms and biases do not
 * become separate requests. A request costs a drive about as much as a tenth of a megabyte.
 *
 * Checksums are computed in the same pass. A task verifies a grain of each part, updates it and seals the result while
 * all of it is in its core's cache. Otherwise the one thread that waits for the drive would make two more passes over
 * memory. A grain that fails verification is not computed with. Scales are a few kilobytes, and the waiting thread
 * verifies and seals them. If a parameter has one item, its scales lie after the grains of that item. Otherwise they
 * are read with the first item and written with the last. They then stay in a ring of their own while any item of their
 * parameter is in flight. With room for only two parameters' scales, each would wait until the scales of the one before
 * the last are written.
 *
 * The drive must not wait for arithmetic either. Drives, above all virtual ones, take the requests that arrive while
 * they are busy as one batch, and report the whole batch at once. If the whole ring were being read, all of it would
 * arrive together, and nothing would be in flight until the first lot is computed; then all of it would be written, and
 * so on. So at most half of the ring is being read. When that half arrives, reads into the other half, which was
 * written meanwhile, begin before any computation. So the drive always has requests.
 *
 * The arrived items of an update are one pass of the pool over all their grains, whatever the number of windows. So
 * threads rarely wait for each other. The thread that waits for the drive takes part, and polls the drive several times
 * in each of its grains. Then it begins to write lots whose last grain is computed, and to read the next lots that have
 * room.
 *
 * An error of a lot is attributed to one of its parameters (grains_wait).
 *
 * A shard's padding is in the store and moves too, so that checksums hold for a reader of the whole block.
 *
 * Numbers do not depend on how items are cut, because an element's update uses only that element.
 *
 * Rejected: waiting for the next completion of any kind instead of the next item's parts in order. The drive serves
 * requests about in the order of submission, so no difference could be measured. Rejected: submitting from the pool's
 * threads. The kernel ends a ring's request in the thread that submitted it, and would wake a sleeping thread.
 * Rejected: twice as many windows in place of the bound on reads; one pass over several updates of a run, where these
 * wait for nothing else. Neither made a measurable difference (bench/results/amd-epyc-zen5-2-cores.md).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/moments.h"
#include "run/executor/executor_internal.h"

_Static_assert(LADE_STREAM_GRAIN % LADE_MOMENT_BLOCK == 0 && LADE_STREAM_GRAIN % LADE_STORE_GRANULE_BYTES == 0,
               "a grain is whole blocks of scales and whole granules of any part");

#define SLICE_ELEMENTS (16 * 1024) /* elements computed between two polls of the drive: some tens of microseconds */
_Static_assert(LADE_STREAM_GRAIN % SLICE_ELEMENTS == 0 && SLICE_ELEMENTS % LADE_DRAW_RUN == 0,
               "random words are those of the whole");

/* ---- places, found once ---- */

static const struct lade_model_graph *graph_of(const struct stream_call *call)
{
  return call->executor->graph;
}

static bool is_one_item(const struct stream_call *call)
{
  return call->n_window >= call->n_held;
}

/*
 * Return the bytes of the item that are one range in the store and in the scratch: its grains, and the scales of a
 * parameter of one item.
 */
static uint64_t grains_bytes(const struct stream_item *item)
{
  const struct lade_model_graph *graph = graph_of(item->call);
  uint64_t bytes = lade_state_bytes(graph, item->first + item->n) - lade_state_bytes(graph, item->first);
  return bytes + (is_one_item(item->call) ? item->call->scales_bytes : 0);
}

static uint64_t part_bytes(const struct stream_item *item, int part)
{
  return (uint64_t)item->n * item->call->parts[part].element_bytes;
}

static bool is_of_state(const struct stream_part *part)
{
  return part->role >= LADE_ROLE_RESIDUAL;
}

static enum lade_part part_of(const struct stream_part *part)
{
  return (enum lade_part)(part->role - LADE_ROLE_RESIDUAL);
}

/*
 * Return the offset in the item of @part, a weight or gradient after the grains. @part n_parts: the end of all parts.
 */
static uint64_t part_offset(const struct stream_item *item, int part)
{
  uint64_t offset = grains_bytes(item);
  for (int i = 0; i < part; i++)
    offset += is_of_state(&item->call->parts[i]) ? 0 : lade_align_up(part_bytes(item, i), LADE_BUFFER_ALIGN);
  return offset;
}

static uint64_t item_end(const struct stream_item *item)
{
  return item->offset + part_offset(item, item->call->n_parts);
}

static uint64_t lot_offset(const struct stream_run *run, const struct stream_lot *lot)
{
  return run->items[lot->first_item].offset;
}

static uint64_t lot_end(const struct stream_run *run, const struct stream_lot *lot)
{
  return item_end(&run->items[lot->end_item - 1]);
}

/* Return the last lot before @at that overlaps it in the ring or uses its slot; -1: none. */
static int lot_before(const struct stream_run *run, int at)
{
  const struct stream_lot *lots = run->lots;
  const int first = LADE_MAX(at - STREAM_SLOTS, -1);
  for (int i = at - 1; i > first; i--) {
    if (lot_offset(run, &lots[i]) < lot_end(run, &lots[at]) && lot_offset(run, &lots[at]) < lot_end(run, &lots[i]))
      return i;
  }
  return first;
}

/* Return the bytes of the update's scales in the ring of scales. */
static uint64_t ringed_bytes(const struct stream_call *call)
{
  return is_one_item(call) ? 0 : call->scales_bytes;
}

/* Return the last lot of an earlier update whose scales overlap those of @i_call; -1: none within STREAM_SLOTS lots. */
static int scales_before(const struct stream_run *run, int i_call)
{
  const struct stream_call *call = run->calls[i_call];
  const int over = run->items[call->first_item].lot - STREAM_SLOTS;
  for (int i = i_call - 1; i >= 0 && run->items[run->calls[i]->end_item - 1].lot > over; i--) {
    const struct stream_call *other = run->calls[i];
    if (call->scales_offset < other->scales_offset + ringed_bytes(other) &&
        other->scales_offset < call->scales_offset + ringed_bytes(call))
      return run->items[other->end_item - 1].lot;
  }
  return -1;
}

/*
 * Place the scales of an update at @at of the ring of scales, [ring, end) of the scratch, or at its start. Return the
 * place after them.
 */
static uint64_t scales_place(struct stream_call *call, uint64_t at, uint64_t ring, uint64_t end)
{
  call->scales_offset = at + ringed_bytes(call) > end ? ring : at;
  LADE_ASSERT(call->scales_offset + ringed_bytes(call) <= end);
  return call->scales_offset + ringed_bytes(call);
}

static int64_t call_n_items(const struct stream_call *call)
{
  return lade_div_up(call->n_held, call->n_window);
}

static uint64_t item_place(const struct stream_item *item)
{
  return item->call->state_offset + lade_state_bytes(graph_of(item->call), item->first);
}

/*
 * True if @item belongs to @lot, the lot of the item before it. An item with a weight or a gradient after its grains
 * is a lot of its own. Scales in the ring of scales lie after the parameter's last item in the store, but elsewhere in
 * the scratch. So a lot ends there, and holds such scales of at most one parameter.
 */
static bool is_of_lot(const struct stream_run *run, const struct stream_lot *lot, const struct stream_item *item)
{
  const struct stream_item *first = &run->items[lot->first_item], *before = item - 1;
  const uint64_t end = item->offset + grains_bytes(item);
  return item_end(before) == before->offset + grains_bytes(before) && item_end(item) == end &&
         item_end(before) == item->offset && item_place(before) + grains_bytes(before) == item_place(item) &&
         end - first->offset <= run->lot_bytes;
}

static int item_n_grains(const struct stream_item *item)
{
  return (int)lade_div_up(item->n, LADE_STREAM_GRAIN);
}

/* Add item @at, the first that is not in a lot, to the last lot or to a new one. */
static void lots_add(struct stream_run *run, int at)
{
  if (!at || !is_of_lot(run, &run->lots[run->n_lots - 1], &run->items[at]))
    run->lots[run->n_lots++] = (struct stream_lot){.first_item = at};
  run->lots[run->n_lots - 1].end_item = at + 1;
  run->lots[run->n_lots - 1].n_grains += item_n_grains(&run->items[at]);
  run->items[at].lot = run->n_lots - 1;
}

/* Place the items of call @i_call after those before it, from @at of the ring on. Return the place after them. */
static uint64_t items_place(struct stream_run *run, int i_call, uint64_t at, uint64_t ring_bytes)
{
  struct stream_call *call = run->calls[i_call];
  call->first_item = run->n_items;
  for (int64_t first = 0; first < call->n_held; first += call->n_window) {
    struct stream_item *item = &run->items[run->n_items];
    *item = (struct stream_item){.call = call, .first = first, .offset = at};
    item->n = LADE_MIN(call->n_held - first, call->n_window);
    if (item_end(item) > ring_bytes)
      item->offset = 0;
    LADE_ASSERT(item_end(item) <= ring_bytes);
    at = item_end(item);
    lots_add(run, run->n_items++);
  }
  call->end_item = run->n_items;
  const struct stream_item *only = &run->items[call->first_item];
  if (is_one_item(call))
    call->scales_offset = only->offset + grains_bytes(only) - call->scales_bytes;
  return at;
}

static uint8_t *scales_data(const struct stream_call *call, int i)
{
  const uint64_t before = i ? lade_align_up(call->scales[0].bytes, LADE_BUFFER_ALIGN) : 0;
  return (uint8_t *)call->scratch + call->scales_offset + before;
}

/* Set for each lot the lot that it waits for. pre: all lots of the run are placed. */
static void lots_order(struct stream_run *run)
{
  for (int at = 0; at < run->n_lots; at++)
    run->lots[at].after = lot_before(run, at);
  for (int i = 0; i < run->n_calls; i++) {
    struct stream_lot *lot = &run->lots[run->items[run->calls[i]->first_item].lot];
    lot->after = LADE_MAX(lot->after, scales_before(run, i));
  }
}

/* Place the items and scales of a run. The ring has room for at least @streaming's windows. */
static int run_place(struct stream_run *run, const struct lade_streaming *streaming)
{
  uint64_t max_bytes = 0, at = 0;
  int64_t n_items = 0;
  for (int i = 0; i < run->n_calls; i++) {
    max_bytes = LADE_MAX(max_bytes, ringed_bytes(run->calls[i]));
    n_items += call_n_items(run->calls[i]);
  }
  if (n_items > INT32_MAX)
    return -EOVERFLOW;
  run->items = calloc((size_t)n_items + 1, sizeof(*run->items));
  run->lots = calloc((size_t)n_items + 1, sizeof(*run->lots));
  if (!run->items || !run->lots)
    return -ENOMEM;
  const uint64_t scales_room = lade_stream_scales_bytes(max_bytes, run->n_calls > 1);
  LADE_ASSERT(scales_room <= run->scratch_bytes);
  const uint64_t ring_bytes = run->scratch_bytes - scales_room;
  run->lot_bytes = LADE_MIN(streaming->window_bytes, ring_bytes / (uint64_t)streaming->n_windows);
  run->reading_max = ring_bytes / 2;
  uint64_t scales_at = ring_bytes;
  for (int i = 0; i < run->n_calls; i++) {
    scales_at = scales_place(run->calls[i], scales_at, ring_bytes, run->scratch_bytes);
    at = items_place(run, i, at, ring_bytes);
  }
  lots_order(run);
  return 0;
}

/*
 * True if the update of @at continues the run of the one before it on the io queue. Several buffers may share one
 * place, so the scratch buffer is compared too.
 */
static bool is_grouped(const struct bound_program *b, int at)
{
  const struct stream_call *call = b->streams[at], *before = b->before[at] >= 0 ? b->streams[b->before[at]] : NULL;
  return before && before->scratch_buffer == call->scratch_buffer && before->scratch == call->scratch &&
         before->scratch_bytes == call->scratch_bytes;
}

int streams_bind(struct bound_program *b)
{
  size_t n_streams = 0;
  for (int at = 0; at < b->program->n_instrs; at++)
    n_streams += b->streams[at] != NULL;
  if (!n_streams)
    return 0;
  b->runs = calloc(n_streams, sizeof(*b->runs));
  b->stream_calls = calloc(n_streams, sizeof(struct stream_call *));
  b->stream_slots = calloc(STREAM_SLOTS, sizeof(*b->stream_slots));
  if (!b->runs || !b->stream_calls || !b->stream_slots)
    return -ENOMEM;
  int n_calls = 0, status = 0;
  for (int at = 0; at < b->program->n_instrs; at++) {
    struct stream_call *call = b->streams[at];
    if (!call)
      continue;
    if (!is_grouped(b, at))
      b->runs[b->n_runs++] = (struct stream_run){.calls = b->stream_calls + n_calls, .slots = b->stream_slots,
                                                 .scratch = call->scratch, .scratch_bytes = call->scratch_bytes};
    call->run = &b->runs[b->n_runs - 1];
    b->stream_calls[n_calls++] = call;
    call->run->n_calls++;
  }
  for (int i = 0; i < b->n_runs && !status; i++)
    status = run_place(&b->runs[i], &b->program->streaming);
  return status;
}

void streams_finish(struct bound_program *b)
{
  for (int i = 0; i < b->n_runs; i++) {
    free(b->runs[i].lots);
    free(b->runs[i].items);
  }
  for (int i = 0; b->streams && i < b->program->n_instrs; i++)
    free(b->streams[i]);
  free(b->runs);
  free(b->stream_calls);
  free(b->stream_slots);
}

/* ---- transfers ---- */

/* Return the address of element @first of the item in @part. */
static char *part_data(const struct stream_item *item, int part, int64_t first)
{
  const struct stream_call *call = item->call;
  const size_t element_bytes = call->parts[part].element_bytes;
  const int64_t within = first % LADE_STREAM_GRAIN, grain = item->first + first - within;
  char *data = call->scratch + item->offset;
  if (!is_of_state(&call->parts[part]))
    return data + part_offset(item, part) + (uint64_t)first * element_bytes;
  return data + lade_state_offset(graph_of(call), call->n_held, part_of(&call->parts[part]), grain) -
         lade_state_bytes(graph_of(call), item->first) + (uint64_t)within * element_bytes;
}

static struct lade_value value_moved(struct lade_value value, enum lade_store_op op)
{
  value.version = (int16_t)(value.version + (op == LADE_STORE_WRITE));
  return value;
}

static struct lade_transfer transfer_make(const struct stream_call *call, enum lade_store_op op,
                                          struct lade_value value, uint64_t store_offset, void *data, uint64_t bytes)
{
  struct lade_transfer transfer = {.op = op, .check = LADE_CHECK_CALLER, .data = data, .bytes = bytes};
  executor_address_stored(call->executor, value_moved(value, op), store_offset, &transfer);
  return transfer;
}

/* Make the transfer of the weight or the gradient, which lie apart from the state; none if it is in memory. */
static void separate_make(const struct stream_item *item, int role, enum lade_store_op op,
                          struct lade_transfer *transfer)
{
  const int i = item->call->part_of_role[role];
  if (i < 0 || (op == LADE_STORE_WRITE && role == LADE_ROLE_GRAD))
    return;
  const struct stream_part *part = &item->call->parts[i];
  *transfer = transfer_make(item->call, op, part->value,
                            part->store_offset + (uint64_t)item->first * part->element_bytes, part_data(item, i, 0),
                            part_bytes(item, i));
}

/*
 * True if the lot moves scales of @call from or to the ring: a read with the update's first item, a write with its
 * last.
 */
static bool has_scales(const struct stream_lot *lot, const struct stream_call *call, enum lade_store_op op)
{
  return ringed_bytes(call) &&
         (op == LADE_STORE_WRITE ? call->end_item == lot->end_item : call->first_item >= lot->first_item);
}

/* Make the transfer of the grains of items @first to @end, which are one range. Its identity is the first item's. */
static struct lade_transfer grains_make(const struct stream_run *run, int first, int end, enum lade_store_op op)
{
  const struct stream_item *item = &run->items[first], *last = &run->items[end - 1];
  const struct lade_value state = item->call->parts[item->call->part_of_role[LADE_ROLE_M]].value;
  return transfer_make(item->call, op, state, item_place(item), run->scratch + item->offset,
                       last->offset + grains_bytes(last) - item->offset);
}

/* Make all transfers of lot @at in one direction. */
static void transfers_make(const struct stream_run *run, int at, enum lade_store_op op, struct lade_transfer *transfers)
{
  const struct stream_lot *lot = &run->lots[at];
  const struct stream_item *item = &run->items[lot->first_item];
  const struct stream_call *call = run->items[lot->end_item - 1].call;
  transfers[STREAM_GRAINS] = grains_make(run, lot->first_item, lot->end_item, op);
  if (has_scales(lot, call, op))
    transfers[STREAM_SCALES] = transfer_make(call, op, call->scales[0].value,
                                             call->state_offset + lade_state_bytes(graph_of(call), call->n_held),
                                             scales_data(call, 0), call->scales_bytes);
  separate_make(item, LADE_ROLE_WEIGHT, op, &transfers[STREAM_WEIGHT]);
  separate_make(item, LADE_ROLE_GRAD, op, &transfers[STREAM_GRAD]);
}

static struct lade_transfer *transfers_of(const struct stream_run *run, int at, enum lade_store_op op)
{
  struct stream_slot *slot = &run->slots[at % STREAM_SLOTS];
  return op == LADE_STORE_READ ? slot->reads : slot->writes;
}

/* Begin the transfers of lot @at. Bytes 0 marks a transfer that has not begun, or has been waited for. */
static int lot_begin(const struct stream_run *run, lade_executor *ex, int at, enum lade_store_op op)
{
  struct lade_transfer *transfers = transfers_of(run, at, op);
  int status = 0;
  transfers_make(run, at, op, transfers);
  for (int i = 0; i < STREAM_N_TRANSFERS; i++) {
    if (transfers[i].bytes && !status)
      status = io_transfer_begin(ex, &transfers[i]);
    if (status)
      transfers[i].bytes = 0;
  }
  return status;
}

/* True if every begun transfer of lot @at in one direction has completed. */
static bool lot_is_done(const struct stream_run *run, int at, enum lade_store_op op)
{
  const struct lade_transfer *transfers = transfers_of(run, at, op);
  for (int i = 0; i < STREAM_N_TRANSFERS; i++) {
    if (transfers[i].bytes && !lade_transfer_is_done(&transfers[i]))
      return false;
  }
  return true;
}

/*
 * Wait for the grains of lot @at. A drive does not report which bytes of a request failed. So after a failure of
 * several items each is transferred again alone, and the error names the first that fails again. If none does, it names
 * the lot's first.
 */
static int grains_wait(const struct stream_run *run, lade_executor *ex, int at, struct lade_transfer *grains)
{
  const struct stream_lot *lot = &run->lots[at];
  const bool is_shared = lot->end_item - lot->first_item > 1;
  int status = executor_transfer_wait(ex, grains, NULL), again = 0;
  for (int i = lot->first_item; status && is_shared && !again && i < lot->end_item; i++) {
    struct lade_transfer one = grains_make(run, i, i + 1, grains->op);
    again = io_transfer_begin(ex, &one);
    if (!again)
      again = io_transfer_wait(ex, &one);
  }
  return status && !again ? io_transfer_wait(ex, grains) : again;
}

/* Wait for the transfers of lot @at in one direction that have begun. */
static int lot_wait(const struct stream_run *run, lade_executor *ex, int at, enum lade_store_op op)
{
  struct lade_transfer *transfers = transfers_of(run, at, op);
  int status = transfers[STREAM_GRAINS].bytes ? grains_wait(run, ex, at, &transfers[STREAM_GRAINS]) : 0;
  for (int i = STREAM_GRAINS + 1; i < STREAM_N_TRANSFERS; i++) {
    int one = transfers[i].bytes ? io_transfer_wait(ex, &transfers[i]) : 0;
    status = status ? status : one;
  }
  for (int i = 0; i < STREAM_N_TRANSFERS; i++)
    transfers[i].bytes = 0;
  return status;
}

/* Collect completed writes up to lot @last, or with @may_block wait for them. @ret_are_done: all are complete. */
static int writes_collect(struct stream_run *run, lade_executor *ex, int last, bool may_block, bool *ret_are_done)
{
  int status = 0;
  while (run->n_writes_done <= last && !status) {
    if (!may_block && !lot_is_done(run, run->n_writes_done, LADE_STORE_WRITE))
      break;
    status = lot_wait(run, ex, run->n_writes_done++, LADE_STORE_WRITE);
  }
  *ret_are_done = run->n_writes_done > last;
  return status;
}

/*
 * Begin reads in order while there is room for them. For lot @must, the next to be computed, wait until there is room.
 */
static int reads_begin(struct stream_run *run, lade_executor *ex, int must)
{
  int status = 0;
  while (run->n_reads_begun < run->n_lots && !status) {
    const int at = run->n_reads_begun;
    struct stream_lot *lot = &run->lots[at];
    const uint64_t reading_bytes = run->reading_bytes + lot_end(run, lot) - lot_offset(run, lot);
    bool has_room = false;
    if (lot->after >= run->n_writes_begun) /* the lot in its place is not even being written */
      break;
    if (run->reading_bytes && reading_bytes > run->reading_max)
      break;
    status = writes_collect(run, ex, lot->after, at <= must, &has_room);
    if (status || !has_room)
      break;
    atomic_store(&lot->n_left, lot->n_grains);
    status = lot_begin(run, ex, at, LADE_STORE_READ);
    run->reading_bytes = reading_bytes;
    run->n_reads_begun++;
  }
  return status;
}

/* Collect the lots whose reads are complete. Wait for all lots up to @must; -1: wait for none. */
static int reads_collect(struct stream_run *run, lade_executor *ex, int must)
{
  int status = 0;
  while (!status && run->n_reads_done < run->n_reads_begun &&
         (run->n_reads_done <= must || lot_is_done(run, run->n_reads_done, LADE_STORE_READ))) {
    const struct stream_lot *lot = &run->lots[run->n_reads_done];
    status = lot_wait(run, ex, run->n_reads_done++, LADE_STORE_READ);
    run->reading_bytes -= lot_end(run, lot) - lot_offset(run, lot);
  }
  return status;
}

/* ---- the pass over lots that have been read ---- */

/* Make the transfer of one grain of one part, the unit of its checksums. */
static struct lade_transfer grain_make(const struct stream_item *item, int i_part, int i_task, enum lade_store_op op)
{
  const struct stream_call *call = item->call;
  const struct stream_part *part = &call->parts[i_part];
  const int64_t first = (int64_t)i_task * LADE_STREAM_GRAIN, n = LADE_MIN(item->n - first, LADE_STREAM_GRAIN);
  const uint64_t room = part->store_offset + (uint64_t)(item->first + first) * part->element_bytes;
  uint64_t place = room;
  if (is_of_state(part))
    place = call->state_offset +
            lade_state_offset(graph_of(call), call->n_held, part_of(part), item->first + first);
  struct lade_transfer grain = {.op = op, .check = LADE_CHECK_CALLER, .data = part_data(item, i_part, first),
                                .bytes = (uint64_t)n * part->element_bytes};
  executor_address_state(call->executor, value_moved(part->value, op), place, room, &grain);
  return grain;
}

static bool grain_verify(const struct stream_item *item, int i_task)
{
  for (int i = 0; i < item->call->n_parts; i++) {
    const struct lade_transfer grain = grain_make(item, i, i_task, LADE_STORE_READ);
    if (io_transfer_verify(item->call->executor, &grain))
      return false;
  }
  return true;
}

static void grain_seal(const struct stream_item *item, int i_task)
{
  for (int i = 0; i < item->call->n_parts; i++) {
    const struct lade_transfer grain = grain_make(item, i, i_task, LADE_STORE_WRITE);
    if (item->call->parts[i].role != LADE_ROLE_GRAD)
      executor_transfer_seal(item->call->executor, &grain);
  }
}

/* Verify the scales of an update, or seal them. */
static int scales_check(const struct stream_call *call, enum lade_store_op op)
{
  int status = 0;
  for (int i = 0; i < call->n_scales && !status; i++) {
    const struct stream_scales *scales = &call->scales[i];
    struct lade_transfer all = {.op = op, .check = LADE_CHECK_CALLER, .data = scales_data(call, i),
                                .bytes = scales->bytes};
    const uint64_t place = call->state_offset + lade_state_offset(graph_of(call), call->n_held, scales->part, 0);
    executor_address_state(call->executor, value_moved(scales->value, op), place, scales->store_offset, &all);
    if (op == LADE_STORE_WRITE)
      executor_transfer_seal(call->executor, &all);
    else
      status = io_transfer_verify(call->executor, &all);
  }
  return status;
}

/* Return the data of @role from element @first of the item on: in its window, or in @whole if that is in memory. */
static void *role_data(const struct stream_item *item, int role, const void *whole, size_t element_bytes, int64_t first)
{
  const int part = item->call->part_of_role[role];
  if (part >= 0)
    return part_data(item, part, first);
  return whole ? (char *)(uintptr_t)whole + (uint64_t)(item->first + first) * element_bytes : NULL;
}

/*
 * Return the arguments for up to SLICE_ELEMENTS elements from @first of the item on, or for none if only padding is
 * left.
 */
static struct lade_adamw_args slice_args(const struct stream_item *item, int64_t first)
{
  const struct lade_adamw_args *whole = &item->call->args;
  struct lade_adamw_args args = *whole;
  args.n_elements = LADE_MIN(whole->n_elements - item->first - first, SLICE_ELEMENTS);
  args.weight = role_data(item, LADE_ROLE_WEIGHT, whole->weight, lade_dtype_bytes(whole->dtype), first);
  args.grad = role_data(item, LADE_ROLE_GRAD, whole->grad, lade_dtype_bytes(whole->grad_dtype), first);
  args.residual = role_data(item, LADE_ROLE_RESIDUAL, NULL, 0, first);
  args.m = role_data(item, LADE_ROLE_M, NULL, 0, first);
  args.v = role_data(item, LADE_ROLE_V, NULL, 0, first);
  args.first_element += (uint64_t)(item->first + first); /* in the shard */
  if (item->call->n_scales) {
    args.m_scales = scales_data(item->call, 0) + (item->first + first) / LADE_MOMENT_BLOCK;
    args.v_scales = scales_data(item->call, 1) + (item->first + first) / LADE_MOMENT_BLOCK;
  }
  return args;
}

/* Begin to write computed lots, in order. So when a parameter's scales are sealed, all its grains are computed. */
static int writes_begin(struct stream_run *run, lade_executor *ex)
{
  int status = 0;
  while (run->n_writes_begun < run->n_reads_done && !atomic_load(&run->lots[run->n_writes_begun].n_left) && !status) {
    const int at = run->n_writes_begun++;
    for (int i = run->lots[at].first_item; i < run->lots[at].end_item; i++) {
      if (i == run->items[i].call->end_item - 1)
        scales_check(run->items[i].call, LADE_STORE_WRITE);
    }
    status = lot_begin(run, ex, at, LADE_STORE_WRITE);
  }
  return status;
}

/* Poll the drive, collect its completions, and begin all writes and reads that can begin. */
static int drive_feed(struct stream_run *run, lade_executor *ex, int must)
{
  io_poll(ex);
  int status = reads_collect(run, ex, -1);
  if (!status)
    status = writes_begin(run, ex);
  return status ? status : reads_begin(run, ex, must);
}

/* A pass over whole grains of consecutive items of one update. All items but its last have item_grains grains. */
struct update_pass {
  struct stream_run *run;
  int first_item, item_grains;
  const struct lade_kernel_ctx *ctx; /* of a single thread */
};

static void grain_run(void *arg, int i_task, int i_thread)
{
  const struct update_pass *pass = arg;
  struct stream_run *run = pass->run;
  const struct stream_item *item = &run->items[pass->first_item + i_task / pass->item_grains];
  const int i_grain = i_task % pass->item_grains;
  lade_executor *ex = item->call->executor;
  const int64_t from = (int64_t)i_grain * LADE_STREAM_GRAIN, end = LADE_MIN(item->n, from + LADE_STREAM_GRAIN);
  if (!grain_verify(item, i_grain))
    return;
  for (int64_t first = from; first < end; first += SLICE_ELEMENTS) {
    const struct lade_adamw_args args = slice_args(item, first);
    if (i_thread == 0) /* the thread that waits for the drive; an error is already the step's failure */
      drive_feed(run, ex, -1);
    if (args.n_elements > 0)
      ex->params.kernels->fn[LADE_K_ADAMW](pass->ctx, &args);
  }
  grain_seal(item, i_grain);
  atomic_fetch_sub(&run->lots[item->lot].n_left, 1);
}

/* Compute items @first to @end of an update. pre: they have been read. */
static int items_run(struct stream_run *run, lade_executor *ex, int first, int end)
{
  const struct lade_kernel_ctx alone = {.step = ex->ctx.step};
  const struct stream_call *call = run->items[first].call;
  struct update_pass pass = {run, first, (int)(call->n_window / LADE_STREAM_GRAIN), &alone};
  int status = first == call->first_item ? scales_check(call, LADE_STORE_READ) : 0;
  if (status)
    return status;
  lade_pool_run(ex->params.pool, grain_run, &pass,
                (end - 1 - first) * pass.item_grains + item_n_grains(&run->items[end - 1]));
  status = lade_first_error_code(&ex->failure);
  return status ? status : drive_feed(run, ex, -1);
}

/* Wait for all transfers in flight and ignore their results. */
static void run_drain(struct stream_run *run, lade_executor *ex)
{
  for (int at = run->n_writes_done; at < run->n_reads_begun; at++) {
    lot_wait(run, ex, at, LADE_STORE_READ);
    lot_wait(run, ex, at, LADE_STORE_WRITE);
  }
}

void stream_call_run(void *arg)
{
  struct stream_call *call = arg;
  struct stream_run *run = call->run;
  lade_executor *ex = call->executor;
  if (call == run->calls[0]) {
    run->n_reads_begun = run->n_reads_done = run->n_writes_begun = run->n_writes_done = 0;
    run->reading_bytes = 0;
  }
  int status = lade_first_error_code(&ex->failure);
  for (int at = call->first_item, end; at < call->end_item && !status; at = end) {
    const int lot = run->items[at].lot;
    end = at;
    status = drive_feed(run, ex, lot);
    if (!status)
      status = reads_collect(run, ex, lot);
    if (!status)
      status = reads_begin(run, ex, -1); /* before the arrived items are computed */
    if (status)
      break;
    LADE_ASSERT(run->n_reads_done > lot);
    end = LADE_MIN(call->end_item, run->lots[run->n_reads_done - 1].end_item);
    status = items_run(run, ex, at, end);
  }
  if (status || call == run->calls[run->n_calls - 1])
    run_drain(run, ex);
}
