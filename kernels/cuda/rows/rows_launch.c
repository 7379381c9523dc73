/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches of the kernels over rows: a block of threads for each row. Kernels that also make sums over rows have a
 * block for each block of rows, and a second launch that adds the blocks.
 */
#include <string.h>

#include "kernels/cuda/launch_internal.h"

#define MAX_SHARED_BYTES (99u << 10) /* of a block on the GPU with the least, compute capability 8.6 */

static unsigned columns(int64_t d)
{
  return (unsigned)lade_div_up(d, LADE_CUDA_THREADS);
}

/* Return the threads for a row of @n_packs, @n_each per thread: whole warps, no more than have work, at most @max. */
static unsigned row_threads_max(int64_t n_packs, int n_each, int max)
{
  return (unsigned)LADE_MIN((uint64_t)max, lade_align_up((uint64_t)lade_div_up(n_packs, n_each), 32));
}

static unsigned row_threads(int64_t n_packs, int n_each)
{
  return row_threads_max(n_packs, n_each, LADE_CUDA_THREADS);
}

static unsigned shared_floats(int64_t n)
{
  LADE_ASSERT((size_t)n * sizeof(float) <= MAX_SHARED_BYTES);
  return (unsigned)((size_t)n * sizeof(float));
}

void lade_cuda_row_sums_launch(const struct lade_kernel_ctx *ctx, const struct lade_cuda_row_sums *sums)
{
  lade_cuda_launch_grid(ctx, LADE_CUDA_ROW_SUMS, LADE_F32,
                        (struct lade_cuda_launch){
                            .grid = {(unsigned)lade_div_up(sums->d, LADE_CUDA_SUM_COLUMNS), (unsigned)sums->n_outputs},
                            .args = sums, .shared_bytes = shared_floats(LADE_CUDA_THREADS)});
}

/* Set output (+)= the sum of the partials in @ctx's workspace, for each output that is not NULL. */
static void row_sums(const struct lade_kernel_ctx *ctx, int64_t n_rows, struct lade_cuda_row_sums sums)
{
  sums.n_blocks = lade_cuda_row_blocks(n_rows);
  lade_cuda_row_sums_launch(ctx, &sums);
}

static size_t row_sums_bytes(int64_t n_rows, int64_t d, int n_outputs)
{
  return (size_t)(lade_cuda_row_blocks(n_rows) * d * n_outputs) * sizeof(float);
}

void lade_cuda_columns_launch(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, const void *args,
                              const struct lade_column_sum_args *sum)
{
  const int64_t n_packs = lade_cuda_row_packs(sum->dtype, sum->n), n_each = n_packs == sum->n ? 1 : sum->n / n_packs;
  lade_cuda_launch_grid(ctx, function, sum->dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)lade_div_up(n_packs, 32),
                                                           (unsigned)lade_cuda_row_blocks(sum->m)},
                                                  .args = args,
                                                  .shared_bytes = shared_floats(LADE_CUDA_THREADS * n_each)});
  row_sums(ctx, sum->m, (struct lade_cuda_row_sums){.d = sum->n, .n_outputs = 1, .partials = sum->workspace,
                                                    .outputs = {sum->sum}, .accumulate = sum->accumulate});
}

void lade_cuda_column_sum(const struct lade_kernel_ctx *ctx, const void *args)
{
  lade_cuda_columns_launch(ctx, LADE_CUDA_COLUMN_SUM, args, args);
}

size_t lade_cuda_column_sum_bytes(const struct lade_column_sum_args *a)
{
  return row_sums_bytes(a->m, a->n, 1);
}

static void embed_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_embed_fwd_args *a = args;
  lade_cuda_launch_grid(ctx, LADE_CUDA_EMBED_FWD, a->dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)(a->batch * a->seq_len)}, .args = a,
                                                  .n_threads = row_threads(lade_cuda_row_packs(a->dtype, a->d), 1)});
}

