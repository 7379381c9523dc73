/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix product of every level: cut, pack, multiply (after Goto, van de Geijn 2008).
 *
 * c is cut into tasks of whole micro-tiles. A task goes through k in pieces of at most kc (matmul_k_tree.h). For each
 * piece it packs its rows of op(a) into panels in its own scratch (L2), has the columns of op(b) packed, and multiplies
 * every pair of panels: a panel of b stays in L1 while the panels of a stream past it. Between pieces the partial sums
 * wait in FP32 in scratch, with the bits that they had in registers. After the last piece a micro-tile is finished into
 * c: the bias or the present value is added once, then the sum is rounded once. An element's bits therefore depend on
 * k, its tree and its own row and column alone, not on the cut of c.
 *
 * Where k is a tree of leaves, the sum of a leaf waits in its place of the tree. The micro-kernel adds the sums that
 * waited for it while it has the tile in registers. A leaf as deep as kc costs only these additions, since the sums had
 * to wait there anyway; the cost of leaves of a few dozen k is in docs/kernels.md.
 *
 * Packing of b: in the layouts of forward and dx, b is a weight and m is many rows. So a first phase packs a chunk of
 * columns over all of k into shared workspace: SHARED_BYTES at most, unless one panel is larger. The tasks of the
 * second phase, narrow in m, only read it. In dW's layout k is the long side, no bounded buffer could hold b, and both
 * operands need only an interleave. There a task packs its block of b for itself, and is large so that the packing is
 * repeated seldom.
 *
 * Workspace: SHARED_BYTES at most, and under 1.2 MB per thread.
 *
 * Rejected: adding blocks of k into c (beta = 1), which mixes partial sums with the gradient already there; splitting k
 * over threads, which needs a second sum; b unpacked, whose pairs of k are not adjacent in two layouts.
 */
#include "base/base.h"
#include "base/float.h"
#include "kernels/host/element/element.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul/matmul_blocked.h"
#include "kernels/host/matmul/matmul_k_tree.h"

#define SHARED_BYTES (4 << 20)
#define PACK_ELEMENTS (128 << 10) /* per task of the first phase: enough work to wake a thread */
#define MAX_COLUMNS 384           /* of a task: its block of b, and its partial sums, are a third of L2 each */
#define MAX_ROWS_SHARED 96        /* of a task that reads shared panels */
#define MAX_ROWS_PRIVATE 384      /* of a task that packs its own b: fewer rows would pack it more often */
#define MIN_ROWS 48               /* enough for a task */

const struct lade_matmul_cut lade_matmul_cuts[LADE_N_CUTS] = {
    [LADE_CUT_AVX2] = {.mr = 6, .nr = 16, .left_width = 6, .kc = 256, .group = 1, .element_bytes = 4},
    [LADE_CUT_AVX512] = {.mr = 12, .nr = 32, .left_width = 48, .kc = 192, .group = 1, .element_bytes = 4},
    [LADE_CUT_AVX512_BF16] = {.mr = 12, .nr = 32, .left_width = 48, .kc = 384, .group = 2, .element_bytes = 2},
    [LADE_CUT_AMX] = {.mr = 32, .nr = 32, .left_width = 32, .kc = 512, .group = 32, .element_bytes = 2},
};

/* The cut of one product and the place of its scratch. */
struct plan {
  const struct lade_matmul_args *args;
  const struct lade_matmul_cut *cut;
  bool is_shared;     /* b is packed by the first phase */
  int max_rows;       /* of a task */
  int64_t n_chunk;    /* columns per round of both phases */
  size_t shared_bytes;
  int64_t place_floats; /* sums of a task, one tile after the other */
  size_t a_bytes, b_bytes, thread_bytes;
};

static int64_t round_to(int64_t n, int64_t unit)
{
  return lade_div_up(n, unit) * unit;
}

static bool piece_next(const struct lade_matmul_args *args, const struct lade_matmul_cut *cut,
                       struct lade_k_piece *piece)
{
  return lade_k_piece_next(args, cut->kc, cut->group, piece);
}

