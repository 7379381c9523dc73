/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk from keeping everything to the smallest memory.
 *
 * Each round looks at the program just in time (sight.c), at the instant at which most device memory is live, and at
 * what is live there without being used there. Each such value can leave that instant in up to three ways, and what is
 * resident on the device for good, parameters and their optimizer state, can move its home; of all these the change
 * with the least estimated time per byte freed is made, for a few units of the value's group at once. Every choice only
 * ever moves away from "keep", so the walk ends; it ends where everything that is live at the peak is an operand of the
 * instruction that runs then, or where no tier has room.
 *
 * Spills (values that leave in every gap) are made for a whole group at once: the short gaps of all
 * layers are equally high.
 *
 * Rejected: integer programming over all choices, as Checkmate does (Jain et al. 2020): it needs a solver of
 * its own and minutes for a hundred layers; and dynamic programming over units, which cannot see transients.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/sight.h"
#include "plan/walk.h"

/* A group of many units is moved in about so many rounds: fewer where a round is long. */
#define GROUP_ROUNDS 12
#define GROUP_ROUNDS_LARGE 2
#define LARGE_OPS 1500
#define LARGE_STEP_OPS 4000

#define REPEAT_MOST 12 /* times the compute of a step that keeps everything: what recomputing may come to */
#define TIER_SLACK 16    /* a 16th of a tier is left to fragmentation */
#define REFUSALS_MOST 32 /* changes taken back for want of room, until nothing more is sent to that tier */
#define PASSAGE_VALUES 8 /* of the widest kind that pass through the host at once */

/* What a change found: homes of a parameter, or the choice of a gap. */
struct undo {
  uint8_t weight_home, home, wait;
};

struct walker {
  const struct lade_plan_params *params;
  const struct lade_graph *graph;
  const bool *is_pinned; /* by lade_change_index */
  lade_solver *solver;
  int allowed;
  struct lade_residency *residency;
  struct sights *sights;
  const struct sight *sight; /* of residency */
  int32_t sight_number;
  struct idle_value *idle; /* by value's number: what of it is idle at the peak, if any */
  int32_t *peak_members; /* scratch: members of a group that are live at the peak */
  int32_t *speakers;     /* by a group's first tensor: who of it is live at the peak, and speaks for all; -1 */
  double most_ns; /* of compute: recomputing does not go on for ever */
  uint8_t *barred;         /* by lade_change_index: changes that were taken back (bar_bit) */
  struct undo *undo;       /* what the members of the last change were before it */
  int n_refusals[LADE_N_SPACES];
  struct walk *walk;
};

struct best {
  struct lade_change change;
  double score;
  bool is_found;
};

bool walk_is_large(const struct lade_plan_params *params)
{
  const int64_t n_ops = params->graph->n_ops;
  return n_ops > LARGE_OPS || n_ops * params->n_microbatches > LARGE_STEP_OPS;
}

struct lade_build_params walk_build_params(const struct lade_plan_params *params,
                                           const struct lade_residency *residency)
{
  return (struct lade_build_params){
      .graph = params->graph, .layout = params->layout, .residency = residency, .prices = params->prices,
      .n_microbatches = params->n_microbatches, .is_training = true, .is_unified = params->is_unified,
      .chunk_bytes = params->chunk_bytes};
}

/* ---- changes ---- */

/* Host memory that values pass through on their way between a device and a drive that do not reach each other. */
static uint64_t passage_bytes(const struct walker *w)
{
  uint64_t widest = 0;
  if (w->params->is_unified || !w->params->store_bytes)
    return 0;
  for (int i = 0; i < w->graph->n_tensors; i++)
    widest = LADE_MAX(widest, w->graph->tensors[i].bytes);
  return PASSAGE_VALUES * widest;
}

/* What is left of a tier for values, with a part of it held back for fragmentation. */
static uint64_t tier_room(const struct walker *w, enum lade_space space)
{
  uint64_t budget = space == LADE_HOST ? w->params->host_bytes : w->params->store_bytes;
  uint64_t used = w->sight->live_bytes[space] + budget / TIER_SLACK;
  if (space == LADE_HOST)
    used += passage_bytes(w);
  return budget > used ? budget - used : 0;
}

