/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the live ranges of each value in device memory.
 *
 * The uses of a value, in list order, are cut into live ranges. A new range begins where the value is made (again), and
 * after each gap in which the residency moves or drops it. Then the copies of each range get a slot, a position
 * between two steps. A received value holds its memory from the step that sequence.c names, before its receive.
 *
 * Without prefetch, a copy out is right after the last use and a copy in right before the first. With prefetch, slots
 * follow a timeline of the compute queue alone. Copies out are laid one after another on their link, each from the time
 * when its value is ready; the memory is held until the copy's predicted end. Copies in are laid backwards from the
 * time of first use. Both move only as far as live bytes stay within the prefetch limit. The position of a copy in the
 * list does not delay it, because its queue runs ahead as far as its waits allow. The position decides which memory is
 * taken while the copy runs. O(uses + ranges log ranges + positions that copies are moved over).
 *
 * A collective costs its latency even for few bytes, and a transformer block has a dozen tensors. So working copies
 * that are gathered for one unit are prefetched together, to the slot of the first. A complete gradient may wait for
 * the next ones and be reduced together with them: a bucket, of plan_bucket_bytes at most, of one microbatch. A
 * gradient that waits for its update on the device anyway costs no extra memory. Others wait only if their bytes stay
 * within the prefetch limit. Without prefetch, and with optimizer_in_backward, no gradient waits.
 *
 * Where each microbatch's gradient is summed over ranks, this rank's block of the sum waits for the next microbatch.
 * The gap between two reductions is a gap of the gradient like any other, and its copies are placed with the
 * reductions.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/build.h"

#define HOLD_FACTOR 1.5 /* times a copy's own predicted time: it may share its link, and a busy machine is slower */

struct use {
  int32_t pos;
  bool is_made; /* the step makes the value; else it reads it */
};

struct cutter {
  const struct lade_build_params *params;
  const struct lade_model_graph *graph;
  const struct plan_step *steps;
  int n_steps, n_values;
  const int32_t *update_ends; /* by parameter: number of steps before its update */
  int32_t *first_use; /* by value, n_values + 1 */
  struct use *uses;
  int64_t *start_ns; /* by step, n_steps + 1 entries: start on the compute timeline */
  uint64_t *live_bytes; /* by step, n_steps + 1 entries: live on the device */
  LADE_ARRAY(struct live_range) ranges;
  LADE_ARRAY(struct grad_reduction) reductions;
  int32_t *first_range;
};

/* Call @use_add(c, value, pos, is_made) for every use, in list order. */
static void uses_walk(struct cutter *c, void (*use_add)(struct cutter *, int, int, bool))
{
  for (int pos = 0; pos < c->n_steps; pos++) {
    const struct lade_op *op = &c->graph->ops[plan_op_form(c->params, c->steps[pos].op)];
    for (int i = 0; i < op->n_in; i++) {
      if (op->in[i] >= 0)
        use_add(c, plan_value_number(c->graph, op->in[i], c->steps[pos].microbatch), pos, false);
    }
    for (int i = 0; i < op->n_out; i++) {
      if (op->out[i] >= 0)
        use_add(c, plan_value_number(c->graph, op->out[i], c->steps[pos].microbatch), pos, true);
    }
  }
}

static void use_count(struct cutter *c, int value, int pos, bool is_made)
{
  c->first_use[value + 1]++;
}

static void use_store(struct cutter *c, int value, int pos, bool is_made)
{
  c->uses[c->first_use[value]++] = (struct use){pos, is_made};
}

static int uses_collect(struct cutter *c)
{
  c->first_use = calloc((size_t)c->n_values + 1, sizeof(*c->first_use));
  if (!c->first_use)
    return -ENOMEM;
  uses_walk(c, use_count);
  for (int i = 0; i < c->n_values; i++)
    c->first_use[i + 1] += c->first_use[i];
  c->uses = malloc(((size_t)c->first_use[c->n_values] + 1) * sizeof(*c->uses));
  if (!c->uses)
    return -ENOMEM;
  uses_walk(c, use_store);
  memmove(c->first_use + 1, c->first_use, (size_t)c->n_values * sizeof(*c->first_use));
  c->first_use[0] = 0;
  return 0;
}

static int phase_of(const struct cutter *c, int pos)
{
  return 2 * c->steps[pos].microbatch + c->steps[pos].is_backward;
}

