/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several drives as one store: shares by speed, and operation without a failed drive.
 *
 * A write that covers a whole stripe goes to the drive with the fewest pieces in flight that has a free slot. Fast
 * drives complete pieces sooner, so they get more of them. While the store is busy the shares follow the current
 * speeds, without any estimate. Reads go to the drive of the last write, so they have the same shares. A write of part
 * of a stripe goes to the drive of the stripe, unless that drive is set aside.
 *
 * A drive on which a transfer fails, retries included, is set aside. Stripes no longer move to it, the failed write is
 * repeated on another drive, and the other files grow by the lost space. Reads of its data are still tried there,
 * because a drive may have lost one sector or everything; the error names the tensor. If part of a stripe there is
 * written, the stripe moves, and the unwritten blocks stay behind and are read from the old place. So a run that writes
 * all its state in each step, in requests that end anywhere, needs the drive for one more step only. If a write of a
 * part fails, the rest of that stripe is marked lost. The same holds if the parts of a stripe are on two drives and the
 * second one fails.
 *
 * A drive is set aside as slow by its values over several windows, in the time when it had pieces pending. Its rate is
 * below an eighth of the best drive's, and its pieces have taken more than eight times as long. Both are required: a
 * drive with few requests has low latency, and a drive with a long queue has high throughput.
 *
 * The last remaining drive is never set aside: its errors are the store's.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/free_space.h"
#include "offload/store/store_internal.h"

#define SLOW_RATIO 8
#define SLOW_WINDOWS 3
#define WINDOW_PIECES 64         /* per drive, on average */
#define WINDOW_PIECES_MIN 4      /* least pieces of a drive before it is compared */

static int n_active(const struct lade_store *store)
{
  int n = 0;
  for (int i = 0; i < store->n_drives; i++)
    n += !store->drives[i].is_aside;
  return n;
}

/* ---- setting aside ---- */

/* Set the notice, one line for the user. It replaces an earlier one that was not taken. */
static void notice_set(struct lade_store *store, int drive, const char *why, bool has_room)
{
  snprintf(store->notice, sizeof(store->notice), "store: %s is set aside: %s; new data goes to the other %s%s",
           store->drives[drive].dir, why, n_active(store) > 1 ? "directories" : "directory",
           has_room ? "" : ", which may not have room for all of it");
}

/* Grow the other drives' files by the stripes that are on @drive. False if a file could not grow. */
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

/*
 * True if @code means a failure of the drive, and not of memory, the caller or a kernel thread that the ring was
 * refused.
 */
static bool is_drive_failure(int code)
{
  return code != -EFAULT && code != -EINVAL && code != -ENOMEM && code != -ECANCELED;
}

/* ---- placing ---- */

static uint64_t piece_offset(const struct store_piece *piece)
{
  return piece->transfer->extent.offset + piece->transfer->offset + piece->from;
}

/* Return the active drive with the fewest pieces in flight and a free slot, or the stripe's present drive; -1: none. */
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

/* Set the drive and place of @piece to those of its stripe; with @is_behind to the stripe's old ones. */
static void piece_point(struct lade_store *store, struct store_piece *piece, bool is_behind)
{
  const struct store_stripes *stripes = &store->stripes;
  const struct store_spot *spot = &stripes->spots[piece_offset(piece) / stripes->bytes];
  piece->drive = is_behind ? spot->old_drive : spot->drive;
  piece->place = (uint64_t)(is_behind ? spot->old_slot : spot->slot) * stripes->bytes +
                 piece_offset(piece) % stripes->bytes;
}

/* Set the drive and place of a read, and cut it where its bytes continue at another place. */
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

/*
 * Set the drive and place of a write. A whole stripe goes to the least loaded drive; a part moves off a drive that is
 * set aside.
 */
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
  if (spot->drive == piece->drive) { /* otherwise another part of the stripe has moved it */
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

/* Return the bytes per second of @drive in the time when it had pieces pending. */
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
  return !drive->is_aside && drive->window_pieces >= WINDOW_PIECES_MIN;
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
  if (!store->stripes.n || !store->is_prepared) /* speeds are not compared during the fill */
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
