/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/scratch.h"

#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define N_PATHS 8

char scratch[SCRATCH_BYTES];

void scratch_make(char *path, bool is_memory)
{
  snprintf(path, SCRATCH_BYTES, "/dev/shm/lade-scratch-XXXXXX");
  if (is_memory && mkdtemp(path))
    return;
  snprintf(path, SCRATCH_BYTES, "./scratch-XXXXXX");
  if (!mkdtemp(path))
    abort();
}

static int entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
  return remove(path);
}

void scratch_remove(const char *path)
{
  if (nftw(path, entry_remove, 16, FTW_DEPTH | FTW_PHYS) != 0)
    abort();
}

static bool line_write(const char *path, const char *line)
{
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  bool is_written = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
  if (fd >= 0)
    close(fd);
  return is_written;
}

/*
 * Enter a user namespace that maps this user to itself: without its maps a file there would have no owner (EOVERFLOW).
 */
static bool user_keep(void)
{
  char uids[64], gids[64];
  snprintf(uids, sizeof(uids), "%u %u 1", geteuid(), geteuid());
  snprintf(gids, sizeof(gids), "%u %u 1", getegid(), getegid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && line_write("/proc/self/setgroups", "deny") &&
         line_write("/proc/self/uid_map", uids) && line_write("/proc/self/gid_map", gids);
}

bool scratch_disk_mount(const char *path, const char *size)
{
  char options[64];
  snprintf(options, sizeof(options), "size=%s", size);
  bool is_apart = unshare(CLONE_NEWNS) == 0 || user_keep();
  return is_apart && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
         mount("none", path, "tmpfs", 0, options) == 0;
}

int scratch_setup(void **state)
{
  scratch_make(scratch, false);
  return 0;
}

int scratch_setup_in_memory(void **state)
{
  scratch_make(scratch, true);
  return 0;
}

int scratch_teardown(void **state)
{
  scratch_remove(scratch);
  return 0;
}

const char *in_scratch(const char *name)
{
  static char paths[N_PATHS][SCRATCH_PATH_BYTES];
  static int next;
  char *path = paths[next++ % N_PATHS];
  snprintf(path, SCRATCH_PATH_BYTES, "%s/%s", scratch, name);
  return path;
}