static enum lade_space wait_space(enum lade_residency_policy wait)
{
  return wait == LADE_RESIDENCY_STORE ? LADE_STORE : LADE_HOST;
}

/*
 * Return the space in which the value waits in the gap between two uses, or before its update. LADE_DEVICE: it stays.
 */
static enum lade_space gap_space(const struct cutter *c, int tensor, int from_pos, int to_pos, bool is_for_update)
{
  const struct lade_tensor *t = &c->graph->tensors[tensor];
  if (to_pos <= from_pos + 1)
    return LADE_DEVICE; /* no step runs in between */
  if (t->kind == LADE_TENSOR_PARAM && plan_is_gathered_in_place(c->params, t->param))
    return LADE_DEVICE; /* its memory is resident */
  if (c->graph->ops[c->steps[from_pos].op].kind == LADE_OP_RECV)
    return LADE_DEVICE; /* a prefetched input: a copy out would make its queue, and later copies, wait for another
                           stage */
  struct lade_choice choice = c->params->residency->choices[tensor];
  if (choice.spill == LADE_RESIDENCY_HOST || choice.spill == LADE_RESIDENCY_STORE)
    return wait_space(choice.spill);
  bool is_saved = is_for_update || phase_of(c, from_pos) != phase_of(c, to_pos);
  if (is_saved && (choice.saved == LADE_RESIDENCY_HOST || choice.saved == LADE_RESIDENCY_STORE))
    return wait_space(choice.saved);
  return LADE_DEVICE;
}

/* Return the space in which the value is valid at the start of the step, or PLAN_GATHERED. LADE_DEVICE: none. */
static enum lade_space state_tier_space(const struct cutter *c, int tensor)
{
  const struct lade_tensor *t = &c->graph->tensors[tensor];
  if (lade_tensor_is_data(t))
    return LADE_HOST;
  if (t->kind == LADE_TENSOR_PARAM)
    return plan_gathers(c->params) ? PLAN_GATHERED
                                   : plan_tier_space(c->params->residency->weight_tiers[t->param]);
  return LADE_DEVICE;
}

/* Return the space in which a value must be after its last use, for the update or the caller. LADE_DEVICE: any. */
static enum lade_space end_space(const struct cutter *c, int tensor, int last_pos)
{
  const struct lade_tensor *t = &c->graph->tensors[tensor];
  if (t->kind == LADE_TENSOR_LOSS)
    return LADE_HOST;
  if (t->kind != LADE_TENSOR_GRAD || lade_shard_count(c->params->layout) > 1)
    return LADE_DEVICE; /* only a block of a sharded gradient goes on, which build_grads.c places */
  enum lade_space tier = plan_tier_space(c->params->residency->state_tiers[t->param]);
  if (tier != LADE_STORE)
    return tier;
  enum lade_space away = gap_space(c, tensor, last_pos, c->update_ends[t->param], true);
  /* A streamed update reads the gradient from the store too, unless it reaches device memory. */
  return away == LADE_DEVICE && !c->params->is_unified ? LADE_STORE : away;
}

/* True if use @i, of a value whose uses begin at @uses, makes the value and does not add to it. */
static bool is_made_anew(const struct cutter *c, int tensor, const struct use *uses, int i)
{
  if (!uses[i].is_made || c->graph->tensors[tensor].kind != LADE_TENSOR_GRAD)
    return uses[i].is_made;
  bool is_first = i == 0 || c->steps[uses[i - 1].pos].microbatch != c->steps[uses[i].pos].microbatch;
  return i == 0 || (is_first && plan_sums_each(c->params));
}

/* Return the last position to which a gradient waits for its update on the device. */
static int32_t update_pos(const struct cutter *c, int param)
{
  int32_t n_before = c->update_ends[param];
  return n_before < c->n_steps ? n_before - 1 : c->n_steps;
}

/* True if gradient @tensor waits for its update in the buffer in which it was accumulated. */
static bool waits_for_update(const struct cutter *c, int tensor)
{
  const struct lade_param *param = &c->graph->params[c->graph->tensors[tensor].param];
  bool is_rounded = lade_model_graph_rounds(c->graph) && !param->is_at_both_ends;
  return c->params->is_training && !plan_sums_each(c->params) && !is_rounded;
}

