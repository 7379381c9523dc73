/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing from the walk.
 *
 * Five walks are made: two that may both recompute and offload activations, of which one trusts copies to hide and one
 * does not, and one for each alone, since no greedy order is always the best mix; and a first one again in which
 * optimizer state may leave before its working copies do. Where updates may come early there are five with and five
 * without: early, gradients do not add up, but the updates' own scratch meets activations. A state of a walk is a
 * candidate just in time, and with copies moved early as far as a rung of a fixed ladder of sizes
 * allows. On each rung a few states are tried: those with the least bound (the busiest queue, which no schedule of
 * theirs can beat) that leave none of the rung, or some per cent of it, to early copies. A budget is answered by the
 * best of all rungs that it reaches, from the highest downwards, until no state that fits a rung has a bound below the
 * best time found. Rungs and states do not depend on the budget, so the answer is the fastest of a set that grows with
 * it: a larger budget is never slower. The last rung is the smallest budget. (For programs that are large, as
 * walk_is_large has it, the ladder is coarse and the first rung that yields a plan ends it, to answer within a second
 * or a few.)
 *
 * The smallest budget is the smallest packed peak of any state of as many walks again, which go by the prices of one
 * machine that is written down here. What a machine was measured at, a little otherwise each time, decides what is
 * fastest in a budget and not what the smallest one is. Beside it stands a bound (bound.c).
 *
 * Ranks that share collectives must decide alike. Those of one data parallel group have programs of the same sizes, but
 * each has its block at another address, and so other waits and another time by a little. All of them decide as the
 * first of the group would, and then build what was decided for themselves.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/pack.h"
#include "parallel/schedule.h"
#include "plan/cost.h"
#include "plan/walk.h"

#define N_WALK_KINDS 5
#define N_WALKS (4 * N_WALK_KINDS) /* early or not, by stated prices and by plain ones */
#define MIN_PACK_WORK 30000000 /* packing effort, in elementary steps, when looking for the smallest budget */

#define TIGHT_BYTES 48 /* per parameter: tiers that hold less may force recomputing a value several times */
#define MIN_STATES 12 /* states packed hard, those with the smallest live peaks */
#define MIN_STATES_LARGE 2

#define RUNGS_PER_OCTAVE 24 /* sizes of the ladder: 3 % apart */
#define RUNGS_PER_OCTAVE_LARGE 6
#define RUNG_SLACK 32 /* a 32nd of a rung is left to fragmentation */

/* Per cent of a rung that the states tried on it may fill just in time. */
static const int rung_levels[] = {100, 97, 94, 90, 85, 75, 60};
static const int rung_levels_large[] = {100, 85};

/* Of no machine in particular: what it costs to move bytes and to compute, in the proportions of most. */
static const struct lade_machine plain_machine = {
    .name = "plain", .n_cores = 8, .is_unified = true,
    .matmul_flops_per_s = {[LADE_F32] = 1e12, [LADE_BF16] = 1e12, [LADE_F16] = 1e12}, .device_bytes_per_s = 1e11,
    .launch_ns = 1000, .to_host = {10000000000, 1000}, .to_device = {10000000000, 1000}, .is_duplex = true,
    .host_bytes_per_s = 5e10, .store = {.bytes = 1, .read_bytes_per_s = 4e9, .write_bytes_per_s = 2e9}};

/* Prices to walk by, and what proposes by them. */
struct pricing {
  struct lade_plan_params params; /* the planner's with these prices */
  struct lade_tariff tariff;
  lade_solver *solver;
};

struct candidate {
  int16_t walk;
  int32_t state;
  int64_t least_ns;
};

struct lade_planner {
  struct lade_plan_params params; /* with the layout of the rank that decides */
  struct lade_layout decider;
  const struct lade_layout *own_layout;
  struct lade_residency *start;
  bool *is_pinned; /* by lade_change_index */
  struct lade_prices plain_prices;
  struct pricing stated, plain;
  lade_packer *packer;
  struct walk walks[N_WALKS]; /* n_stated by stated prices, the others by plain ones */
  int n_stated, n_walks;
  struct lade_plan_bounds bounds;
  struct candidate least; /* the state behind bounds.min_bytes */
  struct candidate stated_least; /* the smallest of walks by stated prices, which may be as small, and faster */
  bool has_bounds;
};

