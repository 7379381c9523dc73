/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers are cut into pieces of at most piece_bytes; at most depth pieces are with the engine at once, each
 * in a slot. Transfers that have bytes left to give stand in a first-in first-out queue; whenever a slot is
 * free, the head gives the next piece. So one large transfer keeps the drive as busy as many small ones, and
 * memory for all of it is fixed at open.
 *
 * Any thread may submit and wait. Among the threads that wait, one is the reaper: it alone waits in the
 * engine, without the mutex, and does for every completion what is to be done; the others sleep on the
 * condition until it has delivered something, and one of them takes over when it leaves. A round of the reaper is:
 * take completions; account for them and start new pieces in the freed slots, so that the drive does not wait;
 * verify what was read, without the mutex; try again what must be tried again; deliver finished transfers.
 * Sealing is done piece by piece before each begins, so that it too runs beside the drive.
 *
 * Bounds. A piece that moves forward is continued, at most piece_bytes / block times. A piece that does not is
 * tried RETRIES_MAX times with growing pauses, some 50 ms in all. The first failure of a transfer stops it: no
 * further piece is started, it is over when the pieces under way are back.
 *
 * Writing everything once in lade_store_prepare turns allocated blocks into written ones: the first write into
 * an allocated block changes the file system's tables and is several times slower than an overwrite.
 *
 * Rejected: a thread of the store's own that reaps (two switches per completion, and the caller has threads
 * that wait anyway); polling the ring in the kernel (it burns a core, and two are all that some machines have).
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "offload/engine.h"
#include "offload/file.h"
#include "offload/staging.h"
#include "offload/store.h"
#include "offload/sums.h"

#define DEPTH_DEFAULT 32
#define DEPTH_MAX 1024
#define PIECE_BYTES_DEFAULT (2u << 20) /* with 32 under way: the fastest of 512 KiB to 4 MiB and 4 to 64 */
#define PIECE_BYTES_MAX (64u << 20) /* a completion's result is an int */
#define RETRIES_MAX 32
#define RETRY_PAUSE_NS 100000 /* times the number of tries */

struct store_piece {
  struct lade_transfer *transfer;
  uint64_t from;               /* in the transfer */
  uint32_t bytes, moved_bytes; /* whole blocks */
  int n_retries;
  int fault; /* reported instead of the engine's result */
};

struct lade_store {
  char *dir;
  struct store_file file;
  const struct store_engine_ops *ops;
  void *engine;
  struct lade_faults *faults;
  uint64_t capacity_bytes, reserved_bytes;
  uint32_t piece_bytes;
  int depth;
  bool is_prepared;
  struct store_sums sums;
  char note[256];

  pthread_mutex_t mutex; /* of all that follows */
  pthread_cond_t progress;
  struct lade_transfer *head, *tail; /* that have bytes left to give */
  int n_open;      /* transfers that are not delivered */
  int n_in_engine; /* pieces */
  bool is_reaping;
  uint64_t read_bytes, written_bytes;
  struct store_piece *pieces; /* by slot */
  int *free_slots;
  int n_free;

  /* The reaper's own. */
  struct store_completion *completions;
  struct store_piece *to_verify;
  int *again;
  int n_to_verify, n_again;
};

static uint64_t transfer_rounded_bytes(const struct lade_transfer *transfer)
{
  return lade_align_up(transfer->bytes, LADE_STORE_BLOCK_BYTES);
}

/* ---- the queue of transfers; mutex held ---- */

static void queue_push(struct lade_store *store, struct lade_transfer *transfer)
{
  transfer->next = NULL;
  if (store->head)
    store->tail->next = transfer;
  else
    store->head = transfer;
  store->tail = transfer;
}

static void queue_pop(struct lade_store *store)
{
  store->head = store->head->next;
}

/* ---- pieces; mutex held ---- */

static void transfer_fail(struct lade_transfer *transfer, int code, uint64_t at)
{
  if (!transfer->result) {
    transfer->result = code;
    transfer->failed_offset = transfer->offset + at;
  }
}

/* One piece of @transfer is over: give up its rest if it failed, and move it to @finished if it was the last. */
static void piece_end(struct lade_store *store, struct lade_transfer *transfer, struct lade_transfer **finished)
{
  bool has_rest = transfer->taken_bytes < transfer_rounded_bytes(transfer);
  if (transfer->result && has_rest && transfer == store->head)
    queue_pop(store);
  if (--transfer->n_pieces || (has_rest && !transfer->result))
    return;
  transfer->next = *finished;
  *finished = transfer;
}

