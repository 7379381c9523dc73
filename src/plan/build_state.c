/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emission, second half: what becomes of a gradient once it is complete.
 *
 * On one rank its sums of squares come at once, while it is on the device. Among several ranks it is first summed over
 * them, on a queue of its own, while the backward half goes on; nothing on the compute queue looks at it until it
 * must: sums of squares come when the gradient leaves the device, when its parameter is updated early, or after all
 * steps. Then the verdict, and the updates, each where its parameter is at home.
 *
 * Where state is in shards (ZeRO), a reduce-scatter leaves each rank its block of the sum: of the gradient of all
 * microbatches, in place (1), or of each microbatch's, which is then added to the block (2, 3), so that no whole
 * gradient outlives its microbatch. The update is of the block, and the working copy is gathered again: at once
 * where it lives whole on the device, else before each use (weight_gather_emit, where lives.c says). With replicas of
 * shards (hybrid sharding) complete blocks are summed over those too.
 *
 * With sums in BF16 what goes to other ranks is narrowed first, and the sum widened to where it would have come in F32;
 * tensor parallel ranks and both ends of a pipeline still sum in F32.
 *
 * A working copy that lives on a device which the update does not reach is copied to the host before it and back after
 * it. The next parameter's is on its way meanwhile.
 *
 * Gradients are handed on in batches, as lives.c says: their collectives stand together, and are bundles. So are those
 * of working copies that are gathered in one slot, or again behind their updates. What the compute queue does to what
 * is still under way (add it, widen it, round it, send it home) comes LAG batches later.
 *
 * A table that is tied over the ends of a pipeline is then summed over the first and the last stage, behind all steps:
 * the last stage is done with it long before, but what waited there for the first one would keep it from ever getting
 * there. So its gradient leaves and its update comes last, whatever is early.
 *
 * Where the update takes gradients in another type than the one in which they are added up, a gradient is rounded once,
 * when it is complete, over all ranks too; sums of squares, copies and the update are of the rounded one, and the
 * memory of the other is free.
 *
 * A microbatch's loss is summed over ranks before it goes to the host; the mean is taken there.
 */
#include <errno.h>
#include <stdlib.h>

#include "plan/build_internal.h"

#define LAG 2 /* batches of reductions that may be under way while the backward half goes on */

static const struct lade_value nothing = {-1, 0, 0};

static bool is_sharded(const struct builder *b)
{
  return lade_shard_count(b->params->layout) > 1;
}

/* Are gradients summed over data parallel ranks in BF16? */
static bool is_narrow(const struct builder *b)
{
  return lade_layout_size(b->params->layout, LADE_AXIS_DP) > 1 && b->params->layout->grad_reduce == LADE_BF16;
}

/* Where this rank's block begins in a vector of all blocks of @block_bytes. */
static uint64_t own_offset(const struct builder *b, uint64_t block_bytes)
{
  return block_bytes * (uint64_t)lade_layout_position(b->params->layout, LADE_AXIS_SHARD);
}

/* ---- collectives ---- */

/* Sum what all ranks of @axis hold of @value, in place, @bytes of it; the rest is as it should be. */
static void sum_emit(struct builder *b, enum lade_axis axis, int param, struct place at, struct lade_value value,
                     uint64_t bytes)
{
  struct lade_value sum = value;
  sum.version++;
  collective_begin(b, LADE_ALL_REDUCE, axis, param, value.microbatch, bytes);
  operand_add(b, LADE_ROLE_SRC, at.buffer, LADE_READS_AND_MAKES, value, sum, at.offset, value_bytes(b, value.tensor));
}

static void all_reduce_emit(struct builder *b, enum lade_axis axis, int param, struct place at,
                            struct lade_value value)
{
  sum_emit(b, axis, param, at, value, value_bytes(b, value.tensor));
}

