/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `lade run`: what the processes of a command held, read from the records that their shims left. */
#ifndef LADE_TOOLS_RUN_H
#define LADE_TOOLS_RUN_H

#include "alloc/ledger.h"
#include "base/base.h"

struct run_report {
  LADE_ARRAY(struct lade_ledger_record) records; /* by process number */
  int n_unrecorded; /* processes that had no room for one */
};

/*
 * Read every record in @directory. Files that are none are passed over, and empty ones counted. -ENOMEM, or why the
 * directory is unreadable.
 */
int run_report_read(const char *directory, struct run_report *report);
void run_report_finish(struct run_report *report);

/*
 * For a person, on stderr: the processes that asked for memory, of many those that held most, and the others in a line.
 * -ENOMEM, or 0.
 */
int run_report_print(const struct run_report *report);

/* How the command ended, and what was asked of it. */
struct run_outcome {
  char *const *command;
  const char *budget, *driver; /* budget: NULL for none */
  int exit_code, signal;       /* signal: 0 when it exited */
};

/* For a script, as a JSON file. */
int run_report_write(const struct run_report *report, const struct run_outcome *outcome, const char *path,
                     struct lade_error *error);

#endif
