/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parallel tempering (Geyer 1991): schedules of the same problem at several temperatures, which neighbours exchange.
 *
 * Annealing freezes into one structure, and beginning again from it keeps that structure. Here the hot schedules go on
 * finding others, and the cold ones refine those that reach them.
 *
 * Temperatures are geometric, down to COLDEST of the time of a typical op. The hottest one falls from HOTTEST_FIRST of
 * that time to HOTTEST_LAST of it over the search. Networks differ in how high their barriers are: HRNet needs three
 * typical ops, where U-ViT does not settle. As the hottest one falls, each schedule passes through all temperatures,
 * and in the end all of them refine. Each temperature has a price of bytes above the limit, which follows its
 * schedules. Two neighbours exchange their schedules with the probability that keeps both distributions: exp of the
 * gain in energy over temperature. A third of the schedules begins from the best, a third from descents by chance, and
 * a third from the one that holds least.
 *
 * After each exchange some schedules of the colder half take windows of others (recombine.c). The hotter half does not,
 * because it has to stay different.
 *
 * From time to time the best schedule, if it is new, is improved window by window, and takes the coldest place.
 *
 * Every other schedule is guided: its energy also has the bytes of all turns, at the prices of the lower bound
 * (relax.c). At these prices a value that is held where bytes are scarce adds to the energy, so single moves drop it.
 * Without prices that takes an exchange of several values at the limit. Where the bound is far below the best schedule
 * its prices mislead, and the schedules without guidance find more.
 *
 * The search ends when the bound shows that less than PROVED_SHARE of the step can be gained.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "recompute/graph/bound.h"
#include "recompute/graph/search/search_state.h"

#define REPLICAS 6 /* with eight, each has too few moves to settle within ten seconds */
#define HOTTEST_FIRST 3.0 /* temperatures, of the time of a typical op */
#define HOTTEST_LAST 0.1
#define COLDEST 0.03      /* where schedules only refine */
#define HOT_MOVES_MIN 400000 /* a search of fewer moves begins at the time of a typical op: it needs them all there */
#define SWEEP_MOVES 50    /* moves of each schedule between two exchanges, and between two changes of its price */
#define RECOMBINATIONS 2  /* between two exchanges; with more the replicas become alike, and seeds differ by more */
#define POLISH_MOVES 400  /* for each op, between two looks for a new best */
#define POLISH_SHARE 0.95 /* part of the moves after which the best is improved for the last time */
#define PROVED_SHARE 1e-5 /* of the unconstrained step */

/* A schedule and the temperature at which it moves. The search holds the schedule while it sweeps. */
struct replica {
  struct remat_schedule schedule;
  double price, temperature, guidance;
};

struct tempering {
  struct remat_state *search;
  struct replica replicas[REPLICAS];
  double *prices;    /* remat_prices_set */
  int64_t proved_ns; /* time of redos at which the search ends */
  int64_t begin_moves, begin_ns;
};

/* Exchange the schedule and the price of the search with those of @replica. */
static void replica_swap(struct remat_state *search, struct replica *replica)
{
  const struct remat_schedule schedule = search->schedule;
  const double price = search->price;
  search->schedule = replica->schedule;
  search->price = replica->price;
  replica->schedule = schedule;
  replica->price = price;
  search->temperature = replica->temperature;
  search->guidance = replica->guidance;
}

/* Begin one replica. pre: it has no schedule. */
static int replica_begin(struct remat_state *search, struct replica *replica, int index)
{
  const struct remat_choices none = {.is_saved = false};
  int status = 0;
  replica_swap(search, replica);
  if (index % 3 == 1) {
    status = remat_search_restart(search, &none);
    if (!status)
      status = remat_search_descend(search, true);
  } else if (index % 3 == 2)
    status = remat_search_release(search);
  bool has_none = !status && index % 3 == 2 && search->schedule.is_broken; /* no schedule holds so little */
  if (!status && (index % 3 == 0 || has_none))
    status = remat_search_restart(search, search->best);
  replica_swap(search, replica);
  return status;
}

