/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording, and images. An operation is settled once its file, or for names the directory, was synced after it. The
 * image has all settled operations in order, and of the others those of the selection. Sectors are 512 bytes: the
 * least that drives promise to write whole.
 */
#include "tests/fault/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

#define SECTOR_BYTES 512
#define FILE_BYTES_MAX (4u << 20)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct disk_log *recording;
static dev_t recorded_device;
static ino_t recorded_dir;
static ino_t files[DISK_FILES_MAX];
static int n_files;

/* ---- recording ---- */

static struct disk_op *op_add(enum disk_op_kind kind, int file)
{
  if (recording->n == DISK_OPS_MAX)
    abort();
  struct disk_op *op = &recording->ops[recording->n++];
  *op = (struct disk_op){.kind = kind, .file = file};
  return op;
}

/* Return the number of the file after @fd, if it was created in the directory; -1: it was not. */
static int file_of(int fd)
{
  struct stat status;
  if (!recording || fstat(fd, &status) || status.st_dev != recorded_device)
    return -1;
  for (int i = 0; i < n_files; i++) {
    if (files[i] == status.st_ino)
      return i;
  }
  return -1;
}

static bool is_dir(int fd)
{
  struct stat status;
  return recording && fstat(fd, &status) == 0 && status.st_dev == recorded_device && status.st_ino == recorded_dir;
}

/* Note that @fd was opened as @name: a file seen for the first time has just been created. */
static void opened(int fd, const char *name)
{
  struct stat status;
  pthread_mutex_lock(&mutex);
  if (recording && fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_dev == recorded_device &&
      (strstr(name, "lade-durable") || strstr(name, "lade-tensors")) && file_of(fd) < 0) {
    if (n_files == DISK_FILES_MAX)
      abort();
    files[n_files] = status.st_ino;
    const char *slash = strrchr(name, '/');
    snprintf(op_add(DISK_ENTRY, n_files++)->name, sizeof(recording->ops[0].name), "%s", slash ? slash + 1 : name);
  }
  pthread_mutex_unlock(&mutex);
}

static void written(int fd, const void *data, size_t bytes, off_t offset)
{
  pthread_mutex_lock(&mutex);
  int file = file_of(fd);
  if (file >= 0) {
    struct disk_op *op = op_add(DISK_WRITE, file);
    op->offset = (uint64_t)offset;
    op->bytes = bytes;
    op->data = malloc(bytes);
    if (!op->data)
      abort();
    memcpy(op->data, data, bytes);
  }
  pthread_mutex_unlock(&mutex);
}

static void sized(int fd, uint64_t bytes)
{
  pthread_mutex_lock(&mutex);
  int file = file_of(fd);
  if (file >= 0)
    op_add(DISK_SIZE, file)->bytes = bytes;
  pthread_mutex_unlock(&mutex);
}

static void synced(int fd)
{
  pthread_mutex_lock(&mutex);
  int file = file_of(fd);
  if (file >= 0)
    op_add(DISK_SYNC, file);
  else if (is_dir(fd))
    op_add(DISK_SYNC_DIR, -1);
  pthread_mutex_unlock(&mutex);
}

static void renamed(int dir_fd, const char *old_name, const char *name)
{
  struct stat status;
  pthread_mutex_lock(&mutex);
  if (recording && fstatat(dir_fd, name, &status, 0) == 0) {
    for (int i = 0; i < n_files; i++) {
      if (files[i] != status.st_ino)
        continue;
      struct disk_op *op = op_add(DISK_RENAME, i);
      snprintf(op->name, sizeof(op->name), "%s", name);
      snprintf(op->old_name, sizeof(op->old_name), "%s", old_name);
    }
  }
  pthread_mutex_unlock(&mutex);
}

/* ---- wrapped calls of the library ---- */

/* Wrap both names of a call that has a second one for large files. */
#define WRAP_64(type, name, params, args, ...)                                                                         \
  type __real_##name params;                                                                                           \
  type __wrap_##name params;                                                                                           \
  type __wrap_##name params                                                                                            \
  {                                                                                                                    \
    type result = __real_##name args;                                                                                  \
    if (result >= 0)                                                                                                   \
      __VA_ARGS__;                                                                                                     \
    return result;                                                                                                     \
  }