/* Begin a live range of @value at step @pos, in place; valid until the next one begins. NULL: no memory. */
static struct live_range *range_begin(struct cutter *c, int value, int pos, int held_pos, int fetch_slot,
                                      enum lade_space source)
{
  if (!LADE_RESERVE(&c->ranges))
    return NULL;
  struct live_range *it = &c->ranges.items[c->ranges.n++];
  *it = (struct live_range){value, pos, pos, held_pos, fetch_slot, -1, (uint8_t)source, LADE_DEVICE};
  return it;
}

/* End @now, the last range of @tensor: with a copy out, or where its update on the device reads it. */
static void last_range_end(const struct cutter *c, int tensor, struct live_range *now)
{
  const struct lade_tensor *t = &c->graph->tensors[tensor];
  const bool is_grad = t->kind == LADE_TENSOR_GRAD;
  const enum lade_space end = end_space(c, tensor, now->last_pos);
  if (end != LADE_DEVICE) {
    if (is_grad && c->graph->params[t->param].is_at_both_ends)
      now->last_pos = c->n_steps - 1; /* its sum over both ends runs after all steps */
    now->leave_slot = now->last_pos + 1;
    now->target = (uint8_t)end;
  } else if (is_grad && waits_for_update(c, tensor)) {
    now->last_pos = update_pos(c, t->param);
  }
}

/* True if a value of this choice may wait outside of the device in some gap. */
static bool may_leave(struct lade_choice choice)
{
  return choice.spill == LADE_RESIDENCY_HOST || choice.spill == LADE_RESIDENCY_STORE ||
         choice.saved == LADE_RESIDENCY_HOST || choice.saved == LADE_RESIDENCY_STORE;
}

/*
 * Cut one value's uses into live ranges. A copy in another space stays valid until the value is made again or added to.
 * So only the first departure after that is a copy out; later ones drop the device's copy.
 */
static bool value_cut(struct cutter *c, int value)
{
  int tensor = plan_value_tensor(c->graph, value), n_uses = c->first_use[value + 1] - c->first_use[value];
  const struct use *uses = c->uses + c->first_use[value];
  if (n_uses == 0)
    return true;
  enum lade_space tier = state_tier_space(c, tensor), copy = tier;
  const bool is_grad = c->graph->tensors[tensor].kind == LADE_TENSOR_GRAD;
  const bool is_kept = !may_leave(c->params->residency->choices[tensor]);
  if (c->graph->tensors[tensor].kind == LADE_TENSOR_PARAM && tier == LADE_DEVICE)
    return true; /* resident parameters have no live ranges */
  struct live_range *now = NULL;
  bool is_anew = is_made_anew(c, tensor, uses, 0);
  for (int i = 0; i < n_uses; i++) {
    const int32_t pos = uses[i].pos;
    if (is_anew) {
      now = range_begin(c, value, pos, c->steps[pos].reserved_pos, -1, LADE_DEVICE);
      copy = LADE_DEVICE;
    } else if (!now) {
      now = range_begin(c, value, pos, pos, pos, copy);
    }
    if (!now)
      return false;
    if (is_grad)
      copy = LADE_DEVICE; /* copies in other spaces are out of date */
    now->last_pos = pos;
    is_anew = i + 1 < n_uses && is_made_anew(c, tensor, uses, i + 1);
    if (is_kept || is_anew || i + 1 == n_uses)
      continue;
    enum lade_space away = gap_space(c, tensor, pos, uses[i + 1].pos, false);
    if (away == LADE_DEVICE)
      continue;
    if (copy == LADE_DEVICE) {
      now->leave_slot = pos + 1;
      now->target = (uint8_t)away;
      copy = away;
    }
    now = NULL;
  }
  last_range_end(c, tensor, now);
  return true;
}

int64_t plan_transfer_ns(const struct lade_prices *prices, enum lade_space from, enum lade_space to, uint64_t bytes)
{
  const struct lade_transfer_price *price = to == LADE_STORE     ? &prices->write
                                            : from == LADE_STORE ? &prices->read
                                            : to == LADE_HOST    ? &prices->to_host
                                                                 : &prices->to_device;
  return price->latency_ns + (int64_t)((double)bytes * price->ns_per_byte);
}

static int link_of(enum lade_space from, enum lade_space to)
{
  if (from == PLAN_GATHERED)
    return lade_axis_queue(LADE_AXIS_SHARD);
  if (from == LADE_STORE || to == LADE_STORE)
    return LADE_Q_IO;
  return to == LADE_HOST ? LADE_Q_TO_HOST : LADE_Q_TO_DEVICE;
}

