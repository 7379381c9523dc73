/* SPDX-License-Identifier: Apache-2.0 */
/* A training step as one self-contained page: its memory by owner, the holders at the peak, its queues. */
#ifndef LADE_RUN_PAGE_H
#define LADE_RUN_PAGE_H

#include "run/session.h"

/*
 * Write the training program of @info to @path, replacing it: device memory over the instructions, stacked by owner;
 * the largest buffers at the peak; each queue as predicted and, if the session ran, as measured in its last step. The
 * page is HTML that is also XML, without scripts and external references. -ENOMEM, or errors of writing.
 */
int run_page_write(const char *path, const struct lade_session_info *info, struct lade_error *error);

#endif
