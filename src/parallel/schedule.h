/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline schedules: the order in which a stage takes the halves of its microbatches, and its cost.
 *
 * A model's layers are cut into stages * chunks pieces. Piece c * stages + s is chunk c of stage s, so a microbatch
 * goes through the pieces in order, forward, and back. A stage's part of a step is a list of slots: forward, backward
 * or weights of one chunk and one microbatch. If the schedule splits the backward half, BACKWARD computes the gradients
 * that the previous stage waits for. WEIGHTS computes those of parameters, which no other stage needs. Otherwise
 * BACKWARD computes both. Every schedule takes the microbatches of a chunk in order in each half, so sums over
 * microbatches equal those of one rank.
 *
 *   GPIPE        all forward, then all backward (Huang et al. 2019, arXiv 1811.06965)
 *   1F1B         stages - 1 - s forward, then one forward and one backward alternately (PipeDream-flush: Narayanan et
 *                al. 2021, arXiv 2006.09503)
 *   INTERLEAVED  the same over chunks, stages microbatches of one chunk at a time (Narayanan et al. 2021, arXiv
 *                2104.04473)
 *   ZBH1         1F1B with separate weights; stage s computes them s microbatches later (Qi et al. 2023, arXiv
 *                2401.10241)
 *   ZBH2         2 (stages - 1 - s) forward to warm up, and weights 2 s microbatches later (the same paper)
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
  bool is_training; /* otherwise forward halves alone */
};

/* Return the pipeline of @layout (NULL: one stage) over @n_microbatches. */
struct lade_pipeline lade_pipeline_get(const struct lade_layout *layout, int n_microbatches, bool is_training);

/*
 * Check that @pipeline can be scheduled. -EINVAL with one line that lists valid sizes: INTERLEAVED takes microbatches
 * in groups of as many as there are stages.
 */
int lade_schedule_check(const struct lade_pipeline *pipeline, struct lade_error *error);

/* True if weights are separate slots. */
static inline bool lade_schedule_is_split(const struct lade_pipeline *pipeline)
{
  return (pipeline->schedule == LADE_SCHEDULE_ZBH1 || pipeline->schedule == LADE_SCHEDULE_ZBH2) &&
         pipeline->is_training;
}

/* Return the number of slots of each stage. */
int lade_schedule_length(const struct lade_pipeline *pipeline);

/* The place in a stage's list of slots: its next half of each direction, and the direction whose turn it is. */
struct lade_slot_cursor {
  int n_stages, n_chunks, n_halves; /* of the pipeline; halves of one direction */
  int n_warmup, lag;                /* forward halves left to warm up; lade_schedule_lag */
  bool is_training, is_split;
  enum lade_half turn;
  struct lade_half_cursor {
    int n;           /* halves taken */
    int group, at;   /* first microbatch of the group of n_stages that is under way; halves of its chunk taken */
    int chunk;       /* in order of the direction */
  } halves[3];       /* by enum lade_half */
};

/* Set @ret_cursor before the first slot of @stage, which lade_slot_next takes. @pipeline need not outlive the call. */
void lade_slot_cursor_init(const struct lade_pipeline *pipeline, int stage, struct lade_slot_cursor *ret_cursor);

/* Take the next slot of the list. False: the list has ended. O(1). */
bool lade_slot_next(struct lade_slot_cursor *cursor, struct lade_slot *ret_slot);

/* Write the slots of @stage in order; @ret_slots holds lade_schedule_length of them. */
void lade_schedule_order(const struct lade_pipeline *pipeline, int stage, struct lade_slot *ret_slots);

/*
 * Return the largest number of microbatches, summed over chunks, whose activations @stage holds at once: min(stages -
 * stage, n) under 1F1B. With split weights a microbatch counts until its weights are done: at most as many as on stage
 * 0.
 */
int lade_schedule_in_flight(const struct lade_pipeline *pipeline, int stage);

/* Return the microbatches after which @stage computes weights; 0 if they are no slots of their own. */
int lade_schedule_lag(const struct lade_pipeline *pipeline, int stage);

#define LADE_SCHEDULE_AHEAD_MAX 3

/*
 * Return the number of inputs that a stage holds at most: those received whose slots have not ended. With fewer, stages
 * that each send before they receive would wait for one another in a cycle. Under ZBH2, whose stages send far ahead,
 * they would wait without need.
 */
static inline int lade_schedule_n_ahead(const struct lade_pipeline *pipeline)
{
  if (pipeline->schedule == LADE_SCHEDULE_ZBH2)
    return LADE_SCHEDULE_AHEAD_MAX;
  return pipeline->schedule == LADE_SCHEDULE_INTERLEAVED ? 2 : 1;
}

/* ---- slots and transfers as one list (schedule_phases.c) ---- */

enum lade_phase { LADE_PHASE_RECV, LADE_PHASE_COMPUTE, LADE_PHASE_SEND };

/* Receive the input of a slot, compute the slot, or send its result. */
struct lade_slot_phase {
  int32_t slot;  /* of lade_schedule_order */
  uint8_t phase; /* enum lade_phase */
};

/* True if @slot of @stage has an input of another stage, or a result for one. */
bool lade_slot_has_input(const struct lade_pipeline *pipeline, int stage, const struct lade_slot *slot);
bool lade_slot_has_output(const struct lade_pipeline *pipeline, int stage, const struct lade_slot *slot);

/*
 * Make the list of @stage: its slots in order, each transfer with a place among them. The lists of all stages agree on
 * one order of all slots and transfers. So stages that run their lists one entry after another, and meet at transfers,
 * never wait for one another in a circle. A send follows its slot before the next slot. At most lade_schedule_n_ahead
 * inputs are held. The caller frees *ret_phases. -ENOMEM.
 */
int lade_schedule_phases(const struct lade_pipeline *pipeline, int stage, struct lade_slot_phase **ret_phases,
                         int *ret_n);

/* ---- time (schedule_time.c) ---- */

/* Nanoseconds of the halves of one piece; if weights are no slots of their own, backward_ns includes theirs. */
struct lade_piece_time {
  double forward_ns, backward_ns, weights_ns;
};

struct lade_schedule_times {
  double span_ns;         /* from the first slot of any stage to the last */
  double stage_span_ns;   /* the longest from a stage's own first slot to its last: the period of steps if stages need
                             not wait for one another between steps, as Qi et al. count */
  double busy_ns;         /* of the stage with the most work */
};

/*
 * Compute the time of @pipeline from the halves of its pieces (piece c * stages + s) and of a transfer between stages.
 * A transfer takes @boundary_ns after its half and occupies no stage. O(slots), of a number of microbatches that does
 * not grow with the batch: schedule_time.c says when the time is exact. pre: the pipeline is_training. -EDEADLK if
 * stages wait for one another in a circle; -ENOMEM. Any thread.
 */
int lade_schedule_time(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces, double boundary_ns,
                       struct lade_schedule_times *ret_times);

/*
 * Compute the work of the busiest stage, and lower bounds of the spans: O(pieces). A stage begins after one forward
 * half of the pieces before its first one. After its last backward half the backward halves of the same pieces remain,
 * and one split half of weights on the first stage. In between it does all its work, or, of split halves, those of
 * weights after its last backward half. pre: as above.
 */
void lade_schedule_time_bound(const struct lade_pipeline *pipeline, const struct lade_piece_time *pieces,
                              double boundary_ns, struct lade_schedule_times *ret_times);

#endif
