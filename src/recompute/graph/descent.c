/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descend from a schedule above the limit to one within it: release values for the least time per byte.
 *
 * Each gap between two touches of a held value that covers turns above the limit is a candidate: its value can be made
 * again after the gap, or wait on a tier during it. A heap has the candidates by time per byte of excess. Both change
 * as others are released: inputs that are gone make a value dearer, and turns within the limit need no more bytes.
 * Nearly all changes raise the ratio. So the first candidate is evaluated again. If it is now dearer than the next one,
 * it goes back into the heap with its new ratio (the lazy greedy of Minoux, 1978). A graph of 100,000 ops takes a few
 * tries for each release, and each try costs its own changes alone.
 *
 * A value whose makers lack inputs can take a long chain to make again. To hold these inputs instead, up to the turn
 * that needs the value, may take less time per byte of excess. The descent makes the cheaper of the two changes. Where
 * ops read values that were made long before, releases alone end in schedules that take many times the time.
 *
 * Behind a release the chain that makes the value again is held until its other values are needed, if that saves time.
 *
 * The time of a transfer is its exposed part, estimated: the excess over the time between the two uses. All of it is
 * exposed as soon as the transfers of its link take longer than the step.
 *
 * O((candidates + tries) log candidates) and the changes of the tries.
 */
#include "recompute/graph/descent.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define DEARER 1.05       /* a candidate that is dearer by more than this than the next one has to wait */
#define RETURNS_MAX 8     /* of one candidate into the heap */
#define ROUNDS_MAX 8      /* passes over all candidates */
#define IDLE_SHARE 0.02   /* of its time that a transfer costs on a link with time left */
#define ROW_MAX 256       /* redos of a turn whose values are held */
#define SKIP_SHIFT 61     /* one value of eight is left out by chance */
#define REMADE_MAX 8      /* values that one replacement makes again */
#define REMADE_SHIFT 62   /* one input of four is made again, instead of held */
#define CLOCK_TRIES 32    /* between two looks at the clock */
#define WORK_MAX 220      /* edges in evaluated turns, for each op and value: near the floor rows are long */
#define WORK_MIN 4500000  /* the same, of a short graph: a tenth of a second */

/* A range of boundaries in which a value may be released. */
struct candidate {
  double ratio; /* ns per byte and turn */
  int32_t value, from, to;
  uint8_t tier; /* LADE_DEVICE: it is made again */
  uint8_t n_returns;
};

struct descent {
  struct remat_schedule *schedule;
  const struct remat_problem *problem;
  const struct remat_descent_params *params;
  LADE_ARRAY(struct candidate) heap; /* the least ratio first */
  double *time_ns;                   /* by turn: when it begins, if all ops run once */
  int32_t *over_before;              /* by turn: turns before it that are above the limit, as the round begins */
  double in_ns[LADE_N_SPACES], out_ns[LADE_N_SPACES]; /* time of all transfers of each link */
  int64_t n_tries;
  int64_t work_max;  /* of the schedule */
  bool is_over;      /* the time or the work has ended */
};

/* ---- changes that searches share ---- */

/*
 * Find the boundaries around @boundary at which @value is held: up to its next touch, or to the last turn in which its
 * makers may run again. Return false if that lies before the boundary, or if the value is not held there.
 */
static bool gap_around(const struct remat_schedule *schedule, int value, int boundary, struct remat_span *ret_gap)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_value *v = &problem->values[value];
  int to = remat_touch_from(schedule, value, boundary);
  for (int i = 0; i < v->n_makers && schedule->sources[value] == LADE_DEVICE; i++) {
    const int maker = problem->makers[v->first_maker + i];
    if (maker < to)
      to = LADE_MIN(to, problem->ops[maker].redo_until);
  }
  if (to < boundary || !remat_is_held(schedule, value, boundary))
    return false;
  *ret_gap = (struct remat_span){remat_touch_before(schedule, value, boundary) + 1, to};
  return true;
}