static int timeline_make(struct cutter *c)
{
  c->start_ns = calloc((size_t)c->n_steps + 1, sizeof(*c->start_ns));
  if (!c->start_ns)
    return -ENOMEM;
  for (int pos = 0; pos < c->n_steps; pos++) {
    int op = plan_op_form(c->params, c->steps[pos].op);
    bool is_elsewhere = lade_op_is_stage_boundary(c->graph->ops[op].kind); /* runs on its own queue */
    c->start_ns[pos + 1] = c->start_ns[pos] + (is_elsewhere ? 0 : c->params->prices->op_ns[op]);
  }
  return 0;
}

/* Return the first position in [lo, n_steps] that starts at @ns or later; n_steps: none. */
static int pos_at(const struct cutter *c, int lo, int64_t ns)
{
  int hi = c->n_steps;
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;
    if (c->start_ns[mid] < ns)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* Return the bytes of a live range of @value: none if its memory is resident. */
static uint64_t value_bytes(const struct cutter *c, int value)
{
  const struct lade_tensor *t = &c->graph->tensors[plan_value_tensor(c->graph, value)];
  if (t->kind == LADE_TENSOR_PARAM && plan_is_gathered_in_place(c->params, t->param))
    return 0;
  uint64_t bytes = plan_held_bytes(c->params, plan_value_tensor(c->graph, value));
  return plan_buffer_bytes(LADE_DEVICE, bytes);
}

static int64_t held_ns(const struct cutter *c, enum lade_space from, enum lade_space to, int value)
{
  uint64_t bytes = plan_held_bytes(c->params, plan_value_tensor(c->graph, value));
  if (from == PLAN_GATHERED)
    return (int64_t)(HOLD_FACTOR * (double)plan_collective_ns(c->params, LADE_ALL_GATHER, LADE_AXIS_SHARD, bytes));
  return (int64_t)(HOLD_FACTOR * (double)plan_transfer_ns(c->params->prices, from, to, bytes));
}

/* ---- live bytes without prefetch ---- */

static uint64_t resident_bytes(const struct cutter *c)
{
  uint64_t bytes = 0;
  for (int param = 0; param < c->graph->n_params; param++) {
    bool is_block = plan_gathers(c->params) && !plan_is_gathered_in_place(c->params, param);
    int weight = is_block ? lade_value_block(c->graph, param, LADE_BLOCK_WEIGHT) : c->graph->params[param].tensor;
    if (c->params->residency->weight_tiers[param] == LADE_TIER_DEVICE)
      bytes += plan_buffer_bytes(LADE_DEVICE, plan_held_bytes(c->params, weight));
    for (int part = 0; part < LADE_N_PARTS && c->params->residency->state_tiers[param] == LADE_TIER_DEVICE; part++) {
      int tensor = lade_value_part(c->graph, param, (enum lade_part)part);
      bytes += tensor < 0 ? 0 : plan_buffer_bytes(LADE_DEVICE, plan_held_bytes(c->params, tensor));
    }
  }
  return bytes;
}

/* True if the step at @pos makes an output in the memory of this value, whose live range ends there. */
static bool is_taken_over(const struct cutter *c, int value, int pos)
{
  const struct lade_op *op = &c->graph->ops[c->steps[pos].op];
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] >= 0 && op->alias[i] >= 0 && op->in[op->alias[i]] == plan_value_tensor(c->graph, value))
      return true;
  }
  return false;
}

/*
 * Count rounded gradients that wait for their updates on the device: buffers that begin where the live range of the
 * unrounded gradient ends.
 */
static void rounded_count(const struct cutter *c, uint64_t *change)
{
  for (int i = 0; i < c->ranges.n && lade_model_graph_rounds(c->graph); i++) {
    const struct live_range *it = &c->ranges.items[i];
    const int tensor = plan_value_tensor(c->graph, it->value), param = c->graph->tensors[tensor].param;
    bool is_last = i + 1 == c->ranges.n || c->ranges.items[i + 1].value != it->value;
    if (c->graph->tensors[tensor].kind != LADE_TENSOR_GRAD || !is_last || it->leave_slot >= 0 ||
        waits_for_update(c, tensor))
      continue;
    int rounded = lade_value_block(c->graph, param, LADE_BLOCK_ROUNDED);
    uint64_t bytes = plan_buffer_bytes(LADE_DEVICE, plan_held_bytes(c->params, rounded));
    change[it->last_pos + 1] += bytes;
    change[LADE_MAX(it->last_pos, update_pos(c, param)) + 1] -= bytes;
  }
}

