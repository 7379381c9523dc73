/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels loaded and launched through the driver, and products of cuBLASLt, over the fakes. They give the reference's
 * results in memory of the device and read the step block when they run. Every failure of loading or launching has a
 * name.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/float.h"
#include "kernels/cuda.h"
#include "kernels/cuda/launch_internal.h"
#include "kernels/cuda/matmul/cublaslt_library.h"
#include "tests/support/fakes/fakes.h"
#include "tests/support/fakes/products.h"

#define ARENA_BYTES ((uint64_t)4 << 20)
#define N 5000
#define CALM "fail=none,nth=1,code=2,forever=0,lose=0"
#define CALM_LT "version=130100,fail=none,nth=1,code=14,forever=0"

static struct fake_driver fake;
static struct fake_cublaslt lt;

/* A device with mapped memory, and queues that compute and copy. */
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

/* Return place @i of the arena. */
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
  const struct lade_cuda_work work = {kernel, args, gpu->step};
  lade_cuda_kernels_submit(gpu->kernels, gpu->compute, &work, NULL, &count);
  return lade_queue_sync(gpu->compute, count);
}

static void gpu_open(struct gpu *gpu)
{
  struct lade_error error = {0};
  const struct lade_cuda_device_params params = {.struct_size = sizeof(params), .capacity_bytes = 2 * ARENA_BYTES};
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
  plain.fn[kernel](&(struct lade_kernel_ctx){.step = &step, .kernels = &plain}, args);
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
  struct lade_clip_result clip_result = {.norm = 1, .factor = 0.37f};
  float *tensors[] = {grad, weight, m, v};
  gpu_open(&gpu);
  kernels_open(&gpu);
  for (int i = 0; i < 4; i++) {
    values_make(tensors[i], N, i == 3 ? 1e-8f : -0.7f, 0.017f);
    move(&gpu, at(&gpu, 1 + i), tensors[i], sizeof(grad));
  }
  move(&gpu, at(&gpu, 5), &clip_result, sizeof(clip_result));
  struct lade_adamw_args args = {.n_elements = N, .has_decay = true, .clip_result = &clip_result, .grad = grad,
                                 .weight = weight, .m = m, .v = v};
  struct lade_adamw_args on_gpu = args;
  on_gpu.grad = at(&gpu, 1);
  on_gpu.weight = at(&gpu, 2);
  on_gpu.m = at(&gpu, 3);
  on_gpu.v = at(&gpu, 4);
  on_gpu.clip_result = at(&gpu, 5);
  assert_int_equal(run(&gpu, LADE_K_ADAMW, &on_gpu), 0);
  plain_run(LADE_K_ADAMW, &args, 7);
  for (int i = 1; i < 4; i++) {
    move(&gpu, got, at(&gpu, 1 + i), sizeof(got));
    assert_memory_equal(got, tensors[i], sizeof(got));
  }
  gpu_close(&gpu);
}

/* Several launches in order: each reads the output of the one before it. */
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
  snprintf(library, sizeof(library), "%s", getenv("LADE_FAKE_KERNELS"));
  unsetenv("LADE_FAKE_KERNELS");
  gpu_open(&gpu);
  assert_int_equal(lade_cuda_kernels_open(gpu.device, "nowhere", &error, &gpu.kernels), -ENOENT);
  assert_non_null(strstr(error.text, "nowhere/adamw.fatbin"));
  setenv("LADE_FAKE_KERNELS", library, 1);
  gpu_close(&gpu);
}

