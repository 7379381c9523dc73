/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When is a value in device memory? Its uses, in list order, are cut into intervals: a new one begins where
 * the value is made (again), and where the gap before a use is one in which the residency sends it away.
 * Then each interval's copies get a slot, a position between two steps.
 *
 * Just in time, a copy out stands right behind the last use and a copy in right before the first. With
 * prefetch, slots follow a timeline of the compute queue alone: copies out are laid one after another on
 * their link from the moment that each value is ready, and the memory is held until the copy will
 * be done; copies in are laid backwards from the moment that each is needed; both as far as the bytes that are
 * live meanwhile allow. The position of a copy in the list does not delay it (its queue runs ahead as
 * far as its waits allow); what the position decides is which memory is taken while it runs. O(uses +
 * intervals log intervals + positions that copies are moved over).
 *
 * A collective costs its latency, however little it moves, and a block of a transformer has a dozen tensors. So working
 * copies that are gathered for one unit are moved early together, to where the first of them is; and a gradient that is
 * complete may wait for the next ones, to be summed over ranks together with them: a bucket, of as many bytes as are
 * best moved at once, of one microbatch. Gradients that wait for their update anyway, where they are, cost no memory;
 * others wait only if what they hold meanwhile stays within the bytes that copies may be early in. Just in time they
 * do not wait, nor where parameters are updated early.
 *
 * Where each microbatch's gradient is summed over ranks, a rank's block of the sum is what waits for the next one: the
 * gap between two handings is a gap of the gradient like any other, and the copies are placed with the handings.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/build.h"

#define HOLD_FACTOR 1.5 /* of a copy's own time: it may meet others on its link, and a busy machine */

struct use {
  int32_t pos;
  bool is_made; /* the step makes the value; it does not read it */
};

struct cutter {
  const struct lade_build_params *params;
  const struct lade_graph *graph;
  const struct plan_step *steps;
  int n_steps, n_values;
  const int32_t *update_ends; /* by parameter: steps that come before its update */
  int32_t *first_use; /* by value, n_values + 1 */
  struct use *uses;
  int64_t *start_ns; /* by step and n_steps: the compute timeline */
  uint64_t *live_bytes; /* by step and n_steps: on the device */
  LADE_ARRAY(struct plan_interval) intervals;
  LADE_ARRAY(struct plan_handing) handings;
  int32_t *first_interval;
};

