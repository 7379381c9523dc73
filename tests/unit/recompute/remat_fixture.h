/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules of recompute of drawn graphs, for tests of schedules and of their changes. */
#ifndef LADE_TEST_REMAT_FIXTURE_H
#define LADE_TEST_REMAT_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>

#include "base/base.h"
#include "recompute/graph/schedule.h"
#include "tests/support/graph/random_graph.h"

enum { GRAPHS = 200 };

/* A schedule of a drawn graph, and the objects that it borrows. */
struct bench_schedule {
  lade_graph *graph;
  struct remat_problem problem;
  struct remat_schedule schedule;
  struct random_draw draw;
  bool has_sources; /* made values may wait on tiers */
  bool may_leave_bytes; /* the caller settles after changes */
};

static inline void bench_open(struct bench_schedule *bench, uint64_t seed)
{
  const struct random_graph_params params = {.seed = seed, .n_layers = 2 + (int)(seed % 19), .is_soup = seed % 3 == 0,
                                             .is_written_once = seed % 4 == 1, .has_tiers = seed % 7 == 5};
  const enum lade_space tier = seed % 3 == 1 ? LADE_HOST : LADE_DEVICE;
  *bench = (struct bench_schedule){.graph = random_graph_make(&params), .draw = {seed + 1000},
                                  .has_sources = seed % 2};
  assert_int_equal(remat_problem_init(&bench->problem, bench->graph, tier), 0);
  assert_int_equal(remat_schedule_init(&bench->schedule, &bench->problem, UINT64_MAX, NULL, 0), 0);
  int64_t peak_bytes;
  turn_bytes_peak(&bench->schedule.bytes, &peak_bytes);
  turn_bytes_limit(&bench->schedule.bytes, peak_bytes * (30 + random_draw_below(&bench->draw, 70)) / 100);
}

static inline void bench_close(struct bench_schedule *bench)
{
  remat_schedule_finish(&bench->schedule);
  remat_problem_finish(&bench->problem);
  lade_graph_destroy(bench->graph);
}

#endif