/* A driver runs code of its own major version and of those before. */
static void a_driver_too_old_for_the_kernels_is_one_line(void **state)
{
  static const struct {
    const char *gpu, *toolkit, *fault;
    int status;
  } cases[] = {{"version=12040", "13.0\n", CALM, -ENODEV},
               {"version=13000", "13.2\n", CALM, 0},
               {"version=13000", "12.9\n", CALM, 0},
               {"version=13000", "unknown\n", CALM, 0},
               {"version=12040", "12.9\n", "fail=cuModuleLoad,nth=1,code=200", -ENODEV},
               {"version=12040", "12.9\n", "fail=cuModuleLoad,nth=1,code=218", -ENODEV}};
  char folder[] = "/tmp/lade-toolkit-XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof(path), "%s/toolkit", folder);
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct gpu gpu;
    struct lade_error error = {0};
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(cases[i].toolkit, file) >= 0 && !fclose(file));
    assert_int_equal(fake.set(cases[i].gpu), 0);
    gpu_open(&gpu);
    assert_int_equal(fake.set(cases[i].fault), 0);
    assert_int_equal(lade_cuda_kernels_open(gpu.device, folder, &error, &gpu.kernels), cases[i].status);
    assert_true(!cases[i].status || (strstr(error.text, "of CUDA 12.4, is too old") && strstr(error.text, folder)));
    assert_int_equal(fake.set(CALM ",version=13000"), 0);
    gpu_close(&gpu);
  }
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

/* Loading fails at each call of the driver in turn: an error with a message, and no loaded code is left. */
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
      int64_t live = fake.live();
      snprintf(settings, sizeof(settings), "fail=%s,nth=%d,code=2", calls[i], nth);
      assert_int_equal(fake.set(settings), 0);
      int status = lade_cuda_kernels_open(gpu.device, "kernels", &error, &gpu.kernels);
      bool has_failed = fake.failed() > 0;
      assert_int_equal(fake.set(CALM), 0);
      assert_int_equal(status, has_failed ? -ENOMEM : 0);
      assert_int_equal(*error.text != 0, has_failed);
      if (!has_failed)
        lade_cuda_kernels_close(gpu.kernels);
      gpu.kernels = NULL;
      assert_int_equal(fake.live(), live);
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
  assert_int_equal(fake.set("fail=cuLaunchKernel,nth=1,code=719"), 0);
  assert_int_equal(run(&gpu, LADE_K_ADD, &args), -EFAULT);
  assert_int_equal(fake.set(CALM), 0);
  gpu_close(&gpu);
}

/* ---- products of cuBLASLt ---- */

/* Return the scratch of a product by the GPU's table. */
static size_t scratch_get(const struct gpu *gpu, const struct lade_matmul_args *args)
{
  struct lade_kernels table;
  lade_cuda_kernels_get(gpu->kernels, &table);
  return lade_kernel_workspace_bytes(&table, LADE_K_MATMUL, args, 1);
}

/* Compute @p on the GPU with all operands shifted by @shift bytes; c is copied to @got. */
static int product_run(struct gpu *gpu, const struct product *p, size_t shift, void *got)
{
  struct lade_matmul_args args = p->args;
  char *a = (char *)at(gpu, 1) + shift, *b = (char *)at(gpu, 2) + shift, *c = (char *)at(gpu, 3) + shift;
  char *bias = (char *)at(gpu, 4) + shift;
  assert_true(scratch_get(gpu, &args) <= 4 * PLACE_BYTES);
  move(gpu, a, p->a, sizeof(p->a));
  move(gpu, b, p->b, sizeof(p->b));
  move(gpu, c, p->c, c_bytes(p));
  move(gpu, bias, p->bias, sizeof(p->bias));
  args.a = a;
  args.b = b;
  args.c = c;
  args.bias = p->args.bias ? bias : NULL;
  args.workspace = at(gpu, 5);
  int status = run(gpu, LADE_K_MATMUL, &args);
  if (!status)
    move(gpu, got, c, c_bytes(p));
  return status;
}

static void product_check(struct gpu *gpu, const struct product *p, size_t shift)
{
  static struct product want;
  static _Alignas(64) char got[PLACE_BYTES / 4];
  want = *p;
  want.args.a = want.a;
  want.args.b = want.b;
  want.args.c = want.c;
  want.args.bias = p->args.bias ? want.bias : NULL;
  assert_int_equal(product_run(gpu, p, shift, got), 0);
  plain_run(LADE_K_MATMUL, &want.args, 7);
  distance_check(&p->args, got, want.c);
}

