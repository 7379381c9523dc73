/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output head and softmax cross-entropy without the whole logits in memory.
 *
 * The vocabulary is cut into chunks of at most CHUNK columns. The rows are cut into blocks, so that a block's logits of
 * one chunk are at most BLOCK_ELEMENTS numbers in A. Forward keeps each row's running maximum, sum and target logit
 * (Milakov, Gimelshein 2018) and visits chunks in rising order. Backward has chunks in the outer loop: it recomputes
 * the chunk's logits, block by block, turns them into gradients (p - onehot) rounded to D for all rows, and then
 *   dx += d_logits W_chunk       in A over the chunks, rounded to D at the end
 *   dW_chunk = d_logits^T x      complete in one product
 * With one chunk dx needs no sum and is written in D directly, as where D is A: the same bits.
 *
 * Where the vocabulary is a tree of leaves a chunk has whole leaves, a power of two of them, or is a piece of one.
 * Forward reduces each leaf by itself and joins a row's leaves, rounded to A at each node as ranks store it. Backward,
 * the product over a chunk makes the tree of its leaves; sums of dx over several chunks wait in the places of
 * matmul_k_tree.h. So a run of leaves on one rank makes the same node of the same tree.
 *
 * Workspace at N = 4096: logits 4 MiB in FP32. Backward also needs 2 * N * min(V, CHUNK) bytes of gradients: 2 MiB for
 * 256 symbols, 8 MiB for a large vocabulary. With several chunks it needs 4 * N * d for each place of dx, except the
 * root's where D is A.
 *
 * A vocabulary that is cut over ranks is reduced in the same way on each. A row then needs three numbers from each
 * other rank: its maximum, sum and target logit (head_stats). From these any rank makes the loss (head_join), and the
 * backward makes its own columns' gradients. No chunk contains the table's padding.
 *
 * If a rank has its rows in parts, one after another, each part continues from the one before: forward from its
 * statistics, backward from its sum of dx, which only the last part rounds. Parts cut between chunks leave the sums of
 * one pass.
 *
 * If forward kept the logits of all rows and of the part's columns, backward makes no product of logits and no cap. It
 * reads the same pieces in the same order, so its bits are those of logits made again.
 *
 * Rejected: the gradient within the forward walk. A row's gradient needs its whole sum, so the walk would go over
 * blocks of rows first, and dW would be a sum over blocks.
 *
 * Rejected: chunks of rows only, because dW would be summed over chunks, in another order than the plain kernel's.
 * Rejected: recomputing the logits twice, once for dx and once for dW, which saves the FP32 dx but costs a fourth
 * product.
 */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/host/element/element.h"
#include "kernels/host/head_loss/head_loss.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul/matmul_k_tree.h"

#define CHUNK LADE_HEAD_CHUNK
#define BLOCK_ELEMENTS (1 << 20)
#define TASK_ROWS 32
#define LOSS_LEAF 64 /* losses summed in order before the tree */

static int64_t chunk_columns(int64_t vocabulary)
{
  return LADE_MIN(vocabulary, CHUNK);
}

/* The cut of a vocabulary's tokens: leaves, and the leaves of a chunk, or the chunks of a leaf. */
struct leaves {
  int64_t leaf, n;
  int64_t n_together; /* in a chunk; 1 if a chunk is a piece of a leaf */
};

/* Make the cut. @leaf as in the arguments; @n_tokens with or without padding, which is less than a leaf. */
static struct leaves leaves_make(int64_t leaf, int64_t n_tokens)
{
  struct leaves leaves = {.leaf = leaf ? leaf : n_tokens, .n_together = 1};
  leaves.n = lade_div_up(n_tokens, leaves.leaf);
  LADE_ASSERT(leaves.n <= LADE_LEAVES_MAX && !(leaves.n & (leaves.n - 1)));
  while (leaves.n_together < leaves.n && 2 * leaves.n_together * leaves.leaf <= CHUNK)
    leaves.n_together *= 2;
  return leaves;
}

/* Return the tokens whose dx is one sum of this driver: the leaves of a chunk, or all chunks of a leaf. */
static int64_t node_tokens(const struct leaves *leaves)
{
  return leaves->n_together * leaves->leaf;
}

/* Return the number of places for these sums (matmul_k_tree.h). */
static int dx_places(const struct leaves *leaves)
{
  return lade_k_place((int)(leaves->n / leaves->n_together) - 1) + 1;
}

