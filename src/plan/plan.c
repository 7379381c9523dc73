/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing from the walk.
 *
 * Three walks are made: one that may both recompute and offload activations, and one for each alone, since
 * the greedy order of the first is not always the best mix. A state of a walk, with one of a few
 * prefetch depths, is a candidate; candidates do not depend on the budget. For a budget, those that might fit are
 * tried in the order of a bound that no schedule of theirs can beat (the busiest queue), and the
 * trial ends when the bound passes the best time found. So the answer is the fastest candidate that fits, and a
 * larger budget is never slower.
 *
 * The smallest budget is the smallest packed peak of any state. Beside it stands a bound that holds for every
 * program over these ops and this microbatch: an op's operands must be in device memory together; and what the
 * other tiers cannot hold must be on the device too.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pack.h"
#include "plan/walk.h"

#define N_WALKS 3
/* Candidates simulated for one budget: as many as keep planning within about a second. */
#define MAX_TRIALS 400
#define MIN_TRIALS 6
#define TRIAL_OPS 100000
#define LARGE_OPS 1500 /* graphs past this get one walk, with coarser steps */
#define MIN_PACK_WORK 30000000 /* packing effort, in elementary steps, when looking for the smallest budget */

#define MIN_STATES 12 /* states packed hard, those with the smallest live peaks */

static const int prefetch_quarters[] = {0, 3, 6, 12};

struct lade_planner {
  struct lade_plan_params params;
  struct lade_residency *start;
  bool *is_pinned; /* by tensor, then parameter */
  lade_solver *solver;
  struct lade_tariff tariff;
  lade_packer *packer;
  struct walk walks[N_WALKS];
  int n_walks;
  struct lade_plan_bounds bounds;
  bool has_bounds;
};

struct candidate {
  int16_t walk;
  int32_t state;
  int64_t least_ns;
};

static const char *const recipe_names[LADE_N_RECIPES] = {"auto", "none", "full", "selective"};

const char *lade_recipe_name(enum lade_recipe recipe)
{
  LADE_ASSERT(recipe >= 0 && recipe < LADE_N_RECIPES);
  return recipe_names[recipe];
}

/* ---- where the walk starts ---- */

static bool is_cheap_op(const struct lade_op *op)
{
  switch (op->kind) {
  case LADE_OP_NORM:
  case LADE_OP_GELU:
  case LADE_OP_SWIGLU:
  case LADE_OP_DROPOUT:
  case LADE_OP_ROPE:
  case LADE_OP_ATTENTION:
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
    if (what->kind != LADE_TENSOR_ACTIVATION || graph->ops[what->producer].is_backward)
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
    planner->is_pinned[(pin->kind == LADE_CHANGE_HOME ? planner->params.graph->n_tensors : 0) + pin->id] = true;
  }
}

/* ---- bounds ---- */

static uint64_t padded(uint64_t bytes)
{
  return lade_align_up(LADE_MAX(bytes, 1), LADE_BUFFER_ALIGN);
}

/* Bytes that @op needs at once. Each output that may take over an input's memory is counted once with it. */
static uint64_t op_bytes(const struct lade_graph *graph, const struct lade_op *op, bool is_state_counted)
{
  uint64_t bytes = op->workspace_bytes ? padded(op->workspace_bytes) : 0;
  for (int i = 0; i < op->n_in; i++) {
    bool is_repeated = op->in[i] < 0;
    for (int k = 0; k < i; k++)
      is_repeated = is_repeated || op->in[k] == op->in[i];
    if (is_repeated || (!is_state_counted && graph->tensors[op->in[i]].kind == LADE_TENSOR_PARAM))
      continue;
    bytes += padded(graph->tensors[op->in[i]].bytes);
  }
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] < 0 || (!is_state_counted && graph->tensors[op->out[i]].kind == LADE_TENSOR_GRAD))
      continue;
    if (op->alias[i] < 0 || op->in[op->alias[i]] < 0)
      bytes += padded(graph->tensors[op->out[i]].bytes);
  }
  return bytes;
}

/* What all state, the gradients made so far and one op need together, if everything had to be on the device. */
static uint64_t device_only_bytes(const struct lade_graph *graph)
{
  uint64_t state = 0, most = 0;
  bool *has_grad = calloc((size_t)LADE_MAX(graph->n_params, 1), sizeof(*has_grad));
  if (!has_grad)
    return 0; /* no bound is a bound */
  for (int param = 0; param < graph->n_params; param++) {
    state += padded(lade_value_bytes(graph, graph->params[param].tensor));
    for (int part = 0; part < LADE_N_PARTS; part++) {
      int tensor = lade_value_part(graph, param, (enum lade_part)part);
      state += tensor < 0 ? 0 : padded(lade_value_bytes(graph, tensor));
    }
  }
  for (int i = 0; i < graph->n_ops; i++) {
    const struct lade_op *op = &graph->ops[i];
    for (int k = 0; k < op->n_out; k++) {
      int param = op->out[k] < 0 ? -1 : graph->tensors[op->out[k]].param;
      if (param >= 0 && !has_grad[param]) {
        has_grad[param] = true;
        state += padded(graph->tensors[op->out[k]].bytes);
      }
    }
    most = LADE_MAX(most, state + op_bytes(graph, op, false));
  }
  free(has_grad);
  return most;
}

