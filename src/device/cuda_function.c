/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that run on a CUDA device: loaded from files of machine code, and put on streams.
 *
 * A file is one module of the driver, which selects the code for this GPU or compiles the PTX. All functions are loaded
 * at once by open, so that a step neither loads nor allocates.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_internal.h"

struct lade_cuda_functions {
  struct cuda_device *cuda;
  int n, n_modules, shared_bytes;
  cuda_function *functions; /* NULL at indices without a function */
  cuda_module *modules;     /* at most n */
};

static int load_fail(const struct cuda_device *cuda, const char *path, cuda_result result, struct lade_error *error)
{
  const int version = cuda->driver.version;
  if (result == CUDA_FILE_NOT_FOUND)
    return lade_error_set(error, -ENOENT, "there is no %s with kernels for the GPU; build where nvcc is", path);
  if (result == CUDA_NO_BINARY)
    return lade_error_set(error, -ENOENT, "%s has no code for this GPU; build with a CUDA toolkit that knows it", path);
  if (result == CUDA_UNSUPPORTED_PTX)
    return lade_error_set(error, -ENOENT, "%s has no code for this GPU that so old a driver can compile; install a "
                          "newer driver", path);
  if (result == CUDA_INVALID_IMAGE || result == CUDA_INVALID_PTX)
    return lade_error_set(error, -ENODEV, "the driver, of CUDA %d.%d, is too old for the kernels in %s; install a "
                          "newer driver, or build with a CUDA %d toolkit", version / 1000, version % 1000 / 10, path,
                          version / 1000);
  return lade_cuda_error_set(&cuda->driver, error, "cuModuleLoad", result);
}

static int module_load(lade_cuda_functions *functions, const char *folder, const char *file, struct lade_error *error)
{
  char path[PATH_MAX];
  if (snprintf(path, sizeof(path), "%s/%s.fatbin", folder, file) >= (int)sizeof(path))
    return lade_error_set(error, -ENAMETOOLONG, "the path of the GPU's kernels is too long: %.40s...", folder);
  cuda_result result = functions->cuda->driver.cuModuleLoad(&functions->modules[functions->n_modules], path);
  if (result)
    return load_fail(functions->cuda, path, result, error);
  functions->n_modules++;
  return 0;
}

/* Find function @i, called @name, in the module that was loaded last. */
static int function_find(lade_cuda_functions *functions, int i, const char *name, struct lade_error *error)
{
  struct lade_error why = {0};
  const struct cuda_driver *driver = &functions->cuda->driver;
  cuda_function *at = &functions->functions[i];
  cuda_result result = driver->cuModuleGetFunction(at, functions->modules[functions->n_modules - 1], name);
  const bool is_found = !result;
  if (is_found)
    result = driver->cuFuncSetAttribute(*at, CUDA_FUNCTION_SHARED_MAX, functions->shared_bytes);
  if (!result)
    return 0;
  int status = lade_cuda_error_set(driver, &why, is_found ? "cuFuncSetAttribute" : "cuModuleGetFunction", result);
  return lade_error_set(error, status, "the GPU's kernel %s cannot be used (%s); build all of them anew", name,
                        why.text);
}

static int functions_load(lade_cuda_functions *functions, const char *folder, const struct lade_cuda_symbol *wanted,
                          struct lade_error *error)
{
  const char *file = "";
  int status = 0;
  struct cuda_device *cuda = functions->cuda;
  int attribute = CUDA_ATTRIBUTE_SHARED_MAX;
  cuda_result result = cuda->driver.cuDeviceGetAttribute(&functions->shared_bytes, attribute, cuda->id);
  if (result)
    return lade_cuda_error_set(&cuda->driver, error, "cuDeviceGetAttribute", result);
  for (int i = 0; i < functions->n && !status; i++) {
    if (!wanted[i].name)
      continue;
    if (strcmp(file, wanted[i].file) != 0)
      status = module_load(functions, folder, wanted[i].file, error);
    file = wanted[i].file;
    if (!status)
      status = function_find(functions, i, wanted[i].name, error);
  }
  return status;
}

int lade_cuda_functions_open(lade_device *device, const char *folder, const struct lade_cuda_symbol *wanted, int n,
                             struct lade_error *error, lade_cuda_functions **ret_functions)
{
  lade_cuda_functions *functions = calloc(1, sizeof(*functions));
  if (!functions)
    return lade_error_set(error, -ENOMEM, "no memory for the GPU's kernels");
  functions->cuda = (struct cuda_device *)device;
  functions->n = n;
  functions->functions = calloc((size_t)n, sizeof(*functions->functions));
  functions->modules = calloc((size_t)n, sizeof(*functions->modules));
  int status = -ENOMEM;
  if (functions->functions && functions->modules) {
    bool is_entered = lade_cuda_enter(functions->cuda);
    status = functions_load(functions, folder, wanted, error);
    lade_cuda_leave(functions->cuda, is_entered);
  } else {
    lade_error_set(error, -ENOMEM, "no memory for the GPU's kernels");
  }
  if (status) {
    lade_cuda_functions_close(functions);
    return status;
  }
  *ret_functions = functions;
  return 0;
}

void lade_cuda_functions_close(lade_cuda_functions *functions)
{
  if (!functions)
    return;
  bool is_entered = lade_cuda_enter(functions->cuda);
  for (int i = 0; i < functions->n_modules; i++)
    functions->cuda->driver.cuModuleUnload(functions->modules[i]); /* failures are ignored, because no caller can
                                                                      receive them */
  lade_cuda_leave(functions->cuda, is_entered);
  free(functions->functions);
  free(functions->modules);
  free(functions);
}

int lade_cuda_functions_launch(const lade_cuda_functions *functions, int i, void *stream,
                               const struct lade_cuda_grid *grid, void **params)
{
  LADE_ASSERT(i >= 0 && i < functions->n && functions->functions[i]);
  return functions->cuda->driver.cuLaunchKernel(functions->functions[i], grid->blocks[0], grid->blocks[1],
                                                grid->blocks[2], grid->n_threads, 1, 1, grid->shared_bytes, stream,
                                                params, NULL);
}
