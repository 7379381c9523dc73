/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mask is inherited, so it is set before and put back after: a thread that blocked signals itself could be given
 * one before it came to that. The name is given by whoever starts it: then it is there when the start returns.
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
