/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs of all stages together. Under every schedule and residency no stages wait in a circle, whatever the
 * placement of stage boundaries in memory, and in one hardware channel. With equal stages and free stage boundaries the
 * simulated bubble is the schedule's own. A real deadlock is reported.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "parallel/schedule.h"
#include "tests/support/names.h"
#include "tests/support/program_fixture.h"
#include "tests/support/schedule_walk.h"

#define STAGES_MAX 4
/*
 * Times of a block's halves are multiples of HALF_NS, which every count of ops up to 16 divides. Sends and receives
 * that are grouped wait for each other. With a backward half shorter than the forward one, ZB-H2 therefore takes longer
 * than its order alone.
 */
#define HALF_NS 720720
#define N_HALVES 3 /* forward, backward, weights */

struct pipeline {
  int n;
  struct program_fixture fixtures[STAGES_MAX];
  const struct lade_program *programs[STAGES_MAX];
  const struct lade_prices *prices[STAGES_MAX];
};

static const struct program_fixture_setting shapes[] = {
    {.family = LADE_GPT2, .n_microbatches = 6, .pp = 2, .schedule = LADE_SCHEDULE_GPIPE},
    {.family = LADE_LLAMA, .n_microbatches = 3, .pp = 4, .schedule = LADE_SCHEDULE_1F1B},
    {.family = LADE_GPT2, .n_microbatches = 9, .pp = 4, .schedule = LADE_SCHEDULE_1F1B, .optimizer_in_backward = true},
    {.family = LADE_GPT2, .n_microbatches = 4, .pp = 2, .schedule = LADE_SCHEDULE_INTERLEAVED, .n_chunks = 2},
    {.family = LADE_LLAMA, .n_microbatches = 8, .pp = 4, .schedule = LADE_SCHEDULE_INTERLEAVED, .n_chunks = 2},
    {.family = LADE_LLAMA, .n_microbatches = 6, .pp = 3, .schedule = LADE_SCHEDULE_INTERLEAVED, .n_chunks = 3},
    {.family = LADE_LLAMA, .n_microbatches = 5, .pp = 3, .schedule = LADE_SCHEDULE_ZBH1},
    {.family = LADE_GPT2, .n_microbatches = 8, .pp = 4, .schedule = LADE_SCHEDULE_ZBH1},
    {.family = LADE_GPT2, .n_microbatches = 9, .pp = 4, .schedule = LADE_SCHEDULE_ZBH2},
};

static void pipeline_init(struct pipeline *pipeline, const struct program_fixture_setting *shape)
{
  struct program_fixture_setting setting = *shape;
  *pipeline = (struct pipeline){.n = shape->pp};
  for (setting.stage = 0; setting.stage < shape->pp; setting.stage++) {
    struct program_fixture *fixture = &pipeline->fixtures[setting.stage];
    program_fixture_init(fixture, &setting);
    pipeline->programs[setting.stage] = fixture->program;
    pipeline->prices[setting.stage] = &fixture->prices;
  }
}

static void pipeline_finish(struct pipeline *pipeline)
{
  for (int stage = 0; stage < pipeline->n; stage++)
    program_fixture_finish(&pipeline->fixtures[stage]);
}

static int pipeline_simulate(const struct pipeline *pipeline, struct lade_error *error, struct lade_stages_time *ret)
{
  return lade_stages_simulate(pipeline->programs, pipeline->prices, pipeline->n, error, ret);
}

static void no_memory_makes_stages_wait_in_a_circle(void **state)
{
  static const enum program_fixture_manner manners[] = {FIXTURE_KEEP, FIXTURE_RECOMPUTE, FIXTURE_SPILL_HOST,
                                                        FIXTURE_MIXED};
  for (size_t i = 0; i < LADE_COUNT(shapes); i++) {
    for (size_t k = 0; k < 4 * LADE_COUNT(manners); k++) {
      struct pipeline pipeline;
      struct lade_stages_time time;
      struct lade_error error = {.text = ""};
      struct program_fixture_setting setting = shapes[i];
      setting.dtype = LADE_F32;
      setting.manner = manners[k / 4];
      setting.state_tiers = k % 2 ? FIXTURE_MIXED_TIERS : LADE_TIER_DEVICE;
      setting.prefetch_bytes = k & 2 ? UINT64_MAX / 2 : 0;
      setting.is_unified = k % 2;
      setting.seed = (uint32_t)(10 * i + k);
      pipeline_init(&pipeline, &setting);
      if (pipeline_simulate(&pipeline, &error, &time))
        print_error("shape %zu, manner %zu: %s\n", i, k, error.text);
      assert_string_equal(error.text, "");
      assert_true(time.span_ns > 0 && time.bubble > 0);
      pipeline_finish(&pipeline);
    }
  }
}

