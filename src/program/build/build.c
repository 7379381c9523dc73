/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emission: steps and live ranges become instructions over buffers.
 *
 * The list is written slot by slot. A slot holds the sums over ranks that liveness.c placed there, the copies out, the
 * copies in, and then the step itself. So memory is released before it is taken. A buffer is made where a live range
 * begins, and its lifetime grows with every instruction that names it. An op that may work in place takes over its
 * input's buffer if that input's live range ends there and no copy out reads it. The sums of squares of a gradient
 * follow its last addition, while it is still on the device. After all steps come the clip result and the updates, each
 * in its parameter's state tier.
 *
 * With the optimizer in the backward half, a parameter is updated as soon as no step adds to its gradient or reads it.
 * Its clip result is then over its gradient alone. The gradient's memory serves the rest of the backward half, and
 * updates on the host or in the store run concurrently with it.
 *
 * Buffers that live across steps (parameters and their state in their tiers, the step's inputs and results on the host)
 * are made first. Their order depends on the graph and these tiers alone. So a training and an evaluation program over
 * one arena agree on them by number.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/build/build_internal.h"

#define SLOT_FEW 16 /* transfers of a slot that are sorted by insertion */

/* ---- values ---- */

static enum lade_owner range_owner(const struct builder *b, const struct live_range *it)
{
  const struct lade_tensor *t = &b->graph->tensors[plan_value_tensor(b->graph, it->value)];
  if (t->kind == LADE_TENSOR_PARAM)
    return it->source == PLAN_GATHERED ? LADE_OWNER_COMM : LADE_OWNER_PARAMETERS;
  if (t->kind == LADE_TENSOR_GRAD)
    return plan_sums_each(b->params) ? LADE_OWNER_COMM : LADE_OWNER_GRADIENTS;
  bool is_saved = !b->steps[it->first_pos].is_backward && b->steps[LADE_MIN(it->last_pos, b->n_steps - 1)].is_backward;
  return is_saved ? LADE_OWNER_SAVED : LADE_OWNER_TRANSIENT;
}

/*
 * Return the owner of the copy of range @at outside of the device. The range ends with the copy, in the forward half;
 * the copy is a saved activation if a later range of the value is in the backward half.
 */
static enum lade_owner copy_owner(const struct builder *b, int at)
{
  const struct live_range *it = &b->live->ranges[at];
  const struct live_range *last = &b->live->ranges[b->live->first_range[it->value + 1] - 1];
  const enum lade_owner owner = range_owner(b, it);
  const bool is_forward = !b->steps[it->first_pos].is_backward;
  const bool is_used_backward = b->steps[LADE_MIN(last->last_pos, b->n_steps - 1)].is_backward;
  return owner == LADE_OWNER_TRANSIENT && is_forward && is_used_backward ? LADE_OWNER_SAVED : owner;
}

/* Look up the live range of @value at step @pos: the current one or a later one, because uses come in order. */
static void range_advance(struct builder *b, int value, int pos)
{
  const int end = b->live->first_range[value + 1];
  int at = b->now[value].at;
  while (at + 1 < end && b->live->ranges[at + 1].first_pos <= pos)
    at++;
  b->now[value] = (struct value_range){at, at + 1 < end ? b->live->ranges[at + 1].first_pos : INT32_MAX};
}

/* Return the live range of @value at step @pos. */
static inline int range_at(struct builder *b, int value, int pos)
{
  if (pos >= b->now[value].until)
    range_advance(b, value, pos);
  return b->now[value].at;
}

/* Return the device buffer of @value, of @tensor, for a step at @pos; make it now if this step makes the value. */
static inline int32_t value_buffer(struct builder *b, int tensor, int value, int pos)
{
  const struct lade_tensor *t = &b->graph->tensors[tensor];
  const bool is_resident = t->kind == LADE_TENSOR_PARAM &&
                           b->params->residency->weight_tiers[t->param] == LADE_TIER_DEVICE;
  if (is_resident && (!plan_gathers(b->params) || plan_is_gathered_in_place(b->params, t->param)))
    return b->elsewhere[value];
  const int at = range_at(b, value, pos);
  if (b->on_device[at] < 0)
    b->on_device[at] =
        buffer_make(b, LADE_DEVICE, range_owner(b, &b->live->ranges[at]), value_bytes(b, tensor), false);
  return b->on_device[at];
}

/* ---- residents ---- */

static void param_residents_make(struct builder *b, int param)
{
  const enum lade_space tier = plan_tier_space(b->params->residency->state_tiers[param]);
  const enum lade_space weight_tier = plan_tier_space(b->params->residency->weight_tiers[param]);
  int weight = b->graph->params[param].tensor, block = lade_value_block(b->graph, param, LADE_BLOCK_WEIGHT);
  bool is_block = plan_gathers(b->params) && !plan_is_gathered_in_place(b->params, param);
  b->elsewhere[weight] =
      buffer_make(b, weight_tier, LADE_OWNER_PARAMETERS, value_bytes(b, is_block ? block : weight), true);
  for (int part = 0; part < LADE_N_PARTS; part++) {
    int tensor = lade_value_part(b->graph, param, (enum lade_part)part);
    b->part_buffers[param * LADE_N_PARTS + part] =
        tensor < 0 ? -1 : buffer_make(b, tier, LADE_OWNER_OPTIMIZER, value_bytes(b, tensor), true);
  }
}

static void residents_make(struct builder *b)
{
  for (int param = 0; param < b->graph->n_params; param++)
    param_residents_make(b, param);
  b->clip_result_host = buffer_make(b, LADE_HOST, LADE_OWNER_TRANSIENT, sizeof(struct lade_clip_result), true);
  if (!b->params->is_unified) {
    b->step_host = buffer_make(b, LADE_HOST, LADE_OWNER_TRANSIENT, sizeof(struct lade_step), true);
    b->step_device = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, sizeof(struct lade_step), true);
  }
  const int shared[] = {b->graph->tokens, b->graph->targets, b->graph->first_keys, b->graph->loss};
  for (int m = 0; m < b->params->n_microbatches; m++) {
    for (size_t i = 0; i < LADE_COUNT(shared); i++) {
      if (shared[i] < 0)
        continue; /* on another stage */
      int value = plan_value_number(b->graph, shared[i], m);
      uint64_t bytes = b->graph->tensors[shared[i]].bytes;
      b->elsewhere[value] = buffer_make(b, LADE_HOST, LADE_OWNER_TRANSIENT, bytes, true);
    }
  }
}