/* The last one's rows of 16-bit values do not begin at multiples of 16 bytes, which the library refuses. */
static const int64_t shapes[][3] = {{8, 8, 8}, {24, 40, 16}, {32, 16, 200}, {7, 30, 21}};

static void products_are_the_librarys_and_right(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  struct gpu gpu;
  static struct product p;
  gpu_open(&gpu);
  kernels_open(&gpu);
  for (size_t s = 0; s < LADE_COUNT(shapes); s++)
    for (int layout = LADE_NT; layout <= LADE_TN; layout++)
      for (size_t d = 0; d < LADE_COUNT(dtypes); d++)
        for (int form = 0; form < 4; form++) {
          bool is_wide = form & 1, has_bias = form == 2;
          const struct lade_matmul_args args = {.layout = (enum lade_matmul_layout)layout, .dtype = dtypes[d],
                                                .out = is_wide ? LADE_F32 : dtypes[d], .m = shapes[s][0],
                                                .n = shapes[s][1], .k = shapes[s][2], .accumulate = form == 3};
          uint64_t before = lt.calls("cublasLtMatmul");
          bool is_own = dtypes[d] != LADE_F32 && s == LADE_COUNT(shapes) - 1;
          product_make(&p, &args, has_bias);
          product_check(&gpu, &p, 0);
          assert_int_equal(lt.calls("cublasLtMatmul") - before, !is_own);
        }
  gpu_close(&gpu);
}

/* A product with GELU, its shape, and how many products of the library and launches of kernels it takes. */
struct gelu_case {
  enum lade_kernel kernel;
  enum lade_dtype dtype;
  int64_t m, n, k;
  uint64_t n_products, n_launches;
};

static void gelu_case_check(struct gpu *gpu, const struct gelu_case *c)
{
  static struct product p;
  static char x[PLACE_BYTES / 4], y[PLACE_BYTES / 4], got[PLACE_BYTES / 4];
  static _Alignas(64) char sums[PLACE_BYTES / 4];
  const bool is_slope = c->kernel == LADE_K_MATMUL_GELU_BWD;
  const struct lade_matmul_args args = {.layout = is_slope ? LADE_NN : LADE_NT, .dtype = c->dtype, .out = c->dtype,
                                        .m = c->m, .n = c->n, .k = c->k};
  product_make(&p, &args, !is_slope);
  operand_make(args.dtype, x, args.m * args.n, 5);
  struct lade_matmul_gelu_bwd_args want = {.product = p.args}, on_gpu = {.product = p.args}; /* or their products */
  want.product.gelu_x = is_slope ? x : NULL;
  want.product.gelu_y = is_slope ? NULL : y;
  want.product.workspace = sums;
  on_gpu.product.a = at(gpu, 1);
  on_gpu.product.b = at(gpu, 2);
  on_gpu.product.c = at(gpu, 3);
  on_gpu.product.bias = is_slope ? NULL : at(gpu, 4);
  on_gpu.product.gelu_x = is_slope ? at(gpu, 5) : NULL;
  on_gpu.product.gelu_y = is_slope ? NULL : at(gpu, 5);
  on_gpu.product.workspace = at(gpu, 6);
  move(gpu, at(gpu, 1), p.a, sizeof(p.a));
  move(gpu, at(gpu, 2), p.b, sizeof(p.b));
  move(gpu, at(gpu, 4), p.bias, sizeof(p.bias));
  move(gpu, at(gpu, 5), x, sizeof(x));
  struct lade_kernels table;
  lade_cuda_kernels_get(gpu->kernels, &table);
  lade_kernel_workspace_bytes(&table, c->kernel, &on_gpu, 1);
  assert_int_equal(!is_slope && lade_cuda_lacks_gelu(&table, &on_gpu.product), !is_slope && !c->n_products);
  const uint64_t products = lt.calls("cublasLtMatmul"), launches = fake.calls("cuLaunchKernel");
  const uint64_t chosen = lt.calls("cublasLtMatmulAlgoGetHeuristic");
  assert_int_equal(run(gpu, c->kernel, &on_gpu), 0);
  assert_int_equal(lt.calls("cublasLtMatmul") - products, c->n_products);
  assert_int_equal(fake.calls("cuLaunchKernel") - launches, c->n_launches);
  assert_int_equal(lt.calls("cublasLtMatmulAlgoGetHeuristic"), chosen);
  plain_run(c->kernel, &want, 7);
  move(gpu, got, at(gpu, 3), c_bytes(&p));
  distance_check(&p.args, got, p.c);
  move(gpu, got, at(gpu, 5), c_bytes(&p));
  distance_check(&p.args, got, is_slope ? x : y);
}

