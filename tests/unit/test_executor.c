/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving memory never changes the numbers, and the stated peak is the measured one: losses, norms, evaluations,
 * parameters and optimizer state of runs at many budgets and residencies have the bits of the run that keeps
 * everything. That one in turn has the gradients of the plain graph runner.
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
#include "run/executor_internal.h"
#include "tests/support/graph_run.h"
#include "tests/support/rig.h"
#include "tests/support/scene.h"

#define N_STEPS 3
#define GIB (UINT64_C(1) << 30)

static const char *store_refusal;
static enum { FEW, SOME, MANY } extent = SOME; /* how much of the same: the argument */

static int of_extent(int few, int some, int many)
{
  return extent == FEW ? few : extent == SOME ? some : many;
}

static void run_or_fail(struct rig *rig, const struct lade_plan *plan, struct rig_numbers *ret_numbers)
{
  struct lade_error error = {0};
  struct lade_device_info info;
  if (rig_open(rig, plan, &error) || rig_run(rig, N_STEPS, ret_numbers, &error))
    fail_msg("%s", error.text);
  lade_device_get_info(rig->device, &info);
  assert_int_equal(info.peak_bytes, lade_align_up(plan->peak_bytes[LADE_DEVICE], info.chunk_bytes));
  rig_close(rig);
}

/* What the run that keeps everything gives. */
static struct rig_numbers reference(struct rig *rig)
{
  struct lade_residency *keep = NULL;
  struct rig_numbers numbers;
  assert_int_equal(lade_residency_create(rig->graph, &keep), 0);
  for (int i = 0; i < rig->graph->n_tensors; i++)
    keep->choices[i] = (struct lade_choice){LADE_WAIT_KEEP, LADE_WAIT_KEEP};
  struct lade_plan *plan = rig_plan(rig, keep);
  run_or_fail(rig, plan, &numbers);
  lade_plan_destroy(plan);
  assert_true(numbers.loss[0] > 1 && numbers.loss[N_STEPS - 1] < 20 && numbers.loss[0] != numbers.loss[1]);
  assert_true(numbers.norm[0] > 0 && numbers.eval[0] != numbers.eval[1]);
  return numbers;
}

static void numbers_equal(const struct rig_numbers *got, const struct rig_numbers *want, const char *format, ...)
{
  char what[256];
  va_list args;
  if (memcmp(got, want, sizeof(*got)) == 0)
    return;
  va_start(args, format);
  vsnprintf(what, sizeof(what), format, args);
  va_end(args);
  fail_msg("%s: other numbers: loss %a %a %a, not %a %a %a; evaluation %a %a, not %a %a; norm %a, not %a; digest %llx, "
           "not %llx", what, got->loss[0], got->loss[1], got->loss[2], want->loss[0], want->loss[1], want->loss[2],
           got->eval[0], got->eval[1], want->eval[0], want->eval[1], (double)got->norm[0], (double)want->norm[0],
           (unsigned long long)got->digest, (unsigned long long)want->digest);
}

/* ---- budgets ---- */

static const struct {
  const char *name;
  uint64_t host_bytes, store_bytes;
} tiers[] = {{"recompute", 0, 0}, {"host", GIB, 0}, {"store", 0, GIB}, {"both", 256 << 10, GIB}};

