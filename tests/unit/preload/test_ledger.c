/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger's sums equal the memory held, whatever the driver answers, and a budget is never exceeded. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "preload/ledger.h"
#include "tests/support/heap/allocations.h"

#define MIB ((uint64_t)1 << 20)

struct ledger_fixture {
  struct lade_ledger_record record;
  lade_ledger *ledger;
};

static void program_fixture_init(struct ledger_fixture *fixture, const char *budget_text, uint64_t total_bytes)
{
  struct lade_ledger_budget budget;
  memset(fixture, 0, sizeof(*fixture));
  assert_int_equal(lade_ledger_budget_parse(budget_text, &budget, NULL), 0);
  assert_int_equal(lade_ledger_create(&fixture->record, &budget, &fixture->ledger), 0);
  lade_ledger_device(fixture->ledger, 0, total_bytes);
}

static int hold(struct ledger_fixture *fixture, int account, enum lade_ledger_kind kind, uint64_t key, uint64_t bytes)
{
  struct lade_holding *holding = NULL;
  int status = lade_ledger_charge(fixture->ledger, account, kind, bytes, NULL, &holding);
  if (!status)
    assert_int_equal(lade_ledger_settle(fixture->ledger, holding, LADE_LEDGER_ADDRESSES, key, bytes), 0);
  return status;
}

static bool give(struct ledger_fixture *fixture, enum lade_ledger_space space, uint64_t key)
{
  struct lade_holding *holding = lade_ledger_take(fixture->ledger, space, key);
  if (holding)
    lade_ledger_drop(fixture->ledger, holding);
  return holding != NULL;
}

static uint64_t free_bytes(struct ledger_fixture *fixture)
{
  uint64_t free_bytes = UINT64_MAX, total_bytes = UINT64_MAX;
  lade_ledger_bound(fixture->ledger, 0, &free_bytes, &total_bytes);
  return free_bytes;
}

static void budgets_are_sizes_or_parts_of_a_device(void **state)
{
  static const char *const wrong[] = {"x", "0", "-1", "0%", "100.1%", "%", "nan%", "-1%", "5%%", "5%device", " ",
                                      "0x10%", " 60%", "0x10%dev"};
  struct lade_ledger_budget budget = {.bytes = 7};
  struct lade_error error = {0};
  for (size_t i = 0; i < LADE_COUNT(wrong); i++) {
    assert_int_equal(lade_ledger_budget_parse(wrong[i], &budget, &error), -EINVAL);
    assert_non_null(strstr(error.text, wrong[i]));
    assert_int_equal(budget.bytes, 7);
  }
  struct ledger_fixture fixture;
  const struct {
    const char *text;
    uint64_t bytes;
  } right[] = {{"", UINT64_MAX}, {"12MiB", 12 * MIB}, {"50%", 50 * MIB}, {"100%dev", 100 * MIB}, {"0.5%", MIB / 2}};
  for (size_t i = 0; i < LADE_COUNT(right); i++) {
    program_fixture_init(&fixture, right[i].text, 100 * MIB);
    assert_int_equal(fixture.record.accounts[0].budget_bytes, right[i].bytes);
    assert_int_equal(free_bytes(&fixture), right[i].bytes);
    lade_ledger_destroy(fixture.ledger);
  }
  /* The device does not report its memory: a budget in bytes holds, and a share of an unknown size is no budget. */
  program_fixture_init(&fixture, "12MiB", 0);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_LINEAR, 1, 12 * MIB + 1), -EOVERFLOW);
  lade_ledger_destroy(fixture.ledger);
  program_fixture_init(&fixture, "50%", 0);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_LINEAR, 1, 1), -EOVERFLOW);
  lade_ledger_destroy(fixture.ledger);
}

static void the_last_byte_is_granted_and_no_more(void **state)
{
  struct ledger_fixture fixture;
  program_fixture_init(&fixture, "10MiB", 64 * MIB);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_LINEAR, 1, 10 * MIB - 1), 0);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_POOL, 2, 2), -EOVERFLOW);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_POOL, 2, UINT64_MAX), -EOVERFLOW);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_POOL, 2, 1), 0);
  assert_int_equal(free_bytes(&fixture), 0);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_IMPORTED, 3, MIB), 0); /* memory of another process */
  assert_int_equal(hold(&fixture, LADE_LEDGER_HOST, LADE_LEDGER_PINNED, 4, 99 * MIB), 0);
  assert_int_equal(hold(&fixture, LADE_LEDGER_HOST, LADE_LEDGER_CHUNK, 5, 99 * MIB), 0);
  const struct lade_ledger_account *account = &fixture.record.accounts[0];
  assert_int_equal(account->n_refused, 2);
  assert_int_equal(account->refused_bytes, UINT64_MAX);
  assert_int_equal(account->bounded.bytes, 10 * MIB);
  assert_true(give(&fixture, LADE_LEDGER_ADDRESSES, 1));
  assert_false(give(&fixture, LADE_LEDGER_ADDRESSES, 1));
  assert_false(give(&fixture, LADE_LEDGER_ARRAYS, 2)); /* the same number in another space */
  assert_int_equal(free_bytes(&fixture), 10 * MIB - 1);
  assert_int_equal(account->bounded.peak_bytes, 10 * MIB);
  lade_ledger_destroy(fixture.ledger);
}

