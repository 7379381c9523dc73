/* SPDX-License-Identifier: Apache-2.0 */
/* Relax, print and dump the points of a frontier (frontier_points.h). */
#include "tools/report/frontier_points.h"

#include <stdio.h>

#include "base/base.h"
#include "tools/report/report.h"

void frontier_point_relax(struct frontier_point *point, const struct frontier_point *before)
{
  if (point->predicted_step_ns <= before->predicted_step_ns)
    return;
  const struct frontier_point own = *point;
  *point = *before;
  point->budget_bytes = own.budget_bytes;
  point->bound_ns = own.bound_ns;
}

uint64_t frontier_budget(uint64_t min, uint64_t max, int i)
{
  const uint64_t range = max - min, n = FRONTIER_POINTS_MAX - 1;
  return min + range / n * (uint64_t)i + range % n * (uint64_t)i / n;
}

void frontier_points_print(const struct frontier_point *points, int n_points, int64_t base_ns)
{
  char a[32], b[32], c[32];
  printf("\n%12s %12s %12s %10s %12s %8s\n", "budget", "planned peak", "predicted", "slower by", "lower bound",
         "redone");
  for (int i = 0; i < n_points; i++) {
    const struct frontier_point *point = &points[i];
    const double ratio = base_ns > 0 ? (double)point->predicted_step_ns / (double)base_ns : 1;
    printf("%12s %12s", lade_size_format(point->budget_bytes, a, sizeof(a)),
           lade_size_format(point->planned_peak_bytes, b, sizeof(b)));
    printf(" %12s %8.2f %%", seconds_format((double)point->predicted_step_ns / 1e9, a, sizeof(a)), 100 * (ratio - 1));
    printf(" %12s", point->bound_ns == INT64_MAX ? "-" : seconds_format((double)point->bound_ns / 1e9, c, sizeof(c)));
    if (point->n_redone < 0)
      printf(" %8s\n", "-");
    else
      printf(" %8d\n", point->n_redone);
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
  json_object_set_new(object, "n_redone", point->n_redone < 0 ? json_null() : json_integer(point->n_redone));
  json_object_set_new(object, "moved_bytes", json_bytes(point->moved_bytes));
  return object;
}

json_t *frontier_points_json(const struct frontier_point *points, int n_points)
{
  json_t *list = json_array();
  for (int i = 0; i < n_points; i++)
    json_array_append_new(list, point_json(&points[i]));
  return list;
}
