/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prove a program from the graph and the list alone.
 *
 * The builder knows its reason for each instruction; the proof checks only whether the list computes the step. It
 * shares with the builder only the formats (program.h, graph.h) and the numbering and sizes of values (values.c). It
 * has four parts, each of which relies on those before:
 *
 *   form    each instruction has the operands that its op or kind demands, in order, whole, in the right space, on
 *           the right queue; every op of every microbatch runs, in the forward half maybe again, each
 *           gradient is the same sum in the same order with any recompute; every update happens once
 *   space   buffers that are live at one time do not overlap; peaks and live peaks are as stated
 *   walk    run the list symbolically over maps from addresses to values: every read finds exactly the value that
 *           it names; two accesses, one of them a write, are ordered by queues and waits; at the end each resident
 *           buffer holds its next step's beginning
 *   captures  no instruction waits for, or after, a part of a CUDA graph
 *
 * This is sufficient. By form, every instruction computes the right function of the values that it names. By walk, it
 * reads those values, in list order and in any interleaving of the queues, because conflicting accesses are ordered as
 * in the list. By space, it runs in the stated memory. Values of activations have no versions, so an op with right
 * inputs makes the right output, recomputed or not.
 *
 * A caller's own step (lade/graph.h) has a form of its own, and shares space, walk and captures. Its values have the
 * versions of its graph, so an op that runs again after an update of its input is refused.
 *
 * Trusted: the graph, values.c, and that the executor drains all queues between steps. Longer lifetimes than uses and
 * more waits than needed cost time or bytes but break nothing, and are not refused.
 *
 * O(n log n) in operands and buffers; the logarithm comes from sorting. Each byte range written replaces the ranges
 * that it covers, so all ranges ever walked are bounded by those ever written. The next range is found in a few words
 * (ordered_bitset.h).
 */
#include "program/proof/proof.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Number each op's additions to gradients in the order of the graph, which is the order of their sum. */
static int contributions_count(struct proof *proof)
{
  const struct lade_model_graph *graph = proof->graph;
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
  struct proof proof = {.program = program, .graph = program->graph, .step_graph = program->step_graph,
                        .error = error};
  program->is_proved = false;
  int status = proof.graph ? contributions_count(&proof) : 0;
  if (!status)
    status = proof.graph ? proof_form(&proof) : proof_form_step(&proof);
  if (!status)
    status = proof_space(&proof, budget_bytes);
  if (!status)
    status = proof_walk(&proof);
  if (!status)
    status = proof_captures(&proof);
  free(proof.rank);
  free(proof.n_adds);
  free(proof.partial_at);
  if (status == -ENOMEM)
    return lade_error_set(error, status, "out of memory proving a program of %d instructions", program->n_instrs);
  program->is_proved = status == 0;
  return status;
}
