/* SPDX-License-Identifier: Apache-2.0 */
/* Where nothing can stand in front of the heap. */
#include "tests/support/heap.h"

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
