/* SPDX-License-Identifier: Apache-2.0 */
/* Open cuBLASLt, and report why it cannot be used: it is missing, too old, or lacks a function. */
#include <dlfcn.h>
#include <errno.h>

#include "base/base.h"
#include "base/library.h"
#include "kernels/cuda/matmul/cublaslt_library.h"

static int version_check(struct cublaslt_library *cublaslt, const char *soname, struct lade_error *error)
{
  cublaslt->version = cublaslt->cublasLtGetVersion ? cublaslt->cublasLtGetVersion() : 0;
  if (cublaslt->version < LADE_CUBLASLT_MIN_VERSION)
    return lade_error_set(error, -ENOSYS, "%s is of version %zu and Lade needs %d; install CUDA 12 or newer", soname,
                          cublaslt->version, LADE_CUBLASLT_MIN_VERSION);
  return 0;
}

int lade_cublaslt_library_open(struct cublaslt_library *cublaslt, const char *soname, struct lade_error *error)
{
  const struct lade_symbol wanted[] = {
#define WANT(type, name, arguments) {#name, (void **)&cublaslt->name},
      LADE_CUBLASLT_FUNCTIONS(WANT)
#undef WANT
  };
  const char *missing;
  *cublaslt = (struct cublaslt_library){0};
  cublaslt->library = lade_library_open(soname, wanted, LADE_COUNT(wanted), &missing);
  if (!cublaslt->library)
    return lade_error_set(error, -ENOENT, "there is no cuBLASLt here (%s); install CUDA's libcublas", dlerror());
  int status = version_check(cublaslt, soname, error); /* first, because an old one lacks functions, too */
  if (!status && missing)
    status = lade_error_set(error, -ENOSYS, "%s has no %s; it is no cuBLASLt", soname, missing);
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
  int status = result == CUBLASLT_ALLOC_FAILED ? -ENOMEM : result == CUBLASLT_NOT_INITIALIZED ? -ENODEV : -EFAULT;
  return lade_error_set(error, status, "%s: %s (%d)", call, name ? name : "an unknown error", result);
}
