/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emission: from a complete gradient to its sums of squares.
 *
 * On one rank the sums of squares follow at once, while the gradient is on the device. On several ranks the gradient is
 * first summed over them, on a queue of its own, beside the rest of the backward half. The compute queue uses the sum
 * as late as possible: sums of squares follow when the gradient leaves the device, when its parameter is updated within
 * the backward half, or after all steps.
 *
 * If state is in shards (ZeRO), a reduce-scatter leaves each rank its block of the sum. Stage 1 reduces the gradient of
 * all microbatches, in place. Stages 2 and 3 reduce each microbatch's gradient and add it to the block, so no whole
 * gradient outlives its microbatch. Until the next microbatch the block may wait outside the device (liveness.c decides
 * it); it is copied in for the addition. With replicas of shards (hybrid sharding) complete blocks are also summed over
 * the replicas.
 *
 * With sums in BF16 a gradient is narrowed before it goes to other ranks. The sum is widened to the place of an F32
 * sum. Tensor parallel ranks and both ends of a pipeline still sum in F32.
 *
 * liveness.c divides reductions into batches. The collectives of a batch are adjacent in the list and form groups. The
 * compute queue's work on a reduction in flight (add it, widen it, round it, copy it to its tier) follows
 * REDUCTIONS_IN_FLIGHT batches later.
 *
 * The gradient of a table that both ends of a pipeline hold is then summed over the first and the last stage, after all
 * steps. The last stage completes it long before the first, and would deadlock if it waited for the first stage there.
 * So this gradient is reduced last, with optimizer_in_backward too.
 *
 * If the update takes gradients in another type than the accumulator's, a gradient is rounded once, when it is complete
 * over all ranks. Sums of squares, copies and the update use the rounded gradient, and the memory of the unrounded one
 * is free.
 *
 * A microbatch's loss is summed over ranks before it goes to the host, where the mean is taken.
 */
#include <errno.h>

#include "program/build/build_internal.h"

/* True if gradients are summed over data parallel ranks in BF16. */
static bool is_narrow(const struct builder *b)
{
  return lade_layout_size(b->params->layout, LADE_AXIS_DP) > 1 && b->params->layout->grad_reduce == LADE_BF16;
}

/* ---- collectives ---- */

/* Sum @bytes of @value over all ranks of @axis, in place; the rest of it is unchanged. */
static void sum_emit(struct builder *b, enum lade_axis axis, int param, struct value_place at, struct lade_value value,
                     uint64_t bytes)
{
  struct lade_operand operand = {.buffer = at.buffer, .offset = at.offset, .bytes = value_bytes(b, value.tensor),
                                 .role = LADE_ROLE_SRC, .access = LADE_READS_AND_MAKES, .reads = value, .makes = value};
  operand.makes.version++;
  collective_begin(b, LADE_ALL_REDUCE, axis, param, value.microbatch, bytes);
  operand_add(b, &operand);
}

static void all_reduce_emit(struct builder *b, enum lade_axis axis, int param, struct value_place at,
                            struct lade_value value)
{
  sum_emit(b, axis, param, at, value, value_bytes(b, value.tensor));
}

struct lade_value loss_reduce_emit(struct builder *b, int32_t buffer, struct lade_value loss)
{
  if (lade_layout_size(b->params->layout, LADE_AXIS_DP) == 1)
    return loss;
  all_reduce_emit(b, LADE_AXIS_DP, -1, (struct value_place){buffer, 0}, loss);
  loss.version++;
  return loss;
}

/* ---- gradients ---- */

/* Return the buffer of the gradient of @param, or its last buffer before its block was reduced. */
static int32_t grad_buffer(const struct builder *b, int param)
{
  return b->on_device[b->now[b->graph->params[param].grad].at];
}

/* Return the value of this rank's block of the gradient at this point of the list. */
static struct lade_value block_now(const struct builder *b, int param)
{
  if (b->is_rounded[param])
    return (struct lade_value){lade_value_block(b->graph, param, LADE_BLOCK_ROUNDED), 0, 0};
  return (struct lade_value){lade_value_block(b->graph, param, LADE_BLOCK_GRAD), 0, b->block_versions[param]};
}

