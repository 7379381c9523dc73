/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves of the search over schedules of recompute. Each is tried, and kept with annealing's probability.
 *
 *   release   let a value go between two turns that touch it; the later one makes it again
 *   replace   let a value go, and keep those of its inputs that would be missing where it is made again
 *   hold      keep a value that a turn makes again, from the turn before that touches it
 *   shift     make a value again earlier, in a turn that has the inputs at hand, and hold it from there
 *   row       let another turn make again the values that one turn makes again and holds, all or those of the makers up
 *             to or from a drawn one; only within an exchange
 *   segment   release the values of some ops in a row up to the first use of one of them, so that one turn makes them
 *             again
 *   exchange  hold one value or all that a turn makes again, then release others in the fullest turns until it fits;
 *             a release that alone raises the energy too far is undone, and another one is drawn; one exchange in
 *             EXCHANGES_PER_UNJUDGED keeps every release, since two of them may pay only together; any other exchange
 *             ends if it is too slow already, even if it fitted
 *   source    let a value wait on another tier, or be made again instead
 *
 * A move releases before it holds, or the other way round, so a schedule may pass through one that is slower than both
 * ends. The largest acceptable rise of the energy is drawn before the move. A move whose schedule is slower by more
 * than that rise and DETOUR_OPS of the largest op is abandoned in the turn that shows it. With half as many, the best
 * plan of VGG-16 at 60 % of its peak is lost. A single release needs no detour, and gets one op.
 */
#include <math.h>

#include "recompute/graph/descent.h"
#include "recompute/graph/search/search_state.h"

#define EXCHANGE_RELEASES 6 /* of one exchange */
#define EXCHANGES_PER_UNJUDGED 3
#define SEGMENT_MAX 8       /* ops whose values a move releases together */
#define SEGMENT_VALUES 21   /* of them at most */
#define SEGMENT_SKIP_BITS 3 /* one value of eight is made again later */
#define HELD_TRIES 128
#define REDO_TRIES 64
#define DETOUR_OPS 8
#define PRICE_STEP 1.02

/* ---- chance ---- */

