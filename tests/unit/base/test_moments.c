/* SPDX-License-Identifier: Apache-2.0 */
/* The compact forms of optimizer state: representable values stay, and rounded values are right on average. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/moments.h"

static const uint32_t scales[] = {LADE_SCALE_MIN, 60, 100, 127, 200, LADE_SCALE_MAX};

/* Nearest rounding and all random bits return the code, so a saved and loaded block is the same block. */
static void a_decoded_value_codes_as_itself(void **state)
{
  static const uint32_t draws[] = {0, 1, 0x7fff, 0x8000, 0xffff};
  for (size_t s = 0; s < LADE_COUNT(scales); s++) {
    for (int code = 0; code < 256; code++) {
      float m = lade_m_value((uint8_t)code, scales[s]), v = lade_v_value((uint8_t)code, scales[s]);
      assert_true(isfinite(m) && isfinite(v) && v >= 0);
      assert_int_equal(lade_m_code(m, scales[s], LADE_ROUND_NEAREST), code);
      assert_int_equal(lade_v_code(v, scales[s], LADE_ROUND_NEAREST), code);
      for (size_t d = 0; d < LADE_COUNT(draws); d++) {
        assert_int_equal(lade_m_code(m, scales[s], lade_round_random(draws[d])), code);
        assert_int_equal(lade_v_code(v, scales[s], lade_round_random(draws[d])), code);
      }
    }
  }
}

/* The block's scale follows from its largest element, whatever its mantissa. */
static void a_block_keeps_its_scale(void **state)
{
  for (size_t s = 0; s < LADE_COUNT(scales); s++) {
    for (int mantissa = 0; mantissa < 16; mantissa++) {
      float m = lade_m_value((uint8_t)(LADE_M_TOP << 4 | mantissa), scales[s]);
      float v = lade_v_value((uint8_t)(LADE_V_TOP << 4 | mantissa), scales[s]);
      assert_int_equal(lade_scale_clamp(lade_scale_of(lade_f32_bits(m), LADE_ROUND_NEAREST)), scales[s]);
      assert_int_equal(lade_scale_clamp(lade_scale_of(lade_f32_bits(v), LADE_ROUND_NEAREST)), scales[s]);
      assert_int_equal(lade_scale_clamp(lade_scale_of(lade_f32_bits(v), lade_round_random(0xffff))), scales[s]);
    }
  }
}

static void codes_rise_with_their_values(void **state)
{
  for (int code = 1; code < 256; code++)
    assert_true(lade_v_value((uint8_t)code, 127) > lade_v_value((uint8_t)(code - 1), 127));
  for (int code = 1; code < 128; code++) {
    assert_true(lade_m_value((uint8_t)code, 127) > lade_m_value((uint8_t)(code - 1), 127));
    assert_true(lade_m_value((uint8_t)(code | 0x80), 127) == -lade_m_value((uint8_t)code, 127));
  }
}

/* Over all random bits the mean of the stored values is the value, to a part in 2^16 of a step. */
static void random_rounding_is_right_on_average(void **state)
{
  static const float values[] = {1.0f, 1.001f, 0.3f, 0.0371f, 0.0101f, 0.0031f};
  for (size_t i = 0; i < LADE_COUNT(values); i++) {
    double m = 0, v = 0, bf16 = 0, master = 0;
    const float x = values[i];
    for (uint32_t draw = 0; draw < 0x10000; draw++) {
      uint16_t high;
      int8_t low;
      m += (double)lade_m_value(lade_m_code(-x, 127, lade_round_random(draw)), 127);
      v += (double)lade_v_value(lade_v_code(x, 127, lade_round_random(draw)), 127);
      bf16 += (double)lade_bf16_to_f32(lade_f32_to_bf16_random(x, draw));
      lade_master24_split(x, draw >> 8, &high, &low);
      master += (double)lade_master24_join(high, low);
    }
    const double n = 0x10000, step = ldexp(1, (int)floor(log2((double)x)));
    assert_true(fabs(m / n + (double)x) <= fmax(step, 0x1p-6) * 0x1p-4 * 0x1p-14);
    assert_true(fabs(v / n - (double)x) <= step * 0x1p-4 * 0x1p-14);
    assert_true(fabs(bf16 / n - (double)x) <= step * 0x1p-7 * 0x1p-15);
    assert_true(fabs(master / n - (double)x) <= step * 0x1p-15 * 0x1p-7);
  }
}

