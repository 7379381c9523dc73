/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head and its loss at every level compared with the plain one in double: vocabularies on both sides of a chunk,
 * rows on both sides of a block, ignored targets, accumulation. The bits are the same for any number of threads.
 */
#include "exact.h"

struct problem {
  struct lade_head_loss_fwd_args fwd, fwd_exact;
  struct lade_head_loss_bwd_args bwd, bwd_exact;
  void *start; /* of d_weight */
  int32_t *targets;
};

/* Make a problem; @leaf as in the arguments. */
static struct problem problem_make(enum lade_dtype dtype, int64_t n, int64_t d, int64_t vocabulary, int64_t leaf,
                                   bool accumulate)
{
  struct problem problem = {.targets = memory_make((size_t)n * sizeof(int32_t))};
  void *x, *weight, *d_weight;
  for (int64_t i = 0; i < n; i++) {
    uint32_t word = lade_philox_word(SEED, 0, 7, (uint64_t)i);
    problem.targets[i] = word % 8 == 0 && n > 1 ? -1 : (int32_t)(word / 8 % (uint32_t)vocabulary);
  }
  problem.fwd = (struct lade_head_loss_fwd_args){
      .dtype = dtype, .n = n, .d = d, .vocabulary = vocabulary, .leaf = leaf, .targets = problem.targets,
      .softcap = d % 2 ? 1.5f : 0, /* also past a tanh's near part */
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
      .dtype = dtype, .n = n, .d = d, .vocabulary = vocabulary, .leaf = leaf, .scale = 0.5f, .x = problem.fwd.x,
      .softcap = problem.fwd.softcap,
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

static void compare(const char *label, const char *variant, const struct problem *problem, enum lade_dtype dtype,
                    const void *data, const void *exact, int64_t n, double unit)
{
  double norm, error = error_get(dtype, data, exact, n, &norm);
  if (!(error <= unit * norm))
    fail_msg("%s %s %s n %ld d %ld vocabulary %ld: error %g of %g, bound %g", label, variant,
             lade_dtype_name(problem->fwd.dtype), (long)problem->fwd.n, (long)problem->fwd.d,
             (long)problem->fwd.vocabulary, error, norm, unit);
}

/* Run again with the logits kept between both directions: every output has the same bits. */
static void kept_logits_check(struct problem *problem, const struct lade_kernels *kernels)
{
  const size_t n = (size_t)problem->fwd.n, n_dx = n * (size_t)problem->fwd.d * lade_dtype_bytes(problem->fwd.dtype);
  const size_t n_weight = (size_t)(problem->fwd.vocabulary * problem->fwd.d) * 4;
  struct problem kept = *problem;
  kept.fwd.losses = memory_make(n * 4);
  kept.fwd.lse = memory_make(n * 4);
  kept.fwd.loss = memory_make(4);
  kept.fwd.logits = memory_make(n * (size_t)problem->fwd.vocabulary * 4);
  kept.bwd.lse = kept.fwd.lse;
  kept.bwd.logits = kept.fwd.logits;
  kept.bwd.dx = memory_make(n_dx);
  kept.bwd.d_weight = memory_make(n_weight);
  run(&kept, kernels, 2);
  assert_memory_equal(kept.fwd.losses, problem->fwd.losses, n * 4);
  assert_memory_equal(kept.fwd.lse, problem->fwd.lse, n * 4);
  assert_memory_equal(kept.fwd.loss, problem->fwd.loss, 4);
  assert_memory_equal(kept.bwd.dx, problem->bwd.dx, n_dx);
  assert_memory_equal(kept.bwd.d_weight, problem->bwd.d_weight, n_weight);
  memset(kept.fwd.logits, 0, n * (size_t)problem->fwd.vocabulary * 4);
  memset(kept.bwd.dx, 0, n_dx);
  kernel_call(kernels, LADE_K_HEAD_LOSS_BWD, &kept.bwd, &kept.bwd.workspace, NULL);
  assert_true(memcmp(kept.bwd.dx, problem->bwd.dx, n_dx)); /* they are read, not made again */
  free(kept.fwd.losses);
  free(kept.fwd.lse);
  free(kept.fwd.loss);
  free(kept.fwd.logits);
  free(kept.bwd.dx);
  free(kept.bwd.d_weight);
}

static void problem_check(enum lade_dtype dtype, int64_t n, int64_t d, int64_t vocabulary, int64_t leaf,
                          bool accumulate)
{
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_HEAD_LOSS_FWD, levels);
  struct problem problem = problem_make(dtype, n, d, vocabulary, leaf, accumulate);
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
    if (vocabulary > 1)
      kept_logits_check(&problem, &levels[level]);
  }
  free(dx);
  free(d_weight);
  problem_free(&problem);
}