static const char *const recipe_names[LADE_N_RECIPES] = {"auto", "none", "full", "selective"};

const char *lade_recipe_name(enum lade_recipe recipe)
{
  LADE_ASSERT(recipe >= 0 && recipe < LADE_N_RECIPES);
  return recipe_names[recipe];
}

static bool is_large(const lade_planner *planner)
{
  return walk_is_large(&planner->params);
}

/* ---- where the walk starts ---- */

static bool is_cheap_op(const struct lade_op *op)
{
  switch (op->kind) {
  case LADE_OP_NORM:
  case LADE_OP_GELU:
  case LADE_OP_SWIGLU:
  case LADE_OP_DROPOUT:
  case LADE_OP_ATTENTION: /* from qkv after rope, which is kept: before it, it would take the product again */
    return true;
  default:
    return false;
  }
}

/* The value that enters a unit from the one before; full recompute keeps these. */
static bool is_unit_input(const struct lade_graph *graph, int tensor)
{
  int unit = graph->tensors[tensor].unit;
  for (int op = 0; op < graph->n_fwd_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_in; i++) {
      if (graph->ops[op].in[i] == tensor && graph->ops[op].unit != unit)
        return true;
    }
  }
  return false;
}

static void recipe_apply(lade_planner *planner)
{
  const struct lade_graph *graph = planner->params.graph;
  enum lade_recipe recipe = planner->params.recipe;
  if (recipe == LADE_RECIPE_AUTO)
    return;
  for (int tensor = 0; tensor < graph->n_tensors; tensor++) {
    const struct lade_tensor *what = &graph->tensors[tensor];
    if (!lade_tensor_is_repeatable(graph, tensor))
      continue;
    planner->is_pinned[tensor] = true;
    bool is_dropped = (recipe == LADE_RECIPE_FULL && !is_unit_input(graph, tensor)) ||
                      (recipe == LADE_RECIPE_SELECTIVE && is_cheap_op(&graph->ops[what->producer]));
    if (is_dropped)
      planner->start->choices[tensor].saved = LADE_WAIT_RECOMPUTE;
  }
}

static void pins_apply(lade_planner *planner)
{
  for (int i = 0; i < planner->params.n_pins; i++) {
    const struct lade_change *pin = &planner->params.pins[i];
    lade_change_apply(pin, planner->start);
    planner->is_pinned[lade_change_index(planner->params.graph, pin)] = true;
  }
}

/* ---- states ---- */

static int state_residency(const lade_planner *planner, int walk, int state, uint64_t prefetch_bytes,
                           struct lade_residency **ret)
{
  int status = lade_residency_copy(planner->start, ret);
  if (status)
    return status;
  const struct walk *w = &planner->walks[walk];
  for (int i = 0; i < w->states.items[state].n_changes; i++)
    lade_change_apply(&w->changes.items[i], *ret);
  (*ret)->prefetch_bytes = prefetch_bytes;
  (*ret)->is_early = w->is_early;
  return 0;
}

/* Tokens, targets, step block and results pass through the host whatever its budget: all that is in it at 0. */
static uint64_t host_budget(const struct lade_plan_params *params)
{
  const struct lade_graph *graph = params->graph;
  const int passing[] = {graph->tokens, graph->targets, graph->loss};
  uint64_t each = 0;
  for (size_t i = 0; i < LADE_COUNT(passing); i++)
    each += passing[i] < 0 ? 0 : plan_buffer_bytes(LADE_HOST, graph->tensors[passing[i]].bytes);
  uint64_t bytes = (uint64_t)params->n_microbatches * each +
                   plan_buffer_bytes(LADE_HOST, sizeof(struct lade_verdict)) +
                   (params->is_unified ? 0 : plan_buffer_bytes(LADE_HOST, sizeof(struct lade_step)));
  return LADE_MAX(params->host_bytes, lade_align_up(bytes, params->chunk_bytes));
}

