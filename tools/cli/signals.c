/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signal handlers of the command. Its state is in file-scope variables because a handler gets no argument of the
 * caller. A handler records the signal and passes it to a child. A second signal ends the process by _exit, without
 * flushing or saving, because the user then wants it gone at once.
 */
#include "tools/cli/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "base/base.h"

static volatile sig_atomic_t first_signal;
static volatile pid_t child_process;
static volatile sig_atomic_t nowhere, *mark = &nowhere;
static signals_handler_fn *handler;
static void *handler_user;
static int64_t first_ns; /* when first_signal came, if a handler is registered */

/* Signals this close together are one request: `timeout` signals the command and then its whole process group. */
#define ONE_REQUEST_NS 500000000

static void signal_note(int signal)
{
  int saved_errno = errno;
  if (child_process > 0)
    kill(child_process, signal);
  errno = saved_errno;
  if (first_signal && signal == SIGHUP) /* a closing terminal sends SIGHUP twice, and the end of a login session
                                           sends it after SIGTERM */
    return;
  if (first_signal)
    _exit(128 + signal);
  first_signal = signal;
  *mark = signal;
}

void signals_init(void)
{
  struct sigaction action = {.sa_handler = signal_note, .sa_flags = SA_RESTART}, before;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaddset(&action.sa_mask, SIGHUP);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* ignored at start, as under nohup */
    sigaction(SIGHUP, &action, NULL);
}

void signals_mark(volatile sig_atomic_t *word)
{
  mark = word;
  if (first_signal)
    *mark = first_signal;
}

int signals_get(void)
{
  return first_signal;
}

void signals_forward(pid_t child)
{
  child_process = child;
}

/* ---- child commands ---- */

/* Signals of other processes that are passed on. The last two go to a registered handler only. */
static const int passed[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
#define N_HANDLED LADE_COUNT(passed) /* signals that a handler gets */
#define N_PASSED (N_HANDLED - 2)     /* signals that a child gets without a handler */

static bool is_end(int signal)
{
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

static void signal_take(int signal)
{
  const int64_t now_ns = lade_now_ns();
  if (!is_end(signal)) {
    handler(handler_user, child_process, signal, SIGNALS_OTHER);
  } else if (!first_signal) {
    first_ns = now_ns;
    handler(handler_user, child_process, signal, SIGNALS_END);
  } else if (now_ns - first_ns > ONE_REQUEST_NS) {
    handler(handler_user, child_process, signal, SIGNALS_END_NOW);
  }
  if (signal == SIGTSTP)
    raise(SIGSTOP);
}

/*
 * Pass @signal on to the child. Signals of the terminal are left out because the terminal sends them to the child too.
 */
static void signal_pass(int signal, siginfo_t *info, void *context)
{
  int saved_errno = errno;
  if (handler)
    signal_take(signal);
  else if (info->si_code <= 0 && child_process > 0)
    kill(child_process, signal);
  if (!first_signal && is_end(signal))
    first_signal = signal;
  errno = saved_errno;
}

void signals_hold(sigset_t *ret_mask)
{
  sigset_t held;
  sigemptyset(&held);
  for (size_t i = 0; i < N_PASSED; i++)
    sigaddset(&held, passed[i]);
  sigprocmask(SIG_BLOCK, &held, ret_mask);
}

void signals_pass(pid_t child, const sigset_t *mask)
{
  struct sigaction action = {.sa_sigaction = signal_pass, .sa_flags = SA_RESTART | SA_SIGINFO}, before;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < N_PASSED; i++)
    sigaddset(&action.sa_mask, passed[i]);
  child_process = child;
  for (size_t i = 0; i < (handler ? N_HANDLED : N_PASSED); i++)
    if (sigaction(passed[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      sigaction(passed[i], &action, NULL);
  sigprocmask(SIG_SETMASK, mask, NULL);
}

void signals_handler_set(signals_handler_fn *new_handler, void *user)
{
  handler_user = user;
  handler = new_handler;
}

void signals_end(int signal_number)
{
  sigset_t only;
  signal(signal_number, SIG_DFL);
  sigemptyset(&only);
  sigaddset(&only, signal_number);
  sigprocmask(SIG_UNBLOCK, &only, NULL);
  raise(signal_number);
  _exit(128 + signal_number);
}
