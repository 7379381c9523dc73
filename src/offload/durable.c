/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing. Generation g counts, and its slot is not written to. The owner has written g + 1 into the other slot:
 *
 *   1. write the table of g + 1's checksums      into its own half of the data file
 *   2. sync the data file                        bytes and table are on the drive
 *   3. write the record of g + 1                 over that of g - 1, whose slot is already overwritten
 *   4. sync the journal                          g + 1 counts; only now may the slot of g be written to
 *
 * A record is one block with a checksum of itself. If a record is torn, it does not count, and the other, of g, does. A
 * record holds the checksum of the table, and the table holds those of the granules, each seeded with generation and
 * place. So bytes or a table of another generation do not pass. The drive may store unsynced bytes in any order. Still,
 * either the record of g + 1 is whole, and then step 2 came before it; or g counts, and none of its bytes has changed.
 *
 * Opening finds g. The process that wrote its record may have ended before step 4, so the record may be in the page
 * cache alone. If g + 1 is then written over g - 1 and the power fails, neither generation is whole. A sync alone does
 * not help, because pages that a drive refused to take are clean afterwards (ext4, XFS). Therefore prepare writes the
 * record of g again, with the same bytes. It syncs the record and its name before the owner writes to the other slot.
 * Bytes and table of g need no second write, because its record was written only after their sync had succeeded.
 *
 * The journal is created whole. Both blocks are written to a file of another name and synced. The file is renamed after
 * the data file of generation 0 and both directory entries are synced, and the rename is synced before publish returns.
 * So a journal without a whole record is damaged, and a directory without a journal holds no state.
 *
 * Two syncs per generation are the minimum, because one sync cannot guarantee that the record came last. Tables are in
 * the data file so that one sync serves both. Rejected: slots switched tensor by tensor, with a record each or a log to
 * replay; and one record in place, because no other record would remain if it is torn.
 *
 * One state may be divided among several owners (the ranks of a job, each with its own files). Then g + 1 counts only
 * if it counts at all owners, and no owner writes over g before it knows that. So a power cut leaves owners at g and at
 * g + 1, and those at g + 1 still have all of g. They withdraw their record of g + 1, on the drive, before any owner
 * continues. Otherwise a mixture could pass: another owner writes and publishes a new g + 1 while an old record of g +
 * 1 remains here.
 *
 * The lock is on the data file, which is never replaced. The kernel drops it when the process ends, also by a kill.
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

#include "base/file.h"
#include "offload/durable.h"
#include "offload/store/store_internal.h"

#define NAME_BYTES 48 /* of a stem, a rank and an ending */
#define MAGIC "lade-dur"
#define VERSION 1 /* of the record's layout */
#define RECORD_BYTES 4096 /* one block: a drive writes sectors whole, and the checksum detects a torn block */

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
  char data_name[NAME_BYTES], journal_name[NAME_BYTES], new_name[NAME_BYTES]; /* new: a journal before its rename */
  int dir_fd, fd, journal_fd; /* -1 if closed; fd: the data file, locked; journal_fd: -1 until a generation counts */
  bool has_lock;
  bool is_new;                /* there is no journal, so no generation counts, with any contents of the data file */
  struct record records[2];   /* contents of the journal */
  int newest;                 /* index of the record that counts, or -1 */
  store_hash_fn *hash;
  lade_store *store;
  uint64_t slot_bytes, layout;
  uint32_t piece_bytes; /* size of the store's requests; 0: its default; depth: requests in flight, 0: its default */
  int depth;
  struct lade_extent tables[2], slots[2];
  uint64_t shared_bytes;
  struct lade_extent shared;
};

/* Report that a read or a write failed. @code is the system's, and the line in @error names it. */
static int failed(const struct lade_durable *d, int code, const char *name, const char *verb, struct lade_error *error)
{
  return lade_error_set(error, store_code_of_transfer(code), "%s/%s: cannot %s: %s", d->dir, name, verb,
                        strerror(-code));
}

