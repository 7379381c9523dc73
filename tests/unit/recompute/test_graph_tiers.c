/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of graphs whose storages may wait on the host or in a store: every list replays within the budgets of all
 * tiers, and moves are planned where they cost less than redos.
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
#include "lade/graph_plan.h"
#include "recompute/graph/descent.h"
#include "recompute/graph/prefetch.h"
#include "tests/support/graph/random_graph.h"

#define GRAPHS 60
#define LAYERS 24
#define LAYERS_MAX 4000
#define LAYER_BYTES 1000000
#define LAYER_NS 100000

static struct lade_graph_plan_params tiers_params(uint64_t budget_bytes, double bytes_per_s)
{
  const struct lade_graph_path path = {bytes_per_s, 1000};
  return (struct lade_graph_plan_params){.struct_size = sizeof(struct lade_graph_plan_params),
                                         .budget_bytes = budget_bytes, .iterations = 4000, .seed = 3,
                                         .to_host = path, .from_host = path, .to_store = path, .from_store = path};
}

/* Plan, and check that a plan's figures equal those of its replay. Return the status. */
static int plan_check(const lade_graph *graph, const struct lade_graph_plan_params *params,
                      struct lade_graph_plan_info *ret_info)
{
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  struct lade_error error = {0};
  lade_graph_plan *plan = NULL;
  *ret_info = (struct lade_graph_plan_info){.struct_size = sizeof(*ret_info)};
  const int status = lade_graph_plan_find(graph, params, &error, ret_info, &plan);
  if (!status) {
    int n;
    const struct lade_graph_instr *instrs = lade_graph_plan_instrs(plan, &n);
    const int replayed = lade_graph_replay(graph, instrs, n, &error, &totals);
    if (replayed)
      print_message("%s\n", error.text);
    assert_int_equal(replayed, 0);
    assert_int_equal(totals.peak_bytes, ret_info->planned_peak_bytes);
    assert_int_equal(totals.compute_ns, ret_info->compute_ns);
    assert_int_equal(totals.moved_bytes, ret_info->moved_bytes);
    assert_int_equal(totals.host_peak_bytes, ret_info->host_bytes);
    assert_int_equal(totals.store_peak_bytes, ret_info->store_bytes);
    assert_true(ret_info->predicted_step_ns >= ret_info->compute_ns && ret_info->compute_ns >= ret_info->base_ns);
    assert_true(ret_info->predicted_step_ns >= ret_info->bound_ns && ret_info->bound_ns >= ret_info->base_ns);
    if (params->budget_bytes != LADE_GRAPH_BUDGET_MIN)
      assert_true(totals.peak_bytes <= params->budget_bytes);
  } else
    assert_true(status == -ENOSPC && error.text[0]);
  lade_graph_plan_destroy(plan);
  return status;
}

static void drawn_graphs_replay_within_the_budgets_of_all_tiers(void **state)
{
  int64_t n_moved = 0;
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    const struct random_graph_params given = {.seed = seed, .n_layers = 2 + (int)(seed % 15), .is_soup = seed % 3 == 2,
                                              .is_written_once = seed % 2, .has_tiers = seed % 4 == 3};
    lade_graph *graph = random_graph_make(&given);
    struct lade_graph_plan_params params = tiers_params(1, 1e9);
    struct lade_graph_plan_info info;
    uint64_t unconstrained_bytes = 0;
    assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, NULL), 0);
    for (uint64_t percent = 40; percent <= 100; percent += 20) {
      params.budget_bytes = LADE_MAX(unconstrained_bytes * percent / 100, 1);
      params.host_budget_bytes = percent == 60 ? 0 : 4096;
      params.store_budget_bytes = percent == 80 ? 0 : 2048;
      if (plan_check(graph, &params, &info))
        continue;
      n_moved += info.moved_bytes > 0;
      if (!given.has_tiers)
        assert_true(info.host_bytes <= params.host_budget_bytes && info.store_bytes <= params.store_budget_bytes);
    }
    params.budget_bytes = LADE_GRAPH_BUDGET_MIN;
    assert_int_equal(plan_check(graph, &params, &info), 0);
    lade_graph_destroy(graph);
  }
  assert_true(n_moved > GRAPHS / 4);
}

