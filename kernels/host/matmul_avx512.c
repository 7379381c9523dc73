/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP32 products by fused multiply-add, 64 flops per cycle on a core with two 512-bit pipes; BF16 and FP16
 * are widened while packing. The micro-tile is the BF16 level's, 12 x 32, for the same reasons.
 */
#include "base/base.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul_avx512.h"

static void panel_pack_k_inner(const struct lade_pack_args *args, int lane, int n_lanes, float *panel)
{
  for (int part = 0; part < args->width; part += 16) {
    __mmask16 store = mask16_make(args->width - part);
    for (int k = 0; k < args->n_k; k += 16) {
      __mmask16 load = mask16_make(args->n_k - k);
      int n_rows = LADE_MIN(args->n_k - k, 16);
      __m512i row[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        bool is_inside = part + i < n_lanes;
        int64_t at = (lane + (is_inside ? part + i : 0)) * args->stride + k;
        row[i] = _mm512_castps_si512(load16(args->dtype, args->source, at, is_inside ? load : 0));
      }
      transpose_16x16(row);
      for (int i = 0; i < n_rows; i++)
        _mm512_mask_storeu_epi32(panel + (k + i) * args->width + part, store, row[i]);
    }
  }
}

static void pack_lane_inner(const struct lade_pack_args *args)
{
  int n_panels = (int)lade_div_up(args->n_lanes, args->width);
  for (int k = 0; k < args->n_k; k++) {
    for (int p = 0; p < n_panels; p++) {
      float *panel = (float *)args->panels + ((size_t)p * args->n_k + k) * args->width;
      for (int part = 0; part < args->width; part += 16) {
        int lane = p * args->width + part;
        __mmask16 load = mask16_make(LADE_MIN(args->n_lanes - lane, args->width - part));
        _mm512_mask_storeu_ps(panel + part, mask16_make(args->width - part),
                              load16(args->dtype, args->source, k * args->stride + lane, load));
      }
    }
  }
}

static void pack_f32(const struct lade_pack_args *args)
{
  if (!args->is_k_inner) {
    pack_lane_inner(args);
    return;
  }
  for (int lane = 0; lane < args->n_lanes; lane += args->width)
    panel_pack_k_inner(args, lane, args->n_lanes - lane, (float *)args->panels + (size_t)lane * args->n_k);
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
