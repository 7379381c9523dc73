/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of the AVX-512 levels of the matrix product: 16 x 16 transposes, vectors of any dtype, and both ends of
 * a micro-tile. Included only by files compiled with AVX-512.
 */
#ifndef LADE_MATMUL_AVX512_H
#define LADE_MATMUL_AVX512_H

#include <immintrin.h>

#include "kernels/host/matmul/matmul_blocked.h"

#define LADE_MICRO_ROWS 12
#define LADE_MICRO_COLUMNS 32

/* Return the first @n of 16 lanes. */
static inline __mmask16 mask16_make(int n)
{
  return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* Return data[i .. i+15] under @mask as FP32; zero elsewhere. */
static inline __m512 load16(enum lade_dtype dtype, const void *data, int64_t i, __mmask16 mask)
{
  switch (dtype) {
  case LADE_BF16:
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)data + i)), 16));
  case LADE_F16: return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)data + i));
  default: return _mm512_maskz_loadu_ps(mask, (const float *)data + i);
  }
}

/* Round to nearest even, NaN quiet: lade_f32_to_bf16 in 16 lanes. */
static inline __m256i bf16_round(__m512 value)
{
  __m512i bits = _mm512_castps_si512(value);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet));
}

static inline void store16(enum lade_dtype dtype, void *data, int64_t i, __mmask16 mask, __m512 value)
{
  switch (dtype) {
  case LADE_BF16: _mm256_mask_storeu_epi16((uint16_t *)data + i, mask, bf16_round(value)); break;
  case LADE_F16:
    _mm256_mask_storeu_epi16((uint16_t *)data + i, mask,
                             _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    break;
  default: _mm512_mask_storeu_ps((float *)data + i, mask, value); break;
  }
}

/* Return the lanes of a panel that must exist: a left panel is read mr at a time, a right one whole. */
static inline int panel_lanes(const struct lade_pack_args *args, int panel)
{
  int n_lanes = args->n_lanes - panel;
  if (args->width == LADE_MICRO_COLUMNS || n_lanes >= args->width)
    return args->width;
  return (n_lanes + LADE_MICRO_ROWS - 1) / LADE_MICRO_ROWS * LADE_MICRO_ROWS;
}

/* Transpose 16 rows of 16 words in place. */
static inline void transpose_16x16(__m512i row[16])
{
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    row[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    row[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    row[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    row[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  /* row[4i + j]: columns j, 4+j, 8+j, 12+j of rows 4i..4i+3; gather the four quarters of each column */
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    t[j] = _mm512_shuffle_i32x4(row[j], row[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(row[j], row[4 + j], 0xdd);
    t[8 + j] = _mm512_shuffle_i32x4(row[8 + j], row[12 + j], 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(row[8 + j], row[12 + j], 0xdd);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    row[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
    row[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
    row[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
    row[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xdd);
  }
}

/* Finish a whole tile in FP32 with nothing to add: dW's first microbatch, scores. */
static inline void micro_finish_whole(const struct lade_micro_args *args, __m512 sum[LADE_MICRO_ROWS][2])
{
#pragma GCC unroll 12
  for (int i = 0; i < LADE_MICRO_ROWS; i++) {
    _mm512_storeu_ps((float *)args->c + i * args->c_stride, sum[i][0]);
    _mm512_storeu_ps((float *)args->c + i * args->c_stride + 16, sum[i][1]);
  }
}

/* Add the bias or the present value, round once, store into c. */
static inline void micro_finish(const struct lade_micro_args *args, __m512 sum[LADE_MICRO_ROWS][2])
{
  __mmask16 mask[2] = {mask16_make(args->n_columns), mask16_make(args->n_columns - 16)};
  if (args->bias) {
    __m512 bias[2] = {_mm512_maskz_loadu_ps(mask[0], args->bias), _mm512_maskz_loadu_ps(mask[1], args->bias + 16)};
#pragma GCC unroll 12
    for (int i = 0; i < LADE_MICRO_ROWS; i++)
      for (int j = 0; j < 2; j++)
        sum[i][j] = _mm512_add_ps(sum[i][j], bias[j]);
  }
#pragma GCC unroll 12
  for (int i = 0; i < LADE_MICRO_ROWS; i++) {
    if (i >= args->n_rows)
      break;
    for (int j = 0; j < 2; j++) {
      int64_t at = i * args->c_stride + 16 * j;
      __m512 value = sum[i][j];
      if (args->accumulate)
        value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask[j], (const float *)args->c + at), value);
      store16(args->out, args->c, at, mask[j], value);
    }
  }
}

/* The rows of a left panel, three from each of four pointers: the reach of addressing modes. */
struct left_rows {
  const char *at[4];
};

static inline struct left_rows left_rows_make(const struct lade_left *left)
{
  int64_t three = 3 * left->row_bytes;
  return (struct left_rows){{left->at, left->at + three, left->at + 2 * three, left->at + 3 * three}};
}

static inline const void *left_row(const struct left_rows *rows, int64_t row_bytes, int i)
{
  return rows->at[i / 3] + i % 3 * row_bytes;
}

static inline void left_rows_step(struct left_rows *rows, int64_t group_bytes)
{
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    rows->at[i] += group_bytes;
}

/* Start from zero or from partial sums; leave partial sums or finish. */
static inline void micro_begin(const struct lade_micro_args *args, __m512 sum[LADE_MICRO_ROWS][2])
{
  if (args->from) {
#pragma GCC unroll 12
    for (int i = 0; i < LADE_MICRO_ROWS; i++)
      for (int j = 0; j < 2; j++)
        sum[i][j] = _mm512_loadu_ps(args->from + i * LADE_MICRO_COLUMNS + 16 * j);
  } else {
#pragma GCC unroll 12
    for (int i = 0; i < LADE_MICRO_ROWS; i++)
      for (int j = 0; j < 2; j++)
        sum[i][j] = _mm512_setzero_ps();
  }
}

/* Add the sums that waited for this one. Call it before either end. */
static inline void micro_carry(const struct lade_micro_args *args, __m512 sum[LADE_MICRO_ROWS][2])
{
  const float *carry = args->carry;
  for (int c = 0; c < args->n_carries; c++, carry += args->carry_stride)
#pragma GCC unroll 12
    for (int i = 0; i < LADE_MICRO_ROWS; i++)
      for (int j = 0; j < 2; j++)
        sum[i][j] = _mm512_add_ps(_mm512_loadu_ps(carry + i * LADE_MICRO_COLUMNS + 16 * j), sum[i][j]);
}

static inline void micro_end(const struct lade_micro_args *args, __m512 sum[LADE_MICRO_ROWS][2])
{
  if (!args->to) {
    bool is_whole = args->n_rows == LADE_MICRO_ROWS && args->n_columns == LADE_MICRO_COLUMNS;
    if (is_whole && args->out == LADE_F32 && !args->bias && !args->accumulate)
      micro_finish_whole(args, sum);
    else
      micro_finish(args, sum);
    return;
  }
#pragma GCC unroll 12
  for (int i = 0; i < LADE_MICRO_ROWS; i++)
    for (int j = 0; j < 2; j++)
      _mm512_storeu_ps(args->to + i * LADE_MICRO_COLUMNS + 16 * j, sum[i][j]);
}

#endif
