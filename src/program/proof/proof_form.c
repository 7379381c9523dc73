/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof's first part: form. For each instruction the required operands are written down from the graph
 * (expectation), then compared with the actual ones, one by one. So the builder chooses only the buffer of an operand,
 * and later parts need no knowledge of kinds and ops.
 *
 * Versions of gradients are checked here too. Additions to a parameter's gradient are counted over microbatches, and
 * within each in the graph's order. The k-th one adds to version k and makes version k + 1. The walk shows that version
 * k is there. Together they make every sum complete, with the same order in every program. Linear in operands.
 */
#include <stdlib.h>

#include "program/proof/proof_expect.h"

#define ANYWHERE (ON(LADE_DEVICE) | ON(LADE_HOST) | ON(LADE_STORE))
#define UPDATE_STATE 2 /* operand of an update: the first part of the state, after weight and gradient */

/* Counts of the instructions checked so far. */
struct form_tally {
  bool *has_run;                 /* by microbatch and op */
  bool *is_normed, *is_clipped, *is_updated, *is_rounded; /* by parameter */
  int n_normed, n_clipped, n_updated, n_rounded, n_run, n_clips;
  const struct lade_operand *stream;   /* the scratch of the first streamed update, if updates share it */
  struct lade_stream_need stream_all; /* of all updates that share it */
};

/* ---- values ---- */

/* Return the clip result's version by which @param is updated. */
static int clip_version(const struct proof *proof, int param)
{
  return proof->program->optimizer_in_backward ? param + 1 : 0;
}

/* ---- expectations ---- */

/*
 * Return the op in the form that the instruction has: without its optional operand if none of that role is there. If
 * another instruction reads the value that this one then does not make, the walk finds no version of it.
 */
static const struct lade_op *form_find(const struct proof *proof, const struct lade_instr *instr)
{
  const struct lade_op *op = &proof->graph->ops[instr->op];
  int role = -1;
  for (int i = 0; op->lean >= 0 && i < op->n_in + op->n_out; i++) {
    if ((i < op->n_in ? op->in[i] : op->out[i - op->n_in]) == op->optional)
      role = i < op->n_in ? i : LADE_ROLE_OUT + i - op->n_in;
  }
  for (int i = 0; i < instr->n_operands; i++) {
    if (role < 0 || proof->program->operands[instr->first_operand + i].role == role)
      return op;
  }
  return op->lean < 0 ? op : &proof->graph->ops[op->lean];
}

static int op_expect(const struct proof *proof, int at, struct expectation *e)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  const struct lade_op *op = form_find(proof, instr);
  uint32_t accumulate = 0;
  for (int i = 0; i < op->n_in; i++) {
    if (op->in[i] < 0)
      continue;
    bool is_param = proof->graph->tensors[op->in[i]].kind == LADE_TENSOR_PARAM;
    expect_read(proof, e, i, ON(LADE_DEVICE), value_of(op->in[i], is_param ? 0 : instr->microbatch, 0));
    if (proof_sends_part(proof, instr))
      e->operands[e->n - 1].bytes /= (uint64_t)proof->graph->share.tp;
  }
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] < 0)
      continue;
    const struct lade_tensor *tensor = &proof->graph->tensors[op->out[i]];
    if (tensor->kind != LADE_TENSOR_GRAD) {
      expect_make(proof, e, LADE_ROLE_OUT + i, ON(LADE_DEVICE), value_of(op->out[i], instr->microbatch, 0));
      continue;
    }
    int k = instr->microbatch * proof->n_adds[tensor->param] + proof->rank[instr->op * LADE_OP_MAX_OUT + i];
    bool is_first = k == 0 || (sums_each(proof) && proof->rank[instr->op * LADE_OP_MAX_OUT + i] == 0);
    if (is_first) {
      expect_make(proof, e, LADE_ROLE_OUT + i, ON(LADE_DEVICE), value_of(op->out[i], 0, k + 1));
    } else {
      expect_change(proof, e, LADE_ROLE_OUT + i, ON(LADE_DEVICE), op->out[i], k);
      accumulate |= 1u << i;
    }
  }
  if (op->workspace_bytes)
    expect_scratch(e, ON(LADE_DEVICE), op->workspace_bytes);
  if (instr->accumulate != accumulate)
    return proof_fail(proof, at, -1, "accumulates into outputs 0x%x: expected 0x%x", (unsigned)instr->accumulate,
                      (unsigned)accumulate);
  return 0;
}

/* Expect the complete gradient of @param in its accumulated type: all of it, or this rank's block. */
static void sum_of_grad_expect(const struct proof *proof, int param, int role, unsigned spaces, struct expectation *e)
{
  const struct lade_model_graph *graph = proof->graph;
  if (is_sharded(proof))
    expect_read(proof, e, role, spaces,
                value_of(lade_value_block(graph, param, LADE_BLOCK_GRAD), 0, block_complete(proof, param)));
  else
    expect_read(proof, e, role, spaces, value_of(graph->params[param].grad, 0, grad_complete(proof, param)));
}

