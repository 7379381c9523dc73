/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All schedules are one: some forward halves to warm up, then a forward and a backward one in turns, then the backward
 * halves that are left. They differ in how long the warm-up is and in what the k-th half of a direction is.
 *
 *   GPIPE        warms up with everything
 *   1F1B, ZBH1   with stages - 1 - s, which is how many more forward halves than the last stage it has begun by
 *                the time that the first gradient reaches it
 *   INTERLEAVED  with 2 (stages - 1 - s) + (chunks - 1) stages: a microbatch has all chunks to go through before its
 *                gradient turns round, and the gradient comes back through as many stages as are behind this one
 *
 * With chunks the k-th forward half is of chunk (k mod stages * chunks) / stages: a group of as many microbatches as
 * stages goes through chunk after chunk; backward it is the same from the last chunk down.
 *
 * ZBH1. Stage s makes the weights' gradients of microbatch k after the backward half of k + s. The backward chain
 * then runs through the stages without them in the way, and those left over at the end fill what would be
 * idle: of the bubble of 1F1B, (stages - 1) (F + B + W), twice (stages - 1) W are gone. Stage s holds
 * stages - s microbatches that wait for their backward half and s that wait for weights: as many as stage 0 in all.
 */
#include <errno.h>

#include "base/base.h"
#include "parallel/schedule.h"

struct lade_pipeline lade_pipeline_get(const struct lade_layout *layout, int n_microbatches, bool is_training)
{
  return (struct lade_pipeline){.schedule = layout ? layout->schedule : LADE_SCHEDULE_1F1B,
                                .n_stages = lade_layout_size(layout, LADE_AXIS_PP),
                                .n_chunks = layout ? layout->virtual_stages : 1,
                                .n_microbatches = n_microbatches,
                                .is_training = is_training};
}

int lade_schedule_check(const struct lade_pipeline *pipeline, struct lade_error *error)
{
  int p = pipeline->n_stages, m = pipeline->n_microbatches;
  LADE_ASSERT(p > 0 && m > 0 && pipeline->n_chunks > 0);
  if (pipeline->schedule != LADE_SCHEDULE_INTERLEAVED || m % p == 0)
    return 0;
  if (m < p)
    return lade_error_set(error, -EINVAL,
                          "an interleaved schedule of %d stages takes %d microbatches at a time: %d are too few; "
                          "%d or %d would do, or the schedule 1f1b",
                          p, p, m, p, 2 * p);
  return lade_error_set(error, -EINVAL,
                        "an interleaved schedule of %d stages takes %d microbatches at a time, which do not make up "
                        "%d; %d or %d would do, or the schedule 1f1b",
                        p, p, m, m / p * p, (m / p + 1) * p);
}

/* Halves of one direction. */
static int half_count(const struct lade_pipeline *pipeline)
{
  return pipeline->n_chunks * pipeline->n_microbatches;
}

int lade_schedule_length(const struct lade_pipeline *pipeline)
{
  if (!pipeline->is_training)
    return half_count(pipeline);
  return half_count(pipeline) * (lade_schedule_is_split(pipeline) ? 3 : 2);
}

/* Forward halves before the first backward one, besides the one that each backward half follows. */
static int warmup_get(const struct lade_pipeline *pipeline, int stage)
{
  int behind = pipeline->n_stages - 1 - stage, n = half_count(pipeline);
  if (pipeline->schedule == LADE_SCHEDULE_GPIPE || !pipeline->is_training)
    return n;
  if (pipeline->schedule == LADE_SCHEDULE_INTERLEAVED)
    return LADE_MIN(2 * behind + (pipeline->n_chunks - 1) * pipeline->n_stages, n);
  return LADE_MIN(behind, n);
}

/* The @k-th half of its direction. */
static struct lade_slot slot_make(const struct lade_pipeline *pipeline, enum lade_half half, int k)
{
  int p = pipeline->n_stages, v = pipeline->n_chunks;
  if (v == 1)
    return (struct lade_slot){.microbatch = k, .half = (uint8_t)half};
  int chunk = k % (p * v) / p;
  return (struct lade_slot){.microbatch = k / (p * v) * p + k % p,
                            .chunk = (int16_t)(half == LADE_HALF_FORWARD ? chunk : v - 1 - chunk),
                            .half = (uint8_t)half};
}

void lade_schedule_order(const struct lade_pipeline *pipeline, int stage, struct lade_slot *ret_slots)
{
  int n = half_count(pipeline), warmup = warmup_get(pipeline, stage), at = 0;
  bool is_split = lade_schedule_is_split(pipeline);
  for (int k = 0; k < warmup; k++)
    ret_slots[at++] = slot_make(pipeline, LADE_HALF_FORWARD, k);
  for (int k = 0; k < n && pipeline->is_training; k++) {
    if (warmup + k < n)
      ret_slots[at++] = slot_make(pipeline, LADE_HALF_FORWARD, warmup + k);
    ret_slots[at++] = slot_make(pipeline, LADE_HALF_BACKWARD, k);
    if (is_split && k >= stage)
      ret_slots[at++] = slot_make(pipeline, LADE_HALF_WEIGHTS, k - stage);
  }
  for (int k = LADE_MAX(n - stage, 0); k < n && is_split; k++)
    ret_slots[at++] = slot_make(pipeline, LADE_HALF_WEIGHTS, k);
  LADE_ASSERT(at == lade_schedule_length(pipeline));
}

int lade_schedule_in_flight(const struct lade_pipeline *pipeline, int stage)
{
  int held = warmup_get(pipeline, stage) + 1 + (lade_schedule_is_split(pipeline) ? stage : 0);
  return LADE_MIN(held, half_count(pipeline));
}
