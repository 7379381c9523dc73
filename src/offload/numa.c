/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the NUMA node of a GPU and of a drive. The driver reports a GPU's PCI function, which has a file with the node.
 * For each block device the kernel keeps a link, by its number, to its place in the device tree. The PCI function that
 * the drive is attached to is some levels above it, and has the file. So the search goes upwards from the link's target
 * until a directory has one. A device over several others (device mapper, RAID) is virtual and has no node. Rejected:
 * hwloc, which has the same data, but finds devices by name and needs all of PCI in its topology.
 */
#include "offload/numa.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

/* Return the number in file @name of directory @path; -1 if there is none. */
static int number_read(const char *path, const char *name)
{
  char file_path[PATH_MAX + 16];
  int number = -1;
  snprintf(file_path, sizeof(file_path), "%s/%s", path, name);
  FILE *file = fopen(file_path, "re");
  if (!file)
    return -1;
  bool is_read = fscanf(file, "%d", &number) == 1;
  fclose(file);
  return is_read ? number : -1;
}

int lade_numa_of_device(dev_t device, const char *sysfs)
{
  char link[PATH_MAX], path[PATH_MAX], root[PATH_MAX];
  snprintf(link, sizeof(link), "%s/dev/block/%u:%u", sysfs, major(device), minor(device));
  if (!realpath(sysfs, root) || !realpath(link, path))
    return -1;
  const size_t n_root = strlen(root);
  int node = number_read(path, "numa_node");
  while (node < 0 && strlen(path) > n_root + 1) {
    *strrchr(path, '/') = '\0';
    node = number_read(path, "numa_node");
  }
  return node;
}

int lade_numa_of_pci(const char *address, const char *sysfs)
{
  char path[PATH_MAX];
  if (!*address || snprintf(path, sizeof(path), "%s/bus/pci/devices/%s", sysfs, address) >= PATH_MAX)
    return -1;
  return number_read(path, "numa_node");
}

bool lade_numa_has_memory(int numa_node, const char *sysfs)
{
  char path[PATH_MAX];
  unsigned long long kib = 0;
  snprintf(path, sizeof(path), "%s/devices/system/node/node%d/meminfo", sysfs, numa_node);
  FILE *file = fopen(path, "re");
  if (!file)
    return numa_node == 0;
  bool is_read = fscanf(file, " Node %*d MemTotal: %llu", &kib) == 1; /* the first line */
  fclose(file);
  return is_read && kib > 0;
}

int lade_numa_choose(int of_device, int of_drives)
{
  const int node = of_device >= 0 ? of_device : of_drives;
  return node >= 0 && lade_numa_count() > 1 ? node : -1;
}