/* From the unconstrained peak down to the smallest budget, in @n steps. */
static void budgets_agree(struct rig *rig, const struct rig_numbers *want, int tier, int n)
{
  struct lade_plan_bounds bounds;
  struct lade_error error = {0};
  lade_planner *planner = rig_planner(rig, tiers[tier].host_bytes, tiers[tier].store_bytes, LADE_RECIPE_AUTO);
  assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
  assert_true(bounds.lower_bound_bytes <= bounds.min_bytes && bounds.min_bytes < bounds.unconstrained_bytes);
  for (int i = 0; i < n; i++) { /* the smallest first */
    uint64_t range = bounds.unconstrained_bytes - bounds.min_bytes;
    uint64_t budget = bounds.min_bytes + range * (uint64_t)i / (uint64_t)LADE_MAX(n - 1, 1);
    struct lade_plan *plan = NULL;
    struct rig_numbers numbers;
    if (lade_planner_plan(planner, budget, &error, &plan))
      fail_msg("%s at %llu bytes: %s", tiers[tier].name, (unsigned long long)budget, error.text);
    assert_true(plan->peak_bytes[LADE_DEVICE] <= budget);
    run_or_fail(rig, plan, &numbers);
    numbers_equal(&numbers, want, "%s, %s, %s, %d microbatches, %llu bytes", rig->model.family ? "llama" : "gpt2",
                  lade_dtype_name(rig->model.dtype), tiers[tier].name, rig->model.n_microbatches,
                  (unsigned long long)budget);
    lade_plan_destroy(plan);
  }
  lade_planner_destroy(planner);
}

static void model_agrees(enum lade_family family, enum lade_dtype dtype, int n_microbatches, int n_budgets)
{
  struct rig_model model = rig_tiny(family);
  struct rig rig;
  model.dtype = dtype;
  model.n_microbatches = n_microbatches;
  rig_init(&rig, &model);
  struct rig_numbers want = reference(&rig);
  for (int tier = 0; tier < (int)LADE_COUNT(tiers); tier++) {
    if (!tiers[tier].store_bytes || !store_refusal)
      budgets_agree(&rig, &want, tier, n_budgets);
  }
  rig_finish(&rig);
}

