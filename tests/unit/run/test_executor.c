/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving memory never changes the numbers, and the stated peak is the measured one. Losses, norms, evaluations,
 * parameters and optimizer state of runs at many budgets and residencies equal, bit for bit, those of the run that
 * keeps everything. That run in turn has the gradients of the plain graph runner.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/float.h"
#include "run/executor/executor_internal.h"
#include "tests/support/graph_run.h"
#include "tests/support/program_fixture.h"
#include "tests/support/run_fixture.h"

#define N_STEPS 3
#define GIB (UINT64_C(1) << 30)

static const char *store_refusal;
static enum { FEW, SOME, MANY } extent = SOME; /* number of cases, set by the argument */

static int of_extent(int few, int some, int many)
{
  return extent == FEW ? few : extent == SOME ? some : many;
}

static void run_or_fail(struct run_fixture *run_fixture, const struct lade_plan *plan,
                        struct run_fixture_numbers *ret_numbers)
{
  struct lade_error error = {0};
  struct lade_device_info info;
  if (run_fixture_open(run_fixture, plan, &error) || run_fixture_run(run_fixture, N_STEPS, ret_numbers, &error))
    fail_msg("%s", error.text);
  lade_device_get_info(run_fixture->device, &info);
  assert_int_equal(info.peak_bytes, lade_align_up(plan->peak_bytes[LADE_DEVICE], info.chunk_bytes));
  run_fixture_close(run_fixture);
}

/* Return the numbers of the run that keeps everything. */
static struct run_fixture_numbers reference(struct run_fixture *run_fixture)
{
  struct lade_residency *keep = NULL;
  struct run_fixture_numbers numbers;
  assert_int_equal(lade_residency_create(run_fixture->graph, &keep), 0);
  for (int i = 0; i < run_fixture->graph->n_tensors; i++)
    keep->choices[i] = (struct lade_choice){LADE_RESIDENCY_KEEP, LADE_RESIDENCY_KEEP};
  struct lade_plan *plan = run_fixture_plan(run_fixture, keep);
  run_or_fail(run_fixture, plan, &numbers);
  lade_plan_destroy(plan);
  assert_true(numbers.loss[0] > 1 && numbers.loss[N_STEPS - 1] < 20 && numbers.loss[0] != numbers.loss[1]);
  assert_true(numbers.norm[0] > 0 && numbers.eval[0] != numbers.eval[1]);
  return numbers;
}

static void numbers_equal(const struct run_fixture_numbers *got, const struct run_fixture_numbers *want,
                          const char *format, ...)
{
  char text[256];
  va_list args;
  if (memcmp(got, want, sizeof(*got)) == 0)
    return;
  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  fail_msg("%s: other numbers: loss %a %a %a, not %a %a %a; evaluation %a %a, not %a %a; norm %a, not %a; digest %llx, "
           "not %llx", text, got->loss[0], got->loss[1], got->loss[2], want->loss[0], want->loss[1], want->loss[2],
           got->eval[0], got->eval[1], want->eval[0], want->eval[1], (double)got->norm[0], (double)want->norm[0],
           (unsigned long long)got->digest, (unsigned long long)want->digest);
}

/* ---- budgets ---- */

static const struct {
  const char *name;
  uint64_t host_bytes, store_bytes;
} tiers[] = {{"recompute", 0, 0}, {"host", GIB, 0}, {"store", 0, GIB}, {"both", 256 << 10, GIB}};

/* Run at budgets from the unconstrained peak down to the smallest, in @n steps. */
static void budgets_agree(struct run_fixture *run_fixture, const struct run_fixture_numbers *want, int tier, int n)
{
  struct lade_plan_bounds bounds;
  struct lade_error error = {0};
  lade_planner *planner = run_fixture_planner(run_fixture, tiers[tier].host_bytes, tiers[tier].store_bytes,
                                              LADE_RECIPE_AUTO);
  assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
  assert_true(bounds.lower_bound_bytes <= bounds.min_bytes && bounds.min_bytes < bounds.unconstrained_bytes);
  for (int i = 0; i < n; i++) { /* the smallest first */
    uint64_t range = bounds.unconstrained_bytes - bounds.min_bytes;
    uint64_t budget = bounds.min_bytes + range * (uint64_t)i / (uint64_t)LADE_MAX(n - 1, 1);
    struct lade_plan *plan = NULL;
    struct run_fixture_numbers numbers;
    if (lade_planner_plan(planner, budget, &error, &plan))
      fail_msg("%s at %llu bytes: %s", tiers[tier].name, (unsigned long long)budget, error.text);
    assert_true(plan->peak_bytes[LADE_DEVICE] <= budget);
    run_or_fail(run_fixture, plan, &numbers);
    numbers_equal(&numbers, want, "%s, %s, %s, %d microbatches, %llu bytes", run_fixture->model.family ? "llama" :
                  "gpt2",
                  lade_dtype_name(run_fixture->model.dtype), tiers[tier].name, run_fixture->model.n_microbatches,
                  (unsigned long long)budget);
    lade_plan_destroy(plan);
  }
  lade_planner_destroy(planner);
}

