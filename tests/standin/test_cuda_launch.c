/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels loaded and launched through the driver, over the stand-in: they compute what the reference does in memory of
 * the device, read the step block when they run, and every way in which loading or launching fails has a name.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "kernels/cuda.h"
#include "standin.h"
#include "tests/support/symbols.h"

#define ARENA_BYTES ((uint64_t)4 << 20)
#define PLACE_BYTES ((uint64_t)256 << 10) /* of one tensor in the arena */
#define N 5000
#define CALM "fail=none,nth=1,code=2,forever=0,lose=0"

static struct {
  standin_set_fn *set;
  standin_failed_fn *failed;
  standin_live_fn *live;
} standin;

/* A device with memory mapped, and queues that compute and copy. */
struct gpu {
  lade_device *device;
  lade_chunk *chunk;
  uint64_t arena;
  lade_queue *compute, *copies;
  lade_cuda_kernels *kernels;
  struct lade_step *step; /* on the device, in place 0 */
};

static struct lade_step step_make(uint32_t number)
{
  return (struct lade_step){.seed = 11, .step = number, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f,
                            .weight_decay = 0.1f, .correction1 = 1.7f, .correction2 = 12.9f, .loss_scale = 1};
}

/* Place @i of the arena. */
static void *at(const struct gpu *gpu, int i)
{
  return (void *)(uintptr_t)(gpu->arena + (uint64_t)i * PLACE_BYTES);
}

static void move(struct gpu *gpu, void *dst, const void *src, uint64_t bytes)
{
  uint64_t count;
  lade_queue_copy(gpu->copies, &(struct lade_copy){.dst = dst, .src = src, .bytes = bytes}, &count);
  assert_int_equal(lade_queue_sync(gpu->copies, count), 0);
}

static void step_put(struct gpu *gpu, uint32_t number)
{
  struct lade_step step = step_make(number);
  move(gpu, gpu->step, &step, sizeof(step));
}

static int run(struct gpu *gpu, enum lade_kernel kernel, const void *args)
{
  uint64_t count = 0;
  lade_cuda_kernels_submit(gpu->kernels, gpu->compute, kernel, args, gpu->step, NULL, &count);
  return lade_queue_sync(gpu->compute, count);
}

static void gpu_open(struct gpu *gpu)
{
  struct lade_error error = {0};
  const struct lade_cuda_device_params params = {.struct_size = sizeof(params), .capacity_bytes = ARENA_BYTES};
  *gpu = (struct gpu){0};
  assert_int_equal(lade_device_open_cuda(&params, &error, &gpu->device), 0);
  assert_int_equal(lade_device_reserve(gpu->device, ARENA_BYTES, &gpu->arena), 0);
  assert_int_equal(lade_device_chunk_create(gpu->device, ARENA_BYTES, &gpu->chunk), 0);
  assert_int_equal(lade_device_map(gpu->device, gpu->arena, gpu->chunk), 0);
  assert_int_equal(lade_queue_create(gpu->device, LADE_QUEUE_COMPUTE, &gpu->compute), 0);
  assert_int_equal(lade_queue_create(gpu->device, LADE_QUEUE_TO_DEVICE, &gpu->copies), 0);
  gpu->step = at(gpu, 0);
  step_put(gpu, 7);
}

static void gpu_close(struct gpu *gpu)
{
  lade_cuda_kernels_close(gpu->kernels);
  lade_queue_destroy(gpu->copies);
  lade_queue_destroy(gpu->compute);
  assert_int_equal(lade_device_unmap(gpu->device, gpu->arena, ARENA_BYTES), 0);
  lade_device_chunk_release(gpu->device, gpu->chunk);
  lade_device_release(gpu->device, gpu->arena, ARENA_BYTES);
  lade_device_close(gpu->device);
}

static void kernels_open(struct gpu *gpu)
{
  struct lade_error error = {0};
  assert_int_equal(lade_cuda_kernels_open(gpu->device, "kernels", &error, &gpu->kernels), 0);
}

static void plain_run(enum lade_kernel kernel, const void *args, uint32_t step_number)
{
  struct lade_kernels plain;
  struct lade_cpu none = {0};
  struct lade_step step = step_make(step_number);
  lade_kernels_init(&plain, &none);
  plain.fn[kernel](&(struct lade_kernel_ctx){.step = &step}, args);
}

