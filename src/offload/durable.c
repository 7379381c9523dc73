/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing. Generation g counts; its slot is not written to. The owner has written g + 1 into the other slot:
 *
 *   1. write the table of g + 1's checksums      into its own half of the data file
 *   2. sync the data file                        bytes and table are on the drive
 *   3. write the record of g + 1                 over that of g - 1, whose slot is gone already
 *   4. sync the journal                          g + 1 counts; only now may g's slot be written to
 *
 * A record is one block with a checksum of itself; a torn one is none, and then the other, of g, counts. It holds the
 * checksum of the table, and the table those of the granules, each seeded with generation and place: bytes of another
 * generation, or a table of one, cannot pass. So whatever the drive did with what was not synced, either the record of
 * g + 1 is whole, and then 2 came before it, or g counts, and none of its bytes has been touched.
 *
 * Whoever opens finds g. The process that wrote its record may have ended before 4, and then the record is in the page
 * cache alone: power that fails once g + 1 is being written over g - 1 would leave neither. A sync alone does not help,
 * since pages that a drive refused to take are clean afterwards (ext4, XFS). So before the other slot is given out, the
 * record of g is written again, with the same bytes, and it and its name are synced. Bytes and table of g need nothing:
 * its record was not written before their sync had succeeded.
 *
 * The journal is born whole: both blocks are written to a file of another name, synced, and renamed after the data
 * file of generation 0 and both entries of the directory are synced; the rename is synced before publish returns. So a
 * journal in which no record is whole is damaged, and a directory without a journal holds nothing.
 *
 * Two syncs a generation are the least: one sync cannot say that the record came last. Tables are in the data file so
 * that one sync serves both. Rejected: slots that are switched tensor by tensor (a record each, or a log to replay);
 * one record in place (a torn one would be all there is).
 *
 * Parts of one state at several owners (the ranks of a job, each with files of its own) count together: g + 1 counts
 * when it does at all of them, and nobody writes over g before he knows that. So a cut leaves owners at g and at g + 1,
 * and those at g + 1 have all of g still. They go back by taking their record of g + 1 away, on the drive, before
 * anybody goes on: the slot is written to again, and once another owner has published its new g + 1, an old record here
 * would vouch for a mixture.
 *
 * The lock is on the data file, which is never replaced. It ends with the process however that ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/durable.h"
#include "offload/store_internal.h"

#define NAME_BYTES 40
#define MAGIC "lade-dur"
#define VERSION 1
#define RECORD_BYTES 4096 /* a block: no drive tears less than a sector, and the sum tells of the rest */

struct record {
  char magic[8];
  uint32_t version, memo_bytes;
  uint64_t generation;
  uint64_t slot_bytes, layout;
  uint64_t table_sum;
  unsigned char memo[LADE_DURABLE_MEMO_BYTES];
  uint64_t sum; /* of all before it */
};

_Static_assert(sizeof(struct record) == RECORD_BYTES, "records are blocks");

struct lade_durable {
  struct lade_durable_params params;
  char dir[PATH_MAX];
  char data_name[NAME_BYTES], journal_name[NAME_BYTES], new_name[NAME_BYTES]; /* new: of a journal that is being born */
  int dir_fd, fd, journal_fd; /* -1; fd: of the data file, locked; journal_fd: -1 until something counts */
  bool has_lock;
  bool is_new;                /* there is no journal: whatever the data file holds, nothing counts */
  struct record records[2];   /* as they are in the journal */
  int newest;                 /* the one that counts, -1 */
  store_hash_fn *hash;
  lade_store *store;
  uint64_t slot_bytes, layout;
  uint32_t piece_bytes; /* of the store's requests, and how many at once; 0: its default */
  int depth;
  struct lade_extent tables[2], slots[2];
};

/* Reading and writing; @code as the drive said it, which the line names. */
static int failed(const struct lade_durable *d, int code, const char *name, const char *what, struct lade_error *error)
{
  return lade_error_set(error, store_code_of_transfer(code), "%s/%s: cannot %s: %s", d->dir, name, what,
                        strerror(-code));
}

