/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: larger budgets are never slower, every plan is within its budget and proved, and the smallest budget is
 * a sharp limit. Recipes, residency overrides and absent tiers are respected. Programs themselves are tested in
 * test_proof.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "recompute/change_price.h"
#include "recompute/plan.h"
#include "tests/support/interleave.h"
#include "tests/support/names.h"
#include "tests/support/program_fixture.h"

#define CHUNK 65536
#define PLENTY (UINT64_C(1) << 32)

/* A planner with the objects that it borrows. */
struct desk {
  struct lade_model_graph *graph;
  struct lade_prices prices;
  struct lade_plan_params params;
  lade_planner *planner;
  struct lade_plan_bounds bounds;
};

/* The machines that a plan may meet: the tiers that exist, and whether copies must be staged. */
static const struct tiers {
  uint64_t host_bytes, store_bytes;
  bool is_unified;
} machines[] = {{0, 0, false}, {PLENTY, 0, false}, {PLENTY, PLENTY, false}, {0, PLENTY, true}};

static void desk_open(struct desk *desk, enum lade_family family, const struct tiers *tiers)
{
  *desk = (struct desk){.graph = program_fixture_graph(family, LADE_BF16, 0)};
  desk->prices = program_fixture_prices(desk->graph);
  desk->params = (struct lade_plan_params){.struct_size = sizeof(desk->params), .graph = desk->graph,
                                           .n_microbatches = 1, .is_unified = tiers->is_unified,
                                           .chunk_bytes = CHUNK, .host_bytes = tiers->host_bytes,
                                           .store_bytes = tiers->store_bytes};
}

static void desk_start(struct desk *desk)
{
  struct lade_error error = {0};
  desk->params.prices = &desk->prices;
  assert_int_equal(lade_planner_create(&desk->params, &error, &desk->planner), 0);
  assert_int_equal(lade_planner_get_bounds(desk->planner, &desk->bounds), 0);
}

static void desk_close(struct desk *desk)
{
  lade_planner_destroy(desk->planner);
  program_fixture_prices_finish(&desk->prices);
  lade_model_graph_destroy(desk->graph);
}

static struct lade_plan *plan_get(const struct desk *desk, uint64_t budget_bytes)
{
  struct lade_error error = {0};
  struct lade_plan *plan = NULL;
  int status = lade_planner_plan(desk->planner, budget_bytes, &error, &plan);
  if (status)
    print_message("%s\n", error.text);
  assert_int_equal(status, 0);
  return plan;
}

static void assert_within(const struct desk *desk, struct lade_plan *plan, uint64_t budget_bytes)
{
  assert_true(plan->train->is_proved && plan->eval->is_proved);
  for (int space = 0; space < LADE_N_SPACES; space++) {
    assert_int_equal(plan->peak_bytes[space],
                     LADE_MAX(plan->train->peak_bytes[space], plan->eval->peak_bytes[space]));
  }
  assert_true(plan->peak_bytes[LADE_DEVICE] <= budget_bytes);
  assert_true(plan->peak_bytes[LADE_DEVICE] >= desk->bounds.min_bytes);
  assert_int_equal(plan->peak_bytes[LADE_DEVICE] % CHUNK, 0);
  assert_int_equal(plan->predicted_ns, plan->train->predicted_ns);
  assert_int_equal(lade_program_prove(plan->train, plan->peak_bytes, NULL), 0);
  assert_int_equal(lade_program_prove(plan->eval, plan->peak_bytes, NULL), 0);
}

/* Open one planner for each machine, for the tests that share them. */
static int desks_open(void **state)
{
  static struct desk desks[LADE_COUNT(machines)];
  for (size_t k = 0; k < LADE_COUNT(machines); k++) {
    desk_open(&desks[k], LADE_GPT2, &machines[k]);
    desk_start(&desks[k]);
  }
  *state = desks;
  return 0;
}

static int desks_close(void **state)
{
  for (size_t k = 0; k < LADE_COUNT(machines); k++)
    desk_close(&((struct desk *)*state)[k]);
  return 0;
}

