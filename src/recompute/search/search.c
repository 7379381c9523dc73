/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choose the fastest plan in a budget from the states of the trajectories.
 *
 * A state yields several candidates: one that copies just in time, and others that prefetch copies as far as a budget
 * step allows. A budget step is a size on a fixed ladder that descends from the unconstrained peak to the smallest
 * budget. Where most bytes are state, these two are close, and the ladder has finer steps.
 *
 * On each budget step a few states are tried: those with the least bound on their time among the states that leave
 * nothing, or some per cent of the step, to prefetched copies. The bound is the time of the busiest queue, which no
 * schedule can beat. The search for a budget begins at the step above it, because some plans are smaller than their
 * step, and descends. A plan competes if it is within the budget: fragmentation may lift it above its step. The
 * search ends when no state that fits a step has a bound below the best time found. Steps and states do not depend on
 * the budget, so a larger budget chooses from a superset of a smaller one's candidates: it is never slower. The last
 * step is the smallest budget. For large programs (descent_is_large) the ladder is coarse, and the search ends at the
 * first step within the budget once there is a plan. So it takes a few seconds at most, and may miss a faster plan of a
 * smaller budget.
 *
 * The unconstrained peak is that of a program just in time. Where data parallel ranks gather copies and sum gradients,
 * more memory is useful: prefetched copies and gradients that wait for their bucket save latencies. There the ladder
 * begins above that peak. Its highest step keeps every value, and more memory makes no step faster. A state that
 * gathers copies again costs time and saves memory; where it is predicted to be faster still, that is an artefact of
 * its order of transfers. So once a plan is as fast as the one that keeps everything, states that gather again are
 * skipped. With ample memory each copy is then gathered once. There "never slower" means: never slower than a smaller
 * budget or than that plan.
 *
 * From step to step the time to beat falls. So a state that was tried just in time is not built again, whether it
 * won, was too slow or did not fit. Nor is a residency prefetched twice for one step, whichever trajectory it comes
 * from. This skips more than half of all candidates. Of the others, those that are too large or too slow before they
 * are packed are not packed (training_build). One that was too slow by an eighth with more prefetch is not tried with
 * less. That rule is no bound: in 1,600 trials less prefetch made a program faster by 12 % at most, but none of those
 * won. The forty budgets compared with and without the rule got the same plans.
 *
 * The smallest budget is the smallest packed peak of any state of the trajectories by plain prices. bound.c computes a
 * lower bound of it.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lade/pack.h"
#include "recompute/search/plan_internal.h"

#define MIN_PACK_WORK 30000000 /* packing effort, in elementary steps, when looking for the smallest budget */

#define MIN_STATES 12 /* states packed hard, those with the smallest live peaks */
#define MIN_STATES_LARGE 2

#define STEPS_PER_OCTAVE 24 /* budget steps 3 % apart; ladder_parts cuts each into smaller ones */
#define STEPS_PER_OCTAVE_LARGE 6
#define STEPS_MIN 20 /* from the unconstrained peak to the smallest budget, however close they are */
#define STEPS_MIN_LARGE 6
#define LADDER_PARTS_MAX 64 /* parts of a step, however close the smallest budget is to the largest */
#define STEP_SLACK 32 /* a 32nd of a budget step is left to fragmentation */
#define STEPS_ABOVE 6 /* budget steps above the unconstrained peak: twice the peak, 1 + 1/2, 1 + 1/4, ... times it */

/* Per cent of a budget step that the states tried on it may fill just in time. */
static const int budget_step_levels[] = {100, 97, 94, 90, 85, 75, 60};
static const int budget_step_levels_large[] = {100, 85};

static bool is_large(const lade_planner *planner)
{
  return descent_is_large(&planner->params);
}

/* ---- states ---- */

