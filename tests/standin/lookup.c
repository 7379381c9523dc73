/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's own lookup: the functions by the names without their forms, as the driver's lookup gives them. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "standin_internal.h"

EXPORT cuda_result cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags,
                                       int *ret_status);

/* Where a function has several forms, these are the ones that a version of 12.0 means. */
static const char *const second_forms[] = {
    "cuDevicePrimaryCtxRelease", "cuDeviceTotalMem", "cuCtxCreate", "cuCtxDestroy", "cuCtxPushCurrent",
    "cuCtxPopCurrent", "cuMemGetInfo", "cuMemHostRegister", "cuStreamDestroy", "cuStreamWaitValue64",
    "cuEventDestroy", "cuGetProcAddress", "cuMemAlloc", "cuMemFree", "cuMemAllocPitch", "cuMemAllocHost",
};

cuda_result cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags, int *ret_status)
{
  char symbol[96];
  const char *form = "";
  cuda_result result = standin_enter("cuGetProcAddress", false);
  if (result)
    return result;
  for (size_t i = 0; i < LADE_COUNT(second_forms); i++)
    form = strcmp(second_forms[i], name) == 0 ? "_v2" : form;
  snprintf(symbol, sizeof(symbol), "%s%s", name, form);
  Dl_info own;
  void *library = dladdr((void *)&standin, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  *ret_function = library ? dlsym(library, symbol) : NULL;
  if (library)
    dlclose(library);
  if (ret_status)
    *ret_status = *ret_function ? 0 : 1;
  return *ret_function ? 0 : CUDA_NOT_FOUND;
}
