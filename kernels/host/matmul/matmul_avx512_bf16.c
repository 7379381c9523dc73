/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 products by VDPBF16PS: sixteen FP32 sums take two products each per instruction, 128 flops per cycle on a core
 * with two such pipes. The micro-tile is 12 x 32: 24 accumulators, two vectors of b and one broadcast pair of a, 27 of
 * 32 registers. 24 dot products need 14 loads, within two loads per cycle. The 24 chains cover the latency.
 *
 * The instruction treats denormal inputs as zero and flushes denormal sums. Only here the arithmetic is not IEEE's, at
 * magnitudes (1e-38) that training does not reach.
 */
#include <string.h>

#include "base/base.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul/matmul_pack_bf16.h"

static void pack_bf16(const struct lade_pack_args *args)
{
  pairs_pack(args, 2);
}

/* Finish into BF16, by the rounding instruction. */
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
