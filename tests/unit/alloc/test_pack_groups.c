/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contiguous items of the packer. lade_pack_check judges the results, and gets every kind of broken run here. Bounds
 * and claims of optimality are compared with the least peak by definition, which is found by trying every byte.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/philox.h"
#include "lade/pack.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/names.h"

#define ITEMS_MAX 400

static struct lade_pack_item items[ITEMS_MAX];
static uint64_t offsets[ITEMS_MAX];
static uint64_t random_seed, random_n;

static uint32_t draw(uint32_t below)
{
  return lade_philox_word(random_seed, 0, 0, random_n++) % below;
}

static void draw_start(uint64_t seed)
{
  random_seed = seed;
  random_n = 0;
}

static struct lade_pack_result pack(int n, uint64_t work_limit)
{
  struct lade_pack_params params = {.struct_size = sizeof(params), .work_limit = work_limit};
  struct lade_pack_result result;
  struct lade_error error = {0};
  if (lade_pack(items, n, &params, offsets, &result, &error) ||
      lade_pack_check(items, n, offsets, result.peak_bytes, &error))
    fail_msg("%s", error.text);
  uint64_t live;
  assert_int_equal(lade_pack_live_peak(items, n, &live), 0);
  assert_true(result.lower_bound_bytes >= live);
  assert_true(result.peak_bytes >= result.lower_bound_bytes);
  assert_int_equal(result.is_optimal, result.peak_bytes == result.lower_bound_bytes);
  return result;
}

static void test_a_group_lies_in_the_order_of_its_indices_each_at_its_alignment(void **state)
{
  items[0] = (struct lade_pack_item){0, 9, 5, 1, -1, 7};
  items[1] = (struct lade_pack_item){0, 9, 100, 4, -1, 0};
  items[2] = (struct lade_pack_item){0, 9, 3, 8, -1, 7};
  items[3] = (struct lade_pack_item){0, 9, 2, 0, -1, 7};
  items[4] = (struct lade_pack_item){0, 9, 64, 64, -1, 7};
  pack(5, 100000);
  assert_int_equal(offsets[0] % 64, 0);
  assert_int_equal(offsets[2], offsets[0] + 8);
  assert_int_equal(offsets[3], offsets[0] + 11);
  assert_int_equal(offsets[4], offsets[0] + 64);
}

/*
 * Items that begin at multiples of 256 alone cannot use the gaps of such a group: the bound accounts for that and is
 * met.
 */
static void test_gaps_that_nobody_could_use_are_no_reason_to_doubt_the_optimum(void **state)
{
  for (int i = 0; i < 6; i++)
    items[i] = (struct lade_pack_item){0, 4, 300, 256, -1, i < 4 ? 1 : 0};
  struct lade_pack_result result = pack(6, 100000);
  assert_true(result.is_optimal);
  assert_int_equal(result.peak_bytes, 5 * 512 + 300);
}

static void test_a_group_of_one_is_an_item(void **state)
{
  uint64_t alone[60];
  draw_start(3);
  for (int i = 0; i < 60; i++) {
    int lower = (int)draw(40);
    items[i] = (struct lade_pack_item){lower, lower + 1 + (int)draw(20), 1 + draw(500), 1u << draw(5), -1, 0};
  }
  struct lade_pack_result without = pack(60, 1000000);
  memcpy(alone, offsets, sizeof(alone));
  for (int i = 0; i < 60; i++)
    items[i].group = UINT32_MAX - (uint32_t)(59 - i);
  struct lade_pack_result with = pack(60, 1000000);
  assert_memory_equal(alone, offsets, sizeof(alone));
  assert_int_equal(with.peak_bytes, without.peak_bytes);
  assert_int_equal(with.lower_bound_bytes, without.lower_bound_bytes);
}

static void test_a_fixed_member_fixes_its_group(void **state)
{
  items[0] = (struct lade_pack_item){0, 9, 40, 16, -1, 2};
  items[1] = (struct lade_pack_item){0, 9, 64, 32, 192, 2};
  items[2] = (struct lade_pack_item){0, 9, 10, 1, -1, 2};
  items[3] = (struct lade_pack_item){0, 9, 128, 1, -1, 0};
  items[4] = (struct lade_pack_item){0, 9, 24, 8, 232, 0};
  items[4].fixed = 272;
  struct lade_pack_result result = pack(5, 100000);
  assert_int_equal(offsets[0], 128);
  assert_int_equal(offsets[1], 192);
  assert_int_equal(offsets[2], 256);
  assert_int_equal(offsets[3], 0);
  assert_int_equal(result.peak_bytes, 296);
  assert_true(result.is_optimal);
}

