/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emission: working copies in shards, and the end of a step.
 *
 * When all gradients are complete (build_grads.c), the clip result over their sums of squares is computed. Then the
 * updates run, each in its parameter's state tier. If state is in shards, this rank updates its block. The next step
 * gathers the working copy at the slots of liveness.c: once if it has memory for the whole step, else before each use.
 * Gathers of one slot are adjacent in the list and form a group.
 *
 * If the update does not reach the device, a working copy there is copied to the host before its update and back after
 * it. The copies of the next parameter overlap the update.
 *
 * With optimizer_in_backward a parameter has its own clip result and is updated inside the backward half. Only a table
 * that both ends of a pipeline hold is updated after all steps, because its gradient is complete there.
 */
#include <errno.h>
#include <stdlib.h>

#include "program/build/build_internal.h"

/* ---- working copies in shards ---- */

/* Gather the ranks' blocks, of which @own is this rank's, into @whole at the beginning of @dst. */
static void all_gather_emit(struct builder *b, enum lade_axis axis, int param, struct held own, int32_t dst,
                            struct lade_value whole)
{
  uint64_t bytes = value_bytes(b, whole.tensor);
  collective_begin(b, LADE_ALL_GATHER, axis, param, 0, bytes);
  operand_read_at(b, LADE_ROLE_SRC, own.at, own.value, value_bytes(b, own.value.tensor));
  operand_make(b, LADE_ROLE_DST, dst, whole, bytes);
}

struct value_place weight_block_emit(struct builder *b, int param, int32_t buffer)
{
  const int weight = b->graph->params[param].tensor, tier = b->params->residency->weight_tiers[param];
  const struct lade_value block = {lade_value_block(b->graph, param, LADE_BLOCK_WEIGHT), 0, 0};
  const uint64_t bytes = value_bytes(b, block.tensor);
  const uint64_t at_rest = plan_is_gathered_in_place(b->params, param) ? own_offset(b, bytes) : 0;
  const struct value_place src = {b->elsewhere[weight], at_rest};
  struct value_place landing = {buffer, own_offset(b, bytes)};
  if (tier == LADE_TIER_DEVICE)
    return src;
  if (tier == LADE_TIER_STORE) /* drives need whole pages */
    landing = (struct value_place){buffer_make(b, LADE_DEVICE, LADE_OWNER_COMM, bytes, false), 0};
  transfer_emit(b, src, landing, block);
  return landing;
}

void weight_gather_emit(struct builder *b, int param, struct value_place block, int32_t buffer)
{
  const struct held own = {block, {lade_value_block(b->graph, param, LADE_BLOCK_WEIGHT), 0, 0}};
  const struct lade_value whole = {b->graph->params[param].tensor, 0, 0};
  all_gather_emit(b, LADE_AXIS_SHARD, param, own, buffer, whole);
}

/* ---- the end of a step ---- */

/* The clip result that an update reads: the value, and its buffers. */
struct clip_place {
  struct lade_value value;
  int32_t on_device, on_host; /* on_host -1: the update reaches device memory */
};

/* Place and bytes of the sums of squares gathered so far. */
struct summed {
  int tensor;
  int32_t buffer;
  uint64_t bytes;
};

/* Add up the sums of squares in @now, and gather those of all ranks of @level in the order of ranks. */
static void level_emit(struct builder *b, int level, struct summed *now)
{
  const enum lade_axis axis = lade_sums_axis(level);
  const struct lade_value sum = {lade_value_scalar(b->graph, LADE_SCALAR_SUM), 0, (int16_t)level};
  const struct lade_value sums = {lade_value_scalar(b->graph, (enum lade_scalar)(LADE_SCALAR_SUMS + level)), 0, 0};
  int32_t buffer = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, value_bytes(b, sums.tensor), false);
  struct value_place own = {buffer, sizeof(double) * (uint64_t)lade_layout_position(b->params->layout, axis)};
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_SUM, LADE_Q_COMPUTE);
  instr->axis = (uint8_t)axis;
  instr->predicted_ns = b->params->prices->clip_ns;
  operand_read(b, LADE_ROLE_SRC, now->buffer, (struct lade_value){now->tensor, 0, 0}, now->bytes);
  operand_make_at(b, LADE_ROLE_DST, own, sum, sizeof(double));
  all_gather_emit(b, axis, -1, (struct held){own, sum}, buffer, sums);
  *now = (struct summed){sums.tensor, buffer, value_bytes(b, sums.tensor)};
}

