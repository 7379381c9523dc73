/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several drives as one store: shares by speed, and going on without a drive.
 *
 * A write that covers a stripe whole goes to the drive with the fewest pieces under way that has a free slot.
 * Fast drives give pieces back sooner, so that they get more of them: while the store is busy the shares are those of
 * the speeds at this moment, and nothing has to be estimated. Reads go where the last write went, and find the same
 * shares. A write of a part of a stripe goes where the stripe is, but for a drive that is set aside.
 *
 * A drive that fails a transfer for good is set aside: stripes no longer move to it, the write that failed is done
 * again elsewhere, and the other files grow by the room that is lost. What was on it is tried there when it is read,
 * since a drive may have lost one sector or everything; the error names the tensor. Whatever is written of a stripe
 * there moves the stripe, and what is not written stays behind, to be read where it was: so a run that writes all its
 * state in each step, in requests that end anywhere, needs the drive for one more step and not for good. Where a write
 * of a part fails, what that stripe had besides is marked lost; so it is where parts are on two drives, and the second
 * one fails.
 *
 * A drive is set aside as slow when over several windows, while it had something to do, it moved less than an eighth
 * of the bytes per second of the best one, and its pieces took more than eight times as long: a drive that is asked
 * for little at a time does not take long, and one with a long queue moves much.
 *
 * With one drive left, nothing is set aside: then its errors are the store's.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/room.h"
#include "offload/store_internal.h"

#define SLOW_RATIO 8
#define SLOW_WINDOWS 3
#define WINDOW_PIECES 64         /* per drive, on average */
#define WINDOW_PIECES_LEAST 4    /* of a drive that is compared */
#define TRIAL_BYTES (32ull << 20)
#define TRIAL_STORE_BYTES (256ull << 20) /* a smaller store is not worth trying drives for */

static int n_active(const struct lade_store *store)
{
  int n = 0;
  for (int i = 0; i < store->n_drives; i++)
    n += !store->drives[i].is_aside;
  return n;
}

/* ---- setting aside ---- */

/* The notice is one line for the user: the last one counts if nobody has asked in between. */
static void notice_set(struct lade_store *store, int drive, const char *why, bool has_room)
{
  snprintf(store->notice, sizeof(store->notice), "store: %s is set aside: %s; new data goes to the other %s%s",
           store->drives[drive].dir, why, n_active(store) > 1 ? "directories" : "directory",
           has_room ? "" : ", which may not have room for all of it");
}

/* Room elsewhere for the stripes that are on @drive. False if a file could not grow. */
static bool others_grow(struct lade_store *store, int drive)
{
  struct store_stripes *stripes = &store->stripes;
  uint64_t n = stripes->slots[drive].n - stripes->slots[drive].n_free;
  uint64_t part = (uint64_t)lade_div_up((int64_t)n, n_active(store));
  bool is_done = true;
  for (int i = 0; i < store->n_drives; i++) {
    struct store_drive *other = &store->drives[i];
    if (other->is_aside || i == drive || !part)
      continue;
    uint64_t from = (uint64_t)stripes->slots[i].n * stripes->bytes;
    struct lade_faults *faults = store->faulty_drive < 0 || store->faulty_drive == i ? store->faults : NULL;
    is_done &= store_file_extend(&other->file, from, part * stripes->bytes, faults) == 0 &&
               store_stripes_grow(stripes, i, part) == 0;
  }
  return is_done;
}

static void drive_set_aside(struct lade_store *store, int drive, const char *why)
{
  store->drives[drive].is_aside = true;
  LADE_ASSERT(n_active(store) > 0);
  notice_set(store, drive, why, others_grow(store, drive));
}

/* Does this error tell of a drive, and not of memory, of the caller or of a thread that the ring may not have? */
static bool is_drive_failure(int code)
{
  return code != -EFAULT && code != -EINVAL && code != -ENOMEM && code != -ECANCELED;
}

/* ---- placing ---- */

static uint64_t piece_offset(const struct store_piece *piece)
{
  return piece->transfer->extent.offset + piece->transfer->offset + piece->from;
}

