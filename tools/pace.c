/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interval follows the last save alone: what a save costs changes slowly, and a mean would carry a first one,
 * into a cold page cache, for hours. Where saves are written beside steps C is the copy and what is left to wait for
 * the save before; an interval shorter than a save takes so raises C, and with it the interval.
 */
#include "tools/pace.h"

#include <math.h>

bool pace_is_due(const struct pace *pace, int64_t step, int64_t now_ns)
{
  if (pace->every != PACE_AUTO)
    return pace->every > 0 && step % pace->every == 0;
  return pace->saved_ns == 0 || (double)(now_ns - pace->saved_ns) * 1e-9 >= pace->interval_seconds;
}

void pace_measure(struct pace *pace, int64_t begin_ns, int64_t end_ns)
{
  pace->saved_ns = end_ns;
  pace->save_seconds = (double)(end_ns - begin_ns) * 1e-9;
  pace->interval_seconds = sqrt(2 * pace->save_seconds * pace->failure_seconds);
}