/*
 * GELU and its slope are the library's epilogues, without a launch of their own, where it takes the product: in 16 bits
 * and rows of whole 16 bytes. Elsewhere kernels follow, or the plain product has GELU. All are right.
 */
static void gelu_and_its_slope_are_the_librarys_epilogues(void **state)
{
  static const struct gelu_case cases[] = {
      {LADE_K_MATMUL_GELU_BWD, LADE_BF16, 24, 40, 16, 1, 0}, {LADE_K_MATMUL_GELU_BWD, LADE_F16, 24, 40, 200, 1, 0},
      {LADE_K_MATMUL_GELU_BWD, LADE_F32, 24, 40, 16, 1, 1},  {LADE_K_MATMUL_GELU_BWD, LADE_BF16, 24, 30, 16, 0, 2},
      {LADE_K_MATMUL_GELU_FWD, LADE_BF16, 24, 40, 16, 1, 0}, {LADE_K_MATMUL_GELU_FWD, LADE_F16, 24, 40, 200, 1, 0},
      {LADE_K_MATMUL_GELU_FWD, LADE_F32, 24, 40, 16, 1, 1},  {LADE_K_MATMUL_GELU_FWD, LADE_BF16, 24, 30, 16, 0, 1}};
  struct gpu gpu;
  gpu_open(&gpu);
  kernels_open(&gpu);
  for (size_t i = 0; i < LADE_COUNT(cases); i++)
    gelu_case_check(&gpu, &cases[i]);
  gpu_close(&gpu);
}

/* A gradient that waits elsewhere is computed anew and added: the bits must be those of accumulating, split or not. */
static void accumulating_adds_the_complete_sum_once(void **state)
{
  struct gpu gpu;
  static struct product p;
  static float fresh[4096], sum[4096];
  gpu_open(&gpu);
  kernels_open(&gpu);
  for (size_t s = 1; s < 3; s++) {
    struct lade_matmul_args args = {.layout = LADE_TN, .dtype = LADE_BF16, .out = LADE_F32, .m = shapes[s][0],
                                    .n = shapes[s][1], .k = shapes[s][2]};
    product_make(&p, &args, false);
    assert_int_equal(scratch_get(&gpu, &args) > 0, args.k > 100);
    assert_int_equal(product_run(&gpu, &p, 0, fresh), 0);
    p.args.accumulate = true;
    assert_int_equal(product_run(&gpu, &p, 0, sum), 0);
    for (int64_t i = 0; i < args.m * args.n; i++)
      assert_true(sum[i] == ((const float *)p.c)[i] + fresh[i]);
  }
  gpu_close(&gpu);
}

