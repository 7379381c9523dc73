/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links of a node from the kernel's files.
 *
 *   /sys/class/infiniband/NAME              one directory for each device with verbs; its driver's name tells EFA
 *   /sys/class/infiniband/NAME/ports/1/rate "400 Gb/sec (4X NDR)"
 *   /dev/nvidia-nvswitchN                   one for each NVSwitch
 *   /sys/module/nvidia_peermem              GPUDirect RDMA of InfiniBand; EFA and older drivers have other modules
 */
#include "tools/report/node_links.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SWITCHES_MAX 64 /* more than any node has */

/* Read the first line of @path, "" if there is none. */
static void line_read(const char *path, char *ret_line, int line_bytes)
{
  FILE *file = fopen(path, "re");
  ret_line[0] = 0;
  if (file && !fgets(ret_line, line_bytes, file))
    ret_line[0] = 0;
  if (file)
    fclose(file);
  ret_line[strcspn(ret_line, "\n")] = 0;
}

/* True if the driver of device @name is EFA's. */
static bool is_efa(const char *root, const char *name)
{
  char path[PATH_MAX], target[PATH_MAX];
  snprintf(path, sizeof(path), "%s/sys/class/infiniband/%s/device/driver", root, name);
  const ssize_t n = readlink(path, target, sizeof(target) - 1);
  target[n > 0 ? n : 0] = 0;
  const char *slash = strrchr(target, '/');
  return strcmp(slash ? slash + 1 : target, "efa") == 0;
}

static void device_add(const char *root, const char *name, struct node_links *links)
{
  char path[PATH_MAX];
  const bool is_first = !links->first[0] || strcmp(name, links->first) < 0;
  *(is_efa(root, name) ? &links->n_efa : &links->n_infiniband) += 1;
  if (!is_first)
    return;
  snprintf(links->first, sizeof(links->first), "%s", name);
  snprintf(path, sizeof(path), "%s/sys/class/infiniband/%s/ports/1/rate", root, name);
  line_read(path, links->rate, sizeof(links->rate));
}

void node_links_find(const char *root, struct node_links *ret_links)
{
  char path[PATH_MAX];
  struct node_links links = {0};
  snprintf(path, sizeof(path), "%s/sys/class/infiniband", root);
  DIR *devices = opendir(path);
  for (struct dirent *entry; devices && (entry = readdir(devices));) {
    if (entry->d_name[0] != '.')
      device_add(root, entry->d_name, &links);
  }
  if (devices)
    closedir(devices);
  for (int i = 0; i < SWITCHES_MAX; i++) {
    snprintf(path, sizeof(path), "%s/dev/nvidia-nvswitch%d", root, i);
    links.n_nvswitches += access(path, F_OK) == 0;
  }
  static const char *const modules[] = {"nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"};
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof(path), "%s/sys/module/%s", root, modules[i]);
    links.has_gpudirect |= access(path, F_OK) == 0;
  }
  *ret_links = links;
}
