/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lower the list of a caller's own step to instructions, in one pass. The state of a storage is its buffer in each
 * space and its version on the device. Given storages have one resident buffer in their tier, kept ones a buffer that
 * lives to the end of the list. A given storage of the device may wait elsewhere for a while. It then has a buffer at
 * the start of the list and another one at its end, which share an offset (offsets.c).
 *
 * Owners, for the ledger: scratch is workspace. A given storage that update ops alone use is optimizer state, and other
 * given ones are parameters. A made storage that an update op uses is a gradient, one of both passes is saved, and the
 * others are transient.
 */
#include "program/lower.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/echo.h"
#include "program/build/build_internal.h"

/* Operands of one instruction end here: lade_instr.n_operands has 16 bits. */
#define OPERANDS_MAX UINT16_MAX

struct lowered_storage {
  int32_t buffers[LADE_N_SPACES]; /* where it is; -1: it is not there */
  int32_t version;                /* on the device */
  int32_t instr, operand;         /* its operand in the instruction at hand: valid if @instr is that one */
};

struct lowering {
  const struct lade_lower_params *params;
  const struct lade_graph *graph;
  struct lade_error *error;
  struct builder b;
  struct lowered_storage *storages;
  int32_t *end_buffers, *start_buffers;
};

static const char *name_of(const struct lowering *l, int storage)
{
  return graph_name(l->graph, l->graph->storages.items[storage].name);
}

/* ---- buffers ---- */

static enum lade_owner owner_of(const struct lowering *l, int storage)
{
  bool has[LADE_N_PASSES] = {false};
  const struct graph_storage *s = &l->graph->storages.items[storage];
  for (int i = s->first_use; i < graph_uses_end(l->graph, storage); i++)
    has[l->graph->ops.items[l->graph->uses[i].op].pass] = true;
  const bool is_of_update_alone = has[LADE_PASS_UPDATE] && !has[LADE_PASS_FORWARD] && !has[LADE_PASS_BACKWARD];
  if (s->is_given)
    return is_of_update_alone ? LADE_OWNER_OPTIMIZER : LADE_OWNER_PARAMETERS;
  if (has[LADE_PASS_UPDATE])
    return LADE_OWNER_GRADIENTS;
  return has[LADE_PASS_FORWARD] && has[LADE_PASS_BACKWARD] ? LADE_OWNER_SAVED : LADE_OWNER_TRANSIENT;
}

/* Make a buffer for @storage in @space. Copies elsewhere have the alignment of their space. */
static int32_t storage_buffer(struct lowering *l, int storage, enum lade_space space, bool is_resident)
{
  const struct graph_storage *s = &l->graph->storages.items[storage];
  const int32_t buffer = buffer_make(&l->b, space, owner_of(l, storage), s->bytes, is_resident);
  if (!l->b.status && space != LADE_STORE)
    l->b.buffers.items[buffer].align = LADE_MAX(s->align, l->b.buffers.items[buffer].align);
  return buffer;
}

static void storages_init(struct lowering *l)
{
  for (int s = 0; s < l->graph->storages.n; s++) {
    const struct graph_storage *storage = &l->graph->storages.items[s];
    struct lowered_storage *state = &l->storages[s];
    *state = (struct lowered_storage){.buffers = {-1, -1, -1}, .instr = -1};
    l->end_buffers[s] = l->start_buffers[s] = -1;
    if (!storage->is_given || !storage->bytes)
      continue;
    const enum lade_space space = (enum lade_space)storage->tier;
    l->end_buffers[s] = l->start_buffers[s] = state->buffers[space] = storage_buffer(l, s, space, true);
  }
}

static bool is_on_device(const struct lowering *l, int storage)
{
  return l->storages[storage].buffers[LADE_DEVICE] >= 0;
}

/* ---- ops ---- */

static struct lade_value value_at(int storage, int32_t version)
{
  return (struct lade_value){storage, 0, (int16_t)version};
}

/*
 * True if a write needs the bytes of the version before: it leaves some of them as they are. The first version of a
 * made storage has no bytes before it.
 */
