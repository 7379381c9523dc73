/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A caller's own step: promises of a stepper beside equal bits (test_step_random). Errors have names and stay, and each
 * failing request of memory, device or drive ends cleanly. A run allocates nothing, and a dry device takes the
 * predicted time.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/faults.h"
#include "run/step/step_internal.h"
#include "tests/support/graph/step_ops.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/scratch.h"

#define LAYERS 8
#define LAYER_BYTES ((uint64_t)3 << 19)
#define MIB ((uint64_t)1 << 20)

/* A chain with a backward pass: activations that are saved, weights on the host, and moments in the store. */
struct chain {
  lade_graph *graph;
  int x, loss, weights[LAYERS], moments[LAYERS];
};

static int storage_add(lade_graph *graph, const char *name, uint64_t bytes, bool is_given, enum lade_space tier)
{
  const struct lade_storage storage = {.struct_size = sizeof(storage), .name = name, .bytes = bytes,
                                       .is_given = is_given, .tier = tier};
  int index = -1;
  assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &index), 0);
  return index;
}

/* An op that reads storages, and writes one or updates some. */
struct chain_op {
  const char *name;
  int reads[3], n_reads;
  int written; /* -1: none */
  int updates[2], n_updates;
};

static void op_add(lade_graph *graph, const struct chain_op *chain)
{
  const int n_updates = chain->n_updates;
  struct lade_operand_range in[3], out = {.storage = chain->written}, both[2];
  for (int i = 0; i < chain->n_reads; i++)
    in[i] = (struct lade_operand_range){.storage = chain->reads[i]};
  for (int i = 0; i < n_updates; i++)
    both[i] = (struct lade_operand_range){.storage = chain->updates[i]};
  const struct lade_graph_op op = {.struct_size = sizeof(op), .name = chain->name, .reads = in,
                                   .n_reads = chain->n_reads, .writes = &out, .n_writes = chain->written >= 0,
                                   .updates = both, .n_updates = n_updates, .ns = 100000,
                                   .draws = chain->written >= 0, .is_once = n_updates > 0,
                                   .pass = n_updates ? LADE_PASS_UPDATE : LADE_PASS_FORWARD};
  assert_int_equal(lade_graph_add_op(graph, &op, NULL, NULL), 0);
}

static void chain_make(struct chain *chain, bool has_tiers)
{
  int saved[LAYERS + 1];
  assert_int_equal(lade_graph_create(&chain->graph), 0);
  saved[0] = chain->x = storage_add(chain->graph, "x", LAYER_BYTES, true, LADE_DEVICE);
  for (int i = 0; i < LAYERS; i++) {
    chain->weights[i] = storage_add(chain->graph, "w", 100000, true, has_tiers ? LADE_HOST : LADE_DEVICE);
    chain->moments[i] = storage_add(chain->graph, "m", 200000, true, has_tiers ? LADE_STORE : LADE_DEVICE);
    saved[i + 1] = storage_add(chain->graph, "h", LAYER_BYTES, false, LADE_DEVICE);
    op_add(chain->graph, &(struct chain_op){"layer", {saved[i], chain->weights[i]}, 2, saved[i + 1], {0}, 0});
  }
  chain->loss = storage_add(chain->graph, "loss", 4, false, LADE_DEVICE);
  op_add(chain->graph, &(struct chain_op){"loss", {saved[LAYERS]}, 1, chain->loss, {0}, 0});
  for (int i = LAYERS - 1, gradient = chain->loss; i >= 0; i--) {
    const int before = gradient;
    gradient = storage_add(chain->graph, "g", LAYER_BYTES, false, LADE_DEVICE);
    op_add(chain->graph, &(struct chain_op){"back", {saved[i], before, chain->weights[i]}, 3, gradient, {0}, 0});
    op_add(chain->graph, &(struct chain_op){"adam", {gradient}, 1, -1, {chain->weights[i], chain->moments[i]}, 2});
  }
  assert_int_equal(lade_graph_keep(chain->graph, chain->loss, NULL), 0);
  assert_int_equal(lade_graph_close(chain->graph, NULL), 0);
}

