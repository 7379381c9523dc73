/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA's libraries, opened at run time. They are found by soname, as the loader finds them (LD_LIBRARY_PATH), or in a
 * CUDA toolkit (CUDA_HOME, CUDA_PATH, /usr/local/cuda). They are never unloaded (RTLD_NODELETE), because their threads
 * and exit handlers stay.
 */
#ifndef LADE_LIBRARY_H
#define LADE_LIBRARY_H

#include <stddef.h>

/* A function's name, and the pointer that receives its address: POSIX allows an object pointer to hold it. */
struct lade_symbol {
  const char *name;
  void **at;
};

/*
 * Open @soname and find the @n_wanted functions, with NULL for each missing one. @ret_missing gets the first missing
 * name, or NULL. Return the handle for dlclose. Return NULL, with nothing written and the reason in dlerror, if the
 * library cannot be opened. Any thread. Blocks while the library is read.
 */
void *lade_library_open(const char *soname, const struct lade_symbol *wanted, size_t n_wanted,
                        const char **ret_missing);

#endif