static int live_count(struct cutter *c)
{
  c->live_bytes = calloc((size_t)c->n_steps + 2, sizeof(*c->live_bytes));
  if (!c->live_bytes)
    return -ENOMEM;
  uint64_t *change = c->live_bytes; /* entries may wrap below zero; only the running sum counts */
  change[0] += resident_bytes(c);
  for (int i = 0; i < c->ranges.n; i++) {
    const struct live_range *it = &c->ranges.items[i];
    bool is_taken = it->leave_slot < 0 && it->last_pos < c->n_steps && it->last_pos > it->first_pos &&
                    is_taken_over(c, it->value, it->last_pos);
    change[it->held_pos] += value_bytes(c, it->value);
    change[it->last_pos + (is_taken ? 0 : 1)] -= value_bytes(c, it->value);
  }
  rounded_count(c, change);
  for (int pos = 1; pos <= c->n_steps; pos++)
    c->live_bytes[pos] += c->live_bytes[pos - 1];
  for (int pos = 0; pos < c->n_steps; pos++)
    c->live_bytes[pos] += lade_align_up(c->graph->ops[c->steps[pos].op].workspace_bytes, LADE_BUFFER_ALIGN);
  return 0;
}

static bool live_take(struct cutter *c, int pos, uint64_t bytes)
{
  if (bytes && c->live_bytes[pos] + bytes > c->params->residency->prefetch_bytes)
    return false;
  c->live_bytes[pos] += bytes;
  return true;
}

/* ---- reductions of gradients ---- */

/* The reductions after the last closed bucket. */
struct bucket {
  int first;           /* index of its first reduction */
  uint64_t bytes;      /* that its collectives move */
  uint64_t held_bytes; /* of gradients that would be freed by now if they did not wait */
  int32_t until;       /* the first step that adds again to one of its gradients */
  uint64_t max_bytes;
};

/* Take @bytes in all positions of [from, to), or in none. */
static bool live_take_all(struct cutter *c, int from, int to, uint64_t bytes)
{
  int pos = from;
  while (pos < to && live_take(c, pos, bytes))
    pos++;
  for (int taken = from; pos < to && taken < pos; taken++)
    c->live_bytes[taken] -= bytes;
  return pos == to;
}

/* Return the live range of the gradient of @param that contains @pos. */
static struct live_range *grad_range(struct cutter *c, int param, int pos)
{
  const int grad = c->graph->params[param].grad;
  int at = c->first_range[grad + 1] - 1;
  while (at > c->first_range[grad] && c->ranges.items[at].first_pos > pos)
    at--;
  return &c->ranges.items[at];
}

/* Return the bytes that the gradient takes past @pos if it waits there for its bucket. */
static uint64_t waiting_bytes(struct cutter *c, const struct grad_reduction *reduction)
{
  const struct live_range *it = grad_range(c, reduction->param, reduction->pos);
  const int grad = c->graph->params[reduction->param].grad;
  bool is_on_device = c->params->residency->state_tiers[reduction->param] == LADE_TIER_DEVICE;
  bool is_there = it->leave_slot < 0 && is_on_device && waits_for_update(c, grad);
  return is_there ? 0 : value_bytes(c, grad);
}

static uint64_t reduction_input_bytes(const struct cutter *c, int param)
{
  return plan_held_bytes(c->params, c->graph->params[param].tensor);
}

/* True if the reductions of the bucket may wait until @reduction, the next one, is complete too. */
static bool bucket_takes(struct cutter *c, const struct bucket *bucket, const struct grad_reduction *reduction, int n)
{
  const struct grad_reduction *last = &c->reductions.items[n - 1];
  bool optimizer_in_backward = c->params->residency->optimizer_in_backward, has_room = c->live_bytes != NULL;
  return n > bucket->first && n - bucket->first < LADE_COMM_LIST_MAX && !optimizer_in_backward &&
         last->microbatch == reduction->microbatch && reduction->slot <= bucket->until &&
         bucket->bytes + reduction_input_bytes(c, reduction->param) <= bucket->max_bytes &&
         (!bucket->held_bytes ||
          (has_room && live_take_all(c, last->slot, reduction->slot, bucket->held_bytes)));
}

