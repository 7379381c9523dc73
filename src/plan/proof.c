/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof: a second opinion on a program, from the graph and the list alone.
 *
 * The builder knows why it placed an instruction; the proof asks only whether the list, as it stands, computes
 * the step. It shares nothing with the builder but the formats (program.h, graph.h) and the numbering and
 * sizes of values (value.c). What is shown, part after part, each standing on those before:
 *
 *   form    each instruction has the operands that its op or kind demands, in order, whole, in the right space, on
 *           the right queue; every op of every microbatch runs, in the forward half maybe again, each
 *           gradient is the same sum in the same order whatever was recomputed; every update happens once
 *   space   buffers that are live at one time do not overlap; peaks and live peaks are as stated
 *   walk    run the list in thought over maps from addresses to values: every read finds exactly the value that
 *           it names; two accesses of which one writes are ordered by queues and waits; at the end
 *           each resident buffer holds its next step's beginning
 *   chains  what is submitted as one piece of work has nobody who waits for or behind a part of it
 *
 * That is enough: by form, every instruction computes the right function of the values it names; by walk, it
 * is given them, in list order and in any interleaving of the queues (which the ordering of conflicting accesses
 * makes equal to list order); by space, in the stated memory. Values of activations have no versions, so
 * an op that ran on right inputs made the right output, recomputed or not.
 *
 * Trusted: graph, value.c, and that the executor drains all queues between steps. Lifetimes may be longer than
 * uses, waits more than needed: that costs, but breaks nothing, and is not refused.
 *
 * O(n log n) in operands and buffers, the logarithm from sorting: each byte range written replaces the
 * ranges it covers, so all ranges ever walked are bounded by those ever written, and the next one is found
 * in a handful of words (marks.h).
 */
#include "plan/proof.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *proof_value(const struct proof *proof, struct lade_value value, char *text)
{
  char name[LADE_NAME_BYTES + 16];
  bool is_known = value.tensor < lade_value_count(proof->graph);
  snprintf(text, PROOF_VALUE_BYTES, "%s of microbatch %d version %d",
           is_known ? lade_value_name(proof->graph, value.tensor, name) : "an unknown tensor", value.microbatch,
           value.version);
  return text;
}

/* Of blocks of shards, and rounded gradients. */
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
  const struct lade_graph *graph = proof->graph;
  const int most_versions = proof->program->is_training ? 1 : 0;
  if (value.tensor < 0 || value.tensor >= lade_value_count(graph) || value.microbatch < 0 || value.version < 0)
    return false;
  if (value.tensor == lade_value_scalar(graph, LADE_SCALAR_VERDICT))
    return value.microbatch == 0 && value.version <= (proof->program->is_early ? graph->n_params : 0);
  if (block_param(graph, value.tensor) >= 0)
    return block_exists(proof, value);
  if (value.tensor >= graph->n_tensors)
    return value.microbatch == 0 && value.version <= (part_param(graph, value.tensor) >= 0 ? most_versions : 0);
  const struct lade_tensor *tensor = &graph->tensors[value.tensor];
  if (tensor->kind == LADE_TENSOR_PARAM)
    return value.microbatch == 0 && value.version <= most_versions;
  if (tensor->kind == LADE_TENSOR_GRAD)
    return value.microbatch == 0 && value.version >= 1 && value.version <= grad_complete(proof, tensor->param);
  int most = value.tensor == graph->loss ? loss_complete(proof) : 0;
  return value.microbatch < proof->program->n_microbatches && value.version <= most;
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

/* "compute matmul h.0.mlp.fc", as far as its numbers make sense. */
static void instr_describe(const struct proof *proof, const struct lade_instr *instr, char *text, size_t bytes)
{
  const struct lade_graph *graph = proof->graph;
  bool is_known = instr->kind < LADE_N_INSTR_KINDS;
  const char *kind = is_known ? lade_instr_kind_name((enum lade_instr_kind)instr->kind) : "unknown kind";
  if (proof_is_of_op(instr) && instr->op >= 0 && instr->op < graph->n_ops) {
    const struct lade_op *op = &graph->ops[instr->op];
    int first = 0;
    while (first + 1 < op->n_out && op->out[first] < 0)
      first++;
    int what = op->kind == LADE_OP_SEND ? op->in[0] : op->out[first];
    snprintf(text, bytes, "%s %s of %s, microbatch %d", kind, lade_op_kind_name(op->kind),
             what >= 0 ? graph->tensors[what].name : "nothing", instr->microbatch);
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
  char what[160], where[PROOF_VALUE_BYTES + 32] = "", why[256], value[PROOF_VALUE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(why, sizeof(why), format, args);
  va_end(args);
  instr_describe(proof, instr, what, sizeof(what));
  if (i >= 0) {
    const struct lade_operand *operand = &proof->program->operands[instr->first_operand + i];
    struct lade_value named = operand->access & LADE_READS ? operand->reads : operand->makes;
    snprintf(where, sizeof(where), "operand %d (%s): ", i, proof_value(proof, named, value));
  }
  return lade_error_set(proof->error, -EINVAL, "instruction %d (%s): %s%s", at, what, where, why);
}

/* Number each op's additions to gradients in the order of the graph, which is the order of their sum. */
static int contributions_count(struct proof *proof)
{
  const struct lade_graph *graph = proof->graph;
  proof->rank = calloc((size_t)graph->n_ops * LADE_OP_MAX_OUT + 1, sizeof(*proof->rank));
  proof->n_adds = calloc((size_t)graph->n_params + 1, sizeof(*proof->n_adds));
  proof->partial_at = calloc((size_t)graph->n_params + 1, sizeof(*proof->partial_at));
  if (!proof->rank || !proof->n_adds || !proof->partial_at)
    return -ENOMEM;
  for (int op = 0; op < graph->n_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_out; i++) {
      int tensor = graph->ops[op].out[i];
      if (tensor >= 0 && graph->tensors[tensor].kind == LADE_TENSOR_GRAD)
        proof->rank[op * LADE_OP_MAX_OUT + i] = proof->n_adds[graph->tensors[tensor].param]++;
    }
  }
  for (int param = 0; param < graph->n_params; param++)
    proof->partial_at[param + 1] = proof->partial_at[param] + lade_held_partials(graph, proof->program->layout, param);
  return 0;
}

int lade_program_prove(struct lade_program *program, const uint64_t budget_bytes[LADE_N_SPACES],
                       struct lade_error *error)
{
  struct proof proof = {.program = program, .graph = program->graph, .error = error};
  program->is_proved = false;
  int status = contributions_count(&proof);
  if (!status)
    status = proof_form(&proof);
  if (!status)
    status = proof_space(&proof, budget_bytes);
  if (!status)
    status = proof_walk(&proof);
  if (!status)
    status = proof_chains(&proof);
  free(proof.rank);
  free(proof.n_adds);
  free(proof.partial_at);
  if (status == -ENOMEM)
    return lade_error_set(error, status, "out of memory proving a program of %d instructions", program->n_instrs);
  program->is_proved = status == 0;
  return status;
}