/* Rates from useless to fast: the search with tiers begins from the plan of recompute alone, if nothing is better. */
static void no_tier_makes_a_plan_slower(void **state)
{
  int n_faster = 0, n_equal = 0;
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    const struct random_graph_params given = {.seed = seed, .n_layers = 4 + (int)(seed % 15), .is_soup = seed % 3 == 2};
    lade_graph *graph = random_graph_make(&given);
    uint64_t unconstrained_bytes = 0;
    assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, NULL), 0);
    for (uint64_t percent = 50; percent <= 80; percent += 15) {
      struct lade_graph_plan_info alone, with_tiers;
      struct lade_graph_plan_params params = tiers_params(LADE_MAX(unconstrained_bytes * percent / 100, 1), 1e9);
      if (plan_check(graph, &params, &alone))
        continue;
      static const double rates[] = {1e3, 1e8, 1e12};
      params = tiers_params(params.budget_bytes, rates[(seed + percent / 5) % LADE_COUNT(rates)]);
      params.host_budget_bytes = params.store_budget_bytes = 4096;
      assert_int_equal(plan_check(graph, &params, &with_tiers), 0);
      assert_true(with_tiers.predicted_step_ns <= alone.predicted_step_ns);
      assert_true(with_tiers.min_budget_bytes <= alone.min_budget_bytes);
      n_faster += with_tiers.predicted_step_ns < alone.predicted_step_ns;
      n_equal += with_tiers.predicted_step_ns == alone.predicted_step_ns;
    }
    lade_graph_destroy(graph);
  }
  assert_true(n_faster > 10 && n_equal > 10);
}

/* A limit that has passed leaves the first releases of a descent. Recompute alone has them with tiers, too. */
static void what_recompute_alone_fits_in_time_is_fit_with_tiers(void **state)
{
  int n_fit = 0, n_refused = 0;
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    const struct random_graph_params given = {.seed = seed, .n_layers = 4 + (int)(seed % 30), .is_soup = seed % 3 == 2};
    lade_graph *graph = random_graph_make(&given);
    uint64_t unconstrained_bytes = 0;
    assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, NULL), 0);
    for (uint64_t percent = 50; percent <= 80; percent += 15) {
      struct lade_graph_plan_info alone, with_tiers;
      struct lade_graph_plan_params params = tiers_params(LADE_MAX(unconstrained_bytes * percent / 100, 1), 1e8);
      params.time_limit_ns = 1;
      const int status = plan_check(graph, &params, &alone);
      params.host_budget_bytes = params.store_budget_bytes = 4096;
      const int tiers_status = plan_check(graph, &params, &with_tiers);
      n_fit += !status;
      n_refused += status != 0;
      if (!status)
        assert_true(!tiers_status && with_tiers.predicted_step_ns <= alone.predicted_step_ns);
    }
    struct lade_graph_plan_params params = tiers_params(LADE_GRAPH_BUDGET_MIN, 1e8);
    struct lade_graph_plan_info info;
    params.time_limit_ns = 1 + (int64_t)seed * 10000;
    params.host_budget_bytes = 4096;
    assert_int_equal(plan_check(graph, &params, &info), 0);
    lade_graph_destroy(graph);
  }
  assert_true(n_fit > 10 && n_refused > 10);
}

/*
 * The smallest budget by recompute alone may be the peak of its plan, which is below all that were looked for, as in
 * graph 1197. A plan with tiers that is faster, and larger, still states it.
 */
