/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every variant of the matrix product against the plain one in double: all layouts, dtypes, output types,
 * hostile shapes and values, accumulation, and the same bits for any number of threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/philox.h"
#include "kernels/host/element.h"
#include "kernels/host/host.h"

#define SEED 20250807
#define LEVELS 4

enum values { RANDOM, ALL_MIN, ALL_MAX };

/* One product's memory: its operands in D and again in double. */
struct problem {
  struct lade_matmul_args args, exact;
  void *start;  /* of c */
  void *result; /* of a first run, to compare with */
  size_t c_bytes;
};

static int levels_make(struct lade_kernels levels[LEVELS])
{
  struct lade_cpu has = lade_cpu_get(), cpu = {0};
  int n = 0;
  lade_kernels_init(&levels[n++], &cpu);
  cpu.has_avx2 = true;
  if (has.has_avx2)
    lade_kernels_init(&levels[n++], &cpu);
  cpu.has_avx512 = true;
  if (has.has_avx512)
    lade_kernels_init(&levels[n++], &cpu);
  cpu.has_avx512_bf16 = true;
  if (has.has_avx512_bf16)
    lade_kernels_init(&levels[n++], &cpu);
  return n;
}

static void *memory_make(size_t n_bytes)
{
  void *memory = aligned_alloc(64, lade_align_up(n_bytes + 1, 64));
  assert_non_null(memory);
  memset(memory, 0, n_bytes);
  return memory;
}

static double value_draw(enum values values, uint32_t stream, int64_t i)
{
  if (values == ALL_MIN)
    return -2;
  if (values == ALL_MAX)
    return 2;
  return (double)lade_philox_word(SEED, 0, stream, (uint64_t)i) / 0x1p31 - 1;
}

/* @n values in @dtype into *@ret_data, and exactly the same in double. */
static void *operand_make(enum lade_dtype dtype, enum values values, uint32_t stream, int64_t n, void **ret_exact)
{
  void *data = memory_make((size_t)n * lade_dtype_bytes(dtype));
  double *exact = memory_make((size_t)n * sizeof(double));
  for (int64_t i = 0; i < n; i++) {
    lade_element_store(dtype, data, i, value_draw(values, stream, i));
    exact[i] = lade_element_load(dtype, data, i);
  }
  *ret_exact = exact;
  return data;
}

static struct problem problem_make(struct lade_matmul_args args, enum values values, bool has_bias)
{
  struct problem problem = {.args = args, .exact = args};
  void *a, *b, *bias, *c;
  problem.args.a = operand_make(args.dtype, values, 1, args.m * args.k, &a);
  problem.args.b = operand_make(args.dtype, values, 2, args.n * args.k, &b);
  problem.args.bias = operand_make(args.dtype, values, 3, args.n, &bias);
  problem.start = operand_make(args.out, values, 4, args.m * args.n, &c);
  problem.c_bytes = (size_t)(args.m * args.n) * lade_dtype_bytes(args.out);
  problem.args.c = memory_make(problem.c_bytes);
  problem.result = memory_make(problem.c_bytes);
  problem.exact.dtype = problem.exact.out = LADE_F64;
  problem.exact.a = a;
  problem.exact.b = b;
  problem.exact.bias = bias;
  problem.exact.c = c;
  if (!has_bias) {
    free((void *)problem.args.bias);
    free(bias);
    problem.args.bias = problem.exact.bias = NULL;
  }
  return problem;
}

static void problem_free(struct problem *problem)
{
  free((void *)problem->args.a);
  free((void *)problem->args.b);
  free((void *)problem->args.bias);
  free((void *)problem->exact.a);
  free((void *)problem->exact.b);
  free((void *)problem->exact.bias);
  free(problem->exact.c);
  free(problem->args.c);
  free(problem->start);
  free(problem->result);
}

static void problem_run(struct problem *problem, const struct lade_kernels *kernels, lade_pool *pool)
{
  struct lade_kernel_ctx ctx = {.pool = pool};
  size_t n_bytes = lade_kernel_workspace_bytes(kernels, LADE_K_MATMUL, &problem->args, lade_pool_n_threads(pool));
  char *workspace = memory_make(n_bytes);
  memset(workspace, 0xff, n_bytes + 1); /* NaN, and a guard byte */
  problem->args.workspace = workspace;
  memcpy(problem->args.c, problem->start, problem->c_bytes);
  kernels->fn[LADE_K_MATMUL](&ctx, &problem->args);
  assert_int_equal((unsigned char)workspace[n_bytes], 0xff);
  free(workspace);
}

