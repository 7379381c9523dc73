/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay: every policy places every trace so that its own check holds, and a budget runs out exactly when it must. A
 * heap that fails at any call gives an error without a leak.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/replay.h"
#include "base/philox.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/names.h"

#define MIB ((uint64_t)1 << 20)
#define LIMIT_NS 20000000 /* of a search that has no other end */
#define PATIENCE_NS 60000000000 /* of a search that ends at its budget, on a busy machine */

static struct lade_error error;

static struct lade_trace trace_read(const char *text)
{
  struct lade_trace trace = {0};
  if (lade_trace_read("t", text, strlen(text), &error, &trace))
    fail_msg("%s", error.text);
  return trace;
}

static struct lade_replay replayed(const struct lade_trace *trace, enum lade_policy policy, uint64_t budget_bytes)
{
  bool has_end = budget_bytes >= trace->peak_live_bytes;
  struct lade_replay_params params = {policy, budget_bytes, has_end ? PATIENCE_NS : LIMIT_NS};
  struct lade_replay replay = {0};
  if (lade_replay(trace, &params, &error, &replay))
    fail_msg("%s: %s", lade_policy_name(policy), error.text);
  return replay;
}

/* Draw random lifetimes and sizes on @n_queues queues. */
static struct lade_trace trace_draw(uint64_t seed, int n_queues)
{
  struct lade_trace trace = {0};
  int live[64], n_live = 0;
  for (uint32_t i = 0; i < 2000; i++) {
    uint32_t word = lade_philox_word(seed, 0, 0, 2 * i), size = lade_philox_word(seed, 0, 0, 2 * i + 1);
    if (n_live == 64 || (n_live && word % 5 < 2)) {
      int which = (int)(word >> 8) % n_live;
      assert_true(lade_trace_free(&trace, live[which], i, (int)i));
      live[which] = live[--n_live];
    } else {
      uint64_t bytes = 1 + size % ((uint64_t)512 << (word >> 16) % 14);
      live[n_live++] = lade_trace_alloc(&trace, bytes, (int)(word >> 24) % n_queues, i, (int)i);
      assert_true(live[n_live - 1] >= 0);
    }
  }
  lade_trace_finish(&trace);
  return trace;
}

static void test_every_policy_holds_live_bytes_on_any_number_of_queues(void **state)
{
  for (uint64_t seed = 1; seed <= 6; seed++) {
    struct lade_trace trace = trace_draw(seed, seed % 2 ? 1 : LADE_TRACE_QUEUES);
    for (int policy = 0; policy < LADE_N_POLICIES; policy++) {
      struct lade_replay replay = replayed(&trace, (enum lade_policy)policy, 0);
      uint64_t peak_bytes = 0;
      for (int i = 0; i < trace.events.n; i++)
        peak_bytes = LADE_MAX(peak_bytes, replay.reserved_bytes[i]);
      assert_true(replay.is_within);
      assert_int_equal(replay.reserved_peak_bytes, peak_bytes);
      assert_true(replay.lower_bound_bytes >= trace.peak_live_bytes);
      assert_true(replay.reserved_peak_bytes >= replay.lower_bound_bytes);
      lade_replay_finish(&replay);
    }
    lade_trace_destroy(&trace);
  }
}

/* Return the policy's need; for the packer the result of its fast pass, which completes whatever the clock says. */
static uint64_t needed_bytes(const struct lade_trace *trace, enum lade_policy policy)
{
  static struct lade_pack_item items[2000];
  static uint64_t offsets[2000];
  struct lade_pack_result result;
  if (policy == LADE_POLICY_PACKED) {
    lade_trace_items(trace, items);
    assert_int_equal(lade_pack(items, trace->blocks.n, NULL, offsets, &result, NULL), 0);
    return result.peak_bytes;
  }
  struct lade_replay replay = replayed(trace, policy, 0);
  uint64_t bytes = replay.reserved_peak_bytes;
  lade_replay_finish(&replay);
  return bytes;
}

/* A budget of the policy's need suffices; a byte under the live peak never does. */
static void test_a_budget_is_enough_exactly_when_the_policy_needs_no_more(void **state)
{
  struct lade_trace trace = trace_draw(7, 3);
  for (int policy = 0; policy < LADE_N_POLICIES; policy++) {
    uint64_t bytes = needed_bytes(&trace, (enum lade_policy)policy);
    struct lade_replay enough = replayed(&trace, (enum lade_policy)policy, bytes);
    assert_true(enough.is_within);
    assert_true(enough.reserved_peak_bytes <= bytes);
    struct lade_replay less = replayed(&trace, (enum lade_policy)policy, trace.peak_live_bytes - 1);
    assert_false(less.is_within);
    assert_true(less.reserved_peak_bytes >= trace.peak_live_bytes);
    assert_in_range(less.out_event, 0, trace.peak_event);
    assert_false(trace.events.items[less.out_event].is_free);
    assert_true(less.out_reserved_bytes < trace.peak_live_bytes);
    lade_replay_finish(&enough);
    lade_replay_finish(&less);
  }
  lade_trace_destroy(&trace);
}

