/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen lanes on AVX2 with FMA and F16C: two registers each, so that every sum has the order of AVX-512. lanes.h
 * defines each function. There are no masks for 16-bit elements: a row's last few go through a small array.
 */
#ifndef LADE_KERNELS_LANES_AVX2_H
#define LADE_KERNELS_LANES_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VEC_LEVEL avx2
#define VEC_INLINE static inline __attribute__((always_inline))

typedef struct {
  __m256 a, b;
} vf;
typedef struct {
  __m256i a, b;
} vu;
typedef struct {
  __m256d a, b, c, d;
} vd;

VEC_INLINE vf vf_set(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
VEC_INLINE vf vf_load_f32(const float *x) { return (vf){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
VEC_INLINE void vf_store_f32(float *x, vf v)
{
  _mm256_storeu_ps(x, v.a);
  _mm256_storeu_ps(x + 8, v.b);
}
VEC_INLINE vf vf_load_f32_n(const float *x, int n)
{
  float lane[16] = {0};
  memcpy(lane, x, (size_t)n * sizeof(*lane));
  return vf_load_f32(lane);
}
VEC_INLINE void vf_store_f32_n(float *x, vf v, int n)
{
  float lane[16];
  vf_store_f32(lane, v);
  memcpy(x, lane, (size_t)n * sizeof(*lane));
}
VEC_INLINE vf vf_add(vf x, vf y) { return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
VEC_INLINE vf vf_sub(vf x, vf y) { return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
VEC_INLINE vf vf_mul(vf x, vf y) { return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
VEC_INLINE vf vf_div(vf x, vf y) { return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
VEC_INLINE vf vf_min(vf x, vf y) { return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
VEC_INLINE vf vf_max(vf x, vf y) { return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
VEC_INLINE vf vf_sqrt(vf x) { return (vf){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
VEC_INLINE vf vf_fma(vf x, vf y, vf z)
{
  return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
VEC_INLINE vf vf_fnma(vf x, vf y, vf z)
{
  return (vf){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
VEC_INLINE vf vf_round(vf x)
{
  return (vf){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
              _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

/* Scale in two steps, the first exact, so that a result below the normal range is rounded once. */
VEC_INLINE __m256 vec_scale_half(__m256 x, __m256 n)
{
  __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
  __m256i bias = _mm256_set1_epi32(127);
  __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(x, first), second);
}
VEC_INLINE vf vf_scale(vf x, vf n) { return (vf){vec_scale_half(x.a, n.a), vec_scale_half(x.b, n.b)}; }

VEC_INLINE vf vf_first(vf x, int n)
{
  if (n == 16)
    return x;
  __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), end = _mm256_set1_epi32(n);
  __m256i a = _mm256_cmpgt_epi32(end, at), b = _mm256_cmpgt_epi32(end, _mm256_add_epi32(at, _mm256_set1_epi32(8)));
  return (vf){_mm256_and_ps(x.a, _mm256_castsi256_ps(a)), _mm256_and_ps(x.b, _mm256_castsi256_ps(b))};
}

VEC_INLINE vf vf_where_negative(vf test, vf x, vf y)
{
  return (vf){_mm256_blendv_ps(y.a, x.a, test.a), _mm256_blendv_ps(y.b, x.b, test.b)};
}

VEC_INLINE float vf_largest(vf x)
{
  __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

VEC_INLINE float vf_sum(vf x)
{
  __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

VEC_INLINE vu vu_set(uint32_t x) { return (vu){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }
VEC_INLINE vu vu_bits(vf x) { return (vu){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
VEC_INLINE vf vf_from_bits(vu x) { return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
VEC_INLINE vu vu_load(const uint32_t *x)
{
  return (vu){_mm256_loadu_si256((const __m256i *)x), _mm256_loadu_si256((const __m256i *)(x + 8))};
}
VEC_INLINE void vu_stream(void *x, vu v)
{
  _mm256_stream_si256((__m256i *)x, v.a);
  _mm256_stream_si256((__m256i *)x + 1, v.b);
}
VEC_INLINE void vu_stream_end(void) { _mm_sfence(); }
VEC_INLINE vu vu_add(vu x, vu y) { return (vu){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
VEC_INLINE vu vu_sub(vu x, vu y) { return (vu){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
VEC_INLINE vu vu_and(vu x, vu y) { return (vu){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
VEC_INLINE vu vu_or(vu x, vu y) { return (vu){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
VEC_INLINE vu vu_xor(vu x, vu y) { return (vu){_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
#define vu_shift_left(x, n) ((vu){_mm256_slli_epi32((x).a, n), _mm256_slli_epi32((x).b, n)})
#define vu_shift_right(x, n) ((vu){_mm256_srli_epi32((x).a, n), _mm256_srli_epi32((x).b, n)})

VEC_INLINE vu vu_where_nan(vf test, vu x, vu y)
{
  __m256 a = _mm256_cmp_ps(test.a, test.a, _CMP_UNORD_Q), b = _mm256_cmp_ps(test.b, test.b, _CMP_UNORD_Q);
  return (vu){_mm256_blendv_epi8(y.a, x.a, _mm256_castps_si256(a)),
              _mm256_blendv_epi8(y.b, x.b, _mm256_castps_si256(b))};
}

VEC_INLINE vf vf_where_ge(vu x, vu y, vf value)
{
  __m256i a = _mm256_cmpeq_epi32(_mm256_max_epu32(x.a, y.a), x.a);
  __m256i b = _mm256_cmpeq_epi32(_mm256_max_epu32(x.b, y.b), x.b);
  return (vf){_mm256_and_ps(value.a, _mm256_castsi256_ps(a)), _mm256_and_ps(value.b, _mm256_castsi256_ps(b))};
}

VEC_INLINE vu vu_load_u16(const uint16_t *x)
{
  return (vu){_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)),
              _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(x + 8)))};
}
VEC_INLINE vu vu_load_u16_n(const uint16_t *x, int n)
{
  uint16_t lane[16] = {0};
  memcpy(lane, x, (size_t)n * sizeof(*lane));
  return vu_load_u16(lane);
}
VEC_INLINE vu vu_sign_extend(vu x)
{
  return (vu){_mm256_srai_epi32(_mm256_slli_epi32(x.a, 16), 16), _mm256_srai_epi32(_mm256_slli_epi32(x.b, 16), 16)};
}
VEC_INLINE void vu_store_u16(uint16_t *x, vu v)
{
  __m256i low = _mm256_set1_epi32(0xffff);
  __m256i packed = _mm256_packus_epi32(_mm256_and_si256(v.a, low), _mm256_and_si256(v.b, low));
  _mm256_storeu_si256((__m256i *)x, _mm256_permute4x64_epi64(packed, 0xd8));
}
VEC_INLINE void vu_store_u16_n(uint16_t *x, vu v, int n)
{
  uint16_t lane[16];
  vu_store_u16(lane, v);
  memcpy(x, lane, (size_t)n * sizeof(*lane));
}

VEC_INLINE vu vu_load_u8_pairs(const uint8_t *x)
{
  return (vu){_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)x)),
              _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(x + 16)))};
}
VEC_INLINE void vu_store_u8_pairs(uint8_t *x, vu v)
{
  __m256i packed = _mm256_packus_epi16(v.a, v.b);
  _mm256_storeu_si256((__m256i *)x, _mm256_permute4x64_epi64(packed, 0xd8));
}
VEC_INLINE __m256 vec_pairs_half(__m256 x, __m256 y, bool is_odd)
{
  __m256 mixed = is_odd ? _mm256_shuffle_ps(x, y, 0xdd) : _mm256_shuffle_ps(x, y, 0x88);
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}
VEC_INLINE void vf_load_pairs(const float *x, vf *ret_even, vf *ret_odd)
{
  vf first = vf_load_f32(x), second = vf_load_f32(x + 16);
  *ret_even = (vf){vec_pairs_half(first.a, first.b, false), vec_pairs_half(second.a, second.b, false)};
  *ret_odd = (vf){vec_pairs_half(first.a, first.b, true), vec_pairs_half(second.a, second.b, true)};
}
VEC_INLINE void vec_pairs_store(float *x, __m256 even, __m256 odd)
{
  __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
  _mm256_storeu_ps(x, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(x + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
VEC_INLINE void vf_store_pairs(float *x, vf even, vf odd)
{
  vec_pairs_store(x, even.a, odd.a);
  vec_pairs_store(x + 16, even.b, odd.b);
}
VEC_INLINE void vu_store(uint32_t *x, vu v)
{
  _mm256_storeu_si256((__m256i *)x, v.a);
  _mm256_storeu_si256((__m256i *)(x + 8), v.b);
}
VEC_INLINE vu vu_rotate(vu x, uint32_t n)
{
  __m128i left = _mm_cvtsi32_si128((int)n), right = _mm_cvtsi32_si128((int)(32 - n));
  return (vu){_mm256_or_si256(_mm256_sll_epi32(x.a, left), _mm256_srl_epi32(x.a, right)),
              _mm256_or_si256(_mm256_sll_epi32(x.b, left), _mm256_srl_epi32(x.b, right))};
}
VEC_INLINE vu vu_min(vu x, vu y) { return (vu){_mm256_min_epu32(x.a, y.a), _mm256_min_epu32(x.b, y.b)}; }
VEC_INLINE vu vu_max(vu x, vu y) { return (vu){_mm256_max_epu32(x.a, y.a), _mm256_max_epu32(x.b, y.b)}; }
VEC_INLINE uint32_t vu_largest(vu x)
{
  __m256i eight = _mm256_max_epu32(x.a, x.b);
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  __m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
  return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 1)));
}
VEC_INLINE vu vu_where_below(vu x, vu y, vu below, vu other)
{
  return (vu){_mm256_blendv_epi8(other.a, below.a, _mm256_cmpgt_epi32(y.a, x.a)),
              _mm256_blendv_epi8(other.b, below.b, _mm256_cmpgt_epi32(y.b, x.b))};
}
VEC_INLINE vf vf_from_int(vu x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
VEC_INLINE vu vu_truncate(vf x) { return (vu){_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }

VEC_INLINE vf vf_from_f16(vu x)
{
  uint16_t lane[16];
  vu_store_u16(lane, x);
  return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)lane)),
              _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(lane + 8)))};
}
VEC_INLINE vu vu_f16(vf x)
{
  return (vu){_mm256_cvtepu16_epi32(_mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)),
              _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
}

VEC_INLINE void vec_multiply_half(__m256i x, __m256i m, __m256i *ret_high, __m256i *ret_low)
{
  __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
  *ret_high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  *ret_low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
VEC_INLINE void vu_multiply(vu x, uint32_t factor, vu *ret_high, vu *ret_low)
{
  vu m = vu_set(factor);
  vec_multiply_half(x.a, m.a, &ret_high->a, &ret_low->a);
  vec_multiply_half(x.b, m.b, &ret_high->b, &ret_low->b);
}

/* Store half @half of the transposed store: its two groups of four in each of the four outputs. */
VEC_INLINE void vec_store_transposed_half(uint32_t *words, __m256i w0, __m256i w1, __m256i w2, __m256i w3)
{
  __m256i a = _mm256_unpacklo_epi32(w0, w1), b = _mm256_unpackhi_epi32(w0, w1);
  __m256i c = _mm256_unpacklo_epi32(w2, w3), d = _mm256_unpackhi_epi32(w2, w3);
  _mm256_storeu_si256((__m256i *)words, _mm256_unpacklo_epi64(a, c));
  _mm256_storeu_si256((__m256i *)(words + 16), _mm256_unpackhi_epi64(a, c));
  _mm256_storeu_si256((__m256i *)(words + 32), _mm256_unpacklo_epi64(b, d));
  _mm256_storeu_si256((__m256i *)(words + 48), _mm256_unpackhi_epi64(b, d));
}
VEC_INLINE void vu_store_transposed(uint32_t *words, const vu *w)
{
  vec_store_transposed_half(words, w[0].a, w[1].a, w[2].a, w[3].a);
  vec_store_transposed_half(words + 8, w[0].b, w[1].b, w[2].b, w[3].b);
}

VEC_INLINE vd vd_zero(void)
{
  return (vd){_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
}

VEC_INLINE vd vd_add_square(vd sum, vf x)
{
  __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.a)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1));
  __m256d c = _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)), d = _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1));
  return (vd){_mm256_fmadd_pd(a, a, sum.a), _mm256_fmadd_pd(b, b, sum.b), _mm256_fmadd_pd(c, c, sum.c),
              _mm256_fmadd_pd(d, d, sum.d)};
}

VEC_INLINE double vd_sum(vd x)
{
  __m256d four = _mm256_add_pd(_mm256_add_pd(x.a, x.c), _mm256_add_pd(x.b, x.d));
  __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#endif
