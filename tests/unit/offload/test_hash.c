/* SPDX-License-Identifier: Apache-2.0 */
/* Every level's hash equals the XXH3 of xxHash's own library, at every length, alignment and seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <xxhash.h>

#include "base/base.h"
#include "offload/hash.h"

#define BYTES (70u << 10)

static void level_check(const char *name, store_hash_fn *hash, const unsigned char *data)
{
  const uint64_t seeds[] = {0, 1, UINT64_MAX, UINT64_C(0x9E3779B97F4A7C15)};
  for (size_t i = 0; i < LADE_COUNT(seeds); i++) {
    for (size_t n = 0; n <= BYTES - 64; n = n < 1100 ? n + 1 : n + 4099) {
      const unsigned char *at = data + n % 61;
      if (hash(at, n, seeds[i]) != XXH3_64bits_withSeed(at, n, seeds[i]))
        fail_msg("%s: %zu bytes with seed %llx differ", name, n, (unsigned long long)seeds[i]);
    }
  }
}

static void every_level_has_the_same_value(void **state)
{
  unsigned char *data = malloc(BYTES);
  struct lade_cpu cpu = lade_cpu_get(), none = {0};
  uint32_t draw = 1;
  assert_non_null(data);
  for (size_t i = 0; i < BYTES; i++)
    data[i] = (unsigned char)((draw = draw * 1664525u + 1013904223u) >> 24);
  level_check("plain", store_hash_choose(&none), data);
  level_check("the fastest", store_hash_choose(&cpu), data);
  cpu.has_avx512 = false;
  level_check("below AVX-512", store_hash_choose(&cpu), data);
  free(data);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_level_has_the_same_value)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