/* The active drive with the fewest pieces under way and a free slot, or where the stripe is; -1: none. */
static int drive_choose(const struct lade_store *store, int current)
{
  const struct store_drive *drives = store->drives;
  int best = drives[current].is_aside ? -1 : current;
  for (int i = 0; i < store->n_drives; i++) {
    bool has_room = !drives[i].is_aside && store->stripes.slots[i].n_free;
    if (has_room && (best < 0 || drives[i].n_pending < drives[best].n_pending))
      best = i;
  }
  return best;
}

/* To where its stripe is, or was: with @is_behind. */
static void piece_point(struct lade_store *store, struct store_piece *piece, bool is_behind)
{
  const struct store_stripes *stripes = &store->stripes;
  const struct store_spot *spot = &stripes->spots[piece_offset(piece) / stripes->bytes];
  piece->drive = is_behind ? spot->old_drive : spot->drive;
  piece->place = (uint64_t)(is_behind ? spot->old_slot : spot->slot) * stripes->bytes +
                 piece_offset(piece) % stripes->bytes;
}

/* Put it where the bytes are, cut where the next ones are elsewhere. */
static void read_place(struct lade_store *store, struct store_piece *piece)
{
  const struct store_stripes *stripes = &store->stripes;
  const struct store_spot *spot = &stripes->spots[piece_offset(piece) / stripes->bytes];
  bool is_behind;
  piece->bytes = (uint32_t)store_spot_run(spot, piece_offset(piece) % stripes->bytes, piece->bytes, &is_behind);
  piece->refusal = is_behind && spot->is_lost ? -EIO : 0;
  piece->transfer->is_lost |= piece->refusal != 0;
  piece_point(store, piece, is_behind && !spot->is_lost);
}

/* A whole stripe goes where there is least to do; a part of one leaves a drive that is set aside. */
static void write_place(struct lade_store *store, struct store_piece *piece)
{
  struct store_stripes *stripes = &store->stripes;
  const uint64_t i = piece_offset(piece) / stripes->bytes;
  struct store_spot *spot = &stripes->spots[i];
  const bool is_whole = piece->bytes == stripes->bytes;
  int drive = is_whole || store->drives[spot->drive].is_aside ? drive_choose(store, spot->drive) : spot->drive;
  if (drive >= 0 && drive != spot->drive && is_whole)
    store_stripes_move(stripes, i, drive);
  else if (drive >= 0 && drive != spot->drive)
    store_stripes_leave(stripes, i, drive);
  store_spot_regain(spot, piece_offset(piece) % stripes->bytes, piece->bytes);
  piece_point(store, piece, false);
}

void drives_place(struct lade_store *store, struct store_piece *piece)
{
  const uint64_t from = piece_offset(piece) % store->stripes.bytes;
  piece->bytes = (uint32_t)LADE_MIN(piece->bytes, store->stripes.bytes - from);
  if (piece->transfer->op == LADE_STORE_READ)
    read_place(store, piece);
  else
    write_place(store, piece);
}

bool drives_replace(struct lade_store *store, struct store_piece *piece, int code)
{
  struct store_stripes *stripes = &store->stripes;
  struct store_drive *drive = &store->drives[piece->drive];
  if (store->n_drives == 1 || piece->transfer->on_drive || !is_drive_failure(code))
    return false;
  if (!drive->is_aside && n_active(store) == 1)
    return false;
  if (!drive->is_aside)
    drive_set_aside(store, piece->drive, strerror(-code));
  if (piece->transfer->op == LADE_STORE_READ)
    return false;
  uint64_t i = piece_offset(piece) / stripes->bytes;
  struct store_spot *spot = &stripes->spots[i];
  if (spot->drive == piece->drive) { /* else another part of it has moved it */
    int to = drive_choose(store, spot->drive);
    if (to < 0 || to == spot->drive || !store_stripes_move(stripes, i, to))
      return false;
    store_spot_lose(spot);
  }
  store_spot_regain(spot, piece_offset(piece) % stripes->bytes, piece->bytes);
  piece_point(store, piece, false);
  piece->moved_bytes = 0;
  piece->n_retries = 0;
  return true;
}

