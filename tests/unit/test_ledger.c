/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger's sums are those of what is held, whatever the driver answered, and a budget is never passed. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/ledger.h"
#include "base/base.h"
#include "tests/support/allocations.h"

#define MIB ((uint64_t)1 << 20)

struct scene {
  struct lade_ledger_record record;
  lade_ledger *ledger;
};

static void scene_init(struct scene *scene, const char *budget_text, uint64_t total_bytes)
{
  struct lade_ledger_budget budget;
  memset(scene, 0, sizeof(*scene));
  assert_int_equal(lade_ledger_budget_parse(budget_text, &budget, NULL), 0);
  assert_int_equal(lade_ledger_create(&scene->record, &budget, &scene->ledger), 0);
  lade_ledger_device(scene->ledger, 0, total_bytes);
}

static int hold(struct scene *scene, int account, enum lade_ledger_kind kind, uint64_t key, uint64_t bytes)
{
  struct lade_holding *holding = NULL;
  int status = lade_ledger_charge(scene->ledger, account, kind, bytes, NULL, &holding);
  if (!status)
    assert_int_equal(lade_ledger_settle(scene->ledger, holding, LADE_LEDGER_ADDRESSES, key, bytes), 0);
  return status;
}

static bool give(struct scene *scene, enum lade_ledger_space space, uint64_t key)
{
  struct lade_holding *holding = lade_ledger_take(scene->ledger, space, key);
  if (holding)
    lade_ledger_drop(scene->ledger, holding);
  return holding != NULL;
}

static uint64_t free_bytes(struct scene *scene)
{
  uint64_t free_bytes = UINT64_MAX, total_bytes = UINT64_MAX;
  lade_ledger_bound(scene->ledger, 0, &free_bytes, &total_bytes);
  return free_bytes;
}

static void budgets_are_sizes_or_parts_of_a_device(void **state)
{
  static const char *const wrong[] = {"x", "0", "-1", "0%", "100.1%", "%", "nan%", "-1%", "5%%", "5%device", " "};
  struct lade_ledger_budget budget = {.bytes = 7};
  struct lade_error error = {0};
  for (size_t i = 0; i < LADE_COUNT(wrong); i++) {
    assert_int_equal(lade_ledger_budget_parse(wrong[i], &budget, &error), -EINVAL);
    assert_non_null(strstr(error.text, wrong[i]));
    assert_int_equal(budget.bytes, 7);
  }
  struct scene scene;
  const struct {
    const char *text;
    uint64_t bytes;
  } right[] = {{"", UINT64_MAX}, {"12MiB", 12 * MIB}, {"50%", 50 * MIB}, {"100%dev", 100 * MIB}, {"0.5%", MIB / 2}};
  for (size_t i = 0; i < LADE_COUNT(right); i++) {
    scene_init(&scene, right[i].text, 100 * MIB);
    assert_int_equal(scene.record.accounts[0].budget_bytes, right[i].bytes);
    assert_int_equal(free_bytes(&scene), right[i].bytes);
    lade_ledger_destroy(scene.ledger);
  }
  /* Of a device that does not say what it has: bytes hold, and a part of nothing is nothing. */
  scene_init(&scene, "12MiB", 0);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_LINEAR, 1, 12 * MIB + 1), -EOVERFLOW);
  lade_ledger_destroy(scene.ledger);
  scene_init(&scene, "50%", 0);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_LINEAR, 1, 1), -EOVERFLOW);
  lade_ledger_destroy(scene.ledger);
}

static void the_last_byte_is_granted_and_no_more(void **state)
{
  struct scene scene;
  scene_init(&scene, "10MiB", 64 * MIB);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_LINEAR, 1, 10 * MIB - 1), 0);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_POOL, 2, 2), -EOVERFLOW);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_POOL, 2, UINT64_MAX), -EOVERFLOW);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_POOL, 2, 1), 0);
  assert_int_equal(free_bytes(&scene), 0);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_IMPORTED, 3, MIB), 0); /* not this process's */
  assert_int_equal(hold(&scene, LADE_LEDGER_HOST, LADE_LEDGER_PINNED, 4, 99 * MIB), 0);
  assert_int_equal(hold(&scene, LADE_LEDGER_HOST, LADE_LEDGER_CHUNK, 5, 99 * MIB), 0);
  const struct lade_ledger_account *account = &scene.record.accounts[0];
  assert_int_equal(account->n_refused, 2);
  assert_int_equal(account->refused_bytes, UINT64_MAX);
  assert_int_equal(account->bounded.bytes, 10 * MIB);
  assert_true(give(&scene, LADE_LEDGER_ADDRESSES, 1));
  assert_false(give(&scene, LADE_LEDGER_ADDRESSES, 1));
  assert_false(give(&scene, LADE_LEDGER_ARRAYS, 2)); /* the same number in another space */
  assert_int_equal(free_bytes(&scene), 10 * MIB - 1);
  assert_int_equal(account->bounded.peak_bytes, 10 * MIB);
  lade_ledger_destroy(scene.ledger);
}

