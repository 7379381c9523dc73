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
 * A full pipeline becomes periodic: from some microbatch on, each half ends a constant time after the same half of the
 * microbatch a period before. The period is the length of the circle of slots that limits the pipeline: 1 if that is
 * one busy stage, up to a few rounds of all stages if transfers limit it. Of very many microbatches only some are run.
 * If the halves of as many as may be in flight repeat with one period, so do all later ones by induction, because a
 * slot waits for no microbatch further back. The other microbatches then add whole periods, exactly. If the halves do
 * not yet repeat, more are run, up to RUN_MAX microbatches a stage. Beyond that each other microbatch adds a mean: that
 * of the second half of the run. The sum is at least the bound. Interleaved pipelines are then off by up to 0.2 %, and
 * split schedules by 0.5 %. So the time to compute a schedule does not grow with the batch.
 *
 * GPIPE does not become periodic, because its stages do not wait for later ones: a fast stage runs ahead of a slow one.
 * It is a flow shop of equal jobs: each microbatch but the first adds the longest half of each direction.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "parallel/schedule.h"

#define RUN_MIN 2        /* microbatches run for each stage, beside those whose halves are compared */
#define RUN_MAX 16       /* the same of the last attempt; each attempt runs twice as many as the one before */
#define PERIODS_TRIED 3  /* longest period that is looked for, in microbatches for each stage */
#define SAME_GROWTH 1e-9 /* relative difference of growths that is rounding */

struct stage_clock {
  struct lade_slot_cursor cursor;
  struct lade_slot slot; /* the next one, unless the list has ended */
  bool has_begun, has_ended;
  double now_ns, first_ns;
};

struct schedule_clock {
  const struct lade_pipeline *pipeline;
  const struct lade_piece_time *pieces;
  double boundary_ns;
  struct stage_clock *stages;
  double *done_ns[2]; /* of forward and backward halves, by piece and then by microbatch; negative: not yet */
};

