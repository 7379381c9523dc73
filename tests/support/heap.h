/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap of the whole process, libraries included, counted: heap.c stands in front of the C library's. A sanitizer
 * stands there itself, and then heap_stub.c counts nothing.
 */
#ifndef LADE_TESTS_HEAP_H
#define LADE_TESTS_HEAP_H

#include <stdbool.h>
#include <stdint.h>

bool heap_is_counted(void);
int64_t heap_n_calls(void);  /* so far, of any thread */
int64_t heap_n_blocks(void); /* that live */

#endif
