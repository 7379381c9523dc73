/* SPDX-License-Identifier: Apache-2.0 */
/* The points of a frontier: time of a step against its device budget, as a table and as JSON. */
#ifndef LADE_FRONTIER_POINTS_H
#define LADE_FRONTIER_POINTS_H

#include <jansson.h>

#include "tools/report/frontier_plot.h"

enum { FRONTIER_POINTS_MAX = 16 };

/*
 * Let @point be the faster one of its own plan and that of @before, a smaller budget: the plan of the smaller budget
 * fits the larger one, too, so a larger budget is never slower.
 */
void frontier_point_relax(struct frontier_point *point, const struct frontier_point *before);

/* Return budget @i of FRONTIER_POINTS_MAX in equal steps from @min to @max. */
uint64_t frontier_budget(uint64_t min, uint64_t max, int i);

/* Print a table with a line for each point. */
void frontier_points_print(const struct frontier_point *points, int n_points, int64_t base_ns);

/* Return the points as a list of objects. */
json_t *frontier_points_json(const struct frontier_point *points, int n_points);

#endif
