/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening cuBLASLt, and saying what is wrong with it. It is found by its soname, as the loader finds it, which
 * LD_LIBRARY_PATH directs; that it stays loaded (RTLD_NODELETE) is because its exit handlers do.
 */
#include <dlfcn.h>
#include <errno.h>

#include "base/base.h"
#include "kernels/cuda/cublaslt_library.h"

static int version_check(struct cublaslt_library *cublaslt, const char *soname, struct lade_error *error)
{
  cublaslt->version = cublaslt->cublasLtGetVersion ? cublaslt->cublasLtGetVersion() : 0;
  if (cublaslt->version < LADE_CUBLASLT_MIN_VERSION)
    return lade_error_set(error, -ENOSYS, "%s is of version %zu and Lade needs %d; install CUDA 12 or newer", soname,
                          cublaslt->version, LADE_CUBLASLT_MIN_VERSION);
  return 0;
}

static int functions_find(struct cublaslt_library *cublaslt, const char *soname, struct lade_error *error)
{
  const struct {
    const char *name;
    void **at;
  } wanted[] = {
#define WANT(type, name, arguments) {#name, (void **)&cublaslt->name},
      LADE_CUBLASLT_FUNCTIONS(WANT)
#undef WANT
  };
  const char *missing = NULL;
  for (size_t i = 0; i < LADE_COUNT(wanted); i++) {
    *wanted[i].at = dlsym(cublaslt->library, wanted[i].name);
    missing = *wanted[i].at || missing ? missing : wanted[i].name;
  }
  int status = version_check(cublaslt, soname, error); /* first: an old one lacks functions, too */
  if (!status && missing)
    status = lade_error_set(error, -ENOSYS, "%s has no %s; it is no cuBLASLt", soname, missing);
  return status;
}

int lade_cublaslt_library_open(struct cublaslt_library *cublaslt, const char *soname, struct lade_error *error)
{
  *cublaslt = (struct cublaslt_library){.library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
  if (!cublaslt->library)
    return lade_error_set(error, -ENOENT, "there is no cuBLASLt here (%s); install CUDA's libcublas", dlerror());
  int status = functions_find(cublaslt, soname, error);
  if (status) {
    dlclose(cublaslt->library);
    cublaslt->library = NULL;
  }
  return status;
}

int lade_cublaslt_error_set(const struct cublaslt_library *cublaslt, const char *call, cublaslt_status result,
                            struct lade_error *error)
{
  const char *name = cublaslt->cublasLtGetStatusName(result);
  int status = result == CUBLASLT_ALLOC_FAILED ? -ENOMEM : result == CUBLASLT_NOT_INITIALIZED ? -ENODEV : -EIO;
  return lade_error_set(error, status, "%s: %s (%d)", call, name ? name : "an unknown error", result);
}
