/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training over durable state has the numbers of a run in memory, for every model and form of state, and over any
 * number of lives. A step that was skipped or not published did not happen. 10,000 damages of current values are found.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/philox.h"
#include "run/executor/executor_internal.h"
#include "tests/support/run_fixture.h"

#define N_STEPS 5

static const char *store_refusal;

static void store_needed(void)
{
  if (!store_refusal)
    return;
  printf("SKIP: %s\n", store_refusal);
  skip();
}

struct life {
  const char *name;
  enum lade_family family;
  enum lade_dtype dtype;
  enum lade_moments moments;
  enum lade_master master;
  int n_microbatches;
  bool optimizer_in_backward, is_discrete, has_activations; /* activations are in the store, too */
};

static const struct life lives[] = {
    {"bf16", LADE_GPT2, LADE_BF16, .n_microbatches = 1},
    {"fp32", LADE_LLAMA, LADE_F32, .n_microbatches = 2, .has_activations = true},
    {"fp16", LADE_GPT2, LADE_F16, .n_microbatches = 1},
    {"bf16 moments", LADE_LLAMA, LADE_BF16, LADE_MOMENTS_BF16, .n_microbatches = 1},
    {"8-bit moments, 24-bit master", LADE_GPT2, LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_24BIT, .n_microbatches = 2},
    {"early updates", LADE_GPT2, LADE_BF16, .n_microbatches = 1, .optimizer_in_backward = true},
    {"through the host", LADE_GPT2, LADE_BF16, .n_microbatches = 2, .is_discrete = true, .has_activations = true},
};

static void run_fixture_begin(struct run_fixture *run_fixture, const struct life *life)
{
  struct run_fixture_model model = run_fixture_tiny(life->family);
  model.dtype = life->dtype;
  model.moments = life->moments;
  model.master = life->master;
  model.n_microbatches = life->n_microbatches;
  run_fixture_init(run_fixture, &model);
  run_fixture->optimizer_in_backward = life->optimizer_in_backward;
  run_fixture->is_unified = !life->is_discrete;
}

static struct lade_plan *plan_make(struct run_fixture *run_fixture, const struct life *life, enum lade_tier tier)
{
  struct lade_residency *residency = NULL;
  assert_int_equal(lade_residency_create(run_fixture->graph, &residency), 0);
  residency->optimizer_in_backward = life->optimizer_in_backward;
  for (int i = 0; i < run_fixture->graph->n_params; i++)
    lade_residency_set_tiers(residency, i, tier, tier);
  for (int i = 0; i < run_fixture->graph->n_tensors && life->has_activations && tier == LADE_TIER_STORE; i++) {
    const struct lade_tensor *tensor = &run_fixture->graph->tensors[i];
    if (tensor->kind == LADE_TENSOR_ACTIVATION && residency->choices[i].saved == LADE_RESIDENCY_KEEP)
      residency->choices[i].saved = LADE_RESIDENCY_STORE;
  }
  return run_fixture_plan(run_fixture, residency);
}

static void steps_run(struct run_fixture *run_fixture, const struct life *life, int first, int end, double *losses)
{
  struct lade_error error = {0};
  for (int i = first; i < end; i++) {
    struct lade_step_result result;
    if (run_fixture_step(run_fixture, i, &result, &error))
      fail_msg("%s: step %d: %s", life->name, i, error.text);
    losses[i] = result.loss;
  }
}

static void must_open(struct run_fixture *run_fixture, const struct lade_plan *plan)
{
  struct lade_error error = {0};
  if (run_fixture_open(run_fixture, plan, &error))
    fail_msg("%s", error.text);
}

static uint64_t digest_of(struct run_fixture *run_fixture)
{
  struct lade_error error = {0};
  uint64_t digest = 0;
  if (run_fixture_digest(run_fixture, &digest, &error))
    fail_msg("%s", error.text);
  return digest;
}

