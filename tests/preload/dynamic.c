/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other routes: dlopen and dlsym, by several names of the driver, and both forms of the driver's own lookup, which
 * the CUDA runtime uses.
 *
 *   soname | bare | path:FILE      dlsym in dlopen(libcuda.so.1 | libcuda.so | FILE)
 *   deep | space | space:FILE      the same, bound to itself first; in a namespace of its own
 *   lookup | lookup_old            cuGetProcAddress_v2, cuGetProcAddress
 *   per_thread                     cuGetProcAddress_v2, for the per-thread default stream
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "holder.h"
#include "preload/hooks.h"

#define VERSION 13000
#define CONTEXT_VERSION 11030 /* the last whose cuCtxCreate has three parameters */
#define PER_THREAD_STREAM 2

static void *library;
static const char *lookup;
static uint64_t lookup_flags;

int route_choose(const char *route)
{
  const char *file = "libcuda.so.1";
  const bool is_space = strncmp(route, "space", 5) == 0;
  if (strncmp(route, "path:", 5) == 0)
    file = route + 5;
  else if (strncmp(route, "space:", 6) == 0)
    file = route + 6;
  else if (strcmp(route, "bare") == 0)
    file = "libcuda.so";
  else if (strcmp(route, "lookup_old") == 0)
    lookup = "cuGetProcAddress";
  else if (strcmp(route, "lookup") == 0 || strcmp(route, "per_thread") == 0)
    lookup = "cuGetProcAddress_v2";
  else if (strcmp(route, "soname") != 0 && strcmp(route, "deep") != 0 && !is_space)
    return -1;
  lookup_flags = strcmp(route, "per_thread") == 0 ? PER_THREAD_STREAM : 0;
  library = is_space ? dlmopen(LM_ID_NEWLM, file, RTLD_NOW)
                     : dlopen(file, RTLD_NOW | (strcmp(route, "deep") == 0 ? RTLD_DEEPBIND : 0));
  return library ? 0 : -1;
}

void *route_find(const char *symbol)
{
  char name[96];
  void *function = NULL;
  if (!lookup)
    return dlsym(library, symbol);
  snprintf(name, sizeof(name), "%s", symbol);
  char *form = strstr(name, "_v2");
  if (form)
    *form = 0;
  const int version = strcmp(name, "cuCtxCreate") == 0 ? CONTEXT_VERSION : VERSION;
  if (strcmp(lookup, "cuGetProcAddress") == 0) {
    __typeof__(cuGetProcAddress) *find = (__typeof__(cuGetProcAddress) *)dlsym(library, lookup);
    return find(name, &function, version, lookup_flags) ? NULL : function;
  }
  int status = 0;
  __typeof__(cuGetProcAddress_v2) *find = (__typeof__(cuGetProcAddress_v2) *)dlsym(library, lookup);
  if (find("cuGetProcAddress", &function, VERSION, lookup_flags, &status))
    return NULL; /* the runtime looks up the lookup itself */
  find = (__typeof__(cuGetProcAddress_v2) *)function;
  return find(name, &function, version, lookup_flags, &status) ? NULL : function;
}
