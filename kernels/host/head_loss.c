/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output head and softmax cross-entropy without the logits ever whole in memory.
 *
 * The vocabulary is cut into chunks of CHUNK columns (the last one shorter), the rows into blocks so that
 * a block's logits of one chunk are at most BLOCK_ELEMENTS numbers in A. Forward keeps each row's running
 * maximum, sum and target logit (Milakov, Gimelshein 2018) and meets chunks in rising order. Backward
 * meets chunks in the outer loop: it makes the chunk's logits again, block by block, turns
 * them into gradients (p - onehot) rounded to D for all rows, and then
 *   dx += d_logits W_chunk       in A over the chunks, rounded to D at the end
 *   dW_chunk = d_logits^T x      complete in one product
 * With one chunk dx needs no sum and is written in D directly: the same bits.
 *
 * Workspace at N = 4096: logits 4 MiB in FP32; backward also 2 * N * min(V, CHUNK) bytes of gradients (2 MiB
 * for 256 symbols, 8 MiB for a large vocabulary), and with several chunks 4 * N * d for dx.
 *
 * A vocabulary that is cut over ranks is reduced in the same way on each; what every row then needs from the others
 * is its maximum, sum and target logit (head_stats), of which any rank makes the loss (head_join) and the backward
 * its own columns' gradients. Padding of the table is met by no chunk.
 *
 * Rejected: chunks of rows only (dW would be summed over chunks, in another order than the plain one
 * has); recomputing the logits twice, once for dx and once for dW, which saves the FP32 dx at the price of a
 * fourth product.
 */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/host/element.h"
#include "kernels/host/head_loss.h"
#include "kernels/host/host.h"

#define CHUNK LADE_HEAD_CHUNK
#define BLOCK_ELEMENTS (1 << 20)
#define TASK_ROWS 32
#define LOSS_LEAF 64 /* losses summed in a row before the tree */

static int64_t chunk_columns(int64_t vocabulary)
{
  return LADE_MIN(vocabulary, CHUNK);
}

static int64_t block_rows(int64_t n, int64_t vocabulary)
{
  int64_t rows = BLOCK_ELEMENTS / chunk_columns(vocabulary);
  return LADE_MIN(n, LADE_MAX(rows / TASK_ROWS * TASK_ROWS, TASK_ROWS));
}

static size_t round_up(size_t n_bytes)
{
  return lade_align_up(n_bytes, 64);
}

/* What every phase of either direction works on. */
struct walk {
  const struct lade_head_loss_level *level;
  const struct lade_kernel_ctx *ctx;
  enum lade_dtype dtype, accumulator;
  int64_t n, d, vocabulary;
  int64_t first_token, n_tokens; /* of the vocabulary: what the weight's rows are, less padding */
  const void *x, *weight;
  const int32_t *targets;
  size_t element_bytes, sum_bytes; /* of D and A */

  /* the piece in hand */
  int64_t first_row, n_rows, first_column, n_columns;

  void *logits;       /* [block_rows, chunk_columns] in A */
  double *max, *sum, *target_logit; /* [N], forward */
  const void *lse;    /* [N] in A, backward */
  double scale;
  char *d_logits;     /* [N, n_columns] in D, backward */
  void *matmul_workspace;
};

static void logits_make(struct walk *walk)
{
  struct lade_matmul_args product = {
      .layout = LADE_NT, .dtype = walk->dtype, .out = walk->accumulator,
      .m = walk->n_rows, .n = walk->n_columns, .k = walk->d,
      .a = (const char *)walk->x + (size_t)(walk->first_row * walk->d) * walk->element_bytes,
      .b = (const char *)walk->weight + (size_t)(walk->first_column * walk->d) * walk->element_bytes,
      .c = walk->logits, .workspace = walk->matmul_workspace};
  walk->level->matmul(walk->ctx, &product);
}

/* Row @i of the block in hand. */
static struct lade_head_row row_at(const struct walk *walk, int64_t i)
{
  int64_t target = walk->targets[walk->first_row + i] - walk->first_token - walk->first_column;
  bool is_here = walk->targets[walk->first_row + i] >= 0 && target >= 0 && target < walk->n_columns;
  return (struct lade_head_row){
      .accumulator = walk->accumulator, .dtype = walk->dtype, .n = walk->n_columns, .target = is_here ? target : -1,
      .logits = (const char *)walk->logits + (size_t)(i * walk->n_columns) * walk->sum_bytes};
}

