/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of checkpoints, in which a name step-NNNNNNNN means: whole and durable.
 *
 *   save     lock; remove leftovers; write and sync all files in .step-NNNNNNNN.tmp-UNIQUE; sync that directory;
 *            rename it to step-NNNNNNNN; sync the parent
 *   remove   rename to a temporary name first, then delete what is in it
 *
 * so every state that a kill or a power cut can leave has each checkpoint under its name whole, or under a temporary
 * name that nobody reads. Temporary names are leftovers when no save is under way, which the lock says: flock
 * on the directory itself, which ends with the process however that ends and leaves no file behind. Where a file
 * system has no flock on directories (some network mounts), saves work, but leftovers stay.
 *
 * A checkpoint of the same step is replaced by exchanging the two names in one step, and a failed sync of the parent
 * exchanges them back. Where the file system cannot exchange, three renames do it, and for the moment between two of
 * them there is no checkpoint of that step.
 *
 * Only files that we write are ever deleted: a checkpoint into which somebody put files of their own is neither
 * replaced nor rotated out.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run/checkpoint_internal.h"

#define STEP_PREFIX "step-"
#define STEP_DIGITS 8 /* at least; more when the number needs them */
#define STEP_MAX_DIGITS 18
#define TEMPORARY_PREFIX "." STEP_PREFIX
#define TEMPORARY_MARK ".tmp-"

typedef LADE_ARRAY(int64_t) step_array;

static int system_error(struct lade_error *error, int code, const char *path, const char *what)
{
  return lade_error_set(error, code, "%s: cannot %s: %s", path, what, strerror(-code));
}

/* ---- names ---- */

/* The step in a checkpoint's name, or -1. */
static int64_t step_of(const char *name)
{
  if (strncmp(name, STEP_PREFIX, strlen(STEP_PREFIX)) != 0)
    return -1;
  const char *digits = name + strlen(STEP_PREFIX);
  size_t n = strlen(digits);
  if (n < STEP_DIGITS || n > STEP_MAX_DIGITS || strspn(digits, "0123456789") != n ||
      (n > STEP_DIGITS && digits[0] == '0'))
    return -1;
  return strtoll(digits, NULL, 10);
}

static bool is_temporary(const char *name)
{
  return strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0 && strstr(name, TEMPORARY_MARK);
}

int lade_checkpoint_path(const char *dir, int64_t step, char path[PATH_MAX], struct lade_error *error)
{
  char name[40];
  snprintf(name, sizeof(name), STEP_PREFIX "%0*" PRId64, STEP_DIGITS, step);
  return checkpoint_path_join(path, dir, name, error);
}

static int temporary_path(char path[PATH_MAX], const char *dir, int64_t step, struct lade_error *error)
{
  char name[96];
  snprintf(name, sizeof(name), TEMPORARY_PREFIX "%0*" PRId64 TEMPORARY_MARK "%ld-%" PRIx64, STEP_DIGITS, step,
           (long)getpid(), (uint64_t)lade_now_ns());
  return checkpoint_path_join(path, dir, name, error);
}

/* ---- listing ---- */

