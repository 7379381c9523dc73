/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of ops. Slots come in the schedule's order (one rank: forward and backward of one microbatch after
 * another). Forward ops run in the graph's order. Before each backward op, every dropped value that it reads is
 * recomputed by the op that made it. That op may need its own inputs recomputed first. This is a depth-first search
 * over producers. So each run of recomputed ops is as short as the kept values allow, and comes as late as possible. A
 * recomputed value stays until its last use in this microbatch, unless its choice drops it after each backward op. The
 * search ends because the graph is acyclic. An op is recomputed at most once per microbatch, or once per backward op
 * where its values are dropped each time: O(ops + uses) then holds per backward op.
 *
 * Where the schedule splits the backward half, ops that make only gradients of parameters wait for the weight slot.
 * Values recomputed for the first part stay for the second, so each microbatch between the two parts has its own record
 * of the present values.
 *
 * The schedule places the stage boundaries between slots, in one order for all stages (schedule_phases.c). A receive
 * may begin before its place in the list, because its queue runs ahead. So its memory is reserved as soon as the stage
 * has room for one more input: after the ops of a slot, as many as the schedule takes ahead.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/schedule.h"
#include "program/build.h"

/* Range of ops of one chunk, forward and backward. */
struct chunk_ops {
  int first[2], n[2];
};

struct sequencer {
  const struct lade_build_params *params;
  const struct lade_model_graph *graph;
  const struct lade_residency *residency;
  struct lade_pipeline pipeline;
  struct chunk_ops *chunks;
  struct lade_slot *slots;
  int32_t *reserved; /* by slot: the step before which memory for its input is reserved */
  int n_slots;
  int next_input; /* slots before this one have memory for their inputs, or need none */
  int n_held;     /* inputs with memory whose slots have not ended */
  struct lade_slot_phase *phases;
  int n_phases;
  int n_records;  /* microbatches between the parts of their backward half; 1 if it has one part */
  bool *records;  /* by record and tensor */
  bool *is_there; /* the record of the current slot: by tensor, made and not dropped */
  int *dropped;   /* values recomputed for the backward op at hand that are dropped after each */
  int n_dropped;
  int *stack;     /* ops whose inputs are being made; at most as deep as the forward graph */
  LADE_ARRAY(struct plan_step) steps;
};

static bool step_push(struct sequencer *s, int i_op, int microbatch, bool is_recompute)
{
  const struct lade_op *op = &s->graph->ops[i_op];
  if (!LADE_RESERVE(&s->steps))
    return false;
  s->steps.items[s->steps.n] = (struct plan_step){.op = i_op,
                                                  .microbatch = (int16_t)microbatch,
                                                  .is_recompute = is_recompute,
                                                  .is_backward = is_recompute || op->is_backward,
                                                  .reserved_pos = s->steps.n};
  s->steps.n++;
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] < 0)
      continue;
    const struct lade_choice choice = s->residency->choices[op->out[i]];
    const bool is_dropped = choice.saved == LADE_RESIDENCY_RECOMPUTE && choice.spill == LADE_RESIDENCY_RECOMPUTE;
    s->is_there[op->out[i]] = true;
    if (is_recompute && is_dropped)
      s->dropped[s->n_dropped++] = op->out[i];
  }
  return true;
}

/* Return an input of @i_op that must be recomputed before it can run, or -1. */
static int input_missing(const struct sequencer *s, int i_op)
{
  const struct lade_op *op = &s->graph->ops[plan_op_form(s->params, i_op)];
  for (int i = 0; i < op->n_in; i++) {
    int tensor = op->in[i];
    if (tensor >= 0 && s->graph->tensors[tensor].kind == LADE_TENSOR_ACTIVATION && !s->is_there[tensor])
      return tensor;
  }
  return -1;
}

/* Emit @op after all of its inputs. */
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

/* Make the record of @microbatch current. */
static void record_open(struct sequencer *s, int microbatch)
{
  s->is_there = s->records + (size_t)(microbatch % s->n_records) * (size_t)s->graph->n_tensors;
}