static void no_tier_makes_the_smallest_budget_larger(void **state)
{
  int n_smaller = 0, n_equal = 0;
  for (uint64_t seed = 1197 - 3 * GRAPHS; seed <= 1197; seed += 3) {
    const struct random_graph_params given = {.seed = seed, .n_layers = 4 + (int)(seed % 15)};
    lade_graph *graph = random_graph_make(&given);
    uint64_t unconstrained_bytes = 0, floor_bytes = 0;
    assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, &floor_bytes), 0);
    const uint64_t near_bytes = floor_bytes + (unconstrained_bytes - floor_bytes) / 6;
    const uint64_t budgets[] = {near_bytes, LADE_GRAPH_BUDGET_MIN};
    for (size_t i = 0; i < LADE_COUNT(budgets); i++) {
      struct lade_graph_plan_info alone, with_tiers;
      struct lade_graph_plan_params params = tiers_params(budgets[i], 1e12);
      params.iterations = 1500;
      plan_check(graph, &params, &alone);
      params.host_budget_bytes = params.store_budget_bytes = seed % 2 ? 4096 : 256;
      plan_check(graph, &params, &with_tiers);
      assert_true(with_tiers.min_budget_bytes <= alone.min_budget_bytes);
      n_smaller += with_tiers.min_budget_bytes < alone.min_budget_bytes;
      n_equal += with_tiers.min_budget_bytes == alone.min_budget_bytes;
    }
    lade_graph_destroy(graph);
  }
  assert_true(n_smaller > 10 && n_equal > 10);
}

/*
 * Make a chain of up to LAYERS_MAX layers: each saves its output for its backward op, the first of which has the bytes
 * of @peak_layers layers as scratch.
 */
static lade_graph *chain_make(int n_layers, uint64_t peak_layers)
{
  lade_graph *graph;
  int saved[LAYERS_MAX + 1], gradient;
  struct lade_storage storage = {.struct_size = sizeof(storage), .name = "x", .bytes = LAYER_BYTES, .is_given = true};
  assert_int_equal(lade_graph_create(&graph), 0);
  assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &saved[0]), 0);
  storage.is_given = false;
  for (int i = 0; i < n_layers; i++) {
    assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &saved[i + 1]), 0);
    const struct lade_operand_range read = {.storage = saved[i]}, write = {.storage = saved[i + 1]};
    const struct lade_graph_op op = {.struct_size = sizeof(op), .name = "f", .reads = &read, .n_reads = 1,
                                     .writes = &write, .n_writes = 1, .ns = LAYER_NS};
    assert_int_equal(lade_graph_add_op(graph, &op, NULL, NULL), 0);
  }
  gradient = saved[n_layers];
  for (int i = n_layers - 1; i >= 0; i--) {
    const struct lade_operand_range reads[] = {{.storage = saved[i]}, {.storage = gradient}};
    assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &gradient), 0);
    const struct lade_operand_range write = {.storage = gradient};
    const struct lade_graph_op op = {.struct_size = sizeof(op), .name = "b", .reads = reads, .n_reads = 2,
                                     .writes = &write, .n_writes = 1, .ns = 2 * LAYER_NS,
                                     .scratch_bytes = i == n_layers - 1 ? peak_layers * LAYER_BYTES : 0};
    assert_int_equal(lade_graph_add_op(graph, &op, NULL, NULL), 0);
  }
  assert_int_equal(lade_graph_keep(graph, gradient, NULL), 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  return graph;
}

/* To let a held value wait on a tier may release it. The search then released it where it was not held any more. */
static void a_value_that_its_new_source_releases_is_released_once(void **state)
{
  uint64_t unconstrained_bytes, floor_bytes;
  const struct random_graph_params given = {.seed = 127, .n_layers = 4};
  lade_graph *graph = random_graph_make(&given);
  struct lade_graph_plan_info info;
  assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, &floor_bytes), 0);
  struct lade_graph_plan_params params = tiers_params(floor_bytes + (unconstrained_bytes - floor_bytes) / 7 + 1, 1e9);
  params.host_budget_bytes = params.store_budget_bytes = 4096;
  params.iterations = 1500;
  params.seed = 0;
  plan_check(graph, &params, &info);
  lade_graph_destroy(graph);
}

