/* SPDX-License-Identifier: Apache-2.0 */
/* Child programs, found as a shell finds them. */
#ifndef LADE_SUBPROCESS_H
#define LADE_SUBPROCESS_H

#include <stdbool.h>

#include <sys/types.h>

struct lade_error;

/* True if @program, a path or a name on PATH, can be executed. */
bool subprocess_exists(const char *program);

/* The command to start, and how. */
struct subprocess_params {
  char *const *command;        /* ends with NULL */
  int end_signal;              /* sent to the command when this program dies */
  int (*prepare)(void *user);  /* runs in the new process; a negative errno gives up. NULL: none */
  void *user;
};

/*
 * Start @params->command with the signal dispositions that this program was started with. Signals of other processes
 * are passed on to it from now on (signals.h). The caller waits for *ret_child. A negative errno and its line.
 */
int subprocess_start(const struct subprocess_params *params, struct lade_error *error, pid_t *ret_child);

/* Wait until @child has ended; signals are no longer passed on to it then. *ret_state: the state of waitpid. */
int subprocess_wait(pid_t child, struct lade_error *error, int *ret_state);

#endif