/* Emit the sum over levels; return this rank's partials, or the gathered sums of all ranks. */
static struct summed sums_emit(struct builder *b)
{
  struct summed now = {lade_value_scalar(b->graph, LADE_SCALAR_PARTIALS), b->partials,
                       (uint64_t)lade_summed_partials(b->graph, b->params->layout) * sizeof(double)};
  for (int level = 0; level < LADE_SUM_LEVELS; level++) {
    if (lade_sums_size(b->params->layout, level) > 1)
      level_emit(b, level, &now);
  }
  return now;
}

static void clip_emit(struct builder *b, int param, const struct clip_place *clip)
{
  struct summed now = {lade_value_scalar(b->graph, LADE_SCALAR_PARTIALS), b->partials, 0};
  uint64_t offset = param < 0 ? 0 : (uint64_t)b->first_partials[param] * sizeof(double);
  if (param < 0)
    now = sums_emit(b);
  else
    now.bytes = (uint64_t)b->first_partials[param + 1] * sizeof(double) - offset;
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_CLIP, LADE_Q_COMPUTE);
  instr->param = param;
  instr->predicted_ns = b->params->prices->clip_ns;
  operand_read_at(b, LADE_ROLE_SRC, (struct value_place){now.buffer, offset}, (struct lade_value){now.tensor, 0, 0},
                  now.bytes);
  operand_make(b, LADE_ROLE_DST, clip->on_device, clip->value, sizeof(struct lade_clip_result));
  if (clip->on_host >= 0)
    transfer_emit(b, (struct value_place){clip->on_device, 0}, (struct value_place){clip->on_host, 0},
                  clip->value);
}

/* Return the tensor whose next version an update makes: the working copy, or this rank's block of it. */
static int updated_tensor(const struct builder *b, int param)
{
  return is_sharded(b) ? lade_value_block(b->graph, param, LADE_BLOCK_WEIGHT) : b->graph->params[param].tensor;
}

/* Return the place of the working copy, or its block, in the weight tier. */
static struct value_place weight_place(const struct builder *b, int param)
{
  const bool is_in_place = plan_is_gathered_in_place(b->params, param);
  uint64_t offset = is_in_place ? own_offset(b, value_bytes(b, updated_tensor(b, param))) : 0;
  return (struct value_place){b->elsewhere[b->graph->params[param].tensor], offset};
}

/* Copy the working copy of @param to a space that its update reaches. Return the copy's buffer; -1: not needed. */
static int32_t weight_out_emit(struct builder *b, int param)
{
  if (!plan_is_weight_copied(b->params, param))
    return -1;
  const struct lade_value value = {updated_tensor(b, param), 0, 0}, whole = {b->graph->params[param].tensor, 0, 0};
  int32_t copy = buffer_make(b, LADE_HOST, LADE_OWNER_PARAMETERS, value_bytes(b, value.tensor), false);
  move_emit(b, weight_place(b, param), plan_is_gathered_in_place(b->params, param) ? whole : value,
            (struct value_place){copy, 0}, value);
  return copy;
}