/* ||c - exact|| against the rounding of k products and of the output. */
static void problem_compare(const struct problem *problem, const char *variant)
{
  const struct lade_matmul_args *args = &problem->args;
  double error = 0, norm = 0, unit = args->out == LADE_BF16 ? 0x1p-8 : args->out == LADE_F16 ? 0x1p-11 : 0x1p-24;
  for (int64_t i = 0; i < args->m * args->n; i++) {
    double exact = ((const double *)problem->exact.c)[i], diff = lade_element_load(args->out, args->c, i) - exact;
    error += diff * diff;
    norm += exact * exact;
  }
  double bound = unit + 0x1p-23 * sqrt((double)args->k) + 0x1p-23;
  if (!(sqrt(error) <= bound * sqrt(norm)))
    fail_msg("%s %s->%s layout %d m %ld n %ld k %ld accumulate %d bias %d: error %g of %g, bound %g", variant,
             lade_dtype_name(args->dtype), lade_dtype_name(args->out), args->layout, (long)args->m, (long)args->n,
             (long)args->k, args->accumulate, args->bias != NULL, sqrt(error), sqrt(norm), bound);
}

static void problem_check(struct lade_matmul_args args, enum values values, bool has_bias)
{
  static const int n_threads[] = {1, 2, 5};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(levels);
  struct problem problem = problem_make(args, values, has_bias);
  struct lade_kernel_ctx alone = {0};
  lade_matmul_plain(&alone, &problem.exact);
  for (int level = 0; level < n_levels; level++) {
    for (size_t i = 0; i < LADE_COUNT(n_threads); i++) {
      lade_pool *pool;
      assert_int_equal(lade_pool_create(n_threads[i], &pool), 0);
      problem_run(&problem, &levels[level], pool);
      lade_pool_destroy(pool);
      if (i == 0)
        memcpy(problem.result, problem.args.c, problem.c_bytes);
      assert_memory_equal(problem.args.c, problem.result, problem.c_bytes);
    }
    problem_compare(&problem, levels[level].variant[LADE_K_MATMUL]);
  }
  problem_free(&problem);
}

static void any_shape_layout_and_dtype_is_right(void **state)
{
  static const int64_t shapes[][3] = {{1, 1, 1},    {1, 33, 7},    {13, 31, 2},    {12, 32, 16},  {97, 101, 89},
                                      {25, 65, 33}, {200, 70, 17}, {61, 67, 1027}, {5, 399, 400}, {211, 7, 385}};
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  for (size_t s = 0; s < LADE_COUNT(shapes); s++)
    for (int layout = LADE_NT; layout <= LADE_TN; layout++)
      for (size_t d = 0; d < LADE_COUNT(dtypes); d++)
        for (int kind = 0; kind < 4; kind++) {
          bool is_wide = kind & 1;
          struct lade_matmul_args args = {.layout = (enum lade_layout)layout, .dtype = dtypes[d],
                                          .out = is_wide ? LADE_F32 : dtypes[d], .m = shapes[s][0],
                                          .n = shapes[s][1], .k = shapes[s][2], .accumulate = kind == 3};
          problem_check(args, RANDOM, kind == 2);
        }
}

static void extreme_values_are_right(void **state)
{
  for (int layout = LADE_NT; layout <= LADE_TN; layout++)
    for (int values = ALL_MIN; values <= ALL_MAX; values++) {
      struct lade_matmul_args args = {.layout = (enum lade_layout)layout, .dtype = LADE_BF16, .out = LADE_F32,
                                      .m = 37, .n = 50, .k = 801, .accumulate = true};
      problem_check(args, (enum values)values, false);
    }
}

static void a_weight_larger_than_the_shared_room_is_right(void **state)
{
  struct lade_matmul_args args = {.layout = LADE_NT, .dtype = LADE_BF16, .out = LADE_BF16, .m = 20, .n = 1100,
                                  .k = 2050};
  problem_check(args, RANDOM, true);
  args.layout = LADE_NN;
  problem_check(args, RANDOM, false);
}

int main(void)
{
  printf("seed %d\n", SEED);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_shape_layout_and_dtype_is_right),
      cmocka_unit_test(extreme_values_are_right),
      cmocka_unit_test(a_weight_larger_than_the_shared_room_is_right),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