/* Put the ranks' blocks together: @block at @src, to @whole at the beginning of @dst. */
static void all_gather_emit(struct builder *b, enum lade_axis axis, int param, struct place src,
                            struct lade_value block, int32_t dst, struct lade_value whole)
{
  uint64_t bytes = value_bytes(b, whole.tensor);
  collective_begin(b, LADE_ALL_GATHER, axis, param, 0, bytes);
  operand_add(b, LADE_ROLE_SRC, src.buffer, LADE_READS, block, nothing, src.offset, value_bytes(b, block.tensor));
  operand_make(b, LADE_ROLE_DST, dst, whole, bytes);
}

struct lade_value loss_reduce_emit(struct builder *b, int32_t buffer, struct lade_value loss)
{
  if (lade_layout_size(b->params->layout, LADE_AXIS_DP) == 1)
    return loss;
  all_reduce_emit(b, LADE_AXIS_DP, -1, (struct place){buffer, 0}, loss);
  loss.version++;
  return loss;
}

struct place weight_block_emit(struct builder *b, int param, int32_t buffer)
{
  const int weight = b->graph->params[param].tensor, home = b->params->residency->weight_homes[param];
  const struct lade_value block = {lade_value_block(b->graph, param, LADE_BLOCK_WEIGHT), 0, 0};
  const uint64_t bytes = value_bytes(b, block.tensor);
  const struct place src = {b->elsewhere[weight], 0};
  struct place landing = {buffer, own_offset(b, bytes)};
  if (home == LADE_HOME_DEVICE)
    return src;
  if (home == LADE_HOME_STORE) /* drives want whole pages */
    landing = (struct place){buffer_make(b, LADE_DEVICE, LADE_OWNER_COMM, bytes, false), 0};
  transfer_emit(b, src, landing, block);
  return landing;
}

void weight_gather_emit(struct builder *b, int param, struct place block, int32_t buffer)
{
  const struct lade_value own = {lade_value_block(b->graph, param, LADE_BLOCK_WEIGHT), 0, 0};
  const struct lade_value whole = {b->graph->params[param].tensor, 0, 0};
  all_gather_emit(b, LADE_AXIS_SHARD, param, block, own, buffer, whole);
}

/* ---- gradients ---- */

/* Where the gradient of @param is now, or was before its block was handed on. */
static int32_t grad_buffer(const struct builder *b, int param)
{
  return b->on_device[b->now[b->graph->params[param].grad]];
}

/* This rank's block of the gradient, as it is now. */
static struct lade_value block_now(const struct builder *b, int param)
{
  if (b->is_rounded[param])
    return (struct lade_value){lade_value_block(b->graph, param, LADE_BLOCK_ROUNDED), 0, 0};
  return (struct lade_value){lade_value_block(b->graph, param, LADE_BLOCK_GRAD), 0, b->block_versions[param]};
}

/* Where it is: in place, it is among the others' blocks. */
static struct place block_place(const struct builder *b, int param)
{
  bool is_in_place = b->block_buffers[param] == grad_buffer(b, param);
  uint64_t offset = is_in_place ? own_offset(b, value_bytes(b, block_now(b, param).tensor)) : 0;
  return (struct place){b->block_buffers[param], offset};
}

struct lade_value grad_now(const struct builder *b, int param)
{
  return is_sharded(b) || b->is_rounded[param] ? block_now(b, param) : value_now(b, b->graph->params[param].grad);
}

struct place grad_place(const struct builder *b, int param)
{
  return is_sharded(b) || b->is_rounded[param] ? block_place(b, param) : (struct place){grad_buffer(b, param), 0};
}

static int64_t share_ns(const struct builder *b, int param, int64_t ns)
{
  return ns / lade_shard_count(b->params->layout);
}

/* The time of moving @n_bytes for an element, from that of a norm, which reads one number of an element. */
static int64_t moves_ns(const struct builder *b, int param, size_t n_bytes)
{
  const int64_t read_bytes = (int64_t)lade_dtype_bytes(b->graph->grad_dtype);
  return share_ns(b, param, (int64_t)n_bytes * b->params->prices->norm_ns[param] / read_bytes);
}