/* Microbatches after which a full pipeline repeats, and the time that they add. */
struct schedule_period {
  int n;
  double growth_ns;
  bool is_exact; /* otherwise a mean of many microbatches */
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

/* Return the microbatches that may be in flight: a slot waits for none further back. */
static int window_get(const struct lade_pipeline *pipeline)
{
  const int n_stages = pipeline->n_stages, n_chunks = pipeline->n_chunks;
  int in_flight = 0;
  for (int stage = 0; stage < n_stages; stage++)
    in_flight = LADE_MAX(in_flight, lade_schedule_in_flight(pipeline, stage));
  return n_chunks == 1 ? in_flight : n_stages * (in_flight / (n_stages * n_chunks) + 2);
}

/* Return the time between the halves of microbatch @i and of the one @period before. */
static double growth_get(const struct schedule_clock *clock, int half, ptrdiff_t piece, ptrdiff_t i, ptrdiff_t period)
{
  const double *done = &clock->done_ns[half][piece * clock->pipeline->n_microbatches];
  return done[i] - done[i - period];
}

/* True if the halves of @window microbatches up to @end end @growth_ns after those @period microbatches before. */
static bool is_repeated(const struct schedule_clock *clock, ptrdiff_t end, int window, int period, double growth_ns)
{
  const ptrdiff_t n_pieces = (ptrdiff_t)clock->pipeline->n_stages * clock->pipeline->n_chunks;
  const double rounding_ns = SAME_GROWTH * growth_ns;
  for (int half = LADE_HALF_FORWARD; half <= LADE_HALF_BACKWARD; half++)
    for (ptrdiff_t piece = 0; piece < n_pieces; piece++)
      for (ptrdiff_t i = end - window; i < end; i++)
        if (fabs(growth_get(clock, half, piece, i, period) - growth_ns) > rounding_ns)
          return false;
  return true;
}

/*
 * Find the period of the last microbatches that meet a full pipeline on all stages: @window of them, ahead of the last
 * @window of all. An interleaved pipeline repeats after groups of n_stages.
 */
static struct schedule_period period_find(const struct schedule_clock *clock, int window)
{
  const int n_stages = clock->pipeline->n_stages, end = clock->pipeline->n_microbatches - window;
  const int step = clock->pipeline->n_chunks > 1 ? n_stages : 1, max = LADE_MIN(PERIODS_TRIED * n_stages, end - window);
  for (int n = step; n <= max; n += step) {
    const double growth_ns = growth_get(clock, LADE_HALF_BACKWARD, 0, end - 1, n);
    if (is_repeated(clock, end, window, n, growth_ns))
      return (struct schedule_period){n, growth_ns, true};
  }
  const int half = end / (2 * step) * step;
  return (struct schedule_period){half, growth_get(clock, LADE_HALF_BACKWARD, 0, end - 1, half), false};
}

/* Compute the spans by running all slots, and the period, unless @ret_period is NULL. */
static int times_run(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces, double boundary_ns,
                     struct lade_schedule_times *times, struct schedule_period *ret_period)
{
  struct schedule_clock clock = {.pipeline = pipeline, .pieces = pieces, .boundary_ns = boundary_ns};
  int status = clock_init(&clock);
  times->span_ns = times->stage_span_ns = 0;
  if (!status)
    status = stages_run(&clock);
  for (int stage = 0; stage < pipeline->n_stages && !status; stage++) {
    const struct stage_clock *own = &clock.stages[stage];
    times->span_ns = LADE_MAX(times->span_ns, own->now_ns);
    times->stage_span_ns = LADE_MAX(times->stage_span_ns, own->now_ns - own->first_ns);
  }
  if (!status && ret_period)
    *ret_period = period_find(&clock, window_get(pipeline));
  clock_finish(&clock);
  return status;
}

/* Compute the times of GPIPE. */
static void flow_time(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces, double boundary_ns,
                      struct lade_schedule_times *ret_times)
{
  double forward_ns = 0, backward_ns = 0; /* the longest */
  double span_ns = 2 * (pipeline->n_stages - 1) * boundary_ns;
  LADE_ASSERT(pipeline->n_chunks == 1);
  for (int stage = 0; stage < pipeline->n_stages; stage++) {
    forward_ns = LADE_MAX(forward_ns, pieces[stage].forward_ns);
    backward_ns = LADE_MAX(backward_ns, pieces[stage].backward_ns);
    span_ns += pieces[stage].forward_ns + pieces[stage].backward_ns;
  }
  ret_times->span_ns = span_ns + (pipeline->n_microbatches - 1) * (forward_ns + backward_ns);
  ret_times->stage_span_ns = ret_times->span_ns; /* the first stage begins and ends the step */
}

/* Run as many microbatches as it takes to know the others' time. */
static int pipeline_time(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces, double boundary_ns,
                         struct lade_schedule_times *times)
{
  const int n_stages = pipeline->n_stages, window = window_get(pipeline);
  struct lade_pipeline cut = *pipeline;
  struct schedule_period period = {0};
  int status = 0;
  for (int n = RUN_MIN; n <= RUN_MAX && !period.is_exact && !status; n *= 2) {
    cut.n_microbatches = (2 * window + n_stages - 1) / n_stages * n_stages + n * n_stages;
    if (cut.n_microbatches > pipeline->n_microbatches / 2)
      return times_run(pipeline, pieces, boundary_ns, times, NULL);
    status = times_run(&cut, pieces, boundary_ns, times, &period);
  }
  if (status)
    return status;
  const int n_left = pipeline->n_microbatches - cut.n_microbatches, n_more = n_left % period.n;
  cut.n_microbatches += n_more;
  if (n_more > 0) /* so that whole periods are left out */
    status = times_run(&cut, pieces, boundary_ns, times, NULL);
  times->span_ns += n_left / period.n * period.growth_ns;
  times->stage_span_ns += n_left / period.n * period.growth_ns;
  return status;
}

/*
 * Bound the span of an interleaved schedule from below by its last stage. That stage warms up with n_stages forward
 * halves of each chunk but the last. So the next one, of the first microbatch and the last piece, ends no sooner than
 * this microbatch has passed all pieces. Likewise the last forward half is of the last microbatch, which then passes
 * all pieces backward. In between the stage computes all halves that are neither before the first of these nor after
 * the second.
 */
static double chunks_bound(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces,
                           double boundary_ns)
{
  const int n_stages = pipeline->n_stages, n_pieces = n_stages * pipeline->n_chunks;
  const double m = pipeline->n_microbatches;
  double span_ns = 2 * (n_pieces - 1) * boundary_ns;
  for (int piece = 0; piece < n_pieces; piece++) {
    const bool is_last = piece == n_pieces - 1, is_of_stage = piece % n_stages == n_stages - 1;
    const double n_between = is_last ? m - 1 : is_of_stage ? m - n_stages : 0;
    span_ns += (1 + n_between) * (pieces[piece].forward_ns + pieces[piece].backward_ns);
  }
  return span_ns;
}

void lade_schedule_time_bound(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces,
                              double boundary_ns, struct lade_schedule_times *ret_times)
{
  const int n_stages = pipeline->n_stages;
  double ahead_ns = 0, behind_ns = pieces[0].weights_ns;
  struct lade_schedule_times times = {0};
  for (int stage = 0; stage < n_stages; stage++) {
    double inputs_ns = 0, weights_ns = 0;
    for (int chunk = 0; chunk < pipeline->n_chunks; chunk++) {
      const struct lade_piece_time *piece = &pieces[chunk * n_stages + stage];
      inputs_ns += pipeline->n_microbatches * (piece->forward_ns + piece->backward_ns);
      weights_ns += pipeline->n_microbatches * piece->weights_ns;
    }
    times.busy_ns = LADE_MAX(times.busy_ns, inputs_ns + weights_ns);
    times.span_ns = LADE_MAX(times.span_ns, ahead_ns + inputs_ns + LADE_MAX(weights_ns, behind_ns));
    ahead_ns += pieces[stage].forward_ns + boundary_ns;
    behind_ns += pieces[stage].backward_ns + boundary_ns;
  }
  if (pipeline->schedule == LADE_SCHEDULE_INTERLEAVED)
    times.span_ns = LADE_MAX(times.span_ns, chunks_bound(pipeline, pieces, boundary_ns));
  times.stage_span_ns = times.busy_ns;
  *ret_times = times;
}

int lade_schedule_time(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces, double boundary_ns,
                       struct lade_schedule_times *ret_times)
{
  struct lade_schedule_times bound, times;
  int status = 0;
  LADE_ASSERT(pipeline->is_training);
  lade_schedule_time_bound(pipeline, pieces, boundary_ns, &bound);
  if (pipeline->schedule == LADE_SCHEDULE_GPIPE)
    flow_time(pipeline, pieces, boundary_ns, &times);
  else
    status = pipeline_time(pipeline, pieces, boundary_ns, &times);
  if (status)
    return status;
  times.span_ns = LADE_MAX(times.span_ns, bound.span_ns); /* it may be below by a mean, or by rounding */
  times.stage_span_ns = LADE_MAX(times.stage_span_ns, bound.stage_span_ns);
  times.busy_ns = bound.busy_ns;
  *ret_times = times;
  return 0;
}
