/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files, whole.
 *
 * A replacement follows the one order that survives a power cut on every file system: write a temporary file in the
 * same directory, fsync it, rename it over the old one, fsync the directory. The temporary name, .NAME.tmp-XXXXXX, is
 * unique. So two processes that replace one file at once use different temporary files; the last rename wins, and both
 * results are whole. A new file gets the process's default permissions (umask), and a replaced one keeps its own. A
 * kill may leave a temporary file, which no reader opens. A rename replaces any entry with that name. Therefore links
 * are followed first, and devices, pipes and directories are refused. Links and files of another user, which a shared
 * directory may hold, are refused too.
 *
 * Reading opens with O_NONBLOCK, because a path that a user gave may be a fifo, and gets the file's size from fstat. It
 * reads at most one byte more than that. So a file that grows meanwhile is refused.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"

#define TEMPORARY_MARK ".tmp-"
#define TEMPORARY_UNIQUE "XXXXXX" /* of letters and digits */
#define TEMPORARY_TRIALS 1000
#define STREAM_BYTES_MIN ((size_t)1 << 16) /* first capacity for a stream, which doubles */

/* Read to the end of the file or to @max_bytes + 1. Return the bytes read, or a negative errno. */
static ssize_t file_read(int fd, char *text, size_t max_bytes)
{
  size_t done = 0;
  int n_tries = 0;
  while (done <= max_bytes) {
    ssize_t n = read(fd, text + done, max_bytes + 1 - done);
    if (n < 0 && lade_retry(-errno, &n_tries))
      continue;
    if (n < 0)
      return -errno;
    n_tries = 0;
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
    rc = lade_error_set(error, -EINVAL, "%s: not a regular file%s", path,
                        S_ISDIR(st.st_mode) ? ": name a file in this directory" : "");
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

int lade_stream_load(int fd, const char *name, size_t max_bytes, struct lade_error *error, char **ret_text,
                     size_t *ret_bytes)
{
  char *text = NULL;
  size_t n = 0, capacity = 0;
  int n_tries = 0, rc = 0;
  for (ssize_t got = -1; !rc && got;) {
    if (n + 1 >= capacity) {
      capacity = LADE_MAX(2 * capacity, STREAM_BYTES_MIN);
      char *grown = realloc(text, capacity);
      if (!grown) {
        rc = lade_error_set(error, -ENOMEM, "%s: out of memory", name);
        break;
      }
      text = grown;
    }
    got = read(fd, text + n, capacity - n - 1);
    if (got < 0 && errno == EAGAIN)
      poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1); /* another process made the pipe non-blocking */
    else if (got < 0 && !lade_retry(-errno, &n_tries))
      rc = lade_error_set(error, -errno, "%s: cannot read: %s", name, strerror(errno));
    n += got > 0 ? (size_t)got : 0;
    if (n > max_bytes)
      rc = lade_error_set(error, -EINVAL, "%s: more than %zu bytes", name, max_bytes);
  }
  if (rc) {
    free(text);
    return rc;
  }
  text[n] = 0;
  *ret_text = text;
  *ret_bytes = n;
  return 0;
}

static int file_write(int fd, const char *data, size_t bytes)
{
  int n_tries = 0;
  while (bytes) {
    ssize_t n = write(fd, data, bytes);
    if (n < 0 && lade_retry(-errno, &n_tries))
      continue;
    if (n < 0)
      return -errno;
    data += n;
    bytes -= (size_t)n;
    n_tries = 0;
  }
  return 0;
}

/* Write the directory of @path into @dir and return the file's name in it. NULL if @path is too long. */
static const char *path_split(const char *path, char dir[PATH_MAX])
{
  const char *slash = strrchr(path, '/');
  size_t length = slash ? (size_t)(slash - path) : 0;
  if (length >= PATH_MAX)
    return NULL;
  snprintf(dir, PATH_MAX, "%.*s%s", (int)length, path, slash == path ? "/" : slash ? "" : ".");
  return slash ? slash + 1 : path;
}

/* Sync @dir, so that the rename itself survives. A directory that cannot be opened for reading cannot be synced. */
static int directory_sync(const char *dir)
{
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return errno == EACCES ? 0 : -errno;
  int rc = fsync(fd) && errno != EINVAL ? -errno : 0;
  close(fd);
  return rc;
}

/* The file to replace, with links followed. If @path does not exist, the target is @path itself, as a new file. */
struct target {
  char path[PATH_MAX];
  bool is_new;
  mode_t mode; /* permissions of an existing file */
};

/* Return the owner that the file system gives to an entry that this process makes in @dir_fd; geteuid() on failure. */
static uid_t owner_probe(int dir_fd)
{
  struct stat made;
  char name[64];
  snprintf(name, sizeof(name), ".lade-owner-%ld-%llx", (long)getpid(), (unsigned long long)lade_now_ns());
  if (mkdirat(dir_fd, name, 0700))
    return geteuid();
  const bool is_known = fstatat(dir_fd, name, &made, AT_SYMLINK_NOFOLLOW) == 0;
  unlinkat(dir_fd, name, AT_REMOVEDIR);
  return is_known ? made.st_uid : geteuid();
}

bool lade_file_is_own(int dir_fd, const struct stat *status)
{
  return status->st_uid == geteuid() || status->st_uid == owner_probe(dir_fd);
}

/*
 * True if the entry @path, of @status, belongs to this user. A link of root's is trusted too, because links in /dev are
 * root's.
 */
static bool entry_is_own(const char *path, const struct stat *status)
{
  char dir[PATH_MAX];
  if (status->st_uid == geteuid() || (S_ISLNK(status->st_mode) && status->st_uid == 0))
    return true;
  int dir_fd = path_split(path, dir) ? open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
  const bool is_own = dir_fd >= 0 && lade_file_is_own(dir_fd, status);
  if (dir_fd >= 0)
    close(dir_fd);
  return is_own;
}

static int file_resolve(const char *path, struct target *ret_target, struct lade_error *error)
{
  struct stat status;
  char *real = ret_target->path;
  bool is_link = lstat(path, &status) == 0 && S_ISLNK(status.st_mode);
  if (is_link ? !realpath(path, real) : snprintf(real, PATH_MAX, "%s", path) >= PATH_MAX)
    return is_link ? lade_error_set(error, -errno, "%s: cannot follow the link: %s", path, strerror(errno))
                   : lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", path);
  if (is_link && !entry_is_own(path, &status))
    return lade_error_set(error, -EPERM, "%s: a link of another user, and left as it is: name another file", path);
  const bool is_there = stat(real, &status) == 0;
  if (is_there && !S_ISREG(status.st_mode))
    return lade_error_set(error, S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL,
                          "%s: not a regular file, and left as it is: name a file to be written", path);
  if (is_there && !entry_is_own(real, &status))
    return lade_error_set(error, -EPERM, "%s: belongs to another user, and is left as it is: name another file", path);
  ret_target->is_new = !is_there;
  ret_target->mode = is_there ? status.st_mode & 0777 : 0;
  return 0;
}

/*
 * Create a file with an unused name: @path ends with TEMPORARY_UNIQUE, which is overwritten by random characters.
 * Return a descriptor, or a negative errno. Differs from mkostemp in its permissions, which are @mode.
 */
static int temporary_create(char *path, mode_t mode)
{
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const size_t n_unique = strlen(TEMPORARY_UNIQUE);
  char *unique = path + strlen(path) - n_unique;
  int fd = -1;
  for (int i = 0; i < TEMPORARY_TRIALS && fd < 0; i++) {
    uint64_t random;
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
      return -errno;
    for (size_t k = 0; k < n_unique; k++, random /= sizeof(letters) - 1)
      unique[k] = letters[random % (sizeof(letters) - 1)];
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 && errno != EEXIST)
      return -errno;
  }
  return fd < 0 ? -EEXIST : fd;
}