/* A link that moves a layer in half the time of its op hides transfers that recompute would pay for. */
static void a_fast_link_is_used_and_a_slow_one_is_not(void **state)
{
  lade_graph *graph = chain_make(LAYERS, 0);
  const double fast = LAYER_BYTES / (LAYER_NS * 0.5e-9);
  struct lade_graph_plan_params params = tiers_params(LAYERS * LAYER_BYTES / 2, fast);
  struct lade_graph_plan_info alone, moved, slow;
  params.iterations = 30000;
  assert_int_equal(plan_check(graph, &params, &alone), 0);
  assert_true(alone.moved_bytes == 0 && alone.n_redone > 0 && alone.predicted_step_ns == alone.compute_ns);
  for (int tier = LADE_HOST; tier <= LADE_STORE; tier++) {
    params.host_budget_bytes = tier == LADE_HOST ? LAYERS * LAYER_BYTES : 0;
    params.store_budget_bytes = tier == LADE_STORE ? LAYERS * LAYER_BYTES : 0;
    assert_int_equal(plan_check(graph, &params, &moved), 0);
    assert_true(moved.moved_bytes > 0 && moved.predicted_step_ns < alone.predicted_step_ns);
    assert_true((moved.host_bytes > 0) == (tier == LADE_HOST) && (moved.store_bytes > 0) == (tier == LADE_STORE));
  }
  params = tiers_params(LAYERS * LAYER_BYTES / 2, 1000); /* a layer takes a quarter of an hour */
  params.iterations = 30000;
  params.host_budget_bytes = LAYERS * LAYER_BYTES;
  assert_int_equal(plan_check(graph, &params, &slow), 0);
  assert_true(slow.moved_bytes == 0 && slow.predicted_step_ns == slow.compute_ns);
  lade_graph_destroy(graph);
}

struct chain_bench {
  lade_graph *graph;
  struct remat_problem problem;
  struct list_time links;
  struct remat_schedule schedule;
};

/* Make the schedule of a chain that holds everything. A link moves a layer in @pace times the time of its op. */
static void chain_open(struct chain_bench *bench, int n_layers, uint64_t peak_layers, double pace)
{
  const struct lade_graph_plan_params params = tiers_params(0, LAYER_BYTES / (LAYER_NS * pace * 1e-9));
  bench->graph = chain_make(n_layers, peak_layers);
  assert_int_equal(remat_problem_init(&bench->problem, bench->graph, LADE_HOST), 0);
  assert_int_equal(list_time_init(&bench->links, &bench->problem, &params), 0);
  assert_int_equal(remat_schedule_init(&bench->schedule, &bench->problem, UINT64_MAX, NULL, 0), 0);
  remat_waiting_limit(&bench->schedule, LADE_HOST, UINT64_MAX);
}

static void chain_close(struct chain_bench *bench)
{
  remat_schedule_finish(&bench->schedule);
  list_time_finish(&bench->links);
  remat_problem_finish(&bench->problem);
  lade_graph_destroy(bench->graph);
}

/* Let the outputs of the first @n layers wait on the host from their last use forward to their use backward. */
static void layers_put(struct chain_bench *bench, int n)
{
  for (int v = 0; v < bench->problem.n_values; v++) {
    const int birth = bench->problem.values[v].birth;
    if (birth < 0 || birth >= n)
      continue;
    remat_source_set(&bench->schedule, v, LADE_HOST);
    assert_true(remat_release_around(&bench->schedule, v, birth + 2));
  }
  assert_true(!bench->schedule.is_broken && !bench->schedule.status);
}

/*
 * The first 60 % of the layers leave one after the other, while memory is not full yet. The link takes 1.5 times as
 * long as the ops, so it is behind by 80 layers, and no op has to wait for it.
 */