static struct lade_graph_plan_params search_get(uint64_t budget_bytes, bool has_tiers)
{
  const struct lade_graph_path path = {1e12, 1000};
  struct lade_graph_plan_params search = {.struct_size = sizeof(search), .budget_bytes = budget_bytes,
                                          .iterations = 3000};
  if (has_tiers) {
    search.to_host = search.from_host = search.to_store = search.from_store = path;
    search.host_budget_bytes = 3 * MIB;
    search.store_budget_bytes = 8 * MIB;
  }
  return search;
}

/* A chain with its ops on a host device of its own. */
struct step_fixture {
  struct chain chain;
  struct step_ops ops;
  struct lade_graph_plan_params search;
  struct lade_step_params params;
  struct lade_faults faults;
  lade_device *device;
};

static void fixture_init(struct step_fixture *fixture, uint64_t budget_bytes, bool has_tiers)
{
  memset(fixture, 0, sizeof(*fixture));
  chain_make(&fixture->chain, has_tiers);
  step_ops_init(&fixture->ops, fixture->chain.graph);
  lade_faults_init(&fixture->faults);
  const struct lade_host_device_params device = {.struct_size = sizeof(device), .capacity_bytes = 64 * MIB,
                                                 .faults = &fixture->faults};
  assert_int_equal(lade_device_open_host(&device, NULL, &fixture->device), 0);
  fixture->search = search_get(budget_bytes, has_tiers);
  fixture->params = (struct lade_step_params){.struct_size = sizeof(fixture->params), .op = step_ops_run,
                                              .user = &fixture->ops, .device = fixture->device,
                                              .plan = &fixture->search, .store = scratch, .allow_tmpfs = true};
}

static void fixture_finish(struct step_fixture *fixture)
{
  struct lade_device_info info;
  lade_device_get_info(fixture->device, &info);
  assert_int_equal(info.created_bytes, 0);
  lade_device_close(fixture->device);
  step_ops_finish(&fixture->ops);
  lade_graph_destroy(fixture->chain.graph);
}

static lade_stepper *create_or_fail(struct step_fixture *fixture, struct lade_step_info *ret_info)
{
  struct lade_error error = {0};
  lade_stepper *stepper = NULL;
  if (lade_step_create(fixture->chain.graph, &fixture->params, &error, ret_info, &stepper))
    fail_msg("%s", error.text);
  return stepper;
}

static void run_or_fail(struct step_fixture *fixture, lade_stepper *stepper, uint64_t step)
{
  struct lade_error error = {0};
  step_ops_begin(&fixture->ops, step);
  if (lade_step_run(stepper, NULL, &error))
    fail_msg("%s", error.text);
}

/* ---- budgets ---- */

static void a_smaller_budget_takes_less_and_gives_the_same_bits(void **state)
{
  uint64_t before = UINT64_MAX;
  for (uint64_t taken = 0; taken < 3; taken++) { /* chunks of 2 MiB off the unconstrained peak */
    struct step_fixture fixture;
    struct lade_step_info info = {.struct_size = sizeof(info)};
    fixture_init(&fixture, taken ? before - 2 * MIB : LADE_GRAPH_BUDGET_NONE, false);
    lade_stepper *stepper = create_or_fail(&fixture, &info);
    assert_true(info.peak_bytes[LADE_DEVICE] <= info.budget_bytes && info.peak_bytes[LADE_DEVICE] < before);
    assert_true((info.n_redone > 0) == (taken > 0) && info.predicted_ns >= info.compute_ns);
    assert_true(info.compute_ns - info.base_ns == 100000 * (int64_t)info.n_redone);
    before = info.peak_bytes[LADE_DEVICE];
    step_ops_fill(&fixture.ops, stepper);
    for (uint64_t step = 0; step < 2; step++) {
      run_or_fail(&fixture, stepper, step);
      step_ops_reference(&fixture.ops, step);
    }
    step_ops_compare(&fixture.ops, stepper);
    lade_step_destroy(stepper);
    fixture_finish(&fixture);
  }
}

