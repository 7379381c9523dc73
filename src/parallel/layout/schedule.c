/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All schedules have one form: some forward halves to warm up, then a forward and a backward half alternately, then the
 * remaining backward halves. They differ in the length of the warm-up and in the k-th half of a direction.
 *
 *   GPIPE        warms up with all forward halves
 *   1F1B, ZBH1   with stages - 1 - s: by the time that the first gradient reaches stage s, it has begun that many more
 *                forward halves than the last stage
 *   INTERLEAVED  with 2 (stages - 1 - s) + (chunks - 1) stages: a microbatch goes through all chunks before its
 *                gradient returns, and the gradient passes all stages behind this one
 *
 *   ZBH2         with 2 (stages - 1 - s): a stage has work while the first gradient is still on its way
 *
 * With chunks the k-th forward half is of chunk (k mod stages * chunks) / stages: a group of as many microbatches as
 * stages goes through chunk after chunk. Backward is the same, from the last chunk down.
 *
 * ZBH1. Stage s computes the weights' gradients of microbatch k after the backward half of k + s. So the backward chain
 * passes the stages without them, and the remaining ones at the end fill idle time. The bubble of 1F1B is (stages - 1)
 * (F + B + W); ZBH1 removes twice (stages - 1) W of it. Stage s holds stages - s microbatches that wait for their
 * backward half and s that wait for weights: as many as stage 0 in total.
 *
 * ZBH2. The same with twice the warm-up and twice the lag: stage s holds 2 (stages - s) - 1 microbatches that wait for
 * their backward half and 2 s that wait for weights. Between its first and its last slot a stage idles for transfers
 * alone if F, B and W are equal. Stages begin and end one after another, so a step's end that waits for all stages
 * brings (stages - 1) F back.
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

/* Return the number of halves of one direction. */
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

/* Return the number of warm-up forward halves, without the one that precedes each backward half. */
static int warmup_get(const struct lade_pipeline *pipeline, int stage)
{
  int behind = pipeline->n_stages - 1 - stage, n = half_count(pipeline);
  if (pipeline->schedule == LADE_SCHEDULE_GPIPE || !pipeline->is_training)
    return n;
  if (pipeline->schedule == LADE_SCHEDULE_INTERLEAVED)
    return LADE_MIN(2 * behind + (pipeline->n_chunks - 1) * pipeline->n_stages, n);
  if (pipeline->schedule == LADE_SCHEDULE_ZBH2)
    return LADE_MIN(2 * behind, n);
  return LADE_MIN(behind, n);
}

int lade_schedule_lag(const struct lade_pipeline *pipeline, int stage)
{
  if (!lade_schedule_is_split(pipeline))
    return 0;
  return pipeline->schedule == LADE_SCHEDULE_ZBH2 ? 2 * stage : stage;
}

void lade_slot_cursor_init(const struct lade_pipeline *pipeline, int stage, struct lade_slot_cursor *ret_cursor)
{
  *ret_cursor = (struct lade_slot_cursor){
      .n_stages = pipeline->n_stages, .n_chunks = pipeline->n_chunks, .n_halves = half_count(pipeline),
      .n_warmup = warmup_get(pipeline, stage), .lag = lade_schedule_lag(pipeline, stage),
      .is_training = pipeline->is_training, .is_split = lade_schedule_is_split(pipeline)};
}

/* Take the next half of a direction. Backward halves take chunks from the last one down. */
static struct lade_slot half_take(struct lade_slot_cursor *cursor, enum lade_half direction)
{
  struct lade_half_cursor *half = &cursor->halves[direction];
  const int chunk = direction == LADE_HALF_BACKWARD ? cursor->n_chunks - 1 - half->chunk : half->chunk;
  const struct lade_slot slot = {.microbatch = half->group + half->at, .chunk = (int16_t)chunk,
                                 .half = (uint8_t)direction};
  half->n++;
  if (++half->at == cursor->n_stages) {
    half->at = 0;
    if (++half->chunk == cursor->n_chunks) {
      half->chunk = 0;
      half->group += cursor->n_stages;
    }
  }
  return slot;
}

bool lade_slot_next(struct lade_slot_cursor *cursor, struct lade_slot *ret_slot)
{
  const int n = cursor->n_halves, n_backward = cursor->halves[LADE_HALF_BACKWARD].n;
  enum lade_half direction = cursor->turn;
  if (cursor->n_warmup > 0) {
    cursor->n_warmup--;
    *ret_slot = half_take(cursor, LADE_HALF_FORWARD);
    return true;
  }
  if (!cursor->is_training)
    return false;
  if (direction == LADE_HALF_FORWARD && cursor->halves[LADE_HALF_FORWARD].n == n)
    direction = n_backward < n ? LADE_HALF_BACKWARD : LADE_HALF_WEIGHTS;
  if (direction == LADE_HALF_WEIGHTS && !(cursor->is_split && cursor->halves[LADE_HALF_WEIGHTS].n < n_backward))
    return false;
  cursor->turn = direction == LADE_HALF_FORWARD ? LADE_HALF_BACKWARD
                 : direction == LADE_HALF_BACKWARD && cursor->is_split && n_backward >= cursor->lag
                     ? LADE_HALF_WEIGHTS
                     : LADE_HALF_FORWARD;
  *ret_slot = half_take(cursor, direction);
  return true;
}

void lade_schedule_order(const struct lade_pipeline *pipeline, int stage, struct lade_slot *ret_slots)
{
  struct lade_slot_cursor cursor;
  int n = 0;
  for (lade_slot_cursor_init(pipeline, stage, &cursor); lade_slot_next(&cursor, &ret_slots[n]);)
    n++;
  LADE_ASSERT(n == lade_schedule_length(pipeline));
}

int lade_schedule_in_flight(const struct lade_pipeline *pipeline, int stage)
{
  int held = warmup_get(pipeline, stage) + 1 + lade_schedule_lag(pipeline, stage);
  return LADE_MIN(held, half_count(pipeline));
}