/* Bytes that leave the device: a parameter's optimizer state, or its working copy and what state goes with it. */
static uint64_t home_bytes(const struct walker *w, enum lade_change_kind kind, int param)
{
  uint64_t bytes = 0;
  if (kind == LADE_CHANGE_WEIGHT)
    bytes = lade_held_bytes(w->graph, w->params->layout, lade_value_block(w->graph, param, LADE_BLOCK_WEIGHT));
  if (kind == LADE_CHANGE_WEIGHT && w->residency->homes[param] != LADE_HOME_DEVICE)
    return bytes;
  for (int part = 0; part < LADE_N_PARTS; part++) {
    int tensor = lade_value_part(w->graph, param, (enum lade_part)part);
    bytes += tensor < 0 ? 0 : lade_held_bytes(w->graph, w->params->layout, tensor);
  }
  return bytes;
}

/* What leaves of a gradient for an update elsewhere: this rank's block, in the type that the update takes. */
static uint64_t grad_bytes(const struct walker *w, int param)
{
  return lade_held_bytes(w->graph, w->params->layout, lade_value_block(w->graph, param, LADE_BLOCK_ROUNDED));
}

/* The tier that @change sends things to; the device for one that recomputes. */
static enum lade_space change_space(const struct lade_change *change)
{
  if (lade_change_is_home(change))
    return plan_home_space((enum lade_home)change->to);
  if (change->to == LADE_WAIT_RECOMPUTE)
    return LADE_DEVICE;
  return change->to == LADE_WAIT_HOST ? LADE_HOST : LADE_STORE;
}

/* Homes have entries of their own, so that theirs may be the others' bits. */
static uint8_t bar_bit(const struct lade_change *change)
{
  enum lade_space space = change_space(change);
  return (uint8_t)(1u << (space == LADE_DEVICE ? 6 : 2 * change->kind + (space == LADE_STORE)));
}

/* Is it on the device, and free to leave? */
static bool is_state_free(const struct walker *w, int param)
{
  const struct lade_change state = {LADE_CHANGE_STATE, 0, param};
  return w->residency->homes[param] == LADE_HOME_DEVICE && !w->is_pinned[lade_change_index(w->graph, &state)];
}

static bool is_weight_free(const struct walker *w, int param)
{
  const struct lade_change weight = {LADE_CHANGE_WEIGHT, 0, param};
  return w->residency->weight_homes[param] == LADE_HOME_DEVICE && !w->is_pinned[lade_change_index(w->graph, &weight)];
}

/* May @change, of a group, be made to its member @id? */
static bool is_live_member(const struct walker *w, const struct lade_change *change, int32_t id)
{
  const struct lade_change own = {change->kind, change->to, id};
  const int index = lade_change_index(w->graph, &own);
  if (w->is_pinned[index] || (w->barred[index] & bar_bit(change)))
    return false;
  if (change->kind == LADE_CHANGE_STATE)
    return is_state_free(w, id) && ((w->allowed & WALK_APART) || !is_weight_free(w, id));
  if (change->kind == LADE_CHANGE_WEIGHT)
    return is_weight_free(w, id) && (w->residency->homes[id] >= change->to || is_state_free(w, id));
  if (change->kind == LADE_CHANGE_SPILL)
    return w->residency->choices[id].spill == LADE_WAIT_KEEP;
  return w->residency->choices[id].saved == LADE_WAIT_KEEP && w->idle[id].bytes && w->idle[id].is_in_saved_gap;
}

/*
 * The members of the change's group that a round moves: all for a spill, else a few. Of saved values the earliest
 * units', which wait longest; of parameters the latest, whose gradients are complete first in the backward and
 * whose weights are needed last in the forward.
 */