static void round_emit(struct builder *b, int param)
{
  const struct lade_value value = grad_now(b, param);
  const struct lade_value rounded = {lade_value_block(b->graph, param, LADE_BLOCK_ROUNDED), 0, 0};
  const struct place place = grad_place(b, param);
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_ROUND, LADE_Q_COMPUTE);
  instr->param = param;
  instr->microbatch = (int16_t)(b->params->n_microbatches - 1);
  instr->predicted_ns =
      moves_ns(b, param, lade_dtype_bytes(b->graph->accumulator) + lade_dtype_bytes(b->graph->grad_dtype));
  operand_add(b, LADE_ROLE_SRC, place.buffer, LADE_READS, value, nothing, place.offset, value_bytes(b, value.tensor));
  uint64_t bytes = value_bytes(b, rounded.tensor);
  b->block_buffers[param] = buffer_make(b, LADE_DEVICE, LADE_OWNER_GRADIENTS, bytes, false);
  operand_make(b, LADE_ROLE_DST, b->block_buffers[param], rounded, bytes);
  b->is_rounded[param] = true;
}

/* Sums of squares of a gradient that is complete, and before them its rounding. */
static void norm_emit(struct builder *b, int param)
{
  if (lade_graph_rounds(b->graph))
    round_emit(b, param);
  const struct lade_value value = grad_now(b, param);
  const struct place place = grad_place(b, param);
  int64_t first = b->first_partials[param], end = b->first_partials[param + 1];
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_NORM, LADE_Q_COMPUTE);
  instr->param = param;
  instr->microbatch = (int16_t)(b->params->n_microbatches - 1);
  instr->predicted_ns = share_ns(b, param, b->params->prices->norm_ns[param]);
  operand_add(b, LADE_ROLE_SRC, place.buffer, LADE_READS, value, nothing, place.offset, value_bytes(b, value.tensor));
  struct lade_value partials = {lade_value_scalar(b->graph, LADE_SCALAR_PARTIALS), 0, 0};
  operand_add(b, LADE_ROLE_DST, b->partials, LADE_MAKES, nothing, partials, (uint64_t)first * sizeof(double),
              (uint64_t)(end - first) * sizeof(double));
}

/* What this rank has of the sum of a gradient: all of it, or its block. */
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

/* Sum it over @axis in place. */
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
  operand_add(b, LADE_ROLE_SRC, from.at.buffer, LADE_READS, from.value, nothing, from.at.offset,
              value_bytes(b, from.value.tensor));
  operand_add(b, LADE_ROLE_DST, to.at.buffer, LADE_MAKES, nothing, to.value, to.at.offset,
              value_bytes(b, to.value.tensor));
}

/* @from in a buffer of its own, as @narrow. */
static struct held narrow_emit(struct builder *b, int param, int microbatch, struct held from, struct lade_value narrow)
{
  uint64_t bytes = value_bytes(b, narrow.tensor);
  struct held to = {{buffer_make(b, LADE_DEVICE, LADE_OWNER_COMM, bytes, false), 0}, narrow};
  cast_emit(b, param, microbatch, from, to);
  return to;
}

/* What is summed over replicas in place of a gradient or of a block. */
static struct lade_value narrow_of(const struct builder *b, int param)
{
  enum lade_block kind = is_sharded(b) ? LADE_BLOCK_NARROW : LADE_BLOCK_NARROW_WHOLE;
  return (struct lade_value){lade_value_block(b->graph, param, kind), 0, is_sharded(b)};
}

/* Sum what this rank has of @params over replicas, or begin to, until sum_land. */
static void replicas_reduce_emit(struct builder *b, enum lade_axis axis, const int32_t *params, int n)
{
  for (int i = 0; i < n && is_narrow(b) && !b->status; i++) {
    const struct held narrow =
        narrow_emit(b, params[i], b->params->n_microbatches - 1, sum_now(b, params[i]), narrow_of(b, params[i]));
    b->away[params[i]] = narrow.at.buffer;
  }
  for (int i = 0; i < n && !b->status; i++) {
    if (is_narrow(b))
      all_reduce_emit(b, axis, params[i], (struct place){b->away[params[i]], 0}, narrow_of(b, params[i]));
    else
      sum_reduce_emit(b, axis, params[i]);
  }
}

/* If the sum of @param's gradient is away in BF16: back. */
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