/* ---- memory of receives ---- */

static int positions_compare(const void *x, const void *y)
{
  return *(const int32_t *)x - *(const int32_t *)y;
}

/*
 * Check a stage between others, whose slots all have an input and a result. A receive may begin as soon as the stage
 * holds fewer inputs than the schedule takes ahead. So its memory is free of other values from the end of the slot that
 * makes room, before that slot's send.
 */
static void receives_have_memory_early(const struct lade_program *program, int n_ahead)
{
  int32_t *begins = calloc((size_t)program->n_instrs, sizeof(*begins));
  int32_t *sends = calloc((size_t)program->n_instrs, sizeof(*sends));
  int n_received = 0, n_sent = 0;
  assert_true(begins && sends);
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    if (instr->kind == LADE_INSTR_RECV)
      begins[n_received++] = program->buffers[program->operands[instr->first_operand].buffer].first;
    else if (instr->kind == LADE_INSTR_SEND)
      sends[n_sent++] = at;
  }
  assert_true(n_received == n_sent && n_received > n_ahead);
  qsort(begins, (size_t)n_received, sizeof(*begins), positions_compare);
  for (int i = 0; i < n_received; i++)
    assert_true(begins[i] <= (i < n_ahead ? 0 : sends[i - n_ahead]));
  free(begins);
  free(sends);
}

static void memory_is_reserved_as_soon_as_a_stage_has_room(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(shapes); i++) {
    struct pipeline pipeline;
    struct program_fixture_setting setting = shapes[i];
    setting.dtype = LADE_F32;
    setting.manner = FIXTURE_KEEP;
    pipeline_init(&pipeline, &setting);
    const int n_ahead = lade_schedule_n_ahead(&(struct lade_pipeline){.schedule = setting.schedule});
    for (int stage = 1; stage < pipeline.n - 1; stage++)
      receives_have_memory_early(pipeline.programs[stage], n_ahead);
    pipeline_finish(&pipeline);
  }
}

/* ---- one hardware channel ---- */

/* True if the next instructions of stages @first, @first + @stride, ... are collectives on @axis. */
static bool collective_is_met(const struct pipeline *pipeline, const int *next, enum lade_axis axis, int stride)
{
  for (int stage = 0; stage < pipeline->n; stage += stride) {
    const struct lade_program *program = pipeline->programs[stage];
    const struct lade_instr *instr = &program->instrs[LADE_MIN(next[stage], program->n_instrs - 1)];
    if (next[stage] == program->n_instrs || instr->kind != LADE_INSTR_COLLECTIVE || instr->axis != axis)
      return false;
  }
  return true;
}

/* End the next instruction of @stage, and its other sides. False if one of them has not been reached. */
static bool instr_end(const struct pipeline *pipeline, int *next, int stage)
{
  const struct lade_instr *instr = &pipeline->programs[stage]->instrs[next[stage]];
  if (instr->kind == LADE_INSTR_RECV)
    return false; /* its sender moves both */
  if (instr->kind == LADE_INSTR_SEND) {
    const struct lade_program *peer = pipeline->programs[instr->peer];
    const struct lade_instr *other = &peer->instrs[LADE_MIN(next[instr->peer], peer->n_instrs - 1)];
    if (next[instr->peer] == peer->n_instrs || other->kind != LADE_INSTR_RECV || other->peer != stage ||
        other->microbatch != instr->microbatch)
      return false;
    next[instr->peer]++;
  } else if (instr->kind == LADE_INSTR_COLLECTIVE &&
             (instr->axis == LADE_AXIS_PP || instr->axis == LADE_AXIS_EMBED)) {
    const int stride = instr->axis == LADE_AXIS_PP ? 1 : LADE_MAX(pipeline->n - 1, 1);
    if (!collective_is_met(pipeline, next, (enum lade_axis)instr->axis, stride))
      return false;
    for (int other = 0; other < pipeline->n; other += stride)
      next[other] += other != stage;
  }
  next[stage]++;
  return true;
}