/*
 * A fixed group reserves only its members' bytes during their lifetimes: other items, also fixed ones, may lie there.
 */
static void test_bytes_of_a_fixed_member_are_others_while_it_is_not_live(void **state)
{
  items[0] = (struct lade_pack_item){0, 2, 64, 64, 0, 1};
  items[1] = (struct lade_pack_item){2, 4, 64, 64, 64, 1};
  items[2] = (struct lade_pack_item){2, 4, 64, 64, 0, 0};
  items[3] = (struct lade_pack_item){0, 2, 64, 64, -1, 0};
  struct lade_pack_result result = pack(4, 100000);
  assert_int_equal(result.peak_bytes, 128);
  assert_true(result.is_optimal);
}

/* The packer keeps the run for all of its time; the bound still admits that other items could have used it. */
static void test_differing_lifetimes_do_not_raise_the_bound(void **state)
{
  items[0] = (struct lade_pack_item){0, 2, 64, 1, -1, 1};
  items[1] = (struct lade_pack_item){2, 4, 64, 1, -1, 1};
  items[2] = (struct lade_pack_item){2, 4, 64, 1, -1, 0};
  struct lade_pack_result result = pack(3, 100000);
  assert_int_equal(result.lower_bound_bytes, 128);
  assert_int_equal(result.peak_bytes, 192);
  assert_false(result.is_optimal);
  result = pack(2, 100000); /* the run alone: its length is needed, though half of it is live at a time */
  assert_int_equal(result.lower_bound_bytes, 128);
  assert_true(result.is_optimal);
}

/* --- by definition ------------------------------------------------------------------------------------------------ */

static bool is_free(int i, uint64_t offset)
{
  for (int j = 0; j < i; j++)
    if (items[i].lower < items[j].upper && items[j].lower < items[i].upper && offset < offsets[j] + items[j].bytes &&
        offsets[j] < offset + items[i].bytes)
      return false;
  return true;
}

/* True if items @i to @n - 1 have places below @height, given the earlier ones. Tries all places. */
static bool rest_fits(int i, int n, uint64_t height)
{
  if (i == n)
    return true;
  uint64_t align = LADE_MAX(items[i].align, 1), first = 0, last = height;
  bool is_follower = false;
  for (int j = 0; j < n && items[i].group; j++)
    if (items[j].group == items[i].group) {
      if (j < i) {
        first = last = (offsets[j] + items[j].bytes + items[i].align - 1) / items[i].align * items[i].align;
        is_follower = true;
      } else if (!is_follower) {
        align = LADE_MAX(align, items[j].align);
      }
    }
  for (uint64_t offset = first; offset <= last && offset + items[i].bytes <= height; offset++) {
    offsets[i] = offset;
    if (offset % align == 0 && (items[i].fixed < 0 || items[i].fixed == (int64_t)offset) && is_free(i, offset) &&
        rest_fits(i + 1, n, height))
      return true;
  }
  return false;
}

static void few_make(int n)
{
  for (int i = 0; i < n; i++) {
    int lower = (int)draw(4);
    items[i] = (struct lade_pack_item){lower, lower + 1 + (int)draw(3), 1 + draw(4), 1u << draw(3), -1, draw(3)};
    if (draw(8) == 0)
      items[i].fixed = (int64_t)(draw(3) * items[i].align);
    if (draw(2)) { /* often of one lifetime: then the merged problem is the true one */
      items[i].lower = 1;
      items[i].upper = 3;
    }
  }
}