/* Close the bucket: all its reductions run at the last one's slot, and copies out follow that slot. */
static void bucket_close(struct cutter *c, const struct bucket *bucket, int end)
{
  for (int i = bucket->first; i < end; i++) {
    struct grad_reduction *reduction = &c->reductions.items[i];
    struct live_range *it = grad_range(c, reduction->param, reduction->pos);
    reduction->slot = c->reductions.items[end - 1].slot;
    if (it->leave_slot >= 0)
      it->leave_slot = LADE_MAX(it->leave_slot, reduction->slot);
  }
}

/* Place reductions, which are in order: each joins the bucket before it or begins a new one. */
static void buckets_place(struct cutter *c)
{
  const bool is_sharded = lade_shard_count(c->params->layout) > 1;
  struct bucket bucket = {.until = INT32_MAX};
  bucket.max_bytes = plan_bucket_bytes(c->params, is_sharded ? LADE_AXIS_SHARD : LADE_AXIS_DP);
  for (int i = 0; i < c->reductions.n; i++) {
    const struct grad_reduction *reduction = &c->reductions.items[i];
    if (i > 0 && !bucket_takes(c, &bucket, reduction, i)) {
      bucket_close(c, &bucket, i);
      bucket = (struct bucket){.first = i, .until = INT32_MAX, .max_bytes = bucket.max_bytes};
    }
    bucket.until = LADE_MIN(bucket.until, reduction->until);
    bucket.bytes += reduction_input_bytes(c, reduction->param);
    bucket.held_bytes += waiting_bytes(c, reduction);
  }
  if (c->reductions.n)
    bucket_close(c, &bucket, c->reductions.n);
}

/*
 * Prefetch blocks that wait outside the device while other ranks' addends are in flight: the last reduction first, as
 * far as there is room. That is early enough because a block is only one rank's part of the sum.
 */
static void blocks_place(struct cutter *c)
{
  int32_t ends[REDUCTIONS_IN_FLIGHT]; /* slots of the batches after the current one, the next one first */
  for (int i = 0; i < REDUCTIONS_IN_FLIGHT; i++)
    ends[i] = c->n_steps;
  for (int i = c->reductions.n - 1; i >= 0; i--) {
    struct grad_reduction *reduction = &c->reductions.items[i];
    if (i + 1 < c->reductions.n && reduction[1].slot != reduction->slot) {
      memmove(ends + 1, ends, sizeof(ends) - sizeof(ends[0]));
      ends[0] = reduction[1].slot;
    }
    const int block = lade_value_block(c->graph, reduction->param, LADE_BLOCK_GRAD);
    const uint64_t bytes = plan_buffer_bytes(LADE_DEVICE, plan_held_bytes(c->params, block));
    if (reduction->source != LADE_DEVICE)
      reduction->is_ahead = live_take_all(c, reduction->slot, ends[REDUCTIONS_IN_FLIGHT - 1], bytes);
  }
}

/*
 * Note that the step at @pos adds to the gradient of @param. It is addition @n_added of this gradient; each microbatch
 * makes @n_adds.
 */
static int addition_note(struct cutter *c, int param, int pos, int n_added, int n_adds, int32_t *latest)
{
  const int16_t microbatch = c->steps[pos].microbatch;
  const bool is_each = plan_sums_each(c->params);
  const int n_awaited = is_each ? n_adds : n_adds * c->params->n_microbatches;
  struct grad_reduction *before = latest[param] >= 0 ? &c->reductions.items[latest[param]] : NULL;
  if (before && before->until == INT32_MAX) {
    before->until = pos;
    before->target = (uint8_t)gap_space(c, c->graph->params[param].grad, before->pos, pos, false);
  }
  if (n_added % n_awaited != 0)
    return 0;
  const uint8_t source = before ? before->target : LADE_DEVICE;
  const struct grad_reduction reduction = {pos + 1, pos, param, INT32_MAX, microbatch, source, LADE_DEVICE, false};
  latest[param] = c->reductions.n;
  return LADE_PUSH(&c->reductions, reduction) ? 0 : -ENOMEM;
}