/* Return the bytes of a packed column of op(b) over all of k: pieces one after the other, each in whole groups. */
static int64_t packed_k_bytes(const struct lade_matmul_args *args, const struct lade_matmul_cut *cut)
{
  LADE_ASSERT(cut->kc % cut->group == 0);
  return lade_k_packed(args, cut->group) * cut->element_bytes;
}

static struct plan plan_make(const struct lade_matmul_args *args, const struct lade_matmul_cut *cut)
{
  struct plan plan = {.args = args, .cut = cut, .is_shared = args->layout != LADE_TN};
  plan.max_rows = plan.is_shared ? MAX_ROWS_SHARED : MAX_ROWS_PRIVATE;
  int64_t k_bytes = packed_k_bytes(args, cut), n = round_to(args->n, cut->nr);
  int64_t fitting = LADE_MAX(SHARED_BYTES / k_bytes / cut->nr, 1) * cut->nr;
  plan.n_chunk = plan.is_shared ? LADE_MIN(n, fitting) : n;
  int64_t max_bytes = LADE_MIN(n * k_bytes, LADE_MAX(SHARED_BYTES, cut->nr * k_bytes)); /* grows with k */
  plan.shared_bytes = plan.is_shared ? lade_align_up((size_t)max_bytes, 64) : 0;

  int64_t rows = round_to(LADE_MIN(args->m, plan.max_rows), cut->left_width);
  int64_t columns = LADE_MIN(plan.n_chunk, MAX_COLUMNS), depth = round_to(LADE_MIN(args->k, cut->kc), cut->group);
  plan.a_bytes = lade_align_up((size_t)(rows * depth * cut->element_bytes), 64);
  plan.b_bytes = plan.is_shared ? 0 : lade_align_up((size_t)(columns * depth * cut->element_bytes), 64);
  int n_places = args->k > cut->kc || args->tree.n_leaves ? lade_k_places(args) : 0;
  plan.place_floats = rows * columns;
  plan.thread_bytes = plan.a_bytes + plan.b_bytes + (size_t)(n_places * plan.place_floats) * sizeof(float);
  return plan;
}

struct matmul_run {
  const struct lade_matmul_level *level;
  const struct lade_matmul_args *args;
  struct plan plan;
  int64_t first_column, n_columns; /* the current chunk */
  int n_row_tasks, n_column_tasks, n_pack_tasks;
};

/* Return the @i-th of @n even parts of [0, n_total), in units of @unit. */
static void part_get(int64_t n_total, int unit, int n, int i, int64_t *ret_first, int64_t *ret_end)
{
  int64_t n_units = lade_div_up(n_total, unit);
  *ret_first = n_units * i / n * unit;
  *ret_end = LADE_MIN(n_units * (i + 1) / n * unit, n_total);
}

/* Return the number of parts of at most @max: even if there are several, so that two threads finish together. */
static int parts_count(int64_t n_total, int unit, int64_t max)
{
  int64_t n_units = lade_div_up(n_total, unit), n = lade_div_up(n_units, max / unit);
  return (int)(n == 1 ? 1 : LADE_MIN(round_to(n, 2), n_units));
}

/* Return the rows of a task: fewer if c is too small to give every thread one. The bits do not depend on it. */
static int64_t task_rows(const struct lade_matmul_args *args, const struct plan *plan, int n_column_tasks,
                         int n_threads)
{
  int64_t rows = plan->max_rows;
  while (rows / 2 >= MIN_ROWS && lade_div_up(args->m, rows) * n_column_tasks < n_threads)
    rows /= 2;
  return rows;
}

static const void *element_at(enum lade_dtype dtype, const void *data, int64_t i)
{
  return (const char *)data + i * (int64_t)lade_dtype_bytes(dtype);
}

/* Pack columns [first, end) of op(b) over @piece. */
static void b_pack(const struct matmul_run *run, int64_t first, int64_t end, const struct lade_k_piece *piece,
                   void *panels)
{
  const struct lade_matmul_args *args = run->args;
  bool is_k_inner = args->layout == LADE_NT;
  int64_t at = is_k_inner ? first * args->k + piece->k : piece->k * args->n + first;
  run->level->pack(&(struct lade_pack_args){
      .dtype = args->dtype, .source = element_at(args->dtype, args->b, at), .stride = is_k_inner ? args->k : args->n,
      .is_k_inner = is_k_inner, .n_lanes = (int)(end - first), .n_k = (int)(piece->k_end - piece->k),
      .width = run->plan.cut->nr, .panels = panels});
}

