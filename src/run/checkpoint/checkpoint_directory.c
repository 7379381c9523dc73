/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of checkpoints, in which a name step-NNNNNNNN means a complete and durable checkpoint.
 *
 *   save     lock; remove leftovers; write and sync all files in .step-NNNNNNNN.tmp-UNIQUE; sync that directory;
 *            rename it to step-NNNNNNNN; sync the parent
 *   remove   rename to a temporary name first, then delete the contents
 *
 * So after a kill or a power cut each checkpoint is complete under its name, or under a temporary name that is never
 * read. Temporary names are leftovers if no save is in progress, which the lock shows. The lock is flock on the
 * directory itself: it ends with the process in every case and leaves no file behind. Where a file system has no flock
 * on directories (some network mounts), saves work, but leftovers stay.
 *
 * A checkpoint of the same step is replaced by exchanging the two names in one call; if the sync of the parent fails,
 * they are exchanged back. Where the file system cannot exchange, three renames do it, and between two of them there is
 * no checkpoint of that step.
 *
 * Only files that a save writes are deleted: a checkpoint with other files in it is neither replaced nor rotated out.
 * Every removal and rename begins at the open directory and follows no link. So if a checkpoint's name or a temporary
 * one is a link, only the link is removed. Entries of another user are refused, not removed, because in a shared
 * directory their owner decides about them.
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

#include "base/file.h"
#include "run/checkpoint/checkpoint_internal.h"

#define STEP_PREFIX "step-"
#define STEP_DIGITS 8 /* at least; larger steps have more */
#define STEP_MAX_DIGITS 18
#define TEMPORARY_PREFIX "." STEP_PREFIX
#define TEMPORARY_MARK ".tmp-"
#define TEMPORARY_MAX_BYTES 96 /* of a temporary name */
#define TEMPORARY_OLD "-old"

typedef LADE_ARRAY(int64_t) step_array;

static int system_error(struct lade_error *error, int code, const char *path, const char *action)
{
  return lade_error_set(error, code, "%s: cannot %s: %s", path, action, strerror(-code));
}

/* ---- names ---- */

/* Return the step in a checkpoint's name, or -1. */
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
  char name[TEMPORARY_MAX_BYTES];
  snprintf(name, sizeof(name), TEMPORARY_PREFIX "%0*" PRId64 TEMPORARY_MARK "%ld-%" PRIx64, STEP_DIGITS, step,
           (long)getpid(), (uint64_t)lade_now_ns());
  return checkpoint_path_join(path, dir, name, error);
}

int lade_checkpoint_check_dir(const char *dir, struct lade_error *error)
{
  const size_t n = strlen(dir), longest = TEMPORARY_MAX_BYTES + CHECKPOINT_FILE_NAME_BYTES; /* each with its slash */
  if (n + longest < PATH_MAX)
    return 0;
  return lade_error_set(error, -ENAMETOOLONG, "%.64s...: File name too long: %zu bytes, and a save writes names of %zu "
                        "more under it, of at most %d: name a shorter path", dir, n, longest, PATH_MAX - 1);
}

/* ---- listing ---- */

