/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules, checked by code that is independent of their construction. Every half of every microbatch runs once and in
 * order. No stage has more microbatches in flight than stated. Stages that exchange across stage boundaries, each as
 * one thread, never wait for one another in a circle. The bubble is that of the papers.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "parallel/schedule.h"
#include "tests/support/names.h"
#include "tests/support/schedule_walk.h"

#define STAGES_MOST 8
#define SLOTS_MOST 512

/* A message across a stage boundary: the output of one half, going to a piece. */
struct message {
  int piece, microbatch, half; /* half -1: none */
};

/*
 * A stage that computes a slot, sends its output, and only then goes on. Meanwhile it is ready to receive the inputs of
 * the next slots that need one, in order, for the stated number of slots ahead.
 */
struct thread {
  struct lade_slot slots[SLOTS_MOST];
  int n, at;   /* the last slot computed; -1: none yet */
  int n_taken; /* slots whose inputs have arrived, or that need none */
  int taken[2]; /* the slots whose inputs arrived last, newest first; -1: none yet */
  bool is_sent;
};

static const struct message no_message = {-1, -1, -1};

static int piece_of(const struct lade_pipeline *pipeline, int stage, const struct lade_slot *slot)
{
  return slot->chunk * pipeline->n_stages + stage;
}

/* Return the message that slot @at of @stage waits for. */
static struct message input_get(const struct lade_pipeline *pipeline, const struct thread *thread, int stage, int at)
{
  if (at >= thread->n)
    return no_message;
  const struct lade_slot *slot = &thread->slots[at];
  int piece = piece_of(pipeline, stage, slot), last = pipeline->n_stages * pipeline->n_chunks - 1;
  if ((slot->half == LADE_HALF_FORWARD && piece > 0) || (slot->half == LADE_HALF_BACKWARD && piece < last))
    return (struct message){piece, slot->microbatch, slot->half};
  return no_message;
}

/* Return the message that slot @at of @stage makes for another piece. */
static struct message output_get(const struct lade_pipeline *pipeline, const struct thread *thread, int stage, int at)
{
  if (at < 0)
    return no_message;
  const struct lade_slot *slot = &thread->slots[at];
  int to = piece_of(pipeline, stage, slot) + (slot->half == LADE_HALF_FORWARD ? 1 : -1);
  if (slot->half == LADE_HALF_WEIGHTS || to < 0 || to == pipeline->n_stages * pipeline->n_chunks)
    return no_message;
  return (struct message){to, slot->microbatch, slot->half};
}

static bool message_is_equal(struct message a, struct message b)
{
  return a.piece == b.piece && a.microbatch == b.microbatch && a.half == b.half;
}

/* Mark slots that need no input as ready. */
static void inputs_skip(const struct lade_pipeline *pipeline, struct thread *thread, int stage)
{
  while (thread->n_taken < thread->n && input_get(pipeline, thread, stage, thread->n_taken).half < 0)
    thread->n_taken++;
}

/* Transfer a message across a stage boundary if both sides are ready. */
static bool exchange(const struct lade_pipeline *pipeline, struct thread *threads, int from)
{
  struct message out = output_get(pipeline, &threads[from], from, threads[from].at);
  if (threads[from].is_sent)
    return false;
  if (out.half < 0)
    return threads[from].is_sent = true;
  int to = out.piece % pipeline->n_stages;
  inputs_skip(pipeline, &threads[to], to);
  int oldest = lade_schedule_n_ahead(pipeline) - 1;
  bool is_free = threads[to].taken[oldest] <= threads[to].at; /* the slot of that buffer's input is done */
  if (!is_free || !message_is_equal(input_get(pipeline, &threads[to], to, threads[to].n_taken), out))
    return false;
  threads[to].taken[1] = threads[to].taken[0];
  threads[to].taken[0] = threads[to].n_taken++;
  return threads[from].is_sent = true;
}

static bool thread_advance(const struct lade_pipeline *pipeline, struct thread *thread, int stage)
{
  inputs_skip(pipeline, thread, stage);
  if (!thread->is_sent || thread->at == thread->n || (thread->at + 1 < thread->n && thread->n_taken <= thread->at + 1))
    return false;
  thread->at++;
  thread->is_sent = thread->at == thread->n;
  return true;
}

/*
 * Run stages as threads that meet to exchange messages, each with one order for sends and one for receives. A schedule
 * that completes here completes with first-in first-out queues, and with any placement of the messages in memory.
 */