static void model_agrees(enum lade_family family, enum lade_dtype dtype, int n_microbatches, int n_budgets)
{
  struct run_fixture_model model = run_fixture_tiny(family);
  struct run_fixture run_fixture;
  model.dtype = dtype;
  model.n_microbatches = n_microbatches;
  run_fixture_init(&run_fixture, &model);
  struct run_fixture_numbers want = reference(&run_fixture);
  for (int tier = 0; tier < (int)LADE_COUNT(tiers); tier++) {
    if (!tiers[tier].store_bytes || !store_refusal)
      budgets_agree(&run_fixture, &want, tier, n_budgets);
  }
  run_fixture_finish(&run_fixture);
}

static void every_budget_of_a_form_of_scores_gives_the_same_bits(void **state)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_LLAMA);
  struct run_fixture run_fixture;
  model.has_score_form = true;
  model.n_microbatches = 2;
  run_fixture_init(&run_fixture, &model);
  struct run_fixture_numbers want = reference(&run_fixture);
  for (int tier = 0; tier < (int)LADE_COUNT(tiers); tier++) {
    if (!tiers[tier].store_bytes || !store_refusal)
      budgets_agree(&run_fixture, &want, tier, of_extent(1, 3, 8));
  }
  run_fixture_finish(&run_fixture);
}

static void every_budget_gives_the_same_bits(void **state)
{
  for (int family = LADE_GPT2; family <= LADE_LLAMA; family++) {
    for (int n_microbatches = extent == FEW ? 3 : 1; n_microbatches <= 3; n_microbatches += 2) {
      model_agrees((enum lade_family)family, LADE_BF16, n_microbatches, of_extent(2, n_microbatches == 1 ? 3 : 6, 16));
      if (extent == FEW)
        continue;
      model_agrees((enum lade_family)family, LADE_F32, n_microbatches, extent == MANY ? 8 : 2);
      model_agrees((enum lade_family)family, LADE_F16, n_microbatches, extent == MANY ? 8 : 2);
    }
  }
}

/* ---- compact state ---- */

static const struct {
  enum lade_dtype dtype;
  enum lade_moments moments;
  enum lade_master master;
  enum lade_dtype grad_dtype;
} forms[] = {
    {LADE_BF16, LADE_MOMENTS_BF16, LADE_MASTER_EXACT, LADE_F32},
    {LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_24BIT, LADE_BF16},
    {LADE_F32, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT, LADE_F32},
    {LADE_F16, LADE_MOMENTS_BF16, LADE_MASTER_EXACT, LADE_BF16},
    {LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT, LADE_F32},
    {LADE_BF16, LADE_MOMENTS_F32, LADE_MASTER_24BIT, LADE_F32},
};

/* A compact form rounds, but equally in every tier. */
static void every_budget_of_a_compact_form_gives_the_same_bits(void **state)
{
  struct run_fixture_numbers exact = {0};
  for (size_t i = 0; i < (extent == FEW ? 2 : LADE_COUNT(forms)); i++) {
    struct run_fixture_model model = run_fixture_tiny(i % 2 ? LADE_LLAMA : LADE_GPT2);
    struct run_fixture run_fixture;
    model.dtype = forms[i].dtype;
    if (i == 0) {
      run_fixture_init(&run_fixture, &model);
      exact = reference(&run_fixture);
      run_fixture_finish(&run_fixture);
    }
    model.moments = forms[i].moments;
    model.master = forms[i].master;
    model.grad_dtype = forms[i].grad_dtype;
    run_fixture_init(&run_fixture, &model);
    struct run_fixture_numbers want = reference(&run_fixture);
    if (i == 0) { /* the first step uses exact gradients and rounds after the update */
      assert_true(want.loss[0] == exact.loss[0] && want.norm[0] == exact.norm[0]);
      assert_true(want.digest != exact.digest && fabs(want.eval[1] - exact.eval[1]) < 0.01 * exact.eval[1]);
    }
    for (int tier = 0; tier < (int)LADE_COUNT(tiers); tier++) {
      if (!tiers[tier].store_bytes || !store_refusal)
        budgets_agree(&run_fixture, &want, tier, of_extent(1, 2, 8));
    }
    run_fixture_finish(&run_fixture);
  }
}

/* ---- state on the drive, working copies in memory ---- */