static int compare_steps(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* List the steps of all checkpoints in @dir, ascending. */
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

/* Return the last component of @path, its entry in the directory. */
static const char *name_of(const char *path)
{
  return strrchr(path, '/') + 1;
}

/*
 * Check that the checkpoint @path may be removed. It must be this user's, and a link, or a directory of files that
 * saves write. 1: it holds other files, or cannot be read. -EPERM: it is another user's. Also other errors of opening
 * it.
 */
static int checkpoint_check(struct saves *saves, const char *path)
{
  static const char *const names[] = {".", "..", CHECKPOINT_CONFIG, CHECKPOINT_INDEX,
                                      CHECKPOINT_TOKENIZER, CHECKPOINT_STATE};
  struct stat status;
  if (fstatat(saves->fd, name_of(path), &status, AT_SYMLINK_NOFOLLOW) < 0)
    return -errno;
  if (S_ISLNK(status.st_mode))
    return lade_file_is_own(saves->fd, &status) ? 0 : -EPERM;
  int fd = lade_directory_open_own(saves->fd, name_of(path));
  if (fd < 0)
    return fd == -ENOTDIR || fd == -EACCES ? 1 : fd;
  DIR *stream = fdopendir(fd);
  if (!stream) {
    close(fd);
    return -ENOMEM;
  }
  bool is_known = true;
  for (const struct dirent *entry; is_known && (entry = readdir(stream));) {
    is_known = table_is_file_name(entry->d_name);
    for (size_t i = 0; i < LADE_COUNT(names) && !is_known; i++)
      is_known = strcmp(entry->d_name, names[i]) == 0;
  }
  closedir(stream);
  return !is_known;
}

/* ---- removing ---- */

int saves_remove(struct saves *saves, const char *path)
{
  return lade_directory_remove(saves->fd, name_of(path));
}

static int foreign_error(struct lade_error *error, const char *dir, const char *name)
{
  return lade_error_set(error, -EPERM, "%s/%s: belongs to another user, and saves there remove only their own user's: "
                        "remove it, or save elsewhere", dir, name);
}

/* Remove leftovers of interrupted saves. Failures to remove are ignored; another user's entry is refused. */
static int leftovers_remove(struct saves *saves, struct lade_error *error)
{
  int fd = openat(saves->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
  DIR *stream = fd < 0 ? NULL : fdopendir(fd);
  if (!stream && fd >= 0)
    close(fd);
  if (!stream)
    return 0;
  for (const struct dirent *entry; rc == 0 && (entry = readdir(stream));) {
    struct stat status;
    if (!is_temporary(entry->d_name) || fstatat(saves->fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0)
      continue;
    if (!lade_file_is_own(saves->fd, &status))
      rc = foreign_error(error, saves->path, entry->d_name);
    else
      lade_directory_remove(saves->fd, entry->d_name);
  }
  closedir(stream);
  return rc;
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
    return errno == EACCES ? 0 : -errno; /* a parent may allow writing and not reading */
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
  int rc = lade_checkpoint_check_dir(path, error);
  if (rc == 0)
    rc = saves_create(saves, error);
  if (rc == 0)
    rc = saves_lock(saves, error);
  if (rc == 0 && saves->is_locked)
    rc = leftovers_remove(saves, error);
  if (rc < 0)
    saves_close(saves, true);
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
  if (rc == 0 && fsync(fd) < 0 && errno != EINVAL) /* EINVAL: directories of this file system need no sync */
    rc = -errno;
  return rc;
}

static int temporary_sync(struct saves *saves, const char *temporary, struct lade_error *error)
{
  int rc = lade_fault(saves->faults, LADE_FAULT_FILE_OPEN), fd = -1;
  if (rc == 0 && (fd = lade_directory_open_own(saves->fd, name_of(temporary))) < 0)
    rc = fd;
  if (rc == 0)
    rc = saves_sync(saves, fd);
  if (fd >= 0)
    close(fd);
  return rc < 0 ? system_error(error, rc, temporary, "sync") : 0;
}

/*
 * Exchange two names by three renames, for file systems that cannot exchange. @via is the temporary name with a suffix.
 */
static int names_rotate(int dir_fd, const char *temporary, const char *final)
{
  char via[NAME_MAX + 1];
  if (snprintf(via, sizeof(via), "%s" TEMPORARY_OLD, temporary) > NAME_MAX)
    return -ENAMETOOLONG;
  if (renameat(dir_fd, final, dir_fd, via) < 0)
    return -errno;
  if (renameat(dir_fd, temporary, dir_fd, final) < 0) {
    int rc = -errno;
    return renameat(dir_fd, via, dir_fd, final) < 0 ? -errno : rc;
  }
  return renameat(dir_fd, via, dir_fd, temporary) < 0 ? -errno : 0;
}

/* Exchange two names. @rc is 0, or an injected failure of the system call. */
static int names_exchange(const struct saves *saves, int rc, const char *temporary, const char *final)
{
  temporary = name_of(temporary);
  final = name_of(final);
  if (rc == 0 && renameat2(saves->fd, temporary, saves->fd, final, RENAME_EXCHANGE) < 0)
    rc = -errno;
  const bool is_missing = rc == -EINVAL || rc == -ENOSYS || rc == -EOPNOTSUPP;
  return is_missing ? names_rotate(saves->fd, temporary, final) : rc;
}

static int name_move(const struct saves *saves, int rc, const char *from, const char *to)
{
  return rc == 0 && renameat(saves->fd, name_of(from), saves->fd, name_of(to)) < 0 ? -errno : rc;
}

int saves_publish(struct saves *saves, const char *temporary, int64_t step, struct lade_error *error)
{
  char final[PATH_MAX];
  int rc = lade_checkpoint_path(saves->path, step, final, error);
  if (rc == 0)
    rc = temporary_sync(saves, temporary, error);
  if (rc < 0)
    return rc;
  const int found = checkpoint_check(saves, final);
  const bool is_replaced = found == 0;
  if (found > 0)
    return lade_error_set(error, -EEXIST, "%s: holds files of others: move it away, or save elsewhere", final);
  if (found == -EPERM)
    return foreign_error(error, saves->path, name_of(final));
  if (found < 0 && found != -ENOENT)
    return system_error(error, found, final, "replace");
  rc = lade_fault(saves->faults, LADE_FAULT_FILE_WRITE);
  rc = is_replaced ? names_exchange(saves, rc, temporary, final) : name_move(saves, rc, temporary, final);
  if (rc < 0)
    return system_error(error, rc, final, "rename the new checkpoint to it");
  rc = saves_sync(saves, saves->fd);
  if (rc == 0)
    return 0;
  int undo = is_replaced ? names_exchange(saves, 0, temporary, final) : name_move(saves, 0, final, temporary);
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
  const int found = rc < 0 ? rc : checkpoint_check(saves, path);
  if (rc < 0 || found > 0)
    return rc;
  if (found == -EPERM)
    return foreign_error(error, saves->path, name_of(path));
  rc = name_move(saves, found < 0 ? found : lade_fault(saves->faults, LADE_FAULT_FILE_WRITE), path, temporary);
  if (rc == 0)
    rc = saves_remove(saves, temporary);
  return rc < 0 ? lade_error_set(error, rc, "%s: the new checkpoint is saved, but this old one cannot be removed: %s",
                                 path, strerror(-rc))
                : 0;
}

int saves_keep(struct saves *saves, int keep, int64_t step, struct lade_error *error)
{
  step_array steps = {0};
  int rc = keep > 0 ? steps_list(saves->path, &steps, error) : 0;
  int n_others = steps.n - 1; /* the saved checkpoint exists and counts */
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

/*
 * Check that a directory with a checkpoint's name holds that step. If it was renamed, the newest one would be a guess.
 */
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

/* Check a checkpoint without reading its tensors. */
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