static void every_budget_gives_the_same_bits(void **state)
{
  for (int family = LADE_GPT2; family <= LADE_LLAMA; family++) {
    for (int n_microbatches = 1; n_microbatches <= 3; n_microbatches += 2) {
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

/* A compact form rounds, but wherever its state lives it rounds alike. */
static void every_budget_of_a_compact_form_gives_the_same_bits(void **state)
{
  struct rig_numbers exact = {0};
  for (size_t i = 0; i < (extent == FEW ? 2 : LADE_COUNT(forms)); i++) {
    struct rig_model model = rig_tiny(i % 2 ? LADE_LLAMA : LADE_GPT2);
    struct rig rig;
    model.dtype = forms[i].dtype;
    if (i == 0) {
      rig_init(&rig, &model);
      exact = reference(&rig);
      rig_finish(&rig);
    }
    model.moments = forms[i].moments;
    model.master = forms[i].master;
    model.grad_dtype = forms[i].grad_dtype;
    rig_init(&rig, &model);
    struct rig_numbers want = reference(&rig);
    if (i == 0) { /* the first step is made of exact gradients and rounds behind itself */
      assert_true(want.loss[0] == exact.loss[0] && want.norm[0] == exact.norm[0]);
      assert_true(want.digest != exact.digest && fabs(want.eval[1] - exact.eval[1]) < 0.01 * exact.eval[1]);
    }
    for (int tier = 0; tier < (int)LADE_COUNT(tiers); tier++) {
      if (!tiers[tier].store_bytes || !store_refusal)
        budgets_agree(&rig, &want, tier, of_extent(1, 2, 8));
    }
    rig_finish(&rig);
  }
}

/* ---- state on the drive, working copies in memory ---- */

/* Wide enough that whole pages of small tensors are a hundredth of the bytes. */
static struct rig_model wide_model(void)
{
  struct rig_model model = rig_tiny(LADE_GPT2);
  model.layers = 1;
  model.width = 512;
  model.vocabulary = 4096;
  model.batch = 1;
  return model;
}

static int64_t parameters_count(const struct lade_graph *graph)
{
  int64_t n = 0;
  for (int param = 0; param < graph->n_params; param++)
    n += (int64_t)(lade_value_bytes(graph, graph->params[param].tensor) / lade_dtype_bytes(graph->dtype));
  return n;
}

/* What the store itself has moved since it was prepared. */
static struct lade_store_info moved_get(const struct rig *rig)
{
  struct lade_store_info info = {0};
  if (rig->store)
    lade_store_get_info(rig->store, &info);
  return info;
}

/*
 * Working copies on the device and state at home in @home: two steps, of which each reads at most @most bytes per
 * parameter from the drive, and not much less, and writes as many. Returns the digest of all parameters and state.
 */
static uint64_t two_steps(struct rig *rig, enum lade_home home, double most, const char *name)
{
  struct lade_residency *residency = NULL;
  struct lade_error error = {0};
  struct lade_step_result result;
  const double n = (double)parameters_count(rig->graph);
  uint64_t digest = 0;
  assert_int_equal(lade_residency_create(rig->graph, &residency), 0);
  for (int param = 0; param < rig->graph->n_params; param++)
    lade_residency_set_homes(residency, param, LADE_HOME_DEVICE, home);
  struct lade_plan *plan = rig_plan(rig, residency);
  if (rig_open(rig, plan, &error))
    fail_msg("%s", error.text);
  for (int i = 0; i < 2; i++) {
    struct lade_store_info before = moved_get(rig);
    if (rig_step(rig, i, &result, &error))
      fail_msg("%s", error.text);
    struct lade_store_info after = moved_get(rig);
    double read = (double)(after.read_bytes - before.read_bytes) / n;
    double written = (double)(after.written_bytes - before.written_bytes) / n;
    if (read > most || written > most || read < 0.9 * most || written < 0.9 * most)
      fail_msg("%s: %.3f bytes read and %.3f written per parameter, not up to %.1f", name, read, written, most);
  }
  if (rig_digest(rig, &digest, &error))
    fail_msg("%s", error.text);
  rig_close(rig);
  lade_plan_destroy(plan);
  return digest;
}

static void a_step_moves_no_byte_of_state_twice(void **state)
{
  static const struct {
    enum lade_moments moments;
    enum lade_master master;
    double most; /* bytes per parameter, each way */
    struct lade_streaming how; /* which no bit depends on: many short windows, one for all, and in between */
    const char *name;
  } cases[] = {{LADE_MOMENTS_F32, LADE_MASTER_EXACT, 10.1, {1, 2}, "exact"},
               {LADE_MOMENTS_BF16, LADE_MASTER_EXACT, 6.1, {1 << 20, 1}, "bf16 moments"},
               {LADE_MOMENTS_8BIT, LADE_MASTER_EXACT, 4.1, {3 << 19, 6}, "8-bit moments"},
               {LADE_MOMENTS_8BIT, LADE_MASTER_24BIT, 3.1, {64 << 20, 2}, "24-bit master"}};
  for (size_t i = 0; i < LADE_COUNT(cases) && !store_refusal; i += extent == MANY ? 1 : LADE_COUNT(cases) - 1) {
    struct rig_model model = wide_model();
    struct rig rig;
    model.moments = cases[i].moments;
    model.master = cases[i].master;
    rig_init(&rig, &model);
    rig.prices.streaming = cases[i].how;
    uint64_t want = two_steps(&rig, LADE_HOME_DEVICE, 0, cases[i].name);
    if (two_steps(&rig, LADE_HOME_STORE, cases[i].most, cases[i].name) != want)
      fail_msg("%s: other bits than in memory", cases[i].name);
    rig_finish(&rig);
  }
}

/* A plan with all state in the store and the rest of the model in memory, bound. */
static struct lade_plan *stored_open(struct rig *rig)
{
  struct lade_residency *residency = NULL;
  struct lade_error error = {0};
  assert_int_equal(lade_residency_create(rig->graph, &residency), 0);
  for (int param = 0; param < rig->graph->n_params; param++)
    lade_residency_set_homes(residency, param, LADE_HOME_DEVICE, LADE_HOME_STORE);
  struct lade_plan *plan = rig_plan(rig, residency);
  if (rig_open(rig, plan, &error))
    fail_msg("%s", error.text);
  return plan;
}

static void step_or_fail(struct rig *rig)
{
  struct lade_error error = {0};
  struct lade_step_result result;
  if (rig_step(rig, 0, &result, &error))
    fail_msg("%s", error.text);
}

/* Reads and writes of one step. */
static void requests_count(struct rig *rig, uint64_t *ret_reads, uint64_t *ret_writes)
{
  struct lade_faults faults;
  lade_faults_init(&faults);
  rig->faults = &faults;
  struct lade_plan *plan = stored_open(rig);
  *ret_reads = lade_faults_count(&faults, LADE_FAULT_FILE_READ);
  *ret_writes = lade_faults_count(&faults, LADE_FAULT_FILE_WRITE);
  step_or_fail(rig);
  *ret_reads = lade_faults_count(&faults, LADE_FAULT_FILE_READ) - *ret_reads;
  *ret_writes = lade_faults_count(&faults, LADE_FAULT_FILE_WRITE) - *ret_writes;
  rig_close(rig);
  rig->faults = NULL;
  lade_plan_destroy(plan);
}

static void states_side_by_side_are_one_request(void **state)
{
  for (int moments = 0; moments < LADE_N_MOMENTS && !store_refusal; moments++) {
    struct rig_model model = rig_tiny(LADE_GPT2);
    struct rig rig;
    uint64_t n_reads, n_writes;
    model.moments = (enum lade_moments)moments;
    model.width = 128; /* a norm is short beside a matrix */
    rig_init(&rig, &model);
    rig.prices.streaming = (struct lade_streaming){3 << 19, 6};
    requests_count(&rig, &n_reads, &n_writes);
    if (n_reads != n_writes || n_reads < 2 || n_reads > 2 * (uint64_t)rig.graph->n_params / 3)
      fail_msg("moments %d: %llu reads and %llu writes for %d parameters", moments, (unsigned long long)n_reads,
               (unsigned long long)n_writes, rig.graph->n_params);
    rig_finish(&rig);
  }
}

/* ---- in which order the drive is asked ---- */

#define WATCHED_MOST 64

/* What is known of reads at the moment in which a transfer is submitted. */
static struct {
  bool is_on;
  const struct lade_transfer *reads[WATCHED_MOST]; /* that have begun and are not there */
  int n;
  uint64_t most_bytes; /* of several of them at once */
} watch;

/* What is in @transfer's place has ended, whatever stands there now. */
static void watch_note(const struct lade_transfer *transfer)
{
  uint64_t bytes = 0;
  int n = 0;
  for (int i = 0; i < watch.n; i++) {
    if (watch.reads[i] != transfer && !lade_transfer_is_done(watch.reads[i]))
      watch.reads[n++] = watch.reads[i];
  }
  assert_true(n < WATCHED_MOST);
  if (transfer->op == LADE_STORE_READ)
    watch.reads[n++] = transfer;
  watch.n = n;
  for (int i = 0; i < n; i++)
    bytes += watch.reads[i]->bytes;
  if (n > 1)
    watch.most_bytes = LADE_MAX(watch.most_bytes, bytes);
}

int __real_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer);
int __wrap_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer);
int __wrap_lade_store_submit(struct lade_store *store, struct lade_transfer *transfer)
{
  if (watch.is_on)
    watch_note(transfer);
  return __real_lade_store_submit(store, transfer);
}

/* So the drive has the other half to do when all of this comes at once; and not much less, or it has too little. */
static void at_most_half_of_the_ring_is_being_read(void **state)
{
  static const struct lade_streaming how[] = {{3 << 19, 6}, {1 << 20, 4}, {3 << 18, 12}};
  for (size_t i = 0; i < LADE_COUNT(how) && !store_refusal; i++) {
    struct rig_model model = wide_model();
    struct rig rig;
    model.moments = i % 2 ? LADE_MOMENTS_BF16 : LADE_MOMENTS_F32; /* without scales, which are in a ring of their own */
    rig_init(&rig, &model);
    rig.prices.streaming = how[i];
    struct lade_plan *plan = stored_open(&rig);
    const struct bound_program *train = &rig.executor->train;
    assert_int_equal(train->n_runs, 1);
    const uint64_t ring_bytes = train->runs[0].scratch_bytes;
    watch.is_on = true;
    watch.n = 0;
    watch.most_bytes = 0;
    step_or_fail(&rig);
    watch.is_on = false;
    if (watch.most_bytes > ring_bytes / 2 || watch.most_bytes < ring_bytes / 4)
      fail_msg("%d windows of %llu bytes: %llu of the ring's %llu are being read", how[i].n_windows,
               (unsigned long long)how[i].window_bytes, (unsigned long long)watch.most_bytes,
               (unsigned long long)ring_bytes);
    rig_close(&rig);
    lade_plan_destroy(plan);
    rig_finish(&rig);
  }
}

/* ---- residencies that no planner would choose ---- */

static void residency_agrees(struct rig *rig, const struct rig_numbers *want, uint32_t seed)
{
  struct lade_residency *residency = NULL;
  struct rig_numbers numbers;
  uint32_t at = seed * 1000;
  struct scene_setting how = {.manner = (enum scene_manner)scene_draw(&at, SCENE_N_MANNERS),
                              .homes = (int)scene_draw(&at, 4), .seed = at + 10};
  how.has_resident_weights = seed % 2;
  how.prefetch_bytes = scene_draw(&at, 2) ? (uint64_t)scene_draw(&at, 2000000) : 0;
  rig->is_unified = scene_draw(&at, 2);
  assert_int_equal(lade_residency_create(rig->graph, &residency), 0);
  how.is_early = rig->is_early;
  scene_residency_set(residency, rig->graph, &how);
  struct lade_plan *plan = rig_plan(rig, residency);
  assert_int_equal(plan->train->is_early, rig->is_early);
  bool has_store = plan->peak_bytes[LADE_STORE] > 0;
  if (!has_store || !store_refusal) {
    run_or_fail(rig, plan, &numbers);
    numbers_equal(&numbers, want, "residency of seed %u (manner %d, homes %d, early %llu, unified %d)", seed,
                  (int)how.manner, how.homes, (unsigned long long)how.prefetch_bytes, rig->is_unified);
  }
  lade_plan_destroy(plan);
}

static void every_residency_gives_the_same_bits(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_BF16, LADE_F32, LADE_F16};
  for (uint32_t i = 0; i < 12; i++) {
    struct rig_model model = rig_tiny(i % 2 ? LADE_LLAMA : LADE_GPT2);
    struct rig rig;
    model.dtype = dtypes[i / 2 % 3];
    model.n_microbatches = i < 6 ? 1 : 3;
    model.grad_dtype = i % 3 == 1 ? LADE_BF16 : LADE_F32;
    rig_init(&rig, &model);
    struct rig_numbers want = reference(&rig);
    for (int seed = 0; seed < of_extent(1, 5, 40); seed++)
      residency_agrees(&rig, &want, i * 100 + (uint32_t)seed);
    rig_finish(&rig);
  }
}