static void puts_under_way_are_waited_for_when_their_bytes_are_needed(void **state)
{
  const int n_layers = 400, n_put = n_layers * 3 / 5;
  struct chain_bench bench;
  chain_open(&bench, n_layers, 0, 1.5);
  layers_put(&bench, n_put);
  turn_bytes_limit(&bench.schedule.bytes, (n_layers - n_put + 5) * LAYER_BYTES);
  assert_int_equal(remat_prefetch(&bench.schedule, &bench.links), 0);
  assert_true(list_time_get(&bench.links, &bench.schedule) <= 1.001 * (double)bench.problem.base_ns);
  turn_bytes_limit(&bench.schedule.bytes, (n_layers - n_put + 5) * LAYER_BYTES / 2); /* now ops wait for bytes */
  assert_true(list_time_get(&bench.links, &bench.schedule) >= 1.01 * (double)bench.problem.base_ns);
  chain_close(&bench);
}

/*
 * Return the ops of turns that a prefetch evaluates. All layers wait, and the links are too slow for them. The turn of
 * the peak has no room for a layer, so many gets begin right after it.
 */
static int64_t prefetch_work(int n_layers)
{
  const uint64_t n_room = (uint64_t)n_layers / 2;
  struct chain_bench bench;
  chain_open(&bench, n_layers, n_room - 5, 5);
  layers_put(&bench, n_layers - 2);
  turn_bytes_limit(&bench.schedule.bytes, (int64_t)n_room * LAYER_BYTES);
  const double late_ns = list_time_get(&bench.links, &bench.schedule);
  const int64_t before = bench.schedule.work;
  assert_int_equal(remat_prefetch(&bench.schedule, &bench.links), 0);
  assert_true(remat_over(&bench.schedule) == 0 && list_time_get(&bench.links, &bench.schedule) < late_ns);
  assert_true(remat_schedule_is_valid(&bench.schedule));
  const int64_t work = bench.schedule.work - before;
  chain_close(&bench);
  return work;
}

static void a_prefetch_evaluates_turns_in_proportion_to_the_gets(void **state)
{
  const int64_t few = prefetch_work(LAYERS_MAX / 4), many = prefetch_work(LAYERS_MAX);
  assert_true(many < 6 * few);
}

/* Optimizer state on the host is on the device for its update alone. */
static void given_storages_of_other_tiers_are_moved(void **state)
{
  lade_graph *graph;
  int weight, host, drive;
  struct lade_storage storage = {.struct_size = sizeof(storage), .name = "w", .bytes = 100, .is_given = true};
  struct lade_graph_plan_params params = tiers_params(LADE_GRAPH_BUDGET_NONE, 1e9);
  struct lade_graph_plan_info info;
  struct lade_error error = {0};
  lade_graph_plan *plan = NULL;
  assert_int_equal(lade_graph_create(&graph), 0);
  assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &weight), 0);
  storage = (struct lade_storage){.struct_size = sizeof(storage), .name = "m", .bytes = 1000, .is_given = true,
                                  .tier = LADE_HOST};
  assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &host), 0);
  storage.name = "table";
  storage.tier = LADE_STORE;
  assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &drive), 0);
  const struct lade_operand_range table = {.storage = drive};
  const struct lade_operand_range both[] = {{.storage = weight}, {.storage = host}};
  const struct lade_graph_op look = {.struct_size = sizeof(look), .name = "look", .reads = &table, .n_reads = 1,
                                     .updates = both, .n_updates = 1, .ns = 10};
  const struct lade_graph_op update = {.struct_size = sizeof(update), .name = "update", .updates = both,
                                       .n_updates = 2, .ns = 10};
  assert_int_equal(lade_graph_add_op(graph, &look, NULL, NULL), 0);
  assert_int_equal(lade_graph_add_op(graph, &update, NULL, NULL), 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  params.budget_bytes = 1100;
  assert_int_equal(plan_check(graph, &params, &info), 0);
  assert_int_equal(info.planned_peak_bytes, 1100); /* one of the two at a time */
  assert_int_equal(info.moved_bytes, 3000);        /* the table is read only, and dropped */
  /* The state comes, both ops run, and the state goes back. The bound is rounded down. */
  assert_in_range(info.bound_ns, 2000 + 10 + 10 + 2000 - 1, 2000 + 10 + 10 + 2000);
  params.to_store.bytes_per_s = 0;
  assert_int_equal(lade_graph_plan_find(graph, &params, &error, NULL, &plan), -EINVAL);
  assert_true(strstr(error.text, "\"table\"") && !plan);
  lade_graph_destroy(graph);
}

