/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of planning and training (plan_api.c, trainer_api.c), between the public interface and sessions. */
#ifndef LADE_RUN_INTERNAL_H
#define LADE_RUN_INTERNAL_H

#include "run/session.h"

/*
 * Make a session's parameters from a run's, with a session's defaults for the rest; @run may be NULL. -EINVAL for an
 * invalid value. Strings stay the caller's.
 */
int lade_run_session_params(const struct lade_run_params *run, struct lade_session_params *ret_params,
                            struct lade_error *error);

/*
 * Write @text with the parameters of lade_run_params and lade_trainer_params in place of the command's options that set
 * them, cut to @words_bytes.
 */
void lade_api_words(const char *text, char *ret_words, size_t words_bytes);

/* Rewrite the line of @error (may be NULL) so if @status is not 0. Return @status. */
int lade_api_error(int status, struct lade_error *error);

/* Fill the caller's report from a session's facts about its plan. -EINVAL when struct_size is not set. */
int lade_run_report(const struct lade_session_info *info, struct lade_plan_report *ret_report,
                    struct lade_error *error);

#endif
