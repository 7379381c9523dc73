/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make a trajectory: from keeping everything to the smallest memory.
 *
 * Each round analyses the program just in time (peak_analysis.c), at the instruction at which the most device memory is
 * live. It looks at the values that are live there but not used there. Such a value can leave the peak in up to three
 * ways: recompute, host, store. Parameters and optimizer state that are resident can move to another tier. Of all these
 * changes the round makes the one with the least estimated time per byte freed. It makes the change for a few members
 * of the value's group at once: for more of them if each is tiny. Changes only move away from "keep", so the trajectory
 * ends: where all live values at the peak are operands of the instruction that runs then, or where no tier has room.
 *
 * Spills (values that leave in every gap) are made for a whole group at once, because the short gaps of all layers have
 * equal peaks. Layers whose values wait in different ways have different peaks: with DESCENT_LEVEL a spill takes only
 * the layers that are alike.
 *
 * A change frees its bytes at one instant, and may raise the peak at another. Where a value is recomputed from the
 * layer before it, the whole chain is live at once, and the next rounds spill all of it. With DESCENT_LEVEL such a
 * change is undone, and waits until no other is left. With DESCENT_REPLACE a value that is recomputed too early, and
 * waits at the peak, may move to a tier instead. Both make trajectories of their own, because neither is always better.
 *
 * Rejected: integer programming over all choices, as Checkmate does (Jain et al. 2020), because it needs a solver of
 * its own and minutes for a hundred layers. Rejected: dynamic programming over units, because it cannot see transients.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "recompute/search/descent.h"
#include "recompute/search/peak_analysis.h"

/* A group of many units moves in about this many rounds; in fewer if a round takes long. */
#define GROUP_ROUNDS 12
#define GROUP_ROUNDS_LARGE 2 /* the same for large programs */
#define NOTICED_PART 16384   /* a round frees at least one such part of the peak, if the group has as much */
#define LARGE_OPS 1500       /* ops of a microbatch above which a program is large: each round emits it once */
#define LARGE_STEP_OPS 4000  /* the same, of all microbatches of a step */

#define REPEAT_MAX 12 /* limit of recompute time, as a multiple of the compute of a step that keeps everything */
#define TIER_SLACK 16    /* a 16th of a tier is left to fragmentation */
#define REFUSALS_MAX 32  /* changes undone for lack of room, after which no more is moved to that tier */
#define PASSAGE_VALUES 8 /* widest values in transit through the host at once */

/* Choices before a change: tiers of a parameter and its state, or the policy of a gap. */
struct undo {
  uint8_t weight_tier, state_tier, policy;
};

struct model_descent {
  const struct lade_plan_params *params;
  const struct lade_model_graph *graph;
  const bool *is_pinned; /* by lade_change_index */
  lade_pricer *pricer;
  int allowed;
  uint64_t end_bytes; /* as in descent_params */
  int group_rounds; /* in which a group of many units moves */
  struct lade_residency *residency;
  struct peak_analysis *analysis;
  const struct peak *peak; /* of the current residency */
  int32_t peak_number;
  struct idle_value *idle; /* by value's number: its idle bytes at the peak, if any */
  const struct idle_value *spread; /* borrowed: entries of the last peak that are in idle */
  int n_spread;
  int32_t *peak_members; /* scratch: members of a group that are live at the peak */
  uint64_t *unit_keys;      /* by unit: equal for units whose values wait alike */
  int32_t *representatives; /* by a group's first tensor: the member live at the peak that represents the group; -1 */
  double max_ns; /* limit of compute time: bounds recompute */
  uint8_t *barred;         /* by lade_change_index: changes that were undone (bar_bit) */
  uint8_t *raising;        /* the same: undone because the peak rose */
  bool may_raise;          /* no other change is left, so that these are allowed */
  struct undo *undo;       /* choices of the last change's members before it */
  int n_refusals[LADE_N_SPACES];
  struct trajectory *trajectory;
};

struct best {
  struct lade_change change;
  double score;
  bool is_found;
};

bool descent_is_large(const struct lade_plan_params *params)
{
  const int64_t n_ops = params->graph->n_ops;
  return n_ops > LARGE_OPS || n_ops * params->n_microbatches > LARGE_STEP_OPS;
}

/* ---- changes ---- */

