/* SPDX-License-Identifier: Apache-2.0 */
/* The fake's own lookup: functions by their names without version suffix, as in the driver's lookup. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "fake_driver_internal.h"

EXPORT cuda_result cuGetProcAddress(const char *name, void **ret_function, int version, uint64_t flags);
EXPORT cuda_result cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags,
                                       int *ret_status);

#define PER_THREAD_STREAM 2
#define FUTURE 99000 /* version of a CUDA that does not exist yet */

/* Functions with several forms, and the version from which the second one is returned. */
static const struct {
  const char *name;
  int version;
} second_forms[] = {
    {"cuDevicePrimaryCtxRelease", 11000}, {"cuDevicePrimaryCtxReset", 11000}, {"cuDeviceTotalMem", 3020},
    {"cuCtxCreate", 3020}, {"cuCtxDestroy", 4000}, {"cuCtxPushCurrent", 4000}, {"cuCtxPopCurrent", 4000},
    {"cuDeviceGetUuid", 11040},
    {"cuMemGetInfo", 3020}, {"cuMemHostRegister", 6050}, {"cuMemHostGetDevicePointer", 3020},
    {"cuStreamDestroy", 4000}, {"cuStreamWaitValue64", 11070},
    {"cuStreamWriteValue64", 11070}, {"cuStreamBeginCapture", 10010}, {"cuEventDestroy", 4000},
    {"cuGetProcAddress", 12000}, {"cuMemAlloc", 3020}, {"cuMemFree", 3020}, {"cuMemAllocPitch", 3020},
    {"cuMemAllocHost", 3020}, {"cuMemGetAddressRange", 3020},
    {"cuGraphInstantiate", 11000}, {"cuArrayCreate", 3020}, {"cuArray3DCreate", 3020}, {"cuIpcOpenMemHandle", 11000},
};

static const char *form_of(const char *name, int version)
{
  const char *form = "";
  if (strcmp(name, "cuCtxCreate") == 0 && version >= 11040)
    return version >= 12050 ? "_v4" : "_v3"; /* with other parameters; no test needs them, so they are not found */
  if (strcmp(name, "cuMemAlloc") == 0 && version >= FUTURE)
    return "_v3";
  for (size_t i = 0; i < LADE_COUNT(second_forms); i++)
    if (strcmp(second_forms[i].name, name) == 0 && version >= second_forms[i].version)
      form = "_v2";
  return form;
}

cuda_result cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags, int *ret_status)
{
  char symbol[96], per_thread[96];
  cuda_result result = fake_enter("cuGetProcAddress", false);
  if (result)
    return result;
  snprintf(symbol, sizeof(symbol), "%s%s", name, form_of(name, version));
  snprintf(per_thread, sizeof(per_thread), "%s_ptsz", symbol);
  Dl_info own;
  void *library = dladdr((void *)&fake, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  *ret_function = library && flags & PER_THREAD_STREAM ? dlsym(library, per_thread) : NULL;
  if (library && !*ret_function)
    *ret_function = dlsym(library, symbol);
  if (library)
    dlclose(library);
  if (ret_status)
    *ret_status = *ret_function ? 0 : 1;
  return *ret_function ? 0 : CUDA_NOT_FOUND;
}

cuda_result cuGetProcAddress(const char *name, void **ret_function, int version, uint64_t flags)
{
  return cuGetProcAddress_v2(name, ret_function, version, flags, NULL);
}
