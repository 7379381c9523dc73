/* SPDX-License-Identifier: Apache-2.0 */
/* `lade plan --max`, the largest micro-batch, sequence or number of layers that fits, and `lade plan --frontier`. */
#ifndef LADE_TOOLS_PLAN_H
#define LADE_TOOLS_PLAN_H

#include "tools/cli/options.h"

/* Search, print, and return the exit code. */
int plan_max(struct options *options);

/* Plan a model at several budgets, draw --svg, print, and return the exit code. */
int plan_frontier(const struct options *options);

#endif
