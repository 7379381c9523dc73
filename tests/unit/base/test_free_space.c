/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free space of a file system for this process. ext4's reserve is usable by its owner alone, less the blocks that ext4
 * itself keeps. On other file systems, free blocks that are not available are usable by no process.
 */
#include <errno.h>
#include <linux/magic.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/free_space.h"

#define BLOCK 4096
#define BLOCKS_OF_GIB (UINT64_C(262144))

/* Make a file system of 1 GiB with @n_free bytes free and a twentieth reserved. */
static struct statfs fs_make(long type, uint64_t n_free)
{
  const uint64_t n_kept = BLOCKS_OF_GIB / 20;
  return (struct statfs){.f_type = type, .f_bsize = BLOCK, .f_frsize = BLOCK, .f_blocks = BLOCKS_OF_GIB,
                         .f_bfree = n_free, .f_bavail = n_free > n_kept ? n_free - n_kept : 0};
}

static void reserved_blocks_count_for_their_user(void **state)
{
  const struct statfs roomy = fs_make(EXT4_SUPER_MAGIC, 100000), tight = fs_make(EXT4_SUPER_MAGIC, 10000);
  assert_int_equal(lade_free_space_of(&roomy, false), (100000 - BLOCKS_OF_GIB / 20) * BLOCK);
  assert_int_equal(lade_free_space_of(&roomy, true), (100000 - 4096) * BLOCK);
  assert_int_equal(lade_free_space_of(&tight, false), 0);
  assert_int_equal(lade_free_space_of(&tight, true), (10000 - 4096) * BLOCK);
}

/* Less is free than ext4 keeps for itself. */
static void blocks_of_the_file_system_count_for_no_user(void **state)
{
  const struct statfs full = fs_make(EXT4_SUPER_MAGIC, 4000);
  struct statfs small = fs_make(EXT4_SUPER_MAGIC, 1000);
  small.f_blocks = 10000; /* a fiftieth of it is kept, not 4096 */
  assert_int_equal(lade_free_space_of(&full, true), 0);
  assert_int_equal(lade_free_space_of(&small, true), (1000 - 200) * BLOCK);
}

static void other_file_systems_state_their_available_blocks(void **state)
{
  static const long types[] = {XFS_SUPER_MAGIC, TMPFS_MAGIC, BTRFS_SUPER_MAGIC, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC};
  for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
    const struct statfs fs = fs_make(types[i], 100000);
    assert_int_equal(lade_free_space_of(&fs, true), fs.f_bavail * BLOCK);
  }
}

static void unknown_free_space_refuses_nothing(void **state)
{
  const struct statfs silent = {.f_type = FUSE_SUPER_MAGIC, .f_bsize = BLOCK};
  struct statfs huge = fs_make(XFS_SUPER_MAGIC, UINT64_C(1) << 60);
  assert_int_equal(lade_free_space_of(&silent, false), LADE_FREE_SPACE_UNKNOWN);
  assert_true(lade_free_space_of(&huge, false) <= LADE_FREE_SPACE_UNKNOWN);
}

/* The system's answer lies between the blocks available to all users and all free blocks. */
static void the_system_is_asked(void **state)
{
  struct statfs fs;
  uint64_t bytes = 0;
  assert_int_equal(statfs(".", &fs), 0);
  const uint64_t slack = UINT64_C(64) << 20; /* other processes write meanwhile */
  assert_int_equal(lade_free_space_get(".", &bytes), 0);
  assert_true(bytes + slack >= fs.f_bavail * (uint64_t)fs.f_frsize);
  assert_true(bytes <= fs.f_bfree * (uint64_t)fs.f_frsize + slack || bytes == LADE_FREE_SPACE_UNKNOWN);
  bytes = 7;
  assert_int_equal(lade_free_space_get("/no/such/place", &bytes), -ENOENT);
  assert_int_equal(lade_free_space_get_fd(-1, &bytes), -EBADF);
  assert_int_equal(bytes, 7);
}

static void the_limit_of_files_is_the_shells(void **state)
{
  struct rlimit before, tight;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  tight = before;
  tight.rlim_cur = 4096;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const uint64_t limit = lade_file_size_limit();
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(limit, 4096);
  assert_int_equal(lade_file_size_limit(), before.rlim_cur == RLIM_INFINITY ? LADE_FREE_SPACE_UNKNOWN :
                   before.rlim_cur);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reserved_blocks_count_for_their_user),
      cmocka_unit_test(blocks_of_the_file_system_count_for_no_user),
      cmocka_unit_test(other_file_systems_state_their_available_blocks),
      cmocka_unit_test(unknown_free_space_refuses_nothing),
      cmocka_unit_test(the_system_is_asked),
      cmocka_unit_test(the_limit_of_files_is_the_shells),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