/* What the driver refuses was never held; what it does not give back still is. */
static void the_drivers_refusals_leave_no_trace(void **state)
{
  struct scene scene;
  struct lade_holding *holding = NULL;
  scene_init(&scene, "10MiB", 64 * MIB);
  assert_int_equal(lade_ledger_charge(scene.ledger, 0, LADE_LEDGER_LINEAR, 8 * MIB, NULL, &holding), 0);
  assert_int_equal(free_bytes(&scene), 2 * MIB); /* under way */
  lade_ledger_drop(scene.ledger, holding);
  assert_int_equal(free_bytes(&scene), 10 * MIB);
  assert_int_equal(scene.record.accounts[0].bounded.peak_bytes, 0);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_LINEAR, 1, 4 * MIB), 0);
  holding = lade_ledger_take(scene.ledger, LADE_LEDGER_ADDRESSES, 1);
  assert_int_equal(free_bytes(&scene), 6 * MIB); /* not before the driver has said so */
  lade_ledger_keep(scene.ledger, holding);
  assert_true(give(&scene, LADE_LEDGER_ADDRESSES, 1));
  assert_int_equal(scene.record.accounts[0].kinds[LADE_LEDGER_LINEAR].n_given, 1);
  /* More than was asked for: within the budget it counts, past it it is refused. */
  assert_int_equal(lade_ledger_charge(scene.ledger, 0, LADE_LEDGER_PITCHED, MIB, NULL, &holding), 0);
  assert_int_equal(lade_ledger_settle(scene.ledger, holding, LADE_LEDGER_ADDRESSES, 2, 10 * MIB + 1), -EOVERFLOW);
  assert_int_equal(lade_ledger_settle(scene.ledger, holding, LADE_LEDGER_ADDRESSES, 2, 10 * MIB), 0);
  assert_int_equal(free_bytes(&scene), 0);
  lade_ledger_destroy(scene.ledger);
}

/* Memory that ended in a way that the ledger was not told of is noticed when its address is given out again. */
static void an_address_has_one_holder(void **state)
{
  struct scene scene;
  scene_init(&scene, "10MiB", 64 * MIB);
  for (uint64_t i = 1; i <= 5; i++)
    assert_int_equal(hold(&scene, 0, LADE_LEDGER_POOL, 4096, i * MIB), 0);
  assert_int_equal(scene.record.accounts[0].bounded.bytes, 5 * MIB);
  assert_int_equal(scene.record.accounts[0].bounded.n_given, 4);
  assert_true(give(&scene, LADE_LEDGER_ADDRESSES, 4096));
  assert_false(give(&scene, LADE_LEDGER_ADDRESSES, 4096));
  assert_int_equal(free_bytes(&scene), 10 * MIB);
  lade_ledger_destroy(scene.ledger);
}

static void an_import_that_is_opened_again_is_one(void **state)
{
  struct scene scene;
  scene_init(&scene, "10MiB", 64 * MIB);
  const struct lade_ledger_sums *sums = &scene.record.accounts[0].kinds[LADE_LEDGER_IMPORTED];
  for (int i = 0; i < 3; i++)
    assert_int_equal(hold(&scene, 0, LADE_LEDGER_IMPORTED, 4096, MIB), 0);
  for (int i = 0; i < 2; i++) {
    assert_true(give(&scene, LADE_LEDGER_ADDRESSES, 4096));
    assert_int_equal(sums->bytes, MIB);
  }
  struct lade_holding *last = lade_ledger_take(scene.ledger, LADE_LEDGER_ADDRESSES, 4096);
  lade_ledger_keep(scene.ledger, last); /* the driver refused */
  assert_int_equal(sums->bytes, MIB);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_IMPORTED, 4096, MIB), 0);
  lade_ledger_drop_owner(scene.ledger, NULL);
  assert_int_equal(sums->bytes, 0);
  assert_int_equal(sums->peak_bytes, MIB);
  assert_int_equal(sums->n_taken, sums->n_given);
  assert_false(give(&scene, LADE_LEDGER_ADDRESSES, 4096));
  lade_ledger_destroy(scene.ledger);
}