static void reduce_task(void *arg, int i_task, int i_thread)
{
  struct walk *walk = arg;
  int64_t end = LADE_MIN(walk->n_rows, (int64_t)(i_task + 1) * TASK_ROWS);
  for (int64_t i = (int64_t)i_task * TASK_ROWS; i < end; i++) {
    struct lade_head_row row = row_at(walk, i);
    int64_t at = walk->first_row + i;
    walk->level->reduce(&row, &walk->max[at], &walk->sum[at]);
    if (row.target >= 0)
      walk->target_logit[at] = lade_element_load(row.accumulator, row.logits, row.target);
  }
}

static void gradient_task(void *arg, int i_task, int i_thread)
{
  struct walk *walk = arg;
  int64_t end = LADE_MIN(walk->n_rows, (int64_t)(i_task + 1) * TASK_ROWS);
  for (int64_t i = (int64_t)i_task * TASK_ROWS; i < end; i++) {
    struct lade_head_row row = row_at(walk, i);
    int64_t at = walk->first_row + i;
    double scale = walk->targets[at] < 0 ? 0 : walk->scale;
    walk->level->gradient(&row, lade_element_load(walk->accumulator, walk->lse, at), scale,
                          walk->d_logits + (size_t)(at * walk->n_columns) * walk->element_bytes);
  }
}

/* All rows of the chunk in hand: make logits, run @fn over them. */
static void chunk_run(struct walk *walk, lade_task_fn *fn)
{
  int64_t n_block = block_rows(walk->n, walk->vocabulary);
  for (walk->first_row = 0; walk->first_row < walk->n; walk->first_row += n_block) {
    walk->n_rows = LADE_MIN(n_block, walk->n - walk->first_row);
    logits_make(walk);
    lade_pool_run(walk->ctx->pool, fn, walk, (int)lade_div_up(walk->n_rows, TASK_ROWS));
  }
}

static int64_t targets_count(const int32_t *targets, int64_t n)
{
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++)
    count += targets[i] >= 0;
  return count;
}

/* The sum of losses[0..n): leaves in order, halves as a tree. */
static double losses_sum(enum lade_dtype dtype, const void *losses, int64_t first, int64_t n)
{
  double sum = 0;
  if (n > LOSS_LEAF) {
    int64_t half = lade_div_up(n, 2 * LOSS_LEAF) * LOSS_LEAF;
    return losses_sum(dtype, losses, first, half) + losses_sum(dtype, losses, first + half, n - half);
  }
  for (int64_t i = 0; i < n; i++)
    sum += lade_element_load(dtype, losses, first + i);
  return sum;
}

static size_t logits_bytes(enum lade_dtype dtype, int64_t n, int64_t vocabulary)
{
  return round_up((size_t)(block_rows(n, vocabulary) * chunk_columns(vocabulary)) *
                  lade_dtype_bytes(lade_accumulator(dtype)));
}

/* Every row's maximum, sum and target logit over all the vocabulary that is here. */
static void rows_reduce(struct walk *walk, char *workspace)
{
  walk->element_bytes = lade_dtype_bytes(walk->dtype);
  walk->sum_bytes = lade_dtype_bytes(walk->accumulator);
  walk->logits = workspace;
  walk->max = (double *)(workspace += logits_bytes(walk->dtype, walk->n, walk->vocabulary));
  walk->sum = walk->max + walk->n;
  walk->target_logit = walk->sum + walk->n;
  walk->matmul_workspace = workspace + round_up((size_t)walk->n * 3 * sizeof(double));
  for (int64_t i = 0; i < walk->n; i++) {
    walk->max[i] = -INFINITY;
    walk->sum[i] = walk->target_logit[i] = 0;
  }
  for (walk->first_column = 0; walk->first_column < walk->n_tokens; walk->first_column += CHUNK) {
    walk->n_columns = LADE_MIN(CHUNK, walk->n_tokens - walk->first_column);
    chunk_run(walk, reduce_task);
  }
}