static void any_shape_and_dtype_is_right(void **state)
{
  static const int64_t shapes[][4] = {{1, 1, 1},        {1, 5, 33},       {37, 16, 256},      {65, 7, 1025},
                                      {70, 24, 2100},   {9, 8, 1000, 125}, {33, 8, 2100, 263}, {5, 4, 4300, 1075}};
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  for (size_t t = 0; t < LADE_COUNT(dtypes); t++)
    for (size_t s = 0; s < LADE_COUNT(shapes); s++)
      problem_check(dtypes[t], shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], s % 2);
}

static void rows_past_one_block_are_right(void **state)
{
  problem_check(LADE_BF16, 1100, 4, 1030, 0, true);
}

/* @problem's vocabulary over ranks of @rows rows each, the last of them with padding. */
struct cut {
  struct problem *problem;
  int64_t rows, n_ranks;
  char *weight; /* of all ranks, padding included and poisoned */
  float *stats, *d_weight;
  float *logits; /* of each rank, if they are kept; NULL: backward makes them again */
  char *dx;      /* of each rank, in D */
};

static int64_t cut_padding(const struct cut *cut, int64_t rank)
{
  return LADE_MAX((rank + 1) * cut->rows - cut->problem->fwd.vocabulary, 0);
}

/* Return the elements from one rank's dx to the next, rounded up to where a tensor may begin. */
static int64_t cut_pitch(const struct cut *cut)
{
  return (int64_t)lade_align_up((uint64_t)(cut->problem->fwd.n * cut->problem->fwd.d), 64);
}

static struct cut cut_make(struct problem *problem, int64_t rows)
{
  const struct lade_head_loss_fwd_args *all = &problem->fwd;
  struct cut cut = {.problem = problem, .rows = rows, .n_ranks = lade_div_up(all->vocabulary, rows)};
  size_t weight_bytes = (size_t)(cut.n_ranks * rows * all->d) * lade_dtype_bytes(all->dtype);
  cut.weight = memory_make(weight_bytes);
  memset(cut.weight, 0xff, weight_bytes);
  memcpy(cut.weight, all->weight, (size_t)(all->vocabulary * all->d) * lade_dtype_bytes(all->dtype));
  cut.stats = memory_make((size_t)(cut.n_ranks * 3 * all->n) * 4);
  cut.d_weight = memory_make((size_t)(cut.n_ranks * rows * all->d) * 4);
  memset(cut.d_weight, 0xff, (size_t)(cut.n_ranks * rows * all->d) * 4);
  cut.dx = memory_make((size_t)(cut.n_ranks * cut_pitch(&cut)) * lade_dtype_bytes(all->dtype));
  return cut;
}

static void cut_free(struct cut *cut)
{
  free(cut->weight);
  free(cut->stats);
  free(cut->logits);
  free(cut->d_weight);
  free(cut->dx);
}

static const void *cut_weight(const struct cut *cut, int64_t rank)
{
  const struct lade_head_loss_fwd_args *all = &cut->problem->fwd;
  return cut->weight + (size_t)(rank * cut->rows * all->d) * lade_dtype_bytes(all->dtype);
}

/* Return the elements from one rank's logits to the next. */
static int64_t cut_logits_pitch(const struct cut *cut)
{
  return (int64_t)lade_align_up((uint64_t)(cut->rows * cut->problem->fwd.n), 64);
}

/* Return the place of @rank's logits, or NULL. */
static float *cut_logits(const struct cut *cut, int64_t rank)
{
  return cut->logits ? cut->logits + rank * cut_logits_pitch(cut) : NULL;
}

