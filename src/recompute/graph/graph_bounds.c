/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two bounds of a graph's peak that need no search: the peak of the schedule that holds every value, and the
 * largest need of one op. The first is found by evaluating that schedule, as the search evaluates its own.
 */
#include <errno.h>

#include "base/base.h"
#include "lade/graph_plan.h"
#include "recompute/graph/schedule.h"

int lade_graph_bounds(const lade_graph *graph, struct lade_error *error, uint64_t *ret_unconstrained_bytes,
                      uint64_t *ret_floor_bytes)
{
  if (!graph || !graph->is_closed)
    return lade_error_set(error, -EINVAL, "bounds need a closed graph");
  struct remat_problem problem;
  uint64_t unconstrained_bytes = 0;
  int status = remat_problem_init(&problem, graph, LADE_DEVICE);
  if (!status) {
    const struct remat_choices all = {.is_saved = false};
    status = remat_choices_peak(&problem, &all, &unconstrained_bytes);
    if (!status && ret_unconstrained_bytes)
      *ret_unconstrained_bytes = unconstrained_bytes;
    if (!status && ret_floor_bytes)
      *ret_floor_bytes = problem.floor_bytes;
    remat_problem_finish(&problem);
  }
  return status ? lade_error_set(error, status, "out of memory for the bounds of a graph of %d ops", graph->ops.n) : 0;
}