void norm_settle(struct builder *b, int param)
{
  if (!b->is_norm_due[param])
    return;
  sum_land(b, param);
  if (b->graph->params[param].is_at_both_ends)
    sum_reduce_emit(b, LADE_AXIS_EMBED, param);
  norm_emit(b, param);
  b->is_norm_due[param] = false;
}

/* ---- blocks ---- */

/* Add up the parts that tensor parallel ranks have of what this rank has of the sum, if they have any. */
static void parts_reduce_emit(struct builder *b, int param)
{
  if (b->graph->params[param].n_sharers == 1)
    return;
  const struct lade_parts parts = lade_param_parts(b->graph, b->params->layout, param);
  const struct held sum = sum_now(b, param);
  sum_emit(b, parts.axis, param, sum.at, sum.value, (uint64_t)parts.n * lade_dtype_bytes(b->graph->accumulator));
  sum_step(b, param);
}

/* Everything of this rank and its fellows is in the blocks; with replicas, theirs too. */
static void blocks_complete(struct builder *b, const int32_t *params, int n)
{
  for (int i = 0; i < n; i++)
    parts_reduce_emit(b, params[i]);
  if (lade_layout_size(b->params->layout, LADE_AXIS_REPLICATE) > 1)
    replicas_reduce_emit(b, LADE_AXIS_REPLICATE, params, n);
  for (int i = 0; i < n; i++) {
    b->is_norm_due[params[i]] = true;
    if (!b->graph->params[params[i]].is_at_both_ends)
      b->due[b->n_due++] = (struct due){params[i], b->n_batches};
  }
}

/* The sum over ranks of the first gradient that is handed on: in place where it is the only one. */
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

/* What has come becomes the block, or is added to it. */
static void incoming_take(struct builder *b, const struct incoming *incoming)
{
  const int32_t param = incoming->param;
  struct held part = incoming->what;
  if (is_narrow(b) && !b->block_versions[param]) {
    block_begin(b, param);
    cast_emit(b, param, incoming->microbatch, part, sum_now(b, param));
  } else if (is_narrow(b)) {
    struct held wide = incoming_make(b, param, incoming->microbatch);
    cast_emit(b, param, incoming->microbatch, part, wide);
    block_add_emit(b, param, wide);
  } else {
    block_add_emit(b, param, part);
  }
  if (incoming->is_last)
    blocks_complete(b, &param, 1);
}

/*
 * Where the block of a gradient waits for its update: where the state is; for a streamed one where the residency says,
 * else in reach of it.
 */
static enum lade_space block_space(const struct builder *b, int param)
{
  const enum lade_home home = (enum lade_home)b->params->residency->homes[param];
  const enum lade_wait wait = (enum lade_wait)b->params->residency->choices[b->graph->params[param].grad].saved;
  if (home != LADE_HOME_STORE)
    return plan_home_space(home);
  if (b->params->is_unified && (b->early || (wait != LADE_WAIT_HOST && wait != LADE_WAIT_STORE)))
    return LADE_DEVICE;
  return wait == LADE_WAIT_HOST ? LADE_HOST : LADE_STORE;
}

/* There, unless it is on the device; rounded in any case. */
static void block_leave(struct builder *b, int param)
{
  const enum lade_space space = block_space(b, param);
  if (lade_graph_rounds(b->graph))
    norm_settle(b, param);
  if (!is_sharded(b) || space == LADE_DEVICE)
    return;
  norm_settle(b, param);
  const struct lade_value block = block_now(b, param);
  const uint64_t bytes = value_bytes(b, block.tensor);
  struct place src = block_place(b, param);
  if (space == LADE_STORE && b->params->is_unified && b->block_buffers[param] == grad_buffer(b, param)) {
    const struct place whole_pages = {buffer_make(b, LADE_HOST, LADE_OWNER_GRADIENTS, bytes, false), 0};
    move_emit(b, src, block, whole_pages, block); /* drives want them, and among the others' blocks it has none */
    src = whole_pages;
  }
  int32_t dst = buffer_make(b, space, LADE_OWNER_GRADIENTS, bytes, false);
  transfer_emit(b, src, (struct place){dst, 0}, block);
  b->block_buffers[param] = dst;
}

