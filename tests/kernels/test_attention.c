/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention at every level compared with the plain one in double: grouped heads, lengths on both sides of a block, any
 * head dimension, dropout, and every form of scores (scale, soft cap, window, documents, sinks). The bits are the same
 * for any number of threads.
 */
#include "exact.h"

struct size {
  int64_t batch, seq_len, heads, n_kv_heads, head_dim;
};

static bool is_small(struct size size)
{
  return size.batch * size.heads * size.seq_len * size.seq_len * size.head_dim <= level_max_products();
}

#define BIAS_BEFORE 1.5f /* contents of d_bias */

/* Both directions' arguments in D and in double. */
struct problem {
  struct lade_attention_fwd_args fwd, fwd_exact;
  struct lade_attention_bwd_args bwd, bwd_exact;
  int64_t n_qkv, n_out, n_lse, n_columns; /* of qkv */
  int32_t *first_keys;
  void *sinks, *sinks_exact;
};

/* A form of scores, as in struct lade_score_form; all zero: plain causal attention. */
struct form {
  float scale, softcap, alibi;
  bool is_rounded;
  int64_t window, document; /* document: the length of each; 0: no masks of documents */
  bool has_sinks;
};

/* Add the form to all arguments of @problem. */
static void form_set(struct problem *problem, struct form form)
{
  const struct lade_attention_fwd_args *fwd = &problem->fwd;
  struct lade_score_form own = {.scale = form.scale, .softcap = form.softcap, .alibi_max = form.alibi,
                                .is_alibi_rounded = form.is_rounded, .window = form.window}, exact;
  if (form.document) {
    problem->first_keys = memory_make((size_t)(fwd->batch * fwd->seq_len) * sizeof(int32_t));
    for (int64_t b = 0; b < fwd->batch; b++) /* documents of other sequences begin elsewhere */
      for (int64_t i = 0; i < fwd->seq_len; i++)
        problem->first_keys[b * fwd->seq_len + i] = (int32_t)LADE_MAX((i + b) / form.document * form.document - b, 0);
    own.first_keys = problem->first_keys;
  }
  exact = own;
  if (form.has_sinks) {
    problem->sinks = operand_make(fwd->dtype, RANDOM, 3, fwd->heads, &problem->sinks_exact);
    own.sinks = problem->sinks;
    exact.sinks = problem->sinks_exact;
    problem->bwd.d_sinks = memory_make((size_t)fwd->heads * sizeof(float));
    problem->bwd_exact.d_sinks = memory_make((size_t)fwd->heads * sizeof(double));
  }
  problem->fwd.form = problem->bwd.form = own;
  problem->fwd_exact.form = problem->bwd_exact.form = exact;
}

static struct problem problem_make(enum lade_dtype dtype, struct size size, struct lade_drop drop, enum values values)
{
  struct problem problem = {.n_qkv = size.batch * size.seq_len * (size.heads + 2 * size.n_kv_heads) * size.head_dim,
                            .n_out = size.batch * size.seq_len * size.heads * size.head_dim,
                            .n_lse = size.batch * size.seq_len * size.heads,
                            .n_columns = (size.heads + 2 * size.n_kv_heads) * size.head_dim};
  void *qkv, *d_out;
  size_t d = lade_dtype_bytes(dtype), a = lade_dtype_bytes(lade_accumulator(dtype));
  problem.fwd = (struct lade_attention_fwd_args){
      .dtype = dtype, .batch = size.batch, .seq_len = size.seq_len, .heads = size.heads, .n_kv_heads = size.n_kv_heads,
      .head_dim = size.head_dim, .drop = drop, .qkv = operand_make(dtype, values, 1, problem.n_qkv, &qkv),
      .out = memory_make((size_t)problem.n_out * d), .lse = memory_make((size_t)problem.n_lse * a)};
  problem.fwd_exact = problem.fwd;
  problem.fwd_exact.dtype = LADE_F64;
  problem.fwd_exact.qkv = qkv;
  problem.fwd_exact.out = memory_make((size_t)problem.n_out * sizeof(double));
  problem.fwd_exact.lse = memory_make((size_t)problem.n_lse * sizeof(double));
  problem.bwd = (struct lade_attention_bwd_args){
      .dtype = dtype, .batch = size.batch, .seq_len = size.seq_len, .heads = size.heads, .n_kv_heads = size.n_kv_heads,
      .head_dim = size.head_dim, .drop = drop, .qkv = problem.fwd.qkv, .out = problem.fwd.out, .lse = problem.fwd.lse,
      .d_out = operand_make(dtype, values, 2, problem.n_out, &d_out),
      .d_qkv = memory_make((size_t)problem.n_qkv * d)};
  problem.bwd_exact = problem.bwd;
  problem.bwd.d_bias = memory_make((size_t)problem.n_columns * sizeof(float));
  problem.bwd.accumulate_bias = size.seq_len % 2;
  problem.bwd_exact.dtype = LADE_F64;
  problem.bwd_exact.qkv = qkv;
  problem.bwd_exact.out = problem.fwd_exact.out;
  problem.bwd_exact.lse = problem.fwd_exact.lse;
  problem.bwd_exact.d_out = d_out;
  problem.bwd_exact.d_qkv = memory_make((size_t)problem.n_qkv * sizeof(double));
  return problem;
}

