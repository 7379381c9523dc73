/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emission: steps and intervals become instructions over buffers.
 *
 * The list is written slot by slot. A slot holds the sums over ranks that lives.c placed there, the copies out, then
 * the copies in, then the step itself, so that memory is given back before it is asked for. A buffer is made where an
 * interval begins and its lifetime grows with every instruction that names it; an op that may work in place takes over
 * its input's buffer when that input's interval ends there and nobody copies it out. After the last
 * gradient of a parameter come its sums of squares, while it is still on the device; after all steps the
 * clip verdict and the updates, each where its parameter is at home. Early, a parameter is updated as soon as
 * no step adds to its gradient or reads it any more, after a verdict over its gradient alone: its gradient's memory
 * serves the rest of the backward half, and the updates at other homes run beside it.
 *
 * Buffers that live across steps (parameters and their state at home, the step's inputs and results on the
 * host) are made first, in an order that depends on the graph and the homes alone: so a training and
 * an evaluation program over one arena agree on them by number.
 *
 * Errors of memory stick in the builder and are looked at once, at the end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/build_internal.h"

int32_t buffer_make(struct builder *b, enum lade_space space, enum lade_owner owner, uint64_t bytes, bool is_resident)
{
  struct lade_buffer buffer = {
      .space = space, .owner = owner, .first = INT32_MAX, .last = -1, .is_resident = is_resident};
  buffer.bytes = plan_buffer_bytes(space, bytes);
  if (!LADE_PUSH(&b->buffers, buffer)) {
    b->status = -ENOMEM;
    return 0;
  }
  return b->buffers.n - 1;
}

struct lade_instr *instr_begin(struct builder *b, enum lade_instr_kind kind, enum lade_queue_id queue)
{
  struct lade_instr instr = {.kind = (uint8_t)kind, .queue = (uint8_t)queue, .op = -1, .param = -1};
  instr.first_operand = b->operands.n;
  for (int q = 0; q < LADE_N_QUEUES; q++)
    instr.waits[q] = -1;
  if (!LADE_PUSH(&b->instrs, instr)) {
    b->status = -ENOMEM;
    return &b->spare;
  }
  return &b->instrs.items[b->instrs.n - 1];
}

void operand_add(struct builder *b, int role, int32_t buffer, enum lade_access access, struct lade_value reads,
                 struct lade_value makes, uint64_t offset, uint64_t bytes)
{
  struct lade_operand operand = {buffer, (uint8_t)access, (uint8_t)role, offset, bytes, reads, makes};
  if (b->status || !LADE_PUSH(&b->operands, operand)) {
    b->status = -ENOMEM;
    return;
  }
  int32_t at = b->instrs.n - 1;
  struct lade_buffer *what = &b->buffers.items[buffer];
  what->first = LADE_MIN(what->first, at);
  what->last = LADE_MAX(what->last, at);
  b->instrs.items[at].n_operands++;
}

void operand_read(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes)
{
  operand_add(b, role, buffer, LADE_READS, value, (struct lade_value){-1, 0, 0}, 0, bytes);
}

void operand_make(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes)
{
  operand_add(b, role, buffer, LADE_MAKES, (struct lade_value){-1, 0, 0}, value, 0, bytes);
}

void operand_change(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes)
{
  struct lade_value next = value;
  next.version++;
  operand_add(b, role, buffer, LADE_READS_AND_MAKES, value, next, 0, bytes);
}

/* ---- collectives of parameters ---- */

/*
 * Does the collective that has just begun belong to the bundle that the instruction before it ended? Of one unit, or
 * all together within a bucket: longer ones would keep what waits for the first from going on.
 */
static bool is_bundled(const struct builder *b, const struct lade_instr *instr, uint64_t bytes)
{
  if (b->bundle.last < 0 || b->bundle.last != b->instrs.n - 2 ||
      b->bundle.last - b->bundle.first + 1 == LADE_COMM_LIST_MOST)
    return false;
  const struct lade_instr *first = &b->instrs.items[b->bundle.first];
  const struct lade_param *params = b->graph->params;
  bool is_one_unit =
      b->graph->tensors[params[first->param].tensor].unit == b->graph->tensors[params[instr->param].tensor].unit;
  return first->collective == instr->collective && first->axis == instr->axis &&
         (is_one_unit || b->bundle.bytes + bytes <= b->bucket_bytes[instr->axis]);
}