/* ---- updates inside the backward half ---- */

static void early_updates_give_the_same_bits(void **state)
{
  for (uint32_t i = 0; i < (uint32_t)of_extent(2, 4, 4); i++) {
    struct rig_model model = rig_tiny(i % 2 ? LADE_LLAMA : LADE_GPT2);
    struct rig rig;
    model.dtype = i < 2 ? LADE_BF16 : LADE_F32;
    model.n_microbatches = i == 1 || i == 2 ? 3 : 1;
    model.grad_dtype = i < 2 ? LADE_F32 : LADE_BF16;
    rig_init(&rig, &model);
    rig.is_early = true;
    struct rig_numbers want = reference(&rig); /* updates at the end */
    for (int seed = 0; seed < of_extent(2, 6, 40); seed++)
      residency_agrees(&rig, &want, 5000 + i * 100 + (uint32_t)seed);
    for (int tier = 0; tier < (int)LADE_COUNT(tiers); tier++) {
      if (!tiers[tier].store_bytes || !store_refusal)
        budgets_agree(&rig, &want, tier, of_extent(1, 2, 8));
    }
    rig_finish(&rig);
  }
}

/* A plan with everything kept and updates early. */
static struct lade_plan *early_plan(const struct rig *rig)
{
  struct lade_residency *keep = NULL;
  assert_int_equal(lade_residency_create(rig->graph, &keep), 0);
  keep->is_early = true;
  return rig_plan(rig, keep);
}

