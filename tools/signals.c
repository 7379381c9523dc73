/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one piece of state that a handler can reach is the process's, hence the two variables of the file. A
 * handler may do little: it notes the signal, hands it to a child, and on its second call leaves by _exit,
 * without flushing or saving, since whoever asks twice wants to be rid of the process.
 */
#include "tools/signals.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t first_signal;
static volatile pid_t child_process;

static void signal_note(int signal)
{
  int saved_errno = errno;
  if (child_process > 0)
    kill(child_process, signal);
  if (first_signal)
    _exit(128 + signal);
  first_signal = signal;
  errno = saved_errno;
}

void signals_init(void)
{
  struct sigaction action = {.sa_handler = signal_note, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

int signals_get(void)
{
  return first_signal;
}

void signals_forward(pid_t child)
{
  child_process = child;
}
