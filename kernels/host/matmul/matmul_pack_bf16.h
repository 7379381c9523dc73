/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of BF16 pairs: two neighbouring k of a lane are one 32-bit word, and all lanes' words of a pair of k lie side
 * by side. Where k is contiguous in the source a panel is a transpose of words; where lanes are, two rows of k are
 * interleaved. Included only by files compiled with AVX-512.
 *
 * A level states how many k it takes at once, 2 or 32: a panel is zero from the last k up to that multiple.
 */
#ifndef LADE_PACK_BF16_H
#define LADE_PACK_BF16_H

#include "base/base.h"
#include "kernels/host/matmul/matmul_avx512.h"

#define BLOCK_PAIRS 4 /* 8 rows of k: within the ways of L1 */

/* Pack 16 lanes by up to 16 pairs, k contiguous: a transpose of words. @is_full: all lanes and all 32 k are inside. */
static inline void square_pack(const struct lade_pack_args *args, int lane, int k, bool is_full, int n_pairs,
                               uint32_t *to)
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
  for (int p = 0; p < 16; p++)
    if (is_full || p < n_pairs)
      _mm512_storeu_si512(to + p * args->width, row[p]);
}

static inline void pairs_pack_k_inner(const struct lade_pack_args *args, int n_pairs)
{
  for (int panel = 0; panel < args->n_lanes; panel += args->width) {
    uint32_t *to = (uint32_t *)args->panels + (size_t)panel * n_pairs;
    for (int part = 0; part < panel_lanes(args, panel); part += 16) {
      bool is_full = panel + part + 16 <= args->n_lanes;
      for (int k = 0; k < args->n_k; k += 32) {
        uint32_t *square = to + (size_t)(k / 2) * args->width + part;
        if (is_full && k + 32 <= args->n_k)
          square_pack(args, panel + part, k, true, 16, square);
        else
          square_pack(args, panel + part, k, false, n_pairs - k / 2, square);
      }
    }
  }
}

/*
 * Interleave two rows of k for up to 16 lanes: the even k in the low half. A NULL row is zero; the odd one may be NULL
 * alone.
 */
static inline __m512i pairs_make(const uint16_t *even, const uint16_t *odd, __mmask16 mask)
{
  if (!even)
    return _mm512_setzero_si512();
  __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even));
  if (!odd)
    return low;
  __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* Return row @k of the source from lane @lane on, or NULL past the last. */
static inline const uint16_t *k_row(const struct lade_pack_args *args, int k, int lane)
{
  return k < args->n_k ? (const uint16_t *)args->source + k * args->stride + lane : NULL;
}

/* Pack BLOCK_PAIRS pairs of one panel from @pair on, or the rest of @n_pairs. @is_full: all lanes, all k are inside. */
static inline void block_pack(const struct lade_pack_args *args, int panel, int pair, int n_pairs, bool is_full)
{
  int n = is_full ? BLOCK_PAIRS : LADE_MIN(BLOCK_PAIRS, n_pairs - pair);
  int n_lanes = is_full ? args->width : panel_lanes(args, panel);
  const uint16_t *row = (const uint16_t *)args->source + 2 * pair * args->stride + panel;
  uint32_t *to = (uint32_t *)args->panels + (size_t)panel * n_pairs + (size_t)pair * args->width;
  for (int p = 0; p < n; p++, row += 2 * args->stride, to += args->width) {
    const uint16_t *even = is_full ? row : k_row(args, 2 * (pair + p), panel);
    const uint16_t *odd = is_full ? row + args->stride : k_row(args, 2 * (pair + p) + 1, panel);
    for (int part = 0; part < n_lanes; part += 16) {
      __mmask16 mask = is_full ? 0xffff : mask16_make(args->n_lanes - panel - part);
      _mm512_storeu_si512(to + part, pairs_make(even ? even + part : NULL, odd ? odd + part : NULL, mask));
    }
  }
}

/*
 * Pack a few pairs of all panels, then the next few. So lines of the source are used up while they are in L1, even with
 * a stride of a power of two. Panels are written some lines at a time. Prefetching the rows was measured: it costs more
 * than it gains.
 */
static inline void pairs_pack_lane_inner(const struct lade_pack_args *args, int n_pairs)
{
  for (int p = 0; p < n_pairs; p += BLOCK_PAIRS) {
    bool is_whole = 2 * (p + BLOCK_PAIRS) <= args->n_k;
    for (int panel = 0; panel < args->n_lanes; panel += args->width) {
      if (is_whole && panel + args->width <= args->n_lanes)
        block_pack(args, panel, p, n_pairs, true);
      else
        block_pack(args, panel, p, n_pairs, false);
    }
  }
}

/* Pack all of @args, for a level that takes @at_once k, an even number that divides 32. */
static inline void pairs_pack(const struct lade_pack_args *args, int at_once)
{
  const int n_pairs = (args->n_k + at_once - 1) / at_once * at_once / 2;
  LADE_ASSERT(args->width % 16 == 0);
  if (args->is_k_inner)
    pairs_pack_k_inner(args, n_pairs);
  else
    pairs_pack_lane_inner(args, n_pairs);
}

#endif