/* A step must choose and allocate nothing: both happen when a product's scratch is queried. */
static void an_algorithm_is_chosen_once_for_a_kind(void **state)
{
  static const char *const making[] = {"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulDescCreate",
                                       "cublasLtMatrixLayoutCreate"};
  struct gpu gpu;
  static struct product p;
  static char got[PLACE_BYTES / 4];
  const struct lade_matmul_args args = {.dtype = LADE_BF16, .out = LADE_BF16, .m = 16, .n = 24, .k = 32};
  gpu_open(&gpu);
  kernels_open(&gpu);
  assert_int_equal(lt.set(CALM_LT), 0);
  product_make(&p, &args, true);
  scratch_get(&gpu, &p.args);
  assert_int_equal(lt.calls(making[0]), 1);
  int64_t live = lt.live();
  assert_int_equal(lt.set(CALM_LT), 0);
  for (int i = 0; i < 3; i++)
    assert_int_equal(product_run(&gpu, &p, 0, got), 0);
  assert_int_equal(lt.calls("cublasLtMatmul"), 3);
  for (size_t i = 0; i < LADE_COUNT(making); i++)
    assert_int_equal(lt.calls(making[i]), 0);
  assert_int_equal(lt.live(), live);
  gpu_close(&gpu);
  assert_int_equal(lt.live(), 0);
}

static void operands_that_lie_askew_are_the_plain_kernels(void **state)
{
  struct gpu gpu;
  static struct product p;
  const struct lade_matmul_args args = {.dtype = LADE_F32, .out = LADE_F32, .m = 16, .n = 24, .k = 32};
  gpu_open(&gpu);
  kernels_open(&gpu);
  assert_int_equal(lt.set(CALM_LT), 0);
  product_make(&p, &args, true);
  product_check(&gpu, &p, 4);
  assert_int_equal(lt.calls("cublasLtMatmul"), 0);
  product_check(&gpu, &p, 16);
  assert_int_equal(lt.calls("cublasLtMatmul"), 1);
  gpu_close(&gpu);
}

/* Without a working library the plain kernel multiplies, one line says so, and the numerics key is another. */
static void without_the_library_products_are_plain(void **state)
{
  static const struct {
    const char *settings, *wish, *words;
  } cases[] = {{CALM_LT, NULL, ""},
               {"version=110000", NULL, "is of version 110000"},
               {"fail=cublasLtCreate,nth=1,code=1", NULL, "cublasLtCreate"},
               {CALM_LT, "plain", ""}};
  struct gpu gpu;
  static struct product p;
  const struct lade_matmul_args args = {.dtype = LADE_BF16, .out = LADE_BF16, .m = 16, .n = 24, .k = 32};
  uint64_t keys[LADE_COUNT(cases)];
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_kernels table;
    gpu_open(&gpu);
    assert_int_equal(lt.set(cases[i].settings), 0);
    if (cases[i].wish)
      setenv("LADE_MATMUL", cases[i].wish, 1);
    kernels_open(&gpu);
    unsetenv("LADE_MATMUL");
    lade_cuda_kernels_get(gpu.kernels, &table);
    keys[i] = lade_kernels_key(&table);
    assert_string_equal(table.variant[LADE_K_MATMUL], i ? "cuda" : "cublaslt");
    assert_int_equal(*lade_cuda_kernels_note(gpu.kernels) != 0, *cases[i].words != 0);
    assert_non_null(strstr(lade_cuda_kernels_note(gpu.kernels), cases[i].words));
    product_make(&p, &args, true);
    product_check(&gpu, &p, 0);
    assert_int_equal(lt.calls("cublasLtMatmul") > 0, i == 0);
    gpu_close(&gpu);
    assert_int_equal(lt.set(CALM_LT), 0);
  }
  assert_true(keys[0] != keys[1] && keys[1] == keys[2] && keys[2] == keys[3]);
}

/* Kernels that cut a sum at other places give other numbers under the same name, so each cut is in the numerics key. */
static void cuts_of_sums_are_in_the_key(void **state)
{
  struct lade_kernels table;
  int32_t cuts[16];
  lade_cuda_kernels_init(&table);
  const uint64_t key = lade_kernels_key(&table);
  assert_in_range(table.n_cuts, 1, LADE_COUNT(cuts));
  memcpy(cuts, table.cuts, (size_t)table.n_cuts * sizeof(*cuts));
  table.cuts = cuts;
  assert_true(lade_kernels_key(&table) == key);
  for (int i = 0; i < table.n_cuts; i++) {
    cuts[i]++;
    assert_true(lade_kernels_key(&table) != key);
    cuts[i]--;
  }
}

