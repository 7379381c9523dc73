/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of chains. No plan is slower than the best persistent one, which an exhaustive walk over all of them finds:
 * save a stage, or keep the input of a later one and run the stages before it again. The search has no time to find it
 * otherwise. Times of the longest step that a graph may have do not overflow.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/base.h"
#include "lade/graph_plan.h"
#include "tests/support/graph/random_graph.h"

enum { SEEDS = 40, STAGES_MAX = 10, BUDGETS = 6, LOSS_NS = 5, NONE = INT32_MAX, LONG_STAGES = 200 };

/* Stage i reads its input, and makes an output and more that its backward op needs. */
struct stages {
  int n, out[STAGES_MAX], more[STAGES_MAX], ns[STAGES_MAX];
};

static struct stages stages_draw(uint64_t seed)
{
  struct random_draw draw = {seed};
  struct stages stages = {.n = 3 + random_draw_below(&draw, STAGES_MAX - 2)};
  for (int i = 0; i < stages.n; i++) {
    stages.out[i] = 1 + random_draw_below(&draw, 8);
    stages.more[i] = random_draw_below(&draw, 12);
    stages.ns[i] = 10 + random_draw_below(&draw, 200);
  }
  return stages;
}

/* ---- all persistent plans ---- */

/* Return the least time of forward ops that process stages @s .. @t within @m units, their input apart; NONE: none. */
static int64_t segment_walk(const struct stages *stages, int s, int t, int m)
{
  const int gradient = t < stages->n - 1 ? stages->out[t] : 0, saved = stages->out[s] + stages->more[s];
  const int below = s ? stages->out[s - 1] : 1;
  int64_t best = NONE, run_ns = 0;
  if (m >= saved + gradient && m >= saved + stages->out[s] + below)
    best = stages->ns[s] + (s == t ? 0 : segment_walk(stages, s + 1, t, m - saved));
  int run = 0;
  for (int k = s + 1; k <= t; k++) {
    run = LADE_MAX(run, stages->out[k - 1] + stages->more[k - 1] + (k - 1 > s ? stages->out[k - 2] : 0));
    run_ns += stages->ns[k - 1];
    if (m < run + gradient)
      break;
    const int64_t behind_ns = segment_walk(stages, k, t, m - stages->out[k - 1]);
    best = LADE_MIN(best, run_ns + behind_ns + segment_walk(stages, s, k - 1, m));
  }
  return LADE_MIN(best, (int64_t)NONE);
}

/* ---- the graph of the same chain ---- */

static int storage_add(lade_graph *graph, int bytes, bool is_given)
{
  int index;
  const struct lade_storage storage = {.struct_size = sizeof(storage), .name = "s", .bytes = (uint64_t)bytes,
                                       .is_given = is_given};
  assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &index), 0);
  return index;
}

static void op_add(lade_graph *graph, struct lade_graph_op op)
{
  op.struct_size = sizeof(op);
  op.name = "op";
  assert_int_equal(lade_graph_add_op(graph, &op, NULL, NULL), 0);
}

