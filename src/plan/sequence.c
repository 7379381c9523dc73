/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of ops. Forward ops run in the graph's order. Before each backward op, whatever it reads that has been
 * dropped is made again by running the op that made it, which may need its own inputs made again first: a
 * depth-first walk over producers, so each chain is as short as the kept values allow and comes as late as
 * possible, when its memory is needed anyway. A value made again stays until its last use in this microbatch,
 * unless its choice is to be dropped after each backward op. The walk ends because the graph is acyclic;
 * an op is run again at most once per microbatch, or per backward op where its values are dropped each time:
 * O(ops + uses) then holds per backward op.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/build.h"

struct sequencer {
  const struct lade_graph *graph;
  const struct lade_residency *residency;
  bool *is_there; /* by tensor: in this microbatch, made and not dropped */
  int *dropped;   /* values that are dropped again after each backward op */
  int n_dropped;
  int *stack;     /* of ops whose inputs are being made; as deep as the forward graph at most */
  LADE_ARRAY(struct plan_step) steps;
};

static bool step_push(struct sequencer *s, int op, int microbatch, bool is_recompute)
{
  const struct lade_op *what = &s->graph->ops[op];
  struct plan_step step = {.op = op,
                           .microbatch = (int16_t)microbatch,
                           .is_recompute = is_recompute,
                           .is_backward = is_recompute || what->is_backward};
  for (int i = 0; i < what->n_out; i++) {
    if (what->out[i] >= 0)
      s->is_there[what->out[i]] = true;
  }
  return LADE_PUSH(&s->steps, step);
}

/* An input of @op that has to be made again before it can run, or -1. */
static int input_missing(const struct sequencer *s, int op)
{
  const struct lade_op *what = &s->graph->ops[op];
  for (int i = 0; i < what->n_in; i++) {
    int tensor = what->in[i];
    if (tensor >= 0 && s->graph->tensors[tensor].kind == LADE_TENSOR_ACTIVATION && !s->is_there[tensor])
      return tensor;
  }
  return -1;
}

/* Emit @op after everything that it reads. */
static bool op_emit(struct sequencer *s, int op, int microbatch)
{
  int depth = 0;
  s->stack[depth++] = op;
  while (depth) {
    int top = s->stack[depth - 1], missing = input_missing(s, top);
    if (missing >= 0) {
      s->stack[depth++] = s->graph->tensors[missing].producer;
      continue;
    }
    depth--;
    if (!step_push(s, top, microbatch, depth > 0))
      return false;
  }
  return true;
}

/* The forward pass is over. */
static void saved_forget(struct sequencer *s)
{
  for (int i = 0; i < s->graph->n_tensors; i++) {
    if (s->residency->choices[i].saved == LADE_WAIT_RECOMPUTE)
      s->is_there[i] = false;
  }
}

static void dropped_collect(struct sequencer *s)
{
  for (int i = 0; i < s->graph->n_tensors; i++) {
    struct lade_choice choice = s->residency->choices[i];
    if (choice.saved == LADE_WAIT_RECOMPUTE && choice.spill == LADE_WAIT_RECOMPUTE)
      s->dropped[s->n_dropped++] = i;
  }
}

static void dropped_forget(struct sequencer *s)
{
  for (int i = 0; i < s->n_dropped; i++)
    s->is_there[s->dropped[i]] = false;
}

int plan_sequence(const struct lade_build_params *params, struct plan_step **ret_steps, int *ret_n_steps)
{
  const struct lade_graph *graph = params->graph;
  struct sequencer s = {.graph = graph, .residency = params->residency};
  s.is_there = calloc((size_t)graph->n_tensors, sizeof(*s.is_there));
  s.dropped = calloc((size_t)graph->n_tensors, sizeof(*s.dropped));
  s.stack = calloc((size_t)graph->n_ops + 1, sizeof(*s.stack));
  bool is_ok = s.is_there && s.dropped && s.stack;
  if (is_ok)
    dropped_collect(&s);
  for (int m = 0; is_ok && m < params->n_microbatches; m++) {
    memset(s.is_there, 0, (size_t)graph->n_tensors * sizeof(*s.is_there));
    for (int op = 0; is_ok && op < graph->n_fwd_ops; op++)
      is_ok = step_push(&s, op, m, false);
    if (!params->is_training)
      continue;
    saved_forget(&s);
    for (int op = graph->n_fwd_ops; is_ok && op < graph->n_ops; op++) {
      is_ok = op_emit(&s, op, m);
      dropped_forget(&s);
    }
  }
  free(s.stack);
  free(s.dropped);
  free(s.is_there);
  if (!is_ok) {
    LADE_ARRAY_FREE(&s.steps);
    return -ENOMEM;
  }
  *ret_steps = s.steps.items;
  *ret_n_steps = s.steps.n;
  return 0;
}

int32_t *plan_update_ends(const struct lade_build_params *params, const struct plan_step *steps, int n_steps)
{
  const struct lade_graph *graph = params->graph;
  int32_t *ends = calloc((size_t)LADE_MAX(graph->n_params, 1), sizeof(*ends));
  const bool is_early = params->residency->is_early;
  for (int param = 0; ends && !is_early && param < graph->n_params; param++)
    ends[param] = n_steps;
  for (int pos = 0; ends && is_early && pos < n_steps; pos++) {
    const struct lade_op *op = &graph->ops[steps[pos].op];
    for (int i = 0; i < op->n_in + op->n_out; i++) {
      int tensor = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
      if (tensor >= 0 && graph->tensors[tensor].param >= 0)
        ends[graph->tensors[tensor].param] = pos + 1;
    }
  }
  return ends;
}