void collective_begin(struct builder *b, enum lade_collective_kind kind, enum lade_axis axis, int param,
                      int microbatch, uint64_t bytes)
{
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_COLLECTIVE, lade_axis_queue(axis));
  instr->collective = (uint8_t)kind;
  instr->axis = (uint8_t)axis;
  instr->param = param;
  instr->microbatch = (int16_t)microbatch;
  instr->is_joined = param >= 0 && !b->status && is_bundled(b, instr, bytes);
  if (param < 0 || b->status) {
    instr->predicted_ns = plan_collective_ns(b->params, kind, axis, bytes);
    return;
  }
  const int32_t at = b->instrs.n - 1;
  if (!instr->is_joined)
    b->bundle.first = at;
  b->bundle.bytes = bytes + (instr->is_joined ? b->bundle.bytes : 0);
  b->bundle.last = at;
  b->instrs.items[b->bundle.first].predicted_ns += instr->is_joined
                                                       ? plan_joined_ns(b->params, kind, axis, bytes)
                                                       : plan_collective_ns(b->params, kind, axis, bytes);
}

/* ---- values ---- */

/* Bytes of a value of this rank. */
uint64_t value_bytes(const struct builder *b, int tensor)
{
  return lade_held_bytes(b->graph, b->params->layout, tensor);
}

/* The value as it is now: gradients have had so many additions. */
struct lade_value value_now(const struct builder *b, int value)
{
  const int n = b->graph->n_tensors, tensor = value % n;
  const struct lade_tensor *what = &b->graph->tensors[tensor];
  return (struct lade_value){tensor, (int16_t)(value / n),
                             what->kind == LADE_TENSOR_GRAD ? b->grad_versions[what->param] : (int16_t)0};
}

static enum lade_owner interval_owner(const struct builder *b, const struct plan_interval *it)
{
  const struct lade_tensor *what = &b->graph->tensors[it->value % b->graph->n_tensors];
  if (what->kind == LADE_TENSOR_PARAM)
    return it->source == PLAN_GATHERED ? LADE_OWNER_COMM : LADE_OWNER_PARAMETERS;
  if (what->kind == LADE_TENSOR_GRAD)
    return plan_sums_each(b->params) ? LADE_OWNER_COMM : LADE_OWNER_GRADIENTS;
  bool is_saved = !b->steps[it->first_pos].is_backward && b->steps[LADE_MIN(it->last_pos, b->n_steps - 1)].is_backward;
  return is_saved ? LADE_OWNER_SAVED : LADE_OWNER_TRANSIENT;
}

/* The interval of @value at step @pos; uses come in order, so it is the current one or the next. */
static int interval_at(struct builder *b, int value, int pos)
{
  int at = b->now[value];
  while (at + 1 < b->lives->first_interval[value + 1] && b->lives->intervals[at + 1].first_pos <= pos)
    at++;
  b->now[value] = at;
  return at;
}

/* The device buffer of @value for a step at @pos; made now if this step makes the value. */
static int32_t value_buffer(struct builder *b, int value, int pos)
{
  const struct lade_tensor *what = &b->graph->tensors[value % b->graph->n_tensors];
  if (what->kind == LADE_TENSOR_PARAM && !plan_is_gathered(b->params, what->param) &&
      b->params->residency->weight_homes[what->param] == LADE_HOME_DEVICE)
    return b->elsewhere[value];
  int at = interval_at(b, value, pos);
  if (b->on_device[at] < 0)
    b->on_device[at] = buffer_make(b, LADE_DEVICE, interval_owner(b, &b->lives->intervals[at]),
                                   value_bytes(b, value % b->graph->n_tensors), false);
  return b->on_device[at];
}

/* ---- residents ---- */

static void param_residents_make(struct builder *b, int param)
{
  const enum lade_space home = plan_home_space(b->params->residency->homes[param]);
  const enum lade_space weight_home = plan_home_space(b->params->residency->weight_homes[param]);
  int weight = b->graph->params[param].tensor, block = lade_value_block(b->graph, param, LADE_BLOCK_WEIGHT);
  bool is_gathered = plan_is_gathered(b->params, param);
  b->elsewhere[weight] =
      buffer_make(b, weight_home, LADE_OWNER_PARAMETERS, value_bytes(b, is_gathered ? block : weight), true);
  for (int part = 0; part < LADE_N_PARTS; part++) {
    int tensor = lade_value_part(b->graph, param, (enum lade_part)part);
    b->part_buffers[param * LADE_N_PARTS + part] =
        tensor < 0 ? -1 : buffer_make(b, home, LADE_OWNER_OPTIMIZER, value_bytes(b, tensor), true);
  }
}

