/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer updates whose state streams from the store: read, computed, written, each byte once each way.
 *
 * A run is a row of such updates with nothing else between them on the io queue, over one scratch. All their windows
 * are one list of items, whose places in the scratch are found once, when the program is bound: the scratch is a ring,
 * an item takes exactly its bytes of it, and knows which item must have been written out before (after). A step walks
 * the list. While one item is computed, as many as the ring holds are being read behind it or written before it, of
 * whatever parameter; so the drive has both directions busy from the first item of a run to the last, and a norm
 * of a few hundred elements costs no drained pipeline.
 *
 * The work of one instruction is the computing of its own items, and reading ahead of them. What it has begun beyond
 * that, and its writes, are left to the next instruction; the last of a run waits for everything. The program
 * allows that (program.h): between the instructions of a run nobody else uses the scratch or the store. Once anything
 * has failed, whichever instruction is next waits for all that is under way.
 *
 * Checksums are computed in the pass: a task verifies a grain of each part, updates it and seals what it made while
 * all of it is in its core's cache, instead of two more passes over memory by the one thread that waits for the drive.
 * What does not verify is not computed with. Scales of 8-bit moments are read with a parameter's first item and
 * written with its last, whole, and the store checks those; they have a ring of their own, in which they stay as long
 * as any item of theirs is under way. With room for two updates' alone, each norm would wait for the one before the
 * last to be written: measured, that cost compact forms half of the drive's time.
 *
 * A shard's padding is in the store and moves as well, so that its checksums hold for whoever reads the whole block.
 *
 * Numbers do not depend on how items are cut: an element's update knows its element alone.
 *
 * Rejected: waiting for whatever completes next instead of for the next item's parts in their order. The drive
 * serves requests about as they came, so the order makes no difference that could be measured.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run/executor_internal.h"

_Static_assert(LADE_STREAM_GRAIN % LADE_MOMENT_BLOCK == 0 && LADE_STREAM_GRAIN % LADE_STORE_GRANULE_BYTES == 0,
               "a grain is whole blocks of scales and whole granules of any part");

/* ---- places, found once ---- */

static uint64_t part_bytes(const struct stream_item *item, int part)
{
  return (uint64_t)item->n * item->call->parts[part].element_bytes;
}

/* Where @part, or with n_parts the end of all, begins in the item. */
static uint64_t part_offset(const struct stream_item *item, int part)
{
  uint64_t offset = 0;
  for (int i = 0; i < part; i++)
    offset += lade_align_up(part_bytes(item, i), LADE_BUFFER_ALIGN);
  return offset;
}

static uint64_t item_end(const struct stream_item *item)
{
  return item->offset + part_offset(item, item->call->n_parts);
}

/* The last item before @at that has bytes of it, or holds its slot; -1: none. */
static int item_before(const struct stream_run *run, int at)
{
  const struct stream_item *item = &run->items[at];
  const int first = LADE_MAX(at - STREAM_SLOTS, -1);
  for (int i = at - 1; i > first; i--) {
    if (run->items[i].offset < item_end(item) && item->offset < item_end(&run->items[i]))
      return i;
  }
  return first;
}

static uint64_t scales_bytes(const struct stream_call *call)
{
  uint64_t bytes = 0;
  for (int i = 0; i < call->n_scales; i++)
    bytes += lade_align_up(call->scales[i].bytes, LADE_BUFFER_ALIGN);
  return bytes;
}

/* The last item of an update before @i_call whose scales have bytes of its room; -1: none, or it is long over. */
static int scales_before(const struct stream_run *run, int i_call)
{
  const struct stream_call *call = run->calls[i_call];
  for (int i = i_call - 1; i >= LADE_MAX(i_call - STREAM_SLOTS, 0); i--) {
    const struct stream_call *other = run->calls[i];
    if (call->scales_offset < other->scales_offset + scales_bytes(other) &&
        other->scales_offset < call->scales_offset + scales_bytes(call))
      return other->end_item - 1;
  }
  return -1;
}

