/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT and SIGTERM: the first asks the run to end after its step, the second ends the process at once.
 */
#ifndef LADE_SIGNALS_H
#define LADE_SIGNALS_H

#include <sys/types.h>

/* Begin to listen. System calls that are interrupted start again. */
void signals_init(void);

/* The first signal that came, or 0. */
int signals_get(void);

/* A child that the signals are handed on to; 0: none any more. */
void signals_forward(pid_t child);

#endif
