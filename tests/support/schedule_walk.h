/* SPDX-License-Identifier: Apache-2.0 */
/* The duration of a schedule, computed without programs, as a reference for simulations of programs. */
#ifndef LADE_TEST_SCHEDULE_WALK_H
#define LADE_TEST_SCHEDULE_WALK_H

#include "parallel/schedule.h"

/* Times of one microbatch in one piece. If weights are not split off, its backward half is both together. */
struct piece_ns {
  double forward, backward, weights;
};

struct schedule_time {
  double span_ns; /* from the first slot's start to the last one's end, over all stages */
  double bubble;  /* of the worst stage: its idle time in the span over its busy time */
};

/*
 * Compute the time of a step in which every slot starts as soon as its stage is free and its input has come. @pieces
 * has a price for each piece; @link_ns is the time of a stage boundary. -ENOMEM.
 */
int schedule_walk(const struct lade_pipeline *pipeline, const struct piece_ns *pieces, double link_ns,
                  struct schedule_time *ret_time);

#endif
