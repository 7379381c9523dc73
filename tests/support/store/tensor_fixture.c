/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/store/tensor_fixture.h"

lade_tensor_store *tensor_fixture_open(struct lade_tensor_store_params params)
{
  struct lade_error error = {0};
  lade_tensor_store *store = NULL;
  params.struct_size = sizeof(params);
  if (lade_tensor_store_open(&params, &error, &store))
    fail_msg("%s", error.text);
  return store;
}

void tensor_fixture_fill(unsigned char *data, uint64_t bytes, uint64_t seed)
{
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (uint64_t i = 0; i < bytes; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = (unsigned char)(state >> 56);
  }
}