/* Let the compute queue have everything but what is of the last @lag batches. */
static void reductions_settle(struct builder *b, int lag)
{
  const int last = b->n_batches - lag;
  while (b->n_added < b->incoming.n && b->incoming.items[b->n_added].batch <= last && !b->status) {
    struct incoming next = b->incoming.items[b->n_added++];
    incoming_take(b, &next);
  }
  while (b->n_settled < b->n_due && b->due[b->n_settled].batch <= last && !b->status) {
    const int param = b->due[b->n_settled++].param;
    sum_land(b, param);
    if (!b->graph->params[param].is_at_both_ends)
      block_leave(b, param);
  }
}

/* Behind all steps: everything else, too. */
static void end_settle(struct builder *b)
{
  reductions_settle(b, 0);
  for (int param = 0; param < b->graph->n_params && !b->status; param++) {
    if (is_sharded(b) && b->graph->params[param].is_at_both_ends && b->is_norm_due[param])
      block_leave(b, param);
  }
}

/* Hand on the gradient of @microbatch, or of all, as @whole; this rank's block of the sum comes to @block. */
static void reduce_scatter_emit(struct builder *b, int param, int microbatch, struct held whole, struct held block)
{
  uint64_t bytes = value_bytes(b, whole.value.tensor);
  collective_begin(b, LADE_REDUCE_SCATTER, LADE_AXIS_SHARD, param, microbatch, bytes);
  operand_read(b, LADE_ROLE_SRC, whole.at.buffer, whole.value, bytes);
  operand_add(b, LADE_ROLE_DST, block.at.buffer, LADE_MAKES, nothing, block.value, block.at.offset,
              value_bytes(b, block.value.tensor));
}

/* A gradient on its way: what this rank gives, and where its block of the sum comes to. */
struct handed {
  struct held whole, block;
  bool is_incoming; /* the block is to be added to the sum */
};

/* In BF16 the block comes to its place in the rounded gradient. */
static struct handed narrow_hand(struct builder *b, const struct plan_handing *handing, struct held grad)
{
  const int param = handing->param;
  const int16_t m = (int16_t)(plan_sums_each(b->params) ? handing->microbatch : 0);
  struct lade_value value = {lade_value_block(b->graph, param, LADE_BLOCK_NARROW_WHOLE), m, 0};
  const struct held whole = narrow_emit(b, param, handing->microbatch, grad, value);
  value.tensor = lade_value_block(b->graph, param, LADE_BLOCK_NARROW);
  const struct held block = {{whole.at.buffer, own_offset(b, value_bytes(b, value.tensor))}, value};
  return (struct handed){whole, block, true};
}

/* Everything before the collective. */
static struct handed grad_hand(struct builder *b, const struct plan_handing *handing)
{
  const int param = handing->param;
  const struct held grad = {{grad_buffer(b, param), 0}, value_now(b, b->graph->params[param].grad)};
  if (is_narrow(b))
    return narrow_hand(b, handing, grad);
  if (b->block_versions[param])
    return (struct handed){grad, incoming_make(b, param, handing->microbatch), true};
  block_begin(b, param);
  return (struct handed){grad, sum_now(b, param), false};
}

/* Scatter a batch; blocks that are not added to anything are complete with the last microbatch. */
static void blocks_emit(struct builder *b, const struct plan_handing *handings, int n)
{
  struct handed handed[LADE_COMM_LIST_MOST];
  int32_t complete[LADE_COMM_LIST_MOST];
  int n_complete = 0;
  for (int i = 0; i < n; i++)
    handed[i] = grad_hand(b, &handings[i]);
  for (int i = 0; i < n && !b->status; i++)
    reduce_scatter_emit(b, handings[i].param, handings[i].microbatch, handed[i].whole, handed[i].block);
  for (int i = 0; i < n; i++) {
    const int32_t param = handings[i].param;
    const bool is_last = b->grad_versions[param] == b->n_adds[param] * b->params->n_microbatches;
    const struct incoming next = {handed[i].block, param, handings[i].microbatch, is_last, b->n_batches};
    if (!handed[i].is_incoming && is_last)
      complete[n_complete++] = param;
    else if (handed[i].is_incoming && !LADE_PUSH(&b->incoming, next))
      b->status = -ENOMEM;
  }
  blocks_complete(b, complete, n_complete);
}

