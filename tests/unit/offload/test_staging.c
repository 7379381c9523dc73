/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slab has the exact size, is zero, aligned, resident and writable to its last byte, on every requested node. A store
 * chooses the node near its drives, by a made-up tree of devices and a made-up topology.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "offload/numa.h"
#include "offload/staging.h"
#include "offload/store.h"
#include "tests/support/scratch.h"

#define HUGE_BYTES (2u << 20)

/* ---- a machine whose reserved huge pages this process may not take ---- */

static bool has_reserved; /* the pool promises the requested pages */
static int n_reserved;    /* mappings that it promised pages for */
static void *promised;    /* the last of them, which is never touched; NULL once another mapping has its address */

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
  const bool is_promise = has_reserved && (flags & MAP_HUGETLB);
  if (is_promise) {
    flags &= ~(MAP_HUGETLB | (int)(63u << MAP_HUGE_SHIFT));
    n_reserved++;
  }
  if (is_promise || at == promised)
    promised = is_promise ? at : NULL;
  return __real_mmap(at, bytes, protection, flags, fd, offset);
}
/* Wrap mmap under the name that headers give it for offsets of 64 bits, the normal size here. */
void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
    __attribute__((alias("__wrap_mmap")));

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice)
{
  if (!promised || at != promised)
    return __real_madvise(at, bytes, advice);
  errno = EFAULT;
  return -1;
}

/* ---- slabs ---- */

static bool is_resident(const struct lade_staging *staging, uint64_t at)
{
  unsigned char page = 0;
  uint64_t base = (uint64_t)sysconf(_SC_PAGESIZE);
  assert_int_equal(mincore(staging->data + (at & ~(base - 1)), base, &page), 0);
  return page & 1;
}

static void slab_check(uint64_t bytes, int numa_node)
{
  struct lade_staging staging;
  uint64_t base = (uint64_t)sysconf(_SC_PAGESIZE);
  assert_int_equal(lade_staging_init(&staging, bytes, numa_node, NULL), 0);
  assert_int_equal(staging.bytes, lade_align_up(bytes, base));
  assert_int_equal((uintptr_t)staging.data % HUGE_BYTES, 0);
  for (uint64_t at = 0; at < staging.bytes; at += base)
    assert_true(is_resident(&staging, at));
  for (uint64_t i = 0; i < staging.bytes; i++)
    assert_int_equal(staging.data[i], 0);
  memset(staging.data, 1, staging.bytes);
  lade_staging_finish(&staging);
  assert_null(staging.data);
  lade_staging_finish(&staging);
}

static void slabs_have_the_exact_size_and_are_resident(void **state)
{
  const uint64_t sizes[] = {1, 4096, HUGE_BYTES - 1, HUGE_BYTES, HUGE_BYTES + 1, 3 * HUGE_BYTES + 5 * 4096};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++)
    slab_check(sizes[i], -1);
}

static void a_numa_node_is_a_preference(void **state)
{
  slab_check(HUGE_BYTES + 4096, 0);
  slab_check(HUGE_BYTES + 4096, 12345);
}

/* Return the reserved huge pages that are neither used nor promised. */
static long reserved_free(void)
{
  char line[128];
  long n_free = 0, n_promised = 0;
  FILE *file = fopen("/proc/meminfo", "re");
  while (file && fgets(line, sizeof(line), file)) {
    sscanf(line, "HugePages_Free: %ld", &n_free);
    sscanf(line, "HugePages_Rsvd: %ld", &n_promised);
  }
  if (file)
    fclose(file);
  return n_free - n_promised;
}

static void reserved_pages_are_taken_where_there_are_some(void **state)
{
  struct lade_staging staging;
  const long n_before = reserved_free();
  if (n_before < 4) {
    print_message("SKIP: no huge pages are reserved on this machine (vm.nr_hugepages)\n");
    skip();
  }
  assert_int_equal(lade_staging_init(&staging, 2 * HUGE_BYTES + 4096, -1, NULL), 0);
  assert_int_equal(staging.pages, LADE_PAGES_RESERVED);
  assert_true(reserved_free() <= n_before - 2);
  lade_staging_finish(&staging);
  slab_check(3 * HUGE_BYTES + 4096, 0);
}

