/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measure a drive's rates, and find its best request sizes.
 *
 * The probe opens a store of its own in the run's directory, in the way the run will. A sealed and verified transfer
 * costs checksums, and the rate includes them. Writes, reads and mixes of both (a quarter, a half and three quarters of
 * them reads) are 2 MiB transfers with several in flight. Rounds measure each of them in turn, for 80 ms in all and at
 * least one pass over the extent. A moment in which other programs use the cores or the drive then slows a part of each
 * rate, and the slowest round is left out. If a pass takes longer than 80 ms, the outer two mixes are skipped, because
 * two more passes would take the tuner's time.
 *
 * Then the tuner (tune.c) sends requests of other sizes, every other one a write. They have no checksums, because the
 * drive's own preference is measured. The store passes each request to the drive whole, so it is opened for the tuner's
 * longest request and largest number. Requests go through the extent and through as much memory, over and over; both
 * hold all requests in flight at once. Several drives are not tuned: their requests are cut at stripes, and the store
 * balances them.
 *
 * Rates change with a drive's other users and its wear, as the times of ops do with a machine's. So a run that is about
 * to begin does not rely on rates that the cache kept: passes over half of the extent are compared with them, which
 * takes about as long as one of the probe's series. If they differ by more than a tenth, all rates are measured anew.
 * Request sizes stay as they were tuned.
 *
 * A drive may serve its first gigabytes from a cache or a credit. Its lasting rate is that of the transfers of the
 * latest long run (lade_probe_keep_lasting). Before the first long run, and where the caller wants everything measured
 * anew, the probe itself moves 16 GB for it, for at most 20 seconds. The bytes of its first half are kept too, because
 * a slow drive moves fewer: a run that moves as many is a long one. The second half measures half reads without a
 * pause, as updates of a step stream, and writes and reads in turns, as values of a step move. Both matter where each
 * direction has a credit of its own, which it regains while it rests.
 *
 * The run's own data may fit where the probe's 64 MiB do not. Then the probe takes half, and half of that, down to a
 * single transfer. It has fewer transfers in flight, and does not search sizes. Later runs, which may have more room,
 * measure again.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "machine/probe_internal.h"
#include "machine/tune.h"

#define PIECE_BYTES ((size_t)2 << 20) /* of a transfer: the store's default request */
#define N_PIECES 16      /* of the extent, in flight together */
#define MIX_PIECES 4     /* of which a mix states how many are written */
#define N_SINGLES 32     /* transfers one at a time */
#define PAUSE_NS 500000  /* long enough for the io thread and the drive's host to sleep */
#define LIMIT_NS 80000000    /* of the passes of one rate */
#define N_ROUNDS 4           /* of the passes of all rates */
#define CHECK_NS 20000000    /* of a check, which begins with one pass of writes */
#define CHECK_SHARE 0.1      /* smallest difference of rates that is a change of the drive */
#define LASTING_BYTES 16e9   /* moved for the lasting rate, unless they take longer than the limit */
/*
 * Passes that fit into the time of a measurement of the lasting rates, at least, unless a pass has MIX_PIECES. Its
 * first half then has eight, and each rate of the second half is measured over four.
 */
#define LASTING_PASSES 16
/*
 * Passes that fit into the limit of lade_probe_measure_sustained. Beside LASTING_PASSES there are eight: two write the
 * new file and its pieces, one ends the first half, two end the stream, two end the turns, and one is for the opening.
 */
#define SUSTAINED_PASSES 24
#define SECOND_HALF_PASSES 5 /* that the second half makes at least: three of the stream, two in turns */
#define REQUEST_BYTES_MAX (6u << 20) /* the longest that the tuner sends */
#define REQUESTS_MAX 64              /* the most that it has in flight */

struct drive {
  lade_store *store;
  struct lade_extent extent;
  int n_pieces; /* of a pass */
  bool (*is_stopping)(void *user); /* may be NULL */
  void *user;
  struct lade_transfer transfers[REQUESTS_MAX];
  struct probe_area area;
};

static bool drive_is_stopping(const struct drive *drive)
{
  return drive->is_stopping && drive->is_stopping(drive->user);
}

/* ---- rates ---- */