/* Add the weight operand of an update: the working copy in its tier, or its @copy. */
static void update_weight_add(struct builder *b, int param, int32_t copy)
{
  const struct lade_value value = {updated_tensor(b, param), 0, 0}, next = {value.tensor, 0, 1};
  const struct lade_value whole = {b->graph->params[param].tensor, 0, 0};
  const struct value_place place = copy < 0 ? weight_place(b, param) : (struct value_place){copy, 0};
  const bool is_of_whole = copy < 0 && plan_is_gathered_in_place(b->params, param);
  operand_add(b, &(struct lade_operand){.buffer = place.buffer, .offset = place.offset,
                                        .bytes = value_bytes(b, value.tensor), .role = LADE_ROLE_WEIGHT,
                                        .access = LADE_READS_AND_MAKES, .makes = next,
                                        .reads = is_of_whole ? whole : value});
}

/* Return the gradient for the update of @param, wherever it is. */
static struct held update_grad(const struct builder *b, int param)
{
  const int grad = b->graph->params[param].grad;
  if (is_sharded(b))
    return (struct held){grad_place(b, param), grad_now(b, param)};
  int at = b->live->first_range[grad + 1] - 1;
  int32_t buffer = b->live->ranges[at].leave_slot >= 0 ? b->elsewhere[grad] : grad_place(b, param).buffer;
  return (struct held){{buffer, 0}, grad_now(b, param)};
}

static struct lade_stream_need stream_need(const struct builder *b, int param)
{
  bool is_grad_stored = !b->status && b->buffers.items[update_grad(b, param).at.buffer].space == LADE_STORE;
  bool is_weight_stored = b->params->residency->weight_tiers[param] == LADE_TIER_STORE;
  return lade_stream_need(&(struct lade_stream_params){b->graph, b->params->layout, b->params->prices->streaming, param,
                                                       is_weight_stored, is_grad_stored});
}

static int32_t scratch_make(struct builder *b, struct lade_stream_need need, bool is_shared)
{
  enum lade_space space = b->params->is_unified ? LADE_DEVICE : LADE_HOST;
  return buffer_make(b, space, LADE_OWNER_WORKSPACE, lade_stream_scratch_bytes(need, is_shared), false);
}

/* Make the scratch of all updates that come after all steps. */
static int32_t shared_scratch_make(struct builder *b)
{
  struct lade_stream_need all = {0};
  for (int param = 0; param < b->graph->n_params && !b->status; param++) {
    if (b->params->residency->state_tiers[param] != LADE_TIER_STORE)
      continue;
    lade_stream_need_add(&all, stream_need(b, param));
  }
  return scratch_make(b, all, true);
}

/* True if the next streamed update begins a run of them. Updates within the backward half are not in runs. */
static bool is_run_begun(const struct builder *b)
{
  return b->backward_updates || b->stream < 0;
}

/*
 * Add the windows of a streamed update. One within the backward half has its own, which end before activations need the
 * memory.
 */
static void update_scratch_add(struct builder *b, int param)
{
  if (!b->backward_updates && b->stream < 0)
    b->stream = shared_scratch_make(b);
  int32_t buffer = b->backward_updates ? scratch_make(b, stream_need(b, param), false) : b->stream;
  operand_make(b, LADE_ROLE_SCRATCH, buffer, nothing, b->status ? 0 : b->buffers.items[buffer].bytes);
}

/* Emit an update. @copy: the working copy's buffer from weight_out_emit; the updated copy goes back to its tier. */
static void update_emit(struct builder *b, int param, const struct clip_place *clip, int32_t copy)
{
  static const enum lade_queue_id queues[] = {LADE_Q_COMPUTE, LADE_Q_HOST, LADE_Q_IO};
  const struct lade_model_graph *graph = b->graph;
  const int tier = b->params->residency->state_tiers[param];
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_UPDATE, queues[tier]);
  instr->param = param;
  instr->is_streamed = tier == LADE_TIER_STORE;
  int64_t ns = plan_update_ns(b->params, param);
  if (instr->is_streamed && is_run_begun(b))
    ns += b->params->prices->stream_edge_ns[param];
  instr->predicted_ns = share_ns(b, ns);
  update_weight_add(b, param, copy);
  const struct held grad = update_grad(b, param);
  operand_read_at(b, LADE_ROLE_GRAD, grad.at, grad.value, value_bytes(b, grad.value.tensor));
  for (int part = 0; part < LADE_N_PARTS; part++) {
    int tensor = lade_value_part(graph, param, (enum lade_part)part);
    if (tensor >= 0)
      operand_change(b, LADE_ROLE_RESIDUAL + part, b->part_buffers[param * LADE_N_PARTS + part],
                     (struct lade_value){tensor, 0, 0}, value_bytes(b, tensor));
  }
  bool is_on_device = tier == LADE_TIER_DEVICE || clip->on_host < 0;
  operand_read(b, LADE_ROLE_CLIP_RESULT, is_on_device ? clip->on_device : clip->on_host, clip->value,
               sizeof(struct lade_clip_result));
  if (tier == LADE_TIER_STORE)
    update_scratch_add(b, param);
  const struct lade_value value = {updated_tensor(b, param), 0, 1};
  if (copy >= 0)
    move_emit(b, (struct value_place){copy, 0}, value, weight_place(b, param), value);
}