/* One row's loss, of what is known about all its logits. */
static void row_finish(const struct lade_head_join_args *to, int64_t i, double max, double sum, double target_logit)
{
  enum lade_dtype accumulator = lade_accumulator(to->dtype);
  double lse = max + log(sum);
  lade_element_store(accumulator, to->lse, i, lse);
  lade_element_store(accumulator, to->losses, i, to->targets[i] >= 0 ? lse - target_logit : 0);
}

static void loss_finish(const struct lade_head_join_args *to)
{
  enum lade_dtype accumulator = lade_accumulator(to->dtype);
  int64_t count = targets_count(to->targets, to->n);
  double sum = losses_sum(accumulator, to->losses, 0, to->n);
  lade_element_store(accumulator, to->loss, 0, count ? sum / (double)count : 0);
}

void lade_head_loss_fwd_run(const struct lade_head_loss_level *level, const struct lade_kernel_ctx *ctx,
                            const struct lade_head_loss_fwd_args *args)
{
  struct walk walk = {.level = level, .ctx = ctx, .dtype = args->dtype, .accumulator = lade_accumulator(args->dtype),
                      .n = args->n, .d = args->d, .vocabulary = args->vocabulary, .n_tokens = args->vocabulary,
                      .x = args->x, .weight = args->weight, .targets = args->targets};
  struct lade_head_join_args to = {.dtype = args->dtype, .n = args->n, .targets = args->targets,
                                   .losses = args->losses, .lse = args->lse, .loss = args->loss};
  rows_reduce(&walk, args->workspace);
  for (int64_t i = 0; i < walk.n; i++)
    row_finish(&to, i, walk.max[i], walk.sum[i], walk.target_logit[i]);
  loss_finish(&to);
}

void lade_head_stats_run(const struct lade_head_loss_level *level, const struct lade_kernel_ctx *ctx,
                         const struct lade_head_stats_args *args)
{
  LADE_ASSERT(args->padding >= 0 && args->padding < args->vocabulary);
  struct walk walk = {.level = level, .ctx = ctx, .dtype = args->dtype, .accumulator = lade_accumulator(args->dtype),
                      .n = args->n, .d = args->d, .vocabulary = args->vocabulary, .first_token = args->first_token,
                      .n_tokens = args->vocabulary - args->padding, .x = args->x, .weight = args->weight,
                      .targets = args->targets};
  rows_reduce(&walk, args->workspace);
  for (int64_t i = 0; i < 3 * walk.n; i++) /* the three lie one after the other */
    lade_element_store(walk.accumulator, args->stats, i, walk.max[i]);
}

/* The ranks' parts of one row, as if their logits had been reduced by one. */
static void row_join(const struct lade_head_join_args *args, int64_t i)
{
  enum lade_dtype accumulator = lade_accumulator(args->dtype);
  double max = -INFINITY, sum = 0, target_logit = 0;
  for (int64_t rank = 0; rank < args->n_ranks; rank++)
    max = fmax(max, lade_element_load(accumulator, args->stats, rank * 3 * args->n + i));
  for (int64_t rank = 0; rank < args->n_ranks; rank++) {
    int64_t at = rank * 3 * args->n + i;
    sum += lade_element_load(accumulator, args->stats, at + args->n) *
           exp(lade_element_load(accumulator, args->stats, at) - max);
    target_logit += lade_element_load(accumulator, args->stats, at + 2 * args->n);
  }
  row_finish(args, i, max, sum, target_logit);
}

static void head_join_plain(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_head_join_args *args = arg;
  for (int64_t i = 0; i < args->n; i++)
    row_join(args, i);
  loss_finish(args);
}

/* dx (+)= d_logits W_chunk; with one chunk straight into dx. */
static void dx_add(const struct walk *walk, void *dx, void *dx_sum)
{
  struct lade_matmul_args product = {
      .layout = LADE_NN, .dtype = walk->dtype, .out = dx_sum ? walk->accumulator : walk->dtype,
      .m = walk->n, .n = walk->d, .k = walk->n_columns, .a = walk->d_logits,
      .b = (const char *)walk->weight + (size_t)(walk->first_column * walk->d) * walk->element_bytes,
      .c = dx_sum ? dx_sum : dx, .accumulate = walk->first_column > 0, .workspace = walk->matmul_workspace};
  walk->level->matmul(walk->ctx, &product);
}

