/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open the CUDA driver, and report its errors.
 *
 * The driver is found by its soname, as the loader finds it. Only cuGetProcAddress is looked up by name. All other
 * functions come through it, as of one fixed version. So the driver selects the form of each function (the _v2 and _v3
 * of cuda.h). A newer driver cannot return a form unknown to Lade. The entry cuGetProcAddress itself has two forms; a
 * driver of the minimum version or later has the second one, of 12.0.
 *
 * The library is never unloaded once it is open (RTLD_NODELETE): the driver keeps its own threads and exit handlers,
 * and does not promise to survive dlclose.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"
#include "device/cuda_driver.h"

#define DRIVERS_CHANNELS 8 /* without the variable */

typedef cuda_result lookup_fn(const char *name, void **ret_function, int version, uint64_t flags, int *ret_status);

/* Look up every function through the driver. POSIX allows an object pointer to hold a function's address. */
static int functions_find(struct cuda_driver *driver, lookup_fn *lookup, struct lade_error *error)
{
  const struct {
    const char *name;
    void **at;
  } wanted[] = {
#define WANT(name, arguments) {#name, (void **)&driver->name},
      LADE_DRIVER_FUNCTIONS(WANT)
#undef WANT
  };
  for (size_t i = 0; i < LADE_COUNT(wanted); i++) {
    int status = 0;
    cuda_result result = lookup(wanted[i].name, wanted[i].at, LADE_CUDA_MIN_VERSION, 0, &status);
    if (result || !*wanted[i].at)
      return lade_error_set(error, -ENODEV, "the CUDA driver has no %s (it answers %d); install a driver for CUDA "
                            "%d.%d or later", wanted[i].name, result, LADE_CUDA_MIN_VERSION / 1000,
                            LADE_CUDA_MIN_VERSION % 1000 / 10);
  }
  return 0;
}

/* Check the driver's version, before its missing functions cause a less specific error. */
static int version_check(struct cuda_driver *driver, struct lade_error *error)
{
  cuda_result (*get_version)(int *) = (cuda_result(*)(int *))dlsym(driver->library, "cuDriverGetVersion");
  if (!get_version || get_version(&driver->version))
    return lade_error_set(error, -ENODEV, "libcuda.so.1 does not tell its version; it is no CUDA driver");
  if (driver->version < LADE_CUDA_MIN_VERSION)
    return lade_error_set(error, -ENODEV, "the CUDA driver speaks CUDA %d.%d and Lade needs %d.%d; install driver "
                          "R525 or later", driver->version / 1000, driver->version % 1000 / 10,
                          LADE_CUDA_MIN_VERSION / 1000, LADE_CUDA_MIN_VERSION % 1000 / 10);
  return 0;
}

static int driver_start(struct cuda_driver *driver, struct lade_error *error)
{
  cuda_result result = driver->cuInit(0);
  int n = 0;
  if (result == CUDA_NO_DEVICE)
    return lade_error_set(error, -ENODEV, "the CUDA driver finds no GPU; nvidia-smi says why, and in a container the "
                          "GPU must be passed in");
  if (result == CUDA_DRIVER_MISMATCH)
    return lade_error_set(error, -ENODEV, "the CUDA driver's library and its kernel module are of different versions; "
                          "restart the machine after installing a driver");
  if (result) {
    lade_cuda_error_set(driver, error, "cuInit", result);
    return result == CUDA_OUT_OF_MEMORY ? -ENOMEM : -ENODEV;
  }
  result = driver->cuDeviceGetCount(&n);
  if (result)
    return lade_cuda_error_set(driver, error, "cuDeviceGetCount", result);
  if (n == 0)
    return lade_error_set(error, -ENODEV, "the CUDA driver finds no GPU; CUDA_VISIBLE_DEVICES may hide it");
  return 0;
}

int lade_cuda_driver_open(struct cuda_driver *driver, struct lade_error *error)
{
  *driver = (struct cuda_driver){.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
  if (!driver->library)
    return lade_error_set(error, -ENODEV, "there is no CUDA driver here (%s)", dlerror());
  lookup_fn *lookup = (lookup_fn *)dlsym(driver->library, "cuGetProcAddress_v2");
  int status = version_check(driver, error);
  if (!status && !lookup)
    status = lade_error_set(error, -ENODEV, "libcuda.so.1 has no cuGetProcAddress_v2; it is no CUDA driver");
  if (!status)
    status = functions_find(driver, lookup, error);
  if (!status)
    status = driver_start(driver, error);
  if (status)
    lade_cuda_driver_close(driver);
  return status;
}

void lade_cuda_driver_close(struct cuda_driver *driver)
{
  dlclose(driver->library);
  driver->library = NULL;
}

/*
 * Return the errno of @result. Results without an own case are -EFAULT. They are no user mistake, because the user of a
 * GPU calls no driver function. They are no I/O error either, which concerns drives and links; the driver has separate
 * results for damaged data.
 */
int lade_cuda_errno(cuda_result result)
{
  switch (result) {
  case CUDA_DONE:
    return 0;
  case CUDA_OUT_OF_MEMORY:
    return -ENOMEM;
  case CUDA_STUB_LIBRARY:
  case CUDA_NEEDS_NEWER_DRIVER:
  case CUDA_DEVICE_UNAVAILABLE:
  case CUDA_NO_DEVICE:
  case CUDA_INVALID_DEVICE:
  case CUDA_DEVICE_NOT_LICENSED:
  case CUDA_NO_JIT_COMPILER:
  case CUDA_JIT_DISABLED:
  case CUDA_NOT_SUPPORTED:
  case CUDA_SYSTEM_NOT_READY:
  case CUDA_DRIVER_MISMATCH:
  case CUDA_COMPAT_NOT_SUPPORTED:
  case CUDA_MPS_CONNECTION_FAILED:
  case CUDA_MPS_RPC_FAILURE:
  case CUDA_MPS_NOT_READY:
  case CUDA_MPS_NO_MORE_CLIENTS:
  case CUDA_MPS_NO_MORE_CONNECTIONS:
    return -ENODEV;
  case CUDA_ECC_UNCORRECTABLE:
  case CUDA_NVLINK_UNCORRECTABLE:
  case CUDA_CONTAINED:
  case CUDA_EXTERNAL_DEVICE:
    return -EBADMSG;
  default:
    return -EFAULT;
  }
}

int lade_cuda_error_set(const struct cuda_driver *driver, struct lade_error *error, const char *call,
                        cuda_result result)
{
  const char *name = NULL, *text = NULL;
  if (driver->cuGetErrorName(result, &name) || !name)
    name = "an unknown error";
  if (driver->cuGetErrorString(result, &text) || !text)
    text = "the driver has no words for it";
  return lade_error_set(error, lade_cuda_errno(result), "%s: %s (%d): %s", call, name, result, text);
}

int lade_cuda_n_channels(void)
{
  const char *text = getenv(LADE_CUDA_CHANNELS_VARIABLE);
  char *end = NULL;
  const long n = text ? strtol(text, &end, 10) : 0;
  return n >= 1 && n <= LADE_CUDA_CHANNELS_MAX && *end == 0 ? (int)n : DRIVERS_CHANNELS;
}