/* Report that an operation before the first read or write failed. */
static int refused(const struct lade_durable *d, int code, const char *name, const char *verb, struct lade_error *error)
{
  return lade_error_set(error, store_code_of_open(code), "%s/%s: cannot %s: %s", d->dir, name, verb, strerror(-code));
}

/* ---- files ---- */

/* Bytes in memory and their place in a file. */
struct file_range {
  int fd;
  char *data;
  uint64_t bytes, offset;
};

/* Read or write @rest; @point selects the direction. A system call that moves 0 bytes ends it with @code_of_none. */
static int bytes_move(const struct lade_durable *d, enum lade_fault_point point, struct file_range rest,
                      int code_of_none)
{
  const bool is_write = point == LADE_FAULT_FILE_WRITE;
  int n_tries = 0;
  while (rest.bytes) {
    const int fault = lade_fault(d->params.faults, point);
    ssize_t n = fault;
    if (!fault)
      n = is_write ? pwrite(rest.fd, rest.data, rest.bytes, (off_t)rest.offset)
                   : pread(rest.fd, rest.data, rest.bytes, (off_t)rest.offset);
    const int code = fault ? fault : n < 0 ? -errno : n ? 0 : code_of_none;
    if (lade_retry(code, &n_tries))
      continue;
    if (code)
      return code;
    rest.data += n;
    rest.bytes -= (uint64_t)n;
    rest.offset += (uint64_t)n;
    n_tries = 0;
  }
  return 0;
}

static int bytes_write(const struct lade_durable *d, int fd, const void *data, uint64_t bytes, uint64_t offset)
{
  const struct file_range range = {fd, (char *)(uintptr_t)data, bytes, offset};
  return bytes_move(d, LADE_FAULT_FILE_WRITE, range, -EIO);
}

/* Read @bytes at @offset. -EBADMSG: the file ends before. */
static int bytes_read(const struct lade_durable *d, int fd, void *data, uint64_t bytes, uint64_t offset)
{
  const struct file_range range = {fd, data, bytes, offset};
  return bytes_move(d, LADE_FAULT_FILE_READ, range, -EBADMSG);
}

static int data_sync(const struct lade_durable *d, int fd)
{
  int code = lade_fault(d->params.faults, LADE_FAULT_FILE_SYNC);
  return !code && fdatasync(fd) < 0 ? -errno : code;
}

/* Sync the directory. EINVAL is no error: it comes from a file system whose directories need no sync. */
static int dir_sync(const struct lade_durable *d)
{
  int code = lade_fault(d->params.faults, LADE_FAULT_FILE_SYNC);
  return !code && fsync(d->dir_fd) < 0 && errno != EINVAL ? -errno : code;
}

