/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head's loss without the whole logits in memory: kernels/host/head_loss/head_loss.c with other cuts. Chunks of the
 * vocabulary are the outer loop, blocks of rows the inner one; products go through the matmul of the table.
 *
 * Chunks are wider than on the host, because a product must fill a GPU. All but the last have a multiple of eight
 * columns, which keeps the rows of every operand at 16 bytes, as fast products need. The remaining columns of a
 * vocabulary, one for GPT-2's 50,257, are a chunk of their own, whose products are small with any kernel.
 *
 * Workspace: at most 32 MiB of logits; forward three F32 numbers a row; backward the chunk's gradients for all rows
 * and, with several chunks, dx in F32. Behind them is the scratch of the products, as much as the largest needs. To
 * find the products, the op runs with a launcher that launches nothing, so the requested scratch is that of the
 * products that run.
 */
#include "kernels/cuda/launch_internal.h"

#define ALIGN_BYTES 64
#define ALIGN_COLUMNS 8 /* 16 bytes of 16-bit numbers */
#define ROOM_BYTES (LADE_CUDA_ROOM_FLOATS * sizeof(float))

static int64_t chunk_columns(int64_t vocabulary)
{
  return LADE_MIN(vocabulary, LADE_CUDA_HEAD_CHUNK);
}

/* Return the columns of the chunk that begins at @first. */
static int64_t chunk_get(int64_t first, int64_t n_tokens)
{
  int64_t n = LADE_MIN(n_tokens - first, LADE_CUDA_HEAD_CHUNK);
  return n > ALIGN_COLUMNS ? n / ALIGN_COLUMNS * ALIGN_COLUMNS : n;
}

static int64_t block_rows(int64_t n, int64_t vocabulary)
{
  return LADE_MIN(n, LADE_MAX(LADE_CUDA_HEAD_ELEMENTS / chunk_columns(vocabulary), 1));
}

/* Offsets of a workspace's parts, and its size, from one computation. */
struct rooms {
  size_t logits, per_row, d_logits, dx, end;
};

static struct rooms rooms_get(enum lade_dtype dtype, int64_t n, int64_t vocabulary, bool is_bwd, bool is_kept)
{
  int64_t columns = chunk_columns(vocabulary);
  struct rooms rooms = {0};
  size_t per_row = is_bwd ? sizeof(float) : (size_t)(3 * n) * sizeof(float);
  if (!is_kept)
    rooms.per_row = lade_align_up((size_t)(block_rows(n, vocabulary) * columns) * sizeof(float), ALIGN_BYTES);
  rooms.d_logits = rooms.per_row + lade_align_up(per_row, ALIGN_BYTES);
  rooms.dx = rooms.d_logits;
  if (is_bwd)
    rooms.dx += lade_align_up((size_t)(n * columns) * lade_dtype_bytes(dtype), ALIGN_BYTES);
  rooms.end = rooms.dx;
  return rooms;
}

/* True if dx is summed in F32 in the workspace: not if it is a sum itself, nor if one product makes it. */
static bool has_dx_room(const struct lade_head_loss_bwd_args *a)
{
  const int64_t n_tokens = a->vocabulary - a->padding;
  return !a->is_sum && (a->has_before || n_tokens > chunk_get(0, n_tokens));
}

static struct rooms bwd_rooms_get(const struct lade_head_loss_bwd_args *a)
{
  struct rooms rooms = rooms_get(a->dtype, a->n, a->vocabulary, true, a->logits);
  if (has_dx_room(a))
    rooms.end += (size_t)(a->n * a->d) * sizeof(float);
  return rooms;
}

/* State of both directions. */
struct head_launch_walk {
  const struct lade_kernel_ctx *ctx;
  enum lade_dtype dtype;
  int64_t d, vocabulary;
  int64_t n_tokens; /* of the vocabulary: without padding */
  const char *x, *weight;
  void *scratch; /* of products */
  float *kept;   /* all logits, chunk after chunk; NULL: one piece at a time */
  bool has_logits; /* they are there already: backward */
  struct lade_cuda_head head; /* the current piece */
};

