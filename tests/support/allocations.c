/* SPDX-License-Identifier: Apache-2.0 */
/* In front of the C library's allocator; the linker's --wrap sends calls here. */
#include "tests/support/allocations.h"

#include <stdbool.h>

int allocations_left = -1;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

static bool allocation_fails(void)
{
  if (allocations_left > 0)
    allocations_left--;
  return allocations_left == 0;
}

void *__wrap_malloc(size_t bytes)
{
  return allocation_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
  return allocation_fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
  return allocation_fails() ? NULL : __real_realloc(memory, bytes);
}