static void slot_release(struct lade_store *store, int slot)
{
  store->free_slots[store->n_free++] = slot;
}

/* The next piece of the first transfer, in a slot; -1 if there is none of either. */
static int piece_take(struct lade_store *store)
{
  struct lade_transfer *transfer = store->head;
  if (!transfer || !store->n_free)
    return -1;
  uint64_t rest = transfer_rounded_bytes(transfer) - transfer->taken_bytes;
  int slot = store->free_slots[--store->n_free];
  store->pieces[slot] = (struct store_piece){
      .transfer = transfer,
      .from = transfer->taken_bytes,
      .bytes = (uint32_t)LADE_MIN(rest, store->piece_bytes),
  };
  transfer->taken_bytes += store->pieces[slot].bytes;
  transfer->n_pieces++;
  if (transfer->taken_bytes == transfer_rounded_bytes(transfer))
    queue_pop(store);
  return slot;
}

/* What an armed fault does to this attempt: shorten it, or decide what it will report. */
static uint32_t piece_fault(struct lade_store *store, struct store_piece *piece, uint32_t bytes)
{
  bool is_write = piece->transfer->op == LADE_STORE_WRITE;
  piece->fault = lade_fault(store->faults, is_write ? LADE_FAULT_FILE_WRITE : LADE_FAULT_FILE_READ);
  if (piece->fault != LADE_STORE_FAULT_SHORT)
    return bytes;
  piece->fault = 0;
  return LADE_MAX((uint32_t)LADE_STORE_BLOCK_BYTES, bytes / 2 & ~(LADE_STORE_BLOCK_BYTES - 1u));
}

static void piece_submit(struct lade_store *store, int slot, struct lade_transfer **finished)
{
  struct store_piece *piece = &store->pieces[slot];
  struct lade_transfer *transfer = piece->transfer;
  uint64_t at = piece->from + piece->moved_bytes;
  int code = transfer->result; /* another piece has failed meanwhile: do not begin */
  if (!code) {
    struct store_io io = {
        .slot = slot,
        .is_write = transfer->op == LADE_STORE_WRITE,
        .bytes = piece_fault(store, piece, piece->bytes - piece->moved_bytes),
        .offset = transfer->extent.offset + transfer->offset + at,
        .data = (char *)transfer->data + (transfer->is_fill ? 0 : at),
    };
    code = store->ops->submit(store->engine, &io);
  }
  if (!code) {
    store->n_in_engine++;
    return;
  }
  transfer_fail(transfer, code, at);
  slot_release(store, slot);
  piece_end(store, transfer, finished);
}

/* The bytes of @piece that hold data: the last block's tail is nobody's. */
static uint64_t piece_data_bytes(const struct store_piece *piece)
{
  return LADE_MIN(piece->bytes, piece->transfer->bytes - piece->from);
}

static void piece_seal(struct lade_store *store, const struct store_piece *piece)
{
  lade_store_seal(store, piece->transfer, piece->from, piece_data_bytes(piece));
}

/* Start pieces while there are slots and bytes to give. Drops the mutex to seal. */
static void pieces_start(struct lade_store *store, struct lade_transfer **finished)
{
  for (int slot; (slot = piece_take(store)) >= 0;) {
    const struct lade_transfer *transfer = store->pieces[slot].transfer;
    if (transfer->op == LADE_STORE_WRITE && transfer->check == LADE_CHECK_STORE) {
      pthread_mutex_unlock(&store->mutex);
      piece_seal(store, &store->pieces[slot]);
      pthread_mutex_lock(&store->mutex);
    }
    piece_submit(store, slot, finished);
    pthread_cond_broadcast(&store->progress); /* somebody may wait for a piece to wait for */
  }
}

/* ---- completions ---- */

static bool is_worth_a_retry(int code)
{
  return code == -EINTR || code == -EAGAIN || code == -EBUSY;
}

