/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that allocate and free at random: the sums are those of the memory held, and the budget is never exceeded. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "preload/ledger.h"

enum { N_THREADS = 4, N_TIMES = 4000, N_KEYS = 64, BUDGET_BYTES = 50000 };

struct worker {
  lade_ledger *ledger;
  unsigned seed;
  uint64_t sizes[N_KEYS]; /* 0: not held */
};

static void *worker_run(void *arg)
{
  struct worker *worker = arg;
  for (int i = 0; i < N_TIMES; i++) {
    struct lade_holding *holding = NULL;
    int key = rand_r(&worker->seed) % N_KEYS;
    uint64_t own = (uint64_t)(uintptr_t)&worker->sizes[key], bytes = 1 + (uint64_t)rand_r(&worker->seed) % 1000;
    if (worker->sizes[key]) {
      lade_ledger_drop(worker->ledger, lade_ledger_take(worker->ledger, LADE_LEDGER_ADDRESSES, own));
      worker->sizes[key] = 0;
    } else if (lade_ledger_charge(worker->ledger, 0, LADE_LEDGER_LINEAR, bytes, NULL, &holding) == 0) {
      lade_ledger_settle(worker->ledger, holding, LADE_LEDGER_ADDRESSES, own, bytes);
      worker->sizes[key] = bytes;
    }
  }
  return NULL;
}

static void threads_keep_the_sums_and_the_budget(void **state)
{
  static struct worker workers[N_THREADS];
  pthread_t threads[N_THREADS];
  static struct lade_ledger_record record;
  const struct lade_ledger_budget budget = {.bytes = BUDGET_BYTES};
  lade_ledger *ledger = NULL;
  uint64_t sum = 0, n = 0, free_bytes = UINT64_MAX, total_bytes = UINT64_MAX;
  assert_int_equal(lade_ledger_create(&record, &budget, &ledger), 0);
  lade_ledger_device(ledger, 0, 1 << 20);
  for (int i = 0; i < N_THREADS; i++) {
    workers[i] = (struct worker){.ledger = ledger, .seed = (unsigned)i + 1};
    assert_int_equal(pthread_create(&threads[i], NULL, worker_run, &workers[i]), 0);
  }
  for (int i = 0; i < N_THREADS; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < N_THREADS * N_KEYS; i++) {
    sum += workers[i / N_KEYS].sizes[i % N_KEYS];
    n += workers[i / N_KEYS].sizes[i % N_KEYS] != 0;
  }
  const struct lade_ledger_account *account = &record.accounts[0];
  assert_int_equal(account->bounded.bytes, sum);
  assert_int_equal(account->bounded.n_taken - account->bounded.n_given, n);
  assert_true(account->bounded.peak_bytes <= BUDGET_BYTES && account->n_refused > 0);
  lade_ledger_bound(ledger, 0, &free_bytes, &total_bytes);
  assert_int_equal(free_bytes, BUDGET_BYTES - sum);
  lade_ledger_destroy(ledger);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(threads_keep_the_sums_and_the_budget)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
