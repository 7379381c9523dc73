/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emission, second half: what becomes of a gradient once it is complete.
 *
 * On one rank its sums of squares come at once, while it is on the device. Among data parallel ranks it is first summed
 * over them, on a queue of its own, while the backward half goes on; nothing on the compute queue looks at it until
 * it must: sums of squares come when the gradient leaves the device, when its parameter is updated early, or
 * after all steps. Then the verdict, and the updates, each where its parameter is at home.
 *
 * A microbatch's loss is summed over ranks before it goes to the host; the mean is taken there.
 */
#include <errno.h>
#include <stdlib.h>

#include "plan/build_internal.h"

/* Are there several data parallel ranks? */
static bool grads_are_reduced(const struct builder *b)
{
  return lade_layout_size(b->params->layout, LADE_AXIS_DP) > 1;
}

/* Sum what all data parallel ranks hold of @value, @bytes in @buffer, in place. */
static void all_reduce_emit(struct builder *b, int param, int32_t buffer, struct lade_value value, uint64_t bytes)
{
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_COLLECTIVE, lade_axis_queue(LADE_AXIS_DP));
  instr->collective = LADE_ALL_REDUCE;
  instr->axis = LADE_AXIS_DP;
  instr->param = param;
  instr->microbatch = value.microbatch;
  instr->predicted_ns = plan_collective_ns(b->params, LADE_ALL_REDUCE, LADE_AXIS_DP, bytes);
  operand_change(b, LADE_ROLE_SRC, buffer, value, bytes);
}

struct lade_value loss_reduce_emit(struct builder *b, int32_t buffer, struct lade_value loss)
{
  if (!grads_are_reduced(b))
    return loss;
  all_reduce_emit(b, -1, buffer, loss, lade_value_bytes(b->graph, loss.tensor));
  loss.version++;
  return loss;
}

/* Where the complete gradient of @param is, until it leaves. */
static int32_t grad_buffer(const struct builder *b, int param)
{
  return b->on_device[b->lives->first_interval[b->graph->params[param].grad + 1] - 1];
}

static void norm_emit(struct builder *b, int param)
{
  const int grad = b->graph->params[param].grad;
  int64_t first = b->first_partials[param], end = b->first_partials[param + 1];
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_NORM, LADE_Q_COMPUTE);
  instr->param = param;
  instr->microbatch = (int16_t)(b->params->n_microbatches - 1);
  instr->predicted_ns = b->params->prices->norm_ns[param];
  operand_read(b, LADE_ROLE_SRC, grad_buffer(b, param), value_now(b, grad), lade_value_bytes(b->graph, grad));
  struct lade_value partials = {lade_value_scalar(b->graph, LADE_SCALAR_PARTIALS), 0, 0};
  operand_add(b, LADE_ROLE_DST, b->partials, LADE_MAKES, (struct lade_value){-1, 0, 0}, partials,
              (uint64_t)first * sizeof(double), (uint64_t)(end - first) * sizeof(double));
}

void norm_settle(struct builder *b, int param)
{
  if (b->is_norm_due[param])
    norm_emit(b, param);
  b->is_norm_due[param] = false;
}

void grad_complete_emit(struct builder *b, int param)
{
  const int grad = b->graph->params[param].grad;
  if (!grads_are_reduced(b)) {
    norm_emit(b, param);
    return;
  }
  all_reduce_emit(b, param, grad_buffer(b, param), value_now(b, grad), lade_value_bytes(b->graph, grad));
  b->grad_versions[param]++;
  b->is_norm_due[param] = true;
}

/* ---- the end of a step ---- */

/* What decides about an update: the verdict as a value, and where it lies. */
struct ruling {
  struct lade_value value;
  int32_t on_device, on_host; /* on_host -1: the update reaches device memory */
};

static void clip_emit(struct builder *b, int param, const struct ruling *ruling)
{
  const int partials = lade_value_scalar(b->graph, LADE_SCALAR_PARTIALS);
  int64_t first = param < 0 ? 0 : b->first_partials[param];
  int64_t end = b->first_partials[param < 0 ? b->graph->n_params : param + 1];
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_CLIP, LADE_Q_COMPUTE);
  instr->param = param;
  instr->predicted_ns = b->params->prices->clip_ns;
  operand_add(b, LADE_ROLE_SRC, b->partials, LADE_READS, (struct lade_value){partials, 0, 0},
              (struct lade_value){-1, 0, 0}, (uint64_t)first * sizeof(double),
              (uint64_t)(end - first) * sizeof(double));
  operand_make(b, LADE_ROLE_DST, ruling->on_device, ruling->value, sizeof(struct lade_verdict));
  if (ruling->on_host >= 0)
    transfer_emit(b, ruling->on_device, ruling->on_host, ruling->value);
}

