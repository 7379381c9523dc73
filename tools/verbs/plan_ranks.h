/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of all ranks of a layout: the needs of each, the match of their programs' calls, and the time of a step of all
 * of them together.
 */
#ifndef LADE_TOOLS_PLAN_RANKS_H
#define LADE_TOOLS_PLAN_RANKS_H

#include <stdio.h>

#include "tools/cli/options.h"

/* One stage's plan, shared by all its tensor and data parallel ranks. */
struct stage_plan {
  lade_session *session;
  struct lade_session_info info; /* has no plan if the stage does not fit */
  struct lade_step_report step;  /* of a dry run */
  int64_t exposed_ns;            /* of a step: time that computing waits for communication, stage boundaries left out */
  int n_made;                    /* ranks whose own programs were built; 1 without --every-rank */
  struct lade_error refusal;
};

struct ranks_plan {
  struct stage_plan *stages;
  int n_stages;
  bool fits;        /* every rank fits; the following fields are set only then */
  int64_t step_ns;  /* of all stages together */
  double bubble;    /* of the worst stage: its wait for other stages, over its time alone */
  double exposed;   /* largest share of the step over stages */
};

/*
 * Plan for every rank, by its stage's first one; with --device dry each plan is executed. With --every-rank each rank's
 * own program is built, proved and executed too. -EINVAL if programs do not match or ranks of a stage differ, -EDEADLK
 * if stages wait for one another, and as lade_session_open; with a line. A rank that does not fit is a result, not an
 * error. Finish @ret_ranks in every case.
 */
int ranks_plan_make(struct options *options, struct ranks_plan *ret_ranks, struct lade_error *error);
/* Make the plan of the rank of --rank alone: one stage, without the figures of all ranks together. */
int rank_plan_make(struct options *options, struct ranks_plan *ret_ranks, struct lade_error *error);
void ranks_plan_finish(struct ranks_plan *ranks);

/*
 * Set the budget and bounds in @info, which are the first rank's, to the largest of any rank, as a run reports them.
 * A bound that a rank lacks, because it fits in no budget, is missing for the job too.
 */
void ranks_plan_max(const struct ranks_plan *ranks, struct lade_session_info *info);
/* Return the largest planned device peak of the ranks that have a plan. */
uint64_t ranks_plan_peak(const struct ranks_plan *ranks);

/* Print the members of groups, the ledger over all ranks, and their stages. */
void ranks_plan_print(const struct ranks_plan *ranks, FILE *file);
/* Print the step of all ranks together, if they fit. */
void ranks_step_print(const struct ranks_plan *ranks, FILE *file);

struct json_t;
/* Write the fields of @ranks into @object. */
void ranks_plan_set(struct json_t *object, const struct ranks_plan *ranks);

#endif
