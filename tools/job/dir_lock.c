/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run's lock on its --save directory. Two runs in one directory would remove each other's checkpoints, and a resumed
 * run would continue from the checkpoint saved last, of either run.
 *
 * The lock is held on a file of its own, .lade.lock, which is empty and stays. It ends with the process, also after a
 * crash. The directory's own lock is not used because each save takes and releases it. A lock on lade.conf is not used
 * because that file is replaced. On file systems without locks, concurrent runs are not detected.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "run/checkpoint.h"
#include "tools/job/dir_lock.h"

static int lock_refuse(int code, const char *dir, struct lade_error *error)
{
  return lade_error_set(error, code, "--save %s: %s", dir,
                        code == -EBUSY ? "another run saves into it: name another directory, or wait for it"
                                       : strerror(-code));
}

static int lock_take(const char *dir, int *ret_fd, struct lade_error *error)
{
  char path[PATH_MAX];
  if (snprintf(path, sizeof(path), "%s/.lade.lock", dir) >= (int)sizeof(path))
    return lock_refuse(-ENAMETOOLONG, dir, error);
  int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
  const int code = fd < 0 ? -errno : 0;
  struct stat status;
  if (fd < 0 && lstat(path, &status) == 0 && S_ISLNK(status.st_mode))
    return lade_error_set(error, -EPERM, "--save %s: its .lade.lock is a link: remove it, or name another directory",
                          dir);
  if (fd < 0)
    return lock_refuse(code, dir, error);
  if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
    close(fd);
    return lock_refuse(-EBUSY, dir, error);
  }
  *ret_fd = fd;
  return 0;
}

int dir_lock_take(const char *dir, const char *config, int *ret_fd, struct lade_error *error)
{
  char path[PATH_MAX];
  int status = lade_checkpoint_check_dir(dir, error);
  if (status)
    return status;
  snprintf(path, sizeof(path), "%s/lade.conf", dir);
  if (mkdir(dir, 0777) && errno != EEXIST)
    return lock_refuse(-errno, dir, error);
  int fd = -1;
  status = lock_take(dir, &fd, error);
  if (status)
    return status;
  lade_file_remove_leftovers(path);
  status = lade_file_replace(path, config, strlen(config), error);
  if (status)
    close(fd);
  else
    *ret_fd = fd;
  return status;
}
