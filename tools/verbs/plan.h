/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan --max`: the largest micro-batch, sequence or number of layers that fits.
 */
#ifndef LADE_TOOLS_PLAN_H
#define LADE_TOOLS_PLAN_H

#include "tools/cli/options.h"

/* Search, print, and return the exit code. */
int plan_max(struct options *options);

#endif