/* Return the place of the block: in place, it is among the other ranks' blocks. */
static struct value_place block_place(const struct builder *b, int param)
{
  bool is_in_place = b->block_buffers[param] == grad_buffer(b, param);
  uint64_t offset = is_in_place ? own_offset(b, value_bytes(b, block_now(b, param).tensor)) : 0;
  return (struct value_place){b->block_buffers[param], offset};
}

struct lade_value grad_now(const struct builder *b, int param)
{
  return is_sharded(b) || b->is_rounded[param] ? block_now(b, param) : value_now(b, b->graph->params[param].grad);
}

struct value_place grad_place(const struct builder *b, int param)
{
  return is_sharded(b) || b->is_rounded[param] ? block_place(b, param) : (struct value_place){grad_buffer(b, param), 0};
}

/* Return the time of moving @n_bytes per element, scaled from that of a norm, which reads one number per element. */
static int64_t moves_ns(const struct builder *b, int param, size_t n_bytes)
{
  const int64_t read_bytes = (int64_t)lade_dtype_bytes(b->graph->grad_dtype);
  return share_ns(b, (int64_t)n_bytes * b->params->prices->grad_sumsq_ns[param] / read_bytes);
}

static void round_emit(struct builder *b, int param)
{
  const struct lade_value value = grad_now(b, param);
  const struct lade_value rounded = {lade_value_block(b->graph, param, LADE_BLOCK_ROUNDED), 0, 0};
  const struct value_place place = grad_place(b, param);
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_ROUND, LADE_Q_COMPUTE);
  instr->param = param;
  instr->microbatch = (int16_t)(b->params->n_microbatches - 1);
  instr->predicted_ns =
      moves_ns(b, param, lade_dtype_bytes(b->graph->accumulator) + lade_dtype_bytes(b->graph->grad_dtype));
  operand_read_at(b, LADE_ROLE_SRC, place, value, value_bytes(b, value.tensor));
  uint64_t bytes = value_bytes(b, rounded.tensor);
  b->block_buffers[param] = buffer_make(b, LADE_DEVICE, LADE_OWNER_GRADIENTS, bytes, false);
  operand_make(b, LADE_ROLE_DST, b->block_buffers[param], rounded, bytes);
  b->is_rounded[param] = true;
}

/* Emit the rounding of a complete gradient, if any, and its sums of squares. */
static void sumsq_emit(struct builder *b, int param)
{
  if (lade_model_graph_rounds(b->graph))
    round_emit(b, param);
  const struct lade_value value = grad_now(b, param);
  const struct value_place place = grad_place(b, param);
  int64_t first = b->first_partials[param], end = b->first_partials[param + 1];
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_GRAD_SUMSQ, LADE_Q_COMPUTE);
  instr->param = param;
  instr->microbatch = (int16_t)(b->params->n_microbatches - 1);
  instr->predicted_ns = share_ns(b, b->params->prices->grad_sumsq_ns[param]);
  operand_read_at(b, LADE_ROLE_SRC, place, value, value_bytes(b, value.tensor));
  struct lade_value partials = {lade_value_scalar(b->graph, LADE_SCALAR_PARTIALS), 0, 0};
  operand_make_at(b, LADE_ROLE_DST, (struct value_place){b->partials, (uint64_t)first * sizeof(double)}, partials,
                  (uint64_t)(end - first) * sizeof(double));
}

/* Return this rank's part of the sum of a gradient: all of it, or its block. */
static struct held sum_now(const struct builder *b, int param)
{
  return (struct held){grad_place(b, param), grad_now(b, param)};
}

static void sum_step(struct builder *b, int param)
{
  if (is_sharded(b))
    b->block_versions[param]++;
  else
    b->grad_versions[param]++;
}

/* Sum this rank's part of the gradient over @axis in place. */
static void sum_reduce_emit(struct builder *b, enum lade_axis axis, int param)
{
  const struct held sum = sum_now(b, param);
  all_reduce_emit(b, axis, param, sum.at, sum.value);
  sum_step(b, param);
}

/* ---- sums in BF16 ---- */

