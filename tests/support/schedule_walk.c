/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each slot gets its start in rounds over the stages; a stage advances until a slot's input has not come yet. A round
 * advances at least one stage, and usually all: O(slots) in practice.
 */
#include "tests/support/schedule_walk.h"

#include <errno.h>
#include <stdlib.h>

#include "base/base.h"

struct walker {
  const struct lade_pipeline *pipeline;
  const struct piece_ns *pieces;
  double link_ns;
  struct lade_slot *slots; /* of all stages, one after another */
  int *next;               /* by stage: its first slot without a time */
  double *free_ns;         /* by stage: end of its last slot */
  double *busy_ns;
  double *ends_ns[2];      /* of forward and backward halves, by piece and microbatch; negative: unknown */
};

/* Return the index of a half's end in its array. */
static size_t end_index(const struct walker *w, int piece, int microbatch)
{
  return (size_t)piece * (size_t)w->pipeline->n_microbatches + (size_t)microbatch;
}

/* Return when the input of @slot is there: negative if unknown, 0 if it needs none. */
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
  const struct piece_ns *price = &w->pieces[piece];
  if (slot->half == LADE_HALF_FORWARD)
    return price->forward;
  if (slot->half == LADE_HALF_WEIGHTS)
    return price->weights;
  return price->backward + (lade_schedule_is_split(w->pipeline) ? 0 : price->weights);
}

/* Give times to as many slots of @stage as possible. Return their number. */
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
  size_t n_ends = p * (size_t)(w->pipeline->n_chunks * w->pipeline->n_microbatches);
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

static struct schedule_time time_get(const struct walker *w)
{
  struct schedule_time time = {0};
  for (int stage = 0; stage < w->pipeline->n_stages; stage++)
    time.span_ns = LADE_MAX(time.span_ns, w->free_ns[stage]);
  for (int stage = 0; stage < w->pipeline->n_stages; stage++) {
    if (w->busy_ns[stage] > 0)
      time.bubble = LADE_MAX(time.bubble, time.span_ns / w->busy_ns[stage] - 1);
  }
  return time;
}

int schedule_walk(const struct lade_pipeline *pipeline, const struct piece_ns *pieces, double link_ns,
                  struct schedule_time *ret_time)
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