WRAP_64(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t offset), (fd, data, bytes, offset),
        written(fd, data, (size_t)result, offset))
WRAP_64(ssize_t, pwrite64, (int fd, const void *data, size_t bytes, off_t offset), (fd, data, bytes, offset),
        written(fd, data, (size_t)result, offset))
WRAP_64(int, fallocate, (int fd, int mode, off_t from, off_t bytes), (fd, mode, from, bytes),
        sized(fd, (uint64_t)(from + bytes)))
WRAP_64(int, fallocate64, (int fd, int mode, off_t from, off_t bytes), (fd, mode, from, bytes),
        sized(fd, (uint64_t)(from + bytes)))
WRAP_64(int, fdatasync, (int fd), (fd), synced(fd))
WRAP_64(int, fsync, (int fd), (fd), synced(fd))
WRAP_64(int, renameat, (int from_fd, const char *old_name, int to_fd, const char *name),
        (from_fd, old_name, to_fd, name), renamed(to_fd, old_name, name))

#define WRAP_OPEN(name, params, mode_after, args)                                                                      \
  int __real_##name params;                                                                                            \
  int __wrap_##name params;                                                                                            \
  int __wrap_##name params                                                                                             \
  {                                                                                                                    \
    va_list more;                                                                                                      \
    va_start(more, mode_after);                                                                                        \
    mode_t mode = va_arg(more, mode_t);                                                                                \
    va_end(more);                                                                                                      \
    int fd = __real_##name args;                                                                                       \
    opened(fd, path);                                                                                                  \
    return fd;                                                                                                         \
  }

WRAP_OPEN(open, (const char *path, int flags, ...), flags, (path, flags, mode))
WRAP_OPEN(open64, (const char *path, int flags, ...), flags, (path, flags, mode))
WRAP_OPEN(openat, (int dir_fd, const char *path, int flags, ...), flags, (dir_fd, path, flags, mode))
WRAP_OPEN(openat64, (int dir_fd, const char *path, int flags, ...), flags, (dir_fd, path, flags, mode))

void disk_record(const char *dir, struct disk_log *log)
{
  struct stat status;
  if (stat(dir, &status))
    abort();
  log->n = 0;
  n_files = 0;
  recorded_device = status.st_dev;
  recorded_dir = status.st_ino;
  recording = log;
}

void disk_mark(int64_t mark)
{
  op_add(DISK_MARK, -1)->mark = mark;
}

void disk_record_end(void)
{
  recording = NULL;
}

void disk_log_finish(struct disk_log *log)
{
  for (int i = 0; i < log->n; i++)
    free(log->ops[i].data);
  log->n = 0;
}

/* ---- images ---- */

struct image {
  struct {
    char *data;
    uint64_t bytes;
  } files[DISK_FILES_MAX];
  char names[DISK_FILES_MAX][64]; /* by entry; empty: none */
  int of_name[DISK_FILES_MAX];
  uint64_t state; /* of the random generator */
};

static uint64_t draw(struct image *image)
{
  image->state = image->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return image->state >> 33;
}

static void image_write(struct image *image, const struct disk_op *op, uint64_t from, uint64_t bytes)
{
  if (op->offset + from + bytes > FILE_BYTES_MAX)
    abort();
  if (!image->files[op->file].data && !(image->files[op->file].data = calloc(1, FILE_BYTES_MAX)))
    abort();
  memcpy(image->files[op->file].data + op->offset + from, op->data + from, bytes);
  image->files[op->file].bytes = LADE_MAX(image->files[op->file].bytes, op->offset + from + bytes);
}

static void name_remove(struct image *image, const char *name)
{
  for (int i = 0; i < DISK_FILES_MAX; i++) {
    if (strcmp(image->names[i], name) == 0)
      *image->names[i] = 0;
  }
}

static void name_set(struct image *image, const char *name, int file)
{
  int at = 0;
  name_remove(image, name);
  while (*image->names[at])
    at++;
  snprintf(image->names[at], sizeof(image->names[at]), "%s", name);
  image->of_name[at] = file;
}