static int members_pick(struct walker *w, const struct lade_change *change)
{
  int n = 0, n_picked = 0;
  const int32_t *group = lade_solver_group(w->solver, (enum lade_change_kind)change->kind, change->id, &n);
  int rounds = walk_is_large(w->params) ? GROUP_ROUNDS_LARGE : GROUP_ROUNDS;
  int most = change->kind == LADE_CHANGE_SPILL ? n : LADE_MAX(1, n / rounds);
  for (int i = 0; i < n && n_picked < most; i++) {
    int32_t id = group[lade_change_is_home(change) ? n - 1 - i : i];
    if (is_live_member(w, change, id))
      w->peak_members[n_picked++] = id;
  }
  return n_picked;
}

/* Is this rank's block all of a gradient that waits? */
static bool is_grad_cut(const struct walker *w)
{
  return lade_shard_count(w->params->layout) > 1 && w->params->layout->zero >= 2;
}

/* What @change of @id puts into its tier: nothing for a parameter that is dropped there, whose home holds it. */
static uint64_t moved_bytes(const struct walker *w, const struct lade_change *change, int32_t id)
{
  if (lade_change_is_home(change)) {
    bool has_grad = w->residency->homes[id] == LADE_HOME_DEVICE && change->to == LADE_HOME_HOST;
    return home_bytes(w, (enum lade_change_kind)change->kind, id) +
           (has_grad ? grad_bytes(w, id) : 0);
  }
  const struct lade_tensor *what = &w->graph->tensors[id];
  if (what->kind == LADE_TENSOR_GRAD && is_grad_cut(w))
    return lade_held_bytes(w->graph, w->params->layout, lade_value_block(w->graph, what->param, LADE_BLOCK_GRAD));
  return what->kind != LADE_TENSOR_PARAM ? what->bytes : 0;
}

/* A working copy that is at home in shards on the device may be dropped, and is gathered again for its next use. */
static bool is_gathered_again(const struct walker *w, int tensor)
{
  const struct lade_tensor *what = &w->graph->tensors[tensor];
  return what->kind == LADE_TENSOR_PARAM && lade_shard_count(w->params->layout) > 1 &&
         w->params->layout->zero == LADE_ZERO_MOST && w->residency->weight_homes[what->param] == LADE_HOME_DEVICE;
}

/* Does the tier have room for the members? Spills and saved values lie there once per microbatch at a time. */
static bool tier_holds(struct walker *w, const struct lade_change *change, int n_members)
{
  enum lade_space space = change_space(change);
  uint64_t bytes = 0;
  if (space == LADE_DEVICE || (!lade_change_is_home(change) && is_gathered_again(w, change->id)))
    return true;
  if (w->n_refusals[space] >= REFUSALS_MOST)
    return false;
  for (int i = 0; i < n_members; i++)
    bytes += moved_bytes(w, change, w->peak_members[i]);
  /* Short gaps do not overlap from unit to unit: the widest member counts. */
  if (change->kind == LADE_CHANGE_SPILL)
    bytes /= (uint64_t)LADE_MAX(n_members, 1);
  return bytes <= tier_room(w, space);
}

/* Compare @change, which would take @freed_bytes out of the peak, with the best so far. */
static void change_consider(struct walker *w, struct lade_change change, uint64_t freed_bytes,
                            const struct lade_load *base, struct best *best)
{
  int n_members = members_pick(w, &change);
  if (n_members == 0 || !tier_holds(w, &change, n_members))
    return;
  change.id = w->peak_members[0];
  const int n_priced = change.kind == LADE_CHANGE_SPILL ? n_members : 1; /* of which one is at the peak */
  const struct lade_load added = lade_solver_price(w->solver, w->residency, &change);
  const struct lade_load sum = lade_load_sum(base, &added, n_priced);
  if (change.to == LADE_WAIT_RECOMPUTE && !lade_change_is_home(&change) && sum.compute_ns > w->most_ns)
    return;
  double score = (lade_load_ns(w->solver, &sum) - lade_load_ns(w->solver, base)) / (double)LADE_MAX(freed_bytes, 1);
  if (!best->is_found || score < best->score)
    *best = (struct best){change, score, true};
}