/* Return a model so wide that whole pages of small tensors are a hundredth of the bytes. */
static struct run_fixture_model wide_model(void)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  model.layers = 1;
  model.width = 512;
  model.vocabulary = 4096;
  model.batch = 1;
  return model;
}

static int64_t parameters_count(const struct lade_model_graph *graph)
{
  int64_t n = 0;
  for (int param = 0; param < graph->n_params; param++)
    n += (int64_t)(lade_value_bytes(graph, graph->params[param].tensor) / lade_dtype_bytes(graph->dtype));
  return n;
}

/* Return the bytes that the store itself has moved since it was prepared. */
static struct lade_store_info moved_get(const struct run_fixture *run_fixture)
{
  struct lade_store_info info = {0};
  if (run_fixture->store)
    lade_store_get_info(run_fixture->store, &info);
  return info;
}

/*
 * Run two steps with working copies on the device and state in tier @tier. Each step reads at most @max bytes per
 * parameter from the drive, and not much less, and writes as many. Return the digest of all parameters and state.
 */
static uint64_t two_steps(struct run_fixture *run_fixture, enum lade_tier tier, double max, const char *name)
{
  struct lade_residency *residency = NULL;
  struct lade_error error = {0};
  struct lade_step_result result;
  const double n = (double)parameters_count(run_fixture->graph);
  uint64_t digest = 0;
  assert_int_equal(lade_residency_create(run_fixture->graph, &residency), 0);
  for (int param = 0; param < run_fixture->graph->n_params; param++)
    lade_residency_set_tiers(residency, param, LADE_TIER_DEVICE, tier);
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency);
  if (run_fixture_open(run_fixture, plan, &error))
    fail_msg("%s", error.text);
  for (int i = 0; i < 2; i++) {
    struct lade_store_info before = moved_get(run_fixture);
    if (run_fixture_step(run_fixture, i, &result, &error))
      fail_msg("%s", error.text);
    struct lade_store_info after = moved_get(run_fixture);
    double read = (double)(after.read_bytes - before.read_bytes) / n;
    double written = (double)(after.written_bytes - before.written_bytes) / n;
    if (read > max || written > max || read < 0.9 * max || written < 0.9 * max)
      fail_msg("%s: %.3f bytes read and %.3f written per parameter, not up to %.1f", name, read, written, max);
  }
  if (run_fixture_digest(run_fixture, &digest, &error))
    fail_msg("%s", error.text);
  run_fixture_close(run_fixture);
  lade_plan_destroy(plan);
  return digest;
}

static void a_step_moves_no_byte_of_state_twice(void **state)
{
  static const struct {
    enum lade_moments moments;
    enum lade_master master;
    double max; /* bytes per parameter, each way */
    struct lade_streaming streaming; /* no bit depends on it: many short windows, one for all, and in between */
    const char *name;
  } cases[] = {{LADE_MOMENTS_F32, LADE_MASTER_EXACT, 10.1, {1, 2}, "exact"},
               {LADE_MOMENTS_BF16, LADE_MASTER_EXACT, 6.1, {1 << 20, 1}, "bf16 moments"},
               {LADE_MOMENTS_8BIT, LADE_MASTER_EXACT, 4.1, {3 << 19, 6}, "8-bit moments"},
               {LADE_MOMENTS_8BIT, LADE_MASTER_24BIT, 3.1, {64 << 20, 2}, "24-bit master"}};
  for (size_t i = 0; i < LADE_COUNT(cases) && !store_refusal; i += extent == MANY ? 1 : LADE_COUNT(cases) - 1) {
    struct run_fixture_model model = wide_model();
    struct run_fixture run_fixture;
    model.moments = cases[i].moments;
    model.master = cases[i].master;
    run_fixture_init(&run_fixture, &model);
    run_fixture.prices.streaming = cases[i].streaming;
    uint64_t want = two_steps(&run_fixture, LADE_TIER_DEVICE, 0, cases[i].name);
    if (two_steps(&run_fixture, LADE_TIER_STORE, cases[i].max, cases[i].name) != want)
      fail_msg("%s: other bits than in memory", cases[i].name);
    run_fixture_finish(&run_fixture);
  }
}

static void step_or_fail(struct run_fixture *run_fixture)
{
  struct lade_error error = {0};
  struct lade_step_result result;
  if (run_fixture_step(run_fixture, 0, &result, &error))
    fail_msg("%s", error.text);
}

