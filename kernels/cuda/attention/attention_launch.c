/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches of attention: a block of threads for some rows of a head.
 *
 * The attention is chosen for a table, forward and backward each. It is plain kernels; or mma.sync, which every
 * supported GPU has, with the shared memory requested here; or wgmma, on sm_90 alone. wgmma has heads of 64 and 128 in
 * 16 bits, mma.sync those of 80, 96 and 256 too; plain kernels compute all others. wgmma has no windows, soft caps,
 * ALiBi, sinks and first keys: mma.sync computes them in its place. lade_cuda_attention_form_note states the price of
 * each such fallback. Within a table shape, type and form alone decide. The names of variants, and so the key of the
 * numbers, distinguish tables.
 */
#include "kernels/cuda.h"
#include "kernels/cuda/launch_internal.h"

#define MAX_SHARED_BYTES (99u << 10) /* of a block on the GPU with the least, compute capability 8.6 */
#define MAX_GRID_Y 65535  /* and z */
#define MIN_ROWS 64       /* of a block with tensor cores */
#define MAX_SHARED_BYTES_90 (227u << 10)

bool lade_cuda_attention_has(enum lade_cuda_attention attention, enum lade_dtype dtype, int64_t head_dim)
{
  const bool has_all = head_dim == 64 || head_dim == 128;
  const bool has_mma = has_all || head_dim == 80 || head_dim == 96 || head_dim == 256;
  return (dtype == LADE_BF16 || dtype == LADE_F16) && (attention >= LADE_CUDA_BY_WGMMA ? has_all : has_mma);
}

bool lade_cuda_attention_has_form(const struct lade_score_form *form)
{
  return form->softcap > 0 || form->alibi_max > 0 || form->window || form->first_keys || form->sinks;
}

struct lade_attention_max lade_cuda_attention_max(void)
{
  return (struct lade_attention_max){.head_dim = LADE_CUDA_ATTENTION_MAX_DIM, .seq_len = MAX_GRID_Y * MIN_ROWS,
                                     .batch = MAX_GRID_Y};
}

/* The cut of a kernel: each block of threads has n_rows rows of one of n_heads heads. */
struct heads_cut {
  const void *args; /* of the kernel */
  int64_t batch, seq_len, n_heads;
  int n_rows;
  size_t shared_bytes; /* of a block */
};

/* Make a launch in the order of attention_shape.h, with tensor cores. Every GPU can run it. */
static struct lade_cuda_launch heads_launch(const struct heads_cut *cut)
{
  const int64_t n_blocks = lade_div_up(cut->seq_len, cut->n_rows);
  LADE_ASSERT(cut->shared_bytes <= MAX_SHARED_BYTES && cut->n_rows >= MIN_ROWS && n_blocks <= MAX_GRID_Y);
  return (struct lade_cuda_launch){.grid = {(unsigned)cut->n_heads, (unsigned)n_blocks, (unsigned)cut->batch},
                                   .n_threads = LADE_CUDA_ATTENTION_THREADS, .args = cut->args,
                                   .shared_bytes = (unsigned)cut->shared_bytes};
}

/* Return the shared memory of a plain kernel: @n_rows rows of a head, and a float for each thread. */
static size_t plain_bytes(int64_t head_dim, int n_rows)
{
  LADE_ASSERT(head_dim <= LADE_CUDA_ATTENTION_MAX_DIM);
  return (LADE_CUDA_ATTENTION_THREADS + (size_t)n_rows * (size_t)(head_dim + 1)) * sizeof(float);
}

/* Make a launch for a plain kernel. */
static struct lade_cuda_launch plain_launch(const struct heads_cut *cut)
{
  LADE_ASSERT(cut->shared_bytes <= MAX_SHARED_BYTES);
  return (struct lade_cuda_launch){
      .grid = {(unsigned)lade_div_up(cut->seq_len, cut->n_rows), (unsigned)cut->n_heads, (unsigned)cut->batch},
      .n_threads = LADE_CUDA_ATTENTION_THREADS, .args = cut->args, .shared_bytes = (unsigned)cut->shared_bytes};
}

/*
 * Return the shared memory of kernels with tensor cores: rows of @pitch elements of 16 bits. The kernels count in 32
 * bits within a head.
 */