static void early_updates_refuse_clipping_and_a_loss_scale(void **state)
{
  struct rig_model model = rig_tiny(LADE_GPT2);
  struct rig rig;
  struct lade_error error = {0};
  struct lade_step_result result;
  rig_init(&rig, &model);
  rig.is_early = true;
  struct lade_plan *plan = early_plan(&rig);
  assert_int_equal(rig_open(&rig, plan, &error), 0);
  rig_tokens_fill(&rig, 0);
  struct lade_step clipped = rig_step_block(&rig, 0), scaled = clipped;
  clipped.clip = 1;
  scaled.loss_scale = 2;
  assert_int_equal(lade_executor_step(rig.executor, &clipped, &result, &error), -EINVAL);
  assert_int_equal(lade_executor_step(rig.executor, &scaled, &result, &error), -EINVAL);
  assert_int_equal(lade_executor_n_steps(rig.executor), 0);
  assert_int_equal(rig_step(&rig, 0, &result, &error), 0);
  rig_close(&rig);
  lade_plan_destroy(plan);
  rig_finish(&rig);
}

/* One gradient is not finite after others were: the run cannot go on, and says so ever after. */
static void a_gradient_that_is_not_finite_ends_a_run_that_updates_early(void **state)
{
  struct rig_model model = rig_tiny(LADE_GPT2);
  struct rig rig;
  struct lade_error error = {0};
  struct lade_step_result result;
  rig_init(&rig, &model);
  rig.is_early = true;
  struct lade_plan *plan = early_plan(&rig);
  assert_int_equal(rig_open(&rig, plan, &error), 0);
  assert_int_equal(rig_step(&rig, 0, &result, &error), 0);
  const struct lade_param *first = &rig.graph->params[0]; /* the token table: its gradient is the last one */
  const uint64_t bytes = rig.graph->tensors[first->tensor].bytes;
  uint16_t *table = malloc(bytes);
  for (uint64_t i = 0; i < bytes / sizeof(*table); i++)
    table[i] = 0x7f80; /* infinity */
  assert_int_equal(lade_executor_set(rig.executor, first->tensor, 0, table, bytes, &error), 0);
  free(table);
  assert_int_equal(rig_step(&rig, 1, &result, &error), -ERANGE);
  assert_true(result.verdict.is_skipped);
  assert_int_equal(rig_step(&rig, 2, &result, &error), -EDOM);
  rig_close(&rig);
  lade_plan_destroy(plan);
  rig_finish(&rig);
}