static bool peaks_fit(const lade_planner *planner, const struct lade_program *program, uint64_t device_bytes)
{
  const uint64_t *peak = program->peak_bytes;
  return peak[LADE_DEVICE] <= device_bytes && peak[LADE_HOST] <= host_budget(&planner->params) &&
         peak[LADE_STORE] <= planner->params.store_bytes;
}

/* Fits, or would but for fragmentation. */
static bool is_near(const struct lade_program *program, uint64_t device_bytes)
{
  return program->live_peak_bytes[LADE_DEVICE] <= device_bytes &&
         program->peak_bytes[LADE_DEVICE] - device_bytes / 8 <= device_bytes;
}

/*
 * Build both programs for the rank of @layout; takes @residency. *ret_plan is NULL when the training program alone is
 * not faster than @worst_ns or does not fit @device_bytes and is not near it either: most candidates end there.
 */
static int plan_build(const lade_planner *planner, const struct lade_layout *layout, struct lade_residency *residency,
                      uint64_t pack_work, uint64_t device_bytes, int64_t worst_ns, struct lade_plan **ret_plan)
{
  struct lade_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) {
    lade_residency_destroy(residency);
    return -ENOMEM;
  }
  plan->residency = residency;
  struct lade_build_params how = walk_build_params(&planner->params, residency);
  how.layout = layout;
  how.packer = planner->packer;
  how.pack_work_limit = pack_work;
  int status = lade_program_build(&how, &plan->train);
  if (!status && (plan->train->predicted_ns >= worst_ns || !is_near(plan->train, device_bytes))) {
    lade_plan_destroy(plan);
    *ret_plan = NULL;
    return 0;
  }
  if (!status) {
    how.is_training = false;
    how.residents = plan->train;
    status = lade_program_build(&how, &plan->eval);
  }
  if (status) {
    lade_plan_destroy(plan);
    return status;
  }
  for (int space = 0; space < LADE_N_SPACES; space++)
    plan->peak_bytes[space] = LADE_MAX(plan->train->peak_bytes[space], plan->eval->peak_bytes[space]);
  plan->predicted_ns = plan->train->predicted_ns;
  *ret_plan = plan;
  return 0;
}

static bool plan_fits(const lade_planner *planner, const struct lade_plan *plan, uint64_t device_bytes)
{
  return peaks_fit(planner, plan->train, device_bytes) && peaks_fit(planner, plan->eval, device_bytes);
}

/*
 * The plan of @residency for the rank of @layout. *ret_plan is NULL when it does not fit, or takes @worst_ns or more.
 * One that would fit but for fragmentation, and is just in time, is packed again with more effort.
 */
static int residency_try(const lade_planner *planner, const struct lade_layout *layout,
                         const struct lade_residency *residency, uint64_t device_bytes, int64_t worst_ns,
                         struct lade_plan **ret_plan)
{
  struct lade_plan *plan = NULL;
  *ret_plan = NULL;
  for (uint64_t pack_work = 0;; pack_work = MIN_PACK_WORK) {
    struct lade_residency *copy = NULL;
    int status = lade_residency_copy(residency, &copy);
    if (!status)
      status = plan_build(planner, layout, copy, pack_work, device_bytes, worst_ns, &plan);
    if (status || !plan)
      return status;
    if (plan_fits(planner, plan, device_bytes)) {
      *ret_plan = plan;
      return 0;
    }
    lade_plan_destroy(plan);
    if (residency->prefetch_bytes || pack_work)
      return 0;
  }
}

/* One candidate, as the rank that decides has it: just in time (@prefetch_bytes 0), or early. */
static int candidate_try(const lade_planner *planner, const struct candidate *c, uint64_t prefetch_bytes,
                         uint64_t device_bytes, int64_t worst_ns, struct lade_plan **ret_plan)
{
  struct lade_residency *residency = NULL;
  int status = state_residency(planner, c->walk, c->state, prefetch_bytes, &residency);
  if (!status)
    status = residency_try(planner, planner->params.layout, residency, device_bytes, worst_ns, ret_plan);
  lade_residency_destroy(residency);
  return status;
}

