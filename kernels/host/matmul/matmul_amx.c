/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 products by TDPBF16PS: sixteen rows of 32 k times sixteen columns, 16384 flops in sixteen cycles on a core with
 * tiles (Intel's Xeons from Sapphire Rapids on), eight times the rate of FMA there. The micro-tile is 32 x 32: four
 * tiles of sums, two of a, two of b, so that each loaded tile is used twice.
 *
 * A tile of a is sixteen rows of 64 bytes, which are read in place if k is contiguous; if rows are, a panel is a
 * transpose of pairs. A tile of b has pairs of k side by side (matmul_pack_bf16.h). Sums leave through memory: partial
 * ones go from tile to scratch, the last ones through a buffer, whose rows are finished as vectors.
 *
 * In a tile an element's products are added up in two sums, of even and of odd k, which are then added to it: 32 k by
 * 32 k in rising order, so that bits do not depend on the cut of c. Like VDPBF16PS the instruction rounds to nearest
 * and treats denormals as zero.
 *
 * A thread must configure the shapes of its tiles, and tiles in use enlarge its saved state. So a task configures them
 * when it begins and releases them when it ends.
 */
#include "base/base.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul/matmul_pack_bf16.h"

#define TILE 16                /* rows and columns of a tile of sums */
#define MICRO (2 * TILE)       /* of a micro-tile */
#define DEPTH 32               /* k of a tile of a or b */
#define DEPTH_BYTES (2 * DEPTH)
#define SUMS_STRIDE ((int)(MICRO * sizeof(float)))
#define PAIRS_STRIDE (MICRO * 4) /* from pair to pair of a panel of b */

/* ---- panels ---- */

/* Pack 16 rows of a left panel over DEPTH k: each row has its k side by side. */
static inline void rows_pack(const struct lade_pack_args *args, int lane, int k, uint16_t *to)
{
  int n_lanes = args->n_lanes - lane, n_k = LADE_MIN(args->n_k - k, DEPTH);
  __mmask32 load = n_k >= DEPTH ? 0xffffffffu : (1u << n_k) - 1;
  const uint16_t *source = (const uint16_t *)args->source + lane * args->stride + k;
  for (int i = 0; i < TILE; i++)
    _mm512_storeu_si512(to + i * DEPTH, _mm512_maskz_loadu_epi16(i < n_lanes ? load : 0,
                                                                 source + (i < n_lanes ? i : 0) * args->stride));
}

/* Pack as rows_pack from a source with contiguous lanes. @is_full: all lanes and all k are inside. */
static inline void columns_pack(const struct lade_pack_args *args, int lane, int k, bool is_full, uint16_t *to)
{
  const uint16_t *source = (const uint16_t *)args->source + k * args->stride + lane;
  __mmask16 mask = is_full ? 0xffff : mask16_make(args->n_lanes - lane);
  __m512i pair[16];
#pragma GCC unroll 16
  for (int p = 0; p < 16; p++) {
    if (is_full)
      pair[p] = pairs_make(source + 2 * p * args->stride, source + (2 * p + 1) * args->stride, mask);
    else
      pair[p] = pairs_make(k_row(args, k + 2 * p, lane), k_row(args, k + 2 * p + 1, lane), mask);
  }
  transpose_16x16(pair);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++)
    _mm512_storeu_si512(to + i * DEPTH, pair[i]);
}

static void left_pack(const struct lade_pack_args *args)
{
  LADE_ASSERT(args->width == MICRO);
  uint16_t *to = args->panels;
  for (int panel = 0; panel < args->n_lanes; panel += MICRO)
    for (int k = 0; k < args->n_k; k += DEPTH)
      for (int lane = panel; lane < panel + MICRO; lane += TILE, to += TILE * DEPTH) {
        if (args->is_k_inner)
          rows_pack(args, lane, k, to);
        else if (lane + TILE <= args->n_lanes && k + DEPTH <= args->n_k)
          columns_pack(args, lane, k, true, to);
        else
          columns_pack(args, lane, k, false, to);
      }
}

static void pack_amx(const struct lade_pack_args *args)
{
  if (args->is_left)
    left_pack(args);
  else
    pairs_pack(args, DEPTH);
}

/* ---- products ---- */

/* Load tiles 0 to 3: sums, two by two. Tiles 4 and 5 are rows of a; 6 and 7 columns of b. */
static inline void sums_load(const float *from)
{
  _tile_loadd(0, from, SUMS_STRIDE);
  _tile_loadd(1, from + TILE, SUMS_STRIDE);
  _tile_loadd(2, from + TILE * MICRO, SUMS_STRIDE);
  _tile_loadd(3, from + TILE * MICRO + TILE, SUMS_STRIDE);
}