static void problem_free(struct problem *problem)
{
  free((void *)problem->fwd.qkv);
  free(problem->fwd.out);
  free(problem->fwd.lse);
  free((void *)problem->fwd_exact.qkv);
  free(problem->fwd_exact.out);
  free(problem->fwd_exact.lse);
  free((void *)problem->bwd.d_out);
  free(problem->bwd.d_qkv);
  free(problem->bwd.d_bias);
  free((void *)problem->bwd_exact.d_out);
  free(problem->bwd_exact.d_qkv);
  free(problem->bwd.d_sinks);
  free(problem->bwd_exact.d_sinks);
  free(problem->first_keys);
  free(problem->sinks);
  free(problem->sinks_exact);
}

/* Check that d_bias has the column sums of the same d_qkv, added to its contents or in place of them. */
static void bias_verify(const struct problem *problem, const char *variant)
{
  const struct lade_attention_bwd_args *a = &problem->bwd;
  for (int64_t column = 0; column < problem->n_columns; column++) {
    const double found = ((const float *)a->d_bias)[column];
    double sum = a->accumulate_bias ? BIAS_BEFORE : 0, size = fabs(sum);
    for (int64_t at = column; at < problem->n_qkv; at += problem->n_columns) {
      const double x = lade_element_load(a->dtype, a->d_qkv, at);
      sum += x;
      size += fabs(x);
    }
    if (isfinite(sum) && !(fabs(found - sum) <= 0x1p-20 * size))
      print_error("d_bias by %s, column %lld: %g, not %g\n", variant, (long long)column, found, sum);
    assert_true(!isfinite(sum) || fabs(found - sum) <= 0x1p-20 * size);
  }
}

static void run(struct problem *problem, const struct lade_kernels *kernels, bool has_bwd, int n_threads)
{
  lade_pool *pool;
  assert_int_equal(lade_pool_create(n_threads, &pool), 0);
  memset(problem->fwd.out, 0xff, (size_t)problem->n_out * lade_dtype_bytes(problem->fwd.dtype));
  memset(problem->bwd.d_qkv, 0xff, (size_t)problem->n_qkv * lade_dtype_bytes(problem->fwd.dtype));
  for (int64_t i = 0; i < problem->n_columns; i++)
    ((float *)problem->bwd.d_bias)[i] = BIAS_BEFORE;
  kernel_call(kernels, LADE_K_ATTENTION_FWD, &problem->fwd, &problem->fwd.workspace, pool);
  if (has_bwd)
    kernel_call(kernels, LADE_K_ATTENTION_BWD, &problem->bwd, &problem->bwd.workspace, pool);
  lade_pool_destroy(pool);
}