static void values_make(float *values, int n, float first, float step)
{
  for (int i = 0; i < n; i++)
    values[i] = first + step * (float)(i % 97);
}

static void the_step_block_is_read_when_the_kernel_runs(void **state)
{
  struct gpu gpu;
  float x[N], got[N], want[N];
  gpu_open(&gpu);
  kernels_open(&gpu);
  values_make(x, N, -1, 0.03f);
  move(&gpu, at(&gpu, 1), x, sizeof(x));
  struct lade_dropout_args args = {.n_elements = N, .drop = {0x40000000, 5, 4.0f / 3, 3}, .x = x, .y = want};
  struct lade_dropout_args on_gpu = args;
  on_gpu.x = at(&gpu, 1);
  on_gpu.y = at(&gpu, 2);
  for (uint32_t step = 7; step < 10; step++) {
    step_put(&gpu, step);
    assert_int_equal(run(&gpu, LADE_K_DROPOUT, &on_gpu), 0);
    move(&gpu, got, at(&gpu, 2), sizeof(got));
    plain_run(LADE_K_DROPOUT, &args, step);
    assert_memory_equal(got, want, sizeof(got));
  }
  gpu_close(&gpu);
}

static void an_update_has_the_bits_of_the_host(void **state)
{
  struct gpu gpu;
  static float grad[N], weight[N], m[N], v[N], got[N];
  struct lade_verdict verdict = {.norm = 1, .factor = 0.37f};
  float *tensors[] = {grad, weight, m, v};
  gpu_open(&gpu);
  kernels_open(&gpu);
  for (int i = 0; i < 4; i++) {
    values_make(tensors[i], N, i == 3 ? 1e-8f : -0.7f, 0.017f);
    move(&gpu, at(&gpu, 1 + i), tensors[i], sizeof(grad));
  }
  move(&gpu, at(&gpu, 5), &verdict, sizeof(verdict));
  struct lade_adamw_args args = {.n_elements = N, .has_decay = true, .verdict = &verdict, .grad = grad,
                                 .weight = weight, .m = m, .v = v};
  struct lade_adamw_args on_gpu = args;
  on_gpu.grad = at(&gpu, 1);
  on_gpu.weight = at(&gpu, 2);
  on_gpu.m = at(&gpu, 3);
  on_gpu.v = at(&gpu, 4);
  on_gpu.verdict = at(&gpu, 5);
  assert_int_equal(run(&gpu, LADE_K_ADAMW, &on_gpu), 0);
  plain_run(LADE_K_ADAMW, &args, 7);
  for (int i = 1; i < 4; i++) {
    move(&gpu, got, at(&gpu, 1 + i), sizeof(got));
    assert_memory_equal(got, tensors[i], sizeof(got));
  }
  gpu_close(&gpu);
}

/* Several launches, one after the other: each reads what the one before it wrote. */
static void launches_of_one_kernel_run_in_order(void **state)
{
  enum { ROWS = 37, COLUMNS = 40, D = 24 };
  struct gpu gpu;
  static float x[ROWS * D], weight[COLUMNS * D], losses[ROWS], lse[ROWS], workspace[1 << 20];
  int32_t targets[ROWS];
  float want, got;
  gpu_open(&gpu);
  kernels_open(&gpu);
  values_make(x, ROWS * D, -1, 0.02f);
  values_make(weight, COLUMNS * D, -0.5f, 0.01f);
  for (int i = 0; i < ROWS; i++)
    targets[i] = i % COLUMNS;
  move(&gpu, at(&gpu, 1), x, sizeof(x));
  move(&gpu, at(&gpu, 2), weight, sizeof(weight));
  move(&gpu, at(&gpu, 3), targets, sizeof(targets));
  struct lade_head_loss_fwd_args args = {.n = ROWS, .d = D, .vocabulary = COLUMNS, .x = x, .weight = weight,
                                         .targets = targets, .losses = losses, .lse = lse, .loss = &want,
                                         .workspace = workspace};
  struct lade_head_loss_fwd_args on_gpu = args;
  on_gpu.x = at(&gpu, 1);
  on_gpu.weight = at(&gpu, 2);
  on_gpu.targets = at(&gpu, 3);
  on_gpu.losses = at(&gpu, 4);
  on_gpu.lse = at(&gpu, 5);
  on_gpu.loss = at(&gpu, 6);
  on_gpu.workspace = at(&gpu, 7);
  assert_int_equal(run(&gpu, LADE_K_HEAD_LOSS_FWD, &on_gpu), 0);
  move(&gpu, &got, at(&gpu, 6), sizeof(got));
  plain_run(LADE_K_HEAD_LOSS_FWD, &args, 7);
  assert_true(fabsf(got - want) <= 1e-5f * want);
  gpu_close(&gpu);
}

