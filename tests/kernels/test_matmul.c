/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every variant of the matrix product compared with the plain one in double: all layouts, dtypes, output types, hostile
 * shapes and values, accumulation, and the same bits for any number of threads.
 */
#include "exact.h"
#include "kernels/host/matmul/matmul_k_tree.h"

/* One product's memory: its operands in D and again in double. */
struct problem {
  struct lade_matmul_args args, exact;
  void *start;  /* of c */
  void *result; /* of a first run, for comparison */
  size_t c_bytes;
};

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
  memcpy(problem->args.c, problem->start, problem->c_bytes);
  kernel_call(kernels, LADE_K_MATMUL, &problem->args, &problem->args.workspace, pool);
}

/* Compare ||c - exact|| with the rounding of k products and of the output. */
static void problem_compare(const struct problem *problem, const char *variant)
{
  const struct lade_matmul_args *args = &problem->args;
  double norm, error = error_get(args->out, args->c, problem->exact.c, args->m * args->n, &norm);
  double bound = unit_get(args->out) + 0x1p-23 * sqrt((double)args->k) + 0x1p-23;
  if (!(error <= bound * norm))
    fail_msg("%s %s->%s layout %d m %ld n %ld k %ld accumulate %d bias %d: error %g of %g, bound %g", variant,
             lade_dtype_name(args->dtype), lade_dtype_name(args->out), args->layout, (long)args->m, (long)args->n,
             (long)args->k, args->accumulate, args->bias != NULL, error, norm, bound);
}

static void problem_check(struct lade_matmul_args args, enum values values, bool has_bias)
{
  static const int n_threads[] = {1, 2, 5};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_MATMUL, levels);
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
          struct lade_matmul_args args = {.layout = (enum lade_matmul_layout)layout, .dtype = dtypes[d],
                                          .out = is_wide ? LADE_F32 : dtypes[d], .m = shapes[s][0],
                                          .n = shapes[s][1], .k = shapes[s][2], .accumulate = kind == 3};
          problem_check(args, RANDOM, kind == 2);
        }
}

