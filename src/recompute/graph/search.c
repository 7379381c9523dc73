/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search for a schedule that recomputes least within a limit of bytes.
 *
 * Simulated annealing over use-level decisions. A move is small, and its effect on time and bytes is evaluated exactly:
 *
 *   release  let a value go between two turns that touch it; the later one makes it again
 *   hold     keep a value that a turn makes again, from the turn before that touches it
 *   shift    make a value again earlier, in a turn that has the inputs at hand, and hold it from there
 *   exchange hold, and then release other values in the fullest turns until the schedule fits again
 *
 * The energy is the time of all redos plus a price per byte and turn above the limit. The price rises while schedules
 * do not fit and falls while they do, so that the search walks along the limit. Each round cools from a temperature
 * near the time of a typical op to a small part of it, and begins from the best schedule so far. Rounds become longer,
 * so a search without an end of its own goes on to improve.
 *
 * The first schedule comes from a descent: while a turn is above the limit, release the value there that costs least
 * per byte. Everything is a function of problem, limit, seed and number of moves, unless the deadline ends it.
 */
#include "recompute/graph/search.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CANDIDATES 48      /* values that the descent compares for one release */
#define ROUND_MOVES 20000  /* of the first round */
#define ROUND_GROWTH 1.5
#define EXCHANGE_RELEASES 6 /* of one exchange */
#define PRICE_STEP 1.02    /* by which the price of excess bytes changes after PRICE_MOVES moves */
#define PRICE_MOVES 50
#define CLOCK_MOVES 64     /* between two looks at the clock */

struct remat_search {
  const struct remat_search_params *params;
  const struct remat_problem *problem;
  struct remat_schedule schedule;
  struct remat_choices *best; /* the caller's */
  int64_t best_ns;            /* of redos; INT64_MAX: nothing fits so far */
  double best_over;           /* least excess so far, while nothing fits */
  double price;               /* of a byte above the limit in one turn, in ns */
  double temperature;         /* in ns */
  uint64_t random;
  int64_t n_moves;
  bool is_over; /* of time, or nothing is left to improve */
};

/* ---- chance ---- */

/* Return the next number of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t random_next(struct remat_search *search)
{
  uint64_t z = search->random += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static int random_below(struct remat_search *search, int n)
{
  return (int)((random_next(search) >> 32) * (uint64_t)n >> 32);
}

static double random_unit(struct remat_search *search)
{
  return (double)(random_next(search) >> 11) * 0x1p-53;
}

/* ---- single changes ---- */

static bool is_sound(const struct remat_search *search)
{
  return !search->schedule.is_broken && !search->schedule.status;
}

/* Release @value around @boundary, at which it is held. Return false, with nothing changed, if it cannot be remade. */
static bool release_around(struct remat_search *search, int value, int boundary)
{
  const struct remat_value *v = &search->problem->values[value];
  int from = remat_touch_before(&search->schedule, value, boundary) + 1;
  int to = remat_touch_from(&search->schedule, value, boundary);
  for (int i = 0; i < v->n_makers; i++) {
    int maker = search->problem->makers[v->first_maker + i];
    if (maker < to && search->problem->ops[maker].redo_until < to)
      return false;
  }
  remat_release(&search->schedule, value, from, to);
  return true;
}

/* Return a value that is held at @boundary and not @other, by chance; -1 if none was drawn. */
static int held_draw(struct remat_search *search, int boundary)
{
  const int n = search->problem->n_values;
  for (int tries = 0; tries < 3 * CANDIDATES; tries++) {
    int value = random_below(search, n);
    const struct remat_value *v = &search->problem->values[value];
    if (v->birth < boundary && boundary <= v->last_use && v->bytes &&
        remat_is_held(&search->schedule, value, boundary) &&
        remat_touch_from(&search->schedule, value, boundary) != boundary)
      return value;
  }
  return -1;
}