static void missing_files_are_one_line(void **state)
{
  struct gpu gpu;
  struct lade_error error = {0};
  char library[4096];
  snprintf(library, sizeof(library), "%s", getenv("LADE_STANDIN_KERNELS"));
  unsetenv("LADE_STANDIN_KERNELS");
  gpu_open(&gpu);
  assert_int_equal(lade_cuda_kernels_open(gpu.device, "nowhere", &error, &gpu.kernels), -ENOENT);
  assert_non_null(strstr(error.text, "nowhere/adamw.fatbin"));
  setenv("LADE_STANDIN_KERNELS", library, 1);
  gpu_close(&gpu);
}

/* Loading fails at each call of the driver in turn: an error with words, and nothing is left of what was loaded. */
static void every_call_of_loading_may_fail(void **state)
{
  static const char *const calls[] = {"cuModuleLoad", "cuModuleGetFunction", "cuFuncSetAttribute",
                                      "cuDeviceGetAttribute"};
  struct gpu gpu;
  gpu_open(&gpu);
  for (size_t i = 0; i < LADE_COUNT(calls); i++) {
    for (int nth = 1; nth < 200; nth += nth < 3 ? 1 : 29) {
      char settings[128];
      struct lade_error error = {0};
      int64_t live = standin.live();
      snprintf(settings, sizeof(settings), "fail=%s,nth=%d,code=2", calls[i], nth);
      assert_int_equal(standin.set(settings), 0);
      int status = lade_cuda_kernels_open(gpu.device, "kernels", &error, &gpu.kernels);
      bool has_failed = standin.failed() > 0;
      assert_int_equal(standin.set(CALM), 0);
      assert_int_equal(status, has_failed ? -ENOMEM : 0);
      assert_int_equal(*error.text != 0, has_failed);
      if (!has_failed)
        lade_cuda_kernels_close(gpu.kernels);
      gpu.kernels = NULL;
      assert_int_equal(standin.live(), live);
    }
  }
  assert_int_equal(lade_device_status(gpu.device), 0);
  gpu_close(&gpu);
}

static void a_refused_launch_is_the_devices_status(void **state)
{
  struct gpu gpu;
  gpu_open(&gpu);
  kernels_open(&gpu);
  const struct lade_add_args args = {.n_elements = N, .x = at(&gpu, 1), .y = at(&gpu, 2)};
  assert_int_equal(run(&gpu, LADE_K_ADD, &args), 0);
  assert_int_equal(standin.set("fail=cuLaunchKernel,nth=1,code=719"), 0);
  assert_int_equal(run(&gpu, LADE_K_ADD, &args), -EFAULT);
  assert_int_equal(standin.set(CALM), 0);
  gpu_close(&gpu);
}

static bool standin_find(void)
{
  const struct symbol wanted[] = {
      {"standin_set", &standin.set},
      {"standin_failed", &standin.failed},
      {"standin_live", &standin.live},
  };
  return symbols_find("libcuda.so.1", wanted, LADE_COUNT(wanted));
}

int main(void)
{
  if (!standin_find()) {
    printf("SKIP: the driver here is not the stand-in\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_step_block_is_read_when_the_kernel_runs),
      cmocka_unit_test(an_update_has_the_bits_of_the_host),
      cmocka_unit_test(launches_of_one_kernel_run_in_order),
      cmocka_unit_test(missing_files_are_one_line),
      cmocka_unit_test(every_call_of_loading_may_fail),
      cmocka_unit_test(a_refused_launch_is_the_devices_status),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