/* Count the reads and writes of one step. */
static void requests_count(struct run_fixture *run_fixture, uint64_t *ret_reads, uint64_t *ret_writes)
{
  struct lade_faults faults;
  lade_faults_init(&faults);
  run_fixture->faults = &faults;
  struct lade_plan *plan = run_fixture_open_stored(run_fixture);
  *ret_reads = lade_faults_count(&faults, LADE_FAULT_FILE_READ);
  *ret_writes = lade_faults_count(&faults, LADE_FAULT_FILE_WRITE);
  step_or_fail(run_fixture);
  *ret_reads = lade_faults_count(&faults, LADE_FAULT_FILE_READ) - *ret_reads;
  *ret_writes = lade_faults_count(&faults, LADE_FAULT_FILE_WRITE) - *ret_writes;
  run_fixture_close(run_fixture);
  run_fixture->faults = NULL;
  lade_plan_destroy(plan);
}

static void states_side_by_side_are_one_request(void **state)
{
  for (int moments = 0; moments < LADE_N_MOMENTS && !store_refusal; moments++) {
    struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
    struct run_fixture run_fixture;
    uint64_t n_reads, n_writes;
    model.moments = (enum lade_moments)moments;
    model.width = 128; /* a norm is short compared with a matrix */
    run_fixture_init(&run_fixture, &model);
    run_fixture.prices.streaming = (struct lade_streaming){3 << 19, 6};
    requests_count(&run_fixture, &n_reads, &n_writes);
    if (n_reads != n_writes || n_reads < 2 || n_reads > 2 * (uint64_t)run_fixture.graph->n_params / 3)
      fail_msg("moments %d: %llu reads and %llu writes for %d parameters", moments, (unsigned long long)n_reads,
               (unsigned long long)n_writes, run_fixture.graph->n_params);
    run_fixture_finish(&run_fixture);
  }
}

/* ---- the order of requests to the drive ---- */

#define WATCHED_MAX 64

/* The reads in flight when a transfer is submitted. */
static struct {
  bool is_on;
  const struct lade_transfer *reads[WATCHED_MAX]; /* submitted and not done */
  int n;
  uint64_t max_bytes; /* maximum of all of them at once */
} watch;

/* Note a submission. A read that used the same struct @transfer before has ended. */
static void watch_note(const struct lade_transfer *transfer)
{
  uint64_t bytes = 0;
  int n = 0;
  for (int i = 0; i < watch.n; i++) {
    if (watch.reads[i] != transfer && !lade_transfer_is_done(watch.reads[i]))
      watch.reads[n++] = watch.reads[i];
  }
  assert_true(n < WATCHED_MAX);
  if (transfer->op == LADE_STORE_READ)
    watch.reads[n++] = transfer;
  watch.n = n;
  for (int i = 0; i < n; i++)
    bytes += watch.reads[i]->bytes;
  if (n > 1)
    watch.max_bytes = LADE_MAX(watch.max_bytes, bytes);
}

int __real_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer);
int __wrap_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer);
int __wrap_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer)
{
  if (watch.is_on)
    watch_note(transfer);
  return __real_lade_store_submit(store, transfer);
}

/* The drive then has the other half to do when all these reads complete at once; much less would leave it idle. */
static void at_most_half_of_the_ring_is_being_read(void **state)
{
  static const struct lade_streaming streaming[] = {{3 << 19, 6}, {1 << 20, 4}, {3 << 18, 12}};
  for (size_t i = 0; i < LADE_COUNT(streaming) && !store_refusal; i++) {
    struct run_fixture_model model = wide_model();
    struct run_fixture run_fixture;
    model.moments = i % 2 ? LADE_MOMENTS_BF16 : LADE_MOMENTS_F32; /* without scales, which are in a ring of their own */
    run_fixture_init(&run_fixture, &model);
    run_fixture.prices.streaming = streaming[i];
    struct lade_plan *plan = run_fixture_open_stored(&run_fixture);
    const struct bound_program *train = &run_fixture.executor->train;
    assert_int_equal(train->n_runs, 1);
    const uint64_t ring_bytes = train->runs[0].scratch_bytes;
    watch.is_on = true;
    watch.n = 0;
    watch.max_bytes = 0;
    step_or_fail(&run_fixture);
    watch.is_on = false;
    if (watch.max_bytes > ring_bytes / 2 || watch.max_bytes < ring_bytes / 4)
      fail_msg("%d windows of %llu bytes: %llu of the ring's %llu are being read", streaming[i].n_windows,
               (unsigned long long)streaming[i].window_bytes, (unsigned long long)watch.max_bytes,
               (unsigned long long)ring_bytes);
    run_fixture_close(&run_fixture);
    lade_plan_destroy(plan);
    run_fixture_finish(&run_fixture);
  }
}

/* ---- residencies that no planner chooses ---- */

