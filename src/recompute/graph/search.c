/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search for a schedule that recomputes least within a limit of bytes.
 *
 * Simulated annealing over use-level decisions. A move is small, and its effect on time and bytes is evaluated exactly:
 *
 *   release   let a value go between two turns that touch it; the later one makes it again
 *   hold      keep a value that a turn makes again, from the turn before that touches it
 *   shift     make a value again earlier, in a turn that has the inputs at hand, and hold it from there
 *   segment   release the values of some ops in a row, and let the chain that makes them again run once
 *   exchange  hold one value or all that a turn makes again, then release others in the fullest turns until it fits
 *
 * The energy is the time of all redos plus a price per byte and turn above the limit. The price rises while schedules
 * do not fit and falls while they do, so that the search walks along the limit.
 *
 * The first schedule comes from a descent (descent.c). Each round then anneals the whole problem once, from a
 * temperature near the time of a typical op, and afterwards windows: the values born near one or two ops, for a
 * thousand moves each, kept if the result fits and is no slower. Windows keep their pace on long graphs. A round ends
 * when many windows in a row gained nothing; the next one begins from the best schedule, the second one from the
 * schedule that holds least, since a descent from the one that holds everything may end where no single move goes on.
 *
 * Everything is a function of problem, limit, seed and number of moves, unless the deadline ends it. Rejected: the
 * integer program itself (Checkmate's), which takes hours at 300 ops.
 */
#include "recompute/graph/search.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recompute/graph/chain.h"
#include "recompute/graph/descent.h"

#define ROUND_MOVES 100    /* of the first round for each op, within the two limits */
#define ROUND_MOVES_LEAST 4000
#define ROUND_MOVES_MOST 20000
#define ROUND_GROWTH 2.0    /* after two rounds of one length */
#define ANNEAL_OPS_MOST 5000 /* in longer graphs ROUND_MOVES_MOST moves over the whole do harm; windows alone help */
#define CANDIDATES 48 /* values that a descent by chance compares for one release */
#define FRESH_ROUNDS 5
#define HOPE 0.002 /* part of the step by which a fresh schedule may be slower than the best for windows to go on */
#define RELEASED_OPS_MOST 2000 /* where nothing is held, redos are the square of the ops */
#define EXCHANGE_RELEASES 6 /* of one exchange */
#define SEGMENT_MOST 8      /* ops whose values a move releases together */
#define HELD_TRIES 128
#define REDO_TRIES 64
#define SAVE_SHARE 512      /* a search looks for its best after one move in so many values */
#define WINDOW_LEAST 4      /* ops at least to each side of the window's first one, and more by chance */
#define WINDOW_MORE 40
#define WINDOW_VALUES 512
#define WINDOW_MOVES 1000
#define WINDOW_PRICE_STEP 1.3
#define WINDOWS_LEAST 20    /* windows without a gain that end a round, and more for longer graphs */
#define WINDOWS_PER_OPS 2
#define PRICE_STEP 1.02    /* by which the price of excess bytes changes after PRICE_MOVES moves */
#define PRICE_MOVES 50
#define CLOCK_MOVES 64     /* between two looks at the clock */
#define CHAIN_SHARES 6     /* plans of a chain that are tried */
#define CHAIN_STEP 0.01    /* part of the limit by which the next one has less */

struct remat_search {
  const struct remat_search_params *params;
  const struct remat_problem *problem;
  struct remat_schedule schedule;
  struct remat_choices *best; /* the caller's */
  int64_t best_ns;            /* of redos; INT64_MAX: nothing fits so far */
  double best_over;           /* least excess so far, while nothing fits */
  double price;               /* of a byte above the limit in one turn, in ns */
  double temperature;         /* in ns */
  const int32_t *window;      /* values that moves may change; NULL: all */
  int n_window;
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

/* ---- cost ---- */

/* Return the time of the step beyond that of all ops once. */
static double cost_get(struct remat_search *search)
{
  const struct remat_schedule *schedule = &search->schedule;
  if (!schedule->n_waits || !search->params->links)
    return (double)schedule->redo_ns;
  return list_time_get(search->params->links, schedule) - (double)search->problem->base_ns;
}

static double energy(struct remat_search *search)
{
  return cost_get(search) + search->price * remat_over(&search->schedule);
}

/* ---- single changes ---- */

static bool is_sound(const struct remat_search *search)
{
  return !search->schedule.is_broken && !search->schedule.status && remat_waiting_fits(&search->schedule);
}

/* Return a value of the window. */
static int value_draw(struct remat_search *search)
{
  return search->window ? search->window[random_below(search, search->n_window)]
                        : random_below(search, search->problem->n_values);
}

/* True if moves may release @value: a given one only if it has links to a tier. */
static bool may_release(const struct remat_search *search, int value)
{
  return search->params->links || !remat_is_given(search->problem, value);
}

/* Return a value that is held at @boundary and not used there, by chance; -1 if none was drawn. */
static int held_draw(struct remat_search *search, int boundary)
{
  for (int tries = 0; tries < HELD_TRIES; tries++) {
    int value = value_draw(search);
    const struct remat_value *v = &search->problem->values[value];
    if (v->birth < boundary && v->bytes && may_release(search, value) &&
        remat_is_held(&search->schedule, value, boundary) &&
        remat_touch_from(&search->schedule, value, boundary) != boundary)
      return value;
  }
  return -1;
}

/*
 * Draw a turn to release in. With an excess often the fullest of all; else where a value of the window is held, or the
 * fullest of some that are drawn by chance.
 */
static int full_turn_draw(struct remat_search *search)
{
  int64_t most;
  if (remat_over(&search->schedule) > 0 && random_below(search, 2))
    return turn_bytes_peak(&search->schedule.bytes, &most);
  if (search->window) {
    const int value = value_draw(search), first = remat_first_boundary(search->problem, value);
    const struct remat_value *v = &search->problem->values[value];
    return first <= v->last_use ? first + random_below(search, v->last_use - first + 1) : LADE_MAX(v->birth, 0);
  }
  int best = random_below(search, search->problem->n_ops + 1);
  for (int i = 0; i < 3; i++) {
    int turn = random_below(search, search->problem->n_ops + 1);
    if (turn_bytes_get(&search->schedule.bytes, turn) > turn_bytes_get(&search->schedule.bytes, best))
      best = turn;
  }
  return best;
}

/* Draw a redo: a turn and a value that it makes again. Return false if none was drawn. */
static bool redo_draw(struct remat_search *search, int *ret_turn, int *ret_value)
{
  const struct remat_schedule *schedule = &search->schedule;
  for (int tries = 0; tries < REDO_TRIES && schedule->n_redos; tries++) {
    const int value = value_draw(search);
    const struct remat_holding *holding = &schedule->holdings[value];
    const int turn = holding->touches.items[random_below(search, holding->touches.n)].turn;
    if (remat_is_redone_at(&search->schedule, value, turn)) {
      *ret_turn = turn;
      *ret_value = value;
      return true;
    }
  }
  return false;
}

/* ---- moves: each returns false if it changed nothing ---- */

static bool move_release(struct remat_search *search)
{
  int turn = full_turn_draw(search), value = held_draw(search, turn);
  return value >= 0 && remat_release_around(&search->schedule, value, turn);
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
  const int before = remat_touch_before(&search->schedule, value, turn);
  const int maker = remat_is_given(search->problem, value) ? remat_get_op(search->problem, value)
                                                           : search->problem->values[value].birth;
  const struct remat_op *op = &search->problem->ops[maker];
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

/* Release neighbours in the order of ops at one turn, and let the chain that makes them again run once. */
static bool move_segment(struct remat_search *search)
{
  const struct remat_problem *problem = search->problem;
  const int turn = full_turn_draw(search), value = held_draw(search, turn);
  if (value < 0)
    return false;
  if (remat_is_given(problem, value))
    return remat_release_around(&search->schedule, value, turn);
  int redo_turn = INT32_MAX;
  const int birth = problem->values[value].birth, length = 1 + random_below(search, SEGMENT_MOST);
  for (int op = birth; op < birth + length && op < turn && is_sound(search); op++) {
    for (int i = 0; i < problem->ops[op].n_out && is_sound(search); i++) {
      int other = problem->edges[problem->ops[op].first_out + i].value;
      if (problem->values[other].birth != op || problem->values[other].last_use < turn ||
          !remat_is_held(&search->schedule, other, turn))
        continue;
      int next = remat_touch_from(&search->schedule, other, turn);
      if (next != turn && remat_release_around(&search->schedule, other, turn))
        redo_turn = LADE_MIN(redo_turn, next);
    }
  }
  if (redo_turn != INT32_MAX && is_sound(search))
    remat_row_hold(&search->schedule, redo_turn, random_next(search));
  return true;
}

/* Hold everything that the redos of one turn make, from the turns before that touch it: the turn redoes nothing. */
static bool move_hold_row(struct remat_search *search)
{
  int turn, value;
  if (!redo_draw(search, &turn, &value))
    return false;
  while (search->schedule.turns[turn].redos.n && is_sound(search)) {
    const struct remat_turn *t = &search->schedule.turns[turn];
    const struct remat_op *op = &search->problem->ops[t->redos.items[t->redos.n - 1]];
    const int n_before = t->redos.n;
    for (int i = 0; i < op->n_out && is_sound(search); i++) {
      value = search->problem->edges[op->first_out + i].value;
      if (remat_is_redone_at(&search->schedule, value, turn))
        remat_hold(&search->schedule, value, remat_touch_before(&search->schedule, value, turn) + 1, turn);
    }
    if (t->redos.n >= n_before)
      break;
  }
  return true;
}

static bool move_exchange(struct remat_search *search)
{
  const int kind = random_below(search, 8);
  if (!(kind == 0 ? move_hold_row(search) : kind <= 2 ? move_shift(search) : move_hold(search)))
    return false;
  for (int i = 0; i < EXCHANGE_RELEASES && is_sound(search) && remat_over(&search->schedule) > 0; i++) {
    int64_t most;
    int turn = turn_bytes_peak(&search->schedule.bytes, &most), value = held_draw(search, turn);
    if (value < 0)
      continue;
    int next = remat_touch_from(&search->schedule, value, turn);
    if (remat_release_around(&search->schedule, value, turn) && is_sound(search) && random_below(search, 2))
      remat_row_hold(&search->schedule, next, random_next(search));
  }
  return true;
}

/*
 * Hold @value, which @turn gets, from so many turns before that its transfer ends in time, as far as it is known and
 * the turns have room for it.
 */
static void get_early(struct remat_search *search, int value, int turn)
{
  const struct remat_problem *problem = search->problem;
  const struct turn_bytes *bytes = &search->schedule.bytes;
  const int64_t room_bytes = bytes->limit_bytes - (int64_t)problem->values[value].bytes;
  const enum lade_space tier = (enum lade_space)search->schedule.sources[value];
  const int before = remat_touch_before(&search->schedule, value, turn);
  double left_ns = list_time_move(&search->params->links->in[tier], problem->values[value].bytes);
  int from = turn;
  while (from - 1 > before && left_ns > 0 && turn_bytes_get(bytes, from - 1) <= room_bytes) {
    from--;
    left_ns -= (double)(problem->ops[from].ns + search->schedule.turns[from].redo_ns);
  }
  if (from < turn && from > before && remat_is_redone_at(&search->schedule, value, turn))
    remat_hold(&search->schedule, value, from + 1, turn);
}

/* Draw a tier on which @bytes may wait; LADE_DEVICE: none. */
static enum lade_space tier_draw(struct remat_search *search, uint64_t bytes)
{
  const struct remat_search_params *params = search->params;
  bool has_room[LADE_N_SPACES] = {false};
  for (int tier = LADE_HOST; tier <= LADE_STORE; tier++)
    has_room[tier] = remat_may_wait(params, (enum lade_space)tier) && bytes <= params->waiting_bytes[tier];
  if (has_room[LADE_HOST] && (!has_room[LADE_STORE] || random_below(search, 4)))
    return LADE_HOST;
  return has_room[LADE_STORE] ? LADE_STORE : LADE_DEVICE;
}

/* Let a value wait on a tier where it is made again or held; or let one that waits be made again. */
static bool move_source(struct remat_search *search)
{
  int turn = full_turn_draw(search), value = held_draw(search, turn);
  bool is_held = value >= 0 && random_below(search, 2);
  if (!is_held && !redo_draw(search, &turn, &value))
    return false;
  bool is_given = remat_is_given(search->problem, value);
  if (!is_held && !is_given && search->schedule.sources[value] != LADE_DEVICE && random_below(search, 2)) {
    remat_source_set(&search->schedule, value, LADE_DEVICE);
    return true;
  }
  if (search->schedule.sources[value] == LADE_DEVICE) {
    const enum lade_space tier = tier_draw(search, search->problem->values[value].bytes);
    if (tier == LADE_DEVICE)
      return false;
    remat_source_set(&search->schedule, value, tier);
  }
  if (is_held && is_sound(search)) {
    int next = remat_touch_from(&search->schedule, value, turn);
    if (!remat_release_around(&search->schedule, value, turn))
      return true; /* the new source is a change by itself, and may have released the value */
    turn = next;
  }
  if (is_sound(search))
    get_early(search, value, turn);
  return true;
}

static bool move_make(struct remat_search *search)
{
  if (search->params->links && !random_below(search, 3))
    return move_source(search);
  switch (random_below(search, 16)) {
  case 0:
  case 1:
    return move_release(search);
  case 2:
  case 3:
  case 4:
    return move_segment(search);
  case 5:
  case 6:
  case 7:
    return move_hold(search);
  case 8:
  case 9:
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
  if (!fits && (search->best_ns < INT64_MAX || remat_over(schedule) >= search->best_over))
    return 0;
  const double cost = fits ? cost_get(search) : 0;
  if (fits && cost >= (double)search->best_ns)
    return 0;
  if (fits) {
    search->best_ns = (int64_t)cost;
    search->is_over = search->params->stops_at_fit || cost < 1;
  }
  search->best_over = remat_over(schedule);
  return remat_schedule_save(schedule, search->best);
}

/* Make the schedule of @choices, within the limits of the search. */
static int schedule_load(struct remat_search *search, const struct remat_choices *choices)
{
  int status = remat_schedule_load(&search->schedule, search->problem, search->params->limit_bytes, choices);
  for (int tier = LADE_HOST; tier <= LADE_STORE && !status; tier++)
    remat_waiting_limit(&search->schedule, (enum lade_space)tier, search->params->waiting_bytes[tier]);
  search->schedule.forbids_redo = search->params->is_offload;
  return status;
}

/* Begin again from the schedule of @choices. */
static int schedule_restart(struct remat_search *search, const struct remat_choices *choices)
{
  remat_schedule_finish(&search->schedule);
  return schedule_load(search, choices);
}

/* ---- descent ---- */

static void clock_look(struct remat_search *search)
{
  bool fits = search->best_ns < INT64_MAX;
  if (lade_now_ns() >= (fits ? search->params->deadline_ns : search->params->fit_deadline_ns))
    search->is_over = true;
}

/* Let the chain that @turn makes again run once, if that saves time without more excess. */
static void descent_hold(struct remat_search *search, int turn)
{
  struct remat_schedule *schedule = &search->schedule;
  const int mark = remat_mark(schedule);
  const int64_t ns = schedule->redo_ns;
  const double over = remat_over(schedule);
  if (schedule->turns[turn].redos.n < 2)
    return;
  remat_row_hold(schedule, turn, random_next(search));
  if (schedule->status || (is_sound(search) && schedule->redo_ns < ns && remat_over(schedule) <= over))
    return;
  remat_rollback_to(schedule, mark);
}

/* Release the one of some drawn values that costs least per byte of excess in the fullest turn. False: none helps. */
static bool descent_step(struct remat_search *search)
{
  struct remat_schedule *schedule = &search->schedule;
  int64_t most;
  const int turn = turn_bytes_peak(&schedule->bytes, &most);
  const double over = remat_over(schedule);
  const int64_t ns = schedule->redo_ns;
  double best = INFINITY;
  int pick = -1;
  for (int i = 0; i < CANDIDATES && !schedule->status && !search->is_over; i++) {
    const int value = held_draw(search, turn);
    if (value < 0 || !remat_release_around(schedule, value, turn))
      continue;
    const double gain = over - remat_over(schedule), cost = (double)(schedule->redo_ns - ns) + 1;
    const double ratio = cost > 0 ? cost / gain : gain;
    if (is_sound(search) && gain > 0 && ratio < best) {
      best = ratio;
      pick = value;
    }
    remat_rollback(schedule);
    clock_look(search);
  }
  search->n_moves += CANDIDATES;
  if (pick >= 0 && !schedule->status) {
    const int next = remat_touch_from(schedule, pick, turn);
    remat_release_around(schedule, pick, turn);
    descent_hold(search, next);
  }
  remat_commit(schedule);
  return pick >= 0;
}

/*
 * Release values until the schedule fits, as far as that goes. By chance first, if @is_drawn and the graph is short:
 * the lists then differ from one call to the next.
 */
static int descend(struct remat_search *search, bool is_drawn)
{
  const struct remat_search_params *params = search->params;
  struct remat_descent_params how = {.links = params->links, .is_offload = params->is_offload,
                                     .deadline_ns = params->fit_deadline_ns};
  for (int tier = LADE_HOST; tier <= LADE_STORE; tier++)
    how.may_wait[tier] = remat_may_wait(params, (enum lade_space)tier);
  while (is_drawn && search->problem->n_ops <= RELEASED_OPS_MOST && !params->links && !search->is_over &&
         remat_over(&search->schedule) > 0 && search->n_moves < params->fit_moves && descent_step(search))
    ;
  if (search->schedule.status)
    return search->schedule.status;
  const int64_t n_tries = remat_descend(&search->schedule, &how);
  if (n_tries < 0)
    return (int)n_tries;
  search->n_moves += n_tries;
  int status = params->links ? remat_prefetch(&search->schedule, params->links) : 0;
  clock_look(search);
  return status ? status : best_take(search);
}

/* ---- rounds ---- */

/* True if @value can be made again at each of its uses. */
static bool is_remakeable(const struct remat_problem *problem, int value)
{
  const struct remat_value *v = &problem->values[value];
  for (int i = 0; i < v->n_makers; i++) {
    if (problem->ops[problem->makers[v->first_maker + i]].redo_until < v->last_use)
      return false;
  }
  return !remat_is_given(problem, value);
}

/* Begin again from the schedule that holds no value that can be made again. */
static int released_restart(struct remat_search *search)
{
  struct remat_choices choices = {.is_saved = true};
  int status = 0;
  for (int v = 0; v < search->problem->n_values && !status; v++) {
    const struct remat_choice choice = {v, remat_span_whole(search->problem, v)};
    if (choice.span.from <= choice.span.to && !is_remakeable(search->problem, v) && !LADE_PUSH(&choices.list, choice))
      status = -ENOMEM;
  }
  if (!status)
    status = schedule_restart(search, &choices);
  remat_choices_free(&choices);
  return status;
}

/*
 * Begin a round: the second one, and while nothing fits every other one, from the schedule that holds least, because a
 * descent from the one that holds everything may end where no single move goes on. Every FRESH_ROUNDS-th one begins
 * from that one or from another descent, in turns, because moves do not lead from each good schedule to each
 * other. All others from the best.
 */
static int round_begin(struct remat_search *search, int round)
{
  bool has_fit = search->best_ns < INT64_MAX, is_short = search->problem->n_ops <= RELEASED_OPS_MOST;
  bool is_fresh = round % FRESH_ROUNDS == FRESH_ROUNDS - 1 && has_fit && is_short;
  bool is_released = is_short && !search->params->is_offload && round & 1 && (round == 1 || !has_fit || is_fresh);
  if (is_released) {
    int status = released_restart(search);
    if (status || !search->schedule.is_broken)
      return status;
    /* A value would be made again behind the last use of an input that cannot be: this graph has no such schedule. */
  }
  if (is_fresh) {
    const struct remat_choices none = {.is_saved = false};
    int status = schedule_restart(search, &none);
    return status ? status : descend(search, true);
  }
  return schedule_restart(search, search->best);
}

/* ---- chains ---- */

/* Release each value that is held up to a turn that does not use it. */
static void waste_release(struct remat_schedule *schedule)
{
  for (bool is_changed = true; is_changed && !schedule->is_broken && !schedule->status;) {
    is_changed = false;
    for (int v = 0; v < schedule->problem->n_values; v++) {
      const struct remat_holding *holding = &schedule->holdings[v];
      for (int i = 0; i < holding->spans.n; i++) {
        const struct remat_span span = holding->spans.items[i];
        if (remat_touch_from(schedule, v, span.to) == span.to)
          continue;
        remat_release(schedule, v, LADE_MAX(remat_touch_before(schedule, v, span.to) + 1, span.from), span.to);
        is_changed = true;
        break;
      }
    }
  }
}

/* Let the schedule be the plan of @chain within @share of the limit, and descend from it if it is a little larger. */
static int chain_load(struct remat_search *search, const struct remat_chain *chain, double share)
{
  struct remat_choices choices = {0};
  int status = remat_chain_plan(chain, share, &choices);
  if (!status)
    status = schedule_restart(search, &choices);
  remat_choices_free(&choices);
  if (status)
    return status;
  waste_release(&search->schedule);
  if (search->schedule.status || search->schedule.is_broken)
    return search->schedule.status ? search->schedule.status : -ENOSPC;
  remat_commit(&search->schedule);
  return descend(search, false);
}

/* If the problem is a chain, look for a better schedule among its plans within the limit and somewhat less. */
static int chain_search(struct remat_search *search)
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
  return schedule_restart(search, search->best);
}

/* ---- annealing ---- */

/* Try one move; keep it if the energy allows. */
static int move_try(struct remat_search *search)
{
  const double before = energy(search);
  const int mark = remat_mark(&search->schedule);
  bool is_made = move_make(search);
  if (search->schedule.status)
    return search->schedule.status;
  double rise = is_made && is_sound(search) ? energy(search) - before : INFINITY;
  if (rise > 0 && random_unit(search) >= exp(-rise / search->temperature))
    remat_rollback_to(&search->schedule, mark);
  return search->schedule.status;
}

/* Cool down over @n moves of the whole problem, and take the best on the way. */
static int anneal(struct remat_search *search, int64_t n, double hot_ns, double cold_ns)
{
  const double cooling = pow(cold_ns / hot_ns, 1.0 / (double)n);
  const int64_t look_moves = 1 + search->problem->n_values / SAVE_SHARE;
  search->temperature = hot_ns;
  int status = 0;
  for (int64_t i = 0; i < n && !status && !search->is_over; i++) {
    status = move_try(search);
    remat_commit(&search->schedule);
    search->temperature *= cooling;
    if (i % PRICE_MOVES == 0)
      search->price *= remat_over(&search->schedule) > 0 ? PRICE_STEP : 1 / PRICE_STEP;
    if (i % look_moves == 0 && !status)
      status = best_take(search);
    if (i % CLOCK_MOVES == 0)
      clock_look(search);
  }
  search->n_moves += n;
  LADE_ASSERT(!LADE_CHECK_FULL || status || remat_schedule_is_valid(&search->schedule));
  return status;
}

/* Let the window be the values born near one or two ops. */
static void window_draw(struct remat_search *search, int32_t *window)
{
  const struct remat_problem *problem = search->problem;
  search->n_window = 0;
  for (int part = 1 + random_below(search, 2); part > 0; part--) {
    const int center = random_below(search, problem->n_ops), reach = WINDOW_LEAST + random_below(search, WINDOW_MORE);
    for (int op = LADE_MAX(center - reach, 0); op < LADE_MIN(center + reach, problem->n_ops); op++) {
      const struct remat_op *o = &problem->ops[op];
      for (int i = 0; i < o->n_in + o->n_out; i++) {
        int value = problem->edges[o->first_in + i].value;
        bool is_near = i >= o->n_in ? problem->values[value].birth == op
                                    : remat_is_given(problem, value) && may_release(search, value);
        if (is_near && search->n_window < WINDOW_VALUES)
          window[search->n_window++] = value;
      }
    }
  }
  search->window = window;
}

/* Anneal one window; keep the result if it fits and is no slower. */
static int window_anneal(struct remat_search *search, double typical)
{
  int32_t window[WINDOW_VALUES];
  const double before_ns = cost_get(search);
  window_draw(search, window);
  const int n = search->n_window ? WINDOW_MOVES : 0;
  const double hot = typical * pow(10, -2.5 * random_unit(search)), cooling = pow(0.005, 1.0 / WINDOW_MOVES);
  search->temperature = hot;
  int status = 0;
  for (int i = 0; i < n && !status && !search->is_over; i++) {
    status = move_try(search);
    search->temperature *= cooling;
    if (i % CLOCK_MOVES == 0)
      clock_look(search);
  }
  search->window = NULL;
  search->n_moves += WINDOW_MOVES;
  if (status)
    return status;
  if (remat_over(&search->schedule) > 0) {
    search->price *= WINDOW_PRICE_STEP;
    remat_rollback(&search->schedule);
  } else if (cost_get(search) > before_ns)
    remat_rollback(&search->schedule);
  else
    search->price /= PRICE_STEP;
  remat_commit(&search->schedule);
  return search->schedule.status;
}

/* Improve the schedule, which fits, window by window, until nothing is gained for some time. */
static int windows_anneal(struct remat_search *search, double typical)
{
  const int patience = WINDOWS_LEAST + search->problem->n_ops / WINDOW_MORE * WINDOWS_PER_OPS;
  int status = 0;
  for (int idle = 0; idle < patience && !status && !search->is_over && search->n_moves < search->params->n_moves;) {
    const double before_ns = cost_get(search);
    status = window_anneal(search, typical);
    idle = cost_get(search) < before_ns ? 0 : idle + 1;
  }
  LADE_ASSERT(!LADE_CHECK_FULL || status || remat_schedule_is_valid(&search->schedule));
  return status ? status : best_take(search);
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
  double moves = (double)LADE_MIN(LADE_MAX((int64_t)search->problem->n_ops * ROUND_MOVES, ROUND_MOVES_LEAST),
                                  ROUND_MOVES_MOST);
  int status = descend(search, true);
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
    const double hot = typical * (round < 2 || !fits || is_fresh ? 1 : pow(10, -2 * random_unit(search)));
    bool is_fit = remat_over(&search->schedule) == 0;
    if (!status && !(is_fit && search->problem->n_ops > ANNEAL_OPS_MOST))
      status = anneal(search, LADE_MIN((int64_t)moves, left), hot, hot / 500);
    if (!status && fits && !search->is_over) /* the annealing may end a little above the limit */
      status = descend(search, false);
    bool is_near = round < 2 || cost_get(search) < (double)search->best_ns + HOPE * (double)search->problem->base_ns;
    if (!status && remat_over(&search->schedule) == 0 && is_near)
      status = windows_anneal(search, typical);
    moves *= round & 1 && !fits ? ROUND_GROWTH : 1;
  }
  return status;
}

int remat_search(const struct remat_search_params *params, struct remat_choices *choices)
{
  struct remat_search search = {.params = params, .problem = params->problem, .best = choices, .best_ns = INT64_MAX,
                                .best_over = INFINITY, .random = params->seed};
  int status = schedule_load(&search, choices);
  if (status)
    return status;
  status = best_take(&search);
  if (!status && !search.is_over)
    status = search_run(&search);
  remat_schedule_finish(&search.schedule);
  return status ? status : search.best_ns < INT64_MAX ? 0 : -ENOSPC;
}