/* ---- gradients ---- */

static void value_get(struct rig *rig, int tensor, void *memory)
{
  struct lade_error error = {0};
  uint64_t bytes = lade_value_bytes(rig->graph, tensor);
  for (uint64_t at = 0; at < bytes; at += LADE_EXECUTOR_WINDOW_BYTES) {
    uint64_t part = LADE_MIN(bytes - at, LADE_EXECUTOR_WINDOW_BYTES);
    if (lade_executor_get(rig->executor, tensor, at, (char *)memory + at, part, &error))
      fail_msg("%s", error.text);
  }
}

/* Round in place as updates of @graph take gradients; returns the sum of squares. */
static double gradient_round(const struct lade_graph *graph, float *gradient, uint64_t n)
{
  double sum = 0;
  for (uint64_t i = 0; i < n; i++) {
    gradient[i] = lade_graph_rounds(graph) ? lade_bf16_to_f32(lade_f32_to_bf16(gradient[i])) : gradient[i];
    sum += (double)gradient[i] * gradient[i];
  }
  return sum;
}

/* With beta1 0, no clipping and a rate of 0, the first moment after a step is the gradient itself, as it is taken. */
static void gradients_agree(struct rig *rig, const struct lade_plan *plan)
{
  struct lade_error error = {0};
  struct lade_step_result result;
  struct graph_run run;
  const struct lade_graph *graph = rig->graph;
  int n = rig->model.n_microbatches;
  size_t rows = (size_t)(graph->batch * graph->time);
  int32_t *tokens = calloc(rows * (size_t)n, sizeof(*tokens)), *targets = calloc(rows * (size_t)n, sizeof(*targets));
  assert_int_equal(rig_open(rig, plan, &error), 0);
  graph_run_init(&run, graph, &rig->kernels, rig->pool);
  for (int i = 0; i < graph->n_params; i++)
    value_get(rig, graph->params[i].tensor, run.memory[graph->params[i].tensor]);
  rig_tokens_fill(rig, 0);
  for (int m = 0; m < n; m++) {
    memcpy(tokens + rows * (size_t)m, lade_executor_tokens(rig->executor, m), rows * sizeof(*tokens));
    memcpy(targets + rows * (size_t)m, lade_executor_targets(rig->executor, m), rows * sizeof(*targets));
  }
  struct lade_step step = rig_step_block(rig, 0);
  step.lr = step.beta1 = step.weight_decay = step.clip = 0;
  step.loss_scale = 1;
  run.step = step;
  double loss = graph_run_step(&run, tokens, targets, n, true);
  assert_int_equal(lade_executor_step(rig->executor, &step, &result, &error), 0);
  assert_true(fabs(result.loss - loss) <= 1e-14 * fabs(loss));
  double squares = 0;
  for (int i = 0; i < graph->n_params; i++) {
    int grad = graph->params[i].grad;
    uint64_t bytes = graph->tensors[grad].bytes;
    void *moment = malloc(bytes);
    value_get(rig, lade_value_part(graph, i, LADE_PART_M), moment);
    squares += gradient_round(graph, run.memory[grad], bytes / sizeof(float));
    if (memcmp(moment, run.memory[grad], bytes) != 0)
      fail_msg("gradient %s differs", graph->tensors[grad].name);
    free(moment);
  }
  assert_true(fabs(sqrt(squares) - (double)result.verdict.norm) <= 1e-6 * sqrt(squares));
  graph_run_finish(&run);
  free(tokens);
  free(targets);
  rig_close(rig);
}

