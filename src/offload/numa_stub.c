/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces numa_hwloc.c in builds without hwloc: the kernel chooses the node. */
#include "offload/numa.h"

int lade_numa_count(void)
{
  return 1;
}

bool lade_numa_bind(void *data, uint64_t bytes, int numa_node)
{
  return false;
}