static void residents_make(struct builder *b)
{
  for (int param = 0; param < b->graph->n_params; param++)
    param_residents_make(b, param);
  b->verdict_host = buffer_make(b, LADE_HOST, LADE_OWNER_TRANSIENT, sizeof(struct lade_verdict), true);
  if (!b->params->is_unified) {
    b->step_host = buffer_make(b, LADE_HOST, LADE_OWNER_TRANSIENT, sizeof(struct lade_step), true);
    b->step_device = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, sizeof(struct lade_step), true);
  }
  const int shared[] = {b->graph->tokens, b->graph->targets, b->graph->loss};
  for (int m = 0; m < b->params->n_microbatches; m++) {
    for (size_t i = 0; i < LADE_COUNT(shared); i++) {
      if (shared[i] < 0)
        continue; /* another stage's */
      int value = plan_value_number(b->graph, shared[i], m);
      uint64_t bytes = b->graph->tensors[shared[i]].bytes;
      b->elsewhere[value] = buffer_make(b, LADE_HOST, LADE_OWNER_TRANSIENT, bytes, true);
    }
  }
}

/* ---- transfers ---- */

void move_emit(struct builder *b, struct place src, struct lade_value reads, struct place dst, struct lade_value makes)
{
  if (b->status)
    return; /* memory is out: a buffer may be missing */
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
  const struct lade_value nothing = {-1, 0, 0};
  operand_add(b, LADE_ROLE_SRC, src.buffer, LADE_READS, reads, nothing, src.offset, bytes);
  operand_add(b, LADE_ROLE_DST, dst.buffer, LADE_MAKES, nothing, makes, dst.offset, bytes);
}

void transfer_emit(struct builder *b, struct place src, struct place dst, struct lade_value value)
{
  if (b->status)
    return; /* the same */
  enum lade_space from = b->buffers.items[src.buffer].space, to = b->buffers.items[dst.buffer].space;
  bool is_store = from == LADE_STORE || to == LADE_STORE;
  if (is_store && !b->params->is_unified && (from == LADE_DEVICE || to == LADE_DEVICE)) {
    enum lade_owner owner = b->buffers.items[src.buffer].owner;
    struct place staging = {buffer_make(b, LADE_HOST, owner, value_bytes(b, value.tensor), false), 0};
    move_emit(b, src, value, staging, value);
    src = staging;
  }
  move_emit(b, src, value, dst, value);
}

static void interval_leave(struct builder *b, int at)
{
  const struct plan_interval *it = &b->lives->intervals[at];
  const struct lade_tensor *what = &b->graph->tensors[it->value % b->graph->n_tensors];
  if (what->kind == LADE_TENSOR_GRAD)
    norm_settle(b, what->param);
  const bool is_rounded = what->kind == LADE_TENSOR_GRAD && b->is_rounded[what->param];
  struct lade_value value = is_rounded ? grad_now(b, what->param) : value_now(b, it->value);
  struct place src = is_rounded ? grad_place(b, what->param) : (struct place){b->on_device[at], 0};
  if (what->kind == LADE_TENSOR_LOSS)
    value = loss_reduce_emit(b, b->on_device[at], value);
  else
    b->elsewhere[it->value] = buffer_make(b, (enum lade_space)it->target, interval_owner(b, it),
                                          value_bytes(b, value.tensor), false);
  transfer_emit(b, src, (struct place){b->elsewhere[it->value], 0}, value);
}

/* Of what is gathered, this rank's block. */
static void interval_fetch(struct builder *b, struct transfer *transfer)
{
  const int at = transfer->interval;
  const struct plan_interval *it = &b->lives->intervals[at];
  const struct lade_tensor *what = &b->graph->tensors[it->value % b->graph->n_tensors];
  b->on_device[at] = buffer_make(b, LADE_DEVICE, interval_owner(b, it),
                                 value_bytes(b, it->value % b->graph->n_tensors), false);
  if (it->source == PLAN_GATHERED)
    transfer->block = weight_block_emit(b, what->param, b->on_device[at]);
  else
    transfer_emit(b, (struct place){b->elsewhere[it->value], 0}, (struct place){b->on_device[at], 0},
                  value_now(b, it->value));
}

