/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP32 products by 256-bit fused multiply-add; BF16 and FP16 are widened while packing. The micro-tile is 6 x 16: 12
 * accumulators, two vectors of b and a broadcast, 15 of 16 registers.
 */
#include <immintrin.h>
#include <string.h>

#include "base/base.h"
#include "base/float.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul/matmul_blocked.h"

#define ROWS 6
#define COLUMNS 16
#define PIECE 64 /* elements widened at a time */

/* Write @n elements from data[i] as FP32. */
static void widen(enum lade_dtype dtype, const void *data, int64_t i, int n, float *to)
{
  const uint16_t *half = (const uint16_t *)data + i;
  int j = 0;
  switch (dtype) {
  case LADE_BF16:
    for (; j < n; j++)
      to[j] = lade_bf16_to_f32(half[j]);
    break;
  case LADE_F16:
    for (; j + 8 <= n; j += 8)
      _mm256_storeu_ps(to + j, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(half + j))));
    for (; j < n; j++)
      to[j] = _cvtsh_ss(half[j]);
    break;
  default: memcpy(to, (const float *)data + i, (size_t)n * sizeof(float)); break;
  }
}

static void pack_f32(const struct lade_pack_args *args)
{
  int n_outer = args->is_k_inner ? args->n_lanes : args->n_k, n_inner = args->is_k_inner ? args->n_k : args->n_lanes;
  int n_panels = (int)lade_div_up(args->n_lanes, args->width);
  float *panels = args->panels, piece[PIECE];
  if (args->n_lanes % args->width)
    memset(panels + (size_t)(n_panels - 1) * args->width * args->n_k, 0,
           (size_t)args->width * (size_t)args->n_k * sizeof(float));
  for (int outer = 0; outer < n_outer; outer++) {
    for (int first = 0; first < n_inner; first += PIECE) {
      int n = LADE_MIN(n_inner - first, PIECE);
      widen(args->dtype, args->source, outer * args->stride + first, n, piece);
      for (int j = 0; j < n; j++) {
        int lane = args->is_k_inner ? outer : first + j, k = args->is_k_inner ? first + j : outer;
        panels[((size_t)(lane / args->width) * args->n_k + k) * args->width + lane % args->width] = piece[j];
      }
    }
  }
}

static void finish_element(const struct lade_micro_args *args, int64_t at, int j, float sum)
{
  float value = args->bias ? sum + args->bias[j] : sum;
  if (args->out == LADE_BF16)
    ((uint16_t *)args->c)[at] = lade_f32_to_bf16(value);
  else if (args->out == LADE_F16)
    ((uint16_t *)args->c)[at] = lade_f32_to_f16(value);
  else
    ((float *)args->c)[at] = args->accumulate ? ((const float *)args->c)[at] + value : value;
}

static void micro_f32(const struct lade_micro_args *args)
{
  __m256 sum[ROWS][2];
  float out[ROWS * COLUMNS];
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < 2; j++)
      sum[i][j] = args->from ? _mm256_loadu_ps(args->from + i * COLUMNS + 8 * j) : _mm256_setzero_ps();
  const char *a = args->a.at, *a3 = a + 3 * args->a.row_bytes;
  const int64_t row_bytes = args->a.row_bytes, group_bytes = args->a.group_bytes;
  const float *b = args->b;
  for (int g = 0; g < args->n_groups; g++, a += group_bytes, a3 += group_bytes, b += COLUMNS) {
    __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++) {
      __m256 value = _mm256_broadcast_ss((const float *)(const void *)((i < 3 ? a : a3) + i % 3 * row_bytes));
      sum[i][0] = _mm256_fmadd_ps(value, b0, sum[i][0]);
      sum[i][1] = _mm256_fmadd_ps(value, b1, sum[i][1]);
    }
  }
  const float *carry = args->carry;
  for (int c = 0; c < args->n_carries; c++, carry += args->carry_stride)
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
      for (int j = 0; j < 2; j++)
        sum[i][j] = _mm256_add_ps(_mm256_loadu_ps(carry + i * COLUMNS + 8 * j), sum[i][j]);
  float *to = args->to ? args->to : out;
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < 2; j++)
      _mm256_storeu_ps(to + i * COLUMNS + 8 * j, sum[i][j]);
  for (int i = 0; i < args->n_rows && !args->to; i++)
    for (int j = 0; j < args->n_columns; j++)
      finish_element(args, i * args->c_stride + j, j, out[i * COLUMNS + j]);
}

const struct lade_matmul_level lade_matmul_level_avx2 = {
    .cut = &lade_matmul_cuts[LADE_CUT_AVX2], .direct = LADE_F32, .pack = pack_f32, .micro = micro_f32};

void lade_matmul_avx2(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_matmul_args *args = arg;
  if (args->dtype == LADE_F64)
    lade_matmul_plain(ctx, args);
  else
    lade_matmul_blocked_run(&lade_matmul_level_avx2, ctx, args);
}

void lade_matmul_init_avx2(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL, lade_matmul_avx2, "avx2");
}