/* Emit one parameter's clip result and its update, in the middle of the backward half. */
void backward_update_emit(struct builder *b, int param)
{
  const uint64_t bytes = sizeof(struct lade_clip_result);
  const int clip_result = lade_value_scalar(b->graph, LADE_SCALAR_CLIP_RESULT);
  struct clip_place clip = {{clip_result, 0, (int16_t)(param + 1)}, -1, -1};
  clip.on_device = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, bytes, false);
  const int tier = b->params->residency->state_tiers[param];
  if (tier == LADE_TIER_HOST || (tier == LADE_TIER_STORE && !b->params->is_unified))
    clip.on_host = buffer_make(b, LADE_HOST, LADE_OWNER_TRANSIENT, bytes, false);
  grads_settle(b, b->graph->params[param].is_at_both_ends);
  sumsq_settle(b, param);
  clip_emit(b, param, &clip);
  update_emit(b, param, &clip, weight_out_emit(b, param));
}

static int backward_update_compare(const void *x, const void *y)
{
  const struct backward_update *a = x, *b = y;
  return a->slot != b->slot ? (a->slot > b->slot) - (a->slot < b->slot) : (a->param > b->param) - (a->param < b->param);
}

/*
 * Find the order of updates within the backward half. Each comes in the slot after the last step that it must follow,
 * and after its gradient has left.
 */
int backward_updates_order(struct builder *b)
{
  b->backward_updates = calloc((size_t)b->graph->n_params + 1, sizeof(*b->backward_updates));
  if (!b->backward_updates)
    return -ENOMEM;
  LADE_ASSERT(b->graph->n_params <= LADE_IN_BACKWARD_PARAMS_MAX);
  for (int param = 0; param < b->graph->n_params; param++) {
    int last = b->live->first_range[b->graph->params[param].grad + 1] - 1;
    const int32_t slot = LADE_MAX(b->update_ends[param], b->live->ranges[last].leave_slot);
    b->backward_updates[param] = (struct backward_update){slot, param};
  }
  qsort(b->backward_updates, (size_t)b->graph->n_params, sizeof(*b->backward_updates), backward_update_compare);
  return 0;
}

void end_emit(struct builder *b)
{
  const struct lade_model_graph *graph = b->graph;
  const struct clip_place whole = {{lade_value_scalar(graph, LADE_SCALAR_CLIP_RESULT), 0, 0}, b->clip_result,
                               b->clip_result_host};
  grads_settle(b, true);
  for (int param = graph->n_params - 1; param >= 0; param--) /* roughly in the order in which they were summed */
    sumsq_settle(b, param);
  clip_emit(b, -1, &whole);
  if (b->backward_updates)
    return;
  int32_t next = graph->n_params ? weight_out_emit(b, 0) : -1;
  for (int param = 0; param < graph->n_params && !b->status; param++) {
    int32_t copy = next;
    next = param + 1 < graph->n_params ? weight_out_emit(b, param + 1) : -1;
    update_emit(b, param, &whole, copy);
  }
}