/* ---- transfers ---- */

static void range_leave(struct builder *b, int at)
{
  const struct live_range *it = &b->live->ranges[at];
  const struct lade_tensor *t = &b->graph->tensors[plan_value_tensor(b->graph, it->value)];
  if (t->kind == LADE_TENSOR_GRAD)
    sumsq_settle(b, t->param);
  const bool is_rounded = t->kind == LADE_TENSOR_GRAD && b->is_rounded[t->param];
  struct lade_value value = is_rounded ? grad_now(b, t->param) : value_now(b, it->value);
  struct value_place src = is_rounded ? grad_place(b, t->param) : (struct value_place){b->on_device[at], 0};
  if (t->kind == LADE_TENSOR_LOSS)
    value = loss_reduce_emit(b, b->on_device[at], value);
  else
    b->elsewhere[it->value] = buffer_make(b, (enum lade_space)it->target, copy_owner(b, at),
                                          value_bytes(b, value.tensor), false);
  transfer_emit(b, src, (struct value_place){b->elsewhere[it->value], 0}, value);
}

/* Fetch this rank's block of a value that is gathered. */
static void range_fetch(struct builder *b, struct transfer *transfer)
{
  const int at = transfer->range;
  const struct live_range *it = &b->live->ranges[at];
  const struct lade_tensor *t = &b->graph->tensors[plan_value_tensor(b->graph, it->value)];
  if (it->source == PLAN_GATHERED && plan_is_gathered_in_place(b->params, t->param))
    b->on_device[at] = b->elsewhere[it->value];
  else
    b->on_device[at] = buffer_make(b, LADE_DEVICE, range_owner(b, it),
                                   value_bytes(b, plan_value_tensor(b->graph, it->value)), false);
  if (it->source == PLAN_GATHERED)
    transfer->block = weight_block_emit(b, t->param, b->on_device[at]);
  else
    transfer_emit(b, (struct value_place){b->elsewhere[it->value], 0}, (struct value_place){b->on_device[at], 0},
                  value_now(b, it->value));
}

