/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search for the plan of a caller's step.
 *
 * The smallest budget is searched for first, with a share of the effort, since a refusal names it. From the schedule
 * that holds everything the limit sinks step by step; a step that a search does not reach is halved. The search within
 * the budget begins from the nearest schedule that this has found.
 */
#include "recompute/graph/planning/planning.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "recompute/graph/bound.h"

/*
 * One part in so many of the effort looks for the smallest budget. It does not depend on the budget that is asked for,
 * so that the smallest one is found again when it is asked for.
 */
#define MIN_SHARE 4
#define MIN_ROUNDS 12 /* searches for a smaller budget: each halves the step or lowers the limit by it */
#define MOVES_PER_OP 13500 /* by default, up to MOVES_MAX */
#define MOVES_MAX 1800000
#define OP_MOVES_MAX 1275000000 /* ops times moves: moves of longer graphs take longer */
#define TIERS_OP_MOVES_MAX 125000000 /* the same with tiers, where each move is timed over the whole list */
#define MOVES_MIN 1000
#define FIT_SHARE 0.4 /* of a limit of time, after which a plan without tiers begins from the nearest schedule */
/* With tiers, shares of a limit of time at which parts of a planning end. They follow each other. */
#define FIRST_SHARE 0.4     /* recompute alone within a budget that is given */
#define SMALLEST_SHARE 0.55 /* the smallest budget; half of the time to here by all ways */
#define DESCENTS_SHARE 0.65
#define ALONE_SHARE 0.75    /* recompute alone within the smallest budget */
#define MOVING_SHARE 0.85   /* transfers alone */
#define MIN_STEPS 512 /* the smallest budget is found up to one part in so many of it */
#define NEAR_MIN 16 /* one part in so many above a smallest budget, a plan may still be smaller than that */
#define AGAIN_MIN 4 /* a budget below the smallest by one part in so many is looked for once more: short searches of
                       drawn graphs have ended 1/7 below the smallest budget that they began with */

void graph_planning_finish(struct graph_planning *planning)
{
  remat_choices_free(&planning->smallest);
  remat_choices_free(&planning->nearest);
  remat_choices_free(&planning->choices);
  remat_choices_free(&planning->moved);
  list_time_finish(&planning->links);
  LADE_ARRAY_FREE(&planning->list.instrs);
  remat_problem_finish(&planning->problem);
}

uint64_t graph_planning_limit(const struct remat_problem *problem, uint64_t budget_bytes)
{
  const uint64_t fixed = problem->fixed_bytes;
  return budget_bytes > fixed ? LADE_MIN(budget_bytes - fixed, (uint64_t)1 << 62) : 0;
}

/* Return the end of the part of the time limit that ends at @share of it. */
static int64_t deadline_of(const struct graph_planning *planning, double share)
{
  const int64_t limit_ns = LADE_MIN(planning->params.time_limit_ns, LADE_GRAPH_NS_MAX);
  return limit_ns ? planning->start_ns + (int64_t)((double)limit_ns * share) : INT64_MAX;
}

/* Replace @to by a copy of @from. -ENOMEM. */
static int choices_copy(struct remat_choices *to, const struct remat_choices *from)
{
  to->list.n = to->waiting.n = 0;
  to->is_saved = from->is_saved;
  for (int i = 0; i < from->list.n; i++) {
    if (!LADE_PUSH(&to->list, from->list.items[i]))
      return -ENOMEM;
  }
  for (int i = 0; i < from->waiting.n; i++) {
    if (!LADE_PUSH(&to->waiting, from->waiting.items[i]))
      return -ENOMEM;
  }
  return 0;
}

enum lade_space graph_planning_tier(const struct lade_graph_plan_params *params)
{
  bool has_host = params->host_budget_bytes && params->to_host.bytes_per_s > 0 && params->from_host.bytes_per_s > 0;
  bool has_store = params->store_budget_bytes && params->to_store.bytes_per_s > 0 &&
                   params->from_store.bytes_per_s > 0;
  return has_host ? LADE_HOST : has_store ? LADE_STORE : LADE_DEVICE;
}

/* True if a given storage lives on another tier. */
static bool has_homes(const struct lade_graph *graph)
{
  bool lives_there = false;
  for (int s = 0; s < graph->storages.n && !lives_there; s++)
    lives_there = graph->storages.items[s].is_given && graph->storages.items[s].tier != LADE_DEVICE;
  return lives_there;
}