static bool is_one_chunk(const struct leaves *leaves, int64_t n_tokens)
{
  return n_tokens <= LADE_MIN(node_tokens(leaves), CHUNK);
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

/* State of all phases, in both directions. */
struct head_loss_walk {
  const struct lade_head_loss_level *level;
  const struct lade_kernel_ctx *ctx;
  enum lade_dtype dtype, accumulator;
  int64_t n, d, vocabulary;
  int64_t first_token, n_tokens; /* of the vocabulary: the weight's rows, less padding */
  struct leaves leaves;
  float softcap;
  const void *x, *weight;
  const int32_t *targets;
  size_t element_bytes, sum_bytes; /* of D and A */

  /* the current piece */
  int64_t first_row, n_rows, first_column, n_columns;

  void *logits;       /* [block_rows, chunk_columns] in A, of the current piece */
  char *kept;         /* [N * V] in A: all logits, chunk after chunk; NULL: one piece at a time */
  bool has_logits;    /* they are there already: backward */
  double *max, *sum;    /* [leaves, N], forward */
  double *target_logit; /* [N], forward */
  const void *lse;    /* [N] in A, backward */
  double scale;
  char *d_logits;     /* [N, n_columns] in D, backward */
  void *dx, *dx_sums; /* [N, d] in D, and [places] of it in A, backward */
  const void *before; /* of earlier parts: [3, N] forward, [N, d] backward, in A; NULL for none */
  bool is_sum;        /* dx is a sum in A */
  size_t dx_sum_bytes;
  void *matmul_workspace;
};

/* Make the next chunk the current piece; false after the last one. */
static bool chunk_next(struct head_loss_walk *walk)
{
  int64_t leaf = walk->leaves.leaf, first = walk->first_column += walk->n_columns;
  int64_t end = leaf > CHUNK ? LADE_MIN(first + CHUNK, (first / leaf + 1) * leaf)
                             : first + walk->leaves.n_together * leaf;
  walk->n_columns = LADE_MIN(end, walk->n_tokens) - first;
  return first < walk->n_tokens;
}

static void logits_make(struct head_loss_walk *walk)
{
  struct lade_matmul_args product = {
      .layout = LADE_NT, .dtype = walk->dtype, .out = walk->accumulator,
      .m = walk->n_rows, .n = walk->n_columns, .k = walk->d,
      .a = (const char *)walk->x + (size_t)(walk->first_row * walk->d) * walk->element_bytes,
      .b = (const char *)walk->weight + (size_t)(walk->first_column * walk->d) * walk->element_bytes,
      .c = walk->logits, .workspace = walk->matmul_workspace};
  walk->level->matmul(walk->ctx, &product);
}

/* Return row @i of the current block. */
static struct lade_head_row row_at(const struct head_loss_walk *walk, int64_t i)
{
  int64_t target = walk->targets[walk->first_row + i] - walk->first_token - walk->first_column;
  bool is_here = walk->targets[walk->first_row + i] >= 0 && target >= 0 && target < walk->n_columns;
  return (struct lade_head_row){
      .accumulator = walk->accumulator, .dtype = walk->dtype, .n = walk->n_columns, .target = is_here ? target : -1,
      .softcap = walk->softcap,
      .logits = (const char *)walk->logits + (size_t)(i * walk->n_columns) * walk->sum_bytes};
}

/* Reduce row @at of the current chunk, leaf by leaf. */
static void row_reduce(struct head_loss_walk *walk, const struct lade_head_row *row, int64_t at)
{
  for (int64_t column = 0; column < row->n;) {
    int64_t leaf = (walk->first_column + column) / walk->leaves.leaf;
    int64_t end = LADE_MIN((leaf + 1) * walk->leaves.leaf - walk->first_column, row->n);
    struct lade_head_row part = *row;
    part.n = end - column;
    part.logits = (const char *)row->logits + (size_t)column * walk->sum_bytes;
    walk->level->reduce(&part, &walk->max[leaf * walk->n + at], &walk->sum[leaf * walk->n + at]);
    column = end;
  }
}

static void reduce_task(void *arg, int i_task, int i_thread)
{
  struct head_loss_walk *walk = arg;
  int64_t end = LADE_MIN(walk->n_rows, (int64_t)(i_task + 1) * TASK_ROWS);
  for (int64_t i = (int64_t)i_task * TASK_ROWS; i < end; i++) {
    struct lade_head_row row = row_at(walk, i);
    int64_t at = walk->first_row + i;
    row_reduce(walk, &row, at);
    if (row.target >= 0)
      walk->target_logit[at] = lade_element_load(row.accumulator, row.logits, row.target);
  }
}

static void gradient_task(void *arg, int i_task, int i_thread)
{
  struct head_loss_walk *walk = arg;
  int64_t end = LADE_MIN(walk->n_rows, (int64_t)(i_task + 1) * TASK_ROWS);
  for (int64_t i = (int64_t)i_task * TASK_ROWS; i < end; i++) {
    struct lade_head_row row = row_at(walk, i);
    int64_t at = walk->first_row + i;
    double scale = walk->targets[at] < 0 ? 0 : walk->scale;
    walk->level->gradient(&row, lade_element_load(walk->accumulator, walk->lse, at), scale,
                          walk->d_logits + (size_t)(at * walk->n_columns) * walk->element_bytes);
  }
}

static void cap_task(void *arg, int i_task, int i_thread)
{
  struct head_loss_walk *walk = arg;
  int64_t end = LADE_MIN(walk->n_rows, (int64_t)(i_task + 1) * TASK_ROWS);
  for (int64_t i = (int64_t)i_task * TASK_ROWS; i < end; i++) {
    struct lade_head_row row = row_at(walk, i);
    walk->level->cap(&row, (char *)walk->logits + (size_t)(i * walk->n_columns) * walk->sum_bytes);
  }
}

/* Make the logits of all rows of the current chunk, unless they are kept, and run @fn over them. */
static void chunk_run(struct head_loss_walk *walk, lade_task_fn *fn)
{
  int64_t n_block = block_rows(walk->n, walk->vocabulary);
  for (walk->first_row = 0; walk->first_row < walk->n; walk->first_row += n_block) {
    walk->n_rows = LADE_MIN(n_block, walk->n - walk->first_row);
    if (walk->kept)
      walk->logits = walk->kept + (size_t)(walk->first_column * walk->n + walk->first_row * walk->n_columns) *
                                      walk->sum_bytes;
    if (!walk->has_logits)
      logits_make(walk);
    if (walk->softcap > 0 && !walk->has_logits)
      lade_pool_run(walk->ctx->pool, cap_task, walk, (int)lade_div_up(walk->n_rows, TASK_ROWS));
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

/* Return the sum of losses[first .. first + n): leaves in order, halves as a tree. */
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

static size_t logits_bytes(enum lade_dtype dtype, int64_t n, int64_t vocabulary, bool is_kept)
{
  return is_kept ? 0 : round_up((size_t)(block_rows(n, vocabulary) * chunk_columns(vocabulary)) *
                  lade_dtype_bytes(lade_accumulator(dtype)));
}

static size_t rows_bytes(int64_t n, int64_t n_leaves)
{
  return round_up((size_t)(n * (2 * n_leaves + 1)) * sizeof(double));
}

/* Find every row's maximum and sum over each leaf of this rank, and its target logit. */
static void rows_reduce(struct head_loss_walk *walk, char *workspace)
{
  int64_t n_parts = walk->leaves.n * walk->n;
  walk->element_bytes = lade_dtype_bytes(walk->dtype);
  walk->sum_bytes = lade_dtype_bytes(walk->accumulator);
  walk->logits = workspace;
  walk->max = (double *)(workspace += logits_bytes(walk->dtype, walk->n, walk->vocabulary, walk->kept));
  walk->sum = walk->max + n_parts;
  walk->target_logit = walk->sum + n_parts;
  walk->matmul_workspace = workspace + rows_bytes(walk->n, walk->leaves.n);
  for (int64_t i = 0; i < n_parts; i++) {
    walk->max[i] = -INFINITY;
    walk->sum[i] = 0;
  }
  memset(walk->target_logit, 0, (size_t)walk->n * sizeof(double));
  for (int64_t i = 0; i < walk->n && walk->before; i++) {
    walk->max[i] = lade_element_load(walk->accumulator, walk->before, i);
    walk->sum[i] = lade_element_load(walk->accumulator, walk->before, walk->n + i);
    walk->target_logit[i] = lade_element_load(walk->accumulator, walk->before, 2 * walk->n + i);
  }
  while (chunk_next(walk))
    chunk_run(walk, reduce_task);
}

/* Maxima and sums of one row's parts (leaves, or ranks), @stride numbers of @dtype apart. */
struct row_parts {
  enum lade_dtype dtype, accumulator;
  const void *max, *sum;
  int64_t stride;
};

struct row_part {
  double max, sum;
};

/* Round @value as a rank stores it. */
static double round_to(enum lade_dtype accumulator, double value)
{
  return accumulator == LADE_F64 ? value : (double)(float)value;
}

/* Join parts [first, first + n) as if their logits had been reduced together, over rank_sum's tree. */
static struct row_part parts_join(const struct row_parts *parts, int64_t first, int64_t n)
{
  struct row_part joined = {lade_element_load(parts->dtype, parts->max, first * parts->stride),
                            lade_element_load(parts->dtype, parts->sum, first * parts->stride)};
  if (n == 1)
    return joined;
  int64_t n_left = 1;
  while (2 * n_left < n)
    n_left *= 2;
  struct row_part left = parts_join(parts, first, n_left), right = parts_join(parts, first + n_left, n - n_left);
  joined.max = fmax(left.max, right.max);
  joined.sum = round_to(parts->accumulator, left.sum) * exp(left.max - joined.max) +
               round_to(parts->accumulator, right.sum) * exp(right.max - joined.max);
  return joined;
}

/* Join row @i over all leaves of this rank. */
static struct row_part leaves_join(const struct head_loss_walk *walk, int64_t i)
{
  struct row_parts parts = {.dtype = LADE_F64, .accumulator = walk->accumulator, .max = walk->max + i,
                            .sum = walk->sum + i, .stride = walk->n};
  return parts_join(&parts, 0, walk->leaves.n);
}

/* Store one row's loss and lse from the statistics of all its logits. */
static void row_finish(const struct lade_head_join_args *to, int64_t i, struct row_part row, double target_logit)
{
  enum lade_dtype accumulator = lade_accumulator(to->dtype);
  double lse = row.max + log(row.sum);
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
  struct head_loss_walk walk = {.level = level, .ctx = ctx, .dtype = args->dtype,
                                .accumulator = lade_accumulator(args->dtype), .n = args->n, .d = args->d,
                                .vocabulary = args->vocabulary, .n_tokens = args->vocabulary,
                                .leaves = leaves_make(args->leaf, args->vocabulary), .softcap = args->softcap,
                                .x = args->x,
                                .weight = args->weight, .targets = args->targets, .kept = args->logits};
  struct lade_head_join_args to = {.dtype = args->dtype, .n = args->n, .targets = args->targets,
                                   .losses = args->losses, .lse = args->lse, .loss = args->loss};
  rows_reduce(&walk, args->workspace);
  for (int64_t i = 0; i < walk.n; i++)
    row_finish(&to, i, leaves_join(&walk, i), walk.target_logit[i]);
  loss_finish(&to);
}

void lade_head_stats_run(const struct lade_head_loss_level *level, const struct lade_kernel_ctx *ctx,
                         const struct lade_head_stats_args *args)
{
  LADE_ASSERT(args->padding >= 0 && args->padding < args->vocabulary && !(args->before && args->leaf));
  struct head_loss_walk walk = {.level = level, .ctx = ctx, .dtype = args->dtype,
                                .accumulator = lade_accumulator(args->dtype), .n = args->n, .d = args->d,
                                .vocabulary = args->vocabulary, .first_token = args->first_token,
                                .n_tokens = args->vocabulary - args->padding,
                                .leaves = leaves_make(args->leaf, args->vocabulary), .softcap = args->softcap,
                                .x = args->x,
                                .weight = args->weight, .targets = args->targets, .before = args->before,
                                .kept = args->logits};
  rows_reduce(&walk, args->workspace);
  for (int64_t i = 0; i < walk.n; i++) {
    struct row_part row = leaves_join(&walk, i);
    lade_element_store(walk.accumulator, args->stats, i, row.max);
    lade_element_store(walk.accumulator, args->stats, walk.n + i, row.sum);
    lade_element_store(walk.accumulator, args->stats, 2 * walk.n + i, walk.target_logit[i]);
  }
}

/* Join the ranks' parts of one row. One of them has the target's logit, the others zero. */
static void row_join(const struct lade_head_join_args *args, int64_t i)
{
  enum lade_dtype accumulator = lade_accumulator(args->dtype);
  const char *stats = (const char *)args->stats + (size_t)i * lade_dtype_bytes(accumulator);
  struct row_parts parts = {.dtype = accumulator, .accumulator = accumulator, .max = stats,
                            .sum = stats + (size_t)args->n * lade_dtype_bytes(accumulator), .stride = 3 * args->n};
  double target_logit = 0;
  for (int64_t rank = 0; rank < args->n_ranks; rank++)
    target_logit += lade_element_load(accumulator, args->stats, (3 * rank + 2) * args->n + i);
  row_finish(args, i, parts_join(&parts, 0, args->n_ranks), target_logit);
}

static void head_join_plain(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_head_join_args *args = arg;
  for (int64_t i = 0; i < args->n; i++)
    row_join(args, i);
  loss_finish(args);
}

/* Return the sum of dx in place @place: dx itself for the root if it is of type A. */
static void *dx_sum_at(const struct head_loss_walk *walk, int place)
{
  bool is_root = place == dx_places(&walk->leaves) - 1, is_in_dx = walk->is_sum || walk->dtype == walk->accumulator;
  return is_root && is_in_dx ? walk->dx : (char *)walk->dx_sums + place * walk->dx_sum_bytes;
}

/* True if dx is one product, written in D directly. */
static bool is_one_product(const struct head_loss_walk *walk)
{
  return is_one_chunk(&walk->leaves, walk->n_tokens) && !walk->before && !walk->is_sum;
}

/* Add the current chunk to the sum of its node; with one chunk write dx directly. */
static void dx_product(const struct head_loss_walk *walk, int place)
{
  bool is_whole = is_one_product(walk), is_first = walk->first_column % node_tokens(&walk->leaves) == 0;
  struct lade_matmul_args product = {
      .layout = LADE_NN, .dtype = walk->dtype, .out = is_whole ? walk->dtype : walk->accumulator,
      .m = walk->n, .n = walk->d, .k = walk->n_columns, .a = walk->d_logits,
      .b = (const char *)walk->weight + (size_t)(walk->first_column * walk->d) * walk->element_bytes,
      .c = is_whole ? walk->dx : dx_sum_at(walk, place),
      .accumulate = !is_first || walk->before, .workspace = walk->matmul_workspace};
  if (walk->leaves.n_together > 1)
    product.tree = (struct lade_k_tree){.n_leaves = (int)walk->leaves.n_together, .n_spans = 1,
                                        .span = {walk->n_columns}, .part = {walk->leaves.leaf}};
  walk->level->matmul(walk->ctx, &product);
}

struct dx_carry {
  const struct head_loss_walk *walk;
  const void *from;
  void *to;
};

static void dx_carry_task(void *arg, int i_task, int i_thread)
{
  const struct dx_carry *carry = arg;
  const struct head_loss_walk *walk = carry->walk;
  int64_t first = (int64_t)i_task * TASK_ROWS * walk->d, end = LADE_MIN(first + TASK_ROWS * walk->d, walk->n * walk->d);
  for (int64_t i = first; i < end && walk->accumulator == LADE_F64; i++)
    ((double *)carry->to)[i] += ((const double *)carry->from)[i];
  for (int64_t i = first; i < end && walk->accumulator == LADE_F32; i++)
    ((float *)carry->to)[i] += ((const float *)carry->from)[i];
}

/* Add dx of the current chunk; with the last chunk of a node also the sums that waited for it. */
static void dx_add(const struct head_loss_walk *walk)
{
  int64_t end = walk->first_column + walk->n_columns;
  int place = lade_k_place((int)(walk->first_column / node_tokens(&walk->leaves)));
  dx_product(walk, place);
  if (end < walk->n_tokens && end % node_tokens(&walk->leaves))
    return;
  for (int below = 0; below < place; below++) {
    struct dx_carry carry = {walk, dx_sum_at(walk, below), dx_sum_at(walk, place)};
    lade_pool_run(walk->ctx->pool, dx_carry_task, &carry, (int)lade_div_up(walk->n, TASK_ROWS));
  }
}

static void d_weight_make(const struct head_loss_walk *walk, const struct lade_head_loss_bwd_args *args)
{
  struct lade_matmul_args product = {
      .layout = LADE_TN, .dtype = walk->dtype, .out = walk->accumulator,
      .m = walk->n_columns, .n = walk->d, .k = walk->n, .a = walk->d_logits, .b = walk->x,
      .c = (char *)args->d_weight + (size_t)(walk->first_column * walk->d) * walk->sum_bytes,
      .accumulate = args->accumulate, .workspace = walk->matmul_workspace};
  walk->level->matmul(walk->ctx, &product);
}

/* Convert dx from its sum in A to D. */
static void dx_cast_task(void *arg, int i_task, int i_thread)
{
  const struct head_loss_walk *walk = arg;
  int64_t first = (int64_t)i_task * TASK_ROWS * walk->d, end = LADE_MIN(first + TASK_ROWS * walk->d, walk->n * walk->d);
  const float *from = dx_sum_at(walk, dx_places(&walk->leaves) - 1);
  walk->level->cast(walk->dtype, from + first, end - first, (char *)walk->dx + (size_t)first * walk->element_bytes);
}

/* Return the bytes of all sums of dx in the workspace. */
static size_t dx_sums_bytes(const struct lade_head_loss_bwd_args *args)
{
  struct leaves leaves = leaves_make(args->leaf, args->vocabulary);
  enum lade_dtype accumulator = lade_accumulator(args->dtype);
  bool is_one = is_one_chunk(&leaves, args->vocabulary) && !args->has_before;
  int n_sums = is_one ? 0 : dx_places(&leaves) - (args->is_sum || args->dtype == accumulator);
  return (size_t)n_sums * round_up((size_t)(args->n * args->d) * lade_dtype_bytes(accumulator));
}

void lade_head_loss_bwd_run(const struct lade_head_loss_level *level, const struct lade_kernel_ctx *ctx,
                            const struct lade_head_loss_bwd_args *args)
{
  struct head_loss_walk walk = {.level = level, .ctx = ctx, .dtype = args->dtype,
                                .accumulator = lade_accumulator(args->dtype), .n = args->n, .d = args->d,
                                .vocabulary = args->vocabulary, .first_token = args->first_token,
                                .n_tokens = args->vocabulary - args->padding,
                                .leaves = leaves_make(args->leaf, args->vocabulary), .softcap = args->softcap,
                                .x = args->x,
                                .weight = args->weight, .targets = args->targets, .lse = args->lse, .dx = args->dx,
                                .before = args->has_before ? args->before : NULL, .is_sum = args->is_sum,
                                .kept = (char *)(uintptr_t)args->logits, .has_logits = args->logits};
  LADE_ASSERT(!args->leaf || !(args->has_before || args->is_sum));
  walk.element_bytes = lade_dtype_bytes(walk.dtype);
  walk.sum_bytes = lade_dtype_bytes(walk.accumulator);
  walk.dx_sum_bytes = round_up((size_t)(walk.n * walk.d) * walk.sum_bytes);
  int64_t count = targets_count(args->targets, args->n);
  walk.scale = count ? (double)args->scale * (double)ctx->step->loss_scale / (double)count : 0;
  char *at = args->workspace;
  walk.logits = at;
  walk.d_logits = at += logits_bytes(walk.dtype, walk.n, walk.vocabulary, walk.has_logits);
  walk.dx_sums = at += round_up((size_t)(walk.n * chunk_columns(walk.vocabulary)) * walk.element_bytes);
  walk.matmul_workspace = at + dx_sums_bytes(args);
  if (walk.before && walk.before != dx_sum_at(&walk, 0))
    memcpy(dx_sum_at(&walk, 0), walk.before, (size_t)(walk.n * walk.d) * walk.sum_bytes);
  while (chunk_next(&walk)) {
    chunk_run(&walk, gradient_task);
    dx_add(&walk);
    d_weight_make(&walk, args);
  }
  if (!args->accumulate)
    memset((char *)args->d_weight + (size_t)(walk.n_tokens * walk.d) * walk.sum_bytes, 0,
           (size_t)(args->padding * walk.d) * walk.sum_bytes);
  if (!is_one_product(&walk) && !walk.is_sum && walk.dtype != walk.accumulator)
    lade_pool_run(ctx->pool, dx_cast_task, &walk, (int)lade_div_up(args->n, TASK_ROWS));
}

static void cap_plain(const struct lade_head_row *row, void *logits)
{
  for (int64_t j = 0; j < row->n; j++) {
    double capped = (double)row->softcap * tanh(lade_element_load(row->accumulator, logits, j) / (double)row->softcap);
    lade_element_store(row->accumulator, logits, j, capped);
  }
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
    double logit = lade_element_load(row->accumulator, row->logits, j), p = exp(logit - lse), part = 0;
    if (row->softcap > 0)
      part = logit / (double)row->softcap;
    lade_element_store(row->dtype, d_logits, j, (p - (j == row->target)) * scale * (1 - part * part));
  }
}

static void cast_plain(enum lade_dtype dtype, const float *from, int64_t n, void *to)
{
  for (int64_t i = 0; i < n; i++)
    lade_element_store(dtype, to, i, (double)from[i]);
}

const struct lade_head_loss_level lade_head_loss_plain = {.matmul = lade_matmul_plain, .cap = cap_plain,
                                                          .reduce = reduce_plain,
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

/* Sizes of a head: rows [N,d] and a vocabulary. */
struct head_sizes {
  enum lade_dtype dtype;
  int64_t n, d, vocabulary;
};

/* Return the workspace of the product that makes a block of logits. */
static size_t logits_product_bytes(const struct head_sizes *head, int n_threads)
{
  const struct lade_matmul_args logits = {
      .layout = LADE_NT, .dtype = head->dtype, .out = lade_accumulator(head->dtype),
      .m = block_rows(head->n, head->vocabulary), .n = chunk_columns(head->vocabulary), .k = head->d};
  return lade_matmul_workspace_bytes(&logits, n_threads);
}

/* Return the largest workspace of backward's products: logits, dx and dW of a chunk. */
static size_t bwd_products_bytes(const struct head_sizes *head, const struct leaves *leaves, int n_threads)
{
  const int64_t columns = chunk_columns(head->vocabulary);
  const enum lade_dtype sum = lade_accumulator(head->dtype);
  struct lade_matmul_args dx = {.layout = LADE_NN, .dtype = head->dtype, .out = sum, .m = head->n, .n = head->d,
                                .k = columns};
  const struct lade_matmul_args dw = {.layout = LADE_TN, .dtype = head->dtype, .out = sum, .m = columns, .n = head->d,
                                      .k = head->n};
  if (leaves->n_together > 1)
    dx.tree = (struct lade_k_tree){.n_leaves = (int)leaves->n_together, .n_spans = 1, .span = {columns},
                                   .part = {lade_div_up(columns, leaves->n_together)}};
  const size_t bytes = LADE_MAX(lade_matmul_workspace_bytes(&dx, n_threads),
                                lade_matmul_workspace_bytes(&dw, n_threads));
  return LADE_MAX(bytes, logits_product_bytes(head, n_threads));
}

size_t lade_head_loss_fwd_workspace_bytes(const struct lade_head_loss_fwd_args *args, int n_threads)
{
  const struct head_sizes head = {args->dtype, args->n, args->d, args->vocabulary};
  const struct leaves leaves = leaves_make(args->leaf, args->vocabulary);
  return logits_bytes(args->dtype, args->n, args->vocabulary, args->logits) + rows_bytes(args->n, leaves.n) +
         logits_product_bytes(&head, n_threads);
}

size_t lade_head_stats_workspace_bytes(const struct lade_head_stats_args *args, int n_threads)
{
  return lade_head_loss_fwd_workspace_bytes(&(struct lade_head_loss_fwd_args){.dtype = args->dtype, .n = args->n,
                                                                              .d = args->d, .leaf = args->leaf,
                                                                              .vocabulary = args->vocabulary,
                                                                              .logits = args->logits},
                                            n_threads);
}

size_t lade_head_loss_bwd_workspace_bytes(const struct lade_head_loss_bwd_args *args, int n_threads)
{
  const struct head_sizes head = {args->dtype, args->n, args->d, args->vocabulary};
  const struct leaves leaves = leaves_make(args->leaf, args->vocabulary);
  int64_t columns = chunk_columns(args->vocabulary);
  return logits_bytes(args->dtype, args->n, args->vocabulary, args->logits) +
         round_up((size_t)(args->n * columns) * lade_dtype_bytes(args->dtype)) +
         dx_sums_bytes(args) +
         bwd_products_bytes(&head, &leaves, n_threads);
}