/* Budgets drawn from the smallest to past the unconstrained one, ascending. */
/* Most plans are also found for as many bytes as they take: on the step above that budget. */
static void larger_budgets_are_never_slower(void **state)
{
  const struct desk *desks = *state;
  uint32_t seed = 17;
  int n_budgets = 0, n_found = 0;
  for (size_t k = 0; k < LADE_COUNT(machines); k++) {
    const struct desk desk = desks[k];
    int64_t before_ns = INT64_MAX;
    uint64_t step = (desk.bounds.unconstrained_bytes - desk.bounds.min_bytes) / 4;
    for (uint64_t budget = desk.bounds.min_bytes; budget < desk.bounds.unconstrained_bytes + 2 * step;
         budget += 1 + program_fixture_draw(&seed, (uint32_t)(2 * step + 1))) {
      struct lade_plan *plan = plan_get(&desk, budget), *small = plan_get(&desk, plan->peak_bytes[LADE_DEVICE]);
      assert_within(&desk, plan, budget);
      assert_true(plan->predicted_ns <= before_ns);
      n_found += small->predicted_ns == plan->predicted_ns;
      n_budgets++;
      before_ns = plan->predicted_ns;
      lade_plan_destroy(small);
      lade_plan_destroy(plan);
    }
    struct lade_plan *plan = plan_get(&desk, UINT64_MAX / 4);
    assert_true(plan->predicted_ns <= desk.bounds.unconstrained_ns);
    assert_true(plan->predicted_ns <= before_ns);
    lade_plan_destroy(plan);
  }
  assert_true(n_found >= n_budgets * 2 / 3); /* 29 of 36; without that step a quarter */
}

static void the_smallest_budget_is_an_edge(void **state)
{
  const struct desk *desks = *state;
  for (size_t k = 0; k < LADE_COUNT(machines); k++) {
    const struct desk desk = desks[k];
    struct lade_error error = {0};
    struct lade_plan *plan;
    char min[32];
    assert_true(desk.bounds.min_bytes >= desk.bounds.lower_bound_bytes);
    assert_true(desk.bounds.min_bytes <= desk.bounds.unconstrained_bytes);
    plan = plan_get(&desk, desk.bounds.min_bytes);
    assert_within(&desk, plan, desk.bounds.min_bytes);
    assert_true(interleave_runs(plan->train, 3));
    assert_true(interleave_runs(plan->eval, 5));
    lade_plan_destroy(plan);
    plan = (struct lade_plan *)&desk; /* untouched on failure */
    assert_int_equal(lade_planner_plan(desk.planner, desk.bounds.min_bytes - CHUNK, &error, &plan), -EOVERFLOW);
    assert_ptr_equal(plan, &desk);
    snprintf(min, sizeof(min), "%llu bytes", (unsigned long long)desk.bounds.min_bytes);
    assert_non_null(strstr(error.text, min));
    assert_int_equal(lade_planner_plan(desk.planner, 0, &error, &plan), -EOVERFLOW);
  }
}

/* A machine's measurements decide the speed of a plan, not whether it fits. */
static void the_smallest_budget_is_no_matter_of_prices(void **state)
{
  const struct desk *desks = *state;
  uint32_t seed = 41;
  for (size_t k = 0; k < LADE_COUNT(machines); k++) {
    struct desk other;
    desk_open(&other, LADE_GPT2, &machines[k]);
    for (int op = 0; op < other.graph->n_ops; op++)
      other.prices.op_ns[op] *= 1 + program_fixture_draw(&seed, 60);
    for (int param = 0; param < other.graph->n_params; param++)
      other.prices.update_ns[LADE_TIER_HOST][param] *= 1 + program_fixture_draw(&seed, 60);
    other.prices.to_host.ns_per_byte = 20;
    other.prices.read.ns_per_byte = 0.01;
    desk_start(&other);
    assert_int_equal(other.bounds.min_bytes, desks[k].bounds.min_bytes);
    desk_close(&other);
  }
}

static void tiers_make_room(void **state)
{
  const struct desk *desks = *state;
  uint64_t min[LADE_COUNT(machines)];
  for (size_t k = 0; k < LADE_COUNT(machines); k++)
    min[k] = desks[k].bounds.min_bytes;
  assert_true(min[1] < min[0] && min[2] <= min[1] && min[3] < min[0]);
}

/* Gradients that do not wait for each other need less memory; and if that saves none it costs none. */
static void early_updates_make_room(void **state)
{
  const struct desk *desks = *state;
  for (size_t k = 0; k < LADE_COUNT(machines); k++) {
    struct desk early;
    desk_open(&early, LADE_GPT2, &machines[k]);
    early.params.optimizer_in_backward = true;
    desk_start(&early);
    assert_true(early.bounds.min_bytes >= early.bounds.lower_bound_bytes);
    assert_true(early.bounds.lower_bound_bytes <= desks[k].bounds.lower_bound_bytes);
    assert_true(early.bounds.min_bytes <= desks[k].bounds.min_bytes);
    if (!machines[k].host_bytes && !machines[k].store_bytes)
      assert_true(early.bounds.min_bytes < desks[k].bounds.lower_bound_bytes);
    struct lade_plan *plan = plan_get(&early, early.bounds.min_bytes);
    assert_within(&early, plan, early.bounds.min_bytes);
    assert_true(interleave_runs(plan->train, 3));
    lade_plan_destroy(plan);
    desk_close(&early);
  }
}

