/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compact forms of an optimizer's state, element by element: their values and their rounding.
 *
 * Rounding is to nearest for values from a file, and stochastic in an update. The second moment moves by (1-beta2) of
 * itself, which is below half a step of every form here. So rounding to nearest would never move it. A random number
 * below one step of the form is added to the dropped bits, and the sum is cut: the mean error is 0, and a representable
 * value stays as it is. Each element has a random word: m takes the low half, v the high half, and the master weight 8
 * bits of the middle. One Philox draw per element would cost more than the update. So elements 128 apart in a run of
 * LADE_DRAW_RUN share a word, rotated by 8 bits from one to the next. Each element alone still gets uniform bits, which
 * is enough for the mean.
 *
 * Eight bits. A block of LADE_MOMENT_BLOCK elements shares one exponent, its largest (block-wise state is Dettmers et
 * al. 2022, "8-bit Optimizers via Block-wise Quantization"; a shared power of two and a small float below it are the
 * OCP Microscaling formats, 2023). An element is a small float relative to it: m has a sign, 3 bits of exponent and 4
 * of mantissa, v 4 and 4, both with subnormals. The largest exponent field means the block's exponent. The scale is a
 * power of two. Therefore coding is integer arithmetic on FP32 bits, decoding is exact, and coding a decoded block
 * again gives the same codes. A v that is not zero never becomes zero, because m / sqrt(v) would overflow.
 *
 * 24 bits. The master weight is its BF16 working copy and 8 more bits, split as the exact one is (float.h).
 */
#ifndef LADE_MOMENTS_H
#define LADE_MOMENTS_H

#include "base/float.h"
#include "base/philox.h"
#include "lade/types.h"

/*
 * A block's exponent is FP32's biased one, clamped to these limits. Below the lower limit, steps would be subnormal
 * FP32 numbers, which are slow and negligible beside epsilon. Above the upper limit, codes would mean infinities.
 */
#define LADE_SCALE_MIN 24
#define LADE_SCALE_MAX 254
#define LADE_MANTISSA_BITS 4
#define LADE_MANTISSA_SHIFT (23 - LADE_MANTISSA_BITS)

/* The largest exponent field of m and of v. */
#define LADE_M_TOP 7
#define LADE_V_TOP 15

/* ---- random bits ---- */

#define LADE_DRAW_WORDS 128
#define LADE_DRAW_RUN (4 * LADE_DRAW_WORDS)

/*
 * Return the index, among the LADE_DRAW_WORDS of its run, of the word that @element of a parameter uses. In each group
 * of 32 elements the even ones use the first 16 words, because vector code separates 16-bit numbers in that order.
 */
LADE_INLINE uint32_t lade_draw_place(uint64_t element)
{
  return (uint32_t)((element % LADE_DRAW_WORDS & ~UINT64_C(31)) | (element & 1) << 4 | (element & 31) >> 1);
}

/* Return the shared word @word, rotated for @element. */
LADE_INLINE uint32_t lade_draw_turn(uint32_t word, uint64_t element)
{
  uint32_t turn = (uint32_t)(element / LADE_DRAW_WORDS % 4 * 8);
  return word << turn | word >> (32 - turn) % 32;
}

LADE_INLINE uint32_t lade_draw_word(uint64_t seed, uint32_t step, uint32_t stream, uint64_t element)
{
  uint64_t at = element / LADE_DRAW_RUN * LADE_DRAW_WORDS + lade_draw_place(element);
  return lade_draw_turn(lade_philox_word(seed, step, stream, at), element);
}

LADE_INLINE uint32_t lade_draw_m(uint32_t word)
{
  return word & 0xffff;
}

LADE_INLINE uint32_t lade_draw_v(uint32_t word)
{
  return word >> 16;
}

LADE_INLINE uint32_t lade_draw_master(uint32_t word)
{
  return word >> 12 & 0xff;
}

/* ---- eight bits ---- */

/* The number added to an element's FP32 bits to round them: half a step, or a random part of a step from 16 bits. */
#define LADE_ROUND_NEAREST (1u << (LADE_MANTISSA_SHIFT - 1))

LADE_INLINE uint32_t lade_round_random(uint32_t draw)
{
  return draw << (LADE_MANTISSA_SHIFT - 16);
}

