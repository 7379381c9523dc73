/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a search over schedules of recompute, and the steps that its parts share. Within search/ alone. */
#ifndef LADE_REMAT_SEARCH_STATE_H
#define LADE_REMAT_SEARCH_STATE_H

#include "recompute/graph/search/search.h"

struct remat_state {
  const struct remat_search_params *params;
  const struct remat_problem *problem;
  struct remat_schedule schedule;
  int64_t timed_state;        /* of the schedule, which was timed last; -1: none */
  double timed_ns;            /* its time */
  struct remat_choices *best; /* the caller's */
  int64_t best_ns;            /* of redos; INT64_MAX: nothing fits so far */
  double best_over;           /* least excess so far, while nothing fits */
  double price;               /* of a byte above the limit in one turn, in ns */
  double temperature;         /* in ns */
  double rise_max;            /* of the energy, with which the move under way is kept */
  const double *prices;       /* of schedules (schedule.h); NULL: none */
  double guidance;            /* part of the priced bytes that counts in the energy */
  double typical_ns;          /* mean time of ops that may run again, at least 1 */
  double largest_ns;          /* of an op that may run again, at least 1 */
  const int32_t *window;      /* values that moves may change; NULL: all */
  int n_window;
  uint64_t random;
  int64_t n_moves;
  bool is_over; /* of time, or nothing is left to improve */
};

/* ---- moves.c ---- */

uint64_t remat_random_next(struct remat_state *search);
int remat_random_below(struct remat_state *search, int n); /* 0 .. n - 1 */
double remat_random_unit(struct remat_state *search);      /* 0 .. 1, without 1 */

/* Return the time of the step beyond that of all ops once. */
double remat_cost_get(struct remat_state *search);

/* Return the energy of the schedule: its time, and the bytes above the limit and of all turns at their prices. */
double remat_energy_get(struct remat_state *search);

/* True if the schedule can be made, and waits within the budgets of tiers. */
bool remat_is_sound(const struct remat_state *search);

/* True if moves may release @value: a given one only if it has links to a tier. */
bool remat_may_release(const struct remat_state *search, int value);

/* Return a value that is held at @boundary and not used there, by chance; -1 if none was drawn. */
int remat_held_draw(struct remat_state *search, int boundary);

/* Try one move; keep it if the energy allows at the temperature. -ENOMEM. */
int remat_move_try(struct remat_state *search);

/* Let the price of bytes above the limit follow the schedule: up while it does not fit, down while it does. */
void remat_price_follow(struct remat_state *search);

/* ---- anneal.c ---- */

/* Save the schedule if it is the best so far. -ENOMEM. */
int remat_best_take(struct remat_state *search);

/* End the search if its time is over. */
void remat_clock_look(struct remat_state *search);

/* Begin again from the schedule of @choices, or from the one that holds no value that can be made again. -ENOMEM. */
int remat_search_restart(struct remat_state *search, const struct remat_choices *choices);
int remat_search_release(struct remat_state *search);

/* Begin again from @choices; the schedule is broken if its redos take longer than @redo_max_ns. -ENOMEM. */
int remat_search_load(struct remat_state *search, const struct remat_choices *choices, int64_t redo_max_ns);

/*
 * Release values until the schedule fits, as far as that goes. By chance first, if @is_drawn and the graph is short:
 * the schedules then differ from one call to the next. -ENOMEM.
 */
int remat_search_descend(struct remat_state *search, bool is_drawn);

/* The same, without chance and with a share of a descent's work (descent.h). -ENOMEM. */
int remat_search_fit(struct remat_state *search, double effort);

/* Count @n moves since the schedule's work was @work; moves of much work count as more. */
void remat_moves_count(struct remat_state *search, int64_t n, int64_t work);

/* Cool down over @n moves of the whole problem, and take the best on the way. -ENOMEM. */
int remat_anneal(struct remat_state *search, int64_t n, double hot_ns, double cold_ns);

/* Improve the schedule, which fits, window by window, until nothing is gained for some time. -ENOMEM. */
int remat_windows_anneal(struct remat_state *search);

/* ---- recombine.c ---- */

/* Release each value that is held up to a turn that does not use it. Check is_broken and status afterwards. */
void remat_waste_release(struct remat_schedule *schedule);

/*
 * Take a window of @second into the schedule, and keep the result if the energy allows at the temperature. pre: nothing
 * is journalled. -ENOMEM.
 */
int remat_recombine(struct remat_state *search, const struct remat_schedule *second);

/* ---- repeat.c ---- */

/*
 * Let repeated layers take the decisions of one that was improved. If there are layers, the schedule is the best one
 * afterwards. pre: a schedule within the limit was found, and nothing waits on tiers. -ENOMEM.
 */
int remat_repeat(struct remat_state *search);

/* ---- temper.c ---- */

/*
 * Find the prices of bytes that give the lower bound, summed up for remat_prices_set, and the bound. The caller frees
 * *ret_sums. -ENOMEM.
 */
int remat_prices_find(const struct remat_state *search, double **ret_sums, int64_t *ret_bound_ns);

/* Search by parallel tempering from the best schedule until moves or time end, or the bound is met. -ENOMEM. */
int remat_temper(struct remat_state *search);

#endif