static void embed_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_embed_bwd_args *a = args;
  int64_t n = a->batch * a->seq_len, n_packs = lade_cuda_row_packs(a->dtype, a->d);
  unsigned n_threads = row_threads(n_packs, 1);
  lade_cuda_launch_grid(ctx, LADE_CUDA_EMBED_SORT, LADE_F32,
                        (struct lade_cuda_launch){.grid = {(unsigned)lade_div_up(n * 32, LADE_CUDA_THREADS)},
                                                  .args = a});
  if (!a->accumulate_token)
    lade_cuda_launch_items(ctx, LADE_CUDA_EMBED_CLEAR, LADE_F32, a->vocabulary * a->d, a);
  lade_cuda_launch_grid(ctx, LADE_CUDA_EMBED_TOKENS, a->dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)n, (unsigned)lade_div_up(n_packs, n_threads)},
                                                  .n_threads = n_threads, .args = a});
  const int64_t n_sums = a->d % 4 ? a->d : a->d / 4; /* of pieces: a thread has a pack of F32 */
  n_threads = row_threads(n_sums, 1);
  lade_cuda_launch_grid(ctx, LADE_CUDA_EMBED_JOIN, LADE_F32,
                        (struct lade_cuda_launch){.grid = {(unsigned)lade_div_up(n, LADE_CUDA_EMBED_PIECE),
                                                           (unsigned)lade_div_up(n_sums, n_threads)},
                                                  .n_threads = n_threads, .args = a});
  if (a->d_position_table)
    lade_cuda_launch_grid(ctx, LADE_CUDA_EMBED_POSITIONS, a->dtype,
                          (struct lade_cuda_launch){.grid = {(unsigned)a->positions, columns(a->d)}, .args = a});
}

size_t lade_cuda_embed_bwd_bytes(const struct lade_embed_bwd_args *a)
{
  const int64_t n = a->batch * a->seq_len, n_pieces = 2 * lade_div_up(n, LADE_CUDA_EMBED_PIECE);
  return (size_t)((3 * n + 3) / 4 * 4) * sizeof(int32_t) + (size_t)(n_pieces * a->d) * sizeof(float);
}

/* Make a launch with a block for each row; its threads have all of the row at once unless it is longer. */
static struct lade_cuda_launch rows_launch(const void *args, enum lade_dtype dtype, int64_t n_rows, int64_t d)
{
  return (struct lade_cuda_launch){.grid = {(unsigned)n_rows}, .args = args,
                                   .n_threads = row_threads(lade_cuda_row_packs(dtype, d), LADE_CUDA_ROW_PACKS),
                                   .shared_bytes = shared_floats(LADE_CUDA_ROOM_FLOATS)};
}

static void norm_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_norm_fwd_args *a = args;
  struct lade_cuda_launch launch = rows_launch(a, a->dtype, a->n, a->d);
  launch.grid[0] = (unsigned)lade_div_up(a->n, lade_cuda_norm_fwd_rows(a->n));
  if (a->d % (16 / (int64_t)lade_dtype_bytes(a->dtype)) == 0)
    launch.shared_bytes += 2 * LADE_CUDA_ROW_PACKS * launch.n_threads * 16; /* two rows of packs of 16 bytes */
  LADE_ASSERT(launch.shared_bytes <= MAX_SHARED_BYTES);
  lade_cuda_launch_grid(ctx, LADE_CUDA_NORM_FWD, a->dtype, launch);
}

/* Make a launch over blocks of rows, for the backward of norms with @n_outputs sums over rows. */
static struct lade_cuda_launch row_blocks(const void *args, enum lade_dtype dtype, int64_t n_rows, int64_t d,
                                          int n_outputs)
{
  const int pack = 16 / (int)lade_dtype_bytes(dtype), n_each = lade_cuda_norm_bwd_packs(d, pack);
  return (struct lade_cuda_launch){
      .grid = {(unsigned)lade_cuda_row_blocks(n_rows)},
      .n_threads = row_threads_max(lade_cuda_row_packs(dtype, d), n_each ? n_each : LADE_CUDA_ROW_PACKS,
                                   lade_cuda_norm_bwd_threads(d, pack)),
      .args = args,
      .shared_bytes = shared_floats(lade_cuda_norm_bwd_floats(d, pack, n_outputs))};
}