static void interval_gather(struct builder *b, const struct transfer *transfer)
{
  const struct plan_interval *it = &b->lives->intervals[transfer->interval];
  if (it->source == PLAN_GATHERED)
    weight_gather_emit(b, b->graph->tensors[it->value % b->graph->n_tensors].param, transfer->block,
                       b->on_device[transfer->interval]);
}

/* Copies of one slot; gathers stand together behind them, so that they can be bundled. */
static void transfers_emit(struct builder *b, struct transfer *transfers, int n)
{
  for (int i = 0; i < n && !b->status; i++) {
    if (transfers[i].is_in)
      interval_fetch(b, &transfers[i]);
    else
      interval_leave(b, transfers[i].interval);
  }
  for (int i = 0; i < n && !b->status; i++) {
    if (transfers[i].is_in)
      interval_gather(b, &transfers[i]);
  }
}

/* Of one slot: copies out before copies in; then in the order of need. */
static int transfer_compare(const void *x, const void *y)
{
  const struct transfer *a = x, *b = y;
  if (a->is_in != b->is_in)
    return a->is_in ? 1 : -1;
  if (a->need != b->need)
    return a->need < b->need ? -1 : 1;
  return (a->interval > b->interval) - (a->interval < b->interval);
}

static void transfer_push(struct builder *b, struct transfer transfer)
{
  LADE_ASSERT(transfer.slot <= b->n_steps);
  if (transfer.slot >= 0 && !LADE_PUSH(&b->transfers, transfer))
    b->status = -ENOMEM;
}

/* By slot: counted into place, so that only those of one slot are compared, which are few. */
static void transfers_sort(struct builder *b)
{
  const int n = b->transfers.n;
  int32_t *firsts = calloc((size_t)b->n_steps + 2, sizeof(*firsts)); /* by slot */
  struct transfer *sorted = malloc(((size_t)n + 1) * sizeof(*sorted));
  if (!firsts || !sorted) {
    free(firsts);
    free(sorted);
    b->status = -ENOMEM;
    return;
  }
  for (int i = 0; i < n; i++)
    firsts[b->transfers.items[i].slot]++;
  for (int slot = 0; slot <= b->n_steps; slot++)
    firsts[slot + 1] += firsts[slot]; /* where the slot ends, until all of it are placed */
  for (int i = 0; i < n; i++)
    sorted[--firsts[b->transfers.items[i].slot]] = b->transfers.items[i];
  for (int slot = 0; slot <= b->n_steps; slot++)
    qsort(sorted + firsts[slot], (size_t)(firsts[slot + 1] - firsts[slot]), sizeof(*sorted), transfer_compare);
  free(firsts);
  free(b->transfers.items);
  b->transfers.items = sorted;
  b->transfers.capacity = n;
}

static void transfers_collect(struct builder *b)
{
  for (int i = 0; i < b->lives->n_intervals; i++) {
    const struct plan_interval *it = &b->lives->intervals[i];
    transfer_push(b, (struct transfer){.slot = it->fetch_slot, .interval = i, .need = it->first_pos, .is_in = true});
    transfer_push(b, (struct transfer){.slot = it->leave_slot, .interval = i, .need = it->last_pos});
  }
  if (!b->status)
    transfers_sort(b);
}

/* ---- steps ---- */

/* May output @i of the step at @pos live in the memory of the input that its alias names? */
static int32_t alias_buffer(struct builder *b, int pos, int i)
{
  const struct lade_op *op = &b->graph->ops[b->steps[pos].op];
  if (op->alias[i] < 0 || op->in[op->alias[i]] < 0)
    return -1;
  int tensor = op->in[op->alias[i]];
  if (b->graph->tensors[tensor].kind != LADE_TENSOR_ACTIVATION)
    return -1;
  int from = interval_at(b, plan_value_number(b->graph, tensor, b->steps[pos].microbatch), pos);
  const struct plan_interval *dying = &b->lives->intervals[from];
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
  const struct lade_tensor *what = &b->graph->tensors[op->out[i]];
  int value = plan_value_number(b->graph, op->out[i], step->microbatch);
  if (what->kind == LADE_TENSOR_GRAD) {
    int32_t buffer = value_buffer(b, value, pos);
    struct lade_value grad = value_now(b, value);
    bool is_first = grad.version == 0 || (plan_sums_each(b->params) && grad.version % b->n_adds[what->param] == 0);
    if (!is_first) {
      b->instrs.items[b->instrs.n - 1].accumulate |= 1u << i;
      operand_change(b, LADE_ROLE_OUT + i, buffer, grad, value_bytes(b, op->out[i]));
    } else {
      grad.version++;
      operand_make(b, LADE_ROLE_OUT + i, buffer, grad, value_bytes(b, op->out[i]));
    }
    b->grad_versions[what->param]++;
    return;
  }
  int at = interval_at(b, value, pos);
  int32_t taken = alias_buffer(b, pos, i);
  if (taken >= 0 && b->on_device[at] < 0) {
    b->on_device[at] = taken;
    enum lade_owner owner = interval_owner(b, &b->lives->intervals[at]);
    if (owner == LADE_OWNER_SAVED)
      b->buffers.items[taken].owner = owner;
  }
  operand_make(b, LADE_ROLE_OUT + i, value_buffer(b, value, pos), value_now(b, value), what->bytes);
}

