/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "alloc/pack.h"
#include "base/base.h"

static void test_stacked_items_reach_the_lower_bound(void **state)
{
  const struct lade_pack_item items[] = {{0, 4, 64, 64, -1}, {0, 2, 128, 64, -1}, {2, 4, 128, 64, -1}};
  uint64_t offsets[3];
  struct lade_pack_result result;
  assert_int_equal(lade_pack(items, 3, NULL, offsets, &result, NULL), 0);
  assert_int_equal(result.peak_bytes, 192);
  assert_true(result.is_optimal);
  assert_int_equal(lade_pack_check(items, 3, offsets, 192, NULL), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stacked_items_reach_the_lower_bound),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
