/* SPDX-License-Identifier: Apache-2.0 */
/* A layout on a cluster as settings of other projects. */
#include "base/base.h"
#include "tools/verbs/plan_cluster.h"

void cluster_export(const struct cluster_plan *plan, FILE *file)
{
  (void)plan;
  (void)file;
}