/* Promised pages are on another node, or belong to another control group. */
static void reserved_pages_that_cannot_be_taken_are_replaced(void **state)
{
  struct lade_staging staging;
  has_reserved = true;
  slab_check(3 * HUGE_BYTES + 4096, 0);
  assert_int_equal(lade_staging_init(&staging, HUGE_BYTES, -1, NULL), 0);
  has_reserved = false;
  assert_int_equal(n_reserved, 2);
  assert_int_not_equal(staging.pages, LADE_PAGES_RESERVED);
  lade_staging_finish(&staging);
}

static void missing_memory_is_an_error_and_changes_nothing(void **state)
{
  const struct lade_staging before = {.bytes = 42};
  struct lade_staging staging = before;
  struct lade_faults faults;
  assert_int_equal(lade_staging_init(&staging, 0, -1, NULL), -EINVAL);
  assert_int_equal(lade_staging_init(&staging, UINT64_MAX, -1, NULL), -ENOMEM);
  assert_int_equal(lade_staging_init(&staging, 1ull << 60, -1, NULL), -ENOMEM);
  lade_faults_init(&faults);
  lade_faults_arm(&faults, LADE_FAULT_RESERVE, 1, true, -ENOMEM);
  assert_int_equal(lade_staging_init(&staging, HUGE_BYTES, -1, &faults), -ENOMEM);
  lade_faults_arm(&faults, LADE_FAULT_MAP, 1, true, -ENOMEM);
  assert_int_equal(lade_staging_init(&staging, HUGE_BYTES, -1, &faults), -ENOMEM);
  assert_memory_equal(&staging, &before, sizeof(staging));
}

/* ---- the node of a drive ---- */

static void directory_make(const char *path)
{
  assert_int_equal(mkdir(path, 0700), 0);
}

