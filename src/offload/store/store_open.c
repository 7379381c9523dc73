/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open, prepare and close a store: directories and engine at open, files of full size at prepare, nothing left at
 * close.
 *
 * All refusals come before the first transfer: of the directory, of the engine (tried with a real transfer on every
 * drive), of the space. Writing everything once turns allocated blocks into written ones. Otherwise the first write
 * into an allocated block changes the file system's tables, and is several times slower than an overwrite. Several
 * drives are written in parallel. A drive that fails in this phase is an error and is not set aside: its name is
 * probably a mistake, and no data is lost yet.
 */
#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/free_space.h"
#include "base/host_id.h"
#include "offload/numa.h"
#include "offload/staging.h"
#include "offload/store/store_internal.h"

#define DEPTH_DEFAULT 32         /* per drive */
#define DEPTH_DEFAULT_STRIPED 64 /* pieces are smaller with several drives */
#define PIECE_BYTES_DEFAULT (2u << 20) /* with 32 in flight: the fastest of 512 KiB to 4 MiB and 4 to 64 */
#define PIECE_BYTES_MAX (64u << 20) /* a completion's result is an int */

/* ---- directories ---- */

/*
 * Copy the next name of a list at *@at into a new string, with double commas made single. Move *@at to the next name,
 * or to NULL at the end. NULL if memory is out.
 */
static char *dir_next(const char **at, struct lade_faults *faults)
{
  char *dir = lade_fault_calloc(faults, 1, strlen(*at) + 1);
  size_t n = 0;
  const char *c = *at;
  for (; dir && *c && (*c != ',' || c[1] == ','); c++) {
    dir[n++] = *c;
    c += *c == ',';
  }
  *at = *c ? c + 1 : NULL;
  return dir;
}

/* Split @list into the drives' directories. */
static int dirs_split(struct lade_store *store, const char *list, struct lade_error *error)
{
  for (const char *at = list; at;) {
    if (store->n_drives == LADE_STORE_DRIVES_MAX)
      return lade_error_set(error, -EINVAL, "a store has at most %d directories", LADE_STORE_DRIVES_MAX);
    struct store_drive *drive = &store->drives[store->n_drives];
    drive->dir = dir_next(&at, store->faults);
    if (!drive->dir)
      return lade_error_set(error, -ENOMEM, "no memory for a store");
    drive->file.fd = -1;
    store->n_drives++;
    if (!*drive->dir)
      return lade_error_set(error, -EINVAL, "a store needs a directory, and '%s' has an empty name; separate them "
                            "with one comma, and write a comma that belongs to a name twice", list);
  }
  return 0;
}

static void note_add(struct lade_store *store, const char *format, const char *reason)
{
  size_t n = strlen(store->note);
  snprintf(store->note + n, sizeof(store->note) - n, "%s", n ? "; " : "store: ");
  n = strlen(store->note);
  snprintf(store->note + n, sizeof(store->note) - n, format, reason);
}

static int drives_open(struct lade_store *store, const struct lade_store_params *params, struct lade_error *error)
{
  int code = 0;
  for (int i = 0; i < store->n_drives && !code; i++)
    code = store_file_open(params, store->drives[i].dir, error, &store->drives[i].file);
  for (int i = 0; i < store->n_drives && !code; i++) {
    if (!store->drives[i].file.is_direct)
      note_add(store, "%s has no O_DIRECT, using the page cache", store->drives[i].dir);
    if (i && store_file_shares_device(&store->drives[i].file, &store->drives[0].file))
      note_add(store, "%s is on the same drive as the first, and adds no speed", store->drives[i].dir);
  }
  return code;
}

/* Return the node that all drives are near, on a machine of several nodes; else -1. */
static int numa_node_find(const struct lade_store *store, const char *sysfs)
{
  int node = -1;
  for (int i = 0; i < store->n_drives; i++) {
    struct stat of_file;
    int own = fstat(store->drives[i].file.fd, &of_file) ? -1 : lade_numa_of_device(of_file.st_dev, sysfs);
    if (own < 0 || (i && own != node))
      return -1;
    node = own;
  }
  return lade_numa_count() > 1 ? node : -1;
}

