/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decision: the part of one rank's search result that the other ranks of its stage need. They do not search: each
 * builds, places and proves its own program from it (lade_plan_follow).
 *
 * Any thread may call these functions; none blocks.
 */
#ifndef LADE_DECISION_H
#define LADE_DECISION_H

#include "recompute/plan.h"

struct lade_decision {
  struct lade_residency *residency;
  struct lade_plan_bounds bounds;
  struct lade_streaming streaming;    /* cut of streamed updates in the prices of the decision */
  uint64_t peak_bytes[LADE_N_SPACES]; /* of the plan leader's program: followers pack as tightly */
};

/*
 * Return one number over all inputs of @params' planner: ranks with equal numbers decide equally. Inputs that differ
 * between ranks of a stage are left out: its block, its rows.
 */
uint64_t lade_plan_params_key(const struct lade_plan_params *params);

/* Write @decision as bytes for another process; the caller frees them. -ENOMEM. */
int lade_decision_write(const struct lade_decision *decision, struct lade_error *error, void **ret_data,
                        uint64_t *ret_bytes);

/*
 * Read such bytes for a rank of @graph. -EINVAL: of another version, or of another graph; -EBADMSG: damaged; -ENOMEM.
 * Finish accepts a decision that is all 0.
 */
int lade_decision_read(const void *data, uint64_t bytes, const struct lade_model_graph *graph, struct lade_error *error,
                       struct lade_decision *ret_decision);
void lade_decision_finish(struct lade_decision *decision);

#endif