/* Expect the complete gradient in the type that the update takes. */
static void grad_expect(const struct proof *proof, int param, int role, unsigned spaces, struct expectation *e)
{
  if (rounds(proof))
    expect_read(proof, e, role, spaces, value_of(lade_value_block(proof->graph, param, LADE_BLOCK_ROUNDED), 0, 0));
  else
    sum_of_grad_expect(proof, param, role, spaces, e);
}

static void round_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const int rounded = lade_value_block(proof->graph, instr->param, LADE_BLOCK_ROUNDED);
  sum_of_grad_expect(proof, instr->param, LADE_ROLE_SRC, ON(LADE_DEVICE), e);
  expect_make(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE), value_of(rounded, 0, 0));
}

static void sumsq_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const struct lade_model_graph *graph = proof->graph;
  int64_t n_partials = proof->partial_at[instr->param + 1] - proof->partial_at[instr->param];
  grad_expect(proof, instr->param, LADE_ROLE_SRC, ON(LADE_DEVICE), e);
  expect_make(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE), value_of(lade_value_scalar(graph, LADE_SCALAR_PARTIALS), 0, 0));
  e->operands[1].bytes = (uint64_t)n_partials * sizeof(double);
}

static void clip_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const int clip_result = lade_value_scalar(proof->graph, LADE_SCALAR_CLIP_RESULT);
  sums_expect(proof, instr->param < 0 ? LADE_SUM_LEVELS : 0, e);
  if (instr->param >= 0)
    e->operands[0].bytes =
        (uint64_t)(proof->partial_at[instr->param + 1] - proof->partial_at[instr->param]) * sizeof(double);
  expect_make(proof, e, LADE_ROLE_DST, ON(LADE_DEVICE), value_of(clip_result, 0, instr->param + 1));
}

/* ---- updates and transfers ---- */

/* Return the space of operand @i; -1: the instruction has fewer operands. The number of operands is not checked yet. */
static int operand_space(const struct proof *proof, const struct lade_instr *instr, int i)
{
  if (i >= instr->n_operands)
    return -1;
  return (int)operand_buffer(proof, &proof->program->operands[instr->first_operand + i])->space;
}

/* Return the memory spaces that the drive and the host's cores reach. */
static unsigned drive_reach(const struct proof *proof)
{
  return proof->program->is_unified ? ON(LADE_HOST) | ON(LADE_DEVICE) : ON(LADE_HOST);
}

/* Return the space of the first part of the state that @instr updates; -1: it has none. */
static int state_space(const struct proof *proof, const struct lade_instr *instr)
{
  return operand_space(proof, instr, UPDATE_STATE);
}

/*
 * Expect the weight: the working copy, this rank's block of it in its tier, or the block of a copy that is whole on the
 * device.
 */
static void weight_expect(const struct proof *proof, const struct lade_instr *instr, unsigned spaces,
                          struct expectation *e)
{
  const int weight = proof->graph->params[instr->param].tensor;
  const int block = lade_value_block(proof->graph, instr->param, LADE_BLOCK_WEIGHT);
  bool is_whole = instr->n_operands && proof->program->operands[instr->first_operand].reads.tensor == weight;
  expect_change(proof, e, LADE_ROLE_WEIGHT, spaces, is_sharded(proof) ? block : weight, 0);
  if (is_sharded(proof) && is_whole) {
    e->operands[0].reads.tensor = weight;
    e->operands[0].spaces &= ON(LADE_DEVICE);
  }
}

/* Return the scratch needs of a streamed update. */
static struct lade_stream_need stream_need(const struct proof *proof, const struct lade_instr *instr)
{
  bool has_weight = operand_space(proof, instr, 0) == LADE_STORE;
  bool has_grad = operand_space(proof, instr, 1) == LADE_STORE;
  return lade_stream_need(&(struct lade_stream_params){proof->graph, proof->program->layout, proof->program->streaming,
                                                       instr->param, has_weight, has_grad});
}

/* Expect the scratch, its last operand. scratch_check tests a shared scratch when all updates are known. */
static void scratch_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  uint64_t bytes = lade_stream_scratch_bytes(stream_need(proof, instr), false);
  if (!proof->program->optimizer_in_backward && instr->n_operands)
    bytes = proof->program->operands[instr->first_operand + instr->n_operands - 1].bytes;
  expect_scratch(e, drive_reach(proof), bytes);
}

