/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device of a build without it: there is none, and opening says so. The calls that want an open one cannot be
 * reached; those that are here have callers that are built either way.
 */
#include <errno.h>

#include "base/base.h"
#include "device/cuda.h"

int lade_device_open_cuda(const struct lade_cuda_device_params *params, struct lade_error *error,
                          lade_device **ret_device)
{
  return lade_error_set(error, -ENODEV, "device cuda:%d: this build has no CUDA; configure with -Dcuda=enabled",
                        params->ordinal);
}

int lade_cuda_get_memory(lade_device *device, struct lade_cuda_memory *ret_memory)
{
  return -ENODEV;
}

void lade_cuda_get_error(lade_device *device, struct lade_error *error)
{
  lade_error_set(error, -ENODEV, "this build has no CUDA");
}