static void residency_agrees(struct run_fixture *run_fixture, const struct run_fixture_numbers *want, uint32_t seed)
{
  struct lade_residency *residency = NULL;
  struct run_fixture_numbers numbers;
  uint32_t at = seed * 1000;
  const enum program_fixture_manner manner = (enum program_fixture_manner)program_fixture_draw(&at, FIXTURE_N_MANNERS);
  const int state_tiers = (int)program_fixture_draw(&at, 4);
  struct program_fixture_setting setting = {.manner = manner, .state_tiers = state_tiers, .seed = at + 10};
  setting.has_resident_weights = seed % 2;
  setting.prefetch_bytes = program_fixture_draw(&at, 2) ? (uint64_t)program_fixture_draw(&at, 2000000) : 0;
  run_fixture->is_unified = program_fixture_draw(&at, 2);
  assert_int_equal(lade_residency_create(run_fixture->graph, &residency), 0);
  setting.optimizer_in_backward = run_fixture->optimizer_in_backward;
  program_fixture_residency_set(residency, run_fixture->graph, &setting);
  struct lade_plan *plan = run_fixture_plan(run_fixture, residency);
  assert_int_equal(plan->train->optimizer_in_backward, run_fixture->optimizer_in_backward);
  bool has_store = plan->peak_bytes[LADE_STORE] > 0;
  if (!has_store || !store_refusal) {
    run_or_fail(run_fixture, plan, &numbers);
    numbers_equal(&numbers, want, "residency of seed %u (manner %d, tiers %d, early %llu, unified %d)", seed,
                  (int)setting.manner, setting.state_tiers, (unsigned long long)setting.prefetch_bytes,
                  run_fixture->is_unified);
  }
  lade_plan_destroy(plan);
}

static void every_residency_gives_the_same_bits(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_BF16, LADE_F32, LADE_F16};
  for (uint32_t i = 0; i < 12; i += extent == FEW ? 5 : 1) { /* both families and counts, two dtypes */
    struct run_fixture_model model = run_fixture_tiny(i % 2 ? LADE_LLAMA : LADE_GPT2);
    struct run_fixture run_fixture;
    model.dtype = dtypes[i / 2 % 3];
    model.n_microbatches = i < 6 ? 1 : 3;
    model.grad_dtype = i % 3 == 1 ? LADE_BF16 : LADE_F32;
    run_fixture_init(&run_fixture, &model);
    struct run_fixture_numbers want = reference(&run_fixture);
    for (int seed = 0; seed < of_extent(1, 5, 16); seed++)
      residency_agrees(&run_fixture, &want, i * 100 + (uint32_t)seed);
    run_fixture_finish(&run_fixture);
  }
}

/* ---- updates inside the backward half ---- */

static void early_updates_give_the_same_bits(void **state)
{
  for (uint32_t i = 0; i < (uint32_t)of_extent(2, 4, 4); i++) {
    struct run_fixture_model model = run_fixture_tiny(i % 2 ? LADE_LLAMA : LADE_GPT2);
    struct run_fixture run_fixture;
    model.dtype = i < 2 ? LADE_BF16 : LADE_F32;
    model.n_microbatches = i == 1 || i == 2 ? 3 : 1;
    model.grad_dtype = i < 2 ? LADE_F32 : LADE_BF16;
    run_fixture_init(&run_fixture, &model);
    run_fixture.optimizer_in_backward = true;
    struct run_fixture_numbers want = reference(&run_fixture); /* updates at the end */
    for (int seed = 0; seed < of_extent(2, 6, 16); seed++)
      residency_agrees(&run_fixture, &want, 5000 + i * 100 + (uint32_t)seed);
    for (int tier = 0; tier < (int)LADE_COUNT(tiers); tier++) {
      if (!tiers[tier].store_bytes || !store_refusal)
        budgets_agree(&run_fixture, &want, tier, of_extent(1, 2, 8));
    }
    run_fixture_finish(&run_fixture);
  }
}

/* Make a plan with everything kept and the optimizer in backward. */
static struct lade_plan *early_plan(const struct run_fixture *run_fixture)
{
  struct lade_residency *keep = NULL;
  assert_int_equal(lade_residency_create(run_fixture->graph, &keep), 0);
  keep->optimizer_in_backward = true;
  return run_fixture_plan(run_fixture, keep);
}