static uint64_t lower_bound(const struct lade_plan_params *params)
{
  uint64_t most = 0, tiers = params->host_bytes + params->store_bytes;
  for (int i = 0; i < params->graph->n_ops; i++)
    most = LADE_MAX(most, op_bytes(params->graph, &params->graph->ops[i], true));
  uint64_t all = device_only_bytes(params->graph);
  if (tiers >= params->host_bytes && all > tiers) /* else the sum wrapped: the tiers hold anything */
    most = LADE_MAX(most, all - tiers);
  return lade_align_up(most, params->chunk_bytes);
}

/* ---- states ---- */

static int state_residency(const lade_planner *planner, int walk, int state, int quarters, struct lade_residency **ret)
{
  int status = lade_residency_copy(planner->start, ret);
  if (status)
    return status;
  const struct walk *w = &planner->walks[walk];
  for (int i = 0; i < w->states.items[state].n_changes; i++)
    lade_change_apply(&w->changes.items[i], *ret);
  (*ret)->prefetch_quarters = quarters;
  return 0;
}

/* Tokens, targets and results pass through the host whatever its budget; they are all that is in it at 0. */
static uint64_t host_budget(const struct lade_plan_params *params)
{
  const struct lade_graph *graph = params->graph;
  uint64_t each = padded(graph->tensors[graph->tokens].bytes) + padded(graph->tensors[graph->targets].bytes) +
                  padded(graph->tensors[graph->loss].bytes);
  uint64_t bytes = (uint64_t)params->n_microbatches * each + padded(sizeof(struct lade_verdict));
  return LADE_MAX(params->host_bytes, lade_align_up(bytes, params->chunk_bytes));
}

static bool peaks_fit(const lade_planner *planner, const struct lade_program *program, uint64_t device_bytes)
{
  const uint64_t *peak = program->peak_bytes;
  return peak[LADE_DEVICE] <= device_bytes && peak[LADE_HOST] <= host_budget(&planner->params) &&
         peak[LADE_STORE] <= planner->params.store_bytes;
}

static int plan_build(const lade_planner *planner, struct lade_residency *residency, uint64_t pack_work,
                      struct lade_plan **ret_plan)
{
  struct lade_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) {
    lade_residency_destroy(residency);
    return -ENOMEM;
  }
  plan->residency = residency;
  struct lade_build_params how = walk_build_params(&planner->params, residency, planner->packer);
  how.pack_work_limit = pack_work;
  int status = lade_program_build(&how, &plan->train);
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

/* Build one candidate; *ret_plan is NULL when it does not fit. */
static int candidate_try(const lade_planner *planner, const struct candidate *c, int quarters, uint64_t device_bytes,
                         struct lade_plan **ret_plan)
{
  struct lade_residency *residency = NULL;
  *ret_plan = NULL;
  int status = state_residency(planner, c->walk, c->state, quarters, &residency);
  if (!status)
    status = plan_build(planner, residency, 0, ret_plan);
  if (status)
    return status;
  struct lade_plan *plan = *ret_plan;
  if (peaks_fit(planner, plan->train, device_bytes) && peaks_fit(planner, plan->eval, device_bytes))
    return 0;
  uint64_t live = LADE_MAX(plan->train->live_peak_bytes[LADE_DEVICE], plan->eval->live_peak_bytes[LADE_DEVICE]);
  bool is_near = live <= device_bytes && plan->peak_bytes[LADE_DEVICE] <= device_bytes + device_bytes / 8;
  *ret_plan = NULL;
  lade_plan_destroy(plan);
  if (!is_near || quarters)
    return 0;
  /* It would fit without fragmentation: pack harder. */
  status = state_residency(planner, c->walk, c->state, quarters, &residency);
  if (!status)
    status = plan_build(planner, residency, MIN_PACK_WORK, &plan);
  if (status)
    return status;
  if (peaks_fit(planner, plan->train, device_bytes) && peaks_fit(planner, plan->eval, device_bytes))
    *ret_plan = plan;
  else
    lade_plan_destroy(plan);
  return 0;
}