/* Account for one completion: into again, into to_verify, or over. Mutex held. */
static void completion_settle(struct lade_store *store, const struct store_completion *completion,
                              struct lade_transfer **finished)
{
  struct store_piece *piece = &store->pieces[completion->slot];
  struct lade_transfer *transfer = piece->transfer;
  int result = piece->fault ? piece->fault : completion->result;
  store->n_in_engine--;
  if (result == 0)
    result = -EIO; /* the file ends here, or the drive takes nothing: neither will change */
  uint32_t moved = result > 0 ? (uint32_t)result & ~(LADE_STORE_BLOCK_BYTES - 1u) : 0;
  LADE_ASSERT(moved <= piece->bytes - piece->moved_bytes);
  piece->moved_bytes += moved;
  *(transfer->op == LADE_STORE_WRITE ? &store->written_bytes : &store->read_bytes) += moved;
  bool is_whole = piece->moved_bytes == piece->bytes;
  bool is_refusal = !moved && (result > 0 || is_worth_a_retry(result)); /* less than a block moved: nothing did */
  bool may_retry = moved || (is_refusal && piece->n_retries < RETRIES_MAX);
  if (!is_whole && may_retry) {
    piece->n_retries += !moved;
    store->again[store->n_again++] = completion->slot;
    return;
  }
  if (!is_whole)
    transfer_fail(transfer, result < 0 ? result : -EIO, piece->from + piece->moved_bytes);
  if (is_whole && transfer->op == LADE_STORE_READ && transfer->check == LADE_CHECK_STORE)
    store->to_verify[store->n_to_verify++] = *piece;
  else
    piece_end(store, transfer, finished);
  slot_release(store, completion->slot);
}

/* Verify what the round has read. Without the mutex: the pieces keep their transfers alive. */
static void round_verify(struct lade_store *store)
{
  for (int i = 0; i < store->n_to_verify; i++) {
    struct store_piece *piece = &store->to_verify[i];
    const struct lade_transfer *transfer = piece->transfer;
    uint64_t start = transfer->extent.offset + transfer->offset, at = 0;
    piece->fault = store_sums_verify(&store->sums, &transfer->identity, start + piece->from,
                                     (const char *)transfer->data + piece->from, piece_data_bytes(piece), &at);
    if (piece->fault)
      piece->from = at - start;
  }
}

/* Pause before trying again, longer the more often it was tried; not for pieces that move forward. */
static void round_pause(const struct lade_store *store)
{
  int n_retries = 0;
  for (int i = 0; i < store->n_again; i++)
    n_retries = LADE_MAX(n_retries, store->pieces[store->again[i]].n_retries);
  if (n_retries) {
    struct timespec pause = {.tv_nsec = (long)n_retries * RETRY_PAUSE_NS};
    nanosleep(&pause, NULL);
  }
}

/* Tell owners. Without the mutex; a transfer is not touched after is_done. Returns how many. */
static int finished_deliver(struct lade_transfer *finished)
{
  int n = 0;
  for (; finished; n++) {
    struct lade_transfer *transfer = finished;
    finished = finished->next;
    if (transfer->on_done)
      transfer->on_done(transfer);
    atomic_store_explicit(&transfer->is_done, true, memory_order_release);
  }
  return n;
}

/* Deliver @finished and wake who waits. Mutex held; dropped in between. */
static int store_deliver(struct lade_store *store, struct lade_transfer *finished)
{
  if (!finished)
    return 0;
  pthread_mutex_unlock(&store->mutex);
  int n = finished_deliver(finished);
  pthread_mutex_lock(&store->mutex);
  store->n_open -= n;
  pthread_cond_broadcast(&store->progress);
  return n;
}

/* One round of the reaper. Mutex held; dropped in between. Returns how many transfers were delivered. */
static int store_reap(struct lade_store *store, bool may_block)
{
  struct lade_transfer *finished = NULL;
  LADE_ASSERT(!store->is_reaping && store->n_in_engine > 0);
  store->is_reaping = true;
  store->n_to_verify = store->n_again = 0;
  pthread_mutex_unlock(&store->mutex);
  int n = store->ops->reap(store->engine, store->completions, store->depth, may_block);

  pthread_mutex_lock(&store->mutex);
  for (int i = 0; i < n; i++)
    completion_settle(store, &store->completions[i], &finished);
  pieces_start(store, &finished);
  pthread_mutex_unlock(&store->mutex);
  round_verify(store);
  round_pause(store);

  pthread_mutex_lock(&store->mutex);
  for (int i = 0; i < store->n_to_verify; i++) {
    struct store_piece *piece = &store->to_verify[i];
    if (piece->fault)
      transfer_fail(piece->transfer, piece->fault, piece->from);
    piece_end(store, piece->transfer, &finished);
  }
  for (int i = 0; i < store->n_again; i++)
    piece_submit(store, store->again[i], &finished);
  pieces_start(store, &finished); /* a piece that could not be tried again has left its slot */
  store->is_reaping = false;
  pthread_cond_broadcast(&store->progress);
  return store_deliver(store, finished);
}