static void early_updates_refuse_clipping_and_a_loss_scale(void **state)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct run_fixture run_fixture;
  struct lade_error error = {0};
  struct lade_step_result result;
  run_fixture_init(&run_fixture, &model);
  run_fixture.optimizer_in_backward = true;
  struct lade_plan *plan = early_plan(&run_fixture);
  assert_int_equal(run_fixture_open(&run_fixture, plan, &error), 0);
  run_fixture_tokens_fill(&run_fixture, 0);
  struct lade_step clipped = run_fixture_step_block(&run_fixture, 0), scaled = clipped;
  clipped.clip = 1;
  scaled.loss_scale = 2;
  assert_int_equal(lade_executor_step(run_fixture.executor, &clipped, &result, &error), -EINVAL);
  assert_int_equal(lade_executor_step(run_fixture.executor, &scaled, &result, &error), -EINVAL);
  assert_int_equal(lade_executor_n_steps(run_fixture.executor), 0);
  assert_int_equal(run_fixture_step(&run_fixture, 0, &result, &error), 0);
  run_fixture_close(&run_fixture);
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
}

/*
 * One gradient is not finite after earlier parameters were updated: the run cannot go on, and each later step says so.
 */
static void a_gradient_that_is_not_finite_ends_a_run_that_updates_early(void **state)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct run_fixture run_fixture;
  struct lade_error error = {0};
  struct lade_step_result result;
  run_fixture_init(&run_fixture, &model);
  run_fixture.optimizer_in_backward = true;
  struct lade_plan *plan = early_plan(&run_fixture);
  assert_int_equal(run_fixture_open(&run_fixture, plan, &error), 0);
  assert_int_equal(run_fixture_step(&run_fixture, 0, &result, &error), 0);
  const struct lade_param *first = &run_fixture.graph->params[0]; /* the token table: its gradient is the last one */
  const uint64_t bytes = run_fixture.graph->tensors[first->tensor].bytes;
  uint16_t *table = malloc(bytes);
  for (uint64_t i = 0; i < bytes / sizeof(*table); i++)
    table[i] = 0x7f80; /* infinity */
  assert_int_equal(lade_executor_set(run_fixture.executor, first->tensor, 0, table, bytes, &error), 0);
  free(table);
  assert_int_equal(run_fixture_step(&run_fixture, 1, &result, &error), -ERANGE);
  assert_true(result.clip_result.is_skipped);
  assert_int_equal(run_fixture_step(&run_fixture, 2, &result, &error), -EDOM);
  run_fixture_close(&run_fixture);
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
}

/* ---- gradients ---- */

static void value_get(struct run_fixture *run_fixture, int tensor, void *memory)
{
  struct lade_error error = {0};
  uint64_t bytes = lade_value_bytes(run_fixture->graph, tensor);
  for (uint64_t at = 0; at < bytes; at += LADE_EXECUTOR_WINDOW_BYTES) {
    uint64_t part = LADE_MIN(bytes - at, LADE_EXECUTOR_WINDOW_BYTES);
    if (lade_executor_get(run_fixture->executor, tensor, at, (char *)memory + at, part, &error))
      fail_msg("%s", error.text);
  }
}

/* Round @gradient in place as updates of @graph do. Return the sum of squares. */
static double gradient_round(const struct lade_model_graph *graph, float *gradient, uint64_t n)
{
  double sum = 0;
  for (uint64_t i = 0; i < n; i++) {
    gradient[i] = lade_model_graph_rounds(graph) ? lade_bf16_to_f32(lade_f32_to_bf16(gradient[i])) : gradient[i];
    sum += (double)gradient[i] * gradient[i];
  }
  return sum;
}

/*
 * Compare gradients. With beta1 0, no clipping and a rate of 0, the first moment after a step is the gradient itself,
 * as the update reads it.
 */
static void gradients_agree(struct run_fixture *run_fixture, const struct lade_plan *plan)
{
  struct lade_error error = {0};
  struct lade_step_result result;
  struct graph_run run;
  const struct lade_model_graph *graph = run_fixture->graph;
  int n = run_fixture->model.n_microbatches;
  size_t rows = (size_t)(graph->batch * graph->seq_len);
  int32_t *tokens = calloc(rows * (size_t)n, sizeof(*tokens)), *targets = calloc(rows * (size_t)n, sizeof(*targets));
  assert_int_equal(run_fixture_open(run_fixture, plan, &error), 0);
  graph_run_init(&run, graph, &run_fixture->kernels, run_fixture->pool);
  for (int i = 0; i < graph->n_params; i++)
    value_get(run_fixture, graph->params[i].tensor, run.memory[graph->params[i].tensor]);
  run_fixture_tokens_fill(run_fixture, 0);
  for (int m = 0; m < n; m++) {
    memcpy(tokens + rows * (size_t)m, lade_executor_tokens(run_fixture->executor, m), rows * sizeof(*tokens));
    memcpy(targets + rows * (size_t)m, lade_executor_targets(run_fixture->executor, m), rows * sizeof(*targets));
  }
  struct lade_step step = run_fixture_step_block(run_fixture, 0);
  step.lr = step.beta1 = step.weight_decay = step.clip = 0;
  step.loss_scale = 1;
  run.step = step;
  double loss = graph_run_step(&run, tokens, targets, n, true);
  assert_int_equal(lade_executor_step(run_fixture->executor, &step, &result, &error), 0);
  assert_true(fabs(result.loss - loss) <= 1e-14 * fabs(loss));
  double squares = 0;
  for (int i = 0; i < graph->n_params; i++) {
    int grad = graph->params[i].grad;
    uint64_t bytes = graph->tensors[grad].bytes;
    void *moment = malloc(bytes);
    value_get(run_fixture, lade_value_part(graph, i, LADE_PART_M), moment);
    squares += gradient_round(graph, run.memory[grad], bytes / sizeof(float));
    if (memcmp(moment, run.memory[grad], bytes) != 0)
      fail_msg("gradient %s differs", graph->tensors[grad].name);
    free(moment);
  }
  assert_true(fabs(sqrt(squares) - (double)result.clip_result.norm) <= 1e-6 * sqrt(squares));
  graph_run_finish(&run);
  free(tokens);
  free(targets);
  run_fixture_close(run_fixture);
}

