/* SPDX-License-Identifier: Apache-2.0 */
/* Plan a caller's step: problem, search (planning.c), list, replay (lade/graph_plan.h). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/echo.h"
#include "lade/plan.h"
#include "recompute/graph/planning/planning.h"

#define END_OP_NS 8000 /* of a limit of time, for each op: the list and the bound take it */

struct lade_graph_plan {
  struct remat_list list;
};

/* Make the list of the schedule that was found, replay it, and fill in its figures. */
static int list_make(struct graph_planning *planning, uint64_t budget_bytes)
{
  struct lade_graph_plan_info *info = &planning->info;
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  struct remat_schedule schedule;
  const uint64_t limit_bytes = graph_planning_limit(&planning->problem, budget_bytes);
  int status = remat_schedule_load(&schedule, &planning->problem, limit_bytes, &planning->choices);
  if (status)
    return status;
  info->predicted_step_ns = (int64_t)list_time_get(&planning->links, &schedule);
  status = remat_emit(&schedule, &planning->list);
  remat_schedule_finish(&schedule);
  if (!status)
    status = lade_graph_replay(planning->graph, planning->list.instrs.items, planning->list.instrs.n, planning->error,
                               &totals);
  if (status)
    return status;
  info->planned_peak_bytes = totals.peak_bytes;
  info->compute_ns = totals.compute_ns;
  info->host_bytes = totals.host_peak_bytes;
  info->store_bytes = totals.store_peak_bytes;
  info->n_redone = totals.n_redone;
  info->moved_bytes = totals.moved_bytes;
  return 0;
}

static int refuse(struct graph_planning *planning, uint64_t budget_bytes)
{
  char budget[LADE_SIZE_TEXT], min[LADE_SIZE_TEXT];
  planning->info.planned_peak_bytes = planning->info.min_budget_bytes;
  return lade_error_set(planning->error, -ENOSPC,
                        "no plan of this graph within %s was found; the smallest one takes %s",
                        lade_size_exact(budget_bytes, budget),
                        lade_size_exact(planning->info.min_budget_bytes, min));
}

/* True if @op writes all bytes of @storage. */
static bool writes_whole(const struct lade_graph *graph, const struct graph_op *op, int storage)
{
  uint64_t bytes = 0; /* no byte is written twice by one op */
  for (int i = op->n_reads; i < op->n_reads + op->n_writes; i++) {
    const struct graph_operand *operand = &graph->operands.items[op->first_operand + i];
    bytes += operand->storage == storage ? operand->bytes : 0;
  }
  return bytes == graph->storages.items[storage].bytes;
}

/*
 * True if a made storage is written whole once more. It may be dropped before that, which the problem does not know: a
 * value is held or made again up to its last maker.
 */
static bool has_later_contents(const struct lade_graph *graph)
{
  for (int s = 0; s < graph->storages.n; s++) {
    const struct graph_storage *storage = &graph->storages.items[s];
    for (int i = storage->first_use + 1; i < graph_uses_end(graph, s) && !storage->is_given && storage->bytes; i++) {
      if (graph->uses[i].access & GRAPH_WRITES && writes_whole(graph, &graph->ops.items[graph->uses[i].op], s))
        return true;
    }
  }
  return false;
}

/* Bound the time of every list within @budget_bytes from below: no list takes less than all ops once. */
static int bound_make(struct graph_planning *planning, uint64_t budget_bytes)
{
  const int status = graph_planning_bound(planning, budget_bytes, planning->info.predicted_step_ns);
  if (has_later_contents(planning->graph))
    planning->info.bound_ns = planning->info.base_ns;
  return status;
}

static int plan_run(struct graph_planning *planning)
{
  struct lade_graph_plan_info *info = &planning->info;
  uint64_t budget_bytes = planning->params.budget_bytes;
  int status = graph_planning_search(planning, budget_bytes);
  if (budget_bytes == LADE_GRAPH_BUDGET_MIN)
    budget_bytes = info->min_budget_bytes;
  if (!status)
    status = list_make(planning, budget_bytes);
  if (!status)
    info->min_budget_bytes = LADE_MIN(info->min_budget_bytes, info->planned_peak_bytes);
  if (status && status != -ENOSPC)
    return status;
  const int bound_status = bound_make(planning, budget_bytes);
  return bound_status ? bound_status : status ? refuse(planning, budget_bytes) : 0;
}

/* ---- the public face ---- */

/* Refuse a given storage on a tier to which there is no path. */
static int rests_check(const struct graph_planning *planning)
{
  const struct lade_graph_plan_params *params = &planning->params;
  for (int s = 0; s < planning->graph->storages.n; s++) {
    const struct graph_storage *storage = &planning->graph->storages.items[s];
    bool has_host = params->to_host.bytes_per_s > 0 && params->from_host.bytes_per_s > 0;
    bool has_store = params->to_store.bytes_per_s > 0 && params->from_store.bytes_per_s > 0;
    if ((storage->tier == LADE_HOST && !has_host) || (storage->tier == LADE_STORE && !has_store))
      return lade_error_set(planning->error, -EINVAL,
                            "storage %d \"%s\" lives on the %s between steps: give the rates of the paths there", s,
                            lade_echo(graph_name(planning->graph, storage->name)).text,
                            lade_space_name((enum lade_space)storage->tier));
  }
  return 0;
}

