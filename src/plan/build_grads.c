/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emission: what becomes of a gradient once it is complete, up to its sums of squares.
 *
 * On one rank its sums of squares come at once, while it is on the device. Among several ranks it is first summed over
 * them, on a queue of its own, while the backward half goes on; nothing on the compute queue looks at it until it
 * must: sums of squares come when the gradient leaves the device, when its parameter is updated early, or after all
 * steps.
 *
 * Where state is in shards (ZeRO), a reduce-scatter leaves each rank its block of the sum: of the gradient of all
 * microbatches, in place (1), or of each microbatch's, which is then added to the block (2, 3), so that no whole
 * gradient outlives its microbatch. The block may wait elsewhere for the next microbatch's, as lives.c says, and comes
 * back for the addition. With replicas of shards (hybrid sharding) complete blocks are summed over those, too.
 *
 * With sums in BF16 what goes to other ranks is narrowed first, and the sum widened to where it would have come in F32;
 * tensor parallel ranks and both ends of a pipeline still sum in F32.
 *
 * Gradients are handed on in batches, as lives.c says: their collectives stand together, and are bundles. What the
 * compute queue does to what is still under way (add it, widen it, round it, send it home) comes PLAN_LAG batches
 * later.
 *
 * A table that is tied over the ends of a pipeline is then summed over the first and the last stage, behind all steps:
 * the last stage is done with it long before, but what waited there for the first one would keep it from ever getting
 * there. So its gradient leaves last, whatever is early.
 *
 * Where the update takes gradients in another type than the one in which they are added up, a gradient is rounded once,
 * when it is complete, over all ranks too; sums of squares, copies and the update are of the rounded one, and the
 * memory of the other is free.
 *
 * A microbatch's loss is summed over ranks before it goes to the host; the mean is taken there.
 */
#include <errno.h>

#include "plan/build_internal.h"

static const struct lade_value nothing = {-1, 0, 0};

/* Are gradients summed over data parallel ranks in BF16? */
static bool is_narrow(const struct builder *b)
{
  return lade_layout_size(b->params->layout, LADE_AXIS_DP) > 1 && b->params->layout->grad_reduce == LADE_BF16;
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

struct lade_value loss_reduce_emit(struct builder *b, int32_t buffer, struct lade_value loss)
{
  if (lade_layout_size(b->params->layout, LADE_AXIS_DP) == 1)
    return loss;
  all_reduce_emit(b, LADE_AXIS_DP, -1, (struct place){buffer, 0}, loss);
  loss.version++;
  return loss;
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

/* The time of moving @n_bytes for an element, from that of a norm, which reads one number of an element. */
static int64_t moves_ns(const struct builder *b, int param, size_t n_bytes)
{
  const int64_t read_bytes = (int64_t)lade_dtype_bytes(b->graph->grad_dtype);
  return share_ns(b, (int64_t)n_bytes * b->params->prices->norm_ns[param] / read_bytes);
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
  instr->predicted_ns = share_ns(b, b->params->prices->norm_ns[param]);
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

/*
 * Everything of this rank and its fellows is in the blocks, or on its way since @batch; with replicas, theirs too: what
 * is summed once more is on its way from now on.
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
    b->is_norm_due[params[i]] = true;
    if (!param->is_at_both_ends)
      b->due[b->n_due++] = (struct due){params[i], is_summed ? b->n_batches : batch};
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

/* The block of a gradient, as it is now, to @space, if it is elsewhere. */
static void block_move(struct builder *b, int param, enum lade_space space)
{
  if (b->status || b->buffers.items[b->block_buffers[param]].space == space)
    return;
  const struct place src = block_place(b, param);
  const struct lade_value block = block_now(b, param);
  const int32_t dst = buffer_make(b, space, LADE_OWNER_GRADIENTS, value_bytes(b, block.tensor), false);
  transfer_emit(b, src, (struct place){dst, 0}, block);
  b->block_buffers[param] = dst;
}

/* Is more of the gradient of @param on its way? */
static bool is_expected(const struct builder *b, int param)
{
  int i = b->n_added;
  while (i < b->incoming.n && b->incoming.items[i].param != param)
    i++;
  return i < b->incoming.n;
}

/* What has come becomes the block, or is added to it. Then the block waits for the next, where lives.c says. */
static void incoming_take(struct builder *b, const struct incoming *incoming)
{
  const int32_t param = incoming->param;
  struct held part = incoming->what;
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
  if (incoming->is_last)
    blocks_complete(b, &param, 1, incoming->batch);
  else if (incoming->target != LADE_DEVICE && !is_expected(b, param))
    block_move(b, param, (enum lade_space)incoming->target);
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
  if (space == LADE_STORE && b->params->is_unified && b->block_buffers[param] == grad_buffer(b, param))
    block_move(b, param, LADE_HOST); /* drives want whole pages, and among the others' blocks it has none */
  block_move(b, param, space);
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

void grads_settle(struct builder *b, bool is_end)
{
  reductions_settle(b, 0);
  for (int param = 0; param < b->graph->n_params && is_end && !b->status; param++) {
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
  if (handing->is_ahead && b->block_versions[param])
    block_move(b, param, LADE_DEVICE);
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
    const struct incoming next = {.what = handed[i].block, .param = param, .microbatch = handings[i].microbatch,
                                  .is_last = is_last, .is_block = !handed[i].is_incoming,
                                  .target = handings[i].target, .batch = b->n_batches};
    if (next.is_block && is_last)
      complete[n_complete++] = param;
    else if (!LADE_PUSH(&b->incoming, next))
      b->status = -ENOMEM;
  }
  blocks_complete(b, complete, n_complete, b->n_batches);
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
    reductions_settle(b, PLAN_LAG);
  }
}