/*
 * Expect the operands of an update in the state tier. On the device all operands are on the device. On the host all are
 * there, but the weight may be in any memory that the processor reaches. A streamed update takes parts from the store,
 * weight and gradient from the store or such memory, and all else from such memory.
 */
static void update_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e)
{
  const struct lade_model_graph *graph = proof->graph;
  int tier = state_space(proof, instr);
  const unsigned memory = drive_reach(proof);
  unsigned in_tier = tier >= 0 ? ON(tier) : ANYWHERE;
  weight_expect(proof, instr, tier == LADE_DEVICE ? in_tier : in_tier | memory, e);
  grad_expect(proof, instr->param, LADE_ROLE_GRAD, instr->is_streamed ? memory | ON(LADE_STORE) : in_tier, e);
  for (int part = 0; part < LADE_N_PARTS; part++) {
    int tensor = lade_value_part(graph, instr->param, (enum lade_part)part);
    if (tensor >= 0)
      expect_change(proof, e, LADE_ROLE_RESIDUAL + part, in_tier, tensor, 0);
  }
  expect_read(proof, e, LADE_ROLE_CLIP_RESULT, instr->is_streamed ? memory : in_tier,
              value_of(lade_value_scalar(graph, LADE_SCALAR_CLIP_RESULT), 0, clip_version(proof, instr->param)));
  if (instr->is_streamed)
    scratch_expect(proof, instr, e);
}

/* Expect a copy, for its update, of this rank's block of a working copy that is whole on the device. */
static void block_out_expect(const struct proof *proof, struct lade_value whole, struct expectation *e)
{
  const int block = lade_value_block(proof->graph, proof->graph->tensors[whole.tensor].param, LADE_BLOCK_WEIGHT);
  expect_read(proof, e, LADE_ROLE_SRC, ON(LADE_DEVICE), value_of(whole.tensor, 0, 0));
  e->operands[0].bytes = proof_value_bytes(proof, block);
  expect_make(proof, e, LADE_ROLE_DST, ON(LADE_HOST), value_of(block, 0, 0));
}

/* Expect a transfer: it may move any value, and makes the value that it reads. */
static int transfer_expect(const struct proof *proof, int at, struct expectation *e)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  if (!instr->n_operands)
    return 0; /* too few operands: refused by their number */
  struct lade_value value = proof->program->operands[instr->first_operand].reads;
  if (!proof_value_exists(proof, value))
    return proof_fail(proof, at, 0, "moves no value that exists");
  if (value.microbatch != instr->microbatch)
    return proof_fail(proof, at, 0, "is of another microbatch than the instruction's, %d", instr->microbatch);
  if (proof_is_block_out(proof, instr)) {
    block_out_expect(proof, value, e);
    return 0;
  }
  unsigned memory = instr->kind == LADE_INSTR_COPY ? ON(LADE_DEVICE) | ON(LADE_HOST) : drive_reach(proof);
  unsigned from = instr->kind == LADE_INSTR_READ ? ON(LADE_STORE) : memory;
  unsigned to = instr->kind == LADE_INSTR_WRITE ? ON(LADE_STORE) : memory;
  expect_read(proof, e, LADE_ROLE_SRC, from, value);
  expect_make(proof, e, LADE_ROLE_DST, to, value);
  if (instr->kind == LADE_INSTR_COPY && operand_space(proof, instr, 0) == operand_space(proof, instr, 1))
    return proof_fail(proof, at, -1, "copies within one space");
  return 0;
}

/* ---- comparison ---- */

static int operand_compare(const struct proof *proof, int at, int i, const struct expected *expected)
{
  const struct lade_operand *operand = &proof->program->operands[proof->program->instrs[at].first_operand + i];
  char text[PROOF_VALUE_BYTES];
  if (operand->role != expected->role)
    return proof_fail(proof, at, i, "has role %d: expected %d", operand->role, expected->role);
  if (operand->access != expected->access)
    return proof_fail(proof, at, i, "has access %d: expected %d", operand->access, expected->access);
  if (!value_is_equal(operand->reads, expected->reads))
    return proof_fail(proof, at, i, "must read %s", proof_value(proof, expected->reads, text));
  if (!value_is_equal(operand->makes, expected->makes))
    return proof_fail(proof, at, i, "must make %s", proof_value(proof, expected->makes, text));
  if (operand->bytes != expected->bytes)
    return proof_fail(proof, at, i, "has %llu bytes: expected %llu", (unsigned long long)operand->bytes,
                      (unsigned long long)expected->bytes);
  enum lade_space space = operand_buffer(proof, operand)->space;
  if (!(ON(space) & expected->spaces))
    return proof_fail(proof, at, i, "lies in %s, where this instruction cannot reach it", lade_space_name(space));
  return 0;
}

