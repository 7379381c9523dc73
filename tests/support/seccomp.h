/* SPDX-License-Identifier: Apache-2.0 */
/* Removing system calls from a process, to test a program without them. */
#ifndef LADE_TESTS_SECCOMP_H
#define LADE_TESTS_SECCOMP_H

#include <stdbool.h>

/*
 * Refuse each of the @n @calls from now on, for good, in all threads and children: it fails with @refusal (an errno),
 * or ends the process with SIGSYS if @refusal is 0. False if the kernel or a container forbids it.
 */
bool seccomp_refuse(const int *calls, int n, int refusal);

#endif