static int candidate_compare(const void *x, const void *y)
{
  const struct candidate *a = x, *b = y;
  if (a->least_ns != b->least_ns)
    return a->least_ns < b->least_ns ? -1 : 1;
  if (a->walk != b->walk)
    return a->walk < b->walk ? -1 : 1;
  return (a->state > b->state) - (a->state < b->state);
}

/* All states that could fit @device_bytes, the most promising first. */
static int candidates_list(const lade_planner *planner, uint64_t device_bytes, struct candidate **ret_list, int *ret_n)
{
  int n = 0, most = 0;
  for (int w = 0; w < planner->n_walks; w++)
    most += planner->walks[w].states.n;
  struct candidate *list = calloc((size_t)most + 1, sizeof(*list));
  if (!list)
    return -ENOMEM;
  for (int w = 0; w < planner->n_walks; w++) {
    for (int i = 0; i < planner->walks[w].states.n; i++) {
      const struct walk_state *state = &planner->walks[w].states.items[i];
      if (state->live_bytes[LADE_DEVICE] <= device_bytes)
        list[n++] = (struct candidate){(int16_t)w, i, state->least_ns};
    }
  }
  qsort(list, (size_t)n, sizeof(*list), candidate_compare);
  *ret_list = list;
  *ret_n = n;
  return 0;
}

static int trials_most(const lade_planner *planner)
{
  int n_ops = planner->params.graph->n_ops * planner->params.n_microbatches;
  return LADE_MAX(MIN_TRIALS, LADE_MIN(MAX_TRIALS, TRIAL_OPS / n_ops));
}

static int best_plan(const lade_planner *planner, uint64_t device_bytes, struct lade_plan **ret_best)
{
  struct candidate *list = NULL;
  int n = 0, n_tried = 0, status = candidates_list(planner, device_bytes, &list, &n);
  struct lade_plan *best = NULL;
  for (int i = 0; i < n && !status && n_tried < trials_most(planner); i++) {
    if (best && list[i].least_ns >= best->predicted_ns)
      break;
    for (size_t k = 0; k < LADE_COUNT(prefetch_quarters) && !status; k++) {
      struct lade_plan *plan = NULL;
      status = candidate_try(planner, &list[i], prefetch_quarters[k], device_bytes, &plan);
      n_tried++;
      if (!plan)
        break;
      if (best && plan->predicted_ns >= best->predicted_ns) {
        lade_plan_destroy(plan);
        continue;
      }
      lade_plan_destroy(best);
      best = plan;
    }
  }
  free(list);
  if (status) {
    lade_plan_destroy(best);
    return status;
  }
  *ret_best = best;
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
  return candidate_compare(&a->candidate, &b->candidate);
}

/* Device peak of a state just in time, packed with this much effort; UINT64_MAX if other tiers overflow. */
static int state_peak(const lade_planner *planner, const struct candidate *c, uint64_t pack_work, uint64_t *ret_bytes)
{
  struct lade_residency *residency = NULL;
  struct lade_plan *plan = NULL;
  int status = state_residency(planner, c->walk, c->state, 0, &residency);
  if (!status)
    status = plan_build(planner, residency, pack_work, &plan);
  if (status)
    return status;
  bool is_held = peaks_fit(planner, plan->train, UINT64_MAX) && peaks_fit(planner, plan->eval, UINT64_MAX);
  *ret_bytes = is_held ? plan->peak_bytes[LADE_DEVICE] : UINT64_MAX;
  lade_plan_destroy(plan);
  return 0;
}

/* The smallest packed peak: states in the order of their live peaks, until that passes the best found. */
static int min_find(const lade_planner *planner, uint64_t *ret_bytes)
{
  struct candidate *list = NULL;
  int n = 0, status = candidates_list(planner, UINT64_MAX, &list, &n);
  if (status)
    return status;
  struct live_order *order = calloc((size_t)n + 1, sizeof(*order));
  uint64_t least = UINT64_MAX;
  if (!order)
    status = -ENOMEM;
  for (int i = 0; i < n && !status; i++) {
    const struct walk *walk = &planner->walks[list[i].walk];
    order[i] = (struct live_order){walk->states.items[list[i].state].live_bytes[LADE_DEVICE], list[i]};
  }
  if (!status)
    qsort(order, (size_t)n, sizeof(*order), live_compare);
  for (int i = 0; i < LADE_MIN(n, MIN_STATES) && !status; i++) {
    uint64_t floor = lade_align_up(order[i].live_bytes, planner->params.chunk_bytes), peak = UINT64_MAX;
    if (floor >= least)
      break;
    status = state_peak(planner, &order[i].candidate, 0, &peak);
    if (!status && peak != floor && peak != UINT64_MAX)
      status = state_peak(planner, &order[i].candidate, MIN_PACK_WORK, &peak);
    least = LADE_MIN(least, peak);
  }
  free(order);
  free(list);
  *ret_bytes = least;
  return status;
}