/* Collect every completion of a gradient, in list order, each to be reduced at once. */
static int reductions_collect(struct cutter *c)
{
  const size_t n_params = (size_t)c->graph->n_params + 1;
  int32_t *n_added = calloc(n_params, sizeof(*n_added)), *latest = malloc(n_params * sizeof(*latest));
  int status = n_added && latest ? 0 : -ENOMEM;
  if (latest)
    memset(latest, -1, n_params * sizeof(*latest));
  for (int pos = 0; pos < c->n_steps && !status; pos++) {
    const struct lade_op *op = &c->graph->ops[c->steps[pos].op];
    for (int i = 0; i < op->n_out && !status; i++) {
      const int tensor = op->out[i];
      if (tensor < 0 || c->graph->tensors[tensor].kind != LADE_TENSOR_GRAD)
        continue;
      const int param = c->graph->tensors[tensor].param;
      const int n_adds = (c->first_use[tensor + 1] - c->first_use[tensor]) / c->params->n_microbatches;
      status = addition_note(c, param, pos, ++n_added[param], n_adds, latest);
    }
  }
  free(n_added);
  free(latest);
  return status;
}

static int leave_compare(const void *x, const void *y)
{
  const struct live_range *a = *(struct live_range *const *)x, *b = *(struct live_range *const *)y;
  return a->last_pos != b->last_pos ? (a->last_pos > b->last_pos) - (a->last_pos < b->last_pos)
                                    : (a->value > b->value) - (a->value < b->value);
}

static int fetch_compare(const void *x, const void *y)
{
  const struct live_range *a = *(struct live_range *const *)x, *b = *(struct live_range *const *)y;
  return a->first_pos != b->first_pos ? (a->first_pos < b->first_pos) - (a->first_pos > b->first_pos)
                                      : (a->value < b->value) - (a->value > b->value);
}

/* Return the step before which the value is copied in again; n_steps: none. */
static int next_fetch(const struct cutter *c, const struct live_range *it)
{
  const struct live_range *next = it + 1;
  bool is_same = next < c->ranges.items + c->ranges.n && next->value == it->value && next->fetch_slot >= 0;
  return is_same ? next->first_pos : c->n_steps;
}

/* Return the first slot at which the value can be copied in: not before its copy out. */
static int first_slot(const struct cutter *c, const struct live_range *it)
{
  const struct live_range *before = it - 1;
  if (it == c->ranges.items || before->value != it->value)
    return 0;
  return LADE_MAX(before->last_pos + 1, before->leave_slot);
}

/* Hold the memory of each copy out until its link has moved it. */
static void leaves_place(struct cutter *c, struct live_range **order, int n)
{
  int64_t free_ns[LADE_N_QUEUES] = {0};
  qsort(order, (size_t)n, sizeof(*order), leave_compare);
  for (int i = 0; i < n; i++) {
    struct live_range *it = order[i];
    int link = link_of(LADE_DEVICE, it->target);
    int64_t ready = c->start_ns[it->last_pos + 1];
    free_ns[link] = LADE_MAX(free_ns[link], ready) + held_ns(c, LADE_DEVICE, it->target, it->value);
    int wanted = pos_at(c, it->last_pos + 1, free_ns[link]);
    int next = next_fetch(c, it); /* the value is copied in again there: holding it longer is useless */
    const uint64_t bytes = value_bytes(c, it->value);
    while (it->leave_slot < LADE_MIN(wanted, next) && live_take(c, it->leave_slot, bytes))
      it->leave_slot++;
  }
}

static int unit_of(const struct cutter *c, const struct live_range *it)
{
  return c->graph->tensors[plan_value_tensor(c->graph, it->value)].unit;
}

/* True if both are gathered for one unit in one half of a microbatch. */
static bool is_one_gather(const struct cutter *c, const struct live_range *a, const struct live_range *b)
{
  return a->source == PLAN_GATHERED && b->source == PLAN_GATHERED && unit_of(c, a) == unit_of(c, b) &&
         phase_of(c, a->first_pos) == phase_of(c, b->first_pos);
}

/* Move a copy in to slot @wanted, or as far towards it as there is room, and hold its memory from there. */
static void fetch_move(struct cutter *c, struct live_range *it, int wanted)
{
  const uint64_t bytes = value_bytes(c, it->value);
  wanted = LADE_MAX(wanted, first_slot(c, it));
  while (it->fetch_slot > wanted && live_take(c, it->fetch_slot - 1, bytes))
    it->fetch_slot--;
}

/* Move the copy in at @first, and those gathered with it, from @order into @together, the first needed last. */
static int fetches_take(const struct cutter *c, struct live_range **order, int first, int n,
                        struct live_range *together[LADE_COMM_LIST_MAX])
{
  const struct live_range *it = order[first];
  int n_together = 0;
  for (int i = first; i < n && n_together < LADE_COMM_LIST_MAX; i++) {
    if (i > first && (!order[i] || order[i]->source != PLAN_GATHERED))
      continue;
    if (i > first && !is_one_gather(c, it, order[i]))
      break;
    together[n_together++] = order[i];
    order[i] = NULL;
    if (it->source != PLAN_GATHERED)
      break;
  }
  return n_together;
}

