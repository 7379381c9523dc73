/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain matrix product, in three layouts: the reference for every level, the only variant with F64, and the
 * fallback of a CPU without a level.
 *
 * The output is cut into tiles of TILE_M x TILE_N, one task each. A tile converts TILE_K columns of op(a) and rows of
 * op(b) at a time into the accumulator's type on the stack. The layout makes the innermost loop a plain axpy over a row
 * of the tile, which the compiler vectorises for any target. All layouts give the same product. Each element sums k in
 * rising order from zero. If k is a tree of leaves (matmul_k_tree.h), this holds for each leaf. A leaf's tile is added
 * to the sums that wait for it.
 *
 * Rejected: a triple loop over the tensors themselves. It is ten lines shorter and thirty times slower, and a CPU
 * without a level trains with this code.
 */
#include <string.h>

#include "base/base.h"
#include "kernels/host/element/element.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul/matmul_blocked.h"
#include "kernels/host/matmul/matmul_k_tree.h"

#define TILE_M 16
#define TILE_N 64
#define TILE_K 64

/* The start of a tile and its rows and columns inside the output. */
struct output_tile {
  int64_t row, column;
  int n_rows, n_columns;
};

static struct output_tile tile_at(const struct lade_matmul_args *args, int i_task)
{
  int64_t n_across = lade_div_up(args->n, TILE_N);
  struct output_tile tile = {.row = i_task / n_across * TILE_M, .column = i_task % n_across * TILE_N};
  tile.n_rows = (int)LADE_MIN(args->m - tile.row, TILE_M);
  tile.n_columns = (int)LADE_MIN(args->n - tile.column, TILE_N);
  return tile;
}

/* Return the index of op(a)[row, p] and of op(b)[p, column]. */
static int64_t a_index(const struct lade_matmul_args *args, int64_t row, int64_t p)
{
  return args->layout == LADE_TN ? p * args->m + row : row * args->k + p;
}

static int64_t b_index(const struct lade_matmul_args *args, int64_t p, int64_t column)
{
  return args->layout == LADE_NT ? column * args->k + p : p * args->n + column;
}

/* Set c[i,j] to @sum, with the bias or the present value added. */
static void element_finish(const struct lade_matmul_args *args, int64_t row, int64_t column, double sum)
{
  int64_t i = row * args->n + column;
  bool is_f64 = lade_accumulator(args->dtype) == LADE_F64;
  double other = 0;
  if (args->accumulate)
    other = lade_element_load(args->out, args->c, i);
  else if (args->bias)
    other = lade_element_load(args->dtype, args->bias, column);
  else
    other = -0.0; /* keeps the sign of a zero sum */
  lade_element_store(args->out, args->c, i, is_f64 ? sum + other : (double)((float)sum + (float)other));
}

/* Define one tile for accumulator type @real. A macro, because C has no templates. */
#define DEFINE_TILE_RUN(real) \
  /* sum += op(a) op(b) over @piece. */ \
  static void piece_add_##real(const struct lade_matmul_args *args, struct output_tile tile, \
                               const struct lade_k_piece *piece, real sum[TILE_M][TILE_N]) \
  { \
    real a[TILE_M][TILE_K], b[TILE_K][TILE_N]; \
    int n_k = (int)(piece->k_end - piece->k); \
    memset(b, 0, sizeof(b)); \
    for (int i = 0; i < tile.n_rows; i++) \
      for (int p = 0; p < n_k; p++) \
        a[i][p] = (real)lade_element_load(args->dtype, args->a, a_index(args, tile.row + i, piece->k + p)); \
    for (int p = 0; p < n_k; p++) \
      for (int j = 0; j < tile.n_columns; j++) \
        b[p][j] = (real)lade_element_load(args->dtype, args->b, b_index(args, piece->k + p, tile.column + j)); \
    for (int i = 0; i < tile.n_rows; i++) \
      for (int p = 0; p < n_k; p++) \
        for (int j = 0; j < TILE_N; j++) \
          sum[i][j] += a[i][p] * b[p][j]; \
  } \
\
  static void tile_run_##real(const struct lade_matmul_args *args, struct output_tile tile) \
  { \
    real sums[LADE_TREE_PLACES_MAX][TILE_M][TILE_N]; \
    struct lade_k_piece piece = {0}; \
    while (lade_k_piece_next(args, TILE_K, 1, &piece)) { \
      int place = lade_k_place(piece.leaf); \
      if (piece.is_first) \
        memset(sums[place], 0, sizeof(sums[place])); \
      piece_add_##real(args, tile, &piece, sums[place]); \
      for (int below = 0; below < place && piece.is_last; below++) \
        for (int i = 0; i < TILE_M; i++) \
          for (int j = 0; j < TILE_N; j++) \
            sums[place][i][j] += sums[below][i][j]; \
    } \
    int root = lade_k_places(args) - 1; \
    for (int i = 0; i < tile.n_rows; i++) \
      for (int j = 0; j < tile.n_columns; j++) \
        element_finish(args, tile.row + i, tile.column + j, (double)sums[root][i][j]); \
  }

DEFINE_TILE_RUN(float)
DEFINE_TILE_RUN(double)

static void tile_task(void *arg, int i_task, int i_thread)
{
  const struct lade_matmul_args *args = arg;
  struct output_tile tile = tile_at(args, i_task);
  if (lade_accumulator(args->dtype) == LADE_F64)
    tile_run_double(args, tile);
  else
    tile_run_float(args, tile);
}

void lade_matmul_plain(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_matmul_args *args = arg;
  LADE_ASSERT(!args->accumulate || args->out == lade_accumulator(args->dtype));
  int64_t n_tiles = lade_div_up(args->m, TILE_M) * lade_div_up(args->n, TILE_N);
  LADE_ASSERT(n_tiles <= INT32_MAX);
  lade_pool_run(ctx->pool, tile_task, (void *)args, (int)n_tiles);
}

void lade_matmul_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL, lade_matmul_plain, "plain");
}

size_t lade_matmul_workspace_bytes(const struct lade_matmul_args *args, int n_threads)
{
  return args->dtype == LADE_F64 ? 0 : lade_matmul_blocked_workspace_bytes(args, n_threads);
}
