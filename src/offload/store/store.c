/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers are cut into pieces of at most piece_bytes. At most depth pieces are in the engine at once, each in a slot.
 * Transfers with unassigned bytes are in a first-in first-out queue. When a slot is free, the head of the queue fills
 * it with its next piece. So one large transfer keeps the drive as busy as many small ones, and all memory is allocated
 * at open.
 *
 * Any thread may submit and wait. Among the waiting threads, one is the reaper. It alone waits in the engine, without
 * the mutex, and handles every completion. The others sleep on the condition until it has delivered a transfer, and one
 * of them takes over when it leaves. A round of the reaper: take completions; account for them and start new pieces in
 * the freed slots, so that the drive stays busy; verify the bytes read, without the mutex; retry pieces; deliver
 * finished transfers. Each piece is sealed just before it begins, so that sealing too overlaps with the drive.
 *
 * Bounds. A piece that makes progress is continued, at most piece_bytes / block times. A piece that makes none is tried
 * RETRIES_MAX times with growing pauses, some 50 ms in all. The first failure of a transfer stops it: no further piece
 * is started, and it ends when the pieces in flight have come back. If the engine itself fails, all pieces in flight
 * and all later ones fail with its error.
 *
 * Rejected: a reaper thread of the store (two switches per completion, and the caller has waiting threads anyway);
 * polling the ring in the kernel (it occupies a core, and some machines have only two).
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "offload/store/store_internal.h"

#define RETRIES_MAX 32
#define RETRY_PAUSE_NS 100000 /* multiplied by the number of tries */
#define SLOW_NS 80000000      /* time that LADE_STORE_FAULT_SLOW adds to a piece */

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
  transfer->is_queued = true;
}

static void queue_remove(struct lade_store *store, const struct lade_transfer *transfer)
{
  struct lade_transfer *before = NULL, *at = store->head;
  while (at != transfer) {
    LADE_ASSERT(at);
    before = at;
    at = at->next;
  }
  *(before ? &before->next : &store->head) = at->next;
  store->tail = store->tail == at ? before : store->tail;
}

/* ---- pieces; mutex held ---- */

static void transfer_fail(struct lade_transfer *transfer, int code, uint64_t at)
{
  if (!transfer->result) {
    transfer->result = code;
    transfer->failed_offset = transfer->offset + at;
  }
}

/*
 * End one piece of @transfer. Drop the unassigned rest if it failed, and move it to @finished if this was its last
 * piece.
 */
static void piece_end(struct lade_store *store, struct lade_transfer *transfer, struct lade_transfer **finished)
{
  bool has_rest = transfer->taken_bytes < transfer_rounded_bytes(transfer);
  if (transfer->result && has_rest && transfer->is_queued) {
    queue_remove(store, transfer);
    transfer->is_queued = false;
  }
  if (--transfer->n_pieces || (has_rest && !transfer->result))
    return;
  transfer->next = *finished;
  *finished = transfer;
}

static void slot_release(struct lade_store *store, int slot)
{
  store->free_slots[store->n_free++] = slot;
}

/* Set the drive and the file offset of @piece; may cut it. */
static void piece_place(struct lade_store *store, struct store_piece *piece)
{
  const struct lade_transfer *transfer = piece->transfer;
  if (store->stripes.n && !transfer->on_drive) {
    drives_place(store, piece);
    return;
  }
  piece->drive = LADE_MAX(transfer->on_drive - 1, 0);
  piece->place = transfer->extent.offset + transfer->offset + piece->from;
}

/* Put the next piece of the first transfer into a slot; -1 if there is no transfer or no slot. */
static int piece_take(struct lade_store *store)
{
  struct lade_transfer *transfer = store->head;
  if (!transfer || !store->n_free)
    return -1;
  uint64_t rest = transfer_rounded_bytes(transfer) - transfer->taken_bytes;
  int slot = store->free_slots[--store->n_free];
  struct store_piece *piece = &store->pieces[slot];
  *piece = (struct store_piece){
      .transfer = transfer,
      .from = transfer->taken_bytes,
      .bytes = (uint32_t)LADE_MIN(rest, store->piece_bytes),
  };
  piece_place(store, piece);
  transfer->taken_bytes += piece->bytes;
  transfer->n_pieces++;
  bool is_whole = transfer->taken_bytes == transfer_rounded_bytes(transfer);
  if (is_whole || transfer->on_drive) {
    queue_remove(store, transfer);
    transfer->is_queued = false;
  }
  if (!is_whole && transfer->on_drive) /* such transfers go to one drive each, in parallel */
    queue_push(store, transfer);
  return slot;
}

