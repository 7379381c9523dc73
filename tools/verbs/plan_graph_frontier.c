/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan --graph --frontier`: the time of a step at every budget, from one run.
 *
 * The smallest budget is found first, and then plans are made at equal steps from it to the unconstrained peak. Each
 * takes the same share of the effort. A search may find less at a larger budget than at a smaller one. So each point
 * takes the faster one of its own plan and that of the point before, and a larger budget is never slower.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tools/report/frontier_points.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"
#include "tools/verbs/plan_graph.h"

struct graph_frontier {
  const struct graph_request *request;
  struct lade_graph_plan_params params; /* of one point */
  struct frontier_point points[FRONTIER_POINTS_MAX];
  int n_points;
  int64_t base_ns;
  uint64_t min_budget_bytes; /* the smallest budget that a search found */
  struct progress progress;
};

/* Divide the effort between all points. */
static struct lade_graph_plan_params params_share(const struct graph_request *request)
{
  struct lade_graph_plan_params params = request->params;
  if (params.iterations)
    params.iterations = LADE_MAX(params.iterations / FRONTIER_POINTS_MAX, 1);
  if (params.time_limit_ns)
    params.time_limit_ns = LADE_MAX(params.time_limit_ns / FRONTIER_POINTS_MAX, 1);
  else if (!params.iterations)
    params.iterations = LADE_GRAPH_ITERATIONS; /* a plan of one budget may take more */
  return params;
}

static struct frontier_point point_make(uint64_t budget_bytes, const struct lade_graph_plan_info *info)
{
  return (struct frontier_point){.budget_bytes = budget_bytes, .planned_peak_bytes = info->planned_peak_bytes,
                                 .compute_ns = info->compute_ns, .predicted_step_ns = info->predicted_step_ns,
                                 .bound_ns = info->bound_ns, .n_redone = info->n_redone,
                                 .moved_bytes = info->moved_bytes};
}

/* Plan at @budget_bytes, and add the point. A budget in which the search finds nothing takes the point before. */
static int point_add(struct graph_frontier *frontier, uint64_t budget_bytes, struct lade_error *error)
{
  struct lade_graph_plan_info info = {.struct_size = sizeof(info)};
  lade_graph_plan *plan = NULL;
  progress_note(&frontier->progress, "planning at budget %d of %d", frontier->n_points + 1, FRONTIER_POINTS_MAX);
  frontier->params.budget_bytes = budget_bytes;
  int status = lade_graph_plan_find(frontier->request->graph, &frontier->params, error, &info, &plan);
  lade_graph_plan_destroy(plan);
  if (status == -ENOSPC && frontier->n_points > 0) {
    info.predicted_step_ns = INT64_MAX;
    status = 0;
  }
  if (status)
    return status;
  frontier->base_ns = info.base_ns;
  if (!frontier->n_points || info.min_budget_bytes < frontier->min_budget_bytes)
    frontier->min_budget_bytes = info.min_budget_bytes;
  if (budget_bytes == LADE_GRAPH_BUDGET_MIN)
    budget_bytes = info.planned_peak_bytes;
  struct frontier_point *point = &frontier->points[frontier->n_points];
  *point = point_make(budget_bytes, &info);
  if (frontier->n_points++)
    frontier_point_relax(point, point - 1);
  return 0;
}

/* Plan at all budgets; fewer than FRONTIER_POINTS_MAX if the range has fewer bytes. */
static int points_find(struct graph_frontier *frontier, struct lade_error *error)
{
  const uint64_t max = frontier->request->unconstrained_bytes;
  int status = point_add(frontier, LADE_GRAPH_BUDGET_MIN, error);
  const uint64_t min = frontier->points[0].budget_bytes;
  for (int i = 1; i < FRONTIER_POINTS_MAX && min < max && !status; i++) {
    const uint64_t budget_bytes = frontier_budget(min, max, i);
    if (budget_bytes > frontier->points[frontier->n_points - 1].budget_bytes)
      status = point_add(frontier, budget_bytes, error);
  }
  return status;
}

static void frontier_print(const struct graph_frontier *frontier)
{
  char a[32], b[32];
  printf("graph         %d ops, %d storages; unconstrained %s in %s\n", lade_graph_n_ops(frontier->request->graph),
         lade_graph_n_storages(frontier->request->graph),
         seconds_format((double)frontier->base_ns / 1e9, a, sizeof(a)),
         lade_size_format(frontier->request->unconstrained_bytes, b, sizeof(b)));
  frontier_points_print(frontier->points, frontier->n_points, frontier->base_ns);
}

static int frontier_dump(const struct graph_frontier *frontier)
{
  json_t *points = frontier_points_json(frontier->points, frontier->n_points);
  return json_print(json_pack("{s:i, s:o, s:o, s:o, s:I, s:o}", "schema_version", REPORT_SCHEMA_VERSION,
                              "unconstrained_bytes", json_bytes(frontier->request->unconstrained_bytes),
                              "min_budget_bytes", json_bytes(frontier->min_budget_bytes), "floor_bytes",
                              json_bytes(frontier->request->floor_bytes), "base_ns", (json_int_t)frontier->base_ns,
                              "points", points));
}

static int frontier_draw(const struct graph_frontier *frontier, struct lade_error *error)
{
  const struct options *options = frontier->request->options;
  const char *slash = strrchr(options->graph, '/');
  const struct frontier_plot plot = {.title = slash && slash[1] ? slash + 1 : options->graph,
                                     .points = frontier->points, .n_points = frontier->n_points,
                                     .base_ns = frontier->base_ns};
  return frontier_plot_write(&plot, options->svg, error);
}

int plan_graph_frontier(const struct graph_request *request, struct lade_error *error)
{
  struct graph_frontier frontier = {.request = request, .params = params_share(request)};
  progress_init(&frontier.progress, request->options->is_quiet, 0, 0);
  int status = points_find(&frontier, error);
  progress_clear(&frontier.progress);
  if (!status && request->options->svg)
    status = frontier_draw(&frontier, error);
  if (!status && request->options->is_json)
    status = frontier_dump(&frontier);
  else if (!status)
    frontier_print(&frontier);
  return status;
}