/* True if the op table allows output @out to alias input @in, and both begin at the same byte. */
static bool is_in_place(const struct proof *proof, const struct lade_instr *instr, const struct lade_operand *in,
                        const struct lade_operand *out)
{
  if (!proof_is_of_op(instr) || in->role >= LADE_ROLE_OUT || out->role < LADE_ROLE_OUT ||
      out->role >= LADE_ROLE_SCRATCH)
    return false;
  return proof->graph->ops[instr->op].alias[out->role - LADE_ROLE_OUT] == in->role &&
         operand_start(proof, in) == operand_start(proof, out);
}

/* True if the smaller operand of a gather or a scatter is this rank's block of the larger. */
static bool is_own_block(const struct proof *proof, const struct lade_instr *instr, const struct lade_operand *src,
                         const struct lade_operand *dst)
{
  bool is_gather = instr->collective == LADE_ALL_GATHER;
  if (instr->kind != LADE_INSTR_COLLECTIVE || (!is_gather && instr->collective != LADE_REDUCE_SCATTER))
    return false;
  const struct lade_operand *block = is_gather ? src : dst, *whole = is_gather ? dst : src;
  int position = lade_layout_position(proof->program->layout, (enum lade_axis)instr->axis);
  return operand_start(proof, block) == operand_start(proof, whole) + (uint64_t)position * block->bytes;
}

/* Check that no written operand overlaps another. At most 17 operands: pairs are few. */
static int operands_apart(const struct proof *proof, int at)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  const struct lade_operand *operands = proof->program->operands + instr->first_operand;
  for (int i = 1; i < instr->n_operands; i++) {
    for (int j = 0; j < i; j++) {
      if (operand_buffer(proof, &operands[i])->space != operand_buffer(proof, &operands[j])->space ||
          !((operands[i].access | operands[j].access) & LADE_MAKES) ||
          is_in_place(proof, instr, &operands[j], &operands[i]) ||
          is_own_block(proof, instr, &operands[j], &operands[i]))
        continue;
      if (ranges_meet(operand_start(proof, &operands[i]), operands[i].bytes, operand_start(proof, &operands[j]),
                      operands[j].bytes))
        return proof_fail(proof, at, i, "lies on operand %d", j);
    }
  }
  return 0;
}

/* Check indices, ranges and lifetimes, on which all later checks rely. */
int proof_operand_bounds(const struct proof *proof, int at, int i)
{
  const struct lade_program *program = proof->program;
  const struct lade_operand *operand = &program->operands[program->instrs[at].first_operand + i];
  if (operand->buffer < 0 || operand->buffer >= program->n_buffers)
    return proof_fail(proof, at, i, "is in buffer %d of %d", operand->buffer, program->n_buffers);
  const struct lade_buffer *buffer = &program->buffers[operand->buffer];
  if (operand->bytes == 0 || operand->offset > buffer->bytes || operand->bytes > buffer->bytes - operand->offset)
    return proof_fail(proof, at, i, "%llu bytes at %llu leave its buffer %d of %llu",
                      (unsigned long long)operand->bytes, (unsigned long long)operand->offset, operand->buffer,
                      (unsigned long long)buffer->bytes);
  if (at < buffer->first || at > buffer->last)
    return proof_fail(proof, at, i, "its buffer %d lives from %d to %d only", operand->buffer, buffer->first,
                      buffer->last);
  return 0;
}

/* ---- instructions ---- */

int proof_waits(const struct proof *proof, int at)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    int wait = instr->waits[q];
    if (wait == -1)
      continue;
    if (wait < 0 || wait >= at)
      return proof_fail(proof, at, -1, "waits for instruction %d, which is not an earlier one", wait);
    if (proof->program->instrs[wait].queue != q || q == instr->queue)
      return proof_fail(proof, at, -1, "waits for instruction %d as one of queue %s", wait,
                        lade_queue_name((enum lade_queue_id)q));
  }
  return 0;
}

static int queue_expected(const struct proof *proof, const struct lade_instr *instr)
{
  static const int of_tier[] = {LADE_Q_COMPUTE, LADE_Q_HOST, LADE_Q_IO};
  switch (instr->kind) {
  case LADE_INSTR_UPDATE:
    return instr->n_operands > UPDATE_STATE ? of_tier[state_space(proof, instr)] : -1;
  case LADE_INSTR_COPY:
    return operand_space(proof, instr, 1) == LADE_HOST ? LADE_Q_TO_HOST : LADE_Q_TO_DEVICE;
  case LADE_INSTR_READ:
  case LADE_INSTR_WRITE:
    return LADE_Q_IO;
  case LADE_INSTR_COLLECTIVE:
    return (int)lade_axis_queue((enum lade_axis)instr->axis);
  case LADE_INSTR_SEND:
    return LADE_Q_SEND;
  case LADE_INSTR_RECV:
    return LADE_Q_RECV;
  default:
    return LADE_Q_COMPUTE;
  }
}