static void norm_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_norm_bwd_args *a = args;
  lade_cuda_launch_grid(ctx, LADE_CUDA_NORM_BWD, a->dtype, row_blocks(a, a->dtype, a->n, a->d, 2));
  row_sums(ctx, a->n, (struct lade_cuda_row_sums){.d = a->d, .n_outputs = 2, .partials = a->workspace,
                                                  .outputs = {a->d_weight, a->d_bias}, .accumulate = a->accumulate});
}

size_t lade_cuda_norm_bwd_bytes(const struct lade_norm_bwd_args *a)
{
  return row_sums_bytes(a->n, a->d, 2);
}

static void residual_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_residual_fwd_args *a = args;
  const enum lade_cuda_function function = a->drop.drop_below ? LADE_CUDA_RESIDUAL_DROP_FWD : LADE_CUDA_RESIDUAL_FWD;
  lade_cuda_launch_grid(ctx, function, a->dtype, rows_launch(a, a->dtype, a->n, a->d));
}

/* True if the kernel of @a makes d_sum_bias; else a kernel of its own reads d_sum before. */
static bool residual_has_sums(const struct lade_residual_bwd_args *a)
{
  const int pack = 16 / (int)lade_dtype_bytes(a->dtype);
  return a->d_sum_bias && !a->dx && lade_cuda_norm_bwd_packs(a->d, pack) == 1;
}

static void residual_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_residual_bwd_args *a = args;
  const struct lade_column_sum_args sum = {.dtype = a->dtype, .m = a->n, .n = a->d, .x = a->d_sum, .sum = a->d_sum_bias,
                                           .accumulate = a->accumulate, .workspace = a->workspace};
  const bool has_norm = a->kind != LADE_NORM_NONE, has_sums = residual_has_sums(a);
  const enum lade_cuda_function function = has_sums ? LADE_CUDA_RESIDUAL_SUMS_BWD
                                           : a->dx  ? LADE_CUDA_RESIDUAL_DROP_BWD
                                                    : LADE_CUDA_RESIDUAL_BWD;
  const int n_sums = has_sums ? 4 : 3;
  if (a->d_sum_bias && !has_sums)
    lade_cuda_column_sum(ctx, &sum);
  lade_cuda_launch_grid(ctx, function, a->dtype, row_blocks(a, a->dtype, a->n, a->d, n_sums));
  row_sums(ctx, a->n,
           (struct lade_cuda_row_sums){.d = a->d, .n_outputs = n_sums, .partials = a->workspace,
                                       .outputs = {has_norm ? a->d_weight : NULL, has_norm ? a->d_norm_bias : NULL,
                                                   a->d_x_bias, a->d_sum_bias},
                                       .accumulate = a->accumulate});
}

size_t lade_cuda_residual_bwd_bytes(const struct lade_residual_bwd_args *a)
{
  return row_sums_bytes(a->n, a->d, residual_has_sums(a) ? 4 : 3);
}

static void rope(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_rope_args *a = args;
  int64_t half = (a->rotary_dim ? a->rotary_dim : a->head_dim) / 2, n_runs = lade_div_up(a->seq_len,
                                                                                         LADE_CUDA_ROPE_RUN);
  int64_t n_packs = (a->heads + a->n_kv_heads) * lade_cuda_row_packs(a->dtype, half);
  struct lade_cuda_rope_table table = {.rope = *a};
  LADE_ASSERT(!a->factors || half <= LADE_ROPE_MAX_FACTORS);
  if (a->factors)
    memcpy(table.factors, a->factors, (size_t)half * sizeof(*table.factors));
  lade_cuda_launch_grid(ctx, LADE_CUDA_ROPE_TABLE, LADE_F32,
                        (struct lade_cuda_launch){.grid = {(unsigned)lade_div_up(n_runs * half, LADE_CUDA_THREADS)},
                                                  .args = &table});
  lade_cuda_launch_grid(ctx, LADE_CUDA_ROPE, a->dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)(a->batch * a->seq_len)},
                                                  .n_threads = row_threads(n_packs, LADE_CUDA_ROPE_TURNS), .args = a});
}