/* True if the entry @name belongs to another user: in a sticky directory the system may refuse to open it. */
static bool is_foreign(const struct lade_durable *d, const char *name)
{
  struct stat status;
  return fstatat(d->dir_fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && !lade_file_is_own(d->dir_fd, &status);
}

/*
 * Open the file @name, which must belong to this user alone, because state is written to it and read from it. -EIO for
 * a link, for another user's file, and for a file with a second name.
 */
static int file_open(const struct lade_durable *d, const char *name, int flags, const char *verb,
                     struct lade_error *error)
{
  int code = lade_fault(d->params.faults, LADE_FAULT_FILE_OPEN);
  int fd = code ? code : openat(d->dir_fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600);
  if (!code)
    code = fd < 0 ? -errno : lade_file_check_own(d->dir_fd, fd);
  if (fd < 0 && code == -EACCES && is_foreign(d, name))
    code = -EPERM;
  else if (fd < 0 && code != -ELOOP)
    return refused(d, code, name, verb, error);
  if (!code)
    return fd;
  if (fd >= 0)
    close(fd);
  return lade_error_set(error, -EIO, "%s/%s: %s, and is left as it is: remove it, or name another directory", d->dir,
                        name, lade_file_refusal(code));
}

/* ---- records ---- */

static uint64_t record_sum(const struct lade_durable *d, const struct record *record)
{
  return d->hash(record, offsetof(struct record, sum), 0);
}

/*
 * Check that @record is whole. -EBADMSG: it is not. -EINVAL: another version, which may compute its checksum
 * differently.
 */
static int record_check(const struct lade_durable *d, const struct record *record)
{
  if (memcmp(record->magic, MAGIC, sizeof(record->magic)) != 0)
    return -EBADMSG;
  if (record->version != VERSION)
    return -EINVAL;
  return record->sum == record_sum(d, record) ? 0 : -EBADMSG;
}

/* Return the name of a field of the whole record @i with a value that publish never writes; NULL if there is none. */
static const char *record_fault(const struct record *record, int i)
{
  if (record->memo_bytes > LADE_DURABLE_MEMO_BYTES)
    return "memo_bytes";
  if (record->generation >= INT64_MAX || (int)(record->generation % 2) != i)
    return "generation";
  return record->slot_bytes == 0 || record->slot_bytes % LADE_STORE_GRANULE_BYTES ? "slot_bytes" : NULL;
}

/* Write record @i and sync it. */
static int record_put(const struct lade_durable *d, int i)
{
  int code = bytes_write(d, d->journal_fd, &d->records[i], RECORD_BYTES, (uint64_t)i * RECORD_BYTES);
  return code ? code : data_sync(d, d->journal_fd);
}

/* Find the record that counts. Refuse the journal if one record has another version, because that record may count. */
static int newest_find(struct lade_durable *d, struct lade_error *error)
{
  for (int i = 0; i < 2; i++) {
    int code = record_check(d, &d->records[i]);
    if (code == -EINVAL)
      return lade_error_set(error, code, "%s/%s: the record at byte %d is of format version %u, and this build reads "
                            "version %d: go on with the build that wrote it, or name another directory", d->dir,
                            d->journal_name, i * RECORD_BYTES, d->records[i].version, VERSION);
    const char *fault = code ? NULL : record_fault(&d->records[i], i);
    if (fault)
      return lade_error_set(error, -EBADMSG, "%s/%s is damaged: %s of the record at byte %d is out of range", d->dir,
                            d->journal_name, fault, i * RECORD_BYTES);
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
  struct stat status;
  d->is_new = fstatat(d->dir_fd, d->journal_name, &status, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
  if (d->is_new)
    return 0;
  int fd = file_open(d, d->journal_name, 0, "open", error);
  if (fd < 0)
    return fd;
  d->journal_fd = fd;
  int code = bytes_read(d, fd, d->records, sizeof(d->records), 0);
  if (code == -EBADMSG)
    return lade_error_set(error, code, "%s/%s is damaged: it is shorter than %d bytes", d->dir, d->journal_name,
                          2 * RECORD_BYTES);
  return code ? failed(d, code, d->journal_name, "read", error) : newest_find(d, error);
}

/* ---- opening ---- */

/* Open the one directory of @list. A comma in its name is written twice. */
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

/* True if @name still refers to the open file @fd. Its former owner or another process may have removed it. */
static bool is_named(const struct lade_durable *d, int fd, const char *name)
{
  struct stat ours, named;
  return fstat(fd, &ours) == 0 && S_ISREG(ours.st_mode) &&
         fstatat(d->dir_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
}

static int data_take(struct lade_durable *d, struct lade_error *error)
{
  int fd = file_open(d, d->data_name, O_CREAT, "open", error);
  if (fd < 0)
    return fd;
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

static void data_name_write(const char *stem, int rank, char *ret_name, size_t name_bytes)
{
  if (rank)
    snprintf(ret_name, name_bytes, "%.16s-%d.data", stem, rank);
  else
    snprintf(ret_name, name_bytes, "%.16s.data", stem);
}

void lade_durable_data_name(int rank, char *ret_name, size_t name_bytes)
{
  data_name_write("lade-durable", rank, ret_name, name_bytes);
}

static void names_fill(struct lade_durable *d, int rank)
{
  data_name_write(d->params.stem ? d->params.stem : "lade-durable", rank, d->data_name, sizeof(d->data_name));
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
  const bool is_ours = d->store || (d->fd >= 0 && lade_durable_held_bytes(d) == 0); /* not a data file whose journal
                                                                                       was lost */
  lade_store_close(d->store);
  if (d->has_lock && d->is_new && is_ours)
    unlinkat(d->dir_fd, d->data_name, 0); /* before the lock is released */
  const int fds[] = {d->journal_fd, d->fd, d->dir_fd};
  for (size_t i = 0; i < LADE_COUNT(fds); i++) {
    if (fds[i] >= 0)
      close(fds[i]);
  }
  free(d);
}

const char *lade_durable_journal_name(const struct lade_durable *d)
{
  return d->journal_name;
}

const void *lade_durable_memo(const struct lade_durable *d, size_t *ret_bytes)
{
  if (d->newest < 0)
    return NULL;
  *ret_bytes = d->records[d->newest].memo_bytes;
  return d->records[d->newest].memo;
}

/* Return the index of the record of the generation before the one that counts; -1 if it is absent. */
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

/* Remove the journal, because the first generation was the only one. A directory without a journal holds no state. */
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
  return LADE_STORE_GRANULE_BYTES + 2 * table + slot_bytes; /* the granule that tries the engine */
}

uint64_t lade_durable_publish_bytes(uint64_t slot_bytes)
{
  return table_bytes(slot_bytes) + RECORD_BYTES;
}

uint64_t lade_durable_held_bytes(const struct lade_durable *d)
{
  struct stat file_status;
  return fstat(d->fd, &file_status) == 0 ? (uint64_t)file_status.st_blocks * 512 : 0;
}

static int store_open(struct lade_durable *d, struct lade_error *error)
{
  const struct lade_store_params params = {.struct_size = sizeof(params), .dir = d->params.dir, .name = d->data_name,
                                           .engine = d->params.engine, .allow_tmpfs = d->params.allow_tmpfs,
                                           .allow_buffered = d->params.allow_buffered,
                                           .faults = d->params.faults, .piece_bytes = d->piece_bytes,
                                           .depth = d->depth, .is_stopping = d->params.is_stopping,
                                           .user = d->params.user};
  int code = lade_store_open(&params, error, &d->store);
  for (int i = 0; i < 2 && !code; i++)
    code = lade_store_reserve(d->store, table_bytes(d->slot_bytes), &d->tables[i]);
  for (int i = 0; i < 2 && !code; i++)
    code = lade_store_reserve(d->store, d->slot_bytes, &d->slots[i]);
  if (!code && d->shared_bytes)
    code = lade_store_reserve(d->store, d->shared_bytes, &d->shared);
  return code;
}

/* Return the checksums of a slot's granules, in the store's table. */
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

/* Sync the record that counts and the journal's name, which may be in memory alone. */
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

void lade_durable_set_shared(struct lade_durable *d, uint64_t shared_bytes)
{
  LADE_ASSERT(!d->store && shared_bytes % LADE_STORE_GRANULE_BYTES == 0);
  d->shared_bytes = shared_bytes;
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
  if (!newest && ftruncate(d->fd, 0) < 0) /* bytes of a run that ended before its first publish */
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

struct lade_extent lade_durable_shared(const struct lade_durable *d)
{
  LADE_ASSERT(d->store && d->shared_bytes);
  return d->shared;
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

/* Create the journal of the first generation under a temporary name, then rename it. */
static int journal_create(struct lade_durable *d, struct lade_error *error)
{
  int fd = file_open(d, d->new_name, O_CREAT, "create", error);
  if (fd < 0)
    return fd;
  int code = ftruncate(fd, 0) < 0 ? -errno : 0;
  if (!code)
    code = bytes_write(d, fd, d->records, sizeof(d->records), 0);
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

/*
 * Check that both files still have their names. Writes to a removed file succeed, but no later process can find the
 * bytes.
 */
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