/* ---- transfers ---- */

static void transfer_begin(struct lade_store *store, struct lade_transfer *transfer)
{
  struct lade_transfer *finished = NULL;
  transfer->result = 0;
  transfer->failed_offset = transfer->taken_bytes = 0;
  transfer->n_pieces = 0;
  atomic_store_explicit(&transfer->is_done, false, memory_order_relaxed);
  pthread_mutex_lock(&store->mutex);
  store->n_open++;
  queue_push(store, transfer);
  pieces_start(store, &finished);
  store_deliver(store, finished);
  pthread_mutex_unlock(&store->mutex);
}

static bool transfer_is_valid(const struct lade_store *store, const struct lade_transfer *transfer)
{
  const struct lade_extent *extent = &transfer->extent;
  return store->is_prepared && transfer->bytes && transfer->offset % LADE_STORE_GRANULE_BYTES == 0 &&
         transfer->offset <= extent->bytes && transfer->bytes <= extent->bytes - transfer->offset &&
         extent->offset % LADE_STORE_GRANULE_BYTES == 0 && extent->offset <= store->reserved_bytes &&
         extent->bytes <= store->reserved_bytes - extent->offset && transfer->data &&
         (uintptr_t)transfer->data % LADE_STORE_BLOCK_BYTES == 0;
}

int lade_store_submit(struct lade_store *store, struct lade_transfer *transfer)
{
  if (!transfer_is_valid(store, transfer))
    return -EINVAL;
  transfer->is_fill = false;
  transfer_begin(store, transfer);
  return 0;
}

int lade_store_poll(struct lade_store *store)
{
  int n = 0;
  pthread_mutex_lock(&store->mutex);
  if (!store->is_reaping && store->n_in_engine)
    n = store_reap(store, false);
  pthread_mutex_unlock(&store->mutex);
  return n;
}

/* Make progress, or sleep until somebody else has. Mutex held. */
static void store_advance(struct lade_store *store)
{
  if (store->is_reaping || !store->n_in_engine)
    pthread_cond_wait(&store->progress, &store->mutex);
  else
    store_reap(store, true);
}

static void transfer_await(struct lade_store *store, const struct lade_transfer *transfer)
{
  pthread_mutex_lock(&store->mutex);
  while (!lade_transfer_is_done(transfer))
    store_advance(store);
  pthread_mutex_unlock(&store->mutex);
}

int lade_store_wait(struct lade_store *store, struct lade_transfer *transfer, struct lade_error *error)
{
  if (!lade_transfer_is_done(transfer))
    transfer_await(store, transfer);
  return lade_transfer_result(store, transfer, error);
}

static int transfer_error(const struct lade_store *store, const struct lade_transfer *transfer, int code,
                          uint64_t at, struct lade_error *error)
{
  const char *op = transfer->op == LADE_STORE_WRITE ? "writing" : "reading";
  const char *why = strerror(-code);
  if (code == -EBADMSG)
    why = "the data is not what was written there (damaged, stale or misplaced); check the drive";
  return lade_error_set(error, code, "store in %s: %s tensor %u (microbatch %u, generation %llu) at offset %llu: %s",
                        store->dir, op, transfer->identity.tensor, transfer->identity.microbatch,
                        (unsigned long long)transfer->identity.generation,
                        (unsigned long long)(transfer->extent.offset + at), why);
}

int lade_transfer_result(struct lade_store *store, const struct lade_transfer *transfer, struct lade_error *error)
{
  LADE_ASSERT(!transfer->result || transfer->failed_offset >= transfer->offset);
  if (!transfer->result)
    return 0;
  return transfer_error(store, transfer, transfer->result, transfer->failed_offset, error);
}

void lade_store_seal(struct lade_store *store, const struct lade_transfer *transfer, uint64_t from, uint64_t bytes)
{
  LADE_ASSERT(from <= transfer->bytes && bytes <= transfer->bytes - from);
  store_sums_seal(&store->sums, &transfer->identity, transfer->extent.offset + transfer->offset + from,
                  (const char *)transfer->data + from, bytes);
}

