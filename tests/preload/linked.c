/* SPDX-License-Identifier: Apache-2.0 */
/* The first route: linked with libcuda.so.1. */
#include "holder.h"

#include <stddef.h>
#include <string.h>

#include "base/base.h"
#include "preload/hooks.h"

cuda_result cuDeviceGet(cuda_device_id *ret_id, int ordinal);
cuda_result cuCtxCreate_v2(cuda_context *ret_context, unsigned flags, cuda_device_id id);
cuda_result cuGetExportTable(const void **ret_table, const void *id);

static const struct {
  const char *symbol;
  void *function;
} functions[] = {
#define LINK(name) {#name, (void *)name}
    LINK(cuInit), LINK(cuDeviceGet), LINK(cuCtxCreate_v2), LINK(cuMemAlloc_v2), LINK(cuMemFree_v2),
    LINK(cuMemGetInfo_v2), LINK(cuDeviceTotalMem_v2), LINK(cuGetExportTable),
#undef LINK
};

int route_choose(const char *route)
{
  return strcmp(route, "linked") == 0 ? 0 : -1;
}

void *route_find(const char *symbol)
{
  for (size_t i = 0; i < LADE_COUNT(functions); i++)
    if (strcmp(functions[i].symbol, symbol) == 0)
      return functions[i].function;
  return NULL;
}
