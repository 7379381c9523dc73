/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interval follows from the last save alone. The cost of a save changes slowly, and a mean would include for hours
 * the slow first save into a cold page cache. With async saves C is the time of the copy plus the wait for the save
 * before. An interval shorter than a save's writing raises C, and C raises the interval.
 */
#include "tools/job/save_interval.h"

#include <math.h>

bool save_interval_is_due(const struct save_interval *interval, int64_t step, int64_t now_ns)
{
  if (interval->every != SAVE_INTERVAL_AUTO)
    return interval->every > 0 && step % interval->every == 0;
  return interval->saved_ns == 0 || (double)(now_ns - interval->saved_ns) * 1e-9 >= interval->interval_seconds;
}

void save_interval_measure(struct save_interval *interval, int64_t begin_ns, int64_t end_ns)
{
  interval->saved_ns = end_ns;
  interval->save_seconds = (double)(end_ns - begin_ns) * 1e-9;
  interval->interval_seconds = sqrt(2 * interval->save_seconds * interval->failure_seconds);
}