static bool write_is_partial(const struct graph_storage *storage, const struct graph_operand *operand)
{
  const bool is_whole = operand->offset == 0 && operand->bytes == storage->bytes;
  return !is_whole && (storage->is_given || operand->version > 1);
}

static int absent_fail(const struct lowering *l, const char *verb, int storage)
{
  return lade_error_set(l->error, -EINVAL, "the list %s \"%s\", which is not there", verb,
                        lade_echo(name_of(l, storage)).text);
}

/* Return the operand of @storage in the instruction at hand, new with the storage's first range; NULL: no memory. */
static struct lade_operand *operand_of(struct lowering *l, int storage)
{
  struct lowered_storage *state = &l->storages[storage];
  const int32_t at = l->b.instrs.n - 1;
  if (state->instr != at) {
    if (state->buffers[LADE_DEVICE] < 0)
      state->buffers[LADE_DEVICE] = storage_buffer(l, storage, LADE_DEVICE, false);
    operand_add(&l->b, &(struct lade_operand){.buffer = state->buffers[LADE_DEVICE], .reads = nothing,
                                              .makes = nothing, .bytes = l->graph->storages.items[storage].bytes});
    state->instr = at;
    state->operand = l->b.operands.n - 1;
  }
  return l->b.status ? NULL : &l->b.operands.items[state->operand];
}

/* Add the ranges of one storage to its operand: reads see the version before, writes make the next. */
static int range_add(struct lowering *l, const struct graph_operand *range)
{
  const struct graph_storage *storage = &l->graph->storages.items[range->storage];
  if (!storage->bytes)
    return 0;
  const bool is_write = range->access == GRAPH_WRITES, makes = range->access != GRAPH_READS;
  const bool reads = is_write ? write_is_partial(storage, range) : true;
  bool is_there = is_on_device(l, range->storage);
  if (reads && !is_there)
    return absent_fail(l, "uses", range->storage);
  struct lade_operand *operand = operand_of(l, range->storage);
  if (!operand)
    return l->b.status;
  if (reads) {
    operand->access |= LADE_READS;
    operand->reads = value_at(range->storage, is_write ? range->version - 1 : range->version);
  }
  if (makes) {
    operand->access |= LADE_MAKES;
    operand->makes = value_at(range->storage, is_write ? range->version : range->version + 1);
  }
  return 0;
}

static int limits_check(const struct lowering *l, int op)
{
  const struct graph_op *o = &l->graph->ops.items[op];
  if (graph_op_n_operands(o) >= OPERANDS_MAX)
    return lade_error_set(l->error, -EOVERFLOW, "op %d \"%s\" has %d operands: a program has at most %d", op,
                          lade_echo(graph_name(l->graph, o->name)).text, graph_op_n_operands(o), OPERANDS_MAX - 1);
  if (l->b.operands.n > INT32_MAX / 2 || l->b.instrs.n > INT32_MAX / 2 || l->b.buffers.n > INT32_MAX / 2)
    return lade_error_set(l->error, -EOVERFLOW, "the plan has more than %d operands", INT32_MAX / 2);
  return 0;
}

static int op_lower(struct lowering *l, int op, bool is_redo)
{
  const struct graph_op *o = &l->graph->ops.items[op];
  int status = limits_check(l, op);
  if (status)
    return status;
  struct lade_instr *instr =
      instr_begin(&l->b, LADE_INSTR_COMPUTE, o->queue == LADE_OP_ON_HOST ? LADE_Q_HOST : LADE_Q_COMPUTE);
  instr->op = op;
  instr->is_recompute = is_redo;
  instr->predicted_ns = o->ns;
  for (int i = 0; i < graph_op_n_operands(o) && !status; i++)
    status = range_add(l, &l->graph->operands.items[o->first_operand + i]);
  for (int i = o->n_reads; i < graph_op_n_operands(o) && !status; i++) {
    const struct graph_operand *range = &l->graph->operands.items[o->first_operand + i];
    l->storages[range->storage].version = range->access == GRAPH_WRITES ? range->version : range->version + 1;
  }
  if (!status && o->scratch_bytes) {
    const int32_t scratch = buffer_make(&l->b, LADE_DEVICE, LADE_OWNER_WORKSPACE, o->scratch_bytes, false);
    operand_make(&l->b, LADE_ROLE_SCRATCH, scratch, nothing, o->scratch_bytes);
  }
  return status ? status : l->b.status;
}

