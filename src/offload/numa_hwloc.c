/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement of memory through hwloc. The topology is loaded per call, which takes some milliseconds: slabs are
 * allocated a few times per run, so no state is kept between calls. The kernel may use another node if the requested
 * one is full.
 */
#include <hwloc.h>

#include "offload/numa.h"

int lade_numa_count(void)
{
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) < 0)
    return 1;
  int n = hwloc_topology_load(topology) == 0 ? hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) : 1;
  hwloc_topology_destroy(topology);
  return n > 0 ? n : 1;
}

static bool topology_bind(hwloc_topology_t topology, void *data, uint64_t bytes, int numa_node)
{
  hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa_node);
  return node && hwloc_set_area_membind(topology, data, bytes, node->nodeset, HWLOC_MEMBIND_BIND,
                                        HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_NOCPUBIND) == 0;
}

bool lade_numa_bind(void *data, uint64_t bytes, int numa_node)
{
  hwloc_topology_t topology;
  if (numa_node < 0 || hwloc_topology_init(&topology) < 0)
    return false;
  bool is_bound = hwloc_topology_load(topology) == 0 && topology_bind(topology, data, bytes, numa_node);
  hwloc_topology_destroy(topology);
  return is_bound;
}
