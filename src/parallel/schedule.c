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
 *
 * The walk gives each slot its start in rounds over the stages, each going on until a slot's input has not come
 * yet. A round moves at least one stage on, and most move all: O(slots) in practice.
 */
#include <errno.h>
#include <stdlib.h>

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

/* ---- the walk ---- */

struct walker {
  const struct lade_pipeline *pipeline;
  const struct lade_piece_ns *pieces;
  double link_ns;
  struct lade_slot *slots; /* of all stages, one after another */
  int *next;               /* by stage: its first slot that has no time yet */
  double *free_ns;         /* by stage: when its last slot ends */
  double *busy_ns;
  double *ends_ns[2];      /* of forward and backward halves, by piece and microbatch; negative: not yet */
};

/* Where a half's end stands in its array. */
static size_t end_index(const struct walker *w, int piece, int microbatch)
{
  return (size_t)piece * (size_t)w->pipeline->n_microbatches + (size_t)microbatch;
}

/* When the input of @slot is there: negative if that is not known yet, 0 if it needs none. */
static double input_ns(const struct walker *w, int piece, const struct lade_slot *slot)
{
  int n_pieces = w->pipeline->n_stages * w->pipeline->n_chunks;
  int from = slot->half == LADE_HALF_FORWARD ? piece - 1 : piece + 1;
  if (slot->half == LADE_HALF_WEIGHTS || from < 0 || from == n_pieces)
    return 0; /* its own stage's work, or the data: list order is enough */
  double end_ns = w->ends_ns[slot->half][end_index(w, from, slot->microbatch)];
  return end_ns < 0 ? -1 : end_ns + w->link_ns;
}

static double slot_ns(const struct walker *w, int piece, const struct lade_slot *slot)
{
  const struct lade_piece_ns *price = &w->pieces[piece];
  if (slot->half == LADE_HALF_FORWARD)
    return price->forward;
  if (slot->half == LADE_HALF_WEIGHTS)
    return price->weights;
  return price->backward + (lade_schedule_is_split(w->pipeline) ? 0 : price->weights);
}

/* Give times to as many slots of @stage as can have one; how many. */
static int stage_advance(struct walker *w, int stage)
{
  int length = lade_schedule_length(w->pipeline), first = w->next[stage];
  for (; w->next[stage] < length; w->next[stage]++) {
    const struct lade_slot *slot = &w->slots[(size_t)stage * (size_t)length + (size_t)w->next[stage]];
    int piece = slot->chunk * w->pipeline->n_stages + stage;
    double ready_ns = input_ns(w, piece, slot), ns = slot_ns(w, piece, slot);
    if (ready_ns < 0)
      break;
    w->free_ns[stage] = LADE_MAX(w->free_ns[stage], ready_ns) + ns;
    w->busy_ns[stage] += ns;
    if (slot->half != LADE_HALF_WEIGHTS)
      w->ends_ns[slot->half][end_index(w, piece, slot->microbatch)] = w->free_ns[stage];
  }
  return w->next[stage] - first;
}

static int walker_init(struct walker *w)
{
  size_t p = (size_t)w->pipeline->n_stages, length = (size_t)lade_schedule_length(w->pipeline);
  size_t n_ends = p * (size_t)half_count(w->pipeline);
  w->slots = calloc(p * length, sizeof(*w->slots));
  w->next = calloc(p, sizeof(*w->next));
  w->free_ns = calloc(p, sizeof(*w->free_ns));
  w->busy_ns = calloc(p, sizeof(*w->busy_ns));
  w->ends_ns[0] = calloc(n_ends, sizeof(double));
  w->ends_ns[1] = calloc(n_ends, sizeof(double));
  if (!w->slots || !w->next || !w->free_ns || !w->busy_ns || !w->ends_ns[0] || !w->ends_ns[1])
    return -ENOMEM;
  for (size_t i = 0; i < n_ends; i++)
    w->ends_ns[0][i] = w->ends_ns[1][i] = -1;
  for (size_t stage = 0; stage < p; stage++)
    lade_schedule_order(w->pipeline, (int)stage, w->slots + stage * length);
  return 0;
}

static void walker_finish(struct walker *w)
{
  free(w->slots);
  free(w->next);
  free(w->free_ns);
  free(w->busy_ns);
  free(w->ends_ns[0]);
  free(w->ends_ns[1]);
}

static struct lade_schedule_time time_get(const struct walker *w)
{
  struct lade_schedule_time time = {0};
  for (int stage = 0; stage < w->pipeline->n_stages; stage++)
    time.span_ns = LADE_MAX(time.span_ns, w->free_ns[stage]);
  for (int stage = 0; stage < w->pipeline->n_stages; stage++) {
    if (w->busy_ns[stage] > 0)
      time.bubble = LADE_MAX(time.bubble, time.span_ns / w->busy_ns[stage] - 1);
  }
  return time;
}

int lade_schedule_walk(const struct lade_pipeline *pipeline, const struct lade_piece_ns *pieces, double link_ns,
                       struct lade_schedule_time *ret_time)
{
  struct walker w = {.pipeline = pipeline, .pieces = pieces, .link_ns = link_ns};
  int left = pipeline->n_stages * lade_schedule_length(pipeline), status = walker_init(&w);
  while (!status && left > 0) {
    int n = 0;
    for (int stage = 0; stage < pipeline->n_stages; stage++)
      n += stage_advance(&w, stage);
    LADE_ASSERT(n > 0); /* else stages wait for one another in a circle */
    left -= n;
  }
  if (!status)
    *ret_time = time_get(&w);
  walker_finish(&w);
  return status;
}
