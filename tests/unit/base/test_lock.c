/* SPDX-License-Identifier: Apache-2.0 */
/* One thread at a time holds the lock, the next holder sees its writes, and no sleeping thread is forgotten. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "base/lock.h"

enum { N_THREADS = 8, N_TIMES = 20000 };

struct lock_fixture {
  struct lade_lock lock;
  int n_inside, n_collisions, n_times;
  int sleep_every; /* sections in which the holder sleeps, so that other threads must; 0: none */
};

static void *sections_run(void *arg)
{
  struct lock_fixture *fixture = arg;
  for (int i = 0; i < fixture->n_times; i++) {
    lade_lock_lock(&fixture->lock);
    fixture->n_collisions += fixture->n_inside++ != 0;
    if (fixture->sleep_every && i % fixture->sleep_every == 0)
      nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    fixture->n_inside--;
    lade_lock_unlock(&fixture->lock);
  }
  return NULL;
}

/* Run the threads. A forgotten thread is never joined. */
static void program_fixture_run(int n_times, int sleep_every)
{
  struct lock_fixture fixture = {.n_times = n_times, .sleep_every = sleep_every};
  pthread_t threads[N_THREADS];
  for (int i = 0; i < N_THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, sections_run, &fixture), 0);
  for (int i = 0; i < N_THREADS; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(fixture.n_collisions, 0);
  assert_int_equal(fixture.n_inside, 0);
  assert_int_equal(fixture.lock.state, LADE_LOCK_FREE);
}

static void sections_exclude_each_other(void **state)
{
  program_fixture_run(N_TIMES, 0);
}

static void a_lock_that_is_taken_is_not_taken_again(void **state)
{
  struct lade_lock lock = {0};
  assert_true(lade_lock_try(&lock));
  assert_false(lade_lock_try(&lock));
  lade_lock_unlock(&lock);
  assert_true(lade_lock_try(&lock));
}

static void sleepers_are_woken(void **state)
{
  program_fixture_run(400, 7);
  program_fixture_run(100, 1);
}

/* Unlock as a thread that has not seen another one about to sleep: no thread wakes the sleeper. */
static void a_sleeper_that_was_overlooked_wakes_by_itself(void **state)
{
  struct lock_fixture fixture = {.lock = {LADE_LOCK_HELD}, .n_times = 1};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, sections_run, &fixture), 0);
  while (atomic_load(&fixture.lock.state) != LADE_LOCK_AWAITED)
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL); /* asleep by now */
  atomic_store(&fixture.lock.state, LADE_LOCK_FREE);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(fixture.n_inside, 0);
  assert_int_equal(fixture.lock.state, LADE_LOCK_FREE);
}

struct gate {
  struct lade_lock lock;
  _Atomic uint32_t n_opened;
  bool is_open;
};

static void *gate_pass(void *arg)
{
  struct gate *gate = arg;
  lade_lock_lock(&gate->lock);
  while (!gate->is_open)
    lade_lock_sleep(&gate->lock, &gate->n_opened);
  lade_lock_unlock(&gate->lock);
  return NULL;
}

static void all_sleepers_on_a_word_are_woken(void **state)
{
  for (int round = 0; round < 50; round++) {
    struct gate gate = {0};
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
      assert_int_equal(pthread_create(&threads[i], NULL, gate_pass, &gate), 0);
    if (round % 2)
      nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    lade_lock_lock(&gate.lock);
    gate.is_open = true;
    lade_lock_wake_all(&gate.n_opened);
    lade_lock_unlock(&gate.lock);
    for (int i = 0; i < N_THREADS; i++)
      assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_lock_that_is_taken_is_not_taken_again),
      cmocka_unit_test(sections_exclude_each_other),
      cmocka_unit_test(sleepers_are_woken),
      cmocka_unit_test(a_sleeper_that_was_overlooked_wakes_by_itself),
      cmocka_unit_test(all_sleepers_on_a_word_are_woken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