static void tiers_consider(struct walker *w, struct lade_change change, uint64_t bytes, const struct lade_load *base,
                           struct best *best)
{
  bool is_home = lade_change_is_home(&change), is_drop = !is_home && is_gathered_again(w, change.id);
  if (w->params->host_bytes || is_drop) {
    change.to = is_home ? LADE_HOME_HOST : LADE_WAIT_HOST;
    change_consider(w, change, bytes, base, best);
  }
  if (w->params->store_bytes && !is_drop) {
    change.to = is_home ? LADE_HOME_STORE : LADE_WAIT_STORE;
    change_consider(w, change, bytes, base, best);
  }
}

/* An activation, or a gradient whose parameter has left: its saved gap first, then its other gaps. */
static void value_consider(struct walker *w, int tensor, const struct lade_load *base, struct best *best)
{
  const struct lade_tensor *what = &w->graph->tensors[tensor];
  const struct lade_choice choice = w->residency->choices[tensor];
  const uint64_t bytes = w->idle[tensor].bytes;
  bool is_forward = what->kind == LADE_TENSOR_ACTIVATION && !w->graph->ops[what->producer].is_backward;
  if (w->idle[tensor].is_in_saved_gap && choice.saved == LADE_WAIT_KEEP) {
    if (lade_tensor_is_repeatable(w->graph, tensor) && (w->allowed & WALK_RECOMPUTE))
      change_consider(w, (struct lade_change){LADE_CHANGE_SAVED, LADE_WAIT_RECOMPUTE, tensor}, bytes, base, best);
    if (!is_forward || (w->allowed & WALK_OFFLOAD))
      tiers_consider(w, (struct lade_change){LADE_CHANGE_SAVED, 0, tensor}, bytes, base, best);
    return;
  }
  if (choice.spill != LADE_WAIT_KEEP)
    return;
  if (is_forward && choice.saved == LADE_WAIT_RECOMPUTE && (w->allowed & WALK_REPEAT))
    change_consider(w, (struct lade_change){LADE_CHANGE_SPILL, LADE_WAIT_RECOMPUTE, tensor}, bytes, base, best);
  tiers_consider(w, (struct lade_change){LADE_CHANGE_SPILL, 0, tensor}, bytes, base, best);
}

/* A home of @param, if that is the device; with its state leave the @idle_bytes of its gradient at the peak. */
static void home_consider(struct walker *w, enum lade_change_kind kind, int param, uint64_t idle_bytes,
                          const struct lade_load *base, struct best *best)
{
  const uint8_t *homes = kind == LADE_CHANGE_STATE ? w->residency->homes : w->residency->weight_homes;
  uint64_t left_bytes = w->residency->homes[param] == LADE_HOME_DEVICE ? idle_bytes : 0;
  if (homes[param] == LADE_HOME_DEVICE)
    tiers_consider(w, (struct lade_change){(uint8_t)kind, 0, param}, home_bytes(w, kind, param) + left_bytes, base,
                   best);
}

/*
 * Homes of the group of parameters that @param is of; a member that may leave speaks for all. They are considered
 * whatever of the group is seen at the peak: where a parameter is cut, its block is resident and its gathered copy
 * comes and goes, and state is under numbers of its own.
 */
static void homes_consider(struct walker *w, int param, const struct lade_load *base, struct best *best)
{
  int n = 0, state = -1, weight = -1;
  const int32_t *group = lade_solver_group(w->solver, LADE_CHANGE_WEIGHT, param, &n);
  for (int i = n - 1; i >= 0; i--) {
    state = is_state_free(w, group[i]) ? group[i] : state;
    weight = is_weight_free(w, group[i]) ? group[i] : weight;
  }
  if (state >= 0)
    home_consider(w, LADE_CHANGE_STATE, state, 0, base, best);
  if (weight >= 0)
    home_consider(w, LADE_CHANGE_WEIGHT, weight, 0, base, best);
}

