/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline schedules: in which order a stage takes the halves of its microbatches, and what that costs.
 *
 * A model's layers are cut into stages * chunks pieces; piece c * stages + s is chunk c of stage s, so a microbatch
 * goes through the pieces in their order, forward, and back. A stage's part of a step is a list of slots: forward,
 * backward or weights of one chunk and one microbatch. Where the schedule splits the backward half, BACKWARD makes
 * the gradients that the stage before waits for and WEIGHTS those of parameters, which nobody waits for; elsewhere
 * BACKWARD is both. Every schedule takes the microbatches of a chunk in their order in each half, so sums over
 * microbatches are those of one rank.
 *
 *   GPIPE        all forward, then all backward (Huang et al. 2019, arXiv 1811.06965)
 *   1F1B         stages - 1 - s forward, then one forward and one backward in turns (PipeDream-flush: Narayanan et al.
 *                2021, arXiv 2006.09503)
 *   INTERLEAVED  the same over chunks, stages microbatches of one chunk at a time (Narayanan et al. 2021, arXiv
 *                2104.04473)
 *   ZBH1         1F1B with weights split off; stage s is s microbatches late with them (Qi et al. 2023, arXiv
 *                2401.10241)
 *
 * Plain values; any thread; nothing blocks.
 */
#ifndef LADE_SCHEDULE_H
#define LADE_SCHEDULE_H

#include "parallel/layout.h"

enum lade_half { LADE_HALF_FORWARD, LADE_HALF_BACKWARD, LADE_HALF_WEIGHTS };

struct lade_slot {
  int32_t microbatch;
  int16_t chunk;
  uint8_t half; /* enum lade_half */
};

struct lade_pipeline {
  enum lade_schedule schedule;
  int n_stages, n_chunks, n_microbatches;
  bool is_training; /* else forward halves alone */
};

/* The pipeline of @layout (NULL: one stage) over @n_microbatches. */
struct lade_pipeline lade_pipeline_get(const struct lade_layout *layout, int n_microbatches, bool is_training);

/*
 * Can this be scheduled? -EINVAL with one line that lists what would do: INTERLEAVED takes microbatches in groups of as
 * many as there are stages.
 */
int lade_schedule_check(const struct lade_pipeline *pipeline, struct lade_error *error);

/* Whether weights are slots of their own. */
static inline bool lade_schedule_is_split(const struct lade_pipeline *pipeline)
{
  return pipeline->schedule == LADE_SCHEDULE_ZBH1 && pipeline->is_training;
}

/* How many slots each stage has. */
int lade_schedule_length(const struct lade_pipeline *pipeline);

/* Fill the slots of @stage, in their order; @ret_slots has room for all. */
void lade_schedule_order(const struct lade_pipeline *pipeline, int stage, struct lade_slot *ret_slots);

/*
 * The most microbatches, summed over chunks, of which @stage holds activations at once: min(stages - stage, n) under
 * 1F1B. With split weights those count whose weights are still to come: at most as many as on stage 0.
 */
int lade_schedule_in_flight(const struct lade_pipeline *pipeline, int stage);

/*
 * How many inputs a stage takes ahead: while it computes a slot and sends what that made, it is ready for those
 * of the next so many slots that need one. With less, stages that each send before they take would wait for one another
 * in a circle; with this, none does, in whatever memory the borders lie.
 */
static inline int lade_schedule_n_ahead(const struct lade_pipeline *pipeline)
{
  return pipeline->schedule == LADE_SCHEDULE_INTERLEAVED ? 2 : 1;
}

#endif
