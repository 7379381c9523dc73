/* SPDX-License-Identifier: Apache-2.0 */
/* A slab has the exact size, is zero, aligned, resident and writable to its last byte, wherever it was asked to be. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "offload/staging.h"

#define HUGE_BYTES (2u << 20)

static bool is_resident(const struct lade_staging *staging, uint64_t at)
{
  unsigned char page = 0;
  uint64_t base = (uint64_t)sysconf(_SC_PAGESIZE);
  assert_int_equal(mincore(staging->data + (at & ~(base - 1)), base, &page), 0);
  return page & 1;
}

static void slab_check(uint64_t bytes, int numa_node)
{
  struct lade_staging staging;
  uint64_t base = (uint64_t)sysconf(_SC_PAGESIZE);
  assert_int_equal(lade_staging_init(&staging, bytes, numa_node, NULL), 0);
  assert_int_equal(staging.bytes, lade_align_up(bytes, base));
  assert_int_equal((uintptr_t)staging.data % HUGE_BYTES, 0);
  for (uint64_t at = 0; at < staging.bytes; at += base)
    assert_true(is_resident(&staging, at));
  for (uint64_t i = 0; i < staging.bytes; i++)
    assert_int_equal(staging.data[i], 0);
  memset(staging.data, 1, staging.bytes);
  lade_staging_finish(&staging);
  assert_null(staging.data);
  lade_staging_finish(&staging);
}

static void slabs_have_the_exact_size_and_are_resident(void **state)
{
  const uint64_t sizes[] = {1, 4096, HUGE_BYTES - 1, HUGE_BYTES, HUGE_BYTES + 1, 3 * HUGE_BYTES + 5 * 4096};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++)
    slab_check(sizes[i], -1);
}

static void a_numa_node_is_a_wish(void **state)
{
  slab_check(HUGE_BYTES + 4096, 0);
  slab_check(HUGE_BYTES + 4096, 12345);
}

static void what_cannot_be_had_is_an_error_and_touches_nothing(void **state)
{
  const struct lade_staging before = {.bytes = 42};
  struct lade_staging staging = before;
  struct lade_faults faults;
  assert_int_equal(lade_staging_init(&staging, 0, -1, NULL), -EINVAL);
  assert_int_equal(lade_staging_init(&staging, UINT64_MAX, -1, NULL), -ENOMEM);
  assert_int_equal(lade_staging_init(&staging, 1ull << 60, -1, NULL), -ENOMEM);
  lade_faults_init(&faults);
  lade_faults_arm(&faults, LADE_FAULT_RESERVE, 1, true, -ENOMEM);
  assert_int_equal(lade_staging_init(&staging, HUGE_BYTES, -1, &faults), -ENOMEM);
  lade_faults_arm(&faults, LADE_FAULT_MAP, 1, true, -ENOMEM);
  assert_int_equal(lade_staging_init(&staging, HUGE_BYTES, -1, &faults), -ENOMEM);
  assert_memory_equal(&staging, &before, sizeof(staging));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slabs_have_the_exact_size_and_are_resident),
      cmocka_unit_test(a_numa_node_is_a_wish),
      cmocka_unit_test(what_cannot_be_had_is_an_error_and_touches_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
