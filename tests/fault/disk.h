/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that keeps synced operations and an arbitrary selection of the others: none, all, some, torn at sectors, in
 * another order. The file disk.c wraps the system calls through the linker. It records a running program's operations
 * on the files of one directory. An image of the disk after a power cut, at any of these operations, is then laid out
 * in another directory. Names are entries of the directory and need its own sync, as in POSIX.
 *
 * One log at a time; the recorded program may have several threads.
 */
#ifndef LADE_TESTS_DISK_H
#define LADE_TESTS_DISK_H

#include <stdbool.h>
#include <stdint.h>

#define DISK_OPS_MAX 256
#define DISK_FILES_MAX 8

enum disk_op_kind { DISK_WRITE, DISK_SIZE, DISK_SYNC, DISK_ENTRY, DISK_RENAME, DISK_SYNC_DIR, DISK_MARK };

struct disk_op {
  enum disk_op_kind kind;
  int file; /* of WRITE, SIZE, SYNC, ENTRY, RENAME */
  uint64_t offset, bytes;
  char *data;
  char name[64], old_name[64];
  int64_t mark;
};

struct disk_log {
  struct disk_op ops[DISK_OPS_MAX];
  int n;
};

/* Record operations on files of @dir from now on. */
void disk_record(const char *dir, struct disk_log *log);
/* Mark a point of the program for a test to find in the log. */
void disk_mark(int64_t mark);
void disk_record_end(void);
void disk_log_finish(struct disk_log *log);

static inline bool disk_is_sync(const struct disk_op *op)
{
  return op->kind == DISK_SYNC || op->kind == DISK_SYNC_DIR;
}

/* True if @sync settles @op, provided that it comes after it. */
bool disk_settles(const struct disk_op *sync, const struct disk_op *op);

/* Which unsynced operations the disk has done. */
struct disk_selection {
  enum { DISK_NONE, DISK_ALL, DISK_ONLY, DISK_BUT, DISK_ANY } kind;
  int which;     /* ONLY this one of them, or all BUT this one */
  uint64_t seed; /* of ANY: a subset, torn, in any order */
};

/* Return how many of the first @n operations were not synced. */
int disk_n_pending(const struct disk_log *log, int n);

/* Lay out in the empty directory @dir the state after a power cut that follows the first @n operations. */
void disk_image(const struct disk_log *log, int n, const struct disk_selection *selection, const char *dir);

#endif