/* Run all ranks' backward. */
static void cut_differentiate(struct cut *cut, const struct lade_kernels *kernels)
{
  struct problem *p = cut->problem;
  for (int64_t rank = 0; rank < cut->n_ranks; rank++) {
    struct lade_head_loss_bwd_args bwd = p->bwd;
    bwd.vocabulary = cut->rows;
    bwd.first_token = rank * cut->rows;
    bwd.padding = cut_padding(cut, rank);
    bwd.weight = cut_weight(cut, rank);
    bwd.logits = cut_logits(cut, rank);
    bwd.d_weight = cut->d_weight + rank * cut->rows * p->fwd.d;
    bwd.dx = cut->dx + (size_t)(rank * cut_pitch(cut)) * lade_dtype_bytes(bwd.dtype);
    kernel_call(kernels, LADE_K_HEAD_LOSS_BWD, &bwd, &bwd.workspace, NULL);
  }
}

/* Run all ranks' parts one after the other; the loss goes into the problem's own outputs. */
static void cut_run(struct cut *cut, const struct lade_kernels *kernels)
{
  struct problem *p = cut->problem;
  for (int64_t rank = 0; rank < cut->n_ranks; rank++) {
    struct lade_head_stats_args stats = {
        .dtype = p->fwd.dtype, .n = p->fwd.n, .d = p->fwd.d, .vocabulary = cut->rows, .leaf = p->fwd.leaf,
        .softcap = p->fwd.softcap,
        .first_token = rank * cut->rows, .padding = cut_padding(cut, rank), .x = p->fwd.x,
        .weight = cut_weight(cut, rank), .targets = p->targets, .stats = cut->stats + rank * 3 * p->fwd.n,
        .logits = cut_logits(cut, rank)};
    kernel_call(kernels, LADE_K_HEAD_STATS, &stats, &stats.workspace, NULL);
  }
  struct lade_head_join_args join = {.dtype = p->fwd.dtype, .n = p->fwd.n, .n_ranks = cut->n_ranks, .stats = cut->stats,
                                     .targets = p->targets, .losses = p->fwd.losses, .lse = p->fwd.lse,
                                     .loss = p->fwd.loss};
  struct lade_step step = {.loss_scale = 1};
  struct lade_kernel_ctx ctx = level_ctx(kernels, NULL, &step);
  kernels->fn[LADE_K_HEAD_JOIN](&ctx, &join);
  cut_differentiate(cut, kernels);
}

/* Run again with each rank's logits kept: every output has the same bits, and backward reads them. */
static void cut_kept_check(struct cut *cut, const struct lade_kernels *kernels)
{
  const struct lade_head_loss_fwd_args *all = &cut->problem->fwd;
  const size_t n_logits = (size_t)(cut->n_ranks * cut_logits_pitch(cut)) * 4;
  const size_t n_stats = (size_t)(cut->n_ranks * 3 * all->n) * 4;
  const size_t n_dx = (size_t)(cut->n_ranks * cut_pitch(cut)) * lade_dtype_bytes(all->dtype);
  const size_t n_weight = (size_t)(cut->n_ranks * cut->rows * all->d) * 4;
  struct cut again = *cut;
  again.stats = memory_make(n_stats);
  again.dx = memory_make(n_dx);
  again.d_weight = memory_make(n_weight);
  memset(again.d_weight, 0xff, n_weight);
  cut->logits = again.logits = memory_make(n_logits);
  cut_run(&again, kernels);
  assert_memory_equal(again.stats, cut->stats, n_stats);
  assert_memory_equal(again.dx, cut->dx, n_dx);
  assert_memory_equal(again.d_weight, cut->d_weight, n_weight);
  memset(again.logits, 0, n_logits);
  cut_differentiate(&again, kernels);
  assert_true(memcmp(again.dx, cut->dx, n_dx));
  free(again.stats);
  free(again.dx);
  free(again.d_weight);
  free(cut->logits);
  cut->logits = NULL;
}

/* Return the sum of all ranks' dx in double; the caller frees it. */
static double *cut_dx(const struct cut *cut)
{
  const struct lade_head_loss_fwd_args *all = &cut->problem->fwd;
  int64_t n = all->n * all->d;
  double *sum = memory_make((size_t)n * sizeof(*sum));
  for (int64_t i = 0; i < cut->n_ranks * n; i++)
    sum[i % n] += lade_element_load(all->dtype, cut->dx, i / n * cut_pitch(cut) + i % n);
  return sum;
}