static void extreme_values_are_right(void **state)
{
  for (int layout = LADE_NT; layout <= LADE_TN; layout++)
    for (int values = ALL_MIN; values <= ALL_MAX; values++) {
      struct lade_matmul_args args = {.layout = (enum lade_matmul_layout)layout, .dtype = LADE_BF16, .out = LADE_F32,
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

/* ---- k as a tree ---- */

static struct lade_matmul_args tree_product(enum lade_matmul_layout layout, enum lade_dtype dtype)
{
  return (struct lade_matmul_args){.layout = layout, .dtype = dtype, .out = LADE_F32, .m = 29, .n = 71, .k = 1000,
                                   .tree = {.n_leaves = 8, .n_spans = 2, .span = {798, 202}, .part = {100, 26}}};
}

/* The packed length of k, which scratch is sized by, is that of all its pieces, with and without a tree. */
static void packed_k_counts_every_piece(void **state)
{
  static const int mosts[] = {192, 384, 512}, groups[] = {1, 2, 32};
  struct lade_matmul_args products[] = {tree_product(LADE_NT, LADE_F32), {.k = 1}, {.k = 511}, {.k = 16385}};
  for (size_t p = 0; p < sizeof(products) / sizeof(*products); p++) {
    for (int cut = 0; cut < 3; cut++) {
      struct lade_k_piece piece = {0};
      while (lade_k_piece_next(&products[p], mosts[cut], groups[cut], &piece))
        continue;
      assert_int_equal(lade_k_packed(&products[p], groups[cut]), piece.packed_k);
    }
  }
}

static void a_tree_of_leaves_is_right(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  for (int layout = LADE_NT; layout <= LADE_TN; layout++)
    for (size_t d = 0; d < LADE_COUNT(dtypes); d++)
      for (int kind = 0; kind < 3; kind++) {
        struct lade_matmul_args args = tree_product((enum lade_matmul_layout)layout, dtypes[d]);
        args.out = kind == 2 ? dtypes[d] : LADE_F32;
        args.accumulate = kind == 1;
        problem_check(args, RANDOM, kind == 2);
      }
}

/* Cut span @i_span of @whole for the rank that has parts [first, first + n) of it. */
static void span_cut(const struct lade_matmul_args *whole, int i_span, int first, int n, struct lade_matmul_args *part,
                     int64_t *ret_from)
{
  int64_t from = first * whole->tree.part[i_span];
  int64_t end = LADE_MIN((first + n) * whole->tree.part[i_span], whole->tree.span[i_span]);
  part->tree.span[i_span] = end - from;
  *ret_from = from + (i_span > 0 ? whole->tree.span[0] : 0);
}

/* Cut out one rank's @k_part of the @k values of op(x) [outer, k]; k is the inner dimension if @is_k_inner. */
static void *operand_cut(const float *from, bool is_k_inner, int64_t n_outer, int64_t k, int64_t k_part,
                         const int64_t *first, const int64_t *span)
{
  float *to = memory_make((size_t)(n_outer * k_part) * sizeof(float));
  for (int64_t outer = 0; outer < n_outer; outer++)
    for (int64_t p = 0; p < k_part; p++) {
      int64_t whole = p < span[0] ? first[0] + p : first[1] + p - span[0];
      to[is_k_inner ? outer * k_part + p : p * n_outer + outer] =
          from[is_k_inner ? outer * k + whole : whole * n_outer + outer];
    }
  return to;
}

/* Compute the part of the product of rank @rank of @n_ranks: its leaves. */
static float *part_run(const struct lade_kernels *kernels, const struct lade_matmul_args *whole, int rank, int n_ranks)
{
  struct lade_matmul_args part = *whole;
  int64_t first[2];
  part.tree.n_leaves = whole->tree.n_leaves / n_ranks;
  for (int i = 0; i < 2; i++)
    span_cut(whole, i, rank * part.tree.n_leaves, part.tree.n_leaves, &part, &first[i]);
  part.k = part.tree.span[0] + part.tree.span[1];
  part.a = operand_cut(whole->a, whole->layout != LADE_TN, whole->m, whole->k, part.k, first, part.tree.span);
  part.b = operand_cut(whole->b, whole->layout == LADE_NT, whole->n, whole->k, part.k, first, part.tree.span);
  part.c = memory_make((size_t)(whole->m * whole->n) * sizeof(float));
  kernel_call(kernels, LADE_K_MATMUL, &part, &part.workspace, NULL);
  free((void *)part.a);
  free((void *)part.b);
  return part.c;
}

static void ranks_compare(const struct lade_kernels *kernels, const struct lade_matmul_args *whole, int n_ranks)
{
  int64_t n = whole->m * whole->n;
  const void *parts[LADE_LEAVES_MAX];
  float *sum = memory_make((size_t)n * sizeof(float));
  struct lade_kernel_ctx ctx = {0};
  struct lade_rank_sum_args args = {.dtype = LADE_F32, .n_terms = n_ranks, .n_elements = n, .x = parts, .y = sum};
  for (int rank = 0; rank < n_ranks; rank++)
    parts[rank] = part_run(kernels, whole, rank, n_ranks);
  kernels->fn[LADE_K_RANK_SUM](&ctx, &args);
  assert_memory_equal(sum, whole->c, (size_t)n * sizeof(float));
  for (int rank = 0; rank < n_ranks; rank++)
    free((void *)parts[rank]);
  free(sum);
}

/* Each rank has its leaves of both spans; rank_sum over their products gives the bits of the whole product. */
static void ranks_that_share_the_leaves_give_the_bits_of_one(void **state)
{
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_MATMUL, levels);
  for (int layout = LADE_NT; layout <= LADE_TN; layout++) {
    struct problem problem = problem_make(tree_product((enum lade_matmul_layout)layout, LADE_F32), RANDOM, false);
    for (int level = 0; level < n_levels; level++) {
      if (!levels[level].fn[LADE_K_RANK_SUM])
        continue; /* a CUDA device's table has no sums over ranks */
      problem_run(&problem, &levels[level], NULL);
      for (int n_ranks = 2; n_ranks <= LADE_LEAVES_MAX; n_ranks *= 2)
        ranks_compare(&levels[level], &problem.args, n_ranks);
    }
    problem_free(&problem);
  }
}

/* ---- with GELU's slope ---- */

/* One product with GELU's slope and a bias's gradient, in D and in double. */
struct slope_problem {
  struct problem product;
  void *x_exact;
  float *d_bias, *d_bias_parts; /* by the op, and by column sums of its c */
  uint16_t *parts;              /* c by two kernels */
};

static struct slope_problem slope_problem_make(struct lade_matmul_args args)
{
  struct slope_problem problem = {.product = problem_make(args, RANDOM, false)};
  problem.product.args.gelu_x = operand_make(args.dtype, RANDOM, 5, args.m * args.n, &problem.x_exact);
  problem.product.exact.gelu_x = problem.x_exact;
  problem.d_bias = memory_make((size_t)args.n * sizeof(float));
  problem.d_bias_parts = memory_make((size_t)args.n * sizeof(float));
  problem.parts = memory_make(problem.product.c_bytes);
  return problem;
}

static void slope_problem_free(struct slope_problem *problem)
{
  free((void *)problem->product.args.gelu_x);
  free(problem->x_exact);
  free(problem->d_bias);
  free(problem->d_bias_parts);
  free(problem->parts);
  problem_free(&problem->product);
}

/* Compute c by two kernels into @problem->parts. */
static void slope_parts_run(struct slope_problem *problem, const struct lade_kernels *kernels, lade_pool *pool)
{
  struct lade_matmul_args product = problem->product.args;
  struct lade_gelu_bwd_args gelu = {.dtype = product.dtype, .n_elements = product.m * product.n, .f = product.n,
                                    .x = product.gelu_x, .dy = problem->parts, .dx = problem->parts};
  product.c = problem->parts;
  product.gelu_x = NULL;
  kernel_call(kernels, LADE_K_MATMUL, &product, &product.workspace, pool);
  kernel_call(kernels, LADE_K_GELU_BWD, &gelu, &gelu.workspace, pool);
}

/* Run the op twice, the second time adding to the bias's gradient; compare all with its parts and with @exact. */
static void slope_level_check(struct slope_problem *problem, const struct lade_kernels *kernels, lade_pool *pool)
{
  struct problem *product = &problem->product;
  const size_t row_bytes = (size_t)product->args.n * sizeof(float);
  struct lade_matmul_gelu_bwd_args args = {.product = product->args, .d_bias = problem->d_bias};
  struct lade_column_sum_args sum = {.dtype = product->args.dtype, .m = product->args.m, .n = product->args.n,
                                     .x = product->args.c, .sum = problem->d_bias_parts};
  for (int i = 0; i < 2; i++) {
    args.accumulate_bias = sum.accumulate = i;
    memset(product->args.c, 0xee, product->c_bytes);
    kernel_call(kernels, LADE_K_MATMUL_GELU_BWD, &args, &args.product.workspace, pool);
    kernel_call(kernels, LADE_K_COLUMN_SUM, &sum, &sum.workspace, pool);
    assert_memory_equal(problem->d_bias, problem->d_bias_parts, row_bytes);
  }
  memcpy(product->result, product->args.c, product->c_bytes);
  args.d_bias = NULL;
  kernel_call(kernels, LADE_K_MATMUL_GELU_BWD, &args, &args.product.workspace, pool);
  assert_memory_equal(product->args.c, product->result, product->c_bytes);
  slope_parts_run(problem, kernels, pool);
  if (!kernels->cublaslt) /* the library rounds once */
    assert_memory_equal(product->args.c, problem->parts, product->c_bytes);
  double norm, error = error_get(product->args.out, product->args.c, product->exact.c,
                                 product->args.m * product->args.n, &norm);
  double bound = 2 * unit_get(product->args.out) + 0x1p-23 * sqrt((double)product->args.k) + 0x1p-18;
  if (!(error <= bound * norm))
    fail_msg("%s %s: error %g of %g, bound %g", kernels->variant[LADE_K_MATMUL],
             lade_dtype_name(product->args.dtype), error, norm, bound);
}

static void a_product_with_gelus_slope_is_its_parts(void **state)
{
  static const int64_t shapes[][3] = {{13, 31, 2}, {97, 104, 89}, {61, 64, 1027}, {200, 72, 17}};
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_MATMUL, levels);
  const struct lade_kernel_ctx ctx = {.kernels = &levels[0]};
  lade_pool *pool;
  assert_int_equal(lade_pool_create(2, &pool), 0);
  for (size_t at = 0; at < LADE_COUNT(shapes) * LADE_COUNT(dtypes); at++) {
    const int64_t *shape = shapes[at / LADE_COUNT(dtypes)];
    const enum lade_dtype dtype = dtypes[at % LADE_COUNT(dtypes)];
    struct slope_problem problem = slope_problem_make((struct lade_matmul_args){
        .layout = LADE_NN, .dtype = dtype, .out = dtype, .m = shape[0], .n = shape[1], .k = shape[2]});
    struct lade_matmul_gelu_bwd_args exact = {.product = problem.product.exact};
    levels[0].fn[LADE_K_MATMUL_GELU_BWD](&ctx, &exact);
    for (int level = 0; level < n_levels; level++)
      slope_level_check(&problem, &levels[level], pool);
    slope_problem_free(&problem);
  }
  lade_pool_destroy(pool);
}

/* ---- with GELU ---- */

/* Check @y as GELU of the F32 @sums: within two units in the last place, or of F16's subnormals. */
static void gelu_compare(enum lade_dtype dtype, const void *y, const float *sums, int64_t n, const char *variant)
{
  for (int64_t i = 0; i < n; i++) {
    const double x = (double)sums[i], u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
    const double exact = x / (1 + exp(-2 * u)), got = lade_element_load(dtype, y, i);
    const double unit = dtype == LADE_F32 ? 0x1p-20 : 2 * unit_get(dtype);
    if (!(fabs(got - exact) <= unit * fabs(exact) + 0x1p-24))
      fail_msg("%s %s: GELU of %g is %g, not %g", variant, lade_dtype_name(dtype), x, got, exact);
  }
}

/* Count the values of @y that are not GELU of the stored @c. */
static int64_t differing_count(const struct lade_matmul_args *args, const struct lade_kernels *kernels, lade_pool *pool,
                               void *gelu_of_c)
{
  void *none;
  const int64_t n = args->m * args->n, bytes = (int64_t)lade_dtype_bytes(args->dtype);
  struct lade_gelu_fwd_args gelu = {.dtype = args->dtype, .n_elements = n, .x = args->c, .y = gelu_of_c};
  int64_t n_differing = 0;
  kernel_call(kernels, LADE_K_GELU_FWD, &gelu, &none, pool);
  for (int64_t i = 0; i < n; i++)
    n_differing += memcmp((char *)args->gelu_y + i * bytes, (char *)gelu_of_c + i * bytes, (size_t)bytes) != 0;
  return n_differing;
}

/*
 * Run the op on several numbers of threads: c has the bits of the product alone, and gelu_y is GELU of the sums that
 * the product has in F32. In 16 bits some of them differ from GELU of the rounded c, in F32 none.
 */
static void gelu_level_check(struct problem *problem, const struct lade_kernels *kernels, bool is_random)
{
  struct lade_matmul_args args = problem->args, wide = problem->args;
  const int64_t n = args.m * args.n;
  const size_t y_bytes = problem->c_bytes;
  void *first = memory_make(y_bytes);
  args.gelu_y = memory_make(y_bytes);
  wide.out = LADE_F32;
  wide.c = memory_make((size_t)n * sizeof(float));
  for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
    lade_pool *pool;
    assert_int_equal(lade_pool_create(n_threads, &pool), 0);
    memset(args.c, 0xee, problem->c_bytes);
    memset(args.gelu_y, 0xee, y_bytes);
    kernel_call(kernels, LADE_K_MATMUL_GELU_FWD, &args, &args.workspace, pool);
    if (n_threads == 1)
      memcpy(first, args.gelu_y, y_bytes);
    assert_memory_equal(args.gelu_y, first, y_bytes);
    lade_pool_destroy(pool);
  }
  const int64_t n_differing = differing_count(&args, kernels, NULL, first);
  assert_true(args.dtype == LADE_F32 ? n_differing == 0 : n_differing > 0 || !is_random);
  memcpy(problem->result, args.c, problem->c_bytes);
  kernel_call(kernels, LADE_K_MATMUL, &wide, &wide.workspace, NULL);
  problem_run(problem, kernels, NULL);
  if (!kernels->cublaslt) { /* the library may add up in another order for another epilogue */
    assert_memory_equal(problem->result, problem->args.c, problem->c_bytes);
    gelu_compare(args.dtype, args.gelu_y, wide.c, n, kernels->variant[LADE_K_MATMUL_GELU_FWD]);
  }
  memcpy(problem->args.c, problem->result, problem->c_bytes);
  problem_compare(problem, kernels->variant[LADE_K_MATMUL_GELU_FWD]);
  free(first);
  free(args.gelu_y);
  free(wide.c);
}