/* True if storages may wait on another tier, or live there, and the plan may use it. */
static bool has_tiers(const struct graph_planning *planning)
{
  return planning->ways != WAYS_RECOMPUTE &&
         (graph_planning_tier(&planning->params) != LADE_DEVICE || has_homes(planning->graph));
}

/*
 * Return the moves of all searches. Without other tiers a graph of up to SHORT_OPS_MAX ops gets as many as take
 * 3 to 12 s of CPU, because tempering needs them. With tiers a long graph gets fewer, for about the same time: at 25 %
 * of its peak a decoder of 9,957 ops takes 7 s of CPU. At 40 % and above its plan is proved before the first move.
 */
static int64_t moves_of(const struct graph_planning *planning)
{
  const int64_t n_ops = planning->graph->ops.n;
  if (planning->params.iterations)
    return planning->params.iterations;
  if (planning->params.time_limit_ns)
    return INT64_MAX;
  if (has_tiers(planning))
    return LADE_MAX(LADE_MIN(TIERS_OP_MOVES_MAX / LADE_MAX(n_ops, 1), LADE_GRAPH_ITERATIONS), MOVES_MIN);
  if (n_ops > SHORT_OPS_MAX)
    return LADE_GRAPH_ITERATIONS;
  const int64_t max = LADE_MIN(OP_MOVES_MAX / LADE_MAX(n_ops, 1), MOVES_MAX);
  return LADE_MAX(LADE_MIN(n_ops * MOVES_PER_OP, max), LADE_GRAPH_ITERATIONS);
}

/* Let @search use the tiers, if there are any. */
static void tiers_allow(struct graph_planning *planning, struct remat_search_params *search)
{
  search->links = has_tiers(planning) ? &planning->links : NULL;
  search->waiting_bytes[LADE_HOST] = planning->params.host_budget_bytes;
  search->waiting_bytes[LADE_STORE] = planning->params.store_budget_bytes;
}

/* Let @choices be the smallest if their peak is below the smallest budget so far. -ENOMEM. */
static int smallest_take(struct graph_planning *planning, const struct remat_choices *choices)
{
  uint64_t bytes;
  int status = remat_choices_peak(&planning->problem, choices, &bytes);
  if (status || bytes >= planning->info.min_budget_bytes)
    return status;
  planning->info.min_budget_bytes = bytes;
  return choices_copy(&planning->smallest, choices);
}

/*
 * Search from @choices. A schedule whose peak is below *@peak replaces the smallest one, and the nearest one while that
 * is above the budget. -ENOMEM.
 */
static int smaller_try(struct graph_planning *planning, const struct remat_search_params *search,
                       struct remat_choices *choices, uint64_t *peak)
{
  uint64_t found = *peak;
  int status = remat_search(search, choices);
  if (!status || status == -ENOSPC)
    status = remat_choices_peak(&planning->problem, choices, &found);
  if (!status && found < *peak) {
    const uint64_t budget_bytes = planning->params.budget_bytes;
    bool is_nearer = budget_bytes == LADE_GRAPH_BUDGET_MIN || *peak > budget_bytes;
    status = choices_copy(&planning->smallest, choices);
    if (!status && is_nearer)
      status = choices_copy(&planning->nearest, choices);
    *peak = found;
  }
  return status;
}

struct smaller_params {
  uint64_t budget_bytes;
  int64_t n_moves;
  double descent_effort;
  int64_t deadline_ns;
};

/*
 * Look for a schedule within the budget of @smaller. If there are other tiers, the first search is by transfers alone,
 * because they need the fewest operands at one time; the next one begins with the smallest schedule. One whose
 * peak is below *@peak replaces that one, and *@peak becomes its peak. It may still be above the budget.
 * *ret_n_moves: moves made of the next one's.
 */