int lade_store_verify(struct lade_store *store, const struct lade_transfer *transfer, uint64_t from, uint64_t bytes,
                      struct lade_error *error)
{
  uint64_t at;
  LADE_ASSERT(from <= transfer->bytes && bytes <= transfer->bytes - from);
  int code = store_sums_verify(&store->sums, &transfer->identity, transfer->extent.offset + transfer->offset + from,
                               (const char *)transfer->data + from, bytes, &at);
  return code ? transfer_error(store, transfer, code, at - transfer->extent.offset, error) : 0;
}

/* ---- opening, preparing, closing ---- */

static int transfer_run(struct lade_store *store, struct lade_transfer *transfer)
{
  transfer_begin(store, transfer);
  transfer_await(store, transfer);
  return transfer->result;
}

/* Write one block and read it back: an engine or a file system that only looks able is found out here. */
static int engine_probe(struct lade_store *store)
{
  char *blocks;
  if (lade_fault(store->faults, LADE_FAULT_HEAP) ||
      posix_memalign((void **)&blocks, LADE_STORE_BLOCK_BYTES, 2 * LADE_STORE_BLOCK_BYTES))
    return -ENOMEM;
  memset(blocks, 0x5a, LADE_STORE_BLOCK_BYTES);
  memset(blocks + LADE_STORE_BLOCK_BYTES, 0, LADE_STORE_BLOCK_BYTES);
  struct lade_transfer transfer = {.op = LADE_STORE_WRITE, .check = LADE_CHECK_CALLER,
                                   .bytes = LADE_STORE_BLOCK_BYTES, .data = blocks};
  int code = transfer_run(store, &transfer);
  if (!code) {
    transfer.op = LADE_STORE_READ;
    transfer.data = blocks + LADE_STORE_BLOCK_BYTES;
    code = transfer_run(store, &transfer);
  }
  if (!code && memcmp(blocks, blocks + LADE_STORE_BLOCK_BYTES, LADE_STORE_BLOCK_BYTES))
    code = -EBADMSG;
  free(blocks);
  return code;
}

static int engine_try(struct lade_store *store, const struct store_engine_ops *ops)
{
  int code = ops ? ops->open(store->file.fd, store->depth, store->faults, &store->engine) : -ENOSYS;
  if (code)
    return code;
  store->ops = ops;
  code = engine_probe(store);
  if (code) {
    ops->close(store->engine);
    store->engine = NULL;
    store->ops = NULL;
  }
  return code;
}

static int engine_choose(struct lade_store *store, enum lade_store_engine wanted, struct lade_error *error)
{
  if (wanted != LADE_STORE_POSIX) {
    int code = engine_try(store, store_engine_uring);
    if (!code)
      return 0;
    /* The ring's own memory counts against the locked memory of an ordinary user. */
    const char *why = code == -ENOMEM ? "no memory for the ring; raise the memlock limit (ulimit -l)" : strerror(-code);
    if (wanted == LADE_STORE_URING)
      return lade_error_set(error, code, "store in %s: io_uring refused: %s; allow it or use the other engine",
                            store->dir, why);
    snprintf(store->note, sizeof(store->note), "store: io_uring refused (%s), using threads, which are slower", why);
  }
  int code = engine_try(store, &store_engine_posix);
  if (code)
    return lade_error_set(error, code, "store in %s: a trial transfer failed: %s", store->dir, strerror(-code));
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
  while (store->n_free < store->depth)
    slot_release(store, store->depth - 1 - store->n_free);
  return true;
}

