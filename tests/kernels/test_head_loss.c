/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head and its loss at every level against the plain one in double: vocabularies on both sides of a chunk,
 * rows on both sides of a block, ignored targets, accumulation, and the same bits for any number of threads.
 */
#include "exact.h"

struct problem {
  struct lade_head_loss_fwd_args fwd, fwd_exact;
  struct lade_head_loss_bwd_args bwd, bwd_exact;
  void *start; /* of d_weight */
  int32_t *targets;
};

static struct problem problem_make(enum lade_dtype dtype, int64_t n, int64_t d, int64_t vocabulary, bool accumulate)
{
  struct problem problem = {.targets = memory_make((size_t)n * sizeof(int32_t))};
  void *x, *weight, *d_weight;
  for (int64_t i = 0; i < n; i++) {
    uint32_t word = lade_philox_word(SEED, 0, 7, (uint64_t)i);
    problem.targets[i] = word % 8 == 0 && n > 1 ? -1 : (int32_t)(word / 8 % (uint32_t)vocabulary);
  }
  problem.fwd = (struct lade_head_loss_fwd_args){
      .dtype = dtype, .n = n, .d = d, .vocabulary = vocabulary, .targets = problem.targets,
      .x = operand_make(dtype, RANDOM, 1, n * d, &x), .weight = operand_make(dtype, RANDOM, 2, vocabulary * d, &weight),
      .losses = memory_make((size_t)n * 4), .lse = memory_make((size_t)n * 4), .loss = memory_make(4)};
  problem.fwd_exact = problem.fwd;
  problem.fwd_exact.dtype = LADE_F64;
  problem.fwd_exact.x = x;
  problem.fwd_exact.weight = weight;
  problem.fwd_exact.losses = memory_make((size_t)n * 8);
  problem.fwd_exact.lse = memory_make((size_t)n * 8);
  problem.fwd_exact.loss = memory_make(8);
  problem.start = operand_make(LADE_F32, RANDOM, 3, vocabulary * d, &d_weight);
  problem.bwd = (struct lade_head_loss_bwd_args){
      .dtype = dtype, .n = n, .d = d, .vocabulary = vocabulary, .scale = 0.5f, .x = problem.fwd.x,
      .weight = problem.fwd.weight, .targets = problem.targets, .lse = problem.fwd.lse,
      .dx = memory_make((size_t)(n * d) * lade_dtype_bytes(dtype)),
      .d_weight = memory_make((size_t)(vocabulary * d) * 4), .accumulate = accumulate};
  problem.bwd_exact = problem.bwd;
  problem.bwd_exact.dtype = LADE_F64;
  problem.bwd_exact.x = x;
  problem.bwd_exact.weight = weight;
  problem.bwd_exact.lse = problem.fwd_exact.lse;
  problem.bwd_exact.dx = memory_make((size_t)(n * d) * 8);
  problem.bwd_exact.d_weight = d_weight;
  return problem;
}

static void problem_free(struct problem *problem)
{
  const struct lade_head_loss_fwd_args *fwd[] = {&problem->fwd, &problem->fwd_exact};
  const struct lade_head_loss_bwd_args *bwd[] = {&problem->bwd, &problem->bwd_exact};
  for (int i = 0; i < 2; i++) {
    free((void *)fwd[i]->x);
    free((void *)fwd[i]->weight);
    free(fwd[i]->losses);
    free(fwd[i]->lse);
    free(fwd[i]->loss);
    free(bwd[i]->dx);
    free(bwd[i]->d_weight);
  }
  free(problem->start);
  free(problem->targets);
}

static void run(struct problem *problem, const struct lade_kernels *kernels, int n_threads)
{
  lade_pool *pool;
  assert_int_equal(lade_pool_create(n_threads, &pool), 0);
  memcpy(problem->bwd.d_weight, problem->start, (size_t)(problem->bwd.vocabulary * problem->bwd.d) * 4);
  kernel_call(kernels, LADE_K_HEAD_LOSS_FWD, &problem->fwd, &problem->fwd.workspace, pool);
  kernel_call(kernels, LADE_K_HEAD_LOSS_BWD, &problem->bwd, &problem->bwd.workspace, pool);
  lade_pool_destroy(pool);
}