/* Shapes of one block of rows and of several, with and without a bias; sums on both sides of zero, and huge ones. */
static void a_product_with_gelu_takes_its_sums_unrounded(void **state)
{
  static const int64_t shapes[][3] = {{1, 1, 1}, {97, 104, 89}, {61, 64, 1027}, {1040, 33, 5}};
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_MATMUL, levels);
  struct lade_kernel_ctx alone = {0};
  for (size_t s = 0; s < LADE_COUNT(shapes); s++)
    for (size_t d = 0; d < LADE_COUNT(dtypes); d++)
      for (int values = RANDOM; values <= ALL_MAX; values++) {
        const struct lade_matmul_args args = {.layout = LADE_NT, .dtype = dtypes[d], .out = dtypes[d],
                                              .m = shapes[s][0], .n = shapes[s][1], .k = shapes[s][2]};
        struct problem problem = problem_make(args, (enum values)values, d != 1);
        lade_matmul_plain(&alone, &problem.exact);
        for (int level = 0; level < n_levels; level++)
          gelu_level_check(&problem, &levels[level], values == RANDOM && args.m > 1);
        problem_free(&problem);
      }
}

int main(void)
{
  printf("seed %d\n", SEED);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_shape_layout_and_dtype_is_right),
      cmocka_unit_test(extreme_values_are_right),
      cmocka_unit_test(a_weight_larger_than_the_shared_room_is_right),
      cmocka_unit_test(packed_k_counts_every_piece),
      cmocka_unit_test(a_tree_of_leaves_is_right),
      cmocka_unit_test(a_product_with_gelus_slope_is_its_parts),
      cmocka_unit_test(a_product_with_gelu_takes_its_sums_unrounded),
      cmocka_unit_test(ranks_that_share_the_leaves_give_the_bits_of_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