static int params_check(const struct lade_store_params *params, struct lade_error *error)
{
  LADE_ASSERT(params->struct_size == sizeof(*params));
  if (!params->dir || !*params->dir)
    return lade_error_set(error, -EINVAL, "a store needs a directory");
  if (params->depth < 0 || params->depth > DEPTH_MAX)
    return lade_error_set(error, -EINVAL, "store depth %d is not in 1..%d", params->depth, DEPTH_MAX);
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
  store->file.fd = -1;
  store->faults = params->faults;
  store->capacity_bytes = params->capacity_bytes ? params->capacity_bytes : INT64_MAX;
  store->depth = params->depth ? params->depth : DEPTH_DEFAULT;
  store->piece_bytes = params->piece_bytes ? params->piece_bytes : PIECE_BYTES_DEFAULT;
  pthread_mutex_init(&store->mutex, NULL);
  pthread_cond_init(&store->progress, NULL);
  store->dir = lade_fault(params->faults, LADE_FAULT_HEAP) ? NULL : strdup(params->dir);
  if (!store->dir || !slots_create(store))
    code = lade_error_set(error, -ENOMEM, "no memory for a store");
  if (!code)
    code = store_file_open(params, error, &store->file);
  if (!code)
    code = engine_choose(store, params->engine, error);
  if (code) {
    lade_store_close(store);
    return code;
  }
  if (!store->file.is_direct && !*store->note)
    snprintf(store->note, sizeof(store->note), "store: %s has no O_DIRECT, using the page cache", params->dir);
  *ret_store = store;
  return 0;
}

/* Nothing new begins; what has begun ends. */
static void store_drain(struct lade_store *store)
{
  pthread_mutex_lock(&store->mutex);
  while (store->head) {
    struct lade_transfer *transfer = store->head, *finished = NULL;
    transfer_fail(transfer, -ECANCELED, transfer->taken_bytes);
    transfer->n_pieces++; /* stands for the rest, which ends here */
    piece_end(store, transfer, &finished);
    store_deliver(store, finished);
  }
  while (store->n_open)
    store_advance(store);
  pthread_mutex_unlock(&store->mutex);
}

void lade_store_close(struct lade_store *store)
{
  if (!store)
    return;
  store_drain(store);
  if (store->ops)
    store->ops->close(store->engine);
  if (store->file.fd >= 0)
    close(store->file.fd);
  pthread_cond_destroy(&store->progress);
  pthread_mutex_destroy(&store->mutex);
  free(store->sums.sums);
  free(store->again);
  free(store->to_verify);
  free(store->completions);
  free(store->free_slots);
  free(store->pieces);
  free(store->dir);
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
      .is_direct = store->file.is_direct,
      .reserved_bytes = store->reserved_bytes,
      .read_bytes = store->read_bytes,
      .written_bytes = store->written_bytes,
  };
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

/* Write the whole file from one buffer of one piece. */
static int file_fill(struct lade_store *store, struct lade_error *error)
{
  struct lade_staging staging;
  int code = lade_staging_init(&staging, store->piece_bytes, -1, store->faults);
  if (code)
    return lade_error_set(error, code, "no memory to prepare the store in %s", store->dir);
  memset(staging.data, 0xa5, staging.bytes); /* not zero: a drive may not store zeros */
  struct lade_transfer transfer = {
      .op = LADE_STORE_WRITE,
      .check = LADE_CHECK_CALLER,
      .extent = {.bytes = store->reserved_bytes},
      .bytes = store->reserved_bytes,
      .data = staging.data,
      .is_fill = true,
  };
  code = transfer_run(store, &transfer);
  lade_staging_finish(&staging);
  if (code)
    lade_error_set(error, code, "store in %s: writing it for the first time failed at byte %llu of %llu: %s",
                   store->dir, (unsigned long long)transfer.failed_offset,
                   (unsigned long long)store->reserved_bytes, strerror(-code));
  return code;
}

int lade_store_prepare(struct lade_store *store, struct lade_error *error)
{
  if (store->is_prepared)
    return lade_error_set(error, -EINVAL, "the store in %s is prepared already", store->dir);
  int code = 0;
  if (store->reserved_bytes)
    code = store_file_allocate(&store->file, store->dir, store->reserved_bytes, store->faults, error);
  if (code)
    return code;
  uint64_t n_granules = store->reserved_bytes / LADE_STORE_GRANULE_BYTES;
  uint64_t *sums = lade_fault_calloc(store->faults, n_granules + !n_granules, sizeof(*sums));
  if (!sums)
    return lade_error_set(error, -ENOMEM, "no memory for the checksums of the store in %s", store->dir);
  code = store->reserved_bytes ? file_fill(store, error) : 0;
  if (code) {
    free(sums);
    return code;
  }
  struct lade_cpu cpu = lade_cpu_get();
  store->sums = (struct store_sums){.sums = sums, .n = n_granules, .hash = store_hash_choose(&cpu)};
  store->read_bytes = store->written_bytes = 0;
  store->is_prepared = true;
  return 0;
}