static void range_gather(struct builder *b, const struct transfer *transfer)
{
  const struct live_range *it = &b->live->ranges[transfer->range];
  if (it->source == PLAN_GATHERED)
    weight_gather_emit(b, b->graph->tensors[plan_value_tensor(b->graph, it->value)].param, transfer->block,
                       b->on_device[transfer->range]);
}

/* Emit the copies of one slot; gathers follow them together, so that they can be grouped. */
static void transfers_emit(struct builder *b, struct transfer *transfers, int n)
{
  for (int i = 0; i < n && !b->status; i++) {
    if (transfers[i].is_in)
      range_fetch(b, &transfers[i]);
    else
      range_leave(b, transfers[i].range);
  }
  for (int i = 0; i < n && !b->status; i++) {
    if (transfers[i].is_in)
      range_gather(b, &transfers[i]);
  }
}

/* Order transfers of one slot: copies out before copies in; then in the order of need. */
static int transfer_compare(const void *x, const void *y)
{
  const struct transfer *a = x, *b = y;
  if (a->is_in != b->is_in)
    return a->is_in ? 1 : -1;
  if (a->need != b->need)
    return a->need < b->need ? -1 : 1;
  return (a->range > b->range) - (a->range < b->range);
}

/* Sort @n transfers of a slot: by insertion if they are few, because a call of qsort then takes longer. */
static void slot_sort(struct transfer *transfers, int n)
{
  if (n > SLOT_FEW) {
    qsort(transfers, (size_t)n, sizeof(*transfers), transfer_compare);
    return;
  }
  for (int i = 1; i < n; i++) {
    const struct transfer next = transfers[i];
    int at = i;
    for (; at > 0 && transfer_compare(&transfers[at - 1], &next) > 0; at--)
      transfers[at] = transfers[at - 1];
    transfers[at] = next;
  }
}

/* Sort the transfers of each slot, of which @ends has the ends. */
static void transfers_sort(struct builder *b, const int32_t *ends)
{
  int first = 0;
  for (int slot = 0; slot <= b->n_steps; slot++) {
    slot_sort(b->transfers.items + first, ends[slot] - first);
    first = ends[slot];
  }
}

/*
 * Collect the transfers of all live ranges by slot, with a counting sort, so that only the few of one slot are
 * compared. In @ends, by slot, stands the index of the next transfer of the slot.
 */
static void transfers_place(struct builder *b, int32_t *ends)
{
  for (int i = 0; i < b->live->n_ranges; i++) {
    const struct live_range *it = &b->live->ranges[i];
    if (it->fetch_slot >= 0)
      b->transfers.items[ends[it->fetch_slot]++] =
          (struct transfer){.slot = it->fetch_slot, .range = i, .need = it->first_pos, .is_in = true};
    if (it->leave_slot >= 0)
      b->transfers.items[ends[it->leave_slot]++] =
          (struct transfer){.slot = it->leave_slot, .range = i, .need = it->last_pos};
  }
}

static void transfers_collect(struct builder *b)
{
  int32_t *ends = calloc((size_t)b->n_steps + 2, sizeof(*ends)); /* by slot + 1: its transfers */
  for (int i = 0; ends && i < b->live->n_ranges; i++) {
    const struct live_range *it = &b->live->ranges[i];
    LADE_ASSERT(it->fetch_slot <= b->n_steps && it->leave_slot <= b->n_steps);
    ends[it->fetch_slot + 1] += it->fetch_slot >= 0;
    ends[it->leave_slot + 1] += it->leave_slot >= 0;
  }
  for (int slot = 0; ends && slot <= b->n_steps; slot++)
    ends[slot + 1] += ends[slot]; /* where the transfers of the next slot begin */
  const int n = ends ? ends[b->n_steps + 1] : 0;
  b->transfers.items = malloc(((size_t)n + 1) * sizeof(*b->transfers.items));
  if (!ends || !b->transfers.items) {
    free(ends);
    b->status = -ENOMEM;
    return;
  }
  b->transfers.n = b->transfers.capacity = n;
  transfers_place(b, ends);
  transfers_sort(b, ends);
  free(ends);
}