static void gradients_are_those_of_the_plain_runner(void **state)
{
  for (int i = 0; i < 6; i++) {
    struct rig_model model = rig_tiny(i % 2 ? LADE_LLAMA : LADE_GPT2);
    struct lade_error error = {0};
    struct lade_plan_bounds bounds;
    struct lade_plan *plan = NULL;
    struct rig rig;
    model.dtype = i < 2 || i == 5 ? LADE_F32 : LADE_BF16;
    model.grad_dtype = i < 4 ? LADE_F32 : LADE_BF16;
    model.n_microbatches = 1 + i % 4;
    rig_init(&rig, &model);
    lade_planner *planner = rig_planner(&rig, GIB, 0, LADE_RECIPE_AUTO);
    assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
    assert_int_equal(lade_planner_plan(planner, bounds.min_bytes, &error, &plan), 0);
    gradients_agree(&rig, plan);
    lade_plan_destroy(plan);
    lade_planner_destroy(planner);
    rig_finish(&rig);
  }
}

/* Bytes of gradients on the device at the verdict, when everything is kept; all are read by updates. */
static uint64_t gradient_bytes(enum lade_dtype grad_dtype, uint64_t *ret_peak_bytes)
{
  struct rig_model model = rig_tiny(LADE_GPT2);
  struct lade_residency *keep = NULL;
  struct rig rig;
  uint64_t bytes = 0, taken_bytes = 0;
  int clip = 0;
  model.grad_dtype = grad_dtype;
  rig_init(&rig, &model);
  assert_int_equal(lade_residency_create(rig.graph, &keep), 0);
  struct lade_plan *plan = rig_plan(&rig, keep);
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
  rig_finish(&rig);
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

/* In a child: a device with exactly the planned chunks; its last byte is there and the one after it is not. */
static int arena_child(struct rig *rig, const struct lade_plan *plan)
{
  struct lade_error error;
  struct lade_step_result result;
  if (rig_open(rig, plan, &error) || rig_step(rig, 0, &result, &error))
    return REFUSED;
  signal(SIGSEGV, SIG_DFL);
  volatile char *end = (volatile char *)(uintptr_t)(rig->executor->arena + plan->peak_bytes[LADE_DEVICE]);
  end[-1] = 1;
  if (write(STDERR_FILENO, "", 0) < 0)
    return REACHED_END;
  *end = 1;
  return REACHED_PAST;
}

static struct rig_model chunky_model(void)
{
  struct rig_model model = rig_tiny(LADE_GPT2);
  model.layers = 4;
  model.width = 128;
  model.vocabulary = 4096;
  model.batch = 8;
  model.time = 64;
  return model;
}

/* Before the process has other threads: they would not be in a child. */
static void an_access_past_the_planned_arena_faults(void **state)
{
  struct rig_model model = chunky_model();
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct rig rig;
    struct lade_plan_bounds bounds;
    struct lade_plan *plan = NULL;
    rig_init(&rig, &model);
    rig.chunk_bytes = 2 << 20;
    lade_planner *planner = rig_planner(&rig, GIB, 0, LADE_RECIPE_AUTO);
    bool is_planned = !lade_planner_get_bounds(planner, &bounds) &&
                      !lade_planner_plan(planner, bounds.unconstrained_bytes / 2, NULL, &plan);
    _exit(is_planned ? arena_child(&rig, plan) : REFUSED);
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
  struct rig_model model = chunky_model();
  struct lade_plan_bounds bounds;
  struct lade_error error = {0};
  struct rig rig;
  rig_init(&rig, &model);
  rig.chunk_bytes = 2 << 20;
  struct rig_numbers want = reference(&rig);
  lade_planner *planner = rig_planner(&rig, GIB, store_refusal ? 0 : GIB, LADE_RECIPE_AUTO);
  assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
  int n_plans = 0;
  for (uint64_t budget = bounds.min_bytes; budget <= bounds.unconstrained_bytes; budget += 3 * rig.chunk_bytes) {
    struct lade_plan *plan = NULL;
    struct rig_numbers numbers;
    if (lade_planner_plan(planner, budget, &error, &plan))
      fail_msg("%s", error.text);
    assert_int_equal(plan->peak_bytes[LADE_DEVICE] % rig.chunk_bytes, 0);
    assert_true(plan->peak_bytes[LADE_DEVICE] <= budget);
    run_or_fail(&rig, plan, &numbers);
    numbers_equal(&numbers, &want, "%llu bytes", (unsigned long long)budget);
    lade_plan_destroy(plan);
    n_plans++;
  }
  assert_true(n_plans > 3);
  struct lade_plan *none = NULL;
  assert_int_equal(lade_planner_plan(planner, bounds.min_bytes - rig.chunk_bytes, &error, &none), -EOVERFLOW);
  assert_null(none);
  lade_planner_destroy(planner);
  rig_finish(&rig);
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
      cmocka_unit_test(early_updates_give_the_same_bits),
      cmocka_unit_test(early_updates_refuse_clipping_and_a_loss_scale),
      cmocka_unit_test(a_gradient_that_is_not_finite_ends_a_run_that_updates_early),
      cmocka_unit_test(every_budget_of_a_compact_form_gives_the_same_bits),
      cmocka_unit_test(a_step_moves_no_byte_of_state_twice),
      cmocka_unit_test(states_side_by_side_are_one_request),
      cmocka_unit_test(at_most_half_of_the_ring_is_being_read),
  };
  store_refusal = rig_store_refusal(LADE_STORE_AUTO);
  if (store_refusal)
    printf("SKIP: runs with a store: %s\n", store_refusal);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
