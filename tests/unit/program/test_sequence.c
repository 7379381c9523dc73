/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of ops of every stage under every schedule, checked op by op. Each op runs once per microbatch, after its
 * inputs have been made and, if dropped, recomputed. Gradients are summed in one rank's order. Stage boundaries are at
 * the schedule's places, and no more microbatches are in flight than it says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "parallel/schedule.h"
#include "program/build.h"

#define BATCH 2
#define SEQ_LEN 8

/* The last two save all outputs of an op but its first one; these leave in other gaps too with the last one. */
enum manner { KEEP, RECOMPUTE, RECOMPUTE_EACH_TIME, KEEP_PARTS, SPILL_PARTS, N_MANNERS };

struct shape {
  enum lade_schedule schedule;
  int n_stages, n_chunks, n_microbatches;
};

static const struct shape shapes[] = {
    {LADE_SCHEDULE_1F1B, 1, 1, 3},        {LADE_SCHEDULE_GPIPE, 2, 1, 3},       {LADE_SCHEDULE_1F1B, 2, 1, 4},
    {LADE_SCHEDULE_1F1B, 4, 1, 3},        {LADE_SCHEDULE_1F1B, 4, 1, 8},        {LADE_SCHEDULE_INTERLEAVED, 2, 2, 4},
    {LADE_SCHEDULE_INTERLEAVED, 4, 2, 8}, {LADE_SCHEDULE_INTERLEAVED, 2, 4, 2}, {LADE_SCHEDULE_ZBH1, 3, 1, 2},
    {LADE_SCHEDULE_ZBH1, 4, 1, 7},        {LADE_SCHEDULE_ZBH2, 4, 1, 9},        {LADE_SCHEDULE_ZBH2, 3, 1, 2},
};

static struct lade_model model = {.name = "small", .family = LADE_GPT2, .layers = 9, .heads = 2, .n_kv_heads = 2,
                                  .width = 16, .hidden = 32, .context = 16, .vocabulary = 61, .is_tied = true,
                                  .norm_eps = 1e-5f};
static struct lade_kernels kernels;

/* A stage's steps, and the state of a walk over them. */
struct sequence_fixture {
  const struct shape *shape;
  enum manner manner;
  int stage;
  struct lade_layout layout;
  struct lade_model_graph *graph;
  struct lade_residency *residency;
  struct plan_step *steps;
  int n_steps;
  bool *is_there; /* by microbatch and tensor */
  int *n_runs;    /* by microbatch and op, recompute counted separately */
  int *next_add;  /* by op: the microbatch that runs it next */
};

static void residency_set(struct sequence_fixture *s)
{
  assert_int_equal(lade_residency_create(s->graph, &s->residency), 0);
  for (int i = 0; i < s->graph->n_tensors && s->manner != KEEP; i++) {
    if (!lade_tensor_is_repeatable(s->graph, i))
      continue;
    const bool is_part = s->graph->ops[s->graph->tensors[i].producer].out[0] != i;
    if (s->manner < KEEP_PARTS || !is_part)
      s->residency->choices[i].saved = LADE_RESIDENCY_RECOMPUTE;
    if (s->manner == RECOMPUTE_EACH_TIME || s->manner == SPILL_PARTS || (s->manner == KEEP_PARTS && !is_part))
      s->residency->choices[i].spill = LADE_RESIDENCY_RECOMPUTE;
  }
}

static void program_fixture_init(struct sequence_fixture *s, const struct shape *shape, int stage, enum manner manner)
{
  struct lade_layout_params layout = {.struct_size = sizeof(layout), .world = shape->n_stages, .rank = stage,
                                      .pp = shape->n_stages, .schedule = shape->schedule,
                                      .virtual_stages = shape->n_chunks, .grad_reduce = LADE_F32};
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = LADE_F32,
                                     .batch = BATCH, .seq_len = SEQ_LEN, .kernels = &kernels, .n_threads = 1,
                                     .share = {.pp = shape->n_stages, .pp_rank = stage, .n_chunks = shape->n_chunks}};
  struct lade_error error;
  *s = (struct sequence_fixture){.shape = shape, .manner = manner, .stage = stage};
  if (shape->n_stages > 1)
    assert_int_equal(lade_layout_init(&layout, &error, &s->layout), 0);
  else
    assert_int_equal(lade_layout_init(&(struct lade_layout_params){.struct_size = sizeof(layout),
                                                                   .schedule = LADE_SCHEDULE_1F1B,
                                                                   .grad_reduce = LADE_F32}, &error, &s->layout), 0);
  assert_int_equal(lade_model_graph_create(&params, &error, &s->graph), 0);
  residency_set(s);
  struct lade_build_params build = {.graph = s->graph, .residency = s->residency,
                                    .layout = shape->n_stages > 1 ? &s->layout : NULL,
                                    .n_microbatches = shape->n_microbatches, .is_training = true};
  assert_int_equal(plan_sequence(&build, &s->steps, &s->n_steps), 0);
  size_t n = (size_t)shape->n_microbatches;
  s->is_there = calloc(n * (size_t)s->graph->n_tensors, sizeof(*s->is_there));
  s->n_runs = calloc(n * (size_t)s->graph->n_ops, sizeof(*s->n_runs));
  s->next_add = calloc((size_t)s->graph->n_ops, sizeof(*s->next_add));
  assert_true(s->is_there && s->n_runs && s->next_add);
}