/* ---- steps ---- */

/* Return the buffer of the input that output @i of the step at @pos may reuse by its alias, or -1. */
static int32_t alias_buffer(struct builder *b, int pos, int i)
{
  const struct lade_op *op = &b->graph->ops[b->steps[pos].op];
  if (op->alias[i] < 0 || op->in[op->alias[i]] < 0)
    return -1;
  int tensor = op->in[op->alias[i]];
  if (b->graph->tensors[tensor].kind != LADE_TENSOR_ACTIVATION)
    return -1;
  int from = range_at(b, plan_value_number(b->graph, tensor, b->steps[pos].microbatch), pos);
  const struct live_range *dying = &b->live->ranges[from];
  if (dying->last_pos != pos || dying->leave_slot >= 0)
    return -1;
  int32_t taken = b->on_device[from];
  uint64_t needed = plan_buffer_bytes(LADE_DEVICE, value_bytes(b, op->out[i]));
  return needed <= b->buffers.items[taken].bytes ? taken : -1;
}

static void output_add(struct builder *b, int pos, int i)
{
  const struct plan_step *step = &b->steps[pos];
  const struct lade_op *op = &b->graph->ops[step->op];
  const struct lade_tensor *t = &b->graph->tensors[op->out[i]];
  int value = plan_value_number(b->graph, op->out[i], step->microbatch);
  if (t->kind == LADE_TENSOR_GRAD) {
    int32_t buffer = value_buffer(b, op->out[i], value, pos);
    struct lade_value grad = value_now(b, value);
    bool is_first = grad.version == 0 || (plan_sums_each(b->params) && grad.version % b->n_adds[t->param] == 0);
    if (!is_first) {
      b->instrs.items[b->instrs.n - 1].accumulate |= 1u << i;
      operand_change(b, LADE_ROLE_OUT + i, buffer, grad, value_bytes(b, op->out[i]));
    } else {
      grad.version++;
      operand_make(b, LADE_ROLE_OUT + i, buffer, grad, value_bytes(b, op->out[i]));
    }
    b->grad_versions[t->param]++;
    return;
  }
  int at = range_at(b, value, pos);
  int32_t taken = alias_buffer(b, pos, i);
  if (taken >= 0 && b->on_device[at] < 0) {
    b->on_device[at] = taken;
    enum lade_owner owner = range_owner(b, &b->live->ranges[at]);
    if (owner == LADE_OWNER_SAVED)
      b->buffers.items[taken].owner = owner;
  }
  operand_make(b, LADE_ROLE_OUT + i, value_buffer(b, op->out[i], value, pos), value_now(b, value), t->bytes);
}

/* Begin the collective of a graph's op over all ranks of its axis. */
static struct lade_instr *collective_op_begin(struct builder *b, const struct lade_op *op)
{
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_COLLECTIVE, lade_axis_queue(op->attr.axis));
  instr->collective = op->kind == LADE_OP_ALL_REDUCE   ? LADE_ALL_REDUCE
                      : op->kind == LADE_OP_ALL_GATHER ? LADE_ALL_GATHER
                                                       : LADE_REDUCE_SCATTER;
  instr->axis = (uint8_t)op->attr.axis;
  return instr;
}

/* Begin the instruction of an op: a kernel, a collective, or a transfer to or from a neighbouring stage. */
static struct lade_instr *op_begin(struct builder *b, const struct lade_op *op)
{
  if (lade_op_is_collective(op->kind))
    return collective_op_begin(b, op);
  if (op->kind != LADE_OP_SEND && op->kind != LADE_OP_RECV)
    return instr_begin(b, LADE_INSTR_COMPUTE, LADE_Q_COMPUTE);
  bool is_send = op->kind == LADE_OP_SEND;
  struct lade_instr *instr = instr_begin(b, is_send ? LADE_INSTR_SEND : LADE_INSTR_RECV,
                                         is_send ? LADE_Q_SEND : LADE_Q_RECV);
  instr->axis = LADE_AXIS_PP;
  instr->peer = op->attr.peer;
  return instr;
}

