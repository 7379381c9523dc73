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

/* Lanes [lane, lane+width) at all k, k contiguous: transpose words of two. */
static void panel_pack_k_inner(const struct lade_pack_args *args, int lane, int n_lanes, uint32_t *panel)
{
  const uint16_t *source = (const uint16_t *)args->source + lane * args->stride;
  int n_groups = (args->n_k + 1) / 2;
  for (int part = 0; part < args->width; part += 16) {
    __mmask16 store = mask16_make(args->width - part);
    for (int g = 0; g < n_groups; g += 16) {
      int n_k = args->n_k - 2 * g, n_rows = LADE_MIN(n_groups - g, 16);
      __mmask32 load = n_k >= 32 ? 0xffffffffu : (1u << n_k) - 1;
      __m512i row[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        bool is_inside = part + i < n_lanes;
        row[i] = _mm512_maskz_loadu_epi16(is_inside ? load : 0, source + (is_inside ? part + i : 0) * args->stride + 2 * g);
      }
      transpose_16x16(row);
      for (int i = 0; i < n_rows; i++)
        _mm512_mask_storeu_epi32(panel + (g + i) * args->width + part, store, row[i]);
    }
  }
}

/* One pair of rows of k for 16 lanes: low half the even k. */
static __m512i pair_make(const uint16_t *even, const uint16_t *odd, __mmask16 mask)
{
  __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even));
  if (!odd)
    return low;
  __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* All panels at once, k by k: rows of the source are read once, in order. */
static void pack_lane_inner(const struct lade_pack_args *args)
{
  int n_groups = (args->n_k + 1) / 2, n_panels = (int)lade_div_up(args->n_lanes, args->width);
  for (int g = 0; g < n_groups; g++) {
    const uint16_t *even = (const uint16_t *)args->source + 2 * g * args->stride;
    const uint16_t *odd = 2 * g + 1 < args->n_k ? even + args->stride : NULL;
    for (int p = 0; p < n_panels; p++) {
      uint32_t *panel = (uint32_t *)args->panels + ((size_t)p * n_groups + g) * args->width;
      for (int part = 0; part < args->width; part += 16) {
        int lane = p * args->width + part;
        __mmask16 load = mask16_make(LADE_MIN(args->n_lanes - lane, args->width - part));
        _mm512_mask_storeu_epi32(panel + part, mask16_make(args->width - part),
                                 pair_make(even + lane, odd ? odd + lane : NULL, load));
      }
    }
  }
}

static void pack_bf16(const struct lade_pack_args *args)
{
  int n_groups = (args->n_k + 1) / 2;
  if (!args->is_k_inner) {
    pack_lane_inner(args);
    return;
  }
  for (int lane = 0; lane < args->n_lanes; lane += args->width)
    panel_pack_k_inner(args, lane, args->n_lanes - lane, (uint32_t *)args->panels + (size_t)lane * n_groups);
}

static void micro_bf16(const struct lade_micro_args *args)
{
  __m512 sum[LADE_MICRO_ROWS][2];
  micro_begin(args, sum);
  const uint32_t *a = args->a, *b = args->b;
  for (int g = 0; g < args->n_groups; g++) {
    __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 12
    for (int i = 0; i < LADE_MICRO_ROWS; i++) {
      __m512bh pair = (__m512bh)_mm512_set1_epi32((int)a[i]);
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], pair, b0);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], pair, b1);
    }
    a += LADE_MICRO_ROWS;
    b += LADE_MICRO_COLUMNS;
  }
  micro_end(args, sum);
}

const struct lade_matmul_level lade_matmul_level_avx512_bf16 = {
    .cut = &lade_matmul_cuts[LADE_CUT_AVX512_BF16], .pack = pack_bf16, .micro = micro_bf16};

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
