/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's file. It has no name (O_TMPFILE), so that a crash leaves nothing behind and no other process can open it.
 * If the file system does not support O_TMPFILE, the file is created with a name, mode 0600, and unlinked at once. A
 * durable file keeps its name. O_DIRECT is tried first, and dropped only if the caller allows it: through the page
 * cache every byte costs a copy, and memory outside the budget.
 *
 * Space is checked in three ways, for an early error with both numbers in it: the file size limit (SIGXFSZ would
 * otherwise end the process), the free blocks, and fallocate. A file system without fallocate is accepted, because the
 * store writes every block before it is used.
 *
 * A tmpfs is memory: a store there saves no memory and may exhaust the machine's, so it is refused unless allowed.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/free_space.h"
#include "offload/file.h"

#define FILE_PATH_BYTES 4096

static int file_open_unnamed(const char *dir, int flags)
{
  int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  return fd < 0 ? -errno : fd;
}

static int file_open_named(const char *dir, int flags)
{
  char path[FILE_PATH_BYTES];
  int n = snprintf(path, sizeof(path), "%s/.lade-store-XXXXXX", dir);
  if (n < 0 || n >= (int)sizeof(path))
    return -ENAMETOOLONG;
  int fd = mkostemp(path, O_CLOEXEC | flags);
  if (fd < 0)
    return -errno;
  unlink(path);
  return fd;
}

/* Open a named file that close keeps. It must be no link and belong to this user alone. */
static int file_open_kept(const char *dir, const char *name, int flags)
{
  int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (dir_fd < 0)
    return -errno;
  int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
  int code = fd < 0 ? -errno : lade_file_check_own(dir_fd, fd);
  if (code && fd >= 0) {
    close(fd);
    code = -EIO;
  }
  close(dir_fd);
  return code ? code : fd;
}

/* True if @code means that the file system lacks a feature, so that the next method may work. */
static bool is_feature_missing(int code)
{
  return code == -EINVAL || code == -EOPNOTSUPP || code == -EISDIR || code == -ENOSYS;
}

int store_code_of_open(int code)
{
  static const int kept[] = {-ENOENT, -ENOTDIR, -EACCES, -EPERM, -EROFS, -ELOOP, -ENAMETOOLONG, -ENOSPC, -EDQUOT,
                             -EFBIG, -ENOMEM};
  for (size_t i = 0; i < LADE_COUNT(kept); i++) {
    if (code == kept[i])
      return code;
  }
  return -EIO;
}

/* Open the file by its name; or unnamed if possible, else named and then unlinked. */
static int file_open(const struct lade_store_params *params, const char *dir, int flags)
{
  int fd = lade_fault(params->faults, LADE_FAULT_FILE_OPEN);
  if (params->name)
    return fd ? fd : file_open_kept(dir, params->name, flags);
  if (!fd)
    fd = file_open_unnamed(dir, flags);
  if (fd >= 0 || !is_feature_missing(fd))
    return fd;
  fd = lade_fault(params->faults, LADE_FAULT_FILE_OPEN);
  return fd ? fd : file_open_named(dir, flags);
}

static int dir_check(const struct lade_store_params *params, const char *dir, struct lade_error *error)
{
  struct stat stat_of_dir;
  struct statfs fs;
  if (stat(dir, &stat_of_dir) < 0 || statfs(dir, &fs) < 0) {
    int code = -errno;
    return lade_error_set(error, store_code_of_open(code), "store directory %s: %s; create it or name another", dir,
                          strerror(-code));
  }
  if (!S_ISDIR(stat_of_dir.st_mode))
    return lade_error_set(error, -ENOTDIR, "store %s is not a directory; name one on a drive", dir);
  if ((fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) && !params->allow_tmpfs)
    return lade_error_set(error, -EIO,
                          "store directory %s is a tmpfs, which is memory; name a directory on a drive", dir);
  return 0;
}