bool remat_release_rows_around(struct remat_schedule *schedule, int value, int boundary)
{
  struct remat_span gap;
  if (!gap_around(schedule, value, boundary, &gap))
    return false;
  remat_release_unsettled(schedule, value, gap.from, gap.to);
  remat_rows_settle(schedule);
  return true;
}

bool remat_release_around(struct remat_schedule *schedule, int value, int boundary)
{
  bool is_made = remat_release_rows_around(schedule, value, boundary);
  remat_settle(schedule);
  return is_made;
}

/* Values that a turn makes again. */
struct remade {
  int32_t items[REMADE_MAX];
  int n, turn;
};

/* Hold @value from its previous touch on, if the turn lacks it; or let it be made again, by chance. */
static void input_supply(struct remat_schedule *schedule, struct remade *remade, int value, bool is_drawn,
                         uint64_t *draw)
{
  const struct remat_value *v = &schedule->problem->values[value];
  bool is_there = remat_is_held(schedule, value, remade->turn) || remat_touch_edges(schedule, value, remade->turn);
  bool is_made = v->n_makers == 1 && v->birth >= 0 && schedule->sources[value] == LADE_DEVICE;
  if (is_there || !is_made)
    return;
  for (int i = 0; i < remade->n; i++) {
    if (remade->items[i] == value)
      return;
  }
  *draw = *draw * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
  if (is_drawn && remade->n < REMADE_MAX && !(*draw >> REMADE_SHIFT))
    remade->items[remade->n++] = value;
  else
    remat_hold_unsettled(schedule, value, remat_touch_before(schedule, value, remade->turn) + 1, remade->turn);
}

bool remat_replace_around(struct remat_schedule *schedule, int value, int boundary, uint64_t draw)
{
  const struct remat_problem *problem = schedule->problem;
  const bool is_drawn = draw != REMAT_DRAW_NONE;
  struct remat_span gap;
  if (!gap_around(schedule, value, boundary, &gap))
    return false;
  struct remade remade = {.items = {value}, .n = schedule->sources[value] == LADE_DEVICE, .turn = gap.to};
  remat_release_unsettled(schedule, value, gap.from, gap.to);
  for (int i = 0; i < remade.n; i++) {
    const struct remat_value *v = &problem->values[remade.items[i]];
    for (int k = 0; k < v->n_makers && problem->makers[v->first_maker + k] < gap.to; k++) {
      const struct remat_op *maker = &problem->ops[problem->makers[v->first_maker + k]];
      for (int in = 0; in < maker->n_in; in++)
        input_supply(schedule, &remade, problem->edges[maker->first_in + in].value, is_drawn, &draw);
    }
  }
  remat_settle(schedule);
  return true;
}

void remat_row_hold(struct remat_schedule *schedule, int turn, uint64_t draw)
{
  const bool is_drawn = draw != REMAT_DRAW_NONE;
  const struct remat_problem *problem = schedule->problem;
  int32_t ops[ROW_MAX];
  const struct remat_turn *t = &schedule->turns[turn];
  const int n = LADE_MIN(t->redos.n, ROW_MAX), first = t->redos.n - n;
  for (int i = 0; i < n; i++)
    ops[i] = t->redos.items[first + i];
  remat_turn_defer(schedule, turn);
  for (int i = n - 1; i >= 0 && !schedule->is_broken && !schedule->status; i--) {
    const struct remat_op *op = &problem->ops[ops[i]];
    for (int k = 0; k < op->n_out && !schedule->is_broken && !schedule->status; k++) {
      const int value = problem->edges[op->first_out + k].value;
      const int next = remat_touch_from(schedule, value, turn + 1);
      draw = draw * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
      if (next == INT32_MAX || !remat_is_redone_at(schedule, value, turn) ||
          !remat_is_redone_at(schedule, value, next) || (is_drawn && !(draw >> SKIP_SHIFT)))
        continue;
      remat_hold_unsettled(schedule, value, turn + 1, next);
      remat_rows_settle(schedule); /* which values are made again next depends on no bytes */
    }
  }
  remat_turn_resume(schedule, turn);
}