static void node_write(const char *path, const char *text)
{
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

/*
 * Make a tree as in /sys: a partition on a disk on a PCI function, for device @device; without a node if @node is NULL.
 */
static void tree_make(dev_t device, const char *node)
{
  char link[64];
  static const char *const directories[] = {"sys", "sys/dev", "sys/dev/block", "sys/pci", "sys/pci/nvme",
                                            "sys/pci/nvme/disk", "sys/pci/nvme/disk/part"};
  for (size_t i = 0; i < LADE_COUNT(directories); i++)
    directory_make(in_scratch(directories[i]));
  snprintf(link, sizeof(link), "sys/dev/block/%u:%u", major(device), minor(device));
  assert_int_equal(symlink("../../pci/nvme/disk/part", in_scratch(link)), 0);
  if (node)
    node_write(in_scratch("sys/pci/numa_node"), node);
}

static void a_drive_is_near_the_node_of_the_device_above_it(void **state)
{
  tree_make(makedev(259, 3), "1\n");
  assert_int_equal(lade_numa_of_device(makedev(259, 3), in_scratch("sys")), 1);
  assert_int_equal(lade_numa_of_device(makedev(259, 4), in_scratch("sys")), -1); /* not in the tree */
  assert_int_equal(lade_numa_of_device(makedev(259, 3), in_scratch("nowhere")), -1);
  node_write(in_scratch("sys/pci/numa_node"), "-1\n"); /* as on machines of one node */
  assert_int_equal(lade_numa_of_device(makedev(259, 3), in_scratch("sys")), -1);
  node_write(in_scratch("sys/pci/nvme/disk/numa_node"), "0\n"); /* the nearest one counts */
  assert_int_equal(lade_numa_of_device(makedev(259, 3), in_scratch("sys")), 0);
}

static void a_gpu_is_near_the_node_of_its_pci_function(void **state)
{
  tree_make(makedev(259, 3), NULL);
  directory_make(in_scratch("sys/bus"));
  directory_make(in_scratch("sys/bus/pci"));
  directory_make(in_scratch("sys/bus/pci/devices"));
  assert_int_equal(symlink("../../../pci", in_scratch("sys/bus/pci/devices/0000:c1:01.0")), 0);
  assert_int_equal(lade_numa_of_pci("0000:c1:01.0", in_scratch("sys")), -1); /* no file gives the node */
  node_write(in_scratch("sys/pci/numa_node"), "1\n");
  assert_int_equal(lade_numa_of_pci("0000:c1:01.0", in_scratch("sys")), 1);
  assert_int_equal(lade_numa_of_pci("0000:c2:01.0", in_scratch("sys")), -1);
  assert_int_equal(lade_numa_of_pci("", in_scratch("sys")), -1);
}

static void a_node_may_have_no_memory(void **state)
{
  assert_true(lade_numa_has_memory(0, in_scratch("nowhere"))); /* a kernel without NUMA */
  assert_false(lade_numa_has_memory(1, in_scratch("nowhere")));
  static const char *const directories[] = {"nodes",
                                            "nodes/devices",
                                            "nodes/devices/system",
                                            "nodes/devices/system/node",
                                            "nodes/devices/system/node/node0",
                                            "nodes/devices/system/node/node1"};
  for (size_t i = 0; i < LADE_COUNT(directories); i++)
    directory_make(in_scratch(directories[i]));
  node_write(in_scratch("nodes/devices/system/node/node0/meminfo"), "\nNode 0 MemTotal:       0 kB\n");
  node_write(in_scratch("nodes/devices/system/node/node1/meminfo"), "\nNode 1 MemTotal:       131899392 kB\n");
  assert_false(lade_numa_has_memory(0, in_scratch("nodes")));
  assert_true(lade_numa_has_memory(1, in_scratch("nodes")));
  assert_false(lade_numa_has_memory(2, in_scratch("nodes")));
}

static void the_node_of_the_gpu_comes_before_that_of_the_drives(void **state)
{
  setenv("HWLOC_SYNTHETIC", "node:2 core:2 pu:1", 1);
  const bool has_nodes = lade_numa_count() == 2;
  assert_int_equal(lade_numa_choose(1, 0), has_nodes ? 1 : -1);
  assert_int_equal(lade_numa_choose(-1, 1), has_nodes ? 1 : -1);
  assert_int_equal(lade_numa_choose(-1, -1), -1);
  setenv("HWLOC_SYNTHETIC", "node:1 core:2 pu:1", 1);
  assert_int_equal(lade_numa_choose(0, 0), -1);
  unsetenv("HWLOC_SYNTHETIC");
}

/*
 * Return the node that a store in the test's directory reports if its drive is near node 1 and the machine is
 * @topology.
 */
static int store_node(const char *topology)
{
  const struct lade_store_params params = {.struct_size = sizeof(params), .dir = scratch, .sysfs = in_scratch("sys"),
                                           .allow_tmpfs = true, .allow_buffered = true, .engine = LADE_STORE_POSIX};
  struct lade_store_info info;
  struct lade_error error = {0};
  lade_store *store = NULL;
  assert_int_equal(setenv("HWLOC_SYNTHETIC", topology, 1), 0);
  if (lade_store_open(&params, &error, &store))
    fail_msg("%s", error.text);
  lade_store_get_info(store, &info);
  slab_check(HUGE_BYTES, info.numa_node);
  lade_store_close(store);
  unsetenv("HWLOC_SYNTHETIC");
  return info.numa_node;
}

static void a_store_names_the_node_of_its_drives_where_there_are_several(void **state)
{
  struct stat of_scratch;
  assert_int_equal(stat(scratch, &of_scratch), 0);
  tree_make(of_scratch.st_dev, "1\n");
  setenv("HWLOC_SYNTHETIC", "node:2 core:2 pu:1", 1);
  const bool has_hwloc = lade_numa_count() == 2; /* without hwloc there is one node */
  assert_int_equal(lade_numa_bind(NULL, 0, 7), false);
  assert_int_equal(store_node("node:2 core:2 pu:1"), has_hwloc ? 1 : -1);
  assert_int_equal(store_node("node:1 core:2 pu:1"), -1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slabs_have_the_exact_size_and_are_resident),
      cmocka_unit_test(a_numa_node_is_a_preference),
      cmocka_unit_test(reserved_pages_are_taken_where_there_are_some),
      cmocka_unit_test(reserved_pages_that_cannot_be_taken_are_replaced),
      cmocka_unit_test(missing_memory_is_an_error_and_changes_nothing),
      cmocka_unit_test_setup_teardown(a_drive_is_near_the_node_of_the_device_above_it, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_gpu_is_near_the_node_of_its_pci_function, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_node_may_have_no_memory, scratch_setup, scratch_teardown),
      cmocka_unit_test(the_node_of_the_gpu_comes_before_that_of_the_drives),
      cmocka_unit_test_setup_teardown(a_store_names_the_node_of_its_drives_where_there_are_several, scratch_setup,
                                      scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
