/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page that the kernel clears in a child. Rejected: getpid at each use, which is a system call; and pthread_atfork,
 * which would keep a pointer into a library that may be unloaded.
 */
#include "base/fork_guard.h"

#include <stddef.h>
#include <sys/mman.h>

#define ALIVE_BYTES 4096

_Atomic int *lade_fork_guard_create(void)
{
  _Atomic int *page = mmap(NULL, ALIVE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return NULL;
  madvise((void *)page, ALIVE_BYTES, MADV_WIPEONFORK); /* best effort: Linux 4.14 */
  atomic_store(page, 1);
  return page;
}

void lade_fork_guard_destroy(_Atomic int *alive)
{
  if (alive)
    munmap((void *)alive, ALIVE_BYTES);
}
