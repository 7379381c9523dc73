/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that this process may still take. Each limit is read in turn, and the tightest is kept. A group's usage
 * includes its page cache. The kernel drops the part that no process has mapped under pressure, so that part is
 * subtracted. Mapped files stay counted, because they are the running code. A group without a limit's file has no such
 * limit; the root of a hierarchy has none.
 *
 * memory.high counts as a limit. It does not end a process, but stalls it in reclaim until it makes almost no progress,
 * so training near it is useless. Version 1's memsw counts memory and swap together, so it binds if other processes of
 * the group are swapped out. Version 2 limits swap separately, which does not limit memory.
 */
#include "base/memory.h"

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/base.h"
#include "base/cgroup.h"

#define NO_LIMIT_BYTES (UINT64_C(1) << 62) /* version 1 states no limit as the largest number of whole pages */

/* Read the number after @key, in KiB, from a file of "key: number kB" lines; false without such a line. */
static bool field_read(const char *path, const char *key, uint64_t *ret_kib)
{
  char line[256];
  unsigned long long value;
  bool is_found = false;
  FILE *file = fopen(path, "re");
  while (file && !is_found && fgets(line, sizeof(line), file))
    is_found = strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), " %llu", &value) == 1;
  if (file)
    fclose(file);
  if (is_found)
    *ret_kib = value;
  return is_found;
}

/* Keep the limit @name of @limit_bytes, with @used_bytes in use, if it is tighter than those before it. */
static void limit_keep(struct lade_memory *memory, const char *name, uint64_t limit_bytes, uint64_t used_bytes)
{
  const uint64_t bytes = limit_bytes - LADE_MIN(limit_bytes, used_bytes);
  const size_t n = strlen(name), max = sizeof(memory->source) - 1;
  if (bytes >= memory->bytes)
    return;
  memory->bytes = bytes;
  memory->limit_bytes = limit_bytes;
  const bool is_long = n > max;
  snprintf(memory->source, sizeof(memory->source), "%s%s", is_long ? "..." : "", is_long ? name + n - max + 3 : name);
}

static int machine_look(const char *root, struct lade_memory *memory, struct lade_error *error)
{
  char path[LADE_CGROUP_PATH_BYTES];
  uint64_t available_kib, total_kib;
  snprintf(path, sizeof(path), "%s/proc/meminfo", root);
  FILE *file = fopen(path, "re");
  const int code = file ? 0 : errno;
  if (file)
    fclose(file);
  if (code)
    return lade_error_set(error, -ENODEV, "%s cannot be read (%s), so the memory of this machine is unknown; mount "
                          "/proc", path, strerror(code));
  if (!field_read(path, "MemAvailable:", &available_kib))
    return lade_error_set(error, -ENODEV, "%s has no MemAvailable, so the memory of this machine is unknown; Linux "
                          "3.14 and later have it", path);
  if (!field_read(path, "MemTotal:", &total_kib) || total_kib < available_kib)
    total_kib = available_kib;
  limit_keep(memory, path, total_kib << 10, (total_kib - available_kib) << 10);
  return 0;
}

/*
 * Read the number in the file @name of @group into *ret_bytes, which stays unchanged for "max" and for a missing file.
 * False: the file holds neither a number nor "max".
 */
static bool number_read(const struct lade_cgroup *group, const char *name, uint64_t *ret_bytes)
{
  char line[128];
  unsigned long long value;
  if (!lade_cgroup_read(group, name, line, sizeof(line)) || strcmp(line, "max") == 0)
    return true;
  if (strspn(line, "0123456789") != strlen(line) || sscanf(line, "%llu", &value) != 1)
    return false;
  *ret_bytes = value;
  return true;
}

/* Limits of one cgroup version. The prefix "total_" marks sums over a group and the groups below it. */
struct hierarchy {
  const char *controller, *prefix, *mapped;
  struct {
    const char *limit, *usage;
  } files[2];
};