/*
 * Run all lists as one hardware channel for each stage would: an instruction begins when the one before it has ended,
 * and a transfer or a collective over stages ends when all sides have reached it. True if all lists end. Ranks of one
 * stage have equal lists, so their collectives need no check here.
 */
static bool one_channel_ends(const struct pipeline *pipeline)
{
  int next[STAGES_MAX] = {0}, n_left = pipeline->n;
  for (bool is_moving = true; is_moving && n_left;) {
    is_moving = false;
    n_left = 0;
    for (int stage = 0; stage < pipeline->n; stage++) {
      while (next[stage] < pipeline->programs[stage]->n_instrs && instr_end(pipeline, next, stage))
        is_moving = true;
      n_left += next[stage] < pipeline->programs[stage]->n_instrs;
    }
  }
  return n_left == 0;
}

static void one_hardware_channel_suffices(void **state)
{
  static const struct {
    int tp, dp, zero;
  } others[] = {{0, 0, 0}, {2, 0, 0}, {0, 2, 0}, {0, 2, 3}};
  for (size_t i = 0; i < LADE_COUNT(shapes) * LADE_COUNT(others); i++) {
    struct pipeline pipeline;
    struct program_fixture_setting setting = shapes[i / LADE_COUNT(others)];
    setting.dtype = LADE_F32;
    setting.tp = others[i % LADE_COUNT(others)].tp;
    setting.dp = others[i % LADE_COUNT(others)].dp;
    setting.zero = others[i % LADE_COUNT(others)].zero;
    setting.manner = i % 2 ? FIXTURE_MIXED : FIXTURE_KEEP;
    setting.optimizer_in_backward &= setting.zero == 0;
    pipeline_init(&pipeline, &setting);
    if (!one_channel_ends(&pipeline))
      print_error("shape %zu: tp %d, dp %d, zero %d\n", i / LADE_COUNT(others), setting.tp, setting.dp, setting.zero);
    assert_true(one_channel_ends(&pipeline));
    pipeline_finish(&pipeline);
  }
}

/* The first stage receives before it sends the value that the gradient it receives depends on. */
static void a_receive_before_its_cause_never_ends_in_one_channel(void **state)
{
  struct pipeline pipeline;
  pipeline_init(&pipeline, &shapes[1]);
  const struct lade_program *program = pipeline.programs[0];
  int32_t *order = calloc((size_t)program->n_instrs, sizeof(*order));
  int send = -1, recv = -1, n = 0;
  assert_non_null(order);
  for (int at = program->n_instrs - 1; at >= 0; at--) {
    send = program->instrs[at].kind == LADE_INSTR_SEND ? at : send;
    recv = program->instrs[at].kind == LADE_INSTR_RECV ? at : recv;
  }
  assert_true(send >= 0 && send < recv);
  for (int at = 0; at < program->n_instrs; at++) {
    if (at == send)
      order[n++] = recv;
    if (at != recv)
      order[n++] = at;
  }
  struct lade_program *early = program_reorder(program, order, n);
  pipeline.programs[0] = early;
  assert_false(one_channel_ends(&pipeline));
  lade_program_destroy(early);
  free(order);
  pipeline_finish(&pipeline);
}

/* ---- bubbles ---- */

static bool is_for_weights(const struct lade_model_graph *graph, const struct lade_op *op)
{
  bool is_all = op->n_out > 0;
  for (int i = 0; i < op->n_out; i++)
    is_all &= op->out[i] < 0 || graph->tensors[op->out[i]].kind == LADE_TENSOR_GRAD;
  return is_all;
}

/* Return the half of a block that @op is in; -1: not an op of a block. */
static int half_of(const struct lade_model_graph *graph, const struct lade_op *op)
{
  const char *unit = graph->units[op->unit].name;
  if (unit[0] != 'h' || unit[1] != '.')
    return -1;
  return !op->is_backward ? 0 : is_for_weights(graph, op) ? 2 : 1;
}

