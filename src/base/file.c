/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files, whole.
 *
 * Replacing follows the one order that survives a power cut on every file system: write a temporary
 * file in the same directory, fsync it, rename it over the old one, fsync the directory. The
 * temporary name comes from mkostemp, so that two processes which replace one file at once do not meet; the
 * last rename wins and both results are whole.
 *
 * Reading opens with O_NONBLOCK, because a path that a person gave may be a fifo, and asks fstat
 * before it reads. The size is a hint only: a file that grows meanwhile is read up to the bound.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"

/* Read to the end or to @max_bytes + 1. Bytes read, or a negative errno. */
static ssize_t file_read(int fd, char *text, size_t max_bytes)
{
  size_t done = 0;
  while (done <= max_bytes) {
    ssize_t n = read(fd, text + done, max_bytes + 1 - done);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return -errno;
    if (n == 0)
      break;
    done += (size_t)n;
  }
  return (ssize_t)done;
}

int lade_file_load(const char *path, size_t max_bytes, struct lade_error *error, char **ret_text, size_t *ret_bytes)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return lade_error_set(error, -errno, "%s: cannot open: %s", path, strerror(errno));
  struct stat st;
  int rc = 0;
  char *text = NULL;
  if (fstat(fd, &st))
    rc = lade_error_set(error, -errno, "%s: %s", path, strerror(errno));
  else if (!S_ISREG(st.st_mode))
    rc = lade_error_set(error, -EINVAL, "%s: not a regular file", path);
  else if ((uint64_t)st.st_size > max_bytes)
    rc = lade_error_set(error, -EINVAL, "%s: %lld bytes, at most %zu are expected", path, (long long)st.st_size,
                        max_bytes);
  else if (!(text = malloc((size_t)st.st_size + 2)))
    rc = lade_error_set(error, -ENOMEM, "%s: out of memory", path);
  if (!rc) {
    ssize_t n = file_read(fd, text, (size_t)st.st_size);
    if (n < 0)
      rc = lade_error_set(error, (int)n, "%s: cannot read: %s", path, strerror((int)-n));
    else if (n > st.st_size)
      rc = lade_error_set(error, -EINVAL, "%s: changes while it is read; try again", path);
    else {
      text[n] = 0;
      *ret_text = text;
      *ret_bytes = (size_t)n;
    }
  }
  close(fd);
  if (rc)
    free(text);
  return rc;
}

static int file_write(int fd, const char *data, size_t bytes)
{
  while (bytes) {
    ssize_t n = write(fd, data, bytes);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return -errno;
    data += n;
    bytes -= (size_t)n;
  }
  return 0;
}

/* So that the rename itself survives. A directory that cannot be opened for reading cannot be synced. */
static int directory_sync(const char *path)
{
  char dir[PATH_MAX];
  const char *slash = strrchr(path, '/');
  size_t length = slash ? (size_t)(slash - path) : 0;
  if (length >= sizeof(dir))
    return -ENAMETOOLONG;
  snprintf(dir, sizeof(dir), "%.*s%s", (int)length, path, slash == path ? "/" : slash ? "" : ".");
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return errno == EACCES ? 0 : -errno;
  int rc = fsync(fd) && errno != EINVAL ? -errno : 0;
  close(fd);
  return rc;
}

int lade_file_replace(const char *path, const void *data, size_t bytes, struct lade_error *error)
{
  char temporary[PATH_MAX];
  if (snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path) >= (int)sizeof(temporary))
    return lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", path);
  int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0)
    return lade_error_set(error, -errno, "%s: cannot create: %s", temporary, strerror(errno));
  int rc = file_write(fd, data, bytes);
  if (!rc && fchmod(fd, 0644))
    rc = -errno;
  if (!rc && fsync(fd))
    rc = -errno;
  if (close(fd) && !rc)
    rc = -errno;
  if (!rc && rename(temporary, path))
    rc = -errno;
  if (rc) {
    unlink(temporary);
    return lade_error_set(error, rc, "%s: cannot write: %s", path, strerror(-rc));
  }
  rc = directory_sync(path);
  return rc ? lade_error_set(error, rc, "%s: cannot sync its directory: %s", path, strerror(-rc)) : 0;
}