/* Sizes of the ladder, from the unconstrained peak downwards. */
static uint64_t rung_bytes(const lade_planner *planner, int rung)
{
  int per_octave = is_large(planner) ? RUNGS_PER_OCTAVE_LARGE : RUNGS_PER_OCTAVE;
  return (uint64_t)((double)planner->bounds.unconstrained_bytes * exp2(-(double)rung / per_octave));
}

/* The state of @walk with the least bound among those that are live in at most @live_bytes; false if none is. */
static bool state_pick(const lade_planner *planner, int walk, uint64_t live_bytes, struct candidate *ret_candidate)
{
  const struct walk *w = &planner->walks[walk];
  bool is_found = false;
  for (int i = 0; i < w->states.n; i++) {
    const struct walk_state *state = &w->states.items[i];
    if (state->live_bytes[LADE_DEVICE] > live_bytes || (is_found && state->least_ns >= ret_candidate->least_ns))
      continue;
    *ret_candidate = (struct candidate){(int16_t)walk, i, state->least_ns};
    is_found = true;
  }
  return is_found;
}

/* The first state of @walk that is live in at most @live_bytes: the one with the fewest changes. */
static bool state_first(const lade_planner *planner, int walk, uint64_t live_bytes, struct candidate *ret_candidate)
{
  const struct walk *w = &planner->walks[walk];
  int i = 0;
  while (i < w->states.n && w->states.items[i].live_bytes[LADE_DEVICE] > live_bytes)
    i++;
  if (i == w->states.n)
    return false;
  *ret_candidate = (struct candidate){(int16_t)walk, i, w->states.items[i].least_ns};
  return true;
}

struct trial {
  const lade_planner *planner;
  struct lade_plan *best;
  bool is_over; /* no smaller rung can be faster */
};

static int candidate_compete(struct trial *t, const struct candidate *c, uint64_t prefetch_bytes, uint64_t size_bytes)
{
  struct lade_plan *plan = NULL;
  if (t->best && c->least_ns >= t->best->predicted_ns)
    return 0;
  t->is_over = false;
  int64_t worst_ns = t->best ? t->best->predicted_ns : INT64_MAX;
  int status = candidate_try(t->planner, c, prefetch_bytes, size_bytes, worst_ns, &plan);
  if (plan) {
    lade_plan_destroy(t->best);
    t->best = plan;
  }
  return status;
}

static int rung_try(struct trial *t, uint64_t size_bytes)
{
  const int *levels = is_large(t->planner) ? rung_levels_large : rung_levels;
  int n_levels = is_large(t->planner) ? (int)LADE_COUNT(rung_levels_large) : (int)LADE_COUNT(rung_levels);
  int status = 0;
  t->is_over = true;
  for (int walk = 0; walk < t->planner->n_stated; walk++) {
    int32_t tried = -1;
    struct candidate first; /* where much is offloaded the bound promises too much; this one keeps what it can */
    if (!status && state_first(t->planner, walk, size_bytes, &first))
      status = candidate_compete(t, &first, 0, size_bytes);
    for (int i = 0; i < n_levels && !status; i++) {
      struct candidate c = {0};
      if (!state_pick(t->planner, walk, size_bytes / 100 * (uint64_t)levels[i], &c) || c.state == tried)
        continue;
      status = candidate_compete(t, &c, size_bytes - size_bytes / RUNG_SLACK, size_bytes);
      if (!status) /* whatever was found so far, or the set of candidates would depend on the budget */
        status = candidate_compete(t, &c, 0, size_bytes);
      tried = c.state;
    }
  }
  if (is_large(t->planner) && t->best)
    t->is_over = true;
  return status;
}