/* A refusal states the smallest budget, which is then accepted; a byte less than its chunks is not. */
static void a_refused_budget_states_one_that_is_accepted(void **state)
{
  struct step_fixture fixture;
  struct lade_step_info info = {.struct_size = sizeof(info)}, again = {.struct_size = sizeof(again)};
  struct lade_error error = {0};
  lade_stepper *stepper = NULL;
  fixture_init(&fixture, 2 * MIB, false);
  assert_int_equal(lade_step_create(fixture.chain.graph, &fixture.params, &error, &info, &stepper), -ENOSPC);
  assert_null(stepper);
  assert_non_null(strstr(error.text, "within 2.0 MiB (2097152 bytes) was found; the smallest one takes"));
  assert_true(info.min_budget_bytes > 2 * MIB && info.peak_bytes[LADE_DEVICE] == 0);
  fixture.search.budget_bytes = info.min_budget_bytes;
  stepper = create_or_fail(&fixture, &again);
  assert_int_equal(again.peak_bytes[LADE_DEVICE], info.min_budget_bytes);
  lade_step_destroy(stepper);
  fixture.search.budget_bytes = info.min_budget_bytes - 1;
  assert_int_equal(lade_step_create(fixture.chain.graph, &fixture.params, &error, NULL, &stepper), -ENOSPC);
  fixture_finish(&fixture);
}

/* A device with less memory than the plan is named with its bytes. */
static void a_device_that_is_too_small_refuses(void **state)
{
  struct step_fixture fixture;
  struct lade_error error = {0};
  lade_stepper *stepper = NULL;
  fixture_init(&fixture, LADE_GRAPH_BUDGET_NONE, false);
  assert_int_equal(lade_device_limit(fixture.device, 4 * MIB), 0);
  assert_int_equal(lade_step_create(fixture.chain.graph, &fixture.params, &error, NULL, &stepper), -ENOMEM);
  assert_non_null(strstr(error.text, "of memory"));
  assert_null(stepper);
  fixture_finish(&fixture);
}

/* ---- storages between runs ---- */

static void given_storages_are_reached_in_every_tier(void **state)
{
  struct step_fixture fixture;
  struct lade_error error = {0};
  fixture_init(&fixture, 14 * MIB, true);
  lade_stepper *stepper = create_or_fail(&fixture, NULL);
  unsigned char *bytes = malloc(LAYER_BYTES), found[64];
  assert_non_null(bytes);
  const int tiers[] = {fixture.chain.x, fixture.chain.weights[1], fixture.chain.moments[2]};
  for (size_t i = 0; i < LADE_COUNT(tiers); i++) {
    const uint64_t n = fixture.chain.graph->storages.items[tiers[i]].bytes;
    assert_int_equal(lade_step_get(stepper, tiers[i], 0, bytes, n, &error), 0);
    for (uint64_t k = 0; k < n; k++)
      assert_int_equal(bytes[k], 0); /* until set */
    assert_int_equal(lade_step_set(stepper, tiers[i], n - 70, "abcdefgh", 8, &error), 0);
    assert_int_equal(lade_step_get(stepper, tiers[i], n - 71, found, 10, &error), 0);
    assert_memory_equal(found, "\0abcdefgh\0", 10);
    assert_true((lade_step_address(stepper, tiers[i]) != NULL) == (i < 2));
    if (i < 2)
      assert_memory_equal((char *)lade_step_address(stepper, tiers[i]) + n - 70, "abcdefgh", 8);
  }
  free(bytes);
  lade_step_destroy(stepper);
  fixture_finish(&fixture);
}

static void wrong_ranges_and_storages_are_named(void **state)
{
  struct step_fixture fixture;
  struct lade_error error = {0};
  char byte = 0;
  fixture_init(&fixture, LADE_GRAPH_BUDGET_NONE, false);
  lade_stepper *stepper = create_or_fail(&fixture, NULL);
  const int h = fixture.chain.moments[0] + 1;
  assert_int_equal(lade_step_get(stepper, -1, 0, &byte, 1, &error), -EINVAL);
  assert_int_equal(lade_step_get(stepper, 10000, 0, &byte, 1, &error), -EINVAL);
  assert_int_equal(lade_step_get(stepper, h, 0, &byte, 1, &error), -EINVAL);
  assert_non_null(strstr(error.text, "\"h\" is not given, and not kept"));
  assert_int_equal(lade_step_set(stepper, fixture.chain.loss, 0, &byte, 1, &error), -EINVAL);
  assert_int_equal(lade_step_get(stepper, fixture.chain.x, LAYER_BYTES, &byte, 1, &error), -EINVAL);
  assert_non_null(strstr(error.text, "1 bytes at 1572864 end past its 1572864"));
  assert_int_equal(lade_step_set(stepper, fixture.chain.x, UINT64_MAX, &byte, 2, &error), -EINVAL);
  assert_int_equal(lade_step_get(stepper, fixture.chain.x, 0, NULL, 1, &error), -EINVAL);
  assert_int_equal(lade_step_get(stepper, fixture.chain.x, LAYER_BYTES, NULL, 0, &error), 0);
  assert_null(lade_step_address(stepper, h));
  assert_null(lade_step_address(NULL, 0));
  assert_non_null(lade_step_address(stepper, fixture.chain.loss));
  lade_step_destroy(stepper);
  lade_step_destroy(NULL);
  fixture_finish(&fixture);
}