int lade_planner_get_bounds(lade_planner *planner, struct lade_plan_bounds *ret_bounds)
{
  if (!planner->has_bounds) {
    struct candidate first = {0, 0, 0};
    struct lade_plan *plan = NULL;
    int status = candidate_try(planner, &first, 0, UINT64_MAX, &plan);
    if (status)
      return status;
    planner->bounds.unconstrained_bytes = plan ? plan->peak_bytes[LADE_DEVICE] : 0;
    planner->bounds.unconstrained_ns = plan ? plan->predicted_ns : 0;
    lade_plan_destroy(plan);
    status = min_find(planner, &planner->bounds.min_bytes);
    if (status)
      return status;
    planner->bounds.lower_bound_bytes = lower_bound(&planner->params);
    for (int w = 0; w < planner->n_walks; w++)
      planner->bounds.n_states += planner->walks[w].states.n;
    planner->has_bounds = true;
  }
  *ret_bounds = planner->bounds;
  return 0;
}

/* ---- public ---- */

static int walks_make(lade_planner *planner)
{
  static const int allowed[N_WALKS] = {WALK_RECOMPUTE | WALK_OFFLOAD, WALK_RECOMPUTE, WALK_OFFLOAD};
  bool has_tier = planner->params.host_bytes || planner->params.store_bytes;
  int status = 0;
  for (int i = 0; i < N_WALKS && !status; i++) {
    if (i > 0 && (!has_tier || planner->params.graph->n_ops > LARGE_OPS))
      break; /* nothing but recompute to choose from; or each walk takes long */
    status = walk_make(&planner->params, planner->start, planner->is_pinned, planner->solver, planner->packer,
                       allowed[i], &planner->walks[planner->n_walks]);
    if (!status)
      planner->n_walks++;
  }
  return status;
}

int lade_planner_create(const struct lade_plan_params *params, struct lade_error *error, lade_planner **ret_planner)
{
  const struct lade_prices *prices = params->prices;
  lade_planner *planner = calloc(1, sizeof(*planner));
  if (!planner)
    return -ENOMEM;
  planner->params = *params;
  planner->tariff = (struct lade_tariff){
      .op_ns = prices->op_ns, .update_ns = {prices->update_ns[0], prices->update_ns[1], prices->update_ns[2]},
      .to_host_ns = prices->to_host.ns_per_byte, .to_device_ns = prices->to_device.ns_per_byte,
      .read_ns = prices->read.ns_per_byte, .write_ns = prices->write.ns_per_byte,
      .copy_cores = prices->copy_cores, .n_cores = prices->n_cores,
      .n_microbatches = params->n_microbatches};
  planner->is_pinned = calloc((size_t)(params->graph->n_tensors + params->graph->n_params) + 1, sizeof(bool));
  int status = planner->is_pinned ? lade_residency_create(params->graph, &planner->start) : -ENOMEM;
  if (!status)
    status = lade_solver_create(params->graph, &planner->tariff, &planner->solver);
  if (!status)
    status = lade_packer_create(&planner->packer);
  if (!status) {
    recipe_apply(planner);
    pins_apply(planner);
    status = walks_make(planner);
  }
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
  lade_solver_destroy(planner->solver);
  lade_residency_destroy(planner->start);
  free(planner->is_pinned);
  free(planner);
}

static int refuse(lade_planner *planner, uint64_t device_bytes, struct lade_error *error)
{
  char asked[32], least[32];
  struct lade_plan_bounds bounds;
  int status = lade_planner_get_bounds(planner, &bounds);
  if (status)
    return status;
  lade_size_format(device_bytes, asked, sizeof(asked));
  lade_size_format(bounds.min_bytes, least, sizeof(least));
  return lade_error_set(error, -EOVERFLOW,
                        "does not fit in %s: the smallest budget found is %s (%llu bytes); more room comes from a "
                        "smaller --micro-batch, a larger --host-budget or a --store", asked, least,
                        (unsigned long long)bounds.min_bytes);
}

int lade_planner_plan(lade_planner *planner, uint64_t device_bytes, struct lade_error *error,
                      struct lade_plan **ret_plan)
{
  struct lade_plan *best = NULL;
  int status = best_plan(planner, device_bytes, &best);
  if (status)
    return status;
  if (!best)
    return refuse(planner, device_bytes, error);
  const uint64_t budgets[LADE_N_SPACES] = {device_bytes, host_budget(&planner->params), planner->params.store_bytes};
  status = lade_program_prove(best->train, budgets, error);
  if (!status)
    status = lade_program_prove(best->eval, budgets, error);
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
