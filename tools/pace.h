/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often to save: every so many steps, or as often as loses least time to saves and failures together.
 *
 * A save every t seconds costs the share C/t, C being the seconds for which it holds up steps; a failure every M
 * seconds loses half an interval on average, the share t/(2M). The sum is least at t = sqrt(2 C M): Young 1974, "A
 * first order approximation to the optimum checkpoint interval"; Daly 2006, "A higher order estimate of the optimum
 * checkpoint interval for restart dumps", whose corrections vanish where C is far below M.
 */
#ifndef LADE_PACE_H
#define LADE_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define PACE_AUTO (-1) /* for a number of steps: as often as loses least */

struct pace {
  int64_t every;           /* steps; 0: never; or PACE_AUTO */
  double failure_seconds;  /* between two failures of the job, on average; 0: not known */
  double save_seconds;     /* for which the last save held up steps; 0: there was none */
  double interval_seconds; /* that the two make best; 0: not known */
  int64_t saved_ns;        /* when the last save had let go of the steps */
};

/* Is a save due after @step, at @now_ns? With PACE_AUTO the first step's, whose save is measured, and by time then. */
bool pace_is_due(const struct pace *pace, int64_t step, int64_t now_ns);

/* A save has held up steps from @begin_ns to @end_ns. */
void pace_measure(struct pace *pace, int64_t begin_ns, int64_t end_ns);

#endif