bool drives_follow(struct lade_store *store, struct store_piece *piece)
{
  struct store_stripes *stripes = &store->stripes;
  struct store_piece now = *piece;
  if (!stripes->n || piece->transfer->on_drive || piece->transfer->op != LADE_STORE_WRITE)
    return false;
  piece_point(store, &now, false);
  if (now.drive == piece->drive && now.place == piece->place)
    return false;
  struct store_spot *spot = &stripes->spots[piece_offset(piece) / stripes->bytes];
  store_spot_regain(spot, piece_offset(piece) % stripes->bytes, piece->bytes);
  now.moved_bytes = 0;
  now.n_retries = 0;
  *piece = now;
  return true;
}

const char *drives_dir_of(struct lade_store *store, uint64_t offset)
{
  pthread_mutex_lock(&store->mutex);
  const struct store_stripes *stripes = &store->stripes;
  int drive = 0;
  if (stripes->n) {
    const struct store_spot *spot = &stripes->spots[offset / stripes->bytes];
    const uint64_t block = offset % stripes->bytes / LADE_STORE_BLOCK_BYTES * LADE_STORE_BLOCK_BYTES;
    bool is_behind;
    store_spot_run(spot, block, LADE_STORE_BLOCK_BYTES, &is_behind);
    drive = is_behind && !spot->is_lost ? spot->old_drive : spot->drive;
  }
  pthread_mutex_unlock(&store->mutex);
  return store->drives[drive].dir;
}

/* ---- speeds ---- */

/* Bytes per second while it had something to do. */
static double busy_rate(const struct store_drive *drive)
{
  return (double)drive->window_bytes / (double)LADE_MAX(drive->window_busy_ns, 1);
}

static bool is_slow(const struct store_drive *drive, const struct store_drive *best)
{
  double ns = (double)drive->window_ns / drive->window_pieces;
  double best_ns = (double)best->window_ns / best->window_pieces;
  return busy_rate(drive) * SLOW_RATIO < busy_rate(best) && ns > SLOW_RATIO * best_ns;
}

static bool is_measured(const struct store_drive *drive)
{
  return !drive->is_aside && drive->window_pieces >= WINDOW_PIECES_LEAST;
}

/* Compare the drives at the end of a window, and begin the next one. */
static void window_end(struct lade_store *store, int64_t now_ns)
{
  struct store_drive *best = NULL;
  for (int i = 0; i < store->n_drives; i++) {
    struct store_drive *drive = &store->drives[i];
    if (drive->n_pending) {
      drive->window_busy_ns += now_ns - drive->busy_since_ns;
      drive->busy_since_ns = now_ns;
    }
    if (is_measured(drive) && (!best || busy_rate(drive) > busy_rate(best)))
      best = drive;
  }
  for (int i = 0; i < store->n_drives && best; i++) {
    struct store_drive *drive = &store->drives[i];
    if (!is_measured(drive))
      continue;
    drive->n_slow_windows = is_slow(drive, best) ? drive->n_slow_windows + 1 : 0;
    if (drive->n_slow_windows >= SLOW_WINDOWS)
      drive_set_aside(store, i, "it holds the others up (it is less than an eighth as fast)");
  }
  for (int i = 0; i < store->n_drives; i++) {
    struct store_drive *drive = &store->drives[i];
    drive->window_bytes = 0;
    drive->window_busy_ns = drive->window_ns = 0;
    drive->window_pieces = 0;
  }
}

void drives_begin(struct lade_store *store, struct store_piece *piece)
{
  struct store_drive *drive = &store->drives[piece->drive];
  if (store->stripes.n)
    piece->begun_ns = lade_now_ns();
  if (!drive->n_pending++)
    drive->busy_since_ns = piece->begun_ns;
}

void drives_end(struct lade_store *store, const struct store_piece *piece, uint32_t moved)
{
  struct store_drive *drive = &store->drives[piece->drive];
  int n_pieces = 0;
  LADE_ASSERT(drive->n_pending > 0);
  drive->n_pending--;
  if (!store->stripes.n || !store->is_prepared) /* filling is not judged */
    return;
  int64_t now_ns = lade_now_ns();
  drive->window_bytes += moved;
  drive->window_ns += now_ns - piece->begun_ns;
  drive->window_busy_ns += drive->n_pending ? 0 : now_ns - drive->busy_since_ns;
  drive->window_pieces++;
  for (int i = 0; i < store->n_drives; i++)
    n_pieces += store->drives[i].window_pieces;
  if (n_pieces >= WINDOW_PIECES * store->n_drives)
    window_end(store, now_ns);
}