static int state_residency(const lade_planner *planner, int trajectory, int state, uint64_t prefetch_bytes,
                           struct lade_residency **ret)
{
  int status = lade_residency_copy(planner->start, ret);
  if (status)
    return status;
  const struct trajectory *t = &planner->trajectories[trajectory];
  for (int i = 0; i < t->states.items[state].n_changes; i++)
    lade_change_apply(&t->changes.items[i], *ret);
  (*ret)->prefetch_bytes = prefetch_bytes;
  (*ret)->optimizer_in_backward = t->optimizer_in_backward;
  return 0;
}

/*
 * Return the host's budget, at least the bytes that pass through the host in any case: data, step block and results.
 */
uint64_t planner_host_budget(const struct lade_plan_params *params)
{
  const struct lade_model_graph *graph = params->graph;
  const int passing[] = {graph->tokens, graph->targets, graph->first_keys, graph->loss};
  uint64_t each = 0;
  for (size_t i = 0; i < LADE_COUNT(passing); i++)
    each += passing[i] < 0 ? 0 : plan_buffer_bytes(LADE_HOST, graph->tensors[passing[i]].bytes);
  uint64_t bytes = (uint64_t)params->n_microbatches * each +
                   plan_buffer_bytes(LADE_HOST, sizeof(struct lade_clip_result)) +
                   (params->is_unified ? 0 : plan_buffer_bytes(LADE_HOST, sizeof(struct lade_step)));
  return LADE_MAX(params->host_bytes, lade_align_up(bytes, params->chunk_bytes));
}

static bool peaks_fit(const lade_planner *planner, const struct lade_program *program, uint64_t device_bytes)
{
  const uint64_t *peak = program->peak_bytes;
  return peak[LADE_DEVICE] <= device_bytes && peak[LADE_HOST] <= planner_host_budget(&planner->params) &&
         peak[LADE_STORE] <= planner->params.store_bytes;
}

/*
 * True if the program fits, or would but for fragmentation: an eighth, or one chunk in a budget of few, as peaks are
 * whole chunks.
 */
static bool is_near(const lade_planner *planner, const struct lade_program *program, uint64_t device_bytes)
{
  const uint64_t peak_bytes = program->peak_bytes[LADE_DEVICE];
  const uint64_t slack_bytes = LADE_MAX(device_bytes / 8, planner->params.chunk_bytes);
  return program->live_peak_bytes[LADE_DEVICE] <= device_bytes &&
         peak_bytes - LADE_MIN(peak_bytes, slack_bytes) <= device_bytes;
}

/*
 * Emit the training program of @params into *ret_program and place it. *ret_is_lost if a bound shows before placing
 * that it cannot win: too many bytes are live, or it is too slow even if no two buffers share addresses. Packing takes
 * most of a trial's time, and most trials end here.
 */
static int training_build(const struct lade_build_params *params, struct plan_trial *trial,
                          struct lade_program **ret_program, bool *ret_is_lost)
{
  int status = lade_program_emit(params, ret_program);
  if (status)
    return status;
  *ret_is_lost = (*ret_program)->live_peak_bytes[LADE_DEVICE] > trial->device_bytes;
  if (!*ret_is_lost && trial->worst_ns < INT64_MAX) {
    status = lade_program_place_apart(params, *ret_program);
    trial->apart_ns = (*ret_program)->predicted_ns;
    *ret_is_lost = trial->apart_ns >= trial->worst_ns;
  }
  return status || *ret_is_lost ? status : lade_program_place(params, *ret_program);
}

/*
 * True if the placed program @train is too slow, or too large. One that prefetches is not packed again, so it must fit
 * the device; one just in time may be near it.
 */
static bool training_is_lost(const lade_planner *planner, const struct lade_program *train, bool is_prefetching,
                             const struct plan_trial *trial)
{
  const bool is_over = is_prefetching ? train->peak_bytes[LADE_DEVICE] > trial->device_bytes
                                      : !is_near(planner, train, trial->device_bytes);
  return is_over || train->predicted_ns >= trial->worst_ns;
}