/* Apply an armed fault to this attempt: shorten it, or set the result that it will report. */
static uint32_t piece_fault(struct lade_store *store, struct store_piece *piece, uint32_t bytes)
{
  bool is_write = piece->transfer->op == LADE_STORE_WRITE;
  piece->fault = 0;
  if (store->faulty_drive >= 0 && store->faulty_drive != piece->drive)
    return bytes;
  piece->fault = lade_fault(store->faults, is_write ? LADE_FAULT_FILE_WRITE : LADE_FAULT_FILE_READ);
  if (piece->fault != LADE_STORE_FAULT_SHORT)
    return bytes;
  piece->fault = 0;
  return LADE_MAX((uint32_t)LADE_STORE_BLOCK_BYTES, bytes / 2 & ~(LADE_STORE_BLOCK_BYTES - 1u));
}

/* Return the delay of the fault that makes a drive slow. */
static int64_t piece_delay(struct store_piece *piece)
{
  bool is_slow = piece->fault == LADE_STORE_FAULT_SLOW;
  piece->fault = is_slow ? 0 : piece->fault;
  return is_slow ? SLOW_NS : 0;
}

static void piece_submit(struct lade_store *store, int slot, struct lade_transfer **finished)
{
  struct store_piece *piece = &store->pieces[slot];
  struct lade_transfer *transfer = piece->transfer;
  uint64_t at = piece->from + piece->moved_bytes;
  int code = transfer->result ? transfer->result : piece->refusal; /* result: another piece has failed meanwhile */
  code = code ? code : store->engine_code;
  if (!code) {
    struct store_io io = {
        .slot = slot,
        .file = piece->drive,
        .is_write = transfer->op == LADE_STORE_WRITE,
        .bytes = piece_fault(store, piece, piece->bytes - piece->moved_bytes),
        .offset = piece->place + piece->moved_bytes,
        .data = (char *)transfer->data + (transfer->is_fill ? 0 : at),
    };
    io.delay_ns = piece_delay(piece);
    code = store->ops->submit(store->engine, &io);
  }
  if (!code) {
    piece->is_in_engine = true;
    store->n_in_engine++;
    drives_begin(store, piece);
    return;
  }
  transfer_fail(transfer, code, at);
  slot_release(store, slot);
  piece_end(store, transfer, finished);
}

/* Return the bytes of @piece that hold data, without the padding of the last block. */
static uint64_t piece_data_bytes(const struct store_piece *piece)
{
  return LADE_MIN(piece->bytes, piece->transfer->bytes - piece->from);
}

static void piece_seal(struct lade_store *store, const struct store_piece *piece)
{
  lade_store_seal(store, piece->transfer, piece->from, piece_data_bytes(piece));
}

/* Start pieces while there are slots and unassigned bytes. Drops the mutex to seal. */
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
    pthread_cond_broadcast(&store->progress); /* wake waiters that slept because no I/O was in flight */
  }
}

/* ---- completions ---- */

/*
 * True if @code should be retried. -ECANCELED is, because the store never cancels pieces: the ring needed a kernel
 * thread, and a limit of threads forbade it for now.
 */
static bool is_worth_a_retry(int code)
{
  return code == -EINTR || code == -EAGAIN || code == -EBUSY || code == -ECANCELED;
}