/* Return the host memory for values in transit between a device and a drive that do not reach each other. */
static uint64_t passage_bytes(const struct model_descent *d)
{
  uint64_t widest = 0;
  if (d->params->is_unified || !d->params->store_bytes)
    return 0;
  for (int i = 0; i < d->graph->n_tensors; i++)
    widest = LADE_MAX(widest, d->graph->tensors[i].bytes);
  return PASSAGE_VALUES * widest;
}

/* Return the bytes of a tier that are left for values, less a part for fragmentation. */
static uint64_t tier_room(const struct model_descent *d, enum lade_space space)
{
  uint64_t budget = space == LADE_HOST ? d->params->host_bytes : d->params->store_bytes;
  uint64_t used = d->peak->live_bytes[space] + budget / TIER_SLACK;
  if (space == LADE_HOST)
    used += passage_bytes(d);
  return budget > used ? budget - used : 0;
}

/*
 * Return the bytes that leave the device: a parameter's optimizer state, or its working copy and the state that moves
 * with it.
 */
static uint64_t state_tier_bytes(const struct model_descent *d, enum lade_change_kind kind, int param)
{
  uint64_t bytes = 0;
  if (kind == LADE_CHANGE_WEIGHT)
    bytes = lade_held_bytes(d->graph, d->params->layout, lade_value_block(d->graph, param, LADE_BLOCK_WEIGHT));
  if (kind == LADE_CHANGE_WEIGHT && d->residency->state_tiers[param] != LADE_TIER_DEVICE)
    return bytes;
  for (int part = 0; part < LADE_N_PARTS; part++) {
    int tensor = lade_value_part(d->graph, param, (enum lade_part)part);
    bytes += tensor < 0 ? 0 : lade_held_bytes(d->graph, d->params->layout, tensor);
  }
  return bytes;
}

/*
 * Return the bytes of a gradient that leave for an update off the device: this rank's block, in the type that the
 * update takes.
 */
static uint64_t grad_bytes(const struct model_descent *d, int param)
{
  return lade_held_bytes(d->graph, d->params->layout, lade_value_block(d->graph, param, LADE_BLOCK_ROUNDED));
}

/* Return the tier that @change moves values to; the device for recompute. */
static enum lade_space change_space(const struct lade_change *change)
{
  if (lade_change_is_tier(change))
    return plan_tier_space((enum lade_tier)change->to);
  if (change->to == LADE_RESIDENCY_RECOMPUTE)
    return LADE_DEVICE;
  return change->to == LADE_RESIDENCY_HOST ? LADE_HOST : LADE_STORE;
}

/*
 * Return the bit of a change's target in its `barred` entry. Changes of tiers have entries of their own, so they may
 * share bits with policies.
 */
static uint8_t bar_bit(const struct lade_change *change)
{
  enum lade_space space = change_space(change);
  return (uint8_t)(1u << (space == LADE_DEVICE ? 6 : 2 * change->kind + (space == LADE_STORE)));
}

/* True if the state of @param is on the device and may leave it. */
static bool is_state_free(const struct model_descent *d, int param)
{
  const struct lade_change state = {LADE_CHANGE_STATE, 0, param};
  return d->residency->state_tiers[param] == LADE_TIER_DEVICE && !d->is_pinned[lade_change_index(d->graph, &state)];
}

static bool is_weight_free(const struct model_descent *d, int param)
{
  const struct lade_change weight = {LADE_CHANGE_WEIGHT, 0, param};
  return d->residency->weight_tiers[param] == LADE_TIER_DEVICE && !d->is_pinned[lade_change_index(d->graph, &weight)];
}

/* True if the units of two tensors have equal choices of saved values, so that their backward halves peak alike. */
static bool is_unit_like(const struct model_descent *d, int32_t id, int32_t other)
{
  const struct lade_tensor *tensors = d->graph->tensors;
  return d->unit_keys[LADE_MAX(tensors[id].unit, 0)] == d->unit_keys[LADE_MAX(tensors[other].unit, 0)];
}

/* True if @change moves a value to a tier in place of recomputing it. */
static bool replaces_recompute(const struct model_descent *d, const struct lade_change *change)
{
  return change->kind == LADE_CHANGE_SAVED && change->to != LADE_RESIDENCY_RECOMPUTE &&
         d->residency->choices[change->id].saved == LADE_RESIDENCY_RECOMPUTE;
}

/* True if @change is made for all members of its group that it may be made for: the short gaps of units peak alike. */
static bool takes_all(const struct model_descent *d, const struct lade_change *change)
{
  return change->kind == LADE_CHANGE_SPILL || replaces_recompute(d, change);
}