/* All of this rank's microbatches are in the whole gradients of a batch. */
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
    b->is_norm_due[param] = b->graph->params[param].n_sharers > 1 || is_replicated || is_at_both_ends;
    if (!b->is_norm_due[param])
      norm_emit(b, param);
    else if (b->away[param] >= 0 || (lade_graph_rounds(b->graph) && !is_at_both_ends))
      b->due[b->n_due++] = (struct due){param, b->n_batches};
  }
}

void grads_emit(struct builder *b, const struct plan_handing *handings, int n)
{
  int32_t params[LADE_COMM_LIST_MOST];
  for (int i = 0; i < n; i += LADE_COMM_LIST_MOST) {
    const int n_now = LADE_MIN(n - i, LADE_COMM_LIST_MOST);
    for (int j = 0; j < n_now; j++)
      params[j] = handings[i + j].param;
    b->n_batches++;
    if (is_sharded(b))
      blocks_emit(b, handings + i, n_now);
    else
      wholes_complete(b, params, n_now);
    reductions_settle(b, LAG);
  }
}

/* ---- the end of a step ---- */

/* What decides about an update: the verdict as a value, and where it lies. */
struct ruling {
  struct lade_value value;
  int32_t on_device, on_host; /* on_host -1: the update reaches device memory */
};

/* Sums of squares as far as they are together: where, and how many bytes. */
struct summed {
  int tensor;
  int32_t buffer;
  uint64_t bytes;
};

/* Their sum, and all ranks' of @level in their order. */
static void level_emit(struct builder *b, int level, struct summed *now)
{
  const enum lade_axis axis = lade_sums_axis(level);
  const struct lade_value sum = {lade_value_scalar(b->graph, LADE_SCALAR_SUM), 0, (int16_t)level};
  const struct lade_value sums = {lade_value_scalar(b->graph, (enum lade_scalar)(LADE_SCALAR_SUMS + level)), 0, 0};
  int32_t buffer = buffer_make(b, LADE_DEVICE, LADE_OWNER_TRANSIENT, value_bytes(b, sums.tensor), false);
  struct place own = {buffer, sizeof(double) * (uint64_t)lade_layout_position(b->params->layout, axis)};
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_SUM, LADE_Q_COMPUTE);
  instr->axis = (uint8_t)axis;
  instr->predicted_ns = b->params->prices->clip_ns;
  operand_read(b, LADE_ROLE_SRC, now->buffer, (struct lade_value){now->tensor, 0, 0}, now->bytes);
  operand_add(b, LADE_ROLE_DST, own.buffer, LADE_MAKES, nothing, sum, own.offset, sizeof(double));
  all_gather_emit(b, axis, -1, own, sum, buffer, sums);
  *now = (struct summed){sums.tensor, buffer, value_bytes(b, sums.tensor)};
}

/* This rank's partials, or what all ranks' have come to. */
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

static void clip_emit(struct builder *b, int param, const struct ruling *ruling)
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
  operand_add(b, LADE_ROLE_SRC, now.buffer, LADE_READS, (struct lade_value){now.tensor, 0, 0}, nothing, offset,
              now.bytes);
  operand_make(b, LADE_ROLE_DST, ruling->on_device, ruling->value, sizeof(struct lade_verdict));
  if (ruling->on_host >= 0)
    transfer_emit(b, (struct place){ruling->on_device, 0}, (struct place){ruling->on_host, 0}, ruling->value);
}

/* What an update makes the next version of: the working copy, or this rank's block of it. */
static int updated_tensor(const struct builder *b, int param)
{
  return is_sharded(b) ? lade_value_block(b->graph, param, LADE_BLOCK_WEIGHT) : b->graph->params[param].tensor;
}

