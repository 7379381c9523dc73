/* SPDX-License-Identifier: Apache-2.0 */
/* A step as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing. */
#ifndef LADE_TIMELINE_H
#define LADE_TIMELINE_H

#include "run/session.h"

/*
 * Write the training program as predicted and, if the session ran with spans, its last step as measured: two processes,
 * a thread for each queue. -ENOMEM, or errors of the file system.
 */
int timeline_write(const char *path, const struct lade_session_info *info, struct lade_error *error);

#endif