/* Return the fullest of some turns that are drawn by chance; with an excess somewhere, often the fullest of all. */
static int full_turn_draw(struct remat_search *search)
{
  int64_t most;
  if (remat_over(&search->schedule) > 0 && random_below(search, 2))
    return turn_bytes_peak(&search->schedule.bytes, &most);
  int best = random_below(search, search->problem->n_ops + 1);
  for (int i = 0; i < 3; i++) {
    int turn = random_below(search, search->problem->n_ops + 1);
    if (turn_bytes_get(&search->schedule.bytes, turn) > turn_bytes_get(&search->schedule.bytes, best))
      best = turn;
  }
  return best;
}

/* Draw a redo: a turn and a value that it makes again. Return false if there is none. */
static bool redo_draw(struct remat_search *search, int *ret_turn, int *ret_value)
{
  const struct remat_schedule *schedule = &search->schedule;
  if (!schedule->n_redos)
    return false;
  int turn = random_below(search, search->problem->n_ops + 1);
  while (!schedule->turns[turn].redos.n)
    turn = turn == search->problem->n_ops ? 0 : turn + 1;
  const struct remat_turn *t = &schedule->turns[turn];
  const struct remat_op *op = &search->problem->ops[t->redos.items[random_below(search, t->redos.n)]];
  *ret_turn = turn;
  *ret_value = search->problem->edges[op->first_out + random_below(search, op->n_out)].value;
  return !remat_is_held(schedule, *ret_value, turn);
}

/* ---- moves: each returns false if it changed nothing ---- */

static bool move_release(struct remat_search *search)
{
  int turn = full_turn_draw(search), value = held_draw(search, turn);
  return value >= 0 && release_around(search, value, turn);
}

static bool move_hold(struct remat_search *search)
{
  int turn, value;
  if (!redo_draw(search, &turn, &value))
    return false;
  int from = remat_touch_before(&search->schedule, value, turn) + 1;
  remat_hold(&search->schedule, value, from, turn);
  return true;
}

static bool move_shift(struct remat_search *search)
{
  int turn, value;
  if (!redo_draw(search, &turn, &value))
    return false;
  const struct remat_op *op = &search->problem->ops[search->problem->values[value].birth];
  const int before = remat_touch_before(&search->schedule, value, turn);
  int at = before + 1 + random_below(search, turn - before);
  if (op->n_in && random_below(search, 4)) {
    int input = search->problem->edges[op->first_in + random_below(search, op->n_in)].value;
    at = remat_touch_before(&search->schedule, input, turn);
  }
  if (at <= before || at >= turn)
    return false;
  remat_hold(&search->schedule, value, at + 1, turn);
  return true;
}

static bool move_exchange(struct remat_search *search)
{
  if (!(random_below(search, 4) ? move_hold(search) : move_shift(search)))
    return false;
  for (int i = 0; i < EXCHANGE_RELEASES && is_sound(search) && remat_over(&search->schedule) > 0; i++) {
    int64_t most;
    int turn = turn_bytes_peak(&search->schedule.bytes, &most), value = held_draw(search, turn);
    if (value >= 0)
      release_around(search, value, turn);
  }
  return true;
}

static bool move_make(struct remat_search *search)
{
  switch (random_below(search, 8)) {
  case 0:
  case 1:
    return move_release(search);
  case 2:
  case 3:
    return move_hold(search);
  case 4:
    return move_shift(search);
  default:
    return move_exchange(search);
  }
}

/* ---- the best ---- */

static int best_take(struct remat_search *search)
{
  const struct remat_schedule *schedule = &search->schedule;
  bool fits = remat_over(schedule) == 0;
  if (fits ? schedule->redo_ns >= search->best_ns
           : search->best_ns < INT64_MAX || remat_over(schedule) >= search->best_over)
    return 0;
  if (fits) {
    search->best_ns = schedule->redo_ns;
    search->is_over = search->params->stops_at_fit || schedule->redo_ns == 0;
  }
  search->best_over = remat_over(schedule);
  return remat_schedule_save(schedule, search->best);
}

/* Begin again from the best schedule. */
static int best_restore(struct remat_search *search)
{
  remat_schedule_finish(&search->schedule);
  return remat_schedule_init(&search->schedule, search->problem, search->params->limit_bytes,
                             search->best->list.items ? search->best->list.items : (struct remat_choice[1]){{0}},
                             search->best->list.n);
}

/* ---- descent ---- */

