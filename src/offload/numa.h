/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choose the NUMA node for memory, and request memory from it. Nothing here is an error: if a machine does not report a
 * drive's node, or has one node, memory comes from any node. Any thread. Calls block for at most a few milliseconds, in
 * which hwloc discovers the machine.
 */
#ifndef LADE_OFFLOAD_NUMA_H
#define LADE_OFFLOAD_NUMA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Return the number of NUMA nodes of this machine; 1 if this build has no hwloc. */
int lade_numa_count(void);

/* Request that @bytes at @data are placed on @numa_node. False if this build or machine cannot. */
bool lade_numa_bind(void *data, uint64_t bytes, int numa_node);

/*
 * Return the node of block device @device (a file's st_dev). The node is that of the nearest device above it with a
 * node, in the tree mounted at @sysfs ("/sys"). -1: unknown, or not a block device (overlays, network file systems).
 */
int lade_numa_of_device(dev_t device, const char *sysfs);

/* Return the node of the PCI function @address ("0000:3b:00.0"), for example a GPU. -1: "", absent, or unknown. */
int lade_numa_of_pci(const char *address, const char *sysfs);

/* True if @numa_node has its own memory. On a machine that reports no nodes, true for node 0. */
bool lade_numa_has_memory(int numa_node, const char *sysfs);

/*
 * Return the best node for memory that both a device and drives access, on a machine of several nodes. It is the
 * device's node, because the device's link is faster, else the drives' node. -1, any node: neither is known, or there
 * is one node.
 */
int lade_numa_choose(int of_device, int of_drives);

#endif