static int smaller_find(struct graph_planning *planning, const struct smaller_params *smaller, uint64_t *peak,
                        int64_t *ret_n_moves)
{
  struct remat_choices choices = {0};
  struct remat_search_params search = {.problem = &planning->problem,
                                       .limit_bytes = graph_planning_limit(&planning->problem, smaller->budget_bytes),
                                       .deadline_ns = smaller->deadline_ns, .fit_deadline_ns = smaller->deadline_ns,
                                       .seed = planning->params.seed, .descent_effort = smaller->descent_effort,
                                       .stops_at_fit = true};
  tiers_allow(planning, &search);
  search.is_offload = search.links != NULL;
  *ret_n_moves = 0;
  int status = search.is_offload ? smaller_try(planning, &search, &choices, peak) : 0;
  if (!status && *peak > smaller->budget_bytes) {
    search.is_offload = false;
    search.n_moves = search.fit_moves = smaller->n_moves;
    search.ret_n_moves = ret_n_moves;
    status = choices_copy(&choices, &planning->smallest);
    if (!status)
      status = smaller_try(planning, &search, &choices, peak);
  }
  remat_choices_free(&choices);
  return status;
}

/*
 * Lower the smallest peak step by step, halving the step where a search does not reach the next, until it is within
 * @enough_bytes, or until @end_ns. Each search may make a third of the moves that earlier ones left. Descents may do
 * half as much work from one halving to the next: near the floor hardly a release helps, and full descents of 100,000
 * ops would take 4 s each for the last 0.1 % of the budget.
 */
static int min_lower(struct graph_planning *planning, uint64_t enough_bytes, int64_t end_ns)
{
  uint64_t peak = planning->info.unconstrained_bytes;
  const uint64_t floor = planning->info.floor_bytes;
  uint64_t step = (peak - floor) / 2;
  int64_t moves = moves_of(planning) / MIN_SHARE, n_made = 0;
  double effort = 1;
  int status = 0;
  for (int round = 0; round < MIN_ROUNDS && step > peak / MIN_STEPS && peak > enough_bytes && !status; round++) {
    const int64_t now_ns = lade_now_ns(), part_ns = end_ns == INT64_MAX ? 0 : LADE_MAX(end_ns - now_ns, 0) / 3;
    if (now_ns >= end_ns)
      break;
    const struct smaller_params smaller = {.budget_bytes = peak - step, .n_moves = LADE_MAX(moves / 3, 1),
                                           .descent_effort = effort,
                                           .deadline_ns = part_ns ? now_ns + part_ns : end_ns};
    status = smaller_find(planning, &smaller, &peak, &n_made);
    moves = LADE_MAX(moves - n_made, 0);
    effort /= peak > smaller.budget_bytes ? 2 : 1;
    step = peak > smaller.budget_bytes ? step / 2 : LADE_MIN(step, (peak - floor) / 2);
  }
  planning->info.min_budget_bytes = peak;
  return status;
}

/* ---- the plan within the budget ---- */

static struct remat_search_params search_params(const struct graph_planning *planning, uint64_t budget_bytes,
                                                int64_t n_moves, double share)
{
  const int64_t deadline_ns = deadline_of(planning, share);
  return (struct remat_search_params){.problem = &planning->problem,
                                      .limit_bytes = graph_planning_limit(&planning->problem, budget_bytes),
                                      .n_moves = n_moves, .fit_moves = n_moves, .deadline_ns = deadline_ns,
                                      .fit_deadline_ns = deadline_ns, .seed = planning->params.seed,
                                      .descent_effort = 1};
}

/* Plan by recompute alone: in short graphs by tempering, from the best persistent plan if the graph is a chain. */
static int alone_search(struct graph_planning *planning, uint64_t budget_bytes, struct remat_choices *choices)
{
  const int64_t moves = moves_of(planning) - moves_of(planning) / MIN_SHARE;
  struct remat_search_params params = search_params(planning, budget_bytes, moves, 1);
  if (planning->info.min_budget_bytes <= budget_bytes) {
    params.fit_moves = moves / 4;
    params.fit_deadline_ns = deadline_of(planning, FIT_SHARE);
  }
  params.tries_chain = true;
  return remat_search(&params, choices);
}

/*
 * Replace @to, choices of the problem whose given storages may be moved, by @from, choices of the one without. Values
 * have the order of storages in both. -ENOMEM.
 */
