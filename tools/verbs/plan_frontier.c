/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan --frontier` of a model: its step at up to 16 budgets, from the smallest one to the unconstrained peak.
 *
 * Each point is a plan as `lade plan --budget` makes it, of all ranks. The machine is measured once, for the first
 * plan: the others use that description, so that points differ by their budgets alone.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/cli/verbs.h"
#include "tools/report/frontier_points.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"
#include "tools/verbs/plan.h"
#include "tools/verbs/plan_ranks.h"

struct model_frontier {
  struct options options; /* of one point */
  struct frontier_point points[FRONTIER_POINTS_MAX];
  int n_points;
  struct lade_plan_bounds bounds;
  char model[64];
  struct lade_error error;
};

/* Write the machine of @info, which was measured, into a new file @path, and let the next plans read it. */
static int machine_keep(struct model_frontier *frontier, const struct lade_session_info *info, char *path)
{
  const int fd = mkstemp(path);
  if (fd < 0)
    return lade_error_set(&frontier->error, -errno, "%s: %s", path, strerror(errno));
  close(fd);
  frontier->options.session.machine = path;
  return lade_machine_save(&info->cost->machine, path, &frontier->error);
}

static void point_add(struct model_frontier *frontier, uint64_t budget_bytes, const struct ranks_plan *ranks)
{
  const struct lade_plan *plan = ranks->stages[0].info.plan;
  struct frontier_point *point = &frontier->points[frontier->n_points];
  bool has_stages = ranks->stages[0].info.layout.mesh.world > 1;
  *point = (struct frontier_point){.budget_bytes = budget_bytes, .planned_peak_bytes = ranks_plan_peak(ranks),
                                   .compute_ns = plan->train->predicted_busy_ns[LADE_QUEUE_COMPUTE],
                                   .predicted_step_ns = has_stages ? ranks->step_ns : plan->predicted_ns,
                                   .bound_ns = INT64_MAX, .n_redone = -1,
                                   .moved_bytes = ranks->stages[0].info.store_read_bytes +
                                                  ranks->stages[0].info.store_written_bytes};
  if (frontier->n_points++)
    frontier_point_relax(point, point - 1);
}

/*
 * Plan within @budget, and add the point; the budget of the smallest plan is its peak. A budget without a plan is left
 * out. @path: the file that describes the measured machine, which the first plan writes; NULL: none.
 */
static int budget_plan(struct model_frontier *frontier, struct lade_budget budget, char *path)
{
  struct ranks_plan ranks = {.n_stages = 0};
  frontier->options.session.budget = budget;
  int status = ranks_plan_make(&frontier->options, &ranks, &frontier->error);
  if (!status) {
    const struct lade_session_info *info = &ranks.stages[0].info;
    struct lade_session_info max = *info;
    ranks_plan_max(&ranks, &max);
    frontier->bounds = max.bounds;
    snprintf(frontier->model, sizeof(frontier->model), "%s", info->model.name);
    if (path)
      status = machine_keep(frontier, info, path);
    if (!status && ranks.fits)
      point_add(frontier, budget.kind == LADE_BUDGET_MIN ? ranks_plan_peak(&ranks) : budget.bytes, &ranks);
    else if (!status && budget.kind == LADE_BUDGET_MIN)
      status = lade_error_set(&frontier->error, -EOVERFLOW, "%s", ranks.stages[0].refusal.text);
  }
  ranks_plan_finish(&ranks);
  return status;
}

static int points_find(struct model_frontier *frontier, char *path)
{
  struct progress progress;
  progress_init(&progress, frontier->options.is_quiet, 0, 0);
  progress_note(&progress, "planning the smallest budget");
  int status = budget_plan(frontier, (struct lade_budget){.kind = LADE_BUDGET_MIN}, path);
  const uint64_t min = frontier->points[0].budget_bytes, max = frontier->bounds.unconstrained_bytes;
  for (int i = 1; i < FRONTIER_POINTS_MAX && min < max && !status; i++) {
    const struct lade_budget budget = {.kind = LADE_BUDGET_BYTES, .bytes = frontier_budget(min, max, i)};
    progress_note(&progress, "planning at budget %d of %d", i + 1, FRONTIER_POINTS_MAX);
    if (budget.bytes > frontier->points[frontier->n_points - 1].budget_bytes)
      status = budget_plan(frontier, budget, NULL);
  }
  progress_clear(&progress);
  return status;
}

static int frontier_dump(const struct model_frontier *frontier)
{
  const struct lade_plan_bounds *bounds = &frontier->bounds;
  return json_print(json_pack("{s:i, s:s, s:o, s:o, s:o, s:I, s:o}", "schema_version", REPORT_SCHEMA_VERSION, "model",
                              frontier->model, "unconstrained_bytes", json_bytes(bounds->unconstrained_bytes),
                              "min_budget_bytes", json_bytes(bounds->min_bytes), "floor_bytes",
                              json_bytes(bounds->lower_bound_bytes), "base_ns", (json_int_t)bounds->unconstrained_ns,
                              "points", frontier_points_json(frontier->points, frontier->n_points)));
}

static int frontier_tell(struct model_frontier *frontier)
{
  const struct frontier_plot plot = {.title = frontier->model, .points = frontier->points,
                                     .n_points = frontier->n_points, .base_ns = frontier->bounds.unconstrained_ns};
  int status = frontier->options.svg ? frontier_plot_write(&plot, frontier->options.svg, &frontier->error) : 0;
  if (!status && frontier->options.is_json)
    return frontier_dump(frontier);
  if (!status) {
    char text[32];
    printf("model         %s; unconstrained %s\n", frontier->model,
           lade_size_format(frontier->bounds.unconstrained_bytes, text, sizeof(text)));
    frontier_points_print(frontier->points, frontier->n_points, frontier->bounds.unconstrained_ns);
  }
  return status;
}

int plan_frontier(const struct options *options)
{
  struct model_frontier frontier = {.options = *options};
  char path[4096];
  bool is_measured = !options->session.machine;
  snprintf(path, sizeof(path), "%s/lade-machine-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  frontier.options.session.is_plan_only = true;
  int status = outputs_check(options, &frontier.error);
  if (!status)
    status = points_find(&frontier, is_measured ? path : NULL);
  if (!status)
    status = frontier_tell(&frontier);
  if (frontier.options.session.machine == path)
    unlink(path);
  return status ? exit_fail("plan", status, &frontier.error) : LADE_EXIT_DONE;
}