void lade_left_prepare(struct lade_left_block *block)
{
  const struct lade_matmul_level *level = block->level;
  bool is_direct = block->is_k_inner && block->dtype == level->direct && block->n_k % level->cut->group == 0;
  block->n_in_place = is_direct ? block->n_rows / level->cut->mr * level->cut->mr : 0;
  int64_t at = block->n_in_place * block->stride;
  if (block->n_in_place < block->n_rows)
    level->pack(&(struct lade_pack_args){
        .dtype = block->dtype, .source = element_at(block->dtype, block->source, at), .stride = block->stride,
        .is_k_inner = block->is_k_inner, .is_left = true, .n_lanes = block->n_rows - block->n_in_place,
        .n_k = block->n_k, .width = level->cut->left_width, .panels = block->panels});
}

/* Prepare rows [first, end) of op(a) over @piece. */
static struct lade_left_block a_prepare(const struct matmul_run *run, int64_t first, int64_t end,
                                        const struct lade_k_piece *piece, char *panels)
{
  const struct lade_matmul_args *args = run->args;
  bool is_k_inner = args->layout != LADE_TN;
  int64_t at = is_k_inner ? first * args->k + piece->k : piece->k * args->m + first;
  struct lade_left_block block = {.level = run->level, .dtype = args->dtype,
                                  .source = element_at(args->dtype, args->a, at),
                                  .stride = is_k_inner ? args->k : args->m, .is_k_inner = is_k_inner,
                                  .n_rows = (int)(end - first), .n_k = (int)(piece->k_end - piece->k),
                                  .panels = panels};
  lade_left_prepare(&block);
  return block;
}

/* Return the place of column @column (of the chunk, a multiple of nr) of @piece in shared workspace. */
static char *shared_at(const struct matmul_run *run, int64_t column, const struct lade_k_piece *piece)
{
  const struct lade_matmul_cut *cut = run->plan.cut;
  int64_t n_lanes = round_to(run->n_columns, cut->nr), depth = round_to(piece->k_end - piece->k, cut->group);
  return (char *)run->args->workspace + (piece->packed_k * n_lanes + column * depth) * cut->element_bytes;
}

static void pack_task(void *arg, int i_task, int i_thread)
{
  const struct matmul_run *run = arg;
  int64_t first, end;
  part_get(run->n_columns, run->plan.cut->nr, run->n_pack_tasks, i_task, &first, &end);
  struct lade_k_piece piece = {0};
  while (first < end && piece_next(run->args, run->plan.cut, &piece))
    b_pack(run, run->first_column + first, run->first_column + end, &piece, shared_at(run, first, &piece));
}

/* A task's rows and columns (of c), its scratch, and its bias in FP32. */
struct matmul_block {
  int64_t row, row_end, column, column_end;
  char *a, *b;
  float *sums; /* by place of the tree */
  float bias[MAX_COLUMNS];
};

/* Multiply all panels of the block over @piece; packed b at @b. */
static void block_multiply(const struct matmul_run *run, const struct matmul_block *block,
                           const struct lade_left_block *a, const char *b, const struct lade_k_piece *piece)
{
  const struct lade_matmul_args *args = run->args;
  const struct lade_matmul_cut *cut = run->plan.cut;
  int n_groups = (int)lade_div_up(piece->k_end - piece->k, cut->group), place = lade_k_place(piece->leaf);
  bool is_root = piece->is_last && place == lade_k_places(args) - 1;
  int64_t depth_bytes = (int64_t)n_groups * cut->group * cut->element_bytes;
  float *waiting = block->sums, *sums = block->sums + place * run->plan.place_floats;
  for (int64_t j = block->column; j < block->column_end; j += cut->nr) {
    for (int64_t i = block->row; i < block->row_end; i += cut->mr) {
      run->level->micro(&(struct lade_micro_args){
          .a = lade_left_at(a, (int)(i - block->row), 0), .b = b + (j - block->column) * depth_bytes,
          .n_groups = n_groups, .from = piece->is_first ? NULL : sums, .to = is_root ? NULL : sums,
          .carry = waiting, .n_carries = piece->is_last ? place : 0, .carry_stride = run->plan.place_floats,
          .out = args->out, .c = (void *)element_at(args->out, args->c, i * args->n + j), .c_stride = args->n,
          .n_rows = (int)LADE_MIN(cut->mr, block->row_end - i),
          .n_columns = (int)LADE_MIN(cut->nr, block->column_end - j), .accumulate = args->accumulate,
          .bias = args->bias ? block->bias + (j - block->column) : NULL});
      sums += cut->mr * cut->nr;
      waiting += cut->mr * cut->nr;
    }
  }
}