/* Set the temperatures to those at @part, 0 to 1, of the search. */
static void temperatures_set(const struct remat_state *search, struct replica *replicas, double part)
{
  const double first = search->params->n_moves >= HOT_MOVES_MIN ? HOTTEST_FIRST : 1;
  const double hottest = first * pow(HOTTEST_LAST / first, part);
  for (int i = 0; i < REPLICAS; i++)
    replicas[i].temperature = search->typical_ns * hottest * pow(COLDEST / hottest, (double)i / (REPLICAS - 1));
}

static int replicas_begin(struct remat_state *search, struct replica *replicas)
{
  const double price = search->price;
  int status = 0;
  temperatures_set(search, replicas, 0);
  for (int i = 0; i < REPLICAS && !status; i++) {
    replicas[i].price = price;
    replicas[i].guidance = i & 1;
    status = replica_begin(search, &replicas[i], i);
  }
  return status;
}

static int sweep(struct remat_state *search, struct replica *replica)
{
  int status = 0;
  replica_swap(search, replica);
  const int64_t work = search->schedule.work;
  for (int i = 0; i < SWEEP_MOVES && !status && !search->is_over; i++) {
    status = remat_move_try(search);
    remat_commit(&search->schedule);
    if (!status)
      status = remat_best_take(search);
  }
  remat_price_follow(search);
  remat_clock_look(search);
  const int64_t before = search->n_moves;
  remat_moves_count(search, SWEEP_MOVES, work);
  LADE_ASSERT(!LADE_CHECK_FULL || status || search->n_moves % 65536 >= search->n_moves - before ||
              remat_schedule_is_valid(&search->schedule));
  replica_swap(search, replica);
  return status;
}

/* Let a replica of the colder half take a window of any other one, both drawn. */
static int recombine(struct remat_state *search, struct replica *replicas)
{
  const int at = REPLICAS - 1 - remat_random_below(search, REPLICAS / 2), other = remat_random_below(search, REPLICAS);
  int status = 0;
  if (at == other)
    return 0;
  replica_swap(search, &replicas[at]);
  status = remat_recombine(search, &replicas[other].schedule);
  replica_swap(search, &replicas[at]);
  return status;
}

/* Return the energy over the temperature that @schedule has at the place of @replica. */
static double energy_at(const struct replica *replica, const struct remat_schedule *schedule)
{
  const double ns = (double)schedule->redo_ns + replica->price * remat_over(schedule);
  return (ns + replica->guidance * schedule->priced_ns) / replica->temperature;
}

/* Let neighbours exchange their schedules: the even pairs, or the odd ones. */
static void exchange(struct remat_state *search, struct replica *replicas, int first)
{
  for (int i = first; i + 1 < REPLICAS; i += 2) {
    struct replica *a = &replicas[i], *b = &replicas[i + 1];
    const double gain = energy_at(a, &a->schedule) + energy_at(b, &b->schedule) - energy_at(a, &b->schedule) -
                        energy_at(b, &a->schedule);
    if (gain < 0 && remat_random_unit(search) >= exp(gain))
      continue;
    const struct remat_schedule schedule = a->schedule;
    a->schedule = b->schedule;
    b->schedule = schedule;
  }
}

/* Improve the best schedule window by window, and let it take the coldest place. */
static int polish(struct remat_state *search, struct replica *coldest)
{
  int status = remat_search_restart(search, search->best);
  search->guidance = 0;
  if (!status)
    status = remat_windows_anneal(search);
  if (status || search->is_over)
    return status;
  replica_swap(search, coldest);
  status = remat_search_restart(search, search->best);
  replica_swap(search, coldest);
  return status;
}

/* Return the moves after which the search ends. */
static int64_t moves_max(const struct remat_state *search)
{
  return search->best_ns < INT64_MAX ? search->params->n_moves : search->params->fit_moves;
}

