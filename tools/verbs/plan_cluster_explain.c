/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences about a layout on a cluster, from the numbers of its plan. */
#include "base/base.h"
#include "tools/report/report.h"
#include "tools/verbs/plan_cluster.h"

void cluster_explain(const struct cluster_plan *plan, FILE *file)
{
  (void)plan;
  (void)file;
}
