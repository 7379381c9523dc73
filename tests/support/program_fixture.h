/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small programs for tests of planning: a two-layer model, a residency of a named manner, made-up prices, and the
 * program that the builder makes of them. Further, functions that change a program and keep its bookkeeping consistent,
 * so that a test can break one thing alone. Any failure fails the running cmocka test.
 */
#ifndef LADE_TESTS_PROGRAM_FIXTURE_H
#define LADE_TESTS_PROGRAM_FIXTURE_H

#include "base/base.h"
#include "lade/pack.h"
#include "program/build.h"

/* Where values wait. RECOMPUTE recomputes about half of the activations; MIXED draws for each tensor. */
enum program_fixture_manner {
  FIXTURE_KEEP,
  FIXTURE_RECOMPUTE,
  FIXTURE_HOST,
  FIXTURE_STORE,
  FIXTURE_SPILL_HOST, /* in every gap between two uses */
  FIXTURE_SPILL_STORE,
  FIXTURE_MIXED,
  FIXTURE_N_MANNERS
};

#define FIXTURE_MIXED_TIERS 3

struct program_fixture_setting {
  enum lade_family family;
  enum lade_dtype dtype, grad_dtype; /* the second: F32, or BF16 for rounded gradients */
  int n_microbatches, state_tiers; /* enum lade_tier of all parameters, or FIXTURE_MIXED_TIERS: drawn, separately for
                                      weights */
  bool has_resident_weights; /* else in the tier of their state */
  enum program_fixture_manner manner;
  bool is_unified, is_evaluation, optimizer_in_backward;
  uint64_t prefetch_bytes;
  uint32_t seed;
  float dropout;
  int dp; /* data parallel ranks, this one being the second; 0: one rank */
  int pp, stage, n_chunks; /* pipeline stages, this stage, and its chunks; 0: one stage */
  int tp;                  /* of each stage, this rank being the second, with scattered sends; 0: one rank */
  enum lade_schedule schedule;
  int zero, shard; /* as in the layout */
  bool is_narrow; /* gradients are summed in BF16 */
};

#define FIXTURE_N_SETTINGS 20
/* Every kind of instruction and residency occurs in one of these. */
extern const struct program_fixture_setting program_fixture_settings[FIXTURE_N_SETTINGS];

struct program_fixture {
  struct lade_model_graph *graph;
  struct lade_layout layout;
  struct lade_residency *residency;
  struct lade_prices prices;
  struct lade_packer *packer;
  struct lade_program *program;
};

/* Make the graph, layout, prices and residency of @setting, and its training program. Errors fail the test. */
void program_fixture_init(struct program_fixture *fixture, const struct program_fixture_setting *setting);
void program_fixture_finish(struct program_fixture *fixture);
/* Build another program of the same fixture, with the residents of @residents (may be NULL). The caller owns it. */
struct lade_program *program_fixture_build(const struct program_fixture *fixture,
                                           const struct program_fixture_setting *setting,
                                           const struct lade_program *residents);

/* Set the manner, tiers and prefetching of @how in @residency, which is fresh. */
void program_fixture_residency_set(struct lade_residency *residency, const struct lade_model_graph *graph,
                                   const struct program_fixture_setting *setting);

/* Return the layout that programs of @how are built for; NULL: one rank. */
static inline const struct lade_layout *program_fixture_layout(const struct program_fixture *fixture,
                                                               const struct program_fixture_setting *setting)
{
  return setting->dp || setting->pp ? &fixture->layout : NULL;
}

/* Make a small graph of a family, and prices of its ops that grow with their bytes; the caller frees both. */
struct lade_model_graph *program_fixture_graph(enum lade_family family, enum lade_dtype dtype, float dropout);
struct lade_prices program_fixture_prices(const struct lade_model_graph *graph);
void program_fixture_prices_finish(struct lade_prices *prices);

/* Return the next number of the sequence of *@seed, below @below. */
uint32_t program_fixture_draw(uint32_t *seed, uint32_t below);

/* Return a deep copy. */
struct lade_program *program_copy(const struct lade_program *program);
/*
 * Return a copy whose list is instructions @order[0..@n-1] of @program, some left out or repeated. Every buffer has an
 * address of its own, lifetimes run from first to last use, and waits are derived anew. Any error of the copy is
 * therefore an error of the list's order alone.
 */
struct lade_program *program_reorder(const struct lade_program *program, const int *order, int n);
/* Recompute live peaks and owners after a change. */
void program_restate(struct lade_program *program);

/* Check that the proof accepts @program without limits. */
void assert_proved(struct lade_program *program);
/* Check that the proof refuses @program, without limits, with a line that contains @fragment. */
void assert_caught(struct lade_program *program, const char *fragment);

#endif