static int best_plan(lade_planner *planner, uint64_t device_bytes, struct lade_plan **ret_best)
{
  struct lade_plan_bounds bounds;
  struct trial t = {.planner = planner};
  int status = lade_planner_get_bounds(planner, &bounds);
  if (status || device_bytes < bounds.min_bytes) {
    *ret_best = NULL;
    return status;
  }
  for (int rung = 0; !status && !t.is_over && rung_bytes(planner, rung) >= bounds.min_bytes; rung++) {
    if (rung_bytes(planner, rung) <= device_bytes)
      status = rung_try(&t, rung_bytes(planner, rung));
  }
  if (!status && !t.is_over)
    status = rung_try(&t, bounds.min_bytes);
  if (!status)
    status = candidate_compete(&t, &planner->stated_least, 0, bounds.min_bytes);
  if (!status)
    status = candidate_compete(&t, &planner->least, 0, bounds.min_bytes); /* packed as it was when it was found */
  if (status) {
    lade_plan_destroy(t.best);
    return status;
  }
  *ret_best = t.best;
  return 0;
}

/* ---- bounds, asked for once ---- */

struct live_order {
  uint64_t live_bytes;
  struct candidate candidate;
};

static int live_compare(const void *x, const void *y)
{
  const struct live_order *a = x, *b = y;
  if (a->live_bytes != b->live_bytes)
    return a->live_bytes < b->live_bytes ? -1 : 1;
  if (a->candidate.least_ns != b->candidate.least_ns)
    return a->candidate.least_ns < b->candidate.least_ns ? -1 : 1;
  return a->candidate.walk != b->candidate.walk ? a->candidate.walk - b->candidate.walk
                                                : a->candidate.state - b->candidate.state;
}

/* The states of walks @first to @end. */
static int states_list(const lade_planner *planner, int first, int end, struct live_order **ret_list, int *ret_n)
{
  int n = 0;
  for (int w = first; w < end; w++)
    n += planner->walks[w].states.n;
  struct live_order *list = calloc((size_t)n + 1, sizeof(*list));
  if (!list)
    return -ENOMEM;
  *ret_list = list;
  *ret_n = n;
  for (int w = first; w < end; w++) {
    for (int i = 0; i < planner->walks[w].states.n; i++) {
      const struct walk_state *state = &planner->walks[w].states.items[i];
      *list++ = (struct live_order){state->live_bytes[LADE_DEVICE], {(int16_t)w, i, state->least_ns}};
    }
  }
  qsort(*ret_list, (size_t)n, sizeof(**ret_list), live_compare);
  return 0;
}

/* Device peak of a state just in time, packed with this much effort; UINT64_MAX if other tiers overflow. */
static int state_peak(const lade_planner *planner, const struct candidate *c, uint64_t pack_work, uint64_t *ret_bytes)
{
  struct lade_residency *residency = NULL;
  struct lade_plan *plan = NULL;
  int status = state_residency(planner, c->walk, c->state, 0, &residency);
  if (!status)
    status = plan_build(planner, planner->params.layout, residency, pack_work, UINT64_MAX, INT64_MAX, &plan);
  if (status)
    return status;
  *ret_bytes = plan_fits(planner, plan, UINT64_MAX) ? plan->peak_bytes[LADE_DEVICE] : UINT64_MAX;
  lade_plan_destroy(plan);
  return 0;
}

/* The smallest packed peak: states in the order of their live peaks, until that passes the best found. */
static int min_find(const lade_planner *planner, int first, int end, struct candidate *ret_least, uint64_t *ret_bytes)
{
  struct live_order *order = NULL;
  int n = 0, most = is_large(planner) ? MIN_STATES_LARGE : MIN_STATES;
  int status = states_list(planner, first, end, &order, &n);
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < n && (i < most || least == UINT64_MAX) && !status; i++) {
    uint64_t floor = lade_align_up(order[i].live_bytes, planner->params.chunk_bytes), peak = UINT64_MAX;
    if (floor >= least)
      break;
    status = state_peak(planner, &order[i].candidate, 0, &peak);
    if (!status && peak != floor && peak != UINT64_MAX && !is_large(planner))
      status = state_peak(planner, &order[i].candidate, MIN_PACK_WORK, &peak);
    if (peak < least) {
      least = peak;
      *ret_least = order[i].candidate;
    }
  }
  free(order);
  *ret_bytes = least;
  return status;
}