static size_t mma_bytes(int64_t seq_len, int64_t pitch, int n_rows)
{
  LADE_ASSERT(seq_len < INT32_MAX / 2);
  return (size_t)n_rows * (size_t)pitch * sizeof(uint16_t);
}

static void plain_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_attention_fwd_args *a = args;
  int n_rows = LADE_CUDA_ATTENTION_FWD_ROWS;
  const struct heads_cut cut = {a, a->batch, a->seq_len, a->heads, n_rows,
                                plain_bytes(a->head_dim, n_rows + LADE_CUDA_ATTENTION_TILE)};
  lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_FWD, a->dtype, plain_launch(&cut));
}

/* Return the function for heads of @head_dim and this form, beside @of_64, which has heads of 64 and no form. */
static enum lade_cuda_function mma_function(enum lade_cuda_function of_64, int64_t head_dim,
                                            const struct lade_score_form *form)
{
  const int which = ((int)of_64 - LADE_CUDA_ATTENTION_MMA_FWD_64) / 2; /* fwd, dq, dkv */
  if (head_dim != 64 && head_dim != 128)
    return (enum lade_cuda_function)(LADE_CUDA_ATTENTION_MMA_MORE_FWD_80 + 3 * which +
                                     (head_dim == 80 ? 0 : head_dim == 96 ? 1 : 2));
  const int form_step = LADE_CUDA_ATTENTION_MMA_FORM_FWD_64 - LADE_CUDA_ATTENTION_MMA_FWD_64;
  return (enum lade_cuda_function)((int)of_64 + (head_dim == 64 ? 0 : 1) +
                                   (lade_cuda_attention_has_form(form) ? form_step : 0));
}

static void mma_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_attention_fwd_args *a = args;
  if (!lade_cuda_attention_has(LADE_CUDA_BY_MMA, a->dtype, a->head_dim)) {
    plain_fwd(ctx, args);
    return;
  }
  LADE_ASSERT(((uintptr_t)a->qkv | (uintptr_t)a->out) % 16 == 0);
  int n_rows = LADE_CUDA_MMA_FWD_ROWS(a->head_dim), n_shared = n_rows + 4 * LADE_CUDA_MMA_FWD_TILE(a->head_dim);
  const struct heads_cut cut = {a, a->batch, a->seq_len, a->heads, n_rows,
                                mma_bytes(a->seq_len, LADE_CUDA_MMA_PITCH(a->head_dim), n_shared)};
  lade_cuda_launch_grid(ctx, mma_function(LADE_CUDA_ATTENTION_MMA_FWD_64, a->head_dim, &a->form), a->dtype,
                        heads_launch(&cut));
}

/* Check a row of qkv for kernels by warpgroups, which count the elements of a tile's rows in 32 bits. */
static void wgmma_rows_check(int64_t heads, int64_t n_kv_heads, int64_t head_dim)
{
  LADE_ASSERT((heads + 2 * n_kv_heads) * head_dim <= INT32_MAX / LADE_CUDA_WGMMA_TILE(head_dim));
}

/* Make a launch by warpgroups, whose shared memory begins at a multiple of LADE_CUDA_WGMMA_ALIGN bytes. */
static struct lade_cuda_launch wgmma_launch(const struct heads_cut *cut)
{
  struct heads_cut without_memory = *cut; /* sm_90 has more than every GPU */
  without_memory.shared_bytes = 0;
  struct lade_cuda_launch launch = heads_launch(&without_memory);
  launch.n_threads = (unsigned)(2 * cut->n_rows); /* 128 of them have 64 rows */
  launch.shared_bytes = (unsigned)cut->shared_bytes + LADE_CUDA_WGMMA_ALIGN;
  LADE_ASSERT(launch.shared_bytes <= MAX_SHARED_BYTES_90);
  return launch;
}