/* Run in memory: get its losses, and return the digest of its state. */
static uint64_t in_memory(const struct life *life, double *losses)
{
  struct run_fixture run_fixture;
  run_fixture_begin(&run_fixture, life);
  struct lade_plan *plan = plan_make(&run_fixture, life, LADE_TIER_DEVICE);
  must_open(&run_fixture, plan);
  steps_run(&run_fixture, life, 0, N_STEPS, losses);
  uint64_t digest = digest_of(&run_fixture);
  run_fixture_close(&run_fixture);
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
  return digest;
}

static void many_lives_have_the_numbers_of_one(void **state)
{
  store_needed();
  for (size_t k = 0; k < LADE_COUNT(lives); k++) {
    const struct life *life = &lives[k];
    double want[N_STEPS], losses[N_STEPS];
    uint64_t digest = in_memory(life, want);
    struct run_fixture run_fixture;
    run_fixture_begin(&run_fixture, life);
    run_fixture.is_durable = true;
    run_fixture.store_dir = run_fixture_directory();
    struct lade_plan *plan = plan_make(&run_fixture, life, LADE_TIER_STORE);
    for (int first = 0, end = 2; first < N_STEPS; first = end, end = LADE_MIN(N_STEPS, end + 1)) {
      must_open(&run_fixture, plan);
      assert_int_equal(lade_executor_n_steps(run_fixture.executor), first);
      steps_run(&run_fixture, life, first, end, losses);
      run_fixture_close(&run_fixture);
    }
    must_open(&run_fixture, plan);
    if (digest_of(&run_fixture) != digest || memcmp(losses, want, sizeof(want)) != 0)
      fail_msg("%s: the numbers are others", life->name);
    run_fixture_close(&run_fixture);
    run_fixture_forget(&run_fixture);
    lade_plan_destroy(plan);
    run_fixture_finish(&run_fixture);
  }
}

/* Return a checksum over the place of each value in a slot, because the next build must read this build's state. */
static uint64_t places_sum(struct run_fixture *run_fixture, const struct life *life)
{
  struct lade_plan *stored = plan_make(run_fixture, life, LADE_TIER_STORE);
  uint64_t sum = 0;
  must_open(run_fixture, stored);
  for (int param = 0; param < run_fixture->graph->n_params; param++) {
    for (int part = -1; part < LADE_N_PARTS; part++) {
      const int value = part < 0 ? run_fixture->graph->params[param].tensor
                                 : lade_value_part(run_fixture->graph, param, (enum lade_part)part);
      sum = sum * 31 + (value < 0 ? 0 : executor_place_stored(run_fixture->executor, value) / LADE_BUFFER_ALIGN);
    }
  }
  run_fixture_close(run_fixture);
  lade_plan_destroy(stored);
  return sum;
}

static void where_state_lies_is_of_a_version(void **state)
{
  store_needed();
  static const uint64_t sums[] = { /* by life */
      16047056057551090126u, 11738016603435698553u, 27517520278872878u, 1912213342938074153u,
      7253072111767630328u, 16047056057551090126u, 16047056057551090126u};
  _Static_assert(LADE_COUNT(sums) == LADE_COUNT(lives), "one of each");
  for (size_t k = 0; k < LADE_COUNT(lives); k++) {
    struct run_fixture run_fixture;
    run_fixture_begin(&run_fixture, &lives[k]);
    run_fixture.is_durable = true;
    run_fixture.store_dir = run_fixture_directory();
    const uint64_t sum = places_sum(&run_fixture, &lives[k]);
    if (sum != sums[k])
      fail_msg("%s: state lies elsewhere, %llu: raise MEMO_VERSION (session_durable.c), and set this sum",
               lives[k].name, (unsigned long long)sum);
    run_fixture_forget(&run_fixture);
    run_fixture_finish(&run_fixture);
  }
}

/* ---- steps that did not happen ---- */

