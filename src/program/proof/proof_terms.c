/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The terms of the proof: the values that a program may name, and the text by which a refusal names an instruction and
 * a value.
 *
 * Every part of the proof (form, space, walk, captures) refuses through proof_fail. So all refusals have one form:
 * -EINVAL with the instruction's number, its operation and the operand.
 */
#include "program/proof/proof.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/echo.h"

const char *proof_value(const struct proof *proof, struct lade_value value, char *text)
{
  char name[LADE_NAME_BYTES + 16];
  if (!proof->graph) {
    const struct lade_graph *graph = proof->step_graph;
    bool is_storage = value.tensor >= 0 && value.tensor < graph->storages.n;
    const char *storage = is_storage ? graph_name(graph, graph->storages.items[value.tensor].name) : "";
    snprintf(text, PROOF_VALUE_BYTES, "storage %d \"%.60s\" version %d", value.tensor, lade_echo(storage).text,
             value.version);
    return text;
  }
  bool is_known = value.tensor < lade_value_count(proof->graph);
  snprintf(text, PROOF_VALUE_BYTES, "%s of microbatch %d version %d",
           is_known ? lade_value_name(proof->graph, value.tensor, name) : "an unknown tensor", value.microbatch,
           value.version);
  return text;
}

/* True if @value is a block of a shard, or a rounded gradient, that this program has. */
static bool block_exists(const struct proof *proof, struct lade_value value)
{
  switch (block_kind(proof->graph, value.tensor)) {
  case LADE_BLOCK_WEIGHT:
    return is_sharded(proof) && value.microbatch == 0 && value.version <= proof->program->is_training;
  case LADE_BLOCK_GRAD:
    return is_sharded(proof) && value.microbatch == 0 && value.version >= 1 &&
           value.version <= block_complete(proof, block_param(proof->graph, value.tensor));
  case LADE_BLOCK_ROUNDED:
    return rounds(proof) && value.microbatch == 0 && value.version == 0;
  case LADE_BLOCK_NARROW:
  case LADE_BLOCK_NARROW_WHOLE:
    return false; /* they are not moved */
  default:
    return sums_each(proof) && value.microbatch >= 1 && value.microbatch < proof->program->n_microbatches &&
           value.version == 0;
  }
}

bool proof_value_exists(const struct proof *proof, struct lade_value value)
{
  const struct lade_model_graph *graph = proof->graph;
  const int max_versions = proof->program->is_training ? 1 : 0;
  if (value.tensor < 0 || value.tensor >= lade_value_count(graph) || value.microbatch < 0 || value.version < 0)
    return false;
  if (value.tensor == lade_value_scalar(graph, LADE_SCALAR_CLIP_RESULT))
    return value.microbatch == 0 && value.version <= (proof->program->optimizer_in_backward ? graph->n_params : 0);
  if (block_param(graph, value.tensor) >= 0)
    return block_exists(proof, value);
  if (value.tensor >= graph->n_tensors)
    return value.microbatch == 0 && value.version <= (part_param(graph, value.tensor) >= 0 ? max_versions : 0);
  const struct lade_tensor *tensor = &graph->tensors[value.tensor];
  if (tensor->kind == LADE_TENSOR_PARAM)
    return value.microbatch == 0 && value.version <= max_versions;
  if (tensor->kind == LADE_TENSOR_GRAD)
    return value.microbatch == 0 && value.version >= 1 && value.version <= grad_complete(proof, tensor->param);
  int max = value.tensor == graph->loss ? loss_complete(proof) : 0;
  return value.microbatch < proof->program->n_microbatches && value.version <= max;
}

bool proof_is_of_op(const struct lade_instr *instr)
{
  switch (instr->kind) {
  case LADE_INSTR_COMPUTE:
  case LADE_INSTR_SEND:
  case LADE_INSTR_RECV:
    return true;
  default:
    return instr->kind == LADE_INSTR_COLLECTIVE && instr->op >= 0;
  }
}

/* Write "compute matmul h.0.mlp.fc" into @text, as far as the instruction's numbers are valid. */
static void instr_describe(const struct proof *proof, const struct lade_instr *instr, char *text, size_t bytes)
{
  const struct lade_model_graph *graph = proof->graph;
  bool is_known = instr->kind < LADE_N_INSTR_KINDS;
  const char *kind = is_known ? lade_instr_kind_name((enum lade_instr_kind)instr->kind) : "unknown kind";
  if (!graph) {
    bool is_op = instr->op >= 0 && instr->op < proof->step_graph->ops.n;
    const char *name = is_op ? graph_name(proof->step_graph, proof->step_graph->ops.items[instr->op].name) : "";
    snprintf(text, bytes, is_op ? "%s, op %d \"%.80s\"" : "%s", kind, instr->op, lade_echo(name).text);
    return;
  }
  if (proof_is_of_op(instr) && instr->op >= 0 && instr->op < graph->n_ops) {
    const struct lade_op *op = &graph->ops[instr->op];
    int first = 0;
    while (first + 1 < op->n_out && op->out[first] < 0)
      first++;
    int tensor = op->kind == LADE_OP_SEND ? op->in[0] : op->out[first];
    snprintf(text, bytes, "%s %s of %s, microbatch %d", kind, lade_op_kind_name(op->kind),
             tensor >= 0 ? graph->tensors[tensor].name : "nothing", instr->microbatch);
  } else if (instr->kind == LADE_INSTR_COLLECTIVE && instr->collective < LADE_N_COLLECTIVES) {
    snprintf(text, bytes, "%s %s", kind, lade_collective_name((enum lade_collective_kind)instr->collective));
  } else if (instr->kind != LADE_INSTR_COMPUTE && instr->param >= 0 && instr->param < graph->n_params) {
    snprintf(text, bytes, "%s of %s", kind, graph->tensors[graph->params[instr->param].tensor].name);
  } else {
    snprintf(text, bytes, "%s", kind);
  }
}

int proof_fail(const struct proof *proof, int at, int i, const char *format, ...)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  char subject[160], place[PROOF_VALUE_BYTES + 32] = "", fault[256], value[PROOF_VALUE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(fault, sizeof(fault), format, args);
  va_end(args);
  instr_describe(proof, instr, subject, sizeof(subject));
  if (i >= 0) {
    const struct lade_operand *operand = &proof->program->operands[instr->first_operand + i];
    struct lade_value named = operand->access & LADE_READS ? operand->reads : operand->makes;
    snprintf(place, sizeof(place), "operand %d (%s): ", i, proof_value(proof, named, value));
  }
  return lade_error_set(proof->error, -EINVAL, "instruction %d (%s): %s%s", at, subject, place, fault);
}
