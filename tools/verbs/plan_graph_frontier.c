/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan --graph --frontier`: the time of a step at every budget, from one run.
 *
 * The smallest budget is found first, and then plans are made at equal steps from it to the unconstrained peak. Each
 * takes the same share of the effort. A search may find less at a larger budget than at a smaller one, but the plan of
 * the smaller budget fits the larger one too. So each point takes the cheaper one of its own plan and that of the point
 * before, and a larger budget is never slower.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tools/report/frontier_plot.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"
#include "tools/verbs/plan_graph.h"

enum { POINTS_MOST = 16 };

struct graph_frontier {
  const struct graph_request *request;
  struct lade_graph_plan_params params; /* of one point */
  struct frontier_point points[POINTS_MOST];
  int n_points;
  int64_t base_ns;
  uint64_t min_budget_bytes; /* the least that a search named */
  struct progress progress;
};

/* Divide the effort between all points. */
static struct lade_graph_plan_params params_share(const struct graph_request *request)
{
  struct lade_graph_plan_params params = request->params;
  if (params.iterations)
    params.iterations = LADE_MAX(params.iterations / POINTS_MOST, 1);
  if (params.time_limit_ns)
    params.time_limit_ns = LADE_MAX(params.time_limit_ns / POINTS_MOST, 1);
  return params;
}

static struct frontier_point point_make(uint64_t budget_bytes, const struct lade_graph_plan_info *info)
{
  return (struct frontier_point){.budget_bytes = budget_bytes, .planned_peak_bytes = info->planned_peak_bytes,
                                 .compute_ns = info->compute_ns, .predicted_step_ns = info->predicted_step_ns,
                                 .bound_ns = info->bound_ns, .n_redone = info->n_redone,
                                 .moved_bytes = info->moved_bytes};
}

/* Let @point be the cheaper one of its own plan and that of @before, a smaller budget. */
static void point_relax(struct frontier_point *point, const struct frontier_point *before)
{
  if (point->predicted_step_ns <= before->predicted_step_ns)
    return;
  const struct frontier_point own = *point;
  *point = *before;
  point->budget_bytes = own.budget_bytes;
  point->bound_ns = own.bound_ns;
}

/* Plan at @budget_bytes, and add the point. A budget in which the search finds nothing takes the point before. */
static int point_add(struct graph_frontier *frontier, uint64_t budget_bytes, struct lade_error *error)
{
  struct lade_graph_plan_info info = {.struct_size = sizeof(info)};
  lade_graph_plan *plan = NULL;
  progress_note(&frontier->progress, "planning at budget %d of %d", frontier->n_points + 1, POINTS_MOST);
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
    point_relax(point, point - 1);
  return 0;
}

/* Plan at all budgets; fewer than POINTS_MOST if the range has fewer bytes. */
static int points_find(struct graph_frontier *frontier, struct lade_error *error)
{
  const uint64_t most = frontier->request->unconstrained_bytes;
  int status = point_add(frontier, LADE_GRAPH_BUDGET_MIN, error);
  const uint64_t least = frontier->points[0].budget_bytes;
  for (int i = 1; i < POINTS_MOST && least < most && !status; i++) {
    const uint64_t range = most - least, n = POINTS_MOST - 1;
    const uint64_t budget_bytes = least + range / n * (uint64_t)i + range % n * (uint64_t)i / n;
    if (budget_bytes > frontier->points[frontier->n_points - 1].budget_bytes)
      status = point_add(frontier, budget_bytes, error);
  }
  return status;
}

static double slowdown_percent(const struct graph_frontier *frontier, int64_t ns)
{
  return frontier->base_ns > 0 ? 100 * ((double)ns / (double)frontier->base_ns - 1) : 0;
}

static void frontier_print(const struct graph_frontier *frontier)
{
  char a[32], b[32], c[32];
  printf("graph         %d ops, %d storages; unconstrained %s in %s\n", lade_graph_n_ops(frontier->request->graph),
         lade_graph_n_storages(frontier->request->graph),
         seconds_format((double)frontier->base_ns / 1e9, a, sizeof(a)),
         lade_size_format(frontier->request->unconstrained_bytes, b, sizeof(b)));
  printf("\n%12s %12s %12s %10s %12s %8s\n", "budget", "planned peak", "predicted", "slower by", "lower bound",
         "redone");
  for (int i = 0; i < frontier->n_points; i++) {
    const struct frontier_point *point = &frontier->points[i];
    printf("%12s %12s", lade_size_format(point->budget_bytes, a, sizeof(a)),
           lade_size_format(point->planned_peak_bytes, b, sizeof(b)));
    printf(" %12s %8.2f %%", seconds_format((double)point->predicted_step_ns / 1e9, a, sizeof(a)),
           slowdown_percent(frontier, point->predicted_step_ns));
    printf(" %12s %8d\n",
           point->bound_ns == INT64_MAX ? "-" : seconds_format((double)point->bound_ns / 1e9, c, sizeof(c)),
           point->n_redone);
  }
}

static json_t *point_json(const struct frontier_point *point)
{
  json_t *object = json_object();
  json_object_set_new(object, "budget_bytes", json_bytes(point->budget_bytes));
  json_object_set_new(object, "planned_peak_bytes", json_bytes(point->planned_peak_bytes));
  json_object_set_new(object, "compute_ns", json_integer(point->compute_ns));
  json_object_set_new(object, "predicted_step_ns", json_integer(point->predicted_step_ns));
  json_object_set_new(object, "bound_ns", point->bound_ns == INT64_MAX ? json_null() : json_integer(point->bound_ns));
  json_object_set_new(object, "n_redone", json_integer(point->n_redone));
  json_object_set_new(object, "moved_bytes", json_bytes(point->moved_bytes));
  return object;
}

static int frontier_dump(const struct graph_frontier *frontier)
{
  json_t *points = json_array();
  for (int i = 0; i < frontier->n_points; i++)
    json_array_append_new(points, point_json(&frontier->points[i]));
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