static void cast_emit(struct builder *b, int param, int microbatch, struct held from, struct held to)
{
  const size_t both = lade_dtype_bytes(b->graph->accumulator) + lade_dtype_bytes(LADE_BF16);
  const int n_blocks = from.value.tensor == b->graph->params[param].grad ? lade_shard_count(b->params->layout) : 1;
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_CAST, LADE_Q_COMPUTE);
  instr->param = param;
  instr->microbatch = (int16_t)microbatch;
  instr->predicted_ns = n_blocks * moves_ns(b, param, both);
  operand_read_at(b, LADE_ROLE_SRC, from.at, from.value, value_bytes(b, from.value.tensor));
  operand_make_at(b, LADE_ROLE_DST, to.at, to.value, value_bytes(b, to.value.tensor));
}

/* Copy @from, as @narrow, into a buffer of its own. */
static struct held narrow_emit(struct builder *b, int param, int microbatch, struct held from, struct lade_value narrow)
{
  uint64_t bytes = value_bytes(b, narrow.tensor);
  struct held to = {{buffer_make(b, LADE_DEVICE, LADE_OWNER_COMM, bytes, false), 0}, narrow};
  cast_emit(b, param, microbatch, from, to);
  return to;
}

/* Return the BF16 value that is summed over replicas for a gradient or a block. */
static struct lade_value narrow_of(const struct builder *b, int param)
{
  enum lade_block kind = is_sharded(b) ? LADE_BLOCK_NARROW : LADE_BLOCK_NARROW_WHOLE;
  return (struct lade_value){lade_value_block(b->graph, param, kind), 0, is_sharded(b)};
}

/* Sum this rank's parts of @params over replicas. In BF16 the sum is in flight until sum_land. */
static void replicas_reduce_emit(struct builder *b, enum lade_axis axis, const int32_t *params, int n)
{
  for (int i = 0; i < n && is_narrow(b) && !b->status; i++) {
    const struct held narrow =
        narrow_emit(b, params[i], b->params->n_microbatches - 1, sum_now(b, params[i]), narrow_of(b, params[i]));
    b->away[params[i]] = narrow.at.buffer;
  }
  for (int i = 0; i < n && !b->status; i++) {
    if (is_narrow(b))
      all_reduce_emit(b, axis, params[i], (struct value_place){b->away[params[i]], 0}, narrow_of(b, params[i]));
    else
      sum_reduce_emit(b, axis, params[i]);
  }
}

/* Widen the sum of @param's gradient if it is in flight in BF16. */
static void sum_land(struct builder *b, int param)
{
  if (b->away[param] < 0)
    return;
  struct held from = {{b->away[param], 0}, narrow_of(b, param)}, to = sum_now(b, param);
  from.value.version++;
  to.value.version++;
  cast_emit(b, param, b->params->n_microbatches - 1, from, to);
  sum_step(b, param);
  b->away[param] = -1;
}

void sumsq_settle(struct builder *b, int param)
{
  if (!b->is_sumsq_due[param])
    return;
  sum_land(b, param);
  if (b->graph->params[param].is_at_both_ends)
    sum_reduce_emit(b, LADE_AXIS_EMBED, param);
  sumsq_emit(b, param);
  b->is_sumsq_due[param] = false;
}

/* ---- blocks ---- */

/* Sum the parts of tensor parallel ranks, if any, of this rank's part of the gradient. */
static void parts_reduce_emit(struct builder *b, int param)
{
  if (b->graph->params[param].n_sharers == 1)
    return;
  const struct lade_parts parts = lade_param_parts(b->graph, b->params->layout, param);
  const struct held sum = sum_now(b, param);
  sum_emit(b, parts.axis, param, sum.at, sum.value, (uint64_t)parts.n * lade_dtype_bytes(b->graph->accumulator));
  sum_step(b, param);
}

/*
 * Complete the blocks of @params, whose sums over the shard axis are there, or in flight since @batch: sum them over
 * tensor parallel ranks and replicas, and note when the compute queue may take them.
 */
static void blocks_complete(struct builder *b, const int32_t *params, int n, int batch)
{
  const bool is_replicated = lade_layout_size(b->params->layout, LADE_AXIS_REPLICATE) > 1;
  for (int i = 0; i < n; i++)
    parts_reduce_emit(b, params[i]);
  if (is_replicated)
    replicas_reduce_emit(b, LADE_AXIS_REPLICATE, params, n);
  for (int i = 0; i < n; i++) {
    const struct lade_param *param = &b->graph->params[params[i]];
    const bool is_summed = is_replicated || param->n_sharers > 1;
    b->is_sumsq_due[params[i]] = true;
    if (!param->is_at_both_ends)
      b->due[b->n_due++] = (struct due){params[i], is_summed ? b->n_batches : batch};
  }
}

