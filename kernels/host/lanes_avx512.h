/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen lanes on AVX-512 (F, BW, DQ, VL): one register each. lanes.h defines each function; lanes_avx2.h has the same
 * on pairs of half registers.
 */
#ifndef LADE_KERNELS_LANES_AVX512_H
#define LADE_KERNELS_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define VEC_LEVEL avx512
#define VEC_INLINE static inline __attribute__((always_inline))

typedef __m512 vf;
typedef __m512i vu;
typedef struct {
  __m512d low, high;
} vd;

VEC_INLINE __mmask16 vec_mask(int n) { return (__mmask16)((1u << n) - 1); }

VEC_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
VEC_INLINE vf vf_load_f32(const float *x) { return _mm512_loadu_ps(x); }
VEC_INLINE vf vf_load_f32_n(const float *x, int n) { return _mm512_maskz_loadu_ps(vec_mask(n), x); }
VEC_INLINE void vf_store_f32(float *x, vf v) { _mm512_storeu_ps(x, v); }
VEC_INLINE void vf_store_f32_n(float *x, vf v, int n) { _mm512_mask_storeu_ps(x, vec_mask(n), v); }
VEC_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VEC_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VEC_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VEC_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VEC_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VEC_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
VEC_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VEC_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VEC_INLINE vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
VEC_INLINE vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
VEC_INLINE vf vf_scale(vf a, vf n) { return _mm512_scalef_ps(a, n); }
VEC_INLINE vf vf_first(vf a, int n) { return n == 16 ? a : _mm512_maskz_mov_ps(vec_mask(n), a); }

VEC_INLINE vf vf_where_negative(vf test, vf a, vf b)
{
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(test)), b, a);
}

VEC_INLINE float vf_sum(vf a)
{
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

VEC_INLINE float vf_largest(vf a) { return _mm512_reduce_max_ps(a); }

VEC_INLINE vu vu_set(uint32_t x) { return _mm512_set1_epi32((int)x); }
VEC_INLINE vu vu_bits(vf a) { return _mm512_castps_si512(a); }
VEC_INLINE vf vf_from_bits(vu a) { return _mm512_castsi512_ps(a); }
VEC_INLINE vu vu_load(const uint32_t *x) { return _mm512_loadu_si512(x); }
VEC_INLINE void vu_stream(void *x, vu v) { _mm512_stream_si512((__m512i *)x, v); }
VEC_INLINE void vu_stream_end(void) { _mm_sfence(); }
VEC_INLINE vu vu_add(vu a, vu b) { return _mm512_add_epi32(a, b); }
VEC_INLINE vu vu_sub(vu a, vu b) { return _mm512_sub_epi32(a, b); }
VEC_INLINE vu vu_and(vu a, vu b) { return _mm512_and_si512(a, b); }
VEC_INLINE vu vu_or(vu a, vu b) { return _mm512_or_si512(a, b); }
VEC_INLINE vu vu_xor(vu a, vu b) { return _mm512_xor_si512(a, b); }
#define vu_shift_left(a, n) _mm512_slli_epi32(a, n)
#define vu_shift_right(a, n) _mm512_srli_epi32(a, n)

VEC_INLINE vu vu_where_nan(vf test, vu a, vu b)
{
  return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(test, test, _CMP_UNORD_Q), b, a);
}

VEC_INLINE vf vf_where_ge(vu a, vu b, vf value)
{
  return _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(a, b), value);
}

VEC_INLINE vu vu_load_u16(const uint16_t *x)
{
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
}
VEC_INLINE vu vu_load_u16_n(const uint16_t *x, int n)
{
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vec_mask(n), x));
}
VEC_INLINE vu vu_sign_extend(vu a) { return _mm512_srai_epi32(_mm512_slli_epi32(a, 16), 16); }
VEC_INLINE void vu_store_u16(uint16_t *x, vu a) { _mm256_storeu_si256((__m256i *)x, _mm512_cvtepi32_epi16(a)); }
VEC_INLINE void vu_store_u16_n(uint16_t *x, vu a, int n)
{
  _mm256_mask_storeu_epi16(x, vec_mask(n), _mm512_cvtepi32_epi16(a));
}

VEC_INLINE vu vu_load_u8_pairs(const uint8_t *x)
{
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)x));
}
VEC_INLINE void vu_store_u8_pairs(uint8_t *x, vu a) { _mm256_storeu_si256((__m256i *)x, _mm512_cvtepi16_epi8(a)); }
VEC_INLINE void vf_load_pairs(const float *x, vf *ret_even, vf *ret_odd)
{
  const vu even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  vf a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  *ret_even = _mm512_permutex2var_ps(a, even, b);
  *ret_odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
}
VEC_INLINE void vf_store_pairs(float *x, vf even, vf odd)
{
  const vu first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  _mm512_storeu_ps(x, _mm512_permutex2var_ps(even, first, odd));
  _mm512_storeu_ps(x + 16, _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd));
}
VEC_INLINE void vu_store(uint32_t *x, vu a) { _mm512_storeu_si512(x, a); }
VEC_INLINE vu vu_rotate(vu a, uint32_t n) { return _mm512_rolv_epi32(a, vu_set(n)); }
VEC_INLINE vu vu_min(vu a, vu b) { return _mm512_min_epu32(a, b); }
VEC_INLINE vu vu_max(vu a, vu b) { return _mm512_max_epu32(a, b); }
VEC_INLINE uint32_t vu_largest(vu a) { return _mm512_reduce_max_epu32(a); }
VEC_INLINE vu vu_where_below(vu a, vu b, vu below, vu other)
{
  return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a, b), other, below);
}
VEC_INLINE vf vf_from_int(vu a) { return _mm512_cvtepi32_ps(a); }
VEC_INLINE vu vu_truncate(vf a) { return _mm512_cvttps_epi32(a); }

VEC_INLINE vf vf_from_f16(vu a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
VEC_INLINE vu vu_f16(vf a)
{
  return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

VEC_INLINE void vu_multiply(vu a, uint32_t factor, vu *ret_high, vu *ret_low)
{
  vu m = vu_set(factor), even = _mm512_mul_epu32(a, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), m);
  *ret_high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  *ret_low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

VEC_INLINE void vu_store_transposed(uint32_t *words, const vu *w)
{
  vu a = _mm512_unpacklo_epi32(w[0], w[1]), b = _mm512_unpackhi_epi32(w[0], w[1]);
  vu c = _mm512_unpacklo_epi32(w[2], w[3]), d = _mm512_unpackhi_epi32(w[2], w[3]);
  _mm512_storeu_si512(words, _mm512_unpacklo_epi64(a, c));
  _mm512_storeu_si512(words + 16, _mm512_unpackhi_epi64(a, c));
  _mm512_storeu_si512(words + 32, _mm512_unpacklo_epi64(b, d));
  _mm512_storeu_si512(words + 48, _mm512_unpackhi_epi64(b, d));
}

VEC_INLINE vd vd_zero(void) { return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()}; }

VEC_INLINE vd vd_add_square(vd sum, vf a)
{
  __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
  return (vd){_mm512_fmadd_pd(low, low, sum.low), _mm512_fmadd_pd(high, high, sum.high)};
}

VEC_INLINE double vd_sum(vd a)
{
  __m512d eight = _mm512_add_pd(a.low, a.high);
  __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
  __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#endif