static void cut_check(enum lade_dtype dtype, int64_t n, int64_t d, int64_t vocabulary, int64_t rows)
{
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_HEAD_LOSS_FWD, levels);
  struct problem problem = problem_make(dtype, n, d, vocabulary, 0, false);
  struct cut cut = cut_make(&problem, rows);
  kernel_call(&levels[0], LADE_K_HEAD_LOSS_FWD, &problem.fwd_exact, &problem.fwd_exact.workspace, NULL);
  kernel_call(&levels[0], LADE_K_HEAD_LOSS_BWD, &problem.bwd_exact, &problem.bwd_exact.workspace, NULL);
  double unit = 2 * unit_get(dtype) + 0x1p-18;
  for (int level = 0; level < n_levels; level++) {
    const char *variant = levels[level].variant[LADE_K_HEAD_STATS];
    cut_run(&cut, &levels[level]);
    compare("losses", variant, &problem, LADE_F32, problem.fwd.losses, problem.fwd_exact.losses, n, 0x1p-18);
    compare("lse", variant, &problem, LADE_F32, problem.fwd.lse, problem.fwd_exact.lse, n, 0x1p-18);
    compare("loss", variant, &problem, LADE_F32, problem.fwd.loss, problem.fwd_exact.loss, 1, 0x1p-18);
    double *dx = cut_dx(&cut);
    compare("dx", variant, &problem, LADE_F64, dx, problem.bwd_exact.dx, n * d, 2 * unit);
    free(dx);
    compare("d_weight", variant, &problem, LADE_F32, cut.d_weight, problem.bwd_exact.d_weight, vocabulary * d, unit);
    for (int64_t i = vocabulary * d; i < cut.n_ranks * rows * d; i++)
      assert_true(cut.d_weight[i] == 0);
    cut_kept_check(&cut, &levels[level]);
  }
  cut_free(&cut);
  problem_free(&problem);
}

static void vocabulary_cut_over_ranks_gives_the_loss_of_the_whole(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  for (size_t t = 0; t < LADE_COUNT(dtypes); t++) {
    cut_check(dtypes[t], 37, 16, 256, 128);
    cut_check(dtypes[t], 37, 16, 61, 8);
    cut_check(dtypes[t], 65, 7, 2059, 1030);
  }
}

/* Compare @problem's outputs of one rank that has all leaves with those of @n_ranks that share them. */
static void leaves_compare(struct problem *problem, const struct lade_kernels *kernels, int64_t n_ranks)
{
  size_t n = (size_t)problem->fwd.n, n_dx = n * (size_t)problem->fwd.d;
  struct cut cut = cut_make(problem, LADE_LEAVES_MAX / n_ranks * problem->fwd.leaf);
  float *dx = memory_make(n_dx * sizeof(*dx)), *lse = memory_make(n * sizeof(*lse));
  const void *parts[LADE_LEAVES_MAX];
  struct lade_rank_sum_args sum = {.dtype = LADE_F32, .n_terms = (int)n_ranks, .n_elements = (int64_t)n_dx, .x = parts,
                                   .y = dx};
  struct lade_kernel_ctx ctx = {0};
  assert_int_equal(cut.n_ranks, n_ranks);
  run(problem, kernels, 1);
  memcpy(lse, problem->fwd.lse, n * sizeof(*lse));
  float loss = *(const float *)problem->fwd.loss;
  cut_run(&cut, kernels);
  cut_kept_check(&cut, kernels);
  for (int64_t rank = 0; rank < n_ranks; rank++)
    parts[rank] = (const float *)(const void *)cut.dx + rank * cut_pitch(&cut);
  kernels->fn[LADE_K_RANK_SUM](&ctx, &sum);
  assert_memory_equal(problem->fwd.lse, lse, n * sizeof(*lse));
  assert_memory_equal(problem->fwd.loss, &loss, sizeof(loss));
  assert_memory_equal(problem->bwd.dx, dx, n_dx * sizeof(*dx));
  assert_memory_equal(problem->bwd.d_weight, cut.d_weight,
                      (size_t)(problem->fwd.vocabulary * problem->fwd.d) * sizeof(float));
  free(lse);
  free(dx);
  cut_free(&cut);
}