/* Begin the block with the sum over ranks of the first gradient that is reduced: in place if it is the only one. */
static void block_begin(struct builder *b, int param)
{
  uint64_t bytes = value_bytes(b, lade_value_block(b->graph, param, LADE_BLOCK_GRAD));
  bool is_in_place = !plan_sums_each(b->params);
  b->block_buffers[param] = is_in_place ? grad_buffer(b, param)
                                        : buffer_make(b, LADE_DEVICE, LADE_OWNER_GRADIENTS, bytes, false);
  b->block_versions[param] = 1;
}

static struct held incoming_make(struct builder *b, int param, int microbatch)
{
  const struct lade_value part = {lade_value_block(b->graph, param, LADE_BLOCK_INCOMING), (int16_t)microbatch, 0};
  uint64_t bytes = value_bytes(b, part.tensor);
  return (struct held){{buffer_make(b, LADE_DEVICE, LADE_OWNER_COMM, bytes, false), 0}, part};
}

static void block_add_emit(struct builder *b, int param, struct held part)
{
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_ADD, LADE_Q_COMPUTE);
  uint64_t bytes = value_bytes(b, part.value.tensor);
  instr->param = param;
  instr->microbatch = part.value.microbatch;
  instr->predicted_ns = moves_ns(b, param, 3 * lade_dtype_bytes(b->graph->accumulator));
  operand_read(b, LADE_ROLE_SRC, part.at.buffer, part.value, bytes);
  operand_change(b, LADE_ROLE_DST, b->block_buffers[param], block_now(b, param), bytes);
  b->block_versions[param]++;
}

/* Move the block of a gradient to @space, unless it is there. */
static void block_move(struct builder *b, int param, enum lade_space space)
{
  if (b->status || b->buffers.items[b->block_buffers[param]].space == space)
    return;
  const struct value_place src = block_place(b, param);
  const struct lade_value block = block_now(b, param);
  const int32_t dst = buffer_make(b, space, LADE_OWNER_GRADIENTS, value_bytes(b, block.tensor), false);
  transfer_emit(b, src, (struct value_place){dst, 0}, block);
  b->block_buffers[param] = dst;
}

/* True if more reductions of the gradient of @param are in flight. */
static bool is_expected(const struct builder *b, int param)
{
  int i = b->n_added;
  while (i < b->incoming.n && b->incoming.items[i].param != param)
    i++;
  return i < b->incoming.n;
}

/*
 * Make the received block the sum, or add it to the sum. Unless it is the last, the sum then waits for the next in the
 * space that liveness.c chose.
 */
static void incoming_take(struct builder *b, const struct incoming *incoming)
{
  const int32_t param = incoming->param;
  struct held part = incoming->part;
  if (is_narrow(b) && !b->block_versions[param]) {
    block_begin(b, param);
    cast_emit(b, param, incoming->microbatch, part, sum_now(b, param));
  } else if (!incoming->is_block) {
    if (is_narrow(b)) {
      struct held wide = incoming_make(b, param, incoming->microbatch);
      cast_emit(b, param, incoming->microbatch, part, wide);
      part = wide;
    }
    block_move(b, param, LADE_DEVICE);
    block_add_emit(b, param, part);
  }
  if (!incoming->is_last && incoming->target != LADE_DEVICE && !is_expected(b, param))
    block_move(b, param, (enum lade_space)incoming->target);
}

/*
 * Return the space in which the block of a gradient waits for its update: that of the state. For a streamed update it
 * is the space that the residency chooses, else one that the update reaches.
 */
static enum lade_space block_space(const struct builder *b, int param)
{
  const enum lade_tier tier = (enum lade_tier)b->params->residency->state_tiers[param];
  const enum lade_residency_policy wait =
      (enum lade_residency_policy)b->params->residency->choices[b->graph->params[param].grad].saved;
  if (tier != LADE_TIER_STORE)
    return plan_tier_space(tier);
  if (b->params->is_unified && (b->backward_updates || (wait != LADE_RESIDENCY_HOST && wait != LADE_RESIDENCY_STORE)))
    return LADE_DEVICE;
  return wait == LADE_RESIDENCY_HOST ? LADE_HOST : LADE_STORE;
}

