/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a person sees of a run while it runs, on stderr: one line that is written over on a terminal, a plain line
 * every ten seconds elsewhere.
 */
#ifndef LADE_PROGRESS_H
#define LADE_PROGRESS_H

#include "run/session.h"

struct progress {
  bool is_quiet, is_terminal, has_line; /* has_line: the terminal's last line is ours */
  int64_t start_ns, shown_ns, first_step, n_steps;
  double smooth_ns; /* of a step, for the rate that is shown */
};

void progress_init(struct progress *progress, bool is_quiet, int64_t first_step, int64_t n_steps);

/* After each step. @info as it is after it. */
void progress_step(struct progress *progress, const struct lade_session_info *info,
                   const struct lade_step_report *report);

/* A line of its own, in printf's manner; shown unless the run is quiet. */
void progress_say(struct progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * What is being done, in printf's manner: written over on a terminal; elsewhere a line every ten seconds, once 2 s are
 * over.
 */
void progress_note(struct progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Take the line away again: what follows says it all. */
void progress_clear(struct progress *progress);

/* Leave the terminal on a fresh line. */
void progress_finish(struct progress *progress);

#endif