/*
 * The choice of attention kernels under an environment and a GPU with possible errors: the chosen kernel and the
 * notice.
 */
struct attention_case {
  const char *gpu, *wish, *idle, *variants[2], *words[2];
};

/* Return its numerics key; @ret_out: its result for a small problem. */
enum { SEQ_LEN = 40, DIM = 64 };
static uint64_t attention_check(const struct attention_case *c, const uint16_t *qkv, uint16_t *ret_out)
{
  struct gpu gpu;
  struct lade_kernels table;
  struct lade_attention_fwd_args args = {.dtype = LADE_BF16, .batch = 1, .seq_len = SEQ_LEN, .heads = 1,
                                         .n_kv_heads = 1, .head_dim = DIM};
  assert_int_equal(fake.set(CALM ",sm=90"), 0);
  assert_int_equal(fake.set(c->gpu), 0);
  setenv("LADE_ATTENTION", c->wish, 1);
  setenv("LADE_FAKE_IDLE", c->idle, 1);
  gpu_open(&gpu);
  kernels_open(&gpu);
  assert_int_equal(fake.set(CALM ",sm=90"), 0);
  lade_cuda_kernels_get(gpu.kernels, &table);
  const char *note = lade_cuda_kernels_attention_note(gpu.kernels);
  assert_string_equal(table.variant[LADE_K_ATTENTION_FWD], c->variants[0]);
  assert_string_equal(table.variant[LADE_K_ATTENTION_BWD], c->variants[1]);
  assert_int_equal(*note != 0, *c->words[0] != 0);
  assert_true(strstr(note, c->words[0]) && strstr(note, c->words[1]));
  move(&gpu, at(&gpu, 1), qkv, SEQ_LEN * 3 * DIM * sizeof(*qkv));
  args.qkv = at(&gpu, 1);
  args.out = at(&gpu, 2);
  args.lse = at(&gpu, 3);
  assert_int_equal(run(&gpu, LADE_K_ATTENTION_FWD, &args), 0);
  move(&gpu, ret_out, args.out, SEQ_LEN * DIM * sizeof(*ret_out));
  uint64_t key = lade_kernels_key(&table);
  gpu_close(&gpu);
  unsetenv("LADE_FAKE_IDLE");
  setenv("LADE_ATTENTION", "mma", 1);
  return key;
}

/*
 * The best correct kernel is chosen, separately for forward and backward. A kernel that is wrong, or that the driver
 * refuses, is replaced by the next one with a notice. Results are close to each other, and the numerics key names the
 * kernels.
 */