/* Make a block of logits of the current chunk. */
static void logits_make(const struct head_launch_walk *walk, int64_t n_rows)
{
  const struct lade_cuda_head *head = &walk->head;
  size_t row_bytes = (size_t)walk->d * lade_dtype_bytes(walk->dtype);
  lade_cuda_matmul(walk->ctx, &(struct lade_matmul_args){
                                  .layout = LADE_NT, .dtype = walk->dtype, .out = LADE_F32, .m = n_rows,
                                  .n = head->n_columns, .k = walk->d,
                                  .a = walk->x + (size_t)head->first_row * row_bytes,
                                  .b = walk->weight + (size_t)head->first_column * row_bytes,
                                  .c = (void *)(uintptr_t)head->logits, .workspace = walk->scratch});
  if (head->softcap > 0)
    lade_cuda_launch_grid(walk->ctx, LADE_CUDA_HEAD_CAP, LADE_F32,
                          (struct lade_cuda_launch){.grid = {(unsigned)n_rows}, .args = head});
}

/*
 * Make the logits of all rows of the current chunk, unless they are kept, block by block, each followed by @function
 * over its rows.
 */
static void chunk_run(struct head_launch_walk *walk, enum lade_cuda_function function, enum lade_dtype dtype)
{
  struct lade_cuda_head *head = &walk->head;
  int64_t n_block = block_rows(head->n, walk->vocabulary);
  head->n_columns = chunk_get(head->first_column, walk->n_tokens);
  for (head->first_row = 0; head->first_row < head->n; head->first_row += n_block) {
    int64_t n_rows = LADE_MIN(n_block, head->n - head->first_row);
    if (walk->kept)
      head->logits = walk->kept + head->first_column * head->n + head->first_row * head->n_columns;
    if (!walk->has_logits)
      logits_make(walk, n_rows);
    lade_cuda_launch_grid(walk->ctx, function, dtype,
                          (struct lade_cuda_launch){.grid = {(unsigned)n_rows}, .args = head,
                                                    .shared_bytes = ROOM_BYTES});
  }
}

/* Run one block over all rows; its sums are in double, one for each thread. */
static void rows_run(const struct head_launch_walk *walk, enum lade_cuda_function function)
{
  lade_cuda_launch_grid(walk->ctx, function, LADE_F32,
                        (struct lade_cuda_launch){.grid = {1}, .args = &walk->head,
                                                  .shared_bytes = LADE_CUDA_THREADS * sizeof(double)});
}

/* A launcher that asks each product for its scratch. */
struct scratch_survey {
  struct lade_cuda_launcher base;
  const struct lade_kernels *kernels;
  size_t max_bytes;
};

static void launch_nothing(const struct lade_cuda_launcher *base, const struct lade_cuda_launch *launch,
                           const struct lade_step *step)
{
}

static bool product_survey(const struct lade_cuda_launcher *base, const struct lade_matmul_args *args)
{
  struct scratch_survey *survey = (struct scratch_survey *)(uintptr_t)base;
  survey->max_bytes = LADE_MAX(survey->max_bytes, lade_cuda_matmul_bytes(survey->kernels, args));
  return true;
}

/* Return a placeholder for tensors without an address yet. */
static void *nowhere(void)
{
  return (void *)(uintptr_t)ALIGN_BYTES;
}

static size_t products_bytes(const struct lade_kernels *kernels, lade_kernel_fn *fn, const void *args)
{
  struct scratch_survey survey = {.base = {launch_nothing, product_survey}, .kernels = kernels};
  fn(&(struct lade_kernel_ctx){.launcher = &survey.base}, args);
  return survey.max_bytes;
}