static void wrong_parameters_are_named(void **state)
{
  struct step_fixture fixture;
  struct lade_error error = {0};
  lade_stepper *stepper = NULL;
  lade_graph *open = NULL;
  fixture_init(&fixture, LADE_GRAPH_BUDGET_NONE, false);
  const struct lade_step_params right = fixture.params;
  struct lade_step_info info = {.struct_size = 3};
#define WRONG(graph, fragment) \
  do { \
    assert_int_equal(lade_step_create(graph, &fixture.params, &error, NULL, &stepper), -EINVAL); \
    assert_non_null(strstr(error.text, fragment)); \
    assert_null(stepper); \
    fixture.params = right; \
  } while (0)
  assert_int_equal(lade_graph_create(&open), 0);
  WRONG(open, "closed graph");
  assert_int_equal(lade_graph_close(open, NULL), 0);
  WRONG(open, "with an op");
  WRONG(NULL, "closed graph");
  fixture.chain.graph->has_addresses = false;
  WRONG(fixture.chain.graph, "live bytes alone");
  fixture.chain.graph->has_addresses = true;
  fixture.params.op = NULL;
  WRONG(fixture.chain.graph, "function for its ops");
  fixture.params.device = NULL;
  WRONG(fixture.chain.graph, "a device");
  fixture.params.plan = NULL;
  WRONG(fixture.chain.graph, "budgets");
  fixture.params.stream = &fixture;
  WRONG(fixture.chain.graph, "no CUDA device");
  fixture.params.struct_size = 1;
  WRONG(fixture.chain.graph, "lade_step_params");
  fixture.search.iterations = -1;
  WRONG(fixture.chain.graph, "iterations");
  fixture.search.iterations = 0;
  assert_int_equal(lade_step_create(fixture.chain.graph, &fixture.params, &error, &info, &stepper), -EINVAL);
  assert_int_equal(lade_step_create(fixture.chain.graph, &fixture.params, &error, NULL, NULL), -EINVAL);
  assert_int_equal(lade_step_run(NULL, NULL, &error), -EINVAL);
  assert_int_equal(lade_step_get_info(NULL, &info), -EINVAL);
  lade_graph_destroy(open);
  fixture_finish(&fixture);
}

static void a_store_that_is_needed_and_not_named_is_refused(void **state)
{
  struct step_fixture fixture;
  struct lade_error error = {0};
  lade_stepper *stepper = NULL;
  fixture_init(&fixture, 14 * MIB, true);
  fixture.params.store = NULL;
  assert_int_equal(lade_step_create(fixture.chain.graph, &fixture.params, &error, NULL, &stepper), -EINVAL);
  assert_non_null(strstr(error.text, "no directory of one is named"));
  fixture.params.store = in_scratch("absent");
  assert_int_equal(lade_step_create(fixture.chain.graph, &fixture.params, &error, NULL, &stepper), -ENOENT);
  fixture_finish(&fixture);
}

/* ---- failures ---- */