static void attention_is_the_best_that_is_right(void **state)
{
  static const struct attention_case cases[] = {
      {"sm=90", "plain", "", {"cuda", "cuda"}, {"", ""}},
      {"sm=90", "mma", "", {"cuda_mma", "cuda_mma"}, {"", ""}},
      {"sm=90", "wgmma", "", {"cuda_wgmma", "cuda_wgmma"}, {"", ""}},
      {"sm=90", "", "", {"cuda_wgmma", "cuda_wgmma"}, {"", ""}},
      {"sm=90", "", "attention_wgmma_fwd_128_f16", {"cuda_mma", "cuda_wgmma"},
       {"attention by wgmma is wrong", "forward for heads of 128 in f16"}},
      {"sm=90", "", "attention_wgmma_dkv_64_bf16", {"cuda_wgmma", "cuda_mma"},
       {"attention by wgmma is wrong", "backward for heads of 64 in bf16"}},
      {"sm=80,fail=cuLaunchKernel,nth=2,code=701", "", "attention_mma_dkv_128_bf16", {"cuda", "cuda"},
       {"the driver answers 701): plain", "backward for heads of 128 in bf16"}},
      {"sm=80", "", "attention_mma_more_dq_256_f16", {"cuda_mma", "cuda"},
       {"attention by mma is wrong", "backward for heads of 256 in f16"}},
      {"sm=90", "", "attention_mma_form_dq_64_bf16", {"cuda_wgmma", "cuda"},
       {"attention by mma is wrong", "backward for heads of 64 in bf16 with a window"}},
  };
  static uint16_t qkv[SEQ_LEN * 3 * DIM], out[LADE_COUNT(cases)][SEQ_LEN * DIM];
  uint64_t keys[LADE_COUNT(cases)];
  operand_make(LADE_BF16, qkv, LADE_COUNT(qkv), 3);
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    keys[i] = attention_check(&cases[i], qkv, out[i]);
    for (int k = 0; k < SEQ_LEN * DIM; k++) {
      float x = lade_bf16_to_f32(out[i][k]), y = lade_bf16_to_f32(out[0][k]);
      assert_true(fabsf(x - y) <= 0x1p-6f * (1 + fabsf(y)));
    }
  }
  assert_true(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
  assert_true(keys[3] == keys[2] && keys[4] != keys[5] && keys[6] == keys[0]);
  for (int i = 4; i < 8; i += i == 5 ? 2 : 1) /* a mixture */
    assert_true(keys[i] != keys[0] && keys[i] != keys[1] && keys[i] != keys[2]);
}

/* Sizes of heads and forms of scores that the chosen attention lacks are noted with their price, and no others. */
static void slower_attention_is_noted(void **state)
{
  struct lade_kernels kernels;
  const struct lade_score_form whole = {.scale = 0.3f}, window = {.window = 7}, alibi = {.alibi_max = 8};
  lade_cuda_kernels_init(&kernels);
  assert_string_equal(lade_cuda_attention_form_note(&kernels, LADE_BF16, 128, &window), "");
  assert_non_null(strstr(lade_cuda_attention_form_note(&kernels, LADE_BF16, 32, &whole), "7 %"));
  lade_cuda_attention_choose(&kernels, LADE_K_ATTENTION_FWD, LADE_CUDA_BY_WGMMA);
  assert_non_null(strstr(lade_cuda_attention_form_note(&kernels, LADE_BF16, 128, &window), "60 %"));
  assert_non_null(strstr(lade_cuda_attention_form_note(&kernels, LADE_BF16, 128, &alibi), "60 %"));
  assert_string_equal(lade_cuda_attention_form_note(&kernels, LADE_BF16, 128, &whole), "");
  assert_non_null(strstr(lade_cuda_attention_form_note(&kernels, LADE_BF16, 96, &whole), "60 %"));
  assert_non_null(strstr(lade_cuda_attention_form_note(&kernels, LADE_F16, 112, &whole), "7 %"));
  assert_string_equal(lade_cuda_attention_form_note(&kernels, LADE_F32, 128, &window), "");
}

/* An attention that this GPU lacks, and a persistent error during the trials, leave no kernels open. */
static void attention_that_cannot_be_is_refused(void **state)
{
  static const struct {
    const char *gpu, *fault, *wish, *words;
    int status;
  } cases[] = {{"sm=80", CALM, "wgmma", "compute capability 9.0", -ENODEV},
               {"sm=90", "fail=cuMemCreate,nth=1,code=2", "", "cannot be tried", -ENOMEM},
               {"sm=90", "fail=cuLaunchKernel,nth=1,code=701", "",
                "attention by plain, heads of 128 in bf16: the driver answers 701", -EFAULT},
               {"sm=90", "lose=6,lose_code=719", "", "attention by wgmma was tried; LADE_ATTENTION=mma", -EFAULT}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct gpu gpu;
    struct lade_error error = {0};
    assert_int_equal(fake.set(cases[i].gpu), 0);
    gpu_open(&gpu);
    setenv("LADE_ATTENTION", cases[i].wish, 1);
    int64_t live = fake.live();
    assert_int_equal(fake.set(cases[i].fault), 0);
    assert_int_equal(lade_cuda_kernels_open(gpu.device, "kernels", &error, &gpu.kernels), cases[i].status);
    if (!strstr(error.text, cases[i].words))
      fail_msg("'%s' is not in: %s", cases[i].words, error.text);
    assert_int_equal(fake.set(CALM ",sm=90"), 0);
    assert_int_equal(fake.live(), live);
    setenv("LADE_ATTENTION", "mma", 1);
    gpu_close(&gpu);
  }
}