/* True if @turn makes @value again, and one of the @makers is its first. */
static bool is_of_row(const struct remat_schedule *schedule, int turn, int value, struct remat_span makers)
{
  const int birth = schedule->problem->values[value].birth;
  return birth >= makers.from && birth <= makers.to && remat_is_redone_at(schedule, value, turn);
}

int remat_row_use(const struct remat_schedule *schedule, int turn, struct remat_span makers)
{
  const struct remat_turn *t = &schedule->turns[turn];
  int use = INT32_MAX;
  for (int i = 0; i < t->starts.n; i++)
    if (is_of_row(schedule, turn, t->starts.items[i], makers))
      use = LADE_MIN(use, remat_touch_from(schedule, t->starts.items[i], turn + 1));
  return use;
}

/* Hold @value, if it is of the row of @turn, from behind turn @at on, or from its last touch. Nothing follows yet. */
static bool row_value_advance(struct remat_schedule *schedule, int turn, int at, int value, struct remat_span makers)
{
  if (!is_of_row(schedule, turn, value, makers))
    return false;
  remat_hold_unsettled(schedule, value, LADE_MAX(at, remat_touch_before(schedule, value, turn)) + 1, turn);
  return true;
}

bool remat_row_shift(struct remat_schedule *schedule, int turn, int at, struct remat_span makers)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_turn *t = &schedule->turns[turn];
  const int n_in = at < turn && turn < problem->n_ops ? problem->ops[turn].n_in : 0;
  const int n_lasting = at < turn && turn == problem->n_ops ? problem->n_lasting : 0;
  bool is_changed = false;
  for (int i = t->starts.n - 1; i >= 0; i--) { /* a change takes the value off the list */
    const int value = t->starts.items[i];
    if (at < turn)
      is_changed |= row_value_advance(schedule, turn, at, value, makers);
    else if (is_of_row(schedule, turn, value, makers)) {
      remat_release_unsettled(schedule, value, turn + 1, at);
      is_changed = true;
    }
  }
  for (int i = 0; i < n_in; i++)
    is_changed |= row_value_advance(schedule, turn, at, problem->edges[problem->ops[turn].first_in + i].value, makers);
  for (int i = 0; i < n_lasting; i++)
    is_changed |= row_value_advance(schedule, turn, at, problem->lasting[i], makers);
  remat_settle(schedule);
  return is_changed;
}

/* ---- the heap ---- */

static void heap_down(struct descent *descent, int at)
{
  struct candidate *items = descent->heap.items;
  const struct candidate moved = items[at];
  for (int child; (child = 2 * at + 1) < descent->heap.n; at = child) {
    if (child + 1 < descent->heap.n && items[child + 1].ratio < items[child].ratio)
      child++;
    if (moved.ratio <= items[child].ratio)
      break;
    items[at] = items[child];
  }
  items[at] = moved;
}

static struct candidate heap_pop(struct descent *descent)
{
  const struct candidate top = descent->heap.items[0];
  descent->heap.items[0] = descent->heap.items[--descent->heap.n];
  if (descent->heap.n)
    heap_down(descent, 0);
  return top;
}

static int heap_push(struct descent *descent, struct candidate candidate)
{
  if (!LADE_PUSH(&descent->heap, candidate))
    return -ENOMEM;
  struct candidate *items = descent->heap.items;
  int at = descent->heap.n - 1;
  for (; at > 0 && items[(at - 1) / 2].ratio > candidate.ratio; at = (at - 1) / 2)
    items[at] = items[(at - 1) / 2];
  items[at] = candidate;
  return 0;
}

/* ---- costs ---- */

/* Return the exposed time of one more transfer of @ns on a link whose transfers take @busy_ns. */
static double link_cost(const struct descent *descent, double busy_ns, double ns)
{
  const double step_ns = (double)(descent->problem->base_ns + descent->schedule->redo_ns);
  const double left_ns = LADE_MAX(step_ns - busy_ns, 0);
  return ns <= left_ns ? IDLE_SHARE * ns : ns - left_ns + IDLE_SHARE * left_ns;
}