static void update_emit(struct builder *b, int param, const struct ruling *ruling)
{
  static const enum lade_queue_id queues[] = {LADE_Q_COMPUTE, LADE_Q_HOST, LADE_Q_IO};
  const struct lade_graph *graph = b->graph;
  const int home = b->params->residency->homes[param], weight = graph->params[param].tensor;
  const int grad = graph->params[param].grad;
  int at = b->lives->first_interval[grad + 1] - 1;
  int32_t grad_buffer = b->lives->intervals[at].leave_slot >= 0 ? b->elsewhere[grad] : b->on_device[at];
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_UPDATE, queues[home]);
  instr->param = param;
  instr->is_streamed = home == LADE_HOME_STORE;
  instr->predicted_ns = b->params->prices->update_ns[home][param];
  operand_change(b, LADE_ROLE_WEIGHT, b->elsewhere[weight], (struct lade_value){weight, 0, 0},
                 lade_value_bytes(graph, weight));
  operand_read(b, LADE_ROLE_GRAD, grad_buffer, value_now(b, grad), lade_value_bytes(graph, grad));
  for (int part = 0; part < LADE_N_PARTS; part++) {
    int tensor = lade_value_part(graph, param, (enum lade_part)part);
    if (tensor >= 0)
      operand_change(b, LADE_ROLE_RESIDUAL + part, b->part_buffers[param * LADE_N_PARTS + part],
                     (struct lade_value){tensor, 0, 0}, lade_value_bytes(graph, tensor));
  }
  bool is_on_device = home == LADE_HOME_DEVICE || ruling->on_host < 0;
  operand_read(b, LADE_ROLE_VERDICT, is_on_device ? ruling->on_device : ruling->on_host, ruling->value,
               sizeof(struct lade_verdict));
  if (home != LADE_HOME_STORE)
    return;
  bool is_grad_stored = b->buffers.items[grad_buffer].space == LADE_STORE;
  uint64_t bytes = lade_stream_scratch_bytes(graph, param, is_grad_stored);
  enum lade_space space = b->params->is_unified ? LADE_DEVICE : LADE_HOST;
  operand_make(b, LADE_ROLE_SCRATCH, buffer_make(b, space, LADE_OWNER_WORKSPACE, bytes, false),
               (struct lade_value){-1, 0, 0}, bytes);
}

/* One parameter's verdict and its update, in the middle of the backward half. */
void early_emit(struct builder *b, int param)
{
  const uint64_t bytes = sizeof(struct lade_verdict);
  const int verdict = lade_value_scalar(b->graph, LADE_SCALAR_VERDICT);
  struct ruling ruling = {{verdict, 0, (int16_t)(param + 1)}, -1, -1};
  ruling.on_device = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, bytes, false);
  const int home = b->params->residency->homes[param];
  if (home == LADE_HOME_HOST || (home == LADE_HOME_STORE && !b->params->is_unified))
    ruling.on_host = buffer_make(b, LADE_HOST, LADE_OWNER_TRANSIENT, bytes, false);
  norm_settle(b, param);
  clip_emit(b, param, &ruling);
  update_emit(b, param, &ruling);
}

static int early_compare(const void *x, const void *y)
{
  const struct early *a = x, *b = y;
  return a->slot != b->slot ? (a->slot > b->slot) - (a->slot < b->slot) : (a->param > b->param) - (a->param < b->param);
}

/* An update comes in the slot after the last step that it must follow, and not before its gradient has left. */
int early_order(struct builder *b)
{
  b->early = calloc((size_t)b->graph->n_params + 1, sizeof(*b->early));
  if (!b->early)
    return -ENOMEM;
  LADE_ASSERT(b->graph->n_params <= LADE_EARLY_PARAMS_MAX);
  for (int param = 0; param < b->graph->n_params; param++) {
    int last = b->lives->first_interval[b->graph->params[param].grad + 1] - 1;
    b->early[param] = (struct early){LADE_MAX(b->update_ends[param], b->lives->intervals[last].leave_slot), param};
  }
  qsort(b->early, (size_t)b->graph->n_params, sizeof(*b->early), early_compare);
  return 0;
}

void end_emit(struct builder *b)
{
  const struct lade_graph *graph = b->graph;
  const struct ruling whole = {{lade_value_scalar(graph, LADE_SCALAR_VERDICT), 0, 0}, b->verdict, b->verdict_host};
  for (int param = graph->n_params - 1; param >= 0; param--) /* about in the order in which they were summed */
    norm_settle(b, param);
  clip_emit(b, -1, &whole);
  for (int param = 0; !b->early && param < graph->n_params && !b->status; param++)
    update_emit(b, param, &whole);
}
