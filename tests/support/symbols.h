/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a library that a test opens at run time, as programs open the driver. */
#ifndef LADE_TESTS_SYMBOLS_H
#define LADE_TESTS_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

/* A function's name, and the function pointer to set. */
struct symbol {
  const char *name;
  void *at;
};

/*
 * Open the library, for good, and fill in all @n symbols. False if the library or one of them is missing; some may be
 * filled in then.
 */
bool symbols_find(const char *library_name, const struct symbol *symbols, size_t n);

#endif