/*
 * Start each copy in early enough to end in time, the last first. Values gathered for one unit move with the first of
 * them that is needed.
 */
static void fetches_place(struct cutter *c, struct live_range **order, int n)
{
  struct live_range *together[LADE_COMM_LIST_MAX];
  int64_t next_ns[LADE_N_QUEUES];
  for (int i = 0; i < LADE_N_QUEUES; i++)
    next_ns[i] = c->start_ns[c->n_steps];
  qsort(order, (size_t)n, sizeof(*order), fetch_compare);
  for (int i = 0; i < n; i++) {
    if (!order[i])
      continue; /* already moved with its unit */
    const int link = link_of(order[i]->source, LADE_DEVICE);
    const int n_together = fetches_take(c, order, i, n, together);
    next_ns[link] = LADE_MIN(next_ns[link], c->start_ns[together[n_together - 1]->first_pos]);
    for (int j = 0; j < n_together; j++)
      next_ns[link] -= held_ns(c, together[j]->source, LADE_DEVICE, together[j]->value);
    int wanted = next_ns[link] <= 0 ? 0 : pos_at(c, 0, next_ns[link] + 1) - 1;
    for (int j = n_together - 1; j >= 0; j--) /* the first needed gets room first */
      fetch_move(c, together[j], wanted);
  }
}

static int slots_place(struct cutter *c)
{
  struct live_range **order = calloc((size_t)c->ranges.n + 1, sizeof(*order));
  if (!order || timeline_make(c) || live_count(c)) {
    free(order);
    return -ENOMEM;
  }
  int n = 0;
  for (int i = 0; i < c->ranges.n; i++) {
    if (c->ranges.items[i].leave_slot >= 0)
      order[n++] = &c->ranges.items[i];
  }
  buckets_place(c);
  blocks_place(c);
  leaves_place(c, order, n);
  n = 0;
  for (int i = 0; i < c->ranges.n; i++) {
    if (c->ranges.items[i].fetch_slot >= 0)
      order[n++] = &c->ranges.items[i];
  }
  fetches_place(c, order, n);
  free(order);
  return 0;
}

static int values_cut(struct cutter *c)
{
  c->first_range = calloc((size_t)c->n_values + 1, sizeof(*c->first_range));
  if (!c->first_range)
    return -ENOMEM;
  for (int value = 0; value < c->n_values; value++) {
    c->first_range[value] = c->ranges.n;
    if (!value_cut(c, value))
      return -ENOMEM;
  }
  c->first_range[c->n_values] = c->ranges.n;
  return 0;
}

int live_ranges_create(const struct lade_build_params *params, const struct plan_step *steps, int n_steps,
                       const int32_t *update_ends, struct live_ranges *ret_live)
{
  struct cutter c = {
      .params = params, .graph = params->graph, .steps = steps, .n_steps = n_steps, .update_ends = update_ends};
  LADE_ASSERT(params->graph->n_tensors <= INT32_MAX / params->n_microbatches);
  c.n_values = params->graph->n_tensors * params->n_microbatches;
  int status = uses_collect(&c);
  if (!status)
    status = values_cut(&c);
  if (!status)
    status = reductions_collect(&c);
  if (!status && params->residency->prefetch_bytes > 0)
    status = slots_place(&c);
  else if (!status)
    buckets_place(&c);
  free(c.first_use);
  free(c.uses);
  free(c.start_ns);
  free(c.live_bytes);
  if (status) {
    free(c.first_range);
    LADE_ARRAY_FREE(&c.ranges);
    LADE_ARRAY_FREE(&c.reductions);
    return status;
  }
  *ret_live = (struct live_ranges){c.ranges.items,  c.first_range, c.ranges.n, c.n_values,
                                   c.reductions.items, c.reductions.n};
  LADE_ASSERT(!LADE_CHECK_FULL || live_ranges_are_valid(ret_live, n_steps));
  return 0;
}

void live_ranges_finish(struct live_ranges *live)
{
  free(live->ranges);
  free(live->first_range);
  free(live->reductions);
  *live = (struct live_ranges){0};
}