/* Return an instruction with the fields that @op demands. */
static struct lade_instr instr_of_op(const struct lade_op *op)
{
  struct lade_instr at = {.kind = LADE_INSTR_COLLECTIVE, .axis = (uint8_t)op->attr.axis};
  switch (op->kind) {
  case LADE_OP_SEND:
  case LADE_OP_RECV:
    return (struct lade_instr){.kind = op->kind == LADE_OP_SEND ? LADE_INSTR_SEND : LADE_INSTR_RECV,
                               .axis = LADE_AXIS_PP, .peer = op->attr.peer};
  case LADE_OP_ALL_REDUCE: at.collective = LADE_ALL_REDUCE; return at;
  case LADE_OP_ALL_GATHER: at.collective = LADE_ALL_GATHER; return at;
  case LADE_OP_REDUCE_SCATTER: at.collective = LADE_REDUCE_SCATTER; return at;
  default: return (struct lade_instr){.kind = LADE_INSTR_COMPUTE};
  }
}

/* Check peers and axes: transfers and collectives of the graph's ops are with the ranks that the graph names. */
static int boundary_check(const struct proof *proof, int at)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  const struct lade_instr expected = instr_of_op(&proof->graph->ops[instr->op]);
  if (instr->kind != expected.kind)
    return proof_fail(proof, at, -1, "is of kind %d, its op of kind %d", instr->kind, expected.kind);
  if (instr->axis != expected.axis || instr->peer != expected.peer || instr->collective != expected.collective)
    return proof_fail(proof, at, -1, "names rank %d of axis %d for collective %d: expected %d of %d for %d",
                      instr->peer, instr->axis, instr->collective, expected.peer, expected.axis, expected.collective);
  if (instr->param != -1)
    return proof_fail(proof, at, -1, "has parameter %d, which does not belong here", instr->param);
  return 0;
}

static int collective_check(const struct proof *proof, int at)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  if (proof_is_of_op(instr))
    return boundary_check(proof, at);
  if (instr->kind != LADE_INSTR_COLLECTIVE)
    return instr->collective || (instr->axis && instr->kind != LADE_INSTR_SUM) || instr->peer
               ? proof_fail(proof, at, -1, "names ranks, with which this graph does nothing")
               : 0;
  if (instr->peer || !proof_collective_exists(proof, instr))
    return proof_fail(proof, at, -1, "is collective %d over axis %d, peer %d, which this layout does not have here",
                      instr->collective, instr->axis, instr->peer);
  if (lade_layout_size(proof->program->layout, (enum lade_axis)instr->axis) == 1)
    return proof_fail(proof, at, -1, "is a collective of one rank");
  return 0;
}

/* True if two collectives may be in one group by kind, axis and type. Their operands must be disjoint too. */
static bool may_share_group(const struct proof *proof, const struct lade_instr *instr, const struct lade_instr *other)
{
  const struct lade_operand *operands = proof->program->operands;
  return other->kind == LADE_INSTR_COLLECTIVE && !proof_is_of_op(other) && other->n_operands && instr->n_operands &&
         other->collective == instr->collective && other->axis == instr->axis &&
         lade_value_dtype(proof->graph, operands[other->first_operand].reads.tensor) ==
             lade_value_dtype(proof->graph, operands[instr->first_operand].reads.tensor);
}

/* True if @instr writes a range that @other reads or writes, or the reverse. */
static bool operands_conflict(const struct proof *proof, const struct lade_instr *instr, const struct lade_instr *other)
{
  for (int i = 0; i < instr->n_operands * other->n_operands; i++) {
    const struct lade_operand *a = &proof->program->operands[instr->first_operand + i / other->n_operands];
    const struct lade_operand *b = &proof->program->operands[other->first_operand + i % other->n_operands];
    if (((a->access | b->access) & LADE_MAKES) && operand_buffer(proof, a)->space == operand_buffer(proof, b)->space &&
        ranges_meet(operand_start(proof, a), a->bytes, operand_start(proof, b), b->bytes))
      return true;
  }
  return false;
}

/*
 * Check a group: its members have one kind, axis and type and are disjoint, and its first member has the waits of all.
 * At most 63 precede @at.
 */
static int grouped_check(const struct proof *proof, int at)
{
  const struct lade_instr *instrs = proof->program->instrs, *instr = &instrs[at];
  if (!instr->is_grouped)
    return 0;
  if (at == 0 || instr->kind != LADE_INSTR_COLLECTIVE || proof_is_of_op(instr) ||
      !may_share_group(proof, instr, &instrs[at - 1]))
    return proof_fail(proof, at, -1, "is grouped with an instruction that is not like it");
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (instr->waits[q] != -1)
      return proof_fail(proof, at, -1, "is grouped, and waits when the others have begun");
  }
  int other = at;
  do {
    if (operands_conflict(proof, instr, &instrs[--other]))
      return proof_fail(proof, at, -1, "lies on instruction %d, with which it is grouped", other);
  } while (instrs[other].is_grouped && other > 0);
  if (at - other >= LADE_COMM_LIST_MAX)
    return proof_fail(proof, at, -1, "is number %d of a group of %d at most", at - other + 1, LADE_COMM_LIST_MAX);
  return 0;
}