/* Call @use_add(c, value, pos, is_made) for every use, in list order. */
static void uses_walk(struct cutter *c, void (*use_add)(struct cutter *, int, int, bool))
{
  for (int pos = 0; pos < c->n_steps; pos++) {
    const struct lade_op *op = &c->graph->ops[c->steps[pos].op];
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
  c->uses = calloc((size_t)c->first_use[c->n_values] + 1, sizeof(*c->uses));
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

static enum lade_space wait_space(enum lade_wait wait)
{
  return wait == LADE_WAIT_STORE ? LADE_STORE : LADE_HOST;
}

/* Where the value goes in the gap between two uses, or before its update; LADE_DEVICE: it stays. */
static enum lade_space gap_space(const struct cutter *c, int tensor, int from_pos, int to_pos, bool is_for_update)
{
  if (to_pos <= from_pos + 1)
    return LADE_DEVICE; /* nothing happens in between */
  if (c->graph->ops[c->steps[from_pos].op].kind == LADE_OP_RECV)
    return LADE_DEVICE; /* taken ahead: a copy would keep its queue waiting for another stage, and others behind it */
  struct lade_choice choice = c->params->residency->choices[tensor];
  if (choice.spill == LADE_WAIT_HOST || choice.spill == LADE_WAIT_STORE)
    return wait_space(choice.spill);
  bool is_saved = is_for_update || phase_of(c, from_pos) != phase_of(c, to_pos);
  if (is_saved && (choice.saved == LADE_WAIT_HOST || choice.saved == LADE_WAIT_STORE))
    return wait_space(choice.saved);
  return LADE_DEVICE;
}

/* The space in which a copy of the value lies ready at the start of the step, or PLAN_GATHERED; LADE_DEVICE: none. */
static enum lade_space home_space(const struct cutter *c, int tensor)
{
  const struct lade_tensor *what = &c->graph->tensors[tensor];
  if (what->kind == LADE_TENSOR_TOKENS || what->kind == LADE_TENSOR_TARGETS)
    return LADE_HOST;
  if (what->kind == LADE_TENSOR_PARAM)
    return plan_is_gathered(c->params, what->param)
               ? PLAN_GATHERED
               : plan_home_space(c->params->residency->weight_homes[what->param]);
  return LADE_DEVICE;
}

/* Where a value must be after its last use, for the update or the caller; LADE_DEVICE: anywhere. */
static enum lade_space end_space(const struct cutter *c, int tensor, int last_pos)
{
  const struct lade_tensor *what = &c->graph->tensors[tensor];
  if (what->kind == LADE_TENSOR_LOSS)
    return LADE_HOST;
  if (what->kind != LADE_TENSOR_GRAD || lade_shard_count(c->params->layout) > 1)
    return LADE_DEVICE; /* of a sharded gradient a block is handed on, which build_grads.c places */
  enum lade_space home = plan_home_space(c->params->residency->homes[what->param]);
  if (home != LADE_STORE)
    return home;
  enum lade_space away = gap_space(c, tensor, last_pos, c->update_ends[what->param], true);
  /* An update that streams from the store reads the gradient there too, unless it reaches device memory. */
  return away == LADE_DEVICE && !c->params->is_unified ? LADE_STORE : away;
}

/* Does use @i, of a value whose uses begin at @uses, make it rather than add to it? */
static bool is_made_anew(const struct cutter *c, int tensor, const struct use *uses, int i)
{
  if (!uses[i].is_made || c->graph->tensors[tensor].kind != LADE_TENSOR_GRAD)
    return uses[i].is_made;
  bool is_first = i == 0 || c->steps[uses[i - 1].pos].microbatch != c->steps[uses[i].pos].microbatch;
  return i == 0 || (is_first && plan_sums_each(c->params));
}

/* The last position to which a gradient waits for its update on the device. */
static int32_t update_pos(const struct cutter *c, int param)
{
  int32_t n_before = c->update_ends[param];
  return n_before < c->n_steps ? n_before - 1 : c->n_steps;
}

/* Does gradient @tensor wait for its update as it was added up, where it was? */
static bool waits_for_update(const struct cutter *c, int tensor)
{
  const struct lade_param *param = &c->graph->params[c->graph->tensors[tensor].param];
  bool is_rounded = lade_graph_rounds(c->graph) && !param->is_at_both_ends;
  return c->params->is_training && !plan_sums_each(c->params) && !is_rounded;
}

static bool interval_push(struct cutter *c, const struct plan_interval *interval)
{
  return LADE_PUSH(&c->intervals, *interval);
}

/*
 * Cut one value's uses into intervals. A copy elsewhere stays good until the value is made anew or added to,
 * so only the first departure after that is a copy out; later ones just drop the device's copy.
 */
static bool value_cut(struct cutter *c, int value)
{
  int tensor = value % c->graph->n_tensors, n_uses = c->first_use[value + 1] - c->first_use[value];
  const struct use *uses = c->uses + c->first_use[value];
  enum lade_space home = home_space(c, tensor), copy = home;
  bool is_grad = c->graph->tensors[tensor].kind == LADE_TENSOR_GRAD;
  if (n_uses == 0 || (c->graph->tensors[tensor].kind == LADE_TENSOR_PARAM && home == LADE_DEVICE))
    return true; /* resident parameters have no intervals */
  struct plan_interval now = {.value = value, .first_pos = -1, .leave_slot = -1};
  for (int i = 0; i < n_uses; i++) {
    if (is_made_anew(c, tensor, uses, i)) {
      if (now.first_pos >= 0 && !interval_push(c, &now))
        return false;
      now = (struct plan_interval){value, uses[i].pos, uses[i].pos, -1, -1, LADE_DEVICE, LADE_DEVICE};
      copy = LADE_DEVICE;
    } else if (now.first_pos < 0) {
      now = (struct plan_interval){value, uses[i].pos, uses[i].pos, uses[i].pos, -1, (uint8_t)copy, LADE_DEVICE};
    }
    if (is_grad)
      copy = LADE_DEVICE; /* whatever lies elsewhere is out of date */
    now.last_pos = uses[i].pos;
    if (i + 1 == n_uses || is_made_anew(c, tensor, uses, i + 1))
      continue;
    enum lade_space away = gap_space(c, tensor, uses[i].pos, uses[i + 1].pos, false);
    if (away == LADE_DEVICE)
      continue;
    if (copy == LADE_DEVICE) {
      now.leave_slot = uses[i].pos + 1;
      now.target = (uint8_t)away;
      copy = away;
    }
    if (!interval_push(c, &now))
      return false;
    now.first_pos = now.leave_slot = -1;
  }
  enum lade_space end = end_space(c, tensor, now.last_pos);
  if (end != LADE_DEVICE) {
    if (is_grad && c->graph->params[c->graph->tensors[tensor].param].is_at_both_ends)
      now.last_pos = c->n_steps - 1; /* it is summed behind all steps */
    now.leave_slot = now.last_pos + 1;
    now.target = (uint8_t)end;
  } else if (is_grad && waits_for_update(c, tensor)) {
    now.last_pos = update_pos(c, c->graph->tensors[tensor].param);
  }
  return interval_push(c, &now);
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
    int op = c->steps[pos].op;
    bool is_elsewhere = lade_op_is_border(c->graph->ops[op].kind); /* on a queue of its own */
    c->start_ns[pos + 1] = c->start_ns[pos] + (is_elsewhere ? 0 : c->params->prices->op_ns[op]);
  }
  return 0;
}

/* The first position in [lo, n_steps] that starts at @ns or later (n_steps if none). */
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

static uint64_t value_bytes(const struct cutter *c, int value)
{
  uint64_t bytes = lade_held_bytes(c->graph, c->params->layout, value % c->graph->n_tensors);
  return plan_buffer_bytes(LADE_DEVICE, bytes);
}

static int64_t held_ns(const struct cutter *c, enum lade_space from, enum lade_space to, int value)
{
  uint64_t bytes = lade_held_bytes(c->graph, c->params->layout, value % c->graph->n_tensors);
  if (from == PLAN_GATHERED)
    return (int64_t)(HOLD_FACTOR * (double)plan_collective_ns(c->params, LADE_ALL_GATHER, LADE_AXIS_SHARD, bytes));
  return (int64_t)(HOLD_FACTOR * (double)plan_transfer_ns(c->params->prices, from, to, bytes));
}

/* ---- what is live just in time ---- */

static uint64_t resident_bytes(const struct cutter *c)
{
  uint64_t bytes = 0;
  for (int param = 0; param < c->graph->n_params; param++) {
    int weight = plan_is_gathered(c->params, param) ? lade_value_block(c->graph, param, LADE_BLOCK_WEIGHT)
                                                    : c->graph->params[param].tensor;
    if (c->params->residency->weight_homes[param] == LADE_HOME_DEVICE)
      bytes += plan_buffer_bytes(LADE_DEVICE, lade_held_bytes(c->graph, c->params->layout, weight));
    for (int part = 0; part < LADE_N_PARTS && c->params->residency->homes[param] == LADE_HOME_DEVICE; part++) {
      int tensor = lade_value_part(c->graph, param, (enum lade_part)part);
      bytes += tensor < 0 ? 0 : plan_buffer_bytes(LADE_DEVICE, lade_held_bytes(c->graph, c->params->layout, tensor));
    }
  }
  return bytes;
}

/* Does the step at @pos make an output in the memory of this value, whose interval ends there? */
static bool is_taken_over(const struct cutter *c, int value, int pos)
{
  const struct lade_op *op = &c->graph->ops[c->steps[pos].op];
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] >= 0 && op->alias[i] >= 0 && op->in[op->alias[i]] == value % c->graph->n_tensors)
      return true;
  }
  return false;
}

