/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 products by VDPBF16PS: sixteen FP32 sums take two products each per instruction, 128 flops per cycle
 * on a core with two such pipes. The micro-tile is 12 x 32: 24 accumulators, two vectors of b and one
 * broadcast pair of a, 27 of 32 registers; 24 dot products need 14 loads, within two loads per cycle, and
 * 24 chains cover the latency.
 *
 * Packing makes pairs of k adjacent. Where k is contiguous a pair is one 32-bit word and a panel is a
 * transpose of words; where lanes are contiguous two rows of k are interleaved.
 *
 * The instruction treats denormal inputs as zero and flushes denormal sums: the one place where the
 * arithmetic is not IEEE's, at magnitudes (1e-38) that training never meets.
 */
#include <string.h>

#include "base/base.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul_avx512.h"

#define BLOCK_GROUPS 4 /* 8 rows of k: within the ways of L1 */

/* 16 lanes by up to 16 groups, k contiguous: a transpose of words. @is_full: all lanes and all 32 k are inside. */
static inline void square_pack(const struct lade_pack_args *args, int lane, int k, bool is_full, uint32_t *to)
{
  const uint16_t *source = (const uint16_t *)args->source + lane * args->stride + k;
  int n_lanes = args->n_lanes - lane, n_k = LADE_MIN(args->n_k - k, 32);
  __mmask32 load = n_k >= 32 ? 0xffffffffu : (1u << n_k) - 1;
  __m512i row[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    if (is_full)
      row[i] = _mm512_loadu_si512(source + i * args->stride);
    else
      row[i] = _mm512_maskz_loadu_epi16(i < n_lanes ? load : 0, source + (i < n_lanes ? i : 0) * args->stride);
  }
  transpose_16x16(row);
#pragma GCC unroll 16
  for (int g = 0; g < 16; g++)
    if (is_full || 2 * g < n_k)
      _mm512_storeu_si512(to + g * args->width, row[g]);
}

static void pack_k_inner(const struct lade_pack_args *args)
{
  int n_groups = (args->n_k + 1) / 2;
  for (int panel = 0; panel < args->n_lanes; panel += args->width) {
    uint32_t *to = (uint32_t *)args->panels + (size_t)panel * n_groups;
    for (int part = 0; part < panel_lanes(args, panel); part += 16) {
      bool is_full = panel + part + 16 <= args->n_lanes;
      for (int k = 0; k < args->n_k; k += 32) {
        uint32_t *square = to + (size_t)(k / 2) * args->width + part;
        if (is_full && k + 32 <= args->n_k)
          square_pack(args, panel + part, k, true, square);
        else
          square_pack(args, panel + part, k, false, square);
      }
    }
  }
}

/* Two rows of k for up to 16 lanes, interleaved: low half the even k. @odd NULL: zero. */
static inline __m512i pairs_make(const uint16_t *even, const uint16_t *odd, __mmask16 mask)
{
  __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even));
  if (!odd)
    return low;
  __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* BLOCK_GROUPS groups, or what is left, of one panel. */
static inline void groups_pack(const struct lade_pack_args *args, int panel, int first_group, bool is_full)
{
  int n_all = (args->n_k + 1) / 2, n = LADE_MIN(BLOCK_GROUPS, n_all - first_group);
  int n_lanes = is_full ? args->width : panel_lanes(args, panel);
  const uint16_t *even = (const uint16_t *)args->source + 2 * first_group * args->stride + panel;
  uint32_t *to = (uint32_t *)args->panels + (size_t)panel * n_all + (size_t)first_group * args->width;
  for (int g = 0; g < n; g++, even += 2 * args->stride, to += args->width) {
    const uint16_t *odd = is_full || 2 * (first_group + g) + 1 < args->n_k ? even + args->stride : NULL;
    for (int part = 0; part < n_lanes; part += 16) {
      __mmask16 mask = is_full ? 0xffff : mask16_make(args->n_lanes - panel - part);
      _mm512_storeu_si512(to + part, pairs_make(even + part, odd ? odd + part : NULL, mask));
    }
  }
}

/*
 * A few groups of all panels, then the next few: lines of the source are used up while they are in L1 even when
 * the stride is a power of two, and panels are written some lines at a time. Asking for the rows to come was
 * measured: it costs more than it gives.
 */
static void pack_lane_inner(const struct lade_pack_args *args)
{
  for (int g = 0; 2 * g < args->n_k; g += BLOCK_GROUPS) {
    bool is_whole = 2 * (g + BLOCK_GROUPS) <= args->n_k;
    for (int panel = 0; panel < args->n_lanes; panel += args->width) {
      if (is_whole && panel + args->width <= args->n_lanes)
        groups_pack(args, panel, g, true);
      else
        groups_pack(args, panel, g, false);
    }
  }
}

static void pack_bf16(const struct lade_pack_args *args)
{
  LADE_ASSERT(args->width % 16 == 0);
  if (args->is_k_inner)
    pack_k_inner(args);
  else
    pack_lane_inner(args);
}

/* Into BF16, by the instruction that rounds. */
static inline void finish_bf16(const struct lade_micro_args *args, __m512 sum[LADE_MICRO_ROWS][2])
{
  __mmask32 mask = args->n_columns >= 32 ? 0xffffffffu : (1u << args->n_columns) - 1;
  __m512 bias[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  if (args->bias) {
    bias[0] = _mm512_maskz_loadu_ps((__mmask16)mask, args->bias);
    bias[1] = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), args->bias + 16);
  }
#pragma GCC unroll 12
  for (int i = 0; i < LADE_MICRO_ROWS; i++) {
    if (i >= args->n_rows)
      break;
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(_mm512_add_ps(sum[i][1], bias[1]), _mm512_add_ps(sum[i][0], bias[0]));
    _mm512_mask_storeu_epi16((uint16_t *)args->c + i * args->c_stride, mask, halves);
  }
}

static void micro_bf16(const struct lade_micro_args *args)
{
  __m512 sum[LADE_MICRO_ROWS][2];
  micro_begin(args, sum);
  struct left_rows a = left_rows_make(&args->a);
  const uint32_t *b = args->b;
  const int64_t row_bytes = args->a.row_bytes, group_bytes = args->a.group_bytes;
  for (int g = 0; g < args->n_groups; g++) {
    __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 12
    for (int i = 0; i < LADE_MICRO_ROWS; i++) {
      int pair;
      memcpy(&pair, left_row(&a, row_bytes, i), sizeof(pair));
      __m512bh pairs = (__m512bh)_mm512_set1_epi32(pair);
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], pairs, b0);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], pairs, b1);
    }
    left_rows_step(&a, group_bytes);
    b += LADE_MICRO_COLUMNS;
  }
  micro_carry(args, sum);
  if (!args->to && args->out == LADE_BF16)
    finish_bf16(args, sum);
  else
    micro_end(args, sum);
}

const struct lade_matmul_level lade_matmul_level_avx512_bf16 = {
    .cut = &lade_matmul_cuts[LADE_CUT_AVX512_BF16], .direct = LADE_BF16, .pack = pack_bf16, .micro = micro_bf16};

void lade_matmul_avx512_bf16(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_matmul_args *args = arg;
  if (args->dtype == LADE_BF16)
    lade_matmul_blocked_run(&lade_matmul_level_avx512_bf16, ctx, args);
  else
    lade_matmul_avx512(ctx, args);
}

void lade_matmul_init_avx512_bf16(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL, lade_matmul_avx512_bf16, "avx512_bf16");
}