static int choices_widen(const struct graph_planning *planning, const struct remat_problem *plain,
                         const struct remat_choices *from, struct remat_choices *to)
{
  to->list.n = to->waiting.n = 0;
  to->is_saved = from->is_saved; /* else both hold everything */
  for (int v = 0, i = 0; i < from->waiting.n && v < planning->problem.n_values; v++) {
    const struct remat_waiting waiting = {v, from->waiting.items[i].tier};
    if (plain->values[from->waiting.items[i].value].storage != planning->problem.values[v].storage)
      continue;
    i++;
    if (!LADE_PUSH(&to->waiting, waiting))
      return -ENOMEM;
  }
  for (int v = 0, i = 0; v < planning->problem.n_values && from->is_saved; v++) {
    const int storage = planning->problem.values[v].storage;
    struct remat_choice choice = {v, remat_span_whole(&planning->problem, v)};
    bool is_known = false;
    for (; i < from->list.n && plain->values[from->list.items[i].value].storage <= storage; i++) {
      is_known = true;
      choice.span = from->list.items[i].span;
      if (!LADE_PUSH(&to->list, choice))
        return -ENOMEM;
    }
    bool is_moved = remat_first_boundary(&planning->problem, v) == 0;
    if (is_moved && !is_known && !LADE_PUSH(&to->list, choice))
      return -ENOMEM;
  }
  return 0;
}

/* True if an op may run again. */
static bool has_redos(const struct graph_planning *planning)
{
  for (int op = 0; op < planning->problem.n_ops; op++) {
    if (planning->problem.ops[op].redo_until >= 0)
      return true;
  }
  return false;
}

/*
 * Begin a planning of the same graph by one way alone, with the effort of such a plan, until @share of the limit of
 * time. By transfers alone no op may run again. -ENOMEM.
 */
static int part_begin(const struct graph_planning *planning, enum planning_ways ways, uint64_t budget_bytes,
                      double share, struct graph_planning *part)
{
  *part = (struct graph_planning){.graph = planning->graph, .params = planning->params, .error = planning->error,
                                  .best_ns = INFINITY, .start_ns = lade_now_ns(), .ways = ways};
  part->params.budget_bytes = budget_bytes;
  if (part->params.time_limit_ns)
    part->params.time_limit_ns = LADE_MAX(deadline_of(planning, share) - part->start_ns, 1);
  if (ways == WAYS_HOMES)
    part->params.host_budget_bytes = part->params.store_budget_bytes = 0;
  const enum lade_space tier = ways == WAYS_RECOMPUTE ? LADE_DEVICE : graph_planning_tier(&part->params);
  int status = remat_problem_init(&part->problem, planning->graph, tier);
  for (int op = 0; op < part->problem.n_ops && !status && ways == WAYS_TRANSFERS; op++)
    part->problem.ops[op].redo_until = -1;
  return status ? status : list_time_init(&part->links, &part->problem, &part->params);
}

/* Replace @to by choices of @part, not one of all ways, as choices of the problem of all ways. -ENOMEM. */
static int part_choices_get(const struct graph_planning *planning, const struct graph_planning *part,
                            const struct remat_choices *from, struct remat_choices *to)
{
  return part->ways == WAYS_TRANSFERS ? choices_copy(to, from) : choices_widen(planning, &part->problem, from, to);
}

/*
 * Plan by one way alone, with the effort of such a plan. So a plan by all ways is not slower. @choices become those of
 * the problem of all ways. -ENOSPC: nothing was found.
 */
static int part_plan(const struct graph_planning *planning, enum planning_ways ways, uint64_t budget_bytes,
                     double share, struct remat_choices *choices)
{
  struct graph_planning part;
  int status = part_begin(planning, ways, budget_bytes, share, &part);
  if (!status && ways == WAYS_TRANSFERS) {
    part.info = planning->moved_info;
    status = choices_copy(&part.smallest, &planning->moved);
  }
  if (!status)
    status = graph_planning_search(&part, budget_bytes);
  if (!status)
    status = part_choices_get(planning, &part, &part.choices, choices);
  graph_planning_finish(&part);
  return status;
}

/* Let the plan hold everything, as it does before any is found. */
static void choices_clear(struct graph_planning *planning)
{
  planning->choices.list.n = planning->choices.waiting.n = 0;
  planning->choices.is_saved = false;
  planning->best_ns = INFINITY;
}

