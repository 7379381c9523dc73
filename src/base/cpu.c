/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instruction sets come from the compiler's CPUID support; the operating system's part (it must save the wide
 * registers) is included there. Tiles are in leaf 7, and Linux 5.16 or later says whether it saves them, which it does
 * for who has asked (Documentation/arch/x86/xstate.rst). Threads come from the affinity mask, lowered by the CPU quota
 * of every cgroup from ours up to the root: v2 states "quota period" in cpu.max, v1 two files. Memory is the smaller of
 * MemAvailable and what each cgroup's limit leaves of its usage, not counting page cache that the kernel would drop
 * (inactive_file).
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/base.h"
#include "base/cpu.h"

#define PATH_BYTES 4096

/* arch_prctl's, of asm/prctl.h since Linux 5.16; and the number of the tiles' data in the state that is saved. */
#define ASK_SUPPORTED 0x1021
#define ASK_PERMISSION 0x1023
#define STATE_TILES 18

/* The first line of @path into @line; false when there is none. */
static bool line_read(const char *path, char *line, int line_bytes)
{
  FILE *file = fopen(path, "re");
  if (!file)
    return false;
  bool is_read = fgets(line, line_bytes, file) != NULL;
  fclose(file);
  return is_read;
}

/* The number behind @key in a "key number" file, or -1. */
static long long field_read(const char *path, const char *key)
{
  FILE *file = fopen(path, "re");
  if (!file)
    return -1;
  char line[256];
  long long value = -1;
  size_t key_bytes = strlen(key);
  while (fgets(line, sizeof(line), file)) {
    if (strncmp(line, key, key_bytes) == 0 && sscanf(line + key_bytes, " %lld", &value) == 1)
      break;
  }
  fclose(file);
  return value;
}

/* Our cgroup below a controller's mount ("" names v2), as "/a/b"; "/" when it is not told. */
static void cgroup_find(const char *controller, char *path, int path_bytes)
{
  snprintf(path, (size_t)path_bytes, "/");
  FILE *file = fopen("/proc/self/cgroup", "re");
  if (!file)
    return;
  char line[PATH_BYTES];
  while (fgets(line, sizeof(line), file)) {
    char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
    if (!at)
      continue;
    *at = '\0';
    bool is_ours = *controller ? strstr(names + 1, controller) != NULL : names[1] == '\0';
    if (!is_ours)
      continue;
    at[1 + strcspn(at + 1, "\n")] = '\0';
    snprintf(path, (size_t)path_bytes, "%s", at + 1);
    break;
  }
  fclose(file);
}

/* Cut the last component: "/a/b" to "/a" to "/" to false. */
static bool cgroup_up(char *path)
{
  if (strcmp(path, "/") == 0 || !*path)
    return false;
  char *slash = strrchr(path, '/');
  if (slash == path || !slash)
    strcpy(path, "/");
  else
    *slash = '\0';
  return true;
}

static double quota_v2(const char *group)
{
  char path[PATH_BYTES + 64], line[128];
  double quota, period;
  snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", group);
  if (!line_read(path, line, sizeof(line)) || sscanf(line, "%lf %lf", &quota, &period) != 2 || period <= 0)
    return -1;
  return quota / period;
}

static double quota_v1(const char *group)
{
  char path[PATH_BYTES + 64], line[128];
  snprintf(path, sizeof(path), "/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", group);
  if (!line_read(path, line, sizeof(line)))
    return -1;
  double quota = atof(line);
  snprintf(path, sizeof(path), "/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", group);
  if (!line_read(path, line, sizeof(line)) || quota <= 0 || atof(line) <= 0)
    return -1;
  return quota / atof(line);
}

/* The smallest CPU quota from our cgroup up to the root, in cores; -1 for none. */
static double quota_get(const char *controller, double (*quota_read)(const char *))
{
  char group[PATH_BYTES];
  double smallest = -1;
  cgroup_find(controller, group, sizeof(group));
  do {
    double quota = quota_read(group);
    if (quota > 0 && (smallest < 0 || quota < smallest))
      smallest = quota;
  } while (cgroup_up(group));
  return smallest;
}

#if defined(__x86_64__)
static bool tiles_are_here(void)
{
  unsigned eax, ebx, ecx, edx;
  const unsigned wanted = 1u << 22 | 1u << 24; /* AMX-BF16, AMX-TILE */
  uint64_t saved = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & wanted) == wanted &&
         syscall(SYS_arch_prctl, ASK_SUPPORTED, &saved) == 0 && (saved >> STATE_TILES & 1);
}

