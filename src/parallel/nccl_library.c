/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening NCCL, and saying what is wrong with it. It is found by its soname, as the loader finds it, which
 * LD_LIBRARY_PATH directs; that it stays loaded (RTLD_NODELETE) is because its threads and exit handlers do.
 */
#include <dlfcn.h>
#include <errno.h>

#include "base/base.h"
#include "parallel/nccl_library.h"

/* Its version number has had two forms; every version that we accept has the later one. */
static int version_check(struct nccl_library *nccl, struct lade_error *error)
{
  if (!nccl->ncclGetVersion || nccl->ncclGetVersion(&nccl->version))
    return lade_error_set(error, -ENOSYS, "libnccl.so.2 does not tell its version; it is no NCCL");
  if (nccl->version < LADE_NCCL_MIN_VERSION)
    return lade_error_set(error, -ENOSYS, "libnccl.so.2 is of version code %d and Lade needs 2.%d; install a newer "
                          "NCCL", nccl->version, LADE_NCCL_MIN_VERSION / 100 % 100);
  return 0;
}

int lade_nccl_library_open(struct nccl_library *nccl, struct lade_error *error)
{
  *nccl = (struct nccl_library){.library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
  if (!nccl->library)
    return lade_error_set(error, -ENOSYS, "there is no NCCL here (%s); install libnccl2", dlerror());
  const struct {
    const char *name;
    void **at;
  } wanted[] = {
#define WANT(type, name, arguments) {#name, (void **)&nccl->name},
      LADE_NCCL_FUNCTIONS(WANT)
#undef WANT
  };
  const char *missing = NULL;
  for (size_t i = 0; i < LADE_COUNT(wanted); i++) {
    *wanted[i].at = dlsym(nccl->library, wanted[i].name);
    missing = *wanted[i].at || missing ? missing : wanted[i].name;
  }
  int status = version_check(nccl, error); /* first: an old one lacks functions, too */
  if (!status && missing)
    status = lade_error_set(error, -ENOSYS, "libnccl.so.2 has no %s; it is no NCCL", missing);
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