/* ---- given storages of the device ---- */

#define STEP_LAYERS 8
#define STATE_BYTES 3000

/* Add an op that may not run again, and reads, writes and updates one storage each; -1: none. */
static void op_add(lade_graph *graph, int read, int more, int write, int update)
{
  const struct lade_operand_range reads[] = {{.storage = read}, {.storage = more}}, writes = {.storage = write},
                                  updates = {.storage = update};
  const struct lade_graph_op op = {.struct_size = sizeof(op), .name = "op", .reads = reads,
                                   .n_reads = (read >= 0) + (more >= 0), .writes = &writes, .n_writes = write >= 0,
                                   .updates = &updates, .n_updates = update >= 0, .ns = 10000, .is_once = true};
  assert_int_equal(lade_graph_add_op(graph, &op, NULL, NULL), 0);
}

static int storage_add(lade_graph *graph, uint64_t bytes, bool is_given)
{
  int index;
  const struct lade_storage storage = {.struct_size = sizeof(storage), .name = "s", .bytes = bytes,
                                       .is_given = is_given};
  assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &index), 0);
  return index;
}

/* Make a step whose activations and optimizer state need about as many bytes, at different times. */
static lade_graph *step_with_state_make(void)
{
  lade_graph *graph;
  int saved[STEP_LAYERS + 1], state[STEP_LAYERS], gradient;
  assert_int_equal(lade_graph_create(&graph), 0);
  saved[0] = storage_add(graph, 2000, true);
  for (int i = 0; i < STEP_LAYERS; i++) {
    state[i] = storage_add(graph, STATE_BYTES, true);
    saved[i + 1] = storage_add(graph, 2000, false);
    op_add(graph, saved[i], -1, saved[i + 1], -1);
  }
  gradient = saved[STEP_LAYERS];
  for (int i = STEP_LAYERS - 1; i >= 0; i--) {
    const int made = storage_add(graph, 2000, false);
    op_add(graph, saved[i], gradient, made, -1);
    gradient = made;
  }
  for (int i = 0; i < STEP_LAYERS; i++)
    op_add(graph, gradient, -1, -1, state[i]);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  return graph;
}

/* State of the device waits on the host while activations need its bytes, and is back at the end of the step. */
static void given_storages_of_the_device_wait_while_they_are_not_used(void **state)
{
  const uint64_t state_bytes = STEP_LAYERS * STATE_BYTES, budget_bytes = state_bytes + 6000;
  lade_graph *graph = step_with_state_make();
  struct lade_graph_plan_params params = tiers_params(budget_bytes, 1e9);
  struct lade_graph_plan_info info;
  params.iterations = 20000;
  assert_int_equal(plan_check(graph, &params, &info), -ENOSPC); /* no op may run again */
  params.host_budget_bytes = 2 * state_bytes;
  assert_int_equal(plan_check(graph, &params, &info), 0);
  assert_true(info.moved_bytes > 0 && info.host_bytes > 0 && info.planned_peak_bytes <= budget_bytes);
  params.budget_bytes = state_bytes; /* the given storages are 2,000 bytes more as the step begins */
  assert_int_equal(plan_check(graph, &params, &info), -ENOSPC);
  assert_int_equal(info.floor_bytes, state_bytes + 2000);
  lade_graph_destroy(graph);
}