/* Launch forward by wgmma, or by the attention that takes its place. */
static void wgmma_fwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_attention_fwd_args *a = args;
  if (!lade_cuda_attention_has(LADE_CUDA_BY_WGMMA, a->dtype, a->head_dim) || lade_cuda_attention_has_form(&a->form)) {
    mma_fwd(ctx, a);
    return;
  }
  LADE_ASSERT(((uintptr_t)a->qkv | (uintptr_t)a->out) % 16 == 0);
  wgmma_rows_check(a->heads, a->n_kv_heads, a->head_dim);
  const int n_rows = LADE_CUDA_WGMMA_ROWS + 2 * LADE_CUDA_WGMMA_PLACES * LADE_CUDA_WGMMA_TILE(a->head_dim);
  const struct heads_cut cut = {a, a->batch, a->seq_len, a->heads, LADE_CUDA_WGMMA_ROWS,
                                mma_bytes(a->seq_len, a->head_dim, n_rows)};
  lade_cuda_launch_grid(ctx, a->head_dim == 64 ? LADE_CUDA_ATTENTION_WGMMA_FWD_64 : LADE_CUDA_ATTENTION_WGMMA_FWD_128,
                        a->dtype, wgmma_launch(&cut));
}

/* Launch delta, the first kernel of a backward by mma.sync or plain kernels. That of wgmma makes it with dq. */
static void delta_launch(const struct lade_kernel_ctx *ctx, const struct lade_attention_bwd_args *a)
{
  const int64_t n_deltas = a->heads * a->seq_len; /* of a sequence */
  const unsigned n_blocks = (unsigned)lade_div_up(n_deltas * LADE_CUDA_DELTA_LANES, LADE_CUDA_THREADS);
  LADE_ASSERT(n_deltas <= UINT32_MAX - LADE_CUDA_THREADS);
  lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_DELTA, a->dtype,
                        (struct lade_cuda_launch){.grid = {n_blocks, 1, (unsigned)a->batch}, .args = a});
}

/* Launch the gradient of sinks, the last kernel of a backward that has them. */
static void sinks_launch(const struct lade_kernel_ctx *ctx, const struct lade_attention_bwd_args *a)
{
  if (a->form.sinks)
    lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_SINKS, a->dtype,
                          (struct lade_cuda_launch){.grid = {(unsigned)a->heads}, .args = a,
                                                    .shared_bytes = LADE_CUDA_THREADS / 32 * sizeof(float)});
}

/* ---- the gradient of the bias of qkv: column sums of d_qkv ---- */

static struct lade_column_sum_args bias_sum(const struct lade_attention_bwd_args *a)
{
  return (struct lade_column_sum_args){.dtype = a->dtype, .m = a->batch * a->seq_len,
                                       .n = (a->heads + 2 * a->n_kv_heads) * a->head_dim, .x = a->d_qkv,
                                       .sum = a->d_bias, .accumulate = a->accumulate_bias,
                                       .workspace = a->workspace};
}

/* Launch the sums over a complete d_qkv, if there is a bias. The rest of the scratch is unused by then. */
static void bias_launch(const struct lade_kernel_ctx *ctx, const struct lade_attention_bwd_args *a)
{
  const struct lade_column_sum_args sum = bias_sum(a);
  if (a->d_bias)
    lade_cuda_columns_launch(ctx, LADE_CUDA_COLUMN_SUM, &sum, &sum);
}

/* Launch the sums over the partial sums that each block of wgmma's kernels has made, if there is a bias. */
static void bias_join(const struct lade_kernel_ctx *ctx, const struct lade_attention_bwd_args *a)
{
  const float *scratch = a->workspace;
  const struct lade_cuda_row_sums queries = {
      .n_blocks = lade_cuda_attention_blocks(a, LADE_CUDA_WGMMA_DQ_ROWS(a->head_dim)), .d = a->heads * a->head_dim,
      .n_outputs = 1, .partials = scratch + lade_cuda_dkv_parts_begin(a), .outputs = {a->d_bias},
      .accumulate = a->accumulate_bias};
  const struct lade_cuda_row_sums keys = {
      .n_blocks = lade_cuda_attention_blocks(a, LADE_CUDA_WGMMA_DKV_ROWS(a->head_dim)),
      .d = 2 * a->n_kv_heads * a->head_dim, .n_outputs = 1,
      .partials = scratch + lade_cuda_bias_keys_begin(a, a->head_dim),
      .outputs = {a->d_bias ? (float *)a->d_bias + queries.d : NULL}, .accumulate = a->accumulate_bias};
  if (!a->d_bias)
    return;
  lade_cuda_row_sums_launch(ctx, &queries);
  lade_cuda_row_sums_launch(ctx, &keys);
}

