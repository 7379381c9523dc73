/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dry step of one stage of a layout: the executor walks the stage's proved programs over a dry device.
 */
#ifndef LADE_DRY_STAGE_H
#define LADE_DRY_STAGE_H

#include "recompute/layout_cost.h"

struct lade_dry_stage {
  uint64_t peak_bytes; /* measured by the dry device: chunks that were mapped */
  int64_t step_ns;     /* of its clock, over the program's microbatches */
};

/*
 * Execute one step of @build, made for a run, with the links of @job's cluster. Errors as lade_executor_create's and
 * lade_executor_step's; -EBADMSG, with a line, if the device's peak is not the planned one. Any thread; no memory of
 * the plan is taken.
 */
int lade_dry_stage_run(const struct lade_layout_job *job, const struct lade_stage_build *build,
                       struct lade_error *error, struct lade_dry_stage *ret_dry);

#endif