static void test_bounds_and_proofs_hold_for_the_smallest_peak_by_definition(void **state)
{
  int n_optimal = 0, n_above = 0, n_refused = 0, n_fixed = 0;
  for (int round = 0; round < 3000; round++) {
    draw_start(100 + (uint64_t)round);
    const int n = 2 + (int)draw(4), height_max = 40;
    struct lade_pack_params params = {.struct_size = sizeof(params), .work_limit = 1000000};
    struct lade_pack_result result;
    struct lade_error error = {0};
    few_make(n);
    int rc = lade_pack(items, n, &params, offsets, &result, &error);
    if (!rc && lade_pack_check(items, n, offsets, result.peak_bytes, &error))
      fail_msg("round %d: %s", round, error.text);
    uint64_t height = 1;
    while (height <= height_max && !rest_fits(0, n, height))
      height++;
    if (rc) { /* no packing may exist */
      assert_int_equal(rc, -EINVAL);
      assert_int_equal(height, height_max + 1);
      n_refused++;
      continue;
    }
    assert_true(result.peak_bytes >= height);
    assert_true(result.lower_bound_bytes <= height);
    assert_int_equal(result.is_optimal, result.peak_bytes == result.lower_bound_bytes);
    assert_int_equal(lade_pack_check(items, n, offsets, height, &error), 0);
    n_optimal += result.is_optimal;
    n_above += result.peak_bytes > height;
    for (int i = 0; i < n; i++)
      n_fixed += items[i].fixed >= 0;
  }
  assert_true(n_optimal > 1000 && n_above > 10 && n_refused > 100 && n_fixed > 100);
}