/* Is it, at home, a block of what is whole on the device? */
static bool is_block_of_whole(const struct builder *b, int param)
{
  return is_sharded(b) && !plan_is_gathered(b->params, param);
}

/* At home. */
static struct place weight_place(const struct builder *b, int param)
{
  uint64_t offset = is_block_of_whole(b, param) ? own_offset(b, value_bytes(b, updated_tensor(b, param))) : 0;
  return (struct place){b->elsewhere[b->graph->params[param].tensor], offset};
}

/* The working copy of @param to where its update reaches it: the buffer of the copy; -1: none is needed. */
static int32_t weight_out_emit(struct builder *b, int param)
{
  if (!plan_is_weight_copied(b->params, param))
    return -1;
  const struct lade_value value = {updated_tensor(b, param), 0, 0}, whole = {b->graph->params[param].tensor, 0, 0};
  int32_t copy = buffer_make(b, LADE_HOST, LADE_OWNER_PARAMETERS, value_bytes(b, value.tensor), false);
  move_emit(b, weight_place(b, param), is_block_of_whole(b, param) ? whole : value, (struct place){copy, 0}, value);
  return copy;
}

/* The working copy at home, or its @copy. */
static void update_weight_add(struct builder *b, int param, int32_t copy)
{
  const struct lade_value value = {updated_tensor(b, param), 0, 0}, next = {value.tensor, 0, 1};
  const struct lade_value whole = {b->graph->params[param].tensor, 0, 0};
  const struct place place = copy < 0 ? weight_place(b, param) : (struct place){copy, 0};
  operand_add(b, LADE_ROLE_WEIGHT, place.buffer, LADE_READS_AND_MAKES,
              copy < 0 && is_block_of_whole(b, param) ? whole : value, next, place.offset,
              value_bytes(b, value.tensor));
}

/* Updated working copies of [first, end) to all ranks, where each has them whole. */
static void weights_tell_emit(struct builder *b, int first, int end)
{
  for (int param = first; param < end && !b->status; param++) {
    const struct lade_value value = {updated_tensor(b, param), 0, 1};
    const struct place home = weight_place(b, param);
    if (is_block_of_whole(b, param))
      all_gather_emit(b, LADE_AXIS_SHARD, param, home, value, home.buffer,
                      (struct lade_value){b->graph->params[param].tensor, 0, 1});
  }
}

/* Its gradient, wherever it went. */
static struct held update_grad(const struct builder *b, int param)
{
  const int grad = b->graph->params[param].grad;
  if (is_sharded(b))
    return (struct held){block_place(b, param), block_now(b, param)};
  int at = b->lives->first_interval[grad + 1] - 1;
  int32_t buffer = b->lives->intervals[at].leave_slot >= 0 ? b->elsewhere[grad] : grad_place(b, param).buffer;
  return (struct held){{buffer, 0}, grad_now(b, param)};
}

static struct lade_stream_need stream_need(const struct builder *b, int param)
{
  bool is_grad_stored = !b->status && b->buffers.items[update_grad(b, param).at.buffer].space == LADE_STORE;
  bool is_weight_stored = b->params->residency->weight_homes[param] == LADE_HOME_STORE;
  return lade_stream_need(&(struct lade_stream_params){b->graph, b->params->layout, b->params->prices->streaming, param,
                                                       is_weight_stored, is_grad_stored});
}

static int32_t scratch_make(struct builder *b, struct lade_stream_need most, bool is_shared)
{
  enum lade_space space = b->params->is_unified ? LADE_DEVICE : LADE_HOST;
  return buffer_make(b, space, LADE_OWNER_WORKSPACE, lade_stream_scratch_bytes(most, is_shared), false);
}

/* For all updates that come after all steps. */
static int32_t shared_scratch_make(struct builder *b)
{
  struct lade_stream_need most = {0};
  for (int param = 0; param < b->graph->n_params && !b->status; param++) {
    if (b->params->residency->homes[param] != LADE_HOME_STORE)
      continue;
    const struct lade_stream_need need = stream_need(b, param);
    most.windows_bytes = LADE_MAX(most.windows_bytes, need.windows_bytes);
    most.scales_bytes = LADE_MAX(most.scales_bytes, need.scales_bytes);
  }
  return scratch_make(b, most, true);
}

