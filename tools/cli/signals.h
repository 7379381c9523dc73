/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT, SIGTERM and SIGHUP. The first asks the run to end after its step; the second ends the process at once, except
 * for SIGHUP. A SIGHUP that is ignored at the process's start stays ignored. A process that only waits for a child
 * command passes its signals on to that child.
 */
#ifndef LADE_SIGNALS_H
#define LADE_SIGNALS_H

#include <signal.h>
#include <sys/types.h>

/* Install the handlers. Interrupted system calls are restarted. */
void signals_init(void);

/* Register a word that the first signal sets too. @word must stay valid. */
void signals_mark(volatile sig_atomic_t *word);

/* Return the first signal received, or 0. With a child command only SIGINT, SIGTERM, SIGHUP and SIGQUIT count. */
int signals_get(void);

/* Set the child that gets the signals; 0: none. */
void signals_forward(pid_t child);

/* Block the signals to be passed on until the child is known; @ret_mask: the former mask. */
void signals_hold(sigset_t *ret_mask);

/* Pass signals of other processes on to @child from now on. Ignored signals stay ignored. */
void signals_pass(pid_t child, const sigset_t *mask);

/* The request that a signal makes. */
enum signals_request {
  SIGNALS_OTHER,  /* a signal that does not ask for the end */
  SIGNALS_END,    /* the first signal that asks for the end */
  SIGNALS_END_NOW /* another such signal at least half a second later; earlier ones repeat the first request */
};

/* Handle a signal inside its handler: only kill(2) and reading memory are allowed. @child is 0 if there is none. */
typedef void signals_handler_fn(void *user, pid_t child, int signal_number, enum signals_request request);

/*
 * Call @handler for signals, from the next signals_pass on, instead of passing them to the child, which has its own
 * process group. This includes the terminal's signals and job control: this process stops after @handler has returned.
 */
void signals_handler_set(signals_handler_fn *handler, void *user);

/* End this process by the signal that ended the child. Does not return. */
void signals_end(int signal_number) __attribute__((noreturn));

#endif
