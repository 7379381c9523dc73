/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detect use of a handle after fork. A child made by fork inherits its parent's handles, but not its threads, and
 * shares its rings. A fork guard is 1 in the process that created it, and 0 in every child.
 */
#ifndef LADE_FORK_GUARD_H
#define LADE_FORK_GUARD_H

#include <stdatomic.h>

/* Create a guard. NULL if memory is out. Before Linux 4.14 the guard stays 1 in a child. Any thread. */
_Atomic int *lade_fork_guard_create(void);

/* NULL is allowed. */
void lade_fork_guard_destroy(_Atomic int *alive);

#endif