/* What all ranks of the op's axis do together. */
static struct lade_instr *collective_op_begin(struct builder *b, const struct lade_op *op)
{
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_COLLECTIVE, lade_axis_queue(op->attr.axis));
  instr->collective = op->kind == LADE_OP_ALL_REDUCE   ? LADE_ALL_REDUCE
                      : op->kind == LADE_OP_ALL_GATHER ? LADE_ALL_GATHER
                                                       : LADE_REDUCE_SCATTER;
  instr->axis = (uint8_t)op->attr.axis;
  return instr;
}

/* The instruction of an op: a kernel's, a collective, or a transfer to or from a neighbouring stage. */
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

static void step_emit(struct builder *b, int pos)
{
  const struct plan_step *step = &b->steps[pos];
  const struct lade_op *op = &b->graph->ops[step->op];
  struct lade_instr *instr = op_begin(b, op);
  instr->op = step->op;
  instr->microbatch = step->microbatch;
  instr->is_recompute = step->is_recompute;
  instr->predicted_ns = b->params->prices->op_ns[step->op];
  for (int i = 0; i < op->n_in; i++) {
    if (op->in[i] < 0)
      continue;
    int value = plan_value_number(b->graph, op->in[i], step->microbatch);
    operand_read(b, i, value_buffer(b, value, pos), value_now(b, value), value_bytes(b, op->in[i]));
  }
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] >= 0)
      output_add(b, pos, i);
  }
  if (op->workspace_bytes)
    operand_make(b, LADE_ROLE_SCRATCH, buffer_make(b, LADE_DEVICE, LADE_OWNER_WORKSPACE, op->workspace_bytes, false),
                 (struct lade_value){-1, 0, 0}, op->workspace_bytes);
}

/* ---- the whole ---- */

static int builder_init(struct builder *b)
{
  const struct lade_graph *graph = b->graph;
  size_t n_values = (size_t)b->lives->n_values, n_params = (size_t)LADE_MAX(graph->n_params, 1);
  b->on_device = malloc(((size_t)b->lives->n_intervals + 1) * sizeof(*b->on_device));
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
  b->is_norm_due = calloc(n_params, sizeof(*b->is_norm_due));
  b->is_rounded = calloc(n_params, sizeof(*b->is_rounded));
  if (!b->on_device || !b->now || !b->elsewhere || !b->part_buffers || !b->first_partials || !b->n_adds ||
      !b->block_versions || !b->block_buffers || !b->away || !b->due || !b->grad_versions || !b->is_norm_due ||
      !b->is_rounded)
    return -ENOMEM;
  memset(b->on_device, -1, (size_t)b->lives->n_intervals * sizeof(*b->on_device));
  memset(b->elsewhere, -1, n_values * sizeof(*b->elsewhere));
  memcpy(b->now, b->lives->first_interval, n_values * sizeof(*b->now));
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    b->bucket_bytes[axis] = plan_bucket_bytes(b->params, (enum lade_axis)axis);
  b->bundle.last = -1;
  for (int param = 0; param < graph->n_params; param++)
    b->first_partials[param + 1] = b->first_partials[param] + lade_held_partials(graph, b->params->layout, param);
  memset(b->block_buffers, -1, n_params * sizeof(*b->block_buffers));
  memset(b->away, -1, n_params * sizeof(*b->away));
  for (int i = 0; i < graph->n_ops * LADE_OP_MAX_OUT; i++) {
    const struct lade_op *op = &graph->ops[i / LADE_OP_MAX_OUT];
    int tensor = i % LADE_OP_MAX_OUT < op->n_out ? op->out[i % LADE_OP_MAX_OUT] : -1;
    if (tensor >= 0 && graph->tensors[tensor].kind == LADE_TENSOR_GRAD)
      b->n_adds[graph->tensors[tensor].param]++;
  }
  return b->params->residency->is_early && b->params->is_training ? early_order(b) : 0;
}

