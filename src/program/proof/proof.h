/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the proof that its parts share. Each part returns 0, -EINVAL with the first violation in proof->error,
 * or -ENOMEM, and relies on the results of the parts before it.
 *
 *   proof_terms.c  values, and how a refusal names them; every other part uses it
 *   proof_form.c   every instruction is as the graph demands; indices, ranges, sizes, kinds, queues are sound
 *   proof_ranks.c  the same for instructions of several ranks, for form
 *   proof_step.c   form of a caller's own step, in place of these two
 *   proof_space.c  live buffers do not overlap; peaks are as stated and within the budgets
 *   proof_walk.c   values, hazards between queues, and the cycle
 *   proof_captures.c no wait begins or ends inside a CUDA graph
 */
#ifndef LADE_PROOF_H
#define LADE_PROOF_H

#include <errno.h>

#include "base/base.h"
#include "graph/graph.h"
#include "program/program.h"

#define PROOF_VALUE_BYTES (LADE_NAME_BYTES + 64)

struct proof {
  const struct lade_program *program;
  const struct lade_model_graph *graph; /* NULL: a caller's own step */
  const struct lade_graph *step_graph;  /* NULL: a model */
  struct lade_error *error;
  int32_t *rank;       /* by op and output: index of that contribution among a microbatch's to the gradient */
  int32_t *n_adds;     /* by parameter: contributions of one microbatch */
  int64_t *partial_at; /* by parameter, n_params + 1: its first partial sum */
};

/* Check form: of a model's program, and of a caller's own step. */
int proof_form(struct proof *proof);
int proof_form_step(const struct proof *proof);
/* Parts of both forms: the list; an operand's buffer, range and lifetime; the waits of an instruction. */
int proof_list(const struct proof *proof);
int proof_operand_bounds(const struct proof *proof, int at, int i);
int proof_waits(const struct proof *proof, int at);
int proof_space(struct proof *proof, const uint64_t *budget_bytes);
/* Check that each buffer is sound by itself; form begins with it. */
int proof_buffers(const struct proof *proof);
int proof_walk(struct proof *proof);
int proof_captures(struct proof *proof);

/* True for the instruction of an op of the graph. */
bool proof_is_of_op(const struct lade_instr *instr);
/* True if the program may have such a value. */
bool proof_value_exists(const struct proof *proof, struct lade_value value);

/* Refuse: one line that begins with instruction @at and, unless negative, its operand @i. Returns -EINVAL. */
int proof_fail(const struct proof *proof, int at, int i, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Refuse without an instruction. */
#define proof_fail_all(proof, ...) lade_error_set((proof)->error, -EINVAL, __VA_ARGS__)

/* Write "h.0.mlp.fc of microbatch 1, version 0" into @text (PROOF_VALUE_BYTES); return @text. */
const char *proof_value(const struct proof *proof, struct lade_value value, char *text);

static inline bool value_is_equal(struct lade_value a, struct lade_value b)
{
  return a.tensor == b.tensor && a.microbatch == b.microbatch && a.version == b.version;
}

static inline const struct lade_buffer *operand_buffer(const struct proof *proof, const struct lade_operand *operand)
{
  return &proof->program->buffers[operand->buffer];
}

/* Return where the operand's range begins in its space. */
static inline uint64_t operand_start(const struct proof *proof, const struct lade_operand *operand)
{
  return operand_buffer(proof, operand)->offset + operand->offset;
}

static inline bool ranges_meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
  return a < b + b_bytes && b < a + a_bytes;
}

/* Return the parameter whose optimizer state has @tensor as a part, or -1. */
static inline int part_param(const struct lade_model_graph *graph, int tensor)
{
  int from_parts = tensor - graph->n_tensors;
  return from_parts >= 0 && from_parts < graph->n_params * LADE_N_PARTS ? from_parts / LADE_N_PARTS : -1;
}