/* Return the device number and the free bytes of the file system of @dir. */
static int dir_measure(const char *dir, dev_t *ret_device, uint64_t *ret_free_bytes, struct lade_error *error)
{
  struct stat of_dir;
  int code = stat(dir, &of_dir) ? -errno : lade_free_space_get(dir, ret_free_bytes);
  if (code)
    return lade_error_set(error, store_code_of_open(code), "store directory %s: %s; create it or name another", dir,
                          strerror(-code));
  if (!S_ISDIR(of_dir.st_mode))
    return lade_error_set(error, -ENOTDIR, "store %s is not a directory; name one on a drive", dir);
  *ret_device = of_dir.st_dev;
  return 0;
}

int lade_store_room(const char *dirs, uint64_t *ret_bytes, uint64_t *ret_drives, struct lade_error *error)
{
  struct lade_store store = {0};
  dev_t devices[LADE_STORE_DRIVES_MAX];
  uint64_t bytes = 0, drives = lade_host_id(); /* device numbers are the same in all containers of a machine */
  int code = dirs_split(&store, dirs, error);
  for (int i = 0; i < store.n_drives && !code; i++) {
    uint64_t free_bytes = 0;
    bool is_counted = false;
    code = dir_measure(store.drives[i].dir, &devices[i], &free_bytes, error);
    for (int k = 0; k < i && !code; k++)
      is_counted |= devices[k] == devices[i];
    if (code || is_counted)
      continue;
    bytes += LADE_MIN(free_bytes, LADE_FREE_SPACE_UNKNOWN - bytes);
    drives += store_hash_plain(&devices[i], sizeof(devices[i]), 0); /* a sum, so that the order does not matter */
  }
  for (int i = 0; i < store.n_drives; i++)
    free(store.drives[i].dir);
  if (!code) {
    *ret_bytes = bytes;
    if (ret_drives)
      *ret_drives = drives;
  }
  return code;
}

int lade_store_is_memory(const char *dirs, bool *ret_is_memory, struct lade_error *error)
{
  struct lade_store store = {0};
  bool is_memory = false;
  int code = dirs_split(&store, dirs, error);
  for (int i = 0; i < store.n_drives && !code; i++) {
    struct statfs fs;
    if (statfs(store.drives[i].dir, &fs))
      code = lade_error_set(error, store_code_of_open(-errno), "store directory %s: %s; create it or name another",
                            store.drives[i].dir, strerror(errno));
    else
      is_memory |= fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
  }
  for (int i = 0; i < store.n_drives; i++)
    free(store.drives[i].dir);
  if (!code)
    *ret_is_memory = is_memory;
  return code;
}

/* ---- the engine ---- */

/* Write one block and read it back, to detect an engine or a file system that opens but cannot transfer. */
static int drive_probe(struct lade_store *store, int drive)
{
  char *blocks;
  if (lade_fault(store->faults, LADE_FAULT_HEAP) ||
      posix_memalign((void **)&blocks, LADE_STORE_BLOCK_BYTES, 2 * LADE_STORE_BLOCK_BYTES))
    return -ENOMEM;
  memset(blocks, 0x5a, LADE_STORE_BLOCK_BYTES);
  memset(blocks + LADE_STORE_BLOCK_BYTES, 0, LADE_STORE_BLOCK_BYTES);
  struct lade_transfer transfer = {.op = LADE_STORE_WRITE, .check = LADE_CHECK_CALLER, .on_drive = drive + 1,
                                   .bytes = LADE_STORE_BLOCK_BYTES, .data = blocks};
  int code = store_transfer_run(store, &transfer);
  if (!code) {
    transfer.op = LADE_STORE_READ;
    transfer.data = blocks + LADE_STORE_BLOCK_BYTES;
    code = store_transfer_run(store, &transfer);
  }
  if (!code && memcmp(blocks, blocks + LADE_STORE_BLOCK_BYTES, LADE_STORE_BLOCK_BYTES))
    code = -EBADMSG;
  free(blocks);
  return code;
}

