/* SPDX-License-Identifier: Apache-2.0 */
/* Open NCCL, and report if it is absent, too old, or lacks a function. */
#include <dlfcn.h>
#include <errno.h>

#include "base/base.h"
#include "base/library.h"
#include "parallel/nccl_library.h"

/* Check the version. NCCL's version number has two forms; every accepted version uses the later one. */
static int version_check(struct nccl_library *nccl, struct lade_error *error)
{
  if (!nccl->ncclGetVersion || nccl->ncclGetVersion(&nccl->version))
    return lade_error_set(error, -ENOSYS, "libnccl.so.2 does not tell its version; it is no NCCL");
  if (nccl->version < LADE_NCCL_MIN_VERSION)
    return lade_error_set(error, -ENOSYS, "libnccl.so.2 is of version code %d and Lade needs 2.%d; install a newer "
                          "NCCL", nccl->version, LADE_NCCL_MIN_VERSION / 100 % 100);
  return 0;
}

/* Find both functions that register memory, if the version has them. */
static void later_find(struct nccl_library *nccl)
{
  if (nccl->version < LADE_NCCL_REGISTER_VERSION)
    return;
  const struct lade_symbol wanted[] = {
#define WANT(type, name, arguments) {#name, (void **)&nccl->name},
      LADE_NCCL_LATER_FUNCTIONS(WANT)
#undef WANT
  };
  bool is_whole = true;
  for (size_t i = 0; i < LADE_COUNT(wanted); i++) {
    *wanted[i].at = dlsym(nccl->library, wanted[i].name);
    is_whole &= *wanted[i].at != NULL;
  }
  for (size_t i = 0; i < LADE_COUNT(wanted) && !is_whole; i++)
    *wanted[i].at = NULL;
}

int lade_nccl_library_open(struct nccl_library *nccl, struct lade_error *error)
{
  const struct lade_symbol wanted[] = {
#define WANT(type, name, arguments) {#name, (void **)&nccl->name},
      LADE_NCCL_FUNCTIONS(WANT)
#undef WANT
  };
  const char *missing;
  *nccl = (struct nccl_library){0};
  nccl->library = lade_library_open("libnccl.so.2", wanted, LADE_COUNT(wanted), &missing);
  if (!nccl->library)
    return lade_error_set(error, -ENOSYS, "there is no NCCL here (%s); install libnccl2", dlerror());
  int status = version_check(nccl, error); /* checked first, because an old version also lacks functions */
  if (!status && missing)
    status = lade_error_set(error, -ENOSYS, "libnccl.so.2 has no %s; it is no NCCL", missing);
  if (!status)
    later_find(nccl);
  if (status) {
    dlclose(nccl->library);
    nccl->library = NULL;
  }
  return status;
}

int lade_nccl_error_set(const struct nccl_library *nccl, nccl_handle handle, const char *call, nccl_result result,
                        struct lade_error *error)
{
  const char *text = nccl->ncclGetErrorString(result), *last = nccl->ncclGetLastError(handle);
  return lade_error_set(error, -EIO, "%s: %s (%d)%s%s", call, text ? text : "an unknown error", result,
                        last && *last ? ": " : "", last ? last : "");
}
