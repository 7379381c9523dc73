/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find this process's control group. The file /proc/self/mountinfo has the mount point of a hierarchy, and the group
 * that is the root of the mount. The file /proc/self/cgroup has this process's group in the hierarchy. A container
 * often has only its own part mounted; then the mount's root is cut off the front of the group's path. If the group
 * lies outside the mount, the search starts at the mount point, because no other group is visible.
 *
 * Rejected: fixed paths below /sys/fs/cgroup alone. They miss version 2 beside version 1 (/sys/fs/cgroup/unified), and
 * controllers that are mounted together (cpu,cpuacct).
 */
#include "base/cgroup.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

#define USUAL_MOUNT "/sys/fs/cgroup"

/* True if @word is one of the words of @list between commas. */
static bool list_has(const char *list, const char *word)
{
  const size_t n = strlen(word);
  for (const char *at = list; at; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, word, n) == 0 && (at[n] == ',' || !at[n]))
      return true;
  }
  return false;
}

struct mount {
  char root[LADE_CGROUP_PATH_BYTES];  /* group of the hierarchy at the mount point */
  char point[LADE_CGROUP_PATH_BYTES];
};

/* Parse a line of mountinfo into @mount; true if the mount is @controller's: see proc_pid_mountinfo(5). */
static bool mount_take(char *line, const char *controller, struct mount *mount)
{
  char type[32], options[LADE_CGROUP_PATH_BYTES];
  const char *tail = strstr(line, " - ");
  if (!tail || sscanf(tail, " - %31s %*s %4095s", type, options) != 2 ||
      sscanf(line, "%*s %*s %*s %4095s %4095s", mount->root, mount->point) != 2)
    return false;
  return *controller ? strcmp(type, "cgroup") == 0 && list_has(options, controller) : strcmp(type, "cgroup2") == 0;
}

/* Find the mount of @controller; false if it is not mounted. */
static bool mount_find(const char *root, const char *controller, struct mount *ret_mount)
{
  char path[LADE_CGROUP_PATH_BYTES + 32], line[3 * LADE_CGROUP_PATH_BYTES];
  snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
  FILE *file = fopen(path, "re");
  if (!file) {
    *ret_mount = (struct mount){.root = "/"};
    snprintf(ret_mount->point, sizeof(ret_mount->point), USUAL_MOUNT "%s%s", *controller ? "/" : "", controller);
    return true;
  }
  bool is_found = false;
  while (!is_found && fgets(line, sizeof(line), file))
    is_found = mount_take(line, controller, ret_mount);
  fclose(file);
  return is_found;
}

/* Write this process's group in the hierarchy of @controller into @group; "/" if /proc does not have it. */
static void group_find(const char *root, const char *controller, char *group, size_t group_bytes)
{
  char path[LADE_CGROUP_PATH_BYTES + 32], line[LADE_CGROUP_PATH_BYTES];
  snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
  snprintf(group, group_bytes, "/");
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof(line), file)) {
    char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
    if (!at)
      continue;
    *at++ = '\0';
    at[strcspn(at, "\n")] = '\0';
    if (*controller ? !list_has(names + 1, controller) : names[1] != '\0')
      continue;
    snprintf(group, group_bytes, "%s", at);
    break;
  }
  if (file)
    fclose(file);
}

/* Return the part of @group below the mounted @top: "" if @group is @top itself or lies outside it. */
static const char *group_below(const char *group, const char *top)
{
  const size_t n = strcmp(top, "/") == 0 ? 0 : strlen(top);
  const bool is_below = strncmp(group, top, n) == 0 && (group[n] == '/' || !group[n]) && !strstr(group, "/..");
  return is_below && strcmp(group + n, "/") != 0 ? group + n : "";
}

bool lade_cgroup_find(const char *root, const char *controller, struct lade_cgroup *ret_group)
{
  struct mount mount;
  char group[LADE_CGROUP_PATH_BYTES];
  if (!mount_find(root, controller, &mount))
    return false;
  group_find(root, controller, group, sizeof(group));
  int n = snprintf(ret_group->dir, sizeof(ret_group->dir), "%s%s", root, mount.point);
  if (n < 0 || n >= (int)sizeof(ret_group->dir))
    return false;
  ret_group->mount_bytes = (size_t)n;
  const char *below = group_below(group, mount.root);
  if ((size_t)n + strlen(below) < sizeof(ret_group->dir))
    strcpy(ret_group->dir + n, below);
  return true;
}

bool lade_cgroup_up(struct lade_cgroup *group)
{
  char *slash = strrchr(group->dir, '/');
  if (strlen(group->dir) <= group->mount_bytes)
    return false;
  LADE_ASSERT(slash);
  *slash = '\0';
  return strlen(group->dir) >= group->mount_bytes;
}

const char *lade_cgroup_path(const struct lade_cgroup *group, const char *name, char *path, size_t path_bytes)
{
  snprintf(path, path_bytes, "%s/%s", group->dir, name);
  return path;
}

bool lade_cgroup_read(const struct lade_cgroup *group, const char *name, char *line, int line_bytes)
{
  char path[LADE_CGROUP_PATH_BYTES + 64];
  FILE *file = fopen(lade_cgroup_path(group, name, path, sizeof(path)), "re");
  if (!file)
    return false;
  const bool is_read = fgets(line, line_bytes, file) != NULL;
  fclose(file);
  if (!is_read)
    line[0] = '\0';
  line[strcspn(line, "\n")] = '\0';
  return true;
}