/* The Nth op that fails ends the step with its name and its code; every later call says the same. */
static void an_op_that_fails_ends_the_step_with_its_name(void **state)
{
  for (int n = 1; n <= 3 * LAYERS + 1; n += 3) {
    struct step_fixture fixture;
    struct lade_error error = {0}, later = {0};
    char byte = 0;
    fixture_init(&fixture, 16 * MIB, n % 2);
    lade_stepper *stepper = create_or_fail(&fixture, NULL);
    step_ops_fill(&fixture.ops, stepper);
    run_or_fail(&fixture, stepper, 0);
    step_ops_begin(&fixture.ops, 1);
    fixture.ops.fail_at = n;
    fixture.ops.fail_code = n % 4 ? -EDOM : 7; /* a positive code is the caller's mistake */
    const int code = n % 4 ? -EDOM : -EINVAL;
    assert_int_equal(lade_step_run(stepper, NULL, &error), code);
    assert_int_equal(atomic_load(&fixture.ops.n_calls), n); /* no later op was called */
    assert_int_equal(error.code, code);
    assert_non_null(strstr(error.text, "failed in step 1"));
    assert_non_null(strstr(error.text, n == 1 ? "op 0 \"layer\"" : "op "));
    assert_int_equal(lade_step_run(stepper, NULL, &later), code);
    assert_string_equal(error.text, later.text);
    assert_int_equal(lade_step_get(stepper, fixture.chain.x, 0, &byte, 1, &later), code);
    assert_int_equal(lade_step_set(stepper, fixture.chain.moments[0], 0, &byte, 1, &later), code);
    assert_int_equal(atomic_load(&fixture.ops.n_calls), n);
    lade_step_destroy(stepper);
    fixture_finish(&fixture);
  }
}

/* Create, run two steps and read; return the first error. */
static int fixture_run(struct step_fixture *fixture, struct lade_error *error)
{
  lade_stepper *stepper = NULL;
  char bytes[100];
  int status = step_create(fixture->chain.graph, &fixture->params, &fixture->faults, error, NULL, &stepper);
  if (!status)
    status = lade_step_set(stepper, fixture->chain.moments[0], 1000, "abc", 3, error);
  for (uint64_t step = 0; step < 2 && !status; step++) {
    step_ops_begin(&fixture->ops, step);
    status = lade_step_run(stepper, NULL, error);
    if (status)
      assert_int_equal(lade_step_run(stepper, NULL, NULL), status);
  }
  if (!status)
    status = lade_step_get(stepper, fixture->chain.moments[1], 7, bytes, sizeof(bytes), error);
  lade_step_destroy(stepper);
  return status;
}

/* Fail the Nth request of device, drive and threads, for every N: an error with a line, and nothing is left. */
static void each_request_that_fails_ends_cleanly(void **state)
{
  int n_failed = 0;
  uint64_t count = 0;
  for (uint64_t n = 0; n <= count; n += n < 60 ? 1 : 5) { /* first without a failure, to count the requests */
    struct step_fixture fixture;
    struct lade_error error = {0};
    fixture_init(&fixture, 14 * MIB, true);
    if (n)
      lade_faults_arm(&fixture.faults, LADE_FAULT_ANY, n, false, -EIO);
    const int status = fixture_run(&fixture, &error);
    count = n ? count : lade_faults_count(&fixture.faults, LADE_FAULT_ANY);
    assert_true(n ? status == 0 || error.text[0] : status == 0);
    n_failed += status != 0;
    lade_faults_init(&fixture.faults);
    fixture_finish(&fixture);
  }
  assert_true(n_failed > 20);
}

/* Drives that keep failing: the storage is named. */
static void a_drive_that_fails_names_the_storage(void **state)
{
  static const enum lade_fault_point points[] = {LADE_FAULT_FILE_READ, LADE_FAULT_FILE_WRITE};
  for (size_t i = 0; i < LADE_COUNT(points); i++) {
    struct step_fixture fixture;
    struct lade_error error = {0};
    lade_stepper *stepper = NULL;
    fixture_init(&fixture, 14 * MIB, true);
    assert_int_equal(step_create(fixture.chain.graph, &fixture.params, &fixture.faults, &error, NULL, &stepper), 0);
    lade_faults_arm(&fixture.faults, points[i], 1, true, -EIO);
    step_ops_begin(&fixture.ops, 0);
    assert_int_equal(lade_step_run(stepper, NULL, &error), -EIO);
    assert_non_null(strstr(error.text, i ? "putting storage" : "getting storage"));
    lade_step_destroy(stepper);
    lade_faults_init(&fixture.faults);
    fixture_finish(&fixture);
  }
}

/* Fail the Nth allocation and all after it, for many N. */
static void memory_that_runs_out_is_said(void **state)
{
  struct step_fixture fixture;
  int status = -ENOMEM;
  fixture_init(&fixture, 16 * MIB, false);
  for (int n = 0; status; n += n < 200 ? 1 : n / 8) {
    struct lade_error error = {0};
    lade_stepper *stepper = NULL;
    allocations_left = n;
    status = lade_step_create(fixture.chain.graph, &fixture.params, &error, NULL, &stepper);
    allocations_left = -1;
    lade_step_destroy(stepper);
    assert_true(status == 0 || status == -ENOMEM || status == -EAGAIN);
    assert_true(status == 0 || error.text[0]);
  }
  fixture_finish(&fixture);
}

