/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of a stage's slots and transfers as one list.
 *
 * A GPU may give all streams of a process one hardware channel. Then work starts in the order of submission, and work
 * that waits for another stage holds back all work behind it. Two stages that both receive before they send to each
 * other wait for ever. So the lists of all stages must agree on one order of all transfers and slots.
 *
 * All stages are run together, with slots of nominal length. A stage computes a slot, sends the result, and then goes
 * on. Meanwhile it receives inputs in the order of its slots, as many ahead as lade_schedule_n_ahead says. A transfer
 * happens as soon as its sender has computed and its receiver has room. So each transfer has one time; a slot has the
 * time of its start. A list is sorted by (time, transfers before slots, sender). That is one order of the slots and
 * transfers of all stages, because
 *
 *   - a sender computed the value before, for a time above zero; its next slot starts at the transfer's time or later;
 *   - the receiver's slot starts at the transfer's time or later;
 *   - a stage sends at most one value between two slots, so time and sender tell transfers apart.
 *
 * Each list is this order restricted to one stage. So no circle of waits exists, with one channel or with many, and for
 * any placement in memory. Real slots have other lengths: that costs time on one channel, but the order stays.
 *
 * The walk always ends: tests/unit/parallel/test_schedule.c shows it for each schedule, by other code. It takes memory
 * for the slots of all stages, and near O(slots) time.
 *
 * Rejected: one group of a send and the receive behind it. On one channel the next slot would wait for an input that a
 * later slot needs, and on many the send's memory for the receive.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/base.h"
#include "parallel/schedule.h"

struct timed_phase {
  int64_t at;
  struct lade_slot_phase phase;
  int sender; /* of a transfer; -1: a slot */
};

struct stage_walk {
  struct lade_slot *slots;
  int64_t *ends;    /* by slot: the time at which it was computed */
  int64_t *arrived; /* by slot: the time at which its input arrived; 0 without one */
  int next;         /* the slot to compute, or to send if it is computed */
  bool is_computed;
  int next_input;   /* the first slot whose input has not arrived */
  int received[LADE_SCHEDULE_AHEAD_MAX]; /* the slots whose inputs arrived last: a ring of n_ahead */
  int n_received;
  int64_t now;
};

struct joint_walk {
  const struct lade_pipeline *pipeline;
  int n_slots, n_ahead;
  struct stage_walk *stages;
  int own; /* the stage whose phases are kept */
  struct timed_phase *phases;
  int n_phases;
};

static int piece_of(const struct joint_walk *w, int stage, const struct lade_slot *slot)
{
  return slot->chunk * w->pipeline->n_stages + stage;
}

bool lade_slot_has_input(const struct lade_pipeline *pipeline, int stage, const struct lade_slot *slot)
{
  const int piece = slot->chunk * pipeline->n_stages + stage, last = pipeline->n_stages * pipeline->n_chunks - 1;
  if (pipeline->n_stages == 1 || slot->half == LADE_HALF_WEIGHTS)
    return false;
  return slot->half == LADE_HALF_FORWARD ? piece > 0 : piece < last;
}

bool lade_slot_has_output(const struct lade_pipeline *pipeline, int stage, const struct lade_slot *slot)
{
  const int piece = slot->chunk * pipeline->n_stages + stage, last = pipeline->n_stages * pipeline->n_chunks - 1;
  if (pipeline->n_stages == 1 || slot->half == LADE_HALF_WEIGHTS)
    return false;
  return slot->half == LADE_HALF_FORWARD ? piece < last : piece > 0;
}

/* Return the nominal time of a half: the products of a layer's backward half are twice those of its forward half. */
static int64_t nominal_time(const struct joint_walk *w, int half)
{
  return half == LADE_HALF_BACKWARD && !lade_schedule_is_split(w->pipeline) ? 2 : 1;
}

static void phase_keep(struct joint_walk *w, int stage, int phase, int slot, int64_t at, int sender)
{
  if (stage == w->own)
    w->phases[w->n_phases++] = (struct timed_phase){at, {.slot = slot, .phase = (uint8_t)phase}, sender};
}

/* Return the first slot of @stage from @at on that has an input; n_slots: none. */
static int input_next(const struct joint_walk *w, int stage, int at)
{
  while (at < w->n_slots && !lade_slot_has_input(w->pipeline, stage, &w->stages[stage].slots[at]))
    at++;
  return at;
}