/*
 * Build both programs for the rank of @layout; takes @residency. *ret_plan is NULL if the training program is lost, as
 * most are.
 */
static int plan_build(const lade_planner *planner, const struct lade_layout *layout, struct lade_residency *residency,
                      uint64_t pack_work, struct plan_trial *trial, struct lade_plan **ret_plan)
{
  struct lade_plan *plan = calloc(1, sizeof(*plan));
  bool is_lost = false;
  if (!plan) {
    lade_residency_destroy(residency);
    return -ENOMEM;
  }
  plan->residency = residency;
  struct lade_build_params build_params = descent_build_params(&planner->params, residency);
  build_params.layout = layout;
  build_params.packer = planner->packer;
  build_params.pack_work_limit = pack_work;
  build_params.device_max_bytes = residency->prefetch_bytes ? trial->device_bytes : 0;
  int status = training_build(&build_params, trial, &plan->train, &is_lost);
  if (!status && (is_lost || training_is_lost(planner, plan->train, residency->prefetch_bytes > 0, trial))) {
    lade_plan_destroy(plan);
    *ret_plan = NULL;
    return 0;
  }
  if (!status) {
    build_params.is_training = false;
    build_params.device_max_bytes = 0;
    build_params.residents = plan->train;
    status = lade_program_build(&build_params, &plan->eval);
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
 * True if MIN_PACK_WORK may give a smaller device peak than the fast pass gave @plan. False if training is the larger
 * program and has so many buffers that the fast pass did more work: a packing that ends sooner is never better.
 */
static bool may_pack_smaller(const struct lade_plan *plan)
{
  uint64_t n = 0;
  for (int i = 0; i < plan->train->n_buffers; i++)
    n += plan->train->buffers[i].space == LADE_DEVICE;
  return n * LADE_PACK_FAST_WORK < MIN_PACK_WORK ||
         plan->eval->peak_bytes[LADE_DEVICE] > plan->train->peak_bytes[LADE_DEVICE];
}

int planner_residency_try(const lade_planner *planner, const struct lade_layout *layout,
                          const struct lade_residency *residency, struct plan_trial *trial,
                          struct lade_plan **ret_plan)
{
  struct lade_plan *plan = NULL;
  *ret_plan = NULL;
  for (uint64_t pack_work = 0;; pack_work = MIN_PACK_WORK) {
    struct lade_residency *copy = NULL;
    int status = lade_residency_copy(residency, &copy);
    if (!status)
      status = plan_build(planner, layout, copy, pack_work, trial, &plan);
    if (status || !plan)
      return status;
    if (plan_fits(planner, plan, trial->device_bytes)) {
      *ret_plan = plan;
      return 0;
    }
    const bool is_last = residency->prefetch_bytes || pack_work || !may_pack_smaller(plan);
    lade_plan_destroy(plan);
    if (is_last)
      return 0;
  }
}

/* Try one candidate, as the plan leader has it: just in time (@prefetch_bytes 0), or with prefetch. */
static int candidate_try(const lade_planner *planner, const struct plan_candidate *c, uint64_t prefetch_bytes,
                         struct plan_trial *trial, struct lade_plan **ret_plan)
{
  struct lade_residency *residency = NULL;
  int status = state_residency(planner, c->trajectory, c->state, prefetch_bytes, &residency);
  if (!status)
    status = planner_residency_try(planner, planner->params.layout, residency, trial, ret_plan);
  lade_residency_destroy(residency);
  return status;
}

/*
 * Return the number of the largest budget step. Step 0 is the unconstrained peak. Larger ones are useful where data
 * parallel ranks group collectives.
 */
static int budget_step_first(const lade_planner *planner)
{
  return lade_layout_size(planner->params.layout, LADE_AXIS_DP) > 1 ? -STEPS_ABOVE : 0;
}

/* Return the size of a budget step; sizes descend. */
static uint64_t budget_step_bytes(const lade_planner *planner, int budget_step)
{
  const uint64_t unconstrained_bytes = planner->bounds.unconstrained_bytes;
  const double per_octave = is_large(planner) ? STEPS_PER_OCTAVE_LARGE : STEPS_PER_OCTAVE;
  if (budget_step < 0)
    return unconstrained_bytes + (unconstrained_bytes >> (STEPS_ABOVE + budget_step));
  return (uint64_t)((double)unconstrained_bytes * exp2(-budget_step / (per_octave * planner->ladder_parts)));
}

/* Return the bytes of this budget step that prefetched values may occupy. */
static uint64_t budget_step_prefetch_bytes(uint64_t size_bytes)
{
  return size_bytes - size_bytes / STEP_SLACK;
}

static const struct descent_state *state_get(const lade_planner *planner, const struct plan_candidate *c)
{
  return &planner->trajectories[c->trajectory].states.items[c->state];
}

/*
 * Find the state of the trajectory with the least bound among those that are live in at most @live_bytes; false: none.
 */
static bool state_pick(const lade_planner *planner, int trajectory, uint64_t live_bytes,
                       struct plan_candidate *ret_candidate)
{
  const struct trajectory *t = &planner->trajectories[trajectory];
  bool is_found = false;
  for (int i = 0; i < t->states.n; i++) {
    const struct descent_state *state = &t->states.items[i];
    if (state->live_bytes[LADE_DEVICE] > live_bytes || (is_found && state->bound_ns >= ret_candidate->bound_ns))
      continue;
    *ret_candidate = (struct plan_candidate){(int16_t)trajectory, i, state->bound_ns};
    is_found = true;
  }
  return is_found;
}

/* Find the first state of the trajectory that is live in at most @live_bytes: the one with the fewest changes. */
static bool state_first(const lade_planner *planner, int trajectory, uint64_t live_bytes,
                        struct plan_candidate *ret_candidate)
{
  const struct trajectory *t = &planner->trajectories[trajectory];
  int i = 0;
  while (i < t->states.n && t->states.items[i].live_bytes[LADE_DEVICE] > live_bytes)
    i++;
  if (i == t->states.n)
    return false;
  *ret_candidate = (struct plan_candidate){(int16_t)trajectory, i, t->states.items[i].bound_ns};
  return true;
}

/* Attempts at a residency in one search, in which the time to beat only falls. */
struct attempt {
  bool is_made; /* tried just in time: a second build gives the same */
  uint64_t prefetch_bytes; /* the latest prefetch limit tried */
  int64_t apart_ns;        /* the least of its trials (plan_trial); 0: none was computed */
};

struct step_trial {
  lade_planner *planner;
  struct lade_plan *best;
  struct attempt *attempts; /* by number of a peak analysis by stated prices */
  bool is_over; /* no smaller budget step can be faster */
};

/* Return the attempts at the residency of @c; NULL: they are not counted. */
static struct attempt *attempt_get(const struct step_trial *t, const struct plan_candidate *c)
{
  return c->trajectory < t->planner->n_stated ? &t->attempts[state_get(t->planner, c)->peak] : NULL;
}

/*
 * Note that @attempt is made with @prefetch_bytes. True if it cannot win: it was made, perhaps through another state,
 * or with more prefetch it was too slow by an eighth.
 */
static bool is_tried(const struct step_trial *t, struct attempt *attempt, uint64_t prefetch_bytes)
{
  bool was_tried = prefetch_bytes ? attempt->prefetch_bytes == prefetch_bytes : attempt->is_made;
  if (prefetch_bytes)
    attempt->prefetch_bytes = prefetch_bytes;
  else
    attempt->is_made = true;
  return was_tried || (t->best && attempt->apart_ns > t->best->predicted_ns / 8 * 9);
}

/* True if @c drops working copies that the start keeps: each is gathered once more then. */
static bool gathers_again(const lade_planner *planner, const struct plan_candidate *c)
{
  const struct trajectory *t = &planner->trajectories[c->trajectory];
  bool is_dropped = false;
  for (int i = 0; i < t->states.items[c->state].n_changes && !is_dropped; i++) {
    const struct lade_change *change = &t->changes.items[i];
    is_dropped = !lade_change_is_tier(change) &&
                 planner->params.graph->tensors[change->id].kind == LADE_TENSOR_PARAM;
  }
  return is_dropped;
}

/* True if the plan found is as fast as @c may become. */
static bool is_beaten(const struct step_trial *t, const struct plan_candidate *c)
{
  if (!t->best)
    return false;
  return c->bound_ns >= t->best->predicted_ns ||
         (t->best->predicted_ns <= t->planner->ample_ns && gathers_again(t->planner, c));
}

static int candidate_compete(struct step_trial *t, const struct plan_candidate *c, uint64_t prefetch_bytes,
                             uint64_t size_bytes)
{
  struct plan_trial trial = {.device_bytes = size_bytes, .worst_ns = t->best ? t->best->predicted_ns : INT64_MAX};
  struct attempt *attempt = attempt_get(t, c);
  struct lade_plan *plan = NULL;
  if (is_beaten(t, c))
    return 0;
  t->is_over = false;
  if (attempt && is_tried(t, attempt, prefetch_bytes))
    return 0;
  int status = candidate_try(t->planner, c, prefetch_bytes, &trial, &plan);
  if (attempt && trial.apart_ns && (!attempt->apart_ns || trial.apart_ns < attempt->apart_ns))
    attempt->apart_ns = trial.apart_ns;
  if (plan) {
    LADE_ASSERT(plan->predicted_ns + plan->train->n_instrs >= c->bound_ns); /* the simulation rounds each completion */
    lade_plan_destroy(t->best);
    t->best = plan;
  }
  return status;
}

/* Try the candidates of one step; those whose plans are within the budget compete. */
static int budget_step_try(struct step_trial *t, uint64_t size_bytes, uint64_t device_bytes)
{
  const int *levels = is_large(t->planner) ? budget_step_levels_large : budget_step_levels;
  int n_levels = is_large(t->planner) ? (int)LADE_COUNT(budget_step_levels_large) : (int)LADE_COUNT(budget_step_levels);
  /* Above the unconstrained peak there is room for prefetch with every value kept. */
  const uint64_t first_prefetch_bytes =
      size_bytes > t->planner->bounds.unconstrained_bytes ? budget_step_prefetch_bytes(size_bytes) : 0;
  int status = 0;
  t->is_over = true;
  for (int trajectory = 0; trajectory < t->planner->n_stated; trajectory++) {
    int32_t tried = -1;
    struct plan_candidate first; /* keeps the most: with much offload the bound of other states is too optimistic */
    if (!status && state_first(t->planner, trajectory, size_bytes, &first))
      status = candidate_compete(t, &first, first_prefetch_bytes, device_bytes);
    for (int i = 0; i < n_levels && !status; i++) {
      struct plan_candidate c = {0};
      if (!state_pick(t->planner, trajectory, size_bytes / 100 * (uint64_t)levels[i], &c) || c.state == tried)
        continue;
      status = candidate_compete(t, &c, budget_step_prefetch_bytes(size_bytes), device_bytes);
      if (!status) /* whatever its time, because the set of candidates must not depend on the budget */
        status = candidate_compete(t, &c, 0, device_bytes);
      tried = c.state;
    }
  }
  if (is_large(t->planner) && t->best && size_bytes <= device_bytes)
    t->is_over = true;
  return status;
}

/* ---- bounds, computed once ---- */

struct live_order {
  uint64_t live_bytes;
  struct plan_candidate candidate;
};

static int live_compare(const void *x, const void *y)
{
  const struct live_order *a = x, *b = y;
  if (a->live_bytes != b->live_bytes)
    return a->live_bytes < b->live_bytes ? -1 : 1;
  if (a->candidate.bound_ns != b->candidate.bound_ns)
    return a->candidate.bound_ns < b->candidate.bound_ns ? -1 : 1;
  if (a->candidate.trajectory != b->candidate.trajectory)
    return a->candidate.trajectory - b->candidate.trajectory;
  return a->candidate.state - b->candidate.state;
}

/* List the states of trajectories @first to @end. */
static int states_list(const lade_planner *planner, int first, int end, struct live_order **ret_list, int *ret_n)
{
  int n = 0;
  for (int trajectory = first; trajectory < end; trajectory++)
    n += planner->trajectories[trajectory].states.n;
  struct live_order *list = calloc((size_t)n + 1, sizeof(*list));
  if (!list)
    return -ENOMEM;
  *ret_list = list;
  *ret_n = n;
  for (int trajectory = first; trajectory < end; trajectory++) {
    for (int i = 0; i < planner->trajectories[trajectory].states.n; i++) {
      const struct descent_state *state = &planner->trajectories[trajectory].states.items[i];
      *list++ = (struct live_order){state->live_bytes[LADE_DEVICE], {(int16_t)trajectory, i, state->bound_ns}};
    }
  }
  qsort(*ret_list, (size_t)n, sizeof(**ret_list), live_compare);
  return 0;
}

/*
 * Return the device peak of a state just in time: packed fast and, if that exceeds @floor_bytes, with more effort.
 * UINT64_MAX if other tiers overflow.
 */
static int state_pack(const lade_planner *planner, const struct plan_candidate *c, uint64_t floor_bytes,
                      uint64_t *ret_bytes)
{
  uint64_t min_bytes = UINT64_MAX;
  bool is_last = false;
  for (uint64_t pack_work = 0; !is_last; pack_work = MIN_PACK_WORK) {
    struct lade_residency *residency = NULL;
    struct lade_plan *plan = NULL;
    int status = state_residency(planner, c->trajectory, c->state, 0, &residency);
    struct plan_trial trial = {.device_bytes = UINT64_MAX, .worst_ns = INT64_MAX};
    if (!status)
      status = plan_build(planner, planner->params.layout, residency, pack_work, &trial, &plan);
    if (status)
      return status;
    if (plan_fits(planner, plan, UINT64_MAX))
      min_bytes = LADE_MIN(min_bytes, plan->peak_bytes[LADE_DEVICE]);
    is_last = pack_work || min_bytes == floor_bytes || min_bytes == UINT64_MAX || is_large(planner) ||
              !may_pack_smaller(plan);
    lade_plan_destroy(plan);
  }
  *ret_bytes = min_bytes;
  return 0;
}

/* As state_pack, but reuse the peak of a residency that has been packed before. */
static int state_peak(lade_planner *planner, const struct plan_candidate *c, uint64_t floor_bytes, uint64_t *ret_bytes)
{
  struct packed_peak peak = {.floor_bytes = floor_bytes};
  memcpy(peak.key, state_get(planner, c)->key, sizeof(peak.key));
  for (int i = 0; i < planner->peaks.n; i++) {
    const struct packed_peak *known = &planner->peaks.items[i];
    if (memcmp(known->key, peak.key, sizeof(peak.key)) == 0 && known->floor_bytes == floor_bytes) {
      *ret_bytes = known->bytes;
      return 0;
    }
  }
  int status = state_pack(planner, c, floor_bytes, &peak.bytes);
  if (!status && !LADE_PUSH(&planner->peaks, peak))
    status = -ENOMEM;
  if (!status)
    *ret_bytes = peak.bytes;
  return status;
}

/* True if an earlier entry of @order has the residency of entry @i: it is as large and as fast. */
static bool is_listed(const lade_planner *planner, const struct live_order *order, int i)
{
  bool is_same = false;
  for (int k = i - 1; k >= 0 && order[k].live_bytes == order[i].live_bytes && !is_same; k--)
    is_same = state_get(planner, &order[k].candidate)->peak == state_get(planner, &order[i].candidate)->peak;
  return is_same;
}

/* Find the smallest packed peak: states in the order of their live peaks, until that exceeds the best found. */
static int min_find(lade_planner *planner, int first, int end, struct plan_candidate *ret_smallest, uint64_t *ret_bytes)
{
  struct live_order *order = NULL;
  int n = 0, max = is_large(planner) ? MIN_STATES_LARGE : MIN_STATES;
  int status = states_list(planner, first, end, &order, &n);
  uint64_t min = UINT64_MAX;
  for (int i = 0; i < n && (i < max || min == UINT64_MAX) && !status; i++) {
    uint64_t floor = lade_align_up(order[i].live_bytes, planner->params.chunk_bytes), peak = UINT64_MAX;
    if (floor >= min)
      break;
    if (is_listed(planner, order, i))
      continue;
    status = state_peak(planner, &order[i].candidate, floor, &peak);
    if (peak < min) {
      min = peak;
      *ret_smallest = order[i].candidate;
    }
  }
  free(order);
  *ret_bytes = min;
  return status;
}

/*
 * Find the smallest budget and its state. A coarse trajectory is live in the lower bound, but its programs may be
 * larger when they are packed; then the others are made.
 */
static int smallest_find(lade_planner *planner)
{
  struct lade_plan_bounds *bounds = &planner->bounds;
  int status = min_find(planner, planner->n_stated, planner->n_trajectories, &planner->smallest, &bounds->min_bytes);
  if (!status && planner->is_plain_coarse && bounds->min_bytes > bounds->lower_bound_bytes) {
    status = planner_refine_plain(planner);
    if (!status)
      status = min_find(planner, planner->n_stated, planner->n_trajectories, &planner->smallest, &bounds->min_bytes);
  }
  planner->smallest.bound_ns = 0; /* its bound was by the plain machine's prices, and does not hold here */
  return status;
}

/*
 * Find the fastest time of everything kept in all the memory of the ladder; 0: none. Trajectories with
 * optimizer_in_backward come first.
 */
static int ample_find(lade_planner *planner)
{
  const uint64_t size_bytes = budget_step_bytes(planner, budget_step_first(planner));
  int status = 0;
  for (int trajectory = 0; trajectory < planner->n_stated && !status; trajectory++) {
    const struct plan_candidate first = {(int16_t)trajectory, 0, 0};
    struct lade_plan *plan = NULL;
    if (trajectory > 0 &&
        planner->trajectories[trajectory].optimizer_in_backward ==
            planner->trajectories[trajectory - 1].optimizer_in_backward)
      continue; /* it has the same start */
    struct plan_trial trial = {.device_bytes = size_bytes, .worst_ns = INT64_MAX};
    status = candidate_try(planner, &first, budget_step_prefetch_bytes(size_bytes), &trial, &plan);
    if (plan && (!planner->ample_ns || plan->predicted_ns < planner->ample_ns))
      planner->ample_ns = plan->predicted_ns;
    lade_plan_destroy(plan);
  }
  return status;
}

/* Find the peak of everything kept, just in time; and, where ranks gather copies, its best time. */
static int unconstrained_find(lade_planner *planner)
{
  const struct lade_layout *layout = planner->params.layout;
  const struct plan_candidate first = {0, 0, 0};
  struct plan_trial trial = {.device_bytes = UINT64_MAX, .worst_ns = INT64_MAX};
  struct lade_plan *plan = NULL;
  int status = candidate_try(planner, &first, 0, &trial, &plan);
  if (status)
    return status;
  planner->bounds.unconstrained_bytes = plan ? plan->peak_bytes[LADE_DEVICE] : 0;
  planner->bounds.unconstrained_ns = plan ? plan->predicted_ns : 0;
  lade_plan_destroy(plan);
  bool is_gathering = lade_shard_count(layout) > 1 && layout->zero == LADE_ZERO_MAX;
  return is_gathering ? ample_find(planner) : 0;
}

/* Return the parts into which each step of the ladder is cut, so that it has its least number of steps. */
static double ladder_parts_find(const lade_planner *planner)
{
  const struct lade_plan_bounds *bounds = &planner->bounds;
  if (bounds->min_bytes >= bounds->unconstrained_bytes)
    return 1;
  const double octaves = log2((double)bounds->unconstrained_bytes / (double)bounds->min_bytes);
  const bool has_few = is_large(planner);
  const double n_steps = octaves * (has_few ? STEPS_PER_OCTAVE_LARGE : STEPS_PER_OCTAVE);
  return LADE_MIN(LADE_MAX(ceil((has_few ? STEPS_MIN_LARGE : STEPS_MIN) / n_steps), 1), LADDER_PARTS_MAX);
}

int lade_planner_get_bounds(lade_planner *planner, struct lade_plan_bounds *ret_bounds)
{
  if (!planner->has_bounds) {
    int status = unconstrained_find(planner);
    if (status)
      return status;
    planner->bounds.lower_bound_bytes = plan_lower_bound(&planner->params);
    status = smallest_find(planner);
    if (status)
      return status;
    planner->ladder_parts = ladder_parts_find(planner);
    for (int trajectory = 0; trajectory < planner->n_stated; trajectory++)
      planner->bounds.n_states += planner->trajectories[trajectory].states.n;
    planner->has_bounds = true;
  }
  *ret_bounds = planner->bounds;
  return 0;
}

/* ---- the best in a budget ---- */

/*
 * Try two states at the smallest budget. The first is the smallest of the trajectories by stated prices: it may be as
 * small as the state that defines the smallest budget, and faster. It is searched only if some state that is live in so
 * few bytes has a bound below the best time. The second is the state that defines the smallest budget, packed as when
 * it was found.
 */
static int min_compete(struct step_trial *t)
{
  lade_planner *planner = t->planner;
  const uint64_t min_bytes = planner->bounds.min_bytes;
  struct plan_candidate c;
  bool may_win = false;
  int status = 0;
  for (int trajectory = 0; trajectory < planner->n_stated; trajectory++)
    may_win |= state_pick(planner, trajectory, min_bytes, &c) && (!t->best || c.bound_ns < t->best->predicted_ns);
  if (may_win) {
    uint64_t stated_bytes;
    c = (struct plan_candidate){0};
    status = min_find(planner, 0, planner->n_stated, &c, &stated_bytes);
    if (!status)
      status = candidate_compete(t, &c, 0, min_bytes);
  }
  return status ? status : candidate_compete(t, &planner->smallest, 0, min_bytes);
}

static int budget_steps_try(struct step_trial *t, uint64_t device_bytes)
{
  const lade_planner *planner = t->planner;
  int status = 0;
  for (int budget_step = budget_step_first(planner); !status && !t->is_over; budget_step++) {
    if (budget_step_bytes(planner, budget_step) < planner->bounds.min_bytes)
      break;
    if (budget_step_bytes(planner, budget_step + 1) <= device_bytes)
      status = budget_step_try(t, budget_step_bytes(planner, budget_step), device_bytes);
  }
  if (!status && !t->is_over)
    status = budget_step_try(t, planner->bounds.min_bytes, device_bytes);
  return status;
}

int planner_best(lade_planner *planner, uint64_t device_bytes, struct lade_plan **ret_best)
{
  struct lade_plan_bounds bounds;
  struct step_trial t = {.planner = planner};
  int status = lade_planner_get_bounds(planner, &bounds);
  if (status || device_bytes < bounds.min_bytes) {
    *ret_best = NULL;
    return status;
  }
  t.attempts = calloc((size_t)planner->stated.n_peaks + 1, sizeof(*t.attempts));
  status = t.attempts ? budget_steps_try(&t, device_bytes) : -ENOMEM;
  if (!status)
    status = min_compete(&t);
  free(t.attempts);
  if (status) {
    lade_plan_destroy(t.best);
    return status;
  }
  *ret_best = t.best;
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
