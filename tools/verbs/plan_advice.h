/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice: changes of a planned run that make it fit, or faster. Each change was planned, so its figures are those that
 * `lade plan` prints when the change is made.
 */
#ifndef LADE_TOOLS_PLAN_ADVICE_H
#define LADE_TOOLS_PLAN_ADVICE_H

#include <stdio.h>

#include "tools/verbs/plan_ranks.h"

#define ADVICE_MAX 3           /* lines of a screen */
#define ADVICE_CHANGE_BYTES 80 /* of the words of a change */

struct advice_item {
  char change[ADVICE_CHANGE_BYTES]; /* words for the command line: "--moments 8bit" */
  int n_more_ranks;                 /* devices that it takes beside those of the plan */
  bool has_drive;                   /* it takes a drive */
  bool fits;
  uint64_t min_bytes;               /* smallest budget; UINT64_MAX: none was found */
  int64_t step_ns;                  /* of all ranks; set if it fits */
};

struct advice {
  struct advice_item items[ADVICE_MAX];
  int n;
};

/* Return the processor time of this process. */
int64_t advice_clock(void);

/*
 * Plan changes of @options, whose plan is @ranks and took @took_ns, and keep the cheapest ones that help. A change
 * helps if it fits where @ranks do not, or if its step is shorter. If none fits, keep those with the smallest budgets.
 * A plan that keeps everything needs no advice. An invalid change, or one without memory to plan it, is skipped.
 * Blocks, for about @took_ns of advice_clock, or a second.
 */
void advice_make(const struct options *options, const struct ranks_plan *ranks, int64_t took_ns,
                 struct advice *ret_advice);

void advice_print(const struct advice *advice, FILE *file);

struct json_t;
struct json_t *advice_json(const struct advice *advice);

#endif
