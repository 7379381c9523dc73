/* SPDX-License-Identifier: Apache-2.0 */
/* The planning of a caller's step, from its problem to the choices of the plan. */
#ifndef LADE_RECOMPUTE_GRAPH_PLANNING_H
#define LADE_RECOMPUTE_GRAPH_PLANNING_H

#include "lade/graph_plan.h"
#include "recompute/graph/emit.h"
#include "recompute/graph/list_time.h"
#include "recompute/graph/problem.h"
#include "recompute/graph/search/search.h"

/*
 * How a plan may save bytes. One by all ways is no slower than one by fewer, because it begins from these. WAYS_HOMES:
 * storages wait on no tier but that where they live.
 */
enum planning_ways { WAYS_ALL, WAYS_RECOMPUTE, WAYS_TRANSFERS, WAYS_HOMES };

struct graph_planning {
  const struct lade_graph *graph;
  struct lade_graph_plan_params params;
  struct lade_error *error;
  struct remat_problem problem;
  struct lade_graph_plan_info info;
  struct remat_choices smallest; /* of the smallest peak found */
  struct remat_choices nearest; /* the first found within the budget; while there is none, the smallest */
  struct remat_choices choices; /* of the plan */
  double best_ns; /* time of the best choices within the budget, which are the plan's; INFINITY: there are none */
  struct remat_list list;
  struct list_time links;
  int64_t start_ns;
  enum planning_ways ways;
  uint64_t alone_min_bytes; /* the smallest budget found by recompute alone, without its plan; 0: not looked for */
  struct remat_choices moved; /* the smallest schedule found by transfers alone */
  struct lade_graph_plan_info moved_info; /* the figures of that; zeros: not looked for */
};

/* Free all that @planning holds. */
void graph_planning_finish(struct graph_planning *planning);

/* Return the nearest tier on which storages may wait; LADE_DEVICE: there is none. */
enum lade_space graph_planning_tier(const struct lade_graph_plan_params *params);

/* Return the limit of a turn within the budget, without the problem's fixed bytes. */
uint64_t graph_planning_limit(const struct remat_problem *problem, uint64_t budget_bytes);

/*
 * Find the smallest budget, and then the choices of a plan within @budget_bytes, or LADE_GRAPH_BUDGET_MIN; without the
 * list. -ENOSPC: none were found. -ENOMEM. pre: problem and links are there, and best_ns is INFINITY.
 */
int graph_planning_search(struct graph_planning *planning, uint64_t budget_bytes);

/*
 * Bound the time of every step within the budget from below, in info.bound_ns. @known_ns: the time of one; 0: none is
 * known. -ENOMEM.
 */
int graph_planning_bound(struct graph_planning *planning, uint64_t budget_bytes, int64_t known_ns);

#endif
