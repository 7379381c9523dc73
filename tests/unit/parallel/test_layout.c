/* SPDX-License-Identifier: Apache-2.0 */
/* A layout distributes the whole batch, and names in one line an option that would have no effect. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/layout.h"
#include "tests/support/names.h"

#define PARAMS(...) (struct lade_layout_params){.struct_size = sizeof(struct lade_layout_params), __VA_ARGS__}

static struct lade_layout layout_make(struct lade_layout_params params)
{
  struct lade_layout layout;
  struct lade_error error = {0};
  if (lade_layout_init(&params, &error, &layout))
    fail_msg("%s", error.text);
  return layout;
}

static void a_layout_is_named_by_its_axes(void **state)
{
  char name[LADE_LAYOUT_NAME_BYTES];
  const struct {
    struct lade_layout_params params;
    const char *name;
  } rows[] = {
      {PARAMS(.world = 1), "one rank"},
      {PARAMS(.world = 8, .tp = 2, .pp = 2), "tp2 pp2 dp2, 1f1b"},
      {PARAMS(.world = 4, .zero = 3, .shard = 2), "dp4, zero 3 over 2"},
      {PARAMS(.tp = 4, .is_sequence = true), "tp4, sequence parallel"},
      {PARAMS(.pp = 2, .schedule = LADE_SCHEDULE_INTERLEAVED, .virtual_stages = 3), "pp2, interleaved x3"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
    struct lade_layout layout = layout_make(rows[i].params);
    assert_string_equal(lade_layout_name(&layout, name), rows[i].name);
  }
  assert_string_equal(lade_layout_name(NULL, name), "one rank");
}

static void options_without_effect_are_refused(void **state)
{
  const struct {
    struct lade_layout_params params;
    const char *names[4];
  } rows[] = {
      {PARAMS(.world = 2, .rank = 2), {"rank 2", "world of 2"}},
      {PARAMS(.world = 4, .tp = 3), {"tp 3", "4"}},
      {PARAMS(.world = 4, .dp = 2), {"dp 2", "dp 4"}},
      {PARAMS(.world = 4, .zero = 4), {"zero 4", "0 to 3"}},
      {PARAMS(.world = 4, .zero = -1), {"zero -1", "0 to 3"}},
      {PARAMS(.world = 1, .zero = 1), {"zero 1", "dp"}},
      {PARAMS(.world = 4, .shard = 2), {"shard 2", "zero 1"}},
      {PARAMS(.world = 4, .zero = 1, .shard = 3), {"shard 3", "dp 4"}},
      {PARAMS(.world = 2, .grad_reduce = LADE_F16), {"fp32", "bf16"}},
      {PARAMS(.world = 2, .is_sequence = true), {"--tp", "leave sequence parallel out"}},
      {PARAMS(.world = 2, .schedule = LADE_SCHEDULE_ZBH1), {"zbh1", "pp"}},
      {PARAMS(.world = 2, .virtual_stages = 2), {"virtual stages 2", "pp is 1"}},
      {PARAMS(.pp = 2, .schedule = LADE_SCHEDULE_INTERLEAVED), {"interleaved", "2 virtual stages"}},
      {PARAMS(.pp = 2, .virtual_stages = 2), {"virtual stages 2", "interleaved", "1f1b"}},
      {PARAMS(.pp = 2, .schedule = (enum lade_schedule)9), {"schedule 9"}},
      {PARAMS(.pp = 2, .virtual_stages = -1), {"virtual stages -1"}},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
    struct lade_layout layout = {.rank = 77};
    struct lade_error error = {0};
    assert_int_equal(lade_layout_init(&rows[i].params, &error, &layout), -EINVAL);
    names_verify(error.text, rows[i].names, __FILE__, __LINE__);
    assert_int_equal(layout.rank, 77);
  }
}

static void replicas_share_the_whole_batch(void **state)
{
  const struct lade_layout layout = layout_make(PARAMS(.world = 8, .tp = 2));
  int64_t micro_rows = 0;
  int n_microbatches = 0;
  assert_int_equal(lade_layout_share_batch(&layout, 24, 0, NULL, &micro_rows, &n_microbatches), 0);
  assert_int_equal(micro_rows, 6);
  assert_int_equal(n_microbatches, 1);
  assert_int_equal(lade_layout_share_batch(&layout, 24, 2, NULL, &micro_rows, &n_microbatches), 0);
  assert_int_equal(n_microbatches, 3);
  struct lade_error error = {0};
  assert_int_equal(lade_layout_share_batch(&layout, 30, 0, &error, &micro_rows, &n_microbatches), -EINVAL);
  assert_names(error.text, "dp 4", "--batch 30", "1, 2, 3, 5, 6, 10, 15, 30");
  assert_int_equal(lade_layout_share_batch(&layout, 24, 4, &error, &micro_rows, &n_microbatches), -EINVAL);
  assert_names(error.text, "--micro-batch 4", "--batch 24", "1, 2, 3, 6");
  assert_int_equal(lade_layout_share_batch(NULL, 24, 5, &error, &micro_rows, &n_microbatches), -EINVAL);
  assert_names(error.text, "--micro-batch 5", "--batch 24", "1, 2, 3, 4, 6, 8, 12, 24");
}

static void remaining_ranks_get_a_layout(void **state)
{
  const struct {
    struct lade_layout_params before;
    int world;
    int64_t n_rows, micro_rows;
    const char *name; /* NULL: no such layout exists */
  } rows[] = {
      {PARAMS(.dp = 4), 3, 8, 0, "dp2"}, /* 3 does not divide 8 */
      {PARAMS(.dp = 4), 3, 12, 0, "dp3"},
      {PARAMS(.dp = 4), 3, 12, 6, "dp2"}, /* with 3 ranks 6 does not divide the 4 rows of each */
      {PARAMS(.dp = 4, .zero = 3), 1, 8, 0, "one rank"},
      {PARAMS(.dp = 4, .zero = 3, .shard = 2), 3, 9, 0, "dp3, zero 3 over 3"},
      {PARAMS(.dp = 2, .grad_reduce = LADE_BF16), 1, 8, 0, "one rank"},
      {PARAMS(.dp = 3, .grad_reduce = LADE_BF16), 2, 8, 0, "dp2, sums in bf16"},
      {PARAMS(.tp = 2, .pp = 2, .dp = 2), 7, 8, 0, "tp2 pp2, 1f1b"},
      {PARAMS(.tp = 2, .pp = 2, .dp = 2), 3, 8, 0, "tp2"},
      {PARAMS(.tp = 2, .is_sequence = true), 1, 8, 0, "one rank"},
      {PARAMS(.pp = 2, .schedule = LADE_SCHEDULE_INTERLEAVED, .virtual_stages = 3), 1, 8, 0, "one rank"},
      {PARAMS(.dp = 2), 0, 8, 0, NULL},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
    struct lade_layout_params after = rows[i].before;
    char name[LADE_LAYOUT_NAME_BYTES];
    const int status = lade_layout_shrink(&rows[i].before, rows[i].world, rows[i].n_rows, rows[i].micro_rows, &after);
    assert_int_equal(status, rows[i].name ? 0 : -EINVAL);
    if (status)
      continue;
    const struct lade_layout layout = layout_make(after);
    assert_string_equal(lade_layout_name(&layout, name), rows[i].name);
    assert_true(layout.mesh.world <= rows[i].world);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_layout_is_named_by_its_axes),
      cmocka_unit_test(options_without_effect_are_refused),
      cmocka_unit_test(replicas_share_the_whole_batch),
      cmocka_unit_test(remaining_ranks_get_a_layout),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