/* Without a host tier the host holds only the buffers that the caller exchanges with a step. */
static void an_absent_tier_is_not_used(void **state)
{
  const struct desk *desks = *state;
  for (size_t k = 0; k < LADE_COUNT(machines); k++) {
    const struct desk desk = desks[k];
    struct lade_plan *plan = plan_get(&desk, desk.bounds.min_bytes);
    if (!machines[k].store_bytes)
      assert_int_equal(plan->peak_bytes[LADE_STORE], 0);
    for (int i = 0; i < plan->train->n_buffers && !machines[k].host_bytes; i++) {
      const struct lade_buffer *buffer = &plan->train->buffers[i];
      assert_true(buffer->space != LADE_HOST || (buffer->is_resident && buffer->owner == LADE_OWNER_TRANSIENT));
    }
    lade_plan_destroy(plan);
  }
}

/* ---- recipes and residency overrides ---- */

static void runs_count(const struct lade_program *program, int *n_runs)
{
  memset(n_runs, 0, (size_t)program->graph->n_ops * sizeof(*n_runs));
  for (int at = 0; at < program->n_instrs; at++) {
    if (program->instrs[at].kind == LADE_INSTR_COMPUTE)
      n_runs[program->instrs[at].op]++;
  }
}

static void recipes_are_followed(void **state)
{
  for (int recipe = LADE_RECIPE_NONE; recipe < LADE_N_RECIPES; recipe++) {
    struct desk desk;
    desk_open(&desk, recipe % 2 ? LADE_LLAMA : LADE_GPT2, &machines[2]);
    desk.params.recipe = (enum lade_recipe)recipe;
    desk.params.n_microbatches = 2;
    desk_start(&desk);
    int *n_runs = calloc((size_t)desk.graph->n_ops, sizeof(*n_runs)), n_again = 0;
    struct lade_plan *plan = plan_get(&desk, desk.bounds.unconstrained_bytes);
    runs_count(plan->train, n_runs);
    for (int op = 0; op < desk.graph->n_ops; op++) {
      bool is_forward = op < desk.graph->n_fwd_ops;
      assert_in_range(n_runs[op], 2, is_forward ? 4 : 2); /* two microbatches, each at most twice */
      n_again += n_runs[op] > 2;
      if (recipe == LADE_RECIPE_SELECTIVE && desk.graph->ops[op].kind == LADE_OP_MATMUL)
        assert_int_equal(n_runs[op], 2);
    }
    assert_true(recipe == LADE_RECIPE_NONE ? n_again == 0 : n_again > 0);
    for (int i = 0; i < desk.graph->n_tensors; i++) {
      int producer = desk.graph->tensors[i].producer;
      if (desk.graph->tensors[i].kind == LADE_TENSOR_ACTIVATION && producer >= 0 && producer < desk.graph->n_fwd_ops)
        assert_true(plan->residency->choices[i].saved <= LADE_RESIDENCY_RECOMPUTE);
    }
    free(n_runs);
    lade_plan_destroy(plan);
    desk_close(&desk);
  }
}

static void pins_are_kept(void **state)
{
  struct desk desk;
  desk_open(&desk, LADE_GPT2, &machines[2]);
  struct lade_change overrides[8];
  int n = 0;
  static const uint8_t waits[] = {LADE_RESIDENCY_KEEP, LADE_RESIDENCY_RECOMPUTE, LADE_RESIDENCY_HOST,
                                  LADE_RESIDENCY_STORE};
  for (int op = desk.graph->n_fwd_ops; op < desk.graph->n_ops && n < 4; op++) {
    for (int i = 0; i < desk.graph->ops[op].n_in && n < 4; i++) {
      int tensor = desk.graph->ops[op].in[i];
      if (tensor >= 0 && desk.graph->tensors[tensor].kind == LADE_TENSOR_ACTIVATION &&
          desk.graph->tensors[tensor].producer < desk.graph->n_fwd_ops && (n == 0 || overrides[n - 1].id != tensor)) {
        overrides[n] = (struct lade_change){LADE_CHANGE_SAVED, waits[n], tensor};
        n++;
      }
    }
  }
  assert_int_equal(n, 4);
  overrides[n++] = (struct lade_change){LADE_CHANGE_STATE, LADE_TIER_DEVICE, 0};
  overrides[n++] = (struct lade_change){LADE_CHANGE_STATE, LADE_TIER_STORE, 1};
  overrides[n++] = (struct lade_change){LADE_CHANGE_WEIGHT, LADE_TIER_DEVICE, 1};
  overrides[n++] = (struct lade_change){LADE_CHANGE_WEIGHT, LADE_TIER_HOST, 2};
  desk.params.overrides = overrides;
  desk.params.n_overrides = n;
  desk_start(&desk);
  const uint64_t budgets[] = {desk.bounds.min_bytes, (desk.bounds.min_bytes + desk.bounds.unconstrained_bytes) / 2,
                              desk.bounds.unconstrained_bytes};
  for (size_t k = 0; k < LADE_COUNT(budgets); k++) {
    struct lade_plan *plan = plan_get(&desk, budgets[k]);
    for (int i = 0; i < 4; i++)
      assert_int_equal(plan->residency->choices[overrides[i].id].saved, overrides[i].to);
    assert_int_equal(plan->residency->state_tiers[0], LADE_TIER_DEVICE);
    assert_int_equal(plan->residency->state_tiers[1], LADE_TIER_STORE);
    assert_int_equal(plan->residency->weight_tiers[1], LADE_TIER_DEVICE);
    assert_int_equal(plan->residency->weight_tiers[2], LADE_TIER_HOST);
    assert_true(plan->residency->state_tiers[2] >= LADE_TIER_HOST);
    lade_plan_destroy(plan);
  }
  desk_close(&desk);
}