static void program_fixture_finish(struct sequence_fixture *s)
{
  free(s->is_there);
  free(s->n_runs);
  free(s->next_add);
  free(s->steps);
  lade_residency_destroy(s->residency);
  lade_model_graph_destroy(s->graph);
}

/* ---- the walk ---- */

static void inputs_verify(const struct sequence_fixture *s, const struct plan_step *step)
{
  const struct lade_op *op = &s->graph->ops[step->op];
  for (int i = 0; i < op->n_in; i++) {
    int tensor = op->in[i];
    if (tensor >= 0 && s->graph->tensors[tensor].kind == LADE_TENSOR_ACTIVATION)
      assert_true(s->is_there[(size_t)step->microbatch * (size_t)s->graph->n_tensors + (size_t)tensor]);
  }
}

/*
 * Note a run: backward ops at one place in the graph take microbatches in order, and so do the sums that they add to.
 */
static void run_note(struct sequence_fixture *s, const struct plan_step *step)
{
  const struct lade_op *op = &s->graph->ops[step->op];
  if (!step->is_recompute) {
    assert_int_equal(s->n_runs[step->microbatch * s->graph->n_ops + step->op]++, 0);
    assert_int_equal(s->next_add[step->op]++, step->microbatch);
  }
  assert_true(!step->is_recompute || (!op->is_backward && !lade_op_is_stage_boundary(op->kind)));
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] >= 0)
      s->is_there[(size_t)step->microbatch * (size_t)s->graph->n_tensors + (size_t)op->out[i]] = true;
  }
}

/* True for the first op of a chunk's forward half, and the last of its backward half; stage boundaries are left out. */
static bool is_begin(const struct sequence_fixture *s, int op)
{
  const struct lade_op *ops = s->graph->ops;
  int before = op > 0 && lade_op_is_stage_boundary(ops[op - 1].kind) ? op - 2 : op - 1;
  bool is_same = before >= 0 && s->graph->units[ops[before].unit].chunk == s->graph->units[ops[op].unit].chunk;
  return !ops[op].is_backward && !lade_op_is_stage_boundary(ops[op].kind) && !is_same;
}

static int chunk_ops(const struct sequence_fixture *s, int chunk)
{
  int n = 0;
  for (int i = 0; i < s->graph->n_ops; i++) {
    const struct lade_op *op = &s->graph->ops[i];
    n += op->is_backward && !lade_op_is_stage_boundary(op->kind) && s->graph->units[op->unit].chunk == chunk;
  }
  return n;
}

/* Check that the chunks' microbatches in flight are as many as the schedule says. */
static void holding_verify(const struct sequence_fixture *s, const struct lade_pipeline *pipeline)
{
  int left[4][16] = {{0}}, held = 0, max = 0;
  for (int pos = 0; pos < s->n_steps; pos++) {
    const struct plan_step *step = &s->steps[pos];
    const struct lade_op *op = &s->graph->ops[step->op];
    int chunk = s->graph->units[op->unit].chunk;
    if (step->is_recompute || lade_op_is_stage_boundary(op->kind))
      continue;
    if (is_begin(s, step->op)) {
      left[chunk][step->microbatch] = chunk_ops(s, chunk);
      held++;
    }
    max = LADE_MAX(max, held);
    if (op->is_backward)
      held -= --left[chunk][step->microbatch] == 0;
  }
  assert_int_equal(held, 0);
  assert_int_equal(max, lade_schedule_in_flight(pipeline, s->stage));
}

/* At a microbatch's first backward op, note that dropped values are gone; ops that still need them recompute them. */
static void dropped_note(struct sequence_fixture *s, const struct plan_step *step, bool *is_in_backward)
{
  if (s->graph->units[s->graph->ops[step->op].unit].chunk || is_in_backward[step->microbatch] || !step->is_backward ||
      s->graph->ops[step->op].kind == LADE_OP_RECV)
    return;
  is_in_backward[step->microbatch] = true;
  for (int i = 0; i < s->graph->n_tensors; i++) {
    bool is_here = s->graph->units[s->graph->tensors[i].unit].chunk == 0;
    if (is_here && s->residency->choices[i].saved == LADE_RESIDENCY_RECOMPUTE)
      s->is_there[(size_t)step->microbatch * (size_t)s->graph->n_tensors + (size_t)i] = false;
  }
}

