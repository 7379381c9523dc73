/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tune a drive's settings. A setting is a length of requests and a number of them. The search starts from the default,
 * which suits most drives. It tries one size after another with the default number, then one number after another with
 * the best size: a dozen measurements instead of all pairs. A measurement takes some hundredths of a second and is
 * noisy if the drive has other users. So a challenger must be a tenth faster, and stay so in two more measurements of
 * both in turns. A drive without a preference then keeps the defaults.
 *
 * Windows are requested as a run requests them. A run cuts a parameter into equal ones, so that their requests are
 * between half a window and a whole one. It computes one while the drive has the others.
 *
 * Time. Windows come first: they have the fewest bytes in flight, so a slow drive is detected before it gets many. A
 * setting is skipped if, by the last measured rate, its bytes in flight would take the drive longer than DRAIN_MAX_NS,
 * or end past the limit. The first setting uses the drive's known rate; if that is unknown, its 9 MiB bound it.
 *
 * Rejected: all pairs, because the time is better spent on repeating the few. Rejected: the fastest of all without a
 * margin, which on a busy drive is random and differs from one probe to the next.
 */
#include "machine/tune.h"

#define MARGIN 1.1          /* a challenger must be this many times as fast */
#define N_TURNS 2           /* in which a challenger must be faster again */
#define DRAIN_MAX_NS 3e8    /* time in which a drive must finish a setting's bytes in flight */
#define N_TRIES 3           /* other sizes, and other numbers, than the default ones */

#define KIB(n) ((uint64_t)(n) << 10)

struct setting {
  uint64_t bytes;
  int n;
};

struct space {
  struct setting first;
  unsigned quarters; /* requests are this many quarters of the length */
  int n_kept;        /* windows of the number that are not in flight */
  uint64_t sizes[N_TRIES];
  int numbers[N_TRIES];
};

static const struct space windows = {{KIB(1536), 6}, 3, 1, {KIB(768), KIB(3072), KIB(6144)}, {4, 8, 12}};
static const struct space pieces = {{KIB(2048), 32}, 4, 0, {KIB(512), KIB(1024), KIB(4096)}, {8, 16, 64}};

struct tuning {
  const struct tune_drive *drive;
  const struct space *space;
  struct lade_error *error;
  int64_t end_ns;
  double rate; /* of the last measurement; before the first, the drive's known rate; 0: unknown */
};

/* True if there is time for @n_times measurements. */
static bool has_time(const struct tuning *t, const struct setting *setting, int n_times)
{
  if (t->rate <= 0)
    return true;
  const double drain_ns = (double)setting->bytes * setting->n / t->rate * 1e9;
  const double left_ns = (double)(t->end_ns - t->drive->now_ns(t->drive->user));
  return drain_ns <= DRAIN_MAX_NS && n_times * (TUNE_MEASURE_NS + drain_ns) < left_ns;
}

static int rate_get(struct tuning *t, const struct setting *setting, double *ret_rate)
{
  int status = t->drive->measure(t->drive->user, setting->bytes / 4 * t->space->quarters,
                                 setting->n - t->space->n_kept, t->error, ret_rate);
  if (!status)
    t->rate = *ret_rate;
  return status;
}

/* Replace @best, whose rate is *@rate, by @other if that is faster, and is so again when both are measured in turns. */
static int setting_try(struct tuning *t, struct setting other, struct setting *best, double *rate)
{
  double others = 0;
  other.n = (int)LADE_MIN((uint64_t)other.n, TUNE_BYTES_MAX / other.bytes);
  if (!has_time(t, &other, 1 + 2 * N_TURNS))
    return 0;
  int status = rate_get(t, &other, &others);
  for (int i = 0; i < N_TURNS && !status; i++) {
    if (others < MARGIN * *rate)
      return 0;
    status = rate_get(t, best, rate);
    if (!status)
      status = rate_get(t, &other, &others);
  }
  if (status || others < MARGIN * *rate)
    return status;
  *rate = others;
  *best = other;
  return 0;
}

static int setting_find(struct tuning *t, const struct space *space, struct setting *ret_setting)
{
  struct setting best = space->first;
  double rate = 0;
  t->space = space;
  int status = has_time(t, &best, 1) ? rate_get(t, &best, &rate) : 0;
  const bool is_measured = rate > 0;
  for (int i = 0; i < N_TRIES && is_measured && !status; i++)
    status = setting_try(t, (struct setting){space->sizes[i], best.n}, &best, &rate);
  for (int i = 0; i < N_TRIES && is_measured && !status; i++)
    status = setting_try(t, (struct setting){best.bytes, space->numbers[i]}, &best, &rate);
  *ret_setting = best;
  return status;
}

int tune_run(const struct tune_drive *drive, struct lade_error *error, struct lade_machine_store *ret_store)
{
  struct tuning t = {.drive = drive, .error = error, .end_ns = drive->now_ns(drive->user) + TUNE_LIMIT_NS,
                     .rate = ret_store->total_bytes_per_s};
  struct setting window, piece;
  int status = setting_find(&t, &windows, &window);
  if (!status)
    status = setting_find(&t, &pieces, &piece);
  if (status)
    return status;
  ret_store->window_bytes = window.bytes;
  ret_store->n_windows = window.n;
  ret_store->piece_bytes = piece.bytes;
  ret_store->n_pieces = piece.n;
  return 0;
}