static void test_budgets_below_everything_run_out_at_the_first_call(void **state)
{
  struct lade_trace trace = trace_read("lade-trace 1\nalloc 0 1 3145728 0\nalloc 1 2 3145728 0\nfree 2 1\n");
  static const uint64_t budgets[] = {1, 511, 4096, MIB};
  for (int policy = 0; policy < LADE_N_POLICIES; policy++) {
    for (size_t i = 0; i < LADE_COUNT(budgets); i++) {
      struct lade_replay replay = replayed(&trace, (enum lade_policy)policy, budgets[i]);
      assert_false(replay.is_within);
      assert_int_equal(replay.out_event, 0);
      assert_true(replay.reserved_peak_bytes >= 6 * MIB);
      lade_replay_finish(&replay);
    }
  }
  lade_trace_destroy(&trace);
}

/* A budget beyond any machine's memory changes nothing. */
static void test_a_budget_past_all_memory_is_none(void **state)
{
  struct lade_trace trace = trace_draw(8, 2);
  for (int policy = 0; policy < LADE_POLICY_PACKED; policy++) {
    struct lade_replay none = replayed(&trace, (enum lade_policy)policy, 0);
    struct lade_replay much = replayed(&trace, (enum lade_policy)policy, INT64_MAX);
    assert_int_equal(none.reserved_peak_bytes, much.reserved_peak_bytes);
    lade_replay_finish(&none);
    lade_replay_finish(&much);
  }
  lade_trace_destroy(&trace);
}

static void test_sizes_of_terabytes_cost_no_more_than_others(void **state)
{
  struct lade_trace trace = trace_read("id,lower,upper,size\na,0,1,3000000000000\nb,0,2,3000000000000\nc,1,3,9\n");
  for (int policy = 0; policy < LADE_N_POLICIES; policy++) {
    struct lade_replay replay = replayed(&trace, (enum lade_policy)policy, 0);
    assert_in_range(replay.reserved_peak_bytes, 6000000000000, 6200000000000);
    lade_replay_finish(&replay);
  }
  lade_trace_destroy(&trace);
}

static void test_a_size_that_no_address_range_holds_is_an_error(void **state)
{
  struct lade_trace trace = trace_read("id,lower,upper,size\na,0,1,1152921504606846976\n");
  struct lade_replay_params params = {LADE_POLICY_CACHING, 0, LIMIT_NS};
  struct lade_replay replay = {0};
  assert_int_equal(lade_replay(&trace, &params, &error, &replay), -ENOMEM);
  assert_names(error.text, "caching", "line 2", "call 1 of 2", "1152921504606846976 bytes");
  assert_null(replay.reserved_bytes);
  lade_trace_destroy(&trace);
}

static void test_an_allocation_that_fails_is_an_error_without_a_leak(void **state)
{
  struct lade_trace trace = trace_read("lade-trace 1\nalloc 0 1 100 0\nalloc 1 2 3145728 1\nfree 2 1\n");
  for (int policy = 0; policy < LADE_N_POLICIES; policy++) {
    struct lade_replay_params params = {(enum lade_policy)policy, 0, LIMIT_NS};
    int code = -ENOMEM, n = 1;
    for (; code; n++) {
      struct lade_replay replay = {0};
      allocations_left = n;
      code = lade_replay(&trace, &params, &error, &replay);
      allocations_left = -1;
      assert_true(code == 0 || code == -ENOMEM);
      assert_int_equal(code == 0, replay.reserved_bytes != NULL);
      lade_replay_finish(&replay);
    }
    assert_true(n > 4);
  }
  lade_trace_destroy(&trace);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_policy_holds_live_bytes_on_any_number_of_queues),
      cmocka_unit_test(test_a_budget_is_enough_exactly_when_the_policy_needs_no_more),
      cmocka_unit_test(test_budgets_below_everything_run_out_at_the_first_call),
      cmocka_unit_test(test_a_budget_past_all_memory_is_none),
      cmocka_unit_test(test_sizes_of_terabytes_cost_no_more_than_others),
      cmocka_unit_test(test_a_size_that_no_address_range_holds_is_an_error),
      cmocka_unit_test(test_an_allocation_that_fails_is_an_error_without_a_leak),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