static void block_run(const struct matmul_run *run, const struct matmul_block *block)
{
  struct lade_k_piece piece = {0};
  while (piece_next(run->args, run->plan.cut, &piece)) {
    const char *b = block->b;
    struct lade_left_block a = a_prepare(run, block->row, block->row_end, &piece, block->a);
    if (run->plan.is_shared)
      b = shared_at(run, block->column - run->first_column, &piece);
    else
      b_pack(run, block->column, block->column_end, &piece, block->b);
    block_multiply(run, block, &a, b, &piece);
  }
}

static void block_task(void *arg, int i_task, int i_thread)
{
  const struct matmul_run *run = arg;
  const struct plan *plan = &run->plan;
  struct matmul_block block;
  part_get(run->args->m, plan->cut->mr, run->n_row_tasks, i_task / run->n_column_tasks, &block.row, &block.row_end);
  part_get(run->n_columns, plan->cut->nr, run->n_column_tasks, i_task % run->n_column_tasks, &block.column,
           &block.column_end);
  block.column += run->first_column;
  block.column_end += run->first_column;
  block.a = (char *)run->args->workspace + plan->shared_bytes + (size_t)i_thread * plan->thread_bytes;
  block.b = block.a + plan->a_bytes;
  block.sums = (float *)(void *)(block.b + plan->b_bytes);
  LADE_ASSERT(block.row_end - block.row <= plan->max_rows);
  LADE_ASSERT(block.column_end - block.column <= MAX_COLUMNS);
  for (int64_t j = block.column; run->args->bias && j < block.column_end; j++)
    block.bias[j - block.column] = (float)lade_element_load(run->args->dtype, run->args->bias, j);
  lade_matmul_enter(run->level);
  block_run(run, &block);
  lade_matmul_leave(run->level);
}

void lade_matmul_blocked_run(const struct lade_matmul_level *level, const struct lade_kernel_ctx *ctx,
                             const struct lade_matmul_args *args)
{
  LADE_ASSERT(args->dtype != LADE_F64 && (!args->accumulate || args->out == LADE_F32));
  struct matmul_run run = {.level = level, .args = args, .plan = plan_make(args, level->cut)};
  const struct lade_matmul_cut *cut = level->cut;
  int n_threads = lade_pool_n_threads(ctx->pool);
  for (run.first_column = 0; run.first_column < args->n; run.first_column += run.plan.n_chunk) {
    run.n_columns = LADE_MIN(run.plan.n_chunk, args->n - run.first_column);
    run.n_column_tasks = (int)lade_div_up(round_to(run.n_columns, cut->nr), MAX_COLUMNS);
    run.n_row_tasks = parts_count(args->m, cut->mr, task_rows(args, &run.plan, run.n_column_tasks, n_threads));
    run.n_pack_tasks = (int)lade_div_up(run.n_columns * args->k, PACK_ELEMENTS);
    if (run.plan.is_shared)
      lade_pool_run(ctx->pool, pack_task, &run, run.n_pack_tasks);
    lade_pool_run(ctx->pool, block_task, &run, run.n_row_tasks * run.n_column_tasks);
  }
}

size_t lade_matmul_blocked_workspace_bytes(const struct lade_matmul_args *args, int n_threads)
{
  size_t max = 0;
  for (int i = 0; i < LADE_N_CUTS; i++) {
    struct plan plan = plan_make(args, &lade_matmul_cuts[i]);
    max = LADE_MAX(max, plan.shared_bytes + (size_t)n_threads * plan.thread_bytes);
  }
  return max;
}