/* Move the block to that space, unless it is the device; round it in any case. */
static void block_leave(struct builder *b, int param)
{
  const enum lade_space space = block_space(b, param);
  if (lade_model_graph_rounds(b->graph))
    sumsq_settle(b, param);
  if (!is_sharded(b) || space == LADE_DEVICE)
    return;
  sumsq_settle(b, param);
  if (space == LADE_STORE && b->params->is_unified && b->block_buffers[param] == grad_buffer(b, param))
    block_move(b, param, LADE_HOST); /* drives need whole pages, and a block among others has none */
  block_move(b, param, space);
}

/*
 * Take the received blocks of the next batch. Then sum those that are complete over replicas, next to each other, so
 * that the collectives can be grouped.
 */
static void incomings_take(struct builder *b)
{
  const int batch = b->incoming.items[b->n_added].batch;
  int32_t complete[LADE_COMM_LIST_MAX];
  int n_complete = 0;
  while (b->n_added < b->incoming.n && b->incoming.items[b->n_added].batch == batch && !b->status) {
    const struct incoming next = b->incoming.items[b->n_added++];
    incoming_take(b, &next);
    if (next.is_last)
      complete[n_complete++] = next.param;
  }
  blocks_complete(b, complete, n_complete, batch);
}

/* Let the compute queue take all reductions but those of the last @lag batches. */
static void reductions_settle(struct builder *b, int lag)
{
  const int last = b->n_batches - lag;
  while (b->n_added < b->incoming.n && b->incoming.items[b->n_added].batch <= last && !b->status)
    incomings_take(b);
  while (b->n_settled < b->n_due && b->due[b->n_settled].batch <= last && !b->status) {
    const int param = b->due[b->n_settled++].param;
    sum_land(b, param);
    if (!b->graph->params[param].is_at_both_ends)
      block_leave(b, param);
  }
}

void grads_settle(struct builder *b, bool is_end)
{
  reductions_settle(b, 0);
  for (int param = 0; param < b->graph->n_params && is_end && !b->status; param++) {
    if (is_sharded(b) && b->graph->params[param].is_at_both_ends && b->is_sumsq_due[param])
      block_leave(b, param);
  }
}

/* Reduce @whole, the gradient of @microbatch or of all; this rank's block of the sum goes to @block. */
static void reduce_scatter_emit(struct builder *b, int param, int microbatch, struct held whole, struct held block)
{
  uint64_t bytes = value_bytes(b, whole.value.tensor);
  collective_begin(b, LADE_REDUCE_SCATTER, LADE_AXIS_SHARD, param, microbatch, bytes);
  operand_read(b, LADE_ROLE_SRC, whole.at.buffer, whole.value, bytes);
  operand_make_at(b, LADE_ROLE_DST, block.at, block.value, value_bytes(b, block.value.tensor));
}

/* A gradient in flight: this rank's addend, and the place of its block of the sum. */
struct reduction_input {
  struct held whole, block;
  bool is_incoming; /* the block is to be added to the sum */
};

/* Prepare the addend in BF16; the block goes to its place in the rounded gradient. */
static struct reduction_input narrow_input(struct builder *b, const struct grad_reduction *reduction, struct held grad)
{
  const int param = reduction->param;
  const int16_t m = (int16_t)(plan_sums_each(b->params) ? reduction->microbatch : 0);
  struct lade_value value = {lade_value_block(b->graph, param, LADE_BLOCK_NARROW_WHOLE), m, 0};
  const struct held whole = narrow_emit(b, param, reduction->microbatch, grad, value);
  value.tensor = lade_value_block(b->graph, param, LADE_BLOCK_NARROW);
  const struct held block = {{whole.at.buffer, own_offset(b, value_bytes(b, value.tensor))}, value};
  return (struct reduction_input){whole, block, true};
}