static void gradients_are_those_of_the_plain_runner(void **state)
{
  for (int i = 0; i < 6; i++) {
    struct run_fixture_model model = run_fixture_tiny(i % 2 ? LADE_LLAMA : LADE_GPT2);
    struct lade_error error = {0};
    struct lade_plan_bounds bounds;
    struct lade_plan *plan = NULL;
    struct run_fixture run_fixture;
    model.dtype = i < 2 || i == 5 ? LADE_F32 : LADE_BF16;
    model.grad_dtype = i < 4 ? LADE_F32 : LADE_BF16;
    model.n_microbatches = 1 + i % 4;
    run_fixture_init(&run_fixture, &model);
    lade_planner *planner = run_fixture_planner(&run_fixture, GIB, 0, LADE_RECIPE_AUTO);
    assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
    assert_int_equal(lade_planner_plan(planner, bounds.min_bytes, &error, &plan), 0);
    gradients_agree(&run_fixture, plan);
    lade_plan_destroy(plan);
    lade_planner_destroy(planner);
    run_fixture_finish(&run_fixture);
  }
}

/* Return the bytes of gradients on the device at the clip result with everything kept; updates read all of them. */
static uint64_t gradient_bytes(enum lade_dtype grad_dtype, uint64_t *ret_peak_bytes)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct lade_residency *keep = NULL;
  struct run_fixture run_fixture;
  uint64_t bytes = 0, taken_bytes = 0;
  int clip = 0;
  model.grad_dtype = grad_dtype;
  run_fixture_init(&run_fixture, &model);
  assert_int_equal(lade_residency_create(run_fixture.graph, &keep), 0);
  struct lade_plan *plan = run_fixture_plan(&run_fixture, keep);
  const struct lade_program *program = plan->train;
  while (program->instrs[clip].kind != LADE_INSTR_CLIP)
    clip++;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->owner == LADE_OWNER_GRADIENTS && buffer->first <= clip && buffer->last >= clip)
      bytes += buffer->bytes;
  }
  for (int at = clip; at < program->n_instrs; at++) {
    if (program->instrs[at].kind == LADE_INSTR_UPDATE)
      taken_bytes += lade_align_up(program->operands[program->instrs[at].first_operand + 1].bytes, LADE_BUFFER_ALIGN);
  }
  assert_int_equal(bytes, taken_bytes);
  *ret_peak_bytes = plan->peak_bytes[LADE_DEVICE];
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
  return bytes;
}

static void rounded_gradients_wait_in_half_the_bytes(void **state)
{
  uint64_t peak_bytes, rounded_peak_bytes;
  uint64_t bytes = gradient_bytes(LADE_F32, &peak_bytes), rounded = gradient_bytes(LADE_BF16, &rounded_peak_bytes);
  assert_in_range(rounded, bytes / 2, bytes / 2 + 40 * LADE_BUFFER_ALIGN); /* small tensors take a whole page */
  assert_true(rounded_peak_bytes < peak_bytes);
}

/* ---- the peak ---- */

enum { REACHED_END = 40, REACHED_PAST, REFUSED };

/* In a child check a device with exactly the planned chunks: its last byte exists and the next one does not. */
static int arena_child(struct run_fixture *run_fixture, const struct lade_plan *plan)
{
  struct lade_error error;
  struct lade_step_result result;
  if (run_fixture_open(run_fixture, plan, &error) || run_fixture_step(run_fixture, 0, &result, &error))
    return REFUSED;
  signal(SIGSEGV, SIG_DFL);
  volatile char *end = (volatile char *)(uintptr_t)(run_fixture->executor->arena + plan->peak_bytes[LADE_DEVICE]);
  end[-1] = 1;
  if (write(STDERR_FILENO, "", 0) < 0)
    return REACHED_END;
  *end = 1;
  return REACHED_PAST;
}

