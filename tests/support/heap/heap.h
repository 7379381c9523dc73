/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts of the heap of the whole process, libraries included: heap.c replaces the C library's allocator. A sanitizer
 * replaces it itself, and then heap_stub.c counts nothing.
 */
#ifndef LADE_TESTS_HEAP_H
#define LADE_TESTS_HEAP_H

#include <stdbool.h>
#include <stdint.h>

bool heap_is_counted(void); /* false if this build does not count (heap_stub.c) */
int64_t heap_n_calls(void);  /* calls so far, of any thread */
int64_t heap_n_blocks(void); /* live blocks */

#endif