/* Mark the values that are kept after the forward pass: all that are not to be recomputed. */
static void saved_keep(struct sequencer *s)
{
  for (int i = 0; i < s->graph->n_tensors; i++)
    s->is_there[i] = s->residency->choices[i].saved != LADE_RESIDENCY_RECOMPUTE;
}

/* Drop values that were recomputed for the backward op just emitted, and that are made anew for the next one. */
static void dropped_forget(struct sequencer *s)
{
  while (s->n_dropped)
    s->is_there[s->dropped[--s->n_dropped]] = false;
}

/* ---- slots ---- */

/* True if @op makes gradients of parameters alone. */
static bool is_for_weights(const struct lade_model_graph *graph, const struct lade_op *op)
{
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] >= 0 && graph->tensors[op->out[i]].kind != LADE_TENSOR_GRAD)
      return false;
  }
  return op->n_out > 0;
}

static bool is_between_stages(const struct lade_op *op)
{
  return op->kind == LADE_OP_SEND || op->kind == LADE_OP_RECV;
}

static bool forward_emit(struct sequencer *s, const struct lade_slot *slot)
{
  const struct chunk_ops *chunk = &s->chunks[slot->chunk];
  bool is_ok = true;
  for (int op = chunk->first[0]; is_ok && op < chunk->first[0] + chunk->n[0]; op++)
    is_ok = is_between_stages(&s->graph->ops[op]) || step_push(s, op, slot->microbatch, false);
  return is_ok;
}

/* Emit a backward slot, or a weight slot. */
static bool backward_emit(struct sequencer *s, const struct lade_slot *slot)
{
  const struct chunk_ops *chunk = &s->chunks[slot->chunk];
  bool is_split = lade_schedule_is_split(&s->pipeline), is_ok = true;
  if (slot->half == LADE_HALF_BACKWARD)
    saved_keep(s);
  for (int i_op = chunk->first[1]; is_ok && i_op < chunk->first[1] + chunk->n[1]; i_op++) {
    const struct lade_op *op = &s->graph->ops[i_op];
    bool is_other = is_split && is_for_weights(s->graph, op) != (slot->half == LADE_HALF_WEIGHTS);
    if (is_other || is_between_stages(op))
      continue;
    is_ok = op_emit(s, i_op, slot->microbatch);
    dropped_forget(s);
  }
  return is_ok;
}

/*
 * Return the stage boundary op of @slot of kind @kind; a piece begins with its RECV and ends with its SEND. -1: none.
 */
static int boundary_find(const struct sequencer *s, const struct lade_slot *slot, enum lade_op_kind kind)
{
  if (slot->half == LADE_HALF_WEIGHTS)
    return -1;
  const struct chunk_ops *chunk = &s->chunks[slot->chunk];
  int op = chunk->first[slot->half] + (kind == LADE_OP_RECV ? 0 : chunk->n[slot->half] - 1);
  return s->graph->ops[op].kind == kind ? op : -1;
}

static bool boundary_emit(struct sequencer *s, int at, enum lade_op_kind kind)
{
  const struct lade_slot *slot = &s->slots[at];
  int op = boundary_find(s, slot, kind);
  LADE_ASSERT(op >= 0);
  if (!step_push(s, op, slot->microbatch, false))
    return false;
  if (kind == LADE_OP_RECV)
    s->steps.items[s->steps.n - 1].reserved_pos = s->reserved[at];
  return true;
}

/* Reserve memory for the inputs that the stage has room for. */
static void inputs_reserve(struct sequencer *s)
{
  for (; s->next_input < s->n_slots && s->n_held < lade_schedule_n_ahead(&s->pipeline); s->next_input++) {
    s->reserved[s->next_input] = s->steps.n;
    s->n_held += boundary_find(s, &s->slots[s->next_input], LADE_OP_RECV) >= 0;
  }
}

