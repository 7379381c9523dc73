/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decision: what the search for one rank of a stage has come to, as far as its other ranks need it. They search
 * nothing, and build, place and prove a program of their own from it (lade_plan_follow).
 *
 * All functions are for any thread; nothing blocks.
 */
#ifndef LADE_DECISION_H
#define LADE_DECISION_H

#include "plan/plan.h"

struct lade_decision {
  struct lade_residency *residency;
  struct lade_plan_bounds bounds;
  struct lade_streaming streaming;    /* of the prices that it was made with */
  uint64_t peak_bytes[LADE_N_SPACES]; /* of the program that was decided for: others are packed as tightly */
};

/*
 * What @params' planner goes by, as one number: where two ranks have the same they decide the same. What is one rank's
 * own within its stage is not in it: whose block it has, or which rows.
 */
uint64_t lade_plan_params_key(const struct lade_plan_params *params);

/* @decision as bytes that another process reads, which the caller frees. -ENOMEM. */
int lade_decision_write(const struct lade_decision *decision, struct lade_error *error, void **ret_data,
                        uint64_t *ret_bytes);

/*
 * Such bytes, for a rank of @graph. -EINVAL: another version's, or of another graph; -EBADMSG: not what was written;
 * -ENOMEM. Finish takes one that is all 0.
 */
int lade_decision_read(const void *data, uint64_t bytes, const struct lade_graph *graph, struct lade_error *error,
                       struct lade_decision *ret_decision);
void lade_decision_finish(struct lade_decision *decision);

#endif