/* Open the engine and try a transfer on each drive. @ret_is_open: the engine opened, and a transfer failed. */
static int engine_try(struct lade_store *store, const struct store_engine_ops *ops, bool *ret_is_open)
{
  int fds[LADE_STORE_DRIVES_MAX];
  for (int i = 0; i < store->n_drives; i++)
    fds[i] = store->drives[i].file.fd;
  int code = ops ? ops->open(fds, store->n_drives, store->depth, store->faults, &store->engine) : -ENOSYS;
  *ret_is_open = !code;
  if (code)
    return code;
  store->ops = ops;
  for (int i = 0; i < store->n_drives && !code; i++)
    code = drive_probe(store, i);
  if (code) {
    ops->close(store->engine);
    store->engine = NULL;
    store->ops = NULL;
  }
  return code;
}

static int engine_choose(struct lade_store *store, enum lade_store_engine wanted, struct lade_error *error)
{
  bool is_open;
  if (wanted != LADE_STORE_POSIX) {
    int code = engine_try(store, store_engine_uring, &is_open);
    if (!code)
      return 0;
    /* The ring's memory counts against the locked memory of an unprivileged user. */
    const char *why = code == -ENOMEM ? "no memory for the ring; raise the memlock limit (ulimit -l)" : strerror(-code);
    if (wanted == LADE_STORE_URING)
      return lade_error_set(error, is_open ? store_code_of_transfer(code) : code,
                            "store in %s: io_uring refused: %s; allow it or use the other engine",
                            store->drives[0].dir, why);
    note_add(store, "io_uring refused (%s), using threads, which are slower", why);
  }
  int code = engine_try(store, &store_engine_posix, &is_open);
  if (code)
    return lade_error_set(error, is_open ? store_code_of_transfer(code) : code,
                          "store in %s: a trial transfer failed: %s", store->drives[0].dir, strerror(-code));
  return 0;
}

static bool slots_create(struct lade_store *store)
{
  size_t n = (size_t)store->depth;
  store->pieces = lade_fault_calloc(store->faults, n, sizeof(*store->pieces));
  store->free_slots = lade_fault_calloc(store->faults, n, sizeof(*store->free_slots));
  store->completions = lade_fault_calloc(store->faults, n, sizeof(*store->completions));
  store->to_verify = lade_fault_calloc(store->faults, n, sizeof(*store->to_verify));
  store->again = lade_fault_calloc(store->faults, n, sizeof(*store->again));
  if (!store->pieces || !store->free_slots || !store->completions || !store->to_verify || !store->again)
    return false;
  for (; store->n_free < store->depth; store->n_free++)
    store->free_slots[store->n_free] = store->depth - 1 - store->n_free;
  return true;
}

static int params_check(const struct lade_store_params *params, struct lade_error *error)
{
  LADE_ASSERT(params->struct_size == sizeof(*params));
  if (!params->dir || !*params->dir)
    return lade_error_set(error, -EINVAL, "a store needs a directory");
  if (params->depth < 0 || params->depth > STORE_DEPTH_MAX)
    return lade_error_set(error, -EINVAL, "store depth %d is not in 1..%d", params->depth, STORE_DEPTH_MAX);
  if (params->piece_bytes % LADE_STORE_GRANULE_BYTES || params->piece_bytes > PIECE_BYTES_MAX)
    return lade_error_set(error, -EINVAL, "store pieces of %u bytes are not a multiple of %d up to %u",
                          params->piece_bytes, LADE_STORE_GRANULE_BYTES, PIECE_BYTES_MAX);
  return 0;
}

int lade_store_open(const struct lade_store_params *params, struct lade_error *error, struct lade_store **ret_store)
{
  int code = params_check(params, error);
  if (code)
    return code;
  struct lade_store *store = lade_fault_calloc(params->faults, 1, sizeof(*store));
  if (!store)
    return lade_error_set(error, -ENOMEM, "no memory for a store");
  pthread_mutex_init(&store->mutex, NULL);
  pthread_cond_init(&store->progress, NULL);
  store->faults = params->faults;
  store->faulty_drive = params->faulty_drive - 1;
  store->is_stopping = params->is_stopping;
  store->user = params->user;
  store->capacity_bytes = params->capacity_bytes ? params->capacity_bytes : INT64_MAX;
  store->piece_bytes = params->piece_bytes ? params->piece_bytes : PIECE_BYTES_DEFAULT;
  code = dirs_split(store, params->dir, error);
  if (!code && params->name && store->n_drives > 1)
    code = lade_error_set(error, -EINVAL, "%s: a file with a name is in one directory; name one", params->dir);
  store->name = params->name;
  store->reserved_bytes = params->name ? LADE_STORE_GRANULE_BYTES : 0; /* trial transfers */
  store->depth = params->depth ? params->depth : store->n_drives > 1 ? DEPTH_DEFAULT_STRIPED : DEPTH_DEFAULT;
  store->depth *= LADE_MAX(store->n_drives, 1);
  if (!code && !slots_create(store))
    code = lade_error_set(error, -ENOMEM, "no memory for a store");
  if (!code)
    code = drives_open(store, params, error);
  if (!code)
    store->numa_node = numa_node_find(store, params->sysfs ? params->sysfs : "/sys");
  if (!code)
    code = engine_choose(store, params->engine, error);
  if (code) {
    lade_store_close(store);
    return code;
  }
  *ret_store = store;
  return 0;
}

