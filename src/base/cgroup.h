/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups: directories whose files limit this process, from its own group up to the root of the hierarchy. The
 * walk ends at the mount point, because groups above it are not visible here. Versions 1 and 2 are both found, each at
 * its own mount.
 */
#ifndef LADE_CGROUP_H
#define LADE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

#define LADE_CGROUP_PATH_BYTES 4096

struct lade_cgroup {
  char dir[LADE_CGROUP_PATH_BYTES]; /* directory of the current group, with the group's files */
  size_t mount_bytes;               /* length of the mount point at the front of @dir, where the way up ends */
};

/*
 * Find this process's group of version 1's @controller ("memory", "cpu"), or of version 2 if @controller is "". False
 * if that hierarchy is not mounted. Reads all files below @root: "" is this machine. Without /proc it assumes the usual
 * mount, which in a container holds the process's own group. Any thread.
 */
bool lade_cgroup_find(const char *root, const char *controller, struct lade_cgroup *ret_group);

/* Move @group to its parent. False at the mount point. */
bool lade_cgroup_up(struct lade_cgroup *group);

/* Read the first line of @name in the group's directory, without its end. False without such a file. */
bool lade_cgroup_read(const struct lade_cgroup *group, const char *name, char *line, int line_bytes);

/* Write the path of @name in the group's directory into @path; returns @path. */
const char *lade_cgroup_path(const struct lade_cgroup *group, const char *name, char *path, size_t path_bytes);

#endif