static void compare(const char *what, const char *variant, const struct problem *problem, enum lade_dtype dtype,
                    const void *data, const void *exact, int64_t n, double unit)
{
  double norm, error = error_get(dtype, data, exact, n, &norm);
  if (!(error <= unit * norm))
    fail_msg("%s %s %s n %ld d %ld vocabulary %ld: error %g of %g, bound %g", what, variant,
             lade_dtype_name(problem->fwd.dtype), (long)problem->fwd.n, (long)problem->fwd.d,
             (long)problem->fwd.vocabulary, error, norm, unit);
}

static void problem_check(enum lade_dtype dtype, int64_t n, int64_t d, int64_t vocabulary, bool accumulate)
{
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(levels);
  struct problem problem = problem_make(dtype, n, d, vocabulary, accumulate);
  kernel_call(&levels[0], LADE_K_HEAD_LOSS_FWD, &problem.fwd_exact, &problem.fwd_exact.workspace, NULL);
  kernel_call(&levels[0], LADE_K_HEAD_LOSS_BWD, &problem.bwd_exact, &problem.bwd_exact.workspace, NULL);
  size_t dx_bytes = (size_t)(n * d) * lade_dtype_bytes(dtype), d_weight_bytes = (size_t)(vocabulary * d) * 4;
  void *dx = memory_make(dx_bytes), *d_weight = memory_make(d_weight_bytes);
  double unit = 2 * unit_get(dtype) + 0x1p-19;
  for (int level = 0; level < n_levels; level++) {
    const char *variant = levels[level].variant[LADE_K_HEAD_LOSS_FWD];
    run(&problem, &levels[level], 1);
    memcpy(dx, problem.bwd.dx, dx_bytes);
    memcpy(d_weight, problem.bwd.d_weight, d_weight_bytes);
    float loss = *(const float *)problem.fwd.loss;
    compare("losses", variant, &problem, LADE_F32, problem.fwd.losses, problem.fwd_exact.losses, n, 0x1p-19);
    compare("lse", variant, &problem, LADE_F32, problem.fwd.lse, problem.fwd_exact.lse, n, 0x1p-19);
    compare("loss", variant, &problem, LADE_F32, &loss, problem.fwd_exact.loss, 1, 0x1p-19);
    compare("dx", variant, &problem, dtype, dx, problem.bwd_exact.dx, n * d, unit);
    compare("d_weight", variant, &problem, LADE_F32, d_weight, problem.bwd_exact.d_weight, vocabulary * d, unit);
    for (int n_threads = 2; n_threads <= 5; n_threads += 3) {
      run(&problem, &levels[level], n_threads);
      assert_memory_equal(dx, problem.bwd.dx, dx_bytes);
      assert_memory_equal(d_weight, problem.bwd.d_weight, d_weight_bytes);
      assert_memory_equal(&loss, problem.fwd.loss, sizeof(loss));
    }
  }
  free(dx);
  free(d_weight);
  problem_free(&problem);
}

static void any_shape_and_dtype_is_right(void **state)
{
  static const int64_t shapes[][3] = {{1, 1, 1}, {1, 5, 33}, {37, 16, 256}, {65, 7, 1025}, {70, 24, 2100}};
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  for (size_t t = 0; t < LADE_COUNT(dtypes); t++)
    for (size_t s = 0; s < LADE_COUNT(shapes); s++)
      problem_check(dtypes[t], shapes[s][0], shapes[s][1], shapes[s][2], s % 2);
}

static void rows_past_one_block_are_right(void **state)
{
  problem_check(LADE_BF16, 1100, 4, 1030, true);
}

static void no_target_at_all_costs_nothing(void **state)
{
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(levels);
  struct problem problem = problem_make(LADE_F32, 9, 8, 20, false);
  for (int i = 0; i < 9; i++)
    problem.targets[i] = -1;
  for (int level = 0; level < n_levels; level++) {
    run(&problem, &levels[level], 2);
    assert_true(*(const float *)problem.fwd.loss == 0);
    for (int i = 0; i < 9 * 8; i++)
      assert_true(((const float *)problem.bwd.dx)[i] == 0);
    for (int i = 0; i < 20 * 8; i++)
      assert_true(((const float *)problem.bwd.d_weight)[i] == 0);
  }
  problem_free(&problem);
}

int main(void)
{
  printf("seed %d\n", SEED);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_shape_and_dtype_is_right),
      cmocka_unit_test(rows_past_one_block_are_right),
      cmocka_unit_test(no_target_at_all_costs_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
