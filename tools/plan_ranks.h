/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of all ranks of a layout, side by side: what each needs, whether their programs meet, and what a step of all of
 * them together takes.
 */
#ifndef LADE_TOOLS_PLAN_RANKS_H
#define LADE_TOOLS_PLAN_RANKS_H

#include <stdio.h>

#include "tools/options.h"

/* One stage's plan, which is that of all its tensor and data parallel ranks. */
struct stage_plan {
  lade_session *session;
  struct lade_session_info info; /* without a plan: it does not fit */
  struct lade_step_report step;  /* of a dry run */
  int64_t exposed_ns;            /* of a step: computing stands still for communication, borders left out */
  int n_made;                    /* ranks whose own programs were built; 1 unless every rank's are */
  struct lade_error refusal;
};

struct ranks_plan {
  struct stage_plan *stages;
  int n_stages;
  bool fits;        /* every rank; what stands below is known only then */
  int64_t step_ns;  /* of all stages together */
  double bubble;    /* of the stage that is worst off: what it waits for others, over what it would take alone */
  double exposed;   /* part of the step, of the stage that has most */
};

/*
 * Plan for every rank, by its stage's first one; with --device dry each plan is executed. With --every-rank each rank's
 * own program is built, proved and so executed. -EINVAL when programs do not meet, or ranks of a stage are not alike;
 * -EDEADLK when stages wait for one another, and as lade_session_open; with a line. A rank that does not fit is no
 * failure, but an answer. Finish @ret_ranks either way.
 */
int ranks_plan_make(struct options *options, struct ranks_plan *ret_ranks, struct lade_error *error);
/* The same for options' rank alone: one stage, of which nothing is known together with others. */
int rank_plan_make(struct options *options, struct ranks_plan *ret_ranks, struct lade_error *error);
void ranks_plan_finish(struct ranks_plan *ranks);

/*
 * For the job the budget and bounds are the most of any rank's, as its run reports them: into @info, which has the
 * first's. Where a rank has none, as it fits in no budget, there is none.
 */
void ranks_plan_most(const struct ranks_plan *ranks, struct lade_session_info *info);
/* The largest planned peak of its device, of the ranks that have a plan. */
uint64_t ranks_plan_peak(const struct ranks_plan *ranks);

/* Members of groups, the ledger over all ranks, their stages, and the step. */
void ranks_plan_print(const struct ranks_plan *ranks, FILE *file);

struct json_t;
/* The same into @object. */
void ranks_plan_set(struct json_t *object, const struct ranks_plan *ranks);

#endif