/* True if @change, of a group, may be made to its member @id. */
static bool is_live_member(const struct model_descent *d, const struct lade_change *change, int32_t id)
{
  const struct lade_change own = {change->kind, change->to, id};
  const int index = lade_change_index(d->graph, &own);
  const uint8_t barred = (uint8_t)(d->barred[index] | (d->may_raise ? 0 : d->raising[index]));
  if (d->is_pinned[index] || (barred & bar_bit(change)))
    return false;
  if (change->kind == LADE_CHANGE_STATE)
    return is_state_free(d, id) && ((d->allowed & DESCENT_APART) || !is_weight_free(d, id));
  if (change->kind == LADE_CHANGE_WEIGHT)
    return is_weight_free(d, id) && (d->residency->state_tiers[id] >= change->to || is_state_free(d, id));
  if (change->kind == LADE_CHANGE_SPILL)
    return d->residency->choices[id].spill == LADE_RESIDENCY_KEEP &&
           (!(d->allowed & DESCENT_LEVEL) || is_unit_like(d, id, change->id));
  if (replaces_recompute(d, change))
    return d->residency->choices[id].saved == LADE_RESIDENCY_RECOMPUTE && is_unit_like(d, id, change->id);
  return d->residency->choices[id].saved == LADE_RESIDENCY_KEEP && d->idle[id].bytes && d->idle[id].is_in_saved_gap;
}

/*
 * Return the most members of a group of @n that a round moves by @change: a few, or as many as together are a
 * noticeable part of the peak. Else all biases and norms of a deep model would take a third of the rounds.
 */
static int round_members(const struct model_descent *d, const struct lade_change *change, int n)
{
  const uint64_t bytes = lade_change_is_tier(change)
                             ? state_tier_bytes(d, (enum lade_change_kind)change->kind, change->id)
                             : d->idle[change->id].bytes;
  const uint64_t n_noticed = d->peak->live_bytes[LADE_DEVICE] / NOTICED_PART / LADE_MAX(bytes, 1) + 1;
  return (int)LADE_MIN(LADE_MAX((uint64_t)LADE_MAX(n / d->group_rounds, 1), n_noticed), (uint64_t)n);
}

/*
 * Pick the members of the change's group that a round moves: a few, or all where units peak alike (takes_all). Of saved
 * values these are the earliest units', which wait longest. Of parameters they are the latest: their gradients are
 * complete first in the backward half and their weights are needed last in the forward half.
 */
static int members_pick(struct model_descent *d, const struct lade_change *change)
{
  int n = 0, n_picked = 0;
  const int32_t *group = lade_change_group(d->pricer, (enum lade_change_kind)change->kind, change->id, &n);
  const int max = takes_all(d, change) ? n : round_members(d, change, n);
  for (int i = 0; i < n && n_picked < max; i++) {
    int32_t id = group[lade_change_is_tier(change) ? n - 1 - i : i];
    if (is_live_member(d, change, id))
      d->peak_members[n_picked++] = id;
  }
  return n_picked;
}

/* True if only this rank's block of a gradient waits. */
static bool is_grad_cut(const struct model_descent *d)
{
  return lade_shard_count(d->params->layout) > 1 && d->params->layout->zero >= 2;
}

/*
 * Return the bytes that @change of @id puts into its tier: 0 for a parameter that is dropped, because its tier holds
 * it.
 */
static uint64_t moved_bytes(const struct model_descent *d, const struct lade_change *change, int32_t id)
{
  if (lade_change_is_tier(change)) {
    bool has_grad = d->residency->state_tiers[id] == LADE_TIER_DEVICE && change->to == LADE_TIER_HOST;
    return state_tier_bytes(d, (enum lade_change_kind)change->kind, id) +
           (has_grad ? grad_bytes(d, id) : 0);
  }
  const struct lade_tensor *value = &d->graph->tensors[id];
  if (value->kind == LADE_TENSOR_GRAD && is_grad_cut(d))
    return lade_held_bytes(d->graph, d->params->layout, lade_value_block(d->graph, value->param, LADE_BLOCK_GRAD));
  return value->kind != LADE_TENSOR_PARAM ? value->bytes : 0;
}