static void compare(const char *label, const char *variant, const struct problem *problem, enum lade_dtype dtype,
                    const void *data, const void *exact, int64_t n)
{
  double norm, error = error_get(dtype, data, exact, n, &norm);
  /* Rounded operands of a second product; a gradient also includes delta's rounded output. */
  double bound = 4 * unit_get(problem->fwd.dtype) + 0x1p-20;
  if (!(error <= bound * norm + 1e-6))
    fail_msg("%s %s %s batch %ld time %ld heads %ld/%ld dim %ld: error %g of %g, bound %g", label, variant,
             lade_dtype_name(problem->fwd.dtype), (long)problem->fwd.batch, (long)problem->fwd.seq_len,
             (long)problem->fwd.heads, (long)problem->fwd.n_kv_heads, (long)problem->fwd.head_dim, error, norm, bound);
}

static void form_check(enum lade_dtype dtype, struct size size, struct lade_drop drop, enum values values,
                       struct form form)
{
  struct lade_kernels levels[LEVELS];
  if (!is_small(size))
    return;
  int n_levels = levels_make(LADE_K_ATTENTION_FWD, levels);
  struct problem problem = problem_make(dtype, size, drop, values);
  form_set(&problem, form);
  kernel_call(&levels[0], LADE_K_ATTENTION_FWD, &problem.fwd_exact, &problem.fwd_exact.workspace, NULL);
  kernel_call(&levels[0], LADE_K_ATTENTION_BWD, &problem.bwd_exact, &problem.bwd_exact.workspace, NULL);
  size_t out_bytes = (size_t)problem.n_out * lade_dtype_bytes(dtype);
  size_t d_qkv_bytes = (size_t)problem.n_qkv * lade_dtype_bytes(dtype);
  size_t d_bias_bytes = (size_t)problem.n_columns * sizeof(float);
  void *out = memory_make(out_bytes), *d_qkv = memory_make(d_qkv_bytes), *d_bias = memory_make(d_bias_bytes);
  for (int level = 0; level < n_levels; level++) {
    const char *variant = levels[level].variant[LADE_K_ATTENTION_FWD];
    bool has_bwd = level == 0 || levels[level].fn[LADE_K_ATTENTION_BWD] != levels[level - 1].fn[LADE_K_ATTENTION_BWD];
    if (!level_takes(&levels[level], LADE_K_ATTENTION_FWD, dtype, &problem.fwd))
      continue;
    run(&problem, &levels[level], has_bwd, 1);
    if (level > 0 && strcmp(variant, levels[level - 1].variant[LADE_K_ATTENTION_FWD]) == 0)
      assert_memory_equal(out, problem.fwd.out, out_bytes); /* schedules of one variant have equal bits */
    memcpy(out, problem.fwd.out, out_bytes);
    memcpy(d_qkv, problem.bwd.d_qkv, d_qkv_bytes);
    memcpy(d_bias, problem.bwd.d_bias, d_bias_bytes);
    compare("out", variant, &problem, dtype, problem.fwd.out, problem.fwd_exact.out, problem.n_out);
    compare("lse", variant, &problem, LADE_F32, problem.fwd.lse, problem.fwd_exact.lse, problem.n_lse);
    if (has_bwd)
      compare("d_qkv", variant, &problem, dtype, problem.bwd.d_qkv, problem.bwd_exact.d_qkv, problem.n_qkv);
    if (has_bwd)
      bias_verify(&problem, variant);
    if (has_bwd && form.has_sinks)
      compare("d_sinks", variant, &problem, LADE_F32, problem.bwd.d_sinks, problem.bwd_exact.d_sinks, size.heads);
    for (int n_threads = 2; n_threads <= 5; n_threads += 3) {
      run(&problem, &levels[level], has_bwd, n_threads);
      assert_memory_equal(out, problem.fwd.out, out_bytes);
      assert_true(!has_bwd || memcmp(d_qkv, problem.bwd.d_qkv, d_qkv_bytes) == 0);
      assert_memory_equal(d_bias, problem.bwd.d_bias, d_bias_bytes);
    }
  }
  free(out);
  free(d_qkv);
  free(d_bias);
  problem_free(&problem);
}

static void problem_check(enum lade_dtype dtype, struct size size, struct lade_drop drop, enum values values)
{
  form_check(dtype, size, drop, values, (struct form){0});
}

