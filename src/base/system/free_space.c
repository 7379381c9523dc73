/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processes may use the reserve of a file system.
 *
 * ext2, ext3 and ext4 reserve blocks (a twentieth by default) for user 0 and for processes with CAP_SYS_RESOURCE. Both
 * are judged in the first user namespace, so root in another namespace may not use the reserve. In addition ext4 keeps
 * a fiftieth, 4096 clusters at most, for its own metadata. f_bfree counts these blocks, but no process can use them.
 *
 * On other file systems f_bavail holds for every process. XFS and tmpfs have no reserve, and btrfs cannot use blocks
 * for data that are free and not available. On a network file system the server decides which user is root. So f_bavail
 * is used there.
 */
#include "base/free_space.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"

#define FIRST_USER_NAMESPACE 0xeffffffdu /* its inode, the same on every Linux */
#define EXT4_CLUSTERS_MAX 4096
#define EXT4_CLUSTERS_SHARE 50

static bool has_capability(int capability)
{
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
  if (syscall(SYS_capget, &header, data))
    return false;
  return data[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability);
}

/* True if this process may use a file system's reserve. */
static bool has_reserve(void)
{
  struct stat space;
  const bool is_first = stat("/proc/self/ns/user", &space) == 0 && space.st_ino == FIRST_USER_NAMESPACE;
  return is_first && (geteuid() == 0 || has_capability(CAP_SYS_RESOURCE));
}

uint64_t lade_free_space_of(const struct statfs *fs, bool has_reserve)
{
  const uint64_t unit = (uint64_t)(fs->f_frsize ? fs->f_frsize : fs->f_bsize);
  uint64_t n = fs->f_bavail;
  if (!fs->f_blocks)
    return LADE_FREE_SPACE_UNKNOWN;
  if (has_reserve && fs->f_type == EXT4_SUPER_MAGIC) {
    const uint64_t kept = LADE_MIN((uint64_t)fs->f_blocks / EXT4_CLUSTERS_SHARE, EXT4_CLUSTERS_MAX);
    n = LADE_MAX(n, fs->f_bfree - LADE_MIN(kept, (uint64_t)fs->f_bfree));
  }
  return LADE_MIN(n, LADE_FREE_SPACE_UNKNOWN / unit) * unit;
}

int lade_free_space_get(const char *path, uint64_t *ret_bytes)
{
  struct statfs fs;
  if (statfs(path, &fs))
    return -errno;
  *ret_bytes = lade_free_space_of(&fs, has_reserve());
  return 0;
}

int lade_free_space_get_fd(int fd, uint64_t *ret_bytes)
{
  struct statfs fs;
  if (fstatfs(fd, &fs))
    return -errno;
  *ret_bytes = lade_free_space_of(&fs, has_reserve());
  return 0;
}

uint64_t lade_file_size_limit(void)
{
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY)
    return LADE_FREE_SPACE_UNKNOWN;
  return LADE_MIN(limit.rlim_cur, (uint64_t)LADE_FREE_SPACE_UNKNOWN);
}