/* Check that fields of other kinds are unset. */
static int fields_check(const struct proof *proof, int at)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  bool is_compute = instr->kind == LADE_INSTR_COMPUTE;
  bool is_clip = instr->kind == LADE_INSTR_CLIP, is_clip_of_param = is_clip && proof->program->optimizer_in_backward;
  bool is_add = instr->kind == LADE_INSTR_ADD, is_sum = instr->kind == LADE_INSTR_SUM;
  bool is_round = instr->kind == LADE_INSTR_ROUND, is_cast = instr->kind == LADE_INSTR_CAST;
  bool is_of_param = instr->kind == LADE_INSTR_GRAD_SUMSQ || instr->kind == LADE_INSTR_UPDATE || is_add || is_round ||
                     is_cast;
  bool is_of_step = is_of_param || is_clip || is_sum;
  int n_ops = proof->program->is_training ? proof->graph->n_ops : proof->graph->n_fwd_ops;
  if (is_of_step && !proof->program->is_training)
    return proof_fail(proof, at, -1, "has no place in an evaluation");
  if ((is_add && !sums_each(proof)) || (is_cast && !is_narrow(proof)) ||
      (is_sum && (!proof_axis_is_summed(proof, instr) || instr->microbatch)))
    return proof_fail(proof, at, -1, "has no place in this layout");
  if (is_round && !rounds(proof))
    return proof_fail(proof, at, -1, "rounds what the update takes as it is");
  if (proof_is_of_op(instr) ? instr->op < 0 || instr->op >= n_ops : instr->op != -1)
    return proof_fail(proof, at, -1, "has op %d, which does not belong here", instr->op);
  bool is_collective = instr->kind == LADE_INSTR_COLLECTIVE;
  if ((is_clip_of_param || is_collective) && instr->param >= 0)
    is_of_param = true;
  if (is_of_param ? instr->param < 0 || instr->param >= proof->graph->n_params : instr->param != -1)
    return proof_fail(proof, at, -1, "has parameter %d, which does not belong here", instr->param);
  if (instr->microbatch < 0 || instr->microbatch >= proof->program->n_microbatches)
    return proof_fail(proof, at, -1, "is of microbatch %d of %d", instr->microbatch, proof->program->n_microbatches);
  bool is_repeatable = is_compute || (is_collective && proof_is_of_op(instr));
  if ((!is_repeatable && instr->is_recompute) || (!is_compute && instr->accumulate))
    return proof_fail(proof, at, -1, "is marked as an op that recomputes or accumulates");
  bool is_streamed = instr->kind == LADE_INSTR_UPDATE && state_space(proof, instr) == LADE_STORE;
  if (instr->is_streamed != is_streamed)
    return proof_fail(proof, at, -1, instr->is_streamed ? "is streamed, but not from the store" : "is not streamed");
  int status = collective_check(proof, at);
  if (status)
    return status;
  if (instr->queue != queue_expected(proof, instr))
    return proof_fail(proof, at, -1, "is on queue %s", lade_queue_name((enum lade_queue_id)instr->queue));
  return 0;
}

/* Count the instruction: ops run once, forward ones maybe again; parameters are summed and updated once. */
static int tally_add(const struct proof *proof, int at, struct form_tally *tally)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  if (proof_is_of_op(instr)) {
    bool *has_run = &tally->has_run[(size_t)instr->microbatch * (size_t)proof->graph->n_ops + (size_t)instr->op];
    bool is_boundary = instr->kind == LADE_INSTR_SEND || instr->kind == LADE_INSTR_RECV;
    if (*has_run && (instr->op >= proof->graph->n_fwd_ops || is_boundary))
      return proof_fail(proof, at, -1, "runs again, which backward ops and ops at stage boundaries must not");
    if (instr->is_recompute != *has_run)
      return proof_fail(proof, at, -1, *has_run ? "runs again, but is not marked as recomputed"
                                                : "is marked as recomputed, but has not run before");
    tally->n_run += !*has_run;
    *has_run = true;
    return 0;
  }
  bool *is_done = NULL;
  int *count = NULL;
  if (instr->kind == LADE_INSTR_CLIP) {
    is_done = instr->param < 0 ? NULL : &tally->is_clipped[instr->param];
    count = instr->param < 0 ? &tally->n_clips : &tally->n_clipped;
  } else if (instr->kind == LADE_INSTR_GRAD_SUMSQ) {
    is_done = &tally->is_normed[instr->param];
    count = &tally->n_normed;
  } else if (instr->kind == LADE_INSTR_UPDATE) {
    is_done = &tally->is_updated[instr->param];
    count = &tally->n_updated;
  } else if (instr->kind == LADE_INSTR_ROUND) {
    is_done = &tally->is_rounded[instr->param];
    count = &tally->n_rounded;
  } else {
    return 0;
  }
  if (is_done ? *is_done : *count > 0)
    return proof_fail(proof, at, -1, "happens twice");
  if (is_done)
    *is_done = true;
  *count += 1;
  return 0;
}

