/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function that can be found is, also behind one that is missing: an old library is to be known by its version
 * before by what it lacks, and the function that tells it may stand anywhere.
 */
#include "base/library.h"

#include <dlfcn.h>

void *lade_library_open(const char *soname, const struct lade_symbol *wanted, size_t n_wanted,
                        const char **ret_missing)
{
  void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const char *missing = NULL;
  if (!library)
    return NULL;
  for (size_t i = 0; i < n_wanted; i++) {
    *wanted[i].at = dlsym(library, wanted[i].name);
    missing = *wanted[i].at || missing ? missing : wanted[i].name;
  }
  *ret_missing = missing;
  return library;
}
