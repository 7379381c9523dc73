/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search for a schedule that recomputes least within a limit of bytes.
 *
 * Simulated annealing over use-level decisions. A move (moves.c) is small, and its effect on time and bytes is
 * evaluated exactly.
 *
 * The energy is the time of all redos plus a price per byte and turn above the limit. The price rises while schedules
 * do not fit and falls while they do, so that the search walks along the limit.
 *
 * The first schedule comes from a descent (descent.c). Each round then anneals the whole problem once, from a
 * temperature near the time of a typical op, and afterwards windows: the values born near one or two ops, for a
 * thousand moves each, kept if the result fits and is no slower. Windows keep their pace on long graphs. A round ends
 * when many windows in a row gained nothing; the next one begins from the best schedule. In a graph of up to
 * SHORT_OPS_MAX ops the second round begins from the schedule that holds least. A descent from the schedule that holds
 * everything may end where no single move improves it.
 *
 * In a long graph without other tiers, the layers of a round's schedule first take the decisions of single ones
 * (repeat.c). Windows refine them.
 *
 * In a graph of up to SHORT_OPS_MAX ops without other tiers, rounds have no windows. They end with the first schedule
 * within the limit, or after ROUNDS_WITHOUT_FIT of them. Parallel tempering (temper.c) follows, because rounds from the
 * best schedule keep its structure and end where they began.
 *
 * Everything is a function of problem, limit, seed and number of moves, unless the deadline ends it. Rejected: the
 * integer program itself (Checkmate's), which takes hours at 300 ops.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recompute/graph/chain.h"
#include "recompute/graph/descent.h"
#include "recompute/graph/search/search_state.h"

#define ROUND_MOVES 100    /* of the first round for each op, within the two limits */
#define ROUND_MOVES_MIN 4000
#define ROUND_MOVES_MAX 20000
#define ROUND_GROWTH 2.0    /* after two rounds of one length */
#define ANNEAL_OPS_MAX 5000 /* in longer graphs ROUND_MOVES_MAX moves over the whole do harm; windows alone help */
#define FRESH_ROUNDS 5
#define ROUNDS_WITHOUT_FIT 2 /* after which tempering looks for the first schedule within the limit */
#define HOPE 0.002 /* part of the step by which a fresh schedule may be slower than the best for windows to go on */
#define CHAIN_SHARES 6     /* plans of a chain that are tried */
#define CHAIN_STEP 0.01    /* part of the limit by which the next one has less */

/* ---- rounds ---- */

/*
 * Begin a round. In short graphs the second one, and every other one while nothing fits, begins from the schedule that
 * holds least, unless the search is by transfers alone. Every FRESH_ROUNDS-th one of a short graph begins from that
 * schedule or from another descent, in turns, because moves do not lead from each good schedule to each other. All
 * other rounds begin from the best schedule.
 */
static int round_begin(struct remat_state *search, int round)
{
  bool has_fit = search->best_ns < INT64_MAX, is_short = search->problem->n_ops <= SHORT_OPS_MAX;
  bool is_fresh = round % FRESH_ROUNDS == FRESH_ROUNDS - 1 && has_fit && is_short;
  bool is_released = is_short && !search->params->is_offload && round & 1 && (round == 1 || !has_fit || is_fresh);
  if (is_released) {
    int status = remat_search_release(search);
    if (status || !search->schedule.is_broken)
      return status;
    /* A value would be made again after the last use of an input that cannot be: this graph has no such schedule. */
  }
  if (is_fresh) {
    const struct remat_choices none = {.is_saved = false};
    int status = remat_search_restart(search, &none);
    return status ? status : remat_search_descend(search, true);
  }
  return remat_search_restart(search, search->best);
}

/* ---- chains ---- */

/* Let the schedule be the plan of @chain within @share of the limit, and descend from it if it is a little larger. */
static int chain_load(struct remat_state *search, const struct remat_chain *chain, double share)
{
  struct remat_choices choices = {0};
  int status = remat_chain_plan(chain, share, &choices);
  if (!status)
    status = remat_search_restart(search, &choices);
  remat_choices_free(&choices);
  if (status)
    return status;
  remat_waste_release(&search->schedule);
  if (search->schedule.status || search->schedule.is_broken)
    return search->schedule.status ? search->schedule.status : -ENOSPC;
  remat_commit(&search->schedule);
  return remat_search_descend(search, false);
}

/* If the problem is a chain, look for a better schedule among its plans within the limit and somewhat less. */
static int chain_search(struct remat_state *search)
{
  struct remat_chain *chain;
  int status = remat_chain_create(search->problem, search->params->limit_bytes, &chain);
  if (status)
    return status == -ENOENT ? 0 : status;
  for (int i = 0; i < CHAIN_SHARES && !status && !search->is_over; i++) {
    status = chain_load(search, chain, 1 - CHAIN_STEP * i);
    if (status == -ENOSPC)
      break;
  }
  remat_chain_destroy(chain);
  if (status == -ENOMEM)
    return status;
  return remat_search_restart(search, search->best);
}

/* ---- the whole ---- */

/* Return the mean time of ops that may run again, at least 1. */
static double typical_ns(const struct remat_problem *problem)
{
  double sum = 0, n = 0;
  for (int op = 0; op < problem->n_ops; op++) {
    sum += problem->ops[op].redo_until >= 0 ? (double)problem->ops[op].ns : 0;
    n += problem->ops[op].redo_until >= 0;
  }
  return n > 0 && sum > n ? sum / n : 1;
}

/* Return the largest time of an op that may run again, at least 1. */
static double largest_ns(const struct remat_problem *problem)
{
  double max = 1;
  for (int op = 0; op < problem->n_ops; op++)
    max = problem->ops[op].redo_until >= 0 ? LADE_MAX(max, (double)problem->ops[op].ns) : max;
  return max;
}

/* True if tempering takes over after the first rounds. */
static bool is_tempered(const struct remat_state *search)
{
  return search->problem->n_ops <= SHORT_OPS_MAX && !search->params->links;
}

static int search_run(struct remat_state *search)
{
  const double typical = search->typical_ns;
  double moves = (double)LADE_MIN(LADE_MAX((int64_t)search->problem->n_ops * ROUND_MOVES, ROUND_MOVES_MIN),
                                  ROUND_MOVES_MAX);
  int status = remat_search_descend(search, true);
  if (!status && search->params->tries_chain && !search->is_over)
    status = chain_search(search);
  search->price = typical / ((double)search->params->limit_bytes / 100 + 1);
  for (int round = 0; !status && !search->is_over; round++) {
    bool fits = search->best_ns < INT64_MAX;
    int64_t left = (fits ? search->params->n_moves : search->params->fit_moves) - search->n_moves;
    if (left <= 0)
      break;
    if (round)
      status = round_begin(search, round);
    bool is_fresh = round >= 2 && fits && round % FRESH_ROUNDS == FRESH_ROUNDS - 1;
    const double hot = typical * (round < 2 || !fits || is_fresh ? 1 : pow(10, -2 * remat_random_unit(search)));
    bool is_fit = remat_over(&search->schedule) == 0;
    if (!status && !(is_fit && search->problem->n_ops > ANNEAL_OPS_MAX))
      status = remat_anneal(search, LADE_MIN((int64_t)moves, left), hot, hot / 500);
    if (!status && fits && !search->is_over) /* the annealing may end a little above the limit */
      status = remat_search_descend(search, false);
    if (!status && fits && !search->is_over && !is_tempered(search) && !search->params->links)
      status = remat_repeat(search);
    const double near_ns = (double)search->best_ns + HOPE * (double)search->problem->base_ns;
    bool is_near = round < 2 || remat_cost_get(search) < near_ns;
    if (!status && remat_over(&search->schedule) == 0 && is_near && !is_tempered(search))
      status = remat_windows_anneal(search);
    moves *= round & 1 && !fits ? ROUND_GROWTH : 1;
    bool is_due = search->best_ns < INT64_MAX || round + 1 >= ROUNDS_WITHOUT_FIT;
    if (!status && is_due && is_tempered(search))
      return search->is_over ? 0 : remat_temper(search);
  }
  return status;
}

int remat_search(const struct remat_search_params *params, struct remat_choices *choices)
{
  struct remat_state search = {.params = params, .problem = params->problem, .best = choices, .best_ns = INT64_MAX,
                                .best_over = INFINITY, .random = params->seed,
                                .typical_ns = typical_ns(params->problem),
                                .largest_ns = largest_ns(params->problem), .price = 1};
  int status = remat_search_restart(&search, choices);
  if (status)
    return status;
  status = remat_best_take(&search);
  if (!status && !search.is_over)
    status = search_run(&search);
  remat_schedule_finish(&search.schedule);
  if (params->ret_n_moves)
    *params->ret_n_moves = search.n_moves;
  return status ? status : search.best_ns < INT64_MAX ? 0 : -ENOSPC;
}
