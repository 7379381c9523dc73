/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a process may take is the least that any limit leaves: of the machine, of control groups of either
 * version up to the root, nested and in containers. A machine is a directory of files here.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/memory.h"
#include "tests/support/scratch.h"

#define MIB (UINT64_C(1) << 20)
#define V2 "30 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
#define V1 "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
#define UNIFIED "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"

/* Write @text as @path of the machine, and make the directories above it. */
static void put(const char *path, const char *text)
{
  char whole[SCRATCH_PATH_BYTES];
  snprintf(whole, sizeof(whole), "%s%s", in_scratch("machine"), path);
  for (char *slash = strchr(whole + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(whole, 0700);
    *slash = '/';
  }
  FILE *file = fopen(whole, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

/* Make a machine of 1000 MiB, 800 of them available, with these mounts and groups. */
static void machine_make(const char *mounts, const char *groups)
{
  if (access(in_scratch("machine"), F_OK) == 0)
    scratch_remove(in_scratch("machine"));
  put("/proc/meminfo", "MemTotal: 1024000 kB\nMemFree: 1 kB\nMemAvailable: 819200 kB\n");
  put("/proc/self/mountinfo", mounts);
  put("/proc/self/cgroup", groups);
}

/* Write a group's limit, its use, and the page cache in that use; in MiB. */
static void group_put(const char *dir, const char *limit, const char *usage, int limit_mib, int usage_mib,
                      int cache_mib)
{
  char path[SCRATCH_PATH_BYTES], text[256];
  const char *total = strstr(limit, "_in_bytes") ? "total_" : "";
  snprintf(path, sizeof(path), "%s/%s", dir, limit);
  snprintf(text, sizeof(text), "%llu\n", limit_mib * (unsigned long long)MIB);
  put(path, text);
  snprintf(path, sizeof(path), "%s/%s", dir, usage);
  snprintf(text, sizeof(text), "%llu\n", usage_mib * (unsigned long long)MIB);
  put(path, text);
  snprintf(path, sizeof(path), "%s/memory.stat", dir);
  snprintf(text, sizeof(text), "%sactive_file %llu\n%sinactive_file %llu\n%s %llu\n", total,
           (cache_mib + 2) * (unsigned long long)MIB, total, 3 * (unsigned long long)MIB,
           *total ? "total_mapped_file" : "file_mapped", 5 * (unsigned long long)MIB);
  put(path, text);
}

static struct lade_memory get(void)
{
  struct lade_error error = {0};
  struct lade_memory memory = {0};
  assert_int_equal(lade_memory_get(in_scratch("machine"), &error, &memory), 0);
  return memory;
}

static void assert_left(uint64_t mib, uint64_t limit_mib, const char *source)
{
  const struct lade_memory memory = get();
  assert_int_equal(memory.bytes, mib * MIB);
  assert_int_equal(memory.limit_bytes, limit_mib * MIB);
  if (!strstr(memory.source, source))
    fail_msg("the limit is of %s, not of %s", memory.source, source);
}

static void assert_unknown(const char *word)
{
  struct lade_error error = {0};
  struct lade_memory memory;
  assert_int_equal(lade_memory_get(in_scratch("machine"), &error, &memory), -ENODEV);
  if (!strstr(error.text, word))
    fail_msg("%s does not say %s", error.text, word);
}

static void a_machine_without_control_groups_has_all_available_memory(void **state)
{
  machine_make("", "");
  assert_left(800, 1000, "/proc/meminfo");
  machine_make(V2, "0::/\n"); /* the root has no limit files */
  assert_left(800, 1000, "/proc/meminfo");
}

static void version_2_limits_from_the_group_to_the_root(void **state)
{
  machine_make(V2, "0::/a/b/c\n");
  put("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/c/memory.current", "1000\n");
  assert_left(800, 1000, "/proc/meminfo");
  group_put("/sys/fs/cgroup/a/b", "memory.max", "memory.current", 300, 100, 40);
  assert_left(240, 300, "/a/b/memory.max");
  group_put("/sys/fs/cgroup/a", "memory.max", "memory.current", 400, 250, 0);
  assert_left(150, 400, "/a/memory.max");
  group_put("/sys/fs/cgroup/a/b", "memory.high", "memory.current", 200, 100, 40);
  assert_left(140, 200, "/a/b/memory.high");
  group_put("/sys/fs/cgroup/a", "memory.max", "memory.current", 200, 250, 0); /* lowered below its use */
  assert_left(0, 200, "/a/memory.max");
}

static void version_1_limits_from_the_group_to_the_root(void **state)
{
  machine_make(V1 UNIFIED, "5:cpuset:/x\n4:memory:/a/b\n0::/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  assert_left(800, 1000, "/proc/meminfo");
  group_put("/sys/fs/cgroup/memory/a/b", "memory.limit_in_bytes", "memory.usage_in_bytes", 300, 100, 40);
  assert_left(240, 300, "/memory/a/b/memory.limit_in_bytes");
  group_put("/sys/fs/cgroup/memory/a", "memory.limit_in_bytes", "memory.usage_in_bytes", 200, 100, 0);
  assert_left(100, 200, "/memory/a/memory.limit_in_bytes");
  group_put("/sys/fs/cgroup/memory/a", "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", 250, 200, 0);
  assert_left(50, 250, "/memory/a/memory.memsw.limit_in_bytes");
}

/* Controllers may be mounted together, with version 2 at the same time. */
static void mounts_are_found_where_they_are(void **state)
{
  machine_make("35 31 0:32 / /cg/both rw - cgroup cgroup rw,cpu,memory\n" UNIFIED, "4:cpu,memory:/a\n0::/u\n");
  group_put("/cg/both/a", "memory.limit_in_bytes", "memory.usage_in_bytes", 300, 100, 0);
  assert_left(200, 300, "/cg/both/a/memory.limit_in_bytes");
  group_put("/sys/fs/cgroup/unified/u", "memory.max", "memory.current", 150, 100, 0);
  assert_left(50, 150, "/unified/u/memory.max");
}

/* A container mounts its own part of the hierarchy, under a name that it may not see itself. */
static void a_container_sees_its_own_part(void **state)
{
  machine_make("35 31 0:32 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "4:memory:/docker/1/job\n");
  group_put("/sys/fs/cgroup/memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes", 300, 100, 0);
  group_put("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", 200, 50, 0);
  assert_left(150, 200, "/memory/memory.limit_in_bytes");
  put("/proc/self/cgroup", "4:memory:/docker/12\n");
  assert_left(150, 200, "/memory/memory.limit_in_bytes");
  put("/proc/self/cgroup", "4:memory:/../..\n");
  assert_left(150, 200, "/memory/memory.limit_in_bytes");
  assert_int_equal(remove(in_scratch("machine/proc/self/mountinfo")), 0);
  assert_left(150, 200, "/memory/memory.limit_in_bytes");
}

static void an_amount_that_is_not_known_is_none(void **state)
{
  machine_make(V2, "0::/a\nnothing\n4:memory\n");
  put("/sys/fs/cgroup/a/memory.max", "");
  assert_unknown("/a/memory.max");
  put("/sys/fs/cgroup/a/memory.max", "12 MiB\n");
  assert_unknown("/a/memory.max");
  put("/sys/fs/cgroup/a/memory.max", "-1\n");
  assert_unknown("/a/memory.max");
  put("/sys/fs/cgroup/a/memory.max", "12000000\n");
  put("/sys/fs/cgroup/a/memory.current", "lots\n");
  assert_unknown("/a/memory.current");
  machine_make("garbage - cgroup2\n - \n\n", "::::\n");
  assert_left(800, 1000, "/proc/meminfo");
  put("/proc/meminfo", "MemTotal: 1024000 kB\n");
  assert_unknown("MemAvailable");
  assert_int_equal(remove(in_scratch("machine/proc/meminfo")), 0);
  assert_unknown("/proc/meminfo");
}

/* In a child, because a lowered limit stays lowered. */
static void the_processs_own_limits_count(void **state)
{
  struct lade_memory before = {0}, after = {0};
  assert_int_equal(lade_memory_get("", NULL, &before), 0);
  const pid_t child = fork();
  int status = 0;
  if (child == 0) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r"); /* its first number is the address space */
    if (!file || fscanf(file, "%llu", &pages) != 1)
      _exit(3);
    fclose(file);
    const rlim_t bytes = pages * (rlim_t)sysconf(_SC_PAGESIZE) + before.bytes / 2;
    const struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) || lade_memory_get("", NULL, &after))
      _exit(1);
    _exit(after.bytes < before.bytes && strcmp(after.source, "RLIMIT_AS") == 0 ? 0 : 2);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_machine_without_control_groups_has_all_available_memory),
    cmocka_unit_test(version_2_limits_from_the_group_to_the_root),
    cmocka_unit_test(version_1_limits_from_the_group_to_the_root),
    cmocka_unit_test(mounts_are_found_where_they_are),
    cmocka_unit_test(a_container_sees_its_own_part),
    cmocka_unit_test(an_amount_that_is_not_known_is_none),
    cmocka_unit_test(the_processs_own_limits_count),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