static struct lade_transfer piece_make(const struct drive *drive, int i_piece, enum lade_store_op op)
{
  const uint64_t offset = (uint64_t)i_piece * PIECE_BYTES;
  return (struct lade_transfer){.op = op, .check = LADE_CHECK_STORE, .extent = drive->extent, .offset = offset,
                                .bytes = PIECE_BYTES, .data = drive->area.at + offset,
                                .identity = {.tensor = (uint32_t)i_piece}};
}

/* Begin to move a piece, in a mix of @n_writes of each MIX_PIECES. A transfer that is not begun counts as done. */
static int piece_begin(struct drive *drive, int i_piece, int n_writes)
{
  struct lade_transfer *transfer = &drive->transfers[i_piece];
  *transfer = piece_make(drive, i_piece, i_piece % MIX_PIECES < n_writes ? LADE_STORE_WRITE : LADE_STORE_READ);
  int rc = lade_store_submit(drive->store, transfer);
  if (rc)
    atomic_store(&transfer->is_done, true); /* no call may wait for it */
  return rc;
}

/* Wait for the first @n transfers; return @rc, or else the first failure. */
static int transfers_end(struct drive *drive, int n, int rc, struct lade_error *error)
{
  for (int i = 0; i < n; i++) {
    int result = lade_store_wait(drive->store, &drive->transfers[i], rc ? NULL : error);
    rc = rc ? rc : result;
  }
  return rc;
}

/* Begin every piece once, @n_writes of each MIX_PIECES as writes. Those that are not begun count as done. */
static int drive_pass_begin(struct drive *drive, int n_writes)
{
  int rc = 0;
  for (int i = 0; i < drive->n_pieces; i++) {
    if (rc)
      atomic_store(&drive->transfers[i].is_done, true);
    else
      rc = piece_begin(drive, i, n_writes);
  }
  return rc;
}

/* Make one pass. pre: all pieces were written before they are read. */
static int drive_pass(struct drive *drive, int n_writes, struct lade_error *error)
{
  return transfers_end(drive, drive->n_pieces, drive_pass_begin(drive, n_writes), error);
}

static double pass_bytes(const struct drive *drive)
{
  return (double)drive->n_pieces * (double)PIECE_BYTES;
}

/* Measure bytes/s over passes for about @limit_ns, at least one. */
static int passes_rate(struct drive *drive, int n_writes, int64_t limit_ns, struct lade_error *error, double *ret_rate)
{
  int64_t start_ns = lade_now_ns(), ns = 0;
  double bytes = 0;
  do {
    int rc = drive_pass(drive, n_writes, error);
    if (rc)
      return rc;
    bytes += pass_bytes(drive);
    ns = lade_now_ns() - start_ns;
  } while (ns < limit_ns);
  *ret_rate = bytes / (double)ns * 1e9;
  return 0;
}