/* Return the exposed time of moving @value to @tier after turn @from - 1, and back for turn @to. */
static double wait_cost(const struct descent *descent, int value, enum lade_space tier, int from, int to)
{
  const uint64_t bytes = descent->problem->values[value].bytes;
  const double out = list_time_move(&descent->params->links->out[tier], bytes);
  const double in = list_time_move(&descent->params->links->in[tier], bytes);
  const double between = descent->time_ns[to] - descent->time_ns[LADE_MIN(from, to)];
  return LADE_MAX(out + in - between, 0) + link_cost(descent, descent->out_ns[tier], out) +
         link_cost(descent, descent->in_ns[tier], in);
}

/* Return the time of the makers of @value. */
static double makers_ns(const struct remat_problem *problem, int value)
{
  const struct remat_value *v = &problem->values[value];
  double ns = 1;
  for (int i = 0; i < v->n_makers; i++)
    ns += (double)problem->ops[problem->makers[v->first_maker + i]].ns;
  return ns;
}

/* ---- candidates ---- */

/* Add the way to release @value at boundaries from .. to, over @n_over turns, by @tier. */
static int way_add(struct descent *descent, int value, int from, int to, int n_over, enum lade_space tier)
{
  const double bytes = (double)descent->problem->values[value].bytes * n_over;
  const double ns = tier == LADE_DEVICE ? makers_ns(descent->problem, value)
                                        : wait_cost(descent, value, tier, from, to);
  const struct candidate candidate = {ns / bytes, value, from, to, (uint8_t)tier, 0};
  return LADE_PUSH(&descent->heap, candidate) ? 0 : -ENOMEM;
}

/*
 * Add the ways to release @value at boundaries from .. to, between two touches. Turn @to needs it, so it gains nothing.
 */
static int gap_add(struct descent *descent, int value, int from, int to)
{
  const struct remat_descent_params *params = descent->params;
  const int n_over = from < to ? descent->over_before[to] - descent->over_before[from] : 0;
  const enum lade_space source = (enum lade_space)descent->schedule->sources[value];
  int status = 0;
  if (!n_over)
    return 0;
  if (source != LADE_DEVICE)
    return params->links ? way_add(descent, value, from, to, n_over, source) : 0;
  if (!params->is_offload)
    status = way_add(descent, value, from, to, n_over, LADE_DEVICE);
  for (int tier = LADE_HOST; tier <= LADE_STORE && params->links && !status; tier++) {
    if (params->may_wait[tier])
      status = way_add(descent, value, from, to, n_over, (enum lade_space)tier);
  }
  return status;
}

static int value_add(struct descent *descent, int value)
{
  const struct remat_holding *holding = &descent->schedule->holdings[value];
  int status = 0, at = 0;
  if (!descent->problem->values[value].bytes)
    return 0;
  for (int i = 0; i < holding->spans.n && !status; i++) {
    int from = holding->spans.items[i].from;
    while (at < holding->touches.n && holding->touches.items[at].turn < from)
      at++;
    for (; at < holding->touches.n && holding->touches.items[at].turn <= holding->spans.items[i].to && !status; at++) {
      status = gap_add(descent, value, from, holding->touches.items[at].turn);
      from = holding->touches.items[at].turn + 1;
    }
  }
  return status;
}

static int candidates_make(struct descent *descent)
{
  const struct turn_bytes *bytes = &descent->schedule->bytes;
  descent->heap.n = 0;
  descent->over_before[0] = 0;
  for (int t = 0; t < bytes->n; t++)
    descent->over_before[t + 1] = descent->over_before[t] + (turn_bytes_get(bytes, t) > bytes->limit_bytes);
  int status = 0;
  for (int v = 0; v < descent->problem->n_values && !status; v++)
    status = value_add(descent, v);
  for (int i = descent->heap.n / 2 - 1; i >= 0; i--)
    heap_down(descent, i);
  return status;
}

/* ---- tries ---- */

static void clock_look(struct descent *descent)
{
  if (descent->schedule->work > descent->work_max ||
      (++descent->n_tries % CLOCK_TRIES == 0 && lade_now_ns() >= descent->params->deadline_ns))
    descent->is_over = true;
}