static void builder_finish(struct builder *b)
{
  free(b->on_device);
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
  free(b->is_norm_due);
  free(b->is_rounded);
  free(b->early);
  LADE_ARRAY_FREE(&b->transfers);
  LADE_ARRAY_FREE(&b->incoming);
}

/*
 * Bytes for the sums of squares of whole blocks. A rank may have fewer, where padding or copies of what others own end
 * its blocks early; but ranks that share collectives must have the same plan, so every size is the same at all of them.
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
  const struct lade_graph *graph = b->graph;
  residents_make(b);
  transfers_collect(b);
  if (b->params->is_training) {
    b->partials = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, partials_bytes(b), false);
    b->verdict = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, sizeof(struct lade_verdict), false);
  }
  int next = 0, next_early = 0, next_handing = 0;
  for (int slot = 0; slot <= b->n_steps && !b->status; slot++) {
    const int first_handing = next_handing, first = next;
    while (next_handing < b->lives->n_handings && b->lives->handings[next_handing].slot == slot)
      next_handing++;
    if (next_handing > first_handing)
      grads_emit(b, b->lives->handings + first_handing, next_handing - first_handing);
    while (next < b->transfers.n && b->transfers.items[next].slot == slot)
      next++;
    transfers_emit(b, b->transfers.items + first, next - first);
    for (; b->early && next_early < graph->n_params && b->early[next_early].slot == slot; next_early++)
      early_emit(b, b->early[next_early].param);
    if (slot < b->n_steps)
      step_emit(b, slot);
  }
  if (b->params->is_training && !b->status)
    end_emit(b);
}

/* A bundle runs at once: what any of it touches lives through all of it. */
static void bundles_hold(struct builder *b)
{
  for (int at = 0, end; at < b->instrs.n; at = end) {
    for (end = at + 1; end < b->instrs.n && b->instrs.items[end].is_joined; end++)
      ;
    const int operands_end = end < b->instrs.n ? b->instrs.items[end].first_operand : b->operands.n;
    for (int i = b->instrs.items[at].first_operand; i < operands_end; i++) {
      struct lade_buffer *buffer = &b->buffers.items[b->operands.items[i].buffer];
      buffer->first = LADE_MIN(buffer->first, at);
      buffer->last = LADE_MAX(buffer->last, end - 1);
    }
  }
}

/* Residents live for the whole list; a buffer that nothing names (an unused part) costs its bytes all the same. */
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
                            const int32_t *update_ends, const struct plan_lives *lives, struct lade_program *program)
{
  struct builder b = {.params = params, .graph = params->graph, .steps = steps, .n_steps = n_steps,
                      .update_ends = update_ends, .lives = lives, .stream = -1,
                      .instrs = {program->instrs, 0, program->instrs_capacity},
                      .operands = {program->operands, 0, program->operands_capacity},
                      .buffers = {program->buffers, 0, program->buffers_capacity}};
  LADE_ASSERT(params->n_microbatches > 0 && params->n_microbatches <= LADE_MICROBATCHES_MAX);
  b.status = builder_init(&b);
  if (!b.status)
    program_emit(&b);
  if (!b.status) {
    bundles_hold(&b);
    lifetimes_close(&b);
  }
  *program = (struct lade_program){
      .graph = params->graph, .layout = params->layout, .n_microbatches = params->n_microbatches,
      .is_training = params->is_training, .is_unified = params->is_unified,
      .is_early = params->residency->is_early && params->is_training, .streaming = params->prices->streaming,
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
  struct plan_lives lives = {0};
  int n_steps = 0;
  int status = plan_sequence(params, &steps, &n_steps);
  if (status)
    return status;
  int32_t *update_ends = plan_update_ends(params, steps, n_steps);
  status = update_ends ? plan_lives_create(params, steps, n_steps, update_ends, &lives) : -ENOMEM;
  if (status) {
    free(update_ends);
    free(steps);
    return status;
  }
  status = program_emit_all(params, steps, n_steps, update_ends, &lives, program);
  plan_lives_finish(&lives);
  free(update_ends);
  free(steps);
  for (int space = 0; space < LADE_N_SPACES && !status; space++) {
    int at;
    status = plan_peak_find(program, (enum lade_space)space, &at, &program->live_peak_bytes[space]);
  }
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
  *ret_program = program;
  return 0;
}