/* Read @bytes of a value to be sent: all, or in the scattered form this rank's rows. */
static void sent_read(struct builder *b, int32_t buffer, struct lade_value value, uint64_t bytes)
{
  const int n_parts = lade_share_n_sent_parts(b->graph), part = n_parts > 1 ? b->graph->share.tp_rank : 0;
  const uint64_t part_bytes = bytes / (uint64_t)n_parts;
  operand_read_at(b, 0, (struct value_place){buffer, (uint64_t)part * part_bytes}, value, part_bytes);
}

static void step_emit(struct builder *b, int pos)
{
  const struct plan_step *step = &b->steps[pos];
  const int form = plan_op_form(b->params, step->op);
  const struct lade_op *op = &b->graph->ops[form];
  struct lade_instr *instr = op_begin(b, op);
  instr->op = step->op;
  instr->microbatch = step->microbatch;
  instr->is_recompute = step->is_recompute;
  instr->predicted_ns = b->params->prices->op_ns[form];
  for (int i = 0; i < op->n_in; i++) {
    if (op->in[i] < 0)
      continue;
    int value = plan_value_number(b->graph, op->in[i], step->microbatch);
    const int32_t buffer = value_buffer(b, op->in[i], value, pos);
    if (op->kind == LADE_OP_SEND)
      sent_read(b, buffer, value_now(b, value), value_bytes(b, op->in[i]));
    else
      operand_read(b, i, buffer, value_now(b, value), value_bytes(b, op->in[i]));
  }
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] >= 0)
      output_add(b, pos, i);
  }
  if (op->workspace_bytes)
    operand_make(b, LADE_ROLE_SCRATCH, buffer_make(b, LADE_DEVICE, LADE_OWNER_WORKSPACE, op->workspace_bytes, false),
                 (struct lade_value){-1, 0, 0}, op->workspace_bytes);
}

/* ---- whole program ---- */

/* Count the ops that add to the gradient of each parameter. */
static void additions_count(struct builder *b)
{
  for (const struct lade_op *op = b->graph->ops; op < b->graph->ops + b->graph->n_ops; op++) {
    for (int i = 0; i < op->n_out; i++) {
      const struct lade_tensor *out = op->out[i] < 0 ? NULL : &b->graph->tensors[op->out[i]];
      if (out && out->kind == LADE_TENSOR_GRAD)
        b->n_adds[out->param]++;
    }
  }
}

static int builder_init(struct builder *b)
{
  const struct lade_model_graph *graph = b->graph;
  size_t n_values = (size_t)b->live->n_values, n_params = (size_t)LADE_MAX(graph->n_params, 1);
  b->on_device = malloc(((size_t)b->live->n_ranges + 1) * sizeof(*b->on_device));
  b->step_instrs = malloc(((size_t)b->n_steps + 1) * sizeof(*b->step_instrs));
  b->now = malloc(n_values * sizeof(*b->now));
  b->elsewhere = malloc(n_values * sizeof(*b->elsewhere));
  b->part_buffers = calloc(n_params * LADE_N_PARTS, sizeof(*b->part_buffers));
  b->first_partials = calloc(n_params + 1, sizeof(*b->first_partials));
  b->n_adds = calloc(n_params, sizeof(*b->n_adds));
  b->block_versions = calloc(n_params, sizeof(*b->block_versions));
  b->block_buffers = malloc(n_params * sizeof(*b->block_buffers));
  b->away = malloc(n_params * sizeof(*b->away));
  b->due = calloc(n_params, sizeof(*b->due));
  b->grad_versions = calloc(n_params, sizeof(*b->grad_versions));
  b->is_sumsq_due = calloc(n_params, sizeof(*b->is_sumsq_due));
  b->is_rounded = calloc(n_params, sizeof(*b->is_rounded));
  if (!b->on_device || !b->step_instrs || !b->now || !b->elsewhere || !b->part_buffers || !b->first_partials ||
      !b->n_adds || !b->block_versions || !b->block_buffers || !b->away || !b->due || !b->grad_versions ||
      !b->is_sumsq_due || !b->is_rounded)
    return -ENOMEM;
  memset(b->on_device, -1, (size_t)b->live->n_ranges * sizeof(*b->on_device));
  memset(b->elsewhere, -1, n_values * sizeof(*b->elsewhere));
  for (size_t value = 0; value < n_values; value++)
    b->now[value] = (struct value_range){b->live->first_range[value], 0};
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    b->bucket_bytes[axis] = plan_bucket_bytes(b->params, (enum lade_axis)axis);
  b->group.last = -1;
  for (int param = 0; param < graph->n_params; param++)
    b->first_partials[param + 1] = b->first_partials[param] + lade_held_partials(graph, b->params->layout, param);
  memset(b->block_buffers, -1, n_params * sizeof(*b->block_buffers));
  memset(b->away, -1, n_params * sizeof(*b->away));
  additions_count(b);
  return b->params->residency->optimizer_in_backward && b->params->is_training ? backward_updates_order(b) : 0;
}

