/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of a run on stderr: on a terminal one line that is rewritten, elsewhere a plain line every ten seconds. */
#ifndef LADE_PROGRESS_H
#define LADE_PROGRESS_H

#include "run/session.h"

struct progress {
  bool is_quiet, is_terminal, has_line; /* has_line: this run's progress line is the terminal's last */
  int64_t start_ns, shown_ns, first_step, n_steps;
  double smooth_ns; /* of a step, for the displayed rate */
};

void progress_init(struct progress *progress, bool is_quiet, int64_t first_step, int64_t n_steps);

/* Report a step. @info is the session's after it. */
void progress_step(struct progress *progress, const struct lade_session_info *info,
                   const struct lade_step_report *report);

/* Print a separate line, in printf's manner, unless the run is quiet. */
void progress_say(struct progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Print the current work, in printf's manner: rewritten on a terminal, elsewhere a line every ten seconds, after 2 s.
 */
void progress_note(struct progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Remove the line, because the following output repeats its content. */
void progress_clear(struct progress *progress);

/* Move the terminal to a fresh line. */
void progress_finish(struct progress *progress);

#endif