static void an_import_whose_address_is_given_out_anew_is_gone(void **state)
{
  struct scene scene;
  scene_init(&scene, "10MiB", 64 * MIB);
  const struct lade_ledger_sums *sums = &scene.record.accounts[0].kinds[LADE_LEDGER_IMPORTED];
  for (int i = 0; i < 3; i++)
    assert_int_equal(hold(&scene, 0, LADE_LEDGER_IMPORTED, 4096, MIB), 0);
  assert_int_equal(hold(&scene, 0, LADE_LEDGER_POOL, 4096, 2 * MIB), 0); /* it was closed thrice, unseen */
  assert_int_equal(sums->bytes, 0);
  assert_int_equal(sums->n_taken, sums->n_given);
  assert_int_equal(free_bytes(&scene), 8 * MIB);
  assert_true(give(&scene, LADE_LEDGER_ADDRESSES, 4096));
  assert_false(give(&scene, LADE_LEDGER_ADDRESSES, 4096));
  for (int i = 0; i < 3; i++)
    assert_int_equal(hold(&scene, 0, LADE_LEDGER_IMPORTED, 8192, MIB), 0);
  lade_ledger_destroy(scene.ledger); /* forgets those too, whose leak a sanitizer would see */
}

static void what_an_owner_had_ends_with_it(void **state)
{
  struct scene scene;
  int contexts[2];
  scene_init(&scene, "", 64 * MIB);
  for (uint64_t i = 0; i < 1000; i++) {
    struct lade_holding *holding = NULL;
    assert_int_equal(lade_ledger_charge(scene.ledger, 0, LADE_LEDGER_ARRAY, 3, &contexts[i % 2], &holding), 0);
    assert_int_equal(lade_ledger_settle(scene.ledger, holding, LADE_LEDGER_ARRAYS, i << 12, 3), 0);
  }
  lade_ledger_drop_owner(scene.ledger, &contexts[0]);
  assert_int_equal(scene.record.accounts[0].bounded.bytes, 1500);
  for (uint64_t i = 0; i < 1000; i++)
    assert_int_equal(give(&scene, LADE_LEDGER_ARRAYS, i << 12), i % 2);
  assert_int_equal(scene.record.accounts[0].bounded.bytes, 0);
  lade_ledger_destroy(scene.ledger);
}

/* ---- chunks ---- */

static void map(struct scene *scene, uint64_t handle, uint64_t address, uint64_t bytes)
{
  struct lade_holding *mapping = NULL;
  assert_int_equal(lade_ledger_map(scene->ledger, handle, bytes, &mapping), 0);
  assert_int_equal(lade_ledger_settle(scene->ledger, mapping, LADE_LEDGER_MAPPINGS, address, bytes), 0);
}

static void unmap(struct scene *scene, uint64_t address, uint64_t bytes)
{
  lade_ledger_drop_list(scene->ledger, lade_ledger_unmap(scene->ledger, address, bytes));
}

static void chunk(struct scene *scene, uint64_t handle, enum lade_ledger_kind kind, uint64_t bytes)
{
  struct lade_holding *holding = NULL;
  assert_int_equal(lade_ledger_charge(scene->ledger, 0, kind, bytes, NULL, &holding), 0);
  assert_int_equal(lade_ledger_settle(scene->ledger, holding, LADE_LEDGER_CHUNKS, handle, bytes), 0);
}

