/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vector code written once. A <op>_vec.c is compiled once per level, over that level's primitives, which all have
 * sixteen lanes: sums have one order and every level the same bits.
 *
 *   vf, vu, vd                16 lanes of F32, of 32-bit words, of F64
 *   vf_load_f32[_n]           16 elements (the first n, zeros after them); stores likewise
 *   vf_fma, vf_fnma           a*b + c and c - a*b, rounded once
 *   vf_min, vf_max            the second operand where one is not a number
 *   vf_scale(a, n)            a * 2^n for whole n in -150..127, rounded once
 *   vf_first(a, n)            zeros after the first n lanes
 *   vf_where_negative(t,a,b)  a where t's sign is set, b elsewhere
 *   vf_where_ge(a,b,v)        v where word a >= word b, 0 elsewhere
 *   vf_sum, vd_sum            lanes as a tree: j + (j+8), then 4, 2, 1
 *   vf_largest                the largest lane; undefined if a lane is not a number
 *   vu_load_u16, vu_store_u16 16-bit elements, zero-extended and truncated
 *   vu_load_u8_pairs          32 bytes: a lane has an even one in its lower half, the next in its upper; and back
 *   vf_load_pairs             32 elements, the even ones and the odd ones; and back
 *   vu_rotate(a, n)           each word by n bits, 0 to 31, to the left
 *   vu_min, vu_max, vu_largest of words as unsigned numbers
 *   vu_where_below(a,b,x,y)   x where signed a < b, y elsewhere
 *   vf_from_int, vu_truncate  a signed word to F32, and towards zero to a word
 *   vu_stream, vu_stream_end  a whole aligned line past the caches; visible to each thread that sees later stores
 *   vu_multiply               32 x 32 bits to both halves of the product
 *   vu_store_transposed       64 words from w[0..3]: out[16k + 4j + i] = w[i][4j + k]
 *
 * LADE_LANES_HEADER, the level's primitives, comes from the build.
 */
#ifndef LADE_KERNELS_LANES_H
#define LADE_KERNELS_LANES_H

#include LADE_LANES_HEADER

#include "base/philox.h"
#include "kernels/host/host.h"

#define VEC_LANES 16

/*
 * Copy the arguments into the task. Otherwise the compiler must assume that a store through a tensor's pointer changes
 * the caller's struct, and every step would read its pointers again.
 */
#define VEC_COPY(type, name, from) const struct type name##_copy = *(const struct type *)(from), *name = &name##_copy

/* VEC_NAME(lade_norm_init) is lade_norm_init_avx2; VEC_VARIANT is "avx2". */
#define VEC_JOIN(name, level) name##_##level
#define VEC_JOIN_EXPANDED(name, level) VEC_JOIN(name, level)
#define VEC_NAME(name) VEC_JOIN_EXPANDED(name, VEC_LEVEL)
#define VEC_TEXT(level) #level
#define VEC_TEXT_EXPANDED(level) VEC_TEXT(level)
#define VEC_VARIANT VEC_TEXT_EXPANDED(VEC_LEVEL)

/*
 * Make the pool's functions for F32, BF16 and F16 from one body(arg, i_task, dtype), as REF_TASKS does for the
 * references.
 */