/* Return the part of the moves or of the time, whichever is larger, that has passed since tempering began, 0 to 1. */
static double passed_part(const struct tempering *tempering)
{
  const struct remat_state *search = tempering->search;
  const int64_t end_ns = search->best_ns < INT64_MAX ? search->params->deadline_ns : search->params->fit_deadline_ns;
  const double moves = (double)(search->n_moves - tempering->begin_moves) /
                       (double)LADE_MAX(moves_max(search) - tempering->begin_moves, 1);
  const double time = end_ns == INT64_MAX ? 0 : (double)(lade_now_ns() - tempering->begin_ns) /
                                                    (double)LADE_MAX(end_ns - tempering->begin_ns, 1);
  return LADE_MIN(LADE_MAX(moves, time), 1);
}

static int replicas_run(struct tempering *tempering)
{
  struct remat_state *search = tempering->search;
  struct replica *replicas = tempering->replicas;
  const int64_t between = (int64_t)search->problem->n_ops * POLISH_MOVES;
  const int64_t last_moves = (int64_t)((double)search->params->n_moves * POLISH_SHARE);
  int64_t polished_ns = search->best_ns, next_moves = search->n_moves + between;
  int status = 0;
  for (int k = 0; !status && !search->is_over && search->n_moves < moves_max(search); k ^= 1) {
    temperatures_set(search, replicas, passed_part(tempering));
    for (int i = 0; i < REPLICAS && !status && !search->is_over; i++)
      status = sweep(search, &replicas[i]);
    exchange(search, replicas, k);
    for (int i = 0; i < RECOMBINATIONS && !status && !search->is_over; i++)
      status = recombine(search, replicas);
    search->is_over = search->is_over || search->best_ns <= tempering->proved_ns;
    if (status || search->is_over || search->n_moves < LADE_MIN(next_moves, last_moves))
      continue;
    next_moves = search->n_moves + between;
    if (search->best_ns < polished_ns)
      status = polish(search, &replicas[REPLICAS - 1]);
    polished_ns = search->best_ns;
  }
  return status;
}

int remat_prices_find(const struct remat_state *search, double **ret_sums, int64_t *ret_bound_ns)
{
  const struct remat_problem *problem = search->problem;
  const size_t n = (size_t)problem->n_ops + 1;
  double *prices = calloc(n, sizeof(*prices)), *sums = calloc(n + 1, sizeof(*sums));
  const int64_t known_ns = search->best_ns < INT64_MAX ? problem->base_ns + search->best_ns : 0;
  struct remat_bound_params bound_params = {.problem = problem, .limit_bytes = search->params->limit_bytes,
                                            .known_ns = known_ns, .ret_prices = prices};
  const int status = prices && sums ? remat_bound_find(&bound_params, ret_bound_ns) : -ENOMEM;
  for (size_t t = 0; t < n && !status; t++)
    sums[t + 1] = sums[t] + prices[t];
  free(prices);
  if (status)
    free(sums);
  else
    *ret_sums = sums;
  return status;
}

/* Find the prices of bytes, and the time of redos that is as good as the bound. */
static int prices_make(struct tempering *tempering)
{
  struct remat_state *search = tempering->search;
  const int64_t base_ns = search->problem->base_ns;
  int64_t bound_ns = 0;
  const int status = remat_prices_find(search, &tempering->prices, &bound_ns);
  tempering->proved_ns = bound_ns - base_ns + (int64_t)(PROVED_SHARE * (double)base_ns);
  search->prices = tempering->prices;
  return status;
}

int remat_temper(struct remat_state *search)
{
  struct tempering tempering = {.search = search, .begin_moves = search->n_moves, .begin_ns = lade_now_ns()};
  int status = prices_make(&tempering);
  search->is_over = search->is_over || search->best_ns <= tempering.proved_ns;
  if (!status && !search->is_over)
    status = replicas_begin(search, tempering.replicas);
  if (!status && !search->is_over)
    status = replicas_run(&tempering);
  for (int i = 0; i < REPLICAS; i++)
    remat_schedule_finish(&tempering.replicas[i].schedule);
  remat_prices_set(&search->schedule, NULL);
  search->prices = NULL;
  search->guidance = 0;
  free(tempering.prices);
  return status;
}