/* Scales of update @i_call behind those before it, from @at of their ring at @room on. Returns where the next go on. */
static uint64_t scales_place(struct stream_run *run, int i_call, uint64_t at, char *room, uint64_t room_bytes)
{
  struct stream_call *call = run->calls[i_call];
  call->scales_offset = at + scales_bytes(call) > room_bytes ? 0 : at;
  LADE_ASSERT(call->scales_offset + scales_bytes(call) <= room_bytes);
  at = call->scales_offset;
  for (int i = 0; i < call->n_scales; i++) {
    call->scales[i].data = room + at;
    *(call->scales[i].is_v ? &call->args.v_scales : &call->args.m_scales) = (uint8_t *)room + at;
    at += lade_align_up(call->scales[i].bytes, LADE_BUFFER_ALIGN);
  }
  return at;
}

static int64_t call_n_items(const struct stream_call *call)
{
  return lade_div_up(call->n_held, call->n_window);
}

/* Items of call @i_call, behind those before it, from @at of the ring on. Returns where the next ones go on. */
static uint64_t items_place(struct stream_run *run, int i_call, uint64_t at, uint64_t ring_bytes, int after)
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
    item->after = LADE_MAX(item_before(run, run->n_items), after);
    at = item_end(item);
    run->n_items++;
  }
  call->end_item = run->n_items;
  return at;
}

static int run_place(struct stream_run *run)
{
  uint64_t most_bytes = 0, at = 0, scales_at = 0;
  int64_t n_items = 0;
  for (int i = 0; i < run->n_calls; i++) {
    most_bytes = LADE_MAX(most_bytes, scales_bytes(run->calls[i]));
    n_items += call_n_items(run->calls[i]);
  }
  if (n_items > INT32_MAX)
    return -EOVERFLOW;
  run->items = calloc((size_t)n_items + 1, sizeof(*run->items));
  if (!run->items)
    return -ENOMEM;
  const uint64_t room_bytes = lade_stream_scales_bytes(most_bytes, run->n_calls > 1);
  LADE_ASSERT(room_bytes <= run->scratch_bytes);
  const uint64_t ring_bytes = run->scratch_bytes - room_bytes;
  for (int i = 0; i < run->n_calls; i++) {
    scales_at = scales_place(run, i, scales_at, run->scratch + ring_bytes, room_bytes);
    at = items_place(run, i, at, ring_bytes, scales_before(run, i));
  }
  return 0;
}

/* Does the update of @at go on in the run of the one before it on the io queue? One place may be several buffers'. */
static bool is_joined(const struct bound_program *b, int at)
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
    if (!is_joined(b, at))
      b->runs[b->n_runs++] = (struct stream_run){.calls = b->stream_calls + n_calls, .slots = b->stream_slots,
                                                 .scratch = call->scratch, .scratch_bytes = call->scratch_bytes};
    call->run = &b->runs[b->n_runs - 1];
    b->stream_calls[n_calls++] = call;
    call->run->n_calls++;
  }
  for (int i = 0; i < b->n_runs && !status; i++)
    status = run_place(&b->runs[i]);
  return status;
}

void streams_finish(struct bound_program *b)
{
  for (int i = 0; i < b->n_runs; i++)
    free(b->runs[i].items);
  for (int i = 0; b->streams && i < b->program->n_instrs; i++)
    free(b->streams[i]);
  free(b->runs);
  free(b->stream_calls);
  free(b->stream_slots);
}

/* ---- transfers ---- */

static struct stream_slot *slot_of(const struct stream_run *run, int at)
{
  return &run->slots[at % STREAM_SLOTS];
}

static char *part_data(const struct stream_item *item, int part)
{
  return item->call->scratch + item->offset + part_offset(item, part);
}

static void transfer_address(const struct stream_call *call, struct lade_value value, uint64_t store_offset,
                             struct lade_transfer *transfer)
{
  value.version = (int16_t)(value.version + (transfer->op == LADE_STORE_WRITE));
  executor_address_stored(call->executor, value, store_offset, transfer);
}

/* All transfers of an item one way: its parts, and with a parameter's first or last one its scales. */
static void transfers_make(const struct stream_run *run, int at, enum lade_store_op op, struct lade_transfer *transfers)
{
  const struct stream_item *item = &run->items[at];
  const struct stream_call *call = item->call;
  bool is_write = op == LADE_STORE_WRITE, has_scales = at == (is_write ? call->end_item - 1 : call->first_item);
  for (int i = 0; i < call->n_parts; i++) {
    const struct stream_part *part = &call->parts[i];
    if (is_write && !part->is_written)
      continue;
    transfers[i] = (struct lade_transfer){
        .op = op, .check = LADE_CHECK_CALLER, .data = part_data(item, i), .bytes = part_bytes(item, i)};
    uint64_t first = (uint64_t)item->first * part->element_bytes;
    transfer_address(call, part->value, part->store_offset + first, &transfers[i]);
  }
  for (int i = 0; has_scales && i < call->n_scales; i++) {
    const struct stream_scales *scales = &call->scales[i];
    struct lade_transfer *transfer = &transfers[STREAM_MAX_PARTS + i];
    *transfer = (struct lade_transfer){
        .op = op, .check = LADE_CHECK_STORE, .data = scales->data, .bytes = scales->bytes};
    transfer_address(call, scales->value, scales->store_offset, transfer);
  }
}

