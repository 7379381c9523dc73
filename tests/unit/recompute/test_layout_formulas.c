/* SPDX-License-Identifier: Apache-2.0 */
/* Published formulas of memory against the tables that their authors printed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "recompute/layout_cost.h"

/* ZeRO's table 1 (arXiv 1910.02054): 7.5, 128 and 1000 billion parameters, decimal gigabytes as printed. */
static const double zero_table[][10] = {
    {1, 120, 120, 120, 2048, 2048, 2048, 16000, 16000, 16000},
    {4, 52.5, 41.3, 30, 896, 704, 512, 7000, 5500, 4000},
    {16, 35.6, 21.6, 7.5, 608, 368, 128, 4750, 2875, 1000},
    {64, 31.4, 16.6, 1.88, 536, 284, 32, 4187, 2218, 250},
    {256, 30.4, 15.4, 0.47, 518, 263, 8, 4046, 2054, 62.5},
    {1024, 30.1, 15.1, 0.12, 513, 257, 2, 4011, 2013, 15.6}};

static double unit_in_last_place(double printed)
{
  for (double unit = 1; unit > 0.005; unit /= 10) {
    if (fabs(printed / unit - round(printed / unit)) < 1e-6)
      return unit;
  }
  return 0.01;
}

static void model_states_are_those_of_zero_table_1(void **state)
{
  static const double billions[] = {7.5, 128, 1000};
  for (size_t row = 0; row < LADE_COUNT(zero_table); row++) {
    for (int column = 0; column < 9; column++) {
      const double printed = zero_table[row][column + 1];
      const double found = lade_zero_bytes_per_param(column % 3 + 1, zero_table[row][0]) * billions[column / 3];
      assert_true(fabs(found - printed) <= unit_in_last_place(printed) + 1e-9);
    }
  }
}

/* Korthikanti et al., figure 1, in GiB per device: without recompute, and with sequence parallel and selective. */
static void activations_are_those_of_korthikanti(void **state)
{
  static const struct {
    int64_t heads, width, layers, micro_batch;
    int pp, v;
    double none, selective;
  } rows[] = {{64, 6144, 48, 4, 1, 1, 59.25, 9.5625},
              {96, 12288, 96, 1, 8, 3, 66.84375, 12.3515625},
              {128, 20480, 105, 1, 35, 3, 114.0234375, 23.076171875},
              {160, 25600, 128, 1, 64, 1, 131.25, 26.5625}};
  for (size_t i = 0; i < LADE_COUNT(rows); i++) {
    const struct lade_model model = {.heads = rows[i].heads, .width = rows[i].width};
    const double layers = lade_korthikanti_in_flight(rows[i].layers, rows[i].pp, rows[i].v) / 0x1p30;
    const int64_t b = rows[i].micro_batch;
    assert_true(layers * lade_korthikanti_layer_bytes(&model, b, 2048, 8, false, LADE_RECIPE_NONE) == rows[i].none);
    assert_true(fabs(layers * lade_korthikanti_layer_bytes(&model, b, 2048, 8, true, LADE_RECIPE_SELECTIVE) -
                     rows[i].selective) < 1e-9);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(model_states_are_those_of_zero_table_1),
      cmocka_unit_test(activations_are_those_of_korthikanti),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
