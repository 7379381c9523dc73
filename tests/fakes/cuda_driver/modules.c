/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's modules. Every file of machine code is the library that LADE_FAKE_KERNELS names, of kernels compiled for
 * the CPU. A function is the kernel of that name in it. Without the variable no file is found. Launches run on the
 * stream, in shuffled order, one grid at a time; launches of the kernel that LADE_FAKE_IDLE names do nothing. A
 * function is loaded at its first launch or capture, which waits for the whole context and blocks other calls
 * meanwhile. The driver loads in the same way, unless CUDA_MODULE_LOADING=EAGER loads everything at once, for which
 * CUDA's libraries are too large.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/cuda/phases.h"
#include "stream_internal.h"
#include "tests/fakes/cuda_on_cpu/cuda_on_cpu_run.h"

/* True if LADE_FAKE_IDLE lists the kernel, between commas. */
static bool is_idle(const char *name)
{
  const char *list = getenv("LADE_FAKE_IDLE");
  const size_t n = strlen(name);
  while (list && *list) {
    const size_t length = strcspn(list, ",");
    if (length == n && strncmp(list, name, n) == 0)
      return true;
    list += length + (list[length] == ',');
  }
  return false;
}

EXPORT cuda_result cuModuleLoad(cuda_module *ret_module, const char *file);
EXPORT cuda_result cuModuleUnload(cuda_module module);
EXPORT cuda_result cuModuleGetFunction(cuda_function *ret_function, cuda_module module, const char *name);
EXPORT cuda_result cuFuncSetAttribute(cuda_function function, int attribute, int value);
EXPORT cuda_result cuLaunchKernel(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                  cuda_stream stream, void **params, void **extra);

#define PLAIN_SHARED_BYTES (48u << 10) /* the limit of a function that has not requested more */
#define MAX_SHARED_BYTES (227 << 10)   /* the limit of a block on a device of 9.0 */
#define MAX_THREADS LADE_CUDA_THREADS  /* the limit of all kernels (kernel.h) */
#define MODULE_MAX_FUNCTIONS 256

struct CUfunc_st {
  const struct cuda_on_cpu_kernel *kernel;
  unsigned shared_bytes;
  bool is_idle;
  bool is_loaded; /* launched before, or captured into a graph */
  struct CUmod_st *module;
};

struct CUmod_st {
  int device;
  uint64_t taken_bytes; /* of the device, including its functions */
  void *library;
  void (*run)(const struct cuda_on_cpu_launch *launch);
  struct CUfunc_st functions[MODULE_MAX_FUNCTIONS];
  int n_functions;
};

/* A launch in flight, with its arguments. */
struct kernel_call {
  void (*run)(const struct cuda_on_cpu_launch *launch);
  struct cuda_on_cpu_launch launch;
  _Alignas(16) char args[];
};

/* Find the function of a symbol; POSIX allows a data pointer to hold it. */
static void run_find(struct CUmod_st *module)
{
  void *at = dlsym(module->library, "cuda_on_cpu_run");
  memcpy(&module->run, &at, sizeof(at));
}

/* Take memory for loaded code, for the module's lifetime. */
static bool module_take(struct CUmod_st *module, uint64_t kib)
{
  if (!fake_take(module->device, kib << 10))
    return false;
  module->taken_bytes += kib << 10;
  return true;
}

cuda_result cuModuleLoad(cuda_module *ret_module, const char *file)
{
  const char *library = getenv("LADE_FAKE_KERNELS");
  cuda_result result = fake_enter("cuModuleLoad", true);
  if (result || !library)
    return result ? result : CUDA_FILE_NOT_FOUND;
  struct CUmod_st *module = calloc(1, sizeof(*module));
  LADE_ASSERT(module);
  module->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!module->library) {
    free(module);
    return CUDA_FILE_NOT_FOUND;
  }
  run_find(module);
  module->device = fake_context()->device;
  if (!module_take(module, fake.modules)) {
    dlclose(module->library);
    free(module);
    return CUDA_OUT_OF_MEMORY;
  }
  fake_alive(1);
  *ret_module = module;
  return 0;
}

cuda_result cuModuleUnload(cuda_module module)
{
  dlclose(module->library);
  fake_give_back(module->device, module->taken_bytes);
  free(module);
  fake_alive(-1);
  return fake_leave("cuModuleUnload");
}

cuda_result cuModuleGetFunction(cuda_function *ret_function, cuda_module module, const char *name)
{
  char symbol[96];
  cuda_result result = fake_enter("cuModuleGetFunction", true);
  if (result)
    return result;
  snprintf(symbol, sizeof(symbol), "%s_on_cpu", name);
  const struct cuda_on_cpu_kernel *kernel = dlsym(module->library, symbol);
  if (!kernel || module->n_functions == MODULE_MAX_FUNCTIONS)
    return CUDA_NOT_FOUND;
  struct CUfunc_st *function = &module->functions[module->n_functions++];
  *function = (struct CUfunc_st){.kernel = kernel, .shared_bytes = PLAIN_SHARED_BYTES, .is_idle = is_idle(name),
                                 .module = module};
  *ret_function = function;
  return 0;
}

cuda_result cuFuncSetAttribute(cuda_function function, int attribute, int value)
{
  cuda_result result = fake_enter("cuFuncSetAttribute", true);
  if (result || attribute != CUDA_FUNCTION_SHARED_MAX || value < 0 || value > MAX_SHARED_BYTES)
    return result ? result : CUDA_INVALID_VALUE;
  function->shared_bytes = (unsigned)value;
  return 0;
}

static void kernel_call_run(void *args)
{
  struct kernel_call *call = args;
  call->run(&call->launch);
}

cuda_result cuLaunchKernel(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                           unsigned block_y, unsigned block_z, unsigned shared_bytes, cuda_stream stream, void **params,
                           void **extra)
{
  cuda_result result = fake_enter("cuLaunchKernel", true);
  if (result)
    return result;
  if (!grid_x || !grid_y || !grid_z || !block_x || block_y != 1 || block_z != 1 || block_x % 32 ||
      block_x > MAX_THREADS || grid_x > INT32_MAX || grid_y > UINT16_MAX || grid_z > UINT16_MAX ||
      shared_bytes > function->shared_bytes || extra)
    return CUDA_INVALID_VALUE;
  result = fake_capture_check(stream, true);
  if (!result && fake_stream_context(stream) != fake_context())
    result = CUDA_INVALID_HANDLE;
  if (!result && !function->is_loaded) {
    fake_drain();
    result = module_take(function->module, fake.functions) ? 0 : CUDA_OUT_OF_MEMORY;
  }
  function->is_loaded = true;
  if (result || function->is_idle)
    return result;
  size_t args_bytes = function->kernel->args_bytes;
  struct kernel_call *call = malloc(sizeof(*call) + args_bytes);
  LADE_ASSERT(call);
  call->run = function->module->run;
  memcpy(call->args, params[0], args_bytes);
  call->launch = (struct cuda_on_cpu_launch){.kernel = function->kernel, .grid = {grid_x, grid_y, grid_z},
                                             .n_threads = block_x, .shared_bytes = shared_bytes,
                                             .order = CUDA_SHUFFLED, .args = call->args,
                                             .step = *(const struct lade_step *const *)params[1]};
  fake_put_call(stream, kernel_call_run, call);
  return 0;
}