static struct run_fixture_model chunky_model(void)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  model.layers = 4;
  model.width = 128;
  model.vocabulary = 4096;
  model.batch = 8;
  model.seq_len = 64;
  return model;
}

/* Runs before the process has other threads, because a child has none of them. */
static void an_access_past_the_planned_arena_faults(void **state)
{
  struct run_fixture_model model = chunky_model();
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct run_fixture run_fixture;
    struct lade_plan_bounds bounds;
    struct lade_plan *plan = NULL;
    run_fixture_init(&run_fixture, &model);
    run_fixture.chunk_bytes = 2 << 20;
    lade_planner *planner = run_fixture_planner(&run_fixture, GIB, 0, LADE_RECIPE_AUTO);
    bool is_planned = !lade_planner_get_bounds(planner, &bounds) &&
                      !lade_planner_plan(planner, bounds.unconstrained_bytes / 2, NULL, &plan);
    _exit(is_planned ? arena_child(&run_fixture, plan) : REFUSED);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status))
    fail_msg("the child ended with %d", WEXITSTATUS(status));
  assert_int_equal(WTERMSIG(status), SIGSEGV);
}

/* run_or_fail compares peaks; here in the device's own chunks, so that nothing is rounded. */
static void the_stated_peak_is_the_measured_peak(void **state)
{
  struct run_fixture_model model = chunky_model();
  struct lade_plan_bounds bounds;
  struct lade_error error = {0};
  struct run_fixture run_fixture;
  run_fixture_init(&run_fixture, &model);
  run_fixture.chunk_bytes = 2 << 20;
  struct run_fixture_numbers want = reference(&run_fixture);
  lade_planner *planner = run_fixture_planner(&run_fixture, GIB, store_refusal ? 0 : GIB, LADE_RECIPE_AUTO);
  assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
  int n_plans = 0;
  const uint64_t rise = (uint64_t)of_extent(9, 3, 3) * run_fixture.chunk_bytes;
  for (uint64_t budget = bounds.min_bytes; budget <= bounds.unconstrained_bytes; budget += rise) {
    struct lade_plan *plan = NULL;
    struct run_fixture_numbers numbers;
    if (lade_planner_plan(planner, budget, &error, &plan))
      fail_msg("%s", error.text);
    assert_int_equal(plan->peak_bytes[LADE_DEVICE] % run_fixture.chunk_bytes, 0);
    assert_true(plan->peak_bytes[LADE_DEVICE] <= budget);
    run_or_fail(&run_fixture, plan, &numbers);
    numbers_equal(&numbers, &want, "%llu bytes", (unsigned long long)budget);
    lade_plan_destroy(plan);
    n_plans++;
  }
  assert_true(n_plans > of_extent(1, 3, 3));
  struct lade_plan *none = NULL;
  assert_int_equal(lade_planner_plan(planner, bounds.min_bytes - run_fixture.chunk_bytes, &error, &none), -EOVERFLOW);
  assert_null(none);
  lade_planner_destroy(planner);
  run_fixture_finish(&run_fixture);
}

int main(int argc, char **argv)
{
  if (argc > 1)
    extent = strcmp(argv[1], "every") == 0 ? MANY : FEW;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_access_past_the_planned_arena_faults),
      cmocka_unit_test(gradients_are_those_of_the_plain_runner),
      cmocka_unit_test(rounded_gradients_wait_in_half_the_bytes),
      cmocka_unit_test(the_stated_peak_is_the_measured_peak),
      cmocka_unit_test(every_residency_gives_the_same_bits),
      cmocka_unit_test(every_budget_gives_the_same_bits),
      cmocka_unit_test(every_budget_of_a_form_of_scores_gives_the_same_bits),
      cmocka_unit_test(early_updates_give_the_same_bits),
      cmocka_unit_test(early_updates_refuse_clipping_and_a_loss_scale),
      cmocka_unit_test(a_gradient_that_is_not_finite_ends_a_run_that_updates_early),
      cmocka_unit_test(every_budget_of_a_compact_form_gives_the_same_bits),
      cmocka_unit_test(a_step_moves_no_byte_of_state_twice),
      cmocka_unit_test(states_side_by_side_are_one_request),
      cmocka_unit_test(at_most_half_of_the_ring_is_being_read),
  };
  store_refusal = run_fixture_store_refusal(LADE_STORE_AUTO);
  if (store_refusal)
    printf("SKIP: runs with a store: %s\n", store_refusal);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