int store_file_open(const struct lade_store_params *params, const char *dir, struct lade_error *error,
                    struct store_file *ret_file)
{
  int code = dir_check(params, dir, error);
  if (code)
    return code;
  bool is_direct = true;
  int fd = file_open(params, dir, O_DIRECT);
  if (is_feature_missing(fd) && (params->allow_buffered || params->allow_tmpfs)) {
    is_direct = false;
    fd = file_open(params, dir, 0);
  } else if (is_feature_missing(fd)) {
    return lade_error_set(error, -EIO, "store directory %s: its file system refuses O_DIRECT (%s); name another",
                          dir, strerror(-fd));
  }
  if (fd < 0)
    return lade_error_set(error, store_code_of_open(fd), "store directory %s: cannot create a file there: %s", dir,
                          strerror(-fd));
  *ret_file = (struct store_file){.fd = fd, .is_direct = is_direct};
  return 0;
}

int store_file_check_limit(const char *dir, uint64_t bytes, struct lade_error *error)
{
  const uint64_t limit = lade_file_size_limit();
  char need[16], max[16];
  if (bytes <= limit)
    return 0;
  return lade_error_set(error, -EFBIG, "store in %s needs %s, and the file size limit is %s; raise it (ulimit -f)", dir,
                        lade_size_format(bytes, need, sizeof(need)),
                        lade_size_format(limit, max, sizeof(max)));
}

static int space_error(const struct store_file *file, const char *dir, uint64_t bytes, struct lade_error *error)
{
  char need[LADE_SIZE_TEXT], have[LADE_SIZE_TEXT];
  uint64_t free_bytes = 0;
  lade_free_space_get_fd(file->fd, &free_bytes);
  return lade_error_set(error, -ENOSPC,
                        "store in %s needs %s, and %s are free; free more or use another", dir,
                        lade_size_exact(bytes, need), lade_size_exact(free_bytes, have));
}

/*
 * Allocate @bytes with fallocate. An interrupted call is retried, with a bound. If a file system does not support the
 * call or a sandbox forbids it, the first write allocates the blocks.
 */
static int file_allocate(const struct store_file *file, uint64_t from, uint64_t bytes, struct lade_faults *faults)
{
  int code, n_tries = 0;
  do {
    code = lade_fault(faults, LADE_FAULT_FILE_WRITE);
    if (code == LADE_STORE_FAULT_SHORT) /* fallocate cannot be short */
      code = 0;
    if (!code && fallocate(file->fd, 0, (off_t)from, (off_t)bytes) < 0)
      code = -errno;
  } while (lade_retry(code, &n_tries));
  return is_feature_missing(code) || code == -EPERM ? 0 : code;
}

int store_file_allocate(const struct store_file *file, const char *dir, uint64_t bytes, struct lade_faults *faults,
                        struct lade_error *error)
{
  uint64_t free_bytes;
  int code = store_file_check_limit(dir, bytes, error);
  if (code)
    return code;
  if (lade_free_space_get_fd(file->fd, &free_bytes) == 0 && free_bytes < bytes)
    return space_error(file, dir, bytes, error);
  code = file_allocate(file, 0, bytes, faults);
  if (code == -ENOSPC || code == -EDQUOT)
    return space_error(file, dir, bytes, error);
  if (!code)
    return 0;
  return lade_error_set(error, store_code_of_open(code), "store in %s: cannot allocate %llu bytes: %s", dir,
                        (unsigned long long)bytes, strerror(-code));
}

int store_file_extend(const struct store_file *file, uint64_t from, uint64_t bytes, struct lade_faults *faults)
{
  if (from + bytes > lade_file_size_limit())
    return -EFBIG;
  return file_allocate(file, from, bytes, faults);
}

bool store_file_shares_device(const struct store_file *a, const struct store_file *b)
{
  struct stat of_a, of_b;
  return fstat(a->fd, &of_a) == 0 && fstat(b->fd, &of_b) == 0 && of_a.st_dev == of_b.st_dev;
}
