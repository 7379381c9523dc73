/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recombine two schedules of one problem: the child is the first one, except in a window, where it is the second.
 *
 * Single moves improve one place at a time. So a schedule that is good in one part of the network and poor in another
 * takes long to repair. Another schedule may be good there already. A window is one of two kinds:
 *
 *   births  values that the ops of the window make have the spans of the second schedule
 *   turns   at the boundaries of the window all values are held as in the second schedule
 *
 * The first kind keeps the time of most redos, but the sum of bytes may be above the limit. The second one keeps the
 * bytes of turns, but values that are held at its ends in one schedule alone are made again there. The child releases
 * bytes that no op uses, and descends to the limit (descent.c). It replaces the first schedule if the temperature
 * allows its energy.
 *
 * O(n_ops * operands) for each child.
 */
#include <errno.h>
#include <math.h>

#include "recompute/graph/search/search_state.h"

#define WINDOW_OPS_MIN 4    /* ops or boundaries of the shortest window */
#define WINDOW_SHARE_MAX 2  /* a window has at most one op in so many */

/* Ops or boundaries from .. to, both included. */
struct recombine_window {
  int from, to;
  bool is_births;
};

/* Draw a window whose length has a logarithm of even chance. */
static struct recombine_window window_draw(struct remat_state *search)
{
  const int n_ops = search->problem->n_ops, max = LADE_MAX(n_ops / WINDOW_SHARE_MAX, WINDOW_OPS_MIN);
  const double growth = pow((double)max / WINDOW_OPS_MIN, remat_random_unit(search));
  const int length = (int)(WINDOW_OPS_MIN * growth);
  const int from = remat_random_below(search, LADE_MAX(n_ops - length, 0) + 1);
  return (struct recombine_window){from, from + length - 1, remat_random_below(search, 2)};
}

/* Append the part of @span within from .. to, joined with the value's last span if they touch. -ENOMEM. */
static int span_append(struct remat_choices *child, int value, struct remat_span span, int from, int to)
{
  const struct remat_choice choice = {value, {LADE_MAX(span.from, from), LADE_MIN(span.to, to)}};
  struct remat_choice *last = child->list.n ? &child->list.items[child->list.n - 1] : NULL;
  if (choice.span.from > choice.span.to)
    return 0;
  if (last && last->value == value && last->span.to + 1 >= choice.span.from) {
    last->span.to = LADE_MAX(last->span.to, choice.span.to);
    return 0;
  }
  return LADE_PUSH(&child->list, choice) ? 0 : -ENOMEM;
}

static int spans_append(struct remat_choices *child, int value, const struct remat_schedule *schedule, int from, int to)
{
  const struct remat_holding *holding = &schedule->holdings[value];
  int status = 0;
  for (int i = 0; i < holding->spans.n && !status; i++)
    status = span_append(child, value, holding->spans.items[i], from, to);
  return status;
}

/* Make the decisions of the child. -ENOMEM. */
static int child_make(const struct remat_schedule *first, const struct remat_schedule *second,
                      const struct recombine_window *window, struct remat_choices *child)
{
  const struct remat_problem *problem = first->problem;
  int status = 0;
  child->is_saved = true;
  for (int v = 0; v < problem->n_values && !status; v++) {
    const int birth = problem->values[v].birth;
    bool is_within = birth >= window->from && birth <= window->to;
    const struct remat_waiting waiting = {v, first->sources[v]};
    if (waiting.tier != problem->values[v].source && !LADE_PUSH(&child->waiting, waiting))
      return -ENOMEM;
    if (window->is_births || remat_is_given(problem, v)) {
      status = spans_append(child, v, is_within ? second : first, 0, problem->n_ops);
      continue;
    }
    status = spans_append(child, v, first, 0, window->from - 1);
    if (!status)
      status = spans_append(child, v, second, window->from, window->to);
    if (!status)
      status = spans_append(child, v, first, window->to + 1, problem->n_ops);
  }
  return status;
}

void remat_waste_release(struct remat_schedule *schedule)
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

/* Let the child be the search's schedule, and bring it within the limit. Return false if it cannot be made. */
static bool child_load(struct remat_state *search, const struct remat_choices *child, int *status)
{
  *status = remat_search_restart(search, child);
  if (*status)
    return false;
  remat_waste_release(&search->schedule);
  *status = search->schedule.status;
  if (*status || search->schedule.is_broken)
    return false;
  remat_commit(&search->schedule);
  *status = remat_search_descend(search, false);
  return !*status && remat_is_sound(search);
}

int remat_recombine(struct remat_state *search, const struct remat_schedule *second)
{
  const struct recombine_window window = window_draw(search);
  const double before = remat_energy_get(search);
  struct remat_choices child = {0};
  int status = child_make(&search->schedule, second, &window, &child);
  const struct remat_schedule first = search->schedule;
  search->schedule = (struct remat_schedule){0};
  bool is_made = !status && child_load(search, &child, &status);
  remat_choices_free(&child);
  const double rise = is_made ? remat_energy_get(search) - before : INFINITY;
  if (rise <= 0 || remat_random_unit(search) < exp(-rise / search->temperature)) {
    struct remat_schedule old = first;
    remat_schedule_finish(&old);
    return status;
  }
  remat_schedule_finish(&search->schedule);
  search->schedule = first;
  return status;
}