static void stage_verify(const struct shape *shape, int stage, enum manner manner)
{
  struct sequence_fixture s;
  bool is_in_backward[16] = {false};
  program_fixture_init(&s, shape, stage, manner);
  for (int pos = 0; pos < s.n_steps; pos++) {
    dropped_note(&s, &s.steps[pos], is_in_backward);
    inputs_verify(&s, &s.steps[pos]);
    run_note(&s, &s.steps[pos]);
  }
  for (int i = 0; i < s.graph->n_ops; i++)
    assert_int_equal(s.next_add[i], shape->n_microbatches);
  const struct lade_pipeline pipeline = lade_pipeline_get(&s.layout, shape->n_microbatches, true);
  holding_verify(&s, &pipeline);
  program_fixture_finish(&s);
}

static void every_op_runs_once_with_its_inputs_there(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(shapes); i++)
    for (int stage = 0; stage < shapes[i].n_stages; stage++)
      for (int manner = 0; manner < N_MANNERS; manner++)
        stage_verify(&shapes[i], stage, (enum manner)manner);
}

/* A value that is saved is there for the whole backward pass, though another output of its op is made again. */
static void saved_values_are_not_made_again(void **state)
{
  struct sequence_fixture kept, spilled;
  int n_recomputed = 0;
  program_fixture_init(&kept, &shapes[0], 0, KEEP_PARTS);
  program_fixture_init(&spilled, &shapes[0], 0, SPILL_PARTS);
  assert_int_equal(kept.n_steps, spilled.n_steps);
  for (int pos = 0; pos < kept.n_steps; pos++) {
    assert_int_equal(kept.steps[pos].op, spilled.steps[pos].op);
    assert_int_equal(kept.steps[pos].is_recompute, spilled.steps[pos].is_recompute);
    n_recomputed += kept.steps[pos].is_recompute;
  }
  assert_true(n_recomputed > 0);
  program_fixture_finish(&kept);
  program_fixture_finish(&spilled);
}

/* ---- stage boundaries ---- */

/* Collect stage boundaries of a kind, in the order of steps, as microbatch and op. */
static int boundaries_collect(const struct sequence_fixture *s, enum lade_op_kind kind, struct plan_step *ret_steps)
{
  int n = 0;
  for (int pos = 0; pos < s->n_steps; pos++) {
    if (s->graph->ops[s->steps[pos].op].kind == kind)
      ret_steps[n++] = s->steps[pos];
  }
  return n;
}

/* Write the name of a stage boundary without its stage: its number, and whether a gradient crosses it. */
static void boundary_name(const struct sequence_fixture *s, const struct plan_step *step, char *name, size_t bytes)
{
  const struct lade_op *op = &s->graph->ops[step->op];
  const char *unit = s->graph->units[op->unit].name;
  snprintf(name, bytes, "%s %s of %d", strchr(unit, '.') + 1, op->is_backward ? "back" : "on", step->microbatch);
}

/* Check that @from's sends to @to and @to's receives from @from are in one order. */
static void pair_verify(const struct sequence_fixture *from, const struct sequence_fixture *to)
{
  struct plan_step *sends = calloc((size_t)from->n_steps, sizeof(*sends));
  struct plan_step *recvs = calloc((size_t)to->n_steps, sizeof(*recvs));
  assert_true(sends && recvs);
  int n_sends = boundaries_collect(from, LADE_OP_SEND, sends), n_recvs = boundaries_collect(to, LADE_OP_RECV, recvs),
      k = 0;
  for (int i = 0; i < n_sends; i++) {
    char sent[96], taken[96];
    if (from->graph->ops[sends[i].op].attr.peer != to->stage)
      continue;
    while (k < n_recvs && to->graph->ops[recvs[k].op].attr.peer != from->stage)
      k++;
    assert_true(k < n_recvs);
    boundary_name(from, &sends[i], sent, sizeof(sent));
    boundary_name(to, &recvs[k++], taken, sizeof(taken));
    assert_string_equal(sent, taken);
  }
  while (k < n_recvs)
    assert_true(to->graph->ops[recvs[k++].op].attr.peer != from->stage);
  free(sends);
  free(recvs);
}

static void neighbours_send_and_take_in_one_order(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(shapes); i++) {
    struct sequence_fixture fixtures[4];
    for (int stage = 0; stage < shapes[i].n_stages; stage++)
      program_fixture_init(&fixtures[stage], &shapes[i], stage, KEEP);
    for (int from = 0; from < shapes[i].n_stages; from++)
      for (int to = 0; to < shapes[i].n_stages; to++)
        pair_verify(&fixtures[from], &fixtures[to]);
    for (int stage = 0; stage < shapes[i].n_stages; stage++)
      program_fixture_finish(&fixtures[stage]);
  }
}

static int kernels_make(void **state)
{
  struct lade_cpu cpu = {0};
  lade_kernels_init(&kernels, &cpu);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_op_runs_once_with_its_inputs_there),
      cmocka_unit_test(saved_values_are_not_made_again),
      cmocka_unit_test(neighbours_send_and_take_in_one_order),
  };
  return cmocka_run_group_tests(tests, kernels_make, NULL);
}