/* Price the ops of a piece's blocks so that each half takes its time, all others at nothing. */
static void prices_equal(struct program_fixture *fixture, struct piece_ns *ret_piece)
{
  static const int64_t half_ns[N_HALVES] = {3 * HALF_NS, 3 * HALF_NS, 2 * HALF_NS};
  const struct lade_model_graph *graph = fixture->graph;
  struct lade_prices *prices = &fixture->prices;
  int n_ops[N_HALVES] = {0};
  for (int i = 0; i < graph->n_ops; i++) {
    const int half = half_of(graph, &graph->ops[i]);
    if (half >= 0 && graph->units[graph->ops[i].unit].chunk == 0)
      n_ops[half]++;
  }
  for (int i = 0; i < graph->n_ops; i++) {
    const int half = half_of(graph, &graph->ops[i]);
    prices->op_ns[i] = half >= 0 ? half_ns[half] / n_ops[half] : 0;
    assert_true(half < 0 || half_ns[half] % n_ops[half] == 0);
  }
  *ret_piece = (struct piece_ns){half_ns[0], half_ns[1], half_ns[2]};
  for (int param = 0; param < graph->n_params; param++) {
    prices->grad_sumsq_ns[param] = 0;
    for (int tier = 0; tier < 3; tier++)
      prices->update_ns[tier][param] = 0;
  }
  prices->clip_ns = 0;
  prices->to_host = prices->to_device = (struct lade_transfer_price){0, 0};
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    prices->comm[axis] = prices->comm_sum[axis] = (struct lade_transfer_price){0, 0};
}

static void with_equal_stages_the_bubble_is_the_schedules(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(shapes); i++) {
    struct pipeline pipeline;
    struct lade_error error = {.text = ""};
    struct program_fixture_setting setting = shapes[i];
    struct piece_ns pieces[STAGES_MAX * 3];
    struct lade_stages_time found;
    struct schedule_time expected;
    setting.dtype = LADE_F32;
    pipeline_init(&pipeline, &setting);
    for (setting.stage = 0; setting.stage < setting.pp; setting.stage++) {
      struct program_fixture *fixture = &pipeline.fixtures[setting.stage];
      prices_equal(fixture, &pieces[setting.stage]);
      lade_program_destroy(fixture->program);
      fixture->program = program_fixture_build(fixture, &setting, NULL);
      pipeline.programs[setting.stage] = fixture->program;
    }
    for (int piece = setting.pp; piece < setting.pp * LADE_MAX(setting.n_chunks, 1); piece++)
      pieces[piece] = pieces[0];
    struct lade_pipeline like = lade_pipeline_get(&pipeline.fixtures[0].layout, setting.n_microbatches, true);
    assert_int_equal(schedule_walk(&like, pieces, 0, &expected), 0);
    assert_int_equal(pipeline_simulate(&pipeline, &error, &found), 0);
    assert_true(fabs(found.bubble - expected.bubble) < 1e-6);
    pipeline_finish(&pipeline);
  }
}

/* ---- deadlocks ---- */

/* Return the first instruction of @kind. */
static struct lade_instr *instr_find(struct lade_program *program, enum lade_instr_kind kind)
{
  for (int at = 0; at < program->n_instrs; at++) {
    if (program->instrs[at].kind == kind)
      return &program->instrs[at];
  }
  fail();
  return NULL;
}

static void stages_that_wait_for_ever_are_reported(void **state)
{
  struct pipeline pipeline;
  struct lade_stages_time time;
  struct lade_error error;
  pipeline_init(&pipeline, &shapes[1]);
  instr_find(pipeline.fixtures[1].program, LADE_INSTR_SEND)->microbatch = 2; /* which stage 2 does not expect */
  assert_int_equal(pipeline_simulate(&pipeline, &error, &time), -EDEADLK);
  assert_names(error.text, "stage 0", "microbatch 0", "stage 1");
  pipeline_finish(&pipeline);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_memory_makes_stages_wait_in_a_circle),
      cmocka_unit_test(memory_is_reserved_as_soon_as_a_stage_has_room),
      cmocka_unit_test(one_hardware_channel_suffices),
      cmocka_unit_test(a_receive_before_its_cause_never_ends_in_one_channel),
      cmocka_unit_test(with_equal_stages_the_bubble_is_the_schedules),
      cmocka_unit_test(stages_that_wait_for_ever_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
