/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NUMA node memory should come from, and asking for it. Nothing here is an error: a machine that does not say
 * where a drive is, or has one node, gives memory from anywhere. Any thread; none blocks for longer than a few
 * milliseconds, in which hwloc looks at the machine.
 */
#ifndef LADE_OFFLOAD_NUMA_H
#define LADE_OFFLOAD_NUMA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* NUMA nodes of this machine; 1 where this build has no hwloc. */
int lade_numa_count(void);

/* Asks for @bytes at @data to be placed on @numa_node. False if this build or machine cannot. */
bool lade_numa_bind(void *data, uint64_t bytes, int numa_node);

/*
 * The node of block device @device (a file's st_dev): of the nearest device above it that has one in the tree mounted
 * at @sysfs ("/sys"). -1: it has none, as what is no block device (overlays, network file systems), or none is told.
 */
int lade_numa_of_device(dev_t device, const char *sysfs);

/* The node of the PCI function @address ("0000:3b:00.0"), a GPU's say. -1: "", none there, or none is told. */
int lade_numa_of_pci(const char *address, const char *sysfs);

/* Whether @numa_node has memory of its own; of a machine that tells nothing of nodes the node 0 has. */
bool lade_numa_has_memory(int numa_node, const char *sysfs);

/*
 * Where memory should be that a device and drives both reach, on a machine of several nodes: near the device, whose
 * link is the faster, else near the drives. -1, anywhere: neither is known, or there is one node.
 */
int lade_numa_choose(int of_device, int of_drives);

#endif
