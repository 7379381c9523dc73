/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Annealing: the steps of which a search is made (search.c has the algorithm). The best schedule is saved whenever one
 * is seen; a search begins again from a saved one, descends to its limit, anneals all values, or window by window.
 */
#include <errno.h>
#include <math.h>

#include "recompute/graph/descent.h"
#include "recompute/graph/prefetch.h"
#include "recompute/graph/search/search_state.h"

#define CANDIDATES 48 /* values that a descent by chance compares for one release */
#define SAVE_SHARE 512      /* a search looks for its best after one move in so many values */
#define WINDOW_MIN 4        /* ops at least to each side of the window's first one, and more by chance */
#define WINDOW_MORE 40
#define WINDOW_VALUES 512
#define WINDOW_MOVES 1000
#define WINDOW_PRICE_STEP 1.3
#define WINDOWS_MIN 20 /* windows without a gain that end a round, and more for longer graphs */
#define WINDOWS_PER_OPS 2
#define PRICE_MOVES 50      /* between two changes of the price */
#define MOVE_WORK 140      /* edges in turns that a usual move evaluates at most; more count as more moves */
#define CLOCK_MOVES 64     /* between two looks at the clock */

/* ---- the best ---- */

int remat_best_take(struct remat_state *search)
{
  const struct remat_schedule *schedule = &search->schedule;
  bool fits = remat_over(schedule) == 0;
  if (!fits && (search->best_ns < INT64_MAX || remat_over(schedule) >= search->best_over))
    return 0;
  const double cost = fits ? remat_cost_get(search) : 0;
  if (fits && cost >= (double)search->best_ns)
    return 0;
  if (fits) {
    search->best_ns = (int64_t)cost;
    search->is_over = search->params->stops_at_fit || cost < 1;
  }
  search->best_over = remat_over(schedule);
  return remat_schedule_save(schedule, search->best);
}

int remat_search_load(struct remat_state *search, const struct remat_choices *choices, int64_t redo_max_ns)
{
  remat_schedule_finish(&search->schedule);
  search->timed_state = -1;
  int status = remat_schedule_load_within(&search->schedule, search->problem, search->params->limit_bytes, choices,
                                          redo_max_ns);
  for (int tier = LADE_HOST; tier <= LADE_STORE && !status; tier++)
    remat_waiting_limit(&search->schedule, (enum lade_space)tier, search->params->waiting_bytes[tier]);
  search->schedule.forbids_redo = search->params->is_offload;
  if (!status)
    remat_prices_set(&search->schedule, search->prices);
  return status;
}

int remat_search_restart(struct remat_state *search, const struct remat_choices *choices)
{
  return remat_search_load(search, choices, INT64_MAX);
}

/* ---- descent ---- */

void remat_moves_count(struct remat_state *search, int64_t n, int64_t work)
{
  search->n_moves += LADE_MAX(n, (search->schedule.work - work) / MOVE_WORK);
}

void remat_clock_look(struct remat_state *search)
{
  bool fits = search->best_ns < INT64_MAX;
  if (lade_now_ns() >= (fits ? search->params->deadline_ns : search->params->fit_deadline_ns))
    search->is_over = true;
}

/* Let the chain that @turn makes again run once, if that saves time without more excess. */
static void descent_hold(struct remat_state *search, int turn)
{
  struct remat_schedule *schedule = &search->schedule;
  const int mark = remat_mark(schedule);
  const int64_t ns = schedule->redo_ns;
  const double over = remat_over(schedule);
  if (schedule->turns[turn].redos.n < 2)
    return;
  remat_row_hold(schedule, turn, remat_random_next(search));
  if (schedule->status || (remat_is_sound(search) && schedule->redo_ns < ns && remat_over(schedule) <= over))
    return;
  remat_rollback_to(schedule, mark);
}

/* Release the one of some drawn values that costs least per byte of excess in the fullest turn. False: none helps. */
static bool descent_step(struct remat_state *search)
{
  struct remat_schedule *schedule = &search->schedule;
  int64_t max;
  const int turn = turn_bytes_peak(&schedule->bytes, &max);
  const int64_t work = schedule->work;
  double best = INFINITY;
  int pick = -1;
  for (int i = 0; i < CANDIDATES && !schedule->status && !search->is_over; i++) {
    const int value = remat_held_draw(search, turn);
    const double ratio = value < 0 ? INFINITY : remat_release_cheaper(schedule, value, turn);
    if (ratio < best) {
      best = ratio;
      pick = value;
    }
    remat_rollback(schedule);
    remat_clock_look(search);
  }
  remat_moves_count(search, CANDIDATES, work);
  if (pick >= 0 && !schedule->status) {
    const int next = remat_touch_from(schedule, pick, turn);
    remat_release_cheaper(schedule, pick, turn);
    descent_hold(search, next);
  }
  remat_commit(schedule);
  return pick >= 0;
}

int remat_search_fit(struct remat_state *search, double effort)
{
  const struct remat_search_params *params = search->params;
  struct remat_descent_params descent_params = {.links = params->links, .is_offload = params->is_offload,
                                                .deadline_ns = params->fit_deadline_ns, .effort = effort};
  for (int tier = LADE_HOST; tier <= LADE_STORE; tier++)
    descent_params.may_wait[tier] = remat_may_wait(params, (enum lade_space)tier);
  const int64_t n_tries = remat_descend(&search->schedule, &descent_params);
  search->n_moves += LADE_MAX(n_tries, 0);
  bool is_timed = params->links && !params->stops_at_fit && n_tries >= 0;
  int status = is_timed ? remat_prefetch(&search->schedule, params->links) : (int)LADE_MIN(n_tries, 0);
  remat_clock_look(search);
  return status ? status : remat_best_take(search);
}

