/* SPDX-License-Identifier: Apache-2.0 */
/* How long a schedule takes, worked out without programs: what simulations of them are held against. */
#ifndef LADE_TEST_SCHEDULE_WALK_H
#define LADE_TEST_SCHEDULE_WALK_H

#include "parallel/schedule.h"

/* What one microbatch takes in one piece. Where weights are not split off, its backward half is both together. */
struct piece_ns {
  double forward, backward, weights;
};

struct schedule_time {
  double span_ns; /* from the first slot's start to the last one's end, over all stages */
  double bubble;  /* of the stage that is worst off, its idle time in the span over its busy time */
};

/*
 * How long does a step take, if every slot starts as soon as its stage is free and what it waits for has come?
 * @pieces has a price for each piece; @link_ns is what a border takes. -ENOMEM.
 */
int schedule_walk(const struct lade_pipeline *pipeline, const struct piece_ns *pieces, double link_ns,
                  struct schedule_time *ret_time);

#endif
