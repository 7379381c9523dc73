/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small programs for tests of planning: a two-layer model, a residency of a named manner, made-up prices, and what
 * the builder makes of them. Also ways to change a program and keep its bookkeeping straight, so that a test
 * can break one thing alone. Everything fails the running cmocka test when it cannot be done.
 */
#ifndef SCENE_H
#define SCENE_H

#include "base/base.h"
#include "lade/pack.h"
#include "plan/build.h"

/* Where values wait. RECOMPUTE makes about half of the activations again; MIXED draws for each tensor. */
enum scene_manner {
  SCENE_KEEP,
  SCENE_RECOMPUTE,
  SCENE_HOST,
  SCENE_STORE,
  SCENE_SPILL_HOST, /* in every gap between two uses */
  SCENE_SPILL_STORE,
  SCENE_MIXED,
  SCENE_N_MANNERS
};

#define SCENE_MIXED_HOMES 3

struct scene_setting {
  enum lade_family family;
  enum lade_dtype dtype, grad_dtype; /* the second: F32, or BF16 for gradients that are rounded */
  int n_microbatches, homes; /* enum lade_home of all parameters, or SCENE_MIXED_HOMES: drawn, weights' apart */
  bool has_resident_weights; /* else they are at home with their state */
  enum scene_manner manner;
  bool is_unified, is_evaluation, is_early;
  uint64_t prefetch_bytes;
  uint32_t seed;
  float dropout;
  int dp; /* data parallel ranks, of which this is the second; 0: one rank */
  int pp, stage, n_chunks; /* pipeline stages, this one, and its chunks; 0: one stage */
  enum lade_schedule schedule;
  int zero, shard; /* as in the layout */
  bool is_narrow; /* gradients are summed in BF16 */
};

#define SCENE_N_SETTINGS 18
/* Everything that programs consist of is in one of these. */
extern const struct scene_setting scene_settings[SCENE_N_SETTINGS];

struct scene {
  struct lade_graph *graph;
  struct lade_layout layout;
  struct lade_residency *residency;
  struct lade_prices prices;
  struct lade_packer *packer;
  struct lade_program *program;
};

void scene_init(struct scene *scene, const struct scene_setting *how);
void scene_finish(struct scene *scene);
/* Another program of the same scene, with the residents of @residents (may be NULL). The caller's. */
struct lade_program *scene_build(const struct scene *scene, const struct scene_setting *how,
                                 const struct lade_program *residents);

/* Give @residency, fresh, the manner, homes and prefetching of @how. */
void scene_residency_set(struct lade_residency *residency, const struct lade_graph *graph,
                         const struct scene_setting *how);

/* The layout that programs of @how are built for; NULL: one rank. */
static inline const struct lade_layout *scene_layout(const struct scene *scene, const struct scene_setting *how)
{
  return how->dp || how->pp ? &scene->layout : NULL;
}

struct lade_graph *scene_graph(enum lade_family family, enum lade_dtype dtype, float dropout);
struct lade_prices scene_prices(const struct lade_graph *graph);
void scene_prices_finish(struct lade_prices *prices);

/* A number below @below; the next of the sequence that *@seed stands in. */
uint32_t scene_draw(uint32_t *seed, uint32_t below);

/* A deep copy. */
struct lade_program *program_copy(const struct lade_program *program);
/*
 * A copy whose list is instructions @order[0..@n-1] of @program, some left out or repeated; every buffer has an
 * address of its own, lifetimes run from first to last use, and waits are derived anew. So what is wrong
 * with it is wrong with the list's order alone.
 */
struct lade_program *program_reorder(const struct lade_program *program, const int *order, int n);
/* State live peaks and owners as they are now. */
void program_restate(struct lade_program *program);

#endif