static struct run_fixture durable;
static struct lade_plan *plan;
static const struct life fp16 = {"fp16", LADE_GPT2, LADE_F16, .n_microbatches = 1};

static int durable_setup(void **state)
{
  if (store_refusal)
    return 0;
  run_fixture_begin(&durable, &fp16);
  durable.is_durable = true;
  durable.store_dir = run_fixture_directory();
  plan = plan_make(&durable, &fp16, LADE_TIER_STORE);
  must_open(&durable, plan);
  return 0;
}

static int durable_teardown(void **state)
{
  if (store_refusal)
    return 0;
  run_fixture_close(&durable);
  run_fixture_forget(&durable);
  lade_plan_destroy(plan);
  run_fixture_finish(&durable);
  return 0;
}

static void a_step_that_is_not_published_did_not_happen(void **state)
{
  store_needed();
  double losses[N_STEPS], again[N_STEPS];
  struct lade_error error = {0};
  struct lade_step_result result;
  steps_run(&durable, &fp16, 0, 2, losses);
  uint64_t digest = digest_of(&durable);
  struct lade_step step = run_fixture_step_block(&durable, 2);
  for (int i = 0; i < 3; i++) { /* each overwrites the one before it, and none the current one */
    run_fixture_tokens_fill(&durable, 2);
    assert_int_equal(lade_executor_step(durable.executor, &step, &result, &error), 0);
    assert_int_equal(digest_of(&durable), digest);
  }
  run_fixture_close(&durable);
  must_open(&durable, plan);
  assert_int_equal(digest_of(&durable), digest);
  steps_run(&durable, &fp16, 2, 3, again);
  assert_true(again[2] == result.loss);
}

static void a_skipped_step_keeps_the_current_state(void **state)
{
  store_needed();
  double losses[N_STEPS];
  struct lade_error error = {0};
  struct lade_step_result result;
  steps_run(&durable, &fp16, 0, 2, losses);
  uint64_t digest = digest_of(&durable);
  struct lade_step step = run_fixture_step_block(&durable, 2);
  step.loss_scale = 1e30f;
  for (int i = 0; i < 3; i++) {
    run_fixture_tokens_fill(&durable, 2);
    assert_int_equal(lade_executor_step(durable.executor, &step, &result, &error), -ERANGE);
    assert_int_equal(digest_of(&durable), digest);
    if (i == 2) /* FP16 counts the overflow: the scale has changed */
      assert_int_equal(lade_executor_publish(durable.executor, "", 1, &error), 0);
  }
  assert_int_equal(lade_executor_n_steps(durable.executor), 3);
  assert_int_equal(digest_of(&durable), digest);
  run_fixture_close(&durable);
  must_open(&durable, plan);
  assert_int_equal(digest_of(&durable), digest);
}

/* ---- damage ---- */

#define N_DAMAGES 10000
#define BLOCK_BYTES LADE_STORE_BLOCK_BYTES

static _Alignas(BLOCK_BYTES) char blocks[2][BLOCK_BYTES], window[LADE_EXECUTOR_WINDOW_BYTES];

static void block_move(int fd, bool is_write, void *block, uint64_t at)
{
  ssize_t n = is_write ? pwrite(fd, block, BLOCK_BYTES, (off_t)at) : pread(fd, block, BLOCK_BYTES, (off_t)at);
  assert_int_equal(n, BLOCK_BYTES);
}

/* Return the file offset of the value's first block, in the slot of @generation. */
static uint64_t value_place(int tensor, uint64_t generation)
{
  const lade_executor *ex = durable.executor;
  return lade_durable_slot(durable.durable, generation).offset + executor_place_stored(ex, tensor);
}

