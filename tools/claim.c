/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run's claim on the directory that it saves into: two runs in one would rotate each other's checkpoints out, and a
 * resumed run would go on from whichever came last.
 *
 * The claim is a lock on a file of its own there, .lade.lock, which is empty and stays; the lock ends with the process
 * however that ends. It cannot be the directory's lock, which single saves take and give back, nor one on lade.conf,
 * which is replaced. Where a file system has no locks, runs are not told apart.
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
#include "tools/claim.h"

static int claim_refuse(int code, const char *dir, struct lade_error *error)
{
  return lade_error_set(error, code, "--save %s: %s", dir,
                        code == -EBUSY ? "another run saves into it: name another directory, or wait for it"
                                       : strerror(-code));
}

static int lock_take(const char *dir, int *ret_fd, struct lade_error *error)
{
  char path[PATH_MAX];
  if (snprintf(path, sizeof(path), "%s/.lade.lock", dir) >= (int)sizeof(path))
    return claim_refuse(-ENAMETOOLONG, dir, error);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0)
    return claim_refuse(-errno, dir, error);
  if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
    close(fd);
    return claim_refuse(-EBUSY, dir, error);
  }
  *ret_fd = fd;
  return 0;
}

int claim_take(const char *dir, const char *config, int *ret_fd, struct lade_error *error)
{
  char path[PATH_MAX];
  if (snprintf(path, sizeof(path), "%s/lade.conf", dir) >= (int)sizeof(path))
    return claim_refuse(-ENAMETOOLONG, dir, error);
  if (mkdir(dir, 0777) && errno != EEXIST)
    return claim_refuse(-errno, dir, error);
  int fd = -1, status = lock_take(dir, &fd, error);
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
