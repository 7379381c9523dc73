/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing from the walks.
 *
 * A state of a walk is a candidate just in time, and with copies moved early as far as a rung of a fixed ladder of
 * sizes allows. On each rung a few states are tried: those with the least bound (the busiest queue, which no schedule
 * of theirs can beat) that leave none of the rung, or some per cent of it, to early copies. A budget is answered by the
 * best of all rungs that it reaches, from the highest downwards, until no state that fits a rung has a bound below the
 * best time found. Rungs and states do not depend on the budget, so the answer is the fastest of a set that grows with
 * it: a larger budget is never slower. The last rung is the smallest budget. (For programs that are large, as
 * walk_is_large has it, the ladder is coarse and the first rung that yields a plan ends it, to answer within a second
 * or a few.)
 *
 * The unconstrained peak is one just in time. Where data parallel ranks gather copies and sum gradients it is not all
 * the room that has a use: what comes early and what waits for its bucket lies beside it, and each bundle saves
 * latencies. So there the ladder has rungs above that peak. On the highest one everything kept is as fast as room
 * makes it. A state that gathers copies again is only ever a substitute for that room: where it is predicted faster
 * still it owes that to the chance of its schedule. So none is tried any more once a plan as fast is at hand, and with
 * ample room each copy is gathered once. Never slower then means: never slower than a smaller budget or than that.
 *
 * From rung to rung both the size and the time to beat fall. So what was tried just in time and has won, was too slow
 * or did not fit is not built again, nor are copies moved early twice for one rung, whichever walk comes with it: of
 * all candidates that is more than half.
 *
 * The smallest budget is the smallest packed peak of any state of walks by plain prices. Beside it stands a bound
 * (bound.c).
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lade/pack.h"
#include "plan/plan_internal.h"

#define MIN_PACK_WORK 30000000 /* packing effort, in elementary steps, when looking for the smallest budget */

#define MIN_STATES 12 /* states packed hard, those with the smallest live peaks */
#define MIN_STATES_LARGE 2

#define RUNGS_PER_OCTAVE 24 /* sizes of the ladder: 3 % apart */
#define RUNGS_PER_OCTAVE_LARGE 6
#define RUNG_SLACK 32 /* a 32nd of a rung is left to fragmentation */
#define RUNGS_ABOVE 6 /* the unconstrained peak: twice it, and down to a 32nd more, each with half the room above it */

/* Per cent of a rung that the states tried on it may fill just in time. */
static const int rung_levels[] = {100, 97, 94, 90, 85, 75, 60};
static const int rung_levels_large[] = {100, 85};

static bool is_large(const lade_planner *planner)
{
  return walk_is_large(&planner->params);
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

/* Tokens, targets, step block and results pass through the host: all that is in it at a budget of 0. */
uint64_t planner_host_budget(const struct lade_plan_params *params)
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
  return peak[LADE_DEVICE] <= device_bytes && peak[LADE_HOST] <= planner_host_budget(&planner->params) &&
         peak[LADE_STORE] <= planner->params.store_bytes;
}