/* ---- preparing ---- */

/* Bytes per second of overwriting the first TRIAL_BYTES of @drive's file, which they are written into first. */
static int drive_try(struct lade_store *store, int drive, const void *data, double *ret_rate, struct lade_error *error)
{
  int64_t ns = 1;
  for (int pass = 0; pass < 2; pass++) {
    struct lade_transfer transfer = {.op = LADE_STORE_WRITE, .check = LADE_CHECK_CALLER, .bytes = TRIAL_BYTES,
                                     .data = (void *)data, .is_fill = true, .on_drive = drive + 1};
    int64_t start_ns = lade_now_ns();
    int code = store_transfer_run(store, &transfer);
    ns = LADE_MAX(lade_now_ns() - start_ns, 1);
    if (code)
      return lade_error_set(error, store_code_of_transfer(code), "store in %s: a trial of %llu bytes failed: %s",
                            store->drives[drive].dir, (unsigned long long)TRIAL_BYTES, strerror(-code));
  }
  *ret_rate = (double)TRIAL_BYTES * 1e9 / (double)ns;
  return 0;
}

/* A drive that has @most stripes of room, and those are less than a trial, is not tried: its room decides. */
static int weights_find(struct lade_store *store, const uint64_t *most, const void *data, double *ret_weights,
                        struct lade_error *error)
{
  int code = 0;
  for (int i = 0; i < store->n_drives && !code; i++) {
    ret_weights[i] = 1;
    if (store->reserved_bytes >= TRIAL_STORE_BYTES && most[i] >= TRIAL_BYTES / store->stripes.bytes)
      code = drive_try(store, i, data, &ret_weights[i], error);
  }
  return code;
}

/* Slots for which @drive has room; directories of one file system share it evenly. */
static uint64_t drive_room(const struct lade_store *store, int drive)
{
  uint64_t n_sharing = 0, bytes;
  for (int i = 0; i < store->n_drives; i++)
    n_sharing += i == drive || store_file_shares_device(&store->drives[i].file, &store->drives[drive].file);
  if (lade_room_get_fd(store->drives[drive].file.fd, &bytes) || bytes == LADE_ROOM_UNKNOWN)
    return INT32_MAX;
  return bytes / n_sharing / store->stripes.bytes;
}

static int room_error(const struct lade_store *store, uint64_t room_bytes, struct lade_error *error)
{
  char need[LADE_SIZE_TEXT], have[LADE_SIZE_TEXT];
  return lade_error_set(error, -ENOSPC, "store in %s and %d more needs %s, and %s are free; free more or name others",
                        store->drives[0].dir, store->n_drives - 1, lade_size_exact(store->reserved_bytes, need),
                        lade_size_exact(room_bytes, have));
}

int drives_prepare(struct lade_store *store, const void *data, uint64_t *ret_file_bytes, struct lade_error *error)
{
  double weights[LADE_STORE_DRIVES_MAX];
  uint64_t most[LADE_STORE_DRIVES_MAX], n_slots[LADE_STORE_DRIVES_MAX];
  uint32_t bytes = (uint32_t)LADE_MIN(store->piece_bytes, STORE_STRIPE_BYTES_MAX);
  uint64_t n = (uint64_t)lade_div_up((int64_t)store->reserved_bytes, bytes);
  store->stripes.bytes = bytes;
  uint64_t room = 0;
  for (int i = 0; i < store->n_drives; i++)
    room += most[i] = drive_room(store, i);
  if (room < n)
    return room_error(store, room * bytes, error);
  int code = weights_find(store, most, data, weights, error);
  if (code)
    return code;
  bool has_room = store_shares(n, store->n_drives, weights, most, n_slots);
  LADE_ASSERT(has_room);
  for (int i = 0; i < store->n_drives && !code; i++) {
    ret_file_bytes[i] = n_slots[i] * bytes;
    if (n_slots[i])
      code = store_file_allocate(&store->drives[i].file, store->drives[i].dir, ret_file_bytes[i], store->faults, error);
  }
  if (!code && store_stripes_init(&store->stripes, n, bytes, store->n_drives, n_slots, store->faults))
    code = lade_error_set(error, -ENOMEM, "no memory for the map of the store in %s", store->drives[0].dir);
  return code;
}