/* Does the streamed update that is next begin a row of them? Early ones stand alone. */
static bool is_row_begun(const struct builder *b)
{
  return b->early || b->stream < 0;
}

/* A streamed update's windows: an early one has its own, which is gone before activations want the room. */
static void update_scratch_add(struct builder *b, int param)
{
  if (!b->early && b->stream < 0)
    b->stream = shared_scratch_make(b);
  int32_t buffer = b->early ? scratch_make(b, stream_need(b, param), false) : b->stream;
  operand_make(b, LADE_ROLE_SCRATCH, buffer, nothing, b->status ? 0 : b->buffers.items[buffer].bytes);
}

/* @copy: the working copy's, as weight_out_emit made it; the updated one goes back home. */
static void update_emit(struct builder *b, int param, const struct ruling *ruling, int32_t copy)
{
  static const enum lade_queue_id queues[] = {LADE_Q_COMPUTE, LADE_Q_HOST, LADE_Q_IO};
  const struct lade_graph *graph = b->graph;
  const int home = b->params->residency->homes[param];
  struct lade_instr *instr = instr_begin(b, LADE_INSTR_UPDATE, queues[home]);
  instr->param = param;
  instr->is_streamed = home == LADE_HOME_STORE;
  int64_t ns = plan_update_ns(b->params, param);
  if (instr->is_streamed && is_row_begun(b))
    ns += b->params->prices->stream_edge_ns[param];
  instr->predicted_ns = share_ns(b, param, ns);
  update_weight_add(b, param, copy);
  const struct held grad = update_grad(b, param);
  operand_add(b, LADE_ROLE_GRAD, grad.at.buffer, LADE_READS, grad.value, nothing, grad.at.offset,
              value_bytes(b, grad.value.tensor));
  for (int part = 0; part < LADE_N_PARTS; part++) {
    int tensor = lade_value_part(graph, param, (enum lade_part)part);
    if (tensor >= 0)
      operand_change(b, LADE_ROLE_RESIDUAL + part, b->part_buffers[param * LADE_N_PARTS + part],
                     (struct lade_value){tensor, 0, 0}, value_bytes(b, tensor));
  }
  bool is_on_device = home == LADE_HOME_DEVICE || ruling->on_host < 0;
  operand_read(b, LADE_ROLE_VERDICT, is_on_device ? ruling->on_device : ruling->on_host, ruling->value,
               sizeof(struct lade_verdict));
  if (home == LADE_HOME_STORE)
    update_scratch_add(b, param);
  const struct lade_value value = {updated_tensor(b, param), 0, 1};
  if (copy >= 0)
    move_emit(b, (struct place){copy, 0}, value, weight_place(b, param), value);
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
  if (b->graph->params[param].is_at_both_ends)
    end_settle(b);
  else
    reductions_settle(b, 0);
  norm_settle(b, param);
  clip_emit(b, param, &ruling);
  update_emit(b, param, &ruling, weight_out_emit(b, param));
  weights_tell_emit(b, param, param + 1);
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
  end_settle(b);
  for (int param = graph->n_params - 1; param >= 0; param--) /* about in the order in which they were summed */
    norm_settle(b, param);
  clip_emit(b, -1, &whole);
  if (b->early)
    return;
  int32_t next = graph->n_params ? weight_out_emit(b, 0) : -1;
  int first_untold = 0;
  uint64_t untold_bytes = 0;
  for (int param = 0; param < graph->n_params && !b->status; param++) {
    int32_t copy = next;
    next = param + 1 < graph->n_params ? weight_out_emit(b, param + 1) : -1;
    update_emit(b, param, &whole, copy);
    untold_bytes += value_bytes(b, graph->params[param].tensor);
    if (untold_bytes < b->bucket_bytes[LADE_AXIS_SHARD] && param + 1 < graph->n_params)
      continue;
    weights_tell_emit(b, first_untold, param + 1);
    first_untold = param + 1;
    untold_bytes = 0;
  }
}
