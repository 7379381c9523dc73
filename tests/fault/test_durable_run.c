/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training over durable state: the numbers of a run in memory, whatever the model and form of state, and in however
 * many lives; a step that was skipped or not published did not happen; and 10,000 damages of what counts are found.
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
#include "run/executor_internal.h"
#include "tests/support/rig.h"

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
  bool is_early, is_discrete, has_activations; /* activations wait in the store, beside the state */
};

static const struct life lives[] = {
    {"bf16", LADE_GPT2, LADE_BF16, .n_microbatches = 1},
    {"fp32", LADE_LLAMA, LADE_F32, .n_microbatches = 2, .has_activations = true},
    {"fp16", LADE_GPT2, LADE_F16, .n_microbatches = 1},
    {"bf16 moments", LADE_LLAMA, LADE_BF16, LADE_MOMENTS_BF16, .n_microbatches = 1},
    {"8-bit moments, 24-bit master", LADE_GPT2, LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_24BIT, .n_microbatches = 2},
    {"early updates", LADE_GPT2, LADE_BF16, .n_microbatches = 1, .is_early = true},
    {"through the host", LADE_GPT2, LADE_BF16, .n_microbatches = 2, .is_discrete = true, .has_activations = true},
};

static void rig_begin(struct rig *rig, const struct life *life)
{
  struct rig_model model = rig_tiny(life->family);
  model.dtype = life->dtype;
  model.moments = life->moments;
  model.master = life->master;
  model.n_microbatches = life->n_microbatches;
  rig_init(rig, &model);
  rig->is_early = life->is_early;
  rig->is_unified = !life->is_discrete;
}

static struct lade_plan *plan_make(struct rig *rig, const struct life *life, enum lade_home home)
{
  struct lade_residency *residency = NULL;
  assert_int_equal(lade_residency_create(rig->graph, &residency), 0);
  residency->is_early = life->is_early;
  for (int i = 0; i < rig->graph->n_params; i++)
    lade_residency_set_homes(residency, i, home, home);
  for (int i = 0; i < rig->graph->n_tensors && life->has_activations && home == LADE_HOME_STORE; i++) {
    const struct lade_tensor *tensor = &rig->graph->tensors[i];
    if (tensor->kind == LADE_TENSOR_ACTIVATION && residency->choices[i].saved == LADE_WAIT_KEEP)
      residency->choices[i].saved = LADE_WAIT_STORE;
  }
  return rig_plan(rig, residency);
}

static void steps_run(struct rig *rig, const struct life *life, int first, int end, double *losses)
{
  struct lade_error error = {0};
  for (int i = first; i < end; i++) {
    struct lade_step_result result;
    if (rig_step(rig, i, &result, &error))
      fail_msg("%s: step %d: %s", life->name, i, error.text);
    losses[i] = result.loss;
  }
}

static void must_open(struct rig *rig, const struct lade_plan *plan)
{
  struct lade_error error = {0};
  if (rig_open(rig, plan, &error))
    fail_msg("%s", error.text);
}

static uint64_t digest_of(struct rig *rig)
{
  struct lade_error error = {0};
  uint64_t digest = 0;
  if (rig_digest(rig, &digest, &error))
    fail_msg("%s", error.text);
  return digest;
}

/* The run in memory: its losses and its state. */
static uint64_t in_memory(const struct life *life, double *losses)
{
  struct rig rig;
  rig_begin(&rig, life);
  struct lade_plan *plan = plan_make(&rig, life, LADE_HOME_DEVICE);
  must_open(&rig, plan);
  steps_run(&rig, life, 0, N_STEPS, losses);
  uint64_t digest = digest_of(&rig);
  rig_close(&rig);
  lade_plan_destroy(plan);
  rig_finish(&rig);
  return digest;
}

static void many_lives_have_the_numbers_of_one(void **state)
{
  store_needed();
  for (size_t k = 0; k < LADE_COUNT(lives); k++) {
    const struct life *life = &lives[k];
    double want[N_STEPS], losses[N_STEPS];
    uint64_t digest = in_memory(life, want);
    struct rig rig;
    rig_begin(&rig, life);
    rig.is_durable = true;
    rig.store_dir = rig_directory();
    struct lade_plan *plan = plan_make(&rig, life, LADE_HOME_STORE);
    for (int first = 0, end = 2; first < N_STEPS; first = end, end = LADE_MIN(N_STEPS, end + 1)) {
      must_open(&rig, plan);
      assert_int_equal(lade_executor_n_steps(rig.executor), first);
      steps_run(&rig, life, first, end, losses);
      rig_close(&rig);
    }
    must_open(&rig, plan);
    if (digest_of(&rig) != digest || memcmp(losses, want, sizeof(want)) != 0)
      fail_msg("%s: the numbers are others", life->name);
    rig_close(&rig);
    rig_forget(&rig);
    lade_plan_destroy(plan);
    rig_finish(&rig);
  }
}

