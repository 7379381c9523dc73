/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a library that a test opens at run time; see symbols.h. */
#include "symbols.h"

#include <dlfcn.h>
#include <string.h>

bool symbols_find(const char *library_name, const struct symbol *symbols, size_t n)
{
  void *library = dlopen(library_name, RTLD_NOW);
  bool is_whole = library != NULL;
  for (size_t i = 0; i < n && is_whole; i++) {
    void *function = dlsym(library, symbols[i].name);
    /* Copied as bytes, because C does not convert between pointers to objects and to functions. */
    memcpy(symbols[i].at, &function, sizeof(function));
    is_whole = function != NULL;
  }
  return is_whole;
}
