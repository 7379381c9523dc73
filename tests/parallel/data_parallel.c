/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallel ranks train as one does: losses and gradients are those of one rank with the same global batch,
 * replicas stay equal bit for bit, other residencies of the same layout give the same bits, and peaks are as planned.
 * Every rank runs the single-rank reference itself. ranks.py starts it.
 *
 * Usage: data-parallel agree|abort
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "run/executor_internal.h"
#include "tests/parallel/world.h"
#include "tests/support/rig.h"
#include "tests/support/scene.h"

#define N_STEPS 3
#define LOSS_BOUND_F32 1e-5
#define LOSS_BOUND_BF16 2e-3 /* weights have 8 bits: a sum in another order now and then rounds to the next one */
#define GRADIENT_BOUND 1e-6

static struct lade_residency *residency_of(const struct rig *rig, const struct scene_setting *how)
{
  struct lade_residency *residency = NULL;
  demand(!lade_residency_create(rig->graph, &residency), "no memory for a residency");
  scene_residency_set(residency, rig->graph, how);
  return residency;
}

/* A run from the beginning; the plan's peak is the measured one. */
static struct rig_numbers run_of(struct rig *rig, const struct scene_setting *how)
{
  struct lade_error error = {0};
  struct lade_device_info info;
  struct rig_numbers numbers;
  struct lade_plan *plan = rig_plan(rig, residency_of(rig, how));
  demand(!rig_open(rig, plan, &error), "%s", error.text);
  demand(!rig_run(rig, N_STEPS, &numbers, &error), "%s", error.text);
  lade_device_get_info(rig->device, &info);
  demand(info.peak_bytes == lade_align_up(plan->peak_bytes[LADE_DEVICE], info.chunk_bytes),
         "%llu bytes were planned and %llu measured", (unsigned long long)plan->peak_bytes[LADE_DEVICE],
         (unsigned long long)info.peak_bytes);
  rig_close(rig);
  lade_plan_destroy(plan);
  return numbers;
}

static void losses_agree(const struct rig_numbers *got, const struct rig_numbers *want, double bound, const char *what)
{
  for (int i = 0; i < N_STEPS; i++)
    demand(fabs(got->loss[i] - want->loss[i]) <= bound * want->loss[i], "%s: step %d has loss %.9g, one rank %.9g",
           what, i, got->loss[i], want->loss[i]);
  for (int i = 0; i < 2; i++)
    demand(fabs(got->eval[i] - want->eval[i]) <= bound * want->eval[i], "%s: evaluation %d gives %.9g, one rank %.9g",
           what, i, got->eval[i], want->eval[i]);
}

/* ---- gradients ---- */

/* First moments after a step with beta1 0 are the gradients; all of them, one after the other. The caller's. */
static float *gradients_of(struct rig *rig, const struct scene_setting *how)
{
  struct lade_error error = {0};
  struct lade_step_result result;
  struct lade_plan *plan = rig_plan(rig, residency_of(rig, how));
  demand(!rig_open(rig, plan, &error), "%s", error.text);
  struct lade_step step = rig_step_block(rig, 0);
  step.lr = step.beta1 = step.weight_decay = step.clip = 0;
  rig_tokens_fill(rig, 0);
  demand(!lade_executor_step(rig->executor, &step, &result, &error), "%s", error.text);
  uint64_t n = (uint64_t)lade_model_n_params(&rig->graph->model), at = 0;
  float *gradients = malloc(n * sizeof(float));
  demand(gradients, "no memory for gradients");
  for (int param = 0; param < rig->graph->n_params; param++) {
    int tensor = lade_value_part(rig->graph, param, LADE_PART_M);
    uint64_t bytes = lade_value_bytes(rig->graph, tensor);
    demand(at + bytes / sizeof(float) <= n && bytes <= LADE_EXECUTOR_WINDOW_BYTES, "more gradients than parameters");
    demand(!lade_executor_get(rig->executor, tensor, 0, gradients + at, bytes, &error), "%s", error.text);
    at += bytes / sizeof(float);
  }
  rig_close(rig);
  lade_plan_destroy(plan);
  return gradients;
}

static void gradients_agree(const struct rig *rig, const float *got, const float *want, const char *what)
{
  for (int param = 0; param < rig->graph->n_params; param++) {
    const struct lade_tensor *tensor = &rig->graph->tensors[rig->graph->params[param].grad];
    double off = 0, norm = 0;
    for (uint64_t i = 0; i < tensor->bytes / sizeof(float); i++, got++, want++) {
      off += ((double)*got - *want) * ((double)*got - *want);
      norm += (double)*want * *want;
    }
    demand(sqrt(off) <= GRADIENT_BOUND * sqrt(norm), "%s: %s is off by %g of %g", what, tensor->name, sqrt(off),
           sqrt(norm));
  }
}

