/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a step against its device budget, as a drawing. */
#ifndef LADE_FRONTIER_PLOT_H
#define LADE_FRONTIER_PLOT_H

#include <stdint.h>

#include "lade/types.h"

struct frontier_point {
  uint64_t budget_bytes, planned_peak_bytes;
  int64_t compute_ns, predicted_step_ns;
  int64_t bound_ns; /* lower bound of any step within the budget; INT64_MAX: unknown */
  int n_redone;
  uint64_t moved_bytes;
};

struct frontier_plot {
  const char *title;
  const struct frontier_point *points; /* ascending in budget */
  int n_points;                        /* at least 1 */
  int64_t base_ns;                     /* of the unconstrained step */
};

/*
 * Draw the predicted step over the unconstrained one against the budget as SVG, without external references, in @path,
 * replacing it. -ENOMEM, or errors of writing.
 */
int frontier_plot_write(const struct frontier_plot *plot, const char *path, struct lade_error *error);

#endif