#define VEC_TASKS(body) \
  static void body##_f32(void *arg, int i_task, int i_thread) { body(arg, i_task, LADE_F32); } \
  static void body##_bf16(void *arg, int i_task, int i_thread) { body(arg, i_task, LADE_BF16); } \
  static void body##_f16(void *arg, int i_task, int i_thread) { body(arg, i_task, LADE_F16); } \
  static void body##_run(lade_pool *pool, enum lade_dtype dtype, const void *arg, int64_t n_tasks) \
  { \
    static lade_task_fn *const of_dtype[] = {body##_f32, body##_bf16, body##_f16}; \
    lade_pool_run(pool, of_dtype[dtype], (void *)arg, (int)n_tasks); \
  }

/*
 * STEPS(step, from, end, ...): step(i, n, ...) for every group of lanes. n is the constant 16 except in the last call,
 * so only that call uses masks.
 */
#define VEC_STEPS(step, from, end, ...) \
  do { \
    int64_t at_ = (from), end_ = (end); \
    for (; at_ + VEC_LANES <= end_; at_ += VEC_LANES) \
      step(at_, VEC_LANES, __VA_ARGS__); \
    if (at_ < end_) \
      step(at_, (int)(end_ - at_), __VA_ARGS__); \
  } while (0)

/*
 * The same for sums: step(i, n, &sum, ...) with four sums in turn, because each addition in one chain waits for the one
 * before.
 */
#define VEC_SUMS 4
#define VEC_SUM_STEPS(step, from, end, sums, ...) \
  do { \
    int64_t from_ = (from), whole_ = ((end) - from_) / (VEC_SUMS * VEC_LANES) * (VEC_SUMS * VEC_LANES); \
    for (int64_t sum_at_ = from_; sum_at_ < from_ + whole_; sum_at_ += VEC_SUMS * VEC_LANES) { \
      for (int sum_ = 0; sum_ < VEC_SUMS; sum_++) \
        step(sum_at_ + sum_ * VEC_LANES, VEC_LANES, &(sums)[sum_], __VA_ARGS__); \
    } \
    VEC_STEPS(step, from_ + whole_, end, &(sums)[0], __VA_ARGS__); \
  } while (0)

/*
 * Steps over several long streams prefetch the lines VEC_AHEAD elements ahead. The processor's own prefetchers stop at
 * every page, and are late on five streams at a time. An address past a tensor's end is no fault.
 */
#define VEC_AHEAD 512
#define VEC_LINE_BYTES 64

VEC_INLINE void vec_prefetch(const void *x, int64_t i, size_t element_bytes, int n)
{
  const char *at = (const char *)x + (size_t)(i + VEC_AHEAD) * element_bytes;
  for (size_t byte = 0; byte < (size_t)n * element_bytes; byte += VEC_LINE_BYTES)
    __builtin_prefetch(at + byte);
}

VEC_INLINE vf vec_load(enum lade_dtype dtype, const void *x, int64_t i, int n)
{
  if (dtype == LADE_F32) {
    const float *at = (const float *)x + i;
    return n == VEC_LANES ? vf_load_f32(at) : vf_load_f32_n(at, n);
  }
  const uint16_t *at = (const uint16_t *)x + i;
  vu words = n == VEC_LANES ? vu_load_u16(at) : vu_load_u16_n(at, n);
  return dtype == LADE_BF16 ? vf_from_bits(vu_shift_left(words, 16)) : vf_from_f16(words);
}

/* Return lade_f32_bits_quiet of each lane. */
VEC_INLINE vu vu_bits_quiet(vf value)
{
  return vu_where_nan(value, vu_set(0x7fc00000), vu_bits(value));
}

/* Round to nearest even in the upper half of each lane's bits, as lade_f32_to_bf16 does, also denormals and NaN. */
VEC_INLINE vu vec_bf16(vf value)
{
  vu bits = vu_bits(value), odd = vu_and(vu_shift_right(bits, 16), vu_set(1));
  vu rounded = vu_add(bits, vu_add(odd, vu_set(0x7fff)));
  return vu_shift_right(vu_where_nan(value, vu_or(bits, vu_set(0x400000)), rounded), 16);
}

VEC_INLINE void vec_store(enum lade_dtype dtype, void *x, int64_t i, int n, vf value)
{
  if (dtype == LADE_F32) {
    float *at = (float *)x + i;
    if (n == VEC_LANES)
      vf_store_f32(at, value);
    else
      vf_store_f32_n(at, value, n);
    return;
  }
  uint16_t *at = (uint16_t *)x + i;
  vu words = dtype == LADE_BF16 ? vec_bf16(value) : vu_f16(value);
  if (n == VEC_LANES)
    vu_store_u16(at, words);
  else
    vu_store_u16_n(at, words, n);
}

/* Return the value as it reads after a store in @dtype. */
VEC_INLINE vf vec_rounded(enum lade_dtype dtype, vf value)
{
  if (dtype == LADE_F32)
    return value;
  return dtype == LADE_BF16 ? vf_from_bits(vu_shift_left(vec_bf16(value), 16)) : vf_from_f16(vu_f16(value));
}

/*
 * Functions with long dependent chains take groups of vectors, operation by operation, so that the processor has
 * independent work. Loops over a group have a constant count and are unrolled.
 */
#define VEC_GROUP 4
#define VEC_EACH(k, count) _Pragma("GCC unroll 4") for (int k = 0; k < (count); k++)

/* VEC_STEPS with groups: step(i, count, n, ...) for count vectors of n lanes, n < 16 only with one vector. */
#define VEC_GROUP_STEPS(step, from, end, ...) \
  do { \
    int64_t at_ = (from), end_ = (end); \
    for (; at_ + VEC_GROUP * VEC_LANES <= end_; at_ += VEC_GROUP * VEC_LANES) \
      step(at_, VEC_GROUP, VEC_LANES, __VA_ARGS__); \
    for (; at_ + VEC_LANES <= end_; at_ += VEC_LANES) \
      step(at_, 1, VEC_LANES, __VA_ARGS__); \
    if (at_ < end_) \
      step(at_, 1, (int)(end_ - at_), __VA_ARGS__); \
  } while (0)

VEC_INLINE void vec_polynomial_add(vf *p, const vf *r, float coefficient, int count)
{
  VEC_EACH(k, count) p[k] = vf_fma(p[k], r[k], vf_set(coefficient));
}

/*
 * Set z = exp(z) for z <= 0, within an ulp of F32; NaN stays. z = n ln2 + r with |r| <= ln2/2, where n ln2 is
 * subtracted in two parts; e^r by its series up to r^7/7!, with a remainder below 6e-9.
 */
VEC_INLINE void vec_exp(vf *z, int count)
{
  vf n[VEC_GROUP], r[VEC_GROUP], p[VEC_GROUP];
  VEC_EACH(k, count) z[k] = vf_max(vf_set(-104.0f), z[k]); /* e^-104 rounds to 0 */
  VEC_EACH(k, count) n[k] = vf_round(vf_mul(z[k], vf_set(0x1.715476p+0f)));
  VEC_EACH(k, count) r[k] = vf_fnma(n[k], vf_set(0x1.62e430p-1f), z[k]);
  VEC_EACH(k, count) r[k] = vf_fnma(n[k], vf_set(-0x1.05c610p-29f), r[k]);
  VEC_EACH(k, count) p[k] = vf_set(1.0f / 5040);
  vec_polynomial_add(p, r, 1.0f / 720, count);
  vec_polynomial_add(p, r, 1.0f / 120, count);
  vec_polynomial_add(p, r, 1.0f / 24, count);
  vec_polynomial_add(p, r, 1.0f / 6, count);
  vec_polynomial_add(p, r, 0.5f, count);
  vec_polynomial_add(p, r, 1, count);
  vec_polynomial_add(p, r, 1, count);
  VEC_EACH(k, count) z[k] = vf_scale(p[k], n[k]);
}

/* Compute the logistic function s(z) and its slope s (1-s), both without overflow or cancellation. */
VEC_INLINE void vec_sigmoid(const vf *z, vf *s, vf *slope, int count)
{
  vf e[VEC_GROUP], r[VEC_GROUP];
  VEC_EACH(k, count) e[k] = vf_from_bits(vu_or(vu_bits(z[k]), vu_set(0x80000000)));
  vec_exp(e, count);
  VEC_EACH(k, count) r[k] = vf_div(vf_set(1), vf_add(vf_set(1), e[k]));
  VEC_EACH(k, count) e[k] = vf_mul(e[k], r[k]);
  VEC_EACH(k, count) s[k] = vf_where_negative(z[k], e[k], r[k]);
  VEC_EACH(k, count) slope[k] = vf_mul(e[k], r[k]);
}

/*
 * Set z = tanh(z), within two ulps of F32. Below 0.3 its series up to z^9, with a remainder below 6e-8 of the result;
 * above, (1 - e) / (1 + e) with e = exp(-2 |z|), where the difference cancels at most one bit.
 */
VEC_INLINE void vec_tanh(vf *z, int count)
{
  vf e[VEC_GROUP], square[VEC_GROUP], p[VEC_GROUP];
  VEC_EACH(k, count) e[k] = vf_mul(vf_set(2), vf_from_bits(vu_or(vu_bits(z[k]), vu_set(0x80000000))));
  vec_exp(e, count);
  VEC_EACH(k, count) e[k] = vf_div(vf_sub(vf_set(1), e[k]), vf_add(vf_set(1), e[k]));
  VEC_EACH(k, count) square[k] = vf_mul(z[k], z[k]);
  VEC_EACH(k, count) p[k] = vf_set(62.0f / 2835);
  vec_polynomial_add(p, square, -17.0f / 315, count);
  vec_polynomial_add(p, square, 2.0f / 15, count);
  vec_polynomial_add(p, square, -1.0f / 3, count);
  VEC_EACH(k, count) p[k] = vf_fma(vf_mul(p[k], square[k]), z[k], z[k]);
  VEC_EACH(k, count) {
    vf large = vf_where_negative(z[k], vf_sub(vf_set(0), e[k]), e[k]);
    z[k] = vf_where_negative(vf_sub(square[k], vf_set(0.09f)), p[k], large);
  }
}

VEC_INLINE void vec_load_group(enum lade_dtype dtype, const void *x, int64_t i, int count, int n, vf *ret_values)
{
  VEC_EACH(k, count) ret_values[k] = vec_load(dtype, x, i + k * VEC_LANES, n);
}

VEC_INLINE void vec_store_group(enum lade_dtype dtype, void *x, int64_t i, int count, int n, const vf *values)
{
  VEC_EACH(k, count) vec_store(dtype, x, i + k * VEC_LANES, n, values[k]);
}

/*
 * The random words of a run of elements. A draw makes 128 of them from @element on, a multiple of 128: two groups of
 * sixteen Philox blocks in parallel, placed in lanes so that the transposed store leaves the words in order.
 */
#define VEC_DRAW_GROUPS 2
#define VEC_DRAW_WORDS (VEC_DRAW_GROUPS * 4 * VEC_LANES)

VEC_INLINE void vec_words_draw(uint32_t *word, const struct lade_step *step, uint32_t stream, uint64_t element)
{
  static const uint32_t block_of_lane[VEC_LANES] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  uint32_t block = (uint32_t)(element / 4), block_high = (uint32_t)(element / 4 >> 32);
  uint32_t k0 = (uint32_t)step->seed, k1 = (uint32_t)(step->seed >> 32);
  vu c[VEC_DRAW_GROUPS][4];
  VEC_EACH(k, VEC_DRAW_GROUPS) {
    c[k][0] = vu_add(vu_set(block + (uint32_t)k * VEC_LANES), vu_load(block_of_lane));
    c[k][1] = vu_set(block_high);
    c[k][2] = vu_set(stream);
    c[k][3] = vu_set(step->step);
  }
  for (int round = 0; round < 10; round++) {
    vu high0[VEC_DRAW_GROUPS], low0[VEC_DRAW_GROUPS], high1[VEC_DRAW_GROUPS], low1[VEC_DRAW_GROUPS];
    VEC_EACH(k, VEC_DRAW_GROUPS) vu_multiply(c[k][0], 0xD2511F53u, &high0[k], &low0[k]);
    VEC_EACH(k, VEC_DRAW_GROUPS) vu_multiply(c[k][2], 0xCD9E8D57u, &high1[k], &low1[k]);
    VEC_EACH(k, VEC_DRAW_GROUPS) {
      c[k][0] = vu_xor(vu_xor(high1[k], c[k][1]), vu_set(k0));
      c[k][2] = vu_xor(vu_xor(high0[k], c[k][3]), vu_set(k1));
      c[k][1] = low1[k];
      c[k][3] = low0[k];
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  VEC_EACH(k, VEC_DRAW_GROUPS) vu_store_transposed(word + k * 4 * VEC_LANES, c[k]);
}

/* Write the words of @n elements (at most VEC_RUN) from @element on into @word; return the place of the first one. */
#define VEC_RUN 1024
#define VEC_RUN_WORDS (VEC_RUN + 2 * VEC_DRAW_WORDS)

VEC_INLINE const uint32_t *vec_words_fill(uint32_t *word, const struct lade_step *step, const struct lade_drop *drop,
                                          int64_t element, int64_t n)
{
  uint64_t from = drop->first_element + (uint64_t)element, aligned = from & ~(uint64_t)(VEC_DRAW_WORDS - 1);
  for (uint64_t at = aligned; at < from + (uint64_t)n; at += VEC_DRAW_WORDS)
    vec_words_draw(word + (at - aligned), step, drop->stream, at);
  return word + (from - aligned);
}

/* Return value * scale if the word keeps the element, else 0. */
VEC_INLINE vf vec_drop(const struct lade_drop *drop, const uint32_t *word, vf value)
{
  return vf_where_ge(vu_load(word), vu_set(drop->drop_below), vf_mul(value, vf_set(drop->scale)));
}

#endif