static int compare_steps(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* The steps of all checkpoints in @dir, ascending. */
static int steps_list(const char *dir, step_array *steps, struct lade_error *error)
{
  DIR *stream = opendir(dir);
  if (!stream)
    return system_error(error, -errno, dir, "look for checkpoints");
  int rc = 0;
  errno = 0;
  for (const struct dirent *entry; rc == 0 && (entry = readdir(stream)); errno = 0)
    if (step_of(entry->d_name) >= 0 && !LADE_PUSH(steps, step_of(entry->d_name)))
      rc = lade_error_set(error, -ENOMEM, "%s: out of memory listing it", dir);
  if (rc == 0 && errno)
    rc = system_error(error, -errno, dir, "look for checkpoints");
  closedir(stream);
  if (rc == 0 && steps->n > 0)
    qsort(steps->items, (size_t)steps->n, sizeof(*steps->items), compare_steps);
  if (rc < 0)
    LADE_ARRAY_FREE(steps);
  return rc;
}

/* Whether @path is a directory in which all is ours. */
static bool is_ours(const char *path)
{
  static const char *const names[] = {".", "..", CHECKPOINT_CONFIG, CHECKPOINT_INDEX, CHECKPOINT_STATE};
  DIR *stream = opendir(path);
  if (!stream)
    return false;
  bool is_known = true;
  for (const struct dirent *entry; is_known && (entry = readdir(stream));) {
    is_known = table_is_file_name(entry->d_name);
    for (size_t i = 0; i < LADE_COUNT(names) && !is_known; i++)
      is_known = strcmp(entry->d_name, names[i]) == 0;
  }
  closedir(stream);
  return is_known;
}

/* ---- removing ---- */

int saves_remove(const char *path)
{
  DIR *stream = opendir(path);
  if (!stream)
    return errno == ENOENT ? 0 : -errno;
  int rc = 0;
  for (const struct dirent *entry; (entry = readdir(stream));) {
    bool is_dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (!is_dots && unlinkat(dirfd(stream), entry->d_name, 0) < 0 && errno != ENOENT)
      rc = -errno;
  }
  closedir(stream);
  return rmdir(path) < 0 && errno != ENOENT ? (rc < 0 ? rc : -errno) : 0;
}

/* What interrupted saves left. What cannot be removed stays: it harms nothing but the space it takes. */
static void leftovers_remove(const char *dir)
{
  DIR *stream = opendir(dir);
  if (!stream)
    return;
  for (const struct dirent *entry; (entry = readdir(stream));) {
    char path[PATH_MAX];
    if (is_temporary(entry->d_name) && checkpoint_path_join(path, dir, entry->d_name, NULL) == 0)
      saves_remove(path);
  }
  closedir(stream);
}

/* ---- opening for a save ---- */

/* Make the new entry @path durable in its parent. */
static int parent_sync(const char *path)
{
  char parent[PATH_MAX];
  if (snprintf(parent, sizeof(parent), "%s/..", path) >= PATH_MAX)
    return -ENAMETOOLONG;
  int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return errno == EACCES ? 0 : -errno; /* may be written into, but not read */
  int rc = fsync(fd) < 0 && errno != EINVAL ? -errno : 0;
  close(fd);
  return rc;
}

static int saves_create(struct saves *saves, struct lade_error *error)
{
  int rc = lade_fault(saves->faults, LADE_FAULT_FILE_OPEN);
  if (rc == 0 && mkdir(saves->path, 0777) < 0)
    rc = -errno;
  if (rc == -EEXIST)
    return 0;
  if (rc < 0)
    return system_error(error, rc, saves->path, "create");
  saves->is_made = true;
  rc = parent_sync(saves->path);
  return rc < 0 ? system_error(error, rc, saves->path, "sync the directory above") : 0;
}

static int saves_lock(struct saves *saves, struct lade_error *error)
{
  int rc = lade_fault(saves->faults, LADE_FAULT_FILE_OPEN);
  if (rc == 0)
    saves->fd = open(saves->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (rc == 0 && saves->fd < 0)
    rc = -errno;
  if (rc < 0)
    return system_error(error, rc, saves->path, "open");
  saves->is_locked = flock(saves->fd, LOCK_EX | LOCK_NB) == 0;
  if (!saves->is_locked && errno == EWOULDBLOCK)
    return lade_error_set(error, -EBUSY, "%s: another save into it is under way: save elsewhere, or wait for it",
                          saves->path);
  return 0;
}

int saves_open(struct saves *saves, const char *path, struct lade_faults *faults,
               struct lade_error *error)
{
  *saves = (struct saves){.path = path, .fd = -1, .faults = faults};
  int rc = saves_create(saves, error);
  if (rc == 0)
    rc = saves_lock(saves, error);
  if (rc < 0)
    saves_close(saves, true);
  else if (saves->is_locked)
    leftovers_remove(path);
  return rc;
}

void saves_close(struct saves *saves, bool is_empty_wanted)
{
  if (is_empty_wanted && saves->is_made)
    rmdir(saves->path);
  if (saves->fd >= 0)
    close(saves->fd);
  saves->fd = -1;
}

int saves_make_temporary(struct saves *saves, int64_t step, char path[PATH_MAX], struct lade_error *error)
{
  int rc = temporary_path(path, saves->path, step, error);
  if (rc < 0)
    return rc;
  rc = lade_fault(saves->faults, LADE_FAULT_FILE_OPEN);
  if (rc == 0 && mkdir(path, 0777) < 0)
    rc = -errno;
  return rc < 0 ? system_error(error, rc, path, "create") : 0;
}

/* ---- publishing ---- */

static int saves_sync(struct saves *saves, int fd)
{
  int rc = lade_fault(saves->faults, LADE_FAULT_FILE_SYNC);
  if (rc == 0 && fsync(fd) < 0 && errno != EINVAL) /* EINVAL: a file system whose directories need none */
    rc = -errno;
  return rc;
}

static int temporary_sync(struct saves *saves, const char *temporary, struct lade_error *error)
{
  int rc = lade_fault(saves->faults, LADE_FAULT_FILE_OPEN), fd = -1;
  if (rc == 0 && (fd = open(temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
    rc = -errno;
  if (rc == 0)
    rc = saves_sync(saves, fd);
  if (fd >= 0)
    close(fd);
  return rc < 0 ? system_error(error, rc, temporary, "sync") : 0;
}

/* Three renames, where the file system cannot exchange. @via is temporary's name with more behind it. */
static int names_rotate(const char *temporary, const char *final)
{
  char via[PATH_MAX];
  if (snprintf(via, sizeof(via), "%s-old", temporary) >= PATH_MAX)
    return -ENAMETOOLONG;
  if (rename(final, via) < 0)
    return -errno;
  if (rename(temporary, final) < 0) {
    int rc = -errno;
    return rename(via, final) < 0 ? -errno : rc;
  }
  return rename(via, temporary) < 0 ? -errno : 0;
}

/* @rc is 0, or why the system call shall be refused. */
static int names_exchange(int rc, const char *temporary, const char *final)
{
  if (rc == 0 && renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) < 0)
    rc = -errno;
  return rc == -EINVAL || rc == -ENOSYS || rc == -EOPNOTSUPP ? names_rotate(temporary, final) : rc;
}

static int name_move(int rc, const char *from, const char *to)
{
  return rc == 0 && rename(from, to) < 0 ? -errno : rc;
}

int saves_publish(struct saves *saves, const char *temporary, int64_t step, struct lade_error *error)
{
  char final[PATH_MAX];
  int rc = lade_checkpoint_path(saves->path, step, final, error);
  if (rc == 0)
    rc = temporary_sync(saves, temporary, error);
  if (rc < 0)
    return rc;
  bool is_replaced = access(final, F_OK) == 0;
  if (is_replaced && !is_ours(final))
    return lade_error_set(error, -EEXIST, "%s: holds files of others: move it away, or save elsewhere", final);
  rc = lade_fault(saves->faults, LADE_FAULT_FILE_WRITE);
  rc = is_replaced ? names_exchange(rc, temporary, final) : name_move(rc, temporary, final);
  if (rc < 0)
    return system_error(error, rc, final, "rename the new checkpoint to it");
  rc = saves_sync(saves, saves->fd);
  if (rc == 0)
    return 0;
  int undo = is_replaced ? names_exchange(0, temporary, final) : name_move(0, final, temporary);
  if (undo < 0)
    return lade_error_set(error, rc, "%s: cannot sync its directory: %s; it is there, but may not outlive a power cut",
                          final, strerror(-rc));
  return system_error(error, rc, saves->path, "sync");
}

/* ---- rotating ---- */

static int step_remove(struct saves *saves, int64_t step, struct lade_error *error)
{
  char path[PATH_MAX], temporary[PATH_MAX];
  int rc = lade_checkpoint_path(saves->path, step, path, error);
  if (rc == 0)
    rc = temporary_path(temporary, saves->path, step, error);
  if (rc < 0 || !is_ours(path))
    return rc;
  rc = name_move(lade_fault(saves->faults, LADE_FAULT_FILE_WRITE), path, temporary);
  if (rc == 0)
    rc = saves_remove(temporary);
  return rc < 0 ? lade_error_set(error, rc, "%s: the new checkpoint is saved, but this old one cannot be removed: %s",
                                 path, strerror(-rc))
                : 0;
}

int saves_keep(struct saves *saves, int keep, int64_t step, struct lade_error *error)
{
  step_array steps = {0};
  int rc = keep > 0 ? steps_list(saves->path, &steps, error) : 0;
  int n_others = steps.n - 1; /* the one just saved is there, and counts */
  for (int i = 0; i < steps.n && rc == 0 && n_others > keep - 1; i++) {
    if (steps.items[i] == step)
      continue;
    rc = step_remove(saves, steps.items[i], error);
    n_others--;
  }
  LADE_ARRAY_FREE(&steps);
  return rc;
}

/* ---- finding ---- */

void saves_suggest(const char *path, struct lade_error *error)
{
  if (!error || error->code != -EBADMSG)
    return;
  char resolved[PATH_MAX], older[PATH_MAX], text[sizeof(error->text)];
  if (!realpath(path, resolved))
    return;
  char *slash = strrchr(resolved, '/');
  int64_t step = step_of(slash + 1), found = -1;
  step_array steps = {0};
  *slash = 0;
  if (step < 0 || steps_list(*resolved ? resolved : "/", &steps, NULL) < 0)
    return;
  for (int i = 0; i < steps.n && steps.items[i] < step; i++)
    found = steps.items[i];
  LADE_ARRAY_FREE(&steps);
  if (found < 0 || lade_checkpoint_path(resolved, found, older, NULL) < 0)
    return;
  snprintf(text, sizeof(text), "%s", error->text);
  lade_error_set(error, error->code, "%s; resume from the one before it instead: %s", text, older);
}

/* A directory with a checkpoint's name is of that step, or somebody moved it: which one is newest is then a guess. */
static int name_check(const char *path, int64_t step, struct lade_error *error)
{
  char resolved[PATH_MAX];
  if (!realpath(path, resolved))
    return system_error(error, -EIO, path, "resolve");
  int64_t named = step_of(strrchr(resolved, '/') + 1);
  return named < 0 || named == step
             ? 0
             : lade_error_set(error, -EBADMSG, "%s is not what its name says: %s is of step %" PRId64 "; rename it to "
                              "step-%0*" PRId64 ", or move it away", path, CHECKPOINT_STATE, step, STEP_DIGITS, step);
}

/* Check what can be without reading tensors. */
static int path_check(const char *path, struct lade_error *error)
{
  struct saved_state file;
  struct lade_error problem = {0};
  int rc = saved_state_read(&file, path, NULL, &problem);
  if (rc == 0) {
    rc = name_check(path, file.state.step, &problem);
    saved_state_finish(&file);
  }
  if (rc == 0)
    return 0;
  if (rc == -ENOENT)
    rc = lade_error_set(&problem, -EBADMSG, "%s is damaged: it has no %s", path, CHECKPOINT_STATE);
  saves_suggest(path, &problem);
  return lade_error_set(error, rc, "%s", problem.text);
}

int lade_checkpoint_find(const char *dir, char *path, size_t path_bytes, struct lade_error *error)
{
  char found[PATH_MAX];
  step_array steps = {0};
  int rc = checkpoint_path_join(found, dir, CHECKPOINT_STATE, error);
  if (rc == 0 && access(found, F_OK) == 0) {
    snprintf(found, sizeof(found), "%s", dir);
  } else if (rc == 0) {
    rc = steps_list(dir, &steps, error);
    if (rc == 0 && steps.n == 0)
      rc = lade_error_set(error, -ENOENT, "%s: no checkpoint in it", dir);
    if (rc == 0)
      rc = lade_checkpoint_path(dir, steps.items[steps.n - 1], found, error);
    LADE_ARRAY_FREE(&steps);
  }
  if (rc == 0)
    rc = path_check(found, error);
  if (rc == 0 && strlen(found) >= path_bytes)
    rc = lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", found);
  if (rc == 0)
    memcpy(path, found, strlen(found) + 1);
  return rc;
}