/* Nothing else is the planner's choice: state leaves the device, working copies and activations stay. */
static void working_copies_stay_where_only_state_may_leave(void **state)
{
  struct desk desk;
  desk_open(&desk, LADE_GPT2, &machines[1]);
  desk.params.recipe = LADE_RECIPE_NONE;
  desk_start(&desk);
  int n_apart = 0;
  for (int k = 1; k < 8; k++) {
    struct lade_plan *plan = plan_get(&desk, desk.bounds.min_bytes +
                                                 (desk.bounds.unconstrained_bytes - desk.bounds.min_bytes) / 8 * k);
    for (int i = 0; i < desk.graph->n_params; i++)
      n_apart += plan->residency->weight_tiers[i] < plan->residency->state_tiers[i];
    lade_plan_destroy(plan);
  }
  assert_true(n_apart > 0);
  desk_close(&desk);
}

/*
 * A descent only ever moves away from keeping, so it ends whatever is fixed: also if one of a group must be kept while
 * the others may go to either tier.
 */
static void walks_end_whatever_is_fixed(void **state)
{
  uint32_t seed = 5;
  for (int round = 0; round < 12; round++) {
    struct desk desk;
    desk_open(&desk, LADE_LLAMA, &machines[3]);
    const struct lade_model_graph *graph = desk.graph;
    struct lade_change *overrides = calloc((size_t)lade_change_count(graph), sizeof(*overrides));
    int n = 0;
    assert_non_null(overrides);
    for (int i = 0; i < graph->n_tensors; i++) {
      const bool is_grad = graph->tensors[i].kind == LADE_TENSOR_GRAD;
      if (lade_tensor_is_repeatable(graph, i) || (is_grad && program_fixture_draw(&seed, 3) == 0))
        overrides[n++] = (struct lade_change){LADE_CHANGE_SAVED, is_grad ? LADE_RESIDENCY_KEEP : LADE_RESIDENCY_HOST,
                                              i};
    }
    for (int param = 0; param < graph->n_params; param++) {
      if (program_fixture_draw(&seed, 3) == 0)
        overrides[n++] = (struct lade_change){LADE_CHANGE_STATE, LADE_TIER_DEVICE, param};
    }
    desk.params.overrides = overrides;
    desk.params.n_overrides = n;
    desk.params.host_bytes = PLENTY;
    desk.params.n_microbatches = 2;
    desk_start(&desk);
    assert_in_range(desk.bounds.n_states, 1, 10 * lade_change_count(graph));
    desk_close(&desk);
    free(overrides);
  }
}

/*
 * Return the smallest budget of a rank with a host tier, alone (@zero 0) or one of four, if @overrides are all that is
 * fixed.
 */
static uint64_t pinned_min(enum lade_family family, int zero, enum lade_recipe recipe,
                           const struct lade_change *overrides, int n_overrides)
{
  struct desk desk;
  struct lade_layout layout;
  const struct lade_layout_params layout_params = {.struct_size = sizeof(layout_params), .dp = zero ? 4 : 1,
                                                   .zero = zero};
  assert_int_equal(lade_layout_init(&layout_params, NULL, &layout), 0);
  desk_open(&desk, family, &machines[1]);
  desk.params.layout = &layout;
  desk.params.chunk_bytes = LADE_BUFFER_ALIGN;
  desk.params.recipe = recipe;
  desk.params.overrides = overrides;
  desk.params.n_overrides = n_overrides;
  desk_start(&desk);
  const uint64_t min_bytes = desk.bounds.min_bytes;
  desk_close(&desk);
  return min_bytes;
}

/*
 * Fill in @overrides: @kind with tier @tier for all parameters whose names begin with @prefix. Return their number,
 * above 0.
 */
static int overrides_add(const struct lade_model_graph *graph, const char *prefix, enum lade_change_kind kind,
                         enum lade_tier tier,
                         struct lade_change *overrides)
{
  int n = 0;
  for (int i = 0; i < graph->n_params; i++) {
    if (strncmp(graph->tensors[graph->params[i].tensor].name, prefix, strlen(prefix)) == 0)
      overrides[n++] = (struct lade_change){(uint8_t)kind, (uint8_t)tier, i};
  }
  assert_true(n > 0);
  return n;
}

