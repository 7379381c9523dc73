/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instruction sets and thread count of this CPU. Instruction sets come from the compiler's CPUID builtins, which also
 * check that the operating system saves the wide registers. Tiles are in CPUID leaf 7. Linux 5.16 and later report if
 * they save tiles, and save them for a process that asked for them (Documentation/arch/x86/xstate.rst). The thread
 * count comes from the affinity mask, lowered by the CPU quota of every cgroup from this process's up to the root: v2
 * states "quota period" in cpu.max, v1 has a file for each.
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
#include "base/cgroup.h"
#include "base/cpu.h"

/* Codes of arch_prctl, in asm/prctl.h since Linux 5.16; and the number of the tile data in the saved state. */
#define ASK_SUPPORTED 0x1021
#define ASK_PERMISSION 0x1023
#define STATE_TILES 18

#define CPUS_MAX (16 * CPU_SETSIZE) /* 16,384; Linux supports 8,192 on x86 and up to 4,096 elsewhere */

/* Read the first line of @path into @line; false if there is none. */
static bool line_read(const char *path, char *line, int line_bytes)
{
  FILE *file = fopen(path, "re");
  if (!file)
    return false;
  bool is_read = fgets(line, line_bytes, file) != NULL;
  fclose(file);
  return is_read;
}

static double quota_v2(const struct lade_cgroup *group)
{
  char line[128];
  double quota, period;
  if (!lade_cgroup_read(group, "cpu.max", line, sizeof(line)) || sscanf(line, "%lf %lf", &quota, &period) != 2 ||
      period <= 0)
    return -1;
  return quota / period;
}

static double quota_v1(const struct lade_cgroup *group)
{
  char line[128];
  if (!lade_cgroup_read(group, "cpu.cfs_quota_us", line, sizeof(line)))
    return -1;
  double quota = atof(line);
  if (!lade_cgroup_read(group, "cpu.cfs_period_us", line, sizeof(line)) || quota <= 0 || atof(line) <= 0)
    return -1;
  return quota / atof(line);
}

/* Return the smallest CPU quota from this process's cgroup up to the root, in cores; -1 if there is none. */
static double quota_get(const char *controller, double (*quota_read)(const struct lade_cgroup *))
{
  struct lade_cgroup group;
  double smallest = -1;
  bool has_more = lade_cgroup_find("", controller, &group);
  while (has_more) {
    double quota = quota_read(&group);
    if (quota > 0 && (smallest < 0 || quota < smallest))
      smallest = quota;
    has_more = lade_cgroup_up(&group);
  }
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

/* Return the CPUs of the affinity mask. The kernel refuses a mask with less room than CPUs that it could have. */
static int affinity_count(void)
{
  cpu_set_t sets[CPUS_MAX / CPU_SETSIZE];
  return sched_getaffinity(0, sizeof(sets), sets) == 0 ? CPU_COUNT_S(sizeof(sets), sets) : 1;
}

int lade_cpu_count(void)
{
  int count = affinity_count();
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