static int file_replace(const struct target *target, const void *data, size_t bytes, struct lade_error *error)
{
  const char *path = target->path;
  char dir[PATH_MAX], temporary[PATH_MAX];
  const char *name = path_split(path, dir);
  if (!name || snprintf(temporary, sizeof(temporary), "%s/.%s" TEMPORARY_MARK TEMPORARY_UNIQUE, dir, name) >=
                   (int)sizeof(temporary))
    return lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", path);
  int fd = temporary_create(temporary, target->is_new ? 0666 : 0600);
  if (fd < 0)
    return lade_error_set(error, fd, "%s: cannot create: %s", temporary, strerror(-fd));
  int rc = file_write(fd, data, bytes);
  if (!rc && !target->is_new && fchmod(fd, target->mode))
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
  struct target target;
  int rc = file_resolve(path, &target, error);
  return rc ? rc : file_replace(&target, data, bytes, error);
}

/* True if @entry is a name that temporary_create makes for @name. */
static bool is_temporary(const char *entry, const char *name)
{
  const size_t n = strlen(name), n_mark = strlen(TEMPORARY_MARK);
  return entry[0] == '.' && strncmp(entry + 1, name, n) == 0 && strncmp(entry + 1 + n, TEMPORARY_MARK, n_mark) == 0 &&
         strlen(entry + 1 + n + n_mark) == strlen(TEMPORARY_UNIQUE);
}