static bool is_sound(const struct remat_schedule *schedule)
{
  return !schedule->is_broken && !schedule->status && remat_waiting_fits(schedule);
}

/* Narrow @candidate to its first gap that is held and has a turn above the limit. Return false if there is none. */
static bool gap_find(const struct descent *descent, const struct candidate *candidate, int *ret_from, int *ret_to)
{
  const struct remat_schedule *schedule = descent->schedule;
  for (int from = candidate->from; from <= candidate->to;) {
    const int to = remat_touch_from(schedule, candidate->value, from);
    if (to > candidate->to)
      return false;
    if (from < to && remat_is_held(schedule, candidate->value, to) &&
        turn_bytes_are_over(&schedule->bytes, from, to - 1)) {
      *ret_from = from;
      *ret_to = to;
      return true;
    }
    from = to + 1;
  }
  return false;
}

/* Hold the chain that @turn runs again, if that saves time without more excess. */
static void chain_hold(struct descent *descent, int turn)
{
  struct remat_schedule *schedule = descent->schedule;
  const int mark = remat_mark(schedule);
  const int64_t ns = schedule->redo_ns;
  const double over = remat_over(schedule);
  if (turn == INT32_MAX || schedule->turns[turn].redos.n < 2)
    return;
  remat_row_hold(schedule, turn, REMAT_DRAW_NONE);
  if (schedule->status || (is_sound(schedule) && schedule->redo_ns < ns && remat_over(schedule) <= over))
    return;
  remat_rollback_to(schedule, mark);
}

/* Return the time per byte of excess of a change since the schedule had @ns and @over; infinite if it does not help. */
static double ratio_get(const struct remat_schedule *schedule, int64_t ns, double over, double extra_ns)
{
  const double cost = extra_ns + (double)(schedule->redo_ns - ns), gain = over - remat_over(schedule);
  if (schedule->status || !is_sound(schedule) || gain <= 0)
    return INFINITY;
  return cost > 0 ? cost / gain : 0;
}

double remat_release_cheaper(struct remat_schedule *schedule, int value, int boundary)
{
  const double over = remat_over(schedule);
  const int64_t ns = schedule->redo_ns;
  const int n_redos = schedule->n_redos, mark = remat_mark(schedule);
  if (!remat_release_around(schedule, value, boundary))
    return INFINITY;
  const double alone = ratio_get(schedule, ns, over, 1);
  if (schedule->status || (!schedule->is_broken && schedule->n_redos <= n_redos + 1))
    return alone;
  remat_rollback_to(schedule, mark);
  remat_replace_around(schedule, value, boundary, REMAT_DRAW_NONE);
  const double replaced = ratio_get(schedule, ns, over, 1);
  if (schedule->status || replaced < alone)
    return replaced;
  remat_rollback_to(schedule, mark);
  remat_release_around(schedule, value, boundary);
  return alone;
}

/* Release the gap as @candidate says. Return its ratio; infinite if that is not possible, or does not help. */
static double gap_release(struct descent *descent, const struct candidate *candidate, int from, int to)
{
  struct remat_schedule *schedule = descent->schedule;
  const double over = remat_over(schedule);
  const int64_t ns = schedule->redo_ns;
  const enum lade_space tier = (enum lade_space)candidate->tier;
  bool is_other = schedule->sources[candidate->value] != tier; /* unless another candidate has moved it since */
  if (tier == LADE_DEVICE)
    return is_other ? INFINITY : remat_release_cheaper(schedule, candidate->value, to);
  const double wait_ns = wait_cost(descent, candidate->value, tier, from, to);
  if (is_other)
    remat_source_set(schedule, candidate->value, tier);
  if (!is_sound(schedule) || !remat_release_around(schedule, candidate->value, to))
    return INFINITY;
  return ratio_get(schedule, ns, over, wait_ns);
}

