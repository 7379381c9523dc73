/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memoised analysis of a residency's memory peak, of its program just in time: the data that decides the next change.
 * Trajectories share residencies, so each is analysed once.
 *
 * For one thread at a time; nothing blocks.
 */
#ifndef LADE_PEAK_ANALYSIS_H
#define LADE_PEAK_ANALYSIS_H

#include "recompute/plan.h"

/* A value that is on the device when the most bytes are live there, and is not used then, or is optional. */
struct idle_value {
  int32_t tensor; /* a value's number; the gradient's for its rounded form and its block */
  bool is_in_saved_gap;
  uint64_t bytes; /* of all its microbatches and buffers */
};

struct peak {
  uint64_t key[2];                    /* digest of its residency; two residencies collide once in 2^128 */
  uint64_t live_bytes[LADE_N_SPACES]; /* at the peak of each space */
  int64_t bound_ns;                   /* no schedule of the program's instructions is faster */
  struct lade_queue_times queue_times;
  struct idle_value *idle; /* one for each value that has idle bytes */
  int n_idle;
};

struct peak_analysis {
  const struct lade_plan_params *params;
  const lade_pricer *pricer;
  LADE_ARRAY(struct peak) items;
  int32_t *table; /* hash table of items by key: n_table places, a power of two, at least half of them free (-1) */
  int n_table;
  uint64_t *held_bytes;         /* by value's number, as in lade_build_params */
  struct lade_program *program; /* scratch: of the latest new residency */
  struct resident_view *views; /* scratch, by buffer */
  struct idle_value *idle;     /* scratch, by value's number: all 0 between two analyses */
  int32_t *noted;              /* scratch: values with idle bytes */
  int n_noted;
};

/* Start a cache for @params' prices; @params and @pricer are borrowed. -ENOMEM. Finish accepts one that is all 0. */
int peak_analysis_init(struct peak_analysis *analysis, const struct lade_plan_params *params,
                       const lade_pricer *pricer);
void peak_analysis_finish(struct peak_analysis *analysis);

/* Analyse @residency, just in time; valid until the next call. @ret_number identifies the result. -ENOMEM. */
int peak_analysis_get(struct peak_analysis *analysis, const struct lade_residency *residency,
                      const struct peak **ret_peak, int32_t *ret_number);

/* Return the parameters that build the training program under @residency; the caller sets the packer. */
struct lade_build_params descent_build_params(const struct lade_plan_params *params,
                                              const struct lade_residency *residency);

#endif