/*
 * A block is no tensor of the graph, and not every gathered copy is idle at the peak; overrides can send both to the
 * host.
 */
static void blocks_leave_where_a_person_would_send_them(void **state)
{
  for (int family = LADE_GPT2; family <= LADE_LLAMA; family++) {
    struct lade_model_graph *graph = program_fixture_graph((enum lade_family)family, LADE_BF16, 0);
    struct lade_change *overrides = calloc((size_t)graph->n_params, sizeof(*overrides));
    assert_non_null(overrides);
    /* and their state with them */
    const int n = overrides_add(graph, "", LADE_CHANGE_WEIGHT, LADE_TIER_HOST, overrides);
    for (int zero = 1; zero <= LADE_ZERO_MAX; zero++)
      assert_true(pinned_min((enum lade_family)family, zero, LADE_RECIPE_AUTO, NULL, 0) <=
                  pinned_min((enum lade_family)family, zero, LADE_RECIPE_AUTO, overrides, n));
    free(overrides);
    lade_model_graph_destroy(graph);
  }
}

/*
 * If working copies must stay, an override that sends state to the host makes no budget larger. With activations kept,
 * no gradient waits at the peak that could tell of its parameter.
 */
static void a_pinned_layer_does_not_hold_the_others(void **state)
{
  struct lade_model_graph *graph = program_fixture_graph(LADE_GPT2, LADE_BF16, 0);
  struct lade_change *overrides = calloc((size_t)graph->n_params * 2, sizeof(*overrides));
  assert_non_null(overrides);
  int n = overrides_add(graph, "", LADE_CHANGE_WEIGHT, LADE_TIER_DEVICE, overrides);
  const uint64_t free_bytes = pinned_min(LADE_GPT2, 0, LADE_RECIPE_NONE, overrides, n);
  n += overrides_add(graph, "h.0.", LADE_CHANGE_STATE, LADE_TIER_HOST, overrides + n);
  assert_true(pinned_min(LADE_GPT2, 0, LADE_RECIPE_NONE, overrides, n) <= free_bytes);
  free(overrides);
  lade_model_graph_destroy(graph);
}

/* The bytes that one rank holds of a model with sharded state, permanently and temporarily. */
struct state_bytes {
  uint64_t closed;      /* blocks of working copies, gradients and optimizer state, in whole pages */
  uint64_t unit;        /* the largest unit's working copies, gathered */
  uint64_t layer;       /* the same of layers alone */
  uint64_t tensor;      /* the largest parameter's, with a microbatch's gradient and this rank's block of the sum */
  uint64_t tied;        /* a microbatch's gradients of all parts of the token table, and two parts' working copies */
  uint64_t max;         /* of the program: the largest total at any instruction */
};

static void state_forms_count(const struct lade_model_graph *graph, const struct lade_layout *layout,
                              struct state_bytes *bytes)
{
  for (int unit = 0; unit < graph->n_units; unit++) {
    uint64_t copies = 0, max = 0, grads = 0;
    for (int param = 0; param < graph->n_params; param++) {
      const uint64_t block = (uint64_t)lade_param_shard(graph, layout, param).n_padded;
      const uint64_t n = block * (uint64_t)lade_shard_count(layout), element = lade_dtype_bytes(graph->dtype);
      if (graph->tensors[graph->params[param].tensor].unit != unit)
        continue;
      const uint64_t copy = lade_align_up(n * element, LADE_BUFFER_ALIGN);
      copies += copy;
      grads += lade_align_up(n * 4, LADE_BUFFER_ALIGN);
      max = LADE_MAX(max, copy);
      bytes->tensor = LADE_MAX(bytes->tensor, copy + lade_align_up(n * 4, LADE_BUFFER_ALIGN) +
                                                  lade_align_up(block * 4, LADE_BUFFER_ALIGN));
      bytes->closed += lade_align_up(block * element, LADE_BUFFER_ALIGN) +
                       3 * lade_align_up(block * 4, LADE_BUFFER_ALIGN) +
                       (graph->dtype == LADE_F32 ? 0 : lade_align_up(block * 2, LADE_BUFFER_ALIGN));
    }
    bytes->unit = LADE_MAX(bytes->unit, copies);
    bytes->layer = LADE_MAX(bytes->layer, graph->units[unit].class_id == graph->units[1].class_id ? copies : 0);
    bytes->tied = LADE_MAX(bytes->tied, unit == 0 ? grads + 2 * max : 0);
  }
}