/* Rounded gradients that wait for their updates on the device: buffers, whose intervals end where they are rounded. */
static void rounded_count(const struct cutter *c, uint64_t *change)
{
  for (int i = 0; i < c->intervals.n && lade_graph_rounds(c->graph); i++) {
    const struct plan_interval *it = &c->intervals.items[i];
    const int tensor = it->value % c->graph->n_tensors, param = c->graph->tensors[tensor].param;
    bool is_last = i + 1 == c->intervals.n || c->intervals.items[i + 1].value != it->value;
    if (c->graph->tensors[tensor].kind != LADE_TENSOR_GRAD || !is_last || it->leave_slot >= 0 ||
        waits_for_update(c, tensor))
      continue;
    int rounded = lade_value_block(c->graph, param, LADE_BLOCK_ROUNDED);
    uint64_t bytes = plan_buffer_bytes(LADE_DEVICE, lade_held_bytes(c->graph, c->params->layout, rounded));
    change[it->last_pos + 1] += bytes;
    change[LADE_MAX(it->last_pos, update_pos(c, param)) + 1] -= bytes;
  }
}

static int live_count(struct cutter *c)
{
  c->live_bytes = calloc((size_t)c->n_steps + 2, sizeof(*c->live_bytes));
  if (!c->live_bytes)
    return -ENOMEM;
  uint64_t *change = c->live_bytes; /* wraps below zero and back: the running sum is what counts */
  change[0] += resident_bytes(c);
  for (int i = 0; i < c->intervals.n; i++) {
    const struct plan_interval *it = &c->intervals.items[i];
    bool is_taken = it->leave_slot < 0 && it->last_pos < c->n_steps && it->last_pos > it->first_pos &&
                    is_taken_over(c, it->value, it->last_pos);
    change[it->first_pos] += value_bytes(c, it->value);
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
  if (c->live_bytes[pos] + bytes > c->params->residency->prefetch_bytes)
    return false;
  c->live_bytes[pos] += bytes;
  return true;
}

/* ---- gradients that are handed on ---- */

/* The handings behind the last closed bucket. */
struct bucket {
  int first;           /* of them */
  uint64_t bytes;      /* that are moved */
  uint64_t held_bytes; /* of gradients that would be gone by now */
  int32_t until;       /* the first step that adds to one of them again */
  uint64_t most_bytes;
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

/* The interval in which the gradient of @param is at @pos. */
static struct plan_interval *grad_interval(struct cutter *c, int param, int pos)
{
  const int grad = c->graph->params[param].grad;
  int at = c->first_interval[grad + 1] - 1;
  while (at > c->first_interval[grad] && c->intervals.items[at].first_pos > pos)
    at--;
  return &c->intervals.items[at];
}

/* What the gradient takes past @pos for having to wait there. */
static uint64_t waiting_bytes(struct cutter *c, const struct plan_handing *handing)
{
  const struct plan_interval *it = grad_interval(c, handing->param, handing->pos);
  const int grad = c->graph->params[handing->param].grad;
  bool is_at_home = c->params->residency->homes[handing->param] == LADE_HOME_DEVICE;
  bool is_there = it->leave_slot < 0 && is_at_home && waits_for_update(c, grad);
  return is_there ? 0 : value_bytes(c, grad);
}

static uint64_t handed_bytes(const struct cutter *c, int param)
{
  return lade_held_bytes(c->graph, c->params->layout, c->graph->params[param].tensor);
}

/* May what is in the bucket wait until @handing, the next one, is complete too? */
static bool bucket_takes(struct cutter *c, const struct bucket *bucket, const struct plan_handing *handing, int n)
{
  const struct plan_handing *last = &c->handings.items[n - 1];
  bool is_early = c->params->residency->is_early, has_room = c->live_bytes != NULL;
  return n > bucket->first && n - bucket->first < LADE_COMM_LIST_MOST && !is_early &&
         last->microbatch == handing->microbatch && handing->slot <= bucket->until &&
         bucket->bytes + handed_bytes(c, handing->param) <= bucket->most_bytes &&
         (!bucket->held_bytes ||
          (has_room && live_take_all(c, last->slot, handing->slot, bucket->held_bytes)));
}

/* All handings of the bucket come with its last one, and copies out behind that. */
static void bucket_close(struct cutter *c, const struct bucket *bucket, int end)
{
  for (int i = bucket->first; i < end; i++) {
    struct plan_handing *handing = &c->handings.items[i];
    struct plan_interval *it = grad_interval(c, handing->param, handing->pos);
    handing->slot = c->handings.items[end - 1].slot;
    if (it->leave_slot >= 0)
      it->leave_slot = LADE_MAX(it->leave_slot, handing->slot);
  }
}

/* Handings are in order: each joins the bucket before it or begins a new one. */
static void buckets_place(struct cutter *c)
{
  const bool is_sharded = lade_shard_count(c->params->layout) > 1;
  struct bucket bucket = {.until = INT32_MAX};
  bucket.most_bytes = plan_bucket_bytes(c->params, is_sharded ? LADE_AXIS_SHARD : LADE_AXIS_DP);
  for (int i = 0; i < c->handings.n; i++) {
    const struct plan_handing *handing = &c->handings.items[i];
    if (i > 0 && !bucket_takes(c, &bucket, handing, i)) {
      bucket_close(c, &bucket, i);
      bucket = (struct bucket){.first = i, .until = INT32_MAX, .most_bytes = bucket.most_bytes};
    }
    bucket.until = LADE_MIN(bucket.until, handing->until);
    bucket.bytes += handed_bytes(c, handing->param);
    bucket.held_bytes += waiting_bytes(c, handing);
  }
  if (c->handings.n)
    bucket_close(c, &bucket, c->handings.n);
}

/*
 * Blocks that wait elsewhere come back while what is to be added to them is on its way from other ranks, as far as
 * there is room, the last first. That is time enough: a block is a rank's part of what is summed.
 */
static void blocks_place(struct cutter *c)
{
  int32_t ends[PLAN_LAG]; /* slots of the batches behind the one at hand, the next one first */
  for (int i = 0; i < PLAN_LAG; i++)
    ends[i] = c->n_steps;
  for (int i = c->handings.n - 1; i >= 0; i--) {
    struct plan_handing *handing = &c->handings.items[i];
    if (i + 1 < c->handings.n && handing[1].slot != handing->slot) {
      memmove(ends + 1, ends, sizeof(ends) - sizeof(ends[0]));
      ends[0] = handing[1].slot;
    }
    const int block = lade_value_block(c->graph, handing->param, LADE_BLOCK_GRAD);
    const uint64_t bytes = plan_buffer_bytes(LADE_DEVICE, lade_held_bytes(c->graph, c->params->layout, block));
    if (handing->source != LADE_DEVICE)
      handing->is_ahead = live_take_all(c, handing->slot, ends[PLAN_LAG - 1], bytes);
  }
}

/* The step at @pos adds to the gradient of @param, as the @n_added-th of @n_adds that each microbatch does. */
static int addition_note(struct cutter *c, int param, int pos, int n_added, int n_adds, int32_t *latest)
{
  const int16_t microbatch = c->steps[pos].microbatch;
  const bool is_each = plan_sums_each(c->params);
  const int n_awaited = is_each ? n_adds : n_adds * c->params->n_microbatches;
  struct plan_handing *before = latest[param] >= 0 ? &c->handings.items[latest[param]] : NULL;
  if (before && before->until == INT32_MAX) {
    before->until = pos;
    before->target = (uint8_t)gap_space(c, c->graph->params[param].grad, before->pos, pos, false);
  }
  if (n_added % n_awaited != 0)
    return 0;
  const uint8_t source = before ? before->target : LADE_DEVICE;
  const struct plan_handing handing = {pos + 1, pos, param, INT32_MAX, microbatch, source, LADE_DEVICE, false};
  latest[param] = c->handings.n;
  return LADE_PUSH(&c->handings, handing) ? 0 : -ENOMEM;
}

/* Every completion of a gradient, in list order, each to be handed on at once. */
static int handings_collect(struct cutter *c)
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
  const struct plan_interval *a = *(struct plan_interval *const *)x, *b = *(struct plan_interval *const *)y;
  return a->last_pos != b->last_pos ? (a->last_pos > b->last_pos) - (a->last_pos < b->last_pos)
                                    : (a->value > b->value) - (a->value < b->value);
}

static int fetch_compare(const void *x, const void *y)
{
  const struct plan_interval *a = *(struct plan_interval *const *)x, *b = *(struct plan_interval *const *)y;
  return a->first_pos != b->first_pos ? (a->first_pos < b->first_pos) - (a->first_pos > b->first_pos)
                                      : (a->value < b->value) - (a->value > b->value);
}

/* The step before which the value is copied in again; n_steps if it is not. */
static int next_fetch(const struct cutter *c, const struct plan_interval *it)
{
  const struct plan_interval *next = it + 1;
  bool is_same = next < c->intervals.items + c->intervals.n && next->value == it->value && next->fetch_slot >= 0;
  return is_same ? next->first_pos : c->n_steps;
}

/* The first slot at which the value can be copied in: not before it has left. */
static int first_slot(const struct cutter *c, const struct plan_interval *it)
{
  const struct plan_interval *before = it - 1;
  if (it == c->intervals.items || before->value != it->value)
    return 0;
  return LADE_MAX(before->last_pos + 1, before->leave_slot);
}

/* Hold memory behind each copy out until its link will have moved it. */
static void leaves_place(struct cutter *c, struct plan_interval **order, int n)
{
  int64_t free_ns[LADE_N_QUEUES] = {0};
  qsort(order, (size_t)n, sizeof(*order), leave_compare);
  for (int i = 0; i < n; i++) {
    struct plan_interval *it = order[i];
    int link = link_of(LADE_DEVICE, it->target);
    int64_t ready = c->start_ns[it->last_pos + 1];
    free_ns[link] = LADE_MAX(free_ns[link], ready) + held_ns(c, LADE_DEVICE, it->target, it->value);
    int wanted = pos_at(c, it->last_pos + 1, free_ns[link]);
    int next = next_fetch(c, it); /* it is needed again: no use in holding it longer */
    while (it->leave_slot < LADE_MIN(wanted, next) && live_take(c, it->leave_slot, value_bytes(c, it->value)))
      it->leave_slot++;
  }
}

static int unit_of(const struct cutter *c, const struct plan_interval *it)
{
  return c->graph->tensors[it->value % c->graph->n_tensors].unit;
}

/* Are both gathered for one unit in one half of a microbatch? */
static bool is_one_gather(const struct cutter *c, const struct plan_interval *a, const struct plan_interval *b)
{
  return a->source == PLAN_GATHERED && b->source == PLAN_GATHERED && unit_of(c, a) == unit_of(c, b) &&
         phase_of(c, a->first_pos) == phase_of(c, b->first_pos);
}

/* Hold memory for a copy in from slot @wanted on, or as early as there is room. */
static void fetch_move(struct cutter *c, struct plan_interval *it, int wanted)
{
  wanted = LADE_MAX(wanted, first_slot(c, it));
  while (it->fetch_slot > wanted && live_take(c, it->fetch_slot - 1, value_bytes(c, it->value)))
    it->fetch_slot--;
}

/* Take the copy in at @first out of @order, and what is gathered with it: into @together, the first needed last. */
static int fetches_take(const struct cutter *c, struct plan_interval **order, int first, int n,
                        struct plan_interval *together[LADE_COMM_LIST_MOST])
{
  const struct plan_interval *it = order[first];
  int n_together = 0;
  for (int i = first; i < n && n_together < LADE_COMM_LIST_MOST; i++) {
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
 * Start each copy in early enough to be done in time, the last first. What is gathered for one unit comes with the
 * first of it that is needed.
 */
static void fetches_place(struct cutter *c, struct plan_interval **order, int n)
{
  struct plan_interval *together[LADE_COMM_LIST_MOST];
  int64_t next_ns[LADE_N_QUEUES];
  for (int i = 0; i < LADE_N_QUEUES; i++)
    next_ns[i] = c->start_ns[c->n_steps];
  qsort(order, (size_t)n, sizeof(*order), fetch_compare);
  for (int i = 0; i < n; i++) {
    if (!order[i])
      continue; /* moved with its unit */
    const int link = link_of(order[i]->source, LADE_DEVICE);
    const int n_together = fetches_take(c, order, i, n, together);
    next_ns[link] = LADE_MIN(next_ns[link], c->start_ns[together[n_together - 1]->first_pos]);
    for (int j = 0; j < n_together; j++)
      next_ns[link] -= held_ns(c, together[j]->source, LADE_DEVICE, together[j]->value);
    int wanted = next_ns[link] <= 0 ? 0 : pos_at(c, 0, next_ns[link] + 1) - 1;
    for (int j = n_together - 1; j >= 0; j--) /* those that are needed first have room first */
      fetch_move(c, together[j], wanted);
  }
}

static int slots_place(struct cutter *c)
{
  struct plan_interval **order = calloc((size_t)c->intervals.n + 1, sizeof(*order));
  if (!order || timeline_make(c) || live_count(c)) {
    free(order);
    return -ENOMEM;
  }
  int n = 0;
  for (int i = 0; i < c->intervals.n; i++) {
    if (c->intervals.items[i].leave_slot >= 0)
      order[n++] = &c->intervals.items[i];
  }
  buckets_place(c);
  blocks_place(c);
  leaves_place(c, order, n);
  n = 0;
  for (int i = 0; i < c->intervals.n; i++) {
    if (c->intervals.items[i].fetch_slot >= 0)
      order[n++] = &c->intervals.items[i];
  }
  fetches_place(c, order, n);
  free(order);
  return 0;
}

static int values_cut(struct cutter *c)
{
  c->first_interval = calloc((size_t)c->n_values + 1, sizeof(*c->first_interval));
  if (!c->first_interval)
    return -ENOMEM;
  for (int value = 0; value < c->n_values; value++) {
    c->first_interval[value] = c->intervals.n;
    if (!value_cut(c, value))
      return -ENOMEM;
  }
  c->first_interval[c->n_values] = c->intervals.n;
  return 0;
}

int plan_lives_create(const struct lade_build_params *params, const struct plan_step *steps, int n_steps,
                      const int32_t *update_ends, struct plan_lives *ret_lives)
{
  struct cutter c = {
      .params = params, .graph = params->graph, .steps = steps, .n_steps = n_steps, .update_ends = update_ends};
  LADE_ASSERT(params->graph->n_tensors <= INT32_MAX / params->n_microbatches);
  c.n_values = params->graph->n_tensors * params->n_microbatches;
  int status = uses_collect(&c);
  if (!status)
    status = values_cut(&c);
  if (!status)
    status = handings_collect(&c);
  if (!status && params->residency->prefetch_bytes > 0)
    status = slots_place(&c);
  else if (!status)
    buckets_place(&c);
  free(c.first_use);
  free(c.uses);
  free(c.start_ns);
  free(c.live_bytes);
  if (status) {
    free(c.first_interval);
    LADE_ARRAY_FREE(&c.intervals);
    LADE_ARRAY_FREE(&c.handings);
    return status;
  }
  *ret_lives = (struct plan_lives){c.intervals.items,  c.first_interval, c.intervals.n, c.n_values,
                                   c.handings.items, c.handings.n};
  return 0;
}

void plan_lives_finish(struct plan_lives *lives)
{
  free(lives->intervals);
  free(lives->first_interval);
  free(lives->handings);
  *lives = (struct plan_lives){0};
}
