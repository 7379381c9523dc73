/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of Lade's own. A program's signals are for the threads that the program made itself: a handler that runs on
 * one of ours would run in the middle of a system call that a drive's completion waits for, or with a stack and locks
 * that its author knows nothing of. So ours have all signals blocked from their first instruction on, which they
 * inherit from whoever starts them. Faults of their own (SIGSEGV and its like) come all the same.
 *
 * A thread has a name, which ps, gdb and /proc show.
 */
#ifndef LADE_THREAD_H
#define LADE_THREAD_H

#include <pthread.h>

#define LADE_THREAD_NAME_MOST 15 /* characters, which is what the kernel keeps */

/*
 * Start @main(@arg) as a thread called @name, LADE_THREAD_NAME_MOST characters at the most; the caller's to join.
 * -EAGAIN where the machine refuses one. Any thread. A name that the machine refuses costs nothing but the name.
 */
int lade_thread_start(pthread_t *ret_thread, const char *name, void *(*main)(void *), void *arg);

#endif