size_t lade_cuda_rope_bytes(const struct lade_rope_args *a)
{
  return (size_t)(a->seq_len * ((a->rotary_dim ? a->rotary_dim : a->head_dim) / 2) * 2) * sizeof(float);
}

/* Launch a block for each row, with a warp for each group of heads as far as there are threads. */
static void groups_launch(const struct lade_kernel_ctx *ctx, enum lade_cuda_function function, enum lade_dtype dtype,
                          int64_t n_rows, int64_t n_groups, const void *args)
{
  lade_cuda_launch_grid(ctx, function, dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)n_rows}, .args = args,
                                                  .n_threads = row_threads(n_groups * 32, 1)});
}

static void qk_sums(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_sums_args *a = args;
  groups_launch(ctx, LADE_CUDA_QK_SUMS, a->dtype, a->n, 2, a);
}

static void qk_dots(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_dots_args *a = args;
  groups_launch(ctx, LADE_CUDA_QK_DOTS, a->dtype, a->n, 2, a);
}

static void qk_norm_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_norm_fwd_args *a = args;
  groups_launch(ctx, LADE_CUDA_QK_NORM_FWD, a->dtype, a->n, a->is_by_head ? a->heads + a->n_kv_heads : 2, a);
}

/* Return the columns of the queries' weights, or of the keys'. */
static int64_t qk_width(const struct lade_qk_norm_bwd_args *a, bool is_key)
{
  return a->is_by_head ? a->head_dim : (is_key ? a->n_kv_heads : a->heads) * a->head_dim;
}

#define QK_WEIGHTS_BYTES (LADE_CUDA_THREADS * LADE_CUDA_QK_PACK * sizeof(float)) /* sums of a pack of each thread */

/* Sum the weights' gradients first, because dx may take over dy's memory. */
static void qk_norm_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_qk_norm_bwd_args *a = args;
  const int64_t q_width = qk_width(a, false), n_blocks = lade_cuda_row_blocks(a->n);
  lade_cuda_launch_grid(ctx, LADE_CUDA_QK_WEIGHTS, a->dtype,
                        (struct lade_cuda_launch){.grid = {(unsigned)n_blocks, columns(q_width + qk_width(a, true))},
                                                  .args = a, .shared_bytes = QK_WEIGHTS_BYTES});
  for (int i = 0; i < 2; i++)
    row_sums(ctx, a->n, (struct lade_cuda_row_sums){.d = qk_width(a, i), .n_outputs = 1,
                                                    .partials = (float *)a->workspace + (i ? n_blocks * q_width : 0),
                                                    .outputs = {i ? a->d_k_weight : a->d_q_weight},
                                                    .accumulate = a->accumulate});
  groups_launch(ctx, LADE_CUDA_QK_NORM_BWD, a->dtype, a->n, a->is_by_head ? a->heads + a->n_kv_heads : 2, a);
}

size_t lade_cuda_qk_norm_bwd_bytes(const struct lade_qk_norm_bwd_args *a)
{
  return row_sums_bytes(a->n, qk_width(a, false) + qk_width(a, true), 1);
}

void lade_cuda_row_init(struct lade_kernels *kernels)
{
  kernels->fn[LADE_K_COLUMN_SUM] = lade_cuda_column_sum;
  kernels->fn[LADE_K_EMBED_FWD] = embed_fwd;
  kernels->fn[LADE_K_EMBED_BWD] = embed_bwd;
  kernels->fn[LADE_K_NORM_FWD] = norm_fwd;
  kernels->fn[LADE_K_NORM_BWD] = norm_bwd;
  kernels->fn[LADE_K_RESIDUAL_FWD] = residual_fwd;
  kernels->fn[LADE_K_RESIDUAL_BWD] = residual_bwd;
  kernels->fn[LADE_K_ROPE] = rope;
  kernels->fn[LADE_K_QK_SUMS] = qk_sums;
  kernels->fn[LADE_K_QK_NORM_FWD] = qk_norm_fwd;
  kernels->fn[LADE_K_QK_DOTS] = qk_dots;
  kernels->fn[LADE_K_QK_NORM_BWD] = qk_norm_bwd;
}
