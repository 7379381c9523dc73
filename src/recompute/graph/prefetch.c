/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Place the gets of a schedule: late enough to leave bytes to others, early enough to end in time.
 *
 * First each get goes to the turn that needs it. Then the turns are walked backward with the time at which each link
 * is needed next. A get takes the last free time of its link before that. Its value is held from the turn that runs
 * then, or from the turn after the last one that has no room for the value. The walk counts the bytes of held values in
 * a copy, and all holds are made after the walk. So a turn in which many gets begin is evaluated once.
 *
 * The times of turns are those of the ops alone, first. If links are the bottleneck, turns wait, and times without
 * waits place gets too early. So further walks take the times of the best list so far. The best list stays; it may be
 * the one that the schedule had.
 *
 * O(gets * (log n_ops + blocks of turns)) and one timing of the list for each walk.
 */
#include "recompute/graph/prefetch.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recompute/graph/descent.h"

#define WALKS 3 /* at most: a walk that gains nothing is the last one */

/* @value, which turn @turn needs, is got in turn @from; @best_from: in the best list so far. */
struct placed_get {
  int32_t value, turn, from, best_from;
};

struct prefetch {
  struct remat_schedule *schedule;
  struct list_time *links;
  double *time_ns;               /* by turn: when it begins */
  double next_ns[LADE_N_SPACES]; /* when the link into the device is needed next */
  struct turn_bytes bytes;       /* of turns, with the gets placed so far */
  LADE_ARRAY(struct placed_get) gets; /* by turn, the last first */
};

static bool is_sound(const struct remat_schedule *schedule)
{
  return !schedule->is_broken && !schedule->status && remat_waiting_fits(schedule) && remat_over(schedule) == 0;
}

/* Return the value that redo @i of the turn gets back; -1: it is no get. Gets come first. */
static int got_value(const struct remat_schedule *schedule, int turn, int i)
{
  const struct remat_turn *t = &schedule->turns[turn];
  const int n_ops = schedule->problem->n_ops;
  return i < t->redos.n && t->redos.items[i] >= n_ops ? t->redos.items[i] - n_ops : -1;
}

/* Let each value that a turn gets for a later one be got by that one. */
static void gets_defer(struct remat_schedule *schedule)
{
  for (int turn = 0; turn < schedule->problem->n_ops; turn++) {
    for (int i = 0, v; (v = got_value(schedule, turn, i)) >= 0; i++) {
      const int next = remat_touch_from(schedule, v, turn + 1);
      if (next != INT32_MAX && remat_touch_edges(schedule, v, turn) == 1 && remat_is_held(schedule, v, turn + 1) &&
          remat_is_held(schedule, v, next))
        remat_release_unsettled(schedule, v, turn + 1, next);
    }
  }
  remat_settle(schedule);
}

static int gets_list(struct prefetch *prefetch)
{
  for (int turn = prefetch->schedule->problem->n_ops; turn >= 0; turn--) {
    for (int i = 0, v; (v = got_value(prefetch->schedule, turn, i)) >= 0; i++) {
      const struct placed_get get = {v, turn, turn, turn};
      if (remat_is_redone_at(prefetch->schedule, v, turn) && !LADE_PUSH(&prefetch->gets, get))
        return -ENOMEM;
    }
  }
  return 0;
}

/* Return the last turn of first .. turn that begins by @ns; @first: none does. */
static int turn_at(const struct prefetch *prefetch, int first, int turn, double ns)
{
  int lo = first, hi = turn;
  while (lo < hi) {
    const int mid = hi - (hi - lo) / 2;
    if (prefetch->time_ns[mid] <= ns)
      lo = mid;
    else
      hi = mid - 1;
  }
  return lo;
}

static void get_place(struct prefetch *prefetch, struct placed_get *get)
{
  struct remat_schedule *schedule = prefetch->schedule;
  const enum lade_space tier = (enum lade_space)schedule->sources[get->value];
  const int64_t bytes = (int64_t)schedule->problem->values[get->value].bytes;
  const double end_ns = LADE_MIN(prefetch->next_ns[tier], prefetch->time_ns[get->turn]);
  const double begin_ns = end_ns - list_time_move(&prefetch->links->in[tier], (uint64_t)bytes);
  const int first = LADE_MAX(remat_touch_before(schedule, get->value, get->turn), 0);
  const int from = turn_at(prefetch, LADE_MIN(first + 1, get->turn), get->turn, begin_ns);
  const int full = turn_bytes_last_above(&prefetch->bytes, from, get->turn - 1, prefetch->bytes.limit_bytes - bytes);
  get->from = LADE_MAX(from, full + 1);
  prefetch->next_ns[tier] = LADE_MAX(begin_ns, prefetch->time_ns[get->from] - (end_ns - begin_ns));
  if (get->from < get->turn)
    turn_bytes_add(&prefetch->bytes, get->from, get->turn - 1, bytes);
}