static void test_random_groups_beside_fixed_items_are_sound(void **state)
{
  lade_packer *packer;
  assert_int_equal(lade_packer_create(&packer), 0);
  for (int round = 0; round < 200; round++) {
    struct lade_pack_params params = {.struct_size = sizeof(params), .work_limit = round % 2 ? 2000000 : 0};
    struct lade_pack_result result;
    struct lade_error error = {0};
    draw_start(9000 + (uint64_t)round);
    const int n = 20 + (int)draw(ITEMS_MAX - 20);
    const uint32_t n_groups = 1 + draw(40);
    for (int i = 0; i < n; i++) {
      int lower = (int)draw(1000) - 500;
      int64_t fixed = i < 5 ? (int64_t)i * 65536 : -1;
      items[i] = (struct lade_pack_item){lower, lower + 1 + (int)draw(200), 1 + draw(60000), 1u << draw(13), fixed, 0};
      if (i >= 4 && draw(2)) /* 4: highest of the fixed, so that a run has space above it */
        items[i].group = 1 + draw(n_groups);
    }
    if (lade_packer_pack(packer, items, n, &params, offsets, &result, &error) ||
        lade_pack_check(items, n, offsets, result.peak_bytes, &error))
      fail_msg("round %d: %s", round, error.text);
  }
  lade_packer_destroy(packer);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

/* Check that the items are refused with @code and a line with all @names, which end with NULL. */
static void refused(int n, int code, const char *const *names)
{
  struct lade_pack_result result = {.peak_bytes = 77};
  struct lade_error error = {0};
  offsets[0] = 77;
  assert_int_equal(lade_pack(items, n, NULL, offsets, &result, &error), code);
  names_verify(error.text, names, __FILE__, __LINE__);
  assert_int_equal(result.peak_bytes, 77);
  assert_int_equal(offsets[0], 77);
}

static void test_fixed_members_that_contradict_are_refused_by_number(void **state)
{
  items[0] = (struct lade_pack_item){0, 9, 64, 64, 0, 0};
  items[1] = (struct lade_pack_item){0, 9, 64, 64, 64, 5};
  items[2] = (struct lade_pack_item){0, 9, 64, 64, -1, 5};
  items[3] = (struct lade_pack_item){0, 9, 64, 64, 256, 5};
  refused(4, -EINVAL, NAMES("item 3", "offset 256", "item 1", "192"));
  items[1].fixed = -1;
  items[3].fixed = 64;
  refused(4, -EINVAL, NAMES("item 3", "offset 64", "-64"));
  items[1].align = 512;
  items[3].fixed = 256 + 128;
  refused(4, -EINVAL, NAMES("item 3", "offset 384", "256"));
  items[1].align = 64;
  items[3].fixed = 128;
  refused(4, -EINVAL, NAMES("items 0 and 1", "fixed"));
}

static void test_sums_of_groups_end_at_half_of_what_others_may_have(void **state)
{
  items[0] = (struct lade_pack_item){0, 9, (uint64_t)1 << 60, 64, -1, 1};
  items[1] = (struct lade_pack_item){0, 9, (uint64_t)1 << 60, 64, -1, 1};
  refused(2, -EOVERFLOW, NAMES("2^62"));
  items[0].group = items[1].group = 0;
  pack(2, 0);
  items[0].group = items[1].group = 1;
  items[1].bytes -= 129;
  pack(2, 0);
}

/* Fail the Nth allocation and all after it. */
static void test_without_memory_there_is_an_error(void **state)
{
  int rc = -1, n_refused = 0;
  for (int i = 0; i < 12; i++)
    items[i] = (struct lade_pack_item){i / 4, 3 + i / 4, 10 + (uint64_t)i, 4, i % 4 ? -1 : 256 * i, (uint32_t)i / 3};
  items[8].group = items[11].group = 0;
  for (int n = 1; n < 100 && rc; n++) {
    struct lade_pack_result result = {.peak_bytes = 77};
    struct lade_error error = {0};
    allocations_left = n;
    rc = lade_pack(items, 12, NULL, offsets, &result, &error);
    allocations_left = -1;
    if (rc && (rc != -ENOMEM || !error.text[0] || result.peak_bytes != 77))
      fail_msg("allocation %d: %s", n, error.text);
    n_refused += rc != 0;
    for (int k = 1; !rc && k <= 3; k++) {
      allocations_left = k;
      assert_int_equal(lade_pack_check(items, 12, offsets, result.peak_bytes, &error), -ENOMEM);
      allocations_left = -1;
    }
  }
  assert_int_equal(rc, 0);
  assert_true(n_refused >= 5);
}

static void broken(int n, uint64_t peak, const char *word)
{
  struct lade_error error = {0};
  assert_int_equal(lade_pack_check(items, n, offsets, peak, &error), -EBADMSG);
  if (!strstr(error.text, word))
    fail_msg("\"%s\" lacks \"%s\"", error.text, word);
}

static void test_checker_sees_every_broken_run(void **state)
{
  items[0] = (struct lade_pack_item){0, 9, 10, 8, -1, 1};
  items[1] = (struct lade_pack_item){0, 9, 10, 16, -1, 1};
  items[2] = (struct lade_pack_item){0, 9, 10, 1, -1, 2};
  items[3] = (struct lade_pack_item){0, 9, 10, 1, -1, 1};
  const uint64_t good[] = {32, 48, 0, 58};
  memcpy(offsets, good, sizeof(good));
  assert_int_equal(lade_pack_check(items, 4, offsets, 68, NULL), 0);
  offsets[3] = 59; /* a byte too far */
  broken(4, 69, "item 3 of group 1 lies at 59, not behind item 1, which ends at 58");
  offsets[3] = 57;
  broken(4, 67, "item 3 of group 1");
  offsets[3] = 10; /* below */
  broken(4, 58, "item 3 of group 1");
  offsets[3] = 58 + 16;
  offsets[1] = 64; /* one multiple too far */
  broken(4, 84, "item 1 of group 1 lies at 64, not behind item 0, which ends at 42");
  offsets[0] = 8; /* contiguous, but the first does not meet the largest alignment */
  offsets[1] = 32;
  offsets[3] = 42;
  offsets[2] = 52;
  broken(4, 62, "item 0, the first of group 1, lies at 8, which is not a multiple of 16 as item 1");
  offsets[1] = 32; /* not in the order of the indices */
  offsets[0] = 48;
  offsets[3] = 58;
  broken(4, 68, "item 1 of group 1");
  offsets[0] = UINT64_MAX - 15; /* the next multiple is past 2^64 */
  offsets[1] = 0;
  offsets[3] = 10;
  broken(4, UINT64_MAX - 5, "item 1 of group 1");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_group_lies_in_the_order_of_its_indices_each_at_its_alignment),
      cmocka_unit_test(test_gaps_that_nobody_could_use_are_no_reason_to_doubt_the_optimum),
      cmocka_unit_test(test_a_group_of_one_is_an_item),
      cmocka_unit_test(test_a_fixed_member_fixes_its_group),
      cmocka_unit_test(test_bytes_of_a_fixed_member_are_others_while_it_is_not_live),
      cmocka_unit_test(test_differing_lifetimes_do_not_raise_the_bound),
      cmocka_unit_test(test_bounds_and_proofs_hold_for_the_smallest_peak_by_definition),
      cmocka_unit_test(test_random_groups_beside_fixed_items_are_sound),
      cmocka_unit_test(test_fixed_members_that_contradict_are_refused_by_number),
      cmocka_unit_test(test_sums_of_groups_end_at_half_of_what_others_may_have),
      cmocka_unit_test(test_without_memory_there_is_an_error),
      cmocka_unit_test(test_checker_sees_every_broken_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