static void d_weight_make(const struct walk *walk, const struct lade_head_loss_bwd_args *args)
{
  struct lade_matmul_args product = {
      .layout = LADE_TN, .dtype = walk->dtype, .out = walk->accumulator,
      .m = walk->n_columns, .n = walk->d, .k = walk->n, .a = walk->d_logits, .b = walk->x,
      .c = (char *)args->d_weight + (size_t)(walk->first_column * walk->d) * walk->sum_bytes,
      .accumulate = args->accumulate, .workspace = walk->matmul_workspace};
  walk->level->matmul(walk->ctx, &product);
}

struct dx_cast {
  const struct walk *walk;
  const void *sum;
  void *dx;
};

static void dx_cast_task(void *arg, int i_task, int i_thread)
{
  const struct dx_cast *cast = arg;
  const struct walk *walk = cast->walk;
  int64_t first = (int64_t)i_task * TASK_ROWS * walk->d, end = LADE_MIN(first + TASK_ROWS * walk->d, walk->n * walk->d);
  char *to = (char *)cast->dx + (size_t)first * walk->element_bytes;
  if (walk->dtype == LADE_F64)
    memcpy(to, (const double *)cast->sum + first, (size_t)(end - first) * sizeof(double));
  else
    walk->level->cast(walk->dtype, (const float *)cast->sum + first, end - first, to);
}

void lade_head_loss_bwd_run(const struct lade_head_loss_level *level, const struct lade_kernel_ctx *ctx,
                            const struct lade_head_loss_bwd_args *args)
{
  struct walk walk = {.level = level, .ctx = ctx, .dtype = args->dtype, .accumulator = lade_accumulator(args->dtype),
                      .n = args->n, .d = args->d, .vocabulary = args->vocabulary, .first_token = args->first_token,
                      .n_tokens = args->vocabulary - args->padding, .x = args->x, .weight = args->weight,
                      .targets = args->targets, .lse = args->lse};
  walk.element_bytes = lade_dtype_bytes(walk.dtype);
  walk.sum_bytes = lade_dtype_bytes(walk.accumulator);
  int64_t count = targets_count(args->targets, args->n);
  walk.scale = count ? (double)args->scale * (double)ctx->step->loss_scale / (double)count : 0;
  bool is_one_chunk = args->vocabulary <= CHUNK;
  char *at = args->workspace;
  walk.logits = at;
  walk.d_logits = at += logits_bytes(walk.dtype, walk.n, walk.vocabulary);
  at += round_up((size_t)(walk.n * chunk_columns(walk.vocabulary)) * walk.element_bytes);
  void *dx_sum = is_one_chunk ? NULL : at;
  walk.matmul_workspace = is_one_chunk ? at : at + round_up((size_t)(walk.n * walk.d) * walk.sum_bytes);
  for (walk.first_column = 0; walk.first_column < walk.n_tokens; walk.first_column += CHUNK) {
    walk.n_columns = LADE_MIN(CHUNK, walk.n_tokens - walk.first_column);
    chunk_run(&walk, gradient_task);
    dx_add(&walk, args->dx, dx_sum);
    d_weight_make(&walk, args);
  }
  if (!args->accumulate)
    memset((char *)args->d_weight + (size_t)(walk.n_tokens * walk.d) * walk.sum_bytes, 0,
           (size_t)(args->padding * walk.d) * walk.sum_bytes);
  struct dx_cast cast = {&walk, dx_sum, args->dx};
  if (dx_sum)
    lade_pool_run(ctx->pool, dx_cast_task, &cast, (int)lade_div_up(args->n, TASK_ROWS));
}

static void reduce_plain(const struct lade_head_row *row, double *max, double *sum)
{
  double new_max = *max, added = 0;
  for (int64_t j = 0; j < row->n; j++)
    new_max = fmax(new_max, lade_element_load(row->accumulator, row->logits, j));
  for (int64_t j = 0; j < row->n; j++)
    added += exp(lade_element_load(row->accumulator, row->logits, j) - new_max);
  *sum = *sum * exp(*max - new_max) + added;
  *max = new_max;
}