/* Let @choices be the plan if they fit the budget in less time than the present ones. -ENOMEM. */
static int choices_take(struct graph_planning *planning, uint64_t budget_bytes, const struct remat_choices *choices)
{
  struct remat_schedule schedule;
  int status = remat_schedule_load(&schedule, &planning->problem,
                                   graph_planning_limit(&planning->problem, budget_bytes), choices);
  if (status)
    return status;
  const double ns = list_time_get(&planning->links, &schedule);
  bool is_better = !schedule.is_broken && remat_over(&schedule) == 0 && ns < planning->best_ns;
  remat_schedule_finish(&schedule);
  if (!is_better)
    return 0;
  planning->best_ns = ns;
  return choices_copy(&planning->choices, choices);
}

/* Search with the tiers in one of three ways, and let the result be the plan if it is the best. */
static int tiers_search(struct graph_planning *planning, uint64_t budget_bytes, struct remat_search_params params)
{
  struct remat_choices choices = {0};
  tiers_allow(planning, &params);
  int status = remat_search(&params, &choices);
  if (!status)
    status = choices_take(planning, budget_bytes, &choices);
  remat_choices_free(&choices);
  return status == -ENOSPC ? 0 : status;
}

/* Let the better one of a descent with both ways and one by transfers alone be the plan; both take little time. */
static int descents_take(struct graph_planning *planning, uint64_t budget_bytes)
{
  struct remat_search_params params = search_params(planning, budget_bytes, 0, DESCENTS_SHARE);
  int status = tiers_search(planning, budget_bytes, params);
  params.is_offload = true;
  return status ? status : tiers_search(planning, budget_bytes, params);
}

int graph_planning_bound(struct graph_planning *planning, uint64_t budget_bytes, int64_t known_ns)
{
  struct remat_search_params tiers = {.problem = &planning->problem};
  tiers_allow(planning, &tiers);
  struct remat_bound_params params = {.problem = &planning->problem,
                                      .limit_bytes = graph_planning_limit(&planning->problem, budget_bytes),
                                      .links = tiers.links, .known_ns = known_ns};
  for (int tier = LADE_HOST; tier <= LADE_STORE; tier++)
    params.may_wait[tier] = remat_may_wait(&tiers, (enum lade_space)tier);
  return remat_bound_find(&params, &planning->info.bound_ns);
}

/* Set *@is_proved if the bound shows that no step within the budget is faster than the plan. */
static int proof_find(struct graph_planning *planning, uint64_t budget_bytes, bool *is_proved)
{
  int status = 0;
  if (!isinf(planning->best_ns))
    status = graph_planning_bound(planning, budget_bytes, (int64_t)planning->best_ns);
  *is_proved = !status && planning->best_ns <= (double)planning->info.bound_ns;
  return status;
}

/*
 * Let the best plan by one way be the plan if it is the best. It may also be the smallest schedule, since a plan by
 * recompute alone states its own peak if that is below the smallest budget. -ENOMEM.
 */
static int part_take(struct graph_planning *planning, enum planning_ways ways, uint64_t budget_bytes, double share)
{
  struct remat_choices choices = {0};
  int status = part_plan(planning, ways, budget_bytes, share, &choices);
  if (!status)
    status = choices_take(planning, budget_bytes, &choices);
  if (!status)
    status = smallest_take(planning, &choices);
  remat_choices_free(&choices);
  return status == -ENOSPC ? 0 : status;
}

/* True if a plan by recompute alone within @budget_bytes may be smaller than the smallest budget found that way. */
static bool is_near_min(uint64_t budget_bytes, uint64_t alone_min_bytes)
{
  return budget_bytes <= alone_min_bytes + alone_min_bytes / NEAR_MIN;
}

/*
 * True if recompute alone comes first. Within a limit of time, the search for the smallest budget of a long graph may
 * leave it no time. But a plan with tiers has to exist wherever recompute alone finds one.
 */
static bool is_alone_first(const struct graph_planning *planning)
{
  return planning->params.time_limit_ns && planning->params.budget_bytes != LADE_GRAPH_BUDGET_MIN &&
         planning->ways == WAYS_ALL && has_tiers(planning) && has_redos(planning);
}

/*
 * Plan with other tiers. Candidates are descents, the plans by recompute alone and by transfers alone, and the smallest
 * schedule. The search goes on from the best of them, and its gets are placed once more. If a descent takes no longer
 * than the bound, it is the plan, and recompute alone is only looked at for a smaller schedule. If no op may run again,
 * a first search by transfers takes the place of the two plans. If storages live on other tiers, recompute alone has
 * their transfers: it is a plan without budgets there. Long graphs leave that out, because it doubles their time.
 */
