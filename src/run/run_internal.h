/* SPDX-License-Identifier: Apache-2.0 */
/* Between the public interface and sessions: what planning and training share (run.c). */
#ifndef LADE_RUN_INTERNAL_H
#define LADE_RUN_INTERNAL_H

#include "run/session.h"

/*
 * A session's parameters from a run's, with a session's defaults for the rest; @run may be NULL. -EINVAL for a
 * value that is none. Strings stay the caller's.
 */
int lade_run_session_params(const struct lade_run_params *run, struct lade_session_params *ret_params,
                            struct lade_error *error);

/* Fill the caller's report from what a session says about its plan. -EINVAL when struct_size is not set. */
int lade_run_report(const struct lade_session_info *info, struct lade_plan_report *ret_report,
                    struct lade_error *error);

#endif