/* Return the scratch for the sums, delta included where wgmma makes them. */
static size_t bias_bytes(const struct lade_attention_bwd_args *a)
{
  const struct lade_column_sum_args sum = bias_sum(a);
  const int64_t n_blocks = lade_cuda_attention_blocks(a, LADE_CUDA_WGMMA_DKV_ROWS(a->head_dim));
  const int64_t n_floats = lade_cuda_bias_keys_begin(a, a->head_dim) + n_blocks * 2 * a->n_kv_heads * a->head_dim;
  return a->d_bias ? LADE_MAX(lade_cuda_column_sum_bytes(&sum), (size_t)n_floats * sizeof(float)) : 0;
}

static void plain_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_attention_bwd_args *a = args;
  int n_rows = LADE_CUDA_ATTENTION_BWD_ROWS, n_shared = 2 * (n_rows + LADE_CUDA_ATTENTION_TILE);
  struct heads_cut cut = {a, a->batch, a->seq_len, a->heads, n_rows, plain_bytes(a->head_dim, n_shared)};
  delta_launch(ctx, a);
  lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_DQ, a->dtype, plain_launch(&cut));
  cut.n_heads = a->n_kv_heads;
  lade_cuda_launch_grid(ctx, LADE_CUDA_ATTENTION_DKV, a->dtype, plain_launch(&cut));
  sinks_launch(ctx, a);
  bias_launch(ctx, a);
}

/* ---- parts of query heads ---- */

/* Return the number of parts of a key head's query heads in the gradients by @attention, mma.sync or wgmma. */
static int64_t dkv_parts(enum lade_cuda_attention attention, const struct lade_attention_bwd_args *a)
{
  const bool is_wgmma = attention == LADE_CUDA_BY_WGMMA;
  const int64_t enough = is_wgmma ? LADE_CUDA_WGMMA_DKV_ENOUGH(a->head_dim) : LADE_CUDA_MMA_DKV_ENOUGH;
  const int64_t rows = is_wgmma ? LADE_CUDA_WGMMA_DKV_ROWS(a->head_dim) : LADE_CUDA_MMA_DKV_ROWS(a->head_dim);
  const int64_t columns = is_wgmma ? 1 : LADE_CUDA_MMA_DKV_PARTS(a->head_dim);
  const int64_t n_blocks = a->batch * a->n_kv_heads * lade_div_up(a->seq_len, rows) * columns;
  return lade_cuda_dkv_parts(n_blocks, a->heads / a->n_kv_heads, enough);
}

/* Launch the sum of parts, if key heads are divided. */
static void parts_sum(const struct lade_kernel_ctx *ctx, const struct lade_attention_bwd_args *a, int64_t n_parts)
{
  const struct lade_cuda_dkv_sum sum = {*a, n_parts};
  const int64_t n_elements = a->batch * a->seq_len * a->n_kv_heads * 2 * a->head_dim;
  if (n_parts > 1)
    lade_cuda_launch_items(ctx, LADE_CUDA_ATTENTION_DKV_SUM, a->dtype, n_elements / 8, &sum);
}

static void mma_bwd_divide(const struct lade_kernel_ctx *ctx, const void *args, bool is_whole)
{
  const struct lade_attention_bwd_args *a = args;
  if (!lade_cuda_attention_has(LADE_CUDA_BY_MMA, a->dtype, a->head_dim)) {
    plain_bwd(ctx, args);
    return;
  }
  LADE_ASSERT(((uintptr_t)a->qkv | (uintptr_t)a->d_out | (uintptr_t)a->d_qkv | (uintptr_t)a->workspace) % 16 == 0);
  int q_rows = LADE_CUDA_MMA_DQ_ROWS(a->head_dim), q_tile = LADE_CUDA_MMA_DQ_TILE(a->head_dim);
  int k_rows = LADE_CUDA_MMA_DKV_ROWS(a->head_dim), k_tile = LADE_CUDA_MMA_DKV_TILE(a->head_dim);
  const int pitch = LADE_CUDA_MMA_PITCH(a->head_dim), n_columns = LADE_CUDA_MMA_DKV_PARTS(a->head_dim);
  const int64_t n_parts = is_whole ? 1 : dkv_parts(LADE_CUDA_BY_MMA, a);
  const struct heads_cut queries = {a, a->batch, a->seq_len, a->heads, q_rows,
                                    mma_bytes(a->seq_len, pitch, 2 * q_rows + 4 * q_tile)};
  const struct heads_cut keys = {a, a->batch, a->seq_len, a->n_kv_heads * n_parts * n_columns, k_rows,
                                 mma_bytes(a->seq_len, pitch, 2 * k_rows + 4 * k_tile) +
                                     4 * (size_t)k_tile * sizeof(float)};
  delta_launch(ctx, a);
  lade_cuda_launch_grid(ctx, mma_function(LADE_CUDA_ATTENTION_MMA_DQ_64, a->head_dim, &a->form), a->dtype,
                        heads_launch(&queries));
  lade_cuda_launch_grid(ctx, mma_function(LADE_CUDA_ATTENTION_MMA_DKV_64, a->head_dim, &a->form), a->dtype,
                        heads_launch(&keys));
  parts_sum(ctx, a, n_parts);
  sinks_launch(ctx, a);
  bias_launch(ctx, a);
}