static int mixed_search(struct graph_planning *planning, uint64_t budget_bytes)
{
  const int64_t moves = moves_of(planning) - moves_of(planning) / MIN_SHARE;
  bool has_guests = graph_planning_tier(&planning->params) != LADE_DEVICE;
  bool has_both = has_guests && has_homes(planning->graph) && planning->graph->ops.n <= SHORT_OPS_MAX;
  bool is_alone_due = has_redos(planning) && !is_alone_first(planning);
  bool is_proved = false;
  int status = descents_take(planning, budget_bytes);
  if (!status)
    status = proof_find(planning, budget_bytes, &is_proved);
  if (!status && is_proved && is_alone_due && is_near_min(budget_bytes, planning->alone_min_bytes))
    return part_take(planning, WAYS_RECOMPUTE, budget_bytes, ALONE_SHARE);
  if (status || is_proved)
    return status;
  if (has_both || is_alone_due)
    status = part_take(planning, has_both ? WAYS_HOMES : WAYS_RECOMPUTE, budget_bytes, ALONE_SHARE);
  if (!status && has_redos(planning))
    status = part_take(planning, WAYS_TRANSFERS, budget_bytes, MOVING_SHARE);
  struct remat_search_params params = search_params(planning, budget_bytes, moves / 2, MOVING_SHARE);
  params.is_offload = true;
  if (!status && !has_redos(planning))
    status = tiers_search(planning, budget_bytes, params);
  if (!status)
    status = choices_take(planning, budget_bytes, &planning->smallest);
  if (status)
    return status;
  params = search_params(planning, budget_bytes, moves - moves / 2, 1);
  tiers_allow(planning, &params);
  status = remat_search(&params, &planning->choices);
  params.n_moves = 0;
  return status ? status : remat_search(&params, &planning->choices);
}

/*
 * Plan within the budget. If nothing is found, begin from the nearest schedule. It does not depend on the effort that
 * the search for the smallest budget took. So a plan with tiers finds the same plan of recompute alone.
 */
static int budget_search(struct graph_planning *planning, uint64_t budget_bytes)
{
  if (has_tiers(planning))
    return mixed_search(planning, budget_bytes);
  int status = alone_search(planning, budget_bytes, &planning->choices);
  if (status != -ENOSPC || planning->info.min_budget_bytes > budget_bytes)
    return status;
  const int64_t moves = moves_of(planning) - moves_of(planning) / MIN_SHARE;
  struct remat_search_params params = search_params(planning, budget_bytes, moves - moves / 2, 1);
  status = choices_copy(&planning->choices, &planning->nearest);
  return status ? status : remat_search(&params, &planning->choices);
}

/*
 * Look again for a plan within @budget_bytes, up to a quarter less than the smallest one. The search within the
 * smallest budget may end below it, and then states its peak as the smallest. It is repeated from the same start, from
 * which it finds the same plan. -ENOSPC: that plan is larger.
 */
static int smallest_search(struct graph_planning *planning, uint64_t budget_bytes)
{
  const uint64_t min = planning->info.min_budget_bytes;
  uint64_t peak = 0;
  if (budget_bytes >= min || budget_bytes < planning->info.floor_bytes || budget_bytes < min - min / AGAIN_MIN)
    return -ENOSPC;
  choices_clear(planning);
  int status = budget_search(planning, min);
  if (!status)
    status = remat_choices_peak(&planning->problem, &planning->choices, &peak);
  return status ? status : peak <= budget_bytes ? 0 : -ENOSPC;
}

static int smallest_find(struct graph_planning *planning, uint64_t enough_bytes);

/* Take the smallest schedule that is found by one way until @share of a limit of time, if it is smaller. -ENOMEM. */
static int min_part_take(struct graph_planning *planning, enum planning_ways ways, double share)
{
  struct graph_planning part;
  struct remat_choices choices = {0};
  if (lade_now_ns() >= deadline_of(planning, share))
    return 0;
  int status = part_begin(planning, ways, LADE_GRAPH_BUDGET_MIN, share, &part);
  if (!status)
    status = smallest_find(&part, 0);
  if (!status && ways == WAYS_RECOMPUTE)
    planning->alone_min_bytes = part.info.min_budget_bytes;
  if (!status && ways == WAYS_TRANSFERS) {
    planning->moved_info = part.info;
    status = choices_copy(&planning->moved, &part.smallest);
  }
  if (!status)
    status = part_choices_get(planning, &part, &part.smallest, &choices);
  if (!status)
    status = smallest_take(planning, &choices);
  remat_choices_free(&choices);
  graph_planning_finish(&part);
  return status;
}

