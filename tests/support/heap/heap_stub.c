/* SPDX-License-Identifier: Apache-2.0 */
/* Stub for builds in which the heap cannot be replaced. */
#include "tests/support/heap/heap.h"

bool heap_is_counted(void)
{
  return false;
}

int64_t heap_n_calls(void)
{
  return 0;
}

int64_t heap_n_blocks(void)
{
  return 0;
}
