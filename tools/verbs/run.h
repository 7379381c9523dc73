/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `lade run`: the memory that the processes of a command held, read from the records of their shims. */
#ifndef LADE_TOOLS_RUN_H
#define LADE_TOOLS_RUN_H

#include "base/base.h"
#include "preload/ledger.h"

struct run_report {
  LADE_ARRAY(struct lade_ledger_record) records; /* by process number */
  int n_unrecorded; /* processes that found no space for a record */
};

/*
 * Read every record in @directory. Files of another form are skipped, empty ones counted. -ENOMEM, or the error of
 * reading the directory.
 */
int run_report_read(const char *directory, struct run_report *report);
void run_report_finish(struct run_report *report);

/*
 * Print the report on stderr: the processes that asked for memory; of many, the largest ones and a line for the rest.
 * -ENOMEM, or 0.
 */
int run_report_print(const struct run_report *report);

/* The end of the command, and the requested limits. */
struct run_outcome {
  char *const *command;
  const char *budget, *driver; /* budget: NULL: none */
  int exit_code, signal;       /* signal: 0: it exited */
};

/* Write the report as a JSON file. */
int run_report_write(const struct run_report *report, const struct run_outcome *outcome, const char *path,
                     struct lade_error *error);

#endif