/* Write in the place of @tensor its block with a flipped bit, another value's, or its own of the step before. */
static void block_damage(int fd, int kind, int tensor, int other, uint64_t draw)
{
  uint64_t at = value_place(tensor, 2), bytes = LADE_MIN(lade_value_bytes(durable.graph, tensor), BLOCK_BYTES);
  block_move(fd, false, blocks[0], at);
  memcpy(blocks[1], blocks[0], BLOCK_BYTES);
  if (kind == 0)
    blocks[1][draw % bytes] ^= (char)(1 << draw / bytes % 8);
  else
    block_move(fd, false, blocks[1], kind == 1 ? value_place(other, 2) : value_place(tensor, 1));
  if (memcmp(blocks[0], blocks[1], bytes) == 0)
    blocks[1][0] ^= 1; /* equal, for example both zeros */
  block_move(fd, true, blocks[1], at);
}

static int data_open(void)
{
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", durable.store_dir, LADE_DURABLE_DATA);
  int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
  assert_true(fd >= 0);
  return fd;
}

/* State on the drive contains no leftover bytes of memory: here of another value, set before it. */
static void the_rest_of_a_values_block_is_zeros(void **state)
{
  store_needed();
  int fd = data_open(), n = 0;
  memset(window, 0x5a, sizeof(window));
  for (int tensor = 0; tensor < lade_value_count(durable.graph); tensor++) {
    const bool is_kept = durable.executor->resident[tensor] >= 0;
    const uint64_t bytes = is_kept ? LADE_MIN(lade_value_bytes(durable.graph, tensor), sizeof(window)) : 0;
    if (bytes)
      assert_int_equal(lade_executor_set(durable.executor, tensor, 0, window, bytes, NULL), 0);
    if (!bytes || bytes >= BLOCK_BYTES)
      continue;
    block_move(fd, false, blocks[0], value_place(tensor, 0));
    for (uint64_t i = bytes; i < BLOCK_BYTES; i++)
      assert_int_equal(blocks[0][i], 0);
    n++;
  }
  assert_true(n > 0);
  close(fd);
}

static void damages_of_the_current_state_are_found(void **state)
{
  store_needed();
  double losses[N_STEPS];
  steps_run(&durable, &fp16, 0, 2, losses);
  int fd = data_open(), n_params = durable.graph->n_params;
  for (uint32_t i = 0; i < N_DAMAGES; i++) {
    struct lade_error error = {0};
    struct lade_philox word = lade_philox_draw(8, i, 0, 0);
    int param = (int)(word.word[0] % (uint32_t)n_params), other = (param + 1) % n_params;
    enum lade_part part = word.word[1] % 2 ? LADE_PART_M : LADE_PART_V;
    int tensor = word.word[1] % 3 ? lade_value_part(durable.graph, param, part) : durable.graph->params[param].tensor;
    uint64_t bytes = LADE_MIN(lade_value_bytes(durable.graph, tensor), sizeof(window));
    block_damage(fd, (int)(i % 3), tensor, durable.graph->params[other].tensor, word.word[2]);
    if (lade_executor_get(durable.executor, tensor, 0, window, bytes, &error) != -EBADMSG)
      fail_msg("damage %u of tensor %d is not found", i, tensor);
    block_move(fd, true, blocks[0], value_place(tensor, 2));
    assert_int_equal(lade_executor_get(durable.executor, tensor, 0, window, bytes, &error), 0);
  }
  close(fd);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(many_lives_have_the_numbers_of_one),
      cmocka_unit_test(where_state_lies_is_of_a_version),
      cmocka_unit_test_setup_teardown(a_step_that_is_not_published_did_not_happen, durable_setup, durable_teardown),
      cmocka_unit_test_setup_teardown(a_skipped_step_keeps_the_current_state, durable_setup, durable_teardown),
      cmocka_unit_test_setup_teardown(the_rest_of_a_values_block_is_zeros, durable_setup, durable_teardown),
      cmocka_unit_test_setup_teardown(damages_of_the_current_state_are_found, durable_setup, durable_teardown),
  };
  store_refusal = run_fixture_store_refusal(LADE_STORE_AUTO);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
