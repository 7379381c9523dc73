/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a schedule whose halves have known times.
 *
 * A stage runs its slots in order. A slot begins when the slot before it has ended and its input has arrived: the
 * result of the previous piece for a forward half, of the next piece for a backward half, one transfer after it was
 * computed. The last piece's backward half needs its own forward half. Stages are visited in turns, and each runs slots
 * until an input is missing. If a round runs no slot before all stages have ended, the stages wait for one another in a
 * circle. Each slot is run once, and between two slots of one stage each other stage is visited at most once: O(slots *
 * stages) at worst, near O(slots) for the schedules here.
 *
 * A full pipeline is periodic. So of very many microbatches only some are simulated, twice: the second time with a few
 * more, a multiple of the number of stages. Each further such group adds the difference of the two times. So the time
 * to compute a schedule does not grow with the batch.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/base.h"
#include "parallel/schedule.h"

#define RUN_IN_FULL 16 /* microbatches simulated for each stage; a pipeline is periodic after about four */
#define PERIOD 4       /* microbatches for each stage in the difference */

struct stage_clock {
  struct lade_slot_cursor cursor;
  struct lade_slot slot; /* the next one, unless the list has ended */
  bool has_begun, has_ended;
  double now_ns, first_ns, busy_ns;
};

struct schedule_clock {
  const struct lade_pipeline *pipeline;
  const struct lade_piece_time *pieces;
  double boundary_ns;
  struct stage_clock *stages;
  double *done_ns[2]; /* of forward and backward halves, by piece and then by microbatch; negative: not yet */
};

/* Run slots of @stage until one whose input is missing. Return the number of them. */
static int stage_run(struct schedule_clock *clock, int stage)
{
  const struct lade_pipeline *pipeline = clock->pipeline;
  const int n_stages = pipeline->n_stages, last = n_stages * pipeline->n_chunks - 1;
  const ptrdiff_t m = pipeline->n_microbatches;
  const double boundary_ns = n_stages > 1 ? clock->boundary_ns : 0;
  struct stage_clock *own = &clock->stages[stage];
  int n = 0;
  for (; !own->has_ended; own->has_ended = !lade_slot_next(&own->cursor, &own->slot), n++) {
    const struct lade_slot slot = own->slot;
    const int piece = slot.chunk * n_stages + stage;
    const struct lade_piece_time *time = &clock->pieces[piece];
    double ready_ns = 0, ns = time->weights_ns; /* weights' input is this stage's own */
    if (slot.half != LADE_HALF_WEIGHTS) {
      const bool is_forward = slot.half == LADE_HALF_FORWARD;
      double *forward = &clock->done_ns[LADE_HALF_FORWARD][piece * m + slot.microbatch];
      double *done = is_forward ? forward : &clock->done_ns[LADE_HALF_BACKWARD][piece * m + slot.microbatch];
      ns = is_forward ? time->forward_ns : time->backward_ns;
      if (!is_forward && piece == last)
        ready_ns = *forward;
      else if (!is_forward || piece > 0)
        ready_ns = is_forward ? done[-m] : done[m];
      if (ready_ns < 0)
        break;
      if (is_forward ? piece > 0 : piece < last)
        ready_ns += boundary_ns;
      *done = LADE_MAX(own->now_ns, ready_ns) + ns;
    }
    const double start_ns = LADE_MAX(own->now_ns, ready_ns);
    own->first_ns = own->has_begun ? own->first_ns : start_ns;
    own->has_begun = true;
    own->now_ns = start_ns + ns;
    own->busy_ns += ns;
  }
  return n;
}

static int clock_init(struct schedule_clock *clock)
{
  const struct lade_pipeline *pipeline = clock->pipeline;
  const size_t n = (size_t)pipeline->n_stages * (size_t)pipeline->n_chunks * (size_t)pipeline->n_microbatches;
  clock->stages = calloc((size_t)pipeline->n_stages, sizeof(*clock->stages));
  for (int half = 0; half < 2; half++)
    clock->done_ns[half] = malloc(n * sizeof(double));
  const bool is_ok = clock->stages && clock->done_ns[0] && clock->done_ns[1];
  for (int stage = 0; stage < pipeline->n_stages && is_ok; stage++) {
    struct stage_clock *own = &clock->stages[stage];
    lade_slot_cursor_init(pipeline, stage, &own->cursor);
    own->has_ended = !lade_slot_next(&own->cursor, &own->slot);
  }
  for (size_t i = 0; i < n && is_ok; i++)
    clock->done_ns[0][i] = clock->done_ns[1][i] = -1;
  return is_ok ? 0 : -ENOMEM;
}

static void clock_finish(struct schedule_clock *clock)
{
  free(clock->stages);
  free(clock->done_ns[0]);
  free(clock->done_ns[1]);
}

/* Run all stages to the end. -EDEADLK: a round without a slot. */
static int stages_run(struct schedule_clock *clock)
{
  const int n_stages = clock->pipeline->n_stages;
  for (int64_t left = (int64_t)n_stages * lade_schedule_length(clock->pipeline); left > 0;) {
    int64_t n_run = 0;
    for (int stage = 0; stage < n_stages; stage++)
      n_run += stage_run(clock, stage);
    for (int stage = n_stages - 1; stage >= 0; stage--)
      n_run += stage_run(clock, stage);
    if (n_run == 0)
      return -EDEADLK;
    left -= n_run;
  }
  return 0;
}

/* Compute the times by running all slots. */
static int times_run(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces, double boundary_ns,
                     struct lade_schedule_times *ret_times)
{
  struct schedule_clock clock = {.pipeline = pipeline, .pieces = pieces, .boundary_ns = boundary_ns};
  struct lade_schedule_times times = {0};
  int status = clock_init(&clock);
  if (!status)
    status = stages_run(&clock);
  for (int stage = 0; stage < pipeline->n_stages && !status; stage++) {
    const struct stage_clock *own = &clock.stages[stage];
    times.span_ns = LADE_MAX(times.span_ns, own->now_ns);
    times.stage_span_ns = LADE_MAX(times.stage_span_ns, own->now_ns - own->first_ns);
    times.busy_ns = LADE_MAX(times.busy_ns, own->busy_ns);
  }
  clock_finish(&clock);
  if (!status)
    *ret_times = times;
  return status;
}

int lade_schedule_time(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces, double boundary_ns,
                       struct lade_schedule_times *ret_times)
{
  const int p = pipeline->n_stages, m = pipeline->n_microbatches;
  struct lade_pipeline cut = *pipeline;
  struct lade_schedule_times less, more;
  if (m <= (RUN_IN_FULL + 1) * p)
    return times_run(pipeline, pieces, boundary_ns, ret_times);
  cut.n_microbatches = (RUN_IN_FULL - PERIOD) * p + m % p;
  int status = times_run(&cut, pieces, boundary_ns, &less);
  cut.n_microbatches += PERIOD * p;
  if (!status)
    status = times_run(&cut, pieces, boundary_ns, &more);
  if (status)
    return status;
  const double n_periods = (double)(m - cut.n_microbatches) / (PERIOD * p);
  *ret_times = (struct lade_schedule_times){more.span_ns + n_periods * (more.span_ns - less.span_ns),
                                            more.stage_span_ns + n_periods * (more.stage_span_ns - less.stage_span_ns),
                                            more.busy_ns + n_periods * (more.busy_ns - less.busy_ns)};
  return 0;
}