static void state_measure(const struct lade_program *program, struct state_bytes *bytes)
{
  for (int at = 0; at < program->n_instrs; at++) {
    uint64_t live = 0;
    for (int i = 0; i < program->n_buffers; i++) {
      const struct lade_buffer *buffer = &program->buffers[i];
      bool is_state = buffer->owner == LADE_OWNER_PARAMETERS || buffer->owner == LADE_OWNER_GRADIENTS ||
                      buffer->owner == LADE_OWNER_OPTIMIZER || buffer->owner == LADE_OWNER_COMM;
      if (is_state && buffer->space == LADE_DEVICE && buffer->first <= at && at <= buffer->last)
        live += buffer->bytes;
    }
    bytes->max = LADE_MAX(bytes->max, live);
  }
}

static struct lade_model_graph *gathered_graph(const struct lade_model *model, enum lade_dtype dtype)
{
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  struct lade_model_graph *graph = NULL;
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = model, .dtype = dtype, .batch = 2,
                                     .seq_len = 16, .kernels = &kernels, .n_threads = 2, .share.n_shards = 8};
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  return graph;
}

/* Make a model whose blocks are much larger than its table, or much smaller, by @vocabulary. */
static struct lade_model_graph *scaled_graph(enum lade_family family, enum lade_dtype dtype, int64_t vocabulary)
{
  const bool is_llama = family == LADE_LLAMA;
  struct lade_model model = {.name = "scaled", .family = family, .layers = 2, .heads = 4, .n_kv_heads = is_llama ? 2 :
                             4,
                             .width = 128, .hidden = 768, .context = 16, .vocabulary = vocabulary,
                             .is_tied = !is_llama, .norm_eps = 1e-5f, .rope_base = is_llama ? 10000 : 0};
  return gathered_graph(&model, dtype);
}

/* Make a preset of two layers. */
static struct lade_model_graph *preset_graph(const char *name)
{
  struct lade_model model;
  assert_int_equal(lade_model_preset(name, &model, NULL), 0);
  model.layers = 2;
  return gathered_graph(&model, LADE_BF16);
}

/* Plan @graph, which it takes over, for 8 ranks with the smallest budget and @spare of it more. */
static struct state_bytes shards_plan(struct lade_model_graph *graph, double spare)
{
  const struct lade_layout_params layout_params = {.struct_size = sizeof(layout_params), .dp = 8,
                                                   .zero = LADE_ZERO_MAX};
  struct desk desk = {.graph = graph, .prices = program_fixture_prices(graph)};
  struct state_bytes bytes = {0};
  struct lade_layout layout;
  assert_int_equal(lade_layout_init(&layout_params, NULL, &layout), 0);
  desk.params = (struct lade_plan_params){.struct_size = sizeof(desk.params), .graph = graph, .layout = &layout,
                                          .n_microbatches = 2, .chunk_bytes = LADE_BUFFER_ALIGN};
  desk_start(&desk);
  struct lade_plan *plan = plan_get(&desk, (uint64_t)((double)desk.bounds.min_bytes * (1 + spare)));
  state_forms_count(graph, &layout, &bytes);
  state_measure(plan->train, &bytes);
  lade_plan_destroy(plan);
  desk_close(&desk);
  return bytes;
}

/*
 * ZeRO-3 over 8 in little memory: 16 bytes per parameter over 8, and the gather buffers of two units. Tables of less
 * than two chunks are in one piece, and in BF16 larger than these tiny layers. There the head's op alone needs more,
 * because it reads the table and makes its gradient in FP32. The need is then the closed form and one op's operands of
 * one parameter.
 */
static void shards_hold_the_closed_form_and_two_units(void **state)
{
  for (int i = 0; i < 12; i++) {
    const enum lade_family family = i & 1 ? LADE_LLAMA : LADE_GPT2;
    const enum lade_dtype dtype = i & 2 ? LADE_BF16 : LADE_F32;
    const bool is_wide = i & 8;
    const struct state_bytes bytes =
        shards_plan(is_wide ? scaled_graph(family, dtype, 256) : program_fixture_graph(family, dtype, 0), i & 4 ? 0.05 :
                    0);
    const uint64_t on_the_way = is_wide || dtype == LADE_F32 ? 2 * bytes.unit : bytes.tensor;
    assert_in_range(bytes.max, bytes.closed / 2, bytes.closed + on_the_way);
  }
}

/*
 * Start a planner for ranks that gather working copies at a price of mostly latency: groups, which take memory, are
 * worth it.
 */
static void gathering_desk_start(struct desk *desk, enum lade_family family, const struct lade_layout *layout,
                                 const struct lade_change *overrides, int n_overrides)
{
  desk_open(desk, family, &machines[0]);
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    desk->prices.comm[axis] = (struct lade_transfer_price){8000, 0.05};
  desk->params.layout = layout;
  desk->params.n_microbatches = 4;
  desk->params.overrides = overrides;
  desk->params.n_overrides = n_overrides;
  desk_start(desk);
}