/* ---- moves ---- */

static int64_t path_ns(const struct lade_graph_path *path, uint64_t bytes)
{
  return path->bytes_per_s > 0 ? path->latency_ns + (int64_t)((double)bytes * 1e9 / path->bytes_per_s) : 0;
}

/* A transfer of a storage between two buffers, from their beginnings. */
struct move {
  enum lade_instr_kind kind; /* a copy, a read or a write */
  enum lade_queue_id queue;
  int32_t src, dst;
  const struct lade_graph_path *path; /* latency and rate, for its predicted time */
};

static void move_add(struct lowering *l, int storage, const struct move *move)
{
  const uint64_t bytes = l->graph->storages.items[storage].bytes;
  const struct lade_value value = value_at(storage, l->storages[storage].version);
  instr_begin(&l->b, move->kind, move->queue)->predicted_ns = path_ns(move->path, bytes);
  operand_read(&l->b, LADE_ROLE_SRC, move->src, value, bytes);
  operand_make(&l->b, LADE_ROLE_DST, move->dst, value, bytes);
}

static int put_lower(struct lowering *l, int storage, enum lade_space tier)
{
  const struct graph_storage *s = &l->graph->storages.items[storage];
  struct lowered_storage *state = &l->storages[storage];
  if (!s->bytes)
    return 0;
  if (!is_on_device(l, storage))
    return absent_fail(l, "puts", storage);
  if (state->buffers[tier] < 0)
    state->buffers[tier] = storage_buffer(l, storage, tier, false);
  int32_t src = state->buffers[LADE_DEVICE];
  if (tier == LADE_STORE && !l->params->is_unified) {
    const int32_t staging = storage_buffer(l, storage, LADE_HOST, false);
    move_add(l, storage, &(struct move){LADE_INSTR_COPY, LADE_Q_TO_HOST, src, staging, &l->params->to_host});
    src = staging;
  }
  const int32_t dst = state->buffers[tier];
  if (tier == LADE_STORE)
    move_add(l, storage, &(struct move){LADE_INSTR_WRITE, LADE_Q_IO, src, dst, &l->params->to_store});
  else
    move_add(l, storage, &(struct move){LADE_INSTR_COPY, LADE_Q_TO_HOST, src, dst, &l->params->to_host});
  if (s->is_given && s->tier == LADE_DEVICE && !l->b.status)
    l->b.buffers.items[state->buffers[LADE_DEVICE]].is_resident = false;
  state->buffers[LADE_DEVICE] = -1;
  return l->b.status;
}

static int get_lower(struct lowering *l, int storage, enum lade_space tier)
{
  const struct graph_storage *s = &l->graph->storages.items[storage];
  struct lowered_storage *state = &l->storages[storage];
  if (!s->bytes)
    return 0;
  if (state->buffers[tier] < 0 || is_on_device(l, storage))
    return absent_fail(l, "gets", storage);
  int32_t src = state->buffers[tier];
  state->buffers[LADE_DEVICE] = storage_buffer(l, storage, LADE_DEVICE, false);
  if (tier == LADE_STORE && !l->params->is_unified) {
    const int32_t staging = storage_buffer(l, storage, LADE_HOST, false);
    move_add(l, storage, &(struct move){LADE_INSTR_READ, LADE_Q_IO, src, staging, &l->params->from_store});
    src = staging;
  }
  const int32_t dst = state->buffers[LADE_DEVICE];
  if (tier == LADE_STORE && l->params->is_unified)
    move_add(l, storage, &(struct move){LADE_INSTR_READ, LADE_Q_IO, src, dst, &l->params->from_store});
  else
    move_add(l, storage, &(struct move){LADE_INSTR_COPY, LADE_Q_TO_DEVICE, src, dst, &l->params->from_host});
  if (!s->is_given || s->tier != tier)
    state->buffers[tier] = -1;
  return l->b.status;
}