/* Bytes 0 marks a transfer that has not begun, or whose end has been taken note of. */
static int transfers_begin(lade_executor *ex, struct lade_transfer *transfers)
{
  int status = 0;
  for (int i = 0; i < STREAM_MAX_TRANSFERS; i++) {
    if (transfers[i].bytes && !status)
      status = io_transfer_begin(ex, &transfers[i]);
    if (status)
      transfers[i].bytes = 0;
  }
  return status;
}

static bool transfers_are_done(const struct lade_transfer *transfers)
{
  for (int i = 0; i < STREAM_MAX_TRANSFERS; i++) {
    if (transfers[i].bytes && !lade_transfer_is_done(&transfers[i]))
      return false;
  }
  return true;
}

/* Wait for those that have begun. What they were about stays, for their checksums. */
static int transfers_wait(lade_executor *ex, struct lade_transfer *transfers)
{
  int status = 0;
  for (int i = 0; i < STREAM_MAX_TRANSFERS; i++) {
    int one = transfers[i].bytes ? io_transfer_wait(ex, &transfers[i]) : 0;
    status = status ? status : one;
  }
  return status;
}

static int transfers_settle(lade_executor *ex, struct lade_transfer *transfers)
{
  int status = transfers_wait(ex, transfers);
  for (int i = 0; i < STREAM_MAX_TRANSFERS; i++)
    transfers[i].bytes = 0;
  return status;
}

/* Have all writes up to item @last ended? With @may_block wait until they have. */
static int writes_settle(struct stream_run *run, lade_executor *ex, int last, bool may_block, bool *ret_are_settled)
{
  int status = 0;
  while (run->n_settled <= last && !status) {
    struct lade_transfer *writes = slot_of(run, run->n_settled)->writes;
    if (!may_block && !transfers_are_done(writes))
      break;
    status = transfers_settle(ex, writes);
    run->n_settled++;
  }
  *ret_are_settled = run->n_settled > last;
  return status;
}

/* Begin to read what has room, and in any case @must, the item that is computed next: those before it are written. */
static int reads_begin(struct stream_run *run, lade_executor *ex, int must)
{
  int status = 0;
  io_poll(ex);
  while (run->n_begun < run->n_items && run->items[run->n_begun].after < must && !status) {
    const int at = run->n_begun;
    bool has_room = false;
    status = writes_settle(run, ex, run->items[at].after, at <= must, &has_room);
    if (status || !has_room)
      break;
    struct lade_transfer *reads = slot_of(run, at)->reads;
    transfers_make(run, at, LADE_STORE_READ, reads);
    status = transfers_begin(ex, reads);
    run->n_begun++;
  }
  return status;
}

/* ---- the pass over one item ---- */

struct pass {
  const struct stream_item *item;
  struct stream_slot *slot;
  const struct lade_kernel_ctx *ctx; /* of one thread */
};

/* The range of @part in bytes that grain @i_task of an item covers. */
static void grain_range(const struct stream_item *item, int part, int i_task, uint64_t *ret_from, uint64_t *ret_bytes)
{
  const size_t element_bytes = item->call->parts[part].element_bytes;
  int64_t first = (int64_t)i_task * LADE_STREAM_GRAIN, n = LADE_MIN(item->n - first, LADE_STREAM_GRAIN);
  *ret_from = (uint64_t)first * element_bytes;
  *ret_bytes = (uint64_t)n * element_bytes;
}

static bool grain_verify(const struct pass *pass, int i_task)
{
  const struct stream_call *call = pass->item->call;
  for (int i = 0; i < call->n_parts; i++) {
    uint64_t from, bytes;
    grain_range(pass->item, i, i_task, &from, &bytes);
    if (io_transfer_verify(call->executor, &pass->slot->reads[i], from, bytes))
      return false;
  }
  return true;
}