/* Hold the values from the turns where they are got. */
static void gets_hold(struct prefetch *prefetch)
{
  for (int i = 0; i < prefetch->gets.n; i++) {
    const struct placed_get *get = &prefetch->gets.items[i];
    if (get->from < get->turn)
      remat_hold_unsettled(prefetch->schedule, get->value, get->from + 1, get->turn);
  }
  remat_settle(prefetch->schedule);
}

/* Place all gets for turns that begin at time_ns, and hold their values. */
static int gets_place(struct prefetch *prefetch)
{
  const int status = turn_bytes_copy(&prefetch->bytes, &prefetch->schedule->bytes);
  if (status)
    return status;
  for (int tier = 0; tier < LADE_N_SPACES; tier++)
    prefetch->next_ns[tier] = INFINITY;
  for (int i = 0; i < prefetch->gets.n; i++)
    get_place(prefetch, &prefetch->gets.items[i]);
  turn_bytes_finish(&prefetch->bytes);
  gets_hold(prefetch);
  return prefetch->schedule->status;
}

static void times_make(struct prefetch *prefetch)
{
  const struct remat_problem *problem = prefetch->schedule->problem;
  prefetch->time_ns[0] = 0;
  for (int t = 0; t < problem->n_ops; t++)
    prefetch->time_ns[t + 1] = prefetch->time_ns[t] + (double)prefetch->schedule->turns[t].redo_ns +
                               (double)problem->ops[t].ns;
}

/* Walk from several times of turns. Each walk is undone; best_from has the best. Return its time. */
static int walks_run(struct prefetch *prefetch, double *best_ns)
{
  struct remat_schedule *schedule = prefetch->schedule;
  const size_t n = (size_t)schedule->problem->n_ops + 1;
  const int mark = remat_mark(schedule);
  int status = 0;
  bool is_better = true;
  for (int walk = 0; walk < WALKS && is_better && !status; walk++) {
    status = gets_place(prefetch);
    const double ns = !status && is_sound(schedule) ? list_time_get(prefetch->links, schedule) : INFINITY;
    is_better = ns < *best_ns;
    for (int i = 0; i < prefetch->gets.n && is_better; i++)
      prefetch->gets.items[i].best_from = prefetch->gets.items[i].from;
    *best_ns = LADE_MIN(*best_ns, ns);
    memcpy(prefetch->time_ns, prefetch->links->begin_ns, n * sizeof(*prefetch->time_ns));
    remat_rollback_to(schedule, mark);
  }
  return status;
}

/* Place the gets, and keep the result if it is better than @before_ns. */
static int prefetch_run(struct prefetch *prefetch, double before_ns)
{
  struct remat_schedule *schedule = prefetch->schedule;
  double best_ns = before_ns;
  gets_defer(schedule);
  int status = schedule->status;
  if (!status && is_sound(schedule)) {
    times_make(prefetch);
    status = gets_list(prefetch);
    if (!status)
      status = walks_run(prefetch, &best_ns);
    for (int i = 0; i < prefetch->gets.n; i++)
      prefetch->gets.items[i].from = prefetch->gets.items[i].best_from;
    if (!status && best_ns < before_ns)
      gets_hold(prefetch);
  }
  if (status || best_ns >= before_ns)
    remat_rollback(schedule);
  return status;
}

int remat_prefetch(struct remat_schedule *schedule, struct list_time *links)
{
  struct prefetch prefetch = {.schedule = schedule, .links = links};
  if (!schedule->n_waits || remat_over(schedule) > 0)
    return 0;
  prefetch.time_ns = malloc(((size_t)schedule->problem->n_ops + 1) * sizeof(*prefetch.time_ns));
  int status = prefetch.time_ns ? prefetch_run(&prefetch, list_time_get(links, schedule)) : -ENOMEM;
  remat_commit(schedule);
  free(prefetch.time_ns);
  LADE_ARRAY_FREE(&prefetch.gets);
  return status ? status : schedule->status;
}