/* What is live and idle at the peak: a whole gradient leaves with its parameter's homes, and anything in gaps. */
static void tensor_consider(struct walker *w, int tensor, const struct lade_load *base, struct best *best)
{
  const struct lade_tensor *what = &w->graph->tensors[tensor];
  if (what->kind == LADE_TENSOR_GRAD && !is_grad_cut(w)) {
    home_consider(w, LADE_CHANGE_STATE, what->param, w->idle[tensor].bytes, base, best);
    home_consider(w, LADE_CHANGE_WEIGHT, what->param, w->idle[tensor].bytes, base, best);
  }
  if (what->kind == LADE_TENSOR_PARAM && w->residency->weight_homes[what->param] == LADE_HOME_DEVICE &&
      !is_gathered_again(w, tensor))
    return; /* resident: there are no gaps to leave in */
  value_consider(w, tensor, base, best);
}

/* The first of @group that is live at the peak and free to change, or else the first that is live; -1: none is. */
static int32_t speaker_find(const struct walker *w, const int32_t *group, int n)
{
  int32_t first = -1;
  for (int i = 0; i < n; i++) {
    if (!w->idle[group[i]].bytes)
      continue;
    if (!w->is_pinned[group[i]])
      return group[i];
    first = first < 0 ? group[i] : first;
  }
  return first;
}

/* One of each group speaks for all. */
static void speakers_find(struct walker *w)
{
  for (int tensor = 0; tensor < w->graph->n_tensors; tensor++) {
    int n = 0;
    const int32_t *group = lade_solver_group(w->solver, LADE_CHANGE_SAVED, tensor, &n);
    if (group[0] == tensor)
      w->speakers[tensor] = speaker_find(w, group, n);
  }
}

static void best_find(struct walker *w, struct best *best)
{
  const struct lade_graph *graph = w->graph;
  const struct lade_load base = w->sight->load;
  speakers_find(w);
  for (int tensor = 0; tensor < graph->n_tensors; tensor++) {
    int n = 0;
    const int first = lade_solver_group(w->solver, LADE_CHANGE_SAVED, tensor, &n)[0];
    if (first == tensor && graph->tensors[tensor].kind == LADE_TENSOR_PARAM)
      homes_consider(w, graph->tensors[tensor].param, &base, best);
    if (w->speakers[first] == tensor)
      tensor_consider(w, tensor, &base, best);
  }
}

static struct undo undo_get(const struct walker *w, const struct lade_change *change)
{
  if (lade_change_is_home(change))
    return (struct undo){w->residency->weight_homes[change->id], w->residency->homes[change->id], 0};
  struct lade_choice choice = w->residency->choices[change->id];
  return (struct undo){.wait = change->kind == LADE_CHANGE_SPILL ? choice.spill : choice.saved};
}

static void undo_apply(struct walker *w, struct lade_change change, struct undo undo)
{
  if (lade_change_is_home(&change)) {
    lade_residency_set_homes(w->residency, change.id, (enum lade_home)undo.weight_home, (enum lade_home)undo.home);
    return;
  }
  change.to = undo.wait;
  lade_change_apply(&change, w->residency);
}

static int change_make(struct walker *w, struct lade_change change)
{
  int n = members_pick(w, &change);
  LADE_ASSERT(n > 0); /* it was considered with the same members, and a round without a change would never end */
  for (int i = 0; i < n; i++) {
    change.id = w->peak_members[i];
    w->undo[i] = undo_get(w, &change);
    lade_change_apply(&change, w->residency);
    if (!LADE_PUSH(&w->walk->changes, change))
      return -ENOMEM;
  }
  return 0;
}

/* ---- rounds ---- */

/*
 * Whether the last change filled a tier past what it has: the room that is asked for before it is an estimate, as
 * lifetimes there are known only once the program is emitted.
 */