/* Account for one completion: put its piece into @again, put it into @to_verify, or end it. Mutex held. */
static void completion_settle(struct lade_store *store, const struct store_completion *completion,
                              struct lade_transfer **finished)
{
  struct store_piece *piece = &store->pieces[completion->slot];
  struct lade_transfer *transfer = piece->transfer;
  int result = piece->fault ? piece->fault : completion->result;
  piece->is_in_engine = false;
  store->n_in_engine--;
  if (result == 0)
    result = -EIO; /* the file ends here, or the drive accepts nothing: neither changes with a retry */
  uint32_t moved = result > 0 ? (uint32_t)result & ~(LADE_STORE_BLOCK_BYTES - 1u) : 0;
  LADE_ASSERT(moved <= piece->bytes - piece->moved_bytes);
  piece->moved_bytes += moved;
  *(transfer->op == LADE_STORE_WRITE ? &store->written_bytes : &store->read_bytes) += moved;
  drives_end(store, piece, moved);
  bool is_whole = piece->moved_bytes == piece->bytes;
  bool is_refusal = !moved && (result > 0 || is_worth_a_retry(result)); /* less than a block moved: it counts as
                                                                           nothing */
  bool may_retry = moved || (is_refusal && piece->n_retries < RETRIES_MAX);
  if (!is_whole && may_retry) {
    piece->n_retries += !moved;
    store->again[store->n_again++] = completion->slot;
    return;
  }
  int code = result < 0 ? result : -EIO;
  if (!store->engine_code && (is_whole ? drives_follow(store, piece) : drives_replace(store, piece, code))) {
    store->again[store->n_again++] = completion->slot;
    return;
  }
  if (!is_whole) /* -ECANCELED is for transfers that close ends */
    transfer_fail(transfer, code == -ECANCELED ? -EAGAIN : code, piece->from + piece->moved_bytes);
  if (transfer->is_fill && store->is_stopping && store->is_stopping(store->user))
    transfer_fail(transfer, -ECANCELED, piece->from + piece->moved_bytes);
  if (is_whole && transfer->op == LADE_STORE_READ && transfer->check == LADE_CHECK_STORE)
    store->to_verify[store->n_to_verify++] = *piece;
  else
    piece_end(store, transfer, finished);
  slot_release(store, completion->slot);
}

/* Verify the bytes that the round has read. Without the mutex: the pieces keep their transfers alive. */
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

/* Pause before retries, longer with each retry. No pause if all pieces make progress. */
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

/*
 * Deliver @finished to their owners; return how many. Without the mutex; a transfer is not accessed after is_done is
 * set.
 */
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

/* Deliver @finished and wake the waiting threads. Mutex held; dropped in between. */
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

/*
 * Record that the engine has failed with @code, and make completions of all pieces in it; return their number. Mutex
 * held.
 */
static int engine_fail(struct lade_store *store, int code)
{
  int n = 0;
  store->engine_code = is_worth_a_retry(code) ? -EIO : code;
  for (int slot = 0; slot < store->depth; slot++) {
    if (store->pieces[slot].is_in_engine)
      store->completions[n++] = (struct store_completion){slot, store->engine_code};
  }
  LADE_ASSERT(n == store->n_in_engine);
  return n;
}

/* Run one round of the reaper; return how many transfers were delivered. Mutex held; dropped in between. */
static int store_reap(struct lade_store *store, bool may_block)
{
  struct lade_transfer *finished = NULL;
  LADE_ASSERT(!store->is_reaping && store->n_in_engine > 0);
  store->is_reaping = true;
  store->n_to_verify = store->n_again = 0;
  pthread_mutex_unlock(&store->mutex);
  int n = store->ops->reap(store->engine, store->completions, store->depth, may_block);

  pthread_mutex_lock(&store->mutex);
  if (n < 0)
    n = engine_fail(store, n);
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
  pieces_start(store, &finished); /* a piece whose retry was refused has left its slot */
  store->is_reaping = false;
  LADE_ASSERT(!LADE_CHECK_FULL || store_is_valid(store));
  pthread_cond_broadcast(&store->progress);
  return store_deliver(store, finished);
}

/* ---- transfers ---- */