/* All that comes before. */
static int refused(const struct lade_durable *d, int code, const char *name, const char *what, struct lade_error *error)
{
  return lade_error_set(error, store_code_of_open(code), "%s/%s: cannot %s: %s", d->dir, name, what, strerror(-code));
}

/* ---- files ---- */

/* @point says which way. What moves nothing is @code_of_none. */
static int bytes_move(const struct lade_durable *d, enum lade_fault_point point, int fd, char *at, uint64_t bytes,
                      uint64_t offset, int code_of_none)
{
  const bool is_write = point == LADE_FAULT_FILE_WRITE;
  int n_tries = 0;
  while (bytes) {
    const int fault = lade_fault(d->params.faults, point);
    ssize_t n = fault;
    if (!fault)
      n = is_write ? pwrite(fd, at, bytes, (off_t)offset) : pread(fd, at, bytes, (off_t)offset);
    const int code = fault ? fault : n < 0 ? -errno : n ? 0 : code_of_none;
    if (lade_retry(code, &n_tries))
      continue;
    if (code)
      return code;
    at += n;
    bytes -= (uint64_t)n;
    offset += (uint64_t)n;
    n_tries = 0;
  }
  return 0;
}

static int bytes_write(const struct lade_durable *d, int fd, const void *data, uint64_t bytes, uint64_t offset)
{
  return bytes_move(d, LADE_FAULT_FILE_WRITE, fd, (char *)(uintptr_t)data, bytes, offset, -EIO);
}

/* -EBADMSG: the file ends before. */
static int bytes_read(const struct lade_durable *d, int fd, void *data, uint64_t bytes, uint64_t offset)
{
  return bytes_move(d, LADE_FAULT_FILE_READ, fd, data, bytes, offset, -EBADMSG);
}

static int data_sync(const struct lade_durable *d, int fd)
{
  int code = lade_fault(d->params.faults, LADE_FAULT_FILE_SYNC);
  return !code && fdatasync(fd) < 0 ? -errno : code;
}

/* A file system whose directories need no sync says EINVAL. */
static int dir_sync(const struct lade_durable *d)
{
  int code = lade_fault(d->params.faults, LADE_FAULT_FILE_SYNC);
  return !code && fsync(d->dir_fd) < 0 && errno != EINVAL ? -errno : code;
}

static int file_open(const struct lade_durable *d, const char *name, int flags)
{
  int code = lade_fault(d->params.faults, LADE_FAULT_FILE_OPEN);
  int fd = code ? code : openat(d->dir_fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600);
  return fd < 0 && !code ? -errno : fd;
}

/* ---- records ---- */

static uint64_t record_sum(const struct lade_durable *d, const struct record *record)
{
  return d->hash(record, offsetof(struct record, sum), 0);
}

/* -EBADMSG: it is not whole; -EINVAL: of another version, which may compute its sum otherwise. */
static int record_check(const struct lade_durable *d, const struct record *record)
{
  if (memcmp(record->magic, MAGIC, sizeof(record->magic)) != 0)
    return -EBADMSG;
  if (record->version != VERSION)
    return -EINVAL;
  bool is_whole = record->sum == record_sum(d, record) && record->memo_bytes <= LADE_DURABLE_MEMO_BYTES;
  return is_whole ? 0 : -EBADMSG;
}

/* On the drive when it returns. */
static int record_put(const struct lade_durable *d, int i)
{
  int code = bytes_write(d, d->journal_fd, &d->records[i], RECORD_BYTES, (uint64_t)i * RECORD_BYTES);
  return code ? code : data_sync(d, d->journal_fd);
}