/* Return the most time that a step's transfers over @path take: each storage before its uses, and after the last. */
static double moves_max_ns(const lade_graph *graph, const struct lade_graph_path *path)
{
  double ns = 0;
  for (int s = 0; s < graph->storages.n && path->bytes_per_s > 0; s++) {
    const int n_uses = graph_uses_end(graph, s) - graph->storages.items[s].first_use;
    ns += (n_uses + 1) * list_time_move(path, graph->storages.items[s].bytes);
  }
  return ns;
}

/* Refuse parameters out of range, and paths so slow that a step's time may not fit 63 bits. */
static int params_check(const lade_graph *graph, const struct lade_graph_plan_params *params, struct lade_error *error)
{
  const struct lade_graph_path *paths[] = {&params->to_host, &params->from_host, &params->to_store,
                                           &params->from_store};
  for (size_t i = 0; i < LADE_COUNT(paths); i++) {
    if (!(paths[i]->bytes_per_s >= 0 && paths[i]->bytes_per_s <= 1e18) || paths[i]->latency_ns < 0 ||
        paths[i]->latency_ns > LADE_GRAPH_NS_MAX)
      return lade_error_set(error, -EINVAL, "a path has %g bytes/s and a latency of %lld ns: expected 0 to 1e18, and 0 "
                            "to 2^50", paths[i]->bytes_per_s, (long long)paths[i]->latency_ns);
    const double ns = moves_max_ns(graph, paths[i]);
    if (ns > (double)LADE_GRAPH_NS_MAX)
      return lade_error_set(error, -EINVAL, "a path of %g bytes/s and a latency of %lld ns may take %.3g ns for the "
                            "transfers of a step: expected at most 2^50", paths[i]->bytes_per_s,
                            (long long)paths[i]->latency_ns, ns);
  }
  if (params->iterations < 0 || params->time_limit_ns < 0)
    return lade_error_set(error, -EINVAL, "iterations are %lld and time_limit_ns is %lld: expected 0 or more",
                          (long long)params->iterations, (long long)params->time_limit_ns);
  return 0;
}

/* Fill @planning's info, and make the plan. */
static int plan_make(struct graph_planning *planning, struct lade_graph_plan **ret_plan)
{
  int status = remat_problem_init(&planning->problem, planning->graph, graph_planning_tier(&planning->params));
  if (!status)
    status = list_time_init(&planning->links, &planning->problem, &planning->params);
  const int64_t limit_ns = planning->params.time_limit_ns;
  planning->params.time_limit_ns -= LADE_MIN(limit_ns / 2, planning->graph->ops.n * (int64_t)END_OP_NS);
  if (!status)
    status = plan_run(planning);
  planning->info.seconds = (double)(lade_now_ns() - planning->start_ns) / 1e9;
  if (status == -ENOMEM)
    return lade_error_set(planning->error, status, "out of memory planning a graph of %d ops", planning->graph->ops.n);
  if (status)
    return status;
  struct lade_graph_plan *plan = calloc(1, sizeof(*plan));
  if (!plan)
    return lade_error_set(planning->error, -ENOMEM, "out of memory for the plan");
  plan->list = planning->list;
  planning->list = (struct remat_list){0};
  *ret_plan = plan;
  return 0;
}

int lade_graph_plan_find(const lade_graph *graph, const struct lade_graph_plan_params *params,
                         struct lade_error *error, struct lade_graph_plan_info *ret_info, lade_graph_plan **ret_plan)
{
  struct graph_planning planning = {.graph = graph, .error = error, .best_ns = INFINITY, .start_ns = lade_now_ns()};
  if (!graph || !graph->is_closed || !params || !ret_plan)
    return lade_error_set(error, -EINVAL, "planning needs a closed graph, parameters and room for the plan");
  int status = lade_struct_read("lade_graph_plan_params", params, &planning.params, sizeof(planning.params), error);
  if (!status && ret_info)
    status = lade_struct_check("lade_graph_plan_info", ret_info, error);
  if (!status)
    status = params_check(graph, &planning.params, error);
  if (!status)
    status = rests_check(&planning);
  if (status)
    return status;
  status = plan_make(&planning, ret_plan);
  if (ret_info && (!status || status == -ENOSPC))
    lade_struct_fill("lade_graph_plan_info", ret_info, &planning.info, sizeof(planning.info), NULL);
  graph_planning_finish(&planning);
  return status;
}

void lade_graph_plan_destroy(lade_graph_plan *plan)
{
  if (!plan)
    return;
  LADE_ARRAY_FREE(&plan->list.instrs);
  free(plan);
}

const struct lade_graph_instr *lade_graph_plan_instrs(const lade_graph_plan *plan, int *ret_n_instrs)
{
  if (ret_n_instrs)
    *ret_n_instrs = plan ? plan->list.instrs.n : 0;
  return plan ? plan->list.instrs.items : NULL;
}