static void meetings_verify(const struct lade_pipeline *pipeline, struct thread *threads)
{
  int p = pipeline->n_stages, n_done = 0;
  for (int stage = 0; stage < p; stage++)
    threads[stage].at = threads[stage].taken[0] = threads[stage].taken[1] = -1;
  for (bool is_moving = true; is_moving;) {
    is_moving = false;
    for (int stage = 0; stage < p; stage++)
      is_moving |= threads[stage].at < threads[stage].n && exchange(pipeline, threads, stage);
    for (int stage = 0; stage < p; stage++)
      is_moving |= thread_advance(pipeline, &threads[stage], stage);
  }
  for (int stage = 0; stage < p; stage++)
    n_done += threads[stage].at == threads[stage].n;
  if (n_done < p)
    print_error("schedule %d, %d stages, %d chunks, %d microbatches, training %d: %d stages come through\n",
                (int)pipeline->schedule, p, pipeline->n_chunks, pipeline->n_microbatches, pipeline->is_training,
                n_done);
  assert_int_equal(n_done, p);
}

/* Check each half: once, after the half before it, in the order of microbatches, with the stated number in flight. */
static void stage_verify(const struct lade_pipeline *pipeline, const struct thread *thread, int stage)
{
  enum { N_HALVES = 3 };
  int n_halves = pipeline->is_training ? 2 + lade_schedule_is_split(pipeline) : 1, held = 0, most = 0;
  int next[N_HALVES][16] = {{0}};
  assert_int_equal(thread->n, n_halves * pipeline->n_chunks * pipeline->n_microbatches);
  for (int at = 0; at < thread->n; at++) {
    const struct lade_slot *slot = &thread->slots[at];
    assert_true(slot->half < n_halves && slot->chunk < pipeline->n_chunks);
    assert_int_equal(slot->microbatch, next[slot->half][slot->chunk]++);
    if (slot->half > 0)
      assert_true(slot->microbatch < next[slot->half - 1][slot->chunk]);
    held += slot->half == LADE_HALF_FORWARD;
    most = LADE_MAX(most, held);
    held -= slot->half == n_halves - 1 && n_halves > 1;
  }
  assert_int_equal(held, pipeline->is_training ? 0 : most);
  assert_int_equal(most, lade_schedule_in_flight(pipeline, stage));
}

static struct thread *threads_make(const struct lade_pipeline *pipeline)
{
  struct thread *threads = calloc(STAGES_MOST, sizeof(*threads));
  assert_non_null(threads);
  for (int stage = 0; stage < pipeline->n_stages; stage++) {
    threads[stage].n = lade_schedule_length(pipeline);
    assert_true(threads[stage].n <= SLOTS_MOST);
    lade_schedule_order(pipeline, stage, threads[stage].slots);
  }
  return threads;
}

/* Call @verify for every pipeline up to some size that has a schedule. */
static void pipelines_walk(void (*verify)(const struct lade_pipeline *))
{
  struct lade_error error;
  for (int schedule = 0; schedule < LADE_N_SCHEDULES; schedule++)
    for (int p = 1; p <= STAGES_MOST; p++)
      for (int v = 1; v <= (schedule == LADE_SCHEDULE_INTERLEAVED && p > 1 ? 4 : 1); v++)
        for (int m = 1; m <= 3 * p + 1; m++) {
          struct lade_pipeline pipeline = {(enum lade_schedule)schedule, p, v, m, true};
          if (lade_schedule_check(&pipeline, &error) == 0)
            verify(&pipeline);
        }
}

static void order_verify(const struct lade_pipeline *pipeline)
{
  for (int is_training = 0; is_training < 2; is_training++) {
    struct lade_pipeline one = *pipeline;
    one.is_training = is_training;
    struct thread *threads = threads_make(&one);
    for (int stage = 0; stage < one.n_stages; stage++)
      stage_verify(&one, &threads[stage], stage);
    meetings_verify(&one, threads);
    free(threads);
  }
}

static void every_half_happens_once_and_no_circle_of_stages_waits(void **state)
{
  pipelines_walk(order_verify);
}

static void holding_verify(const struct lade_pipeline *pipeline)
{
  int p = pipeline->n_stages, m = pipeline->n_microbatches, v = pipeline->n_chunks;
  for (int stage = 0; stage < p; stage++) {
    int held = lade_schedule_in_flight(pipeline, stage);
    switch (pipeline->schedule) {
    case LADE_SCHEDULE_GPIPE: assert_int_equal(held, m); break;
    case LADE_SCHEDULE_1F1B: assert_int_equal(held, LADE_MIN(p - stage, m)); break;
    case LADE_SCHEDULE_ZBH1: assert_int_equal(held, LADE_MIN(p, m)); break;
    default: assert_true(held <= 2 * (p - 1 - stage) + (v - 1) * p + 1 && held <= m * v);
    }
  }
}

