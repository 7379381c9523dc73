/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interval of saves: a number of steps, or the time that minimizes the cost of saves and failures together.
 *
 * A save every t seconds costs the share C/t, where C is the seconds for which it holds up steps. A failure every M
 * seconds loses half an interval on average, the share t/(2M). The sum is least at t = sqrt(2 C M): Young 1974, "A
 * first order approximation to the optimum checkpoint interval"; Daly 2006, "A higher order estimate of the optimum
 * checkpoint interval for restart dumps". Daly's corrections vanish if C is far below M.
 */
#ifndef LADE_SAVE_INTERVAL_H
#define LADE_SAVE_INTERVAL_H

#include <stdbool.h>
#include <stdint.h>

#define SAVE_INTERVAL_AUTO (-1) /* in place of a number of steps: the interval of least cost */

struct save_interval {
  int64_t every;           /* steps between saves; 0: never; or SAVE_INTERVAL_AUTO */
  double failure_seconds;  /* mean time between two failures of the job; 0: unknown */
  double save_seconds;     /* for which the last save held up steps; 0: no save yet */
  double interval_seconds; /* the optimum of the two above; 0: unknown */
  int64_t saved_ns;        /* when the last save stopped holding up steps */
};

/*
 * True if a save is due after @step, at @now_ns. SAVE_INTERVAL_AUTO saves after the first step, to measure a save, and
 * by time from then on.
 */
bool save_interval_is_due(const struct save_interval *interval, int64_t step, int64_t now_ns);

/* Record that a save held up steps from @begin_ns to @end_ns. */
void save_interval_measure(struct save_interval *interval, int64_t begin_ns, int64_t end_ns);

#endif