static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
static const struct size sizes[] = {{1, 1, 1, 1, 1},   {2, 7, 2, 1, 8},   {1, 95, 2, 2, 64}, {1, 97, 4, 2, 33},
                                    {2, 200, 1, 1, 64}, {1, 193, 3, 1, 16}, {1, 50, 2, 1, 256}, {1, 301, 1, 1, 5},
                                    {1, 40, 2, 1, 72},  {1, 33, 1, 1, 12}};

static void any_shape_and_dtype_is_right(void **state)
{
  for (size_t d = 0; d < LADE_COUNT(dtypes); d++)
    for (size_t s = 0; s < LADE_COUNT(sizes); s++)
      problem_check(dtypes[d], sizes[s], (struct lade_drop){0}, RANDOM);
}

static void dropout_draws_by_element(void **state)
{
  const struct lade_drop drop = {.drop_below = 0x40000000, .stream = 9, .scale = 4.0f / 3, .first_element = 1000003};
  for (size_t d = 0; d < LADE_COUNT(dtypes); d++)
    for (size_t s = 0; s < LADE_COUNT(sizes); s++)
      problem_check(dtypes[d], sizes[s], drop, RANDOM);
}

/* Rows of keys that begin with a draw, whose words the lanes of a GPU's warp share. */
static void draws_are_shared(void **state)
{
  const struct lade_drop drop = {.drop_below = 0x40000000, .stream = 9, .scale = 4.0f / 3, .first_element = 1000004};
  problem_check(LADE_BF16, (struct size){1, 136, 2, 1, 64}, drop, RANDOM);
  problem_check(LADE_F16, (struct size){2, 68, 1, 1, 128}, drop, RANDOM);
}

/* Heads of 128, for which a GPU uses other tiles than for 64; both use tensor cores in 16 bits. */
static void long_heads_are_right(void **state)
{
  const struct lade_drop drop = {.drop_below = 0x40000000, .stream = 9, .scale = 4.0f / 3, .first_element = 1000003};
  problem_check(LADE_BF16, (struct size){1, 135, 2, 1, 128}, drop, RANDOM);
  problem_check(LADE_F16, (struct size){1, 67, 2, 1, 128}, (struct lade_drop){0}, RANDOM);
}

/* Heads whose rows fill no power of two, and heads so long that two blocks share a key head; plain and with a form. */
static void other_heads_are_right(void **state)
{
  const struct lade_drop drop = {.drop_below = 0x40000000, .stream = 9, .scale = 4.0f / 3, .first_element = 1000003};
  const struct form form = {.scale = 0.4f, .softcap = 3, .window = 50, .has_sinks = true};
  problem_check(LADE_BF16, (struct size){1, 135, 2, 1, 80}, drop, RANDOM);
  problem_check(LADE_F16, (struct size){2, 67, 2, 2, 96}, (struct lade_drop){0}, RANDOM);
  problem_check(LADE_BF16, (struct size){1, 135, 2, 1, 256}, (struct lade_drop){0}, RANDOM);
  form_check(LADE_F16, (struct size){1, 70, 2, 1, 256}, drop, RANDOM, form);
}

/* Run a GPU's backward with whole key heads, as in shapes with many of them; problem_check runs it with parts. */
static void whole_key_heads_are_right(void **state)
{
  struct lade_kernels levels[LEVELS];
  const int n_levels = levels_make(LADE_K_ATTENTION_FWD, levels);
  struct problem problem = problem_make(LADE_BF16, (struct size){1, 135, 3, 1, 64}, (struct lade_drop){0}, RANDOM);
  kernel_call(&levels[0], LADE_K_ATTENTION_FWD, &problem.fwd_exact, &problem.fwd_exact.workspace, NULL);
  kernel_call(&levels[0], LADE_K_ATTENTION_BWD, &problem.bwd_exact, &problem.bwd_exact.workspace, NULL);
  for (int level = 1; level < n_levels; level++) {
    if (!level_whole(&levels[level]))
      continue;
    run(&problem, &levels[level], true, 1);
    compare("d_qkv of whole heads", levels[level].variant[LADE_K_ATTENTION_BWD], &problem, LADE_BF16, problem.bwd.d_qkv,
            problem.bwd_exact.d_qkv, problem.n_qkv);
    bias_verify(&problem, levels[level].variant[LADE_K_ATTENTION_BWD]);
  }
  problem_free(&problem);
}