static void a_chunk_lasts_to_its_last_handle_and_mapping(void **state)
{
  struct scene scene;
  struct lade_holding *mapping = NULL;
  scene_init(&scene, "", 64 * MIB);
  const uint64_t *bytes = &scene.record.accounts[0].bounded.bytes;
  assert_int_equal(lade_ledger_map(scene.ledger, 5, MIB, &mapping), -ENOENT);
  chunk(&scene, 5, LADE_LEDGER_CHUNK, MIB);
  map(&scene, 5, 10 * MIB, MIB);
  map(&scene, 5, 11 * MIB, MIB);
  assert_true(give(&scene, LADE_LEDGER_CHUNKS, 5));
  chunk(&scene, 5, LADE_LEDGER_CHUNK, 2 * MIB); /* the driver may use the number anew */
  map(&scene, 5, 12 * MIB, 2 * MIB);
  assert_int_equal(*bytes, 3 * MIB);
  lade_ledger_keep_list(scene.ledger, lade_ledger_unmap(scene.ledger, 10 * MIB, 4 * MIB)); /* refused */
  unmap(&scene, 10 * MIB, MIB);
  lade_ledger_retain(scene.ledger, 11 * MIB + 5, 6); /* the first one again, from within its mapping */
  unmap(&scene, 11 * MIB, 3 * MIB);                  /* two mappings at once */
  assert_int_equal(*bytes, 3 * MIB);
  assert_true(give(&scene, LADE_LEDGER_CHUNKS, 6));
  assert_int_equal(*bytes, 2 * MIB);
  assert_true(give(&scene, LADE_LEDGER_CHUNKS, 5));
  assert_int_equal(*bytes, 0);
  assert_null(lade_ledger_unmap(scene.ledger, 0, 64 * MIB));
  lade_ledger_destroy(scene.ledger);
}

static void an_imported_chunk_is_as_large_as_its_mapping(void **state)
{
  struct scene scene;
  scene_init(&scene, "1MiB", 64 * MIB);
  const struct lade_ledger_sums *sums = &scene.record.accounts[0].kinds[LADE_LEDGER_IMPORTED];
  chunk(&scene, 5, LADE_LEDGER_IMPORTED, 0);
  map(&scene, 5, 10 * MIB, 3 * MIB);
  map(&scene, 5, 20 * MIB, 2 * MIB);
  assert_int_equal(sums->bytes, 3 * MIB);
  assert_true(give(&scene, LADE_LEDGER_CHUNKS, 5));
  unmap(&scene, 10 * MIB, 3 * MIB);
  unmap(&scene, 20 * MIB, 2 * MIB);
  assert_int_equal(sums->bytes, 0);
  assert_int_equal(free_bytes(&scene), MIB);
  lade_ledger_destroy(scene.ledger);
}

/* ---- without memory ---- */

/* A call that has no memory for its note is refused; a table that cannot grow still finds everything. */
static void without_memory_nothing_is_lost(void **state)
{
  struct scene scene;
  struct lade_holding *holdings[200], *none = NULL;
  struct lade_ledger_budget budget = {0};
  scene_init(&scene, "10MiB", 64 * MIB);
  for (size_t i = 0; i < LADE_COUNT(holdings); i++)
    assert_int_equal(lade_ledger_charge(scene.ledger, 0, LADE_LEDGER_LINEAR, 1, NULL, &holdings[i]), 0);
  allocations_left = 0;
  for (size_t i = 0; i < LADE_COUNT(holdings); i++)
    assert_int_equal(lade_ledger_settle(scene.ledger, holdings[i], LADE_LEDGER_ADDRESSES, i << 21, 1), 0);
  assert_int_equal(lade_ledger_charge(scene.ledger, 0, LADE_LEDGER_LINEAR, 1, NULL, &none), -ENOMEM);
  assert_int_equal(lade_ledger_map(scene.ledger, 1, 1, &none), -ENOMEM);
  for (int i = 1; i <= 2; i++) {
    lade_ledger *ledger = NULL;
    allocations_left = i;
    assert_int_equal(lade_ledger_create(&scene.record, &budget, &ledger), -ENOMEM);
  }
  allocations_left = -1;
  assert_int_equal(free_bytes(&scene), 10 * MIB - LADE_COUNT(holdings));
  for (size_t i = 0; i < LADE_COUNT(holdings); i++)
    assert_true(give(&scene, LADE_LEDGER_ADDRESSES, i << 21));
  assert_int_equal(free_bytes(&scene), 10 * MIB);
  lade_ledger_destroy(scene.ledger);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(budgets_are_sizes_or_parts_of_a_device),
      cmocka_unit_test(the_last_byte_is_granted_and_no_more),
      cmocka_unit_test(the_drivers_refusals_leave_no_trace),
      cmocka_unit_test(an_address_has_one_holder),
      cmocka_unit_test(an_import_that_is_opened_again_is_one),
      cmocka_unit_test(an_import_whose_address_is_given_out_anew_is_gone),
      cmocka_unit_test(what_an_owner_had_ends_with_it),
      cmocka_unit_test(a_chunk_lasts_to_its_last_handle_and_mapping),
      cmocka_unit_test(an_imported_chunk_is_as_large_as_its_mapping),
      cmocka_unit_test(without_memory_nothing_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