int lade_planner_get_bounds(lade_planner *planner, struct lade_plan_bounds *ret_bounds)
{
  if (!planner->has_bounds) {
    struct candidate first = {0, 0, 0};
    struct lade_plan *plan = NULL;
    int status = candidate_try(planner, &first, 0, UINT64_MAX, INT64_MAX, &plan);
    if (status)
      return status;
    planner->bounds.unconstrained_bytes = plan ? plan->peak_bytes[LADE_DEVICE] : 0;
    planner->bounds.unconstrained_ns = plan ? plan->predicted_ns : 0;
    lade_plan_destroy(plan);
    uint64_t stated_bytes;
    status = min_find(planner, planner->n_stated, planner->n_walks, &planner->least, &planner->bounds.min_bytes);
    if (!status)
      status = min_find(planner, 0, planner->n_stated, &planner->stated_least, &stated_bytes);
    if (status)
      return status;
    planner->least.least_ns = 0; /* what it was in another machine's time bounds nothing here */
    planner->bounds.lower_bound_bytes = plan_lower_bound(&planner->params);
    for (int w = 0; w < planner->n_stated; w++)
      planner->bounds.n_states += planner->walks[w].states.n;
    planner->has_bounds = true;
  }
  *ret_bounds = planner->bounds;
  return 0;
}

/* ---- public ---- */

/* The walks by @pricing with updates early, or without. */
static int walks_of_kind_make(lade_planner *planner, struct pricing *pricing, bool is_early)
{
  static const struct {
    int allowed;
    double exposed_fraction;
  } kinds[N_WALK_KINDS] = {{WALK_RECOMPUTE | WALK_OFFLOAD, 0.05},
                      {WALK_RECOMPUTE | WALK_OFFLOAD, 0.5},
                      {WALK_RECOMPUTE, 0.05},
                      {WALK_OFFLOAD, 0.05},
                      {WALK_RECOMPUTE | WALK_OFFLOAD | WALK_APART, 0.05}};
  bool has_tier = planner->params.host_bytes || planner->params.store_bytes;
  uint64_t state = (uint64_t)lade_model_n_params(&planner->params.graph->model) * TIGHT_BYTES;
  bool is_tight = planner->params.host_bytes < state && planner->params.store_bytes < state;
  int status = 0;
  planner->start->is_early = is_early;
  for (int i = 0; i < N_WALK_KINDS && !status; i++) {
    if (i > 0 && (!has_tier || is_large(planner)))
      break; /* nothing but recompute to choose from; or each walk takes long */
    pricing->tariff.exposed_fraction = kinds[i].exposed_fraction;
    int allowed = kinds[i].allowed | (is_tight && !is_large(planner) ? WALK_REPEAT : 0);
    status = walk_make(&pricing->params, planner->start, planner->is_pinned, pricing->solver, allowed,
                       &planner->walks[planner->n_walks]);
    if (!status)
      planner->n_walks++;
  }
  return status;
}

static int walks_make(lade_planner *planner, struct pricing *pricing)
{
  const bool is_early = planner->params.is_early;
  int status = is_early ? walks_of_kind_make(planner, pricing, true) : 0;
  if (!status && !(is_early && is_large(planner)))
    status = walks_of_kind_make(planner, pricing, false);
  return status;
}

static int pricing_init(const lade_planner *planner, const struct lade_prices *prices, struct pricing *pricing)
{
  const struct lade_plan_params *params = &planner->params;
  pricing->params = *params;
  pricing->params.prices = prices;
  pricing->tariff = (struct lade_tariff){
      .op_ns = prices->op_ns, .update_ns = {prices->update_ns[0], prices->update_ns[1], prices->update_ns[2]},
      .update_near_ns = prices->update_near_ns, .is_unified = params->is_unified,
      .to_host_ns = prices->to_host.ns_per_byte, .to_device_ns = prices->to_device.ns_per_byte,
      .read_ns = prices->read.ns_per_byte, .write_ns = prices->write.ns_per_byte,
      .copy_cores = prices->copy_cores, .n_cores = prices->n_cores,
      .n_microbatches = params->n_microbatches};
  return lade_solver_create(params->graph, &pricing->tariff, &pricing->solver);
}

