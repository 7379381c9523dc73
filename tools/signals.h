/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT and SIGTERM: the first asks the run to end after its step, the second ends the process at once. And the
 * signals of a process that only stands beside a command: they are the command's.
 */
#ifndef LADE_SIGNALS_H
#define LADE_SIGNALS_H

#include <signal.h>
#include <sys/types.h>

/* Begin to listen. System calls that are interrupted start again. */
void signals_init(void);

/* Where the first signal is to be written too; @word stays. */
void signals_mark(volatile sig_atomic_t *word);

/* The first signal that came, or 0; beside a command, of those that mean an end: SIGINT, SIGTERM, SIGHUP, SIGQUIT. */
int signals_get(void);

/* A child that the signals are handed on to; 0: none any more. */
void signals_forward(pid_t child);

/* Hold the signals that are to be passed on until the command is known; @ret_mask is what was held before. */
void signals_hold(sigset_t *ret_mask);

/* Pass on to @child what processes send from now on. Signals that were ignored stay so. */
void signals_pass(pid_t child, const sigset_t *mask);

/* What a signal asks for. */
enum signals_wish {
  SIGNALS_OTHER,
  SIGNALS_END,    /* the first of those that mean an end */
  SIGNALS_END_NOW /* another of them, half a second later or more: until then it is the same wish, sent twice */
};

/* In a handler: kill(2) and reading memory is all that it may do. @child is 0 where there is none. */
typedef void signals_take_fn(void *user, pid_t child, int signal_number, enum signals_wish wish);

/*
 * From the next signals_pass on @take gets the signals instead of the child, which is in a process group of its own:
 * those of the terminal, too, and its job control, where this process stops after @take has returned.
 */
void signals_give(signals_take_fn *take, void *user);

/* End this process by the signal that ended the command. Does not return. */
void signals_end(int signal_number) __attribute__((noreturn));

#endif