static int expectation_make(const struct proof *proof, int at, struct expectation *e)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  switch (instr->kind) {
  case LADE_INSTR_COMPUTE:
  case LADE_INSTR_SEND:
  case LADE_INSTR_RECV:
    return op_expect(proof, at, e);
  case LADE_INSTR_GRAD_SUMSQ:
    sumsq_expect(proof, instr, e);
    return 0;
  case LADE_INSTR_CLIP:
    clip_expect(proof, instr, e);
    return 0;
  case LADE_INSTR_UPDATE:
    update_expect(proof, instr, e);
    return 0;
  case LADE_INSTR_COLLECTIVE:
    if (proof_is_of_op(instr))
      return op_expect(proof, at, e);
    collective_expect(proof, instr, e);
    return 0;
  case LADE_INSTR_ADD:
    add_expect(proof, instr, e);
    return 0;
  case LADE_INSTR_CAST:
    cast_expect(proof, instr, e);
    return 0;
  case LADE_INSTR_SUM:
    sum_expect(proof, instr, e);
    return 0;
  case LADE_INSTR_ROUND:
    round_expect(proof, instr, e);
    return 0;
  default:
    return transfer_expect(proof, at, e);
  }
}

/*
 * Check that updates after all steps stream through one range, since the next one's bytes arrive while one is computed.
 */
static int scratch_check(const struct proof *proof, int at, struct form_tally *tally)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  if (!instr->is_streamed || proof->program->optimizer_in_backward)
    return 0;
  const int last = instr->n_operands - 1;
  const struct lade_operand *scratch = &proof->program->operands[instr->first_operand + last];
  if (!tally->stream)
    tally->stream = scratch;
  if (scratch->buffer != tally->stream->buffer || scratch->offset != tally->stream->offset ||
      scratch->bytes != tally->stream->bytes)
    return proof_fail(proof, at, last, "is not the scratch of the streamed updates before it");
  lade_stream_need_add(&tally->stream_all, stream_need(proof, instr));
  return 0;
}

/*
 * Check that parts of a parameter's state share their range in the store (program.h): each begins at the end of the one
 * before it.
 */
static int state_check(const struct proof *proof, int at)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  const struct lade_operand *before = NULL;
  for (int i = 0; instr->is_streamed && i < instr->n_operands; i++) {
    const struct lade_operand *operand = &proof->program->operands[instr->first_operand + i];
    if (operand->role < LADE_ROLE_RESIDUAL || operand->role > LADE_ROLE_V_SCALES)
      continue;
    const struct lade_buffer *buffers = proof->program->buffers;
    if (before && buffers[operand->buffer].offset !=
                      buffers[before->buffer].offset + lade_align_up(before->bytes, LADE_STORE_ALIGN))
      return proof_fail(proof, at, i, "does not stand behind the part of the state before it");
    before = operand;
  }
  return 0;
}

static int instr_check(const struct proof *proof, int at, struct form_tally *tally)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  int status = 0;
  for (int i = 0; i < instr->n_operands && !status; i++)
    status = proof_operand_bounds(proof, at, i);
  if (!status)
    status = fields_check(proof, at);
  if (!status)
    status = proof_waits(proof, at);
  if (!status)
    status = tally_add(proof, at, tally);
  struct expectation e = {.n = 0};
  if (!status)
    status = expectation_make(proof, at, &e);
  if (!status && instr->n_operands != e.n)
    status = proof_fail(proof, at, -1, "has %d operands: expected %d", instr->n_operands, e.n);
  for (int i = 0; i < e.n && !status; i++)
    status = operand_compare(proof, at, i, &e.operands[i]);
  if (!status)
    status = scratch_check(proof, at, tally);
  if (!status)
    status = state_check(proof, at);
  if (!status)
    status = operands_apart(proof, at);
  return status ? status : grouped_check(proof, at);
}

