/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that fail on demand. A test may be linked with --wrap for malloc, calloc and realloc (wrap_allocation in
 * tests/unit/meson.build). All calls of the library and of the test itself then come here. One thread.
 */
#ifndef LADE_TESTS_ALLOCATIONS_H
#define LADE_TESTS_ALLOCATIONS_H

#include <stddef.h>

/* -1: never fail; n: the n-th call from now on fails, and all after it (and is 0 from then on). */
extern int allocations_left;

/*
 * Blocks allocated and not freed, if --wrap=free is used too; blocks that libraries allocate and Lade frees are counted
 * wrongly.
 */
extern int allocations_live;

/* Allocate, for a library that takes an allocator. */
void *__wrap_malloc(size_t bytes);

#endif