/* True for a sharded working copy in the device tier: it may be dropped, and is gathered again for its next use. */
static bool is_gathered_again(const struct model_descent *d, int tensor)
{
  const struct lade_tensor *value = &d->graph->tensors[tensor];
  return value->kind == LADE_TENSOR_PARAM && lade_shard_count(d->params->layout) > 1 &&
         d->params->layout->zero == LADE_ZERO_MAX && d->residency->weight_tiers[value->param] == LADE_TIER_DEVICE;
}

/* True if the tier has room for the members. */
static bool tier_holds(struct model_descent *d, const struct lade_change *change, int n_members)
{
  enum lade_space space = change_space(change);
  uint64_t bytes = 0;
  if (space == LADE_DEVICE || (!lade_change_is_tier(change) && is_gathered_again(d, change->id)))
    return true;
  if (d->n_refusals[space] >= REFUSALS_MAX)
    return false;
  for (int i = 0; i < n_members; i++)
    bytes += moved_bytes(d, change, d->peak_members[i]);
  /* Short gaps of different units do not overlap: the widest member counts. */
  if (change->kind == LADE_CHANGE_SPILL)
    bytes /= (uint64_t)LADE_MAX(n_members, 1);
  return bytes <= tier_room(d, space);
}

/* Compare @change, which takes @freed_bytes out of the peak, with the best so far. */
static void change_consider(struct model_descent *d, struct lade_change change, uint64_t freed_bytes,
                            const struct lade_queue_times *base, struct best *best)
{
  int n_members = members_pick(d, &change);
  if (n_members == 0 || !tier_holds(d, &change, n_members))
    return;
  change.id = d->peak_members[0];
  const int n_priced = takes_all(d, &change) ? n_members : 1; /* only one of them is at the peak */
  const struct lade_queue_times added = lade_change_price(d->pricer, d->residency, &change);
  const struct lade_queue_times sum = lade_queue_times_sum(base, &added, n_priced);
  if (change.to == LADE_RESIDENCY_RECOMPUTE && !lade_change_is_tier(&change) && sum.compute_ns > d->max_ns)
    return;
  const double added_ns = lade_queue_times_ns(d->pricer, &sum) - lade_queue_times_ns(d->pricer, base);
  const double score = added_ns / (double)LADE_MAX(freed_bytes, 1);
  if (!best->is_found || score < best->score)
    *best = (struct best){change, score, true};
}

static void tiers_consider(struct model_descent *d, struct lade_change change, uint64_t bytes,
                           const struct lade_queue_times *base, struct best *best)
{
  bool is_tier = lade_change_is_tier(&change), is_drop = !is_tier && is_gathered_again(d, change.id);
  if (d->params->host_bytes || is_drop) {
    change.to = is_tier ? LADE_TIER_HOST : LADE_RESIDENCY_HOST;
    change_consider(d, change, bytes, base, best);
  }
  if (d->params->store_bytes && !is_drop) {
    change.to = is_tier ? LADE_TIER_STORE : LADE_RESIDENCY_STORE;
    change_consider(d, change, bytes, base, best);
  }
}

/* Consider an activation, or a gradient whose parameter has left: its saved gap first, then its other gaps. */
static void value_consider(struct model_descent *d, int tensor, const struct lade_queue_times *base, struct best *best)
{
  const struct lade_tensor *value = &d->graph->tensors[tensor];
  const struct lade_choice choice = d->residency->choices[tensor];
  const uint64_t bytes = d->idle[tensor].bytes;
  bool is_forward = value->kind == LADE_TENSOR_ACTIVATION && !d->graph->ops[value->producer].is_backward;
  if (value->is_optional) { /* its reader makes it again faster than a tier returns it */
    if (choice.saved == LADE_RESIDENCY_KEEP)
      change_consider(d, (struct lade_change){LADE_CHANGE_SAVED, LADE_RESIDENCY_RECOMPUTE, tensor}, bytes, base, best);
    return;
  }
  if (d->idle[tensor].is_in_saved_gap && choice.saved == LADE_RESIDENCY_KEEP) {
    if (lade_tensor_is_repeatable(d->graph, tensor) && (d->allowed & DESCENT_RECOMPUTE))
      change_consider(d, (struct lade_change){LADE_CHANGE_SAVED, LADE_RESIDENCY_RECOMPUTE, tensor}, bytes, base, best);
    if (!is_forward || (d->allowed & DESCENT_OFFLOAD))
      tiers_consider(d, (struct lade_change){LADE_CHANGE_SAVED, 0, tensor}, bytes, base, best);
    return;
  }
  if (choice.spill != LADE_RESIDENCY_KEEP)
    return;
  if (choice.saved == LADE_RESIDENCY_RECOMPUTE && is_forward && (d->allowed & DESCENT_REPLACE))
    tiers_consider(d, (struct lade_change){LADE_CHANGE_SAVED, 0, tensor}, bytes, base, best);
  if (is_forward && choice.saved == LADE_RESIDENCY_RECOMPUTE && (d->allowed & DESCENT_REPEAT))
    change_consider(d, (struct lade_change){LADE_CHANGE_SPILL, LADE_RESIDENCY_RECOMPUTE, tensor}, bytes, base, best);
  tiers_consider(d, (struct lade_change){LADE_CHANGE_SPILL, 0, tensor}, bytes, base, best);
}

