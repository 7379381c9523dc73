/* SPDX-License-Identifier: Apache-2.0 */
/* Counters over the C library's heap, called by its internal names, which glibc has kept for decades. */
#include "tests/support/heap/heap.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

static _Atomic int64_t n_calls, n_blocks;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *at, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *at);

#define HEAP_FACE __attribute__((visibility("default")))

HEAP_FACE void *memalign(size_t align, size_t bytes);

bool heap_is_counted(void)
{
  return true;
}

int64_t heap_n_calls(void)
{
  return n_calls;
}

int64_t heap_n_blocks(void)
{
  return n_blocks;
}

static void *block_count(void *block)
{
  n_calls++;
  n_blocks += block != NULL;
  return block;
}

HEAP_FACE void *malloc(size_t bytes)
{
  return block_count(__libc_malloc(bytes));
}

HEAP_FACE void *calloc(size_t n, size_t bytes)
{
  return block_count(__libc_calloc(n, bytes));
}

HEAP_FACE void *realloc(void *at, size_t bytes)
{
  void *block = __libc_realloc(at, bytes);
  n_calls++;
  n_blocks += block && !at;
  n_blocks -= !block && at && !bytes; /* freed by realloc */
  return block;
}

HEAP_FACE void *memalign(size_t align, size_t bytes)
{
  return block_count(__libc_memalign(align, bytes));
}

HEAP_FACE void *aligned_alloc(size_t align, size_t bytes)
{
  return block_count(__libc_memalign(align, bytes));
}

HEAP_FACE int posix_memalign(void **ret, size_t align, size_t bytes)
{
  void *block = block_count(__libc_memalign(align, bytes));
  if (!block)
    return ENOMEM;
  *ret = block;
  return 0;
}

HEAP_FACE void free(void *at)
{
  n_calls++;
  n_blocks -= at != NULL;
  __libc_free(at);
}