/* (1-beta2) of a second moment is far below half a step, but changes it on average. */
static void a_second_moment_does_not_stall(void **state)
{
  float wide = 1, eight = 1, sixteen = 1;
  for (uint32_t t = 0; t < 3000; t++) {
    wide *= 0.999f;
    eight *= 0.999f;
    sixteen *= 0.999f;
    uint32_t draw = lade_draw_v(lade_draw_word(5, t, 0, 0));
    eight = lade_v_value(lade_v_code(eight, 127, lade_round_random(draw)), 127);
    sixteen = lade_bf16_to_f32(lade_f32_to_bf16_random(sixteen, draw));
  }
  assert_true(eight < 2 * wide && eight > wide / 2);
  assert_true(sixteen < 1.25f * wide && sixteen > wide / 1.25f);
}

/* m / sqrt(v) must not become m / 0. */
static void a_positive_second_moment_stays_positive(void **state)
{
  for (uint32_t draw = 0; draw < 0x10000; draw += 255) {
    assert_int_equal(lade_v_code(0x1p-140f, 127, lade_round_random(draw)), 1);
    assert_true(lade_v_code(0x1p-19f, 127, lade_round_random(draw)) >= 1);
    assert_int_equal(lade_v_code(0, 127, lade_round_random(draw)), 0);
  }
}

static void infinity_is_the_largest_code(void **state)
{
  assert_int_equal(lade_scale_clamp(lade_scale_of(0x7f800000, lade_round_random(0xffff))), LADE_SCALE_MAX);
  assert_int_equal(lade_v_code(INFINITY, LADE_SCALE_MAX, LADE_ROUND_NEAREST), 0xff);
  assert_int_equal(lade_m_code(-INFINITY, LADE_SCALE_MAX, LADE_ROUND_NEAREST), 0xff);
}

/* Every number of the 2^24 values that the split can represent is stored exactly, with any random bits. */
static void a_24_bit_master_joins_as_it_was_split(void **state)
{
  for (uint32_t top = 0; top < 1u << 24; top += 11) {
    float master = lade_f32_from_bits(top << 8);
    for (uint32_t added = 0; added < 256; added += 85) {
      uint16_t high;
      int8_t low;
      lade_master24_split(master, added, &high, &low);
      if (isnan(master))
        assert_true(isnan(lade_master24_join(high, low)) && isnan(lade_bf16_to_f32(high)));
      else
        assert_int_equal(lade_f32_bits(lade_master24_join(high, low)), top << 8);
    }
  }
}

/* Each element's bits are uniform on their own: the mean of any one bit over a run is near a half. */
static void every_bit_of_a_word_is_drawn(void **state)
{
  enum { N = 1 << 14 };
  int ones[32] = {0};
  for (uint64_t element = 0; element < N; element++) {
    uint32_t word = lade_draw_word(11, 3, 9, element);
    for (int bit = 0; bit < 32; bit++)
      ones[bit] += (int)(word >> bit & 1);
  }
  for (int bit = 0; bit < 32; bit++)
    assert_in_range(ones[bit], N / 2 - 512, N / 2 + 512); /* four elements share a word: eight deviations */
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_decoded_value_codes_as_itself),
      cmocka_unit_test(a_block_keeps_its_scale),
      cmocka_unit_test(codes_rise_with_their_values),
      cmocka_unit_test(random_rounding_is_right_on_average),
      cmocka_unit_test(a_second_moment_does_not_stall),
      cmocka_unit_test(a_positive_second_moment_stays_positive),
      cmocka_unit_test(infinity_is_the_largest_code),
      cmocka_unit_test(a_24_bit_master_joins_as_it_was_split),
      cmocka_unit_test(every_bit_of_a_word_is_drawn),
  };
  return cmocka_run_group_tests_name("compact optimizer state", tests, NULL, NULL);
}
