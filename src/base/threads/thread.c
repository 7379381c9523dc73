/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start threads with all signals blocked. A thread inherits the signal mask, so the caller's mask is set before the
 * start and restored after it. A thread that blocked signals itself could receive one before it did so. The starting
 * thread also sets the name, so that the name is set when the start returns.
 */
#include "base/thread.h"

#include <signal.h>
#include <string.h>

#include "base/base.h"

int lade_thread_start(pthread_t *ret_thread, const char *name, void *(*main)(void *), void *arg)
{
  sigset_t all, before;
  LADE_ASSERT(strlen(name) <= LADE_THREAD_NAME_MOST);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(ret_thread, NULL, main, arg);
  if (!error)
    pthread_setname_np(*ret_thread, name);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return -error;
}