static void head_loss_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_head_loss_fwd_args *a = args;
  struct rooms rooms = rooms_get(a->dtype, a->n, a->vocabulary, false, a->logits);
  char *at = a->workspace;
  float *per_row = (float *)(at + rooms.per_row);
  struct head_launch_walk walk = {.ctx = ctx, .dtype = a->dtype, .d = a->d, .vocabulary = a->vocabulary,
                                  .n_tokens = a->vocabulary, .x = a->x, .weight = a->weight, .scratch = at + rooms.end,
                                  .kept = a->logits};
  walk.head = (struct lade_cuda_head){.n = a->n, .softcap = a->softcap, .logits = (float *)at, .targets = a->targets,
                                      .max = per_row,
                                      .sum = per_row + a->n, .target_logit = per_row + 2 * a->n, .losses = a->losses,
                                      .lse = a->lse, .loss = a->loss};
  for (; walk.head.first_column < a->vocabulary; walk.head.first_column += walk.head.n_columns)
    chunk_run(&walk, LADE_CUDA_HEAD_REDUCE, LADE_F32);
  rows_run(&walk, LADE_CUDA_HEAD_FINISH);
}

size_t lade_cuda_head_loss_fwd_bytes(const struct lade_kernels *kernels, const struct lade_head_loss_fwd_args *a)
{
  struct lade_head_loss_fwd_args like = *a;
  like.x = like.weight = like.workspace = nowhere();
  return rooms_get(a->dtype, a->n, a->vocabulary, false, a->logits).end + products_bytes(kernels, head_loss_fwd, &like);
}

/* Compute statistics: a row's maximum, sum and target logit are stored unchanged. */
static void head_stats(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_head_stats_args *a = args;
  float *stats = a->stats;
  struct rooms rooms = rooms_get(a->dtype, a->n, a->vocabulary, false, a->logits);
  struct head_launch_walk walk = {.ctx = ctx, .dtype = a->dtype, .d = a->d, .vocabulary = a->vocabulary,
                                  .n_tokens = a->vocabulary - a->padding, .x = a->x, .weight = a->weight,
                                  .scratch = (char *)a->workspace + rooms.end, .kept = a->logits};
  walk.head = (struct lade_cuda_head){.n = a->n, .softcap = a->softcap, .first_token = a->first_token,
                                      .logits = a->workspace,
                                      .targets = a->targets, .before = a->before, .max = stats,
                                      .sum = stats + a->n, .target_logit = stats + 2 * a->n};
  for (; walk.head.first_column < walk.n_tokens; walk.head.first_column += walk.head.n_columns)
    chunk_run(&walk, LADE_CUDA_HEAD_REDUCE, LADE_F32);
}

size_t lade_cuda_head_stats_bytes(const struct lade_kernels *kernels, const struct lade_head_stats_args *a)
{
  struct lade_head_stats_args like = *a;
  like.x = like.weight = like.stats = like.workspace = nowhere();
  return rooms_get(a->dtype, a->n, a->vocabulary, false, a->logits).end + products_bytes(kernels, head_stats, &like);
}

static void head_join(const struct lade_kernel_ctx *ctx, const void *args)
{
  lade_cuda_launch_grid(ctx, LADE_CUDA_HEAD_JOIN, LADE_F32,
                        (struct lade_cuda_launch){.grid = {1}, .args = args,
                                                  .shared_bytes = LADE_CUDA_THREADS * sizeof(double)});
}