static void stages_hold_as_many_microbatches_as_the_papers_say(void **state)
{
  pipelines_walk(holding_verify);
}

/* Return the bubble with pieces of equal times that make up one stage's F, B and W. */
static double bubble_get(const struct lade_pipeline *pipeline, double f, double b, double w)
{
  struct piece_ns pieces[STAGES_MOST * 4];
  struct schedule_time time;
  int v = pipeline->n_chunks;
  for (int i = 0; i < pipeline->n_stages * v; i++)
    pieces[i] = (struct piece_ns){f / v, b / v, w / v};
  assert_int_equal(schedule_walk(pipeline, pieces, 0, &time), 0);
  double busy = pipeline->n_microbatches * (f + b + w);
  assert_true(fabs(time.span_ns - busy * (1 + time.bubble)) <= 1e-9 * time.span_ns);
  return time.bubble;
}

static const double times[][3] = {{1, 1, 1}, {100, 110, 90}, {3, 4, 2}, {10, 10, 9}};

static void bubble_verify(const struct lade_pipeline *pipeline)
{
  int p = pipeline->n_stages, m = pipeline->n_microbatches, v = pipeline->n_chunks;
  for (size_t i = 0; i < LADE_COUNT(times); i++) {
    double f = times[i][0], b = times[i][1], w = times[i][2], all = f + b + w;
    double expected = (p - 1) * all / (m * all);
    if (pipeline->schedule == LADE_SCHEDULE_INTERLEAVED)
      expected = (p - 1.0) / (v * m);
    if (pipeline->schedule == LADE_SCHEDULE_ZBH1) {
      if (m < p)
        continue; /* fewer weight halves than gaps to fill */
      expected = (p - 1) * (f + b - w) / (m * all);
    }
    double found = bubble_get(pipeline, f, b, w);
    if (fabs(found - expected) > 1e-9)
      print_error("schedule %d, %d stages, %d chunks, %d microbatches, times %g %g %g: bubble %g, expected %g\n",
                  (int)pipeline->schedule, p, v, m, f, b, w, found, expected);
    assert_true(fabs(found - expected) <= 1e-9);
  }
}

static void bubbles_are_the_closed_forms(void **state)
{
  pipelines_walk(bubble_verify);
}

static void a_slow_link_and_a_slow_stage_widen_the_bubble(void **state)
{
  struct lade_pipeline pipeline = {LADE_SCHEDULE_1F1B, 4, 1, 8, true};
  struct piece_ns pieces[4] = {{10, 10, 10}, {10, 10, 10}, {10, 10, 10}, {10, 10, 10}};
  struct schedule_time free_link, slow_link, slow_stage;
  assert_int_equal(schedule_walk(&pipeline, pieces, 0, &free_link), 0);
  assert_int_equal(schedule_walk(&pipeline, pieces, 5, &slow_link), 0);
  pieces[2].forward = 20;
  assert_int_equal(schedule_walk(&pipeline, pieces, 0, &slow_stage), 0);
  assert_true(slow_link.bubble > free_link.bubble);
  assert_true(slow_stage.bubble > free_link.bubble);
}

static void refusals_list_what_would_do(void **state)
{
  struct lade_error error;
  struct lade_pipeline pipeline = {LADE_SCHEDULE_INTERLEAVED, 4, 2, 10, true};
  assert_int_equal(lade_schedule_check(&pipeline, &error), -EINVAL);
  assert_names(error.text, "10", "8 or 12");
  pipeline.n_microbatches = 3;
  assert_int_equal(lade_schedule_check(&pipeline, &error), -EINVAL);
  assert_names(error.text, "3", "4 or 8");
  pipeline.n_microbatches = 12;
  assert_int_equal(lade_schedule_check(&pipeline, &error), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_half_happens_once_and_no_circle_of_stages_waits),
      cmocka_unit_test(stages_hold_as_many_microbatches_as_the_papers_say),
      cmocka_unit_test(bubbles_are_the_closed_forms),
      cmocka_unit_test(a_slow_link_and_a_slow_stage_widen_the_bubble),
      cmocka_unit_test(refusals_list_what_would_do),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
