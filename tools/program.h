/* SPDX-License-Identifier: Apache-2.0 */
/* Other programs, as a shell would find them. */
#ifndef LADE_TOOLS_PROGRAM_H
#define LADE_TOOLS_PROGRAM_H

#include <stdbool.h>

#include <sys/types.h>

struct lade_error;

/* Whether @program, as a path or on PATH, can be executed. */
bool program_exists(const char *program);

/* How a command is started beside this program. */
struct program_params {
  char *const *command;        /* ends with NULL */
  int end_signal;              /* that it gets when this program dies */
  int (*prepare)(void *user);  /* in the new process: its environment; a negative errno gives up. NULL: nothing */
  void *user;
};

/*
 * Start @params->command with the signals as this program got them, and pass on to it what processes send here
 * (signals.h) from now on. *ret_child is to be waited for. A negative errno and its line.
 */
int program_start(const struct program_params *params, struct lade_error *error, pid_t *ret_child);

/* Wait for its end, after which nothing is passed on to it; *ret_state is as waitpid has it. */
int program_wait(pid_t child, struct lade_error *error, int *ret_state);

#endif