static void tiles_check(struct size size)
{
  struct lade_kernels levels[LEVELS];
  if (!is_small(size))
    return;
  int n_levels = levels_make(LADE_K_ATTENTION_FWD, levels);
  struct problem problem = problem_make(LADE_BF16, size, (struct lade_drop){0}, RANDOM);
  kernel_call(&levels[0], LADE_K_ATTENTION_FWD, &problem.fwd_exact, &problem.fwd_exact.workspace, NULL);
  kernel_call(&levels[0], LADE_K_ATTENTION_BWD, &problem.bwd_exact, &problem.bwd_exact.workspace, NULL);
  for (int level = 1; level < n_levels; level++) {
    const char *variant = levels[level].variant[LADE_K_ATTENTION_FWD];
    run(&problem, &levels[level], true, 1);
    compare("out", variant, &problem, LADE_BF16, problem.fwd.out, problem.fwd_exact.out, problem.n_out);
    compare("lse", variant, &problem, LADE_F32, problem.fwd.lse, problem.fwd_exact.lse, problem.n_lse);
    compare("d_qkv", variant, &problem, LADE_BF16, problem.bwd.d_qkv, problem.bwd_exact.d_qkv, problem.n_qkv);
    bias_verify(&problem, variant);
  }
  problem_free(&problem);
}

/*
 * Enough tiles at any level that each slot of a tile is reused, also by a warpgroup that leaves out the block's last
 * tile.
 */
static void tiles_take_turns(void **state)
{
  tiles_check((struct size){1, 600, 1, 1, 128});
  tiles_check((struct size){1, 384, 1, 1, 64});
}

/* Copy the query and KV heads from @first on, as many as @part has, of every row of qkv. */
static void heads_take(const struct problem *whole, const struct problem *part, int64_t first)
{
  const struct lade_attention_fwd_args *from = &whole->fwd, *to = &part->fwd;
  int64_t row = (from->heads + 2 * from->n_kv_heads) * from->head_dim;
  int64_t part_row = (to->heads + 2 * to->n_kv_heads) * to->head_dim, first_key =
      first * from->n_kv_heads / from->heads;
  const int64_t slots[][2] = {{first, 0}, {from->heads + first_key, to->heads},
                              {from->heads + from->n_kv_heads + first_key, to->heads + to->n_kv_heads}};
  for (int64_t i = 0; i < from->batch * from->seq_len; i++)
    for (int s = 0; s < 3; s++)
      memcpy((float *)to->qkv + i * part_row + slots[s][1] * to->head_dim,
             (const float *)from->qkv + i * row + slots[s][0] * from->head_dim,
             (size_t)((s ? to->n_kv_heads : to->heads) * to->head_dim) * sizeof(float));
}

/* A rank's result for its heads equals one rank's result for them among all heads. */
static void part_of_the_heads_draws_as_all_do(void **state)
{
  struct lade_drop drop = {.drop_below = 0x40000000, .stream = 9, .scale = 4.0f / 3, .first_element = 17};
  struct size all = {2, 97, 4, 2, 16}, half = {2, 97, 2, 1, 16};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_ATTENTION_FWD, levels);
  struct problem whole = problem_make(LADE_F32, all, drop, RANDOM);
  drop.first_element += (uint64_t)(2 * all.seq_len * all.seq_len); /* the second half's first head is head 2 */
  struct problem part = problem_make(LADE_F32, half, drop, RANDOM);
  part.fwd.draw_heads = part.bwd.draw_heads = all.heads;
  whole.fwd.form.alibi_max = part.fwd.form.alibi_max = 8;
  part.fwd.form.alibi_first_head = 2;
  heads_take(&whole, &part, 2);
  for (int level = 0; level < n_levels; level++) {
    kernel_call(&levels[level], LADE_K_ATTENTION_FWD, &whole.fwd, &whole.fwd.workspace, NULL);
    kernel_call(&levels[level], LADE_K_ATTENTION_FWD, &part.fwd, &part.fwd.workspace, NULL);
    for (int64_t i = 0; i < all.batch * all.seq_len; i++)
      assert_memory_equal((const float *)whole.fwd.out + (i * 4 + 2) * 16, (const float *)part.fwd.out + i * 2 * 16,
                          2 * 16 * sizeof(float));
  }
  problem_free(&part);
  problem_free(&whole);
}

