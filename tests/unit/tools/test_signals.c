/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank records that a signal ended it, however early the signal came, so that the launcher does not count it as lost.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tools/cli/signals.h"

static void a_signal_is_marked_though_it_came_before_the_mark(void **state)
{
  static volatile sig_atomic_t marked;
  signals_init();
  assert_int_equal(raise(SIGTERM), 0);
  assert_int_equal(marked, 0);
  signals_mark(&marked);
  assert_int_equal(marked, SIGTERM);
  assert_int_equal(signals_get(), SIGTERM);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_signal_is_marked_though_it_came_before_the_mark)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