static void op_apply(struct image *image, const struct disk_op *op, bool is_torn)
{
  switch (op->kind) {
  case DISK_WRITE:
    for (uint64_t at = 0; at < op->bytes; at += is_torn ? SECTOR_BYTES : op->bytes) {
      if (!is_torn || draw(image) % 2)
        image_write(image, op, at, is_torn ? LADE_MIN(op->bytes - at, SECTOR_BYTES) : op->bytes);
    }
    break;
  case DISK_SIZE:
    image->files[op->file].bytes = LADE_MAX(image->files[op->file].bytes, op->bytes);
    break;
  case DISK_RENAME:
    name_remove(image, op->old_name);
    name_set(image, op->name, op->file);
    break;
  case DISK_ENTRY:
    name_set(image, op->name, op->file);
    break;
  default:
    break;
  }
}

static bool is_change(const struct disk_op *op)
{
  return !disk_is_sync(op) && op->kind != DISK_MARK;
}

bool disk_settles(const struct disk_op *sync, const struct disk_op *op)
{
  if (op->kind == DISK_ENTRY || op->kind == DISK_RENAME)
    return sync->kind == DISK_SYNC_DIR;
  return is_change(op) && sync->kind == DISK_SYNC && sync->file == op->file;
}

static bool is_settled(const struct disk_log *log, int n, int at)
{
  for (int i = at + 1; i < n; i++) {
    if (disk_settles(&log->ops[i], &log->ops[at]))
      return true;
  }
  return false;
}

/* List the numbers of unsettled operations in @pending. Return their count. */
static int pending_list(const struct disk_log *log, int n, int pending[DISK_OPS_MAX])
{
  int n_pending = 0;
  for (int i = 0; i < n; i++) {
    if (is_change(&log->ops[i]) && !is_settled(log, n, i))
      pending[n_pending++] = i;
  }
  return n_pending;
}

int disk_n_pending(const struct disk_log *log, int n)
{
  int pending[DISK_OPS_MAX];
  return pending_list(log, n, pending);
}

static void pending_apply(struct image *image, const struct disk_log *log, int n,
                          const struct disk_selection *selection)
{
  int pending[DISK_OPS_MAX], n_pending = pending_list(log, n, pending);
  for (int i = n_pending - 1; i > 0 && selection->kind == DISK_ANY; i--) {
    int other = (int)(draw(image) % (uint64_t)(i + 1)), kept = pending[i];
    pending[i] = pending[other];
    pending[other] = kept;
  }
  for (int i = 0; i < n_pending; i++) {
    uint64_t outcome = selection->kind == DISK_ANY ? draw(image) % 3 : 0; /* done, torn, not done */
    bool is_done = selection->kind == DISK_ALL || (selection->kind == DISK_ANY && outcome < 2) ||
                   (selection->kind == DISK_ONLY && i == selection->which) ||
                   (selection->kind == DISK_BUT && i != selection->which);
    if (is_done)
      op_apply(image, &log->ops[pending[i]], outcome == 1);
  }
}

static void file_lay(const struct image *image, int file, const char *dir, const char *name)
{
  char path[512];
  snprintf(path, sizeof(path), "%s/%s", dir, name);
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  uint64_t bytes = image->files[file].bytes;
  bool is_whole = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0;
  if (is_whole && image->files[file].data && bytes)
    is_whole = pwrite(fd, image->files[file].data, bytes, 0) == (ssize_t)bytes;
  if (!is_whole)
    abort();
  close(fd);
}

void disk_image(const struct disk_log *log, int n, const struct disk_selection *selection, const char *dir)
{
  struct image image = {.state = selection->seed};
  for (int i = 0; i < n; i++) {
    if (is_change(&log->ops[i]) && is_settled(log, n, i))
      op_apply(&image, &log->ops[i], false);
  }
  pending_apply(&image, log, n, selection);
  for (int i = 0; i < DISK_FILES_MAX; i++) {
    if (*image.names[i])
      file_lay(&image, image.of_name[i], dir, image.names[i]);
  }
  for (int i = 0; i < DISK_FILES_MAX; i++)
    free(image.files[i].data);
}