static void equal_scores_of_any_size_are_right(void **state)
{
  for (int values = ALL_MIN; values <= ALL_MAX; values++)
    problem_check(LADE_BF16, (struct size){1, 130, 2, 1, 64}, (struct lade_drop){0}, (enum values)values);
}

/* Each part of a form alone, on lengths at which windows begin inside of blocks, and all parts together. */
static void every_form_of_scores_is_right(void **state)
{
  const struct lade_drop drop = {.drop_below = 0x40000000, .stream = 9, .scale = 4.0f / 3, .first_element = 1000003};
  const struct form forms[] = {
      {.scale = 0.4f}, {.softcap = 2}, {.window = 1}, {.window = 37}, {.window = 150}, {.document = 41},
      {.has_sinks = true}, {.alibi = 8},
      {.scale = 0.4f, .softcap = 3, .alibi = 8, .is_rounded = true, .window = 50, .document = 70, .has_sinks = true}};
  const struct size form_sizes[] = {{1, 1, 1, 1, 1}, {2, 97, 4, 2, 33}, {1, 200, 2, 1, 64}, {2, 301, 1, 1, 16}};
  for (size_t f = 0; f < LADE_COUNT(forms); f++) {
    for (size_t d = 0; d < LADE_COUNT(dtypes); d++) {
      for (size_t s = 0; s < LADE_COUNT(form_sizes); s++) {
        /* Long ones in one dtype, because a fake GPU takes seconds for them: heads of 64 in one of tensor cores. */
        const size_t long_dtype = form_sizes[s].head_dim == 64 ? 1 + f % 2 : f % LADE_COUNT(dtypes);
        if (form_sizes[s].seq_len < 200 || long_dtype == d)
          form_check(dtypes[d], form_sizes[s], f % 2 ? drop : (struct lade_drop){0}, RANDOM, forms[f]);
      }
    }
  }
  form_check(LADE_BF16, (struct size){1, 160, 2, 1, 128}, drop, RANDOM, forms[LADE_COUNT(forms) - 1]);
  form_check(LADE_F16, (struct size){1, 160, 1, 1, 128}, (struct lade_drop){0}, RANDOM, forms[LADE_COUNT(forms) - 1]);
}

/*
 * Slopes of heads that are no power of two are transformers': with equal products the second query's lse is
 * log(1 + exp(-slope)).
 */
static void alibi_has_the_published_slopes(void **state)
{
  static const float expected[] = {0.5f,         0.25f,         0.125f,      0.0625f, 0.03125f, 0.015625f, 0.0078125f,
                                   0.00390625f, 0.70710678f, 0.35355339f, 0.17677670f, 0.08838835f};
  const struct size size = {1, 2, LADE_COUNT(expected), LADE_COUNT(expected), 8};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_ATTENTION_FWD, levels);
  for (int level = 0; level < n_levels; level++) {
    struct problem problem = problem_make(LADE_F32, size, (struct lade_drop){0}, RANDOM);
    memset((void *)problem.fwd.qkv, 0, (size_t)problem.n_qkv * sizeof(float));
    problem.fwd.form.alibi_max = 8;
    run(&problem, &levels[level], false, 1);
    for (int h = 0; h < (int)LADE_COUNT(expected); h++)
      assert_true(fabs(exp((double)((const float *)problem.fwd.lse)[2 * h + 1]) - 1 - exp(-(double)expected[h])) <
                  2e-6);
    problem_free(&problem);
  }
}