void store_transfer_begin(struct lade_store *store, struct lade_transfer *transfer)
{
  struct lade_transfer *finished = NULL;
  transfer->result = 0;
  transfer->failed_offset = transfer->taken_bytes = 0;
  transfer->n_pieces = 0;
  transfer->is_queued = transfer->is_lost = false;
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
  const bool is_ours = transfer->check == LADE_CHECK_STORE;
  return store->is_prepared && transfer->bytes && (!is_ours || !transfer->sums_distance) &&
         transfer->offset % (is_ours ? LADE_STORE_GRANULE_BYTES : LADE_STORE_BLOCK_BYTES) == 0 &&
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
  transfer->on_drive = 0;
  store_transfer_begin(store, transfer);
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

/* Make progress, or sleep until another thread has made some. Mutex held. */
static void store_advance(struct lade_store *store)
{
  if (store->is_reaping || !store->n_in_engine)
    pthread_cond_wait(&store->progress, &store->mutex);
  else
    store_reap(store, true);
}

int store_transfer_await(struct lade_store *store, const struct lade_transfer *transfer)
{
  pthread_mutex_lock(&store->mutex);
  while (!lade_transfer_is_done(transfer))
    store_advance(store);
  pthread_mutex_unlock(&store->mutex);
  return transfer->result;
}

int store_transfer_run(struct lade_store *store, struct lade_transfer *transfer)
{
  store_transfer_begin(store, transfer);
  return store_transfer_await(store, transfer);
}

int lade_store_wait(struct lade_store *store, struct lade_transfer *transfer, struct lade_error *error)
{
  if (!lade_transfer_is_done(transfer))
    store_transfer_await(store, transfer);
  return lade_transfer_result(store, transfer, error);
}

int store_code_of_transfer(int code)
{
  static const int kept[] = {-EBADMSG, -ENOSPC, -EDQUOT, -EFBIG, -ENOMEM, -ECANCELED};
  for (size_t i = 0; i < LADE_COUNT(kept); i++) {
    if (code == kept[i])
      return code;
  }
  return -EIO;
}

static int transfer_error(struct lade_store *store, const struct lade_transfer *transfer, int code,
                          uint64_t at, struct lade_error *error)
{
  const char *op = transfer->op == LADE_STORE_WRITE ? "writing" : "reading";
  const char *why = strerror(-code);
  if (code == -EBADMSG)
    why = "the data is not what was written there (damaged, stale or misplaced); check the drive";
  if (transfer->is_lost)
    why = "it was on a drive that failed and was set aside, and is lost";
  return lade_error_set(error, store_code_of_transfer(code),
                        "store in %s%s%s: %s tensor %u (microbatch %u, generation %llu) at offset %llu: %s",
                        drives_dir_of(store, transfer->extent.offset + at), store->name ? "/" : "",
                        store->name ? store->name : "", op, transfer->identity.tensor,
                        transfer->identity.microbatch,
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

/* Return the file offset at which byte @from of the transfer has its checksum. */
static uint64_t sums_place(const struct lade_transfer *transfer, uint64_t from)
{
  return transfer->extent.offset + transfer->offset + (uint64_t)transfer->sums_distance + from;
}

void lade_store_seal(struct lade_store *store, const struct lade_transfer *transfer, uint64_t from, uint64_t bytes)
{
  LADE_ASSERT(from <= transfer->bytes && bytes <= transfer->bytes - from);
  store_sums_seal(&store->sums, &transfer->identity, sums_place(transfer, from), (const char *)transfer->data + from,
                  bytes);
}

int lade_store_verify(struct lade_store *store, const struct lade_transfer *transfer, uint64_t from, uint64_t bytes,
                      struct lade_error *error)
{
  uint64_t at;
  LADE_ASSERT(from <= transfer->bytes && bytes <= transfer->bytes - from);
  int code = store_sums_verify(&store->sums, &transfer->identity, sums_place(transfer, from),
                               (const char *)transfer->data + from, bytes, &at);
  return code ? transfer_error(store, transfer, code, transfer->offset + at - sums_place(transfer, 0), error) : 0;
}

void store_drain(struct lade_store *store)
{
  pthread_mutex_lock(&store->mutex);
  while (store->head) {
    struct lade_transfer *transfer = store->head, *finished = NULL;
    transfer_fail(transfer, -ECANCELED, transfer->taken_bytes);
    transfer->n_pieces++; /* counts the unassigned rest as one piece, which ends here */
    piece_end(store, transfer, &finished);
    store_deliver(store, finished);
  }
  while (store->n_open)
    store_advance(store);
  LADE_ASSERT(!LADE_CHECK_FULL || !store->ops || store_is_valid(store)); /* without an engine it never began */
  pthread_mutex_unlock(&store->mutex);
}