bool lade_cpu_permit_amx(void)
{
  return syscall(SYS_arch_prctl, ASK_PERMISSION, STATE_TILES) == 0;
}
#else
bool lade_cpu_permit_amx(void)
{
  return false;
}
#endif

struct lade_cpu lade_cpu_get(void)
{
  struct lade_cpu cpu = {0};
#if defined(__x86_64__)
  unsigned eax, ebx, ecx = 0, edx;
  bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C); /* clang 14 has no name for it */
  __builtin_cpu_init();
  cpu.has_avx2 = has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  cpu.has_avx512 = cpu.has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  cpu.has_avx512_bf16 = cpu.has_avx512 && __builtin_cpu_supports("avx512bf16");
  cpu.is_bf16_dot_slow = cpu.has_avx512_bf16 && __builtin_cpu_is("intel");
  cpu.has_amx_bf16 = cpu.has_avx512_bf16 && tiles_are_here();
#endif
  const char *level = getenv("LADE_CPU");
  if (!level)
    return cpu;
  if (strcmp(level, "plain") == 0)
    return (struct lade_cpu){0};
  if (strcmp(level, "avx2") == 0)
    cpu.has_avx512 = cpu.has_avx512_bf16 = false;
  if (strcmp(level, "avx512") == 0)
    cpu.has_avx512_bf16 = false;
  cpu.has_amx_bf16 &= strcmp(level, "avx512_bf16") != 0 && cpu.has_avx512_bf16;
  cpu.is_bf16_dot_slow &= cpu.has_avx512_bf16 && strcmp(level, "avx512_bf16") != 0;
  return cpu;
}

bool lade_cpu_has_steady_ticks(void)
{
#if defined(__x86_64__)
  char line[64];
  return line_read("/sys/devices/system/clocksource/clocksource0/current_clocksource", line, sizeof(line)) &&
         strcmp(line, "tsc\n") == 0;
#else
  return true;
#endif
}

int lade_cpu_count(void)
{
  cpu_set_t set;
  int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  double quota = quota_get("", quota_v2);
  if (quota < 0)
    quota = quota_get("cpu", quota_v1);
  if (quota > 0 && quota < count)
    count = (int)(quota + 0.999);
  return LADE_MAX(count, 1);
}

void lade_cpu_name(char *name, int name_bytes)
{
  snprintf(name, (size_t)name_bytes, "unknown");
  FILE *file = fopen("/proc/cpuinfo", "re");
  if (!file)
    return;
  char line[512];
  while (fgets(line, sizeof(line), file)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || !colon)
      continue;
    colon[1 + strcspn(colon + 1, "\n")] = '\0';
    snprintf(name, (size_t)name_bytes, "%s", colon + 1 + strspn(colon + 1, " "));
    break;
  }
  fclose(file);
}

/* What the cgroup limit in @limit_name leaves at @group, or -1. */
static long long room_get(const char *mount, const char *group, const char *limit_name, const char *usage_name,
                          const char *cache_key)
{
  char path[PATH_BYTES + 128], line[128];
  long long limit, usage;
  snprintf(path, sizeof(path), "%s%s/%s", mount, group, limit_name);
  if (!line_read(path, line, sizeof(line)) || sscanf(line, "%lld", &limit) != 1)
    return -1;
  snprintf(path, sizeof(path), "%s%s/%s", mount, group, usage_name);
  if (!line_read(path, line, sizeof(line)) || sscanf(line, "%lld", &usage) != 1)
    return -1;
  snprintf(path, sizeof(path), "%s%s/memory.stat", mount, group);
  long long cache = field_read(path, cache_key);
  long long used = usage - LADE_MAX(cache, 0);
  return limit > used ? limit - used : 0;
}

long long lade_cpu_memory_bytes(void)
{
  long long available_kib = field_read("/proc/meminfo", "MemAvailable:");
  long long bytes = available_kib < 0 ? 0 : available_kib * 1024;
  char group[PATH_BYTES];
  cgroup_find("", group, sizeof(group));
  do {
    long long room = room_get("/sys/fs/cgroup", group, "memory.max", "memory.current", "inactive_file");
    if (room >= 0 && room < bytes)
      bytes = room;
  } while (cgroup_up(group));
  cgroup_find("memory", group, sizeof(group));
  do {
    long long room = room_get("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                              "memory.usage_in_bytes", "total_inactive_file");
    if (room >= 0 && room < bytes)
      bytes = room;
  } while (cgroup_up(group));
  return bytes;
}
