/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen FP32 lanes. vec_avx512.h and vec_avx2.h say the same names, so that an algorithm over rows is written
 * once (rows_*.h) and compiled per level. Included only by files of that level.
 *
 * A row of n elements is walked in steps of LADE_VEC; the last step is partial: vec_load_part reads the first n
 * lanes and makes the others zero, vec_store_part writes the first n.
 */
#ifndef LADE_VEC_H
#define LADE_VEC_H

#include <immintrin.h>
#include <stdint.h>

#include "lade/types.h"

#define LADE_VEC 16
typedef __m512 vec;

/* The first @n of 16 lanes. */
static inline __mmask16 mask16_make(int n)
{
  return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

static inline vec vec_set(float value) { return _mm512_set1_ps(value); }
static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_load(const float *data) { return _mm512_loadu_ps(data); }
static inline void vec_store(float *data, vec value) { _mm512_storeu_ps(data, value); }
static inline float vec_sum(vec a) { return _mm512_reduce_add_ps(a); }
static inline float vec_largest(vec a) { return _mm512_reduce_max_ps(a); }

/* The first @n lanes of a, the others of b. */
static inline vec vec_first(int n, vec a, vec b)
{
  return _mm512_mask_mov_ps(b, mask16_make(n), a);
}

/* data[i .. i+15] under @mask as FP32; zero elsewhere. */
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

/* To nearest even, NaN quiet: lade_f32_to_bf16 in 16 lanes. */
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

static inline vec vec_load_part(enum lade_dtype dtype, const void *data, int64_t i, int n)
{
  return load16(dtype, data, i, mask16_make(n));
}

static inline void vec_store_part(enum lade_dtype dtype, void *data, int64_t i, int n, vec value)
{
  store16(dtype, data, i, mask16_make(n), value);
}

/* 2^n for whole n; 0 far below the range. */
static inline vec vec_times_power(vec a, vec n)
{
  return _mm512_scalef_ps(a, n);
}

static inline vec vec_round(vec a)
{
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#include "kernels/host/vec_exp.h"

#endif