/* Check the list itself: kinds, queues, and operands that follow one another without gaps. */
int proof_list(const struct proof *proof)
{
  const struct lade_program *program = proof->program;
  int64_t next = 0;
  if (program->n_instrs < 1 || program->n_microbatches < 1 || program->n_microbatches > INT16_MAX)
    return proof_fail_all(proof, "a program of %d instructions over %d microbatches", program->n_instrs,
                          program->n_microbatches);
  if (program->streaming.n_windows < 1)
    return proof_fail_all(proof, "updates stream through %d windows: expected at least one",
                          program->streaming.n_windows);
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    if (instr->first_operand != next || instr->n_operands > program->n_operands - next)
      return proof_fail_all(proof, "instruction %d: %d operands from %d: expected to begin at %lld of %d", at,
                            instr->n_operands, instr->first_operand, (long long)next, program->n_operands);
    if (instr->kind >= LADE_N_INSTR_KINDS || instr->queue >= LADE_N_QUEUES)
      return proof_fail_all(proof, "instruction %d: kind %d and queue %d: no such", at, instr->kind, instr->queue);
    next += instr->n_operands;
  }
  if (next != program->n_operands)
    return proof_fail_all(proof, "%d operands, but instructions use %lld", program->n_operands, (long long)next);
  return 0;
}

/* Check that the versions of gradients have numbers. */
static int versions_check(const struct proof *proof)
{
  for (int param = 0; param < proof->graph->n_params; param++) {
    if ((int64_t)proof->n_adds[param] * proof->program->n_microbatches > INT16_MAX)
      return proof_fail_all(proof, "%d microbatches are too many: gradient versions end at %d",
                            proof->program->n_microbatches, INT16_MAX);
  }
  return 0;
}

static const char *param_missing(const struct proof *proof, const bool *is_done)
{
  int param = 0;
  while (param + 1 < proof->graph->n_params && is_done[param])
    param++;
  return proof->graph->tensors[proof->graph->params[param].tensor].name;
}

static int tally_check(const struct proof *proof, const struct form_tally *tally)
{
  const struct lade_model_graph *graph = proof->graph;
  int n_ops = proof->program->is_training ? graph->n_ops : graph->n_fwd_ops;
  for (int m = 0; m < proof->program->n_microbatches && tally->n_run != n_ops * proof->program->n_microbatches; m++) {
    for (int op = 0; op < n_ops; op++) {
      if (!tally->has_run[(size_t)m * (size_t)graph->n_ops + (size_t)op])
        return proof_fail_all(proof, "op %d (%s of unit %s) never runs for microbatch %d", op,
                              lade_op_kind_name(graph->ops[op].kind), graph->units[graph->ops[op].unit].name, m);
    }
  }
  if (!proof->program->is_training)
    return 0;
  if (tally->n_clips != 1)
    return proof_fail_all(proof, "the gradients are never clipped");
  if (tally->n_normed != graph->n_params)
    return proof_fail_all(proof, "parameter %s is missing in the norm", param_missing(proof, tally->is_normed));
  if (tally->n_updated != graph->n_params)
    return proof_fail_all(proof, "parameter %s is never updated", param_missing(proof, tally->is_updated));
  const uint64_t scratch_bytes = lade_stream_scratch_bytes(tally->stream_all, true);
  if (tally->stream && tally->stream->bytes != scratch_bytes)
    return proof_fail_all(proof, "streamed updates share %llu bytes of scratch: expected %llu",
                          (unsigned long long)tally->stream->bytes, (unsigned long long)scratch_bytes);
  return 0;
}

int proof_form(struct proof *proof)
{
  const struct lade_model_graph *graph = proof->graph;
  int status = proof_list(proof);
  if (!status)
    status = versions_check(proof);
  if (!status)
    status = proof_buffers(proof);
  if (status)
    return status;
  struct form_tally tally = {.n_run = 0};
  tally.has_run = calloc((size_t)graph->n_ops * (size_t)proof->program->n_microbatches + 1, sizeof(*tally.has_run));
  tally.is_normed = calloc((size_t)graph->n_params + 1, sizeof(*tally.is_normed));
  tally.is_clipped = calloc((size_t)graph->n_params + 1, sizeof(*tally.is_clipped));
  tally.is_updated = calloc((size_t)graph->n_params + 1, sizeof(*tally.is_updated));
  tally.is_rounded = calloc((size_t)graph->n_params + 1, sizeof(*tally.is_rounded));
  if (!tally.has_run || !tally.is_normed || !tally.is_clipped || !tally.is_updated || !tally.is_rounded)
    status = -ENOMEM;
  for (int at = 0; at < proof->program->n_instrs && !status; at++)
    status = instr_check(proof, at, &tally);
  if (!status)
    status = tally_check(proof, &tally);
  free(tally.has_run);
  free(tally.is_normed);
  free(tally.is_clipped);
  free(tally.is_updated);
  free(tally.is_rounded);
  return status;
}
