/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lower bound of every device budget: no program that runs this graph's ops at this microbatch, its backward ops once
 * each and in their order, needs less. It is the larger of two bounds.
 *
 * First, while an op runs, its operands and its scratch are in device memory. An output that may take over an input's
 * memory counts once with it.
 *
 * Second, all live bytes are in some tier. Forward values can be recomputed from the tokens, so they need no memory.
 * But while a backward op runs, these are live: parameters with optimizer state, the gradients of parameters made so
 * far, this op's operands, and outputs of backward ops that later ops still read. The bytes that exceed the other
 * tiers' capacity are on the device. With optimizer_in_backward and one microbatch, the gradients made so far are those
 * to which a later op still adds. With several microbatches all of them wait at the end of the first. Of gradients that
 * are rounded, the rounded form counts from there on, under the same condition.
 */
#include <stdlib.h>

#include "parallel/schedule.h"
#include "recompute/search/descent.h"

static uint64_t padded(uint64_t bytes)
{
  return plan_buffer_bytes(LADE_DEVICE, bytes);
}

static bool is_input_repeated(const struct lade_op *op, int i)
{
  for (int k = 0; k < i; k++) {
    if (op->in[k] == op->in[i])
      return true;
  }
  return false;
}

/* Return the bytes that @op needs at once; without parameters and their gradients unless @has_state. */
static uint64_t form_bytes(const struct lade_model_graph *graph, const struct lade_op *op, bool has_state)
{
  uint64_t bytes = op->workspace_bytes ? padded(op->workspace_bytes) : 0;
  for (int i = 0; i < op->n_in; i++) {
    if (op->in[i] < 0 || is_input_repeated(op, i))
      continue;
    if (has_state || graph->tensors[op->in[i]].kind != LADE_TENSOR_PARAM)
      bytes += padded(graph->tensors[op->in[i]].bytes);
  }
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] < 0 || (!has_state && graph->tensors[op->out[i]].kind == LADE_TENSOR_GRAD))
      continue;
    if (op->alias[i] < 0 || op->in[op->alias[i]] < 0)
      bytes += padded(graph->tensors[op->out[i]].bytes);
  }
  return bytes;
}

/* Return the same of the form of @op that needs less. */
static uint64_t op_bytes(const struct lade_model_graph *graph, const struct lade_op *op, bool has_state)
{
  uint64_t bytes = form_bytes(graph, op, has_state);
  return op->lean < 0 ? bytes : LADE_MIN(bytes, form_bytes(graph, &graph->ops[op->lean], has_state));
}

/* Return the state bytes of this rank's shards; working copies may be gathered. */
static uint64_t state_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout)
{
  uint64_t bytes = 0;
  for (int param = 0; param < graph->n_params; param++) {
    bytes += padded(lade_held_bytes(graph, layout, lade_value_block(graph, param, LADE_BLOCK_WEIGHT)));
    for (int part = 0; part < LADE_N_PARTS; part++) {
      int tensor = lade_value_part(graph, param, (enum lade_part)part);
      bytes += tensor < 0 ? 0 : padded(lade_held_bytes(graph, layout, tensor));
    }
  }
  return bytes;
}

static bool is_backward_value(const struct lade_model_graph *graph, int tensor)
{
  const struct lade_tensor *value = &graph->tensors[tensor];
  return value->kind == LADE_TENSOR_ACTIVATION && graph->ops[value->producer].is_backward;
}

/*
 * Fill, by op, the bytes of backward values that wait while it runs: made before, read after, and no operands of it.
 * @last_use is scratch, by tensor.
 */
static void waiting_count(const struct lade_model_graph *graph, int *last_use, int64_t *waiting)
{
  for (int i = 0; i < graph->n_ops; i++) {
    for (int k = 0; k < graph->ops[i].n_in; k++) {
      if (graph->ops[i].in[k] >= 0)
        last_use[graph->ops[i].in[k]] = i;
    }
  }
  for (int tensor = 0; tensor < graph->n_tensors; tensor++) {
    if (!is_backward_value(graph, tensor) || last_use[tensor] <= graph->tensors[tensor].producer)
      continue;
    waiting[graph->tensors[tensor].producer + 1] += (int64_t)padded(graph->tensors[tensor].bytes);
    waiting[last_use[tensor]] -= (int64_t)padded(graph->tensors[tensor].bytes);
  }
  for (int i = 1; i < graph->n_ops; i++)
    waiting[i] += waiting[i - 1];
  for (int i = 0; i < graph->n_ops; i++) {
    const struct lade_op *op = &graph->ops[i];
    for (int k = 0; k < op->n_in; k++) {
      bool is_waiting = op->in[k] >= 0 && is_backward_value(graph, op->in[k]) && last_use[op->in[k]] > i;
      if (is_waiting && !is_input_repeated(op, k))
        waiting[graph->n_ops + i] -= (int64_t)padded(graph->tensors[op->in[k]].bytes);
    }
  }
}

