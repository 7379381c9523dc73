/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a schedule with transfers; list_time.c has the model. */
#ifndef LADE_LIST_TIME_H
#define LADE_LIST_TIME_H

#include "lade/graph_plan.h"
#include "recompute/graph/schedule.h"

/* A put under way, whose bytes are free at its end. */
struct list_time_put {
  double end_ns;
  uint64_t bytes;
};

struct list_time {
  const struct remat_problem *problem; /* borrowed */
  struct lade_graph_path out[LADE_N_SPACES], in[LADE_N_SPACES]; /* paths, by tier; rate 0: no path */
  double *begin_ns; /* by turn: when it begins in the list that was timed last, before its waits */
  /* scratch */
  struct list_time_put *puts;
  struct remat_get *gets;
  double *arrival_ns; /* by value: time at which its last get ends */
  int32_t *first_put, *next_put; /* by turn, by value: list of the values put after the turn; -1: end */
};

/* Prepare to time schedules of @problem over the paths of @params. Borrows @problem. -ENOMEM. */
int list_time_init(struct list_time *time, const struct remat_problem *problem,
                   const struct lade_graph_plan_params *params);
void list_time_finish(struct list_time *time);

/* Return the predicted time of a step in ns. O(n_ops + uses). */
double list_time_get(struct list_time *time, const struct remat_schedule *schedule);

/* Return the time of one transfer of @bytes. */
static inline double list_time_move(const struct lade_graph_path *path, uint64_t bytes)
{
  return (double)path->latency_ns + (double)bytes / path->bytes_per_s * 1e9;
}

#endif