static lade_graph *graph_make(const struct stages *stages)
{
  lade_graph *graph;
  struct lade_operand_range made[STAGES_MAX][3]; /* input, output, more */
  assert_int_equal(lade_graph_create(&graph), 0);
  int input = storage_add(graph, 1, true);
  for (int i = 0; i < stages->n; i++) {
    made[i][0] = (struct lade_operand_range){.storage = input};
    made[i][1] = (struct lade_operand_range){.storage = storage_add(graph, stages->out[i], false)};
    made[i][2] = (struct lade_operand_range){.storage = storage_add(graph, stages->more[i], false)};
    op_add(graph, (struct lade_graph_op){.reads = &made[i][0], .n_reads = 1, .writes = &made[i][1], .n_writes = 2,
                                         .ns = stages->ns[i]});
    input = made[i][1].storage;
  }
  struct lade_operand_range gradient = {.storage = storage_add(graph, stages->out[stages->n - 1], false)};
  op_add(graph, (struct lade_graph_op){.reads = &made[stages->n - 1][1], .n_reads = 1, .writes = &gradient,
                                       .n_writes = 1, .ns = LOSS_NS, .is_once = true});
  for (int i = stages->n - 1; i >= 0; i--) {
    const struct lade_operand_range reads[] = {gradient, made[i][0], made[i][1], made[i][2]};
    gradient = (struct lade_operand_range){.storage = storage_add(graph, i ? stages->out[i - 1] : 1, false)};
    op_add(graph, (struct lade_graph_op){.reads = reads, .n_reads = 4, .writes = &gradient, .n_writes = 1,
                                         .ns = 2 * stages->ns[i], .is_once = true});
  }
  assert_int_equal(lade_graph_keep(graph, gradient.storage, NULL), 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  return graph;
}

static int min_units(const struct stages *stages)
{
  int m = 0;
  while (segment_walk(stages, 0, stages->n - 1, m) == NONE)
    m++;
  return m;
}

static void a_plan_of_a_chain_is_no_slower_than_the_best_persistent_one(void **state)
{
  int n_redone = 0;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    const struct stages stages = stages_draw(seed);
    lade_graph *graph = graph_make(&stages);
    const int min = min_units(&stages);
    for (int i = 0; i < BUDGETS; i++) {
      const int m = min + i * i;
      struct lade_graph_plan_params params = {.struct_size = sizeof(params), .budget_bytes = (uint64_t)m + 1,
                                              .iterations = 1};
      struct lade_graph_plan_info info = {.struct_size = sizeof(info)};
      lade_graph_plan *plan = NULL;
      int64_t sum_ns = LOSS_NS, best_ns = segment_walk(&stages, 0, stages.n - 1, m);
      for (int k = 0; k < stages.n; k++)
        sum_ns += 2 * stages.ns[k];
      assert_int_equal(lade_graph_plan_find(graph, &params, NULL, &info, &plan), 0);
      assert_true(info.compute_ns <= sum_ns + best_ns && info.bound_ns <= sum_ns + best_ns);
      n_redone += info.n_redone;
      lade_graph_plan_destroy(plan);
    }
    lade_graph_destroy(graph);
  }
  assert_true(n_redone > SEEDS);
}

/* Make a chain whose ops take @ns each and may all run again: LONG_STAGES stages, and as many backward ops. */
static lade_graph *long_chain_make(int64_t ns)
{
  lade_graph *graph;
  struct lade_operand_range values[LONG_STAGES + 1] = {{0}}, gradient = {0};
  assert_int_equal(lade_graph_create(&graph), 0);
  values[0].storage = storage_add(graph, 1, true);
  for (int i = 0; i < LONG_STAGES; i++) {
    values[i + 1].storage = storage_add(graph, 1, false);
    op_add(graph, (struct lade_graph_op){.reads = &values[i], .n_reads = 1, .writes = &values[i + 1], .n_writes = 1,
                                         .ns = ns});
  }
  for (int i = LONG_STAGES; i >= 0; i--) {
    const struct lade_operand_range reads[] = {values[i], gradient};
    gradient.storage = storage_add(graph, 1, false);
    op_add(graph, (struct lade_graph_op){.reads = reads, .n_reads = i < LONG_STAGES ? 2 : 1, .writes = &gradient,
                                         .n_writes = 1, .ns = ns});
  }
  assert_int_equal(lade_graph_keep(graph, gradient.storage, NULL), 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  return graph;
}

static void times_of_the_longest_step_do_not_overflow(void **state)
{
  const int64_t ns = LADE_GRAPH_NS_MAX / 512; /* a power of two, so that sums are exact as doubles */
  lade_graph *graph = long_chain_make(ns);
  const struct lade_graph_plan_params params = {.struct_size = sizeof(params), .budget_bytes = 5, .iterations = 3000};
  struct lade_graph_plan_info info = {.struct_size = sizeof(info)};
  lade_graph_plan *plan = NULL;
  assert_int_equal(lade_graph_plan_find(graph, &params, NULL, &info, &plan), 0);
  assert_int_equal(info.base_ns, (2 * LONG_STAGES + 1) * ns);
  assert_true(info.n_redone > 16 * 512); /* with 2^60 ns for all ops the sum of these would not fit 63 bits */
  assert_int_equal(info.compute_ns, info.base_ns + info.n_redone * ns);
  assert_int_equal(info.predicted_step_ns, info.compute_ns);
  lade_graph_plan_destroy(plan);
  lade_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_plan_of_a_chain_is_no_slower_than_the_best_persistent_one),
      cmocka_unit_test(times_of_the_longest_step_do_not_overflow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