static void transfers_count(struct descent *descent, const struct candidate *candidate)
{
  const enum lade_space tier = (enum lade_space)candidate->tier;
  const uint64_t bytes = descent->problem->values[candidate->value].bytes;
  if (tier == LADE_DEVICE)
    return;
  descent->out_ns[tier] += list_time_move(&descent->params->links->out[tier], bytes);
  descent->in_ns[tier] += list_time_move(&descent->params->links->in[tier], bytes);
}

/* Try the first candidate: release it, or put it back with its new ratio. Set *@is_taken if it was released. */
static int candidate_try(struct descent *descent, bool *is_taken)
{
  struct remat_schedule *schedule = descent->schedule;
  struct candidate candidate = heap_pop(descent);
  int from, to;
  if (!gap_find(descent, &candidate, &from, &to))
    return 0;
  clock_look(descent);
  const double ratio = gap_release(descent, &candidate, from, to);
  if (schedule->status)
    return schedule->status;
  const double next = descent->heap.n ? descent->heap.items[0].ratio : INFINITY;
  bool is_dearer = ratio > next * DEARER && ratio > candidate.ratio && candidate.n_returns < RETURNS_MAX;
  if (isinf(ratio) || is_dearer) {
    remat_rollback(schedule);
    candidate.n_returns++;
    candidate.ratio = ratio;
    candidate.from = isinf(ratio) ? to + 1 : candidate.from; /* the rest may still help */
    candidate.ratio = isinf(ratio) ? next : ratio;
    return candidate.from < candidate.to ? heap_push(descent, candidate) : 0;
  }
  transfers_count(descent, &candidate);
  chain_hold(descent, to);
  remat_commit(schedule);
  *is_taken = true;
  candidate.from = to + 1;
  return candidate.from < candidate.to ? heap_push(descent, candidate) : schedule->status;
}

static int descent_run(struct descent *descent)
{
  int status = 0;
  for (int round = 0; round < ROUNDS_MAX && !status && !descent->is_over; round++) {
    bool is_taken = false;
    status = candidates_make(descent);
    while (!status && descent->heap.n && !descent->is_over && remat_over(descent->schedule) > 0)
      status = candidate_try(descent, &is_taken);
    if (!is_taken || remat_over(descent->schedule) == 0)
      break;
  }
  return status;
}

static void times_make(struct descent *descent)
{
  descent->time_ns[0] = 0;
  for (int t = 0; t < descent->problem->n_ops; t++)
    descent->time_ns[t + 1] = descent->time_ns[t] + (double)descent->problem->ops[t].ns;
}

/* Count transfers that every schedule has: values that live on tiers come from there, and go back if they change. */
static void residents_count(struct descent *descent)
{
  const struct list_time *links = descent->params->links;
  for (int v = 0; v < descent->problem->n_values && links; v++) {
    const struct remat_value *value = &descent->problem->values[v];
    if (remat_is_guest(descent->problem, v))
      continue;
    descent->in_ns[value->home] += list_time_move(&links->in[value->home], value->bytes);
    descent->out_ns[value->home] += value->n_makers ? list_time_move(&links->out[value->home], value->bytes) : 0;
  }
}

int64_t remat_descend(struct remat_schedule *schedule, const struct remat_descent_params *params)
{
  struct descent descent = {.schedule = schedule, .problem = schedule->problem, .params = params};
  const size_t n = (size_t)schedule->problem->n_ops + 2;
  const int64_t work = ((int64_t)schedule->problem->n_ops + schedule->problem->n_values) * WORK_MAX;
  descent.work_max = schedule->work + LADE_MAX((int64_t)((double)work * params->effort), WORK_MIN);
  if (remat_over(schedule) == 0)
    return 0;
  descent.time_ns = malloc(n * sizeof(*descent.time_ns));
  descent.over_before = malloc(n * sizeof(*descent.over_before));
  int status = descent.time_ns && descent.over_before ? 0 : -ENOMEM;
  if (!status) {
    times_make(&descent);
    residents_count(&descent);
    status = descent_run(&descent);
  }
  free(descent.time_ns);
  free(descent.over_before);
  LADE_ARRAY_FREE(&descent.heap);
  return status ? status : descent.n_tries;
}