/* Over where each value is in a slot: the next build reads what this one has written. */
static uint64_t places_sum(struct rig *rig, const struct life *life)
{
  struct lade_plan *stored = plan_make(rig, life, LADE_HOME_STORE);
  uint64_t sum = 0;
  must_open(rig, stored);
  for (int param = 0; param < rig->graph->n_params; param++) {
    for (int part = -1; part < LADE_N_PARTS; part++) {
      const int value = part < 0 ? rig->graph->params[param].tensor
                                 : lade_value_part(rig->graph, param, (enum lade_part)part);
      sum = sum * 31 + (value < 0 ? 0 : executor_place_stored(rig->executor, value) / LADE_BUFFER_ALIGN);
    }
  }
  rig_close(rig);
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
    struct rig rig;
    rig_begin(&rig, &lives[k]);
    rig.is_durable = true;
    rig.store_dir = rig_directory();
    const uint64_t sum = places_sum(&rig, &lives[k]);
    if (sum != sums[k])
      fail_msg("%s: state lies elsewhere, %llu: raise MEMO_VERSION (src/run/session_durable.c), and set this sum",
               lives[k].name, (unsigned long long)sum);
    rig_forget(&rig);
    rig_finish(&rig);
  }
}

/* ---- steps that did not happen ---- */

static struct rig durable;
static struct lade_plan *plan;
static const struct life fp16 = {"fp16", LADE_GPT2, LADE_F16, .n_microbatches = 1};

static int durable_setup(void **state)
{
  if (store_refusal)
    return 0;
  rig_begin(&durable, &fp16);
  durable.is_durable = true;
  durable.store_dir = rig_directory();
  plan = plan_make(&durable, &fp16, LADE_HOME_STORE);
  must_open(&durable, plan);
  return 0;
}

static int durable_teardown(void **state)
{
  if (store_refusal)
    return 0;
  rig_close(&durable);
  rig_forget(&durable);
  lade_plan_destroy(plan);
  rig_finish(&durable);
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
  struct lade_step step = rig_step_block(&durable, 2);
  for (int i = 0; i < 3; i++) { /* each over the one before it, and none over what counts */
    rig_tokens_fill(&durable, 2);
    assert_int_equal(lade_executor_step(durable.executor, &step, &result, &error), 0);
    assert_int_equal(digest_of(&durable), digest);
  }
  rig_close(&durable);
  must_open(&durable, plan);
  assert_int_equal(digest_of(&durable), digest);
  steps_run(&durable, &fp16, 2, 3, again);
  assert_true(again[2] == result.loss);
}

static void a_skipped_step_keeps_what_counts(void **state)
{
  store_needed();
  double losses[N_STEPS];
  struct lade_error error = {0};
  struct lade_step_result result;
  steps_run(&durable, &fp16, 0, 2, losses);
  uint64_t digest = digest_of(&durable);
  struct lade_step step = rig_step_block(&durable, 2);
  step.loss_scale = 1e30f;
  for (int i = 0; i < 3; i++) {
    rig_tokens_fill(&durable, 2);
    assert_int_equal(lade_executor_step(durable.executor, &step, &result, &error), -ERANGE);
    assert_int_equal(digest_of(&durable), digest);
    if (i == 2) /* FP16 counts it: the scale is another one now */
      assert_int_equal(lade_executor_publish(durable.executor, "", 1, &error), 0);
  }
  assert_int_equal(lade_executor_n_steps(durable.executor), 3);
  assert_int_equal(digest_of(&durable), digest);
  rig_close(&durable);
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

/* Where the first block of the value is in the file, in the slot of @generation. */
static uint64_t value_place(int tensor, uint64_t generation)
{
  const lade_executor *ex = durable.executor;
  return lade_durable_slot(durable.durable, generation).offset + executor_place_stored(ex, tensor);
}

/* Write into the place of @tensor its block with a flipped bit, another value's, or its own of the step before. */
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
    blocks[1][0] ^= 1; /* both are zeros, say */
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

/* What is kept for good has nothing in it that happened to be in memory: here another value, set before it. */
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

static void damages_of_what_counts_are_found(void **state)
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
      cmocka_unit_test_setup_teardown(a_skipped_step_keeps_what_counts, durable_setup, durable_teardown),
      cmocka_unit_test_setup_teardown(the_rest_of_a_values_block_is_zeros, durable_setup, durable_teardown),
      cmocka_unit_test_setup_teardown(damages_of_what_counts_are_found, durable_setup, durable_teardown),
  };
  store_refusal = rig_store_refusal(LADE_STORE_AUTO);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
