/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories for the files that mpirun and its ranks leave behind.
 *
 * After SIGKILL of mpirun its session directory and the shared-memory segments of its ranks stay: one segment is 4 MiB
 * of memory per rank. Their names contain a job number that only mpirun knows. The launcher therefore makes one
 * directory for each kind and passes it to mpirun. It removes the directory with its contents when all processes of the
 * start have ended.
 *
 * The launcher may be killed too. A directory is therefore locked (flock) as long as its launcher or its mpirun lives:
 * both hold the same open file. The next launch of the same user removes unlocked directories of the right name, owner
 * and mode. A process number in the name would not work, because numbers are reused and containers that share a
 * directory have their own. Ranks that outlive both processes keep the memory that they have mapped.
 *
 * Between mkdir and flock another launch may remove a new directory as abandoned. Its maker detects this because the
 * lock is taken, or because the name leads to another directory or to none, and makes a new directory.
 *
 * Contents are removed by descriptor, never by path, so that a directory replaced by a link is not followed.
 */
#include "tools/job/launch_scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

#define NAME "lade-launch."
#define TRIES_MAX 8   /* of making a directory while other launches remove it */
#define DEPTH_MAX 16  /* levels of nested directories; Open MPI uses four */

/* Variables by which Open MPI finds its default places, and options that set other ones. */
static const struct {
  const char *option, *variables[4], *otherwise;
} places[LAUNCH_SCRATCH_N_PLACES] = {
    [LAUNCH_SCRATCH_SESSION] = {"orte_tmpdir_base", {"OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"}, "/tmp"},
    [LAUNCH_SCRATCH_SEGMENTS] = {"btl_vader_backing_directory", {"OMPI_MCA_btl_vader_backing_directory"}, "/dev/shm"},
};

const char *launch_scratch_option(enum launch_scratch_place place)
{
  return places[place].option;
}

static const char *base_get(enum launch_scratch_place place)
{
  for (size_t i = 0; i < LADE_COUNT(places[place].variables) && places[place].variables[i]; i++) {
    const char *value = getenv(places[place].variables[i]);
    if (value && *value)
      return value;
  }
  return places[place].otherwise;
}

/* Open the directory @name. -1 unless it is this user's own, closed to other users, and no link. */
static int own_open(int base_fd, const char *name)
{
  struct stat is;
  const int fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, &is) == 0 && is.st_uid == geteuid() && (is.st_mode & 0077) == 0)
    return fd;
  if (fd >= 0)
    close(fd);
  return -1;
}

/* Remove the contents of the directory @fd, and close it. Entries that cannot be removed stay. */
static void contents_remove(int fd, int depth)
{
  DIR *entries = fdopendir(fd);
  if (!entries) {
    close(fd);
    return;
  }
  for (const struct dirent *entry; (entry = readdir(entries));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    if (unlinkat(fd, entry->d_name, 0) == 0 || depth == DEPTH_MAX)
      continue;
    const int inner = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner >= 0)
      contents_remove(inner, depth + 1);
    unlinkat(fd, entry->d_name, AT_REMOVEDIR);
  }
  closedir(entries);
}

/* True if @path still leads to the directory @fd. */
static bool is_at(const char *path, int fd)
{
  struct stat opened, named;
  return fstat(fd, &opened) == 0 && lstat(path, &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

static bool dir_try(const char *base, struct launch_scratch_dir *dir)
{
  const int n = snprintf(dir->path, sizeof(dir->path), "%s/" NAME "%u.XXXXXX", base, (unsigned)geteuid());
  if (n >= (int)sizeof(dir->path) || !mkdtemp(dir->path)) {
    dir->path[0] = 0;
    return false;
  }
  dir->fd = own_open(AT_FDCWD, dir->path);
  const bool is_locked = dir->fd >= 0 && (flock(dir->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
  if (is_locked && is_at(dir->path, dir->fd))
    return true;
  if (dir->fd >= 0)
    close(dir->fd);
  rmdir(dir->path);
  dir->fd = -1;
  return false;
}

void launch_scratch_open(struct launch_scratch *scratch)
{
  for (int place = 0; place < LAUNCH_SCRATCH_N_PLACES; place++) {
    struct launch_scratch_dir *dir = &scratch->dirs[place];
    bool is_made = false;
    *dir = (struct launch_scratch_dir){.fd = -1};
    for (int i = 0; i < TRIES_MAX && !is_made && (i == 0 || *dir->path); i++)
      is_made = dir_try(base_get((enum launch_scratch_place)place), dir);
    if (!is_made)
      dir->path[0] = 0;
  }
}

int launch_scratch_share(const struct launch_scratch *scratch)
{
  for (int place = 0; place < LAUNCH_SCRATCH_N_PLACES; place++)
    if (scratch->dirs[place].fd >= 0 && fcntl(scratch->dirs[place].fd, F_SETFD, 0))
      return -errno;
  return 0;
}

void launch_scratch_close(struct launch_scratch *scratch)
{
  for (int place = 0; place < LAUNCH_SCRATCH_N_PLACES; place++) {
    struct launch_scratch_dir *dir = &scratch->dirs[place];
    if (dir->fd < 0)
      continue;
    const bool is_named = is_at(dir->path, dir->fd);
    contents_remove(dir->fd, 0);
    if (is_named)
      rmdir(dir->path);
    *dir = (struct launch_scratch_dir){.fd = -1};
  }
}

/* Remove the directory @name if no process holds its lock. */
static void abandoned_remove(int base_fd, const char *name)
{
  const int fd = own_open(base_fd, name);
  if (fd < 0)
    return;
  if (flock(fd, LOCK_EX | LOCK_NB)) {
    close(fd);
    return;
  }
  contents_remove(fd, 0);
  unlinkat(base_fd, name, AT_REMOVEDIR);
}

void launch_scratch_sweep(void)
{
  char prefix[sizeof(NAME) + 16];
  snprintf(prefix, sizeof(prefix), NAME "%u.", (unsigned)geteuid());
  for (int place = 0; place < LAUNCH_SCRATCH_N_PLACES; place++) {
    DIR *entries = opendir(base_get((enum launch_scratch_place)place));
    for (const struct dirent *entry; entries && (entry = readdir(entries));)
      if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
        abandoned_remove(dirfd(entries), entry->d_name);
    if (entries)
      closedir(entries);
  }
}
