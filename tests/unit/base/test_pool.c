/* SPDX-License-Identifier: Apache-2.0 */
/* Every task runs exactly once, thread numbers are unique within a call, and callers do not interfere. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/pool.h"

#define N_TASKS 257

struct record {
  atomic_int runs[N_TASKS];
  atomic_int inside[4]; /* by thread number */
  atomic_int collisions;
};

static void task_record(void *arg, int i_task, int i_thread)
{
  struct record *record = arg;
  if (atomic_fetch_add(&record->inside[i_thread], 1) != 0)
    atomic_fetch_add(&record->collisions, 1);
  atomic_fetch_add(&record->runs[i_task], 1);
  atomic_fetch_sub(&record->inside[i_thread], 1);
}

static void record_run(lade_pool *pool)
{
  struct record record;
  memset(&record, 0, sizeof(record));
  lade_pool_run(pool, task_record, &record, N_TASKS);
  assert_int_equal(record.collisions, 0);
  for (int i = 0; i < N_TASKS; i++)
    assert_int_equal(record.runs[i], 1);
}

static void every_task_runs_once(void **state)
{
  lade_pool *pool = NULL;
  assert_int_equal(lade_pool_create(4, &pool), 0);
  for (int i = 0; i < 200; i++)
    record_run(pool);
  lade_pool_destroy(pool);
  record_run(NULL);
}

static void *caller_main(void *arg)
{
  for (int i = 0; i < 200; i++)
    record_run(arg);
  return NULL;
}

static void several_callers_share_one_pool(void **state)
{
  lade_pool *pool = NULL;
  pthread_t callers[3];
  assert_int_equal(lade_pool_create(3, &pool), 0);
  for (int i = 0; i < 3; i++)
    assert_int_equal(pthread_create(&callers[i], NULL, caller_main, pool), 0);
  for (int i = 0; i < 3; i++)
    pthread_join(callers[i], NULL);
  lade_pool_destroy(pool);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_task_runs_once),
      cmocka_unit_test(several_callers_share_one_pool),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