/* Fits, or would but for fragmentation: an eighth, or in a budget of few chunks one, as peaks are whole chunks. */
static bool is_near(const lade_planner *planner, const struct lade_program *program, uint64_t device_bytes)
{
  const uint64_t peak_bytes = program->peak_bytes[LADE_DEVICE];
  const uint64_t slack_bytes = LADE_MAX(device_bytes / 8, planner->params.chunk_bytes);
  return program->live_peak_bytes[LADE_DEVICE] <= device_bytes &&
         peak_bytes - LADE_MIN(peak_bytes, slack_bytes) <= device_bytes;
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
  if (!status && (plan->train->predicted_ns >= worst_ns || !is_near(planner, plan->train, device_bytes))) {
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
 * May MIN_PACK_WORK leave a smaller device peak than the fast pass has left in @plan? Not where training is the larger
 * program and has so many buffers that the fast pass was the longer one: a packing that ends sooner is never better.
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
    const bool is_last = residency->prefetch_bytes || pack_work || !may_pack_smaller(plan);
    lade_plan_destroy(plan);
    if (is_last)
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
    status = planner_residency_try(planner, planner->params.layout, residency, device_bytes, worst_ns, ret_plan);
  lade_residency_destroy(residency);
  return status;
}

/* The highest rung. Rung 0 is the unconstrained peak; more than it is of use where data parallel ranks bundle. */
static int rung_first(const lade_planner *planner)
{
  return lade_layout_size(planner->params.layout, LADE_AXIS_DP) > 1 ? -RUNGS_ABOVE : 0;
}

/* Sizes of the ladder, downwards. */
static uint64_t rung_bytes(const lade_planner *planner, int rung)
{
  const uint64_t unconstrained_bytes = planner->bounds.unconstrained_bytes;
  int per_octave = is_large(planner) ? RUNGS_PER_OCTAVE_LARGE : RUNGS_PER_OCTAVE;
  if (rung < 0)
    return unconstrained_bytes + (unconstrained_bytes >> (RUNGS_ABOVE + rung));
  return (uint64_t)((double)unconstrained_bytes * exp2(-(double)rung / per_octave));
}

/* What of a rung copies moved early may fill. */
static uint64_t rung_prefetch_bytes(uint64_t size_bytes)
{
  return size_bytes - size_bytes / RUNG_SLACK;
}

static const struct walk_state *state_get(const lade_planner *planner, const struct candidate *c)
{
  return &planner->walks[c->walk].states.items[c->state];
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

/* What has been tried of a residency in one search, whose sizes and times to beat only ever fall. */
struct attempt {
  bool is_made; /* just in time: it will not do better */
  uint64_t prefetch_bytes; /* the latest of those early */
};

struct trial {
  lade_planner *planner;
  struct lade_plan *best;
  struct attempt *attempts; /* by number of a sight by stated prices */
  bool is_over; /* no smaller rung can be faster */
};

/* Note that @c is tried. Has its residency been, by way of another state maybe, so that nothing can come of it? */
static bool is_tried(struct trial *t, const struct candidate *c, uint64_t prefetch_bytes)
{
  if (c->walk >= t->planner->n_stated)
    return false;
  struct attempt *attempt = &t->attempts[state_get(t->planner, c)->sight];
  bool was_tried = prefetch_bytes ? attempt->prefetch_bytes == prefetch_bytes : attempt->is_made;
  if (prefetch_bytes)
    attempt->prefetch_bytes = prefetch_bytes;
  else
    attempt->is_made = true;
  return was_tried;
}

/* Are working copies dropped in @c that the start keeps? Each is gathered once more then. */
static bool gathers_again(const lade_planner *planner, const struct candidate *c)
{
  const struct walk *w = &planner->walks[c->walk];
  bool is_dropped = false;
  for (int i = 0; i < w->states.items[c->state].n_changes && !is_dropped; i++) {
    const struct lade_change *change = &w->changes.items[i];
    is_dropped = !lade_change_is_home(change) &&
                 planner->params.graph->tensors[change->id].kind == LADE_TENSOR_PARAM;
  }
  return is_dropped;
}

/* Is what was found as good as what @c may come to? */
static bool is_beaten(const struct trial *t, const struct candidate *c)
{
  if (!t->best)
    return false;
  return c->least_ns >= t->best->predicted_ns ||
         (t->best->predicted_ns <= t->planner->ample_ns && gathers_again(t->planner, c));
}

static int candidate_compete(struct trial *t, const struct candidate *c, uint64_t prefetch_bytes, uint64_t size_bytes)
{
  struct lade_plan *plan = NULL;
  if (is_beaten(t, c))
    return 0;
  t->is_over = false;
  if (is_tried(t, c, prefetch_bytes))
    return 0;
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
  /* Above the unconstrained peak there is room for copies early whatever is kept. */
  const uint64_t first_prefetch_bytes =
      size_bytes > t->planner->bounds.unconstrained_bytes ? rung_prefetch_bytes(size_bytes) : 0;
  int status = 0;
  t->is_over = true;
  for (int walk = 0; walk < t->planner->n_stated; walk++) {
    int32_t tried = -1;
    struct candidate first; /* where much is offloaded the bound promises too much; this one keeps what it can */
    if (!status && state_first(t->planner, walk, size_bytes, &first))
      status = candidate_compete(t, &first, first_prefetch_bytes, size_bytes);
    for (int i = 0; i < n_levels && !status; i++) {
      struct candidate c = {0};
      if (!state_pick(t->planner, walk, size_bytes / 100 * (uint64_t)levels[i], &c) || c.state == tried)
        continue;
      status = candidate_compete(t, &c, rung_prefetch_bytes(size_bytes), size_bytes);
      if (!status) /* whatever was found so far, or the set of candidates would depend on the budget */
        status = candidate_compete(t, &c, 0, size_bytes);
      tried = c.state;
    }
  }
  if (is_large(t->planner) && t->best)
    t->is_over = true;
  return status;
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

/*
 * Device peak of a state just in time: packed fast and, unless that comes down to @floor_bytes, with more effort.
 * UINT64_MAX if other tiers overflow.
 */
static int state_pack(const lade_planner *planner, const struct candidate *c, uint64_t floor_bytes,
                      uint64_t *ret_bytes)
{
  uint64_t least_bytes = UINT64_MAX;
  bool is_last = false;
  for (uint64_t pack_work = 0; !is_last; pack_work = MIN_PACK_WORK) {
    struct lade_residency *residency = NULL;
    struct lade_plan *plan = NULL;
    int status = state_residency(planner, c->walk, c->state, 0, &residency);
    if (!status)
      status = plan_build(planner, planner->params.layout, residency, pack_work, UINT64_MAX, INT64_MAX, &plan);
    if (status)
      return status;
    if (plan_fits(planner, plan, UINT64_MAX))
      least_bytes = LADE_MIN(least_bytes, plan->peak_bytes[LADE_DEVICE]);
    is_last = pack_work || least_bytes == floor_bytes || least_bytes == UINT64_MAX || is_large(planner) ||
              !may_pack_smaller(plan);
    lade_plan_destroy(plan);
  }
  *ret_bytes = least_bytes;
  return 0;
}

/* The same, known of a residency that has been packed before. */
static int state_peak(lade_planner *planner, const struct candidate *c, uint64_t floor_bytes, uint64_t *ret_bytes)
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

/* Is entry @i of @order the residency of one before it? Those are as large, and as fast. */
static bool is_listed(const lade_planner *planner, const struct live_order *order, int i)
{
  bool is_same = false;
  for (int k = i - 1; k >= 0 && order[k].live_bytes == order[i].live_bytes && !is_same; k--)
    is_same = state_get(planner, &order[k].candidate)->sight == state_get(planner, &order[i].candidate)->sight;
  return is_same;
}

/* The smallest packed peak: states in the order of their live peaks, until that passes the best found. */
static int min_find(lade_planner *planner, int first, int end, struct candidate *ret_least, uint64_t *ret_bytes)
{
  struct live_order *order = NULL;
  int n = 0, most = is_large(planner) ? MIN_STATES_LARGE : MIN_STATES;
  int status = states_list(planner, first, end, &order, &n);
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < n && (i < most || least == UINT64_MAX) && !status; i++) {
    uint64_t floor = lade_align_up(order[i].live_bytes, planner->params.chunk_bytes), peak = UINT64_MAX;
    if (floor >= least)
      break;
    if (is_listed(planner, order, i))
      continue;
    status = state_peak(planner, &order[i].candidate, floor, &peak);
    if (peak < least) {
      least = peak;
      *ret_least = order[i].candidate;
    }
  }
  free(order);
  *ret_bytes = least;
  return status;
}

/* The fastest that everything kept is in all the room of the ladder; 0: nothing. Walks of early updates come first. */
static int ample_find(lade_planner *planner)
{
  const uint64_t size_bytes = rung_bytes(planner, rung_first(planner));
  int status = 0;
  for (int walk = 0; walk < planner->n_stated && !status; walk++) {
    const struct candidate first = {(int16_t)walk, 0, 0};
    struct lade_plan *plan = NULL;
    if (walk > 0 && planner->walks[walk].is_early == planner->walks[walk - 1].is_early)
      continue; /* it starts where that one does */
    status = candidate_try(planner, &first, rung_prefetch_bytes(size_bytes), size_bytes, INT64_MAX, &plan);
    if (plan && (!planner->ample_ns || plan->predicted_ns < planner->ample_ns))
      planner->ample_ns = plan->predicted_ns;
    lade_plan_destroy(plan);
  }
  return status;
}

/* What everything kept takes, just in time; and where ranks gather copies, how fast it is at best. */
static int unconstrained_find(lade_planner *planner)
{
  const struct lade_layout *layout = planner->params.layout;
  const struct candidate first = {0, 0, 0};
  struct lade_plan *plan = NULL;
  int status = candidate_try(planner, &first, 0, UINT64_MAX, INT64_MAX, &plan);
  if (status)
    return status;
  planner->bounds.unconstrained_bytes = plan ? plan->peak_bytes[LADE_DEVICE] : 0;
  planner->bounds.unconstrained_ns = plan ? plan->predicted_ns : 0;
  lade_plan_destroy(plan);
  bool is_gathering = lade_shard_count(layout) > 1 && layout->zero == LADE_ZERO_MOST;
  return is_gathering ? ample_find(planner) : 0;
}

int lade_planner_get_bounds(lade_planner *planner, struct lade_plan_bounds *ret_bounds)
{
  if (!planner->has_bounds) {
    int status = unconstrained_find(planner);
    if (status)
      return status;
    status = min_find(planner, planner->n_stated, planner->n_walks, &planner->least, &planner->bounds.min_bytes);
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

/* ---- the best in a budget ---- */

/*
 * At the smallest budget: the smallest state of walks by stated prices, which may be as small as the one behind that
 * budget, and faster; then that one, packed as it was when it was found. The first is looked for only if a state that
 * is live in so little has a bound that would win.
 */
static int least_compete(struct trial *t)
{
  lade_planner *planner = t->planner;
  const uint64_t min_bytes = planner->bounds.min_bytes;
  struct candidate c;
  bool may_win = false;
  int status = 0;
  for (int walk = 0; walk < planner->n_stated; walk++)
    may_win |= state_pick(planner, walk, min_bytes, &c) && (!t->best || c.least_ns < t->best->predicted_ns);
  if (may_win) {
    uint64_t stated_bytes;
    c = (struct candidate){0};
    status = min_find(planner, 0, planner->n_stated, &c, &stated_bytes);
    if (!status)
      status = candidate_compete(t, &c, 0, min_bytes);
  }
  return status ? status : candidate_compete(t, &planner->least, 0, min_bytes);
}

static int rungs_try(struct trial *t, uint64_t device_bytes)
{
  const lade_planner *planner = t->planner;
  int status = 0;
  for (int rung = rung_first(planner); !status && !t->is_over; rung++) {
    if (rung_bytes(planner, rung) < planner->bounds.min_bytes)
      break;
    if (rung_bytes(planner, rung) <= device_bytes)
      status = rung_try(t, rung_bytes(planner, rung));
  }
  if (!status && !t->is_over)
    status = rung_try(t, planner->bounds.min_bytes);
  return status;
}

int planner_best(lade_planner *planner, uint64_t device_bytes, struct lade_plan **ret_best)
{
  struct lade_plan_bounds bounds;
  struct trial t = {.planner = planner};
  int status = lade_planner_get_bounds(planner, &bounds);
  if (status || device_bytes < bounds.min_bytes) {
    *ret_best = NULL;
    return status;
  }
  t.attempts = calloc((size_t)planner->stated.n_sights + 1, sizeof(*t.attempts));
  status = t.attempts ? rungs_try(&t, device_bytes) : -ENOMEM;
  if (!status)
    status = least_compete(&t);
  free(t.attempts);
  if (status) {
    lade_plan_destroy(t.best);
    return status;
  }
  *ret_best = t.best;
  return 0;
}