static void builder_finish(struct builder *b)
{
  free(b->on_device);
  free(b->step_instrs);
  free(b->now);
  free(b->elsewhere);
  free(b->part_buffers);
  free(b->first_partials);
  free(b->n_adds);
  free(b->block_versions);
  free(b->block_buffers);
  free(b->away);
  free(b->due);
  free(b->grad_versions);
  free(b->is_sumsq_due);
  free(b->is_rounded);
  free(b->backward_updates);
  LADE_ARRAY_FREE(&b->transfers);
  LADE_ARRAY_FREE(&b->incoming);
}

/*
 * Return the bytes for the sums of squares of whole blocks. A rank may hold fewer where padding or another rank's
 * elements end its blocks early. Ranks that share collectives must have the same plan, so the size is the same at all
 * of them.
 */
static uint64_t partials_bytes(const struct builder *b)
{
  int64_t n = 0;
  for (int param = 0; param < b->graph->n_params; param++)
    n += lade_div_up(lade_param_shard(b->graph, b->params->layout, param).n_padded, LADE_SUM_BLOCK);
  return (uint64_t)n * sizeof(double);
}

static void program_emit(struct builder *b)
{
  const struct lade_model_graph *graph = b->graph;
  residents_make(b);
  transfers_collect(b);
  if (b->params->is_training) {
    b->partials = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, partials_bytes(b), false);
    b->clip_result = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, sizeof(struct lade_clip_result), false);
  }
  int next = 0, next_update = 0, next_reduction = 0;
  for (int slot = 0; slot <= b->n_steps && !b->status; slot++) {
    const int first_reduction = next_reduction, first = next;
    while (next_reduction < b->live->n_reductions && b->live->reductions[next_reduction].slot == slot)
      next_reduction++;
    if (next_reduction > first_reduction)
      grads_emit(b, b->live->reductions + first_reduction, next_reduction - first_reduction);
    while (next < b->transfers.n && b->transfers.items[next].slot == slot)
      next++;
    transfers_emit(b, b->transfers.items + first, next - first);
    const struct backward_update *update = b->backward_updates;
    for (; update && next_update < graph->n_params && update[next_update].slot == slot; next_update++)
      backward_update_emit(b, update[next_update].param);
    if (slot < b->n_steps) {
      b->step_instrs[slot] = b->instrs.n;
      step_emit(b, slot);
    }
  }
  if (b->params->is_training && !b->status)
    end_emit(b);
}

/* Extend lifetimes over groups: a group runs at once, so buffers of any member live through all of it. */
static void groups_hold(struct builder *b)
{
  if (b->group.last < 0)
    return; /* no collective of a parameter: no group */
  for (int at = 0, end; at < b->instrs.n; at = end) {
    for (end = at + 1; end < b->instrs.n && b->instrs.items[end].is_grouped; end++)
      ;
    const int operands_end = end < b->instrs.n ? b->instrs.items[end].first_operand : b->operands.n;
    for (int i = b->instrs.items[at].first_operand; i < operands_end; i++) {
      struct lade_buffer *buffer = &b->buffers.items[b->operands.items[i].buffer];
      buffer->first = LADE_MIN(buffer->first, at);
      buffer->last = LADE_MAX(buffer->last, end - 1);
    }
  }
}