/* One record of another version is enough: it may be the one that counts. */
static int newest_find(struct lade_durable *d, struct lade_error *error)
{
  for (int i = 0; i < 2; i++) {
    int code = record_check(d, &d->records[i]);
    if (code == -EINVAL)
      return lade_error_set(error, code, "%s/%s: the record at byte %d is of format version %u, and this build reads "
                            "version %d: go on with the build that wrote it, or name another directory", d->dir,
                            d->journal_name, i * RECORD_BYTES, d->records[i].version, VERSION);
    if (!code && (d->newest < 0 || d->records[i].generation > d->records[d->newest].generation))
      d->newest = i;
  }
  if (d->newest >= 0)
    return 0;
  return lade_error_set(error, -EBADMSG, "%s/%s is damaged: neither the record at byte 0 nor that at byte %d is whole",
                        d->dir, d->journal_name, RECORD_BYTES);
}

static int journal_read(struct lade_durable *d, struct lade_error *error)
{
  int fd = file_open(d, d->journal_name, 0);
  d->is_new = fd == -ENOENT;
  if (d->is_new)
    return 0;
  if (fd < 0)
    return refused(d, fd, d->journal_name, "open", error);
  d->journal_fd = fd;
  int code = bytes_read(d, fd, d->records, sizeof(d->records), 0);
  if (code == -EBADMSG)
    return lade_error_set(error, code, "%s/%s is damaged: it is shorter than %d bytes", d->dir, d->journal_name,
                          2 * RECORD_BYTES);
  return code ? failed(d, code, d->journal_name, "read", error) : newest_find(d, error);
}

/* ---- opening ---- */

/* The one directory of a list in which a comma that belongs to a name is written twice. */
static int dir_take(struct lade_durable *d, const char *list, struct lade_error *error)
{
  size_t n = 0;
  for (const char *c = list; *c && n < sizeof(d->dir) - 1; c++) {
    if (*c == ',' && *++c != ',')
      return lade_error_set(error, -EINVAL, "durable state is kept in one directory, and '%s' names several; name one",
                            list);
    d->dir[n++] = *c;
  }
  d->dir_fd = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (d->dir_fd >= 0)
    return 0;
  int code = -errno;
  return lade_error_set(error, store_code_of_open(code), "store directory %s: %s; create it or name another", d->dir,
                        strerror(-code));
}