/* Transfer the result of @stage's computed slot. False if its receiver is not ready for it. */
static bool transfer_run(struct joint_walk *w, int stage)
{
  struct stage_walk *from = &w->stages[stage];
  const struct lade_slot *slot = &from->slots[from->next];
  const int piece = piece_of(w, stage, slot) + (slot->half == LADE_HALF_FORWARD ? 1 : -1);
  const int peer = piece % w->pipeline->n_stages;
  struct stage_walk *to = &w->stages[peer];
  int64_t at = from->now;
  if (to->next_input == w->n_slots)
    return false;
  const struct lade_slot *wanted = &to->slots[to->next_input];
  if (wanted->half != slot->half || wanted->microbatch != slot->microbatch || piece_of(w, peer, wanted) != piece)
    return false;
  int *place = &to->received[to->n_received % w->n_ahead];
  if (to->n_received >= w->n_ahead) {
    const bool is_done = *place < to->next || (*place == to->next && to->is_computed);
    if (!is_done)
      return false;
    at = LADE_MAX(at, to->ends[*place]);
  }
  if (to->n_received > 0)
    at = LADE_MAX(at, to->arrived[to->received[(to->n_received - 1) % w->n_ahead]]);
  phase_keep(w, stage, LADE_PHASE_SEND, from->next, at, stage);
  phase_keep(w, peer, LADE_PHASE_RECV, to->next_input, at, stage);
  to->arrived[to->next_input] = at;
  *place = to->next_input;
  to->n_received++;
  to->next_input = input_next(w, peer, to->next_input + 1);
  from->now = at;
  return true;
}

/* Run slots of @stage, and transfers of their results, until one must wait. Return the number of slots that ended. */
static int stage_run(struct joint_walk *w, int stage)
{
  struct stage_walk *own = &w->stages[stage];
  const int before = own->next;
  while (own->next < w->n_slots) {
    const struct lade_slot *slot = &own->slots[own->next];
    if (!own->is_computed) {
      if (own->next_input <= own->next)
        break;
      const int64_t start = LADE_MAX(own->now, own->arrived[own->next]);
      phase_keep(w, stage, LADE_PHASE_COMPUTE, own->next, start, -1);
      own->now = own->ends[own->next] = start + nominal_time(w, slot->half);
      own->is_computed = true;
    }
    if (lade_slot_has_output(w->pipeline, stage, slot) && !transfer_run(w, stage))
      break;
    own->is_computed = false;
    own->next++;
  }
  return own->next - before;
}

static int walk_init(struct joint_walk *w)
{
  const size_t n = (size_t)w->n_slots;
  w->stages = calloc((size_t)w->pipeline->n_stages, sizeof(*w->stages));
  bool is_ok = w->stages != NULL;
  for (int stage = 0; stage < w->pipeline->n_stages && is_ok; stage++) {
    struct stage_walk *own = &w->stages[stage];
    own->slots = malloc(n * sizeof(*own->slots));
    own->ends = calloc(n, sizeof(*own->ends));
    own->arrived = calloc(n, sizeof(*own->arrived));
    is_ok = own->slots && own->ends && own->arrived;
    if (is_ok) {
      lade_schedule_order(w->pipeline, stage, own->slots);
      own->next_input = input_next(w, stage, 0);
    }
  }
  w->phases = malloc(3 * n * sizeof(*w->phases));
  return is_ok && w->phases ? 0 : -ENOMEM;
}

static void walk_finish(struct joint_walk *w)
{
  for (int stage = 0; w->stages && stage < w->pipeline->n_stages; stage++) {
    free(w->stages[stage].slots);
    free(w->stages[stage].ends);
    free(w->stages[stage].arrived);
  }
  free(w->stages);
  free(w->phases);
}

/* Run all stages to the end. */
static void walk_run(struct joint_walk *w)
{
  const int n_stages = w->pipeline->n_stages;
  for (int64_t left = (int64_t)n_stages * w->n_slots; left > 0;) {
    int64_t n_run = 0;
    for (int stage = 0; stage < n_stages; stage++)
      n_run += stage_run(w, stage);
    for (int stage = n_stages - 1; stage >= 0; stage--)
      n_run += stage_run(w, stage);
    LADE_ASSERT(n_run > 0);
    left -= n_run;
  }
}

static int phases_compare(const void *a, const void *b)
{
  const struct timed_phase *x = a, *y = b;
  const bool x_is_slot = x->sender < 0, y_is_slot = y->sender < 0;
  if (x->at != y->at)
    return x->at < y->at ? -1 : 1;
  if (x_is_slot != y_is_slot)
    return x_is_slot ? 1 : -1;
  return (x->sender > y->sender) - (x->sender < y->sender);
}

int lade_schedule_phases(const struct lade_pipeline *pipeline, int stage, struct lade_slot_phase **ret_phases,
                         int *ret_n)
{
  struct joint_walk w = {.pipeline = pipeline, .own = stage, .n_slots = lade_schedule_length(pipeline),
                         .n_ahead = lade_schedule_n_ahead(pipeline)};
  LADE_ASSERT(w.n_ahead <= LADE_SCHEDULE_AHEAD_MAX);
  struct lade_slot_phase *phases = malloc(3 * (size_t)w.n_slots * sizeof(*phases));
  int status = walk_init(&w);
  if (!status && !phases)
    status = -ENOMEM;
  if (!status) {
    walk_run(&w);
    qsort(w.phases, (size_t)w.n_phases, sizeof(*w.phases), phases_compare);
    for (int i = 0; i < w.n_phases; i++)
      phases[i] = w.phases[i].phase;
    *ret_phases = phases;
    *ret_n = w.n_phases;
  } else {
    free(phases);
  }
  walk_finish(&w);
  return status;
}
