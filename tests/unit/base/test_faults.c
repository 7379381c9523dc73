/* SPDX-License-Identifier: Apache-2.0 */
/* Exactly the armed call fails, in whichever thread, and counting goes on. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/faults.h"

static void only_the_armed_call_fails(void **state)
{
  struct lade_faults faults;
  lade_faults_init(&faults);
  for (int i = 0; i < 10; i++)
    assert_int_equal(lade_fault(&faults, LADE_FAULT_MAP), 0);
  assert_int_equal(lade_faults_count(&faults, LADE_FAULT_MAP), 10);
  lade_faults_arm(&faults, LADE_FAULT_MAP, 3, false, -EIO);
  for (int i = 1; i <= 6; i++) {
    assert_int_equal(lade_fault(&faults, LADE_FAULT_UNMAP), 0);
    assert_int_equal(lade_fault(&faults, LADE_FAULT_MAP), i == 3 ? -EIO : 0);
  }
  assert_int_equal(lade_faults_count(&faults, LADE_FAULT_MAP), 6);
  assert_int_equal(lade_faults_count(&faults, LADE_FAULT_ANY), 12);
  assert_int_equal(lade_faults_injected(&faults), 1);
}

static void for_good_means_from_then_on(void **state)
{
  struct lade_faults faults;
  lade_faults_arm(&faults, LADE_FAULT_ANY, 3, true, -ENOSPC);
  assert_int_equal(lade_fault(&faults, LADE_FAULT_FILE_OPEN), 0);
  assert_int_equal(lade_fault(&faults, LADE_FAULT_FILE_WRITE), 0);
  assert_int_equal(lade_fault(&faults, LADE_FAULT_FILE_WRITE), -ENOSPC);
  assert_int_equal(lade_fault(&faults, LADE_FAULT_FILE_SYNC), -ENOSPC);
  assert_null(lade_fault_calloc(&faults, 1, 8));
  assert_int_equal(lade_faults_injected(&faults), 3);
}

static void no_faults_cost_nothing_and_fail_nothing(void **state)
{
  assert_int_equal(lade_fault(NULL, LADE_FAULT_HEAP), 0);
  void *block = lade_fault_calloc(NULL, 4, 4);
  assert_non_null(block);
  free(block);
}

static void every_point_has_a_name(void **state)
{
  for (int i = 0; i <= LADE_FAULT_ANY; i++)
    assert_non_null(lade_fault_name((enum lade_fault_point)i));
}

static void *caller_main(void *arg)
{
  intptr_t n_failed = 0;
  for (int i = 0; i < 5000; i++)
    n_failed += lade_fault(arg, LADE_FAULT_RING_SUBMIT) != 0;
  return (void *)n_failed;
}

static void exactly_one_of_many_threads_meets_the_fault(void **state)
{
  struct lade_faults faults;
  pthread_t threads[4];
  intptr_t n_failed = 0;
  lade_faults_arm(&faults, LADE_FAULT_RING_SUBMIT, 9999, false, -EIO);
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, caller_main, &faults), 0);
  for (int i = 0; i < 4; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    n_failed += (intptr_t)failed;
  }
  assert_int_equal(n_failed, 1);
  assert_int_equal(lade_faults_count(&faults, LADE_FAULT_RING_SUBMIT), 20000);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(only_the_armed_call_fails),
      cmocka_unit_test(for_good_means_from_then_on),
      cmocka_unit_test(no_faults_cost_nothing_and_fail_nothing),
      cmocka_unit_test(every_point_has_a_name),
      cmocka_unit_test(exactly_one_of_many_threads_meets_the_fault),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