/*
 * Release values until the schedule fits, as far as that goes. By chance first, if @is_drawn and the graph is short:
 * the lists then differ from one call to the next.
 */
int remat_search_descend(struct remat_state *search, bool is_drawn)
{
  const struct remat_search_params *params = search->params;
  while (is_drawn && search->problem->n_ops <= SHORT_OPS_MAX && !params->links && !search->is_over &&
         remat_over(&search->schedule) > 0 && search->n_moves < params->fit_moves && descent_step(search))
    ;
  return search->schedule.status ? search->schedule.status : remat_search_fit(search, params->descent_effort);
}

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
int remat_search_release(struct remat_state *search)
{
  struct remat_choices choices = {.is_saved = true};
  int status = 0;
  for (int v = 0; v < search->problem->n_values && !status; v++) {
    const struct remat_choice choice = {v, remat_span_whole(search->problem, v)};
    if (choice.span.from <= choice.span.to && !is_remakeable(search->problem, v) && !LADE_PUSH(&choices.list, choice))
      status = -ENOMEM;
  }
  if (!status)
    status = remat_search_restart(search, &choices);
  remat_choices_free(&choices);
  return status;
}

/* ---- annealing ---- */

/*
 * Cool down over @n moves of the whole problem, and take the best on the way. Moves of much work count as more, so that
 * long redos do not take many times the effort.
 */
int remat_anneal(struct remat_state *search, int64_t n, double hot_ns, double cold_ns)
{
  const int64_t look_moves = 1 + search->problem->n_values / SAVE_SHARE, work = search->schedule.work;
  int64_t done = 0; /* moves, as they count */
  int status = 0;
  for (int64_t i = 0; done < n && !status && !search->is_over; i++) {
    search->temperature = hot_ns * pow(cold_ns / hot_ns, (double)done / (double)n);
    status = remat_move_try(search);
    remat_commit(&search->schedule);
    done = LADE_MAX(i + 1, (search->schedule.work - work) / MOVE_WORK);
    if (i % PRICE_MOVES == 0)
      remat_price_follow(search);
    if (i % look_moves == 0 && !status)
      status = remat_best_take(search);
    if (i % CLOCK_MOVES == 0)
      remat_clock_look(search);
  }
  search->n_moves += done;
  LADE_ASSERT(!LADE_CHECK_FULL || status || remat_schedule_is_valid(&search->schedule));
  return status;
}

/* Let the window be the values born near one or two ops. */
static void window_draw(struct remat_state *search, int32_t *window)
{
  const struct remat_problem *problem = search->problem;
  search->n_window = 0;
  for (int part = 1 + remat_random_below(search, 2); part > 0; part--) {
    const int center = remat_random_below(search, problem->n_ops);
    const int reach = WINDOW_MIN + remat_random_below(search, WINDOW_MORE);
    for (int op = LADE_MAX(center - reach, 0); op < LADE_MIN(center + reach, problem->n_ops); op++) {
      const struct remat_op *o = &problem->ops[op];
      for (int i = 0; i < o->n_in + o->n_out; i++) {
        int value = problem->edges[o->first_in + i].value;
        bool is_near = i >= o->n_in ? problem->values[value].birth == op
                                    : remat_is_given(problem, value) && remat_may_release(search, value);
        if (is_near && search->n_window < WINDOW_VALUES)
          window[search->n_window++] = value;
      }
    }
  }
  search->window = window;
}

/* Anneal one window; keep the result if it fits and is no slower. */
static int window_anneal(struct remat_state *search)
{
  int32_t window[WINDOW_VALUES];
  const double before_ns = remat_cost_get(search);
  const int64_t work = search->schedule.work;
  window_draw(search, window);
  const int n = search->n_window ? WINDOW_MOVES : 0;
  const double hot = search->typical_ns * pow(10, -2.5 * remat_random_unit(search));
  const double cooling = pow(0.005, 1.0 / WINDOW_MOVES);
  search->temperature = hot;
  int status = 0;
  for (int i = 0; i < n && !status && !search->is_over; i++) {
    status = remat_move_try(search);
    search->temperature *= cooling;
    if (i % CLOCK_MOVES == 0)
      remat_clock_look(search);
  }
  search->window = NULL;
  remat_moves_count(search, WINDOW_MOVES, work);
  if (status)
    return status;
  if (remat_over(&search->schedule) > 0) {
    search->price *= WINDOW_PRICE_STEP;
    remat_rollback(&search->schedule);
  } else if (remat_cost_get(search) > before_ns)
    remat_rollback(&search->schedule);
  else
    remat_price_follow(search);
  remat_commit(&search->schedule);
  return search->schedule.status;
}

/* Improve the schedule, which fits, window by window, until nothing is gained for some time. */
int remat_windows_anneal(struct remat_state *search)
{
  const int patience = WINDOWS_MIN + search->problem->n_ops / WINDOW_MORE * WINDOWS_PER_OPS;
  int status = 0;
  for (int idle = 0; idle < patience && !status && !search->is_over && search->n_moves < search->params->n_moves;) {
    const double before_ns = remat_cost_get(search);
    status = window_anneal(search);
    idle = remat_cost_get(search) < before_ns ? 0 : idle + 1;
  }
  LADE_ASSERT(!LADE_CHECK_FULL || status || remat_schedule_is_valid(&search->schedule));
  return status ? status : remat_best_take(search);
}