static void mma_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  mma_bwd_divide(ctx, args, false);
}

static void mma_bwd_whole(const struct lade_kernel_ctx *ctx, const void *args)
{
  mma_bwd_divide(ctx, args, true);
}

/* True if wgmma computes this backward and no other attention takes its place. */
static bool has_wgmma(const struct lade_attention_bwd_args *a)
{
  return lade_cuda_attention_has(LADE_CUDA_BY_WGMMA, a->dtype, a->head_dim) && !lade_cuda_attention_has_form(&a->form);
}

/* Launch the gradients by wgmma. pre: has_wgmma. */
static void wgmma_bwd_divide(const struct lade_kernel_ctx *ctx, const struct lade_attention_bwd_args *a,
                             bool is_whole)
{
  LADE_ASSERT(((uintptr_t)a->qkv | (uintptr_t)a->out | (uintptr_t)a->d_out | (uintptr_t)a->d_qkv |
               (uintptr_t)a->workspace) % 16 == 0);
  wgmma_rows_check(a->heads, a->n_kv_heads, a->head_dim);
  bool is_64 = a->head_dim == 64;
  const int64_t n_parts = is_whole ? 1 : dkv_parts(LADE_CUDA_BY_WGMMA, a);
  const int n_places = LADE_CUDA_WGMMA_BWD_PLACES(a->head_dim), dq_rows = LADE_CUDA_WGMMA_DQ_ROWS(a->head_dim);
  const int dkv_rows = LADE_CUDA_WGMMA_DKV_ROWS(a->head_dim);
  int q_rows = 2 * dq_rows + (n_places + 2) * LADE_CUDA_WGMMA_DQ_TILE(a->head_dim);
  int k_rows = 2 * dkv_rows + 2 * n_places * LADE_CUDA_WGMMA_DKV_TILE;
  const struct heads_cut queries = {a, a->batch, a->seq_len, a->heads, dq_rows,
                                    mma_bytes(a->seq_len, a->head_dim, q_rows)};
  const struct heads_cut keys = {a, a->batch, a->seq_len, a->n_kv_heads * n_parts, dkv_rows,
                                 mma_bytes(a->seq_len, a->head_dim, k_rows) +
                                     2 * (size_t)n_places * LADE_CUDA_WGMMA_DKV_TILE * sizeof(float)};
  lade_cuda_launch_grid(ctx, is_64 ? LADE_CUDA_ATTENTION_WGMMA_DQ_64 : LADE_CUDA_ATTENTION_WGMMA_DQ_128, a->dtype,
                        wgmma_launch(&queries));
  lade_cuda_launch_grid(ctx, is_64 ? LADE_CUDA_ATTENTION_WGMMA_DKV_64 : LADE_CUDA_ATTENTION_WGMMA_DKV_128, a->dtype,
                        wgmma_launch(&keys));
  parts_sum(ctx, a, n_parts);
  if (n_parts > 1)
    bias_launch(ctx, a);
  else
    bias_join(ctx, a);
}

static void wgmma_bwd(const struct lade_kernel_ctx *ctx, const void *args)
{
  if (has_wgmma(args))
    wgmma_bwd_divide(ctx, args, false);
  else
    mma_bwd(ctx, args);
}