static inline void sums_zero(void)
{
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

static inline void sums_store(float *to, int64_t stride_bytes)
{
  float *lower = (float *)(void *)((char *)to + TILE * stride_bytes);
  _tile_stored(0, to, stride_bytes);
  _tile_stored(1, to + TILE, stride_bytes);
  _tile_stored(2, lower, stride_bytes);
  _tile_stored(3, lower + TILE, stride_bytes);
}

static inline void groups_multiply(const struct lade_left *left, const char *b, int n_groups)
{
  const char *a = left->at;
  const int64_t row_bytes = left->row_bytes;
  for (int g = 0; g < n_groups; g++, a += left->group_bytes, b += DEPTH / 2 * PAIRS_STRIDE) {
    _tile_loadd(6, b, PAIRS_STRIDE);
    _tile_loadd(4, a, row_bytes);
    _tile_loadd(7, b + PAIRS_STRIDE / 2, PAIRS_STRIDE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + TILE * row_bytes, row_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

/* Finish a row of sums into c: add the bias or the present value, then round once. */
static inline void row_finish(const struct lade_micro_args *args, int i, __m512 sum[2])
{
  __mmask16 mask[2] = {mask16_make(args->n_columns), mask16_make(args->n_columns - TILE)};
  const int64_t at = i * args->c_stride;
  for (int j = 0; j < 2; j++) {
    if (args->bias)
      sum[j] = _mm512_add_ps(sum[j], _mm512_maskz_loadu_ps(mask[j], args->bias + TILE * j));
    if (args->accumulate)
      sum[j] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask[j], (const float *)args->c + at + TILE * j), sum[j]);
  }
  if (args->out == LADE_BF16) {
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(sum[1], sum[0]);
    _mm512_mask_storeu_epi16((uint16_t *)args->c + at, (__mmask32)mask[1] << TILE | mask[0], halves);
    return;
  }
  for (int j = 0; j < 2; j++)
    store16(args->out, args->c, at + TILE * j, mask[j], sum[j]);
}

static void rows_finish(const struct lade_micro_args *args, const float *sums)
{
  const int n_rows = args->to ? MICRO : args->n_rows;
  for (int i = 0; i < n_rows; i++) {
    __m512 sum[2] = {_mm512_loadu_ps(sums + i * MICRO), _mm512_loadu_ps(sums + i * MICRO + TILE)};
    for (int c = 0; c < args->n_carries; c++) {
      const float *carry = args->carry + c * args->carry_stride + i * MICRO;
      for (int j = 0; j < 2; j++)
        sum[j] = _mm512_add_ps(_mm512_loadu_ps(carry + TILE * j), sum[j]);
    }
    if (!args->to) {
      row_finish(args, i, sum);
      continue;
    }
    _mm512_storeu_ps(args->to + i * MICRO, sum[0]);
    _mm512_storeu_ps(args->to + i * MICRO + TILE, sum[1]);
  }
}

static void micro_amx(const struct lade_micro_args *args)
{
  float sums[MICRO * MICRO] __attribute__((aligned(64)));
  __asm__ volatile("" ::: "memory"); /* gcc's tile loads do not declare that they read memory */
  if (args->from)
    sums_load(args->from);
  else
    sums_zero();
  groups_multiply(&args->a, args->b, args->n_groups);
  const bool is_whole = args->n_rows == MICRO && args->n_columns == MICRO && args->out == LADE_F32 && !args->bias &&
                        !args->accumulate;
  if (args->n_carries == 0 && args->to) {
    sums_store(args->to, SUMS_STRIDE);
  } else if (args->n_carries == 0 && is_whole) {
    sums_store(args->c, args->c_stride * (int64_t)sizeof(float));
  } else {
    sums_store(sums, SUMS_STRIDE);
    rows_finish(args, sums);
  }
}

/* ---- the level ---- */

/* The layout that LDTILECFG reads. */
struct tile_shapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t n_rows[16];
};

static void tiles_enter(void)
{
  static const struct tile_shapes shapes = {.palette = 1,
                                            .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                            .n_rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}};
  _tile_loadconfig(&shapes);
}

static void tiles_leave(void)
{
  _tile_release();
}

const struct lade_matmul_level lade_matmul_level_amx = {.cut = &lade_matmul_cuts[LADE_CUT_AMX], .direct = LADE_BF16,
                                                        .pack = pack_amx, .micro = micro_amx, .enter = tiles_enter,
                                                        .leave = tiles_leave};

void lade_matmul_amx(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_matmul_args *args = arg;
  if (args->dtype == LADE_BF16)
    lade_matmul_blocked_run(&lade_matmul_level_amx, ctx, args);
  else
    lade_matmul_avx512(ctx, args);
}

void lade_matmul_init_amx(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL, lade_matmul_amx, "amx");
}
