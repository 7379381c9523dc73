/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open CUDA's libraries at run time. The search continues after a missing function and finds all the others. Callers
 * report an old library by its version rather than by its missing functions. The function that returns the version may
 * be anywhere in the list.
 */
#include "base/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

#define HOW (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

/*
 * Open @soname as the loader finds it, else from a CUDA toolkit outside the loader's paths. dlerror holds the loader's
 * error.
 */
static void *library_find(const char *soname)
{
  const char *const toolkits[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
  void *library = dlopen(soname, HOW);
  for (size_t i = 0; i < LADE_COUNT(toolkits) && !library; i++) {
    char path[PATH_MAX];
    if (toolkits[i] && snprintf(path, sizeof(path), "%s/lib64/%s", toolkits[i], soname) < (int)sizeof(path))
      library = dlopen(path, HOW);
  }
  return library ? library : dlopen(soname, HOW);
}

void *lade_library_open(const char *soname, const struct lade_symbol *wanted, size_t n_wanted,
                        const char **ret_missing)
{
  void *library = library_find(soname);
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