static void wgmma_bwd_whole(const struct lade_kernel_ctx *ctx, const void *args)
{
  if (has_wgmma(args))
    wgmma_bwd_divide(ctx, args, true);
  else
    mma_bwd_whole(ctx, args);
}

size_t lade_cuda_attention_bwd_bytes(const struct lade_kernels *kernels, const struct lade_attention_bwd_args *a)
{
  lade_kernel_fn *fn = kernels->fn[LADE_K_ATTENTION_BWD];
  int64_t n_parts = 1;
  if ((fn == mma_bwd || fn == wgmma_bwd) && lade_cuda_attention_has(LADE_CUDA_BY_MMA, a->dtype, a->head_dim))
    n_parts = fn == wgmma_bwd && has_wgmma(a) ? dkv_parts(LADE_CUDA_BY_WGMMA, a) : dkv_parts(LADE_CUDA_BY_MMA, a);
  const int64_t part_floats = a->batch * a->seq_len * a->n_kv_heads * 2 * a->head_dim;
  const size_t bytes =
      (size_t)(lade_cuda_dkv_parts_begin(a) + (n_parts > 1 ? n_parts * part_floats : 0)) * sizeof(float);
  return LADE_MAX(bytes, bias_bytes(a));
}

lade_kernel_fn *lade_cuda_attention_fn(enum lade_kernel kernel, enum lade_cuda_attention attention)
{
  static lade_kernel_fn *const fwd[] = {plain_fwd, mma_fwd, wgmma_fwd};
  static lade_kernel_fn *const bwd[] = {plain_bwd, mma_bwd, wgmma_bwd};
  LADE_ASSERT(kernel == LADE_K_ATTENTION_FWD || kernel == LADE_K_ATTENTION_BWD);
  return kernel == LADE_K_ATTENTION_FWD ? fwd[attention] : bwd[attention];
}

lade_kernel_fn *lade_cuda_attention_whole_fn(lade_kernel_fn *bwd)
{
  return bwd == mma_bwd ? mma_bwd_whole : bwd == wgmma_bwd ? wgmma_bwd_whole : NULL;
}

const char *lade_cuda_attention_name(enum lade_cuda_attention attention)
{
  static const char *const names[] = {"plain", "mma", "wgmma"};
  return attention < LADE_CUDA_N_ATTENTIONS ? names[attention] : NULL;
}

void lade_cuda_attention_choose(struct lade_kernels *kernels, enum lade_kernel kernel,
                                enum lade_cuda_attention attention)
{
  static const char *const variants[] = {"cuda", "cuda_mma", "cuda_wgmma"};
  kernels->fn[kernel] = lade_cuda_attention_fn(kernel, attention);
  kernels->variant[kernel] = variants[attention];
}

const char *lade_cuda_attention_form_note(const struct lade_kernels *kernels, enum lade_dtype dtype, int64_t head_dim,
                                          const struct lade_score_form *form)
{
  const bool is_wgmma = kernels->fn[LADE_K_ATTENTION_FWD] == wgmma_fwd ||
                        kernels->fn[LADE_K_ATTENTION_BWD] == wgmma_bwd;
  const bool is_plain = kernels->fn[LADE_K_ATTENTION_FWD] == plain_fwd &&
                        kernels->fn[LADE_K_ATTENTION_BWD] == plain_bwd;
  if (is_plain || (dtype != LADE_BF16 && dtype != LADE_F16))
    return "";
  if (!lade_cuda_attention_has(LADE_CUDA_BY_MMA, dtype, head_dim))
    return "attention has tensor cores for heads of 64, 80, 96, 128 and 256: a plain FP32 kernel computes heads of "
           "other sizes, at 7 % of their rate at most";
  if (is_wgmma && !lade_cuda_attention_has(LADE_CUDA_BY_WGMMA, dtype, head_dim))
    return "attention by wgmma has heads of 64 and 128: mma.sync computes those of other sizes, at 60 % of its rate "
           "at most";
  if (!is_wgmma || !lade_cuda_attention_has_form(form))
    return "";
  return "attention by wgmma has no windows, soft caps, ALiBi, sinks and masks of documents: mma.sync computes them, "
         "at 60 % of its rate at most";
}
