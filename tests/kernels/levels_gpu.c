/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain reference and the kernels of a GPU, launched through its driver: the machine's own, or the fake.
 *
 * Tests read and write the kernels' operands, so their memory is managed by the driver: processor and GPU access it in
 * turn at the same addresses. Each block is taken behind the one before, and all memory is free again when the last
 * block is; tests take little at a time. Their free() comes here by the linker's --wrap. Each launch is waited for, so
 * that a kernel that breaks the device is named. Several runs, whose bits must agree, replace the numbers of threads.
 *
 * A device of one multiprocessor is the fake: no GPU has so few, nor a slice of one. Its threads take turns on the
 * processor, so it runs only calls that verify launches and memory; large problems are left to a GPU.
 */
#include "levels.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "kernels/cuda/launch_internal.h"
#include "kernels/cuda/matmul/matmul_cublaslt.h"

#define ARENA_BYTES ((size_t)128 << 20)
#define ALIGN 256
#define ATTACH_GLOBAL 1 /* CU_MEM_ATTACH_GLOBAL: reached by every stream */
#define MULTIPROCESSORS 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
#define FEW_PRODUCTS 2500000

void __real_free(void *block);
void __wrap_free(void *block);

static struct {
  lade_device *device;
  lade_queue *queue;
  lade_cuda_kernels *kernels;
  lade_cuda_functions *functions;
  struct lade_step *step; /* at the begin of the arena, where kernels read it */
  char *arena;
  bool is_slow; /* threads take turns */
  size_t begin, used; /* the first byte for blocks, and the end of those in use */
  int n_blocks;
} gpu;

const char *const level_names[] = {"cuda", NULL};
const int64_t level_max_elements = 150000;

/* ---- the GPU ---- */

/* Leave before any test has failed: there is no GPU to test, or the driver is missing. */
static void gpu_leave(int code, const char *why)
{
  printf("%s: %s\n", code == 77 ? "SKIP" : "FAIL", why);
  exit(code);
}

static void functions_open(void)
{
  struct lade_cuda_symbol wanted[LADE_CUDA_N_PLACES];
  struct lade_error error = {0};
  char folder[PATH_MAX];
  const bool is_hopper = lade_cuda_get_capability(gpu.device) == 90;
  for (int i = 0; i < LADE_CUDA_N_PLACES; i++) {
    const char *file = lade_cuda_function_file(i);
    const bool has_code = is_hopper || !strstr(file, "wgmma");
    wanted[i] = (struct lade_cuda_symbol){file, has_code ? lade_cuda_function_name(i) : NULL};
  }
  lade_cuda_folder_find(folder);
  if (lade_cuda_functions_open(gpu.device, folder, wanted, LADE_CUDA_N_PLACES, &error, &gpu.functions))
    gpu_leave(1, error.text);
}

/* Take the arena, with the device's context current. Return the CUresult. */
static int arena_take(void *found)
{
  int (*take)(uint64_t *ret_at, size_t bytes, unsigned flags) = (int (*)(uint64_t *, size_t, unsigned))found;
  uint64_t at = 0;
  int result = take(&at, ARENA_BYTES, ATTACH_GLOBAL);
  gpu.arena = (char *)(uintptr_t)at;
  return result;
}

/* Find the speed of the context's device. */
static int speed_find(void *driver)
{
  int (*device_get)(int *ret_id) = (int (*)(int *))dlsym(driver, "cuCtxGetDevice");
  int (*ask)(int *ret_value, int attribute, int id) = (int (*)(int *, int, int))dlsym(driver, "cuDeviceGetAttribute");
  int id = 0, n = 0;
  int result = device_get && ask ? device_get(&id) : 1;
  if (!result)
    result = ask(&n, MULTIPROCESSORS, id);
  gpu.is_slow = n == 1;
  return result;
}

static void arena_open(void)
{
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE), *take = dlsym(driver, "cuMemAllocManaged");
  if (!take || lade_cuda_call(gpu.device, arena_take, take))
    gpu_leave(1, "the driver gives no managed memory");
  if (lade_cuda_call(gpu.device, speed_find, driver))
    gpu_leave(1, "the driver does not say how many multiprocessors there are");
  gpu.step = (struct lade_step *)gpu.arena;
  gpu.begin = gpu.used = lade_align_up(sizeof(*gpu.step), ALIGN);
}

static void gpu_open(void)
{
  const struct lade_cuda_device_params params = {.struct_size = sizeof(params)};
  struct lade_error error = {0};
  if (gpu.device)
    return;
  if (lade_device_open_cuda(&params, &error, &gpu.device))
    gpu_leave(77, error.text);
  if (lade_queue_create(gpu.device, LADE_QUEUE_COMPUTE, &gpu.queue))
    gpu_leave(1, "the device refused a queue");
  if (lade_cuda_kernels_open(gpu.device, NULL, &error, &gpu.kernels))
    gpu_leave(1, error.text);
  if (*lade_cuda_kernels_attention_note(gpu.kernels))
    gpu_leave(1, lade_cuda_kernels_attention_note(gpu.kernels));
  functions_open();
  arena_open();
}

/* ---- memory ---- */

void *level_alloc(size_t n_bytes)
{
  gpu_open();
  const size_t at = gpu.n_blocks++ ? gpu.used : gpu.begin;
  gpu.used = at + lade_align_up(LADE_MAX(n_bytes, (size_t)1), ALIGN);
  assert_true(gpu.used <= ARENA_BYTES);
  return gpu.arena + at;
}

