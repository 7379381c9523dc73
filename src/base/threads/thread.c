/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start threads with all signals blocked. A thread inherits the signal mask, so the caller's mask is set before the
 * start and restored after it. A thread that blocked signals itself could receive one before it did so. The starting
 * thread also sets the name, so that the name is set when the start returns.
 */
#include "base/thread.h"

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"

#define SLICE_NS 100000 /* the shortest that Linux accepts */

/* The kernel's struct sched_attr in its first version; not every C library declares it. */
struct sched_request {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns, deadline_ns, period_ns;
};

int lade_thread_start(pthread_t *ret_thread, const char *name, void *(*main)(void *), void *arg)
{
  sigset_t all, before;
  LADE_ASSERT(strlen(name) <= LADE_THREAD_NAME_MAX);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(ret_thread, NULL, main, arg);
  if (!error)
    pthread_setname_np(*ret_thread, name);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return -error;
}

/* Ignore a failure: the thread then has the usual slice, and only its wake-ups are later. */
void lade_thread_be_prompt(void)
{
  struct sched_request request = {.size = sizeof(request)};
  if (syscall(SYS_sched_getattr, 0, &request, sizeof(request), 0) ||
      (request.policy != SCHED_OTHER && request.policy != SCHED_BATCH))
    return;
  request.runtime_ns = SLICE_NS;
  syscall(SYS_sched_setattr, 0, &request, 0);
}