/* Run a session with two kinds of products: opens, chooses, runs, closes. Its error is in @error. */
static int products_session(struct product *p, struct lade_error *error)
{
  struct gpu gpu;
  static char got[PLACE_BYTES / 4];
  gpu_open(&gpu);
  int status = lade_cuda_kernels_open(gpu.device, "kernels", error, &gpu.kernels);
  for (int i = 0; i < 2 && !status; i++) {
    p->args.bias = i ? p->bias : NULL;
    status = product_run(&gpu, p, 0, got);
    if (status)
      lade_cuda_get_error(gpu.device, error);
  }
  gpu_close(&gpu);
  return status;
}

static void every_call_of_the_library_may_fail(void **state)
{
#define NAME(type, name, arguments) #name,
  static const char *const names[] = {LADE_CUBLASLT_FUNCTIONS(NAME)};
  static struct product p;
  const struct lade_matmul_args args = {.dtype = LADE_BF16, .out = LADE_BF16, .m = 16, .n = 24, .k = 32};
  product_make(&p, &args, false);
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    bool has_failed = true;
    for (int nth = 1; has_failed; nth++) {
      char settings[128];
      struct lade_error error = {0};
      int64_t live = fake.live();
      snprintf(settings, sizeof(settings), "fail=%s,nth=%d,code=3", names[i], nth);
      assert_int_equal(lt.set(settings), 0);
      int status = products_session(&p, &error);
      has_failed = lt.failed() > 0;
      bool is_end = strstr(names[i], "Destroy") != NULL; /* a released object is gone, whatever the call returns */
      assert_int_equal(lt.set(CALM_LT), 0);
      assert_int_equal(status, has_failed && !is_end ? -ENOMEM : 0);
      assert_int_equal(*error.text != 0, status != 0);
      assert_true(is_end || !status || strstr(error.text, "CUBLAS_STATUS_ALLOC_FAILED"));
      assert_int_equal(fake.live(), live);
      assert_int_equal(lt.live(), 0);
    }
  }
}

int main(void)
{
  if (!fake_driver_find(&fake) || !fake_cublaslt_find(&lt)) {
    printf("SKIP: the driver or the cuBLASLt here is not the fake\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_step_block_is_read_when_the_kernel_runs),
      cmocka_unit_test(an_update_has_the_bits_of_the_host),
      cmocka_unit_test(launches_of_one_kernel_run_in_order),
      cmocka_unit_test(missing_files_are_one_line),
      cmocka_unit_test(a_driver_too_old_for_the_kernels_is_one_line),
      cmocka_unit_test(every_call_of_loading_may_fail),
      cmocka_unit_test(a_refused_launch_is_the_devices_status),
      cmocka_unit_test(products_are_the_librarys_and_right),
      cmocka_unit_test(gelu_and_its_slope_are_the_librarys_epilogues),
      cmocka_unit_test(accumulating_adds_the_complete_sum_once),
      cmocka_unit_test(an_algorithm_is_chosen_once_for_a_kind),
      cmocka_unit_test(operands_that_lie_askew_are_the_plain_kernels),
      cmocka_unit_test(without_the_library_products_are_plain),
      cmocka_unit_test(cuts_of_sums_are_in_the_key),
      cmocka_unit_test(attention_is_the_best_that_is_right),
      cmocka_unit_test(attention_that_cannot_be_is_refused),
      cmocka_unit_test(slower_attention_is_noted),
      cmocka_unit_test(every_call_of_the_library_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