void __wrap_free(void *block)
{
  const uintptr_t from = (uintptr_t)gpu.arena, at = (uintptr_t)block;
  if (!from || at < from || at >= from + ARENA_BYTES)
    __real_free(block);
  else
    gpu.n_blocks--;
}

/* ---- launches ---- */

struct put {
  const struct lade_cuda_launch *launch;
  const struct lade_matmul_args *product;
  bool is_taken;
  struct lade_error error;
};

static int put_run(void *stream, void *args)
{
  struct put *put = args;
  const struct lade_cuda_launch *launch = put->launch;
  if (put->product) {
    struct lade_kernels table;
    lade_cuda_kernels_get(gpu.kernels, &table);
    put->is_taken = lade_cublaslt_run(table.cublaslt, stream, put->product, &put->error);
    return 0;
  }
  void *params[] = {(void *)(uintptr_t)launch->args, &gpu.step};
  const struct lade_cuda_grid grid = {.blocks = {launch->grid[0], launch->grid[1], launch->grid[2]},
                                      .n_threads = launch->n_threads, .shared_bytes = launch->shared_bytes};
  return lade_cuda_functions_launch(gpu.functions, launch->place, stream, &grid, params);
}

static void put_wait(struct put *put, const char *label)
{
  uint64_t count = 0;
  lade_cuda_queue_enqueue(gpu.queue, put_run, put, NULL, &count);
  const int status = lade_queue_sync(gpu.queue, count);
  if (status && !put->error.code) {
    lade_error_set(&put->error, status, "%s", strerror(-status));
    lade_cuda_get_error(gpu.device, &put->error);
  }
  if (put->error.code)
    fail_msg("%s: %s", label, put->error.text);
}

static void launch_run(const struct lade_cuda_launcher *launcher, const struct lade_cuda_launch *launch,
                       const struct lade_step *step)
{
  struct put put = {.launch = launch};
  if (step)
    *gpu.step = *step;
  put_wait(&put, lade_cuda_function_name(launch->place));
}

static bool product_run(const struct lade_cuda_launcher *launcher, const struct lade_matmul_args *args)
{
  struct put put = {.product = args};
  put_wait(&put, "a product of cuBLASLt's");
  return put.is_taken;
}

/* ---- levels ---- */

bool level_get(const char *level, struct lade_kernels *ret_kernels)
{
  struct lade_cpu none = {0};
  gpu_open();
  if (strcmp(level, "cuda") == 0)
    lade_cuda_kernels_get(gpu.kernels, ret_kernels);
  else
    lade_kernels_init(ret_kernels, &none);
  return true;
}

int64_t level_max_products(void)
{
  gpu_open();
  return gpu.is_slow ? FEW_PRODUCTS : INT64_MAX;
}

/* For attention make every variant that the GPU has. */
int levels_make(enum lade_kernel kernel, struct lade_kernels levels[LEVELS])
{
  int n = 0;
  level_get("plain", &levels[n++]);
  if (kernel != LADE_K_ATTENTION_FWD)
    level_get("cuda", &levels[n++]);
  const int n_attentions = lade_cuda_get_capability(gpu.device) == 90 ? LADE_CUDA_N_ATTENTIONS : LADE_CUDA_BY_WGMMA;
  for (int attention = 0; kernel == LADE_K_ATTENTION_FWD && attention < n_attentions; attention++, n++) {
    level_get("cuda", &levels[n]);
    lade_cuda_attention_choose(&levels[n], LADE_K_ATTENTION_FWD, (enum lade_cuda_attention)attention);
    lade_cuda_attention_choose(&levels[n], LADE_K_ATTENTION_BWD, (enum lade_cuda_attention)attention);
  }
  return n;
}

/*
 * True if the level supports the arguments. Those that tensor cores leave to the plain kernels belong to the latter
 * only.
 */
bool level_takes(const struct lade_kernels *kernels, enum lade_kernel kernel, enum lade_dtype dtype, const void *args)
{
  bool is_cuda = kernels->workspace_bytes != NULL, is_attention = kernel == LADE_K_ATTENTION_FWD;
  const bool is_wgmma = is_attention && kernels->fn[kernel] == lade_cuda_attention_fn(kernel, LADE_CUDA_BY_WGMMA);
  if (is_cuda && is_attention && kernels->fn[kernel] != lade_cuda_attention_fn(kernel, LADE_CUDA_BY_PLAIN))
    return lade_cuda_attention_has(is_wgmma ? LADE_CUDA_BY_WGMMA : LADE_CUDA_BY_MMA, dtype,
                                   ((const struct lade_attention_fwd_args *)args)->head_dim) &&
           !lade_cuda_attention_has_form(&((const struct lade_attention_fwd_args *)args)->form);
  bool is_f64 = dtype == LADE_F64 || (kernel == LADE_K_CAST && ((const struct lade_cast_args *)args)->to == LADE_F64);
  return !is_cuda || (kernels->fn[kernel] && !is_f64);
}

bool level_whole(struct lade_kernels *kernels)
{
  lade_kernel_fn *whole = lade_cuda_attention_whole_fn(kernels->fn[LADE_K_ATTENTION_BWD]);
  if (whole)
    kernels->fn[LADE_K_ATTENTION_BWD] = whole;
  return whole;
}

struct lade_kernel_ctx level_ctx(const struct lade_kernels *kernels, lade_pool *pool, const struct lade_step *step)
{
  static const struct lade_cuda_launcher launcher = {launch_run, NULL}, with_products = {launch_run, product_run};
  return (struct lade_kernel_ctx){.pool = pool, .step = step, .kernels = kernels,
                                  .launcher = kernels->cublaslt ? &with_products : &launcher};
}
