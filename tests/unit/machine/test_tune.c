/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner, on drives that are formulas and a clock that is a number: the values that it chooses, and when it stops.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "machine/tune.h"

/* Requests wait @latency_ns each, concurrently, and share @bytes_per_s; each costs the drive @each_ns in addition. */
struct fake {
  double bytes_per_s, latency_ns, each_ns;
  double luck; /* every fourth measurement, the second first, is faster by this factor; 0: none */
  int fails_at; /* from 1 */
  uint64_t first_bytes; /* of the requests in the first measurement, and their number */
  int first_n;
  int n_measured;
  int64_t now_ns;
};

static int fake_measure(void *user, uint64_t bytes, int n, struct lade_error *error, double *ret_rate)
{
  struct fake *f = user;
  f->first_bytes = f->n_measured ? f->first_bytes : bytes;
  f->first_n = f->n_measured ? f->first_n : n;
  if (++f->n_measured == f->fails_at)
    return lade_error_set(error, -EIO, "the fake drive failed");
  double busy_ns = (double)n * ((double)bytes / f->bytes_per_s * 1e9 + f->each_ns);
  double ns = LADE_MAX(busy_ns, f->latency_ns);
  f->now_ns += TUNE_MEASURE_NS + (int64_t)ns;
  *ret_rate = (double)n * (double)bytes / ns * 1e9 * (f->luck > 0 && f->n_measured % 4 == 2 ? f->luck : 1);
  return 0;
}

static int64_t fake_now_ns(void *user)
{
  return ((struct fake *)user)->now_ns;
}

static struct lade_machine_store tuned(struct fake *f)
{
  struct lade_machine_store store = {.read_bytes_per_s = 77};
  const struct tune_drive drive = {fake_measure, fake_now_ns, f};
  assert_int_equal(tune_run(&drive, NULL, &store), 0);
  assert_true(store.read_bytes_per_s == 77);
  assert_true(f->now_ns < INT64_C(5000000000));
  return store;
}

static void defaults_stay(const struct lade_machine_store *store)
{
  assert_int_equal(store->piece_bytes, 2 << 20);
  assert_int_equal(store->n_pieces, 32);
  assert_int_equal(store->window_bytes, 3 << 19);
  assert_int_equal(store->n_windows, 6);
}

static void a_drive_without_a_preference_keeps_the_defaults(void **state)
{
  struct fake f = {.bytes_per_s = 3e9, .latency_ns = 100000};
  struct lade_machine_store store = tuned(&f);
  defaults_stay(&store);
  assert_true(f.now_ns < INT64_C(1500000000));
  assert_true(f.first_bytes == 9 << 17 && f.first_n == 5); /* of windows, with as many in flight as in a run */
}

static void a_drive_that_counts_requests_gets_longer_ones(void **state)
{
  struct fake f = {.bytes_per_s = 5e9, .each_ns = 300000}; /* a drive with a limit of requests per second */
  struct lade_machine_store store = tuned(&f);
  assert_int_equal(store.window_bytes, 3 * (2 << 20));
  assert_int_equal(store.piece_bytes, 4 << 20);
  assert_int_equal(store.n_pieces, 16); /* as many as may be in flight */
}

static void a_drive_that_is_far_away_gets_more_at_once(void **state)
{
  struct fake f = {.bytes_per_s = 50e9, .latency_ns = 20e6};
  struct lade_machine_store store = tuned(&f);
  assert_true(store.window_bytes == 6 << 20 && store.n_windows == 10);
  assert_true(store.piece_bytes * (uint64_t)store.n_pieces == TUNE_BYTES_MAX); /* the maximum of bytes already */
}

static void luck_that_does_not_last_changes_nothing(void **state)
{
  struct fake f = {.bytes_per_s = 3e9, .luck = 2};
  struct lade_machine_store store = tuned(&f); /* each lucky challenger is measured again, without luck */
  defaults_stay(&store);
}

static void a_slow_drive_is_not_asked_for_much(void **state)
{
  struct fake f = {.bytes_per_s = 8e6, .latency_ns = 1e7};
  struct lade_machine_store store = tuned(&f);
  defaults_stay(&store);
  assert_int_equal(f.n_measured, 1);
}

static void a_drive_that_is_known_as_slow_is_not_asked_at_all(void **state)
{
  struct fake f = {.bytes_per_s = 1e6};
  struct lade_machine_store store = {.total_bytes_per_s = 1e6};
  assert_int_equal(tune_run(&(struct tune_drive){fake_measure, fake_now_ns, &f}, NULL, &store), 0);
  defaults_stay(&store);
  assert_int_equal(f.n_measured, 0);
}

static void a_failure_ends_it_and_changes_nothing(void **state)
{
  for (int at = 1; at < 30; at++) {
    struct fake f = {.bytes_per_s = 5e9, .each_ns = 300000, .fails_at = at};
    struct lade_machine_store store = {.n_windows = 5};
    struct lade_error error = {0};
    int status = tune_run(&(struct tune_drive){fake_measure, fake_now_ns, &f}, &error, &store);
    if (f.n_measured < at) { /* already measured before */
      assert_int_equal(status, 0);
      return;
    }
    assert_int_equal(status, -EIO);
    assert_string_equal(error.text, "the fake drive failed");
    assert_true(store.n_windows == 5 && !store.piece_bytes);
  }
  fail_msg("it never ends");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_drive_without_a_preference_keeps_the_defaults),
      cmocka_unit_test(a_drive_that_counts_requests_gets_longer_ones),
      cmocka_unit_test(a_drive_that_is_far_away_gets_more_at_once),
      cmocka_unit_test(luck_that_does_not_last_changes_nothing),
      cmocka_unit_test(a_slow_drive_is_not_asked_for_much),
      cmocka_unit_test(a_drive_that_is_known_as_slow_is_not_asked_at_all),
      cmocka_unit_test(a_failure_ends_it_and_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