/* Compute dx (+)= d_logits W_chunk, in F32 over several chunks, and the chunk's dW, complete in one product. */
static void products_run(const struct head_launch_walk *walk, const struct lade_head_loss_bwd_args *a, float *dx_sum)
{
  const struct lade_cuda_head *head = &walk->head;
  size_t offset = (size_t)(head->first_column * a->d);
  lade_cuda_matmul(walk->ctx, &(struct lade_matmul_args){
                                  .layout = LADE_NN, .dtype = a->dtype, .out = dx_sum ? LADE_F32 : a->dtype, .m = a->n,
                                  .n = a->d, .k = head->n_columns, .a = head->d_logits,
                                  .b = walk->weight + offset * lade_dtype_bytes(a->dtype),
                                  .c = dx_sum ? dx_sum : a->dx, .accumulate = head->first_column > 0 || a->has_before,
                                  .workspace = walk->scratch});
  lade_cuda_matmul(walk->ctx, &(struct lade_matmul_args){
                                  .layout = LADE_TN, .dtype = a->dtype, .out = LADE_F32, .m = head->n_columns,
                                  .n = a->d, .k = a->n, .a = head->d_logits, .b = a->x,
                                  .c = (float *)a->d_weight + offset, .accumulate = a->accumulate,
                                  .workspace = walk->scratch});
}

/* Convert dx from F32 to @to. */
static void dx_cast(const struct lade_kernel_ctx *ctx, const struct lade_head_loss_bwd_args *a, const void *from,
                    enum lade_dtype type, void *to)
{
  if (from != to)
    lade_cuda_launch_items(ctx, LADE_CUDA_CAST, LADE_F32, a->n * a->d,
                           &(struct lade_cast_args){.from = LADE_F32, .to = type, .n_elements = a->n * a->d,
                                                    .x = from, .y = to});
}

static void head_loss_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_head_loss_bwd_args *a = args;
  struct rooms rooms = bwd_rooms_get(a);
  char *at = a->workspace;
  float *dx_sum = a->is_sum ? a->dx : has_dx_room(a) ? (float *)(at + rooms.dx) : NULL;
  struct head_launch_walk walk = {.ctx = ctx, .dtype = a->dtype, .d = a->d, .vocabulary = a->vocabulary,
                                  .n_tokens = a->vocabulary - a->padding, .x = a->x, .weight = a->weight,
                                  .scratch = at + rooms.end, .kept = (float *)(uintptr_t)a->logits,
                                  .has_logits = a->logits};
  walk.head = (struct lade_cuda_head){.n = a->n, .softcap = a->softcap, .first_token = a->first_token,
                                      .logits = (float *)at,
                                      .targets = a->targets,
                                      .lse = (float *)(uintptr_t)a->lse, .scale = a->scale,
                                      .row_scale = (float *)(at + rooms.per_row), .d_logits = at + rooms.d_logits};
  rows_run(&walk, LADE_CUDA_HEAD_SCALE);
  if (a->has_before)
    dx_cast(ctx, a, a->before, LADE_F32, dx_sum);
  for (; walk.head.first_column < walk.n_tokens; walk.head.first_column += walk.head.n_columns) {
    chunk_run(&walk, LADE_CUDA_HEAD_GRADIENT, a->dtype);
    products_run(&walk, a, dx_sum);
  }
  if (a->padding && !a->accumulate) /* rows of a table, which the embedding's backward clears */
    lade_cuda_launch_items(ctx, LADE_CUDA_EMBED_CLEAR, LADE_F32, a->padding * a->d,
                           &(struct lade_embed_bwd_args){.vocabulary = a->padding, .d = a->d,
                                                         .d_token_table = (float *)a->d_weight +
                                                                          walk.n_tokens * a->d});
  if (dx_sum)
    dx_cast(ctx, a, dx_sum, a->dtype, a->dx);
}

size_t lade_cuda_head_loss_bwd_bytes(const struct lade_kernels *kernels, const struct lade_head_loss_bwd_args *a)
{
  struct lade_head_loss_bwd_args like = *a;
  like.x = like.weight = like.dx = like.d_weight = like.workspace = nowhere();
  return bwd_rooms_get(a).end + products_bytes(kernels, head_loss_bwd, &like);
}

void lade_cuda_head_loss_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_HEAD_LOSS_FWD] = head_loss_fwd;
  kernels->fn[LADE_K_HEAD_LOSS_BWD] = head_loss_bwd;
  kernels->fn[LADE_K_HEAD_STATS] = head_stats;
  kernels->fn[LADE_K_HEAD_JOIN] = head_join;
}