/* Memory that the driver refuses was never held; memory that it fails to free is still held. */
static void the_drivers_refusals_leave_no_trace(void **state)
{
  struct ledger_fixture fixture;
  struct lade_holding *holding = NULL;
  program_fixture_init(&fixture, "10MiB", 64 * MIB);
  assert_int_equal(lade_ledger_charge(fixture.ledger, 0, LADE_LEDGER_LINEAR, 8 * MIB, NULL, &holding), 0);
  assert_int_equal(free_bytes(&fixture), 2 * MIB); /* free in flight */
  lade_ledger_drop(fixture.ledger, holding);
  assert_int_equal(free_bytes(&fixture), 10 * MIB);
  assert_int_equal(fixture.record.accounts[0].bounded.peak_bytes, 0);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_LINEAR, 1, 4 * MIB), 0);
  holding = lade_ledger_take(fixture.ledger, LADE_LEDGER_ADDRESSES, 1);
  assert_int_equal(free_bytes(&fixture), 6 * MIB); /* not before the driver has answered */
  lade_ledger_keep(fixture.ledger, holding);
  assert_true(give(&fixture, LADE_LEDGER_ADDRESSES, 1));
  assert_int_equal(fixture.record.accounts[0].kinds[LADE_LEDGER_LINEAR].n_given, 1);
  /* The driver gives more than requested: within the budget it counts, beyond it the call is refused. */
  assert_int_equal(lade_ledger_charge(fixture.ledger, 0, LADE_LEDGER_PITCHED, MIB, NULL, &holding), 0);
  assert_int_equal(lade_ledger_settle(fixture.ledger, holding, LADE_LEDGER_ADDRESSES, 2, 10 * MIB + 1), -EOVERFLOW);
  assert_int_equal(lade_ledger_settle(fixture.ledger, holding, LADE_LEDGER_ADDRESSES, 2, 10 * MIB), 0);
  assert_int_equal(free_bytes(&fixture), 0);
  lade_ledger_destroy(fixture.ledger);
}

/* Memory that ended without a call that the ledger sees is noticed when its address is given out again. */
static void an_address_has_one_holder(void **state)
{
  struct ledger_fixture fixture;
  program_fixture_init(&fixture, "10MiB", 64 * MIB);
  for (uint64_t i = 1; i <= 5; i++)
    assert_int_equal(hold(&fixture, 0, LADE_LEDGER_POOL, 4096, i * MIB), 0);
  assert_int_equal(fixture.record.accounts[0].bounded.bytes, 5 * MIB);
  assert_int_equal(fixture.record.accounts[0].bounded.n_given, 4);
  assert_true(give(&fixture, LADE_LEDGER_ADDRESSES, 4096));
  assert_false(give(&fixture, LADE_LEDGER_ADDRESSES, 4096));
  assert_int_equal(free_bytes(&fixture), 10 * MIB);
  lade_ledger_destroy(fixture.ledger);
}

static void an_import_that_is_opened_again_is_one(void **state)
{
  struct ledger_fixture fixture;
  program_fixture_init(&fixture, "10MiB", 64 * MIB);
  const struct lade_ledger_sums *sums = &fixture.record.accounts[0].kinds[LADE_LEDGER_IMPORTED];
  for (int i = 0; i < 3; i++)
    assert_int_equal(hold(&fixture, 0, LADE_LEDGER_IMPORTED, 4096, MIB), 0);
  for (int i = 0; i < 2; i++) {
    assert_true(give(&fixture, LADE_LEDGER_ADDRESSES, 4096));
    assert_int_equal(sums->bytes, MIB);
  }
  struct lade_holding *last = lade_ledger_take(fixture.ledger, LADE_LEDGER_ADDRESSES, 4096);
  lade_ledger_keep(fixture.ledger, last); /* the driver refused */
  assert_int_equal(sums->bytes, MIB);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_IMPORTED, 4096, MIB), 0);
  lade_ledger_drop_owner(fixture.ledger, NULL);
  assert_int_equal(sums->bytes, 0);
  assert_int_equal(sums->peak_bytes, MIB);
  assert_int_equal(sums->n_taken, sums->n_given);
  assert_false(give(&fixture, LADE_LEDGER_ADDRESSES, 4096));
  lade_ledger_destroy(fixture.ledger);
}