/*
 * Consider another tier for @param's state, or for its working copy, if that is on the device. The @idle_bytes of its
 * gradient at the peak leave with the state.
 */
static void state_tier_consider(struct model_descent *d, enum lade_change_kind kind, int param, uint64_t idle_bytes,
                                const struct lade_queue_times *base, struct best *best)
{
  const uint8_t *state_tiers = kind == LADE_CHANGE_STATE ? d->residency->state_tiers : d->residency->weight_tiers;
  uint64_t left_bytes = d->residency->state_tiers[param] == LADE_TIER_DEVICE ? idle_bytes : 0;
  if (state_tiers[param] == LADE_TIER_DEVICE)
    tiers_consider(d, (struct lade_change){(uint8_t)kind, 0, param}, state_tier_bytes(d, kind, param) + left_bytes,
                   base, best);
}

/*
 * Consider other tiers for the group of @param; a member that may leave represents all. Groups are considered even if
 * none of their tensors is live at the peak. Where a parameter is sharded, its block is resident and its gathered copy
 * is not; state has numbers of its own.
 */
static void state_tiers_consider(struct model_descent *d, int param, const struct lade_queue_times *base,
                                 struct best *best)
{
  int n = 0, state = -1, weight = -1;
  const int32_t *group = lade_change_group(d->pricer, LADE_CHANGE_WEIGHT, param, &n);
  for (int i = n - 1; i >= 0; i--) {
    state = is_state_free(d, group[i]) ? group[i] : state;
    weight = is_weight_free(d, group[i]) ? group[i] : weight;
  }
  if (state >= 0)
    state_tier_consider(d, LADE_CHANGE_STATE, state, 0, base, best);
  if (weight >= 0)
    state_tier_consider(d, LADE_CHANGE_WEIGHT, weight, 0, base, best);
}

/*
 * Consider a value that is live and idle at the peak: a whole gradient leaves when its parameter's state changes tier,
 * any value in its gaps.
 */
static void tensor_consider(struct model_descent *d, int tensor, const struct lade_queue_times *base, struct best *best)
{
  const struct lade_tensor *value = &d->graph->tensors[tensor];
  if (value->kind == LADE_TENSOR_GRAD && !is_grad_cut(d)) {
    state_tier_consider(d, LADE_CHANGE_STATE, value->param, d->idle[tensor].bytes, base, best);
    state_tier_consider(d, LADE_CHANGE_WEIGHT, value->param, d->idle[tensor].bytes, base, best);
  }
  if (value->kind == LADE_TENSOR_PARAM && d->residency->weight_tiers[value->param] == LADE_TIER_DEVICE &&
      !is_gathered_again(d, tensor))
    return; /* resident: it has no gaps */
  value_consider(d, tensor, base, best);
}

/* Return the first of @group that is live at the peak and free to change, else the first that is live; -1: none. */
static int32_t representative_find(const struct model_descent *d, const int32_t *group, int n)
{
  int32_t first = -1;
  for (int i = 0; i < n; i++) {
    if (!d->idle[group[i]].bytes)
      continue;
    if (!d->is_pinned[group[i]])
      return group[i];
    first = first < 0 ? group[i] : first;
  }
  return first;
}

/* Find the member of each group that represents it. */
static void representatives_find(struct model_descent *d)
{
  for (int tensor = 0; tensor < d->graph->n_tensors; tensor++) {
    int n = 0;
    const int32_t *group = lade_change_group(d->pricer, LADE_CHANGE_SAVED, tensor, &n);
    if (group[0] == tensor)
      d->representatives[tensor] = representative_find(d, group, n);
  }
}