/*
 * Find the smallest budgets by one way alone. If that of recompute alone is as good as all, and the smallest plan is
 * asked for, that plan by recompute alone is taken too, as its peak may be smaller. -ENOMEM.
 */
static int min_parts_take(struct graph_planning *planning)
{
  int status = min_part_take(planning, WAYS_RECOMPUTE, SMALLEST_SHARE);
  if (!status)
    status = min_part_take(planning, WAYS_TRANSFERS, SMALLEST_SHARE);
  bool is_asked = planning->params.budget_bytes == LADE_GRAPH_BUDGET_MIN && planning->alone_min_bytes &&
                  is_near_min(planning->alone_min_bytes, planning->info.min_budget_bytes);
  if (status || !is_asked)
    return status;
  status = part_take(planning, WAYS_RECOMPUTE, planning->alone_min_bytes, SMALLEST_SHARE);
  choices_clear(planning); /* the plan itself follows later */
  return status;
}

/* Return when the search for the smallest budget by all ways of @planning ends. */
static int64_t min_deadline(const struct graph_planning *planning)
{
  const int64_t end_ns = deadline_of(planning, SMALLEST_SHARE), now_ns = lade_now_ns();
  if (!has_tiers(planning))
    return deadline_of(planning, 1.0 / MIN_SHARE);
  return end_ns == INT64_MAX ? INT64_MAX : now_ns + LADE_MAX(end_ns - now_ns, 0) / 2;
}

/*
 * Find the figures of the graph, and the smallest budget, or one within @enough_bytes. With tiers the smallest ones by
 * one way alone are looked for, too, unless the first is the floor, or as good as that in a long graph. -ENOMEM.
 */
static int smallest_find(struct graph_planning *planning, uint64_t enough_bytes)
{
  struct lade_graph_plan_info *info = &planning->info;
  const struct remat_choices everything = {.is_saved = false};
  info->floor_bytes = planning->problem.floor_bytes;
  info->base_ns = planning->problem.base_ns;
  int status = remat_choices_peak(&planning->problem, &everything, &info->unconstrained_bytes);
  if (!status)
    status = min_lower(planning, enough_bytes, min_deadline(planning));
  if (status)
    return status;
  const uint64_t gain_bytes = info->min_budget_bytes - info->floor_bytes;
  bool is_long = planning->graph->ops.n > SHORT_OPS_MAX;
  bool is_floor = gain_bytes <= (is_long ? info->min_budget_bytes / (MIN_STEPS / 2) : 0);
  return is_floor || !has_tiers(planning) || !has_redos(planning) ? 0 : min_parts_take(planning);
}

int graph_planning_search(struct graph_planning *planning, uint64_t budget_bytes)
{
  struct lade_graph_plan_info *info = &planning->info;
  bool is_min = budget_bytes == LADE_GRAPH_BUDGET_MIN, is_known = info->min_budget_bytes > 0;
  int status = is_alone_first(planning) ? part_take(planning, WAYS_RECOMPUTE, budget_bytes, FIRST_SHARE) : 0;
  if (!status && !is_known)
    status = smallest_find(planning, planning->ways == WAYS_RECOMPUTE ? budget_bytes : 0);
  if (!status && !isinf(planning->best_ns))
    status = smallest_take(planning, &planning->choices);
  if (status)
    return status;
  do { /* a plan by recompute alone may lower the smallest budget, which then is planned for */
    if (is_min)
      choices_clear(planning);
    budget_bytes = is_min ? info->min_budget_bytes : budget_bytes;
    status = budget_bytes < info->floor_bytes ? -ENOSPC : budget_search(planning, budget_bytes);
  } while (is_min && !status && info->min_budget_bytes < budget_bytes);
  return status == -ENOSPC ? smallest_search(planning, budget_bytes) : status;
}
