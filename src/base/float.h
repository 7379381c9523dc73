/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions between FP32 and the 16-bit types, and the exact split of a master weight.
 *
 * Rounding to BF16 and FP16 is to nearest, ties to even; NaN stays NaN (quiet). The split of a master weight rounds
 * differently: half up in magnitude, so that (bf16 << 16) + residual gives back every FP32 bit (docs/numbers.md has the
 * proof).
 */
#ifndef LADE_FLOAT_H
#define LADE_FLOAT_H

#include <stdint.h>
#include <string.h>

#include "base/inline.h"

LADE_INLINE uint32_t lade_f32_bits(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

LADE_INLINE float lade_f32_from_bits(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

LADE_INLINE float lade_bf16_to_f32(uint16_t value)
{
  return lade_f32_from_bits((uint32_t)value << 16);
}

LADE_INLINE uint16_t lade_f32_to_bf16(float value)
{
  uint32_t bits = lade_f32_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

/* Convert exactly, by bits, because not every compiler has _Float16 for every target. */
LADE_INLINE float lade_f16_to_f32(uint16_t value)
{
  uint32_t sign = (uint32_t)(value & 0x8000) << 16;
  uint32_t exponent = (value >> 10) & 0x1f, mantissa = value & 0x3ff;
  if (exponent == 0x1f)
    return lade_f32_from_bits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent)
    return lade_f32_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
  float magnitude = (float)mantissa * 0x1p-24f; /* subnormal: exact in FP32 */
  return lade_f32_from_bits(sign | lade_f32_bits(magnitude));
}

LADE_INLINE uint16_t lade_f32_to_f16(float value)
{
  uint32_t bits = lade_f32_bits(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return (uint16_t)(sign | 0x7e00);
  if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
    return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x38800000u) { /* below 2^-14: let FP32 addition round at the subnormal's unit */
    float shifted = lade_f32_from_bits(magnitude) + 0.5f;
    return (uint16_t)(sign | (lade_f32_bits(shifted) - lade_f32_bits(0.5f)));
  }
  uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

/*
 * Return the bits of @x, for arithmetic on them: every NaN as the quiet one without a payload. A GPU's NaN has all bits
 * set, and the carry of rounding would make it -0.
 */
LADE_INLINE uint32_t lade_f32_bits_quiet(float x)
{
  return x != x ? 0x7fc00000u : lade_f32_bits(x);
}

/*
 * Split a master weight into working copy and residual (docs/numbers.md). lade_master_join is the inverse. Exact for
 * all but NaN, which stays one.
 */
LADE_INLINE void lade_master_split(float master, uint16_t *ret_bf16, int16_t *ret_residual)
{
  uint32_t bits = lade_f32_bits_quiet(master);
  uint16_t high = (uint16_t)((bits + 0x8000u) >> 16);
  *ret_bf16 = high;
  *ret_residual = (int16_t)(uint16_t)(bits - ((uint32_t)high << 16));
}

LADE_INLINE float lade_master_join(uint16_t bf16, int16_t residual)
{
  return lade_f32_from_bits(((uint32_t)bf16 << 16) + (uint32_t)(int32_t)residual);
}

#endif