static void an_import_ends_when_its_address_is_reused(void **state)
{
  struct ledger_fixture fixture;
  program_fixture_init(&fixture, "10MiB", 64 * MIB);
  const struct lade_ledger_sums *sums = &fixture.record.accounts[0].kinds[LADE_LEDGER_IMPORTED];
  for (int i = 0; i < 3; i++)
    assert_int_equal(hold(&fixture, 0, LADE_LEDGER_IMPORTED, 4096, MIB), 0);
  assert_int_equal(hold(&fixture, 0, LADE_LEDGER_POOL, 4096, 2 * MIB), 0); /* it was closed three times, unseen */
  assert_int_equal(sums->bytes, 0);
  assert_int_equal(sums->n_taken, sums->n_given);
  assert_int_equal(free_bytes(&fixture), 8 * MIB);
  assert_true(give(&fixture, LADE_LEDGER_ADDRESSES, 4096));
  assert_false(give(&fixture, LADE_LEDGER_ADDRESSES, 4096));
  for (int i = 0; i < 3; i++)
    assert_int_equal(hold(&fixture, 0, LADE_LEDGER_IMPORTED, 8192, MIB), 0);
  lade_ledger_destroy(fixture.ledger); /* frees those too, whose leak a sanitizer would report */
}

static void memory_of_an_owner_ends_with_it(void **state)
{
  struct ledger_fixture fixture;
  int contexts[2];
  program_fixture_init(&fixture, "", 64 * MIB);
  for (uint64_t i = 0; i < 1000; i++) {
    struct lade_holding *holding = NULL;
    assert_int_equal(lade_ledger_charge(fixture.ledger, 0, LADE_LEDGER_ARRAY, 3, &contexts[i % 2], &holding), 0);
    assert_int_equal(lade_ledger_settle(fixture.ledger, holding, LADE_LEDGER_ARRAYS, i << 12, 3), 0);
  }
  lade_ledger_drop_owner(fixture.ledger, &contexts[0]);
  assert_int_equal(fixture.record.accounts[0].bounded.bytes, 1500);
  for (uint64_t i = 0; i < 1000; i++)
    assert_int_equal(give(&fixture, LADE_LEDGER_ARRAYS, i << 12), i % 2);
  assert_int_equal(fixture.record.accounts[0].bounded.bytes, 0);
  lade_ledger_destroy(fixture.ledger);
}

/* ---- chunks ---- */

static void map(struct ledger_fixture *fixture, uint64_t handle, uint64_t address, uint64_t bytes)
{
  struct lade_holding *mapping = NULL;
  assert_int_equal(lade_ledger_map(fixture->ledger, handle, bytes, &mapping), 0);
  assert_int_equal(lade_ledger_settle(fixture->ledger, mapping, LADE_LEDGER_MAPPINGS, address, bytes), 0);
}

static void unmap(struct ledger_fixture *fixture, uint64_t address, uint64_t bytes)
{
  lade_ledger_drop_list(fixture->ledger, lade_ledger_unmap(fixture->ledger, address, bytes));
}

static void chunk(struct ledger_fixture *fixture, uint64_t handle, enum lade_ledger_kind kind, uint64_t bytes)
{
  struct lade_holding *holding = NULL;
  assert_int_equal(lade_ledger_charge(fixture->ledger, 0, kind, bytes, NULL, &holding), 0);
  assert_int_equal(lade_ledger_settle(fixture->ledger, holding, LADE_LEDGER_CHUNKS, handle, bytes), 0);
}