static void best_find(struct model_descent *d, struct best *best)
{
  const struct lade_model_graph *graph = d->graph;
  const struct lade_queue_times base = d->peak->queue_times;
  representatives_find(d);
  for (int tensor = 0; tensor < graph->n_tensors; tensor++) {
    int n = 0;
    const int first = lade_change_group(d->pricer, LADE_CHANGE_SAVED, tensor, &n)[0];
    if (first == tensor && graph->tensors[tensor].kind == LADE_TENSOR_PARAM)
      state_tiers_consider(d, graph->tensors[tensor].param, &base, best);
    if (d->representatives[first] == tensor)
      tensor_consider(d, tensor, &base, best);
  }
}

static struct undo undo_get(const struct model_descent *d, const struct lade_change *change)
{
  if (lade_change_is_tier(change))
    return (struct undo){d->residency->weight_tiers[change->id], d->residency->state_tiers[change->id], 0};
  struct lade_choice choice = d->residency->choices[change->id];
  return (struct undo){.policy = change->kind == LADE_CHANGE_SPILL ? choice.spill : choice.saved};
}

static void undo_apply(struct model_descent *d, struct lade_change change, struct undo undo)
{
  if (lade_change_is_tier(&change)) {
    lade_residency_set_tiers(d->residency, change.id, (enum lade_tier)undo.weight_tier,
                             (enum lade_tier)undo.state_tier);
    return;
  }
  change.to = undo.policy;
  lade_change_apply(&change, d->residency);
}

static int change_make(struct model_descent *d, struct lade_change change)
{
  int n = members_pick(d, &change);
  LADE_ASSERT(n > 0); /* it was considered with the same members, and a round without a change would repeat for ever */
  for (int i = 0; i < n; i++) {
    change.id = d->peak_members[i];
    d->undo[i] = undo_get(d, &change);
    lade_change_apply(&change, d->residency);
    if (!LADE_PUSH(&d->trajectory->changes, change))
      return -ENOMEM;
  }
  return 0;
}

/* ---- rounds ---- */

/*
 * True if the last change overfilled a tier. The room checked before it is an estimate, because lifetimes in the tier
 * are known only once the program is emitted.
 */
static bool is_overfull(struct model_descent *d)
{
  const uint64_t budgets[LADE_N_SPACES] = {UINT64_MAX, d->params->host_bytes, d->params->store_bytes};
  int n_states = d->trajectory->states.n;
  bool is_over = false;
  for (int space = LADE_HOST; space <= LADE_STORE && n_states; space++) {
    uint64_t live_bytes = d->peak->live_bytes[space];
    bool has_grown = live_bytes > d->trajectory->states.items[n_states - 1].live_bytes[space];
    if (!has_grown || live_bytes <= budgets[space] - budgets[space] / TIER_SLACK)
      continue;
    d->n_refusals[space]++;
    is_over = true;
  }
  return is_over;
}

/* True if the last change raised the peak, and must not. */
static bool has_raised(const struct model_descent *d)
{
  const int n_states = d->trajectory->states.n;
  return !d->may_raise && n_states &&
         d->peak->live_bytes[LADE_DEVICE] > d->trajectory->states.items[n_states - 1].live_bytes[LADE_DEVICE];
}

/* Undo the last change, and bar it in @bars. */
static void change_undo(struct model_descent *d, uint8_t *bars)
{
  int first = d->trajectory->states.items[d->trajectory->states.n - 1].n_changes;
  for (int i = first; i < d->trajectory->changes.n; i++) {
    struct lade_change change = d->trajectory->changes.items[i];
    bars[lade_change_index(d->graph, &change)] |= bar_bit(&change);
    undo_apply(d, change, d->undo[i - first]);
  }
  d->trajectory->changes.n = first;
}

static int state_push(struct model_descent *d)
{
  struct descent_state state = {.n_changes = d->trajectory->changes.n, .peak = d->peak_number,
                                .bound_ns = d->peak->bound_ns};
  memcpy(state.key, d->peak->key, sizeof(state.key));
  memcpy(state.live_bytes, d->peak->live_bytes, sizeof(state.live_bytes));
  return LADE_PUSH(&d->trajectory->states, state) ? 0 : -ENOMEM;
}