static int plain_init(lade_planner *planner)
{
  struct lade_cost cost;
  lade_cost_init(&cost, &plain_machine);
  cost.machine.is_unified = planner->params.is_unified;
  int status = lade_cost_prices(&cost, planner->params.graph, &planner->plain_prices);
  lade_cost_finish(&cost);
  planner->plain_prices.streaming = planner->params.prices->streaming; /* what is laid out is what will run */
  return status ? status : pricing_init(planner, &planner->plain_prices, &planner->plain);
}

/* What layouts may not ask for. */
static int layout_check(const struct lade_plan_params *params, struct lade_error *error)
{
  const struct lade_layout *layout = params->layout;
  const bool is_gathering = lade_shard_count(layout) > 1 && layout->zero == LADE_ZERO_MOST;
  for (int i = 0; i < params->n_pins && !is_gathering; i++) {
    const struct lade_change *pin = &params->pins[i];
    if (pin->kind == LADE_CHANGE_SAVED && params->graph->tensors[pin->id].kind == LADE_TENSOR_PARAM)
      return lade_error_set(error, -EINVAL, "--residency: copies are kept or dropped where ranks gather them: with "
                            "--zero 3");
  }
  if (lade_layout_size(layout, LADE_AXIS_TP) > 1 && params->graph->dtype == LADE_F16)
    return lade_error_set(error, -EINVAL, "tensor parallel ranks sum their parts in f32 or bf16, not in f16; use "
                          "--dtype bf16");
  return 0;
}

/* Are the sharers of every gradient a group of the layout? Without a layout nobody is asked. */
static int parts_check(const struct lade_graph *graph, const struct lade_layout *layout, struct lade_error *error)
{
  for (int param = 0; param < graph->n_params && layout; param++) {
    const int n = graph->params[param].n_sharers;
    if (n > 1 && n != lade_layout_size(layout, lade_param_parts(graph, layout, param).axis))
      return lade_error_set(error, -EINVAL, "model %s: %d ranks share a key head, and the layout was not made for its "
                            "%lld key heads", graph->model.name, n, (long long)graph->model.key_heads);
  }
  return 0;
}

static void decider_set(lade_planner *planner)
{
  if (!planner->own_layout)
    return;
  planner->decider = *planner->own_layout;
  planner->decider.rank = lade_mesh_member(&planner->decider.mesh, LADE_AXIS_DP, planner->decider.rank, 0);
  if (planner->decider.rank != planner->own_layout->rank)
    planner->params.layout = &planner->decider;
}

int lade_planner_create(const struct lade_plan_params *params, struct lade_error *error, lade_planner **ret_planner)
{
  if (params->n_microbatches < 1 || params->n_microbatches > LADE_MICROBATCHES_MAX)
    return lade_error_set(error, -EINVAL, "%d microbatches in a step: there may be 1 to %d; raise --micro-batch",
                          params->n_microbatches, LADE_MICROBATCHES_MAX);
  const struct lade_pipeline pipeline = lade_pipeline_get(params->layout, params->n_microbatches, true);
  int refusal = lade_schedule_check(&pipeline, error);
  if (refusal)
    return refusal;
  if (params->is_early && params->graph->n_params > LADE_EARLY_PARAMS_MAX)
    return lade_error_set(error, -EINVAL, "a model of %d parameter tensors: early updates are for at most %d; use "
                          "--update end", params->graph->n_params, LADE_EARLY_PARAMS_MAX);
  int status = layout_check(params, error);
  if (!status)
    status = parts_check(params->graph, params->layout, error);
  if (status)
    return status;
  lade_planner *planner = calloc(1, sizeof(*planner));
  if (!planner)
    return lade_error_set(error, -ENOMEM, "planning ran out of memory");
  planner->params = *params;
  planner->own_layout = params->layout;
  decider_set(planner);
  planner->is_pinned = calloc((size_t)lade_change_count(params->graph) + 1, sizeof(bool));
  status = planner->is_pinned ? lade_residency_create(params->graph, &planner->start) : -ENOMEM;
  if (!status)
    status = pricing_init(planner, params->prices, &planner->stated);
  if (!status)
    status = plain_init(planner);
  if (!status)
    status = lade_packer_create(&planner->packer);
  if (!status) {
    recipe_apply(planner);
    pins_apply(planner);
    status = walks_make(planner, &planner->stated);
    planner->n_stated = planner->n_walks;
  }
  if (!status)
    status = walks_make(planner, &planner->plain);
  if (status) {
    lade_planner_destroy(planner);
    return lade_error_set(error, status, "planning ran out of memory");
  }
  *ret_planner = planner;
  return 0;
}