/* Is the file that we have still the one of that name? Whoever had it before may have removed it, or anyone since. */
static bool is_named(const struct lade_durable *d, int fd, const char *name)
{
  struct stat ours, named;
  return fstat(fd, &ours) == 0 && S_ISREG(ours.st_mode) &&
         fstatat(d->dir_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
}

static int data_take(struct lade_durable *d, struct lade_error *error)
{
  int fd = file_open(d, d->data_name, O_CREAT);
  if (fd < 0)
    return refused(d, fd, d->data_name, "open", error);
  d->fd = fd;
  int code = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
  if (code && code != -EWOULDBLOCK)
    return refused(d, code, d->data_name, "lock", error);
  d->has_lock = !code && is_named(d, fd, d->data_name);
  if (d->has_lock)
    return 0;
  return lade_error_set(error, -EBUSY, "%s/%s: another run keeps its state there: name another directory, or wait for "
                        "it", d->dir, d->data_name);
}

void lade_durable_data_name(int rank, char *ret_name, size_t name_bytes)
{
  if (rank)
    snprintf(ret_name, name_bytes, "lade-durable-%d.data", rank);
  else
    snprintf(ret_name, name_bytes, "%s", LADE_DURABLE_DATA);
}

static void names_fill(struct lade_durable *d, int rank)
{
  lade_durable_data_name(rank, d->data_name, sizeof(d->data_name));
  const int stem = (int)(strchr(d->data_name, '.') - d->data_name);
  snprintf(d->journal_name, sizeof(d->journal_name), "%.*s.journal", stem, d->data_name);
  snprintf(d->new_name, sizeof(d->new_name), "%.*s.journal.new", stem, d->data_name);
}

int lade_durable_open(const struct lade_durable_params *params, struct lade_error *error,
                      struct lade_durable **ret_durable)
{
  LADE_ASSERT(params->struct_size == sizeof(*params));
  struct lade_durable *d = lade_fault_calloc(params->faults, 1, sizeof(*d));
  if (!d)
    return lade_error_set(error, -ENOMEM, "no memory for durable state");
  struct lade_cpu cpu = lade_cpu_get();
  d->params = *params;
  d->dir_fd = d->fd = d->journal_fd = d->newest = -1;
  d->hash = store_hash_choose(&cpu);
  names_fill(d, params->rank);
  int code = dir_take(d, params->dir, error);
  if (!code)
    code = data_take(d, error);
  if (!code)
    code = journal_read(d, error);
  if (code) {
    lade_durable_close(d);
    return code;
  }
  *ret_durable = d;
  return 0;
}

void lade_durable_close(struct lade_durable *d)
{
  if (!d)
    return;
  const bool is_ours = d->store || (d->fd >= 0 && lade_durable_held_bytes(d) == 0); /* no journal's that was lost */
  lade_store_close(d->store);
  if (d->has_lock && d->is_new && is_ours)
    unlinkat(d->dir_fd, d->data_name, 0); /* before the lock goes */
  const int fds[] = {d->journal_fd, d->fd, d->dir_fd};
  for (size_t i = 0; i < LADE_COUNT(fds); i++) {
    if (fds[i] >= 0)
      close(fds[i]);
  }
  free(d);
}

const void *lade_durable_memo(const struct lade_durable *d, size_t *ret_bytes)
{
  if (d->newest < 0)
    return NULL;
  *ret_bytes = d->records[d->newest].memo_bytes;
  return d->records[d->newest].memo;
}

/* The record of the generation before the one that counts; -1: it is not there. */
static int before_find(const struct lade_durable *d)
{
  const int before = 1 - d->newest;
  const bool is_there = d->newest >= 0 && !record_check(d, &d->records[before]) &&
                        d->records[before].generation + 1 == d->records[d->newest].generation;
  return is_there ? before : -1;
}

const void *lade_durable_memo_before(const struct lade_durable *d, size_t *ret_bytes)
{
  const int before = before_find(d);
  if (before < 0)
    return NULL;
  *ret_bytes = d->records[before].memo_bytes;
  return d->records[before].memo;
}

uint64_t lade_durable_generation(const struct lade_durable *d)
{
  return d->newest < 0 ? 0 : d->records[d->newest].generation;
}

/* ---- going back ---- */

/* The first generation was the only one: what is left is a directory without a journal, which holds nothing. */
static int journal_remove(struct lade_durable *d)
{
  if (unlinkat(d->dir_fd, d->journal_name, 0) < 0)
    return -errno;
  close(d->journal_fd);
  d->journal_fd = d->newest = -1;
  d->is_new = true;
  memset(d->records, 0, sizeof(d->records));
  return dir_sync(d);
}

int lade_durable_withdraw(struct lade_durable *d, struct lade_error *error)
{
  LADE_ASSERT(d->newest >= 0 && !d->store);
  const uint64_t generation = d->records[d->newest].generation;
  const int last = d->newest, before = before_find(d);
  if (generation && before < 0)
    return lade_error_set(error, -EBADMSG, "%s/%s is damaged: the record of generation %llu, at byte %d, is not there "
                          "any more", d->dir, d->journal_name, (unsigned long long)generation - 1,
                          (1 - last) * RECORD_BYTES);
  if (before >= 0) {
    memset(&d->records[last], 0, sizeof(d->records[last]));
    d->newest = before;
  }
  int code = before >= 0 ? record_put(d, last) : journal_remove(d);
  return code ? failed(d, code, d->journal_name, "take back a generation in", error) : 0;
}

/* ---- the store ---- */

static uint64_t table_bytes(uint64_t slot_bytes)
{
  return slot_bytes / LADE_STORE_GRANULE_BYTES * sizeof(uint64_t);
}

uint64_t lade_durable_extra_bytes(uint64_t slot_bytes)
{
  uint64_t table = lade_align_up(table_bytes(slot_bytes), LADE_STORE_GRANULE_BYTES);
  return LADE_STORE_GRANULE_BYTES + 2 * table + slot_bytes; /* the granule of trials */
}

uint64_t lade_durable_publish_bytes(uint64_t slot_bytes)
{
  return table_bytes(slot_bytes) + RECORD_BYTES;
}

uint64_t lade_durable_held_bytes(const struct lade_durable *d)
{
  struct stat what;
  return fstat(d->fd, &what) == 0 ? (uint64_t)what.st_blocks * 512 : 0;
}

static int store_open(struct lade_durable *d, struct lade_error *error)
{
  const struct lade_store_params how = {.struct_size = sizeof(how), .dir = d->params.dir, .name = d->data_name,
                                        .engine = d->params.engine, .allow_tmpfs = d->params.allow_tmpfs,
                                        .faults = d->params.faults, .piece_bytes = d->piece_bytes,
                                        .depth = d->depth};
  int code = lade_store_open(&how, error, &d->store);
  for (int i = 0; i < 2 && !code; i++)
    code = lade_store_reserve(d->store, table_bytes(d->slot_bytes), &d->tables[i]);
  for (int i = 0; i < 2 && !code; i++)
    code = lade_store_reserve(d->store, d->slot_bytes, &d->slots[i]);
  return code;
}

/* The checksums of a slot's granules, where the store keeps them. */
static uint64_t *slot_sums(const struct lade_durable *d, int slot)
{
  return d->store->sums.sums + d->slots[slot].offset / LADE_STORE_GRANULE_BYTES;
}

static int table_read(struct lade_durable *d, struct lade_error *error)
{
  const struct record *record = &d->records[d->newest];
  int slot = (int)(record->generation % 2);
  uint64_t bytes = table_bytes(d->slot_bytes), *sums = slot_sums(d, slot);
  int code = bytes_read(d, d->fd, sums, bytes, d->tables[slot].offset);
  if (code)
    return failed(d, code, d->data_name, "read", error);
  if (d->hash(sums, bytes, record->generation) == record->table_sum)
    return 0;
  return lade_error_set(error, -EBADMSG, "%s/%s is damaged: the table of checksums at byte %llu is not that of "
                        "generation %llu", d->dir, d->data_name, (unsigned long long)d->tables[slot].offset,
                        (unsigned long long)record->generation);
}

/* Make durable what was found, which so far may be in memory alone: the record that counts, and the journal's name. */
static int found_settle(const struct lade_durable *d, struct lade_error *error)
{
  int code = record_put(d, d->newest);
  if (!code)
    code = dir_sync(d);
  return code ? failed(d, code, d->journal_name, "make durable what is in", error) : 0;
}

void lade_durable_set_pieces(struct lade_durable *d, uint32_t piece_bytes, int depth)
{
  LADE_ASSERT(!d->store);
  d->piece_bytes = piece_bytes;
  d->depth = depth;
}

int lade_durable_prepare(struct lade_durable *d, uint64_t slot_bytes, uint64_t layout, struct lade_error *error)
{
  LADE_ASSERT(!d->store && slot_bytes && slot_bytes % LADE_STORE_GRANULE_BYTES == 0);
  const struct record *newest = d->newest < 0 ? NULL : &d->records[d->newest];
  if (newest && (newest->slot_bytes != slot_bytes || newest->layout != layout))
    return lade_error_set(error, -EINVAL, "%s holds the state of something else: name another directory, or remove "
                          "%s and %s there to begin anew", d->dir, d->data_name, d->journal_name);
  d->slot_bytes = slot_bytes;
  d->layout = layout;
  if (!newest && ftruncate(d->fd, 0) < 0) /* what a run left that ended before anything counted */
    return refused(d, -errno, d->data_name, "empty", error);
  int code = store_open(d, error);
  if (code)
    return code;
  if (!newest)
    return lade_store_prepare(d->store, error);
  code = lade_store_adopt(d->store, error);
  if (!code)
    code = table_read(d, error);
  return code ? code : found_settle(d, error);
}

lade_store *lade_durable_store(const struct lade_durable *d)
{
  return d->store;
}

struct lade_extent lade_durable_slot(const struct lade_durable *d, uint64_t generation)
{
  return d->slots[generation % 2];
}

/* ---- publishing ---- */

static void record_fill(const struct lade_durable *d, uint64_t generation, const void *memo, size_t memo_bytes,
                        struct record *record)
{
  memset(record, 0, sizeof(*record));
  memcpy(record->magic, MAGIC, sizeof(record->magic));
  record->version = VERSION;
  record->memo_bytes = (uint32_t)memo_bytes;
  record->generation = generation;
  record->slot_bytes = d->slot_bytes;
  record->layout = d->layout;
  record->table_sum = d->hash(slot_sums(d, (int)(generation % 2)), table_bytes(d->slot_bytes), generation);
  memcpy(record->memo, memo, memo_bytes);
  record->sum = record_sum(d, record);
}

/* The journal of the first generation, beside its name and then under it. */
static int journal_create(struct lade_durable *d, struct lade_error *error)
{
  int fd = file_open(d, d->new_name, O_CREAT | O_TRUNC);
  if (fd < 0)
    return refused(d, fd, d->new_name, "create", error);
  int code = bytes_write(d, fd, d->records, sizeof(d->records), 0);
  if (!code)
    code = data_sync(d, fd);
  if (!code)
    code = dir_sync(d);
  if (!code)
    code = lade_fault(d->params.faults, LADE_FAULT_FILE_WRITE);
  if (!code && renameat(d->dir_fd, d->new_name, d->dir_fd, d->journal_name) < 0)
    code = -errno;
  if (code) {
    unlinkat(d->dir_fd, d->new_name, 0);
    close(fd);
    return failed(d, code, d->new_name, "write", error);
  }
  d->journal_fd = fd;
  d->is_new = false;
  code = dir_sync(d);
  return code ? failed(d, code, d->journal_name, "sync the directory of", error) : 0;
}

static int record_write(struct lade_durable *d, int i, struct lade_error *error)
{
  if (d->journal_fd < 0)
    return journal_create(d, error);
  int code = record_put(d, i);
  return code ? failed(d, code, d->journal_name, "write", error) : 0;
}

/* A file without its name takes whatever is written to it, and nobody will find it again. */
static int names_check(const struct lade_durable *d, struct lade_error *error)
{
  const char *gone = !is_named(d, d->fd, d->data_name) ? d->data_name : NULL;
  if (d->journal_fd >= 0 && !is_named(d, d->journal_fd, d->journal_name))
    gone = d->journal_name;
  return !gone ? 0
               : lade_error_set(error, -EIO, "%s/%s was removed or replaced while it was in use: what is written to it "
                                "now would not be found again", d->dir, gone);
}

int lade_durable_publish(struct lade_durable *d, uint64_t generation, const void *memo, size_t memo_bytes,
                         struct lade_error *error)
{
  const int slot = (int)(generation % 2);
  LADE_ASSERT(d->store && memo_bytes <= LADE_DURABLE_MEMO_BYTES);
  LADE_ASSERT(generation == (d->newest < 0 ? 0 : lade_durable_generation(d) + 1));
  int code = names_check(d, error);
  if (code)
    return code;
  code = bytes_write(d, d->fd, slot_sums(d, slot), table_bytes(d->slot_bytes), d->tables[slot].offset);
  if (!code)
    code = data_sync(d, d->fd);
  if (code)
    return failed(d, code, d->data_name, "write", error);
  record_fill(d, generation, memo, memo_bytes, &d->records[slot]);
  code = record_write(d, slot, error);
  if (!code)
    d->newest = slot;
  return code;
}
