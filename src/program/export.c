/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write the instructions of a program as ops of a graph; linear in operands. A storage is named after the first value
 * that its buffer holds, and an op after its kind and the first value that it makes. From the second microbatch on, "@"
 * and the number follow.
 */
#include "program/export.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

#define NAME_BYTES (LADE_NAME_BYTES + 64)

struct exporter {
  const struct lade_program *program;
  struct lade_error *error;
  lade_graph *graph;
  int *storages;     /* of each buffer; -1: none yet */
  uint8_t *accesses; /* to each buffer by all instructions: bits of enum lade_access */
  LADE_ARRAY(struct lade_operand_range) reads, writes, updates; /* of one op */
};

/* ---- names ---- */

static void value_name(const struct lade_program *program, struct lade_value value, char name[static NAME_BYTES])
{
  char text[NAME_BYTES];
  const char *base = lade_value_name(program->graph, value.tensor, text);
  if (value.microbatch)
    snprintf(name, NAME_BYTES, "%.80s@%d", base, value.microbatch);
  else
    snprintf(name, NAME_BYTES, "%.80s", base);
}

/* Return the value that names an operand: the one that it makes, or else reads. */
static struct lade_value operand_value(const struct lade_operand *operand)
{
  return operand->access & LADE_MAKES ? operand->makes : operand->reads;
}

static void instr_name(const struct lade_program *program, const struct lade_instr *instr, char name[static NAME_BYTES])
{
  const struct lade_operand *operands = &program->operands[instr->first_operand];
  const struct lade_operand *named = NULL;
  for (int i = 0; i < instr->n_operands; i++) {
    const bool has_value = operand_value(&operands[i]).tensor >= 0;
    if (has_value && (!named || (!(named->access & LADE_MAKES) && (operands[i].access & LADE_MAKES))))
      named = &operands[i];
  }
  const char *kind = instr->kind == LADE_INSTR_COMPUTE ? lade_op_kind_name(program->graph->ops[instr->op].kind)
                                                       : lade_instr_kind_name((enum lade_instr_kind)instr->kind);
  char value[NAME_BYTES] = "";
  if (named)
    value_name(program, operand_value(named), value);
  snprintf(name, NAME_BYTES, "%.24s %.*s", kind, LADE_NAME_BYTES + 32, value);
}

/* ---- ops ---- */

/* True if the instruction copies an input of the step, such as tokens: no instruction writes its source. */
static bool instr_is_input(const struct exporter *e, const struct lade_instr *instr)
{
  const struct lade_operand *operands = &e->program->operands[instr->first_operand];
  return instr->kind == LADE_INSTR_COPY && instr->queue == LADE_Q_TO_DEVICE &&
         !(e->accesses[operands[0].buffer] & LADE_MAKES);
}

/* True if the instruction copies a result of the step, such as the loss: no instruction reads its destination. */
static bool instr_is_result(const struct exporter *e, const struct lade_instr *instr)
{
  const struct lade_operand *operands = &e->program->operands[instr->first_operand];
  return instr->kind == LADE_INSTR_COPY && instr->queue == LADE_Q_TO_HOST &&
         !(e->accesses[operands[1].buffer] & LADE_READS);
}

/* Return why the instruction is no op of a graph, as the end of a sentence; NULL: it is one. */
static const char *instr_fault(const struct lade_program *program, const struct lade_instr *instr)
{
  switch ((enum lade_instr_kind)instr->kind) {
  case LADE_INSTR_COMPUTE: case LADE_INSTR_GRAD_SUMSQ: case LADE_INSTR_CLIP: case LADE_INSTR_UPDATE:
  case LADE_INSTR_ADD: case LADE_INSTR_ROUND: case LADE_INSTR_CAST: case LADE_INSTR_SUM:
    break;
  case LADE_INSTR_COPY: case LADE_INSTR_READ: case LADE_INSTR_WRITE:
    return "moves a value";
  default:
    return "is of several ranks";
  }
  for (int i = 0; i < instr->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[instr->first_operand + i];
    if (program->buffers[operand->buffer].space != LADE_DEVICE)
      return "uses a value outside the device";
  }
  return instr->is_recompute ? "computes a value again" : NULL;
}

static enum lade_pass instr_pass(const struct lade_program *program, const struct lade_instr *instr)
{
  if (instr->kind == LADE_INSTR_COPY)
    return LADE_PASS_FORWARD;
  if (instr->kind != LADE_INSTR_COMPUTE)
    return LADE_PASS_UPDATE;
  return program->graph->ops[instr->op].is_backward ? LADE_PASS_BACKWARD : LADE_PASS_FORWARD;
}