/* Falcon's form rounds slopes, positions and their products to BF16: positions from 256 on are even numbers. */
static void alibi_rounds_as_falcon_does(void **state)
{
  const struct size size = {1, 304, 3, 3, 8};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_ATTENTION_FWD, levels);
  for (int level = 0; level < n_levels; level++) {
    struct problem problem = problem_make(LADE_F32, size, (struct lade_drop){0}, RANDOM);
    double sum = 0;
    memset((void *)problem.fwd.qkv, 0, (size_t)problem.n_qkv * sizeof(float));
    problem.fwd.form.alibi_max = 8;
    problem.fwd.form.is_alibi_rounded = true;
    run(&problem, &levels[level], false, 1);
    for (int j = 0; j < 304; j++) { /* head 2: slope 0.25, exact; the scale is 1 / sqrt(8) */
      const double rounded = j < 256 ? j : j % 2 == 0 ? j : j % 4 == 1 ? j - 1 : j + 1; /* ties to even */
      sum += exp((0.25 * rounded - 0.25 * 304) / sqrt(8.0));
    }
    assert_true(fabs((double)((const float *)problem.fwd.lse)[3 * 304 - 1] - log(sum)) < 1e-5);
    problem_free(&problem);
  }
}

/* A window of the whole length, documents that never begin and a scale of 1 / sqrt(D) change no bit. */
static void a_form_that_hides_nothing_changes_no_bit(void **state)
{
  const struct size size = {1, 301, 2, 1, 16};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_ATTENTION_FWD, levels);
  for (int level = 0; level < n_levels; level++) {
    struct problem problem = problem_make(LADE_F32, size, (struct lade_drop){0}, RANDOM);
    size_t out_bytes = (size_t)problem.n_out * sizeof(float), d_qkv_bytes = (size_t)problem.n_qkv * sizeof(float);
    void *out = memory_make(out_bytes), *d_qkv = memory_make(d_qkv_bytes);
    run(&problem, &levels[level], true, 1);
    memcpy(out, problem.fwd.out, out_bytes);
    memcpy(d_qkv, problem.bwd.d_qkv, d_qkv_bytes);
    form_set(&problem, (struct form){.scale = 0.25f, .window = size.seq_len, .document = size.seq_len});
    run(&problem, &levels[level], true, 1);
    assert_memory_equal(out, problem.fwd.out, out_bytes);
    assert_memory_equal(d_qkv, problem.bwd.d_qkv, d_qkv_bytes);
    free(out);
    free(d_qkv);
    problem_free(&problem);
  }
}

/* The first microbatch replaces a sink's gradient, and later ones add to it. */
static void gradients_of_sinks_accumulate(void **state)
{
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_ATTENTION_BWD, levels);
  for (int level = 0; level < n_levels; level++) {
    struct problem problem = problem_make(LADE_F32, (struct size){2, 50, 2, 1, 16}, (struct lade_drop){0}, RANDOM);
    form_set(&problem, (struct form){.has_sinks = true});
    float *d_sinks = problem.bwd.d_sinks;
    d_sinks[0] = d_sinks[1] = 77;
    run(&problem, &levels[level], true, 2);
    const float once[] = {d_sinks[0], d_sinks[1]};
    problem.bwd.accumulate_sinks = true;
    run(&problem, &levels[level], true, 2);
    for (int h = 0; h < 2; h++)
      assert_true(d_sinks[h] == 2 * once[h] && fabsf(once[h]) < 7 && once[h] != 0);
    problem_free(&problem);
  }
}

int main(void)
{
  printf("seed %d\n", SEED);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_shape_and_dtype_is_right),
      cmocka_unit_test(dropout_draws_by_element),
      cmocka_unit_test(draws_are_shared),
      cmocka_unit_test(long_heads_are_right),
      cmocka_unit_test(other_heads_are_right),
      cmocka_unit_test(whole_key_heads_are_right),
      cmocka_unit_test(tiles_take_turns),
      cmocka_unit_test(part_of_the_heads_draws_as_all_do),
      cmocka_unit_test(equal_scores_of_any_size_are_right),
      cmocka_unit_test(every_form_of_scores_is_right),
      cmocka_unit_test(alibi_has_the_published_slopes),
      cmocka_unit_test(alibi_rounds_as_falcon_does),
      cmocka_unit_test(a_form_that_hides_nothing_changes_no_bit),
      cmocka_unit_test(gradients_of_sinks_accumulate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