LADE_INLINE uint32_t lade_scale_clamp(uint32_t exponent)
{
  return exponent < LADE_SCALE_MIN ? LADE_SCALE_MIN : exponent > LADE_SCALE_MAX ? LADE_SCALE_MAX : exponent;
}

/* Return the exponent of a magnitude's bits after rounding. A block's scale is the largest of them, clamped. */
LADE_INLINE uint32_t lade_scale_of(uint32_t magnitude, uint32_t rounding)
{
  return (magnitude + rounding) >> 23;
}

/* Return the code of a magnitude, 0 to (top << 4 | 15), in a block of clamped @scale. */
LADE_INLINE uint32_t lade_code_make(uint32_t magnitude, uint32_t scale, uint32_t top, uint32_t rounding)
{
  uint32_t lowest = scale - top, code;
  if (magnitude >= (lowest + 1) << 23) {
    code = ((magnitude + rounding) >> LADE_MANTISSA_SHIFT) - (lowest << LADE_MANTISSA_BITS);
  } else {
    /* The magnitude in subnormal steps, plus 1 and @rounding as a part of a step. */
    float steps = lade_f32_from_bits(magnitude) * lade_f32_from_bits((257 - lowest) << 23);
    code = (uint32_t)(int32_t)(steps + lade_f32_from_bits(0x3f800000u | rounding << LADE_MANTISSA_BITS)) - 1;
  }
  uint32_t max = top << LADE_MANTISSA_BITS | 15;
  return code < max ? code : max;
}

/* Return the magnitude of @code, exactly. */
LADE_INLINE float lade_code_value(uint32_t code, uint32_t scale, uint32_t top)
{
  uint32_t lowest = scale - top;
  if (code >> LADE_MANTISSA_BITS)
    return lade_f32_from_bits((code + (lowest << LADE_MANTISSA_BITS)) << LADE_MANTISSA_SHIFT);
  return (float)code * lade_f32_from_bits((lowest - 3) << 23);
}

LADE_INLINE uint8_t lade_m_code(float m, uint32_t scale, uint32_t rounding)
{
  uint32_t bits = lade_f32_bits(m);
  return (uint8_t)(bits >> 31 << 7 | lade_code_make(bits & 0x7fffffffu, scale, LADE_M_TOP, rounding));
}

LADE_INLINE float lade_m_value(uint8_t code, uint32_t scale)
{
  float magnitude = lade_code_value(code & 0x7f, scale, LADE_M_TOP);
  return lade_f32_from_bits(lade_f32_bits(magnitude) | (uint32_t)(code >> 7) << 31);
}

LADE_INLINE uint8_t lade_v_code(float v, uint32_t scale, uint32_t rounding)
{
  uint32_t bits = lade_f32_bits(v) & 0x7fffffffu, code = lade_code_make(bits, scale, LADE_V_TOP, rounding);
  return (uint8_t)(code ? code : bits != 0);
}

LADE_INLINE float lade_v_value(uint8_t code, uint32_t scale)
{
  return lade_code_value(code, scale, LADE_V_TOP);
}

/* ---- sixteen bits, and twenty-four ---- */

/* Round to BF16 with 16 random bits in place of rounding to nearest. */
LADE_INLINE uint16_t lade_f32_to_bf16_random(float value, uint32_t draw)
{
  return (uint16_t)((lade_f32_bits_quiet(value) + draw) >> 16);
}

/*
 * Split a master weight into BF16 and 8 more bits. @added 0x80 rounds to nearest (half up in magnitude); 8 random bits
 * round stochastically.
 */
LADE_INLINE void lade_master24_split(float master, uint32_t added, uint16_t *ret_bf16, int8_t *ret_residual)
{
  uint32_t bits = (lade_f32_bits_quiet(master) + added) >> 8;
  uint16_t high = (uint16_t)((bits + 0x80u) >> 8);
  *ret_bf16 = high;
  *ret_residual = (int8_t)(uint8_t)(bits - ((uint32_t)high << 8));
}

LADE_INLINE float lade_master24_join(uint16_t bf16, int8_t residual)
{
  return lade_f32_from_bits(((uint32_t)bf16 << 16) + (uint32_t)residual * 256);
}

#endif