/* One chunk for all leaves, several leaves to a chunk, several chunks to a leaf. */
static void ranks_that_share_the_leaves_give_the_bits_of_one(void **state)
{
  static const int64_t vocabularies[] = {1000, 2059, 9001};
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_HEAD_LOSS_FWD, levels);
  for (size_t i = 0; i < LADE_COUNT(vocabularies); i++) {
    int64_t leaf = lade_div_up(vocabularies[i], LADE_LEAVES_MAX);
    struct problem problem = problem_make(LADE_F32, 21, 8, vocabularies[i], leaf, false);
    for (int level = 0; level < n_levels; level++)
      for (int64_t n_ranks = 2; n_ranks <= LADE_LEAVES_MAX && levels[level].fn[LADE_K_RANK_SUM]; n_ranks *= 2)
        leaves_compare(&problem, &levels[level], n_ranks);
    problem_free(&problem);
  }
}

/*
 * Run @problem's forward over consecutive parts of a table, which begin at @first. The first part's statistics have
 * separate memory; the other parts overwrite the statistics that they continue. @logits: room for all parts' logits, or
 * NULL.
 */
static void parts_reduce(struct problem *problem, const struct lade_kernels *kernels, const int64_t *first, int n,
                         float *logits)
{
  const struct lade_head_loss_fwd_args *all = &problem->fwd;
  float *begun = memory_make((size_t)(3 * all->n) * sizeof(*begun)), *stats = memory_make((size_t)(3 * all->n) * 4);
  for (int i = 0; i < n; i++) {
    struct lade_head_stats_args part = {
        .dtype = all->dtype, .n = all->n, .d = all->d, .vocabulary = first[i + 1] - first[i], .first_token = first[i],
        .softcap = all->softcap,
        .x = all->x, .weight = (const char *)all->weight + (size_t)(first[i] * all->d) * lade_dtype_bytes(all->dtype),
        .targets = all->targets, .before = i ? i == 1 ? begun : stats : NULL, .stats = i ? stats : begun,
        .logits = logits ? logits + first[i] * all->n : NULL};
    kernel_call(kernels, LADE_K_HEAD_STATS, &part, &part.workspace, NULL);
  }
  struct lade_head_join_args join = {.dtype = all->dtype, .n = all->n, .n_ranks = 1, .stats = stats,
                                     .targets = all->targets, .losses = all->losses, .lse = all->lse,
                                     .loss = all->loss};
  struct lade_step step = {.loss_scale = 1};
  struct lade_kernel_ctx ctx = level_ctx(kernels, NULL, &step);
  kernels->fn[LADE_K_HEAD_JOIN](&ctx, &join);
  free(begun);
  free(stats);
}

/* Run the same backward. */
static void parts_differentiate(struct problem *problem, const struct lade_kernels *kernels, const int64_t *first,
                                int n, const float *logits)
{
  const struct lade_head_loss_bwd_args *all = &problem->bwd;
  float *begun = memory_make((size_t)(all->n * all->d) * sizeof(*begun));
  float *sum = memory_make((size_t)(all->n * all->d) * sizeof(*sum));
  memcpy(all->d_weight, problem->start, (size_t)(all->vocabulary * all->d) * 4);
  for (int i = 0; i < n; i++) {
    struct lade_head_loss_bwd_args part = *all;
    part.vocabulary = first[i + 1] - first[i];
    part.first_token = first[i];
    part.weight = (const char *)all->weight + (size_t)(first[i] * all->d) * lade_dtype_bytes(all->dtype);
    part.logits = logits ? logits + first[i] * all->n : NULL;
    part.d_weight = (float *)all->d_weight + first[i] * all->d;
    part.has_before = i > 0;
    part.before = i == 1 ? begun : sum;
    part.is_sum = i + 1 < n;
    part.dx = part.is_sum ? i ? sum : begun : all->dx;
    kernel_call(kernels, LADE_K_HEAD_LOSS_BWD, &part, &part.workspace, NULL);
  }
  free(begun);
  free(sum);
}