static void pause_make(void)
{
  nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* Return the mean of the middle half of @n values, which it sorts. */
static double middle_mean(int64_t *values, int n)
{
  double sum = 0;
  probe_sort(values, n);
  for (int i = n / 4; i < n - n / 4; i++)
    sum += (double)values[i];
  return sum / (n - 2 * (n / 4));
}

/*
 * Measure the time of a single transfer beyond that of its bytes at the rates of @measured. Writes and reads alternate.
 * Both transfers of every other pair follow a pause, because an io queue waits for the computation before about half of
 * its transfers. Its thread and the drive's host then sleep, and wake up within the transfer's time. Half of the pairs
 * move a granule, the others a whole piece, because a value of one piece keeps the drive less busy than the passes did.
 */
static int drive_latency(struct drive *drive, const struct lade_machine_store *measured, struct lade_error *error,
                         double *ret_ns)
{
  const double rates[] = {measured->write_bytes_per_s, measured->read_bytes_per_s};
  int64_t ns[N_SINGLES];
  for (int i = 0; i < N_SINGLES; i++) {
    const bool is_read = i % 2;
    struct lade_transfer transfer = piece_make(drive, i / 2 % drive->n_pieces,
                                               is_read ? LADE_STORE_READ : LADE_STORE_WRITE);
    transfer.bytes = i % 8 < 4 ? LADE_STORE_GRANULE_BYTES : PIECE_BYTES;
    if (i % 4 < 2)
      pause_make();
    int64_t start_ns = lade_now_ns();
    int rc = lade_store_submit(drive->store, &transfer);
    if (!rc)
      rc = lade_store_wait(drive->store, &transfer, error);
    if (rc)
      return rc;
    ns[i] = lade_now_ns() - start_ns - (int64_t)((double)transfer.bytes / rates[is_read] * 1e9);
  }
  *ret_ns = LADE_MAX(middle_mean(ns, N_SINGLES), 0);
  return 0;
}

double probe_rounds_rate(const double *ns_per_byte, int n)
{
  double sum = 0, largest = 0;
  for (int i = 0; i < n; i++) {
    sum += ns_per_byte[i];
    largest = fmax(largest, ns_per_byte[i]);
  }
  if (n > 2)
    return (n - 1) * 1e9 / (sum - largest);
  return n ? n * 1e9 / sum : 0;
}

/* Passes of one mix, by round. */
struct mix_rounds {
  double ns_per_byte[N_ROUNDS], ns;
  int n;
};

/* Measure one round of a mix, unless its earlier rounds took the time of the mix. */
static int mix_round(struct drive *drive, int n_writes, struct mix_rounds *rounds, struct lade_error *error)
{
  double rate = 0;
  if (rounds->ns >= LIMIT_NS)
    return 0;
  const int64_t start_ns = lade_now_ns();
  int rc = passes_rate(drive, n_writes, LIMIT_NS / N_ROUNDS, error, &rate);
  if (rc)
    return rc;
  rounds->ns += (double)(lade_now_ns() - start_ns);
  rounds->ns_per_byte[rounds->n++] = 1e9 / rate;
  return 0;
}

static double mix_rate(const struct mix_rounds *rounds)
{
  return probe_rounds_rate(rounds->ns_per_byte, rounds->n);
}

static int drive_measure(struct drive *drive, struct lade_error *error, struct lade_machine_store *store)
{
  /* The order of a round. Writes are first, because pieces are written before they are read. */
  static const int n_writes[] = {4, 0, 2, 3, 1};
  struct lade_machine_store measured = {.bytes = store->bytes};
  struct mix_rounds mixes[LADE_COUNT(n_writes)] = {0};
  int rc = 0;
  for (int i_round = 0; !rc && i_round < N_ROUNDS; i_round++) {
    for (size_t i = 0; !rc && i < LADE_COUNT(n_writes); i++) {
      if (n_writes[i] % 2 == 0 || pass_bytes(drive) <= mix_rate(&mixes[2]) * LIMIT_NS * 1e-9)
        rc = mix_round(drive, n_writes[i], &mixes[i], error);
    }
  }
  measured.write_bytes_per_s = mix_rate(&mixes[0]);
  measured.read_bytes_per_s = mix_rate(&mixes[1]);
  measured.total_bytes_per_s = mix_rate(&mixes[2]);
  measured.total_mostly_writes_bytes_per_s = mix_rate(&mixes[3]);
  measured.total_mostly_reads_bytes_per_s = mix_rate(&mixes[4]);
  if (!rc)
    rc = drive_latency(drive, &measured, error, &measured.latency_ns);
  if (!rc)
    *store = measured;
  return rc;
}

/* Return the pieces, at most @n_max, that @rate moves in @ns, in whole mixes; 0: not one mix. */
static int pieces_count(int n_max, double rate, double ns)
{
  const double n = fmin(rate * ns * 1e-9 / (double)PIECE_BYTES, n_max);
  return n < n_max ? (int)n / MIX_PIECES * MIX_PIECES : n_max;
}

/* Give a pass as many pieces as @rate moves in @ns, at most those that it has, and at least one mix of them. */
static void drive_pass_shorten(struct drive *drive, double rate, double ns)
{
  const int n_min = LADE_MIN(drive->n_pieces, MIX_PIECES);
  drive->n_pieces = LADE_MAX(pieces_count(drive->n_pieces, rate, ns), n_min);
}

/*
 * Keep a pass of half writes in flight for @limit_ns or @limit_bytes, as streamed updates do: each piece is moved again
 * as soon as it has been moved. Measure bytes/s without the first third, which a drive may serve from the credit of a
 * direction that rested, over whole turns of the pieces, because a drive may end all pieces in flight at once.
 */
static int stream_rate(struct drive *drive, int64_t limit_ns, double limit_bytes, struct lade_error *error,
                       double *ret_rate)
{
  const int64_t start_ns = lade_now_ns();
  double bytes = 0, counted_bytes = 0; /* at the end of the latest turn */
  int64_t ns = 0, first_ns = 0;
  int rc = drive_pass_begin(drive, MIX_PIECES / 2);
  if (rc)
    return transfers_end(drive, drive->n_pieces, rc, error);
  for (int i = 0; !rc && !drive_is_stopping(drive) &&
       (counted_bytes == 0 || i || (ns < limit_ns && bytes < limit_bytes)); i = (i + 1) % drive->n_pieces) {
    rc = lade_store_wait(drive->store, &drive->transfers[i], error);
    bytes += (double)PIECE_BYTES;
    if (i == drive->n_pieces - 1) {
      ns = lade_now_ns() - start_ns;
      counted_bytes += first_ns ? pass_bytes(drive) : 0;
      first_ns = !first_ns && (ns >= limit_ns / 3 || bytes >= limit_bytes / 3) ? ns : first_ns;
    }
    if (!rc)
      rc = piece_begin(drive, i, MIX_PIECES / 2);
  }
  *ret_rate = counted_bytes / (double)LADE_MAX(ns - first_ns, 1) * 1e9;
  return transfers_end(drive, drive->n_pieces, rc, error);
}

/*
 * Measure the rates of writes and of reads, a pass of each in turn for @limit_ns or @limit_bytes. Values of a step move
 * so: while one direction moves, the other rests and regains its credit.
 */
static int turns_rates(struct drive *drive, int64_t limit_ns, double limit_bytes, struct lade_error *error,
                       double *ret_write_rate, double *ret_read_rate)
{
  const int64_t start_ns = lade_now_ns();
  double bytes = 0;
  int64_t ns = 0, sum_ns[2] = {0};
  int n_turns = 0;
  for (; !n_turns || (ns < limit_ns && bytes < limit_bytes && !drive_is_stopping(drive)); n_turns++) {
    for (int is_read = 0; is_read < 2; is_read++) {
      int rc = drive_pass(drive, is_read ? 0 : MIX_PIECES, error);
      if (rc)
        return rc;
      const int64_t end_ns = lade_now_ns() - start_ns;
      sum_ns[is_read] += end_ns - ns;
      ns = end_ns;
      bytes += pass_bytes(drive);
    }
  }
  *ret_write_rate = pass_bytes(drive) * n_turns / (double)LADE_MAX(sum_ns[0], 1) * 1e9;
  *ret_read_rate = pass_bytes(drive) * n_turns / (double)LADE_MAX(sum_ns[1], 1) * 1e9;
  return 0;
}

/*
 * Measure the lasting rates of writes, of half reads and of reads for about @limit_ns, or over LASTING_BYTES. The first
 * half, a pass of each in turn, uses up a drive's cache or credit. If it shows that the second half takes longer than
 * that time, and @is_bounded, there is none: *@ret_is_new is false. So is it if the caller stops the measurement. pre:
 * @store has the first rates, and all pieces were written.
 */
static int drive_lasting(struct drive *drive, int64_t limit_ns, bool is_bounded, struct lade_error *error,
                         struct lade_machine_store *store, bool *ret_is_new)
{
  const int64_t start_ns = lade_now_ns();
  const int n_pieces = drive->n_pieces;
  double bytes = 0, rate = store->total_bytes_per_s;
  int64_t ns = 0;
  int rc = 0;
  for (int i = 0; !rc && bytes < LASTING_BYTES / 2 && ns < limit_ns / 2 && !drive_is_stopping(drive); i++) {
    drive_pass_shorten(drive, rate, (double)limit_ns / LASTING_PASSES);
    rc = drive_pass(drive, MIX_PIECES / 2 * (2 - i % 3), error);
    const int64_t end_ns = lade_now_ns() - start_ns;
    bytes += pass_bytes(drive);
    rate = pass_bytes(drive) / (double)LADE_MAX(end_ns - ns, 1) * 1e9;
    ns = end_ns;
  }
  drive_pass_shorten(drive, rate, (double)limit_ns / LASTING_PASSES);
  const double rest_ns = SECOND_HALF_PASSES * pass_bytes(drive) / rate * 1e9;
  *ret_is_new = !rc && (!is_bounded || rest_ns <= (double)limit_ns / 2) && !drive_is_stopping(drive);
  if (*ret_is_new)
    rc = stream_rate(drive, limit_ns / 4, LASTING_BYTES / 4, error, &store->lasting_bytes_per_s);
  *ret_is_new = *ret_is_new && !drive_is_stopping(drive);
  if (*ret_is_new && !rc)
    rc = turns_rates(drive, limit_ns / 4, LASTING_BYTES / 4, error, &store->lasting_write_bytes_per_s,
                     &store->lasting_read_bytes_per_s);
  *ret_is_new = *ret_is_new && !drive_is_stopping(drive);
  store->lasting_latency_ns = store->latency_ns;
  store->burst_bytes = store->known_bytes = (uint64_t)bytes;
  drive->n_pieces = n_pieces;
  return rc;
}

/* ---- sizes ---- */

static int request_begin(struct drive *drive, struct lade_transfer *transfer, uint64_t i_request, uint64_t bytes)
{
  const uint64_t offset = i_request % (TUNE_BYTES_MAX / bytes) * bytes;
  *transfer = (struct lade_transfer){.op = i_request % 2 ? LADE_STORE_WRITE : LADE_STORE_READ,
                                     .check = LADE_CHECK_CALLER, .extent = drive->extent, .offset = offset,
                                     .bytes = bytes, .data = drive->area.at + offset};
  int rc = lade_store_submit(drive->store, transfer);
  if (rc)
    atomic_store(&transfer->is_done, true); /* it was not begun: no call may wait for it */
  return rc;
}

/* Measure for tune_drive: each slot sends the next request when its last one has returned, in turn. */
static int requests_measure(void *user, uint64_t bytes, int n, struct lade_error *error, double *ret_rate)
{
  struct drive *drive = user;
  const int64_t start_ns = lade_now_ns();
  int rc = 0, n_begun = 0;
  uint64_t n_requests = 0;
  LADE_ASSERT(n <= REQUESTS_MAX && bytes <= REQUEST_BYTES_MAX && bytes * (uint64_t)n <= TUNE_BYTES_MAX);
  while (!rc && (n_begun < n || lade_now_ns() - start_ns < TUNE_MEASURE_NS)) {
    struct lade_transfer *transfer = &drive->transfers[n_requests % (uint64_t)n];
    if (n_begun == n)
      rc = lade_store_wait(drive->store, transfer, error);
    if (!rc)
      rc = request_begin(drive, transfer, n_requests++, bytes);
    n_begun += !rc && n_begun < n;
  }
  rc = transfers_end(drive, n_begun, rc, error);
  *ret_rate = (double)n_requests * (double)bytes / (double)LADE_MAX(lade_now_ns() - start_ns, 1) * 1e9;
  return rc;
}

static int64_t clock_ns(void *user)
{
  return lade_now_ns();
}

static int drive_tune(struct drive *drive, struct lade_error *error, struct lade_machine_store *store)
{
  struct lade_store_info info;
  const struct tune_drive tune = {requests_measure, clock_ns, drive};
  lade_store_get_info(drive->store, &info);
  return info.n_drives == 1 ? tune_run(&tune, error, store) : 0;
}

/* ---- both ---- */

static void drive_close(struct drive *drive)
{
  lade_store_close(drive->store);
  probe_area_finish(&drive->area);
  free(drive);
}

/* Open a store with one extent of @bytes, and as much memory. -ENOSPC, -EDQUOT or -EFBIG if there is not so much. */
static int drive_open(const struct lade_probe_params *params, uint64_t bytes, struct lade_error *error,
                      struct drive **ret_drive)
{
  struct lade_store_params own = *params->store;
  own.capacity_bytes = bytes;
  own.piece_bytes = REQUEST_BYTES_MAX;
  own.depth = REQUESTS_MAX;
  struct drive *drive = calloc(1, sizeof(*drive));
  if (!drive)
    return lade_error_set(error, -ENOMEM, "probe: out of memory");
  drive->n_pieces = (int)LADE_MIN(bytes / PIECE_BYTES, (uint64_t)N_PIECES);
  drive->is_stopping = params->is_stopping;
  drive->user = params->user;
  int rc = lade_store_open(&own, error, &drive->store);
  if (!rc)
    rc = lade_store_reserve(drive->store, bytes, &drive->extent);
  if (!rc && (rc = probe_area_init(&drive->area, bytes)))
    lade_error_set(error, rc, "probe: out of memory");
  if (!rc)
    rc = lade_store_prepare(drive->store, error);
  if (!rc)
    lade_store_pin(drive->store, drive->area.at, drive->area.bytes); /* as a run does; until it is closed */
  if (rc) {
    drive_close(drive);
    return rc;
  }
  *ret_drive = drive;
  return 0;
}

/*
 * Compare the mixed rate with @known, and measure all rates anew if they differ. Sizes stay. pre: no piece was written.
 */
static int drive_check(struct drive *drive, struct lade_error *error, struct lade_machine_store *known,
                       bool *ret_is_new)
{
  double rate = 0;
  int rc = drive_pass(drive, MIX_PIECES, error);
  if (!rc)
    rc = passes_rate(drive, 2, CHECK_NS, error, &rate);
  *ret_is_new = !rc && fabs(rate / known->total_bytes_per_s - 1) > CHECK_SHARE;
  if (!*ret_is_new)
    return rc;
  struct lade_machine_store measured = *known;
  rc = drive_measure(drive, error, &measured);
  if (!rc) {
    measured.lasting_read_bytes_per_s = known->lasting_read_bytes_per_s;
    measured.lasting_write_bytes_per_s = known->lasting_write_bytes_per_s;
    measured.lasting_bytes_per_s = known->lasting_bytes_per_s;
    measured.lasting_latency_ns = known->lasting_latency_ns;
    measured.burst_bytes = known->burst_bytes;
    measured.known_bytes = known->known_bytes;
    measured.piece_bytes = known->piece_bytes;
    measured.n_pieces = known->n_pieces;
    measured.window_bytes = known->window_bytes;
    measured.n_windows = known->n_windows;
    *known = measured;
  }
  return rc;
}

void lade_drive_point_add(struct lade_drive_points *points, enum lade_drive_work work, double x_ns, double y_ns,
                          double latency_share)
{
  points->works[work].ll += latency_share * latency_share;
  points->works[work].lx += latency_share * x_ns;
  points->works[work].ly += latency_share * y_ns;
  points->works[work].xx += x_ns * x_ns;
  points->works[work].xy += x_ns * y_ns;
}

void lade_drive_points_fade(struct lade_drive_points *points, double factor)
{
  for (int work = 0; work < LADE_DRIVE_N_WORKS; work++) {
    points->works[work].ll *= factor;
    points->works[work].lx *= factor;
    points->works[work].ly *= factor;
    points->works[work].xx *= factor;
    points->works[work].xy *= factor;
  }
}

/*
 * Minimise the sum of (y - latency l - ratio x)^2, with one latency and a ratio for each kind of work. A point's share
 * of the latency is l. The ratio of a kind is (xy - latency lx) / xx. Put into the equation of the latency, sum(ly -
 * latency ll - ratio lx) = 0, it gives the latency.
 */
bool lade_drive_points_fit(const struct lade_drive_points *points, double *ret_latency_ns,
                           double ret_ratios[LADE_DRIVE_N_WORKS])
{
  double rest = 0, slope = 0, ll = 0, latency_ns = 0;
  bool has_any = false;
  for (int work = 0; work < LADE_DRIVE_N_WORKS; work++) {
    if (points->works[work].xx <= 0)
      continue;
    const double share = points->works[work].lx / points->works[work].xx;
    ll += points->works[work].ll;
    rest += points->works[work].ly - share * points->works[work].xy;
    slope += points->works[work].ll - share * points->works[work].lx;
  }
  if (slope > 1e-9 * ll) /* values of several lengths */
    latency_ns = fmax(rest / slope, 0);
  for (int work = 0; work < LADE_DRIVE_N_WORKS; work++) {
    ret_ratios[work] = 0;
    if (points->works[work].xx > 0)
      ret_ratios[work] = fmax(points->works[work].xy - latency_ns * points->works[work].lx, 0) / points->works[work].xx;
    has_any |= ret_ratios[work] > 0;
  }
  *ret_latency_ns = latency_ns;
  return has_any;
}

/* Open the drive for passes over @n_pieces. *ret_drive NULL: neither the memory nor the drive has the room. */
static int drive_open_for_passes(const struct lade_probe_params *params, int n_pieces, struct lade_error *error,
                                 struct drive **ret_drive)
{
  const uint64_t bytes = (uint64_t)n_pieces * PIECE_BYTES;
  struct lade_error own = {0};
  *ret_drive = NULL;
  if (2 * bytes > probe_room_bytes())
    return 0;
  int rc = drive_open(params, bytes, &own, ret_drive);
  if (rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG)
    return 0; /* the run's own data may fit */
  if (rc && error)
    *error = own;
  return rc;
}

/* Return the smallest rate of reads, writes and half of each that is known of @store. */
static double min_rate(const struct lade_machine_store *store)
{
  const double total = lade_drive_bytes_per_s(store, 0.5);
  return fmin(total, fmin(lade_drive_bytes_per_s(store, 0), lade_drive_bytes_per_s(store, 1)));
}

int lade_probe_measure_sustained(const struct lade_probe_params *params, int64_t limit_ns, struct lade_error *error,
                                 struct lade_machine_store *store, bool *ret_is_new)
{
  struct drive *drive;
  struct lade_machine_store measured = *store;
  LADE_ASSERT(params->store && store->total_bytes_per_s > 0 && limit_ns > 0);
  *ret_is_new = false;
  limit_ns = LADE_MIN(limit_ns, LADE_DRIVE_SUSTAINED_NS);
  const int n_pieces = pieces_count(N_PIECES, min_rate(store), (double)limit_ns / SUSTAINED_PASSES);
  int rc = n_pieces ? drive_open_for_passes(params, n_pieces, error, &drive) : 0;
  if (rc || !n_pieces || !drive)
    return rc;
  bool is_new = false;
  rc = drive_pass(drive, MIX_PIECES, error);
  if (!rc)
    rc = drive_lasting(drive, limit_ns / SUSTAINED_PASSES * LASTING_PASSES, true, error, &measured, &is_new);
  drive_close(drive);
  if (rc || !is_new)
    return rc;
  *store = measured;
  *ret_is_new = true;
  const struct lade_drive_lasting lasting = {
      .read_bytes_per_s = store->lasting_read_bytes_per_s, .write_bytes_per_s = store->lasting_write_bytes_per_s,
      .total_bytes_per_s = store->lasting_bytes_per_s, .latency_ns = store->lasting_latency_ns,
      .burst_bytes = store->burst_bytes, .known_bytes = store->known_bytes};
  if (!params->skip_cache)
    lade_probe_keep_lasting(params, &lasting, false);
  return 0;
}

int probe_store_again(const struct lade_probe_params *params, struct lade_error *error,
                      struct lade_machine_store *store, bool *ret_is_new)
{
  struct drive *drive;
  *ret_is_new = false;
  int rc = drive_open_for_passes(params, N_PIECES, error, &drive);
  if (rc || !drive)
    return rc; /* the known rates are the best ones that there are */
  rc = drive_check(drive, error, store, ret_is_new);
  drive_close(drive);
  return rc;
}

int probe_store(const struct lade_probe_params *params, struct lade_error *error, struct lade_machine_store *store,
                bool *ret_is_cramped)
{
  struct drive *drive = NULL;
  uint64_t bytes = TUNE_BYTES_MAX;
  while (bytes > PIECE_BYTES && 2 * bytes > probe_room_bytes())
    bytes /= 2;
  int rc = drive_open(params, bytes, error, &drive);
  while ((rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG) && bytes > PIECE_BYTES) {
    bytes /= 2;
    rc = drive_open(params, bytes, error, &drive);
  }
  if (rc)
    return rc;
  *ret_is_cramped = bytes < TUNE_BYTES_MAX;
  rc = drive_measure(drive, error, store);
  if (!rc && !*ret_is_cramped)
    rc = drive_tune(drive, error, store);
  bool is_new;
  if (!rc && params->is_renewed)
    rc = drive_lasting(drive, LADE_DRIVE_SUSTAINED_NS, false, error, store, &is_new);
  drive_close(drive);
  return rc;
}