/* Release the value that costs least per byte of excess in the fullest turn. Return false if none helps. */
static bool descent_step(struct remat_search *search)
{
  struct remat_schedule *schedule = &search->schedule;
  int64_t most;
  const int turn = turn_bytes_peak(&schedule->bytes, &most);
  const double over = remat_over(schedule);
  const int64_t ns = schedule->redo_ns;
  double best = INFINITY;
  int pick = -1;
  for (int i = 0; i < CANDIDATES; i++) {
    int value = held_draw(search, turn);
    if (value < 0 || !release_around(search, value, turn))
      continue;
    double gain = over - remat_over(schedule), cost = (double)(schedule->redo_ns - ns) + 1;
    double ratio = cost > 0 ? cost / gain : gain;
    if (is_sound(search) && gain > 0 && ratio < best) {
      best = ratio;
      pick = value;
    }
    remat_rollback(schedule);
    if (schedule->status)
      return false;
  }
  search->n_moves += CANDIDATES;
  if (pick >= 0)
    release_around(search, pick, turn);
  remat_commit(schedule);
  return pick >= 0;
}

static void clock_look(struct remat_search *search)
{
  if (lade_now_ns() >= search->params->deadline_ns)
    search->is_over = true;
}

static int descend(struct remat_search *search)
{
  while (remat_over(&search->schedule) > 0 && !search->is_over && descent_step(search))
    clock_look(search);
  return search->schedule.status ? search->schedule.status : best_take(search);
}

/* ---- annealing ---- */

static double energy(const struct remat_search *search)
{
  return (double)search->schedule.redo_ns + search->price * remat_over(&search->schedule);
}

/* Try one move; keep it if the energy allows. */
static int move_try(struct remat_search *search)
{
  const double before = energy(search);
  bool is_made = move_make(search);
  if (search->schedule.status)
    return search->schedule.status;
  if (!is_made || search->schedule.is_broken) {
    remat_rollback(&search->schedule);
    return 0;
  }
  double rise = energy(search) - before;
  if (rise > 0 && random_unit(search) >= exp(-rise / search->temperature)) {
    remat_rollback(&search->schedule);
    return search->schedule.status;
  }
  remat_commit(&search->schedule);
  return best_take(search);
}

/* Cool down over @n moves. */
static int anneal(struct remat_search *search, int64_t n, double hot_ns, double cold_ns)
{
  const double cooling = pow(cold_ns / hot_ns, 1.0 / (double)n);
  search->temperature = hot_ns;
  int status = 0;
  for (int64_t i = 0; i < n && !status && !search->is_over; i++) {
    status = move_try(search);
    search->temperature *= cooling;
    if (i % PRICE_MOVES == 0)
      search->price *= remat_over(&search->schedule) > 0 ? PRICE_STEP : 1 / PRICE_STEP;
    if (i % CLOCK_MOVES == 0)
      clock_look(search);
  }
  search->n_moves += n;
  return status;
}

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

static int search_run(struct remat_search *search)
{
  const double typical = typical_ns(search->problem);
  double round = ROUND_MOVES;
  int status = descend(search);
  search->price = typical / ((double)search->params->limit_bytes / 100 + 1);
  while (!status && !search->is_over && search->n_moves < search->params->n_moves) {
    int64_t left = search->params->n_moves - search->n_moves;
    status = anneal(search, LADE_MIN((int64_t)round, left), typical, typical / 500);
    round *= ROUND_GROWTH;
    if (!status && !search->is_over)
      status = best_restore(search);
  }
  return status;
}

int remat_search(const struct remat_search_params *params, struct remat_choices *choices)
{
  struct remat_search search = {.params = params, .problem = params->problem, .best = choices, .best_ns = INT64_MAX,
                                .best_over = INFINITY, .random = params->seed};
  int status = remat_schedule_init(&search.schedule, params->problem, params->limit_bytes,
                                   choices->list.n ? choices->list.items : NULL, choices->list.n);
  if (status)
    return status;
  status = best_take(&search);
  if (!status && !search.is_over)
    status = search_run(&search);
  remat_schedule_finish(&search.schedule);
  return status ? status : search.best_ns < INT64_MAX ? 0 : -ENOSPC;
}
