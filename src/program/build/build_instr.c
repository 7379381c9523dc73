/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Append to the list: buffers, instructions, operands, collectives and copies, one by one.
 *
 * A buffer's lifetime grows with every instruction that names it. An instruction is begun, then given its operands. The
 * decisions are made elsewhere: by slots (build.c), gradients (build_grads.c) and updates (build_state.c). If memory is
 * out, the builder keeps the error, and its user checks for it once, at the end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/build/build_internal.h"

int32_t buffer_make(struct builder *b, enum lade_space space, enum lade_owner owner, uint64_t bytes, bool is_resident)
{
  if (!LADE_RESERVE(&b->buffers)) {
    b->status = -ENOMEM;
    return 0;
  }
  b->buffers.items[b->buffers.n] = (struct lade_buffer){
      .space = space, .owner = owner, .bytes = plan_buffer_bytes(space, bytes), .first = INT32_MAX, .last = -1,
      .is_resident = is_resident, .align = (uint32_t)plan_space_align(space)};
  return b->buffers.n++;
}

/* An instruction without an op, a parameter, and waits. */
static const struct lade_instr blank = {.op = -1, .param = -1, .waits = {-1, -1, -1, -1, -1, -1, -1, -1, -1}};
_Static_assert(LADE_N_QUEUES == 9, "a blank instruction waits for no queue");

struct lade_instr *instr_begin(struct builder *b, enum lade_instr_kind kind, enum lade_queue_id queue)
{
  struct lade_instr *instr = &b->spare;
  if (LADE_RESERVE(&b->instrs))
    instr = &b->instrs.items[b->instrs.n++];
  else
    b->status = -ENOMEM;
  *instr = blank; /* a copy of constants: a call of memset takes longer than the rest of this function */
  instr->kind = (uint8_t)kind;
  instr->queue = (uint8_t)queue;
  instr->first_operand = b->operands.n;
  return instr;
}

/*
 * True if the collective just begun joins the group that the previous instruction ends: of one unit, or within one
 * bucket in all. A longer group would delay the instructions that wait for its first members.
 */
static bool is_grouped(const struct builder *b, const struct lade_instr *instr, uint64_t bytes)
{
  if (b->group.last < 0 || b->group.last != b->instrs.n - 2 ||
      b->group.last - b->group.first + 1 == LADE_COMM_LIST_MAX)
    return false;
  const struct lade_instr *first = &b->instrs.items[b->group.first];
  const struct lade_param *params = b->graph->params;
  bool is_one_unit =
      b->graph->tensors[params[first->param].tensor].unit == b->graph->tensors[params[instr->param].tensor].unit;
  return first->collective == instr->collective && first->axis == instr->axis &&
         (is_one_unit || b->group.bytes + bytes <= b->bucket_bytes[instr->axis]);
}

void collective_begin(struct builder *b, enum lade_collective_kind kind, enum lade_axis axis, int param,
                      int microbatch, uint64_t bytes)
{
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_COLLECTIVE, lade_axis_queue(axis));
  instr->collective = (uint8_t)kind;
  instr->axis = (uint8_t)axis;
  instr->param = param;
  instr->microbatch = (int16_t)microbatch;
  instr->is_grouped = param >= 0 && !b->status && is_grouped(b, instr, bytes);
  if (param < 0 || b->status) {
    instr->predicted_ns = plan_collective_ns(b->params, kind, axis, bytes);
    return;
  }
  const int32_t at = b->instrs.n - 1;
  if (!instr->is_grouped)
    b->group.first = at;
  b->group.bytes = bytes + (instr->is_grouped ? b->group.bytes : 0);
  b->group.last = at;
  b->instrs.items[b->group.first].predicted_ns = plan_collective_ns(b->params, kind, axis, b->group.bytes);
}

void move_emit(struct builder *b, struct value_place src, struct lade_value reads, struct value_place dst,
               struct lade_value makes)
{
  if (b->status)
    return; /* out of memory: a buffer may be missing */
  enum lade_space from = b->buffers.items[src.buffer].space, to = b->buffers.items[dst.buffer].space;
  uint64_t bytes = value_bytes(b, makes.tensor);
  bool is_store = from == LADE_STORE || to == LADE_STORE;
  enum lade_instr_kind kind = from == LADE_STORE ? LADE_INSTR_READ
                              : to == LADE_STORE ? LADE_INSTR_WRITE
                                                 : LADE_INSTR_COPY;
  enum lade_queue_id queue = is_store ? LADE_Q_IO : to == LADE_HOST ? LADE_Q_TO_HOST : LADE_Q_TO_DEVICE;
  struct lade_instr *instr = instr_begin(b, kind, queue);
  instr->microbatch = makes.microbatch;
  instr->predicted_ns = plan_transfer_ns(b->params->prices, from, to, bytes);
  operand_read_at(b, LADE_ROLE_SRC, src, reads, bytes);
  operand_make_at(b, LADE_ROLE_DST, dst, makes, bytes);
}

/*
 * Return a host buffer for @value on its way. Activations go both ways while kernels run, so buffers of the latest ones
 * live on beside it, and it has memory of its own.
 */
static int32_t staging_make(struct builder *b, enum lade_owner owner, struct lade_value value)
{
  const int32_t staging = buffer_make(b, LADE_HOST, owner, value_bytes(b, value.tensor), false);
  if (value.tensor >= b->graph->n_tensors || b->graph->tensors[value.tensor].kind != LADE_TENSOR_ACTIVATION)
    return staging;
  b->stagings[b->n_stagings++ % LADE_VALUES_PASSING] = staging;
  for (int i = 0; i < LADE_MIN(b->n_stagings, LADE_VALUES_PASSING); i++) {
    struct lade_buffer *held = &b->buffers.items[b->stagings[i]];
    if (held->last >= 0)
      held->last = LADE_MAX(held->last, b->instrs.n);
  }
  return staging;
}

void transfer_emit(struct builder *b, struct value_place src, struct value_place dst, struct lade_value value)
{
  if (b->status)
    return; /* out of memory: a buffer may be missing */
  enum lade_space from = b->buffers.items[src.buffer].space, to = b->buffers.items[dst.buffer].space;
  bool is_store = from == LADE_STORE || to == LADE_STORE;
  if (is_store && !b->params->is_unified && (from == LADE_DEVICE || to == LADE_DEVICE)) {
    enum lade_owner owner = b->buffers.items[src.buffer].owner;
    struct value_place staging = {staging_make(b, owner, value), 0};
    move_emit(b, src, value, staging, value);
    src = staging;
  }
  move_emit(b, src, value, dst, value);
}