static bool phase_emit(struct sequencer *s, const struct lade_slot_phase *phase)
{
  const struct lade_slot *slot = &s->slots[phase->slot];
  if (phase->phase != LADE_PHASE_COMPUTE)
    return boundary_emit(s, phase->slot, phase->phase == LADE_PHASE_RECV ? LADE_OP_RECV : LADE_OP_SEND);
  record_open(s, slot->microbatch);
  if (!(slot->half == LADE_HALF_FORWARD ? forward_emit(s, slot) : backward_emit(s, slot)))
    return false;
  s->n_held -= boundary_find(s, slot, LADE_OP_RECV) >= 0;
  inputs_reserve(s);
  return true;
}

/* ---- whole sequence ---- */

static void chunks_find(struct sequencer *s)
{
  for (int i = 0; i < s->graph->n_units; i++) {
    const struct lade_unit *unit = &s->graph->units[i];
    struct chunk_ops *chunk = &s->chunks[unit->chunk];
    if (chunk->n[0] == 0)
      chunk->first[0] = unit->first_fwd;
    chunk->first[1] = unit->first_bwd; /* of its last unit, which comes first */
    chunk->n[0] += unit->n_fwd;
    chunk->n[1] += unit->n_bwd;
  }
}

static bool sequencer_init(struct sequencer *s, const struct lade_build_params *params)
{
  size_t n_tensors = (size_t)s->graph->n_tensors;
  s->pipeline = lade_pipeline_get(params->layout, params->n_microbatches, params->is_training);
  LADE_ASSERT(s->pipeline.n_stages == s->graph->share.pp && s->pipeline.n_chunks == s->graph->share.n_chunks);
  s->n_records = lade_schedule_is_split(&s->pipeline) ? 2 * s->pipeline.n_stages : 1; /* the longest lag is ZBH2's */
  s->chunks = calloc((size_t)s->pipeline.n_chunks, sizeof(*s->chunks));
  s->n_slots = lade_schedule_length(&s->pipeline);
  s->slots = calloc((size_t)s->n_slots, sizeof(*s->slots));
  s->reserved = calloc((size_t)s->n_slots, sizeof(*s->reserved));
  s->records = calloc((size_t)s->n_records * n_tensors, sizeof(*s->records));
  s->dropped = calloc(n_tensors, sizeof(*s->dropped));
  s->stack = calloc((size_t)s->graph->n_ops + 1, sizeof(*s->stack));
  if (!s->chunks || !s->slots || !s->reserved || !s->records || !s->dropped || !s->stack)
    return false;
  chunks_find(s);
  lade_schedule_order(&s->pipeline, s->graph->share.pp_rank, s->slots);
  record_open(s, 0);
  inputs_reserve(s);
  return !lade_schedule_phases(&s->pipeline, s->graph->share.pp_rank, &s->phases, &s->n_phases);
}

int plan_sequence(const struct lade_build_params *params, struct plan_step **ret_steps, int *ret_n_steps)
{
  struct sequencer s = {.params = params, .graph = params->graph, .residency = params->residency};
  bool is_ok = sequencer_init(&s, params);
  for (int at = 0; is_ok && at < s.n_phases; at++)
    is_ok = phase_emit(&s, &s.phases[at]);
  free(s.stack);
  free(s.dropped);
  free(s.records);
  free(s.phases);
  free(s.reserved);
  free(s.slots);
  free(s.chunks);
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
  const struct lade_model_graph *graph = params->graph;
  int32_t *ends = calloc((size_t)LADE_MAX(graph->n_params, 1), sizeof(*ends));
  const bool optimizer_in_backward = params->residency->optimizer_in_backward;
  for (int param = 0; ends && !optimizer_in_backward && param < graph->n_params; param++)
    ends[param] = n_steps;
  for (int pos = 0; ends && optimizer_in_backward && pos < n_steps; pos++) {
    const struct lade_op *op = &graph->ops[steps[pos].op];
    for (int i = 0; i < op->n_in + op->n_out; i++) {
      int tensor = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
      if (tensor >= 0 && graph->tensors[tensor].param >= 0)
        ends[graph->tensors[tensor].param] = pos + 1;
    }
  }
  for (int param = 0; ends && param < graph->n_params; param++) {
    if (graph->params[param].is_at_both_ends)
      ends[param] = n_steps;
  }
  return ends;
}