static bool is_overfull(struct walker *w)
{
  const uint64_t budgets[LADE_N_SPACES] = {UINT64_MAX, w->params->host_bytes, w->params->store_bytes};
  int n_states = w->walk->states.n;
  bool is_over = false;
  for (int space = LADE_HOST; space <= LADE_STORE && n_states; space++) {
    uint64_t live_bytes = w->sight->live_bytes[space];
    bool has_grown = live_bytes > w->walk->states.items[n_states - 1].live_bytes[space];
    if (!has_grown || live_bytes <= budgets[space] - budgets[space] / TIER_SLACK)
      continue;
    w->n_refusals[space]++;
    is_over = true;
  }
  return is_over;
}

/* Take the last change back, and do not make it again. */
static void change_undo(struct walker *w)
{
  int first = w->walk->states.items[w->walk->states.n - 1].n_changes;
  for (int i = first; i < w->walk->changes.n; i++) {
    struct lade_change change = w->walk->changes.items[i];
    w->barred[lade_change_index(w->graph, &change)] |= bar_bit(&change);
    undo_apply(w, change, w->undo[i - first]);
  }
  w->walk->changes.n = first;
}

static int state_push(struct walker *w)
{
  struct walk_state state = {.n_changes = w->walk->changes.n, .sight = w->sight_number, .least_ns = w->sight->least_ns};
  memcpy(state.key, w->sight->key, sizeof(state.key));
  memcpy(state.live_bytes, w->sight->live_bytes, sizeof(state.live_bytes));
  return LADE_PUSH(&w->walk->states, state) ? 0 : -ENOMEM;
}

/* Look at the residency as it is now. */
static int sight_renew(struct walker *w)
{
  return sights_get(w->sights, w->residency, &w->sight, &w->sight_number);
}

static void idle_spread(struct walker *w)
{
  memset(w->idle, 0, (size_t)lade_value_count(w->graph) * sizeof(*w->idle));
  for (int i = 0; i < w->sight->n_idle; i++)
    w->idle[w->sight->idle[i].tensor] = w->sight->idle[i];
}

static int round_run(struct walker *w, bool *ret_is_over)
{
  struct best best = {0};
  int status = sight_renew(w);
  if (status)
    return status;
  if (is_overfull(w)) {
    change_undo(w);
    status = sight_renew(w);
  } else {
    status = state_push(w);
  }
  if (status)
    return status;
  if (w->most_ns == 0)
    w->most_ns = REPEAT_MOST * w->sight->load.compute_ns;
  idle_spread(w);
  best_find(w, &best);
  *ret_is_over = !best.is_found;
  return best.is_found ? change_make(w, best.change) : 0;
}

int walk_make(const struct walk_params *params, struct walk *ret_walk)
{
  struct walk walk = {0};
  struct walker w = {.params = params->plan, .graph = params->plan->graph, .is_pinned = params->is_pinned,
                     .solver = params->solver, .sights = params->sights, .allowed = params->allowed, .walk = &walk};
  size_t n_values = (size_t)lade_value_count(w.graph);
  w.idle = calloc(n_values, sizeof(*w.idle));
  w.peak_members = calloc(n_values, sizeof(*w.peak_members));
  w.speakers = calloc(n_values, sizeof(*w.speakers));
  w.barred = calloc(n_values, sizeof(*w.barred));
  w.undo = calloc(n_values, sizeof(*w.undo));
  bool has_memory = w.idle && w.peak_members && w.speakers && w.barred && w.undo;
  int status = has_memory ? lade_residency_copy(params->start, &w.residency) : -ENOMEM;
  for (bool is_over = false; !status && !is_over;)
    status = round_run(&w, &is_over);
  lade_residency_destroy(w.residency);
  free(w.idle);
  free(w.peak_members);
  free(w.speakers);
  free(w.barred);
  free(w.undo);
  if (status) {
    walk_finish(&walk);
    return status;
  }
  walk.is_early = params->start->is_early;
  *ret_walk = walk;
  return 0;
}

void walk_finish(struct walk *walk)
{
  LADE_ARRAY_FREE(&walk->changes);
  LADE_ARRAY_FREE(&walk->states);
}
