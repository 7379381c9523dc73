/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that Lade creates. A program's signals belong to the threads that the program created. A handler on Lade's
 * thread could interrupt a system call that a drive's completion depends on. It could also run with a stack and locks
 * unknown to its author. So Lade's threads block all signals from their first instruction on, by the mask inherited
 * from the starting thread. Faults of the thread itself (SIGSEGV and similar) are still delivered.
 *
 * A thread has a name, which ps, gdb and /proc show.
 *
 * A thread that feeds a drive or a link sleeps most of the time and must run as soon as its transfer ends. Linux gives
 * a core to a woken thread only after the time slice of the running thread, up to a tick of 4 ms. A thread that has
 * asked for a shorter slice gets the core at once. So such threads ask for the shortest one (lade_thread_be_prompt).
 */
#ifndef LADE_THREAD_H
#define LADE_THREAD_H

#include <pthread.h>

#define LADE_THREAD_NAME_MAX 15 /* characters: the kernel's limit */

/*
 * Start @main(@arg) as a thread called @name, of at most LADE_THREAD_NAME_MAX characters; the caller joins it. -EAGAIN
 * if the machine refuses a thread. The thread runs without its name if the machine refuses the name. Any thread.
 */
int lade_thread_start(pthread_t *ret_thread, const char *name, void *(*main)(void *), void *arg);

/*
 * Ask for the shortest time slice for the calling thread, so that its wake-ups preempt threads that compute. Its share
 * of the processor and its priority stay. No effect before Linux 6.12 and under real-time policies.
 */
void lade_thread_be_prompt(void);

#endif
