/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA's libraries that are opened at run time: found by soname, as the loader finds them, which LD_LIBRARY_PATH
 * directs, or where toolkits are (CUDA_HOME, CUDA_PATH, /usr/local/cuda). They are never unloaded
 * (RTLD_NODELETE), since their threads and exit handlers stay.
 */
#ifndef LADE_LIBRARY_H
#define LADE_LIBRARY_H

#include <stddef.h>

/* A function's name, and where its address goes: POSIX lets an object pointer carry it. */
struct lade_symbol {
  const char *name;
  void **at;
};

/*
 * Open @soname and find the @n_wanted functions, with NULL for what it has not; @ret_missing gets the first such name,
 * or NULL. Returns what dlclose takes, or NULL, with nothing written and dlerror to say why. Any thread. Blocks while
 * the library is read.
 */
void *lade_library_open(const char *soname, const struct lade_symbol *wanted, size_t n_wanted,
                        const char **ret_missing);

#endif