/*
 * The unconstrained peak, of copies gathered just in time, has no space for groups. There, with everything kept, each
 * collective pays its latency, or some copies are gathered twice so that the others can be grouped. With more memory
 * each copy is gathered once, which is the closed form 4m + 2. The step is then as fast as with residency overrides
 * that demand it.
 */
static void with_room_each_copy_is_gathered_once(void **state)
{
  for (int i = 0; i < 4; i++) {
    const enum lade_family family = i & 1 ? LADE_LLAMA : LADE_GPT2;
    const struct lade_layout_params layout_params = {.struct_size = sizeof(layout_params), .dp = i & 2 ? 8 : 2,
                                                     .zero = LADE_ZERO_MAX};
    struct lade_change overrides[64];
    struct lade_layout layout;
    struct desk desk, kept;
    uint64_t sent[LADE_N_AXES], min[LADE_N_AXES];
    assert_int_equal(lade_layout_init(&layout_params, NULL, &layout), 0);
    gathering_desk_start(&desk, family, &layout, NULL, 0);
    assert_true(desk.graph->n_params <= (int)LADE_COUNT(overrides));
    for (int p = 0; p < desk.graph->n_params; p++)
      overrides[p] = (struct lade_change){LADE_CHANGE_SAVED, LADE_RESIDENCY_KEEP, desk.graph->params[p].tensor};
    gathering_desk_start(&kept, family, &layout, overrides, desk.graph->n_params);
    struct lade_plan *ample = plan_get(&desk, PLENTY), *wanted = plan_get(&kept, PLENTY);
    lade_program_comm_traffic(ample->train, sent);
    lade_program_comm_traffic(wanted->train, min);
    assert_int_equal(sent[LADE_AXIS_SHARD], min[LADE_AXIS_SHARD]);
    assert_true(ample->predicted_ns <= wanted->predicted_ns && ample->predicted_ns < desk.bounds.unconstrained_ns);
    int64_t before_ns = desk.bounds.unconstrained_ns;
    for (int k = 16; k <= 32; k += 4) {
      struct lade_plan *plan = plan_get(&desk, desk.bounds.unconstrained_bytes / 16 * (uint64_t)k);
      assert_within(&desk, plan, desk.bounds.unconstrained_bytes / 16 * (uint64_t)k);
      assert_true(plan->predicted_ns <= LADE_MAX(before_ns, ample->predicted_ns));
      before_ns = plan->predicted_ns;
      lade_plan_destroy(plan);
    }
    lade_plan_destroy(wanted);
    lade_plan_destroy(ample);
    desk_close(&kept);
    desk_close(&desk);
  }
}

/*
 * A table larger than a layer is processed in parts: two layers' working copies hold any of them with its gradient.
 * Where few activations are live, the plan with the smallest peak may hold more state. It never holds the whole table.
 */
static void large_tables_are_never_whole(void **state)
{
  struct lade_model_graph *graphs[] = {scaled_graph(LADE_LLAMA, LADE_BF16, 9716), preset_graph("llama3-8b"),
                                 preset_graph("llama3-70b")};
  for (size_t i = 0; i < LADE_COUNT(graphs); i++) {
    const struct state_bytes bytes = shards_plan(graphs[i], 0);
    assert_true(bytes.layer < bytes.unit);
    assert_in_range(bytes.max, bytes.closed / 2, bytes.closed + LADE_MAX(2 * bytes.layer, bytes.unit));
  }
}

/* A tied table's gradient waits for the embedding's: whole, in addition to two parts' working copies. */
static void a_tied_table_takes_its_gradient_and_two_parts(void **state)
{
  const struct state_bytes bytes = shards_plan(scaled_graph(LADE_GPT2, LADE_BF16, 9716), 0);
  assert_in_range(bytes.max, bytes.closed / 2, bytes.closed + bytes.tied);
}

/* Return the smallest budget of a rank with space on the host, for @n_microbatches of the same size. */
static uint64_t min_of_microbatches(enum lade_family family, int zero, int n_microbatches, struct state_bytes *bytes)
{
  const struct lade_layout_params layout_params = {.struct_size = sizeof(layout_params), .dp = 8, .zero = zero};
  struct desk desk = {.graph = scaled_graph(family, LADE_BF16, 256)};
  struct lade_layout layout;
  desk.prices = program_fixture_prices(desk.graph);
  assert_int_equal(lade_layout_init(&layout_params, NULL, &layout), 0);
  desk.params = (struct lade_plan_params){.struct_size = sizeof(desk.params), .graph = desk.graph, .layout = &layout,
                                          .n_microbatches = n_microbatches, .chunk_bytes = LADE_BUFFER_ALIGN,
                                          .host_bytes = PLENTY};
  desk_start(&desk);
  struct lade_plan *plan = plan_get(&desk, desk.bounds.min_bytes);
  const uint64_t min_bytes = plan->peak_bytes[LADE_DEVICE];
  assert_true(plan->train->is_proved && min_bytes == desk.bounds.min_bytes);
  state_forms_count(desk.graph, &layout, bytes);
  lade_plan_destroy(plan);
  desk_close(&desk);
  return min_bytes;
}