static const struct hierarchy hierarchies[] = {
    {"", "", "file_mapped", {{"memory.max", "memory.current"}, {"memory.high", "memory.current"}}},
    {"memory", "total_", "mapped_file",
     {{"memory.limit_in_bytes", "memory.usage_in_bytes"},
      {"memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"}}},
};

/* Return the bytes of page cache in @group that no process has mapped. */
static uint64_t cache_bytes(const struct hierarchy *hierarchy, const struct lade_cgroup *group)
{
  const char *const names[] = {"active_file", "inactive_file", hierarchy->mapped};
  char path[LADE_CGROUP_PATH_BYTES + 64], key[48];
  uint64_t bytes[LADE_COUNT(names)] = {0};
  lade_cgroup_path(group, "memory.stat", path, sizeof(path));
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    snprintf(key, sizeof(key), "%s%s ", hierarchy->prefix, names[i]);
    field_read(path, key, &bytes[i]);
  }
  return bytes[0] + bytes[1] - LADE_MIN(bytes[0] + bytes[1], bytes[2]);
}

static int group_look(const struct hierarchy *hierarchy, const struct lade_cgroup *group, struct lade_memory *memory,
                      struct lade_error *error)
{
  char path[LADE_CGROUP_PATH_BYTES + 64];
  for (size_t i = 0; i < LADE_COUNT(hierarchy->files); i++) {
    const char *limit = hierarchy->files[i].limit, *usage = hierarchy->files[i].usage;
    uint64_t limit_bytes = UINT64_MAX, usage_bytes = 0;
    bool is_known = number_read(group, limit, &limit_bytes);
    if (is_known && limit_bytes >= NO_LIMIT_BYTES)
      continue;
    lade_cgroup_path(group, is_known ? usage : limit, path, sizeof(path));
    if (!is_known || !number_read(group, usage, &usage_bytes))
      return lade_error_set(error, -ENODEV, "%.300s holds no number of bytes, so the memory that this process may use "
                            "is unknown", path);
    const uint64_t cached = cache_bytes(hierarchy, group);
    limit_keep(memory, lade_cgroup_path(group, limit, path, sizeof(path)), limit_bytes,
               usage_bytes - LADE_MIN(usage_bytes, cached));
  }
  return 0;
}

/* Apply the process's own limits of address space and of data. */
static void process_look(struct lade_memory *memory)
{
  static const struct {
    int resource;
    const char *name, *key;
  } limits[] = {{RLIMIT_AS, "RLIMIT_AS", "VmSize:"}, {RLIMIT_DATA, "RLIMIT_DATA", "VmData:"}};
  for (size_t i = 0; i < LADE_COUNT(limits); i++) {
    struct rlimit limit;
    uint64_t used_kib = 0;
    if (getrlimit(limits[i].resource, &limit) || limit.rlim_cur == RLIM_INFINITY)
      continue;
    field_read("/proc/self/status", limits[i].key, &used_kib);
    limit_keep(memory, limits[i].name, limit.rlim_cur, used_kib << 10);
  }
}

int lade_memory_get(const char *root, struct lade_error *error, struct lade_memory *ret_memory)
{
  struct lade_memory memory = {.bytes = UINT64_MAX};
  int status = machine_look(root, &memory, error);
  for (size_t i = 0; i < LADE_COUNT(hierarchies) && !status; i++) {
    struct lade_cgroup group;
    bool has_more = lade_cgroup_find(root, hierarchies[i].controller, &group);
    while (has_more && !status) {
      status = group_look(&hierarchies[i], &group, &memory, error);
      has_more = lade_cgroup_up(&group);
    }
  }
  if (status)
    return status;
  if (!*root)
    process_look(&memory);
  *ret_memory = memory;
  return 0;
}

void lade_memory_trim(void)
{
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

uint64_t lade_memory_resident_peak(void)
{
  uint64_t kib = 0;
  return field_read("/proc/self/status", "VmHWM:", &kib) ? kib << 10 : 0;
}

void lade_memory_resident_reset(void)
{
  FILE *file = fopen("/proc/self/clear_refs", "we");
  if (!file)
    return;
  fputs("5\n", file);
  fclose(file);
}
