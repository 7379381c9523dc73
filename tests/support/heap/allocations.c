/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers of the C library's allocator, called through the linker's --wrap. */
#include "tests/support/heap/allocations.h"

#include <stdbool.h>

int allocations_left = -1, allocations_live;

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

static void *counted(void *memory)
{
  allocations_live += memory != NULL;
  return memory;
}

void *__wrap_malloc(size_t bytes)
{
  return allocation_fails() ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t bytes)
{
  return allocation_fails() ? NULL : counted(__real_calloc(n, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes)
{
  if (allocation_fails())
    return NULL;
  return memory ? __real_realloc(memory, bytes) : counted(__real_realloc(NULL, bytes));
}