/* Compare with the whole table's loss and gradients at every level; on a host, for an equal lse, bit for bit. */
static void parts_check(enum lade_dtype dtype, const int64_t *first, int n_parts, bool accumulate)
{
  struct lade_kernels levels[LEVELS];
  const int64_t n = 37, d = 16, vocabulary = first[n_parts];
  int n_levels = levels_make(LADE_K_HEAD_LOSS_FWD, levels);
  struct problem problem = problem_make(dtype, n, d, vocabulary, 0, accumulate);
  const size_t dx_bytes = (size_t)(n * d) * lade_dtype_bytes(dtype), d_weight_bytes = (size_t)(vocabulary * d) * 4;
  void *dx = memory_make(dx_bytes), *d_weight = memory_make(d_weight_bytes);
  float *logits = memory_make((size_t)(n * vocabulary) * sizeof(*logits));
  const double unit = 2 * unit_get(dtype) + 0x1p-18;
  kernel_call(&levels[0], LADE_K_HEAD_LOSS_FWD, &problem.fwd_exact, &problem.fwd_exact.workspace, NULL);
  kernel_call(&levels[0], LADE_K_HEAD_LOSS_BWD, &problem.bwd_exact, &problem.bwd_exact.workspace, NULL);
  for (int level = 0; level < n_levels; level++) {
    const char *variant = levels[level].variant[LADE_K_HEAD_STATS];
    const bool is_host = levels[level].fn[LADE_K_RANK_SUM];
    run(&problem, &levels[level], 1);
    memcpy(dx, problem.bwd.dx, dx_bytes);
    memcpy(d_weight, problem.bwd.d_weight, d_weight_bytes);
    parts_differentiate(&problem, &levels[level], first, n_parts, NULL);
    compare("dx", variant, &problem, dtype, problem.bwd.dx, problem.bwd_exact.dx, n * d, unit);
    compare("d_weight", variant, &problem, LADE_F32, problem.bwd.d_weight, problem.bwd_exact.d_weight, vocabulary * d,
            unit);
    assert_true(!is_host || memcmp(dx, problem.bwd.dx, dx_bytes) == 0);
    assert_true(!is_host || memcmp(d_weight, problem.bwd.d_weight, d_weight_bytes) == 0);
    parts_reduce(&problem, &levels[level], first, n_parts, NULL);
    parts_differentiate(&problem, &levels[level], first, n_parts, NULL);
    memcpy(dx, problem.bwd.dx, dx_bytes);
    memcpy(d_weight, problem.bwd.d_weight, d_weight_bytes);
    parts_reduce(&problem, &levels[level], first, n_parts, logits);
    parts_differentiate(&problem, &levels[level], first, n_parts, logits);
    assert_memory_equal(dx, problem.bwd.dx, dx_bytes);
    assert_memory_equal(d_weight, problem.bwd.d_weight, d_weight_bytes);
    compare("losses", variant, &problem, LADE_F32, problem.fwd.losses, problem.fwd_exact.losses, n, 0x1p-18);
    compare("lse", variant, &problem, LADE_F32, problem.fwd.lse, problem.fwd_exact.lse, n, 0x1p-18);
  }
  free(dx);
  free(d_weight);
  free(logits);
  problem_free(&problem);
}

static void parts_of_a_table_go_on_from_each_other(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  static const int64_t two[] = {0, 1024, 2100}, three[] = {0, 2048, 3072, 3100};
  for (size_t t = 0; t < LADE_COUNT(dtypes); t++) {
    parts_check(dtypes[t], two, 2, false);
    parts_check(dtypes[t], three, 3, true);
  }
}

static void no_target_at_all_costs_nothing(void **state)
{
  struct lade_kernels levels[LEVELS];
  int n_levels = levels_make(LADE_K_HEAD_LOSS_FWD, levels);
  struct problem problem = problem_make(LADE_F32, 9, 8, 20, 0, false);
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
      cmocka_unit_test(vocabulary_cut_over_ranks_gives_the_loss_of_the_whole),
      cmocka_unit_test(ranks_that_share_the_leaves_give_the_bits_of_one),
      cmocka_unit_test(parts_of_a_table_go_on_from_each_other),
      cmocka_unit_test(no_target_at_all_costs_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