/* A run allocates nothing of its own: it passes while every allocation of the process fails. */
static void a_run_allocates_nothing(void **state)
{
  for (int has_tiers = 0; has_tiers < 2; has_tiers++) {
    struct step_fixture fixture;
    struct lade_error error = {0};
    struct lade_step_measures measures = {.struct_size = sizeof(measures)};
    fixture_init(&fixture, 14 * MIB, has_tiers);
    lade_stepper *stepper = create_or_fail(&fixture, NULL);
    run_or_fail(&fixture, stepper, 0);
    step_ops_begin(&fixture.ops, 1);
    allocations_left = 0;
    const int status = lade_step_run(stepper, &measures, &error);
    allocations_left = -1;
    if (status)
      fail_msg("%s", error.text);
    assert_true(measures.wall_ns > 0 && measures.busy_ns[LADE_Q_COMPUTE] > 0);
    lade_step_destroy(stepper);
    fixture_finish(&fixture);
  }
}

/* ---- dry ---- */

static int op_never(void *user, const struct lade_op_call *call)
{
  (void)user;
  (void)call;
  abort();
}

/* A dry device calls no op, has no bytes, and takes the predicted time and the planned memory. */
static void a_dry_device_takes_the_predicted_time(void **state)
{
  const struct lade_device_params device = {.struct_size = sizeof(device), .name = "dry", .capacity_bytes = 1 << 30};
  struct lade_error error = {0};
  struct chain chain;
  struct lade_step_info info = {.struct_size = sizeof(info)};
  struct lade_step_measures measures = {.struct_size = sizeof(measures)};
  struct lade_graph_plan_params search = search_get(14 * MIB, true);
  struct lade_step_params params = {.struct_size = sizeof(params), .op = op_never, .plan = &search};
  lade_stepper *stepper = NULL;
  char byte;
  chain_make(&chain, true);
  assert_int_equal(lade_device_open(&device, NULL, &params.device), 0);
  if (lade_step_create(chain.graph, &params, &error, &info, &stepper))
    fail_msg("%s", error.text);
  assert_true(info.moved_bytes > 0 && info.peak_bytes[LADE_STORE] > 0 && info.peak_bytes[LADE_HOST] > 0);
  for (int step = 0; step < 2; step++) {
    if (lade_step_run(stepper, &measures, &error))
      fail_msg("%s", error.text);
    assert_int_equal(measures.peak_bytes[LADE_DEVICE], info.peak_bytes[LADE_DEVICE]);
    assert_true(measures.wall_ns >= info.predicted_ns - 100 && measures.wall_ns <= info.predicted_ns + 100);
  }
  assert_null(lade_step_address(stepper, chain.x));
  assert_int_equal(lade_step_get(stepper, chain.x, 0, &byte, 1, &error), -ENOTSUP);
  lade_step_destroy(stepper);
  lade_device_close(params.device);
  lade_graph_destroy(chain.graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_smaller_budget_takes_less_and_gives_the_same_bits),
      cmocka_unit_test(a_refused_budget_states_one_that_is_accepted),
      cmocka_unit_test(a_device_that_is_too_small_refuses),
      cmocka_unit_test(given_storages_are_reached_in_every_tier),
      cmocka_unit_test(wrong_ranges_and_storages_are_named),
      cmocka_unit_test(wrong_parameters_are_named),
      cmocka_unit_test(a_store_that_is_needed_and_not_named_is_refused),
      cmocka_unit_test(an_op_that_fails_ends_the_step_with_its_name),
      cmocka_unit_test(each_request_that_fails_ends_cleanly),
      cmocka_unit_test(a_drive_that_fails_names_the_storage),
      cmocka_unit_test(memory_that_runs_out_is_said),
      cmocka_unit_test(a_run_allocates_nothing),
      cmocka_unit_test(a_dry_device_takes_the_predicted_time),
  };
  return cmocka_run_group_tests(tests, scratch_setup_in_memory, scratch_teardown);
}