static void a_chunk_lasts_to_its_last_handle_and_mapping(void **state)
{
  struct ledger_fixture fixture;
  struct lade_holding *mapping = NULL;
  program_fixture_init(&fixture, "", 64 * MIB);
  const uint64_t *bytes = &fixture.record.accounts[0].bounded.bytes;
  assert_int_equal(lade_ledger_map(fixture.ledger, 5, MIB, &mapping), -ENOENT);
  chunk(&fixture, 5, LADE_LEDGER_CHUNK, MIB);
  map(&fixture, 5, 10 * MIB, MIB);
  map(&fixture, 5, 11 * MIB, MIB);
  assert_true(give(&fixture, LADE_LEDGER_CHUNKS, 5));
  chunk(&fixture, 5, LADE_LEDGER_CHUNK, 2 * MIB); /* the driver may reuse the number */
  map(&fixture, 5, 12 * MIB, 2 * MIB);
  assert_int_equal(*bytes, 3 * MIB);
  lade_ledger_keep_list(fixture.ledger, lade_ledger_unmap(fixture.ledger, 10 * MIB, 4 * MIB)); /* refused */
  unmap(&fixture, 10 * MIB, MIB);
  lade_ledger_retain(fixture.ledger, 11 * MIB + 5, 6); /* the first one again, from within its mapping */
  unmap(&fixture, 11 * MIB, 3 * MIB);                  /* two mappings at once */
  assert_int_equal(*bytes, 3 * MIB);
  assert_true(give(&fixture, LADE_LEDGER_CHUNKS, 6));
  assert_int_equal(*bytes, 2 * MIB);
  assert_true(give(&fixture, LADE_LEDGER_CHUNKS, 5));
  assert_int_equal(*bytes, 0);
  assert_null(lade_ledger_unmap(fixture.ledger, 0, 64 * MIB));
  lade_ledger_destroy(fixture.ledger);
}

static void an_imported_chunk_is_as_large_as_its_mapping(void **state)
{
  struct ledger_fixture fixture;
  program_fixture_init(&fixture, "1MiB", 64 * MIB);
  const struct lade_ledger_sums *sums = &fixture.record.accounts[0].kinds[LADE_LEDGER_IMPORTED];
  chunk(&fixture, 5, LADE_LEDGER_IMPORTED, 0);
  map(&fixture, 5, 10 * MIB, 3 * MIB);
  map(&fixture, 5, 20 * MIB, 2 * MIB);
  assert_int_equal(sums->bytes, 3 * MIB);
  assert_true(give(&fixture, LADE_LEDGER_CHUNKS, 5));
  unmap(&fixture, 10 * MIB, 3 * MIB);
  unmap(&fixture, 20 * MIB, 2 * MIB);
  assert_int_equal(sums->bytes, 0);
  assert_int_equal(free_bytes(&fixture), MIB);
  lade_ledger_destroy(fixture.ledger);
}

/* ---- without memory ---- */

/* A call without memory for its record is refused; a table that cannot grow still finds everything. */
static void without_memory_nothing_is_lost(void **state)
{
  struct ledger_fixture fixture;
  struct lade_holding *holdings[200], *none = NULL;
  struct lade_ledger_budget budget = {0};
  program_fixture_init(&fixture, "10MiB", 64 * MIB);
  for (size_t i = 0; i < LADE_COUNT(holdings); i++)
    assert_int_equal(lade_ledger_charge(fixture.ledger, 0, LADE_LEDGER_LINEAR, 1, NULL, &holdings[i]), 0);
  allocations_left = 0;
  for (size_t i = 0; i < LADE_COUNT(holdings); i++)
    assert_int_equal(lade_ledger_settle(fixture.ledger, holdings[i], LADE_LEDGER_ADDRESSES, i << 21, 1), 0);
  assert_int_equal(lade_ledger_charge(fixture.ledger, 0, LADE_LEDGER_LINEAR, 1, NULL, &none), -ENOMEM);
  assert_int_equal(lade_ledger_map(fixture.ledger, 1, 1, &none), -ENOMEM);
  for (int i = 1; i <= 2; i++) {
    lade_ledger *ledger = NULL;
    allocations_left = i;
    assert_int_equal(lade_ledger_create(&fixture.record, &budget, &ledger), -ENOMEM);
  }
  allocations_left = -1;
  assert_int_equal(free_bytes(&fixture), 10 * MIB - LADE_COUNT(holdings));
  for (size_t i = 0; i < LADE_COUNT(holdings); i++)
    assert_true(give(&fixture, LADE_LEDGER_ADDRESSES, i << 21));
  assert_int_equal(free_bytes(&fixture), 10 * MIB);
  lade_ledger_destroy(fixture.ledger);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(budgets_are_sizes_or_parts_of_a_device),
      cmocka_unit_test(the_last_byte_is_granted_and_no_more),
      cmocka_unit_test(the_drivers_refusals_leave_no_trace),
      cmocka_unit_test(an_address_has_one_holder),
      cmocka_unit_test(an_import_that_is_opened_again_is_one),
      cmocka_unit_test(an_import_ends_when_its_address_is_reused),
      cmocka_unit_test(memory_of_an_owner_ends_with_it),
      cmocka_unit_test(a_chunk_lasts_to_its_last_handle_and_mapping),
      cmocka_unit_test(an_imported_chunk_is_as_large_as_its_mapping),
      cmocka_unit_test(without_memory_nothing_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