/*
 * Blocks of gradients do not raise the budget if another tier has space for them. Several microbatches need as much as
 * one, and for an addition the block of one parameter.
 */
static void blocks_of_gradients_leave_between_microbatches(void **state)
{
  for (int i = 0; i < 4; i++) {
    const enum lade_family family = i & 1 ? LADE_LLAMA : LADE_GPT2;
    struct state_bytes bytes = {0};
    const uint64_t one = min_of_microbatches(family, i & 2 ? 3 : 2, 1, &bytes);
    const uint64_t several = min_of_microbatches(family, i & 2 ? 3 : 2, 4, &bytes);
    assert_in_range(several, one, one + bytes.tensor / 8);
  }
}

/* Ranks differ by their needs, and with equal needs by their keys. */
static void ranks_that_differ_are_told_apart(void **state)
{
  const struct lade_layout_params params = {.struct_size = sizeof(params), .dp = 4, .zero = LADE_ZERO_MAX};
  struct lade_layout layout;
  struct lade_error error = {0};
  struct desk desk;
  char max[32], fewest[32];
  assert_int_equal(lade_layout_init(&params, NULL, &layout), 0);
  gathering_desk_start(&desk, LADE_GPT2, &layout, NULL, 0);
  struct lade_plan *min = plan_get(&desk, desk.bounds.min_bytes), *ample = plan_get(&desk, PLENTY);
  assert_int_equal(lade_plan_compare(ample, min, &error), -EINVAL);
  snprintf(max, sizeof(max), "%llu", (unsigned long long)ample->peak_bytes[LADE_DEVICE]);
  snprintf(fewest, sizeof(fewest), "%llu", (unsigned long long)min->peak_bytes[LADE_DEVICE]);
  assert_names(error.text, max, fewest, "bytes", "device");
  memcpy(min->peak_bytes, ample->peak_bytes, sizeof(min->peak_bytes));
  assert_int_equal(lade_plan_compare(ample, min, &error), -EINVAL);
  assert_names(error.text, "dp");
  lade_plan_destroy(min);
  lade_plan_destroy(ample);
  desk_close(&desk);
}

static void the_same_question_has_the_same_answer(void **state)
{
  struct desk one, two;
  desk_open(&one, LADE_LLAMA, &machines[2]);
  desk_open(&two, LADE_LLAMA, &machines[2]);
  desk_start(&one);
  desk_start(&two);
  assert_memory_equal(&one.bounds, &two.bounds, offsetof(struct lade_plan_bounds, n_states));
  uint64_t budget = (one.bounds.min_bytes + one.bounds.unconstrained_bytes) / 2;
  struct lade_plan *three = plan_get(&one, one.bounds.unconstrained_bytes); /* earlier questions are forgotten */
  struct lade_plan *first = plan_get(&one, budget), *second = plan_get(&two, budget);
  assert_int_equal(first->predicted_ns, second->predicted_ns);
  assert_int_equal(first->train->n_instrs, second->train->n_instrs);
  for (int i = 0; i < first->train->n_buffers; i++)
    assert_int_equal(first->train->buffers[i].offset, second->train->buffers[i].offset);
  lade_plan_destroy(three);
  lade_plan_destroy(first);
  lade_plan_destroy(second);
  desk_close(&one);
  desk_close(&two);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(larger_budgets_are_never_slower),
      cmocka_unit_test(the_smallest_budget_is_an_edge),
      cmocka_unit_test(the_smallest_budget_is_no_matter_of_prices),
      cmocka_unit_test(tiers_make_room),
      cmocka_unit_test(early_updates_make_room),
      cmocka_unit_test(an_absent_tier_is_not_used),
      cmocka_unit_test(recipes_are_followed),
      cmocka_unit_test(pins_are_kept),
      cmocka_unit_test(walks_end_whatever_is_fixed),
      cmocka_unit_test(working_copies_stay_where_only_state_may_leave),
      cmocka_unit_test(blocks_leave_where_a_person_would_send_them),
      cmocka_unit_test(a_pinned_layer_does_not_hold_the_others),
      cmocka_unit_test(shards_hold_the_closed_form_and_two_units),
      cmocka_unit_test(with_room_each_copy_is_gathered_once),
      cmocka_unit_test(large_tables_are_never_whole),
      cmocka_unit_test(a_tied_table_takes_its_gradient_and_two_parts),
      cmocka_unit_test(blocks_of_gradients_leave_between_microbatches),
      cmocka_unit_test(ranks_that_differ_are_told_apart),
      cmocka_unit_test(the_same_question_has_the_same_answer),
  };
  return cmocka_run_group_tests_name("plan", tests, desks_open, desks_close);
}
