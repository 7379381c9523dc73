/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan --cluster`: step times, memory and proofs of a layout on a described cluster, and the search among
 * layouts.
 */
#ifndef LADE_TOOLS_PLAN_CLUSTER_H
#define LADE_TOOLS_PLAN_CLUSTER_H

#include "tools/cli/options.h"

/* Plan, print, and return the exit code. */
int plan_cluster(struct options *options);

#endif