/* Begin the lifetimes of received values where their memory is reserved. */
static void receives_hold(struct builder *b)
{
  for (int i = 0; i < b->live->n_ranges; i++) {
    const struct live_range *it = &b->live->ranges[i];
    if (it->held_pos < it->first_pos)
      b->buffers.items[b->on_device[i]].first = b->step_instrs[it->held_pos];
  }
}

/* Let residents live for the whole list; a buffer that no instruction names (an unused part) costs its bytes too. */
static void lifetimes_close(struct builder *b)
{
  for (int i = 0; i < b->buffers.n; i++) {
    struct lade_buffer *buffer = &b->buffers.items[i];
    if (buffer->is_resident) {
      buffer->first = 0;
      buffer->last = b->instrs.n - 1;
    }
    LADE_ASSERT(buffer->last >= buffer->first);
  }
}

static int program_emit_all(const struct lade_build_params *params, const struct plan_step *steps, int n_steps,
                            const int32_t *update_ends, const struct live_ranges *live, struct lade_program *program)
{
  struct builder b = {.params = params, .graph = params->graph, .steps = steps, .n_steps = n_steps,
                      .update_ends = update_ends, .live = live, .stream = -1,
                      .instrs = {program->instrs, 0, program->instrs_capacity},
                      .operands = {program->operands, 0, program->operands_capacity},
                      .buffers = {program->buffers, 0, program->buffers_capacity}};
  LADE_ASSERT(params->n_microbatches > 0 && params->n_microbatches <= LADE_MICROBATCHES_MAX);
  b.status = builder_init(&b);
  if (!b.status)
    program_emit(&b);
  if (!b.status) {
    groups_hold(&b);
    receives_hold(&b);
    lifetimes_close(&b);
  }
  *program = (struct lade_program){
      .graph = params->graph, .layout = params->layout, .n_microbatches = params->n_microbatches,
      .is_training = params->is_training, .is_unified = params->is_unified,
      .optimizer_in_backward = params->residency->optimizer_in_backward && params->is_training,
      .streaming = params->prices->streaming,
      .step_on_host = b.step_host, .step_on_device = b.step_device,
      .instrs = b.instrs.items, .n_instrs = b.instrs.n, .instrs_capacity = b.instrs.capacity,
      .operands = b.operands.items, .n_operands = b.operands.n, .operands_capacity = b.operands.capacity,
      .buffers = b.buffers.items, .n_buffers = b.buffers.n, .buffers_capacity = b.buffers.capacity};
  builder_finish(&b);
  return b.status;
}

int lade_program_emit_over(const struct lade_build_params *params, struct lade_program *program)
{
  struct plan_step *steps = NULL;
  struct live_ranges live = {0};
  int n_steps = 0;
  int status = plan_sequence(params, &steps, &n_steps);
  if (status)
    return status;
  int32_t *update_ends = plan_update_ends(params, steps, n_steps);
  status = update_ends ? live_ranges_create(params, steps, n_steps, update_ends, &live) : -ENOMEM;
  if (status) {
    free(update_ends);
    free(steps);
    return status;
  }
  status = program_emit_all(params, steps, n_steps, update_ends, &live, program);
  live_ranges_finish(&live);
  free(update_ends);
  free(steps);
  if (!status)
    status = plan_peaks_find(program, program->live_peak_bytes, program->live_peak_at);
  return status;
}

int lade_program_emit(const struct lade_build_params *params, struct lade_program **ret_program)
{
  struct lade_program *program = calloc(1, sizeof(*program));
  if (!program)
    return -ENOMEM;
  int status = lade_program_emit_over(params, program);
  if (status) {
    lade_program_destroy(program);
    return status;
  }
  *ret_program = program;
  return 0;
}

int lade_program_build(const struct lade_build_params *params, struct lade_program **ret_program)
{
  struct lade_program *program = NULL;
  int status = lade_program_emit(params, &program);
  if (status)
    return status;
  status = lade_program_place(params, program);
  if (status) {
    lade_program_destroy(program);
    return status;
  }
  LADE_ASSERT(!LADE_CHECK_FULL || program_is_valid(program));
  *ret_program = program;
  return 0;
}