static void gradient_plain(const struct lade_head_row *row, double lse, double scale, void *d_logits)
{
  for (int64_t j = 0; j < row->n; j++) {
    double p = exp(lade_element_load(row->accumulator, row->logits, j) - lse);
    lade_element_store(row->dtype, d_logits, j, (p - (j == row->target)) * scale);
  }
}

static void cast_plain(enum lade_dtype dtype, const float *from, int64_t n, void *to)
{
  for (int64_t i = 0; i < n; i++)
    lade_element_store(dtype, to, i, (double)from[i]);
}

const struct lade_head_loss_level lade_head_loss_plain = {.matmul = lade_matmul_plain, .reduce = reduce_plain,
                                                          .gradient = gradient_plain, .cast = cast_plain};

static void head_loss_fwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  lade_head_loss_fwd_run(&lade_head_loss_plain, ctx, args);
}

static void head_stats_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  lade_head_stats_run(&lade_head_loss_plain, ctx, args);
}

static void head_loss_bwd_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  lade_head_loss_bwd_run(&lade_head_loss_plain, ctx, args);
}

void lade_head_loss_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_HEAD_LOSS_FWD, head_loss_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_HEAD_LOSS_BWD, head_loss_bwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_HEAD_STATS, head_stats_plain, "plain");
  lade_kernels_set(kernels, LADE_K_HEAD_JOIN, head_join_plain, "plain");
}

/* The largest workspace that any of the products of either direction wants. */
static size_t products_bytes(enum lade_dtype dtype, int64_t n, int64_t d, int64_t vocabulary, bool is_bwd,
                             int n_threads)
{
  int64_t columns = chunk_columns(vocabulary);
  enum lade_dtype sum = lade_accumulator(dtype);
  struct lade_matmul_args logits = {.layout = LADE_NT, .dtype = dtype, .out = sum,
                                    .m = block_rows(n, vocabulary), .n = columns, .k = d};
  struct lade_matmul_args dx = {.layout = LADE_NN, .dtype = dtype, .out = sum, .m = n, .n = d, .k = columns};
  struct lade_matmul_args dw = {.layout = LADE_TN, .dtype = dtype, .out = sum, .m = columns, .n = d, .k = n};
  size_t bytes = lade_matmul_workspace_bytes(&logits, n_threads);
  if (is_bwd) {
    bytes = LADE_MAX(bytes, lade_matmul_workspace_bytes(&dx, n_threads));
    bytes = LADE_MAX(bytes, lade_matmul_workspace_bytes(&dw, n_threads));
  }
  return bytes;
}

size_t lade_head_loss_fwd_workspace_bytes(const struct lade_head_loss_fwd_args *args, int n_threads)
{
  return logits_bytes(args->dtype, args->n, args->vocabulary) + round_up((size_t)args->n * 3 * sizeof(double)) +
         products_bytes(args->dtype, args->n, args->d, args->vocabulary, false, n_threads);
}

size_t lade_head_stats_workspace_bytes(const struct lade_head_stats_args *args, int n_threads)
{
  return lade_head_loss_fwd_workspace_bytes(&(struct lade_head_loss_fwd_args){.dtype = args->dtype, .n = args->n,
                                                                              .d = args->d,
                                                                              .vocabulary = args->vocabulary},
                                            n_threads);
}

size_t lade_head_loss_bwd_workspace_bytes(const struct lade_head_loss_bwd_args *args, int n_threads)
{
  int64_t columns = chunk_columns(args->vocabulary);
  size_t dx_bytes = args->vocabulary <= CHUNK ? 0 : (size_t)(args->n * args->d) *
                                                        lade_dtype_bytes(lade_accumulator(args->dtype));
  return logits_bytes(args->dtype, args->n, args->vocabulary) +
         round_up((size_t)(args->n * columns) * lade_dtype_bytes(args->dtype)) + round_up(dx_bytes) +
         products_bytes(args->dtype, args->n, args->d, args->vocabulary, true, n_threads);
}