/* Emit all instructions before the collective. */
static struct reduction_input reduction_input_make(struct builder *b, const struct grad_reduction *reduction)
{
  const int param = reduction->param;
  const struct held grad = {{grad_buffer(b, param), 0}, value_now(b, b->graph->params[param].grad)};
  if (reduction->is_ahead && b->block_versions[param])
    block_move(b, param, LADE_DEVICE);
  if (is_narrow(b))
    return narrow_input(b, reduction, grad);
  if (b->block_versions[param])
    return (struct reduction_input){grad, incoming_make(b, param, reduction->microbatch), true};
  block_begin(b, param);
  return (struct reduction_input){grad, sum_now(b, param), false};
}

/*
 * Hold the memory of whole gradients that are being reduced until the batch after the next one begins, where there is
 * room for speed: otherwise the next gradients take it, and computing them waits for the reduction.
 */
static void wholes_hold(struct builder *b, const struct reduction_input *inputs, int n)
{
  const int at = b->n_batches % REDUCTIONS_IN_FLIGHT;
  if (!plan_sums_each(b->params) || !b->params->residency->prefetch_bytes || b->status)
    return;
  for (int i = 0; i < b->n_in_flight[at]; i++)
    b->buffers.items[b->in_flight[at][i]].last = LADE_MAX(b->buffers.items[b->in_flight[at][i]].last, b->instrs.n - 1);
  b->n_in_flight[at] = n;
  for (int i = 0; i < n; i++)
    b->in_flight[at][i] = inputs[i].whole.at.buffer;
}

/*
 * Reduce-scatter a batch. Complete blocks are summed over tensor parallel ranks and replicas when the batch is taken:
 * sooner, those sums would wait for the scatter on queues that kernels need.
 */
static void blocks_emit(struct builder *b, const struct grad_reduction *reductions, int n)
{
  struct reduction_input inputs[LADE_COMM_LIST_MAX];
  for (int i = 0; i < n; i++)
    inputs[i] = reduction_input_make(b, &reductions[i]);
  wholes_hold(b, inputs, n);
  for (int i = 0; i < n && !b->status; i++)
    reduce_scatter_emit(b, reductions[i].param, reductions[i].microbatch, inputs[i].whole, inputs[i].block);
  for (int i = 0; i < n; i++) {
    const int32_t param = reductions[i].param;
    const bool is_last = b->grad_versions[param] == b->n_adds[param] * b->params->n_microbatches;
    const struct incoming next = {.part = inputs[i].block, .param = param, .microbatch = reductions[i].microbatch,
                                  .is_last = is_last, .is_block = !inputs[i].is_incoming,
                                  .target = reductions[i].target, .batch = b->n_batches};
    if (!LADE_PUSH(&b->incoming, next))
      b->status = -ENOMEM;
  }
}

/* Reduce a batch of whole gradients that hold all of this rank's microbatches. */
static void wholes_complete(struct builder *b, const int32_t *params, int n)
{
  const bool is_replicated = lade_layout_size(b->params->layout, LADE_AXIS_DP) > 1;
  for (int i = 0; i < n; i++)
    parts_reduce_emit(b, params[i]);
  if (is_replicated)
    replicas_reduce_emit(b, LADE_AXIS_DP, params, n);
  for (int i = 0; i < n; i++) {
    const int param = params[i];
    const bool is_at_both_ends = b->graph->params[param].is_at_both_ends;
    b->is_sumsq_due[param] = b->graph->params[param].n_sharers > 1 || is_replicated || is_at_both_ends;
    if (!b->is_sumsq_due[param])
      sumsq_emit(b, param);
    else if (b->away[param] >= 0 || (lade_model_graph_rounds(b->graph) && !is_at_both_ends))
      b->due[b->n_due++] = (struct due){param, b->n_batches};
  }
}

void grads_emit(struct builder *b, const struct grad_reduction *reductions, int n)
{
  int32_t params[LADE_COMM_LIST_MAX];
  for (int i = 0; i < n; i += LADE_COMM_LIST_MAX) {
    const int n_now = LADE_MIN(n - i, LADE_COMM_LIST_MAX);
    for (int j = 0; j < n_now; j++)
      params[j] = reductions[i + j].param;
    b->n_batches++;
    if (is_sharded(b))
      blocks_emit(b, reductions + i, n_now);
    else
      wholes_complete(b, params, n_now);
    reductions_settle(b, REDUCTIONS_IN_FLIGHT);
  }
}