void lade_store_close(struct lade_store *store)
{
  if (!store)
    return;
  store_drain(store);
  if (store->ops)
    store->ops->close(store->engine);
  for (int i = 0; i < store->n_drives; i++) {
    if (store->drives[i].file.fd >= 0)
      close(store->drives[i].file.fd);
    free(store->drives[i].dir);
  }
  pthread_cond_destroy(&store->progress);
  pthread_mutex_destroy(&store->mutex);
  free(store->sums.sums);
  free(store->again);
  free(store->to_verify);
  free(store->completions);
  free(store->free_slots);
  free(store->pieces);
  store_stripes_finish(&store->stripes);
  free(store);
}

const char *lade_store_note(const struct lade_store *store)
{
  return store->note;
}

void lade_store_get_info(struct lade_store *store, struct lade_store_info *ret_info)
{
  pthread_mutex_lock(&store->mutex);
  *ret_info = (struct lade_store_info){
      .engine = store->ops->name,
      .is_direct = true,
      .n_drives = store->n_drives,
      .numa_node = store->numa_node,
      .reserved_bytes = store->reserved_bytes,
      .read_bytes = store->read_bytes,
      .written_bytes = store->written_bytes,
      .pinned_bytes = store->pinned_bytes,
  };
  for (int i = 0; i < store->n_drives; i++) {
    ret_info->is_direct &= store->drives[i].file.is_direct;
    ret_info->n_aside += store->drives[i].is_aside;
  }
  pthread_mutex_unlock(&store->mutex);
}

int lade_store_reserve(struct lade_store *store, uint64_t bytes, struct lade_extent *ret_extent)
{
  if (store->is_prepared || !bytes)
    return -EINVAL;
  if (bytes > store->capacity_bytes || store->reserved_bytes > store->capacity_bytes - bytes)
    return -EOVERFLOW;
  *ret_extent = (struct lade_extent){.offset = store->reserved_bytes, .bytes = bytes};
  store->reserved_bytes += lade_align_up(bytes, LADE_STORE_GRANULE_BYTES);
  return 0;
}

/* Write all of each file from one buffer of one piece, the files in parallel. */
static int files_fill(struct lade_store *store, const void *data, const uint64_t *file_bytes, struct lade_error *error)
{
  struct lade_transfer transfers[LADE_STORE_DRIVES_MAX];
  int code = 0;
  for (int i = 0; i < store->n_drives; i++) {
    transfers[i] = (struct lade_transfer){
        .op = LADE_STORE_WRITE,
        .check = LADE_CHECK_CALLER,
        .extent = {.bytes = file_bytes[i]},
        .bytes = file_bytes[i],
        .data = (void *)data,
        .is_fill = true,
        .on_drive = i + 1,
    };
    if (file_bytes[i])
      store_transfer_begin(store, &transfers[i]);
  }
  for (int i = 0; i < store->n_drives; i++) {
    int one = file_bytes[i] ? store_transfer_await(store, &transfers[i]) : 0;
    if (one == -ECANCELED && !code)
      code = lade_error_set(error, -EINTR, "store in %s: stopped before all of it was written for the first time",
                            store->drives[i].dir);
    else if (one && !code)
      code = lade_error_set(error, store_code_of_transfer(one),
                            "store in %s: writing it for the first time failed at byte %llu of %llu: %s",
                            store->drives[i].dir, (unsigned long long)transfers[i].failed_offset,
                            (unsigned long long)file_bytes[i], strerror(-one));
  }
  return code;
}