void lade_planner_destroy(lade_planner *planner)
{
  if (!planner)
    return;
  for (int i = 0; i < planner->n_walks; i++)
    walk_finish(&planner->walks[i]);
  lade_packer_destroy(planner->packer);
  lade_solver_destroy(planner->plain.solver);
  lade_solver_destroy(planner->stated.solver);
  lade_prices_finish(&planner->plain_prices);
  lade_residency_destroy(planner->start);
  free(planner->is_pinned);
  free(planner);
}

static int refuse(lade_planner *planner, uint64_t device_bytes, struct lade_error *error)
{
  char asked[32], least[32], host[32], store_room[32];
  struct lade_plan_bounds bounds;
  int status = lade_planner_get_bounds(planner, &bounds);
  if (status)
    return lade_error_set(error, status, "planning ran out of memory");
  lade_size_format(device_bytes, asked, sizeof(asked));
  lade_size_format(bounds.min_bytes, least, sizeof(least));
  if (bounds.min_bytes == UINT64_MAX)
    return lade_error_set(error, -EOVERFLOW,
                          "does not fit in any budget found: of what would have to leave the device the host may hold "
                          "%s and the store %s; raise --host-budget or --store-budget, give the store more room, or "
                          "lower --micro-batch", lade_size_format(planner->params.host_bytes, host, sizeof(host)),
                          lade_size_format(planner->params.store_bytes, store_room, sizeof(store_room)));
  const char *store = planner->params.store_bytes ? ", or --store-budget" : ", or a --store";
  return lade_error_set(error, -EOVERFLOW,
                        "does not fit in %s (%llu bytes): the smallest budget found is %s (%llu bytes); more room "
                        "comes from a smaller --micro-batch, a larger --host-budget%s", asked,
                        (unsigned long long)device_bytes, least, (unsigned long long)bounds.min_bytes, store);
}

/* What was decided, built for this rank. All sizes are those of the rank that decides, so it packs as tightly. */
static int own_plan(const lade_planner *planner, struct lade_plan **plan)
{
  if (planner->own_layout == planner->params.layout)
    return 0;
  struct lade_plan *decided = *plan;
  int status = residency_try(planner, planner->own_layout, decided->residency, decided->peak_bytes[LADE_DEVICE],
                             INT64_MAX, plan);
  LADE_ASSERT(status || *plan);
  lade_plan_destroy(decided);
  return status;
}

int lade_planner_plan(lade_planner *planner, uint64_t device_bytes, struct lade_error *error,
                      struct lade_plan **ret_plan)
{
  struct lade_plan *best = NULL;
  int status = best_plan(planner, device_bytes, &best);
  if (status)
    return lade_error_set(error, status, "planning ran out of memory");
  if (!best)
    return refuse(planner, device_bytes, error);
  status = own_plan(planner, &best);
  if (status)
    return lade_error_set(error, status, "planning ran out of memory");
  const uint64_t budgets[LADE_N_SPACES] = {device_bytes, host_budget(&planner->params), planner->params.store_bytes};
  status = lade_program_prove(best->train, budgets, error);
  if (!status)
    status = lade_program_prove(best->eval, budgets, error);
  if (!status)
    status = lade_program_prove_shared(best->train, best->eval, error);
  if (status) {
    lade_plan_destroy(best);
    return status;
  }
  *ret_plan = best;
  return 0;
}

void lade_plan_destroy(struct lade_plan *plan)
{
  if (!plan)
    return;
  lade_program_destroy(plan->train);
  lade_program_destroy(plan->eval);
  lade_residency_destroy(plan->residency);
  free(plan);
}