/* ---- one model ---- */

static const struct {
  const char *name;
  enum lade_family family;
  enum lade_dtype dtype;
  int n_microbatches;
  bool is_early;
} cases[] = {{"gpt2 in f32", LADE_GPT2, LADE_F32, 1, false},
             {"llama in f32, two microbatches", LADE_LLAMA, LADE_F32, 2, false},
             {"llama in f32, early updates", LADE_LLAMA, LADE_F32, 1, true},
             {"gpt2 in bf16, two microbatches", LADE_GPT2, LADE_BF16, 2, false}};

static void case_agrees(struct world *world, const struct lade_layout *layout, size_t i)
{
  const struct scene_setting keep = {.manner = SCENE_KEEP, .is_early = cases[i].is_early};
  const struct scene_setting mixed = {.manner = SCENE_MIXED, .homes = LADE_HOME_HOST, .is_early = cases[i].is_early,
                                      .prefetch_bytes = 100000, .seed = 77};
  struct rig_model model = rig_tiny(cases[i].family);
  struct rig one, ours;
  model.batch = 2;
  model.dtype = cases[i].dtype;
  model.n_microbatches = cases[i].n_microbatches;
  rig_init(&ours, &model);
  model.n_microbatches *= world->size;
  rig_init(&one, &model);
  one.is_early = ours.is_early = cases[i].is_early;
  ours.layout = layout;
  ours.comms = world->axes;
  struct rig_numbers want = run_of(&one, &keep), got = run_of(&ours, &keep), again = run_of(&ours, &mixed);
  losses_agree(&got, &want, model.dtype == LADE_F32 ? LOSS_BOUND_F32 : LOSS_BOUND_BF16, cases[i].name);
  demand(world_agrees(world, got.digest), "%s: replicas differ", cases[i].name);
  demand(memcmp(&got, &again, sizeof(got)) == 0, "%s: another residency gives other numbers", cases[i].name);
  if (model.dtype == LADE_F32) {
    float *gradients = gradients_of(&ours, &keep), *expected = gradients_of(&one, &keep);
    gradients_agree(&ours, gradients, expected, cases[i].name);
    free(gradients);
    free(expected);
  }
  rig_finish(&one);
  rig_finish(&ours);
}

/* ---- failure ---- */

/* What goes wrong at one rank ends the step of all, soon, with that rank's words. */
static void failure_is_told(struct world *world, const struct lade_layout *layout)
{
  const struct scene_setting keep = {.manner = SCENE_KEEP};
  struct rig_model model = rig_tiny(LADE_GPT2);
  struct lade_error error = {0};
  struct lade_step_result result;
  struct rig rig;
  rig_init(&rig, &model);
  rig.layout = layout;
  rig.comms = world->axes;
  struct lade_plan *plan = rig_plan(&rig, residency_of(&rig, &keep));
  demand(!rig_open(&rig, plan, &error), "%s", error.text);
  demand(!rig_step(&rig, 0, &result, &error), "%s", error.text);
  if (world->rank == 1) {
    struct lade_error words;
    lade_error_set(&words, -EIO, "the drive of this rank is gone");
    executor_fail(rig.executor, -EIO, &words);
  }
  int status = rig_step(&rig, 1, &result, &error);
  demand(status == (world->rank == 1 ? -EIO : -ECANCELED), "the step ends with %d: %s", status, error.text);
  demand(strstr(error.text, "the drive of this rank is gone"), "the step says '%s'", error.text);
  demand(rig_step(&rig, 2, &result, &error) == status, "a later step gives another error");
  rig_close(&rig);
  lade_plan_destroy(plan);
  rig_finish(&rig);
}

int main(int argc, char **argv)
{
  struct world world;
  struct lade_layout layout;
  struct lade_error error = {0};
  demand(argc == 2, "usage: data-parallel agree|abort");
  world_open(&world);
  struct lade_layout_params how = {.struct_size = sizeof(how), .world = world.size, .rank = world.rank,
                                   .grad_reduce = LADE_F32};
  demand(!lade_layout_init(&how, &error, &layout), "%s", error.text);
  world_split(&world, &layout);
  if (strcmp(argv[1], "abort") == 0)
    failure_is_told(&world, &layout);
  else
    for (size_t i = 0; i < LADE_COUNT(cases); i++)
      case_agrees(&world, &layout, i);
  printf("DONE\n");
  fflush(stdout);
  world_close(&world);
  return 0;
}
