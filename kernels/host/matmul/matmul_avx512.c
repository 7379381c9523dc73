/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP32 products by fused multiply-add, 64 flops per cycle on a core with two 512-bit pipes; BF16 and FP16
 * are widened while packing. The micro-tile is the BF16 level's, 12 x 32, for the same reasons.
 */
#include "base/base.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul/matmul_avx512.h"

/* Pack 16 lanes by up to 16 k, k contiguous: a transpose. */
static void square_pack(const struct lade_pack_args *args, int lane, int k, float *to)
{
  int n_lanes = args->n_lanes - lane, n_k = LADE_MIN(args->n_k - k, 16);
  __m512i row[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    int64_t at = (lane + (i < n_lanes ? i : 0)) * args->stride + k;
    row[i] = _mm512_castps_si512(load16(args->dtype, args->source, at, i < n_lanes ? mask16_make(n_k) : 0));
  }
  transpose_16x16(row);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++)
    if (i < n_k)
      _mm512_storeu_si512(to + i * args->width, row[i]);
}

static void pack_f32(const struct lade_pack_args *args)
{
  for (int panel = 0; panel < args->n_lanes; panel += args->width) {
    float *to = (float *)args->panels + (size_t)panel * args->n_k;
    int n_lanes = panel_lanes(args, panel);
    if (args->is_k_inner) {
      for (int part = 0; part < n_lanes; part += 16)
        for (int k = 0; k < args->n_k; k += 16)
          square_pack(args, panel + part, k, to + k * args->width + part);
      continue;
    }
    for (int k = 0; k < args->n_k; k++, to += args->width)
      for (int part = 0; part < n_lanes; part += 16)
        _mm512_storeu_ps(to + part, load16(args->dtype, args->source, k * args->stride + panel + part,
                                           mask16_make(args->n_lanes - panel - part)));
  }
}

static void micro_f32(const struct lade_micro_args *args)
{
  __m512 sum[LADE_MICRO_ROWS][2];
  micro_begin(args, sum);
  struct left_rows a = left_rows_make(&args->a);
  const float *b = args->b;
  const int64_t row_bytes = args->a.row_bytes, group_bytes = args->a.group_bytes;
  for (int g = 0; g < args->n_groups; g++) {
    __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 12
    for (int i = 0; i < LADE_MICRO_ROWS; i++) {
      __m512 value = _mm512_set1_ps(*(const float *)left_row(&a, row_bytes, i));
      sum[i][0] = _mm512_fmadd_ps(value, b0, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(value, b1, sum[i][1]);
    }
    left_rows_step(&a, group_bytes);
    b += LADE_MICRO_COLUMNS;
  }
  micro_carry(args, sum);
  micro_end(args, sum);
}

const struct lade_matmul_level lade_matmul_level_avx512 = {
    .cut = &lade_matmul_cuts[LADE_CUT_AVX512], .direct = LADE_F32, .pack = pack_f32, .micro = micro_f32};

void lade_matmul_avx512(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_matmul_args *args = arg;
  if (args->dtype == LADE_F64)
    lade_matmul_plain(ctx, args);
  else
    lade_matmul_blocked_run(&lade_matmul_level_avx512, ctx, args);
}

void lade_matmul_init_avx512(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_MATMUL, lade_matmul_avx512, "avx512");
}
