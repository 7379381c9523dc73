/* SPDX-License-Identifier: Apache-2.0 */
/* Taking system calls from a process, for tests of what happens without them. */
#ifndef LADE_TESTS_SECCOMP_H
#define LADE_TESTS_SECCOMP_H

#include <stdbool.h>

/*
 * From now on, for good, in all threads and children: each of the @n @calls fails with @refusal (an errno), or ends
 * the process with SIGSYS when that is 0. False where the kernel or a container forbids it.
 */
bool seccomp_refuse(const int *calls, int n, int refusal);

#endif