static void grain_seal(const struct pass *pass, int i_task)
{
  const struct stream_call *call = pass->item->call;
  for (int i = 0; i < call->n_parts; i++) {
    uint64_t from, bytes;
    grain_range(pass->item, i, i_task, &from, &bytes);
    if (call->parts[i].is_written)
      io_transfer_seal(call->executor, &pass->slot->writes[i], from, bytes);
  }
}

/* The data of @role from element @first of the item on: in its window, or in all of it, which is in memory. */
static void *role_data(const struct stream_item *item, int role, const void *whole, size_t element_bytes, int64_t first)
{
  const int part = item->call->part_of_role[role];
  if (part >= 0)
    return part_data(item, part) + (uint64_t)first * item->call->parts[part].element_bytes;
  return whole ? (char *)(uintptr_t)whole + (uint64_t)(item->first + first) * element_bytes : NULL;
}

static struct lade_adamw_args grain_args(const struct stream_item *item, int i_task)
{
  const struct lade_adamw_args *whole = &item->call->args;
  struct lade_adamw_args args = *whole;
  int64_t first = (int64_t)i_task * LADE_STREAM_GRAIN;
  args.n_elements = LADE_MIN(whole->n_elements - item->first - first, LADE_STREAM_GRAIN);
  args.weight = role_data(item, LADE_ROLE_WEIGHT, whole->weight, lade_dtype_bytes(whole->dtype), first);
  args.grad = role_data(item, LADE_ROLE_GRAD, whole->grad, lade_dtype_bytes(whole->grad_dtype), first);
  args.residual = role_data(item, LADE_ROLE_RESIDUAL, NULL, 0, first);
  args.m = role_data(item, LADE_ROLE_M, NULL, 0, first);
  args.v = role_data(item, LADE_ROLE_V, NULL, 0, first);
  args.first_element += (uint64_t)(item->first + first); /* in what this rank holds */
  if (item->call->n_scales) {
    args.m_scales += (item->first + first) / LADE_MOMENT_BLOCK;
    args.v_scales += (item->first + first) / LADE_MOMENT_BLOCK;
  }
  return args;
}

static void grain_run(void *arg, int i_task, int i_thread)
{
  const struct pass *pass = arg;
  const lade_executor *ex = pass->item->call->executor;
  if (!grain_verify(pass, i_task))
    return;
  const struct lade_adamw_args args = grain_args(pass->item, i_task);
  if (args.n_elements > 0) /* else it is padding alone */
    ex->params.kernels->fn[LADE_K_ADAMW](pass->ctx, &args);
  grain_seal(pass, i_task);
}

/* Its bytes are there: compute them, and begin to write. */
static int item_run(struct stream_run *run, lade_executor *ex, int at)
{
  const struct lade_kernel_ctx alone = {.step = ex->ctx.step};
  struct stream_slot *slot = slot_of(run, at);
  struct pass pass = {&run->items[at], slot, &alone};
  transfers_make(run, at, LADE_STORE_WRITE, slot->writes);
  lade_pool_run(ex->params.pool, grain_run, &pass, (int)lade_div_up(pass.item->n, LADE_STREAM_GRAIN));
  memset(slot->reads, 0, sizeof(slot->reads));
  int status = atomic_load(&ex->failure);
  if (status)
    memset(slot->writes, 0, sizeof(slot->writes));
  return status ? status : transfers_begin(ex, slot->writes);
}

/* Nothing is under way any more, whatever has become of it. */
static void run_drain(struct stream_run *run, lade_executor *ex)
{
  for (int i = 0; i < STREAM_SLOTS; i++) {
    transfers_settle(ex, run->slots[i].reads);
    transfers_settle(ex, run->slots[i].writes);
  }
}

void stream_call_run(void *arg)
{
  struct stream_call *call = arg;
  struct stream_run *run = call->run;
  lade_executor *ex = call->executor;
  if (call == run->calls[0])
    run->n_begun = run->n_settled = 0;
  int status = atomic_load(&ex->failure);
  for (int at = call->first_item; at < call->end_item && !status; at++) {
    status = reads_begin(run, ex, at);
    if (!status)
      status = transfers_wait(ex, slot_of(run, at)->reads);
    if (!status)
      status = item_run(run, ex, at);
  }
  if (status || call == run->calls[run->n_calls - 1])
    run_drain(run, ex);
}