void lade_file_remove_leftovers(const char *path)
{
  char dir[PATH_MAX];
  struct target target;
  const char *name = file_resolve(path, &target, NULL) ? NULL : path_split(target.path, dir);
  DIR *stream = name ? opendir(dir) : NULL;
  if (!stream)
    return;
  const time_t now = time(NULL);
  for (const struct dirent *entry; (entry = readdir(stream));) {
    struct stat st;
    if (is_temporary(entry->d_name, name) && !fstatat(dirfd(stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
        S_ISREG(st.st_mode) && now - st.st_mtime > LADE_FILE_STALE_S && lade_file_is_own(dirfd(stream), &st))
      unlinkat(dirfd(stream), entry->d_name, 0);
  }
  closedir(stream);
}

/* ---- owners and links ---- */

int lade_file_check_own(int dir_fd, int fd)
{
  struct stat status;
  if (fstat(fd, &status))
    return -errno;
  if (!S_ISREG(status.st_mode))
    return -EINVAL;
  if (!lade_file_is_own(dir_fd, &status) || status.st_mode & (S_IWGRP | S_IWOTH))
    return -EPERM;
  return status.st_nlink > 1 ? -EMLINK : 0;
}

const char *lade_file_refusal(int code)
{
  switch (code) {
  case -EINVAL:
    return "not a regular file";
  case -EPERM:
    return "it belongs to another user, or others may write to it";
  case -EMLINK:
    return "it is a hard link of another file";
  case -ELOOP:
    return "it is a link";
  default:
    return strerror(-code);
  }
}

int lade_directory_open_own(int dir_fd, const char *name)
{
  struct stat status;
  int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  int rc = fstat(fd, &status) ? -errno : lade_file_is_own(dir_fd, &status) ? 0 : -EPERM;
  if (rc)
    close(fd);
  return rc ? rc : fd;
}

/* Remove all files of the directory @fd, which this function closes. */
static int directory_empty(int fd)
{
  DIR *stream = fdopendir(fd);
  if (!stream) {
    int rc = -errno;
    close(fd);
    return rc;
  }
  int rc = 0;
  for (const struct dirent *entry; (entry = readdir(stream));) {
    bool is_dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (!is_dots && unlinkat(fd, entry->d_name, 0) && errno != ENOENT)
      rc = errno == EISDIR ? -ENOTEMPTY : -errno;
  }
  closedir(stream);
  return rc;
}

int lade_directory_remove(int dir_fd, const char *name)
{
  struct stat status;
  if (fstatat(dir_fd, name, &status, AT_SYMLINK_NOFOLLOW))
    return errno == ENOENT ? 0 : -errno;
  if (!lade_file_is_own(dir_fd, &status))
    return -EPERM;
  if (S_ISLNK(status.st_mode))
    return unlinkat(dir_fd, name, 0) && errno != ENOENT ? -errno : 0;
  int fd = lade_directory_open_own(dir_fd, name);
  if (fd < 0)
    return fd == -ENOENT ? 0 : fd;
  int rc = directory_empty(fd);
  if (unlinkat(dir_fd, name, AT_REMOVEDIR) && errno != ENOENT)
    return rc ? rc : -errno;
  return 0;
}