static int files_prepare(struct lade_store *store, struct lade_error *error)
{
  uint64_t file_bytes[LADE_STORE_DRIVES_MAX] = {store->reserved_bytes};
  struct lade_staging staging;
  int code = lade_staging_init(&staging, store->piece_bytes, store->numa_node, store->faults);
  if (code)
    return lade_error_set(error, code, "no memory to prepare the store in %s", store->drives[0].dir);
  memset(staging.data, 0xa5, staging.bytes); /* not zero: a drive may not store zeros */
  if (store->n_drives > 1)
    code = drives_prepare(store, staging.data, file_bytes, error);
  else
    code = store_file_allocate(&store->drives[0].file, store->drives[0].dir, file_bytes[0], store->faults, error);
  if (!code)
    code = files_fill(store, staging.data, file_bytes, error);
  lade_staging_finish(&staging);
  return code;
}

/* Allocate the checksums of all reserved bytes, none known, and allow transfers. */
static int store_begin(struct lade_store *store, struct lade_error *error)
{
  uint64_t n_granules = store->reserved_bytes / LADE_STORE_GRANULE_BYTES;
  uint64_t *sums = lade_fault_calloc(store->faults, n_granules + !n_granules, sizeof(*sums));
  if (!sums)
    return lade_error_set(error, -ENOMEM, "no memory for the checksums of the store in %s", store->drives[0].dir);
  struct lade_cpu cpu = lade_cpu_get();
  store->sums = (struct store_sums){.sums = sums, .n = n_granules, .hash = store_hash_choose(&cpu)};
  store->read_bytes = store->written_bytes = 0;
  store->is_prepared = true;
  LADE_ASSERT(!LADE_CHECK_FULL || store_is_valid(store));
  return 0;
}

int lade_store_prepare(struct lade_store *store, struct lade_error *error)
{
  if (store->is_prepared)
    return lade_error_set(error, -EINVAL, "the store in %s is prepared already", store->drives[0].dir);
  int code = store->reserved_bytes ? files_prepare(store, error) : 0;
  if (!code)
    code = store_begin(store, error);
  if (code)
    store_stripes_finish(&store->stripes);
  return code;
}

int lade_store_adopt(struct lade_store *store, struct lade_error *error)
{
  const char *dir = store->drives[0].dir;
  struct stat file_status;
  if (store->is_prepared)
    return lade_error_set(error, -EINVAL, "the store in %s is prepared already", dir);
  if (fstat(store->drives[0].file.fd, &file_status) < 0)
    return lade_error_set(error, -EIO, "store in %s: %s", dir, strerror(errno));
  if ((uint64_t)file_status.st_size < store->reserved_bytes)
    return lade_error_set(error, -EBADMSG, "store in %s: its file is damaged: it ends at byte %lld of %llu", dir,
                          (long long)file_status.st_size, (unsigned long long)store->reserved_bytes);
  int code = store_file_check_limit(dir, store->reserved_bytes, error);
  return code ? code : store_begin(store, error);
}

bool lade_store_take_notice(struct lade_store *store, char *text, size_t text_bytes)
{
  pthread_mutex_lock(&store->mutex);
  bool has_notice = *store->notice;
  if (has_notice)
    snprintf(text, text_bytes, "%s", store->notice);
  *store->notice = 0;
  pthread_mutex_unlock(&store->mutex);
  return has_notice;
}

bool lade_store_pin(struct lade_store *store, void *data, uint64_t bytes)
{
  LADE_ASSERT(data && bytes);
  pthread_mutex_lock(&store->mutex);
  const uint64_t before = store->pinned_bytes;
  if (store->ops->pin)
    store->pinned_bytes = store->ops->pin(store->engine, data, bytes);
  bool is_pinned = store->pinned_bytes > before;
  pthread_mutex_unlock(&store->mutex);
  return is_pinned;
}

void lade_store_unpin(struct lade_store *store, void *data, uint64_t bytes)
{
  LADE_ASSERT(data && bytes);
  pthread_mutex_lock(&store->mutex);
  if (store->ops->unpin)
    store->pinned_bytes = store->ops->unpin(store->engine, data, bytes);
  pthread_mutex_unlock(&store->mutex);
}