/* Analyse the peak of the current residency. */
static int peak_renew(struct model_descent *d)
{
  return peak_analysis_get(d->analysis, d->residency, &d->peak, &d->peak_number);
}

/* Let the idle bytes be those of the current peak. The analysis keeps the entries of each peak in place. */
static void idle_spread(struct model_descent *d)
{
  for (int i = 0; i < d->n_spread; i++)
    d->idle[d->spread[i].tensor] = (struct idle_value){.bytes = 0};
  d->spread = d->peak->idle;
  d->n_spread = d->peak->n_idle;
  for (int i = 0; i < d->n_spread; i++)
    d->idle[d->spread[i].tensor] = d->spread[i];
}

/* Fill the keys of units from the choices of their saved values. */
static void unit_keys_fill(struct model_descent *d)
{
  memset(d->unit_keys, 0, (size_t)d->graph->n_units * sizeof(*d->unit_keys));
  for (int tensor = 0; tensor < d->graph->n_tensors; tensor++) {
    uint64_t *key = &d->unit_keys[LADE_MAX(d->graph->tensors[tensor].unit, 0)];
    *key = (*key + d->residency->choices[tensor].saved + 1) * UINT64_C(0x9E3779B97F4A7C15);
  }
}

static int round_run(struct model_descent *d, bool *ret_is_over)
{
  struct best best = {0};
  int status = peak_renew(d);
  if (status)
    return status;
  if (is_overfull(d)) {
    change_undo(d, d->barred);
    status = peak_renew(d);
  } else if (has_raised(d)) {
    change_undo(d, d->raising);
    status = peak_renew(d);
  } else {
    status = state_push(d);
  }
  if (status)
    return status;
  if (d->peak->live_bytes[LADE_DEVICE] <= d->end_bytes) {
    *ret_is_over = true;
    return 0;
  }
  if (d->max_ns == 0)
    d->max_ns = REPEAT_MAX * d->peak->queue_times.compute_ns;
  lade_pricer_rebase(d->pricer, d->residency);
  idle_spread(d);
  unit_keys_fill(d);
  best_find(d, &best);
  if (!best.is_found && !d->may_raise) {
    d->may_raise = true;
    best_find(d, &best);
  }
  *ret_is_over = !best.is_found;
  return best.is_found ? change_make(d, best.change) : 0;
}

int descent_make(const struct descent_params *params, struct trajectory *ret_trajectory)
{
  struct trajectory trajectory = {0};
  struct model_descent d = {.params = params->plan, .graph = params->plan->graph, .is_pinned = params->is_pinned,
                     .pricer = params->pricer, .analysis = params->analysis, .allowed = params->allowed,
                     .end_bytes = params->end_bytes,
                     .may_raise = !(params->allowed & DESCENT_LEVEL), .trajectory = &trajectory};
  d.group_rounds = params->is_coarse ? 1 : descent_is_large(d.params) ? GROUP_ROUNDS_LARGE : GROUP_ROUNDS;
  size_t n_values = (size_t)lade_value_count(d.graph);
  d.idle = calloc(n_values, sizeof(*d.idle));
  d.peak_members = calloc(n_values, sizeof(*d.peak_members));
  d.representatives = calloc(n_values, sizeof(*d.representatives));
  d.barred = calloc(n_values, sizeof(*d.barred));
  d.raising = calloc(n_values, sizeof(*d.raising));
  d.undo = calloc(n_values, sizeof(*d.undo));
  d.unit_keys = calloc((size_t)d.graph->n_units, sizeof(*d.unit_keys));
  bool has_memory = d.idle && d.peak_members && d.representatives && d.barred && d.raising && d.undo && d.unit_keys;
  int status = has_memory ? lade_residency_copy(params->start, &d.residency) : -ENOMEM;
  for (bool is_over = false; !status && !is_over;)
    status = round_run(&d, &is_over);
  lade_residency_destroy(d.residency);
  free(d.idle);
  free(d.peak_members);
  free(d.representatives);
  free(d.barred);
  free(d.raising);
  free(d.undo);
  free(d.unit_keys);
  if (status) {
    descent_finish(&trajectory);
    return status;
  }
  trajectory.optimizer_in_backward = params->start->optimizer_in_backward;
  *ret_trajectory = trajectory;
  return 0;
}

void descent_finish(struct trajectory *trajectory)
{
  LADE_ARRAY_FREE(&trajectory->changes);
  LADE_ARRAY_FREE(&trajectory->states);
}
