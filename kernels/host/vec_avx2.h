/* SPDX-License-Identifier: Apache-2.0 */
/* Eight FP32 lanes: see vec_avx512.h, which says what each name means. */
#ifndef LADE_VEC_H
#define LADE_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "base/float.h"
#include "lade/types.h"

#define LADE_VEC 8
typedef __m256 vec;

static inline vec vec_set(float value) { return _mm256_set1_ps(value); }
static inline vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec vec_max(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_load(const float *data) { return _mm256_loadu_ps(data); }
static inline void vec_store(float *data, vec value) { _mm256_storeu_ps(data, value); }

static inline float vec_sum(vec a)
{
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static inline float vec_largest(vec a)
{
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

static inline vec vec_first(int n, vec a, vec b)
{
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)));
}

static inline vec vec_from_halves(enum lade_dtype dtype, __m128i halves)
{
  if (dtype == LADE_F16)
    return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline __m128i vec_to_halves(enum lade_dtype dtype, vec value)
{
  if (dtype == LADE_F16)
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256i bits = _mm256_castps_si256(value);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  __m256i word = _mm256_blendv_epi8(rounded, quiet, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(word), _mm256_extracti128_si256(word, 1));
}

static inline vec vec_load_part(enum lade_dtype dtype, const void *data, int64_t i, int n)
{
  if (dtype == LADE_F32) {
    if (n >= LADE_VEC)
      return _mm256_loadu_ps((const float *)data + i);
    float part[LADE_VEC] = {0};
    memcpy(part, (const float *)data + i, n > 0 ? (size_t)n * sizeof(float) : 0);
    return _mm256_loadu_ps(part);
  }
  uint16_t part[LADE_VEC] = {0};
  memcpy(part, (const uint16_t *)data + i, n >= LADE_VEC ? sizeof(part) : n > 0 ? (size_t)n * sizeof(*part) : 0);
  return vec_from_halves(dtype, _mm_loadu_si128((const __m128i *)(const void *)part));
}

static inline void vec_store_part(enum lade_dtype dtype, void *data, int64_t i, int n, vec value)
{
  size_t n_lanes = n >= LADE_VEC ? LADE_VEC : n > 0 ? (size_t)n : 0;
  if (dtype == LADE_F32) {
    float part[LADE_VEC];
    _mm256_storeu_ps(part, value);
    memcpy((float *)data + i, part, n_lanes * sizeof(float));
    return;
  }
  uint16_t part[LADE_VEC];
  _mm_storeu_si128((__m128i *)(void *)part, vec_to_halves(dtype, value));
  memcpy((uint16_t *)data + i, part, n_lanes * sizeof(*part));
}

/* a * 2^n in two steps, so that the range below 2^-126 is met gradually; n is within -300..127. */
static inline vec vec_times_power(vec a, vec n)
{
  __m256i whole = _mm256_max_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(-252));
  __m256i half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
  vec first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  vec second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, first), second);
}

static inline vec vec_round(vec a)
{
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#include "kernels/host/vec_exp.h"

#endif