/* Return the next number of splitmix64 (Steele, Lea, Flood 2014). */
uint64_t remat_random_next(struct remat_state *search)
{
  uint64_t z = search->random += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int remat_random_below(struct remat_state *search, int n)
{
  return (int)((remat_random_next(search) >> 32) * (uint64_t)n >> 32);
}

double remat_random_unit(struct remat_state *search)
{
  return (double)(remat_random_next(search) >> 11) * 0x1p-53;
}

/* ---- cost ---- */

/* Return the time of the step beyond that of all ops once. */
double remat_cost_get(struct remat_state *search)
{
  const struct remat_schedule *schedule = &search->schedule;
  if (!schedule->n_waits || !search->params->links)
    return (double)schedule->redo_ns;
  if (search->timed_state != schedule->state) {
    search->timed_ns = list_time_get(search->params->links, schedule);
    search->timed_state = schedule->state;
  }
  LADE_ASSERT(!LADE_CHECK_FULL || search->timed_ns == list_time_get(search->params->links, schedule));
  return search->timed_ns - (double)search->problem->base_ns;
}

double remat_energy_get(struct remat_state *search)
{
  return remat_cost_get(search) + search->price * remat_over(&search->schedule) +
         search->guidance * search->schedule.priced_ns;
}

/*
 * Return the time of redos at which a change that may raise the energy by @rise_ns, with a detour of @n_ops, is given
 * up. With tiers a redo may cost nothing, in a wait.
 */
static int64_t detour_max(const struct remat_state *search, double rise_ns, int n_ops)
{
  const struct remat_schedule *schedule = &search->schedule;
  if (search->params->links)
    return INT64_MAX;
  return schedule->redo_ns + (int64_t)(search->price * remat_over(schedule) + rise_ns +
                                       n_ops * search->largest_ns);
}

/* Draw the rise of the energy up to which a change is kept, as annealing does at the temperature. */
static double rise_draw(struct remat_state *search)
{
  return -log(1 - remat_random_unit(search)) * search->temperature;
}

/* ---- single changes ---- */

bool remat_is_sound(const struct remat_state *search)
{
  return !search->schedule.is_broken && !search->schedule.status && remat_waiting_fits(&search->schedule);
}

/* Return a value of the window. */
static int value_draw(struct remat_state *search)
{
  return search->window ? search->window[remat_random_below(search, search->n_window)]
                        : remat_random_below(search, search->problem->n_values);
}

/* True if moves may release @value: a given one only if it has links to a tier. */
bool remat_may_release(const struct remat_state *search, int value)
{
  return search->params->links || !remat_is_given(search->problem, value);
}

/* Return a value that is held at @boundary and not used there, by chance; -1 if none was drawn. */
int remat_held_draw(struct remat_state *search, int boundary)
{
  for (int tries = 0; tries < HELD_TRIES; tries++) {
    int value = value_draw(search);
    const struct remat_value *v = &search->problem->values[value];
    if (v->birth < boundary && v->bytes && remat_may_release(search, value) &&
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
static int full_turn_draw(struct remat_state *search)
{
  int64_t max;
  if (remat_over(&search->schedule) > 0 && remat_random_below(search, 2))
    return turn_bytes_peak(&search->schedule.bytes, &max);
  if (search->window) {
    const int value = value_draw(search), first = remat_first_boundary(search->problem, value);
    const struct remat_value *v = &search->problem->values[value];
    return first <= v->last_use ? first + remat_random_below(search, v->last_use - first + 1) : LADE_MAX(v->birth, 0);
  }
  int best = remat_random_below(search, search->problem->n_ops + 1);
  for (int i = 0; i < 3; i++) {
    int turn = remat_random_below(search, search->problem->n_ops + 1);
    if (turn_bytes_get(&search->schedule.bytes, turn) > turn_bytes_get(&search->schedule.bytes, best))
      best = turn;
  }
  return best;
}

/* Draw a redo: a turn and a value that it makes again. Return false if none was drawn. */
static bool redo_draw(struct remat_state *search, int *ret_turn, int *ret_value)
{
  const struct remat_schedule *schedule = &search->schedule;
  for (int tries = 0; tries < REDO_TRIES && schedule->n_redos; tries++) {
    const int value = value_draw(search);
    const struct remat_holding *holding = &schedule->holdings[value];
    const int turn = holding->touches.items[remat_random_below(search, holding->touches.n)].turn;
    if (remat_is_redone_at(&search->schedule, value, turn)) {
      *ret_turn = turn;
      *ret_value = value;
      return true;
    }
  }
  return false;
}

/* ---- moves: each returns false if it changed nothing ---- */

static bool move_release(struct remat_state *search)
{
  int turn = full_turn_draw(search), value = remat_held_draw(search, turn);
  search->schedule.redo_max_ns = LADE_MIN(search->schedule.redo_max_ns, detour_max(search, search->rise_max, 1));
  return value >= 0 && remat_release_around(&search->schedule, value, turn);
}

/* Release a value, and hold the missing inputs of its producer. */
static bool move_replace(struct remat_state *search)
{
  const int turn = full_turn_draw(search), value = remat_held_draw(search, turn);
  return value >= 0 && remat_replace_around(&search->schedule, value, turn, remat_random_next(search));
}

static bool move_hold(struct remat_state *search)
{
  int turn, value;
  if (!redo_draw(search, &turn, &value))
    return false;
  int from = remat_touch_before(&search->schedule, value, turn) + 1;
  remat_hold(&search->schedule, value, from, turn);
  return true;
}

static bool move_shift(struct remat_state *search)
{
  int turn, value;
  if (!redo_draw(search, &turn, &value))
    return false;
  const int before = remat_touch_before(&search->schedule, value, turn);
  const int maker = remat_is_given(search->problem, value) ? remat_get_op(search->problem, value)
                                                           : search->problem->values[value].birth;
  const struct remat_op *op = &search->problem->ops[maker];
  int at = before + 1 + remat_random_below(search, turn - before);
  if (op->n_in && remat_random_below(search, 4)) {
    int input = search->problem->edges[op->first_in + remat_random_below(search, op->n_in)].value;
    at = remat_touch_before(&search->schedule, input, turn);
  }
  if (at <= before || at >= turn)
    return false;
  remat_hold(&search->schedule, value, at + 1, turn);
  return true;
}

/* Values that are released together, and the boundaries of each. */
struct segment {
  struct remat_choice items[SEGMENT_VALUES];
  int n, redo_turn; /* the first turn that makes one of them again */
};

/* Add @value up to its next use or the last turn that can make it again, if @turn holds and does not use it. */
static void segment_add(const struct remat_state *search, struct segment *segment, int value, int turn)
{
  const struct remat_problem *problem = search->problem;
  const struct remat_value *v = &problem->values[value];
  const struct remat_schedule *schedule = &search->schedule;
  int to = remat_touch_from(schedule, value, turn);
  if (to == turn || segment->n == SEGMENT_VALUES || !remat_is_held(schedule, value, turn))
    return;
  for (int i = 0; i < v->n_makers && schedule->sources[value] == LADE_DEVICE; i++) {
    const int maker = problem->makers[v->first_maker + i];
    to = maker < to ? LADE_MIN(to, problem->ops[maker].redo_until) : to;
  }
  if (to < turn)
    return;
  const struct remat_span span = {remat_touch_before(schedule, value, turn) + 1, to};
  segment->items[segment->n++] = (struct remat_choice){value, span};
  segment->redo_turn = LADE_MIN(segment->redo_turn, to);
}

/*
 * Release the values of up to @length ops in a row, from the maker of @value on, that are held at @turn. One turn makes
 * them again, and holds them from there; some that are drawn are made again at their own next use.
 */
static bool segment_release(struct remat_state *search, int turn, int value, int length)
{
  const struct remat_problem *problem = search->problem;
  const int birth = problem->values[value].birth;
  struct segment segment = {.redo_turn = INT32_MAX};
  for (int op = birth; op < birth + length && op < turn; op++) {
    for (int i = 0; i < problem->ops[op].n_out; i++) {
      const int other = problem->edges[problem->ops[op].first_out + i].value;
      if (problem->values[other].birth == op && problem->values[other].last_use >= turn)
        segment_add(search, &segment, other, turn);
    }
  }
  uint64_t draw = remat_random_next(search);
  for (int i = 0; i < segment.n; i++, draw >>= SEGMENT_SKIP_BITS) {
    const struct remat_choice *item = &segment.items[i];
    const int to = (draw & ((1 << SEGMENT_SKIP_BITS) - 1)) ? segment.redo_turn : item->span.to;
    remat_release_unsettled(&search->schedule, item->value, item->span.from, to);
  }
  remat_rows_settle(&search->schedule);
  if (segment.n && remat_is_sound(search))
    remat_row_hold(&search->schedule, segment.redo_turn, remat_random_next(search));
  remat_settle(&search->schedule);
  return segment.n > 0;
}

/* Release neighbours in the order of ops at one turn, and let the chain that makes them again run once. */
static bool move_segment(struct remat_state *search)
{
  const int turn = full_turn_draw(search), value = remat_held_draw(search, turn);
  if (value < 0)
    return false;
  if (remat_is_given(search->problem, value))
    return remat_release_around(&search->schedule, value, turn);
  return segment_release(search, turn, value, 1 + remat_random_below(search, SEGMENT_MAX));
}

/* Hold @value, if @turn makes it again, from the turn before that touches it, but let nothing follow yet. */
static void redone_hold(struct remat_state *search, int value, int turn)
{
  struct remat_schedule *schedule = &search->schedule;
  if (remat_is_redone_at(schedule, value, turn))
    remat_hold_unsettled(schedule, value, remat_touch_before(schedule, value, turn) + 1, turn);
}

/*
 * Draw a turn, and hold every value that it recomputes: the operands of its op, and the values that stay held after
 * it. Each is held from its previous use on. Then the turn recomputes nothing, except old versions.
 */
static bool move_hold_row(struct remat_state *search)
{
  const struct remat_problem *problem = search->problem;
  struct remat_schedule *schedule = &search->schedule;
  int turn, value;
  if (!redo_draw(search, &turn, &value))
    return false;
  const struct remat_turn *t = &schedule->turns[turn];
  const int n_in = turn < problem->n_ops ? problem->ops[turn].n_in : 0;
  const int n_lasting = turn < problem->n_ops ? 0 : problem->n_lasting;
  for (int i = t->starts.n - 1; i >= 0; i--) /* a value that is held from before is none of them any more */
    redone_hold(search, t->starts.items[i], turn);
  for (int i = 0; i < n_in; i++)
    redone_hold(search, problem->edges[problem->ops[turn].first_in + i].value, turn);
  for (int i = 0; i < n_lasting; i++)
    redone_hold(search, problem->lasting[i], turn);
  remat_settle(schedule);
  return true;
}

/*
 * Draw a turn that makes values again, and let another turn make them: one before it, behind the last touch of a drawn
 * value, or one up to the first use of any of them. Single shifts of a long chain each take its inputs' time or bytes.
 */
static bool move_shift_row(struct remat_state *search)
{
  struct remat_schedule *schedule = &search->schedule;
  int turn, value;
  if (!redo_draw(search, &turn, &value))
    return false;
  const int birth = search->problem->values[value].birth, kind = remat_random_below(search, 4);
  const struct remat_span makers = {kind == 0 ? birth : -1, kind == 1 ? birth : search->problem->n_ops};
  bool is_later = remat_random_below(search, 2);
  const int before = remat_touch_before(schedule, value, turn), use = remat_row_use(schedule, turn, makers);
  if (is_later)
    return use != INT32_MAX &&
           remat_row_shift(schedule, turn, turn + 1 + remat_random_below(search, use - turn), makers);
  return turn - before > 1 &&
         remat_row_shift(schedule, turn, before + 1 + remat_random_below(search, turn - before - 1), makers);
}

/* Return the energy without the waits for transfers, which take long to find. */
static double energy_untimed(const struct remat_state *search)
{
  const struct remat_schedule *schedule = &search->schedule;
  return (double)schedule->redo_ns + search->price * remat_over(schedule) + search->guidance * schedule->priced_ns;
}

/*
 * Release one value in the fullest turn. With @is_judged it is kept if the energy is then lower than before, or lower
 * than @start, the energy at the start of the exchange. It is also kept if the energy is higher by no more than the
 * temperature allows.
 */
static void exchange_release(struct remat_state *search, double start, bool is_judged)
{
  struct remat_schedule *schedule = &search->schedule;
  int64_t max;
  const int turn = turn_bytes_peak(&schedule->bytes, &max), value = remat_held_draw(search, turn);
  if (value < 0)
    return;
  const int next = remat_touch_from(schedule, value, turn), mark = remat_mark(schedule);
  const double before = energy_untimed(search), rise_max = rise_draw(search) + LADE_MAX(start - before, 0);
  const int64_t redo_max_ns = schedule->redo_max_ns;
  const int kind = remat_random_below(search, 4);
  bool is_chain = kind < 2, is_replaced = kind == 2;
  if (is_judged)
    schedule->redo_max_ns = LADE_MIN(redo_max_ns, detour_max(search, rise_max, is_chain ? DETOUR_OPS : 1));
  bool is_made = is_replaced ? remat_replace_around(schedule, value, turn, remat_random_next(search))
                             : remat_release_rows_around(schedule, value, turn);
  if (is_made && remat_is_sound(search) && is_chain)
    remat_row_hold(schedule, next, remat_random_next(search));
  remat_settle(schedule);
  schedule->redo_max_ns = redo_max_ns;
  bool is_kept = remat_is_sound(search) && (!is_judged || energy_untimed(search) <= before + rise_max);
  if (!schedule->status && !is_kept)
    remat_rollback_to(schedule, mark);
}

static bool move_exchange(struct remat_state *search)
{
  const int kind = remat_random_below(search, 16);
  bool is_judged = remat_random_below(search, EXCHANGES_PER_UNJUDGED) != 0;
  const double start = energy_untimed(search);
  if (!(kind < 2    ? move_hold_row(search)
        : kind == 2 ? move_shift_row(search)
        : kind < 6  ? move_shift(search)
                    : move_hold(search)))
    return false;
  for (int i = 0; i < EXCHANGE_RELEASES && remat_is_sound(search) && remat_over(&search->schedule) > 0; i++) {
    exchange_release(search, start, is_judged);
    const double min = energy_untimed(search) - search->price * remat_over(&search->schedule); /* if it fitted */
    if (is_judged && min > start + search->rise_max)
      return false; /* further releases only take more time */
  }
  return true;
}

/*
 * Hold @value, which @turn gets, from so many turns earlier that its transfer ends in time. Does so if the transfer's
 * time is known and the turns have room.
 */
static void get_early(struct remat_state *search, int value, int turn)
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
static enum lade_space tier_draw(struct remat_state *search, uint64_t bytes)
{
  const struct remat_search_params *params = search->params;
  bool has_room[LADE_N_SPACES] = {false};
  for (int tier = LADE_HOST; tier <= LADE_STORE; tier++)
    has_room[tier] = remat_may_wait(params, (enum lade_space)tier) && bytes <= params->waiting_bytes[tier];
  if (has_room[LADE_HOST] && (!has_room[LADE_STORE] || remat_random_below(search, 4)))
    return LADE_HOST;
  return has_room[LADE_STORE] ? LADE_STORE : LADE_DEVICE;
}

/* Let a value wait on a tier where it is made again or held; or let one that waits be made again. */
static bool move_source(struct remat_state *search)
{
  int turn = full_turn_draw(search), value = remat_held_draw(search, turn);
  bool is_held = value >= 0 && remat_random_below(search, 2);
  if (!is_held && !redo_draw(search, &turn, &value))
    return false;
  bool is_given = remat_is_given(search->problem, value);
  if (!is_held && !is_given && search->schedule.sources[value] != LADE_DEVICE && remat_random_below(search, 2)) {
    remat_source_set(&search->schedule, value, LADE_DEVICE);
    return true;
  }
  if (search->schedule.sources[value] == LADE_DEVICE) {
    const enum lade_space tier = tier_draw(search, search->problem->values[value].bytes);
    if (tier == LADE_DEVICE)
      return false;
    remat_source_set(&search->schedule, value, tier);
  }
  if (is_held && remat_is_sound(search)) {
    int next = remat_touch_from(&search->schedule, value, turn);
    if (!remat_release_around(&search->schedule, value, turn))
      return true; /* the new source is a change by itself, and may have released the value */
    turn = next;
  }
  if (remat_is_sound(search))
    get_early(search, value, turn);
  return true;
}

static bool move_make(struct remat_state *search)
{
  if (search->params->links && !remat_random_below(search, 3))
    return move_source(search);
  switch (remat_random_below(search, 16)) {
  case 0:
    return move_release(search);
  case 1:
    return move_replace(search);
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

/* ---- trials ---- */

int remat_move_try(struct remat_state *search)
{
  const double before = remat_energy_get(search), timed_ns = search->timed_ns;
  const int64_t state = search->schedule.state;
  const int mark = remat_mark(&search->schedule);
  const double rise_max = search->rise_max = rise_draw(search);
  search->schedule.redo_max_ns = detour_max(search, rise_max, DETOUR_OPS);
  bool is_made = move_make(search);
  search->schedule.redo_max_ns = INT64_MAX;
  if (search->schedule.status)
    return search->schedule.status;
  if (!is_made || !remat_is_sound(search) || remat_energy_get(search) - before > rise_max) {
    remat_rollback_to(&search->schedule, mark);
    search->schedule.state = search->timed_state = state; /* it is the schedule before the move again */
    search->timed_ns = timed_ns;
  }
  return search->schedule.status;
}

void remat_price_follow(struct remat_state *search)
{
  search->price *= remat_over(&search->schedule) > 0 ? PRICE_STEP : 1 / PRICE_STEP;
}