/* By parameter, the first and the last op of a microbatch that add to its gradient. */
struct adds {
  int first, last;
};

static struct adds *adds_find(const struct lade_model_graph *graph)
{
  struct adds *adds = malloc((size_t)LADE_MAX(graph->n_params, 1) * sizeof(*adds));
  for (int param = 0; adds && param < graph->n_params; param++)
    adds[param] = (struct adds){graph->n_ops, -1};
  for (int i = 0; adds && i < graph->n_ops; i++) {
    for (int k = 0; k < graph->ops[i].n_out; k++) {
      const struct lade_tensor *out = graph->ops[i].out[k] < 0 ? NULL : &graph->tensors[graph->ops[i].out[k]];
      if (!out || out->kind != LADE_TENSOR_GRAD)
        continue;
      adds[out->param].first = LADE_MIN(adds[out->param].first, i);
      adds[out->param].last = i;
    }
  }
  return adds;
}

/*
 * Return the bytes of blocks of kind @block of the gradients whose first (@is_last: whose last) addition op @i makes.
 */
static uint64_t grads_at(const struct lade_model_graph *graph, const struct lade_layout *layout,
                         const struct adds *adds, int i, bool is_last, enum lade_block block)
{
  const struct lade_op *op = &graph->ops[i];
  uint64_t bytes = 0;
  for (int k = 0; k < op->n_out; k++) {
    int param = op->out[k] < 0 ? -1 : graph->tensors[op->out[k]].param;
    if (param >= 0 && (is_last ? adds[param].last : adds[param].first) == i)
      bytes += padded(lade_held_bytes(graph, layout, lade_value_block(graph, param, block)));
  }
  return bytes;
}

/*
 * Return the most bytes that are live at once in all tiers together. 0, which is a valid bound, if out of memory.
 * @is_one: one microbatch alone.
 */
static uint64_t somewhere_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout, bool is_one,
                                bool optimizer_in_backward)
{
  uint64_t state = state_bytes(graph, layout), max = 0;
  struct adds *adds = adds_find(graph);
  int *last_use = calloc((size_t)graph->n_tensors, sizeof(*last_use));
  int64_t *waiting = calloc((size_t)graph->n_ops * 2 + 1, sizeof(*waiting)); /* sums of waiting values, then changes
                                                                                by operands */
  bool is_ready = adds && last_use && waiting;
  if (is_ready)
    waiting_count(graph, last_use, waiting);
  for (int i = 0; i < graph->n_ops && is_ready; i++) {
    state += grads_at(graph, layout, adds, i, false, LADE_BLOCK_GRAD);
    uint64_t op = op_bytes(graph, &graph->ops[i], false);
    max = LADE_MAX(max, state + op + (uint64_t)(waiting[i] + waiting[graph->n_ops + i]));
    if (is_one && (optimizer_in_backward || lade_model_graph_rounds(graph)))
      state -= grads_at(graph, layout, adds, i, true, LADE_BLOCK_GRAD);
    if (is_one && !optimizer_in_backward && lade_model_graph_rounds(graph))
      state += grads_at(graph, layout, adds, i, true, LADE_BLOCK_ROUNDED);
  }
  free(waiting);
  free(last_use);
  free(adds);
  return max;
}

/*
 * True if a split schedule leaves all gradients of parameters to the end of the step. A stage makes them as many
 * microbatches late as there are stages before it. Then they do not wait during backward ops, and only the first bound
 * holds.
 */
static bool is_late(const struct lade_plan_params *params)
{
  const struct lade_pipeline pipeline = lade_pipeline_get(params->layout, params->n_microbatches, true);
  return lade_schedule_is_split(&pipeline) && params->n_microbatches <= params->graph->share.pp_rank;
}

uint64_t plan_lower_bound(const struct lade_plan_params *params)
{
  uint64_t max = 0, tiers = params->host_bytes + params->store_bytes;
  for (int i = 0; i < params->graph->n_ops; i++)
    max = LADE_MAX(max, op_bytes(params->graph, &params->graph->ops[i], true));
  const bool is_one = params->n_microbatches == 1;
  uint64_t all = is_late(params) ? 0 : somewhere_bytes(params->graph, params->layout, is_one,
                                                       params->optimizer_in_backward);
  if (tiers >= params->host_bytes && all > tiers) /* else the sum wrapped: the tiers have no limit */
    max = LADE_MAX(max, all - tiers);
  return lade_align_up(max, params->chunk_bytes);
}