/* True if gradients and losses are summed over several data parallel ranks. */
static inline bool is_reduced(const struct proof *proof)
{
  return lade_layout_size(proof->program->layout, LADE_AXIS_DP) > 1;
}

/* Return the version of a parameter's gradient that holds all additions of this rank. */
static inline int grad_added(const struct proof *proof, int param)
{
  return proof->n_adds[param] * proof->program->n_microbatches;
}

/* True if tensor parallel ranks have parts of the gradient, which are summed first once it is complete. */
static inline bool has_parts(const struct proof *proof, int param)
{
  return proof->graph->params[param].n_sharers > 1;
}

/* True if gradients are summed over data parallel ranks in BF16. */
static inline bool is_narrow(const struct proof *proof)
{
  return is_reduced(proof) && proof->program->layout->grad_reduce == LADE_BF16;
}

/* Return the version of a gradient that holds all sums, if it is not in shards. */
static inline int grad_complete(const struct proof *proof, int param)
{
  return grad_added(proof, param) + has_parts(proof, param) + is_reduced(proof) +
         proof->graph->params[param].is_at_both_ends;
}

/* True if the state of parameters is in shards. */
static inline bool is_sharded(const struct proof *proof)
{
  return lade_shard_count(proof->program->layout) > 1;
}

/* True if each microbatch's gradient is reduced by itself. */
static inline bool sums_each(const struct proof *proof)
{
  return is_sharded(proof) && proof->program->layout->zero >= 2;
}

/* Return the version of a gradient's block that holds the sum over this shard axis, and the last version. */
static inline int block_added(const struct proof *proof)
{
  return sums_each(proof) ? proof->program->n_microbatches : 1;
}
static inline int block_complete(const struct proof *proof, int param)
{
  return block_added(proof) + has_parts(proof, param) +
         (lade_layout_size(proof->program->layout, LADE_AXIS_REPLICATE) > 1) +
         proof->graph->params[param].is_at_both_ends;
}

/* True if complete gradients are rounded before norms and updates. */
static inline bool rounds(const struct proof *proof)
{
  return proof->program->is_training && lade_model_graph_rounds(proof->graph);
}

/* Return the parameter of block number @tensor; -1: it is no block. */
static inline int block_param(const struct lade_model_graph *graph, int tensor)
{
  int from_blocks = tensor - lade_value_block(graph, 0, (enum lade_block)0);
  return from_blocks >= 0 && from_blocks < graph->n_params * LADE_N_BLOCKS ? from_blocks / LADE_N_BLOCKS : -1;
}
static inline enum lade_block block_kind(const struct lade_model_graph *graph, int tensor)
{
  return (enum lade_block)((tensor - lade_value_block(graph, 0, (enum lade_block)0)) % LADE_N_BLOCKS);
}

/* True if @instr sends this rank's rows of a value to another stage, and its peers the others. */
static inline bool proof_sends_part(const struct proof *proof, const struct lade_instr *instr)
{
  return instr->kind == LADE_INSTR_SEND && proof->graph->share.is_scattered;
}

/* True if @instr copies this rank's block of a working copy, whole on the device, to the host for its update. */
static inline bool proof_is_block_out(const struct proof *proof, const struct lade_instr *instr)
{
  const struct lade_operand *operands = proof->program->operands + instr->first_operand;
  if (instr->kind != LADE_INSTR_COPY || !is_sharded(proof) || instr->n_operands != 2)
    return false;
  int tensor = operands[0].reads.tensor;
  return tensor >= 0 && tensor < proof->graph->n_tensors && proof->graph->tensors[tensor].kind == LADE_TENSOR_PARAM &&
         block_param(proof->graph, operands[1].makes.tensor) == proof->graph->tensors[tensor].param;
}

/* Return the version of a microbatch's loss that the caller gets. */
static inline int loss_complete(const struct proof *proof)
{
  return is_reduced(proof);
}

#endif