/* ---- the list ---- */

static int instr_lower(struct lowering *l, const struct lade_graph_instr *instr)
{
  switch (instr->kind) {
  case LADE_GRAPH_INSTR_OP:
  case LADE_GRAPH_INSTR_REDO:
    return op_lower(l, instr->index, instr->kind == LADE_GRAPH_INSTR_REDO);
  case LADE_GRAPH_INSTR_DROP:
    l->storages[instr->index].buffers[LADE_DEVICE] = -1;
    return 0;
  case LADE_GRAPH_INSTR_PUT:
    return put_lower(l, instr->index, instr->tier);
  default:
    return get_lower(l, instr->index, instr->tier);
  }
}

/* Let given storages live from the start of the list, and given and kept ones to its end. */
static int lifetimes_close(struct lowering *l)
{
  for (int s = 0; s < l->graph->storages.n; s++) {
    const struct graph_storage *storage = &l->graph->storages.items[s];
    const enum lade_space tier = storage->is_given ? (enum lade_space)storage->tier : LADE_DEVICE;
    if ((!storage->is_given && !storage->is_kept) || !storage->bytes)
      continue;
    if (l->storages[s].buffers[tier] < 0)
      return absent_fail(l, "keeps", s);
    l->end_buffers[s] = l->storages[s].buffers[tier];
    l->b.buffers.items[l->end_buffers[s]].last = l->b.instrs.n - 1;
    if (l->start_buffers[s] >= 0)
      l->b.buffers.items[l->start_buffers[s]].first = 0;
  }
  return 0;
}

static int list_lower(struct lowering *l)
{
  storages_init(l);
  int status = l->b.status;
  for (int i = 0; i < l->params->n_instrs && !status; i++)
    status = instr_lower(l, &l->params->instrs[i]);
  if (!status && !l->b.instrs.n)
    status = lade_error_set(l->error, -EINVAL, "a step without an op");
  return status ? status : lifetimes_close(l);
}

/* Move the lists of @l into a program. */
static int program_make(struct lowering *l, struct lade_program **ret_program)
{
  struct lade_program *program = calloc(1, sizeof(*program));
  if (!program)
    return -ENOMEM;
  *program = (struct lade_program){
      .step_graph = l->graph, .end_buffers = l->end_buffers, .start_buffers = l->start_buffers, .n_microbatches = 1,
      .is_training = true, .is_unified = l->params->is_unified, .streaming.n_windows = 1, .step_on_host = -1,
      .step_on_device = -1,
      .instrs = l->b.instrs.items, .n_instrs = l->b.instrs.n, .instrs_capacity = l->b.instrs.capacity,
      .operands = l->b.operands.items, .n_operands = l->b.operands.n, .operands_capacity = l->b.operands.capacity,
      .buffers = l->b.buffers.items, .n_buffers = l->b.buffers.n, .buffers_capacity = l->b.buffers.capacity};
  *ret_program = program;
  return 0;
}

int lade_program_lower(const struct lade_lower_params *params, struct lade_error *error,
                       struct lade_program **ret_program)
{
  struct lowering l = {.params = params, .graph = params->graph, .error = error};
  const size_t n = (size_t)params->graph->storages.n + 1;
  LADE_ASSERT(params->graph->is_closed);
  l.storages = calloc(n, sizeof(*l.storages));
  l.end_buffers = calloc(n, sizeof(*l.end_buffers));
  l.start_buffers = calloc(n, sizeof(*l.start_buffers));
  int status = l.storages && l.end_buffers && l.start_buffers ? list_lower(&l) : -ENOMEM;
  if (!status)
    status = program_make(&l, ret_program);
  free(l.storages);
  if (!status)
    return 0;
  free(l.end_buffers);
  free(l.start_buffers);
  LADE_ARRAY_FREE(&l.b.instrs);
  LADE_ARRAY_FREE(&l.b.operands);
  LADE_ARRAY_FREE(&l.b.buffers);
  return status == -ENOMEM ? lade_error_set(error, status, "out of memory making the program of %d instructions",
                                            params->n_instrs)
                           : status;
}