/* Return the storage of @operand's buffer, which is added at its first use; or a negative errno. */
static int storage_of(struct exporter *e, const struct lade_operand *operand)
{
  const struct lade_buffer *buffer = &e->program->buffers[operand->buffer];
  int *storage = &e->storages[operand->buffer];
  if (*storage >= 0)
    return *storage;
  char name[NAME_BYTES];
  value_name(e->program, operand_value(operand), name);
  const struct lade_storage added = {.struct_size = sizeof(added), .name = name, .bytes = buffer->bytes,
                                     .align = buffer->align, .is_given = buffer->is_resident};
  const int status = lade_graph_add_storage(e->graph, &added, e->error, storage);
  return status ? status : *storage;
}

/* Add an operand to the lists of its op, or its bytes to the op's scratch. */
static int operand_export(struct exporter *e, const struct lade_operand *operand, struct lade_graph_op *op)
{
  if (operand_value(operand).tensor < 0) {
    op->scratch_bytes += operand->bytes;
    return 0;
  }
  const int storage = storage_of(e, operand);
  if (storage < 0)
    return storage;
  const struct lade_operand_range range = {storage, operand->offset, operand->bytes};
  switch ((enum lade_access)operand->access) {
  case LADE_READS: return LADE_PUSH(&e->reads, range) ? 0 : -ENOMEM;
  case LADE_MAKES: return LADE_PUSH(&e->writes, range) ? 0 : -ENOMEM;
  case LADE_READS_AND_MAKES: return LADE_PUSH(&e->updates, range) ? 0 : -ENOMEM;
  }
  return -EINVAL;
}

static int instr_export(struct exporter *e, const struct lade_instr *instr)
{
  char name[NAME_BYTES];
  instr_name(e->program, instr, name);
  const bool is_input = instr_is_input(e, instr);
  if (instr_is_result(e, instr))
    return lade_graph_keep(e->graph, e->storages[e->program->operands[instr->first_operand].buffer], e->error);
  const char *fault = is_input ? NULL : instr_fault(e->program, instr);
  if (fault)
    return lade_error_set(e->error, -EINVAL, "'%s' %s, and a graph is exported from a plan of one rank that keeps all "
                          "values on the device", name, fault);
  struct lade_graph_op op = {.struct_size = sizeof(op), .name = name, .ns = LADE_MAX(instr->predicted_ns, 0),
                             .pass = instr_pass(e->program, instr),
                             .queue = instr->queue == LADE_Q_HOST ? LADE_OP_ON_HOST : LADE_OP_ON_DEVICE};
  op.draws = instr->kind == LADE_INSTR_COMPUTE && e->program->graph->ops[instr->op].attr.dropout > 0;
  e->reads.n = e->writes.n = e->updates.n = 0;
  int status = 0;
  for (int i = is_input; i < instr->n_operands && !status; i++) /* an input's source is the caller's */
    status = operand_export(e, &e->program->operands[instr->first_operand + i], &op);
  if (status)
    return status;
  op.reads = e->reads.items, op.n_reads = e->reads.n;
  op.writes = e->writes.items, op.n_writes = e->writes.n;
  op.updates = e->updates.items, op.n_updates = e->updates.n;
  return lade_graph_add_op(e->graph, &op, e->error, NULL);
}

/* ---- the graph ---- */

static int program_export(struct exporter *e)
{
  int status = lade_graph_create(&e->graph);
  e->storages = malloc((size_t)LADE_MAX(e->program->n_buffers, 1) * sizeof(*e->storages));
  e->accesses = calloc((size_t)LADE_MAX(e->program->n_buffers, 1), sizeof(*e->accesses));
  if (!status && (!e->storages || !e->accesses))
    status = -ENOMEM;
  for (int i = 0; i < e->program->n_buffers && !status; i++)
    e->storages[i] = -1;
  for (int i = 0; i < e->program->n_operands && !status; i++)
    e->accesses[e->program->operands[i].buffer] |= e->program->operands[i].access;
  for (int i = 0; i < e->program->n_instrs && !status; i++)
    status = instr_export(e, &e->program->instrs[i]);
  return status ? status : lade_graph_close(e->graph, e->error);
}

int lade_program_export(const struct lade_program *program, struct lade_error *error, lade_graph **ret_graph)
{
  struct exporter e = {.program = program, .error = error};
  int status = program_export(&e);
  LADE_ARRAY_FREE(&e.reads);
  LADE_ARRAY_FREE(&e.writes);
  LADE_ARRAY_FREE(&e.updates);
  free(e.storages);
  free(e.accesses);
  if (status) {
    lade_graph_destroy(e.graph);
    return status;
  }
  *ret_graph = e.graph;
  return 0;
}
