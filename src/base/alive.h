/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose process is this? A child made by fork has its parent's handles, but not its threads, and shares its rings with
 * it. A handle that has one of these knows: it is 1 in the process that made it, and 0 in every child.
 */
#ifndef LADE_ALIVE_H
#define LADE_ALIVE_H

#include <stdatomic.h>

/* NULL when memory is out. Before Linux 4.14 it stays 1. Any thread. */
_Atomic int *lade_alive_create(void);

/* NULL is allowed. */
void lade_alive_destroy(_Atomic int *alive);

#endif