/* Values that wait one after the other need the bytes of one. */
static void bytes_on_a_tier_count_while_they_are_there(void **state)
{
  lade_graph *graph;
  const int n = 4, bytes = 1000;
  assert_int_equal(lade_graph_create(&graph), 0);
  for (int i = 0; i < n; i++) { /* make, change, need all memory, use: one value at a time */
    const int value = storage_add(graph, (uint64_t)bytes, false), wide = storage_add(graph, 2000, false);
    op_add(graph, -1, -1, value, -1);
    op_add(graph, -1, -1, -1, value);
    op_add(graph, -1, -1, wide, -1);
    op_add(graph, value, -1, -1, -1);
  }
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  struct lade_graph_plan_params params = tiers_params(2000, 1e9);
  struct lade_graph_plan_info info;
  params.host_budget_bytes = (uint64_t)bytes;
  assert_int_equal(plan_check(graph, &params, &info), 0);
  assert_int_equal(info.host_bytes, bytes);
  assert_int_equal(info.moved_bytes, 2 * n * bytes);
  params.host_budget_bytes = (uint64_t)bytes - 1;
  assert_int_equal(plan_check(graph, &params, &info), -ENOSPC);
  lade_graph_destroy(graph);
}

/* A list may drop a made storage before a write of all of it: within 65 bytes one of all ops once. */
static void later_contents_have_no_higher_bound(void **state)
{
  char text[] = "{\"schema_version\":1,\"addresses\":false,\"storages\":[{\"name\":\"w\",\"bytes\":44,\"given\":true},"
                "{\"name\":\"a\",\"bytes\":21},{\"name\":\"b\",\"bytes\":13}],\"ops\":["
                "{\"name\":\"m\",\"reads\":[],\"writes\":[1],\"ns\":1},"
                "{\"name\":\"f\",\"reads\":[0],\"writes\":[2],\"ns\":5000},"
                "{\"name\":\"u\",\"reads\":[1],\"writes\":[],\"ns\":4000},"
                "{\"name\":\"s\",\"reads\":[],\"writes\":[[2,0,13]],\"ns\":1}]}";
  char *const end = strstr(text, "13]]");
  for (int is_whole = 0; is_whole < 2; is_whole++) {
    const struct lade_graph_plan_params params = tiers_params(65, 1e9);
    struct lade_graph_plan_info info;
    lade_graph *graph;
    end[1] = is_whole ? '3' : '2';
    assert_int_equal(lade_graph_parse(text, strlen(text), NULL, &graph), 0);
    assert_int_equal(plan_check(graph, &params, &info), 0);
    assert_true(info.n_redone > 0 && is_whole == (info.bound_ns == info.base_ns));
    lade_graph_destroy(graph);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(drawn_graphs_replay_within_the_budgets_of_all_tiers),
      cmocka_unit_test(a_value_that_its_new_source_releases_is_released_once),
      cmocka_unit_test(later_contents_have_no_higher_bound),
      cmocka_unit_test(no_tier_makes_a_plan_slower),
      cmocka_unit_test(what_recompute_alone_fits_in_time_is_fit_with_tiers),
      cmocka_unit_test(no_tier_makes_the_smallest_budget_larger),
      cmocka_unit_test(a_fast_link_is_used_and_a_slow_one_is_not),
      cmocka_unit_test(puts_under_way_are_waited_for_when_their_bytes_are_needed),
      cmocka_unit_test(a_prefetch_evaluates_turns_in_proportion_to_the_gets),
      cmocka_unit_test(given_storages_of_other_tiers_are_moved),
      cmocka_unit_test(given_storages_of_the_device_wait_while_they_are_not_used),
      cmocka_unit_test(bytes_on_a_tier_count_while_they_are_there),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
