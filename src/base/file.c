/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files, whole.
 *
 * Replacing follows the one order that survives a power cut on every file system: write a temporary
 * file in the same directory, fsync it, rename it over the old one, fsync the directory. The
 * temporary name, .NAME.tmp-XXXXXX, comes from mkostemp, so that two processes which replace one file at once do not
 * meet; the last rename wins and both results are whole. A kill may leave such a file, which nobody reads. A rename
 * puts a file in place of whatever has the name: links are followed first; devices, pipes and directories are refused.
 *
 * Reading opens with O_NONBLOCK, because a path that a person gave may be a fifo, and asks fstat
 * before it reads. The size is a hint only: a file that grows meanwhile is read up to the bound.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"

#define TEMPORARY_MARK ".tmp-"
#define TEMPORARY_UNIQUE "XXXXXX" /* mkostemp's */

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

/* The directory that @path is in, into @dir; returns its name there. NULL: too long. */
static const char *path_split(const char *path, char dir[PATH_MAX])
{
  const char *slash = strrchr(path, '/');
  size_t length = slash ? (size_t)(slash - path) : 0;
  if (length >= PATH_MAX)
    return NULL;
  snprintf(dir, PATH_MAX, "%.*s%s", (int)length, path, slash == path ? "/" : slash ? "" : ".");
  return slash ? slash + 1 : path;
}

/* So that the rename itself survives. A directory that cannot be opened for reading cannot be synced. */
static int directory_sync(const char *dir)
{
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return errno == EACCES ? 0 : -errno;
  int rc = fsync(fd) && errno != EINVAL ? -errno : 0;
  close(fd);
  return rc;
}

/* The file that is to be replaced, past links, into @real, and who may use it; a name that is nobody's is itself. */
static int file_resolve(const char *path, char real[PATH_MAX], mode_t *ret_mode, struct lade_error *error)
{
  struct stat status;
  bool is_link = lstat(path, &status) == 0 && S_ISLNK(status.st_mode);
  if (is_link ? !realpath(path, real) : snprintf(real, PATH_MAX, "%s", path) >= PATH_MAX)
    return is_link ? lade_error_set(error, -errno, "%s: cannot follow the link: %s", path, strerror(errno))
                   : lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", path);
  bool is_there = stat(real, &status) == 0;
  if (is_there && !S_ISREG(status.st_mode))
    return lade_error_set(error, S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL,
                          "%s: not a regular file, and left as it is: name a file to be written", path);
  *ret_mode = is_there ? status.st_mode & 0777 : 0644;
  return 0;
}

/* As lade_file_replace, where @path is no link. */
static int file_replace(const char *path, mode_t mode, const void *data, size_t bytes, struct lade_error *error)
{
  char dir[PATH_MAX], temporary[PATH_MAX];
  const char *name = path_split(path, dir);
  if (!name || snprintf(temporary, sizeof(temporary), "%s/.%s" TEMPORARY_MARK TEMPORARY_UNIQUE, dir, name) >=
                   (int)sizeof(temporary))
    return lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", path);
  int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0)
    return lade_error_set(error, -errno, "%s: cannot create: %s", temporary, strerror(errno));
  int rc = file_write(fd, data, bytes);
  if (!rc && fchmod(fd, mode))
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
  rc = directory_sync(dir);
  return rc ? lade_error_set(error, rc, "%s: cannot sync its directory: %s", path, strerror(-rc)) : 0;
}

int lade_file_replace(const char *path, const void *data, size_t bytes, struct lade_error *error)
{
  char real[PATH_MAX];
  mode_t mode;
  int rc = file_resolve(path, real, &mode, error);
  return rc ? rc : file_replace(real, mode, data, bytes, error);
}

/* Whether @entry is what mkostemp made for @name. */
static bool is_temporary(const char *entry, const char *name)
{
  const size_t n = strlen(name), n_mark = strlen(TEMPORARY_MARK);
  return entry[0] == '.' && strncmp(entry + 1, name, n) == 0 && strncmp(entry + 1 + n, TEMPORARY_MARK, n_mark) == 0 &&
         strlen(entry + 1 + n + n_mark) == strlen(TEMPORARY_UNIQUE);
}

void lade_file_remove_leftovers(const char *path)
{
  char real[PATH_MAX], dir[PATH_MAX];
  mode_t mode;
  const char *name = file_resolve(path, real, &mode, NULL) ? NULL : path_split(real, dir);
  DIR *stream = name ? opendir(dir) : NULL;
  if (!stream)
    return;
  const time_t now = time(NULL);
  for (const struct dirent *entry; (entry = readdir(stream));) {
    struct stat st;
    if (is_temporary(entry->d_name, name) && !fstatat(dirfd(stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
        S_ISREG(st.st_mode) && now - st.st_mtime > LADE_FILE_STALE_S)
      unlinkat(dirfd(stream), entry->d_name, 0);
  }
  closedir(stream);
}
